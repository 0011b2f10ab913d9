"""Runs: builds that belong together, and what each of them did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.core.errors import NotFoundError
from persist_assets.web.dashboard.frame import parameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.snapshots import Build, ManifestChange
    from persist_assets.core.wants import Request as BuildRequest
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame

_BUILDS = 500
_LATEST = 200
WIDTH = 160
"""The width of the bars that show when the builds of a run took place, in pixels."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The builds of one run, as far as they were read.

    Attributes
    ----------
    run_id
        None: its builds belong to no run.
    finished_at
        None: a build has not ended.
    """

    run_id: str | None
    builds: tuple[Build, ...]
    started_at: datetime
    finished_at: datetime | None

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of builds by outcome: built, reused, failed or started."""
        return Counter(outcome(b) for b in self.builds)

    @property
    def seconds(self) -> float | None:
        """The time from the start of the first build to the end of the last one."""
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


@dataclass(frozen=True, slots=True)
class Bar:
    """When a build took place within its run; positions are in pixels."""

    build: Build
    x: float
    width: float


def outcome(build: Build) -> str:
    """Return what became of a build: built, reused, failed or started."""
    return build.action if build.state == "succeeded" else build.state


def group_runs(builds: Iterable[Build]) -> list[RunSummary]:
    """Return the runs of some builds, the latest first."""
    groups: dict[str, list[Build]] = {}
    for build in builds:
        groups.setdefault(build.run_id or build.build_uid, []).append(build)
    runs: list[RunSummary] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda b: (b.started_at, b.build_uid))
        ends = [b.finished_at for b in group if b.finished_at is not None]
        end = max(ends) if len(ends) == len(group) else None
        runs.append(RunSummary(group[0].run_id, tuple(ordered), ordered[0].started_at, end))
    return sorted(runs, key=lambda run: run.started_at, reverse=True)


def draw_bars(run: RunSummary, now: datetime) -> list[Bar]:
    """Return when each build of a run took place, on a common scale."""
    end = run.finished_at or max(now, run.started_at)
    scale = WIDTH / max((end - run.started_at).total_seconds(), 0.001)
    bars: list[Bar] = []
    for build in run.builds:
        start = (build.started_at - run.started_at).total_seconds() * scale
        width = ((build.finished_at or end) - build.started_at).total_seconds() * scale
        bars.append(Bar(build, round(min(start, WIDTH - 2), 1), round(max(width, 2), 1)))
    return bars


async def show_runs(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the latest runs, or those before an instant."""
    graph, text = frame.graph, parameter(request, "before")
    before = None
    if text:
        try:
            before = datetime.fromisoformat(text)
            before = before if before.tzinfo else before.replace(tzinfo=UTC)
        except ValueError:
            before = None

    def look() -> tuple[list[Build], int]:
        ledger, environment = graph.ledger, graph.settings.environment
        builds = ledger.builds.fetch(environment=environment, started_before=before, limit=_BUILDS)
        return builds, ledger.events.position()

    builds, position = await graph.read(look)
    runs = group_runs(builds)
    is_cut = len(builds) == _BUILDS
    if is_cut and len(runs) > 1:
        runs = runs[:-1]  # its first builds may be missing
    older = runs[-1].started_at.isoformat() if is_cut and runs else None
    return frame.page(
        request, caller, "runs.html", "Runs", runs=runs, older=older, position=position
    )


async def show_run(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the builds of a run, what they published, and the wants that they were for."""
    run_id, graph = request.path_params["run_id"], frame.graph
    environment = graph.settings.environment

    def look() -> tuple[list[Build], list[ManifestChange], list[BuildRequest], int]:
        ledger = graph.ledger
        builds = ledger.builds.fetch(run_id=run_id)
        where = builds[0].environment if builds else environment
        changes = ledger.manifests.fetch_history(where, limit=_LATEST)
        requests = ledger.requests.fetch(where, limit=_LATEST)
        return (
            builds,
            [c for c in changes if c.run_id == run_id],
            [r for r in requests if r.run_id == run_id],
            ledger.events.position(),
        )

    builds, changes, requests, position = await graph.read(look)
    if not builds:
        raise NotFoundError(f"no run `{run_id[:100]}`", hint="the ledger knows runs that built")
    (run,) = group_runs(builds)
    return frame.page(
        request,
        caller,
        "run.html",
        f"Run {run_id[:8]}",
        run=run,
        bars=draw_bars(run, graph.clock()),
        width=WIDTH,
        changes=changes,
        requests=requests,
        position=position,
    )
