"""Spark that somebody else has started: Connect servers, and clusters of a master and workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from conftest import need, wait_for

from persist_assets.engine.server import _listens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def apart(mount: str) -> tuple[str, ...]:
    """Return the command that runs another command with mounts that only that one sees.

    Parameters
    ----------
    mount
        The command that mounts, in the shell.
    """
    unshare = need(shutil.which("unshare"), "install util-linux")
    run = f'{mount} && exec "$@"'
    return (unshare, "--map-root-user", "--mount", "sh", "-c", run, "sh")


@contextmanager
def _running(command: Sequence[str], directory: Path, name: str) -> Iterator[subprocess.Popen]:
    directory.mkdir(parents=True, exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PERSIST_")}
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**clean, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _answers(process: subprocess.Popen, port: int, log: Path) -> None:
    wait_for(lambda: _listens(port) or process.poll() is not None)
    assert process.poll() is None, log.read_text()


@contextmanager
def connect_server(
    directory: Path, settings: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the address of a Connect server that somebody else started, in another directory.

    Parameters
    ----------
    before
        The command that runs the server; its last argument is the server's own command.
    """
    port = free_port()
    every = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        **(settings or {}),
    }
    command = [
        *before,
        str(HOME / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for k, v in every.items() for part in ("--conf", f"{k}={v}")),
        "spark-internal",
    ]
    with _running(command, directory, "connect") as process:
        _answers(process, port, directory / "connect.log")
        yield f"sc://localhost:{port}"


@contextmanager
def cluster(directory: Path, workers: Sequence[Sequence[str]] = ((), ())) -> Iterator[str]:
    """Yield the URL of the master of a standalone cluster, whose workers have one core each.

    Parameters
    ----------
    workers
        For each worker, the command that runs it, as in `connect_server`.
    """
    port, spark_class = free_port(), str(HOME / "bin" / "spark-class")
    main = "org.apache.spark.deploy"
    with ExitStack() as stack:
        place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        master = _running([spark_class, f"{main}.master.Master", *place], directory, "master")
        _answers(stack.enter_context(master), port, directory / "master.log")
        url = f"spark://127.0.0.1:{port}"
        logs: list[Path] = []
        for n, before in enumerate(workers):
            own = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port"]
            worker = [spark_class, f"{main}.worker.Worker", *own, str(free_port()), url]
            command = [*before, *worker]
            stack.enter_context(_running(command, directory / f"worker-{n}", "worker"))
            logs.append(directory / f"worker-{n}" / "worker.log")
        for log in logs:
            wait_for(lambda log=log: "Successfully registered with master" in log.read_text())
        yield url
