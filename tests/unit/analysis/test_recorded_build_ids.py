"""BuildIDs stay what they are: one that moves rebuilds the tables of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recorded import of_generated, of_pairs, recorded

if TYPE_CHECKING:
    from pathlib import Path

import pytest


@pytest.mark.proves("H2")
def test_the_build_ids_of_all_golden_pairs_are_the_recorded_ones() -> None:
    assert of_pairs() == recorded()["pairs"]


@pytest.mark.slow
@pytest.mark.proves("H2")
def test_the_build_ids_of_a_thousand_generated_sources_are_the_recorded_ones(
    tmp_path: Path,
) -> None:
    assert of_generated(tmp_path) == recorded()["generated"]
