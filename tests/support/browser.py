"""A client of the service in this process, which sends the forms of the dashboard's pages."""

from __future__ import annotations

import asyncio
import html
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from serving import READ, WRITE

from persist_assets.web.access import parse_tokens
from persist_assets.web.app import make_app
from persist_assets.web.graph import Graph

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

TOKENS = parse_tokens(f"dash:read:{READ},ops:write:{WRITE}")


class Browser:
    """A client of the service in this process that has logged in, or that need not."""

    def __init__(self, client: httpx.AsyncClient, graph: Graph) -> None:
        self.client, self.graph = client, graph

    async def see(self, path: str, status: int = 200) -> str:
        """Return the text of a page without its tags."""
        answer = await self.client.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", answer.text)
        return " ".join(re.sub("<[^>]+>", " ", answer.text).split())

    async def form(self, path: str) -> tuple[str, dict[str, str]]:
        """Return where the form of the page that asks for confirmation goes, and its fields."""
        page = (await self.client.get(path)).text
        action = re.findall(r'<form method="post" action="(/[a-z]+)" class="inline">', page)[-1]
        assert action != "/logout", "the page has no form"
        form = page.split(f'action="{action}"')[1].split("</form>")[0]
        fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
        return action, {name: html.unescape(value) for name, value in fields}

    async def confirm(self, path: str) -> httpx.Response:
        """Send the form of the page that asks for confirmation."""
        action, fields = await self.form(path)
        return await self.client.post(action, data=fields)


def browse(
    builder: Builder, act: Callable[[Browser], Awaitable[None]], token: str | None = None
) -> None:
    """Have a browser of the builder's environment act; with a token, it logs in."""

    @asynccontextmanager
    async def served() -> AsyncGenerator[Browser]:
        graph = Graph(builder.settings, builder.ledger)
        graph.start()
        app = make_app(graph, TOKENS if token else {})
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            if token:
                await client.post("/login", data={"token": token})
            yield Browser(client, graph)
        await graph.close()

    async def run() -> None:
        async with served() as browser:
            await act(browser)

    asyncio.run(run())


def put(root: Path, part: int, rows: int = 2) -> None:
    """Add a file with some rows to the raw table `t`."""
    (root / "raw" / "t").mkdir(parents=True, exist_ok=True)
    table = pa.table({"a": pa.array([*range(rows)], pa.int32()), "b": ["x"] * rows})
    pq.write_table(table, root / "raw" / "t" / f"{part}.parquet")


def build(builder: Builder, *names: str) -> None:
    """Build sources, or all of them."""
    for source in builder.project.persisted:
        if not names or source.name in names:
            builder.build(source)
