"""The audit log: logins and refusals, as events of the ledger.

The invariant: whatever clients send, the log grows by a bounded number of events an hour. What is
not recorded is counted, and the next event that is recorded says how much that was.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import PersistError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

BURST, PER_HOUR = 60, 60
"""The number of events of a kind that may be recorded at once, and then per hour."""
SAME_S = 60.0
"""The seconds after which a client is recorded again for the same reason."""
_CLIENTS = 1024
_LONGEST = 200


class Audit:
    """Records logins and refusals.

    Parameters
    ----------
    record
        Appends an event to the ledger: its kind and its data. It is called in a thread.
    clock
        Returns seconds.
    """

    def __init__(
        self, record: Callable[[str, Mapping[str, Any]], object], clock: Callable[[], float]
    ) -> None:
        self._record, self._clock = record, clock
        self._recent: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._left: dict[str, tuple[float, float]] = {}
        self._omitted: dict[str, int] = {}
        self._writing = ThreadPoolExecutor(1, "persist-audit")

    def note(self, kind: str, *, address: str, same_s: float = SAME_S, **data: str) -> bool:
        """Record an action, unless it was just recorded or too many are; return whether it was.

        Parameters
        ----------
        address
            The client's.
        same_s
            For how many seconds the same is not recorded once more.
        """
        values = {k: v.replace("\0", "")[:_LONGEST] for k, v in data.items()}
        key = (kind, address, *values.values())
        if not self._is_new(key, same_s) or not self._take(kind):
            self._omitted[kind] = self._omitted.get(kind, 0) + 1
            return False
        omitted = self._omitted.pop(kind, 0)
        more = {"omitted": omitted} if omitted else {}
        self._writing.submit(self._write, kind, {"address": address, **values, **more})
        return True

    def close(self) -> None:
        """Wait until everything is recorded."""
        self._writing.shutdown()

    def _write(self, kind: str, data: Mapping[str, Any]) -> None:
        try:
            self._record(kind, data)
        except PersistError as error:
            log.warning("action=audit kind=%s data=%r error=%s", kind, data, error.message)

    def _is_new(self, key: tuple[str, ...], same_s: float) -> bool:
        now = self._clock()
        before = self._recent.get(key)
        if before is not None and now - before < same_s:
            return False
        self._recent.pop(key, None)
        self._recent[key] = now
        if len(self._recent) > _CLIENTS:
            self._recent.popitem(last=False)
        return True

    def _take(self, kind: str) -> bool:
        now = self._clock()
        left, at = self._left.get(kind, (float(BURST), now))
        left = min(float(BURST), left + (now - at) * PER_HOUR / 3600)
        self._left[kind] = (left - 1 if left >= 1 else left, now)
        return left >= 1
