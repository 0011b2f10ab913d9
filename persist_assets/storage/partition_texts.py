"""The texts of partition directories (`day=2026-01-01/`), and what Spark reads of them. Pure.

The invariant: a text is certain for a type only if Spark's file sources read it as the value to
which CAST converts it. They cut off the high bits of small integers, shift decimals whose scale is
not that of their type, and unquote neither numbers nor dates.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The text that stands for NULL."""
INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
"""The number of bits of integers."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?|NaN|[+-]?Infinity")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_DATED = re.compile(r"\s*[+-]?[0-9]{4,6}(-.*)?")
_DECIMAL = re.compile(r"decimal(?:\(([0-9]+)(?:,([0-9]+))?\))?")
_DOUBLE = re.compile(
    r"\s*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)\s*"
)
_LOCAL_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?")


def partition_texts_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a file's partition columns, and their texts, still quoted.

    Parameters
    ----------
    path
        The path below the table's location.

    Examples
    --------
    >>> [*partition_texts_of("/day=2026-01-01/a%20b=x%2Fy/part-0.csv")]
    [('day', '2026-01-01'), ('a b', 'x%2Fy')]
    """
    for part in path.split("/")[:-1]:
        name, equals, text = part.partition("=")
        if equals:
            yield unescaped(name), text


def partition_names(files: Iterable[str], base: str | None) -> frozenset[str]:
    """Return the lower-case names of the columns that are directories of files.

    Parameters
    ----------
    base
        The table's location; None: no directory is a column.
    """
    return frozenset(name for name, _ in texts_by_column(files, base))


def texts_by_column(files: Iterable[str], base: str | None) -> dict[tuple[str, str], str]:
    """Return a file for each lower-case name of a partition column and each of its texts."""
    if base is None:
        return {}
    return {
        (name.lower(), text): file
        for directory, file in {f.rpartition("/")[0]: f for f in files}.items()
        for name, text in partition_texts_of(f"{directory.removeprefix(base)}/")
    }


def unescaped(text: str) -> str:
    """Return a text without the quotes that Spark removes: each `%` and two digits is a character.

    Examples
    --------
    >>> unescaped("a%20b"), unescaped("100%"), unescaped("%C3")
    ('a b', '100%', 'Ã')
    """
    return re.sub("%([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text)


def is_certain(kind: str, text: str) -> bool:
    """Whether Spark's file sources certainly read a text as the value to which CAST converts it.

    Parameters
    ----------
    kind
        The type in lower case, without blanks.
    text
        As listed.

    Examples
    --------
    >>> is_certain("tinyint", "-128"), is_certain("tinyint", "128"), is_certain("date", "2026")
    (True, False, False)
    >>> is_certain("decimal(4,2)", "1.50"), is_certain("decimal(4,2)", "1.5")
    (True, False)
    """
    if text == NO_VALUE or kind == "string" or kind.startswith(("char", "varchar")):
        return True
    if kind in INTEGERS:
        return _WHOLE.fullmatch(text) is not None and fits(kind, int(text))
    if kind == "date":
        return _DAY.fullmatch(text) is not None and _is_iso(text)
    if kind.startswith("timestamp"):
        moment = unescaped(text)
        return _MOMENT.fullmatch(moment) is not None and _is_iso(moment)
    if kind == "boolean":
        return text.lower() in ("true", "false")
    if kind in ("float", "double"):
        return _NUMBER.fullmatch(text) is not None
    if kind == "binary":
        return "%" not in text
    if decimal := _DECIMAL.fullmatch(kind):
        digits, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        whole, _, rest = text.lstrip("+-").partition(".")
        is_number = re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text) is not None
        return is_number and len(rest) == scale and len(whole.lstrip("0")) <= digits - scale
    return False


def is_cast_by_spark(kind: str) -> bool:
    """Whether Spark's file sources read valid texts of a type by CAST.

    The option `timeZone` of a table counts for them, which a CAST in a query ignores.
    """
    return kind.startswith(("timestamp", "time(", "interval")) or kind == "time"


def depends_on_clock(kind: str, text: str) -> bool:
    """Whether CAST would add today's date to a text."""
    return kind.startswith("timestamp") and _DATED.fullmatch(unescaped(text)) is None


def fits(kind: str, number: int) -> bool:
    """Whether an integer is a value of an integer type."""
    return -(2 ** INTEGERS[kind]) <= number < 2 ** INTEGERS[kind]


def plain_type(kind: str | None) -> str:
    """Return a type in lower case, without blanks; no type is a string."""
    return (kind or "string").lower().replace(" ", "")


def misread(file: str, name: str, text: str, kind: str) -> StorageError:
    """Return the error of a directory whose text is not a value of its column's type."""
    return StorageError(
        f"{file} is in a directory {name}={text}, which is no value of the declared type {kind}",
        hint=f"rename the directory, or declare `{name}` as string",
    )


def _is_iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def check_layout(files: Sequence[str], base: str) -> None:
    """Raise if Spark would silently ignore files or partition directories.

    It ignores files beside partition directories, and partition directories above other ones. It
    refuses to read directories of different columns together; read one after the other, each would
    lack the columns of the others.

    Raises
    ------
    StorageError
        The files and their directories are named.
    """
    parted = [f for f in files if "=" in f.removeprefix(base).rpartition("/")[0]]
    if parted and len(parted) < len(files):
        other = min(set(files) - set(parted))
        raise StorageError(
            f"{other} is not in a partition directory, while {parted[0]} is: Spark would ignore it",
            hint="move it into a partition (name=value), or out of the table's directory",
        )
    for file in parted:
        levels = ["=" in part for part in file.removeprefix(base).split("/")[:-1]]
        first, last = levels.index(True), len(levels) - levels[::-1].index(True)
        if not all(levels[first:last]):
            raise StorageError(
                f"{file} is in a directory without a value between partition directories: Spark"
                " would ignore those above it",
                hint="name all directories between the first and the last name=value like these",
            )
    by_names: dict[tuple[str, ...], str] = {}
    for file in parted:
        by_names[tuple(n.lower() for n, _ in partition_texts_of(file.removeprefix(base)))] = file
    if len(by_names) > 1:
        one, other = sorted(by_names.values())[:2]
        raise StorageError(
            f"{one} and {other} are in directories of different partition columns",
            hint="move one of them: every file needs the same directories, name=value",
        )


# -------------------------------------------------------------------------------------- inference


def partition_columns(files: Sequence[str], base: str) -> tuple[Column, ...]:
    """Return the partition columns of files with the types that Spark infers."""
    names: dict[str, str] = {}
    texts: dict[str, set[str]] = {}
    for file in files:
        for name, text in partition_texts_of(file.removeprefix(base)):
            lower = name.lower()
            names.setdefault(lower, name)
            texts.setdefault(lower, set()).add(text)
    return tuple(Column(names[lower], inferred_type(of)) for lower, of in texts.items())


def inferred_type(texts: Iterable[str]) -> str:
    """Return the type that Spark infers of all texts of a partition column, as listed.

    Examples
    --------
    >>> inferred_type(["1", "1.5"]), inferred_type(["007"]), inferred_type(["1", "2026-01-01"])
    ('double', 'int', 'string')
    >>> inferred_type(["2026-01-01", "2026-01-01 10%3A00%3A00"]), inferred_type(["2026-02-30"])
    ('timestamp', 'string')
    """
    kinds = {_inferred(text) for text in texts if text != NO_VALUE}
    if kinds <= {"int", "bigint"} and kinds:
        return "bigint" if "bigint" in kinds else "int"
    if kinds == {"double"} or kinds == {"double", "int"}:
        return "double"
    if kinds <= {"date", "timestamp"} and kinds:
        return "timestamp" if "timestamp" in kinds else "date"
    return "string"


def _inferred(text: str) -> str:
    """Return the type that Spark infers of a text, `decimal` for long integers."""
    if _WHOLE.fullmatch(text):
        return next((k for k in ("int", "bigint") if fits(k, int(text))), "decimal")
    if _DOUBLE.fullmatch(text):
        return "double"
    if _DAY.fullmatch(text) and _is_iso(text):
        return "date"
    moment = unescaped(text)
    return "timestamp" if _LOCAL_MOMENT.fullmatch(moment) and _is_iso(moment) else "string"
