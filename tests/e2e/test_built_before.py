"""A project that an earlier release built needs no rebuild and can be built further.

`tests/data/built_before.tar.gz` contains sources in three languages, a raw Delta table, the
ledger, the manifest and the warehouse, written by the release at revision 66aa1b1.
"""

from __future__ import annotations

import tarfile
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from commands import document, persist
from conftest import ROOT
from deltalake import write_deltalake

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(ROOT / "tests" / "data" / "built_before.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.slow
@pytest.mark.proves("H3")
def test_a_project_of_an_earlier_release_is_up_to_date_and_can_be_built(root: Path) -> None:
    plan = document("plan", cwd=root)
    assert [s["source_id"] for s in plan["steps"] if s["action"] != "reuse"] == []
    rows = {
        "day": pa.array([date(2024, 1, 2)], pa.date32()),
        "ts": pa.array([datetime(2024, 1, 2, 23, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "k": pa.array([1], pa.int32()),
        "x": pa.array([100.0]),
    }
    write_deltalake(str(root / "raw" / "t"), pa.table(rows), mode="append")
    steps = {s["source_id"]: s for s in document("plan", cwd=root)["steps"]}
    assert steps["by_day@sources/a.sql"]["partitions"] == [["2024-01-02", "2024-01-02"]]
    for command in ("build",), ("promote", "dev", "prod"), ("gc",), ("doctor",):
        done = persist(*command, cwd=root)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    query = "SELECT count(*) AS n, sum(xx) AS xx FROM grown"
    rows = document("query", query, "--env", "prod", cwd=root)["rows"]
    assert rows == [[13, 332.0]]
