"""Object stores that lose responses, throttle, reject expired credentials or do not respond.

A proxy in front of an S3-compatible server simulates this. In every case, tables stay consistent
for readers, and the error says what to do.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import warm
from buckets import Proxy, Server, parquet, put, serving, stage

from persist_assets.core.errors import ConflictError, StorageError
from persist_assets.core.model.sources import RawTable
from persist_assets.core.object_stores import PATIENCE, Patience
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_deletions import delete_builds
from persist_assets.storage.delta_tables import find_table, find_writer, read_sample, read_version
from persist_assets.storage.files import (
    delete_file,
    file_exists,
    know_stores,
    list_files,
)
from persist_assets.storage.raw import find_columns, pin_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UIDS = tuple(f"{n:032x}" for n in range(1, 6))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("s3_server.py") as url:
        yield Server(url)


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[Proxy]:
    with serving("s3_proxy.py", server.url.rpartition(":")[2]) as url:
        yield Proxy(url)


@pytest.fixture
def bucket(proxy: Proxy) -> Iterator[str]:
    yield proxy.new_bucket()
    proxy.behave()
    know_stores([], PATIENCE)


def entry(version: int) -> str:
    """Return a pattern of a commit's path."""
    return f"_delta_log/{version:020}.json"


# ------------------------------------------------------------------------------------ lost answers


@pytest.mark.slow
@pytest.mark.proves("S18")
def test_a_commit_with_a_lost_response_is_recognized_as_our_own(bucket: str, proxy: Proxy) -> None:
    root = f"{bucket}/t"
    for version, uid in enumerate(UIDS[:3]):
        staged = stage(root, uid, version + 1)
        proxy.misbehave("lose", "PUT", entry(version), times=1)
        pinned = version - 1 if version else None
        assert commit(staged, build_id="b", pinned=pinned) == version
        assert proxy.behave() == 1
        assert find_writer(root, version) == (uid, "b")
    assert read_version(root, 2).files == (f"{root}/{UIDS[2]}/part-0.parquet",)


@pytest.mark.slow
@pytest.mark.proves("S18")
def test_a_restoring_commit_with_a_lost_response_is_recognized_as_our_own(
    bucket: str, proxy: Proxy
) -> None:
    root = f"{bucket}/t"
    for uid in UIDS[:2]:
        commit(stage(root, uid, 3), build_id="b", pinned=None)
    # Version 1 was never published: version 2 restores version 0, and 3 has the new data.
    staged = stage(root, UIDS[2], 5)
    proxy.misbehave("lose", "PUT", entry(2), times=1)
    assert commit(staged, build_id="b", pinned=0) == 3
    assert proxy.behave() == 1
    assert read_version(root, 3).files == (f"{root}/{UIDS[2]}/part-0.parquet",)
    proxy.misbehave("lose", "PUT", entry(4), times=1)
    delete_builds(root, [UIDS[2]], head=0)
    assert proxy.behave() == 1
    assert read_version(root, 4).files == (f"{root}/{UIDS[0]}/part-0.parquet",)


@pytest.mark.proves("S18")
def test_a_commit_of_another_writer_is_still_a_conflict(bucket: str, proxy: Proxy) -> None:
    root = f"{bucket}/t"
    for version in range(2):
        staged = stage(root, UIDS[version], 1)
        proxy.misbehave("precede", "PUT", entry(version), times=1)
        with pytest.raises(ConflictError, match="another writer"):
            commit(staged, build_id="b", pinned=None)
        assert proxy.behave() == 1


@pytest.mark.proves("S18")
def test_an_existing_commit_by_an_unknown_writer_is_an_error_but_not_a_conflict(
    bucket: str, proxy: Proxy
) -> None:
    staged = stage(f"{bucket}/t", UIDS[0], 1)
    proxy.misbehave("lose", "PUT", entry(0), times=1)
    proxy.misbehave("denied", "HEAD|GET", entry(0))
    with pytest.raises(StorageError, match="cannot commit") as caught:
        commit(staged, build_id="b", pinned=None)
    assert "check the credentials" in (caught.value.hint or "")


# ---------------------------------------------------------------------------------------- throttled

ASKS: dict[str, Callable[[str], object]] = {
    "opening a table": lambda b: find_table(f"{b}/t"),
    "listing": lambda b: list_files(f"{b}/t"),
    "looking for a file": lambda b: file_exists(f"{b}/t/{entry(0)}"),
    "reading a commit": lambda b: find_writer(f"{b}/t", 0),
    "reading rows": lambda b: read_sample([f"{b}/t/{UIDS[0]}/part-0.parquet"], 2),
    "reading columns": lambda b: find_columns(RawTable("parquet", "t"), f"{b}/raw"),
    "pinning a raw Delta table": lambda b: pin_raw(RawTable("delta", "t"), f"{b}/t"),
    "writing a file": lambda b: put(f"{b}/x", b"x"),
    "deleting a file": lambda b: delete_file(f"{b}/x"),
    "committing": lambda b: commit(stage(f"{b}/new", UIDS[1], 2), build_id="b", pinned=None),
}


@pytest.fixture
def filled(bucket: str) -> str:
    """Return a bucket with a table and raw data."""
    commit(stage(f"{bucket}/t", UIDS[0], 3), build_id="b", pinned=None)
    parquet(f"{bucket}/raw/p.parquet", a=pa.array([1], pa.int64()))
    put(f"{bucket}/x", b"")
    return bucket


@pytest.mark.slow
@pytest.mark.proves("S18")
@pytest.mark.parametrize("asking", ASKS)
def test_throttled_requests_are_retried_and_logged(
    asking: str, filled: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    expected = repr(ASKS[asking](filled)) if asking != "committing" else "0"
    # delta-rs tries four times within half a second, pyarrow four times within two seconds.
    proxy.misbehave("throttle", times=5)
    assert repr(ASKS[asking](filled)) == expected
    assert proxy.behave() == 5
    assert f"{filled} throttles requests: retrying in" in caplog.text


@pytest.mark.slow
@pytest.mark.proves("S18")
def test_persistent_throttling_is_reported_as_an_error_with_its_reason(
    filled: str, proxy: Proxy
) -> None:
    know_stores([], Patience(60, 1))
    for act in ("throttle", "too-many"):
        for ask in (ASKS["opening a table"], ASKS["reading a commit"]):
            proxy.behave()
            proxy.misbehave(act)
            with pytest.raises(StorageError) as caught:
                ask(filled)
            assert "limits the request rate" in (caught.value.hint or "")
            assert "max_retries" not in caught.value.message


# ------------------------------------------------------------------------------------------ expired


@pytest.mark.proves("S18")
@pytest.mark.parametrize("asking", ASKS)
def test_every_operation_reports_expired_credentials(
    asking: str, filled: str, proxy: Proxy
) -> None:
    for act in ("expired", "refresh"):
        proxy.misbehave(act)
        with pytest.raises(StorageError) as caught:
            ASKS[asking](filled)
        assert "the credentials have expired" in (caught.value.hint or ""), caught.value


# --------------------------------------------------------------------------------- without an answer

SOURCES = """
CREATE TABLE t USING {form} LOCATION '{place}';
--@ persist
CREATE VIEW p AS SELECT count(*) AS n FROM t;
"""


@pytest.mark.slow
@pytest.mark.proves("S24")
@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_plan_times_out_and_names_a_store_that_does_not_respond(
    form: str, scheme: str, make_project: Callable[..., Path], proxy: Proxy, bucket: str
) -> None:
    place = f"{scheme}://lake/t"
    root = make_project({"m.sql": SOURCES.format(form=form, place=place)}, 'store_timeout = "2s"')
    proxy.misbehave("silence")
    # The store and the server that provides credentials.
    silent = {
        "PERSIST_TRUST": "*",
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_REGION": "us-east-1",
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": proxy.url,
        "GCE_METADATA_HOST": urlsplit(proxy.url).netloc,
        "GCE_METADATA_ROOT": urlsplit(proxy.url).netloc,
    }
    done = warm.run(
        [sys.executable, "-m", "persist_assets.cli", "--project", str(root), "plan"],
        capture_output=True, text=True, timeout=60, env=os.environ | silent,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert f"waiting for {scheme}://lake" in done.stderr
    assert "`store_timeout`" in done.stderr


@pytest.mark.slow
@pytest.mark.proves("S24")
def test_requests_fail_without_waiting_after_a_store_did_not_respond(
    filled: str, proxy: Proxy
) -> None:
    know_stores([], Patience(2, 60))
    proxy.misbehave("silence")
    started = time.monotonic()
    for asking in ("looking for a file", "reading a commit", "opening a table", "listing"):
        with pytest.raises(StorageError, match="does not answer") as caught:
            ASKS[asking](filled)
        assert "store_timeout" in (caught.value.hint or "")
    assert time.monotonic() - started < 4
