"""Spark's jobs are attributed to a build, and are cancelled when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import wait_for

from persist_assets.core.errors import SettingsError
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session

if TYPE_CHECKING:
    from persist_assets.building.builder import Builder

RAW = "CREATE TABLE t (a BIGINT, day DATE) USING parquet LOCATION 'raw/t';\n"
# Sleeps in each task, so the job lasts longer than any test.
SLOW = "java_method('java.util.concurrent.locks.LockSupport', 'parkNanos', 600000000000L) AS slept"
DAILY = '--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"\n'
BY_DAY = "CREATE VIEW by_day AS SELECT day, count(*) AS n FROM t GROUP BY day;\n"
AND_ONE = "--@ persist\nCREATE VIEW total AS SELECT count(*) AS n FROM t;\n"
ENDLESS = f"--@ persist\nCREATE VIEW endless AS SELECT a, {SLOW} FROM t;\n"


def write(root: Path) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    days = pa.array(["2024-01-01", "2024-01-02", "2024-01-03"]).cast(pa.date32())
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int64()), "day": days}), path)


def source_of(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


@pytest.mark.slow
@pytest.mark.proves("U3")
def test_jobs_have_the_group_the_description_and_the_tags_of_their_build(
    spark: Any, make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": RAW + DAILY + BY_DAY + AND_ONE})
    write(root)
    builder = enter(root)
    built: dict[str, Any] = {}

    def build(name: str) -> None:
        built[name] = builder.build(source_of(builder, name))

    threads = [threading.Thread(target=build, args=(name,)) for name in ("by_day", "total")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()
    for name, partitions in (("by_day", " 2024-01-01...2024-01-03 (3)"), ("total", "")):
        record = built[name]
        group = f"persist-{record.build_uid}"
        jobs = [store.job(n) for n in context.statusTracker().getJobIdsForGroup(group)]
        assert jobs
        for job in jobs:
            assert job.description().get().startswith(f"m/{name}{partitions} in dev (build ")
            tags = str(job.jobTags())
            assert f"persist.source=m/{name}" in tags
            assert f"persist.build_id={record.build_id}" in tags
            assert "persist.environment=dev" in tags
    assert context.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.slow
@pytest.mark.proves("U3")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, dg.DagsterExecutionInterruptedError])
def test_an_interrupted_build_cancels_its_jobs(
    spark: Any,
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    interrupt: type[BaseException],
) -> None:
    root = make_project({"m.sql": RAW + ENDLESS + AND_ONE})
    write(root)
    builder = enter(root)
    builder.build(source_of(builder, "total"))  # the session has started
    context = spark.sparkContext
    tracker = context.statusTracker()
    other, errors = f"not of the build, {interrupt.__name__}", list[str]()

    def compute_another() -> None:
        context.setJobGroup(other, "another job", interruptOnCancel=True)
        try:
            spark.range(1).selectExpr(SLOW).collect()
        except Exception as error:
            errors.append(str(error))

    def send() -> None:
        wait_for(lambda: len(tracker.getActiveStageIds()) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    def handle(*_: object) -> None:
        raise interrupt

    # As in a run of Dagster: its handler raises, and does not notify Spark.
    previous = signal.signal(signal.SIGINT, handle)
    threads = [threading.Thread(target=act) for act in (compute_another, send)]
    for thread in threads:
        thread.start()
    try:
        with pytest.raises(interrupt):
            builder.build(source_of(builder, "endless"))
    finally:
        threads[1].join()
        signal.signal(signal.SIGINT, previous)
    (job,) = tracker.getJobIdsForGroup(other)
    wait_for(lambda: [*tracker.getActiveJobsIds()] == [job], seconds=30)
    context.cancelJobGroup(other)
    threads[0].join()
    (error,) = errors
    assert f"cancelled job group {other}" in error
    builds = builder.ledger.manifests.fetch("dev")
    assert source_of(builder, "endless").build_id not in builds


# A process has only one kind of Spark, so this needs a separate process.
IN_A_SERVER = f"""
import sys, threading
from pathlib import Path
from conftest import wait_for
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.attribution import Attribution, attributed
from persist_assets.engine.server import list_jobs, server_directory
from persist_assets.engine.session import create_session

settings = load_settings(Path(sys.argv[1]))
session = create_session(settings)
failed, tags = [], []

def compute():
    for tag in tags:  # they belong to a thread
        session.addTag(tag)
    try:
        session.range(1).selectExpr({SLOW!r}).collect()
    except Exception as error:
        failed.append(error)

thread = threading.Thread(target=compute)
try:
    with attributed(session, Attribution("m/total", "", "uid", "id", "run", "dev")):
        tags += session.getTags()
        assert {{*tags}} >= {{"persist.source=m/total", "persist.run=run"}}, tags
        thread.start()
        wait_for(lambda: list_jobs(server_directory(settings)))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
thread.join(60)
assert not thread.is_alive()
assert "OPERATION_CANCELED" in str(failed[0])
assert not session.getTags()
"""


@pytest.mark.slow
@pytest.mark.proves("U3")
def test_jobs_on_a_shared_server_have_tags_and_are_cancelled(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": RAW + AND_ONE})
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SERVER, str(root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("spark")
def test_a_process_with_its_own_spark_rejects_a_server(make_project: Callable[..., Path]) -> None:
    root = make_project({})
    with (root / "persist.toml").open("a") as file:
        file.write('"spark.remote" = "sc://127.0.0.1:1"\n')
    with pytest.raises(SettingsError, match="already runs its own Spark"):
        create_session(load_settings(root))
