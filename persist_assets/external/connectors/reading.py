"""What all connectors need: tables as declared, files told apart, and no row left out for NaN."""

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
"""The columns that say from which file a row is, and its number there."""

_SAFE = re.compile(r"[A-Za-z0-9._=+-]+")
"""Names of files that Spark spells as the logs of tables do."""


def conditions_of(external: External, predicate: str | None, *, start: bool) -> list[str]:
    """Return what has to be true of rows: a predicate, and what a declaration filters by.

    Parameters
    ----------
    start
        Whether they are the rows that a copy starts with.

    Examples
    --------
    >>> from persist_assets.core.model.sources import External
    >>> conditions_of(External("delta_table_input", filter="b"), "a", start=True)
    ['a', 'b']
    """
    said = (predicate, external.filter, external.snapshot_filter if start else None)
    return [text for text in said if text is not None]


def check_columns(declared: Iterable[Column], there: Sequence[tuple[str, str]], table: str) -> None:
    """Raise where a table is not as it is declared; it may have more columns.

    Parameters
    ----------
    there
        The names and types of its columns.
    table
        Which table it is, for the message.

    Raises
    ------
    StorageError
        Columns are not there or have other types: all of them are told. Or one name is there
        twice.
    """
    by_name = {name.lower(): kind for name, kind in there}
    if len(by_name) < len(there):
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
    said: list[str] = []
    hints: list[str] = []
    if lacking:
        named = ", ".join(f"`{c}`" for c in lacking)
        said.append(f"it has no column{'s' * (len(lacking) > 1)} {named}")
        spare = [name for name, _ in there if name.lower() not in {c.lower() for c in columns}]
        meant = [(c, did_you_mean(c, spare)) for c in lacking]
        hints += (f"for `{c}`, {hint}" for c, hint in meant if hint is not None)
        if any(hint is None for _, hint in meant):
            hints.append(f"its columns: {', '.join(name for name, _ in there)}")
    if others:
        said += (f"`{c}` is {kind} but is declared as {wanted}" for c, kind, wanted in others)
        types = ", ".join(f"`{c}` as {kind}" for c, kind, _ in others)
        hints.append(f"declare {types} and cast in a view")
    raise StorageError(
        f"{table} does not match its declaration: {'; '.join(said)}", hint="; ".join(hints)
    )


def _bare(kind: str) -> str:
    """Return a type without what tables do not keep: lengths of texts."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind.lower().replace(" ", ""))


def check_names(places: Iterable[str], table: str) -> None:
    """Raise where names do not tell files from each other.

    Parameters
    ----------
    table
        Which table it is, for the message.

    Raises
    ------
    StorageError
        Two have one name, or Spark spells one otherwise.
    """
    names = [place.rpartition("/")[2] for place in places]
    odd = next((n for n in names if not _SAFE.fullmatch(n)), None)
    if odd or len(set(names)) < len(names):
        what = f"a file named {odd}" if odd else "two files with the same name"
        raise StorageError(f"{table} has {what}: not supported", hint="rewrite its files")


def small_frame(session: SparkSession, rows: Sequence[Sequence[Any]], kinds: str) -> DataFrame:
    """Return rows as a frame that is part of its query: no job has to bring them.

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
