"""Partition mappings in Dagster include at least the partitions that plans use."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from conftest import BY_NIGHT, compiled

from persist_assets.core.model.queries import SourceID
from persist_assets.core.partitions import keys
from persist_assets.planning.reach import needed, reached_by
from persist_assets.plugin.partitions import dependency, partitions_definition

if TYPE_CHECKING:
    from persist_assets.core.model.annotations import Partitioning
    from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE f (ts TIMESTAMP, at TIMESTAMP_NTZ, day DATE, k STRING, i INT)
USING delta LOCATION 'f';
"""
UP, DOWN = "u@sources/m.sql", "d@sources/m.sql"
NOW = datetime(2024, 12, 1, tzinfo=UTC)
SPAN = 'start="2024-03-01" end="2024-04-08"'
"""Includes a clock change in both zones, and the end of a month."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York")
Found = dict[SourceID, dict[str, set[str]]]


def project_of(up: str, down: str, query: str) -> Project:
    project = compiled(
        {
            "m.sql": f"{RAW}--@ persist {up}\nCREATE VIEW u AS SELECT ts, at, day, k, i FROM f;\n"
            f"--@ persist {down}\nCREATE VIEW d AS {query};"
        }
    )
    assert not project.errors, project.errors
    return project


def partitioning(project: Project, source_id: SourceID) -> Partitioning:
    found = project.by_id[source_id].annotation.partition
    assert found is not None
    return found


def mapping_of(project: Project, zone: str) -> dg.PartitionMapping:
    found = dependency(project.by_id[DOWN], project.by_id[UP], zone).partition_mapping
    assert found is not None
    return found


def planned(project: Project, zone: str) -> Found:
    """Return the upstream and downstream partitions of each partition, as plans see them."""
    up, down = project.by_id[UP], project.by_id[DOWN]
    order = {s: keys(partitioning(project, s), NOW) for s in (UP, DOWN)}
    return {
        UP: {k: {*needed(project, down, up, [k], order, zone)} for k in order[DOWN]},
        DOWN: {k: {*reached_by(project, down, up, [k], order, zone)} for k in order[UP]},
    }


def mapped_keys(project: Project, zone: str) -> Found:
    """Return the upstream and downstream partitions of each partition, as Dagster sees them."""
    mapping = mapping_of(project, zone)
    up, down = (partitions_definition(partitioning(project, s)) for s in (UP, DOWN))
    mapping.validate_partition_mapping(up, down)
    found: Found = {UP: {}, DOWN: {}}
    for key in down.get_partition_keys(NOW):
        some = down.subset_with_partition_keys([key])
        above = mapping.get_upstream_mapped_partitions_result_for_partitions(some, down, up, NOW)
        found[UP][key] = {*above.partitions_subset.get_partition_keys()}
    for key in up.get_partition_keys(NOW):
        some = up.subset_with_partition_keys([key])
        below = mapping.get_downstream_partitions_for_partitions(some, up, down, NOW)
        found[DOWN][key] = {*below.get_partition_keys()}
    return found


def within(one: Found, other: Found) -> bool:
    return all(one[s][k] <= other[s][k] for s in one for k in one[s])


TIMES = {
    "as it is": ("ts", "ts", "SELECT ts FROM u"),
    "its day": ("ts", "day", "SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM u GROUP BY 1"),
    "its week": ("ts", "w", "SELECT date_trunc('week', ts) AS w FROM u"),
    "its month": ("ts", "m", "SELECT date_trunc('month', ts) AS m FROM u"),
    "a day": ("day", "day", "SELECT day FROM u"),
    "a day's week": ("day", "w", "SELECT CAST(date_trunc('week', day) AS DATE) AS w FROM u"),
    "a day's month": ("day", "m", "SELECT CAST(date_trunc('month', day) AS DATE) AS m FROM u"),
    "a day's begin": ("day", "ts", "SELECT CAST(day AS TIMESTAMP) AS ts FROM u"),
    "local": ("at", "at", "SELECT at FROM u"),
    "local, its day": ("at", "day", "SELECT CAST(at AS DATE) AS day FROM u"),
    "local, as an instant": ("at", "ts", "SELECT CAST(at AS TIMESTAMP) AS ts FROM u"),
}


@pytest.mark.proves("K8")
@pytest.mark.parametrize("what", TIMES)
def test_mappings_of_time_windows_include_all_partitions_that_plans_use(what: str) -> None:
    column, own, query = TIMES[what]
    mapped = dict.fromkeys(ZONES, 0)
    lengths = ("daily", "weekly", "monthly")
    for number, (every, length, one, other) in enumerate(product(lengths, lengths, ZONES, ZONES)):
        # By day only a third runs, with all combinations of any three of the four values.
        digits = number // 27 + number // 9 + number // 3 + number
        if not BY_NIGHT and digits % 3 != [*TIMES].index(what) % 3:
            continue
        project = project_of(
            f'partition={every} time_column={column} timezone="{one}" {SPAN}',
            f'partition={length} time_column={own} timezone="{other}" {SPAN}',
            query,
        )
        for zone in ZONES:
            mapping = mapping_of(project, zone)
            if isinstance(mapping, dg.AllPartitionMapping):
                continue
            mapped[zone] += 1
            assert within(planned(project, zone), mapped_keys(project, zone)), (
                every,
                length,
                one,
                other,
                zone,
            )
    assert all(mapped.values()), mapped


def test_mappings_of_hours_include_all_partitions_that_plans_use() -> None:
    span = 'start="2024-03-30" end="2024-04-02"'
    for zone, (column, own, query) in product(ZONES, (TIMES["as it is"], TIMES["its day"])):
        for below in ("hourly", "daily") if own == "ts" else ("daily",):
            up = f"partition=hourly time_column={column} {span}"
            project = project_of(up, f"partition={below} time_column={own} {span}", query)
            assert isinstance(mapping_of(project, zone), dg.TimeWindowPartitionMapping)
            assert within(planned(project, zone), mapped_keys(project, zone))


def test_exact_time_mappings_map_partitions_one_to_one() -> None:
    for column, own, query in (TIMES[w] for w in ("as it is", "its day", "a day", "local")):
        up, down = (f"partition=daily time_column={c} {SPAN}" for c in (column, own))
        project = project_of(up, down, query)
        assert planned(project, "UTC") == mapped_keys(project, "UTC")
        assert all(found == {key} for key, found in mapped_keys(project, "UTC")[UP].items())


def test_partitions_before_the_upstream_start_have_no_upstream_partitions() -> None:
    early = SPAN.replace("2024-03-01", "2024-02-20")
    project = project_of(
        f"partition=daily time_column=day {SPAN}", f"partition=daily time_column=day {early}",
        "SELECT day FROM u",
    )  # fmt: skip
    assert mapped_keys(project, "UTC") == planned(project, "UTC")
    assert mapped_keys(project, "UTC")[UP]["2024-02-20"] == set()


@pytest.mark.proves("K8")
@pytest.mark.parametrize(
    ("up", "down", "query"),
    [
        ("k=[a, b, c]", "k=[a, b, c]", "SELECT k FROM u"),
        ("k=[a, b, c]", "k=[c, x, a]", "SELECT k, count(*) AS n FROM u GROUP BY k"),
        ("i=[1, 2, 3]", "i=[3, 4]", "SELECT i FROM u WHERE k IS NOT NULL"),
    ],
)
def test_listed_values_are_mapped_one_by_one(up: str, down: str, query: str) -> None:
    project = project_of(f"partition {{ {up} }}", f"partition {{ {down} }}", query)
    assert isinstance(mapping_of(project, "UTC"), dg.StaticPartitionMapping)
    assert mapped_keys(project, "UTC") == planned(project, "UTC")


@pytest.mark.parametrize(
    ("up", "down", "query"),
    [
        ("k=[a, b]", "k=[a, b]", "SELECT upper(k) AS k FROM u"),
        ("k=[a, b]", "i=[1, 2]", "SELECT i FROM u"),
        ("k=[a, b]", f"day=daily }} {SPAN} time_column=day #", "SELECT day FROM u"),
        ("k=[a, b]", "k=[a, b]", "SELECT k FROM u ORDER BY i LIMIT 3"),
    ],
)
def test_unknown_dependencies_are_mapped_to_all_partitions(up: str, down: str, query: str) -> None:
    down = f"partition {{ {down} }}" if "#" not in down else f"partition {{ {down[:-2]}"
    project = project_of(f"partition {{ {up} }}", down, query)
    assert isinstance(mapping_of(project, "UTC"), dg.AllPartitionMapping)
    assert all(len(found) > 1 for found in planned(project, "UTC")[UP].values())


def test_times_truncated_beyond_their_window_are_mapped_to_all_partitions() -> None:
    up, down = (f"partition=daily time_column={c} {SPAN}" for c in ("day", "m"))
    project = project_of(up, down, TIMES["a day's month"][2])
    assert isinstance(mapping_of(project, "UTC"), dg.AllPartitionMapping)
    assert len(planned(project, "UTC")[UP]["2024-03-01"]) == 31


def test_a_python_function_depends_on_all_partitions() -> None:
    text = """
from persist_assets import table

@table(partition="daily", time_column="day", start="2024-03-01", end="2024-03-05")
def d(u):
    return u.filter("i > 0")
"""
    sql = (
        f'{RAW}--@ persist partition=daily time_column=day start="2024-03-01" end="2024-03-05"\n'
        "CREATE VIEW u AS SELECT day, i FROM f;"
    )
    project = compiled({"m.sql": sql, "p.py": text})
    assert not project.errors
    function = project.by_id["d@sources/p.py"]
    found = dependency(function, project.by_id[UP], "UTC").partition_mapping
    assert isinstance(found, dg.AllPartitionMapping)
    order = {s.source_id: keys(s.annotation.partition, NOW) for s in project.persisted}
    assert needed(project, function, project.by_id[UP], ["2024-03-01"], order, "UTC") == order[UP]
