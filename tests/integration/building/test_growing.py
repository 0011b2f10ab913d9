"""Incremental sources on Spark: tables equal a full build, and only needed rows are computed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from growing import ONE, PLAIN, Data, anew, check, kind_of, put, sources

from persist_assets.building.builder import Builder
from persist_assets.building.strategies import in_place
from persist_assets.core.errors import BuildError, CheckFailedError
from persist_assets.operations.environments import roll_back
from persist_assets.operations.gc import collect
from persist_assets.storage.changes import listed_version, listings_of

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]


@pytest.fixture
def make_builder(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that makes a builder, a new run, for a project of one SQL file."""

    def make(text: str | None = None, settings: str = "", **how: Any) -> Builder:
        root = how.pop("root", None) or make_project({"m.sql": text or ""}, settings)
        return enter(root, **how)

    return make


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def built(builder: Builder, name: str = "q") -> tuple[str, Snapshot]:
    """Build a source, check its table, and return the method and the snapshot."""
    with builder.work(named(builder, name)) as work:
        snapshot = builder.publish(work)
    check(builder, named(builder, name), name)
    return kind_of(work), snapshot


DAILY = ONE + (
    "--@ persist refresh=incremental watermark=day\n"
    "CREATE VIEW q AS SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM t GROUP BY 1;"
)


@pytest.mark.slow
@pytest.mark.proves("P8", "P34")
def test_random_histories_equal_a_build_from_scratch(
    make_builder: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": sources()})
    data, tally = Data(root, random.Random(7)), Counter[str]()
    said = "at first"
    for number in range(4):
        builder = make_builder(root=root)
        for source in builder.project.persisted:
            with builder.work(source) as work:
                builder.publish(work)
            tally[kind_of(work)] += 1
            check(builder, source, f"step {number}, {said}: {kind_of(work)}")
        said = data.change()
    assert min(tally["added"], tally["windows"], tally["reused"]) > 0, tally


@pytest.mark.proves("P8", "P34")
def test_late_rows_ties_and_nulls_are_added_once(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (5, "a"), (None, "n"))
    assert built(builder) == (
        "whole",
        builder.ledger.manifests.fetch("dev")[named(builder, "q").build_id],
    )
    put(root, 1, (5, "tie"), (1, "late"), (None, "again"))
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.rows) == ("added", 5)
    assert snapshot.watermark == "2024-01-06T00:00:00Z"
    how, same = built(make_builder(root=root))
    assert (how, same.version) == ("reused", snapshot.version)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "query", "hows"),
    [
        ("", "SELECT ts, x FROM t", ["added", "added"]),
        ("", "SELECT ts, x, count(*) AS n FROM t GROUP BY ALL", ["windows", "windows"]),
        ("", "SELECT CAST(ts AS STRING) AS ts, x FROM t", ["added", "added"]),
        ("merge_key=x", "SELECT ts, x FROM t", ["added", "added"]),
        ("assume=exact", "SELECT max(ts) AS ts, x FROM t GROUP BY x", ["whole", "windows"]),
    ],
    ids=["added", "windows", "texts", "merged", "assumed"],
)
@pytest.mark.proves("P8", "P22")
def test_a_table_has_no_watermark_until_a_row_has_a_time(
    make_builder: Make, caplog: pytest.LogCaptureFixture, more: str, query: str, hows: list[str]
) -> None:
    builder = make_builder(
        f"{ONE}--@ persist refresh=incremental watermark=ts {more}\nCREATE VIEW q AS {query};"
    )
    root = builder.settings.root
    put(root, 0, (None, "a"), (None, "b"))
    how, snapshot = built(builder)
    assert (how, snapshot.rows, snapshot.watermark) == ("whole", 2, None)
    said = "2 computed rows have no `ts` and belong to no time window"
    assert f"{said}, and there is no watermark" in caplog.text
    assert built(make_builder(root=root))[0] == "reused"
    put(root, 1, (3, "c"), (5, "d"))
    caplog.clear()
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.rows, snapshot.watermark and snapshot.watermark[:10]) == (
        hows[0], 4, "2024-01-06",
    )  # fmt: skip
    assert "no watermark" not in caplog.text
    put(root, 2, (7, "e"), (None, "f"))
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.rows, snapshot.watermark and snapshot.watermark[:10]) == (
        hows[1], 6, "2024-01-08",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("query", ["SELECT x FROM t", "SELECT x, count(*) AS n FROM t GROUP BY x"])
@pytest.mark.proves("P8", "P22")
def test_string_watermarks_are_ordered_as_in_spark(make_builder: Make, query: str) -> None:
    root = make_builder(
        f"{ONE}--@ persist refresh=incremental watermark=x\nCREATE VIEW q AS {query};"
    ).settings.root
    given = [("10", "9", "B", "a"), ("z", "zz"), ("é", "B"), ("\U0001f600",), ("\uff61", "é")]
    for number, texts in enumerate(given):
        put(root, number, *((number, x) for x in texts))
        how, snapshot = built(make_builder(root=root))
        assert (how == "whole") == (number == 0)
        told = snapshot.watermark
        assert told == ["a", "zz", "é", "\U0001f600", "\U0001f600"][number]


@pytest.mark.slow
@pytest.mark.proves("P8", "P34")
def test_added_rows_join_all_rows_of_tables_derived_from_the_same_input(make_builder: Make) -> None:
    builder = make_builder(f"""{ONE}
        --@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"
        CREATE VIEW u AS SELECT CAST(ts AS DATE) AS day, max(x) AS m FROM t GROUP BY 1;
        --@ persist
        CREATE VIEW above AS SELECT day, m FROM u WHERE m <> '-';
        --@ persist
        CREATE VIEW w AS SELECT ts, x FROM t WHERE x < 'c';
        --@ persist refresh=incremental merge_key=x watermark=ts
        CREATE VIEW last AS SELECT ts, x FROM w;
        --@ persist refresh=incremental
        CREATE VIEW q AS SELECT t.ts, t.x, a.m, l.ts AS at FROM t
        LEFT JOIN above a ON a.day = date_sub(CAST(t.ts AS DATE), 2)
        LEFT JOIN last l ON l.x = t.x OR (t.x = 'z' AND l.x = 'a');
    """)
    root = builder.settings.root
    put(root, 0, (0, "a"), (1, "b"), (2, "c"))
    for name in ("u", "above", "w", "last", "q"):
        built(builder, name)
    put(root, 1, (3, "z"))  # after the last day of `u`, and not in `w`
    again = make_builder(root=root)
    done = [built(again, name)[0] for name in ("u", "above", "w", "last", "q")]
    assert done[-1] == "added", done
    table = again.reader.load_snapshot(again.observer.manifest()[named(again, "q").build_id])
    (row,) = table.where("x = 'z'").collect()
    assert (row.m, row["at"].date()) == ("b", datetime(2024, 1, 1).date())


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_dates_beyond_pythons_range_are_valid_watermarks(make_builder: Make, form: str) -> None:
    builder = make_builder(f"""
        CREATE TABLE t (d DATE) USING {form} LOCATION 'raw/t';
        --@ persist refresh=incremental watermark=d
        CREATE VIEW q AS SELECT d FROM t;
    """)
    raw = builder.settings.root / "raw" / "t"
    for turn, days in enumerate(([19_724, 3_672_000], [3_672_001, 19_725])):
        rows = pa.table({"d": pa.array(days, pa.int32()).cast(pa.date32())})
        if form == "delta":
            write_deltalake(raw, rows, mode="append")
        else:
            raw.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, raw / f"{turn}.parquet")
        again = make_builder(root=builder.settings.root)
        with again.work(named(again, "q")) as work:
            snapshot = again.publish(work)
        assert (snapshot.rows, snapshot.watermark) == (2 * turn + 2, f"+12023-08-0{turn + 6}")


@pytest.mark.slow
@pytest.mark.proves("P8", "P18")
@pytest.mark.parametrize("more", [False, True])
def test_raw_data_that_is_restored_and_then_extended_is_recomputed(
    make_builder: Make, more: bool
) -> None:
    builder = make_builder("""
        CREATE TABLE t (ts INT) USING delta LOCATION 'raw';
        --@ persist refresh=incremental watermark=ts
        CREATE VIEW q AS SELECT ts FROM t;
    """)
    raw = builder.settings.root / "raw"

    def write(n: int) -> None:
        write_deltalake(raw, pa.table({"ts": pa.array([n], pa.int32())}), mode="append")

    write(1)
    shutil.copytree(raw, raw.with_name("saved"))
    write(2)
    built(builder)
    shutil.rmtree(raw)
    shutil.copytree(raw.with_name("saved"), raw)
    write(99)  # this version number was already built, with other rows
    if more:
        write(100)
    again = make_builder(root=builder.settings.root)
    how, snapshot = built(again)
    assert how == "whole"
    rows = sorted(row.ts for row in again.reader.load_snapshot(snapshot).collect())
    assert rows == [1, 99, 100][: 3 if more else 2]


@pytest.mark.slow
@pytest.mark.proves("P18", "P31")
def test_files_outside_the_windows_are_not_rewritten(make_builder: Make) -> None:
    builder = make_builder(DAILY)
    root = builder.settings.root
    put(root, 0, (1, "a"), (2, "b"))
    _, first = built(builder)
    put(root, 1, (9, "c"))
    how, second = built(make_builder(root=root))
    assert (how, second.parts) == ("windows", (first.build_uid,))
    put(root, 2, (9, "d"))
    how, third = built(make_builder(root=root))
    # The file of the changed day is replaced, the other one is kept.
    assert (how, third.parts, third.rows) == ("windows", (first.build_uid,), 3)


@pytest.mark.slow
def test_increments_compact_the_small_files_of_a_table(
    make_builder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "_MOST_PARTS", 4)
    monkeypatch.setattr(in_place, "_FEWEST_MERGED", 3)
    builder = make_builder(PLAIN)
    root = builder.settings.root
    most = 0
    for n in range(9):
        put(root, n, (n, str(n)))
        _, snapshot = built(make_builder(root=root))
        most = max(most, len(snapshot.parts))
    assert most == 3


STAMPED = ONE.replace("parquet", "delta") + (
    "--@ persist refresh=incremental watermark=ts\n"
    "--@ check { not_null=ts { severity=warn } expr { few='n < 2' severity=warn } }\n"
    "CREATE VIEW q AS SELECT ts, count(*) AS n FROM t GROUP BY ts;"
)


def add(root: Path, *rows: tuple[int | None, str]) -> None:
    """Append a file to a Delta table: microseconds from the first of 2024, and texts."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    stamps = [None if at is None else start + timedelta(microseconds=at) for at, _ in rows]
    columns = {"ts": pa.array(stamps, pa.timestamp("us", "UTC")), "x": [x for _, x in rows]}
    write_deltalake(str(root / "raw"), pa.table(columns), mode="append")


@pytest.mark.slow
def test_the_watermark_falls_when_the_newest_row_is_deleted(make_builder: Make) -> None:
    builder = make_builder(STAMPED)
    root = builder.settings.root
    add(root, (1, "a"))
    add(root, (2, "b"))
    built(builder)
    DeltaTable(str(root / "raw")).delete("x = 'b'")
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.watermark) == ("windows", "2024-01-01T00:00:00.000001Z")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATE"])
def test_the_watermark_falls_as_the_newest_rows_are_deleted(make_builder: Make, kind: str) -> None:
    text, day = STAMPED, 86_400_000_000
    if kind == "DATE":
        text = text.replace("SELECT ts,", "SELECT CAST(ts AS DATE) AS ts,").replace("BY ts", "BY 1")
    root = make_builder(text).settings.root
    add(root, (day, "a"), (None, "n"))
    for at, x in ((7 * day + 1, "b"), (7 * day + 3, "c"), (7 * day + 2, "d"), (8 * day, "e")):
        add(root, (at, x))
        built(make_builder(root=root))
    told: list[str | None] = []
    for x in ("e", "c", "d", "b", "a"):
        DeltaTable(str(root / "raw")).delete(f"x = '{x}'")
        how, snapshot = built(make_builder(root=root))
        assert how == "windows"
        told.append(snapshot.watermark)
    if kind == "DATE":
        assert told == [*["2024-01-08"] * 3, "2024-01-02", None]
    else:
        week = "2024-01-08T00:00:00.00000"
        assert told == [f"{week}3Z", f"{week}2Z", f"{week}1Z", "2024-01-02T00:00:00Z", None]


@pytest.mark.slow
def test_row_metrics_cover_removed_and_added_rows(make_builder: Make) -> None:
    builder = make_builder(STAMPED)
    root = builder.settings.root
    add(root, (1, "a"), (1, "b"), (2, "c"), (None, "n"))
    add(root, (3, "d"), (3, "e"))
    built(builder)
    add(root, (2, "f"), (None, "m"), (9, "g"))
    assert built(make_builder(root=root))[0] == "windows"
    DeltaTable(str(root / "raw")).delete("x = 'd'")
    assert built(make_builder(root=root))[0] == "windows"


@pytest.mark.slow
@pytest.mark.proves("M15")
def test_garbage_collection_keeps_files_that_a_table_still_uses(make_builder: Make) -> None:
    builder = make_builder(PLAIN, 'keep = "1 hour"\n')
    root = builder.settings.root
    for n in range(3):
        put(root, n, (n, str(n)))
        builder = make_builder(root=root)
        _, snapshot = built(builder)
    later = datetime.now(UTC) + timedelta(days=3)
    collect(builder.settings, builder.project, builder.ledger, clock=lambda: later)
    there = {p.name for p in Path(builder.settings.table_root(snapshot.table)).iterdir()}
    assert there == {*snapshot.parts, snapshot.build_uid, "_delta_log"}
    builder = make_builder(root=root)
    check(builder, named(builder, "q"), "a collection")
    put(root, 0, (7, "changed"), (7, "too"))  # a changed file: no old file can be kept
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.parts) == ("whole", ())
    builder = make_builder(root=root)
    collect(builder.settings, builder.project, builder.ledger, clock=lambda: later)
    there = {p.name for p in Path(builder.settings.table_root(snapshot.table)).iterdir()}
    assert there == {snapshot.build_uid, "_delta_log"}
    directory = Path(listings_of(builder.settings.warehouse, builder.ledger.events.log_id()))
    (listing,) = directory.iterdir()
    assert listed_version(listing.name) in {v.version for v in snapshot.as_of}


@pytest.mark.slow
def test_after_a_rollback_a_build_continues_the_published_snapshot(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (0, "a"))
    _, first = built(builder)
    put(root, 1, (1, "b"))
    built(make_builder(root=root))
    builder = make_builder(root=root)
    changes = builder.ledger.manifests.fetch_history("dev")
    roll_back(builder.settings, builder.ledger, to=changes[-1].change_id)
    put(root, 2, (2, "c"))
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.rows, snapshot.parts) == ("added", 3, (first.build_uid,))


@pytest.mark.proves("P23")
def test_a_failed_increment_leaves_the_table_unchanged(make_builder: Make) -> None:
    checked = PLAIN.replace("\nCREATE VIEW q", "\n--@ check { expr=\"x < 'c'\" }\nCREATE VIEW q")
    builder = make_builder(checked)
    root = builder.settings.root
    put(root, 0, (0, "a"))
    _, first = built(builder)
    put(root, 1, (1, "z"))
    builder = make_builder(root=root)
    with pytest.raises(CheckFailedError, match="1 rows"):
        builder.build(named(builder, "q"))
    table = Path(builder.settings.table_root(first.table))
    assert {p.name for p in table.iterdir()} == {first.build_uid, "_delta_log"}
    put(root, 1, (1, "b"))
    builder = make_builder(root=root)
    how, snapshot = built(builder)
    assert (how, snapshot.rows) == ("added", 2)


@pytest.mark.slow
def test_checks_count_the_rows_of_all_files(make_builder: Make) -> None:
    checked = DAILY.replace(
        "\nCREATE VIEW q",
        '\n--@ check { expr { few { ="n < 2" } } unique=[n] { severity=warn } }\nCREATE VIEW q',
    ).replace('expr { few { ="n < 2" } }', 'expr="n < 2" { severity=warn }')
    builder = make_builder(checked)
    root = builder.settings.root
    put(root, 0, (0, "a"), (0, "b"), (1, "c"), (1, "d"))
    built(builder)
    put(root, 1, (2, "e"), (2, "f"), (0, "g"))
    builder = make_builder(root=root)
    how, snapshot = built(builder)
    found = {r.name: r.failed_rows for r in builder.ledger.builds.fetch_checks(snapshot.build_uid)}
    assert (how, found) == ("windows", {"expr": 3, "unique_n": 2})


@pytest.mark.slow
def test_a_new_check_covers_all_rows(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (0, "z"))
    built(builder)
    text = PLAIN.replace(
        "\nCREATE VIEW q", "\n--@ check { expr=\"x < 'c'\" { severity=warn } }\nCREATE VIEW q"
    )
    (root / "sources" / "m.sql").write_text(text)
    put(root, 1, (1, "a"))
    builder = make_builder(root=root)
    how, snapshot = built(builder)
    (result,) = builder.ledger.builds.fetch_checks(snapshot.build_uid)
    assert (how, result.failed_rows) == ("added", 1)


def test_a_changed_watermark_column_rebuilds_the_table(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (0, "z"))
    built(builder)
    (root / "sources" / "m.sql").write_text(PLAIN.replace("watermark=ts", "watermark=x"))
    put(root, 1, (1, "a"))
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.watermark) == ("whole", "z")


@pytest.mark.slow
def test_a_full_rebuild_of_an_input_does_not_rebuild_its_incremental_reader(
    make_builder: Make,
) -> None:
    text = (
        PLAIN
        + "\n"
        + (
            "--@ persist refresh=whole\nCREATE VIEW p AS SELECT ts, x FROM t WHERE x <> 'no';\n"
            "--@ persist refresh=incremental watermark=ts\n"
            "CREATE VIEW r AS SELECT ts, upper(x) AS u FROM p;"
        )
    )
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (0, "a"), (1, "no"))
    built(builder, "p")
    built(builder, "r")
    put(root, 1, (0, "b"), (2, "no"))
    builder = make_builder(root=root)
    assert built(builder, "p")[0] == "whole"
    assert built(builder, "r")[0] == "added"
    put(root, 2, (3, "c"))
    # The raw versions behind `p` decide; they are unchanged, since `p` was not built again.
    builder = make_builder(root=root)
    with builder.work(named(builder, "r")) as work:
        builder.publish(work)
    assert kind_of(work) == "reused"


@pytest.mark.proves("P35")
def test_assume_exact_recomputes_rows_since_the_lookback(make_builder: Make) -> None:
    text = ONE + (
        '--@ persist refresh=incremental watermark=ts assume=exact lookback="2 days"\n'
        "CREATE VIEW q AS SELECT max(ts) AS ts, x FROM t GROUP BY x;"
    )
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "b"))
    built(builder)
    put(root, 1, (4, "late"), (5, "tie"), (9, "new"))
    how, snapshot = built(make_builder(root=root))
    assert (how, snapshot.rows, len(snapshot.parts)) == ("windows", 5, 0)
    step = make_builder(root=root).plan([snapshot.source_id]).steps[0]
    assert step.action == "reuse"


@pytest.mark.slow
@pytest.mark.proves("S17", "P35")
@pytest.mark.parametrize("query", ["max(ts) AS ts, x", "CAST(max(ts) AS DATE) AS ts, x"])
def test_times_before_the_lookback_are_warned_about(
    make_builder: Make, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    text = ONE + (
        '--@ persist refresh=incremental watermark=ts assume=exact lookback="2 days"\n'
        f"CREATE VIEW q AS SELECT {query} FROM t GROUP BY x;"
    )
    builder = make_builder(text)
    root, source = builder.settings.root, named(builder, "q")
    put(root, 0, (0, "a"), (9, "b"))
    for turn, (first, is_late) in enumerate(((8, False), (4, True), (None, False)), 1):
        with (builder := make_builder(root=root)).work(source) as work:
            builder.publish(work)
        put(root, turn, (first, "c"), (9, "d"))
        caplog.clear()
        builder = make_builder(root=root)
        (step,) = builder.plan([source.source_id]).steps
        told = [
            r.message for r in step.reasons if "new files of t contain earlier times" in r.message
        ]
        assert bool(told) == is_late
        with builder.work(source) as work:
            builder.publish(work)
        assert (
            "new files of t contain times before the watermark 2024-01-10" in caplog.text
        ) == is_late


@pytest.mark.slow
@pytest.mark.proves("P35")
def test_a_source_with_assume_does_not_share_its_table_with_one_without(make_builder: Make) -> None:
    query = "SELECT max(ts) AS ts, x FROM t GROUP BY x;\n"
    builder = make_builder(
        f"{ONE}--@ persist refresh=incremental watermark=ts assume=exact\nCREATE VIEW q AS {query}"
        f"--@ persist\nCREATE VIEW all_of_it AS {query}"
        "--@ persist\nCREATE VIEW n AS SELECT count(*) AS n FROM q;\n"
        "--@ persist\nCREATE VIEW n_of_all AS SELECT count(*) AS n FROM all_of_it;"
    )
    root = builder.settings.root
    names = ("q", "all_of_it", "n", "n_of_all")
    put(root, 0, (0, "a"), (5, "b"))
    for name in names:
        built(builder, name)
    put(root, 1, (4, "late"), (9, "new"))
    builder = make_builder(root=root)
    for name in names:  # the late row is not in `q`, which assumes that none is late
        with builder.work(named(builder, name)) as work:
            builder.publish(work)
    builder = make_builder(root=root)
    assert [builder.read(named(builder, n)).collect()[0].n for n in names[2:]] == [3, 4]
    ids = [s.source_id for s in builder.project.persisted]
    assert {s.action for s in builder.plan(ids).steps} == {"reuse"}


@pytest.mark.slow
@pytest.mark.proves("P35")
def test_readers_of_a_source_with_assume_follow_its_actual_rows(make_builder: Make) -> None:
    def text(more: str, name: str = "q") -> str:
        return (
            "--@ persist refresh=incremental watermark=ts assume=exact\n"
            f"CREATE VIEW {name} AS SELECT max(ts) AS ts, x{more} FROM t GROUP BY x;\n"
            f"--@ persist\nCREATE VIEW n_of_{name} AS SELECT count(*) AS n FROM {name};\n"
        )

    def counted(*names: str) -> list[int]:
        builder = make_builder(root=root)
        for name in names:
            with builder.work(named(builder, name)) as work:
                builder.publish(work)
        read = [named(builder, name) for name in names if name.startswith("n_of_")]
        return [builder.read(source).collect()[0].n for source in read]

    builder = make_builder(ONE + text(""))
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "b"))
    assert counted("q", "n_of_q") == [2]
    put(root, 1, (4, "late"), (9, "new"))
    assert counted("q", "n_of_q") == [3]
    # A new source of the same rows has all of them; then `q` gets its query.
    both = text("") + text(", count(*) AS n", "p")
    (root / "sources" / "m.sql").write_text(ONE + both)
    assert counted("p", "n_of_p", "q", "n_of_q") == [4, 3]
    (root / "sources" / "m.sql").write_text(ONE + text(", count(*) AS n"))
    assert counted("q", "n_of_q") == [4]


def test_the_plan_explains_which_rows_are_computed(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (0, "a"))
    built(builder)
    put(root, 1, (1, "b"))
    builder = make_builder(root=root)
    (step,) = builder.plan([named(builder, "q").source_id]).steps
    assert [(r.code, r.message) for r in step.reasons] == [
        ("input", "the data of t changed"),
        ("increment", "only rows that follow from rows added to t are computed"),
    ]
    put(root, 0, (3, "c"))
    builder = make_builder(root=root)
    (step,) = builder.plan([named(builder, "q").source_id]).steps
    assert step.reasons[-1].code == "whole"
    assert step.reasons[-1].message == "computed in full: rows of t changed or were removed"


def test_force_recomputes_all_rows(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, (0, "a"))
    built(builder)
    put(root, 1, (1, "b"))
    builder = make_builder(root=root)
    with builder.work(named(builder, "q"), force=True) as work:
        snapshot = builder.publish(work)
    assert (snapshot.parts, snapshot.rows) == ((), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zone", "back"),
    [
        ("America/Havana", "2024-11-03T05:00"),  # from 1:00 to midnight
        ("Africa/Cairo", "2024-10-31T21:00"),  # from midnight to 23:00
        ("Asia/Beirut", "2024-10-26T21:00"),
        ("America/St_Johns", "2010-11-07T02:31"),  # from 0:01 to 23:01 of the day before
    ],
)
def test_days_are_correct_where_clocks_go_back_at_midnight(
    make_builder: Make, spark: Any, zone: str, back: str
) -> None:
    """Days need not be a monotone function of instants: in Newfoundland, a day began twice."""
    text = "CREATE TABLE d (ts TIMESTAMP, x INT) USING delta LOCATION 'delta';\n" + (
        "--@ persist refresh=incremental watermark=day\n"
        "CREATE VIEW q AS SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM d GROUP BY 1;"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    builder = make_builder(text, f'timezone = "{zone}"\n')
    root = builder.settings.root
    moment = datetime.fromisoformat(back).replace(tzinfo=UTC)
    earlier, later = (
        (moment + timedelta(seconds=s)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for s in (-30, 0)
    )
    assert earlier - later > timedelta(minutes=59)

    def grow(*minutes: float) -> None:
        times = [moment + timedelta(minutes=m) for m in minutes]
        table = pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
                "x": pa.array([1] * len(times), pa.int32()),
            }
        )
        write_deltalake(str(root / "delta"), table, mode="append")

    try:
        grow(-1020, -90, -30, -0.5, 30, 90)
        builder = make_builder(root=root)
        built(builder)
        grow(-50, -0.75, 10)
        assert built(make_builder(root=root))[0] == "windows"
        gone = (moment - timedelta(seconds=30)).isoformat()
        DeltaTable(str(root / "delta")).delete(f"ts = '{gone}'")
        assert built(make_builder(root=root))[0] == "windows"
        grow(20)
        assert built(make_builder(root=root))[0] == "windows"
        grow(-0.25)
        assert built(make_builder(root=root))[0] == "windows"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_an_increment_computes_only_the_added_rows(make_builder: Make) -> None:
    builder = make_builder(PLAIN)
    root = builder.settings.root
    put(root, 0, *((n, "a") for n in range(50)))
    built(builder)
    put(root, 1, (60, "b"))
    builder = make_builder(root=root)
    with builder.work(named(builder, "q")) as work:
        snapshot = builder.publish(work)
    assert work.staged is not None
    assert (work.staged.rows, snapshot.rows) == (1, 51)
    assert anew(builder, named(builder, "q"))[1].rows == 51


# ------------------------------------------------------------------------------------------ merging

KEYED = ONE + (
    "--@ persist refresh=incremental watermark=ts merge_key=x\nCREATE VIEW q AS SELECT ts, x FROM t;\n"
    "--@ persist refresh=incremental watermark=ts\nCREATE VIEW r AS SELECT ts, x FROM q;"
)


@pytest.mark.slow
@pytest.mark.proves("P17")
def test_a_merge_keeps_the_last_row_of_each_key(make_builder: Make) -> None:
    builder = make_builder(KEYED)
    root = builder.settings.root
    put(root, 0, (1, "a"), (2, "b"), (5, "a"), (None, "c"), (1, None))
    inline = sorted(map(str, builder.read(named(builder, "q")).collect()))
    _, first = built(builder)
    assert sorted(map(str, builder.read(named(builder, "q")).collect())) == inline
    assert first.rows == 4
    # A newer row, an older one, an existing one, a new key, a key that had no time so far, and a
    # newer row of the key NULL.
    put(root, 1, (3, "b"), (4, "a"), (5, "a"), (0, "d"), (0, "c"), (2, None))
    how, second = built(make_builder(root=root))
    assert (how, second.rows, second.watermark) == ("added", 5, "2024-01-06T00:00:00Z")
    builder = make_builder(root=root)
    _, read = built(builder, "r")
    assert read.rows == 5


@pytest.mark.slow
@pytest.mark.proves("P17")
def test_ties_of_a_merge_key_are_an_error_without_on_tie(make_builder: Make) -> None:
    text = ONE + (
        "--@ persist refresh=incremental watermark=ts merge_key=k\n"
        "CREATE VIEW q AS SELECT ts, x, 1 AS k FROM t;"
    )
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (1, "a"))
    _, first = built(builder)
    put(root, 1, (1, "b"))
    builder = make_builder(root=root)
    with pytest.raises(BuildError, match="m/q: different rows have the same merge_key"):
        builder.build(named(builder, "q"))
    (root / "sources" / "m.sql").write_text(
        text.replace("merge_key=k", "merge_key=k { on_tie=greatest }")
    )
    builder = make_builder(root=root)
    assert named(builder, "q").build_id != first.build_id
    _, snapshot = built(builder)
    assert [r.x for r in builder.reader.load_snapshot(snapshot).collect()] == ["b"]


@pytest.mark.slow
@pytest.mark.proves("P17", "P18")
def test_a_merge_rewrites_only_files_with_its_keys(make_builder: Make) -> None:
    builder = make_builder(KEYED)
    root = builder.settings.root
    put(root, 0, (1, "a"))
    _, first = built(builder)
    put(root, 1, (2, "m"))
    _, second = built(make_builder(root=root))
    put(root, 2, (3, "m"), (3, "n"))
    how, third = built(make_builder(root=root))
    assert second.parts == (first.build_uid,)
    assert (how, third.parts, third.rows) == ("added", (first.build_uid,), 3)


@pytest.mark.slow
def test_without_a_watermark_different_rows_of_a_key_are_an_error(make_builder: Make) -> None:
    builder = make_builder(KEYED.replace(" watermark=ts merge_key", " merge_key"))
    root = builder.settings.root
    put(root, 0, (1, "a"), (1, "a"))
    assert built(builder)[1].rows == 1
    put(root, 1, (1, "a"), (2, "b"))
    assert built(make_builder(root=root))[1].rows == 2
    put(root, 2, (7, "b"))
    builder = make_builder(root=root)
    with pytest.raises(BuildError, match="different rows have the same merge_key"):
        builder.build(named(builder, "q"))
