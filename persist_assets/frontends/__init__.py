"""Text → declarations, one module for each language.

`FRONTENDS` maps the suffix of a file to the function that parses it: a new language is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.frontends.sql import parse_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.errors import Problem
    from persist_assets.model import Declaration

FRONTENDS: Mapping[str, Callable[[str, str], tuple[list[Declaration], list[Problem]]]] = {
    ".sql": parse_sql,
}
"""Suffix → parse(text, path relative to the project root)."""
