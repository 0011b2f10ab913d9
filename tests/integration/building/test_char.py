"""CHAR(n) columns of raw and external tables are padded and compared as in Spark's own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pushing import needs_of

from persist_assets.analysis.predicates.terms import as_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

pytestmark = pytest.mark.proves("S6")

EXTERNAL = """
create external table t (c char(10), i int) with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "lake"}}
}]');
"""
RAW = "create table t (c char(10), i int) using delta location 'lake';\n"
QUERIES = {
    "shown": "select i, concat('[', c, ']') as x from {t}",
    "equal": "select i from {t} where c = 'BUILDING'",
    "other": "select i from {t} where c <> 'BUILDING  '",
    "several": "select i from {t} where c in ('x', 'BUILDING')",
    "less": "select i from {t} where c <= 'BUILDING'",
    "ranged": "select i from {t} where c between 'BUILDING' and 'BUILDING'",
    "liked": "select i from {t} where c like 'BUILDING'",
    "spaces": "select i from {t} where c = 'x                   '",
    "never": "select i from {t} where c = 'BUILDING and more'",
    "grouped": "select c, count(*) as n from {t} group by c",
    "kept": "select c, i from {t}",
}


@pytest.mark.slow
def test_queries_of_char_columns_have_the_same_rows_as_in_spark(
    spark: Any, enter: Callable[..., Builder], make_project: Callable[..., Path], tmp_path: Path
) -> None:
    rows = pa.table(
        {
            "c": ["BUILDING", "BUILDING  ", "x", None, "abcdefghij", "BUILDING\t"],
            "i": pa.array(range(1, 7), "int32"),
        }
    )
    write_deltalake(str(tmp_path / "own"), rows)
    place = next((tmp_path / "own").glob("*.parquet")).parent
    views = "".join(f"create materialized view {n} as {q};\n" for n, q in QUERIES.items())
    views = views.replace("{t}", "t")
    views += "create materialized view from_kept as select i from kept where c = 'BUILDING';\n"
    spark.sql(f"create table own_char (c char(10), i int) using parquet location '{place}'")
    try:
        expected = {
            name: sorted(map(repr, spark.sql(query.replace("{t}", "own_char")).collect()))
            for name, query in QUERIES.items()
        }
    finally:
        spark.sql("drop table own_char")
    expected["from_kept"] = expected["equal"]
    assert expected["equal"] == ["Row(i=1)", "Row(i=2)"]
    for name, declared in (("raw", RAW), ("external", EXTERNAL)):
        root = make_project({"m.sql": declared + views}, name=name)
        for n in range(rows.num_rows):  # one file per row, so that statistics can skip files
            write_deltalake(str(root / "lake"), rows.slice(n, 1), mode="append")
        builder = enter(root)
        for source in builder.project.persisted:
            builder.build(source)
            found = sorted(map(repr, builder.read(source).collect()))
            assert found == expected[source.name], (name, source.name)


def test_equality_is_pushed_down_with_padded_values_and_other_conditions_as_not_null() -> None:
    views = "".join(
        f"create materialized view {n} as {QUERIES[n].replace('{t}', 't')};\n"
        for n in ("equal", "several", "less", "ranged", "liked")
    )
    pushed = {
        name: as_text(n.predicate) for (name, _), n in needs_of(EXTERNAL + views, "t").items()
    }
    assert pushed == {
        "equal": "c = 'BUILDING  '",
        "several": "c IN ('BUILDING  ', 'x         ')",
        "less": "c IS NOT NULL",
        "ranged": "c IS NOT NULL",
        "liked": "c IS NOT NULL",
    }
