"""The command that brings tables under fixed names up to date."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    out,
    print_json,
    table_of,
)
from persist_assets.cli.environments import DryRunOption
from persist_assets.core.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.building.publishing import Outcome
    from persist_assets.core.model.project import Project

_COLOURS = {
    "published": "green",
    "described": "green",
    "removed": "yellow",
    "current": "dim",
    "skipped": "yellow",
    "failed": "red",
}


@command("publish")
def publish_(
    invocation: Invocation,
    selection: SelectArgument = None,
    dry_run: DryRunOption = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Also change tables that another ledger or environment published."
        ),
    ] = False,
) -> None:
    """Update the tables under fixed names from the environment. Builds nothing."""
    from persist_assets.building import publishing

    settings, project = invocation.settings, invocation.project
    if settings.publish is None:
        name = settings.environment
        name, *_ = settings.reads[-1:] or (name,)  # only an environment that reads none publishes
        raise SettingsError(
            f"`{settings.environment}` publishes no tables under fixed names",
            hint=f'in persist.toml: [env.{name}.publish] path = "lake/{name}"',
        )
    selected = invocation.select(selection) if selection else None
    if not dry_run and settings.publish.catalog:
        publishing.show_views(
            settings,
            invocation.ledger,
            project,
            invocation.engine,
            selected,
            take_over=take_over,
        )
    outcomes = publishing.publish(
        settings,
        invocation.ledger,
        project,
        selected,
        dry_run=dry_run,
        verify=True,
        take_over=take_over,
    )
    if not dry_run:
        publishing.share_manifest(settings, invocation.ledger, take_over=take_over)
    left = publishing.find_left(settings, invocation.ledger, project)
    if invocation.as_json:
        tables = [
            {
                "source_id": o.source_id,
                "place": o.place,
                "action": o.action,
                "build_uid": o.build_uid,
                "reason": o.reason,
            }
            for o in outcomes
        ]
        print_json({"tables": tables, "left": list(left)})
    else:
        _print(project, outcomes, left, dry_run=dry_run)
    if any(o.action == "failed" for o in outcomes):
        raise typer.Exit(exit_code(StorageError))


def _print(
    project: "Project", outcomes: "Sequence[Outcome]", left: "Sequence[str]", *, dry_run: bool
) -> None:
    """Print the outcome for each table, and the tables that no longer follow a source."""
    table = table_of("source", "action", "place")
    for o in outcomes:
        action = f"[{_COLOURS[o.action]}]{o.action}[/]"
        reason = f" [dim]{escape(o.reason)}[/]" if o.reason else ""
        table.add_row(escape(project.by_id[o.source_id].key), action, escape(o.place) + reason)
    if outcomes:
        out.print(table)
    for place in left:
        message = f"{place} no longer follows a source; persist gc --removed deletes it"
        err.print(f"[yellow]warning[/]: {escape(message)}", soft_wrap=True)
    counts = Counter(o.action for o in outcomes)
    n_changed = len(outcomes) - sum(counts[a] for a in ("current", "skipped", "failed"))
    out.print(
        f"{n_changed} of {len(outcomes)} {'would be ' if dry_run else ''}changed, "
        f"{counts['current']} current, {counts['skipped']} skipped, {counts['failed']} failed"
    )
