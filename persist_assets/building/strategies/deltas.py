"""Maintenance by deltas: compute the rows that differ because tables changed, and no others.

A program (`analysis/deltas`) gives the rows of the keys that a change touches, or the rows that
went and came. They replace rows of the table in place. If a program fails, or turns out dearer than
computing everything, all rows are computed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from persist_assets.analysis.deltas.weights import netted
from persist_assets.building.changed_tables import ChangedTables
from persist_assets.building.stages import Computed
from persist_assets.building.strategies.by_keys import key_names, replace_by_call
from persist_assets.building.strategies.in_place import continue_table, in_own_table
from persist_assets.building.strategies.kept_keys import kept_keys
from persist_assets.building.strategies.keys import Keys, count_having
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import Whole
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, StorageError
from persist_assets.core.model.deltas import (
    FEW_LEFT,
    ROW_WEIGHT,
    TABLE,
    WEIGHT,
    Merging,
    NoRule,
    Program,
)
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.engine.session import translated
from persist_assets.planning.increments import mismatch
from persist_assets.planning.maintenance import refusal
from persist_assets.storage.files import delete_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Strategy, Task
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.queries import SourceID

log = logging.getLogger(__name__)

_MOST_TOUCHED = 0.5
"""If more than this share of a large table's rows is touched, all rows are computed."""
_LARGE = 1_000
_LARGE_INPUT = 100_000
"""A table is large, too, if one that it is computed from has more rows than this."""
_FEW_KEYS = 100
"""The rows of so few keys are counted: they may be most of the table."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The rows that differ are computed from the changes of the tables that the source reads."""

    increment: Increment
    program: Program
    name: ClassVar[str] = "delta"

    def scope(self, task: Task) -> Scope:
        """Return the columns of the table that is continued."""
        return scope_of(task, self.increment)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Replace the rows that differ.

        Raises
        ------
        NotIncrementalError
            That is not possible, and ``refresh=strict`` forbids computing all rows.
        """
        return or_all_rows(task, lambda: self._replace(task, read), Whole(), read)

    def _replace(self, task: Task, read: Mapping[SourceID, Snapshot]) -> Computed | Snapshot | None:
        """Return the table with other rows; None if too many keys are touched."""
        base = self.increment.base
        tables = narrowed(task, self.increment, self.program, read)
        if tables is None:
            return unchanged(task, base)
        assert isinstance(tables.program, Program)
        if tables.program.keys is not None:
            return self._by_keys(task, tables, tables.program, read)
        if tables.program.reads_table:
            tables.show(TABLE, _numbered_rows(task, base))
        rows = tables.run(tables.program.rows)
        if tables.program.only_adds:
            return self._added(task, tables, named(task, rows.drop(WEIGHT), base.columns))
        try:
            return self._by_rows(task, tables, rows)
        except BuildError as error:
            if FEW_LEFT in error.message:
                raise BuildError(FEW_LEFT) from error
            raise

    def _by_keys(
        self,
        task: Task,
        tables: ChangedTables,
        program: Program,
        read: Mapping[SourceID, Snapshot],
    ) -> Computed | Snapshot | None:
        """Replace the rows with touched keys."""
        base = self.increment.base
        is_function = task.source.function is not None
        if is_function:
            names = key_names(task.source, base)
        else:
            names = [base.columns[n].name for n in program.key_columns]
        held = tables.written(program.keys or "")
        pairs = zip(names, held.rows.columns, strict=True)
        nullable = {name for name, column in pairs if column in held.nullable}
        keys, n_keys = Keys(held.rows.toDF(*names), held.place, nullable), held.n_rows
        if not n_keys:
            return _same_rows(task, base)
        if self._is_large(task) and not task.source.annotation.is_strict:
            few = n_keys <= _FEW_KEYS
            n_touched = (
                count_having(task.reader.load_snapshot(base), keys, names) if few else n_keys
            )
            if n_touched > _MOST_TOUCHED * base.rows:
                return None
        if is_function:
            computed = replace_by_call(task, base, program, keys, read)
        else:
            rows = named(task, tables.run(program.rows), base.columns)
            few = tables.are_few()
            computed = continue_table(task, base, None, rows, names, replaced=keys, few=few)
        touched = kept_keys(task, base, names, keys.rows, held.place)
        return replace(computed, maintenance="keys", keys_touched=n_keys, touched=touched)

    def _is_large(self, task: Task) -> bool:
        """Whether the table, or one that the source reads, has so many rows that keys count."""
        tables = (i.source_id for i in task.reader.project.inputs(task.source))
        sizes = (task.world.sizes[t].rows or 0 for t in tables if t in task.world.sizes)
        return self.increment.base.rows > _LARGE or max(sizes, default=0) > _LARGE_INPUT

    def _added(self, task: Task, tables: ChangedTables, rows: DataFrame) -> Computed | Snapshot:
        """Add rows."""
        base = self.increment.base
        computed = continue_table(task, base, None, rows, (), few=tables.are_few())
        if computed.staged is not None and not computed.staged.rows:
            delete_directory(f"{computed.staged.root}/{task.build_uid}")
            return _same_rows(task, base)
        return replace(computed, maintenance="append")

    def _by_rows(self, task: Task, tables: ChangedTables, rows: DataFrame) -> Computed | Snapshot:
        """Remove the rows that went, and add those that came."""
        base, engine = self.increment.base, task.reader.engine
        named(task, rows.drop(WEIGHT), base.columns)
        columns = [c.name for c in base.columns]
        typed = [(quote(c.name), c.type) for c in base.columns]
        net = engine.over(
            rows.toDF(*columns, ROW_WEIGHT),
            lambda name: netted(f"SELECT * FROM {quote(name)}", typed),
        )
        written = tables.computed(net)
        net = written.rows
        with translated(f"computing the rows of `{task.source.name}` that changed"):
            n_came, n_went = net.selectExpr(
                f"count_if({quote(ROW_WEIGHT)} > 0)", f"count_if({quote(ROW_WEIGHT)} < 0)"
            ).collect()[0]
        if not n_came and not n_went:
            return _same_rows(task, base)
        came = _repeated(task, net.where(f"{quote(ROW_WEIGHT)} > 0"), columns)
        if not n_went:
            return self._added(task, tables, came)
        went = net.where(f"{quote(ROW_WEIGHT)} < 0")

        def merged(new: DataFrame, old: DataFrame) -> DataFrame:
            both = old.selectExpr(*map(quote, columns), f"1L AS {quote(ROW_WEIGHT)}")
            left = engine.over(both.unionByName(went), lambda name: _remaining(name, typed))
            return new.unionByName(_repeated(task, left, columns))

        keys, few = Keys(went.drop(ROW_WEIGHT), nullable=written.nullable), tables.are_few()
        computed = continue_table(task, base, None, came, columns, merged, replaced=keys, few=few)
        touched = kept_keys(task, base, columns, net, written.place)
        return replace(computed, maintenance="keys", touched=touched)


def narrowed(
    task: Task,
    increment: Increment,
    program: Program | Merging,
    read: Mapping[SourceID, Snapshot],
) -> ChangedTables | None:
    """Return the relations of a program for those tables only that really differ.

    None if none of them differs in the columns that the query uses.

    Raises
    ------
    BuildError
        There is no such program, or the value of a subquery that all rows share has changed.
    """
    tables = ChangedTables(task.reader, program, read, increment.changes, shared=task.shared)
    changes = tables.differing()
    if not changes:
        return None
    if len(changes) < len(increment.changes):
        project = task.reader.project
        grown = frozenset(s for s, change in changes.items() if not change.lost)
        derive = project.merging if isinstance(program, Merging) else project.program
        try:
            narrower = derive(task.source.source_id, frozenset(changes), grown)
        except NoRule as error:
            raise BuildError(error.why) from error
        if narrower is None:
            if increment.base.states:
                raise BuildError("its states may have changed, although its rows did not")
            return None
        tables = ChangedTables(task.reader, narrower, read, changes, shared=task.shared)
    if any(tables.written(value).n_rows for value in tables.program.changed_values):
        raise BuildError("a subquery has another value for all rows")
    return tables


def _numbered_rows(task: Task, base: Snapshot) -> DataFrame:
    """Return the rows of a table with the names of columns that `TABLE` has."""
    rows = task.reader.load_snapshot(base).select(*(quote(c.name) for c in base.columns))
    return rows.toDF(*(f"c{n}" for n in range(len(base.columns))))


def _remaining(name: str, columns: Sequence[tuple[str, str | None]]) -> str:
    """Return a query for the rows that remain after others were removed.

    It fails if a row to remove is missing: then the table was not computed from the rows that the
    query had before the change.
    """
    weight, items = quote(ROW_WEIGHT), ", ".join(c for c, _ in columns)
    return (
        f"SELECT {items}, IF({weight} < 0, raise_error('rows that should go are not in the table'),"
        f" {weight}) AS {weight} FROM ({netted(f'SELECT * FROM {quote(name)}', columns)})"
    )


def _repeated(task: Task, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each row as often as its weight says."""
    items = ", ".join(map(quote, columns))
    return task.reader.engine.over(
        rows,
        lambda name: (
            f"SELECT {items} FROM {quote(name)}"
            f" LATERAL VIEW explode(sequence(1, CAST({quote(ROW_WEIGHT)} AS INT))) repeated"
            " AS `persist.copy`"
        ),
    )


def scope_of(task: Task, increment: Increment) -> Scope:
    """Return the description of a build that continues a table.

    If the table has another meaning, all rows are computed.
    """
    if not task.started.keeps_files:
        return Scope(reads_temporary=False)
    return Scope(columns=increment.base.columns, reads_temporary=False)


def or_all_rows(
    task: Task,
    maintain: Callable[[], Computed | Snapshot | None],
    otherwise: Strategy,
    read: Mapping[SourceID, Snapshot],
) -> Computed | Snapshot:
    """Return the maintained table; if that fails, or is not worth while, one with all rows.

    Parameters
    ----------
    maintain
        Maintains the table; None: it is too much work.

    Raises
    ------
    NotIncrementalError
        ``refresh=strict`` forbids computing all rows.
    """
    source, reader, lost_s = task.source, task.reader, 0.0
    why = "its table has rows of older code"
    if task.started.keeps_files:
        began = time.monotonic()
        try:
            computed = maintain()
            if isinstance(computed, Computed):
                return in_own_table(task, computed)
            if computed is not None:
                return computed
            why = "more keys are touched than expected"
        except (BuildError, StorageError) as error:
            why = error.message
        lost_s = time.monotonic() - began
    if source.annotation.is_strict:
        raise refusal(source, why)
    log.warning("`%s` is computed in full: %s", source.key, why, extra={"action": "compute-all"})
    root = reader.settings.table_root(task.started.table)
    delete_directory(f"{root}/{task.build_uid}")
    frame = reader.compute(source, read)
    computed = otherwise.write(task, Scope(), frame, read)
    if isinstance(computed, Snapshot):
        return computed
    return replace(computed, maintenance="whole", lost_s=lost_s)


def named(task: Task, rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return a program's rows with the names of a table's columns.

    Raises
    ------
    BuildError
        They have other types.
    """
    shown = rows.toDF(*(c.name for c in columns))
    why = mismatch(columns, task.reader.engine.columns(shown, task.source.name))
    if why is not None:
        raise BuildError(f"the types of its changed rows differ: {why}")
    return shown


def unchanged(task: Task, base: Snapshot) -> Snapshot:
    """Return a snapshot of the same rows and states as of newer data."""
    return task.started.renewed(base, task.step.as_of)


def _same_rows(task: Task, base: Snapshot) -> Snapshot:
    """Return a snapshot of the same rows as of newer data; its states may be those of older data.

    `count(*) > 5` stays false if a group has three rows instead of five, but its state differs.
    """
    return unchanged(task, replace(base, states=()))
