"""Columns without an alias: their names are Spark's, or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled
from implicit import COLUMNS, expressions, recorded

from persist_assets.analysis.algebra import Given
from persist_assets.analysis.binder import bind
from persist_assets.analysis.binding import Binding, Face
from persist_assets.analysis.scope import NO_WORD, UNKNOWN, Around, Unanalysable
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.errors import SourcesError
from persist_assets.core.languages import REFERENCE

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

TABLE = f"CREATE TABLE n ({COLUMNS}) USING parquet LOCATION 'n';\n"
(N,) = compiled({"n.sql": TABLE}).sources
GIVEN = Given(
    "n",
    tuple(c.name for c in N.columns),
    origins=(frozenset(),) * len(N.columns),
    types=tuple(c.type for c in N.columns),
)
FACE = Face(None, GIVEN, GIVEN.columns)


def our_name(expression: str) -> str | None:
    """Return the name that the binder gives to an expression, or None if it is not analysed."""
    try:
        query = parse_query(f"SELECT {expression} FROM n")
        binding = Binding(bind, "q.sql", [FACE] * len(query.references), REFERENCE)
        if query.lost:
            return None
        (out,) = bind(binding, query.tree, Around()).columns
    except (SourcesError, Unanalysable):
        return None
    return None if binding.problems else out.written


@pytest.mark.proves("S1")
def test_implicit_column_names_equal_sparks_or_are_unknown() -> None:
    names = recorded()
    assert set(names) <= set(expressions())
    wrong: list[str] = []
    n_certain = n_words = n_unknown = 0
    for expression, name in names.items():
        ours = our_name(expression)
        if ours is None:
            continue
        if ours == NO_WORD:
            n_words += 1
            if name.replace("_", "a").isalnum():
                wrong.append(f"{expression}: Spark's name is the word `{name}`")
        elif ours == UNKNOWN:
            n_unknown += 1
        else:
            n_certain += 1
            if ours != name:
                wrong.append(f"{expression}: `{ours}` is not Spark's `{name}`")
    print(f"{n_certain} exact, {n_words} no words, {n_unknown} unknown, of {len(names)}")
    assert not wrong, "\n".join(wrong)
    assert n_certain > 260
    assert n_certain + n_words > 800


UP = """
CREATE TABLE t (id INT, code STRING, a INT, x INT, b STRING, sa ARRAY<STRUCT<x: INT>>,
  s STRUCT<x: INT, z: STRUCT<w: INT>>, m MAP<STRING, INT>) USING parquet LOCATION 't';
CREATE TABLE up (code INT, a INT, x INT) USING parquet LOCATION 'up';
"""


def source(query: str) -> Source:
    made = compiled({"up.sql": UP, "q.sql": f"CREATE VIEW q AS {query}"})
    assert not made.errors, [str(p) for p in made.errors]
    return made.by_id["q@sources/q.sql"]


def is_analysed(query: str) -> bool:
    return not any("as a whole" in note for note in source(query).notes)


def problems(query: str) -> list[str]:
    made = compiled({"up.sql": UP, "q.sql": f"CREATE VIEW q AS {query}"})
    return [p.message for p in made.errors]


def same(one: str, other: str) -> bool:
    return source(one).build_id == source(other).build_id


CASTS = (
    """
code::STRING|CAST(code AS STRING)|try_cast(code AS STRING)|string(code)|up.code::STRING|(code)::INT
int(code)|date(code)|timestamp(code)|decimal(code)|binary(code)|string(int(code))|CAST(up.code AS DATE)
""".strip()
    .replace("\n", "|")
    .split("|")
)


@pytest.mark.proves("S1")
@pytest.mark.parametrize("cast", CASTS)
def test_a_cast_of_a_column_in_a_subquery_has_the_name_of_the_column(cast: str) -> None:
    inner = "SELECT o.id FROM t o WHERE EXISTS (SELECT 1 FROM (SELECT {} FROM up) i WHERE {} = '2')"
    assert is_analysed(inner.format(cast, "code"))
    assert same(inner.format(cast, "code"), inner.format(cast, "i.code"))
    assert not same(inner.format(cast, "code"), inner.format(cast, "o.code"))
    assert not same(inner.format(cast, "code"), inner.format(f"{cast} AS zz", "code"))
    assert is_analysed(f"SELECT code FROM (SELECT {cast} FROM up)")
    assert is_analysed(f"WITH c AS (SELECT {cast} FROM up) SELECT c.code FROM c")
    assert is_analysed(f"SELECT * FROM t NATURAL JOIN (SELECT {cast} FROM up)")
    assert is_analysed(f"SELECT id FROM t JOIN (SELECT {cast} FROM up) USING (code)")
    assert [c.name for c in source(f"SELECT {cast} FROM up").columns] == ["code"]


@pytest.mark.proves("S1")
@pytest.mark.parametrize(
    "field", ["sa[0].x", "element_at(sa, 1).x", "struct(x).x", "s.x::STRING", "string(s.x)"]
)
def test_a_field_of_an_expression_has_no_plain_name(field: str) -> None:
    inner = "SELECT a FROM up o WHERE EXISTS (SELECT 1 FROM (SELECT {} FROM t) i WHERE {} = 1)"
    assert same(inner.format(field, "x"), inner.format(field, "o.x"))
    assert not same(inner.format(field, "x"), inner.format(f"{field} AS x", "x"))
    assert problems(f"SELECT x FROM (SELECT {field} FROM t)") == [
        "`x` is not a column of the tables in this query"
    ]
    assert problems(f"SELECT a, {field} FROM t") == ["column 2 of `q` has no name"]


@pytest.mark.proves("S1")
@pytest.mark.parametrize(
    ("literal", "name"), [("'code'", "code"), ("TRUE", "true"), ("NULL", "`NULL`"), ("7L", "`7`")]
)
def test_a_literal_has_its_text_as_its_name(literal: str, name: str) -> None:
    assert same(
        f"SELECT i.{name} AS v FROM (SELECT {literal} FROM t) i",
        f"SELECT i.v FROM (SELECT {literal} AS v FROM t) i",
    )


@pytest.mark.proves("S1")
def test_a_field_of_a_column_has_the_name_of_the_field() -> None:
    for field in ("s.x", "(s).x", "t.s.x", "sa.x", "m.x"):
        assert is_analysed(f"SELECT x FROM (SELECT {field} FROM t)"), field
    assert is_analysed("SELECT w FROM (SELECT s.z.w FROM t)")


@pytest.mark.proves("S1")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM t o WHERE EXISTS (SELECT 1 FROM (SELECT date('1') FROM up) i WHERE a = 1)",
        "SELECT `count(1)` AS n FROM (SELECT count(*) FROM up)",
        "SELECT id FROM t NATURAL JOIN (SELECT r'code', a FROM up)",
        "SELECT id FROM (SELECT a, count(*) FROM up GROUP BY a) NATURAL JOIN (SELECT count(*), 1 AS id FROM t)",
        "SELECT id FROM t JOIN (SELECT r'a', a FROM up) USING (a)",
        "SELECT * EXCEPT (a) FROM (SELECT r'a', a AS b FROM up)",
        "SELECT r'x', a AS b FROM up ORDER BY x LIMIT 1",
        "SELECT struct(i.*) AS v FROM (SELECT a + 1 FROM up) i",
        "SELECT struct(a AS x) AS s FROM t ORDER BY s.x LIMIT 1",
    ],
)
def test_a_query_is_not_analysed_if_a_name_may_refer_to_an_unnamed_column(query: str) -> None:
    assert not is_analysed(query)


@pytest.mark.proves("S1")
@pytest.mark.parametrize(
    ("query", "meaning"),
    [
        ("SELECT a::STRING FROM t ORDER BY {}", "string(t.a)"),
        ("SELECT a::STRING AS a FROM t ORDER BY {}", "t.a::STRING"),
        ("SELECT s.x AS b, -a FROM t ORDER BY {}", "a"),
        ("SELECT s.x FROM t ORDER BY {}", "s.x"),
        ("SELECT -a AS a FROM t SORT BY {}", "(-t.a)"),
        ("SELECT a::STRING, a AS a FROM t ORDER BY {}", "t.a"),
        ("SELECT t.a FROM t JOIN up ON t.id = up.a ORDER BY {}", "t.a"),
    ],
)
def test_order_by_prefers_columns_of_the_select_list(query: str, meaning: str) -> None:
    name = "x" if "SELECT s.x FROM" in query else "a"
    outer = "SELECT 1 AS one FROM ({} LIMIT 2) i"
    assert same(outer.format(query.format(name)), outer.format(query.format(meaning)))


@pytest.mark.proves("S1")
def test_a_function_without_parentheses_takes_precedence_over_aliases_and_outer_columns() -> None:
    assert same("SELECT a AS user, user AS b FROM t", "SELECT a AS user, user() AS b FROM t")
    exists = "SELECT i.user FROM (SELECT b AS user FROM t) i WHERE EXISTS (SELECT 1 FROM up WHERE {} = 'x')"
    assert same(exists.format("user"), exists.format("user()"))
    assert not same(exists.format("user"), exists.format("i.user"))
