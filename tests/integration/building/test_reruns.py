"""Reruns recompute a window and leave all other rows unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from growing import ONE, PLAIN, Data, check, kind_of, put, sources

from persist_assets.building.builder import Builder
from persist_assets.core.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
FUNCTION = """
from pathlib import Path
from persist_assets import incremental_filter, incremental_table
from pyspark.sql import functions as F

@incremental_table(time_column="ts", assume="exact")
def f(t):
    said = Path({place!r}).read_text()
    return t.transform(incremental_filter("ts")).withColumn("said", F.lit(said))
"""


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def build(builder: Builder, name: str, *span: str) -> tuple[str, Snapshot]:
    with builder.work(named(builder, name), recompute_span=span or None) as work:  # pyright: ignore
        snapshot = builder.publish(work)
    return kind_of(work), snapshot


@pytest.mark.slow
@pytest.mark.proves("P13", "P15")
def test_a_rerun_recomputes_only_its_window(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path
) -> None:
    place = tmp_path / "said.txt"
    place.write_text("old")
    root = make_project({"raw.sql": ONE, "f.py": FUNCTION.format(place=str(place))})
    for day in range(6):
        put(root, day, (day, f"d{day}"))
        build(enter(root), "f")
    before = enter(root)
    files = {f: f.stat().st_mtime_ns for f in (root / ".persist").rglob("*.parquet")}
    place.write_text("new")
    how, snapshot = build(before, "f", "2024-01-02", "2024-01-03")
    assert how == "windows"
    assert snapshot.watermark == "2024-01-06T00:00:00Z"
    rows = before.reader.load_snapshot(snapshot).orderBy("ts").collect()
    assert [r.said for r in rows] == ["old", "new", "new", "old", "old", "old"]
    assert [r.x for r in rows] == [f"d{day}" for day in range(6)]
    assert all(f.stat().st_mtime_ns == at for f, at in files.items())
    # An empty window, an old one, and one beside new data.
    assert build(enter(root), "f", "2020-01-01", "2020-01-02")[1].rows == 6
    put(root, 7, (9, "d9"))
    how, snapshot = build(enter(root), "f", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z")
    rows = before.reader.load_snapshot(snapshot).orderBy("ts").collect()
    assert [r.said for r in rows] == ["new", "new", "new", "old", "old", "new", "new"]
    assert snapshot.watermark == "2024-01-10T00:00:00Z"


@pytest.mark.slow
@pytest.mark.proves("P13", "P15")
def test_reruns_between_changes_of_the_data_equal_a_build_from_scratch(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root, rng = make_project({"m.sql": sources()}), random.Random(3)
    data = Data(root, rng)
    said = "at first"
    for number in range(3):
        builder = enter(root)
        for source in builder.project.persisted:
            first = rng.randrange(5)
            window = (f"2024-01-0{first + 1}", f"2024-01-0{first + 1 + rng.randrange(3)}")
            if number:
                build(builder, source.name, *window)
            else:
                builder.build(source)
            check(builder, source, f"step {number}, {said}")
        said = data.change()


@pytest.mark.proves("P14")
@pytest.mark.parametrize(
    ("name", "window", "message"),
    [
        ("q", ("2024-01-03", "2024-01-02"), "comes after"),
        ("q", ("yesterday", "2024-01-02"), "`yesterday` is not a valid timestamp"),
        ("q", ("1", "2"), "`1` is not a valid timestamp"),
        ("plain", ("2024-01-01", "2024-01-02"), "has no windows"),
    ],
)
def test_invalid_windows_are_rejected(
    enter: Make,
    make_project: Callable[..., Path],
    name: str,
    window: tuple[str, str],
    message: str,
) -> None:
    text = f"{PLAIN}\n--@ persist\nCREATE VIEW plain AS SELECT ts FROM t;"
    builder = enter(make_project({"m.sql": text}))
    put(builder.settings.root, 0, (1, "a"))
    with pytest.raises(SettingsError, match=message) as refused:
        build(builder, name, *window)
    assert refused.value.hint
    assert not builder.observer.manifest()
