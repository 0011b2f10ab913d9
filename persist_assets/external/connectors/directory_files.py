"""Files of a directory: versions of listings, partition values, footers of Parquet files.

A version names the time of the newest file, and a digest of all files up to that time: their
paths, sizes and times. So files that came later are found without a list of the earlier ones. The
invariant: two listings have one version up to a time only if their files up to it have the same
paths, sizes and times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from persist_assets.core.dialect import char_size
from persist_assets.core.errors import ColumnsError, ConflictError, StorageError
from persist_assets.core.model.sources import RawTable
from persist_assets.external.connectors.pruning import Span, exactly, moment_as_written, span
from persist_assets.storage.changes import LEGACY_BEFORE
from persist_assets.storage.files import reached, read_footer, unreachable
from persist_assets.storage.partition_texts import (
    INTEGERS,
    NO_VALUE,
    is_certain,
    misread,
    partition_texts_of,
    plain_type,
    texts_by_column,
)
from persist_assets.storage.raw import pin_raw
from persist_assets.storage.types import type_of_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from persist_assets.core.model.columns import Column

OF_DIRECTORY = "listing:"
"""The prefix of the names of versions; see `Version`."""

_LOGS = {
    "_delta_log": ("a Delta table", "use delta_table_input"),
    ".hoodie": ("a Hudi table", "have it written as Delta, Iceberg or plain files"),
    "_spark_metadata": ("the output of a Spark stream", "have the stream write a Delta table"),
}
"""The logs of tables, which say which of the files count."""


class Version(NamedTuple):
    """The parts of the name of a version.

    Attributes
    ----------
    newest_ns
        The time of the newest file, in nanoseconds since 1970.
    digest
        The number of files, and a digest of their paths, sizes and times.
    """

    newest_ns: int
    digest: str

    @property
    def name(self) -> str:
        """The name: the digest comes first, because short names show only one part."""
        return f"{OF_DIRECTORY}{self.digest}:{self.newest_ns}"


def parse_version(name: str) -> Version:
    """Return the parts of the name of a version.

    Examples
    --------
    >>> parse_version("listing:3-8a0f:17").newest_ns
    17
    """
    digest, newest = name.removeprefix(OF_DIRECTORY).split(":")
    return Version(int(newest), digest)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a listing has it.

    Attributes
    ----------
    path
        Its path below the directory.
    stamp
        Its size, the time of its last change in nanoseconds since 1970, and for local files a
        number that changes when it is replaced.
    partition
        The texts of its partition columns by lower-case name; None: NULL.
    """

    location: str
    path: str
    stamp: tuple[int, int, str]
    partition: Mapping[str, str | None] = field(hash=False)

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.stamp[0]

    @property
    def changed_ns(self) -> int:
        """The time of its last change, in nanoseconds since 1970."""
        return self.stamp[1]


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a directory, except hidden ones, sorted by location.

    Attributes
    ----------
    base
        The directory.
    """

    base: str
    files: tuple[ListedFile, ...]

    def version(self, until_ns: int | None = None) -> Version:
        """Return the version of the files that changed up to a time; None: of all."""
        newest = (
            max((f.changed_ns for f in self.files), default=0) if until_ns is None else until_ns
        )
        lines = [(f.path, *f.stamp) for f in self.files if f.changed_ns <= newest]
        digest = sha256(json.dumps(lines).encode()).hexdigest()[:24]
        return Version(newest, f"{len(lines)}-{digest}")

    def still_has(self, files: Iterable[ListedFile]) -> bool:
        """Whether files are as they were in an earlier listing."""
        stamps = {f.location: f.stamp for f in self.files}
        return all(stamps.get(f.location) == f.stamp for f in files)


def list_directory(
    location: str, form: str, columns: Sequence[Column], access: Mapping[str, str], label: str
) -> Listing:
    """Return the files of a directory, listed now.

    Parameters
    ----------
    form
        The format of the files.
    columns
        The declared columns.
    access
        The storage options, with references resolved.
    label
        The name of the directory in messages.

    Raises
    ------
    StorageError
        There are no files, they keep changing, they do not have the same partition columns, these
        have texts that are no values of their types, or a log says which files count.
    """
    _refuse_logs(location, access, label)
    pin = pin_raw(RawTable(form, location), location, access)
    base = pin.base or ""
    files: list[ListedFile] = []
    for place, stamp in zip(pin.files or (), pin.stamps, strict=True):
        path = place.removeprefix(base)
        files.append(ListedFile(place, path, stamp, _partition(path)))
    _check_texts(files, base, columns)
    return Listing(base, tuple(files))


def _refuse_logs(location: str, access: Mapping[str, str], label: str) -> None:
    from pyarrow import fs

    with reached(location, access) as (system, path):
        infos = system.get_file_info([f"{path.rstrip('/')}/{name}" for name in _LOGS])
    for (what, hint), info in zip(_LOGS.values(), infos, strict=True):
        if info.type != fs.FileType.NotFound:
            raise StorageError(f"{label} are {what}, whose log says which of them count", hint=hint)


def _partition(path: str) -> dict[str, str | None]:
    """Return the texts of the partition columns of a file, by lower-case name.

    Examples
    --------
    >>> _partition("/day=2026-01-01/Kind=a%3Ab/part-0.csv")
    {'day': '2026-01-01', 'kind': 'a:b'}
    """
    return {
        name.lower(): None if text == NO_VALUE else unquote(text)
        for name, text in partition_texts_of(path)
    }


def _check_texts(files: Iterable[ListedFile], base: str, columns: Iterable[Column]) -> None:
    """Raise if Spark might read a directory as another value than its text, or as NULL."""
    kinds = {c.name.lower(): plain_type(c.type) for c in columns}
    for (name, text), file in texts_by_column((f.location for f in files), base).items():
        if not is_certain(kinds.get(name, "string"), text):
            error = misread(file, name, text, kinds[name])
            raise ColumnsError(error.message, hint=error.hint)


def partition_spans(
    file: ListedFile, columns: Sequence[Column], timezone: ZoneInfo
) -> dict[str, Span]:
    """Return the values of partition columns whose texts certainly mean to Spark what they say."""
    spans: dict[str, Span] = {}
    for column in columns:
        name, kind = column.name.lower(), (column.type or "").lower()
        if name in file.partition and not char_size(column.type):
            span = _span_of_text(kind, file.partition[name], timezone)
            if span is not None:
                spans[name] = span
    return spans


def _span_of_text(kind: str, text: str | None, timezone: ZoneInfo | None) -> Span | None:
    if text is None:
        return exactly(kind, None)
    if kind == "string" and text.isascii() and "%" not in text:
        return exactly(kind, text)
    if kind in INTEGERS and is_certain(kind, text):
        return exactly(kind, int(text))
    if kind == "date" and is_certain(kind, text):
        return exactly(kind, date.fromisoformat(text))
    if kind == "timestamp" and timezone is not None:
        return moment_as_written(text, timezone)
    return None


def read_listed_footer(system: Any, path: str, location: str) -> Any:
    """Return the footer of a file that was listed; see `storage.files.read_footer`.

    Raises
    ------
    ConflictError
        The file is gone.
    StorageError
        It is not Parquet.
    """
    hint = "have it rewritten, or move it out of the directory"
    try:
        return read_footer(system, path, location=location, hint=hint)
    except FileNotFoundError as error:
        raise ConflictError(f"{location} is gone since it was listed", hint="try again") from error
    except OSError as error:
        raise unreachable(location, error, f"cannot read {location}") from error


def columns_of(footer: Any) -> list[tuple[str, str]]:
    """Return the columns of a Parquet file with Spark's names of their types.

    Types that Spark cannot read have Arrow's names.
    """
    schema = footer.schema
    leaves = [schema.column(n) for n in range(len(schema))]
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    columns: list[tuple[str, str]] = []
    for column in schema.to_arrow_schema():
        if column.name in int96:
            kind = "timestamp"
        else:
            try:
                kind = type_of_arrow(column.type, column.name)
            except StorageError:
                kind = str(column.type)
        columns.append((column.name, kind))
    return columns


def footer_names(footer: Any) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    return footer.schema.to_arrow_schema().names


def footer_spans(footer: Any, columns: Sequence[Column], text: str) -> dict[str, Span]:
    """Return the values of columns in a Parquet file according to its statistics.

    Parameters
    ----------
    columns
        The declared columns, which the file has with these types, or lacks.
    text
        The conditions; other columns than those that they mention are left out.
    """
    schema = footer.schema
    leaves = {
        leaf.path.lower(): n
        for n, leaf in enumerate(map(schema.column, range(len(schema))))
        # a repeated leaf is a list, and an empty one counts as a NULL in its statistics
        if leaf.physical_type != "INT96" and leaf.max_repetition_level == 0
    }
    present = {name.lower() for name in footer_names(footer)}
    spans: dict[str, Span] = {}
    for column in columns:
        name, kind = column.name.lower(), (column.type or "").lower()
        if name not in text.lower() or char_size(column.type):
            continue
        if name not in present:
            spans[name] = exactly(kind, None)
        elif name in leaves and "." not in name:
            groups = [
                footer.row_group(g).column(leaves[name]) for g in range(footer.num_row_groups)
            ]
            spans[name] = _span_of_groups(kind, groups, footer.num_rows)
    return spans


def _span_of_groups(kind: str, groups: Sequence[Any], n_rows: int) -> Span:
    bounds = [_bounds(group.statistics) for group in groups]
    known = [pair for pair in bounds if pair is not None]
    least = greatest = None
    if known and len(known) == len(bounds):
        least, greatest = min(low for low, _ in known), max(high for _, high in known)
    if isinstance(least, date) and least.year < LEGACY_BEFORE:
        least = greatest = None
    nulls = [
        s.null_count if s is not None and s.has_null_count else None
        for s in (group.statistics for group in groups)
    ]
    counted = [n for n in nulls if n is not None]
    n_nulls = sum(counted) if len(counted) == len(nulls) else None
    return span(kind, least, greatest, n_nulls, n_rows)


def _bounds(statistics: Any) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column in a row group; None: unknown."""
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        least, greatest = statistics.min, statistics.max
    except (UnicodeDecodeError, ValueError, OverflowError, NotImplementedError):
        return None
    return None if least != least or greatest != greatest else (least, greatest)
