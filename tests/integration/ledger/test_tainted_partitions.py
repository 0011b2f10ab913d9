"""Partitions whose rows are tainted are not announced, however readers get these rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from persist_assets.core.errors import ConflictError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, Filled, Partitions, RawVersion, Snapshot
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Kept, Taint

Open = Callable[..., Ledger]
NOW = datetime(2024, 1, 3, 6, tzinfo=UTC)
FIRST, SECOND = "m/p/2024-01-01", "m/p/2024-01-02"


def a_build(uid: str, environment: str = "dev") -> Build:
    at = NOW + timedelta(seconds=int(uid))
    return Build(uid, "p@m.sql", "build-p", "def", environment, "run", "started", "built", at)


def publish(
    ledger: Ledger,
    uid: str,
    *refs: str,
    kept_rows: Kept | None = None,
    reused: Snapshot | None = None,
    during: Callable[[], object] = lambda: None,
) -> Snapshot:
    """Publish a build of the table, or one that reuses a snapshot, and announce partitions."""
    build = a_build(uid)
    snapshot = reused or Snapshot(
        uid,
        build.source_id,
        build.build_id,
        "table",
        int(uid),
        (RawVersion("raw", uid),),
        "3:aa:bb:cc",
        3,
        300,
        NOW,
        (Column("a", "int"),),
    )
    if reused:
        build = replace(build, action="reused")
    ledger.builds.record_started(build, "table", kept_rows=kept_rows)
    during()
    done = Publication(build, snapshot, [], refs=refs, kept_rows=kept_rows, environments=("dev",))
    ledger.builds.publish(done)
    return snapshot


def taint(ledger: Ledger, ref: str, *uids: str) -> None:
    key = ref.removeprefix("m/p").removeprefix("/")
    marks = {uid: [key] for uid in uids}
    ledger.taints.record(["dev"], lambda *_: Taint({ref: "build-p"}, marks), by="me")


def states(ledger: Ledger, environment: str = "dev") -> dict[str, str]:
    return {a.partition_ref: a.state for a in ledger.partitions.fetch(environment)}


def last_change(ledger: Ledger, environment: str = "dev") -> int:
    return ledger.manifests.fetch_history(environment, limit=1)[0].change_id


@pytest.mark.proves("T31")
def test_a_rollback_announces_no_tainted_partition(open_ledger: Open) -> None:
    """The rows were also in the snapshot that readers get back."""
    ledger = open_ledger()
    publish(ledger, "1", FIRST)
    first = last_change(ledger)
    publish(ledger, "2", SECOND, kept_rows=Kept("1", {"2024-01-01"}))
    taint(ledger, FIRST, "1", "2")
    ledger.manifests.roll_back("dev", first, expected=last_change(ledger), lost=[SECOND])
    assert states(ledger) == {FIRST: "tainted", SECOND: "tainted"}


@pytest.mark.proves("T31")
def test_a_rollback_to_tainted_rows_taints_a_partition_that_was_built_since(
    open_ledger: Open,
) -> None:
    ledger = open_ledger()
    publish(ledger, "1", FIRST)
    first = last_change(ledger)
    publish(ledger, "2", SECOND, kept_rows=Kept("1", {"2024-01-01"}))
    taint(ledger, FIRST, "1", "2")
    publish(ledger, "3", FIRST, kept_rows=Kept("2", {"2024-01-02"}))
    assert states(ledger) == {FIRST: "available", SECOND: "available"}
    second = last_change(ledger)
    ledger.manifests.roll_back("dev", first, expected=second)
    assert states(ledger)[FIRST] == "tainted"
    ledger.manifests.roll_back("dev", second, expected=last_change(ledger))
    assert states(ledger)[FIRST] == "available"


@pytest.mark.proves("T31")
def test_promotions_and_imports_announce_no_tainted_partition(open_ledger: Open) -> None:
    ledger = open_ledger()
    snapshot = publish(ledger, "1", FIRST, SECOND)
    taint(ledger, FIRST, "1")
    refs = dict.fromkeys((FIRST, SECOND), "build-p")
    ledger.manifests.promote(["dev"], "prod", {"build-p": snapshot}, refs=refs)
    assert states(ledger, "prod") == {SECOND: "available"}
    build = replace(a_build("1"), state="succeeded", snapshot=snapshot)
    ledger.manifests.adopt("test", [build], refs=refs, why="import", malloy={})
    assert states(ledger, "test") == {SECOND: "available"}


@pytest.mark.proves("T31")
def test_a_promotion_of_rows_tainted_since_retracts_their_partition(open_ledger: Open) -> None:
    ledger = open_ledger()
    snapshot = publish(ledger, "1", FIRST)
    refs = {FIRST: "build-p"}
    ledger.manifests.promote(["dev"], "prod", {"build-p": snapshot}, refs=refs)
    newer = publish(ledger, "2", FIRST)
    taint(ledger, FIRST, "2")
    ledger.manifests.promote(["dev"], "prod", {"build-p": newer}, refs=refs)
    assert states(ledger, "prod") == {FIRST: "tainted"}


@pytest.mark.proves("T31")
def test_a_build_that_reuses_a_table_announces_no_tainted_partition(open_ledger: Open) -> None:
    ledger = open_ledger()
    snapshot = publish(ledger, "1", FIRST, SECOND)
    taint(ledger, FIRST, "1")
    filled = Filled((("2024-01-01", "2024-01-02"),), (RawVersion("raw", "1"),))
    partitions = Partitions((filled,), ())
    publish(ledger, "2", FIRST, SECOND, reused=replace(snapshot, partitions=partitions))
    assert states(ledger) == {FIRST: "tainted", SECOND: "available"}


@pytest.mark.proves("T31")
def test_a_build_whose_kept_rows_are_tainted_meanwhile_publishes_nothing(
    open_ledger: Open,
) -> None:
    ledger = open_ledger()
    publish(ledger, "1", "m/p")
    with pytest.raises(ConflictError, match="rows that `p` keeps were tainted meanwhile"):
        publish(
            ledger,
            "2",
            "m/p",
            kept_rows=Kept("1", {""}),
            during=lambda: taint(ledger, "m/p", "1"),
        )
    assert states(ledger) == {"m/p": "tainted"}


@pytest.mark.proves("T31")
def test_keys_with_slashes_are_compared_as_a_whole(open_ledger: Open) -> None:
    ledger = open_ledger()
    north, far = "m/p/north", "m/p/far/north"
    snapshot = publish(ledger, "1", north, far)
    taint(ledger, north, "1")
    refs = dict.fromkeys((north, far), "build-p")
    ledger.manifests.promote(["dev"], "prod", {"build-p": snapshot}, refs=refs, assets=["m/p"])
    assert states(ledger, "prod") == {far: "available"}
