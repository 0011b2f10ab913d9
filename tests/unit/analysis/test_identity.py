"""Which queries have the same BuildID, and which do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled, printed_under_another_hash_seed
from pairs import RAW, golden, known_build_id, project
from recorded import changed, of_pairs

from persist_assets.core.digests import digest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("K2")
@pytest.mark.parametrize(("title", "one", "other"), golden("equal.txt"), ids=lambda v: v[:40])
def test_equivalent_queries_have_the_same_build_id(title: str, one: str, other: str) -> None:
    assert known_build_id(one) == known_build_id(other)


@pytest.mark.parametrize(("title", "one", "other"), golden("different.txt"), ids=lambda v: v[:40])
def test_queries_of_different_meaning_have_different_build_ids(
    title: str, one: str, other: str
) -> None:
    assert known_build_id(one) != known_build_id(other)


@pytest.mark.proves("H2", "X3")
def test_build_ids_of_golden_pairs_match_the_recorded_ones() -> None:
    assert not changed("pairs", of_pairs())


@pytest.mark.proves("M7")
def test_equivalent_sources_share_a_build_id_but_not_an_asset_key() -> None:
    text = "CREATE TABLE t (a INT) USING parquet LOCATION 'x'; CREATE VIEW v AS SELECT a FROM t;"
    project = compiled({"one.sql": text, "two/three.sql": "CREATE VIEW w AS SELECT x.A FROM t x"})
    one, two = project.by_id["v@sources/one.sql"], project.by_id["w@sources/two/three.sql"]
    assert one.build_id == two.build_id
    assert one.asset_key == ("one", "v")
    assert two.asset_key == ("two", "three", "w")


@pytest.mark.parametrize(
    ("raw", "same"),
    [
        ("CREATE TABLE t (a INT, b INT) USING parquet LOCATION 'x'", True),
        ("CREATE TABLE t (a INT) USING parquet LOCATION 'y'", False),
        ("CREATE TABLE t (a INT) USING orc LOCATION 'x'", False),
        ("CREATE TABLE t (a BIGINT) USING parquet LOCATION 'x'", False),
        ("CREATE TABLE t (a INT) USING parquet OPTIONS (mergeSchema true) LOCATION 'x'", False),
        (
            "CREATE TABLE t (a INT) USING parquet OPTIONS ('fs.s3a.secret.key' 'x') LOCATION 'x'",
            True,
        ),
    ],
)
def test_a_reader_depends_on_where_and_how_raw_data_is_read(raw: str, same: bool) -> None:
    def read(text: str) -> str:
        project = compiled({"a.sql": f"{text}; CREATE VIEW v AS SELECT a FROM t"})
        return project.by_id["v@sources/a.sql"].build_id

    assert (read(raw) == read("CREATE TABLE t (a INT) USING parquet LOCATION 'x'")) is same


def test_all_declared_csv_columns_affect_the_build_id() -> None:
    def read(columns: str) -> str:
        raw = f"CREATE TABLE t ({columns}) USING csv LOCATION 'x'"
        return compiled({"a.sql": f"{raw}; CREATE VIEW v AS SELECT a FROM t"}).sources[-1].build_id

    assert read("a INT, b INT") != read("a INT")


def test_a_query_that_cannot_be_analysed_depends_on_all_it_reads() -> None:
    def read(upstream: str) -> str:
        project = compiled(
            {
                "a.sql": f"{RAW} CREATE VIEW x AS {upstream}; CREATE VIEW y AS SELECT my_udf(p) AS r FROM x"
            }
        )
        source = project.by_id["y@sources/a.sql"]
        assert "as a whole" in source.notes[0]
        return source.build_id

    assert read("SELECT a AS p, k AS q FROM t") == read("SELECT a AS p,  K AS q FROM t")
    assert read("SELECT a AS p, k AS q FROM t") != read("SELECT a AS p, k + 1 AS q FROM t")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("my_udf('it''s')", "my_udf('it' 's')"),
        ("'ƒ1L'", "1L"),
        ("struct(m['x'])", "struct(m[c])"),
        ("struct(m['x'] AS col1)", "struct(m['x'])"),
        ("struct(c, m['x'] AS col2)", "struct(c, m['x'])"),
        ("struct((named_struct('p', c)).p AS col1)", "struct((named_struct('p', c)).p)"),
    ],
)
def test_queries_that_cannot_be_analysed_are_digested_as_written(one: str, other: str) -> None:
    def read(expr: str) -> str:
        query = f"SELECT {expr} AS r FROM (SELECT m, 'x' AS c FROM t)"
        return compiled({"a.sql": f"{RAW} CREATE VIEW x AS {query}"}).sources[-1].build_id

    assert read(one) != read(other)


@pytest.mark.parametrize("keys", ["ROLLUP (a), k", "k, CUBE (a, k)", "GROUPING SETS ((a), (k))"])
def test_mixed_grouping_sets_are_digested_as_written(keys: str) -> None:
    query = f"SELECT count(*) AS n FROM t GROUP BY {keys} GROUPING SETS ((a), (k))"
    made = compiled({"a.sql": f"{RAW} CREATE VIEW x AS {query}"})
    assert any("as a whole" in note for note in made.sources[-1].notes)


@pytest.mark.proves("M7")
def test_build_ids_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = "import pairs; print([pairs.build_id(q) for _, q, _ in pairs.golden('equal.txt')])"
    here = f"{[known_build_id(query) for _, query, _ in golden('equal.txt')]}\n"
    assert printed_under_another_hash_seed(script, tmp_path) == here


def test_a_digest_depends_on_the_boundaries_of_its_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(["a"], []) != digest([], ["a"])


WHOLE = [
    ("WITH RECURSIVE r AS (SELECT a FROM w UNION SELECT a + 1 FROM r WHERE a < 9) SELECT a FROM r", "WITH RECURSIVE r AS (SELECT a FROM w UNION ALL SELECT a + 1 FROM r WHERE a < 9) SELECT a FROM r"),
    ("WITH RECURSIVE r AS (SELECT a, rand() AS x FROM w UNION ALL SELECT a + 1, x FROM r WHERE a < 9) SELECT a FROM r", "WITH RECURSIVE r AS (SELECT a, 1D AS x FROM w UNION ALL SELECT a + 1, x FROM r WHERE a < 9) SELECT a FROM r"),
    ("SELECT w.a, x.z FROM w LEFT JOIN LATERAL (SELECT rand() AS z FROM u WHERE u.a = w.a) x", "SELECT w.a, x.z FROM w LEFT JOIN LATERAL (SELECT 1D AS z FROM u WHERE u.a = w.a) x"),
    ("SELECT -b COLLATE UTF8_LCASE AS x FROM t", "SELECT (-b) COLLATE UTF8_LCASE AS x FROM t"),
    ("SELECT a = 1 IN (false) AS x FROM t", "SELECT a = (1 IN (false)) AS x FROM t"),
    ("SELECT a <=> k IN (false) AS x FROM t", "SELECT a <=> (k IN (false)) AS x FROM t"),
    ("SELECT a FROM u WHERE EXISTS (FROM u |> SET k = 7 |> WHERE u.k = 1)", "SELECT a FROM u WHERE EXISTS (FROM u |> SET k = 7 |> WHERE k = 1)"),
    ("FROM w |> AGGREGATE sum(z) AS s GROUP BY 1 AS x", "FROM w |> AGGREGATE sum(z) AS s GROUP BY 2 AS x"),
    ("SELECT a FROM t WHERE a NOT IN ((SELECT a FROM u))", "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u)"),
    ("SELECT * FROM ((SELECT a, k FROM w) PIVOT (sum(k) FOR a IN (1, 2)))", "SELECT * FROM ((SELECT a, k FROM w))"),
    ("SELECT n, v, u.a FROM w UNPIVOT (v FOR n IN (k, z)) LEFT JOIN u ON v = u.k", "SELECT n, v, u.a FROM w UNPIVOT (v FOR n IN (k, z)) x LEFT JOIN u ON v = u.k"),
    ("SELECT count(*) AS n FROM (SELECT a FROM t), w PIVOT (max(z) FOR k IN (1, 5))", "SELECT count(*) AS n FROM (SELECT a FROM t), (SELECT * FROM w PIVOT (max(z) FOR k IN (1, 5))) p"),
    ("SELECT w.a FROM w RIGHT ANTI JOIN u ON w.a = u.a", "SELECT w.a FROM w LEFT ANTI JOIN u ON w.a = u.a"),
    ("SELECT a FROM t WHERE rand() < 0.5 AND rand() < 0.5", "SELECT a FROM t WHERE rand() < 0.5"),
    ("SELECT a FROM w WHERE z IN (rand(), rand())", "SELECT a FROM w WHERE z IN (rand())"),
    ("SELECT b, s FROM (SELECT b, row_number() OVER (ORDER BY a) AS s FROM t) GROUP BY b", "SELECT b, s FROM (SELECT b, row_number() OVER (ORDER BY a) AS s FROM t) GROUP BY b, s"),
    ("WITH c AS (SELECT b, sum(a) OVER () AS s FROM t) SELECT b, s FROM c GROUP BY b", "WITH c AS (SELECT b, sum(a) OVER () AS s FROM t) SELECT b, s FROM c GROUP BY b, s"),
    ("SELECT count(*) AS c FROM t GROUP BY rand(), rand()", "SELECT count(*) AS c FROM t GROUP BY rand()"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), WHOLE, ids=lambda v: v[:40])
def test_syntax_that_the_parser_loses_is_digested_as_written(one: str, other: str) -> None:
    made = [project(query).by_id["q@sources/q.sql"] for query in (one, other)]
    assert "as a whole" in made[0].notes[0]
    assert made[0].build_id != made[1].build_id


@pytest.mark.parametrize(
    "reader",
    [
        "SELECT * FROM (SELECT p, q FROM x) PIVOT (first(q) FOR p IN (1 AS y))",
        "SELECT p FROM x TABLESAMPLE (100 PERCENT) AS y",
    ],
)
def test_a_query_digested_as_a_whole_depends_on_upstream_column_names(reader: str) -> None:
    ids = [
        compiled(
            {"raw.sql": RAW, "x.sql": f"CREATE VIEW x AS {x}", "q.sql": f"CREATE VIEW q AS {reader}"}
        ).by_id["q@sources/q.sql"].build_id
        for x in ("SELECT a AS p, k AS q FROM t", "SELECT a AS q, k AS p FROM t")
    ]  # fmt: skip
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("DATE 'today'", "instant"),
        ("DATE '2024-01-01'", None),
        ("CAST(('now') AS TIMESTAMP)", "instant"),
        ("(SELECT max(c) FROM u WHERE c >= 'today')", "day"),
        ("(SELECT max(c) FROM u WHERE c IN ('2024-01-01', 'Yesterday'))", "day"),
        ("(SELECT max(c) FROM u WHERE c BETWEEN 'yesterday' AND 'today')", "day"),
        ("(SELECT max(coalesce(c, 'today')) FROM u)", "day"),
        ("date_trunc('DAY', 'now')", "instant"),
        ("datediff('today', DATE '2024-01-01')", "day"),
        ("(SELECT max(c >= 'now' - INTERVAL 1 HOUR) FROM u)", "instant"),
        ("(SELECT max(c) FROM u WHERE c > 'today' - INTERVAL 7 DAYS)", "day"),
        ("'yesterday' + INTERVAL '6' HOUR", "day"),
        ("try_subtract('now', INTERVAL 1 DAY)", "instant"),
        ("(SELECT max(c > z - INTERVAL 1 DAY) FROM (SELECT c, 'now' AS z FROM u))", "instant"),
        ("explode(sequence(to_date('2024-01-01'), 'today', INTERVAL 1 DAY))", "day"),
        ("b = 'today'", None),
        ("b IN ('now', 'later')", None),
        ("upper('now')", None),
        ("localtimestamp()", "instant"),
        ("current_time()", "instant"),
        ("localtime()", "instant"),
    ],
)
def test_queries_that_read_the_clock_are_detected(text: str, clock: str | None) -> None:
    made = project(f"SELECT {text} AS d FROM t")
    assert made.by_id["q@sources/q.sql"].reads_clock == clock


@pytest.mark.parametrize(
    "draw",
    [
        "SELECT a, k, (SELECT max(r) FROM (SELECT rand() AS r FROM w)) AS x FROM t",
        "WITH d AS (SELECT rand() AS r FROM w) SELECT a, k, (SELECT max(r) FROM d) AS x FROM t",
    ],
)
def test_each_reference_to_a_nondeterministic_source_is_a_separate_draw(draw: str) -> None:
    def read(columns: str, around: str) -> str:
        query = f"SELECT {columns} FROM d x JOIN d y ON x.a = y.k"
        made = compiled(
            {
                "raw.sql": RAW,
                "d.sql": f"CREATE VIEW d AS {draw}; CREATE VIEW e AS SELECT * FROM d;",
                "q.sql": f"CREATE VIEW q AS {around.replace('…', query)}",
            }
        )
        assert not made.errors
        return made.by_id["q@sources/q.sql"].build_id

    inlined, one = read("x.x AS p, y.x AS q", "…"), read("x.x AS p, x.x AS q", "…")
    assert inlined != one
    assert inlined == read("x.x AS p, y.x AS q", f"WITH d AS ({draw}) …")
    assert inlined == read("x.x AS p, y.x AS q", "WITH d AS (SELECT * FROM e) …")


def test_a_table_name_known_only_at_run_time_is_rejected() -> None:
    project = compiled({"q.sql": "CREATE VIEW q AS SELECT a FROM IDENTIFIER(lower('T'))"})
    assert [p.code for p in project.errors] == ["identifier"]
