"""Bytes read from external tables: what Spark reads of files, not the sizes of the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from test_directories import PARQUET, put
from test_ingestion import build, sync_events

from persist_assets.engine.activity import counted_input
from persist_assets.external.status import find_holding

TABLE = """
create external table t (id bigint, wide string) with ('connectors' = '[{"transport": {
  "name": "delta_table_input", "config": {"uri": "lake"}}}]');
create materialized view v as select id from t where id > 1;
"""


@pytest.mark.slow
@pytest.mark.proves("V32")
def test_bytes_read_are_measured_by_spark(enter: Callable[..., Any], make_project: Any) -> None:
    root = make_project({"m.sql": TABLE})

    def append(*ids: int) -> None:
        wide = [os.urandom(250_000).hex() for _ in ids]
        table = pa.table({"id": pa.array(ids, pa.int64()), "wide": wide})
        write_deltalake(str(root / "lake"), table, mode="append")

    append(1, 2, 3)
    builder = enter(root)
    source = builder.project.by_key["m", "t"]
    before = find_holding(builder.observer.ingestion, source)
    assert before.held is None
    assert before.read is not None
    assert before.read.bytes > 1_000_000  # before a read, only the sizes of files are known
    build(builder)
    begun = find_holding(builder.observer.ingestion, source)
    assert begun.held is not None
    assert begun.held.rows_read == 2
    assert 0 < (begun.held.bytes_read or 0) < 200_000
    assert sync_events(builder)[-1]["read_bytes"] == begun.held.bytes_read
    assert begun.capabilities is not None
    assert begun.capabilities.columns == "only needed columns of files are read"
    # An incremental sync is counted on its own.
    append(4)
    build(builder := enter(root))
    followed = builder.observer.ingestion.find(source)
    assert (followed.rows_read, 0 < followed.bytes_read < 200_000) == (1, True)
    # A sync that reads nothing does not change the numbers of the last one that did.
    build(builder := enter(root))
    assert builder.observer.ingestion.find(source).rows_read == 1


@pytest.mark.slow
@pytest.mark.proves("V32")
def test_comparing_rows_counts_the_sizes_of_whole_files(
    enter: Callable[..., Any], make_project: Any
) -> None:
    view = "create materialized view v as select id from t;"
    root = make_project({"m.sql": PARQUET + view})
    file = put(root, "day=2026-01-01/Kind=x/a.parquet", 1, 2)
    build(enter(root))
    file = put(root, "day=2026-01-01/Kind=x/a.parquet", 2, 3)
    build(builder := enter(root))
    compared = builder.observer.ingestion.find(builder.project.by_key["m", "t"])
    assert (compared.rows_read, compared.bytes_read) == (2, file.stat().st_size)


@pytest.mark.slow
@pytest.mark.proves("V32")
def test_bytes_read_are_unknown_if_spark_may_have_discarded_jobs(
    spark: Any, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    frame = spark.read.schema("id bigint").parquet(str(tmp_path))
    conf = spark.sparkContext._jsc.sc().conf()
    with counted_input(spark) as n_bytes:
        frame.collect()
        assert (n_bytes() or 0) > 0
        conf.set("spark.ui.retainedJobs", "1")
        try:
            assert n_bytes() is None
        finally:
            conf.remove("spark.ui.retainedJobs")
