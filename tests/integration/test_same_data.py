"""Commits that change no rows rebuild nothing, and what comes later is followed all the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from growing import check, kind_of
from icebergs import Written
from proposed import TABLE

from persist_assets.builder import Builder
from persist_assets.follow import Watch

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 15, 5, tzinfo=UTC)
RAW = "CREATE TABLE t (day DATE, x INT) USING delta LOCATION 't';\n"
READERS = """
--@ persist
CREATE VIEW total AS SELECT sum(x) AS s FROM t;
--@ persist refresh=incremental watermark=day
CREATE VIEW added AS SELECT day, x + 1 AS y FROM t;
--@ persist refresh=incremental watermark=day
CREATE VIEW windows AS SELECT day, sum(x) AS s FROM t GROUP BY day;
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, count(*) AS n FROM t GROUP BY day;
--@ persist
CREATE VIEW above AS SELECT max(n) AS n FROM daily;
--@ persist materialized=view
CREATE VIEW stored AS SELECT x FROM t WHERE x > 1;
"""
MORE = pa.array(["new"] * 2)


def rows(*days: int, **more: Any) -> pa.Table:
    """Return two rows of each day of January."""
    named = [date(2024, 1, 1) + timedelta(d) for d in days for _ in range(2)]
    columns = {"day": pa.array(named, pa.date32()), "x": pa.array([*range(len(named))], pa.int32())}
    return pa.table(columns | more)


def put(root: Path, *days: int, **more: Any) -> None:
    how: dict[str, Any] = {"schema_mode": "merge"} if (root / "t" / "_delta_log").exists() else {}
    write_deltalake(root / "t", rows(*days, **more), mode="append", **how)


def table(root: Path) -> DeltaTable:
    return DeltaTable(root / "t")


def add_column(root: Path) -> None:
    table(root).alter.add_columns([Field(f"c{table(root).version()}", PrimitiveType("string"))])


def set_properties(root: Path) -> None:
    table(root).alter.set_table_properties({"delta.logRetentionDuration": "interval 99 days"})


def record_changes(root: Path) -> None:
    table(root).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def commit_nothing(root: Path) -> None:
    done = CommitProperties(app_transactions=[Transaction("stream", table(root).version())])
    how: dict[str, Any] = {"schema_mode": "merge", "commit_properties": done}
    write_deltalake(root / "t", rows(), mode="append", **how)


def optimize(root: Path) -> None:
    table(root).optimize.compact()


def order(root: Path) -> None:
    table(root).optimize.z_order([table(root).schema().fields[0].name])


def tell_again(root: Path) -> None:
    """Add the files that there are once more, with other statistics, as ANALYZE does."""
    known = [json.loads(a) for a in added_by(root, *range(table(root).version() + 1))]
    there = {f.rpartition("/")[2] for f in table(root).file_uris()}
    commit(root, *({"add": {**a, "dataChange": False}} for a in known if a["path"] in there))


QUIET: Sequence[Callable[[Path], None]] = (
    optimize, add_column, set_properties, record_changes, commit_nothing, tell_again, order,
)  # fmt: skip


def log(root: Path, version: int) -> Path:
    return root / "t" / "_delta_log" / f"{version:020}.json"


def added_by(root: Path, *versions: int) -> list[str]:
    lines = (line for v in versions for line in log(root, v).read_text().splitlines())
    return [json.dumps(json.loads(line)["add"]) for line in lines if line.startswith('{"add"')]


def commit(root: Path, *actions: Any) -> None:
    """Write a commit as others do."""
    told = ({"commitInfo": {"operation": "WRITE"}}, *actions)
    log(root, table(root).version() + 1).write_text("\n".join(json.dumps(a) for a in told))


@pytest.fixture
def make(enter: Make) -> Make:
    """Return a function that makes a builder, a new run, at one instant."""
    return lambda root, **how: enter(root, clock=lambda: NOW, **how)


def every(builder: Builder) -> list[Any]:
    return [s.source_id for s in builder.project.persisted]


def stale(builder: Builder) -> dict[str, list[str]]:
    """Return what a plan would build, and why."""
    return {
        builder.project.by_id[step.source_id].name: [r.message for r in step.reasons]
        for step in builder.plan(every(builder)).steps
        if step.action == "build"
    }


def build(builder: Builder) -> dict[str, str]:
    """Build everything, and return how; tables are as if everything was computed."""
    done: dict[str, str] = {}
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
        done[source.name] = kind_of(work)
        if work.step.keys is not None and work.step.action == "build":
            done[source.name] = f"{len(work.step.keys)} partitions"
        elif source.annotation.refresh == "incremental":
            check(builder, source, source.name)
    return done


def read(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.sources if s.name == name)
    return sorted(tuple(r) for r in builder.read(source).collect())


ALL = {"total", "added", "windows", "daily", "above", "stored"}
ANEW = {"total": "whole", "above": "whole", "stored": "whole"}


# -------------------------------------------------------------------------------- raw tables


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": RAW + READERS})
    for n in range(4):
        put(made, n)
    return made


@pytest.mark.proves("S31", "P8")
def test_nothing_is_stale_after_commits_that_change_no_rows(root: Path, make: Make) -> None:
    builder = make(root)
    watch = Watch(builder.settings, builder.project, every(builder))
    build(builder)
    assert watch.look(builder.ledger)
    for step in QUIET:
        before = table(root).version()
        step(root)
        assert table(root).version() > before
        assert stale(make(root)) == {}, step.__name__
        assert watch.look(builder.ledger) is None, step.__name__
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert stale(make(root)) == {}
    assert read(make(root), "stored") == []  # of rows of which none is above 1
    assert {*build(make(root)).values()} == {"reused"}
    # What comes then is an increment to what was.
    put(root, 9)
    assert build(make(root)) == {
        **ANEW, "added": "added", "windows": "windows", "daily": "1 partitions",
    }  # fmt: skip
    assert stale(make(root)) == {}


@pytest.mark.proves("S31", "P8")
def test_what_came_before_files_were_written_anew_is_an_increment(root: Path, make: Make) -> None:
    build(make(root))
    add_column(root)
    put(root, 5)
    optimize(root)
    put(root, 6, new=MORE)
    set_properties(root)
    expected = {**ANEW, "added": "added", "windows": "windows", "daily": "2 partitions"}
    assert build(make(root)) == expected
    # Nor are rows lost that came, and whose files are gone.
    put(root, 7)
    optimize(root)
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert stale(make(root)).keys() == ALL
    build(make(root))
    assert read(make(root), "total") == [(7,)]
    # Nor are those kept that went, after they were written anew.
    table(root).delete("day = DATE '2024-01-06'")
    optimize(root)
    put(root, 8)
    build(make(root))
    assert read(make(root), "total") == [(7,)]
    assert read(make(root), "daily")[-3:] == [(date(2024, 1, n), 2) for n in (7, 8, 9)]


@pytest.mark.proves("S31")
def test_a_column_is_new_to_those_who_read_all_columns(
    make_project: Callable[..., Path], make: Make
) -> None:
    root = make_project({"m.sql": """
        CREATE TABLE t USING delta LOCATION 't';
        --@ persist
        CREATE VIEW one AS SELECT x FROM t;
        --@ persist
        CREATE VIEW everything AS SELECT * FROM t;
    """})  # fmt: skip
    put(root, 1)
    build(make(root))
    add_column(root)
    assert stale(make(root)).keys() == {"everything"}
    build(make(root))
    assert [len(row) for row in read(make(root), "everything")] == [3, 3]
    optimize(root)
    set_properties(root)
    assert stale(make(root)) == {}
    put(root, 2, more=MORE)
    assert stale(make(root)).keys() == {"one", "everything"}
    build(make(root))
    assert [len(row) for row in read(make(root), "everything")] == [4] * 4


@pytest.mark.proves("S31", "P18")
def test_rows_that_are_put_back_are_those_of_their_version(root: Path, make: Make) -> None:
    build(make(root))
    there = table(root).version()
    put(root, 5)
    assert stale(make(root)).keys() == ALL
    table(root).restore(there)
    assert stale(make(root)) == {}, "it has the very files"
    table(root).restore(there - 1)
    assert stale(make(root)).keys() == ALL
    build(make(root))
    assert read(make(root), "total") == [(3,)]
    optimize(root)
    table(root).restore(there)
    assert stale(make(root)).keys() == ALL


@pytest.mark.proves("S31", "P18")
def test_a_log_that_is_put_back_and_written_on_is_another(root: Path, make: Make) -> None:
    shutil.copytree(root / "t", root / "backup")
    put(root, 5)
    build(make(root))
    first = table(root).version()
    for step in (lambda: put(root, 6), lambda: optimize(root)):
        shutil.rmtree(root / "t")
        shutil.copytree(root / "backup", root / "t")
        step()
        assert table(root).version() == first
        optimize(root)
        assert stale(make(root)).keys() == ALL
    build(make(root))
    assert read(make(root), "total") == [(4,)]


@pytest.mark.proves("S31")
@pytest.mark.parametrize(
    "how", ["cleaned", "more rows", "recorded", "unknown", "partly", "deleted"]
)
def test_what_is_not_known_to_have_the_same_rows_is_built(root: Path, make: Make, how: str) -> None:
    build(make(root))
    first = table(root).version() + 1
    if how == "deleted":
        table(root).delete("day = DATE '2024-01-02'")
    optimize(root)
    if how == "cleaned":
        table(root).create_checkpoint()
        for n in range(first + 1):
            log(root, n).unlink()
    elif how == "more rows":  # a writer says that they are none
        put(root, 5)
        text = log(root, table(root).version())
        text.write_text(text.read_text().replace('"dataChange":true', '"dataChange":false'))
    elif how == "recorded":
        commit(root, {"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}})
    elif how == "unknown":
        commit(root, {"sorts": {}})
    elif how == "partly":
        put(root, 5)
        optimize(root)
    assert stale(make(root)).keys() == ALL
    build(make(root))
    assert stale(make(root)) == {}


# --------------------------------------------------------------------------- external tables


SCHEMA = pa.schema(
    [("id", pa.int64()), ("category", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
)
EXTERNAL = """
create materialized view n as select category, count(*) as n from external_table
where category = 'a' group by category;
--@ persist refresh=incremental watermark=ts
create view young as select id, ts from external_table where category <> 'c';
"""


def some(*told: tuple[int, str]) -> pa.Table:
    named = [{"id": i, "category": c, "ts": NOW - timedelta(days=9 - i)} for i, c in told]
    return pa.Table.from_pylist(named, SCHEMA)


@pytest.mark.proves("S31", "F16")
def test_copies_are_up_to_date_after_commits_that_change_no_rows(
    make_project: Callable[..., Path], make: Make
) -> None:
    root = make_project({"m.sql": TABLE.replace("s3://...", "t") + EXTERNAL})
    for n in range(3):
        write_deltalake(root / "t", some((n, "a"), (n + 3, "b")), mode="append")
    builder = make(root)
    watch = Watch(builder.settings, builder.project, every(builder))
    assert build(builder) == {"n": "whole", "young": "whole"}
    external = builder.project.by_key["m", "external_table"]
    assert watch.look(builder.ledger)
    held = builder.ingestion.find(external)
    for step in (optimize, add_column, set_properties, record_changes, order):
        step(root)
        builder = make(root)
        assert stale(builder) == {}, step.__name__
        assert builder.ingestion.pending(external).is_nothing
        assert watch.look(builder.ledger) is None, step.__name__
        assert builder.is_same(external, held.version, builder.look(external).newest)
    assert build(make(root)) == {"n": "reused", "young": "reused"}
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    write_deltalake(root / "t", some((7, "b")), mode="append", schema_mode="merge")
    builder = make(root)
    assert not builder.ingestion.pending(external).is_nothing
    assert build(builder) == {"n": "reused", "young": "added"}
    assert [row[0] for row in read(make(root), "young")] == [0, 1, 2, 3, 4, 5, 7]
    # What went is gone, whatever was written anew after.
    table(root).delete("id = 1")
    optimize(root)
    assert stale(make(root)).keys() >= {"n"}
    build(make(root))
    assert read(make(root), "n") == [("a", 2)]
    assert stale(make(root)) == {}


@pytest.mark.proves("S31", "F18")
def test_copies_of_iceberg_tables_are_up_to_date_after_compaction_and_changes_of_metadata(
    make_project: Callable[..., Path], make: Make
) -> None:
    from pyiceberg.types import StringType

    declared = TABLE.replace("s3://...", "lake/n/t").replace("delta_table_input", "iceberg_input")
    root = make_project({"m.sql": declared + EXTERNAL})
    lake = Written(root / "lake", SCHEMA)
    for n in range(3):
        lake.put(some((n, "a"), (n + 3, "b")))

    def column() -> None:
        with lake.table.update_schema() as schema:
            schema.add_column("more", StringType())
        lake.hint()

    def property_() -> None:
        with lake.table.transaction() as changing:
            changing.set_properties({"owner": "me"})
        lake.hint()

    builder = make(root)
    assert build(builder) == {"n": "whole", "young": "whole"}
    external = builder.project.by_key["m", "external_table"]
    held = builder.ingestion.find(external)
    for step in (lake.compact, column, property_, lake.compact):
        step()
        builder = make(root)
        assert stale(builder) == {}
        assert builder.ingestion.pending(external).is_nothing
        assert builder.is_same(external, held.version, builder.look(external).newest)
    assert build(make(root)) == {"n": "reused", "young": "reused"}
    lake.put(some((7, "b")).append_column("more", pa.array(["x"])))
    assert build(make(root)) == {"n": "reused", "young": "added"}
    lake.delete([1])
    lake.compact()
    assert stale(make(root)).keys() >= {"n"}
    build(make(root))
    assert read(make(root), "n") == [("a", 2)]
    assert stale(make(root)) == {}
