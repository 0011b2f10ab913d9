"""A few steps of `make soak` run, and its checks find no violation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from soak.run import soak, summary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.proves("Z7")
def test_a_short_soak_run_finds_no_violations(tmp_path: Path) -> None:
    world = soak(tmp_path, 20261126, seconds=15, steps=12, is_brief=True)
    print(summary(world))
    assert world.violations == []
    assert world.done["tables compared with data"] >= 8
    assert world.done["verify: equal"] > 0
    assert world.done["reads of whole generations"] > 0
