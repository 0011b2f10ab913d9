"""`PersistedSourcesComponent` in a fresh project of `dg`: scaffolded, checked, listed, launched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, need

DG = Path(sys.executable).with_name("dg")
PYPROJECT = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
LAKE = """
from persist_assets import AssetTranslator, PersistedSourcesComponent


class Translator(AssetTranslator):
    def asset_spec(self, source):
        return super().asset_spec(source).replace_attributes(group_name="lake")


class Lake(PersistedSourcesComponent):
    def translator(self):
        return Translator
"""


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
@pytest.mark.proves("K15", "W19")
def test_dg_can_scaffold_check_list_and_launch_the_component(tmp_path: Path) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    package = tmp_path / "src" / "shop"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (package / "definitions.py").write_text(DEFINITIONS)
    (package / "lake.py").write_text(LAKE)
    for directory in (package, package / "defs"):
        (directory / "__init__.py").touch()
    environ = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home")}
    environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(tmp_path / "src")))

    def dg(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(DG), *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def listed() -> dict[str, str]:
        assets = json.loads(dg("list", "defs", "--json"))["assets"]
        return {asset["asset_key"]: asset["group_name"] for asset in assets}

    dg("scaffold", "defs", "persist_assets.PersistedSourcesComponent", "flights")
    defs = package / "defs" / "flights" / "defs.yaml"
    assert listed()["marts/daily_delays"] == "marts"
    dg("check", "defs")
    dg("launch", "--assets", "marts/daily_delays")
    assert [*(defs.parent / ".persist" / "warehouse").rglob("part-*.parquet")]

    right = defs.read_text()
    defs.write_text(right.replace("path:", "pat:"))
    assert "'pat' was unexpected" in dg("check", "yaml", code=1)
    defs.write_text(right.replace("path: sources", "path: nowhere"))
    assert "there is no directory" in dg("check", "defs", code=1)
    defs.write_text(right.replace("persist_assets.PersistedSourcesComponent", "shop.lake.Lake"))
    assert listed()["marts/daily_delays"] == "lake"

    dg("scaffold", "defs", "persist_assets.PersistedSourcesComponent", "o", "--path", "../x")
    other = package / "defs" / "o"
    assert [p.name for p in other.iterdir()] == ["defs.yaml"]
    assert "path: ../x" in (other / "defs.yaml").read_text()
