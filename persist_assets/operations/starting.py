"""How a project begins: declarations of data that exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.core.spark_types import field_name
from persist_assets.storage.inspection import SUFFIXES

if TYPE_CHECKING:
    from persist_assets.storage.inspection import Inspected

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
    columns = [f"{field_name(c.name)} {_type(c.type or 'string')}" for c in data.columns]
    listed = f"  {', '.join(columns)}"
    if len(listed) > _LINE:
        listed = ",\n".join(f"  {column}" for column in columns)
    options = ", ".join(f"{key} {_text(value)}" for key, value in data.options)
    options = f" OPTIONS ({options})" if options else ""
    return (
        f"CREATE TABLE {field_name(name)} (\n{listed}\n)"
        f" USING {data.format}{options} LOCATION {_text(location)};\n"
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


def _type(kind: str) -> str:
    return kind if "<" in kind else kind.upper()  # the names of fields keep their case


def _text(value: str) -> str:
    """Return a string as SQL, in which a backslash escapes."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
