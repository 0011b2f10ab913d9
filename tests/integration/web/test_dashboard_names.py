"""Unusual names, addresses and projects: every page responds, and shows no secrets."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from serving import READ, WRITE
from starlette.requests import Request
from support.browser import TOKENS, Browser, browse
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.model.snapshots import Build
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.web.access import SESSION, Access, Caller
from persist_assets.web.dashboard.events import EventStreams
from persist_assets.web.dashboard.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

ODD = "a b%25#?'é&+\"<i>"
SQL = """
CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW s AS SELECT a FROM t;
"""
ADDRESSES = (
    "/",
    "/sources",
    "/runs",
    "/wants",
    "/partitions",
    "/environments",
    "/timeline",
    "/sla",
    "/events",
)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


class Bare:
    """Settings and ledger, as a builder has them, of a project that may not compile."""

    def __init__(self, root: Path) -> None:
        self.settings = load_settings(root)
        self.ledger = Ledger(self.settings.ledger)


def browse_bare(root: Path, act: Callable[[Browser], object], token: str | None = None) -> None:
    bare = Bare(root)
    try:
        browse(bare, act, token)  # type: ignore[arg-type]
    finally:
        bare.ledger.close()


def links(text: str) -> set[str]:
    hrefs = {html.unescape(h) for h in re.findall(r'href="(/[^"]*)"', text)}
    return {h for h in hrefs if not h.startswith("/static")}


@pytest.mark.proves("W24")
def test_links_and_logins_work_for_names_with_special_characters(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({f"{ODD}.sql": SQL})
    key = f"{ODD}/s"
    page = f"/sources/{quote(key)}"

    async def act(browser: Browser) -> None:
        settings, ledger = browser.graph.settings, browser.graph.ledger
        for n in range(25):
            build = Build(
                f"b{n}",
                f"s@sources/{ODD}.sql",
                "i",
                "d",
                "dev",
                f"run {n} {ODD}",
                "started",
                "built",
                browser.graph.clock(),
            )
            ledger.builds.record_started(build, "t")
            ledger.builds.record_failed(build, f"{n} {ODD}")
        ledger.wants.create([Want(f"want {ODD}", key, "dev", browser.graph.clock())])
        client = browser.client
        assert settings.environment == "dev"
        await client.post("/logout")  # has no form token, so the session does not end
        seen = dict[str, int]()
        ahead = ["/", page]
        while ahead:
            address = ahead.pop()
            if address in seen or "sort=" in address:
                continue
            answer = await client.get(address)
            seen[address] = answer.status_code
            assert "<i>" not in answer.text, address
            ahead += links(answer.text)
        assert set(seen.values()) == {200}, {a: s for a, s in seen.items() if s != 200}
        assert f"{page}?page=2" in seen, [a for a in seen if "page=" in a]
        for start in ("/runs/run", "/wants/want", "/partitions/a", "/retry?ref=a", "/taint?ref=a"):
            assert any(address.startswith(start) for address in seen), start
        client.cookies.clear()
        login = (await client.get(f"{page}?page=2")).headers["location"]
        answer = await client.post(login, data={"token": WRITE})
        assert answer.headers["location"] == f"{page}?page=2"

    browse_bare(root, act, WRITE)


@pytest.mark.proves("W24")
@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/sources\\..\\evil",
        "/logout",
        "javascript:alert(1)",
        "/sources@evil.example",
        "/%09/evil.example",
        "\t//evil.example",
    ],
)
def test_a_login_redirects_only_to_pages_of_the_service(
    make_project: Callable[..., Path], target: str
) -> None:
    async def act(browser: Browser) -> None:
        address = f"/login?next={quote(target, safe='')}"
        answer = await browser.client.post(address, data={"token": READ})
        place = urlsplit(answer.headers["location"])
        assert (place.netloc, place.path) == ("", "/"), answer.headers["location"]

    browse_bare(make_project({"m.sql": SQL}), act, READ)


@pytest.mark.proves("W24")
def test_no_address_causes_a_server_error(make_project: Callable[..., Path]) -> None:
    """The service never responds with status 500, whatever the parameters are."""
    odd = ("%00", "%FF", "%0A%0D", "x" * 10_000, "..%2f..%2fetc", "%F0%9F%98%80", "-1", "'\"--")
    instants = ("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "2024-13-01")
    addresses = [
        *(f"/{page}/{x}" for page in ("sources", "runs", "wants", "partitions") for x in odd),
        *(f"/environments/{x}" for x in odd),
        *(f"/{page}?ref={x}" for page in ("taint", "retry") for x in odd),
        *(f"/promote?from={x}&to={x}&allow_stale={x}" for x in odd),
        *(f"/rollback?environment=dev&to={x}" for x in odd),
        *(f"/sources?q={x}&state={x}&sort={x}&page={x}" for x in odd),
        *(f"/wants?made={x}&pattern={x}&state={x}" for x in odd),
        *(f"/runs?before={x}&run={x}" for x in (*odd, *instants)),
        *(f"/environments/dev?against={x}&page={x}" for x in odd),
        *(f"/static/{x}" for x in (*odd, "%2e%2e/session.py", "..%2fsession.py", "//etc/passwd")),
    ]

    async def act(browser: Browser) -> None:
        for address in addresses:
            answer = await browser.client.get(address)
            assert answer.status_code < 500, (address[:100], answer.status_code, answer.text)
            assert "root:" not in answer.text and "import annotations" not in answer.text
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy

    browse_bare(make_project({"m.sql": SQL}), act)


@pytest.mark.proves("W24")
@pytest.mark.parametrize(
    "files",
    [None, {}, {"m.sql": "CREATE VIEW x AS SELEC 1 FROM ("}],
    ids=["no directory", "no files", "broken"],
)
def test_a_project_without_valid_sources_has_pages(
    make_project: Callable[..., Path], files: Mapping[str, str] | None
) -> None:
    root = make_project(files or {})
    if files is None:
        (root / "sources").rmdir()

    async def act(browser: Browser) -> None:
        for address in ADDRESSES:
            answer = await browser.client.get(address)
            assert answer.headers["content-type"].startswith("text/html"), (address, answer.text)
            assert answer.status_code < 500, (address, answer.text)
            assert "All sources are current" not in answer.text
        if files:
            assert "m/x" in await browser.see("/sources")
            assert "1 error" in await browser.see("/")
            assert "unexpected" in await browser.see("/sources/m/x")

    browse_bare(root, act)


SECRETS = """
CREATE TABLE bucket (a INT) USING parquet LOCATION 's3a://me:hunter2@bucket/t';
CREATE TABLE shared (a INT) USING parquet LOCATION 'https://h.example/t?sig=hunter2&page=1';
CREATE VIEW broken AS SELEC 'jdbc:postgresql://me:hunter2@h/db' FROM (;
"""


def test_no_page_shows_a_password(make_project: Callable[..., Path]) -> None:
    root = make_project({"m.sql": SECRETS, "n.sql": SQL})

    async def act(browser: Browser) -> None:
        build = Build(
            "b", "s@sources/n.sql", "i", "d", "dev", "r", "started", "built", browser.graph.clock()
        )
        browser.graph.ledger.builds.record_started(build, "t")
        error = "cannot connect to jdbc:postgresql://me:hunter2@h/db?password=hunter2"
        browser.graph.ledger.builds.record_failed(build, error)
        for address in (
            "/",
            "/sources",
            "/sources?q=t",
            "/sources/m/bucket",
            "/sources/m/shared",
            "/sources/m/broken",
            "/sources/n/s",
            "/runs/r",
            "/partitions/n/s",
        ):
            answer = await browser.client.get(address)
            assert answer.status_code == 200, (address, answer.text)
            assert "hunter2" not in answer.text, address
        assert "cannot connect" in await browser.see("/runs/r")

    browse_bare(root, act)


def test_a_stream_of_events_ends_with_its_session(make_project: Callable[..., Path]) -> None:
    async def act(browser: Browser) -> None:
        access = Access(TOKENS, clock=time.time)
        cookie = access.begin(READ)
        headers = [(b"cookie", f"{SESSION}={cookie}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/stream", "headers": headers}
        request = Request({**scope, "query_string": b"since=0"})
        want = Want("w", "m/s", "dev", browser.graph.clock())
        browser.graph.ledger.wants.create([want])
        frame = Frame(browser.graph, access)
        answer = await EventStreams().stream(frame, request, Caller("dash", "read"))
        events: Any = answer.body_iterator  # type: ignore[attr-defined]
        assert "retry" in await anext(events) and "want-created" in await anext(events)
        access.end(cookie)
        assert [event async for event in events] == []

    browse_bare(make_project({"m.sql": SQL}), act)


def test_clients_cannot_forge_log_lines(
    make_project: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def act(browser: Browser) -> None:
        body = {"partition_ref": "x\naction=forged"}
        answer = await browser.client.post("/api/v1/wants", json=body)
        assert answer.status_code == 404
        await browser.client.get("/promote%0Aaction=forged?from=x%0Aaction=forged")
        await browser.client.get("/rollback?environment=dev&to=x%0Aaction=forged")

    browse_bare(make_project({"m.sql": SQL}), act)
    lines = [line for r in caplog.records for line in r.getMessage().splitlines()]
    assert any("action=refuse" in line for line in lines)
    assert not [line for line in lines if line.startswith("action=forged")], lines
