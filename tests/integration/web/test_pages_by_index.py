"""Dashboard pages read only the builds that they show; indexes answer the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from support.browser import Browser, browse, build, put
from support.duckdb_engine import MakeEngine, engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.building.builder import Builder

SQL = """
CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW total AS SELECT b, sum(a) AS s FROM t GROUP BY b;
"""
PAGES = ("/", "/sources", "/sources/m/total", "/runs", "/wants", "/partitions", "/environments/dev")
WIDE = re.compile(r"SCAN builds$|builds USING INDEX (?!ix_builds_under_way)\w+ \(environment=\?\)$")
"""Query plans of SQLite that read all builds of an environment, or of all environments."""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def statements() -> Iterator[dict[str, Any]]:
    """Yield the executed SELECT statements, each with its parameters."""
    executed: dict[str, Any] = {}

    def record(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if text.lstrip().startswith("SELECT"):
            executed[text] = values

    sa.event.listen(Engine, "before_cursor_execute", record)
    yield executed
    sa.event.remove(Engine, "before_cursor_execute", record)


@pytest.mark.proves("Z4")
def test_pages_never_scan_all_builds_of_an_environment(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    statements: dict[str, Any],
) -> None:
    root = make_project({"m.sql": SQL})
    put(root, 0)
    builder = enter(root)
    build(builder)
    statements.clear()

    async def act(browser: Browser) -> None:
        for page in PAGES:
            await browser.see(page)

    browse(builder, act)
    read = {text: values for text, values in statements.items() if "FROM builds" in text}
    # The index covers the columns of this join, so SQLite reads only matching rows.
    latest = {text for text in read if "builds.started_at = anon_1.last" in text}
    assert latest
    read = {text: values for text, values in read.items() if text not in latest}
    assert len(read) > 5
    with builder.ledger.events.database.read() as connection:
        for text, values in read.items():
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
            wide = [step.detail for step in plan if WIDE.search(step.detail)]
            assert not wide, text
