"""Failed steps are retried in Dagster and by `persist build`, if their source says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.runs import run_assets

pytestmark = [pytest.mark.slow, pytest.mark.proves("U2")]


FLAKY = '''
from pathlib import Path

from pyspark.sql import SparkSession

from persist_assets import table


@table({keys})
def flaky(spark: SparkSession):
    """Fails at the first attempt."""
    attempted = Path({attempted!r})
    if not attempted.exists():
        attempted.touch()
        raise RuntimeError("the first attempt fails")
    return spark.createDataFrame([(1,)], "a bigint")
'''


def flaky(root: Path, keys: str) -> None:
    """Write a project with a source that fails at its first attempt, and a reader."""
    text = FLAKY.format(keys=keys, attempted=str(root / "attempted"))
    (root / "sources" / "m.py").write_text(text)
    (root / "sources" / "r.sql").write_text(
        "--@ persist\nCREATE VIEW reader AS SELECT sum(a) AS s FROM flaky;\n"
    )


def states(root: Path) -> list[str]:
    """Return how each attempt to build the source ended, and whether readers see it."""
    settings = load_settings(root)
    source = next(s for s in load_project(settings).persisted if s.name == "flaky")
    ledger = Ledger(settings.ledger)
    try:
        manifest = ledger.manifests.fetch("dev")
        builds = ledger.builds.fetch(source_id=source.source_id)
    finally:
        ledger.close()
    ended = [b.state for b in sorted(builds, key=lambda b: b.started_at)]
    return [*ended, "seen" if source.build_id in manifest else "unseen"]


@pytest.mark.parametrize(("keys", "expected"), [("", False), ("retries=1", True)])
def test_dagster_retries_a_failed_step_only_if_its_source_says_so(
    spark: Any,
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    keys: str,
    expected: bool,
) -> None:
    root = make_project({})
    flaky(root, keys)
    job = load(root).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert result.success is expected
    assert states(root) == (["failed", "succeeded", "seen"] if expected else ["failed", "unseen"])
    retried = [e for e in result.all_events if e.event_type_value == "STEP_UP_FOR_RETRY"]
    assert len(retried) == int(expected)


def test_persist_build_retries_a_failed_step(
    spark: Any, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project({})
    flaky(root, "retries={'max': 2}")
    monkeypatch.setenv("DAGSTER_HOME", str(root / "home"))
    settings = load_settings(root)
    sources = load_project(settings).persisted
    result = run_assets(settings, sources, force=False, verbose=False)
    assert (result.success, result.failures) == (True, ())
    assert states(root) == ["failed", "succeeded", "seen"]
