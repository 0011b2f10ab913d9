"""Directories of Parquet and CSV files as external tables: copied, followed, compared."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from buckets import KEY, SECRET, Server, parquet
from ingesting import DirectoryLake, Life
from test_commits_meanwhile import meanwhile
from test_ingestion import build, sync_events
from test_object_store import server

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import ConflictError, GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import External
from persist_assets.core.settings.load import load_settings
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.directory import directory_connector

__all__ = ["server"]  # a fixture, which tests use by its name

Make = Callable[..., Any]


def declared(columns: str, **config: Any) -> str:
    transport = {"name": "directory_input", "config": {"uri": "lake", **config}}
    connectors = json.dumps([{"transport": transport}]).replace("'", "''")
    return f"create external table t ({columns}) with ('connectors' = '{connectors}');\n"


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.persisted if s.name == name)
    return sorted(tuple(row) for row in builder.read(source).collect())


def put(root: Path, place: str, *ids: int, **more: Any) -> Path:
    """Write a file of ids, with 100 times the id in `n`."""
    path = root / "lake" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "n": [i * 100 for i in ids],
        "s": [f"s{i}" for i in ids],
    }
    pq.write_table(pa.table({**columns, **more}), path)
    return path


PARQUET = declared("id bigint, n bigint, s string, day date, `Kind` string", format="parquet")
VIEWS = """
create materialized view a as select id, `Kind` as kind from t where day < date '2026-01-03';
create materialized view b as select id, n, day from t where n > 450;
"""


@pytest.mark.slow
@pytest.mark.proves("V30")
def test_a_directory_of_parquet_files_is_copied_and_followed(
    enter: Make, make_project: Make, spark: Any
) -> None:
    root = make_project({"m.sql": PARQUET + VIEWS})
    put(root, "day=2026-01-01/Kind=x/a.parquet", 1, 2)
    put(root, "day=2026-01-02/Kind=a%2F_b/a.parquet", 3, 5)
    put(root, "day=2026-01-03/Kind=__HIVE_DEFAULT_PARTITION__/a.parquet", 4)
    (root / "lake" / "_SUCCESS").touch()
    (root / "lake" / "day=2026-01-01" / ".b.tmp").write_text("half")
    build(builder := enter(root))
    assert rows(builder, "a") == [(1, "x"), (2, "x"), (3, "a/_b"), (5, "a/_b")]
    assert rows(builder, "b") == [(5, 500, date(2026, 1, 2))]
    (begun,) = sync_events(builder)
    assert begun["read"] == 4  # no source needs a row of the third file
    # Only new files are read, and only the source that selects their rows is built.
    put(root, "day=2026-01-09/Kind=x/a.parquet", 7, 8)
    put(root, "day=2026-01-10/Kind=x/a.parquet", 1)
    done = build(builder := enter(root))
    assert (done["a"], done["b"]) == ("reuse", "build")
    assert [row[0] for row in rows(builder, "b")] == [5, 7, 8]
    followed = sync_events(builder)[-1]
    assert (followed["read"], followed["inserted"], followed["deleted"]) == (2, 2, 0)
    # An error names a broken file, and published tables stay.
    broken = root / "lake" / "day=2026-01-01" / "Kind=x" / "b.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(StorageError, match=r"Kind=x/b.parquet is not a Parquet file"):
        build(enter(root))
    broken.unlink()
    # A file that changes after it was listed fails the build.
    put(root, "day=2026-01-02/Kind=a%2F_b/a.parquet", 3, 6)

    def late() -> None:
        put(root, "day=2026-01-01/Kind=x/a.parquet", 1, 9)

    with pytest.raises(ConflictError, match="changed while they were read"):
        build(enter(root, engine=meanwhile(spark, late)))
    assert [row[0] for row in rows(enter(root), "b")] == [5, 7, 8]
    # After files were replaced, moved or removed, rows are compared, and equal ones stay.
    shutil.move(root / "lake" / "day=2026-01-09", root / "lake" / "day=2026-01-08")
    (root / "lake" / "day=2026-01-10" / "Kind=x" / "a.parquet").unlink()
    build(builder := enter(root))
    assert rows(builder, "a") == [(1, "x"), (3, "a/_b"), (6, "a/_b"), (9, "x")]
    assert [(r[0], r[2].day) for r in rows(builder, "b")] == [(6, 2), (7, 8), (8, 8), (9, 1)]
    compared = sync_events(builder)[-1]
    assert (compared["inserted"], compared["deleted"]) == (4, 4)
    # A query that needs more rows than the copy has reads the files, if they did not change since.
    table = builder.project.by_key["m", "t"]
    assert sorted(r.id for r in builder.read(table).collect()) == [1, 3, 4, 6, 7, 8, 9]
    with pytest.raises(ConflictError, match="changed while they were read"):
        enter(root, engine=meanwhile(spark, late)).read(table).collect()
    with pytest.raises(GoneError, match="were replaced or removed since"):
        enter(root).read(table).collect()


CSV = "id int, price decimal(6,2), at timestamp, name char(3), day date"


@pytest.mark.slow
@pytest.mark.proves("V31")
def test_csv_values_are_parsed_as_declared_and_malformed_ones_are_errors(
    enter: Make, make_project: Make, tmp_path: Path, spark: Any
) -> None:
    options = {"header": True, "sep": ";", "timestampFormat": "dd.MM.yyyy HH:mm"}
    text = declared(CSV, format="csv", options=options)
    view = "create materialized view v as select * from t where day >= date '2026-01-02';\n"
    root = make_project({"m.sql": text + view})
    lake = root / "lake"
    for day in (1, 2, 3):
        (lake / f"day=2026-01-0{day}").mkdir(parents=True)
    (lake / "day=2026-01-01" / "a.csv").write_text("id;price;at;name\nnone;1;;never read\n")
    (lake / "day=2026-01-02" / "a.csv").write_text(
        'id;price;at;name\n1;1.50;02.01.2026 10:00;"a;"\n2;;;\n'
    )
    # The header of a file names its columns, in any order.
    (lake / "day=2026-01-03" / "b.csv").write_text("name;x;at;id;price\nb;9;;3;-0.01\n")
    (lake / "day=2026-01-03" / "empty.csv").touch()
    build(builder := enter(root))
    moment = datetime(2026, 1, 2, 10)
    assert [tuple(row) for row in sorted(builder.read(builder.project.persisted[0]).collect())] == [
        (1, Decimal("1.50"), moment, "a; ", date(2026, 1, 2)),
        (2, None, None, None, date(2026, 1, 2)),
        (3, Decimal("-0.01"), None, "b  ", date(2026, 1, 3)),
    ]
    # A value that does not fit its type is an error, as in a raw table, and not NULL.
    bad = lake / "day=2026-01-03" / "c.csv"
    for line in ("4;1000000.5;;x", "x;1;;x", "4;1;2026-01-01;x", "4;1;;x;more", "4;1"):
        bad.write_text(f"id;price;at;name\n{line}\n")
        with pytest.raises(StorageError, match=r"c\.csv"):
            builder = enter(root)
            builder.observer.ingestion.sync(builder.project.sources[0])
    # Unless a column for such records is declared.
    keeps = text.replace("day date", "day date, _corrupt_record string")
    (root / "sources" / "m.sql").write_text(keeps + view.replace("*", "id, _corrupt_record"))
    build(builder := enter(root))
    assert rows(builder, "v")[-1] == (4, "4;1")


def csv_table(name: str, columns: str, place: str) -> str:
    text = declared(columns, uri=f"lake/{place}", format="csv", options={"header": False})
    return text.replace(" table t ", f" table {name} ")


@pytest.mark.slow
@pytest.mark.proves("V31")
def test_each_declaration_of_csv_files_has_a_copy_with_its_own_columns(
    enter: Make, make_project: Make
) -> None:
    begun = csv_table("r", "id int, a int, b int", "r") + csv_table("s", "id int, a int", "s")
    views = """
create materialized view v as select id, a from r;
create materialized view w as select id, a from s;
create materialized view x as select id, n from t;
create materialized view y as select id, n, _corrupt_record as bad from u;
"""
    both = csv_table("t", "id int, n int", "t")
    both += csv_table("u", "id int, n int, _corrupt_record string", "t")
    root = make_project({"m.sql": begun + both + views})
    for place, line in {"r": "1,10,20", "s": "1,10", "t": "1,10"}.items():
        (root / "lake" / place).mkdir(parents=True)
        (root / "lake" / place / "a.csv").write_text(f"{line}\n")
    build(builder := enter(root))
    assert [rows(builder, name) for name in "vwxy"] == [*[[(1, 10)]] * 3, [(1, 10, None)]]
    # If columns are reordered or renamed, the same files have other rows.
    later = csv_table("r", "id int, b int, a int", "r") + csv_table("s", "id int, x int", "s")
    (root / "sources" / "m.sql").write_text(
        later + both + views.replace("id, a from s", "id, x from s")
    )
    # Malformed records are an error, except in the declaration that stores them.
    (root / "lake" / "t" / "b.csv").write_text("2,x\n")
    builder = enter(root)
    sources = {s.name: s for s in builder.project.persisted}
    for name in "vwy":
        with builder.work(sources[name]) as work:
            builder.publish(work)
    assert rows(builder, "v") == [(1, 20)]
    assert rows(builder, "w") == [(1, 10)]
    assert rows(builder, "y") == [(1, 10, None), (2, None, "2,x")]
    with pytest.raises(StorageError, match=r"b\.csv"), builder.work(sources["x"]):
        pass


@pytest.mark.slow
@pytest.mark.proves("V31")
def test_all_declared_columns_of_a_csv_record_decide_whether_it_is_malformed(
    tmp_path: Path, spark: Any
) -> None:
    (tmp_path / "a.csv").write_text("1,5\n2,x\n3\n9,9\n")

    def read(
        columns: str, needed: list[str], condition: str | None = None, **options: str
    ) -> list[tuple[Any, ...]]:
        pairs = [text.split(" ") for text in columns.split(", ")]
        reading = (("format", "csv"), ("header", "false"), *options.items())
        table = directory_connector(
            External("directory_input", reading=reading),
            str(tmp_path),
            [Column(name, kind) for name, kind in pairs],
            {},
            lambda: spark,
            ZoneInfo("UTC"),
        )
        return sorted(map(tuple, table.snapshot(condition, needed, table.pin()).collect()))

    stores = "id int, n int, _corrupt_record string"
    bad = [(1, None), (2, "2,x"), (3, "3"), (9, None)]
    assert read(stores, ["id", "_corrupt_record"]) == bad
    assert read(stores, ["id"], "_corrupt_record IS NOT NULL") == [(2,), (3,)]
    drops = {"mode": "DROPMALFORMED"}
    assert read("id int, n int", ["id"], **drops) == [(1,), (9,)]
    assert read("id int, n int", ["n"], "n > 5", **drops) == [(9,)]
    # By default they are errors, also if they do not meet the condition.
    for condition in (None, "id > 5", "n = 9"):
        with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
            read("id int, n int", ["id"], condition)
    (tmp_path / "a.csv").write_text("1,5\n9,9\n")
    assert read("id int, n int", ["id"], "n > 5") == [(9,)]


@pytest.mark.slow
@pytest.mark.proves("V30")
def test_a_directory_in_a_bucket_is_listed_pruned_and_followed(
    make_project: Make, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.new_bucket()
    for day in (1, 2):
        parquet(f"{bucket}/events/day=2026-01-0{day}/a b%25.parquet", id=[day, 7])
    parquet(f"{bucket}/events/_temporary/a.parquet", id=[1])
    keys = {"aws_access_key_id": "${env:PERSIST_SECRET_ID}"}
    keys |= {"aws_secret_access_key": "${env:PERSIST_SECRET_KEY}"}
    place = {"aws_endpoint": server.url, "aws_region": "eu-central-1", "aws_allow_http": True}
    config = {"uri": f"{bucket}/events", "format": "parquet", **place, **keys}
    settings = load_settings(make_project({"m.sql": declared("id bigint, day date", **config)}))
    (source,) = require(load_project(settings)).sources
    monkeypatch.setenv("PERSIST_SECRET_ID", KEY)
    monkeypatch.setenv("PERSIST_SECRET_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODYNOBODYNOBO")
    assert source.raw is not None

    def reached() -> Any:
        assert source.raw is not None
        uri = f"{bucket}/events"
        return connect(source.raw, uri, source.columns, lambda: None, settings.timezone)

    first = (table := reached()).pin()
    cost = table.prune("day = DATE '2026-01-02' AND id < 5", first)
    assert (cost.files, cost.of, cost.rows) == (1, 2, 2)
    assert table.prune("id > 7", first).files == 0
    server.requests()
    assert reached().pin() == first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    parquet(f"{bucket}/events/day=2026-01-03/c.parquet", id=[3])
    second = (table := reached()).pin()
    assert table.changes(first, second, None, ["id"]).read.rows == 1
    parquet(f"{bucket}/events/day=2026-01-01/a b%25.parquet", id=[8, 8])
    third = (table := reached()).pin()
    assert table.changes(second, third, None, ["id"]).compare_reason is not None


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.proves("V30")
def test_sources_equal_their_queries_after_random_file_changes_and_crashes(
    enter: Make, make_project: Make
) -> None:
    life = Life(make_project({}), enter, random.Random(5), DirectoryLake)
    _, deaths = life.live(4, dying=0.5)
    assert deaths
