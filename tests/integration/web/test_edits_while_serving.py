"""Edits of modules and settings while a service runs: it plans with what builds would use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.web.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = {
    "raw.sql": "CREATE TABLE t (a INT) USING parquet LOCATION 't';\n",
    "f.py": "import helper\nfrom persist_assets import table\n"
    "@table\ndef f(t):\n    return t.filter(f'a > {helper.N}')\n",
    "now.sql": "--@ persist\nCREATE VIEW hours AS SELECT hour(TIMESTAMP '2024-01-01 00:00:00Z') AS h;\n",
}


@pytest.mark.proves("V59")
@pytest.mark.parametrize("place", ["helper.py", "src/helper.py"])
def test_a_service_plans_with_edited_modules_and_settings(
    make_project: Callable[..., Path], place: str
) -> None:
    root = make_project(FILES)
    helper, toml = root / place, root / "persist.toml"
    helper.parent.mkdir(exist_ok=True)
    helper.write_text("N = 1\n")
    settings = load_settings(root)
    graph = Graph(settings, Ledger(settings.ledger))

    def build_ids() -> dict[str, str]:
        return {s.name: s.build_id for s in graph.observer().project.persisted}

    def of_a_build() -> dict[str, str]:
        return {s.name: s.build_id for s in load_project(load_settings(root)).persisted}

    seen = [build_ids()]
    helper.write_text("N = 22\n")
    seen.append(build_ids())
    assert seen[1] == of_a_build() != seen[0]
    toml.write_text(f'timezone = "Asia/Tokyo"\n{toml.read_text()}')
    seen.append(build_ids())
    assert seen[2] == of_a_build() != seen[1]
    toml.write_text(f'ledger = "sqlite:///{root / "other.db"}"\n{toml.read_text()}')
    with pytest.raises(SettingsError, match="names another ledger now"):
        build_ids()
    graph.ledger.close()
