"""Functions by key: which changes touch which keys, and how builds of them are planned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import compilation_of
from test_planner import built, plan

from persist_assets.compiler.programs import with_programs
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.compiler.state import Memory
from persist_assets.core.model.columns import Column
from persist_assets.core.model.deltas import NoRule, Program
from persist_assets.core.model.plans import Change, Piece
from persist_assets.core.model.snapshots import Cost
from persist_assets.planning.costs import estimate

if TYPE_CHECKING:
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.planning.world import World

RAW = """
CREATE TABLE orders (customer_id INT, amount INT, note STRING) USING delta LOCATION 'o';
CREATE TABLE customers (name STRING, customer_id INT) USING delta LOCATION 'c';
CREATE TABLE rates (rate INT) USING delta LOCATION 'r';
CREATE TABLE parts (customer_id INT, part INT) USING parquet LOCATION 'p';
CREATE VIEW large AS SELECT amount, customer_id FROM orders WHERE amount > 10;
CREATE VIEW sums AS SELECT customer_id, sum(amount) AS s FROM orders GROUP BY customer_id;
CREATE VIEW notes AS SELECT note, max(customer_id) AS customer_id FROM orders GROUP BY note;
CREATE VIEW few AS SELECT customer_id FROM orders LIMIT 5;
CREATE VIEW top AS SELECT customer_id, amount FROM orders ORDER BY amount, customer_id LIMIT 5;
CREATE VIEW paid AS SELECT o.* FROM orders o JOIN parts p ON p.customer_id = o.customer_id;
CREATE VIEW known AS SELECT c.* FROM customers c JOIN parts p ON p.customer_id = c.customer_id;
CREATE VIEW least AS SELECT * FROM orders WHERE amount > (SELECT min(rate) FROM rates);
"""
HEAD = "from persist_assets import incremental_table, model, table\n\n\n"
TABLE = 'table(by="customer_id")'
ORDERS, CUSTOMERS, RATES = (f"{n}@sources/r.sql" for n in ("orders", "customers", "rates"))
GREW = Change(added=(Piece("o/1.parquet", bytes=100),), total_bytes=10**6)
REPLACED = Change(added=GREW.added, lost=(Piece("o/0.parquet", bytes=100),), total_bytes=10**6)


def project_of(
    inputs: str, decorator: str = TABLE, body: str = "return orders", more: str = ""
) -> Project:
    text = f"{HEAD}{more}@{decorator}\ndef f({inputs}):\n    {body}\n"
    memory = Memory(parse=lambda path, _: FRONTENDS[".sql"](RAW, path, lambda _: None)[0])
    compilation = compilation_of({"r.sql": RAW, "f.py": text}, memory=memory)
    assert not compilation.project.errors
    return with_programs(compilation.project, compilation)


def program_of(project: Project, *changed: str, grown: bool = False) -> Program:
    tables = frozenset(f"{name}@sources/r.sql" for name in changed)
    program = project.program("f@sources/f.py", tables, tables if grown else frozenset())
    assert program is not None
    return program


def after(project: Project, world: World | None = None, **changes: Change | None) -> World:
    """Return a world in which `f` was built slowly, and some of its inputs changed since then."""
    f = project.by_id["f@sources/f.py"]
    every = {s.source_id: Change() for s in project.inputs(f)}
    every |= {f"{name}@sources/r.sql": change for name, change in changes.items()}
    world = world or built(project)
    world = replace(world, versions=dict.fromkeys(world.versions, "files:2"))
    costs = {f.build_id: (Cost("whole", 100.0, 10, 100),)}
    return replace(world, changes={f.source_id: every}, costs=costs)


def step_of(project: Project, world: World) -> Step:
    return plan(project, ["f@sources/f.py"], world).steps[0]


@pytest.mark.proves("T10")
def test_inputs_that_join_the_same_table_search_it_for_the_keys_of_each() -> None:
    program = program_of(project_of("paid, known"), "orders", "customers", "parts")
    (probe,) = (p for p in program.probes.values() if p.table.startswith("parts") and p.origins)
    assert {table for table, _ in probe.origins} >= {ORDERS, CUSTOMERS}
    for table in (ORDERS, CUSTOMERS):
        assert table in program.held[probe.keys]
    assert program.keys is not None
    assert program.held[program.keys].count(" UNION SELECT DISTINCT ") == 1  # of both inputs


@pytest.mark.proves("T10")
@pytest.mark.parametrize("decorator", [TABLE, 'table(by="customer_id", refresh="strict")'])
def test_only_touched_keys_are_computed(decorator: str) -> None:
    project = project_of("orders, customers, rates", decorator)
    step = step_of(project, after(project, orders=REPLACED))
    why = "only rows of customer_id values that changed in orders are computed"
    assert (step.maintenance, step.why) == ("keys", why)
    assert step.increment is not None
    assert {*step.increment.changes} == {ORDERS}


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rates": GREW}, "it gets rates without customer_id, and rates changed"),
        ({"orders": GREW, "rates": GREW}, "it gets rates without customer_id, and rates changed"),
        ({"orders": None}, "the changes in orders are unknown"),
        (
            {"parts": REPLACED},
            "rows of parts changed or were removed, and its files keep no earlier version",
        ),
    ],
)
@pytest.mark.parametrize("refresh", ["auto", "incremental"])
def test_a_plan_says_why_all_keys_are_computed(
    changes: dict[str, Change | None], why: str, refresh: str
) -> None:
    decorator = f'table(by="customer_id", refresh="{refresh}")'
    project = project_of("orders, rates, parts", decorator)
    step = step_of(project, after(project, **changes))
    assert (step.maintenance, step.why, step.increment) == ("whole", why, None)


@pytest.mark.proves("T10")
def test_strict_refresh_rejects_changes_that_touch_all_keys() -> None:
    project = project_of("orders, rates", 'table(by="customer_id", refresh="strict")')
    step = step_of(project, after(project, rates=GREW))
    assert "strict" in {reason.code for reason in step.reasons}


def test_a_function_without_keys_is_computed_as_a_whole() -> None:
    project = project_of("orders", "table")
    step = step_of(project, after(project, orders=GREW))
    assert (step.maintenance, step.why) == ("whole", "it is computed by a function without `by`")


@pytest.mark.proves("T10")
def test_costs_decide_whether_only_touched_keys_are_computed() -> None:
    project = project_of("orders, customers")
    world = after(project, orders=REPLACED)
    quick = replace(world, costs={b: (Cost("whole", 0.2, 10, 100),) for b in world.costs})
    assert step_of(project, quick).maintenance == "whole"
    much = replace(REPLACED, lost=(Piece("o/0.parquet", bytes=10**12),))
    step = step_of(project, after(project, orders=much))
    assert (step.maintenance, "computing all rows takes 100.0 s" in step.why) == ("whole", True)


def test_searching_a_table_for_keys_costs_its_size() -> None:
    project = project_of("orders, customers")
    base = built(project).manifest[project.by_id["f@sources/f.py"].build_id]
    program, changes = program_of(project, "orders"), {ORDERS: REPLACED}
    assert len(program.held) == 1
    small = estimate(program, base, changes, ()).delta_s
    changes = {ORDERS: replace(REPLACED, total_bytes=REPLACED.total_bytes + 10**9)}
    assert estimate(program, base, changes, ()).delta_s == pytest.approx(small + 1)


@pytest.mark.proves("T10")
def test_keys_are_compared_only_if_their_types_are_equal() -> None:
    project = project_of("orders, rates")
    f = project.by_id["f@sources/f.py"]
    world = built(project)
    for kind, method in (("int", "keys"), ("string", "whole")):
        columns = (Column("CUSTOMER_ID", kind), Column("n", "bigint"))
        base = replace(world.manifest[f.build_id], columns=columns)
        built_so = replace(world, manifest={**world.manifest, f.build_id: base})
        step = step_of(project, after(project, built_so, orders=GREW))
        assert step.maintenance == method
    why = "its keys cannot be compared: `customer_id` is int in orders and string in its table"
    assert step.why == why


# ---------------------------------------------------------------------------------- touched keys


def test_touched_keys_come_from_all_changed_inputs() -> None:
    program = program_of(project_of("orders, customers"), "orders", "customers")
    assert program.keys is not None
    assert program.held == {
        program.keys: f"SELECT DISTINCT c0 AS c0 FROM `delta:{ORDERS}`"
        f" UNION SELECT DISTINCT c1 AS c0 FROM `delta:{CUSTOMERS}`"
    }
    assert {p.table: p.columns for p in program.probes.values()} == {
        ORDERS: ((0, "customer_id"),),
        CUSTOMERS: ((1, "customer_id"),),
    }


def test_only_changes_of_selected_columns_count() -> None:
    body = 'return orders.select("customer_id", "amount")'
    program = program_of(project_of("orders", body=body), "orders")
    assert program.columns == {ORDERS: ((0, "customer_id"), (1, "amount"))}


@pytest.mark.proves("T10")
def test_changes_of_an_input_without_the_key_column_have_no_rule() -> None:
    body = 'return customers.crossJoin(orders.select("amount"))'
    project = project_of("orders, customers", body=body)
    assert {p.table for p in program_of(project, "customers").probes.values()} == {CUSTOMERS}
    with pytest.raises(NoRule, match="it gets orders without customer_id, and orders changed"):
        program_of(project, "orders")


@pytest.mark.proves("T10")
@pytest.mark.parametrize("view", ["large", "sums"])
def test_touched_keys_are_found_through_views(view: str) -> None:
    project = project_of(f"{view}, rates", body=f"return {view}")
    program = program_of(project, "orders")
    last = [*program.held][-1]
    assert last == program.keys
    assert program.held[last].startswith("SELECT DISTINCT c")
    assert program.columns[ORDERS] == ((0, "customer_id"), (1, "amount"))
    step = step_of(project, after(project, orders=GREW))
    assert step.maintenance == "keys"


@pytest.mark.proves("T10", "T24")
def test_a_function_reads_all_rows_if_a_value_that_the_rows_of_its_input_share_changes() -> None:
    project = project_of("least", body="return least")
    for changed in (["orders"], ["rates"], ["orders", "rates"]):
        program = program_of(project, *changed)
        values = [name for name in program.held if name.startswith("value:")]
        assert [*program.changed_values] == values
        assert len(values) == ("rates" in changed)
    assert program_of(project, "rates").keys is not None


@pytest.mark.parametrize(
    ("inputs", "more", "why"),
    [
        ("few", "", "it reads few, and the change of few is unknown because of a LIMIT"),
        ("top", "", "it reads top, and the change of top is unknown because of a LIMIT"),
        ("notes", "", "it reads notes, whose changed rows are known by other columns"),
        (
            "m",
            "@model\ndef m(orders):\n    return orders\n\n",
            "it reads m, which changed and whose columns are unknown",
        ),
        (
            "t",
            "@table\ndef t(orders):\n    return orders\n\n",
            "it reads t, which changed and whose columns are unknown",
        ),
    ],
)
def test_inputs_with_unknown_changed_keys_have_no_rule(inputs: str, more: str, why: str) -> None:
    project = project_of(inputs, body=f"return {inputs}", more=more)
    changed = "t@sources/f.py" if inputs == "t" else ORDERS
    with pytest.raises(NoRule, match=why):
        project.program("f@sources/f.py", frozenset((changed,)), frozenset())


@pytest.mark.proves("T10")
def test_a_contract_provides_the_columns_of_a_function() -> None:
    columns = '{"n": "int", "customer_id": "int"}'
    more = f"@table(columns={columns})\ndef t(orders):\n    return orders\n\n"
    project = project_of("t", body="return t", more=more)
    program = project.program("f@sources/f.py", frozenset(("t@sources/f.py",)), frozenset())
    assert program is not None
    assert program.columns == {"t@sources/f.py": ((0, "n"), (1, "customer_id"))}
    assert [*program.held.values()] == ["SELECT DISTINCT c1 AS c0 FROM `delta:t@sources/f.py`"]
