"""External tables on the command line: plans, syncs, and where queries read the rows."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from commands import document, persist
from deltalake import write_deltalake
from icebergs import Written
from typer.testing import CliRunner

from persist_assets.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """
create external table events (
    id bigint not null primary key,
    category string,
    ts timestamp
) with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "lake/events"}}
}]');
--@ persist
create view v1 as select id, ts from events
where category = 'invoices' and ts >= NOW() - 6 months;
create view recent as select id from events
where category = 'invoices' and ts >= NOW() - 1 month and ts <= NOW();
"""
V2 = """
--@ persist
create view v2 as select id, ts from events
where category = 'deposits' and hex(id) <> 'x';
"""
EVENTS = "events@sources/m.sql"


def events(root: Path, ids: list[int], category: str, days: int) -> None:
    ts = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "category": [category] * len(ids),
            "ts": pa.array([ts] * len(ids), pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(str(root / "lake" / "events"), rows, mode="append")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    events(made, [1, 2, 3], "invoices", 10)
    events(made, [4, 5], "invoices", 300)
    events(made, [6, 7], "deposits", 300)
    return made


def json_of(root: Path, *arguments: str) -> Any:
    """Run a command that starts no Spark in this process; return its JSON document."""
    done = CliRunner().invoke(app, [*arguments, "--json", "--project", str(root)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def external(root: Path) -> Any:
    (found,) = json_of(root, "plan")["external"]
    return found


def test_external_status_selects_tables_by_reader_and_reports_missing_ones(root: Path) -> None:
    for chosen in ("events", "v1", "m/events", "m/*"):
        assert [s["source_id"] for s in json_of(root, "external", "status", chosen)] == [EVENTS]
    (root / "sources" / "o.sql").write_text("--@ persist\nCREATE VIEW o AS SELECT 1 AS a;")
    command = ["external", "status", "o", "--project", str(root)]
    assert CliRunner().invoke(app, command).exit_code == 4
    shutil.rmtree(root / "lake")
    (gone,) = json_of(root, "external", "status")
    assert gone["head"] is None
    assert "there is no Delta table" in gone["error"]
    (planned,) = json_of(root, "plan")["external"]
    assert (planned["read"], planned["error"]) == (None, gone["error"])


@pytest.mark.slow
@pytest.mark.proves("F3", "F13", "F22", "V32")
def test_a_delta_table_is_planned_copied_and_queried(root: Path) -> None:
    first = external(root)
    needed = "category = 'invoices' AND ts >= NOW() - INTERVAL 6 MONTHS"
    assert (first["source_id"], first["predicate"]) == (EVENTS, needed)
    assert (first["columns"], first["before"]) == (["category", "id", "ts"], None)
    assert first["why"] == "`events` has no copy yet"
    assert first["needs"] == [
        {"reader": "v1@sources/m.sql", "predicate": needed, "columns": first["columns"]}
    ]
    assert first["not_pushed"] == []
    # Files with only rows from 300 days ago or only deposits are skipped.
    assert (first["read"]["files"], first["read"]["rows"]) == (1, 3)
    (status,) = json_of(root, "external", "status")
    assert (status["source_id"], status["coverage"], status["rows"]) == (EVENTS, None, 0)

    # Reading this much needs approval.
    settings = root / "persist.toml"
    settings.write_text(f"approve_above = 1\n{settings.read_text()}")
    limited = external(root)
    assert (first["approval"], limited["approval"], limited["read"]) == (
        False,
        True,
        first["read"],
    )
    words = CliRunner().invoke(app, ["plan", "--project", str(root)]).stdout
    approve = "needs approval: persist external sync m/events --approve"
    assert f"{approve} (until then builds of v1 fail)" in words
    refused = persist("external", "sync", "--json", cwd=root)
    assert refused.returncode == 1, refused.stderr
    assert json.loads(refused.stdout)["error"]["code"] == "UnapprovedError"

    (synced,) = document("external", "sync", "--approve", cwd=root)
    assert (synced["rows"], synced["pending"]["approval"]) == (3, False)
    assert synced["coverage"]["version"] == synced["head"] == first["version"]
    assert status["last_read"] is None
    assert (synced["last_read"]["rows"], synced["last_read"]["bytes"] > 0) == (3, True)
    assert synced["capabilities"]["columns"] == "only needed columns of files are read"
    assert synced["pending"]["why"] is None
    assert external(root)["read"]["files"] == 0

    # Another table replaces it, so its changes are unknown.
    shutil.move(root / "lake", root / "old")
    events(root, [1, 2, 3], "invoices", 10)
    anew = external(root)
    assert anew["again"] == "the table was replaced by another one"
    assert anew["why"].endswith(f"it is read again in full: {anew['again']}")
    words = CliRunner().invoke(app, ["plan", "--project", str(root)]).stdout
    assert anew["again"] in " ".join(words.split())
    shutil.rmtree(root / "lake")
    shutil.move(root / "old", root / "lake")

    # Another view needs rows that the copy lacks; the plan reads only these.
    (root / "sources" / "n.sql").write_text(V2)
    grown = external(root)
    assert grown["why"] == "more rows of `events` are needed"
    assert grown["predicate"] == f"category = 'deposits' OR {needed}"
    (kept,) = grown["not_pushed"]
    assert (kept["reader"], kept["expression"]) == (
        "v2@sources/n.sql",
        "hex(id) <> 'x'",
    )
    assert (grown["read"]["files"], grown["read"]["rows"]) == (1, 2)
    words = CliRunner().invoke(app, ["plan", "--project", str(root)]).stdout
    assert "m/events more rows of `events` are needed" in words
    assert "to read: 1 of 3 files, at most 2 rows" in words
    assert f"held:   category, id, ts where {synced['coverage']['predicate']}" in words

    events(root, [8], "deposits", 1)
    newer = external(root)["why"]
    assert newer == "`events` is at version 3, its copy at 2; more rows of `events` are needed"

    # The copy has all rows that a time-dependent, not persisted view needs.
    done = persist("query", "select id from recent", "--local", cwd=root)
    assert done.stdout.split() == ["id", "1", "2", "3"]
    assert "events from its local copy, version 2" in done.stderr
    # Other rows are read from the external table, at the version of the copy.
    sql = "select id from recent union all select id from events where category = 'loans'"
    routes = {r["source_id"]: r for r in json_of(root, "query", sql, "--sql")["route"]}
    route = routes[EVENTS]
    assert (route["from"], route["version"]) == ("forwarded", synced["head"])
    assert route["predicate"].startswith("category = 'invoices' AND ts <= TIMESTAMP '")
    assert routes["recent@sources/m.sql"]["from"] == "inline"
    count = ["query", "select count(*) from events", "--local", "--json", "--project", str(root)]
    refused = CliRunner().invoke(app, count)
    assert refused.exit_code == 1
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "NotHeldError"
    assert error["message"].startswith("`events`: the copy of version 2 may lack rows: requested")


@pytest.mark.slow
@pytest.mark.proves("F3", "F13", "F22")
def test_an_iceberg_table_is_copied_and_queried(make_shared_project: Callable[..., Path]) -> None:
    program = SOURCES.replace("delta_table_input", "iceberg_input").replace('events"}', 'n/t"}')
    root = make_shared_project({"m.sql": program})
    lake = Written(root / "lake", iceberg_rows([], "", 0).schema)
    for ids, category, days in (
        ([1, 2], "invoices", 10),
        ([3], "invoices", 300),
        ([4], "deposits", 1),
    ):
        lake.put(iceberg_rows(ids, category, days))
    first = external(root)
    assert (first["source_id"], first["version"]) == (EVENTS, lake.head())
    assert (first["why"], first["before"]) == ("`events` has no copy yet", None)
    assert (first["read"]["files"], first["read"]["rows"]) == (1, 2)
    (status,) = json_of(root, "external", "status")
    assert (status["coverage"], status["head"], status["rows"]) == (None, lake.head(), 0)
    number = lake.head().split(":")[1]
    route, rows = routed_answer(root, "select id from events")
    assert (rows, route["from"], route["version"]) == ([1, 2, 3, 4], "forwarded", lake.head())

    (synced,) = document("external", "sync", cwd=root)
    assert (synced["rows"], synced["coverage"]["version"]) == (2, lake.head())
    assert synced["pending"]["why"] is None
    done = persist("query", "select id from recent", "--local", cwd=root)
    assert done.stdout.split() == ["id", "1", "2"]
    assert f"events from its local copy, version {number}" in done.stderr

    held = lake.head()
    lake.put(iceberg_rows([5], "invoices", 1))
    newer = lake.head().split(":")[1]
    assert external(root)["why"] == f"`events` is at version {newer}, its copy at {number}"
    # Forwarded queries read the version of the copy, not the newest one.
    route, rows = routed_answer(root, "select id from events")
    assert (rows, route["from"], route["version"]) == ([1, 2, 3, 4], "forwarded", held)
    count = ["query", "select count(*) from events", "--local", "--json", "--project", str(root)]
    refused = CliRunner().invoke(app, count)
    assert refused.exit_code == 1
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "NotHeldError"
    assert error["message"].startswith(f"`events`: the copy of version {number} may lack rows")

    lake.delete([1])
    done = persist("external", "sync", cwd=root)
    assert done.returncode == 0
    assert "`m/events` is read again in full: snapshot" in done.stderr
    (status,) = json_of(root, "external", "status")
    assert (status["rows"], status["coverage"]["version"]) == (2, lake.head())
    route, rows = routed_answer(root, "select id from recent")
    assert (rows, route["from"], route["version"]) == ([2, 5], "local", lake.head())


def iceberg_rows(ids: list[int], category: str, days: int) -> pa.Table:
    ts = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "category": pa.array([category] * len(ids), pa.string()),
            "ts": pa.array([ts] * len(ids), pa.timestamp("us", "UTC")),
        }
    )


def routed_answer(root: Path, sql: str) -> tuple[Any, list[int]]:
    """Return where a query read the rows of the external table, and its result."""
    answer = document("query", sql, cwd=root)
    (route,) = (r for r in answer["route"] if r["source_id"] == EVENTS)
    return route, sorted(row[0] if isinstance(row, list) else row["id"] for row in answer["rows"])
