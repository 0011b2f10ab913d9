"""Malloy queries over times without a time zone return the same as over instants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import need
from malloy import there

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

RAW = """
CREATE TABLE instants (id BIGINT, t TIMESTAMP, l ARRAY<STRUCT<u: TIMESTAMP>>)
    USING parquet LOCATION 'raw/instants';
CREATE TABLE locals (id BIGINT, t TIMESTAMP_NTZ, l ARRAY<STRUCT<u: TIMESTAMP_NTZ>>)
    USING parquet LOCATION 'raw/locals';
CREATE TABLE pairs (id BIGINT, t TIMESTAMP, n TIMESTAMP_NTZ) USING parquet LOCATION 'raw/pairs';
"""
TIMES = [
    datetime(2024, 1, 31, 23, 59, 59, 500_000),
    datetime(2024, 3, 10, 2, 30),  # no such time in New York
    datetime(2024, 11, 3, 5, 30),
    datetime(1969, 12, 31, 23, 0),
    None,
]
QUERIES = {
    "truncated": "group_by: m is t.month, w is t.week, h is t.hour; aggregate: n is count()",
    "parts": "group_by: y is year(t), d is day_of_week(t), h is hour(t), s is second(t), d2 is day_of_year(t)",
    "cast": "select: id, d is t::date, again is t::date::timestamp",
    "moved": "select: id, a is t + 1 month, b is t - 3 hours, c is (t + 90 seconds).minute",
    "compared": "select: id; where: t > @2024-02-01 and t < @2024-11-03 05:30:01",
    "ranges": "select: id; where: (t ? @2024-03) or (t ? @1969-12-31)",
    "between": "select: id, d is days(@1970-01-01 00:00:00 to t), h is hours(t to @2024-06-01 00:00:00)",
    "extremes": "aggregate: a is t.min(), b is t.max(), n is count(t)",
    "zoned": "timezone: 'America/New_York'; group_by: d is t.day, h is hour(t); aggregate: n is count()",
    "zoned cast": "timezone: 'America/New_York'; select: id, d is t::date",
    "zoned range": "timezone: 'America/New_York'; select: id; where: t ? @2024-03-09",
    "picked": "select: id, x is pick t when id > 2 else @2020-01-01 00:00:00",
    "filled": "select: id, x is t ?? @2020-01-01 00:00:00",
    "nested": "group_by: id; nest: x is { group_by: m is t.month }",
    "unnested": "group_by: m is l.u.month; aggregate: n is count()",
    "ordered": "select: id, t; order_by: t desc; limit: 2",
}


def write(root: Path, name: str, columns: dict[str, pa.Array]) -> None:
    path = root / "raw" / name
    path.mkdir(parents=True)
    pq.write_table(pa.table(columns), path / "part.parquet")


def data(root: Path) -> None:
    ids = pa.array([*range(len(TIMES))], pa.int64())
    for name, zone in (("instants", "UTC"), ("locals", None)):
        kind = pa.timestamp("us", zone)
        times = pa.array(TIMES, kind)
        nested = pa.array([[{"u": t}] for t in TIMES], pa.list_(pa.struct([("u", kind)])))
        write(root, name, {"id": ids, "t": times, "l": nested})
    both = {
        "t": pa.array(TIMES, pa.timestamp("us", "UTC")),
        "n": pa.array(TIMES, pa.timestamp("us")),
    }
    write(root, "pairs", {"id": ids, **both})


def plain(value: Any) -> Any:
    """Return a value with instants as times in UTC without their zone."""
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return value


@pytest.mark.slow
@pytest.mark.proves("V23")
def test_queries_over_times_without_a_zone_return_the_same_as_over_instants(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    lines = ["##! experimental.persistence"]
    for n, query in enumerate(QUERIES.values()):
        for table in ("instants", "locals"):
            lines += [
                "#@ persist",
                f"source: {table}_{n} is spark.table('{table}') -> {{ {query} }}",
            ]
    lines += [
        "#@ persist",
        "source: equal is spark.table('pairs') -> { select: id; where: t = n }",
        "#@ persist",
        "source: of_sql is spark.sql('SELECT id, n FROM pairs') -> { group_by: m is n.month }",
    ]
    root = make_project({"raw.sql": RAW, "m.malloy": "\n".join(lines) + "\n"})
    data(root)
    builder = enter(root)
    by_name = {s.name: s for s in builder.project.sources}

    def rows(name: str) -> list[Any]:
        builder.build(by_name[name])
        return sorted(map(plain, builder.read(by_name[name]).collect()), key=repr)

    for n, query in enumerate(QUERIES):
        expected = rows(f"instants_{n}")
        assert rows(f"locals_{n}") == expected, query
        assert expected, query
    assert rows("equal") == [(0,), (1,), (2,), (3,)]
    assert len(rows("of_sql")) == len(TIMES)
