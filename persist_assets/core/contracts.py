"""Contracts: the columns that a source promises, and differences of columns. Pure.

    columns { carrier=string  n="bigint not null" }

The invariant: types are compared as Spark names them, however they were written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.spark_types import parse_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from persist_assets.core.model.annotations import SchemaChange
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.columns import Column


def stored_type(text: str) -> str | None:
    """Return Spark's name of a type in files, where CHAR and VARCHAR are strings, or None.

    Examples
    --------
    >>> stored_type("STRUCT<a: INTEGER, b: VARCHAR(3)>"), stored_type("bigintt")
    ('struct<a:int,b:string>', None)
    """
    return parse_type(text, lengths=False, bare_varchar=True)


def alike(one: str, other: str) -> bool:
    """Whether two names of types mean the same type."""
    return (stored_type(one) or one.lower()) == (stored_type(other) or other.lower())


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")


def comparable(one: str, other: str) -> bool:
    """Whether values of two types can be compared without a conversion that guesses.

    Examples
    --------
    >>> comparable("int", "decimal(3,0)"), comparable("int", "string")
    (True, False)
    """
    words = [kind.partition("(")[0] for kind in (one, other)]
    return alike(one, other) or any({*words} <= {*kinds} for kinds in (_NUMBERS, _TIMES))


def incomparable(check: Check, own_type: str, other_type: str) -> str | None:
    """Return the problem with the types that a ``relationship`` check compares, or None."""
    if comparable(own_type, other_type):
        return None
    column, other = check.columns[0], check.values[0]
    return f"`{column}` is {own_type} and `{other}` is {other_type}: they can never be equal"


def promised_by(checks: Iterable[Check]) -> frozenset[str]:
    """Return the columns that a contract among checks names, in lower case."""
    return frozenset(n.lower() for c in checks if c.kind == "columns" for n in c.columns)


def breaches(check: Check, columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the differences between columns and those that a ``columns`` check promises.

    Unknown types are not differences.

    Examples
    --------
    >>> from persist_assets.core.model.checks import Check
    >>> from persist_assets.core.model.columns import Column
    >>> promised = Check("columns", "columns", ("a", "b"), ("int", ""))
    >>> breaches(promised, [Column("A", "string"), Column("c", "date")])
    ('added    c date', 'removed  b', 'retyped  a int → string')
    """
    types_by_name = {c.name.lower(): c for c in columns}
    promised = dict(zip(check.columns, map(str, check.values), strict=True))
    names = {name.lower() for name in promised}
    added: list[str] = []
    if not check.others:
        added = [_change_in_words("added", c) for c in columns if c.name.lower() not in names]
    removed = [
        f"removed  {name} {kind}".strip()
        for name, kind in promised.items()
        if name.lower() not in types_by_name
    ]
    retyped = [
        f"retyped  {name} {kind} → {actual}"
        for name, kind in promised.items()
        if kind and (actual := _type_in(types_by_name, name)) and not alike(kind, actual)
    ]
    return (*added, *removed, *retyped)


def _type_in(columns: dict[str, Column], name: str) -> str | None:
    column = columns.get(name.lower())
    return column.type if column is not None else None


def changes(
    rule: SchemaChange, before: Sequence[Column], after: Sequence[Column]
) -> tuple[str, ...]:
    """Return the changes of columns that a rule forbids; their order does not matter.

    Examples
    --------
    >>> from persist_assets.core.model.columns import Column
    >>> before, after = [Column("a", "int")], [Column("a", "int"), Column("b", "date")]
    >>> changes("append", before, after), changes("fail", before, after)
    ((), ('added    b date',))
    """
    if rule == "sync":
        return ()
    old, new = ({c.name.lower(): c for c in columns} for columns in (before, after))
    added = [_change_in_words("added", c) for key, c in new.items() if key not in old]
    removed = [_change_in_words("removed", c) for key, c in old.items() if key not in new]
    retyped = [
        f"retyped  {c.name} {c.type} → {new[key].type}"
        for key, c in old.items()
        if key in new and not alike(c.type or "", new[key].type or "")
    ]
    if rule == "append" and not removed and not retyped:
        return ()
    return (*added, *removed, *retyped)


def _change_in_words(change: str, column: Column) -> str:
    return f"{change:<8} {column.name} {column.type or ''}".rstrip()


def listed(lines: Iterable[str]) -> str:
    """Return the lines of a difference, formatted below a message."""
    return "".join(f"\n    {line}" for line in lines)
