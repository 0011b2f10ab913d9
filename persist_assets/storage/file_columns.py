"""The columns that the files of raw tables have.

The invariant: whether a column is missing depends on all files of a version, not on those that a
build reads.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError
from persist_assets.storage.files import reached
from persist_assets.storage.partition_texts import partition_names, plain_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import RawTable, Source
    from persist_assets.storage.raw import Pin

_FOOTERS_AT_ONCE = 16
_BY_POSITION = re.compile(r"_col\d+")
"""The names of columns in ORC files of old writers: Spark takes them by position."""


def check_columns(source: Source, pin: Pin) -> None:
    """Raise if none of the files of a raw table has some declared column.

    Raises
    ------
    StorageError
        The column is named.
    """
    assert source.raw is not None
    lacking = missing_columns(pin, source.raw, source.columns)
    if lacking:
        raise StorageError(
            f"the data of `{source.name}` has no column `{lacking[0]}`",
            hint=f"it is declared at {source.location}",
            location=source.location,
        )


def check_moments(source: Source, pin: Pin) -> None:
    """Raise if a Delta table has local times where moments are declared, or the other way round.

    Spark would read them as if the times were in UTC.

    Raises
    ------
    StorageError
        The column is named.
    """
    for column in source.columns:
        declared, stored = plain_type(column.type), pin.types.get(column.name.lower(), "")
        if declared != stored and {declared, stored} == {"timestamp", "timestamp_ntz"}:
            raise StorageError(
                f"column `{column.name}` of the Delta table `{source.name}` is a {stored.upper()},"
                f" not a {declared.upper()}",
                hint=f"declare it as {stored.upper()} at {source.location}, and CAST it in queries",
                location=source.location,
            )


def missing_columns(pin: Pin, raw: RawTable, columns: Sequence[Column]) -> list[str]:
    """Return the declared columns that none of the files has; Spark would read NULLs in all rows.

    Usually one footer is read; others only while columns are missing.

    Parameters
    ----------
    pin
        All files of a version.
    """
    if raw.format not in ("parquet", "orc", "delta") or not pin.files:
        return []
    missing = {c.name.lower(): c.name for c in columns}
    for name in pin.types.keys() | partition_names(pin.files, pin.base):
        missing.pop(name, None)
    if pin.types or not missing:
        return [*missing.values()]
    form = "parquet" if raw.format == "delta" else raw.format
    first, *others = pin.files
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for n in (-1, *range(0, len(others), _FOOTERS_AT_ONCE)):
            some = [first] if n < 0 else others[n : n + _FOOTERS_AT_ONCE]
            for names in pool.map(lambda file: _names_in(file, form), some):
                if form == "orc" and all(map(_BY_POSITION.fullmatch, names)):
                    return []
                for name in names:
                    missing.pop(name.lower(), None)
            if not missing:
                break
    return [*missing.values()]


def _names_in(file: str, form: str) -> list[str]:
    """Return the names of the columns of a Parquet or ORC file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import orc

    with reached(file) as (system, path), system.open_input_file(path) as stream:
        try:
            names: list[str] = (
                orc.ORCFile(stream).schema.names if form == "orc" else pq.read_schema(stream).names
            )
        except (pa.ArrowException, OSError) as error:
            name = "an ORC" if form == "orc" else "a Parquet"
            raise StorageError(f"{file} is not {name} file: {error}") from error
        return names
