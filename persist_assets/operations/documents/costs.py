"""The costs of sources."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Self

from persist_assets.operations.costs import total
from persist_assets.operations.documents.base import Count, Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import Settings
    from persist_assets.operations.costs import Spent


class SpentDocument(Document):
    """The costs of builds: see `persist_assets.operations.costs.Spent`."""

    built: Count
    reused: Count
    failed: Count
    unknown: Count
    seconds: float
    compute_seconds: float
    bytes_written: Count
    byte_days: float
    money: float | None

    @classmethod
    def of(cls, spent: Spent) -> Self:
        """Return the document of a sum."""
        return cls.model_validate(spent)


class SpentOnDocument(SpentDocument):
    """The costs of a source on a day."""

    day: date
    source_id: str
    asset_key: str


class PricesDocument(Document):
    """The prices of settings; null: none."""

    currency: str
    compute_hour: float | None
    gb_written: float | None
    gb_month: float | None


class CostsDocument(Document):
    """The costs of an environment's sources from one day to another, both inclusive."""

    environment: str
    from_day: date
    to_day: date
    timezone: str
    prices: PricesDocument
    days: list[SpentOnDocument]
    total: SpentDocument

    @classmethod
    def of(
        cls,
        settings: Settings,
        keys: Mapping[SourceID, str],
        days: Mapping[tuple[date, SourceID], Spent],
        first: date,
        last: date,
    ) -> Self:
        """Return the document of an account.

        Parameters
        ----------
        keys
            Asset keys; sources that the project does not have any more keep their IDs.
        """
        return cls(
            environment=settings.environment,
            from_day=first,
            to_day=last,
            timezone=str(settings.timezone),
            prices=PricesDocument.model_validate(settings.prices),
            days=[
                SpentOnDocument(
                    **SpentDocument.of(spent).model_dump(),
                    day=day,
                    source_id=source_id,
                    asset_key=keys.get(source_id, source_id),
                )
                for (day, source_id), spent in days.items()
            ],
            total=SpentDocument.of(total(days.values())),
        )
