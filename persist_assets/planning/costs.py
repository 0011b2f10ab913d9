"""The expected cost of maintaining a table, and of computing it as a whole. Pure.

What builds of the same meaning took before counts most. Where nothing was measured, sizes decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import Merging
from persist_assets.core.model.plans import Estimates

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.plans import Change
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Cost, Snapshot

LEAST_S = 1.0
"""A table that is computed as a whole in fewer seconds is not maintained by deltas."""
_FIXED_S = 0.8
"""Seconds to look for the files to write again, and to write some."""
_RELATION_S = 0.12
"""Seconds to plan and start the computation of one held relation."""
_CHANGED_BYTES_PER_S = 30e6
"""Bytes of files that came or went, whose rows are compared."""
_KEPT_BYTES_PER_S = 250e6
"""Bytes of files that are searched for keys."""
_COMPUTED_BYTES_PER_S = 40e6
"""Bytes of tables from which all rows are computed."""
_WRITTEN_BYTES_PER_S = 60e6
_COPIED_BYTES_PER_S = 150e6
"""Bytes of files that are copied from another environment's table."""


def whole_seconds(costs: Sequence[Cost], n_bytes: int) -> tuple[float, bool]:
    """Return the expected seconds to compute all rows, and whether they were measured.

    Parameters
    ----------
    costs
        What builds of the same meaning took, the latest first.
    n_bytes
        The size of all tables that are read.
    """
    measured = [c.seconds for c in costs if c.maintenance == "whole"]
    if measured:
        return measured[0], True
    return n_bytes / _COMPUTED_BYTES_PER_S, False


def estimate(
    program: Program | Merging,
    base: Snapshot,
    changes: Mapping[SourceID, Change],
    costs: Sequence[Cost],
    n_bytes: int,
    *,
    copies: bool = False,
) -> Estimates:
    """Return the expected seconds of both ways to bring a table up to date.

    Parameters
    ----------
    changes
        The changes of the tables that changed.
    n_bytes
        The size of all tables that are read.
    copies
        The files of the base that stay are copied.
    """
    whole_s, is_measured = whole_seconds(costs, n_bytes)
    changed = sum(change.changed_bytes for change in changes.values())
    kept = sum(c.total_bytes for c in changes.values())
    delta_s = _FIXED_S + _RELATION_S * len(program.held) + changed / _CHANGED_BYTES_PER_S
    if program.probes:
        delta_s += kept / _KEPT_BYTES_PER_S
    if isinstance(program, Merging) or not program.only_adds:
        delta_s += base.bytes / _WRITTEN_BYTES_PER_S
    measured = [c.seconds for c in costs if c.maintenance in ("keys", "append", "merge")]
    if measured:
        delta_s = (delta_s + measured[0]) / 2
    if copies and not isinstance(program, Merging):
        delta_s += base.bytes / _COPIED_BYTES_PER_S
    return Estimates(whole_s, delta_s, is_measured)


def size_of(changes: Collection[Change | None]) -> int:
    """Return the size of tables, as far as it is known."""
    return sum(change.total_bytes for change in changes if change is not None)
