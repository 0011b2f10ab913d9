"""The tutorial's steps, read from its page and followed.

- A block in SQL, Python or TOML is a file. The text before it names the file last.
- A block of `console` has commands, after `$ `, each followed by all that it prints.
- `…` in what is shown stands for anything within its line; widths of columns may differ.
- A command fails where what is shown says so, and nowhere else.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from commands import clean_environ
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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


def environ_of(programs: Path) -> Mapping[str, str]:
    """Return the environment of a shell that finds the programs of a directory first."""
    return {**clean_environ(), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def follow(directory: Path, env: Mapping[str, str]) -> None:
    """Do what the tutorial says in an empty directory, and compare what its commands print.

    Parameters
    ----------
    env
        The environment of the shell, with a `persist` and a `python`.
    """
    ran: set[str] = set()
    for kind, what, text in steps():
        if kind == "write":
            (directory / what).parent.mkdir(parents=True, exist_ok=True)
            (directory / what).write_text(text)
            continue
        done = subprocess.run(
            what,
            shell=True,
            cwd=directory,
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
