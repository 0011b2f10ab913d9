"""The names that an SQL text seems to create, found without a parser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.core.errors import Location
from persist_assets.core.languages import SQL
from persist_assets.core.model.sources import Declaration

if TYPE_CHECKING:
    from collections.abc import Iterator

_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_QUOTED = r"""[`"']?"""
_CREATED = re.compile(
    rf"\b(?:VIEW|TABLE)\b{_GAP}(?:(?:IF|NOT|EXISTS)\b{_GAP})*"
    rf"(?:{_QUOTED}\w+{_QUOTED}\s*\.\s*)*{_QUOTED}(\w+)",
    re.IGNORECASE | re.DOTALL,
)
_QUERIED = re.compile(
    rf"(?:\(|\|>|\b(?:AS|ALL|DISTINCT|UNION|EXCEPT|INTERSECT|MINUS|FROM|JOIN|LATERAL)){_GAP}$",
    re.IGNORECASE | re.DOTALL,
)
"""Matches the text before a query `TABLE t`."""
_WHOLE_LINE = re.compile(r"^[ \t]*--[^\n]*", re.MULTILINE)


def names_in(text: str, path: str) -> list[Declaration]:
    """Return placeholder declarations for the sources of a text that is not valid SQL.

    References to them are not errors, and their names are taken.
    """
    declarations: dict[str, Declaration] = {}
    for name, offset in created(text):
        line, line_break = text.count("\n", 0, offset) + 1, text.rfind("\n", 0, offset)
        place = Location(path, line, offset - line_break)
        declarations.setdefault(name.lower(), Declaration(name, SQL, place))
    return list(declarations.values())


def created(text: str) -> Iterator[tuple[str, int]]:
    """Yield the probable names of views and tables in a text, with their offsets."""
    text = _WHOLE_LINE.sub(lambda comment: " " * len(comment[0]), text)
    for match in _CREATED.finditer(text):
        if IDENTIFIER.fullmatch(match[1]) and not _is_query(text, match.start()):
            yield match[1], match.start(1)


def _is_query(text: str, at: int) -> bool:
    """Whether a word `TABLE` begins a query, as in ``UNION ALL TABLE t``."""
    return _QUERIED.search(text[max(0, at - 100) : at]) is not None
