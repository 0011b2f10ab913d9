"""Malloy sources on Spark: tables equal their queries, and are read instead of inlined."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import need
from growing import ONE, check, kind_of, put
from malloy import there

from persist_assets.building.builder import Builder
from persist_assets.compiler.compile import resolve_query
from persist_assets.compiler.load import load, load_project, require
from persist_assets.core.errors import SourcesError, StrictError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot

FLAG = "##! experimental.persistence\n"
RAW = """
CREATE TABLE flights (id BIGINT, carrier STRING, distance INT, at TIMESTAMP)
    USING parquet LOCATION 'raw/flights';
CREATE TABLE planes (carrier STRING, plane STRING) USING parquet LOCATION 'raw/planes';
"""
MODEL = f"""{FLAG}
source: planes is spark.table('planes')
source: flights is spark.table('flights') extend {{
  primary_key: id
  join_many: planes on carrier = planes.carrier
  measure:
    n is count()
    far is distance.sum()
    usual is distance.avg()
}}
#@ persist
source: by_carrier is flights -> {{
  group_by: carrier
  aggregate: n, far
  nest: by_month is {{ group_by: m is month(`at`); aggregate: n }}
}}
#@ persist
source: doubled is spark.sql(\"\"\"
  SELECT carrier, n * 2 AS twice FROM %{{ by_carrier -> {{ select: carrier, n }} }}
\"\"\")
#@ persist
source: joined is flights -> {{ group_by: carrier; aggregate: far, usual, planes_n is planes.count() }}
source: plain is by_carrier -> {{ group_by: carrier; where: n > 1 }}
query: monthly is by_carrier -> {{ group_by: by_month.m; aggregate: all_n is by_month.n.sum() }}
"""
READER = "CREATE VIEW reader AS SELECT carrier, size(by_month) AS months FROM by_carrier;"
BIG = 2_000_000_000


class Run:
    """A run of a project that no other run uses."""

    def __init__(self, root: Path, spark: Any, *, environment: str = "dev", strict: bool = False):
        settings = load_settings(root, environment=environment, environ={})
        self.settings = replace(settings, strict=strict)
        self.ledger = Ledger(settings.ledger)
        self.project = require(load_project(settings))
        self.builder = Builder(
            self.settings, self.project, self.ledger, SparkEngine(settings, lambda: spark)
        )

    def source(self, name: str) -> Any:
        (found,) = (s for s in self.project.sources if s.name == name and s.kind == "query")
        return found

    def build(self, *names: str) -> list[str]:
        return [self.builder.build(self.source(n)).action for n in names]

    def statement(self, name: str) -> Any:
        source = self.source(name)
        return self.builder.reader.statement(
            source.query, source.bindings, self.builder.observer.manifest()
        )[0]

    def inline(self, name: str) -> list[Any]:
        """Return the rows of a source's query, computed inline without any table."""
        source = self.source(name)
        statement, read = self.builder.reader.statement(source.query, source.bindings, {})
        return sorted(map(tuple, self.builder.reader.load(statement, read).collect()), key=repr)

    def rows(self, name: str) -> list[Any]:
        return sorted(map(tuple, self.builder.read(self.source(name)).collect()), key=repr)

    def query(self, **options: str) -> tuple[list[Any], tuple[str, ...]]:
        """Return the rows of a query over the model, and the sources that were inlined."""
        loaded = load(self.settings)
        project, query = loaded.project, loaded.query("sources/model.malloy", **options)
        bindings = resolve_query(project, query, "malloy")
        statement, read = self.builder.reader.statement(
            query, bindings, self.builder.observer.manifest()
        )
        rows = sorted(map(tuple, self.builder.reader.load(statement, read).collect()), key=repr)
        return rows, statement.inlined

    def close(self) -> None:
        self.builder.close()
        self.ledger.close()


@pytest.fixture
def run(make_project: Callable[..., Path], spark: Any) -> Iterator[Callable[..., Run]]:
    need(there(), "bundle Malloy's compiler: make bridge")
    files = {"raw.sql": RAW, "model.malloy": MODEL, "reader.sql": READER}
    root = make_project(files, '[env.prod]\n[env.dev]\n[env.test]\nreads = "prod"\n')
    for name in ("flights", "planes"):
        (root / "raw" / name).mkdir(parents=True)
    day = 86_400_000_000
    flights = {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "carrier": ["AA", "AA", "UA", None],
        "distance": pa.array([BIG, BIG, 7, None], pa.int32()),
        "at": pa.array([0, 40 * day, day, day], pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(flights), root / "raw" / "flights" / "a.parquet")
    planes = {"carrier": ["AA", "AA", "AA", "UA"], "plane": ["a", "b", "c", "d"]}
    pq.write_table(pa.table(planes), root / "raw" / "planes" / "a.parquet")
    made: list[Run] = []

    def start(**more: Any) -> Run:
        made.append(Run(root, spark, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.slow
@pytest.mark.proves("M2", "M19")
def test_malloy_tables_have_the_rows_of_their_queries(run: Callable[..., Run]) -> None:
    now = run()
    names = ("by_carrier", "doubled", "joined")
    before = {name: now.inline(name) for name in (*names, "plain", "reader")}
    assert now.build(*names) == ["built"] * 3
    after = run()
    assert {name: after.rows(name) for name in before} == before
    assert after.build(*names) == ["reused"] * 3
    # By hand: a fan-out join neither counts a distance twice nor overflows an INT.
    far = {row[0]: row[1:] for row in before["joined"]}
    assert far["AA"] == (2 * BIG, BIG, 3)
    assert far["UA"] == (7, 7, 1)
    assert before["doubled"] == [("AA", 4), ("UA", 2), (None, 2)]


@pytest.mark.slow
@pytest.mark.proves("M8", "M10")
def test_queries_read_the_built_tables_of_an_environment_and_inline_other_sources(
    run: Callable[..., Run],
) -> None:
    prod = run(environment="prod")
    prod.build("by_carrier", "doubled")
    table = prod.builder.observer.manifest()[prod.source("by_carrier").build_id].table
    for environment, inlined in (("prod", ()), ("test", ()), ("dev", ("by_carrier",))):
        now = run(environment=environment)
        for name in ("plain", "doubled", "reader"):
            statement = now.statement(name)
            wanted = tuple(f"{n}@sources/model.malloy" for n in inlined)
            assert statement.inlined == wanted, (environment, name)
            assert (table in statement.sql) == (not inlined)
            assert ("flights" in statement.sql.lower()) == bool(inlined)
        rows, computed = now.query(name="monthly")
        assert rows == [(1, 3), (2, 1)]
        assert bool(computed) == bool(inlined)
    statement = run(environment="prod").statement("plain")
    view = next(iter(statement.views.values()))
    assert (
        statement.sql.split()
        == (
            f"SELECT base.`carrier` as `carrier` FROM `{view}` as base WHERE base.`n`>1 "
            "GROUP BY 1 ORDER BY 1 asc NULLS LAST"
        ).split()
    )


@pytest.mark.slow
@pytest.mark.proves("M9")
def test_strict_mode_lists_all_missing_tables_of_a_malloy_query(
    run: Callable[..., Run], spark: Any
) -> None:
    now = run(strict=True)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    jobs = scheduler.numTotalJobs()
    ask = "run: by_carrier -> { select: carrier }"
    with pytest.raises(StrictError) as caught:
        now.query(text=ask)
    assert "by_carrier" in str(caught.value)
    both = "source: x is by_carrier extend { join_many: doubled on carrier = doubled.carrier }"
    with pytest.raises(StrictError) as caught:
        now.query(text=f"{both}\nrun: x -> {{ group_by: doubled.twice }}")
    assert "model/by_carrier, model/doubled" in str(caught.value)
    assert scheduler.numTotalJobs() == jobs
    run().build("by_carrier")
    assert now.query(text=ask)[0] == [("AA",), ("UA",), (None,)]


@pytest.mark.slow
@pytest.mark.proves("M18")
def test_queries_by_name_or_text_return_the_same_rows_from_tables_as_inline(
    run: Callable[..., Run],
) -> None:
    now = run()
    asked: list[dict[str, str]] = [
        {"name": "monthly"},
        {"text": "run: flights -> { group_by: carrier; aggregate: n, far, usual }"},
        {"text": "run: by_carrier -> { select: * }"},
        {"text": "run: doubled -> { aggregate: whole is twice.sum() }"},
    ]
    before = [now.query(**ask)[0] for ask in asked]
    now.build("by_carrier", "doubled")
    assert [now.query(**ask) for ask in asked] == [(rows, ()) for rows in before]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["view", "temporary"])
def test_views_and_temporary_tables_have_the_rows_of_their_queries(
    run: Callable[..., Run], strategy: str
) -> None:
    first = run()
    path = first.settings.root / "sources" / "model.malloy"
    path.write_text(
        MODEL.replace("#@ persist\nsource: by_carrier", f"#@ persist materialized={strategy}\nsource: by_carrier")
    )  # fmt: skip
    now = run()
    before = now.inline("doubled"), now.inline("plain")
    names = ("doubled",) if strategy == "temporary" else ("by_carrier", "doubled")
    assert now.build(*names) == ["built"] * len(names)
    after = run()
    assert (after.rows("doubled"), after.rows("plain")) == before


KEPT = """
#@ persist refresh=snapshot key=plane
source: kept is planes -> { group_by: plane, carrier }
"""


@pytest.mark.slow
def test_malloy_reads_a_history_as_a_table(run: Callable[..., Run]) -> None:
    sources = run().settings.root / "sources"
    (sources / "model.malloy").write_text(MODEL + KEPT)
    now = "source: today is spark.table('kept') -> { where: valid_to = null; group_by: carrier }\n"
    (sources / "now.malloy").write_text(f"{FLAG}#@ persist\n{now}")
    there = run()
    assert there.build("kept", "today") == ["built", "built"]
    kept = there.builder.read(there.source("kept"))
    assert kept.columns == ["plane", "carrier", "valid_from", "valid_to"]
    assert there.rows("today") == [("AA",), ("UA",)]
    assert there.source("kept").build_id not in there.project.malloy.values()
    assert there.source("today").build_id in there.project.malloy.values()
    # In the model, Malloy knows only the query's columns, and not which rows are current.
    with pytest.raises(SourcesError, match="reads all versions of `kept`"):
        there.query(text="run: kept -> { group_by: carrier }")
    (sources / "now.malloy").write_text(
        f'{FLAG}import "model.malloy"\nsource: x is kept -> {{ group_by: carrier }}\n'
    )
    with pytest.raises(SourcesError, match=r"now.malloy:3.*\n?.*all versions of `kept`"):
        run()


GROWING = f"""{FLAG}
source: rows is spark.table('t')
#@ persist refresh=incremental merge_key=x watermark=ts
source: latest is rows -> {{ select: x, ts }}
#@ persist partition=daily time_column=d start="2024-01-01" end="2024-01-11"
source: daily is rows -> {{ group_by: d is ts::date; aggregate: n is count(), last is x.max() }}
"""


def day(n: int) -> date:
    return date(2024, 1, 1) + timedelta(n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hows", "expected"),
    [
        ("latest", ["whole", "added"], {"a": day(8), "b": day(5), "c": day(8)}),
        (
            "daily",
            [[str(day(n)) for n in range(10)], [str(day(2)), str(day(8))]],
            {day(0): (1, "a"), day(2): (2, "c"), day(5): (1, "b"), day(8): (2, "c")},
        ),
    ],
    ids=["merge_key", "partition"],
)
@pytest.mark.proves("M4", "P8", "K8")
def test_merged_and_partitioned_tables_equal_a_build_from_scratch(
    run: Callable[..., Run], name: str, hows: list[Any], expected: dict[Any, Any]
) -> None:
    root = run().settings.root
    (root / "sources" / "t.sql").write_text(ONE.replace("'raw'", "'raw/raw'"))
    (root / "sources" / "grows.malloy").write_text(GROWING)

    def build(**more: Any) -> tuple[Any, Snapshot]:
        now = run()
        with now.builder.work(now.source(name), **more) as work:
            snapshot = now.builder.publish(work)
        check(now.builder, now.source(name), name)
        how = kind_of(work)
        return how if how == "reused" or not work.step.keys else [*work.step.keys], snapshot

    put(root / "raw", 0, (0, "a"), (2, "c"), (5, "b"))
    assert build()[0] == hows[0]
    put(root / "raw", 1, (2, "a"))  # late
    put(root / "raw", 2, (8, "a"), (8, "c"))
    how, grown = build()
    assert how == hows[1]
    assert build()[0] == "reused"
    now = run()
    read = {row[0]: row[1:] for row in now.rows(name)}
    if name == "latest":
        read = {key: ts.astimezone(UTC).date() for key, (ts,) in read.items()}
    assert read == expected
    _, anew = build(force=True)
    assert anew.version != grown.version
    assert (anew.rows, anew.content, anew.watermark) == (grown.rows, grown.content, grown.watermark)
