"""What stands above functions that are sources.

When a file of sources is compiled these are found by their names and nothing is run. When it is
imported they return functions as they are, so that tests call them with frames of their own.
Imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

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

    Parameters
    ----------
    keys
        Those of annotations, as for `model`.
    """
    return _as_it_is(function)


def _as_it_is(function: Any) -> Any:
    return function if function is not None else lambda decorated: decorated  # pyright: ignore[reportUnknownLambdaType]
