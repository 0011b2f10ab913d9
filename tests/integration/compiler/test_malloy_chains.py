"""Chains of Malloy sources: each file is compiled once, and a longer chain costs no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import StringIO
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING

import pytest
from malloy import chains, compiler
from rich.console import Console

from persist_assets.cli.progress import Compiling
from persist_assets.compiler.load import Loaded, load, require
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.proves("S16")

Compile = Callable[[dict[str, str]], tuple[Loaded, list[tuple[int, int]]]]


@pytest.fixture
def compiled(make_project: Callable[..., Path]) -> Compile:
    """Return a function that compiles files and records the calls of the compiler."""
    compiler()

    def compiled(files: dict[str, str]) -> tuple[Loaded, list[tuple[int, int]]]:
        shutil.rmtree(make_project({}) / "sources")
        settings = load_settings(make_project(files), environ={})
        calls: list[tuple[int, int]] = []
        return load(settings, lambda done, n: calls.append((done, n))), calls

    return compiled


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    return sum(u.ru_utime + u.ru_stime for u in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


@pytest.mark.parametrize("how", ["import", "table"])
def test_each_file_of_a_chain_is_compiled_once(compiled: Compile, how: str) -> None:
    loaded, calls = compiled(chains(24, 12, how))
    assert len(require(loaded.project).persisted) == 24
    assert calls == [(done, 24) for done in range(24)]
    _, calls = compiled(chains(24, 12, how))
    assert calls == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["import", "table"])
def test_a_chain_takes_less_than_four_times_the_cpu_of_independent_files(
    compiled: Compile, how: str
) -> None:
    compiled(chains(1, 1, how))  # loads what later calls share
    spent: dict[int, float] = {}
    for depth in (1, 40):
        before = cpu_s()
        loaded, _ = compiled(chains(40, depth, how))
        spent[depth] = cpu_s() - before
        assert len(require(loaded.project).persisted) == 40
    assert spent[40] < 4 * spent[1], spent


def test_compile_order_follows_inputs_across_languages_and_imports(
    compiled: Compile,
) -> None:
    loaded, calls = compiled(
        {
            "orders.sql": "CREATE TABLE orders (id INT) USING parquet LOCATION 'o';",
            "a.malloy": "import 'b.malloy'\nsource: a is b -> { select: id }",
            "b.malloy": 'source: b is spark.sql("""SELECT id FROM seen""") -> { select: id }',
            "seen.sql": "CREATE VIEW seen AS SELECT id FROM z; CREATE VIEW gone AS SELECT 1 AS id;",
            "z.malloy": "// spark.table('a')\nsource: z is spark.table('orders') -> { select: id }",
        }
    )
    require(loaded.project)
    assert len(calls) == 3


def test_files_compile_even_if_their_text_does_not_show_the_dependencies(compiled: Compile) -> None:
    loaded, calls = compiled(
        {
            "orders.sql": "CREATE TABLE orders (id INT) USING parquet LOCATION 'o';",
            # Names that a search of the text misses, and some that are not references.
            "a.malloy": "source: a is spark.table('y') -> { select: id }",
            "b.malloy": "source:\n  x is spark.table('orders') -> { select: id }\n"
            "  y is spark.table('orders') -> { select: id }",
            "c.malloy": "source: c is spark.table('a') -> { select: t is \".table('none')\", id }",
            "d.malloy": 'source: d is spark.sql("""SELECT \'.table("none")\' AS t""")',
        }
    )
    assert [s.name for s in require(loaded.project).sources].count("c") == 1
    assert len(calls) <= 6


def test_a_file_with_a_missing_input_is_compiled_at_most_twice(compiled: Compile) -> None:
    files = chains(6, 6, "table")
    files |= {f"none{i}.malloy": f"source: n{i} is spark.table('none')" for i in range(3)}
    files["circle1.malloy"] = "source: c1 is spark.table('c2') -> { select: id }"
    files["circle2.malloy"] = "source: c2 is spark.table('c1') -> { select: id }"
    loaded, calls = compiled(files)
    assert len(loaded.project.persisted) == 6
    assert {p.location.path for p in loaded.project.errors} == {
        f"sources/{name}.malloy" for name in ("none0", "none1", "none2", "circle1", "circle2")
    }
    assert len(calls) <= 6 + 2 * 5


def shown(*, terminal: bool, steps: list[float]) -> str:
    """Return the output of a compilation whose files finish at these seconds."""
    now = [0.0]
    console = Console(file=StringIO(), force_terminal=terminal, width=80)
    with Compiling(console, lambda: now[0]) as compiling:
        for done, now[0] in enumerate(steps):
            compiling(done, len(steps))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_long_compilation_shows_its_progress() -> None:
    assert shown(terminal=False, steps=[1.0, 5.0, 9.9]) == ""
    lines = shown(terminal=False, steps=[1.0, 11.0, 12.0, 20.0, 25.0]).splitlines()
    assert lines == ["compiling Malloy: 1 of 5 files", "compiling Malloy: 4 of 5 files"]
    assert shown(terminal=True, steps=[0.1, 0.5]) == ""
    line = shown(terminal=True, steps=[0.1, 2.0])
    assert "compiling Malloy: 1 of 2 files" in line
    assert line.endswith("\x1b[2K")  # the line is erased
