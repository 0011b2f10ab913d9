"""Incremental sources over tables that were computed again, with other rows from the same data."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

SQL = """
CREATE TABLE t (day DATE, a INT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW p AS SELECT day, {0} AS a FROM t {1};
--@ persist refresh=incremental watermark=day
CREATE VIEW r AS SELECT day, sum(a) AS s FROM p GROUP BY day;
--@ persist partition {{ day=daily }} start="2024-01-01" end="2024-01-03"
CREATE VIEW parted AS SELECT day, sum(a) AS s FROM p GROUP BY day;
"""
# Stands for a choice that Spark may make in another way.
PYTHON = """
from pathlib import Path
from persist_assets import udf

@udf(returns="int")
def chosen(a):
    return a + int(Path({path!r}).read_text())
"""
READERS = ("r", "parted")


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


def build(builder: Builder, *names: str) -> list[str]:
    return [builder.build(named(builder, n)).action for n in names]


def append(root: Path, name: str, day: int, a: int) -> None:
    (root / "raw").mkdir(exist_ok=True)
    rows = {"day": pa.array([dt.date(2024, 1, day)]), "a": pa.array([a], pa.int32())}
    pq.write_table(pa.table(rows), root / "raw" / name)


@pytest.fixture
def make(
    make_project: Callable[..., Path], tmp_path: Path, enter: Callable[..., Builder]
) -> Callable[[str, str], Callable[[], Builder]]:
    """Return a function that makes a project, and returns one that starts a run of it."""

    def start(column: str, rest: str) -> Callable[[], Builder]:
        choice = tmp_path / "choice"
        choice.write_text("0")
        files = {"m.sql": SQL.format(column, rest), "m.py": PYTHON.format(path=str(choice))}
        root = make_project(files)
        append(root, "0.parquet", 1, 1)
        return lambda: enter(root)

    return start


def sums(builder: Builder, name: str) -> list[tuple[int, int]]:
    return sorted((row.day.day, row.s) for row in builder.read(named(builder, name)).collect())


@pytest.mark.proves("T29")
@pytest.mark.usefixtures("spark")
def test_rows_computed_from_replaced_rows_are_computed_again_with_newer_data(
    make: Callable[[str, str], Callable[[], Builder]], tmp_path: Path
) -> None:
    run = make("chosen(a)", "")
    assert build(run(), "p", *READERS) == ["built"] * 3
    (tmp_path / "choice").write_text("10")
    builder = run()
    builder.build(named(builder, "p"), force=True)
    append(builder.settings.root, "1.parquet", 2, 5)
    builder = run()
    assert build(builder, "p", *READERS) == ["built"] * 3
    for name in READERS:
        assert sums(builder, name) == [(1, 11), (2, 15)]
    # Then, only new rows are computed.
    append(builder.settings.root, "2.parquet", 2, 1)
    builder = run()
    build(builder, "p")
    (step, parted) = builder.plan([named(builder, n).source_id for n in READERS]).steps
    assert step.increment is not None
    assert parted.keys == ("2024-01-02",)


@pytest.mark.proves("T29")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("at_once", [True, False])
def test_rows_computed_from_a_table_that_chooses_rows_are_computed_again(
    make: Callable[[str, str], Callable[[], Builder]], tmp_path: Path, at_once: bool
) -> None:
    run = make("first(chosen(a))", "GROUP BY day")
    assert build(run(), "p", *READERS) == ["built"] * 3
    (tmp_path / "choice").write_text("10")
    builder = run()
    append(builder.settings.root, "1.parquet", 2, 5)
    if not at_once:
        assert build(builder, "p") == ["built"]
        builder = run()
    # The changes of `p` decide, not those of the raw data.
    (*_, step, parted) = builder.plan([named(builder, n).source_id for n in ("p", *READERS)]).steps
    message = "the method is known once p is built" if at_once else "the change of p is merged"
    assert message in step.reasons[-1].message
    assert parted.keys == ("2024-01-01", "2024-01-02")
    build(builder, "p", *READERS)
    for name in READERS:
        assert sums(builder, name) == [(1, 11), (2, 15)]
