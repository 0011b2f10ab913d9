"""A warehouse that Spark and its client do not share fails a build before it computes anything.

Spark's processes have mounts of their own, so a path is another directory for them, as it would be
on another machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sparks import apart, cluster, connect_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.proves("X8")]

ALL = """
"spark.ui.enabled" = "false"
"spark.driver.host" = "127.0.0.1"
"spark.scheduler.minRegisteredResourcesRatio" = "1.0"
"spark.scheduler.maxRegisteredResourcesWaitingTime" = "120s"
"""
"""Settings with which Spark waits for all workers."""
SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS b FROM t;
--@ persist
CREATE VIEW q AS SELECT sum(b) AS s FROM p;
"""


def make(root: Path, spark: str, warehouse: str) -> Path:
    (root / "sources").mkdir(parents=True)
    (root / "raw" / "t").mkdir(parents=True)
    (root / "sources" / "m.sql").write_text(SOURCES)
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), root / "raw" / "t" / "p.parquet")
    (root / "persist.toml").write_text(f'warehouse = "{warehouse}"\n[spark]\n{spark}')
    return root


def persist(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "DAGSTER_"))}
    return subprocess.run(
        [sys.executable, "-m", "persist_assets.cli", "--project", str(root), *command],
        env=clean,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=180,
    )


def failed(root: Path) -> str:
    """Run a build that must fail, and return its output."""
    ended = persist(root, "build")
    assert ended.returncode != 0, ended.stderr
    return " ".join((ended.stdout + ended.stderr).split())


def built(root: Path) -> list[Any]:
    ended = persist(root, "build", "--json")
    assert ended.returncode == 0, ended.stderr
    answer = persist(root, "query", "SELECT s FROM q", "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["rows"]


def hidden(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a warehouse, and a command prefix that mounts an empty directory over it for Spark."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    return warehouse, apart(f"mount -t tmpfs none {warehouse}")


def test_a_build_fails_if_a_spark_connect_server_does_not_see_the_warehouse(tmp_path: Path) -> None:
    warehouse, elsewhere = hidden(tmp_path)
    with connect_server(tmp_path / "server", before=elsewhere) as address:
        remote = f'"spark.remote" = "{address}"\n'
        message = failed(make(tmp_path / "project", remote, str(warehouse)))
        assert (
            f"Spark at {address} does not see the warehouse {warehouse} of this process" in message
        )
        assert "a bucket (warehouse = " in message
        assert not any(warehouse.iterdir())
        assert built(make(tmp_path / "one", remote, str(tmp_path / "both"))) == [[5]]
        assert not [p for p in (tmp_path / "both").iterdir() if "probe" in p.name]


def test_a_build_fails_if_the_server_can_only_read_the_warehouse(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    read_only = f"mount --bind {warehouse} {warehouse} && mount -o remount,ro,bind {warehouse}"
    with connect_server(tmp_path / "server", before=apart(read_only)) as address:
        message = failed(
            make(tmp_path / "project", f'"spark.remote" = "{address}"\n', str(warehouse))
        )
    assert f"Spark at {address} cannot write to the warehouse {warehouse}: " in message
    assert not any(warehouse.iterdir())


def test_a_build_fails_if_executors_do_not_see_the_warehouse(tmp_path: Path) -> None:
    warehouse, elsewhere = hidden(tmp_path)
    with cluster(tmp_path / "cluster", [elsewhere]) as url:
        master = f'"spark.master" = "{url}"\n{ALL}'
        message = failed(make(tmp_path / "project", master, str(warehouse)))
        assert f"Spark at {url} does not see the warehouse {warehouse} of this process" in message
        assert not any(warehouse.iterdir())
        assert built(make(tmp_path / "one", master, str(tmp_path / "both"))) == [[5]]


def test_a_build_fails_if_one_of_two_workers_does_not_see_the_warehouse(tmp_path: Path) -> None:
    warehouse, elsewhere = hidden(tmp_path)
    with cluster(tmp_path / "cluster", [(), elsewhere]) as url:
        message = failed(
            make(tmp_path / "project", f'"spark.master" = "{url}"\n{ALL}', str(warehouse))
        )
    assert str(warehouse) in message
    assert "does not see the warehouse" in message or "of 64 rows" in message
    assert not any(warehouse.iterdir())
