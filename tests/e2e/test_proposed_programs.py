"""The programs of the proposal, unchanged, return exactly the expected rows of a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from commands import document, persist
from deltalake import DeltaTable, write_deltalake
from proposed import TABLE, V1, V2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAYS = {"invoices": 6 * 30, "deposits": 12 * 30}
QUERY = "select 'v1' as name, * from v1 union all select 'v2', * from v2"


def put(root: Path, first: int) -> None:
    """Append rows that meet and that miss each condition of the views."""
    now, rows = datetime.now(UTC), list[dict[str, Any]]()
    for category in ("invoices", "deposits", "loans", None):
        for days in (1, 6 * 30 - 5, 6 * 30 + 9, 12 * 30 - 5, 12 * 30 + 12, None):
            ts = None if days is None else now - timedelta(days=days)
            rows.append({"id": first + len(rows), "category": category, "ts": ts})
    kinds = [("id", pa.int64()), ("category", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
    table = pa.Table.from_pylist(rows, pa.schema(kinds))
    write_deltalake(str(root / "lake"), table, mode="append")


def expected(root: Path) -> list[tuple[str, int, str, datetime]]:
    """Return the rows of both views, computed with delta-rs and Python."""
    now, found = datetime.now(UTC), list[tuple[str, int, str, datetime]]()
    for row in DeltaTable(str(root / "lake")).to_pyarrow_table().to_pylist():
        id_, category, ts = row["id"], row["category"], row["ts"]
        if category in DAYS and ts is not None and now - ts < timedelta(days=DAYS[category]):
            found.append(("v1" if category == "invoices" else "v2", id_, category, ts))
    return sorted(found)


def answer_of(root: Path) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Return the rows of a query over both views, and how it reads each source."""
    told = document("query", QUERY, cwd=root)
    assert [c["name"] for c in told["columns"]] == ["name", "id", "category", "ts"]
    assert not told["truncated"]
    rows = [(n, i, c, datetime.fromisoformat(ts).astimezone(UTC)) for n, i, c, ts in told["rows"]]
    return sorted(rows), {r["source_id"].split("@")[0]: r["from"] for r in told["route"]}


@pytest.mark.slow
@pytest.mark.proves("F1", "F20", "F22")
def test_the_programs_of_the_proposal_return_the_expected_rows(
    make_project: Callable[..., Path],
) -> None:
    table, v2 = TABLE.replace("s3://...", "lake"), V2.replace("view v1", "view v2")
    root = make_project({"m.sql": table + V1 + v2})
    put(root, 1)
    # No view is persisted, so there is no copy, and the query reads the external table itself.
    (status,) = document("external", "status", cwd=root)
    assert (status["coverage"], status["pending"]["why"]) == (None, None)
    rows, route = answer_of(root)
    assert rows == expected(root)
    assert len(rows) == 2 + 4
    assert route == {"external_table": "forwarded", "v1": "inline", "v2": "inline"}
    # As persisted sources, they have the rows of a later version after a build.
    kept = table + "--@ persist\n" + V1 + "--@ persist\n" + v2
    (root / "sources" / "m.sql").write_text(kept)
    put(root, 101)
    done = persist("build", cwd=root)
    assert done.returncode == 0, done.stderr
    rows, route = answer_of(root)
    assert rows == expected(root)
    assert len(rows) == 2 * (2 + 4)
    assert route == {"v1": "table", "v2": "table"}
    (status,) = document("external", "status", cwd=root)
    assert (status["rows"], status["coverage"]["columns"]) == (len(rows), ["category", "id", "ts"])
