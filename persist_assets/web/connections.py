"""Connections of clients: limits on the time to send a request and on unfinished requests.

The invariant: a client that does not complete its request costs little memory, for a short time.
If there are too many of them, the oldest are cut off, so that prompt clients get in.
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
"""The largest head of an incomplete request, in bytes."""
HEAD_S = 10.0
"""The approximate time limit for sending the head of a request, in seconds."""
READ_S = 30.0
"""The time limit for a client that does not read an answer too large to be buffered, in seconds."""
MOST_UNFINISHED = 1000
"""The maximum number of connections that wait for the rest of a request."""


class Unfinished:
    """The connections whose next request is incomplete, the oldest first."""

    def __init__(self, most: int = MOST_UNFINISHED) -> None:
        self._most = most
        self._new: OrderedDict[LimitedProtocol, None] = OrderedDict()
        self._returning: OrderedDict[LimitedProtocol, None] = OrderedDict()

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection; if there are too many, cut off the oldest.

        Connections that never completed a request are cut off first.
        """
        if connection in self._new or connection in self._returning:
            return
        pool = self._returning if connection.has_asked else self._new
        pool[connection] = None
        while len(self._new) + len(self._returning) > self._most:
            oldest, _ = (self._new or self._returning).popitem(last=False)
            oldest.cut_off()

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a connection, if present."""
        self._new.pop(connection, None)
        self._returning.pop(connection, None)


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it with h11, with limits of time and number.

    Attributes
    ----------
    unfinished
        Shared by all connections of a server: see `limited_protocol`.
    has_asked
        Whether it has completed a request before.
    """

    unfinished: Unfinished
    has_asked = False
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def cut_off(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Process a part of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Start waiting for the next request."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._head_timer = _cancel(self._head_timer)
        self._read_timer = _cancel(self._read_timer)
        self.unfinished.remove(self)

    def pause_writing(self) -> None:
        """Start waiting for a client that does not read its response."""
        super().pause_writing()
        self._read_timer = self._read_timer or self.loop.call_later(READ_S, self.cut_off)

    def resume_writing(self) -> None:
        """Continue the answer."""
        super().resume_writing()
        self._read_timer = _cancel(self._read_timer)

    def _look(self) -> None:
        """Record whether the client still has to send a head, or the rest of a request."""
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        if state is h11.IDLE:
            if self._head_timer is None:
                # Random, so that connections opened together are not cut off together.
                after_s = HEAD_S * random.uniform(0.8, 1.2)
                self._head_timer = self.loop.call_later(after_s, self.cut_off)
        else:
            self._head_timer = _cancel(self._head_timer)
        if state is h11.IDLE or state is h11.SEND_BODY:
            self.unfinished.add(self)
        else:
            self.has_asked = True
            self.unfinished.remove(self)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def limited_protocol() -> type[LimitedProtocol]:
    """Return the protocol of one server; its connections share their `Unfinished`."""

    class OfServer(LimitedProtocol):
        unfinished = Unfinished()

    return OfServer
