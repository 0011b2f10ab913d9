"""Compare with SQLMesh, dbt, dagster-dbt and Spark's pipelines, and write docs/benchmarks-peers.md.

    python benchmarks/peers.py [--n 100] [--large 1000] [--rows 1000] [--tools SQLMesh,…] [--print]

All get the same models (`gen_project.py`) over the same rows. Each command is a process of its own,
measured once, in seconds on the wall and CPU seconds of it and its children. The environments of
the tools are below the user's cache directory, see `peers_tools.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pages import replace_figures
from peers_tools import (
    PACKAGES,
    ROOT,
    DagsterDbt,
    Dbt,
    Persist,
    Pipelines,
    SqlMesh,
    Tool,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "benchmarks-peers.md"
TOOLS: tuple[type[Tool], ...] = (Persist, SqlMesh, Dbt, DagsterDbt, Pipelines)
LITERAL = (r"'20\d\d-01-01'", "'2009-01-01'")
"""In the WHERE of a staging model: all of its columns may differ."""
COLUMN = (r"(amount > )\d+( THEN 1)", r"\g<1>7\g<2>")
"""In one column, `is_large`, of a staging model."""
_NEW_DAY = """
import sys
from pathlib import Path
import pyarrow.compute as pc, pyarrow.parquet as pq
raw = Path(sys.argv[1]) / "raw_orders"
table = pq.read_table(raw / "part-0.parquet")
new = table.filter(pc.equal(table["ds"], pc.max(table["ds"])))
pq.write_table(new, raw / "part-1.parquet")
"""


def adopt_orphans() -> None:
    """Let processes whose parents have ended become children of this one, such as Spark's JVMs.

    Their CPU seconds count then; only on Linux.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def wait_for_orphans() -> None:
    """Wait for the end of all children."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def measured(tool: Tool, command: list[str]) -> tuple[str, str]:
    """Return what a command took, and its output."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = tool.run(command)
    wait_for_orphans()
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{cpu:.1f} CPU s, {wall:.1f} s", output


def counted(tool: Tool, step: str) -> str:
    """Return what a step computes and takes.

    A plan of ours says what its build computes; others count while they build.
    """
    commands = tool.commands()
    n = tool.count(tool.run(commands["plan"])) if isinstance(tool, Persist) else None
    command = commands["build" if isinstance(tool, Persist) else step]
    taken, output = measured(tool, command)
    return f"{tool.count(output) if n is None else n} models, {taken}"


def compare(tool: Tool, rows: int, *, builds: bool) -> Iterator[tuple[str, str]]:
    """Yield steps and what they took."""
    tool.prepare(rows)
    tool.refill()
    commands = tool.commands()
    tool.forget()
    yield "load, cold", measured(tool, commands["load"])[0]
    yield "load, warm", measured(tool, commands["load"])[0]
    if not builds or "build" not in commands:
        return
    yield "first build", counted(tool, "build")
    if isinstance(tool, Dbt):
        tool.keep_state()
    yield "nothing changed", counted(tool, "plan")
    for what, edit in (("a literal in WHERE changed", LITERAL), ("one column changed", COLUMN)):
        tool.edit("stg_0000", *edit)
        yield what, counted(tool, "plan")
        if isinstance(tool, Dbt):
            tool.keep_state()
    subprocess.run([sys.executable, "-c", _NEW_DAY, str(tool.root / "raw")], check=True)
    tool.refill()
    yield "a day appended to one raw table", counted(tool, "new rows")


def table(results: dict[str, dict[str, str]]) -> str:
    """Return results by tool and step as Markdown."""
    steps = [*dict.fromkeys(step for of in results.values() for step in of)]
    lines = [f"| | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for step in steps:
        cells = (of.get(step, "–") for of in results.values())
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all tools, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100, help="models that are built")
    parser.add_argument("--large", type=int, default=1000, help="models that are only loaded")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each raw table")
    parser.add_argument("--tools", default=",".join(tool.name for tool in TOOLS))
    parser.add_argument("--print", action="store_true", help="do not write the page")
    options = parser.parse_args()
    adopt_orphans()
    chosen = [tool for tool in TOOLS if tool.name in options.tools.split(",")]
    parts: list[str] = []
    for n, builds in ((options.n, True), (options.large, False)):
        results: dict[str, dict[str, str]] = {}
        for kind in chosen if n else ():
            with tempfile.TemporaryDirectory(prefix="persist-peers-") as directory:
                tool = kind(Path(directory, "project"), n)
                of = results[kind.name] = {}
                try:
                    for step, value in compare(tool, options.rows, builds=builds):
                        of[step] = value
                        print(f"{n:,} models, {kind.name}, {step}: {value}", flush=True)
                except RuntimeError as error:
                    print(f"{kind.name} failed: {error}", file=sys.stderr, flush=True)
                    of["failed"] = re.sub(r"\s+", " ", str(error))[-200:]
        if results:
            parts.append(
                f"{n:,} models over raw tables of {options.rows:,} rows:\n\n{table(results)}"
            )
    packages = ", ".join(p for of in PACKAGES.values() for p in of)
    about = f"Measured on {date.today()}, {os.cpu_count()} cores: {packages}."
    text = "\n\n".join([about, *parts])
    print(text)
    if not options.print:
        replace_figures(PAGE, text)


if __name__ == "__main__":
    main()
