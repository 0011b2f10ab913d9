"""Permissions of roles: for which sources, and in which environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.errors import PersistError
from persist_assets.planning.selection import select
from persist_assets.wants.requests import resolve
from persist_assets.web.access import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.wants import PartitionRef
    from persist_assets.web.access import Caller, Right


def forbidden(caller: Caller, right: Right, target: str = "") -> Refused:
    """Return the answer to a caller who lacks a right."""
    if caller.may("build") or caller.may("promote"):
        words = {"build": "build", "promote": "promote into"}.get(right, "do everything")
        return Refused(403, "forbidden", f"`{caller.name}` may not {words} {target}".strip())
    return Refused(403, "forbidden", f"the token `{caller.name}` is read-only")


def require_build(caller: Caller, observe: Callable[[], Observer], *refs: PartitionRef) -> None:
    """Refuse a caller who may not build, want or taint the sources of partitions.

    Parameters
    ----------
    observe
        Returns an observer; not called for those who may do everything.

    Raises
    ------
    Refused
        One of the sources is not among those of the caller's roles.
    NotFoundError
        A reference names nothing.
    """
    if caller.may("write"):
        return
    observer = observe()
    allowed = _allowed(caller, observer)
    for ref in refs:
        if resolve(observer, ref).source.source_id not in allowed:
            raise forbidden(caller, "build", f"`{ref[:200]}`")


def _allowed(caller: Caller, observer: Observer) -> set[SourceID]:
    """Return the sources that a caller may build; invalid selections add none."""
    sources: set[SourceID] = set()
    for pattern in caller.build:
        try:
            sources.update(
                select(observer.project, [pattern], selectors=observer.settings.selectors)
            )
        except PersistError:  # an unknown name, or one that is no longer defined
            continue
    return sources


def require_promote(caller: Caller, environment: str) -> None:
    """Refuse a caller who may not change the manifest of an environment.

    Raises
    ------
    Refused
        The environment is not among those of the caller's roles.
    """
    if not caller.may("write") and environment not in caller.promote:
        raise forbidden(caller, "promote", f"`{environment[:64]}`")
