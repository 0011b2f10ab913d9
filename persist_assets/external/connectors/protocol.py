"""The protocol of connectors: they name an external table's versions, read and follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.columns import Column

CHANGE, VERSION = "_persist_change", "_persist_version"
"""The columns of changes: the kind of change (`INSERT` or `DELETE`), and its version."""
INSERT, DELETE = "insert", "delete"


@dataclass(frozen=True, slots=True)
class Pruned:
    """The cost of a read for a predicate.

    Attributes
    ----------
    files
        How many files may have matching rows.
    of
        How many files there are.
    rows
        How many rows these files have, at most; None if that is not recorded.
    bytes
        The total size of these files, all columns included.
    """

    files: int = 0
    of: int = 0
    rows: int | None = 0
    bytes: int = 0

    def __add__(self, more: Pruned) -> Pruned:
        """Return the cost of both reads.

        Examples
        --------
        >>> Pruned(1, 3, 2, 50) + Pruned(1, 1, None, 9)
        Pruned(files=2, of=4, rows=None, bytes=59)
        """
        rows = None if self.rows is None or more.rows is None else self.rows + more.rows
        return Pruned(self.files + more.files, self.of + more.of, rows, self.bytes + more.bytes)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a connector, in words for users.

    Attributes
    ----------
    filters
        The conditions that limit what is read.
    columns
        Whether columns that nobody needs are read.
    versions
        The versions of a table that can be read.
    changes
        How the changes between two versions are found.
    keeps_versions
        Whether a table's own log or metadata say which rows an earlier version had.
    """

    filters: str
    columns: str
    versions: str
    changes: str
    keeps_versions: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows added and removed between two versions of a table.

    Attributes
    ----------
    load
        Returns `frame`; nothing is read before that. None if no row was added or removed.
    compare_reason
        Why the rows of the later version have to be compared with those of the copy to know the
        changes; None: they do not.
    full_read_reason
        Why the changes are unknown, so that all rows have to be read again; None: they are known.
    only_came
        Whether no row was removed.
    read
        The cost of reading the changes.
    """

    load: Callable[[], DataFrame] | None = None
    full_read_reason: str | None = None
    only_came: bool = False
    read: Pruned = Pruned()
    compare_reason: str | None = None

    @property
    def frame(self) -> DataFrame | None:
        """A row for each added or removed row, with `CHANGE` and `VERSION`; None: there is none.

        Applied in the order of versions, deletes before inserts, they turn the earlier version into
        the later one.
        """
        return None if self.load is None else self.load()


class Connector(Protocol):
    """Access to an external table.

    A predicate is a condition on one row in Spark's SQL; None: all rows. The connector adds the
    filters of the declaration, and returns exactly the rows that match.

    Attributes
    ----------
    staging
        The directory of a sync, to which it may write rows for Spark to read. None: there is no
        sync, so rows of tables without versions are returned from memory.
    columns
        The declared columns. A connector that keeps versions may be restricted to those that reads
        concern once it has pinned a version: earlier versions may have others in place of the rest.
    """

    staging: str | None
    columns: Sequence[Column]

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the connector."""
        ...

    @property
    def fetched(self) -> int | None:
        """The number of bytes that it fetched itself so far; None: Spark reads the rows."""
        ...

    def close(self) -> None:
        """Release what it has open. It may be used again."""
        ...

    def confirm(self) -> None:
        """Raise if rows that were read may not be those of their version.

        It is called once they are read, and before they, or the lack of them, are recorded.

        Raises
        ------
        ConflictError
            Somebody else changed them meanwhile.
        """
        ...

    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to.

        Parameters
        ----------
        copy_version
            The version that the copy has; None: there is no copy.

        Raises
        ------
        StorageError
            The table does not exist, cannot be read correctly, or differs from its declaration.
        """
        ...

    def start(self) -> str | None:
        """Return the version that a new copy begins with; None: the one that `pin` returns.

        In mode follow the copy has no rows of this version, but all changes since.
        """
        ...

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading the matching rows of a version; no data is read."""
        ...

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return columns of the matching rows of a version.

        Parameters
        ----------
        order
            Files are read roughly in the order of this column, if their statistics allow it.

        Raises
        ------
        GoneError
            The version, or a file of it, is gone.
        EarlierColumnsError
            It is an earlier version, and has other columns than the declared ones.
        """
        ...

    def absent(self, columns: Sequence[str], predicate: str | None, version: str) -> frozenset[str]:
        """Return the columns that no file with matching rows of a version has: all are NULL.

        Only footers of files are read.
        """
        ...

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return the matching rows that were added and removed after `since`.

        A row that begins to match counts as added, one that no longer matches as removed. Spark
        reads nothing until the changes are loaded.
        """
        ...

    def is_same(self, since: str, until: str) -> bool:
        """Whether a later version certainly has the same rows, in all declared columns.

        False if that cannot be determined; nothing is raised. It costs little if rows changed.
        """
        ...
