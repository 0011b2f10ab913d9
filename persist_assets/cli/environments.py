"""Commands about environments: manifest, promote, history, rollback, gc, doctor."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    in_local_time,
    in_words,
    out,
    print_json,
    quiet,
    table_of,
)
from persist_assets.core.errors import (
    SettingsError,
    StorageError,
)
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.snapshots import ManifestChange, Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.ledger.manifest_file import fetch_document
from persist_assets.planning.increments import column_type
from persist_assets.storage.delta_tables import nulls_in

# ----------------------------------------------------------------------------------------- manifest


@command("manifest")
def manifest(
    invocation: Invocation,
    file: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Import a manifest from a file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    why: Annotated[
        str | None, typer.Option("--why", help="A reason to record in the history.")
    ] = None,
) -> None:
    """Print the environment's manifest in Malloy's format, or import one."""
    if file is not None:
        _import(invocation, file, dry_run=dry_run, why=why)
        return
    if dry_run or why:
        raise SettingsError("--dry-run and --why require --import FILE")
    document = fetch_document(invocation.settings, invocation.ledger)
    if invocation.as_json:
        print_json(document)
        return
    table = table_of("build", "source", "table", "rows")
    for build_id, entry in document["entries"].items():
        if "buildId" in entry:  # the same table again, in the form for Malloy's own tools
            continue
        table.add_row(
            build_id[:12],
            escape(entry["sourceId"]),
            escape(entry["tableName"]),
            f"{entry['rows']:,}",
        )
    out.print(table)
    out.print(f"[dim]{invocation.settings.manifest_path}[/]", soft_wrap=True)


def _import(invocation: Invocation, file: Path, *, dry_run: bool, why: str | None) -> None:
    from persist_assets.operations.manifest_imports import import_manifest

    settings = invocation.settings
    builder = invocation.builder() if settings.has_views else None
    imported = import_manifest(
        settings, invocation.ledger, file, dry_run=dry_run, why=why, builder=builder
    )
    moved = [
        {
            "build_id": s.build_id,
            "source_id": s.source_id,
            "table": s.table,
            "version": s.version,
            "adopted": s.build_id in imported.adopted,
        }
        for s in (imported.moved if imported.change_id or dry_run else ())
    ]
    refused = [
        {"build_id": r.build_id, "source_id": r.source_id, "reason": r.reason}
        for r in imported.refused
    ]
    differs = imported.strict is not None and imported.strict != settings.strict
    if invocation.as_json:
        document = {"change_id": imported.change_id, "moved": moved, "same": imported.n_same}
        print_json({**document, "refused": refused, "strict_differs": differs})
    else:
        for row in moved:
            origin = " [dim](of another ledger)[/]" if row["adopted"] else ""
            entry = f"{row['source_id']} {row['table']}@v{row['version']}"
            action = "would import" if dry_run else "imported"
            out.print(f"[green]{action}[/] {escape(entry)}{origin}", soft_wrap=True)
        for r in imported.refused:
            entry = f"{r.source_id or ''} {(r.build_id or str(file))[:64]}".strip()
            err.print(f"[red]refused[/] {escape(f'{entry}: {r.reason}')}", soft_wrap=True)
        change = imported.change_id
        outcome = f"as change {change}" if change else _unchanged(dry_run)
        verb = "would be imported" if dry_run else "imported"
        n = f"{len(moved)} {verb}, {imported.n_same} already the same, {len(refused)} refused"
        out.print(f"{n} in {settings.environment}: {outcome}")
    if differs:
        words = ("strict", "not strict") if imported.strict else ("not strict", "strict")
        message = f"the file is {words[0]}, {settings.environment} is {words[1]} and remains so"
        err.print(f"[yellow]warning[/]: {message}; persist.toml decides that", soft_wrap=True)
    if refused:
        raise typer.Exit(4)


def _unchanged(dry_run: bool) -> str:
    return "a dry run changes nothing" if dry_run else "nothing was changed"


# ------------------------------------------------------------------------------------- environments

FromArgument = Annotated[
    str, typer.Argument(metavar="FROM", help="The environment to promote from.")
]
ToArgument = Annotated[str, typer.Argument(metavar="TO", help="The environment to promote to.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing.")]
AllowStaleOption = Annotated[
    bool, typer.Option("--allow-stale", help="Promote even stale or inconsistent tables.")
]
WhyOption = Annotated[str | None, typer.Option("--why", help="A reason to record in the history.")]


@command("promote")
def promote(
    invocation: Invocation,
    source: FromArgument,
    target: ToArgument,
    selection: SelectArgument = None,
    dry_run: DryRunOption = False,
    allow_stale: AllowStaleOption = False,
    why: WhyOption = None,
) -> None:
    """Let readers of one environment see what another one has built. Copies nothing."""
    from persist_assets.operations import environments

    invocation.env = source
    current = invocation.ledger.builds.fetch_current(target)
    promotion, change = environments.promote(
        invocation.builder(),
        target,
        invocation.select(selection),
        allow_stale=allow_stale,
        dry_run=dry_run,
        why=why,
    )
    moved = [
        {
            "source_id": s.source_id,
            "from_build": current[s.source_id].build_id if s.source_id in current else None,
            "to_build": s.build_id,
        }
        for s in (promotion.sources if change or dry_run else ())
    ]
    refused = [{"source_id": r.source_id, "reason": r.reason} for r in promotion.refused]
    if invocation.as_json:
        print_json({"change_id": change, "moved": moved, "refused": refused})
    else:
        for refusal in promotion.refused:
            err.print(f"[red]refused[/] {escape(refusal.source_id)}: {escape(refusal.reason)}")
        could = "could promote" if refused else "would promote"
        for row in moved:
            action = could if dry_run else "promoted"
            out.print(f"[green]{action}[/] {escape(str(row['source_id']))}")
        outcome = f"as change {change}" if change else _unchanged(dry_run)
        out.print(f"{len(moved)} from {source} to {target}, {len(refused)} refused: {outcome}")
    if refused:
        raise typer.Exit(4)


@command("history")
def history(
    invocation: Invocation,
    limit: Annotated[
        int, typer.Option("--limit", help="The maximum number of changes.", min=1)
    ] = 20,
) -> None:
    """List the changes of the environment's manifest, newest first."""
    changes = invocation.ledger.manifests.fetch_history(
        invocation.settings.environment, limit=limit
    )
    if invocation.as_json:
        print_json([_manifest_change_json(c) for c in changes])
        return
    for change in changes:
        _print_change(change)
    if not changes:
        out.print(f"{invocation.settings.environment} has not changed yet")


@command("state")
def state(
    invocation: Invocation,
    selection: SelectArgument = None,
    runs: Annotated[
        bool, typer.Option("--history", help="List builds instead, latest first.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", help="The maximum number of builds of each source.", min=1)
    ] = 20,
) -> None:
    """Show the last build and the watermark of each table."""
    chosen = [invocation.project.by_id[s] for s in invocation.select(selection)]
    if runs:
        _print_builds(
            invocation, {s.source_id: _history_json(invocation, s, limit) for s in chosen}
        )
        return
    last = invocation.ledger.builds.fetch_last(invocation.settings.environment)
    current = invocation.ledger.manifests.fetch(*invocation.settings.environments)
    documents: dict[str, dict[str, Any]] = {}
    for source in chosen:
        snapshot, build = current.get(source.build_id), last.get(source.source_id)
        if snapshot is None and build is None:
            continue
        ended = (build.finished_at if build else None) or (snapshot and snapshot.built_at)
        documents[source.source_id] = {
            "last_run": ended.isoformat() if ended else None,
            "last_max_value": snapshot.watermark if snapshot else None,
            "type": column_type(snapshot.columns, snapshot.time_column or "") if snapshot else None,
            "rows": snapshot.rows if snapshot else None,
            "timeless": _count_timeless(invocation, snapshot) if snapshot else None,
        }
    if invocation.as_json:
        print_json(documents)
        return
    table = table_of("source", "last run", "up to", "rows")
    for source_id, values in documents.items():
        rows = "" if values["rows"] is None else f"{values['rows']:,}"
        upto = values["last_max_value"] or ""
        if values["timeless"]:
            upto = f"{upto}, {values['timeless']:,} without".removeprefix(", ")
        table.add_row(escape(source_id), in_local_time(values["last_run"]), escape(upto), rows)
    if documents:
        out.print(table)
    else:
        out.print(f"nothing has been built in {invocation.settings.environment} yet")


def _count_timeless(invocation: Invocation, snapshot: Snapshot) -> int | None:
    """Return the number of rows without a watermark, from a table's files; None if they lack it.

    The ledger knows only the rows of each build, and for increments not even those.
    """
    if snapshot.time_column is None or snapshot.view is not None:
        return None
    root = invocation.settings.table_root(snapshot.table)
    try:
        return nulls_in(root, snapshot.version, snapshot.time_column)
    except StorageError:
        return None


def _history_json(invocation: Invocation, source: Source, limit: int) -> list[dict[str, Any]]:
    """Return the builds of a source in the environment, the latest first."""
    ledger, environment = invocation.ledger, invocation.settings.environment
    builds = ledger.builds.fetch(source_id=source.source_id, environment=environment, limit=limit)
    earlier = (
        ledger.builds.fetch(
            source_id=source.source_id,
            environment=environment,
            succeeded_before=builds[-1].started_at,
            limit=1,
        )
        if builds
        else []
    )
    watermark = next((b.snapshot.watermark for b in earlier if b.snapshot), None)
    documents: list[dict[str, Any]] = []
    for build in reversed(builds):
        snapshot, written = build.snapshot, build.written
        after = snapshot.watermark if snapshot else None
        documents.append(
            {
                "build_uid": build.build_uid,
                "build_id": build.build_id,
                "run_id": build.run_id,
                "started_at": build.started_at.isoformat(),
                "seconds": build.seconds,
                "state": build.state,
                "action": build.action,
                "maintenance": build.maintenance,
                "computed_seconds": build.computed_s,
                "rows": snapshot.rows if snapshot else None,
                "rows_written": written.rows if written else None,
                "bytes": snapshot.bytes if snapshot else None,
                "bytes_written": written.bytes if written else None,
                "effort": asdict(build.effort) if build.effort else None,
                "watermark_before": watermark,
                "watermark_after": after,
                "table": snapshot.table if snapshot else None,
                "version": snapshot.version if snapshot else None,
                "error": build.error,
            }
        )
        watermark = after if snapshot else watermark
    return documents[::-1]


def _print_builds(
    invocation: Invocation, builds_by_source: Mapping[SourceID, Sequence[Mapping[str, Any]]]
) -> None:
    if invocation.as_json:
        print_json(builds_by_source)
        return
    for source_id, builds in builds_by_source.items():
        heads = ("started", "action", "method", "rows", "written", "seconds", "up to", "run")
        table = table_of(*heads)
        for row in builds:
            numbers = ("" if row[k] is None else f"{row[k]:,}" for k in ("rows", "rows_written"))
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
            action = row["action"] if row["state"] == "succeeded" else row["state"]
            upto = row["watermark_after"] or ""
            run = (row["run_id"] or "")[:8]
            done = (action, row["maintenance"] or "")
            started = in_local_time(row["started_at"])
            table.add_row(started, *done, *numbers, seconds, escape(upto), run)
        out.print(f"[bold]{escape(source_id)}[/]" + ("" if builds else " [dim]not built yet[/]"))
        if builds:
            out.print(table)
        for row in builds:
            if row["error"]:
                why = row["error"].partition("\n")[0]
                out.print(f"[dim]{in_local_time(row['started_at'])}[/]  {escape(why)}")


@command("rollback")
def rollback(
    invocation: Invocation,
    to: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="CHANGE_ID", help="Return to the state right after that change."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="Undo the last N runs, promotions, imports; default: 1."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="Undo everything that a run or a change did."),
    ] = None,
    why: WhyOption = None,
) -> None:
    """Restore an earlier state of the environment's manifest. Copies nothing."""
    from persist_assets.operations import environments

    named = {"--to": to, "--steps": steps, "--run": run}
    options = [option for option, value in named.items() if value is not None]
    if len(options) > 1:
        raise SettingsError(f"{options[0]} and {options[1]} cannot be combined", hint="choose one")

    builder = invocation.builder() if invocation.settings.has_views else None
    change = environments.roll_back(
        invocation.settings,
        invocation.ledger,
        to=to,
        steps=steps or 1,
        run=run,
        why=why,
        builder=builder,
    )
    if invocation.as_json:
        print_json([_manifest_change_json(change)])
    else:
        _print_change(change)


@command("gc")
def gc_(
    invocation: Invocation,
    dry_run: DryRunOption = False,
    removed: Annotated[
        bool, typer.Option("--removed", help="Include sources that the project no longer defines.")
    ] = False,
) -> None:
    """Delete tables and versions that no environment and no recent history needs."""
    from persist_assets.operations.gc import collect

    collected = collect(
        invocation.settings, invocation.project, invocation.ledger, removed=removed, dry_run=dry_run
    )
    total = sum(c.bytes for c in collected)
    if invocation.as_json:
        tables = [
            {"table": c.table, "versions": list(c.versions), "bytes": c.bytes} for c in collected
        ]
        print_json({"tables": tables, "bytes": total})
        return
    for c in collected:
        versions = ", ".join(str(v) for v in c.versions)
        which = (
            f"version{'s' * (len(c.versions) > 1)} {versions}" if versions else "never published"
        )
        action = "would delete" if dry_run else "deleted"
        out.print(f"{action} {escape(c.table)} [dim]{which}[/], {decimal(c.bytes)}")
    would = "would be deleted" if dry_run else "deleted"
    n = "1 table" if len(collected) == 1 else f"{len(collected)} tables"
    out.print(f"{decimal(total)} of {n} {would}")


def _manifest_change_json(change: ManifestChange) -> dict[str, Any]:
    return {
        "change_id": change.change_id,
        "at": change.at.isoformat(),
        "by": change.by,
        "why": change.why,
        "kind": change.kind,
        "run_id": change.run_id,
        "entries": [
            {
                "source_id": m.source_id,
                "build_id": m.build_id,
                "before": _version(m.before),
                "after": _version(m.after),
            }
            for m in change.moves
        ],
    }


def _version(snapshot: Snapshot | None) -> str | None:
    return f"{snapshot.table}@v{snapshot.version}" if snapshot else None


def _print_change(change: ManifestChange) -> None:
    at = in_local_time(change.at.isoformat())
    why = f" [dim]{escape(change.why)}[/]" if change.why else ""
    run = f" [dim]run {escape(change.run_id[:8])}[/]" if change.run_id else ""
    out.print(f"[bold]{change.change_id}[/] {at} {change.kind} by {escape(change.by)}{run}{why}")
    for m in change.moves:
        ends = f"{_version(m.before) or 'nothing'} → {_version(m.after) or 'nothing'}"
        out.print(f"  {escape(m.source_id)} [dim]{escape(ends)}[/]", soft_wrap=True)


# ------------------------------------------------------------------------------------------- doctor


@command("doctor", is_confined=True)
def doctor(
    invocation: Invocation,
    spark: Annotated[bool, typer.Option("--spark", help="Also start Spark.")] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Restore a lost ledger; repair exported manifests and Dagster's home.",
        ),
    ] = False,
) -> None:
    """Check the project, its ledger and its tables for problems."""
    from persist_assets.operations.doctor import examine

    environment = invocation.env or os.environ.get("PERSIST_ENV")
    with ExitStack() as stack:
        if spark:
            with suppress(SettingsError):  # the report includes it, and Spark is not started
                stack.enter_context(quiet(invocation))
        report = examine(invocation.root, environment=environment, spark=spark, fix=fix)
    problems = [asdict(f) for f in report.findings]
    if invocation.as_json:
        print_json({"problems": problems, "checked": report.checked})
    else:
        for name, value in report.checked.items():
            out.print(f"[dim]{name.replace('_', ' ')}[/] {escape(in_words(value))}", soft_wrap=True)
        colours = {"error": "red", "warning": "yellow", "note": "cyan"}
        for f in report.findings:
            text = f"[{colours[f.severity]}]{f.severity}[/]: {escape(f'{f.message} [{f.code}]')}"
            err.print(text, soft_wrap=True)
            if f.hint:
                err.print(f"  hint: {escape(f.hint)}", soft_wrap=True)
        n = sum(f.severity != "note" for f in report.findings)
        out.print("no problems" if report.well else f"{n} problem{'s' * (n != 1)}")
    if not report.well:
        raise typer.Exit(1)
