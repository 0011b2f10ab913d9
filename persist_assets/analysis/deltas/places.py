"""The places of parts of queries, for messages about what has no rule. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.errors import Location

_P = ParamSpec("_P")
_T = TypeVar("_T")


def located(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make the `NoRule` errors of a method name the part of the query, and keep places of parts.

    The part is the method's last argument. A result of the same class gets the same place.
    """

    @wraps(method)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        part: Any = args[-1]
        place: Location | None = getattr(part, "place", None)
        try:
            result: Any = method(*args, **kwargs)
        except NoRule as error:
            if error.part is None:
                error.part, error.location = part, error.location or place
            raise
        if place is not None and type(result) is type(part) and result.place is None:
            return replace(result, place=place)
        return result

    return run
