"""What stands above functions that are sources, or that queries call.

When a file of sources is compiled these are found by their names and nothing is run. When it is
imported they return functions as they are, so that tests call them with frames of their own.
Imports nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

Frame = TypeVar("Frame")
F = TypeVar("F", bound="Callable[..., Any]")


@overload
def source(function: F, /) -> F: ...
@overload
def source(**keys: object) -> Callable[[F], F]: ...
def source(function: Any = None, /, **keys: object) -> Any:
    """Declare data from outside, which a function brings: every run that reads it calls it.

    Parameters
    ----------
    keys
        Those of annotations: ``owner``, ``tags``, ``group``.
    """
    return _as_it_is(function)


@overload
def model(function: F, /) -> F: ...
@overload
def model(**keys: object) -> Callable[[F], F]: ...
def model(function: Any = None, /, **keys: object) -> Any:
    """Declare a source that is computed where it is read: it has no table.

    Parameters
    ----------
    keys
        Those of annotations; ``inputs`` says which sources parameters are, by name.
    """
    return _as_it_is(function)


@overload
def table(function: F, /) -> F: ...
@overload
def table(**keys: object) -> Callable[[F], F]: ...
def table(function: Any = None, /, **keys: object) -> Any:
    """Declare a persisted source: it has a table.

    Parameters
    ----------
    keys
        Those of annotations, as for `model`.

    Examples
    --------
    >>> @table(owner="team:flights", check={"not_null": ["carrier"]})
    ... def late(flights):
    ...     return flights.filter("dep_delay > 60")
    >>> late.__name__
    'late'
    """
    return _as_it_is(function)


@overload
def incremental_table(function: F, /) -> F: ...
@overload
def incremental_table(**keys: object) -> Callable[[F], F]: ...
def incremental_table(function: Any = None, /, **keys: object) -> Any:
    """Declare a persisted source whose table grows with what it reads.

    Nobody can prove of a function which of its rows are new: all are computed, unless
    ``assume="exact"`` says that only those past its watermark are.

    Parameters
    ----------
    keys
        Those of annotations, as for `model`: ``time_column`` or ``watermark``, ``lookback``, ….
    """
    return _as_it_is(function)


def udf(*, returns: str, deterministic: bool = True) -> Callable[[F], F]:
    """Declare a function that queries in SQL call, for values of one row.

    Parameters
    ----------
    returns
        The type of its result, as Spark's SQL has it: ``int``, ``array<string>``.
    deterministic
        It has the same result for the same arguments, whenever it is called. Write it out if the
        code uses random values or the clock.

    Examples
    --------
    >>> @udf(returns="string")
    ... def plain(text):
    ...     return text.strip().lower()
    >>> plain(" A ")
    'a'
    """
    return lambda function: function


NARROW: ContextVar[Callable[[Any, str], Any] | None] = ContextVar("narrow", default=None)
"""What narrows a frame to the rows that a build computes anew, while it calls a function."""


def incremental_filter(column: str) -> Callable[[Frame], Frame]:
    """Return what keeps of a frame the rows that a build computes anew.

    That are those from the watermark on, or from ``lookback`` before it, by `column`; rows that
    have no value there stay. All of them where everything is computed, and outside of builds.

    Parameters
    ----------
    column
        Of the frame, whatever was done to it before: a date, a timestamp, a number or a text that
        is later where the time column of the source is.

    Examples
    --------
    >>> incremental_filter("time_hour")(["any frame"])
    ['any frame']
    """

    def narrowed(frame: Frame) -> Frame:
        narrow = NARROW.get()
        return frame if narrow is None else narrow(frame, column)

    return narrowed


def _as_it_is(function: Any) -> Any:
    return function if function is not None else lambda decorated: decorated  # pyright: ignore[reportUnknownLambdaType]
