"""Histories of a query's rows: slowly changing dimensions of type 2 (SCD2).

    current rows ─┬─► versions that begin, end or are corrected ─┬─► files written, others kept
    versions ─────┘                                              └─► or a table of all of them

A version is a row and the time for which it was current: `VALID_FROM` ≤ t < `VALID_TO`, which is
NULL while the row is current. The invariant: versions of one key do not overlap, at most one is
current, and a version that has ended never changes. So a key and the start of a version identify
it. A new history is computed from the table of versions, the current rows and one instant; without
that table it cannot be computed again.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from persist_assets.building.strategies.in_place import continue_table
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import write_table
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.snapshots import merge_as_of
from persist_assets.core.time_values import TIMES, literal
from persist_assets.engine.data_diff import comparison_value
from persist_assets.engine.session import translated
from persist_assets.planning.increments import mismatch
from persist_assets.planning.inputs import own_marks
from persist_assets.storage.types import columns_of_struct, delta_schema

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.annotations import Validity
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

_MOST_SHOWN = 3
_SHARING, _ENDED = "persist.sharing", "persist.ended"
_TICK = "INTERVAL '0.000001' SECOND"
"""The shortest time that a version lasts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The changes of versions that the current rows cause.

    Attributes
    ----------
    changed
        The new state of versions that begin, end or are corrected.
    n
        Their number.
    versions
        The new state of all versions.
    """

    changed: DataFrame
    n: int
    versions: DataFrame


@dataclass(frozen=True, slots=True)
class History:
    """Compare the current versions with the rows; versions that have ended stay."""

    name: ClassVar[str] = "history"

    def scope(self, task: Task) -> Scope:
        """Return all rows."""
        return Scope()

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Write the versions that begin, end or are corrected; reuse the history if none is."""
        source, started, history = task.source, task.started, task.step.history
        validity, reader = source.annotation.validity, task.reader
        assert validity is not None
        past = None if history is None else reader.load_snapshot(history)
        with turn(source, frame, past, reader.observer.started_at) as turned:
            alike = history is not None and history.columns == columns_of(turned.versions)
            if history is None or not started.is_within or not alike:
                return write_table(task, turned.versions)
            if turned.n:
                key = identified_by(validity)
                return continue_table(task, history, None, turned.changed, key)
            as_of = merge_as_of([task.step.as_of, own_marks(history.as_of, source)])
            return started.renewed(history, as_of)


def identified_by(validity: Validity) -> tuple[str, ...]:
    """Return the columns that identify a version."""
    return (*validity.key, VALID_FROM)


def columns_of(frame: DataFrame) -> tuple[Column, ...]:
    """Return the columns of a table of this frame."""
    return columns_of_struct(json.loads(delta_schema(frame.schema.jsonValue())))


@contextmanager
def turn(source: Source, rows: DataFrame, past: DataFrame | None, now: datetime) -> Generator[Turn]:
    """Compute the changes of versions; they stay in memory or on disk while the block lasts.

    A version starts at the value of the time column, if that is later than the start of the
    previous version (and, for a key that returns, not before it went), else now. If the clock was
    put back, it starts as early as possible.

    Parameters
    ----------
    rows
        The current rows of the source's query.
    past
        All earlier versions; None: there are none.

    Raises
    ------
    BuildError
        Several rows have one key, or columns have changed or cannot be compared.
    """
    validity = source.annotation.validity
    assert validity is not None
    _check_columns(source, rows, past)
    with translated(f"computing `{source.name}`"):
        persisted_rows = rows.persist()
        try:
            _check_keys(source, persisted_rows, validity.key)
            aligned = (
                None if past is None else _aligned(persisted_rows.columns, persisted_rows, past)
            )
            changed = _changed(source, persisted_rows, aligned, now).persist()
            try:
                n = changed.count()
                versions = changed if aligned is None else _with(changed, aligned, validity)
                yield Turn(changed, n, versions)
            finally:
                changed.unpersist()
        finally:
            persisted_rows.unpersist()


def _check_columns(source: Source, rows: DataFrame, past: DataFrame | None) -> None:
    validity, by = source.annotation.validity, source.annotation.time_column
    assert validity is not None
    kinds = {f.name.lower(): f.dataType.simpleString() for f in rows.schema.fields}
    problem, hint = None, f"known columns: {', '.join(rows.columns)}"
    for name in (*validity.key, *validity.watch, *([by] if by else [])):
        if name.lower() not in kinds:
            problem = f"`{name}` is not a column of `{source.name}`"
    if reserved_names := [n for n in (VALID_FROM, VALID_TO) if n in kinds]:
        problem, hint = (
            f"`{reserved_names[0]}` is added by the history of `{source.name}`",
            "rename it",
        )
    if by and problem is None and kinds[by.lower()] not in TIMES:
        problem = f"`{by}` is {kinds[by.lower()]}, which cannot date versions"
        hint = "use a date or a timestamp"
    for name in _compared(rows.columns, validity):
        if problem is None and "map<" in kinds[name.lower()]:
            problem = f"`{name}` is {kinds[name.lower()]}, which cannot be compared"
            hint = "list the columns to watch: watch=[a, b]"
    if past is not None and problem is None:
        before = [c for c in columns_of(past) if c.name.lower() not in (VALID_FROM, VALID_TO)]
        why = mismatch(before, columns_of(rows), grows=True)
        if why is not None:
            problem = f"the history of `{source.name}` cannot be continued: {why}"
            hint = _HOW_TO_GO_ON
    if problem is not None:
        raise BuildError(problem, hint=hint, location=source.location)


_HOW_TO_GO_ON = (
    "keep its columns, with CAST(NULL AS type) AS name where there is no value; or"
    " start a new history with on_change=rebuild"
)


def _check_keys(source: Source, rows: DataFrame, key: Sequence[str]) -> None:
    """Refuse several rows of one key, because either could be the current one."""
    from pyspark.sql import functions as F

    n = F.expr(f"count(1) AS {quote(_SHARING)}")
    keys = [F.col(quote(k)) for k in key]
    several = rows.groupBy(*keys).agg(n).where(f"{quote(_SHARING)} > 1")
    shown: list[Any] = several.limit(_MOST_SHOWN + 1).collect()
    if not shown:
        return
    examples = sorted(
        f"{', '.join(f'{k}={row[i]}' for i, k in enumerate(key))} ({row[_SHARING]} rows)"
        for row in shown
    )
    if len(shown) > _MOST_SHOWN:
        examples[_MOST_SHOWN:] = [f"… {several.count()} keys in all"]
    raise BuildError(
        f"`{source.name}` has several rows with the same key: {'; '.join(examples)}",
        hint="a history has one row per key at a time: choose one, or use a longer key",
        location=source.location,
    )


def _aligned(names: Sequence[str], rows: DataFrame, past: DataFrame) -> DataFrame:
    """Return versions with the columns of the rows; new columns are NULL."""
    had = {name.lower() for name in past.columns}
    kinds = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
    values = (quote(n) if n.lower() in had else f"CAST(NULL AS {kinds[n]})" for n in names)
    named = (f"{value} AS {quote(n)}" for value, n in zip(values, names, strict=True))
    return past.selectExpr(*named, VALID_FROM, VALID_TO)


def _compared(names: Iterable[str], validity: Validity) -> list[str]:
    """Return the columns whose changes start a new version."""
    key, watch = ({c.lower() for c in some} for some in (validity.key, validity.watch))
    return [n for n in names if (n.lower() in watch if watch else n.lower() not in key)]


def _differ(names: Iterable[str], kinds: Mapping[str, Any]) -> str:
    """Return a condition on two rows: columns differ. Spark does not compare maps by itself."""

    def value(row: str, name: str) -> str:
        column, kind = f"{row}.{quote(name)}", kinds[name]
        return comparison_value(column, kind) if "map<" in kind.simpleString() else column

    return " OR ".join(f"NOT ({value('new', n)} <=> {value('old', n)})" for n in names) or "false"


def _version(names: Iterable[str], row: str, start: str, end: str) -> str:
    """Return the SQL of a version as a struct."""
    fields = [*(f"{row}.{quote(n)} AS {quote(n)}" for n in names)]
    end = f"CAST({end} AS TIMESTAMP)"
    return f"struct({', '.join(fields)}, {start} AS {VALID_FROM}, {end} AS {VALID_TO})"


def _changed(source: Source, rows: DataFrame, past: DataFrame | None, now: datetime) -> DataFrame:
    """Return the versions that begin, end or are corrected."""
    from pyspark.sql import functions as F

    validity, by = source.annotation.validity, source.annotation.time_column
    assert validity is not None
    names = rows.columns
    at = literal(now, "timestamp")
    changed_at = f"CAST(new.{quote(by)} AS TIMESTAMP)" if by else "CAST(NULL AS TIMESTAMP)"
    fields = ", ".join(f"{quote(n)} AS {quote(n)}" for n in names)
    new = rows.selectExpr(f"struct({fields}) AS new")
    if past is None:
        return new.selectExpr(
            f"inline(array({_version(names, 'new', f'coalesce({changed_at}, {at})', 'NULL')}))"
        )
    times = f"{VALID_FROM}, {VALID_TO}"
    old = past.where(f"{VALID_TO} IS NULL").selectExpr(f"struct({fields}, {times}) AS old")
    keys = ", ".join(f"{quote(k)} AS {quote(k)}" for k in validity.key)
    ended = (
        past.where(f"{VALID_TO} IS NOT NULL")
        .groupBy(*(F.col(quote(k)) for k in validity.key))
        .agg(F.expr(f"max({VALID_TO}) AS {quote(_ENDED)}"))
        .selectExpr(f"struct({keys}) AS gone", f"{quote(_ENDED)} AS ended")
    )

    def same(left: str, right: str) -> Any:
        pairs = (f"{left}.{quote(k)} <=> {right}.{quote(k)}" for k in validity.key)
        return F.expr(" AND ".join(pairs))

    joined = new.join(old, same("new", "old"), "full_outer")
    joined = joined.join(ended, same("new", "gone"), "left_outer")
    since = f"old.{VALID_FROM}"
    soonest = f"CASE WHEN {at} > {since} THEN {at} ELSE {since} + {_TICK} END"
    turned = f"CASE WHEN {changed_at} > {since} THEN {changed_at} ELSE {soonest} END"
    begun = (
        f"CASE WHEN {changed_at} >= ended OR ({changed_at} IS NOT NULL AND ended IS NULL)"
        f" THEN {changed_at}"
        f" WHEN {at} < ended THEN ended ELSE {at} END"
    )
    compared = _compared(names, validity)
    rest = [n for n in names if n not in compared]
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    differs = _differ(compared, kinds)
    comes = (
        "CASE WHEN new IS NULL THEN NULL"
        f" WHEN old IS NULL THEN {_version(names, 'new', begun, 'NULL')}"
        f" WHEN {differs} THEN {_version(names, 'new', turned, 'NULL')}"
        f" WHEN {_differ(rest, kinds)} THEN {_version(names, 'new', since, 'NULL')} END"
    )
    closed = "NULL"
    if validity.hard_deletes == "close":
        closed = _version(names, "old", since, soonest)
    goes = (
        "CASE WHEN old IS NULL THEN NULL"
        f" WHEN new IS NULL THEN {closed}"
        f" WHEN {differs} THEN {_version(names, 'old', since, turned)} END"
    )
    return joined.selectExpr(f"inline(filter(array({comes}, {goes}), e -> e IS NOT NULL))")


def _with(changed: DataFrame, past: DataFrame, validity: Validity) -> DataFrame:
    """Return all versions: the changed and the unchanged ones."""
    from pyspark.sql import functions as F

    by = identified_by(validity)
    keys = changed.selectExpr(*map(quote, by)).alias("new")
    same = F.expr(" AND ".join(f"old.{quote(k)} <=> new.{quote(k)}" for k in by))
    return past.alias("old").join(keys, same, "left_anti").unionByName(changed)
