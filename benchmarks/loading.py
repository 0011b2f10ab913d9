"""Measure what loading many sources into Dagster takes: CPU seconds, memory, and reloads.

`loading.py N` prints a row in JSON for each figure. A process of its own measures each, so that
none profits from another; the floor is a process that makes as many assets without any source.
Memory is what a process has resident beyond its imports, after Dagster's repository is made.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import run

if TYPE_CHECKING:
    from collections.abc import Sequence

RELOADS = 10


def _resident_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def measure(kind: str, directory: str, n: int) -> dict[str, float]:
    """Load in this process; return CPU seconds with imports and without, and KB of each source."""
    import dagster as dg

    if kind == "floor":
        imported_s, before = time.process_time(), _resident_kb()
        made: dict[str, object] = {}
        exec(run.TRIVIAL % n, made)
        definitions = made["defs"]
        assert isinstance(definitions, dg.Definitions)
        definitions.get_repository_def()
    else:
        import persist_assets.plugin.assets
        from persist_assets import load_sources

        assert persist_assets.plugin.assets
        imported_s, before = time.process_time(), _resident_kb()
        load_sources(directory).get_repository_def()
    now_s = time.process_time()
    kb = (_resident_kb() - before) / n
    return {"cpu_s": now_s, "load_s": now_s - imported_s, "imports_s": imported_s, "kb": kb}


def reload(directory: str, n: int) -> dict[str, float]:
    """Load many times in this process; return how the number of objects and the time grow.

    Parameters
    ----------
    n
        The number of measured loads.
    """
    from persist_assets import load_sources

    objects: list[int] = []
    seconds: list[float] = []
    resident: list[int] = []
    for _ in range(n + 2):  # the first two fill caches
        start = time.process_time()
        load_sources(directory).get_repository_def()
        seconds.append(time.process_time() - start)
        gc.collect()
        objects.append(len(gc.get_objects()))
        resident.append(_resident_kb())
    return {
        "objects": objects[-1] / objects[1],
        "kb": resident[-1] / resident[1],
        "load_s": sum(seconds[2:]) / n,
    }


def _of_a_process(cache: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": cache, "PYTHONWARNINGS": "ignore"},
    )
    return json.loads(done.stdout)


def figures(
    n: int, kinds: Sequence[str] = ("floor", "cold", "warm"), reloads: int = RELOADS
) -> dict[str, dict[str, float]]:
    """Return the figures of loads of some kinds, and of reloads."""
    with tempfile.TemporaryDirectory() as temporary:
        sources = str(run.generate(Path(temporary, "p"), n) / "sources")
        cache = str(Path(temporary, "cache"))
        rows = {k: _of_a_process(cache, "measure", k, sources, str(n)) for k in kinds}
        return {**rows, "reloads": _of_a_process(cache, "reload", sources, str(reloads))}


def main() -> None:
    """Print a row of the table for each figure."""
    if sys.argv[1] == "measure":
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    if sys.argv[1] == "reload":
        print(json.dumps(reload(sys.argv[2], int(sys.argv[3]))))
        return
    n = int(sys.argv[1])
    measured = figures(n)
    floor, reloads = measured["floor"], measured["reloads"]
    for kind, goal in (("cold", "≤ 25 CPU s"), ("warm", "≤ 3 CPU s")):
        one = measured[kind]
        row = (
            f"`load_sources`, {n:,} sources, {kind}, CPU s",
            f"as many trivial assets: {floor['load_s']:.1f}, after {floor['imports_s']:.1f} of "
            "imports",
            f"{one['load_s']:.1f}, after {one['imports_s']:.1f} of imports; "
            f"{one['kb']:.0f} KB of each source",
            f"{goal}, 60 KB",
        )
        print(json.dumps(row, ensure_ascii=False), flush=True)
    row = (
        f"the same in one process, {RELOADS} reloads",
        "",
        f"{reloads['load_s']:.1f} CPU s each; {reloads['objects']:.3f}× the objects, "
        f"{reloads['kb']:.2f}× the memory",
        "no growth",
    )
    print(json.dumps(row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
