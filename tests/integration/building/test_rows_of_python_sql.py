"""Functions that only return the result of a query: compiled to SQL, they have the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.compiler.frontends import python
from persist_assets.core import digests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

RAW = (
    "CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';\n"
    "CREATE TABLE u (a BIGINT, b STRING) USING parquet LOCATION 'raw/u';\n"
)
HEAD = """
from persist_assets import table
from pyspark.sql import SparkSession
"""
QUERIES = {
    "qualified": "SELECT {t}.a, {u}.b AS d FROM {t} LEFT JOIN {u} ON {t}.a = {u}.a",
    "aliases": "SELECT x.a, t.b FROM {t} AS x JOIN {u} AS t ON x.a = t.a WHERE t.b <> {text}",
    "crossed": "SELECT t.a, u.b FROM {u} AS t JOIN {t} AS u ON t.a = u.a",
    "hidden": "WITH u AS (SELECT a + 1 AS a FROM {u}), t AS (SELECT a FROM {t}) SELECT * FROM t JOIN u USING (a)",
    "outer": "SELECT x.a FROM {t} AS x WHERE EXISTS (SELECT 1 FROM {u} AS t WHERE t.a = x.a AND t.b > 'x')",
    "same": "SELECT a, b FROM {t} EXCEPT SELECT a, b FROM {u} WHERE a > {low}",
    "braces": "SELECT concat('{{', {t}.b, '}}') AS x, {half} AS y, {yes} AS z FROM {t} CROSS JOIN {u}",
}
CALL = "t=t, u=u, text='x', low=-5, half=0.5, yes=True"


def write(root: Path, name: str, rows: list[tuple[int | None, str | None]]) -> None:
    path = root / "raw" / name / f"part-{len(rows)}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"a": pa.array([r[0] for r in rows], pa.int64()), "b": pa.array([r[1] for r in rows])}
    pq.write_table(pa.table(columns), path)


def text_of(name: str, sql: str, more: str = "") -> str:
    return f'@table\ndef {name}(t, u, spark: SparkSession{more}):\n    return spark.sql("""{sql}""", {CALL})\n'


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def rows(builder: Builder, name: str) -> list[Any]:
    return sorted(map(repr, builder.read(named(builder, name)).collect()))


@pytest.mark.slow
@pytest.mark.proves("V20")
def test_a_function_compiled_to_sql_has_the_same_rows_as_a_call(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    """Each function has a twin with one more parameter, which is called instead of compiled."""
    parts = [HEAD]
    for name, sql in QUERIES.items():
        parts += text_of(f"seen_{name}", sql), text_of(f"called_{name}", sql, ", more=1")
    root = make_project({"raw.sql": RAW, "d.py": "\n".join(parts)})
    write(root, "t", [(1, "x"), (2, "y"), (3, None), (None, "z")])
    write(root, "u", [(1, "x"), (3, "z"), (3, "w")])
    builder = enter(root)
    for name in QUERIES:
        seen, called = named(builder, f"seen_{name}"), named(builder, f"called_{name}")
        assert seen.function is None, name
        assert called.function is not None, name
        builder.build(seen)
        builder.build(called)
        assert rows(builder, seen.name) == rows(builder, called.name), name
        assert rows(builder, seen.name), name


@pytest.mark.slow
@pytest.mark.proves("V20")
def test_a_function_compiled_to_sql_is_built_incrementally_and_ignores_layout(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    text = HEAD + (
        "@table(refresh='incremental')\ndef f(t, spark: SparkSession):\n"
        '    return spark.sql("SELECT b, sum(a) AS n FROM {t} GROUP BY b", t=t)\n'
    )
    root = make_project({"raw.sql": RAW, "d.py": text})
    write(root, "t", [(1, "x"), (2, "y")])
    write(root, "u", [])
    assert enter(root).build(named(enter(root), "f")).action == "built"
    laid_out = text.replace('"SELECT b,', '"""\n      SELECT b, -- the key\n').replace(
        'b",', 'b""",'
    )
    assert laid_out != text
    (root / "sources" / "d.py").write_text(laid_out)
    builder = enter(root)
    assert builder.build(named(builder, "f")).action == "reused"
    write(root, "t", [(5, "x"), (7, "z"), (8, "z")])
    builder = enter(root)
    (step,) = builder.plan([named(builder, "f").source_id]).steps
    assert step.maintenance != "whole", "a function would be computed as a whole"
    assert builder.build(named(builder, "f")).action == "built"
    assert rows(builder, "f") == ["Row(b='x', n=6)", "Row(b='y', n=2)", "Row(b='z', n=15)"]


@pytest.mark.proves("V20", "X1")
def test_a_table_that_an_earlier_release_computed_by_a_call_is_reused(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = HEAD + text_of("f", QUERIES["qualified"])
    root = make_project({"raw.sql": RAW, "d.py": text})
    write(root, "t", [(1, "x"), (2, "y")])
    write(root, "u", [(1, "z")])
    with monkeypatch.context() as former:  # the previous release
        former.setattr(python, "see_through", lambda declaration, *_: declaration)
        former.setattr(digests, "VERSION", f"{digests.VERSION}'")
        builder = enter(root)
        assert named(builder, "f").function is not None
        assert builder.build(named(builder, "f")).action == "built"
        before = named(builder, "f").build_id
    (root / "sources" / "d.py").write_text(f"# another comment\n{text}")
    builder = enter(root)
    assert named(builder, "f").function is None
    assert named(builder, "f").build_id != before
    (step,) = builder.plan([named(builder, "f").source_id]).steps
    assert step.action == "reuse", step.reasons
    assert builder.build(named(builder, "f")).action == "reused"
    (root / "sources" / "d.py").write_text(text.replace("LEFT JOIN", "JOIN"))
    builder = enter(root)
    assert builder.build(named(builder, "f")).action == "built"
    assert rows(builder, "f") == ["Row(a=1, d='z')"]
