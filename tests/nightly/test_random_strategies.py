"""Random histories of tables of every strategy, on Spark; see `tests/support/strategies.py`.

At least 500, or as many as start within four times `PERSIST_NIGHTLY_S` seconds if that is set.
`PERSIST_NIGHTLY_SEED` sets the first seed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from concurrent.futures import ProcessPoolExecutor

from conftest import SPARK_TOML, need
from strategies import POSSIBLE, Tally, explore_apart

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "0"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))
AT_LEAST = 500
AT_ONCE = 100
"""Histories per JVM. py4j never releases the objects of a killed process, because it waits for
that process to do so: about 0.3 MB each, which filled 1 GB after 465 histories."""


def test_tables_of_every_strategy_equal_builds_from_scratch() -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    print(f"\nhistories of strategies from seed {SEED}")
    tally, began, n = Tally(), time.monotonic(), 0
    until = began + 4 * BUDGET_S if BUDGET_S else None
    apart = multiprocessing.get_context("spawn")
    while time.monotonic() < until if until else tally.histories < AT_LEAST:
        with ProcessPoolExecutor(1, apart) as processes:
            told = {"seed": SEED, "steps": 6, "first": n, "until": until}
            tally += processes.submit(explore_apart, AT_ONCE, SPARK_TOML, **told).result()
        n += AT_ONCE
    print(f"{tally}\nin {time.monotonic() - began:.0f} s")
    assert not [name for name in POSSIBLE if not tally.tables[name]], "of every kind"
    for kind in ("whole", "added", "windows", "partitions", "reused"):
        assert tally.builds[kind] > 5, kind
    assert tally.killed.total() > 10
    assert tally.halted.total() > 3
