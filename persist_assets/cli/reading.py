"""Commands that read rows: diff, verify and query."""

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.markup import escape
from rich.table import Table

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    malloy_path,
    out,
    print_json,
    quiet,
    table_of,
)
from persist_assets.cli.plan import changes_tree
from persist_assets.compiler.load import sound
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.core.errors import (
    PersistError,
    SettingsError,
)
from persist_assets.core.model.annotations import Fallback
from persist_assets.core.model.queries import Query, SourceID
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.engine.data_diff import ChangedRow, NotCompared, RowsDiffer, compare_tables
from persist_assets.engine.python_functions import place_of
from persist_assets.engine.row_values import json_value
from persist_assets.external.coverage import short
from persist_assets.external.read_routing import Route
from persist_assets.operations.revisions import find_places
from persist_assets.planning.diff import Change, compare
from persist_assets.planning.render import Statement

if TYPE_CHECKING:
    from persist_assets.operations.verify import Verification

# --------------------------------------------------------------------------------------------- diff

PlaceArgument = Annotated[
    str, typer.Argument(help="An environment, a git ref, a BuildID, or . for the files.")
]


@command("diff")
def diff(
    invocation: Invocation,
    before: PlaceArgument,
    after: PlaceArgument,
    selection: SelectArgument = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Also compare the rows of both tables.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Columns that identify rows: a,b. Default: whole rows."),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="The number of rows of each kind to show.")
    ] = 5,
) -> None:
    """Compare the sources of two environments or revisions, down to expressions and rows."""
    if key and not rows:
        raise SettingsError("`--key` requires --rows", hint="add --rows")
    places = find_places(invocation.settings, invocation.project, invocation.ledger, before, after)
    is_restricted = selection or invocation.exclude
    selected = set(invocation.select(selection)) if is_restricted else None
    changes = [
        change
        for change in compare(places[0].standings, places[1].standings)
        if selected is None or change.source_id in selected
    ]
    compared: dict[SourceID, RowsDiffer | NotCompared] = {}
    if rows:
        tables = [p.tables for p in places]
        if tables[0] is None or tables[1] is None:
            raise SettingsError(
                f"`{before if tables[0] is None else after}` refers to files, which have no rows",
                hint="--rows compares environments and BuildIDs: build the files in an environment",
            )
        with quiet(invocation):
            changes, compared = compare_tables(
                invocation.reader().load_snapshot,
                changes,
                (tables[0], tables[1]),
                key=_split(key),
                sample=sample,
                names=(before, after),
            )
    changes = [c for c in changes if c.change != "same"]
    if invocation.as_json:
        documents = [_change_json(c) | rows_json(compared.get(c.source_id)) for c in changes]
        print_json({"sources": documents})
        return
    if not changes:
        out.print(f"no differences between {escape(before)} and {escape(after)}")
        return
    out.print(changes_tree(f"{before} → {after}", changes))
    for source_id, difference in compared.items():
        _print_rows_differ(source_id, difference)


def _split(key: Sequence[str] | None) -> list[str]:
    return [name.strip() for names in key or () for name in names.split(",") if name.strip()]


def rows_json(difference: RowsDiffer | NotCompared | None) -> dict[str, Any]:
    """Return the differing rows of a source as JSON."""
    if difference is None:
        return {}
    if isinstance(difference, NotCompared):
        return {"rows_note": difference.reason}
    return {
        "rows": {
            "added": difference.added,
            "removed": difference.removed,
            "changed": difference.changed,
            "before": difference.before,
            "after": difference.after,
        },
        "key": list(difference.key),
        "columns_changed": dict(difference.columns),
        "columns_not_compared": [
            {"column": u.column, "before": u.before, "after": u.after}
            for u in difference.uncompared
        ],
        "samples": {
            "added": [json_value(row) for row in difference.added_rows],
            "removed": [json_value(row) for row in difference.removed_rows],
            "changed": [
                {
                    "key": json_value(r.key),
                    "before": json_value(r.before),
                    "after": json_value(r.after),
                }
                for r in difference.changed_rows
            ],
        },
    }


def _print_rows_differ(source_id: SourceID, difference: RowsDiffer | NotCompared) -> None:
    """Print how rows differ: the counts, and below them sample rows before and after."""
    out.print()
    if isinstance(difference, NotCompared):
        out.print(f"[bold]{escape(source_id)}[/] rows not compared: {escape(difference.reason)}")
        return
    parts = [f"[green]+{difference.added} added[/]", f"[red]-{difference.removed} removed[/]"]
    if difference.changed is not None:
        parts.append(f"[yellow]~{difference.changed} changed[/]")
    how = f" by {', '.join(difference.key)}" if difference.key else ""
    title = (
        f"[bold]{escape(source_id)}[/] {difference.before} → {difference.after} rows{escape(how)}"
    )
    out.print(f"{title}: {', '.join(parts)}")
    columns = [f"{escape(name)} ({n})" for name, n in difference.columns.items() if n]
    if columns:
        out.print(f"  changed columns: {', '.join(columns)}")
    for u in difference.uncompared:
        kinds = f"{u.before or 'missing'} → {u.after or 'missing'}"
        out.print(f"  not compared: {escape(u.column)} [dim]{escape(kinds)}[/]")
    changed = [("~", "yellow", _both(row)) for row in difference.changed_rows]
    sampled = [*changed, *_sides(difference.removed_rows, difference.added_rows)]
    if sampled:
        _print_samples(sampled, difference.key)


def print_sides(removed: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of two sides, those of the first after a minus and the others after a plus."""
    _print_samples(_sides(removed, added))


def _sides(
    removed: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return rows with their marks and colours."""
    return [*(("-", "red", row) for row in removed), *(("+", "green", row) for row in added)]


def _print_samples(
    sampled: Sequence[tuple[str, str, Mapping[str, Any]]], key: Sequence[str] = ()
) -> None:
    """Print rows, each after its mark in a colour; the key's columns come first."""
    sampled_names = dict.fromkeys(name for _, _, row in sampled for name in row)
    names = [*key, *(n for n in sampled_names if n not in key)]
    table = Table("", *(escape(n) for n in names), box=None, pad_edge=False)
    for mark, colour, row in sampled:
        cells = [_change_cell(row[n]) if n in row else "" for n in names]
        table.add_row(f"[{colour}]{mark}[/]", *cells)
    out.print(table)


def _both(row: ChangedRow) -> dict[str, Any]:
    """Return the cells of a changed row; those that differ are pairs of before and after."""
    return row.key | {n: _Pair(v, row.after[n]) for n, v in row.before.items()}


@dataclass(frozen=True)
class _Pair:
    before: Any
    after: Any


def _change_cell(value: Any) -> str:
    """Return a cell for people who look for differences: nothing is rounded."""
    if isinstance(value, _Pair):
        return f"{_change_cell(value.before)} [yellow]→[/] {_change_cell(value.after)}"
    return _cell_markup(json_value(value))


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "source_id": change.source_id,
        "change": change.change,
        "columns": list(change.columns),
        "rows_changed": change.rows_changed,
        "expressions": [
            {"column": e.column, "before": e.before, "after": e.after} for e in change.expressions
        ],
        "because": list(change.because),
        "rows": None,
    }


# ------------------------------------------------------------------------------------------- verify

_COLOURS = {
    "equal": "green",
    "rounding": "green",
    "different": "red",
    "skipped": "yellow",
    "failed": "red",
}


@command("verify")
def verify(
    invocation: Invocation,
    selection: SelectArgument = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="The number of rows of each side to show.")
    ] = 5,
) -> None:
    """Recompute sources from the data of their tables and compare the rows. Changes nothing."""
    from persist_assets.operations.verify import verify as verify_each

    selected = invocation.select(selection)
    results: list[Verification] = []
    with quiet(invocation), _locating_errors(invocation):
        verifications = verify_each(
            invocation.settings,
            invocation.project,
            invocation.ledger,
            invocation.engine,
            selected,
            sample=sample,
        )
        for result in verifications:
            results.append(result)
            progress = f"{len(results)} of {len(selected)}: {result.source.key} {result.status}"
            err.print(f"[dim]{escape(progress)}[/]")
    if invocation.as_json:
        from persist_assets.operations.documents.verifications import VerificationsDocument

        document = VerificationsDocument.of(invocation.settings.environment, results)
        print_json(document.as_json())
    else:
        _print_verifications(results)
    if any(r.status == "different" for r in results):
        raise typer.Exit(1)
    errors = [r.error for r in results if r.error is not None]
    if errors:
        raise typer.Exit(exit_code(type(errors[0])))


def _print_verifications(results: "Sequence[Verification]") -> None:
    """Print one line for each source, and the differing rows below."""
    if not results:
        out.print("no sources to verify")
        return
    table = table_of("source", "result", "rows", "note")
    for result in results:
        colour = _COLOURS[result.status]
        rows = "" if result.snapshot is None else f"{result.snapshot.rows:,}"
        table.add_row(
            escape(result.source.source_id),
            f"[{colour}]{result.status}[/]",
            rows,
            escape("; ".join(_notes(result))),
        )
    out.print(table)
    for result in results:
        difference = result.difference
        if difference is None or not (difference.removed_rows or difference.added_rows):
            continue
        out.print()
        title = f"[bold]{escape(result.source.source_id)}[/]"
        out.print(f"{title}: [red]-[/] only in the table, [green]+[/] only computed")
        print_sides(difference.removed_rows, difference.added_rows)
    counts = Counter(result.status for result in results)
    summary = ", ".join(f"{counts[s]} {s}" for s in _COLOURS if counts[s])
    out.print(f"\n{len(results)} source{'s' * (len(results) != 1)}: {summary}")


def _notes(result: "Verification") -> list[str]:
    """Return the details of a result in words."""
    notes: list[str] = []
    difference = result.difference
    if difference is not None and difference.rounding is not None:
        notes.append(f"equal up to rounding: by {difference.rounding:.1e} at most")
    elif difference is not None and result.status == "different":
        counts = f"{difference.removed:,} only in the table, {difference.added:,} only computed"
        notes.append(f"rows: {counts}")
    if difference is not None and difference.columns:
        notes.append(f"columns: {', '.join(f'{c} ({n})' for c, n in difference.columns.items())}")
    for u in difference.uncompared if difference else ():
        kinds = f"{u.before or 'missing'} in the table, {u.after or 'missing'} computed"
        notes.append(f"column {u.column}: {kinds}")
    return notes + [text for text in (result.reason, result.hint) if text is not None]


# -------------------------------------------------------------------------------------------- query


@command("query")
def query(
    invocation: Invocation,
    text: Annotated[
        str, typer.Argument(metavar="SQL|FILE.malloy[:NAME]", help="A query over sources.")
    ],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="MALLOY", help="A Malloy query over FILE.malloy."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The maximum number of rows.")] = 100,
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    only_sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL without running it.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Do not compute persisted sources inline.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Read external tables only from their copies.")
    ] = False,
    fallback: Annotated[
        str | None,
        typer.Option("--fallback", help="What to do with stale tables: live, stale_ok or fail."),
    ] = None,
) -> None:
    """Run a query: built sources are read from their tables, the rest is computed."""
    invocation.keep_going = True  # errors in sources that the query does not read do not matter
    if form not in ("table", "json", "csv"):
        raise SettingsError(f"unknown format `{form}`", hint="use table, json or csv")
    if strict:
        invocation.settings = replace(invocation.settings, strict=True)
    parsed, language = _parse(invocation, text, run)
    bindings = invocation.loaded.bind(parsed, language)  # its errors are printed once
    reader = invocation.reader(fallback=_fallback(fallback), local=local)
    manifest = reader.observer.published()
    needs = invocation.loaded.needs_of(parsed, bindings)
    statement, read = reader.statement(parsed, bindings, manifest, needs=needs)
    route = _route(invocation, statement, read)
    if only_sql:
        if invocation.as_json:
            print_json({"sql": statement.sql, "route": route})
        else:
            out.print(statement.sql, markup=False, soft_wrap=True)
        return
    with quiet(invocation), _locating_errors(invocation):
        frame = reader.load(statement, read)
        collected = invocation.engine.collect(frame, limit + 1)
        columns = [{"name": f.name, "type": f.dataType.simpleString()} for f in frame.schema.fields]
    rows = [[json_value(v) for v in row] for row in collected[:limit]]
    truncated = len(collected) > limit
    if invocation.as_json or form == "json":
        print_json({"columns": columns, "rows": rows, "truncated": truncated, "route": route})
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow([c["name"] for c in columns])
        writer.writerows(rows)
    else:
        _print_rows(columns, rows, truncated, route)


def _fallback(name: str | None) -> Fallback | None:
    values: dict[str, Fallback] = {str(value): value for value in get_args(Fallback)}
    if name is not None and name not in values:
        raise SettingsError(f"unknown fallback `{name}`", hint=f"known values: {', '.join(values)}")
    return None if name is None else values[name]


@contextmanager
def _locating_errors(invocation: Invocation) -> Generator[None]:
    """Add the place in the project's code to errors within the block."""
    try:
        yield
    except PersistError as error:
        error.location = error.location or place_of(error, invocation.settings.root)
        raise


def _parse(invocation: Invocation, text: str, run: str | None) -> tuple[Query, str | None]:
    """Return the query, and its language if it is not SQL."""
    from persist_assets.core import languages

    file, colon, name = text.partition(f"{MALLOY}:")
    if not colon and not text.endswith(MALLOY):
        if run is not None:
            raise SettingsError("--run needs a Malloy file before it", hint="FILE.malloy")
        invocation.texts["query"] = text
        return invocation.loaded.parse(text), None
    path = malloy_path(invocation.settings, (file + MALLOY) if colon else text)
    if (run is None) == (not colon):
        message = (
            "name a query or use --run" if run is None else "use either a name or --run, not both"
        )
        names = ", ".join(q.name for q in invocation.project.queries if q.location.path == path)
        hint = f"queries of {path}: {names or 'none'}; or --run 'run: NAME -> {{ … }}'"
        raise SettingsError(message, hint=hint)
    query = invocation.loaded.query(path, name=name or None, text=run)
    invocation.project = sound(invocation.loaded.project)
    return query, languages.MALLOY


def _route(
    invocation: Invocation, statement: Statement, read: Mapping[SourceID, Snapshot | Route]
) -> list[dict[str, Any]]:
    """Return how each source of a statement is read, as JSON."""
    by_id = invocation.project.by_id
    external = [s for s, origin in read.items() if isinstance(origin, Route)]
    route: list[dict[str, Any]] = []
    for source_id in dict.fromkeys((*statement.views, *external, *statement.inlined)):
        origin = read.get(source_id)
        row: dict[str, Any] = {"source_id": source_id}
        if isinstance(origin, Route):
            predicate = origin.copy.predicate if origin.copy else origin.predicate
            row |= {"from": origin.origin, "version": origin.version, "stale": False}
            row |= {"predicate": predicate, "columns": list(origin.columns)}
        elif origin is not None:
            stale = invocation.observer.is_expired(by_id[source_id], origin)
            row |= {"from": "table", "version": origin.version, "stale": stale}
        else:
            is_inline = source_id in statement.inlined or by_id[source_id].query
            name = "inline" if is_inline else "raw"
            row |= {"from": name, "version": None, "stale": False}
        route.append(row)
    return route


def _cell_markup(value: Any) -> str:
    """Return a cell as it is shown to people."""
    return "[dim]NULL[/]" if value is None else escape(_plain(value))


def _plain(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case dict():
            within = cast("dict[str, Any]", value).items()
            return f"{{{', '.join(f'{k}: {_plain(v)}' for k, v in within)}}}"
        case list():
            return f"[{', '.join(_plain(v) for v in cast('list[Any]', value))}]"
        case _:
            return str(value)


def _print_rows(
    columns: Sequence[Mapping[str, str]],
    rows: Sequence[Sequence[Any]],
    truncated: bool,
    route: Sequence[Mapping[str, Any]],
) -> None:
    table = Table(box=None, pad_edge=False)
    numeric = ("int", "bigint", "double", "float", "decimal", "smallint", "tinyint")
    for column in columns:
        right = column["type"].startswith(numeric)
        table.add_column(escape(column["name"]), justify="right" if right else "left")
    for row in rows:
        table.add_row(*(_cell_markup(v) for v in row))
    out.print(table)
    origins = [
        f"{r['source_id'].partition('@')[0]} from its {r['from']}"
        for r in route
        if r["from"] == "table"
    ]
    origins += [
        f"{r['source_id'].partition('@')[0]} inline" for r in route if r["from"] == "inline"
    ]
    for r in route:
        name = r["source_id"].partition("@")[0]
        if r["from"] == "local":
            origins.append(f"{name} from its local copy, version {short(r['version'])}")
        elif r["from"] == "forwarded":
            origins.append(f"{name} forwarded to the external table, version {short(r['version'])}")
    n = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    more = ", more are available" if truncated else ""
    err.print(f"[dim]{'; '.join([n + more, *origins])}[/]")
