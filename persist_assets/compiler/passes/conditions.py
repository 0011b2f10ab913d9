"""Pass: functions and variables in the conditions of checks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.frontends.sql_functions import one_line
from persist_assets.core.dialect import parse, tokenize
from persist_assets.core.errors import Problem, SourcesError

if TYPE_CHECKING:
    from persist_assets.compiler.state import Compilation
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.sources import Source


def inline_conditions(compilation: Compilation) -> None:
    """Replace calls of the project's functions, and its variables, in the conditions of checks.

    Columns come before variables, as in queries.
    """
    names = compilation.definitions.names
    for unit in compilation.units.values() if names else ():
        source = unit.source
        texts = (c.expression or "" for c in source.checks) if source is not None else ()
        if source is None or not any(_mentions(text, names) for text in texts):
            continue
        with compilation.contained(unit):
            checks = tuple(_inlined(compilation, source, c) for c in source.checks)
            unit.source = replace(source, annotation=replace(source.annotation, checks=checks))


def _mentions(text: str, names: set[str]) -> bool:
    return not names.isdisjoint(re.findall(r"\w+", text.lower()))


_HEAD = "SELECT 1 WHERE "
_N_HEAD = 3
"""The number of its tokens."""


def _inlined(compilation: Compilation, source: Source, check: Check) -> Check:
    """Return a check whose condition has the meaning of its functions and variables."""
    if check.expression is None or not _mentions(check.expression, compilation.definitions.names):
        return check
    if not isinstance(parse(check.expression), exp.Condition):
        return check  # it is reported with the annotation
    place = check.location or source.location
    columns = {c.name.lower() for c in source.known_columns}
    definitions = compilation.definitions.without(columns)
    try:
        query = parse_query(_HEAD + check.expression, place, definitions)
    except SourcesError as error:
        compilation.problems += error.problems
        return check
    unclear = [v for v in query.variables if v != "system"]
    if unclear and not columns:
        message = (
            f"`{unclear[0]}` is a variable, or a column of `{source.name}`: its columns are "
            "unknown until it is computed"
        )
        hint = "for the variable, write system.session.NAME"
        compilation.problems.append(Problem("variable", message, place, hint))
    # Comments of a function are no part of the check.
    return replace(check, expression=one_line(tokenize(query.text)[_N_HEAD:], query.text))
