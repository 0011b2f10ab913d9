"""Python functions that queries call, on a real Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.compiler.load import load, load_project
from persist_assets.core.errors import BuildError, CheckFailedError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.python_functions import load_udf
from persist_assets.operations.analyser import analyse

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

RAW = "CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';\n"
PYTHON = """
from dataclasses import dataclass

from persist_assets import udf
from sources._more import Word, times


@udf(returns="int")
def scaled(x, by=10):
    return None if x is None else times(x, by)


@udf(returns="array<string>")
def letters(text):
    return Word(text).letters()


@udf(returns="double", deterministic=False)
def drawn():
    import random

    return random.random()
"""
MORE = """
from dataclasses import dataclass

SIGN = 1


def times(x, by):
    return SIGN * x * by


@dataclass
class Word:
    text: str | None

    def letters(self):
        return sorted(set(self.text or ""))
"""
VIEWS = """
--@ persist
CREATE VIEW v AS SELECT a, scaled(a) AS x, scaled(by => 2, x => a) AS y, letters(b) AS l FROM t;
--@ persist
CREATE VIEW w AS SELECT max(scaled(x)) AS z FROM v WHERE scaled(a) > 10;
"""


@pytest.fixture
def make(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[..., Builder]:
    """Return a function that makes a builder for a new run of a project of files."""

    def builder(root: Path | None = None, **files: str) -> Builder:
        texts = {"raw.sql": RAW, "f.py": PYTHON, "_more.py": MORE, "v.sql": VIEWS}
        texts |= {name.replace("_", "."): text for name, text in files.items()}
        if root is None:
            root = make_project(texts)
            (root / "raw" / "t").mkdir(parents=True)
            rows = pa.table({"a": pa.array([1, 2, None], pa.int32()), "b": ["xyx", "", None]})
            pq.write_table(rows, root / "raw" / "t" / "part-0.parquet")
        else:
            for name, text in files.items():
                (root / "sources" / name.replace("__", "_").replace("_", ".", 1)).write_text(text)
        return enter(root)

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    rows = [tuple(row) for row in builder.read(named(builder, name)).collect()]
    return sorted(rows, key=repr)


def build_all(builder: Builder) -> dict[str, str]:
    """Build every persisted source, and return the actions."""
    return {s.name: builder.build(s).action for s in builder.project.persisted}


@pytest.mark.slow
@pytest.mark.proves("W30")
def test_builds_call_functions_in_python_and_an_edit_rebuilds_the_callers(
    make: Callable[..., Builder],
) -> None:
    builder = make(other_sql="--@ persist\nCREATE VIEW o AS SELECT a FROM t;\n")
    assert set(build_all(builder).values()) == {"built"}
    assert rows(builder, "v") == [(1, 10, 2, ["x", "y"]), (2, 20, 4, []), (None, None, None, [])]
    assert rows(builder, "w") == [(200,)]
    root = builder.settings.root
    (root / "sources" / "_more.py").write_text(MORE.replace("SIGN = 1", "SIGN = -1"))
    edited = make(root)
    # Queries of the first builder still call the first version of the functions.
    assert rows(builder, "w") == [(200,)]
    assert build_all(edited) == {"v": "built", "w": "built", "o": "reused"}
    assert rows(edited, "v")[0] == (1, -10, -2, ["x", "y"])
    assert rows(edited, "w") == [(None,)]


@pytest.mark.slow
@pytest.mark.proves("W30")
def test_queries_can_call_python_functions(make: Callable[..., Builder]) -> None:
    builder = make(v_sql="CREATE VIEW inline AS SELECT scaled(a) AS x FROM t;\n")
    assert rows(builder, "inline") == [(10,), (20,), (None,)]
    loaded = load(builder.settings)
    query = loaded.parse("SELECT scaled(x, 2) AS y FROM inline WHERE scaled(x) > 100")
    statement, read = builder.reader.statement(query, loaded.bind(query), {})
    assert [*builder.reader.load(statement, read).collect()] == [(40,)]


@pytest.mark.slow
@pytest.mark.proves("W30")
def test_checks_can_call_python_functions(make: Callable[..., Builder]) -> None:
    checked = '--@ persist check { expr { small="scaled(a, 2) < 4" } }\nCREATE VIEW c AS SELECT a FROM t;\n'
    builder = make(c_sql=checked, v_sql="")
    with pytest.raises(CheckFailedError, match="small"):
        builder.build(named(builder, "c"))
    passing = make(builder.settings.root, c_sql=checked.replace("< 4", "< 5"))
    assert build_all(passing) == {"c": "built"}


@pytest.mark.slow
@pytest.mark.proves("W30")
def test_nondeterministic_functions_are_called_for_each_row_of_each_build(
    make: Callable[..., Builder],
) -> None:
    builder = make(v_sql="--@ persist\nCREATE VIEW d AS SELECT a, drawn() AS x FROM t;\n")
    build_all(builder)
    values = [x for _, x in rows(builder, "d")]
    assert len(set(values)) == 3
    assert all(0 <= x < 1 for x in values)
    root = builder.settings.root
    assert build_all(make(root)) == {"d": "reused"}
    later = make(root)
    assert later.build(named(later, "d"), force=True).action == "built"
    assert not {*values} & {x for _, x in rows(later, "d")}


@pytest.mark.proves("W30")
def test_a_failed_import_fails_only_the_callers_of_its_functions(
    make: Callable[..., Builder],
) -> None:
    other = "--@ persist\nCREATE VIEW o AS SELECT a FROM t;\n"
    builder = make(f_py=PYTHON + "\nLIMIT = ()[1]\n", o_sql=other)
    assert builder.build(named(builder, "o")).action == "built"
    with pytest.raises(BuildError, match="cannot be imported: IndexError") as failure:
        builder.build(named(builder, "v"))
    assert failure.value.location is not None
    assert (failure.value.location.path, failure.value.location.line) == ("sources/f.py", 24)


@pytest.mark.proves("W30")
def test_an_analysis_runs_no_user_code_and_skips_callers_of_functions(
    make: Callable[..., Builder],
) -> None:
    builder = make(f_py=PYTHON + "\nLIMIT = ()[1]\n", o_sql="CREATE VIEW o AS SELECT a FROM t;\n")
    analysis = analyse(builder.settings.root, builder.project, builder.engine)
    assert analysis.n_queries == 1
    assert [(p.severity, p.message.split(": ")[1]) for p in analysis.problems] == [
        ("note", f"it calls `{name}`, whose code only builds run") for name in ("scaled", "scaled")
    ]


@pytest.mark.proves("W30")
def test_workers_need_neither_the_project_nor_the_package(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    """A process without the project and this package calls pickled functions."""
    from pyspark import cloudpickle

    files = {"raw.sql": RAW, "f.py": PYTHON, "_more.py": MORE, "v.sql": VIEWS}
    root = make_project(files)
    project = load_project(load_settings(root))
    functions = {u.name: load_udf(u, root) for u in project.udfs}
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps((functions["scaled"], functions["letters"])))
    script = (
        "import pickle, sys\n"
        "scaled, letters = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(scaled(3), letters('ba'), 'persist_assets' in sys.modules)\n"
    )
    spark = str(Path(sys.modules["pyspark"].__file__ or "").parents[1])
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.append({spark!r})\n{script}",
            str(sent),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "30 ['a', 'b'] False\n", done.stderr
    assert pickle.loads(sent.read_bytes())[0](2, 4) == 8
