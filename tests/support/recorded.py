"""The BuildIDs of known queries, as recorded in `tests/golden/build_ids.json`.

A change of a BuildID lets users' tables be taken over, or built, so it must be meant. Whoever means
it says so in the changelog and records the new ones: `PYTHONPATH=tests python
tests/support/recorded.py "the sentence of the changelog"`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import ROOT
from pairs import golden, known_build_id

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

FILE = ROOT / "tests" / "golden" / "build_ids.json"
KINDS = ROOT / "tests" / "golden" / "kinds"
"""A project with a source of each kind, in each language."""
WHAT_TO_DO = """{n} BuildIDs of known queries changed: {names}.

Tables of users get other BuildIDs with this. If that is not meant, undo it. If it is:
1. Say in CHANGELOG.md, under "Changed", which queries get other BuildIDs.
2. If the same text now computes other rows, because it computed wrong ones, raise the number of what
   computed them in `ROWS` (persist_assets/compiler/texts.py): tables are built then, and not taken over.
3. Record them: PYTHONPATH=tests python tests/support/recorded.py "the sentence of the changelog"
See docs/architecture/upgrades.md."""


def recorded() -> dict[str, dict[str, str]]:
    """Return the recorded BuildIDs, shortened, by the name of their set and of the source."""
    return json.loads(FILE.read_text())


def changed(name: str, now: dict[str, str]) -> str:
    """Return what to do about the BuildIDs of a set that are others now; empty: there are none."""
    before = recorded().get(name, {})
    names = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return WHAT_TO_DO.format(n=len(names), names=shown) if names else ""


def in_changelog(sentence: str) -> bool:
    """Whether the changelog has a sentence, wherever its lines end."""
    text = (ROOT / "CHANGELOG.md").read_text()
    return bool(sentence.strip()) and " ".join(sentence.split()) in " ".join(text.split())


def build_ids(root: Path) -> dict[str, str]:
    """Return the BuildID of each source of a project, shortened."""
    project = load_project(load_settings(root, environ={}))
    assert not project.errors, [str(p) for p in project.errors]
    return {s.source_id: s.build_id[:12] for s in project.sources}


def of_pairs() -> dict[str, str]:
    """Return the BuildIDs of all golden pairs."""
    return {
        f"{title} ({side})": known_build_id(query)[:12]
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


def of_kinds(root: Path) -> dict[str, str]:
    """Return the BuildIDs of the project with a source of each kind, which is copied to `root`."""
    shutil.copytree(KINDS, root, dirs_exist_ok=True)
    return build_ids(root)


def main(sentence: str = "") -> None:
    """Record the BuildIDs of now, with a sentence of the changelog if any of them changed.

    Raises
    ------
    SystemExit
        Some changed, and the changelog does not have the sentence.
    """
    with tempfile.TemporaryDirectory() as temporary:
        demo = Path(temporary, "demo")
        demo.mkdir()
        copy_demo(demo)
        sets = {
            "pairs": of_pairs(),
            "demo": build_ids(demo),
            "generated": of_generated(Path(temporary, "generated")),
            "kinds": of_kinds(Path(temporary, "kinds")),
        }
    before = recorded()
    others = [
        k for name, ids in sets.items() for k in ids if before.get(name, {}).get(k, "") != ids[k]
    ]
    new = [k for name, ids in sets.items() for k in ids if k not in before.get(name, {})]
    sentences = before.get("changelog", {})
    if len(others) > len(new):
        if not in_changelog(sentence):
            sys.exit(WHAT_TO_DO.format(n=len(others) - len(new), names=", ".join(others[:5])))
        sentences = {**sentences, sentence: f"{len(others) - len(new)} BuildIDs"}
    sets["changelog"] = sentences
    FILE.write_text(json.dumps(sets, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
