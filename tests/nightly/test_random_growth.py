"""Many random histories of raw data under incremental sources, on Spark; see `tests/support/growing.py`.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from growing import QUERIES, Data, check, kind_of, sources

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))


def test_incremental_tables_equal_a_full_recomputation(
    make_project: Callable[..., Path], spark: Any
) -> None:
    print(f"\nhistories of raw data from seed {SEED}")
    began, tally, seed = time.monotonic(), Counter[str](), SEED
    while time.monotonic() < began + 4 * BUDGET_S:
        root = make_project({"m.sql": sources()}, name=f"history_{seed}")
        settings = load_settings(root)
        rng = random.Random(seed)
        data, said = Data(root, rng), "at first"
        never = {name for name in QUERIES if rng.random() < 0.15}
        for number in range(8):
            ledger = Ledger(settings.ledger)
            engine = SparkEngine(settings, lambda: spark)
            builder = Builder(settings, require(load_project(settings)), ledger, engine)
            for source in builder.project.persisted:
                if source.name in never:
                    continue  # downstream sources compute it
                with builder.work(source) as work:
                    builder.publish(work)
                tally[kind_of(work)] += 1
                check(builder, source, f"seed {seed}, step {number}, {said}: {kind_of(work)}")
            ledger.close()
            said = data.change()
        tally["histories"] += 1
        seed += 1
    print(f"{dict(tally)} in {time.monotonic() - began:.0f} s")
    assert min(tally["added"], tally["windows"], tally["reused"]) > 0
