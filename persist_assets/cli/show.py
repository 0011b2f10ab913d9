"""`show`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from persist_assets.cli.application import (
    Invocation,
    command,
    in_words,
    malloy_path,
    out,
    print_json,
    source_names,
    table_of,
)
from persist_assets.cli.check import check_json, print_check, source_json
from persist_assets.cli.external import held_json
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.core.errors import NotFoundError, SourcesError, did_you_mean
from persist_assets.core.model.annotations import Freshness, Kind
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.project import Project
from persist_assets.core.model.snapshots import Build, Effort, Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.values import Settings
from persist_assets.planning.selection import find_source
from persist_assets.planning.world import older_code


@command("show")
def show(
    invocation: Invocation,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE|FILE.malloy",
            help="A name or an asset key.",
            autocompletion=source_names,
        ),
    ],
    failures: Annotated[
        str | None,
        typer.Option("--failures", metavar="CHECK", help="Show the kept rows that fail a check."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="With --failures: the number of rows to show.")
    ] = 100,
) -> None:
    """Show everything about one source, or what a Malloy file defines."""
    invocation.keep_going = True  # errors in other sources do not matter
    if source.endswith(MALLOY):
        _show_file(invocation, source)
        return
    with invocation.naming_errors(source):
        shown_source = find_source(invocation.project, source)
    if failures is not None:
        _show_failures(invocation, shown_source, failures, limit)
        return
    document = _document(invocation, shown_source)
    if invocation.as_json:
        print_json(document)
        return
    out.print(f"[bold]{escape(shown_source.key)}[/]  [dim]{shown_source.location}[/]")
    if shown_source.description:
        out.print(escape(shown_source.description))
    facts = Table(box=None, show_header=False, pad_edge=False)
    for title in _FACTS:
        if document.get(title) not in ([], None, {}):
            facts.add_row(f"[dim]{title.replace('_', ' ')}[/]", escape(in_words(document[title])))
    out.print(facts)
    columns = Table(box=None, pad_edge=False, title_justify="left")
    for title in ("column", "type", "from"):
        columns.add_column(title)
    for column in document["columns"]:
        origins = ", ".join(column["from"])
        columns.add_row(
            escape(column["name"]), escape(column["type"] or "?"), f"[dim]{escape(origins)}[/]"
        )
    out.print(columns)
    for note in shown_source.notes:
        out.print(f"[cyan]note[/] {escape(note)}")
    for check in document["checks"]:
        print_check(check)
    for title in ("tables", "builds"):
        for row in document[title]:
            facts = ", ".join(f"{k} {in_words(v)}" for k, v in row.items() if _is_fact(k, v))
            out.print(f"[dim]{title[:-1]}[/] {escape(facts)}", soft_wrap=True)
            if row.get("effort"):
                effort = Effort(**row["effort"]).in_words
                out.print(f"[dim]      {escape(effort)}[/]", soft_wrap=True)


def _is_fact(name: str, value: object) -> bool:
    return value is not None and name != "effort"


def _show_failures(invocation: Invocation, source: Source, name: str, limit: int) -> None:
    """Show the rows that failed a check when it ran last."""
    from persist_assets.building.failing_rows import failures_root, read_failures

    source, name = _check_of(invocation.project, source, name)
    settings = invocation.settings
    root = failures_root(settings, invocation.ledger, source, name)
    rows = read_failures(root)
    values = rows.slice(0, limit).to_pylist() if rows is not None else []
    n = rows.num_rows if rows is not None else 0
    snapshot = invocation.ledger.manifests.find_snapshot(
        settings.environment, source.build_id, reads=settings.reads
    )
    result = next(c for c in _checks(invocation, source, snapshot) if c["name"] == name)
    n_failed = result["failed_rows"]
    if invocation.as_json:
        columns = rows.column_names if rows is not None else []
        shown = [[*row.values()] for row in values]
        where = root if rows is not None else None
        document = {"source_id": source.source_id, "check": name, "kept_in": where, "kept_rows": n}
        document |= {"columns": columns, "rows": shown, "truncated": n > limit}
        print_json({**document, "failed_rows": n_failed})
        return
    if rows is None:
        where = f"`{settings.environment}`"
        if not n_failed:
            out.print(escape(f"no rows are kept in {where}: none failed, or the check did not run"))
            return
        why = f"{n_failed:,} rows of the published table fail: {_why_none(result, root)}"
        out.print(escape(f"no rows are kept in {where}, but {why}"), soft_wrap=True)
        hint = f"persist check --data {source.key} --env {settings.environment}"
        out.print(f"  hint: {escape(hint)}", soft_wrap=True)
        return
    printed = table_of(*map(escape, rows.column_names))
    for row in values:
        printed.add_row(*(escape(str(value)) for value in row.values()))
    out.print(printed)
    out.print(f"[dim]{len(values):,} of {n:,} rows kept in {escape(root)}[/]", soft_wrap=True)


def _why_none(result: Mapping[str, Any], root: str) -> str:
    """Return why the rows that failed a check are not at their place."""
    if result["kept_in"] == root:
        return "the rows were kept, and deleted later"
    if result["kept_in"] is None:
        return "the check kept no rows when it ran"
    return "it was checked in another environment"


def _check_of(project: Project, source: Source, name: str) -> tuple[Source, str]:
    """Return the source and the name of a check that keeps rows, its own or one of its views.

    Raises
    ------
    NotFoundError
        There is none with this name, or it keeps no rows.
    """
    checks = {c.name: (source, c) for c in source.checks}
    for view in project.views(source):
        checks |= {f"{view.key}:{c.name}": (view, c) for c in view.checks}
    if name not in checks:
        raise NotFoundError(
            f"`{source.name}` has no check `{name}`",
            hint=did_you_mean(name, checks) or f"known checks: {', '.join(checks) or 'none'}",
        )
    source, check = checks[name]
    if not check.keep_failures:
        hint = "add the property keep_failures=true to the check"
        raise NotFoundError(f"`{name}` keeps no failing rows", hint=hint)
    return source, check.name


def _show_file(invocation: Invocation, file: str) -> None:
    """Show the sources and the named queries of a Malloy file."""
    path = malloy_path(invocation.settings, file)
    problems = [p for p in invocation.loaded.project.errors if p.location.path == path]
    if problems:
        raise SourcesError(problems)
    sources = [s for s in invocation.project.sources if s.location.path == path]
    queries = [q for q in invocation.project.queries if q.location.path == path]
    if invocation.as_json:
        print_json(
            {
                "path": path,
                "sources": [source_json(s) for s in sources],
                "queries": [
                    {"name": q.name, "line": q.location.line, "description": q.description}
                    for q in queries
                ],
            }
        )
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for source in sources:
        kind = "persisted" if source.persisted else "source"
        table.add_row(f"[dim]{kind}[/]", escape(source.key), escape(source.description or ""))
    for query in queries:
        run = f"{PurePosixPath(path).name}:{query.name}"
        table.add_row("[dim]query[/]", escape(run), escape(query.description or ""))
    out.print(table)


_FACTS = (
    *("kind", "persisted", "build_id", "malloy_build_id", "group", "owners", "tags"),
    *("freshness", "time_column", "defaults", "reads", "selects", "readers", "external"),
)


def _selects(project: Project, source: Source) -> list[str]:
    """Return the columns that a function selects from its inputs; none for inputs it gets whole."""
    frames = source.function.frames if source.function else ()
    return [
        f"{project.by_id[read].key}.{column}"
        for parameter, read in zip(frames, source.bindings, strict=bool(frames))
        for column in parameter.columns or ()
    ]


def _document(invocation: Invocation, source: Source) -> dict[str, Any]:
    project, ledger, settings = invocation.project, invocation.ledger, invocation.settings
    snapshot = ledger.manifests.find_snapshot(
        settings.environment, source.build_id, reads=settings.reads
    )
    annotation = source.annotation
    return {
        **source_json(source),
        "columns": _columns(project, source, snapshot),
        "owners": list(annotation.owners),
        "tags": dict(annotation.tags),
        "group": source.group,
        "time_column": annotation.time_column,
        "defaults": annotation.defaults,
        "freshness": _freshness(annotation.freshness),
        "malloy_build_id": next(iter(source.malloy_ids), None),
        "definition": source.query.text if source.query else None,
        "selects": _selects(project, source),
        "readers": list(project.readers[source.source_id]),
        "tables": [_table(settings, snapshot)] if snapshot else [],
        "builds": [_build(b) for b in ledger.builds.fetch(source_id=source.source_id, limit=5)],
        "checks": _checks(invocation, source, snapshot),
        "wants": [],
        **({"external": held_json(invocation, source)} if source.kind is Kind.EXTERNAL else {}),
    }


def _columns(project: Project, source: Source, snapshot: Snapshot | None) -> list[dict[str, Any]]:
    origins: dict[str, list[str]] = {}
    for edge in source.lineage:
        upstream = project.by_id[edge.upstream.source_id]
        origins.setdefault(edge.column, []).append(f"{upstream.key}.{edge.upstream.column}")
    types = {c.name: c.type for c in snapshot.columns} if snapshot else {}
    # The columns of a function are known once it has been computed.
    columns = source.columns or (snapshot.columns if snapshot else ())
    return [
        {
            "name": c.name,
            "type": types.get(c.name, c.type),
            "description": c.description,
            "from": origins.get(c.name, []),
        }
        for c in columns
    ]


def _freshness(freshness: Freshness | None) -> dict[str, Any] | None:
    if freshness is None:
        return None
    values = {
        "window_seconds": freshness.window_s,
        "warn_seconds": freshness.warn_s,
        "fallback": freshness.fallback,
    }
    return {name: value for name, value in values.items() if value is not None}


def _build(build: Build) -> dict[str, Any]:
    return {
        "at": build.started_at.isoformat(),
        "environment": build.environment,
        "action": build.action,
        "state": build.state,
        "build_id": build.build_id,
        "rows": build.snapshot.rows if build.snapshot else None,
        "seconds": build.seconds,
        "maintenance": build.maintenance,
        "rows_written": build.written.rows if build.written else None,
        "run_id": build.run_id,
        "error": build.error,
        "effort": asdict(build.effort) if build.effort else None,
    }


def _checks(
    invocation: Invocation, source: Source, snapshot: Snapshot | None
) -> list[dict[str, Any]]:
    """Return the checks of a source and of the views that it reads, with their last results."""
    project, ledger = invocation.project, invocation.ledger
    checks = source.checks_for_readers if source.is_inline else source.checks
    if source.persisted:
        checks += project.checks_of_views(source)
    checked = [(source, snapshot)] if snapshot else []
    if source.is_inline and checks:
        checked = _readers_built(invocation, source)
    results: dict[str, CheckResult] = {}
    for reader, table in checked:
        environments = invocation.settings.environments
        last = ledger.manifests.fetch_checks(reader.source_id, table, *environments)
        last = ledger.builds.fetch_checks(table.build_uid) if last is None else last
        results |= {r.name: r for r in last}
    return [
        check_json(check, results.get(check.name), check.name.removeprefix(f"{source.key}:"))
        for check in checks
    ]


def _readers_built(invocation: Invocation, view: Source) -> list[tuple[Source, Snapshot]]:
    """Return the sources that are computed from a view with their tables, the latest last."""
    project, manifest = invocation.project, invocation.observer.published()
    readers = (s for s in project.persisted if view in project.views(s))
    tables = [(s, manifest[s.build_id]) for s in readers if s.build_id in manifest]
    return sorted(tables, key=lambda pair: pair[1].built_at)


def _table(settings: Settings, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "environment": settings.environment,
        "table": snapshot.table,
        "version": snapshot.version,
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "built_at": snapshot.built_at.isoformat(),
        "current_at": snapshot.known_at.isoformat(),
        "watermark": snapshot.watermark,
        "older_code": older_code(snapshot),
        "as_of": {v.raw: v.version for v in snapshot.as_of},
    }
