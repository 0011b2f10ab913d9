"""Diagnostics reach an editor quickly, even in a large project."""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, has_taken
from editor import editing

if TYPE_CHECKING:
    from pathlib import Path

sys.path.append(str(ROOT / "benchmarks"))

import latency


@pytest.mark.slow
@pytest.mark.proves("W15")
def test_diagnostics_are_fast_in_a_project_of_a_thousand_sources(tmp_path: Path) -> None:
    latency.generate(tmp_path)
    with editing(tmp_path) as editor:
        latencies = latency.measure(editor, 12)
    assert latencies.n_wrong == 6
    # Other processes add to wall time, so its limit is generous; they add nothing to CPU time.
    has_taken(statistics.median(latencies.cpu_ms) / 1000, within_s=0.2)
    has_taken(statistics.median(latencies.wall_ms) / 1000, within_s=1.0)
