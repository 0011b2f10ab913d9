"""Projects that share a ledger: which tables they share, and how they are isolated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.operations.environments import roll_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION '{place}';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT {total}(a) AS s FROM p;
"""


def write(path: Path, values: list[int]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path / "part-0.parquet")


Pair = tuple[Path, Path]


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture(params=["own", "shared"])
def pair(
    request: pytest.FixtureRequest, make_project: Callable[..., Path], tmp_path: Path
) -> Callable[..., Pair]:
    """Return a function that makes two projects with one ledger and the same source names."""

    def make(place: str = "raw/t", environment: str = "NAME") -> Pair:
        roots: list[Path] = []
        for name, total in (("a", "sum"), ("b", "max")):
            said = f'ledger = "sqlite:///{tmp_path}/shared/ledger.db"\n'
            said += f'environment = "{environment.replace("NAME", name)}"\n'
            if request.param == "shared":
                said += f'warehouse = "{tmp_path}/shared/warehouse"\n'
            text = SOURCES.format(place=place, total=total)
            roots.append(make_project({"m.sql": text}, said, name=name))
        write(roots[0] / "raw" / "t", [1, 2])
        write(roots[1] / "raw" / "t", [30, 40])
        return roots[0], roots[1]

    return make


def build(builder: Builder) -> list[str]:
    return [builder.build(s).action for s in builder.project.persisted]


def planned(builder: Builder) -> list[str]:
    ids = [s.source_id for s in builder.project.persisted]
    return [step.action for step in builder.plan(ids).steps]


def total(builder: Builder) -> int:
    return builder.read(builder.project.by_id["q@sources/m.sql"]).collect()[0][0]


@pytest.mark.proves("K16")
def test_projects_with_equal_names_and_relative_paths_do_not_share_tables(
    pair: Callable[..., Pair], enter: Callable[[Path], Builder]
) -> None:
    a, b = pair()
    assert build(enter(a)) == ["built", "built"]
    ids = [s.source_id for s in enter(b).project.persisted]
    steps = enter(b).plan(ids).steps
    assert {r.message for step in steps for r in step.reasons} == {"never built"}
    assert build(enter(b)) == ["built", "built"]
    write(a / "raw" / "t", [5])
    assert build(enter(a)) == ["built", "built"]
    assert (total(enter(a)), total(enter(b))) == (6, 41)
    assert planned(enter(b)) == ["reuse", "reuse"]
    # Each project has its own history: a rollback in one does not affect the other.
    roll_back(enter(a).settings, enter(a).ledger)
    assert (total(enter(a)), total(enter(b))) == (5, 41)


@pytest.mark.proves("K16")
def test_equivalent_sources_of_two_projects_are_built_once(
    pair: Callable[..., Pair], enter: Callable[[Path], Builder], tmp_path: Path
) -> None:
    write(tmp_path / "lake" / "t", [1, 2])
    a, b = pair(place=f"{tmp_path}/lake/t")
    assert build(enter(a)) == ["built", "built"]
    assert build(enter(b)) == ["reused", "built"]
    assert (total(enter(a)), total(enter(b))) == (5, 3)
    # Afterwards, neither project writes to a table that the other reads.
    write(tmp_path / "lake" / "t", [7, 8])
    assert build(enter(b)) == ["built", "built"]
    assert (total(enter(a)), total(enter(b))) == (5, 9)
    assert build(enter(a)) == ["reused", "built"]
    assert (total(enter(a)), total(enter(b))) == (17, 9)


def test_projects_in_one_environment_read_only_their_own_rows(
    pair: Callable[..., Pair], enter: Callable[[Path], Builder]
) -> None:
    a, b = pair(environment="dev")
    build(enter(a))
    assert build(enter(b)) == ["built", "built"]
    write(a / "raw" / "t", [5])
    assert build(enter(a)) == ["built", "built"]
    assert build(enter(b)) == ["reused", "reused"]
    assert (total(enter(a)), total(enter(b))) == (6, 41)
