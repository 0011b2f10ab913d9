"""Measure what deciding about many wants costs, and a page of many events.

In a ledger of its own: `python benchmarks/wants.py sqlite 100000`, or `postgres`. There are ten
times as many events as wants.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from persist_assets.ledger.store import Ledger
from persist_assets.ledger.tables import counters, events, wants
from persist_assets.wants import evaluate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from postgres import Postgres

PAGE = 1000
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def fill(ledger: Ledger, n_wants: int, n_events: int) -> None:
    """Record wants and events as many processes would have over years."""
    with ledger._write() as connection:
        for first in range(0, n_wants, 10_000):
            connection.execute(
                wants.insert(),
                [
                    {
                        "want_id": f"w{n}",
                        "partition_ref": f"graph/source{n % 1000}/{n // 1000}",
                        "environment": "dev",
                        "created_at": NOW,
                        "sla_seconds": 3600,
                        "deadline": NOW + timedelta(hours=1),
                        "external_dependencies": ["users:data/users"] if n % 2 else None,
                        "source": {"type": "schedule"},
                        "state": "waiting",
                        "failures": 0,
                    }
                    for n in range(first, first + 10_000)
                ],
            )
        for first in range(1, n_events + 1, 20_000):
            connection.execute(
                events.insert(),
                [
                    {
                        "idx": n,
                        "at": NOW,
                        "kind": "partition-available",
                        "environment": "dev",
                        "partition_ref": f"graph/source{n % 50}/{n // 50}",
                        "data": {
                            "partition_ref": f"graph/source{n % 50}/{n // 50}",
                            "environment": "dev",
                            "build_uid": f"{n:032x}",
                        },
                    }
                    for n in range(first, first + 20_000)
                ],
            )
        connection.execute(counters.update().values(value=n_events))


def timed(act: Callable[[], Any], n: int = 5) -> tuple[float, Any]:
    """Return the median of the seconds that something takes, and what it returns."""
    took: list[float] = []
    for _ in range(n):
        begun = time.perf_counter()
        found = act()
        took.append(time.perf_counter() - begun)
    return statistics.median(took), found


def measure(url: str, kind: str, n_wants: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield what was measured: what, beside what, how long it took, what is wanted."""
    ledger = Ledger(url)
    n_events = 10 * n_wants
    fill(ledger, n_wants, n_events)

    def decide() -> Any:
        found = ledger.fetch_active("dev")
        return evaluate(found, NOW, current=(), available=("users:data/users",))

    seconds, found = timed(decide)
    told = (
        f"{n_wants:,} active wants in {kind}, {len(found.partitions):,} to be built: read, decided"
    )
    yield told, "", f"{seconds:.2f} s", "≤ 1 s"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took: list[float] = []
    n, since = 0, 0
    while True:
        begun = time.perf_counter()
        some, following = ledger.list_events(since, limit=PAGE, patterns=["graph/source1*/*"])
        took.append(time.perf_counter() - begun)
        n += len(some)
        if following == since:
            break
        since = following
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    p50, p99 = statistics.median(took) * 1000, sorted(took)[int(len(took) * 0.99)] * 1000
    told = f"{n_events:,} events in {kind}, {n:,} of them by a pattern, pages of {PAGE:,}"
    yield told, "", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, +{grown:.0f} MiB", "p50 ≤ 20 ms"
    ledger.close()


def main(kind: str, n_wants: int) -> None:
    """Print what was measured, as JSON, a line each."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as held:
        url = f"sqlite:///{temporary}/wants.db"
        if kind == "postgres":
            server = Postgres()
            held.callback(server.close)
            url = server.schema("wants")
        for row in measure(url, {"sqlite": "SQLite", "postgres": "PostgreSQL"}[kind], n_wants):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
