"""Two Dagster deployments with separate code, and their daemons.

One waits for materializations of the other and builds on them; runs are terminated and daemons
killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from commands import document
from conftest import SPARK_TOML, wait_for
from deltalake import write_deltalake

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.wants import REQUEST_TAG
from persist_assets.storage.delta_tables import read_sample, read_version

if TYPE_CHECKING:
    from collections.abc import Iterator

THEIRS = """
import dagster as dg

@dg.asset(
    key_prefix="data",
    partitions_def=dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01"),
)
def users() -> None: ...

@dg.asset(key_prefix="data")
def plain() -> None: ...

defs = dg.Definitions([users, plain], executor=dg.in_process_executor)
"""
OURS = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"
--@ want { needs=["users:data/users"] }
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""
SLOW = '''
import time
from pathlib import Path

from pyspark.sql import SparkSession

from persist_assets import table

HERE = Path({here!r})


@table
def slow(spark: SparkSession):
    """Takes until somebody lets it end."""
    with (HERE / "begun").open("a") as begun:
        begun.write("x")
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return spark.createDataFrame([(1,)], "a int")
'''
LAUNCH = """mutation($p: ExecutionParams!) {
    launchPipelineExecution(executionParams: $p) { __typename } }"""
REPOSITORY = {"repositoryLocationName": "definitions.py", "repositoryName": "__repository__"}
SENSOR = {**REPOSITORY, "sensorName": "persist_wants"}
INSTANCE = """
telemetry:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""


@dataclass
class Deployment:
    """A `dagster dev` in a directory: its webserver, its daemon and its code server."""

    root: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        home = self.root / "home"
        if not self.port:
            home.mkdir()
            (home / "dagster.yaml").write_text(INSTANCE)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        with (self.root / "dagster.log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "dagster"),
                    *("dev", "-f", "definitions.py", "-h", "127.0.0.1", "-p", str(self.port)),
                ],
                cwd=self.root,
                env={**os.environ, "DAGSTER_HOME": str(home)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Wait until the webserver answers and reports that the daemons are healthy."""
        wait_for(self._is_up, seconds=180)

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "dagster.log").read_text()[-2000:]
        query = "{ instance { daemonHealth { allDaemonStatuses { healthy required } } } }"
        with suppress(OSError):
            daemons = self.ask(query)["instance"]["daemonHealth"]["allDaemonStatuses"]
            return all(d["healthy"] for d in daemons if d["required"])
        return False

    def ask(self, query: str, **variables: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            told = json.load(answer)
        assert "errors" not in told, told
        return told["data"]

    def daemon(self) -> int:
        """Return the process ID of its daemon."""
        assert self.process is not None
        (found,) = [p for p in children(self.process.pid) if "dagster._daemon" in command(p)]
        return found

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


@dataclass
class Both:
    """A deployment of plain Dagster assets, and a deployment of persist that follows it."""

    theirs: Deployment
    ours: Deployment
    ledger: Ledger

    @property
    def root(self) -> Path:
        return self.ours.root

    def want(self, ref: str, *more: str) -> str:
        """Create a want on the command line, and return its id."""
        told = document("want", "add", ref, "--ttl", "none", "--no-wait", *more, cwd=self.root)
        return str(told["want_id"])

    def state(self, want_id: str) -> str:
        """Return the current state of a want."""
        (want,) = [w for w in self.ledger.wants.fetch("dev") if w.want_id == want_id]
        return want.state

    def wait(self, want_id: str, state: str) -> None:
        wait_for(lambda: self.state(want_id) == state, seconds=180)

    def runs(self) -> list[Any]:
        """Return our runs of build requests, the newest first."""
        query = """{ runsOrError(limit: 99) { ... on Runs { results {
            runId status jobName tags { key value } } } } }"""
        return [
            {**run, "request": tags[REQUEST_TAG]}
            for run in self.ours.ask(query)["runsOrError"]["results"]
            if REQUEST_TAG in (tags := {t["key"]: t["value"] for t in run["tags"]})
        ]

    def turns(self) -> set[str]:
        """Return the ids of our sensor's ticks that have ended."""
        query = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
            sensorState { ticks(limit: 5) { id endTimestamp } } } } }"""
        found = self.ours.ask(query, s=SENSOR)["sensorOrError"]["sensorState"]["ticks"]
        return {tick["id"] for tick in found if tick["endTimestamp"]}

    def events(self, want_id: str) -> list[str]:
        """Return the kinds of a want's events, in order, with syncs that reported partitions."""
        found, _ = self.ledger.events.search(0)
        (request,) = [
            e.data["build_request_id"]
            for e in found
            if e.kind == "build-requested" and want_id in e.data["want_ids"]
        ]
        return [
            e.kind
            for e in found
            if e.data.get("want_id") == want_id
            or (e.data.get("build_request_id") == request and e.kind != "evaluation")
            or (e.kind == "upstream-synced" and e.data["partitions"])
        ]

    def rows(self, source_id: str) -> list[dict[str, Any]]:
        settings = load_settings(self.root)
        (source,) = [s for s in load_project(settings).persisted if s.source_id == source_id]
        found = self.ledger.manifests.find_snapshot("dev", source.build_id)
        assert found is not None
        files = read_version(settings.table_root(found.table), found.version).files
        return read_sample(files, 10)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    base = tmp_path_factory.mktemp("deployments")
    theirs, ours = Deployment(base / "theirs"), Deployment(base / "ours")
    theirs.root.mkdir()
    (theirs.root / "definitions.py").write_text(THEIRS)
    (ours.root / "sources").mkdir(parents=True)
    (ours.root / "sources" / "m.sql").write_text(OURS)
    (ours.root / "sources" / "waits.py").write_text(SLOW.format(here=str(ours.root)))
    (ours.root / "definitions.py").write_text(
        "from persist_assets import load_sources\n\ndefs = load_sources('sources')\n"
    )
    days = [date(2024, 1, n) for n in (1, 2, 3)]
    table = pa.table({"day": days, "n": pa.array([1, 2, 3], pa.int32())})
    write_deltalake(str(ours.root / "f"), table)
    with ExitStack() as stack:
        stack.callback(theirs.stop)
        theirs.start()
        (ours.root / "persist.toml").write_text(
            f'[upstream.users]\ndagster = "{theirs.url}"\npatterns = ["data/**"]\n{SPARK_TOML}'
        )
        stack.callback(ours.stop)
        ours.start()
        theirs.wait()
        ours.wait()
        mutation = (
            "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
        )
        assert ours.ask(mutation, s=SENSOR)["startSensor"]["__typename"] == "Sensor"
        ledger = Ledger(load_settings(ours.root).ledger)
        stack.callback(ledger.close)
        yield Both(theirs, ours, ledger)


@pytest.mark.slow
@pytest.mark.proves("K10", "D14")
def test_a_deployment_builds_on_tables_of_another_deployment(both: Both) -> None:
    before = {run["runId"] for run in both.runs()}
    needed = "users:data/users/2024-01-02"
    want_id = both.want("m/daily/2024-01-02", "--needs", needed)
    chosen = {**REPOSITORY, "pipelineName": "__ASSET_JOB"}
    launched = both.theirs.ask(
        LAUNCH,
        p={
            "mode": "default",
            "selector": {**chosen, "assetSelection": [{"path": ["data", "users"]}]},
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "2024-01-02"}]},
        },
    )["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess"
    both.wait(want_id, "satisfied")
    assert both.events(want_id) == [
        "want-created",
        "upstream-synced",
        "build-requested",
        "build-request-started",
        "build-started",
        "build-succeeded",
        "partition-available",
        "build-request-succeeded",
        "want-satisfied",
    ]
    assert both.rows("daily@sources/m.sql") == [{"day": date(2024, 1, 2), "n": 2}]
    wait_for(lambda: both.runs()[0]["status"] == "SUCCESS")
    (run,) = [run for run in both.runs() if run["runId"] not in before]
    assert run["jobName"] == "persist_request"
    query = """query($k: AssetKeyInput!) { assetOrError(assetKey: $k) { ... on Asset {
        assetMaterializations { partition runId } } } }"""
    shown = both.ours.ask(query, k={"path": ["m", "daily"]})["assetOrError"]
    expected = {"partition": "2024-01-02", "runId": run["runId"]}
    assert shown["assetMaterializations"] == [expected]


@pytest.mark.slow
@pytest.mark.proves("D14")
def test_a_want_survives_a_terminated_run_and_a_killed_daemon(both: Both) -> None:
    before = len(both.runs())
    want_id = both.want("waits/slow")
    begun = both.root / "begun"
    wait_for(begun.exists, seconds=180)
    (first, *_) = both.runs()
    mutation = """mutation($id: String!) {
        terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
    ended = both.ours.ask(mutation, id=first["runId"])["terminateRun"]
    assert ended["__typename"] == "TerminateRunSuccess"
    both.wait(want_id, "failing")
    failed = both.ledger.requests.find(first["request"])
    assert failed is not None
    assert (failed.state, failed.error) == ("failed", "`waits/slow`: interrupted")
    wait_for(lambda: both.runs()[0]["status"] == "CANCELED")

    document("evaluate", "--force", cwd=both.root)  # instead of waiting for the retry delay
    wait_for(lambda: begun.read_text() == "xx", seconds=180)
    os.kill(both.ours.daemon(), signal.SIGKILL)
    assert both.ours.process is not None
    both.ours.process.wait(60)  # `dagster dev` exits without its daemon
    both.ours.start()
    both.ours.wait()
    turns = both.turns()
    wait_for(lambda: both.turns() != turns)  # the new daemon has run the sensor
    (both.root / "go").touch()
    both.wait(want_id, "satisfied")
    assert both.rows("slow@sources/waits.py") == [{"a": 1}]
    wait_for(lambda: both.runs()[0]["status"] == "SUCCESS")
    runs = [run["request"] for run in both.runs()]
    assert len(runs) == len({*runs}), "no request has two runs"
    assert len(runs) == before + 2
    assert begun.read_text() == "xx"
