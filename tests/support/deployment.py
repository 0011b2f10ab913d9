"""Dagster's services as processes: code servers, webserver, daemon; and questions to its GraphQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from conftest import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from postgres import Postgres

EXAMPLE = ROOT / "examples" / "deployment"
HEALTH = "{ instance { daemonHealth { allDaemonStatuses { healthy required } } } }"


def ask(url: str, query: str, **variables: Any) -> Any:
    """Return what Dagster's GraphQL answers."""
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": query, "variables": variables}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        document = json.load(answer)
    assert "errors" not in document, document
    return document["data"]


def is_healthy(url: str) -> bool:
    """Whether the webserver answers and all daemons that are necessary run."""
    with suppress(OSError):
        daemons = ask(url, HEALTH)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return all(d["healthy"] for d in daemons if d["required"])
    return False


def free_ports(names: Sequence[str]) -> dict[str, str]:
    """Return a port that nobody uses for each name."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return {p: str(s.getsockname()[1]) for p, s in zip(names, sockets, strict=True)}


@contextmanager
def ending() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give the block a list of processes, which end with it, with all that they started."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
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


def start(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a program of this environment in a group of its own; it writes into a log."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            cwd=cwd,
            env={**os.environ, **env},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def memory_of(pid: int) -> int:
    """Return the memory that a process and all below it have to themselves, in bytes."""
    import psutil

    total = 0
    for process in (root := psutil.Process(pid), *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().uss
    return total


@dataclass(frozen=True)
class Dagster:
    """A deployment with PostgreSQL, a queue of runs, and a code server for each project.

    Attributes
    ----------
    servers
        The processes of the code servers, by the names of their locations.
    env
        What a command needs to use the same instance.
    """

    url: str
    directory: Path
    env: Mapping[str, str]
    servers: Mapping[str, subprocess.Popen[bytes]]

    def ask(self, query: str, **variables: Any) -> Any:
        return ask(self.url, query, **variables)

    def launch(
        self,
        location: str,
        *keys: str,
        job: str = "__ASSET_JOB",
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a run of some assets, and return its ID."""
        selector: dict[str, Any] = {
            "repositoryLocationName": location,
            "repositoryName": "__repository__",
            "jobName": job,
        }
        if keys:
            selector["assetSelection"] = [{"path": key.split("/")} for key in keys]
        named = [{"key": k, "value": v} for k, v in (tags or {}).items()]
        result = self.ask(
            "mutation ($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename"
            " ... on LaunchRunSuccess { run { runId } } ... on PythonError { message stack }"
            " ... on RunConfigValidationInvalid { errors { message } }"
            " ... on InvalidSubsetError { message } } }",
            p={
                "selector": selector,
                "mode": "default",
                "runConfigData": config or {},
                "executionMetadata": {"tags": named},
            },
        )["launchRun"]
        assert result["__typename"] == "LaunchRunSuccess", result
        return result["run"]["runId"]

    def status(self, run_id: str) -> str:
        query = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return self.ask(query, id=run_id)["runOrError"]["status"]

    def ended(self, run_id: str, *, seconds: float = 300) -> str:
        """Wait for the end of a run, and return its status."""
        ends = {"SUCCESS", "FAILURE", "CANCELED"}
        wait_for(lambda: self.status(run_id) in ends, seconds=seconds)
        return self.status(run_id)

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the events of a run."""
        query = (
            "query ($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection(limit: 1000) {"
            " events { __typename ... on MessageEvent { eventType message stepKey }"
            " ... on ExecutionStepFailureEvent { error { message } }"
            " ... on DisplayableEvent { metadataEntries { label ... on TextMetadataEntry { text } }"
            " } } } } } }"
        )
        return self.ask(query, id=run_id)["runOrError"]["eventConnection"]["events"]

    def runs(self) -> dict[str, str]:
        """Return the statuses of all runs by ID."""
        query = "{ runsOrError(limit: 1000) { ... on Runs { results { runId status } } } }"
        return {r["runId"]: r["status"] for r in self.ask(query)["runsOrError"]["results"]}

    def reload(self, location: str) -> str | None:
        """Reload a code location; return the error with which it loads, None if there is none."""
        entry = self.ask(
            "mutation ($n: String!) { reloadRepositoryLocation(repositoryLocationName: $n) {"
            " __typename ... on WorkspaceLocationEntry { locationOrLoadError { __typename"
            " ... on PythonError { message } } } ... on PythonError { message } } }",
            n=location,
        )["reloadRepositoryLocation"]
        loaded = entry.get("locationOrLoadError") or entry
        return loaded.get("message")

    def assets(self) -> dict[str, str]:
        """Return the locations of all assets that can be materialized, by key."""
        query = (
            "{ assetNodes { assetKey { path } isMaterializable repository { location { name } } } }"
        )
        return {
            "/".join(node["assetKey"]["path"]): node["repository"]["location"]["name"]
            for node in self.ask(query)["assetNodes"]
            if node["isMaterializable"]
        }


@contextmanager
def dagster_of(
    directory: Path, postgres: Postgres, projects: Mapping[str, Path], env: Mapping[str, str]
) -> Iterator[Dagster]:
    """Give the block a deployment of some projects, by the names of their locations.

    Settings are those of examples/deployment. It is up when the block begins.
    """
    import psycopg

    home, name = directory / "dagster", f"dagster_{os.urandom(4).hex()}"
    home.mkdir()
    shutil.copy(EXAMPLE / "dagster.yaml", home)
    with psycopg.connect(host=str(postgres.root), user="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    ports = free_ports(["web", *projects])
    servers = [
        {"grpc_server": {"host": "127.0.0.1", "port": int(ports[p]), "location_name": p}}
        for p in projects
    ]
    (home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": servers}))
    storage = f"postgresql+psycopg2://postgres@/{name}?host={postgres.root}"
    env = {**env, "DAGSTER_HOME": str(home), "DAGSTER_POSTGRES_URL": storage}
    workspace = ("--workspace", str(home / "workspace.yaml"))
    with ending() as processes:
        started: dict[str, subprocess.Popen[bytes]] = {}
        for location, root in projects.items():
            options = ("--host", "127.0.0.1", "--port", ports[location])
            of = ("--python-file", "definitions.py", "--location-name", location)
            command = ("dagster", "code-server", "start", *options, *of)
            started[location] = start(command, root, env, directory / f"{location}.log")
            processes.append(started[location])
        web = ("dagster-webserver", "--host", "127.0.0.1", "--port", ports["web"], *workspace)
        daemon = ("dagster-daemon", "run", *workspace)
        processes.append(start(web, directory, env, directory / "webserver.log"))
        processes.append(start(daemon, directory, env, directory / "daemon.log"))
        dagster = Dagster(f"http://127.0.0.1:{ports['web']}", directory, env, started)
        wait_for(lambda: is_healthy(dagster.url), seconds=180)
        wait_for(lambda: {*projects} <= {*dagster.assets().values()}, seconds=180)
        yield dagster
