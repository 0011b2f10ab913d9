"""Numbered migrations of the ledger, each in one transaction with the row that records it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.errors import LedgerTooNewError
from persist_assets.ledger.tables import ledger_version, metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create,)
"""What brings a ledger from version n to n + 1, for every n."""


def version_of(connection: Connection) -> int:
    """Return the version of a ledger; 0 for an empty database."""
    if not sa.inspect(connection).has_table(ledger_version.name):
        return 0
    return connection.scalar(sa.select(sa.func.max(ledger_version.c.version))) or 0


def migrate(connection: Connection) -> None:
    """Bring a ledger to the version of this release. Idempotent; the caller holds the write lock.

    Raises
    ------
    LedgerTooNewError
        The ledger was written by a newer release.
    """
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise LedgerTooNewError(
            f"the ledger has version {version}, this release knows up to {len(MIGRATIONS)}",
            hint="upgrade persist_assets; nothing was changed",
        )
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        step(connection)
        connection.execute(
            ledger_version.insert().values(version=number, migrated_at=datetime.now(UTC))
        )
