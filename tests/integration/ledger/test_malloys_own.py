"""Our manifest and the golden tags, compared with Malloy's own npm packages."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, need_node

from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import export_manifest

if TYPE_CHECKING:
    from pathlib import Path

NODE = ROOT / "tests" / "node"


@pytest.fixture
def node() -> str:
    return need_node()


def run(node: str, script: str, *arguments: str, stdin: str = "") -> Any:
    done = subprocess.run(
        [node, str(NODE / script), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.proves("K6", "M15")
def test_our_manifest_is_read_by_malloys_own_loader(node: str, tmp_path: Path) -> None:
    settings = load_settings(tmp_path, environ={})
    ledger = Ledger(settings.ledger)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    for uid in ("a", "b"):
        build = Build(uid, "x@a.sql", uid * 64, "d", "dev", None, "started", "built", now)
        made = Snapshot(uid, "x@a.sql", uid * 64, f"x-{uid}", 3, (), "c", 7, 70, now)
        ledger.builds.record_started(build, made.table)
        ledger.builds.publish(Publication(build, made, []))
    export_manifest(settings, ledger)
    entries = run(node, "load_manifest.js", str(settings.manifest_path))["entries"]
    assert set(entries) == {"a" * 64, "b" * 64}
    assert entries["a" * 64]["tableName"] == f"delta.`{settings.warehouse}/x-a@v3`"
    assert entries["a" * 64]["sourceId"] == "x@a.sql"
    left = {p.name for p in settings.manifest_path.parent.iterdir()}
    assert left <= {"dev.json", "dev.json.lock"}


def test_the_golden_tags_match_malloys_own_parser(node: str) -> None:
    cases = json.loads((ROOT / "tests" / "golden" / "motly.json").read_text())["cases"]
    answers = run(node, "motly.js", stdin=json.dumps([c["lines"] for c in cases]))
    for case, answer in zip(cases, answers, strict=True):
        assert answer == {"errors": case["errors"], "value": case["value"]}, case["title"]
