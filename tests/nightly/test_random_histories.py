"""Many random histories, some of them on Spark; see `tests/support/machine.py`.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the seed.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from conftest import SPARK_TOML
from histories import Zygote
from machine import Tally, explore

from persist_assets.engine.spark import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def test_random_histories_match_the_model(zygote: Zygote) -> None:
    print(f"\nhistories from seed {SEED}")
    tally, began, n = Tally(), time.monotonic(), 0
    while time.monotonic() < began + 4 * BUDGET_S:
        tally += explore(5, zygote=zygote, seed=SEED, first=n, steps=40)
        n += 5
    print(f"{tally}\nin {time.monotonic() - began:.0f} s")


def test_random_histories_on_spark_match_the_model(spark: Any) -> None:
    """Spark has to pass the same checks as the engine of the other test."""
    print(f"\nhistories on Spark from seed {SEED}")
    made = explore(
        max(2, int(BUDGET_S / 10)),
        engine=lambda settings: SparkEngine(settings, lambda: spark),
        toml=SPARK_TOML,
        seed=SEED,
        steps=12,
    )
    print(made)
