"""What is shipped: a wheel that compiles Malloy wherever there is Node, and no npm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, need
from malloy import Told, malloy

SCRIPT = """
from malloy import Told, malloy
import persist_assets
assert persist_assets.__file__.startswith({place!r}), persist_assets.__file__
with malloy(Told({{"a.malloy": "source: t is spark.table('t')"}}, {{"t": [("a", "int")]}})) as session:
    print([s.name for s in session.compile_model("a.malloy").sources])
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


def test_a_wheel_compiles_malloy_with_node_and_without_npm(checkout: Path) -> None:
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
    path = os.pathsep.join([str(place), str(ROOT / "tests")])
    said = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(place=str(place))],
        env={**os.environ, "PYTHONPATH": path},
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.stdout.strip() == "['t']", said.stderr


def test_a_wheel_without_the_compiler_is_not_built(checkout: Path) -> None:
    shutil.rmtree(
        checkout / "persist_assets" / "frontends" / "malloy_bridge" / "dist", ignore_errors=True
    )
    done = build(checkout)
    assert done.returncode != 0
    assert "make bridge" in done.stderr + done.stdout
