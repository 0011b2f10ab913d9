"""Keeps the keys whose rows a build replaced, for the sources that read its table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.storage.touched_keys import Touched, keep_keys

_UNCOMPARABLE = re.compile(r"\b(map|variant)\b")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.snapshots import Snapshot


def kept_keys(
    task: Task, base: Snapshot, columns: Sequence[str], keys: DataFrame, place: str
) -> Touched | None:
    """Keep the keys that a build touched, if a source reads its table; return None if it did not.

    Parameters
    ----------
    base
        The snapshot that the build continues. No row with another key differs from it.
    columns
        The key columns, as the table names them.
    keys, place
        The keys, in their first columns, and the directory that they are read from.

    Raises
    ------
    StorageError
        They cannot be copied.
    """
    reader = task.reader
    if base.table != task.started.table or not reader.project.readers[task.source.source_id]:
        return None
    types = {c.name.lower(): c.type for c in base.columns}
    present = reader.engine.columns(keys, task.source.name)[: len(columns)]
    key_types = [types[column.lower()] or "map" for column in columns]
    if [c.type for c in present] != key_types or any(map(_UNCOMPARABLE.search, key_types)):
        return None
    root = reader.settings.table_root(base.table)
    n_files = keep_keys(place, root, task.build_uid)
    return Touched(base.version, tuple(columns), n_files) if n_files else None
