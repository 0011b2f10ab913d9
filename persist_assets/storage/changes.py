"""What became of data since rows were computed from it, file by file.

Of a Delta table its log tells, version by version. What files other data had at a version is
kept in the warehouse, under the version (`keep_listing`). The invariant: what cannot be told for
certain is None, never "unchanged".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.errors import StorageError
from persist_assets.model import Change, Piece
from persist_assets.storage.files import is_there, reached
from persist_assets.storage.raw import OF_DELTA, OF_FILES, file_location
from persist_assets.storage.tables import find_table, live_files

if TYPE_CHECKING:
    from persist_assets.storage.raw import Pin
    from persist_assets.storage.tables import Live

LISTINGS = ".listings"
"""The directory of a warehouse that holds, by version, which files raw data had."""


def keep_listing(warehouse: str, pin: Pin) -> None:
    """Keep which files raw data has at a version, for builds that continue those of today."""
    if pin.version is None or not pin.version.startswith(OF_FILES) or pin.files is None:
        return
    place = _listing(warehouse, pin.version)
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


def _listing(warehouse: str, version: str) -> str:
    return f"{warehouse.rstrip('/')}/{LISTINGS}/{version.removeprefix(OF_FILES)}.json"


def listed_version(location: str) -> str:
    """Return the version of which a file of `LISTINGS` tells."""
    return OF_FILES + location.rpartition("/")[2].removesuffix(".json")


def raw_change(warehouse: str, location: str, then: str, pin: Pin) -> Change | None:
    """Return what became of raw data since a version; None where that cannot be told.

    Parameters
    ----------
    location
        Where it is, absolute.
    then
        The version, as in an as_of.
    """
    now = pin.version or ""
    if then == now:
        return Change()
    if then.startswith(OF_FILES) and now.startswith(OF_FILES) and pin.files is not None:
        before = _read_listing(_listing(warehouse, then))
        if before is None:
            return None
        after = _listed(pin)
        lost = [path for path, told in before.items() if after.get(path) != told]
        added = [path for path, told in after.items() if before.get(path) != told]
        return Change(tuple(map(Piece, added)), tuple(map(Piece, lost)))
    if then.startswith(OF_DELTA) and now.startswith(OF_DELTA):
        (_, first, table), (_, last, same) = then.split(":", 2), now.split(":", 2)
        return delta_change(location, int(first), int(last)) if table == same else None
    return None


def _read_listing(place: str) -> dict[str, list[Any]] | None:
    try:
        with reached(place) as (system, path), system.open_input_stream(path) as stream:
            found: dict[str, list[Any]] = json.loads(stream.read())
            return found
    except (OSError, ValueError, StorageError):
        return None


def delta_change(root: str, then: int, now: int) -> Change | None:
    """Return what became of a Delta table between two of its versions."""
    old, new = find_table(root, then), find_table(root, now)
    if old is None or new is None or old.schema() != new.schema():
        return None
    before, after = live_files(old), live_files(new)
    return Change(
        tuple(_piece(after[p], root) for p in after if p not in before),
        tuple(_piece(before[p], root) for p in before if p not in after),
    )


def delta_pieces(root: str, version: int) -> tuple[Piece, ...]:
    """Return the files of a version of a Delta table; none where it is gone."""
    table = find_table(root, version)
    return tuple(_piece(file, root) for file in live_files(table).values()) if table else ()


def _piece(file: Live, root: str) -> Piece:
    spans = {
        name: (file.least[name], file.greatest[name], file.nulls[name] > 0)
        for name in file.least
        if name in file.greatest and name in file.nulls
    }
    return Piece(file_location(file.path, root), spans)
