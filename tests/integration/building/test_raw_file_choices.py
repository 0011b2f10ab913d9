"""Raw tables read the same files as Spark, and NULL where a file lacks a column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

TABLES = {
    "braces": "csv options (header true, pathGlobFilter '{a,b}.csv')",
    "others": "csv options (header true, pathGlobFilter '[^c].csv')",
    "recursive": "csv options (header true, recursiveFileLookup true, mode 'DROPMALFORMED')",
    "wide": "csv options (header true, sep '||')",
    "mixed": "parquet",
}
"""By name, the declaration of a table with the columns `id` and `x`."""

SOURCES = (
    "".join(
        f"create table {name} (id int, x int) using {using} location '{name}';\n"
        f"create view all_{name} as select * from {name};\n"
        for name, using in TABLES.items()
    )
    + """
--@ persist refresh=incremental
create view grown as select id, x from mixed;
"""
)


def put(file: Path, **columns: list[int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: pa.array(values, pa.int32()) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), file)


@pytest.mark.slow
@pytest.mark.proves("V43", "V44")
def test_raw_tables_read_the_same_files_and_rows_as_tables_of_sparks_catalog(
    enter: Callable[..., Builder], make_project: Callable[..., Path], spark: Any
) -> None:
    root = make_project({"m.sql": SOURCES})
    for name in ("braces", "others"):
        (root / name).mkdir()
        for n, file in enumerate("abc"):
            (root / name / f"{file}.csv").write_text(f"id,x\n{n},{n}\n")
    (root / "recursive" / "x=1").mkdir(parents=True)
    (root / "recursive" / "x=1" / "a.csv").write_text("id,x\n1,7\n")
    (root / "wide").mkdir()
    (root / "wide" / "a.csv").write_text('id||x||"y||z"\n1||2||"3||4"\n')
    put(root / "mixed" / "a.parquet", ID=[1])
    put(root / "mixed" / "b.parquet", x=[5], id=[2])

    def rows(frame: Any) -> list[Any]:
        return sorted(map(tuple, frame.collect()), key=repr)

    def built() -> list[Any]:
        builder = enter(root)
        (source,) = builder.project.persisted
        builder.build(source)
        return rows(builder.read(source))

    builder = enter(root)
    by_name = {s.name: s for s in builder.project.sources}
    assert rows(builder.read(by_name["all_wide"])) == [(1, 2)]
    for name, using in TABLES.items():
        if name == "wide":
            continue  # Spark matches columns by position, and has one more
        place = (root / name).as_uri()
        spark.sql(f"create table {name} (id int, x int) using {using} location '{place}'")
        try:
            expected = rows(spark.table(name))
        finally:
            spark.sql(f"drop table {name}")
        assert rows(builder.read(by_name[f"all_{name}"])) == expected != [], name
    # A new file that lacks a column is read like the others.
    assert built() == [(1, None), (2, 5)]
    put(root / "mixed" / "c.parquet", id=[3])
    assert built() == [(1, None), (2, 5), (3, None)]
    # If no file has a column, its name may be misspelled.
    (root / "mixed" / "b.parquet").unlink()
    with pytest.raises(StorageError, match="the data of `mixed` has no column `x`"):
        built()
