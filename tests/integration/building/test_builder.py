"""Builds: write, audit, commit and publish, and failures at each of these steps."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from conftest import ROOT, views_of
from deltalake import DeltaTable, write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import find_former_build_ids
from persist_assets.core.errors import (
    BuildError,
    CheckFailedError,
    ConflictError,
    JavaMissingError,
    SettingsError,
    StorageError,
    StrictError,
)
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.java import installed_java

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.sources import Source

SOURCES = """
CREATE TABLE t USING parquet LOCATION 'raw/t';
--@ persist time_column=a
CREATE VIEW p AS SELECT a, b FROM t WHERE a IS NOT NULL;
CREATE VIEW v AS SELECT A + 1 AS c, b FROM P;
--@ persist
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v GROUP BY b;
"""


def write(root: Path, rows: list[tuple[int | None, str | None]], name: str = "t") -> None:
    path = root / "raw" / name / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"a": pa.array([r[0] for r in rows], pa.int64()), "b": [r[1] for r in rows]})
    temporary = path.with_name(".new")
    pq.write_table(table, temporary)
    temporary.replace(path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make_builder(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[..., Builder]:
    """Return a function that makes a builder for a new run of a project with one SQL file."""

    def make(sources: str = SOURCES, settings: str = "", root: Path | None = None) -> Builder:
        if root is None:
            root = make_project({"m.sql": sources}, settings)
            if not (root / "raw").exists():
                write(root, [(1, "x"), (2, "y"), (3, None), (None, "x")])
        return enter(root)

    return make


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    found = [tuple(r) for r in builder.read(named(builder, name)).collect()]
    return sorted(found, key=repr)


def build_all(builder: Builder) -> dict[str, str]:
    return {s.name: builder.build(s).action for s in builder.project.persisted}


def next_run(builder: Builder, make: Callable[..., Builder]) -> Builder:
    """Return the builder of the next run of the same project."""
    return make(root=builder.settings.root)


# ------------------------------------------------------------------------------- successful builds


@pytest.mark.proves("M2", "M8")
def test_tables_contain_the_rows_of_their_queries(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder()
    inline = rows(builder, "q")
    assert build_all(builder) == {"p": "built", "q": "built"}
    assert rows(builder, "p") == [(1, "x"), (2, "y"), (3, None)]
    assert rows(builder, "q") == inline == [("x", 2), ("y", 3), (None, 4)]
    snapshot = builder.ledger.manifests.fetch("dev")[named(builder, "p").build_id]
    assert (snapshot.rows, snapshot.watermark) == (3, "3")
    assert [(c.name, c.type) for c in snapshot.columns] == [("a", "bigint"), ("b", "string")]


def test_the_second_run_reuses_everything(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder()
    build_all(builder)
    later = next_run(builder, make_builder)
    assert build_all(later) == {"p": "reused", "q": "reused"}
    assert {s.action for s in later.plan([s.source_id for s in later.project.persisted]).steps} == {
        "reuse"
    }


@pytest.mark.proves("M12")
def test_newer_data_creates_a_new_version_of_the_same_table(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    build_all(builder)
    write(builder.settings.root, [(5, "z")])
    later = next_run(builder, make_builder)
    assert build_all(later) == {"p": "built", "q": "built"}
    snapshot = later.ledger.manifests.fetch("dev")[named(later, "q").build_id]
    assert snapshot.version == 1
    assert rows(later, "q") == [("z", 6)]


@pytest.mark.proves("K19")
def test_a_rebuild_that_changes_no_rows_does_not_rebuild_downstream_tables(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    build_all(builder)
    write(builder.settings.root, [(1, "x"), (2, "y"), (3, None), (None, "touched")])
    later = next_run(builder, make_builder)
    assert build_all(later) == {"p": "built", "q": "reused"}
    p, q = (later.ledger.manifests.fetch("dev")[named(later, n).build_id] for n in "pq")
    assert q.as_of == p.as_of
    assert {s.action for s in next_run(builder, make_builder).plan(
        [s.source_id for s in later.project.persisted]
    ).steps} == {"reuse"}  # fmt: skip
    write(builder.settings.root, [(1, "x"), (2, "other")])
    assert build_all(next_run(builder, make_builder)) == {"p": "built", "q": "built"}


def test_a_run_pins_a_delta_table_at_its_first_read(
    make_builder: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES.replace("USING parquet", "USING delta")})
    where = str(root / "raw" / "t")
    write_deltalake(where, pa.table({"a": [1], "b": ["x"]}))
    builder = make_builder(root=root)
    builder.build(named(builder, "p"))
    write_deltalake(where, pa.table({"a": [7], "b": ["y"]}), mode="overwrite")
    builder.build(named(builder, "q"))
    assert rows(builder, "q") == [("x", 2)]
    assert build_all(next_run(builder, make_builder)) == {"p": "built", "q": "built"}
    assert rows(builder, "q") == [("y", 8)]


def test_an_edit_builds_a_new_table_and_undoing_it_reuses_the_old_one(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    build_all(builder)
    path = builder.settings.root / "sources" / "m.sql"
    path.write_text(SOURCES.replace("A + 1", "A + 2"))
    edited = next_run(builder, make_builder)
    assert build_all(edited) == {"p": "reused", "q": "built"}
    path.write_text(SOURCES)
    assert build_all(next_run(builder, make_builder)) == {"p": "reused", "q": "reused"}


@pytest.mark.proves("M7")
def test_equivalent_sources_share_one_table(make_builder: Callable[..., Builder]) -> None:
    twin = "\n--@ persist\nCREATE VIEW twin AS SELECT x.a, x.b FROM t AS x WHERE NOT x.a IS NULL;"
    builder = make_builder(SOURCES + twin)
    assert build_all(builder) == {"p": "built", "q": "built", "twin": "reused"}
    tables = [p for p in Path(builder.settings.warehouse).iterdir() if p.name != ".listings"]
    assert len(tables) == 2


def test_force_rebuilds_an_up_to_date_table(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder()
    build_all(builder)
    assert builder.build(named(builder, "p"), force=True).action == "built"


def test_columns_have_the_case_of_the_declaration_or_alias(
    make_builder: Callable[..., Builder],
) -> None:
    text = "CREATE TABLE t USING parquet LOCATION 'raw/t';\n--@ persist\nCREATE VIEW p AS SELECT A, B AS bB FROM t"
    builder = make_builder(text)
    builder.build(named(builder, "p"))
    assert builder.read(named(builder, "p")).columns == ["a", "bB"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_tables_store_empty_results_and_values_of_every_type(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder(
        """--@ persist
        CREATE VIEW p AS SELECT 1 AS i, 2L AS l, 1.50 AS d, 1e0 AS f, 'x' AS s, true AS b, DATE'2020-02-29' AS da,
          TIMESTAMP'2020-02-29 01:02:03.000004' AS ts, TIMESTAMP_NTZ'2020-02-29 01:02:03' AS tn, X'00FF' AS bi,
          array(1, NULL) AS ar, map('k', 1) AS m, named_struct('aB', 1) AS st, CAST(NULL AS STRING) AS n;
        --@ persist
        CREATE VIEW q AS SELECT * FROM p WHERE i > 1;
        """
    )
    assert build_all(builder) == {"p": "built", "q": "built"}
    (row,) = builder.read(named(builder, "p")).collect()
    assert row.d == Decimal("1.50")
    assert row.ts == dt.datetime(2020, 2, 29, 1, 2, 3, 4)
    assert row.m == {"k": 1}
    assert row.ar == [1, None]
    assert rows(builder, "q") == []
    assert builder.read(named(builder, "q")).columns == builder.read(named(builder, "p")).columns


@pytest.mark.proves("M9")
def test_strict_mode_reads_only_tables_and_lists_missing_ones(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder(settings="strict = true\n")
    query = parse_query("SELECT * FROM q JOIN p ON true")
    bindings = [named(builder, n).source_id for n in ("q", "p")]
    with pytest.raises(StrictError, match="not built in `dev`: m/p, m/q"):
        builder.reader.statement(query, bindings, {})
    assert build_all(builder) == {"p": "built", "q": "built"}
    builder.reader.statement(query, bindings, builder.ledger.manifests.fetch("dev"))


@pytest.mark.proves("M10")
def test_each_environment_has_its_own_manifest(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder()
    build_all(builder)
    (builder.settings.root / "persist.toml").write_text('environment = "prod"\n')
    prod = Builder(
        load_settings(builder.settings.root), builder.project, builder.ledger, builder.engine
    )
    assert prod.ledger.manifests.fetch("prod") == {}
    statement, read = prod.reader.statement(
        parse_query("SELECT * FROM p"),
        [named(prod, "p").source_id],
        prod.ledger.manifests.fetch("prod"),
    )
    assert (statement.inlined, read) == ((named(prod, "p").source_id,), {})


# ------------------------------------------------------------------------------------------- checks


CHECKED = """
CREATE TABLE t USING parquet LOCATION 'raw/t';
--@ persist
--@ check { not_null=[a] unique=[b] accepted_values { b=[x, y] } expr { small="a < 3" } }
CREATE VIEW p AS SELECT a, b FROM t;
"""


@pytest.mark.proves("K11")
def test_rows_that_fail_checks_are_not_published(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder(CHECKED)
    write(builder.settings.root, [(1, "x"), (2, "y"), (2, None)])
    builder = next_run(builder, make_builder)
    builder.build(named(builder, "p"))
    before = rows(builder, "p")
    table = Path(builder.settings.warehouse) / named(builder, "p").table
    files = sorted(table.rglob("*.parquet"))
    write(builder.settings.root, [(None, "x"), (3, "x"), (4, "z"), (5, None)])
    later = next_run(builder, make_builder)
    with pytest.raises(CheckFailedError) as error:
        later.build(named(later, "p"))
    failed = {r.name: (r.passed, r.failed_rows) for r in error.value.results}
    assert failed == {
        "not_null_a": (False, 1),
        "unique_b": (False, 2),
        "accepted_values_b": (False, 1),
        "expr_small": (False, 3),
    }
    assert "not_null_a (1 rows)" in str(error.value)
    assert rows(later, "p") == before
    assert sorted(table.rglob("*.parquet")) == files
    assert DeltaTable(str(table)).version() == 0
    assert later.ledger.builds.fetch_last("dev")["p@sources/m.sql"].state == "failed"


GUARDED = """
CREATE TABLE t USING parquet LOCATION 'raw/t';
--@ persist check { not_null=[a] }
CREATE VIEW p AS SELECT a, b FROM t;
--@ persist
CREATE VIEW same AS SELECT a, b FROM t;
--@ persist
CREATE VIEW q AS SELECT b, count(*) AS n FROM p GROUP BY b;
"""


@pytest.mark.proves("K11")
def test_a_blocking_check_cannot_be_bypassed(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder(GUARDED)
    with pytest.raises(CheckFailedError, match=r"not_null_a \(1 rows\)"):
        builder.build(named(builder, "p"))
    with pytest.raises(BuildError, match="`q` reads `m/p`, which is not built: its checks") as told:
        builder.build(named(builder, "q"))
    assert told.value.hint == "build its inputs too: persist build +m/q"
    # It would share the table of `p`.
    with pytest.raises(CheckFailedError, match=r"`same` failed m/p:not_null_a \(1 rows\)"):
        builder.build(named(builder, "same"))
    assert builder.ledger.manifests.fetch("dev") == {}
    write(builder.settings.root, [(1, "x"), (2, "y")])
    later = next_run(builder, make_builder)
    assert later.build(named(later, "same")).action == "built"
    assert later.build(named(later, "p")).action == "reused"
    assert later.build(named(later, "q")).action == "built"


def test_a_check_that_reads_the_clock_is_rerun_on_reuse(
    make_builder: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = make_builder(
        "CREATE TABLE t USING parquet LOCATION 'raw/t';\n"
        "--@ persist check { expr=\"now() > TIMESTAMP '2026-01-01' OR a > 0\" }\n"
        "CREATE VIEW p AS SELECT a FROM t;\n"
        '--@ persist check { expr="a > 0" }\n'
        "CREATE VIEW q AS SELECT a + 1 AS a FROM t;"
    )
    build_all(builder)
    later, audited = next_run(builder, make_builder), list[str]()
    audit = later.engine.audit
    monkeypatch.setattr(
        later.engine, "audit", lambda f, c, name: audited.append(name) or audit(f, c, name)
    )
    assert build_all(later) == {"p": "reused", "q": "reused"}
    assert audited == [named(later, "p").table]


def test_a_failed_check_with_severity_warn_does_not_block_publication(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder(
        CHECKED.replace("not_null=[a]", "not_null=[a] { severity=warn }").replace("unique=[b]", "")
    )
    write(builder.settings.root, [(1, "x"), (None, "x")])
    builder = next_run(builder, make_builder)
    build = builder.build(named(builder, "p"))
    assert build.state == "succeeded"
    assert next(
        (c.name, c.passed) for c in builder.ledger.builds.fetch_checks(build.build_uid)
    ) == (
        "not_null_a",
        False,
    )


def test_a_new_check_runs_on_the_existing_table(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder(CHECKED.replace("--@ check", "-- no"))
    builder.build(named(builder, "p"))
    (builder.settings.root / "sources" / "m.sql").write_text(CHECKED)
    later = next_run(builder, make_builder)
    with pytest.raises(CheckFailedError) as error:
        later.build(named(later, "p"))
    assert {r.name: r.failed_rows for r in error.value.results} == {
        "not_null_a": 1,
        "unique_b": 2,
        "accepted_values_b": 0,
        "expr_small": 1,
    }


# ------------------------------------------------------------------------------------ watermarks


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "value",
    [
        "DATE '0001-01-01'",
        "DATE '12024-02-29'",
        "TIMESTAMP '1582-10-04 23:59:59.999999Z'",
        "TIMESTAMP '12024-10-27 01:30:00Z'",
        "TIMESTAMP_NTZ '2024-10-27 02:30:00.5'",
        "-9223372036854775808",
        "12345678901234567890.12BD",
    ],
)
def test_watermarks_from_written_files_equal_those_computed_from_rows(
    make_builder: Callable[..., Builder], value: str
) -> None:
    engine = make_builder().engine
    many = ", ".join(f"{n} AS n{n}" for n in range(40))
    some = f"SELECT explode(array({value}, NULL, {value})) AS At"
    none = f"SELECT CAST(NULL AS {typed(engine, value)}) AS At"
    for text in (some, none, f"{none} WHERE false", f"SELECT {many}, * FROM ({some})"):
        frame = engine.session.sql(text).repartition(2)
        written = engine.write(frame, "latest", os.urandom(8).hex(), (), "at", "x")[1]
        looked = engine.measure(frame, (), "at", "x")
        assert (written.watermark, written.timeless) == (looked.watermark, looked.timeless)


def typed(engine: Any, value: str) -> str:
    return engine.session.sql(f"SELECT {value} AS v").schema["v"].dataType.simpleString()


# ------------------------------------------------------------------------------------ content digest


def content(builder: Builder, query: str) -> str:
    builder.engine.session.sql(query).createOrReplaceTempView("digested")
    frame = builder.engine.session.table("digested")
    return builder.engine.write(frame, "digest", os.urandom(8).hex(), (), None, "x")[1].content


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VALUES (1, 2), (3, 4) AS t(a, b)", "VALUES (3, 4), (1, 2) AS t(a, b)", True),
        ("VALUES (1, int(NULL)) AS t(a, b)", "VALUES (int(NULL), 1) AS t(a, b)", False),
        ("VALUES (1), (1) AS t(a)", "VALUES (2), (2) AS t(a)", False),
        ("VALUES (1), (1) AS t(a)", "VALUES (1) AS t(a)", False),
        ("VALUES (array(1, NULL)) AS t(a)", "VALUES (array(NULL, 1)) AS t(a)", False),
        (
            "VALUES (array(array(1), array(2))) AS t(a)",
            "VALUES (array(array(1, 2), array())) AS t(a)",
            False,
        ),
        ("VALUES (map('a', 1, 'b', 2)) AS t(a)", "VALUES (map('b', 2, 'a', 1)) AS t(a)", True),
        ("VALUES (map('a', 1, 'b', 2)) AS t(a)", "VALUES (map('a', 2, 'b', 1)) AS t(a)", False),
        (
            "VALUES (CAST(NULL AS MAP<STRING, INT>)) AS t(a)",
            "VALUES (CAST(map() AS MAP<STRING, INT>)) AS t(a)",
            False,
        ),
        (
            "VALUES (named_struct('x', 1, 'y', int(NULL))) AS t(a)",
            "VALUES (named_struct('x', int(NULL), 'y', 1)) AS t(a)",
            False,
        ),
        ("VALUES (0.0d) AS t(a)", "VALUES (-0.0d) AS t(a)", False),
        ("VALUES ('ab', 'c') AS t(a, b)", "VALUES ('a', 'bc') AS t(a, b)", False),
    ],
)
def test_the_content_digest_distinguishes_different_rows(
    make_builder: Callable[..., Builder], one: str, other: str, same: bool
) -> None:
    builder = make_builder()
    assert (
        content(builder, f"SELECT * FROM {one}") == content(builder, f"SELECT * FROM {other}")
    ) is same


ZEROS = """
CREATE TABLE t (x DOUBLE, s STRUCT<y: DOUBLE>) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT * FROM t;
--@ persist
CREATE VIEW q AS SELECT 'x' AS k, count(*) AS n FROM p WHERE x = 0.0D
UNION ALL SELECT 's', count(*) FROM p WHERE s.y IN (0.0D, 7.0D)
UNION ALL SELECT 'raw', count(*) FROM t WHERE x <= 0.0D AND x >= 0.0D
UNION ALL SELECT 'nan', count(*) FROM t WHERE x > 1e300D;
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_conditions_find_negative_zeros_and_nans_in_files(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": ZEROS})
    (root / "raw" / "t").mkdir(parents=True)
    for name, values in (("a", [-0.0] * 3), ("b", [0.0] * 2), ("c", [1.0, float("nan")])):
        rows = pa.table({"x": values, "s": [{"y": v} for v in values]})
        pq.write_table(rows, root / "raw" / "t" / f"{name}.parquet")
    builder = enter(root)
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
    found = dict(map(tuple, builder.read(builder.project.by_id["q@sources/m.sql"]).collect()))
    assert found == {"x": 5, "s": 5, "raw": 5, "nan": 1}


def test_strings_too_long_for_statistics_are_stored_in_full(
    make_builder: Callable[..., Builder],
) -> None:
    raw = "CREATE TABLE t USING parquet LOCATION 'raw/t';\n--@ persist time_column=text\n"
    query = "SELECT a, repeat(b, 5000) AS text, IF(a > 1, repeat(b, 5000), b) AS one FROM t"
    builder = make_builder(f"{raw}CREATE VIEW p AS {query};")
    builder.build(named(builder, "p"))
    snapshot = builder.observer.manifest()[named(builder, "p").build_id]
    rows = {(row.a, row.text, row.one) for row in builder.reader.load_snapshot(snapshot).collect()}
    assert rows == {
        (1, "x" * 5000, "x"),
        (2, "y" * 5000, "y" * 5000),
        (3, None, None),
        (None, "x" * 5000, "x"),
    }
    assert snapshot.watermark == "y" * 5000


# --------------------------------------------------------------------------------------- failures


def test_file_names_with_glob_characters_are_read_literally(
    make_builder: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES})
    write(root, [(1, "x")], "t/[a]{b}?*")
    (root / "raw" / "t" / "[a]{b}?*" / "part-0.parquet").rename(root / "raw/t/part[1].parquet")
    write(root, [(777, "x")], "t")
    (root / "raw/t/part-0.parquet").rename(root / "raw/t/part1.parquet")
    builder = make_builder(root=root)
    assert rows(builder, "p") == [(1, "x"), (777, "x")]


@pytest.mark.usefixtures("spark")
def test_undeclared_partition_directories_add_no_columns(
    make_builder: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    declared = SOURCES.replace("TABLE t USING", "TABLE t (a BIGINT, b STRING) USING")
    root = make_project({"m.sql": declared})
    write(root, [(1, "x")], "t/b2=1")
    builder = make_builder(root=root)
    assert builder.read(named(builder, "t")).columns == ["a", "b"]


@pytest.mark.usefixtures("spark")
def test_fields_of_structs_may_have_any_name(make_builder: Callable[..., Builder]) -> None:
    query = "SELECT named_struct('a-b', a, 'c.d', b, 'Z z', 1, '`', 2) AS s FROM t WHERE a = 1"
    builder = make_builder(
        SOURCES.replace("SELECT a, b FROM t WHERE a IS NOT NULL", query)
        .replace("time_column=a", "")
        .partition("CREATE VIEW v")[0]
    )
    build_all(builder)
    assert rows(builder, "p") == [((1, "x", 1, 2),)]
    assert list(builder.read(named(builder, "p")).collect()[0][0].asDict()) == [
        "a-b", "c.d", "Z z", "`",
    ]  # fmt: skip


def test_a_different_table_at_the_path_of_a_deleted_one_is_rejected(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    build_all(builder)
    table = builder.ledger.manifests.fetch("dev")[named(builder, "p").build_id]
    shutil.rmtree(builder.settings.table_root(table.table))
    settings = builder.settings.root / "persist.toml"
    before = settings.read_text()
    settings.write_text('ledger = "sqlite:///another.db"\n' + before)
    other = next_run(builder, make_builder)
    write(builder.settings.root, [(7, "z")])
    build_all(other)
    settings.write_text(before)
    later = next_run(builder, make_builder)
    with pytest.raises(StorageError, match="is not the one that was published"):
        rows(later, "p")
    assert [s.reasons[0].code for s in later.plan([named(later, "p").source_id]).steps] == [
        "missing"
    ]


def test_a_table_with_deleted_files_is_rebuilt(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    build_all(builder)
    table = builder.ledger.manifests.fetch("dev")[named(builder, "p").build_id]
    for file in Path(builder.settings.table_root(table.table)).rglob("part-*.parquet"):
        file.unlink()
    later = next_run(builder, make_builder)
    assert build_all(later) == {"p": "built", "q": "reused"}
    assert rows(later, "p") == [(1, "x"), (2, "y"), (3, None)]


@pytest.mark.usefixtures("spark")
def test_a_collation_is_refused(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder(
        SOURCES.replace("SELECT a, b FROM", "SELECT a, collate(b, 'UTF8_LCASE') AS b FROM")
    )
    with pytest.raises(BuildError, match=r"has the type string.* which tables cannot store"):
        builder.build(named(builder, "p"))


@pytest.mark.usefixtures("spark")
def test_a_query_that_fails_leaves_the_old_table(make_builder: Callable[..., Builder]) -> None:
    text = "CREATE TABLE t USING parquet LOCATION 'raw/t';\n--@ persist\nCREATE VIEW p AS SELECT CAST(b AS INT) AS n FROM t"
    builder = make_builder(text)
    write(builder.settings.root, [(1, "7")])
    builder = next_run(builder, make_builder)
    builder.build(named(builder, "p"))
    write(builder.settings.root, [(1, "seven")])
    later = next_run(builder, make_builder)
    with pytest.raises(BuildError, match="CAST_INVALID_INPUT"):
        later.build(named(later, "p"))
    assert rows(later, "p") == [(7,)]
    table = Path(later.settings.warehouse) / named(later, "p").table
    assert len([d for d in table.iterdir() if d.name != "_delta_log"]) == 1


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("S27")
def test_a_build_that_is_interrupted_twice_is_recorded_as_failed(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    statements: list[str] = []

    def interrupt(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "failed" in values:
            statements.append(statement)
            signal.raise_signal(signal.SIGINT)

    sa.event.listen(sa.Engine, "before_cursor_execute", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), builder.work(named(builder, "p")):
            signal.raise_signal(signal.SIGINT)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", interrupt)
    assert statements
    assert [b.state for b in builder.ledger.builds.fetch()] == ["failed"]


def test_raw_data_without_a_declared_column_is_an_error(
    make_builder: Callable[..., Builder],
) -> None:
    text = "CREATE TABLE t (a BIGINT, zz INT) USING parquet LOCATION 'raw/t';\n--@ persist\nCREATE VIEW p AS SELECT zz FROM t"
    builder = make_builder(text)
    with pytest.raises(StorageError, match="`t` has no column `zz`") as error:
        builder.build(named(builder, "p"))
    assert str(error.value.location) == "sources/m.sql:1:14"


def test_missing_raw_data_is_an_error(make_builder: Callable[..., Builder]) -> None:
    text = "CREATE TABLE t (a BIGINT) USING parquet LOCATION 'nowhere';\n--@ persist\nCREATE VIEW p AS SELECT a FROM t"
    builder = make_builder(text)
    with pytest.raises(StorageError, match="`t`: there is no data at"):
        builder.build(named(builder, "p"))


def test_a_build_fails_if_raw_data_changes_while_it_is_read(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    builder.observer.pins.pin(named(builder, "t"))
    time_before = (builder.settings.root / "raw" / "t" / "part-0.parquet").stat().st_mtime_ns
    write(builder.settings.root, [(9, "n")])
    assert (
        builder.settings.root / "raw" / "t" / "part-0.parquet"
    ).stat().st_mtime_ns != time_before
    with pytest.raises(ConflictError, match="the data of `t` changed while it was being read"):
        builder.build(named(builder, "p"))
    assert builder.ledger.manifests.fetch("dev") == {}


def test_files_added_during_a_build_are_read_by_the_next_build(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    builder.observer.pins.pin(named(builder, "t"))
    file = builder.settings.root / "raw" / "t" / "part-0.parquet"
    file.with_name("part-1.parquet").write_bytes(file.read_bytes())
    first = builder.build(named(builder, "p")).snapshot
    next_run = make_builder(root=builder.settings.root)
    second = next_run.build(named(next_run, "p")).snapshot
    assert first and second and 2 * first.rows == second.rows > 0


def test_unsupported_column_types_are_rejected(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder("--@ persist\nCREATE VIEW p AS SELECT NULL AS x")
    with pytest.raises(BuildError, match="column `x` has the type void"):
        builder.build(named(builder, "p"))


def test_a_manually_deleted_table_is_rebuilt(make_builder: Callable[..., Builder]) -> None:
    import shutil

    builder = make_builder()
    build_all(builder)
    shutil.rmtree(Path(builder.settings.warehouse) / named(builder, "p").table)
    later = next_run(builder, make_builder)
    step = later.plan([named(later, "p").source_id]).steps[0]
    assert [r.code for r in step.reasons] == ["missing"]
    assert later.build(named(later, "p")).action == "built"
    assert rows(later, "p") == [(1, "x"), (2, "y"), (3, None)]


@pytest.mark.proves("S14")
def test_a_session_whose_settings_can_change_results_is_rejected(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    changing = {
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.parquet.binaryAsString": "true",
    }
    harmless = {"spark.sql.streaming.metricsEnabled": "true", "spark.some.setting": "x"}
    for key, value in (changing | harmless).items():
        spark.conf.set(key, value)
    try:
        with pytest.raises(SettingsError, match="can change results") as error:
            _ = make_builder().engine.session
        assert all(f'"{key}" = "{value}"' in str(error.value) for key, value in changing.items())
        assert not any(key in str(error.value) for key in harmless)
        declared = f"[env.dev.spark]\nharmless = {json.dumps([*changing])}\n"
        assert make_builder(settings=declared).engine.session
    finally:
        for key in changing | harmless:
            spark.conf.unset(key)


@pytest.mark.proves("X8")
def test_all_conflicting_session_settings_are_listed(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    project = (
        "[env.dev.spark]\n"
        '"spark.sql.globalTempDatabase" = "mine"\n'
        '"spark.sql.sources.schemaStringLengthThreshold" = 1000\n'
    )
    spark.conf.set("spark.sql.mine", 'a"b')
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(SettingsError, match="can change results") as error:
            _ = make_builder(settings=project).engine.session
    finally:
        spark.conf.unset("spark.sql.mine")
        spark.conf.unset("spark.sql.caseSensitive")
    lines = [line.strip() for line in error.value.message.splitlines()[1:]]
    assert lines == [
        '# spark.sql.caseSensitive is "true": set it to "false" where Spark is started',
        '"spark.sql.globalTempDatabase" = "global_temp"  # the session refuses "mine"',
        '"spark.sql.mine" = "a\\"b"',
        '"spark.sql.sources.schemaStringLengthThreshold" = "4000"  # the session refuses "1000"',
    ]
    # The lines are TOML. The session no longer has one of the settings.
    pasted = "[env.dev.spark]\n" + "\n".join(line for line in lines if "sql.mine" not in line)
    assert make_builder(settings=f"{pasted}\n").engine.session


@pytest.mark.proves("S14")
def test_tables_are_reused_while_build_ids_include_their_former_settings(
    make_builder: Callable[..., Builder],
) -> None:
    """The release that built the tables included `spark.default.parallelism` in BuildIDs."""
    kept = '[env.dev.spark.build_ids]\n"spark.default.parallelism" = "2"\n'
    builder = make_builder(settings=kept)
    build_all(builder)
    manifest = builder.ledger.manifests.fetch("dev")

    def warning(builder: Builder) -> str:
        current = {s.build_id for s in builder.project.persisted}
        return str(find_former_build_ids(builder.settings, current, manifest))

    assert warning(builder) == "None"
    later = make_builder(settings="[env.dev]\n")
    assert "would rebuild 2 tables needlessly" in warning(later)
    assert '[spark.build_ids]\n      "spark.default.parallelism" = "2"' in warning(later)
    planned = later.plan(s.source_id for s in later.project.persisted)
    assert {step.action for step in planned.steps} == {"build"}
    other = kept + '[env.dev.spark]\n"spark.default.parallelism" = "16"\n'
    builder = make_builder(settings=other)
    planned = builder.plan(s.source_id for s in builder.project.persisted)
    assert {step.action for step in planned.steps} == {"reuse"}
    # The same applies to a setting that the project declares harmless.
    changing = '[env.dev.spark]\n"spark.sql.parquet.binaryAsString" = "true"\n'
    builder = make_builder(settings=changing)
    manifest = {s.build_id: s for s in builder.project.persisted}
    harmless = 'harmless = ["spark.sql.parquet.binaryAsString"]\n'
    assert "binaryAsString" in warning(make_builder(settings=changing + harmless))


def test_a_session_gets_the_projects_settings(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    builder = make_builder(settings='timezone = "Asia/Tokyo"\n')
    assert builder.engine.session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_performance_settings_do_not_override_those_of_the_session(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    fused, named_alike = (
        "spark.sql.codegen.wholeStage.union.enabled",
        "spark.sql.codegen.useIdInClassName",
    )
    spark.conf.unset(named_alike)
    spark.conf.set(fused, "true")
    try:
        session = make_builder().engine.session
        assert session.conf.get(named_alike) == "false"
        assert session.conf.get(fused) == "true"
    finally:
        spark.conf.set(fused, "false")


def test_a_missing_or_outdated_java_is_reported_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match="Java was not found") as error:
        installed_java({"PATH": str(tmp_path)})
    assert "apt-get install openjdk-17" in (error.value.hint or "")
    with pytest.raises(JavaMissingError, match="JAVA_HOME is /nowhere"):
        installed_java({"JAVA_HOME": "/nowhere"})
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(JavaMissingError, match="is Java 11"):
        installed_java({"JAVA_HOME": str(tmp_path)})


# ------------------------------------------------------------------------------ killed at each step


KILL = """
import os, sys
from pathlib import Path
from persist_assets.building import builder as b, exporting as x
from persist_assets.engine import spark as e
from persist_assets.engine.spark import SparkEngine
from persist_assets.engine.session import create_session
from persist_assets.ledger.builds import Builds
from persist_assets.ledger.ledger import Ledger
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

def dies(function, *, before):
    def call(*args, **kwargs):
        result = None if before else function(*args, **kwargs)
        os.kill(os.getpid(), 9)
        return result
    return call

settings = load_settings(Path(sys.argv[1]))
project = load_project(settings)
ledger = Ledger(settings.ledger)
made = b.Builder(settings, project, ledger, SparkEngine(settings, lambda: create_session(settings)))
point = sys.argv[2]
if point == "after write":
    e.find_staged = dies(e.find_staged, before=True)
elif point == "before commit":
    b.commit = dies(b.commit, before=True)
elif point == "after commit":
    b.commit = dies(b.commit, before=False)
elif point == "before publication":
    Builds.publish = dies(Builds.publish, before=True)
elif point == "before manifest":
    x.export = dies(x.export, before=True)
made.build(project.by_id["p@sources/m.sql"])
"""


@pytest.mark.slow
@pytest.mark.proves("P23")
@pytest.mark.parametrize(
    "point",
    ["after write", "before commit", "after commit", "before publication", "before manifest"],
)
def test_a_killed_build_does_not_affect_readers_and_the_next_build_repairs_the_table(
    point: str, make_builder: Callable[..., Builder]
) -> None:
    builder = make_builder()
    build_all(builder)
    write(builder.settings.root, [(8, "new")])
    died = subprocess.run(
        [sys.executable, "-c", KILL, str(builder.settings.root), point],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert died.returncode == -9, died.stderr.decode()[-2000:]
    seen = rows(builder, "p")
    published = point == "before manifest"
    assert seen == ([(8, "new")] if published else [(1, "x"), (2, "y"), (3, None)])
    began = time.monotonic()
    later = next_run(builder, make_builder)
    assert later.build(named(later, "p")).action == ("reused" if published else "built")
    assert time.monotonic() - began < 30  # it did not wait for the killed build's lease
    assert rows(later, "p") == [(8, "new")]
    table = Path(later.settings.warehouse) / named(later, "p").table
    live = {Path(f).parent.name for f in DeltaTable(str(table)).file_uris()}
    assert len(live) == 1
    states = [b.state for b in later.ledger.builds.fetch(source_id="p@sources/m.sql")]
    assert states.count("started") == 0
    if not published:
        assert "interrupted" in [
            b.error for b in later.ledger.builds.fetch(source_id="p@sources/m.sql")
        ]
    assert str(later.ledger.manifests.find_snapshot("dev", named(later, "p").build_id).version) in (
        later.settings.manifest_path.read_text()
    )


@pytest.mark.slow
def test_closing_a_builder_drops_its_session_views_unless_another_builder_reads_them(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    def views() -> set[str]:
        return views_of(spark)

    before = views()
    first = make_builder()
    first.build(named(first, "p"))
    first.close()
    assert views() == before
    second, third = (make_builder(root=first.settings.root) for _ in range(2))
    assert [rows(b, "v") for b in (second, third)] == [[(2, "x"), (3, "y"), (4, None)]] * 2
    shown = views() - before
    assert shown
    second.close()
    assert views() - before == shown, "of the same rows, and still the other's"
    assert rows(third, "v") == [(2, "x"), (3, "y"), (4, None)]
    third.close()
    assert views() == before
    assert rows(second, "v") == [(2, "x"), (3, "y"), (4, None)], "made again where it is wanted"
    second.close()
    assert views() == before


def test_a_view_can_be_created_after_failed_attempts(
    make_builder: Callable[..., Builder], spark: Any
) -> None:
    builder = make_builder()

    def fail() -> Any:
        raise StorageError("gone")

    for _ in range(2):
        with pytest.raises(StorageError, match="gone"):
            builder.engine.view("none", fail)
    assert builder.engine.view("none", lambda: spark.range(1)) == "none"
    assert spark.table("none").count() == 1
    builder.close()
    assert "none" not in views_of(spark)
