"""The tables under fixed names: which build each of them has, as far as this ledger knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import published_tables

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.core.model.queries import SourceID


REMOVING = "removing"
"""The token of a change that deletes a published table."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table under a fixed name.

    Attributes
    ----------
    place
        Its directory, a path or a URI.
    build_uid
        The build whose rows it has; empty: unknown, because the table is being changed, or the
        process that changed it has died.
    version
        Its own version that has them.
    described
        A digest of what it says about itself. While it is being changed, the change's token.
    """

    environment: str
    place: str
    source_id: SourceID
    build_uid: str
    version: int
    described: str
    published_at: datetime


class PublishedTables(Part):
    """The tables that environments publish under fixed names."""

    @repeated
    def fetch(self, environment: str, *places: str) -> dict[str, PublishedTable]:
        """Return the published tables of an environment by place; `places`: only those."""
        query = (
            sa.select(published_tables)
            .where(published_tables.c.environment == environment)
            .order_by(published_tables.c.place)
        )
        if places:
            query = query.where(published_tables.c.place.in_(places))
        with self._read() as connection:
            return {row.place: PublishedTable(*row) for row in connection.execute(query)}

    @repeated
    def find(self, place: str) -> PublishedTable | None:
        """Return the published table at a place, whatever environment it is of, or None."""
        query = sa.select(published_tables).where(published_tables.c.place == place)
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        return PublishedTable(*row) if row else None

    @repeated
    def begin(self, environment: str, place: str, source_id: SourceID, token: str) -> None:
        """Record that a published table is about to change.

        Until `record`, its build is unknown: if the process dies, the table counts as out of date.

        Parameters
        ----------
        token
            Identifies the change, or `REMOVING`. At most 64 characters.
        """
        with self._write() as connection:
            connection.execute(published_tables.delete().where(published_tables.c.place == place))
            connection.execute(
                published_tables.insert().values(
                    environment=environment,
                    place=place,
                    source_id=source_id,
                    build_uid="",
                    version=0,
                    described=token,
                    published_at=self._now(connection),
                )
            )

    @repeated
    def record(self, place: str, token: str, build_uid: str, version: int, described: str) -> None:
        """Record what a published table has, unless another change of it has begun since."""
        columns = published_tables.c
        is_it = sa.and_(columns.place == place, columns.described == token)
        with self._write() as connection:
            connection.execute(
                published_tables.update()
                .where(is_it)
                .values(
                    build_uid=build_uid,
                    version=version,
                    described=described,
                    published_at=self._now(connection),
                )
            )

    @repeated
    def forget(self, place: str) -> None:
        """Forget a published table that is deleted."""
        with self._write() as connection:
            connection.execute(published_tables.delete().where(published_tables.c.place == place))
