"""Dagster trims the event log according to the settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from test_trimmed_log import a_project, happens

from persist_assets import load_sources
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("Z3")
def test_a_running_schedule_trims_the_event_log(tmp_path: Path) -> None:
    root = a_project(tmp_path / "p", '[retention]\nevents = "1 hour"\n')
    past = Ledger(load_settings(root).ledger, clock=lambda: datetime.now(UTC) - timedelta(hours=2))
    happens(past, 1, 1, 2)
    definitions = load_sources(root / "sources")
    schedule = definitions.resolve_schedule_def("persist_trim")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("persist_trim")
        assert job.execute_in_process(instance=instance).success
    assert past.events.trimmed_to() == 1
    assert [*(root / ".persist/archive").glob("*/events-1-1.parquet")]
    past.close()


@pytest.mark.proves("Z3")
def test_without_a_retention_setting_no_schedule_trims_the_log(tmp_path: Path) -> None:
    definitions = load_sources(a_project(tmp_path / "p") / "sources")
    assert {s.name for s in definitions.schedules or ()} == {"persist_gc"}
