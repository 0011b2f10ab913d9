"""Take the pictures of the docs: the demo, built, in a real `dagster dev`.

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
from pathlib import Path

from playwright.sync_api import sync_playwright

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


def main() -> None:
    """Write docs/images/graph.png."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as temporary:
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
            take(url, temporary)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def take(url: str, profile: str) -> None:
    """Take the pictures of a running UI."""
    while True:
        try:
            urllib.request.urlopen(f"{url}/server_info", timeout=5)
            break
        except OSError:
            time.sleep(0.5)
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            f"{profile}/profile",
            executable_path="/usr/bin/chromium",
            args=FLAGS,
            headless=True,
            viewport={"width": 1740, "height": 1100},
        )
        page = context.pages[0]
        page.goto(f"{url}/asset-groups/~")
        page.get_by_text("Hide navigation").click()
        page.get_by_text("monthly_trend").first.wait_for()
        page.wait_for_timeout(20000)
        page.screenshot(
            path=ROOT / "docs" / "images" / "graph.png",
            clip={"x": 372, "y": 110, "width": 1318, "height": 970},
        )
        context.close()


if __name__ == "__main__":
    main()
