"""Aggregates that are merged with their change: a state of partial results, and its change. Pure.

    rows that came and went ─► partial results by key ─┐
    state before the change ───────────────────────────┴─► state now ─► the query over it

A state has the keys of an aggregate (``k0``, …), the number of rows of each group (``n``), and the
partial results from which the aggregates follow (``p0``, …). All that a query computes above its
aggregates is computed from their states. Only results that combine exactly are merged: counts, sums
of integers and decimals, averages of them; minima and maxima if no row goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Given,
    Rebuild,
    Ref,
    Subquery,
    Window,
    parts,
    walk,
)
from persist_assets.analysis.deltas.exactness import Exactness, is_exact_number
from persist_assets.analysis.deltas.places import located
from persist_assets.analysis.deltas.printing import Printer, grouped_names
from persist_assets.analysis.deltas.relations import NEW, Relations, equated_columns, union
from persist_assets.analysis.deltas.rules import Rules
from persist_assets.analysis.deltas.splitting import joined_rows
from persist_assets.analysis.deltas.staging import grouped_by_each_set, windows_in
from persist_assets.analysis.free import Free
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import WEIGHT, Columns, Merging, NoRule, State, state_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.analysis.types import Types

_FIRST_OF_SETS = 1_000_000
"""The first instance number in aggregates of grouping sets; no query has as many instances."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_EXACT_DOUBLES = 2**53
"""Sums of doubles of integers below this are exact."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial result: an aggregate of some expression.

    Attributes
    ----------
    function
        ``count``, ``sum``, ``min`` or ``max``.
    args
        The operands as SQL; empty for ``count(*)``.
    condition
        Only rows for which it is true count, as SQL; None: all.
    """

    function: str
    args: str
    condition: str | None = None

    @property
    def is_extreme(self) -> bool:
        """Whether it is a minimum or maximum: these are merged only while no row is removed."""
        return self.function in ("min", "max")

    def over(self, rows: str | None = None) -> str:
        """Return the SQL of the aggregate over some of the rows."""
        conditions = [c for c in (rows, self.condition) if c]
        text = f"{self.function}({self.args or '*'})"
        return f"{text} FILTER (WHERE {' AND '.join(conditions)})" if conditions else text

    def merged(self, number: int) -> str:
        """Return the SQL of the new result, from the old state (``s``) and the change (``d``)."""
        before, came, went = f"s.p{number}", f"d.a{number}", f"d.b{number}"
        if self.is_extreme:
            least = "least" if self.function == "min" else "greatest"
            return f"{least}({before}, {came})"
        return f"coalesce({before}, 0) + coalesce({came}, 0) - coalesce({went}, 0)"


@dataclass(frozen=True, slots=True)
class Merged:
    """An aggregate as a function of partial results.

    Attributes
    ----------
    result
        The aggregate as SQL; ``{0}``, ``{1}`` … stand for the partial results.
    """

    partials: tuple[Partial, ...]
    result: str


def merged(
    call: Expr, show: Printer, types: Types, names: Mapping[Ref, str], *, grows: bool
) -> Merged:
    """Return how an aggregate is merged.

    Parameters
    ----------
    show
        Prints its operands.
    names
        The names of the columns that it uses.
    grows
        No row of its groups goes.

    Raises
    ------
    NoRule
        Its parts do not combine exactly.
    """
    assert isinstance(call, Call)
    op, args, words = call.op, call.args, call.words
    condition = None
    if words == ("filter",):
        condition, args, words = show.expr(args[-1], names), args[:-1], ()
    if words:
        raise NoRule(f"of {op}({words[0].upper()} …), which cannot be merged")
    operands = ", ".join(show.expr(a, names) for a in args)
    count = Partial("count", operands, condition)
    match op:
        case "count":
            return Merged((count,), "{0}")
        case "count_if":
            both = " AND ".join(f"({c})" for c in (condition, operands) if c)
            return Merged((Partial("count", "", both),), "{0}")
        case "sum" if is_exact_number(args[0], types):
            total = Partial("sum", operands, condition)
            return Merged((total, count), "IF({1} = 0, NULL, {0})")
        case "avg":
            return _average(args[0], types, operands, condition)
        case "min" | "max" if grows:
            return Merged((Partial(op, operands, condition),), "{0}")
        case "min" | "max":
            raise NoRule(f"of {op}(), which cannot be merged if rows go")
        case "sum":
            kind = types.of(args[0]) or "an uncertain type"
            raise NoRule(f"of sum() of {kind}, which cannot be merged exactly")
        case _:
            raise NoRule(f"of {op}(), which cannot be merged")


def _average(arg: Expr, types: Types, operands: str, condition: str | None) -> Merged:
    """Return how an average is merged: as Spark computes it, from the sum and the count."""
    kind = types.of(arg) or ""
    total, count = Partial("sum", operands, condition), Partial("count", operands, condition)
    if kind in INTEGRAL:
        size = Partial("sum", f"abs(CAST({operands} AS BIGINT))", condition)
        exact = f"IF({{2}} < {_EXACT_DOUBLES}, {{0}}, raise_error('a sum is too large to merge'))"
        return Merged((total, count, size), f"IF({{1}} = 0, NULL, CAST({exact} AS DOUBLE) / {{1}})")
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        raise NoRule(f"of avg() of {kind or 'an uncertain type'}, which cannot be merged exactly")
    precision, scale = map(int, decimal.groups())
    most = _most_rows(precision, scale)
    if precision + 10 > 38 or most < 10**6:
        raise NoRule(f"of avg() of {kind}, which cannot be merged exactly")
    few = f"IF({{1}} < {most}, {{1}}, raise_error('a group is too large to merge'))"
    to = f"DECIMAL({min(precision + 4, 38)},{min(scale + 4, 38)})"
    quotient = f"CAST({{0}} / CAST({few} AS DECIMAL(20,0)) AS {to})"
    return Merged((total, count), f"IF({{1}} = 0, NULL, {quotient})")


def _most_rows(precision: int, scale: int) -> int:
    """Return the maximum number of rows for which a decimal average is, in effect, rounded once.

    Spark rounds a quotient to the scale of a division, and then to that of the average. The first
    makes no difference unless the quotient is closer to the middle of two results than one part of
    the number of rows.
    """
    total = min(precision + 10, 38)
    digits = max(6, scale + 20 + 1)
    whole = total - scale
    if whole + digits > 38:
        digits = max(38 - whole, min(digits, 6))
    return 10 ** max(digits - (scale + 4) - 1, 0)


# ------------------------------------------------------------------------------------- whole query


def mergeable_in(query: Staged) -> list[Aggregate]:
    """Return the outermost aggregates of a query that can be merged.

    Those below an aggregate come first if it can be merged only while no row goes, or if they are
    over LEFT JOINs that are split.
    """
    return _mergeable_below(query, query.block)


def _mergeable_below(query: Staged, thing: object) -> list[Aggregate]:
    nodes: dict[int, Aggregate] = {}
    seen: set[int] = set()
    stack = [thing]
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        below: list[Aggregate] = []
        if isinstance(this, Aggregate) and not Free().of(this):
            below = _mergeable(query, this)
        if below:
            nodes |= {id(node): node for node in below}
        else:
            stack += reversed(parts(this))
    return [*nodes.values()]


def _mergeable(query: Staged, node: Aggregate) -> list[Aggregate]:
    """Return an aggregate that can be merged, or aggregates below it from which it follows."""
    is_mergeable = _is_mergeable(query, node, grows=False)
    if not (is_mergeable or _is_mergeable(query, node, grows=True)):
        return []
    below = _mergeable_below(query, node.rows)
    covered = {id(t) for inner in below for t in walk(inner)}
    tables = [t for t in walk(node.rows) if isinstance(t, Given)]
    # To merge this one, a build searches the rows of all touched groups below. Groups over a split
    # LEFT JOIN need no search, and its left side limits their number.
    is_better = not is_mergeable or all(map(joined_rows, below))
    return below if below and is_better and all(id(t) in covered for t in tables) else [node]


def _is_mergeable(query: Staged, node: Aggregate, *, grows: bool) -> bool:
    return unmergeable(query, node, grows=grows) is None


def unmergeable(query: Staged, node: Aggregate, *, grows: bool) -> NoRule | None:
    """Return why an aggregate cannot be merged; None: it can.

    Parameters
    ----------
    grows
        No row of its groups goes.
    """
    try:
        _check(query, node)
        _merged(query, node, grows=grows)
    except NoRule as error:
        return error
    return None


@located
def _check(query: Staged, node: Aggregate) -> None:
    """Raise if what an aggregate is computed from is not exact.

    Raises
    ------
    NoRule
        It is not.
    """
    exact = Exactness(query.types)
    calls = [c for c in node.aggregates if isinstance(c, Call)]
    exprs = (*node.keys, *(a for call in calls for a in call.args))
    if any(isinstance(e, Subquery | Window) for e in walk(*exprs)):
        raise NoRule("of an aggregate of a window or a subquery")
    if not (exact.of_rows(node.rows) and exact.of_exprs(exprs)):
        raise NoRule("of an aggregate of values that depend on the order of rows")


def _check_beneath(query: Staged, nodes: Sequence[Aggregate], changed: frozenset[str]) -> None:
    """Raise if a table that changed is read outside of some aggregates.

    Raises
    ------
    NoRule
        It is.
    """
    inside = {id(node) for node in nodes}
    stack: list[object] = [query.block]
    while stack:
        this = stack.pop()
        if isinstance(this, Given) and this.rows in changed:
            raise NoRule("a table that changed is read outside of aggregates that can be merged")
        if id(this) not in inside:
            stack += parts(this)


def with_sets_apart(query: Staged) -> Staged:
    """Return a query in which grouping sets are unions of aggregates.

    It is the same each time, so the statements of its states are too.
    """
    query = replace(query, instances=count(_FIRST_OF_SETS))

    def apart(node: Node) -> Node | None:
        if isinstance(node, Aggregate) and node.sets is not None:
            return grouped_by_each_set(query, node)
        return None

    return replace(query, block=Rebuild(query.calls, node=apart).block(query.block))


def merging_of(
    query: Staged,
    changed: frozenset[str],
    grown: frozenset[str],
    columns: Columns,
) -> Merging:
    """Return how the aggregates of a query are merged with the changes of its tables.

    Parameters
    ----------
    changed, grown
        As for `change_of`; none: only how the states are computed.
    columns
        By table, the columns that the query uses.

    Raises
    ------
    NoRule
        Some aggregate cannot be merged, or its rows have no rule.
    """
    query = with_sets_apart(query)
    nodes = mergeable_in(query)
    if not nodes:
        raise NoRule("it has no aggregate that can be merged")
    _check_beneath(query, nodes, changed)
    relations = Relations(changed, grown, equated_columns(query.block, query.types))
    states = tuple(_state(query, relations, node, k) for k, node in enumerate(nodes))
    results = {id(node): _result(query, node, k) for k, node in enumerate(nodes)}
    text = Printer(relations.printer(NEW).table, nodes=results).block(query.block)
    # All rows are computed again: rows with other keys stay the same only if they are exact.
    is_exact = Exactness(query.types, nodes).of_query(query.block)
    keys = _shown_keys(query.block, nodes) if is_exact else ()
    return Merging(
        states=states,
        rows=text,
        held=dict(relations.held),
        columns=columns,
        probes=relations.probes,
        key_columns=keys,
        changed_values=tuple(relations.changed_values),
    )


def _shown_keys(block: Block, nodes: Sequence[Aggregate]) -> tuple[int, ...]:
    """Return the numbers of a query's columns that show the keys of its only merged aggregate.

    Empty if a key is not shown, or if a row follows from several groups. No table that changed is
    read outside of it, so a row that follows from an unchanged group stays.
    """
    exprs = [o.expr for o in block.columns]
    instance = next((i for i, leaf in block.leaves if [leaf] == [*nodes]), None)
    if instance is None or windows_in(exprs):
        return ()
    shown = {(e.instance, e.column): n for n, e in enumerate(exprs) if isinstance(e, Ref)}
    numbers = [shown.get((instance, key)) for key in range(len(nodes[0].keys))]
    return () if None in numbers else tuple(n for n in numbers if n is not None)


def _state(query: Staged, relations: Relations, node: Aggregate, number: int) -> State:
    """Return the state of an aggregate, and how it changes.

    Raises
    ------
    NoRule
        Its rows have no rule, or rows go and it cannot be merged then.
    """
    names = [f"k{k}" for k in range(len(node.keys))]
    partials = _partials(query, node, grows=True)
    by = f" GROUP BY {', '.join(names)}" if names else ""
    results = ", ".join(
        (*names, "count(*) AS n", *(f"{p.over()} AS p{j}" for j, p in enumerate(partials)))
    )
    nothing = Relations(frozenset(), frozenset(), {})
    initial = f"SELECT {results} FROM ({nothing.printer(NEW).grouped(node)}){by}"
    rules = Rules(query, relations)
    _, refs = grouped_names(node)
    terms = rules.block(replace(node.rows, columns=()), (*node.keys, *refs))
    if not terms:
        return State(initial, len(names), None)
    _merged(query, node, grows=rules.only_adds)
    shown = [f"c{k} AS {name}" for k, name in enumerate(names)]
    shown += [f"c{len(names) + k} AS r{r.instance}_{r.column}" for k, r in enumerate(refs)]
    rows = (
        f"SELECT {', '.join((*shown, WEIGHT))} FROM ({union(terms)})"
        f" LATERAL VIEW explode(sequence(1, CAST(abs({WEIGHT}) AS INT))) repeated AS nth"
    )
    items = [*names, f"CAST(sum(sign({WEIGHT})) AS BIGINT) AS n"]
    items += [f"{p.over(f'{WEIGHT} > 0')} AS a{j}" for j, p in enumerate(partials)]
    items += [f"{p.over(f'{WEIGHT} < 0')} AS b{j}" for j, p in enumerate(partials)]
    partly = relations.hold("change", f"SELECT {', '.join(items)} FROM ({rows}){by}")
    changed = _merged_rows(partly, names, partials, number)
    return State(initial, len(names), changed, _summed_rows(partly, names, partials, number))


def _merged_rows(partly: str, keys: Sequence[str], partials: Sequence[Partial], number: int) -> str:
    """Return the SELECT of the new rows of a state, from partial results of its change."""
    same = " AND ".join(f"s.{k} <=> d.{k}" for k in keys) or "true"
    items = [f"d.{k}" for k in keys]
    items.append("coalesce(s.n, 0) + coalesce(d.n, 0) AS n")
    items += [f"{p.merged(j)} AS p{j}" for j, p in enumerate(partials)]
    former = _touched_rows(partly, keys, number)
    text = f"SELECT {', '.join(items)} FROM {quote(partly)} AS d"
    return f"{text} LEFT JOIN ({former}) AS s ON {same}"


def _summed_rows(partly: str, keys: Sequence[str], partials: Sequence[Partial], number: int) -> str:
    """Return the SELECT of the same rows that keeps all digits of decimals.

    Unlike `+`, an aggregate does not trade digits after the decimal point for digits before it.
    """
    numbers = range(len(partials))
    before = ", ".join((*keys, "n", *(f"p{j}" for j in numbers)))
    came = ", ".join((*keys, "n", *(f"a{j}" for j in numbers)))
    went = ", ".join(
        (*keys, "0", *("NULL" if p.is_extreme else f"- b{j}" for j, p in enumerate(partials)))
    )
    former, change = _touched_rows(partly, keys, number), quote(partly)
    rows = (
        f"SELECT {before} FROM ({former})"
        f" UNION ALL SELECT {came} FROM {change} UNION ALL SELECT {went} FROM {change}"
    )
    sums = [
        f"{p.function if p.is_extreme else 'sum'}(p{j}) AS p{j}" for j, p in enumerate(partials)
    ]
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join((*keys, 'sum(n) AS n', *sums))} FROM ({rows}){by}"


def _touched_rows(partly: str, keys: Sequence[str], number: int) -> str:
    """Return the SELECT of the rows of a state before the change whose keys the change touches."""
    text = f"SELECT s.* FROM {quote(state_name('former', number))} AS s"
    if not keys:  # there is one row
        return text
    same = " AND ".join(f"s.{k} <=> d.{k}" for k in keys)
    return f"{text} LEFT SEMI JOIN {quote(partly)} AS d ON {same}"


def _partials(query: Staged, node: Aggregate, *, grows: bool) -> list[Partial]:
    return [p for one in _merged(query, node, grows=grows) for p in one.partials]


@located
def _merged(query: Staged, node: Aggregate, *, grows: bool) -> list[Merged]:
    names, _ = grouped_names(node)

    def refuse(node: Given, instance: int, columns: Sequence[int]) -> str:
        raise NoRule("of an aggregate of a subquery")

    show = Printer(refuse)
    return [merged(c, show, query.types, names, grows=grows) for c in node.aggregates]


def _result(query: Staged, node: Aggregate, number: int) -> str:
    """Return the SELECT of an aggregate from its state."""
    n_keys = len(node.keys)
    items = [f"k{k} AS c{k}" for k in range(n_keys)]
    first = 0
    for j, one in enumerate(_merged(query, node, grows=True)):
        columns = [f"p{first + m}" for m in range(len(one.partials))]
        items.append(f"{one.result.format(*columns)} AS c{n_keys + j}")
        first += len(columns)
    return f"SELECT {', '.join(items) or '1 AS one'} FROM {quote(state_name('state', number))}"
