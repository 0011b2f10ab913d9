"""Metrics and checks of rows, computed in the pass that writes them or afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.core.contracts import breaches
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.core.model.checks import CheckResult, FailedPartition
from persist_assets.core.model.columns import Column
from persist_assets.core.time_values import ledger_text, spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.column import Column as SparkColumn

    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of rows, measured while they were written.

    Attributes
    ----------
    content
        A digest of the rows that does not depend on their order.
    watermark
        The greatest value of the time column, as text, or None.
    timeless
        The number of computed rows with NULL in the time column.
    gone
        The metrics of the rows that these replace, if measured in the same pass.
    """

    rows: int
    content: str
    watermark: str | None
    checks: tuple[CheckResult, ...]
    timeless: int = 0
    gone: Measured | None = None


_ROWS, _XOR, _HIGH, _LOW, _WATERMARK, _TIMELESS = (
    f"persist.{m}" for m in ("rows", "xor", "high", "low", "watermark", "timeless")
)


def measures(
    frame: DataFrame,
    checks: Sequence[Check],
    time_column: str | None,
    time_type: str | None,
    where: str | None = None,
) -> list[SparkColumn]:
    """Return the aggregates that are observed while rows are written.

    Parameters
    ----------
    where
        An SQL condition: only rows for which it holds count. Checks then are checks of single rows.
    """
    from pyspark.sql import functions as F

    # Text, because an expression built of calls costs a round trip to the JVM for each.
    hashes = ", ".join(_hash(quote(f.name), f.dataType) for f in frame.schema.fields)
    row = f"xxhash64({hashes})"
    if where is not None:
        row = f"CASE WHEN {where} THEN {row} END"
    aggregates = {
        _ROWS: "count(1)" if where is None else _count(where),
        # XOR forgets rows that occur an even number of times, the sums do not; their parts are
        # of 24 bits, so that they do not overflow.
        _XOR: f"bit_xor({row})",
        _HIGH: f"sum(shiftrightunsigned({row}, 40))",
        _LOW: f"sum(shiftrightunsigned({row}, 16) & {0xFFFFFF})",
    }
    if time_column and time_type:
        aggregates[_WATERMARK] = spelled(f"max({quote(time_column)})", time_type)
        aggregates[_TIMELESS] = _count(f"{quote(time_column)} IS NULL")
    failures = [
        (_aggregate_of(c) if where is None else _count_failing(F.expr(where) & _fails(c))).alias(
            c.name
        )
        for c in checks
        if c.in_pass
    ]
    return [*(F.expr(f"{text} AS {quote(name)}") for name, text in aggregates.items()), *failures]


def _count(condition: str) -> str:
    """Return an SQL expression that counts rows.

    Spark turns `count_if` into `nullif`, and that into a column for which it copies each row twice.
    """
    return f"count(CASE WHEN {condition} THEN 1 END)"


def _count_failing(failed: SparkColumn) -> SparkColumn:
    """Return the same for a condition that is a column."""
    from pyspark.sql import functions as F

    return F.count(F.when(failed, 1))


def type_in(frame: DataFrame, column: str) -> str:
    """Return Spark's name of the type of a frame's column, whose name is case-insensitive.

    Raises
    ------
    BuildError
        The column does not exist.
    """
    for field in frame.schema.fields:
        if field.name.lower() == column.lower():
            return field.dataType.simpleString()
    hint = f"known columns: {', '.join(frame.columns)}"
    raise BuildError(f"the watermark column `{column}` does not exist", hint=hint)


def read_measures(
    values: Mapping[str, Any], checks: Sequence[Check], time_type: str | None = None
) -> Measured:
    """Return the observed metrics, without checks that need all rows at once.

    Parameters
    ----------
    time_type
        The type of the time column.
    """
    watermark = ledger_text(values.get(_WATERMARK), time_type)
    return Measured(
        rows=values[_ROWS],
        content=_content_text(values[_ROWS], (values[name] or 0 for name in (_XOR, _HIGH, _LOW))),
        watermark=watermark,
        checks=tuple(_result(c, values[c.name]) for c in checks if c.in_pass),
        timeless=values.get(_TIMELESS) or 0,
    )


def of_snapshot(snapshot: Snapshot, checks: tuple[CheckResult, ...]) -> Measured:
    """Return the metrics of a snapshot's rows."""
    return Measured(snapshot.rows, snapshot.content, snapshot.watermark, checks)


def combined(base: Measured, removed: Measured | None, added: Measured) -> Measured:
    """Return the metrics of `base` without some rows and with others.

    The watermark and `timeless` are those of the added rows, and so are the checks.
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
    return Measured(
        rows, _content_text(rows, parts), added.watermark, tuple(checks), added.timeless
    )


def _content(measured: Measured) -> tuple[int, int, int, int]:
    rows, *parts = measured.content.split(":")
    xor, high, low = (int(part, 16) for part in parts)
    return int(rows), xor, high, low


def _content_text(rows: int, parts: Iterable[int]) -> str:
    return ":".join((str(rows), *(f"{part:x}" for part in parts)))


def audit(frame: DataFrame, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """Run those checks of existing rows that need nothing but the rows."""
    results: list[CheckResult] = []
    in_pass = [c for c in checks if c.in_pass]
    if in_pass:
        values = frame.agg(*(_aggregate_of(c).alias(c.name) for c in in_pass)).collect()[0].asDict()
        results += [_result(c, values[c.name]) for c in in_pass]
    for check in checks:
        if check.kind == "columns":
            results.append(promised(check, columns_in(frame)))
        elif not check.in_pass:
            results.append(_result(check, _n_sharing(frame, check)))
    return tuple(results)


def columns_in(frame: DataFrame) -> list[Column]:
    """Return the columns of a frame, with Spark's names of their types."""
    return [Column(f.name, f.dataType.simpleString()) for f in frame.schema.fields]


def promised(check: Check, columns: Sequence[Column]) -> CheckResult:
    """Return the result of a contract for rows with these columns."""
    wrong = breaches(check, columns)
    problems = "; ".join(" ".join(line.split()) for line in wrong) or None
    return CheckResult(check.name, not wrong, check.blocking, 0, check.definition, problems)


def row_digests(frame: DataFrame, columns: Sequence[str]) -> tuple[str, str]:
    """Return the SQL of two independent hashes of columns, which are two where values differ."""
    kinds = {f.name: f.dataType for f in frame.schema.fields}
    hashes = [_hash(quote(name), kinds[name]) for name in columns]
    return f"xxhash64({', '.join(hashes)})", f"xxhash64({', '.join(reversed(hashes))}, 1)"


def _hash(value: str, kind: Any, depth: int = 0) -> str:
    """Return the SQL of a hash that distinguishes values for which `xxhash64` is the same.

    Spark's hash skips NULLs, so that (1, NULL) and (NULL, 1) have one hash; it accepts no maps, and
    treats the two floating-point zeros as one.
    """
    from pyspark.sql import types as T

    element = f"e{depth}"
    match kind:
        case T.StructType():
            parts = [_hash(f"{value}.{quote(f.name)}", f.dataType, depth) for f in kind.fields]
            arguments = ", ".join([str(len(parts)), *parts])
        case T.ArrayType():
            below = _hash(element, kind.elementType, depth + 1)
            arguments = f"size({value}), transform({value}, {element} -> {below})"
        case T.MapType():
            key = _hash(f"{element}.key", kind.keyType, depth + 1)
            below = _hash(f"{element}.value", kind.valueType, depth + 1)
            entries = f"transform(map_entries({value}), {element} -> xxhash64({key}, {below}))"
            arguments = f"size({value}), array_sort({entries})"
        case T.FloatType() | T.DoubleType():
            arguments = f"{value}, CASE WHEN {value} = 0 THEN CAST({value} AS STRING) ELSE '' END"
        case T.StringType() if kind.collation != "UTF8_BINARY":
            arguments = f"CAST({value} AS BINARY)"  # texts that are equal and differ
        case _:
            arguments = value
    return f"CASE WHEN {value} IS NULL THEN {0x5E_ED_0F_A_11}L ELSE xxhash64({arguments}) END"


def _aggregate_of(check: Check) -> SparkColumn:
    """Return the aggregate from which the result of a check follows."""
    from pyspark.sql import functions as F

    match check.kind:
        case "row_count":
            return F.count(F.lit(1))
        case "freshness":
            return F.expr(greatest(check))
        case _:
            return _count_failing(_fails(check))


def greatest(check: Check) -> str:
    """Return the aggregate for the greatest value of a freshness check, in microseconds."""
    # Dates begin at midnight, and times without a zone are of the session's.
    return f"unix_micros(max(CAST({quote(check.columns[0])} AS TIMESTAMP)))"


def _fails(check: Check) -> SparkColumn:
    """Return whether a row fails a check on single rows."""
    from pyspark.sql import functions as F

    match check.kind:
        case "not_null":
            failed = F.col(quote(check.columns[0])).isNull()
        case "accepted_values":
            failed = ~F.col(quote(check.columns[0])).isin(list(check.values))
        case "range":
            value = F.col(quote(check.columns[0]))
            failed = F.lit(False)
            if check.least is not None:
                failed = failed | (value < F.lit(check.least))
            if check.most is not None:
                failed = failed | (value > F.lit(check.most))
        case _:
            assert check.expression is not None
            failed = ~F.expr(f"({check.expression})")
    return F.coalesce(failed, F.lit(False))


def _result(check: Check, value: int | None) -> CheckResult:
    n = int(value or 0)
    result = CheckResult(check.name, n == 0, check.blocking, n, check.definition)
    match check.kind:
        case "row_count":
            return replace(result, passed=fits(check, n), failed_rows=0, found=f"{n} rows")
        case "freshness":
            basis = None if value is None else str(value)
            return aged(check, replace(result, failed_rows=0, basis=basis))
        case _:
            return result


def fits(check: Check, n: int) -> bool:
    """Whether a number of rows passes a check of it."""
    low = 0 if check.least is None else check.least
    return low <= n and (check.most is None or n <= check.most)  # pyright: ignore[reportOperatorIssue]


def aged(check: Check, result: CheckResult) -> CheckResult:
    """Return the current result of a freshness check that ran on the same rows before."""
    assert check.since is not None
    if check.per_partition:
        if result.basis is None:  # it does not depend on the clock
            return result
        latest: dict[str, int | None] = json.loads(result.basis)
        late = tuple(
            FailedPartition(key, found=observation)
            for key, micros in latest.items()
            for fresh, observation in (aged_to(micros, check.since),)
            if not fresh
        )
        return replace(result, passed=not late, partitions=late)
    fresh, observation = aged_to(None if result.basis is None else int(result.basis), check.since)
    return replace(result, passed=fresh, found=observation)


def aged_to(micros: int | None, since: datetime) -> tuple[bool, str]:
    """Return whether a greatest value is no older than an instant, and a description of it.

    Parameters
    ----------
    micros
        The value in microseconds since 1970; None if there is none.
    """
    if micros is None:
        return False, "no value"
    value = _EPOCH + timedelta(microseconds=micros)
    return value >= since, value.isoformat(sep=" ", timespec="seconds")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def failing(frame: DataFrame, check: Check) -> DataFrame | None:
    """Return the rows that fail a check of rows or keys; None for other checks."""
    if check.on_rows:
        return frame.where(_fails(check))
    return sharing(frame, check.columns) if check.kind == "unique" else None


def shared_keys(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the keys of several rows, with their numbers; keys with a NULL are not compared."""
    from pyspark.sql import functions as F

    keys = [F.col(quote(c)) for c in columns]
    rows = frame
    for key in keys:
        rows = rows.where(key.isNotNull())
    # A column cannot have keys that Spark finds equal and that look different (1.0 and 1).
    n = F.col(quote(SHARED))
    return rows.groupBy(*keys).agg(F.count(F.lit(1)).alias(SHARED)).where(n > 1)


SHARED = _ROWS
"""The column of `shared_keys` with the number; no column of a table has this name."""


def _n_sharing(frame: DataFrame, check: Check) -> int:
    """Count the rows that share a key with another row."""
    from pyspark.sql import functions as F

    n = F.col(quote(SHARED))
    return int(shared_keys(frame, check.columns).agg(F.sum(n)).collect()[0][0] or 0)


def sharing(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows that share a key with another row, next to each other."""
    from pyspark.sql import functions as F

    names = [f"persist.key{n}" for n, _ in enumerate(columns)]
    keys = shared_keys(frame, columns).select(*map(quote, columns)).toDF(*names)
    pairs = zip(columns, names, strict=True)
    same = F.expr(" AND ".join(f"{quote(c)} = {quote(n)}" for c, n in pairs))
    return frame.join(keys, same, "left_semi").orderBy(*(quote(c) for c in columns))


def n_true(conditions: Sequence[str], before: int = 0) -> str:
    """Return an SQL expression that counts the true conditions; each implies the previous one.

    It is a binary search: it evaluates few of the conditions.

    Examples
    --------
    >>> n_true(["a >= 1", "a >= 2"])
    'IF(a >= 2, 2, IF(a >= 1, 1, 0))'
    """
    if not conditions:
        return str(before)
    middle = len(conditions) // 2
    more = n_true(conditions[middle + 1 :], before + middle + 1)
    return f"IF({conditions[middle]}, {more}, {n_true(conditions[:middle], before)})"
