"""The ledger: the only mutable state. Each part of it has the transitions of its own tables.

Changes that belong together happen in one transaction, which also appends an event for each of
them. Readers see a publication completely or not at all.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.ledger.alerts import Alerts
from persist_assets.ledger.builds import Builds
from persist_assets.ledger.copies import Copies
from persist_assets.ledger.costs import Costs
from persist_assets.ledger.leases import Leases
from persist_assets.ledger.log import EventLog
from persist_assets.ledger.manifests import Manifests
from persist_assets.ledger.partitions import Partitions
from persist_assets.ledger.published import PublishedTables
from persist_assets.ledger.requests import Requests
from persist_assets.ledger.run_pins import RunPins
from persist_assets.ledger.runs import Runs
from persist_assets.ledger.taints import Taints
from persist_assets.ledger.trims import Trims
from persist_assets.ledger.upstreams import Upstreams
from persist_assets.ledger.wants import Wants

if TYPE_CHECKING:
    from collections.abc import Callable


def _now() -> datetime:
    return datetime.now(UTC)


class Ledger:
    """A connection to a ledger, safe to share between threads.

    Parameters
    ----------
    url
        SQLAlchemy URL. A SQLite file is created with its directory.
    clock
        Returns the current time, with a time zone. On PostgreSQL leases use the database's clock,
        so the clocks of several machines need not agree.

    Attributes
    ----------
    events
        The event log that all parts build on, and how the ledger was opened.
    builds, runs, costs, manifests, wants, requests, partitions, upstreams, copies, taints, leases,
    alerts, trims, published, run_pins
        The parts of the ledger.

    Raises
    ------
    LedgerError
        It cannot be opened.
    LedgerTooNewError
        A newer release wrote it.
    LedgerUnreachableError
        Its database does not answer. Once open, a method waits for its database to come back
        (`connection.RETRY_S`) before it raises this.
    """

    def __init__(self, url: str, *, clock: Callable[[], datetime] = _now) -> None:
        self.events = EventLog(url, clock)
        self.builds = Builds(self.events)
        self.runs = Runs(self.events)
        self.costs = Costs(self.events)
        self.manifests = Manifests(self.events)
        self.wants = Wants(self.events)
        self.requests = Requests(self.events)
        self.partitions = Partitions(self.events)
        self.upstreams = Upstreams(self.events)
        self.copies = Copies(self.events)
        self.taints = Taints(self.events)
        self.leases = Leases(self.events)
        self.alerts = Alerts(self.events)
        self.trims = Trims(self.events)
        self.published = PublishedTables(self.events)
        self.run_pins = RunPins(self.events)

    def close(self) -> None:
        """Close every connection."""
        self.events.close()
