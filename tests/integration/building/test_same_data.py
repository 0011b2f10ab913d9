"""Commits that change no rows cause no rebuild, and later changes are still incremental."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from foreign import delta_connector
from growing import check, kind_of
from icebergs import Written
from proposed import TABLE
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.core.model.sources import RawTable
from persist_assets.operations.watch import Watch
from persist_assets.storage.changes import raw_change, version_of_same_rows
from persist_assets.storage.raw import Pin, pin_raw

if TYPE_CHECKING:
    from pathlib import Path

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
    """Add the existing files a second time with other statistics, as ANALYZE does."""
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
    """Write a commit as another writer does."""
    told = ({"commitInfo": {"operation": "WRITE"}}, *actions)
    log(root, table(root).version() + 1).write_text("\n".join(json.dumps(a) for a in told))


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(enter: Make) -> Make:
    """Return a function that makes a builder for a new run, with a fixed clock."""
    return lambda root, **how: enter(root, clock=lambda: NOW, **how)


def every(builder: Builder) -> list[Any]:
    return [s.source_id for s in builder.project.persisted]


def stale(builder: Builder) -> dict[str, list[str]]:
    """Return the sources that a plan would build, with the reasons."""
    return {
        builder.project.by_id[step.source_id].name: [r.message for r in step.reasons]
        for step in builder.plan(every(builder)).steps
        if step.action == "build"
    }


def build(builder: Builder) -> dict[str, str]:
    """Build all sources and return the methods; check incremental tables by full computations."""
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


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("S31", "P8")
def test_tables_are_up_to_date_after_commits_that_change_no_rows(root: Path, make: Make) -> None:
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
    assert read(make(root), "stored") == []  # no value is above 1
    assert {*build(make(root)).values()} == {"reused"}
    # Rows that are added afterwards are an increment.
    put(root, 9)
    assert build(make(root)) == {
        **ANEW, "added": "added", "windows": "windows", "daily": "1 partitions",
    }  # fmt: skip
    assert stale(make(root)) == {}


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("S31", "P8")
def test_rows_added_before_a_compaction_are_built_incrementally(root: Path, make: Make) -> None:
    build(make(root))
    add_column(root)
    put(root, 5)
    optimize(root)
    put(root, 6, new=MORE)
    set_properties(root)
    expected = {**ANEW, "added": "added", "windows": "windows", "daily": "2 partitions"}
    assert build(make(root)) == expected
    # Added rows are not lost if their files are gone.
    put(root, 7)
    optimize(root)
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert stale(make(root)).keys() == ALL
    build(make(root))
    assert read(make(root), "total") == [(7,)]
    # Deleted rows do not remain after a compaction.
    table(root).delete("day = DATE '2024-01-06'")
    optimize(root)
    put(root, 8)
    build(make(root))
    assert read(make(root), "total") == [(7,)]
    assert read(make(root), "daily")[-3:] == [(date(2024, 1, n), 2) for n in (7, 8, 9)]


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("S31")
@pytest.mark.proves("T32")
def test_a_join_is_maintained_although_added_files_were_compacted(
    make_project: Callable[..., Path], make: Make
) -> None:
    root = make_project({"m.sql": """
        CREATE TABLE t USING delta LOCATION 't';
        CREATE TABLE d USING delta LOCATION 'd';
        --@ persist refresh=strict
        CREATE VIEW joined AS SELECT t.day, t.x, d.y FROM t JOIN d ON d.x = t.x;
    """})  # fmt: skip

    def describe(x: int) -> None:
        columns = {"x": pa.array([x], pa.int32()), "y": pa.array([x * 10], pa.int32())}
        write_deltalake(root / "d", pa.table(columns), mode="append")

    put(root, 1)
    describe(0)
    build(make(root))
    put(root, 2)
    optimize(root)
    describe(1)
    build(make(root))
    first, second = date(2024, 1, 2), date(2024, 1, 3)
    expected = [(day, x, 10 * x) for day in (first, second) for x in (0, 1)]
    assert sorted(read(make(root), "joined")) == expected


@pytest.mark.proves("S31")
def test_a_new_column_makes_only_readers_of_all_columns_stale(
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


@pytest.mark.proves("S31")
def test_stored_views_read_the_columns_that_existed_when_they_were_built(
    make_project: Callable[..., Path], make: Make
) -> None:
    files = {"m.sql": """
        CREATE TABLE t USING delta LOCATION 't';
        CREATE TABLE u (x INT, c STRING) USING delta LOCATION 'u';
        --@ persist materialized=view
        CREATE VIEW everything AS SELECT * FROM t;
        --@ persist materialized=view
        CREATE VIEW one AS SELECT x FROM everything;
        --@ persist materialized=view
        CREATE VIEW joined AS SELECT count(*) AS n FROM t NATURAL JOIN u;
    """}  # fmt: skip
    root = make_project(files)
    put(root, 1)
    write_deltalake(root / "u", rows(1).drop_columns("day").append_column("c", MORE))
    build(make(root))
    reworded = files["m.sql"].replace("t NATURAL JOIN u", "t JOIN u USING (x)")
    (root / "sources" / "m.sql").write_text(reworded)
    assert stale(make(root)) == {}
    table(root).alter.add_columns([Field("c", PrimitiveType("string"))])
    build(make(root))
    assert read(make(root), "one") == [(0,), (1,)]
    assert read(make(root), "joined") == [(2,)]
    assert [len(row) for row in read(make(root), "everything")] == [3, 3]


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("S31", "P18")
def test_a_restored_table_is_up_to_date_only_at_the_built_version(root: Path, make: Make) -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("S31", "P18")
def test_a_log_restored_from_a_backup_and_continued_makes_tables_stale(
    root: Path, make: Make
) -> None:
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


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("S31")
@pytest.mark.parametrize(
    "how", ["cleaned", "more rows", "recorded", "unknown", "partly", "deleted"]
)
def test_tables_are_stale_unless_commits_are_known_to_change_no_rows(
    root: Path, make: Make, how: str
) -> None:
    build(make(root))
    first = table(root).version() + 1
    if how == "deleted":
        table(root).delete("day = DATE '2024-01-02'")
    optimize(root)
    if how == "cleaned":
        table(root).create_checkpoint()
        for n in range(first + 1):
            log(root, n).unlink()
    elif how == "more rows":  # the commit claims that it changes no data
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


def some(*pairs: tuple[int, str]) -> pa.Table:
    named = [{"id": i, "category": c, "ts": NOW - timedelta(days=9 - i)} for i, c in pairs]
    return pa.Table.from_pylist(named, SCHEMA)


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
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
    held = builder.observer.ingestion.find(external)
    for step in (optimize, add_column, set_properties, record_changes, order):
        step(root)
        builder = make(root)
        assert stale(builder) == {}, step.__name__
        assert builder.observer.ingestion.pending(external).is_nothing
        assert watch.look(builder.ledger) is None, step.__name__
        assert builder.observer.pins.is_same(
            external, held.version, builder.observer.pins.look(external).newest
        )
    assert build(make(root)) == {"n": "reused", "young": "reused"}
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    write_deltalake(root / "t", some((7, "b")), mode="append", schema_mode="merge")
    builder = make(root)
    assert not builder.observer.ingestion.pending(external).is_nothing
    assert build(builder) == {"n": "reused", "young": "added"}
    assert [row[0] for row in read(make(root), "young")] == [0, 1, 2, 3, 4, 5, 7]
    # Deleted rows are removed, even if files are compacted afterwards.
    table(root).delete("id = 1")
    optimize(root)
    assert stale(make(root)).keys() >= {"n"}
    build(make(root))
    assert read(make(root), "n") == [("a", 2)]
    assert stale(make(root)) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("S31", "F16")
def test_copies_can_be_extended_after_their_version_was_compacted_and_vacuumed(
    make_project: Callable[..., Path], make: Make
) -> None:
    less = EXTERNAL.partition("--@")[0]
    declared = TABLE.replace("s3://...", "t")
    root = make_project({"m.sql": declared + less})
    for n in range(3):
        write_deltalake(root / "t", some((n, "a"), (n + 3, "b")), mode="append")
    assert build(make(root)) == {"n": "whole"}
    optimize(root)
    assert stale(make(root)) == {}
    table(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    (root / "sources" / "m.sql").write_text(declared + EXTERNAL)
    builder = make(root)
    external, ingestion = builder.project.by_key["m", "external_table"], builder.observer.ingestion
    ahead = ingestion.ahead(external, ingestion.find(external), ingestion.pending(external))
    assert (ahead.read.files, ahead.full_read_reason) == (1, None)
    assert build(builder) == {"n": "reused", "young": "whole"}
    assert [row[0] for row in read(make(root), "young")] == [*range(6)]


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
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
    held = builder.observer.ingestion.find(external)
    for step in (lake.compact, column, property_, lake.compact):
        step()
        builder = make(root)
        assert stale(builder) == {}
        assert builder.observer.ingestion.pending(external).is_nothing
        assert builder.observer.pins.is_same(
            external, held.version, builder.observer.pins.look(external).newest
        )
    assert build(make(root)) == {"n": "reused", "young": "reused"}
    lake.put(some((7, "b")).append_column("more", pa.array(["x"])))
    assert build(make(root)) == {"n": "reused", "young": "added"}
    lake.delete([1])
    lake.compact()
    assert stale(make(root)).keys() >= {"n"}
    build(make(root))
    assert read(make(root), "n") == [("a", 2)]
    assert stale(make(root)) == {}


# ---------------------------------------------------------------------------------- Delta logs

MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}


def raw_version(where: Path) -> tuple[Pin, str]:
    pin = pin_raw(RawTable("delta", str(where), ()), str(where))
    assert pin.version is not None
    return pin, pin.version


def is_same_raw(where: Path, version: str) -> bool:
    return version_of_same_rows(str(where), raw_version(where)[0], [version]) is not None


def since_then(where: Path, version: str) -> tuple[int, int]:
    """Return how many files were added and removed since a version."""
    change = raw_change("", str(where), version, raw_version(where)[0])
    assert change is not None
    return len(change.added), len(change.lost)


def is_same_external(where: Path, since: str) -> bool:
    source = delta_connector(None, where)
    return source.is_same(since, source.pin())


def why_again(where: Path, since: str) -> str | None:
    source = delta_connector(None, where)
    return source.changes(since, source.pin(), None, ["x"]).full_read_reason


def metadata(root: Path, configuration: dict[str, str], **physical: str) -> dict[str, Any]:
    """Return metadata of the table with these physical column names."""
    (old,) = (a["metaData"] for a in actions_of(root, 0) if "metaData" in a)
    fields = json.loads(old["schemaString"])["fields"]
    for n, one in enumerate(fields if configuration else ()):
        name = physical.get(one["name"], one["name"])
        one["metadata"] = {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": name}
    schema = json.dumps({"type": "struct", "fields": fields})
    return {"metaData": {**old, "schemaString": schema, "configuration": configuration}}


def actions_of(root: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log(root, version).read_text().splitlines()]


def removal(add: dict[str, Any], **more: Any) -> dict[str, Any]:
    gone = {"path": add["path"], "size": add["size"], "deletionTimestamp": 1, "dataChange": False}
    return {"remove": {**gone, **more}}


def rewrite(root: Path, written: pa.Table, **more: Any) -> list[dict[str, Any]]:
    """Write a file, and return the actions that replace all existing files by it."""
    last = table(root).version()
    there = [json.loads(a) for a in added_by(root, *range(last + 1))]
    (root / "t" / f"anew{last}.parquet").parent.mkdir(exist_ok=True)
    pq.write_table(written, root / "t" / f"anew{last}.parquet")
    stats = more.pop("stats", json.dumps({"numRecords": written.num_rows}))
    size = (root / "t" / f"anew{last}.parquet").stat().st_size
    new = {"path": f"anew{last}.parquet", "partitionValues": {}, "size": size, "stats": stats}
    new |= {"modificationTime": 1, "dataChange": False, **more}
    return [{"add": new}, *(removal(add) for add in there)]


@pytest.mark.proves("S31", "P18")
@pytest.mark.parametrize("how", ["dropped and added", "swapped"])
def test_columns_mapped_between_two_versions_are_treated_as_changed(
    tmp_path: Path, how: str
) -> None:
    two = pa.table({"id": [1, 2], "x": [3, 4], "y": [5, 6]})
    write_deltalake(tmp_path / "t", two)
    version = raw_version(tmp_path / "t")[1]
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    commit(tmp_path, protocol, metadata(tmp_path, MAPPED))
    if how == "swapped":
        commit(tmp_path, metadata(tmp_path, MAPPED, x="y", y="x"))
        now = pa.table({"id": [1, 2], "x": [5, 6], "y": [3, 4]})
    else:
        commit(tmp_path, metadata(tmp_path, MAPPED, x="col-1"))
        now = pa.table({"id": [1, 2], "x": pa.nulls(2, pa.int64()), "y": [5, 6]})
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    commit(tmp_path, protocol, metadata(tmp_path, {}), *rewrite(tmp_path, now))
    assert not is_same_raw(tmp_path / "t", version)
    write_deltalake(tmp_path / "t", two, mode="append")
    assert since_then(tmp_path / "t", version) == (2, 1)


@pytest.mark.proves("S31", "P18")
def test_a_changed_row_count_contradicts_commits_that_claim_no_change(
    tmp_path: Path,
) -> None:
    two = pa.table({"x": [3, 4]})
    write_deltalake(tmp_path / "t", two)
    version, since = raw_version(tmp_path / "t")[1], delta_connector(None, tmp_path / "t").pin()
    shutil.copytree(tmp_path / "t", tmp_path / "kept")

    def put_back() -> None:
        shutil.rmtree(tmp_path / "t")
        shutil.copytree(tmp_path / "kept", tmp_path / "t")

    # The same number of rows, as after OPTIMIZE.
    commit(tmp_path, *rewrite(tmp_path, two))
    assert is_same_raw(tmp_path / "t", version)
    assert is_same_external(tmp_path / "t", since)
    write_deltalake(tmp_path / "t", two, mode="append")
    assert since_then(tmp_path / "t", version) == (1, 0)
    assert why_again(tmp_path / "t", since) is None

    # The only file is removed.
    put_back()
    (add,) = (json.loads(a) for a in added_by(tmp_path, 0))
    commit(tmp_path, removal(add))
    assert not is_same_external(tmp_path / "t", since)
    assert not is_same_raw(tmp_path / "t", version)
    assert "version 1 states that no row changed" in str(why_again(tmp_path / "t", since))

    # The new file has more rows.
    put_back()
    commit(tmp_path, *rewrite(tmp_path, pa.table({"x": [3, 4, 5]})))
    assert not is_same_external(tmp_path / "t", since)
    assert not is_same_raw(tmp_path / "t", version)
    write_deltalake(tmp_path / "t", two, mode="append")
    assert "version 1 states that no row changed" in str(why_again(tmp_path / "t", since))
    assert since_then(tmp_path / "t", version) == (2, 1)


@pytest.mark.proves("S31", "P18")
def test_rewritten_files_without_row_counts_are_treated_as_changed(tmp_path: Path) -> None:
    two = pa.table({"x": [3, 4]})
    write_deltalake(tmp_path / "t", two)
    text = log(tmp_path, 0).read_text()
    log(tmp_path, 0).write_text(text.replace('\\"numRecords\\":2,', ""))
    version, since = raw_version(tmp_path / "t")[1], delta_connector(None, tmp_path / "t").pin()
    # Unchanged files have the same rows, even without row counts.
    set_properties(tmp_path)
    assert is_same_raw(tmp_path / "t", version)
    assert is_same_external(tmp_path / "t", since)
    commit(tmp_path, *rewrite(tmp_path, pa.table({"x": [7]}), stats=None))
    assert not is_same_external(tmp_path / "t", since)
    assert not is_same_raw(tmp_path / "t", version)
    write_deltalake(tmp_path / "t", two, mode="append")
    assert since_then(tmp_path / "t", version) == (2, 1)


@pytest.mark.proves("S31", "P18")
def test_row_counts_exclude_rows_in_deletion_vectors(tmp_path: Path) -> None:
    three = pa.table({"x": [3, 4, 5]})
    write_deltalake(tmp_path / "t", three)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    (add,) = (json.loads(a) for a in added_by(tmp_path, 0))
    stored = {"storageType": "u", "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA", "offset": 1}
    vector = {"deletionVector": {**stored, "sizeInBytes": 36, "cardinality": 1}}
    commit(tmp_path, protocol, removal(add, dataChange=True), {"add": {**add, **vector}})
    since = delta_connector(None, tmp_path / "t").pin()
    for n_rows in (2, 3):
        shutil.copytree(tmp_path / "t", tmp_path / str(n_rows) / "t")
        anew, *_ = rewrite(tmp_path / str(n_rows), three.slice(0, n_rows))
        commit(tmp_path / str(n_rows), anew, removal(add, **vector))
        assert is_same_external(tmp_path / str(n_rows) / "t", since) == (n_rows == 2)


@pytest.mark.proves("S31", "P18")
def test_a_restored_and_cleaned_log_is_not_mistaken_for_the_earlier_one(
    tmp_path: Path,
) -> None:
    for n in range(2):
        write_deltalake(tmp_path / "t", pa.table({"x": [n]}), mode="append")
    shutil.copytree(tmp_path / "t", tmp_path / "kept")
    write_deltalake(tmp_path / "t", pa.table({"x": [2]}), mode="append")
    since = delta_connector(None, tmp_path / "t").pin()
    shutil.rmtree(tmp_path / "t")
    shutil.move(tmp_path / "kept", tmp_path / "t")
    write_deltalake(tmp_path / "t", pa.table({"x": [7]}), mode="append")
    table(tmp_path).create_checkpoint()
    write_deltalake(tmp_path / "t", pa.table({"x": [8]}), mode="append")
    for n in range(3):
        log(tmp_path, n).unlink()
    assert "its log no longer has version 2" in str(why_again(tmp_path / "t", since))
    set_properties(tmp_path)
    assert not is_same_external(tmp_path / "t", since)
