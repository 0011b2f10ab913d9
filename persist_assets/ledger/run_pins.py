"""Values on which the processes of a run agree, so that all of them read the same data.

An executor may run each step of a run in its own process. The invariant: for one subject, all
processes of a run get the value that was recorded first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import run_pins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

LASTING = timedelta(days=30)
"""The minimum time for which values are kept: longer than any run lasts."""


class RunPins(Part):
    """The values on which the processes of runs have agreed."""

    @repeated
    def fetch(self, run_id: str) -> dict[str, Any]:
        """Return what the processes of a run have recorded, by subject."""
        with self._read() as connection:
            return _fetch(connection, run_id)

    @repeated
    def fetch_versions(self) -> set[str]:
        """Return the versions of raw data that runs of the last weeks have agreed on."""
        with self._read() as connection:
            pins = connection.scalars(sa.select(run_pins.c.pin)).all()
        return {pin["version"] for pin in pins if "version" in pin}

    @repeated
    def record(self, run_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Record values that a process found, and return the values that count for their subjects.

        Parameters
        ----------
        values
            JSON values by subject. A subject that another process has recorded stays as it is.
        """
        with self._write() as connection:
            recorded = _fetch(connection, run_id)
            new = {s: value for s, value in values.items() if s not in recorded}
            if new:
                now = self._now(connection)
                connection.execute(run_pins.delete().where(run_pins.c.at < now - LASTING))
                rows = [
                    {"run_id": run_id, "subject": s, "pin": value, "at": now}
                    for s, value in new.items()
                ]
                connection.execute(run_pins.insert(), rows)
        return {s: recorded.get(s, value) for s, value in values.items()}


def _fetch(connection: Connection, run_id: str) -> dict[str, Any]:
    query = sa.select(run_pins.c.subject, run_pins.c.pin).where(run_pins.c.run_id == run_id)
    return {row.subject: row.pin for row in connection.execute(query)}
