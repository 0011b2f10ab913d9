"""Many random histories under tables of every strategy, on Spark; see `tests/strategies.py`.

At least 500; with `PERSIST_NIGHTLY_S` as many as begin in four times so many seconds.
`PERSIST_NIGHTLY_SEED` says where to begin.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import SPARK_TOML
from histories import Zygote
from strategies import Tally, explore

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "0"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))
AT_LEAST = 500


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("strategies")
    yield made
    made.close()


def test_tables_of_every_strategy_are_what_a_build_from_scratch_gives(
    spark: Any, zygote: Zygote
) -> None:
    print(f"\nhistories of strategies from seed {SEED}")
    tally, began, n = Tally(), time.monotonic(), 0
    while time.monotonic() < began + 4 * BUDGET_S if BUDGET_S else tally.histories < AT_LEAST:
        tally += explore(5, spark, zygote, SPARK_TOML, seed=SEED, first=n, steps=6)
        n += 5
    print(f"{tally}\nin {time.monotonic() - began:.0f} s")
