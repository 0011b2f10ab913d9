"""`automation`: what Dagster builds automatically."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from conftest import draws
from test_dagster import write

from persist_assets.compiler.frontends.cron import wrong_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW plain AS SELECT a FROM t;
--@ persist automation=eager
CREATE VIEW first AS SELECT a, 1 AS n FROM t;
--@ persist automation=eager
CREATE VIEW second AS SELECT a, n, 2 AS m FROM first;
--@ persist automation=missing
CREATE VIEW once AS SELECT a, 3 AS o FROM t;
--@ persist automation="0 6 * * *"
CREATE VIEW daily AS SELECT a, 4 AS p FROM t;
"""
PYTHON = """
from persist_assets import table

@table(automation="@hourly")
def hourly(first):
    return first
"""


@pytest.mark.slow
def test_dagster_requests_builds_according_to_annotations(
    make_project: Callable[..., Path],
    load: Callable[[Path], dg.Definitions],
    instance: dg.DagsterInstance,
) -> None:
    root = make_project({"m.sql": SOURCES, "h.py": PYTHON}, 'timezone = "Europe/Berlin"\n')
    write(root, [(1, "x")])
    definitions = load(root)
    cursor: Any = None

    def requested(hour: float) -> set[str]:
        nonlocal cursor
        minutes = int(hour * 60)
        at = datetime(2026, 1, 5, minutes // 60, minutes % 60, tzinfo=UTC)
        found = dg.evaluate_automation_conditions(
            definitions, instance, cursor=cursor, evaluation_time=at
        )
        cursor = found.cursor
        return {r.key.path[-1] for r in found.results if r.true_subset.size}

    def materialize(*names: str) -> None:
        selection = [dg.AssetKey(["m", n]) for n in names]
        job = definitions.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(instance=instance, asset_selection=selection)
        assert done.success

    assert requested(3.1) == {"once"}
    materialize("once")  # also reports the raw table to Dagster
    assert requested(3.2) == {"first", "second"}  # one run, in order
    materialize("first", "second")
    assert requested(3.3) == set()
    write(root, [(1, "x"), (2, "y")])
    materialize("plain")
    assert requested(3.4) == {"first", "second"}
    # On the hour, if its input was built since.
    assert requested(4.1) == set()
    materialize("first", "second")
    assert requested(4.2) == {"hourly"}
    # 06:00 in Berlin is 05:00 in UTC; sources do not wait for raw tables.
    assert requested(4.9) == set()
    assert requested(5.1) == {"daily"}
    assert requested(5.2) == set()
    conditions = {
        s.key.path[-1]: s.automation_condition for s in definitions.resolve_all_asset_specs()
    }
    assert conditions["plain"] is None
    assert conditions["second"] == dg.AutomationCondition.eager()


def test_dagster_accepts_every_schedule_that_annotations_accept() -> None:
    chance = random.Random(0)

    def part(least: int, greatest: int) -> str:
        a, b = (chance.randint(least - (chance.random() < 0.02), greatest + 1) for _ in "ab")
        b += a == b  # Dagster warns about 0-0 without a reason
        step = chance.randint(0, greatest)
        forms = [
            "*",
            "*",
            "*",
            f"{a}",
            f"{a}-{b}",
            f"{a},{b}",
            f"*/{step}",
            f"{a}-{b}/{step}",
            f"{a}/{step}",
        ]
        return chance.choice(forms)

    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    taken = refused = 0
    n = draws(300, 3000)
    for _ in range(n):
        cron = " ".join(part(*r) for r in ranges)
        if wrong_with(cron) is None:
            taken += 1
            dg.ScheduleDefinition(name="s", target="*", cron_schedule=cron)
        else:
            refused += 1
    assert min(taken, refused) > n / 10
    for cron in ("@hourly", "@midnight", "@annually", "0 0 * jan-mar SUN,tue"):
        assert wrong_with(cron) is None
        dg.ScheduleDefinition(name="s", target="*", cron_schedule=cron)
