"""Malloy's ordered `string_agg`, and sources that extend others, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import need
from malloy import there

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

RAW = """
CREATE TABLE t (id BIGINT, k STRING, s STRING) USING parquet LOCATION 'raw/t';
CREATE TABLE u (k STRING, x BIGINT) USING parquet LOCATION 'raw/u';
"""
HEAD = """##! experimental { persistence aggregate_order_by }
source: u is spark.table('u')
source: t is spark.table('t') extend { primary_key: id; join_many: u on u.k = k }
"""
ROWS = [(1, "a", "y"), (2, "a", "x"), (3, "a", "y"), (4, "a", None), (5, "b", None), (6, "c", "z,")]


@pytest.fixture
def start(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[[str], Builder]:
    """Return a function that makes a builder for a model over the rows."""
    need(there(), "bundle Malloy's compiler: make bridge")

    def builder(text: str) -> Builder:
        root = make_project({"raw.sql": RAW, "m.malloy": HEAD + text})
        columns = dict(zip(("id", "k", "s"), map(list, zip(*ROWS, strict=True)), strict=True))
        for name, table in {
            "t": pa.table(columns),
            "u": pa.table({"k": ["a", "a"], "x": [1, 2]}),
        }.items():
            (root / "raw" / name).mkdir(parents=True)
            pq.write_table(table, root / "raw" / name / "part.parquet")
        return enter(root)

    return builder


def rows(builder: Builder, name: str) -> list[Any]:
    source = next(s for s in builder.project.sources if s.name == name)
    builder.build(source)
    return sorted(map(tuple, builder.read(source).collect()), key=repr)


ORDERED = {
    "string_agg(s, '; ') { order_by: id desc }": ["y; x; y", "", "z,"],
    "string_agg(s) { order_by: s, id }": ["x,y,y", "", "z,"],
    "string_agg(s, '') { order_by: -id }": ["yxy", "", "z,"],
    "string_agg(s, '-') { where: id > 1; order_by: id }": ["x-y", "", "z,"],
    "string_agg_distinct(s, '-') { order_by: desc }": ["y-x", "", "z,"],
    "string_agg_distinct(s) { order_by: asc }": ["x,y", "", "z,"],
    "string_agg_distinct(s, '-') { where: id != 2; order_by: desc }": ["y", "", "z,"],
}


@pytest.mark.slow
@pytest.mark.proves("V24")
def test_string_agg_follows_its_order_by(start: Callable[[str], Builder]) -> None:
    lines: list[str] = []
    for n, call in enumerate(ORDERED):
        lines += "#@ persist", f"source: x{n} is t -> {{ group_by: k; aggregate: a is {call} }}"
    builder = start("\n".join(lines) + "\n")
    for n, (call, expected) in enumerate(ORDERED.items()):
        assert [a for _, a in rows(builder, f"x{n}")] == expected, call
    ids = {s.build_id for s in builder.project.persisted}
    assert len(ids) == len(ORDERED), "the order is part of the meaning"
    ids = {i for s in builder.project.persisted for i in s.malloy_ids}
    assert len(ids) >= len(ORDERED), "also of Malloy's BuildIDs"


@pytest.mark.proves("V24")
def test_unordered_string_agg_is_unchanged_and_an_ordered_one_over_a_fan_out_is_an_error(
    make_project: Callable[..., Path],
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    model = (
        f"{HEAD}#@ persist\nsource: x is t -> {{ group_by: k; aggregate: a is string_agg(s) }}\n"
        "#@ persist\nsource: y is t -> { group_by: u.x; aggregate: a is string_agg(s) { order_by: id } }\n"
    )
    root = make_project({"raw.sql": RAW, "m.malloy": model})
    project = load_project(load_settings(root, environ={}))
    (x,) = (s for s in project.sources if s.name == "x")
    assert x.query is not None
    assert "COLLECT_LIST" in x.query.text
    assert "LISTAGG" not in x.query.text
    (error,) = project.errors
    assert (error.location.path, error.location.line) == ("sources/m.malloy", 7)


@pytest.mark.slow
@pytest.mark.proves("V25")
def test_a_persisted_source_that_extends_an_unpersisted_one_has_a_table(
    start: Callable[[str], Builder],
) -> None:
    """Downstream sources read its table; those of the extended source compute the query."""
    builder = start(
        "source: base is t -> { group_by: k; aggregate: n is count() }\n"
        "#@ persist\nsource: more is base extend { measure: all_n is n.sum() }\n"
        "#@ persist\nsource: again is more extend { dimension: twice is n * 2 }\n"
        "#@ persist\nsource: reads is more -> { aggregate: all_n }\n"
        "#@ persist\nsource: computes is base -> { aggregate: m is n.max() }\n"
    )
    by_name = {s.name: s for s in builder.project.sources}
    assert rows(builder, "more") == [("a", 4), ("b", 1), ("c", 1)]
    assert by_name["reads"].bindings == (by_name["more"].source_id,)
    assert by_name["computes"].bindings == ("t@sources/raw.sql",)
    assert by_name["again"].build_id == by_name["more"].build_id, "the same table"
    assert not by_name["base"].persisted
    assert rows(builder, "reads") == [(6,)]
    assert rows(builder, "computes") == [(4,)]
