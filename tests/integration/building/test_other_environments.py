"""An environment that reads another one's tables continues them in tables of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from growing import check
from maintained import QUERIES, RAW, WITHOUT_COST, Data

from persist_assets.building.builder import Builder
from persist_assets.operations.gc import collect
from persist_assets.storage.delta_tables import origin, read_snapshot

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Enter = Callable[..., Builder]
Make = Callable[..., Path]

READS = '[env.prod]\n[env.dev]\nreads = "prod"\n'
OURS = ("kept", "by_user", "newest", "counts", "total")
MORE = """
--@ persist refresh=incremental
CREATE VIEW large AS SELECT id, amt FROM kept WHERE amt > 2;
--@ persist refresh=incremental watermark=day
CREATE VIEW days AS SELECT day, count(*) AS n FROM ev GROUP BY day;
"""
METHODS = {
    "kept": "append",
    "large": "append",
    "by_user": "merge",
    "newest": "keys",
    "counts": "merge",
    "total": "merge",
    "days": "windows",
}
"""The method that updates each source for new rows of `ev`; `large` and `counts` read tables."""


def project(make_project: Make) -> Path:
    views = (f"{WITHOUT_COST}CREATE VIEW {name} AS {QUERIES[name]};\n" for name in OURS)
    return make_project({"m.sql": RAW + "".join(views) + MORE}, READS)


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def build(builder: Builder) -> dict[str, str]:
    """Build everything as the plan says, compare it with its query, and return the methods."""
    methods: dict[str, str] = {}
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
        assert work.maintenance == work.step.maintenance or work.build.action == "reused"
        methods[source.name] = work.maintenance
        check(builder, source, source.name)
    builder.close()
    return methods


def published(builder: Builder, environment: str) -> dict[str, Snapshot]:
    found = builder.ledger.manifests.fetch(environment)
    return {snapshot.source_id.partition("@")[0]: snapshot for snapshot in found.values()}


def files(builder: Builder, snapshot: Snapshot) -> set[str]:
    """Return the files of a snapshot; a copy counts as the file of which it is one."""
    root = builder.settings.table_root(snapshot.table)
    return {origin(f.removeprefix(f"{root}/")) for f in read_snapshot(root, snapshot).files}


def everything(builder: Builder, tables: dict[str, Snapshot]) -> dict[str, tuple[int, int]]:
    """Return all files of tables, each with its size and time."""
    roots = [Path(builder.settings.table_root(s.table)) for s in tables.values()]
    found = [f for root in roots for f in root.rglob("*") if f.is_file()]
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in found}


@pytest.mark.slow
@pytest.mark.proves("T13")
def test_dev_reads_the_table_of_prod_if_new_data_changes_no_row_of_it(
    make_project: Make, enter: Enter
) -> None:
    text = f"{RAW}{WITHOUT_COST}CREATE VIEW newest AS {QUERIES['newest']};\n"
    root = make_project({"m.sql": text}, READS)
    data = Data(root, random.Random(5))
    build(enter(root, "prod"))
    data.table("ev").update({"y": "y + 1"}, predicate="id < 9")  # a column that it does not read
    assert build(enter(root, "dev")) == {"newest": "stamp"}
    dev = enter(root, "dev")
    assert published(dev, "dev")["newest"].table == published(dev, "prod")["newest"].table
    source = named(dev, "newest")
    check(dev, source, "newest")
    (step,) = dev.plan([source.source_id]).steps
    assert step.action == "reuse"
    # Then dev has a table of its own, and prod's stays as it is.
    data.put("ev", [(1001, 3, "2034-01-07", "a", "9.5", 0.5, None)])
    build(enter(root, "dev"))
    dev = enter(root, "dev")
    assert published(dev, "dev")["newest"].table != published(dev, "prod")["newest"].table
    assert {*build(enter(root, "prod")).values()} == {"reuse"}


@pytest.mark.slow
@pytest.mark.proves("T13")
def test_dev_continues_the_tables_of_prod_in_tables_of_its_own(
    make_project: Make, enter: Enter
) -> None:
    root = project(make_project)
    data = Data(root, random.Random(5))
    build(enter(root, "prod"))
    prod = enter(root, "prod")
    before = published(prod, "prod")
    present = everything(prod, before)

    data.put("ev", [(1000, 3, "2024-01-07", "a", "9.5", 0.5, None)])
    dev = enter(root, "dev")
    plan = dev.plan([named(dev, name).source_id for name in METHODS])
    steps = {s.source_id.partition("@")[0]: s for s in plan.steps}
    for name in ("kept", "newest", "days"):  # the others wait for these
        assert steps[name].maintenance == METHODS[name]
        assert "copied from the table of another environment" in steps[name].why
    assert "states are read from the table of another environment" in steps["by_user"].why
    assert build(dev) == METHODS

    dev = enter(root, "dev")
    assert published(dev, "prod") == before
    assert everything(dev, before) == present
    own = published(dev, "dev")
    assert not {s.table for s in own.values()} & {s.table for s in before.values()}
    assert not any(s.parts for s in own.values())
    for name in ("kept", "large"):
        assert files(dev, own[name]) > files(dev, before[name]), name

    # Prod continues its own tables, and dev continues its own.
    data.table("ev").delete("usr = 4 and id < 40")
    assert "whole" not in build(enter(root, "prod")).values()
    data.put("ev", [(2000, 5, "2024-01-06", "c", "7.5", 0.5, None)])
    assert "whole" not in build(enter(root, "dev")).values()
    for environment, tables in (("prod", before), ("dev", own)):
        now = published(enter(root), environment)
        assert {n: s.table for n, s in now.items()} == {n: s.table for n, s in tables.items()}

    # Prod reuses the tables of dev, so dev no longer writes to them.
    assert {*build(enter(root, "prod")).values()} == {"reuse"}
    data.table("ev").delete("id = 1000")
    shared, taken = everything(dev, own), published(dev, "dev")
    methods = build(enter(root, "dev"))
    assert (methods["kept"], "whole" in methods.values()) == ("keys", False)
    assert everything(dev, own) == shared
    now = published(dev, "dev")["kept"]
    assert now.table != own["kept"].table
    assert files(dev, now) & files(dev, taken["kept"])

    # Garbage collection in prod leaves the tables of dev intact.
    data.put("ev", data.events(2))
    build(enter(root, "prod"))
    prod = enter(root, "prod")
    later = datetime.now(UTC) + timedelta(days=9)
    assert collect(prod.settings, prod.project, prod.ledger, clock=lambda: later)
    dev = enter(root, "dev")
    for name, snapshot in published(dev, "dev").items():
        found = dev.reader.load_snapshot(snapshot)
        assert dev.engine.measure(found, (), None, name).content == snapshot.content
