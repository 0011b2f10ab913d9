"""Python functions that only return the result of a query are compiled as that query, or opaque."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source

RAW = (
    "CREATE TABLE t (a BIGINT, b STRING, c DOUBLE) USING parquet LOCATION 't';\n"
    "CREATE TABLE u (a BIGINT, d STRING) USING parquet LOCATION 'u';\n"
)
HEAD = """
from persist_assets import incremental_table, model, table
from pyspark.sql import SparkSession
import functools
"""
SUM = "SELECT b, sum(a) AS n FROM {t} GROUP BY b"


def project(text: str, **more: str) -> Project:
    files = {"raw.sql": RAW, "d.py": HEAD + text}
    return compiled({**files, **{k.replace("__", "."): v for k, v in more.items()}})


def source(text: str, name: str = "f", **more: str) -> Source:
    result = project(text, **more)
    assert not result.errors, [str(p) for p in result.errors]
    return next(s for s in result.sources if s.name == name)


def function(
    body: str, parameters: str = "t, u, spark: SparkSession", above: str = "@table"
) -> str:
    lines = "\n    ".join(body.splitlines())
    return f"{above}\ndef f({parameters}):\n    {lines}\n"


ONE = "t, spark: SparkSession"
SEEN = {
    "plain": function(f"return spark.sql('{SUM}', t=t)", ONE),
    "with a docstring": function(f'"""Sums."""\nreturn spark.sql("{SUM}", t=t)', ONE),
    "by names": function(
        f'query = "{SUM}"\nrows = spark.sql(query, t=t)\nreturn rows', ONE
    ),
    "of the module": f'SQL = "{SUM}"\n' + function("return spark.sql(SQL, t=t)", ONE),
    "the frame's session": function(f"return t.sparkSession.sql('{SUM}', t=t)", "t"),
    "another name": function(f"return spark.sql('{SUM}'.replace and '', t=t)", ONE).replace(
        f"'{SUM}'.replace and ''", repr(SUM.replace("{t}", "{rows}"))
    ).replace("t=t", "rows=t"),
    "as an input": function(f"return spark.sql('{SUM.replace('{t}', '{x}')}', x=x)",
                            "x, spark: SparkSession", '@table(inputs={"x": "raw/t"})'),
    "laid out": function(
        'return spark.sql(\n    """\n    SELECT  b, -- what\n  sum(a)   n\n FROM {t} group BY b""", t=t)', ONE
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", SEEN)
@pytest.mark.proves("V20")
def test_a_function_that_returns_a_query_is_compiled_as_that_query(form: str) -> None:
    above = "--@ persist\nCREATE VIEW g AS SELECT b, sum(a) AS n FROM t GROUP BY b;\n"
    result = project(SEEN[form], g__sql=above)
    assert not result.problems, [str(p) for p in result.problems]
    f, g = (next(s for s in result.sources if s.name == n) for n in "fg")
    assert f.function is None
    assert f.language == "python"
    assert f.build_id == g.build_id, "as if it were written in SQL"
    assert [(c.name, c.type) for c in f.columns] == [("b", "string"), ("n", "bigint")]
    assert f.lineage == g.lineage
    assert f.lineage


ROWS = {
    "two frames": "SELECT t.a FROM {t} AS t JOIN {u} AS u ON t.a = u.a",
    "frames qualify": "SELECT {t}.a FROM {t} JOIN {u} ON {t}.a = {u}.a",
    "twice": "SELECT a FROM {t} UNION ALL SELECT a FROM {u} UNION ALL SELECT a FROM {t}",
    "within": "WITH x AS (SELECT a FROM {t}) SELECT a FROM x WHERE a IN (SELECT a FROM {u})",
    "its own name": "WITH t AS (SELECT a FROM {t}) SELECT a FROM t JOIN {u} USING (a)",
    "braces": "SELECT a, '{{}}' AS x FROM {t} JOIN {u} USING (a)",
}


@pytest.mark.parametrize("form", ROWS)
@pytest.mark.proves("V20")
def test_queries_over_several_frames_are_recognized(form: str) -> None:
    f = source(function(f'return spark.sql("""{ROWS[form]}""", t=t, u=u)'))
    assert f.function is None
    assert f.query is not None
    assert "{t}" not in f.query.text


OPAQUE = {
    "a frame in a text": ("SELECT '{t}' FROM {t}, {u}", "t=t, u=u"),
    "a frame in a comment": ("SELECT a FROM {t} /* {t} */ JOIN {u} USING (a)", "t=t, u=u"),
    "a frame not read": ("SELECT a FROM {t}", "t=t, u=u"),
    "a name of the session": ("SELECT t.a FROM {t} AS t, {u} AS u, other", "t=t, u=u"),
    "the name without braces": ("SELECT t.a FROM {t} AS t, u", "t=t, u=u"),
    "a bare name qualifies": ("SELECT t.a FROM {t}, {u}", "t=t, u=u"),
    "an outer name qualifies": (
        "SELECT t.a FROM {u} AS t WHERE EXISTS (SELECT 1 FROM {t} WHERE t.a = 1)",
        "t=t, u=u",
    ),
    "a name is hidden": ("WITH t AS (SELECT 1 AS a) SELECT {t}.a FROM {t}, {u}", "t=t, u=u"),
    "a format": ("SELECT a FROM {t!s} JOIN {u} USING (a)", "t=t, u=u"),
    "an expression": ("SELECT a FROM {t} JOIN {u} USING (a)", "t=t.filter('a > 1'), u=u"),
    "parameters": ("SELECT a FROM {t} JOIN {u} USING (a) WHERE a > :x", "args={'x': 1}, t=t, u=u"),
    "an unknown function": ("SELECT ours(t.a) AS a FROM {t} AS t, {u} AS u", "t=t, u=u"),
    "a number nobody knows": ("SELECT a FROM {t} JOIN {u} USING (a) WHERE a > {n}", "t=t, u=u, n=N"),
    "a text with quotes": (
        "SELECT a FROM {t} JOIN {u} USING (a) WHERE b > {n}",
        "t=t, u=u, n='it\\'s'",
    ),
    "no format": ("SELECT a FROM {t} JOIN {u} USING (a)", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", OPAQUE)
@pytest.mark.proves("V20")
def test_functions_with_uncertain_queries_are_opaque(form: str) -> None:
    text, values = OPAQUE[form]
    comma = ", " if values else ""
    result = project(function(f'return spark.sql("{text}"{comma}{values})'))
    f = next(s for s in result.sources if s.name == "f")
    assert f.function is not None


@pytest.mark.parametrize(
    ("sql", "is_seen"),
    [
        # If both had the name of the source, the inner one would hide the outer one.
        ("SELECT {t}.a FROM {t} WHERE EXISTS (SELECT 1 FROM {u} WHERE {u}.b = {t}.b)", False),
        ("SELECT {t}.a, {u}.b FROM {t} JOIN {u} ON {t}.a = {u}.a", False),
        ("SELECT x.a, y.b FROM {t} AS x JOIN {u} AS y ON x.a = y.a", True),
        ("SELECT {t}.a FROM {t} WHERE a IN (SELECT a FROM {t} WHERE {t}.b = 'x')", None),
    ],
)
@pytest.mark.proves("V20")
def test_frames_of_one_source_are_not_mixed_up(sql: str, is_seen: bool | None) -> None:
    more, values = ("", "t=t") if is_seen is None else ("u, ", "t=t, u=u")
    inputs = {"t": "raw/t"} | ({"u": "raw/t"} if more else {})
    body = f'return spark.sql("{sql}", {values})'
    f = source(function(body, f"t, {more}spark: SparkSession", f"@table(inputs={inputs})"))
    assert (f.function is None) is (is_seen is not False)


BODIES = {
    "more happens": "print(1)\nreturn spark.sql('SELECT a FROM {t}', t=t)",
    "something else is returned": "return spark.sql('SELECT a FROM {t}', t=t).limit(1)",
    "a loop": "for x in 'ab':\n    rows = spark.sql('SELECT a FROM {t}', t=t)\nreturn rows",
    "a name is bound again": "q = 'SELECT 1 FROM {t}'\nq = 'SELECT 2 FROM {t}'\nreturn spark.sql(q, t=t)",
    "a parameter is bound": "t = 'SELECT 1 FROM {t}'\nreturn spark.sql(t, t=t)",
    "an f-string": "return spark.sql(f'SELECT a, {1} FROM {{t}}', t=t)",
    "another session": "return SparkSession.getActiveSession().sql('SELECT a FROM {t}', t=t)",
    "**": "return spark.sql('SELECT a FROM {t}', **{'t': t})",
    "a call beside it": "x = open('y')\nreturn spark.sql('SELECT a FROM {t}', t=t)",
}


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.proves("V20")
def test_functions_with_other_bodies_are_opaque(form: str) -> None:
    result = project(function(BODIES[form], ONE))
    assert next(s for s in result.sources if s.name == "f").function is not None


@pytest.mark.parametrize(
    ("above", "parameters"),
    [
        ("@functools.cache\n@table", ONE),
        ('@table(by="a")', ONE),
        ("@table", f"{ONE}, more=1"),
    ],
)
def test_functions_with_unusual_declarations_are_opaque(above: str, parameters: str) -> None:
    text = function("return spark.sql('SELECT a FROM {t}', t=t)", parameters, above)
    assert source(text).function is not None


def test_constants_of_a_module_with_import_side_effects_are_not_used() -> None:
    text = 'SQL = "SELECT a FROM {t}"\n' + function("return spark.sql(SQL, t=t)", ONE)
    assert source(text).function is None
    loud = 'def change():\n    global SQL\n    SQL = "SELECT 1 FROM {t}"\n\nchange()\n'
    assert source(text + loud).function is not None


@pytest.mark.proves("V20")
def test_constants_are_inserted_as_by_spark() -> None:
    values = "LOW = -1\nNAME = 'x y'\n"
    call = "return spark.sql('SELECT a FROM {t} WHERE a > {low} AND b = {name} AND {on}', "
    f = source(values + function(call + "t=t, low=LOW, name=NAME, on=True)", ONE))
    assert f.query is not None
    assert f.function is None
    assert f.query.text.endswith("WHERE a > -1 AND b = 'x y' AND True")
    other = source(
        values.replace("-1", "-2") + function(call + "t=t, low=LOW, name=NAME, on=True)", ONE)
    )
    assert other.build_id != f.build_id


@pytest.mark.proves("V20")
def test_only_columns_that_the_query_reads_affect_the_build_id() -> None:
    text = function("return spark.sql('SELECT a FROM {v}', v=v)", "v, spark: SparkSession")
    view = "CREATE VIEW v AS SELECT a, c FROM t;\n"
    f = source(text, v__sql=view)
    assert source(text, v__sql=view.replace("a, c", "c * 2 AS c, a")).build_id == f.build_id
    assert source(text, v__sql=view.replace("a,", "a + 1 AS a,")).build_id != f.build_id


@pytest.mark.proves("V20")
def test_errors_in_the_query_have_their_location_in_the_file() -> None:
    text = function(
        'return spark.sql("""\n    SELECT a,\n           wrong\n    FROM {t}""", t=t)', ONE
    )
    result = project(text)
    lines = (HEAD + text).splitlines()
    line = next(n for n, one in enumerate(lines, 1) if "wrong" in one)
    (error,) = result.errors
    place = error.location
    assert (place.path, place.line) == ("sources/d.py", line)
    assert place.column == lines[line - 1].index("wrong") + 1


def test_error_locations_after_inserted_constants_are_correct() -> None:
    text = function("return spark.sql('SELECT {n} AS n, a, wrong FROM {t}', t=t, n=123456)", ONE)
    (error,) = project(text).errors
    line = (HEAD + text).splitlines()[error.location.line - 1]
    assert line[error.location.column - 1 :].startswith("wrong")


@pytest.mark.proves("V20")
def test_invalid_sql_is_a_warning_and_the_function_is_opaque() -> None:
    text = function("return spark.sql('SELECT a FRM {t} WHERE', t=t)", ONE)
    result = project(text)
    assert not result.errors
    (warning,) = [p for p in result.problems if p.code == "syntax"]
    assert warning.severity == "warning"
    assert warning.location.path == "sources/d.py"
    assert next(s for s in result.sources if s.name == "f").function is not None


def test_readers_know_the_columns_of_a_function() -> None:
    text = function(f"return spark.sql('{SUM}', t=t)", ONE, "@model")
    g = source(text, "g", g__sql="--@ persist\nCREATE VIEW g AS SELECT * FROM f WHERE n > 1;\n")
    assert [c.name for c in g.columns] == ["b", "n"]
    assert g.bindings
