"""Results that several clients share: those of one moment, and those that no event has changed.

The invariant: a result is computed from what is there after its client asked, or from records that
the ledger's log says are still the same.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from persist_assets.ledger.log import EventLog, Mark

Result = TypeVar("Result")
Value = TypeVar("Value")


class Shared:
    """One computation at a time; callers that arrive while one runs share the next one.

    Use it in one event loop. A client that goes away does not end what others wait for.
    """

    def __init__(self) -> None:
        self._running: asyncio.Future[Any] | None = None
        self._next: asyncio.Future[Any] | None = None

    async def get(self, act: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `act`, or of that of another client that has not begun yet.

        Raises
        ------
        Exception
            Whatever `act` raises, for each of them.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._follow(self._running, act))
            self._next.add_done_callback(lambda f: f.cancelled() or f.exception())
        return await asyncio.shield(self._next)

    async def _follow(
        self, before: asyncio.Future[Any] | None, act: Callable[[], Awaitable[Result]]
    ) -> Result:
        if before is not None:
            with suppress(Exception):
                await asyncio.shield(before)
        self._running, self._next = self._next, None
        return await act()


class Kept(Generic[Value]):
    """A value read from the ledger, until an event may have changed it.

    Threads may share it; two that find it outdated both read.

    Parameters
    ----------
    passive
        The kinds of events that change nothing of it.
    """

    def __init__(self, log: EventLog, passive: Collection[str]) -> None:
        self._log, self._passive = log, passive
        self._last: tuple[Mark, object, Value] | None = None

    def get(self, key: object, read: Callable[[], Value]) -> Value:
        """Return the last result of `read`, or read it now.

        Parameters
        ----------
        key
            The object that the value depends on besides the ledger; another one has it read again.
        """
        last = self._last
        mark, is_same = self._log.mark(last and last[0], self._passive)
        value = last[2] if last is not None and is_same and last[1] is key else read()
        self._last = mark, key, value
        return value
