"""External tables with unusual file names, and fields of structs in backticks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest
from foreign import applied, bag, by_delta, delta_connector
from icebergs import Written
from test_iceberg import connector as iceberg_connector
from test_ingestion import build

from persist_assets.building.builder import Builder
from persist_assets.core.errors import BuildError
from persist_assets.engine.session import translated
from persist_assets.external.connectors.reading import FileNames

NAMES = (
    "a b/part 1.parquet",
    "c/part 1.parquet",
    "c/50%.parquet",
    "c%20d/x%41+y.parquet",
    "é/[z]{1}.parquet",
    "part#1?.parquet",
    "c/deep/part 1.parquet",
)


def _renamed(root: Path, names: tuple[str, ...] = NAMES) -> None:
    """Rename the files of a Delta table, also in its log, which percent-encodes the names."""
    logs = sorted((root / "_delta_log").glob("*.json"))
    texts = {log: log.read_text() for log in logs}
    paths = [
        a["add"]["path"]
        for t in texts.values()
        for a in map(json.loads, t.splitlines())
        if "add" in a
    ]
    for path, name in zip(paths, names, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / path, root / name)
        quoted = quote(name, safe="/+")
        texts = {
            log: text.replace(json.dumps(path), json.dumps(quoted)) for log, text in texts.items()
        }
    for log, text in texts.items():
        log.write_text(text)
        log.with_name(f".{log.name}.crc").unlink(missing_ok=True)


@pytest.mark.proves("V11")
def test_delta_tables_with_unusual_file_names_are_read(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "a lake"
    for n in range(len(NAMES)):
        rows = pa.table({"id": [2 * n, 2 * n + 1], "p": [f"p{n}"] * 2})
        deltalake.write_deltalake(root, rows, mode="append", partition_by=["p"])
    _renamed(root)
    source = delta_connector(spark, root)
    version = source.pin()
    expected = by_delta(root, len(NAMES) - 1, ["id", "p"])
    assert expected.total() == 2 * len(NAMES)
    assert bag(source.snapshot(None, ["id", "p"], version).collect()) == expected
    some = bag(source.snapshot("p IN ('p3', 'p5') AND id <> 6", ["id", "p"], version).collect())
    assert some == {(7, "p3"): 1, (10, "p5"): 1, (11, "p5"): 1}
    deltalake.DeltaTable(root).delete("id IN (0, 3, 7)")
    changes = source.changes(version, delta_connector(spark, root).pin(), None, ["id", "p"])
    assert changes.frame is not None
    after = applied(expected, changes.frame.collect())
    assert after == by_delta(root, len(NAMES), ["id", "p"])


@pytest.mark.proves("V11")
def test_iceberg_tables_with_unusual_names_of_data_files_are_read(
    spark: Any, tmp_path: Path
) -> None:
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.transforms import IdentityTransform

    written = Written(tmp_path / "a lake")
    with written.table.update_spec() as changing:
        changing.add_field("c", IdentityTransform(), "c")
    written.append((1, "a b%/c", 1.0), (2, "é+", 2.0), (3, "a b%/c", 3.0), (4, None, 4.0))
    # Files with equal names, and with names that have to be percent-encoded.
    import pyarrow.parquet as pq

    schema = written.table.schema().as_arrow()
    names = [name for name in NAMES if "#" not in name]  # pyiceberg cannot open it
    with (
        written.table.transaction() as changing,
        changing.update_snapshot().fast_append() as adding,
    ):
        for n, name in enumerate(names, 10):
            place = written.root / "data" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            rows = pa.table({"id": [n], "c": ["k"], "x": [None]}, schema=schema)
            pq.write_table(rows, place)
            adding.append_data_file(
                parquet_file_to_data_file(
                    written.table.io, changing.table_metadata, f"file://{place}"
                )
            )
    written.hint()
    source = iceberg_connector(spark, written.root)
    rows = source.snapshot(None, ["id", "c"], source.pin()).collect()
    expected = {(1, "a b%/c"): 1, (2, "é+"): 1, (3, "a b%/c"): 1, (4, None): 1}
    assert bag(rows) == expected | {(n, "k"): 1 for n in range(10, 10 + len(names))}


@pytest.mark.proves("V11")
def test_a_file_that_spark_reads_under_another_name_is_an_error(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "x y.parquet"
    spark.range(1).coalesce(1).write.parquet(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.parquet")
    shutil.copy(file, place)
    names = FileNames([str(tmp_path / "x+y.parquet")])
    other = FileNames([str(tmp_path / "x z.parquet")])
    assert names[str(tmp_path / "x+y.parquet")] == "x+y.parquet"  # it needs no encoding
    frame = spark.read.parquet(str(place)).selectExpr("*", other.text)
    with pytest.raises(BuildError, match="under another name"), translated("reading"):
        other.checked(frame, "the table").collect()


@pytest.mark.slow
@pytest.mark.proves("V11")
def test_fields_of_structs_can_be_quoted_with_backticks(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    kind = pa.struct([("a b", pa.int64()), ("c`d", pa.string()), ("e:f", pa.list_(pa.struct([("g h", pa.int32())])))])  # fmt: skip
    rows = [
        {"id": n, "s": {"a b": n, "c`d": f"t{n}", "e:f": [{"g h": n}, {"g h": 7}]}}
        for n in range(4)
    ]
    text = """
    create external table t (
      id bigint, s struct<`a b`: bigint, `c``d`: string, `e:f`: array<struct<`g h`: int>>>
    ) with ('connectors' = '[{"transport": {"name": "delta_table_input", "config": {"uri": "lake"}}}]');
    create materialized view o as
    select s.`a b` as ab, s.`c``d` as cd, s.`e:f`[0].`g h` as gh from t where s.`a b` > 1 and id < 3;
    """
    root = make_project({"m.sql": text})
    schema = pa.schema([("id", pa.int64()), ("s", kind)])
    deltalake.write_deltalake(root / "lake", pa.Table.from_pylist(rows, schema))
    builder = enter(root)
    assert build(builder) == {"o": "build"}
    (source,) = builder.project.persisted
    assert [tuple(row) for row in builder.read(source).collect()] == [(2, "t2", 2)]
    deltalake.DeltaTable(root / "lake").delete("id = 2")
    build(builder := enter(root))
    assert builder.read(source).collect() == []
