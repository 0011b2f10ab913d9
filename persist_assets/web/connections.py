"""Connections of clients: how long they may take to ask, and how many may do so at once.

The invariant: a client that does not complete its request costs little memory, for a short time.
Where too many do so at once, the oldest are cut off, so that those who ask at once get in.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

LARGEST_HEAD = 64 * 1024
"""The largest head of a request that is not complete, in bytes."""
HEAD_S = 10.0
"""About how long a client may take to send the head of a request, in seconds."""
READ_S = 30.0
"""How long a client may read nothing of an answer that is too large to be buffered, in seconds."""
MOST_UNFINISHED = 1000
"""So many connections at most wait for the rest of a request."""


class Unfinished:
    """The connections whose next request is not complete, the oldest first."""

    def __init__(self, most: int = MOST_UNFINISHED) -> None:
        self._most = most
        self._new: OrderedDict[LimitedProtocol, None] = OrderedDict()
        self._known: OrderedDict[LimitedProtocol, None] = OrderedDict()

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection; where these are too many, cut the oldest off.

        Those that never completed a request come first.
        """
        if connection in self._new or connection in self._known:
            return
        pool = self._known if connection.has_asked else self._new
        pool[connection] = None
        while len(self._new) + len(self._known) > self._most:
            oldest, _ = (self._new or self._known).popitem(last=False)
            oldest.cut_off()

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a connection, if it is there."""
        self._new.pop(connection, None)
        self._known.pop(connection, None)


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it with h11, with limits of time and number.

    Attributes
    ----------
    unfinished
        Shared by all connections of a server: see `limited_protocol`.
    has_asked
        It has completed a request before.
    """

    unfinished: Unfinished
    has_asked = False
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def cut_off(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._head_timer = _cancelled(self._head_timer)
        self._read_timer = _cancelled(self._read_timer)
        self.unfinished.remove(self)

    def pause_writing(self) -> None:
        """Begin to wait for a client that reads nothing of its answer."""
        super().pause_writing()
        self._read_timer = self._read_timer or self.loop.call_later(READ_S, self.cut_off)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._read_timer = _cancelled(self._read_timer)

    def _look(self) -> None:
        """Note whether the client has still to send a head, or the rest of a request."""
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        if state is h11.IDLE:
            if self._head_timer is None:  # those that came at once do not end at once
                after_s = HEAD_S * random.uniform(0.8, 1.2)
                self._head_timer = self.loop.call_later(after_s, self.cut_off)
        else:
            self._head_timer = _cancelled(self._head_timer)
        if state is h11.IDLE or state is h11.SEND_BODY:
            self.unfinished.add(self)
        else:
            self.has_asked = True
            self.unfinished.remove(self)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def limited_protocol() -> type[LimitedProtocol]:
    """Return the protocol of one server: its connections share what is unfinished."""

    class OfServer(LimitedProtocol):
        unfinished = Unfinished()

    return OfServer
