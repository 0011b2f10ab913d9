"""Partition directories of raw tables: their names are converted to values as by CAST."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.core.errors import StorageError
from persist_assets.core.model.sources import RawTable
from persist_assets.storage.raw import find_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

pytestmark = pytest.mark.proves("V42")

NULL = "__HIVE_DEFAULT_PARTITION__"
VALID: dict[str, tuple[str, tuple[str, ...]]] = {
    "tinyint": ("4Y", ("127", " 5", "+3", "-4", NULL)),
    "smallint": ("5S", ("7", "%31", "00300")),
    "int": ("5", ("007", "+12", " 1", NULL)),
    "bigint": ("1L", ("9223372036854775807", "1", " 2")),
    "decimal(10,2)": ("1.2BD", ("1.5", "1", "2.50", "1.567", NULL)),
    "decimal(30,2)": ("1.2BD", ("1.5", "12345678901234567890.1")),
    "boolean": ("false", ("1", "no", "TRUE", "false")),
    "date": ("DATE '2026-01-05'", ("2026-1-1", "2026-01-31", "2026%2D02-01")),
    "timestamp": (
        "TIMESTAMP '2026-01-05 00:00:00'",
        ("2026-01-31 10%3A00%3A00", "2026-1-1", "2026-01-09T10"),
    ),
    "timestamp_ntz": (
        "TIMESTAMP_NTZ '2026-01-05 00:00:00'",
        ("2026-01-31 10%3A00%3A00", "2026-1-1"),
    ),
    "double": ("2D", ("1.5", "nan", "1e3")),
    "float": ("2F", ("1.1", "2.5d")),
    "binary": ("X'61'", ("a%3Ab", "a")),
    "string": ("'a'", ("a%20b", "a%2Fb", "007", "100%", NULL)),
    "char(3)": ("'a'", ("a", "abc", "b")),
}
"""By type: a bound, and the directory names of one table."""

WRONG = {
    "tinyint": ("300", "-129", "x"),
    "int": ("2147483648", "1.5"),
    "decimal(4,2)": ("123.4",),
    "date": ("2026-02-30", "x"),
    "timestamp": ("2026-13-01", "10%3A30", "x"),
    "boolean": ("2",),
}


def put(table: Path, text: str, n: int = 0) -> Path:
    file = table / f"x={text}" / "a.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([n], pa.int32())}), file)
    return file


def name_of(kind: str) -> str:
    return "t_" + "".join(c if c.isalnum() else "_" for c in kind)


def declared(kind: str, bound: str) -> str:
    name = name_of(kind)
    return f"""
create table {name} (id int, x {kind}) using parquet location '{name}';
create view {name}_all as select id, x from {name};
create view {name}_some as select id, x from {name} where x > {bound};
create view {name}_none as select id from {name} where x is null;
"""


@pytest.mark.slow
def test_partition_values_equal_those_of_a_table_in_sparks_catalog(
    enter: Callable[..., Builder], make_project: Callable[..., Path], spark: Any
) -> None:
    root = make_project({"m.sql": "".join(declared(k, b) for k, (b, _) in VALID.items())})
    for kind, (_, texts) in VALID.items():
        for n, text in enumerate(texts):
            put(root / name_of(kind), text, n)
    builder = enter(root)
    by_name = {s.name: s for s in builder.project.sources}

    def rows(frame: Any) -> list[Any]:
        return sorted(repr(tuple(row)) for row in frame.collect())  # NaN is not equal to NaN

    for kind, (bound, _) in VALID.items():
        name = name_of(kind)
        place = (root / name).as_uri()
        spark.sql(
            f"create table {name} (id int, x {kind}) using parquet partitioned by (x)"
            f" location '{place}'"
        )
        try:
            spark.sql(f"msck repair table {name}")
            for view, query in (
                ("all", f"select id, x from {name}"),
                ("some", f"select id, x from {name} where x > {bound}"),
                ("none", f"select id from {name} where x is null"),
            ):
                expected = rows(spark.sql(query))
                assert rows(builder.read(by_name[f"{name}_{view}"])) == expected, (kind, view)
        finally:
            spark.sql(f"drop table {name}")


@pytest.mark.slow
def test_an_invalid_partition_value_is_an_error_with_its_directory(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": "".join(declared(kind, "null") for kind in WRONG)})
    for kind, texts in WRONG.items():
        name = name_of(kind)
        for text in texts:
            file = put(root / name, text)
            builder = enter(root)
            (source,) = (s for s in builder.project.sources if s.name == f"{name}_all")
            with pytest.raises(StorageError) as raised:
                builder.read(source)
            assert (
                f"x={text}, which is no value of the declared type {kind}" in raised.value.message
            )
            file.unlink()
            file.parent.rmdir()


@pytest.mark.slow
def test_undeclared_partition_columns_have_the_types_that_spark_infers(
    tmp_path: Path, spark: Any
) -> None:
    for n, texts in enumerate(
        (
            ("1.5", "10"),
            ("007", "+5", NULL),
            ("10000000000", "1"),
            ("2026-01-01",),
            ("2026-01-01", "2026-02-30"),
            ("2026-01-01", "2026-01-01 10%3A00%3A00"),
            ("2026-01-01 10%3A00%3A00.5",),
            ("2026-1-1",),
            ("true",),
            ("1", "a"),
            ("1", "2026-01-01"),
            ("10000000000", "1.5"),
            ("10%3A30",),
        )
    ):
        table = tmp_path / f"t{n}"
        for text in texts:
            put(table, text)
        types = dict(spark.read.parquet(str(table)).dtypes)
        columns = find_columns(RawTable("parquet", str(table)), str(table))
        assert {c.name: c.type for c in columns} == types, texts
