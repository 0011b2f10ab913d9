"""Pages have the vendored style sheet, and are plain without it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from persist_assets.web.layout import SHEETS, style

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("W26")
def test_the_style_has_the_vendored_sheets_and_then_ours_and_loads_nothing() -> None:
    text = style()
    assert text.index("Pico CSS") < text.index(".uplot") < text.index(".tiles")
    assert "@import" not in text
    assert {u[:5] for u in re.findall(r"url\(\"?([^)\"]*)", text)} <= {"data:"}


@pytest.mark.proves("W26")
def test_without_the_vendored_sheets_the_style_is_ours(tmp_path: Path) -> None:
    *_, ours = SHEETS
    assert style((tmp_path / "pico.min.css", ours)) == ours.read_text()
