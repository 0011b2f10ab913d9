"""What Malloy's own SQL gets wrong on every engine has the rows that its text means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import need
from malloy import Told, malloy, there

from persist_assets.compiler.load import load_project, require
from persist_assets.compiler.malloy.bridge import Connection
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FLAG = "##! experimental { persistence parameters givens sql_functions }\n"
GIVENS = """
given: LO :: number is -1
given: THREE :: number is 1 + 2
given: SOME :: filter<number> is f'> 3 or 7 and < 10'
"""
COLUMNS = [("id", "bigint"), ("g", "string"), ("d", "date"), ("b", "boolean")]
T = "source: t is db.table('t') extend { dimension: less is -5, opposite is -id }\n"
ROWS = """
SELECT id, g, CAST(d AS DATE) AS d, b FROM VALUES
  (-7L, 'a', '2023-12-31', true), (-1L, 'b', '2024-01-01', false), (0L, 'c', '2024-03-15', NULL), (2L, 'az', '2024-05-01', true),
  (3L, 'bz', '2025-06-01', false), (4L, 'cz', '2026-01-01', NULL), (7L, '', '2024-02-29', true), (12L, NULL, NULL, false),
  (NULL, 'ab', '2022-01-01', NULL) AS t(id, g, d, b)
"""

P = """
source: p(three::number is 1 + 2, low::boolean is 1 = 2 or 2 = 2, lo::number is -1) is t extend {
  dimension:
    p_product is id * three, p_rest is id - three, p_negative is -three, p_even is three % 2
    p_either is id = 3 and low, p_none is not low, p_shifted is id - lo, p_text is three::string
}
"""

# Expressions. Each has an equivalent that Malloy translates correctly.
MINUS = {
    "id - -2": "id + 2",
    "- -id": "id",
    "-(-id)": "id",
    "id * (2 - -3)": "id * 5",
    "3 - - -2": "1",
    "id - less": "id + 5",
    "id - opposite": "id + id",
    "-less": "5",
    "id - $LO": "id + 1",
    "-$LO": "1",
    "abs(-id) - -abs(id)": "abs(id) * 2",
    "d - $LO days": "d + 1 day",
    "sql_number('${id} - -2')": "id + 2",
    "(id - -2) % -3": "(id + 2) % (0 - 3)",
    "id ~ f'not -7'": "not (id = (0 - 7))",
    "id ~ f'[-7 to -1]'": "id >= (0 - 7) and id <= (0 - 1)",
}
VALUES = {
    "id * $THREE": "id * 3",
    "id - $THREE": "id - 3",
    "-$THREE": "0 - 3",
    "10 % $THREE": "1",
    "$THREE / $THREE": "1",
    "id > $THREE": "id > 3",
    "p_product": "id * 3",
    "p_rest": "id - 3",
    "p_negative": "0 - 3",
    "p_even": "1",
    "p_either": "id = 3",
    "p_none": "1 = 2",
    "p_shifted": "id + 1",
    "p_text": "'3'",
}
"""Values of givens and parameters are put into SQL as operands."""
NOT_LIKE = {
    f"{column} !~ {text}": f"not ({column} ~ {text})"
    for column, texts in {
        "g": ("f'a%'", "f'-a'", "f'a, b'", "f'null'", "f'a | b; -c'", "f''", "f'empty'"),
        "id": ("f'3'", "f'not 3'", "f'not [3 to 5]'", "$SOME", "f'none'"),
        "d": ("f'2024'", "f'not 2024'", "f'after 2024 or null'"),
        "b": ("f'true'", "f'not true'", "f'=true'", "f'not null'"),
    }.items()
    for text in texts
} | {"g ? !~ f'a%'": "not (g ~ f'a%')"}
BOTH = {
    f"{column} ~ f'{first}{sign}{second}'": f"({column} ~ f'{first}') and ({column} ~ f'{second}')"
    for column, sign, parts in (
        ("id", " and ", [("< 10", "not [3 to 5]"), ("not [3 to 5]", "< 10"), ("< 3 or > 5", "< 10")]),
        ("id", " AND ", [("not [3 to 5]", "not [-1 to 0]"), ("> 1", "< 10"), ("1 or 2", "not 2")]),
        ("g", "; ", [("a | b", "-c"), ("a%, b%", "%z"), ("%OR %, a%", "%z"), ("a, null", "-c")]),
        ("g", "; ", [("a%, -b%", "%z"), ("-(a | b)", "%z")]),
        ("d", " and ", [("2024", "not 2024-03"), ("after 2023", "not 2025"), ("not 2025", "not 2024")]),
    )
    for first, second in parts
} | {
    """g ~ f"'%, b%; %z" """: """(g ~ f"'%, b%") and (g ~ f"%z")""",
    "id ~ $SOME": "(id ~ f'> 3 or 7') and (id ~ f'< 10')",
    "id ~ f'(< 3 and not [-1 to 0]) or 7'": "(id ~ f'< 3') and (id ~ f'not [-1 to 0]') or id = 7",
}  # fmt: skip
QUARTERS = {
    "d ~ f'2024-Q1'": "d >= @2024-01-01 and d < @2024-04-01",
    "d ~ f'2024-Q2'": "d >= @2024-04-01 and d < @2024-07-01",
    "d ~ f'2024-Q3 to 2024-Q4'": "d >= @2024-07-01 and d < @2024-10-01",
    "d ~ f'2024-Q4'": "d >= @2024-10-01 and d < @2025-01-01",
}
PAIRS = {"minus": MINUS, "values": VALUES, "not like": NOT_LIKE, "both": BOTH | QUARTERS}


def compiled(selected: Mapping[str, str]) -> str:
    """Return the SQL of a query of `p` with some columns."""
    columns = ", ".join(f"{name} is {expression}" for name, expression in selected.items())
    text = f"{FLAG}{GIVENS}{T}{P}query: q is p -> {{ select: {columns} }}\n"
    with malloy(Told({"m.malloy": text}, {"t": COLUMNS}), {"db": Connection("d")}) as session:
        query = session.compile_query("m.malloy", name="q")
    assert query.sql is not None, query.problems
    return query.sql


@pytest.mark.slow
@pytest.mark.proves("S4")
@pytest.mark.parametrize("title", PAIRS)
def test_expressions_have_the_values_that_they_mean_in_spark(spark: Any, title: str) -> None:
    pairs = list(PAIRS[title].items())
    selected = {f"c{n}_{which}": pair[which] for n, pair in enumerate(pairs) for which in (0, 1)}
    spark.sql(ROWS).createOrReplaceTempView("t")
    table = spark.sql(compiled(selected)).toArrow()
    assert (table.num_rows, table.num_columns) == (9, 2 * len(pairs))
    for n, (expression, same) in enumerate(pairs):
        values = [table[f"c{n}_{which}"].to_pylist() for which in (0, 1)]
        # A WHERE clause drops rows whose condition is NULL, as if it were false.
        known = [[bool(v) if title == "both" else v for v in column] for column in values]
        assert known[0] == known[1], f"{expression}, {same}"
    spark.catalog.dropTempView("t")


def test_no_minus_begins_a_comment() -> None:
    sql = compiled({f"c{n}": expression for n, expression in enumerate(MINUS)})
    assert len(sql.splitlines()) == len(MINUS) + 2
    assert "--" not in sql


AS_BEFORE = {
    "id - 2": "base.`id`-2",
    "-id": "-base.`id`",
    "id - less": "base.`id`-(-5)",
    "id ~ f'< 10 and > 3'": "base.`id` < 10 AND base.`id` > 3",
    "id ~ f'< 3 or > 5'": "base.`id` < 3 OR base.`id` > 5",
    "id ~ f'> 3 and != 5'": "base.`id` > 3 AND (base.`id` != 5 OR base.`id` IS NULL)",
    "id ~ f'(1 or > 2) and < 3'": "(base.`id` = 1 OR base.`id` > 2) AND base.`id` < 3",
    "g ~ f'% OR %; -b'": "base.`g` LIKE '% OR %' AND (base.`g` != 'b' OR base.`g` IS NULL)",
    "g ~ f'a%, b%, -c'": "(base.`g` LIKE 'a%' OR base.`g` LIKE 'b%') AND ((base.`g` != 'c' OR base.`g` IS NULL))",
}


def test_all_other_sql_is_written_as_before() -> None:
    sql = compiled({f"c{n}": expression for n, expression in enumerate(AS_BEFORE)})
    columns = [f"{text} as `c{n}`" for n, text in enumerate(AS_BEFORE.values())]
    assert [line.strip(" ,") for line in sql.splitlines()[1:-1]] == columns


@pytest.mark.proves("S4")
def test_sources_of_other_meaning_have_other_build_ids(make_project: Callable[..., Path]) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    wheres = {
        "all_of_it": "true",
        "is_a": "g ~ f'a%'",
        "not_a": "g !~ f'a%'",
        "not_a_too": "not (g ~ f'a%')",
    }
    text = f"{FLAG}source: t is spark.table('t')\n"
    for name, where in wheres.items():
        text += f"#@ persist\nsource: {name} is t -> {{ select: g, id; where: {where} }}\n"
    text += "#@ persist\nsource: shifted is t -> { select: g, id is id - -2 }\n"
    raw = "CREATE TABLE t (id BIGINT, g STRING) USING parquet LOCATION 'raw/t';\n"
    project = load_project(
        load_settings(make_project({"raw.sql": raw, "m.malloy": text}), environ={})
    )
    require(project)
    build_ids = {s.name: s.build_id for s in project.sources}
    assert build_ids["not_a"] == build_ids["not_a_too"]
    assert len(set(build_ids.values())) == len(build_ids) - 1
