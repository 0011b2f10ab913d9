"""Tables of PostgreSQL as external tables: copied, compared, followed by a cursor."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from ingesting import SCHEMA, Life, bag
from test_commits_meanwhile import meanwhile
from test_ingestion import build, ids, sync_events

from persist_assets.core.errors import GoneError, StorageError, UnapprovedError, UntrustedError
from persist_assets.core.trust import confined
from persist_assets.external.coverage import COPIES
from persist_assets.external.status import find_holding

if TYPE_CHECKING:
    from postgres import Postgres

    from persist_assets.building.builder import Builder

Make = Callable[..., Any]
SECRET = "Qw7hiddenPasswordOfTheReader"


class Database:
    """A schema of its own in the server of the test process."""

    def __init__(self, server: Postgres) -> None:
        import psycopg

        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.url = f"postgresql://postgres@/postgres?host={server.root}"
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.do(f"CREATE SCHEMA {self.schema}; SET search_path = {self.schema}")

    def do(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def config(self, table: str = "t", **more: Any) -> dict[str, Any]:
        return {"uri": self.url, "table": f"{self.schema}.{table}", **more}

    def declared(self, columns: str, table: str = "t", **more: Any) -> str:
        transport = {"name": "postgres_input", "config": self.config(table, **more)}
        connectors = json.dumps([{"transport": transport}]).replace("'", "''")
        return f"create external table t ({columns}) with ('connectors' = '{connectors}');\n"


@pytest.fixture
def db(postgres: Postgres) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    made.connection.close()


def rows(builder: Builder, name: str) -> Counter[tuple[Any, ...]]:
    source = next(s for s in builder.project.persisted if s.name == name)
    return bag(builder.read(source).collect())


def held(builder: Builder) -> Any:
    copy = builder.observer.ingestion.find(builder.project.by_key["m", "t"])
    assert copy is not None
    return copy


KINDS = """
    id bigint, small smallint, n int, amount decimal(10,2), free decimal(12,4), x double, y float,
    ok boolean, s string, fixed string, doc string, mood string, raw binary, day date,
    ts timestamp, local timestamp_ntz, `odd$näme` string, `Größe` int
"""
TYPES = """
    id bigint, small smallint, n int, amount numeric(10,2), free numeric, x float8, y float4,
    ok boolean, s text, fixed char(4), doc jsonb, mood feeling, raw bytea, day date,
    ts timestamptz, local timestamp, "odd$näme" uuid, "Größe" int, skipped interval
"""


@pytest.mark.slow
@pytest.mark.proves("V14")
def test_values_of_all_types_are_copied_exactly(
    db: Database, enter: Make, make_project: Make
) -> None:
    db.do("CREATE TYPE feeling AS ENUM ('good', 'it''s')")
    db.do(f'CREATE TABLE "Order lines" ({TYPES})')
    key = uuid.uuid4()
    db.do(rf"""INSERT INTO "Order lines" VALUES
        (1, -7, 2147483647, -0.01, 1.5, 'NaN', '-Infinity', true, E'a"b,\n''c\\é', 'ab', '{{"a": [1]}}',
         'it''s', '\x00ff', '0001-01-01', '2024-03-31 02:30:00.123456+01', '1582-10-10 00:00:00', '{key}', 3, '1 day'),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (3, 0, 0, 0, 0.0001, '-0', 0.1, false, '', '', '"x"', 'good', '', '9999-12-31',
         '1969-12-31 23:59:59.999999+00', '9999-12-31 23:59:59.999999', NULL, 0, NULL)""")
    text = db.declared(KINDS, '"Order lines"')
    root = make_project({"m.sql": text + "create materialized view v as select * from t;"})
    build(builder := enter(root))
    found = {r.id: r for r in builder.read(builder.project.persisted[0]).collect()}
    one, none, three = found[1], found[2], found[3]
    assert (one.small, one.n, one.amount, one.free) == (
        -7,
        2147483647,
        Decimal("-0.01"),
        Decimal("1.5"),
    )
    assert (one.x != one.x, one.y, one.ok, one.s) == (True, float("-inf"), True, "a\"b,\n'c\\é")
    assert (one.fixed, one.doc, one.mood, one.raw) == ("ab  ", '{"a": [1]}', "it's", b"\x00\xff")
    assert (one.day, one.local) == (date(1, 1, 1), datetime(1582, 10, 10))
    assert one.ts.astimezone(UTC) == datetime(2024, 3, 31, 1, 30, 0, 123456, UTC)
    assert (one["odd$näme"], one["Größe"]) == (str(key), 3)
    assert {v for k, v in none.asDict().items() if k != "id"} == {None}
    assert (str(three.x), three.s, three.raw, three.day) == ("-0.0", "", b"", date(9999, 12, 31))
    assert three.ts.astimezone(UTC) == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    # Values that Spark cannot represent fail the build, and published rows stay.
    for column, value in (
        ("day", "'infinity'"),
        ("free", "'NaN'"),
        ("free", "0.00001"),
        ("ts", "'-infinity'"),
        ("day", "'0044-03-15 BC'"),
    ):
        db.do(f'UPDATE "Order lines" SET "{column}" = {value} WHERE id = 3')
        with pytest.raises(StorageError, match=rf"a value in `{column}`.*does not fit"):
            build(enter(root))
        db.do(f'UPDATE "Order lines" SET "{column}" = NULL WHERE id = 3')
    assert len(rows(enter(root), "v")) == 3
    db.do('ALTER TABLE "Order lines" ALTER n TYPE interval USING NULL')
    with pytest.raises(StorageError, match="types that Spark lacks: `n` is interval"):
        build(enter(root))
    db.do('ALTER TABLE "Order lines" DROP COLUMN n')
    with pytest.raises(StorageError, match="it has no column `n`"):
        build(enter(root))
    assert not [p for p in Path(root).rglob("*.fetched") if any(p.iterdir())]


A = "create materialized view a as select id, s from t where s = 'a';\n"
B = "create materialized view b as select id, n from t where n > 10;\n"


@pytest.mark.slow
@pytest.mark.proves("V14")
def test_a_table_without_a_cursor_is_compared_with_its_copy(
    db: Database, enter: Make, make_project: Make, spark: Any
) -> None:
    db.do("CREATE TABLE t (id bigint, s text, n int, pad text)")
    root = make_project({"m.sql": db.declared("id bigint, s string, n int") + A})
    assert build(enter(root)) == {"a": "build"}  # an empty table
    assert ids(enter(root), "a") == []
    db.do(
        "INSERT INTO t SELECT g, CASE WHEN g % 2 = 0 THEN 'a' ELSE 'b' END, g FROM generate_series(1, 20) g"
    )
    assert build(builder := enter(root)) == {"a": "build"}
    assert held(builder).rows == 10
    assert sync_events(builder)[-1]["read"] == 10  # the server filters
    assert sync_events(builder)[-1]["read_bytes"] < 200
    assert build(enter(root)) == {"a": "reuse"}
    # Changes of rows or columns that are not needed make no reader stale.
    db.do("INSERT INTO t VALUES (21, 'b', 21); UPDATE t SET pad = 'x'")
    assert build(builder := enter(root)) == {"a": "reuse"}
    assert (sync_events(builder)[-1]["inserted"], sync_events(builder)[-1]["deleted"]) == (0, 0)
    db.do(
        "UPDATE t SET s = 'a' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (22, 'a', NULL)"
    )
    assert build(builder := enter(root)) == {"a": "build"}
    assert ids(builder, "a") == [1, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]
    assert (sync_events(builder)[-1]["inserted"], sync_events(builder)[-1]["deleted"]) == (2, 1)
    # The program needs more rows, and the table has changed: all are read once.
    (root / "sources" / "m.sql").write_text(db.declared("id bigint, s string, n int") + A + B)
    db.do("INSERT INTO t VALUES (23, 'a', 23)")
    assert build(builder := enter(root)) == {"a": "build", "b": "build"}
    assert ids(builder, "a")[-2:] == [22, 23]
    assert ids(builder, "b") == [*range(11, 22), 23]

    # Rows committed after the version was pinned belong to the next build.
    def late() -> None:
        db.do("UPDATE t SET n = 99 WHERE id = 23")

    db.do("UPDATE t SET n = 50 WHERE id = 23")
    build(builder := enter(root, engine=meanwhile(spark, late)))
    assert (23, 50) in rows(builder, "b")
    build(builder := enter(root))
    assert (23, 99) in rows(builder, "b")
    # A query that needs more rows than the copy reads the table, if its version is the same.
    table = builder.project.by_key["m", "t"]
    assert builder.read(table).count() == 22
    db.do("DELETE FROM t WHERE id = 4")
    with pytest.raises(GoneError, match="has other rows by now"):
        enter(root).read(table).count()
    assert find_holding(builder.observer.ingestion, table).why is not None


@pytest.mark.slow
@pytest.mark.proves("V15")
def test_a_cursor_fetches_only_new_rows_and_late_ones_are_detected(
    db: Database, enter: Make, make_project: Make
) -> None:
    db.do("CREATE TABLE t (id bigint PRIMARY KEY, s text, at timestamptz)")
    text = db.declared("id bigint primary key, s string, at timestamp", cursor="at") + A
    root = make_project({"m.sql": text})
    db.do(
        "INSERT INTO t SELECT g, 'a', '2024-01-01'::timestamptz + g * interval '1 hour' FROM generate_series(1, 20) g"
    )
    build(builder := enter(root))
    assert held(builder).version.split(":")[1] == "2024-01-01T200000+00"
    db.do("INSERT INTO t VALUES (21, 'a', '2024-02-01'), (22, 'b', '2024-02-01 00:00:00.5')")
    assert build(builder := enter(root)) == {"a": "build"}
    assert ids(builder, "a") == [*range(1, 22)]
    assert (sync_events(builder)[-1]["read"], sync_events(builder)[-1]["inserted"]) == (1, 1)
    # Late rows, with smaller values or NULL, and rows that were deleted or changed.
    for statement, now in (
        ("INSERT INTO t VALUES (30, 'a', '2024-01-15')", [*range(1, 22), 30]),
        ("INSERT INTO t VALUES (31, 'a', NULL)", [*range(1, 22), 30, 31]),
        (
            "DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (32, 'a', '2024-01-01 03:00Z')",
            [1, 2, *range(4, 22), 30, 31, 32],
        ),
        ("UPDATE t SET s = 'c', at = '2024-03-01' WHERE id = 1", [2, *range(4, 22), 30, 31, 32]),
        ("DELETE FROM t WHERE id = 1", [2, *range(4, 22), 30, 31, 32]),
    ):
        db.do(statement)
        build(builder := enter(root))
        assert ids(builder, "a") == now, statement
    # TRUNCATE creates new storage, so equal keys and times with other rows are noticed.
    db.do(
        "CREATE TEMP TABLE before AS SELECT * FROM t; TRUNCATE t; INSERT INTO t SELECT id, 'b', at FROM before"
    )
    build(builder := enter(root))
    assert ids(builder, "a") == []
    # More rows are read at the version of the copy; then new rows are followed.
    db.do("INSERT INTO t VALUES (40, 'b', '2024-05-01')")
    (root / "sources" / "m.sql").write_text(text + A.replace("a as", "b as").replace("'a'", "'b'"))
    build(builder := enter(root))
    assert ids(builder, "b")[-1] == 40
    grown, followed = sync_events(builder)[-2:]
    assert (grown["why"], followed["inserted"]) == ("rows are needed", 1)


@pytest.mark.slow
@pytest.mark.proves("V15")
def test_rows_without_a_key_that_replace_others_are_detected(
    db: Database, enter: Make, make_project: Make
) -> None:
    db.do("CREATE TABLE t (day date, n int)")
    text = db.declared("day date, n int", cursor="day")
    text += "create materialized view a as select day, sum(n) as n from t group by day;\n"
    root = make_project({"m.sql": text})
    db.do("INSERT INTO t VALUES ('2024-01-01', 1), ('2024-01-01', 2), ('2024-01-02', 3)")
    build(enter(root))
    # A day is loaded again, with as many rows, while another one comes.
    db.do(
        "DELETE FROM t WHERE day = '2024-01-01'; INSERT INTO t VALUES"
        " ('2024-01-01', 10), ('2024-01-01', 20), ('2024-01-03', 4)"
    )
    build(builder := enter(root))
    assert sorted(n for _, n in rows(builder, "a")) == [3, 4, 30]


@pytest.mark.slow
@pytest.mark.proves("V15")
@pytest.mark.parametrize("cursor", [{}, {"cursor": "n"}])
def test_columns_and_views_that_are_replaced_are_detected(
    db: Database, enter: Make, make_project: Make, cursor: dict[str, str]
) -> None:
    """Nothing else tells it: rows, ids, keys and cursors stay the same."""
    db.do("CREATE TABLE base (id bigint PRIMARY KEY, a int, b int, n int)")
    db.do("INSERT INTO base SELECT g, 1, 2, g FROM generate_series(1, 3) g")
    db.do("CREATE VIEW t AS SELECT id, a, b, n FROM base")
    columns = "id bigint primary key, a int, b int, n int"
    text = "create materialized view q as select id, a, b from t;\n"
    of_view, of_table = (db.declared(columns, table, **cursor) for table in ("t", "base"))
    of_table = of_table.replace("external table t ", "external table s ")
    text += text.replace("view q", "view r").replace("from t", "from s")
    root = make_project({"m.sql": of_view + of_table + text})

    def now() -> list[Any]:
        build(builder := enter(root))
        return [*sorted(rows(builder, "q")), *sorted(rows(builder, "r"))]

    assert now() == [(n, 1, 2) for n in (1, 2, 3)] * 2
    db.do("CREATE OR REPLACE VIEW t AS SELECT id, b AS a, a AS b, n FROM base")
    assert now() == [(n, *pair) for pair in ((2, 1), (1, 2)) for n in (1, 2, 3)]
    db.do("ALTER TABLE base RENAME a TO x; ALTER TABLE base RENAME b TO a")
    db.do("ALTER TABLE base RENAME x TO b")
    assert now() == [(n, 2, 1) for n in (1, 2, 3)] * 2
    db.do("DROP VIEW t; ALTER TABLE base DROP COLUMN b")
    db.do("ALTER TABLE base ADD COLUMN b int DEFAULT 7")
    db.do("CREATE VIEW t AS SELECT id, a, b, n FROM base")
    assert now() == [(n, 2, 7) for n in (1, 2, 3)] * 2


@pytest.mark.slow
@pytest.mark.proves("V15")
def test_tables_that_cannot_be_followed_fail(db: Database, enter: Make, make_project: Make) -> None:
    db.do("CREATE TABLE t (id bigint, s text, at timestamp)")
    db.do("INSERT INTO t VALUES (1, 'a', 'infinity')")
    columns = "id bigint, s string, at timestamp_ntz"
    root = make_project({"m.sql": db.declared(columns, cursor="at") + A})
    with pytest.raises(StorageError, match=r"the greatest `at` of the table .* is infinity"):
        build(enter(root))
    other = make_project({"m.sql": db.declared(columns, cursor="s") + A}, name="other")
    with pytest.raises(StorageError, match=r"`s` of the table .* is text: rows cannot be followed"):
        build(enter(other))
    promised = db.declared(columns, cursor="id").replace("with (", "with ('append_only' = 'true', ")
    third = make_project({"m.sql": promised + A}, name="third")
    build(enter(third))
    db.do("UPDATE t SET id = 2")
    with pytest.raises(StorageError, match="declared append_only"):
        build(enter(third))
    plain = db.declared(columns).replace("with (", "with ('append_only' = 'true', ")
    fourth = make_project({"m.sql": plain + A}, name="fourth")
    build(enter(fourth))
    db.do("INSERT INTO t VALUES (3, 'a', NULL)")
    build(builder := enter(fourth))
    assert ids(builder, "a") == [2, 3]
    db.do("DELETE FROM t WHERE id = 2")
    with pytest.raises(StorageError, match="declared append_only"):
        build(enter(fourth))
    assert ids(enter(fourth), "a") == [2, 3]


@pytest.mark.slow
@pytest.mark.proves("V14")
def test_environments_share_a_copy_and_large_tables_need_approval(
    db: Database, enter: Make, make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.do("CREATE TABLE t (id bigint, s text, n int)")
    db.do("INSERT INTO t SELECT g, 'a', g FROM generate_series(1, 100) g")
    settings = "approve_above = 500\n[env.prod]\n[env.dev]\n"
    root = make_project({"m.sql": db.declared("id bigint, s string") + A}, settings)
    builder = enter(root, "prod")
    monkeypatch.delenv("PERSIST_TRUST", raising=False)
    with confined(root), pytest.raises(UntrustedError, match="not trusted"):
        find_holding(builder.observer.ingestion, builder.project.by_key["m", "t"])
    monkeypatch.setenv("PERSIST_TRUST", db.url)
    with confined(root):
        holding = find_holding(builder.observer.ingestion, builder.project.by_key["m", "t"])
    assert (holding.problem, holding.approval) == (None, True)
    with pytest.raises(UnapprovedError):
        build(builder)
    builder = enter(root, "prod")
    builder.observer.ingestion.sync(builder.project.by_key["m", "t"], approved=True)
    build(enter(root, "prod"))
    (root / "sources" / "m.sql").write_text(db.declared("id bigint, s string, n int") + A + B)
    dev = enter(root, "dev")
    dev.observer.ingestion.sync(dev.project.by_key["m", "t"], approved=True)
    build(dev := enter(root, "dev"))
    assert len([p for p in Path(root).rglob(f"{COPIES}/*") if "." not in p.name]) == 1
    db.do("UPDATE t SET n = -1 WHERE id = 100; DELETE FROM t WHERE id = 7")
    build(dev := enter(root, "dev"))  # following needs no approval
    assert ids(dev, "b") == [*range(11, 100)]
    build(prod := enter(root, "prod"))
    assert ids(prod, "a") == [i for i in range(1, 101) if i != 7]


@pytest.mark.slow
@pytest.mark.proves("V14")
def test_passwords_do_not_leak_into_files_logs_or_errors(
    db: Database,
    enter: Make,
    make_project: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "persist_assets")
    monkeypatch.setenv("PERSIST_SECRET_PG", SECRET)
    db.do("CREATE TABLE t (id bigint, s text); INSERT INTO t VALUES (1, 'a')")
    with_password = {"password": "${env:PERSIST_SECRET_PG}"}
    root = make_project({"m.sql": db.declared("id bigint, s string", **with_password) + A})
    build(builder := enter(root))
    texts = [repr(builder.project.sources), json.dumps(sync_events(builder))]
    nowhere = db.declared("id bigint, s string", **with_password).replace(
        "postgres@/", "postgres@nowhere.invalid/"
    )
    other = make_project({"m.sql": nowhere.replace(db.url[-20:], "") + A}, name="other")
    absent = db.declared("id bigint, s string", "gone", **with_password)
    gone = make_project({"m.sql": absent + A}, name="gone")
    failures = {other: "cannot reach the table", gone: "does not exist"}
    for project, message in failures.items():
        with pytest.raises(StorageError, match=message) as failed:
            build(enter(project))
        texts += [repr(vars(failed.value)), str(failed.getrepr(showlocals=False))]
    monkeypatch.delenv("PERSIST_SECRET_PG")
    with pytest.raises(StorageError, match="PERSIST_SECRET_PG, which is not set"):
        build(enter(root))
    for project in (root, *failures):
        files = [p for p in project.rglob("*") if p.is_file()]
        assert "ledger.db" in {p.name for p in files}
        texts += [p.read_bytes().decode("latin-1") for p in files]
    assert caplog.text
    assert SECRET not in "".join([*texts, caplog.text])


class Lake:
    """A table of PostgreSQL, and the operations of its writers."""

    connector = "postgres_input"
    cursor: str | None = None

    def __init__(self, db: Database, rows: pa.Table, rng: random.Random) -> None:
        self.db, self.rng, self.uri = db, rng, db.url
        db.do("CREATE TABLE t (id bigint, k text, x float8, d date, ts timestamptz)")
        self.options = db.config(**({"cursor": self.cursor} if self.cursor else {}))
        self.append(rows)

    def append(self, rows: pa.Table) -> None:
        with self.db.connection.cursor() as cursor:
            values = [tuple(row.values()) for row in rows.to_pylist()]
            cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s, %s)", values)

    def update(self, fifth: int) -> None:
        k, x = self.rng.choice(["'a'", "'b'", "NULL"]), self.rng.choice(["3.0", "NULL"])
        self.db.do(f"UPDATE t SET k = {k}, x = {x} WHERE id % 5 = {fifth}")

    def delete(self, fifth: int) -> None:
        self.db.do(f"DELETE FROM t WHERE id % 5 = {fifth}")

    def merge(self, rows: pa.Table) -> None:
        here = ", ".join(map(str, rows["id"].to_pylist()))
        self.db.do(f"DELETE FROM t WHERE id IN ({here})")
        self.append(rows)

    def optimize(self) -> None:
        self.db.do("VACUUM FULL t")

    rewrite = optimize

    def vacuum(self, held: str | None) -> None:
        pass

    def rows(self, version: str) -> pa.Table:
        cursor = self.db.connection.execute("SELECT * FROM t")
        names = SCHEMA.names
        return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in cursor], SCHEMA)


class Followed(Lake):
    """A table whose ids only grow; its rows are deleted and added, but not updated."""

    cursor = "id"

    def update(self, fifth: int) -> None:
        self.delete(fifth)

    def merge(self, rows: pa.Table) -> None:
        self.delete(self.rng.randrange(5))


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.proves("V14", "V15")
@pytest.mark.parametrize("of", [Lake, Followed])
def test_after_every_step_all_sources_equal_their_query_over_the_table(
    enter: Make, make_project: Make, db: Database, of: type[Lake]
) -> None:
    def lake(root: Path, rows: pa.Table, rng: random.Random) -> Lake:
        return of(db, rows, rng)

    life = Life(make_project({}), enter, random.Random(5), lake, keyed=of is Followed)
    _, deaths = life.live(8, dying=0.4)
    assert deaths
