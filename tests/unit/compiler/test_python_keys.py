"""Key columns (`by`) of Python functions: which are valid, and which are rejected."""

from __future__ import annotations

import pytest
from conftest import compiled

RAW = """
CREATE TABLE orders (customer_id INT, amount INT) USING delta LOCATION 'o';
CREATE TABLE rates (rate INT) USING delta LOCATION 'r';
CREATE TABLE maps (m MAP<INT, INT>) USING delta LOCATION 'm';
CREATE TABLE named (customer_id STRING, name STRING) USING delta LOCATION 'n';
"""
HEAD = "from persist_assets import incremental_table, model, table\n\n\n"


def problems_of(
    decorator: str, inputs: str = "orders", body: str = "return orders"
) -> list[tuple[str, str, str | None]]:
    text = f"{HEAD}@{decorator}\ndef f({inputs}):\n    {body}\n"
    problems = compiled({"r.sql": RAW, "f.py": text}).problems
    assert {(p.location.path, p.location.line) for p in problems} <= {("sources/f.py", 4)}
    return [(p.severity, p.message, p.hint) for p in problems]


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("decorator", "inputs"),
    [
        ('table(by="customer_id")', "orders"),
        ('table(by=["AMOUNT", "customer_id"], refresh="strict")', "orders, rates"),
        ('table(by="customer_id", refresh="whole")', "orders"),
        ('table(by="customer_id", columns={"customer_id": "int", "s": "bigint"})', "orders"),
        ('table(by="customer_id", columns={"s": "bigint", "*": True})', "orders"),
        ('incremental_table(by="customer_id", watermark="amount")', "orders"),
    ],
)
def test_keys_are_columns_of_an_input(decorator: str, inputs: str) -> None:
    assert problems_of(decorator, inputs) == []


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("decorator", "inputs", "body", "message", "hint"),
    [
        (
            'table(by="customer_di")',
            "orders",
            "return orders",
            "no input of `f` has a column `customer_di`",
            "did you mean `customer_id`?",
        ),
        (
            'table(by="customer_id")',
            "rates",
            "return rates",
            "no input of `f` has a column `customer_id`",
            "known columns: rate",
        ),
        (
            'table(by="customer_id")',
            "orders",
            'return orders.select("amount")',
            "`f` does not select `customer_id` from any input",
            "add it to a .select(…) of the function",
        ),
        (
            'table(by=["rate", "amount"])',
            "orders, rates",
            "return orders",
            "no input of `f` has all of rate, amount",
            "name columns that one input has together",
        ),
        (
            'table(by="customer_id", columns={"customer": "int"})',
            "orders",
            "return orders",
            "`customer_id` is not a column of `f`",
            "did you mean `customer`?",
        ),
        (
            'table(by="customer_id")',
            "orders, named",
            "return orders",
            "keys of `f` cannot be compared: `customer_id` is int in orders and string in named",
            "cast it before, or remove by",
        ),
        (
            'table(by="customer_id", columns={"customer_id": "bigint"})',
            "orders",
            "return orders",
            "keys of `f` cannot be compared: `customer_id` is int in orders and bigint in its contract",
            "cast it before, or remove by",
        ),
        (
            'table(by="m")',
            "maps",
            "return maps",
            "keys of `f` cannot be compared: `m` is map<int,int> in maps",
            "cast it before, or remove by",
        ),
        (
            "table(by=5)",
            "orders",
            "return orders",
            "`by` must be a string",
            'put it in quotes: by="…"',
        ),
        (
            'model(by="customer_id")',
            "orders",
            "return orders",
            "`by` has no effect on a source that is not persisted",
            "add persist to its annotation",
        ),
    ],
)
def test_invalid_keys_are_reported_with_their_location(
    decorator: str, inputs: str, body: str, message: str, hint: str
) -> None:
    assert problems_of(decorator, inputs, body) == [("error", message, hint)]


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ('merge_key="customer_id"', "merge_key"),
        ('refresh="snapshot", key="customer_id"', "refresh=snapshot"),
        ('refresh="strict", watermark="amount", assume="exact"', "assume"),
        ('partition="daily", time_column="day", start="2024-01-01"', "partition"),
    ],
)
@pytest.mark.proves("T10")
def test_keys_cannot_be_combined_with_other_maintenance_options(keys: str, other: str) -> None:
    message = f"`by` cannot be combined with `{other}`, which decides what a build computes"
    expected = ("error", message, "remove one of them")
    assert problems_of(f'table(by="customer_id", {keys})') == [expected]


def test_keys_of_a_query_are_an_error() -> None:
    (problem,) = compiled(
        {"r.sql": f"{RAW}--@ persist by=customer_id\nCREATE VIEW v AS SELECT * FROM orders;"}
    ).errors
    assert problem.message.startswith("`by` has no effect on a query")
    assert (problem.location.line, problem.location.column) == (6, 13)


@pytest.mark.parametrize("refresh", ["auto", "incremental"])
def test_keys_of_a_nondeterministic_function_have_no_effect(refresh: str) -> None:
    text = f"{HEAD}@table(by='customer_id', refresh='{refresh}')\ndef f(orders):\n    return orders.sample(0.5)\n"
    messages = [p.message for p in compiled({"r.sql": RAW, "f.py": text}).problems]
    message = "`by` has no effect: it is nondeterministic"
    if refresh == "incremental":
        message = "every build of `f` computes all rows: it is nondeterministic"
    assert message in messages


@pytest.mark.proves("T10")
def test_keys_do_not_change_the_build_id() -> None:
    ids = {
        next(s for s in compiled({"r.sql": RAW, "f.py": text}).sources if s.name == "f").build_id
        for text in (
            f"{HEAD}@table\ndef f(orders):\n    return orders\n",
            f"{HEAD}@table(by='customer_id')\ndef f(orders):\n    return orders\n",
            f"{HEAD}#@ persist by=[customer_id, amount]\ndef f(orders):\n    return orders\n",
        )
    }
    assert len(ids) == 1
