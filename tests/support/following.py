"""A follower that is killed again and again while its raw data grows."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from commands import clean_environ
from conftest import wait_for
from deltalake import DeltaTable

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = """
CREATE TABLE t (n BIGINT) USING parquet LOCATION 'raw';
--@ persist refresh=incremental watermark=n
CREATE VIEW q AS SELECT n, n % 7 AS d FROM t;
--@ persist
--@ check { not_null=[d] }
CREATE VIEW r AS SELECT d, count(*) AS c FROM q GROUP BY d;
"""


def put(root: Path, n: int, rows: list[int | None] | None = None) -> None:
    """Add a file of raw data, whole from the first moment: ten numbers, or those given."""
    (root / "raw").mkdir(exist_ok=True)
    numbers = range(n * 10, n * 10 + 10) if rows is None else rows
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), root / "raw" / f"_{n}")
    (root / "raw" / f"_{n}").rename(root / "raw" / f"{n}.parquet")


def start(root: Path, *options: str) -> subprocess.Popen[str]:
    """Start a follower of everything, which tells its batches on its stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", "persist_assets.cli", "follow", "--interval", "1s", *options],
        cwd=root,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_while_data_grows(root: Path, *, seconds: float, kills: int, seed: int) -> None:
    """Add files for so long, killing followers in the midst of builds; then all has to be right.

    Every version that was ever published has each number once, and the last one has all.
    """
    chance, stop = random.Random(seed), threading.Event()
    added = [0]
    put(root, 0)

    def grow() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until or not stop.is_set():
            put(root, added[0] + 1)
            added[0] += 1
            stop.wait(0.5)
            if time.monotonic() > until + 120:
                break

    writer = threading.Thread(target=grow)
    writer.start()
    ledger = Ledger(load_settings(root).ledger)
    try:
        until = time.monotonic() + seconds
        while kills > 0 or time.monotonic() < until:
            position, follower = ledger.events.position(), start(root)
            # Some die in their first batch, of two builds, some in a later one.
            n_begun = chance.randrange(1, 6)

            def has_begun(n: int = n_begun, since: int = position) -> bool:
                kinds = [e.kind for e in ledger.events.fetch(since)]
                return kinds.count("build-started") >= n

            try:
                wait_for(has_begun)
                threading.Event().wait(chance.random() * 0.4)  # somewhere in the build
            finally:
                follower.send_signal(signal.SIGKILL)
                follower.communicate()
            kills -= 1
    finally:
        stop.set()
        writer.join()
    last = start(root, "--until-idle", "3s")
    _, err = last.communicate(timeout=180)
    assert last.returncode == 0, err
    expected = list(range(10 * (added[0] + 1)))
    settings = load_settings(root)
    seen: list[int] = []
    for build in reversed(ledger.builds.fetch(source_id="q@sources/m.sql", limit=1000)):
        if build.snapshot is not None and build.action == "built":
            table = DeltaTable(
                settings.table_root(build.snapshot.table), version=build.snapshot.version
            )
            seen = sorted(table.to_pyarrow_table()["n"].to_pylist())
            assert seen == expected[: len(seen)]
            assert build.snapshot.rows == len(seen)
    assert seen == expected
    (counted,) = (
        b for b in ledger.builds.fetch(source_id="r@sources/m.sql", limit=1) if b.snapshot
    )
    assert counted.snapshot is not None
    table = DeltaTable(
        settings.table_root(counted.snapshot.table), version=counted.snapshot.version
    )
    counts = table.to_pyarrow_table().to_pydict()
    assert dict(zip(counts["d"], counts["c"], strict=True)) == {
        d: sum(n % 7 == d for n in expected) for d in range(7)
    }
    ledger.close()
