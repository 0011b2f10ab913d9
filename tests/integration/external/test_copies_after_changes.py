"""Copies after changes that do not concern them: of declarations, columns, or the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from icebergs import Written
from test_ingestion import build, ids, sync_events
from test_postgres_tables import Database

from persist_assets.core.errors import ColumnsError, GoneError, StorageError
from persist_assets.external.connectors.delta import DeltaConnector
from persist_assets.external.status import find_holding

if TYPE_CHECKING:
    from postgres import Postgres

    from persist_assets.building.builder import Builder

Make = Callable[..., Any]
A = "create materialized view a as select id, s from t where id > 50;\n"
WITH_N = "create materialized view b as select id, n from t where id > 50;\n"
PLAIN = pa.schema([("id", pa.int64()), ("s", pa.string())])


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    made.connection.close()


def lake(columns: str, connector: str = "delta_table_input", uri: str = "lake") -> str:
    transport = {"transport": {"name": connector, "config": {"uri": uri}}}
    return (
        f"create external table t ({columns}) with ('connectors' = '[{json.dumps(transport)}]');\n"
    )


def write(root: Path, text: str) -> None:
    (root / "sources" / "m.sql").write_text(text)


def table(builder: Builder, name: str = "t") -> Any:
    return builder.project.by_key["m", name]


def holding(builder: Builder, name: str = "t") -> Any:
    return find_holding(builder.observer.ingestion, table(builder, name))


def copy_of(builder: Builder) -> Any:
    (copy,) = builder.ledger.copies.fetch()
    return copy


def values(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.persisted if s.name == name)
    return sorted((tuple(row) for row in builder.read(source).collect()), key=repr)


# ------------------------------------------------------------------------- versions of PostgreSQL


@pytest.mark.slow
@pytest.mark.proves("V10", "V14")
@pytest.mark.parametrize("cursor", [{}, {"cursor": "id"}])
def test_a_version_of_postgres_does_not_depend_on_the_declaration(
    database: Database, enter: Make, make_project: Make, cursor: dict[str, str]
) -> None:
    database.do("CREATE TABLE t (id bigint PRIMARY KEY, s text, n int)")
    database.do("INSERT INTO t SELECT g, 'a', g FROM generate_series(1, 100) g")
    narrow = database.declared("id bigint primary key, s string", **cursor)
    wide = database.declared("id bigint primary key, s string, n int", **cursor)
    root = make_project({"m.sql": narrow + A}, "[env.dev]\n[env.prod]\n")
    build(builder := enter(root, "prod"))
    begun, copy = sync_events(builder), copy_of(builder)
    for environment, text in (("dev", wide + A), ("prod", narrow + A)) * 2:
        write(root, text)
        builder = enter(root, environment)
        assert holding(builder).why is None
        assert builder.read(table(builder)).count() == 100  # the table still has this version
        build(builder)
        assert (sync_events(builder), copy_of(builder)) == (begun, copy)
    # Two tables of one project agree on the version, too.
    other = wide.replace("external table t ", "external table u ")
    of_other = "create materialized view c as select id, n from u where id > 50;\n"
    write(root, narrow + other + A + of_other)
    build(enter(root, "prod"))
    builder = enter(root, "prod")
    assert (holding(builder).why, holding(builder, "u").why) == (None, None)
    # A held column that is not declared any more does not hide the table from queries.
    write(root, narrow + A)
    builder = enter(root, "prod")
    assert copy_of(builder).columns == ("id", "n", "s")
    assert builder.read(table(builder)).count() == 100


@pytest.mark.slow
@pytest.mark.proves("V10", "V15")
def test_a_column_that_was_added_to_a_table_with_a_cursor_is_read_only_if_it_is_needed(
    database: Database, enter: Make, make_project: Make
) -> None:
    database.do("CREATE TABLE t (id bigint PRIMARY KEY, s text, gone int)")
    database.do("INSERT INTO t SELECT g, 'a', g FROM generate_series(1, 100) g")

    def declared(columns: str = "") -> str:
        return database.declared(f"id bigint primary key, s string{columns}", cursor="id")

    root = make_project({"m.sql": declared() + A})
    build(enter(root))
    database.do("ALTER TABLE t ADD COLUMN n int DEFAULT 7")
    write(root, declared(", n int") + A)
    builder = enter(root)
    with pytest.raises(GoneError, match=r"columns of the table .* were added since"):
        builder.read(table(builder)).count()  # the copy's version does not have the column
    for text in (declared() + A, declared(", n int") + A):
        write(root, text)
        builder = enter(root)
        assert holding(builder).why is None
        build(builder)
        assert sum(e["read"] + e["written"] for e in sync_events(builder)[1:]) == 0
        assert len(values(builder, "a")) == 50
    assert builder.read(table(builder)).count() == 100
    write(root, declared(", n int") + A + WITH_N)
    build(builder := enter(root))
    assert [e["why"] for e in sync_events(builder) if "why" in e] == [
        "it is new",
        "columns are needed",
    ]
    assert values(builder, "b")[0] == (100, 7)
    assert builder.read(table(builder)).count() == 100
    # The column is replaced by another one: rows, keys and cursors are the same.
    database.do("ALTER TABLE t DROP COLUMN n; ALTER TABLE t ADD COLUMN n int DEFAULT 8")
    builder = enter(root)
    assert build(builder)["b"] == "build"
    assert values(builder, "b")[0] == (100, 8)
    # Rows and a column are added at once, and the column is needed: all rows are read.
    database.do("ALTER TABLE t ADD COLUMN m int DEFAULT 9; INSERT INTO t VALUES (101, 'a', 1, 1)")
    of_m = "create materialized view c as select id, m from t where id > 50;\n"
    write(root, declared(", n int, m int") + A + WITH_N + of_m)
    build(builder := enter(root))
    assert values(builder, "c")[0] == (100, 9)
    assert values(builder, "b")[1] == (101, 1)


@pytest.mark.slow
@pytest.mark.proves("V15")
def test_a_column_that_was_added_does_not_break_the_promise_append_only(
    database: Database, enter: Make, make_project: Make
) -> None:
    database.do("CREATE TABLE t (id bigint, s text)")
    database.do("INSERT INTO t SELECT g, 'a' FROM generate_series(1, 60) g")
    text = database.declared("id bigint, s string", cursor="id")
    text = text.replace("with (", "with ('append_only' = 'true', ")
    root = make_project({"m.sql": text + A})
    build(enter(root))
    database.do("ALTER TABLE t ADD COLUMN n int; INSERT INTO t VALUES (61, 'a', 1)")
    build(builder := enter(root))
    assert ids(builder, "a") == [*range(51, 62)]
    database.do("DELETE FROM t WHERE id = 55")
    with pytest.raises(StorageError, match="declared append_only"):
        build(enter(root))


# ------------------------------------------------------------------------------------- failures


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_a_failed_request_does_not_remove_columns_of_other_environments(
    enter: Make, make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = lake("id bigint, s string") + A
    wide = lake("id bigint, s string, n bigint") + A + WITH_N
    root = make_project({"m.sql": wide}, "[env.dev]\n[env.prod]\n")
    rows = {"id": [*range(100)], "s": ["a"] * 100, "n": [*range(100)]}
    deltalake.write_deltalake(str(root / "lake"), pa.table(rows))
    build(enter(root, "dev"))
    write(root, narrow)
    build(builder := enter(root, "prod"))
    begun, copy = sync_events(builder), copy_of(builder)
    pin = DeltaConnector.pin

    def failing(self: DeltaConnector, copy_version: str | None = None) -> str:
        monkeypatch.setattr(DeltaConnector, "pin", pin)
        raise StorageError("cannot reach the store: connection reset")

    for look in ("pending", "sync"):
        monkeypatch.setattr(DeltaConnector, "pin", failing)
        builder = enter(root, "prod")
        with pytest.raises(StorageError, match="connection reset"):
            getattr(builder.observer.ingestion, look)(table(builder))
        assert (sync_events(builder), copy_of(builder)) == (begun, copy)


# ---------------------------------------------------------------------------------- other columns


def delta_after_changes(root: Path) -> str:
    """Make a table whose column `c` gets another type, after the build that `root` is given."""
    kinds = (pa.int32(), pa.int64())
    n = 3 if (root / "lake").exists() else 2
    schema = pa.schema([*PLAIN, ("c", kinds[n - 2])])
    rows = pa.table({"id": [51, 52, 10][:n], "s": ["a"] * n, "c": [1, 2, 3][:n]}, schema)
    more: dict[str, Any] = {"schema_mode": "overwrite"} if n == 3 else {}
    deltalake.write_deltalake(str(root / "lake"), rows, mode="overwrite", **more)
    return "c bigint"


def built_before_changes(enter: Make, make_project: Make) -> tuple[Path, str]:
    """Build over a table whose column `c` then gets another type; return the new declaration."""
    root = make_project({"m.sql": lake("id bigint, s string") + A})
    delta_after_changes(root)
    build(enter(root))
    return root, delta_after_changes(root)


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_a_column_with_another_type_is_read_with_all_others(
    enter: Make, make_project: Make
) -> None:
    root, later = built_before_changes(enter, make_project)
    write(root, lake(f"id bigint, s string, {later}") + A + WITH_N.replace("n ", "c "))
    builder = enter(root)
    planned = holding(builder)
    assert (planned.problem, planned.full_read_reason) == (None, "its columns changed")
    assert (planned.read.files, planned.read.rows) == (1, 3)
    build(builder)
    assert sync_events(builder)[-1]["why"] == "its columns changed"
    assert values(builder, "b") == [(51, 1), (52, 2)]
    # A declaration that does not fit the newest version is an error that says so.
    write(root, lake("id bigint, s string, c int") + A + WITH_N.replace("n ", "c "))
    with pytest.raises(ColumnsError, match="`c` is bigint but is declared as int"):
        build(enter(root))


@pytest.mark.slow
@pytest.mark.proves("V10")
def test_a_query_of_a_version_with_other_columns_names_the_way_out(
    enter: Make, make_project: Make
) -> None:
    root, later = built_before_changes(enter, make_project)
    write(root, lake(f"id bigint, s string, {later}") + A)
    builder = enter(root)
    with pytest.raises(GoneError, match=r"`c` is int .*\n.*persist external sync m/t"):
        builder.read(table(builder)).count()
    builder.observer.ingestion.sync(table(builder))
    builder = enter(root)
    assert builder.read(table(builder)).count() == 3


@pytest.mark.slow
@pytest.mark.proves("V10")
@pytest.mark.parametrize("column", ["c bigint", "d int"])
def test_an_unused_column_with_another_type_or_name_has_no_effect(
    enter: Make, make_project: Make, column: str
) -> None:
    from pyiceberg.types import LongType

    schema = pa.schema([*PLAIN, ("c", pa.int32())])
    root = make_project({"m.sql": "select 1;"})
    made = Written(root / "lake", schema)

    def declared(columns: str) -> str:
        return lake(f"id bigint, s string{columns}", "iceberg_input", str(made.root))

    write(root, declared("") + A)
    made.put(pa.table({"id": [10, 51], "s": ["a", "b"], "c": [1, 2]}, schema))
    build(enter(root))
    with made.table.update_schema() as changing:
        if column == "d int":
            changing.rename_column("c", "d")
        else:
            changing.update_column("c", LongType())
    changed = made.table.schema().as_arrow()
    rows = pa.table([[52], ["c"], [3]], names=changed.names).cast(pa.schema(changed))
    made.put(rows.replace_schema_metadata(None))
    write(root, declared(f", {column}") + A.replace("50", "5"))
    builder = enter(root)
    assert (holding(builder).problem, holding(builder).full_read_reason) == (None, None)
    build(builder)
    assert values(builder, "a") == [(10, "a"), (51, "b"), (52, "c")]
    grown, followed = sync_events(builder)[-2:]
    assert (grown["why"], grown["read"], followed["inserted"]) == ("rows are needed", 1, 1)
    # Once it is needed, it is read as it is now.
    name = column.split()[0]
    of_column = f"create materialized view b as select id, {name} from t where id > 5;\n"
    write(root, declared(f", {column}") + A.replace("50", "5") + of_column)
    build(builder := enter(root))
    assert values(builder, "b") == [(10, 1), (51, 2), (52, 3)]
