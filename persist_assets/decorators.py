"""Decorators for functions that are sources, or that queries call.

The compiler finds decorators by their names and runs no code. On import, decorators return the
functions unchanged, so tests can call them with frames of their own. Imports nothing.
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
    """Declare a function that fetches outside data. Every run that reads it calls it.

    Parameters
    ----------
    keys
        Keys of annotations: ``owner``, ``tags``, ``group``.
    """
    return _as_it_is(function)


@overload
def model(function: F, /) -> F: ...
@overload
def model(**keys: object) -> Callable[[F], F]: ...
def model(function: Any = None, /, **keys: object) -> Any:
    """Declare a source without a table: it is computed where it is read.

    Parameters
    ----------
    keys
        Keys of annotations, and ``inputs``, which maps parameters to sources.
    """
    return _as_it_is(function)


@overload
def table(function: F, /) -> F: ...
@overload
def table(**keys: object) -> Callable[[F], F]: ...
def table(function: Any = None, /, **keys: object) -> Any:
    """Declare a persisted source: a source with a table.

    Parameters
    ----------
    keys
        Keys of annotations, as for `model`.

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
    """Declare a persisted source whose table grows with its inputs.

    It is impossible to prove which rows of a function are new, so a build computes all rows, unless
    ``assume="exact"`` states that only rows past the watermark are new.

    Parameters
    ----------
    keys
        Keys of annotations, as for `model`: ``time_column`` or ``watermark``, ``lookback``, ….
    """
    return _as_it_is(function)


def udf(*, returns: str, deterministic: bool = True) -> Callable[[F], F]:
    """Declare a function that SQL queries can call, for values of one row.

    Parameters
    ----------
    returns
        The type of its result in Spark SQL: ``int``, ``array<string>``.
    deterministic
        Whether equal arguments always give equal results. It must be set if the code uses random
        values or the clock.

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
"""The filter for the rows that a build computes, set while it calls a function."""


def incremental_filter(column: str) -> Callable[[Frame], Frame]:
    """Return a function that filters a frame to the rows that a build computes.

    These are the rows whose `column` is at or after the watermark, or at most ``lookback`` before
    it, and the rows where it is NULL. Where a build computes all rows, and outside of builds, the
    function returns the frame unchanged.

    Parameters
    ----------
    column
        A column of the frame that increases with the time column of the source, and has its type:
        a date, timestamp, number or string. Dates and timestamps may be mixed.

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
