"""Python files → declarations and BuildIDs: sources, their inputs and the code they depend on."""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, compiled, draws, printed_under_another_hash_seed
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.compiler.frontends.python import parse_python
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.project_modules import modules_of
from persist_assets.engine.python_functions import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

T = "CREATE TABLE flights (carrier STRING, delay DOUBLE) USING parquet LOCATION 'f';\n"
IMPORTS = "from persist_assets import incremental_table, model, source, table\n"


def project(text: str, **files: str) -> Project:
    """Compile a Python file with a raw table; other files are named by their modules."""
    others = {f"/{name}.py": helper for name, helper in files.items()}
    return compiled({"raw.sql": T, "d.py": text, **others})


def wrong(text: str, **files: str) -> list[str]:
    return [
        str(p).split("\n")[0].removeprefix("sources/d.py:") for p in project(text, **files).problems
    ]


def warned(text: str, **files: str) -> list[str]:
    """Return the warnings of nondeterministic functions; no problem may be an error."""
    found = project(text, **files).problems
    assert all(p.severity == "warning" for p in found), [str(p) for p in found]
    return [str(p) for p in found if p.code == "python-nondeterministic"]


def only(text: str, name: str = "f", **files: str) -> Source:
    found = project(text, **files)
    assert not found.errors, [str(p) for p in found.errors]
    return found.by_id[f"{name}@sources/d.py"]


def declared(text: str) -> list[str]:
    found, problems, _ = parse_python(text, "sources/d.py", lambda path: None)
    assert not problems, [str(p) for p in problems]
    return [d.name for d in found]


# --------------------------------------------------------------------------------------- sources

BODY = "def f(flights):\n    return flights\n"


@pytest.mark.parametrize("kind", ["source", "model", "table", "incremental_table"])
@pytest.mark.parametrize(
    ("head", "decorator"),
    [
        ("from persist_assets import {0}", "@{0}"),
        ("from persist_assets import {0}", "@{0}()"),
        ("from persist_assets import {0} as x", "@x"),
        ("from persist_assets import {0} as x", '@x(owner="team:a")'),
        ("import persist_assets", "@persist_assets.{0}"),
        ("import persist_assets as pa", "@pa.{0}"),
        ("import persist_assets as pa", '@pa.{0}(group="g")'),
        ("from persist_assets.decorators import {0}", "@{0}"),
        ("from persist_assets import *", "@{0}"),
        ("try:\n    from persist_assets import {0}\nexcept ImportError:\n    pass", "@{0}"),
    ],
)
@pytest.mark.proves("P1")
def test_decorators_are_recognized_by_what_they_are_imported_from(
    kind: str, head: str, decorator: str
) -> None:
    parameter = "" if kind == "source" else "flights"
    text = f"{head}\n{decorator}\ndef f({parameter}):\n    return x\n".format(kind)
    found = only(text)
    assert found.persisted == (kind in ("table", "incremental_table"))
    assert (found.raw is not None) == (kind == "source")
    assert found.kind.value == ("raw" if kind == "source" else "query")
    assert found.language == "python"


@pytest.mark.parametrize(
    "text",
    [
        f"def table(f): return f\n@table\n{BODY}",
        f"from other import table\n@table\n{BODY}",
        f"import other as pa\n@pa.table\n{BODY}",
        BODY,
        "x = 1",
        "",
        "from persist_assets import load_sources\ndefs = load_sources('sources')",
    ],
)
def test_functions_without_our_decorators_are_not_sources(text: str) -> None:
    assert declared(text) == []


@pytest.mark.parametrize(
    ("line", "persisted"),
    [("#@ persist", True), ("#@ -persist", False), ("#@ persist name=x", True)],
)
def test_an_annotation_makes_a_plain_function_a_source(line: str, persisted: bool) -> None:
    assert only(f"{line}\n{BODY}").persisted == persisted


def test_annotations_may_be_above_or_below_decorators() -> None:
    text = f'{IMPORTS}#@ owner="team:a"\n@table(group="g")\n#@ tags=[x]\n{BODY}'
    annotation = only(text).annotation
    assert (annotation.owners, annotation.group, annotation.tags) == (
        ("team:a",),
        "g",
        (("x", ""),),
    )


def test_a_decorator_takes_annotation_keys_and_the_docstring_is_the_description() -> None:
    text = f'''{IMPORTS}
WINDOW = "24h"
COLUMNS = ["carrier", "delay"]
@table(
    name="lake.late", owner=["a@b.org", "team:x"], tags={{"tier": 1, "x": ""}}, group="g",
    freshness={{"window": WINDOW, "warn": "6h"}}, time_column="at", materialized="table",
    check={{"not_null": COLUMNS, "unique": (("carrier", "delay"),), "accepted_values": {{"n": [-1, 2.5]}}}},
)
def f(flights):
    """Late ones.

    Indented.
    """
    return flights
'''.replace('"x": ""', '"x": "y"')
    found = only(text)
    annotation = found.annotation
    assert found.description == "Late ones.\n\nIndented."
    assert annotation.name == "lake.late"
    assert annotation.owners == ("a@b.org", "team:x")
    assert annotation.tags == (("tier", "1"), ("x", "y"))
    assert annotation.freshness is not None
    assert (annotation.freshness.window_s, annotation.freshness.warn_s) == (86400, 21600)
    assert [c.definition for c in annotation.checks] == [
        "carrier not null",
        "delay not null",
        "carrier, delay unique",
        "n in [-1, 2.5]",
    ]
    assert annotation.time_column == "at"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_locations_are_correct_for_all_line_endings(end: str) -> None:
    text = t("flights: int", before='x = """a\u2028b\x0cc\x1d"""').replace("\n", end)
    assert [str(p.location) for p in project(text).problems] == ["sources/d.py:4:16"]
    fine = only(text.replace(": int", ""))
    assert fine.query is not None
    assert fine.query.text.startswith("@table\ndef f(flights):")


def test_asset_keys_and_source_ids_are_formed_as_in_other_languages() -> None:
    found = compiled({"raw.sql": T, "x/d.py": f"{IMPORTS}@table\n{BODY}"})
    source = found.by_key["x", "d", "f"]
    assert (source.source_id, source.key) == ("f@sources/x/d.py", "x/d/f")
    assert str(source.location) == "sources/x/d.py:3:5"


# ------------------------------------------------------------------------------------------- errors


def t(
    parameters: str, body: str = "return flights", before: str = "", decorator: str = "@table"
) -> str:
    return f"{IMPORTS}{before}\n{decorator}\ndef f({parameters}):\n    {body}\n"


WRONG = [
    ("def f(:\n", ["1:7: error: invalid Python: invalid syntax [syntax]"]),
    ("x = (1,\n", ["1:5: error: invalid Python: '(' was never closed [syntax]"]),
    ("def f():\n\tx\n        y\n", ["3:1: error: invalid Python: inconsistent use of tabs and spaces in indentation [syntax]"]),
    (t("*flights"), ["4:8: error: parameter *flights of `f` does not name a source [python-source]"]),
    (t("**flights"), ["4:9: error: parameter **flights of `f` does not name a source [python-source]"]),
    (t("flihgts"), ["4:7: error: unknown source `flihgts` [unknown-name]"]),
    (t("x, y"), ["4:7: error: unknown source `x` [unknown-name]", "4:10: error: unknown source `y` [unknown-name]"]),
    (t("flights: int"), ["4:16: error: unsupported annotation `int` of the parameter `flights` [annotation-type]"]),
    (t("flights", "return 3"), ["5:5: error: `f` must return a frame here [python-source]"]),
    (t("flights", "return"), ["5:5: error: `f` must return a frame here [python-source]"]),
    (t("flights", "pass"), ["4:5: error: `f` returns nothing [python-source]"]),
    (t("flights", "yield flights"), ["5:5: error: `f` yields [python-source]"]),
    (t("flights", "yield from flights"), ["5:5: error: `f` yields [python-source]"]),
    (f"{IMPORTS}@table\nasync def f(flights):\n    return flights\n", ["3:11: error: a source must not be a coroutine [python-source]"]),
    (f"{IMPORTS}@table\n@model\n{BODY}", ["3:2: error: `f` has two persist_assets decorators [python-source]"]),
    (f"{IMPORTS}@table\nclass f:\n    pass\n", ["2:2: error: `table` has no effect here [python-source]"]),
    (f"{IMPORTS}class C:\n    @table\n    def f(self): return self\n", ["3:6: error: `table` has no effect here [python-source]"]),
    (f"{IMPORTS}def g():\n    @table\n    def f(flights): return flights\n    return f\n", ["3:6: error: `table` has no effect here [python-source]"]),
    (f"{IMPORTS}f = table(lambda flights: flights)\n", ["2:5: error: `table` has no effect here [python-source]"]),
    (f"{IMPORTS}if True:\n    @table\n    def f(flights): return flights\n", ["3:6: error: `table` has no effect here [python-source]"]),
    ("from persist_assets import tabel\n", ["1:28: error: persist_assets has no `tabel` [import]"]),
    ("from persist_assets import x\n", ["1:28: error: persist_assets has no `x` [import]"]),
    (t("flights", decorator="@table(3)"), ["3:8: error: @table takes only keyword arguments [python-source]"]),
    (t("flights", decorator="@table(**KEYS)", before="KEYS = {}"), ["3:10: error: @table takes no ** [python-source]"]),
    (t("flights", decorator="@table(name=NAME)"), ["3:13: error: the value of `name` must be a literal [python-source]"]),
    (t("flights", decorator="@table(name=NAME)", before="NAME = g()"), ["2:8: error: the value of `name` must be a literal [python-source]", ]),
    (t("flights", decorator="@table(name=NAME)", before="NAME = 'a'; NAME = 'b'"), ["3:13: error: the value of `name` must be a literal [python-source]"]),
    (t("flights", decorator="@table(name='a' + 'b')"), ["3:13: error: the value of `name` must be a literal [python-source]"]),
    (t("flights", decorator="@table(name=f'a')"), ["3:13: error: the value of `name` must be a literal [python-source]"]),
    (t("flights", decorator="@table(name=None)"), ["3:13: error: the value of `name` must be a literal [python-source]"]),
    (t("flights", decorator="@table(tags={1: 'a'})"), ["3:14: error: the keys of `tags` must be string literals [python-source]"]),
    (t("flights", decorator="@table(tags={**X})"), ["3:16: error: the keys of `tags` must be string literals [python-source]"]),
    (t("flights", decorator="@table(nam='x')"), ["3:12: error: unknown key `nam` [annotation-key]"]),
    (t("flights", decorator="@table(name=3)"), ["3:13: error: `name` must be a string [annotation-value]"]),
    (t("flights", decorator="@table(owner='x')"), ["3:14: error: invalid owner `x` [annotation-value]"]),
    (t("flights", decorator="@table(freshness='24h')"), ["3:18: error: `freshness` must be a block [annotation-value]"]),
    (t("flights", decorator="@table(freshness={'windwo': '24h'})"), ["3:29: error: `freshness` has no property `windwo` [annotation-value]"]),
    (t("flights", decorator="@table(check={'not_nul': ['a']})"), ["3:26: error: `check` has no property `not_nul` [annotation-value]"]),
    (t("flights", decorator="@table(materialized='tabel')"), ["3:21: error: `materialized` must be one of table, temporary, view, got `tabel` [annotation-value]"]),
    (t("flights", decorator="@table(materialized='view')"), ["3:21: error: `f` is a function, which a view cannot call [view]"]),
    (t("flights", decorator="@model(name='x')"), ["3:13: error: `name` has no effect on a source that is not persisted [annotation-misplaced]"]),
    (t("flights", decorator="@model(columns={'a': True})"), ["3:16: error: `columns` has no effect on a source that is not persisted [annotation-misplaced]"]),
    (t("flights", decorator="#@ persist\n@model"), ["3:4: error: `persist` is set here and, differently, at sources/d.py:4:2 [annotation-value]"]),
    (t("flights", decorator="#@ -persist\n@table"), ["3:4: error: `persist` is set here and, differently, at sources/d.py:4:2 [annotation-value]"]),
    (t("flights", decorator="#@ group=a\n@table(group='b')"), ["3:4: error: `group` is set here and, differently, at sources/d.py:4:14 [annotation-value]"]),
    (t("", "return x", decorator="#@ persist\n@source"), ["3:4: error: `persist` has no effect on a raw table [annotation-misplaced]"]),
    (t("", "return x", decorator="@source(freshness={'window': '24h'})"), ["3:19: error: `freshness` has no effect on a raw table [annotation-misplaced]"]),
    (t("flights", decorator="@source"), ["4:7: error: `f` is a @source and must not read `flights` [python-source]"]),
    (t("flights", decorator="@table(inputs=3)"), ["3:15: error: `inputs` must be a dict [python-source]"]),
    (t("flights", decorator="@table(inputs={'flight': 'raw/flights'})"), ["3:26: error: `f` has no parameter `flight` [python-source]"]),
    (t("flights", decorator="@table(inputs={'flights': 3})"), ["3:27: error: `inputs` must name a source for `flights` [python-source]"]),
    (t("flights", decorator="@table(inputs={'flights': 'raw/flihgts'})"), ["3:27: error: unknown source `raw.flihgts` [unknown-name]"]),
    (f"{IMPORTS}#@ persist\nx = 1\n@table\n{BODY}", ["2:1: error: this annotation is not attached to anything [annotation-dangling]"]),
    (f"{IMPORTS}@table\n{BODY}#@ persist\n", ["5:1: error: this annotation is not attached to anything [annotation-dangling]"]),
    (f"{IMPORTS}@table  #@ group=x\n{BODY}", ["2:9: error: this annotation is not on its own line [annotation-dangling]"]),
    (f"{IMPORTS}@table\ndef f(flights):\n    #@ group=x\n    return flights\n", ["4:5: error: this annotation is not attached to anything [annotation-dangling]"]),
    (f"#@ group=x\n{BODY}", ["1:3: error: `f` is annotated but is not a source [python-source]"]),
    (f"#@ persist name=3\n{BODY}", ["1:12: error: `name` must be a string [annotation-value]"]),
    (f"#@ persist name=\n{BODY}", ["1:12: error: `name` must be a string [annotation-value]", "1:17: error: expected a value [annotation-syntax]"]),
    (f"{IMPORTS}@table\n{BODY}f = 3\n", ["5:1: error: this redefines the source `f` [python-source]"]),
    (f"{IMPORTS}@table\n{BODY}def f(): pass\n", ["5:1: error: this redefines the source `f` [python-source]"]),
    (f"{IMPORTS}@table\n{BODY}@table\n{BODY}", ["6:5: error: `f` is already defined at sources/d.py:3:5 [duplicate-name]"]),
    ("import helper\n" + t("flights"), []),
    ("# @ persist\n" + t("flights"), ["1:1: warning: this comment looks like an annotation but is not one [annotation-almost]"]),
    ("#  a comment\n" + t("flights"), []),
    ("--@ persist\n", ["1:3: error: invalid Python: invalid syntax [syntax]"]),
    ("x\0y", ["1:1: error: invalid Python: source code string cannot contain null bytes [syntax]"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=range(len(WRONG)))
def test_errors_are_reported_at_their_location(text: str, expected: list[str]) -> None:
    assert wrong(text) == expected


def test_errors_have_hints() -> None:
    hints = {
        t("flihgts"): "did you mean `flights`?",
        t(
            "flights: int"
        ): "use pyspark.sql.DataFrame, narwhals.LazyFrame or no annotation; give parameters that are not sources a default",
        "from persist_assets import tabel": "did you mean `table`?",
        t("spark", decorator="@source"): "annotate the session: spark: SparkSession",
        t("flights", decorator="@table(inputs={'flight': 'x'})"): "did you mean `flights`?",
    }
    for text, hint in hints.items():
        (problem,) = project(text).problems
        assert problem.hint == hint


def test_all_problems_of_a_file_are_reported_together() -> None:
    text = f"{IMPORTS}@table\ndef a(x, y: int): return x\n@table(nam=1)\ndef b(flights): return flights\n@model\ndef c(z): yield z\n"
    assert [p.split(":")[0] for p in wrong(text)] == ["3", "4", "7"]


def test_readers_of_an_invalid_source_have_no_errors_of_their_own() -> None:
    found = compiled({"raw.sql": T, "d.py": f"{IMPORTS}@table\ndef f(flights: int): return flights\n@table\ndef g(f): return f\n", "e.sql": "CREATE VIEW v AS SELECT x FROM f"})  # fmt: skip
    assert [p.code for p in found.problems] == ["annotation-type"]


@pytest.mark.parametrize(
    "text",
    [
        f"{IMPORTS}@table\ndef f(flights):\n    return (\n",
        f"{IMPORTS}@table(\n  name='x'\n)\ndef f(flights):\n    return (\n",
        "import persist_assets as pa\n@pa.table\ndef f(flights):\n    return (\n",
        "#@ persist\ndef f(flights):\n    return (\n",
    ],
)
def test_source_names_are_known_even_if_their_file_has_a_syntax_error(text: str) -> None:
    found = compiled({"raw.sql": T, "d.py": text, "e.sql": "CREATE VIEW v AS SELECT x FROM f"})
    assert [p.code for p in found.problems] == ["syntax"]


def test_a_syntax_error_in_a_helper_is_reported_in_the_helper() -> None:
    assert wrong("import helper\n" + t("flights"), helper="def x(:") == [
        "helper.py:1:7: error: invalid Python: invalid syntax [syntax]"
    ]


# --------------------------------------------------------------------------------------- inputs

FRAMES = [
    ("", "", "frame"),
    ("from pyspark.sql import DataFrame", "DataFrame", "frame"),
    ("from pyspark.sql import DataFrame as D", "D", "frame"),
    ("import pyspark.sql", "pyspark.sql.DataFrame", "frame"),
    ("import pyspark.sql as ps", "ps.DataFrame", "frame"),
    ("from pyspark import sql", "sql.DataFrame", "frame"),
    ("from pyspark.sql.dataframe import DataFrame", "DataFrame", "frame"),
    ("from pyspark.sql.connect.dataframe import DataFrame", "DataFrame", "frame"),
    ("from pyspark.sql import DataFrame", "'DataFrame'", "frame"),
    ("from pyspark.sql import *", "DataFrame", "frame"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyspark.sql import DataFrame", "DataFrame", "frame"),
    ("import typing\nif typing.TYPE_CHECKING:\n    from pyspark.sql import DataFrame", "'DataFrame'", "frame"),
    ("from pyspark.sql import DataFrame\nFrame = DataFrame", "Frame", "frame"),
    ("from typing import Any", "Any", "frame"),
    ("import narwhals as nw", "nw.LazyFrame", "narwhals"),
    ("import narwhals", "narwhals.LazyFrame", "narwhals"),
    ("from narwhals import LazyFrame", "LazyFrame", "narwhals"),
    ("import narwhals as nw", "'nw.LazyFrame'", "narwhals"),
    ("import narwhals.stable.v1 as nw", "nw.LazyFrame", "narwhals.stable.v1"),
    ("from narwhals.stable import v2 as nw", "nw.LazyFrame", "narwhals.stable.v2"),
    ("from pyspark.sql import SparkSession", "SparkSession", "session"),
    ("import pyspark.sql as ps", "'ps.SparkSession'", "session"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "annotation", "kind"), FRAMES)
@pytest.mark.proves("P3", "P27")
def test_type_annotations_determine_parameter_kinds(head: str, annotation: str, kind: str) -> None:
    colon = f": {annotation}" if annotation else ""
    function = only(t(f"flights{colon}", before=head)).function
    assert function is not None
    assert [p.kind for p in function.parameters] == [kind]


REFUSED = [
    "int", "str", "'int'", "list[DataFrame]", "DataFrame | None", "Optional[DataFrame]", "pl.Series",
    "pl.LazyFrame", "pd.Series", "nw.DataFrame", "None", "'not ('", "Unknown", "3", "lambda: 1",
]  # fmt: skip
HEADS = "import pandas as pd\nimport polars as pl\nimport narwhals as nw\nfrom typing import Optional\nfrom pyspark.sql import DataFrame\n"


@pytest.mark.parametrize("annotation", REFUSED)
@pytest.mark.proves("P3")
def test_unsupported_type_annotations_of_parameters_and_results_are_errors(annotation: str) -> None:
    problems = project(HEADS + t(f"flights: {annotation}")).problems
    assert [p.code for p in problems] == ["annotation-type"]
    text = f"{HEADS}{IMPORTS}@table\ndef f(flights) -> {annotation}:\n    return flights\n"
    (problem,) = project(text).problems
    assert problem.code == "annotation-type"
    assert str(problem.location) == "sources/d.py:8:19"


@pytest.mark.parametrize(
    ("parameters", "reads"),
    [
        ("flights", ["flights"]),
        ("FLIGHTS", ["flights"]),
        ("flights, /", ["flights"]),
        ("*, flights", ["flights"]),
        ("flights, n=3", ["flights"]),
        ("n=3, *, flights", ["flights"]),
        ("flights, /, other, *, n=3", ["flights", "other"]),
        ("n=3", []),
        ("", []),
        ("other, flights", ["other", "flights"]),
    ],
)
@pytest.mark.proves("P2")
def test_parameters_without_defaults_are_inputs(parameters: str, reads: list[str]) -> None:
    text = f"{IMPORTS}@model\ndef other(): return x\n@table\ndef f({parameters}): return x\n"
    assert [s.partition("@")[0] for s in only(text).reads] == reads


@pytest.mark.proves("P2")
def test_an_unknown_parameter_name_gets_a_suggestion() -> None:
    text = f"{IMPORTS}@model\ndef late_flights(flights): return flights\n@table\ndef f(late_flight): return late_flight\n"
    (problem,) = project(text).problems
    assert str(problem) == (
        "sources/d.py:5:7: error: unknown source `late_flight` [unknown-name]\n"
        "    hint: did you mean `late_flights`?"
    )


def test_names_resolve_to_sources_of_any_language_and_to_the_same_file_first() -> None:
    found = compiled(
        {
            "raw.sql": T + "CREATE VIEW a AS SELECT carrier FROM flights",
            "b.py": f"{IMPORTS}@model\ndef a(flights): return flights\n@model\ndef b(a): return a\n",
            "c.sql": "CREATE VIEW c AS SELECT carrier FROM b",
            "d.py": f'{IMPORTS}@table(inputs={{"x": "raw/a", "y": "b.a"}})\ndef d(x, y, c): return x\n',
        }
    )
    assert not found.problems
    assert found.by_id["b@sources/b.py"].reads == ("a@sources/b.py",)
    assert found.by_id["d@sources/d.py"].reads == ("a@sources/raw.sql", "a@sources/b.py", "c@sources/c.sql")  # fmt: skip
    ambiguous = compiled({"raw.sql": T, "a.py": f"{IMPORTS}@model\ndef m(flights): return flights\n", "b.py": f"{IMPORTS}@model\ndef m(flights): return flights\n", "d.py": f"{IMPORTS}@model\ndef d(m): return m\n"})  # fmt: skip
    assert [str(p) for p in ambiguous.problems] == [
        "sources/d.py:3:7: error: `m` is ambiguous: a.m, b.m [ambiguous-name]\n    hint: qualify the name"
    ]


@pytest.mark.proves("P4")
def test_cycles_of_sources_are_reported() -> None:
    assert wrong(f"{IMPORTS}@table\ndef a(b): return b\n@table\ndef b(a): return a\n") == [
        "3:5: error: sources read each other in a cycle: a → b → a [cycle]"
    ]
    found = compiled({"a.sql": "CREATE VIEW a AS SELECT 1 AS x FROM b", "b.py": f"{IMPORTS}@model\ndef b(c): return c\n", "c.py": f"{IMPORTS}@table\ndef c(a): return a\n"})  # fmt: skip
    assert [p.message for p in found.problems] == [
        "sources read each other in a cycle: a → b → c → a"
    ]


@pytest.mark.proves("P5")
@pytest.mark.parametrize("seed", range(5))
def test_every_source_comes_after_all_that_it_reads(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"s{i}" for i in range(200)]
    draw.shuffle(names)
    files: dict[str, str] = {}
    for i, name in enumerate(names):
        reads = draw.sample(names[:i], min(i, draw.randrange(4)))
        if draw.random() < 0.5:
            files[f"{name}.py"] = f"{IMPORTS}@model\ndef {name}({', '.join(reads)}): return x\n"
        else:
            read = "".join(f" UNION ALL SELECT 1 AS x FROM {r}" for r in reads)
            files[f"{name}.sql"] = f"CREATE VIEW {name} AS SELECT 1 AS x{read}"
    found = compiled(files)
    assert not found.problems
    position = {s.source_id: i for i, s in enumerate(found.sources)}
    assert len(position) == 200
    assert all(position[r] < position[s.source_id] for s in found.sources for r in s.reads)


# -------------------------------------------------------------------------- SQL over functions


def test_editing_a_function_changes_the_build_ids_of_all_sql_over_it() -> None:
    def build_ids(body: str) -> list[str]:
        found = compiled(
            {
                "raw.sql": T,
                "d.py": t("flights", body, decorator="@model"),
                "v.sql": "CREATE VIEW v AS SELECT a, b FROM f; CREATE VIEW w AS SELECT * FROM f;"
                "CREATE VIEW j AS SELECT f.a, carrier FROM f JOIN flights ON f.a = carrier",
            }
        )
        assert not found.problems
        assert [c.name for c in found.by_id["v@sources/v.sql"].columns] == ["a", "b"]
        assert found.by_id["w@sources/v.sql"].columns == ()
        return [s.build_id for s in found.sources if s.name in "fvwj"]

    one, other = build_ids("return flights"), build_ids("return flights.dropna()")
    assert len(one) == 4
    assert not set(one) & set(other)


@pytest.mark.parametrize(
    ("query", "name"),
    [("SELECT a FROM f", "v"), ("SELECT a FROM g", "v"), ("SELECT x FROM k", None)],
)
def test_a_view_cannot_call_a_function(query: str, name: str | None) -> None:
    found = compiled(
        {
            "raw.sql": T,
            "d.py": t("flights", decorator="@model") + "@table\ndef k(f): return f\n",
            "v.sql": f"CREATE VIEW g AS SELECT a FROM f;\n--@ persist materialized=view\nCREATE VIEW v AS {query}",
        }
    )
    assert [(p.code, p.location.line) for p in found.problems] == ([("view", 2)] if name else [])


# -------------------------------------------------------------------------------------- identity

HELPER = '''
"""Helps."""
import datetime
from re import compile as regex
LIMIT = 60
WORDS = frozenset({"a", "b"})
OTHER = regex("x")

def late(frame, column="delay"):
    """Late ones."""
    # more than that
    return frame.filter(frame[column] > limit())

def limit():
    return LIMIT

def unused():
    return OTHER

class Conf:
    size: int = 3
    def grown(self):
        return self.size + 1
'''
OWN = '''
from persist_assets import model, source, table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
import helper
from helper import Conf, late

FACTOR = 2
UNUSED = 3

def times(frame, n=FACTOR):
    return frame.withColumn("n", F.lit(n))

@table(group="g")
def f(flights: DataFrame, m=10) -> DataFrame:
    """What is late."""
    found: DataFrame = late(flights)  # those
    return times(found).filter(F.col("n") < helper.Conf().grown() + m)

@table
def other(flights):
    return flights.dropna()
'''


def build_id(own: str = OWN, helper: str = HELPER, **files: str) -> str:
    return only(own, helper=helper, **files).build_id


Edit = tuple[str, str, str]
SAME: list[Edit] = [
    ("own", '"""What is late."""', '"""What is\n    very late."""'),
    ("own", '    """What is late."""\n', ""),
    ("own", "  # those", ""),
    ("own", "flights: DataFrame, m=10", "flights, m=10"),
    ("own", " -> DataFrame", ""),
    ("own", "found: DataFrame = late", "found = late"),
    ("own", "found: DataFrame = late", "found: 'nonsense' = late"),
    ("own", '@table(group="g")', "@table"),
    ("own", '@table(group="g")', "@model"),
    ("own", '@table(group="g")', '#@ owner="team:x"\n@table()'),
    ("own", "UNUSED = 3", "UNUSED = 4"),
    ("own", "UNUSED = 3\n", ""),
    ("own", "UNUSED = 3", "UNUSED = 3\nimport os, json"),
    ("own", "UNUSED = 3", "UNUSED = 3\nif __name__ == '__main__':\n    print(f(1))"),
    ("own", "return flights.dropna()", "return flights.limit(3)"),
    ("own", "def other(flights)", "def another(flights)"),
    ("own", "late(flights)", "late(\n        flights,\n    )"),
    ("own", "late(flights)", "(late)((flights))"),
    ("own", 'F.lit(n)', "F.lit(n,)"),
    ("own", '"n", F', "'n', F"),
    ("own", "FACTOR = 2\nUNUSED = 3", "UNUSED = 3\nFACTOR = 2"),
    ("own", "import helper\nfrom helper import Conf, late", "from helper import Conf, late\nimport helper"),
    ("helper", '"""Helps."""', ""),
    ("helper", '    """Late ones."""\n', ""),
    ("helper", "    # more than that\n", ""),
    ("helper", "return OTHER", "return 3"),
    ("helper", 'WORDS = frozenset({"a", "b"})\n', ""),
    ("helper", 'regex("x")', 'regex("y")'),
    ("helper", "import datetime\n", ""),
    ("helper", "LIMIT = 60", "\n\n\nLIMIT = (60)"),
    ("helper", "def unused():\n    return OTHER\n", ""),
]  # fmt: skip

OTHER: list[Edit] = [
    ("own", "m=10", "m=11"),
    ("own", "m=10", "m=10.0"),
    ("own", "m=10", "k=10, m=10"),
    ("own", "FACTOR = 2", "FACTOR = 3"),
    ("own", "FACTOR = 2", "FACTOR = 2.0"),
    ("own", "FACTOR = 2", "FACTOR = True"),
    ("own", "FACTOR = 2", "FACTOR = 2\nFACTOR = 3"),
    ("own", "n=FACTOR", "n=UNUSED"),
    ("own", '"n", F', '"N", F'),
    ("own", "F.lit(n)", "F.lit(-n)"),
    ("own", "F.lit(n)", "F.col(n)"),
    ("own", "late(flights)", "flights"),
    ("own", "pyspark.sql import functions as F", "pyspark.sql.connect import functions as F"),
    ("own", "pyspark.sql import functions as F", "elsewhere import functions as F"),
    ("own", "from helper import Conf, late", "from helper import Conf, unused as late"),
    ("own", "import helper\n", "import elsewhere as helper\n"),
    ("own", "flights: DataFrame", "flights: 'nw.LazyFrame'\n".strip()),
    ("own", "(flights: DataFrame, m=10)", "(flights: DataFrame, /, m=10)"),
    ("own", "FACTOR = 2", "FACTOR = 2\nhelper.LIMIT = 3"),
    ("own", "FACTOR = 2", "FACTOR = 2\nsetattr(helper, 'LIMIT', 3)"),
    ("own", "FACTOR = 2", "FACTOR = 2\nglobals()['FACTOR'] = 3"),
    ("own", "FACTOR = 2", "FACTOR = 2\nFACTOR += 1"),
    ("own", "FACTOR = 2", "FACTOR = 2\ndel FACTOR"),
    ("own", "FACTOR = 2", "FACTOR = 2\nfor FACTOR in (1, 2): pass"),
    ("own", "FACTOR = 2", "FACTOR = 2\nif UNUSED: FACTOR = 4"),
    ("own", "FACTOR = 2", "FACTOR = 2\nfrom helper import *"),
    ("own", "def times", "@F.udf\ndef times"),
    ("own", '@table(group="g")', '@table(group="g")\n@F.wrap'),
    ("helper", "LIMIT = 60", "LIMIT = 61"),
    ("helper", "return LIMIT", "return LIMIT + 1"),
    ("helper", 'column="delay"', 'column="arrival"'),
    ("helper", "frame[column] > limit", "frame[column] >= limit"),
    ("helper", "size: int = 3", "size: int = 4"),
    ("helper", "size: int = 3", "size: str = 3"),
    ("helper", "self.size + 1", "self.size + 2"),
    ("helper", "def late(frame, column", "def late(frame: int, column"),
    ("helper", "class Conf:", "class Conf(dict):"),
    ("helper", "LIMIT = 60", "LIMIT = 60\nprint(LIMIT)"),
    ("helper", "LIMIT = 60", "LIMIT = 60\nif True:\n    LIMIT = 61"),
    ("helper", "LIMIT = 60", "try:\n    LIMIT = 60\nexcept ImportError:\n    LIMIT = 1"),
]  # fmt: skip


def edited(edit: Edit) -> str:
    where, before, after = edit
    files = {"own": "import narwhals as nw" + OWN, "helper": HELPER}
    assert files[where].count(before) >= 1, before
    files[where] = files[where].replace(before, after, 1)
    return build_id(files["own"], files["helper"])


BASE = "import narwhals as nw" + OWN


@pytest.mark.parametrize("edit", SAME, ids=range(len(SAME)))
def test_edits_that_cannot_change_rows_preserve_the_build_id(edit: Edit) -> None:
    assert edited(edit) == build_id(BASE)


@pytest.mark.parametrize("edit", OTHER, ids=range(len(OTHER)))
def test_edits_that_may_change_rows_change_the_build_id(edit: Edit) -> None:
    assert edited(edit) != build_id(BASE)


def test_different_edits_give_different_build_ids() -> None:
    found = [edited(e) for e in OTHER]
    assert len(set(found)) == len(found)


FAST_AND_SLOW = "def fast(): return 1\ndef slow(): return 2\n"
READS_RATE = f"{IMPORTS}{{}}\n@table\ndef f(flights):\n    return flights.limit(rate())\n"
CHOICES = {
    "by a flag": (
        "FLAG = True\nif FLAG:\n    from helper import fast as rate\nelse:\n    from helper import slow as rate",
        "FLAG = False\nif FLAG:\n    from helper import fast as rate\nelse:\n    from helper import slow as rate",
    ),
    "by what can be imported": (
        "try:\n    from helper import fast as rate\nexcept ImportError:\n    from helper import slow as rate",
        "try:\n    from helper import slow as rate\nexcept ImportError:\n    from helper import fast as rate",
    ),
    "the later one": (
        "from helper import fast as rate\nfrom helper import slow as rate",
        "from helper import slow as rate\nfrom helper import fast as rate",
    ),
    "an import or a definition": (
        "from helper import fast as rate\ndef rate(): return 3",
        "def rate(): return 3\nfrom helper import fast as rate",
    ),
    "where it is no program": (
        "if __name__ == '__main__':\n    rate = None\nelse:\n    def rate(): return 1",
        "if __name__ == '__main__':\n    rate = None\nelse:\n    def rate(): return 2",
    ),
    "where it is a module": (
        "if __name__ != '__main__':\n    def rate(): return 1",
        "if __name__ != '__main__':\n    def rate(): return 2",
    ),
}


@pytest.mark.parametrize("how", CHOICES)
def test_the_build_id_depends_on_which_definition_a_name_resolves_to(how: str) -> None:
    one, other = (READS_RATE.format(text) for text in CHOICES[how])
    assert only(one, helper=FAST_AND_SLOW).build_id != only(other, helper=FAST_AND_SLOW).build_id


def test_a_name_in_a_package_shadows_its_submodule() -> None:
    def build_id(name: str) -> str:
        files = {
            "/pkg/__init__.py": f"from .rates import {name} as rates\n",
            "/pkg/rates.py": "def daily(): return 1\ndef weekly(): return 2\n",
        }
        text = READS_RATE.format("from pkg import rates as rate")
        found = compiled({"raw.sql": T, "d.py": text, **files})
        return found.by_id["f@sources/d.py"].build_id

    assert build_id("daily") != build_id("weekly")


def test_functions_with_the_same_code_share_a_build_id() -> None:
    text = f"{IMPORTS}@table\ndef a(flights):\n    return flights\n@table\ndef b(flights): return flights\n"
    found = project(text)
    assert found.by_id["a@sources/d.py"].build_id == found.by_id["b@sources/d.py"].build_id
    moved = compiled({"raw.sql": T, "x/e.py": f"{IMPORTS}@table\n{BODY}"})
    assert moved.by_id["f@sources/x/e.py"].build_id == found.by_id["a@sources/d.py"].build_id


def test_the_build_id_depends_on_all_columns_of_the_inputs_and_their_names() -> None:
    def of(select: str) -> str:
        view = f"CREATE VIEW v AS {select} FROM flights"
        found = compiled({"raw.sql": T + view, "d.py": t("v", "return v")})
        return found.by_id["f@sources/d.py"].build_id

    same = {of("SELECT carrier, delay"), of("SELECT flights.carrier, (delay)")}
    assert len(same) == 1
    others = ["SELECT delay, carrier", "SELECT carrier AS c, delay", "SELECT carrier", "SELECT carrier, delay + 1 AS delay", "SELECT DISTINCT carrier, delay"]  # fmt: skip
    assert len({of(o) for o in others} | same) == 6


def test_the_build_id_depends_on_which_parameter_reads_which_source() -> None:
    views = (
        "CREATE VIEW a AS SELECT carrier FROM flights; CREATE VIEW b AS SELECT delay FROM flights"
    )

    def of(decorator: str) -> str:
        text = t("x, y", "return x.crossJoin(y)", decorator=decorator)
        found = compiled({"raw.sql": T + views, "d.py": text})
        assert not found.problems
        return found.by_id["f@sources/d.py"].build_id

    assert of('@table(inputs={"x": "a", "y": "b"})') != of('@table(inputs={"x": "b", "y": "a"})')


REACH = [
    # the import, the use of the name, and the files by module
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod as m", "m.g()", {"pkg/mod": "def g(): return {}"}),
    ("from pkg import mod", "mod.g()", {"pkg/mod": "def g(): return {}"}),
    ("from pkg.mod import g as h", "h()", {"pkg/mod": "def g(): return {}"}),
    ("from pkg import g", "g()", {"pkg/__init__": "from .mod import g", "pkg/mod": "def g(): return {}"}),
    ("from pkg import g", "g()", {"pkg/__init__": "from pkg.mod import g", "pkg/mod": "def g(): return {}"}),
    ("from pkg import *", "g()", {"pkg/__init__": "def g(): return {}"}),
    ("from pkg.mod import g", "g()", {"pkg/mod": "from ..pkg.deep import *", "pkg/deep": "def g(): return {}"}),
    ("from . import _own", "_own.g()", {"sources/_own": "def g(): return {}"}),
    ("from ._own import g", "g()", {"sources/_own": "def g(): return {}"}),
    ("from sources._own import g", "g()", {"sources/_own": "def g(): return {}"}),
    ("from ..pkg.mod import g", "g", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod", "h(pkg.mod)", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod", "getattr(pkg.mod, 'g')", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod", "vars()", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod", "eval('pkg')", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod, sys", "sys.modules['pkg.mod']", {"pkg/mod": "def g(): return {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "import pkg.other", "pkg/other": "print({})"}),
    ("import pkg.mod", "pkg.mod.A.g()", {"pkg/mod": "class A:\n    def g(self): return B\nB = {}"}),
    ("import pkg.mod", "pkg.mod.A().x", {"pkg/mod": "class C:\n    x = {}\nclass A(C):\n    pass"}),
    ("import pkg.mod", "pkg.mod.g", {"pkg/mod": "g = lambda: h()\nh = lambda: {}"}),
    ("import pkg.mod", "pkg.mod.g", {"pkg/mod": "a, (b, *g) = 1, (2, {})"}),
    ("import pkg.mod", "pkg.mod.g", {"pkg/mod": "try:\n    import x\n    g = 1\nexcept ImportError:\n    g = {}"}),
    ("import pkg.mod", "pkg.mod.g", {"pkg/mod": "with open('x') as g:\n    h = {}"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "R = []\ndef reg(f): R.append(f); return f\n@reg\ndef h(): return {}\ndef g(): return R[0]()"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "R = []\ndef g(): return R\nR.append({})"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import random\nR = [1, 2]\ndef g(): return R\nS = random.shuffle(R, {})"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "R = {{}}\ndef g(): return R\nR['a'] = {}"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "R = []\ndef g(): return R\ndef s(x): R.append(x)\nS = list(map(s, [{}]))"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "R = []\ndef g(): return R\ndef s(x): R.append(x)\nS = sorted([{}], key=s)"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import decimal\ndef g(): return decimal.Decimal(1) / 3\nS = decimal.setcontext(decimal.Context({}))"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import decimal\ndef g(): return decimal.x\nS = setattr(decimal, 'x', {})"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "from functools import lru_cache\nR = []\ndef g(): return R\ndef s(x): R.append(x)\n@lru_cache(s({}))\ndef h(): return 1"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import pandas as pd\ndef g(): return pd.x\n@pd.api.extensions.register_dataframe_accessor('geo')\nclass G:\n    a = {}"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "from locale import setlocale as sl\ndef g(): return 1\nS = sl({})"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import decimal\ndef g(): return 1\nS = decimal.getcontext().traps.update({})"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "import os\ndef g(): return 1\nS = os.environ.pop('{}', 1)"}),
    ("import pkg.mod", "[pkg.mod.g][0].__globals__['X']", {"pkg/mod": "X = {}\ndef g(): return 1"}),
    ("import pkg.mod", "getattr(pkg.mod.g, '__globals__')", {"pkg/mod": "X = {}\ndef g(): return 1"}),
    ("import pkg.mod", "pkg.mod.g.__globals__['X']", {"pkg/mod": "X = {}\ndef g(): return 1"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "def g(): return X\ndef s():\n    global X\n    X = {}\nY = s()"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "class B:\n    subs = []\n    def __init_subclass__(cls): B.subs.append(cls)\nclass C(B):\n    x = {}\ndef g(): return B.subs"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "X = {}\ndef g():\n    global X\n    X = X + 1\n    return X"}),
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "x = {}\ndef g(y):\n    return [x for x in y], x"}),
    ("import pkg.mod", "pkg.mod.g", {"pkg/mod": "def __getattr__(name): return {}"}),
    ("import pkg.mod", "pkg.mod.g()", {"src/pkg/mod": "def g(): return {}"}),
    ("from pkg import g", "g()", {"src/pkg/__init__": "from .mod import g", "src/pkg/mod": "from pkg.deep import g", "src/pkg/deep": "def g(): return {}"}),
    ("", "inner()", {"pkg/mod": "def g(): return {}"}),
]  # fmt: skip


@pytest.mark.parametrize(("head", "use", "files"), REACH, ids=range(len(REACH)))
def test_the_build_id_includes_reached_code_however_it_is_imported(
    head: str, use: str, files: dict[str, str]
) -> None:
    local = "from pkg.mod import g; return h(g())" if use == "inner()" else f"return k({use})"

    def of(value: int) -> str:
        text = t("flights", local, before=head)
        return only(text, **{k: v.format(value) for k, v in files.items()}).build_id

    assert of(1) != of(2)


NOT_REACHED = [
    ("import pkg.mod", "pkg.mod.g()", {"pkg/mod": "def g(): return 1\ndef h(): return {}"}),
    ("from pkg.mod import g, h", "g()", {"pkg/mod": "def g(): return 1\ndef h(): return {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "def g(): return 1\nX = {}\nY = sorted([X])"}),
    ("import pkg.mod", "1", {"pkg/mod": "import re\nY = re.compile('{}')"}),
    ("import pkg.mod", "1", {"pkg/mod": "from pyspark.sql import types as T\nY = T.StructType([T.StructField('a{}', T.LongType())]).add('b', 'int')"}),
    ("import pkg.mod", "1", {"pkg/mod": "from enum import Enum\nclass E(Enum):\n    A = {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass E:\n    a: int = {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "from functools import cache\n@cache\ndef g(): return {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "from functools import lru_cache\nN = {}\n@lru_cache(N)\ndef g(): return 1"}),
    ("import pkg.mod", "1", {"pkg/mod": "N = [{}]\nM = max(map(int, N))\nL = sorted(N, key=str)"}),
    ("import pkg.mod", "1", {"pkg/mod": "try:\n    import x\nexcept ImportError:\n    x = {}"}),
    ("import pkg.mod", "1", {"pkg/mod": "g = lambda x: h({})"}),
    ("", "1", {"pkg/mod": "X = {}"}),
]  # fmt: skip


@pytest.mark.parametrize(("head", "use", "files"), NOT_REACHED, ids=range(len(NOT_REACHED)))
def test_the_build_id_excludes_unreached_code(head: str, use: str, files: dict[str, str]) -> None:
    def of(value: int) -> str:
        text = t("flights", f"return k({use})", before=head)
        return only(text, **{k: v.format(value) for k, v in files.items()}).build_id

    assert of(1) == of(2)


@given(data=st.data())
@settings(max_examples=draws(12, 60), deadline=None)
def test_the_build_id_includes_exactly_reached_code_of_random_modules(data: st.DataObject) -> None:
    """Definitions in three modules: an edit changes the BuildID if and only if it is reached."""
    n = data.draw(st.integers(2, 12))
    homes = [data.draw(st.sampled_from(["own", "one", "two"])) for _ in range(n)]
    reads = [
        data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(n)
    ]
    styles = [data.draw(st.sampled_from(["constant", "function", "class", "default"])) for _ in range(n)]  # fmt: skip
    root = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    changed = data.draw(st.integers(0, n - 1))

    def named(i: int, home: str) -> str:
        return f"d{i}" if homes[i] == home else f"mod_{homes[i]}.d{i}"

    def text(home: str, change: int | None) -> str:
        lines = [f"import mod_{h}" for h in ("one", "two") if h != home]
        lines += ["import sources.d as mod_own"] if home != "own" else []
        for i in (i for i in range(n) if homes[i] == home):
            value = 7 if i == change else i + 100
            below = "".join(f", {named(r, home)}" for r in sorted(reads[i]))
            lines.append(
                {
                    "constant": f"d{i} = ({value}, lambda: ({value}{below}))",
                    "function": f"def d{i}():\n    return ({value}{below})",
                    "class": f"class d{i}:\n    def m(self): return ({value}{below})",
                    "default": f"def d{i}(x={value}):\n    return (x{below})",
                }[styles[i]]
            )
        return "\n".join(lines) + "\n"

    def of(change: int | None) -> str:
        used = ", ".join(named(r, "own") for r in sorted(root))
        own = f"{text('own', change)}{IMPORTS}@table\ndef f(flights):\n    return g({used})\n"
        files = {f"mod_{h}": text(h, change) for h in ("one", "two")}
        return only(own, **files).build_id

    reached: set[int] = set()
    stack = [*root]
    while stack:
        i = stack.pop()
        if i not in reached:
            reached.add(i)
            stack += reads[i]
    assert (of(changed) != of(None)) == (changed in reached)


@given(st.integers(0, 10_000))
@settings(max_examples=draws(8, 40), deadline=None)
def test_layout_and_comments_never_change_the_build_id(seed: int) -> None:
    draw = random.Random(seed)

    def laid_out(text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            quoted = '"""' in line
            if line.strip() and not quoted and draw.random() < 0.3:
                lines.append(f"{indent}# {draw.random()}")
            lines.append(
                line + ("  # x" if line.strip() and not quoted and draw.random() < 0.3 else "")
            )
            lines += [""] * (0 if quoted else draw.randrange(2))
        return "\n".join(lines).replace("    ", draw.choice(["  ", "    ", "\t"]))

    assert build_id(laid_out(OWN), laid_out(HELPER)) == build_id()


def test_very_long_and_deep_expressions_do_not_crash() -> None:
    long = " + ".join(f"F.lit({i})" for i in range(800))
    found = only(
        t("flights", f"return flights.select({long})", before="import pyspark.sql.functions as F")
    )
    assert found.function is not None
    deep = "(" * 150 + ")" * 150
    assert [p.code for p in project(t("flights", f"return g({deep})")).problems] in ([], ["syntax"])


# --------------------------------------------------------- nondeterminism, clocks, side effects

DRAWS = [
    ("", "flights.sample(0.1)", "sample"),
    ("", "flights.limit(3)", "limit"),
    ("", "flights.dropDuplicates(['a'])", "dropDuplicates"),
    ("", "flights.selectExpr('rand() AS r')", "rand"),
    ("", "flights.filter('UUID ( ) > 1')", "uuid"),
    ("import random", "g(random.random())", "random.random"),
    ("from random import choice as c", "g(c([1]))", "random.choice"),
    ("import numpy as np", "g(np.random.default_rng())", "numpy.random.default_rng"),
    ("import uuid", "g(uuid.uuid4())", "uuid.uuid4"),
    ("", "g(hash('x'))", "hash"),
    ("import tempfile", "g(tempfile.mkdtemp())", "tempfile.mkdtemp"),
    ("from pyspark.sql import functions as F", "flights.select(F.rand())", "rand"),
    ("import pyspark.sql.functions as F", "flights.select(F.shuffle('a'))", "shuffle"),
    ("from pyspark.sql.functions import *", "flights.select(randn())", "randn"),
    ("from pyspark.sql.functions import monotonically_increasing_id as i", "flights.select(i())", "monotonically_increasing_id"),
    ("import time", "g(time.perf_counter())", "time.perf_counter"),
    ("import helper", "helper.x(flights)", "rand"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "use", "word"), DRAWS)
def test_nondeterministic_functions_are_detected(head: str, use: str, word: str) -> None:
    helper = "from pyspark.sql import functions as F\ndef x(y): return y.select(F.rand())"
    text = t("flights", f"return {use}", before=head)
    found = only(text, helper=helper)
    assert found.volatile
    note = f"nondeterministic ({word}): each build may return different rows"
    assert found.notes == (note,)
    (told,) = warned(text, helper=helper)
    assert told.startswith(f"{found.location}: warning: `f` is {note} [python-nondeterministic]\n")


CLOCKS = [
    ("from datetime import datetime", "datetime.now()", "instant", "datetime.datetime.now"),
    ("from datetime import datetime as dt", "dt.utcnow()", "instant", "datetime.datetime.utcnow"),
    ("import datetime", "datetime.date.today()", "instant", "datetime.date.today"),
    ("import datetime as d", "d.datetime.now(tz=None)", "instant", "datetime.datetime.now"),
    ("import time", "time.time()", "instant", "time.time"),
    ("import pandas as pd", "pd.Timestamp.now()", "instant", "pandas.Timestamp.now"),
    ("from pyspark.sql import functions as F", "F.current_timestamp()", "instant", "current_timestamp"),
    ("from pyspark.sql import functions as F", "F.now()", "instant", "now"),
    ("from pyspark.sql import functions as F", "F.current_date()", "day", "current_date"),
    ("from pyspark.sql.functions import current_date", "current_date()", "day", "current_date"),
    ("", "'ts > now()'", "instant", "now"),
    ("", "'d = current_date'", "day", "current_date"),
    ("", "flights.x.now()", "instant", "now"),
    ("", "flights.filter(\"d < 'today' - INTERVAL 1 DAY\")", "day", "current_date"),
    ("", "flights.d >= ' Yesterday'", "day", "current_date"),
    ("from pyspark.sql import functions as F", "F.lit('now').cast('timestamp')", "instant", "now"),
    ("import pandas as pd", "pd.Timestamp('now')", "instant", "now"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "use", "clock", "word"), CLOCKS)
def test_time_dependent_functions_are_detected(head: str, use: str, clock: str, word: str) -> None:
    text = t("flights", f"return g({use})", before=head)
    found = only(text)
    assert found.reads_clock == clock
    soon = "immediately" if clock == "instant" else "the next day"
    note = f"time-dependent ({word}): stale {soon}"
    assert found.notes == (note,)
    (told,) = warned(text)
    assert f"warning: `f` is {note}" in told


@pytest.mark.parametrize(
    ("head", "use"),
    [
        ("", "flights.filter('delay > 3')"),
        ("import datetime", "g(datetime.timedelta(days=1), datetime.date(2013, 1, 1))"),
        ("import time", "time.sleep(1)"),
        ("", "g(limit)"),
        ("", "g(flights.sample)"),
        ("import random", "flights"),
        ("", "flights.withColumn('now', g)"),
    ],
)
def test_deterministic_functions_get_no_warning(head: str, use: str) -> None:
    text = t("flights", f"return {use}", before=head)
    found = only(text)
    assert not found.volatile
    assert not warned(text)
    assert found.reads_clock is None
    assert found.notes == ()


def test_a_parameter_named_like_a_module_is_not_that_module() -> None:
    found = compiled({"raw.sql": T.replace("flights", "random"), "d.py": t("random", "return random.filter('a')")})  # fmt: skip
    assert not found.by_id["f@sources/d.py"].volatile


def test_nondeterminism_spreads_from_inline_sources_but_not_from_tables() -> None:
    text = (
        f"{IMPORTS}@{{}}\ndef a(flights): return flights.sample(0.5)\n@table\ndef f(a): return a\n"
    )
    assert only(text.format("model")).volatile
    assert not only(text.format("table")).volatile


EFFECTS = [
    ("flights.write.parquet('x')", "python-writes"),
    ("flights.write.mode('overwrite').saveAsTable('x')", "python-writes"),
    ("flights.writeTo('x').append()", "python-writes"),
    ("g(open('x', 'w'))", "python-writes"),
    ("g(open('x', mode='ab'))", "python-writes"),
    ("g(Path('x').open('w'))", "python-writes"),
    ("[(p := Path('x')), p.open('w')]", "python-writes"),
    ("g(flights.path.open('w'))", "python-writes"),
    ("g(Path('x').write_text('y'))", "python-writes"),
    ("flights.toPandas().to_csv('x')", "python-writes"),
    ("g(spark.sql('INSERT INTO x SELECT 1'))", "python-writes"),
    ("g(os.remove('x'))", "python-writes"),
    ("g(shutil.rmtree('x'))", "python-writes"),
    ("spark.read.parquet('x')", "python-reads"),
    ("g(open('x'))", "python-reads"),
    ("g(pd.read_csv('x'))", "python-reads"),
    ("g(requests.get('x'))", "python-reads"),
    ("g(os.environ['x'])", "python-reads"),
    ("g(os.environ.get('x'))", "python-reads"),
    ("g(os.getenv('x'))", "python-reads"),
    ("g(np.load('x.npy'))", "python-reads"),
    ("g(Path('x').open())", "python-reads"),
    ("g(Path('x').iterdir())", "python-reads"),
    ("g(gzip.open('x'))", "python-reads"),
    ("g(joblib.load('x'))", "python-reads"),
    ("g(os.path.exists('x'))", "python-reads"),
    ("g(importlib.import_module('x'))", "python-unseen"),
    ("g(__import__('x'))", "python-unseen"),
    ("eval('flights')", "python-unseen"),
    ("spark.table('x')", "python-reads"),
    ("spark.sql('SELECT a FROM x')", "python-reads"),
    ("g(flights.createOrReplaceTempView('x'))", "python-session"),
    ("g(spark.udf.register('x', g))", "python-session"),
    ("spark.sql('SELECT * FROM {x}', x=flights)", None),
    ("flights", None),
    ("flights.toPandas().to_csv()", None),
    ("g(spark.sql('SELECT 1'))", None),
    ("g(os.path.join('a', 'b'))", None),
]  # fmt: skip
LIBRARIES = "import gzip, importlib, joblib, os, requests, shutil\nimport pandas as pd, numpy as np\nfrom pathlib import Path\nfrom pyspark.sql import SparkSession\n"


@pytest.mark.parametrize(("use", "code"), EFFECTS)
def test_side_effects_of_a_function_get_warnings(use: str, code: str | None) -> None:
    text = LIBRARIES + t("flights, spark: SparkSession", f"return {use}")
    problems = project(text).problems
    lots = ["python-nondeterministic"] if "os.environ" in use or "os.getenv" in use else []
    assert [p.code for p in problems] == [*lots, *([code] if code else [])]
    assert all((p.severity, p.location.line) == ("warning", 9) for p in problems[len(lots) :])


@pytest.mark.parametrize("use", [use for use, code in EFFECTS if code == "python-reads"])
def test_a_raw_source_may_read_any_data(use: str) -> None:
    text = LIBRARIES + t("spark: SparkSession", f"return {use}", decorator="@source")
    assert project(text).problems == ()


@pytest.mark.parametrize(
    "change",
    [
        "conf.set('spark.sql.ansi.enabled', 'false')",
        "sql('SET TIME ZONE \"Asia/Tokyo\"')",
        "sql(f'set spark.sql.ansi.enabled = {False}')",
        "sql('reset ' + 'x')",
        "sql('USE other')",
        "sql('DECLARE VARIABLE x INT')",
    ],
)
def test_a_function_may_not_change_settings_of_the_session(change: str) -> None:
    text = t("flights", f"flights.sparkSession.{change}\n    return flights")
    assert wrong(text) == ["5:5: error: `f` changes a session setting, which affects other sources [python-session]"]  # fmt: skip


@pytest.mark.parametrize("helper", ["def g(x: return x", "def g(x): x.sparkSession.conf.set('a', 'b')"])  # fmt: skip
def test_functions_that_use_an_invalid_helper_are_not_sources(helper: str) -> None:
    text = t("flights", "return helper.g(flights)", before="import helper")
    found = project(text + "@table\ndef g(flights): return flights\n@table\ndef h(f): return f\n", helper=helper)  # fmt: skip
    assert len(found.errors) == 1
    assert "f" not in {s.name for s in found.sources}
    assert "h" not in {s.name for s in found.sources}


def test_side_effects_of_a_helper_get_warnings_in_the_helper() -> None:
    helper = "def g(x):\n    x.write.parquet('y')\n    return x"
    text = t("flights", "return helper.g(flights)", before="import helper")
    assert wrong(text, helper=helper) == ["helper.py:2:5: warning: `f` writes data itself each time it is computed [python-writes]"]  # fmt: skip


# ------------------------------------------------------------------------- loading and processes


@pytest.mark.proves("P1")
def test_loading_a_project_does_not_run_its_code(make_project: Callable[..., Path]) -> None:
    text = f"{IMPORTS}open('ran', 'w').close()\nraise SystemExit(7)\n@table\ndef f(): return x\n"
    root = make_project({"d.py": text})
    found = load_project(load_settings(root))
    assert [s.name for s in found.sources] == ["f"]
    assert not (root / "ran").exists()


def test_edits_of_helpers_are_detected_despite_the_cache(make_project: Callable[..., Path]) -> None:
    text = "from helper import g\n" + t("", "return g()")
    root = make_project({"d.py": text, "e.py": t("", "return 1 + 1").replace("f(", "e(")})

    def build_ids() -> dict[str, str]:
        return {s.name: s.build_id for s in load_project(load_settings(root)).sources}

    seen = [build_ids()]
    for helper in ("def g(): return 1", "def g(): return 2", "# x\ndef g(): return 2", None):
        path = root / "helper.py"
        path.write_text(helper) if helper is not None else path.unlink()
        seen.append(build_ids())
    package = root / "helper" / "__init__.py"
    package.parent.mkdir()
    package.write_text("def g(): return 1")
    seen.append(build_ids())
    assert len({s["e"] for s in seen}) == 1
    none, one, two, comment, gone, packaged = (s["f"] for s in seen)
    assert none == gone
    assert two == comment
    assert len({none, one, two, packaged}) == 4


def test_build_ids_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_python_files import build_id; print(build_id())"
    )
    assert printed_under_another_hash_seed(script, tmp_path) == f"{build_id()}\n"


@given(st.text(alphabet="@#def tabl(flihs):\n rnpo=3'\"\\{}*", max_size=60))
@settings(max_examples=draws(30, 150), deadline=None)
def test_no_text_crashes_the_parser(text: str) -> None:
    parse_python(IMPORTS + text, "sources/d.py", lambda path: None)


def test_decorators_return_functions_as_they_are() -> None:
    import persist_assets

    def f(flights: list[int]) -> list[int]:
        return [*flights, 3]

    for name, called in itertools.product(
        ("source", "model", "table", "incremental_table"), (True, False)
    ):
        decorator = getattr(persist_assets, name)
        made = decorator(owner="team:x")(f) if called else decorator(f)
        assert made is f
        assert made([1]) == [1, 3]


@pytest.mark.parametrize("first", ["import persist_assets.core.model", "import persist_assets.compiler.compile", "pass"])  # fmt: skip
def test_importing_a_submodule_does_not_shadow_a_decorator(first: str) -> None:
    script = f"{first}\nfrom persist_assets import model, table\nimport sys\nmodel(model); table(table)\nprint('pyspark' in sys.modules, 'sqlglot' in sys.modules and {first!r} == 'pass')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)  # fmt: skip
    assert done.stdout.strip() == "False False"


# ---------------------------------------------------------------------------------- without Spark


@pytest.mark.proves("P27")
@pytest.mark.parametrize("backend", ["pandas", "pyarrow", "polars", "duckdb"])
def test_a_narwhals_function_runs_on_other_data_frames(backend: str, tmp_path: Path) -> None:
    """A file of sources is imported like any module, and its functions are called directly."""
    import narwhals as nw
    import pyarrow as pa

    path = tmp_path / "delays.py"
    path.write_text(
        f"import narwhals as nw\n{IMPORTS}\n"
        "@table(check={'not_null': ['carrier']})\n"
        "def late_by_carrier(flights: nw.LazyFrame, late=15) -> nw.LazyFrame:\n"
        "    found = flights.filter(nw.col('delay') > late)\n"
        "    return found.group_by('carrier').agg(nw.col('delay').mean()).sort('carrier')\n"
    )
    spec = importlib.util.spec_from_file_location("delays", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = pa.table({"carrier": ["AA", "AA", "UA", "UA"], "delay": [5.0, 90.0, 20.0, 40.0]})
    native: Any = data
    if backend == "pandas":
        native = data.to_pandas()
    elif backend == "polars":
        native = pytest.importorskip("polars").from_arrow(data).lazy()
    elif backend == "duckdb":
        native = pytest.importorskip("duckdb").from_arrow(data)
    frame = nw.from_native(native)
    lazy = frame if isinstance(frame, nw.LazyFrame) else frame.lazy()
    rows = module.late_by_carrier(lazy).collect().rows(named=False)
    assert [tuple(r) for r in rows] == [("AA", 90.0), ("UA", 30.0)]


def test_the_examples_of_the_docs_compile() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"```\w+\n(?:--|#) sources/(\S+)\n(.*?)```", text, re.DOTALL)
    found = compiled(dict(blocks))
    assert not found.problems, [str(p) for p in found.problems]
    assert {s.name for s in found.persisted} == {"late_by_carrier", "worst", "named"}


def test_failures_are_located_in_the_projects_code_and_not_in_persists() -> None:
    """A project may contain persist itself, as the demo does."""
    with pytest.raises(SourcesError) as caught:
        parse_query("no query")
    place = place_of(caught.value, ROOT)
    assert place is not None
    assert place.path == "tests/unit/compiler/test_python_files.py"
    assert place_of(caught.value, ROOT / "docs") is None
    told = RuntimeError(f'in a worker:\n  File "{ROOT}/docs/x.py", line 3, in f')
    assert str(place_of(told, ROOT / "docs")) == "x.py:3:1"
    hidden = RuntimeError(f'in a worker:\n  File "{ROOT}/.venv/lib/x.py", line 3, in f')
    assert place_of(hidden, ROOT) is None


@pytest.mark.parametrize("root", ["", "src/"])
def test_helper_modules_run_from_their_compiled_text(root: str) -> None:
    own = "from pkg import g, deep\nimport pkg.space.inner\nfrom . import _near\n" + t("n=1", "return g(n), deep.N, pkg.space.inner.N, _near.N, n")  # fmt: skip
    files = {
        f"{root}pkg/__init__": "from .mod import g",
        f"{root}pkg/mod": "from . import deep\nfrom .space.inner import N as M\ndef g(x): return x + deep.N + M",
        f"{root}pkg/deep": "N = 10",
        f"{root}pkg/space/inner": "from ..deep import N as M\nN = M * 10",
        "sources/_near": "N = 7",
    }
    function = only(own, **files).function
    assert function is not None
    module = modules_of(function, Path("/nowhere")).load_file(function.path)
    assert module.f() == (111, 10, 100, 7, 1)


READERS = {
    "named": "SELECT carrier, count(*) AS n FROM late GROUP BY carrier",
    "other": "SELECT sum(delay) AS s FROM late",
    "star": "SELECT * FROM late",
    "aliased": "SELECT a FROM late AS late(a, b)",
    "nested": "SELECT a FROM ((late)) AS q(a, b)",
    "joined": "SELECT a FROM (late JOIN flights USING (carrier)) AS q(a, b, c)",
    "bare": "SELECT carrier FROM late UNION ALL (SELECT carrier FROM (FROM late))",
    "counted": "SELECT count(late.*) AS n FROM late",
}
"""Queries over the table of a function; only the first two are independent of its order."""


@pytest.mark.proves("T16")
@pytest.mark.parametrize("contract", ["", '(columns={"delay": "double", "carrier": "string"})'])
def test_readers_of_a_function_are_analysed_per_column_if_a_contract_names_them(
    contract: str,
) -> None:
    body = f"@table{contract}\ndef late(flights):\n    return flights.filter('delay > 15')\n"
    views = "".join(f"--@ persist\nCREATE VIEW {n} AS {q};\n" for n, q in READERS.items())
    files = {"raw.sql": T, "r.sql": views}
    read = {s.name: s for s in compiled({**files, "d.py": IMPORTS + body}).persisted}
    whole = {n for n in READERS if any("as a whole" in note for note in read[n].notes)}
    assert whole == ({*READERS} - {"named", "other"} if contract else {*READERS})
    lineage = [(e.upstream.column, e.column) for e in read["named"].lineage]
    assert lineage == ([("carrier", "carrier")] if contract else [])

    def changed(text: str) -> set[str]:
        other = compiled({**files, "d.py": IMPORTS + text}).persisted
        return {s.name for s in other if s.build_id != read[s.name].build_id}

    assert changed(body.replace("15", "20")) == {"late", *READERS}
    if contract:
        # Neither a type nor the order changes what is known of the table.
        assert not changed(body.replace('"double"', '"float"'))
        swapped = '(columns={"carrier": "string", "delay": "double"})'
        assert not changed(body.replace(contract, swapped))
        assert changed(body.replace(contract, "")) == {"named", "other"}
        assert changed(body.replace("})", ', "*": ""})')) == {"named", "other"}
