"""The topology of examples/deployment, started as processes: its commands, settings and databases."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import ROOT, wait_for
from test_browser import ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postgres import Postgres

EXAMPLE = ROOT / "examples" / "deployment"
PORTS = ("3000", "3070", "4000")
TOKEN = "r" * 32
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())


def free_ports() -> dict[str, str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in PORTS]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return {p: str(s.getsockname()[1]) for p, s in zip(PORTS, sockets, strict=True)}


def on_loopback(value: str, ports: Mapping[str, str], directory: Path, database: Path) -> str:
    """Return a value of compose.yaml as it is without containers."""
    value = re.sub(r"@postgres:5432/(\w+)", rf"@/\1?host={database}", value)
    value = re.sub(r"^(\d{4})$", lambda m: ports.get(m[1], m[1]), value)
    value = re.sub(
        r"\$\{(\w+)[^}]*\}",
        lambda m: {"PERSIST_TOKENS": f"ops:write:{TOKEN}"}.get(m[1], "x"),
        value,
    )
    value = {"0.0.0.0": "127.0.0.1", "code": "127.0.0.1"}.get(value, value)
    return value.replace("/dagster/", f"{directory}/dagster/")


@pytest.fixture
def deployed(tmp_path: Path, postgres: Postgres) -> Iterator[tuple[Path, dict[str, str]]]:
    """The services of compose.yaml, without containers: the project's root, and their ports."""
    import psycopg

    project, home, ports = tmp_path / "project", tmp_path / "dagster", free_ports()
    made = [sys.executable, "-m", "persist_assets.cli", "init", str(project)]
    subprocess.run(made, check=True, capture_output=True)
    settings = (EXAMPLE / "persist.toml").read_text().replace("/warehouse", f"{tmp_path}/warehouse")
    settings = re.sub(r"@postgres:5432/(\w+)", rf"@/\1?host={postgres.root}", settings)
    toml = project / "persist.toml"
    toml.write_text(settings + toml.read_text())
    home.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(EXAMPLE / name, home)
    with psycopg.connect(host=str(postgres.root), user="postgres", autocommit=True) as connection:
        connection.execute("CREATE ROLE persist LOGIN SUPERUSER")
        connection.execute("CREATE DATABASE persist")
        connection.execute((EXAMPLE / "create-dagster.sql").read_text().encode())
    processes: list[subprocess.Popen[bytes]] = []
    binaries = Path(sys.executable).parent
    try:
        for name, service in COMPOSE["services"].items():
            if name == "postgres":
                continue
            values = {k: str(v) for k, v in service["environment"].items()}
            more = {k: on_loopback(v, ports, tmp_path, postgres.root) for k, v in values.items()}
            command = [on_loopback(w, ports, tmp_path, postgres.root) for w in service["command"]]
            with (tmp_path / f"{name}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [str(binaries / command[0]), *command[1:]],
                        cwd=project,
                        env={**os.environ, **more, "DAGSTER_HOME": str(home)},
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield project, ports
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def get(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def ready(url: str, query: str) -> bool:
    with suppress(OSError):
        daemons = ask(url, query)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return all(d["healthy"] for d in daemons if d["required"])
    return False


@pytest.mark.slow
@pytest.mark.proves("U5")
def test_the_deployment_materializes_in_the_ui(
    deployed: tuple[Path, dict[str, str]], page: Any
) -> None:
    root, ports = deployed
    url = f"http://127.0.0.1:{ports['3000']}"
    health = "{ instance { daemonHealth { allDaemonStatuses { healthy required } } } }"
    assets = "{ assetNodes { id } }"
    wait_for(lambda: ready(url, health) and ask(url, assets)["assetNodes"], seconds=180)
    page.goto(f"{url}/asset-groups/~")
    page.get_by_text(re.compile(r"Materialize (all|\(\d+\))")).first.click()
    runs = "{ runsOrError(limit: 9) { ... on Runs { results { status } } } }"

    def statuses() -> set[str]:
        return {run["status"] for run in ask(url, runs)["runsOrError"]["results"]}

    wait_for(lambda: bool(statuses() & {"SUCCESS", "FAILURE"}), seconds=240)
    assert statuses() == {"SUCCESS"}
    # The service shows what the run built: both use the ledger in PostgreSQL.
    service = f"http://127.0.0.1:{ports['3070']}"
    entries = get(f"{service}/api/v1/manifest", Authorization=f"Bearer {TOKEN}")["entries"]
    assert entries
    assert all(e["path"].startswith(f"{root.parent}/warehouse/") for e in entries.values())
    page.goto(f"{url}/runs")
    page.get_by_text("Success", exact=True).first.wait_for()


def test_the_units_start_what_the_containers_start() -> None:
    """The commands of the systemd units are those of the services of compose.yaml."""
    units = {
        p.stem.removeprefix("persist-"): p.read_text() for p in (EXAMPLE / "systemd").iterdir()
    }
    services = {n: s["command"] for n, s in COMPOSE["services"].items() if n != "postgres"}
    assert units.keys() == services.keys()
    for name, command in services.items():
        (started,) = re.findall(r"^ExecStart=\S+/(\S+ .*)$", units[name], re.MULTILINE)
        expected = " ".join(command).replace("0.0.0.0", "127.0.0.1")
        assert started == expected.replace(" /dagster/", " /opt/persist/dagster/")
