"""The copies of external tables in a ledger: what they hold, and what is needed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.digests import FORMAT
from persist_assets.core.errors import ConflictError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.ledger.log import EventLog, repeated
from persist_assets.ledger.tables import copies, copy_needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection, Row

    Wanted = tuple[str, tuple[str, ...]]
    """A predicate, and columns."""


class CoverageLog(EventLog):
    """What of a ledger is about copies of external tables."""

    @repeated
    def find_copy(self, copy_id: str) -> LocalCopy | None:
        """Return what a copy holds, None where there is none."""
        with self._read() as connection:
            return _find(connection, copy_id)

    @repeated
    def fetch_copies(self) -> list[LocalCopy]:
        """Return what all copies hold, by their ids."""
        with self._read() as connection:
            rows = connection.execute(sa.select(copies).order_by(copies.c.copy_id))
            return [_copy_of(row) for row in rows]

    @repeated
    def record_needs(self, copy_id: str, environment: str, needs: Iterable[Wanted]) -> None:
        """Record what an environment's program needs of a copy; nothing, it needs it no more."""
        told = [[predicate, [*columns]] for predicate, columns in sorted(needs)]
        this = sa.and_(copy_needs.c.copy_id == copy_id, copy_needs.c.environment == environment)
        with self._write() as connection:
            known = connection.execute(sa.select(copy_needs).where(this)).first()
            if known is not None and (known.needs, known.format) == (told, FORMAT):
                return
            connection.execute(copy_needs.delete().where(this))
            if told:
                key = {"copy_id": copy_id, "environment": environment}
                values = {**key, "needs": told, "format": FORMAT, "at": self._clock()}
                connection.execute(copy_needs.insert().values(**values))

    @repeated
    def fetch_needs(self, copy_id: str) -> dict[str, tuple[int, tuple[Wanted, ...]]]:
        """Return what is needed of a copy, by environment, each with its predicates' format."""
        query = sa.select(copy_needs).where(copy_needs.c.copy_id == copy_id)
        with self._read() as connection:
            return {
                row.environment: (
                    row.format,
                    tuple((text, tuple(some)) for text, some in row.needs),
                )
                for row in connection.execute(query.order_by(copy_needs.c.environment))
            }

    @repeated
    def record_copy(
        self, copy: LocalCopy, *, before: LocalCopy | None, told: Mapping[str, Any]
    ) -> None:
        """Record what a copy holds now.

        Parameters
        ----------
        before
            What it held when it was looked at.
        told
            What came and went, for the event.

        Raises
        ------
        ConflictError
            Somebody else changed it meanwhile.
        """
        with self._write() as connection:
            known = _find(connection, copy.copy_id)
            if (known and known.committed) != (before and before.committed):
                raise ConflictError("another process updated the copy", hint="try again")
            values = {
                "version": copy.version,
                "table_id": copy.table_id,
                "committed": copy.committed,
                "predicate": copy.predicate,
                "format": copy.format,
                "columns": [*copy.columns],
                "as_of": copy.as_of,
                "row_count": copy.rows,
                "byte_count": copy.bytes,
                "seen": dict(copy.seen),
                "retired_at": copy.retired_at,
            }
            if known is None:
                connection.execute(copies.insert().values(copy_id=copy.copy_id, **values))
            else:
                this = copies.c.copy_id == copy.copy_id
                connection.execute(copies.update().where(this).values(**values))
            names = "copy_id", "version", "committed", "predicate", "rows"
            held = {name: getattr(copy, name) for name in names}
            self._append(connection, "external-synced", {**held, **told})

    @repeated
    def forget_copies(self, copy_ids: Sequence[str]) -> None:
        """Record that copies are gone, as nobody needs them."""
        with self._write() as connection:
            for copy_id in copy_ids:
                connection.execute(copies.delete().where(copies.c.copy_id == copy_id))
                self._append(connection, "external-forgotten", {"copy_id": copy_id})


def _find(connection: Connection, copy_id: str) -> LocalCopy | None:
    row = connection.execute(sa.select(copies).where(copies.c.copy_id == copy_id)).first()
    return None if row is None else _copy_of(row)


def _copy_of(row: Row[Any]) -> LocalCopy:
    return LocalCopy(
        copy_id=row.copy_id,
        version=row.version,
        table_id=row.table_id,
        committed=row.committed,
        predicate=row.predicate,
        format=row.format,
        columns=tuple(row.columns),
        as_of=row.as_of,
        rows=row.row_count,
        bytes=row.byte_count,
        seen=row.seen,
        retired_at=row.retired_at,
    )
