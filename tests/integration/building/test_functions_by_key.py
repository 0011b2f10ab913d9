"""Functions with `by`: only rows of changed keys are computed; the table equals a full build."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from persist_assets.core.errors import BuildError, NotIncrementalError
from persist_assets.operations.verify import Verification, verify

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.sources import Source

RAW = """
CREATE TABLE orders (customer_id INT, amount INT) USING delta LOCATION 'raw/orders';
CREATE TABLE customers (name STRING, customer_id INT) USING delta LOCATION 'raw/customers';
CREATE TABLE rates (rate INT) USING delta LOCATION 'raw/rates';
CREATE TABLE visits (customer_id INT, n INT) USING delta LOCATION 'raw/visits';
CREATE VIEW large AS SELECT amount, customer_id FROM orders WHERE amount > 1;
CREATE VIEW paid AS SELECT o.*, v.n FROM orders o JOIN visits v ON v.customer_id = o.customer_id;
CREATE VIEW known AS SELECT c.*, v.n FROM customers c JOIN visits v USING (customer_id);
"""
HEAD = """
from persist_assets import incremental_table, model, table
from pyspark.sql import functions as F

"""
TOTALS = """
@incremental_table(by="customer_id")
def totals(orders, customers, rates):
    sums = orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
    named = sums.join(customers, sums.customer_id.eqNullSafe(customers.customer_id), "left")
    named = named.select(sums.customer_id, "name", "total", F.lit(orders.count()).alias("seen"))
    return named.crossJoin(rates)
"""
"""Its column `seen` is the number of orders that the call got: it differs by call, on purpose."""
SCHEMAS = {
    "orders": pa.schema([("customer_id", pa.int32()), ("amount", pa.int32())]),
    "customers": pa.schema([("name", pa.string()), ("customer_id", pa.int32())]),
    "rates": pa.schema([("rate", pa.int32())]),
    "visits": pa.schema([("customer_id", pa.int32()), ("n", pa.int32())]),
}
ORDERS = ((1, 10), (1, 20), (2, 5), (3, 7), (None, 4))
Rows = list[tuple[Any, ...]]


class Lab:
    """A project whose raw data changes, and whose functions are built and verified."""

    def __init__(self, root: Path, enter: Callable[..., Builder]) -> None:
        self.root, self.enter = root, enter
        self.put("orders", *ORDERS)
        self.put("customers", ("a", 1), ("b", 2), ("n", None))
        self.put("rates", (2,))
        self.put("visits", (1, 5), (2, 5), (3, 5))

    def put(self, table: str, *rows: tuple[Any, ...], mode: Any = "append") -> None:
        schema = SCHEMAS[table]
        names = schema.names
        data = pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows], schema)
        write_deltalake(str(self.root / "raw" / table), data, mode=mode)

    def delta(self, table: str) -> DeltaTable:
        return DeltaTable(self.root / "raw" / table)

    def edit(self, text: str) -> None:
        (self.root / "sources" / "f.py").write_text(HEAD + text)

    def build(self, name: str) -> tuple[PendingBuild, Rows]:
        """Return a build in a new run, and the rows of its table."""
        builder = self.enter(self.root)
        with builder.work(named(builder, name)) as work:
            snapshot = builder.publish(work)
        rows = builder.reader.load_snapshot(snapshot).collect()
        builder.close()
        return work, sorted((tuple(r) for r in rows), key=repr)

    def verify(self, name: str) -> Verification:
        builder = self.enter(self.root)
        ids = [named(builder, name).source_id]
        (result,) = verify(builder.settings, builder.project, builder.ledger, builder.engine, ids)
        builder.close()
        return result


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Callable[[str], Lab]:
    def lab(text: str) -> Lab:
        return Lab(make_project({"r.sql": RAW, "f.py": HEAD + text}), enter)

    return lab


def method(work: PendingBuild) -> str:
    """Return the planned and the actual method of a build, or `reused` if no row differs."""
    is_reused = work.build.action == "reused"
    return f"{work.step.maintenance}, {'reused' if is_reused else work.build.maintenance}"


@pytest.mark.slow
@pytest.mark.proves("T10")
def test_the_function_gets_and_replaces_the_rows_of_touched_keys(
    make: Callable[[str], Lab],
) -> None:
    lab = make(TOTALS)
    work, rows = lab.build("totals")
    first = [(1, "a", 30, 5, 2), (2, "b", 5, 5, 2), (3, None, 7, 5, 2), (None, "n", 4, 5, 2)]
    assert (method(work), rows) == ("whole, whole", first)

    lab.put("orders", (2, 1), (4, 9))
    work, rows = lab.build("totals")
    assert method(work) == "keys, keys"
    why = "only rows of customer_id values that changed in orders are computed"
    assert work.step.why == why
    assert work.build.effort is not None
    assert work.build.effort.keys_touched == 2
    two, four = (2, "b", 6, 3, 2), (4, None, 9, 3, 2)
    assert rows == [first[0], two, first[2], four, first[3]]

    # An update also rewrites rows of other keys: they are equal, so these keys are not touched.
    lab.delta("orders").update(updates={"amount": "8"}, predicate="customer_id = 3")
    work, rows = lab.build("totals")
    three = (3, None, 8, 1, 2)
    assert (method(work), rows) == ("keys, keys", [first[0], two, three, four, first[3]])

    # All rows of a key are deleted; NULL is a key like any other.
    lab.delta("orders").delete("customer_id = 4")
    lab.put("orders", (None, 1))
    work, rows = lab.build("totals")
    null = (None, "n", 5, 2, 2)
    assert (method(work), rows) == ("keys, keys", [first[0], two, three, null])
    lab.delta("orders").delete("customer_id IS NULL")
    assert lab.build("totals")[1] == [first[0], two, three]

    # Another input with the key column changes.
    lab.put("customers", ("c", 3))
    work, rows = lab.build("totals")
    assert (method(work), rows) == ("keys, keys", [first[0], two, (3, "c", 8, 1, 2)])

    # Files are rewritten, but no row differs.
    before = rows
    lab.delta("orders").update(updates={"amount": "8"}, predicate="customer_id = 3")
    work, rows = lab.build("totals")
    assert (method(work), rows) == ("keys, reused", before)
    # The time to detect this is recorded for the estimates of later plans.
    assert work.build.maintenance == "keys"
    assert work.build.effort is not None
    assert work.build.effort.seconds_by_size is not None

    # A changed input without the key column touches all rows.
    lab.put("rates", (3,), mode="overwrite")
    work, rows = lab.build("totals")
    why = "it gets rates without customer_id, and rates changed"
    assert (method(work), work.step.why) == ("whole, whole", why)
    assert rows == [(1, "a", 30, 5, 3), (2, "b", 6, 5, 3), (3, "c", 8, 5, 3)]
    assert lab.verify("totals").status == "equal"


BETWEEN = """
@table(by="customer_id", refresh="strict", columns={"customer_id": "int", "n": "bigint"})
def counts(large):
    return large.groupBy("customer_id").agg(F.count("*").alias("n"))

@model
def renamed(customers):
    return customers.withColumnRenamed("name", "title")

@table(by=["N", "CUSTOMER_ID"], refresh="strict")
def doubled(counts, renamed):
    pairs = counts.select("*", (counts.n * 2).alias("twice"))
    return pairs.crossJoin(renamed.select(F.count("*").alias("titles")))
"""


@pytest.mark.slow
@pytest.mark.proves("T10")
def test_keys_are_followed_through_views_and_tables_of_functions(
    make: Callable[[str], Lab],
) -> None:
    lab = make(BETWEEN)
    lab.build("counts")
    assert lab.build("doubled")[1][0] == (1, 2, 4, 3)
    lab.put("orders", (1, 1), (2, 50), (3, 1))
    work, rows = lab.build("counts")
    assert (method(work), rows) == ("keys, keys", [(1, 2), (2, 2), (3, 1), (None, 1)])
    work, rows = lab.build("doubled")
    expected = [(1, 2, 4, 3), (2, 2, 4, 3), (3, 1, 2, 3), (None, 1, 2, 3)]
    assert (method(work), rows) == ("keys, keys", expected)
    assert [lab.verify(name).status for name in ("counts", "doubled")] == ["equal", "equal"]


JOINED = """
@table(by="customer_id", refresh="strict")
def joined(paid, known):
    sums = paid.groupBy("customer_id").agg(F.sum("amount").alias("total"))
    return sums.join(known, "customer_id", "full")
"""


@pytest.mark.slow
@pytest.mark.proves("T10")
def test_keys_of_each_input_are_followed_if_inputs_join_the_same_table(
    make: Callable[[str], Lab],
) -> None:
    lab = make(JOINED)
    lab.build("joined")
    lab.delta("orders").update({"amount": "amount + 1"}, predicate="customer_id = 1")
    lab.delta("customers").update({"name": "'z'"}, predicate="customer_id = 2")
    lab.delta("visits").update({"n": "6"}, predicate="customer_id = 3")
    work, rows = lab.build("joined")
    assert method(work) == "keys, keys"
    assert rows == [(1, 32, "a", 5), (2, 5, "z", 5), (3, 7, None, None)]
    assert lab.verify("joined").status == "equal"


LIES = """
@table(by="customer_id", refresh="{}")
def lies(orders):
    sums = orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
    first = orders.select((F.col("customer_id") + 100).alias("customer_id"), "amount")
    return sums.unionByName(first.withColumnRenamed("amount", "total"), True)
"""


@pytest.mark.slow
@pytest.mark.proves("T10")
def test_a_returned_row_of_another_key_disproves_by_and_forces_a_full_build(
    make: Callable[[str], Lab], caplog: pytest.LogCaptureFixture
) -> None:
    lab = make(LIES.format("incremental"))
    lab.build("lies")
    lab.put("orders", (2, 1))
    with caplog.at_level(logging.WARNING):
        work, rows = lab.build("lies")
    assert (method(work), len(rows)) == ("keys, whole", 10)
    assert (102, 1) in rows
    (warning,) = (r.getMessage() for r in caplog.records if "in full" in r.getMessage())
    assert warning == (
        "`f/lies` is computed in full: `by=customer_id` is wrong: called with the keys that"
        ' changed, `lies` returned a row of another key, {"customer_id":102}'
    )
    assert lab.verify("lies").status == "equal"

    # With refresh=strict, readers keep the current table.
    lab.edit(LIES.format("strict"))
    lab.put("orders", (3, 1))
    with pytest.raises(NotIncrementalError, match="`by=customer_id` is wrong"):
        lab.build("lies")
    snapshot = work.snapshot
    assert snapshot is not None
    builder = lab.enter(lab.root)
    assert builder.reader.read(named(builder, "lies")).count() == 10


SHARES = """
@incremental_table(by="customer_id")
def shares(orders):
    total = orders.agg(F.sum("amount").alias("total"))
    sums = orders.groupBy("customer_id").agg(F.sum("amount").alias("amount"))
    return sums.crossJoin(total)
"""


@pytest.mark.slow
@pytest.mark.proves("T10")
def test_verify_reports_that_by_may_be_wrong(make: Callable[[str], Lab]) -> None:
    lab = make(SHARES)
    lab.build("shares")
    assert lab.verify("shares").status == "equal"
    lab.put("orders", (2, 1))
    assert method(lab.build("shares")[0]) == "keys, keys"
    result = lab.verify("shares")
    assert result.status == "different"
    assert result.reason == (
        "by=customer_id may be wrong: rows of a key depend on more than the rows with this key"
    )
    assert result.hint == ("remove by, and compute all rows: persist build f/shares --full-refresh")


OTHERS = """
@model
def texts(customers):
    return customers.withColumn("customer_id", F.col("customer_id").cast("string"))

@incremental_table(by="customer_id")
def typed(orders, texts):
    return orders.groupBy("customer_id").agg(F.count("*").alias("n"))

@incremental_table(by="customer_id")
def pivoted(orders):
    return orders.groupBy("customer_id").pivot("amount").count()

@incremental_table(by="customer_id")
def lost(orders):
    return orders.select(F.col("customer_id").alias("customer"))
"""


@pytest.mark.slow
@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "typed",
            "its keys cannot be compared: `customer_id` is int in orders and string in texts",
        ),
        ("pivoted", "its columns differ from those of its table: `4` is gone; "),
    ],
)
def test_a_build_that_cannot_use_keys_computes_everything_with_a_warning(
    make: Callable[[str], Lab], caplog: pytest.LogCaptureFixture, name: str, why: str
) -> None:
    lab = make(OTHERS)
    lab.build(name)
    lab.put("orders", (2, 1))
    with caplog.at_level(logging.WARNING):
        work, _ = lab.build(name)
    assert method(work) == "keys, whole"
    assert any(f"`f/{name}` is computed in full: {why}" in r.getMessage() for r in caplog.records)
    assert lab.verify(name).status == "equal"


def test_a_function_must_return_its_key_columns(make: Callable[[str], Lab]) -> None:
    lab = make(OTHERS)
    with pytest.raises(BuildError, match="`customer_id` is not a column of `lost`") as error:
        lab.build("lost")
    assert error.value.location is not None
    text = (lab.root / "sources" / "f.py").read_text().splitlines()
    assert text[error.value.location.line].startswith("def lost")
