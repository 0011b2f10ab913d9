"""Random spellings of types, literals, names and operators: equal BuildIDs imply equal rows.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed; by default,
the seed changes each day.
"""

from __future__ import annotations

import os
import time
from datetime import date
from typing import Any

import pytest
from spelling import Asked, Searched, search


@pytest.mark.proves("S2")
def test_random_spellings_of_one_build_id_have_equal_types_and_rows(spark: Any) -> None:
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", date.today().toordinal() * 1000))
    asked, into = Asked(spark), Searched()
    started, first = time.monotonic(), seed
    while time.monotonic() - started < budget_s:
        search(asked, seed, into)
        seed += 1
    print(
        f"\nseeds {first} to {seed}: {into.n_spellings} spellings, {into.n_near} pairs of near ones,"
        f" {into.n_equal} of equal BuildIDs, {into.n_plans} of them of one plan, {into.n_failing}"
        f" not comparable, {len(into.wrong)} wrong; refused:"
    )
    print("\n".join(into.refused))
    assert not into.wrong, "\n".join(into.wrong)
    assert into.n_equal > budget_s / 10
