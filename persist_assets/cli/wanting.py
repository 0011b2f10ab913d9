"""Commands about wants: requested data, its deadlines and states, and missed deadlines."""

import getpass
import socket
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    command,
    err,
    in_local_time,
    in_words,
    out,
    print_json,
    quiet,
    table_of,
    want_app,
)
from persist_assets.core.errors import ConflictError, NotFoundError, SettingsError
from persist_assets.core.model.snapshots import Event
from persist_assets.core.settings.durations import in_short, parse_duration
from persist_assets.core.wants import ACTIVE, Evaluation, Request, Want

_TTL, _SLA = "30m", "5m"
_PAUSE_S = 1.0

WantArgument = Annotated[str, typer.Argument(metavar="ID", help="The ID of a want.")]
RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="An asset key, `/` and a partition key.")
]


# --------------------------------------------------------------------------------------------- want


@command("add", want_app)
def want_add(
    invocation: Invocation,
    ref: RefArgument,
    sla: Annotated[
        str, typer.Option("--sla", metavar="DURATION|none", help="The time until it is late.")
    ] = _SLA,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION|none", help="The time until it expires.")
    ] = _TTL,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="The time that its data represents: --sla counts from it."
        ),
    ] = None,
    needs: Annotated[
        list[str] | None,
        typer.Option(
            "--needs", metavar="GRAPH:REF", help="A partition of another graph that it depends on."
        ),
    ] = None,
    want_id: Annotated[
        str | None, typer.Option("--id", help="Its ID; repeating it returns the same want.")
    ] = None,
    comment: Annotated[
        str | None, typer.Option("--comment", help="Why the data is wanted.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Only record it: another process builds it.")
    ] = False,
) -> None:
    """Request a partition by a deadline; it is built at once if possible."""
    from persist_assets.wants.requests import check_want

    want = Want(
        want_id or uuid.uuid4().hex,
        ref,
        invocation.settings.environment,
        datetime.now(UTC),
        data_timestamp=_time(invocation, at),
        ttl_s=_seconds("--ttl", ttl),
        sla_s=_seconds("--sla", sla),
        external_dependencies=tuple(needs or ()),
        source={"type": "cli", "user": _user(), "host": socket.gethostname()},
        comment=comment,
    )
    want, warnings = check_want(invocation.observer, want)
    for warning in warnings:
        err.print(f"[yellow]warning[/]: {escape(warning)}", soft_wrap=True)
    (want,) = invocation.ledger.wants.create([want])
    if no_wait:
        _warn_untaken(invocation)
    else:
        with quiet(invocation):
            _build_now(invocation, want.want_id)
    want = _find(invocation, want.want_id)
    _print_want(invocation, want)
    if want.state == "failing":
        raise typer.Exit(1)


def _build_now(invocation: Invocation, want_id: str) -> None:
    """Build requests until none that contains the want can be built now."""
    from persist_assets.wants.requests import evaluate_now, run_request

    _, request = evaluate_now(invocation.observer, "want")
    while True:
        request = request or _find_requested(invocation, want_id)
        if request is None and not _is_built_by_others(invocation, want_id):
            break
        if request is not None:
            n = len(request.partitions)
            err.print(f"building {n} partition{'s' * (n != 1)}: {request.reason}")
            with suppress(ConflictError):  # another process started it: wait for that one
                run_request(invocation.builder(request), request)
        _, request = evaluate_now(invocation.builder().observer, "clock")


@command("list", want_app)
def want_list(
    invocation: Invocation,
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="Only matching partitions: `*`, `**`.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include wants that have ended.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The maximum number, newest first.")
    ] = 100,
) -> None:
    """List open wants."""
    states = () if every else ACTIVE
    wants = invocation.ledger.wants.fetch(
        invocation.settings.environment, states=states, pattern=pattern, limit=limit
    )
    _warn_untaken(invocation)
    if invocation.as_json:
        print_json([_document(want) for want in wants])
        return
    table = table_of("want", "partition", "state", "deadline", "error")
    for want in wants:
        due = in_local_time(want.deadline.isoformat() if want.deadline else None)
        error = (want.error or "").splitlines()[:1]
        table.add_row(
            escape(want.want_id),
            escape(want.partition_ref),
            want.state,
            due,
            escape("".join(error)),
        )
    out.print(table if wants else "no open wants")


@command("show", want_app)
def want_show(invocation: Invocation, want_id: WantArgument) -> None:
    """Show everything about a want."""
    _print_want(invocation, _find(invocation, want_id))


@command("cancel", want_app)
def want_cancel(
    invocation: Invocation,
    want_id: WantArgument,
    why: Annotated[
        str | None, typer.Option("--why", help="A reason to record in the history.")
    ] = None,
) -> None:
    """Cancel a want; a build that has started for it finishes."""
    _print_want(invocation, invocation.ledger.wants.cancel(want_id, by=_user(), why=why))


def _warn_untaken(invocation: Invocation) -> None:
    """Print a warning if no process takes build requests."""
    from persist_assets.wants.requests import TAKERS, find_untaken

    message = find_untaken(invocation.ledger, invocation.settings.environment, datetime.now(UTC))
    if message is not None:
        err.print(f"[yellow]warning[/]: {escape(message)}; {escape(TAKERS)}", soft_wrap=True)


def _find_requested(invocation: Invocation, want_id: str) -> Request | None:
    """Return the request of a want, unless it has been started."""
    want = invocation.ledger.wants.find(want_id)
    if want is None or want.state != "requested" or want.request_id is None:
        return None
    return invocation.ledger.requests.find(want.request_id)


def _is_built_by_others(invocation: Invocation, want_id: str) -> bool:
    """Return whether another process builds the want; if so, wait until it has ended."""
    from persist_assets.wants.requests import record_dead

    ledger, is_built = invocation.ledger, False
    while (want := ledger.wants.find(want_id)) is not None and want.state == "building":
        if not is_built:
            err.print(f"another process builds it: request {want.request_id}")
        is_built = True
        time.sleep(_PAUSE_S)
        record_dead(ledger, invocation.settings.environment, datetime.now(UTC))
    return is_built


def _find(invocation: Invocation, want_id: str) -> Want:
    want = invocation.ledger.wants.find(want_id)
    if want is None:
        raise NotFoundError(f"unknown want `{want_id}`", hint="persist want list --all")
    return want


def _print_want(invocation: Invocation, want: Want) -> None:
    if invocation.as_json:
        print_json(_document(want))
        return
    for name, value in _document(want).items():
        if value not in (None, [], {}):
            out.print(f"{name.replace('_', ' '):24}{escape(in_words(value))}", soft_wrap=True)


def _document(want: Want) -> dict[str, Any]:
    from persist_assets.operations.documents.wants import WantDocument

    return WantDocument.model_validate(want).as_json()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _seconds(option: str, text: str) -> int | None:
    if text == "none":
        return None
    seconds = parse_duration(text)
    if seconds is None or seconds < 0:
        raise SettingsError(f"{option}: `{text}` is not a duration", hint='for example, "9h"')
    return int(seconds)


def _time(invocation: Invocation, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"--at: `{text}` is not a time", hint="for example, 2024-01-31T06:00"
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=invocation.settings.timezone)


# --------------------------------------------------------------------------------------- evaluation


@command("evaluate")
def evaluate(
    invocation: Invocation,
    force: Annotated[bool, typer.Option("--force", help="Retry failures immediately.")] = False,
    build: Annotated[bool, typer.Option("--build", help="Build the request here and now.")] = False,
    request_id: Annotated[
        str | None,
        typer.Option("--request", metavar="ID", help="Build this request without an evaluation."),
    ] = None,
) -> None:
    """Evaluate all wants and create one build request for those that can be built."""
    from persist_assets.wants.requests import evaluate_now, run_request
    from persist_assets.wants.schedules import make_wants
    from persist_assets.wants.upstreams import sync_all

    if request_id is None:
        for synced in sync_all(invocation.observer):
            if synced.problem is not None:
                message = escape(f"{synced.graph}: {synced.problem}")
                err.print(f"[yellow]warning[/]: {message}", soft_wrap=True)
        make_wants(invocation.observer, "persist evaluate")
        evaluation, request = evaluate_now(invocation.observer, "manual", force=force)
    else:
        evaluation, request = Evaluation(), invocation.ledger.requests.find(request_id)
        if request is None or request.environment != invocation.settings.environment:
            raise NotFoundError(f"unknown build request `{request_id}`")
    succeeded = True
    if (build or request_id) and request is not None:
        with quiet(invocation):
            succeeded = run_request(invocation.builder(request), request)
    if invocation.as_json:
        from persist_assets.operations.documents.wants import EvaluationDocument

        print_json(EvaluationDocument.of(evaluation, request).as_json())
    elif request is not None:
        listed = ", ".join(request.partitions[:5])
        more = f" and {len(request.partitions) - 5} more" if len(request.partitions) > 5 else ""
        out.print(f"request {request.request_id}: {escape(listed)}{more}", soft_wrap=True)
    else:
        out.print("nothing can be built now")
    if evaluation.deferred and not invocation.as_json:
        out.print(f"{evaluation.deferred:,} more wants can be built in the next evaluation")
    for blocked in () if invocation.as_json else evaluation.blocked:
        missing = ", ".join(blocked.missing)
        out.print(escape(f"{blocked.partition_ref} waits for {missing}"), soft_wrap=True)
    if not succeeded:
        raise typer.Exit(1)


@command("taint")
def taint(invocation: Invocation, ref: RefArgument) -> None:
    """Mark the rows of a partition, and all rows computed from them, as unusable."""
    from persist_assets.wants.requests import taint as record

    refs = record(invocation.observer, ref, by=_user())
    if invocation.as_json:
        print_json({"partition_refs": refs})
        return
    for tainted in refs:
        out.print(
            f"{escape(tainted)} is tainted: persist want add {escape(tainted)}", soft_wrap=True
        )
    if not refs:
        out.print(f"{escape(ref)} has not been built")


@command("sla")
def sla(
    invocation: Invocation,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The maximum number, latest first.")
    ] = 100,
) -> None:
    """List missed deadlines, their causes and delays."""
    from persist_assets.operations.documents.wants import MissDocument
    from persist_assets.wants.requests import record_late

    record_late(invocation.observer)
    now = datetime.now(UTC)
    misses = invocation.ledger.wants.fetch_misses(invocation.settings.environment, limit=limit)
    documents = [MissDocument.of(miss, now).as_json() for miss in misses]
    if invocation.as_json:
        print_json(documents)
        return
    table = table_of("partition", "deadline", "late", "delivered", "waited for", "cause")
    for row in documents:
        blame = row["blame"]
        whose = f"{blame['graph']}:" if blame["graph"] else ""
        table.add_row(
            escape(row["partition_ref"]),
            in_local_time(row["deadline"]),
            in_short(row["late_seconds"]),
            in_local_time(row["delivered_at"]) or "not yet",
            escape(whose + blame["partition_ref"]),
            escape(": ".join(filter(None, (blame["cause"], blame.get("problem"))))),
        )
    out.print(table if documents else "no deadline was missed")


# ------------------------------------------------------------------------------------------- events


@command("events")
def events(
    invocation: Invocation,
    since: Annotated[
        int, typer.Option("--since", min=0, help="Only events after this position.")
    ] = 0,
    pattern: Annotated[
        list[str] | None, typer.Option("--pattern", help="Only matching partitions: `*`, `**`.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only events of this kind.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The maximum number of events.")
    ] = 1000,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events, one per line.")
    ] = False,
) -> None:
    """List events, in order."""
    collected: list[Event] = []
    trimmed = invocation.ledger.events.trimmed_to()
    if since < trimmed:
        err.print(
            f"hint: events up to {trimmed} may be missing: they were archived (see `persist ledger"
            " trim`), or the ledger was restored from a backup"
        )
    while True:
        page, following = invocation.ledger.events.search(
            since, limit=limit, kinds=kind or (), patterns=pattern or ()
        )
        if follow:
            for event in page:
                _print_event(invocation, event)
        collected += page
        moved, since = following > since, following
        if follow:
            collected = []
            if not moved:
                time.sleep(_PAUSE_S)
        elif len(collected) >= limit or not moved:
            break
    if invocation.as_json:
        from persist_assets.operations.documents.events import EventDocument

        documents = [EventDocument.of(event).as_json() for event in collected]
        print_json({"events": documents, "next_idx": since})
    else:
        for event in collected:
            _print_event(invocation, event)


def _print_event(invocation: Invocation, event: Event) -> None:
    from persist_assets.operations.documents.events import EventDocument

    document = EventDocument.of(event)
    if invocation.as_json:
        print_json(document.as_json(), lines=True)
        return
    subject = document.partition_ref or document.job_label or ""
    at = event.at.strftime("%Y-%m-%d %H:%M:%SZ")
    out.print(f"{event.idx:>8} {at} {event.kind:26}{escape(subject)}", soft_wrap=True)
