"""Iceberg tables as external tables: what is copied, followed, and reread with a warning."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icebergs import Written
from ingesting import IcebergLake, Life
from test_ingestion import build, sync_events

from persist_assets.building.builder import Builder
from persist_assets.core.errors import StorageError
from persist_assets.external.status import find_holding

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.external.connectors.protocol import Pruned

Make = Callable[..., Builder]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("category", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
TABLE = """
create external table events (
  id bigint, category string, ts timestamp, note string
) with ('connectors' = '[{"transport": {
  "name": "iceberg_input", "config": {"uri": "lake/n/t"}
}}]');
"""
VIEWS = """
create materialized view invoices as select id from events where category = 'invoices';
create materialized view counts as select category, count(*) as n from events
where category in ('invoices', 'deposits') group by category;
"""
MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


def rows(*triples: tuple[int, str, int]) -> pa.Table:
    """Return rows: an id, a category, a day."""
    named = [
        {"id": i, "category": c, "ts": MONDAY + timedelta(days=d, hours=12), "note": "n" * 50}
        for i, c, d in triples
    ]
    return pa.Table.from_pylist(named, SCHEMA)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    return make_project({"m.sql": TABLE + VIEWS})


@pytest.fixture
def lake(root: Path) -> Written:
    made = Written(root / "lake", SCHEMA)
    made.put(rows((1, "invoices", 0), (2, "invoices", 1), (3, "deposits", 0), (4, "loans", 0)))
    return made


@contextmanager
def away(lake: Written, *files: Path) -> Iterator[None]:
    """Move data files away meanwhile, so that reading one fails."""
    hidden = lake.root / "hidden"
    hidden.mkdir()
    moved = {file: hidden / str(n) for n, file in enumerate(files)}
    for file, place in moved.items():
        file.rename(place)
    yield
    for file, place in moved.items():
        place.rename(file)
    hidden.rmdir()


def data(lake: Written) -> list[Path]:
    return [*(lake.root / "data").rglob("*.parquet")]


def read(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.sources if s.name == name)
    return sorted(tuple(r) for r in builder.read(source).collect())


def check(builder: Builder, lake: Written) -> None:
    """Check that sources equal their queries over the whole table, of the newest version."""
    whole = lake.table.scan().to_arrow().to_pylist()
    invoices = sorted((r["id"],) for r in whole if r["category"] == "invoices")
    assert read(builder, "invoices") == invoices
    n = Counter(r["category"] for r in whole if r["category"] in ("invoices", "deposits"))
    assert read(builder, "counts") == sorted(n.items())
    held = builder.observer.ingestion.find(builder.project.by_key["m", "events"])
    assert held is not None
    assert held.version == lake.head()
    assert held.rows == sum(n.values())


@pytest.mark.slow
@pytest.mark.proves("F14", "F18")
def test_a_table_is_copied_once_and_its_appends_are_followed(
    root: Path, lake: Written, enter: Make
) -> None:
    builder = enter(root)
    assert build(builder) == {"invoices": "build", "counts": "build"}
    check(builder, lake)
    held = builder.observer.ingestion.find(builder.project.sources[0])
    assert held is not None
    assert held.columns == ("category", "id"), "the others stay where they are"
    with away(lake, *data(lake)):
        builder = enter(root)
        assert build(builder) == {"invoices": "reuse", "counts": "reuse"}
        assert builder.observer.ingestion.pending(builder.project.sources[0]).is_nothing
    old = data(lake)
    lake.put(rows((5, "deposits", 2), (6, "loans", 2)))
    lake.put(rows((7, "loans", 3)))
    with away(lake, *old):  # copied rows are not read again
        builder = enter(root)
        assert build(builder) == {"invoices": "reuse", "counts": "build"}
    check(builder, lake)
    assert [(t["why"], t.get("inserted"), t["written"]) for t in sync_events(builder)] == [
        ("it is new", None, 3),
        ("it changed", 1, 1),
    ]
    # Only rows that no source needs, as statistics show: no data is read, nothing is built.
    old = data(lake)
    lake.put(rows((8, "loans", 4)))
    with away(lake, *data(lake)):
        builder = enter(root)
        assert build(builder) == {"invoices": "reuse", "counts": "reuse"}
    check(builder, lake)
    assert sync_events(builder)[-1]["inserted"] == 0
    before = len(sync_events(builder))
    lake.compact()
    with away(lake, *data(lake)):
        builder = enter(root)
        assert build(builder) == {"invoices": "reuse", "counts": "reuse"}
    check(builder, lake)
    assert [t["inserted"] for t in sync_events(builder)[before:]] == [0]


@pytest.mark.proves("F14", "F24", "F26")
@pytest.mark.parametrize("kind", ["delete", "overwrite", "positions", "expired", "made anew"])
def test_changes_that_cannot_be_followed_cause_a_reread_with_a_warning(
    root: Path, lake: Written, enter: Make, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    build(enter(root))
    held = lake.table.metadata.current_snapshot_id
    match kind:
        case "delete":
            lake.delete([1])
            why = r"snapshot \d+ is not an append: overwrite"
        case "overwrite":
            lake.replace([2, 3, 4], rows((2, "loans", 0), (3, "invoices", 0), (4, "deposits", 0)))
            why = r"snapshot \d+ is not an append: (overwrite|delete)"
        case "positions":
            lake.delete_positions(0, 3)
            why = "snapshot 4711 is not an append: delete"
        case "expired":
            lake.put(rows((5, "invoices", 1)))
            lake.put(rows((6, "invoices", 1)))
            lake.expire(*(s.snapshot_id for s in lake.table.snapshots()[:-1]))
            why = rf"snapshot \d+ does not follow from {held}, or {held} expired"
        case _:
            lake.make_anew()
            lake.put(rows((9, "deposits", 1)))
            why = "the table was replaced by another one"
    caplog.clear()
    build(builder := enter(root))
    check(builder, lake)
    (warned,) = [r for r in caplog.records if r.levelname == "WARNING"]
    read_anew = sync_events(builder)[-1]["why"]
    assert warned.getMessage() == f"`m/events` is read again in full: {read_anew}"
    assert re.fullmatch(why, read_anew)
    caplog.clear()
    assert build(enter(root)) == {"invoices": "reuse", "counts": "reuse"}
    assert not caplog.records


WEEKS = [
    f"create materialized view week{n} as select id, category from events"
    f" where ts >= timestamp '{at:%Y-%m-%d} 00:00:00Z'"
    f" and ts < timestamp '{at + timedelta(days=7):%Y-%m-%d} 00:00:00Z';\n"
    for n, at in ((1, MONDAY), (2, MONDAY + timedelta(days=7)))
]


@pytest.mark.slow
@pytest.mark.proves("F11", "F13", "F17")
@pytest.mark.parametrize("is_parted", [False, True])
def test_adding_a_week_fetches_only_the_rows_of_that_week(
    make_project: Callable[..., Path], enter: Make, is_parted: bool
) -> None:
    root = make_project({"m.sql": TABLE + WEEKS[0]})
    lake = Written(root / "lake", SCHEMA)
    if is_parted:
        lake.part_by(("category", "identity"), ("ts", "day"))
    for day in range(21):
        lake.put(rows((2 * day, "invoices", day), (2 * day + 1, "loans", day)))
    files = 2 if is_parted else 1

    def planned() -> Pruned | None:
        builder = enter(root)
        return find_holding(builder.observer.ingestion, builder.project.by_key["m", "events"]).read

    found = planned()
    assert found is not None
    assert (found.files, found.of, found.rows) == (7 * files, 21 * files, 14)
    build(builder := enter(root))
    assert [i for i, _ in read(builder, "week1")] == [*range(14)]
    first = [f for f in data(lake) if _day(f) < 7]
    others = [f for f in data(lake) if _day(f) >= 14]
    assert len(first) == 7 * files
    (root / "sources" / "m.sql").write_text(TABLE + "".join(WEEKS))
    found = planned()
    assert found is not None
    assert (found.files, found.rows) == (7 * files, 14)
    lake.put(rows((100, "invoices", 1), (101, "loans", 15)))  # meanwhile
    with away(lake, *first, *others):
        builder = enter(root)
        assert build(builder) == {"week1": "build", "week2": "build"}
    assert [i for i, _ in read(builder, "week1")] == [*range(14), 100]
    assert [i for i, _ in read(builder, "week2")] == [*range(14, 28)]
    assert [(t["why"], t["written"]) for t in sync_events(builder)] == [
        ("it is new", 14),
        ("rows are needed", 14),
        ("it changed", 1),
    ]


def _day(file: Path) -> int:
    """Return the day of the rows of a file."""
    (at, *_) = pq.ParquetFile(file).read()["ts"].to_pylist()
    return (at - MONDAY).days


@pytest.mark.slow
@pytest.mark.proves("F11", "F14")
def test_appends_are_followed_when_the_partitioning_changes(
    root: Path, lake: Written, enter: Make
) -> None:
    late = "create materialized view late as select id from events where id >= 30;"
    (root / "sources" / "m.sql").write_text(TABLE + VIEWS + WEEKS[0] + late)
    build(enter(root))

    def check_all(builder: Builder) -> None:
        whole = lake.table.scan().to_arrow().to_pylist()
        n = Counter(r["category"] for r in whole if r["category"] != "loans")
        week = sorted((r["id"], r["category"]) for r in whole if (r["ts"] - MONDAY).days < 7)
        assert read(builder, "counts") == sorted(n.items())
        assert read(builder, "week1") == week
        assert read(builder, "late") == sorted((r["id"],) for r in whole if r["id"] >= 30)

    for n, by in enumerate((("category", "identity"), ("ts", "month"), ("id", "bucket[4]"))):
        lake.part_by(by)
        lake.put(rows((10 + n, "invoices", 40 * n), (20 + n, "loans", 40), (30 + n, "loans", n)))
        builder = enter(root)
        assert {*build(builder).values()} == {"build"}
        check_all(builder)
        assert sync_events(builder)[-1]["inserted"] == 2
    again = enter(root)
    again.observer.ingestion.sync(again.project.by_key["m", "events"], from_scratch=True)
    build(builder := enter(root))
    check_all(builder)


@pytest.mark.slow
@pytest.mark.proves("F11")
def test_a_renamed_column_is_read_once_its_declaration_is_renamed(
    root: Path, lake: Written, enter: Make
) -> None:
    build(enter(root))
    with lake.table.update_schema() as update:
        update.rename_column("category", "kind")
    lake.hint()
    assert read(enter(root), "invoices") == [(1,), (2,)], "what is built stays"
    with pytest.raises(StorageError, match="has no column `category`"):
        build(enter(root))
    (root / "sources" / "m.sql").write_text((TABLE + VIEWS).replace("category", "kind"))
    build(builder := enter(root))
    assert read(builder, "counts") == [("deposits", 1), ("invoices", 2)]
    renamed = rows((5, "invoices", 0)).rename_columns(["id", "kind", "ts", "note"])
    lake.put(renamed)
    build(builder := enter(root))
    assert read(builder, "invoices") == [(1,), (2,), (5,)]
    assert sync_events(builder)[-1]["inserted"] == 1


@pytest.mark.slow
@pytest.mark.proves("F26")
@pytest.mark.parametrize("kind", ["swapped", "dropped"])
def test_swapped_or_recreated_columns_are_reread_even_without_new_rows(
    root: Path, lake: Written, enter: Make, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    build(enter(root))
    with lake.table.update_schema() as update:
        if kind == "swapped":
            update.rename_column("category", "_").rename_column("note", "category")
        else:
            update.delete_column("category")
    with lake.table.update_schema() as update:
        if kind == "swapped":
            update.rename_column("_", "note")
        else:
            update.add_column("category", lake.table.schema().find_type("note"))
    lake.hint()
    build(builder := enter(root))
    assert read(builder, "invoices") == []
    lake.put(rows((5, "invoices", 1)).select([f.name for f in lake.table.schema().fields]))
    build(builder := enter(root))
    assert read(builder, "invoices") == [(5,)]


@pytest.mark.slow
@pytest.mark.proves("F19", "F23", "F24")
def test_after_every_step_all_sources_equal_their_query_over_the_whole_table(
    make_project: Callable[..., Path], enter: Make
) -> None:
    life = Life(make_project({}), enter, random.Random(5), IcebergLake)
    _, deaths = life.live(6, dying=0.4)
    assert deaths
