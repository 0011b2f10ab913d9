"""Maintenance by deltas: compute the rows that differ because tables changed, and no others.

A program (`analysis/deltas`) gives the rows of the keys that a change touches, or the rows that
went and came. They replace rows of the table in place. If a program fails, or turns out dearer than
computing everything, all rows are computed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from persist_assets.building.changed_tables import ChangedTables
from persist_assets.building.strategies.in_place import continue_table
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import Whole
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, StorageError
from persist_assets.core.model.deltas import ROW_WEIGHT, WEIGHT
from persist_assets.engine.session import translated
from persist_assets.planning.increments import mismatch
from persist_assets.planning.maintenance import refusal
from persist_assets.storage.files import delete_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot

log = logging.getLogger(__name__)

_MOST_KEYS = 0.5
"""If the touched keys are more than this share of a large table's rows, all rows are computed."""
_LARGE = 10_000


@dataclass(frozen=True, slots=True)
class Delta:
    """The rows that differ are computed from the changes of the tables that the source reads."""

    increment: Increment
    program: Program
    name: ClassVar[str] = "delta"

    def scope(self, task: Task) -> Scope:
        """Return all rows: those are computed if the program fails."""
        return Scope(reads_temporary=False)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Replace the rows that differ.

        Raises
        ------
        NotIncrementalError
            That is not possible, and ``refresh=strict`` forbids computing all rows.
        """
        try:
            why = self._obstacle(task, frame)
            computed = None if why else self._replace(task, frame, read)
        except (BuildError, StorageError) as error:
            why, computed = f"{error.message}", None
        if computed is not None:
            return computed
        why = why or "more keys are touched than expected"
        if task.source.annotation.is_strict:
            raise refusal(task.source, why)
        log.warning("`%s` is computed in full: %s", task.source.key, why)
        root = task.reader.settings.table_root(task.started.table)
        delete_directory(f"{root}/{task.build_uid}")
        return Whole().write(task, scope, frame, read)

    def _obstacle(self, task: Task, frame: DataFrame) -> str | None:
        """Return why the table cannot be continued, None if it can."""
        if not task.started.is_within:
            return "its table belongs to another environment"
        return mismatch(self.increment.base.columns, _columns(task, frame))

    def _replace(
        self, task: Task, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot | None:
        """Return the table with other rows; None if too many keys are touched."""
        tables = ChangedTables(task.reader, self.program, read, self.increment.changes)
        if self.program.keys is not None:
            return self._by_keys(task, tables, frame, self.program.keys)
        rows = tables.run(self.program.rows)
        check_types(task, rows.drop(WEIGHT), frame)
        if self.program.only_adds:
            return self._added(task, rows.drop(WEIGHT).toDF(*frame.columns))
        return self._by_rows(task, rows, frame.columns)

    def _by_keys(
        self, task: Task, tables: ChangedTables, frame: DataFrame, held: str
    ) -> Computed | Snapshot | None:
        """Replace the rows with touched keys."""
        base = self.increment.base
        names = [frame.columns[n] for n in self.program.key_columns]
        keys = tables.held(held).toDF(*names)
        with translated(f"looking for the keys of `{task.source.name}` that changed"):
            n_keys = keys.count()
        if not n_keys:
            return unchanged(task, base)
        if n_keys > _MOST_KEYS * base.rows and base.rows > _LARGE:
            return None
        rows = tables.run(self.program.rows)
        check_types(task, rows, frame)
        rows = rows.toDF(*frame.columns)
        computed = continue_table(task, base, None, rows, names, lambda new, _: new, replaced=keys)
        return replace(computed, maintenance="keys")

    def _added(self, task: Task, rows: DataFrame) -> Computed | Snapshot:
        """Add rows."""
        base = self.increment.base
        computed = continue_table(task, base, None, rows, (), lambda new, _: new)
        if computed.staged is not None and not computed.staged.rows:
            delete_directory(f"{computed.staged.root}/{task.build_uid}")
            return unchanged(task, base)
        return replace(computed, maintenance="append")

    def _by_rows(self, task: Task, rows: DataFrame, columns: Sequence[str]) -> Computed | Snapshot:
        """Remove the rows that went, and add those that came."""
        base, engine = self.increment.base, task.reader.engine
        items = ", ".join(map(quote, columns))
        net = engine.over(
            rows.toDF(*columns, ROW_WEIGHT),
            lambda name: (
                f"SELECT {items}, sum({quote(ROW_WEIGHT)}) AS {quote(ROW_WEIGHT)} FROM {quote(name)}"
                f" GROUP BY {items} HAVING sum({quote(ROW_WEIGHT)}) <> 0"
            ),
        )
        net = net.persist()
        try:
            with translated(f"computing the rows of `{task.source.name}` that changed"):
                n_came, n_went = net.selectExpr(
                    f"count_if({quote(ROW_WEIGHT)} > 0)", f"count_if({quote(ROW_WEIGHT)} < 0)"
                ).collect()[0]
            if not n_came and not n_went:
                return unchanged(task, base)
            came = _repeated(task, net.where(f"{quote(ROW_WEIGHT)} > 0"), columns)
            if not n_went:
                return self._added(task, came)
            went = net.where(f"{quote(ROW_WEIGHT)} < 0")

            def merged(new: DataFrame, old: DataFrame) -> DataFrame:
                both = old.selectExpr(*map(quote, columns), f"1L AS {quote(ROW_WEIGHT)}")
                left = engine.over(both.unionByName(went), lambda name: _remaining(name, items))
                return new.unionByName(_repeated(task, left, columns))

            computed = continue_table(
                task, base, None, came, columns, merged, replaced=went.drop(ROW_WEIGHT)
            )
            return replace(computed, maintenance="keys")
        finally:
            net.unpersist()


def _remaining(name: str, items: str) -> str:
    """Return the query of the rows that are left of some when others went.

    It fails if rows that are not there would go: what the query was before the change is then not
    what the table was computed from.
    """
    weight = quote(ROW_WEIGHT)
    return (
        f"SELECT {items}, IF({weight} < 0, raise_error('rows that should go are not in the table'),"
        f" {weight}) AS {weight} FROM (SELECT {items}, sum({weight}) AS {weight}"
        f" FROM {quote(name)} GROUP BY {items}) WHERE {weight} <> 0"
    )


def _repeated(task: Task, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each row as often as its weight says."""
    items = ", ".join(map(quote, columns))
    return task.reader.engine.over(
        rows,
        lambda name: (
            f"SELECT {items} FROM {quote(name)}"
            f" LATERAL VIEW explode(array_repeat(0, CAST({quote(ROW_WEIGHT)} AS INT))) repeated AS nth"
        ),
    )


def check_types(task: Task, rows: DataFrame, frame: DataFrame) -> None:
    """Raise if a program's rows have other types than the query's.

    Raises
    ------
    BuildError
        They have.
    """
    types, expected = ([c.type for c in _columns(task, f)] for f in (rows, frame))
    if types != expected:
        raise BuildError(f"its changed rows have the types {types}, its query has {expected}")


def _columns(task: Task, frame: DataFrame) -> tuple[Column, ...]:
    return task.reader.engine.columns(frame, task.source.name)


def unchanged(task: Task, base: Snapshot) -> Snapshot:
    """Return a snapshot whose rows are those of newer data too."""
    started = task.started
    return replace(
        base, as_of=task.step.as_of, inputs=started.inputs, current_at=started.current_at
    )
