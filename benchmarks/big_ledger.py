"""Measure a ledger with millions of events: its size, pages, plans, a rollback, and a trim.

`python benchmarks/big_ledger.py 10000000`, or `… 10000000 100000 DIRECTORY` with 100,000 wants, in
a directory that stays. The events are those of years of builds: of each 100, about 30 are starts
and ends of builds, 60 make partitions available, the others are evaluations. Rows are inserted in
bulk, with the columns that the ledger itself would have written.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import availability, builds, counters, events, wants
from persist_assets.operations.trimming import trim

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from serving import TOKENS, WRITE, serving, write_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES = 200
YEARS = 3
AT_ONCE = 50_000
PAGES = (
    *("/", "/sources", "/sources/m/s7", "/runs", "/wants", "/partitions", "/environments"),
    *("/environments/dev", "/timeline", "/sla", "/events"),
    *("/api/v1/wants", "/api/v1/partitions", "/metrics"),
)
KINDS = ("build-started", "build-succeeded", "partition-available", "evaluation")
WEIGHTS = (15, 15, 60, 10)


def fill_project(root: Path) -> None:
    """Write a project of daily sources over one small table."""
    (root / "sources").mkdir(parents=True, exist_ok=True)
    (root / "persist.toml").write_text("")
    write_data(root)
    views = "".join(
        f"""
--@ persist partition=daily time_column=day start="2022-01-01"
CREATE VIEW s{n} AS SELECT day, sum(n) AS n, {n} AS k FROM f GROUP BY day;"""
        for n in range(SOURCES)
    )
    table = "CREATE TABLE f (day DATE, n INT) USING parquet LOCATION 'f';"
    (root / "sources" / "m.sql").write_text(table + views)


def events_until(now: datetime, n_events: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of events: the last one is of now, the first one some years old."""
    draw, days = random.Random(1), 365 * YEARS
    begin, step = now - timedelta(days=days), timedelta(days=days) / n_events
    for idx in range(1, n_events + 1):
        (kind,) = draw.choices(KINDS, WEIGHTS)
        at = begin + idx * step
        data: dict[str, Any] = {"environment": "dev"}
        row: dict[str, Any] = {"idx": idx, "at": at, "kind": kind, "environment": "dev"}
        for name in ("partition_ref", "task_id", "job_label", "build_request_id"):
            row[name] = None
        if kind == "evaluation":
            data |= {"trigger": "clock", "build_request_id": None, "reason": "", "blocked": 3}
        else:
            n, uid = draw.randrange(SOURCES), f"{idx // 3:032x}"
            data |= {"source_id": f"s{n}@sources/m.sql", "build_id": f"{n:064x}"}
            data |= {"build_uid": uid, "run_id": uid, "process": "host 1:2"}
            row |= {"task_id": uid, "job_label": data["source_id"]}
            if kind == "partition-available":
                row["partition_ref"] = f"m/s{n}/{(at - timedelta(days=1)).date()}"
                data["partition_ref"] = row["partition_ref"]
        yield row | {"data": data}


def _insert(ledger: Ledger, table: Any, rows: Iterator[dict[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == AT_ONCE:
            with ledger.events.database.write() as connection:
                connection.execute(table.insert(), batch)
            batch = []
    if batch:
        with ledger.events.database.write() as connection:
            connection.execute(table.insert(), batch)


def fill(ledger: Ledger, n_events: int, n_wants: int) -> None:
    """Record events, with the states of partitions and the builds that follow from them."""
    now = datetime.now(UTC)
    available: dict[str, dict[str, Any]] = {}

    def watched() -> Iterator[dict[str, Any]]:
        for row in events_until(now, n_events):
            if row["kind"] == "partition-available":
                ref = row["partition_ref"]
                values = {"partition_ref": ref, "at": row["at"], "idx": row["idx"]}
                key = {"graph": "", "environment": "dev", "state": "available"}
                available[ref] = {**key, **values, "build_uid": row["task_id"]}
            yield row

    _insert(ledger, events, watched())
    _insert(ledger, availability, iter(available.values()))
    _insert(ledger, builds, (_build(n, n_events // 100, now) for n in range(n_events // 100)))
    _insert(ledger, wants, (_want(n, n_wants, now) for n in range(n_wants)))
    with ledger.events.database.write() as connection:
        connection.execute(counters.update().values(value=n_events))


def _build(number: int, n_builds: int, now: datetime) -> dict[str, Any]:
    n = number % SOURCES
    at = now - timedelta(days=365 * YEARS) * (1 - number / n_builds)
    return {
        "build_uid": f"b{number:031x}",
        "source_id": f"s{n}@sources/m.sql",
        "build_id": f"{n:064x}",
        "definition": "d" * 64,
        "environment": "dev",
        "run_id": f"r{number // 20:031x}",
        "state": "succeeded",
        "action": "built",
        "started_at": at,
        "finished_at": at + timedelta(seconds=9),
        "table_name": f"s{n}-{n:012x}",
        "snapshot_uid": f"b{number:031x}",
        "version": number,
        "as_of": [["f@sources/m.sql", f"files:{number:064x}"]],
        "content": "3:aa:bb:cc",
        "rows": 1000,
        "bytes": 20_000,
        "built_at": at,
        "columns": [["day", "date"], ["n", "bigint"], ["k", "int"]],
        "checks": [],
        "maintenance": "partitions",
        "computed_seconds": 3.0,
        "written_rows": 10,
        "written_bytes": 1000,
    }


def _want(n: int, n_wants: int, now: datetime) -> dict[str, Any]:
    is_open = n >= n_wants * 0.9
    at = now - timedelta(days=365 * YEARS) * (1 - n / n_wants)
    day = (at - timedelta(days=1)).date()
    return {
        "want_id": f"w{n}",
        "partition_ref": f"m/s{n % SOURCES}/{day}",
        "environment": "dev",
        "created_at": at,
        "sla_seconds": 86_400,
        "deadline": at + timedelta(days=1),
        "external_dependencies": ["users:data/users"],
        "source": {"type": "schedule"},
        "state": "waiting" if is_open else "satisfied",
        "failures": 0,
        "ended_at": None if is_open else at,
    }


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that something takes, and its result."""
    begun = time.perf_counter()
    result = act()
    return time.perf_counter() - begun, result


def _persist(root: Path, *arguments: str) -> float:
    command = [sys.executable, "-P", "-m", "persist_assets.cli", "--project", str(root)]
    env = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin", "HOME": str(root)}

    def run() -> None:
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL, env=env)

    return timed(run)[0]


def _size(root: Path) -> str:
    files = (root / ".persist").glob("ledger.db*")
    return f"{sum(f.stat().st_size for f in files) / 1e9:.2f} GB"


def _pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the median of the seconds of each page, of five requests after a first one."""
    env = {"PERSIST_TOKENS": TOKENS}
    with serving(root, env=env) as served, served.client(follow_redirects=True) as client:
        client.post("/login", data={"token": WRITE})
        cookie = client.cookies.get("persist_session")
        for page in PAGES:
            took: list[float] = []
            for _ in range(6):
                seconds, answer = timed(lambda page=page: client.get(page))
                assert answer.status_code == 200, (page, answer.status_code, cookie)
                took.append(seconds)
            yield f"GET {page}", f"{statistics.median(took[1:]):.3f} s (first {took[0]:.3f} s)"


def measure(root: Path, n_events: int, n_wants: int) -> Iterator[tuple[str, str]]:
    """Yield what was measured, and how long it took."""
    fill_project(root)
    is_new = not (root / ".persist" / "ledger.db").exists()
    settings = load_settings(root)
    ledger = Ledger(settings.ledger)
    if is_new:
        seconds, _ = timed(lambda: fill(ledger, n_events, n_wants))
        yield f"insert {n_events:,} events", f"{seconds:.0f} s"
    yield "size", _size(root)
    yield "persist plan", f"{_persist(root, 'plan'):.2f} s"
    yield from _pages(root)
    change = ledger.manifests.promote(("dev",), "prod", {})
    seconds, _ = timed(lambda: ledger.manifests.roll_back("prod", 0, expected=change))
    yield "rollback", f"{seconds:.3f} s"
    seconds, trimmed = timed(lambda: trim(settings, ledger, 90 * 86_400))
    yield "trim --older-than 90d", f"{seconds:.0f} s: {trimmed.deleted:,} deleted"
    archive = sum(f.stat().st_size for f in Path(trimmed.archive).glob("*"))
    yield "archive", f"{archive / 1e9:.2f} GB"
    yield "--vacuum", f"{timed(ledger.events.database.vacuum)[0]:.0f} s"
    yield "size", _size(root)
    yield "rebuild", f"{timed(ledger.events.rebuild_projections)[0]:.0f} s"
    ledger.close()


def main() -> None:
    """Print a table."""
    n_events, n_wants, *rest = [*sys.argv[1:], "1000000", "10000"][:2] + sys.argv[3:]
    with tempfile.TemporaryDirectory(prefix="persist-big-") as directory:
        root = Path(rest[0] if rest else directory)
        for what, value in measure(root, int(n_events), int(n_wants)):
            print(f"| {what} | {value} |", flush=True)
    print(json.dumps({"events": int(n_events), "wants": int(n_wants)}))


if __name__ == "__main__":
    main()
