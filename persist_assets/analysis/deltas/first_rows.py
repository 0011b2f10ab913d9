"""The first rows of a query, which ends with ORDER BY … LIMIT: from its table and the change. Pure.

    rows of the table ───────────┐
    change of the query below ───┴─► rows that are left and rows that came ─► the first of them

A row that was not among the first comes after all of these. So the first rows of what is left and
what came are those of the query, if enough of them come no later than the last row of the table.
Otherwise the statement fails, and all rows are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call, Limit, Ref
from persist_assets.analysis.deltas.printing import direction
from persist_assets.analysis.deltas.weights import netted
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import FEW_LEFT, ROW_WEIGHT, TABLE, WEIGHT, NoRule

if TYPE_CHECKING:
    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.deltas.staging import Staged

_MOST_ROWS = 100_000
"""One task of Spark orders the rows."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The LIMIT of a whole query.

    Attributes
    ----------
    node
        The LIMIT.
    below
        The query without it, with the columns of the result.
    n_rows
        The number of rows that it keeps.
    order
        The ORDER BY, over columns ``c0``, ….
    """

    node: Limit
    below: Staged
    n_rows: int
    order: str

    def change(self, rows: str) -> str:
        """Return the SELECT of the rows of the table that went and came, with their `WEIGHT`.

        Parameters
        ----------
        rows
            The change of the query below: a SELECT of its columns and their `WEIGHT`.
        """
        columns = self.below.block.columns
        types = [(f"c{k}", self.below.types.of(o.expr)) for k, o in enumerate(columns)]
        items = ", ".join(name for name, _ in types)
        table, weight = quote(TABLE), quote(ROW_WEIGHT)
        both = (
            f"SELECT {items}, {WEIGHT} AS {weight} FROM ({rows})"
            f" UNION ALL SELECT {items}, 1 AS {weight} FROM {table}"
        )
        # The first of the rows that are left or came. Rows that left the query but were not in the
        # table have a negative weight, and do not matter. But a table with fewer rows than the
        # LIMIT had all rows of the query: there, such a row comes first here, and is an error.
        few = (
            f"SELECT * FROM ({netted(both, types)})"
            f" WHERE {weight} > 0 OR (SELECT count(*) < {self.n_rows} FROM {table})"
            f" ORDER BY {weight} > 0, {self.order} LIMIT {self.n_rows}"
        )
        # They and the rows of the table, with their places in the order. Equal ones share a place.
        left = (
            f"SELECT {items}, {weight}, FALSE AS is_former FROM ({few})"
            f" UNION ALL SELECT {items}, 1 AS {weight}, TRUE AS is_former FROM {table}"
        )
        placed = f"SELECT *, dense_rank() OVER (ORDER BY {self.order}) AS place FROM ({left})"
        bounded = (
            "SELECT *, max(IF(is_former, place, NULL)) OVER () AS last_place,"
            f" sum(IF(is_former, 1, 0)) OVER () AS n_former FROM ({placed})"
        )
        # A row that comes no later than the last row of the table is certainly one of the first.
        is_certain = f"NOT is_former AND {weight} > 0 AND place <= last_place"
        counted = (
            f"SELECT *, sum(IF({is_certain}, {weight}, 0)) OVER () AS n_certain,"
            f" min({weight}) OVER () AS least FROM ({bounded})"
        )
        is_enough = f"IF(n_former < {self.n_rows}, least > 0, n_certain >= {self.n_rows})"
        failure = f"raise_error('{FEW_LEFT}')"
        first = (
            f"SELECT {items} FROM ({counted})"
            f" LATERAL VIEW explode(sequence(1, CAST({weight} AS INT))) repeated AS nth"
            f" WHERE IF({is_enough}, NOT is_former AND {weight} > 0, {failure})"
            f" ORDER BY {self.order} LIMIT {self.n_rows}"
        )
        return (
            f"SELECT {items}, 1 AS {WEIGHT} FROM ({first})"
            f" UNION ALL SELECT {items}, -1 AS {WEIGHT} FROM {table}"
        )


def first_rows_of(query: Staged) -> FirstRows | None:
    """Return the LIMIT of a whole query; None: it has none.

    Raises
    ------
    NoRule
        The table does not tell which rows come first after a change.
    """
    block = query.block
    if len(block.leaves) != 1 or block.conjuncts:
        return None
    ((instance, node),) = block.leaves
    if not isinstance(node, Limit):
        return None
    shown = [o.expr for o in block.columns]
    numbers = [e.column for e in shown if isinstance(e, Ref) and e.instance == instance]
    if len(numbers) < len(shown) or not node.ordered:
        return None
    if node.offset is not None:
        raise NoRule("of a LIMIT with an OFFSET", node.place, node)
    n_rows = _number(node.count)
    if n_rows is None:
        raise NoRule("of a LIMIT by an expression", node.place, node)
    if n_rows > _MOST_ROWS:
        raise NoRule(f"of a LIMIT of more than {_MOST_ROWS:,} rows", node.place, node)
    below = replace(node.block, order=(), columns=tuple(node.block.columns[n] for n in numbers))
    places = {o.expr: k for k, o in reversed([*enumerate(below.columns)])}
    if any(s.by not in places for s in node.block.order):
        raise NoRule("of a LIMIT by values that the query does not select", node.place, node)
    order = ", ".join(f"c{places[s.by]}{direction(s)}" for s in node.block.order)
    return FirstRows(node, replace(query, block=below), n_rows, order)


def _number(expr: Expr | None) -> int | None:
    """Return the value of a positive integer literal; None: it is something else."""
    match expr:
        case Call("number", (), (text,)) if text.isdecimal() and int(text):
            return int(text)
        case _:
            return None
