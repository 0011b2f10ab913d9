"""Exports of a run's environment after its publications: soon, and not more often than is cheap.

An export has all entries of the manifest. After each build of a large project it would take longer
than many builds, so exports wait for each other there. The last publication is always followed by
an export: by `flush`, or by a thread for which the process waits before it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from persist_assets.building.publishing import export
from persist_assets.core.errors import PersistError

if TYPE_CHECKING:
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

MANY = 200
"""With at least this many entries, there are pauses between exports."""
_SHARE = 10
"""With pauses, exports take at most 1/`_SHARE` of the time."""
_LEAST_PAUSE_S = 1.0


class Exports:
    """The exports of one environment's manifest in a run; safe to share between threads."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings, self._ledger = settings, ledger
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._timer: threading.Timer | None = None

    def request(self) -> None:
        """Export the manifest now or, in a large project, soon.

        Raises
        ------
        PersistError
            It was exported now, and that failed.
        """
        with self._lock:
            if self._timer is not None:
                return  # it reads the ledger later
            pause = self._next_at - time.monotonic()
            if pause > 0:
                self._timer = threading.Timer(pause, self._export_later)
                self._timer.start()
                return
        self._export()

    def flush(self) -> None:
        """Do an export that is still to come now.

        Raises
        ------
        PersistError
            It failed.
        """
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._export()

    def _export_later(self) -> None:
        with self._lock:
            if self._timer is None:
                return  # `flush` does it
            self._timer = None
        try:
            self._export()
        except PersistError as error:
            log.warning("the manifest was not exported: %s", error, extra={"action": "export"})

    def _export(self) -> None:
        began = time.monotonic()
        n_entries = export(self._settings, self._ledger)
        ended = time.monotonic()
        if n_entries >= MANY:
            pause = max(_LEAST_PAUSE_S, (_SHARE - 1) * (ended - began))
            with self._lock:
                self._next_at = ended + pause
