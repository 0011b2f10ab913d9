"""Filters pushed to PostgreSQL: only conditions that it evaluates exactly as Spark does."""

from __future__ import annotations

import pytest

from persist_assets.external.connectors.postgres_columns import PostgresColumn
from persist_assets.external.connectors.postgres_filters import Filters

COLUMNS = [
    PostgresColumn("id", "bigint", "int8", "bigint"),
    PostgresColumn("n", "decimal(10,2)", "numeric", "numeric(10,2)"),
    PostgresColumn("x", "double", "float8", "double precision"),
    PostgresColumn("ok", "boolean", "bool", "boolean"),
    PostgresColumn("s", "string", "text", "text"),
    PostgresColumn("other", "string", "text", "text", is_plain=False),
    PostgresColumn("d", "date", "date", "date"),
    PostgresColumn("ts", "timestamp", "timestamptz", "timestamp with time zone"),
    PostgresColumn("local", "timestamp_ntz", "timestamp", "timestamp without time zone"),
    PostgresColumn("i", None, "interval", "interval"),
    PostgresColumn("a b", "int", "int4", "integer"),
]


def pushed(condition: str) -> str | None:
    columns = {c.name.lower(): c for c in COLUMNS}
    filters = Filters(columns, lambda name: f'"{name}"', lambda text: f"'{text}'")
    return filters.pushed(condition)


@pytest.mark.proves("V14")
@pytest.mark.parametrize(
    ("condition", "there"),
    [
        ("id >= -5", '("id" >= -5)'),
        ("id IN (1, 2)", '("id" IN (1, 2))'),
        ("id NOT IN (1, 2)", '(NOT ("id" IN (1, 2)))'),
        ("`a b` <> 3", '("a b" <> 3)'),
        ("ok = FALSE", '("ok" = FALSE)'),
        ("s = 'x'", "(\"s\" = 'x')"),
        ("s IN ('x', 'y')", "(\"s\" IN ('x', 'y'))"),
        ("other IS NOT NULL", '(NOT ("other" IS NULL))'),
        ("x IS NULL", '("x" IS NULL)'),
        ("d < DATE '2024-02-29'", "(\"d\" < date '2024-02-29')"),
        (
            "ts > TIMESTAMP '2024-01-01 00:00:00+01:00'",
            "(\"ts\" > timestamptz '2024-01-01 00:00:00+01:00')",
        ),
        (
            "local = TIMESTAMP_NTZ '2024-01-01 00:00:00.5'",
            "(\"local\" = timestamp '2024-01-01 00:00:00.5')",
        ),
        ("id > 1 AND x > 2", '("id" > 1)'),
        ("(id > 1 AND x > 2) OR s = 'x'", '(("id" > 1) OR ("s" = \'x\'))'),
        # Conditions that PostgreSQL may evaluate differently:
        ("id > 1 OR x > 2", None),
        ("NOT (id > 1 AND x > 2)", None),
        ("x = 1.5", None),
        ("n = 1.5", None),
        ("id = 1.5", None),
        ("id = '5'", None),
        ("id = 1e3", None),
        ("id = 99999999999999999999", None),
        ("s < 'x'", None),
        ("s LIKE 'x%'", None),
        ("other = 'x'", None),
        (r"s = 'a\nb'", None),
        ("s = r'a'", None),
        ("ok > FALSE", None),
        ("d < '2024-02-29'", None),
        ("d < DATE '2023-02-29'", None),
        ("d < TIMESTAMP '2024-02-29 00:00:00+00:00'", None),
        ("ts > TIMESTAMP '2024-01-01 00:00:00'", None),
        ("ts > DATE '2024-01-01'", None),
        ("local = TIMESTAMP '2024-01-01 00:00:00+00:00'", None),
        ("i IS NULL", None),
        ("t.id = 1", None),
        ("unknown = 1", None),
        ("id = id", None),
        ("id + 1 = 2", None),
        ("id <=> 1", None),
        ("id = 1 = ok", None),
    ],
)
def test_a_condition_is_pushed_only_if_it_means_the_same(condition: str, there: str | None) -> None:
    assert pushed(condition) == there
