"""What is shipped: a wheel that compiles Malloy wherever there is Node, and no npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, need
from malloy import there

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = """
import sys
import persist_assets
from persist_assets.cli import main
assert persist_assets.__file__.startswith({place!r}), persist_assets.__file__
sys.argv = ["persist", "check", "--json"]
main()
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the tracked files that the package is built from: there is no bundle."""
    paths = ["persist_assets", "scripts", "pyproject.toml", "README.md", "LICENSE", ".gitignore"]
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in tracked.stdout.split("\0"):
        if name and (ROOT / name).exists():
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "clone" / name)
    return tmp_path / "clone"


def build(clone: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    uv = need(shutil.which("uv", path=path), "install uv")
    return subprocess.run(
        [uv, "build", *options, "--out-dir", str(clone / "out"), str(clone)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.proves("S21", "W26")
def test_a_clone_is_built_into_a_wheel_that_compiles_malloy_without_npm(
    clone: Path, make_project: Callable[..., Path]
) -> None:
    done = build(clone)  # a source distribution, and the wheel from it
    assert done.returncode == 0, done.stderr
    (wheel,) = (clone / "out").glob("*.whl")
    place = clone / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    assert (place / "persist_assets" / "py.typed").exists()
    bridge = place / "persist_assets" / "compiler" / "malloy" / "bridge_js"
    assert (bridge / "dist" / "NOTICES.txt").exists()
    assert not (bridge / "node_modules").exists()
    vendored = place / "persist_assets" / "web" / "vendor" / "dist"
    notices = (vendored / "NOTICES.txt").read_text()
    for package, file in (("@picocss/pico", "pico.min.css"), ("uplot", "uPlot.iife.min.js")):
        assert package in notices and (vendored / file).exists()
    project = make_project(
        {
            "t.sql": "CREATE TABLE t (a INT) USING parquet LOCATION 't';",
            "m.malloy": "##! experimental.persistence\n#@ persist\n"
            "source: m is spark.table('t') -> { group_by: a }\n",
        }
    )
    node = Path(need(there(), "bundle Malloy's compiler: make bridge")).parent
    checked = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(place=str(place))],
        env={"PYTHONPATH": str(place), "PATH": str(node), "HOME": str(clone)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stderr
    sources = json.loads(checked.stdout)["sources"]
    assert [(s["source_id"], s["language"]) for s in sources] == [
        ("t@sources/t.sql", "sql"),
        ("m@sources/m.malloy", "malloy"),
    ]


@pytest.mark.proves("S21")
def test_a_wheel_is_not_built_without_the_compiler(clone: Path) -> None:
    done = build(
        clone,
        "--wheel",
        npm_config_offline="true",
        npm_config_cache=str(clone / "npm-cache"),
    )
    assert done.returncode != 0
    assert "the package needs Malloy's compiler" in done.stderr + done.stdout
    assert "make bridge" in done.stderr + done.stdout
