"""What a build continues: the table, the partial results and the rows that it was computed from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from maintained import WITHOUT_COST, build, integers, methods

from persist_assets.building import changed_tables, table_versions
from persist_assets.building.builder import Builder

Enter = Callable[..., Builder]
Make = Callable[..., Path]


def put(root: Path, table: str, **columns: Any) -> None:
    write_deltalake(root / "raw" / table, integers(**columns), mode="append")


@pytest.mark.slow
@pytest.mark.proves("T27")
def test_partial_results_of_older_data_are_not_merged_with_a_change(
    make_project: Make, enter: Enter
) -> None:
    """A build that cannot merge a change leaves all rows as they are, but not the counts."""
    text = "".join(
        f"CREATE TABLE {t} (k INT, v INT) USING delta LOCATION 'raw/{t}';\n" for t in "tb"
    )
    many = "SELECT k, count(*) > 5 AS many{} FROM t GROUP BY k"
    text += f"{WITHOUT_COST}CREATE VIEW greatest AS {many.format(', max(v) AS m')};\n"
    text += f"{WITHOUT_COST}CREATE VIEW named AS SELECT b.v, a.many FROM ({many.format('')}) a"
    text += " JOIN b ON a.k = b.k;\n"
    root = make_project({"m.sql": text})
    put(root, "t", k=[1] * 5, v=[9, 8, 7, 6, 5])
    put(root, "b", k=[1, 2], v=[1, 2])
    methods(enter(root), "built")
    DeltaTable(root / "raw" / "t").delete("v < 7")
    put(root, "b", k=[3], v=[3])
    assert methods(enter(root), "rows left")["greatest"] != "merge"
    put(root, "t", k=[1] * 2, v=[6, 5])
    methods(enter(root), "rows came")
    put(root, "t", k=[1], v=[4])
    methods(enter(root), "one more row came")


@pytest.mark.slow
@pytest.mark.proves("T27")
def test_two_sources_of_a_run_can_follow_one_table_from_different_versions(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_versions, "_PRUNED_BYTES", 1)
    monkeypatch.setattr(changed_tables, "_SMALL_BYTES", 0)
    text = "CREATE TABLE s (id INT, x INT) USING delta LOCATION 'raw/s';\n"
    text += "CREATE TABLE t (id INT, g INT, h INT) USING delta LOCATION 'raw/t';\n"
    for name, item in (("hourly", "g"), ("daily", "g + 0")):
        text += f"{WITHOUT_COST}CREATE VIEW {name} AS SELECT {item} AS g, sum(s.x) AS x, count(*)"
        text += f" AS n FROM s JOIN t ON s.id = t.id GROUP BY {item};\n"
    root = make_project({"m.sql": text})
    put(root, "s", id=range(60), x=range(60))
    for first in range(0, 60, 10):
        put(root, "t", id=range(first, first + 10), g=[n % 7 for n in range(10)], h=[0] * 10)
    methods(enter(root), "built")

    def follow(*names: str) -> None:
        assert {*build(enter(root), names).values()} <= {"keys", "merge"}

    table = DeltaTable(root / "raw" / "t")
    table.update({"g": "1"}, predicate="id = 5")
    follow("hourly")
    table.update({"g": "6"}, predicate="id = 5")
    DeltaTable(root / "raw" / "s").update({"x": "100"}, predicate="id = 5")
    follow("hourly", "daily")


@pytest.mark.slow
@pytest.mark.proves("T27")
def test_a_table_that_was_deleted_with_its_log_is_not_continued(
    make_project: Make, enter: Enter
) -> None:
    text = "CREATE TABLE s (id INT, v INT) USING delta LOCATION 'raw/s';\n"
    text += "--@ persist\nCREATE VIEW t AS SELECT id, v FROM s;\n"
    text += f"{WITHOUT_COST}CREATE VIEW d AS SELECT id, v FROM t WHERE v > 0;\n"
    root = make_project({"m.sql": text})
    put(root, "s", id=[1], v=[10])
    build(enter(root), ["t"])
    put(root, "s", id=[2], v=[20])
    build(builder := enter(root), ["t", "d"])
    place = builder.settings.table_root(next(s.table for s in builder.project.persisted))
    shutil.rmtree(place)
    DeltaTable(root / "raw" / "s").update({"v": "v + 1"})
    for number in (3, 4, 5):
        build(enter(root), ["t"])  # the versions of its new log have the numbers of the old ones
        put(root, "s", id=[number], v=[number])
    build(enter(root), ["t"])
    build(enter(root), ["d"])
