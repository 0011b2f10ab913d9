"""The static docs site of a project, opened from files in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import document
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = """
-- Every flight there was.
CREATE TABLE flights (day DATE, origin STRING, delay INT) USING parquet LOCATION 'f';
--@ persist tags=[nightly]
-- Delays per day, <em>not</em> per flight.
CREATE VIEW daily AS SELECT day, avg(delay) AS mean_delay FROM flights GROUP BY day;
CREATE VIEW worst AS SELECT max(mean_delay) AS greatest FROM daily;
"""


@pytest.mark.slow
@pytest.mark.proves("P30")
def test_the_docs_site_finds_sources_by_search_and_its_links_work(
    make_shared_project: Callable[..., Path], page: Any
) -> None:
    root = make_shared_project({"m.sql": SOURCES})
    site = Path(document("docs", cwd=root)["directory"])
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto((site / "index.html").as_uri())
    search = page.get_by_label("Search")
    for text, found in (
        ("mean_delay", ["m/daily"]),
        ("NIGHTLY daily", ["m/daily"]),
        ("per flight", ["m/daily"]),
        ("<em>", ["m/daily"]),
        ("nothing of it", []),
        ("", ["m/daily", "m/flights", "m/worst"]),
    ):
        search.fill(text)
        assert page.locator("tbody tr:visible a").all_inner_texts() == found
        if text:
            page.get_by_role("status").filter(has_text=f"{len(found)} of 3").wait_for()
    search.fill("mean_delay")
    page.get_by_role("link", name="m/daily").click()
    page.get_by_role("heading", name="m/daily").wait_for()
    page.get_by_role("row").filter(has_text="mean_delay").get_by_role("link").last.click()
    page.get_by_role("heading", name="m/worst").wait_for()
    page.get_by_role("link", name="Graph").click()
    page.locator("svg a").first.click()  # a node of the graph
    page.get_by_role("heading", name="m/flights").wait_for()

    (ROOT / "artifacts").mkdir(exist_ok=True)
    page.set_viewport_size({"width": 360, "height": 740})
    for path in ("index", "graph", "problems", "sources/m.daily"):
        page.goto((site / f"{path}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.screenshot(path=ROOT / "artifacts" / f"docs-{Path(path).name}.png")
    assert not errors, errors
