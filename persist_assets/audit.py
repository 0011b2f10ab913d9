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

    row = F.xxhash64(*(_hash(F.col(quote(f.name)), f.dataType) for f in frame.schema.fields))
    wanted = [
        F.count(F.lit(1)).alias(_ROWS),
        # XOR forgets rows that occur an even number of times, the sums do not; their parts are
        # of 24 bits, so that they do not overflow.
        F.bit_xor(row).alias(_XOR),
        F.sum(F.shiftrightunsigned(row, 40)).alias(_HIGH),
        F.sum(F.shiftrightunsigned(row, 16).bitwiseAND(F.lit(0xFFFFFF))).alias(_LOW),
        *(_failures(c).alias(c.name) for c in checks if c.on_rows),
    ]
    if time_column:
        wanted.append(F.max(F.col(quote(time_column))).cast("string").alias(_WATERMARK))
    return wanted


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


def _hash(value: SparkColumn, kind: Any) -> SparkColumn:
    """Return a hash of a value that tells apart what `xxhash64` alone does not.

    Spark skips NULLs, so that (1, NULL) and (NULL, 1) hash alike; it takes no maps, and the two
    zeros of floating point for one.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.StructType():
            parts = [_hash(value.getField(f.name), f.dataType) for f in kind.fields]
            made = F.xxhash64(F.lit(len(parts)), *parts)
        case T.ArrayType():
            made = F.xxhash64(
                F.size(value), F.transform(value, lambda e: _hash(e, kind.elementType))
            )
        case T.MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda e: F.xxhash64(
                    _hash(e["key"], kind.keyType), _hash(e["value"], kind.valueType)
                ),
            )
            made = F.xxhash64(F.size(value), F.array_sort(entries))
        case T.FloatType() | T.DoubleType():
            sign = F.when(value == 0, value.cast("string"))
            made = F.xxhash64(value, F.coalesce(sign, F.lit("")))
        case _:
            made = F.xxhash64(value)
    return F.when(value.isNull(), F.lit(0x5E_ED_0F_A_11)).otherwise(made)


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
