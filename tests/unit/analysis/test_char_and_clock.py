"""CHAR(n) beside texts, and texts that Spark casts to times, as Spark 4.3 treats them.

Spark pads a text with blanks where it is compared with a column of CHAR(n), if the text is written
there. It does not pad in BETWEEN and NULLIF, nor beside subqueries and computed values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import compiled
from pushing import needs_of

import persist_assets.analysis.predicates as p
from persist_assets.compiler.load import load_project
from persist_assets.core.model.project import Project
from persist_assets.core.settings.load import load_settings

RAW = """
CREATE TABLE t (a INT, b STRING, k INT, ch CHAR(5), dt DATE) USING parquet LOCATION 't';
CREATE TABLE u (a INT, b STRING, tags ARRAY<STRING>, m MAP<STRING, INT>) USING parquet LOCATION 'u';
"""


def project(query: str, raw: str = RAW) -> Project:
    made = compiled({"raw.sql": raw, "q.sql": f"CREATE VIEW q AS {query}"})
    assert not made.errors, [str(e) for e in made.errors]
    return made


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("WHERE ch BETWEEN 'a' AND 'a'", "WHERE ch >= 'a' AND ch <= 'a'"),
        ("WHERE ch NOT BETWEEN 'a' AND 'b'", "WHERE ch < 'a' OR ch > 'b'"),
        ("WHERE (SELECT ch) = 'a'", "WHERE ch = 'a'"),
        ("WHERE ch IN ((SELECT 'a'), 'b')", "WHERE ch IN ('a', 'b')"),
    ],
)
def test_conditions_on_char_have_different_build_ids(one: str, other: str) -> None:
    ids = {project(f"SELECT a FROM t {q}").by_id["q@sources/q.sql"].build_id for q in (one, other)}
    assert len(ids) == 2


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t) WHERE ch = f",
            "SELECT a FROM t WHERE ch = 'a'",
        ),
        (
            "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t ORDER BY a LIMIT 3) WHERE ch = f",
            "SELECT a FROM (SELECT a, ch FROM t ORDER BY a LIMIT 3) WHERE ch = 'a'",
        ),
        (
            "SELECT CASE ch WHEN f THEN 1 END AS x FROM (SELECT ch, 'a' AS f FROM t)",
            "SELECT CASE ch WHEN 'a' THEN 1 END AS x FROM t",
        ),
        (
            "SELECT t.a FROM t JOIN (SELECT 'a' AS ch) s USING (ch)",
            "SELECT a FROM t WHERE ch = 'a'",
        ),
        (
            "SELECT x FROM (SELECT ch AS x FROM t UNION ALL SELECT b FROM u) WHERE x = 'a'",
            "SELECT x FROM (SELECT b AS x FROM u UNION ALL SELECT ch FROM t) WHERE x = 'a'",
        ),
    ],
)
def test_texts_with_names_and_branches_of_char_count(one: str, other: str) -> None:
    assert len({project(q).by_id["q@sources/q.sql"].build_id for q in (one, other)}) == 2


@pytest.mark.proves("V1")
def test_branches_of_varchar_have_any_order() -> None:
    raw = RAW.replace("b STRING, k INT", "b VARCHAR(9), k INT").replace(
        "b STRING, tags", "b VARCHAR(9), tags"
    )
    queries = (
        "SELECT b FROM t UNION ALL SELECT b FROM u",
        "SELECT b FROM u UNION ALL SELECT b FROM t",
    )
    assert len({project(q, raw).by_id["q@sources/q.sql"].build_id for q in queries}) == 1


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(ch) = 'a'", "ch = 'a'"),
        ("ch <=> 'a'", "ch IS NOT DISTINCT FROM 'a'"),
        ("b BETWEEN 'a' AND 'c'", "b >= 'a' AND b <= 'c'"),
    ],
)
def test_equal_conditions_on_texts_have_one_build_id(one: str, other: str) -> None:
    queries = (f"SELECT a FROM t WHERE {condition}" for condition in (one, other))
    assert len({project(q).by_id["q@sources/q.sql"].build_id for q in queries}) == 1


@pytest.mark.proves("V3")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t WHERE nullif(ch, 'a') IS NOT NULL",
        "SELECT a FROM t WHERE coalesce(nullif(ch, 'a'), 'x') <> 'x'",
        "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t) WHERE ch <> f",
        "SELECT a FROM t WHERE (SELECT ch) <> 'a'",
        "SELECT x FROM (SELECT max(ch) AS x FROM t GROUP BY a) WHERE x <> 'a' AND x = 'a    '",
    ],
)
def test_no_row_is_excluded_by_a_comparison_that_spark_does_not_pad(query: str) -> None:
    """The value 'a    ' of the column fulfils each of these conditions."""
    needs = needs_of(f"{RAW}CREATE MATERIALIZED VIEW q AS {query};")
    predicate = needs["q", "t"].predicate
    assert p.as_text(predicate) in ("TRUE", "ch IS NOT NULL")


@pytest.mark.proves("P8")
@pytest.mark.parametrize(
    "value",
    [
        "timediff(DAY, 'today', dt)",
        "map(dt, 1)['today']",
        "element_at(map(dt, 1), 'today')",
        "array_contains(array(dt), 'today')",
    ],
)
def test_clock_words_beside_times_read_the_clock(value: str) -> None:
    assert project(f"SELECT {value} AS x FROM t").by_id["q@sources/q.sql"].reads_clock


@pytest.mark.parametrize("value", ["m['today']", "array_contains(tags, 'today')"])
def test_words_beside_texts_do_not_read_the_clock(value: str) -> None:
    assert not project(f"SELECT {value} AS x FROM u").by_id["q@sources/q.sql"].reads_clock


TIMES = f"""{RAW}
CREATE TABLE v (a INT, b STRING, arr ARRAY<STRING>, ts TIMESTAMP, dt DATE) USING parquet LOCATION 'v';
CREATE VIEW r AS SELECT b, 'today' AS kind, '10:30' AS h, ts, dt FROM v;
"""
READ_THE_CLOCK = {
    "ts = string('now')": "instant",
    "coalesce(dt, CAST('today' AS VARCHAR(10)))": "day",
    "date_sub(string('today'), 7)": "day",
    "to_timestamp(string('10:30'))": "day",
    "dt > concat('to', 'day')": "day",
    "date_add(substr('xtoday', 2), 1)": "day",
    "decode(a, 1, dt, 'to' || 'day')": "day",
    "CASE WHEN a = 1 THEN ts ELSE 'n' || 'ow' END": "instant",
    "array(ts, 'n' || 'ow')": "instant",
    "hour('10' || ':30')": "day",
    "date_trunc('DAY', concat('no', 'w'))": "instant",
    "dt > trim(' today ')": "day",
    "dt > replace('to-day', '-', '')": "instant",
    "coalesce(dt, split('today', ',')[0])": "instant",
    "coalesce(to_timestamp(b), 'now')": "instant",
    "(dt, 1) IN (('today', 1))": "day",
    "ts IN (SELECT 'now')": "instant",
    "ts IN (SELECT h FROM r)": "day",
    "(SELECT max(dt = kind) FROM r)": "day",
    "ts > (SELECT max(x) FROM VALUES ('now') AS w(x))": "instant",
    "(SELECT max(x) FROM VALUES (DATE '2024-01-01'), ('today') AS w(x))": "day",
    "(SELECT max(x) FROM (SELECT ts AS x FROM v UNION ALL SELECT '10:30'))": "day",
    "(SELECT max(x) FROM (SELECT ts AS x FROM v EXCEPT SELECT '10:30'))": "day",
    "(SELECT max(x) FROM (SELECT ts AS x FROM v INTERSECT SELECT 'n' || 'ow'))": "instant",
    "CAST(array('10:30') AS ARRAY<TIMESTAMP>)": "day",
    "transform(array('10:30'), x -> x::timestamp)": "day",
    """from_json('{"a":"10:30"}', 'a TIMESTAMP')""": "instant",
    "from_csv('1,now', 'i INT, a TIMESTAMP')": "instant",
    """variant_get(parse_json('{"a":"10:30"}'), '$.a', 'timestamp')""": "instant",
    "encode('now', 'utf-8')::string::timestamp": "instant",
}
READ_NO_CLOCK = (
    "b = string('now')",
    "b = replace('a-b', '-', '')",
    "coalesce(b, 'n' || 'ow')",
    "CASE WHEN b = 'now' THEN 'today' ELSE 'yesterday' END",
    "concat(ts, chr(10), 'x')",
    "array_contains(arr, 'n' || 'ow')",
    "array_contains(array(DATE '2024-01-01'), dt)",
    "map(1, '10:30')[1]",
    "split(b, ',')[0] = 'now'",
    "date_format(ts, concat('yyyy', '-MM'))",
    "from_json(b, 'a STRING').a = 'now'",
    """from_json('{"a":"2024-01-01 10:30:00+01:00"}', 'a TIMESTAMP')""",
    """from_json('{"a":"10:30"}', 'a STRING')""",
    "transform(array('2024-01-01'), x -> x::date)",
    "ts > make_timestamp(2024, 1, 1, 0, 0, 0)",
    "ts BETWEEN from_unixtime(0) AND '2024-01-01'",
    "CAST(string('2024-01-01') AS DATE)",
    "to_date(string('2024-01-01'))",
    "dt > date(string('2024-01-01'))",
    "CAST(concat('2024', '-02-01') AS DATE)",
    "to_date(substr('x2024-01-01', 2))",
    "dt >= CAST(concat('2024-', replace('0-1', '-', ''), '-01') AS DATE)",
    "(SELECT max(x) FROM (SELECT b AS x FROM v UNION ALL SELECT 'now'))",
    "(SELECT max(x) FROM VALUES ('now'), ('then') AS w(x))",
)


@pytest.mark.proves("P8")
@pytest.mark.parametrize(("value", "clock"), READ_THE_CLOCK.items())
def test_constant_texts_that_become_times_read_the_clock(value: str, clock: str) -> None:
    source = project(f"SELECT {value} AS x FROM v", TIMES).by_id["q@sources/q.sql"]
    assert source.reads_clock == clock
    assert len(source.notes) == 1


@pytest.mark.parametrize("value", READ_NO_CLOCK)
def test_constant_texts_that_stay_texts_or_name_a_day_do_not_read_the_clock(value: str) -> None:
    source = project(f"SELECT {value} AS x FROM v", TIMES).by_id["q@sources/q.sql"]
    assert (source.reads_clock, source.notes) == (None, ())


@pytest.mark.proves("P8")
@pytest.mark.parametrize("text", ["string('today')", "concat('to', 'day')", "'to' || 'd' || 'ay'"])
def test_constant_texts_in_queries_treated_as_a_whole_may_read_the_clock(text: str) -> None:
    query = f"SELECT dt > {text} AS x FROM v TABLESAMPLE (50 PERCENT)"
    assert project(query, TIMES).by_id["q@sources/q.sql"].reads_clock == "day"


@pytest.mark.proves("P8")
@pytest.mark.parametrize(
    ("condition", "day", "clock"),
    [
        ("dt >= since", "today", "day"),
        ("dt >= date_sub(since, 7)", "today", "day"),
        ("dt >= CAST(since AS DATE)", "2024-01-01", None),
        ("dt >= to_date(since)", "2024-01-01", None),
        ("dt >= since", "2024-01-01", None),
    ],
)
def test_variables_are_judged_by_their_values(
    condition: str, day: str, clock: str | None, tmp_path: Path
) -> None:
    (tmp_path / "persist.toml").write_text(f'[variables]\nsince = "{day}"\n')
    (tmp_path / "sources").mkdir()
    query = f"CREATE VIEW q AS SELECT a FROM v WHERE {condition};"
    (tmp_path / "sources" / "q.sql").write_text(f"{TIMES}{query}")
    made = load_project(load_settings(tmp_path, environ={}))
    assert not made.errors, [str(e) for e in made.errors]
    assert made.by_id["q@sources/q.sql"].reads_clock == clock
