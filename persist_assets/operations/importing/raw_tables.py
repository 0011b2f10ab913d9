"""Seeds and declared tables of other tools → raw tables."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.partitions import literal_of
from persist_assets.operations.importing.drafts import Draft
from persist_assets.operations.starting import declaration, written_name
from persist_assets.storage.inspection import Inspected, inspect_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from persist_assets.operations.importing.drafts import Drafts, Origin

_PANDAS_NULLS = frozenset(
    """
    #N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan null
    """.split()
) | {"#N/A N/A"}
"""What SQLMesh, by pandas, reads as NULL; dbt reads `null` so, in any case."""
_NUMBER = re.compile(r"[-+]?[$€£]?[\d,]*\.?\d+%?")

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
    inspected = replace(inspected, columns=columns)
    text = content.decode("utf-8-sig", "replace")
    try:
        cells = _cells(text, inspected)
    except csv.Error as error:
        drafts.skip(origin, f"its file cannot be read: {error}")
        return None
    nulls = sorted({cell for column in cells for cell in column if _is_null(cell, drafts.tool)})
    option = dict(inspected.options).get("nullValue")
    if option is None and len(nulls) == 1 and '""' not in text:  # in quotes: no longer NULL
        option = nulls[0]
        options = sorted([*inspected.options, ("nullValue", option)])
        inspected = replace(inspected, options=tuple(options))
    statement = declaration(name, location, inspected)
    drafts.copies[location] = content
    draft = Draft(origin, name, f"sources/raw/{name}.sql", statement, is_raw=True)
    if inspected.is_partial:
        draft.notes.append("types were inferred from part of the data")
    known = frozenset[str]() if drafts.tool == "SQLMesh" else frozenset(lowered)
    draft.notes += _notes(drafts.tool, inspected, cells, [n for n in nulls if n != option], known)
    drafts.sources[name] = draft
    return draft


def _cells(text: str, inspected: Inspected) -> list[list[str]]:
    """Return the cells of each column of a CSV text that are not empty.

    Raises
    ------
    csv.Error
        A cell is too long.
    """
    separator = dict(inspected.options).get("sep", ",")
    cells: list[list[str]] = [[] for _ in inspected.columns]
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    next(rows, None)
    for row in rows:
        for column, cell in zip(cells, row, strict=False):
            if cell:
                column.append(cell)
    return cells


def _is_null(cell: str, tool: str) -> bool:
    return cell in _PANDAS_NULLS if tool == "SQLMesh" else cell.strip().lower() == "null"


def _notes(
    tool: str, seed: Inspected, cells: list[list[str]], nulls: list[str], known: frozenset[str]
) -> Iterator[str]:
    """Yield notes about cells that the other tool may read otherwise.

    Parameters
    ----------
    nulls
        Texts in cells that are NULL for the tool, but not here.
    known
        Columns whose types the tool does not infer, in lower case.
    """
    if nulls:
        shown = ", ".join(f"`{null}`" for null in nulls)
        yield f"check cells with {shown}: they are NULL in {tool}, and texts here"
    option = dict(seed.options).get("nullValue")
    if option is not None and not _is_null(option, tool):
        yield f"check cells with `{option}`: they are NULL here, and may be texts in {tool}"
    for column, values in zip(seed.columns, cells, strict=True):
        texts = [v for v in values if not _is_null(v, tool)]
        is_inferred = column.type == "string" and column.name.lower() not in known
        if is_inferred and texts and all(_NUMBER.fullmatch(v.strip()) for v in texts):
            yield f"check `{column.name}`: {tool} may read its texts as numbers"


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
