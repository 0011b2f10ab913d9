"""Parameters of SQL queries: where they are allowed, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.errors import SourcesError
from persist_assets.core.model.project import Project
from persist_assets.planning.render import substitute

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

RAW = (
    "CREATE TABLE t (ts TIMESTAMP, day DATE, x STRING, k INT) USING parquet LOCATION 't';\n"
    "CREATE TABLE u (ts TIMESTAMP, k INT, y STRING) USING parquet LOCATION 'u';\n"
)
GROWS = "--@ persist refresh=incremental watermark=ts\n"
DAILY = '--@ persist partition=daily time_column=day start="2024-01-01"\n'


def project(above: str, query: str) -> Project:
    return compiled({"m.sql": f"{RAW}{above}CREATE VIEW q AS\n{query};"})


def wrong(above: str, query: str) -> list[str]:
    """Return the locations and messages of errors, with lines relative to the query."""
    lines = 4 + (above != "")
    return [
        f"{p.location.line - lines + 1}:{p.location.column} {p.message}"
        for p in project(above, query).errors
    ]


def source(above: str, query: str) -> Source:
    found = project(above, query)
    assert not found.errors, found.errors
    return found.by_id["q@sources/m.sql"]


def sql(source: Source, since: str | None = None) -> str:
    """Return the SQL that is run, limited to rows from a watermark on if there is one."""
    assert source.query
    views = {b: b.partition("@")[0] for b in source.bindings}
    made = substitute(_of(source), source.query, source.bindings, views, since)
    return " ".join(made.sql.replace("`", "").split())


def _of(source: Source) -> Project:
    leaves = compiled({"m.sql": RAW}).sources
    return Project((*leaves, source), ())


CONDITIONS = {
    "ts > :watermark": ("ts IS NOT NULL", "ts >= LOW"),
    "ts>=:watermark": ("ts IS NOT NULL", "ts >= LOW"),
    ":watermark<ts": ("NOT NULL <=> ts", "LOW <= ts"),
    "(ts > -- since\n : watermark) AND k + 1 = 2": (
        "(ts IS NOT NULL ) AND k + 1 = 2",
        "(ts >= LOW ) AND k + 1 = 2",
    ),
    "k = 1 AND :watermark <= coalesce(ts, ts) AND x = ':watermark'": (
        "k = 1 AND NOT NULL <=> coalesce(ts, ts) AND x = ':watermark'",
        "k = 1 AND LOW <= coalesce(ts, ts) AND x = ':watermark'",
    ),
}


@pytest.mark.parametrize("written", CONDITIONS)
def test_watermark_comparisons_become_null_checks_in_full_builds(written: str) -> None:
    whole, some = CONDITIONS[written]
    made = source(GROWS, f"SELECT ts, x FROM t WHERE {written}")
    assert sql(made) == f"SELECT ts, x FROM t AS t WHERE {whole}"
    assert sql(made, "LOW") == f"SELECT ts, x FROM t AS t WHERE {some}"


def test_a_watermark_limits_rows_in_ctes_and_subqueries() -> None:
    made = source(
        GROWS,
        "WITH late AS (SELECT * FROM u WHERE ts > :watermark)\n"
        "SELECT t.ts, y FROM t JOIN late USING (k) WHERE EXISTS\n"
        "(SELECT 1 FROM u AS v WHERE v.k = t.k AND v.ts >= :watermark)",
    )
    assert sql(made, "LOW").count(">= LOW") == 2
    assert sql(made).count("IS NOT NULL") == 2


REFUSED = {
    "WHERE ts < :watermark": "1:35 `:watermark` may only limit what a build reads",
    "WHERE NOT ts > :watermark": "1:39 `:watermark` may only limit",
    "WHERE ts > :watermark OR k = 1": "1:35 `:watermark` may only limit",
    "WHERE ts > :watermark - INTERVAL 1 DAY": "1:35 `:watermark` may only limit",
    "WHERE ts BETWEEN :watermark AND ts": "1:41 `:watermark` may only limit",
    "WHERE (ts > :watermark) = true": "1:36 `:watermark` may only limit",
    "GROUP BY ts, x HAVING ts > :watermark": "1:51 `:watermark` may only limit",
    "LIMIT :watermark": "1:30 `:watermark` may only limit",
    "WHERE ts > :watermrk": "1:35 unknown parameter `:watermrk`",
    "WHERE ts > :end": "1:35 unknown parameter `:end`",
    "WHERE ts > :Watermark": "1:35 unknown parameter `:Watermark`",
    "WHERE ts > ?": "1:35 `?` has no value",
    "JOIN :watermark": "1:29 parameter `:watermark` is not allowed here",
    "WHERE day > :watermark": "1:36 `:watermark` is timestamp but is compared with date",
    "WHERE upper(x) > :watermark": "1:41 `:watermark` is timestamp but is compared with string",
    "WHERE from_json(x, 'a INT').a > :watermark": "1:56 the type of the value compared with",
    "TABLESAMPLE (5 ROWS) WHERE ts > :watermark": "1:56 `:watermark` is in a query that is",
    "WHERE ts >= :partition_start": "1:36 `:partition_start` has no value",
}


@pytest.mark.parametrize("rest", REFUSED)
def test_invalid_uses_of_parameters_are_reported_once_with_their_location(rest: str) -> None:
    (said,) = wrong(GROWS, f"SELECT ts, x FROM t {' ' * 3}{rest}")
    assert said.startswith(REFUSED[rest]), said


def test_parameters_that_do_more_than_limit_rows_are_rejected() -> None:
    for above, query in (
        (GROWS, "SELECT ts, :watermark AS x FROM t"),
        (DAILY, "SELECT day, :partition_start AS x FROM t"),
        (GROWS, "SELECT ts, count(*) FILTER (WHERE ts > :watermark) AS n FROM t GROUP BY ts"),
        (GROWS, "SELECT DISTINCT :watermark AS x, ts FROM t"),
        (DAILY, "SELECT day FROM t WHERE day > :partition_start"),
        (DAILY, "SELECT day FROM t WHERE day <= :partition_end"),
    ):
        (said,) = wrong(above, query)
        assert "may only limit" in said or "is not allowed here" in said


def test_unknown_parameters_have_a_suggestion() -> None:
    (problem,) = project(GROWS, "SELECT ts FROM t WHERE ts > :watermrk").errors
    assert problem.hint == "did you mean `:watermark`?"


@pytest.mark.parametrize(
    ("above", "message"),
    [
        ("", "`q` has no table to add to"),
        ("--@ persist materialized=temporary\n", "`q` has no table to add to"),
        ("--@ persist\n", "`q` is always computed in full"),
        ("--@ persist materialized=view\n", "`q` is always computed in full"),
        ("--@ persist refresh=snapshot key=x\n", "`q` is always computed in full"),
        ("--@ persist refresh=incremental\n", "`q` has no watermark"),
        (DAILY.replace("=day ", "=ts "), "`q` is always computed in full"),
    ],
)
def test_a_source_that_is_not_incremental_has_no_watermark_parameter(
    above: str, message: str
) -> None:
    (found,) = wrong(above, "SELECT ts, x FROM t WHERE ts > :watermark")
    assert found.startswith("1:32 ") and message in found, found


def test_an_ad_hoc_query_has_no_parameters() -> None:
    with pytest.raises(SourcesError, match="`:watermark` has no value here") as told:
        parse_query("SELECT *\nFROM q WHERE ts > :watermark")
    assert (told.value.problems[0].location.line, told.value.problems[0].location.column) == (2, 19)


def test_colons_in_types_are_not_parameters() -> None:
    query = "SELECT ts, CAST(NULL AS STRUCT<a: INT, on: STRING, day: DATE>) AS s FROM t"
    assert not wrong(GROWS, f"{query} WHERE ts > :watermark")
    assert not wrong("", query)


# ---------------------------------------------------------------------------------- identity


def test_build_ids_depend_on_the_parameters_of_a_query() -> None:
    def build_id(where: str, above: str = GROWS) -> str:
        return source(above, f"SELECT ts, x FROM t{where}").build_id

    said = build_id(" WHERE ts > :watermark")
    assert said == build_id(" AS a where  a.ts>:watermark")
    assert said == build_id(" WHERE :watermark < ts")
    other, same = "assume=exact time_column=", 'lookback="2 days" time_column='
    assert said == build_id(" WHERE ts > :watermark", GROWS.replace("watermark=", same))
    assert said != build_id(" WHERE ts > :watermark", GROWS.replace("watermark=", other))
    others = ("", " WHERE ts IS NOT NULL", " WHERE ts > TIMESTAMP'2024-01-01 00:00:00'")
    assert said not in {build_id(other) for other in others}
    daily = {
        source(DAILY, f"SELECT day, x FROM t WHERE day {rest}").build_id
        for rest in (">= :partition_start", "< :partition_end", "IS NOT NULL")
    }
    assert len(daily) == 3


def test_the_build_id_of_a_downstream_source_depends_on_upstream_parameters() -> None:
    def reader(where: str) -> str:
        found = compiled(
            {
                "m.sql": f"{RAW}{GROWS}CREATE VIEW q AS SELECT ts, x FROM t {where};\n"
                "--@ persist refresh=incremental watermark=ts\n"
                "CREATE VIEW r AS SELECT ts, x FROM q WHERE ts >= :watermark;\n"
                '--@ persist partition=daily time_column=day start="2024-01-01"\n'
                "CREATE VIEW p AS SELECT CAST(ts AS DATE) AS day, x FROM q"
                " WHERE CAST(ts AS DATE) >= :partition_start;"
            }
        )
        assert not found.errors, found.errors
        return found.by_id["r@sources/m.sql"].build_id

    assert reader("WHERE ts > :watermark") != reader("")


def test_the_growth_of_a_query_is_proven_with_a_parameter_too() -> None:
    growth = source(GROWS, "SELECT ts, x FROM t WHERE ts > :watermark").growth
    assert growth and growth.sums == (frozenset(("t@sources/m.sql",)),)
    grouped = source(GROWS, "SELECT max(ts) AS ts, x FROM t WHERE ts > :watermark GROUP BY x")
    assert grouped.growth and not grouped.growth.sums
    assert grouped.growth.columns[0].loose == {"t@sources/m.sql"}


# -------------------------------------------------------------------------------- partitions

NARROWED = [
    "SELECT day, x FROM t WHERE day >= :partition_start AND day < :partition_end",
    "SELECT day, count(*) AS n FROM t WHERE :partition_end > day GROUP BY 1",
    "SELECT CAST(ts AS DATE) AS day, x FROM t WHERE ts >= :partition_start AND ts < :partition_end",
    "SELECT CAST(ts AS DATE) AS day, x FROM t WHERE CAST(ts AS DATE) >= :partition_start",
    "WITH w AS (SELECT * FROM t WHERE day < :partition_end) SELECT day, sum(k) AS s FROM w GROUP BY day",
    "SELECT t.day, y FROM t LEFT JOIN u USING (k) WHERE t.day >= :partition_start",
    "SELECT day, sum(k) OVER (PARTITION BY day ORDER BY ts) AS s FROM t WHERE day < :partition_end",
    "SELECT day, x FROM t WHERE day >= :partition_start UNION ALL SELECT day, x FROM t",
    "SELECT day, x FROM (SELECT day, x, count(*) AS n FROM t GROUP BY 1, 2 UNION ALL"
    " SELECT CAST(ts AS DATE), y, 1 FROM u) WHERE day >= :partition_start",
]


@pytest.mark.parametrize("query", NARROWED)
def test_partition_parameters_may_limit_columns_that_determine_the_partition(query: str) -> None:
    made = source(DAILY, query)
    assert ":" not in sql(made)


LOSING = [
    "SELECT day, x FROM t WHERE CAST(ts AS DATE) >= :partition_start",
    "SELECT CAST(ts AS DATE) AS day, x FROM t WHERE day < :partition_end",
    "SELECT day, y FROM t LEFT JOIN (SELECT * FROM u WHERE CAST(ts AS DATE) < :partition_end) AS v USING (k)",
    "SELECT day, sum(k) OVER (ORDER BY ts) AS s FROM t WHERE day >= :partition_start",
    "SELECT day, x FROM (SELECT * FROM t ORDER BY ts LIMIT 5) WHERE day >= :partition_start",
    "SELECT max(day) AS day, x FROM t WHERE day >= :partition_start GROUP BY x",
    "SELECT day, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND t.day >= :partition_start)",
    "SELECT date_add(day, 1) AS day, x FROM t WHERE date_add(day, 1) >= :partition_start",
    "SELECT DATE'2024-01-01' AS day, x FROM t WHERE day >= :partition_start",
    "SELECT day, x FROM t WHERE day > DATE'2024-01-01' AND EXISTS"
    " (SELECT 1 FROM t AS o WHERE o.k = t.k AND o.day < :partition_end)",
    "SELECT day, x FROM (SELECT day, x FROM t UNION ALL SELECT DATE'2024-01-01', y FROM u)"
    " WHERE day >= :partition_start",
]


@pytest.mark.parametrize("query", LOSING)
def test_partition_parameters_that_may_lose_rows_are_rejected(query: str) -> None:
    (said,) = wrong(DAILY, query)
    assert "may lose rows of a partition" in said


@pytest.mark.parametrize("above", [GROWS, "--@ persist partition { x=[a, b] }\n", ""])
def test_partition_parameters_need_a_time_partition(above: str) -> None:
    (said,) = wrong(above, "SELECT ts, x FROM t WHERE ts < :partition_end")
    assert said.startswith("1:32 `:partition_end` has no value: `q` has no")
