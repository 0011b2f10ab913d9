"""A full disk is reported as such, with its directory, whichever component detects it.

The messages of Spark and delta-rs were recorded on a file system of 12 MB.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from persist_assets.cli.application import find_full_disk
from persist_assets.core.errors import BuildError, LedgerError, StorageError
from persist_assets.engine.session import translated
from persist_assets.ledger.connection import Database
from persist_assets.storage.files import reached, unreachable

WRITING = """An error occurred while calling o37.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to \
file:/wh/p-12/uid. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(…)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java)
"""
SHUFFLING = """An error occurred while calling o90.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 1 \
times, most recent failure: Lost task 1.0 in stage 0.0 (TID 1) (executor driver): \
java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\tat org.apache.spark.storage.TimeTrackingOutputStream.write(TimeTrackingOutputStream.java:59)
\tat org.apache.spark.storage.DiskBlockObjectWriter.write(DiskBlockObjectWriter.scala:336)
"""
SPILLING = (
    WRITING + "\tat org.apache.spark.util.collection.unsafe.sort.UnsafeSorterSpillWriter.write"
)
COMMITTING = (
    "Generic LocalFileSystem error: Unable to copy data to file: No space left on device"
    " (os error 28)"
)


@pytest.mark.proves("S18")
@pytest.mark.parametrize(
    ("message", "directory"),
    [
        (WRITING, "/wh/p-12/uid"),
        (SHUFFLING, "/spark (`spark.local.dir`)"),
        (SPILLING, "/spark (`spark.local.dir`)"),
        ("java.io.FileNotFoundException: /x/blockmgr-1/0c/a (No space left on device)", "/x/block"),
    ],
)
def test_a_full_disk_in_spark_is_reported_with_its_directory(
    message: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/spark")
    with pytest.raises(StorageError) as caught, translated("computing `p`"):
        raise RuntimeError(message)
    assert caught.value.message.startswith(f"the disk of {directory}")
    assert caught.value.message.endswith("is full: computing `p` failed")
    assert "free some space" in (caught.value.hint or "")


@pytest.mark.proves("S18")
def test_a_full_disk_during_a_commit_is_reported_with_its_directory(tmp_path: Path) -> None:
    raised = unreachable(f"{tmp_path}/not/yet", OSError(COMMITTING), "cannot commit the table")
    assert raised.message.startswith(f"the disk of {tmp_path} is full: cannot commit the table")
    assert "free some space" in (raised.hint or "")


@pytest.mark.proves("S18")
def test_a_full_device_is_reported_with_its_directory(tmp_path: Path) -> None:
    place = f"{tmp_path}/x"
    os.symlink("/dev/full", place)
    with (
        pytest.raises(StorageError) as caught,
        reached(place) as (system, path),
        system.open_output_stream(path) as stream,
    ):
        stream.write(b"x")
    assert caught.value.message.startswith(f"the disk of {tmp_path} is full: ")


@pytest.mark.proves("S18")
def test_a_full_disk_of_the_ledger_is_reported_with_its_directory(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    with database.engine.connect() as connection:
        connection.execute(sa.text("CREATE TABLE t (x)"))
        connection.execute(sa.text("PRAGMA max_page_count = 3"))
        with pytest.raises(LedgerError) as caught, database._translated():
            connection.execute(sa.text("INSERT INTO t VALUES (zeroblob(100000))"))
    database.close()
    assert caught.value.message.startswith(f"the disk of {tmp_path} is full: the ledger ")
    assert "free some space" in (caught.value.hint or "")


@pytest.mark.proves("S18")
@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("software.amazon.awssdk.services.s3.model.S3Exception: The provided token has expired."
         " (Service: S3, Status Code: 400)", "the credentials have expired"),
        ("org.apache.hadoop.fs.s3a.AWSServiceThrottledException: SlowDown (Status Code: 503)",
         "limits the request rate"),
    ],
)  # fmt: skip
def test_object_store_errors_in_spark_are_distinguished_from_query_errors(
    message: str, hint: str
) -> None:
    with pytest.raises(StorageError) as caught, translated("computing `p`"):
        raise RuntimeError(message)
    assert hint in (caught.value.hint or "")
    with pytest.raises(BuildError), translated("computing `p`"):
        raise RuntimeError("ValueError: the token has expired in row 3")


@pytest.mark.proves("S18")
def test_a_dagster_database_error_is_a_full_disk_if_there_is_no_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    error = sa.exc.OperationalError("SELECT 1", {}, Exception("disk I/O error"))
    assert find_full_disk(error, tmp_path) is None
    without_room = Path("/proc")
    found = find_full_disk(error, without_room)
    assert found is not None and found.message.startswith("the disk of /proc is full: ")
    assert find_full_disk(RuntimeError("a bug"), without_room) is None
    monkeypatch.setenv("DAGSTER_HOME", "/proc")
    assert find_full_disk(error, tmp_path) is not None
