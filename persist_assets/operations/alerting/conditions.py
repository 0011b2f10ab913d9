"""The current problems of an environment, and the outcome of earlier ones. Plans nothing.

misses, builds, tables, other graphs, the clock ─► `Condition`s
open alerts without a condition                 ─► outcomes
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from persist_assets.ledger.alerts import Condition
from persist_assets.storage.raw import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.ledger.alerts import Alert, Outcome

_LONGEST = 1_000


def find_conditions(observer: Observer) -> list[Condition]:
    """Return all current problems in the environment of an observer.

    Missed deadlines are those that are recorded: see `wants.requests.record_late`.
    """
    return [
        *_missed(observer),
        *_failed(observer),
        *_stale(observer),
        *_silent(observer),
    ]


def find_outcome(observer: Observer, alert: Alert) -> Outcome:
    """Return the outcome of an alert whose condition is over.

    It has recovered, unless nothing is left that could recover: the want was given up, or the
    source or the other graph is no longer part of the project.
    """
    kind, subject = alert.condition.key
    if kind == "deadline":
        miss = observer.ledger.wants.find_miss(subject)
        return "recovered" if miss is not None and miss.delivered_at is not None else "ended"
    if kind == "silent":
        graphs = {upstream.name for upstream in observer.settings.upstreams}
        return "recovered" if subject in graphs else "ended"
    source = observer.project.by_id.get(subject)
    if source is None or not source.persisted:
        return "ended"
    if kind == "stale" and source.annotation.freshness is None:
        return "ended"
    return "recovered"


def source_of(observer: Observer, condition: Condition) -> Source | None:
    """Return the source that a condition is about; None: it is about another graph."""
    if condition.kind == "silent":
        return None
    if condition.kind != "deadline":
        return observer.project.by_id.get(condition.subject)
    ref = condition.details["partition_ref"]
    fitting = [s for s in observer.project.persisted if is_of(s, ref)]
    return max(fitting, key=lambda s: len(s.key), default=None)


def is_of(source: Source, ref: str) -> bool:
    """Whether a reference names a source, or a partition of it."""
    return f"{ref}/".startswith(f"{source.key}/")


def _missed(observer: Observer) -> Iterator[Condition]:
    misses = observer.ledger.wants.fetch_misses(observer.settings.environment, only_open=True)
    for miss in misses:
        details = {
            "partition_ref": miss.partition_ref,
            "deadline": miss.deadline.isoformat(),
            "blame": dict(miss.blame),
        }
        yield Condition("deadline", miss.want_id, miss.deadline, details)


def _failed(observer: Observer) -> Iterator[Condition]:
    ledger, environment = observer.ledger, observer.settings.environment
    failures = {f.source_id: f for f in ledger.alerts.fetch_failures(environment)}
    under_way = ledger.builds.fetch_under_way()
    gone = {b.source_id: b for b, _, dead in under_way if dead and b.environment == environment}
    refs = ledger.alerts.fetch_failed_partitions(environment)
    by_key: dict[str, dict[str, str]] = {}
    for ref, at in refs.items():
        for end in (n for n, c in enumerate(f"{ref}/") if c == "/"):
            by_key.setdefault(ref[:end], {})[ref] = at.isoformat()
    for source in observer.project.persisted:
        source_id = source.source_id
        partitions = by_key.get(source.key, {})
        failure, interrupted = failures.get(source_id), gone.get(source_id)
        if failure is None and interrupted is None and not partitions:
            continue
        instants = [refs[ref] for ref in partitions]
        error, build_uid = "", None
        if failure is not None:
            instants.append(failure.at)
            error, build_uid = failure.error or "", failure.build_uid
        elif interrupted is not None:
            instants.append(interrupted.started_at)
            error, build_uid = "its process has ended", interrupted.build_uid
        details = {
            "asset_key": source.key,
            "build_uid": build_uid,
            "error": without_secrets(error.split("\n")[0])[:_LONGEST],
            "partitions": sorted(partitions),
        }
        yield Condition("failed", source_id, min(instants), details)


def _stale(observer: Observer) -> Iterator[Condition]:
    windows: Mapping[SourceID, float] = {
        s.source_id: s.annotation.freshness.window_s
        for s in observer.project.persisted
        if s.annotation.freshness is not None
    }
    if not windows:
        return
    now = observer.clock()
    manifest = observer.published()
    for source_id, window_s in windows.items():
        source = observer.project.by_id[source_id]
        snapshot = manifest.get(source.build_id)
        if snapshot is None:
            continue
        due = snapshot.known_at + timedelta(seconds=window_s)
        if now > due:
            details = {
                "asset_key": source.key,
                "known_at": snapshot.known_at.isoformat(),
                "window_seconds": window_s,
            }
            yield Condition("stale", source_id, due, details)


def _silent(observer: Observer) -> Iterator[Condition]:
    if not observer.settings.upstreams:
        return
    contacts = observer.ledger.alerts.fetch_contacts(observer.settings.environment)
    now = observer.clock()
    for upstream in observer.settings.upstreams:
        contact = contacts.get(upstream.name)
        if contact is None:
            continue
        last = contact.last_news or contact.at
        details = {"problem": None, "last_news": contact.last_news and last.isoformat()}
        if contact.problem is not None:
            problem = without_secrets(contact.problem)[:_LONGEST]
            yield Condition("silent", upstream.name, contact.at, {**details, "problem": problem})
        elif upstream.silent_after_s is not None:
            due = last + timedelta(seconds=upstream.silent_after_s)
            if now > due:
                yield Condition("silent", upstream.name, due, details)
