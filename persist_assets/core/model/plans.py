"""Plans: their steps, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.columns import Trace
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Partitions, Snapshot


ReasonCode = Literal[
    "new",
    "same-rows",
    "unchecked",
    "no-data",
    "code",
    "upstream",
    "input",
    "unversioned",
    "strategy",
    "age",
    "clock",
    "mixed",
    "missing",
    "partition",
    "increment",
    "whole",
    "history",
    "older",
    "tainted",
    "forced",
    "failed",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step is in a plan.

    Attributes
    ----------
    source_id
        What caused it, if not the step's own source.
    """

    code: ReasonCode
    message: str
    source_id: SourceID | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A file that became part of a table, or is none any more.

    Attributes
    ----------
    path
        Absolute.
    spans
        By column, lower case, the least and the greatest value and whether there are NULLs;
        columns of which that is not certain are not there.
    bytes
        0 where it is not known.
    """

    path: str
    spans: Mapping[str, tuple[Any, Any, bool]] = field(
        default_factory=dict[str, tuple[Any, Any, bool]], hash=False
    )
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a table since rows were computed from it: files that came and went.

    Attributes
    ----------
    within
        By column, lower case, spans of values that all rows have which came or went, where that
        is known besides; in their order.
    """

    added: tuple[Piece, ...] = ()
    lost: tuple[Piece, ...] = ()
    within: Mapping[str, tuple[tuple[Any, Any], ...]] = field(
        default_factory=dict[str, "tuple[tuple[Any, Any], ...]"], hash=False
    )


@dataclass(frozen=True, slots=True)
class Increment:
    """How a build makes a snapshot of another one instead of computing all rows.

    Attributes
    ----------
    base
        What it starts from.
    added
        The files that are read of tables that only grew: the rows over them are added.
    changes
        Of tables that the rows of windows follow from: these windows are computed again. Empty
        where rows are only added.
    traces
        From columns of those tables to the time column.
    past
        The user says that only rows later than the base's watermark can be others.
    spans
        Spans of the time column that are computed again, whatever changed.
    late
        With `past`, the names of tables to which files came with times before that.
    """

    base: Snapshot
    added: Mapping[SourceID, tuple[str, ...]] = field(
        default_factory=dict[str, "tuple[str, ...]"], hash=False
    )
    changes: Mapping[SourceID, Change] = field(default_factory=dict[str, "Change"], hash=False)
    traces: tuple[Trace, ...] = ()
    past: bool = False
    spans: tuple[tuple[Any, Any], ...] = ()
    late: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step will probably cost: what it cost the last time.

    Attributes
    ----------
    seconds
        None where the last build did not compute anything.
    """

    rows: int
    bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One source in a plan.

    Attributes
    ----------
    as_of
        What its snapshot will rest on.
    snapshot
        What is reused.
    increment
        How it is built of what is there; None: all of it is computed.
    keys
        Of a partitioned source, the partitions that are computed, in order.
    base
        What has the other partitions.
    partitions
        Which partitions its snapshot will have.
    history
        The history that it goes on with; None: there is none, or it begins anew.
    """

    source_id: SourceID
    action: Literal["build", "reuse"]
    build_id: BuildID
    as_of: AsOf
    reasons: tuple[Reason, ...] = ()
    estimate: Estimate | None = None
    snapshot: Snapshot | None = None
    increment: Increment | None = None
    keys: tuple[str, ...] | None = None
    base: Snapshot | None = None
    partitions: Partitions | None = None
    history: Snapshot | None = None

    @property
    def goes_on_from(self) -> Snapshot | None:
        """What of its rows it keeps, in their table or in another one."""
        return self.increment.base if self.increment else self.history


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be built and what reused, every step after those it needs."""

    environment: str
    steps: tuple[Step, ...]
