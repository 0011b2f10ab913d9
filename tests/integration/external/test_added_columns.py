"""Declarations with more or fewer columns: the copy is reused, and only new columns are fetched."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from icebergs import Written
from test_ingestion import build, sync_events

from persist_assets.building.builder import Builder
from persist_assets.core.errors import PersistError
from persist_assets.core.model.project import Needed
from persist_assets.external.read_routing import find_route
from persist_assets.external.status import find_holding

if TYPE_CHECKING:
    from collections.abc import Sequence

Make = Callable[..., Builder]
HEAD = """
create external table t ({}) with ('connectors' = '[{{"transport": {{
  "name": "delta_table_input", "config": {{"uri": "lake"{}}}
}}}}]');
"""
KEYED = "id bigint not null primary key, k string"
KEYLESS = "id bigint, k string"
OLD = "create materialized view o as select id, k from t where k <> 'z';\n"
NEW = "create materialized view n as select id, c from t where k = 'a';\n"
PLAIN = pa.schema([("id", pa.int64()), ("k", pa.string())])
WIDE = pa.schema([*PLAIN, ("c", pa.int32())])


def table(columns: str, config: str = "") -> str:
    return HEAD.format(columns, config)


def put(root: Path, schema: pa.Schema, *rows: Sequence[Any]) -> None:
    """Append rows; columns that the table lacks are added to it."""
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    data = pa.Table.from_pylist(named, schema)
    there = (root / "lake").exists()
    more: dict[str, Any] = {"schema_mode": "merge"} if there else {}
    deltalake.write_deltalake(str(root / "lake"), data, mode="append", **more)


def write(root: Path, text: str) -> None:
    (root / "sources" / "m.sql").write_text(text)


def values(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.persisted if s.name == name)
    return sorted((tuple(row) for row in builder.read(source).collect()), key=repr)


def copies(builder: Builder) -> list[str]:
    return [copy.copy_id for copy in builder.ledger.copies.fetch()]


@pytest.mark.proves("V10")
def test_declaring_an_unused_column_causes_no_build_or_fetch(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": table(KEYLESS) + OLD})
    put(root, WIDE, (1, "a", 7), (2, "b", None))
    builder = enter(root)
    assert build(builder) == {"o": "build"}
    begun, (held,) = sync_events(builder), builder.ledger.copies.fetch()
    for columns in (f"{KEYLESS}, c int", f"c int, {KEYLESS}", KEYLESS, f"{KEYLESS}, c int"):
        write(root, table(columns) + OLD)
        after = enter(root)
        assert build(after) == {"o": "reuse"}, columns
        assert after.ledger.copies.fetch() == [held]
        assert sync_events(after) == begun


@pytest.mark.slow
@pytest.mark.proves("V10")
@pytest.mark.parametrize("columns", [KEYED, KEYLESS])
def test_a_column_added_to_the_table_is_null_in_old_rows_which_are_not_reread(
    enter: Make, make_project: Callable[..., Path], columns: str
) -> None:
    root = make_project({"m.sql": table(columns) + OLD})
    put(root, PLAIN, (1, "a"), (2, "b"))
    assert build(enter(root)) == {"o": "build"}
    put(root, WIDE, (3, "a", 30), (4, "z", 40))
    write(root, table(f"{columns}, c int") + OLD + NEW)
    builder = enter(root)
    (source, *_) = builder.project.sources
    planned = find_holding(builder.observer.ingestion, source)
    assert planned.full_read_reason is None
    assert planned.read is not None
    assert (planned.read.files, planned.read.rows) == (1, 2)  # only the added file
    assert build(builder) == {"o": "build", "n": "build"}
    _, grown, followed = sync_events(builder)
    assert (grown["why"], grown["read"], grown["read_bytes"]) == ("columns are needed", 0, 0)
    assert (followed["inserted"], followed["read"]) == (1, 1)
    assert values(builder, "n") == [(1, None), (3, 30)]
    assert len(copies(builder)) == 1
    # Rows change, including the new column.
    deltalake.DeltaTable(str(root / "lake")).update(updates={"c": "99"}, predicate="id = 1")
    builder = enter(root)
    build(builder)
    assert values(builder, "n") == [(1, 99), (3, 30)]
    assert values(builder, "o") == [(1, "a"), (2, "b"), (3, "a")]


@pytest.mark.proves("V10")
@pytest.mark.parametrize("columns", [KEYED, KEYLESS])
def test_with_a_primary_key_only_a_newly_needed_column_is_fetched(
    enter: Make,
    make_project: Callable[..., Path],
    columns: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = make_project({"m.sql": table(columns) + OLD})
    put(root, WIDE, (1, "a", 7), (2, "b", 8), (3, "z", 9))
    assert build(enter(root)) == {"o": "build"}
    write(root, table(f"{columns}, c int") + OLD + NEW)
    builder = enter(root)
    (source, *_) = builder.project.sources
    reason = find_holding(builder.observer.ingestion, source).full_read_reason
    with caplog.at_level(logging.WARNING):
        assert build(builder) == {"o": "reuse", "n": "build"}
    is_keyed = columns == KEYED
    why = "it has no primary key, so columns cannot be read alone"
    assert reason == (None if is_keyed else why)
    assert (why in caplog.text) is not is_keyed
    (_, grown) = sync_events(builder)
    assert grown["why"] == ("columns are needed" if is_keyed else f"columns are needed, and {why}")
    assert values(builder, "n") == [(1, 7)]
    assert len(copies(builder)) == 1


@pytest.mark.proves("V10")
def test_changing_the_type_of_a_column_creates_another_copy(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    view = "create materialized view o as select id, v from t;"
    root = make_project({"m.sql": table("id bigint, v varchar(9)") + view})
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    put(root, schema, (1, "x"))
    assert build(enter(root)) == {"o": "build"}
    write(root, table("id bigint, v char(3), w int") + view)
    put(root, pa.schema([*schema, ("w", pa.int32())]), (2, "y", 5))
    builder = enter(root)
    assert build(builder) == {"o": "build"}
    assert values(builder, "o") == [(1, "x  "), (2, "y  ")]
    assert len(copies(builder)) == 2


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_environments_that_declare_different_columns_share_a_copy(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": table(KEYED) + OLD}, "[env.dev]\n[env.prod]\n")
    put(root, WIDE, (1, "a", 7))
    assert build(enter(root, "prod")) == {"o": "build"}
    write(root, table(f"{KEYED}, c int") + OLD + NEW)
    build(dev := enter(root, "dev"))
    assert values(dev, "n") == [(1, 7)]
    # `prod` follows the table, including the column that it does not declare.
    put(root, WIDE, (2, "a", 8))
    write(root, table(KEYED) + OLD)
    build(prod := enter(root, "prod"))
    assert values(prod, "o") == [(1, "a"), (2, "a")]
    (copy,) = prod.ledger.copies.fetch()
    assert copy.columns == ("c", "id", "k")
    write(root, table(f"{KEYED}, c int") + OLD + NEW)
    before = sync_events(dev := enter(root, "dev"))
    build(dev)
    assert values(dev, "n") == [(1, 7), (2, 8)]
    assert sync_events(dev) == before  # the changes were fetched already
    # The column is dropped: only environments that declare it fail.
    rest = pa.table({"id": [1, 3], "k": ["a", "b"]}, schema=PLAIN)
    deltalake.write_deltalake(str(root / "lake"), rest, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PersistError, match="it has no column `c`"):
        build(enter(root, "dev"))
    write(root, table(KEYED) + OLD)
    prod = enter(root, "prod")
    (source, *_) = prod.project.sources
    assert find_holding(prod.observer.ingestion, source).why is not None
    build(prod)
    assert values(prod, "o") == [(1, "a"), (3, "b")]
    (copy,) = prod.ledger.copies.fetch()
    assert copy.columns == ("id", "k")


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_a_filter_on_a_dropped_column_does_not_affect_other_environments(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    filtered = "create materialized view n as select id from t where c = 7;\n"
    root = make_project({"m.sql": table(KEYED) + OLD}, "[env.dev]\n[env.prod]\n")
    put(root, WIDE, (1, "a", 7), (2, "z", 7))
    build(enter(root, "prod"))
    write(root, table(f"{KEYED}, c int") + OLD + filtered)
    build(dev := enter(root, "dev"))
    assert values(dev, "n") == [(1,), (2,)]
    rest = pa.table({"id": [1, 3], "k": ["a", "b"]}, schema=PLAIN)
    deltalake.write_deltalake(str(root / "lake"), rest, mode="overwrite", schema_mode="overwrite")
    write(root, table(KEYED) + OLD)
    build(prod := enter(root, "prod"))
    assert values(prod, "o") == [(1, "a"), (3, "b")]
    # The column is added again: the filter on it selects rows again.
    put(root, WIDE, (4, "z", 7), (5, "z", 8))
    build(enter(root, "prod"))
    write(root, table(f"{KEYED}, c int") + OLD + filtered)
    build(dev := enter(root, "dev"))
    assert values(dev, "n") == [(4,)]
    assert values(dev, "o") == [(1, "a"), (3, "b")]


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_a_copy_of_an_earlier_release_accepts_columns_after_its_next_sync(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": table(KEYED) + OLD})
    put(root, WIDE, (1, "a", 7))
    build(builder := enter(root))
    (held,) = builder.ledger.copies.fetch()
    earlier = replace(held, family=None, stored=None)
    builder.ledger.copies.record(earlier, expected=held, changes={})
    put(root, WIDE, (2, "a", 8))
    build(builder := enter(root))
    (held,) = builder.ledger.copies.fetch()
    assert held.stored == (("id", "bigint"), ("k", "string"))
    write(root, table(f"{KEYED}, c int") + OLD + NEW)
    builder = enter(root)
    assert build(builder) == {"o": "reuse", "n": "build"}
    assert copies(builder) == [held.copy_id]
    assert values(builder, "n") == [(1, 7), (2, 8)]


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_adding_a_column_in_follow_mode_starts_a_new_copy(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    follow = ', "mode": "follow"'
    root = make_project({"m.sql": table(KEYLESS, follow) + OLD})
    put(root, PLAIN, (1, "a"))
    build(enter(root))
    put(root, WIDE, (2, "a", 5))
    build(builder := enter(root))
    assert values(builder, "o") == [(2, "a")]
    write(root, table(f"{KEYLESS}, c int", follow) + OLD + NEW)
    build(builder := enter(root))
    assert values(builder, "o") == []
    assert len(copies(builder)) == 2


@pytest.mark.proves("V10")
def test_a_snapshot_of_a_version_without_a_declared_column_is_rejected(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    columns = f"{KEYLESS}, c int"
    root = make_project({"m.sql": table(columns, ', "mode": "snapshot", "version": 0') + NEW})
    put(root, PLAIN, (1, "a"))
    put(root, WIDE, (2, "a", 5))
    with pytest.raises(PersistError, match="it has no column `c`"):
        build(enter(root))
    # If the table is followed from this version, the column is NULL until it is added.
    write(root, table(columns, ', "version": 0') + NEW)
    build(builder := enter(root))
    assert values(builder, "n") == [(1, None), (2, 5)]


@pytest.mark.proves("V10")
def test_queries_at_the_copys_version_return_null_for_columns_added_later(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": table(KEYLESS) + OLD})
    put(root, PLAIN, (1, "a"), (9, "z"))
    build(enter(root))
    put(root, WIDE, (3, "z", 30))
    write(root, table(f"{KEYLESS}, c int") + OLD)
    builder = enter(root)
    ingestion, (source, *_) = builder.observer.ingestion, builder.project.sources
    need = Needed("q", source.source_id, "k = 'z'", ("c", "id"))
    route = find_route(ingestion, source, [need], ingestion.find(source))
    assert route.origin == "forwarded"
    rows = ingestion.connector(source).snapshot(route.predicate, route.columns, route.version)
    assert [tuple(row) for row in rows.collect()] == [(None, 9)]


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_an_iceberg_table_gains_a_column(enter: Make, make_project: Callable[..., Path]) -> None:
    from pyiceberg.types import IntegerType

    def declared(columns: str) -> str:
        text = table(columns).replace("delta_table_input", "iceberg_input")
        return text.replace('"lake"', '"lake/n/t"')

    columns = "id bigint, k string"
    root = make_project({"m.sql": declared(columns) + OLD})
    lake = Written(root / "lake", PLAIN)
    lake.put(pa.Table.from_pylist([{"id": 1, "k": "a"}, {"id": 2, "k": "b"}], PLAIN))
    assert build(enter(root)) == {"o": "build"}
    with lake.table.update_schema() as changing:
        changing.add_column("c", IntegerType())
    lake.hint()
    write(root, declared(f"{columns}, c int") + OLD)
    assert build(enter(root)) == {"o": "reuse"}
    lake.put(pa.Table.from_pylist([{"id": 3, "k": "a", "c": 30}], WIDE))
    write(root, declared(f"{columns}, c int") + OLD + NEW)
    builder = enter(root)
    assert build(builder) == {"o": "build", "n": "build"}
    assert values(builder, "n") == [(1, None), (3, 30)]
    grown, followed = [e for e in sync_events(builder) if e.get("read") is not None][-2:]
    assert (grown["why"], grown["read"], grown["read_bytes"]) == ("columns are needed", 0, 0)
    assert followed["inserted"] == 1
    assert len(copies(builder)) == 1
