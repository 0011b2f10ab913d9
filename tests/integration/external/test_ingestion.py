"""Copies of external tables hold the needed rows, however the tables change."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import proposed
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import need
from ingesting import DeltaLake, IcebergLake, Life
from malloy import there
from scans import Scans

from persist_assets.building.builder import Builder
from persist_assets.building.scheduler import Pool
from persist_assets.core.errors import BuildError, GoneError, StorageError, UnapprovedError
from persist_assets.core.model.project import Needed
from persist_assets.external.coverage import COPIES, NO_KEY, copy_id
from persist_assets.external.read_routing import find_route
from persist_assets.external.status import find_holding
from persist_assets.operations.gc import collect

Make = Callable[..., Builder]
SCHEMA = pa.schema(
    [("id", pa.int64()), ("category", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
)
TABLE = proposed.TABLE.replace("s3://...", "lake")
V1 = """
create materialized view v1 as select * from external_table
where
category = 'invoices' and
ts >= NOW() - 6 months;
"""
V2 = """
create materialized view v2 as select * from external_table
where
category = 'deposits' and
ts >= NOW() - 12 months;
"""
F1 = "category = 'invoices' AND ts >= NOW() - INTERVAL 6 MONTHS"
F2 = "category = 'deposits' AND ts >= NOW() - INTERVAL 12 MONTHS"
N = "create materialized view n as select category, count(*) as n from external_table"


def put(root: Path, *rows: tuple[int, str, int], **more: Any) -> None:
    """Append rows: an id, a category, an age in days."""
    now = datetime.now(UTC)
    told = [{"id": i, "category": c, "ts": now - timedelta(days=d)} for i, c, d in rows]
    table = pa.Table.from_pylist(told, SCHEMA)
    deltalake.write_deltalake(str(root / "lake"), table, mode="append", **more)


def build(builder: Builder) -> dict[str, str]:
    """Build everything, and return the planned actions."""
    done: dict[str, str] = {}
    for source in builder.project.persisted:
        with builder.work(source) as work:
            done[source.name] = work.step.action
            builder.publish(work)
    return done


def sync_events(builder: Builder) -> list[dict[str, Any]]:
    """Return the data of the copy's events."""
    events = builder.ledger.events.fetch(limit=10_000)
    return [dict(e.data) for e in events if e.kind == "external-synced"]


def ids(builder: Builder, name: str) -> list[int]:
    source = next(s for s in builder.project.persisted if s.name == name)
    return sorted(row.id for row in builder.read(source).collect())


@pytest.mark.slow
@pytest.mark.proves("F12", "F13", "F15", "F16", "F17", "F18", "F20", "F21")
def test_a_copy_gains_and_drops_rows_as_views_are_added_and_removed(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": TABLE + V1})
    put(root, (1, "invoices", 10), (2, "invoices", 170), (3, "invoices", 300))
    put(root, (4, "deposits", 10), (5, "deposits", 300), (6, "deposits", 400), (7, "loans", 1))
    first = enter(root)
    assert [n.predicate for n in first.project.needs] == [F1]
    build(first)
    assert ids(first, "v1") == [1, 2]
    (begun,) = sync_events(first)
    assert (begun["written"], begun["version"].split(":")[1]) == (2, "1")
    held = first.observer.ingestion.find(first.project.sources[0])
    assert held is not None
    # The program changes, and so does the table.
    (root / "sources" / "m.sql").write_text(TABLE + V1 + V2)
    put(root, (8, "invoices", 1), (9, "deposits", 1), (10, "loans", 1))
    second = enter(root)
    assert sorted(n.predicate for n in second.project.needs) == [F2, F1]
    build(second)
    assert ids(second, "v1") == [1, 2, 8]
    assert ids(second, "v2") == [4, 5, 9]
    _, grown, followed = sync_events(second)
    assert (grown["why"], grown["written"], grown["version"]) == (
        "rows are needed",
        2,
        begun["version"],
    )
    assert (followed["inserted"], followed["deleted"]) == (2, 0)
    # A view is removed, and so are its rows.
    (root / "sources" / "m.sql").write_text(TABLE + V2)
    third = enter(root)
    build(third)
    assert sync_events(third)[-1]["retired"] == 3
    now = third.observer.ingestion.find(third.project.sources[0])
    assert now is not None
    assert now.rows == 3
    assert "invoices" not in now.predicate


@pytest.mark.slow
@pytest.mark.proves("F16", "F24")
def test_a_change_rebuilds_only_sources_that_read_changed_rows(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    some = N + " where category = 'a' group by category;\n"
    others = some.replace("view n", "view m").replace("'a'", "'b'")
    root = make_project({"m.sql": TABLE + some + others})
    put(root, (1, "a", 1), (2, "b", 1), (3, "c", 1))
    assert build(enter(root)) == {"n": "build", "m": "build"}
    assert build(enter(root)) == {"n": "reuse", "m": "reuse"}
    put(root, (4, "c", 1))
    assert build(enter(root)) == {"n": "reuse", "m": "reuse"}
    put(root, (5, "b", 1))
    assert build(enter(root)) == {"n": "reuse", "m": "build"}
    table = deltalake.DeltaTable(str(root / "lake"))
    table.update(updates={"category": "'a'"}, predicate="id = 3")  # enters the rows of `n`
    assert build(enter(root)) == {"n": "build", "m": "reuse"}
    table.update(updates={"category": "'c'"}, predicate="id = 5")  # leaves the rows of `m`
    assert build(enter(root)) == {"n": "reuse", "m": "build"}
    table.delete("id = 4")  # was never copied
    assert build(enter(root)) == {"n": "reuse", "m": "reuse"}
    table.optimize.compact()
    assert build(enter(root)) == {"n": "reuse", "m": "reuse"}
    now = enter(root)
    assert now.observer.ingestion.pending(now.project.sources[0]).is_nothing
    (root / "sources" / "m.sql").write_text(TABLE + some + others + V1)
    assert build(enter(root)) == {"n": "reuse", "m": "reuse", "v1": "build"}
    builder = enter(root)
    rows = [tuple(r) for s in ("n", "m") for r in builder.read(_named(builder, s)).collect()]
    assert rows == [("a", 2), ("b", 1)]


@pytest.mark.slow
@pytest.mark.proves("F17")
def test_a_change_seen_through_either_name_of_a_table_causes_a_build(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    two = TABLE + TABLE.replace("external_table (", "same_table (")
    root = make_project({"m.sql": two + """
        create materialized view v as select id, 1 as which from external_table
        where category = 'a' union all select id, 2 from same_table where category = 'b';
    """})  # fmt: skip
    put(root, (1, "a", 1), (2, "b", 1))
    assert build(enter(root)) == {"v": "build"}
    for number, category in enumerate("ab", 3):
        put(root, (number, category, 1))
        assert build(enter(root)) == {"v": "build"}
        assert build(builder := enter(root)) == {"v": "reuse"}
        assert ids(builder, "v") == [*range(1, number + 1)]
    assert len(builder.ledger.copies.fetch()) == 1


@pytest.mark.slow
@pytest.mark.proves("F26")
def test_large_reads_of_external_tables_require_approval(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    some = N + " where category = 'a' group by category;\n"
    more = some.replace("view n", "view m").replace("'a'", "'b'")
    root = make_project({"m.sql": TABLE + some})
    put(root, (1, "a", 1))
    put(root, *((n, "b", 1) for n in range(2, 500)))
    table = deltalake.DeltaTable(str(root / "lake"))
    settings = (root / "persist.toml").read_text()
    small, large = sorted(pa.table(table.get_add_actions())["size_bytes"].to_pylist())

    def start(most: int = small) -> tuple[Builder, Any]:
        (root / "persist.toml").write_text(f"approve_above = {most}\n{settings}")
        builder = enter(root)
        source = builder.project.sources[0]
        return builder, find_holding(builder.observer.ingestion, source)

    builder, found = start(small - 1)
    assert found.approval
    with pytest.raises(UnapprovedError, match=rf"1 of 2 files .* {small} bytes"):
        build(builder)
    assert builder.observer.ingestion.find(builder.project.sources[0]) is None
    builder, found = start()
    assert not found.approval
    assert build(builder) == {"n": "build"}
    # More rows are needed, from a larger file; the copy stays as it is.
    (root / "sources" / "m.sql").write_text(TABLE + some + more)
    builder, found = start()
    assert (found.approval, found.read.bytes) == (True, large)
    source = builder.project.sources[0]
    with pytest.raises(UnapprovedError) as raised:
        build(builder)
    assert raised.value.hint == "approve it: persist external sync m/external_table --approve"
    held = builder.observer.ingestion.find(source)
    assert held is not None
    assert held.rows == 1
    # The needs of the environment stay as they were.
    needs = builder.ledger.copies.fetch_needs(held.copy_id)
    assert [text for text, _ in needs["dev"][1]] == ["category = 'a'"]
    builder, _ = start()
    builder.observer.ingestion.sync(source, approved=True)
    builder, found = start()
    assert (found.approval, found.why) == (False, None)
    assert build(builder) == {"n": "reuse", "m": "build"}
    # Following changes needs no approval, whatever their size.
    put(root, *((n, "b", 1) for n in range(500, 2000)))
    builder, found = start()
    assert found.read.bytes > small
    assert not found.approval
    assert build(builder) == {"n": "reuse", "m": "build"}
    # A replaced table is read in full, which needs approval.
    shutil.rmtree(root / "lake")
    put(root, *((n, "b", 1) for n in range(500)))
    builder, found = start()
    assert found.approval
    with pytest.raises(UnapprovedError):
        build(builder)
    builder, _ = start()
    builder.observer.ingestion.sync(source, approved=True)
    assert build(start()[0]) == {"n": "build", "m": "build"}


def _held_values(builder: Builder, source: Any) -> dict[str, bool]:
    """Return, for each column of a copy, whether its files have values."""
    paths = builder.observer.ingestion.pin(builder.observer.ingestion.find(source)).files
    rows = pa.concat_tables(pq.read_table(path) for path in paths)
    assert all(rows[name].null_count in (0, len(rows)) for name in rows.column_names)
    return {name: rows[name].null_count == 0 for name in rows.column_names}


@pytest.mark.slow
@pytest.mark.proves("F26")
@pytest.mark.parametrize(
    ("option", "held"),
    [
        (None, ["category", "id"]),
        ('"skip_unused_columns": true', ["category", "id"]),
        ('"skip_unused_columns": false', ["category", "id", "ts", "x"]),
        ('"timestamp_column": "TS"', ["category", "id", "ts"]),
    ],
)
def test_unused_columns_are_fetched_only_if_configured(
    enter: Make, make_project: Callable[..., Path], option: str | None, held: list[str]
) -> None:
    table = TABLE.replace("ts timestamp", "ts timestamp,\n    x double")
    said = table.replace('"uri"', f'{option}, "uri"') if option else table
    root = make_project({"m.sql": said + N + " where category = 'a' group by category;"})
    there = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "category": ["a", "b"],
            "ts": pa.array([datetime.now(UTC)] * 2, pa.timestamp("us", "UTC")),
            "x": [0.5, 1.5],
        }
    )
    deltalake.write_deltalake(str(root / "lake"), there)
    build(enter(root))
    builder = enter(root)
    source = builder.project.sources[0]
    copy = builder.observer.ingestion.find(source)
    assert copy is not None
    assert (list(copy.columns), copy.rows) == (held, 1)
    values = _held_values(builder, source)
    assert sorted(c for c, is_there in values.items() if is_there) == held
    # The copy answers later queries for these columns.
    found: dict[str, str] = {}
    for column in ("ts", "x"):
        needed = Needed("q", source.source_id, "category = 'a'", (column,))
        found[column] = find_route(builder.observer.ingestion, source, [needed], copy).origin
    assert found == {c: "local" if c in held else "forwarded" for c in found}
    # Rows added later have these columns too.
    later = there.slice(0, 1).set_column(0, "id", pa.array([3], pa.int64()))
    deltalake.write_deltalake(str(root / "lake"), later, mode="append")
    build(builder := enter(root))
    assert builder.ledger.copies.fetch()[0].rows == 2
    assert _held_values(builder, source) == values


def test_a_copy_has_the_columns_configured_for_any_of_its_names(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    whole = TABLE.replace('"uri"', '"skip_unused_columns": false, "uri"')
    one = N + " where category = 'a' group by category;"
    other = one.replace("view n", "view m").replace("external_table", "whole_table")
    other = other.replace("'a'", "'b'")
    text = TABLE + whole.replace("external_table (", "whole_table (") + one + other
    root = make_project({"m.sql": text})
    put(root, (1, "a", 1))
    builder = enter(root)
    assert build(builder) == {"n": "build", "m": "build"}
    (copy,) = builder.ledger.copies.fetch()
    assert copy.columns == ("category", "id", "ts")


@pytest.mark.slow
@pytest.mark.proves("F13", "F17")
def test_a_plan_predicts_the_files_and_rows_that_a_run_reads(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    text = TABLE + N + " where category < 'y' group by category;"
    root = make_project({"m.sql": text})

    def follow() -> tuple[Any, Any]:
        """Build, and return the planned read, and what was really read and written."""
        builder = enter(root)
        source = builder.project.sources[0]
        foretold = find_holding(builder.observer.ingestion, source)
        build(builder)
        (brought,) = [*builder.observer.ingestion.brought.values()] or [None]
        assert find_holding(builder.observer.ingestion, source).why is None
        return foretold, brought

    def sizes(version: int) -> int:
        table = deltalake.DeltaTable(str(root / "lake"), version=version)
        return sum(pa.table(table.get_add_actions())["size_bytes"].to_pylist())

    put(root, (1, "a", 1), (2, "b", 1), (3, "z", 1))
    put(root, (4, "z", 1))
    foretold, brought = follow()
    assert (foretold.read.files, foretold.read.of, foretold.read.rows) == (1, 2, 3)
    assert foretold.read.bytes == sizes(0)
    assert (brought.bytes > 0, brought.rows, brought.rows_written) == (True, 2, 2)
    # Only added files are read; of a rewritten file, the old and the new one are.
    put(root, (5, "c", 1), (6, "z", 1))
    foretold, brought = follow()
    assert foretold.why == "`external_table` is at version 2, its copy at 1"
    assert (foretold.full_read_reason, foretold.read.files, foretold.read.rows) == (None, 1, 2)
    assert brought.rows == 1
    assert foretold.read.bytes == sizes(2) - sizes(1)
    table = deltalake.DeltaTable(str(root / "lake"))
    table.delete("id = 1")
    foretold, brought = follow()
    assert (foretold.read.files, foretold.read.of, foretold.read.rows) == (2, 2, 3 + 2)
    # Rows 1 and 2 were removed and 2 was added; rows of `z` are not needed.
    assert (brought.bytes > 0, brought.rows) == (True, 3)
    # A replaced table is read in full, and the plan says so.
    shutil.rmtree(root / "lake")
    put(root, (7, "a", 1), (8, "z", 1))
    put(root, (9, "z", 1))
    foretold, brought = follow()
    assert foretold.full_read_reason == "the table was replaced by another one"
    assert foretold.why.endswith(f"it is read again in full: {foretold.full_read_reason}")
    assert (foretold.read.files, foretold.read.of, foretold.read.rows) == (1, 2, 2)
    assert (foretold.read.bytes, brought.rows) == (sizes(0), 1)
    last = sync_events(enter(root))[-1]
    assert (last["why"], last["read"], last["read_bytes"]) == (
        foretold.full_read_reason,
        1,
        brought.bytes,
    )
    assert follow() == (
        find_holding(enter(root).observer.ingestion, enter(root).project.sources[0]),
        None,
    )


def test_a_plan_says_that_a_table_cannot_be_followed(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    program = TABLE.replace('"uri"', '"mode": "follow", "uri"')
    root = make_project({"m.sql": program + "create materialized view v as select id from external_table"})  # fmt: skip
    put(root, (1, "a", 1))
    builder = enter(root)
    first = find_holding(builder.observer.ingestion, builder.project.sources[0])
    assert first.read is not None
    assert first.read.bytes == 0  # rows from before the start are not copied
    build(builder)
    assert [(b.rows, b.bytes) for b in builder.observer.ingestion.brought.values()] == [(0, 0)]
    shutil.rmtree(root / "lake")
    put(root, (1, "a", 1))
    builder = enter(root)
    found = find_holding(builder.observer.ingestion, builder.project.sources[0])
    assert found.problem is not None
    assert "cannot be followed to version" in found.problem.message
    assert "replaced by another" in found.problem.message


def _named(builder: Builder, name: str) -> Any:
    return next(s for s in builder.project.persisted if s.name == name)


@pytest.mark.proves("F23")
def test_a_duplicate_primary_key_is_reported_and_the_copy_stays_unchanged(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": TABLE + N + " group by category;"})
    put(root, (1, "a", 1), (2, "b", 1))
    build(enter(root))
    put(root, (2, "c", 1))
    builder = enter(root)
    with pytest.raises(StorageError, match=r"2 rows of id = 2, its primary key"):
        build(builder)
    held = builder.observer.ingestion.find(builder.project.sources[0])
    assert held is not None
    assert held.rows == 2
    deltalake.DeltaTable(str(root / "lake")).delete("category = 'c'")
    assert build(enter(root)) == {"n": "reuse"}


@pytest.mark.skipif(
    os.environ.get("PERSIST_TEST_SPARK") == "shared", reason="a server tells no client its status"
)
@pytest.mark.proves("F15", "F16")
@pytest.mark.parametrize("change", ["a column", "a column and rows", "a broken copy", "no key"])
def test_only_missing_columns_of_copied_rows_are_read(
    enter: Make, make_project: Callable[..., Path], spark: Any, change: str
) -> None:
    table = TABLE.replace("id bigint", "x int, id bigint")
    if change == "no key":
        table = table.replace(" primary key", "")
    one = "create materialized view v as select id, {} from external_table where category in ({})"
    root = make_project({"m.sql": table + one.format("x", "'a', 'c'")})
    schema = pa.schema([("x", pa.int32()), *SCHEMA])
    raw = [
        {"x": -n, "id": n, "category": c, "ts": datetime(2024, 1, n, tzinfo=UTC)}
        for n, c in enumerate("abababc", 1)
    ]
    for some in (raw[:3], raw[3:]):
        deltalake.write_deltalake(
            str(root / "lake"), pa.Table.from_pylist(some, schema), mode="append"
        )
    build(builder := enter(root))
    source = builder.project.sources[0]
    wider = one.format("x, ts", "'a', 'b', 'c'" if change == "a column and rows" else "'a', 'c'")
    (root / "sources" / "m.sql").write_text(table + wider)
    if change == "a broken copy":
        held = builder.observer.ingestion.find(source)
        assert held is not None
        for file in Path(builder.observer.ingestion.root(held.copy_id)).rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                pq.write_table(pq.read_table(file).slice(1), file)
                file.with_name(f".{file.name}.crc").unlink()
        with pytest.raises(BuildError, match="different keys than the table: fetch it again"):
            build(enter(root))
        assert builder.observer.ingestion.find(source) == held
        enter(root).observer.ingestion.sync(source, from_scratch=True)
    scans = Scans(spark, "(category,")
    (builder := enter(root)).observer.ingestion.sync(builder.project.sources[0])
    *_, plans = scans.told()
    found = sorted(
        sorted(text.split(",")) for text in re.findall(r"ReadSchema: struct<(.*?)>", str(plans))
    )
    beside = ["category:string", "id:bigint", "ts:timestamp"]
    whole = [*beside, "x:int"]
    wanted = {"a column": [beside], "a column and rows": [beside, whole], "no key": [whole]}
    assert found == wanted.get(change, [])
    assert build(builder) == {"v": "build"}
    found = builder.read(_named(builder, "v")).collect()
    rows = {(r.id, r.x, r.ts.astimezone(UTC)) for r in found}
    letters = "abc" if change == "a column and rows" else "ac"
    assert rows == {(r["id"], r["x"], r["ts"]) for r in raw if r["category"] in letters}


@pytest.mark.proves("F25")
def test_rows_expire_from_a_copy_over_time(enter: Make, make_project: Callable[..., Path]) -> None:
    root = make_project({"m.sql": TABLE + V1})
    put(root, *((n, "invoices", 20 * n) for n in range(10)))
    at = datetime.now(UTC) - timedelta(days=30)
    build(enter(root, clock=lambda: at))
    builder = enter(root, clock=lambda: at)
    held = builder.observer.ingestion.find(builder.project.sources[0])
    assert held is not None
    assert held.rows == 10
    at += timedelta(days=60)
    build(enter(root, clock=lambda: at))
    after = builder.observer.ingestion.find(builder.project.sources[0])
    assert after is not None
    assert after.rows == 8
    assert after.bytes < held.bytes
    assert sync_events(builder)[-1]["retired"] == held.rows - after.rows


@pytest.mark.slow
def test_a_deleted_version_is_reported_and_refetched_only_on_request(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": TABLE + N + " where category = 'a' group by category;"})
    put(root, (1, "a", 1), (2, "b", 1))
    build(enter(root))
    table = deltalake.DeltaTable(str(root / "lake"))
    table.update(updates={"category": "'a'"}, predicate="id = 2")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (root / "sources" / "m.sql").write_text(TABLE + N + " group by category;")
    with pytest.raises(GoneError, match="which is gone") as raised:
        build(enter(root))
    assert "persist external sync" in (raised.value.hint or "")
    builder = enter(root)
    builder.observer.ingestion.sync(builder.project.sources[0], from_scratch=True)
    build(enter(root))
    assert _rows(enter(root)) == [("a", 2)]


@pytest.mark.slow
@pytest.mark.proves("F19", "F23", "F24")
@pytest.mark.parametrize("keyed", [False, True])
def test_after_every_step_all_sources_equal_their_query_over_the_whole_table(
    enter: Make, make_project: Callable[..., Path], keyed: bool
) -> None:
    life = Life(make_project({}), enter, random.Random(7), keyed=keyed)
    _, deaths = life.live(7, dying=0.4)
    assert deaths


@pytest.mark.slow
@pytest.mark.proves("F18", "F19")
@pytest.mark.parametrize("of", [DeltaLake, IcebergLake])
def test_files_of_versions_older_than_the_copy_may_be_deleted(
    enter: Make,
    make_project: Callable[..., Path],
    of: type[DeltaLake | IcebergLake],
) -> None:
    life = Life(make_project({}), enter, random.Random(3), of)
    life.build()
    gone = 0
    for steps in (("append", "update"), ("optimize", "append"), ("delete", "program"), ("merge",)):
        for kind in steps:
            life.step(kind)
        before = {*Path(life.lake.uri).rglob("*.parquet")}
        life.step("vacuum")
        gone += len(before - {*Path(life.lake.uri).rglob("*.parquet")})
        life.build()
        life.check()
    assert gone
    whys = [t["why"] for t in sync_events(enter(life.root))]
    assert whys.count("it is new") == 1
    rewritten = re.compile(r"snapshot \d+ is not an append: overwrite")  # of Iceberg tables
    others = {why for why in whys if not rewritten.fullmatch(why)}
    expected = {"it is new", "it changed", "rows are needed", f"columns are needed, and {NO_KEY}"}
    assert others <= expected, "no version that was needed is gone"


@pytest.mark.slow
@pytest.mark.proves("F26")
def test_follow_mode_never_copies_rows_from_before_its_start(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    program = TABLE.replace('"uri"', '"mode": "follow", "uri"')
    root = make_project({"m.sql": program + "create materialized view v as select id from external_table"})  # fmt: skip
    put(root, (1, "a", 1), (2, "b", 1))
    table = deltalake.DeltaTable(str(root / "lake"))
    seen: list[list[int]] = []
    for change in (
        lambda: None,
        lambda: put(root, (3, "c", 1)),
        lambda: table.delete("id = 1"),
        lambda: table.delete("id = 3"),
    ):
        change()
        table.update_incremental()
        build(builder := enter(root))
        seen.append(ids(builder, "v"))
    assert seen == [[], [3], [3], []]


MALLOY = """##! experimental.persistence
source: e is spark.table('external_table') extend { measure: n is count() }
#@ persist
source: yearly is e -> {
  where: category = 'invoices' | 'deposits', ts >= @2020
  group_by: category, at is ts.year
  aggregate: n
}
"""


@pytest.mark.slow
@pytest.mark.proves("F3", "F6")
def test_malloy_and_python_read_external_tables(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    python = """
from persist_assets import table

@table
def loans(external_table):
    return external_table.where("category = 'loans'").select("id")
"""
    root = make_project({"m.sql": TABLE, "q.malloy": MALLOY})
    put(root, (1, "invoices", 1), (2, "deposits", 1), (3, "loans", 1))
    builder = enter(root)
    (told,) = builder.project.needs
    assert told.predicate.startswith(
        "category IN ('deposits', 'invoices') AND ts >= TIMESTAMP '2020"
    )
    assert build(builder) == {"yearly": "build"}
    (yearly,) = builder.project.persisted
    rows = sorted((r.category, r.n) for r in builder.read(yearly).collect())
    assert rows == [("deposits", 1), ("invoices", 1)]
    (copy,) = builder.ledger.copies.fetch()
    assert copy.rows == 2
    (root / "sources" / "p.py").write_text(python)
    builder = enter(root)
    assert build(builder) == {"yearly": "reuse", "loans": "build"}
    assert ids(builder, "loans") == [3]


def test_an_unreadable_table_fails_only_its_readers(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    program = TABLE + "create materialized view v as select id from external_table;\n"
    gone = (
        program.replace("lake", "gone").replace("external_table", "t").replace("view v", "view w")
    )
    root = make_project({"m.sql": program + gone})
    put(root, (1, "a", 1))
    builder = enter(root)
    pool, found = Pool(builder, builder.project.persisted), dict[str, str]()
    for source in builder.project.persisted:
        try:
            pool.park(source)
            found[source.name] = "parked"
        except StorageError as error:
            found[source.name] = error.message
    pool.close()
    assert found.pop("v") == "parked"
    assert "there is no" in found["w"]


@pytest.mark.slow
@pytest.mark.proves("F26")
def test_a_snapshot_filter_does_not_apply_to_later_rows(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    program = TABLE.replace('"uri"', '"snapshot_filter": "category = \'\'a\'\'", "uri"')
    root = make_project({"m.sql": program + "create materialized view v as select id from external_table"})  # fmt: skip
    put(root, (1, "a", 1), (2, "b", 1))
    build(builder := enter(root))
    assert ids(builder, "v") == [1]
    put(root, (3, "b", 1))
    deltalake.DeltaTable(str(root / "lake")).delete("id = 2")
    build(builder := enter(root))
    assert ids(builder, "v") == [1, 3]
    shutil.rmtree(root / "lake")
    put(root, (1, "a", 1))
    with pytest.raises(StorageError, match=r"cannot be followed .* was replaced by another"):
        build(enter(root))


@pytest.mark.slow
@pytest.mark.proves("F19")
def test_rows_are_counted_even_if_no_column_is_needed(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    count = "create materialized view n as select count(*) as n from external_table"
    root = make_project({"m.sql": f"{TABLE}\n{count};"})
    for wanted in (2, 4, 6, 8, 10, 7):
        if wanted != 7:
            put(root, *((n, "invoices", n) for n in (wanted, wanted + 1)))
        else:
            deltalake.DeltaTable(root / "lake").delete("id in (3, 4, 5)")
        builder = enter(root)
        build(builder)
        copy = builder.observer.ingestion.find(builder.project.sources[0])
        assert copy is not None
        assert (copy.columns, copy.rows) == (("id",), wanted)
        source = builder.project.persisted[0]
        assert [row.n for row in builder.read(source).collect()] == [wanted]
    assert sync_events(builder)[-1]["deleted"] == 3


@pytest.mark.slow
@pytest.mark.proves("F16", "F20")
@pytest.mark.parametrize("may_be_read", [True, False])
def test_a_copy_is_rewritten_when_most_of_its_rows_change(
    enter: Make, make_project: Callable[..., Path], may_be_read: bool
) -> None:
    some = N + " where category = 'a' group by category;\n"
    root = make_project({"m.sql": TABLE + some + some.replace("view n", "view m").replace("'a'", "'b'")})  # fmt: skip
    put(root, (0, "a", 1), (1, "b", 1))
    assert build(enter(root)) == {"n": "build", "m": "build"}
    for number in range(2, 12):
        put(root, (number, "a", number))
        now = enter(root)
        now.observer.ingestion.sync(now.project.sources[0])
    table = deltalake.DeltaTable(str(root / "lake"))
    table.update(updates={"category": "'c'"}, predicate="category = 'a'")
    if not may_be_read:  # then it is rewritten from its own rows
        settings = (root / "persist.toml").read_text()
        (root / "persist.toml").write_text(f"approve_above = 1\n{settings}")
    now = enter(root)
    assert build(now) == {"n": "build", "m": "reuse"}
    synced = [(t["deleted"], t["written"]) for t in sync_events(now) if t.get("deleted")]
    assert synced == [(11, 1)]
    assert [r.n for s in ("n", "m") for r in now.read(_named(now, s)).collect()] == [1]


@pytest.mark.slow
@pytest.mark.proves("F23")
@pytest.mark.parametrize("is_told", [True, False])
def test_a_table_restored_from_a_backup_and_appended_to_is_read_in_full(
    enter: Make, make_project: Callable[..., Path], caplog: pytest.LogCaptureFixture, is_told: bool
) -> None:
    root = make_project({"m.sql": TABLE + "create materialized view v as select id from external_table"})  # fmt: skip
    put(root, (1, "a", 1))
    shutil.copytree(root / "lake", root / "saved")
    put(root, (2, "a", 1))
    build(builder := enter(root))
    assert ids(builder, "v") == [1, 2]
    shutil.rmtree(root / "lake")  # restored, and appended to
    shutil.copytree(root / "saved", root / "lake")
    put(root, (3, "a", 1))
    put(root, (4, "a", 1))
    deltalake.DeltaTable(str(root / "lake")).delete("id = 3")
    if not is_told:  # as if the log no longer had that commit
        with closing(sqlite3.connect(root / ".persist" / "ledger.db")) as db, db:
            (version,) = db.execute("SELECT version FROM copies").fetchone()
            db.execute("UPDATE copies SET version = ?", (version.rpartition(":")[0],))
    build(builder := enter(root))
    assert ids(builder, "v") == [1, 4]
    why = (
        "it was restored to before version 1"
        if is_told
        else "the copy lacks rows that were removed"
    )
    assert why in caplog.text


@pytest.mark.slow
@pytest.mark.proves("F23")
def test_changes_between_similar_values_are_followed(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    columns = "(id BIGINT, x DOUBLE, s STRUCT<a STRING, b STRING, f DOUBLE>)"
    begin = TABLE.index("(")
    program = TABLE[:begin] + columns + TABLE[TABLE.index("with", begin) - 1 :]
    root = make_project({"m.sql": program + "create materialized view v as select * from external_table"})  # fmt: skip
    inner = pa.struct([("a", pa.string()), ("b", pa.string()), ("f", pa.float64())])
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("s", inner)])
    there = [(1, 0.0, ("p, q", "r", 1.0)), (2, math.nan, ("p", "q", 0.0)), (2, 1.0, None)]
    for change in (
        (1, 0.0, ("p, q", "r", 1.0)),
        (1, -0.0, ("p, q", "r", 1.0)),
        (1, -0.0, ("p", "q, r", 1.0)),
        (1, -0.0, ("p", "q, r", -0.0)),
        (1, math.nan, ("p", "q, r", 0.0)),
        (1, math.nan, None),
    ):
        there[0] = change
        rows = [{"id": i, "x": x, "s": s and dict(zip("abf", s, strict=True))} for i, x, s in there]
        deltalake.write_deltalake(
            str(root / "lake"), pa.Table.from_pylist(rows, schema), mode="overwrite"
        )
        build(builder := enter(root))
        (v,) = builder.project.persisted
        found = [(r.id, r.x, r.s and tuple(r.s)) for r in builder.read(v).collect()]
        assert sorted(map(repr, found)) == sorted(map(repr, there))
    first, *changes = sync_events(builder)
    assert first["why"] == "it is new"
    of_each = [(t["why"], t.get("inserted"), t.get("deleted")) for t in changes]
    assert of_each == [("it changed", 1, 1)] * 5


@pytest.mark.slow
@pytest.mark.proves("F16")
def test_sources_computed_inline_contribute_to_the_needed_rows(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    program = """create materialized view u as select id from external_table where category = 'b';
        create materialized view r as select id from external_table where category = 'a'
        union all select id from u;"""
    root = make_project({"m.sql": TABLE + program})
    put(root, (1, "a", 1), (2, "b", 1))
    for more, action in (((), "build"), ((3, "b", 1), "build"), ((4, "c", 1), "reuse")):
        if more:
            put(root, more)
        builder = enter(root)
        (source,) = (s for s in builder.project.persisted if s.name == "r")
        with builder.work(source) as work:
            assert work.step.action == action, more
            builder.publish(work)
    assert ids(builder, "r") == [1, 2, 3]


def test_copy_ids_depend_on_the_store_and_the_time_zone(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    there = TABLE.replace('"lake"', '"s3://lake/e", "aws_endpoint": "http://a.test"')
    other = there.replace("a.test", "b.test").replace("external_table", "other_table")
    builder = enter(make_project({"m.sql": there + other}))
    settings, (one, two) = builder.settings, builder.project.sources
    assert copy_id(settings, one) != copy_id(settings, two)
    elsewhere = dict(settings.spark) | {"spark.sql.session.timeZone": "Europe/Berlin"}
    moved = replace(settings, spark=tuple(sorted(elsewhere.items())))
    assert copy_id(settings, one) != copy_id(moved, one)
    assert copy_id(settings, one) == copy_id(replace(moved, spark=settings.spark), one)


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_gc_deletes_unused_files_and_unused_copies(
    enter: Make, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    text = TABLE + N + " where category = 'a' group by category;"
    root = make_project({"m.sql": text})
    put(root, (1, "a", 1), (2, "a", 1))
    build(enter(root))
    deltalake.DeltaTable(str(root / "lake")).delete("id = 2")
    build(enter(root))
    builder = enter(root)
    given = builder.settings, builder.project, builder.ledger
    assert collect(*given) == []  # a run may still read the replaced files
    monkeypatch.setattr("persist_assets.operations.gc.LONGEST", timedelta(0))
    told = [c for c in collect(*given, dry_run=True) if c.table.startswith(COPIES)]
    assert [(c.versions, c.bytes > 0) for c in told] == [((), True)]
    assert [c for c in collect(*given) if c.table.startswith(COPIES)] == told
    assert [c for c in collect(*given) if c.table.startswith(COPIES)] == []
    assert build(enter(root)) == {"n": "reuse"}
    # The table is no longer declared, or no longer read.
    other = "CREATE VIEW o AS SELECT 1 AS one;"
    (root / "sources" / "m.sql").write_text(TABLE + other if named else other)
    after = enter(root)
    gone = after.settings, after.project, after.ledger
    later = datetime.now(UTC) + timedelta(days=8)
    collect(*gone, clock=lambda: later)
    collect(*gone, removed=True)
    (held,) = after.ledger.copies.fetch()
    assert Path(after.observer.ingestion.root(held.copy_id)).is_dir()
    tried = collect(*gone, removed=True, dry_run=True, clock=lambda: later)
    assert [c.table for c in tried if c.table.startswith(COPIES)] == [f"{COPIES}/{held.copy_id}"]
    assert Path(after.observer.ingestion.root(held.copy_id)).is_dir()
    collect(*gone, removed=True, clock=lambda: later)
    assert after.ledger.copies.fetch() == []
    assert not Path(after.observer.ingestion.root(held.copy_id)).exists()
    (root / "sources" / "m.sql").write_text(text)
    put(root, (3, "a", 1))
    assert build(enter(root)) == {"n": "build"}  # versions of the deleted copy do not count
    assert _rows(enter(root)) == [("a", 2)]


def _rows(builder: Builder) -> list[tuple[Any, ...]]:
    return [tuple(r) for r in builder.read(_named(builder, "n")).collect()]
