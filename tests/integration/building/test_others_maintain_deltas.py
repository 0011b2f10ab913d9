"""Incrementally maintained tables that other programs optimize and vacuum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from persist_assets.building.builder import Builder

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

pytestmark = [pytest.mark.proves("X10"), pytest.mark.slow]
SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING delta LOCATION 'raw/t';
--@ persist refresh=incremental
CREATE VIEW p AS SELECT a, upper(b) AS b FROM t;
--@ persist refresh=incremental
CREATE VIEW q AS SELECT b, count(*) AS n, sum(a) AS s FROM p GROUP BY b;
"""


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def add(root: Path, *values: int) -> None:
    table = pa.table({"a": pa.array(values, pa.int64()), "b": [f"b{v % 2}" for v in values]})
    write_deltalake(root / "raw" / "t", table, mode="append")


def check(builder: Builder) -> None:
    """Compare the tables with the queries over the raw rows."""
    raw = DeltaTable(builder.settings.root / "raw" / "t").to_pyarrow_table().to_pylist()
    groups: dict[str, list[int]] = {}
    for row in raw:
        groups.setdefault(row["b"].upper(), []).append(row["a"])
    expected = {
        "p": sorted((row["a"], row["b"].upper()) for row in raw),
        "q": sorted((b, len(values), sum(values)) for b, values in groups.items()),
    }
    for name, rows in expected.items():
        read = builder.read(named(builder, name)).select(*(("a", "b") if name == "p" else "bns"))
        assert sorted(map(tuple, read.collect())) == rows


def build(builder: Builder, *names: str) -> list[str | None]:
    """Build tables, and return the method of each; "reused" if it was not rebuilt."""
    methods: list[str | None] = []
    for name in names or ("p", "q"):
        with builder.work(named(builder, name)) as work:
            builder.publish(work)
        methods.append(work.maintenance if work.build.action == "built" else "reused")
    return methods


def root_of(builder: Builder, name: str) -> str:
    manifest = builder.ledger.manifests.fetch(builder.settings.environment)
    return builder.settings.table_root(manifest[named(builder, name).build_id].table)


def optimize(root: str) -> bool:
    """Compact the files of a table, and return whether there was anything to compact."""
    metrics = DeltaTable(root).optimize.compact(target_size=1 << 30)
    return metrics["numFilesRemoved"] > 0


def vacuum(root: str) -> None:
    DeltaTable(root).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_incremental_builds_continue_after_optimize(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES})
    for n in range(0, 40, 10):
        add(root, *range(n, n + 10))
    build(enter(root))
    for n in (100, 200):
        add(root, n, n + 1)
        builder = enter(root)
        methods = build(builder)
        check(builder)
        assert not {"whole", "reused", None} & {*methods}, methods
        for name in ("p", "q"):
            optimize(root_of(builder, name))
        check(enter(root))
        assert build(enter(root)) == ["reused", "reused"]


@pytest.mark.parametrize("names", [("p",), ("q",), ("p", "q")])
def test_incremental_builds_recover_after_a_vacuum(
    make_project: Callable[..., Path], enter: Callable[..., Builder], names: tuple[str, ...]
) -> None:
    root = make_project({"m.sql": SOURCES})
    for n in range(0, 40, 10):
        add(root, *range(n, n + 10))
    builder = enter(root)
    build(builder)
    is_rewritten = False
    for name in names:
        is_rewritten |= optimize(root_of(builder, name))
        vacuum(root_of(builder, name))
    DeltaTable(root / "raw" / "t").delete("a = 3")
    add(root, 300)
    later = enter(root)
    assert ("whole" in build(later)) == is_rewritten
    assert is_rewritten == ("p" in names)  # `q` is one file
    check(later)
    add(root, 400)
    last = enter(root)
    assert "whole" not in build(last)
    check(last)


def test_a_table_is_recomputed_if_the_version_that_it_read_was_vacuumed(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES})
    add(root, *range(20))
    first = enter(root)
    build(first)
    DeltaTable(root / "raw" / "t").delete("a = 3")
    second = enter(root)
    assert build(second, "p") != ["reused"]
    vacuum(root_of(second, "p"))  # the version that `q` was computed from
    third = enter(root)
    assert build(third) == ["reused", "whole"]
    check(third)
