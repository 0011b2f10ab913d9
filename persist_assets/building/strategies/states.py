"""Tables that keep the states of their aggregates, and are maintained by merging them.

    changes of the tables ─► new rows of the states ─► states now ─► all rows of the query

A state is a directory of Parquet files beside those of its build. It is written as a whole: it has
one row for each group. Whatever goes wrong with it, all rows are computed.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from persist_assets.building.changed_tables import ChangedTables
from persist_assets.building.small_states import is_small, merged_here
from persist_assets.building.strategies.deltas import (
    named,
    narrowed,
    or_all_rows,
    scope_of,
    unchanged,
)
from persist_assets.building.strategies.kept_keys import kept_keys
from persist_assets.building.strategies.scd2 import columns_of
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import Whole, write_table
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, StorageError
from persist_assets.core.model.deltas import Merging, NoRule, state_name
from persist_assets.core.model.snapshots import KeptState
from persist_assets.core.object_stores import spark_pattern
from persist_assets.engine.few_rows import in_memory, rows_of
from persist_assets.engine.session import translated
from persist_assets.storage.arrow_rows import read_rows, spark_schema, write_rows
from persist_assets.storage.files import delete_directory, rows_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.held_relations import Written
    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.deltas import State
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.engine.protocol import Engine

log = logging.getLogger(__name__)

_LARGE_ROWS = 1_000_000
_LARGE_BYTES = 32 * 2**20
"""Tables computed from fewer rows and bytes keep no states: they are quickly computed anew."""


@dataclass(frozen=True, slots=True)
class _Now:
    """A state now.

    Attributes
    ----------
    table
        Its rows as an Arrow table, if they are small; see `is_small`.
    """

    rows: DataFrame
    table: Any = None


@dataclass(frozen=True, slots=True)
class WithStates:
    """All rows are computed, from states that are kept if much is read for them."""

    name: ClassVar[str] = "whole"

    def scope(self, task: Task) -> Scope:
        """Return all rows."""
        return Scope()

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        """Write all rows."""
        try:
            merging = self._merging(task, read)
            if merging is not None:
                return self._write(task, merging, frame, read)
        except (BuildError, StorageError) as error:
            log.warning(
                "`%s` keeps no states: %s",
                task.source.key,
                error.message,
                extra={"action": "states"},
            )
            root = task.reader.settings.table_root(task.started.table)
            delete_directory(f"{root}/{task.build_uid}")
        return Whole().write(task, scope, frame, read)

    def _merging(self, task: Task, read: Mapping[SourceID, Snapshot]) -> Merging | None:
        """Return how the table is computed from states, None if it is without."""
        project = task.reader.project
        inputs = project.inputs(task.source)
        missing = [s for s in inputs if s.raw is None and s.source_id not in read]
        if missing or project.reads_temporary(task.source):
            return None
        if not task.source.annotation.is_incremental and not _is_large(task, read):
            return None
        try:
            return project.merging(task.source.source_id, frozenset(), frozenset())
        except NoRule:
            return None

    def _write(
        self, task: Task, merging: Merging, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        tables = ChangedTables(task.reader, merging, read, {})
        relations = task.reader.relations
        states = [_Now(relations.written(tables.run(s.initial)).rows) for s in merging.states]
        columns = columns_of(frame)
        return _write_from(task, tables, merging, states, columns)


@dataclass(frozen=True, slots=True)
class Merge:
    """The states are merged with their change, and the rows computed from them."""

    increment: Increment
    merging: Merging
    name: ClassVar[str] = "merge"

    def scope(self, task: Task) -> Scope:
        """Return the columns of the table that is continued."""
        return scope_of(task, self.increment)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Write the rows that follow from the merged states.

        Raises
        ------
        NotIncrementalError
            That is not possible, and ``refresh=strict`` forbids computing all rows.
        """
        return or_all_rows(task, lambda: self._merge(task, read), WithStates(), read)

    def _merge(self, task: Task, read: Mapping[SourceID, Snapshot]) -> Computed | Snapshot:
        base = self.increment.base
        tables = narrowed(task, self.increment, self.merging, read)
        if tables is None:
            return unchanged(task, base)
        merging = tables.program
        assert isinstance(merging, Merging)
        states, n_rows = list[_Now](), [state.rows for state in base.states]
        changes: list[Written] = []
        for number, state in enumerate(merging.states):
            former = _read(task, base, number)
            tables.show(state_name("former", number), former.rows)
            if state.changed is None:
                states.append(former)
                continue
            rows = tables.run(state.changed)
            if _rounds(rows, former.rows):
                rows = tables.run(state.summed)
            changed = tables.computed(_cast(rows, former.rows))
            changes.append(changed)
            n_rows[number] += changed.n_rows
            states.append(_merged(task, state, former, changed, n_rows[number]))
        if not any(changed.n_rows for changed in changes):
            return unchanged(task, base)
        few = tables.are_few(max(n_rows))
        computed = _write_from(task, tables, merging, states, base.columns, few=few)
        touched = None
        if merging.key_columns:
            (changed,) = changes
            names = [base.columns[n].name for n in merging.key_columns]
            touched = kept_keys(task, base, names, changed.rows, changed.place)
        return replace(computed, maintenance="merge", touched=touched)


def _is_large(task: Task, read: Mapping[SourceID, Snapshot]) -> bool:
    """Whether a table is computed from many rows or bytes."""
    n_rows = n_bytes = 0
    for source in task.reader.project.inputs(task.source):
        snapshot = read.get(source.source_id)
        if snapshot is not None:
            n_rows, n_bytes = n_rows + snapshot.rows, n_bytes + snapshot.bytes
        else:
            pin = task.reader.pins.pin(source)
            n_rows += sum(n or 0 for n in pin.rows.values())
            n_bytes += sum(size for size, *_ in pin.stamps)
    return n_rows >= _LARGE_ROWS or n_bytes >= _LARGE_BYTES


def _write_from(
    task: Task,
    tables: ChangedTables,
    merging: Merging,
    states: Sequence[_Now],
    columns: Sequence[Column],
    *,
    few: bool = False,
) -> Computed:
    """Write the rows of the query from states, and the states."""
    engine, kept_states = task.reader.engine, list[KeptState]()
    for number, state in enumerate(states):
        tables.show(state_name("state", number), state.rows)
    rows = named(task, tables.run(merging.rows), columns)
    computed = write_table(task, rows, few=few)
    root = engine.settings.table_root(task.started.table)
    for number, (state, definition) in enumerate(zip(states, merging.definitions, strict=True)):
        n_rows = _write(engine, state, f"{root}/{task.build_uid}", _directory(number), task)
        kept_states.append(KeptState(definition, n_rows))
    return replace(computed, states=tuple(kept_states))


def _write(engine: Engine, state: _Now, root: str, directory: str, task: Task) -> int:
    """Write the files of a state, and return the number of its rows."""
    if state.table is not None:
        write_rows(state.table, f"{root}/{directory}")
        return len(state.table)
    with translated(f"writing a state of `{task.source.name}`"):
        return engine.write_files(state.rows, root, directory).rows


def _directory(number: int) -> str:
    return f"state-{number}"


def _place(task: Task, base: Snapshot, number: int) -> str:
    root = task.reader.settings.table_root(base.table)
    return f"{root}/{base.build_uid}/{_directory(number)}"


def _read(task: Task, base: Snapshot, number: int) -> _Now:
    """Return a state of a snapshot.

    Raises
    ------
    StorageError
        Some of its rows are gone.
    """
    from pyspark.sql.types import StructType

    place, n_rows = _place(task, base, number), base.states[number].rows
    if rows_in(place)[0] != n_rows:
        raise StorageError(f"a state of {base.table} is gone", hint="it will be computed again")
    table = read_rows(place) if is_small(n_rows, ()) else None
    schema, session = spark_schema(place), task.reader.engine.session
    with translated(f"reading a state of `{task.source.name}`"):
        if schema is None:
            return _Now(session.read.parquet(spark_pattern(place)), table)  # Spark infers it
        types = StructType.fromJson(json.loads(schema))
        return _Now(rows_of(place, n_rows, session, types, table), table)


def _rounds(rows: DataFrame, like: DataFrame) -> bool:
    """Whether decimals have fewer digits behind the point than in other rows."""
    from pyspark.sql.types import DecimalType

    pairs = zip(rows.schema.fields, like.schema.fields, strict=True)
    return any(
        isinstance(a.dataType, DecimalType)
        and isinstance(b.dataType, DecimalType)
        and a.dataType.scale < b.dataType.scale
        for a, b in pairs
    )


def _cast(rows: DataFrame, like: DataFrame) -> DataFrame:
    """Return rows with the types of other rows, which they may exceed."""
    kinds = like.schema.fields
    return rows.selectExpr(
        *(f"CAST({quote(f.name)} AS {f.dataType.simpleString()}) AS {quote(f.name)}" for f in kinds)
    )


def _merged(task: Task, state: State, former: _Now, changed: Written, n_rows: int) -> _Now:
    """Return the new state: the former rows, with the changed ones replaced.

    Parameters
    ----------
    n_rows
        How many former and changed rows there are.
    """
    from pyspark.sql import functions as F

    if not state.n_keys:
        return _Now(changed.rows, read_rows(changed.place))
    types = former.rows.schema
    key_types = [f.dataType.simpleString() for f in types.fields[: state.n_keys]]
    if is_small(n_rows, key_types):
        table = merged_here(former.table, read_rows(changed.place), state.n_keys)
        if table is not None:
            rows = in_memory(table, former.rows.sparkSession, types)
            if rows is None:
                rows = task.reader.relations.written_table(table, former.rows).rows
            return _Now(rows, table)
    keys = [f"k{k}" for k in range(state.n_keys)]
    same = F.expr(" AND ".join(f"s.{k} {changed.equal(k)} c.{k}" for k in keys))
    stay = former.rows.alias("s").join(changed.rows.alias("c"), same, "left_anti")
    return _Now(stay.unionByName(changed.rows.where("n > 0")))
