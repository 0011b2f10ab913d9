"""Access to sqlglot's trees: kinds of nodes, their parts, and their text. Pure.

General knowledge of the parser's classes is here; trees are read, never changed. The invariant:
nothing here recurses, so a deep tree is no problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import is_special_datetime_text
from persist_assets.core.dialect import (
    function_named,
    is_never_column,
    is_position,
    plain,
    suffixed,
    type_name,
)
from persist_assets.core.errors import Location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


SHIFT_UNSIGNED, POSITIVE = exp.Coalesce, exp.Sqrt
"""The nodes of unsigned shifts to the right and of ``+a`` (`core/operators.py`)."""

BINARY: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "div",
    exp.Mod: "mod",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.DPipe: "concat",
    exp.BitwiseLeftShift: "shiftleft",
    exp.BitwiseRightShift: "shiftright",
    exp.RegexpLike: "rlike",
}
"""Binary operators, with their names in the algebra."""

FUNCTIONS: Mapping[type[exp.Expr], str] = {
    exp.First: "first",
    exp.Last: "last",
    exp.Left: "left",
    exp.Right: "right",
    exp.Replace: "replace",
    exp.Uuid: "uuid",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentSchema: "current_schema",
    exp.CurrentTime: "current_time",
    exp.Localtime: "localtime",
    exp.Localtimestamp: "localtimestamp",
    exp.Exists: "exists",
    exp.ArrayFilter: "filter",
    exp.Transform: "transform",
    exp.Array: "array",
    exp.Chr: "chr",
    exp.Neg: "negative",
    exp.BitwiseNot: "~",
    exp.Overlay: "overlay",
}
"""Nodes that sqlglot creates for plain function calls whose names are keywords."""


def given_args(node: Any) -> list[str]:
    """Return the names of the arguments that a node has."""
    return [k for k, v in node.args.items() if v is not None and v is not False and v != []]


def arguments_of(node: Any) -> Iterable[Any]:
    """Yield the operands of a function's node in the order of its definition."""
    for key in node.arg_types:
        value = node.args.get(key)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, exp.Expr):
            yield value


def windows_of(node: exp.Select) -> Mapping[str, Any]:
    """Return the named windows of a SELECT, by their names in lower case."""
    return {plain(w.this.name).lower(): w for w in node.args.get("windows") or ()}


def is_join(node: Any) -> bool:
    """Whether a subquery is only a pair of parentheses around joined tables."""
    while isinstance(node.this, exp.Subquery):
        node = node.this
        if node.args.get("alias") or node.args.get("joins"):
            return True
    return isinstance(node.this, exp.Table)


def without_parens(node: Any) -> Any:
    """Return the node inside parentheses, or the node itself."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


_BINDS: Mapping[type[exp.Expr], int] = {
    exp.Collate: 9,
    **dict.fromkeys((exp.Neg, exp.BitwiseNot, POSITIVE), 8),
    **dict.fromkeys((exp.Mul, exp.Div, exp.Mod, exp.IntDiv), 7),
    **dict.fromkeys((exp.Add, exp.Sub, exp.DPipe), 6),
    **dict.fromkeys((exp.BitwiseLeftShift, exp.BitwiseRightShift, SHIFT_UNSIGNED), 5),
    exp.BitwiseAnd: 4,
    exp.BitwiseXor: 3,
    exp.BitwiseOr: 2,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), 1),
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ), 1),
    **dict.fromkeys((exp.In, exp.Between, exp.Is, exp.Like, exp.ILike, exp.RegexpLike), 0),
    exp.Escape: 0,
    exp.Not: -1,
    exp.And: -2,
    exp.Or: -3,
}
"""Precedence of operators in Spark's grammar; higher binds tighter."""

_OPERANDS = ("this", "expression", "low", "high")


def _operand(node: Any, key: str) -> Any:
    """Return an operand of an operator, or None."""
    if key == "expression" and isinstance(node, SHIFT_UNSIGNED):
        return node.expressions[0]
    return node.args.get(key)


_REGROUPED = frozenset(
    (
        *(exp.Collate, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.Add, exp.Sub, exp.DPipe),
        *(exp.BitwiseLeftShift, exp.BitwiseRightShift, SHIFT_UNSIGNED, exp.BitwiseAnd),
        *(exp.BitwiseXor, exp.BitwiseOr, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    )
)
"""Operators between two operands, which bind to the left in Spark's order of precedence."""


def regrouped(node: Any) -> Any | None:
    """Return operators without parentheses as Spark groups them, in a tree of their own.

    None: it is not certain how Spark groups them.
    """
    operands: list[Any] = []
    operators: list[Any] = []
    stack: list[tuple[Any, bool]] = [(node, False)]
    while stack:  # in the order of the text
        this, is_operator = stack.pop()
        if is_operator:
            operators.append(this)
        elif type(this) in _REGROUPED:
            stack += ((_operand(this, "expression"), False), (this, True), (this.this, False))
        else:
            operands.append(this.copy())
    values, pending = [operands[0]], list[Any]()

    def reduce(level: int) -> None:
        while pending and _BINDS[type(pending[-1])] >= level:
            operator, right, left = pending.pop(), values.pop(), values.pop()
            rest = {k: v for k, v in operator.args.items() if k not in _OPERANDS}
            if isinstance(operator, SHIFT_UNSIGNED):
                values.append(SHIFT_UNSIGNED(**{**rest, "this": left, "expressions": [right]}))
            else:
                values.append(type(operator)(**{**rest, "this": left, "expression": right}))

    for operator, operand in zip(operators, operands[1:], strict=True):
        reduce(_BINDS[type(operator)])
        pending.append(operator)
        values.append(operand)
    reduce(0)
    (whole,) = values
    return whole if operators and not misread(whole) else None


def misread(node: Any) -> bool:
    """Whether Spark may group the operators of a node and of its operands differently.

    The parser has its own order of precedence: its grouping without parentheses must match Spark's.
    """
    level = _BINDS.get(type(node))
    if level is None:
        return False
    for key in _OPERANDS:
        operand = _operand(node, key)
        if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
            # The parser puts some operands into parentheses of its own.
            inside = without_parens(operand)
            operand = inside if key == "expression" or isinstance(inside, exp.Not) else operand
        below = _BINDS.get(type(operand)) if operand is not None else None
        if below is None or (isinstance(node, exp.Escape) and key == "this"):
            continue
        if isinstance(operand, exp.NullSafeEQ | exp.NullSafeNEQ):
            below = 0  # may be IS [NOT] DISTINCT FROM: the tree is the same
        joins_left = key == "this" and below == level and level != 0
        unary = level in (8, -1) and below == level
        if below <= level and not (joins_left or unary):
            return True
    negated = node.this if isinstance(node, exp.Neg) else None
    if not isinstance(negated, exp.Cast) or not isinstance(negated.this, exp.Literal):
        return False
    # -1::STRING casts minus one; -'1'::INT negates what the cast returns.
    return not negated.this.is_string or suffixed(negated.this.this) is not None


def is_special_datetime(node: Any) -> bool:
    """Whether Spark reads the clock for a cast: of ``'now'``, ``'10:30'`` and the like."""
    return (
        isinstance(node, exp.Cast)
        and isinstance(node.this, exp.Literal)
        and node.this.is_string
        and is_special_datetime_text(node.this.name)
        and (type_name(node.to) or "date").startswith(("date", "timestamp"))
    )


def is_star(node: Any) -> bool:
    """Whether a node stands for columns: ``*`` or ``t.*``."""
    return isinstance(node, exp.Star) or (
        isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
    )


def shows_all(star: Any) -> bool:
    """Whether a star stands for columns, rather than for the rows of ``count(*)``."""
    above = star.parent
    return not (isinstance(above, exp.Anonymous) and plain(above.name).lower() == "count")


def depends_on_order(tree: Any) -> bool:
    """Whether a query may depend on the order of the columns of tables.

    It does by stars, by the names of columns after a table, a join or a PIVOT, and by positions.
    """
    if any(map(is_position, tree.find_all(exp.Column))):
        return True
    renamed = (a.parent for a in tree.find_all(exp.TableAlias) if a.args.get("columns"))
    return any(map(shows_all, tree.find_all(exp.Star))) or any(map(_has_columns, renamed))


def _has_columns(item: Any) -> bool:
    """Whether an item of a FROM clause has the columns of tables, not those of its own SELECT."""
    while isinstance(item, exp.Subquery) and isinstance(item.this, exp.Subquery):
        item = item.this
    item = item.this if isinstance(item, exp.Subquery) else item
    return isinstance(item, exp.Table | exp.Pivot) or bool(item.args.get("pivots"))


def alias_of(node: Any) -> tuple[str, tuple[str, ...]]:
    """Return the alias of an item of a FROM clause, empty if none, and the names of its columns."""
    alias = node.args.get("alias")
    if alias is None:
        return "", ()
    return plain(alias.name), tuple(plain(c.name) for c in alias.args.get("columns") or ())


def called(tree: Any, columns: Collection[str] = ()) -> frozenset[str]:
    """Return the functions that a parsed query calls, and ``tablesample`` if it samples.

    Parameters
    ----------
    columns
        The names, in lower case, of all columns that it reads.
    """
    return frozenset(name for name, _ in calls_in(tree, columns))


def calls_in(tree: Any, columns: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a parsed query calls, as for `called`, each with its node."""
    for node in tree.walk():
        match node:
            case exp.Column():
                name = _function_in(tree, node, columns)
                yield from [(name, node)] if name else ()
            case exp.Anonymous():
                yield plain(node.name).lower(), node
            case exp.Any():
                if not isinstance(node.parent, exp.Like | exp.ILike):  # LIKE ANY is no call
                    yield "any", node
            case exp.TableSample():
                yield "tablesample", node
            case exp.Cast() if is_special_datetime(node):
                yield "now", node
            case _ if type(node) in FUNCTIONS:
                yield FUNCTIONS[type(node)], node
            case _:
                pass


def clock_texts_in(tree: Any) -> set[str]:
    """Return the texts in a parsed query for which Spark reads the clock if it makes times of them.

    Where it does so is not known for a query that is treated as a whole. `calls_in` finds explicit
    casts.
    """
    strings = (node for node in tree.find_all(exp.Literal) if node.is_string)
    texts = [str(node.this) for node in strings if not _is_cast_only(node)]
    texts += map(_joined, tree.find_all(exp.DPipe, exp.Anonymous))
    return {text.strip().lower() for text in texts if is_special_datetime_text(text)}


def _is_cast_only(literal: Any) -> bool:
    """Whether a literal is cast, and as a text only to be a column: variables are cast, too."""
    cast = literal.parent
    if not isinstance(cast, exp.Cast):
        return False
    is_text = (type_name(cast.to) or "").startswith("string")
    return not is_text or isinstance(cast.parent, exp.Select | exp.Alias)


def _joined(node: Any) -> str:
    """Return the text of a concatenation of literals; empty if it is none."""
    if isinstance(node, exp.DPipe):
        if isinstance(node.parent, exp.DPipe):
            return ""
    elif plain(node.name).lower() != "concat":
        return ""
    inside = [n for n in node.walk(bfs=False) if not isinstance(n, exp.DPipe | exp.Paren)]
    inside = [n for n in inside if n is not node]
    constant = all(isinstance(n, exp.Literal) for n in inside)
    return "".join(str(n.this) for n in inside) if constant else ""


def first_place(path: str, nodes: Iterable[Any]) -> Location:
    """Return the place of the first token of some parts of a parsed file."""
    metas = [node.meta for node in nodes if "start" in node.meta]
    if not metas:
        return Location(path)
    first = min(metas, key=lambda meta: meta["start"])
    place = first.get("path", path)  # the file of a function that is inlined
    return Location(place, first["line"], first["col"] - (first["end"] - first["start"]))


def _function_in(tree: Any, column: Any, columns: Collection[str]) -> str | None:
    """Return the function that a name in a query may denote, as far as the text shows."""
    name = function_named(column)
    if name not in columns or is_never_column(column):
        return name
    # A subquery may read a table without such a column.
    return name if any(q is not tree for q in tree.find_all(exp.Query)) else None


def kind_of(node: Any) -> str:
    """Return the name under which a node of an unknown kind is digested."""
    return f"sqlglot.{type(node).__name__.lower()}"


def word_for(node: Any) -> str:
    """Return the name of a node in messages."""
    return type(node).__name__.upper()


def names_in_text(
    tree: exp.Expr, columns: Collection[str] = (), *, loses: bool = False
) -> tuple[str, ...]:
    """Return the names of a query's columns where its text shows them, else nothing.

    Parameters
    ----------
    columns
        The names, in lower case, of all columns that it reads.
    loses
        The tree does not represent the whole text: an apparent column may be ``+a``.
    """
    whole, tree = tree, first_select(tree)
    names = (
        [plain(e.alias_or_name) for e in tree.expressions] if isinstance(tree, exp.Select) else []
    )
    named = all(
        isinstance(e, exp.Alias)
        or (isinstance(e, exp.Column) and not loses and not _function_in(whole, e, columns))
        for e in tree.expressions
    )
    return tuple(names) if named and "*" not in names and all(names) else ()


def first_select(tree: Any) -> Any:
    """Return the query that names the columns of a query: of set operations, the first one."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    return tree


def item_in_text(tree: Any, number: int, n_columns: int) -> exp.Expr:
    """Return the SELECT item that is column `number` of `n_columns`, counted from 1.

    After a star it is counted from the end; NULL if it cannot be found.
    """
    tree = first_select(tree)
    items = tree.expressions if isinstance(tree, exp.Select) else []
    stars = [i for i, item in enumerate(items) if is_star(item)]
    if not stars or number <= stars[0]:
        return items[number - 1] if number <= len(items) else exp.Null()
    behind = n_columns - number + 1
    return items[-behind] if behind < len(items) - stars[-1] else exp.Null()
