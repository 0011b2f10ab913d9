"""Commands that keep a ledger small and safe: trim, backup, restore."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import Invocation, command, err, ledger_app, out, print_json
from persist_assets.core.errors import SettingsError


@command("trim", ledger_app)
def ledger_trim(
    invocation: Invocation,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Delete older events: `90d`. Default: `[retention] events`.",
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="Where the events are archived."),
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Return the free space to the disk; writers wait.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
) -> None:
    """Archive old events as Parquet, and delete those that are no longer needed."""
    from persist_assets.core.settings.retention import parse_retention
    from persist_assets.operations.trimming import trim

    seconds = invocation.settings.retention.events_s
    if older_than is not None:
        seconds = parse_retention(older_than) or 0
        if not seconds:
            raise SettingsError(
                f"`--older-than {older_than}` is not a duration of at least 1 hour",
                hint='for example, --older-than 90d, or "12 hours"',
            )
    if not seconds:
        raise SettingsError(
            "no retention period is set for events",
            hint='use --older-than 90d, or set [retention] events = "90 days" in persist.toml',
        )

    def tell(done: int, last: int) -> None:
        if invocation.verbose:
            err.print(f"checked the events up to {done:,} of {last:,}")

    ledger = invocation.ledger
    trimmed = trim(
        invocation.settings, ledger, seconds, archive=archive, dry_run=dry_run, tell=tell
    )
    if vacuum and not dry_run:
        ledger.events.database.vacuum()
    if invocation.as_json:
        counts = {"upto": trimmed.upto, "deleted": trimmed.deleted, "kept": trimmed.still_needed}
        print_json({**counts, "archive": trimmed.archive, "files": [*trimmed.files]})
        return
    if not trimmed.deleted:
        out.print("no event can be deleted")
        return
    action = "would archive and delete" if dry_run else "archived and deleted"
    out.print(
        f"{action} {trimmed.deleted:,} events up to position {trimmed.upto:,};"
        f" {trimmed.still_needed:,} older ones are still needed"
    )
    if not dry_run:
        out.print(f"[dim]{escape(trimmed.archive)}[/]", soft_wrap=True)


@command("backup", ledger_app)
def ledger_backup(
    invocation: Invocation, file: Annotated[Path, typer.Argument(help="The file to write.")]
) -> None:
    """Write a backup of the ledger, a SQLite file, while builds run."""
    from persist_assets.ledger.backups import back_up

    invocation.ledger.close()  # it has the version of this release now
    position = back_up(invocation.settings.ledger, file)
    if invocation.as_json:
        print_json({"file": str(file), "position": position, "bytes": file.stat().st_size})
    else:
        out.print(f"wrote {escape(str(file))} at position {position:,}", soft_wrap=True)


@command("restore", ledger_app)
def ledger_restore(
    invocation: Invocation,
    file: Annotated[Path, typer.Argument(help="A file that `ledger backup` wrote.")],
    force: Annotated[
        bool, typer.Option("--force", help="Restore it even if something would be lost.")
    ] = False,
) -> None:
    """Replace the ledger with a backup, after backing it up, and report what was lost."""
    from persist_assets.operations.restoring import restore

    restored = restore(invocation.settings, file, force=force)
    loss, before = restored.loss, restored.before
    if invocation.as_json:
        counts = {"events": loss.events, "builds": loss.builds, "changes": loss.changes}
        backup = str(before) if before else None
        facts = {"removed": restored.removed, "histories": [*restored.histories]}
        print_json({"lost": counts, **facts, "before": backup})
        return
    out.print(f"restored {escape(str(file))}", soft_wrap=True)
    if str(loss):
        out.print(f"lost: {escape(str(loss))}", soft_wrap=True)
    if restored.removed:
        out.print(f"{restored.removed} manifest entries were removed: their tables are gone")
    for source_id in restored.histories:
        out.print(f"the table with the history of {escape(source_id)} is gone", soft_wrap=True)
    if before:
        out.print(f"[dim]the previous ledger is in {escape(str(before))}[/]", soft_wrap=True)
