"""Contracts and checks on the command line: failures are reported and publish nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

RAW = "CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';\n"
SQL = f"""{RAW}
--@ persist on_schema_change=fail
--@ check {{ range {{ a {{ max=50 }} }} }}
CREATE VIEW p AS
SELECT CASE WHEN a > 99 THEN raise_error('too large') ELSE a END AS a, b FROM t;

--@ persist
CREATE VIEW below AS SELECT count(*) AS n FROM f;
"""
PYTHON = """from persist_assets import table


def sane(rows):
    return rows.filter("b = 'mad'")


@table(check={"function": sane})
def f(p):
    return p
"""


@pytest.fixture
def root(make_shared_project: Callable[..., Path]) -> Path:
    made = make_shared_project({"m.sql": SQL, "f.py": PYTHON})
    write(made, [1, 2], ["x", "y"])
    return made


def write(root: Path, a: list[int], b: list[str]) -> None:
    (root / "raw" / "t").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(a, pa.int64()), "b": b}), root / "raw/t/p.parquet")


def persist(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("DAGSTER_HOME", "PERSIST_ENV")}
    command = [sys.executable, "-m", "persist_assets.cli", *arguments]
    return warm.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=240)


def published(root: Path) -> Mapping[str, str]:
    """Return digests of everything published: the files of tables, and the manifests."""
    state = root / ".persist"
    return {
        str(p.relative_to(state)): sha256(p.read_bytes()).hexdigest()
        for p in sorted([*(state / "warehouse").rglob("*"), *(state / "manifests").rglob("*")])
        if p.is_file() and ".listings" not in p.parts
    }


def actions(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    told: Any = json.loads(done.stdout)
    return {b["source_id"].partition("@")[0]: b["action"] for b in told["builds"]}


@pytest.mark.slow
@pytest.mark.proves("P25", "P26", "K11")
def test_a_failed_build_reports_its_cause_and_publishes_nothing(root: Path) -> None:
    done = persist("build", cwd=root)
    assert done.returncode == 0, done.stderr
    before = published(root)
    assert any(name.endswith(".parquet") for name in before)
    assert "manifests/dev.json" in before

    def broken(by: Callable[[], None], failed: str, *says: str) -> None:
        by()
        done = persist("build", "--json", cwd=root)
        assert done.returncode == 1, done.stderr
        after = {"p": "reused", "f": "skipped", "below": "skipped"}
        assert actions(done) == {**after, failed: "failed"}
        for text in says:
            assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert published(root) == before
        (root / "sources" / "m.sql").write_text(SQL)
        (root / "sources" / "f.py").write_text(PYTHON)

    def edit(file: str, old: str, new: str) -> Callable[[], None]:
        path = root / "sources" / file
        text = SQL if file == "m.sql" else PYTHON
        assert old in text
        return lambda: path.write_text(text.replace(old, new)) and None

    broken(
        edit("m.sql", "AS a, b FROM t", "AS n, CAST(a AS INT) AS a FROM t"),
        "p",
        "sources/m.sql:3:13: the columns of `p` differ from its table, and none may change",
        "    added    n bigint",
        "    removed  b string",
        "    retyped  a bigint → int",
        "hint: to publish it anyway: persist build --allow-schema-change",
    )
    broken(
        edit("f.py", "return p\n", "raise ValueError('unlucky')\n"),
        "f",
        "sources/f.py:10:5: `f` failed: ValueError: unlucky",
    )
    broken(
        lambda: write(root, [1, 60], ["x", "y"]),
        "p",
        "sources/m.sql:5:13: `p` failed range_a (1 rows); it was not published",
        'range_a: {"a": 60, "b": "y"}',
    )
    broken(
        lambda: write(root, [1, 100], ["x", "y"]),
        "p",
        "sources/m.sql:5:13: computing `p` failed: ",
        "too large",
    )


@pytest.mark.slow
@pytest.mark.proves("P25")
def test_changed_columns_are_published_with_allow_schema_change(root: Path) -> None:
    assert persist("build", "p", cwd=root).returncode == 0
    (root / "sources" / "m.sql").write_text(SQL.replace("AS a, b FROM t", "AS a FROM t"))
    assert persist("build", "p", cwd=root).returncode == 1
    done = persist("build", "p", "--allow-schema-change", cwd=root)
    assert done.returncode == 0, done.stderr
    told = json.loads(persist("show", "p", "--json", cwd=root).stdout)
    assert [c["name"] for c in told["columns"]] == ["a"]


@pytest.mark.slow
@pytest.mark.proves("P25")
def test_a_contract_violation_known_from_the_query_is_a_compile_error(root: Path) -> None:
    promising = SQL.replace("on_schema_change=fail", 'columns { a=int b="string not null" }')
    (root / "sources" / "m.sql").write_text(promising.replace("raise_error('too large')", "0"))
    for command in ("check", "build"):
        done = persist(command, cwd=root)
        assert done.returncode == 3
        assert (
            "sources/m.sql:3:13: error: the columns of `p` differ from its contract:" in done.stderr
        )
        assert "    retyped  a int → bigint" in done.stderr


@pytest.mark.slow
@pytest.mark.proves("P26")
def test_a_failed_warning_is_shown_with_a_sample_row(root: Path) -> None:
    warned = SQL.replace("{ max=50 } }", "{ max=1 } severity=warn }")
    (root / "sources" / "m.sql").write_text(warned)
    assert persist("build", "p", cwd=root).returncode == 0
    (check,) = json.loads(persist("show", "p", "--json", cwd=root).stdout)["checks"]
    assert (check["passed"], check["failed_rows"], check["blocking"]) == (False, 1, False)
    assert check["sample"] == ['{"a": 2, "b": "y"}']
    shown = persist("show", "p", cwd=root).stdout
    assert "a at most 1 (warns only)" in shown
    assert 'for example {"a": 2, "b": "y"}' in shown


@pytest.mark.slow
@pytest.mark.proves("P26")
def test_failed_checks_list_the_partitions_that_fail(root: Path) -> None:
    head = "--@ persist partition { b=[x, y, z] }\n"
    select = "CREATE VIEW p AS SELECT a, b FROM t;\n"
    empty = "row_count { min=1 per=partition severity=warn }"
    warned = f"{RAW}{head}--@ check {{ {empty} range {{ a.max=1 severity=warn }} }}\n{select}"
    (root / "sources" / "f.py").unlink()
    (root / "sources" / "m.sql").write_text(warned)
    assert persist("build", "p", cwd=root).returncode == 0
    told = json.loads(persist("show", "p", "--json", cwd=root).stdout)["checks"]
    assert [(c["name"], c["message"], c["partitions"]) for c in told] == [
        ("row_count", "0 rows in z", [{"partition": "z", "failed_rows": 0, "found": "0 rows"}]),
        ("range_a", "1 rows in y", [{"partition": "y", "failed_rows": 1, "found": None}]),
    ]
    shown = persist("show", "p", cwd=root).stdout
    assert "failed row count at least 1 in each partition (warns only): 0 rows in z" in shown
    assert "failed a at most 1 (warns only): 1 rows in y" in shown
    (root / "sources" / "m.sql").write_text(warned.replace("a.max=1 severity=warn", "a.max=1"))
    done = persist("build", "p", cwd=root)
    assert done.returncode == 1
    assert "`p` failed range_a (1 rows in y); it was not published" in done.stderr
