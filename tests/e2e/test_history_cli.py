"""Histories on the command line: plans, builds and queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist, printed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = """
CREATE TABLE t (id INT, x STRING) USING parquet LOCATION 'raw';
--@ persist refresh=snapshot key=id
CREATE VIEW h AS SELECT id, x FROM t;
"""


def json_of(*arguments: str, cwd: Path) -> Any:
    return printed(persist(*arguments, "--json", cwd=cwd))


def put(root: Path, **rows: str) -> None:
    (root / "raw").mkdir(exist_ok=True)
    table = pa.table({"id": pa.array(map(int, rows), pa.int32()), "x": [*rows.values()]})
    pq.write_table(table, root / "raw" / "a.parquet")


@pytest.mark.slow
@pytest.mark.proves("P19")
def test_full_refresh_and_force_keep_the_history(make_shared_project: Callable[..., Path]) -> None:
    root = make_shared_project({"m.sql": TEXT})
    put(root, **{"1": "a", "2": "b"})
    refused = persist("query", "SELECT * FROM h", cwd=root)
    assert refused.returncode != 0
    assert "`h` keeps a history but has no table" in refused.stderr
    (first,) = json_of("build", cwd=root)["builds"]
    put(root, **{"1": "c", "2": "b"})
    (step,) = json_of("plan", cwd=root)["steps"]
    assert [r["code"] for r in step["reasons"]] == ["input", "history"]
    (second,) = json_of("build", "--full-refresh", cwd=root)["builds"]
    assert (first["rows"], second["rows"], second["version"]) == (2, 3, 1)
    rows = json_of("query", "SELECT id, x FROM h WHERE valid_to IS NULL ORDER BY id", cwd=root)[
        "rows"
    ]
    assert rows == [[1, "c"], [2, "b"]]
    (again,) = json_of("build", "--force", cwd=root)["builds"]
    assert (again["action"], again["version"]) == ("reused", 1)
    assert json_of("show", "h", cwd=root)["tables"][0]["older_code"] is None
