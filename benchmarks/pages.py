"""Pages of the docs that contain measured figures, between two marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN, _END = "<!-- measured -->", "<!-- /measured -->"


def replace_figures(page: Path, text: str) -> None:
    """Replace the text between the marks of a page.

    Raises
    ------
    ValueError
        The page lacks a mark.
    """
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no {_BEGIN} … {_END}")
    page.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")
