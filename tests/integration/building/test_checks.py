"""Contracts and checks of every kind on real rows: results, messages, and what is published."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets import load_sources
from persist_assets.building.builder import Builder
from persist_assets.core.errors import BuildError, CheckFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
RAW = """
CREATE TABLE t USING parquet LOCATION 'raw/t';
CREATE TABLE c USING parquet LOCATION 'raw/c';
"""
HEAD = "from persist_assets import incremental_table, table\n"


def put(root: Path, name: str = "t", file: str = "p", **columns: list[Any]) -> None:
    path = root / "raw" / name / f"{file}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".new")
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that starts a run of a SQL and Python project and returns its builder."""

    def builder(
        sql: str | None = None,
        python: str = "",
        root: Path | None = None,
        data: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Builder:
        if root is None:
            root = make_project({"m.sql": RAW, "f.py": ""})
            put(root, **(data or {"a": [1, 2, 3, None], "b": ["x", "y", "x", None]}))
            put(root, "c", code=["x", "y", None])
        if sql is not None:
            (root / "sources" / "m.sql").write_text(RAW + sql)
            (root / "sources" / "f.py").write_text(HEAD + python if python else "")
        return enter(root, **{"clock": lambda: NOW, **how})

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def v(check: str, query: str = "SELECT a, b FROM t", name: str = "v") -> str:
    return f"--@ persist\n--@ {check}\nCREATE VIEW {name} AS {query};\n"


def results(builder: Builder, name: str = "v") -> dict[str, CheckResult]:
    """Build a source; return the results of its checks, whether or not it was published."""
    try:
        build = builder.build(named(builder, name))
    except CheckFailedError as error:
        return {r.name: r for r in error.results}
    assert build.snapshot is not None
    return {r.name: r for r in builder.ledger.builds.fetch_checks(build.snapshot.build_uid)}


def sample(result: CheckResult) -> list[dict[str, Any]]:
    return sorted((json.loads(row) for row in result.sample), key=repr)


def files(builder: Builder) -> Mapping[str, str]:
    """Return digests of all files of tables and of manifests."""
    root = builder.settings.root / ".persist"
    return {
        str(p.relative_to(root)): sha256(p.read_bytes()).hexdigest()
        for below in ("warehouse", "manifests")
        for p in sorted((root / below).rglob("*"))
        if p.is_file()
    }


# ------------------------------------------------------------------------------------------ checks


@pytest.mark.proves("P26")
@pytest.mark.parametrize(
    ("check", "failed", "found", "rows"),
    [
        ("range { a { min=2 } }", 1, None, [{"a": 1, "b": "x"}]),
        ("range { a { min=1 max=3 } }", 0, None, []),
        ("range { b.max=x }", 1, None, [{"b": "y", "a": 2}]),
        ('relationship { b="c.code" }', 0, None, []),
        ('relationship { a="v.a" }', 0, None, []),
        ('relationship { b="w.b" }', 1, None, [{"b": "y", "a": 2}]),
        ("row_count { min=4 max=4 }", 0, "4 rows", []),
        ("row_count { min=5 }", 0, "4 rows", []),
        ("row_count { max=3 }", 0, "4 rows", []),
        ("unique=b", 2, None, [{"b": "x", "a": 1}, {"b": "x", "a": 3}]),
        ("accepted_values { b=x }", 1, None, [{"b": "y", "a": 2}]),
        ("not_null=b", 1, None, [{"b": None, "a": None}]),
        ('expr="a < 3"', 1, None, [{"a": 3, "b": "x"}]),
    ],
)
def test_checks_count_and_sample_failing_rows(
    make: Make, check: str, failed: int, found: str | None, rows: list[dict[str, Any]]
) -> None:
    w = v("name=w", "SELECT b FROM t WHERE a <> 2", "w")
    builder = make(v(f"check {{ {check} }}") + w)
    ((_, result),) = results(builder).items()
    assert result.failed_rows == failed
    assert result.found == found
    assert sample(result) == sorted(rows, key=repr)
    wrong = bool(failed) or check in ("row_count { min=5 }", "row_count { max=3 }")
    assert result.passed is not wrong
    assert (named(builder, "v").build_id in builder.ledger.manifests.fetch("dev")) is not wrong


@pytest.mark.parametrize("check", ["range { a { min=2 } }", "row_count { min=9 }", "relationship { b=\"c.code\" }"])  # fmt: skip
def test_every_kind_of_check_can_be_a_warning(make: Make, check: str) -> None:
    builder = make(v(f"check {{ {check[:-2]} severity=warn }} }}"))
    put(builder.settings.root, "c", code=["y"])
    builder = make(root=builder.settings.root)
    ((_, result),) = results(builder).items()
    assert (result.passed, result.blocking) == (False, False)
    assert named(builder, "v").build_id in builder.ledger.manifests.fetch("dev")


@pytest.mark.parametrize(
    ("values", "passed", "found"),
    [
        ([NOW - dt.timedelta(hours=47), None], True, "2026-02-27 13:00:00+00:00"),
        ([NOW - dt.timedelta(hours=49)], False, "2026-02-27 11:00:00+00:00"),
        ([dt.date(2026, 2, 28)], True, "2026-02-28 00:00:00+00:00"),
        ([dt.date(2026, 2, 27)], False, "2026-02-27 00:00:00+00:00"),
        ([dt.datetime(2026, 2, 27, 13)], True, "2026-02-27 13:00:00+00:00"),
        (pa.array([None], pa.date32()), False, "no value"),
    ],
)
def test_freshness_checks_compare_the_greatest_value_with_the_limit(
    make: Make, values: Any, passed: bool, found: str
) -> None:
    if isinstance(values, list) and isinstance(values[0], dt.datetime):
        values = pa.array(values, pa.timestamp("us", tz="UTC" if values[0].tzinfo else None))
    builder = make(v("check { freshness { ts=48h } }", "SELECT ts FROM t"), data={"ts": values})
    ((_, result),) = results(builder).items()
    assert (result.passed, result.found) == (passed, found)


def test_freshness_is_reevaluated_without_reading_the_rows(make: Make) -> None:
    text = v("check { freshness { ts=48h } }", "SELECT ts FROM t")
    builder = make(text, data={"ts": pa.array([NOW], pa.timestamp("us", tz="UTC"))})
    assert results(builder)["freshness_ts"].passed
    later = make(root=builder.settings.root, clock=lambda: NOW + dt.timedelta(days=3))
    looked: list[str] = []
    later.engine.audit = lambda f, c, name: looked.append(name) or ()  # pyright: ignore
    assert not results(later)["freshness_ts"].passed
    assert not looked


def test_a_relationship_is_rechecked_only_if_its_target_changed(make: Make) -> None:
    sql = v('check { relationship { b="codes.code" } }') + v(
        "name=codes", "SELECT code FROM c WHERE code IS NOT NULL", "codes"
    )
    builder = make(sql)
    assert [builder.build(s).action for s in builder.project.persisted] == ["built", "built"]
    root = builder.settings.root
    again = make(root=root)
    looked: list[str] = []
    audit = again.engine.audit
    again.engine.audit = lambda f, c, n: looked.append(n) or audit(f, c, n)  # pyright: ignore
    assert [again.build(s).action for s in again.project.persisted] == ["reused", "reused"]
    assert looked == []
    put(root, "c", code=["x", "z"])
    changed = make(root=root)
    assert changed.build(named(changed, "codes")).action == "built"
    assert results(changed)["relationship_b"].failed_rows == 1


def test_a_relationship_is_checked_against_tables_built_earlier_in_the_run(make: Make) -> None:
    codes = v("name=codes", "SELECT code FROM c", "codes")
    builder = make(v('check { relationship { b="codes.code" } }') + codes)
    assert [s.name for s in builder.project.persisted] == ["codes", "v"]
    put(builder.settings.root, "c", code=["x"])
    builder = make(root=builder.settings.root)
    for source in builder.project.persisted[:1]:
        builder.park(source)
    found = results(builder)["relationship_b"]
    assert (found.failed_rows, found.passed) == (1, False)
    builder.abandon()


# --------------------------------------------------------------------------------------- functions

PLAUSIBLE = """
@table(check={'function': plausible})
def f(t):
    return t
"""


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("body", "passed", "failed"),
    [
        ("def plausible(rows): return rows.filter('a > 1')", False, 2),
        ("def plausible(rows): return rows.filter('a > 9')", True, 0),
        ("def plausible(rows): return rows.count() == 4", True, 0),
        ("def plausible(rows): return rows.count() > 4", False, 0),
        ("import narwhals as nw\ndef plausible(r: nw.LazyFrame): return r.filter(nw.col('a') == 2)", False, 1),
        ("from pyspark.sql import SparkSession\ndef plausible(rows, *, spark: SparkSession): return spark.createDataFrame([], 'a int')", True, 0),
    ],
)  # fmt: skip
def test_a_check_function_returns_failing_rows_or_a_boolean(
    make: Make, body: str, passed: bool, failed: int
) -> None:
    builder = make("", f"{body}\n{PLAUSIBLE}")
    ((_, result),) = results(builder, "f").items()
    assert (result.passed, result.failed_rows) == (passed, failed)
    assert len(result.sample) == failed


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return 1 / 0", "sources/f.py:3:12: `plausible` failed: ZeroDivisionError"),
        (
            "    return 'yes'",
            "sources/f.py:4:27: `plausible` returned str, which is not a check result",
        ),
        ("    return rows.filter('nothing')", "sources/f.py:3:12: `plausible` failed: "),
    ],
)
def test_an_error_in_a_check_function_has_a_location(make: Make, body: str, message: str) -> None:
    builder = make("", f"def plausible(rows):\n{body}\n{PLAUSIBLE.lstrip()}")
    with pytest.raises(BuildError) as caught:
        builder.build(named(builder, "f"))
    assert str(caught.value).startswith(message)
    assert builder.ledger.manifests.fetch("dev") == {}


@pytest.mark.usefixtures("spark")
def test_an_edited_check_function_is_rerun_without_a_rebuild(make: Make) -> None:
    text = "def plausible(rows):\n    return rows.filter('a > 9')\n" + PLAUSIBLE
    builder = make("", text)
    assert builder.build(named(builder, "f")).action == "built"
    edited = make("", text.replace("a > 9", "a > 2"), root=builder.settings.root)
    with pytest.raises(CheckFailedError, match=r"function_plausible \(1 rows\)"):
        edited.build(named(edited, "f"))
    assert {s.action for s in edited.plan([named(edited, "f").source_id]).steps} == {"reuse"}


# ---------------------------------------------------------------------------------------- contracts


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("P25")
def test_a_contract_of_a_function_is_checked_before_anything_is_written(make: Make) -> None:
    text = "@table(columns={'a': 'int', 'd': 'date not null'}, check={'not_null': ['d']})\n"
    builder = make("", f"{text}def f(t):\n    return t\n")
    with pytest.raises(CheckFailedError) as caught:
        builder.build(named(builder, "f"))
    assert str(caught.value) == (
        "sources/f.py:2:16: the columns of `f` differ from its contract, so it was not published:\n"
        "    added    b string\n"
        "    removed  d date\n"
        "    retyped  a int → bigint"
    )
    (result,) = caught.value.results
    assert (result.name, result.passed) == ("columns", False)
    assert result.found == "added b string; removed d date; retyped a int → bigint"
    assert files(builder) == {}


def test_nulls_in_a_not_null_column_violate_its_contract(make: Make) -> None:
    builder = make(v('columns { a="bigint not null" b }'))
    found = results(builder)
    assert {n: (r.passed, r.failed_rows) for n, r in found.items()} == {
        "columns": (True, 0),
        "columns_a": (False, 1),
    }


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("P25")
def test_a_table_built_before_its_contract_is_checked_against_it(make: Make) -> None:
    text = "@table(X)\ndef f(t):\n    return t\n"
    builder = make("", text.replace("(X)", ""))
    builder.build(named(builder, "f"))
    root = builder.settings.root
    for said, told in (
        ("columns={'a': 'int', '*': True}", "    retyped  a int → bigint"),
        ("columns={'a': 'bigint not null', 'b': True}", "columns_a (1 rows)"),
    ):
        promising = make("", text.replace("X", said), root=root)
        assert promising.plan([named(promising, "f").source_id]).steps[0].action == "reuse"
        with pytest.raises(CheckFailedError) as caught:
            promising.build(named(promising, "f"))
        assert told in str(caught.value)
    kept = make("", text.replace("X", "columns={'a': 'long', 'b': 'string'}"), root=root)
    assert kept.build(named(kept, "f")).action == "reused"


@pytest.mark.proves("P25")
@pytest.mark.parametrize(
    ("rule", "query", "diff"),
    [
        ("fail", "SELECT a, b, a + 1 AS n FROM t", "    added    n bigint"),
        ("fail", "SELECT b FROM t", "    removed  a bigint"),
        ("append", "SELECT CAST(a AS INT) AS a, b FROM t", "    retyped  a bigint → int"),
        ("append", "SELECT a, b, a + 1 AS n FROM t", None),
        ("sync", "SELECT b FROM t", None),
        ("fail", "SELECT b, a FROM t WHERE a > 1", None),
    ],
)
def test_changed_columns_are_published_only_if_on_schema_change_allows(
    make: Make, rule: str, query: str, diff: str | None
) -> None:
    builder = make(v(f"on_schema_change={rule}"))
    builder.build(named(builder, "v"))
    before = files(builder)
    edited = make(v(f"on_schema_change={rule}", query), root=builder.settings.root)
    if diff is None:
        assert edited.build(named(edited, "v")).action == "built"
        return
    with pytest.raises(BuildError) as caught:
        edited.build(named(edited, "v"))
    assert str(caught.value).splitlines()[1] == diff
    assert str(caught.value).startswith(
        "sources/m.sql:5:5: the columns of `v` differ from its table"
    )
    assert files(edited) == before
    # `changing=True` publishes it anyway; reverting is a change of columns as well.
    allowed = make(root=builder.settings.root, changing=True)
    assert allowed.build(named(allowed, "v")).action == "built"
    back = make(v(f"on_schema_change={rule}"), root=builder.settings.root)
    with pytest.raises(BuildError, match="differ from its table"):
        back.build(named(back, "v"))


def test_temporary_tables_must_keep_contracts_and_pass_all_checks(make: Make) -> None:
    mid = "--@ persist materialized=temporary {}\nCREATE VIEW mid AS SELECT a, b FROM t;\n"
    over = "--@ persist\nCREATE VIEW v AS SELECT a FROM mid;\n"
    related = 'check { relationship { b="c.code" } }'
    for said, codes, told in (
        (f"columns {{ a b=string `*` }} {related}", ["x", "y"], None),
        ("check { range { a.max=1 } }", ["x", "y"], "`mid` failed range_a (2 rows)"),
        ("check { row_count.max=3 }", ["x", "y"], "`mid` failed row_count (4 rows)"),
        (related, ["x"], "`mid` failed relationship_b (1 rows)"),
    ):
        builder = make(mid.format(said) + over)
        put(builder.settings.root, "c", code=codes)
        if told is None:
            assert builder.build(named(builder, "v")).action == "built"
        else:
            with pytest.raises(CheckFailedError) as caught:
                builder.build(named(builder, "v"))
            assert told in str(caught.value)
        builder.close()


# --------------------------------------------------------------------------------------- increments


@pytest.mark.proves("P26")
def test_checks_of_an_incremental_table_cover_all_its_rows(make: Make) -> None:
    checks = (
        'check { range { a { max=2 severity=warn } } relationship { b="c.code" severity=warn }'
        " row_count { max=3 severity=warn } freshness { ts=48h severity=warn } }"
    ).replace("range { a { max=2 severity=warn } }", "range { a { max=2 } severity=warn }")
    text = v(f"refresh=incremental\n--@ {checks}", "SELECT a, b, ts FROM t")
    old = NOW - dt.timedelta(days=9)

    def times(*values: dt.datetime) -> pa.Array:
        return pa.array(values, pa.timestamp("us", tz="UTC"))

    builder = make(text, data={"a": [1, 9], "b": ["x", "unknown"], "ts": times(NOW, old)})
    root = builder.settings.root
    first = results(builder)
    put(root, file="q", a=[2, 8], b=["other", "y"], ts=times(old, old))
    grown = make(root=root)
    (step,) = grown.plan([named(grown, "v").source_id]).steps
    assert step.increment is not None
    second = results(grown)

    def failures(by_name: Mapping[str, CheckResult]) -> dict[str, Any]:
        return {n: r.found or r.failed_rows for n, r in by_name.items()}

    assert failures(first) == {
        "range_a": 1,
        "relationship_b": 1,
        "row_count": "2 rows",
        "freshness_ts": "2026-03-01 12:00:00+00:00",
    }
    assert failures(second) == {
        "range_a": 2,
        "relationship_b": 2,
        "row_count": "4 rows",
        "freshness_ts": "2026-03-01 12:00:00+00:00",
    }
    assert {n: r.passed for n, r in second.items()} == {
        "range_a": False,
        "relationship_b": False,
        "row_count": False,
        "freshness_ts": True,
    }
    assert [row["a"] for row in sample(second["range_a"])] == [8, 9]
    scratch = make(root=root)
    build = scratch.build(named(scratch, "v"), force=True)
    assert failures(
        {r.name: r for r in scratch.ledger.builds.fetch_checks(build.build_uid)}
    ) == failures(second)


# ------------------------------------------------------------------------------------------ samples


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_samples_of_failing_rows_are_truncated(make: Make) -> None:
    wide = ", ".join(f"a AS c{n}" for n in range(20))
    query = f"SELECT {wide}, repeat('long', 99) AS x, array(1, 2) AS y FROM range(50) AS r(a)"
    builder = make(v("check { not_null=x expr { z=\"x = ''\" } unique=[y] }", query))
    found = results(builder)
    rows = sample(found["unique_y"])
    assert len(rows) == 5
    assert rows[0]["y"] == "[1, 2]"
    assert {len(row) for row in rows} == {12}
    assert all(len(str(value)) <= 60 for row in sample(found["expr_z"]) for value in row.values())


@pytest.mark.slow
@pytest.mark.proves("K11", "P26")
def test_dagster_shows_failed_checks_with_samples(make: Make, spark: Any) -> None:
    checks = 'check { range { a { max=1 } } row_count.max=2 relationship { b="codes.code" } }'
    codes = v("name=codes", "SELECT code FROM c", "codes")
    below = "--@ persist\nCREATE VIEW below AS SELECT a FROM v;\n"
    builder = make(v(checks) + codes + below)
    session = dg.ResourceDefinition.hardcoded_resource(SimpleNamespace(spark_session=spark))
    defs = load_sources(builder.settings.root / "sources", resources={"pyspark": session})
    keys = {name: dg.AssetKey(["m", name]) for name in ("v", "codes", "below")}
    graph = defs.resolve_asset_graph()
    assert keys["codes"] in graph.get(keys["v"]).parent_keys
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        ran = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not ran.success
    told = {e.check_name: e for e in ran.get_asset_check_evaluations()}
    assert {n: e.passed for n, e in told.items()} == {
        "range_a": False,
        "row_count": False,
        "relationship_b": True,
    }
    assert told["row_count"].metadata["found"].value == "4 rows"
    lines = str(told["range_a"].metadata["sample"].value).splitlines()
    assert lines[:2] == ["| a | b |", "| --- | --- |"]
    assert sorted(lines[2:]) == ["| 2 | y |", "| 3 | x |"]
    built = {e.asset_key.path[-1] for e in ran.get_asset_materialization_events() if e.asset_key}
    assert built >= {"codes"}
    assert not built & {"v", "below"}
