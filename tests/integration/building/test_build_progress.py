"""Progress of the builds of a run: which are running, which have ended and how, the time left."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.progress import Begun, Ended, Progress, watched
from persist_assets.building.scheduler import Pool
from persist_assets.cli.progress import shown
from persist_assets.core.errors import BuildError, LedgerError
from persist_assets.core.model.snapshots import Cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
--@ persist
--@ check { not_null=[a] }
CREATE VIEW r AS SELECT nullif(a, 3) AS a FROM t;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    (made / "raw" / "t").mkdir(parents=True)
    put(made, [1, 2])
    return made


def put(root: Path, values: list[int]) -> None:
    table = pa.table({"a": pa.array(values, pa.int64())})
    pq.write_table(table, root / "raw" / "t" / "p.parquet")


def run(builder: Builder, *names: str, forced: bool = False) -> None:
    """Build sources in one run, as Dagster's steps do."""
    sources = [s for s in builder.project.persisted if s.name in names]
    pool = Pool(builder, sources, forced=[s.source_id for s in sources] if forced else ())
    try:
        for source in sources:
            with pool.work(source, force=forced) as work:
                builder.publish(work)
    finally:
        pool.close()


def without_seconds(text: str) -> str:
    return re.sub(r"\d+(\.\d)? s\b", "… s", text)


@pytest.mark.proves("W16")
def test_a_run_reports_the_progress_and_method_of_its_builds(
    root: Path, enter: Callable[..., Builder]
) -> None:
    progress = Progress()
    with watched(progress):
        run(enter(root), "p", "q")
    told = [(type(n), n.key, n.method) for n in progress.news()]
    both = [("m/p", "whole"), ("m/q", "whole")]
    assert told == [(kind, *one) for one in both for kind in (Begun, Ended)]
    state = progress.state()
    assert (state.done, state.building, state.waiting, state.left_s) == (2, (), 0, None)

    again = Progress()
    with watched(again):
        run(enter(root), "p", "q")
    assert [(n.key, n.action, n.rows) for n in again.news() if isinstance(n, Ended)] == [
        ("m/p", "reused", 2),
        ("m/q", "reused", 1),
    ]


def test_a_failed_build_is_reported_once_with_the_failed_check(
    root: Path, enter: Callable[..., Builder]
) -> None:
    put(root, [1, 3])
    progress = Progress()
    with watched(progress), pytest.raises(BuildError):
        run(enter(root), "q", "r", "p")
    failures = [n for n in progress.news() if isinstance(n, Ended) and n.action == "failed"]
    assert [n.key for n in failures] == ["m/r"]
    assert "not_null_a" in failures[0].in_words
    assert progress.state().failed == 1


def test_the_remaining_time_is_estimated_from_earlier_builds(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    p, q, r = builder.project.persisted
    now = 100.0
    progress = Progress(lambda: now)
    took = {p.source_id: [Cost("whole", 30.0, 1, 1)], q.source_id: [Cost("merge", 10.0, 1, 1)]}
    upstreams = {p.source_id: (), q.source_id: (p.source_id,), r.source_id: ()}
    progress.expect(upstreams, [r.source_id], 2, lambda: took)
    state = progress.state()
    assert (state.left_s, state.is_more, state.waiting) == (40.0, False, 3)
    with progress.noted(p):
        now = 112.0
        assert progress.state().left_s == 28.0
        now = 140.0  # longer than expected
        assert (progress.state().left_s, progress.state().is_more) == (10.0, True)

    unknown = Progress(lambda: now)
    unknown.expect(upstreams, (), 1, lambda: {p.source_id: took[p.source_id]})
    assert unknown.state().in_words(None) == "0 done, 0 building, 3 waiting, more than 30 s left"
    assert Progress().state().in_words(None) == "starting"


@pytest.mark.proves("W16")
def test_output_to_a_file_has_a_line_per_build_start_and_end(
    root: Path, enter: Callable[..., Builder]
) -> None:
    printed = io.StringIO()
    with shown(Console(file=printed, width=4000)) as progress, watched(progress):
        run(enter(root), "p", "q")
        run(enter(root), "p")
    assert without_seconds(printed.getvalue()).splitlines() == [
        "  building m/p (whole)",
        "  built m/p (whole) 2 rows, … s",
        "  building m/q (whole)",
        "  built m/q (whole) 1 row, … s",
        "  reused m/p 2 rows, … s",
    ]


def test_a_failing_display_breaks_no_build(root: Path, enter: Callable[..., Builder]) -> None:
    def fetch() -> dict[str, list[Cost]]:
        raise LedgerError("it is gone")

    terminal = Console(file=io.StringIO(), force_terminal=True)
    with shown(terminal) as progress, watched(progress):
        builder = enter(root)
        progress.expect({"x": ()}, (), 1, fetch)
        with pytest.raises(LedgerError):
            progress.state()
        assert progress.state().left_s is None, "it asks once"
        terminal.file.close()
        run(builder, "p")
    assert builder.ledger.builds.fetch()[0].state == "succeeded"
