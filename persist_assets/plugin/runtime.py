"""What the assets and the IO manager of one code location share: the project, and a run's builder.

A Dagster run asks for its builder by its run id; all steps of a run in one process get the same
one, so that they share their view of the raw data and one Spark session.
"""

import threading
from collections.abc import Callable
from typing import Any

from persist_assets.builder import Builder
from persist_assets.engine import Engine
from persist_assets.ledger.store import Ledger
from persist_assets.model import Project, SourceID
from persist_assets.pool import Pool
from persist_assets.settings import Settings


class Runtime:
    """The project behind a code location.

    Parameters
    ----------
    fed
        Raw tables that assets of the code location write.

    Attributes
    ----------
    late
        Sources that wait for more than sources (`Pool`).
    """

    def __init__(self, settings: Settings, project: Project, fed: frozenset[SourceID]) -> None:
        self.settings, self.project, self.fed = settings, project, fed
        self.late: set[SourceID] = set()
        self._builders: dict[str, Builder] = {}
        self._pools: dict[str, Pool] = {}
        self._ledger: Ledger | None = None
        self._lock = threading.Lock()

    def builder(self, run_id: str, session: Callable[[], Any]) -> Builder:
        """Return the builder of a run; its session is taken when it first needs one.

        Raises
        ------
        LedgerError
            The ledger cannot be opened.
        """
        with self._lock:
            if self._ledger is None:
                self._ledger = Ledger(self.settings.ledger)
            if run_id not in self._builders:
                engine = Engine(self.settings, session)
                self._builders[run_id] = Builder(
                    self.settings, self.project, self._ledger, engine, run_id=run_id, fed=self.fed
                )
            return self._builders[run_id]

    def pool(self, run_id: str, make: Callable[[], Pool]) -> Pool:
        """Return the pool of a run; it is made when a step first asks for it."""
        if run_id not in self._pools:
            self._pools[run_id] = make()
        return self._pools[run_id]

    def close(self, run_id: str) -> None:
        """Forget a run that has ended; what is under way is ended too."""
        pool = self._pools.pop(run_id, None)
        if pool is not None:
            pool.close()
        with self._lock:
            builder = self._builders.pop(run_id, None)
        if builder is not None:
            builder.close()
