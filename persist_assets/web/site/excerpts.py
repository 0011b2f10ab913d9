"""The text of a file → the passage of each source in it. Pure.

Passages are for people to read: the lines right above a definition that annotate or describe it
belong to it, and no line of a definition is lost.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LEADS: Mapping[str, tuple[str, ...]] = {
    "sql": ("--",),
    "malloy": ("#", "--", "//"),
    "python": ("#",),
}
"""Prefixes of lines that describe the definition below them."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The lines of a file that belong to one source; the first is counted from one."""

    first: int
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a definition, and the text of its query if the file contains that."""

    line: int
    query: str | None = None


def passages(
    text: str, language: str, places: Mapping[str, Place], others: Iterable[int] = ()
) -> dict[str, Passage]:
    r"""Return the passage of each source of one file.

    Parameters
    ----------
    places
        The definitions of all sources of the file, by SourceID.
    others
        Lines at which other statements begin.

    Examples
    --------
    >>> text = "CREATE VIEW a AS SELECT 1;\n\n--@ persist\nCREATE VIEW b AS\nSELECT 2;\n"
    >>> found = passages(text, "sql", {"a": Place(1), "b": Place(4)})
    >>> found["a"].text, found["b"].first
    ('CREATE VIEW a AS SELECT 1;', 3)
    """
    lines = text.splitlines() or [""]
    spans = _functions(text) if language == "python" else {}
    starts: dict[str, int] = {}
    for name, place in places.items():
        start = spans.get(place.line, (place.line, 0))[0]
        starts[name] = _first(lines, start, language)
    bounds = sorted({*starts.values(), *others, len(lines) + 1})
    excerpts: dict[str, Passage] = {}
    for name, first in starts.items():
        place = places[name]
        last = next((b for b in bounds if b > first), len(lines) + 1) - 1
        if place.line in spans:
            last = spans[place.line][1]
        elif language == "sql":
            last = min(last, _end(lines, first, last, place))
        while last > first and not lines[last - 1].strip():
            last -= 1
        excerpts[name] = Passage(first, "\n".join(lines[first - 1 : last]))
    return excerpts


def _functions(text: str) -> dict[int, tuple[int, int]]:
    """Return the first and last line of each function, by the line of its name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        n.lineno: (min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno or n.lineno)
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef)
    }


def _first(lines: Sequence[str], line: int, language: str) -> int:
    """Return the first line of a definition, including the lines right above that describe it."""
    first = max(min(line, len(lines)), 1)
    if language == "sql":
        above = first
        while above > 1 and not re.search(r"(?i)\bCREATE\b", lines[above - 1]):
            above -= 1
        if re.search(r"(?i)\bCREATE\b", lines[above - 1]):
            first = above
    elif language == "malloy" and first > 1 and lines[first - 2].strip() == "source:":
        first -= 1
    while first > 1:
        above = lines[first - 2].strip()
        if above.startswith(_LEADS.get(language, ())):
            first -= 1
        elif language == "sql" and above.endswith("*/"):
            opening = next((n for n in range(first - 1, 0, -1) if "/*" in lines[n - 1]), None)
            if opening is None or not lines[opening - 1].strip().startswith("/*"):
                break
            first = opening
        else:
            break
    return first


def _end(lines: Sequence[str], first: int, last: int, place: Place) -> int:
    """Return the last line of an SQL statement."""
    whole = "\n".join(lines[first - 1 : last])
    at = whole.find(place.query) if place.query else -1
    if at >= 0 and place.query:
        return first + whole.count("\n", 0, at + len(place.query))
    numbers = range(min(place.line, last), last + 1)
    return next((n for n in numbers if lines[n - 1].rstrip().endswith(";")), last)
