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


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table under a fixed name.

    Attributes
    ----------
    place
        Its directory, a path or a URI.
    build_uid
        The build whose rows it has.
    version
        Its own version that has them.
    described
        A digest of what it says about itself.
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
    def fetch(self, environment: str) -> dict[str, PublishedTable]:
        """Return the published tables of an environment by place."""
        query = (
            sa.select(published_tables)
            .where(published_tables.c.environment == environment)
            .order_by(published_tables.c.place)
        )
        with self._read() as connection:
            return {row.place: PublishedTable(*row) for row in connection.execute(query)}

    def record(
        self,
        environment: str,
        place: str,
        source_id: SourceID,
        build_uid: str,
        version: int,
        described: str,
    ) -> None:
        """Record what a published table has, unless a later version of it is recorded."""
        columns = published_tables.c
        is_it = columns.place == place
        with self._write() as connection:
            current = connection.scalar(sa.select(columns.version).where(is_it))
            if current is not None and current > version:
                return
            connection.execute(published_tables.delete().where(is_it))
            connection.execute(
                published_tables.insert().values(
                    environment=environment,
                    place=place,
                    source_id=source_id,
                    build_uid=build_uid,
                    version=version,
                    described=described,
                    published_at=self._now(connection),
                )
            )

    def forget(self, place: str) -> None:
        """Forget a published table that is deleted."""
        with self._write() as connection:
            connection.execute(published_tables.delete().where(published_tables.c.place == place))
