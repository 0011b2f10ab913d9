"""The first records of CSV files, and the positions of their columns.

The invariant: if files have a header, columns are found by name, never by position.
"""

from __future__ import annotations

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError, did_you_mean
from persist_assets.core.model.columns import Column
from persist_assets.storage.files import reached

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_MOST = 2**20
"""The maximum size of the first record of a file, in bytes."""
LONGEST_FIELD = 16 * 2**20
"""The maximum size of a field for Python's parser of CSV, in this process, in characters."""
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
_UNREADABLE = (".deflate", ".snappy", ".lz4", ".lzo")
_SEPARATES = "\ue000"
"""Stands for a separator of several characters: the parser of headers needs a single one."""
_SPELLED = {r"\t": "\t", r"\b": "\b", r"\f": "\f", r"\\": "\\"}


def grouped_by_columns(
    files: Sequence[str],
    options: Mapping[str, str],
    columns: Sequence[Column],
    elsewhere: Collection[str],
    table: str,
    access: Mapping[str, str] | None = None,
) -> dict[tuple[Column, ...], list[str]]:
    """Return CSV files, grouped by their columns in order; empty files are left out.

    Parameters
    ----------
    files
        Their locations.
    options
        The options of the table, by lower-case name.
    columns
        The declared columns.
    elsewhere
        The lower-case names of columns that are directories, or in no file.
    table
        The name of the table in messages.
    access
        See `files.reached`.

    Raises
    ------
    StorageError
        A file cannot be read, its header lacks declared columns, or is not declared as one.
    """
    if options.get("header", "").lower() == "false":
        return {tuple(columns): [*files]}
    groups: dict[tuple[Column, ...], list[str]] = {}
    for file, record in first_records(files, options, access).items():
        stored = tuple(columns)
        if record is None:
            continue  # an empty file
        if "header" in options:
            others = tuple(c for c in columns if c.name.lower() in elsewhere)
            stored = (*columns_in_order(record, columns, elsewhere, file), *others)
        elif is_header(record, columns, elsewhere):
            raise StorageError(
                f"the first line of {file} is a header, but {table} declares none:"
                f" {', '.join(record)}",
                hint="set the option `header` to true, or to false if it is data",
            )
        groups.setdefault(stored, []).append(file)
    return groups


def first_records(
    files: Sequence[str], options: Mapping[str, str], access: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...] | None]:
    """Return the first record of each CSV file, None if it is empty; ignored files are left out.

    Parameters
    ----------
    files
        Their locations.
    options
        The options of the table, by lower-case name.
    access
        See `files.reached`.

    Raises
    ------
    StorageError
        A file cannot be read.
    """
    pattern = pattern_of_names(options.get("pathglobfilter", "*"))
    looked_at = [f for f in files if pattern.fullmatch(f.rpartition("/")[2])]
    with ThreadPoolExecutor(16) as pool:
        records = pool.map(
            lambda f: _first_record(_read_text(f, options, _MOST, access), options, f), looked_at
        )
        return dict(zip(looked_at, records, strict=True))


def pattern_of_names(glob: str) -> re.Pattern[str]:
    """Return the pattern of the file names that Spark reads with `pathGlobFilter`.

    Examples
    --------
    >>> bool(pattern_of_names("{a,b}[^0-9]*.csv").fullmatch("bx.csv"))
    True
    """
    parts: list[str] = []
    depth, n = 0, 0
    while n < len(glob):
        c, n = glob[n], n + 1
        end = glob.find("]", n + 1) if c == "[" else -1
        if c == "\\" and n < len(glob):
            parts.append(re.escape(glob[n]))
            n += 1
        elif end > 0:
            inside = glob[n:end].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[^{inside[1:]}]" if inside[0] in "^!" else f"[{inside}]")
            n = end + 1
        elif c in "{}," and (depth or c == "{"):
            parts.append({"{": "(?:", "}": ")", ",": "|"}[c])
            depth += {"{": 1, "}": -1, ",": 0}[c]
        else:
            parts.append({"*": ".*", "?": "."}.get(c) or re.escape(c))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return re.compile(".*", re.DOTALL)  # Spark refuses it


def _read_text(
    location: str,
    options: Mapping[str, str],
    most: int = -1,
    access: Mapping[str, str] | None = None,
) -> str:
    """Return the text of a file, of at most `most` bytes."""
    if location.endswith(_UNREADABLE):
        raise StorageError(
            f"cannot read the header of {location}: it is compressed in a way that only Spark"
            " reads",
            hint="compress it as .gz, .bz2 or .zst",
        )
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    with (
        reached(location, access) as (system, path),
        system.open_input_stream(path) as stream,
    ):
        content: bytes = stream.read(most) if most >= 0 else stream.read()
    try:
        text = content.decode(encoding, errors="replace")
    except LookupError as error:
        raise StorageError(f"unknown encoding `{encoding}` of {location}") from error
    return text.removeprefix("\ufeff")


def _lines(text: str, options: Mapping[str, str]) -> list[str]:
    separator = options.get("linesep")
    return text.split(separator) if separator else re.split(r"\r\n|\n|\r", text)


_TRIMMED = "".join(map(chr, range(0x21)))
"""The characters that Java trims: a line of only these is not a record."""


def _first_record(text: str, options: Mapping[str, str], file: str) -> tuple[str, ...] | None:
    comment = options.get("comment")
    lines = _lines(text, options)
    whole = options.get("multiline", "false").lower() == "true"
    trimmed = "" if whole else _TRIMMED  # records of several lines may consist of blanks
    while lines and (not lines[0].strip(trimmed) or (comment and lines[0].startswith(comment))):
        lines.pop(0)
    if not lines:
        return None
    separator = options.get("sep", options.get("delimiter", ","))
    separator = _SPELLED.get(separator, separator)
    quote, escape = options.get("quote", '"'), options.get("escape", "\\")
    written, separator = separator, separator if len(separator) == 1 else _SEPARATES
    if len(written) > 1:
        lines = [line.replace(written, separator) for line in lines]
    try:
        reader = csv.reader(
            io.StringIO("\n".join(lines)) if whole else lines[:1],
            delimiter=separator,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            escapechar=escape if escape and escape != quote else None,
            skipinitialspace=True,
        )
        return tuple(name.strip().replace(_SEPARATES, written) for name in next(reader))
    except (csv.Error, TypeError) as error:
        raise StorageError(f"cannot read the first record of {file}: {error}") from error


def columns_in_order(
    record: Sequence[str], declared: Sequence[Column], parted: Collection[str], location: str
) -> tuple[Column, ...]:
    """Return the columns of a file by its header; undeclared ones are strings.

    Parameters
    ----------
    parted
        The lower-case names of declared columns that are directories, or in no file.

    Raises
    ------
    StorageError
        A declared column is missing, or appears twice.

    Examples
    --------
    >>> [c.name for c in columns_in_order(["b", "x", "A"], [Column("a", "int")], (), "f")]
    ['_persist_0', '_persist_1', 'a']
    """
    by_name = {c.name.lower(): c for c in declared if c.name.lower() not in parted}
    names = [name.lower() for name in record]
    missing = [c.name for name, c in by_name.items() if name not in names]
    doubled = [c.name for name, c in by_name.items() if names.count(name) > 1]
    if missing or doubled:
        wrong = f"lacks `{missing[0]}`" if missing else f"has `{doubled[0]}` twice"
        hint = did_you_mean(missing[0], set(record) - set(by_name)) if missing else None
        raise StorageError(
            f"the header of {location} {wrong}: it is {', '.join(record)}, but it is declared as"
            f" {', '.join(c.name for c in by_name.values())}",
            hint=hint or "declare the columns with the names in the header",
        )
    return tuple(
        by_name.get(name, Column(f"_persist_{n}", "string")) for n, name in enumerate(names)
    )


def is_header(record: Sequence[str], declared: Sequence[Column], parted: Collection[str]) -> bool:
    """Whether the first record of a file looks like the names of its columns.

    Examples
    --------
    >>> is_header(["id", "name"], [Column("name", "string")], ())
    True
    """
    names = {c.name.lower() for c in declared} - {*parted}
    record_names = {name.lower() for name in record}
    return bool(names) and (names <= record_names or record_names <= names)


def line_of(location: str, record: str, options: Mapping[str, str]) -> int | None:
    """Return the number of the first line of a record in a file, None if it is not found."""
    text = _read_text(location, options)
    lines = _lines(text, options)
    if record in lines:
        return lines.index(record) + 1
    at = text.find(record)
    return None if at < 0 or not record else len(_lines(text[:at], options))
