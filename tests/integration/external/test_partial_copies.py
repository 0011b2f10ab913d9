"""Copies that do not have all rows of their tables: what they hold, and what others need of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from persist_assets.building.builder import Builder
from persist_assets.core.errors import StorageError

Make = Callable[..., Any]
V = "CREATE MATERIALIZED VIEW v AS SELECT id, k FROM t;\n"
N = "CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t;\n"
FOLLOW = {"mode": "follow"}
FILTER = {"snapshot_filter": "id = 2"}


def lake(columns: str, **config: str) -> str:
    """Return the declaration of a Delta table."""
    transport = {"name": "delta_table_input", "config": {"uri": "lake", **config}}
    text = json.dumps([{"transport": transport}]).replace("'", "''")
    return f"CREATE EXTERNAL TABLE t ({columns}) WITH ('connectors' = '{text}');\n"


def put(root: Path, *rows: tuple[int, str], **more: Any) -> None:
    """Append rows."""
    ids, names = [row[0] for row in rows], [row[1] for row in rows]
    table = pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array(names, pa.string())})
    deltalake.write_deltalake(str(root / "lake"), table, mode="append", **more)


def build(builder: Builder) -> Builder:
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
    return builder


def values(builder: Builder) -> list[tuple[Any, ...]]:
    (source,) = builder.project.persisted
    return sorted(tuple(row) for row in builder.read(source).collect())


def copy_of(builder: Builder) -> Any:
    return builder.observer.ingestion.find(builder.project.sources[0])


# ---------------------------------------------------------------------------- rows after the start


@pytest.mark.slow
@pytest.mark.proves("F18", "F24")
@pytest.mark.parametrize("is_often", [True, False])
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FOLLOW, [(1, "a"), (5, "e"), (6, "f")]),
        (FILTER, [(1, "a"), (2, "b"), (5, "e"), (6, "f")]),
    ],
)
def test_a_copy_does_not_depend_on_how_often_it_is_brought_up_to_date(
    enter: Make,
    make_project: Make,
    is_often: bool,
    config: dict[str, str],
    expected: list[tuple[int, str]],
) -> None:
    root = make_project({"m.sql": lake("id BIGINT, k STRING", **config) + V})
    put(root, (1, "a"), (1, "a"), (2, "b"), (6, "f"))
    build(enter(root))
    table = deltalake.DeltaTable(str(root / "lake"))
    for change in (
        lambda: table.delete("id = 1"),  # rewrites a file: no other row is added
        lambda: put(root, (1, "a"), (5, "e"), (7, "g")),
        lambda: table.delete("id = 6"),
        lambda: put(root, (6, "f"), (6, "f")),
        lambda: table.delete("id = 7"),
        lambda: table.delete("id = 6"),
        lambda: put(root, (6, "f")),
        lambda: table.optimize.compact(),
    ):
        change()
        table.update_incremental()
        if is_often:
            build(enter(root))
    builder = build(enter(root))
    assert values(builder) == expected
    assert copy_of(builder).rows == len(expected)


@pytest.mark.slow
@pytest.mark.proves("F18")
@pytest.mark.parametrize(("config", "first"), [(FOLLOW, []), (FILTER, [(2, "b")])])
def test_rows_stay_in_a_copy_with_predicates_of_another_release(
    enter: Make, make_project: Make, config: dict[str, str], first: list[tuple[int, str]]
) -> None:
    root = make_project({"m.sql": lake("id BIGINT, k STRING", **config) + V})
    put(root, (1, "a"), (2, "b"))
    build(enter(root))
    put(root, (3, "c"))
    builder = build(enter(root))
    copy = copy_of(builder)
    earlier = replace(copy, format=copy.format - 1, predicate="all")
    builder.ledger.copies.record(earlier, expected=copy, changes={})
    builder = build(enter(root))
    assert values(builder) == [*first, (3, "c")]
    put(root, (4, "d"))
    builder = build(enter(root))
    assert values(builder) == [*first, (3, "c"), (4, "d")]
    assert builder.ledger.copies.find(copy.copy_id) == copy_of(builder)


# ------------------------------------------------------------------------------------ no columns


@pytest.mark.slow
@pytest.mark.proves("F19")
def test_rows_of_a_table_without_a_key_are_counted_although_some_are_deleted(
    enter: Make, make_project: Make
) -> None:
    root = make_project({"m.sql": lake("id BIGINT, k STRING") + N})
    put(root, *((n, "a") for n in range(10)))
    builder = build(enter(root))
    copy = copy_of(builder)
    assert copy.columns == ("id",)
    # An earlier release would have kept no column.
    builder.ledger.copies.record(replace(copy, columns=()), expected=copy, changes={})
    put(root, (11, "b"))
    deltalake.DeltaTable(str(root / "lake")).delete("id < 3")
    builder = build(enter(root))
    assert values(builder) == [(8,)]
    assert copy_of(builder).columns == ("id",)


# -------------------------------------------------------------------------------- unmet needs


@pytest.mark.slow
@pytest.mark.proves("F23")
def test_needs_that_cannot_be_met_do_not_affect_other_environments(
    enter: Make, make_project: Make
) -> None:
    table = lake("id BIGINT PRIMARY KEY, k STRING")
    narrow = table + V.replace(";", " WHERE k = 'a';")
    root = make_project({"m.sql": narrow}, "[env.dev]\n[env.prod]\n")
    put(root, (1, "a"), (2, "a"), (3, "b"), (3, "b"))
    build(enter(root, "prod"))
    (root / "sources" / "m.sql").write_text(table + V.replace(";", " WHERE k IN ('a', 'b');"))
    with pytest.raises(StorageError, match=r"2 rows of id = 3, its primary key"):
        build(enter(root, "dev"))
    (root / "sources" / "m.sql").write_text(narrow)
    put(root, (4, "a"))
    builder = build(enter(root, "prod"))
    assert values(builder) == [(1, "a"), (2, "a"), (4, "a")]
    assert {*builder.ledger.copies.fetch_needs(copy_of(builder).copy_id)} == {"prod"}
