"""`persist explain SOURCE` on the command line: without a ledger, without data, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from commands import clean_environ, document, persist

if TYPE_CHECKING:
    from pathlib import Path

RAW = """
CREATE TABLE orders (id BIGINT, customer INT, amount DECIMAL(10,2), price DOUBLE)
USING delta LOCATION 'orders';
CREATE TABLE customers (customer INT, name STRING) USING delta LOCATION 'customers';
"""
SOURCES = """
--@ persist
CREATE VIEW totals AS
SELECT o.customer, c.name, count(*) AS n, sum(o.amount) AS amount
FROM orders o
JOIN customers c USING (customer)
GROUP BY o.customer, c.name;

--@ persist refresh=strict
CREATE VIEW best AS
SELECT * FROM totals
ORDER BY amount DESC
LIMIT 10 OFFSET 10;

CREATE VIEW prices AS SELECT customer, sum(price) AS p FROM orders GROUP BY customer;
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources" / "raw.sql").write_text(RAW)
    (tmp_path / "sources" / "s.sql").write_text(SOURCES)
    return tmp_path


@pytest.mark.proves("T11")
def test_explain_prints_the_rules_per_query_node_and_per_table(root: Path) -> None:
    done = persist("explain", "totals", cwd=root)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:7] == [
        "s/totals  sources/s.sql:3:13",
        "refresh=auto: a build computes only rows that can differ, if it expects that to take less"
        " time",
        "query",
        "  GROUP BY customer, name sources/s.sql:7",
        "    the groups of touched keys (customer, name) are computed again",
        "    a kept state merges count(*), sum(amount)",
        "    orders JOIN customers sources/s.sql:5",
    ]
    both = "merge, or without a state keys (customer, name)"
    table = [line.split("  ") for line in lines if line.startswith("raw/")]
    assert [[cell.strip() for cell in row if cell.strip()] for row in table] == [
        ["raw/orders", both, both],
        ["raw/customers", both, both],
    ]
    assert not (root / ".persist" / "ledger.db").exists()


@pytest.mark.proves("T11")
def test_an_obstacle_is_shown_with_its_line_and_a_hint(root: Path) -> None:
    done = persist("explain", "best", cwd=root)
    assert done.returncode == 0
    for line in (
        "refresh=strict: a build computes only rows that can differ, and fails if it cannot",
        "  LIMIT 10 OFFSET 10 sources/s.sql:13",
        "    no rule because of a LIMIT with an OFFSET",
        "    hint: leave the LIMIT to the readers of the table, or rank the rows within a key",
    ):
        assert line in done.stdout.splitlines()
    checked = persist("check", cwd=root)
    assert (
        "sources/s.sql:13:7: warning: with refresh=strict, only the first build of `best`"
        in checked.stderr
    )


def test_a_source_that_is_not_persisted_is_explained_too(root: Path) -> None:
    done = persist("explain", "prices", cwd=root)
    assert done.stdout.splitlines()[1] == "not persisted"
    assert "    sum() of double cannot be merged exactly" in done.stdout.splitlines()


@pytest.mark.proves("T11")
def test_the_json_document_contains_state_nodes_and_rules(root: Path) -> None:
    best = document("explain", "s/best", cwd=root)
    assert (best["partition_ref"], best["available"]) == ("s/best", False)
    assert (best["wants"], best["build"], best["costs"], best["stages"]) == ([], None, [], [])
    assert (best["refresh"], best["never"]) == ("strict", None)
    (node,) = best["nodes"]
    assert (node["node"], node["obstacle"], node["path"], node["line"]) == (
        "LIMIT 10 OFFSET 10",
        "of a LIMIT with an OFFSET",
        "sources/s.sql",
        13,
    )
    (table,) = best["tables"]
    assert table["source_id"] == "totals@sources/s.sql"
    why = "there is no rule because of a LIMIT with an OFFSET (sources/s.sql:13)"
    assert (table["rows_added"]["maintenance"], table["rows_added"]["why"]) == ("whole", why)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("total", "unknown source `total`", "did you mean `totals`?"),
        ("orders", "`orders` is raw data: no build computes it", "explain a source that reads it"),
    ],
)
def test_unknown_sources_and_raw_tables_cannot_be_explained(
    root: Path, name: str, message: str, hint: str
) -> None:
    done = persist("explain", name, "--json", cwd=root)
    assert done.returncode == 4
    error = json.loads(done.stdout)["error"]
    assert error["message"] == message
    assert error["hint"].startswith(hint)


def test_explain_fails_only_on_errors_of_the_explained_source(root: Path) -> None:
    (root / "sources" / "z.sql").write_text(
        "--@ persist\nCREATE VIEW bad AS SELECT nope FROM orders"
    )
    assert persist("explain", "totals", cwd=root).returncode == 0
    done = persist("explain", "bad", cwd=root)
    assert done.returncode == 3
    assert "nope" in done.stderr


def test_explain_prints_the_rules_without_a_reachable_ledger(root: Path) -> None:
    (root / "persist.toml").write_text('ledger = "postgresql://127.0.0.1:1/none"\n')
    done = persist("explain", "totals", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "builds are not shown, since the ledger does not answer" in done.stderr
    assert "GROUP BY customer, name sources/s.sql:7" in done.stdout


def test_explain_imports_neither_spark_nor_dagster(root: Path) -> None:
    script = (
        "import sys; sys.argv = ['persist', 'explain', 'totals']\n"
        "from persist_assets.cli import main\n"
        "try: main()\n"
        "finally: print([m for m in ('pyspark', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
