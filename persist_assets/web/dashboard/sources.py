"""Sources: the list with their states, and everything about one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import NotFoundError, did_you_mean
from persist_assets.web.dashboard.frame import Paged, parameter
from persist_assets.web.dashboard.runs import without_dead
from persist_assets.web.dashboard.status import STATES
from persist_assets.web.site.catalog import read_knowledge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.project import Broken, Project
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.model.sources import Source
    from persist_assets.core.wants import Want
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.dashboard.status import SourceStatus
    from persist_assets.web.site.descriptions import Descriptions

_BUILDS = 100
_CHECKED = 12
_WANTS = 20
_EARLIEST = datetime.min.replace(tzinfo=UTC)

SORTS: Mapping[str, Callable[[SourceStatus], Any]] = {
    "source": lambda s: s.source.key,
    "state": lambda s: (STATES.index(s.state), s.source.key),
    "rows": lambda s: s.snapshot.rows if s.snapshot else -1,
    "bytes": lambda s: s.snapshot.bytes if s.snapshot else -1,
    "built": lambda s: s.snapshot.built_at if s.snapshot else _EARLIEST,
    "seconds": lambda s: (s.last.seconds if s.last else None) or -1.0,
}
"""The orders of the list of sources; a minus before a name reverses the order."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Values of the builds of a source over time.

    Attributes
    ----------
    unit
        ``rows``, ``bytes`` or ``seconds``.
    points
        Pairs of seconds since 1970 and the value, in order of time.
    """

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]


def draw_charts(builds: Iterable[Build]) -> list[Chart]:
    """Return charts of rows, bytes and seconds, each with at least two points.

    Builds that only reused a table have no seconds: they would hide the others.
    """
    ended = sorted(
        (b for b in builds if b.finished_at is not None), key=lambda b: (b.started_at, b.build_uid)
    )
    values: Mapping[str, Callable[[Build], float | None]] = {
        "rows": lambda b: b.snapshot.rows if b.snapshot else None,
        "bytes": lambda b: b.snapshot.bytes if b.snapshot else None,
        "seconds": lambda b: b.seconds if b.action == "built" else None,
    }
    charts: list[Chart] = []
    for unit, value_of in values.items():
        points = tuple(
            (b.started_at.timestamp(), float(value))
            for b in ended
            if (value := value_of(b)) is not None
        )
        if len(points) > 1:
            charts.append(Chart(unit.capitalize(), unit, points))
    return charts


async def show_sources(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the persisted sources, filtered and in an order; others are found by searching."""
    graph = frame.graph
    standings = await frame.standings.read()
    statuses, project = standings.statuses, standings.project
    state, words = parameter(request, "state"), parameter(request, "q").lower().split()
    others: list[Source | Broken] = []
    if words and project is not None:

        def search() -> tuple[list[SourceStatus], list[Source | Broken]]:
            described = frame.descriptions(project)
            fits = {s for s in described.entries if _has(words, described.searched(s))}
            hidden = [s for s in project.sources if not s.persisted]
            return (
                [s for s in statuses if s.source.source_id in fits],
                [s for s in (*hidden, *project.broken) if s.source_id in fits],
            )

        statuses, others = await graph.glance(search)
    if state in STATES:
        statuses, others = [s for s in statuses if state in s.states], []
    sort = parameter(request, "sort", "source")
    order = SORTS.get(sort.removeprefix("-"), SORTS["source"])
    listed = sorted(statuses, key=order, reverse=sort.startswith("-"))
    return frame.page(
        request,
        caller,
        "sources.html",
        "Sources",
        listed=Paged.of(listed, request),
        others=others[:_BUILDS],
        n_others=len(others),
        state=state,
        states=STATES,
        sort=sort,
        problems=[standings.wrong] if standings.wrong else [],
        old_plan_at=standings.old_plan_at,
        broken=project.broken if project is not None and not words else (),
        position=standings.position,
    )


def _has(words: Iterable[str], text: str) -> bool:
    return all(word in text for word in words)


def find_source(project: Project, name: str) -> Source | Broken:
    """Return the source with an asset key or SourceID.

    Raises
    ------
    NotFoundError
        There is none.
    """
    declared = [*project.sources, *project.broken]
    for source in declared:
        if name in (source.key, source.source_id):
            return source
    raise NotFoundError(
        f"no source `{name[:200]}`", hint=did_you_mean(name, [s.key for s in declared])
    )


async def show_source(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show everything about a source."""
    graph, name = frame.graph, request.path_params["key"]

    def compiled() -> tuple[Project, Descriptions]:
        project = graph.observer().project
        return project, frame.descriptions(project)

    project, described = await graph.glance(compiled)
    source = find_source(project, name)
    standings = await frame.standings.read()
    sound = project.by_id.get(source.source_id)
    partitioned = sound is not None and sound.annotation.partition is not None

    def look() -> dict[str, Any]:
        ledger, environment = graph.ledger, graph.settings.environment
        knowledge = read_knowledge(graph.settings, project, ledger, only=[source.source_id])
        values = (
            described.source(sound, knowledge)
            if sound is not None
            else described.broken(source, knowledge)  # pyright: ignore[reportArgumentType]
        )
        builds = without_dead(
            ledger.builds.fetch(source_id=source.source_id, environment=environment, limit=_BUILDS),
            ledger.runs.fetch_dead(environment),
        )
        wants = ledger.wants.fetch(environment, refs=[source.key], limit=_WANTS)
        if partitioned:
            pattern = f"{source.key}/**"  # matches partitions of sources in directories, too
            of_partitions = ledger.wants.fetch(environment, pattern=pattern, limit=_WANTS)
            wants += [w for w in of_partitions if _is_of(project, source, w)]
        checked = [b for b in builds if b.state != "started" and b.action == "built"][:_CHECKED]
        results = ledger.runs.fetch_checks(source.source_id, [b.build_uid for b in checked])
        return {
            **values,
            "builds": Paged.of(builds, request, 20),
            "is_cut": len(builds) == _BUILDS,
            "charts": draw_charts(builds),
            "checked": check_grid(checked[::-1], results),
            "wants": _latest(wants),
        }

    values = await graph.read(look)
    of_source = (s for s in standings.statuses if s.source.source_id == source.source_id)
    return frame.page(
        request,
        caller,
        "source.html",
        source.key,
        entries=described.entries,
        wrong=standings.wrong,
        standing=next(of_source, None),
        old_plan_at=standings.old_plan_at,
        partitioned=partitioned,
        position=standings.position,
        **values,
    )


def _is_of(project: Project, source: Source | Broken, want: Want) -> bool:
    named = project.find_named(want.partition_ref)
    return named is not None and named[0].source_id == source.source_id


def _latest(wants: Iterable[Want]) -> list[Want]:
    ordered = sorted(wants, key=lambda w: (w.created_at, w.want_id), reverse=True)
    return ordered[:_WANTS]


def check_grid(
    builds: Sequence[Build], results: Mapping[str, Sequence[CheckResult]]
) -> tuple[Sequence[Build], Mapping[str, Sequence[CheckResult | None]]]:
    """Return the results of each check in each build that has any.

    Parameters
    ----------
    results
        By the uid of the build.

    Returns
    -------
    builds, rows
        The builds with results, and by the name of a check its result in each of them; None: the
        build did not run it.
    """
    shown = [b for b in builds if results.get(b.build_uid)]
    names = dict.fromkeys(r.name for b in shown for r in results[b.build_uid])
    return shown, {
        name: [next((r for r in results[b.build_uid] if r.name == name), None) for b in shown]
        for name in names
    }
