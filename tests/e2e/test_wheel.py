"""What is shipped: a wheel that compiles Malloy wherever there is Node, and no npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, need
from malloy import Told, malloy, there

SCRIPT = """
import sys
import persist_assets
from persist_assets.cli import main
assert persist_assets.__file__.startswith({place!r}), persist_assets.__file__
sys.argv = ["persist", "check", "--json"]
main()
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of what goes into a wheel."""
    copy = tmp_path / "checkout"
    skipped = shutil.ignore_patterns("node_modules", "__pycache__")
    for name in ("persist_assets", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    uv = need(shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"), "install uv")  # fmt: skip
    return subprocess.run(
        [uv, "build", "--wheel", "--out-dir", str(checkout / "out"), str(checkout)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_wheel_compiles_malloy_with_node_and_without_npm(
    checkout: Path, make_project: Callable[..., Path]
) -> None:
    malloy(Told({})).close()
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    (wheel,) = (checkout / "out").glob("*.whl")
    place = checkout / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    bridge = place / "persist_assets" / "frontends" / "malloy_bridge"
    assert (bridge / "dist" / "NOTICES.txt").exists()
    assert not (bridge / "node_modules").exists()
    project = make_project(
        {
            "t.sql": "CREATE TABLE t (a INT) USING parquet LOCATION 't';",
            "m.malloy": "##! experimental.persistence\n#@ persist\n"
            "source: m is spark.table('t') -> { group_by: a }\n",
        }
    )
    node = Path(need(there(), "install Node")).parent
    told = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(place=str(place))],
        env={"PYTHONPATH": str(place), "PATH": str(node), "HOME": str(checkout)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    sources = json.loads(told.stdout)["sources"]
    assert [(s["source_id"], s["language"]) for s in sources] == [
        ("t@sources/t.sql", "sql"),
        ("m@sources/m.malloy", "malloy"),
    ]


def test_a_wheel_without_the_compiler_is_not_built(checkout: Path) -> None:
    shutil.rmtree(
        checkout / "persist_assets" / "frontends" / "malloy_bridge" / "dist", ignore_errors=True
    )
    done = build(checkout)
    assert done.returncode != 0
    assert "make bridge" in done.stderr + done.stdout
