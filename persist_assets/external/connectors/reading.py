"""Helpers of all connectors: checks of columns, names of files, and small frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import (
    ColumnsError,
    EarlierColumnsError,
    StorageError,
    did_you_mean,
)
from persist_assets.core.object_stores import spark_uri
from persist_assets.core.time_values import literal

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
    ColumnsError
        Columns are missing or have other types; the message names all of them.
    StorageError
        Two names differ only in case.
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
    raise ColumnsError(
        f"{table} does not match its declaration: {'; '.join(differences)}", hint="; ".join(hints)
    )


def earlier_columns(number: int, error: ColumnsError) -> EarlierColumnsError:
    """Return the error for an earlier version, by its number, that differs from a declaration."""
    return EarlierColumnsError(f"{error.message}, at version {number}", hint="read a later version")


def _bare(kind: str) -> str:
    """Return a type without the lengths of strings, which tables do not record."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind.lower().replace(" ", ""))


def first_line(message: object) -> str:
    r"""Return the start of the first line of a message; further ones may quote what was sent.

    Examples
    --------
    >>> first_line(ValueError("denied\nsent: secret"))
    'denied'
    """
    return str(message).partition("\n")[0][:200]


class FileNames:
    """The names by which the rows of some files tell their file, in the column `FILE`.

    They are the last parts of paths, unless two files share one or Spark spells one differently.

    Parameters
    ----------
    places
        The locations of the files.
    """

    def __init__(self, places: Iterable[str]) -> None:
        names = {place: place.rpartition("/")[2] for place in places}
        self._are_short = all(map(_SAFE.fullmatch, names.values())) and len(names) == len(
            {*names.values()}
        )
        self._names = names if self._are_short else {p: _slashed(spark_uri(p)) for p in names}

    @property
    def text(self) -> str:
        """The SQL of the column: Spark quotes paths as URIs do, in which a plus is not a blank."""
        if self._are_short:
            return f"_metadata.file_name AS {FILE}"
        quoted = "replace(_metadata.file_path, '+', '%2B')"
        return f"regexp_replace(url_decode({quoted}), '/+', '/') AS {FILE}"

    def __getitem__(self, place: str) -> str:
        return self._names[place]

    def checked(self, frame: DataFrame, table: str) -> DataFrame:
        """Return rows with the column, which fail to be read if their file is none of these.

        Parameters
        ----------
        table
            The name of the table in messages.
        """
        if self._are_short:
            return frame
        message = literal(f"Spark reads a file of {table} under another name: ", "string")
        rows = [(name, True) for name in self._names.values()]
        names = small_frame(frame.sparkSession, rows, f"{FILE} string, _persist_known boolean")
        failed = f"raise_error(concat({message}, {FILE}))"
        named = frame.join(names, FILE, "left")
        return named.where(f"IF(_persist_known, true, {failed})").drop("_persist_known")


def _slashed(uri: str) -> str:
    return re.sub("/+", "/", uri)


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
