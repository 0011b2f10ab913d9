"""Paths into variants (`v:a.b`) become function calls for the parser."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.core.dialect import faithful, tokenize
from persist_assets.core.variant_paths import without_paths

pytestmark = pytest.mark.proves("V5")
RAW = (
    "CREATE TABLE t (v VARIANT, s STRUCT<a: INT, v: VARIANT>, m INT) USING parquet LOCATION 't';\n"
)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("SELECT v:a", "SELECT variant_get ( v , $.a )"),
        ("SELECT t.s.v:a.B[0], 1", "SELECT variant_get ( t.s.v , $.a.B[0] ) , 1"),
        ("SELECT f(x, y)[0]:a", "SELECT variant_get ( f ( x , y ) [ 0 ] , $.a )"),
        ("SELECT a + (v):select", "SELECT a + variant_get ( ( v ) , $.select )"),
        ("SELECT v:a[1]:b", "SELECT variant_get ( variant_get ( v , $.a[1] ) , $.b )"),
        ("SELECT v:['a'].b", "SELECT variant_get ( v , $.a.b )"),
        ("SELECT v:`a`", "SELECT variant_get ( v , $.a )"),
        ("SELECT v:['a-b c'].d", "SELECT variant_get ( v , $['a-b c'].d )"),
        ("SELECT v:['a.b'].c", "SELECT variant_get ( v , $['a.b'].c )"),
        ("SELECT v:`a b.c`", "SELECT variant_get ( v , $['a b'].c )"),
        ("SELECT v:x.`a b`", "SELECT variant_get ( v , $.x['a b'] )"),
        # These stay unchanged, and the parser rejects them.
        ("SELECT v:a[*]", "SELECT v : a [ * ]"),
        ("SELECT v:['']", "SELECT v : [  ]"),
        ("SELECT v:`a..b`", "SELECT v : a..b"),
        ("SELECT v:", "SELECT v :"),
        ("SELECT 1:a", "SELECT 1 : a"),
        ("SELECT ):a", "SELECT ) : a"),
    ],
)
def test_variant_paths_become_function_calls(text: str, calls: str) -> None:
    tokens = without_paths(faithful(tokenize(text), text))
    assert " ".join(t.text for t in tokens).replace("ƒ", "").replace(" . ", ".") == calls


def test_paths_can_be_combined_with_parameters_and_types_with_colons() -> None:
    query = (
        "SELECT m, v:a::STRUCT<x: INT, y: STRING> AS x, s.v:b.c::int + s.a AS y FROM t"
        " WHERE m >= :watermark"
    )
    project = compiled({"raw.sql": RAW, "q.sql": f"--@ persist\nCREATE VIEW q AS {query};"})
    assert not any("as a whole" in n for n in project.by_id["q@sources/q.sql"].notes)
    assert project.by_id["q@sources/q.sql"].columns[1].type == "struct<x:int,y:string>"


def test_a_path_without_an_alias_has_an_unknown_name() -> None:
    inner = "CREATE VIEW q AS SELECT a FROM (SELECT v:a FROM t);"
    project = compiled({"raw.sql": RAW, "q.sql": inner})
    assert any("as a whole" in n for n in project.by_id["q@sources/q.sql"].notes)


def test_errors_have_locations_in_the_original_text() -> None:
    project = compiled({"raw.sql": RAW, "q.sql": "CREATE VIEW q AS\nSELECT typo:a AS x FROM t;"})
    (error,) = project.errors
    assert error.message == "`typo` is not a column of the tables in this query"
    assert (error.location.line, error.location.column) == (2, 8)
