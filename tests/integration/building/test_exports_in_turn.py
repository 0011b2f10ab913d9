"""Repeated exports of large manifests are deferred; the last state is always exported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from persist_assets.building.exporting import MANY, Exports
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from persist_assets.core.settings.values import Settings

ENDS = """
import sys
from pathlib import Path
from persist_assets.building.exporting import Exports
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
sys.path[:0] = sys.argv[2:]
from test_exports_in_turn import publish
settings = load_settings(Path(sys.argv[1]), environ={})
ledger = Ledger(settings.ledger)
exports = Exports(settings, ledger)
exports.request()
publish(ledger, "the last one")
exports.request()
"""


def publish(ledger: Ledger, name: str) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    build = Build(name, f"{name}@a.sql", name, "d", "dev", None, "started", "built", now)
    made = Snapshot(name, build.source_id, name, name, 0, (), "c", 7, 70, now)
    ledger.builds.record_started(build, made.table)
    ledger.builds.publish(Publication(build, made, []))


def exported(settings: Settings) -> set[str]:
    return {*json.loads(settings.manifest_path.read_text())["entries"]}


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[Settings, Ledger]]:
    settings = load_settings(tmp_path, environ={})
    ledger = Ledger(settings.ledger)
    for n in range(MANY):
        publish(ledger, f"b{n}")
    yield settings, ledger
    ledger.close()


def test_a_small_manifest_is_exported_at_once(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, environ={})
    ledger = Ledger(settings.ledger)
    exports = Exports(settings, ledger)
    for name in ("one", "two", "three"):
        publish(ledger, name)
        exports.request()
        assert name in exported(settings)
    ledger.close()


@pytest.mark.slow
def test_repeated_exports_of_a_large_manifest_are_deferred(large: tuple[Settings, Ledger]) -> None:
    settings, ledger = large
    exports = Exports(settings, ledger)
    exports.request()
    assert len(exported(settings)) == MANY
    publish(ledger, "next")
    exports.request()
    assert "next" not in exported(settings), "it waits"
    exports.flush()
    assert "next" in exported(settings)
    # Without a flush, a thread exports it after a pause.
    publish(ledger, "later")
    exports.request()
    until = time.monotonic() + 60
    while "later" not in exported(settings):
        assert time.monotonic() < until
    exports.flush()


@pytest.mark.slow
def test_a_process_exports_the_last_state_at_exit(large: tuple[Settings, Ledger]) -> None:
    settings, _ = large
    paths = [p for p in sys.path if "tests" in p]
    command = [sys.executable, "-c", ENDS, str(settings.root), *paths]
    subprocess.run(command, check=True, capture_output=True)
    assert "the last one" in exported(settings)
