"""Random queries, maintained by deltas over random changes, have the same rows as recomputed."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from conftest import drawn_seed, draws
from delta_queries import COLUMNS, RAW, DeltaWriter
from deltas import Maintained, NotComparable

from persist_assets.core.model.deltas import NoRule


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.proves("T8")
def test_random_queries_are_maintained() -> None:
    seed, began = drawn_seed(), time.monotonic()
    tally, obstacles = Counter[str](), Counter[str]()
    wrong: list[str] = []
    for number in range(draws(100, 2000)):
        rng = random.Random(f"{seed}:{number}")
        try:
            query = DeltaWriter(rng).statement()
            maintain(query, rng, tally, obstacles)
        except NoRule as error:
            tally["without a definition"] += 1
            obstacles[f"(no definition) {error.reason}"] += 1
        except NotComparable as error:
            tally["not comparable"] += 1
            obstacles[str(error)[:80]] += 1
        except AssertionError as error:
            wrong.append(f"query {number}: {error}")
        except Exception as error:
            wrong.append(f"query {number}: {error!r}: {query}")
    print(f"{dict(tally)}, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    print("\n".join(f"{n} {reason}" for reason, n in obstacles.most_common(20)))
    assert not wrong, "\n\n".join(wrong[:3])
    queries = sum(tally[word] for word in ("with a rule", "without a rule"))
    assert tally["not comparable"] < 0.05 * queries
    assert tally["with a rule"] > 0.6 * queries
    assert all(tally[method] for method in ("append", "keys", "rows"))
    assert tally["changed"] > 0.3 * sum(
        tally[m] for m in ("none", "append", "keys", "rows", "merged")
    )


def maintain(query: str, rng: random.Random, tally: Counter[str], obstacles: Counter[str]) -> None:
    """Apply random changes to the tables of a query, and count the methods that follow them."""
    maintained = Maintained(RAW, query, COLUMNS)
    maintained.fill(rng, rng.choice((6, 12)))
    assert maintained.printed() == maintained.rows, f"printed otherwise: {query}"
    has_rule = False
    for _ in range(5):
        chosen = [t for t in maintained.reads if rng.random() < 0.6]
        try:
            outcome = maintained.follow(
                rng, chosen or maintained.reads, grows=rng.random() < 0.3, merges=True
            )
        except NoRule as error:
            obstacles[error.reason] += 1
            continue
        has_rule = True
        tally[outcome.method] += 1
        tally["with states"] += outcome.merged
        tally["changed"] += outcome.differs
    tally["with a rule" if has_rule else "without a rule"] += 1
