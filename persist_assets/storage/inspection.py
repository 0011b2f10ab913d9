"""The format, columns and options of data that is not declared yet, from the data itself.

    a location ─► its format, by its log or its files' names ─► `Inspected`

Parquet and Delta state their types. A column of CSV or JSON gets a type that all inspected values
have as Spark reads them; otherwise it is a STRING, which loses nothing.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import RawTable
from persist_assets.storage.files import list_files, reached
from persist_assets.storage.headers import LONGEST_FIELD
from persist_assets.storage.raw import find_columns, is_hidden_name
from persist_assets.storage.types import type_of_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.storage.files import Found

SUFFIXES: Mapping[str, str] = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
"""The format of files by suffix; the suffix of a compression may follow."""
_SUFFIX = re.compile(rf"\.({'|'.join(SUFFIXES)})(?:\.(?:gz|bz2|zst|snappy|lz4))?$", re.I)
_MOST_BYTES = LONGEST_FIELD
"""The number of bytes at the beginning of a text from which types are inferred."""
_SEPARATORS = (",", ";", "\t", "|")
_NULLS = ("NULL", "null", "NA", "N/A", "\\N", "None")
"""Texts that may stand for NULL in CSV, besides the empty one."""
_UTF_16 = b"\xff\xfe", b"\xfe\xff"
_LINES = 50
"""The number of lines from which the separator of CSV is inferred."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The properties of inspected data.

    Attributes
    ----------
    format
        ``delta``, ``parquet``, ``csv`` or ``json``.
    options
        The options with which Spark reads it.
    is_partial
        Only a part of the data was inspected: the beginning of a long text, or one of many files.
    file
        The location of the text from which the columns were inferred; empty: they were not.
    """

    format: str
    columns: tuple[Column, ...]
    options: tuple[tuple[str, str], ...] = ()
    is_partial: bool = False
    file: str = field(default="", compare=False)


def inspect_data(
    location: str, *, separator: str | None = None, has_header: bool | None = None
) -> Inspected:
    """Return the format, columns and options of a file or a directory.

    Parameters
    ----------
    separator, has_header
        The separator of CSV, and whether its first line has the names of columns; None: inferred.

    Raises
    ------
    StorageError
        There is no data, or it is not known how to read it.
    """
    files = list_files(location)
    if any("/_delta_log/" in f.location.removeprefix(location) for f in files):
        return Inspected("delta", find_columns(RawTable("delta", location), location))
    shown = [f for f in files if f.bytes and not is_hidden_name(f.name)]
    if not shown:
        raise StorageError(f"there is no data at {location}", hint="name a file or a directory")
    form = _format(location, shown)
    if form == "parquet":
        return Inspected(form, find_columns(RawTable(form, location), location))
    text, is_partial = _beginning(shown[0])
    inspected = (
        _inspect_csv(text, separator, has_header)
        if form == "csv"
        else _inspect_json(text, location)
    )
    return replace(inspected, is_partial=is_partial or len(shown) > 1, file=shown[0].location)


def _format(location: str, files: Sequence[Found]) -> str:
    """Return the format of files that Spark reads as one table.

    Raises
    ------
    StorageError
        It is unknown, or the files differ: Spark would read all of them alike.
    """
    by_suffix: dict[str, Found] = {}
    for file in files:
        match = _SUFFIX.search(file.name)
        by_suffix.setdefault(match[1].lower() if match else _last_suffix(file.name), file)
    known = sorted({*by_suffix} & {*SUFFIXES})
    formats = {SUFFIXES[s] for s in known}
    if len(formats) == 1 and len(known) == len(by_suffix) and known != ["csv", "tsv"]:
        return formats.pop()
    hint = f"name a Delta table, or files that end in {', '.join(f'.{s}' for s in SUFFIXES)}"
    if not formats:
        raise StorageError(f"{location} has no data in a known format", hint=hint)
    kinds = ", ".join(f".{s}" if s else "no suffix" for s in sorted(by_suffix))
    directory = location.rstrip("/")
    if by_suffix[known[0]].location == f"{directory}/{by_suffix[known[0]].name}":
        hint = f"name files of one kind: persist raw {directory}/*.{known[0]}"
    message = f"{location} has files of several kinds ({kinds}), which are not one table"
    raise StorageError(message, hint=hint)


def _last_suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def _beginning(file: Found) -> tuple[bytes, bool]:
    """Return whole lines from the beginning of a file, decompressed, and whether there are more."""
    with reached(file.location) as (system, path), system.open_input_stream(path) as stream:
        text: bytes = stream.read(_MOST_BYTES)
        is_partial = len(text) == _MOST_BYTES and bool(stream.read(1))
    if not is_partial:
        return text, False
    if text.startswith(_UTF_16):
        decoded = text.decode("utf-16", errors="ignore")  # the last character may be cut
        return decoded[: decoded.rfind("\n") + 1].encode("utf-16"), True
    return text[: text.rfind(b"\n") + 1], True


def _in_arrow(text: bytes) -> Any:
    """Return a stream of a text in Arrow's own memory.

    A thread of Arrow may release the text after the rows were returned. Releasing an object of
    Python while the process exits would end it with a fault.
    """
    import pyarrow as pa

    stream = pa.BufferOutputStream()
    stream.write(text)
    return pa.BufferReader(stream.getvalue())


# -------------------------------------------------------------------------------------------- CSV


def _inspect_csv(text: bytes, separator: str | None, has_header: bool | None) -> Inspected:
    """Return the columns and options of CSV."""
    options: dict[str, str] = {}
    try:
        decoded = text.decode("utf-16" if text.startswith(_UTF_16) else "utf-8-sig")
        if text.startswith(_UTF_16):
            options["encoding"] = "utf-16"
    except UnicodeDecodeError:
        options["encoding"] = "iso-8859-1"
        decoded = text.decode("iso-8859-1")
    decoded = decoded.lstrip("\r\n")
    if not decoded.strip():
        raise StorageError("the file has no records", hint="declare the columns by hand")
    separator = separator or _separator(decoded)
    if separator != ",":
        options["sep"] = "\\t" if separator == "\t" else separator
    if '""' in decoded:
        options["escape"] = '"'
    rows = csv.reader(_lines_of(decoded), delimiter=separator)
    first = next(rows)
    has_header = _is_header(first) if has_header is None else has_header
    names = first if has_header else [f"_c{n}" for n in range(len(first))]
    if has_header:
        options["header"] = "true"
    if any("\n" in value for row in chain([first], rows) for value in row):
        options["multiLine"] = "true"
    table = _Csv(decoded.encode(), separator, len(names), has_header)
    null, types = table.types()
    if null is not None:
        options["nullValue"] = null
    columns = tuple(Column(n, t) for n, t in zip(names, types, strict=True))
    return Inspected("csv", columns, tuple(sorted(options.items())))


def _separator(text: str) -> str:
    """Return the separator that cuts the first lines into the same number of fields, the most."""
    lines = [*islice(_lines_of(text), _LINES)]

    def n_fields(separator: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=separator) if row}
        return counts.pop() if len(counts) == 1 else 1

    return max(_SEPARATORS, key=n_fields)


def _lines_of(text: str) -> Iterable[str]:
    """Return the lines of a text with their ends; Unicode's other line ends are parts of values."""
    return io.StringIO(text, newline="")


def _is_header(row: Sequence[str]) -> bool:
    """Whether a row has names: all present and distinct, and neither numbers nor dates."""
    names = {name.strip().lower() for name in row}
    return len(names) == len(row) and not any(
        not name or re.fullmatch(r"[+-]?[\d.,:/ -]*\d", name) for name in names
    )


@dataclass(frozen=True, slots=True)
class _Csv:
    """CSV of a known form."""

    text: bytes
    separator: str
    n_columns: int
    has_header: bool

    def types(self) -> tuple[str | None, list[str]]:
        """Return the text that means NULL besides the empty one, or None, and Spark's types."""
        texts = self._read((), as_strings=True)
        best: tuple[str | None, list[str]] = None, self._types((), texts)
        for null in _NULLS:
            types = self._types((null,), texts)
            better = any(a == "string" != b for a, b in zip(best[1], types, strict=True))
            # In a column of texts it may be one of them.
            strings = [c for c, t in zip(texts.columns, types, strict=True) if t == "string"]
            if better and not any(null in column.to_pylist() for column in strings):
                return null, types
        return best

    def _types(self, nulls: Sequence[str], texts: Any) -> list[str]:
        kinds = [_type_of_text(field.type) for field in self._read(nulls).schema]
        return [
            "string" if kind != "string" and _is_changed(kind, column) else kind
            for kind, column in zip(kinds, texts.columns, strict=True)
        ]

    def _read(self, nulls: Sequence[str], *, as_strings: bool = False) -> Any:
        """Return the rows as an Arrow table."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        columns = [f"c{n}" for n in range(self.n_columns)]
        return arrow_csv.read_csv(
            _in_arrow(self.text),
            arrow_csv.ReadOptions(
                use_threads=False,
                column_names=columns,
                skip_rows=int(self.has_header),
                block_size=len(self.text) + 1,
            ),
            arrow_csv.ParseOptions(
                delimiter=self.separator,
                newlines_in_values=True,
                invalid_row_handler=lambda _: "skip",
            ),
            arrow_csv.ConvertOptions(
                null_values=["", *nulls],
                strings_can_be_null=True,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                column_types=dict.fromkeys(columns, pa.string()) if as_strings else None,
            ),
        )


_LOSES = {
    "bigint": re.compile(r"-?0[\dxX]|\+"),
    "double": re.compile(r"-?0\d|\+|-?\d{16,}$|-?[0.]*+(?:\d\.?){17,}[1-9]|-?(?:nan|inf)", re.I),
    "timestamp": re.compile(r".*\.\d{7}"),
}
"""Beginnings of texts that would change as numbers or times, by type: post codes, telephone
numbers, long numbers (a DOUBLE has up to 17 digits), nanoseconds."""


def _is_changed(kind: str, texts: Any) -> bool:
    """Whether a column holds texts that would change as values of a type.

    Texts with blanks around them count as such: Arrow trims them, Spark does not.
    """
    loses = _LOSES.get(kind)
    return any(
        text != text.strip() or (loses is not None and loses.match(text)) for text in _values(texts)
    )


def _values(texts: Any) -> list[str]:
    """Return the texts of a column that are not NULL."""
    return [text for text in texts.to_pylist() if text is not None]


# ------------------------------------------------------------------------------------------- JSON


def _inspect_json(text: bytes, location: str) -> Inspected:
    """Return the columns and options of JSON: an object in each line, or one list of objects.

    Raises
    ------
    StorageError
        It is other JSON, or values of one field have different types.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    options = (("multiLine", "true"),) if text.lstrip().startswith(b"[") else ()
    try:
        if options:
            text = _objects(json.loads(text))
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        schema = arrow_json.read_json(_in_arrow(text), reading).schema
        times = pa.schema((f.name, pa.string()) for f in schema if pa.types.is_timestamp(f.type))
        parsing = arrow_json.ParseOptions(explicit_schema=times)
        texts = arrow_json.read_json(_in_arrow(text), reading, parsing)
        long = _with_long_integers(text) if _LONG.search(text) else set[str]()
    except (pa.ArrowException, ValueError) as error:
        raise StorageError(
            f"cannot find the columns of {location}: {error}", hint="declare them by hand"
        ) from error
    dates = {name for name in times.names if all(map(_DATE.fullmatch, _values(texts[name])))}
    types = {f.name: _type_of_text(f.type) for f in schema} | dict.fromkeys(dates, "date")
    for name in long:
        if "double" in types.get(name, ""):
            types[name] = "string"
    return Inspected("json", tuple(Column(n, t) for n, t in types.items()), options)


_LONG = re.compile(rb"\d{16}")
"""A number that a DOUBLE may not hold exactly."""


def _with_long_integers(text: bytes) -> set[str]:
    """Return the fields of JSON objects, one after the other, in which there are long integers."""
    long = object()
    decoder = json.JSONDecoder(parse_int=lambda digits: long if len(digits) > 15 else 0)
    decoded, at, names = text.decode(errors="replace").strip(), 0, set[str]()
    while at < len(decoded):
        row, at = decoder.raw_decode(decoded, at)
        while decoded[at : at + 1].isspace():
            at += 1
        for name, value in row.items() if isinstance(row, dict) else ():
            stack = [value]
            while stack:
                this = stack.pop()
                stack += this.values() if isinstance(this, dict) else ()
                stack += this if isinstance(this, list) else ()
                if this is long:
                    names.add(name)
    return names


_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _objects(rows: Iterable[Any]) -> bytes:
    """Return JSON with one object in each line."""
    return "\n".join(map(json.dumps, rows)).encode()


# ------------------------------------------------------------------------------------------ types


def _type_of_text(kind: Any) -> str:
    """Return the Spark type of values that Arrow has read from text as some type."""
    return type_of_arrow(_readable(kind), "a value")


def _readable(kind: Any) -> Any:
    """Return the Arrow type as which Spark reads values that Arrow has read from text."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_null(kind) or types.is_time(kind):
        return pa.string()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([f.with_type(_readable(f.type)) for f in kind])
    return kind
