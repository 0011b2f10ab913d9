"""All errors: one tree of exceptions, and one value for problems with a location.

The invariant: every failure that a user can cause or meet is a `PersistError` that says where it is
(if it has a place), what is wrong, and what to do next. Anything else is a bug in persist.

    PersistError
    ├── SettingsError        wrong usage, or an invalid setting
    │   └── UntrustedError       … because a project names a place that the user does not trust
    ├── SourcesError         errors in the user's sources: carries every `Problem` at once
    ├── NotFoundError        an unknown name
    ├── ConflictError        another process holds, or has already changed, what is needed
    ├── BuildError           a build failed
    │   ├── CheckFailedError     … because its rows failed a blocking check
    │   ├── StaleError           … because a table that it reads is past its freshness window
    │   ├── NotHeldError         … because a copy of an external table lacks rows or columns
    │   ├── UnapprovedError      … because it would read too much of an external table
    │   ├── StrictError          … because strict mode forbids reading sources that are not built
    │   └── NotIncrementalError  … because refresh=strict forbids computing all rows
    ├── LedgerError          the ledger cannot be opened, read or written
    │   ├── LedgerTooNewError    … because a newer release wrote it
    │   └── LedgerUnreachableError … because its database does not answer
    └── StorageError         Spark or the file system failed
        ├── GoneError            … because a file or table no longer exists
        │   └── EarlierColumnsError … because an earlier version has other columns
        ├── ColumnsError         … because a table does not have the declared columns
        └── JavaMissingError     … because there is no Java to run Spark
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from persist_assets._paths import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a text file of the project.

    Attributes
    ----------
    path
        The path relative to the project root, with POSIX separators.
    line, column
        The position, counted from one, in characters.
    """

    path: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of the user's sources, with its location.

    Attributes
    ----------
    code
        The kind of problem for programs: stable, in kebab case.
    message
        The problem for people: one sentence without a final period.
    location
        Its location.
    hint
        The way to fix it, or None.
    severity
        ``error`` prevents the project from loading, ``warning`` and ``note`` do not.
    """

    code: str
    message: str
    location: Location
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.location}: {self.severity}: {self.message} [{self.code}]{hint}"


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems by their places."""
    return sorted(problems, key=lambda p: (p.location, p.code, p.message))


def unexpected(error: Exception, subject: str, location: Location) -> Problem:
    """Return the problem for a part of the sources on which persist itself failed.

    Parameters
    ----------
    subject
        The part, as a message names it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [f for f in frames if PACKAGE in Path(f.filename).parents] or frames
    where = f" ({Path(own_frames[-1].filename).name}:{own_frames[-1].lineno})" if own_frames else ""
    message = f"persist failed on {subject}: {type(error).__name__}: {error}{where}"
    return Problem("internal", message, location, "this is a bug in persist: please report it")


class PersistError(Exception):
    """The root of all errors of this package.

    Parameters
    ----------
    message
        The error, in one sentence.
    hint
        The way to fix it.
    location
        The location, if it is in a file of the project.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, location: Location | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.location = location

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{where}{self.message}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Dagster sends errors from one process to another.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[PersistError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SettingsError(PersistError):
    """Wrong usage of the command line, or an invalid setting."""


class UntrustedError(SettingsError):
    """The project names a place outside of itself that the user does not trust: `persist trust`."""


class SourcesError(PersistError):
    """The user's sources have errors.

    Parameters
    ----------
    problems
        All that is wrong, sorted by location.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        n = len(self.problems)
        listing = "\n".join(str(p) for p in self.problems)
        super().__init__(f"{n} problem{'s' if n != 1 else ''} in the sources\n{listing}")


class NotFoundError(PersistError):
    """The name is unknown."""


class ConflictError(PersistError):
    """Another process holds, or has changed, what the command needs."""


class BuildError(PersistError):
    """A build failed. Readers see no change."""


class MissingUpstream(BuildError):
    """A Python function needs partitions that are not available yet; the function raises it.

    Its build is given up, each of the partitions is wanted, and what wanted the build is tried
    again when they are available.

    Parameters
    ----------
    refs
        Their references: ``departures/2013-01-01``, or of another graph ``users:data/users``.
    """

    def __init__(self, refs: Iterable[str]) -> None:
        self.refs = tuple(refs)
        super().__init__(f"needs {', '.join(self.refs)}, not available yet")


class CheckFailedError(BuildError):
    """The rows of a build failed a blocking check, so it was not published.

    Parameters
    ----------
    results
        What came of every check (`model.CheckResult`).
    """

    def __init__(
        self, message: str, *, results: Sequence[Any] = (), location: Location | None = None
    ) -> None:
        super().__init__(message, location=location)
        self.results = tuple(results)


class StaleError(BuildError):
    """A table is older than its freshness window permits."""


class StrictError(BuildError):
    """Strict mode is on, and a source that would be computed inline is not built."""


class NotIncrementalError(BuildError):
    """With `refresh=strict`, a build would compute all rows of a published table."""


class NotHeldError(BuildError):
    """The local copy of an external table lacks rows, and reading the table is not permitted."""


class UnapprovedError(BuildError):
    """A build would read more of an external table than `approve_above` permits."""


class LedgerError(PersistError):
    """The ledger cannot be opened, read or written."""


class LedgerTooNewError(LedgerError):
    """A newer release of this package wrote the ledger."""


class LedgerUnreachableError(LedgerError):
    """The database of the ledger does not answer. Nothing was changed."""


class StorageError(PersistError):
    """Spark or the file system failed."""


class GoneError(StorageError):
    """A file or table that was written is gone."""


class EarlierColumnsError(GoneError):
    """An earlier version of an external table does not have the declared columns."""


class ColumnsError(StorageError):
    """A table does not have the declared columns, or they do not have the declared types."""


class JavaMissingError(StorageError):
    """There is no Java that Spark can use."""


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the process: an intended interrupt, which is not a failure."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """Return a hint that names the candidate that was probably meant, or None.

    Examples
    --------
    >>> did_you_mean("persit", ["persist", "partition"])
    'did you mean `persist`?'
    >>> did_you_mean("x", ["persist"]) is None
    True
    """
    by_lower = {k.lower(): k for k in candidates}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean `{by_lower[close[0]]}`?" if close else None
