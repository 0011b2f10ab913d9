"""Measure how long an editor waits for diagnostics after an edit, in a project of 1,000 sources.

    python benchmarks/latency.py [--edits N]

Prints milliseconds on the wall, from the edit to the diagnostics of the edited file and to the
end of the compilation of the whole project, and the CPU milliseconds of the server.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from editor import Editor, editing  # noqa: E402

FILES = ("sources/stg/stg_0003.sql", "sources/int2/int2_0003.sql", "sources/mart/mart_0003.sql")


@dataclass
class Latencies:
    """Milliseconds from edits to the diagnostics of the edited file: on the wall, and CPU."""

    wall_ms: list[float] = field(default_factory=list[float])
    cpu_ms: list[float] = field(default_factory=list[float])
    n_wrong: int = 0


def generate(root: Path) -> None:
    """Write a project of 1,000 sources."""
    script = str(ROOT / "benchmarks" / "gen_project.py")
    arguments = ["--n", "1000", "--format", "persist", "--out", str(root)]
    subprocess.run([sys.executable, script, *arguments], check=True, stdout=subprocess.DEVNULL)


def measure(editor: Editor, n_edits: int) -> Latencies:
    """Edit files of a generated project in turn, to wrong and to right texts.

    The next edit comes when the whole project has been compiled with the last one.
    """
    latencies = Latencies()
    texts = {path: editor.open(path) for path in FILES}
    settle(editor, FILES[0])
    for n in range(n_edits):
        path, wrong = FILES[n // 2 % len(FILES)], n % 2 == 0
        text = texts[path].replace("entity_id", f"entity_{n}", 1) if wrong else texts[path]
        cpu, start = cpu_ms(editor), time.perf_counter()
        editor.wait_for_version(path, editor.change(path, text))
        latencies.wall_ms.append(1000 * (time.perf_counter() - start))
        latencies.cpu_ms.append(cpu_ms(editor) - cpu)
        latencies.n_wrong += bool(editor.diagnostics[path])
        assert bool(editor.diagnostics[path]) == wrong, editor.diagnostics[path]
        settle(editor, path)
    return latencies


def settle(editor: Editor, path: str) -> None:
    """Wait until the whole project has been compiled: definitions wait for it."""
    editor.request("textDocument/definition", editor.place(path, "CREATE"))


def cpu_ms(editor: Editor) -> float:
    """Return the CPU time of the server until now."""
    values = Path(f"/proc/{editor.pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=60)
    n_edits: int = parser.parse_args().edits
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve()
        generate(root)
        with editing(root) as editor:
            latencies = measure(editor, n_edits)
    wall = sorted(latencies.wall_ms)
    print(f"{n_edits} edits in a project of 1,000 sources, until the file's diagnostics:")
    slow = wall[int(0.95 * len(wall))]
    print(f"  wall: median {statistics.median(wall):.0f} ms, 95 % within {slow:.0f} ms")
    print(f"  CPU:  mean {statistics.mean(latencies.cpu_ms):.0f} ms")


if __name__ == "__main__":
    main()
