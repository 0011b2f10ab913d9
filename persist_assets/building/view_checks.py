"""Checks of views: sources without rows of their own, checked when a build reads them.

    inputs of the build, pinned ─► all rows of each view ─► results ─┬─► a blocking failure
                                                                     └─► recorded with the build

The invariant: a result names what its rows were computed from (`CheckResult.basis`); it counts for
another build only if that is the same.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.building.failing_rows import is_kept_as_declared
from persist_assets.building.set_checks import (
    basis,
    bound,
    check_columns,
    check_results,
    failures_in_words,
    reads_clock,
)
from persist_assets.core.errors import CheckFailedError
from persist_assets.engine.row_metrics import aged
from persist_assets.planning.inputs import inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.building.reader import Reader
    from persist_assets.building.strategies.temporary import TemporaryTables
    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.external.read_routing import Route
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


class ViewChecks:
    """Runs the checks of the views that the builds of one run read.

    Each view is checked once for the same inputs, however many sources read it. Its checks cover
    all of its rows, even if a build reads few of them.
    """

    def __init__(self, reader: Reader, temporary: TemporaryTables) -> None:
        self._reader, self._temporary = reader, temporary
        self._lock = threading.Lock()
        self._locks: dict[tuple[SourceID, str], threading.Lock] = {}
        self._results: dict[tuple[SourceID, str], tuple[CheckResult, ...]] = {}

    def check(
        self, source: Source, world: World, previous: Mapping[str, CheckResult]
    ) -> tuple[CheckResult, ...]:
        """Return the results of the checks of all views that a build of `source` reads.

        Parameters
        ----------
        previous
            The results of an earlier build of its rows, by name.

        Raises
        ------
        CheckFailedError
            A blocking check failed.
        PersistError
            The rows of a view cannot be computed.
        """
        results = tuple(
            result
            for view in self._views(source, world)
            for result in self._results_of(view, source, world, previous)
        )
        if any(not r.passed and r.blocking for r in results):
            failures, shown = failures_in_words(results)
            message = f"`{source.name}` reads rows that failed {failures}; it was not published"
            raise CheckFailedError(message + shown, results=results, location=source.location)
        return results

    def _views(self, source: Source, world: World) -> tuple[Source, ...]:
        """Return the views with checks whose rows a build reads, inputs of views first."""
        project = self._reader.project
        reached = project.reach(
            project.bindings_of_table(source),
            lambda s: s.persisted and world.readable(s) is not None,
        )
        return tuple(s for s in reached if s.is_inline and s.checks)

    def _results_of(
        self, view: Source, source: Source, world: World, previous: Mapping[str, CheckResult]
    ) -> tuple[CheckResult, ...]:
        reader = self._reader
        checks = bound(view.checks_for_readers, reader.observer.clock())
        rests_on = self._rests_on(view, source, checks, world)
        before = [_as_before(reader, view, c, previous.get(c.name), rests_on) for c in checks]
        known = tuple(r for r in before if r is not None)
        if len(known) == len(checks):
            return known
        key = (view.source_id, rests_on)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._results:
                self._results[key] = self._run(view, checks, rests_on, world)
            return self._results[key]

    def _rests_on(self, view: Source, source: Source, checks: Sequence[Check], world: World) -> str:
        """Return a digest of what the rows and the results of a view depend on."""
        reader = self._reader
        rows = inputs(reader.project, view, world, reader=source.source_id)
        manifest = reader.untainted(world)
        others = [basis(reader, c, manifest) for c in checks if c.against is not None]
        return sha256(repr((view.build_id, rows, others)).encode()).hexdigest()[:16]

    def _run(
        self, view: Source, checks: Sequence[Check], rests_on: str, world: World
    ) -> tuple[CheckResult, ...]:
        reader, manifest = self._reader, self._reader.untainted(world)
        temporary = self._temporary.compute(view.bindings, world)
        below = reader.reading(view.bindings, manifest, temporary, world.expired)
        # Copies of external tables may lack rows that the checks need.
        read = reader.routed([view.source_id], below)
        results = results_over(reader, view, checks, read, manifest)
        for result in results:
            if not result.passed and not result.blocking:
                log.warning(
                    "`%s` fails %s: %s",
                    view.key,
                    result.definition,
                    result.in_words,
                    extra={"action": "check-failed"},
                )
        return tuple(replace(r, basis=" ".join((rests_on, r.basis or ""))) for r in results)


def results_over(
    reader: Reader,
    view: Source,
    checks: Sequence[Check],
    read: Mapping[SourceID, Snapshot | Route],
    manifest: Mapping[BuildID, Snapshot],
) -> tuple[CheckResult, ...]:
    """Return the results of checks of all rows that the query of a source returns.

    Parameters
    ----------
    checks
        Bound to the present (`bound`).
    read
        The snapshots that the query reads.

    Raises
    ------
    PersistError
        The rows cannot be computed, or have other columns than promised.
    """
    frame = reader.compute(view, read)
    check_columns(view, checks, reader.engine.columns(frame, view.name), None)
    alone = reader.engine.audit(frame, [c for c in checks if c.alone], view.name)
    results = check_results(reader, view, checks, alone, lambda: frame, manifest)
    reader.check_unchanged(reader.leaves(view.bindings, read))
    for other in view.compared:
        reader.check_unchanged(reader.leaves([other], reader.reading([other], manifest)))
    return results


def _as_before(
    reader: Reader, view: Source, check: Check, result: CheckResult | None, rests_on: str
) -> CheckResult | None:
    """Return an earlier result of a check that is still valid; None if the check has to run."""
    if result is None or result.definition != check.definition:
        return None
    former, _, rest = (result.basis or "").partition(" ")
    if former != rests_on or check.fickle or reads_clock(check):
        return None
    if not is_kept_as_declared(reader, view, check, result):
        return None
    result = replace(result, blocking=check.blocking)
    if check.kind != "freshness":
        return result
    result = aged(check, replace(result, basis=rest or None))
    return replace(result, basis=f"{rests_on} {rest}")
