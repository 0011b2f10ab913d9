"""Measure what deciding about many wants costs, a page of many events, and a POST beside them.

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
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.core.wants import Want, evaluate
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import counters, events, wants

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from postgres import Postgres
from serving import TOKENS, serving, write_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = 1000
POSTS = 50
SOURCES = 20
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def fill(ledger: Ledger, n_wants: int, n_events: int) -> None:
    """Record wants and events as many processes would have over years."""
    with ledger.events.database.write() as connection:
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


def fill_project(root: Path, url: str, n_wants: int) -> None:
    """Write a project of daily sources, and record wants of their partitions."""
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text(f'ledger = "{url}"\n')
    write_data(root)
    views = "".join(
        f"""
--@ persist partition=daily time_column=day start="2000-01-01"
CREATE VIEW s{n} AS SELECT day, sum(n) AS n, {n} AS k FROM f GROUP BY day;"""
        for n in range(SOURCES)
    )
    table = "CREATE TABLE f (day DATE, n INT) USING parquet LOCATION 'f';"
    (root / "sources" / "m.sql").write_text(table + views)
    ledger, created_at = Ledger(url), datetime.now(UTC)
    for n in range(SOURCES):
        days = (date(2000, 1, 1) + timedelta(k) for k in range(n_wants // SOURCES))
        # Half of them wait for another graph, the others can be built.
        needs = ("users:data/users",) if n % 2 else ()
        ledger.wants.create(
            [
                Want(f"w{n}-{day}", f"m/s{n}/{day}", "dev", created_at, external_dependencies=needs)
                for day in days
            ]
        )
    ledger.close()


def post(root: Path) -> list[float]:
    """Return the seconds that POSTs of wants took while the service evaluated."""
    took: list[float] = []
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as served, served.client() as client:
        for n in range(POSTS):
            body = {"partition_ref": f"m/s{n % SOURCES}/2026-01-{1 + n // SOURCES:02}"}
            begun = time.perf_counter()
            client.post("/api/v1/wants", json=body).raise_for_status()
            took.append(time.perf_counter() - begun)
            time.sleep(0.2)
    return took


def timed(act: Callable[[], Any], n: int = 5) -> tuple[float, Any]:
    """Return the median of the seconds that something takes, and what it returns."""
    took: list[float] = []
    result = None
    for _ in range(n):
        begun = time.perf_counter()
        result = act()
        took.append(time.perf_counter() - begun)
    return statistics.median(took), result


def measure(url: str, kind: str, n_wants: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield what was measured: what, beside what, how long it took, what is wanted."""
    ledger = Ledger(url)
    n_events = 10 * n_wants
    fill(ledger, n_wants, n_events)

    def decide() -> Any:
        found = ledger.wants.fetch_active("dev")
        return evaluate(found, NOW, current=(), available=("users:data/users",))

    seconds, found = timed(decide)
    n = len(found.want_ids) + found.deferred
    what = f"{n_wants:,} active wants in {kind}, {n:,} to be built: read, decided"
    yield what, "", f"{seconds:.2f} s", "≤ 1 s"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took: list[float] = []
    n, since = 0, 0
    while True:
        begun = time.perf_counter()
        some, following = ledger.events.search(since, limit=PAGE, patterns=["graph/source1*/*"])
        took.append(time.perf_counter() - begun)
        n += len(some)
        if following == since:
            break
        since = following
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    p50, p99 = statistics.median(took) * 1000, sorted(took)[int(len(took) * 0.99)] * 1000
    what = f"{n_events:,} events in {kind}, {n:,} of them by a pattern, pages of {PAGE:,}"
    yield what, "", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, +{grown:.0f} MiB", "p50 ≤ 20 ms"
    ledger.close()


def main(kind: str, n_wants: int) -> None:
    """Print what was measured, as JSON, a line each."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as held:
        urls = [f"sqlite:///{temporary}/{name}.db" for name in ("wants", "posts")]
        if kind == "postgres":
            server = Postgres()
            held.callback(server.close)
            urls = [server.schema("wants"), server.schema("posts")]
        name = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[kind]
        for row in measure(urls[0], name, n_wants):
            print(json.dumps(row), flush=True)
        root = Path(temporary, "project")
        fill_project(root, urls[1], n_wants)
        took = sorted(post(root))
        what = f"a POST beside {n_wants:,} waiting wants in {name}, evaluated meanwhile"
        figure = f"p50 {statistics.median(took):.3f} s, longest {took[-1]:.3f} s"
        print(json.dumps((what, "", figure, "≤ 0.2 s")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
