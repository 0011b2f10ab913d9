"""What a connector is: how an external table's versions are told, read, and followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

CHANGE, VERSION = "_persist_change", "_persist_version"
"""The columns of changes that say what became of a row (`INSERT`, `DELETE`), and when."""
INSERT, DELETE = "insert", "delete"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is read for a predicate, of a version or of what changed.

    Attributes
    ----------
    files
        How many files may hold rows of it.
    of
        How many files there are.
    rows
        How many rows these files have, at most; None where they do not tell.
    bytes
        Their sizes together, of all columns.
    """

    files: int = 0
    of: int = 0
    rows: int | None = 0
    bytes: int = 0

    def __add__(self, more: Pruned) -> Pruned:
        """Return what is read together.

        Examples
        --------
        >>> Pruned(1, 3, 2, 50) + Pruned(1, 1, None, 9)
        Pruned(files=2, of=4, rows=None, bytes=59)
        """
        rows = None if self.rows is None or more.rows is None else self.rows + more.rows
        return Pruned(self.files + more.files, self.of + more.of, rows, self.bytes + more.bytes)


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of the rows of a table between two versions.

    Attributes
    ----------
    load
        Returns `frame`; nothing is read before. None where no row came or went.
    again
        Why the rows have to be brought again as a whole; None: they do not.
    only_came
        Whether no row went.
    read
        The files that tell of it.
    """

    load: Callable[[], DataFrame] | None = None
    again: str | None = None
    only_came: bool = False
    read: Pruned = Pruned()

    @property
    def frame(self) -> DataFrame | None:
        """A row for each row that came or went, with `CHANGE` and `VERSION`; None: none did.

        In the order of versions, deletes before inserts, they make the later table of the earlier.
        """
        return None if self.load is None else self.load()


class Connector(Protocol):
    """An external table, as it is reached.

    Predicates are conditions of Spark's SQL on one row, None: all rows. What a declaration
    filters by is added here. They may be wide; what comes back is exactly what fits.
    """

    def pin(self, held: str | None = None) -> str:
        """Return the version to bring a copy to, which holds `held` so far.

        Raises
        ------
        StorageError
            There is no such table, or it cannot be read correctly, or not as it is declared.
        """
        ...

    def start(self) -> str | None:
        """Return the version at which a copy begins that follows; None: at what is pinned.

        In mode follow no rows of it are brought, but all changes since.
        """
        ...

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return what reading a version for a predicate costs, without reading data."""
        ...

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return the rows of a version for which a predicate is true, and columns of them.

        Parameters
        ----------
        order
            A column in whose order files are read, roughly, where they can be told so.

        Raises
        ------
        GoneError
            The version, or a file of it, is gone.
        """
        ...

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return what became of the rows for which a predicate is true, after `since`.

        A row that moves across the predicate came or went. No rows are read, nor is Spark asked,
        until they are loaded.
        """
        ...

    def is_same(self, since: str, until: str) -> bool:
        """Whether a later version certainly has the rows of an earlier one, in all columns read.

        Costs little where rows changed. What cannot be told may have changed; nothing is raised.
        """
        ...
