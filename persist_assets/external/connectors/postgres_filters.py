"""Conditions that PostgreSQL evaluates as Spark does. Pure.

The invariant: a row that meets a condition in Spark meets its translation. Spark evaluates the
whole condition on what was fetched, so a part that is not translated costs only time.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.syntax import given_args, misread
from persist_assets.core.dialect import parse, plain, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.external.connectors.postgres_columns import PostgresColumn

_COMPARED: Mapping[type, str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_INTEGERS = ("smallint", "int", "bigint")
_FORMS: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)"),
    "timestamp_ntz": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"),
}
"""The texts of times that mean the same to both: four digits of a year, and a zone where one is."""
_SOURCE = re.compile(r"[\\\\'\"ƒ\0]")
"""Characters of texts that may be the source of a string literal rather than its value."""
_NAMES = {"timestamp": "timestamptz", "timestamp_ntz": "timestamp"}


class _Unknown(Exception):
    """A part of a condition has no translation."""


class Filters:
    """Translations of conditions on a table.

    Parameters
    ----------
    columns
        The columns that conditions may be translated of, by lower-case name.
    name, text
        Return the quoted name of a column, and a text as a literal of PostgreSQL.
    """

    def __init__(
        self,
        columns: Mapping[str, PostgresColumn],
        name: Callable[[str], str],
        text: Callable[[str], str],
    ) -> None:
        self._columns, self._name, self._text = columns, name, text

    def pushed(self, condition: str) -> str | None:
        """Return the part of a condition that PostgreSQL evaluates; None: there is none."""
        tree = parse(condition)
        return None if tree is None else self._weaker(tree)

    def _weaker(self, node: Any) -> str | None:
        """Return a condition that holds wherever this one is true."""
        if misread(node):
            return None
        if isinstance(node, exp.Paren):
            return self._weaker(node.this)
        if isinstance(node, exp.And):
            parts = [p for p in (self._weaker(node.left), self._weaker(node.right)) if p]
            return " AND ".join(parts) or None
        if isinstance(node, exp.Or):
            left, right = self._weaker(node.left), self._weaker(node.right)
            return f"({left} OR {right})" if left and right else None
        try:
            return self._exact(node)
        except _Unknown:
            return None

    def _exact(self, node: Any) -> str:
        """Return the condition that is true, false or NULL for the same rows."""
        if misread(node):
            raise _Unknown
        if isinstance(node, exp.Paren):
            return self._exact(node.this)
        if isinstance(node, exp.Not):
            return f"(NOT {self._exact(node.this)})"
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            _, name = self._column(node.this)
            return f"({name} IS NULL)"
        if isinstance(node, exp.In) and {*given_args(node)} <= {"this", "expressions"}:
            column, name = self._column(node.this)
            values = [self._value(column, "=", v) for v in node.expressions]
            if values:
                return f"({name} IN ({', '.join(values)}))"
        sign = _COMPARED.get(type(node))
        if sign is not None:
            column, name = self._column(node.this)
            return f"({name} {sign} {self._value(column, sign, node.expression)})"
        raise _Unknown

    def _column(self, node: Any) -> tuple[PostgresColumn, str]:
        if not isinstance(node, exp.Column) or len(node.parts) != 1:
            raise _Unknown
        column = self._columns.get(plain(node.name).lower())
        if column is None or column.kind is None:
            raise _Unknown
        return column, self._name(column.name)

    def _value(self, column: PostgresColumn, sign: str, node: Any) -> str:
        """Return a constant that a column can be compared with by a sign."""
        kind = column.kind or ""
        if kind in _INTEGERS:
            number = node.this if isinstance(node, exp.Neg) else node
            is_number = isinstance(number, exp.Literal) and not number.is_string
            if is_number and re.fullmatch(r"\d{1,18}", number.name):
                return f"{'-' if number is not node else ''}{number.name}"
        elif kind == "boolean" and isinstance(node, exp.Boolean) and sign in ("=", "<>"):
            return "TRUE" if node.this else "FALSE"
        elif kind == "string" and isinstance(node, exp.Literal) and node.is_string:
            if column.is_plain and sign in ("=", "<>") and not _SOURCE.search(node.name):
                return self._text(node.name)
        elif kind in _FORMS and isinstance(node, exp.Cast):
            text = node.this
            is_same = type_name(node.to) == kind and isinstance(text, exp.Literal)
            if is_same and text.is_string and _is_time(text.name, kind):
                return f"{_NAMES.get(kind, kind)} {self._text(text.name)}"
        raise _Unknown


def _is_time(text: str, kind: str) -> bool:
    """Whether Spark and PostgreSQL read a text as the same day or instant."""
    try:
        return _FORMS[kind].fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False
