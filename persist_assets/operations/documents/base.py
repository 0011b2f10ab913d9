"""Parts that all documents share.

Creating the models takes time, so commands import documents only where they print them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Instant = Annotated[datetime, AfterValidator(lambda at: at.astimezone(UTC))]
"""A time, in UTC."""
Count = Annotated[int, Field(ge=0)]


class Document(BaseModel):
    """A JSON document, created by `model_validate` from an object with the same attributes.

    No field has a default, so every key is always present.
    """

    model_config = ConfigDict(extra="forbid", from_attributes=True, frozen=True)

    def as_json(self) -> dict[str, Any]:
        """Return the document as JSON-compatible values."""
        return self.model_dump(mode="json")
