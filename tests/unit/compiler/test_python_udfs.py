"""Python functions that SQL queries call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlglot import exp
from support import compiled
from support.compiled import build_ids, text_of

from persist_assets.compiler.load import Loaded
from persist_assets.core.dialect import parse
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project

TABLE = "CREATE TABLE t (n INT, price DOUBLE, name STRING) USING parquet LOCATION 'data/t';\n"
PYTHON = '''"""Prices."""
from persist_assets import table, udf
from _rates import RATE

SHARE = 0.5


def share(x):
    return x * SHARE


@udf(returns="double")
def net(price, rate=RATE):
    """Without tax."""
    return None if price is None else share(price) / (1 + rate)


@udf(returns="string", deterministic=True)
def plain(text):
    return text and text.strip().lower()


@udf(returns="int", deterministic=False)
def lot(x):
    import random

    return random.randrange(x)


@table
def p(t):
    return t.select("n")
'''
RATES = "RATE = 0.19\nOTHER = 1\n"
A = "--@ persist\nCREATE VIEW a AS SELECT n, net(price) AS x FROM t;\n"
B = "--@ persist\nCREATE VIEW b AS SELECT n, plain(name) AS x FROM t;\n"
C = "--@ persist\nCREATE VIEW c AS SELECT n FROM a;\n"


def loaded(root: Path, **files: str) -> Loaded:
    (root / "_rates.py").write_text(files.pop("rates", RATES))
    return compiled.loaded(root, f_py=files.pop("f_py", PYTHON), **files)


def sound(root: Path, **files: str) -> Project:
    project = loaded(root, **files).project
    assert not project.problems, [str(p) for p in project.problems]
    return project


@pytest.mark.proves("W30")
def test_a_call_names_the_version_of_the_function_and_has_its_type(tmp_path: Path) -> None:
    query = "--@ persist\nCREATE VIEW v AS SELECT net(rate => 1, price => n) AS x, twice(plain(name)) AS y FROM t;\n"
    twice = "CREATE FUNCTION twice(x STRING) RETURNS STRING RETURN x || plain(x);\n"
    project = sound(tmp_path, q=TABLE + A + query + twice)
    names = {u.name: u.registered for u in project.udfs}
    assert text_of(project, "a") == f"SELECT n, CAST({names['net']}(price) AS double) AS x FROM t"
    plain = f"CAST(CAST({names['plain']}(name) AS string) AS string)"
    assert text_of(project, "v") == (
        f"SELECT CAST({names['net']}(n, 1) AS double) AS x, "
        f"CAST({plain} || CAST({names['plain']}({plain}) AS string) AS string) AS y FROM t"
    )
    (v,) = (s for s in project.sources if s.name == "v")
    assert [(c.name, c.type) for c in v.columns] == [("x", "double"), ("y", "string")]
    (net,) = (u for u in project.udfs if u.name == "net")
    assert (net.returns, net.deterministic, net.function.path) == ("double", True, "sources/f.py")
    assert dict(net.function.modules).keys() == {"sources/f.py", "_rates.py"}
    other = loaded(tmp_path, f_py=PYTHON.replace('"double"', '"float"')).project
    assert names["net"] not in {u.registered for u in other.udfs}


@pytest.mark.proves("W30")
@pytest.mark.parametrize(
    ("file", "before", "after", "changed"),
    [
        ("f_py", "x * SHARE", "x / SHARE", {"a", "c"}),
        ("f_py", "SHARE = 0.5", "SHARE = 0.25", {"a", "c"}),
        ("rates", "RATE = 0.19", "RATE = 0.07", {"a", "c"}),
        ("rates", "OTHER = 1", "OTHER = 2", set[str]()),
        ("f_py", '"double"', '"float"', {"a", "c"}),
        ("f_py", ".lower()", ".upper()", {"b"}),
        ("f_py", "Without tax.", "Net.", set[str]()),
        ("f_py", "    return x * SHARE", "    # half\n    return (x * SHARE)", set[str]()),
        ("f_py", "deterministic=True", "deterministic=False", {"b"}),
        ("f_py", "randrange(x)", "randrange(1, x)", set[str]()),
    ],
)
def test_an_edit_changes_exactly_the_sources_that_call_the_function(
    tmp_path: Path, file: str, before: str, after: str, changed: set[str]
) -> None:
    """The second project is compiled with the cache of the first one."""
    queries = {"q": TABLE + A + B, "r": C.replace("SELECT n", "SELECT n, x")}
    first = build_ids(sound(tmp_path, **queries))
    text = {"f_py": PYTHON, "rates": RATES}[file]
    assert before in text
    second = build_ids(loaded(tmp_path, **{file: text.replace(before, after)}).project)
    assert {name for name in first if first[name] != second[name]} == changed
    assert build_ids(loaded(tmp_path).project) == first


@pytest.mark.proves("W30")
def test_sources_that_read_only_other_columns_have_the_same_build_id(tmp_path: Path) -> None:
    first = build_ids(sound(tmp_path, q=TABLE + A, r=C))
    second = build_ids(loaded(tmp_path, f_py=PYTHON.replace("x * SHARE", "x / SHARE")).project)
    assert (first["a"] != second["a"], first["c"] != second["c"]) == (True, False)


@pytest.mark.proves("W30")
def test_nondeterministic_functions_are_treated_like_rand(tmp_path: Path) -> None:
    query = "--@ persist\nCREATE VIEW v AS SELECT n, lot(n) AS x FROM t;\n"
    project = loaded(tmp_path, q=TABLE + query).project
    assert not project.errors
    (v,) = (s for s in project.sources if s.name == "v")
    assert v.volatile
    assert [(c.name, c.type) for c in v.columns] == [("n", "int"), ("x", "int")]
    lot = next(u.registered for u in project.udfs if u.name == "lot")
    assert (
        text_of(project, "v") == f"SELECT n, CAST(nvl2(rand(), {lot}(n), NULL) AS int) AS x FROM t"
    )
    twice = "CREATE FUNCTION twice(x INT) RETURNS INT RETURN x + x;\n"
    query = "CREATE VIEW w AS SELECT twice(lot(n)) AS x FROM t;\n"
    (problem,) = loaded(tmp_path, w=twice + query).project.errors
    assert "`twice` uses `x` several times, and `lot` might have another value" in problem.message


@pytest.mark.proves("W30")
def test_calls_prevent_incremental_builds_and_are_errors_in_stored_views(tmp_path: Path) -> None:
    view = "CREATE VIEW inner_view AS SELECT n, plain(name) AS x FROM t;\n"
    reader = "--@ persist\nCREATE VIEW r AS SELECT n, x FROM inner_view WHERE n > 1;\n"
    project = sound(tmp_path, q=TABLE + B + view + reader)
    for name in ("b", "r"):
        source = next(s for s in project.sources if s.name == name)
        with pytest.raises(NoRule, match="of `plain`, a function in Python"):
            project.program(source.source_id, frozenset(source.bindings), frozenset())
    stored = "--@ persist materialized=view\nCREATE VIEW s AS SELECT n, x FROM inner_view;\n"
    (problem,) = loaded(tmp_path, s=stored).project.errors
    assert problem.message == "`s` calls `plain`, a function in Python"


@pytest.mark.proves("W30")
def test_checks_call_functions_in_python(tmp_path: Path) -> None:
    query = '--@ persist check { expr="net(price) > 0" }\nCREATE VIEW v AS SELECT price FROM t;\n'
    project = sound(tmp_path, q=TABLE + query)
    (check,) = (
        project.persisted[0].checks
        if project.persisted[0].name == "v"
        else project.persisted[1].checks
    )
    net = next(u.registered for u in project.udfs if u.name == "net")
    assert check.expression == f"CAST({net}(price) AS double) > 0"


CALLS = [
    ("net()", "`net` takes 2 arguments, not 0 [argument-count]"),
    ("net(1, 2, 3)", "`net` takes 2 arguments, not 3 [argument-count]"),
    ("net(tax => 1)", "`net` has no parameter `tax` [argument-count]"),
    ("net(rate => 1)", "`net` takes 2 arguments, not 1 [argument-count]"),
    ("span(1, stop => 2)", "`span` needs `step` before other arguments [argument-count]"),
    ("net(price) OVER ()", "`net` does not aggregate, so OVER cannot follow [function]"),
]


@pytest.mark.proves("W30")
@pytest.mark.parametrize(("call", "message"), CALLS)
def test_calls_with_wrong_arguments_are_errors(tmp_path: Path, call: str, message: str) -> None:
    span = "\n@udf(returns='int')\ndef span(start, step=1, stop=9):\n    return start\n"
    query = f"{TABLE}CREATE VIEW v AS\nSELECT {call} AS x FROM t"
    (problem,) = loaded(tmp_path, f_py=PYTHON + span, q=query).project.errors
    assert str(problem).split("\n")[0] == f"sources/q.sql:3:8: error: {message}"


DEFINITIONS = [
    ("@udf\ndef f(x):\n    return x", "@udf needs the type of the result"),
    ("@udf(returns=KIND)\ndef f(x):\n    return x", "`returns` must be a literal"),
    ("@udf(returns='integre')\ndef f(x):\n    return x", "`integre` is not a valid result type"),
    ("@udf(returns='char(3)')\ndef f(x):\n    return x", "`char(3)` is not a valid result type"),
    ("@udf(returns='int', pure=True)\ndef f(x):\n    return x", "@udf has no argument `pure`"),
    ("@udf(returns='int', deterministic='x')\ndef f(x):\n    return x", "must be True or False"),
    ("@udf(returns='int')\ndef f(*xs):\n    return 1", "positional parameters only, not `xs`"),
    ("@udf(returns='int')\ndef f(x, *, y=1):\n    return 1", "parameters only, not `y`"),
    ("@udf(returns='int')\ndef f(x, X):\n    return 1", "`X` differs from another parameter"),
    ("@udf(returns='int')\ndef f(x):\n    yield x", "`f` must return one value"),
    ("@udf(returns='int')\nasync def f(x):\n    return x", "`f` must return one value"),
    ("@udf(returns='int')\n@table\ndef f(x):\n    return x", "`f` has two persist_assets decor"),
    ("@udf(returns='int')\ndef f(x):\n    return x\nf = 1", "`f` is redefined in its file"),
    (
        "import random\n@udf(returns='double')\ndef f(x):\n    return random.random()",
        "`f` uses random.random, so its results may vary",
    ),
]


@pytest.mark.proves("W30")
@pytest.mark.parametrize(("definition", "message"), DEFINITIONS)
def test_definitions_that_queries_cannot_call_are_errors(
    tmp_path: Path, definition: str, message: str
) -> None:
    """They are reported once, and their callers have no errors of their own."""
    text = f"from persist_assets import table, udf\nKIND = 'int'\n{definition}\n"
    query = TABLE + "CREATE VIEW v AS SELECT f(n) AS x FROM t;\n"
    (problem,) = loaded(tmp_path, f_py=text, q=query).project.errors
    assert message in problem.message
    assert problem.location.path == "sources/f.py"


@pytest.mark.proves("W30")
def test_functions_in_python_and_sql_share_a_namespace(tmp_path: Path) -> None:
    sql = "CREATE FUNCTION net(x INT) RETURNS INT RETURN x;\n"
    (problem,) = loaded(tmp_path, q=TABLE + sql).project.errors
    assert "`net` is already defined at " in problem.message
    text = PYTHON.replace("def plain", "def lower")
    (problem,) = loaded(tmp_path, f_py=text, q=TABLE).project.errors
    assert problem.message == "Spark has a function `lower` of its own, which calls would mean"


@pytest.mark.proves("W30")
def test_a_registered_name_is_parsed_as_an_unknown_function(tmp_path: Path) -> None:
    project = sound(tmp_path, q=TABLE)
    for udf in project.udfs:
        tree = parse(f"SELECT {udf.registered}(1)")
        assert isinstance(tree, exp.Select)
        assert isinstance(tree.expressions[0], exp.Anonymous)
