"""A Spark server that runs, commands and projects share: start, sessions, failures, shutdown.

Every client is a separate process, because a process has either classic sessions or those of a
server. A test uses the server that is running and starts one if there is none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SPARK_TOML, need, wait_for
from deltalake import DeltaTable
from sparks import connect_server

from persist_assets.engine.server import stop_server

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
--@ check { not_null=[a] unique=[b] }
CREATE VIEW p AS SELECT a, b, CAST(a AS DECIMAL(12, 2)) AS d, TIMESTAMP '2020-01-01' AS e FROM t WHERE a > 0;
CREATE VIEW v AS SELECT a + 1 AS c, b FROM p;
--@ persist
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v GROUP BY b;
"""
SLOW = """SELECT count(*) AS n FROM t, (SELECT explode(sequence(1, 3000000)) AS x) AS f,
(SELECT explode(sequence(1, 3000000)) AS y) AS g WHERE x + y + a = 17"""
SHARED = SPARK_TOML + "shared = true\n"


def make(root: Path, toml: str) -> Path:
    (root / "sources").mkdir(parents=True)
    (root / "raw" / "t").mkdir(parents=True)
    (root / "persist.toml").write_text(toml)
    (root / "sources" / "m.sql").write_text(SOURCES)
    table = pa.table({"a": pa.array([1, 2, -1], pa.int64()), "b": ["x", "y", "z"]})
    pq.write_table(table, root / "raw" / "t" / "p.parquet")
    return root


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of projects; their servers are stopped after the tests."""
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    base = tmp_path_factory.mktemp("shared")
    make(base / "one", SHARED)
    make(base / "two", SHARED + '"spark.sql.ansi.enabled" = false\n')
    make(base / "hasty", SHARED + 'shared_idle = "2s"\n')
    make(base / "classic", SPARK_TOML)
    yield base
    for state in (base / "home" / "spark").glob("*"):
        ours = processes(state)
        stop_server(state)
        wait_for(lambda ours=ours: not any(map(alive, ours)), seconds=30)


def run(places: Path, *command: str) -> subprocess.Popen[str]:
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "DAGSTER_", "PERSIST_"))
    }
    return subprocess.Popen(
        [sys.executable, *command],
        env={**clean, "PERSIST_SPARK_HOME": str(places / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def persist(places: Path, project: str, *command: str) -> Any:
    started = run(
        places, "-m", "persist_assets.cli", "--project", str(places / project), *command, "--json"
    )
    out, err = started.communicate(timeout=180)
    assert started.returncode == 0, err
    return json.loads(out)


def processes(state: Path) -> list[int]:
    """Return the process ids of a server: supervisor, JVM."""
    path = state / "processes.json"
    return json.loads(path.read_text()) if path.exists() else []


def state_of(places: Path) -> Path:
    (state,) = (places / "home" / "spark").iterdir()
    return state


def alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z")


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(str(root / ".persist" / "warehouse" / table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["b"])


@pytest.mark.slow
def test_a_server_starts_once_reports_its_address_and_hides_its_token(places: Path) -> None:
    told = persist(places, "one", "spark", "start")
    assert told["running"]
    assert told["url"] == f"sc://localhost:{told['port']}"
    state = state_of(places)
    token = json.loads((state / "server.json").read_text())["token"]
    assert told["pid"] == processes(state)[0]
    again = persist(places, "two", "spark", "start")
    assert (again["pid"], again["started_at"]) == (told["pid"], told["started_at"])
    assert persist(places, "one", "spark", "status") == {**told, "clients": 0}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for name in ("server.json", "spark.properties"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    shown = subprocess.run(
        ["ps", "-ww", "-A", "-o", "args="], capture_output=True, text=True, check=True
    )
    assert f"persist_assets-{state.name}" in shown.stdout
    assert token not in shown.stdout


@pytest.mark.slow
def test_a_build_is_the_same_with_a_server_and_without(places: Path) -> None:
    shared, classic = (persist(places, name, "build")["builds"] for name in ("one", "classic"))
    assert [b["action"] for b in shared] == ["built", "built"]
    kept = ("source_id", "build_id", "rows", "table", "version", "action")
    assert [[b[k] for k in kept] for b in shared] == [[b[k] for k in kept] for b in classic]
    for build in shared:
        assert rows(places / "one", build["table"]) == rows(places / "classic", build["table"])
    told = persist(places, "one", "query", "SELECT b, s FROM q ORDER BY b")
    assert told["rows"] == [["x", 2], ["y", 3]]
    assert [r["from"] for r in told["route"]] == ["table"]


CLIENT = """
import sys
from pathlib import Path
from persist_assets.engine.server import find_server, server_directory
from persist_assets.engine.session import create_session, open_session
from persist_assets.core.settings.load import load_settings
from pyspark.sql import SparkSession

one, two = (load_settings(Path(root)) for root in sys.argv[1:])
assert server_directory(one) == server_directory(two)
mine, other = (open_session(s, lambda s=s: create_session(s)) for s in (one, two))
mine.sql("SELECT 1 AS x").createOrReplaceTempView("mine")
assert mine.table("mine").collect()[0].x == 1

def refused(session, query):
    try:
        session.sql(query).collect()
    except Exception as error:
        return str(error)

assert "TABLE_OR_VIEW_NOT_FOUND" in refused(other, "SELECT * FROM mine")
# Each has its own settings too: only one of them has ANSI mode.
assert "DIVIDE_BY_ZERO" in refused(mine, "SELECT 1 / 0")
assert refused(other, "SELECT 1 / 0") is None
server = find_server(server_directory(one))
for url in (server.address, f"{server.address}/;token={'0' * 64}"):
    stranger = SparkSession.builder.remote(url).create()
    assert "UNAUTHENTICATED" in refused(stranger, "SELECT 1")
    stranger.stop()
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server started outside persist, in another directory."""
    theirs = {"spark.sql.catalog.theirs": "org.apache.spark.sql.delta.catalog.Theirs"}
    with connect_server(tmp_path, theirs) as address:
        yield address


@pytest.mark.slow
@pytest.mark.proves("S13")
def test_builds_work_in_a_spark_connect_server_started_outside_persist(
    places: Path, foreign: str
) -> None:
    toml = f'{SPARK_TOML}"spark.remote" = "{foreign}"\n"spark.sql.warehouse.dir" = "/nowhere"\n'
    root = make(places / "foreign", toml)
    (root / "sources" / "f.py").write_text(FUNCTION)
    told = persist(places, "foreign", "build")["builds"]
    assert {b["source_id"].partition("@")[0]: (b["action"], b["rows"]) for b in told} == {
        "p": ("built", 2),
        "q": ("built", 2),
        "f": ("built", 2),
    }
    by_name = {b["source_id"].partition("@")[0]: b for b in told}
    assert rows(root, by_name["q"]["table"]) == [{"b": "x", "s": 2}, {"b": "y", "s": 3}]
    assert {s["action"] for s in persist(places, "foreign", "plan")["steps"]} == {"reuse"}
    answer = persist(places, "foreign", "query", "SELECT sum(c) + 1 AS s FROM f")
    assert answer["rows"] in ([[6]], [{"s": 6}])


FUNCTION = """
from persist_assets import table


@table
def f(p):
    return p.selectExpr("a + 1 AS c")
"""


@pytest.mark.slow
def test_projects_share_a_server_in_isolated_sessions_and_unauthenticated_clients_fail(
    places: Path,
) -> None:
    client = run(places, "-c", CLIENT, str(places / "one"), str(places / "two"))
    _, err = client.communicate(timeout=120)
    assert client.returncode == 0, err


@pytest.mark.slow
def test_a_query_reports_a_dead_server_and_the_next_query_restarts_it(places: Path) -> None:
    before = persist(places, "one", "spark", "start")
    user = run(places, "-m", "persist_assets.cli", "--project", str(places / "one"), "query", SLOW)
    wait_for(lambda: persist(places, "one", "spark", "status")["clients"] == 1)
    os.kill(processes(state_of(places))[1], signal.SIGKILL)
    out, err = user.communicate(timeout=60)
    assert (user.returncode, out) == (6, ""), err
    assert "the Spark server is gone\n  hint: try again" in err
    assert persist(places, "one", "query", "SELECT 1 AS x")["rows"] == [[1]]
    after = persist(places, "one", "spark", "status")
    assert after["running"] and after["pid"] != before["pid"]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Its tasks never check whether they were cancelled.
HEEDLESS = """SELECT sum(aggregate(sequence(1, 100000), id, (a, x) ->
a + aggregate(sequence(1, 1000000), x, (b, y) -> (b + y) % 7))) AS n FROM range(0, 8, 1, 8)"""
IMPATIENT = """
from persist_assets.engine import server
server.STUCK_S = 4.0
from persist_assets.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.proves("S27")
def test_a_server_whose_cancelled_job_does_not_end_is_replaced(places: Path) -> None:
    before = persist(places, "one", "spark", "start")
    query = ("--project", str(places / "one"), "query")
    heedless = run(places, "-m", "persist_assets.cli", *query, HEEDLESS)

    def runs() -> bool:
        jobs = persist(places, "one", "spark", "status")["jobs"]
        return bool(jobs) and jobs[0]["running"] == 2

    wait_for(runs, seconds=60)
    # Wait until the tasks compute: a task cancelled earlier would end.
    _, jvm = processes(state_of(places))
    began = cpu_seconds(jvm)
    wait_for(lambda: cpu_seconds(jvm) > began + 5, seconds=60)
    heedless.send_signal(signal.SIGINT)
    heedless.communicate(timeout=60)
    assert heedless.returncode == 130
    after_it = run(places, "-c", IMPATIENT, *query, "SELECT count(*) AS n FROM t")
    out, err = after_it.communicate(timeout=120)
    assert after_it.returncode == 6, (out, err)
    assert "the Spark server was stopped because cancelled jobs occupied all of its cores" in err
    assert persist(places, "one", "query", "SELECT count(*) AS n FROM t")["rows"] == [[3]]
    assert persist(places, "one", "spark", "status")["pid"] != before["pid"]


@pytest.mark.slow
def test_an_orphaned_jvm_is_killed_and_an_idle_server_stops(
    places: Path,
) -> None:
    persist(places, "one", "spark", "start")
    state = state_of(places)
    supervisor, orphan = processes(state)
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not alive(supervisor))
    assert alive(orphan)
    assert not persist(places, "one", "spark", "status")["running"]
    assert persist(places, "hasty", "spark", "start")["running"]
    assert not alive(orphan)
    idle = processes(state)
    assert len(idle) == 2
    wait_for(lambda: not any(map(alive, idle)), seconds=40)
    assert not persist(places, "one", "spark", "status")["running"]
    assert persist(places, "one", "spark", "stop") == {"stopped": False}
