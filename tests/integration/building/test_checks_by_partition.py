"""Checks of partitioned tables: the partitions of failing rows, and checks per partition."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from persist_assets import load_sources
from persist_assets.building.builder import Builder
from persist_assets.building.failing_rows import read_failures
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import CheckFailedError
from persist_assets.core.model.annotations import Cadence, Dimension, Partitioning
from persist_assets.core.partitions import expand, key_of, keys, side, split, units
from persist_assets.core.settings.load import load_settings
from persist_assets.core.time_values import literal
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.partitions import FIRST, LAST

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 8, 5, tzinfo=UTC)
"""The first week of January has ended."""
RAW = "CREATE TABLE f (day DATE, o STRING, n INT, ts TIMESTAMP) USING delta LOCATION 'f';\n"
HEAD = "from persist_assets import table\n"


def put(root: Path, *rows: tuple[int, str, int | None] | tuple[int, str, int | None, int]) -> None:
    """Append rows for days of January; the fourth value is the hour, by default noon."""
    kinds = {"day": pa.date32(), "o": pa.string(), "n": pa.int32(), "ts": pa.timestamp("us", "UTC")}
    listed = [
        {"day": day(r[0]), "o": r[1], "n": r[2], "ts": at(r[0], r[3] if len(r) > 3 else 12)}
        for r in rows
    ]
    schema = pa.schema([*kinds.items()])
    write_deltalake(str(root / "f"), pa.Table.from_pylist(listed, schema), mode="append")


def day(n: int) -> date:
    return date(2024, 1, n)


def at(n: int, hour: int) -> datetime:
    return datetime(2024, 1, n, hour, tzinfo=UTC)


@pytest.fixture
def make(make_project: Callable[..., Path], spark: Any) -> Iterator[Make]:
    """Return a function that makes a builder for a new run."""
    made: list[Ledger] = []

    def builder(sql: str = "", python: str = "", root: Path | None = None, **how: Any) -> Builder:
        if root is None:
            root = make_project({}, how.pop("settings", ""))
        if sql or python:
            (root / "sources" / "m.sql").write_text(RAW + sql)
            (root / "sources" / "f.py").write_text(HEAD + python if python else "")
        read = load_settings(root, environment=how.pop("environment", None))
        made.append(Ledger(read.ledger))
        now = how.pop("now", NOW)
        return Builder(
            read,
            require(load_project(read)),
            made[-1],
            SparkEngine(read, lambda: spark),
            run_id="run",
            clock=lambda: now,
        )

    yield builder
    for ledger in made:
        ledger.close()


def v(checks: str, partition: str = 'partition=daily time_column=day start="2024-01-01"') -> str:
    """Return a partitioned source of all rows with checks."""
    results_of = f"check {{ {checks} }}"
    return f"--@ persist {partition} {results_of}\nCREATE VIEW v AS SELECT day, o, n, ts FROM f;\n"


def named(builder: Builder, name: str = "v") -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def built(builder: Builder, name: str = "v", *days: int) -> dict[str, CheckResult]:
    """Build some or all partitions, and return the results of the checks."""
    keys = [str(day(n)) for n in days] or None
    build = builder.build(named(builder, name), keys=keys)
    assert build.snapshot is not None
    return {r.name: r for r in builder.ledger.builds.fetch_checks(build.snapshot.build_uid)}


def places(result: CheckResult) -> dict[str, Any]:
    assert result.passed is (not result.partitions)
    assert result.failed_rows == sum(p.failed_rows for p in result.partitions)
    return {p.key: p.found or p.failed_rows for p in result.partitions}


def days(**by_name: Any) -> dict[str, Any]:
    return {f"2024-01-{int(name[1:]):02}": value for name, value in by_name.items()}


# ----------------------------------------------------------------------- partitions of failing rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "kind", "zone"),
    [
        *(("hourly", k, "UTC") for k in ("timestamp", "timestamp_ntz")),
        *((e, "timestamp", z) for e in ("daily", "weekly", "monthly") for z in ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu")),
        *((e, k, "Europe/Berlin") for e in ("daily", "weekly", "monthly") for k in ("date", "timestamp_ntz")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("session", ["UTC", "America/New_York"])
def test_partition_keys_are_computed_from_the_values_of_rows(
    spark: Any, every: Cadence, kind: str, zone: str, session: str
) -> None:
    start, end = ("1969-12-29", "1970-01-04") if every == "hourly" else ("1962-11-01", "2013-12-31")
    partition = Partitioning(
        (Dimension("t", every), Dimension("o", None, ("a",))), start, end, zone
    )
    order = keys(partition, datetime(2014, 1, 1, tzinfo=UTC))[:: 97 if every == "daily" else 5]
    lead = partition.dimensions[0]
    values = [
        f"({literal(value, kind)}, 'a', '{key}')"
        for key in order
        for value in side(partition, lead, split(partition, key)[0], kind)
    ]
    results_of = ", ".join(
        f"{sql} AS u{n}" for n, sql in enumerate(units(partition, [kind, "string"]))
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", session)
    try:
        rows = spark.sql(
            f"SELECT {results_of}, key FROM VALUES {', '.join(values)} AS v(t, o, key)"
        ).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert len(rows) == 2 * len(order) > 20
    assert [key_of(partition, row[:2]) for row in rows] == [row.key for row in rows]


PLACES = [
    ("not_null=n", days(d3=1)),
    ('expr="n < 3"', days(d2=2, d5=1)),
    ("range { n { max=2 } }", days(d2=2, d5=1)),
    ("accepted_values { o=[a, b] }", days(d5=2)),
    ("unique=n", days(d1=1, d2=1)),
    ('relationship { o="codes.code" }', days(d1=1, d5=2)),
]


@pytest.mark.slow
@pytest.mark.proves("P26", "K11")
def test_failing_rows_are_counted_by_partition(make: Make) -> None:
    codes = "CREATE VIEW codes AS SELECT * FROM VALUES ('a') AS c(code);\n"
    warned = (
        f"{check[:-2]} severity=warn }}" if "{" in check else f"{check} {{ severity=warn }}"
        for check, _ in PLACES
    )
    builder = make(v(" ".join(warned)) + codes)
    put(builder.settings.root, (1, "b", 1), (2, "a", 4), (2, "a", 5), (2, "a", 1), (3, "a", None))
    put(builder.settings.root, (4, "a", 2), (5, "c", 9), (5, "c", 0))
    first = results(built(builder))
    # Partitions that are not rebuilt keep their failures; rebuilt ones have new results.
    put(builder.settings.root, (6, "c", 9))
    later = results(built(make(root=builder.settings.root), "v", 6))
    whole = results(built(make(root=builder.settings.root), "v"))
    assert len(first) == len(later) == len(whole) == len(PLACES)
    for check, where in PLACES:
        kind = kind_of(check)
        assert places(first[kind]) == where, check
        assert places(later[kind]) == places(whole[kind]), check
        if check != "unique=n":
            assert places(later[kind]).items() >= where.items(), check


def kind_of(check: str) -> str:
    """Return the kind of a check from its text."""
    return check.partition("=")[0].partition(" {")[0]


def results(by_name: Mapping[str, CheckResult]) -> dict[str, CheckResult]:
    """Return results by the kinds of their checks."""
    kinds = [kind_of(check) for check, _ in PLACES]
    return {kind: r for name, r in by_name.items() for kind in kinds if name.startswith(kind)}


@pytest.mark.slow
def test_a_blocked_publication_names_the_failing_partitions(make: Make) -> None:
    builder = make(v("not_null=n"))
    put(builder.settings.root, *((n, "a", None) for n in (1, 3, 3, 4, 5, 6)))
    with pytest.raises(CheckFailedError) as caught:
        builder.build(named(builder))
    assert (
        "`v` failed not_null_n (6 rows: 1 in 2024-01-01, 2 in 2024-01-03, 1 in 2024-01-04"
        " and 2 more partitions); it was not published"
    ) in str(caught.value)
    with pytest.raises(CheckFailedError, match=r"not_null_n \(2 rows in 2024-01-03\)"):
        builder.build(named(builder), keys=["2024-01-02", "2024-01-03"])
    assert builder.observer.manifest() == {}


def test_function_checks_report_partitions_if_their_rows_have_the_partition_column(
    make: Make,
) -> None:
    python = """
def wrong(rows): return rows.filter("n > 1")
def of_n(rows): return rows.filter("n > 1").select("n")
@table(partition="daily", time_column="day", start="2024-01-01",
       check={"function": {"a": wrong, "b": of_n, "severity": "warn"}})
def p(f):
    return f.select("day", "n")
"""
    builder = make(python=python)
    put(builder.settings.root, (1, "a", 1), (2, "a", 2), (2, "a", 3), (4, "a", 4))
    found = built(builder, "p")
    assert places(found["function_a"]) == days(d2=2, d4=1)
    assert (found["function_b"].failed_rows, found["function_b"].partitions) == (3, ())


@pytest.mark.slow
def test_failures_name_partition_keys_of_two_dimensions(make: Make) -> None:
    two = 'partition { day=daily o=[a, b] } start="2024-01-01"'
    builder = make(v("row_count { max=2 per=partition severity=warn } not_null=n", two))
    root = builder.settings.root
    put(root, (1, "a", 1), (1, "b", 1), (1, "b", 1), (1, "b", 1), (2, "a", 1), (2, "c", None))
    assert places(built(builder)["row_count"]) == {"2024-01-01|b": "3 rows"}
    put(root, (2, "b", None))
    with pytest.raises(CheckFailedError, match=r"not_null_n \(1 rows in 2024-01-02\|b\)"):
        built(make(root=root))


# ----------------------------------------------------------------------------- checks per partition

JUDGED = """
row_count { min=1 max=3 per=partition severity=warn }
unique=[o] { per=partition severity=warn }
freshness { ts="6h" per=partition severity=warn }
""".replace("\n", " ")
PYTHON = """
def few(rows):
    return rows.count() < 4

def small(rows):
    return rows.filter("n > 2")

@table(partition="daily", time_column="day", start="2024-01-01", check={
    "row_count": {"min": 1, "max": 3, "per": "partition", "severity": "warn"},
    "unique": {"columns": ["o"], "per": "partition", "severity": "warn"},
    "freshness": {"ts": "6h", "per": "partition", "severity": "warn"},
    "function": {"few": few, "small": small, "per": "partition", "severity": "warn"},
})
def v(f):
    return f
"""


def judge(builder: Builder) -> dict[str, dict[str, Any]]:
    """Return which partitions fail which check, computed from the rows of the table."""
    source = named(builder)
    snapshot = builder.observer.manifest()[source.build_id]
    assert snapshot.partitions is not None
    order = builder.observer.keys()[source.source_id]
    there = {k for f in snapshot.partitions.filled for k in expand(order, f.runs)}
    rows: dict[str, list[Any]] = {key: [] for key in order if key in there}
    for row in builder.reader.load_snapshot(snapshot).collect():
        rows[str(row.day)].append(row)
    found: dict[str, dict[str, Any]] = {
        n: {} for n in ("row_count", "unique_o", "freshness_ts", "function_few", "function_small")
    }
    for key, some in rows.items():
        n, end = len(some), datetime.fromisoformat(key).replace(tzinfo=UTC) + timedelta(days=1)
        shared = sum(x for x in Counter(r.o for r in some if r.o is not None).values() if x > 1)
        last = max((r.ts.astimezone(UTC) for r in some), default=None)
        small = sum(1 for r in some if r.n is not None and r.n > 2)
        if not 1 <= n <= 3:
            found["row_count"][key] = f"{n} rows"
        if n >= 4:
            found["function_few"][key] = "few returned False"
        if shared:
            found["unique_o"][key] = shared
        if last is None or last < end - timedelta(hours=6):
            results_of = last.replace(tzinfo=UTC) if last else None
            found["freshness_ts"][key] = str(results_of) if results_of else "no value"
        if small:
            found["function_small"][key] = small
    return found


@pytest.mark.slow
@pytest.mark.proves("P26", "P18")
@pytest.mark.parametrize("seed", range(2))
def test_partitions_that_are_not_rebuilt_keep_their_check_results(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    builder = make(python=PYTHON)
    root = builder.settings.root
    put(root, (1, "a", 1))
    for _ in range(5):
        put(root, *((chance.randint(1, 7), chance.choice("abc"), chance.randint(0, 3), chance.randint(0, 23)) for _ in range(3)))  # fmt: skip
        some = sorted(chance.sample(range(1, 8), chance.randint(1, 4)))
        found = built(make(root=root), "v", *some)
        results_of = judge(builder)
        assert {name: places(r) for name, r in found.items()} == results_of
        for name in ("unique_o", "function_small"):
            rows = [json.loads(row) for row in found[name].sample]
            assert bool(rows) is bool(results_of[name])
            assert {row["day"] for row in rows} <= results_of[name].keys()


@pytest.mark.slow
def test_check_functions_run_only_for_rebuilt_partitions(make: Make) -> None:
    builder = make(python=PYTHON)
    root = builder.settings.root
    put(root, (1, "a", 1), (2, "a", 1))
    asked: list[str] = []
    import persist_assets.building.set_checks as module  # where check functions are called

    ask = module.ask
    module.ask = lambda s, c, *more: asked.append(c.name) or ask(s, c, *more)  # type: ignore
    try:
        built(builder, "v", 1, 2, 3)
        assert Counter(asked) == {"function_few": 3, "function_small": 3}
        asked.clear()
        assert built(make(root=root), "v", 4)["row_count"].partitions[-1].key == "2024-01-04"
        assert Counter(asked) == {"function_few": 1, "function_small": 1}
    finally:
        module.ask = ask


@pytest.mark.slow
@pytest.mark.proves("W23")
def test_keep_failures_stores_the_failing_rows_of_all_partitions(make: Make) -> None:
    keeping = PYTHON.replace(
        '"severity": "warn"},\n})', '"severity": "warn", "keep_failures": True},\n})'
    )
    assert keeping != PYTHON
    builder = make(python=keeping)
    put(builder.settings.root, (1, "a", 3), (2, "a", 1), (3, "b", 4), (3, "c", 5))
    small = built(builder)["function_small"]
    assert places(small) == days(d1=1, d3=2)
    assert small.kept_rows == 3
    rows = read_failures(small.kept_in or "").to_pylist()
    assert sorted(row["n"] for row in rows) == [3, 4, 5]


def test_one_failing_partition_blocks_publication_of_the_others(make: Make) -> None:
    builder = make(v("row_count { min=1 per=partition }"))
    root = builder.settings.root
    put(root, (1, "a", 1), (2, "a", 1), (4, "a", 1))
    assert built(builder, "v", 1, 2)["row_count"].passed
    before = builder.observer.manifest()
    with pytest.raises(CheckFailedError, match=r"failed row_count \(0 rows in 2024-01-03\); it"):
        built(make(root=root), "v", 3, 4)
    assert builder.observer.manifest() == before


@pytest.mark.slow
def test_a_stored_warning_blocks_publication_once_the_check_is_an_error(make: Make) -> None:
    checks = "row_count { min=1 per=partition severity=warn }"
    builder = make(v(checks))
    root = builder.settings.root
    put(root, (1, "a", 1), (3, "a", 1))
    assert places(built(builder, "v", 1, 2)["row_count"]) == days(**{"d02": "0 rows"})
    grave = make(v(checks.replace(" severity=warn", "")), root=root)
    with pytest.raises(CheckFailedError, match=r"0 rows in 2024-01-02"):
        built(grave, "v", 3)
    put(root, (2, "a", 1))
    assert built(make(root=root), "v", 2, 3)["row_count"].passed


@pytest.mark.slow
def test_a_new_check_runs_on_all_partitions(make: Make) -> None:
    builder = make(v("not_null=n"))
    root = builder.settings.root
    put(root, (1, "a", 1), (1, "a", 1), (3, "a", 1), (3, "b", 1))
    built(builder, "v", 1, 2)
    unique = make(v("not_null=n unique=[o] { per=partition severity=warn }"), root=root)
    assert places(built(unique, "v", 1, 2)["unique_o"]) == days(d01=2)  # reused
    both = (
        "unique=[n] { per=partition severity=warn } row_count { min=1 per=partition severity=warn }"
    )
    found = built(make(v(both), root=root), "v", 3)
    assert places(found["unique_n"]) == days(d01=2, d03=2)
    assert places(found["row_count"]) == days(d02="0 rows")
    put(root, (4, "a", 1))
    other = "row_count { max=1 per=partition severity=warn }"
    found = built(make(v(other), root=root), "v", 4)
    assert places(found["row_count"]) == days(d01="2 rows", d03="2 rows")


@pytest.mark.slow
def test_partitions_taken_over_from_another_environment_keep_their_check_results(
    make: Make,
) -> None:
    builder = make(v(JUDGED), settings="[env.prod]\n")
    root = builder.settings.root
    put(root, (1, "a", 1), (1, "a", 1, 23), (3, "a", 1))
    built(builder, "v", 1, 2)
    there = make(root=root, environment="prod")
    found = built(there, "v", 3)
    assert places(found["row_count"]) == days(d02="0 rows")
    assert places(found["unique_o"]) == days(d01=2)
    assert places(found["freshness_ts"]) == days(d02="no value", d03="2024-01-03 12:00:00+00:00")


def test_freshness_is_measured_from_partition_ends_in_their_time_zone(make: Make) -> None:
    zone = 'partition=daily time_column=ts start="2024-01-01" timezone="America/New_York"'
    builder = make(v("freshness { ts=1h per=partition severity=warn }", zone))
    end = datetime(2024, 1, 2, tzinfo=ZoneInfo("America/New_York")).astimezone(UTC)
    put(builder.settings.root, (end.day, "a", 1, end.hour - 1), (3, "a", 1, 3))
    assert places(built(builder, "v", 1, 2)["freshness_ts"]) == days(
        d02="2024-01-03 03:00:00+00:00"
    )


@pytest.mark.slow
def test_freshness_of_listed_partitions_is_reevaluated_on_reuse(make: Make) -> None:
    text = v('freshness { ts="2 days" per=partition severity=warn }', "partition { o=[a, b, c] }")
    builder = make(text)
    root = builder.settings.root
    put(root, (7, "a", 1), (5, "b", 1))
    found = builder.build(named(builder), keys=["a", "b"])

    def results_of(build: Any) -> dict[str, Any]:
        results: Mapping[str, CheckResult] = {
            r.name: r for r in builder.ledger.builds.fetch_checks(build.build_uid)
        }
        return places(results["freshness_ts"])

    assert results_of(found) == {"b": "2024-01-05 12:00:00+00:00"}
    later = make(root=root, now=NOW + timedelta(days=2))
    looked: list[str] = []
    later.engine.audit = lambda f, c, name: looked.append(name) or ()  # pyright: ignore
    reused = later.build(named(later), keys=["a", "b"])
    assert (reused.action, looked) == ("reused", [])
    assert results_of(reused) == {
        "a": "2024-01-07 12:00:00+00:00",
        "b": "2024-01-05 12:00:00+00:00",
    }
    more = make(root=root).build(named(builder), keys=["c"])
    assert results_of(more) == {"b": "2024-01-05 12:00:00+00:00", "c": "no value"}


# ------------------------------------------------------------------------------------------ Dagster


@pytest.mark.slow
@pytest.mark.proves("K8", "K11")
def test_dagster_shows_in_which_partitions_a_check_fails(make: Make, spark: Any) -> None:
    builder = make(v("row_count { min=1 per=partition severity=warn } range { n { max=2 } }"))
    root = builder.settings.root
    put(root, (1, "a", 1), (3, "a", 1), (4, "a", 9), (4, "b", 9), (5, "a", 9))
    session = dg.ResourceDefinition.hardcoded_resource(SimpleNamespace(spark_session=spark))
    defs = load_sources(root / "sources", resources={"pyspark": session})

    def run(first: int, last: int) -> tuple[bool, dict[str, dg.AssetCheckEvaluation]]:
        tags = {FIRST: str(day(first)), LAST: str(day(last))}
        with dg.DagsterInstance.ephemeral() as instance:
            job = defs.resolve_implicit_global_asset_job_def()
            done = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        return done.success, {e.check_name: e for e in done.get_asset_check_evaluations()}

    success, results_of = run(1, 3)
    assert success
    assert (results_of["row_count"].passed, results_of["range_n"].passed) == (False, True)
    assert results_of["row_count"].description == "0 rows in 2024-01-02"
    partitions = results_of["row_count"].metadata["partitions"].value
    assert partitions == [{"partition": "2024-01-02", "found": "0 rows"}]
    assert results_of["range_n"].description is None
    assert "partitions" not in results_of["range_n"].metadata
    success, results_of = run(4, 5)
    assert not success
    assert results_of["range_n"].description == "3 rows: 2 in 2024-01-04, 1 in 2024-01-05"
    assert results_of["range_n"].metadata["failed_partitions"].value == 2
    assert results_of["range_n"].metadata["partitions"].value == [
        {"partition": "2024-01-04", "failed_rows": 2},
        {"partition": "2024-01-05", "failed_rows": 1},
    ]
    assert results_of["row_count"].description == "0 rows in 2024-01-02"
