"""Pages include the vendored style sheets, and work without them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from persist_assets.web.layout import SHEETS, style

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("W26")
def test_the_style_has_vendored_sheets_before_ours_and_no_external_urls() -> None:
    text = style()
    assert text.index("Pico CSS") < text.index(".uplot") < text.index(".tiles")
    assert "@import" not in text
    assert {u[:5] for u in re.findall(r"url\(\"?([^)\"]*)", text)} <= {"data:"}


@pytest.mark.proves("W26")
def test_the_style_omits_missing_vendored_sheets(tmp_path: Path) -> None:
    *_, ours = SHEETS
    assert style((tmp_path / "pico.min.css", ours)) == ours.read_text()
