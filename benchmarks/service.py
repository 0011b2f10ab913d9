"""Measure the service under load: 200 clients, on a ledger with many events and wants.

    python benchmarks/service.py sqlite                 # clients that pause for a second
    python benchmarks/service.py postgres --think 0     # clients that send as soon as they can

The ledger is that of `big_ledger.py`: three years of builds of 200 daily sources, and wants of
which a tenth are open. The clients are in a process of their own. Each has its own token and its
own connection, and draws requests by the weights of `MIX`. The first half minute warms the
service up, and is not counted. Printed are the number of answers and the percentiles of their
latencies in milliseconds by kind of request, then requests per second, and what the service's
process used: CPU milliseconds per request and memory. `--each` measures instead how much of a
processor the service uses for a request of each kind, one after the other, without other clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from big_ledger import SOURCES, fill, fill_project

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from postgres import Postgres
from serving import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIX: Mapping[str, int] = {
    "register a want": 10,
    "status of a want": 28,
    "wants of a partition": 5,
    "events since a cursor": 25,
    "partitions of a source": 9,
    "plan": 1,
    "page: overview": 5,
    "page: sources": 4,
    "page: a source": 4,
    "page: wants": 4,
    "page: runs": 4,
    "metrics": 1,
}
"""How many of a hundred requests are of each kind."""
WARM_S = 30.0
_TOKEN = "client-{:03}-0123456789abcdef"


@dataclass
class Client:
    """A client with its own connection, and what it remembers between requests.

    Attributes
    ----------
    latencies
        Seconds until the whole answer was there, by kind of request.
    """

    number: int
    http: httpx.AsyncClient
    n_wants: int
    n_events: int
    draw: random.Random = field(default_factory=random.Random)
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.draw = random.Random(self.number)
        self.cursor = self.n_events - self.draw.randrange(20_000)

    async def log_in(self) -> None:
        """Get the cookie of a browser."""
        await self.http.post("/login", data={"token": _TOKEN.format(self.number)})

    def request(self, kind: str) -> httpx.Request:
        """Return a request of a kind; which want or source it is about is drawn."""
        ref = f"m/s{self.draw.randrange(SOURCES)}"
        day = (datetime.now(UTC) - timedelta(days=self.draw.randrange(2, 300))).date()
        paths = {
            "status of a want": f"/api/v1/wants/w{self.draw.randrange(self.n_wants)}",
            "wants of a partition": f"/api/v1/wants?partition_refs={ref}/{day}&all=true",
            "events since a cursor": f"/api/v1/events?since_idx={self.cursor}&limit=100",
            "partitions of a source": f"/api/v1/partitions?pattern={ref}/*&limit=100",
            "plan": "/api/v1/plan",
            "page: overview": "/",
            "page: sources": "/sources",
            "page: a source": f"/sources/{ref}",
            "page: wants": "/wants",
            "page: runs": "/runs",
            "metrics": "/metrics",
        }
        if kind == "register a want":
            body = {"partition_ref": f"{ref}/{day}", "sla_seconds": 86_400}
            return self.http.build_request("POST", "/api/v1/wants", json=body)
        return self.http.build_request("GET", paths[kind])

    async def send(self, kind: str) -> None:
        """Send a request, and measure how long its answer takes."""
        request = self.request(kind)
        begun = time.perf_counter()
        try:
            answer = await self.http.send(request)
        except httpx.HTTPError as error:
            self.failures.append(f"{kind}: {error!r}")
            return
        self.latencies[kind].append(time.perf_counter() - begun)
        if answer.status_code not in (200, 201):
            self.failures.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        elif kind == "events since a cursor":
            self.cursor = answer.json()["next_idx"]

    async def act(self, think_s: float, until: float) -> None:
        """Send requests until an instant, with pauses of `think_s` seconds on average."""
        kinds, weights = [*MIX], [*MIX.values()]
        await asyncio.sleep(self.draw.uniform(0, max(think_s, 1.0)))
        while time.monotonic() < until:
            (kind,) = self.draw.choices(kinds, weights)
            await self.send(kind)
            if think_s:
                await asyncio.sleep(self.draw.uniform(0.5, 1.5) * think_s)


def connect(url: str, number: int, n_wants: int, n_events: int) -> Client:
    """Return a client with a connection of its own."""
    http = httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {_TOKEN.format(number)}"},
        timeout=120,
        trust_env=False,
        verify=False,
    )
    return Client(number, http, n_wants, n_events)


async def load(url: str, n_clients: int, think_s: float, seconds: float, sizes: list[int]) -> None:
    """Send requests of many clients; print when they are warm, and the latencies."""
    clients = [connect(url, n, *sizes) for n in range(n_clients)]
    for client in clients:
        await client.log_in()
    warm_until = time.monotonic() + WARM_S
    await asyncio.gather(*(client.act(think_s, warm_until) for client in clients))
    for client in clients:
        client.latencies.clear()
        client.failures.clear()
    print("warm", flush=True)
    until = time.monotonic() + seconds
    await asyncio.gather(*(client.act(think_s, until) for client in clients))
    latencies: dict[str, list[float]] = {kind: [] for kind in MIX}
    for client in clients:
        for kind, some in client.latencies.items():
            latencies[kind] += some
    failures = [failure for client in clients for failure in client.failures]
    print(json.dumps({"latencies": latencies, "failures": failures}), flush=True)


# ------------------------------------------------------------------------------------- the service


def cpu_s(served: Served) -> float:
    """Return the CPU seconds of the service until now, without those of its database."""
    values = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(seconds: list[float]) -> str:
    """Return the median, the 95th and 99th percentile and the maximum in milliseconds."""
    ordered = sorted(seconds)
    chosen = [
        ordered[min(int(len(ordered) * part), len(ordered) - 1)] for part in (0.5, 0.95, 0.99)
    ]
    return " | ".join(f"{1000 * value:.0f}" for value in (*chosen, ordered[-1]))


def under_load(served: Served, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a table: latencies by kind of request, and what the service used."""
    command = [sys.executable, __file__, "--load", served.url, json.dumps(vars(options))]
    clients = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert clients.stdout is not None
    assert clients.stdout.readline() == "warm\n"
    cpu, begun, load_before = cpu_s(served), time.monotonic(), os.getloadavg()[0]
    answer = json.loads(clients.stdout.readline())
    cpu, seconds = cpu_s(served) - cpu, time.monotonic() - begun
    clients.wait()
    yield "| request | answers | p50, ms | p95 | p99 | longest |\n|---|---|---|---|---|---|"
    every: list[float] = []
    for kind, some in answer["latencies"].items():
        every += some
        if some:
            yield f"| {kind} | {len(some):,} | {percentiles(some)} |"
    yield f"| all | {len(every):,} | {percentiles(every)} |"
    yield (
        f"\n{len(every) / seconds:.0f} requests/s in {seconds:.0f} s; the service used {cpu:.1f} "
        f"CPU s, {1000 * cpu / len(every):.2f} ms a request, {served.memory() / 2**20:.0f} MiB; "
        f"load of the machine before: {load_before:.1f}"
    )
    for failure in answer["failures"][:10]:
        yield f"failed: {failure}"
    yield f"{len(answer['failures'])} failed"


def one_by_one(served: Served, sizes: list[int], n: int = 20) -> Iterator[str]:
    """Yield the lines of a table: CPU and wall milliseconds of a request of each kind."""

    async def act(kind: str) -> tuple[float, float]:
        client = connect(served.url, 0, *sizes)
        await client.log_in()
        for _ in range(3):
            await client.send(kind)
        cpu, begun = cpu_s(served), time.perf_counter()
        for _ in range(n):
            await client.send(kind)
        taken = cpu_s(served) - cpu, time.perf_counter() - begun
        assert not client.failures, client.failures
        return taken

    yield "| request | CPU, ms | wall, ms |\n|---|---|---|"
    for kind in MIX:
        cpu, wall = asyncio.run(act(kind))
        yield f"| {kind} | {1000 * cpu / n:.1f} | {1000 * wall / n:.1f} |"


def prepare(root: Path, url: str | None, n_events: int, n_wants: int) -> None:
    """Write a project and fill its ledger, unless that was done before."""
    done = root / "filled"
    if done.exists():
        return
    fill_project(root)
    if url is not None:
        (root / "persist.toml").write_text(f'ledger = "{url}"\n')
    ledger = Ledger(load_settings(root).ledger)
    fill(ledger, n_events, n_wants)
    if ledger.events.database.is_postgres:
        ledger.events.database.vacuum()  # so that the planner knows the tables' sizes
    ledger.close()
    done.touch()


def measured(options: argparse.Namespace) -> Iterator[str]:
    """Yield lines of what was measured."""
    with ExitStack() as held:
        root = Path(
            options.directory
            or held.enter_context(tempfile.TemporaryDirectory(prefix="persist-service-"))
        )
        url = None
        if options.database == "postgres":
            server = Postgres()
            held.callback(server.close)
            url = server.schema("ledger")
        root.mkdir(parents=True, exist_ok=True)
        prepare(root, url, options.events, options.wants)
        tokens = ",".join(f"c{n}:write:{_TOKEN.format(n)}" for n in range(options.clients))
        served = held.enter_context(serving(root, env={"PERSIST_TOKENS": tokens}))
        if options.each:
            yield from one_by_one(served, [options.wants, options.events])
        else:
            yield from under_load(served, options)


def main() -> None:
    """Print a table."""
    if sys.argv[1] == "--load":
        values: dict[str, Any] = json.loads(sys.argv[3])
        sizes = [values["wants"], values["events"]]
        counts = values["clients"], values["think"], values["seconds"]
        asyncio.run(load(sys.argv[2], *counts, sizes))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", choices=("sqlite", "postgres"))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--wants", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--think", type=float, default=1.0, help="seconds between requests")
    parser.add_argument("--each", action="store_true", help="measure each kind of request alone")
    parser.add_argument("--directory", help="keep the project here, and use it if it is there")
    for line in measured(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
