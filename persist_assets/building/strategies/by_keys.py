"""Functions by key: called with the rows of the touched keys, they return all rows with these keys.

The user states with ``by`` that all other rows stay, and nobody can prove it. But a returned row
with another key disproves it. Then nothing is committed, and all rows are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.building.strategies.in_place import continue_table
from persist_assets.building.strategies.keys import split_by_key
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.engine.session import translated
from persist_assets.planning.by_keys import unfit_keys
from persist_assets.planning.increments import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.keys import Keys
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.queries import Parameter, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source


def key_names(source: Source, base: Snapshot) -> list[str]:
    """Return the key columns of a function as its table names them.

    Raises
    ------
    BuildError
        The table lacks one.
    """
    names = {c.name.lower(): c.name for c in base.columns}
    missing = [name for name in source.annotation.by if name.lower() not in names]
    if missing:
        raise BuildError(f"its table has no column `{missing[0]}`")
    return [names[name.lower()] for name in source.annotation.by]


def replace_by_call(
    task: Task,
    base: Snapshot,
    program: Program,
    keys: Keys,
    read: Mapping[SourceID, Snapshot],
) -> Computed:
    """Write the rows that a function returns for some keys, in place of those with these keys.

    Parameters
    ----------
    keys
        The touched keys, in columns named like the table's.

    Raises
    ------
    BuildError
        The function fails, returns other columns than the table has, or a row with another key.
    """
    source, engine = task.source, task.reader.engine
    returned = task.reader.call(source, read, cut=_cutting(task, base, program, keys))
    why = mismatch(base.columns, engine.columns(returned, source.name))
    if why is not None:
        raise BuildError(f"its columns differ from those of its table: {why}")
    rows = returned.selectExpr(*(f"{quote(c.name)} AS {quote(c.name)}" for c in base.columns))
    rows = rows.persist()
    try:
        _check_keys(source, rows, keys)
        return continue_table(task, base, None, rows, keys.rows.columns, replaced=keys)
    finally:
        rows.unpersist()


def _cutting(
    task: Task, base: Snapshot, program: Program, keys: Keys
) -> Callable[[Parameter, Source, DataFrame], DataFrame]:
    """Return a function that cuts a parameter to some keys, if it has the key columns.

    It raises `BuildError` if the parameter has other columns than the program expects.
    """
    engine, by_id = task.reader.engine, task.reader.project.by_id
    names = {name.lower() for name in keys.rows.columns}

    def cut(parameter: Parameter, upstream: Source, rows: DataFrame) -> DataFrame:
        columns = engine.columns(rows, upstream.name)
        present = {c.name.lower() for c in columns}
        known = {name.lower() for _, name in program.columns.get(upstream.source_id, ())}
        if known and parameter.columns is None and known != present:
            raise BuildError(f"`{upstream.name}` has different columns than it declares")
        if parameter.columns is not None:
            present &= {name.lower() for name in parameter.columns}
        if not names <= present:
            return rows
        tables = ((upstream.name, columns), ("its table", base.columns))
        why = unfit_keys(task.source, by_id, *tables)
        if why is not None:
            raise BuildError(f"its keys cannot be compared: {why}")
        return split_by_key(keys, keys.rows.columns)(rows)[0]

    return cut


def _check_keys(source: Source, rows: DataFrame, keys: Keys) -> None:
    """Raise `BuildError` if a row has none of these keys."""
    names = keys.rows.columns
    _, others = split_by_key(keys, names)(rows)
    key = f"to_json(struct({', '.join(map(quote, names))}), map('ignoreNullFields', 'false'))"
    with translated(f"computing `{source.name}` for the keys that changed"):
        other = others.selectExpr(key).first()
    if other is not None:
        raise BuildError(
            f"`by={', '.join(names)}` is wrong: called with the keys that changed,"
            f" `{source.name}` returned a row of another key, {other[0]}"
        )
