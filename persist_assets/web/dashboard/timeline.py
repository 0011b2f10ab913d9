"""The timeline of wants: when each was asked for, due and delivered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.operations.documents.wants import WantDocument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.wants import Want

_ON_TIMELINE = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """A want on the timeline; positions are in pixels."""

    want: Mapping[str, Any]
    y: int
    begin: float
    end: float
    deadline: float
    state: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Wants with deadlines, between two instants."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    now: float
    height: int


def draw_timeline(
    wants: Sequence[Want], now: datetime, *, left: int = 230, width: int = 680
) -> Any:
    """Return the timeline of the wants with deadlines; None if there are none.

    It shows when each want begins, is due and is delivered. From its deadline on, a want is
    ``late``, even after it is delivered.
    """
    due = [w for w in wants if w.deadline is not None]
    due = sorted(due, key=lambda w: w.deadline or now)[-_ON_TIMELINE:]
    if not due:
        return None
    ends = [w.ended_at or now for w in due]
    instants = [*(w.created_at for w in due), *(w.deadline or now for w in due), *ends, now]
    first, last = min(instants), max(instants)
    span = max((last - first).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return round(left + (at - first).total_seconds() / span * width, 1)

    bars = list[Bar]()
    for n, (want, end) in enumerate(zip(due, ends, strict=True)):
        assert want.deadline is not None
        state = want.state if want.state in ("cancelled", "expired") else "open"
        if want.state == "satisfied":
            state = "delivered"
        if end > want.deadline and want.state not in ("cancelled", "expired"):
            state = f"late {state}"
        bars.append(
            Bar(
                WantDocument.model_validate(want).as_json(),
                40 + 22 * n,
                x(want.created_at),
                max(x(end), x(want.created_at) + 3),
                x(want.deadline),
                state,
            )
        )
    marks = [first + timedelta(seconds=span * n / 4) for n in range(5)]
    ticks = tuple((x(at), at.astimezone(UTC).strftime("%m-%d %H:%M")) for at in marks)
    return Timeline(tuple(bars), ticks, x(now), 50 + 22 * len(bars))
