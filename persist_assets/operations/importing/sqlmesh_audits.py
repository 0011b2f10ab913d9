"""Audits of SQLMesh → checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.operations.importing import drafts as parts
from persist_assets.operations.importing.sqlmesh_headers import call, listed, unquoted
from persist_assets.operations.importing.translation import (
    UntranslatableError,
    translate_condition,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.operations.importing.drafts import Origin, Rule

_SUFFIX = "_non_blocking"


def rules_of(audit: str, origin: Origin, dialect: str) -> list[Rule] | None:
    """Return the checks that an audit of SQLMesh itself means; None: it is one of the project.

    Raises
    ------
    UntranslatableError
        It is known, but says something that has no counterpart.
    """
    name, arguments = call(audit, dialect)
    only_warns = name.endswith(_SUFFIX) or arguments.pop("blocking", "true").lower() == "false"
    make = _RULES.get(name.removesuffix(_SUFFIX))
    if make is None:
        return None
    needed, read = make
    unknown = arguments.keys() - needed
    if unknown:
        raise UntranslatableError(f"the argument `{min(unknown)}` has no counterpart")
    try:
        return read(arguments, origin, dialect, only_warns)
    except (KeyError, ValueError) as error:
        raise UntranslatableError(f"its arguments: {error}") from error


def _columns(arguments: Mapping[str, str], dialect: str) -> list[str]:
    columns = [unquoted(column) for column in listed(arguments["columns"], dialect)]
    return [_column(column) for column in columns]


def _column(written: str) -> str:
    if not re.fullmatch(r"\w+", written):
        raise UntranslatableError(f"`{written}` is not a column")
    return written


def _not_null(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    columns = _columns(arguments, dialect)
    return [parts.not_null(origin, column, only_warns=only_warns) for column in columns]


def _unique_values(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    columns = _columns(arguments, dialect)
    return [parts.unique(origin, [column], only_warns=only_warns) for column in columns]


def _unique_combination(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    return [parts.unique(origin, _columns(arguments, dialect), only_warns=only_warns)]


def _accepted(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    column = _column(unquoted(arguments["column"]))
    values = [_value(value) for value in listed(arguments["is_in"], dialect)]
    return [parts.accepted(origin, column, values, only_warns=only_warns)]


def _value(written: str) -> str | float:
    if re.fullmatch(r"-?\d+", written):
        return int(written)
    return float(written) if re.fullmatch(r"-?\d*\.\d+", written) else unquoted(written)


def _forall(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    return [
        _condition(criterion, origin, dialect, only_warns)
        for criterion in listed(arguments["criteria"], dialect)
    ]


def _condition(written: str, origin: Origin, dialect: str, only_warns: bool) -> Rule:
    translated = translate_condition(written, dialect)
    name = re.sub(r"\W+", "_", written).strip("_").lower()[:40] or "condition"
    sql, notes = translated.sql, translated.notes
    return parts.condition(origin, name, sql, only_warns=only_warns, notes=notes)


def _range(
    arguments: Mapping[str, str], origin: Origin, dialect: str, only_warns: bool
) -> list[Rule]:
    column = _column(unquoted(arguments["column"]))
    equal = "" if arguments.get("inclusive", "true").lower() == "false" else "="
    ends = [("min_v", f">{equal}"), ("max_v", f"<{equal}")]
    return [
        _condition(f"{column} {sign} {arguments[end]}", origin, dialect, only_warns)
        for end, sign in ends
        if end in arguments
    ]


def _number_of_rows(
    arguments: Mapping[str, str], origin: Origin, _: str, only_warns: bool
) -> list[Rule]:
    return [parts.row_count(origin, int(arguments["threshold"]) + 1, only_warns=only_warns)]


_RULES = {
    "not_null": ({"columns"}, _not_null),
    "unique_values": ({"columns"}, _unique_values),
    "unique_combination_of_columns": ({"columns"}, _unique_combination),
    "accepted_values": ({"column", "is_in"}, _accepted),
    "forall": ({"criteria"}, _forall),
    "accepted_range": ({"column", "min_v", "max_v", "inclusive"}, _range),
    "number_of_rows": ({"threshold"}, _number_of_rows),
}
"""The audits that SQLMesh brings and that become checks: their arguments, and how they are read."""
