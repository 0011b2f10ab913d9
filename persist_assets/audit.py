"""What is measured and checked of rows, in the pass that writes them or afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from persist_assets.dialect import quote
from persist_assets.errors import BuildError
from persist_assets.model import CheckResult
from persist_assets.watermarks import from_spark, spelled, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.column import Column as SparkColumn

    from persist_assets.model import Check, Snapshot


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
    frame: DataFrame,
    checks: Sequence[Check],
    time_column: str | None,
    time_type: str | None,
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
    if time_column and time_type:
        wanted[_WATERMARK] = spelled(f"max({quote(time_column)})", time_type)
    failures = [_failures(c).alias(c.name) for c in checks if c.on_rows]
    return [*(F.expr(f"{text} AS {quote(name)}") for name, text in wanted.items()), *failures]


def type_in(frame: DataFrame, column: str) -> str:
    """Return Spark's name of the type of a column of a frame, whatever its case.

    Raises
    ------
    BuildError
        There is no such column.
    """
    for field in frame.schema.fields:
        if field.name.lower() == column.lower():
            return field.dataType.simpleString()
    hint = f"it has {', '.join(frame.columns)}"
    raise BuildError(f"there is no column `{column}` to take the watermark of", hint=hint)


def read_measures(
    seen: Mapping[str, Any], checks: Sequence[Check], time_type: str | None = None
) -> Measured:
    """Return what was observed; checks that need a look at all rows at once are not among it.

    Parameters
    ----------
    time_type
        Of the time column.
    """
    watermark = seen.get(_WATERMARK)
    if watermark is not None and time_type is not None:
        value = from_spark(watermark, time_type)
        watermark = watermark if value is None else to_text(value)
    return Measured(
        rows=seen[_ROWS],
        content=_told(seen[_ROWS], (seen[name] or 0 for name in (_XOR, _HIGH, _LOW))),
        watermark=watermark,
        checks=tuple(_result(c, seen[c.name]) for c in checks if c.on_rows),
    )


def of_snapshot(snapshot: Snapshot, checks: tuple[CheckResult, ...]) -> Measured:
    """Return what was measured of the rows of a snapshot."""
    return Measured(snapshot.rows, snapshot.content, snapshot.watermark, checks)


def combined(base: Measured, removed: Measured | None, added: Measured) -> Measured:
    """Return what `base` would measure without some of its rows and with others.

    Its watermark is that of the rows added, and the checks are those of `added`.
    """
    rows, xor, high, low = _content(base)
    minus = _content(removed) if removed else (0, 0, 0, 0)
    plus = _content(added)
    rows += plus[0] - minus[0]
    parts = (xor ^ minus[1] ^ plus[1], high + plus[2] - minus[2], low + plus[3] - minus[3])
    failed = {r.name: r.failed_rows for r in base.checks}
    gone = {r.name: r.failed_rows for r in removed.checks} if removed else {}
    checks = [
        replace(r, failed_rows=n, passed=n == 0)
        for r in added.checks
        for n in (failed.get(r.name, 0) - gone.get(r.name, 0) + r.failed_rows,)
    ]
    return Measured(rows, _told(rows, parts), added.watermark, tuple(checks))


def _content(measured: Measured) -> tuple[int, int, int, int]:
    rows, *parts = measured.content.split(":")
    xor, high, low = (int(part, 16) for part in parts)
    return int(rows), xor, high, low


def _told(rows: int, parts: Iterable[int]) -> str:
    return ":".join((str(rows), *(f"{part:x}" for part in parts)))


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
    n = F.col(quote(_ROWS))  # a name that no column of a table has
    shared = known.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS)).where(n > 1)
    return int(shared.agg(F.sum(n)).collect()[0][0] or 0)
