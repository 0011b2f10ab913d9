"""What became of data since rows were computed from it, file by file.

Of a Delta table its log tells, version by version. What files other data had at a version is
kept in the warehouse, under the version (`keep_listing`). The invariant: what cannot be told for
certain is None, never "unchanged".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.errors import StorageError
from persist_assets.model import Change, Piece
from persist_assets.storage.files import is_there, reached
from persist_assets.storage.raw import OF_DELTA, OF_FILES, OF_PARSED, digest_of_files, file_location
from persist_assets.storage.tables import file_sizes, find_table, live_files

if TYPE_CHECKING:
    from persist_assets.storage.raw import Pin
    from persist_assets.storage.tables import Live

_MOST_FOOTERS = 500
"""Of so many files that came the footers are read."""
LISTINGS = ".listings"
"""The directory of a warehouse that holds, by ledger and version, which files raw data had."""


def listings_of(warehouse: str, log_id: str) -> str:
    """Return the directory with the listings that builds of one ledger keep in a warehouse."""
    return f"{warehouse.rstrip('/')}/{LISTINGS}/{log_id}"


def keep_listing(directory: str, pin: Pin) -> None:
    """Keep which files raw data has at a version, for builds that continue those of today.

    Parameters
    ----------
    directory
        See `listings_of`.
    """
    if pin.version is None or not pin.version.startswith(OF_FILES) or pin.files is None:
        return
    place = _listing(directory, pin.version)
    if not is_there(place):
        with reached(place) as (system, path):
            system.create_dir(path.rpartition("/")[0], recursive=True)
            part = f"{path}.{uuid4().hex}"
            with system.open_output_stream(part) as stream:
                stream.write(json.dumps(_listed(pin)).encode())
            system.move(part, path)


def _listed(pin: Pin) -> dict[str, list[Any]]:
    """Return by what the files of a pin are known to be the same, by their paths."""
    return {path: [*told] for path, told in zip(pin.files or (), pin.told, strict=True)}


def _listing(directory: str, version: str) -> str:
    return f"{directory}/{version.removeprefix(OF_FILES)}.json"


_LISTED = re.compile(r"([0-9a-f]{32})\.json(\.[0-9a-f]{32})?")


def listed_version(location: str) -> str | None:
    """Return the version of which a file of `listings_of` tells; None where it is no listing."""
    found = _LISTED.fullmatch(location.rpartition("/")[2])
    return OF_FILES + found[1] if found else None


def raw_change(directory: str, location: str, then: str, pin: Pin, form: str = "") -> Change | None:
    """Return what became of raw data since a version; None where that cannot be told.

    Parameters
    ----------
    directory
        That of the listings; see `listings_of`.
    location
        Where it is, absolute.
    then
        The version, as in an as_of.
    form
        The format of plain files: those of Parquet that came tell what is in them.
    """
    now = pin.version or ""
    if then == now:
        return Change()
    if then.startswith(OF_PARSED) != now.startswith(OF_PARSED):
        return None  # the same files had other rows
    if then.startswith(OF_FILES) and now.startswith(OF_FILES) and pin.files is not None:
        before = _read_listing(_listing(directory, then))
        if before is None:
            return None
        after = _listed(pin)
        lost = [path for path, told in before.items() if after.get(path) != told]
        added = [path for path, told in after.items() if before.get(path) != told]
        looked_into = form == "parquet" and len(added) <= _MOST_FOOTERS
        came = map(_parquet_piece if looked_into else Piece, added)
        return Change(tuple(came), tuple(map(Piece, lost)))
    if then.startswith(OF_DELTA) and now.startswith(OF_DELTA):
        (first, table, *files), (last, same, *others) = then.split(":")[1:], now.split(":")[1:]
        if table != same or len(files) != len(others):
            return None
        return delta_change(location, int(first), int(last), *files)
    return None


def _parquet_piece(place: str) -> Piece:
    """Return a file of Parquet with what its footer tells of its columns."""
    from pyarrow import ArrowException, types
    from pyarrow.parquet import ParquetFile

    spans: dict[str, tuple[Any, Any, bool]] = {}
    try:
        with reached(place) as (system, path), system.open_input_file(path) as stream:
            file = ParquetFile(stream)
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            for field in file.schema_arrow:
                told = [c.statistics for group in groups for c in _chunks(group, field.name)]
                known = all(s and s.has_min_max and s.has_null_count for s in told)
                exact = types.is_temporal(field.type) or types.is_signed_integer(field.type)
                if told and known and exact and len(told) == len(groups):
                    low, high = min(s.min for s in told), max(s.max for s in told)
                    spans[field.name.lower()] = (low, high, any(s.null_count for s in told))
    except (OSError, OverflowError, ValueError, TypeError, ArrowException, StorageError):
        return Piece(place)
    return Piece(place, spans)


def _chunks(group: Any, name: str) -> list[Any]:
    """Return the chunks of a column in a row group: one, for a column that is not nested."""
    columns = (group.column(n) for n in range(group.num_columns))
    return [column for column in columns if column.path_in_schema == name]


def _read_listing(place: str) -> dict[str, list[Any]] | None:
    try:
        with reached(place) as (system, path), system.open_input_stream(path) as stream:
            found: dict[str, list[Any]] = json.loads(stream.read())
            return found
    except (OSError, ValueError, StorageError):
        return None


def delta_change(root: str, then: int, now: int, files: str | None = None) -> Change | None:
    """Return what became of a Delta table between two of its versions.

    Parameters
    ----------
    files
        `digest_of_files` of the earlier one, where its log may be another one than it was.
    """
    old, new = find_table(root, then), find_table(root, now)
    if old is None or new is None or old.schema() != new.schema():
        return None
    before, after = file_sizes(old).keys(), file_sizes(new).keys()
    if files is not None and digest_of_files(before) != files:
        return None
    came, went = live_files(new, after - before), live_files(old, before - after)
    return Change(
        tuple(_piece(file, root) for file in came.values()),
        tuple(_piece(file, root) for file in went.values()),
    )


def delta_pieces(root: str, version: int, column: str) -> tuple[Piece, ...]:
    """Return the files of a version of a Delta table, and what a column has; none: it is gone."""
    table = find_table(root, version)
    files = live_files(table, column=column).values() if table else ()
    return tuple(_piece(file, root) for file in files)


def _piece(file: Live, root: str) -> Piece:
    spans = {
        name: (file.least[name], file.greatest[name], file.nulls[name] > 0)
        for name in file.least
        if name in file.greatest and name in file.nulls
    }
    return Piece(file_location(file.path, root), spans, file.bytes)
