"""Take the pictures of the docs: the demo, built, in `dagster dev`, the dashboard and the site.

Run `make demo` first. Needs Debian's Chromium.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
ONE_GROUP = """
from persist_assets import AssetTranslator, load_sources


class OneGroup(AssetTranslator):
    def asset_spec(self, source):
        return super().asset_spec(source).replace_attributes(group_name="flights")


defs = load_sources({sources!r}, translator=OneGroup)
"""


PERSIST = [sys.executable, "-P", "-m", "persist_assets.cli"]
IMAGES = ROOT / "docs" / "images"
SIZE: ViewportSize = {"width": 1280, "height": 860}


def main() -> None:
    """Write the pictures into docs/images."""
    with tempfile.TemporaryDirectory() as temporary:
        take_graph(temporary)
        take_dashboard(temporary)
        take_site(temporary)


def take_graph(temporary: str) -> None:
    """Write graph.png: the assets of the demo in Dagster's UI."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    definitions = Path(temporary, "definitions.py")
    sources = str(ROOT / "examples" / "flights" / "sources")
    definitions.write_text(ONE_GROUP.format(sources=sources))
    dagster = str(Path(sys.executable).parent / "dagster")
    process = subprocess.Popen(
        [dagster, "dev", "-f", str(definitions), "-h", "127.0.0.1", "-p", url.split(":")[-1]],
        cwd=ROOT,
        env={**os.environ, "DAGSTER_HOME": str(ROOT / ".persist" / "dagster")},
        start_new_session=True,
    )
    try:
        wait_for(url)
        with browser(f"{temporary}/dagster", {"width": 1740, "height": 1100}) as page:
            page.goto(f"{url}/asset-groups/~")
            page.get_by_text("Hide navigation").click()
            page.get_by_text("monthly_trend").first.wait_for()
            page.wait_for_timeout(20000)  # until the graph has its layout and the builds' states
            page.screenshot(
                path=IMAGES / "graph.png", clip={"x": 372, "y": 110, "width": 1318, "height": 970}
            )
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def take_dashboard(temporary: str) -> None:
    """Write dashboard.png and dashboard-source.png: the demo in the dashboard."""
    for _ in range(2):  # charts need several builds
        subprocess.run([*PERSIST, "build", "daily_delays", "--force"], cwd=ROOT, check=True)
    process = subprocess.Popen(
        [*PERSIST, "serve", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        with browser(f"{temporary}/dashboard", SIZE) as page:
            page.goto(url)
            page.get_by_text("As of the plan").wait_for()
            page.screenshot(path=IMAGES / "dashboard.png")
            page.get_by_role("link", name="Sources").click()
            page.get_by_role("link", name="daily_delays").first.click()
            page.locator(".chart canvas").first.wait_for()
            page.screenshot(path=IMAGES / "dashboard-source.png")
    finally:
        process.terminate()
        process.wait()


def take_site(temporary: str) -> None:
    """Write site.png: a source of the demo on the catalog site."""
    subprocess.run([*PERSIST, "docs", f"{temporary}/site"], cwd=ROOT, check=True)
    with browser(f"{temporary}/files", SIZE) as page:
        page.goto(f"file://{temporary}/site/index.html")
        page.get_by_role("link", name="daily_delays").first.click()
        page.get_by_role("heading", level=1).wait_for()
        page.screenshot(path=IMAGES / "site.png")


@contextmanager
def browser(profile: str, size: ViewportSize) -> Generator[Page]:
    """Yield a page of a new browser."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path="/usr/bin/chromium", args=FLAGS, headless=True, viewport=size
        )
        yield context.pages[0]
        context.close()


def wait_for(url: str) -> None:
    """Wait until Dagster's UI answers."""
    while True:
        try:
            urllib.request.urlopen(f"{url}/server_info", timeout=5)
            break
        except OSError:
            time.sleep(0.5)


if __name__ == "__main__":
    main()
