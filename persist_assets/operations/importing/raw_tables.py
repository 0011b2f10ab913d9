"""Seeds and declared tables of other tools → raw tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.partitions import literal_of
from persist_assets.operations.importing.drafts import Draft
from persist_assets.operations.starting import declaration, written_name
from persist_assets.storage.inspection import Inspected, inspect_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from persist_assets.operations.importing.drafts import Drafts, Origin

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json"}


def seed(
    drafts: Drafts,
    origin: Origin,
    name: str,
    place: Path,
    types: Mapping[str, str],
    separator: str | None = None,
) -> Draft | None:
    """Add the raw table of a CSV file, which is copied; return its draft.

    Its first line has the names of its columns.

    Parameters
    ----------
    place
        The file.
    types
        Spark's types of columns that the project declares, by name.
    separator
        The separator that the project declares; None: none.
    """
    try:
        inspected = inspect_data(str(place.resolve()), separator=separator, has_header=True)
        content = place.read_bytes()
    except (StorageError, OSError) as error:
        drafts.skip(origin, f"its file cannot be read: {error}")
        return None
    if inspected.format != "csv":
        drafts.skip(origin, f"its file is {inspected.format}, not CSV")
        return None
    lowered = {column.lower(): kind for column, kind in types.items()}
    columns = tuple(replace(c, type=lowered.get(c.name.lower(), c.type)) for c in inspected.columns)
    location = f"data/{name}.csv"
    statement = declaration(name, location, replace(inspected, columns=columns))
    drafts.copies[location] = content
    draft = Draft(origin, name, f"sources/raw/{name}.sql", statement, is_raw=True)
    if inspected.is_partial:
        draft.notes.append("types were inferred from part of the data")
    drafts.sources[name] = draft
    return draft


def raw_table(
    drafts: Drafts, origin: Origin, name: str, columns: Mapping[str, str], location: str | None
) -> Draft:
    """Add the raw table of data that is elsewhere; return its draft.

    Parameters
    ----------
    columns
        Spark's types by column; empty: they are not known.
    location
        The location of the data, if the project has it; otherwise the user fills it in.
    """
    place = location or f"data/{name}"
    form = next((f for suffix, f in _FORMATS.items() if place.endswith(suffix)), "delta")
    options = (("header", "true"),) if form == "csv" else ()
    if columns:
        known = tuple(Column(column, kind) for column, kind in columns.items())
        statement = declaration(name, place, Inspected(form, known, options))
    else:
        shown = " OPTIONS (header 'true')" if options else ""
        statement = (
            f"CREATE TABLE {written_name(name)} USING {form}{shown} LOCATION {literal_of(place)};\n"
        )
    if location is None:
        known_columns = "" if columns else ", and columns if it is not a Delta table"
        drafts.to_fill_in[name] = f"the format and LOCATION of the data{known_columns}"
    draft = Draft(origin, name, f"sources/raw/{name}.sql", statement, is_raw=True)
    drafts.sources[name] = draft
    return draft
