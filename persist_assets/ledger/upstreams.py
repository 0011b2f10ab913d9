"""Other graphs: the positions up to which their events were read, and problems with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import upstreams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Upstreams(Part):
    """The progress and problems of reading other graphs."""

    @repeated
    def find_cursor(self, environment: str, graph: str) -> str | None:
        """Return the position in another graph's events after the last read, or None."""
        query = sa.select(upstreams.c.cursor).where(
            upstreams.c.graph == graph, upstreams.c.environment == environment
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def find_problem(self, environment: str, graph: str) -> str | None:
        """Return the problem of the last read of another graph, or None."""
        query = sa.select(upstreams.c.problem).where(
            upstreams.c.graph == graph, upstreams.c.environment == environment
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def record_synced(
        self,
        environment: str,
        graph: str,
        cursor: str,
        partitions: Sequence[Mapping[str, Any]] = (),
        *,
        expected: str | None,
        problem: str | None = None,
    ) -> bool:
        """Record a read of another graph's events; return whether it was recorded.

        Parameters
        ----------
        cursor
            The position after the read.
        partitions
            Partitions, each with its reference and its state: ``available``, ``failed`` or
            ``tainted``.
        expected
            The position before the read. If another process has read further meanwhile, nothing
            is recorded: it has recorded the same events.
        """
        with self._write() as connection:
            query = sa.select(upstreams.c.cursor).where(
                upstreams.c.graph == graph, upstreams.c.environment == environment
            )
            if connection.scalar(query) != expected:
                return False
            data = {"environment": environment, "graph": graph, "cursor": cursor}
            changes = {"partitions": [dict(p) for p in partitions], "problem": problem}
            self._events.append(connection, "upstream-synced", {**data, **changes})
            return True
