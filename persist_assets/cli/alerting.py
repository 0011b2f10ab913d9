"""Commands about alerts: `alerts list`, `alerts send`, `alerts test`."""

import os
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    alerts_app,
    command,
    err,
    in_local_time,
    out,
    print_json,
    table_of,
)
from persist_assets.core.errors import NotFoundError, SettingsError, did_you_mean


@command("list", alerts_app)
def alerts_list(
    invocation: Invocation,
    every: Annotated[bool, typer.Option("--all", help="Include closed alerts.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", help="The maximum number of alerts.", min=1)
    ] = 50,
) -> None:
    """List open alerts, newest first, and the channels that got them."""
    from persist_assets.operations.alerting.messages import describe
    from persist_assets.operations.documents.alerts import AlertDocument

    ledger, environment = invocation.ledger, invocation.settings.environment
    alerts = ledger.alerts.fetch(environment, only_open=not every, limit=limit)
    messages = ledger.alerts.fetch_messages([alert.alert_id for alert in alerts])
    documents = [
        AlertDocument.of(a, [m for m in messages if m.alert.alert_id == a.alert_id]) for a in alerts
    ]
    if invocation.as_json:
        print_json({"alerts": [document.as_json() for document in documents]})
        return
    if not alerts:
        out.print(f"no {'' if every else 'open '}alerts in {environment}")
        return
    table = table_of("since", "alert", "state", "messages")
    for alert, document in zip(alerts, documents, strict=True):
        channels = [
            f"{m.channel}: {m.state}" + (f" ({m.error})" if m.error else "")
            for m in document.messages
            if m.phase == "opened" or m.state != "sent"
        ]
        title = describe(alert, "opened")[0].removeprefix(f"[{environment}] ")
        state, since = alert.outcome or "open", in_local_time(document.since.isoformat())
        table.add_row(since, escape(title), state, escape(", ".join(channels) or "no channel"))
    out.print(table)


@command("send", alerts_app)
def alerts_send(invocation: Invocation) -> None:
    """Check for problems once and send the alerts that are due, for example from a cron job."""
    from persist_assets.operations.alerting.turn import take_turn

    if not invocation.settings.channels:
        raise SettingsError(
            "persist.toml has no channels for alerts", hint="add [alerts.NAME]: docs/operations.md"
        )
    turn = take_turn(invocation.observer)
    if invocation.as_json:
        counts = {"opened": turn.opened, "closed": turn.closed, "sent": turn.sent}
        print_json({**counts, "problems": [*turn.problems]})
    else:
        counts = f"{turn.opened} opened, {turn.closed} closed"
        out.print(f"{counts}, {turn.sent} message{'s' * (turn.sent != 1)} sent")
        for problem in turn.problems:
            err.print(f"[yellow]warning[/]: {escape(problem)}", soft_wrap=True)
    if turn.problems:
        raise typer.Exit(1)


@command("test", alerts_app)
def alerts_test(
    invocation: Invocation,
    channel: Annotated[
        str, typer.Argument(metavar="CHANNEL", help="The NAME of [alerts.NAME] in persist.toml.")
    ],
) -> None:
    """Send a test message to a channel."""
    from persist_assets.operations.alerting.channels import send
    from persist_assets.operations.alerting.messages import trial_note

    settings = invocation.settings
    channels = {c.name: c for c in settings.channels}
    if channel not in channels:
        known = ", ".join(channels) or "none"
        hint = did_you_mean(channel, channels) or f"channels in persist.toml: {known}"
        raise NotFoundError(f"unknown channel `{channel}`", hint=hint)
    now = datetime.now(UTC)
    note = trial_note(channel, settings.environment, now)
    _, problem = send(channels[channel], [note], os.environ, now)
    if invocation.as_json:
        print_json({"channel": channel, "sent": problem is None, "problem": problem})
    elif problem is None:
        out.print(f"sent a test message to {channel}")
    else:
        err.print(f"[red]error[/]: {escape(f'[alerts.{channel}] {problem}')}", soft_wrap=True)
    if problem is not None:
        raise typer.Exit(1)
