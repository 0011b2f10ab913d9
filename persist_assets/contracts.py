"""What columns a source promises, and how columns differ from others. Pure.

    columns { carrier=string  n="bigint not null" }

The invariant: types are compared as Spark names them, however they were written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from persist_assets.model import Check, Column, SchemaChange

TYPES = (
    *("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date"),
    *("timestamp", "timestamp_ntz", "binary", "decimal", "array", "map", "struct"),
)
"""What a column of a table can be."""

_ALSO = {
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
    # In files these are strings.
    "char": "string",
    "varchar": "string",
}

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])", re.ASCII)


class _NoType(Exception):
    pass


def parse_type(text: str) -> str | None:
    """Return Spark's name of a type, as `DataType.simpleString` spells it, or None.

    Examples
    --------
    >>> parse_type("STRUCT<a: INTEGER, b: ARRAY<DEC(3)>>"), parse_type("bigintt")
    ('struct<a:int,b:array<decimal(3,0)>>', None)
    """
    tokens: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        tokens.append(match[1])
        at = match.end()
    rest = iter([*tokens, ""])
    try:
        found, after = _type(next(rest), rest)
    except (_NoType, StopIteration, RecursionError):
        return None
    return None if after else found


def _type(word: str, rest: Iterator[str]) -> tuple[str, str]:
    """Return the type that begins with a word, and what follows it."""
    name = _ALSO.get(word.lower(), word.lower())
    if name not in TYPES:
        raise _NoType
    after = next(rest)
    if name in ("array", "map", "struct"):
        if after != "<":
            raise _NoType
        inner: list[str] = []
        while after != ">":
            field, word = "", next(rest)
            if name == "struct":
                field, word = f"{word}:", next(rest)
                word = next(rest) if word == ":" else word
            found, after = _type(word, rest)
            inner.append(field + found)
            if after not in (",", ">"):
                raise _NoType
        if name != "struct" and len(inner) != (2 if name == "map" else 1):
            raise _NoType
        return f"{name}<{','.join(inner)}>", next(rest)
    if after != "(":
        return "decimal(10,0)" if name == "decimal" else name, after
    sizes: list[str] = []
    while after != ")":
        size, after = next(rest), next(rest)
        if not size.isdecimal() or after not in (",", ")"):
            raise _NoType
        sizes.append(size)
    if name == "decimal" and len(sizes) in (1, 2):
        return f"decimal({','.join([*sizes, '0'][:2])})", next(rest)
    if name == "string" and word.lower() in ("char", "varchar") and len(sizes) == 1:
        return name, next(rest)
    raise _NoType


def type_hint(text: str) -> str:
    """Return what somebody may have meant who wrote a type that is none."""
    word = re.split(r"\W", text.strip(), maxsplit=1)[0]
    return did_you_mean(word, (*TYPES, *_ALSO)) or f"types are {', '.join(TYPES)}"


def alike(one: str, other: str) -> bool:
    """Whether two names of types mean one type."""
    return (parse_type(one) or one.lower()) == (parse_type(other) or other.lower())


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")


def comparable(one: str, other: str) -> bool:
    """Whether values of two types may be equal, without a guess at what one means in the other.

    Examples
    --------
    >>> comparable("int", "decimal(3,0)"), comparable("int", "string")
    (True, False)
    """
    words = [kind.partition("(")[0] for kind in (one, other)]
    return alike(one, other) or any({*words} <= {*kinds} for kinds in (_NUMBERS, _TIMES))


def incomparable(check: Check, own: str, other: str) -> str | None:
    """Return what is wrong with the types that a ``relationship`` check compares, or None."""
    if comparable(own, other):
        return None
    return f"`{check.columns[0]}` is {own} and `{check.values[0]}` {other}: they cannot be equal"


def promised_by(checks: Iterable[Check]) -> frozenset[str]:
    """Return the columns that a contract among checks names, in lower case."""
    return frozenset(n.lower() for c in checks if c.kind == "columns" for n in c.columns)


def breaches(check: Check, columns: Sequence[Column]) -> tuple[str, ...]:
    """Return in which ways columns are not those that a ``columns`` check promises.

    Types that are not known are no breach.

    Examples
    --------
    >>> from persist_assets.model import Check, Column
    >>> promised = Check("columns", "columns", ("a", "b"), ("int", ""))
    >>> breaches(promised, [Column("A", "string"), Column("c", "date")])
    ('added    c date', 'removed  b', 'retyped  a int → string')
    """
    there = {c.name.lower(): c for c in columns}
    promised = dict(zip(check.columns, map(str, check.values), strict=True))
    names = {name.lower() for name in promised}
    added: list[str] = []
    if not check.others:
        added = [_told("added", c) for c in columns if c.name.lower() not in names]
    removed = [
        f"removed  {name} {kind}".strip()
        for name, kind in promised.items()
        if name.lower() not in there
    ]
    retyped = [
        f"retyped  {name} {kind} → {found}"
        for name, kind in promised.items()
        if kind and (found := _type_in(there, name)) and not alike(kind, found)
    ]
    return (*added, *removed, *retyped)


def _type_in(there: dict[str, Column], name: str) -> str | None:
    column = there.get(name.lower())
    return column.type if column is not None else None


def changes(
    rule: SchemaChange, before: Sequence[Column], after: Sequence[Column]
) -> tuple[str, ...]:
    """Return how columns changed, where a rule does not allow it; their order is not looked at.

    Examples
    --------
    >>> from persist_assets.model import Column
    >>> before, after = [Column("a", "int")], [Column("a", "int"), Column("b", "date")]
    >>> changes("append", before, after), changes("fail", before, after)
    ((), ('added    b date',))
    """
    if rule == "sync":
        return ()
    old, new = ({c.name.lower(): c for c in columns} for columns in (before, after))
    added = [_told("added", c) for key, c in new.items() if key not in old]
    removed = [_told("removed", c) for key, c in old.items() if key not in new]
    retyped = [
        f"retyped  {c.name} {c.type} → {new[key].type}"
        for key, c in old.items()
        if key in new and not alike(c.type or "", new[key].type or "")
    ]
    if rule == "append" and not removed and not retyped:
        return ()
    return (*added, *removed, *retyped)


def _told(what: str, column: Column) -> str:
    return f"{what:<8} {column.name} {column.type or ''}".rstrip()


def listed(lines: Iterable[str]) -> str:
    """Return lines of a difference, each on a line of its own below a message."""
    return "".join(f"\n    {line}" for line in lines)
