"""Commands that begin a project: init, raw."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from persist_assets.cli.application import Invocation, command, err, out, print_json
from persist_assets.core.errors import SettingsError, StorageError
from persist_assets.core.object_stores import scheme_of
from persist_assets.operations.starting import LANGUAGES, Language, begin, declarations
from persist_assets.storage.inspection import Inspected, inspect_data


@command("init")
def init(
    invocation: Invocation,
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="A new directory.")] = Path(),
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="DATA", help="Existing data to declare; default: sample data."
        ),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(
            "--language",
            metavar="LANGUAGE",
            help="The languages of the first sources: sql, malloy or python.",
        ),
    ] = None,
) -> None:
    """Create a project that can be built at once."""
    chosen: list[Language] = [n for n in LANGUAGES if n in (languages or ["sql"])]
    unknown = {*(languages or ())} - {*LANGUAGES}
    if unknown:
        message = f"unknown language `{min(unknown)}`"
        raise SettingsError(message, hint=f"known languages: {', '.join(LANGUAGES)}")
    paths, first = begin(directory, chosen, _inspected(directory.resolve(), data or ()))
    if invocation.as_json:
        print_json({"directory": str(directory.resolve()), "files": paths})
        return
    for path in paths:
        out.print(f"wrote {directory / path}", markup=False, soft_wrap=True)
    steps = [f'persist build && persist query "SELECT * FROM {first}" --limit 5']
    if directory.resolve() != Path.cwd().resolve():
        steps.insert(0, f"cd {os.path.relpath(directory)}")
    steps.append("dagster dev -f definitions.py")
    out.print("\nnext:", *steps, sep="\n  ", markup=False, soft_wrap=True)


@command("raw")
def raw(
    invocation: Invocation,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Files, directories or URIs of Parquet, Delta, CSV or JSON data.",
        ),
    ],
) -> None:
    """Print the CREATE TABLE statements that declare existing data as raw tables."""
    try:
        root = invocation.root
    except SettingsError:
        root = Path.cwd()  # the project comes later
    text = declarations(_inspected(root.resolve(), data))
    if invocation.as_json:
        print_json({"statements": text})
        return
    out.print(text, markup=False, soft_wrap=True, end="")


def _inspected(root: Path, data: Iterable[str]) -> dict[str, Inspected]:
    """Return the inspected data by its location, as a declaration states it."""
    by_location: dict[str, Inspected] = {}
    for place in data:
        location = place if scheme_of(place) else str(Path(place).resolve())
        try:
            inspected = inspect_data(location)
        except StorageError as error:
            hint = error.hint and error.hint.replace(location, place.rstrip("/"))
            raise StorageError(error.message, hint=hint) from error
        file = place
        if inspected.file not in ("", location):
            file = inspected.file.removeprefix(f"{Path.cwd()}/")
        if inspected.is_partial:
            which = f"part of the data, in {file}" if file != place else "part of the data"
            err.print(f"{place}: types were inferred from {which}", markup=False, soft_wrap=True)
        if inspected.format == "csv" and "header" not in dict(inspected.options):
            err.print(f"{file}: no header was recognized: columns are _c0, _c1, …", markup=False)
        inside = not scheme_of(place) and Path(location).is_relative_to(root)
        shown = Path(location).relative_to(root).as_posix() if inside else location
        by_location[shown] = inspected
    return by_location
