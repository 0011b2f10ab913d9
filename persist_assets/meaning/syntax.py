"""Reading sqlglot's trees: what a node is, what stands where in it, and its text. Pure.

What binding knows of the parser's classes in general is here; trees are read, never changed.
The invariant: nothing here recurses, so a deep tree is no problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.dialect import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
    exp.RegexpLike: "rlike",
}
"""Operators of two operands, as the algebra calls them."""


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
    exp.Exists: "exists",
    exp.ArrayFilter: "filter",
    exp.Transform: "transform",
    exp.Array: "array",
    exp.Chr: "chr",
    exp.Neg: "negative",
    exp.BitwiseNot: "~",
    exp.Overlay: "overlay",
}
"""Nodes that sqlglot makes of plain function calls whose names are key words of the language."""


def given_args(node: Any) -> list[str]:
    """Return the names of the arguments that a node really has."""
    return [k for k, v in node.args.items() if v is not None and v is not False and v != []]


def arguments_of(node: Any) -> Iterable[Any]:
    """Yield the expressions below a function's node in the order of its definition."""
    for key in node.arg_types:
        value = node.args.get(key)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, exp.Expr):
            yield value


def windows_of(node: exp.Select) -> Mapping[str, Any]:
    """Return the windows that a SELECT names, by their names in lower case."""
    return {plain(w.this.name).lower(): w for w in node.args.get("windows") or ()}


def is_join(node: Any) -> bool:
    """Whether a subquery is only a pair of parentheses around joined tables."""
    while isinstance(node.this, exp.Subquery):
        node = node.this
    return isinstance(node.this, exp.Table)


def without_parens(node: Any) -> Any:
    """Return what stands in parentheses, or the node itself."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def is_star(node: Any) -> bool:
    """Whether a node stands for columns: ``*`` or ``t.*``."""
    return isinstance(node, exp.Star) or (
        isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
    )


def alias_of(node: Any) -> tuple[str, tuple[str, ...]]:
    """Return the alias of an item of a FROM clause, or nothing, and the names of its columns."""
    alias = node.args.get("alias")
    if alias is None:
        return "", ()
    return plain(alias.name), tuple(plain(c.name) for c in alias.args.get("columns") or ())


def called(tree: Any) -> frozenset[str]:
    """Return the functions that a parsed query calls, and ``tablesample`` if it samples."""
    names = {plain(f.name).lower() for f in tree.find_all(exp.Anonymous)}
    names |= {name for kind, name in FUNCTIONS.items() if tree.find(kind)}
    return frozenset(names | ({"tablesample"} if tree.find(exp.TableSample) else set()))


def kind_of(node: Any) -> str:
    """Return the name under which a node without a meaning of its own is digested."""
    return f"sqlglot.{type(node).__name__.lower()}"


def word_for(node: Any) -> str:
    """Return what messages call a node."""
    return type(node).__name__.upper()


def text_of(tree: exp.Expr, reference: str) -> tuple[str, ...]:
    """Return a query's tree as words, for what cannot be analysed; sources by number.

    Parameters
    ----------
    reference
        The key in a table's `meta` that holds the number of the source it names.
    """
    out: list[str] = []
    stack: list[Any] = [tree]  # not recursive: a long chain of ANDs is a deep tree
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            out.append(node)
        elif isinstance(node, list):
            stack += [";", *reversed(node)]
        elif not isinstance(node, exp.Expr):
            out.append(f"{type(node).__name__}={node}")
        else:
            out.append("(" + type(node).__name__)
            args = {k: v for k, v in sorted(node.args.items()) if v not in (None, False, [])}
            number = node.meta.get(reference) if isinstance(node, exp.Table) else None
            if number is not None:
                # Unless an alias hides it, the name as written also qualifies columns.
                out += ["reference", str(number), "" if args.get("alias") else node.name.lower()]
                args = {k: v for k, v in args.items() if k not in ("this", "db", "catalog")}
            stack.append(")")
            for key, value in reversed(args.items()):
                stack += [value, key]
    return tuple(out)


def names_in_text(tree: exp.Expr) -> tuple[str, ...]:
    """Return the names of a query's columns where the text alone tells them, else nothing."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    names = (
        [plain(e.alias_or_name) for e in tree.expressions] if isinstance(tree, exp.Select) else []
    )
    named = all(isinstance(e, exp.Alias | exp.Column) for e in tree.expressions)
    return tuple(names) if named and "*" not in names and all(names) else ()


def unnamed_in_text(tree: Any) -> Iterator[exp.Expr]:
    """Yield the parts of a query's SELECT that give their column no name, then nothings."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    for item in tree.expressions if isinstance(tree, exp.Select) else ():
        if not isinstance(item, exp.Alias | exp.Aliases | exp.Column | exp.Star | exp.Dot):
            yield item
    while True:
        yield exp.Null()
