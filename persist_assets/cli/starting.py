"""Commands that begin a project: raw."""

from pathlib import Path
from typing import Annotated

import typer

from persist_assets.cli.application import Invocation, command, err, out, print_json
from persist_assets.core.errors import SettingsError
from persist_assets.core.object_stores import scheme_of
from persist_assets.operations.starting import declaration, table_name
from persist_assets.storage.inspection import inspect_data


@command("raw")
def raw(
    invocation: Invocation,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Files, directories or URIs of Parquet, Delta, CSV or JSON data.",
        ),
    ],
) -> None:
    """Print the CREATE TABLE statements that declare existing data as raw tables."""
    statements: dict[str, str] = {}
    for place in places:
        shown, location = _location(invocation, place)
        data = inspect_data(location)
        name = base = table_name(shown)
        number = 1
        while name in statements:
            number += 1
            name = f"{base}_{number}"
        statements[name] = declaration(name, shown, data)
        if data.is_partial:
            err.print(f"{place}: the types are those of its beginning; check them")
    if invocation.as_json:
        print_json({"tables": [{"name": n, "statement": s} for n, s in statements.items()]})
        return
    out.print("\n".join(statements.values()), markup=False, soft_wrap=True, end="")


def _location(invocation: Invocation, place: str) -> tuple[str, str]:
    """Return a location as a declaration states it, and as it is reached."""
    if scheme_of(place):
        return place, place
    path = Path(place).resolve()
    try:
        root = invocation.root.resolve()
    except SettingsError:
        root = Path.cwd().resolve()  # the project comes later
    inside = path.is_relative_to(root)
    return (path.relative_to(root).as_posix() if inside else str(path)), str(path)
