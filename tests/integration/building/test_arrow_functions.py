"""Python functions that Spark's workers call with the rows of a key, or with batches."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.core.errors import BuildError
from persist_assets.engine.arrow_functions import _fitted, _require_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

RAW = (
    "CREATE TABLE t (k STRING, n BIGINT, d DECIMAL(20, 2), at TIMESTAMP, l ARRAY<STRING>)"
    " USING parquet LOCATION 'raw/t';\n"
)
HEAD = """
from collections.abc import Iterator
from typing import Annotated, Any
import pandas as pd
import polars as pl
import pyarrow as pa
from persist_assets import model, table

TIMES = 2
"""
BIG = 2**60 + 1
NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
ROWS: list[tuple[Any, ...]] = [
    ("a", BIG, Decimal("1.10"), NOW, ["x", None]),
    ("a", None, Decimal("123456789012345678.90"), None, None),
    ("b", 3, None, NOW, []),
    (None, 4, None, None, None),
]
COLUMNS = '"k string, n bigint, d decimal(20,2), at timestamp, l array<string>"'
SAME = f"Annotated[Any, {COLUMNS}]"


def write(root: Path, rows: list[tuple[Any, ...]], name: str = "0") -> None:
    fields = [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("d", pa.decimal128(20, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.string())),
    ]
    path = root / "raw" / "t" / f"part-{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, kind) for c, (_, kind) in zip(columns, fields, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, [n for n, _ in fields]), path)


@pytest.fixture
def start(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[[str], Builder]:
    """Return a function that makes a builder for a file of functions over the rows."""

    def builder(text: str, settings: str = "", rows: list[tuple[Any, ...]] = ROWS) -> Builder:
        root = make_project({"raw.sql": RAW, "d.py": HEAD + text}, settings)
        write(root, rows)
        return enter(root)

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def built(builder: Builder, name: str) -> list[Any]:
    source = named(builder, name)
    assert builder.build(source).action == "built"
    return sorted((tuple(r) for r in builder.read(source).collect()), key=repr)


FRAMES = {
    "polars": "pl.DataFrame",
    "pandas": "pd.DataFrame",
    "pyarrow": "pa.Table",
}


@pytest.mark.slow
@pytest.mark.proves("V21")
def test_values_pass_through_arrow_functions_unchanged(start: Callable[..., Builder]) -> None:
    """Integers with NULLs, decimals, times, lists: through each library, by key and in batches."""
    text = ""
    for library, kind in FRAMES.items():
        batch = kind.replace("Table", "RecordBatch")
        text += f'@table(by="k")\ndef keyed_{library}(t: {kind}) -> {SAME}:\n    return t\n\n'
        text += (
            f"@table\ndef batched_{library}(t: Iterator[{batch}]) -> {SAME}:\n    yield from t\n\n"
        )
        text += (
            f'@table(by="k")\ndef both_{library}(t: Iterator[{batch}]) -> {SAME}:\n'
            "    yield from t\n\n"
        )
    builder = start(text)
    before = sorted((tuple(r) for r in builder.read(named(builder, "t")).collect()), key=repr)
    for library in FRAMES:
        for how in ("keyed", "batched", "both"):
            assert built(builder, f"{how}_{library}") == before, (how, library)


@pytest.mark.slow
@pytest.mark.proves("V21")
def test_a_call_gets_all_rows_of_a_key_and_only_changed_keys_are_recomputed(
    start: Callable[..., Builder], enter: Callable[..., Builder]
) -> None:
    builder = start(
        '@table(by="k", refresh="incremental")\n'
        'def sums(t: Annotated[pl.DataFrame, "n bigint, k string"]) -> '
        'Annotated[pl.DataFrame, "k string, rows int, total bigint, seen string"]:\n'
        '    assert t.columns == ["n", "k"]\n'
        "    key = t.select(pl.col('k').min(), rows=pl.len(), total=pl.col('n').sum() * TIMES)\n"
        "    return key.with_columns(seen=pl.lit(str(t['k'].n_unique())))\n",
    )
    assert built(builder, "sums") == [
        ("a", 2, 2 * BIG, "1"),
        ("b", 1, 6, "1"),
        (None, 1, 8, "1"),
    ]
    root = builder.settings.root
    write(root, [("b", 10, None, None, None), ("c", 7, None, None, None)], "1")
    builder = enter(root)
    (step,) = builder.plan([named(builder, "sums").source_id]).steps
    assert step.maintenance == "keys", (step.why, step.reasons)
    assert built(builder, "sums") == [
        ("a", 2, 2 * BIG, "1"),
        ("b", 2, 26, "1"),
        ("c", 1, 14, "1"),
        (None, 1, 8, "1"),
    ]


PAIR = (
    '@table(by="k", refresh="incremental", inputs={"before": "u"})\n'
    "def compared(t: pl.DataFrame, before: pd.DataFrame) -> "
    'Annotated[Any, "k string, rows int, total bigint, former bigint"]:\n'
    '    keys = [*t["k"].to_list(), *before["k"].tolist()]\n'
    "    assert len({None if k is pd.NA else k for k in keys}) == 1\n"
    "    former = sum(before['m'].dropna().tolist())\n"
    "    total = t['n'].sum()\n"
    '    return pl.DataFrame({"k": [None if keys[0] is pd.NA else keys[0]], "rows": [len(keys)],'
    ' "total": [total], "former": [former]}, schema_overrides={"k": pl.String})\n\n'
)


@pytest.mark.slow
@pytest.mark.proves("V39")
def test_a_call_gets_the_rows_of_a_key_of_two_inputs(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    """Keys of one input only, NULL, two libraries; then changes of one input and of both."""
    raw = RAW + "CREATE TABLE u (m BIGINT, k STRING) USING parquet LOCATION 'raw/u';\n"
    same = (
        '@table(by="k", inputs={"left": "u", "right": "u"})\n'
        'def twice(left: pa.Table, right: pa.Table) -> Annotated[Any, "m bigint, k string"]:\n'
        "    return pa.concat_tables([left, right])\n"
    )
    untyped = (
        "@table\ndef loose(u):\n    return u.selectExpr('m', 'm AS k')\n\n"
        '@table(by="k")\n'
        'def unlike(t: pa.Table, loose: pa.Table) -> Annotated[Any, "k string"]:\n'
        "    return t.select(['k'])\n"
    )
    root = make_project({"raw.sql": raw, "d.py": HEAD + PAIR + same + untyped})
    write(root, ROWS)

    def write_former(name: str, *rows: tuple[int, str | None]) -> None:
        path = root / "raw" / "u" / f"part-{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ms, ks = zip(*rows, strict=True)
        pq.write_table(pa.table({"m": pa.array(ms, pa.int64()), "k": ks}), path)

    write_former("0", (1, "a"), (2, "a"), (4, "z"), (5, None))
    builder = enter(root)
    assert built(builder, "compared") == [
        ("a", 4, BIG, 3),
        ("b", 1, 3, 0),
        ("z", 1, 0, 4),
        (None, 2, 4, 5),
    ]
    twice = [(1, "a"), (1, "a"), (2, "a"), (2, "a"), (4, "z"), (4, "z"), (5, None), (5, None)]
    assert built(builder, "twice") == sorted(twice, key=repr)
    builder.build(named(builder, "loose"))
    with pytest.raises(
        BuildError, match="the types of `k` in its inputs differ: string and bigint"
    ):
        builder.build(named(builder, "unlike"))
    write_former("1", (7, "b"))
    builder = enter(root)
    (step,) = builder.plan([named(builder, "compared").source_id]).steps
    assert step.maintenance == "keys", (step.why, step.reasons)
    after = [("a", 4, BIG, 3), ("b", 2, 3, 7), ("z", 1, 0, 4), (None, 2, 4, 5)]
    assert built(builder, "compared") == after
    write_former("2", (8, "y"))
    write(root, [("z", 9, None, None, None)], "1")
    after = [*after[:2], ("y", 1, 0, 8), ("z", 2, 9, 4), after[-1]]
    assert built(enter(root), "compared") == after


@pytest.mark.slow
@pytest.mark.proves("V21")
def test_a_batch_has_at_most_sparks_maximum_number_of_rows(start: Callable[..., Builder]) -> None:
    builder = start(
        '@table\ndef sizes(t: Iterator[pl.DataFrame]) -> Annotated[Any, "n bigint"]:\n'
        "    for batch in t:\n"
        '        yield pl.DataFrame({"n": [len(batch)]})\n'
        '@table(by="k")\ndef of_key(t: Iterator[pl.DataFrame]) -> Annotated[Any, "n bigint, k string"]:\n'
        "    for batch in t:\n"
        '        yield pl.DataFrame({"k": ["x"], "n": [len(batch)]})\n',
        rows=[("x", n, None, None, None) for n in range(25_000)],
    )
    sizes = [n for (n,) in built(builder, "sizes")]
    assert (sum(sizes), max(sizes)) == (25_000, 10_000)
    sizes = [n for n, _ in built(builder, "of_key")]
    assert (sum(sizes), max(sizes)) == (25_000, 10_000)


BAD = {
    "raises": ("return t['x']", "ColumnNotFoundError", 11),
    "no frame": ("return int(1)", "it returned builtins.int, not a frame", None),
    "another column": (
        "return t.rename({'n': 'm'})",
        "it returned the columns k, m, but the declared columns are k, n",
        None,
    ),
    "another type": ("return t.cast({'n': pl.String})", "column n is", None),
    "a value that does not fit": (
        "return t.with_columns(n=pl.lit(0.5))",
        "column n is double and declared as int64",
        None,
    ),
    "another key": (
        "return t.with_columns(k=pl.col('k').str.to_uppercase())",
        "it returned the key k = ",
        None,
    ),
    "a time without a zone": (
        "return t.with_columns(n=pl.lit(1), k=pl.datetime(2024, 1, 1))",
        "column k is timestamp",
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
@pytest.mark.proves("V21")
def test_a_failing_function_publishes_nothing(case: str, start: Callable[..., Builder]) -> None:
    body, message, line = BAD[case]
    builder = start(
        '@table(by="k")\ndef f(t: Annotated[pl.DataFrame, "k string, n bigint"])'
        f' -> Annotated[Any, "k string, n bigint"]:\n    {body}\n'
    )
    source = named(builder, "f")
    with pytest.raises(BuildError) as caught:
        builder.build(source)
    assert message in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.path == "sources/d.py"
    assert line is None or caught.value.location.line == len(HEAD.splitlines()) + 3
    assert builder.ledger.manifests.find_snapshot("dev", source.build_id) is None


@pytest.mark.proves("V21")
def test_a_result_has_the_key_of_its_call() -> None:
    rows = pa.table({"K": [float("nan"), float("nan")], "n": [1, 2]})
    _require_key(pa.table({"k": [float("nan")]}), rows, ["k"])
    _require_key(pa.table({"k": [0.0, -0.0]}), pa.table({"k": [-0.0]}), ["k"])
    none = pa.table({"k": pa.array([None], pa.string())})
    _require_key(none, none, ["k"])
    for result in (none, pa.table({"k": ["a", "b"]})):
        with pytest.raises(ValueError, match="it returned the key k"):
            _require_key(result, pa.table({"k": ["a"]}), ["k"])


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.int64())])
LOSSES = {
    "a digit": ([0.15], pa.decimal128(3, 1), "would be rounded"),
    "a range": ([1e300], pa.float32(), "would be rounded"),
    "half a float": ([0.1], pa.float32(), "would be rounded"),
    "half a decimal": ([Decimal("0.1234567890123456789")], pa.float64(), "would be rounded"),
    "a digit in a list": ([[0.15], None], pa.list_(pa.decimal128(3, 1)), "would be rounded"),
    "a field": ([{"a": 1}], STRUCT, "convert it"),
    "the name of a field": ([{"a": 1, "c": 2}], STRUCT, "convert it"),
    "a field too many": ([{"a": 1, "b": 2, "c": 3}], STRUCT, "convert it"),
    "a field in a list": ([[{"a": 1}]], pa.list_(STRUCT), "convert it"),
    "texts in lists": ([["1"]], pa.list_(pa.int32()), "convert it"),
    "numbers in lists": ([[1]], pa.list_(pa.string()), "convert it"),
    "a zone in a list": (
        [[datetime(2024, 1, 1)]],
        pa.list_(pa.timestamp("us", "UTC")),
        "convert it",
    ),
}


@pytest.mark.proves("V21")
def test_only_lossless_conversions_to_declared_types_are_accepted() -> None:
    for case, (values, kind, message) in LOSSES.items():
        table, fields = pa.table({"x": values}), pa.schema([("x", kind)])
        with pytest.raises((TypeError, ValueError), match=message):
            pytest.fail(f"{case}: {_fitted(table, fields)}")
    decimal, wide = pa.decimal128(3, 1), pa.map_(pa.binary(), pa.int64())
    for values, kind, same in (
        (pa.array([0.5, float("inf"), None]), pa.float32(), [0.5, float("inf"), None]),
        (pa.array([0.1, None]), decimal, [Decimal("0.1"), None]),
        (pa.array([Decimal("1.10"), None]), pa.float64(), [1.1, None]),
        (pa.array([[0.5], None, []]), pa.list_(decimal), [[Decimal("0.5")], None, []]),
        (pa.array([{"b": 1, "a": 2}, None]), STRUCT, [{"a": 2, "b": 1}, None]),
        (pa.array([[], [None]]), pa.list_(pa.int32()), [[], [None]]),
        (pa.array([[(b"k", 1)]], wide), pa.map_(pa.binary(), pa.int32()), [[(b"k", 1)]]),
    ):
        fitted = _fitted(pa.table({"x": values}), pa.schema([("x", kind)]))
        assert fitted["x"].type == kind
        assert fitted["x"].to_pylist() == same
    nan = pa.table({"x": [float("nan")]})
    assert repr(_fitted(nan, pa.schema([("x", pa.float32())]))["x"].to_pylist()) == "[nan]"


@pytest.mark.slow
@pytest.mark.proves("V22")
def test_columns_known_only_at_build_time_are_checked_then(start: Callable[..., Builder]) -> None:
    builder = start(
        "@model\ndef m(t):\n    return t.select('n', 'k')\n"
        '@table\ndef good(m: Annotated[Any, "k string"]):\n    return m\n'
        '@table\ndef bad(m: Annotated[Any, "n int"]):\n    return m\n'
        '@table\ndef none(m: Annotated[Any, "d int"]):\n    return m\n'
        '@model\ndef promised(t) -> Annotated[Any, "n int"]:\n    return t.select("n")\n'
        "@table\ndef reader(promised):\n    return promised\n"
    )
    assert built(builder, "good") == [("a",), ("a",), ("b",), (None,)]
    for name, words in {
        "bad": "the input `m` of `bad` has another type of `n`: annotated is int",
        "none": "the input `m` of `none` has no column `d`: annotated is int",
        "reader": "the result of `promised` has another type of `n`: annotated is int",
    }.items():
        with pytest.raises(BuildError) as caught:
            builder.build(named(builder, name))
        assert words in str(caught.value)
