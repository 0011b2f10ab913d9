"""The algebra as Spark SQL.

A relation is printed as a SELECT whose columns are ``c0``, ``c1``, …; a leaf with instance number i
has the alias ``l<i>``. Tables are named by `Tables`, because a statement may read two versions of
one.

The text is checked where it is made: bound again, it must have the digests of the algebra that it
was printed from (`compiler.state`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

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
    parts,
)
from persist_assets.analysis.expressions import AGGREGATE_OPS
from persist_assets.analysis.functions import ORDER_SENSITIVE
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import WEIGHT, NoRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.analysis.algebra import Expr, Node, Sort

_INFIX = {
    **{op: op for op in ("=", "<>", "<", "<=", "<=>", "+", "-", "*", "/", "&", "|", "^", "div")},
    "mod": "%",
    "and": "AND",
    "or": "OR",
}
_NAMED = re.compile(r"[a-z_][a-z0-9_]*")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(E[+-]?\d+)?(L|S|Y|F|D|BD)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """The text of a leaf, instead of the leaf itself.

    Attributes
    ----------
    weighted
        It has a column `WEIGHT`.
    """

    sql: str
    weighted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Printer:
    """Prints relations as they are in one version of the tables.

    Attributes
    ----------
    table
        Returns the text of a table: of its node, its instance, and the numbers of the columns to
        select as ``c<number>``.
    subqueries
        For subqueries by `id`, another printer.
    nodes
        For nodes by `id`, their text.
    """

    table: Callable[[Given, int, Sequence[int]], str]
    subqueries: Mapping[int, Printer] = field(default_factory=dict["int", "Printer"])
    nodes: Mapping[int, str] = field(default_factory=dict[int, str])

    # ---------------------------------------------------------------------------------- relations

    def block(
        self,
        block: Block,
        replaced: Mapping[int, Part] | None = None,
        columns: Sequence[Expr] | None = None,
    ) -> str:
        """Return the SELECT of a Block.

        Parameters
        ----------
        replaced
            The texts of some leaves. If one has weights, so has the result.
        columns
            Expressions to select instead of the Block's columns.
        """
        replaced = replaced or {}
        selected = [o.expr for o in block.columns] if columns is None else [*columns]
        used = used_columns([*block.conjuncts, *selected, *(n for _, n in block.leaves)])
        tables: list[str] = []
        views: list[str] = []
        for instance, node in block.leaves:
            if isinstance(node, Generate):
                names = ", ".join(f"c{k}" for k in range(node.n_columns))
                outer = "OUTER " if node.outer else ""
                views.append(f"LATERAL VIEW {outer}{self.expr(node.call)} l{instance} AS {names}")
                continue
            part = replaced.get(instance)
            numbers = sorted(used.get(instance, ()))
            text = part.sql if part else self.node(node, instance, numbers)
            tables.append(f"({text}) AS l{instance}")
        items = [f"{self.expr(e)} AS c{k}" for k, e in enumerate(selected)]
        weights = [f"l{i}.{WEIGHT}" for i, part in replaced.items() if part.weighted]
        if weights:
            items.append(f"{' * '.join(weights)} AS {WEIGHT}")
        text = f"SELECT {', '.join(items) or '1 AS c0'}"
        if tables or views or block.conjuncts:
            text += f" FROM {', '.join(tables) or '(SELECT 1)'}"
        text += "".join(f" {view}" for view in views)
        if block.conjuncts:
            text += f" WHERE {' AND '.join(map(self.expr, block.conjuncts))}"
        return text

    def node(self, node: Node, instance: int, columns: Sequence[int]) -> str:
        """Return the SELECT of a leaf, with at least some of its columns."""
        if id(node) in self.nodes:
            return self.nodes[id(node)]
        match node:
            case Given():
                return self.table(node, instance, columns)
            case Derived(block):
                return self.block(block)
            case Outer():
                return self.outer(node)
            case Aggregate():
                return self.aggregate(node)
            case SetOperation(kind, branches):
                word = {"union all": "UNION ALL"}.get(kind, kind.upper())
                return f" {word} ".join(f"({self.block(b)})" for b in branches)
            case Limit(block, count, offset, _):
                return self._limit(block, count, offset)
            case Values(rows):
                names = ", ".join(f"c{k}" for k in range(len(rows[0])))
                lines = ", ".join(f"({', '.join(map(self.expr, row))})" for row in rows)
                return f"SELECT * FROM VALUES {lines} AS v({names})"
            case _:
                raise NoRule("a part of the query cannot be printed")

    def outer(
        self, node: Outer, left: str | None = None, right: str | None = None, weight: str = ""
    ) -> str:
        """Return the SELECT of an outer join.

        Parameters
        ----------
        left, right
            The texts of the sides (`side`), where they are not those of this version.
        weight
            A further item of the SELECT.
        """
        kind = "FULL" if node.kind == "full" else "LEFT"
        names = {
            ref: f"{alias}.{_exposed(ref)}"
            for alias, block in (("a", node.left), ("b", node.right))
            for ref in refs_in(node.on, block)
        }
        condition = " AND ".join(self.expr(e, names) for e in node.on) or "true"
        n_left, n_right = len(node.left.columns), len(node.right.columns)
        items = [f"a.c{k} AS c{k}" for k in range(n_left)]
        items += [f"b.c{k} AS c{n_left + k}" for k in range(n_right)]
        items = [*items, weight] if weight else items or ["1 AS one"]
        return (
            f"SELECT {', '.join(items)} FROM ({left or self.side(node, node.left)}) AS a"
            f" {kind} JOIN ({right or self.side(node, node.right)}) AS b ON {condition}"
        )

    def side(self, node: Outer, side: Block) -> str:
        """Return the SELECT of one side of an outer join, with the columns that its ON uses."""
        return self.exposing(side, refs_in(node.on, side))

    def exposing(self, block: Block, refs: Sequence[Ref], extra: Sequence[str] = ()) -> str:
        """Return the SELECT of a Block with columns of its leaves beside its own."""
        columns = [*(o.expr for o in block.columns), *refs]
        text = self.block(block, columns=columns)
        n = len(block.columns)
        items = [f"c{k}" for k in range(n)]
        items += [f"c{n + k} AS {_exposed(ref)}" for k, ref in enumerate(refs)]
        return f"SELECT {', '.join((*items, *extra)) or '1'} FROM ({text})"

    def aggregate(self, node: Aggregate, rows: str | None = None) -> str:
        """Return the SELECT of an aggregate.

        Parameters
        ----------
        rows
            The text of the grouped rows (`grouped`), where they are not those of this version.
        """
        items = [f"k{k} AS c{k}" for k in range(len(node.keys))]
        items += [f"{c} AS c{n}" for n, c in enumerate(self._calls(node), len(node.keys))]
        text = f"SELECT {', '.join(items) or 'count(*) AS c0'} FROM ({rows or self.grouped(node)})"
        if node.sets is not None:
            sets = (f"({', '.join(f'k{k}' for k in sorted(one))})" for one in node.sets)
            text += f" GROUP BY GROUPING SETS ({', '.join(sets)})"
        elif node.keys:
            text += f" GROUP BY {', '.join(f'k{k}' for k in range(len(node.keys)))}"
        return text

    def _calls(self, node: Aggregate) -> list[str]:
        """Return the texts of aggregate functions over `grouped` rows."""
        names, _ = grouped_names(node)
        if any(is_order_sensitive(c) for c in node.aggregates) and node.rows.order:
            raise NoRule("of an aggregate that depends on the order of a subquery")
        texts: list[str] = []
        for call in node.aggregates:
            if is_about_sets(call):
                keys = ", ".join(f"k{node.keys.index(a)}" for a in call.args)
                texts.append(f"{call.op}({keys})")
            else:
                texts.append(self.expr(call, names))
        return texts

    def value(self, block: Block) -> str:
        """Return the SELECT of a scalar subquery.

        Expressions over a total are printed in one SELECT with it. If they had one of their own,
        Spark would group all rows of the query around a correlated subquery.
        """
        exprs = [o.expr for o in block.columns]
        match block:
            case Block(
                leaves=((instance, Aggregate(keys=(), sets=None) as node),), conjuncts=()
            ) if id(node) not in self.nodes and {*used_columns(exprs)} == {instance}:
                calls = self._calls(node)
                names = {ref: calls[ref.column] for ref in refs_in(exprs, block)}
                items = (f"{self.expr(e, names)} AS c{k}" for k, e in enumerate(exprs))
                return f"SELECT {', '.join(items)} FROM ({self.grouped(node)})"
            case _:
                return self.block(block)

    def grouped(self, node: Aggregate, replaced: Mapping[int, Part] | None = None) -> str:
        """Return the SELECT of the rows that an aggregate groups: its keys, and what it uses."""
        _, refs = grouped_names(node)
        text = self.block(node.rows, replaced, (*node.keys, *refs))
        items = [f"c{k} AS k{k}" for k in range(len(node.keys))]
        items += [f"c{len(node.keys) + k} AS {_exposed(r)}" for k, r in enumerate(refs)]
        weighted = any(p.weighted for p in (replaced or {}).values())
        items += [WEIGHT] if weighted else []
        return f"SELECT {', '.join(items) or '1 AS one'} FROM ({text})"

    def _limit(self, block: Block, count: Expr | None, offset: Expr | None) -> str:
        columns = [*(o.expr for o in block.columns), *(s.by for s in block.order)]
        text, n = self.block(block, columns=columns), len(block.columns)
        items = ", ".join(f"c{k}" for k in range(n))
        text = f"SELECT {items} FROM ({text})"
        if block.order:
            keys = [f"c{n + k}{direction(s)}" for k, s in enumerate(block.order)]
            text += f" ORDER BY {', '.join(keys)}"
        text += f" LIMIT {self.expr(count)}" if count else ""
        return text + (f" OFFSET {self.expr(offset)}" if offset else "")

    # -------------------------------------------------------------------------------- expressions

    def expr(self, expr: Expr, names: Mapping[Ref, str] | None = None) -> str:
        """Return an expression.

        Parameters
        ----------
        names
            The names of some columns; others are columns of leaves.
        """
        match expr:
            case Ref(instance, column):
                own = names.get(expr) if names else None
                return own or f"l{instance}.c{column}"
            case Subquery():
                return self._subquery(expr, names)
            case Window(function, partition, order, frame):
                keys = [f"PARTITION BY {self._list(partition, names)}"] if partition else []
                if order:
                    sorts = (f"{self.expr(s.by, names)}{direction(s)}" for s in order)
                    keys.append(f"ORDER BY {', '.join(sorts)}")
                keys += [self._frame(frame, names)] if frame else []
                return f"{self.expr(function, names)} OVER ({' '.join(keys)})"
            case Call(op, args, words):
                form = _FORMS.get(op)
                if form is not None:
                    return form(lambda e: self.expr(e, names), args, words)
                return self._call(op, args, words, names)

    def _list(self, exprs: Iterable[Expr], names: Mapping[Ref, str] | None) -> str:
        return ", ".join(self.expr(e, names) for e in exprs)

    def _subquery(self, expr: Subquery, names: Mapping[Ref, str] | None) -> str:
        printer = self.subqueries.get(id(expr), self)
        text = (printer.value if expr.kind == "scalar" else printer.block)(expr.block)
        if names:
            raise NoRule("of a subquery in an aggregate or outer join")
        match expr.kind:
            case "exists":
                return f"(EXISTS ({text}))"  # Spark does not compare it without parentheses
            case "in":
                needles = self._list(expr.args, names)
                return f"({needles}) IN ({text})" if expr.args else f"{needles} IN ({text})"
            case _:
                return f"({text})"

    def _frame(self, frame: Sequence[Expr | str], names: Mapping[Ref, str] | None) -> str:
        kind, start, start_side, end, end_side = (
            part if isinstance(part, str) else self.expr(part, names) for part in frame
        )
        bounds = (f"{start} {start_side}".strip(), f"{end} {end_side}".strip())
        return f"{kind} BETWEEN {bounds[0]} AND {bounds[1]}".upper() if kind else ""

    def _call(
        self, op: str, args: Sequence[Expr], words: Sequence[str], names: Mapping[Ref, str] | None
    ) -> str:
        if not _NAMED.fullmatch(op):
            raise NoRule(f"of {op.removeprefix('sqlglot.').upper()}")
        if op in AGGREGATE_OPS or set(words) <= {"distinct", "ignore nulls"}:
            return self._aggregate_call(op, args, words, names)
        if op in _UNIT_FIRST and len(words) == 1:
            return f"{_UNIT_FIRST[op]}({words[0]}, {self._list(args, names)})"
        raise NoRule(f"of {op}")

    def _aggregate_call(
        self, op: str, args: Sequence[Expr], words: Sequence[str], names: Mapping[Ref, str] | None
    ) -> str:
        words = [*words]
        suffix = ""
        if words and words[-1] == "filter":
            words.pop()
            suffix = f" FILTER (WHERE {self.expr(args[-1], names)})"
            args = args[:-1]
        if "within" in words:
            at = words.index("within")
            directions, words = words[at + 1 :], words[:at]
            keys = args[len(args) - len(directions) :]
            args = args[: len(args) - len(directions)]
            sorts = (
                f"{self.expr(k, names)} {_words_of_direction(d)}"
                for k, d in zip(keys, directions, strict=True)
            )
            suffix = f" WITHIN GROUP (ORDER BY {', '.join(sorts)}){suffix}"
        if "ignore nulls" in words:
            words.remove("ignore nulls")
            suffix = f" IGNORE NULLS{suffix}"
        distinct = "DISTINCT " if words == ["distinct"] else ""
        if words and not distinct:
            raise NoRule(f"of {op}")
        inside = self._list(args, names) if args or op != "count" else "*"
        return f"{op}({distinct}{inside}){suffix}"


_UNIT_FIRST = {
    "date_add": "dateadd",
    "datediff": "datediff",
    "timestampadd": "timestampadd",
    "timestampdiff": "timestampdiff",
}


def direction(sort: Sort) -> str:
    """Return the direction of a key of ORDER BY, with a space before it."""
    way = "DESC" if sort.descending else "ASC"
    return f" {way} NULLS {'FIRST' if sort.nulls_first else 'LAST'}"


def _words_of_direction(words: str) -> str:
    way, nulls = words.split()
    return f"{way.upper()} NULLS {nulls.upper()}"


def _exposed(ref: Ref) -> str:
    return f"r{ref.instance}_{ref.column}"


def is_about_sets(call: Expr) -> TypeGuard[Call]:
    """Whether a call tells which keys a grouping set has."""
    return isinstance(call, Call) and call.op in ("grouping", "grouping_id")


def grouped_names(node: Aggregate) -> tuple[dict[Ref, str], list[Ref]]:
    """Return the names of the columns that the aggregates of a node use, and these columns."""
    refs = refs_in((c for c in node.aggregates if not is_about_sets(c)), node.rows)
    return {r: _exposed(r) for r in refs}, refs


def is_order_sensitive(call: Expr) -> bool:
    """Whether the value of an aggregate may depend on the order of rows."""
    return isinstance(call, Call) and call.op in ORDER_SENSITIVE


def refs_in(exprs: Iterable[Expr], block: Block) -> list[Ref]:
    """Return the columns of a Block's leaves that expressions use, each once, in order."""
    inside = {i for i, _ in block.leaves}
    seen, stack = set[int](), list[object](exprs)
    refs: dict[Ref, None] = {}
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, Ref):
            if this.instance in inside:
                refs[this] = None
        else:
            stack += parts(this)
    return sorted(refs, key=lambda r: (r.instance, r.column))


def used_columns(things: Iterable[object]) -> dict[int, set[int]]:
    """Return the numbers of the columns of each instance that things refer to."""
    used: dict[int, set[int]] = {}
    seen, stack = set[int](), list[object](things)
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, Ref):
            used.setdefault(this.instance, set()).add(this.column)
        else:
            stack += parts(this)
    return used


# ----------------------------------------------------------------------------------- forms of calls

_Show = Callable[["Expr"], str]
"""Prints an operand."""
_Form = Callable[[_Show, Sequence["Expr"], Sequence[str]], str]
"""Prints a call, from its operands and words."""


def _infix(op: str) -> _Form:
    def form(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
        if words or len(args) < 2:
            raise NoRule(f"of {op}")
        return f"({f' {_INFIX[op]} '.join(map(show, args))})"

    return form


def _quoted(text: str) -> str:
    if "\\" in text or not text.isprintable():
        raise NoRule("of a string with escapes")
    if "`" in text:
        raise NoRule("of a string with a backquote")  # names of relations are found by these
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return f'"{text}"'
    raise NoRule("of a string with both kinds of quotes")


def _number(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    text = words[0]
    if not _NUMBER.fullmatch(text):
        raise NoRule(f"of the number {text}")
    return f"({text})" if text.startswith("-") else text


def _case(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    pairs = zip(args[::2], args[1::2], strict=False)
    text = "".join(f" WHEN {show(test)} THEN {show(value)}" for test, value in pairs)
    text += f" ELSE {show(args[-1])}" if words else ""
    return f"(CASE{text} END)"


def _interval(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    (value,) = args
    if not isinstance(value, Call) or value.op not in ("string", "number"):
        raise NoRule("of a computed INTERVAL")
    return f"INTERVAL {show(value).strip('()')} {words[0]}".rstrip()


def _struct(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    items = (f"{show(a)} AS {quote(w)}" for a, w in zip(args, words, strict=True))
    return f"struct({', '.join(items)})"


def _lambda(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    depth, n = map(int, words)
    parameters = [f"p{depth + k}" for k in range(n)]
    left = f"({', '.join(parameters)})" if n != 1 else parameters[0]
    return f"{left} -> {show(args[0])}"


def _parameter(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    if not words[0].isdecimal():
        raise NoRule(f"of the parameter :{words[0]}")
    return f"p{words[0]}"


def _parts_of(args: Sequence[Expr], words: Sequence[str]) -> dict[str, Expr | str]:
    """Return the parts of a node of the parser by name; see `expressions._other`."""
    exprs, named = [*args], dict[str, "Expr | str"]()
    rest = [*words]
    while rest:
        name, _, n = rest.pop(0).partition(":")
        if n != "1":
            raise NoRule("of a call of an unknown form")
        named[name] = rest.pop(0) if rest and ":" not in rest[0] else exprs.pop(0)
    return named


def _like(word: str) -> _Form:
    def form(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
        named = _parts_of(args, words)
        if named.keys() != {"this", "expression"}:
            raise NoRule(f"of {word} of an unknown form")
        value, pattern = named["this"], named["expression"]
        if isinstance(value, str) or isinstance(pattern, str):
            raise NoRule(f"of {word} of an unknown form")
        return f"({show(value)} {word} {show(pattern)})"

    return form


def _substring(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
    named = _parts_of(args, words)
    exprs = [named.pop(k) for k in ("this", "start", "length") if k in named]
    if named or any(isinstance(e, str) for e in exprs):
        raise NoRule("of SUBSTRING of an unknown form")
    return f"substring({', '.join(show(e) for e in exprs if not isinstance(e, str))})"


def _refused(what: str) -> _Form:
    def form(show: _Show, args: Sequence[Expr], words: Sequence[str]) -> str:
        raise NoRule(f"of {what}")

    return form


_FORMS: Mapping[str, _Form] = {
    **{op: _infix(op) for op in _INFIX},
    "string": lambda show, args, words: _quoted(words[0]),
    "number": _number,
    "boolean": lambda show, args, words: words[0],
    "null": lambda show, args, words: "NULL",
    "not": lambda show, args, words: f"(NOT {show(args[0])})",
    "negative": lambda show, args, words: f"(- {show(args[0])})",
    "~": lambda show, args, words: f"(~ {show(args[0])})",
    "is null": lambda show, args, words: f"({show(args[0])} IS NULL)",
    "is": lambda show, args, words: f"({show(args[0])} IS {words[0].upper()})",
    "in": lambda show, args, words: f"({show(args[0])} IN ({', '.join(map(show, args[1:]))}))",
    "cast": lambda show, args, words: f"CAST({show(args[0])} AS {words[0]})",
    "try_cast": lambda show, args, words: f"TRY_CAST({show(args[0])} AS {words[0]})",
    "case": _case,
    "interval": _interval,
    "extract": lambda show, args, words: f"EXTRACT({words[0]} FROM {show(args[0])})",
    "struct": _struct,
    "tuple": lambda show, args, words: f"({', '.join(map(show, args))})",
    "[]": lambda show, args, words: f"{show(args[0])}[{show(args[1])}]",
    "field": lambda show, args, words: f"{show(args[0])}.{quote(words[0])}",
    "lambda": _lambda,
    "parameter": _parameter,
    "sqlglot.like": _like("LIKE"),
    "sqlglot.ilike": _like("ILIKE"),
    "sqlglot.substring": _substring,
    "between": _refused("BETWEEN over a nondeterministic value"),
    "user's": _refused("a function that is not one of Spark's own"),
    "now": _refused("the clock"),
    "none": _refused("an unknown column"),
}
"""The printed forms of calls that are not functions of the same name."""
