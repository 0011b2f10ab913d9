"""Columns of raw tables cannot have a DEFAULT, which Spark would use for missing values."""

from __future__ import annotations

import pytest

from persist_assets.compiler.frontends.sql import parse_sql

pytestmark = pytest.mark.proves("V44")


def test_a_default_of_a_raw_column_is_rejected() -> None:
    text = "CREATE TABLE t (id INT, n INT DEFAULT 5) USING json LOCATION 'x'"
    _, problems = parse_sql(text, "sources/a.sql", lambda _: None)
    assert [p.code for p in problems] == ["raw-default"]
    assert problems[0].message == "the column `n` of `t` has a DEFAULT, and raw tables have none"
    declarations, problems = parse_sql(text.replace(" DEFAULT 5", ""), "a.sql", lambda _: None)
    assert declarations[0].raw is not None and not problems
