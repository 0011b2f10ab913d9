"""IDENTIFIER(…): constant arguments are names; other arguments are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled
from support.compiled import build_ids, loaded, sound

from persist_assets.compiler.frontends.sql import parse_query

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.proves("V57")

TABLES = "CREATE TABLE t (a INT, d INT, `b c` INT) USING delta LOCATION 't';\n"
DEFINITIONS = """CREATE FUNCTION twice(x INT) RETURNS INT RETURN x * 2;
DECLARE VARIABLE col STRING DEFAULT 'a';
DECLARE VARIABLE n INT DEFAULT 1;
"""
SAME = [
    ("SELECT IDENTIFIER('a') FROM t", "SELECT a FROM t"),
    ("SELECT identifier ( 't.a' ) FROM t", "SELECT t.a FROM t"),
    ("SELECT IDENTIFIER('`t`.`b c`') AS x FROM t", "SELECT `b c` AS x FROM t"),
    ('SELECT a FROM IDENTIFIER("t")', "SELECT a FROM t"),
    ("SELECT t.a FROM IDENTIFIER('' || 't')", "SELECT t.a FROM t"),
    ("SELECT s.a FROM IDENTIFIER('t' '') AS s", "SELECT a FROM t"),
    ("SELECT IDENTIFIER('ma' || 'x')(a) AS m FROM t", "SELECT max(a) AS m FROM t"),
    ("SELECT IDENTIFIER('if')(a > 1, 1, 2) AS m FROM t", "SELECT if(a > 1, 1, 2) AS m FROM t"),
    ("WITH `b c` AS (SELECT a FROM t) SELECT a FROM IDENTIFIER('`b c`')", "SELECT a FROM t"),
    ("SELECT * FROM IDENTIFIER('range')(2)", "SELECT * FROM range(2)"),
    ("SELECT identifier FROM (SELECT a AS identifier FROM t)", "SELECT a AS identifier FROM t"),
]
REFUSED = [
    ("IDENTIFIER(a)", "hides the name"),
    ("IDENTIFIER(lower('A'))", "hides the name"),
    ("IDENTIFIER('a\\x41')", "hides the name"),
    ("IDENTIFIER()", "hides the name"),
    ("IDENTIFIER('a' ||)", "hides the name"),
    ("IDENTIFIER('a'", "hides the name"),
    ("IDENTIFIER('a b')", "invalid name `a b`"),
    ("IDENTIFIER('')", "invalid name ``"),
    ("IDENTIFIER('t.')", "invalid name `t.`"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_constant_identifier_equals_the_name_itself(one: str, other: str) -> None:
    files = {"m.sql": f"{TABLES}CREATE VIEW one AS {one};\nCREATE VIEW other AS {other};"}
    project = compiled(files)
    assert not project.errors
    first, second = (project.by_id[f"{n}@sources/m.sql"].build_id for n in ("one", "other"))
    assert first == second


@pytest.mark.parametrize(("expression", "message"), REFUSED)
def test_invalid_identifiers_are_reported_with_a_location(expression: str, message: str) -> None:
    project = compiled({"m.sql": f"{TABLES}CREATE VIEW q AS\nSELECT {expression} FROM t;"})
    (problem,) = project.errors
    assert message in problem.message
    assert (problem.location.line, problem.location.column) == (3, 8)


def test_unknown_names_are_reported_with_their_location() -> None:
    text = f"{TABLES}CREATE VIEW q AS\nSELECT 1 AS x, IDENTIFIER('no' || 'pe') FROM t;"
    (problem,) = compiled({"m.sql": text}).errors
    assert problem.code == "unknown-column"
    assert (problem.location.line, problem.location.column) == (3, 16)


def test_spark_gets_the_resolved_names() -> None:
    query = parse_query("SELECT IDENTIFIER('a')  -- x\nFROM IDENTIFIER('s.`o``o`') WHERE a > 1")
    assert query.text == "SELECT `a`  -- x\nFROM `s`.`o``o` WHERE a > 1"
    assert [r.parts for r in query.references] == [("s", "o`o")]


@pytest.mark.parametrize(
    ("query", "same"),
    [
        ("SELECT IDENTIFIER('twi' || 'ce')(a) AS m FROM t", "SELECT twice(a) AS m FROM t"),
        ("SELECT IDENTIFIER(col) FROM t", "SELECT a FROM t"),
        (
            "SELECT IDENTIFIER('t.' || session.col), n AS v FROM IDENTIFIER('t')",
            "SELECT a, n AS v FROM t",
        ),
    ],
)
def test_identifiers_may_use_functions_and_variables(tmp_path: Path, query: str, same: str) -> None:
    def named(text: str, definitions: str = DEFINITIONS) -> str:
        query = f"{TABLES}--@ persist\nCREATE VIEW q AS {text};"
        return build_ids(sound(tmp_path, f=definitions, q=query))["q"]

    first = named(query)
    edited = DEFINITIONS.replace("x * 2", "x * 3").replace("'a'", "'d'")
    second = named(query, edited)  # with the cache of the first project
    assert first == named(same)
    other = same.replace("SELECT a,", "SELECT d,").replace("SELECT a ", "SELECT d ")
    assert second == named(other, edited) != first


def test_a_variable_that_is_not_a_string_is_rejected_as_an_identifier(tmp_path: Path) -> None:
    query = f"{TABLES}CREATE VIEW q AS SELECT IDENTIFIER(n) FROM t;"
    (problem,) = loaded(tmp_path, f=DEFINITIONS, q=query).project.errors
    assert problem.code == "identifier"
