"""Interrupts: delaying them, and what they leave of a connection to the JVM."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def delayed_interrupts() -> Generator[None]:
    """Delay SIGINT until the block ends, and then let it take effect.

    Two uses: a JVM that is abandoned while it starts does not notice that, and never ends; and a
    build that is interrupted must be recorded as failed even if it is interrupted once more. Only
    the main thread receives interrupts; in other threads the block simply runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # otherwise Spark has set its own
            signal.signal(signal.SIGINT, previous or signal.SIG_DFL)
        if received:
            signal.raise_signal(signal.SIGINT)


def close_interrupted_connections() -> None:
    """Make py4j close a connection to the JVM when an interrupt ends the wait for an answer.

    py4j does this for ``KeyboardInterrupt`` alone, but Dagster's handler raises another exception.
    The next command of the thread would then wait for the interrupted one to end, and take its
    answer for its own. For ``KeyboardInterrupt``, py4j also asks the JVM to close the connection,
    and the JVM closes all connections of the process when it reads that request. A connection
    that is closed already needs no such request.
    """
    from py4j.clientserver import ClientServerConnection

    send = ClientServerConnection.send_command
    if hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    def send_command(self: ClientServerConnection, command: str) -> str:
        try:
            return send(self, command)
        except Exception:
            raise
        except BaseException:
            self.close()
            raise

    ClientServerConnection.send_command = send_command
