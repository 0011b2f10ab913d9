"""`persist check --data`: run checks now, on tables and on the rows of views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import document, persist

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """\
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
CREATE TABLE missing (a BIGINT) USING parquet LOCATION 'raw/missing';
--@ tags=[staging]
--@ check { unique=a { keep_failures=true } not_null=b { severity=warn } }
CREATE VIEW v AS SELECT a, b FROM t;
--@ check { not_null=a }
CREATE VIEW unread AS SELECT a FROM missing;
--@ persist
--@ check { range { a { max=5 } } row_count { min=1 } }
CREATE VIEW p AS SELECT DISTINCT a FROM t;
--@ persist
--@ check { not_null=a }
CREATE VIEW later AS SELECT a + 1 AS a FROM p;
--@ persist
CREATE VIEW unchecked AS SELECT b FROM t;
"""


@pytest.mark.slow
@pytest.mark.proves("W22")
def test_results_are_printed_source_by_source(make_shared_project: Callable[..., Path]) -> None:
    root = make_shared_project({"m.sql": SQL})
    (root / "raw" / "t").mkdir(parents=True)
    values = {"a": pa.array([1, 1, 2], pa.int64()), "b": ["x", None, "y"]}
    pq.write_table(pa.table(values), root / "raw/t/p.parquet")
    document("build", "p", cwd=root)

    checked = persist("check", "--data", cwd=root)
    assert checked.returncode == 1, checked.stderr
    (kept,) = (root / ".persist/warehouse/.failures").glob("*/dev/m/v@unique_a")
    assert checked.stdout.splitlines() == [
        "m/v",
        "check failed a unique: 2 rows",
        '      for example {"a": 1, "b": "x"}',
        f"      2 rows kept in {kept}",
        "check failed b not null (warns only): 1 rows",
        '      for example {"b": null, "a": 1}',
        "m/unread",
        "m/p",
        "check passed a at most 5",
        "check passed row count at least 1: 2 rows",
        "m/later not built",
    ]
    assert "m/unread" not in checked.stderr
    assert "raw/missing" in checked.stderr

    # Only selected sources, including views, without the excluded ones.
    chosen = document("check", "--data", "later", "tag:staging", "p", "--exclude", "v", cwd=root)
    assert [(s["source_id"], s["built"]) for s in chosen["sources"]] == [
        ("p@sources/m.sql", True),
        ("later@sources/m.sql", False),
    ]
    by_tag = persist("check", "--data", "tag:staging", cwd=root)
    assert (by_tag.returncode, by_tag.stdout.splitlines()[0]) == (1, "m/v")
    nothing = persist("check", "--data", "unchecked", cwd=root)
    assert (nothing.returncode, nothing.stdout) == (0, "no checks to run\n")
    failed = persist("check", "--data", "unread", cwd=root)
    assert failed.returncode == 6, "its data does not exist"
    warning = persist("check", cwd=root)
    assert warning.returncode == 0
    assert "no build runs the checks of `unread`" in warning.stderr
    assert "hint: run them with `persist check --data unread`, or persist it" in warning.stderr
