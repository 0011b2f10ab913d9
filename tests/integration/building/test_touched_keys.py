"""Readers of an incremental table recompute only the keys that its builds touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from growing import check
from maintained import RAW, USERS, WITHOUT_COST, method_of, put_rows

from persist_assets.building.builder import Builder
from persist_assets.storage.touched_keys import TOUCHED

if TYPE_CHECKING:
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.plans import Change

Enter = Callable[..., Builder]
Make = Callable[..., Path]
TABLES = {
    "by_keys": "SELECT usr, avg(length(name)) AS mean, count(DISTINCT note) AS notes FROM dim GROUP BY usr",
    "merged": "SELECT sum(usr) AS s, usr % 20 AS bucket, count(*) AS n FROM dim GROUP BY usr % 20",
    "by_rows": "SELECT usr, upper(name) AS name FROM dim",
    "mixed": "SELECT usr % 20 AS bucket, max(usr) AS last FROM dim GROUP BY usr % 20",
    "unread": "SELECT usr, lower(name) AS name FROM dim",
}
READERS = {
    "of_mixed": "SELECT sum(last) AS s FROM mixed",
    "of_keys": "SELECT count(*) AS n, sum(usr) AS s FROM by_keys WHERE mean > 2",
    "of_merged": "SELECT n, count(*) AS buckets FROM merged GROUP BY n",
    "of_rows": "SELECT name, sum(usr) AS s FROM by_rows GROUP BY name",
}
KEYS = {"by_keys": ("usr",), "merged": ("bucket",), "by_rows": ("usr", "name")}


def project(make_project: Make) -> Path:
    views = (f"{WITHOUT_COST}CREATE VIEW {n} AS {q};\n" for n, q in {**TABLES, **READERS}.items())
    root = make_project({"m.sql": RAW + "".join(views)})
    put_rows(root / "raw" / "dim", USERS, [(n, f"n{n % 7}", "x") for n in range(40)])
    return root


def build(builder: Builder, *names: str) -> dict[str, PendingBuild]:
    """Build sources, and compare the tables of readers with a computation from scratch."""
    works: dict[str, PendingBuild] = {}
    for name in names:
        source = builder.project.by_id[f"{name}@sources/m.sql"]
        with builder.work(source) as works[name]:
            builder.publish(works[name])
        if name in READERS:
            check(builder, source, name)
    builder.close()
    return works


def change_of(work: PendingBuild) -> Change:
    """Return the change with which a build updated its table."""
    assert work.step.increment is not None
    (change,) = work.step.increment.changes.values()
    return change


@pytest.mark.slow
@pytest.mark.proves("T14")
def test_readers_use_the_touched_keys_recorded_by_builds_of_their_inputs(
    make_project: Make, enter: Enter
) -> None:
    root = project(make_project)
    raw = DeltaTable(str(root / "raw" / "dim"))
    build(enter(root), *TABLES, *READERS)

    put_rows(root / "raw" / "dim", USERS, [(80, "n1", "x")], grows=True)
    assert method_of(build(enter(root), "mixed")["mixed"]) == "merge"
    raw = DeltaTable(str(root / "raw" / "dim"))
    raw.update({"name": "'longer'"}, predicate="usr = 3")
    raw.delete("usr = 23")
    works = build(enter(root), *TABLES)
    assert {n: method_of(w) for n, w in works.items()} == {
        **dict.fromkeys(TABLES, "keys"),
        "merged": "merge",
    }
    for name, work in works.items():
        assert work.snapshot is not None
        table = DeltaTable(enter(root).settings.table_root(work.table), work.snapshot.version)
        assert (TOUCHED in table.history(1)[0]) == (name != "unread"), name

    # Keys of builds by different methods are in columns of different names.
    keys = change_of(build(enter(root), "of_mixed")["of_mixed"]).keys
    assert keys is not None
    assert (keys.columns, len(keys.files)) == (("bucket",), 2)

    # A second build of the tables, and then their readers.
    raw.update({"name": "'longest'"}, predicate="usr = 5")
    raw.delete("usr = 26")
    build(enter(root), *KEYS)
    readers = build(enter(root), *(f"of_{name.removeprefix('by_')}" for name in KEYS))
    for work, (name, columns) in zip(readers.values(), KEYS.items(), strict=True):
        keys = change_of(work).keys
        assert keys is not None, name
        assert keys.columns == columns
        assert len(keys.files) >= 2
        assert work.maintenance != "whole"

    # No keys are recorded for files with only added rows.
    put_rows(root / "raw" / "dim", USERS, [(90, "new", "x")], grows=True)
    assert method_of(build(enter(root), "by_rows")["by_rows"]) == "append"
    raw = DeltaTable(str(root / "raw" / "dim"))
    raw.update({"name": "'changed'"}, predicate="usr = 90")
    works = build(enter(root), "by_rows", "by_keys", "of_rows")
    work = works["of_rows"]
    assert (work.maintenance != "whole", change_of(work).keys) == (True, None)

    # Builds also work if the files of keys are missing.
    by_keys = works["by_keys"]
    directory = Path(enter(root).settings.table_root(by_keys.table)) / by_keys.build.build_uid
    shutil.rmtree(directory / "touched")
    work = build(enter(root), "of_keys")["of_keys"]
    assert (work.maintenance != "whole", change_of(work).keys) == (True, None)


@pytest.mark.slow
@pytest.mark.proves("T14")
def test_incomplete_touched_keys_cause_a_full_computation(
    make_project: Make, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    root = project(make_project)
    build(enter(root), "by_rows", "of_rows")
    DeltaTable(str(root / "raw" / "dim")).delete("usr in (3, 4)")
    work = build(enter(root), "by_rows")["by_rows"]
    directory = Path(enter(root).settings.table_root(work.table)) / work.build.build_uid / "touched"
    (file,) = directory.iterdir()
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(file).slice(0, 1), file)
    work = build(enter(root), "of_rows")["of_rows"]
    assert work.maintenance == "whole"
    assert "the recorded changes of `by_rows` add -1 rows, but its files add -2" in caplog.text
