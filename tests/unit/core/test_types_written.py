"""Types and typed literals mean what Spark reads, in every spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.core.spark_types import UnknownTypeError, parse_type, read_type

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

TABLE = "CREATE TABLE t (s STRING, k INT, ts TIMESTAMP) USING parquet LOCATION 't';\n"


def source(query: str) -> Source:
    made = compiled({"t.sql": TABLE, "q.sql": f"--@ persist\nCREATE VIEW q AS {query}"})
    assert not made.errors, [str(p) for p in made.errors]
    return made.by_id["q@sources/q.sql"]


def errors(query: str, table: str = TABLE) -> list[str]:
    made = compiled({"t.sql": table, "q.sql": f"CREATE VIEW q AS {query}"})
    return [str(p) for p in made.problems]


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DATE '2024-01-10'::string", "'2024-01-10'::string::date"),
        ("DATE '2024-01-10'::string", "DATE('2024-01-10'::string)"),
        ("TIMESTAMP '2024-01-10'::date", "CAST('2024-01-10'::date AS TIMESTAMP)"),
        ("s::TIMESTAMP WITHOUT TIME ZONE", "s::TIMESTAMP"),
        ("TIME '10:00:00'", "TIMESTAMP '10:00:00'"),
        ("CAST(s AS TIME)", "CAST(s AS TIMESTAMP)"),
        ("CAST(s AS TIME)", "CAST(s AS TIME(3))"),
        ("CAST(s AS INTERVAL DAY TO SECOND)", "CAST(s AS INTERVAL DAY)"),
        ("CAST(NULL AS STRUCT<`a:int,b`:int>)", "CAST(NULL AS STRUCT<a:int,b:int>)"),
    ],
)
def test_casts_that_spark_distinguishes_have_different_build_ids(one: str, other: str) -> None:
    a, b = (source(f"SELECT {text} AS x FROM t") for text in (one, other))
    assert a.build_id != b.build_id


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("DATE '2024-01-10'::string", "CAST(DATE '2024-01-10' AS STRING)", "string"),
        ("DATE '2024-01-10'::timestamp::string", "CAST(DATE '2024-01-10' AS TIMESTAMP)::string", "string"),
        ("s::TIMESTAMP WITHOUT TIME ZONE", "CAST(s AS TIMESTAMP_NTZ)", "timestamp_ntz"),
        ("s::TIMESTAMP WITH LOCAL TIME ZONE", "CAST(s AS TIMESTAMP_LTZ)", "timestamp"),
        ("CAST(s AS TIME WITHOUT TIME ZONE)", "CAST(s AS TIME(6))", "time(6)"),
        ("TIME '10:00:00'", "TIME '10:00:00'", "time(6)"),
        ("s::VARCHAR(3)", "CAST(s AS STRING)", "string"),
        ("s::DEC(5)", "CAST(s AS NUMERIC(5, 0))", "decimal(5,0)"),
        ("s::LONG", "CAST(s AS BIGINT)", "bigint"),
        ("NULL::array<struct<a: int>>", "CAST(NULL AS ARRAY<STRUCT<a INT>>)", "array<struct<a:int>>"),
        ("NULL::map<string, array<int>>", "CAST(NULL AS MAP<STRING,ARRAY<INT>>)", "map<string,array<int>>"),
    ],
)  # fmt: skip
def test_equivalent_spellings_of_a_cast_have_one_build_id_and_type(
    one: str, other: str, kind: str
) -> None:
    a, b = (source(f"SELECT {text} AS x FROM t") for text in (one, other))
    assert a.build_id == b.build_id
    assert [c.type for c in a.columns] == [kind]


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("CAST(s AS UUID)", "1:35", "unknown type `UUID`\n    hint: string"),
        ("s::int4", "1:28", "unknown type `int4`\n    hint: int"),
        ("CAST(s AS array<datetime>)", "1:41", "unknown type `datetime`\n    hint: timestamp"),
        ("s::VARCHAR", "1:28", "`VARCHAR` needs a length"),
        ("s::decimal(39, 2)", "1:28", "unknown type `decimal(39,2)`"),
        ("s::int(3)", "1:28", "unknown type `int(3)`"),
        ("s::bigintt", "1:28", "unknown type `bigintt`\n    hint: did you mean `bigint`?"),
        ("s::timestamp with time zone", "1:28", "unknown type `TIMESTAMP WITH TIME ZONE`"),
        ("INT '1'", "1:25", "Spark has no literals of type `INT`"),
    ],
)
def test_types_unknown_to_spark_are_reported_with_their_location(
    text: str, where: str, message: str
) -> None:
    (error,) = errors(f"SELECT {text} AS x FROM t")
    assert error.replace(" [type]", "").startswith(f"sources/q.sql:{where}: error: {message}")


@pytest.mark.proves("S2")
def test_columns_of_raw_tables_must_have_spark_types() -> None:
    table = "CREATE TABLE t (a INT, `b c` UUID NOT NULL, c STRING) USING parquet LOCATION 't';"
    (error,) = errors("SELECT a FROM t", table)
    assert "sources/t.sql:1:30: error: unknown type `UUID`" in error
    table = (
        "CREATE TABLE IF NOT EXISTS t (a CHAR(3) COMMENT 'x, y', b TIMESTAMP WITHOUT TIME ZONE,"
        " c: STRUCT<a: LONG NOT NULL COMMENT 'of a', b DEC(5, 2)> NOT NULL, time TIME)"
        " USING parquet LOCATION 't';"
    )
    made = compiled({"t.sql": table})
    assert not made.problems
    assert [(c.name, c.type, c.description) for c in made.sources[0].columns] == [
        ("a", "char(3)", "x, y"),
        ("b", "timestamp_ntz", None),
        ("c", "struct<a:bigint,b:decimal(5,2)>", None),
        ("time", "time(6)", None),
    ]


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("TIMESTAMP '00:01:52'", True),
        ("CAST(' 0:1' AS TIMESTAMP)", True),
        ("'T01:00'::timestamp", True),
        ("timestamp('00:01:52')", True),
        ("to_timestamp('00:01:52')", True),
        ("CAST(coalesce(s, '00:00:01') AS TIMESTAMP)", True),
        ("CAST(CASE WHEN k = 1 THEN s ELSE '10:00' END AS TIMESTAMP)", True),
        ("ts > '10:00'", True),
        ("CAST(concat('n', 'ow') AS TIMESTAMP)", True),
        ("CAST('n\\u006fw' AS TIMESTAMP)", True),
        ("CAST(upper('today') AS DATE)", True),
        ("TIME '00:01:52'", False),
        ("'00:01:52'::string", False),
        ("s > '10:00'", False),
        ("CAST('2024-01-10 00:01:52' AS TIMESTAMP)", False),
        ("CAST(concat(s, ' 00:00:00') AS TIMESTAMP)", False),
        ("CAST(make_date(2024, 1, 1) AS TIMESTAMP)", False),
        ("CAST(NULL AS DATE)", False),
        ("CAST(1 AS TIMESTAMP)", False),
    ],
)
def test_casting_a_text_without_a_date_to_a_timestamp_reads_the_clock(
    text: str, clock: bool
) -> None:
    assert (source(f"SELECT {text} AS x FROM t").reads_clock is not None) == clock


@pytest.mark.proves("S2")
def test_clock_reads_are_detected_in_queries_treated_as_a_whole() -> None:
    sampled = "SELECT {} AS x FROM t TABLESAMPLE (50 PERCENT)"
    assert source(sampled.format("TIMESTAMP '00:01:52'")).reads_clock
    assert not source(sampled.format("'00:01:52'::string")).reads_clock
    assert source(sampled.format("ts > 'today' - INTERVAL 1 DAY")).reads_clock == "day"
    assert source(sampled.format("to_date('now')")).reads_clock == "instant"


@pytest.mark.proves("S2")
def test_column_names_and_order_of_values_affect_build_ids() -> None:
    a = source("VALUES (1, 2) AS t(a, b)")
    assert [c.name for c in a.columns] == ["a", "b"]
    assert source("SELECT 1 AS a, 2 AS b").columns == a.columns
    others = [
        "VALUES (1, 2) AS t(b, a)",
        "VALUES (1, 2) AS t(a, b) LIMIT 0",
        "VALUES (1, 2) AS t(a, b) LIMIT 1 OFFSET 1",
    ]
    ids = {source(query).build_id for query in others}
    assert len(ids | {a.build_id}) == 4
    first, last = (
        source(f"WITH c AS (VALUES (1, 2) AS t({names})) SELECT a FROM c").build_id
        for names in ("a, b", "b, a")
    )
    assert first != last
    first, last = (
        source(f"VALUES (1), (2) AS t(a) ORDER BY a {way} LIMIT 1").build_id for way in ("", "DESC")
    )
    assert first != last


def test_incomplete_and_too_deeply_nested_types_are_rejected() -> None:
    assert parse_type("struct<>") == "struct<>"
    assert parse_type("map<int,int") is None
    for text in ("struct<a", "array<", "map<int,", "decimal(", "interval day to", "struct<a:"):
        assert parse_type(text) is None
    with pytest.raises(UnknownTypeError, match="nested too deeply"):
        read_type(["array", "<"] * 500)
