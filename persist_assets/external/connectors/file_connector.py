"""The shared base of connectors to tables of files: declaration, checks, Spark reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from persist_assets.core.dialect import char_size
from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.object_stores import spark_pattern
from persist_assets.engine.named_files import AS_NAMED, check_rows, padded
from persist_assets.external.connectors.access import spark_access
from persist_assets.external.connectors.protocol import Capabilities, Changes, Pruned
from persist_assets.external.connectors.reading import conditions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import External


class Unfollowable(Exception):
    """The changes between two versions cannot be derived, so all rows have to be read again."""


@contextmanager
def unfollowable_if_gone() -> Generator[None]:
    """Raise `Unfollowable` if a version or a file turns out to be gone."""
    try:
        yield
    except GoneError as error:
        raise Unfollowable(error.message) from error


def read_cost(rows: Sequence[int | None], sizes: Iterable[int], n_files: int) -> Pruned:
    """Return the cost of reading some files.

    Parameters
    ----------
    rows
        The number of rows in each file; None: not recorded.
    sizes
        The size of each file, in bytes.
    n_files
        The number of files of the table.

    Examples
    --------
    >>> read_cost([3, 2], [10, 20], 5)
    Pruned(files=2, of=5, rows=5, bytes=30)
    >>> read_cost([3, None], [10, 20], 5).rows is None
    True
    """
    counted = [n for n in rows if n is not None]
    total = sum(counted) if len(counted) == len(rows) else None
    return Pruned(len(rows), n_files, total, sum(sizes))


class FileConnector(ABC):
    """A table of files, as `protocol.Connector` describes it.

    Parameters
    ----------
    external
        Its declaration.
    location
        Absolute path or URI.
    columns
        The declared columns.
    access
        The storage options, with references resolved.
    session
        Returns the Spark session; called when rows are read.
    timezone
        The session's time zone.
    """

    format: ClassVar[str]
    """The name of the table format in messages."""
    prefix: ClassVar[str]
    """The prefix of the names of its versions."""
    capabilities: Capabilities
    staging: str | None = None
    fetched: int | None = None

    def __init__(
        self,
        external: External,
        location: str,
        columns: Sequence[Column],
        access: Mapping[str, str],
        session: Callable[[], SparkSession],
        timezone: ZoneInfo,
    ) -> None:
        self.external, self.location, self.columns = external, location.rstrip("/"), columns
        self.label = f"the {self.format} table at {self.location}"
        self._access, self._session, self._timezone = access, session, timezone
        self._chars = frozenset(c.name.lower() for c in columns if char_size(c.type))
        """Columns of type CHAR(n). Files do not pad their values, so statistics do not apply."""
        self._checked: set[str] = set()
        """Files of which Spark is known to read all rows. A file never changes."""

    # -------------------------------------------------------------------------------- protocol

    @abstractmethod
    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""

    def start(self) -> str | None:
        """Return the version that a new copy begins with; see `protocol.Connector`."""
        return self._start_version() if self._has_start else None

    @abstractmethod
    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading a version for a predicate; see `protocol.Connector`."""

    @abstractmethod
    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return rows of a version; see `protocol.Connector`."""

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return the rows added and removed between two versions; see `protocol.Connector`."""
        if since == until:
            return Changes()
        conditions = conditions_of(self.external, predicate, start=False)
        try:
            return self._changes(since, until, conditions, columns)
        except Unfollowable as reason:
            return Changes(full_read_reason=str(reason))

    def is_same(self, since: str, until: str) -> bool:
        """Whether no row was added or removed between two versions; see `protocol.Connector`."""
        if since == until or not since.startswith(self.prefix):
            return since == until
        try:
            if not self._may_be_same(since, until):
                return False
            changes = self.changes(since, until, None, [c.name for c in self.columns])
        except (StorageError, Unfollowable):
            return False
        return changes.full_read_reason is None and changes.load is None

    def close(self) -> None:  # noqa: B027
        """Do nothing: nothing is kept open."""

    def confirm(self) -> None:  # noqa: B027
        """Do nothing: files of a version never change."""

    # --------------------------------------------------------------------------------- formats

    @abstractmethod
    def _start_version(self) -> str:
        """Return the version that the declaration names as the start."""

    @abstractmethod
    def _changes(
        self, since: str, until: str, conditions: Sequence[str], columns: Sequence[str]
    ) -> Changes:
        """Return the changes between two different versions.

        Raises
        ------
        Unfollowable
            They cannot be derived.
        """

    @abstractmethod
    def _may_be_same(self, since: str, until: str) -> bool:
        """Whether two versions may have the same rows, as far as the log alone tells."""

    # ---------------------------------------------------------------------------------- shared

    @property
    def _has_start(self) -> bool:
        return self.external.version is not None or self.external.datetime is not None

    def _replaced(self) -> GoneError:
        return GoneError(
            f"{self.label} was replaced after it was pinned",
            hint="read the new table again in full",
        )

    def _not_append_only(self, culprit: str = "") -> StorageError:
        return StorageError(
            f"rows of {self.label} were changed or deleted{culprit},"
            " but it is declared append_only",
            hint="remove 'append_only' from its declaration",
        )

    @property
    def _store_access(self) -> Mapping[str, str]:
        """The options of the store that the files are in."""
        return self._access

    def _parquet(self, places: Iterable[str], schema: StructType | str | None = None) -> DataFrame:
        """Return all rows of the files at these places."""
        reader = (
            self._session().read.options(**AS_NAMED).options(**spark_access(self._store_access))
        )
        if schema is not None:
            reader = reader.schema(schema)
        return reader.parquet(*map(spark_pattern, places))

    def _fitting(self, frame: DataFrame, conditions: Sequence[str]) -> DataFrame:
        """Return the rows that meet all conditions, with CHAR columns padded."""
        padded_frame = padded(frame, self.columns)
        return reduce(lambda rows, text: rows.where(text), conditions, padded_frame)

    def _check_row_counts(self, n_rows: Mapping[str, int]) -> None:
        """Raise if the number of rows that Spark reads of files differs from their log.

        Parameters
        ----------
        n_rows
            The number of rows by the place of the file, deleted rows included.
        """
        unchecked = {place: n for place, n in n_rows.items() if place not in self._checked}
        if unchecked:
            check_rows(self._parquet(unchecked, "_ int"), unchecked, self.label)
            self._checked |= unchecked.keys()
