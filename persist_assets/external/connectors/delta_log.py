"""The log of a Delta table: its versions, their names, and the file system it is on."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.core.time_values import UTC_NAMES
from persist_assets.external.connectors.access import delta_access
from persist_assets.external.connectors.delta_schema import timestamp_keys
from persist_assets.external.connectors.file_connector import Unfollowable
from persist_assets.external.connectors.pruning import has_zone
from persist_assets.storage.commits import commit_file, parse_commit
from persist_assets.storage.delta_tables import file_actions
from persist_assets.storage.files import delta_place, reached, unreachable
from persist_assets.storage.raw import OF_DELTA, is_hidden_file, open_delta, partition_texts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from zoneinfo import ZoneInfo

    from persist_assets.storage.commits import Actions

_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
_HIDDEN_FILES = ":hidden files"
"""The suffix of the name of a version with files whose names begin with _ or a dot."""


class DeltaLog:
    """The log of a Delta table.

    Parameters
    ----------
    location
        Absolute path or URI of the table.
    access
        The storage options, with references resolved.
    timezone
        The session's time zone, in which timestamps of partitions without a zone are read.
    """

    def __init__(self, location: str, access: Mapping[str, str], timezone: ZoneInfo) -> None:
        self.location, self._access, self._timezone = location, access, timezone

    def open(self, version: int | None = None) -> Any:
        """Return the `DeltaTable` at a version; None: the newest."""
        return open_delta(self.location, version, delta_access(self._access))

    def open_as_of(self, timestamp: str) -> Any:
        """Return the `DeltaTable` at the version that was current at an ISO timestamp.

        Raises
        ------
        GoneError
            The log starts later.
        StorageError
            The times of versions are not those of the log's files.
        """
        from deltalake.exceptions import DeltaError

        moment = datetime.fromisoformat(timestamp)
        gone = GoneError(
            f"the Delta table at {self.location} has no version as of {timestamp}",
            hint="its log starts later",
        )
        table = self.open()
        if table.metadata().configuration.get(_IN_COMMIT_TIMESTAMPS, "false").lower() == "true":
            raise StorageError(
                f"the Delta table at {self.location} uses inCommitTimestamp, so `datetime`"
                " cannot find a version",
                hint="set `version` to the version to start from",
            )
        try:
            table.load_as_version(moment)
        except (DeltaError, OSError, ValueError) as error:
            raise gone from error
        with self.file_system() as (system, root):
            (commit,) = system.get_file_info([f"{root}{commit_file(table.version())}"])
        # delta-rs returns the first version for all earlier moments too.
        if commit.mtime is None or commit.mtime > moment:
            raise gone
        return table

    # ------------------------------------------------------------------------ names of versions

    def name(self, table: Any) -> str:
        """Return a name that no other version has, even if the log is deleted and starts anew."""
        name = f"{OF_DELTA}{table.version()}:{table.metadata().id}"
        commit = self.commit_bytes(table.version())
        return name if commit is None else f"{name}:{sha256(commit).hexdigest()[:12]}"

    def full_name(self, table: Any) -> str:
        """Return the name of a version, with its `reading`."""
        name, reading = self.name(table), self.reading(table)
        return ":".join([*name.split(":"), ""][:4]) + reading if reading else name

    def reading(self, table: Any) -> str:
        """Return a suffix for what affects a version's rows besides its log; empty if nothing does.

        Earlier releases lost the rows of hidden files, and read timestamps of partitions as UTC if
        they have no zone.
        """
        paths: list[str] = file_actions(table)["path"].to_pylist()
        reading = _HIDDEN_FILES if any(map(is_hidden_file, paths)) else ""
        if self._timezone.key in UTC_NAMES:
            return reading
        keys = timestamp_keys(table)
        texts = (texts[f.physical] for texts in self.partition_texts(table).values() for f in keys)
        if any(text and not has_zone(text) for text in texts):
            reading += f":moments of {self._timezone.key}"
        return reading

    def is_misread(self, version: str) -> bool:
        """Whether a version would be read differently now; False if that cannot be determined."""
        try:
            return self.reading(self.open(number_of(version))) != reading_of(version)
        except StorageError:
            return False

    # ----------------------------------------------------------------------------------- commits

    def partition_texts(self, table: Any) -> Mapping[str, Mapping[str, str | None]]:
        """Return the partition values of files as the log writes them, by path.

        They are only read if a partition column is a TIMESTAMP; otherwise the result is empty.
        """
        if not timestamp_keys(table):
            return {}
        with self.file_system() as (system, root):
            return partition_texts(table, self.location, system, root)

    def commit_bytes(self, version: int) -> bytes | None:
        """Return the content of a commit's log file; None if it is gone."""
        try:
            with (
                self.file_system() as (system, root),
                system.open_input_stream(f"{root}{commit_file(version)}") as stream,
            ):
                commit: bytes = stream.read()
                return commit
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return None

    def commit(self, version: int) -> Actions:
        """Return the actions of a commit by their kind.

        Raises
        ------
        Unfollowable
            The log no longer has it.
        """
        commit = self.commit_bytes(version)
        if commit is None:
            raise Unfollowable(f"its log no longer has version {version}")
        return parse_commit(commit, version, self.location)

    @contextmanager
    def file_system(self) -> Generator[tuple[Any, str]]:
        """Yield a pyarrow file system, and the prefix of paths of the table's files in it.

        Raises
        ------
        StorageError
            The store cannot be reached.
        """
        if not self._access:
            with reached(self.location) as (system, root):
                yield system, root.rstrip("/") + "/"
            return
        from deltalake.exceptions import DeltaError
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        from persist_assets.storage.patient import patient

        uri, options = delta_place(self.location)
        options = {**(options or {}), **delta_access(self._access)}
        try:
            system = fs.PyFileSystem(DeltaStorageHandler(uri, options))
            yield system if is_local(self.location) else patient(system, self.location), ""
        except (DeltaError, OSError) as error:
            raise unreachable(self.location, error) from error


def number_of(version: str) -> int:
    """Return the number in the name of a version.

    Examples
    --------
    >>> number_of("delta:7:3f-2a:0123456789ab")
    7
    """
    return int(version.removeprefix(OF_DELTA).partition(":")[0])


def table_id_of(version: str) -> str:
    """Return the table's id in the name of a version.

    Examples
    --------
    >>> table_id_of("delta:7:3f-2a:0123456789ab")
    '3f-2a'
    """
    return version.split(":")[2]


def reading_of(version: str) -> str:
    """Return the part of a version's name that records how it was read; see `DeltaLog.reading`.

    Examples
    --------
    >>> reading_of("delta:7:3f-2a:0123456789ab"), reading_of("delta:7:3f-2a::hidden files")
    ('', ':hidden files')
    """
    return "".join(f":{part}" for part in version.split(":")[4:])


def has_commit(version: str) -> bool:
    """Whether the name of a version has the digest of its commit."""
    return any(version.split(":")[3:4])


def has_hidden_files(reading: str) -> bool:
    """Whether hidden files are part of a reading."""
    return _HIDDEN_FILES in reading


def is_same_version(name: str, version: str) -> bool:
    """Whether two names belong to one version; parts that one of them lacks do not count."""
    parts = zip(name.split(":")[:4], version.split(":")[:4], strict=False)
    return all(part == other for part, other in parts if part and other)
