"""Thousands of random programs over what they are said to need of their tables, on DuckDB.

`PERSIST_NIGHTLY_SEED` says where to begin; see `tests/pushing.py`.
"""

from __future__ import annotations

import os
import random

from pushing import hunt

SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))


def test_programs_are_the_same_over_what_they_need() -> None:
    print(f"\nprograms from seed {SEED}")
    told = hunt(SEED, 2000)
    print(dict(told))
    assert told["programs"] > 1800, told
    assert told["needed"] < 0.8 * told["rows"], told
