"""A project in Dagster's UI, in a real browser against a real `dagster dev`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, wait_for
from deployment import ask

from persist_assets.operations.home import write_home
from persist_assets.storage.delta_tables import read_sample, read_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARTIFACTS = ROOT / "artifacts"
SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';

--@ persist owner="team:flights"
--@ check { not_null=[a] }
-- Numbers that are positive.
CREATE VIEW positive AS SELECT a, b FROM t WHERE a > 0;

--@ persist
CREATE VIEW by_letter AS SELECT b, sum(a) AS total FROM positive GROUP BY b;

--@ persist
CREATE VIEW letters AS SELECT DISTINCT b FROM positive;
"""


@pytest.fixture
def served(make_shared_project: Callable[..., Path]) -> Iterator[tuple[Path, str]]:
    """A project served by `dagster dev`: its root and its URL."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = make_shared_project({"m.sql": SOURCES})
    (root / "raw" / "t").mkdir(parents=True)
    table = pa.table({"a": pa.array([1, 2, -3], pa.int64()), "b": ["x", "y", "z"]})
    pq.write_table(table, root / "raw" / "t" / "p.parquet")
    (root / "definitions.py").write_text(
        "from persist_assets import load_sources\n\ndefs = load_sources('sources')\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = write_home(root / ".persist" / "dagster")
    with (root / "dagster.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "dagster"),
                *("dev", "-f", "definitions.py", "-h", "127.0.0.1", "-p", str(port)),
            ],
            cwd=root,
            env={
                **os.environ,
                "DAGSTER_HOME": str(home),
                "FRESHNESS_DAEMON_INTERVAL_SECONDS": "2",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        assert process.poll() is None, (root / "dagster.log").read_text()[-2000:]
        try:
            return urllib.request.urlopen(f"{url}/server_info", timeout=5).status == 200
        except OSError:
            return False

    try:
        wait_for(up)
        yield root, url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stale(url: str) -> dict[str, str]:
    nodes = ask(
        url,
        "{ assetNodes { assetKey { path } staleStatus staleCauses { reason } isMaterializable } }",
    )
    return {
        n["assetKey"]["path"][-1]: "; ".join(c["reason"] for c in n["staleCauses"])
        or n["staleStatus"]
        for n in nodes["assetNodes"]
        if n["isMaterializable"]
    }


def shot(page: Any, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png")


@pytest.mark.slow
@pytest.mark.proves("K3", "K4", "K12")
def test_the_ui_builds_assets_and_marks_edits_stale(served: tuple[Path, str], page: Any) -> None:
    root, url = served

    # The graph shows the sources.
    page.goto(f"{url}/asset-groups/~")
    page.get_by_text("Materialize all").wait_for()
    for name in ("positive", "by_letter", "letters", "t"):
        page.get_by_text(name, exact=True).first.wait_for()
    shot(page, "graph")

    # The button builds the tables, and their rows can be read.
    page.get_by_text("Materialize all").click()
    manifest = root / ".persist" / "manifests" / "dev.json"
    wait_for(lambda: manifest.exists() and len(json.loads(manifest.read_text())["entries"]) == 3)
    entries = json.loads(manifest.read_text())["entries"].values()
    totals = next(e for e in entries if e["sourceId"].startswith("by_letter@"))
    rows = read_sample(read_version(totals["path"], totals["version"]).files, 10)
    assert sorted((r["b"], r["total"]) for r in rows) == [("x", 1), ("y", 2)]
    wait_for(lambda: set(stale(url).values()) == {"FRESH"})

    # Metadata, checks and column lineage are visible.
    page.goto(f"{url}/assets/m/by_letter")
    page.get_by_text("Row count").wait_for()
    page.get_by_text("never built").first.wait_for()
    page.get_by_text("column lineage").first.wait_for()
    assert page.get_by_role("link", name="positive").first.is_visible()
    page.get_by_text("bigint").first.wait_for()
    page.get_by_text("Open sources/m.sql").first.wait_for()
    shot(page, "asset")
    page.goto(f"{url}/assets/m/positive?view=checks")
    page.get_by_text("not_null_a").first.wait_for()
    shot(page, "checks")

    # GraphQL returns the same, including Dagster's own column lineage.
    told = ask(
        url,
        '{ assetNodeOrError(assetKey: {path: ["m", "by_letter"]}) { ... on AssetNode { '
        "metadataEntries { label ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps "
        "{ assetKey { path } columnName } } } ... on CodeReferencesMetadataEntry { codeReferences { "
        "... on LocalFileCodeReference { filePath lineNumber } } } } "
        "assetMaterializations(limit: 1) { metadataEntries { label } } } } }",
    )["assetNodeOrError"]
    entries_by_label = {e["label"]: e for e in told["metadataEntries"]}
    lineage = entries_by_label["dagster/column_lineage"]["lineage"]
    assert {e["columnName"]: [d["columnName"] for d in e["columnDeps"]] for e in lineage} == {
        "b": ["b"],
        "total": ["a"],
    }
    (reference,) = entries_by_label["dagster/code_references"]["codeReferences"]
    assert (Path(reference["filePath"]), reference["lineNumber"]) == (
        root / "sources" / "m.sql",
        10,
    )
    labels = {e["label"] for e in told["assetMaterializations"][0]["metadataEntries"]}
    assert labels >= {
        "dagster/row_count", "bytes", "build_id", "dagster/table_name", "action", "preview",
        "dagster/column_schema", "dagster/column_lineage",
    }  # fmt: skip

    # An edit of one column marks exactly the assets that it affects.
    path = root / "sources" / "m.sql"
    path.write_text(SOURCES.replace("SELECT a, b FROM t", "SELECT a + 1 AS a, b FROM t /* more */"))
    page.goto(f"{url}/deployment")
    page.get_by_role("button", name="Reload").first.click()
    wait_for(lambda: stale(url)["positive"] != "FRESH")
    assert stale(url) == {
        "positive": "has a new code version",
        "by_letter": "has a new code version",
        "letters": "FRESH",
    }
    page.goto(f"{url}/asset-groups/~")
    page.get_by_text("positive", exact=True).first.wait_for()
    page.get_by_text("Unsynced (1)").nth(1).wait_for()
    assert page.get_by_text("Unsynced (1)").count() == 2
    shot(page, "edited")


@pytest.mark.slow
@pytest.mark.proves("K9")
def test_a_table_older_than_its_freshness_window_is_degraded(served: tuple[Path, str]) -> None:
    root, url = served
    path = root / "sources" / "m.sql"
    path.write_text(SOURCES.replace("owner=", 'freshness.window="60s" owner='))
    ask(
        url,
        'mutation { reloadRepositoryLocation(repositoryLocationName: "definitions.py") { __typename } }',
    )
    query = '{ assetNodeOrError(assetKey: {path: ["m", "positive"]}) { ... on AssetNode { freshnessStatusInfo { freshnessStatus } internalFreshnessPolicy { __typename } } } }'

    def status() -> str | None:
        told = ask(url, query)["assetNodeOrError"]["freshnessStatusInfo"]
        return told["freshnessStatus"] if told else None

    subprocess.run(
        [sys.executable, "-m", "persist_assets.cli", "build", "positive"],
        cwd=root,
        env={**os.environ, "DAGSTER_HOME": str(root / ".persist" / "dagster")},
        check=True,
        capture_output=True,
    )
    wait_for(lambda: status() == "HEALTHY")
    wait_for(lambda: status() == "DEGRADED", seconds=180)
