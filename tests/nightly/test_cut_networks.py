"""Events between two graphs during a minute of killed processes and network cuts."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from cutting import FATES, check, cut_and_compare
from serving import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))
N_EVENTS = 10_000


@pytest.mark.proves("D37", "D25")
def test_kills_and_network_cuts_neither_lose_nor_duplicate_events(
    make_project: Callable[..., Path],
) -> None:
    roots = (make_project({"m.sql": SOURCES}, name=name) for name in ("sender", "receiver"))
    print(f"\nseed {SEED}")
    outcome = cut_and_compare(
        *roots, n_events=N_EVENTS, seconds=60, seed=SEED, life_s=3, n_followers=2
    )
    print(outcome)
    check(outcome, N_EVENTS)
    assert {*FATES} <= {*outcome.cuts}
    assert outcome.before
