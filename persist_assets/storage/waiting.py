"""Waiting for stores that throttle requests or do not answer.

Each request to a store goes through `ask`, and each file system of pyarrow through `patient.py`.
The invariant: a store that does not answer is an error after `Patience.answer_s`, and is named on
stderr before. Local files are accessed directly.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from persist_assets.core.errors import StorageError
from persist_assets.core.object_stores import PATIENCE, Patience, is_local, is_throttled, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger(__name__)

_ANNOUNCED_S = 5.0
"""The seconds without an answer after which a line names the store."""
_BETWEEN_LINES_S = 30.0
_TIMED_OUT = re.compile(r"does not answer|timed out|Timeout was reached")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0

T = TypeVar("T")

_lock = threading.Lock()
_patience = PATIENCE
_announced_at: dict[str, float] = {}
_silent_until: dict[str, float] = {}


def be_patient(patience: Patience) -> None:
    """Set how long to wait for stores, from now on and in the whole process."""
    global _patience
    _patience = patience


def patience_now() -> Patience:
    """Return how long to wait for stores."""
    return _patience


def ask(location: str, call: Callable[[], T], *, bounded: bool = False) -> T:
    """Return the result of a call to the store of a location; repeat it while throttled.

    Parameters
    ----------
    call
        Idempotent, because it may be repeated.
    bounded
        The call is one short request that changes nothing, so that no answer within
        `Patience.answer_s` means that none will come. If a library has no limit of its own, the
        call is abandoned in a thread.

    Raises
    ------
    StorageError
        There is no answer in time.
    """
    if is_local(location):
        return call()
    limits = _patience
    ends_at = time.monotonic() + limits.retry_s
    pause = _FIRST_PAUSE_S
    store = _store_of(location)
    while True:
        if time.monotonic() < _silent_until.get(store, 0.0):
            raise _no_answer(store, limits.answer_s)
        asked_at = time.monotonic()
        try:
            with _watched(store, limits.answer_s):
                return _within(store, call, limits.answer_s) if bounded else call()
        except Exception as error:
            if _TIMED_OUT.search(str(error)) and time.monotonic() > asked_at + limits.answer_s / 2:
                # Other requests to it need not wait as long.
                _silent_until[store] = time.monotonic() + limits.answer_s
            left = ends_at - time.monotonic()
            if left <= 0 or not _is_throttled(error, location):
                raise
        # Random, so that requests that were throttled together do not return together.
        wait = min(pause * random.uniform(0.5, 1.0), left)
        log.warning(
            "%s throttles requests: retrying in %.1f s, for at most %d s more (`store_retry`)",
            store, wait, round(left),
            extra={"action": "store-throttles"},
        )  # fmt: skip
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _is_throttled(error: Exception, location: str) -> bool:
    """Whether a store has throttled a request; its message decides, not names of files in it."""
    if isinstance(error, FileNotFoundError) or type(error).__name__ == "TableNotFoundError":
        return False
    message = str(error).replace(location, "").replace(urlsplit(location).path, "")
    return is_throttled(_PLACES.sub("", message))


_PLACES = re.compile(r"'[^'\n]*'|\S+://\S+")
"""The parts of error messages that name keys, buckets and addresses."""


def _within(store: str, call: Callable[[], T], limit_s: int) -> T:
    """Return the result of a call; abandon it after a time."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)

    asking = threading.Thread(target=run, name=f"ask {store}", daemon=True)
    asking.start()
    asking.join(limit_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise _no_answer(store, limit_s)
    return outcome[0]


def _no_answer(store: str, limit_s: int) -> StorageError:
    return StorageError(
        f"{store} does not answer: no response within {limit_s} s",
        hint="check the network, the endpoint and the credentials; `store_timeout` in persist.toml"
        " is the limit",
    )


def _store_of(location: str) -> str:
    """Return the store of a location: its scheme and bucket."""
    return f"{scheme_of(location)}://{urlsplit(location).netloc}"


@contextmanager
def _watched(store: str, limit_s: int) -> Generator[None]:
    """Name the store on stderr if the block takes long."""
    after_s = min(_ANNOUNCED_S, limit_s / 2)
    timer = threading.Timer(after_s, _announce, (store, after_s, limit_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _announce(store: str, after_s: float, limit_s: int) -> None:
    now = time.monotonic()
    with _lock:
        if now < _announced_at.get(store, now - _BETWEEN_LINES_S) + _BETWEEN_LINES_S:
            return
        _announced_at[store] = now
    log.warning(
        "waiting for %s, which has not responded for %d s; such requests are abandoned"
        " after %d s (`store_timeout`)",
        store, after_s, limit_s,
        extra={"action": "store-waits"},
    )  # fmt: skip
