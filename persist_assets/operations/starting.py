"""The start of a project: its first files, and declarations of existing data.

data that exists ─► its declarations ──► sources/raw.sql ─┐
sample data and sources, or a source over that data ──────┴─► the files of a project
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from sqlglot.tokenizer_core import TokenType

from persist_assets._paths import TEMPLATE
from persist_assets.core.dialect import quote, tokenize
from persist_assets.core.errors import SettingsError
from persist_assets.core.object_stores import is_full
from persist_assets.core.partitions import literal_of
from persist_assets.core.spark_types import field_name
from persist_assets.storage.inspection import SUFFIXES, inspect_data

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from persist_assets.core.model.columns import Column
    from persist_assets.storage.inspection import Inspected

Language = Literal["sql", "malloy", "python"]
LANGUAGES: tuple[Language, ...] = ("sql", "malloy", "python")
_SUFFIXES: Mapping[Language, str] = {"sql": ".sql", "malloy": ".malloy", "python": ".py"}
_SAMPLES: Mapping[Language, str] = {
    "sql": "daily_delays",
    "malloy": "destinations",
    "python": "carrier_delays",
}
"""The name of the source over the sample data in each language."""
_SAMPLE_TEST = "tests/delays.yml"
_FIRSTS: Mapping[Language, str] = {
    "sql": "rows_by",
    "malloy": "groups_by",
    "python": "counts_by",
}
"""The prefix of the name of the source over existing data, in each language."""
_COMPONENT_FILES = ("persist.toml", ".gitignore")
PROJECT_FILES = (*_COMPONENT_FILES, "definitions.py", ".github/workflows/persist.yml")
"""The files of the template that each new project has."""
_SAMPLE_DATA = ("data/flights.csv", "data/airlines.csv", "data/LICENSE.txt")
_AS_KEYS = ("string", "date", "boolean", "int", "bigint", "smallint", "tinyint")
"""Types of columns by which the first source groups, the best one first."""

_SUFFIX = re.compile(rf"\.(?:{'|'.join(SUFFIXES)})(?:\.\w+)?$", re.I)
_LINE = 100
"""Columns of a declaration are on one line if it has at most so many characters."""


def declaration(name: str, location: str, data: Inspected) -> str:
    """Return the statement that declares data as a raw table.

    Parameters
    ----------
    location
        The path or URI as the statement states it.
    """
    columns = [f"{written_name(c.name)} {_type(c.type or 'string')}" for c in data.columns]
    listed = f"  {', '.join(columns)}"
    if len(listed) > _LINE:
        listed = ",\n".join(f"  {column}" for column in columns)
    options = ", ".join(f"{key} {literal_of(value)}" for key, value in data.options)
    options = f" OPTIONS ({options})" if options else ""
    return (
        f"CREATE TABLE {field_name(name)} (\n{listed}\n)"
        f" USING {data.format}{options} LOCATION {literal_of(location)};\n"
    )


def table_name(location: str) -> str:
    """Return a name for the raw table of data at a location.

    Examples
    --------
    >>> table_name("data/Daily Orders.csv.gz")
    'daily_orders'
    >>> table_name("s3://lake/2024/")
    't_2024'
    """
    last = _SUFFIX.sub("", location.rstrip("/").rpartition("/")[2])
    name = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_").lower()
    return name if re.match(r"[a-z_]", name) else f"t_{name}".rstrip("_")


def written_name(column: str) -> str:
    """Return the name of a column as SQL, quoted if it is a keyword or not a plain word."""
    is_word = [t.token_type for t in tokenize(column)] == [TokenType.VAR]
    return field_name(column) if is_word else quote(column)


def _type(kind: str) -> str:
    return kind if "<" in kind else kind.upper()  # the names of fields keep their case


# -------------------------------------------------------------------------------------- a project


def begin(
    directory: Path,
    languages: Collection[Language],
    data: Mapping[str, Inspected],
    *,
    is_component: bool = False,
) -> tuple[list[str], str]:
    """Write the files of a new project; return their paths, and the name of a source.

    Parameters
    ----------
    data
        What is known of existing data, by location; empty: sample data is written.
    is_component
        It is part of a project of Dagster's, which has definitions and a workflow of its own.

    Raises
    ------
    SettingsError
        Some of the files exist.
    """
    chosen: list[Language] = [language for language in LANGUAGES if language in languages]
    files = {path: template(path) for path in (_COMPONENT_FILES if is_component else PROJECT_FILES)}
    if data:
        key, sources = _over(data, chosen)
        first = f"{_FIRSTS[chosen[0]]}_{key}"
        files |= {path: text.encode() for path, text in sources.items()}
    else:
        first = _SAMPLES[chosen[0]]
        files |= {path: template(path) for path in _SAMPLE_DATA}
        files |= {path: template(path) for path in (_model(n, _SAMPLES[n]) for n in chosen)}
        if "sql" in chosen:
            files[_SAMPLE_TEST] = template(_SAMPLE_TEST)
        tables = [path for path in _SAMPLE_DATA if path.endswith(".csv")]
        known = {path: inspect_data(str(TEMPLATE / path)) for path in tables}
        files["sources/raw.sql"] = declarations(known).encode()
    parents = {str(parent) for path in files for parent in PurePath(path).parents}
    present = [path for path in files if (directory / path).exists()]
    present += [path for path in sorted(parents) if (directory / path).is_file()]
    if present:
        message = f"{directory / present[0]} already exists"
        raise SettingsError(message, hint="name a new directory: persist init DIR")
    write_files(directory, files)
    return [*files], first


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths in a directory; directories are made.

    Raises
    ------
    SettingsError
        Files cannot be written there.
    """
    try:
        for path, content in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    except OSError as error:
        if is_full(str(error)):
            raise
        message = f"cannot write to {directory}: {error.strerror or error}"
        raise SettingsError(message, hint="name another directory") from error


def _model(language: Language, name: str) -> str:
    """Return the file of a source: the layout is `model-per-file`."""
    return f"sources/marts/{name}{_SUFFIXES[language]}"


def template(path: str) -> bytes:
    """Return the content of a file of the template, by its path in a project."""
    name = {".gitignore": "gitignore", ".github/workflows/persist.yml": "persist.yml"}
    place = TEMPLATE / name.get(path, path)
    return (place if place.exists() else place.with_name(f"{place.name}.template")).read_bytes()


def declarations(data: Mapping[str, Inspected]) -> str:
    """Return the statements that declare data as raw tables, by location."""
    return "\n".join(
        declaration(name, location, data[location]) for location, name in _names(data).items()
    )


def _names(locations: Collection[str]) -> dict[str, str]:
    """Return different names for the raw tables of data at some locations."""
    names: dict[str, str] = {}
    for location in locations:
        base = table_name(location)
        numbered = (base, *(f"{base}_{n}" for n in range(2, len(locations) + 2)))
        names[location] = next(name for name in numbered if name not in names.values())
    return names


def _over(
    data: Mapping[str, Inspected], languages: Collection[Language]
) -> tuple[str, dict[str, str]]:
    """Return the name of the key of sources over existing data, and their files by path."""
    location, table = next(iter(_names(data).items()))
    key = _key(data[location].columns)
    column, name = key.name, table_name(key.name)
    item = field_name(column) if column == name else f"{field_name(column)} AS {name}"
    about = f"How many rows of {table} there are for each {name}."
    shown = column.replace("\\", "\\\\").replace('"', '\\"')
    texts: dict[Language, str] = {
        "sql": f"""\
--@ persist
--@ check {{ unique=[{name}] }}
-- {about}
CREATE VIEW rows_by_{name} AS
SELECT {item}, count(*) AS n_rows
FROM {table}
GROUP BY ALL;
""",
        "malloy": f"""\
##! experimental.persistence

#" {about}
#@ persist
#@ check {{ unique=[{name}] }}
source: groups_by_{name} is spark.table('{table}') -> {{
  group_by: {"" if column == name else f"{name} is "}`{column}`
  aggregate: n_rows is count()
}}
""",
        "python": f"""\
from persist_assets import table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@table(check={{"unique": ["{name}"]}})
def counts_by_{name}({table}: DataFrame) -> DataFrame:
    \"\"\"{about}\"\"\"
    key = F.col("`{shown}`").alias("{name}")
    return {table}.groupBy(key).agg(F.count("*").alias("n_rows"))
""",
    }
    files = {_model(n, f"{_FIRSTS[n]}_{name}"): texts[n] for n in languages}
    return name, {"sources/raw.sql": declarations(data), **files}


def _key(columns: Sequence[Column]) -> Column:
    """Return the column by which rows are grouped best."""
    ranks = {kind: n for n, kind in enumerate(_AS_KEYS)}
    return min(columns, key=lambda c: ranks.get(c.type or "", len(ranks)))
