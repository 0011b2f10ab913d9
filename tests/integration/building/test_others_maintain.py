"""Platform jobs that optimize and vacuum all Delta tables, including those of persist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.core.errors import GoneError
from persist_assets.storage.delta_tables import read_snapshot

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

pytestmark = pytest.mark.proves("X10")
Make = Callable[..., Builder]
SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
--@ persist
CREATE VIEW q AS SELECT b, count(*) AS n FROM p GROUP BY b;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that makes a builder for a new run."""

    def builder(root: Path | None = None, environment: str = "dev") -> Builder:
        if root is None:
            root = make_project({"m.sql": SOURCES}, settings="[env.prod]\n[env.dev]\n")
            add(root, 1, 2)
        return enter(root, environment)

    return builder


def add(root: Path, *values: int) -> None:
    directory = root / "raw" / "t"
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table({"a": pa.array(values, pa.int64()), "b": [f"b{v % 2}" for v in values]})
    pq.write_table(table, directory / f"p{len([*directory.iterdir()])}.parquet")


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def build(builder: Builder) -> list[str]:
    return [builder.build(named(builder, name)).action for name in ("p", "q")]


def table_of(builder: Builder, name: str) -> str:
    snapshot = builder.ledger.manifests.fetch(builder.settings.environment)[
        named(builder, name).build_id
    ]
    return builder.settings.table_root(snapshot.table)


def rows(builder: Builder, name: str) -> list[Any]:
    """Return the rows that readers of an environment see."""
    snapshot = builder.ledger.manifests.fetch(builder.settings.environment)[
        named(builder, name).build_id
    ]
    files = read_snapshot(builder.settings.table_root(snapshot.table), snapshot).files
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


def optimize(root: str) -> None:
    """Compact and Z-order a table, as a platform's job does."""
    DeltaTable(root).optimize.compact(target_size=1 << 30)
    DeltaTable(root).optimize.z_order(DeltaTable(root).schema().to_arrow().names[:1])


def vacuum(root: str) -> None:
    """Delete all files outside the newest version, like a job that ignores table properties."""
    DeltaTable(root).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


P = [(1, "b1"), (2, "b0")]
MORE = [*P, (3, "b1"), (4, "b0")]


def test_optimize_affects_neither_readers_nor_builds(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    build(builder)
    for name in ("p", "q"):
        optimize(table_of(builder, name))
    assert (rows(builder, "p"), rows(builder, "q")) == (P, [("b0", 1), ("b1", 1)])
    assert build(make(root)) == ["reused", "reused"]
    add(root, 3, 4)
    later = make(root)
    assert build(later) == ["built", "built"]
    assert (rows(later, "p"), rows(later, "q")) == (MORE, [("b0", 2), ("b1", 2)])
    table = DeltaTable(table_of(later, "p"))
    assert sorted(tuple(row.values()) for row in table.to_pyarrow_table().to_pylist()) == MORE
    assert table.metadata().configuration["delta.enableExpiredLogCleanup"] == "false"


def test_vacuum_with_the_default_retention_deletes_no_files(make: Make) -> None:
    builder = make()
    build(builder)
    root = table_of(builder, "p")
    optimize(root)
    table = DeltaTable(root)
    assert table.vacuum(dry_run=False) == []
    with pytest.raises(DeltaError, match="retention"):
        table.vacuum(retention_hours=168, dry_run=False)
    table.cleanup_metadata()
    assert rows(builder, "p") == P


def test_a_table_whose_files_were_vacuumed_is_rebuilt(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    build(builder)
    optimize(table_of(builder, "p"))
    vacuum(table_of(builder, "p"))
    with pytest.raises(GoneError, match="is gone") as caught:
        rows(builder, "p")
    assert caught.value.hint == "build it again"
    later = make(root)
    steps = later.plan([named(later, name).source_id for name in ("p", "q")]).steps
    assert [reason.code for reason in steps[0].reasons] == ["missing"]
    assert build(later)[0] == "built"
    assert rows(later, "p") == P
    optimize(table_of(later, "p"))
    add(root, 3, 4)
    last = make(root)
    assert build(last) == ["built", "built"]
    assert (rows(last, "p"), rows(last, "q")) == (MORE, [("b0", 2), ("b1", 2)])


def test_an_environment_recovers_after_vacuum_deletes_its_older_version(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    build(builder)
    production = make(root, "prod")
    assert build(production) == ["reused", "reused"]
    add(root, 3, 4)
    dev = make(root)
    build(dev)
    for environment in (dev, production):
        optimize(table_of(environment, "p"))
        assert rows(environment, "p") == (MORE if environment is dev else P)
    vacuum(table_of(production, "p"))
    with pytest.raises(GoneError, match="is gone"):
        rows(production, "p")
    later = make(root, "prod")
    assert build(later)[0] == "reused"  # from dev, whose version is whole
    assert rows(later, "p") == MORE
