"""Checks that a plan shows as changed since the last build."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.core.model.checks import CheckResult
from persist_assets.planning.changed_checks import changed_checks

SQL = """CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 't';
--@ check { not_null=a }
CREATE VIEW v AS SELECT a, b FROM t;
--@ persist materialized=temporary
--@ check { not_null=b }
CREATE VIEW tmp AS SELECT a, b FROM v;
--@ persist
--@ check { unique=a expr { small='a < 3' severity=warn } }
CREATE VIEW r AS SELECT a, b FROM tmp;
--@ persist
--@ check { range.a.min=1 }
CREATE VIEW twin AS SELECT a, b FROM tmp;
"""


def result(name: str, definition: str, blocking: bool = True) -> CheckResult:
    return CheckResult(name, True, blocking, 0, definition)


@pytest.mark.proves("W23")
def test_only_added_removed_and_edited_checks_count_as_changed() -> None:
    project = compiled({"m.sql": SQL})
    r = next(s for s in project.persisted if s.name == "r")
    assert len(project.by_build_id[r.build_id]) == 2
    same = [
        result("unique_a", "a unique"),
        result("expr_small", "a < 3", blocking=False),
        result("m/twin:range_a", "a at least 0"),
        result("m/tmp:not_null_b", "b not null"),
        result("m/v:not_null_a", "a not null in m/v"),
    ]
    assert changed_checks(project, r, same) == ()
    other = [
        result("expr_small", "a < 3"),
        result("m/v:not_null_a", "b not null in m/v"),
        result("not_null_a", "a not null"),
        same[3],
    ]
    assert [(c.name, c.in_words) for c in changed_checks(project, r, other)] == [
        ("unique_a", "check added: a unique"),
        ("expr_small", "check changed: a < 3 → a < 3 (warns only)"),
        ("m/v:not_null_a", "check changed: b not null in m/v → a not null in m/v"),
        ("not_null_a", "check removed: a not null"),
    ]
