"""External tables on the command line: what plans tell, what is synced, where queries go."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commands import document, persist
from deltalake import write_deltalake

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
create view v2 as select id, ts from events where category = 'deposits';
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


def external(root: Path) -> Any:
    (found,) = document("plan", cwd=root)["external"]
    return found


@pytest.mark.proves("F3", "F13", "F22")
def test_what_is_needed_is_told_held_and_asked(root: Path) -> None:
    first = external(root)
    needed = "category = 'invoices' AND ts >= NOW() - INTERVAL 6 MONTHS"
    assert (first["source_id"], first["predicate"]) == (EVENTS, needed)
    assert (first["columns"], first["before"]) == (["category", "id", "ts"], None)
    assert first["why"] == "nothing of `events` is held yet"
    # Those of 300 days ago, and deposits, are in files that are left out.
    assert (first["read"]["files"], first["read"]["rows"]) == (1, 3)
    (status,) = document("external", "status", cwd=root)
    assert (status["source_id"], status["coverage"], status["rows"]) == (EVENTS, None, 0)

    (synced,) = document("external", "sync", cwd=root)
    assert synced["rows"] == 3
    assert synced["coverage"]["version"] == synced["head"] == first["version"]
    assert synced["pending"]["why"] is None
    assert external(root)["read"]["files"] == 0

    # Another view needs what is not held, and that alone would be read.
    (root / "sources" / "n.sql").write_text(V2)
    grown = external(root)
    assert grown["why"] == "more rows of `events` are needed"
    assert grown["predicate"] == f"category = 'deposits' OR {needed}"
    assert (grown["read"]["files"], grown["read"]["rows"]) == (1, 2)
    told = persist("plan", cwd=root).stdout
    assert "more rows of `events` are needed" in told
    assert "to read: 1 of 3 files, at most 2 rows" in told

    events(root, [8], "deposits", 1)
    newer = external(root)["why"]
    assert newer == "`events` has version 3, the copy is at 2; more rows of `events` are needed"

    def asked(sql: str, *options: str) -> Any:
        answer = document("query", sql, *options, cwd=root)
        (route,) = (r for r in answer["route"] if r["source_id"] == EVENTS)
        return sorted(row[0] for row in answer["rows"]), route["from"], route["version"]

    held = synced["head"]
    # A view that is not persisted looks at the clock, and the copy has what it needs.
    assert asked("select id from recent", "--local") == ([1, 2, 3], "local", held)
    # Of other rows the copy has none: they are asked of the table, at the version that is held.
    assert asked("select id from events where category = 'deposits'") == (
        [6, 7],
        "forwarded",
        held,
    )
    refused = persist("query", "select count(*) from events", "--local", "--json", cwd=root)
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "NotHeldError"
    assert error["message"].startswith("`events`: the copy of version 2 may lack rows: asked for")
