"""What is measured and checked of rows, in the pass that writes them or afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.dialect import quote
from persist_assets.model import CheckResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.column import Column as SparkColumn

    from persist_assets.model import Check


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of rows while they were written.

    Attributes
    ----------
    content
        Digest of the rows, whatever their order.
    watermark
        The greatest value of the time column, as text, or None.
    """

    rows: int
    content: str
    watermark: str | None
    checks: tuple[CheckResult, ...]


_ROWS, _XOR, _HIGH, _LOW, _WATERMARK = (
    f"persist.{m}" for m in ("rows", "xor", "high", "low", "watermark")
)


def measures(
    frame: DataFrame, checks: Sequence[Check], time_column: str | None
) -> list[SparkColumn]:
    """Return the aggregates that are observed while rows are written."""
    from pyspark.sql import functions as F

    # Text, for an expression that is made of calls costs a conversation with the JVM for each.
    hashes = ", ".join(_hash(quote(f.name), f.dataType) for f in frame.schema.fields)
    row = f"xxhash64({hashes})"
    wanted = {
        _ROWS: "count(1)",
        # XOR forgets rows that occur an even number of times, the sums do not; their parts are
        # of 24 bits, so that they do not overflow.
        _XOR: f"bit_xor({row})",
        _HIGH: f"sum(shiftrightunsigned({row}, 40))",
        _LOW: f"sum(shiftrightunsigned({row}, 16) & {0xFFFFFF})",
    }
    if time_column:
        wanted[_WATERMARK] = f"CAST(max({quote(time_column)}) AS STRING)"
    failures = [_failures(c).alias(c.name) for c in checks if c.on_rows]
    return [*(F.expr(f"{text} AS {quote(name)}") for name, text in wanted.items()), *failures]


def read_measures(seen: Mapping[str, Any], checks: Sequence[Check]) -> Measured:
    """Return what was observed; checks that need a look at all rows at once are not among it."""
    parts = [f"{seen[name] or 0:x}" for name in (_XOR, _HIGH, _LOW)]
    return Measured(
        rows=seen[_ROWS],
        content=":".join((str(seen[_ROWS]), *parts)),
        watermark=seen.get(_WATERMARK),
        checks=tuple(_result(c, seen[c.name]) for c in checks if c.on_rows),
    )


def audit(frame: DataFrame, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """Check rows that are there already."""
    on_rows = [c for c in checks if c.on_rows]
    results: list[CheckResult] = []
    if on_rows:
        seen = frame.agg(*(_failures(c).alias(c.name) for c in on_rows)).collect()[0].asDict()
        results += [_result(c, seen[c.name]) for c in on_rows]
    results += [_result(c, _shared_keys(frame, c)) for c in checks if not c.on_rows]
    return tuple(results)


def _hash(value: str, kind: Any, depth: int = 0) -> str:
    """Return a hash of a value that tells apart what `xxhash64` alone does not, as SQL.

    Spark skips NULLs, so that (1, NULL) and (NULL, 1) hash alike; it takes no maps, and the two
    zeros of floating point for one.
    """
    from pyspark.sql import types as T

    element = f"e{depth}"
    match kind:
        case T.StructType():
            parts = [_hash(f"{value}.{quote(f.name)}", f.dataType, depth) for f in kind.fields]
            made = ", ".join([str(len(parts)), *parts])
        case T.ArrayType():
            below = _hash(element, kind.elementType, depth + 1)
            made = f"size({value}), transform({value}, {element} -> {below})"
        case T.MapType():
            key = _hash(f"{element}.key", kind.keyType, depth + 1)
            below = _hash(f"{element}.value", kind.valueType, depth + 1)
            entries = f"transform(map_entries({value}), {element} -> xxhash64({key}, {below}))"
            made = f"size({value}), array_sort({entries})"
        case T.FloatType() | T.DoubleType():
            made = f"{value}, CASE WHEN {value} = 0 THEN CAST({value} AS STRING) ELSE '' END"
        case _:
            made = value
    return f"CASE WHEN {value} IS NULL THEN {0x5E_ED_0F_A_11}L ELSE xxhash64({made}) END"


def _failures(check: Check) -> SparkColumn:
    """Return how many rows fail a check on single rows."""
    from pyspark.sql import functions as F

    match check.kind:
        case "not_null":
            failed = F.col(quote(check.columns[0])).isNull()
        case "accepted_values":
            failed = ~F.col(quote(check.columns[0])).isin(list(check.values))
        case _:
            assert check.expression is not None
            failed = ~F.expr(f"({check.expression})")
    return F.count_if(F.coalesce(failed, F.lit(False)))


def _result(check: Check, failed: int | None) -> CheckResult:
    n = int(failed or 0)
    return CheckResult(check.name, n == 0, check.blocking, n, check.definition)


def _shared_keys(frame: DataFrame, check: Check) -> int:
    """Count the rows that share a key with another row; keys that hold a NULL are not compared."""
    from pyspark.sql import functions as F

    keys = [F.col(quote(c)) for c in check.columns]
    known = frame
    for key in keys:
        known = known.where(key.isNotNull())
    # Keys that are equal for Spark but not to the eye (1.0 and 1) cannot be in one column.
    shared = known.groupBy(*keys).agg(F.count(F.lit(1)).alias("n")).where("n > 1")
    return int(shared.agg(F.sum("n")).collect()[0][0] or 0)
