"""The expected cost of maintaining a table, and of computing it as a whole. Pure.

Where nothing was measured, sizes decide. What builds of the same meaning took corrects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import Merging, relation_name
from persist_assets.core.model.plans import Estimates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.plans import Change
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Cost, Snapshot

_LEAST_S = 1.0
"""A table that is computed as a whole in fewer seconds is not maintained, unless it was before."""
_FIXED_S = 0.6
"""Seconds to look for the files to write again, and to write some."""
_RELATION_S = 0.1
"""Seconds to plan and start the computation of one held relation."""
_CHANGED_BYTES_PER_S = 30e6
"""Bytes of files that came or went, whose rows are compared."""
_READ_BYTES_PER_S = 300e6
"""Bytes of tables of which all rows are read."""
_SEARCHED_BYTES_PER_S = 1e9
"""Bytes of tables that are searched for keys: statistics exclude much, and sources share it."""
_COMPUTED_BYTES_PER_S = 40e6
"""Bytes of tables from which all rows are computed."""
_WRITTEN_BYTES_PER_S = 60e6
_COPIED_BYTES_PER_S = 150e6
"""Bytes of files that are copied from another environment's table."""


_STARTING_S = 30.0
"""Seconds that a first build may take longer than later ones: Spark starts, and compiles code."""
_MOST_STARTING = 4.0
"""The maximum factor by which a first build takes longer than later ones for that reason."""
_MOST_BUILDS = 10
"""All rows are computed only to measure it if that can pay off within so many builds."""
_MOST_COMPARING = 0.1
"""The most of the time to compute all rows that comparing a value, which all rows share, may take.

It is lost if the value changed.
"""
_MOST_LOST = 0.1
"""The share of the time of full builds that attempts to avoid them may take."""
_LEAST_OF_SMALL_S = 10.0
"""A small table that is computed as a whole in fewer seconds is not maintained, unless it was."""
_LEAST_OF_SMALL_AT_FIRST_S = 60.0
"""The same while only its first build was measured."""


_LEAST_TABLES = 3
"""Fewer tables say nothing about the other tables of a project."""
_LEAST_STARTING = 2.0
"""The least number of times that a first build may be slower, whatever other tables show."""


@dataclass(frozen=True, slots=True)
class Experience:
    """The builds of a project's maintained tables, compared with expectations.

    Attributes
    ----------
    pace
        How many times as long as expected by sizes alone their incremental builds take; None: they
        are too few.
    first_builds
        For each table, the seconds of the earlier of its last two full builds, and how many times
        as long as the later one it took. Few tables are computed in full more than twice.
    """

    pace: float | None = None
    first_builds: Sequence[tuple[float, float]] = ()

    def starting(self, first_s: float) -> float:
        """Return how many times as long as later full builds a first build takes at most.

        Spark's start costs about the same for each table, so tables that were built much faster
        have larger ratios, which prove nothing.
        """
        ratios = [ratio for seconds, ratio in self.first_builds if seconds >= first_s / 2]
        if len(ratios) < _LEAST_TABLES:
            return _MOST_STARTING
        return min(_MOST_STARTING, max(_LEAST_STARTING, *ratios))


def experience_of(tables: Iterable[Sequence[Cost]]) -> Experience:
    """Return what is known from the builds of several tables, the latest of each first."""
    paces: list[float] = []
    first_builds: list[tuple[float, float]] = []
    for costs in tables:
        if any(c.by_size_s for c in costs):
            paces.append(_correction(costs))
            whole = [c.seconds for c in costs if c.maintenance == "whole"]
            if len(whole) > 1 and whole[-2]:
                first_builds.append((whole[-1], whole[-1] / whole[-2]))
    pace = median(paces) if len(paces) >= _LEAST_TABLES else None
    return Experience(pace, tuple(first_builds))


def asks_experience(costs: Sequence[Cost]) -> bool:
    """Whether a decision about a table depends on the builds of others."""
    return not any(c.by_size_s for c in costs) or _is_measured_once(costs)


def _is_measured_once(costs: Sequence[Cost]) -> bool:
    """Whether a table was computed as a whole once, and then maintained twice."""
    return sum(c.maintenance == "whole" for c in costs) == 1 and len(costs) >= 3


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


def is_quick(whole_s: float, costs: Sequence[Cost], experience: Experience) -> bool:
    """Whether all rows are computed so quickly that no other way is considered."""
    is_new = all(c.maintenance == "whole" for c in costs)
    return whole_s < _LEAST_S and is_new and experience.pace is None


def estimate(
    program: Program | Merging,
    base: Snapshot,
    changes: Mapping[SourceID, Change],
    costs: Sequence[Cost],
    *,
    copies: bool = False,
    experience: Experience = Experience(),
) -> Estimates:
    """Return the expected seconds of both ways to bring a table up to date.

    Parameters
    ----------
    changes
        The changes of the tables that are read, empty if a table did not change.
    copies
        The files of the base that stay are copied.
    """
    whole_s, is_measured = whole_seconds(costs, size_of(changes.values()))
    delta_s = _FIXED_S + _RELATION_S * len(program.held)
    for source_id, change in changes.items():
        # With the keys that differ, all rows are read, but only few compared.
        rate = _CHANGED_BYTES_PER_S if change.keys is None else _READ_BYTES_PER_S
        delta_s += change.changed_bytes / rate
        n_searches = len({p.columns for p in program.probes.values() if p.table == source_id})
        delta_s += change.total_bytes * n_searches / _SEARCHED_BYTES_PER_S
        delta_s += change.total_bytes * _n_reads(program.statements, source_id) / _READ_BYTES_PER_S
    if isinstance(program, Merging) or not program.only_adds:
        delta_s += base.bytes / _WRITTEN_BYTES_PER_S
    if copies and not isinstance(program, Merging):
        delta_s += base.bytes / _COPIED_BYTES_PER_S
    corrected = delta_s * _correction(costs, default=experience.pace or 1.0)
    return Estimates(whole_s, corrected, is_measured, by_size_s=delta_s)


def _n_reads(texts: Iterable[str], table: SourceID) -> int:
    """Return how often statements read all rows of a table."""
    names = [quote(relation_name(version, table)) for version in ("now", "old", "new")]
    return sum(text.count(name) for text in texts for name in names)


def dear_comparison(
    program: Program | Merging, changes: Mapping[SourceID, Change], whole_s: float
) -> float | None:
    """Return the seconds to compare values that all rows share; None: few enough.

    If one changed, all rows are computed after that.
    """
    texts = [program.held[value] for value in program.changed_values]
    read = sum(c.total_bytes * _n_reads(texts, table) for table, c in changes.items())
    comparing_s = read / _READ_BYTES_PER_S
    return comparing_s if comparing_s > _MOST_COMPARING * whole_s else None


def owed_after(costs: Sequence[Cost], whole_s: float, lost_s: float) -> float:
    """Return the seconds of failed attempts that later full builds must make up for.

    An attempt to maintain a table may fail, for instance because a change touches too many keys.
    This may be an exception, so after the first failure the next change is attempted, too. After
    more failures, each full build makes up for a tenth of its own time. A success cancels the rest.

    Parameters
    ----------
    costs
        What builds of the same meaning took, the latest first.
    whole_s, lost_s
        What computing all rows has taken now, and the attempt before that; 0: there was none.
    """
    owed_s, repaid_s = costs[0].owed_s if costs else 0.0, _MOST_LOST * whole_s
    if not lost_s:
        return max(0.0, owed_s - repaid_s)
    if not owed_s:
        return min(lost_s, repaid_s / 2)
    # More is owed than allows an attempt only if refresh=incremental attempts it regardless.
    return max(0.0, min(owed_s, repaid_s) + lost_s - repaid_s)


def builds_to_wait(costs: Sequence[Cost], whole_s: float) -> int:
    """Return how many full builds come before the next attempt to maintain a table.

    Zero, unless several attempts have failed; see `owed_after`.
    """
    owed_s, repaid_s = costs[0].owed_s if costs else 0.0, _MOST_LOST * whole_s
    return max(0, ceil(owed_s / repaid_s) - 1) if owed_s else 0


def _correction(costs: Sequence[Cost], n_builds: int = 2, default: float = 1.0) -> float:
    """Return how many times as long as expected by sizes the last builds took, on average.

    Some builds find that no row differs, which is quick. They count, because no plan knows before.
    """
    ratios = [c.seconds / c.by_size_s for c in costs if c.by_size_s][:n_builds]
    return sum(ratios) / len(ratios) if ratios else default


def is_too_small(costs: Sequence[Cost], n_bytes: int | None) -> bool:
    """Whether all rows are computed because the inputs are small, and they do not take long.

    Jobs have constant costs, and deltas need several times as many jobs. A first build takes
    longer than later ones, because Spark starts and compiles code, so it proves less. But what took
    long is not repeated because of a size: files are compressed, joins multiply rows, and functions
    and other systems may be slow.

    Parameters
    ----------
    n_bytes
        The size of all tables that are read; None: unknown.
    """
    if n_bytes is None or n_bytes / _COMPUTED_BYTES_PER_S >= _LEAST_S:
        return False
    least_s = _LEAST_OF_SMALL_AT_FIRST_S if len(costs) == 1 else _LEAST_OF_SMALL_S
    was_maintained = any(c.maintenance != "whole" for c in costs)
    return bool(costs) and not was_maintained and costs[0].seconds < least_s


def is_worth_measuring(expected: Estimates, costs: Sequence[Cost], experience: Experience) -> bool:
    """Whether to compute all rows although maintenance is expected to be cheaper.

    The first builds of each kind take longer than later ones, because Spark starts and compiles
    code. So all rows are computed a second time, and measured, if the second build that maintained
    the table took longer than a later computation of all rows may take, and enough longer to pay
    for the measurement.
    """
    if not _is_measured_once(costs):
        return False
    (first_s,) = (c.seconds for c in costs if c.maintenance == "whole")
    like_the_last_s = (expected.by_size_s or expected.delta_s) * _correction(costs, n_builds=1)
    if first_s > _STARTING_S:  # it may have waited for Spark, as no other table did
        least_s = max(first_s - _STARTING_S, first_s / _MOST_STARTING)
    else:
        least_s = first_s / experience.starting(first_s)
    saved_s = like_the_last_s - least_s
    return saved_s > 0 and saved_s * _MOST_BUILDS > first_s - like_the_last_s


def size_of(changes: Collection[Change | None]) -> int:
    """Return the size of tables, as far as it is known."""
    return sum(change.total_bytes for change in changes if change is not None)
