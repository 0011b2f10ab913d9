"""The dashboard's pages of a project with builds, and its actions, which need confirmation."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from serving import READ, WRITE
from support.browser import Browser, browse, build, put
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.errors import BuildError, CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

EVIL = "<img src=x onerror=alert(1)>"
SQL = f"""
CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
-- Sums. {EVIL}
CREATE VIEW total AS SELECT b, sum(a) AS s FROM t GROUP BY b;
--@ persist
CREATE VIEW top AS SELECT max(s) AS s FROM total;
--@ persist
--@ check {{ row_count.max=3 }}
CREATE VIEW small AS SELECT a FROM t;
"""
SETTINGS = "[env.prod]\n[env.qa]\n"


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SQL}, settings=SETTINGS)
    put(made, 0, 2)
    return made


def links(text: str) -> set[str]:
    hrefs = {h.replace("&amp;", "&") for h in re.findall(r'href="(/[^"#]*)"', text)}
    return {h for h in hrefs if not h.startswith("/static")}


@pytest.mark.proves("W24")
def test_the_pages_show_stale_failed_and_current_sources(
    root: Path, enter: Callable[..., Builder]
) -> None:
    first = enter(root)

    async def before(browser: Browser) -> None:
        page = await browser.see("/")
        assert "3 not built" in page and "0 stale" in page and "m/total" in page

    browse(first, before)
    build(first)
    put(root, 1, 4)
    second = enter(root, run_id="second")
    with pytest.raises(CheckFailedError):
        build(second, "small")

    async def after(browser: Browser) -> None:
        page = await browser.see("/")
        assert "1 failed" in page and "3 stale" in page and "0 current" in page, page
        assert "row_count" in page, "the error is on the first page"
        failed = await browser.see("/sources?state=failed")
        assert "m/small" in failed and "m/total" not in failed
        sorted_up = await browser.see("/sources?sort=source")
        assert sorted_up.index("m/small") < sorted_up.index("m/total")
        sorted_down = await browser.see("/sources?sort=-source")
        assert sorted_down.index("m/small") > sorted_down.index("m/total")
        searched = await browser.see("/sources?q=SUMS")
        assert "m/total" in searched and "m/top" not in searched
        assert "m/t" in await browser.see("/sources?q=parquet"), "raw tables are found"
        one = await browser.see("/sources/m/small")
        for words in ("Retry", "The last build failed", "row_count", "SELECT a FROM t", "m/t"):
            assert words in one, words
        grid = one.split("Results of checks")[1].split("Wants")[0]
        assert "passed" in grid and "failed" in grid
        assert "failed" in await browser.see("/runs/second")
        assert "1 failed" in await browser.see("/runs")

    browse(second, after)


@pytest.mark.proves("W24")
def test_links_reach_every_kind_of_page_and_none_is_broken(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)

    async def crawl(browser: Browser) -> None:
        seen: dict[str, int] = {}
        ahead = ["/"]
        while ahead:
            path = ahead.pop()
            if path in seen or "sort=" in path:
                continue
            answer = await browser.client.get(path)
            seen[path] = answer.status_code
            ahead += links(answer.text)
        assert set(seen.values()) == {200}, seen
        for start in ("/sources/m/total", "/runs/run", "/environments/prod", "/partitions/m/top"):
            assert any(path.startswith(start) for path in seen), start
        assert any(re.match("/wants/.", path) for path in seen)

    browse(builder, crawl)


@pytest.mark.proves("W24")
def test_unknown_names_get_a_404_with_a_message(root: Path, enter: Callable[..., Builder]) -> None:
    async def look(browser: Browser) -> None:
        assert "did you mean" in await browser.see("/sources/m/totl", 404)
        assert "no run" in await browser.see("/runs/nothing", 404)
        assert "no want" in await browser.see("/wants/nothing", 404)
        assert "no environment" in await browser.see("/environments/prd", 404)
        assert "does not name" in await browser.see("/partitions/m/nothing", 404)
        assert "does not name" in await browser.see("/taint?ref=m/nothing", 404)
        for odd in ("/sources?page=999999&sort=x&state=x", "/runs?before=x", "/sources?page=-1"):
            await browser.see(odd)

    browse(enter(root), look)


# ----------------------------------------------------------------------------------------- actions


@pytest.mark.proves("W25")
def test_a_taint_shows_affected_partitions_and_records_the_user(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        page = await browser.see("/taint?ref=m/total")
        assert "2 partitions" in page and "m/total" in page and "m/top" in page
        assert not builder.ledger.taints.fetch("dev"), "a look changes nothing"
        assert (await browser.confirm("/taint?ref=m/total")).status_code == 303
        assert len(builder.ledger.taints.fetch("dev")) == 2
        assert "tainted" in await browser.see("/sources/m/total")
        events, _ = builder.ledger.events.search(kinds=["partition-tainted"])
        assert {e.data["by"] for e in events} == {"ops"}

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_retry_shows_the_plan_and_creates_only_one_want(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)

    async def act(browser: Browser) -> None:
        page = await browser.see("/retry?ref=m/total")
        assert "The plan" in page and "m/total" in page and "whole" in page
        for _ in range(2):
            assert (await browser.confirm("/retry?ref=m/total")).status_code == 303
        (want,) = builder.ledger.wants.fetch("dev")
        assert want.partition_ref == "m/total" and want.state == "requested"
        build(builder)
        assert "up to date" in await browser.see("/retry?ref=m/total")

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_retry_during_a_build_wants_another_one(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    (source,) = (s for s in builder.project.persisted if s.name == "total")

    async def act(browser: Browser) -> None:
        with suppress(BuildError), builder.work(source):
            assert (await browser.confirm("/retry?ref=m/total")).status_code == 303
            raise BuildError("it fails")
        (want,) = (w for w in builder.ledger.wants.fetch("dev") if "build_uid" not in w.source)
        assert (want.partition_ref, want.state) == ("m/total", "requested")

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_promotion_shows_promoted_and_refused_tables(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "total", "top")

    async def act(browser: Browser) -> None:
        page = await browser.see("/promote?from=dev&to=prod")
        assert "Refused" in page and "not built in dev" in page
        assert "Promote to prod" not in page, "there is no button while something is refused"
        differences = await browser.see("/environments/dev?against=prod")
        assert "only here" in differences
        build(builder, "small")
        page = await browser.see("/promote?from=dev&to=prod")
        assert "3 tables" in page and "Promote to prod" in page
        assert not builder.ledger.manifests.fetch("prod"), "a look changes nothing"
        answer = await browser.confirm("/promote?from=dev&to=prod")
        assert answer.headers["location"] == "/environments/prod"
        assert builder.ledger.manifests.fetch("prod") == builder.ledger.manifests.fetch("dev")
        (change,) = builder.ledger.manifests.fetch_history("prod")
        assert (change.kind, change.by) == ("promote", "ops")
        assert "get the same rows" in await browser.see("/environments/dev?against=prod")
        assert "already has" in await browser.see("/promote?from=dev&to=prod")
        assert "no environment" in await browser.see("/promote?from=dev&to=prd", 404)

    browse(builder, act, WRITE)


@pytest.mark.proves("W25")
def test_a_rollback_is_refused_if_the_environment_changed_since_it_was_shown(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder)
    first = builder.ledger.manifests.fetch_history("dev")[0].change_id
    put(root, 1, 1)
    second = enter(root, run_id="second")
    build(second, "total")
    rows = {s.source_id: s.rows for s in second.ledger.manifests.fetch("dev").values()}

    async def act(browser: Browser) -> None:
        page = await browser.see(f"/rollback?environment=dev&to={first}")
        assert "m/total" in page and "m/top" not in page.split("These changes")[1]
        form = {"environment": "dev", "to": str(first), "expected": str(first)}
        token = re.findall(r'"form_token" value="(\w+)"', (await browser.client.get("/")).text)[0]
        answer = await browser.client.post("/rollback", data={**form, "form_token": token})
        assert answer.status_code == 409 and "changed meanwhile" in answer.text
        assert (await browser.confirm("/rollback?environment=dev")).status_code == 303
        change = second.ledger.manifests.fetch_history("dev")[0]
        assert (change.kind, change.by) == ("rollback", "ops")
        assert rows == {s.source_id: s.rows for s in second.ledger.manifests.fetch("dev").values()}
        assert "no change 7000" in await browser.see("/rollback?environment=dev&to=7000", 404)

    browse(second, act, WRITE)


@pytest.mark.proves("W25")
def test_read_only_users_cannot_run_actions(root: Path, enter: Callable[..., Builder]) -> None:
    builder = enter(root)
    build(builder)

    async def act(browser: Browser) -> None:
        page = await browser.see("/taint?ref=m/total")
        assert "may only read" in page and "Taint them" not in page
        text = (await browser.client.get("/")).text
        token = re.findall(r'"form_token" value="(\w+)"', text)[0]
        for path, form in (
            ("/taint", {"ref": "m/total"}),
            ("/retry", {"ref": "m/total"}),
            ("/promote", {"from": "dev", "to": "prod"}),
            ("/rollback", {"environment": "dev", "expected": "1"}),
        ):
            fields: dict[str, Any] = {**form, "form_token": token}
            assert (await browser.client.post(path, data=fields)).status_code == 403, path
            forged = {**form, "form_token": "0" * 64}
            assert (await browser.client.post(path, data=forged)).status_code == 403, path
        assert not builder.ledger.taints.fetch("dev")
        assert not builder.ledger.manifests.fetch("prod")

    browse(builder, act, READ)
