"""Warehouses and raw data in object stores: a local S3-compatible server, and `file://`.

Spark needs a jar for `s3a://` that its own distribution lacks. So Spark is tested with `file://`,
and everything else on S3: commits, listings, pins, deletion, plans, invalid input.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from buckets import KEY, SECRET, STRUCT, Server, parquet, put, serving, stage
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from persist_assets.building.builder import Builder
from persist_assets.cli import app
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import ConflictError, GoneError, SettingsError, StorageError
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.model.sources import RawTable
from persist_assets.core.object_stores import Store, spark_pattern, spark_settings, spark_uri
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.external.connectors.postgres_rows import write_batches
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.environments import promote
from persist_assets.storage.arrow_rows import read_rows
from persist_assets.storage.delta_commit import Staged, commit, find_staged, with_copies
from persist_assets.storage.delta_deletions import delete_builds, find_written
from persist_assets.storage.delta_tables import (
    LOG,
    find_table,
    has_snapshot,
    is_whole,
    live_files,
    read_sample,
    read_version,
)
from persist_assets.storage.file_columns import missing_columns
from persist_assets.storage.files import (
    delete_directory,
    delta_place,
    know_stores,
    list_files,
    unreachable,
)
from persist_assets.storage.published_tables import (
    PUBLISHER,
    Description,
    describe,
    open_published,
    publish_version,
    tidy_published,
)
from persist_assets.storage.raw import find_columns, pin_raw
from persist_assets.storage.types import delta_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("s3_server.py") as url:
        yield Server(url)


@pytest.fixture
def bucket(server: Server) -> str:
    return server.new_bucket()


def snapshot(uid: str, version: int, rows: int, size: int = 1) -> Snapshot:
    now = datetime.now(UTC)
    return Snapshot(uid, "s", "b", "t", version, (), "c", rows, size, now)


# ------------------------------------------------------------------------------- tables on S3


@pytest.mark.slow
def test_a_table_in_a_bucket_has_versions_like_any_other(bucket: str) -> None:
    root = f"{bucket}/ware house/é+%/t-12"
    assert find_table(root) is None
    assert commit(stage(root, "one", 3), build_id="b", pinned=None) == 0
    assert commit(stage(root, "two", 5), build_id="b", pinned=0) == 1
    assert read_version(root, 0).files == (f"{root}/one/part-0.parquet",)
    found = read_version(root, 1)
    assert found.files == (f"{root}/two/part-0.parquet",)
    assert [r["a"] for r in read_sample(found.files, 2)] == [0, 1]
    # A version that was committed but never published is reverted, as on a disk.
    commit(stage(root, "dead", 7), build_id="b", pinned=1)
    assert commit(stage(root, "four", 4), build_id="b", pinned=1) == 4
    uri, options = delta_place(root)
    assert DeltaTable(uri, storage_options=options).to_pyarrow_table().num_rows == 4


@pytest.mark.proves("T13")
def test_files_are_copied_within_a_bucket_and_out_of_it(bucket: str, tmp_path: Path) -> None:
    first = stage(f"{bucket}/t", "1" * 32, 3)
    commit(first, build_id="b", pinned=None)
    live = live_files(find_table(first.root))
    for root in (f"{bucket}/u", str(tmp_path)):
        staged = with_copies(Staged(root, "2" * 32, first.schema, ()), first.root, live.values())
        commit(staged, build_id="b", pinned=None)
        assert [(f.bytes, f.rows) for f in staged.files] == [(f.bytes, f.rows) for f in first.files]
        assert read_sample(read_version(root, 0).files, 9) == read_sample(
            read_version(first.root, 0).files, 9
        )


def test_staged_rows_are_several_files_of_a_bucket(bucket: str) -> None:
    batches = [pa.record_batch({"a": [n, n]}) for n in range(3)]  # 16 bytes each
    place = f"{bucket}/é+%/rows"
    assert write_batches(iter(batches), place, file_bytes=17) == 6
    assert sorted(f.name for f in list_files(place)) == ["part-0.parquet", "part-1.parquet"]
    assert sorted(read_rows(place)["a"].to_pylist()) == [0, 0, 1, 1, 2, 2]
    delete_directory(place)
    assert not list_files(place)


@pytest.mark.slow
def test_only_one_of_several_concurrent_writers_commits_a_version(bucket: str) -> None:
    root = f"{bucket}/t"
    commit(stage(root, "first", 3), build_id="b", pinned=None)
    staged = [stage(root, f"writer-{n}", n) for n in range(1, 17)]
    together = threading.Barrier(8)

    def write(one: Staged) -> int | None:
        together.wait()
        try:
            return commit(one, build_id="b", pinned=None)
        except ConflictError:
            return None

    with ThreadPoolExecutor(8) as pool:
        versions = [v for v in pool.map(write, staged) if v is not None]
    table = find_table(root)
    assert sorted(versions) == list(range(1, table.version() + 1))
    assert len(versions) < len(staged)  # some were concurrent, and failed
    for version in versions:
        assert len({f.split("/")[-2] for f in read_version(root, version).files}) == 1


@pytest.mark.slow
def test_concurrent_first_commits_get_distinct_versions(bucket: str) -> None:
    for attempt in range(3):
        root = f"{bucket}/t{attempt}"
        staged = [stage(root, f"writer-{n}", n) for n in range(1, 5)]
        together = threading.Barrier(4)

        def write(one: Staged, together: threading.Barrier = together) -> int | None:
            together.wait()
            try:
                return commit(one, build_id="b", pinned=None)
            except ConflictError:
                return None

        with ThreadPoolExecutor(4) as pool:
            versions = [v for v in pool.map(write, staged) if v is not None]
        assert sorted(versions) == list(range(find_table(root).version() + 1))


def test_missing_files_in_a_bucket_are_detected(bucket: str, server: Server) -> None:
    root = f"{bucket}/t"
    staged = stage(root, "one", 3)
    commit(staged, build_id="b", pinned=None)
    one, none = (snapshot("one", version, 3, staged.bytes) for version in (0, 7))
    assert (has_snapshot(root, one), is_whole(root, one)) == (True, True)
    assert (has_snapshot(root, none), is_whole(root, none)) == (False, False)
    assert not has_snapshot(root, snapshot("other", 0, 3))
    parquet(f"{root}/one/state-0/part-0.parquet", a=[1])  # states lie beside the table's files
    assert (has_snapshot(root, one), is_whole(root, one)) == (True, True)
    server.requests()
    has_snapshot(root, one)
    assert len(server.requests()) <= 4
    put(f"{root}/one/part-0.parquet", b"cut off")
    assert (has_snapshot(root, one), is_whole(root, one)) == (False, False)
    with pytest.raises(GoneError, match="has 7 bytes, not"):
        read_version(root, 0)
    delete_directory(f"{root}/one")
    delete_directory(f"{root}/one")
    assert (has_snapshot(root, one), is_whole(root, one)) == (False, False)
    with pytest.raises(GoneError, match=r"part-0.parquet, a file of version 0, is gone"):
        read_version(root, 0)
    with pytest.raises(GoneError, match="version 7 of the table"):
        read_version(root, 7)


def test_a_version_of_many_files_is_read_with_few_requests(bucket: str, server: Server) -> None:
    root = f"{bucket}/t"
    for n in range(20):
        parquet(f"{root}/one/part-{n}.parquet", a=pa.array([n], pa.int64()))
    commit(find_staged(root, "one", delta_schema(STRUCT)), build_id="b", pinned=None)
    server.requests()
    assert len(read_version(root, 0).files) == 20
    asked = server.requests()
    assert not [r for r in asked if "part-" in r]
    assert len(asked) < 10


def test_a_commit_detects_a_changed_file_in_a_bucket(bucket: str) -> None:
    root = f"{bucket}/t"
    staged = stage(root, "one", 3)
    put(f"{root}/one/part-0.parquet", b"x")
    with pytest.raises(StorageError, match="has 1 bytes, not"):
        commit(staged, build_id="b", pinned=None)


def test_builds_and_whole_tables_are_deleted_from_a_bucket(bucket: str) -> None:
    root = f"{bucket}/wh/t"
    one, two, three = ("1" * 32, "2" * 32, "3" * 32)
    for n, uid in enumerate((one, two, three)):
        commit(stage(root, uid, n + 1), build_id="b", pinned=None)
    assert find_written(root).keys() == {one, two, three, LOG}
    delete_builds(root, [one, three], head=1)
    assert find_written(root).keys() == {two, LOG}
    assert [f.split("/")[-2] for f in read_version(root, find_table(root).version()).files] == [two]
    delete_builds(root, [two, LOG], head=None)
    assert list_files(f"{bucket}/wh") == []
    assert find_table(root) is None


# --------------------------------------------------------------------------- raw tables on S3


@pytest.mark.slow
def test_raw_files_in_a_bucket_are_pinned_and_a_new_file_changes_the_pin(bucket: str) -> None:
    raw, where = RawTable("parquet", "t"), f"{bucket}/raw/t é"
    with pytest.raises(StorageError, match="there is no data at"):
        pin_raw(raw, where)
    parquet(f"{where}/kind=a%20b/year=2013/p.parquet", x=[1])
    put(f"{where}/_SUCCESS", b"")
    first = pin_raw(raw, where)
    assert first.files == (f"{where}/kind=a%20b/year=2013/p.parquet",)
    assert pin_raw(raw, where) == first
    assert pin_raw(raw, where.replace("s3:", "s3a:")).version == first.version
    columns = find_columns(raw, where)
    assert [(c.name, c.type) for c in columns] == [
        ("x", "bigint"), ("kind", "string"), ("year", "int")
    ]  # fmt: skip
    assert missing_columns(first, raw, columns) == []
    parquet(f"{where}/kind=c/year=2014/p.parquet", x=[1])
    assert pin_raw(raw, where).version != first.version


def test_the_version_of_files_in_a_bucket_depends_on_their_sizes_and_times(
    bucket: str, server: Server
) -> None:
    def version(content: bytes, moment: str) -> str | None:
        put(f"{bucket}/t/a.csv", content)
        server.date(f"{bucket}/t/a.csv", moment)
        return pin_raw(RawTable("csv", "t"), f"{bucket}/t").version

    first = version(b"1", "2026-01-01T10:00:00")
    assert version(b"12", "2026-01-01T10:00:00") != first
    assert version(b"1", "2026-01-01T10:00:01") != first
    assert version(b"1", "2026-01-01T10:00:00") == first


@pytest.mark.slow
def test_a_file_that_changes_twice_in_a_second_has_two_versions(bucket: str) -> None:
    raw, where = RawTable("csv", "t"), f"{bucket}/t"
    pins: set[str | None] = set()
    for n in range(4):
        put(f"{where}/a.csv", str(n).encode())
        pins.add(pin_raw(raw, where).version)
    assert len(pins) == 4


def test_a_single_file_of_a_bucket_can_be_a_table(bucket: str) -> None:
    parquet(f"{bucket}/t.parquet", x=[1])
    pin = pin_raw(RawTable("parquet", "t"), f"{bucket}/t.parquet")
    assert (pin.files, pin.base) == ((f"{bucket}/t.parquet",), bucket)


def test_a_delta_table_in_a_bucket_is_pinned_with_its_files(bucket: str) -> None:
    where, raw = f"{bucket}/delta é", RawTable("delta", "t")
    with pytest.raises(StorageError, match="there is no Delta table at"):
        pin_raw(raw, where)
    uri, options = delta_place(where)
    data = pa.table({"x": [1, 2], "k": ["a b/%c", None]})
    write_deltalake(uri, data, storage_options=options, partition_by=["k"])
    first = pin_raw(raw, where)
    there = {f.location for f in list_files(where) if f.name.endswith(".parquet")}
    assert set(first.files or ()) == there
    assert len(there) == 2
    assert find_columns(raw, where)[0].type == "bigint"
    write_deltalake(uri, data, storage_options=options, mode="append")
    assert pin_raw(raw, where).version != first.version
    # Spark reads each quoted byte of such a directory as a character.
    others = pa.table({"x": [3], "k": ["ü"]})
    write_deltalake(uri, others, storage_options=options, mode="append")
    assert pin_raw(raw, where).by_log


# ------------------------------------------------------------------------- a project with buckets

SOURCES = """
CREATE TABLE t USING parquet LOCATION '{bucket}/raw/t';
--@ persist
CREATE VIEW p AS SELECT a, b FROM t;
"""


def json_of(root: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(app, ["--project", str(root), *arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def project(make_project: Callable[..., Path], bucket: str, server: Server) -> Path:
    parquet(f"{bucket}/raw/t/p.parquet", a=[1, 2], b=["x", "y"])
    store = f'[store."{bucket}"]\nendpoint = "{server.url}"\nregion = "eu-central-1"\n'
    settings = f'warehouse = "{bucket}/wh/"\n{store}'
    return make_project({"m.sql": SOURCES.format(bucket=bucket)}, settings)


@pytest.mark.slow
@pytest.mark.proves("P36")
def test_a_project_may_have_its_warehouse_in_a_bucket(project: Path, bucket: str) -> None:
    (t, p) = json_of(project, "check")["sources"]
    assert [c["type"] for c in t["columns"]] == ["bigint", "string"]
    (step,) = json_of(project, "plan")["steps"]
    assert (step["action"], step["reasons"][0]["code"]) == ("build", "new")
    # Write what a build would write, without Spark.
    settings = load_settings(project)
    source = load_project(settings).by_id[p["source_id"]]
    root = settings.table_root(source.table)
    assert root == f"{bucket}/wh/{source.table}"
    ledger = Ledger(settings.ledger)
    builder = Builder(settings, load_project(settings), ledger, SparkEngine(settings, no_spark))
    world = builder.observer.observe([source])
    build = Build(
        "one", source.source_id, source.build_id, source.definition, "dev", "run", "started",
        "built", datetime.now(UTC), digests=source.digests,
    )  # fmt: skip
    ledger.builds.record_started(build, source.table)
    staged = stage(root, "one", 3)
    version = commit(staged, build_id=source.build_id, pinned=None)
    as_of = builder.plan([source.source_id]).steps[0].as_of
    made = Snapshot(
        "one", source.source_id, source.build_id, source.table, version, as_of, "c", 3,
        staged.bytes, datetime.now(UTC),
    )  # fmt: skip
    ledger.builds.publish(Publication(build, made, []))
    ledger.close()
    assert world.missing == []
    assert [s["action"] for s in json_of(project, "plan")["steps"]] == ["reuse"]
    (entry,) = json_of(project, "manifest")["entries"].values()
    assert entry["tableName"] == f"delta.`{root}@v0`"
    assert wrong(project) == []
    delete_directory(root)
    (step,) = json_of(project, "plan")["steps"]
    assert step["action"] == "build"
    ((code, message),) = wrong(project)
    assert (code, "is gone" in message) == ("table", True)


def wrong(root: Path) -> list[tuple[str, str]]:
    """Return the errors that `persist doctor` reports."""
    done = CliRunner().invoke(app, ["--project", str(root), "doctor", "--json"])
    problems = json.loads(done.stdout)["problems"]
    return [(p["code"], p["message"]) for p in problems if p["severity"] == "error"]


def no_spark() -> Any:
    pytest.fail("a plan needs no Spark")


@pytest.mark.slow
def test_an_error_names_the_jar_that_spark_lacks(project: Path, spark: Any) -> None:
    settings = load_settings(project)
    ledger = Ledger(settings.ledger)
    builder = Builder(
        settings, require(load_project(settings)), ledger, SparkEngine(settings, lambda: spark)
    )
    with pytest.raises(StorageError, match="no jar for s3a://") as caught:
        builder.build(builder.project.persisted[0])
    assert "org.apache.hadoop:hadoop-aws:" in (caught.value.hint or "")
    assert ledger.manifests.fetch("dev") == {}
    ledger.close()


def test_spark_gets_the_settings_of_the_store(project: Path, server: Server, bucket: str) -> None:
    settings = load_settings(project, environ={})
    prefix = f"spark.hadoop.fs.s3a.bucket.{bucket.removeprefix('s3://')}."
    assert {k.removeprefix(prefix): v for k, v in settings.spark if k.startswith(prefix)} == {
        "endpoint": server.url,
        "endpoint.region": "eu-central-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    anywhere = load_settings(project, environ={"AWS_ENDPOINT_URL": "https://minio:9000"})
    said = dict(anywhere.spark)
    assert said["spark.hadoop.fs.s3a.endpoint"] == "https://minio:9000"
    assert said["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    assert said[f"{prefix}endpoint"] == server.url
    assert anywhere.connection == settings.connection  # where data lies changes no rows
    assert spark_settings([Store("b", None, None)]) == {}
    assert spark_uri("s3://b/x y") == spark_uri("s3a://b/x y") == "s3a://b/x y"
    assert spark_uri("gs://b/x") == "gs://b/x"
    assert spark_pattern("/a [b]/{c}") == "file:///a \\[b\\]/\\{c\\}"


# -------------------------------------------------------------------------------------- bad input


def test_a_missing_bucket_is_reported(server: Server) -> None:
    know_stores([Store("no-such-bucket", server.url, None)])
    where = "s3://no-such-bucket/t"
    for ask in (
        lambda: list_files(where),
        lambda: find_table(where),
        lambda: find_table(where, 3),
        lambda: pin_raw(RawTable("parquet", "t"), where),
        lambda: pin_raw(RawTable("delta", "t"), where),
        lambda: is_whole(where, snapshot("u", 0, 1)),
    ):
        with pytest.raises(StorageError, match="NoSuchBucket") as caught:
            ask()
        assert caught.value.hint == "create the bucket, or use another"
        assert "\n" not in caught.value.message
        assert "\x1b" not in caught.value.message


def test_wrong_credentials_are_reported(bucket: str, server: Server) -> None:
    commit(stage(f"{bucket}/t", "one", 3), build_id="b", pinned=None)
    server.ask("POST", "/moto-api/reset-auth", b"0")  # from now on, they are checked
    try:
        for ask in (
            lambda: list_files(f"{bucket}/t"),
            lambda: find_table(f"{bucket}/t"),
            lambda: read_version(f"{bucket}/t", 0),
            lambda: has_snapshot(f"{bucket}/t", snapshot("one", 0, 3)),
            lambda: is_whole(f"{bucket}/t", snapshot("one", 0, 3)),
        ):
            with pytest.raises(StorageError) as caught:
                ask()
            assert not isinstance(caught.value, GoneError)
            assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")
    finally:
        server.ask("POST", "/moto-api/reset-auth", b"inf")


@pytest.mark.slow
def test_an_unreachable_endpoint_is_reported_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    know_stores([Store("unreachable", "http://127.0.0.1:1", None)])
    where, started = "s3://unreachable/t", time.monotonic()
    for ask in (
        lambda: list_files(where),
        lambda: find_table(where),
        lambda: read_version(where, 0),
        lambda: has_snapshot(where, snapshot("one", 0, 3)),
        lambda: is_whole(where, snapshot("one", 0, 3)),
        lambda: delete_directory(where),
    ):
        with pytest.raises(StorageError, match=r"cannot (reach|open)") as caught:
            ask()
        assert not isinstance(caught.value, GoneError)
        assert "check the endpoint" in (caught.value.hint or "")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("Error performing GET in 403.2ms, after 2 retries: tcp connect error", "the endpoint"),
        ("Error performing GET in 1.401s, key/403/a: tcp connect error", "the endpoint"),
        ("Server returned non-2xx status code: 403: ", "the credentials"),
        ("Http Status Code: 401", "the credentials"),
        ("Client error with status 403 Forbidden", "the credentials"),
        ("connecting to 169.254.169.254: tcp connect error", "the credentials"),
    ],
)
def test_hints_for_errors_ignore_unrelated_numbers_in_their_messages(
    message: str, hint: str
) -> None:
    assert f"check {hint}" in (unreachable("s3://b/t", OSError(message)).hint or "")
    assert unreachable("/here/t", OSError(message)).hint is None


def test_unsupported_urls_and_invalid_store_settings_are_rejected(
    make_project: Callable[..., Path],
) -> None:
    with pytest.raises(StorageError, match="URL scheme `s3n://` is not supported") as caught:
        list_files("s3n://bucket/t")
    assert (caught.value.hint or "").startswith("did you mean `s3`? Supported: ")
    with pytest.raises(StorageError, match="is not supported"):
        find_table("ftp://bucket/t")
    for settings, message in (
        ('warehouse = "s4://x/y"', "is not supported"),
        ('warehouse = "/data/[x]"', r"delta-rs misreads `\["),
        ('warehouse = "/data/a%20b"', "delta-rs misreads `%20`"),
        ('[store."gs://b"]\nregion = "x"', "is not a bucket of an S3-compatible store"),
        ('[store."s3://b/prefix"]\nregion = "x"', "is not a bucket"),
        ('[store."s3://b"]\nendpoint = "minio:9000"', "is not a URL"),
        ('[store."s3://b"]\nendpiont = "http://x"', "unknown key"),
        ('[store."s3://b"]\nregion = 3', "must be a string"),
        ('[store]\nregion = "x"', "must be a table"),
    ):
        root = make_project({"m.sql": "CREATE VIEW v AS SELECT 1 AS x;"}, settings)
        with pytest.raises(SettingsError, match=message) as refused:
            load_settings(root)
        assert refused.value.location is not None
    with pytest.raises(StorageError, match="delta-rs misreads"):
        pin_raw(RawTable("delta", "t"), "/data/[x]")


def test_conflicting_settings_of_one_bucket_are_rejected() -> None:
    know_stores([Store("twice", "http://one", None)])
    know_stores([Store("twice", "http://one", None)])
    with pytest.raises(SettingsError, match="describe the bucket `twice` differently"):
        know_stores([Store("twice", "http://two", None)])


# ------------------------------------------------------------------------------- file:// and names


CHECKED = """
CREATE TABLE t USING parquet LOCATION 'raw data/t ü';
--@ persist
--@ check {{ unique=[a] }}
CREATE VIEW p AS SELECT a, b FROM t;
--@ persist
CREATE VIEW q AS SELECT b, sum(a) AS s FROM p GROUP BY b;
"""


@pytest.mark.slow
def test_a_warehouse_may_be_a_file_uri_with_special_characters(
    make_project: Callable[..., Path], tmp_path: Path, spark: Any
) -> None:
    warehouse = tmp_path / "ware house" / "größe {1}+#?%"
    quoted = f"file://{tmp_path}/ware%20house/größe {{1}}+#?%"
    settings = f'warehouse = "{quoted}"\n[env.prod]\n[env.dev]\n'
    root = make_project({"m.sql": CHECKED.format()}, settings, name="a project ñ")
    data = root / "raw data" / "t ü" / "a file.parquet"
    data.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": ["x", "y", "x"]}), data)

    read = load_settings(root)
    assert read.warehouse == str(warehouse)
    ledger = Ledger(read.ledger)
    builder = Builder(read, require(load_project(read)), ledger, SparkEngine(read, lambda: spark))
    p, q = builder.project.persisted
    assert [builder.build(s).action for s in (p, q)] == ["built", "built"]
    assert sorted(tuple(r) for r in builder.read(q).collect()) == [("x", 4), ("y", 2)]
    assert {d.name.split("-")[0] for d in warehouse.iterdir()} == {".listings", "p", "q"}
    decided, _ = promote(builder, "prod", [p.source_id, q.source_id])
    assert (len(decided.sources), decided.refused) == (2, ())
    for environment in ("dev", "prod"):
        steps = json_of(root, "plan", "--env", environment)["steps"]
        assert [s["action"] for s in steps] == ["reuse", "reuse"]
    shutil.rmtree(next(d for d in warehouse.iterdir() if d.name.startswith("q")))
    done = warm.run(
        [sys.executable, "-m", "persist_assets.cli", "build", "--json"],
        cwd=root, capture_output=True, text=True, timeout=180,
        env={k: v for k, v in os.environ.items() if k not in ("DAGSTER_HOME", "PERSIST_ENV")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [b["action"] for b in json.loads(done.stdout)["builds"]] == ["reused", "built"]
    assert sorted(tuple(r) for r in builder.read(q).collect()) == [("x", 4), ("y", 2)]
    ledger.close()


@pytest.mark.proves("X4")
def test_a_published_table_follows_another_one_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    first = stage(f"{bucket}/wh/t", "1" * 32, 3)
    commit(first, build_id="b", pinned=None)
    more = stage(f"{bucket}/wh/t", "2" * 32, 5)
    kept = [f.path for f in first.files]
    commit(more, build_id="b", pinned=0, base=0, kept_files=kept)
    description = Description("Numbers.", {"a": "A number."}, ("ops",))
    for place in (f"{bucket}/lake/g/t", str(tmp_path / "lake")):
        for version in (0, 1, 0):
            table = open_published(place, "us")
            source = (first.root, version)
            publish_version(place, table, source, {PUBLISHER: "us"}, description)
            describe(place, open_published(place, "us"), "us", description)
            uri, options = delta_place(place)
            published = DeltaTable(uri, storage_options=options)
            assert published.to_pyarrow_table().num_rows == (8 if version else 3)
            assert published.schema().fields[0].metadata == {"comment": "A number."}
        with pytest.raises(ConflictError, match="another publisher"):
            open_published(place, "others")
        n_before = len(list_files(place))
        now = datetime.now(UTC) + timedelta(days=2)
        assert tidy_published(place, open_published(place, "us"), 0, now) > 0
        assert len(list_files(place)) == n_before - 1
        assert DeltaTable(uri, storage_options=options).to_pyarrow_table().num_rows == 3
