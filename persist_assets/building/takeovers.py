"""Tables that are taken over after an upgrade, and the source texts of their rows."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from persist_assets.building.publishing import publish, share_manifest
from persist_assets.core.model.snapshots import Build, Origin
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.planning.diff import recorded_reads
from persist_assets.planning.takeovers import find_takeovers, names_in, versions_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import AsOf, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


def origin_of(
    project: Project, source: Source, world: World, step: Step, inputs: AsOf
) -> Origin | None:
    """Return the text that all rows of a build's snapshot come from; None if unknown.

    Only a build that computes rows tells from which text. It tells nothing if tables that it reads
    or continues come from another text than the present one: these may have the same BuildID only
    because of an error of an earlier release, which a later one corrects. A build that reuses a
    table leaves the text as it is. If that is the present one, so is the software by which it has
    its BuildID. If the table becomes one of newer data without being computed, it comes from both
    texts: the other one might find other rows in the newer data.

    Parameters
    ----------
    inputs
        The direct inputs of the rows.
    """
    text, present = project.text_of(source.source_id), step.snapshot
    if present is not None and (present.origin is None or not _is_renewed(step, present)):
        if present.origin is None or present.origin.text != text:
            return present.origin
    elif text and not _is_of_one_text(project, source, world, step, text):
        return Origin("", project.software)
    if not text:
        return None
    groups = step.partitions.filled if step.partitions else ()
    parts = [v for group in groups for v in (*group.as_of, *group.inputs)]
    versions = (*step.as_of, *inputs, *parts, *(versions_in(present) if present else ()))
    names = {(source.build_id, text), *names_in(project, source, versions)}
    return Origin(text, project.software, tuple(sorted(names)))


def _is_renewed(step: Step, present: Snapshot) -> bool:
    """Whether a reused table will count as a table of newer data.

    Builds that compute from the current text record it for existing tables.
    """
    groups = present.partitions.filled if present.partitions else ()
    now = step.partitions.filled if step.partitions else groups
    return step.as_of != present.as_of or now != groups


def _is_of_one_text(project: Project, source: Source, world: World, step: Step, text: str) -> bool:
    """Whether all tables that a build reads, continues or renews come from the present texts."""
    continued = step.snapshot or step.base or step.goes_on_from
    if continued is not None and (continued.origin is None or continued.origin.text != text):
        return False

    def is_read(upstream: Source) -> bool:
        is_table = upstream.persisted and world.readable(upstream) is not None
        return upstream.raw is not None or is_table

    for upstream in project.reach(source.bindings, is_read):
        table = world.readable(upstream) if upstream.persisted else None
        if table is not None:
            origin = table.origin
            if origin is None or origin.text != project.text_of(upstream.source_id):
                return False
    return True


def take_over(observer: Observer, run_id: str | None) -> int:
    """Take over all tables of an environment that an upgrade left under other BuildIDs.

    This is one transaction, once per run; it reads and writes no table. Tables of environments that
    are read stay theirs: builds reuse them.

    Returns
    -------
    int
        How many tables were taken over.
    """
    with observer.lock:
        if not observer.takes_over:
            return 0
        observer.takes_over = False
        n = _take_over(observer, run_id)
    if n:
        log.info("action=take-over environment=%s tables=%d", observer.settings.environment, n)
        export_manifest(observer.settings, observer.ledger)
        for outcome in publish(observer.settings, observer.ledger, observer.project):
            if outcome.action == "failed":  # the build of its source tries again
                log.warning("action=publish place=%s is behind: %s", outcome.place, outcome.reason)
        share_manifest(observer.settings, observer.ledger)
    return n


def _take_over(observer: Observer, run_id: str | None) -> int:
    settings, project, ledger = observer.settings, observer.project, observer.ledger
    present = ledger.manifests.fetch(*settings.environments)
    if all(build_id in present for build_id in project.by_build_id):
        return 0
    own, marks = ledger.manifests.fetch(settings.environment), observer.marks()
    usable = [s for s in own.values() if "" not in marks.get(s.build_uid, ())]
    taken = find_takeovers(project, usable, present)
    chosen = [some[0] for some in taken.values() if observer.is_readable(some[0])]
    if not chosen:
        return 0
    former = {s.build_uid: s.build_id for s in own.values()}
    takeovers = [
        (former[snapshot.build_uid], _build(observer, source, snapshot))
        for snapshot in chosen
        for source in project.by_build_id[snapshot.build_id]
    ]
    return ledger.manifests.take_over(
        settings.environment, takeovers, run_id=run_id, malloy=project.malloy
    )


def _build(observer: Observer, source: Source, snapshot: Snapshot) -> Build:
    """Return the build that gives a source the table of its former BuildID."""
    return Build(
        build_uid=uuid.uuid4().hex,
        source_id=source.source_id,
        build_id=source.build_id,
        definition=source.definition,
        environment=observer.settings.environment,
        run_id=None,
        state="succeeded",
        action="reused",
        started_at=observer.started_at,
        finished_at=observer.started_at,
        snapshot=snapshot,
        digests=source.digests,
        reads=recorded_reads(observer.project, source),
    )


def lease_names(observer: Observer, source: Source) -> list[str]:
    """Return the names of the leases that a build of a source needs.

    A history has a lease of its own, whatever the source means. A table that was taken over may
    still be written by processes of the former release, under the former BuildID.
    """
    environment, build_id = observer.settings.environment, source.build_id
    names = [f"history {environment} {source.source_id}"] if source.keeps_history else []
    snapshot = observer.ledger.manifests.find_snapshot(environment, build_id)
    build_ids = {build_id}
    if snapshot is not None and build_id[:12] not in snapshot.table:
        build_ids |= {*observer.ledger.builds.fetch_holding(snapshot.table).build_ids}
    return [*names, *(f"build {other}" for other in build_ids)]


def in_turn(names: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of leases in the order in which all builds take them, each once."""
    every = {name for own in names for name in own}
    return sorted(every, key=lambda name: (name.startswith("build "), name))
