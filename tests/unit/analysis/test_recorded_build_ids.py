"""BuildIDs are stable: a changed BuildID changes the names of users' tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import need_node
from recorded import changed, in_changelog, of_generated, of_kinds, recorded

from persist_assets.core import digests

if TYPE_CHECKING:
    from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.proves("H2")
def test_build_ids_of_a_thousand_generated_sources_match_the_recorded_ones(
    tmp_path: Path,
) -> None:
    assert not changed("generated", of_generated(tmp_path))


@pytest.mark.proves("X3")
def test_build_ids_of_each_kind_of_source_match_the_recorded_ones(tmp_path: Path) -> None:
    need_node()
    now = of_kinds(tmp_path)
    assert len({s.rpartition(".")[2] for s in now}) == 3  # languages
    assert not changed("kinds", now)


@pytest.mark.proves("X3")
def test_the_message_for_changed_build_ids_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_node()
    monkeypatch.setattr(digests, "VERSION", "another")
    message = changed("kinds", of_kinds(tmp_path))
    assert message.startswith(f"{len(recorded()['kinds'])} BuildIDs of known queries changed")
    for word in ("CHANGELOG.md", "ROWS", "recorded.py", "docs/architecture/upgrades.md"):
        assert word in message


@pytest.mark.proves("X3")
def test_the_changelog_describes_each_recorded_change() -> None:
    assert all(map(in_changelog, recorded()["changelog"]))
    assert not in_changelog("")
    assert not in_changelog("no release says this")
