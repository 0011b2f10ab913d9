"""The wheel compiles Malloy on every machine that has Node, without npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, has_taken, need
from malloy import there
from tutorial import environ_of, follow

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
    """Return a copy of the package's tracked files, without the bundled compiler."""
    return copied(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of a clone."""
    made = copied(tmp_path_factory.mktemp("wheel"))
    done = build(made)  # a source distribution, and the wheel from it
    assert done.returncode == 0, done.stderr
    (path,) = (made / "out").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Path:
    """Return the directory of programs of an environment with only the wheel installed.

    Its dependencies come from the tests' environment, which also has the project's files; the
    wheel takes precedence over them.
    """
    root = wheel.parent / "environment"
    uv = [need(found_uv(), "install uv")]
    offline = ["--offline", "--no-config"]
    subprocess.run([*uv, "venv", "-q", *offline, "-p", sys.executable, str(root)], check=True)
    python = ["-p", str(root / "bin" / "python")]
    install = [*uv, "pip", "install", "-q", *offline, *python, "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    (packages,) = (root / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    which = ["python", "-c", "import persist_assets; print(persist_assets.__file__)"]
    env = installed(root / "bin")
    used = subprocess.run(which, cwd=root, env=env, check=True, capture_output=True, text=True)
    assert used.stdout.startswith(str(packages)), used.stdout
    return root / "bin"


def installed(programs: Path) -> dict[str, str]:
    """Return environment variables with which nothing is imported from the repository."""
    return {k: v for k, v in environ_of(programs).items() if k != "PYTHONPATH"}


def copied(directory: Path) -> Path:
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
            (directory / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / "clone" / name)
    return directory / "clone"


def found_uv() -> str | None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return shutil.which("uv", path=path)


def build(clone: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    uv = need(found_uv(), "install uv")
    return subprocess.run(
        [uv, "build", *options, "--out-dir", str(clone / "out"), str(clone)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.proves("S21", "W26")
def test_a_wheel_built_from_a_clone_compiles_malloy_without_npm(
    wheel: Path, tmp_path: Path, make_project: Callable[..., Path]
) -> None:
    place = tmp_path / "installed"
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
        env={"PYTHONPATH": str(place), "PATH": str(node), "HOME": str(tmp_path)},
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
def test_building_a_wheel_fails_without_malloys_compiler(clone: Path) -> None:
    done = build(
        clone,
        "--wheel",
        npm_config_offline="true",
        npm_config_cache=str(clone / "npm-cache"),
    )
    assert done.returncode != 0
    assert "the package needs Malloy's compiler" in done.stderr + done.stdout
    assert "make bridge" in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.proves("W27")
def test_the_tutorial_runs_from_the_wheel(programs: Path, tmp_path: Path, servers: None) -> None:
    follow(tmp_path, installed(programs))


@pytest.mark.slow
@pytest.mark.proves("W27")
def test_a_new_project_has_a_table_within_a_minute(
    programs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    places = {"PERSIST_CACHE": str(tmp_path / "cache"), "PERSIST_SPARK_HOME": str(tmp_path)}
    env, root = {**installed(programs), **places}, tmp_path / "shop"

    def run(command: str, cwd: Path = root) -> str:
        done = subprocess.run(
            command, shell=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    request.addfinalizer(lambda: run("persist spark stop"))
    began = time.monotonic()
    run("persist init shop", tmp_path)
    assert "built" in run("persist build")
    seconds = time.monotonic() - began
    print(f"the first table after {seconds:.1f} s")
    has_taken(seconds, within_s=60)  # with Spark's start
    source = root / "sources" / "marts" / "daily_delays.sql"
    text = source.read_text()
    edited = text.replace("count(*) AS n_flights", "count(*) AS n_flights, 2 * count(*) AS twice")
    assert edited != text
    source.write_text(edited)
    assert "column twice added" in run("persist plan")
    assert "1 test: 1 passed" in run("persist test")
    assert "built" in run("persist build")
    assert "1 from dev to prod, 0 refused" in run("persist promote dev prod")
    counted = "SELECT sum(twice) > sum(n_flights) AS is_new FROM daily_delays"
    assert "true" in run(f'persist query --env prod "{counted}"').lower()
