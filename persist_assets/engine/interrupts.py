"""Interrupts that wait while a block does what must not be cut short."""

from __future__ import annotations

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
