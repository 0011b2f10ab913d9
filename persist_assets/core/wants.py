"""Wants: data that is needed by a deadline, what can be built for them now, and delays. Pure.

A want is an event, and so is everything that happens to it; the ledger's tables of wants and build
requests are folds of its events (`ledger/projections.py`). This module makes the decisions:

    wants, what is current, what other graphs have, now ─► evaluate ─► at most one build request
    a want past its deadline, what it waits for          ─► blame    ─► the cause of the delay

A reference names a partition: the asset key, followed by the partition's key for partitioned
sources, ``departures/2013-01-01``. A reference to another graph starts with the name of the graph,
``users:data/users/2024-01-01``.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from persist_assets.core.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

PartitionRef = str
"""The name of a partition of this graph or, with a graph and a colon before it, of another."""
WantState = Literal[
    "waiting", "requested", "building", "failing", "satisfied", "expired", "cancelled"
]
UNDER_WAY: tuple[WantState, ...] = ("requested", "building")
"""The states of wants with an open build request: not yet started, or started."""
ACTIVE: tuple[WantState, ...] = ("waiting", *UNDER_WAY, "failing")
"""The states of wants that may still be satisfied."""
SourceType = Literal["cli", "dashboard", "schedule", "api", "sensor"]
Cause = Literal["not-arrived", "failed", "queued", "running"]
RequestState = Literal["requested", "started", "succeeded", "failed"]

_FIRST_PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(hours=1)

MOST_WANTS = 5_000
"""The approximate maximum of wants per request, because its transactions block other writers."""


@dataclass(frozen=True, slots=True)
class Want:
    """A requested partition, and the state of the request.

    Attributes
    ----------
    created_at
        The creation time by the ledger's clock, aware.
    data_timestamp
        The business time of the partition.
    ttl_s
        The seconds after `created_at` until it expires; None: never.
    sla_s
        The seconds after `data_timestamp`, or else `created_at`, until it is late.
    external_dependencies
        References to partitions of other graphs that have to be available first.
    source
        Its origin: ``type`` and details.
    failures
        The number of consecutive failures caused by the partition itself.
    batch
        The maximum number of partitions built together with it, after runs that ended for unknown
        reasons.
    retry_at
        The earliest time of the next attempt.
    request_id
        The request that builds it, or did last.
    """

    want_id: str
    partition_ref: PartitionRef
    environment: str
    created_at: datetime
    data_timestamp: datetime | None = None
    ttl_s: int | None = None
    sla_s: int | None = None
    external_dependencies: tuple[PartitionRef, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    comment: str | None = None
    parent: str | None = None
    state: WantState = "waiting"
    failures: int = 0
    batch: int | None = None
    retry_at: datetime | None = None
    error: str | None = None
    request_id: str | None = None
    ended_at: datetime | None = None

    @property
    def deadline(self) -> datetime | None:
        """The time from which it is late."""
        return deadline(self.created_at, self.data_timestamp, self.sla_s)

    @property
    def expires_at(self) -> datetime | None:
        """The time at which it expires."""
        return None if self.ttl_s is None else self.created_at + timedelta(seconds=self.ttl_s)


class ActiveWant(NamedTuple):
    """The part of an active want that `evaluate` needs; see `Want`. There may be many."""

    want_id: str
    partition_ref: PartitionRef
    state: WantState
    deadline: datetime | None
    expires_at: datetime | None
    external_dependencies: tuple[PartitionRef, ...]
    failures: int
    batch: int | None
    retry_at: datetime | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """Partitions that are built together, and become visible together or not at all."""

    request_id: str
    environment: str
    partitions: tuple[PartitionRef, ...]
    want_ids: tuple[str, ...]
    reason: str
    trigger: str
    state: RequestState = "requested"
    requested_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    run_id: str | None = None
    error: str | None = None
    culprits: tuple[PartitionRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """A want that cannot be built yet, and the partitions of other graphs that it waits for."""

    want_id: str
    partition_ref: PartitionRef
    missing: tuple[PartitionRef, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The decisions about wants.

    Attributes
    ----------
    partitions, want_ids
        The partitions to build together, and their wants; empty: nothing.
    satisfied, expired
        Wants whose partition is up to date, and wants whose time is over.
    blocked
        Wants that wait for other graphs.
    deferred
        The number of wants that could be built now and are left for the next evaluation.
    """

    partitions: tuple[PartitionRef, ...] = ()
    want_ids: tuple[str, ...] = ()
    reason: str = "nothing to build"
    satisfied: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    deferred: int = 0


@dataclass(frozen=True, slots=True)
class Blame:
    """The cause of a late want: the graph that it waits for, since when, and why."""

    partition_ref: PartitionRef
    graph: str
    since: datetime
    cause: Cause
    problem: str | None = None
    """The problem of that graph at that time."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A missed deadline, with its cause when it was detected."""

    want_id: str
    partition_ref: PartitionRef
    deadline: datetime
    missed_at: datetime
    delivered_at: datetime | None
    blame: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Availability:
    """The state of a graph's partition: since when it is available, failed or tainted."""

    partition_ref: PartitionRef
    graph: str
    state: str
    at: datetime
    idx: int
    build_uid: str | None = None


def deadline(
    created_at: datetime, data_timestamp: datetime | None, sla_s: int | None
) -> datetime | None:
    """Return the time from which a want is late, counted from its business time."""
    if sla_s is None:
        return None
    return (data_timestamp or created_at) + timedelta(seconds=sla_s)


def evaluate(
    wants: Iterable[Want | ActiveWant],
    now: datetime,
    *,
    current: Collection[PartitionRef],
    available: Collection[PartitionRef],
    unbuildable: Collection[PartitionRef] = (),
    force: bool = False,
    most: int = MOST_WANTS,
) -> Evaluation:
    """Return the decisions about the active wants of an environment.

    Wants that wait for nothing are built together; if there are too many for one request, those
    with the earliest deadlines come first. Failed partitions are retried one at a time, once their
    pause is over and nothing else is to be built, so that they do not block others, nor others
    them. After a run that ended for an unknown reason, fewer and fewer partitions are built
    together, until the cause is isolated.

    Parameters
    ----------
    current
        The wanted partitions that are up to date. They satisfy a want if other graphs have its
        dependencies.
    available
        The available partitions among `Want.external_dependencies`.
    unbuildable
        Partitions whose windows have not ended, and removed ones; their wants wait until they
        expire.
    force
        Ignore pauses after failures.
    most
        The maximum number of wants per request, unless one partition alone has more.
    """
    satisfied, expired = list[str](), list[str]()
    blocked: list[Blocked] = []
    ready: dict[PartitionRef, list[Want | ActiveWant]] = {}
    building: set[PartitionRef] = set()
    waiting: list[Want | ActiveWant] = []
    for want in wants:
        if want.state in UNDER_WAY:
            building.add(want.partition_ref)
        elif want.partition_ref in current and not _lacks_others(want, available):
            satisfied.append(want.want_id)
        elif (until := want.expires_at) is not None and until <= now:
            expired.append(want.want_id)
        elif want.external_dependencies and (
            missing := tuple(d for d in want.external_dependencies if d not in available)
        ):
            blocked.append(Blocked(want.want_id, want.partition_ref, missing))
        elif want.partition_ref not in unbuildable:
            waiting.append(want)
    for want in waiting:
        if want.partition_ref not in building:
            ready.setdefault(want.partition_ref, []).append(want)
    chosen, reason = _chosen(ready, now, force=force)
    totals = [*accumulate(len(ready[ref]) for ref in chosen)]
    n = max(1, bisect_right(totals, most))
    return Evaluation(
        tuple(chosen[:n]),
        tuple(want.want_id for ref in chosen[:n] for want in ready[ref]),
        reason if chosen else "nothing to build",
        tuple(satisfied),
        tuple(expired),
        tuple(blocked),
        deferred=sum(len(ready[ref]) for ref in chosen[n:]),
    )


def _lacks_others(want: Want | ActiveWant, available: Collection[PartitionRef]) -> bool:
    """Whether it needs a partition that another graph lacks: existing rows do not meet it then."""
    return any(split_graph(d)[0] and d not in available for d in want.external_dependencies)


def _chosen(
    ready: Mapping[PartitionRef, list[Want | ActiveWant]], now: datetime, *, force: bool
) -> tuple[list[PartitionRef], str]:
    """Return the partitions to build together."""
    healthy = list[PartitionRef]()
    suspects = list[tuple[datetime, PartitionRef, int]]()
    failing = list[tuple[datetime, PartitionRef]]()
    for ref, some in ready.items():
        retry_at = max((w.retry_at for w in some if w.retry_at is not None), default=now)
        if not force and retry_at > now:
            continue
        if not any(w.failures or w.batch is not None for w in some):
            healthy.append(ref)
        elif any(w.failures for w in some):
            failing.append((retry_at, ref))
        else:
            suspects.append((retry_at, ref, min(w.batch for w in some if w.batch is not None)))
    if healthy:
        return _by_deadline(healthy, ready), "satisfying_active_wants"
    if suspects:
        suspects.sort()
        fewest = suspects[0][2]
        return [ref for *_, ref, _ in suspects[:fewest]], "retrying_after_an_interruption"
    return [min(failing)[1]] if failing else [], "retrying_after_a_failure"


def _by_deadline(
    refs: Sequence[PartitionRef], ready: Mapping[PartitionRef, list[Want | ActiveWant]]
) -> list[PartitionRef]:
    """Return partitions in the order of their earliest deadlines; those without one come last."""
    due: dict[PartitionRef, datetime] = {}
    for ref in refs:
        deadlines = [d for want in ready[ref] if (d := want.deadline) is not None]
        if deadlines:
            due[ref] = min(deadlines)
    return [*sorted(due, key=due.__getitem__), *(ref for ref in refs if ref not in due)]


def pause(failures: int) -> timedelta:
    """Return the pause of a partition after a number of consecutive failures."""
    return min(_FIRST_PAUSE * 2 ** min(failures - 1, 10), _LONGEST_PAUSE)


def fewer(n: int) -> int:
    """Return how many partitions to build together after a request of `n` partitions died."""
    return max(1, n // 2)


def blame(
    want: Want,
    request: Request | None,
    *,
    missing: Iterable[tuple[PartitionRef, datetime | None]] = (),
    problems: Mapping[str, str | None] | None = None,
    running: PartitionRef | None = None,
) -> Blame:
    """Return the cause of a late want.

    Parameters
    ----------
    request
        The request that builds it, or the last that failed to.
    missing
        The missing partitions of other graphs, and since when the want waits for them.
    problems
        The problems of other graphs.
    running
        The partition that the request computes now.
    """
    for ref, since in missing:
        graph, name = split_graph(ref)
        problem = (problems or {}).get(graph)
        return Blame(name, graph, since or want.created_at, "not-arrived", problem)
    if request is not None and want.state in UNDER_WAY:
        if request.state == "started":
            since = request.started_at or want.created_at
            return Blame(running or want.partition_ref, "", since, "running")
        return Blame(want.partition_ref, "", request.requested_at or want.created_at, "queued")
    if request is not None and request.state == "failed":
        since = request.ended_at or want.created_at
        return Blame(next(iter(request.culprits), want.partition_ref), "", since, "failed")
    return Blame(want.partition_ref, "", want.created_at, "queued")


def scheduled_prefix(environment: str, asset_key: str) -> str:
    """Return the beginning of the IDs of wants that a source's annotation makes."""
    return f"{environment}:{asset_key}@"


LONGEST_ID = 255
"""The maximum length of the ID of a want."""


def bounded_id(text: str) -> str:
    """Return the ID of a want: if a text is too long, its end is replaced by a digest of it.

    Examples
    --------
    >>> bounded_id("dev:flights@2024-01-31"), len(bounded_id("x" * 300))
    ('dev:flights@2024-01-31', 255)
    """
    if len(text) <= LONGEST_ID:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{text[: LONGEST_ID - len(digest) - 1]}~{digest}"


def is_scheduled(want_id: str) -> bool:
    """Whether an ID begins as `scheduled_prefix` does, for any source.

    Examples
    --------
    >>> is_scheduled("prod:flights/daily@2024-01-31"), is_scheduled("request-17")
    (True, False)
    """
    return re.match("[^:@]+:[^@]+@", want_id) is not None


def ref_of(asset_key: str, partition: str | None = None) -> PartitionRef:
    """Return the reference to a partition of this graph, or to a whole source."""
    return asset_key if partition is None else f"{asset_key}/{partition}"


def split_graph(ref: PartitionRef) -> tuple[str, PartitionRef]:
    """Return the graph of a reference, empty for this one, and the reference within that graph.

    Examples
    --------
    >>> split_graph("users:data/users")
    ('users', 'data/users')
    >>> split_graph("data/users/2013-01-01-05:00")
    ('', 'data/users/2013-01-01-05:00')
    """
    head, colon, tail = ref.partition(":")
    return (head, tail) if colon and "/" not in head and tail else ("", ref)


def warn_unknown_graphs(
    names: Collection[str], refs: Iterable[PartitionRef]
) -> list[tuple[str, str]]:
    """Return a message and a hint for each unknown graph in references.

    Parameters
    ----------
    names
        The names of the upstreams in the settings.
    """
    unknown = sorted({split_graph(ref)[0] for ref in refs}.difference(names, [""]))
    return [
        (
            f"unknown graph `{name}`: persist.toml has no `[upstream.{name}]`, "
            "so a want for it would wait forever",
            did_you_mean(name, names) or "declare it: see docs/settings.md#other-graphs",
        )
        for name in unknown
    ]


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Callable[[PartitionRef], bool]:
    """Return a function that matches references with a pattern, in time linear in their length.

    ``*`` matches anything within one segment, ``**`` anything across segments. All ways to match
    are followed at once, with one bit each: bit `n` means "the first `n` characters that are not
    wildcards have matched". So no pattern and no reference takes long.

    Examples
    --------
    >>> matcher("data/*")("data/users/2024-01-01")
    False
    >>> matcher("data/**")("data/users/2024-01-01")
    True
    """
    within = across = 0  # the bits that a wildcard keeps
    n, steps = 0, dict[str, int]()
    for part in re.split(r"(\*\*|\*)", pattern):
        if part == "**":
            across |= 1 << n
        elif part == "*":
            within |= 1 << n
        else:
            for character in part:
                steps[character] = steps.get(character, 0) | 1 << n
                n += 1
    within |= across
    start, _, _ = pattern.partition("*")
    end = pattern.rpartition("*")[2]

    def fits(ref: PartitionRef) -> bool:
        if not (ref.startswith(start) and ref.endswith(end)):
            return False
        state = 1
        for character in ref:
            stays = state & (across if character == "/" else within)
            state = (state & steps.get(character, 0)) << 1 | stays
            if not state:
                return False
        return bool(state >> n)

    return fits
