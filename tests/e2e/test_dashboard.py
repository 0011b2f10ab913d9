"""The dashboard in a real browser, against a real service."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, need
from serving import READ, SOURCES, TOKENS, WRITE, serving, write_data
from support.duckdb_engine import DuckDBEngine

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Taint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ARTIFACTS = ROOT / "artifacts"


def shot(page: Any, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png")


@pytest.mark.slow
@pytest.mark.proves("D4", "D34")
def test_a_want_is_created_shown_and_cancelled_in_the_dashboard(
    make_shared_project: Callable[..., Path], page: Any
) -> None:
    root = make_shared_project({"m.sql": SOURCES})
    write_data(root)
    ledger = Ledger(load_settings(root).ledger)
    long_ago = datetime.now(UTC) - timedelta(days=1)
    needs = ("users:data/users",)
    late = Want(
        "late",
        "m/daily/2024-01-03",
        "dev",
        long_ago,
        data_timestamp=long_ago,
        sla_s=60,
        external_dependencies=needs,
    )
    ledger.wants.create([late])
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as service:
        page.goto(service.url)
        page.get_by_label("Token").fill(WRITE)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Wants").click()

        # With the keyboard only; a status message confirms the want, and the list shows it.
        page.get_by_text("Create a want").press("Enter")
        page.get_by_label("Partition", exact=True).fill("m/daily/2024-01-02")
        page.get_by_label("Late after").fill("9h")
        page.get_by_label("Why").fill("for the nine o'clock report, R&D")
        page.get_by_label("Why").press("Enter")
        row = page.get_by_role("row").filter(has_text="m/daily/2024-01-02")
        row.get_by_text("for the nine o'clock report, R&D").wait_for()
        page.get_by_role("status").filter(has_text="m/daily/2024-01-02 is").wait_for()
        (made,) = ledger.wants.fetch("dev", refs=["m/daily/2024-01-02"])
        assert made.source == {"type": "dashboard", "client": "ops"}
        assert made.sla_s == 9 * 3600

        # Its state is updated without a reload.
        row.get_by_text("requested").wait_for()
        ledger.requests.fail(
            ledger.requests.fetch("dev", is_open=True)[0].request_id,
            "1 row fails the check not_null(n)",
            ["m/daily/2024-01-02"],
        )
        row.get_by_text("failing").wait_for()
        shot(page, "dashboard-wants")
        row.get_by_role("button", name="Cancel the want of m/daily/2024-01-02").click()
        page.get_by_role("status").filter(has_text="is cancelled").wait_for()
        assert ledger.wants.find(made.want_id).state == "cancelled"  # type: ignore[union-attr]

        # A missed deadline shows its cause; a table has the same data as the timeline's image.
        page.get_by_role("link", name="Missed deadlines").click()
        page.get_by_role("row").filter(has_text="m/daily/2024-01-03").get_by_text(
            "not-arrived"
        ).wait_for()
        page.get_by_text("users:data/users").wait_for()
        shot(page, "dashboard-sla")
        page.get_by_role("link", name="Timeline").click()
        page.get_by_role("img").wait_for()
        page.get_by_role("row").filter(has_text="m/daily/2024-01-03").get_by_text("late").wait_for()
        shot(page, "dashboard-timeline")

        # New events appear without a reload.
        page.get_by_role("link", name="Events").click()
        page.get_by_role("row").filter(has_text="want-cancelled").wait_for()
        ledger.taints.record(["dev"], lambda *_: Taint({"m/total": "b"}), by="test")
        page.get_by_role("row").filter(has_text="partition-tainted").get_by_text(
            "m/total"
        ).wait_for()
        page.get_by_role("link", name="Partitions").click()
        page.get_by_text("all: tainted").wait_for(state="attached")
        shot(page, "dashboard-partitions")
        page.get_by_role("link", name="Environments").click()
        page.get_by_role("heading", name="dev (this one)").wait_for()

        # All pages fit a phone.
        page.set_viewport_size({"width": 360, "height": 740})
        for path in ("/", "/wants", "/timeline", "/sla", "/partitions", "/events", "/environments"):
            page.goto(service.url + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert not [e for e in errors if "401" not in e], errors
    ledger.close()


@pytest.mark.slow
def test_pages_work_without_javascript_and_readers_get_no_forms(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": SOURCES})
    write_data(root)
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as service, service.client(None) as client:
        client.post("/login", data={"token": READ})
        page = client.get("/wants").text
        assert "Create a want" not in page and "Log out" in page
        token = page.split('name="form_token" value="')[1].split('"')[0]
        sent = {"partition_ref": "m/total", "form_token": token}
        assert client.post("/wants", data=sent).status_code == 403
        assert client.post("/logout", data={"form_token": token}).headers["location"] == "/login"
        assert client.get("/").status_code == 303


@pytest.mark.slow
@pytest.mark.proves("D34")
def test_a_want_created_in_the_dashboard_is_built(
    make_shared_project: Callable[..., Path], page: Any
) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    root = make_shared_project({"m.sql": SOURCES})
    write_data(root)
    with serving(root, "--build") as service:
        page.goto(service.url + "/wants")
        page.get_by_text("Create a want").click()
        page.get_by_label("Partition", exact=True).fill("m/daily/2024-01-02")
        page.get_by_role("button", name="Create", exact=True).click()
        page.get_by_role("status").filter(has_text="m/daily/2024-01-02 is").wait_for()
        page.get_by_text("No wants match").wait_for(timeout=240_000)
        page.get_by_label("State").select_option("satisfied")
        page.get_by_role("button", name="Filter").click()
        page.get_by_role("row").filter(has_text="m/daily/2024-01-02").wait_for()
        page.get_by_role("link", name="Partitions").click()
        page.get_by_text("2024-01-02: available").wait_for(state="attached")
        page.get_by_role("link", name="Environments").click()
        page.get_by_role("link", name="dev", exact=True).click()
        page.get_by_role("row").filter(has_text="m/daily").first.wait_for()


PAGES = (
    "/",
    "/sources",
    "/sources/m/total",
    "/runs",
    "/runs/run-2",
    "/wants",
    "/partitions",
    "/partitions/m/daily",
    "/partitions/m/daily/2024-01-02",
    "/environments",
    "/environments/dev?against=prod",
    "/promote?from=dev&to=prod",
    "/rollback?environment=dev",
    "/taint?ref=m/total",
    "/retry?ref=m/daily/2024-01-02",
    "/timeline",
    "/sla",
    "/events",
)


@pytest.fixture
def built(make_shared_project: Callable[..., Path]) -> Path:
    """Return a project whose source `m/total` was built three times."""
    root = make_shared_project({"m.sql": SOURCES}, settings="[env.prod]\n")
    settings = load_settings(root)
    ledger = Ledger(settings.ledger)
    for n in range(3):
        write_data(root)
        table = pa.table(
            {
                "day": pa.array([date(2024, 1, 1)] * n, pa.date32()),
                "n": pa.array([1] * n, pa.int32()),
            }
        )
        pq.write_table(table, root / "f" / f"more-{n}.parquet")
        project = require(load_project(settings))
        builder = Builder(settings, project, ledger, DuckDBEngine(settings), run_id=f"run-{n}")
        builder.build(project.by_id["total@sources/m.sql"])
    ledger.close()
    return root


@pytest.mark.slow
@pytest.mark.proves("W24", "W25")
def test_every_page_supports_wide_screens_phones_and_dark_mode(built: Path, page: Any) -> None:
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    with serving(built) as service:
        for width, scheme in ((1600, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            for path in PAGES:
                page.goto(service.url + path)
                page.get_by_role("heading", level=1).wait_for()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                back = page.evaluate("getComputedStyle(document.body).backgroundColor")
                light = sum(map(int, back[4:-1].split(",")[:3])) / 3
                assert (light > 128) == (scheme == "light"), (path, back)
        shot(page, "dashboard-phone")

        # Charts show the builds, and so does the table beside them; times are local.
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(service.url + "/sources/m/total")
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".chart canvas").count() == 3
        assert page.get_by_role("region", name="Builds").get_by_role("row").count() == 4
        shown = page.locator("time").first
        assert shown.text_content() != shown.get_attribute("datetime")
        shot(page, "dashboard-source")

        # With the keyboard only: search, open a source, taint it, and confirm.
        page.keyboard.press("/")
        page.keyboard.type("total")
        page.keyboard.press("Enter")
        page.get_by_role("region", name="Sources").get_by_role("link", name="m/total").press(
            "Enter"
        )
        page.get_by_role("button", name="Taint").press("Enter")
        page.get_by_role("heading", name="Taint m/total?").wait_for()
        page.get_by_role("button", name="Taint them").press("Enter")
        page.get_by_text("tainted").first.wait_for()
        page.goto(service.url + "/sources/m/total")
        page.get_by_text("tainted").first.wait_for()

        # The overview updates itself.
        page.goto(service.url)
        tile = page.get_by_role("link", name="1 tainted")
        tile.wait_for()
        ledger = Ledger(load_settings(built).ledger)
        builder = Builder(
            (settings := load_settings(built)),
            require(load_project(settings)),
            ledger,
            DuckDBEngine(settings),
            run_id="later",
        )
        builder.build(builder.project.by_id["total@sources/m.sql"])
        page.get_by_role("link", name="0 tainted").wait_for()
        page.get_by_role("row").filter(has_text="later").wait_for()
        shot(page, "dashboard-overview")
        ledger.close()
    assert not errors, errors


CONTRASTS = """
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const [colour, alpha] of colours) {
      pen.globalAlpha = alpha; pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const main = document.getElementById("main");
  const states = ["building", "failed", "late", "tainted", "unbuilt", "stale", "unknown", "current", "available",
    "missing", "waiting", "requested", "failing", "satisfied", "expired", "cancelled", "reused", "started"];
  for (const state of states) {
    main.insertAdjacentHTML("beforeend", `<span class="state ${state}">${state}</span>
      <ul class="grid"><li><a class="cell ${state}" href="/"><span>x</span></a></li></ul>
      <a class="tile ${state}" href="/"><strong>0</strong> ${state}</a>`);
  }
  for (const name of ["wrong", "notice", "error", "warning", "hint"]) {
    main.insertAdjacentHTML("beforeend", `<p class="${name}">${name}</p>`);
  }
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!text.length || element.closest("svg, script, .hidden, .skip, .uplot, option")) continue;
    const above = [];
    for (let e = element; e; e = e.parentElement) above.unshift(getComputedStyle(e));
    const opacity = above.reduce((o, style) => o * Number(style.opacity), 1);
    const layers = [["white", 1], ...above.map((style) => [style.backgroundColor, 1])];
    const [a, b] = [light(over(layers)), light(over([...layers, [getComputedStyle(element).color, opacity]]))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${text[0].data.trim()}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)];
}
"""


@pytest.mark.slow
@pytest.mark.proves("W24")
def test_all_text_has_enough_contrast(built: Path, page: Any) -> None:
    with serving(built) as service:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for path in ("/", "/sources/m/total", "/wants", "/partitions", "/taint?ref=m/total"):
                page.goto(service.url + path)
                page.get_by_role("heading", level=1).wait_for()
                assert page.evaluate(CONTRASTS) == [], (scheme, path)


@pytest.mark.slow
@pytest.mark.proves("W24")
def test_a_live_update_of_a_page_keeps_the_focus_and_the_scroll_position(
    built: Path, page: Any
) -> None:
    ledger = Ledger(load_settings(built).ledger)
    ledger.wants.create([Want(f"w{n}", "m/total", "dev", datetime.now(UTC)) for n in range(3)])
    with serving(built) as service:
        page.set_viewport_size({"width": 390, "height": 700})
        page.goto(service.url + "/wants")
        # The third of several identical buttons, in a table that is scrolled sideways.
        cancel = page.get_by_role("button", name="Cancel the want of m/total")
        cancel.nth(2).focus()
        page.evaluate("document.querySelector('#live .scroll').scrollLeft = 60")
        ledger.wants.create([Want("later", "m/daily/2024-01-01", "dev", datetime.now(UTC))])
        page.get_by_role("row").filter(has_text="m/daily/2024-01-01").wait_for()
        focused = "document.activeElement.closest('tr').dataset.want"
        assert page.evaluate(focused) == "w0", "the oldest want is the last row"
        assert page.evaluate("document.querySelector('#live .scroll').scrollLeft") == 60

        # A page whose service has ended says so.
        page.goto(service.url + "/")
        page.evaluate("document.getElementById('live').dataset.every = 0.1")
        service.process.terminate()
        service.process.wait(20)
        page.get_by_role("status").filter(has_text="not connected").wait_for()
    ledger.close()
