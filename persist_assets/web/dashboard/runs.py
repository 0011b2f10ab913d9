"""Runs: builds that belong together, and what each of them did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.core.errors import NotFoundError
from persist_assets.ledger.runs import NAMED, Run
from persist_assets.web.dashboard.frame import PER_PAGE, Paged, parameter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.snapshots import Build, ManifestChange
    from persist_assets.core.wants import Request as BuildRequest
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame

_BUILDS = 200
_LATEST = 200
_INTERRUPTED = "interrupted: its process has ended"
WIDTH = 160
"""The width of the bars that show when the builds of a run took place, in pixels."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The time of a build within its run, as a bar; positions are in pixels."""

    build: Build
    x: float
    width: float


def summarise(builds: Sequence[Build]) -> Run:
    """Return a run, given all of its builds, of which there is at least one."""
    ordered = _in_order(builds)
    first, started_at = ordered[0], ordered[0].started_at
    ends = [b.finished_at for b in builds if b.finished_at is not None]
    is_over = all(b.state != "started" for b in builds)
    end = max(ends, default=started_at) if is_over else None
    sources = tuple(b.source_id for b in ordered[:NAMED])
    counts = Counter(b.outcome for b in builds)
    return Run(first.run_id or first.build_uid, started_at, end, counts, sources)


def _in_order(builds: Iterable[Build]) -> list[Build]:
    return sorted(builds, key=lambda b: (b.started_at, b.build_uid))


def without_dead(builds: Iterable[Build], dead: Collection[str]) -> list[Build]:
    """Return builds, with those that can never end marked as failed.

    Parameters
    ----------
    dead
        The uids of builds whose processes have ended: see `Runs.fetch_dead`.
    """
    return [
        replace(b, state="failed", error=_INTERRUPTED) if b.build_uid in dead else b for b in builds
    ]


def draw_bars(run: Run, builds: Iterable[Build], now: datetime) -> list[Bar]:
    """Return when each build of a run took place, on a common scale, the earliest first."""
    end = run.finished_at or max(now, run.started_at)
    scale = WIDTH / max((end - run.started_at).total_seconds(), 0.001)
    bars: list[Bar] = []
    for build in _in_order(builds):
        start = (build.started_at - run.started_at).total_seconds() * scale
        width = ((build.finished_at or end) - build.started_at).total_seconds() * scale
        bars.append(Bar(build, round(min(start, WIDTH - 2), 1), round(max(width, 2), 1)))
    return bars


def _place(request: Request) -> tuple[datetime, str] | None:
    """Return the start and the name of the run that a page follows, or None."""
    at, name = parameter(request, "before"), parameter(request, "run")
    try:
        instant = datetime.fromisoformat(at)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC), name
    except (ValueError, OverflowError):
        return None


async def show_runs(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the latest runs, or those that follow another one."""
    graph, before = frame.graph, _place(request)

    def look() -> tuple[int, list[Run]]:
        position, environment = graph.ledger.events.position(), graph.settings.environment
        starts = None if before else frame.latest_runs()
        runs = graph.ledger.runs
        return position, runs.fetch(environment, before=before, limit=PER_PAGE, starts=starts)

    position, runs = await graph.read(look)
    last = runs[-1] if len(runs) == PER_PAGE else None
    return frame.page(
        request,
        caller,
        "runs.html",
        "Runs",
        runs=runs,
        last=last,
        is_later=before is not None,
        position=position,
    )


async def show_run(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the builds of a run, what they published, and the wants that they were for."""
    name, graph = request.path_params["run_id"], frame.graph

    def look() -> tuple[int, list[Build], list[ManifestChange], list[BuildRequest]]:
        ledger = graph.ledger
        position = ledger.events.position()
        builds = [] if "\0" in name else ledger.builds.fetch(run_id=name)
        if not builds and "\0" not in name:  # a build that belongs to no run
            builds = [b for b in ledger.builds.fetch(build_uid=name) if b.run_id is None]
        if not builds:
            return position, [], [], []
        environment = builds[0].environment
        changes = ledger.manifests.fetch_history(environment, limit=_LATEST)
        requests = ledger.requests.fetch(environment, limit=_LATEST)
        return (
            position,
            without_dead(builds, ledger.runs.fetch_dead(environment)),
            [c for c in changes if c.run_id == name],
            [r for r in requests if r.run_id == name],
        )

    position, builds, changes, requests = await graph.read(look)
    if not builds:
        raise NotFoundError(f"no run `{name[:100]}`", hint="“Runs” lists them")
    run, environment = summarise(builds), builds[0].environment
    return frame.page(
        request,
        caller,
        "run.html",
        f"Run {name[:8]}" if builds[0].run_id else f"Build {name[:8]}",
        run=run,
        name=name,
        bars=Paged.of(draw_bars(run, builds, graph.clock()), request, _BUILDS),
        width=WIDTH,
        changes=changes,
        requests=requests,
        elsewhere=None if environment == graph.settings.environment else environment,
        position=position,
    )
