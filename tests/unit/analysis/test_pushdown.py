"""Pushdown: the rows and columns that programs need of their tables, and its limits."""

from __future__ import annotations

import datetime as dt
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from conftest import compilation_of, drawn_seed, draws, printed_under_another_hash_seed
from pushing import (
    CHANGING,
    PATH,
    TABLES,
    OnDuckDB,
    Refused,
    Writer,
    check,
    clock,
    coverage_of,
    hunt,
    instant,
    needs_of,
    short,
)
from pushing import RAW as RANDOM_RAW
from shapes import SHAPES, WIDE, program
from test_rules import without

import persist_assets.analysis.predicates as p
from persist_assets.analysis import binder
from persist_assets.analysis.pushdown import bounds, comparing, equalities, facts, search, terms
from persist_assets.analysis.pushdown.needs import leaf, opaque
from persist_assets.compiler.compile import resolve_query
from persist_assets.compiler.frontends.sql import parse_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.analysis.pushdown.needs import Need

ALL = "all rows"


def needs(query: str) -> dict[str, Need]:
    """Return the needs of a persisted source with this query, by table."""
    found = needs_of(program(query).text)
    return {table: need for (reader, table), need in found.items() if reader == "q"}


def predicates_of(query: str) -> dict[str, list[str]]:
    return {t: [p.as_text(d.predicate) for d in n.disjuncts] for t, n in needs(query).items()}


@pytest.mark.proves("F4", "F6", "V50", "V52", "V53")
@pytest.mark.parametrize("shape", SHAPES)
def test_queries_need_the_expected_rows_of_their_tables(shape: str) -> None:
    query, expected = SHAPES[shape]
    assert predicates_of(query) == expected


@pytest.mark.proves("F3", "F4", "F6", "F7", "V50", "V52")
def test_queries_return_the_same_rows_from_only_the_needed_rows() -> None:
    engine, refused = OnDuckDB(), set[str]()
    engine.connection.execute("CREATE MACRO my_udf(x) AS x")
    engine.fill(WIDE, Random(3), 60)
    for shape in SHAPES.keys() - {"lots", "not analysed"}:  # which return different rows each time
        made = program(SHAPES[shape][0], kept=shape == "persisted source")
        try:
            check(engine, made, NOW, "America/New_York")
        except Refused:
            refused.add(shape)
    assert refused <= NOT_OF_DUCKDB, refused
    assert len(SHAPES) - len(NOT_OF_DUCKDB) > 50


NOW = dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC)
NOT_OF_DUCKDB = {
    "digits",
    "what may raise",
    "implicit casts",
    "a text that is no time",
    "up to a month",
}


COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "filter": ("SELECT id FROM t WHERE kind = 'a'", {"t": "id kind"}),
    "nothing but rows": ("SELECT count(*) AS c FROM t", {"t": ""}),
    "unused of a view": ("SELECT usr FROM a", {"t": "kind usr"}),
    "join": ("SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr", {"t": "id usr", "u": "usr"}),
    "exists": (
        "SELECT id FROM t WHERE EXISTS (SELECT name FROM u WHERE u.w = t.usr)",
        {"t": "id usr", "u": "w"},
    ),
    "window": ("SELECT r FROM firsts", {"t": "id ts usr"}),
    "order of a limit": ("SELECT kind FROM few", {"t": "id kind usr"}),
    "keys": ("SELECT c FROM days", {"t": "ts usr"}),
    "one of the aggregates": (
        "SELECT x FROM (SELECT max(id) AS x, max(ts) AS y FROM t)",
        {"t": "id"},
    ),
    "distinct": ("SELECT usr FROM (SELECT DISTINCT usr, kind FROM t)", {"t": "kind usr"}),
    "union all": ("SELECT usr FROM either", {"t": "usr", "u": "usr"}),
    "except": (
        "SELECT usr FROM (SELECT usr, kind FROM t EXCEPT SELECT usr, name FROM u)",
        {"t": "kind usr", "u": "name usr"},
    ),
    "generated": ("SELECT x FROM t LATERAL VIEW explode(array(1, usr)) e AS x", {"t": "usr"}),
    "correlated below groups": (
        "SELECT (SELECT max(v) FROM (SELECT w + t.id AS v FROM u)) AS m FROM t",
        {"t": "id", "u": "w"},
    ),
    "UDF": ("SELECT w FROM u WHERE my_udf(name)", {"u": "name w"}),
    "not analysed": ("SELECT w FROM u TABLESAMPLE (10 ROWS)", {"u": "name since usr w"}),
}


@pytest.mark.proves("F3")
@pytest.mark.parametrize("shape", COLUMNS)
def test_queries_need_the_expected_columns_of_their_tables(shape: str) -> None:
    query, expected = COLUMNS[shape]
    assert {table: " ".join(need.columns) for table, need in needs(query).items()} == expected


KEPT: dict[str, tuple[str, str]] = {
    "UDF": ("UDF", "my_udf(id) > 2: my_udf() is not one of Spark's own functions"),
    "UDF in ON": ("UDF", "my_udf(w) > 3: my_udf() is not one of Spark's own functions"),
    "UDF in a column": ("UDF", "because of the function my_udf, which is not one of Spark's own"),
    "not analysed": ("not analysed", "treated as a whole because of TABLESAMPLE"),
    "limit": ("limit above", "kind = 'a': a LIMIT applies first"),
    "null side": ("null side", "w IS NULL: it also holds for rows without a match"),
    "left join": ("null side", "id > 7: rows that do not match ON are kept"),
    "full join": ("full join", "kind IS NULL: above a FULL JOIN"),
    "window": (
        "window",
        "ts >= TIMESTAMP '2024-01-01 00:00:00': row_number() OVER (…) also needs other rows",
    ),
    "what may raise": (
        "may raise under ANSI",
        "CAST(kind AS INT) > 3: CAST(kind AS INT) may raise an error",
    ),
    "implicit casts": (
        "may raise under ANSI",
        "kind > 3: int compared with string may raise an error or convert either",
    ),
    "a function": ("function", "reverse(kind) = 'a': reverse(kind) is not supported for pushdown"),
    "inner join": ("two tables", "usr = usr: it compares several tables"),
    "subqueries": (
        "subquery",
        "usr in (SELECT …): it contains a subquery, and semi-joins are not pushed",
    ),
    "groups": ("aggregate", "count() > 3: it refers to an aggregate"),
    "grouping sets": (
        "grouping set",
        "kind IS NULL: it refers to a key that is missing in some grouping sets",
    ),
    "intersect of values that are equal and differ": (
        "set operation",
        "f > 1.0D: INTERSECT takes values for equal that differ",
    ),
    "a column of several types": ("type", "v = 3: the type of v is uncertain"),
    "lots": ("draws lots", "id = 3: it depends on nondeterministic rows"),
    "all rows": (ALL, "no condition here: q@sources/m.sql reads all rows"),
}


@pytest.mark.proves("F7", "F9")
@pytest.mark.parametrize("shape", KEPT)
def test_conditions_that_are_not_pushed_are_reported_with_a_reason(shape: str) -> None:
    code, words = KEPT[shape]
    kept = [k for need in needs(SHAPES[shape][0]).values() for k in need.kept]
    assert any(k.code == code and k.words.endswith(words) for k in kept), kept


def test_an_opaque_function_needs_all_rows_and_columns_of_its_inputs() -> None:
    face = leaf("t@x", [("a", "int"), ("b", None)])
    relation = opaque([face], "it is a function")
    (need,) = search.find_needs("f@x", {"f@x": relation}, {"t@x"})
    assert (need.predicate, need.columns) == (p.TRUE, ("a", "b"))
    assert [k.code for k in need.kept] == [ALL, "not analysed"]


# -------------------------------------------------------------------------------- effects of rules

Search, Reader = search._Search, terms.TermReader
RULES: list[tuple[str, Callable[..., Any], str, str]] = [
    ("window", search._Below.push, "if blind is None:", "if True:"),
    ("window over a filter", search._sees, "if condition in seen:", "if not seen:"),
    ("two windows", search._sees, "return covered(condition)", "return True"),
    ("partitions by a function", search._sees, "term in partition or", "False or"),
    ("a window of what is joined later", search._sees, "if instance not in now.values()", "if not instance"),
    ("limit", Search._node, 'demand = _without(reader, columns, demand, "limit above", why)', "pass"),
    ("lots of a view", Search._given, "elif relation.volatile:", "elif False:"),
    ("lots", Search._node, 'demand = _without(reader, columns, demand, "draws lots", why)', "pass"),
    ("null side", Search._outer, "not any(map(rejects_nulls, other))", "False"),
    ("null side, rejecting", Search._outer, "not any(map(rejects_nulls, other))", "True"),
    ("left join", Search._outer, "(*tests, *below[1 - side], *others)", "()"),
    ("left join", Search._outer, "[] if alone[1 - side] else [*below[side]]", "[]"),
    ("left join that is inner", Search._outer, "if not alone[side]:", "if side:"),
    ("key of a left join", Search._outer, "(*tests, *below[1 - side], *others)", "tests"),
    ("filter of the left side of a join", Search._outer, "*below[1 - side], *others)", "*below[1 - side])"),
    ("filter of the right side of a left join", Search._outer, "if not alone[side]:", "if True:"),
    ("filter of a view that is joined", Search._block, "below.push(fact, but=instance, is_fact=True)", "pass"),
    ("filters of both branches", facts.Facts._of_node, "p.some(each)", "p.every(each)"),
    ("key of an anti join", Search._facts_about, "if not self._around:", "if True:"),
    ("key of a correlated total", Search._facts_about, "if not self._around:", "if True:"),
    ("key of IN", Search._subqueries, 'is_filter and op in ("and", "or")', "False"),
    ("key of NOT IN", Search._subqueries, 'is_filter and op in ("and", "or")', "True"),
    ("key of IN as a value", Search._subqueries, "(e, facts, False) for e in exprs", "(e, facts, True) for e in exprs"),
    ("key of IN, from the subquery", Reader.equalities, 'if test.kind != "in":', "if True:"),
    ("key of a subquery in a window", Search._subqueries, "((each, (), False) for each in inside)", "((each, hold, False) for each in inside)"),
    ("key of a lateral query", Search._lateral, "*self._facts.of_block(reader, node.left), *pushed", ""),
    ("contradiction", p.consistent, "return FALSE", "pass"),
    ("contradiction about a total", Search._nothing, "self._subqueries(reader, exprs, (FALSE,))", "pass"),
    ("key of the null side", Search._outer, "equal_columns(tests)", "equal_columns(())"),
    ("full join", Search._outer, 'alone[1] &= node.kind != "left"', "alone[1] = False"),
    ("left join of all rows", Search._outer, 'alone[1] &= node.kind != "left"', "pass"),
    ("full join that is left", Search._outer, "in reversed(about)]", "in about]"),
    ("full join that is inner", Search._outer, "if not alone[side]:", "if side:"),
    ("grouping sets", Search._aggregate, "node.sets is None or", "True or"),
    ("groups", Search._aggregate, "_about(set(map(str, fixed)))", "_about(set())"),
    ("except", Search._set_operation, "demand = _Demand(conditions,", "demand = _Demand((),"),
    ("intersect of values that are equal and differ", search._of_values, "if all(map(", "if True or all(map("),
    ("a column of several types", binder._set_operation, "a.type if a.type == b.type else None", "a.type"),
    ("subqueries", Search._subqueries, "self._visit(reader, block, (*extra, *matches), used, frozenset())", "pass"),
    ("anti join", Reader.predicate, "if not negate:", "if True:"),
    ("or over two tables", p.weakened, "return some(weakened(a, keep) for a in term.args)", "return every(weakened(a, keep) for a in term.args)"),
    ("NULL", terms._exactly, "*nulls", "*nulls[:0]"),
    ("never", Reader._in, "if negate:\n                return FALSE", "if negate:\n                continue"),
    ("negations", Reader.predicate, "negate=not negate", "negate=negate"),
    ("a text that is no time", comparing._of_text, "return (one, made) if made is not None else None", "return one, other"),
    ("a text that is no time", p.time_literal, "if found is None:\n        return None", "if found is None:\n        return Term(kind, (), (text,))"),
    ("days and instants", bounds._each_way, "p.shifted_date(limit, -1)", "limit"),
    ("year", bounds.bounds_of, "(year, year + 1)", "(year, year)"),
    ("up to a month", bounds._cut_down, "p.next_first(day, unit)", "p.next_first(day, 'day')"),
    ("constant of the null side", Search._outer, "self._visit(reader, block, pushed", "self._visit(reader, node.right, pushed"),
    ("equal keys", equalities.through, "equal.get(ref, ())", "()"),
    ("keys that are equal and not the same", equalities.equal_columns, "is_same_if_equal(kind)", "kind == kind"),
    ("equal keys and a window", equalities.equal_columns, "if kind == also", "if kind != also"),
    ("digits", comparing.keep_their_values, "<= 38", "<= 99"),
    ("days without a zone", comparing.alike, '"timestamp_ntz"', '"timestamp"'),
    ("days that began twice", bounds._beyond, "p.is_calm(limit)", "True"),
    ("hours that begin late", bounds._cut_down, "if fine else", "if False else"),
    ("patterns", Reader._atom, "self._like(pattern, subject, negate)", "self._like(pattern, subject, False)"),
    ("what may raise", terms._cast, "return None", "return term, target"),
]  # fmt: skip
"""A query shape, the function with its rule, a part of the function's text, and its replacement."""


@pytest.mark.proves("V52", "V53")
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r[0])
def test_removing_a_rule_changes_the_predicates_of_its_query(
    rule: tuple[str, Callable[..., Any], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, function, text, instead = rule
    query, expected = SHAPES[shape]
    broken = without(function, text, instead)
    monkeypatch.setattr(function, "__code__", broken)
    assert predicates_of(query) != expected


# ------------------------------------------------------------------------------- whole programs

DOCUMENT = """
CREATE TABLE external_table (id BIGINT NOT NULL, category STRING, ts TIMESTAMP)
  USING parquet LOCATION 'x';
--@ persist
create view v1 as select * from external_table
where
category = 'invoices' and
ts >= NOW() - INTERVAL 6 months;
"""
SECOND = """
--@ persist
create view v2 as select * from external_table
where
category = 'deposits' and
ts >= NOW() - INTERVAL 12 months;
"""
F1 = "category = 'invoices' AND ts >= NOW() - INTERVAL 6 MONTHS"
F2 = "category = 'deposits' AND ts >= NOW() - INTERVAL 12 MONTHS"


@pytest.mark.proves("F20")
def test_the_documented_example_gives_the_documented_filters() -> None:
    tables = ["external_table"]
    before = coverage_of(DOCUMENT, tables)["external_table"]
    assert (before.predicate, before.columns) == (F1, ("category", "id", "ts"))
    needs = needs_of(DOCUMENT + SECOND, tables)
    by_reader = {reader: p.as_text(n.predicate) for (reader, _), n in needs.items()}
    assert by_reader == {"v1": F1, "v2": F2}
    both = coverage_of(DOCUMENT + SECOND, tables)["external_table"]
    assert both.predicate == f"{F2} OR {F1}"
    assert both.term == p.from_text(f"{F1} OR {F2}")
    # The rows that are read when the second view is added.
    missing = p.difference(p.from_text(F2), p.from_text(F1))
    assert p.as_text(missing) == f"({F1}) IS NOT TRUE AND {F2}"


def test_the_needs_of_a_program_are_the_union_of_those_of_its_sources() -> None:
    def predicate(*conditions: str) -> str:
        made = program(*(f"SELECT id FROM t WHERE {c}" for c in conditions), kept=False)
        return coverage_of(made.text)["t"].predicate

    assert predicate("usr = 1", "kind = 'a'", "usr = 1") == "kind = 'a' OR usr = 1"
    assert predicate("usr = 1", "kind = 'a' AND usr = 1") == "usr = 1"
    assert predicate("usr > 3", "usr > 5 AND ok", "usr >= 3") == "usr >= 3"
    # Both are needed: neither of these implies the other.
    assert predicate("usr > 3", "usr < 2 AND ok") == "ok = TRUE AND usr < 2 OR usr > 3"
    assert predicate("usr = 1", "1 = 1") == "TRUE"
    assert predicate("usr = 1", "usr = 2 AND ok") == "ok = TRUE AND usr = 2 OR usr = 1"


@pytest.mark.proves("F8")
def test_an_intermediate_view_reduces_the_rows_that_are_read() -> None:
    query = "SELECT kind, count(*) AS n FROM {} GROUP BY kind"
    assert predicates_of(query.format("t")) == {"t": ["TRUE"]}
    filtered = query.format("a").replace("kind", "sort")
    assert predicates_of(filtered) == {"t": ["kind = 'a'"]}
    engine = OnDuckDB()
    engine.fill(WIDE, Random(3), 60)
    whole, part = (
        check(engine, program(q, kept=False), NOW, "UTC")[1] for q in (query.format("t"), filtered)
    )
    assert 0 < part < whole == 60


def test_needs_are_pushed_through_a_long_chain_of_views() -> None:
    views = "".join(f"CREATE VIEW v{i + 1} AS SELECT k FROM v{i};\n" for i in range(200))
    text = f"{RANDOM_RAW}CREATE VIEW v0 AS SELECT k FROM t;\n{views}--@ persist\n"
    found = coverage_of(f"{text}CREATE VIEW q AS SELECT k FROM v200 WHERE k = 3;")
    assert found["t"].predicate == "k = 3"


@pytest.mark.proves("V52")
@pytest.mark.parametrize(
    ("n", "test", "expected"),
    [
        (4, "k >", "k = 3"),
        (draws(30, 60), "k >", "k = 3"),
        (60, "id >", "TRUE"),
    ],
)
def test_chains_of_self_joins_do_not_take_exponential_time(
    n: int, test: str, expected: str
) -> None:
    views = "".join(
        f"CREATE VIEW v{i + 1} AS SELECT x.k, x.id FROM v{i} x LEFT JOIN v{i} y ON x.k = y.k"
        f" AND y.{test} {i};\n"
        for i in range(n)
    )
    text = f"{RANDOM_RAW}CREATE VIEW v0 AS SELECT k, id FROM t;\n{views}--@ persist\n"
    found = needs_of(f"{text}CREATE VIEW q AS SELECT k FROM v{n} WHERE k = 3;")["q", "t"]
    assert p.as_text(found.predicate) == expected
    # With too many combinations of conditions, all rows are needed, and a note says so.
    assert ("too many ways" in {k.code for k in found.kept}) == (expected == "TRUE")


@pytest.mark.proves("F10")
def test_a_predicate_has_the_same_text_in_every_process(tmp_path: Path) -> None:
    script = (
        "from pushing import coverage_of\nfrom shapes import SHAPES, program\n"
        "queries = [query for query, _ in SHAPES.values()][:12]\n"
        "print(coverage_of(program(*queries).text))"
    )
    here = f"{coverage_of(program(*[query for query, _ in SHAPES.values()][:12]).text)}\n"
    assert "Coverage" in here
    assert printed_under_another_hash_seed(script, tmp_path) == here


# ------------------------------------------------------------------------------------ predicates

TEXTS = [
    F1,
    f"{F2} OR {F1}",
    "TRUE",
    "FALSE",
    "(a = 1 OR b IS NULL) AND c NOT IN ('x', 'y')",
    "(a = 1) IS NOT TRUE AND b > -3",
    "CAST(f AS DOUBLE) > -1.5D AND f = 1e+300D",
    r"s IN ('a\\b', 'it\'s', 'line" + "\n" + r"two') AND t LIKE '100%'",
    "`odd name` = 1 AND `select` = 2 AND `tick``s` = 3",
    "d >= CAST(NOW() - INTERVAL 6 MONTHS AS DATE) - INTERVAL 1 DAYS",
    "date_trunc('day', ts) >= CURRENT_DATE() - INTERVAL 7 DAYS",
    "n > TIMESTAMP_NTZ '2024-01-01 00:00:00.5' AND ts < TIMESTAMP '2024-01-01 00:00:00+00:00'",
    "trunc(d, 'month') = DATE '2024-02-01' AND year(ts) = 2024",
    "a < b AND amt > 1.50",
    "length(s) < 3 AND lower(s) = 'a' AND t <> upper(s)",
    "ts < NOW() - INTERVAL 6 MONTHS + INTERVAL 3 HOURS",
]


@pytest.mark.proves("F10")
@pytest.mark.parametrize("text", TEXTS)
def test_predicates_survive_a_round_trip_through_text(text: str) -> None:
    assert p.as_text(p.from_text(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "a +", "a", "a = b + 1", "f(a) = 1", "a IN (SELECT 1)", "f(x).a = 1", "a = 1; b = 2"],
)
def test_unsupported_predicate_texts_are_rejected(text: str) -> None:
    with pytest.raises(p.UnreadableError):
        p.from_text(text)


def test_a_predicate_in_another_format_is_rejected() -> None:
    with pytest.raises(p.UnreadableError, match="format 2"):
        p.from_text("TRUE", 2)


IMPLIED = [
    ("a > 2", "a = 3"),
    ("a > 2", "a >= 3 AND b = 1"),
    ("a > 2", "a IN (3, 4)"),
    ("a > 2 OR b = 1", "b = 1 AND c = 2"),
    ("a > 2 OR b = 1", "(a = 5 OR b = 1) AND c = 2"),
    ("a <> 2", "a > 2"),
    ("a <> 2", "a NOT IN (1, 2)"),
    ("a IS NOT NULL", "a = 1"),
    ("a IS NOT NULL", "a NOT LIKE 'x%'"),
    ("ts IS NOT NULL", "year(ts) = 2024"),
    ("a IN (1, 2, 3)", "a IN (1, 3)"),
    ("a >= 1", "a > 1.5"),
    ("s > 'a'", "s = 'b'"),
    ("ts >= NOW() - INTERVAL 12 MONTHS", "ts >= NOW() - INTERVAL 6 MONTHS"),
    ("ts >= NOW() - INTERVAL 2 DAYS", "ts > NOW() - INTERVAL 1 DAYS"),
    ("ts >= NOW() - INTERVAL 2 HOURS", "ts = NOW()"),
    ("ts >= DATE '2024-01-01'", "ts >= DATE '2024-01-02'"),
    ("ts >= TIMESTAMP '2024-01-01 00:00:00'", "ts >= TIMESTAMP '2024-01-02 00:00:00'"),
    ("a = 1", "FALSE"),
    ("TRUE", "a = 1"),
]
NOT_IMPLIED = [
    ("a = 3", "a > 2"),
    ("a > 2", "a > 1"),
    ("a > 2", "b > 2"),
    ("a >= 3", "a > 2"),  # 2.5, in a column of decimals
    ("a = 1 OR b = 1", "a IS NOT NULL"),
    ("a <> 2", "a IS NULL"),
    ("a IS NOT NULL", "a IS NULL"),
    ("a IS NOT NULL", "(a = 1) IS NOT TRUE"),
    ("a > 2", "TRUE"),
    ("ts >= NOW() - INTERVAL 6 MONTHS", "ts >= NOW() - INTERVAL 12 MONTHS"),
    # 1 March less a month is not less than a time 30 days before it.
    ("ts >= NOW() - INTERVAL 1 MONTHS", "ts >= NOW() - INTERVAL 30 DAYS"),
    # A day back may be an hour less, or more, than 24.
    ("ts >= NOW() - INTERVAL 25 HOURS", "ts >= NOW() - INTERVAL 23 HOURS"),
    # Where clocks are put forward, the later text is the earlier instant.
    ("ts > TIMESTAMP '2024-03-10 02:30:00'", "ts > TIMESTAMP '2024-03-10 03:10:00'"),
    ("ts >= CURRENT_DATE()", "ts >= NOW()"),
]


@pytest.mark.parametrize(("coverage", "expected"), IMPLIED)
def test_implied_predicates_are_recognized(coverage: str, expected: str) -> None:
    assert p.implies(p.from_text(coverage), p.from_text(expected))
    assert p.difference(p.from_text(expected), p.from_text(coverage)) == p.FALSE


@pytest.mark.parametrize(("coverage", "expected"), NOT_IMPLIED)
def test_uncertain_implications_are_not_claimed(coverage: str, expected: str) -> None:
    assert not p.implies(p.from_text(coverage), p.from_text(expected))


def test_predicate_implications_unions_and_differences_hold_on_random_rows() -> None:
    draw, engine = Random(7), OnDuckDB()
    engine.fill(TABLES, draw, 60)
    writer, columns = Writer(draw), list(TABLES["t"].items())
    now = dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC)
    conditions = [writer.condition(columns).replace("TODAY()", "CURRENT_DATE()") for _ in range(30)]
    text = RANDOM_RAW + "".join(
        f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {c};\n"
        for i, c in enumerate(conditions)
    )
    terms = [p.evaluated(n.predicate, now, dt.UTC) for n in needs_of(text).values()]
    terms += [p.every(draw.sample(terms, 2)) for _ in range(15)]
    terms += [p.some(draw.sample(terms, 2)) for _ in range(15)]
    rows = {t: _rows_where(engine, t) for t in set(terms)}
    claimed = 0
    for coverage, wanted in permutations(rows, 2):
        missing = p.difference(wanted, coverage)
        if missing == p.FALSE:
            claimed += 1
            assert rows[wanted] <= rows[coverage], f"{p.as_text(coverage)} | {p.as_text(wanted)}"
    assert claimed > 50
    for _ in range(30):
        some = draw.sample(list(rows), 3)
        one, other = some[:2]
        assert _rows_where(engine, p.union(some)) == frozenset().union(*(rows[s] for s in some))
        missing = p.difference(one, other)
        assert _rows_where(engine, missing) == rows[one] - rows[other]


def test_a_predicate_over_a_time_span_covers_the_rows_of_every_instant() -> None:
    draw, engine = Random(11), OnDuckDB()
    engine.fill(TABLES, draw, 60)
    writer, columns = Writer(draw), list(TABLES["t"].items())
    conditions: list[str] = []
    while len(conditions) < 40:
        condition = writer.condition(columns)
        if "NOW" in condition or "TODAY" in condition:
            conditions.append(condition.replace("TODAY()", "CURRENT_DATE()"))
    text = RANDOM_RAW + "".join(
        f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {c};\n"
        for i, c in enumerate(conditions)
    )
    wider = 0
    for need in needs_of(text).values():
        first = NOW - dt.timedelta(days=draw.choice((0, 1, 2, 10)))
        together = _rows_where(engine, p.evaluated_within(need.predicate, first, NOW, dt.UTC))
        for now in (first, first + (NOW - first) * draw.random(), NOW):
            alone = _rows_where(engine, p.evaluated(need.predicate, now, dt.UTC))
            assert alone <= together, f"{p.as_text(need.predicate)} {first} {now}"
            wider += len(together) - len(alone)
    assert wider < 600


def _rows_where(engine: OnDuckDB, term: p.Term) -> frozenset[int]:
    text = engine.spelled(f"SELECT id FROM base_t WHERE {p.as_text(term)}")
    found = engine.rows(text, "UTC")
    return frozenset(i for (i,) in found)


# ----------------------------------------------------------------------------------- the clock

NEW_YORK = ZoneInfo("America/New_York")
CLOCK = [
    # Ends of months, and leap days.
    ("NOW() - INTERVAL 6 MONTHS", "2024-08-31 10:00", "UTC", "2024-02-29 10:00:00+00:00"),
    ("NOW() - INTERVAL 6 MONTHS", "2023-08-31 10:00", "UTC", "2023-02-28 10:00:00+00:00"),
    ("NOW() - INTERVAL 12 MONTHS", "2024-02-29 00:00", "UTC", "2023-02-28 00:00:00+00:00"),
    ("NOW() + INTERVAL 1 MONTHS", "2024-12-31 10:00", "UTC", "2025-01-31 10:00:00+00:00"),
    ("NOW() - INTERVAL 1 MONTHS - INTERVAL 1 DAYS", "2024-03-31 10:00", "UTC", "2024-02-28 10:00:00+00:00"),
    # The month ends in New York when it has begun in UTC: 31 July there, less a month, is 30 June.
    ("NOW() - INTERVAL 1 MONTHS", "2024-08-01 02:00", "America/New_York", "2024-07-01 02:00:00+00:00"),
    # A day back is the same time of the day before: 23 hours, and 25.
    ("NOW() - INTERVAL 1 DAYS", "2024-03-10 16:00", "America/New_York", "2024-03-09 17:00:00+00:00"),
    ("NOW() - INTERVAL 1 DAYS", "2024-11-03 17:00", "America/New_York", "2024-11-02 16:00:00+00:00"),
    # Fewer than 24 hours are exact hours; of 25 hours, 24 are one calendar day.
    ("NOW() - INTERVAL 23 HOURS", "2024-03-10 16:00", "America/New_York", "2024-03-09 17:00:00+00:00"),
    ("NOW() - INTERVAL 25 HOURS", "2024-03-10 16:00", "America/New_York", "2024-03-09 16:00:00+00:00"),
    # A skipped local time is moved forward; an ambiguous one has the current offset.
    ("NOW() - INTERVAL 1 DAYS", "2024-03-11 06:30", "America/New_York", "2024-03-10 07:30:00+00:00"),
    ("NOW() - INTERVAL 1 DAYS", "2024-11-04 06:30", "America/New_York", "2024-11-03 06:30:00+00:00"),
    ("NOW() + INTERVAL 1 DAYS", "2024-11-02 05:30", "America/New_York", "2024-11-03 05:30:00+00:00"),
    # Days in the time zone of the session.
    ("date_trunc('day', NOW())", "2024-03-10 16:00", "America/New_York", "2024-03-10 05:00:00+00:00"),
    ("date_trunc('week', NOW())", "2024-03-10 16:00", "America/New_York", "2024-03-04 05:00:00+00:00"),
    ("date_trunc('quarter', NOW())", "2024-05-10 16:00", "UTC", "2024-04-01 00:00:00+00:00"),
    ("CAST(CURRENT_DATE() AS TIMESTAMP)", "2024-03-10 02:00", "America/New_York", "2024-03-09 05:00:00+00:00"),
    ("TIMESTAMP '2024-03-10 02:30:00'", "2024-01-01 00:00", "America/New_York", "2024-03-10 07:30:00+00:00"),
    ("TIMESTAMP '2024-11-03 01:30:00'", "2024-01-01 00:00", "America/New_York", "2024-11-03 05:30:00+00:00"),
]  # fmt: skip


@pytest.mark.proves("F5")
@pytest.mark.parametrize(("value", "now", "zone", "expected"), CLOCK)
def test_clock_expressions_are_evaluated_with_calendar_arithmetic(
    value: str, now: str, zone: str, expected: str
) -> None:
    instant = dt.datetime.fromisoformat(now).replace(tzinfo=dt.UTC)
    term = p.from_text(f"ts >= {value}")
    found = p.evaluated(term, instant, ZoneInfo(zone))
    assert p.as_text(found) == f"ts >= TIMESTAMP '{expected}'"
    assert p.reads_clock(term) == ("TIMESTAMP '" not in value)
    assert not p.reads_clock(found)


@pytest.mark.proves("F5")
def test_current_dates_use_the_time_zone_of_the_session() -> None:
    now = dt.datetime(2024, 8, 31, 2, tzinfo=dt.UTC)
    term = p.from_text(
        "d >= CURRENT_DATE() - INTERVAL 6 MONTHS AND trunc(d, 'month') < CURRENT_DATE()"
        " AND d <> CAST(NOW() - INTERVAL 1 DAYS AS DATE) OR (ts > NOW()) IS NOT TRUE"
    )
    assert p.as_text(p.evaluated(term, now, NEW_YORK)) == (
        "(ts > TIMESTAMP '2024-08-31 02:00:00+00:00') IS NOT TRUE OR d <> DATE '2024-08-29'"
        " AND d >= DATE '2024-02-29' AND trunc(d, 'month') < DATE '2024-08-30'"
    )


@pytest.mark.proves("F5")
@pytest.mark.parametrize(
    ("written", "pushed"),
    [
        ("NOW() - INTERVAL '6' MONTH", "NOW() - INTERVAL 6 MONTHS"),
        ("current_timestamp() - INTERVAL 1 YEAR", "NOW() - INTERVAL 12 MONTHS"),
        ("NOW() - INTERVAL 2 WEEKS", "NOW() - INTERVAL 14 DAYS"),
        ("NOW() - INTERVAL '1 week 1 day'", "NOW() - INTERVAL 8 DAYS"),
        ("NOW() - INTERVAL '1 year 2 months'", "NOW() - INTERVAL 14 MONTHS"),
        ("NOW() - INTERVAL '1 day 2 hours'", "NOW() - INTERVAL 93600 SECONDS"),
        ("NOW()", "NOW()"),
        ("date_trunc('MONTH', NOW())", "date_trunc('month', NOW())"),
        ("CAST(current_date() - 30 AS TIMESTAMP)", "CAST(CURRENT_DATE() - INTERVAL 30 DAYS AS TIMESTAMP)"),
        ("CAST(add_months(current_date(), -6) AS TIMESTAMP)", "CAST(CURRENT_DATE() - INTERVAL 6 MONTHS AS TIMESTAMP)"),
        ("NOW() - INTERVAL 90000 YEARS", None),
        ("NOW() - make_interval(0, 6)", None),
        ("TIMESTAMP 'yesterday'", None),
    ],
)  # fmt: skip
def test_spellings_of_clock_expressions_are_normalized(written: str, pushed: str | None) -> None:
    expected = "ts IS NOT NULL" if pushed is None else f"ts >= {pushed}"
    assert predicates_of(f"SELECT id FROM t WHERE ts >= {written}") == {"t": [expected]}


def test_clock_expressions_over_a_time_span_have_the_wider_bounds() -> None:
    days = [dt.datetime(2024, 8, d, 10, tzinfo=dt.UTC) for d in (29, 31)]

    def within(text: str) -> str:
        term = p.from_text(text)
        return p.as_text(p.evaluated_within(term, *days, dt.UTC)).replace(":00:00+00:00", "h")

    # The 29th, 30th and 31st less six months are all 29 February; the 30th includes its start.
    assert within("ts >= NOW() - INTERVAL 6 MONTHS") == "ts >= TIMESTAMP '2024-02-29 00h'"
    assert within("ts < NOW() - INTERVAL 6 MONTHS") == (
        "ts < TIMESTAMP '2024-02-29 23:59:59.999999+00:00'"
    )
    assert within("d > CURRENT_DATE() AND k = 1") == "d > DATE '2024-08-29' AND k = 1"
    assert within("d = CURRENT_DATE()") == "d <= DATE '2024-08-31' AND d >= DATE '2024-08-29'"
    assert within("d <> CURRENT_DATE() OR k = 1") == "TRUE"
    assert within("d <> date_trunc('month', NOW())") == "d <> TIMESTAMP '2024-08-01 00h'"
    assert within("k = hour(NOW()) AND k > 1") == "k > 1"
    assert within("k = year(NOW())") == "k = 2024"
    assert within("(ts < NOW()) IS NOT TRUE AND k = 1") == "k = 1"
    assert within("CURRENT_DATE() = DATE '2024-08-30'") == "TRUE"
    assert within("CURRENT_DATE() > DATE '2024-08-31'") == "FALSE"
    assert within("ts >= TIMESTAMP '2024-01-01 00:00:00'") == "ts >= TIMESTAMP '2024-01-01 00h'"


def test_a_day_that_began_twice_is_within_bounds() -> None:
    # At 00:01 on 1 November clocks were put back by an hour, to October.
    minutes = [
        dt.datetime(2009, 11, 1, 2, 30, 30, tzinfo=dt.UTC),
        dt.datetime(2009, 11, 1, 3, tzinfo=dt.UTC),
    ]
    zone, term = ZoneInfo("America/St_Johns"), p.from_text("d >= CURRENT_DATE()")
    days = [value_of(p.evaluated(term, m, zone)) for m in minutes]
    assert days == [dt.date(2009, 11, 1), dt.date(2009, 10, 31)]
    assert value_of(p.evaluated_within(term, *minutes, zone)) <= min(days)
    assert value_of(p.evaluated_within(p.negated(term), *minutes, zone)) >= max(days)


@pytest.mark.proves("F5")
def test_bounds_over_a_time_span_cover_the_value_of_every_instant() -> None:
    draw, narrow, n = Random(5), 0, draws(150, 600)
    for _ in range(n):
        zone, text = ZoneInfo(draw.choice(CHANGING)), clock(draw)
        first = instant(draw, zone.key)
        last = first + dt.timedelta(minutes=draw.choice((1, 30, 90, 600, 1500, 3000, 60_000)))
        least, same, most = (p.from_text(f"x {op} {text}") for op in (">=", "=", "<="))
        ends = [p.evaluated_within(term, first, last, zone) for term in (least, most)]
        assert p.evaluated_within(same, first, first, zone) == p.evaluated(same, first, zone)
        assert not any(map(p.reads_clock, ends)), text
        if p.TRUE in ends:
            continue
        narrow += 1
        for now in _between(first, last, zone, draw):
            value = value_of(p.evaluated(same, now, zone))
            told = f"{text} {zone} {first} {last} {now}"
            assert value_of(ends[0]) <= value <= value_of(ends[1]), told
    assert narrow > 0.8 * n


def value_of(term: p.Term) -> Any:
    """Return the value on the right of a comparison."""
    return p.comparable(term.args[1])


def _between(
    first: dt.datetime, last: dt.datetime, zone: ZoneInfo, draw: Random
) -> Iterator[dt.datetime]:
    """Yield instants of a span: both ends, some of the first hours, and around midnights."""
    yield from (first, last, first + (last - first) * draw.random())
    moments = [first + dt.timedelta(minutes=n) for n in range(20, 400, 40)]
    for n in range(1, 4):
        day = (first.astimezone(zone) + dt.timedelta(days=n)).date()
        midnight = dt.datetime.combine(day, dt.time(), zone).astimezone(dt.UTC)
        moments += [midnight, midnight - dt.timedelta(microseconds=1)]
    yield from (m for m in moments if m < last)


# ------------------------------------------------------------------------------ random programs


@pytest.mark.random
@pytest.mark.proves("F3")
def test_random_programs_return_the_same_rows_from_only_the_needed_rows() -> None:
    told = hunt(OnDuckDB(), drawn_seed(), draws(20, 200))
    assert told["refused"] < draws(2, 20), told
    assert told["needed"] < 0.8 * told["rows"], told


def test_needs_are_returned_only_for_requested_tables() -> None:
    compilation = compilation_of({PATH: program("SELECT usr FROM u").text})
    found = compilation.needs([f"t@sources/{PATH}"])
    assert [short(n.reader) for n in found] == ["kept"]


def test_an_ad_hoc_query_has_the_same_needs_as_a_source() -> None:
    compilation = compilation_of({PATH: program().text})
    query = parse_query("SELECT usr FROM a WHERE at > '2024-01-01' UNION ALL SELECT usr FROM kept")
    bindings = resolve_query(compilation.project, query)
    (need,) = compilation.needs_of(query, bindings, {f"t@sources/{PATH}"})
    assert p.as_text(need.predicate) == "kind = 'a' AND ts > TIMESTAMP '2024-01-01 00:00:00'"
    assert need.columns == ("kind", "ts", "usr")


PYTHON = """
from persist_assets import table

@table
def counted(t, u):
    return t.select("usr").join(u, "usr")
"""


def test_a_python_source_needs_all_rows_and_only_the_columns_that_it_selects() -> None:
    compilation = compilation_of({PATH: program().text, "f.py": PYTHON})
    assert not compilation.project.errors, compilation.project.errors
    found = compilation.needs([f"{name}@sources/{PATH}" for name in "tu"])
    asked = {short(n.table): n for n in found if short(n.reader) == "counted"}
    assert {t: n.columns for t, n in asked.items()} == {
        "t": ("usr",),
        "u": ("name", "since", "usr", "w"),
    }
    assert {p.as_text(n.predicate) for n in asked.values()} == {"TRUE"}
