"""Taint, retry, promote and roll back: each shows its effect first, and asks for confirmation."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import RedirectResponse

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, sound
from persist_assets.core.errors import NotFoundError, PersistError, SettingsError
from persist_assets.core.wants import ACTIVE, Want, ref_of
from persist_assets.operations.environments import plan_rollback, promote, roll_back
from persist_assets.wants.requests import resolve, taint
from persist_assets.web.dashboard.environments import find_names, settings_of
from persist_assets.web.dashboard.frame import parameter, to_environment, to_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.planning.promotion import Promotion
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_LONGEST = 2000
_STATUS = {NotFoundError: 404, SettingsError: 422}


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
        status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), 409)
        return frame.problem(request, caller, title, error, status)
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
        refs = taint(frame.graph.observer(), ref, by=caller.name, dry_run=True)
        return {
            "action": "/taint",
            "fields": {"ref": ref},
            "button": "Taint them",
            "refs": refs,
            "explanation": "Readers stop using these rows until they are built again."
            if refs
            else f"{ref} has not been built, so that there is nothing to taint.",
            "is_possible": bool(refs),
        }

    return await _confirmed(frame, request, caller, f"Taint {ref}?", act)


async def do_taint(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Taint a partition and all rows computed from it."""
    ref = _text(form, "ref")

    def act() -> Response:
        taint(frame.graph.observer(), ref, by=caller.name)
        return RedirectResponse(to_partition(ref), 303)

    return await _confirmed(frame, request, caller, f"Taint {ref}?", act)


# ------------------------------------------------------------------------------------------- retry


async def confirm_retry(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what a build of a source or partition would do now."""
    ref = parameter(request, "ref")

    def act() -> dict[str, Any]:
        observer = frame.graph.observer()
        place = resolve(observer, ref)
        source_id = place.source.source_id
        keys = {source_id: (place.key,)} if place.key is not None else None
        plan = observer.plan([source_id], partition_keys=keys)
        steps = [s for s in plan.steps if s.action == "build"]
        return {
            "action": "/retry",
            "fields": {"ref": ref_of(place.source.key, place.key)},
            "button": "Build it",
            "steps": [(observer.project.by_id[s.source_id], s) for s in steps],
            "explanation": "This asks for the partition, and tries failed builds again at once."
            if steps
            else f"{ref} is up to date, so that a build would change nothing.",
            "problems": frame.graph.find_problems(),
            "is_possible": True,
        }

    return await _confirmed(frame, request, caller, f"Build {ref}?", act)


async def do_retry(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Want a partition, unless it is wanted already, and evaluate at once."""
    graph, ref = frame.graph, _text(form, "ref")
    try:
        environment = graph.settings.environment
        open_wants = await graph.read(
            lambda: graph.ledger.wants.fetch(environment, states=ACTIVE, refs=[ref], limit=1)
        )
        if not open_wants:
            want = Want(
                uuid.uuid4().hex,
                ref,
                environment,
                graph.clock(),
                source={"type": "dashboard", "client": caller.name},
                comment="built from the dashboard",
            )
            recorded, *_ = await graph.create(want)
            open_wants = [recorded]
        await graph.evaluate("manual", force=True)
    except PersistError as error:
        return frame.problem(request, caller, f"Build {ref}?", error, 409)
    return RedirectResponse(f"/wants?made={quote(open_wants[0].want_id)}", 303)


# ----------------------------------------------------------------------------------------- promote


def _observer_in(graph: Graph, environment: str) -> Observer:
    """Return an observer of the sources in an environment."""
    settings = settings_of(graph, environment)
    if settings is graph.settings:
        return graph.observer()
    return Observer(settings, sound(load_project(settings)), graph.ledger, clock=graph.clock)


def _promote(
    graph: Graph, origin: str, target: str, *, allow_stale: bool, by: str, dry_run: bool
) -> Promotion:
    if target not in find_names(graph):
        settings_of(graph, target)  # says which environments there are
    observer = _observer_in(graph, origin)
    promotion, _ = promote(
        observer,
        target,
        [s.source_id for s in observer.project.persisted],
        allow_stale=allow_stale,
        dry_run=dry_run,
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
        return {
            "action": "/promote",
            "fields": {"from": origin, "to": target, "allow_stale": "yes" if allow_stale else ""},
            "button": f"Promote to {target}",
            "moved": moved,
            "refused": promotion.refused,
            "explanation": _promotion_in_words(promotion, origin, target),
            "may_allow_stale": bool(promotion.refused) and not allow_stale,
            "is_possible": bool(moved) and not promotion.refused,
        }

    return await _confirmed(frame, request, caller, f"Promote {origin} to {target}?", act)


def _promotion_in_words(promotion: Promotion, origin: str, target: str) -> str:
    if promotion.refused:
        return "Nothing is promoted while something is refused."
    if not promotion.sources:
        return f"Readers of {target} already get what {origin} has."
    return f"Readers of {target} then get these tables. Nothing is copied."


async def do_promotion(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Promote what the confirmation showed, as far as it is still the same."""
    origin, target = _text(form, "from"), _text(form, "to")
    allow_stale = form.get("allow_stale") == "yes"

    def act() -> Response:
        promotion = _promote(
            frame.graph, origin, target, allow_stale=allow_stale, by=caller.name, dry_run=False
        )
        if promotion.refused:
            return RedirectResponse(
                f"/promote?from={quote(origin)}&to={quote(target)}", 303
            )  # it has changed since, and is shown again
        return RedirectResponse(to_environment(target), 303)

    return await _confirmed(frame, request, caller, f"Promote {origin} to {target}?", act)


# ---------------------------------------------------------------------------------------- rollback


def _change_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def confirm_rollback(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what a rollback would undo: to a change, or the last step."""
    environment, to = parameter(request, "environment"), _change_id(parameter(request, "to"))

    def act() -> dict[str, Any]:
        settings = settings_of(frame.graph, environment)
        rollback = plan_rollback(settings, frame.graph.ledger, to=to)
        gone = f"These tables are gone: {', '.join(rollback.gone)}." if rollback.gone else ""
        return {
            "action": "/rollback",
            "fields": {
                "environment": environment,
                "to": "" if to is None else str(to),
                "expected": str(rollback.expected),
            },
            "button": "Roll back",
            "undone": rollback.undone,
            "explanation": gone or "Readers get the earlier tables again. Nothing is copied.",
            "is_possible": not rollback.gone,
        }

    title = f"Roll back {environment}?"
    return await _confirmed(frame, request, caller, title, act)


async def do_rollback(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Roll back, unless the environment has changed since the confirmation was shown."""
    environment, to = _text(form, "environment"), _change_id(form.get("to", ""))

    def act() -> Response:
        settings = settings_of(frame.graph, environment)
        if settings.views:
            raise SettingsError(
                f"`{environment}` has views in a catalog, which only a process with Spark updates",
                hint=f"run persist rollback --env {environment}",
            )
        roll_back(
            settings,
            frame.graph.ledger,
            to=to,
            expected=_change_id(form.get("expected", "")),
            by=caller.name,
            why="in the dashboard",
        )
        return RedirectResponse(to_environment(environment), 303)

    return await _confirmed(frame, request, caller, f"Roll back {environment}?", act)
