"""The BuildIDs of known queries, as recorded in `tests/golden/build_ids.json`.

A change of a BuildID rebuilds tables of users, so it must be meant. Whoever means it records the
new ones with `PYTHONPATH=tests python tests/support/recorded.py` and says so in the changelog.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import ROOT
from pairs import golden, project

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

FILE = ROOT / "tests" / "golden" / "build_ids.json"


def recorded() -> dict[str, dict[str, str]]:
    """Return the recorded BuildIDs, shortened, by the name of their set and of the source."""
    return json.loads(FILE.read_text())


def build_ids(root: Path) -> dict[str, str]:
    """Return the BuildID of each source of a project, shortened."""
    project = load_project(load_settings(root, environ={}))
    assert not project.errors, [str(p) for p in project.errors]
    return {s.source_id: s.build_id[:12] for s in project.sources}


def of_pairs() -> dict[str, str]:
    """Return the BuildIDs of all golden pairs."""
    return {
        f"{title} ({side})": project(query).by_id["q@sources/q.sql"].build_id[:12]
        for name in ("equal.txt", "different.txt")
        for title, *queries in golden(name)
        for side, query in zip(("one", "other"), queries, strict=True)
    }


def of_generated(root: Path) -> dict[str, str]:
    """Return the BuildIDs of a project of 1,000 generated sources, which is written to `root`."""
    script = ROOT / "benchmarks" / "gen_project.py"
    command = [sys.executable, str(script), "--n", "1000", "--format", "persist"]
    subprocess.run([*command, "--out", str(root)], check=True, stdout=subprocess.DEVNULL)
    return build_ids(root)


def copy_demo(root: Path) -> None:
    """Copy the demo and prepare its data; nothing is built."""
    for name in ("persist.toml", "definitions.py", "workspace.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "examples", root / "examples")
    prepare = [sys.executable, "examples/flights/prepare.py", ".persist/demo"]
    subprocess.run(prepare, cwd=root, check=True)


def main() -> None:
    """Record the BuildIDs of now."""
    with tempfile.TemporaryDirectory() as temporary:
        demo = Path(temporary, "demo")
        demo.mkdir()
        copy_demo(demo)
        sets = {
            "pairs": of_pairs(),
            "demo": build_ids(demo),
            "generated": of_generated(Path(temporary, "generated")),
        }
    FILE.write_text(json.dumps(sets, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
