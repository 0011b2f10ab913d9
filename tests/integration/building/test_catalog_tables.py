"""Raw tables in the catalog of the Spark session: each run reads their current rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import PersistError
from persist_assets.core.settings.load import load_settings

pytestmark = pytest.mark.proves("X9")
SOURCES = """
CREATE TABLE t (a INT) USING catalog OPTIONS (table 'default.persist_orders');
--@ persist
CREATE VIEW p AS SELECT a + 1 AS b FROM t;
"""


def built(builder: Builder) -> tuple[str, list[int]]:
    (source,) = builder.project.persisted
    action = builder.build(source).action
    return action, sorted(row.b for row in builder.read(source).collect())


@pytest.mark.slow
def test_each_run_reads_the_current_rows_of_a_catalog_table(
    make_project: Callable[..., Path], enter: Callable[..., Builder], spark: Any, tmp_path: Path
) -> None:
    root = make_project({"m.sql": SOURCES})
    with pytest.raises(PersistError, match="persist_orders"):
        built(enter(root))
    place = tmp_path / "orders"
    spark.sql(f"CREATE TABLE default.persist_orders (a BIGINT) USING parquet LOCATION '{place}'")
    try:
        spark.sql("INSERT INTO default.persist_orders VALUES (1)")
        assert built(enter(root)) == ("built", [2])
        # Another program writes a file that the session has not listed.
        pq.write_table(pa.table({"a": pa.array([2], pa.int64())}), place / "more.parquet")
        assert built(enter(root)) == ("built", [2, 3])
    finally:
        spark.sql("DROP TABLE default.persist_orders")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("OPTIONS (table 'orders')", "catalog needs the name of a table, with its schema"),
        ("OPTIONS (tabel 'a.b')", "catalog has no option `tabel`"),
        ("OPTIONS (table 'a.b') LOCATION 'x'", "`t` is a table of a catalog, which knows its"),
        ("", "catalog needs the name of a table, with its schema"),
    ],
)
def test_invalid_declarations_of_catalog_tables_are_rejected(
    make_project: Callable[..., Path], declared: str, message: str
) -> None:
    root = make_project({"m.sql": f"CREATE TABLE t (a INT) USING catalog {declared};\n"})
    (problem,) = load_project(load_settings(root)).problems
    assert message in problem.message
