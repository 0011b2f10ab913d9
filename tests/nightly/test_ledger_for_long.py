"""Eight processes use one ledger for half a minute, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hammer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ledger_stays_consistent_under_eight_processes(ledger_url: str, tmp_path: Path) -> None:
    outcome = hammer.hammer(ledger_url, tmp_path, seconds=30.0)
    hammer.check(ledger_url, tmp_path, outcome)
    events = len(outcome.followed) / outcome.seconds
    kind = ledger_url.partition(":")[0]
    print(
        f"\n{kind}: {events:.0f} events/s, {outcome.n_transactions / outcome.seconds:.0f} writes/s"
    )
