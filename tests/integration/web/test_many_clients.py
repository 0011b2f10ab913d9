"""Many clients cost little more than one, and cached answers match the ledger."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from support.browser import Browser, browse, build, put
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.log import UNPLANNED
from persist_assets.ledger.tables import availability, wants
from persist_assets.wants.requests import taint
from persist_assets.web.app import _listen
from persist_assets.web.dashboard.standings import StandingsReader
from persist_assets.web.graph import Graph
from persist_assets.web.sharing import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.building.builder import Builder

_SECOND = timedelta(seconds=1)
SQL = """
CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW total AS SELECT b, sum(a) AS s FROM t GROUP BY b;
--@ persist
CREATE VIEW top AS SELECT max(s) AS m FROM total;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def builder(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Builder:
    root = make_project({"m.sql": SQL})
    put(root, 0)
    builder = enter(root)
    build(builder)
    return builder


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger(ledger_url)
    yield opened
    opened.close()


@contextmanager
def executed() -> Iterator[dict[str, Any]]:
    """Yield the statements that read something while the block runs, with their parameters."""
    texts: dict[str, Any] = {}

    def record(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if text.lstrip().startswith("SELECT"):
            texts[text] = values

    sa.event.listen(Engine, "before_cursor_execute", record)
    try:
        yield texts
    finally:
        sa.event.remove(Engine, "before_cursor_execute", record)


@pytest.fixture
def statements() -> Iterator[Counter[str]]:
    """The number of reads of each table."""
    tables: Counter[str] = Counter()

    def record(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.lstrip().startswith("SELECT"):
            tables.update({*re.findall(r"\b(?:FROM|JOIN) (\w+)", text)})

    sa.event.listen(Engine, "before_cursor_execute", record)
    yield tables
    sa.event.remove(Engine, "before_cursor_execute", record)


@pytest.mark.proves("Z6")
def test_concurrent_requests_share_reads_of_the_ledger(
    builder: Builder, statements: Counter[str]
) -> None:
    async def act(browser: Browser) -> None:
        alone: dict[str, Counter[str]] = {}
        for page in ("/", "/sources", "/api/v1/plan", "/metrics"):
            await browser.client.get(page)
            statements.clear()
            await browser.client.get(page)
            alone[page] = Counter(statements)
            statements.clear()
            answers = await asyncio.gather(*(browser.client.get(page) for _ in range(40)))
            assert {a.status_code for a in answers} == {200}
            assert statements.total() <= 4 * alone[page].total() + 40, (page, statements)
            assert statements["manifest_entries"] <= 3 * alone[page]["manifest_entries"]
        assert alone["/api/v1/plan"]["manifest_entries"], "a plan reads what there is now"

    browse(builder, act)


@pytest.mark.proves("Z6")
def test_new_wants_do_not_replan_tables(builder: Builder, statements: Counter[str]) -> None:
    async def act(browser: Browser) -> None:
        await browser.client.get("/")
        new = Want("w", "m/total", "dev", datetime.now(UTC), sla_s=0)
        builder.ledger.wants.create([new])
        statements.clear()
        assert "1 late" in await browser.see("/")
        assert "manifest_entries" not in statements and "taints" not in statements
        taint(builder.observer, "m/total", by="me")
        assert "2 tainted" in await browser.see("/")

    browse(builder, act)


@pytest.mark.slow
@pytest.mark.proves("Z6")
def test_cached_states_equal_freshly_read_states(
    builder: Builder, enter: Callable[..., Builder]
) -> None:
    """The states are compared after each of many random changes."""
    draw, ledger, now = random.Random(1), builder.ledger, datetime.now(UTC)
    graph = Graph(builder.settings, ledger, clock=lambda: now)
    kept, open_wants, n_changed = StandingsReader(graph), list[str](), 0
    project = graph.observer().project
    before: object = None

    def change(number: int) -> None:
        kind = draw.choice(
            ("want", "want", "want", "cancel", "cancel", "taint", "build", "elsewhere")
        )
        ref = draw.choice(("m/total", "m/top", "m/gone"))
        if kind in ("want", "elsewhere"):
            environment = "dev" if kind == "want" else "prod"
            at = now - timedelta(days=draw.randrange(-3, 9))
            want = Want(f"w{number}", ref, environment, now, data_timestamp=at, sla_s=60)
            ledger.wants.create([want])
            open_wants.extend([want.want_id] * (kind == "want"))
        elif kind == "cancel" and open_wants:
            ledger.wants.cancel(open_wants.pop(), by="me", why=None)
        elif kind == "taint" and ref != "m/gone":
            taint(builder.observer, ref, by="me")
        elif kind == "build":
            put(builder.settings.root, number % 3)
            build(enter(builder.settings.root, run_id=f"run{number}"))

    for number in range(1, 26):
        change(number)
        now += timedelta(hours=draw.randrange(9))
        states = kept._find(project, None)
        assert states == StandingsReader(graph)._find(project, None)
        n_changed, before = n_changed + (states != before), states
    assert n_changed > 7


@pytest.mark.proves("Z6")
def test_a_cached_value_is_read_again_after_any_relevant_event(
    builder: Builder,
) -> None:
    ledger, key, n = builder.ledger, object(), 0
    count: Kept[int] = Kept(ledger.events, UNPLANNED)

    def read() -> int:
        nonlocal n
        n += 1
        return n

    assert [count.get(key, read) for _ in range(3)] == [1, 1, 1]
    ledger.wants.create([Want("w", "m/total", "dev", datetime.now(UTC))])
    assert count.get(key, read) == 1
    assert count.get(object(), read) == 2, "it depends on another object"
    ledger.wants.create([Want("v", "m/total", "dev", datetime.now(UTC))])
    ledger.manifests.promote(("dev",), "prod", {})
    ledger.wants.create([Want("u", "m/total", "dev", datetime.now(UTC))])
    assert count.get(key, read) == 3, "one of several events counts"
    mark, _ = ledger.events.mark(None, ())
    ledger.wants.create([Want("t", "m/total", "dev", datetime.now(UTC))])
    assert mark.at is not None
    other = replace(mark, at=mark.at - timedelta(seconds=1))
    assert ledger.events.mark(mark, UNPLANNED)[1]
    assert not ledger.events.mark(other, UNPLANNED)[1], "the event is of another log"
    assert not ledger.events.mark(replace(mark, idx=99_999), UNPLANNED)[1]


@pytest.mark.proves("Z6")
def test_wants_and_partitions_with_a_common_prefix_are_found_by_an_index(ledger: Ledger) -> None:
    database, now = ledger.events.database, datetime.now(UTC)
    refs = [f"m/s{n % 200}/{n // 200:05}" for n in range(8000)]
    with database.write() as connection:
        common = {"environment": "dev", "source": {}, "failures": 0, "state": "waiting"}
        rows = [
            {**common, "want_id": f"w{n}", "partition_ref": r, "created_at": now + n * _SECOND}
            for n, r in enumerate(refs)
        ]
        connection.execute(wants.insert(), rows)
        common = {"environment": "dev", "graph": "", "state": "available", "at": now, "idx": 1}
        connection.execute(availability.insert(), [{"partition_ref": r, **common} for r in refs])
    if database.is_postgres:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
            connection.commit()
    with executed() as texts:
        of_source = ledger.wants.fetch("dev", pattern="m/s7/*", limit=20)
        states = ledger.partitions.fetch("dev", pattern="m/s7/*", limit=1000)
    assert [w.partition_ref for w in of_source] == [f"m/s7/{n:05}" for n in range(20, 40)]
    assert [s.partition_ref for s in states] == [f"m/s7/{n:05}" for n in range(40)]
    explain = "EXPLAIN" if database.is_postgres else "EXPLAIN QUERY PLAN"
    found_by = "partition_ref ~>=~" if database.is_postgres else "partition_ref>? AND"
    read = {t: v for t, v in texts.items() if "FROM wants" in t or "FROM availability" in t}
    assert len(read) == 3
    with database.read() as connection:
        for text, values in read.items():
            plan = str(connection.exec_driver_sql(f"{explain} {text}", values).all())
            assert found_by in plan, (text, plan)
    few = ledger.partitions.fetch("dev", pattern="m/*/00003", limit=7)
    assert [s.partition_ref for s in few] == sorted(r for r in refs if r.endswith("/00003"))[:7]
    assert len(ledger.wants.fetch("dev", pattern="m/**", limit=50)) == 50
    assert ledger.wants.fetch("prod", pattern="m/s7/*") == []
    assert ledger.wants.fetch("dev", pattern="m/s7/*", states=("satisfied",)) == []


@pytest.mark.proves("Z6")
def test_connections_of_the_service_use_tcp_nodelay() -> None:
    async def act() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            seen.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with closing(_listen("127.0.0.1", 0)) as listening:
            server = await asyncio.start_server(meet, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            answer = await seen
            writer.close()
            server.close()
        return answer

    assert asyncio.run(act()), "the body would wait for the acknowledgement of the head"
