"""A few seconds of kills and network cuts between two graphs; tests/nightly runs a minute."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from cutting import check, cut_and_compare
from serving import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N_EVENTS = 500


@pytest.mark.slow
@pytest.mark.proves("D37", "D25")
def test_no_event_is_lost_or_duplicated_by_kills_and_network_cuts(
    make_project: Callable[..., Path],
) -> None:
    seed = random.randrange(10**6)
    print(f"\nseed {seed}")
    roots = (make_project({"m.sql": SOURCES}, name=name) for name in ("sender", "receiver"))
    outcome = cut_and_compare(
        *roots, n_events=N_EVENTS, seconds=4, seed=seed, life_s=1.2, catch_up_s=30
    )
    print(outcome)
    check(outcome, N_EVENTS)
