"""`persist test`: input rows and expected output rows, in each language."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from commands import clean_environ, document, persist, printed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """
CREATE TABLE orders (id BIGINT, shop STRING, cents DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>)
USING delta LOCATION 'nowhere';
CREATE VIEW paid AS SELECT * FROM orders WHERE cents > 0;
--@ persist
CREATE VIEW by_shop AS
WITH recent AS (SELECT shop, cents FROM paid WHERE at >= current_date - INTERVAL 1 DAY),
  totals(shop, total) AS (SELECT shop, sum(cents) FROM recent GROUP BY shop)
SELECT shop, total, total / 3 AS third FROM totals;
--@ persist refresh=incremental merge_key=id watermark=at
CREATE VIEW latest AS SELECT id, shop, at FROM orders;
--@ persist
CREATE VIEW above AS SELECT shop FROM by_shop WHERE total > 5;
CREATE VIEW nested AS
SELECT named_struct('v', CAST('12345678901235567' AS DECIMAL(20, 2)), 'w', id) AS s FROM orders;
"""
PYTHON = """
from persist_assets import table

@table
def counted(paid):
    return paid.groupBy("shop").count()
"""
MALLOY = """
##! experimental.persistence
#@ persist
source: shops is spark.table('paid') -> { group_by: shop; aggregate: n is count() }
"""
TESTS = """
in_sql:
  source: by_shop
  clock: 2024-01-31 10:00:00
  inputs:
    orders:
      - {shop: a, cents: 1.10, at: 2024-01-30 00:00:00}
      - {shop: a, cents: 2.20, at: 2024-01-31T00:00:00, tags: [x, y]}
      - {shop: a, cents: 9, at: 2024-01-29}
      - {shop: b, cents: -1, at: 2024-01-31}
  expect: [{shop: a, total: 3.30, third: 1.1}]
  ctes:
    recent: [{shop: a, cents: 1.1}, {shop: a, cents: 2.2}]
    totals: "SELECT 'a' AS shop, 3.3 AS total"
through_a_view:
  source: by_shop
  clock: 2024-01-31
  inputs: {paid: [{shop: c, cents: 1, at: 2024-01-31}]}
  expect: [{shop: c}]
above_a_table:
  source: above
  inputs: {by_shop: [{shop: a, total: 6}, {shop: b}]}
  expect: [{shop: a}]
merged:
  source: latest
  inputs: {orders: "VALUES (1, 'old', TIMESTAMP '2024-01-01'), (1, 'new', TIMESTAMP '2024-01-02') AS t(id, shop, at)"}
  expect: [{id: 1, shop: new}]
in_structs:
  source: nested
  inputs: {orders: [{id: 1}]}
  expect: [{s: {v: 12345678901235567.00, w: 1}}]
in_python: {source: counted, inputs: {paid: [{shop: a}, {shop: a}]}, expect: [{shop: a, count: 2}]}
in_malloy: {source: shops, inputs: {orders: tests/orders.csv}, expect: [{shop: a, n: 1}]}
"""
WRONG = """
differs: {source: paid, inputs: {orders: [{id: 1, cents: 1}, {id: 2, cents: 2}]}, expect: [{id: 1}, {id: 3}]}
no_input: {source: above, inputs: {orders: []}, expect: []}
no_column: {source: paid, inputs: {orders: [{idd: 1}]}, expect: []}
no_value: {source: paid, inputs: {orders: [{id: one}]}, expect: []}
unread: {source: above, inputs: {by_shop: [], orders: []}, expect: []}
no_cte: {source: by_shop, inputs: {orders: []}, ctes: {old: []}}
no_digits: {source: by_shop, inputs: {orders: []}, expect: [{total: 1.10149}]}
no_field: {source: nested, inputs: {orders: [{id: 1}]}, expect: [{s: {v: 1, ww: 2}}]}
python_clock: {source: counted, clock: 2024-01-31, inputs: {paid: []}, expect: []}
"""


@pytest.mark.slow
@pytest.mark.proves("W5")
def test_persist_test_checks_sources_against_made_up_rows(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"a.sql": SQL, "b.py": PYTHON, "c.malloy": MALLOY})
    (root / "tests").mkdir()
    (root / "tests" / "right.yml").write_text(TESTS)
    (root / "tests" / "orders.csv").write_text("shop,cents\na,1.5\nb,\n")
    right = persist("test", "--junit", "out/right.xml", cwd=root)
    assert right.returncode == 0, right.stdout
    assert right.stdout.splitlines()[-1] == "7 tests: 7 passed"
    suite = ElementTree.parse(root / "out" / "right.xml").getroot()
    assert {k: suite.get(k) for k in ("tests", "failures", "errors")} == {
        "tests": "7",
        "failures": "0",
        "errors": "0",
    }
    (root / "tests" / "wrong.yml").write_text(WRONG)
    wrong = persist(*("test", "paid", "above", "by_shop", "counted", "nested", "--json"), cwd=root)
    assert wrong.returncode == 1
    results = {r["name"]: r for r in json.loads(wrong.stdout) if r["status"] != "passed"}
    assert {name: r["status"] for name, r in results.items()} == {
        "differs": "failed",
        **dict.fromkeys(
            (
                "no_input",
                "no_column",
                "no_field",
                "no_digits",
                "no_value",
                "unread",
                "no_cte",
                "python_clock",
            ),
            "error",
        ),
    }
    assert results["differs"]["differences"] == [
        {"of": "expect", "missing": [{"id": 3}], "unexpected": [{"id": 2}]}
    ]
    errors = {name: r["error"] for name, r in results.items()}
    assert errors["no_input"] == "`no_input` has no rows of `a/by_shop`"
    assert errors["unread"] == "`a/above` does not read `a/orders` in this test"
    assert errors["no_column"] == "`a/orders` has no column `idd`"
    assert errors["no_field"] == "`s` of `a/nested` has no field `ww`"
    assert errors["no_digits"].startswith("`total` can never be 1.10149: its type is DECIMAL(")
    assert errors["no_cte"] == "`a/by_shop` has no common table expression `old`"
    assert errors["python_clock"] == "`clock` is for SQL and Malloy"
    assert "CAST_INVALID_INPUT" in errors["no_value"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "persist_assets.operations.pytest_plugin",
    ]
    by_pytest = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests", "-k", "in_ or differs or no_column"],
        cwd=root,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "2 failed, 4 passed" in by_pytest.stdout, by_pytest.stdout
    assert "tests/wrong.yml:2:1: differs\nexpect (id):\n  - (3,)\n  + (2,)" in by_pytest.stdout
    assert "`a/orders` has no column `idd`" in by_pytest.stdout
    shown = persist("test", "paid", "--exclude", "by_shop", cwd=root).stdout
    assert "tests/wrong.yml:2:1: differs: 1 expected row is missing (-), 1 unexpected (+)" in shown


@pytest.mark.slow
@pytest.mark.proves("W5", "W3")
def test_a_recorded_test_passes(tmp_path: Path, servers: None) -> None:
    assert persist("init", cwd=tmp_path).returncode == 0
    recorded = document("test", "--record", "daily_delays", "--rows", "3", cwd=tmp_path)
    assert recorded == {"path": "tests/daily_delays.yml"}
    results = printed(persist("test", "--json", cwd=tmp_path))
    assert [(r["name"], r["status"]) for r in results] == [
        ("recorded_daily_delays", "passed"),
        ("cancelled_flights_have_no_delay", "passed"),
    ]
    again = persist("test", "--record", "daily_delays", cwd=tmp_path)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
