"""The query shapes that the benchmarks measure are analysed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from conftest import ROOT

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from pathlib import Path

BENCHMARKS = ROOT / "benchmarks"


def test_at_least_a_hundred_query_shapes_compile_and_are_analysed(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    for name in ("shapes_tables.sql", "shapes.sql"):
        (tmp_path / "sources" / name).write_text((BENCHMARKS / name).read_text())
    project = load_project(load_settings(tmp_path))
    assert not project.errors
    text = (BENCHMARKS / "shapes.sql").read_text()
    grouped = re.findall(r"^-- group: \S.*\n--@ persist.*\nCREATE VIEW (\w+)", text, re.MULTILINE)
    assert grouped == [s.name for s in project.persisted]
    assert len(grouped) >= 100
    assert not {s.name for s in project.persisted if any("as a whole" in n for n in s.notes)}
