"""Steps of sources that are built as one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import Merging
from persist_assets.core.model.plans import Increment, Reason, Step
from persist_assets.core.model.snapshots import (
    AsOf,
    RawVersion,
    Snapshot,
    merge_as_of,
)
from persist_assets.planning.age import is_stored_as_declared, is_young
from persist_assets.planning.changes import SAME_ROWS, delta_of, estimate_of, increment_of
from persist_assets.planning.deltas import Refusal, describe
from persist_assets.planning.inputs import (
    follows_from,
    inputs,
    is_mixed,
    other_code,
    other_rows,
    own_marks,
    without_draw,
)
from persist_assets.planning.maintenance import IN_FULL, with_maintenance
from persist_assets.planning.reasons import (
    history_reasons,
    last_failure,
    obstacles_to_build,
    unusable_inputs,
    why_no_table,
    why_other_data,
    why_other_rows,
)
from persist_assets.planning.world import OLDER, UNVERSIONED, World, older_code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.plans import Estimates
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span


def table_step(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    spans: tuple[Span, ...] = (),
    *,
    force: bool,
) -> Step:
    """Return a step that builds the table of a source, or reuses a snapshot of it.

    Parameters
    ----------
    coming
        The steps before this one.
    expected
        The raw versions that a build would depend on.
    spans
        Spans of the time column to compute again, whatever changed.
    force
        Build it even if it is up to date.
    """
    case = _case(project, source, world, coming, expected, spans, force=force)
    verdict = _with_spans(case, _verdict(case))
    reasons = (*verdict.reasons, *_requests(case))
    if case.snapshot is None or reasons:
        return _build(case, verdict, reasons)
    return _reuse(case, case.snapshot, verdict)


@dataclass(frozen=True, slots=True)
class Case:
    """The facts that decide about one source.

    Attributes
    ----------
    snapshot
        The snapshot that could be reused: the environment's own, or another environment's.
    missing
        The files of the snapshot are gone.
    mixed
        The snapshot has rows of older code, which the source does not allow.
    latest
        The last snapshot that readers got, even if the source had another meaning then.
    inputs
        The direct inputs of a build; None if a build comes before it.
    """

    project: Project
    source: Source
    world: World
    coming: Mapping[SourceID, Step]
    expected: AsOf
    spans: tuple[Span, ...]
    force: bool
    snapshot: Snapshot | None
    missing: bool
    mixed: bool
    latest: Snapshot | None
    inputs: AsOf | None

    @property
    def tainted(self) -> bool:
        """Whether the table of the source must not be used."""
        return self.source.source_id in self.world.tainted

    @property
    def whole(self) -> bool:
        """Whether computing all rows was requested."""
        return self.force or self.tainted

    @property
    def is_first(self) -> bool:
        """Whether no table of this meaning can be continued."""
        snapshot = self.snapshot
        if snapshot is None or self.missing or self.mixed:
            return True
        return not is_stored_as_declared(self.project, self.source, snapshot)

    def rests_as_expected(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot used the raw versions that a build would use."""
        return without_draw(snapshot.as_of, self.source) == self.expected

    def is_versioned(self, build_id: BuildID) -> bool:
        """Whether a table that is read depends on versioned data only, as far as is known."""
        snapshot = self.world.manifest.get(build_id)
        versions = () if snapshot is None else snapshot.as_of
        return not any(v.version.startswith(UNVERSIONED) for v in versions)

    def increment(
        self, base: Snapshot, spans: tuple[Span, ...] = ()
    ) -> tuple[Increment | None, Reason]:
        """Return the increment by which a build continues a snapshot, or None, and the reason."""
        increment, why = increment_of(
            self.project, self.source, base, self.world, self.coming, self.expected, spans
        )
        return (None, why) if increment is None else self.of_foreign(increment, why)

    def of_foreign(self, increment: Increment, why: Reason) -> tuple[Increment, Reason]:
        """Return an increment and its reason, marked if it copies another environment's table."""
        base = increment.base
        if base.table not in self.world.foreign or base.build_id != self.source.build_id:
            return increment, why
        rest = "their states are" if isinstance(increment.program, Merging) else "other rows are"
        verb = "read" if isinstance(increment.program, Merging) else "copied"
        message = f"{why.message}; {rest} {verb} from the table of another environment"
        return replace(increment, foreign=True), replace(why, message=message)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of a rule.

    Attributes
    ----------
    reasons
        Why the source is built; if empty, the snapshot is reused.
    increment
        How the build continues a table.
    whole
        The build cannot continue a table.
    same_rows
        The data is newer, but the source's direct inputs have the same rows.
    why
        Why all rows are computed, if no reason states it.
    expected
        The costs that were compared.
    """

    reasons: tuple[Reason, ...] = ()
    increment: Increment | None = None
    whole: bool = False
    same_rows: bool = False
    why: str = ""
    expected: Estimates | None = None


def _case(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    spans: tuple[Span, ...],
    *,
    force: bool,
) -> Case:
    snapshot = world.manifest.get(source.build_id)
    latest = world.latest.get(source.source_id) or snapshot
    if source.keeps_history and latest is not None and latest.build_id != source.build_id:
        snapshot = None  # from an earlier time with this meaning: its history is elsewhere
    case = Case(
        project,
        source,
        world,
        coming,
        expected,
        spans,
        force,
        snapshot,
        missing=snapshot is not None and source.build_id in world.missing,
        mixed=snapshot is not None and is_mixed(source, snapshot, expected),
        latest=latest,
        inputs=inputs(project, source, world, coming),
    )
    other = None if _is_up_to_date(case) else _same_rows_elsewhere(case)
    return case if other is None else replace(case, snapshot=other, missing=False, mixed=False)


def _is_up_to_date(case: Case) -> bool:
    snapshot = case.snapshot
    return snapshot is not None and not case.is_first and case.rests_as_expected(snapshot)


def _same_rows_elsewhere(case: Case) -> Snapshot | None:
    """Return another environment's snapshot with the rows that a build would compute, if any."""
    if case.source.keeps_history:
        return None
    for snapshot in case.world.elsewhere.get(case.source.build_id, ()):
        if (
            is_stored_as_declared(case.project, case.source, snapshot)
            and case.rests_as_expected(snapshot)
            and older_code(snapshot) is None
            and not other_rows(snapshot.inputs, case.inputs)
        ):
            return snapshot
    return None


# ------------------------------------------------------------------------------------------ rules


def no_table(case: Case) -> Verdict:
    """Build: no environment has a table of this BuildID."""
    source, latest = case.source, case.latest
    last = case.world.history.get(source.source_id)
    reasons = tuple(why_no_table(case.project, source, last, case.coming))
    changed = latest is not None and latest.build_id != source.build_id
    goes_on = source.annotation.is_incremental and source.annotation.goes_on
    if latest is None or not (changed and goes_on) or case.whole:
        return Verdict(reasons)
    increment, why = case.increment(latest)
    return Verdict((*reasons, why), increment)


def missing_table(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Build if the table's files are gone."""
    if not case.missing:
        return None
    return Verdict((Reason("missing", f"its table {snapshot.table} is gone"),), whole=True)


def other_storage(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Build if the source is stored as a view now and was a table, or the reverse."""
    if is_stored_as_declared(case.project, case.source, snapshot):
        return None
    storage = "stored query" if snapshot.view is None else "table"
    return Verdict((Reason("strategy", f"it is now stored as a {storage}"),), whole=True)


def older_rows(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Build if the table has rows of older code and the source does not allow them."""
    if not case.mixed:
        return None
    message = "its table has rows of older code, and on_change=continue is not set"
    return Verdict((Reason("older", message),))


def young_enough(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Reuse if only unversioned data may be newer and the freshness window is still open.

    A build that computes rows anyway reads such data too.
    """
    if case.whole or case.spans or case.rests_as_expected(snapshot):
        return None
    rewritten = other_rows(snapshot.inputs, case.inputs)
    if any(case.is_versioned(build_id) for build_id in rewritten):
        return None
    return Verdict() if is_young(case.source, snapshot, case.expected, case.world) else None


def same_inputs(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Reuse if the raw data is newer, but the source's direct inputs have the same rows."""
    newer = not case.rests_as_expected(snapshot)
    if not (newer and snapshot.inputs and snapshot.inputs == case.inputs):
        return None
    recoded = other_code(case.source, snapshot.as_of, case.expected)
    whole = not follows_from(case.project, case.source, recoded)
    return Verdict(whole=whole, same_rows=True)


def newer_data(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Build if the data below the table is newer."""
    source, world = case.source, case.world
    if case.rests_as_expected(snapshot):
        return None
    reasons: list[Reason] = []
    if source.source_id in world.expired:
        reasons.append(Reason("age", "its table is older than its freshness window"))
    reasons += why_other_data(case.project, source, snapshot, world, case.expected)
    # Changes of the raw data explain all changed rows except those of older code.
    return _computed(case, snapshot, reasons, other_code(source, snapshot.as_of, case.expected))


def rewritten_inputs(case: Case, snapshot: Snapshot) -> Verdict | None:
    """Build if tables that the source reads have other rows, from the same data."""
    rewritten = other_rows(snapshot.inputs, case.inputs)
    reasons = [*why_other_rows(case.project, case.source, rewritten)]
    return _computed(case, snapshot, reasons, rewritten) if reasons else None


Rule = Callable[[Case, Snapshot], Verdict | None]
RULES: tuple[Rule, ...] = (
    missing_table,
    other_storage,
    older_rows,
    young_enough,
    same_inputs,
    newer_data,
    rewritten_inputs,
)
"""Rules in order: the first verdict decides; without one the table is reused."""


def _verdict(case: Case) -> Verdict:
    if case.snapshot is None:
        return no_table(case)
    for rule in RULES:
        verdict = rule(case, case.snapshot)
        if verdict is not None:
            return verdict
    return Verdict()


_NOT_FOLLOWED = "it is unknown which of its rows the changed tables affect"


def _computed(
    case: Case, snapshot: Snapshot, reasons: Sequence[Reason], changed: Collection[BuildID]
) -> Verdict:
    """Return the verdict to build, by an increment if the source's rows follow what changed."""
    whole = not follows_from(case.project, case.source, changed)
    incremental = case.source.annotation.is_incremental
    if whole and incremental and not case.whole:
        reasons = [*reasons, Reason("whole", f"{IN_FULL}{_NOT_FOLLOWED}")]
    if not incremental and not case.whole:
        return _by_delta(case, snapshot, reasons)
    if whole or case.whole or case.spans:
        return Verdict((*reasons,), whole=whole)
    increment, why = case.increment(snapshot)
    if why == SAME_ROWS:
        return Verdict(same_rows=True)
    return Verdict((*reasons, why), increment)


def _by_delta(case: Case, snapshot: Snapshot, reasons: Sequence[Reason]) -> Verdict:
    """Return the verdict to build a table that is maintained by the changes of its inputs."""
    increment = delta_of(
        case.project, case.source, snapshot, case.world, case.coming, case.expected
    )
    if increment is None:
        return Verdict(same_rows=True)
    if isinstance(increment, str):
        return Verdict((*reasons,), why=increment)
    if isinstance(increment, Refusal):
        return Verdict((*reasons,), why=increment.why, expected=increment.expected)
    why = Reason("increment", describe(case.project, case.source, increment))
    increment, why = case.of_foreign(increment, why)
    return Verdict((*reasons, why), increment)


def _with_spans(case: Case, verdict: Verdict) -> Verdict:
    """Return a verdict with an increment that computes the requested spans."""
    whole = case.whole or case.mixed or verdict.whole
    if not case.spans or whole or verdict.increment is not None or case.snapshot is None:
        return verdict
    increment, why = case.increment(case.snapshot, case.spans)
    return replace(verdict, increment=increment, reasons=(*verdict.reasons, why))


def _requests(case: Case) -> Iterable[Reason]:
    """Yield the requests to build a table that may be up to date."""
    if case.tainted:
        yield Reason("tainted", "its table was tainted")
    if case.force:
        yield Reason("forced", "requested")


# ------------------------------------------------------------------------------------------ steps


def _build(case: Case, verdict: Verdict, reasons: tuple[Reason, ...]) -> Step:
    project, source, world, coming = case.project, case.source, case.world, case.coming
    last = world.history.get(source.source_id)
    history, becomes = _history(case)
    base = verdict.increment.base if verdict.increment else None
    as_of, older = _with_older_code(source, base, case.expected)
    step = Step(
        source_id=source.source_id,
        action="build",
        build_id=source.build_id,
        as_of=as_of,
        reasons=(
            *reasons,
            *becomes,
            *unusable_inputs(project, source, world, coming),
            *obstacles_to_build(project, source, world, coming),
            *last_failure(last),
            *older,
        ),
        estimate=estimate_of(last, case.snapshot),
        increment=verdict.increment,
        history=history,
        expected=verdict.increment.expected if verdict.increment else verdict.expected,
    )
    return with_maintenance(source, step, is_first=case.is_first, otherwise=verdict.why)


def _reuse(case: Case, snapshot: Snapshot, verdict: Verdict) -> Step:
    source = case.source
    last = case.world.history.get(source.source_id)
    as_of, reasons = snapshot.as_of, list[Reason]()
    if verdict.same_rows:
        as_of = merge_as_of([case.expected, own_marks(snapshot.as_of, source)])
        reasons.append(SAME_ROWS)
    if last is not None and last.build_id == source.build_id:
        reasons += last_failure(last)  # a build also runs the checks of a table that it reuses
    is_young = not verdict.same_rows and not case.rests_as_expected(snapshot)
    as_of, older = _with_older_code(source, snapshot, as_of)
    step = Step(
        source_id=source.source_id,
        action="reuse",
        build_id=source.build_id,
        as_of=as_of,
        reasons=(*reasons, *older),
        snapshot=snapshot,
    )
    return with_maintenance(source, step, is_young=is_young)


def _history(case: Case) -> tuple[Snapshot | None, Iterable[Reason]]:
    """Return the history that a build continues, if any, and the reasons for it."""
    source, latest = case.source, case.latest
    if not source.keeps_history:
        return None, ()
    changed = latest is not None and latest.build_id != source.build_id
    starts_over = not source.annotation.goes_on and (changed or case.force)
    history = None if starts_over else latest
    is_gone = case.missing and history == case.snapshot
    return history, history_reasons(source, latest, history, is_gone=is_gone)


def _with_older_code(
    source: Source, base: Snapshot | None, as_of: AsOf
) -> tuple[AsOf, tuple[Reason, ...]]:
    """Return an as_of with a mark for the rows of older code that stay, and the reason for it."""
    if base is None:
        return as_of, ()
    build_uid = older_code(base) if base.build_id == source.build_id else base.build_uid
    if build_uid is None:
        return as_of, ()
    mark = RawVersion(OLDER + source.build_id, build_uid)
    message = f"remaining rows are of older code, of build {build_uid[:8]}: on_change=continue"
    return merge_as_of([as_of, [mark]]), (Reason("older", message),)
