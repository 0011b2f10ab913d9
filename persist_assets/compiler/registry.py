"""The languages of sources: `FRONTENDS` maps the suffix of a file to the function that parses it.

A new language is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.compiler.frontends import python, sql_names
from persist_assets.compiler.frontends.python import Looked, parse_python, with_functions
from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.compiler.malloy import declarations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.compiler.frontends.module_text import Find
    from persist_assets.core.errors import Problem
    from persist_assets.core.model.sources import Declaration


def _sql(text: str, path: str, find: Find) -> tuple[list[Declaration], list[Problem], Looked]:
    declarations, problems = parse_sql(text, path)
    declarations, more, looked = with_functions(declarations, find)
    return declarations, [*problems, *more], looked


FRONTENDS: Mapping[
    str, Callable[[str, str, Find], tuple[list[Declaration], list[Problem], Looked]]
] = {
    ".sql": _sql,
    ".py": parse_python,
}
"""Suffix → parse(text, path relative to the project root, what finds other files).

It returns the declarations of the file, its problems, and the other files that it depends on."""

NAMES: Mapping[str, Callable[[str, str], list[Declaration]]] = {
    ".sql": sql_names.names_in,
    ".py": python.names_in,
    declarations.SUFFIX: declarations.names_in,
}
"""Suffix → names_in(text, path): placeholder declarations for the sources of a broken file."""
