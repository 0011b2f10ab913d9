"""Trimming: old events of the log are archived as Parquet files, and then deleted.

The order makes this safe. A file is written, and read again in full, before one of its events is
deleted. A trim that is killed leaves events that are archived and not deleted: the next trim finds
them in the archive and deletes them.

An archive has a directory for each log, with files `events-FIRST-LAST.parquet`, named by the
positions of their first and last events; each holds only events that are no longer in the log.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.core.settings.user import make_private
from persist_assets.ledger.trims import LEASE
from persist_assets.storage.files import list_own, reached

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

AT_ONCE = 50_000
"""The number of events read and archived at once."""
_FILE = re.compile(r"events-(\d+)-(\d+)(?:\.\d+)?\.parquet")
_TEXTS = (
    *("kind", "environment", "partition_ref", "build_request_id", "task_id", "job_label"),
    "data",
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The outcome of a trim.

    Attributes
    ----------
    upto
        The position up to which the log was looked at; 0: no event was old enough.
    deleted, still_needed
        How many of these events were archived and deleted, and how many are still needed.
    archive
        The directory of the files.
    files
        The names of those that were written.
    """

    upto: int
    deleted: int
    still_needed: int
    archive: str
    files: tuple[str, ...]


def trim(
    settings: Settings,
    ledger: Ledger,
    older_than_s: int,
    *,
    archive: str | None = None,
    dry_run: bool = False,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    tell: Callable[[int, int], None] = lambda done, last: None,
) -> Trimmed:
    """Archive and delete events that are older than some seconds and no longer needed.

    Builds and readers go on meanwhile: each transaction deletes a few thousand events at most.

    Parameters
    ----------
    archive
        The directory of the archives; None: that of the settings.
    dry_run
        Only count.
    tell
        Called with the position that was reached and the last one.

    Raises
    ------
    ConflictError
        Another process trims this log. Nothing was changed.
    StorageError
        The archive cannot be written, or lacks rows that were written. No event that is not
        archived was deleted.
    """
    place = settings.resolve(archive or settings.retention.archive).rstrip("/")
    directory = f"{place}/{ledger.events.log_id()}"
    before = clock() - timedelta(seconds=older_than_s)
    with ledger.leases.hold(LEASE, "persist ledger trim", wait_s=0):
        upto = ledger.trims.find_cut(before)
        needed = ledger.trims.fetch_needed(upto)
        n_deleted, n_kept, files = 0, 0, list[str]()
        for rows in _read(ledger, upto):
            stay = {r.idx for r in rows if r.at >= before or needed.is_needed(r)}
            old = [r for r in rows if r.idx not in stay]
            n_deleted, n_kept = n_deleted + len(old), n_kept + len(stay)
            if old and not dry_run:
                if n_deleted == len(old):  # the first ones
                    ledger.trims.record_base()
                files += _archive(directory, old)
                ledger.trims.delete([r.idx for r in old], stay)
            tell(rows[-1].idx, upto)
        if n_deleted and not dry_run:
            ledger.trims.record_end(upto, n_deleted, place)
    return Trimmed(upto, n_deleted, n_kept, directory, tuple(files))


def _read(ledger: Ledger, upto: int) -> Iterator[Sequence[Any]]:
    """Yield the events up to a position in order, many at once."""
    last = 0
    while rows := ledger.trims.fetch_rows(last, upto, limit=AT_ONCE):
        yield rows
        last = rows[-1].idx


def _archive(directory: str, rows: Sequence[Any]) -> list[str]:
    """Archive events; return the files that were written.

    Those that an interrupted trim has archived already are not written once more.
    """
    table, existing = _table(rows), _files_in(directory)
    for name, (low, high) in existing.items():
        if low <= rows[-1].idx and rows[0].idx <= high:
            table = _without(table, f"{directory}/{name}")
    if not table.num_rows:
        return []
    positions = table["idx"].to_pylist()
    stem = f"events-{positions[0]}-{positions[-1]}"
    names = (f"{stem}.parquet", *(f"{stem}.{n}.parquet" for n in range(2, 1000)))
    name = next(n for n in names if n not in existing)
    _write_file(directory, name, table)
    if not _read_file(f"{directory}/{name}").equals(table):
        raise StorageError(
            f"the archive {directory}/{name} does not have the rows that were written",
            hint="check the disk; no event was deleted",
        )
    return [name]


def _without(table: Any, file: str) -> Any:
    """Return the rows of a table that a file does not have."""
    import pyarrow as pa

    positions = {*_read_file(file, ["idx"])["idx"].to_pylist()}
    if positions.isdisjoint(table["idx"].to_pylist()):
        return table
    written = {row["idx"]: row for row in _read_file(file).to_pylist()}
    return table.filter(pa.array([written.get(row["idx"]) != row for row in table.to_pylist()]))


def _table(rows: Sequence[Any]) -> Any:
    """Return events as a table of Arrow: the columns of the log, `data` as a text in JSON."""
    import pyarrow as pa

    columns = {
        "idx": pa.array([r.idx for r in rows], pa.int64()),
        "at": pa.array([r.at for r in rows], pa.timestamp("us", tz="UTC")),
        **{name: pa.array([getattr(r, name) for r in rows], pa.string()) for name in _TEXTS},
    }
    return pa.table(columns)


def _files_in(directory: str) -> dict[str, tuple[int, int]]:
    """Return the files of an archive, each with the positions of its first and last event."""
    names = (file.name for file in list_own(directory))
    matches = {name: match for name in names if (match := _FILE.fullmatch(name))}
    return {name: (int(match[1]), int(match[2])) for name, match in matches.items()}


def _write_file(directory: str, name: str, table: Any) -> None:
    """Write a file, which gets its name once it is complete."""
    import pyarrow.parquet as pq

    partial = f"{directory}/{name}.part"
    with _made(directory), reached(partial) as (system, path):
        pq.write_table(table, path, filesystem=system, compression="zstd")
        if is_local(directory):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        system.move(path, path.removesuffix(".part"))


@contextmanager
def _made(directory: str) -> Generator[None]:
    """Make a local directory, which only its owner may enter."""
    if is_local(directory):
        try:
            make_private(Path(directory))
        except OSError as error:
            raise StorageError(
                f"cannot create the archive {directory}: {error.strerror}",
                hint="nothing was deleted",
            ) from error
    yield


def _read_file(location: str, columns: Sequence[str] | None = None) -> Any:
    import pyarrow.parquet as pq

    with reached(location) as (system, path), system.open_input_file(path) as file:
        return pq.ParquetFile(file).read(columns and [*columns], use_threads=False)
