"""The tutorial, run as it is written.

- A block in SQL, Python or TOML is a file. The text before it names the file last.
- A block of `console` has commands, after `$ `, each followed by all that it prints.
- `…` in what is shown stands for anything within its line; widths of columns may differ.
- A command fails where what is shown says so, and nowhere else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import clean_environ
from conftest import ROOT, need

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?P<before>.*?)^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
FAILURE = re.compile(r"^run … failed$|^refused ", re.M)
FILE = re.compile(r"`([\w/]+\.(?:sql|py|toml))`")


def steps() -> Iterator[tuple[str, str, str]]:
    """Yield what a reader does, in order: (`write`, path, text) or (`run`, command, shown)."""
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["language"] != "console":
            yield "write", FILE.findall(block["before"])[-1], block["text"]
            continue
        assert block["text"].startswith("$ ")
        for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            yield "run", command, shown


def matches(shown: str, printed: str) -> bool:
    """Tell whether a command printed what the page shows."""
    lines = [[" ".join(line.split()) for line in t.splitlines()] for t in (shown, printed)]
    return len(lines[0]) == len(lines[1]) and all(
        re.fullmatch(".*".join(map(re.escape, line.split("…"))), there)
        for line, there in zip(*lines, strict=True)
    )


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a  b\n…\n", "a b  \nanything\n", True),
        ("run … failed\n", "run 17 failed\n", True),
        ("run … failed\n", "run 17 succeeded\n", False),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("a\nb\n", "a\n", False),
    ],
)
def test_what_is_shown_is_compared_line_by_line(shown: str, printed: str, same: bool) -> None:
    assert bool(matches(shown, printed)) == same


@pytest.mark.proves("H7")
@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(tmp_path: Path, servers: None) -> None:
    bin_ = Path(sys.executable).parent
    need(str(bin_ / "persist") if (bin_ / "persist").exists() else None, "make setup")
    env = {**clean_environ(), "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    ran: set[str] = set()
    for kind, what, text in steps():
        if kind == "write":
            (tmp_path / what).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / what).write_text(text)
            continue
        done = subprocess.run(
            what,
            shell=True,
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert matches(text, done.stdout), f"$ {what}\n{done.stdout}\nand not\n{text}"
        assert (done.returncode != 0) == bool(FAILURE.search(text)), what
        ran |= {" ".join(what.split()[:2])}
    assert ran >= {f"persist {c}" for c in ("check", "plan", "build", "query", "promote")}
