"""Failing rows that checks with `keep_failures` store in tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.duckdb_engine import MakeEngine, engine_of
from typer.testing import CliRunner

from persist_assets.building.builder import Builder
from persist_assets.building.failing_rows import read_failures
from persist_assets.cli import app
from persist_assets.compiler.load import load, sound
from persist_assets.core.errors import CheckFailedError
from persist_assets.ledger.taints import Taint
from persist_assets.operations.data_checks import check_data
from persist_assets.operations.environments import promote
from persist_assets.operations.gc import collect, end_environment

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
RAW = "CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';\n"
SOURCES = """
--@ check { unique=a { keep_failures=true severity=warn } not_null=b { severity=warn } }
CREATE VIEW v AS SELECT a, b FROM t;
--@ persist
--@ check { expr { small='a < 3' keep_failures=2 } }
CREATE VIEW r AS SELECT a, b FROM v;
"""


def put(root: Path, **columns: list[Any]) -> None:
    path = root / "raw/t/p.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".new")
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that starts a new run, with its builder, of a project of SQL."""

    def builder(sql: str = SOURCES, root: Path | None = None, environment: str = "dev") -> Builder:
        if root is None:
            root = make_project({"m.sql": RAW}, settings="[env.prod]\n")
            put(root, a=[1, 1, 3, 4, 5], b=["x", "y", None, "x", "x"])
        (root / "sources" / "m.sql").write_text(RAW + sql)
        return enter(root, environment)

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def failing_tables(builder: Builder) -> dict[str, Path]:
    """Return the tables of failing rows, by environment, asset key and check."""
    (ledger,) = (builder.settings.root / ".persist/warehouse/.failures").iterdir()
    logs = sorted(ledger.rglob("_delta_log"))
    return {str(log.parent.relative_to(ledger)): log.parent for log in logs}


def show(builder: Builder, *arguments: str) -> Any:
    result = CliRunner().invoke(
        app, ["show", "--json", "--project", str(builder.settings.root), *arguments]
    )
    return json.loads(result.stdout) | {"exit": result.exit_code}


@pytest.mark.proves("W23")
def test_failing_rows_are_stored_until_no_row_fails(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    with pytest.raises(CheckFailedError) as caught:
        builder.build(named(builder, "r"))
    (small,) = (r for r in caught.value.results if r.name == "expr_small")
    tables = failing_tables(builder)
    assert sorted(tables) == ["dev/m/r@expr_small", "dev/m/v@unique_a"]
    assert (small.kept_in, small.kept_rows) == (str(tables["dev/m/r@expr_small"]), 2)
    assert small.failed_rows == 3
    assert DeltaTable(tables["dev/m/v@unique_a"]).version() == 0
    document = show(builder, "v", "--failures", "unique_a")
    assert sorted(document["rows"]) == [[1, "x"], [1, "y"]]
    assert {k: document[k] for k in ("exit", "columns", "kept_rows", "truncated")} == {
        "exit": 0,
        "columns": ["a", "b"],
        "kept_rows": 2,
        "truncated": False,
    }
    assert show(builder, "v", "--failures", "unique_a", "--limit", "1")["truncated"]
    assert (
        show(builder, "v", "--failures", "not_null_b")["error"]["message"]
        == "`not_null_b` keeps no failing rows"
    )
    assert (
        show(builder, "v", "--failures", "uniqe_a")["error"]["hint"] == "did you mean `unique_a`?"
    )
    put(root, a=[1, 1, 2], b=["x", "y", "z"])
    better = make(root=root)
    assert better.build(named(better, "r")).action == "built"
    assert [*failing_tables(better)] == ["dev/m/v@unique_a"]
    (unique,) = (c for c in show(better, "v")["checks"] if c["name"] == "unique_a")
    assert (unique["kept_in"], unique["kept_rows"]) == (str(tables["dev/m/v@unique_a"]), 2)
    put(root, a=[1], b=["x"])
    good = make(root=root)
    good.build(named(good, "r"))
    assert failing_tables(good) == {}
    assert show(good, "v", "--failures", "unique_a")["rows"] == []


@pytest.mark.proves("W23")
def test_adding_keep_failures_to_a_check_stores_rows_without_a_rebuild(make: Make) -> None:
    sql = SOURCES.replace(" keep_failures=true", "").replace("a < 3", "a < 9")
    builder = make(sql)
    assert builder.build(named(builder, "r")).action == "built"
    assert not (builder.settings.root / ".persist/warehouse/.failures").exists()
    edited = make(
        SOURCES.replace("a < 3", "a < 8").replace("not_null=b {", "accepted_values { b=[x, y]"),
        builder.settings.root,
    )
    planned = CliRunner().invoke(app, ["plan", "--json", "--project", str(builder.settings.root)])
    (step,) = json.loads(planned.stdout)["steps"]
    assert [(c["name"], c["before"], c["after"]) for c in step["changed_checks"]] == [
        ("expr_small", "a < 9", "a < 8"),
        ("m/v:accepted_values_b", None, "b in ['x', 'y'] in m/v (warns only)"),
        ("m/v:not_null_b", "b not null in m/v (warns only)", None),
    ]
    assert edited.build(named(edited, "r")).action == "reused"
    assert [*failing_tables(edited)] == ["dev/m/v@unique_a"]


@pytest.mark.proves("W23")
def test_gc_deletes_failing_rows_that_no_check_stores(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    for environment in ("dev", "prod"):
        other = make(root=root, environment=environment)
        with pytest.raises(CheckFailedError):
            other.build(named(other, "r"))
    every = ["dev/m/r@expr_small", "dev/m/v@unique_a", "prod/m/r@expr_small", "prod/m/v@unique_a"]
    assert sorted(failing_tables(builder)) == every
    assert not collect(builder.settings, builder.project, builder.ledger)
    assert sorted(failing_tables(builder)) == every
    edited = make(SOURCES.replace(" keep_failures=true", ""), root)
    preview = collect(edited.settings, edited.project, edited.ledger, dry_run=True)
    assert [c.table.rpartition("/.failures")[2].split("/", 2)[2] for c in preview] == [every[1]]
    assert sorted(failing_tables(edited)) == every
    collect(edited.settings, edited.project, edited.ledger)
    assert sorted(failing_tables(edited)) == [every[0], *every[2:]]
    (root / "persist.toml").write_text(
        (root / "persist.toml").read_text().replace("[env.prod]\n", "")
    )
    left = make(root=root)
    collect(left.settings, left.project, left.ledger)
    assert [*failing_tables(left)] == [every[0]], "nobody has published anything in prod"


def test_gc_keeps_failing_rows_that_newer_code_or_a_broken_file_may_keep(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    with pytest.raises(CheckFailedError):
        builder.build(named(builder, "r"))
    every = ["dev/m/r@expr_small", "dev/m/v@unique_a"]
    weeks = datetime.now(UTC) + timedelta(weeks=3)
    (root / "sources" / "n.sql").write_text("--@ persist\nCREATE VIEW o AS SELECT a FROM t")
    for edited in (SOURCES.replace(" keep_failures=true", ""), SOURCES.partition("--@ persist")[0]):
        older = make(edited, root)
        collect(older.settings, older.project, older.ledger, is_fresh=False)
        assert sorted(failing_tables(older)) == every
    collect(older.settings, older.project, older.ledger)
    assert sorted(failing_tables(older)) == every, "a source that is not known may be elsewhere"
    preview = collect(older.settings, older.project, older.ledger, removed=True, dry_run=True)
    assert [c.table.rpartition("/")[2] for c in preview] == ["r@expr_small"]
    for wrong in (SOURCES.replace("SELECT a, b FROM v", "SELECT aa FROM v"), "CREATE VIEW v AS ("):
        (root / "sources" / "m.sql").write_text(RAW + wrong)
        project = sound(load(builder.settings).project)
        assert project.errors
        collect(builder.settings, project, builder.ledger, clock=lambda: weeks, removed=True)
        assert sorted(failing_tables(builder)) == every
    older = make(SOURCES.partition("--@ persist")[0], root)
    collect(older.settings, older.project, older.ledger, is_fresh=False, clock=lambda: weeks)
    assert [*failing_tables(older)] == every[1:]


def test_show_reports_that_kept_rows_were_deleted(make: Make) -> None:
    sql = SOURCES.replace("keep_failures=2", "keep_failures=2 severity=warn")
    builder = make(sql)
    builder.build(named(builder, "r"))
    edited = make(sql.replace(" keep_failures=2", ""), builder.settings.root)
    collect(edited.settings, edited.project, edited.ledger)
    make(sql, builder.settings.root)
    arguments = ["show", "r", "--failures", "expr_small", "--project", str(builder.settings.root)]
    assert CliRunner().invoke(app, arguments).stdout.splitlines() == [
        "no rows are kept in `dev`, but 3 rows of the published table fail: the rows were kept, and"
        " deleted later",
        "  hint: persist check --data m/r --env dev",
    ]


@pytest.mark.proves("W23")
def test_failing_rows_of_a_pull_request_stay_until_its_environment_ends(make: Make) -> None:
    root = make().settings.root
    (root / "persist.toml").write_text('[env.prod]\n[env."pr-*"]\nreads = "prod"\n')
    pull = make(root=root, environment="pr-1")
    with pytest.raises(CheckFailedError):
        pull.build(named(pull, "r"))
    every = ["pr-1/m/r@expr_small", "pr-1/m/v@unique_a"]
    prod = make(root=root, environment="prod")
    collect(prod.settings, prod.project, prod.ledger)
    assert sorted(failing_tables(prod)) == every, "nothing has been published in it"
    n_entries, collected = end_environment(pull.settings, pull.project, pull.ledger)
    assert n_entries == 0
    assert [c.table.rpartition("/")[2] for c in collected] == ["pr-1"]
    assert failing_tables(prod) == {}


@pytest.mark.proves("W23")
def test_each_environment_stores_its_own_failing_rows(make: Make) -> None:
    sql = SOURCES.replace("keep_failures=2", "keep_failures=2 severity=warn")
    dev = make(sql)
    assert dev.build(named(dev, "r")).action == "built"
    prod = make(sql, dev.settings.root, "prod")
    assert prod.build(named(prod, "r")).action == "reused"
    expected = ["m/r@expr_small", "m/v@unique_a"]
    assert sorted(failing_tables(prod)) == [
        f"{e}/{table}" for e in ("dev", "prod") for table in expected
    ]
    for environment in ("dev", "prod"):
        checks = show(prod, "r", "--env", environment)["checks"]
        (small,) = (c for c in checks if c["name"] == "expr_small")
        assert small["kept_rows"] == 2
        assert f"/{environment}/" in small["kept_in"]


@pytest.mark.proves("W23")
def test_show_reports_failures_of_a_table_checked_in_another_environment(make: Make) -> None:
    sql = SOURCES.replace("keep_failures=2", "keep_failures=2 severity=warn")
    dev = make(sql)
    dev.build(named(dev, "r"))
    promote(dev, "prod", ["r@sources/m.sql"])
    root = str(dev.settings.root)
    arguments = ["show", "r", "--failures", "expr_small", "--env", "prod", "--project", root]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines == [
        "no rows are kept in `prod`, but 3 rows of the published table fail: it was checked in another"
        " environment",
        "  hint: persist check --data m/r --env prod",
    ]
    assert show(dev, "r", "--failures", "expr_small", "--env", "prod")["failed_rows"] == 3
    assert show(dev, "r", "--failures", "expr_small")["failed_rows"] == 3
    with_view = show(dev, "r", "--failures", "m/v:unique_a")
    assert (with_view["source_id"], with_view["kept_rows"]) == ("v@sources/m.sql", 2)


@pytest.mark.proves("W22")
def test_checks_run_on_demand_over_present_rows(make: Make) -> None:
    builder = make(SOURCES.replace("a < 3", "a < 9"))
    sources = [named(builder, name) for name in ("v", "r")]
    view, table = check_data(builder.reader, sources)
    assert [(r.name, r.failed_rows) for r in view.results] == [("unique_a", 2), ("not_null_b", 1)]
    assert (view.is_built, view.has_failed) == (True, False)
    assert (table.is_built, table.results) == (False, ())
    builder.build(sources[1])
    put(builder.settings.root, a=[1, 2, 10], b=["x", None, None])
    later = make(SOURCES, builder.settings.root)
    before = later.ledger.manifests.fetch("dev")
    view, table = check_data(later.reader, [named(later, name) for name in ("v", "r")])
    assert [r.failed_rows for r in view.results] == [0, 2], "the present data"
    assert [r.failed_rows for r in table.results] == [3], "the table as it was built"
    assert table.has_failed
    assert later.ledger.manifests.fetch("dev") == before
    assert read_failures(table.results[0].kept_in or "").num_rows == 2
    uid = before[sources[1].build_id].build_uid
    later.ledger.taints.record(["dev"], lambda *_: Taint({}, {uid: [""]}), by="me")
    tainted = make(SOURCES, builder.settings.root)
    (table,) = check_data(tainted.reader, [named(tainted, "r")])
    assert (table.results, str(table.error).splitlines()) == (
        (),
        [
            "the table of `r` is tainted, so nothing reads it",
            "    hint: build it first: persist build m/r",
        ],
    )
    os.remove(later.settings.root / "raw/t/p.parquet")
    broken = make(SOURCES, builder.settings.root)
    (view,) = check_data(broken.reader, [named(broken, "v")])
    assert view.error is not None
    assert view.results == ()
