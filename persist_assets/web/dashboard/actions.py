"""Taint, retry, promote and roll back: each shows its effect and requires confirmation."""

from __future__ import annotations

import uuid
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, sound
from persist_assets.core.errors import PersistError, SettingsError
from persist_assets.core.partitions import window_end
from persist_assets.core.wants import ACTIVE, Want, ref_of
from persist_assets.operations.environments import plan_rollback, promote, roll_back
from persist_assets.wants.requests import digest_refs, plan_partitions, resolve, taint
from persist_assets.web.api import refusal
from persist_assets.web.dashboard.environments import settings_of
from persist_assets.web.dashboard.frame import parameter, to_environment, to_partition
from persist_assets.web.dashboard.partitions import find_earlier
from persist_assets.web.roles import require_build, require_promote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.planning.promotion import Promotion
    from persist_assets.wants.requests import Place
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_LONGEST = 2000


async def _confirmed(
    frame: Frame,
    request: Request,
    caller: Caller,
    title: str,
    act: Callable[[], Response | dict[str, Any]],
) -> Response:
    """Return the result of an action, or the page that shows its effect or why it failed."""
    try:
        result = await frame.graph.plan(act)
    except PersistError as error:
        return frame.problem(request, caller, title, error, refusal(error).status)
    if isinstance(result, dict):
        return frame.page(request, caller, "confirm.html", title, **result)
    return result


def _text(form: Mapping[str, str], name: str) -> str:
    return form.get(name, "").strip().replace("\0", "")[:_LONGEST]


# ------------------------------------------------------------------------------------------- taint


async def confirm_taint(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show which partitions a taint would reach."""
    ref = parameter(request, "ref")

    def act() -> dict[str, Any]:
        observer = frame.graph.observer()
        refs = taint(observer, ref, by=caller.name, dry_run=True)
        if len(refs) < 2 and not _is_built(observer, resolve(observer, ref)):
            refs = []
        return {
            "action": "/taint",
            "fields": {"ref": ref, "expected": digest_refs(refs)},
            "button": "Taint them",
            "refs": refs,
            "explanation": "Readers compute these rows themselves until they are built again."
            if refs
            else f"{ref} has not been built, so there is nothing to taint.",
            "is_possible": bool(refs),
        }

    return await _confirmed(frame, request, caller, f"Taint {ref}?", act)


def _is_built(observer: Observer, place: Place) -> bool:
    """Whether readers get rows of a source, or of a partition."""
    snapshot = observer.manifest().get(place.source.build_id)
    keys = observer.keys().get(place.source.source_id, ())
    return not find_earlier({place.source.key: place.key}, keys, snapshot)


async def do_taint(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Taint a partition and all rows computed from it."""
    ref = _text(form, "ref")

    def act() -> Response:
        observer, expected = frame.graph.observer(), _text(form, "expected")
        require_build(caller, lambda: observer, ref)
        taint(observer, ref, by=caller.name, expected=expected)
        return RedirectResponse(to_partition(ref), 303)

    return await _confirmed(frame, request, caller, f"Taint {ref}?", act)


# ------------------------------------------------------------------------------------------- retry


async def confirm_retry(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what a build of a source or partition, and of everything upstream, would do now."""
    ref = parameter(request, "ref")

    def act() -> dict[str, Any]:
        observer = frame.graph.observer()
        place = resolve(observer, ref)
        full = ref_of(place.source.key, place.key)
        steps = [s for s in plan_partitions(observer, [full]).steps if s.action == "build"]
        return {
            "action": "/retry",
            "fields": {"ref": full},
            "button": "Build",
            "steps": [(observer.project.by_id[s.source_id], s) for s in steps],
            "explanation": _build_in_words(observer, place, full, is_current=not steps),
            "problems": frame.graph.find_problems(),
            "is_possible": True,
        }

    return await _confirmed(frame, request, caller, f"Build {ref}?", act)


def _build_in_words(observer: Observer, place: Place, ref: str, *, is_current: bool) -> str:
    partition = place.source.annotation.partition
    if place.key is not None and partition is not None:
        end = window_end(partition, place.key)
        if end > observer.started_at:
            at = end.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
            return f"{ref} is built once its window has ended, at {at}."
    if is_current:
        return f"{ref} and everything upstream of it are up to date: a build would change nothing."
    return (
        "This creates a want and evaluates all wants. Those that failed are tried again at once, "
        "so that more may be built than this."
    )


async def do_retry(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Want a partition, unless it is wanted already, and evaluate at once."""
    graph, ref = frame.graph, _text(form, "ref")
    try:
        await graph.glance(lambda: require_build(caller, graph.observer, ref))
        environment = graph.settings.environment
        active = await graph.read(
            lambda: graph.ledger.wants.fetch(environment, states=ACTIVE, refs=[ref])
        )
        # The want of a build under way ends with it, even if it fails.
        open_wants = [want for want in active if "build_uid" not in want.source]
        if not open_wants:
            want = Want(
                uuid.uuid4().hex,
                ref,
                environment,
                graph.clock(),
                source={"type": "dashboard", "client": caller.name},
                comment="built from the dashboard",
            )
            recorded, *_ = await graph.create(want, caller)
            open_wants = [recorded]
        # Others' wants that failed are tried again at once only for those who may build them all.
        await graph.evaluate("manual", force=caller.may("write"))
    except PersistError as error:
        return frame.problem(request, caller, f"Build {ref}?", error, refusal(error).status)
    return RedirectResponse(f"/wants?made={quote(open_wants[0].want_id)}", 303)


# ----------------------------------------------------------------------------------------- promote


def _observer_in(graph: Graph, environment: str) -> Observer:
    """Return an observer of the sources in an environment."""
    settings = settings_of(graph, environment)
    if settings is graph.settings:
        return graph.observer()
    return Observer(settings, sound(load_project(settings)), graph.ledger, clock=graph.clock)


def _promote(
    graph: Graph,
    origin: str,
    target: str,
    *,
    allow_stale: bool,
    by: str,
    expected: str | None = None,
    dry_run: bool = False,
) -> Promotion:
    settings_of(graph, target)  # it must exist
    observer = _observer_in(graph, origin)
    promotion, _ = promote(
        observer,
        target,
        [s.source_id for s in observer.project.persisted],
        allow_stale=allow_stale,
        dry_run=dry_run,
        expected=expected,
        by=by,
        why=f"from {origin}, in the dashboard",
    )
    return promotion


async def confirm_promotion(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what a promotion would publish, and what it would refuse."""
    origin, target = parameter(request, "from"), parameter(request, "to")
    allow_stale = parameter(request, "allow_stale") == "yes"

    def act() -> dict[str, Any]:
        promotion = _promote(
            frame.graph, origin, target, allow_stale=allow_stale, by=caller.name, dry_run=True
        )
        moved = [(s, promotion.snapshots.get(s.build_id)) for s in promotion.sources]
        in_words = _promotion_in_words(promotion, origin, target)
        has_views = bool(moved and settings_of(frame.graph, target).has_views)
        if has_views:
            in_words = _views_in_words(target, f"persist promote {origin} {target}")
        return {
            "action": "/promote",
            "fields": {
                "from": origin,
                "to": target,
                "allow_stale": "yes" if allow_stale else "",
                "expected": promotion.digest,
            },
            "button": f"Promote to {target}",
            "moved": moved,
            "refused": promotion.refused,
            "explanation": in_words,
            "may_allow_stale": bool(promotion.refused) and not allow_stale,
            "is_possible": bool(moved) and not promotion.refused and not has_views,
        }

    return await _confirmed(frame, request, caller, f"Promote {origin} to {target}?", act)


def _promotion_in_words(promotion: Promotion, origin: str, target: str) -> str:
    if promotion.refused:
        return "Nothing is promoted while a source is refused."
    if not promotion.sources:
        return f"{target} already has the tables of {origin}."
    return f"Readers of {target} then get these tables. Nothing is copied."


def _views_in_words(environment: str, command: str) -> str:
    return f"{environment} has views in a catalog, which need Spark. Run {command} instead."


async def do_promotion(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Promote what the confirmation showed; if that has changed, show it again."""
    origin, target = _text(form, "from"), _text(form, "to")
    require_promote(caller, target)
    allow_stale = form.get("allow_stale") == "yes"

    def act() -> Response:
        promotion = _promote(
            frame.graph,
            origin,
            target,
            allow_stale=allow_stale,
            by=caller.name,
            expected=_text(form, "expected"),
        )
        if promotion.refused:
            stale = {"allow_stale": "yes"} if allow_stale else {}
            parameters = urlencode({"from": origin, "to": target, **stale})
            return RedirectResponse(f"/promote?{parameters}", 303)
        return RedirectResponse(to_environment(target), 303)

    return await _confirmed(frame, request, caller, f"Promote {origin} to {target}?", act)


# ---------------------------------------------------------------------------------------- rollback


def _change_id(text: str) -> int | None:
    """Return the number of a change, or None for no text.

    Raises
    ------
    SettingsError
        The text is not the number of a change.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise SettingsError(f"`{text[:50]}` is not the number of a change")
    return int(text)


async def confirm_rollback(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what a rollback would undo: to a change, or the last step."""
    environment, to = parameter(request, "environment"), parameter(request, "to")

    def act() -> dict[str, Any]:
        settings = settings_of(frame.graph, environment)
        rollback = plan_rollback(settings, frame.graph.ledger, to=_change_id(to))
        in_words = "Readers get the earlier tables again. Nothing is copied."
        if rollback.gone:
            in_words = f"This is impossible: these tables are gone: {', '.join(rollback.gone)}."
        elif settings.has_views:
            in_words = _views_in_words(environment, f"persist rollback --env {environment}")
        elif not rollback.moves:
            in_words = "Readers keep the tables that they get now."
        return {
            "action": "/rollback",
            "fields": {"environment": environment, "to": to, "expected": str(rollback.expected)},
            "button": "Roll back",
            "undone": rollback.undone,
            "moves": rollback.moves,
            "explanation": in_words,
            "is_possible": not rollback.gone and not settings.has_views,
        }

    title = f"Roll back {environment}?"
    return await _confirmed(frame, request, caller, title, act)


async def do_rollback(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Roll back, unless the environment has changed since the confirmation was shown."""
    environment = _text(form, "environment")
    require_promote(caller, environment)

    def act() -> Response:
        settings = settings_of(frame.graph, environment)
        if settings.has_views:
            command = f"persist rollback --env {environment}"
            raise SettingsError(_views_in_words(environment, command))
        expected = _change_id(_text(form, "expected"))
        if expected is None:
            raise SettingsError("the form does not name its change")
        roll_back(
            settings,
            frame.graph.ledger,
            to=_change_id(_text(form, "to")),
            expected=expected,
            by=caller.name,
            why="in the dashboard",
        )
        return RedirectResponse(to_environment(environment), 303)

    return await _confirmed(frame, request, caller, f"Roll back {environment}?", act)
