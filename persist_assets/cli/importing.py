"""Commands that carry projects of other tools: import."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from persist_assets.cli.application import Invocation, app, command, err, out, print_json, table_of
from persist_assets.core.errors import SettingsError
from persist_assets.operations.importing.drafts import Drafts
from persist_assets.operations.importing.writing import Imported, check_target, write

import_app = typer.Typer(help="Projects of dbt and SQLMesh, as new projects.", no_args_is_help=True)
app.add_typer(import_app, name="import")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The project to read; it is not changed.")
]
IntoArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[INTO]",
        help="A new directory; default: one named like DIR, in the current directory.",
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIALECT", help="The SQL dialect of its models; default: the one it declares."
    ),
]


@command("dbt", on=import_app)
def import_dbt(
    invocation: Invocation,
    directory: DirectoryArgument,
    into: IntoArgument = None,
    dialect: DialectOption = None,
) -> None:
    """Create a project from a dbt project, and list everything that it does not import."""
    from persist_assets.operations.importing import dbt

    place = _place(directory, into, "dbt")
    _report(invocation, place, dbt.import_dbt(directory.resolve(), dialect))


@command("sqlmesh", on=import_app)
def import_sqlmesh(
    invocation: Invocation,
    directory: DirectoryArgument,
    into: IntoArgument = None,
    dialect: DialectOption = None,
) -> None:
    """Create a project from a SQLMesh project, and list everything that it does not import."""
    from persist_assets.operations.importing import sqlmesh

    place = _place(directory, into, "sqlmesh")
    _report(invocation, place, sqlmesh.import_sqlmesh(directory.resolve(), dialect))


def _place(directory: Path, into: Path | None, tool: str) -> Path:
    """Return the new directory, if it can be written."""
    if not directory.is_dir():
        hint = f"name the directory of the {tool} project"
        raise SettingsError(f"there is no directory {directory}", hint=hint)
    place = into if into is not None else Path(directory.resolve().name)
    if place.resolve() == directory.resolve():
        raise SettingsError(
            f"{place} is the {tool} project itself",
            hint=f"name a new directory: persist import {tool} {directory} NEW",
        )
    check_target(place)
    return place


def _report(invocation: Invocation, place: Path, drafts: Drafts) -> None:
    """Write the new project, and print what was imported."""
    imported = write(drafts, place.resolve())
    if invocation.as_json:
        print_json(_document(place, drafts, imported))
        return
    carried = Counter(c.origin.kind for c in imported.carried)
    skipped = Counter(entry.origin.kind for entry in imported.not_carried)
    table = table_of("", "imported", "not imported")
    for kind in dict.fromkeys((*carried, *skipped)):
        table.add_row(kind, str(carried[kind]), str(skipped[kind]))
    out.print(table)
    if drafts.dialect_from:
        line = f"SQL dialect: {drafts.dialect} ({drafts.dialect_from})"
        out.print(line, markup=False, soft_wrap=True)
    _print_lists(imported)
    steps = [f"cd {place}", "persist check", "persist check --spark", "persist build"]
    out.print("\nnext:", *steps, sep="\n  ", markup=False, soft_wrap=True)


def _print_lists(imported: Imported) -> None:
    """Print notes, places to fill in, and objects that are not imported, on stderr."""
    for entry in imported.carried:
        for note in entry.notes:
            line = f"{entry.origin.path}:{entry.origin.line}: {entry.origin.kind} "
            err.print(f"{line}{entry.origin.name}: {note}", markup=False, soft_wrap=True)
    if imported.to_fill_in:
        err.print("\nfill in:")
    for raw in imported.to_fill_in:
        err.print(
            f"  {raw.path}:{raw.line}: {raw.name}: {raw.missing}", markup=False, soft_wrap=True
        )
    if imported.not_carried:
        err.print("\nnot imported:")
    for entry in imported.not_carried:
        where = (
            f"  {entry.origin.path}:{entry.origin.line}: {entry.origin.kind} {entry.origin.name}"
        )
        hint = f" ({entry.hint})" if entry.hint else ""
        err.print(f"{where}: {entry.reason}{hint}", markup=False, soft_wrap=True)


def _document(place: Path, drafts: Drafts, imported: Imported) -> dict[str, object]:
    """Return the outcome of an import as JSON."""
    return {
        "directory": str(place.resolve()),
        "dialect": drafts.dialect,
        "files": imported.files,
        "carried": [
            {
                "kind": c.origin.kind,
                "name": c.origin.name,
                "path": c.origin.path,
                "line": c.origin.line,
                "into": c.path,
                "notes": [*c.notes],
            }
            for c in imported.carried
        ],
        "not_carried": [
            {
                "kind": entry.origin.kind,
                "name": entry.origin.name,
                "path": entry.origin.path,
                "line": entry.origin.line,
                "reason": entry.reason,
                "hint": entry.hint,
            }
            for entry in imported.not_carried
        ],
        "to_fill_in": [
            {"name": r.name, "path": r.path, "line": r.line, "what": r.missing}
            for r in imported.to_fill_in
        ],
    }
