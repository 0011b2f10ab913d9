"""Reads of external tables outside of builds never see fewer rows than the table has."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from persist_assets.compiler.compile import resolve_query
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load
from persist_assets.core.errors import CheckFailedError, NotHeldError, PersistError
from persist_assets.external.connectors.protocol import Pruned
from persist_assets.external.read_routing import Route
from persist_assets.external.status import find_holding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

TABLE = """
create external table t (id bigint not null, category string, ts timestamp, note string)
with ('connectors' = '[{"transport": {"name": "delta_table_input", "config": {"uri": "lake/t"}}}]');
"""
SOURCES = f"""{TABLE}
--@ persist
create view invoices as select id, ts from t where category = 'invoices';
create view deposits as select id, note from t where category = 'deposits';
create view some as select id from t where category = 'invoices' and ts <= NOW();
create view both as select id from invoices union all select id from deposits;
--@ persist
--@ check {{ relationship {{ id="known.id" }} }}
create view few as select id from t where category = 'loans';
create view known as select id from t where category <> 'loans';
"""
PYTHON = """
from persist_assets import model


@model
def doubled(deposits):
    return deposits.selectExpr("id * 2 AS id")
"""


def rows(root: Path, ids: list[int], category: str) -> None:
    data = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "category": [category] * len(ids),
            "ts": pa.array([dt.datetime.now(dt.UTC)] * len(ids), pa.timestamp("us", "UTC")),
            "note": ["n"] * len(ids),
        }
    )
    write_deltalake(str(root / "lake" / "t"), data, mode="append")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    rows(made, [1, 2, 3], "invoices")
    rows(made, [6, 7], "deposits")
    return made


def named(builder: Builder, name: str) -> Any:
    return next(s for s in builder.project.sources if s.name == name)


def build(builder: Builder, *names: str) -> None:
    for name in names:
        with builder.work(named(builder, name)) as work:
            builder.publish(work)


def ids(frame: Any) -> list[int]:
    return sorted(row[0] for row in frame.collect())


def ask(root: Path, builder: Builder, sql: str) -> tuple[list[int], Route]:
    query, loaded = parse_query(sql), load(builder.settings)
    bindings = resolve_query(loaded.project, query)
    manifest = builder.ledger.manifests.fetch(*builder.settings.environments)
    needs = loaded.needs_of(query, bindings)
    statement, read = builder.reader.statement(query, bindings, manifest, needs=needs)
    (route,) = (found for found in read.values() if isinstance(found, Route))
    return ids(builder.reader.load(statement, read)), route


@pytest.mark.slow
@pytest.mark.proves("F22")
def test_reads_of_an_external_table_outside_of_builds_are_never_partial(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "invoices")
    held = builder.observer.ingestion.find(named(builder, "t"))
    assert held is not None
    assert held.rows == 3
    # In the run that built, and in one after it: the copy is up to date, and has no deposits.
    for reader in (builder, later := enter(root)):
        assert ids(reader.read(named(reader, "deposits"))) == [6, 7]
        assert ids(reader.read(named(reader, "both"))) == [1, 2, 3, 6, 7]
        assert ids(reader.read(named(reader, "t"))) == [1, 2, 3, 6, 7]
        assert {r.note for r in reader.read(named(reader, "t")).collect()} == {"n"}
        assert ids(reader.read(named(reader, "invoices"))) == [1, 2, 3]
        assert ids(reader.read(named(reader, "few"))) == []
    bare = later.reader.compute(named(later, "deposits"), {})
    assert ids(bare) == [6, 7], "no build of its run has brought what it reads"


@pytest.mark.proves("F22")
def test_a_query_reads_the_copy_only_if_it_has_all_needed_rows_and_columns(
    root: Path, enter: Callable[..., Builder]
) -> None:
    fresh = enter(root)
    found, route = ask(root, fresh, "select id from t where id > 2")
    assert (found, route.origin, route.version.split(":")[1]) == ([3, 6, 7], "forwarded", "1")
    build(enter(root), "invoices")
    rows(root, [4], "invoices")
    rows(root, [8], "deposits")
    later = enter(root)

    def routed_answer(sql: str) -> tuple[list[int], str, str]:
        found, route = ask(root, later, sql)
        return found, route.origin, route.version.split(":")[1]

    # The version is that of the copy, until a build or a sync updates it.
    assert routed_answer("select id from t where category = 'invoices'") == (
        [1, 2, 3],
        "local",
        "1",
    )
    assert routed_answer("select id from t where category in ('deposits', 'invoices')") == (
        [1, 2, 3, 6, 7],
        "forwarded",
        "1",
    )
    assert routed_answer("select id from t") == ([1, 2, 3, 6, 7], "forwarded", "1")
    assert routed_answer("select count(*) from t") == ([5], "forwarded", "1")
    # A column that the copy lacks is not treated as empty.
    assert routed_answer("select count(note) from t where category = 'invoices'") == (
        [3],
        "forwarded",
        "1",
    )
    # The clock advances while a query runs, and the copy has no upper limit in time.
    assert routed_answer("select * from some") == ([1, 2, 3], "local", "1")
    # The copy covers only one branch: both read the external table, in one version.
    two = "select id from some union all select id from deposits where id > 6"
    assert routed_answer(two) == ([1, 2, 3, 7], "forwarded", "1")
    # A persisted source is read from its table, so the external table has no route.
    query = parse_query("select * from invoices")
    manifest = later.ledger.manifests.fetch(*later.settings.environments)
    _, read = later.reader.statement(query, resolve_query(later.project, query), manifest)
    assert not any(isinstance(r, Route) for r in read.values())

    later.reader.local = True
    assert routed_answer("select id from some") == ([1, 2, 3], "local", "1")
    for sql, lacks in [
        ("select id from t", "rows: requested TRUE, held category IN ('invoices', 'loans')"),
        ("select note from t where category = 'invoices'", "the column note"),
    ]:
        with pytest.raises(NotHeldError) as refused:
            ask(root, later, sql)
        assert refused.value.message == f"`t`: the copy of version 1 may lack {lacks}"
        assert refused.value.location is not None
    with pytest.raises(NotHeldError):
        later.read(named(later, "deposits"))


@pytest.mark.proves("F13")
def test_a_plan_lists_the_external_rows_to_fetch(root: Path, enter: Callable[..., Builder]) -> None:
    def planned() -> dict[str, tuple[str, list[str]]]:
        builder = enter(root)
        steps = builder.plan(s.source_id for s in builder.project.persisted).steps
        return {
            s.source_id.partition("@")[0]: (s.action, [r.message for r in s.reasons]) for s in steps
        }

    build(enter(root), "invoices", "few")
    # Another view needs other rows: existing tables stay up to date.
    more = "--@ persist\ncreate view v as select id from t where category = 'deposits';"
    (root / "sources" / "n.sql").write_text(more)
    assert planned()["invoices"] == ("reuse", [])
    (read,) = [find_holding(b.observer.ingestion, named(b, "t")) for b in (enter(root),)]
    assert (read.why, read.read) == ("more rows of `t` are needed", Pruned(1, 2, 2, ANY))
    before = enter(root).ledger.events.position()
    build(enter(root), "v")
    (synced,) = [
        e.data for e in enter(root).ledger.events.fetch(before) if e.kind == "external-synced"
    ]
    assert synced["written"] == 2, "only rows that were not held"
    assert planned()["invoices"] == ("reuse", [])
    rows(root, [8], "deposits")
    assert planned()["invoices"] == ("build", ["`t` is at version 2, its copy at 1"])


@pytest.mark.proves("F12")
def test_rows_that_two_views_need_are_fetched_once(
    root: Path, enter: Callable[..., Builder]
) -> None:
    rows(root, [0], "others")
    view = "--@ persist\ncreate view late as select id from t where id >= 3;"
    (root / "sources" / "n.sql").write_text(view)
    builder = enter(root)
    build(builder, "invoices", "late")
    told = [e.data for e in builder.ledger.events.fetch() if e.kind == "external-synced"]
    assert [(t["rows"], t["written"]) for t in told] == [(5, 5)]
    assert ids(builder.read(named(builder, "late"))) == [3, 6, 7]
    assert ids(builder.read(named(builder, "invoices"))) == [1, 2, 3]


@pytest.mark.parametrize("sql", ["select nope from t", "select id from t where nope > 1"])
def test_a_query_for_a_missing_column_is_rejected(
    root: Path, enter: Callable[..., Builder], sql: str
) -> None:
    with pytest.raises(PersistError, match="nope"):
        ask(root, enter(root), sql)


@pytest.mark.slow
def test_a_relationship_check_reads_all_rows_of_the_other_source(
    root: Path, enter: Callable[..., Builder]
) -> None:
    rows(root, [1, 6], "loans")
    build(enter(root), "few")
    rows(root, [2, 9], "loans")
    with pytest.raises(CheckFailedError):
        build(enter(root), "few")


def test_checks_of_a_temporary_source_cover_all_of_its_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "sources" / "n.sql").write_text(
        "--@ persist materialized=temporary\n--@ check { row_count { min=5 } }\n"
        "create view temp as select id, category from t;\n"
        "--@ persist\ncreate view w as select id from temp where category = 'invoices';"
    )
    builder = enter(root)
    build(builder, "w")
    held = builder.observer.ingestion.find(named(builder, "t"))
    assert held is not None
    assert held.rows == 3, "what the table of `w` needs, and no more"
    assert ids(builder.read(named(builder, "w"))) == [1, 2, 3]


def test_a_python_source_reads_all_rows(root: Path, enter: Callable[..., Builder]) -> None:
    (root / "sources" / "f.py").write_text(PYTHON)
    build(enter(root), "invoices")
    builder = enter(root)
    assert ids(builder.read(named(builder, "doubled"))) == [12, 14]
    found, route = ask(root, builder, "select id from doubled where id > 12")
    assert (found, route.origin) == ([14], "forwarded")


@pytest.mark.slow
def test_a_followed_table_is_read_only_from_its_copy(
    root: Path, enter: Callable[..., Builder]
) -> None:
    text = SOURCES.replace('"lake/t"}', '"lake/t", "mode": "follow"}')
    (root / "sources" / "m.sql").write_text(text)
    with pytest.raises(NotHeldError) as refused:
        ask(root, enter(root), "select id from t")
    assert refused.value.message == "`t`: it has no copy here"
    build(enter(root), "invoices")
    rows(root, [9], "deposits")
    build(enter(root), "invoices")
    found, route = ask(root, enter(root), "select id from t")
    assert (found[-1], route.origin) == (9, "local")
