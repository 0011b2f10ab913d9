"""Helpers of all connectors: checks of columns and file names, and small frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import External

FILE, ROW = "_persist_file", "_persist_row"
"""The columns with the file that a row is from, and its number in the file."""

_SAFE = re.compile(r"[A-Za-z0-9._=+-]+")
"""File names that Spark and logs of tables spell alike."""


def conditions_of(external: External, predicate: str | None, *, start: bool) -> list[str]:
    """Return the conditions for rows: a predicate, and the filters of a declaration.

    Parameters
    ----------
    start
        Whether the rows are those that a copy starts with.

    Examples
    --------
    >>> from persist_assets.core.model.sources import External
    >>> conditions_of(External("delta_table_input", filter="b"), "a", start=True)
    ['a', 'b']
    """
    texts = (predicate, external.filter, external.snapshot_filter if start else None)
    return [text for text in texts if text is not None]


def check_columns(
    declared: Iterable[Column], present: Sequence[tuple[str, str]], table: str
) -> None:
    """Raise if a table differs from its declaration; it may have more columns.

    Parameters
    ----------
    present
        The names and types of its columns.
    table
        The name of the table in messages.

    Raises
    ------
    StorageError
        Columns are missing or have other types; the message names all of them. Or two names
        differ only in case.
    """
    by_name = {name.lower(): kind for name, kind in present}
    if len(by_name) < len(present):
        raise StorageError(f"columns of {table} differ only in case")
    columns = {c.name: c.type for c in declared}
    lacking = [c for c in columns if c.lower() not in by_name]
    others = [
        (c, by_name[c.lower()], kind)
        for c, kind in columns.items()
        if c not in lacking and kind is not None and _bare(kind) != _bare(by_name[c.lower()])
    ]
    if not lacking and not others:
        return
    differences: list[str] = []
    hints: list[str] = []
    if lacking:
        named = ", ".join(f"`{c}`" for c in lacking)
        differences.append(f"it has no column{'s' * (len(lacking) > 1)} {named}")
        spare = [name for name, _ in present if name.lower() not in {c.lower() for c in columns}]
        suggestions = [(c, did_you_mean(c, spare)) for c in lacking]
        hints += (f"for `{c}`, {hint}" for c, hint in suggestions if hint is not None)
        if any(hint is None for _, hint in suggestions):
            hints.append(f"its columns: {', '.join(name for name, _ in present)}")
    if others:
        differences += (
            f"`{c}` is {kind} but is declared as {declared_type}"
            for c, kind, declared_type in others
        )
        types = ", ".join(f"`{c}` as {kind}" for c, kind, _ in others)
        hints.append(f"declare {types} and cast in a view")
    raise StorageError(
        f"{table} does not match its declaration: {'; '.join(differences)}", hint="; ".join(hints)
    )


def _bare(kind: str) -> str:
    """Return a type without the lengths of strings, which tables do not record."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind.lower().replace(" ", ""))


def check_names(places: Iterable[str], table: str) -> None:
    """Raise if file names do not identify files.

    Parameters
    ----------
    table
        The name of the table in messages.

    Raises
    ------
    StorageError
        Two files have one name, or Spark spells a name differently.
    """
    names = [place.rpartition("/")[2] for place in places]
    odd = next((n for n in names if not _SAFE.fullmatch(n)), None)
    if odd or len(set(names)) < len(names):
        what = f"a file named {odd}" if odd else "two files with the same name"
        raise StorageError(f"{table} has {what}: not supported", hint="rewrite its files")


def small_frame(session: SparkSession, rows: Sequence[Sequence[Any]], kinds: str) -> DataFrame:
    """Return rows as a frame that is part of its query, so that no job has to load them.

    Parameters
    ----------
    kinds
        Names and types of the columns, as in a CREATE TABLE: string, int, bigint or boolean.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    named = [kind.split() for kind in kinds.split(", ")]
    fields = [(name, _ARROW[kind]) for name, kind in named]
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in fields]
    table = pa.table(dict(zip((n for n, _ in fields), columns, strict=True)), pa.schema(fields))
    return F.broadcast(session.createDataFrame(table))


_ARROW = {"string": "string", "int": "int32", "bigint": "int64", "boolean": "bool"}
