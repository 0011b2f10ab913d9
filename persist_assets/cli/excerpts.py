"""Lines of source files under messages, with a caret under the part that a message is about."""

import re
from collections.abc import Mapping
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from persist_assets.core.errors import Location

_TOKEN = re.compile(r"\w+|`[^`]*`|'[^']*'|\"[^\"]*\"|.")
_SECRET = re.compile(r"://[^/\s]*@|password|secret|token|credential", re.IGNORECASE)
"""Lines that stay out of logs: they may contain secrets."""
_MOST = 120
"""The greatest number of characters of a line that are shown."""


def excerpt(root: Path, place: Location, texts: Mapping[str, str]) -> Text | None:
    """Return the line at a place, with a caret under the token there; None if there is none.

    Parameters
    ----------
    root
        The project root; files outside it are not shown.
    texts
        Texts that are in no file, by the paths of their locations.
    """
    text = texts.get(place.path) or _read(root, place.path)
    lines = text.split("\n") if text is not None else []
    if not 0 < place.line <= len(lines) or _SECRET.search(lines[place.line - 1]):
        return None
    line = "".join(c if c.isprintable() else " " for c in lines[place.line - 1].rstrip("\r"))
    at = place.column - 1
    if not line.strip() or not 0 <= at <= len(line):
        return None
    match = _TOKEN.match(line, at)
    end = match.end() if match else at + 1
    start = max(0, min(at - _MOST // 3, len(line) - _MOST))
    lead = "…" if start else ""
    shown = lead + line[start : start + _MOST] + ("…" if len(line) > start + _MOST else "")
    margin = " " * len(str(place.line))
    blank = " " * cell_len(lead + line[start:at])
    carets = "^" * max(1, cell_len(line[at : min(end, start + _MOST)]))
    return Text.assemble(
        (f"  {place.line} | ", "dim"),
        shown,
        "\n",
        (f"  {margin} | ", "dim"),
        blank,
        (carets, "bold"),
    )


def _read(root: Path, path: str) -> str | None:
    file = root / path
    try:
        if not file.resolve().is_relative_to(root.resolve()) or not file.is_file():
            return None
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
