"""Spark compares the rows of two tables: by key, as multisets, and of snapshots."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from conftest import draws

from persist_assets.core.errors import SettingsError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.data_diff import (
    ChangedRow,
    NotCompared,
    RowsDiffer,
    Uncompared,
    compare_multisets,
    compare_rows,
    compare_snapshots,
)
from persist_assets.engine.spark import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAN = float("nan")


@pytest.fixture
def frame(spark: Any) -> Callable[..., Any]:
    """Return a function that makes a frame of rows."""
    return lambda schema, *rows: spark.createDataFrame(list(rows), schema)


def differ(*arguments: Any, **options: Any) -> RowsDiffer:
    found = compare_rows(*arguments, **options)
    assert isinstance(found, RowsDiffer), found
    return found


@pytest.mark.slow
def test_a_keyed_diff_counts_added_removed_and_changed_rows(frame: Callable[..., Any]) -> None:
    schema = "id INT, a STRING, b INT"
    before = frame(schema, (1, "x", 1), (2, "y", 2), (3, "z", None), (4, None, 4))
    after = frame(schema, (1, "x", 1), (2, "Y", 20), (3, "z", 3), (5, "v", 5))
    assert differ(before, after, key=["ID"]) == RowsDiffer(
        key=("id",),
        added=1,
        removed=1,
        changed=2,
        columns={"a": 1, "b": 2},
        added_rows=({"id": 5, "a": "v", "b": 5},),
        removed_rows=({"id": 4, "a": None, "b": 4},),
        changed_rows=(
            ChangedRow({"id": 2}, {"a": "y", "b": 2}, {"a": "Y", "b": 20}),
            ChangedRow({"id": 3}, {"b": None}, {"b": 3}),
        ),
    )
    some = differ(before, after, key=["id"], sample=1)
    assert (some.changed, len(some.changed_rows)) == (2, 1)
    none = differ(before, after, key=["id"], sample=0)
    assert (none.changed, none.changed_rows, none.added_rows) == (2, (), ())


def test_a_diff_without_a_key_compares_rows_as_a_multiset(frame: Callable[..., Any]) -> None:
    before = frame("a INT, b STRING", (1, "x"), (1, "x"), (1, "x"), (2, None), (3, "z"))
    after = frame(
        "a INT, b STRING", (1, "x"), (2, None), (2, None), (4, None), (4, None), (4, None)
    )
    found = differ(before, after, sample=3)
    assert (found.added, found.removed, found.changed) == (4, 3, None)
    assert found.added_rows == (
        {"a": 2, "b": None}, {"a": 4, "b": None}, {"a": 4, "b": None}
    )  # fmt: skip
    assert found.removed_rows == ({"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 3, "b": "z"})


@pytest.mark.slow
@pytest.mark.parametrize("key", [[], ["id"]])
def test_equal_tables_and_empty_tables_have_no_differences(
    frame: Callable[..., Any], key: list[str]
) -> None:
    schema = "id INT, m MAP<STRING, DOUBLE>, d DOUBLE, s STRUCT<a: FLOAT, b: ARRAY<INT>>"
    rows = [
        (1, {"a": NAN, "b": 0.0}, NAN, (1.5, [1, None])),
        (2, None, None, None),
        (3, {}, math.inf, (None, None)),
        (4, {"x": None}, -0.0, (NAN, [])),
    ]
    turned = [(i, m and dict(reversed(m.items())), d, s) for i, m, d, s in reversed(rows)]
    nothing = RowsDiffer(
        key=tuple(key), changed=0 if key else None, columns=dict.fromkeys("mds", 0) if key else {}
    )
    assert differ(frame(schema, *rows), frame(schema, *turned), key=key) == nothing
    assert differ(frame(schema), frame(schema), key=key) == nothing
    all_new = differ(frame(schema), frame(schema, *rows), key=key)
    assert (all_new.added, all_new.removed, len(all_new.added_rows)) == (4, 0, 4)
    assert all_new.added_rows[2] == {"id": 3, "m": {}, "d": math.inf, "s": (None, None)}
    all_gone = differ(frame(schema, *rows), frame(schema), key=key, sample=1)
    assert (all_gone.added, all_gone.removed, len(all_gone.removed_rows)) == (0, 4, 1)


PAIRS: list[tuple[str, Any, Any, bool]] = [
    ("DOUBLE", 0.1 + 0.2, 0.3, False),
    ("DOUBLE", NAN, NAN, True),
    ("DOUBLE", NAN, None, False),
    ("DOUBLE", 0.0, -0.0, False),
    ("FLOAT", 0.1, 0.10000001, False),
    ("ARRAY<DOUBLE>", [NAN, None], [NAN, None], True),
    ("ARRAY<DOUBLE>", [NAN, None], [None, NAN], False),
    ("ARRAY<INT>", [], None, False),
    ("ARRAY<INT>", [None], [], False),
    ("MAP<STRING, INT>", {"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ("MAP<STRING, INT>", {"a": None}, {}, False),
    ("MAP<DOUBLE, MAP<INT, INT>>", {1.0: {1: 2, 3: 4}}, {1.0: {3: 4, 1: 2}}, True),
    ("ARRAY<MAP<INT, DOUBLE>>", [{1: NAN}], [{1: NAN}], True),
    ("STRUCT<a: INT, b: MAP<INT, INT>>", (None, None), None, False),
    ("STRUCT<`a b`: DOUBLE>", (0.0,), (-0.0,), False),
    ("STRUCT<`a b`: DOUBLE>", (NAN,), (NAN,), True),
    ("STRING", "a", "a ", False),
    ("BINARY", b"\0", b"", False),
    ("DECIMAL(38, 18)", None, None, True),
]


@pytest.mark.slow
def test_values_are_equal_only_if_they_are_indistinguishable(frame: Callable[..., Any]) -> None:
    names = [f"v`w. {n}" for n in range(len(PAIRS))]
    schema = ", ".join(
        f"`{name.replace('`', '``')}` {pair[0]}" for name, pair in zip(names, PAIRS, strict=True)
    )
    one, other = ((1, *(pair[n] for pair in PAIRS)) for n in (1, 2))
    found = differ(frame(f"id INT, {schema}", one), frame(f"id INT, {schema}", other), key=["id"])
    assert [found.columns[n] == 0 for n in names] == [same for *_, same in PAIRS]
    (row,) = found.changed_rows
    assert list(row.before) == list(row.after)
    assert list(row.before) == [n for n, p in zip(names, PAIRS, strict=True) if not p[3]]
    # Equal values make equal rows and equal keys.
    alike = [n for n, (*_, same) in enumerate(PAIRS) if same]
    some = ", ".join(f"c{n} {PAIRS[n][0]}" for n in alike)
    one, other = ([tuple(PAIRS[n][side] for n in alike)] for side in (1, 2))
    nothing = differ(frame(some, *one), frame(some, *other))
    assert (nothing.added, nothing.removed) == (0, 0)
    keyed = differ(frame(some, *one), frame(some, *other), key=[f"c{n}" for n in alike])
    assert (keyed.added, keyed.removed, keyed.changed) == (0, 0, 0)


def test_the_order_of_map_entries_is_ignored(spark: Any) -> None:
    one = spark.sql("SELECT 1 AS id, map('a', map(1, 2, 3, 4), 'b', NULL) AS m")
    other = spark.sql("SELECT 1 AS id, map('b', NULL, 'a', map(3, 4, 1, 2)) AS m")
    assert differ(one, other, key=["id"]).columns == {"m": 0}
    assert differ(one, other).added == 0
    assert differ(one, other, key=["m"]).changed == 0


@pytest.mark.slow
def test_a_key_shared_by_several_rows_is_rejected_with_an_example(
    frame: Callable[..., Any],
) -> None:
    before = frame("a INT, b STRING, c INT", (1, "x", 1), (2, None, 1), (2, None, 2))
    after = frame("a INT, b STRING, c INT", (1, "x", 1), (1, "x", 1))
    with pytest.raises(SettingsError) as caught:
        compare_rows(before, after, key=["a", "b"], names=("prod", "dev"), sample=0)
    message = "`a`, `b` is not a key: 2 rows of prod have a = 2, b = NULL"
    assert caught.value.message == message
    with pytest.raises(SettingsError, match="2 rows of dev have c = 1"):
        compare_rows(before.where("c = 2"), after, key=["c"], names=("prod", "dev"))
    assert "--key" in (caught.value.hint or "")
    one_null = frame("a INT, b STRING, c INT", (None, "x", 1))
    assert differ(one_null, frame("a INT, b STRING, c INT", (None, "x", 2)), key=["a"]).changed == 1


@pytest.mark.slow
def test_missing_columns_and_differing_types_are_listed_as_uncompared(
    frame: Callable[..., Any],
) -> None:
    before = frame("id INT, old INT, n INT, same INT", (1, 1, 1, 1))
    after = frame("ID INT, new INT, n BIGINT, same INT", (1, 9, 9, 2))
    found = differ(before, after, key=["id"])
    assert found.uncompared == (
        Uncompared("new", None, "int"),
        Uncompared("n", "int", "bigint"),
        Uncompared("old", "int", None),
    )
    assert (found.key, found.columns, found.changed) == (("ID",), {"same": 1}, 1)
    for key in ("n", "old", "nothing"):
        lacking = compare_rows(before, after, key=[key])
        assert lacking == NotCompared(
            f"no column `{key}` with the same type on both sides", lacks_key=True
        )
    only = differ(frame("id INT, b INT", (1, 1)), frame("id INT, c INT", (2, 1)), key=["id"])
    assert (only.added, only.removed, only.changed) == (1, 1, 0)
    assert compare_rows(frame("a INT", (1,)), frame("b INT", (1,))) == NotCompared(
        "the tables have no columns in common"
    )


def random_rows(rng: random.Random) -> list[tuple[Any, ...]]:
    doubles = (None, NAN, 0.0, -0.0, 1.5)
    return [
        (
            rng.choice((None, *range(30))),
            rng.choice((None, "", "x")),
            rng.choice(doubles),
            rng.choice((None, {}, {"a": rng.choice(doubles)}, {"a": 1.0, "b": None})),
            rng.choice((None, [], [(1, rng.choice(doubles))], [None])),
        )
        for _ in range(rng.randrange(25))
    ]


def plain(value: Any) -> Any:
    """Return a hashable form of a value, which Python compares as the diff compares the value."""
    match value:
        case float():
            return str(value)
        case dict():
            return ("map", frozenset((k, plain(v)) for k, v in value.items()))
        case list() | tuple():
            return ("all", tuple(plain(v) for v in value))
        case _:
            return value


@pytest.mark.parametrize("seed", range(draws(2, 4)))
def test_spark_diffs_equal_diffs_computed_in_python(frame: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    schema = "k INT, s STRING, d DOUBLE, m MAP<STRING, DOUBLE>, a ARRAY<STRUCT<x: INT, y: DOUBLE>>"
    old, new = random_rows(rng), random_rows(rng)
    new += [row for row in old if rng.random() < 0.6]
    found = differ(frame(schema, *old), frame(schema, *new), sample=0)
    counted = [Counter(plain(row) for row in rows) for rows in (old, new)]
    assert found.added == (counted[1] - counted[0]).total()
    assert found.removed == (counted[0] - counted[1]).total()

    old_by, new_by = ({row[0]: row for row in rows} for rows in (old, new))
    both = old_by.keys() & new_by.keys()
    names = ("s", "d", "m", "a")
    columns = {
        name: sum(plain(old_by[k][n]) != plain(new_by[k][n]) for k in both)
        for n, name in enumerate(names, 1)
    }
    found = differ(frame(schema, *old_by.values()), frame(schema, *new_by.values()), key=["k"])
    assert (found.added, found.removed) == (len(new_by) - len(both), len(old_by) - len(both))
    assert found.changed == sum(plain(old_by[k]) != plain(new_by[k]) for k in both)
    assert found.columns == columns
    for row in found.changed_rows:
        k = row.key["k"]
        for n, name in enumerate(names, 1):
            assert (name in row.before) == (plain(old_by[k][n]) != plain(new_by[k][n]))


def test_snapshots_with_equal_content_are_compared_without_spark(tmp_path: Path) -> None:
    def snapshot(content: str, name: str = "a") -> Snapshot:
        now = datetime.now(UTC)
        return Snapshot("u", "s", "b", "t", 0, (), content, 1, 1, now, (Column(name, "int"),))

    def load(snapshot: Snapshot) -> Any:
        pytest.fail("this needs no Spark")

    one = snapshot("c")
    nothing = RowsDiffer(before=1, after=1)
    assert compare_snapshots(load, one, snapshot("c")) == nothing
    keyed = compare_snapshots(load, one, snapshot("c"), key=["A"])
    assert keyed == replace(nothing, key=("A",), changed=0)
    assert compare_snapshots(load, one, snapshot("c"), key=["z"]) == NotCompared(
        "no column `z` with the same type on both sides", lacks_key=True
    )
    assert compare_snapshots(load, one, None, names=("prod", "dev")) == NotCompared(
        "no table in dev"
    )
    engine = SparkEngine(load_settings(tmp_path), lambda: pytest.fail("nor does this"))
    gone = compare_snapshots(engine.load_snapshot, one, snapshot("other"))
    assert isinstance(gone, NotCompared)
    assert "is gone" in gone.reason


def multisets(*arguments: Any, **options: Any) -> RowsDiffer:
    difference = compare_multisets(*arguments, **options)
    assert isinstance(difference, RowsDiffer), difference
    return difference


@pytest.mark.slow
def test_multiset_comparison_handles_nulls_nan_duplicates_and_nullability(
    frame: Callable[..., Any], spark: Any
) -> None:
    rows = [(None, NAN), (None, NAN), ("a", None), ("b", 0.5)]
    one, other = frame("k STRING, x DOUBLE", *rows), frame("x DOUBLE, k STRING", *(
        (x, k) for k, x in reversed(rows)
    ))  # fmt: skip
    assert multisets(one, other) == RowsDiffer()
    fewer = frame("k STRING, x DOUBLE", *rows[1:], rows[2])
    difference = multisets(one, fewer, key=["k"])
    assert (difference.removed, difference.added, difference.rounding, difference.columns) == (
        1,
        1,
        None,
        {},
    )
    maybe = spark.sql("SELECT array(IF(rand() < 2, 1, NULL)) AS a")
    never = spark.sql("SELECT array(1) AS a")
    assert maybe.schema != never.schema
    assert multisets(maybe, never) == RowsDiffer()


@pytest.mark.slow
def test_a_keyed_multiset_diff_counts_differences_by_column(frame: Callable[..., Any]) -> None:
    schema = "id INT, a STRING, b INT, m MAP<STRING, INT>"
    before = frame(schema, (1, "x", 1, {}), (2, "y", 2, None), (3, "z", 3, {}), (4, "v", 4, {}))
    after = frame(schema, (1, "X", 1, {}), (2, "y", None, {}), (3, "z", 3, {}), (5, "v", 4, {}))
    difference = multisets(before, after, key=["ID"])
    assert (difference.removed, difference.added) == (3, 3)
    assert difference.columns == {"a": 1, "b": 1, "m": 1}
    assert multisets(before, after, key=["id", "none"]).columns == {}
    # If a key is not unique, rows cannot be paired.
    twice = frame(schema, (1, "x", 1, {}), (1, "y", 1, {}))
    assert (
        multisets(twice, frame(schema, (1, "z", 1, {}), (1, "v", 1, {})), key=["id"]).columns == {}
    )


@pytest.mark.slow
def test_rounding_is_distinguished_from_other_differences(frame: Callable[..., Any]) -> None:
    schema, near = "k STRING, x DOUBLE, y DOUBLE", 1 + 1e-13
    before = frame(schema, ("a", 1.0, 5.0), ("a", 1.0, 7.0), ("b", None, NAN), ("b", 0.0, 3e300))
    rows = [("a", near, 5.0), ("a", 1.0, 7.0), ("b", None, NAN), ("b", -0.0, 3e300 * near)]
    difference = multisets(before, frame(schema, *rows))
    assert difference.rounding == pytest.approx(1e-13, rel=0.01)
    assert difference.columns == {}
    others: list[tuple[Any, ...]] = [
        ("c", near, 5.0),  # another column differs
        ("a", 1 + 2e-9, 5.0),  # differs by too much
        ("a", NAN, 5.0),
        ("a", None, 5.0),
        ("a", math.inf, 5.0),
    ]
    for row in others:
        assert multisets(before, frame(schema, row, *rows[1:])).rounding is None, row
    assert multisets(before, frame(schema, *rows, rows[0])).rounding is None
    only_numbers = (frame("x DOUBLE", (1.0,), (2.0,)), frame("x DOUBLE", (2.0,), (near,)))
    assert multisets(*only_numbers).rounding == pytest.approx(1e-13, rel=0.01)
