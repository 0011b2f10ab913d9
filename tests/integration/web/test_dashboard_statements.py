"""The dashboard's statements are correct: states, confirmations, runs and differences."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from serving import WRITE
from support.browser import Browser, browse, build, put
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.model.snapshots import Build
from persist_assets.core.wants import Want
from persist_assets.ledger.processes import THIS_MACHINE
from persist_assets.ledger.tables import builds
from persist_assets.web import graph as web_graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.ledger.ledger import Ledger

SQL = """
CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW total AS SELECT b, sum(a) AS s FROM t GROUP BY b;
--@ persist
CREATE VIEW top AS SELECT max(s) AS s FROM total;
"""
SETTINGS = '[env.prod]\nviews = "{name}"\n[env.qa]\nreads = "dev"\n'
NOW = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SQL}, settings="[env.prod]\n[env.qa]\n")
    put(made, 0)
    return made


def record(
    ledger: Ledger, run: str | None, n: int, at: datetime, source: str = "total", state: str = ""
) -> str:
    """Record a build of a run, failed unless its state is `started`, and return its uid."""
    uid = f"{run}-{n}"
    started = Build(uid, f"{source}@sources/m.sql", "i", "d", "dev", run, "started", "built", at)
    ledger.builds.record_started(started, "t")
    if state != "started":
        ledger.builds.record_failed(started, "in vain")
    return uid


# ------------------------------------------------------------------------------------------ states


@pytest.mark.proves("W24")
def test_no_source_is_shown_as_current_before_it_is_planned(
    root: Path, enter: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_graph, "_SOON_S", 0.05)
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        is_over = threading.Event()
        planning = asyncio.ensure_future(browser.graph.plan(lambda: is_over.wait(20)))
        await browser.graph.glance(browser.graph.observer)
        page = await browser.see("/")
        assert "2 unknown" in page and "0 current" in page
        assert "plan is being made" in page and "All sources are current" not in page
        searched = await browser.see("/sources?q=top")
        assert "m/top" in searched and "m/total" not in searched, "a search needs no plan"
        is_over.set()
        await planning
        monkeypatch.setattr(web_graph, "_SOON_S", 20)
        page = await browser.see("/")
        assert "2 current" in page and "All sources are current" in page

    browse(builder, act)


@pytest.mark.proves("W24")
def test_pages_based_on_an_old_plan_say_so(
    root: Path, enter: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        for address in ("/sources", "/sources/m/total"):
            assert "As of the plan" not in await browser.see(address)
        monkeypatch.setattr(web_graph, "_SOON_S", 0.05)
        is_over = threading.Event()
        planning = asyncio.ensure_future(browser.graph.plan(lambda: is_over.wait(20)))
        put(root, 1)
        record(builder.ledger, "r", 0, NOW)
        for address in ("/sources", "/sources/m/total"):
            assert "As of the plan" in await browser.see(address)
        is_over.set()
        await planning

    browse(builder, act)


@pytest.mark.proves("W24")
def test_a_source_is_planned_when_its_page_shows_a_changed_definition(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        assert "2 current" in await browser.see("/")
        file = root / "sources" / "m.sql"
        file.write_text(file.read_text().replace("max(s)", "min(s)"))
        page = await browser.see("/sources/m/top")
        assert "min(s)" in page and "not built" in page and "current" not in page.split("Builds")[0]

    browse(builder, act)


@pytest.mark.proves("W24")
def test_a_source_is_as_late_as_its_most_overdue_want(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    now = datetime.now(UTC)
    wants = [Want("old", "m/top", "dev", now, data_timestamp=now - timedelta(days=9), sla_s=0)]
    for n in range(520):
        at = now - timedelta(days=1, seconds=n)
        wants.append(Want(f"w{n}", "m/total", "dev", now, data_timestamp=at, sla_s=0))
    builder.ledger.wants.create(wants)

    async def act(browser: Browser) -> None:
        await browser.see("/sla")  # records the misses
        assert "late by 9 d" in await browser.see("/sources/m/top")
        assert "2 late" in await browser.see("/")
        assert "The newest 200 wants" in await browser.see("/wants")

    browse(builder, act)


# -------------------------------------------------------------------------------------------- runs


@pytest.mark.proves("W24")
def test_every_run_is_listed_once_and_with_all_of_its_builds(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    expected: dict[str, int] = {}
    for n in range(60):  # runs overlap, and some start at the same instant
        run = f"run{n:03}"
        expected[run] = 3 + n % 5
        for k in range(expected[run]):
            record(builder.ledger, run, k, NOW + timedelta(seconds=n // 2 + 7 * k))
    other = Build("o", "x@m.sql", "i", "d", "prod", "other", "started", "built", NOW)
    builder.ledger.builds.record_started(other, "o")

    async def act(browser: Browser) -> None:
        rows: list[tuple[str, int]] = []
        address: str | None = "/runs"
        while address:
            page = (await browser.client.get(address)).text
            rows += [(r, int(n)) for r, n in re.findall(r'runs/(\w+)">.*?(\d+) failed', page)]
            older = re.search(r'rel="next" href="([^"]*)"', page)
            address = html.unescape(older[1]) if older else None
        assert len(rows) == 60 and dict(rows) == expected
        assert rows == sorted(rows, key=lambda r: (-(int(r[0][3:]) // 2), r[0]))
        assert "It built in" not in await browser.see("/runs/run001")
        page = await browser.see("/runs/other")
        assert "It built in prod" in page and "Retry" not in page

    browse(builder, act)


@pytest.mark.proves("W24")
def test_a_build_without_a_run_has_a_page(root: Path, enter: Callable[..., Builder]) -> None:
    builder = enter(root, run_id=None)
    build(builder, "total")

    async def act(browser: Browser) -> None:
        (run,) = re.findall(r'href="(/runs/[^"]+)"', (await browser.client.get("/runs")).text)
        assert "m/total" in await browser.see(run)

    browse(builder, act)


@pytest.mark.proves("W24")
def test_builds_of_dead_processes_are_shown_as_interrupted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    uid = record(builder.ledger, "dead", 0, NOW, state="started")

    async def act(browser: Browser) -> None:
        assert "1 building" in await browser.see("/runs/dead")
        with builder.ledger.events.database.write() as connection:
            dead = f"{THIS_MACHINE}:{2**22 + 1}"
            this = builds.c.build_uid == uid
            connection.execute(builds.update().where(this).values(process=dead))
        for address in ("/runs", "/runs/dead", "/", "/sources/m/total", "/partitions/m/total"):
            page = (await browser.see(address)).replace("0 building", "")
            main = page.split("Events", 1)[1]
            assert "building" not in main.replace("building Last", ""), (address, main)
        assert "interrupted" in await browser.see("/runs/dead")

    browse(builder, act)


# ----------------------------------------------------------------------------------- confirmations


@pytest.mark.proves("W25")
def test_the_retry_page_lists_stale_upstream_sources(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)
    put(root, 1)

    async def act(browser: Browser) -> None:
        assert "2 stale" in await browser.see("/")
        page = await browser.see("/retry?ref=m/top")
        assert "up to date" not in page
        plan = page.split("The plan")[1]
        assert "m/total" in plan and "m/top" in plan

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_taint_is_rejected_if_it_affects_more_than_was_shown(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "total")

    async def act(browser: Browser) -> None:
        action, fields = await browser.form("/taint?ref=m/total")
        build(builder, "top")
        for sent in (fields, {**fields, "expected": ""}):
            answer = await browser.client.post(action, data=sent)
            assert answer.status_code == 409, answer.text
        assert not builder.ledger.taints.fetch("dev")
        assert "2 partitions" in await browser.see("/taint?ref=m/total")
        assert (await browser.confirm("/taint?ref=m/total")).status_code == 303

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_an_unbuilt_source_cannot_be_tainted(root: Path, enter: Callable[..., Builder]) -> None:
    async def act(browser: Browser) -> None:
        page = await browser.see("/taint?ref=m/total")
        assert "has not been built" in page and "Taint them" not in page

    browse(enter(root), act, WRITE)


@pytest.mark.proves("W25")
def test_a_promotion_is_rejected_if_it_differs_from_the_preview(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        action, fields = await browser.form("/promote?from=dev&to=prod")
        put(root, 1)
        build(enter(root, run_id="second"))
        answer = await browser.client.post(action, data=fields)
        assert answer.status_code == 409 and "changed meanwhile" in answer.text
        fields.pop("expected")
        assert (await browser.client.post(action, data=fields)).status_code == 409
        assert not builder.ledger.manifests.fetch("prod")
        assert (await browser.confirm("/promote?from=dev&to=prod")).status_code == 303

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_rollback_shows_the_current_and_the_restored_tables(
    root: Path, enter: Callable[..., Builder]
) -> None:
    for n in range(3):
        put(root, n, rows=2)
        builder = enter(root, run_id=f"run-{n}")
        for source in builder.project.persisted:
            builder.build(source)
    versions = {
        c.run_id: m.after.built_at
        for c in builder.ledger.manifests.fetch_history("dev")
        for m in c.moves
        if m.after and m.source_id.startswith("total")
    }
    first = min(c.change_id for c in builder.ledger.manifests.fetch_history("dev"))

    async def act(browser: Browser) -> None:
        text = (await browser.client.get(f"/rollback?environment=dev&to={first}")).text
        table = text.split("Readers get now")[1]
        (row,) = re.findall(r"<tr>.*?m/total.*?</tr>", table)
        now, then = re.findall(r'datetime="([^"]+)"', row)
        assert datetime.fromisoformat(now) == versions["run-2"]
        assert datetime.fromisoformat(then) == versions["run-0"]
        action, fields = await browser.form(f"/rollback?environment=dev&to={first}")
        for name, value in (("expected", ""), ("to", "x"), ("expected", "x")):
            answer = await browser.client.post(action, data={**fields, name: value})
            assert answer.status_code == 422, (name, value, answer.text)
        assert (await browser.client.get("/rollback?environment=dev&to=x")).status_code == 422

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_actions_that_need_spark_have_no_button(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL}, settings=SETTINGS)
    put(root, 0)
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        page = await browser.see("/promote?from=dev&to=prod")
        assert "persist promote dev prod" in page and "Promote to prod" not in page
        settings = replace(builder.settings, views="v_{name}")
        browser.graph.settings = settings
        page = await browser.see("/rollback?environment=dev")
        assert "persist rollback --env dev" in page and "Nothing is copied" not in page

    browse(builder, act, WRITE)


# ------------------------------------------------------------------------------------ environments


@pytest.mark.proves("W24")
def test_a_comparison_of_environments_uses_the_rows_that_readers_get(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL}, settings='[env.qa]\nreads = "dev"\n')
    put(root, 0)
    build(enter(root, environment="qa"))
    put(root, 1)
    builder = enter(root, run_id="second")
    build(builder)
    dev = builder.ledger.manifests.fetch("dev")
    assert builder.ledger.manifests.fetch("qa", "dev") == dev, "readers of qa get the newer rows"

    async def act(browser: Browser) -> None:
        page = await browser.see("/environments/qa?against=dev")
        assert "get the same rows" in page, page

    browse(builder, act)


@pytest.mark.proves("W24")
def test_partitions_of_an_environment_that_is_read_are_available(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL}, settings='[env.qa]\nreads = "dev"\n')
    put(root, 0)
    build(enter(root))

    async def act(browser: Browser) -> None:
        assert "available" in (await browser.see("/partitions/m/top")).split("Builds of")[0]
        assert "2 current" in await browser.see("/")

    browse(enter(root, environment="qa", run_id="qa"), act)


@pytest.mark.proves("W24")
def test_an_environment_that_is_no_longer_declared_has_a_page(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, environment="qa"))
    settings = (root / "persist.toml").read_text()
    (root / "persist.toml").write_text(settings.replace("[env.qa]\n", ""))

    async def act(browser: Browser) -> None:
        page = await browser.see("/environments/qa")
        assert "unknown environment" in page and "m/total" in page and "Roll back" not in page

    browse(enter(root), act, WRITE)


@pytest.mark.proves("W24")
def test_events_are_shown_even_if_the_latest_ones_are_of_another_environment(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)
    for n in range(101):
        builder.ledger.wants.create([Want(f"w{n}", "m/total", "qa", NOW)])

    async def look(browser: Browser) -> None:
        page = await browser.see("/events")
        assert "build-succeeded" in page and "want-created" not in page.split("build-started")[0]

    browse(builder, look)


@pytest.mark.proves("W24")
def test_partitions_of_an_earlier_definition_are_shown_as_stale(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    edited = SQL.replace("sum(a)", "sum(a + 1)")
    (root / "sources" / "m.sql").write_text(edited)
    builder = enter(root, run_id="second")

    async def look(browser: Browser) -> None:
        assert "all: stale" in await browser.see("/partitions")
        assert "stale" in await browser.see("/partitions/m/total")
        build(builder)
        assert "stale" not in await browser.see("/partitions")
        assert "available" in await browser.see("/partitions/m/total")

    browse(builder, look)
