"""Results of checks by partition: failing rows per partition, and checks of whole partitions.

    rows that fail ─► counted in each partition
    rows of computed partitions ─► each checked ─┬─► all partitions that fail
    earlier results of the other partitions ─────┘

The invariant: the results are those of checking all partitions again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.model.checks import CheckResult, FailedPartition
from persist_assets.core.partitions import condition, key_of, units, window_end
from persist_assets.engine.row_metrics import (
    SHARED,
    aged,
    aged_to,
    columns_in,
    fits,
    greatest,
    shared_keys,
    sharing,
)
from persist_assets.engine.session import translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from persist_assets.core.model.annotations import Partitioning
    from persist_assets.core.model.checks import Check


@dataclass(frozen=True, slots=True)
class Parted:
    """The partitions of a table whose rows are checked.

    Attributes
    ----------
    keys
        All its partitions, in order.
    computed
        The partitions whose rows differ from those of the table that it continues, in order.
    previous
        The results of that table's checks, by name.
    load
        Returns the rows of the computed partitions, and maybe others.
    zone
        The session's time zone.
    """

    partitioning: Partitioning
    keys: tuple[str, ...]
    computed: tuple[str, ...]
    previous: Mapping[str, CheckResult]
    load: Callable[[], DataFrame]
    zone: str

    def previous_result(self, check: Check) -> CheckResult | None:
        """Return a check's result for the continued table; None: all partitions are checked."""
        result = self.previous.get(check.name)
        if result is None or result.definition != check.definition or check.fickle:
            return None
        return result


Ask = Callable[["DataFrame"], "DataFrame | bool"]
"""Returns whether rows pass, or the rows that fail."""


def failing_in(bad: DataFrame, parted: Parted) -> tuple[FailedPartition, ...]:
    """Return the partitions of failing rows, in order; empty if the rows do not show them.

    Raises
    ------
    BuildError
        Computing the rows failed.
    """
    names = {c.name.lower() for c in columns_in(bad)}
    if not all(d.column.lower() in names for d in parted.partitioning.dimensions):
        return ()
    with translated("finding the partitions of rows that fail"):
        counts = _by_partition(*_keyed(bad, parted), parted, "count(1)")
    return tuple(FailedPartition(key, counts[key]) for key in parted.keys if key in counts)


def judged(check: Check, parted: Parted, rows: Callable[[], DataFrame], ask: Ask) -> CheckResult:
    """Return the result of a check that is evaluated for each partition.

    Parameters
    ----------
    rows
        Returns all rows of the table, for partitions without an earlier result.
    ask
        The function of a check that calls one.

    Raises
    ------
    BuildError
        Computing the rows failed, or the function did.
    """
    earlier = parted.previous_result(check)
    if earlier is None:
        parted = replace(parted, computed=parted.keys, load=rows)
    stay = {*parted.keys}.difference(parted.computed)
    result = CheckResult(check.name, True, check.blocking, 0, check.definition)
    with translated(f"checking {check.definition}"):
        if check.kind == "freshness" and parted.partitioning.time is None:
            before: dict[str, int | None] = json.loads(earlier.basis or "{}") if earlier else {}
            anew = _greatest(check, parted)
            values = before | {key: anew.get(key) for key in parted.computed}
            ages = {key: values[key] for key in parted.keys}
            return aged(check, replace(result, basis=json.dumps(ages)))
        failed = {p.key: p for p in earlier.partitions if p.key in stay} if earlier else {}
        failed |= {p.key: p for p in _failing(check, parted, ask)}
    places = tuple(failed[key] for key in parted.keys if key in failed)
    n = sum(p.failed_rows for p in places)
    return replace(result, passed=not places, failed_rows=n, partitions=places)


def failing_rows(
    check: Check, result: CheckResult, parted: Parted, rows: DataFrame, ask: Ask
) -> DataFrame | None:
    """Return some rows that fail a check that is evaluated for each partition.

    All of them if the check keeps them; None if no single row fails it.

    Raises
    ------
    BuildError
        Its function fails.
    """
    if check.kind == "function":
        places = result.partitions if check.keep_failures else result.partitions[:1]
        answers = (ask(_rows_of(rows, place.key, parted)) for place in places)
        frames = [answer for answer in answers if not isinstance(answer, bool)]
        if not frames:
            return None
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    if check.kind != "unique":
        return None
    keyed, names = _keyed(rows, parted)
    return sharing(keyed, (*check.columns, *names)).drop(*names)


def _failing(check: Check, parted: Parted, ask: Ask) -> Iterator[FailedPartition]:
    """Yield the computed partitions that fail a check."""
    match check.kind:
        case "row_count":
            counts = _by_partition(*_keyed(parted.load(), parted), parted, "count(1)")
            for key in parted.computed:
                n = counts.get(key, 0)
                if not fits(check, n):
                    yield FailedPartition(key, found=f"{n} rows")
        case "freshness":
            values, kinds = _greatest(check, parted), _kinds(parted.load(), parted)
            local = parted.partitioning
            if kinds[0] != "timestamp":
                local = replace(local, timezone=parted.zone)
            for key in parted.computed:
                since = window_end(local, key).astimezone(UTC) - timedelta(seconds=check.age_s)
                fresh, observation = aged_to(values.get(key), since)
                if not fresh:
                    yield FailedPartition(key, found=observation)
        case "unique":
            keyed, names = _keyed(parted.load(), parted)
            keys = shared_keys(keyed, (*check.columns, *names))
            counts = _by_partition(keys, names, parted, f"sum({quote(SHARED)})")
            yield from (FailedPartition(k, counts[k]) for k in parted.computed if k in counts)
        case _:
            rows = parted.load()
            for key in parted.computed:
                answer = ask(_rows_of(rows, key, parted))
                if not isinstance(answer, bool):
                    n = answer.count()
                    if n:
                        yield FailedPartition(key, n)
                elif not answer:
                    yield FailedPartition(key, found=f"{check.values[0]} returned False")


def _greatest(check: Check, parted: Parted) -> dict[str, int | None]:
    """Return the greatest value in each computed partition that has rows, in microseconds."""
    return _by_partition(*_keyed(parted.load(), parted), parted, greatest(check))


def _rows_of(frame: DataFrame, key: str, parted: Parted) -> DataFrame:
    return frame.where(condition(parted.partitioning, _kinds(frame, parted), key))


def _keyed(frame: DataFrame, parted: Parted) -> tuple[DataFrame, tuple[str, ...]]:
    """Return rows with additional columns that identify the partition of each row."""
    texts = units(parted.partitioning, _kinds(frame, parted))
    names = tuple(f"persist.unit{n}" for n, _ in enumerate(texts))
    columns = (f"{sql} AS {quote(name)}" for sql, name in zip(texts, names, strict=True))
    return frame.selectExpr("*", *columns), names


def _by_partition(
    keyed: DataFrame, names: tuple[str, ...], parted: Parted, aggregate: str
) -> dict[str, Any]:
    """Return the value of an aggregate for each partition that has rows."""
    from pyspark.sql import functions as F

    groups = keyed.groupBy(*map(quote, names)).agg(F.expr(aggregate).alias("persist.value"))
    pairs = ((key_of(parted.partitioning, row[:-1]), row[-1]) for row in groups.collect())
    return {key: value for key, value in pairs if key is not None}


def _kinds(frame: DataFrame, parted: Parted) -> list[str]:
    """Return the types of the columns by which rows are partitioned."""
    kinds = {c.name.lower(): c.type or "" for c in columns_in(frame)}
    return [kinds[d.column.lower()] for d in parted.partitioning.dimensions]
