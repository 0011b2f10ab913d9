"""Thousands of sources load in seconds and with little memory, and reloads do not leak."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from conftest import ROOT, has_taken

from persist_assets import load_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.proves("U1")
def test_loading_a_thousand_sources_takes_little_time_and_memory() -> None:
    script = "import json, loading; print(json.dumps(loading.figures(1000, ('cold', 'warm'), 4)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "benchmarks",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)
    # docs/benchmarks.md has the figures of 5,000.
    has_taken(figures["cold"]["load_s"], within_s=12)
    has_taken(figures["warm"]["load_s"], within_s=2)
    has_taken(figures["reloads"]["load_s"], within_s=2)
    # A third of the memory does not depend on the number of sources.
    assert figures["warm"]["kb"] <= 110
    assert figures["cold"]["kb"] <= 110
    assert figures["reloads"]["objects"] <= 1.002


def test_a_step_waits_for_inputs_whose_keys_give_the_same_python_name(
    make_project: Callable[..., Path],
) -> None:
    """Dagster derives the same Python name from the keys `a/b_c` and `a_b/c`."""
    view = "--@ persist\nCREATE VIEW {} AS SELECT 1 AS {};\n"
    root = make_project(
        {
            "a.sql": view.format("b_c", "x"),
            "a_b.sql": view.format("c", "y"),
            "d.sql": "--@ persist\nCREATE VIEW d AS SELECT x, y FROM b_c CROSS JOIN c;\n",
        }
    )
    definitions = load_sources(root / "sources")
    job = definitions.resolve_implicit_global_asset_job_def()
    (before,) = (inputs for node, inputs in job.dependencies.items() if node.name == "d__d")
    nodes = {node.node for one in before.values() for node in one.get_node_dependencies()}
    assert len(nodes) == 2, "a step does not wait for what it reads"
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["d", "d"])).parent_keys == {
        dg.AssetKey(["a", "b_c"]),
        dg.AssetKey(["a_b", "c"]),
    }
