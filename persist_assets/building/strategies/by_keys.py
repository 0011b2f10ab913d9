"""Functions by key: called with the rows of the touched keys, they return all rows with these keys.

That all other rows stay is what the user states (``by``), and nobody can prove it. But a row with
another key shows that it is untrue. Then nothing is committed, and all rows are computed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.building.strategies.in_place import continue_table, split_by_key
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.planning.by_keys import unfit_keys
from persist_assets.planning.increments import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.queries import Parameter, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

_MARK = "a row of another key: "
_OTHER = re.compile(rf"{_MARK}(\{{.*\}})")


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
    keys: DataFrame,
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
    names = keys.columns
    returned = task.reader.call(source, read, cut=_cutting(task, base, program, keys))
    why = mismatch(base.columns, engine.columns(returned, source.name))
    if why is not None:
        raise BuildError(f"it returned other columns than its table has: {why}")
    rows = returned.selectExpr(*(f"{quote(c.name)} AS {quote(c.name)}" for c in base.columns))
    checked = _failing_for_others(rows, keys)
    try:
        return continue_table(task, base, None, checked, names, lambda new, _: new, replaced=keys)
    except BuildError as error:
        other = _OTHER.search(error.message)
        if other is None:
            raise
        raise BuildError(
            f"`by={', '.join(names)}` is untrue: called with the keys that changed,"
            f" `{source.name}` returned a row of another key, {other[1]}",
        ) from error


def _cutting(
    task: Task, base: Snapshot, program: Program, keys: DataFrame
) -> Callable[[Parameter, Source, DataFrame], DataFrame]:
    """Return a function that cuts a parameter to some keys, if it has the key columns.

    It raises `BuildError` if the parameter has other columns than the program expects.
    """
    engine, by_id = task.reader.engine, task.reader.project.by_id
    names = {name.lower() for name in keys.columns}

    def cut(parameter: Parameter, upstream: Source, rows: DataFrame) -> DataFrame:
        columns = engine.columns(rows, upstream.name)
        present = {c.name.lower() for c in columns}
        known = {name.lower() for _, name in program.columns.get(upstream.source_id, ())}
        if known and parameter.columns is None and known != present:
            raise BuildError(f"`{upstream.name}` has other columns than it declares")
        if parameter.columns is not None:
            present &= {name.lower() for name in parameter.columns}
        if not names <= present:
            return rows
        tables = ((upstream.name, columns), ("its table", base.columns))
        why = unfit_keys(task.source, by_id, *tables)
        if why is not None:
            raise BuildError(f"its keys cannot be compared: {why}")
        return split_by_key(keys, keys.columns)(rows)[0]

    return cut


def _failing_for_others(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return rows whose computation fails if one of them has none of these keys."""
    from pyspark.sql import functions as F

    names: Sequence[str] = keys.columns
    first = names[0]
    same = " AND ".join(f"rows.{quote(name)} <=> touched.{quote(name)}" for name in names)
    key = f"struct({', '.join(f'rows.{quote(name)}' for name in names)})"
    message = f"concat('{_MARK}', to_json({key}, map('ignoreNullFields', 'false')))"
    items = [
        f"IF(touched.`persist.is_touched` IS NULL, raise_error({message}), rows.{quote(c)})"
        f" AS {quote(c)}"
        if c == first
        else f"rows.{quote(c)}"
        for c in rows.columns
    ]
    touched = keys.withColumn("persist.is_touched", F.lit(True)).alias("touched")
    return rows.alias("rows").join(touched, F.expr(same), "left_outer").selectExpr(*items)
