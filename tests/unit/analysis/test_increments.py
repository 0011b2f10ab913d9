"""Which rows of a table new and changed input rows affect, as far as that can be proven."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from conftest import compilation_of, compiled

from persist_assets.compiler.state import Memory
from persist_assets.core import time_values
from persist_assets.core.model.plans import Change, Increment, Piece
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.planning.increments import grow, in_order, merged_spans, obstacle, touched

if TYPE_CHECKING:
    from persist_assets.analysis.semantics import Meaning
    from persist_assets.core.model.columns import Growth
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

RAW = """
CREATE TABLE ev (ts TIMESTAMP, usr INT, kind STRING, amt INT) USING parquet LOCATION 'ev';
CREATE TABLE pay (ts TIMESTAMP, usr INT, amt INT, day DATE) USING parquet LOCATION 'pay';
CREATE TABLE dim (usr INT, name STRING, since TIMESTAMP) USING parquet LOCATION 'dim';
CREATE VIEW days AS SELECT CAST(ts AS DATE) AS day, usr, count(*) AS n FROM ev GROUP BY 1, 2;
--@ persist
CREATE VIEW kept AS SELECT ts, usr, amt + 1 AS amt FROM ev WHERE amt > 0;
--@ persist
CREATE VIEW summed AS SELECT usr, sum(amt) AS s, max(ts) AS ts FROM ev GROUP BY usr;
"""


def project_of(query: str, watermark: str = "ts", more: str = "") -> Project:
    column = f" watermark={watermark}" if watermark else ""
    text = f"{RAW}\n--@ persist refresh=incremental{column}{more}\nCREATE VIEW q AS {query};"
    return compiled({"m.sql": text})


def growth_of(query: str, watermark: str = "ts") -> Growth:
    project = project_of(query, watermark)
    assert not project.errors, project.errors
    growth = project.by_id["q@sources/m.sql"].growth
    assert growth is not None
    return growth


def short(source_id: str) -> str:
    return source_id.partition("@")[0]


def sums(growth: Growth) -> set[str]:
    return {"+".join(sorted(map(short, tables))) for tables in growth.sums}


def traces(growth: Growth) -> dict[str, str]:
    """Return, by table, the column that determines windows, with the functions applied to it."""
    found: dict[str, str] = {}
    for trace in growth.columns[0].traces:
        said = trace.column.column
        for step in trace.steps:
            said = {
                "cast": f"CAST({said} AS {step.unit})",
                "trunc": f"trunc({said}, '{step.unit}')",
            }.get(step.function, f"{step.function}('{step.unit}', {said})")
        found[short(trace.column.source_id)] = said
    return found


def loose(growth: Growth) -> set[str]:
    return {short(s) for s in growth.columns[0].loose}


# By query, the sets of tables in which it is additive.
ADDITIVE = {
    "SELECT ts, usr FROM ev WHERE kind = 'a'": {"ev"},
    "SELECT e.ts, d.name FROM ev e LEFT JOIN dim d ON e.usr = d.usr": {"ev"},
    "SELECT e.ts, f.amt FROM ev e LEFT JOIN ev f ON e.usr = f.usr": set(),
    "SELECT e.ts, d.name FROM ev e JOIN dim d ON e.usr = d.usr": {"ev", "dim"},
    "SELECT d.since AS ts, e.amt FROM ev e RIGHT JOIN dim d ON e.usr = d.usr": {"dim"},
    "SELECT e.ts, d.name FROM ev e FULL JOIN dim d ON e.usr = d.usr": set(),
    "SELECT ts, usr FROM ev UNION ALL SELECT ts, usr FROM pay": {"ev+pay"},
    "SELECT ts, usr FROM ev UNION ALL SELECT ts, usr FROM ev WHERE amt > 1": {"ev"},
    "SELECT ts, usr FROM ev UNION ALL SELECT TIMESTAMP'2020-01-01 00:00:00', 1": set(),
    "SELECT e.ts, d.name FROM ev e JOIN dim d ON e.usr = d.usr"
    " UNION ALL SELECT p.ts, d.name FROM pay p JOIN dim d ON p.usr = d.usr": {"ev+pay", "dim"},
    "SELECT ts, x FROM ev LATERAL VIEW explode(array(1, 2)) t AS x": {"ev"},
    "SELECT ts, usr FROM ev WHERE EXISTS (SELECT 1 FROM dim WHERE dim.usr = ev.usr)": {"ev"},
    "SELECT ts, usr FROM ev WHERE usr IN (SELECT usr FROM ev WHERE amt > 3)": set(),
    "SELECT ts, usr FROM ev WHERE amt > (SELECT avg(amt) FROM pay)": {"ev"},
    "SELECT a.ts, b.usr FROM ev a JOIN ev b ON a.ts = b.ts": set(),
    "SELECT ts, count(*) AS n FROM ev GROUP BY ts": set(),
    "SELECT DISTINCT ts FROM ev": set(),
    "SELECT ts, row_number() OVER (PARTITION BY usr ORDER BY ts) AS n FROM ev": set(),
    "SELECT ts FROM ev ORDER BY ts LIMIT 3": set(),
    "SELECT ts FROM ev EXCEPT ALL SELECT ts FROM pay": set(),
    "SELECT ts, amt FROM kept": {"ev"},
    "SELECT k.ts, s.s FROM kept k JOIN summed s ON k.usr = s.usr": set(),
    "SELECT p.ts, s.s FROM pay p JOIN summed s ON p.usr = s.usr": {"pay"},
    "SELECT p.ts, d.n FROM pay p JOIN days d ON p.usr = d.usr": {"pay"},
    "WITH c AS (SELECT * FROM ev) SELECT ts FROM c": {"ev"},
}


@pytest.mark.parametrize("query", ADDITIVE)
def test_analysis_finds_the_tables_whose_new_rows_only_add_rows(query: str) -> None:
    assert sums(growth_of(query)) == ADDITIVE[query]


# By query: its time column, the columns that determine it, and tables that must not change.
WINDOWED: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM ev GROUP BY 1": (
        "day",
        {"ev": "CAST(ts AS date)"},
        set(),
    ),
    "SELECT date_trunc('MONTH', ts) AS m, usr, sum(amt) AS s FROM ev GROUP BY ALL HAVING s > 3": (
        "m",
        {"ev": "date_trunc('month', ts)"},
        set(),
    ),
    "SELECT trunc(CAST(ts AS DATE), 'MM') AS m FROM ev": (
        "m",
        {"ev": "trunc(CAST(ts AS date), 'mm')"},
        set(),
    ),
    "SELECT e.ts, p.amt FROM ev e JOIN pay p ON e.usr = p.usr AND e.ts = p.ts": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        set(),
    ),
    "SELECT e.ts, p.amt FROM ev e, pay p WHERE CAST(e.ts AS DATE) = p.day": (
        "ts",
        {"ev": "ts"},
        {"pay"},
    ),
    "SELECT p.day, e.amt FROM ev e, pay p WHERE CAST(e.ts AS DATE) = p.day": (
        "day",
        {"ev": "CAST(ts AS date)", "pay": "day"},
        set(),
    ),
    "SELECT e.ts, p.amt FROM ev e LEFT JOIN pay p ON e.usr = p.usr AND e.ts = p.ts": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        set(),
    ),
    "SELECT p.ts, p.amt FROM ev e LEFT JOIN pay p ON e.ts = p.ts": ("ts", {}, {"ev", "pay"}),
    "SELECT coalesce(e.ts, p.ts) AS ts FROM ev e FULL JOIN pay p ON e.ts = p.ts": (
        "ts",
        {},
        {"ev", "pay"},
    ),
    "SELECT ts, usr FROM ev UNION SELECT ts, usr FROM pay": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        set(),
    ),
    "SELECT ts, usr FROM ev EXCEPT SELECT ts, usr FROM pay": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        set(),
    ),
    "SELECT max(ts) AS ts, usr FROM ev GROUP BY usr": ("ts", {}, {"ev"}),
    "SELECT ts, count(*) AS n FROM ev GROUP BY ROLLUP (ts)": ("ts", {}, {"ev"}),
    "SELECT ts, usr, count(*) AS n FROM ev GROUP BY GROUPING SETS ((ts), (ts, usr))": (
        "ts",
        {"ev": "ts"},
        set(),
    ),
    "SELECT ts, sum(amt) OVER (PARTITION BY usr, ts) AS s FROM ev": ("ts", {"ev": "ts"}, set()),
    "SELECT CAST(ts AS DATE) AS d, sum(amt) OVER (PARTITION BY ts) AS s FROM ev": (
        "d",
        {"ev": "CAST(ts AS date)"},
        set(),
    ),
    "SELECT ts, sum(amt) OVER (PARTITION BY CAST(ts AS DATE)) AS s FROM ev": (
        "ts",
        {"ev": "ts"},
        {"ev"},
    ),
    "SELECT ts, sum(amt) OVER (PARTITION BY usr ORDER BY ts) AS s FROM ev": (
        "ts",
        {"ev": "ts"},
        {"ev"},
    ),
    "SELECT ts, usr FROM ev WHERE amt > (SELECT avg(amt) FROM ev)": ("ts", {"ev": "ts"}, {"ev"}),
    "SELECT ts, sum(amt * (SELECT max(amt) FROM ev)) AS s FROM ev GROUP BY ts": (
        "ts",
        {"ev": "ts"},
        {"ev"},
    ),
    "SELECT ts, sum(amt) FILTER (WHERE usr IN (SELECT usr FROM dim)) AS s FROM ev GROUP BY ts": (
        "ts",
        {"ev": "ts"},
        {"dim"},
    ),
    "SELECT t.x AS ts, ev.usr FROM ev LATERAL VIEW explode(sequence(1, amt)) t AS x": (
        "ts",
        {},
        {"ev"},
    ),
    "SELECT t.x AS ts FROM explode(array((SELECT max(ts) FROM ev))) AS t(x)": ("ts", {}, {"ev"}),
    "SELECT a.ts, b.usr FROM ev a JOIN ev b ON a.ts = b.ts": ("ts", {"ev": "ts"}, set()),
    "SELECT a.ts, b.usr FROM ev a JOIN ev b ON a.usr = b.usr": ("ts", {"ev": "ts"}, {"ev"}),
    "SELECT ts FROM ev ORDER BY ts LIMIT 3": ("ts", {}, {"ev"}),
    "SELECT ts + INTERVAL 1 DAY AS ts FROM ev": ("ts", {}, {"ev"}),
    "SELECT hour(ts) AS ts FROM ev": ("ts", {}, {"ev"}),
    "SELECT d.day, d.n, x.name FROM days d JOIN dim x ON d.usr = x.usr": (
        "day",
        {"ev": "CAST(ts AS date)"},
        {"dim"},
    ),
    "SELECT ts, sum(amt) AS s FROM kept GROUP BY ts": ("ts", {"ev": "ts"}, set()),
    "SELECT ts, s FROM summed": ("ts", {}, {"ev"}),
    # A condition in ON on the left side alone does not hold for rows without a match.
    "SELECT e.ts, p.amt FROM (SELECT a.ts, d.since FROM ev a JOIN dim d ON a.usr = d.usr) e"
    " LEFT JOIN pay p ON e.ts = e.since AND e.since = p.ts": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        {"dim"},
    ),
    "SELECT ts, usr FROM ev UNION ALL SELECT day, usr FROM pay": ("ts", {}, {"ev", "pay"}),
    # A window function reads rows that a later condition removes.
    "SELECT ts, s FROM (SELECT ts, since, sum(amt) OVER (PARTITION BY since) AS s FROM (SELECT p.ts,"
    " p.amt, p.ts + INTERVAL 0 DAY AS t, p.day AS since FROM pay p)) WHERE CAST(ts AS DATE) = since": (
        "ts",
        {"pay": "ts"},
        {"pay"},
    ),
    "SELECT day AS ts, s FROM (SELECT ts, day, sum(amt) OVER (PARTITION BY day) AS s FROM pay)"
    " WHERE CAST(ts AS DATE) = day": ("ts", {"pay": "CAST(ts AS date)"}, {"pay"}),
    "SELECT day AS ts, s FROM (SELECT ts, day, sum(amt) OVER (PARTITION BY day) AS s FROM pay"
    " WHERE CAST(ts AS DATE) = day)": ("ts", {"pay": "CAST(ts AS date)"}, set()),
    "SELECT e.ts, s FROM (SELECT e.ts AS ts, p.ts AS other, sum(p.amt) OVER (PARTITION BY p.ts) AS s"
    " FROM ev e JOIN pay p ON e.usr = p.usr) e WHERE ts = other": (
        "ts",
        {"ev": "ts", "pay": "ts"},
        {"ev", "pay"},
    ),
    "SELECT ts, sum(amt) OVER (PARTITION BY ts) AS s FROM (SELECT e.ts, p.amt FROM ev e"
    " JOIN pay p ON e.ts = p.ts)": ("ts", {"ev": "ts", "pay": "ts"}, set()),
}


@pytest.mark.parametrize("query", WINDOWED)
def test_analysis_finds_the_columns_that_determine_windows(query: str) -> None:
    column, followed, staying = WINDOWED[query]
    growth = growth_of(query, column)
    assert (traces(growth), loose(growth)) == (followed, staying)


# ----------------------------------------------------------------------------- incremental or full


def of(query: str, watermark: str = "ts", more: str = "") -> tuple[Project, Source, Snapshot]:
    project = project_of(query, watermark, more)
    source = project.by_id["q@sources/m.sql"]
    built = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    snapshot = Snapshot("u", source.source_id, source.build_id, "q", 1, (), "1:0:0:0", 1, 1, built)
    return project, source, snapshot


def piece_of(low: Any = None, high: Any = None, nulls: bool = False) -> Piece:
    return Piece("file", {} if low is None else {"ts": (low, high, nulls)})


def decided(query: str, changes: dict[str, Change | None], **how: Any) -> Increment | str:
    watermark = how.pop("watermark", "ts")
    project, source, snapshot = of(query, watermark, how.pop("more", ""))
    base = Snapshot(**{**{f: getattr(snapshot, f) for f in snapshot.__slots__}, **how})
    assert source.growth is not None
    whole = {s: changes.get(short(s), Change()) for s in source.growth.reads}
    return grow(project, source, base, whole)


FILTER = "SELECT ts, usr FROM ev WHERE kind = 'a'"
BY_TIME = "SELECT ts, count(*) AS n FROM ev GROUP BY ts"
DAY = dt.datetime(2024, 1, 5, tzinfo=dt.UTC)


def test_added_rows_are_appended() -> None:
    found = decided(FILTER, {"ev": Change(added=(Piece("new"),))})
    assert isinstance(found, Increment)
    assert found.added == {"ev@sources/m.sql": ("new",)}


def test_removed_rows_cause_their_window_to_be_recomputed() -> None:
    found = decided(FILTER, {"ev": Change(added=(Piece("new"),), lost=(piece_of(DAY, DAY),))})
    assert isinstance(found, Increment)
    assert (found.added, [t.column.column for t in found.traces]) == ({}, ["ts"])


@pytest.mark.parametrize("piece", [piece_of(), piece_of("2024", "2024"), piece_of(None, DAY)])
def test_removed_rows_of_unknown_time_need_a_full_build(piece: Piece) -> None:
    assert decided(FILTER, {"ev": Change(lost=(piece,))}) == "rows of ev changed or were removed"


def test_a_change_of_an_outer_joined_table_needs_a_full_build() -> None:
    query = "SELECT e.ts, d.name FROM ev e LEFT JOIN dim d ON e.usr = d.usr"
    found = decided(query, {"dim": Change(added=(Piece("new"),))})
    assert found == "its rows do not follow from those of dim"


def test_a_table_that_is_also_read_in_full_has_no_windows() -> None:
    query = (
        "SELECT e.ts, count(*) AS n, (SELECT max(amt) FROM ev) AS m FROM ev e"
        " JOIN pay p ON e.ts = p.ts GROUP BY e.ts"
    )
    growth = growth_of(query)
    assert (traces(growth), loose(growth)) == ({"ev": "ts", "pay": "ts"}, {"ev"})
    assert isinstance(decided(query, {"pay": Change(added=(piece_of(DAY, DAY),))}), Increment)
    assert isinstance(decided(query, {"ev": Change(added=(piece_of(DAY, DAY),))}), str)


def test_added_and_removed_rows_touch_windows() -> None:
    project, source, _ = of(BY_TIME)
    before = DAY - dt.timedelta(days=2)
    change = Change(added=(piece_of(DAY, DAY),), lost=(piece_of(before, before, nulls=True),))
    assert source.windows is not None
    led = touched(project, source.windows.traces, {"ev@sources/m.sql": change}, "timestamp", "UTC")
    assert led is not None
    spans, nulls = led
    assert nulls
    assert all(any(low <= day <= high for low, high in spans) for day in (before, DAY))  # pyright: ignore
    assert not any(low <= before + dt.timedelta(days=1) <= high for low, high in spans)  # pyright: ignore


def test_spans_that_overlap_are_merged_to_the_later_end() -> None:
    assert merged_spans([(7, 8), (1, 5), (2, 3), (5, 6)]) == ((1, 6), (7, 8))


def test_unknown_changes_need_a_full_build() -> None:
    assert decided(FILTER, {"ev": None}) == "the changes in ev are unknown"


def test_groups_need_a_watermark() -> None:
    assert "has no watermark" in str(decided(BY_TIME, {}, watermark=""))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ev": Change(added=(Piece("new"),))}, True),
        ({"ev": None}, True),
        ({"ev": Change(lost=(piece_of(),))}, False),
    ],
)
def test_assume_exact_does_not_override_known_changes(changes: Any, expected: bool) -> None:
    query = "SELECT max(ts) AS ts, usr FROM ev GROUP BY usr"
    found = decided(query, changes, more=" assume=exact", watermark="ts")
    assert isinstance(found, str)  # it has no watermark yet
    stamp = "2024-01-01T00:00:00Z"
    project, source, base = of(query, "ts", " assume=exact")
    base = Snapshot(**{f: getattr(base, f) for f in base.__slots__} | {"watermark": stamp})
    full = {s: changes[short(s)] for s in source.growth.reads}  # pyright: ignore
    again = grow(project, source, base, full)
    assert (isinstance(again, Increment) and again.past) is expected
    assert expected or again == "rows of ev changed or were removed"


def test_queries_with_random_numbers_or_clocks_are_never_incremental() -> None:
    for query in ("SELECT ts, rand() AS r FROM ev", "SELECT ts, now() AS n FROM ev"):
        assert obstacle(project_of(query).by_id["q@sources/m.sql"]) is not None


@pytest.mark.proves("S17")
def test_a_watermark_of_uncertain_type_prevents_incremental_builds() -> None:
    up = "--@ persist\nCREATE VIEW up AS SELECT {} AS t, rand() AS r FROM ev;\n"
    by_time = (
        "--@ persist refresh=incremental watermark=t\n"
        "CREATE VIEW q AS SELECT t, count(*) AS n FROM up GROUP BY t"
    )
    texts = {"trunc(ts, 'MONTH')": True, "get(array(ts), 0)": False, "array(ts)": False}
    for text, is_certain in texts.items():
        project = compiled({"m.sql": RAW + up.format(text) + by_time})
        assert not project.errors
        why = obstacle(project.by_id["q@sources/m.sql"])
        assert (why is None) == is_certain
        assert is_certain or "the type of `t` is uncertain" in str(why)


def test_check_warns_if_every_build_computes_all_rows() -> None:
    project = project_of("SELECT ts, rand() AS r FROM ev")
    (problem,) = project.problems
    assert (problem.code, problem.severity) == ("increment", "warning")
    assert problem.message.startswith("every build of `q` computes all rows: ")
    assert not project_of("SELECT max(ts) AS ts, usr FROM ev GROUP BY usr").problems
    assert not project_of("SELECT max(ts) AS ts FROM ev", more=" assume=exact").problems


def test_a_lookback_without_assume_causes_a_warning() -> None:
    (problem,) = project_of("SELECT ts FROM ev", more=' lookback="1 day"').problems
    assert (problem.code, problem.severity) == ("increment", "warning")
    assert "has no effect" in problem.message
    assert not project_of("SELECT ts FROM ev", more=' lookback="1 day" assume=exact').problems


@pytest.mark.parametrize(
    ("query", "more", "message"),
    [
        ("SELECT CAST(amt AS DOUBLE) AS ts FROM ev", "", "is double"),
        ("SELECT CAST(array(amt) AS ARRAY<INT>) AS ts FROM ev", "", "is array<int>"),
        ("SELECT amt AS ts FROM ev", ' assume=exact lookback="1d"', "`lookback` is a duration"),
    ],
)
def test_a_watermark_or_lookback_of_an_unsuitable_type_is_rejected(
    query: str, more: str, message: str
) -> None:
    errors = project_of(query, more=more).errors
    assert message in " ".join(e.message for e in errors)


# ------------------------------------------------------------------------------------- watermarks

VALUES: dict[str, list[tuple[str, str, str]]] = {
    "date": [("2024-02-29", "2024-02-29", "DATE'2024-02-29'")],
    "timestamp": [
        ("0", "1970-01-01T00:00:00Z", "timestamp_micros(0)"),
        ("1711846800123456", "2024-03-31T01:00:00.123456Z", "timestamp_micros(1711846800123456)"),
        ("-1", "1969-12-31T23:59:59.999999Z", "timestamp_micros(-1)"),
    ],
    "timestamp_ntz": [
        ("2024-03-31 02:30:00", "2024-03-31T02:30:00", "TIMESTAMP_NTZ'2024-03-31 02:30:00'"),
        ("2024-03-31 02:30:00.5", "2024-03-31T02:30:00.500000", "TIMESTAMP_NTZ'2024-03-31 02:30:00.500000'"),
    ],
    "bigint": [("-9", "-9", "CAST('-9' AS bigint)")],
    "decimal(10,2)": [("1.50", "1.50", "CAST('1.50' AS decimal(10,2))")],
    "string": [("it's \\", "it's \\", "'it\\'s \\\\'")],
}  # fmt: skip


@pytest.mark.proves("P22")
@pytest.mark.parametrize(
    ("kind", "spark", "text", "sql"), [(k, *v) for k, many in VALUES.items() for v in many]
)
def test_watermarks_are_typed(kind: str, spark: str, text: str, sql: str) -> None:
    value = time_values.from_spark(spark, kind)
    assert value is not None
    assert time_values.to_text(value) == text
    assert time_values.from_text(text, kind) == value
    assert time_values.literal(value, kind) == sql


def test_numbers_are_compared_as_numbers() -> None:
    values = [time_values.from_text(t, "int") for t in ("9", "10")]
    assert values == sorted(values)  # pyright: ignore
    assert time_values.from_text("1.10", "decimal(4,2)") == Decimal("1.1")


@pytest.mark.proves("P22")
def test_texts_are_compared_by_their_code_points() -> None:
    # By the code units of UTF-16, the last two would be in the other order.
    texts = ["", "10", "9", "B", "a", "z", "zz", "é", "\uff61", "\U0001f600"]
    values = [time_values.from_text(t, "string") for t in texts]
    assert values == sorted(values)  # pyright: ignore
    for low, high in pairwise(texts):
        assert time_values.greatest([high, None, low], "string") == high
        assert not time_values.overlap((low, low), (high, None))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("+10000-01-01", "date"),
        ("99999999999999999999", "timestamp"),
        ("x", "int"),
        ("1", "double"),
    ],
)
def test_values_that_python_cannot_represent_become_none(text: str, kind: str) -> None:
    assert time_values.from_spark(text, kind) is None


def test_a_timestamp_without_a_time_zone_becomes_none() -> None:
    assert time_values.from_text("2024-01-01T00:00:00", "timestamp") is None
    berlin = time_values.from_text("2024-03-31T03:00:00+02:00", "timestamp")
    assert berlin is not None and time_values.to_text(berlin) == "2024-03-31T01:00:00Z"


# ------------------------------------------------------------------------------------------ merging


def test_the_merge_key_is_part_of_the_build_id() -> None:
    query = "SELECT ts, usr FROM ev"
    ids = [
        project_of(query, more=more).by_id["q@sources/m.sql"].build_id
        for more in ("", " merge_key=usr", " merge_key=[usr, ts]", " merge_key=[ts, usr]")
    ]
    assert len(set(ids)) == 3
    assert ids[2] == ids[3]
    other = project_of(query, watermark="", more=" merge_key=usr").by_id["q@sources/m.sql"]
    assert other.build_id not in ids


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (" merge_key=nobody", "`nobody` is not a column"),
        (" merge_key=[usr, USR]", "must be distinct columns"),
        (" merge_key=usr { on_tie=last }", "must be one of fail, greatest"),
        (" merge_key=usr { how=1 }", "has no property `how`"),
        (" merge_key=usr materialized=view", "a build cannot add rows to a view"),
    ],
)
def test_an_invalid_merge_key_is_rejected(more: str, message: str) -> None:
    errors = project_of("SELECT ts, usr FROM ev", more=more).errors
    assert message in " ".join(e.message for e in errors)


# ------------------------------------------------------------------------------------------ lookback

ASSUMED = " assume=exact"
TWO_DAYS, AN_HOUR = ' lookback="2 days"', ' lookback="1h"'


def ids_of(query: str, *more: str, watermark: str = "ts") -> list[str]:
    """Return the BuildIDs of a query with annotations."""
    projects = [project_of(query, watermark, some) for some in more]
    assert not any(p.errors for p in projects)
    return [p.by_id["q@sources/m.sql"].build_id for p in projects]


@pytest.mark.parametrize("merged", ["", " merge_key=usr"])
def test_a_lookback_with_assume_exact_is_part_of_the_build_id(merged: str) -> None:
    query = "SELECT ts, usr FROM ev"
    trusted = [merged + ASSUMED + one for one in ("", TWO_DAYS, AN_HOUR, ' lookback="48 hours"')]
    none, two_days, an_hour, again = ids_of(query, *trusted)
    assert len({none, two_days, an_hour}) == 3
    assert again == two_days
    assert ids_of(query, merged)[0] not in (none, two_days, an_hour)  # without `assume`
    other = ids_of("SELECT ts, usr, ts AS at FROM ev", trusted[1])
    assert other != ids_of("SELECT ts, usr, ts AS at FROM ev", trusted[1], watermark="at")


def test_a_lookback_that_changes_no_rows_is_not_part_of_the_build_id() -> None:
    query = "SELECT ts, usr FROM ev"
    assert len({*ids_of(query, "", TWO_DAYS, AN_HOUR)}) == 1
    whole = "SELECT max(ts) AS ts FROM ev"  # nothing is proven, so each build computes all rows
    assert len({*ids_of(whole, "", TWO_DAYS)}) == 1
    assert len({*ids_of(whole, ASSUMED + TWO_DAYS, ASSUMED + AN_HOUR)}) == 2


def test_a_lookback_is_part_of_a_functions_build_id_only_with_assume_exact() -> None:
    code = """
from persist_assets import incremental_table

@incremental_table(time_column="ts"{})
def late(ev):
    return ev.filter("amt > 60")
"""

    def built(more: str) -> str:
        project = compiled({"m.sql": RAW, "p.py": code.format(more)})
        assert not project.errors
        return project.by_id["late@sources/p.py"].build_id

    said = [', lookback="2 days"', ', lookback="1h"']
    assert len({built(one) for one in ("", *said)}) == 1
    trusted = {built(f'{one}, assume="exact"') for one in ("", *said)}
    assert len({built(""), *trusted}) == 4


def test_readers_of_a_source_with_assume_exact_depend_on_its_table() -> None:
    def read(more: str, columns: str = "ts, usr") -> str:
        text = (
            f"--@ persist refresh=incremental watermark=ts{more}\n"
            f"CREATE VIEW a AS SELECT {columns} FROM ev;\n--@ persist\n"
            "CREATE VIEW b AS SELECT usr, count(*) AS n FROM a GROUP BY usr;"
        )
        return compiled({"m.sql": RAW + text}).by_id["b@sources/m.sql"].build_id

    assert len({read(ASSUMED + one) for one in ("", TWO_DAYS, AN_HOUR)}) == 3
    assert read("") == read(TWO_DAYS)
    # A table with one more column may lack other rows, depending on when it was built.
    for some in (ASSUMED, ASSUMED + TWO_DAYS):
        assert (
            len({read(some), read(some, "ts, usr, amt"), read(some, "ts, usr, amt + 1 AS amt")})
            == 3
        )


def test_cached_meanings_depend_on_assume_and_lookback() -> None:
    def meaning(more: str, memory: Memory) -> Meaning:
        text = f"{RAW}--@ persist refresh=incremental watermark=ts{more}\nCREATE VIEW q AS SELECT ts FROM ev;"
        compilation_of({"m.sql": text}, memory=memory)
        return next(m for m in memory.used.values() if m.growth is not None)

    first = Memory()
    known = meaning("", first)
    assert meaning("", Memory(first.used)) is known
    assert meaning(ASSUMED, Memory(first.used)) is not known
    assert meaning(ASSUMED + TWO_DAYS, Memory(first.used)).build_id != known.build_id


def test_cached_meanings_of_readers_depend_on_whether_inputs_continue() -> None:
    def read(more: str, memory: Memory) -> set[str]:
        text = (
            f"{RAW}--@ persist refresh=incremental watermark=ts{more}\n"
            "CREATE VIEW p AS SELECT ts FROM ev;\n"
            "--@ persist refresh=incremental watermark=ts\nCREATE VIEW r AS SELECT ts FROM p;"
        )
        project = compilation_of({"m.sql": text}, memory=memory).project
        growth = project.by_id["r@sources/m.sql"].growth
        assert growth is not None
        return {short(s) for s in growth.reads}

    first = Memory()
    assert read("", first) == {"ev"}
    second = Memory(first.used)
    assert read(" on_change=continue", second) == {"p"}
    assert read("", Memory({**second.used, **first.used})) == {"ev"}


def test_groups_cannot_be_merged_incrementally() -> None:
    project = project_of("SELECT ts, count(*) AS n FROM ev GROUP BY ts", more=" merge_key=ts")
    assert "only added rows can be merged" in project.problems[0].message


def test_readers_of_a_merged_source_depend_on_its_table() -> None:
    text = RAW + (
        "--@ persist merge_key=usr watermark=ts\nCREATE VIEW m AS SELECT ts, usr FROM ev;\n"
        "--@ persist refresh=incremental watermark=ts\nCREATE VIEW q AS SELECT ts, usr FROM m;"
    )
    source = compiled({"m.sql": text}).by_id["q@sources/m.sql"]
    assert source.growth is not None
    assert {short(s) for s in source.growth.reads} == {"m"}


def days(first: int, last: int, megabytes: int = 8) -> Piece:
    span = (dt.date(2024, 1, 1) + dt.timedelta(first), dt.date(2024, 1, 1) + dt.timedelta(last))
    return Piece(f"{first}-{last}", {"day": (*span, False)}, megabytes * 2**20)


def test_consecutive_files_are_read_in_ordered_groups() -> None:
    files = [days(n, n + 1, 2) for n in range(10)]
    groups = in_order(reversed(files), "Day", "date")
    assert [len(group) for group in groups] == [2, 2, 2, 2, 2]
    assert [path for group in groups for path in group] == [f.path for f in files]
    many = in_order([days(n, n + 1, 80) for n in range(320)], "day", "date")
    assert len(many) == 80


@pytest.mark.parametrize(
    "files",
    [
        [days(0, 9), days(1, 10), days(2, 3)],
        [days(0, 1), days(2, 3), Piece("unknown", {}, 8 * 2**20)],
        [days(0, 1)],
    ],
    ids=["overlapping", "unknown", "one"],
)
def test_overlapping_unknown_and_single_files_have_no_order(files: list[Piece]) -> None:
    assert in_order(files, "day", "date") == ()
