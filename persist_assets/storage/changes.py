"""The changes of data, file by file, since rows were computed from it.

The log of a Delta table states its changes, version by version; files that OPTIMIZE rewrites are no
change (`commits.moves`). For other data, a listing of each version's files is kept in the warehouse
(`keep_listing`). The invariant: an uncertain change is None, never "unchanged".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.plans import Change, Feed, Piece, TouchedKeys
from persist_assets.storage.commits import (
    MOST_COMMITS,
    commit_file,
    is_whole_change,
    maps_columns,
    may_lack_changes,
    moves,
    parse_commit,
)
from persist_assets.storage.delta_features import READABLE_FEATURES, check_readable
from persist_assets.storage.delta_tables import file_sizes, find_table, live_files, origin
from persist_assets.storage.files import file_exists, list_files, reached, stored_rows
from persist_assets.storage.partition_texts import partition_names
from persist_assets.storage.raw import (
    OF_DELTA,
    OF_FILES,
    OF_PARSED,
    Pin,
    delta_version,
    digest_of_files,
    file_location,
    pin_delta,
    pin_raw,
    promised_rows,
    still_holds,
)
from persist_assets.storage.touched_keys import keys_since

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import RawTable
    from persist_assets.storage.commits import Actions
    from persist_assets.storage.delta_tables import Live

LEGACY_BEFORE = 1900
"""The year before which old writers may have used another calendar or other time zones."""
_MOST_FOOTERS = 500
"""The maximum number of new files whose footers are read."""
_MOST_VERSIONS = 16
"""The maximum number of versions opened to look up files that neither end of a change has."""
LISTINGS = ".listings"
"""The directory of a warehouse with the listings of raw data's files, by ledger and version."""


def listings_of(warehouse: str, log_id: str) -> str:
    """Return the directory with the listings that builds of one ledger keep in a warehouse."""
    return f"{warehouse.rstrip('/')}/{LISTINGS}/{log_id}"


def keep_listing(directory: str, pin: Pin) -> None:
    """Store a listing of raw data's files at a version, for builds that continue from it.

    Parameters
    ----------
    directory
        See `listings_of`.
    """
    if pin.version is None or not pin.version.startswith(OF_FILES) or pin.files is None:
        return
    place = _listing(directory, pin.version)
    if not file_exists(place):
        with reached(place) as (system, path):
            system.create_dir(path.rpartition("/")[0], recursive=True)
            part = f"{path}.{uuid4().hex}"
            with system.open_output_stream(part) as stream:
                stream.write(json.dumps(_listed(pin)).encode())
            system.move(part, path)


def _listed(pin: Pin) -> dict[str, list[Any]]:
    """Return the stamps that identify the content of a pin's files, by path."""
    return {path: [*stamp] for path, stamp in zip(pin.files or (), pin.stamps, strict=True)}


def _listing(directory: str, version: str) -> str:
    return f"{directory}/{version.removeprefix(OF_FILES)}.json"


_LISTED = re.compile(r"([a-z]?[0-9a-f]{32})\.json(\.[0-9a-f]{32})?")


def listed_version(location: str) -> str | None:
    """Return the version that a listing in `listings_of` describes; None if it is no listing."""
    match = _LISTED.fullmatch(location.rpartition("/")[2])
    return OF_FILES + match[1] if match else None


def raw_change(directory: str, location: str, then: str, pin: Pin, form: str = "") -> Change | None:
    """Return the change of raw data since a version; None if it is unknown.

    Parameters
    ----------
    directory
        The directory of the listings; see `listings_of`.
    location
        The absolute location of the data.
    then
        The version, as in an as_of.
    form
        The format of plain files; new Parquet files have statistics.
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
        lost = [path for path, stamp in before.items() if after.get(path) != stamp]
        added = [path for path, stamp in after.items() if before.get(path) != stamp]
        looked_into = form == "parquet" and len(added) <= _MOST_FOOTERS
        sizes = {path: stamp[0] for path, stamp in (*before.items(), *after.items())}
        pieces = (_parquet_piece(p, location) if looked_into else Piece(p) for p in added)
        came = (replace(piece, bytes=sizes[piece.path]) for piece in pieces)
        went = (Piece(path, bytes=before[path][0]) for path in lost)
        return Change(tuple(came), tuple(went), total_bytes=pin.bytes or 0)
    if pin.by_log:
        return None  # files that stay may have lost rows
    if then.startswith(OF_DELTA) and now.startswith(OF_DELTA):
        (first, table, *files), (last, same, *others) = then.split(":")[1:], now.split(":")[1:]
        if table != same or len(files) != len(others):
            return None
        last = int(last) if pin.commit is None else pin.commit
        return delta_change(location, int(first), last, *files)
    return None


def _parquet_piece(place: str, location: str) -> Piece:
    """Return a Parquet file with the statistics of its footer.

    A column that is a directory below the table's location has the value of the directory.
    """
    from pyarrow import ArrowException, types
    from pyarrow.parquet import ParquetFile

    spans: dict[str, tuple[Any, Any, bool]] = {}
    rows: int | None = None
    elsewhere = partition_names([place], location)
    try:
        with reached(place) as (system, path), system.open_input_file(path) as stream:
            file = ParquetFile(stream)
            rows = file.metadata.num_rows
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            for field in file.schema_arrow:
                statistics = [c.statistics for group in groups for c in _chunks(group, field.name)]
                is_complete = all(s and s.has_min_max and s.has_null_count for s in statistics)
                exact = types.is_temporal(field.type) or types.is_signed_integer(field.type)
                exact &= field.name.lower() not in elsewhere
                if statistics and is_complete and exact and len(statistics) == len(groups):
                    low, high = min(s.min for s in statistics), max(s.max for s in statistics)
                    if is_early(low):
                        continue
                    spans[field.name.lower()] = (low, high, any(s.null_count for s in statistics))
    except (OSError, OverflowError, ValueError, TypeError, ArrowException, StorageError):
        return Piece(place)
    return Piece(place, spans, rows=rows)


def is_early(value: Any) -> bool:
    """Whether Spark may read a date or a timestamp as another one; see `LEGACY_BEFORE`."""
    return isinstance(value, date) and value.year < LEGACY_BEFORE


def _chunks(group: Any, name: str) -> list[Any]:
    """Return the chunks of a column in a row group: one, for a column that is not nested."""
    columns = (group.column(n) for n in range(group.num_columns))
    return [column for column in columns if column.path_in_schema == name]


def _read_listing(place: str) -> dict[str, list[Any]] | None:
    try:
        with reached(place) as (system, path), system.open_input_stream(path) as stream:
            listing: dict[str, list[Any]] = json.loads(stream.read())
            return listing
    except (OSError, ValueError, StorageError):
        return None


def delta_change(root: str, then: int, now: int, files: str | None = None) -> Change | None:
    """Return the change of a Delta table between two of its versions.

    Parameters
    ----------
    files
        For a table that others write: `digest_of_files` of the earlier version, because its log may
        have been replaced. New columns are allowed; earlier rows have NULL in them.
    """
    old, new = find_table(root, then), find_table(root, now)
    if old is None or new is None:
        return None
    if old.metadata().partition_columns != new.metadata().partition_columns:
        return None  # where a file has the values of these columns is another question
    if old.schema() != new.schema() and (files is None or not _has_columns_of(new, old)):
        return None
    sizes = file_sizes(new)
    before, after, total = file_sizes(old).keys(), sizes.keys(), sum(sizes.values())
    if files is not None and digest_of_files(before) != files:
        return None
    if files is not None and (change := _stated_change(root, old, new)) is not None:
        return replace(change, total_bytes=total)
    came, went = live_files(new, after - before), live_files(old, before - after)
    return Change(
        tuple(_piece(file, root) for file in came.values()),
        tuple(_piece(file, root) for file in went.values()),
        total_bytes=total,
        feed=_feed(root, old, new) if went else None,
        keys=_touched_keys(root, old, new) if went and files is None else None,
    )


def _touched_keys(root: str, old: Any, new: Any) -> TouchedKeys | None:
    """Return the keys that our builds touched between two versions, None if not all kept them."""
    keys = keys_since(root, old.version(), new.version())
    return keys and TouchedKeys(*keys, _more_rows(_counted(old, root), _counted(new, root)))


def change_of_copy(former: str, then: int, root: str, now: int) -> Change | None:
    """Return the change from a version of one table of ours to a version of another one.

    Copies of the former's files count as these files.
    """
    old, new = find_table(former, then), find_table(root, now)
    if old is None or new is None or old.schema() != new.schema():
        return None
    before, after = live_files(old), live_files(new)
    had, has = ({origin(path) for path in files} for files in (before, after))
    return Change(
        tuple(_piece(file, root) for path, file in after.items() if origin(path) not in had),
        tuple(_piece(file, former) for path, file in before.items() if origin(path) not in has),
        total_bytes=sum(file.bytes for file in after.values()),
    )


def _feed(root: str, old: Any, new: Any) -> Feed | None:
    """Return the change data feed between two versions, None if it is not in all commits."""
    tables = (old.metadata(), new.metadata())
    is_on = all(m.configuration.get("delta.enableChangeDataFeed") == "true" for m in tables)
    if not is_on or tables[1].partition_columns or old.schema() != new.schema():
        return None
    recorded: list[str] = []
    added: list[str] = []
    removed: list[str] = []
    n_bytes = 0
    for version in range(old.version() + 1, new.version() + 1):
        actions = _commit(root, version)
        if actions is None or "metaData" in actions or not is_whole_change(actions):
            return None
        if "cdc" in actions and may_lack_changes(actions, partial(_count_rows, root)):
            return None
        files = [(kind, a) for kind in ("cdc", "add", "remove") for a in actions.get(kind, ())]
        if any(action.get("deletionVector") for _, action in files):
            return None
        places = {"cdc": recorded, "add": added, "remove": removed}
        for kind, action in files:
            # What a commit records is its whole change; its files are not.
            if (kind == "cdc") == ("cdc" in actions) and (
                kind == "cdc" or action.get("dataChange", True)
            ):
                places[kind].append(file_location(action["path"], root))
                n_bytes += action.get("size") or 0
    if not recorded:
        return None
    more = _more_rows(_counted(old, root), _counted(new, root))
    return Feed(tuple(recorded), tuple(added), tuple(removed), more, n_bytes)


def _count_rows(root: str, action: Mapping[str, Any]) -> int:
    """Return the number of rows in the file of an action."""
    with reached(file_location(action["path"], root)) as (system, path):
        return stored_rows(system, path)


def _stated_change(root: str, old: Any, new: Any) -> Change | None:
    """Return the change that the commits between two versions state.

    None if it is no smaller than the difference of their files, or if the commits do not state it.
    """
    current, after = ({file_location(p, root) for p in file_sizes(t)} for t in (old, new))
    before, n_more = frozenset(current), Counter[str]()
    first: int = old.version()
    holders = dict.fromkeys(current, first)
    wrote_anew = False
    for version in range(first + 1, min(new.version(), first + MOST_COMMITS) + 1):
        actions = _commit(root, version)
        if actions is None or not is_whole_change(actions) or maps_columns(actions):
            return None
        adds, removes = actions.get("add", ()), actions.get("remove", ())
        if any(a.get("deletionVector") for a in (*adds, *removes)):
            return None
        for actions_of_kind, sign in ((removes, -1), (adds, 1)):
            for action in actions_of_kind:
                place, is_change = file_location(action["path"], root), action.get("dataChange", 1)
                if (place in current) == (sign > 0):
                    if is_change:
                        return None
                    continue  # it is added again, with other statistics
                current ^= {place}
                holders.setdefault(place, version)
                wrote_anew |= not is_change
                n_more[place] += sign if is_change else 0
    if current != after or not wrote_anew:
        return None
    n_rows: list[int | None] = []
    came, went = (+n_more).keys(), (-n_more).keys()
    if new.metadata().partition_columns and not (came <= after and went <= before):
        return None  # in other directories, whose values were not checked
    by_version: dict[int, set[str]] = {}
    for place in {*came, *went}:
        holder: int = new.version() if place in after else holders[place]
        by_version.setdefault(holder, set()).add(place)
    if len(by_version) > _MOST_VERSIONS:
        return None
    pieces: dict[str, Piece] = {}
    for version, places in by_version.items():
        table = find_table(root, version)
        for file in live_files(table).values() if table else ():
            if (piece := _piece(file, root)).path in places:
                pieces[piece.path] = piece
                n_rows.append(file.rows and file.rows * (1 if piece.path in came else -1))
    if pieces.keys() != {*came, *went} or not all(p in after or file_exists(p) for p in came):
        return None
    n = _total(n_rows)
    if n is None or n != _more_rows(_counted(old, root), _counted(new, root)):
        return None
    added, lost = (tuple(pieces[p] for p in sorted(places)) for places in (came, went))
    if came <= after:
        return Change(added, lost)
    # Files that came were united with others: those that stay are not known by the change.
    return None if went else Change(added, before=tuple(sorted(before)))


def version_of_same_rows(location: str, pin: Pin, versions: Iterable[str]) -> str | None:
    """Return one of some versions that certainly has the rows of the pinned version.

    That is the pinned version itself, else the latest one with the same files, else one since which
    all commits state that they change no rows. The table is a Delta table that other programs
    write. Usually only its newest commit is read.

    Returns
    -------
    str | None
        None: the rows may differ from those of all these versions.
    """
    if pin.version is None or pin.commit is None:
        return None
    number, table_id, files = pin.version.removeprefix(OF_DELTA).split(":")
    parts = (v.removeprefix(OF_DELTA).split(":") for v in versions if v.startswith(OF_DELTA))
    earlier = [(int(v[0]), v[2]) for v in parts if len(v) == 3 and v[1] == table_id]
    earlier.sort(reverse=True)
    if (int(number), files) in earlier:
        return pin.version
    match = next((one for one in earlier if one[1] == files), None)
    if match is None and not pin.by_log:
        numbers = [n for n, _ in earlier if n < pin.commit]
        since = _quiet_since(location, pin.commit, min(numbers)) if numbers else pin.commit
        candidates = (one for one in earlier if since <= one[0] < pin.commit)
        match = next((one for one in candidates if _is_so(location, pin, *one)), None)
    return match and f"{OF_DELTA}{match[0]}:{table_id}:{match[1]}"


def pin_version(
    raw: RawTable,
    location: str,
    version: str,
    columns: Sequence[Column] = (),
    *,
    commit: int | None = None,
    listings: str | None = None,
) -> Pin:
    """Return the data that a raw table had at a version, in files that still exist.

    A later version of a Delta table that certainly has the same rows stands for the earlier one.

    Parameters
    ----------
    location
        Absolute path or URI.
    version
        The version, as in an as_of.
    columns
        The declared columns.
    commit
        The version of a Delta table that stood for it when somebody looked.
    listings
        The directory of the listings, where plain files of an earlier version may be listed; see
        `listings_of`.

    Raises
    ------
    GoneError
        The data has changed, or was deleted, and this version can no longer be read.
    StorageError
        The data cannot be reached, or cannot be read correctly.
    """
    try:
        now = pin_raw(raw, location, columns=columns)
    except StorageError as error:
        if list_files(location):
            raise
        raise GoneError(error.message) from error
    if now.version == version:
        return now
    if version.startswith(OF_FILES) and listings is not None:
        return _pin_listed(listings, location, version, now)
    if now.commit is None or not version.startswith(OF_DELTA):
        raise GoneError("it has changed, and only Delta tables keep earlier versions")
    if version_of_same_rows(location, now, [version]) == version:
        return replace(now, version=version)
    number = version.removeprefix(OF_DELTA).partition(":")[0]
    then = pin_delta(location, int(number) if commit is None else commit)
    if commit is not None and version_of_same_rows(location, then, [version]) == version:
        then = replace(then, version=version)
    if then.version != version:
        raise GoneError(f"version {number} of the Delta table at {location} was replaced")
    present = {file.location for file in list_files(location)}
    files = then.files or ()
    lost = next((f for f in files if f not in present and not file_exists(f)), None)
    if lost is not None:
        raise GoneError(f"{lost}, a file of version {number}, is gone")
    return replace(then, types={**now.types, **then.types})  # columns that it lacks are NULL


def _pin_listed(listings: str, location: str, version: str, now: Pin) -> Pin:
    """Return an earlier version of plain files, if all of them are still as they were.

    Parameters
    ----------
    now
        The present files; there may be new ones among them.
    """
    listing = _read_listing(_listing(listings, version))
    if not listing:
        raise GoneError("it has changed, and the list of its earlier files is gone")
    stamps = tuple((size, changed_ns, inode) for size, changed_ns, inode in listing.values())
    files, size = tuple(listing), sum(stamp[0] for stamp in stamps)
    is_single = files[0] == location
    base = location.rpartition("/")[0] if is_single else location
    parted_at = None if now.base is None else base  # as the options of the table say
    pin = Pin(version, files, parted_at, stamps, bytes=size)
    if not still_holds(pin, now):
        raise GoneError("files of it were changed or deleted")
    return pin


def _quiet_since(location: str, last: int, first: int) -> int:
    """Return the version after which no commit can have changed rows, `first` at the earliest.

    A commit that maps columns may empty or swap them, although the files stay the same.
    """
    first = max(first, last - MOST_COMMITS)
    with suppress(StorageError):
        while last > first:
            actions = _commit(location, last)
            if actions is None or moves(actions) or maps_columns(actions):
                break
            last -= 1
    return last


def _is_so(location: str, pin: Pin, version: int, files: str) -> bool:
    """Whether an earlier version is unchanged, and its files had the rows of a pinned one.

    Later commits state so, but they are not trusted if the table contradicts them.
    """
    old, new = find_table(location, version), find_table(location, pin.commit)
    if old is None or new is None or not _has_columns_of(new, old):
        return False
    try:
        check_readable(old, location)  # otherwise its files alone were not its rows
    except StorageError:
        return False
    before, after = old.metadata(), new.metadata()
    if (before.id, before.partition_columns) != (after.id, after.partition_columns):
        return False
    if not READABLE_FEATURES.issuperset(_features(old) ^ _features(new)):
        return False
    promised = promised_rows(old)
    if _more_rows(_counted(old, location), pin.rows) != 0:
        return False
    return delta_version(old, promised).rpartition(":")[2] == files


def _total(numbers: Collection[int | None]) -> int | None:
    counted = [n for n in numbers if n is not None]
    return sum(counted) if len(counted) == len(numbers) else None


def _counted(table: Any, root: str) -> dict[str, int | None]:
    """Return the number of rows in each file of a version, according to the log."""
    return {file_location(path, root): n for path, n in promised_rows(table).items()}


def _more_rows(before: Mapping[str, int | None], after: Mapping[str, int | None]) -> int | None:
    """Return by how many rows the second set of files is larger; None if that is unknown.

    Examples
    --------
    >>> _more_rows({"a": None, "b": 2}, {"a": None, "c": 5}), _more_rows({"a": 2}, {"b": None})
    (3, None)
    """
    came = _total([n for file, n in after.items() if file not in before])
    went = _total([n for file, n in before.items() if file not in after])
    return None if came is None or went is None else came - went


def _features(table: Any) -> set[str]:
    return {*(table.protocol().reader_features or ())}


def _has_columns_of(table: Any, earlier: Any) -> bool:
    """Whether a table has all columns of an earlier version, unchanged, and perhaps more."""
    fields, had = (
        {f["name"]: _as_read(f) for f in json.loads(t.schema().to_json())["fields"]}
        for t in (table, earlier)
    )
    return had.items() <= fields.items()


def _as_read(field: Any) -> str:
    """Return the properties of a column that decide which values are read from it."""
    metadata = {k: v for k, v in field["metadata"].items() if k != "comment"}
    return json.dumps([field["type"], metadata], sort_keys=True)


def _commit(location: str, version: int) -> Actions | None:
    """Return a commit of a Delta table, None if the log no longer has it."""
    try:
        with (
            reached(f"{location}/{commit_file(version)}") as (system, path),
            system.open_input_stream(path) as stream,
        ):
            return parse_commit(stream.read(), version, location)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return None


def delta_pieces(root: str, version: int, column: str) -> tuple[Piece, ...]:
    """Return the files of a Delta table's version with a column's statistics; empty: it is gone."""
    table = find_table(root, version)
    files = live_files(table, column=column).values() if table else ()
    return tuple(_piece(file, root) for file in files)


def _piece(file: Live, root: str) -> Piece:
    spans = {
        name: (file.least[name], file.greatest[name], file.nulls[name] > 0)
        for name in file.least
        if name in file.greatest and name in file.nulls
    }
    return Piece(file_location(file.path, root), spans, file.bytes, file.rows)
