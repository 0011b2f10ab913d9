"""Random queries and small changes of them: equal BuildIDs imply equal rows on Spark.

Changes affect structure and spelling: types, literals, names of columns.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from random_queries import Writer, mutate
from soundness import Compared, build_id, make_views, project


@pytest.mark.proves("V50")
def test_random_queries_of_equal_build_ids_have_equal_rows(spark: Any) -> None:
    make_views(spark)
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", "1"))
    started = time.monotonic()
    n_queries = n_mutants = n_equal = n_plans = n_errors = 0
    wrong: list[str] = []
    while time.monotonic() - started < budget_s:
        draw = random.Random(seed)
        seed += 1
        query = Writer(draw).statement()
        made = project(query)
        ours = build_id(made)
        if ours is None or made.by_id["q@sources/q.sql"].notes:
            continue
        n_queries += 1
        seen, compared = {query}, Compared(spark, made)
        for _ in range(12):
            other = mutate(draw, query)
            if draw.random() < 0.3:
                other = mutate(draw, other)
            if other in seen:
                continue
            seen.add(other)
            n_mutants += 1
            changed = project(other)
            if build_id(changed) != ours:
                continue
            n_equal += 1
            said = compared.difference(changed)
            n_plans += compared.by_plans
            n_errors += compared.failed
            if said:
                wrong.append(f"seed {seed - 1}: {said}\n{query}\n{other}")
                print(wrong[-1], flush=True)
        if n_queries % 100 == 0:
            seconds = time.monotonic() - started
            print(
                f"{seconds:.0f} s, next seed {seed}: {n_queries} queries, {n_mutants} mutants, {n_equal} equal, {n_plans} of one plan, {n_errors} not comparable, {len(wrong)} of other rows",
                flush=True,
            )
    print(
        f"\n{n_queries} queries, {n_mutants} mutants, {n_equal} pairs of equal BuildIDs, {n_plans} "
        f"of them of one plan, {n_errors} not comparable, {len(wrong)} of other rows"
    )
    assert not wrong, "\n".join(wrong)
    assert n_equal > budget_s / 10
