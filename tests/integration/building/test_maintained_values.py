"""Values that incremental builds must preserve: decimals, strings, NULLs, totals of no rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from maintained import WITHOUT_COST, build, integers
from pyarrow.parquet import read_table

from persist_assets.building import changed_tables, table_versions
from persist_assets.building.builder import Builder
from persist_assets.building.changed_tables import ChangedTables
from persist_assets.building.held_relations import HeldRelations, SharedWork
from persist_assets.building.key_files import pieces_of
from persist_assets.building.strategies import states
from persist_assets.building.table_versions import TableVersions
from persist_assets.storage.delta_tables import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.deltas import Probe

Enter = Callable[..., Builder]
Make = Callable[..., Path]

AMOUNTS = pa.schema(
    [("k", pa.int32()), ("d", pa.decimal128(38, 18)), ("p", pa.decimal128(18, 4)), ("t", "string")]
)
OF_AMOUNTS = {
    "digits": ("merge", "SELECT k, sum(d) AS s, count(*) AS n FROM z GROUP BY k"),
    "products": ("merge", "SELECT k, sum(p * p) AS s FROM z GROUP BY k"),
    "all_digits": ("merge", "SELECT sum(d) AS s, count(d) AS n FROM z"),
    "texts": ("keys", "SELECT k, sum(t) AS s FROM z GROUP BY k"),
    "sets": ("merge", "SELECT k, count(*) AS n FROM z WHERE k > 2 GROUP BY ROLLUP (k)"),
    "one_set": ("merge", "SELECT count(*) AS n FROM z WHERE k > 2 GROUP BY GROUPING SETS (())"),
}
"""By name, how a source is maintained, and its query."""


def amounts(*rows: tuple[int, str, str, str]) -> pa.Table:
    columns = [*zip(*rows, strict=True)]
    decimals = [[Decimal(value) for value in columns[n]] for n in (1, 2)]
    return pa.table([columns[0], *decimals, columns[3]], schema=AMOUNTS)


def views(queries: Mapping[str, tuple[str, str]]) -> str:
    """Return the statements of sources whose rows are updated whatever that costs."""
    statements = (f"CREATE VIEW {name} AS {query};\n" for name, (_, query) in queries.items())
    return "".join(WITHOUT_COST + statement for statement in statements)


def methods_of(queries: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return how each source is maintained."""
    return {name: method for name, (method, _) in queries.items()}


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_merged_aggregates_equal_recomputed_ones(make_project: Make, enter: Enter) -> None:
    text = "CREATE TABLE z (k INT, d DECIMAL(38,18), p DECIMAL(18,4), t STRING)"
    text += " USING delta LOCATION 'raw/z';\n"
    text += views(OF_AMOUNTS)
    root = make_project({"m.sql": text})
    table, tiny = root / "raw" / "z", "0.000000000000000001"
    write_deltalake(table, amounts((1, tiny, "0.0001", "1e300"), (1, "1", "1", "1")))
    assert {*build(enter(root), [*OF_AMOUNTS]).values()} == {"whole"}
    methods = methods_of(OF_AMOUNTS)
    more = amounts(
        (1, tiny, "0.0003", "3"), (1, "0.000000000000000005", "7", "3"), (3, "1", "1", "2")
    )
    write_deltalake(table, more, mode="append")
    assert build(enter(root), [*OF_AMOUNTS]) == methods
    DeltaTable(table).delete("t = '1e300'")
    assert build(enter(root), [*OF_AMOUNTS]) == methods
    DeltaTable(table).delete("k = 3")
    assert build(enter(root), ["sets", "one_set"]) == {"sets": "merge", "one_set": "merge"}


OF_PIVOTS = {
    "collected": (
        "merge",
        "SELECT * FROM (SELECT k, t, p FROM z)"
        " PIVOT (count(p) AS c, count(*) AS n, sum(p) AS s FOR t IN ('1' AS one, '2', '3', 'no'))",
    ),
    "texts": (
        "keys",
        "SELECT * FROM (SELECT k, t, p FROM z) PIVOT (count(*) AS n, max(t) AS m FOR k IN (1, 4))",
    ),
    "total": (
        "merge",
        "SELECT * FROM (SELECT k, p FROM z) PIVOT (count(p) AS c, sum(p) AS s FOR k IN (3, 9))",
    ),
    "rows": (
        "keys",
        "SELECT * FROM (SELECT k, d, p AS q, t FROM z) UNPIVOT (v FOR n IN (D, d AS `d d`))",
    ),
}
"""PIVOT and UNPIVOT, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T30")
def test_pivots_are_maintained(make_project: Make, enter: Enter) -> None:
    text = "CREATE TABLE z (k INT, d DECIMAL(38,18), p DECIMAL(18,4), t STRING)"
    root = make_project({"m.sql": f"{text} USING delta LOCATION 'raw/z';\n{views(OF_PIVOTS)}"})
    table = root / "raw" / "z"
    write_deltalake(table, amounts((1, "1", "1", "1"), (1, "1", "2", "2"), (2, "1", "3", "2")))
    assert {*build(enter(root), [*OF_PIVOTS]).values()} == {"whole"}
    more = amounts((1, "1", "4", "2"), (3, "1", "5", "3"), (4, "1", "6", "x"))
    write_deltalake(table, more, mode="append")
    grown = {**methods_of(OF_PIVOTS), "texts": "merge", "rows": "append"}
    assert build(enter(root), [*OF_PIVOTS]) == grown
    DeltaTable(table).delete("t = '2' OR k = 3")
    assert build(enter(root), [*OF_PIVOTS]) == methods_of(OF_PIVOTS)


OF_KEYS = {
    "firsts": ("keys", "SELECT k, max_by(v, v) AS v FROM z GROUP BY k"),
    "counts": ("merge", "SELECT k, l, count(*) AS n, sum(v) AS s FROM z GROUP BY k, l"),
    "named": ("merge", "SELECT y.n, sum(z.v) AS s FROM z JOIN y ON z.k <=> y.k GROUP BY y.n"),
    "pairs": ("keys", "SELECT z.k, z.v, y.n FROM z LEFT JOIN y ON z.k = y.k AND z.l = y.l"),
}
"""Queries whose keys may be NULL, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T8", "T9")
def test_rows_with_null_keys_are_updated_like_others(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys without NULL are matched by `=`, the others by `<=>`."""
    monkeypatch.setattr(states, "is_small", lambda *_: False)
    text = "CREATE TABLE z (k INT, l INT, v INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE y (k INT, l INT, n INT) USING delta LOCATION 'raw/y';\n"
    text += views(OF_KEYS)
    root = make_project({"m.sql": text})
    keys = {"k": [None, None, 1, 1, 2, 2], "l": [None, 1, None, 1, 2, None]}
    for table, value in (("z", "v"), ("y", "n")):
        write_deltalake(root / "raw" / table, integers(**keys, **{value: range(6)}))
    build(enter(root), [*OF_KEYS])
    methods = methods_of(OF_KEYS)
    for which in ("k = 2 AND l = 2", "k IS NULL", "k = 1 AND l IS NULL"):
        DeltaTable(root / "raw" / "z").update({"v": "v + 10"}, predicate=which)
        assert build(enter(root), [*OF_KEYS]) == methods
    DeltaTable(root / "raw" / "y").update({"n": "n + 10"}, predicate="k IS NULL OR l = 1")
    assert build(enter(root), ["named", "pairs"]) == {"named": "merge", "pairs": "keys"}


IN_Y = "IN (SELECT k FROM y WHERE n > 0)"
OF_MEMBERS = {
    "outside": ("keys", f"SELECT k, v FROM z WHERE k NOT {IN_Y}"),
    "inside": ("keys", f"SELECT k, v, k {IN_Y} AS i FROM z"),
    "either": ("append", f"SELECT k, v FROM z WHERE v = 9 OR k {IN_Y}"),
    "counted": ("merge", f"SELECT v, count(*) AS n FROM z WHERE k NOT {IN_Y} GROUP BY v"),
    "neither": ("keys", f"SELECT k, v FROM z WHERE v = 9 OR k NOT {IN_Y}"),
    "groups": ("merge", f"SELECT v, count(CASE WHEN k {IN_Y} THEN 1 END) AS n FROM z GROUP BY v"),
    "negated": ("whole", f"SELECT v, max(k NOT {IN_Y}) AS m FROM z GROUP BY v"),
    "alike": ("keys", "SELECT z.k, z.v, y.n FROM z LEFT JOIN y ON z.k <=> y.k AND y.n > 0"),
}
"""Queries that are NULL, and not FALSE, for some rows, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T22")
def test_rows_differ_if_a_null_comes_to_the_query_of_an_in(
    make_project: Make, enter: Enter
) -> None:
    text = "CREATE TABLE z (k INT, v INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE y (k INT, n INT) USING delta LOCATION 'raw/y';\n"
    root = make_project({"m.sql": text + views(OF_MEMBERS)})
    y, z = root / "raw" / "y", root / "raw" / "z"
    write_deltalake(z, integers(k=[1, 2, 3, None], v=[1, 2, 3, 4]))
    write_deltalake(y, integers(k=[1, 2], n=[0, 1]))
    build(enter(root), [*OF_MEMBERS])
    DeltaTable(y).update({"n": "1"}, predicate="k = 1")
    assert build(enter(root), [*OF_MEMBERS]) == methods_of(OF_MEMBERS)
    for change in (
        lambda: write_deltalake(y, integers(k=[None], n=[1]), mode="append"),
        lambda: DeltaTable(y).delete("k IS NOT NULL"),
        lambda: DeltaTable(y).delete(),
    ):
        change()
        methods = build(enter(root), [*OF_MEMBERS])
        assert [name for name, method in methods.items() if method == "whole"] == ["negated"]


OF_SHARED = {
    "latest": ("append", "SELECT k, v FROM z WHERE v = (SELECT max(v) FROM z)"),
    "sign": ("append", "SELECT k, (SELECT max(y) FROM x) AS y FROM z"),
    "sums": ("merge", "SELECT v, sum(k) AS s FROM z WHERE v <= (SELECT max(v) FROM z) GROUP BY v"),
    "flag": ("append", "SELECT k, (EXISTS (SELECT 1 FROM x WHERE y > 1)) = (v > 2) AS e FROM z"),
    "any": (
        "append",
        "SELECT k FROM z WHERE k > 8 OR EXISTS (SELECT 1 FROM x WHERE CAST(y AS STRING) = '0.0')",
    ),
}
"""Queries with a value that all rows share, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T24")
def test_tables_are_computed_in_full_if_a_value_that_all_rows_share_changes(
    make_project: Make, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    text = "CREATE TABLE z (k INT, v INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE x (y DOUBLE) USING delta LOCATION 'raw/x';\n"
    root = make_project({"m.sql": text + views(OF_SHARED)})
    x, z = root / "raw" / "x", root / "raw" / "z"
    write_deltalake(z, integers(k=range(8), v=[1, 2, 3, 4, 1, 2, 3, 4]))
    write_deltalake(x, pa.table({"y": [0.0]}))
    build(enter(root), [*OF_SHARED])

    def follow(*expected: str) -> None:
        assert [*build(enter(root), [*OF_SHARED]).values()] == [*expected]

    write_deltalake(z, integers(k=[9, 10], v=[4, 1]), mode="append")
    follow("append", "append", "merge", "append", "append")
    DeltaTable(z).delete("k IN (3, 4)")
    follow("keys", "keys", "merge", "keys", "keys")
    write_deltalake(x, pa.table({"y": [0.0, -1.0]}), mode="overwrite")
    follow("reuse", "stamp", "reuse", "stamp", "stamp")
    assert "is computed in full" not in caplog.text
    write_deltalake(x, pa.table({"y": [-0.0]}), mode="overwrite")
    follow("reuse", "whole", "reuse", "stamp", "whole")
    assert "`m/sign` is computed in full: a subquery has another value" in caplog.text
    write_deltalake(z, integers(k=[11], v=[5]), mode="append")
    follow("whole", "append", "whole", "append", "append")


OF_FIRST = {
    "best": ("keys", "SELECT k, y, t FROM z ORDER BY y DESC NULLS LAST, k LIMIT 4"),
    "named": ("keys", "SELECT z.k, y.n FROM z JOIN y ON z.k = y.k ORDER BY n, k LIMIT 3"),
}
"""Queries that end with ORDER BY … LIMIT, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T23")
def test_the_first_rows_follow_changes_while_enough_are_left(
    make_project: Make, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    text = "CREATE TABLE z (k INT, y DOUBLE, t STRING) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE y (k INT, n INT) USING delta LOCATION 'raw/y';\n"
    root = make_project({"m.sql": text + views(OF_FIRST)})
    y, z = root / "raw" / "y", root / "raw" / "z"

    def rows(*values: tuple[int, float | None, str]) -> pa.Table:
        k, y, t = zip(*values, strict=True)
        return pa.table({"k": pa.array(k, pa.int32()), "y": pa.array(y, pa.float64()), "t": t})

    write_deltalake(z, rows(*((n, n / 2, "abc"[n % 3]) for n in range(12))))
    write_deltalake(y, integers(k=range(12), n=[*range(12)]))
    build(enter(root), [*OF_FIRST])

    def follow(change: Callable[[], object], *expected: str) -> None:
        change()
        assert [*build(enter(root), [*OF_FIRST]).values()] == [*expected]

    more = rows((20, 0.0, "a"), (21, -0.0, "b"), (22, 9.5, "c"), (23, 99.0, "c"), (24, None, "c"))
    follow(lambda: write_deltalake(z, more, mode="append"), "keys", "stamp")
    # One row of the first ones goes, and one comes.
    other = {"y": "7.5"}
    follow(lambda: DeltaTable(z).update(other, predicate="k IN (2, 22)"), "keys", "stamp")
    # A row after the first ones goes.
    follow(lambda: DeltaTable(z).delete("k = 20"), "stamp", "stamp")
    follow(lambda: DeltaTable(y).update({"n": "-1"}, predicate="k = 5"), "reuse", "keys")
    assert "is computed in full" not in caplog.text
    # More of the first rows go than come, so others follow.
    follow(lambda: DeltaTable(z).delete("k IN (0, 23)"), "whole", "whole")
    assert "`m/best` is computed in full: too few of its first rows are left" in caplog.text
    follow(lambda: DeltaTable(z).delete("k NOT IN (2, 11)"), "whole", "whole")
    # A table with fewer rows than its LIMIT has all rows of the query.
    follow(lambda: DeltaTable(z).delete("k = 11"), "keys", "keys")
    follow(lambda: write_deltalake(z, more, mode="append"), "append", "stamp")


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_groups_are_merged_if_windows_do_not_follow_from_the_watermark(
    make_project: Make, enter: Enter
) -> None:
    text = "CREATE TABLE z (day DATE, v INT) USING delta LOCATION 'raw/z';\n"
    for name, key in (("months", "date_format(day, 'yyyy-MM')"), ("days", "day")):
        text += "--@ persist refresh=incremental watermark=k\n"
        text += f"CREATE VIEW {name} AS SELECT {key} AS k, sum(v) AS s FROM z GROUP BY 1;\n"
    root = make_project({"m.sql": text})

    def put(*rows: tuple[str, int]) -> None:
        days, values = zip(*rows, strict=True)
        typed = {"day": pa.array(days).cast(pa.date32()), "v": pa.array(values, pa.int32())}
        write_deltalake(root / "raw" / "z", pa.table(typed), mode="append")

    put(("2024-01-05", 1), ("2024-01-31", 2), ("2024-02-01", 3))
    build(enter(root), ["months", "days"])
    methods = {"months": "merge", "days": "windows"}
    put(("2024-02-02", 4), ("2024-03-01", 5))
    assert build(enter(root), ["months", "days"]) == methods
    DeltaTable(root / "raw" / "z").delete("v IN (1, 5)")
    builder = enter(root)
    assert build(builder, ["months", "days"]) == methods
    tables = builder.ledger.manifests.fetch("dev").values()
    assert sorted((len(t.states), t.watermark or "") for t in tables) == [
        (0, "2024-02-02"),
        (1, "2024-02"),
    ]


OF_FILES = {
    "joined": ("keys", "SELECT z.k, z.v, y.n, x.m FROM z JOIN y ON z.k = y.k JOIN x ON x.v = z.v"),
    "summed": (
        "merge",
        "SELECT m, sum(n) AS s FROM y JOIN z ON z.k = y.k JOIN x ON z.v = x.v GROUP BY m",
    ),
    "present": ("keys", "SELECT k, n FROM y WHERE EXISTS (SELECT 1 FROM z WHERE z.k = y.k)"),
}
"""Queries that search a table for keys, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T8", "T9")
def test_only_files_with_the_searched_keys_are_read(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File names may have blanks; unchanged tables are read by keys, too."""
    for name, value in (("_LARGE_BYTES", 0), ("_MANY_FILES", 2), ("_SMALL_BYTES", 0)):
        monkeypatch.setattr(changed_tables, name, value)
    searched: list[tuple[int, int]] = []
    search = ChangedTables._files_having

    def recorded(self: ChangedTables, source_id: str, files: tuple[str, ...], *more: Any) -> Any:
        having = search(self, source_id, files, *more)
        searched.append((len(files), len(having)))
        return having

    monkeypatch.setattr(ChangedTables, "_files_having", recorded)
    text = "CREATE TABLE z (k INT, v INT) USING delta LOCATION 'raw/z 1';\n"
    text += "CREATE TABLE y (k INT, n INT) USING delta LOCATION 'raw/y';\n"
    text += "CREATE TABLE x (v INT, m INT) USING delta LOCATION 'raw/x';\n"
    text += views(OF_FILES)
    root = make_project({"m.sql": text})

    def put(name: str, **columns: Sequence[int | None]) -> None:
        typed = {n: pa.array(values, pa.int32()) for n, values in columns.items()}
        write_deltalake(root / "raw" / name, pa.table(typed), mode="append")

    for k in range(6):
        put("z 1", k=[k, k, None], v=[k, 10, None])
        put("y", k=[k, None], n=[k % 2, None])
    put("x", v=[*range(6), 10, 10, None], m=[*range(6), 1, 2, None])
    methods = methods_of(OF_FILES)
    build(enter(root), [*OF_FILES])
    files = sorted(DeltaTable(root / "raw" / "z 1").file_uris())
    in_middle = read_table(unquote(files[3])).column("k")[0].as_py()
    key = 0 if in_middle == 1 else 1  # if the middle file has the key, the others are not searched
    put("z 1", k=[key], v=[2])
    DeltaTable(root / "raw" / "y").update({"n": "n + 1"}, predicate=f"k = {key}")
    assert build(enter(root), [*OF_FILES]) == methods
    assert (6, 1) in searched  # of the former files of `z`, one has the key
    searched.clear()
    for name in ("z 1", "y"):
        DeltaTable(root / "raw" / name).delete("k = 2")
    assert build(enter(root), [*OF_FILES]) == methods
    assert {having for n, having in searched if n > 1} == {0}  # the key is gone
    searched.clear()
    put("z 1", k=[3, 9], v=[1, 10])
    put("y", k=[9], n=[4])
    DeltaTable(root / "raw" / "y").update({"n": "n + 1"}, predicate="k = 5")
    assert build(enter(root), [*OF_FILES]) == methods
    assert all(having < n for n, having in searched if n > 1)


OF_RANGES = {
    "copied": ("keys", "SELECT k, day, v FROM z"),
    "paired": ("keys", "SELECT c.k, c.day, y.n FROM copied AS c JOIN y ON y.k = c.k"),
    "left": ("keys", "SELECT z.k, z.v, y.n FROM z LEFT JOIN y ON y.k = z.k"),
    "daily": (
        "keys",
        "SELECT day, max(v) AS m FROM z WHERE NOT EXISTS (SELECT 1 FROM y WHERE y.k = z.k)"
        " GROUP BY day",
    ),
    "present": ("keys", "SELECT k, n FROM y WHERE EXISTS (SELECT 1 FROM z WHERE z.k = y.k)"),
}
"""Queries over tables whose files are in the order of `k` and `day`, as `OF_AMOUNTS`."""


@pytest.mark.slow
@pytest.mark.proves("T26")
def test_keys_are_searched_only_in_files_whose_statistics_allow_them(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_versions, "_PRUNED_BYTES", 1)
    monkeypatch.setattr(changed_tables, "_SMALL_BYTES", 0)
    searched: list[tuple[str, int, int]] = []
    find = TableVersions.files_with_keys

    def recorded(self: TableVersions, source_id: str, files: tuple[str, ...], *more: Any) -> Any:
        some = find(self, source_id, files, *more)
        searched.append((source_id.partition("@")[0], len(files), len(some)))
        return some

    monkeypatch.setattr(TableVersions, "files_with_keys", recorded)
    text = "CREATE TABLE z (k INT, day DATE, v INT) USING delta LOCATION 'raw/z 1';\n"
    text += "CREATE TABLE y (k BIGINT, n INT) USING delta LOCATION 'raw/y';\n"
    root = make_project({"m.sql": text + views(OF_RANGES)})

    def put(name: str, first: int, *, null: bool = False) -> None:
        keys = [*range(first, first + 10), *([None] if null else [])]
        days = [None if k is None else date(2024, 1, 1 + k // 10) for k in keys]
        numbers = pa.array([1] * len(keys), pa.int32())
        columns = {"k": pa.array(keys, pa.int32() if name == "z 1" else pa.int64())}
        if name == "z 1":
            columns |= {"day": pa.array(days, pa.date32()), "v": numbers}
        else:
            columns |= {"n": numbers}
        write_deltalake(root / "raw" / name, pa.table(columns), mode="append")

    def follow() -> set[tuple[str, int, int]]:
        searched.clear()
        assert "whole" not in build(enter(root), [*OF_RANGES]).values()
        return {*searched}

    for first in range(0, 60, 10):
        put("z 1", first)
        put("y", first)
    build(enter(root), [*OF_RANGES])
    # One table grows at its end; the other one is read only there.
    put("z 1", 60)
    follow()
    put("y", 60)
    assert {n for _, n_files, n in follow() if n_files > 2} == {1}
    # Keys from both ends: the files between them are not read.
    DeltaTable(root / "raw" / "y").update({"n": "7"}, predicate="k IN (3, 64)")
    assert ("z", 7, 2) in follow()
    DeltaTable(root / "raw" / "z 1").delete("k IN (14, 15)")
    assert {n for name, _, n in follow() if name == "y"} <= {1, 2}
    # No file has the key; one of NULL may be in any file.
    put("y", 200)
    follow()
    put("y", 70, null=True)
    put("z 1", 70, null=True)
    assert any(n_files == n for _, n_files, n in follow())
    DeltaTable(root / "raw" / "z 1").update({"k": "k + 1"}, predicate="k > 40")
    follow()

    # A table's log and its readers name its files by the same paths.
    builder = enter(root)
    copied = next(s for s in builder.project.persisted if s.name == "copied")
    snapshot = builder.reader.reading([copied.source_id], builder.observer.published())[
        copied.source_id
    ]
    pieces = pieces_of(builder.reader, copied, snapshot, "k") or ()
    files = read_snapshot(builder.settings.table_root(snapshot.table), snapshot).files
    assert {p.path for p in pieces} == {*files}
    assert all("k" in p.spans for p in pieces if p.rows)


OF_ONE_KIND = {
    "i8": "TINYINT",
    "b": "BOOLEAN",
    "d": "DATE",
    "at": "TIMESTAMP",
    "l": "TIMESTAMP_NTZ",
}
OF_ONE_KIND |= {"n": "DECIMAL(38,18)", "m": "DECIMAL(9,2)", "s": "STRING", "y": "BINARY"}
"""Columns whose values are compared in memory."""


@pytest.mark.slow
@pytest.mark.proves("T8", "T18")
def test_changes_of_unused_columns_do_not_reach_incremental_builds(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of nine changed rows change in columns that the other queries read."""
    sizes: list[int] = []
    net = HeldRelations.net

    def recorded(self: HeldRelations, name: str, names: Sequence[str]) -> Any:
        result = net(self, name, names)
        sizes.extend([result.rows.n_rows] if result.rows else [])
        return result

    monkeypatch.setattr(HeldRelations, "net", recorded)
    columns = ", ".join(f"{name} {kind}" for name, kind in OF_ONE_KIND.items())
    text = f"CREATE TABLE z (k INT, {columns}, f DOUBLE, o INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE x (k INT, d DATE, v INT) USING delta LOCATION 'raw/x';\n"
    text += "CREATE TABLE w (k INT, v INT) USING delta LOCATION 'raw/w';\n"
    items = ", ".join(f"z.{name}" for name in OF_ONE_KIND)
    joined = "FROM z JOIN x ON z.d = x.d AND z.k = x.k"
    queries = {
        "all_kinds": ("keys", f"SELECT z.k, {items}, x.v {joined}"),
        "by_day": (
            "keys",
            "SELECT z.d, max_by(z.k, z.k) AS k FROM z JOIN x ON z.d = x.d GROUP BY z.d",
        ),
        "doubles": ("keys", f"SELECT z.k, z.f, x.v {joined}"),
        "others": ("keys", "SELECT k, o FROM z"),
        "tested": (
            "keys",
            "SELECT k, o FROM z WHERE EXISTS (SELECT 1 FROM x WHERE x.k = z.k AND x.d = z.d)"
            " AND EXISTS (SELECT 1 FROM w WHERE w.k = z.k)",
        ),
    }
    root = make_project({"m.sql": text + views(queries)})
    days = [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), None] * 4
    moments = [datetime(1500, 1, 1), datetime(3000, 12, 31, 23, 59, 59, 999_999), None] * 5
    ones = pa.array(range(15), pa.int32())
    values = {
        "i8": pa.array([*range(-7, 7), None], pa.int8()),
        "b": [True, False, None] * 5,
        "d": pa.array(days[:15], pa.date32()),
        "at": pa.array([m and m.replace(tzinfo=UTC) for m in moments], pa.timestamp("us", "UTC")),
        "l": pa.array(moments, pa.timestamp("us")),
        "n": pa.array(
            [Decimal("0.000000000000000001"), None, Decimal(-7)] * 5, AMOUNTS.field("d").type
        ),
        "m": pa.array([Decimal("1.25"), None, Decimal("-3.10")] * 5, pa.decimal128(9, 2)),
        "s": ["", "é", None] * 5,
        "y": pa.array([b"", b"\xff", None] * 5, pa.binary()),
        "f": pa.array([0.0, -0.0, None] * 5),
    }
    write_deltalake(root / "raw" / "z", pa.table({"k": ones, **values, "o": ones}))
    write_deltalake(root / "raw" / "x", pa.table({"k": ones, "d": values["d"], "v": ones}))
    write_deltalake(root / "raw" / "w", pa.table({"k": ones, "v": ones}))
    build(enter(root), [*queries])
    DeltaTable(root / "raw" / "z").update({"o": "o + 1"}, predicate="k < 9")
    DeltaTable(root / "raw" / "z").update({"f": "-f", "s": "concat(s, 'x')"}, predicate="k < 2")
    DeltaTable(root / "raw" / "x").update({"v": "v + 1"}, predicate="k IN (5, 6, 8)")
    assert build(enter(root), [*queries])["all_kinds"] == "keys"
    assert 4 in sizes  # two rows went, and two came
    assert 18 not in sizes
    sizes.clear()
    DeltaTable(root / "raw" / "z").delete("k IN (0, 1, 2, 3)")
    DeltaTable(root / "raw" / "z").update({"o": "o + 1"})
    for name in ("x", "w"):  # of the two keys of a row of `x`, one finds rows of `w`
        DeltaTable(root / "raw" / name).delete("k IN (5, 6, 8)")
    assert build(enter(root), [*queries]) == methods_of(queries)
    assert 4 in sizes


OF_TWO = {
    "wide": ("keys", "SELECT z.k, z.v, y.n, y.m FROM z JOIN y ON z.k = y.k"),
    "narrow": ("keys", "SELECT z.v, y.n FROM z JOIN y ON z.k = y.k"),
    "grouped": (
        "keys",
        "SELECT z.k, max_by(z.v, y.n) AS v FROM z JOIN y ON z.k = y.k GROUP BY z.k",
    ),
}
"""Queries that search the same tables; the first one for the most keys."""


@pytest.mark.slow
@pytest.mark.proves("T8", "T18")
def test_rows_that_were_found_once_are_not_searched_again(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[str, str]] = []
    search = ChangedTables._search

    def recorded(self: ChangedTables, version: str, probe: Probe, *more: Any) -> Any:
        searched.append((version, probe.table.partition("@")[0]))
        return search(self, version, probe, *more)

    users: set[int] = set()
    count = SharedWork.count

    def counted(self: SharedWork, name: str, spent: float, seconds: float, n_users: int) -> None:
        users.update([n_users] if name.startswith("probe") else [])
        count(self, name, spent, seconds, n_users)

    monkeypatch.setattr(SharedWork, "count", counted)
    monkeypatch.setattr(ChangedTables, "_search", recorded)
    text = "CREATE TABLE z (k INT, v INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE y (k INT, n INT, m INT) USING delta LOCATION 'raw/y';\n"
    root = make_project({"m.sql": text + views(OF_TWO)})
    ones = pa.array([*range(6), 2, 3], pa.int32())
    write_deltalake(root / "raw" / "z", pa.table({"k": ones, "v": ones}))
    write_deltalake(root / "raw" / "y", pa.table({"k": ones, "n": ones, "m": ones}))
    build(enter(root), [*OF_TWO])
    DeltaTable(root / "raw" / "y").update({"m": "m + 1"}, predicate="k < 4")
    DeltaTable(root / "raw" / "y").update({"n": "n + 1"}, predicate="k = 2")
    DeltaTable(root / "raw" / "z").delete("k = 2")
    assert build(enter(root), [*OF_TWO]) == methods_of(OF_TWO)
    assert sorted({*searched}) == sorted(searched)
    assert {table for _, table in searched} == {"y", "z"}
    assert users == {1, 2}  # two of the three search `y` for the same keys
    searched.clear()
    DeltaTable(root / "raw" / "y").update({"m": "m + 1"}, predicate="k < 4")
    DeltaTable(root / "raw" / "y").update({"n": "n + 1"}, predicate="k = 3")
    DeltaTable(root / "raw" / "z").delete("k = 3 AND v = 3")
    assert build(enter(root), [*OF_TWO][::-1]) == methods_of(OF_TWO)
    assert len(searched) > len({*searched})  # the first query has the fewest keys


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_comparing_large_tables_detects_nulls_that_move_between_columns(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's hash function skips NULLs, so it cannot detect these changes."""
    monkeypatch.setattr(changed_tables, "_MUCH_BYTES", 0)
    text = (
        "CREATE TABLE y (k INT, a STRING, b STRING, l ARRAY<INT>) USING delta LOCATION 'raw/y';\n"
    )
    text += f"{WITHOUT_COST}CREATE VIEW q AS SELECT k, a, b, l IS NULL AS is_null FROM y;\n"
    root = make_project({"m.sql": text})
    rows = {"k": pa.array(range(9), pa.int32()), "a": [*"abcdefghi"]}
    empty = {"b": pa.nulls(9, pa.string()), "l": pa.array([[]] * 9, pa.list_(pa.int32()))}
    write_deltalake(root / "raw" / "y", pa.table(rows | empty))
    build(enter(root), ["q"])
    DeltaTable(root / "raw" / "y").update({"b": "a", "a": "null"}, predicate="k < 3")
    DeltaTable(root / "raw" / "y").update({"l": "null"}, predicate="k = 5")
    assert build(enter(root), ["q"]) == {"q": "keys"}


@pytest.mark.slow
@pytest.mark.proves("T8", "T10")
def test_the_method_depends_on_how_a_query_reads_the_changed_table(
    make_project: Make, enter: Enter
) -> None:
    text = "CREATE TABLE z (k INT, a INT) USING delta LOCATION 'raw/z';\n"
    text += "CREATE TABLE y (k INT, v INT) USING delta LOCATION 'raw/y';\n"
    text += "CREATE VIEW j AS SELECT z.k, z.a, y.v FROM z LEFT JOIN y ON z.k = y.k;\n"
    text += f"{WITHOUT_COST}CREATE VIEW q AS SELECT z.k, y.v FROM z LEFT JOIN y ON z.k = y.k;\n"
    ranks = "rank() OVER (PARTITION BY k ORDER BY a) AS h"
    value = "(SELECT max(v) FROM y WHERE y.k = z.k) AS v"
    text += f"{WITHOUT_COST}CREATE VIEW beside AS SELECT a, {ranks}, {value} FROM z;\n"
    text += f"{WITHOUT_COST}CREATE VIEW highest AS SELECT a, (SELECT max(v) FROM y) AS v FROM z;\n"
    text += f"{WITHOUT_COST}CREATE VIEW unused AS SELECT a, h FROM (SELECT a, {ranks}, {value} FROM z);\n"
    function = (
        "from persist_assets import table\nfrom pyspark.sql import functions as F\n\n\n"
        "@table(by='k', refresh='incremental')\n"
        "def totals(j):\n    return j.groupBy('k').agg(F.sum('v').alias('s'))\n"
    )
    root = make_project({"m.sql": text, "f.py": function})
    ints = [pa.array(values, pa.int32()) for values in ([1, 1, 2, 3], [1, 2, 3, 4], [1, 2], [5, 6])]
    write_deltalake(root / "raw" / "z", pa.table({"k": ints[0], "a": ints[1]}))
    write_deltalake(root / "raw" / "y", pa.table({"k": ints[2], "v": ints[3]}))
    names = ["q", "beside", "highest", "unused", "totals"]
    build(enter(root), names)
    DeltaTable(root / "raw" / "y").update({"v": "v + 10"}, predicate="k = 1")
    builder = enter(root)
    methods = ["keys", "keys", "whole", "stamp", "keys"]
    assert build(builder, names) == dict(zip(names, methods, strict=True))
    totals = next(s for s in builder.project.persisted if s.name == "totals")
    assert sorted(map(tuple, builder.read(totals).collect())) == [(1, 30), (2, 6), (3, None)]
