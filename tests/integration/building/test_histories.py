"""Despite crashes, published tables stay intact and correct, and all other files are deleted."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from conftest import draws, wait_for
from histories import (
    CONTENTS,
    Child,
    Clock,
    Run,
    Worker,
    Zygote,
    churn,
    goes_on,
    make_project,
    read_rows,
    sweep,
    write_raw,
)
from machine import explore

from persist_assets.core.errors import StorageError
from persist_assets.storage.delta_tables import is_whole, read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.proves("M13")
def test_random_histories_keep_needed_files_and_delete_all_others(
    zygote: Zygote,
) -> None:
    # A failing history is reported as it is; `make nightly` searches for a shorter one.
    tally = explore(draws(3, 10), zygote=zygote, steps=40, shrink=False)
    print(tally)
    assert min(tally.killed.total(), tally.halted.total(), tally.collected) > draws(0, 3)


@pytest.mark.slow
def test_gc_keeps_a_build_that_is_parked_while_it_runs(tmp_path: Path, zygote: Zygote) -> None:
    root, clock = make_project(tmp_path), Clock(datetime(2030, 1, 1, tzinfo=UTC))
    Run(root, "dev", clock).build(["p"])
    write_raw(root, "t", CONTENTS["t"][1])
    Run(root, "dev", clock).build(["p"])
    clock.now += timedelta(days=8)
    collecting = Child(
        zygote, root, "prod", ("collect",), clock, ("after a transaction", 0), gently=True
    )
    write_raw(root, "t", CONTENTS["t"][2])
    run = Run(root, "dev", clock)
    work = run.park("p")
    collecting.go_on()
    assert [c.versions for c in collecting.result] == [(0,)]
    assert is_whole(run.settings.table_root(work.table), work.snapshot)
    assert run.resume("p").build_uid == work.build.build_uid, "it was built again"
    run.close()


def is_right(run: Run, snapshot: Snapshot) -> bool:
    try:
        found = read_snapshot(run.settings.table_root(snapshot.table), snapshot)
        rows = read_rows(found.files)
    except (StorageError, OSError):
        return False
    return sha256(repr(rows).encode()).hexdigest() == snapshot.content


@pytest.mark.slow
@pytest.mark.proves("M13")
def test_readers_get_intact_tables_during_concurrent_builds_promotions_gc_and_crashes(
    tmp_path: Path, zygote: Zygote
) -> None:
    seconds = 5.0
    root = make_project(tmp_path, 'keep = "1 s"\n')
    reader = Run(root, "dev")
    began = time.monotonic()
    builders = [Worker(zygote, churn, root, seconds, seed) for seed in range(3)]
    collecting = Worker(zygote, sweep, root, seconds)
    n = 0
    while goes_on(began, seconds, n):
        if len(builders) == 3 and time.monotonic() - began > seconds / 2:
            builders.pop().kill()
        for environment in ("dev", "prod", "qa"):
            for build_id, snapshot in reader.ledger.manifests.fetch(environment).items():
                n += 1
                if not is_right(reader, snapshot):
                    now = reader.ledger.manifests.fetch(environment).get(build_id)
                    assert now is None or now.build_uid != snapshot.build_uid, snapshot
    said = sum((b.result() for b in builders), Counter[str]())
    collected = collecting.result()
    print(f"{n} snapshots read, {collected} times collected, {dict(said)}")
    assert min(n, collected, said["build: Build"]) > 0

    def left() -> set[str]:
        reader.collect()
        with sqlite3.connect(root / ".persist" / "ledger.db") as database:
            query = "SELECT snapshot_uid FROM builds JOIN manifest_entries USING (build_uid)"
            named = {uid for (uid,) in database.execute(query)}
        database.close()
        there = {p.parent.name for p in root.glob(".persist/warehouse/*/*/*.parquet")}
        assert named <= there
        return there - named

    wait_for(lambda: not left(), seconds=20)
    reader.close()
