"""What all documents share.

Making the models takes time, so commands import documents only where they print them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Instant = Annotated[datetime, AfterValidator(lambda at: at.astimezone(UTC))]
"""A time, in UTC."""
Count = Annotated[int, Field(ge=0)]


class Document(BaseModel):
    """A JSON document; made with `model_validate` of a value that has the same attributes.

    No field has a default, so that every key is always there.
    """

    model_config = ConfigDict(extra="forbid", from_attributes=True, frozen=True)

    def as_json(self) -> dict[str, Any]:
        """Return the document as values that JSON has."""
        return self.model_dump(mode="json")
