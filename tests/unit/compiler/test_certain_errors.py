"""Errors that `check` reports with certainty before Spark starts, and notes about files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load_project
from persist_assets.compiler.remarks import (
    empty_files,
    ignored_files,
    list_files,
    missing_modules,
)
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.spark import may_add_functions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from persist_assets.core.errors import Problem

T = "CREATE TABLE t (a INT, b INT, ts TIMESTAMP, s STRUCT<x: INT>) USING delta LOCATION 't';\n"


def problems(root: Path, text: str, toml: str = "") -> list[tuple[str, str | None]]:
    """Return the problems of a project of one file, each with its location and its hint."""
    (root / "sources").mkdir(exist_ok=True)
    (root / "persist.toml").write_text(toml)
    (root / "sources" / "a.sql").write_text(text)
    return worded(load_project(load_settings(root)).problems)


def worded(some: Iterable[Problem]) -> list[tuple[str, str | None]]:
    return [
        (f"{p.location}: {p.severity}: {p.message}".removeprefix("sources/"), p.hint) for p in some
    ]


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("query", "column", "name", "hint"),
    [
        ("SELECT cuont(*) AS n FROM t", 25, "cuont", "did you mean `count`?"),
        (
            "SELECT a FROM t WHERE starts_with(a, 'x')",
            40,
            "starts_with",
            "did you mean `startswith`?",
        ),
        ("SELECT safe_cast(a AS STRING) AS n FROM t", 25, "safe_cast", "Spark has `try_cast`"),
        ("SELECT a FROM t, LATERAL expldoe(b)", 43, "expldoe", "did you mean `explode`?"),
        ("SELECT id FROM rnage(10)", 33, "rnage", "did you mean `range`?"),
        (
            "SELECT zzqx(a) AS n FROM t",
            25,
            "zzqx",
            'if the session has it: functions = ["zzqx"] in persist.toml',
        ),
    ],
)
def test_functions_that_spark_does_not_have_are_errors(
    tmp_path: Path, query: str, column: int, name: str, hint: str
) -> None:
    (first, *_) = problems(tmp_path, f"{T}CREATE VIEW v AS {query}")
    assert first == (f"a.sql:2:{column}: error: unknown function `{name}`", hint)


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    "toml",
    [
        'functions = ["My_Score"]',
        '[spark]\n"spark.remote" = "sc://spark.example.com"',
        '[spark]\n"spark.sql.catalogImplementation" = "hive"',
        '[spark]\n"spark.sql.extensions" = "a.B"',
        '[spark]\n"spark.jars" = "udfs.jar"',
    ],
)
def test_functions_that_the_session_may_have_are_left_to_spark(tmp_path: Path, toml: str) -> None:
    query = f"{T}CREATE VIEW v AS SELECT my_score(a) AS n FROM t"
    assert problems(tmp_path, query, toml) == []
    assert problems(tmp_path, query, '[spark]\n"spark.driver.memory" = "1g"') != []


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("upper(a, 3)", "`upper` takes 1 argument, not 2"),
        ("round()", "`round` takes 1 or 2 arguments, not 0"),
        ("abs(sqrt(a, (1 + b)))", "`sqrt` takes 1 argument, not 2"),
        ("now(1, 2)", "`now` takes 0 or 1 arguments, not 2"),
        ("sum(a, b) OVER ()", "`sum` takes 1 argument, not 2"),
    ],
)
def test_calls_with_the_wrong_number_of_arguments_are_errors(
    tmp_path: Path, call: str, message: str
) -> None:
    (first, *_) = problems(tmp_path, f"{T}CREATE VIEW v AS SELECT {call} AS n FROM t")
    assert first[0].partition("error: ")[2] == message
    assert problems(
        tmp_path,
        f"{T}CREATE VIEW v AS SELECT {call} AS n FROM t",
        '[spark]\n"spark.jars" = "own.jar"',
    ) in ([], [first])


def test_settings_outside_the_project_may_add_functions(tmp_path: Path) -> None:
    assert not may_add_functions((), {})
    assert may_add_functions((), {"PYSPARK_SUBMIT_ARGS": "--jars x.jar pyspark-shell"})
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    assert may_add_functions((), {"SPARK_HOME": str(tmp_path)})
    assert may_add_functions((), {"SPARK_CONF_DIR": str(tmp_path / "conf")})


@pytest.mark.parametrize("functions", ['"f"', "[1]"])
def test_the_functions_setting_must_be_a_list_of_names(tmp_path: Path, functions: str) -> None:
    with pytest.raises(SettingsError, match=r"`functions` must be a list"):
        problems(tmp_path, T, f"functions = {functions}")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT db.f(a) AS n FROM t",  # a function of a schema
        "WITH list(a) AS (SELECT 1) SELECT l.a FROM list AS l, t AS week(a, b, ts, s)",
        "SELECT try_cast(a AS STRING) AS b, timestampadd(DAY, 1, ts) AS c, Count(*) AS n FROM t",
        "SELECT CAST(a AS DECIMAL(10, 2)) AS d, 'zzqx(' AS e FROM t -- zzqx(a)",
        "SELECT trim(BOTH 'x' FROM s) AS a, substring(s FROM 1 FOR 2) AS b FROM t",
        "SELECT overlay(s PLACING 'x' FROM 1) AS a, position('x' IN s) AS b FROM t",
        "SELECT dateadd(DAY, 1, d) AS a, date_diff(DAY, d, d) AS b, date_add(d, 1) AS c FROM t",
        "SELECT struct(*) AS a, upper(*) AS b, count(DISTINCT a, b) AS c FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) AS b FROM t",
        "SELECT transform(array(a, b), (x, i) -> x[i] + abs(x[0])) AS c FROM t",
        "SELECT now() AS a, round((a), 2) AS b, exists(SELECT 1) AS c FROM t",
        "SELECT count(*) FILTER (WHERE b) c, filter(collect_list(k), x -> x > 1) f FROM t",
        "SELECT k FROM t WHERE EXISTS ((SELECT 1 FROM u) UNION ALL (SELECT 2 FROM u))",
        "SELECT decimal(s) a, CAST(v AS DECIMAL(10,2)) b, s::decimal(10,2) x FROM t",
        "SELECT g, some(b) a FROM t WHERE s LIKE SOME ('a','b') GROUP BY g",
        "SELECT explode(m) FROM t, LATERAL explode(m) AS explode(key, value)",
        "SELECT abs(a) x, max(x) m FROM (SELECT k, g FROM t) abs(a, b), VALUES (1, 2) max(x, y)",
        "WITH first(a,b,c) AS (SELECT 1,2,3) SELECT first(a) x FROM first",
        "SELECT map_keys(m::map<string, bigint>), array_size(a::array<struct<a: int, b: int>>) FROM t",
        "SELECT isnull(s::struct<x: bigint, y: string>), if(a < b, b > a, c) FROM t",
        "SELECT a FROM t WHERE (a = 1) AND (b = 2) OR NOT (a LIKE ('x') OR b RLIKE ('y'))",
        "SELECT a FROM t WHERE a NOT IN (1, 2) AND a BETWEEN (1) AND (2) AND (a DIV (2)) = 1",
    ],
)
def test_other_parentheses_are_not_mistaken_for_unknown_calls(query: str) -> None:
    assert parse_query(query).wrong_calls == ()


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("query", "column", "name"),
    [
        ("SELECT a, count(*) AS n FROM t", 25, "a"),
        ("SELECT sum(a) AS n, a FROM t", 38, "a"),
        ("SELECT a, count(*) AS n FROM t GROUP BY b", 25, "a"),
        ("SELECT count(*) AS n FROM t GROUP BY b HAVING a > 1", 64, "a"),
        ("SELECT b FROM t GROUP BY b ORDER BY a", 54, "a"),
        ("SELECT s.x AS x, count(*) AS n FROM t", 25, "s"),
    ],
)
def test_columns_that_are_neither_grouped_nor_aggregated_are_errors(
    tmp_path: Path, query: str, column: int, name: str
) -> None:
    (first, *_) = problems(tmp_path, f"{T}CREATE VIEW v AS {query}")
    hint = f"add it to GROUP BY, or aggregate it: any_value({name})"
    assert first == (f"a.sql:2:{column}: error: `{name}` is neither grouped nor aggregated", hint)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a + b AS c, b + a AS d FROM t GROUP BY a + b",  # Spark treats them as equal
        "SELECT a, b, count(*) AS n FROM t GROUP BY ALL",
        "SELECT a AS k, count(*) AS n FROM t GROUP BY k",
        "SELECT s.x AS x, count(*) AS n FROM t GROUP BY s",
        "SELECT window.start AS w, count(*) AS n FROM t GROUP BY window(ts, '1 day')",
        "SELECT a, sum(b) OVER (PARTITION BY a) AS n FROM t",
        "SELECT a, b, count(*) AS n FROM t GROUP BY ROLLUP (a, b)",
        "SELECT a FROM t HAVING a > 1",
        "SELECT a FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM t AS u WHERE u.a > max(t.b))",
        "SELECT a FROM t GROUP BY a HAVING sum(b) > (SELECT max(b) FROM t AS u WHERE u.b > max(t.b))",
        "SELECT count(*) AS n, (SELECT max(b) FROM t) AS m FROM t",
    ],
)
def test_columns_that_may_be_grouped_are_left_to_spark(tmp_path: Path, query: str) -> None:
    assert problems(tmp_path, f"{T}CREATE VIEW v AS {query}") == []


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("text", "place", "shown", "hint"),
    [
        (
            "SELECT a FROM {{ ref('t') }}",
            "2:32",
            "{{ ref('t') }}",
            "write the name of the source itself: t",
        ),
        (
            'SELECT a FROM {{ source("shop",\n  "t") }}',
            "2:32",
            '{{ source("shop", "t") }}',
            "declare the table with CREATE TABLE … USING …, and write its name: t",
        ),
        (
            "SELECT {% if x %}a{% endif %} FROM t",
            "2:25",
            "{% if x %}",
            "write the SQL that it becomes, or import the project: persist import dbt DIR",
        ),
    ],
)
def test_dbt_templates_are_reported_with_a_hint(
    tmp_path: Path, text: str, place: str, shown: str, hint: str
) -> None:
    wrong = problems(tmp_path, f"{T}CREATE VIEW v AS {text};\nCREATE VIEW w AS SELECT a FROM v")
    message = f"a.sql:{place}: error: `{shown}` is a dbt template (Jinja); sources are plain SQL"
    assert wrong == [(message, hint)]  # and no error where `v` is read


@pytest.mark.proves("W2")
def test_sqlmesh_statements_are_reported_with_a_hint(tmp_path: Path) -> None:
    (first, *_) = problems(tmp_path, "MODEL (name db.x, kind FULL);\nSELECT a FROM t")
    hint = "write `--@ persist` and CREATE VIEW name AS SELECT …,"
    hint += " or import the project: persist import sqlmesh DIR"
    assert first == ("a.sql:1:1: error: `MODEL (…)` is a statement of SQLMesh", hint)


def test_braces_in_strings_and_comments_are_not_mistaken_for_templates(tmp_path: Path) -> None:
    text = "CREATE VIEW v AS SELECT '{{ ref(1) }}' AS a FROM t -- {% x %}"
    assert problems(tmp_path, f"{T}{text}") == []


@pytest.mark.proves("W2")
def test_an_annotation_in_a_block_comment_is_a_warning(tmp_path: Path) -> None:
    wrong = problems(tmp_path, f"{T}/*@ persist */\nCREATE VIEW v AS SELECT a FROM t")
    message = "a.sql:2:1: warning: this comment looks like an annotation but is not one"
    assert wrong == [(message, "write --@")]


@pytest.mark.proves("W2")
def test_errors_of_a_file_are_not_repeated_for_malloy_files_that_read_it(tmp_path: Path) -> None:
    head = "##! experimental.persistence\n"
    files = {
        "m.malloy": f"{head}#@ persist\nsource: s is spark.table('t') -> {{ group_by: a }}\n",
        "n.malloy": f'{head}import "m.malloy"\nsource: u is s -> {{ group_by: a }}\n',
        "own.malloy": f"{head}source: w is spark.table('zz') -> {{ group_by: a }}\n",
    }
    (tmp_path / "sources").mkdir()
    for name, text in files.items():
        (tmp_path / "sources" / name).write_text(text)
    missing = "CREATE TABLE t USING parquet LOCATION 'nowhere'"
    wrong = [message for message, _ in problems(tmp_path, missing)]
    assert wrong[0].startswith("a.sql:1:14: error: there is no data at")
    assert wrong[1] == (
        "m.malloy:1:1: note: 1 error is not shown: what this file reads has errors of its own"
    )
    assert {message.partition(":")[0] for message in wrong[2:]} == {"own.malloy"}
    unrelated = "CREATE TABLE t (a INT) USING delta LOCATION 't'; CREATE VIEW v AS SELECT b FROM t"
    (tmp_path / "sources" / "m.malloy").write_text(files["m.malloy"].replace("a }", "typo }"))
    wrong = [message for message, _ in problems(tmp_path, unrelated)]
    assert any("'typo' is not defined" in message for message in wrong)


@pytest.mark.proves("W2")
def test_a_column_in_double_quotes_is_a_warning(tmp_path: Path) -> None:
    query = """SELECT "A" AS b, "other" AS c, 'a' AS d, `a` AS e, "a b" AS f FROM t -- "a" """
    (warning,) = problems(tmp_path, f"{T}CREATE VIEW v AS {query}")
    assert warning == (
        'a.sql:2:25: warning: "A" is a string literal in Spark, not the column',
        "write `A` for the column, or 'A' for the string",
    )


@pytest.mark.proves("W2")
def test_unknown_formats_are_errors_unless_the_session_may_read_them(tmp_path: Path) -> None:
    text = "CREATE TABLE t (a INT) USING parqet LOCATION 't'; CREATE VIEW v AS SELECT a FROM t"
    (warning,) = problems(tmp_path, text.replace("parqet", "excel"))
    assert warning[0] == "a.sql:1:14: warning: `t` has the unknown format `excel`"
    (only,) = problems(tmp_path, text)
    assert only[0] == "a.sql:1:14: error: `t` has the unknown format `parqet`"
    assert "did you mean `parquet`?" in (only[1] or "")
    assert problems(tmp_path, text, '[spark]\n"spark.jars.packages" = "a:b:1"') == []
    assert problems(tmp_path, text.replace("parqet", "`com.example.Source`")) == []
    (tmp_path / "sources" / "f.py").write_text(
        "from persist_assets import source\nfrom pyspark.sql import SparkSession\n\n\n"
        "@source\ndef loaded(spark: SparkSession):\n    return spark.range(3)\n"
    )
    assert problems(tmp_path, T) == []


@pytest.mark.proves("W2")
def test_missing_modules_and_dagster_assets_are_warnings(
    tmp_path: Path,
) -> None:
    problems(tmp_path, T)
    (tmp_path / "sources" / "helper.py").touch()
    (tmp_path / "lib").mkdir()
    text = """import os, nonexist.sub
import helper, lib
import dagster as dg
from pyspark.sql import DataFrame
from persist_assets import table

@dg.asset(group_name="x")
def loose():
    return 1

@table
def used(t: DataFrame) -> DataFrame:
    return nonexist.sub.f(t)
"""
    (tmp_path / "sources" / "p.py").write_text(text)
    settings = load_settings(tmp_path)
    project = load_project(settings)
    assert worded(project.problems) == [
        (
            "p.py:7:2: warning: `loose` is a Dagster asset, not a source",
            "move it to definitions.py, or use @table of persist_assets",
        )
    ]
    assert worded(missing_modules(settings, project)) == [
        (
            "p.py:1:1: warning: the module `nonexist` is not installed here",
            "install it where builds run",
        )
    ]


@pytest.mark.proves("W2")
def test_files_without_sources_are_reported_as_notes(tmp_path: Path) -> None:
    problems(tmp_path, T)
    for name, text in {
        "dbt_model.py": "def model(dbt, session):\n    return dbt.ref('t')\n",
        "helper.py": "LATE = 15\n",
        "uses.py": "import os\nfrom helper import LATE\n",
        "empty.sql": "-- nothing\n",
        "wrong.sql": "SELECT 1",
    }.items():
        (tmp_path / "sources" / name).write_text(text)
    settings = load_settings(tmp_path)
    hint = "decorate a function with @table of persist_assets"
    assert worded(empty_files(settings, load_project(settings), list_files(settings))) == [
        ("dbt_model.py:1:1: note: this file defines no source", hint),
        ("empty.sql:1:1: note: this file defines no source", None),
        ("uses.py:1:1: note: this file defines no source", hint),
    ]


@pytest.mark.proves("W2")
def test_ignored_files_are_reported_as_notes(tmp_path: Path) -> None:
    problems(tmp_path, T)
    for name in ("Z.SQL", "_old/y.sql", "_x.sql", "schema.yml", "t.yml", "notes"):
        (tmp_path / "sources" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "sources" / name).touch()
    for silent in ("_helper.py", ".hidden.sql", "__pycache__/a.pyc"):
        (tmp_path / "sources" / silent).parent.mkdir(exist_ok=True)
        (tmp_path / "sources" / silent).touch()
    ignored = "note: this file is ignored"
    settings = load_settings(tmp_path)
    assert worded(ignored_files(settings, list_files(settings))) == [
        (f"Z.SQL:1:1: {ignored}: its name ends in .SQL", "rename it to Z.sql"),
        (
            f"_old/y.sql:1:1: {ignored}, and so is 1 more: its name begins with _, or its directory"
            " does",
            "rename it if it has sources",
        ),
        (f"notes:1:1: {ignored}: its name has no suffix", None),
        (f"schema.yml:1:1: {ignored}, and so is 1 more: its name ends in .yml", None),
    ]
