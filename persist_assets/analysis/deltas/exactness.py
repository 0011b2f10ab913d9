"""Values that come out the same whenever they are computed from the same rows. Pure.

The rules recompute the rows that nodes had before a change. This is correct only if the table was
computed from exactly these rows. Sums of floating-point numbers depend on the order of rows, and
some functions choose among rows that tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Generate,
    Given,
    Limit,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    Values,
    Window,
    walk,
)
from persist_assets.analysis.equivalences import COMPARISONS
from persist_assets.analysis.functions import AGGREGATES, INTEGRAL
from persist_assets.analysis.result_types import ResultTypes
from persist_assets.core.model.deltas import NoRule
from persist_assets.core.spark_types import is_loose

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.analysis.types import Types

_ALWAYS = frozenset(
    """
    count count_if bool_and bool_or bit_and bit_or bit_xor approx_count_distinct grouping
    grouping_id rank dense_rank percent_rank cume_dist
    """.split()
)
_EXTREMES = frozenset(("min", "max"))
_IF_NOT_FLOAT = frozenset(("sum", "avg"))
_KEEP_FLOATS_OUT = frozenset(
    "+ - * div mod pmod negative abs coalesce greatest least nullif round".split()
)


_HIDE_ZEROS = frozenset("+ - * coalesce".split())
"""Their results are equal, though not identical, for 0.0 and -0.0."""


class Exactness:
    """Decides which values and rows of a query are exact; it remembers answers.

    Parameters
    ----------
    types
        The types of the query's expressions.
    complete
        Aggregates and windows that are computed again for all of their rows, so that their values
        may be others.
    rounds
        Whether the last digits of floating-point numbers do not matter.
    """

    def __init__(
        self, types: Types, complete: Iterable[object] = (), *, rounds: bool = False
    ) -> None:
        self._types, self._rounds = types, rounds
        self._complete = [*complete]
        self._rows: dict[int, bool] = {}
        self._leaves: dict[int, Node] = {}
        self._refusal: NoRule | None = None
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def refusal(self) -> NoRule:
        """Return the error that names the first value or row that is not exact."""
        return self._refusal or NoRule("of values that depend on the order of rows")

    def _is_exact(self, expr: Expr, part: Window | Aggregate, *, compared: bool) -> bool:
        exact = is_exact(expr, self._types, rounds=self._rounds)
        exact = exact or (compared and _is_extreme(expr))
        exact = exact or any(part is one for one in self._complete)
        if not exact and self._refusal is None:
            self._refusal = NoRule(f"of {_in_words(expr)}", part.place, part)
        return exact

    def learn(self, block: Block) -> None:
        """Let `of_exprs` know all Blocks in a query."""
        for one in walk(block):
            self._leaves |= dict(one.leaves) if isinstance(one, Block) else {}

    def of_query(self, block: Block) -> bool:
        """Whether all rows and columns of a query are exact."""
        # The rules themselves compare the value of a subquery that is shown, by its text.
        return self.of_rows(block) and all(
            self._of_expr(o.expr, any(isinstance(e, Subquery) for e in walk(o.expr)))
            for o in block.columns
        )

    def of_rows(self, block: Block) -> bool:
        """Whether a Block has the same rows whenever it is computed, whatever their values."""
        if id(block) not in self._rows:
            self._leaves |= dict(block.leaves)
            self._keep_alive.append(block)
            self._rows[id(block)] = all(
                self._of_rows_of_leaf(node) for _, node in block.leaves
            ) and self.of_exprs(block.conjuncts)
        return self._rows[id(block)]

    def of_exprs(self, exprs: Iterable[Expr], *, compared: bool = False) -> bool:
        """Whether expressions over Blocks that `of_rows` or `learn` has seen are exact.

        Parameters
        ----------
        compared
            They are only compared with other values: equal ones need not be identical.
        """
        return all(self._of_expr(e, compared) for e in exprs)

    def _of_expr(self, expr: Expr, compared: bool) -> bool:
        match expr:
            case Ref(instance, column):
                node = self._leaves.get(instance)
                return node is not None and self._of_column(node, column, compared)
            case Call(op, args, words):
                hides = op in _HIDE_ZEROS or (op in ("cast", "try_cast") and words[0] == "double")
                compared = op in COMPARISONS or (compared and hides)
                return self.of_exprs(args, compared=compared)
            case Subquery(kind, block=block, args=args):
                compared = kind == "in" or (kind == "scalar" and compared)
                exprs = (*(o.expr for o in block.columns), *args)
                return self.of_rows(block) and self.of_exprs(exprs, compared=compared)
            case Window(function, partition, order):
                args = function.args if isinstance(function, Call) else ()
                inside = (*args, *partition, *(s.by for s in order))
                return self._is_exact(expr, expr, compared=compared) and self.of_exprs(inside)

    def _of_column(self, node: Node, column: int, compared: bool) -> bool:
        match node:
            case Given():
                return True
            case Derived(block):
                return self.of_exprs([block.columns[column].expr], compared=compared)
            case Aggregate(_, keys, aggregates):
                if column < len(keys):
                    return True  # otherwise its rows are not exact
                call = aggregates[column - len(keys)]
                args = call.args if isinstance(call, Call) else ()
                return self._is_exact(call, node, compared=compared) and self.of_exprs(args)
            case Outer(_, left, right):
                columns = (*left.columns, *right.columns)
                return self.of_exprs([columns[column].expr], compared=compared)
            case SetOperation(_, branches):
                exprs = (b.columns[column].expr for b in branches)
                return self.of_exprs(exprs, compared=compared)
            case Generate(call):
                return self.of_exprs([call])
            case Values():
                return True
            case _:
                return False

    def _of_rows_of_leaf(self, node: Node) -> bool:
        match node:
            case Given() | Values():
                return True
            case Derived(block):
                return self.of_rows(block)
            case Aggregate(rows, keys):
                # Spark groups -0.0 with 0.0, and shows 0.0.
                return self.of_rows(rows) and self.of_exprs(keys, compared=True)
            case Outer(_, left, right, on):
                return self.of_rows(left) and self.of_rows(right) and self.of_exprs(on)
            case SetOperation("union all", branches):
                return all(map(self.of_rows, branches))
            case SetOperation(_, branches):
                return all(map(self.of_query, branches))
            case Generate(call):
                return self.of_exprs([call])
            case Limit():
                self._refusal = self._refusal or NoRule("of a LIMIT", node.place, node)
                return False
            case _:
                return False


def check_exact(block: Block, types: Types, *, compared: bool = False) -> None:
    """Check that all rows and columns of a query are exact, or equal ones if they are `compared`.

    Raises
    ------
    NoRule
        Some are not.
    """
    exact = Exactness(types)
    columns = (o.expr for o in block.columns)
    if not (exact.of_rows(block) and exact.of_exprs(columns, compared=compared)):
        raise exact.refusal()


def is_settled(query: Staged) -> bool:
    """Whether a query has the same rows in every evaluation.

    The last digits of sums and averages of floating-point numbers do not count.
    """
    return Exactness(query.types, rounds=True).of_query(query.block)


def _in_words(expr: Expr) -> str:
    function = expr.function if isinstance(expr, Window) else expr
    op = function.op if isinstance(function, Call) else "a value"
    if op in _IF_NOT_FLOAT:
        return f"{op}(), whose last digits may depend on the order of rows"
    return f"{op}(), whose value may depend on the order of rows"


def is_exact(expr: Expr, types: Types, *, rounds: bool = False) -> bool:
    """Whether an aggregate or a window has one result over the same rows, whatever their order.

    Parameters
    ----------
    rounds
        The last digits of floating-point numbers do not matter.
    """
    match expr:
        case Window(function=Call(op) as function, frame=frame):
            by_rows = bool(frame) and frame[0] == "rows"
            is_known = op in AGGREGATES | _ALWAYS and not by_rows
            return is_known and is_exact(function, types, rounds=rounds)
        case Call(op) if op in _ALWAYS:
            return True
        case Call(op) if op in _IF_NOT_FLOAT | _EXTREMES and rounds:
            return True
        case Call(op, args) if op in _EXTREMES:
            # Of values that are equal and differ, as 0.0 and -0.0, it is the first or the last one.
            return not is_loose(_type_of(args[0], types)) or is_exact_number(args[0], types)
        case Call(op, args) if op in _IF_NOT_FLOAT:
            # The average of integers is a sum of doubles, divided.
            kind = types.of(args[0])
            return is_exact_number(args[0], types) and (op == "sum" or kind not in INTEGRAL)
        case _:
            return False


def _is_extreme(expr: Expr) -> bool:
    function = expr.function if isinstance(expr, Window) else expr
    return isinstance(function, Call) and function.op in _EXTREMES


def _type_of(expr: Expr, types: Types) -> str | None:
    return types.of(expr) or ResultTypes.over(types).of(expr)


def is_exact_number(expr: Expr, types: Types) -> bool:
    """Whether an expression is certainly an integer or a decimal.

    Spark adds up strings as floating-point numbers.
    """
    stack = [expr]
    while stack:
        this = stack.pop()
        kind = types.of(this)
        if kind is not None:
            if kind not in INTEGRAL and not kind.startswith("decimal"):
                return False
        elif isinstance(this, Call) and this.op == "case":
            stack += (*this.args[1::2], *(this.args[-1:] if this.words else ()))
        elif isinstance(this, Call) and this.op in _KEEP_FLOATS_OUT:
            stack += this.args
        elif isinstance(this, Call) and this.op == "number":
            if this.words[0][-1:] in "FD" or "E" in this.words[0].upper():
                return False
        elif not (isinstance(this, Call) and this.op == "null"):
            return False
    return True
