"""Environments: what their readers get, how that changed, and how two of them differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import NotFoundError, SettingsError, did_you_mean
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.environments import steps_of
from persist_assets.planning.diff import differ, in_words
from persist_assets.web.dashboard.frame import Paged, parameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_CHANGES = 50
_LATEST = 5


@dataclass(frozen=True, slots=True)
class SourceDiffers:
    """A source that readers of two environments see differently.

    Attributes
    ----------
    here, other
        The builds that they read; None: nothing.
    difference
        The difference in words.
    """

    source_id: SourceID
    here: Build | None
    other: Build | None
    difference: str


def compare(here: Mapping[SourceID, Build], other: Mapping[SourceID, Build]) -> list[SourceDiffers]:
    """Return the sources for which two environments read different tables, in order.

    Parameters
    ----------
    here, other
        The build that readers of each environment get of each source.
    """
    differing: list[SourceDiffers] = []
    for source_id in sorted({*here, *other}):
        a, b = here.get(source_id), other.get(source_id)
        difference = _difference(a, b)
        if difference:
            differing.append(SourceDiffers(source_id, a, b, difference))
    return differing


def find_read(ledger: Ledger, environments: Sequence[str]) -> dict[SourceID, Build]:
    """Return, for each source, the build whose rows readers get.

    Parameters
    ----------
    environments
        The environment, and those that it reads.
    """
    published = ledger.builds.fetch_published(*environments)
    current = ledger.builds.fetch_current(*environments)
    return {s: replace(published.get(b.build_id, b), source_id=s) for s, b in current.items()}


def _difference(here: Build | None, other: Build | None) -> str:
    if here is None or other is None:
        return "only there" if here is None else "only here"
    a, b = here.snapshot, other.snapshot
    if a is not None and b is not None and a.build_uid == b.build_uid:
        return ""
    if here.build_id != other.build_id:
        if here.digests is not None and other.digests is not None:
            return (
                in_words(differ(other.digests, here.digests))
                or "the definition of an input changed"
            )
        return "another definition"
    if a is not None and b is not None and a.content == b.content:
        return ""
    return "the same definition, other data"


def find_names(graph: Graph) -> list[str]:
    """Return all environments: the served one, declared ones, and those with tables."""
    settings = graph.settings
    known = graph.ledger.manifests.fetch_environments()
    return sorted({settings.environment, *(n for n in settings.declared if "*" not in n), *known})


def settings_of(graph: Graph, environment: str) -> Settings:
    """Return the settings of an environment, which has the same ledger.

    Raises
    ------
    NotFoundError
        There is no such environment.
    """
    settings, names = graph.settings, find_names(graph)
    if environment == settings.environment:
        return settings
    if environment not in names:
        raise NotFoundError(
            f"no environment `{environment[:100]}`", hint=did_you_mean(environment, names)
        )
    other = load_settings(settings.root, environment=environment)
    return other.with_sources(settings.root / settings.sources)


async def show_environments(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show all environments, each with its size and its latest changes."""
    graph = frame.graph

    def look() -> list[dict[str, Any]]:
        ledger = graph.ledger
        return [
            {
                "name": name,
                "entries": len(entries),
                "rows": sum(s.rows for s in entries.values()),
                "bytes": sum(s.bytes for s in entries.values()),
                "history": ledger.manifests.fetch_history(name, limit=_LATEST),
            }
            for name in find_names(graph)
            for entries in (ledger.manifests.fetch(name),)
        ]

    environments = await graph.read(look)
    return frame.page(
        request, caller, "environments.html", "Environments", environments=environments
    )


async def show_environment(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the tables of an environment, its changes, and its differences from another one."""
    graph, name = frame.graph, request.path_params["name"]
    against = parameter(request, "against")

    def look() -> dict[str, Any]:
        ledger, position = graph.ledger, graph.ledger.events.position()
        reads, views, wrong = (), "", ""
        try:
            settings = settings_of(graph, name)
            reads, views = settings.environments[1:], settings.views
        except SettingsError as error:  # it is still in the ledger, but `persist.toml` has lost it
            wrong = error.message.splitlines()[0]
        entries = sorted(ledger.manifests.fetch(name).values(), key=lambda s: s.source_id)
        history = ledger.manifests.fetch_history(name)
        differing = None
        if against:
            others = settings_of(graph, against).environments
            differing = compare(find_read(ledger, (name, *reads)), find_read(ledger, others))
        return {
            "wrong": wrong,
            "entries": Paged.of(entries, request),
            "history": history[:_CHANGES],
            "latest": history[0].change_id if history else None,
            "may_change": caller.may("write") and not (wrong or views),
            "may_undo": bool(steps_of(history)),
            "reads": reads,
            "differing": differing,
            "others": [other for other in find_names(graph) if other != name],
            "position": position,
        }

    values = await graph.read(look)
    return frame.page(
        request,
        caller,
        "environment.html",
        f"Environment {name}",
        name=name,
        against=against,
        **values,
    )
