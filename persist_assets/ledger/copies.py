"""The copies of external tables: their contents, and the needs of each environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.digests import FORMAT
from persist_assets.core.errors import ConflictError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import copies, copy_needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection, Row

    Need = tuple[str, tuple[str, ...]]
    """A predicate, and columns."""


class Copies(Part):
    """The local copies of external tables."""

    @repeated
    def find(self, copy_id: str) -> LocalCopy | None:
        """Return a copy, or None if there is none with this ID."""
        with self._read() as connection:
            return _find(connection, copy_id)

    @repeated
    def fetch_family(self, copy_ids: Sequence[str], family: str) -> list[LocalCopy]:
        """Return the copies with these IDs that exist, and those of a family, by ID."""
        these = sa.or_(copies.c.copy_id.in_(copy_ids), copies.c.family == family)
        with self._read() as connection:
            rows = connection.execute(sa.select(copies).where(these).order_by(copies.c.copy_id))
            return [_copy_of(row) for row in rows]

    @repeated
    def fetch(self) -> list[LocalCopy]:
        """Return all copies, by ID."""
        with self._read() as connection:
            rows = connection.execute(sa.select(copies).order_by(copies.c.copy_id))
            return [_copy_of(row) for row in rows]

    @repeated
    def record(
        self, copy: LocalCopy, *, expected: LocalCopy | None, changes: Mapping[str, Any]
    ) -> None:
        """Record the current state of a copy.

        Parameters
        ----------
        expected
            The copy as the caller last read it.
        changes
            What was added and removed, for the event.

        Raises
        ------
        ConflictError
            Another process changed it meanwhile.
        """
        with self._write() as connection:
            current = _find(connection, copy.copy_id)
            if (current and current.committed) != (expected and expected.committed):
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
                "family": copy.family,
                "rows_read": copy.rows_read,
                "bytes_read": copy.bytes_read,
                "stored": None if copy.stored is None else [[*pair] for pair in copy.stored],
            }
            if current is None:
                connection.execute(copies.insert().values(copy_id=copy.copy_id, **values))
            else:
                this = copies.c.copy_id == copy.copy_id
                connection.execute(copies.update().where(this).values(**values))
            names = "copy_id", "version", "committed", "predicate", "rows"
            values = {name: getattr(copy, name) for name in names}
            self._events.append(connection, "external-synced", {**values, **changes})

    @repeated
    def describe(
        self, copy_id: str, family: str | None, stored: Sequence[tuple[str, str | None]]
    ) -> None:
        """Record of a copy that an earlier release made which declarations can share it."""
        values = {"family": family, "stored": [[*pair] for pair in stored]}
        with self._write() as connection:
            connection.execute(copies.update().where(copies.c.copy_id == copy_id).values(**values))

    @repeated
    def forget(self, copy_ids: Sequence[str]) -> None:
        """Record that copies were deleted because no environment uses them."""
        with self._write() as connection:
            for copy_id in copy_ids:
                connection.execute(copies.delete().where(copies.c.copy_id == copy_id))
                self._events.append(connection, "external-forgotten", {"copy_id": copy_id})

    @repeated
    def record_needs(self, copy_id: str, environment: str, needs: Iterable[Need]) -> None:
        """Record an environment's needs of a copy; no `needs`: it no longer uses the copy."""
        values = [[predicate, [*columns]] for predicate, columns in sorted(needs)]
        this = sa.and_(copy_needs.c.copy_id == copy_id, copy_needs.c.environment == environment)
        with self._write() as connection:
            recorded = connection.execute(sa.select(copy_needs).where(this)).first()
            if recorded is not None and (recorded.needs, recorded.format) == (values, FORMAT):
                return
            connection.execute(copy_needs.delete().where(this))
            if values:
                key = {"copy_id": copy_id, "environment": environment}
                row = {**key, "needs": values, "format": FORMAT, "at": self._clock()}
                connection.execute(copy_needs.insert().values(**row))

    @repeated
    def fetch_needs(self, copy_id: str) -> dict[str, tuple[int, tuple[Need, ...]]]:
        """Return each environment's needs of a copy, with the format of the predicates."""
        query = sa.select(copy_needs).where(copy_needs.c.copy_id == copy_id)
        with self._read() as connection:
            return {
                row.environment: (
                    row.format,
                    tuple((text, tuple(columns)) for text, columns in row.needs),
                )
                for row in connection.execute(query.order_by(copy_needs.c.environment))
            }


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
        family=row.family,
        rows_read=row.rows_read,
        bytes_read=row.bytes_read,
        stored=None if row.stored is None else tuple((name, kind) for name, kind in row.stored),
    )
