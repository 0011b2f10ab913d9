"""The languages of sources: `FRONTENDS` maps the suffix of a file to the function that parses it.

A new language is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.compiler.frontends import python, sql_names
from persist_assets.compiler.frontends.python import Looked, parse_python, with_functions
from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.compiler.malloy import declarations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.compiler.frontends.module_text import Find
    from persist_assets.core.errors import Problem
    from persist_assets.core.model.sources import Declaration


Parsing = tuple[list["Declaration"], list["Problem"], Looked]


def _sql(text: str, path: str, find: Find, definitions: Definitions = NO_DEFINITIONS) -> Parsing:
    declarations, problems = parse_sql(text, path, definitions)
    declarations, more, looked = with_functions(declarations, find)
    return declarations, [*problems, *more], looked


def _python(text: str, path: str, find: Find, _: Definitions = NO_DEFINITIONS) -> Parsing:
    return parse_python(text, path, find)


FRONTENDS: Mapping[str, Callable[..., Parsing]] = {
    ".sql": _sql,
    ".py": _python,
}
"""Suffix → parse(text, path relative to the project root, what finds other files, definitions).

It returns the declarations of the file, its problems, and the other files that it depends on."""

NAMES: Mapping[str, Callable[[str, str], list[Declaration]]] = {
    ".sql": sql_names.names_in,
    ".py": python.names_in,
    declarations.SUFFIX: declarations.names_in,
}
"""Suffix → names_in(text, path): placeholder declarations for the sources of a broken file."""
