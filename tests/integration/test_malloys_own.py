"""What we write and read, held against Malloy's own npm packages."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, need

from persist_assets.ledger.store import export_manifest

NODE = ROOT / "tests" / "node"


@pytest.fixture
def node() -> str:
    need(
        "there" if (NODE / "node_modules").exists() else None,
        "install Malloy's packages: cd tests/node && npm ci",
    )
    return need(shutil.which("node"), "install Node 20 or newer: apt-get install nodejs")


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
    entries = {
        "a" * 64: {"tableName": "delta.`/w/daily-123@v3`", "version": 3, "sourceId": "x@a.sql"},
        "b" * 64: {"tableName": "delta.`s3://bucket/w/x-1@v0`", "rows": 7},
    }
    path = tmp_path / "dev.json"
    export_manifest(path, entries, strict=True)
    assert run(node, "load_manifest.js", str(path)) == {"entries": entries, "strict": True}
    assert [p.name for p in tmp_path.iterdir()] == ["dev.json"]


def test_the_golden_tags_are_what_malloys_own_parser_answers_today(node: str) -> None:
    cases = json.loads((ROOT / "tests" / "golden" / "motly.json").read_text())["cases"]
    answers = run(node, "motly.js", stdin=json.dumps([c["lines"] for c in cases]))
    for case, answer in zip(cases, answers, strict=True):
        assert answer == {"errors": case["errors"], "value": case["value"]}, case["title"]
