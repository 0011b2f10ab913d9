"""A parsed query → relational algebra: names are resolved here, exactly as Spark resolves them.

`bind` turns sqlglot's tree into a `Block`. Three outcomes: a Block; problems (a column that
certainly does not exist, with its place); or `Unanalysable`, where we do not know what Spark
knows, and the query is treated as a whole (`identity.py` digests its text). Nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.dialect import plain, type_name
from persist_assets.errors import Location, Problem, did_you_mean
from persist_assets.meaning.algebra import (
    Aggregate,
    Block,
    Call,
    Calls,
    Derived,
    Expr,
    Generate,
    Given,
    Limit,
    Node,
    Out,
    Outer,
    Rebuild,
    Ref,
    SetOperation,
    Sort,
    Subquery,
    Values,
    Window,
    conjuncts,
    walk,
)
from persist_assets.meaning.functions import (
    AGGREGATES,
    GENERATORS,
    INTEGRAL,
    KNOWN,
    SYNONYMS,
    TABLE_FUNCTIONS,
    UNIT_FIRST,
    VOLATILE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.model import ColumnRef

MAX_LEAVES = 16
"""A subquery is merged into its reader while the reader has no more leaves than this; beyond,
it stays a leaf, which keeps chains of self-joins from growing without end."""


class Unanalysable(Exception):
    """We do not know what this part of a query means.

    Attributes
    ----------
    reason
        What stands in the way, half a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Face:
    """What a source shows to those that read it.

    Attributes
    ----------
    block
        Its leaves are `Given`: readers see through its filters, projections and joins only.
        None when there is nothing to see through.
    given
        The same relation as one leaf.
    names
        Of its columns, or None when they are not known.
    """

    block: Block | None
    given: Given
    names: tuple[str, ...] | None


@dataclass(slots=True)
class Entry:
    """A column that a name may mean in some place of a query."""

    name: str
    written: str
    expr: Expr
    type: str | None
    qualifiers: tuple[str, ...]

    def answers(self, qualifiers: tuple[str, ...]) -> bool:
        """Whether a name with these qualifiers may mean this column."""
        return not qualifiers or self.qualifiers[-len(qualifiers) :] == qualifiers


@dataclass(slots=True)
class From:
    """A FROM clause under construction: leaves, conjuncts, and what names mean.

    Attributes
    ----------
    hidden
        Columns that only a qualified name reaches: the other side's key after USING.
    outer
        The query around this one, whose names are visible too.
    """

    outer: From | None = None
    leaves: dict[int, Node] = field(default_factory=dict)
    conjuncts: list[Expr] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    hidden: list[Entry] = field(default_factory=list)
    order: tuple[Sort, ...] = ()

    def block(self, columns: Iterable[Out] = ()) -> Block:
        """Return the rows so far as a Block with these columns."""
        return Block(tuple(self.leaves.items()), tuple(self.conjuncts), tuple(columns))


@dataclass(slots=True)
class Cte:
    """A common table expression: bound when it is first read."""

    query: Any
    names: tuple[str, ...]
    ctes: Mapping[str, Cte]
    outer: From | None
    recursive: bool
    block: Block | None = None


@dataclass(slots=True)
class Select:
    """What names may mean besides columns while a SELECT is bound."""

    source: From
    aliases: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    aliases_first: bool = False
    ctes: Mapping[str, Cte] = field(default_factory=dict)


_BINARY = {
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

# Nodes that sqlglot makes of plain function calls whose names are key words of the language.
_FUNCTIONS: dict[type[exp.Expr], str] = {
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

_SELECT_ARGS = frozenset(
    [
        "with_",
        "expressions",
        "from_",
        "joins",
        "laterals",
        "where",
        "group",
        "having",
        "windows",
        "qualify",
        "distinct",
        "order",
        "limit",
        "offset",
        "sort",
        "cluster",
        "distribute",
        "hint",
        "kind",
        "operation_modifiers",
    ]
)


class Binder:
    """Binds one source's query.

    Parameters
    ----------
    path
        Of the file, for locations.
    upstream
        For each reference of the query the face of the source it means.
    reference
        The key in a table's `meta` that holds the number of its reference.
    """

    def __init__(self, path: str, upstream: Sequence[Face], reference: str) -> None:
        self.path, self.upstream, self.reference = path, upstream, reference
        self.calls = Calls()
        self.instances = count(1)
        self.problems: list[Problem] = []
        self.types: dict[int, tuple[str | None, ...]] = {}
        self.origins: dict[Expr, frozenset[ColumnRef]] = {}

    # ------------------------------------------------------------------------------ problems

    def place(self, node: Any) -> Location:
        """Return where the first identifier in `node` stands."""
        metas = [i.meta for i in node.find_all(exp.Identifier) if "start" in i.meta]
        if not metas:
            return Location(self.path)
        first = min(metas, key=lambda meta: meta["start"])
        return Location(self.path, first["line"], first["col"] - (first["end"] - first["start"]))

    # ------------------------------------------------------------------------------- queries

    def query(self, node: Any, outer: From | None, ctes: Mapping[str, Cte]) -> Block:
        """Bind a query, whatever its form."""
        if node.args.get("with_"):
            ctes = self._with_(node.args["with_"], outer, ctes)
        match node:
            case exp.Select():
                return self._select(node, outer, ctes)
            case exp.SetOperation():
                return self._set_operation(node, outer, ctes)
            case exp.Values():
                return self._values(node, outer, ctes)
            case exp.Subquery() if isinstance(node.this, exp.Query | exp.Values):
                if not node.args.get("sample"):
                    block = self.query(node.this, outer, ctes)
                    return self._ordered(node, block, outer, ctes)
            case _:
                pass
        raise Unanalysable(f"of {_kind(node)}")

    def _with_(
        self, node: exp.With, outer: From | None, ctes: Mapping[str, Cte]
    ) -> Mapping[str, Cte]:
        visible = dict(ctes)
        for cte in node.expressions:
            names = tuple(plain(c.name) for c in cte.args["alias"].args.get("columns") or ())
            recursive = bool(node.args.get("recursive"))
            visible[plain(cte.alias).lower()] = Cte(
                cte.this, names, dict(visible), outer, recursive
            )
        return visible

    def _set_operation(self, node: Any, outer: From | None, ctes: Mapping[str, Cte]) -> Block:
        if node.args.get("by_name"):
            raise Unanalysable("of UNION BY NAME")
        kinds = {exp.Union: "union all", exp.Except: "except", exp.Intersect: "intersect"}
        left = self.query(node.this, outer, ctes)
        right = self.query(node.expression, outer, ctes)
        if len(left.columns) != len(right.columns):
            n, m = len(left.columns), len(right.columns)
            message = f"the branches of a set operation have {n} and {m} columns"
            self.problems.append(Problem("set-operation", message, self.place(node.expression)))
            raise Unanalysable("of a set operation of unequal branches")
        kind, distinct = kinds[type(node)], bool(node.args.get("distinct"))
        if kind != "union all" and not distinct:
            kind += " all"
        columns = [
            replace(a, type=a.type if a.type == b.type else None)
            for a, b in zip(left.columns, right.columns, strict=True)
        ]
        branches = (*self._union_branches(left, kind), *self._union_branches(right, kind))
        block = self._leaf(SetOperation(kind, branches), columns)
        if kind == "union all" and distinct:
            block = self._distinct(block)
        return self._ordered(node, block, outer, ctes)

    def _union_branches(self, block: Block, kind: str) -> tuple[Block, ...]:
        """Return the branches of a union that is a branch itself, or the one branch."""
        if kind != "union all" or block.conjuncts or len(block.leaves) != 1:
            return (block,)
        instance, node = block.leaves[0]
        if not isinstance(node, SetOperation) or node.kind != kind:
            return (block,)
        untouched = [self.calls.ref(instance, i) for i in range(len(node.branches[0].columns))]
        return node.branches if [o.expr for o in block.columns] == untouched else (block,)

    def _leaf(self, node: Node, columns: Iterable[Out]) -> Block:
        """Return a Block of one leaf, all of whose columns it passes on."""
        columns = tuple(columns)
        instance = next(self.instances)
        self.types[instance] = tuple(o.type for o in columns)
        outs = (replace(o, expr=self.calls.ref(instance, i)) for i, o in enumerate(columns))
        return Block(((instance, node),), (), tuple(outs))

    def _distinct(self, block: Block) -> Block:
        keys = {out.expr: out for out in block.columns}
        rows = replace(block, columns=(), order=())
        whole = self._leaf(Aggregate(rows, tuple(keys), ()), keys.values())
        made = dict(zip(keys, whole.columns, strict=True))
        return replace(
            whole, columns=tuple(replace(o, expr=made[o.expr].expr) for o in block.columns)
        )

    def _ordered(
        self, node: Any, block: Block, outer: From | None, ctes: Mapping[str, Cte]
    ) -> Block:
        """Apply ORDER BY, OFFSET and LIMIT that stand after a whole query."""
        order = node.args.get("order")
        if order:
            entries = [Entry(o.name, o.written, o.expr, o.type, ()) for o in block.columns]
            select = Select(From(outer, entries=entries), ctes=ctes)
            block = replace(
                block, order=self._sorts(order, select, [o.expr for o in block.columns])
            )
        return self._limited(node, block, outer, ctes)

    def _limited(
        self, node: Any, block: Block, outer: From | None, ctes: Mapping[str, Cte]
    ) -> Block:
        limit, offset = node.args.get("limit"), node.args.get("offset")
        if limit is not None and not isinstance(limit, exp.Limit):
            raise Unanalysable("of FETCH")
        n = limit.expression if limit else None
        if isinstance(n, exp.Var) and n.name.upper() == "ALL":
            n = None
        if n is None and offset is None:
            return block
        select = Select(From(outer), ctes=ctes)
        how_many = self._expr(n, select) if n is not None else None
        skipped = self._expr(offset.expression, select) if offset is not None else None
        return self._leaf(Limit(block, how_many, skipped), block.columns)

    def _values(self, node: exp.Values, outer: From | None, ctes: Mapping[str, Cte]) -> Block:
        select = Select(From(outer), ctes=ctes)
        rows = tuple(
            tuple(
                self._expr(v, select)
                for v in (row.expressions if isinstance(row, exp.Tuple) else [row])
            )
            for row in node.expressions
        )
        if len({len(row) for row in rows}) != 1:
            raise Unanalysable("of VALUES rows of unequal length")
        types = [{self._type(v) for v in column} for column in zip(*rows, strict=True)]
        columns = [
            Out(f"col{i}", f"col{i}", rows[0][i - 1], kinds.pop() if len(kinds) == 1 else None)
            for i, kinds in enumerate(types, 1)
        ]
        return self._leaf(Values(rows), columns)

    # ---------------------------------------------------------------------------------- FROM

    def _from_item(
        self, node: Any, outer: From | None, ctes: Mapping[str, Cte], sibling: From | None = None
    ) -> From:
        """Bind one item of a FROM clause, its parenthesised joins included."""
        unknown = set(_given_args(node)) - {
            *("this", "db", "catalog", "alias", "joins", "sample", "with_", "expressions", "hints"),
            *("laterals", "view", "outer", "ordinality", "order", "limit", "offset"),
        }
        if unknown:
            raise Unanalysable(f"of {sorted(unknown)[0].upper()} in FROM")
        if node.args.get("laterals") and not isinstance(node, exp.Lateral):
            raise Unanalysable("of LATERAL VIEW inside a joined item")
        alias = node.args.get("alias")
        name = plain(alias.name) if alias else ""
        names = tuple(plain(c.name) for c in (alias.args.get("columns") or ())) if alias else ()
        match node:
            case exp.Subquery() if _is_join(node):
                if name:
                    raise Unanalysable("of an alias of a parenthesised join")
                source = self._from_item(node.this, outer, ctes)
            case exp.Subquery() | exp.Values():
                source = self._derived_from(self.query(node, outer, ctes), name, names, outer)
            case exp.Lateral():
                source = self._lateral(node, name, names, outer, ctes, sibling)
            case exp.Table() if isinstance(node.this, exp.Identifier):
                source = self._table(node, name, names, outer, ctes)
            case exp.Table():
                generated = self._generate(node.this, False, Select(From(outer), ctes=ctes), names)
                source = self._derived_from(generated, name, (), outer)
            case _:
                raise Unanalysable(f"of {_kind(node)} in FROM")
        if node.args.get("sample"):
            raise Unanalysable("of TABLESAMPLE")
        for join in node.args.get("joins") or ():
            source = self._join(source, join, outer, ctes)
        return source

    def _table(
        self,
        node: exp.Table,
        name: str,
        names: tuple[str, ...],
        outer: From | None,
        ctes: Mapping[str, Cte],
    ) -> From:
        number = node.meta.get(self.reference)
        written = plain(node.name)
        if number is None:
            block = self._cte(ctes[written.lower()])
            return self._derived_from(block, name or written, names, outer)
        face = self.upstream[number]
        if face.names is None:
            raise Unanalysable(f"because the columns of `{written}` are not known")
        source = self._derived_from(self._face(face), name or written, names, outer)
        for entry, origins in zip(source.entries, face.given.origins, strict=True):
            if any(
                isinstance(part, Ref) for part in walk(entry.expr)
            ):  # constants come from nowhere
                self.origins[entry.expr] = self.origins.get(entry.expr, frozenset()) | origins
        if not name:
            qualifiers = tuple(plain(p.name).lower() for p in node.parts)
            for entry in source.entries:
                entry.qualifiers = qualifiers
        return source

    def _face(self, face: Face) -> Block:
        """Return a Block of fresh instances for one use of another source."""
        assert face.names is not None
        if face.block is None:
            none = Call("none")
            columns = [
                Out(n, n, none, t) for n, t in zip(face.names, face.given.types, strict=True)
            ]
            return self._leaf(face.given, columns)
        return self._fresh(face.block)

    def _fresh(self, block: Block) -> Block:
        """Return a copy whose instances, at every depth, are used nowhere else."""
        moved: dict[int, int] = {}
        for thing in walk(block):
            for instance, node in thing.leaves if isinstance(thing, Block) else ():
                moved[instance] = next(self.instances)
                types = (
                    node.types
                    if isinstance(node, Given | Generate)
                    else self.types.get(instance, ())
                )
                self.types[moved[instance]] = types
        rebuild = Rebuild(self.calls, instances=moved)
        copy = rebuild.block(block)
        for expr, origins in [*self.origins.items()]:
            if id(expr) in rebuild.done:
                self.origins[rebuild.expr(expr)] = origins
        return copy

    def _cte(self, cte: Cte) -> Block:
        if cte.recursive:
            raise Unanalysable("of WITH RECURSIVE")
        if cte.block is None:
            cte.block = self.query(cte.query, cte.outer, cte.ctes)
            if cte.names:
                cte.block = replace(cte.block, columns=_renamed(cte.block.columns, cte.names))
        return self._fresh(cte.block)

    def _derived_from(
        self, block: Block, name: str, names: tuple[str, ...], outer: From | None
    ) -> From:
        """Return a FROM clause that is one relation: merged where that is sound, else a leaf."""
        columns = _renamed(block.columns, names) if names else block.columns
        if self._volatile(*block.conjuncts, *block.columns):
            block = self._leaf(Derived(block, volatile=True), columns)
            columns = block.columns
        qualifiers = (name.lower(),) if name else ()
        return From(
            outer,
            dict(block.leaves),
            list(block.conjuncts),
            [Entry(o.name, o.written, o.expr, o.type, qualifiers) for o in columns],
            order=block.order,
        )

    def _volatile(self, *things: object) -> bool:
        """Whether something in or below `things` may differ each time it is computed."""
        return any(isinstance(t, Call) and t.op in VOLATILE for t in walk(*things))

    def _join(
        self, left: From, node: exp.Join, outer: From | None, ctes: Mapping[str, Cte]
    ) -> From:
        unknown = set(_given_args(node)) - {"this", "side", "kind", "method", "on", "using", "hint"}
        method = (node.args.get("method") or "").upper()
        if unknown or method not in ("", "NATURAL"):
            raise Unanalysable(f"of {method or sorted(unknown)[0].upper()} JOIN")
        side, kind = (node.args.get("side") or "").upper(), (node.args.get("kind") or "").upper()
        right = self._from_item(node.this, outer, ctes, sibling=left)
        if isinstance(node.this, exp.Lateral) and (side or kind not in ("", "CROSS", "INNER")):
            raise Unanalysable("of an outer LATERAL join")
        named = node.args.get("using") or ()
        using = [plain(u.name) for u in named]
        if method:
            theirs = {e.name.lower() for e in right.entries}
            using = [e.name for e in left.entries if e.name.lower() in theirs]
        both = From(
            outer,
            left.leaves | right.leaves,
            [*left.conjuncts, *right.conjuncts],
            [*left.entries, *right.entries],
            [*left.hidden, *right.hidden],
        )
        place = self.place(named[0] if named else node)
        keys = [(self._using_key(u, left, place), self._using_key(u, right, place)) for u in using]
        condition: list[Expr] = [self.calls.call("=", (a.expr, b.expr)) for a, b in keys]
        if node.args.get("on") is not None:
            condition += conjuncts(self._expr(node.args["on"], Select(both, ctes=ctes)))
        if kind in ("SEMI", "ANTI"):
            return self._semi_join(left, right, condition, kind)
        if side in ("LEFT", "RIGHT", "FULL"):
            return self._outer_join(left, right, condition, side, keys)
        if len(both.leaves) > MAX_LEAVES:
            both = self._joined_as_leaf(both, condition)
        else:
            both.conjuncts += condition
        return self._merge_keys(both, left, right, keys, side) if keys else both

    def _joined_as_leaf(self, both: From, condition: list[Expr]) -> From:
        """Return `both` as one leaf: it has become too large to stay flat."""
        both.conjuncts += condition
        everything = [*both.entries, *both.hidden]
        outs = [Out(e.name, e.written, e.expr, e.type) for e in everything]
        merged = self._leaf(Derived(both.block(outs)), outs)
        for entry, out in zip(everything, merged.columns, strict=True):
            entry.expr = out.expr
        return From(both.outer, dict(merged.leaves), [], both.entries, both.hidden)

    def _using_key(self, name: str, side: From, place: Location) -> Entry:
        found = [e for e in side.entries if e.name.lower() == name.lower()]
        if len(found) == 1:
            return found[0]
        what = "is in several columns" if found else "is no column"
        hint = None if found else did_you_mean(name, (e.name for e in side.entries))
        message = f"`{name}` {what} of one side of the join"
        self.problems.append(Problem("join-key", message, place, hint))
        raise Unanalysable("of a join whose keys are not clear")

    def _merge_keys(
        self, both: From, left: From, right: From, keys: list[tuple[Entry, Entry]], side: str
    ) -> From:
        """Order the columns as Spark does after USING: the keys once, then the rest."""
        shown: list[Entry] = []
        hidden: list[Entry] = []
        for a, b in keys:
            if side == "RIGHT":
                shown.append(b)
                hidden.append(a)
            elif side == "FULL":
                joint = self.calls.call("coalesce", (a.expr, b.expr))
                kind = a.type if a.type == b.type else None
                shown.append(Entry(a.name, a.written, joint, kind, ()))
                hidden += (a, b)
            else:
                shown.append(a)
                hidden.append(b)
        merged = {id(e) for pair in keys for e in pair}
        both.entries = shown + [e for e in (*left.entries, *right.entries) if id(e) not in merged]
        both.hidden = [*both.hidden, *hidden]
        return both

    def _semi_join(self, left: From, right: From, condition: list[Expr], kind: str) -> From:
        inner = Block(tuple(right.leaves.items()), (*right.conjuncts, *condition))
        test: Expr = Subquery("exists", inner)
        left.conjuncts.append(test if kind == "SEMI" else self.calls.call("not", (test,)))
        return left

    def _outer_join(
        self,
        left: From,
        right: From,
        condition: list[Expr],
        side: str,
        keys: list[tuple[Entry, Entry]],
    ) -> From:
        first, second = (right, left) if side == "RIGHT" else (left, right)
        sides = [[*s.entries, *s.hidden] for s in (first, second)]
        outs = [[Out(e.name, e.written, e.expr, e.type) for e in entries] for entries in sides]
        node = Outer(
            "full" if side == "FULL" else "left",
            first.block(outs[0]),
            second.block(outs[1]),
            tuple(dict.fromkeys(condition)),
        )
        whole = self._leaf(node, [*outs[0], *outs[1]])
        for entry, out in zip((*sides[0], *sides[1]), whole.columns, strict=True):
            entry.expr = out.expr
        both = From(
            left.outer,
            dict(whole.leaves),
            [],
            [*left.entries, *right.entries],
            [*left.hidden, *right.hidden],
        )
        return self._merge_keys(both, left, right, keys, side) if keys else both

    def _lateral(
        self,
        node: exp.Lateral,
        name: str,
        names: tuple[str, ...],
        outer: From | None,
        ctes: Mapping[str, Cte],
        sibling: From | None,
    ) -> From:
        if isinstance(node.this, exp.Subquery | exp.Query):
            raise Unanalysable("of a LATERAL subquery")
        select = Select(sibling or From(outer), ctes=ctes)
        block = self._generate(node.this, bool(node.args.get("outer")), select, names)
        source = self._derived_from(block, name, (), outer)
        return source

    def _generate(self, node: Any, outer: bool, select: Select, names: tuple[str, ...]) -> Block:
        """Bind a call that makes rows; `names` rename its columns."""
        op = plain(node.name).lower() if isinstance(node, exp.Anonymous) else ""
        if op not in TABLE_FUNCTIONS:
            raise Unanalysable(f"of the table function {op or _kind(node)}")
        args = tuple(self._expr(a, select) for a in node.expressions)
        if op.endswith("_outer"):
            op, outer = op.removesuffix("_outer"), True
        columns = self._generated(op, args, len(names))
        if names:
            if len(names) != len(columns):
                raise Unanalysable(f"because {op} does not have {len(names)} columns")
            columns = [(n, t) for n, (_, t) in zip(names, columns, strict=True)]
        call = self.calls.call(op, args)
        return self._leaf(
            Generate(call, outer, tuple(t for _, t in columns)),
            [Out(n, n, call, t) for n, t in columns],
        )

    def _generated(self, op: str, args: tuple[Expr, ...], n: int) -> list[tuple[str, str | None]]:
        kind = self._type(args[0]) if args else None
        match op:
            case "range":
                return [("id", "bigint")]
            case "json_tuple":
                return [(f"c{i}", "string") for i in range(len(args) - 1)]
            case "stack":
                rows = args[0]
                if isinstance(rows, Call) and rows.op == "number" and rows.words[0].isdecimal():
                    width = -(-(len(args) - 1) // max(int(rows.words[0]), 1))
                    return [(f"col{i}", None) for i in range(width)]
            case "inline" if kind and kind.startswith("array<struct<"):
                element = exp.DataType.build(kind, dialect="spark").expressions[0]
                return [(f.name, type_name(f.args.get("kind"))) for f in element.expressions]
            case "inline" if n:
                return [("", None)] * n
            case "explode" | "posexplode":
                position: list[tuple[str, str | None]] = (
                    [("pos", "int")] if op == "posexplode" else []
                )
                width = n - len(position) if n else 0
                if (kind and kind.startswith("array<")) or width == 1:
                    element = kind[6:-1] if kind and kind.startswith("array<") else None
                    return [*position, ("col", element)]
                if (kind and kind.startswith("map<")) or width == 2:
                    return [*position, ("key", None), ("value", None)]
            case _:
                pass
        raise Unanalysable(f"because the columns of {op} are not known; name them")

    # -------------------------------------------------------------------------------- SELECT

    def _select(self, node: exp.Select, outer: From | None, ctes: Mapping[str, Cte]) -> Block:
        unknown = set(_given_args(node)) - _SELECT_ARGS
        if unknown or node.args.get("kind") or node.args.get("operation_modifiers"):
            raise Unanalysable(f"of {sorted(unknown or {'SELECT AS'})[0].strip('_').upper()}")
        source = From(outer)
        if node.args.get("from_"):
            source = self._from_item(node.args["from_"].this, outer, ctes)
            for join in node.args.get("joins") or ():
                source = self._join(source, join, outer, ctes)
        for view in node.args.get("laterals") or ():
            self._add_generated(source, self._lateral_view(view, source, ctes))
        select = Select(source, windows=_windows(node), ctes=ctes)
        if node.args.get("where"):
            source.conjuncts += conjuncts(self._expr(node.args["where"].this, select))
        outs = self._projections(node, select)
        group, having = node.args.get("group"), node.args.get("having")
        filters = self._expr(having.this, replace(select, aliases_first=True)) if having else None
        qualify = node.args.get("qualify")
        kept = self._expr(qualify.this, replace(select, aliases_first=True)) if qualify else None
        order: tuple[Sort, ...] = ()
        if node.args.get("order") and not node.args.get("distinct"):
            ordering = replace(select, aliases_first=True)
            order = self._sorts(node.args["order"], ordering, [o.expr for o in outs])
        every = [
            *(o.expr for o in outs),
            *(s.by for s in order),
            *(e for e in (filters, kept) if e),
        ]
        if group or having or any(self._aggregates(e) for e in every):
            source, regroup = self._grouped(source, select, group, outs, every)
            outs = [replace(o, expr=regroup.expr(o.expr)) for o in outs]
            order = regroup.sorts(order)
            filters = regroup.expr(filters) if filters else None
            kept = regroup.expr(kept) if kept else None
        if filters:
            source.conjuncts += conjuncts(filters)
        finish = self._finish_windows(source)
        outs = [replace(o, expr=finish.expr(o.expr)) for o in outs]
        order = finish.sorts(order)
        if kept:
            source.conjuncts += conjuncts(finish.expr(kept))
        block = replace(source.block(outs), order=order or self._inherited(source, group))
        if node.args.get("distinct"):
            if node.args["distinct"].args.get("on"):
                raise Unanalysable("of DISTINCT ON")
            block = self._distinct(block)
            return self._ordered(node, block, outer, ctes)
        return self._limited(node, block, outer, ctes)

    def _inherited(self, source: From, group: Any) -> tuple[Sort, ...]:
        return source.order if len(source.leaves) == 1 and not group else ()

    def _lateral_view(self, view: exp.Lateral, source: From, ctes: Mapping[str, Cte]) -> From:
        alias = view.args.get("alias")
        name = plain(alias.name) if alias else ""
        names = tuple(plain(c.name) for c in (alias.args.get("columns") or ())) if alias else ()
        return self._lateral(view, name, names, source.outer, ctes, source)

    def _add_generated(self, source: From, generated: From) -> None:
        source.leaves |= generated.leaves
        source.entries += generated.entries
        source.order = ()

    def _projections(self, node: exp.Select, select: Select) -> list[Out]:
        outs: list[Out] = []
        generators = 0
        for item in node.expressions:
            inner = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
            if isinstance(inner, exp.Star) or (
                isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
            ):
                outs += self._star(inner, select.source)
                continue
            if isinstance(inner, exp.Anonymous) and plain(inner.name).lower() in GENERATORS:
                generators += 1
                outs += self._select_generator(item, inner, node, select)
                if generators > 1:
                    raise Unanalysable("of two generators in one SELECT")
                continue
            if isinstance(item, exp.Aliases):
                raise Unanalysable("of several aliases for one expression")
            expr = self._expr(inner, select)
            name, written = self._output_name(item, inner, select)
            outs.append(Out(name, written, expr, self._type(expr)))
            if isinstance(item, exp.Alias):
                key = name.lower()
                select.aliases[key] = (*select.aliases.get(key, ()), expr)
        return outs

    def _select_generator(
        self, item: Any, call: Any, node: exp.Select, select: Select
    ) -> list[Out]:
        if node.args.get("group") or any(node.find_all(exp.Window)):
            raise Unanalysable("of a generator beside groups or windows in one SELECT")
        names: tuple[str, ...] = ()
        if isinstance(item, exp.Alias):
            names = (plain(item.alias),)
        elif isinstance(item, exp.Aliases):
            names = tuple(plain(e.name) for e in item.expressions)
        block = self._generate(call, False, select, names)
        select.source.leaves |= dict(block.leaves)
        select.source.order = ()
        return list(block.columns)

    def _star(self, node: Any, source: From) -> list[Out]:
        star = node if isinstance(node, exp.Star) else node.this
        if set(_given_args(star)) - {"except_"}:
            raise Unanalysable("of * REPLACE or RENAME")
        qualifiers: tuple[str, ...] = ()
        if isinstance(node, exp.Column):
            parts_ = [node.args.get(k) for k in ("catalog", "db", "table")]
            qualifiers = tuple(plain(p.name).lower() for p in parts_ if p)
        without = {plain(e.name).lower() for e in star.args.get("except_") or ()}
        entries = source.entries
        if qualifiers:
            entries = [e for e in (*source.hidden, *source.entries) if e.answers(qualifiers)]
        if not entries:
            raise Unanalysable(
                f"of {'.'.join(qualifiers)}.*" if qualifiers else "of * without FROM"
            )
        unknown = without - {e.name.lower() for e in entries}
        if unknown:
            raise Unanalysable(f"because * EXCEPT names `{min(unknown)}`")
        return [
            Out(e.name, e.written, e.expr, e.type) for e in entries if e.name.lower() not in without
        ]

    def _output_name(self, item: Any, inner: Any, select: Select) -> tuple[str, str]:
        if isinstance(item, exp.Alias):
            if not isinstance(item.args["alias"], exp.Identifier):
                raise Unanalysable("of a path into a variant")
            name = plain(item.alias)
            return name, name
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.Column):
            written = plain(inner.name)
            entry = next(
                (e for e in select.source.entries if e.name.lower() == written.lower()), None
            )
            return (entry.name if entry else written), written
        if isinstance(inner, exp.Dot):
            name = plain(inner.expression.name)
            return name, name
        return "", ""

    # ------------------------------------------------------------------------ GROUP BY, OVER

    def _aggregates(self, expr: Expr) -> list[Call]:
        """Return the aggregate calls in an expression, outermost first, not those of windows."""
        found: list[Call] = []
        stack: list[Expr] = [expr]
        seen: set[int] = set()
        while stack:
            this = stack.pop()
            if id(this) in seen:
                continue
            seen.add(id(this))
            if isinstance(this, Call) and this.op in _AGGREGATE_OPS:
                found.append(this)
            elif isinstance(this, Window):
                function = this.function
                stack += function.args if isinstance(function, Call) else ()
                stack += [*this.partition, *(s.by for s in this.order)]
            elif isinstance(this, Call | Subquery):
                stack += this.args
        return found

    def _grouped(
        self, source: From, select: Select, group: Any, outs: list[Out], every: list[Expr]
    ) -> tuple[From, Rebuild]:
        keys, sets = self._group_keys(group, select, outs) if group else ((), None)
        keys = tuple(dict.fromkeys(keys))
        calls = tuple(dict.fromkeys(c for e in every for c in self._aggregates(e)))
        for call in calls:
            if any(self._aggregates(arg) for arg in call.args):
                raise Unanalysable("of an aggregate of an aggregate")
        rows = replace(source.block(), order=source.order)
        # What grouping_id() without arguments says depends on the order of the keys.
        counted = (
            self.calls.call(c.op, keys) if c.op == "grouping_id" and not c.args else c
            for c in calls
        )
        node = Aggregate(rows, keys, tuple(counted), sets)
        whole = self._leaf(node, [Out("", "", e, self._type(e)) for e in (*keys, *calls)])
        made = {e: o.expr for e, o in zip((*keys, *calls), whole.columns, strict=True)}
        inside = set(source.leaves)

        def stand_in(expr: Expr) -> Expr | None:
            if expr in made:
                return made[expr]
            if isinstance(expr, Ref) and expr.instance in inside:
                raise Unanalysable("of a column that is neither grouped nor aggregated")
            if isinstance(expr, Window) and isinstance(expr.function, Call):
                function = expr.function  # itself no aggregate, but its arguments may be
                return replace(
                    expr,
                    function=self.calls.call(
                        function.op, regroup.exprs(function.args), function.words
                    ),
                    partition=regroup.exprs(expr.partition),
                    order=regroup.sorts(expr.order),
                )
            return None

        regroup = Rebuild(self.calls, replace=stand_in)
        return From(source.outer, dict(whole.leaves)), regroup

    def _group_keys(
        self, group: exp.Group, select: Select, outs: list[Out]
    ) -> tuple[tuple[Expr, ...], tuple[frozenset[int], ...] | None]:
        if group.args.get("all"):
            keys: list[Expr] = []
            for out in outs:
                if not self._aggregates(out.expr):
                    keys.append(out.expr)
                elif out.expr not in self._aggregates(out.expr):
                    raise Unanalysable("of GROUP BY ALL beside expressions over aggregates")
            return tuple(keys), None
        keys = []
        # Every element is a list of alternative sets of keys; several elements multiply.
        elements: list[list[tuple[Expr, ...]]] = []
        plain_only = True

        def one(item: Any) -> tuple[Expr, ...]:
            while isinstance(item, exp.Paren):
                item = item.this
            if isinstance(item, exp.Tuple):
                return tuple(self._group_key(e, select, outs) for e in item.expressions)
            return (self._group_key(item, select, outs),)

        def alternatives(item: Any) -> list[tuple[Expr, ...]]:
            members = [one(e) for e in item.expressions]
            match item:
                case exp.Rollup():
                    return [sum(members[:n], ()) for n in range(len(members), -1, -1)]
                case exp.Cube():
                    picks = range(2 ** len(members) - 1, -1, -1)
                    return [
                        sum((m for j, m in enumerate(members) if pick >> j & 1), ())
                        for pick in picks
                    ]
                case _:
                    if any(
                        isinstance(e, exp.Rollup | exp.Cube | exp.GroupingSets)
                        for e in item.expressions
                    ):
                        raise Unanalysable("of nested grouping sets")
                    return members

        for item in group.expressions:
            if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets):
                plain_only = False
                elements.append(alternatives(item))
            else:
                elements.append([one(item)])
        for name, form in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", None)):
            for analytics in group.args.get(name) or ():
                plain_only = False
                if form is not None and not analytics.expressions:  # GROUP BY a, b WITH ROLLUP
                    elements = [alternatives(form(expressions=group.expressions))]
                elif form is None:
                    elements = [alternatives(analytics)]
                else:
                    raise Unanalysable(f"of WITH {name.upper()}")
        combined: list[tuple[Expr, ...]] = [()]
        for element in elements:
            combined = [(*a, *b) for a in combined for b in element]
        for combination in combined:
            keys += combination
        unique = tuple(dict.fromkeys(keys))
        if plain_only:
            return unique, None
        return unique, tuple(frozenset(unique.index(k) for k in c) for c in combined)

    def _group_key(self, item: Any, select: Select, outs: list[Out]) -> Expr:
        if isinstance(item, exp.Literal) and not item.is_string:
            position = int(item.name) if item.name.isdecimal() else 0
            if 0 < position <= len(outs):
                return outs[position - 1].expr
            raise Unanalysable("of GROUP BY with a position that is none")
        return self._expr(item, select)

    def _finish_windows(self, source: From) -> Rebuild:
        """Give every window its rows: what is in `source` now."""
        rows = replace(source.block(), order=source.order)
        mapping = tuple((i, i) for i in source.leaves)

        def finish(expr: Expr) -> Expr | None:
            if isinstance(expr, Window) and expr.rows is _PENDING:
                return replace(expr, rows=rows, mapping=mapping)
            return None

        return Rebuild(self.calls, replace=finish)

    def _sorts(self, order: Any, select: Select, outs: Sequence[Expr]) -> tuple[Sort, ...]:
        sorts: list[Sort] = []
        for item in order.expressions:
            by = item.this if isinstance(item, exp.Ordered) else item
            if isinstance(by, exp.Var) and by.name.upper() == "ALL":
                raise Unanalysable("of ORDER BY ALL")
            position = by.name if isinstance(by, exp.Literal) and not by.is_string else ""
            if position.isdecimal() and outs:
                if not 0 < int(position) <= len(outs):
                    raise Unanalysable("of ORDER BY with a position that is none")
                expr = outs[int(position) - 1]
            else:
                expr = self._expr(by, select)
            descending = bool(item.args.get("desc"))
            sorts.append(Sort(expr, descending, bool(item.args.get("nulls_first"))))
        return tuple(sorts)

    # --------------------------------------------------------------------------- expressions

    def _expr(self, node: Any, select: Select) -> Expr:
        """Bind one expression."""
        while isinstance(node, exp.Paren):
            node = node.this
        kind = type(node)
        if kind is exp.Column:
            return self._column(node, select)
        if kind is exp.Literal:
            return self.calls.call("string" if node.is_string else "number", (), (node.this,))
        if kind in _BINARY:
            args = (self._expr(node.this, select), self._expr(node.expression, select))
            return self.calls.call(_BINARY[kind], args)
        method = getattr(self, f"_expr_{kind.__name__.lower()}", None)
        if method is not None:
            return method(node, select)
        if kind in _FUNCTIONS:
            return self._function(_FUNCTIONS[kind], list(_arguments(node)), select)
        return self._other(node, select)

    def _expr_and(self, node: Any, select: Select) -> Expr:
        return self._chain("and", exp.And, node, select)

    def _expr_or(self, node: Any, select: Select) -> Expr:
        return self._chain("or", exp.Or, node, select)

    def _chain(self, op: str, kind: type[exp.Expr], node: Any, select: Select) -> Expr:
        operands: list[Any] = []
        stack = [node]
        while stack:
            this = stack.pop()
            while isinstance(this, exp.Paren):
                this = this.this
            if isinstance(this, kind):
                stack += (this.expression, this.this)
            else:
                operands.append(this)
        return self.calls.call(op, [self._expr(o, select) for o in operands])

    def _expr_not(self, node: Any, select: Select) -> Expr:
        return self.calls.call("not", (self._expr(node.this, select),))

    def _expr_nullsafeneq(self, node: Any, select: Select) -> Expr:
        same = self.calls.call(
            "<=>", (self._expr(node.this, select), self._expr(node.expression, select))
        )
        return self.calls.call("not", (same,))

    def _expr_boolean(self, node: Any, select: Select) -> Expr:
        return self.calls.call("boolean", (), ("true" if node.this else "false",))

    def _expr_null(self, node: Any, select: Select) -> Expr:
        return self.calls.call("null")

    def _expr_is(self, node: Any, select: Select) -> Expr:
        tested = self._expr(node.this, select)
        if isinstance(node.expression, exp.Null):
            return self.calls.call("is null", (tested,))
        if isinstance(node.expression, exp.Boolean):
            return self.calls.call("is", (tested,), ("true" if node.expression.this else "false",))
        raise Unanalysable("of IS")

    def _expr_between(self, node: Any, select: Select) -> Expr:
        if node.args.get("symmetric"):
            raise Unanalysable("of BETWEEN SYMMETRIC")
        value, low, high = (self._expr(node.args[k], select) for k in ("this", "low", "high"))
        if self._volatile(value):
            return self.calls.call("between", (value, low, high))
        return self.calls.call(
            "and", (self.calls.call("<=", (low, value)), self.calls.call("<=", (value, high)))
        )

    def _expr_in(self, node: Any, select: Select) -> Expr:
        needle = self._expr(node.this, select)
        needles = needle.args if isinstance(needle, Call) and needle.op == "tuple" else (needle,)
        query = node.args.get("query")
        if query is not None:
            return Subquery("in", self._nested(query, select), needles)
        if node.args.get("unnest") or node.args.get("field"):
            raise Unanalysable("of IN")
        values = [self._expr(e, select) for e in node.expressions]
        return self.calls.call("in", (needle, *dict.fromkeys(values)))

    def _nested(self, node: Any, select: Select) -> Block:
        return self.query(node, select.source, select.ctes)

    def _expr_subquery(self, node: Any, select: Select) -> Expr:
        block = self._nested(node, select)
        if len(block.columns) != 1:
            raise Unanalysable("of a scalar subquery of several columns")
        return Subquery("scalar", block)

    def _expr_exists(self, node: Any, select: Select) -> Expr:
        if isinstance(node.this, exp.Query):
            return Subquery("exists", self._nested(node.this, select))
        return self._function("exists", list(_arguments(node)), select)

    def _expr_any(self, node: Any, select: Select) -> Expr:
        if isinstance(node.this, exp.Paren):
            return self._function("any", [node.this.this], select)
        raise Unanalysable("of ANY")

    def _expr_case(self, node: Any, select: Select) -> Expr:
        subject = self._expr(node.this, select) if node.this is not None else None
        args: list[Expr] = []
        for branch in node.args["ifs"]:
            test = self._expr(branch.this, select)
            args.append(self.calls.call("=", (subject, test)) if subject else test)
            args.append(self._expr(branch.args["true"], select))
        if subject and self._volatile(subject):
            raise Unanalysable("of CASE over a function that draws lots")
        otherwise = node.args.get("default")
        if otherwise is not None:
            args.append(self._expr(otherwise, select))
        return self.calls.call("case", args, ("else",) if otherwise is not None else ())

    def _expr_cast(self, node: Any, select: Select) -> Expr:
        return self._cast("cast", node, select)

    def _expr_trycast(self, node: Any, select: Select) -> Expr:
        return self._cast("try_cast" if node.args.get("safe") else "cast", node, select)

    def _cast(self, op: str, node: Any, select: Select) -> Expr:
        if set(_given_args(node)) - {"this", "to", "safe"}:
            raise Unanalysable("of CAST with a format")
        to = type_name(node.args["to"])
        if to is None:
            raise Unanalysable("of CAST to an unknown type")
        return self.calls.call(op, (self._expr(node.this, select),), (to,))

    def _expr_struct(self, node: Any, select: Select) -> Expr:
        args: list[Expr] = []
        words: list[str] = []
        for item in node.expressions:
            if isinstance(item, exp.PropertyEQ):
                args.append(self._expr(item.expression, select))
                words.append(plain(item.this.name))
            else:
                for out in self._stars([item], select):
                    args.append(out.expr)
                    words.append(out.written)
        return self.calls.call("struct", args, words)

    def _stars(self, items: Iterable[Any], select: Select) -> Iterable[Out]:
        """Yield arguments, with stars expanded to the columns they stand for."""
        for item in items:
            if isinstance(item, exp.Star) or (
                isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
            ):
                yield from self._star(item, select.source)
            else:
                yield Out("", "", self._expr(item, select))

    def _expr_varmap(self, node: Any, select: Select) -> Expr:
        keys, values = node.args["keys"].expressions, node.args["values"].expressions
        if len(keys) != len(values):
            raise Unanalysable("of map() with an odd number of arguments")
        pairs = [self._expr(e, select) for pair in zip(keys, values, strict=True) for e in pair]
        return self.calls.call("map", pairs)

    def _expr_bracket(self, node: Any, select: Select) -> Expr:
        if (
            set(_given_args(node)) - {"this", "expressions", "offset", "safe"}
            or len(node.expressions) != 1
        ):
            raise Unanalysable("of []")
        return self.calls.call(
            "[]", (self._expr(node.this, select), self._expr(node.expressions[0], select))
        )

    def _expr_dot(self, node: Any, select: Select) -> Expr:
        if not isinstance(node.expression, exp.Identifier):
            raise Unanalysable("of a dot before something that is no name")
        return self.calls.call(
            "field", (self._expr(node.this, select),), (plain(node.expression.name).lower(),)
        )

    def _expr_tuple(self, node: Any, select: Select) -> Expr:
        return self.calls.call("tuple", [self._expr(e, select) for e in node.expressions])

    def _expr_interval(self, node: Any, select: Select) -> Expr:
        unit = node.args.get("unit")
        word = unit.sql("spark").lower() if unit is not None else ""
        return self.calls.call("interval", (self._expr(node.this, select),), (word,))

    def _expr_extract(self, node: Any, select: Select) -> Expr:
        return self.calls.call(
            "extract", (self._expr(node.expression, select),), (node.this.name.lower(),)
        )

    def _expr_identifier(self, node: Any, select: Select) -> Expr:
        name = plain(node.name).lower()
        if name in select.parameters:
            index = len(select.parameters) - 1 - select.parameters[::-1].index(name)
            return self.calls.call("parameter", (), (str(index),))
        return self._column(exp.Column(this=node), select)

    def _expr_lambda(self, node: Any, select: Select) -> Expr:
        names = tuple(plain(p.name).lower() for p in node.expressions)
        inner = replace(select, parameters=(*select.parameters, *names))
        return self.calls.call(
            "lambda",
            (self._expr(node.this, inner),),
            (str(len(select.parameters)), str(len(names))),
        )

    def _expr_anonymous(self, node: Any, select: Select) -> Expr:
        return self._function(plain(node.name).lower(), node.expressions, select)

    def _expr_filter(self, node: Any, select: Select) -> Expr:
        call = self._expr(node.this, select)
        if not isinstance(call, Call) or call.op not in _AGGREGATE_OPS:
            raise Unanalysable("of FILTER")
        condition = self._expr(node.expression.this, select)
        return self.calls.call(call.op, (*call.args, condition), (*call.words, "filter"))

    def _expr_ignorenulls(self, node: Any, select: Select) -> Expr:
        call = self._expr(node.this, select)
        if not isinstance(call, Call):
            raise Unanalysable("of IGNORE NULLS")
        return self.calls.call(call.op, call.args, (*call.words, "ignore nulls"))

    def _expr_respectnulls(self, node: Any, select: Select) -> Expr:
        return self._expr(node.this, select)

    def _expr_withingroup(self, node: Any, select: Select) -> Expr:
        call = self._expr(node.this, select)
        if not isinstance(call, Call) or call.op not in _AGGREGATE_OPS:
            raise Unanalysable("of WITHIN GROUP")
        keys = self._sorts(node.expression, select, ())
        words = [
            f"{'desc' if s.descending else 'asc'} {'first' if s.nulls_first else 'last'}"
            for s in keys
        ]
        return self.calls.call(
            call.op, (*call.args, *(s.by for s in keys)), (*call.words, "within", *words)
        )

    def _function(self, name: str, args: Sequence[Any], select: Select) -> Expr:
        if name not in KNOWN and name not in _KEYWORD_FUNCTIONS:
            raise Unanalysable(f"of the function {name}, which is not one of Spark's own")
        if name in GENERATORS:
            raise Unanalysable(f"of {name} inside an expression")
        words: list[str] = []
        if len(args) == 1 and isinstance(args[0], exp.Distinct):
            if args[0].args.get("on"):
                raise Unanalysable("of DISTINCT ON")
            words.append("distinct")
            args = args[0].expressions
        if name in UNIT_FIRST and len(args) == 3:
            unit, *args = args
            words.append(unit.name.lower())
        if name == "unix_timestamp" and args:
            name = "to_unix_timestamp"
        if name == "count" and len(args) == 1 and isinstance(args[0], exp.Star) and not words:
            bound: list[Expr] = []
        else:
            bound = [out.expr for out in self._stars(args, select)]
        if name == "count" and not words and len(bound) == 1:
            only = bound[0]
            if isinstance(only, Call) and only.op in ("number", "string", "boolean"):
                bound = []
        return self.calls.call(SYNONYMS.get(name, name), bound, words)

    def _expr_window(self, node: Any, select: Select) -> Expr:
        function = self._expr(node.this, select)
        if not isinstance(function, Call):
            raise Unanalysable("of OVER")
        spec = self._window_spec(node, select.windows)
        partition = tuple(self._expr(e, select) for e in spec.get("partition_by") or ())
        order = self._sorts(spec["order"], select, ()) if spec.get("order") else ()
        frame: list[Expr | str] = []
        given = spec.get("spec")
        if given is not None:
            if given.args.get("exclude"):
                raise Unanalysable("of EXCLUDE in a frame")
            for key in ("kind", "start", "start_side", "end", "end_side"):
                value = given.args.get(key)
                value = value.name if isinstance(value, exp.Var) else value
                frame.append(
                    self._expr(value, select)
                    if isinstance(value, exp.Expr)
                    else str(value or "").lower()
                )
        return Window(function, tuple(dict.fromkeys(partition)), order, tuple(frame), _PENDING, ())

    def _window_spec(self, node: Any, windows: Mapping[str, Any]) -> Mapping[str, Any]:
        if node.args.get("first") is not None or set(_given_args(node)) - {
            *("this", "partition_by", "order", "spec", "alias", "over"),
        }:
            raise Unanalysable("of a window")
        own = {k: node.args.get(k) for k in ("partition_by", "order", "spec") if node.args.get(k)}
        alias = node.args.get("alias")
        if alias is None:
            return own
        named = windows.get(plain(alias.name).lower())
        if named is None or own:
            raise Unanalysable("of a window that extends another")
        return self._window_spec(named, {k: v for k, v in windows.items() if v is not named})

    def _other(self, node: Any, select: Select) -> Expr:
        """Bind a node that has no meaning of its own here: its class, its parts, its flags."""
        if not isinstance(node, exp.Condition | exp.Func) or isinstance(node, exp.Query):
            raise Unanalysable(f"of {_kind(node)}")
        args: list[Expr] = []
        words: list[str] = []
        for key, value in sorted(node.args.items()):
            if value is None or value is False or value == []:
                continue
            many = value if isinstance(value, list) else [value]
            words.append(f"{key}:{len(many)}")
            for part in many:
                match part:
                    case exp.Var():
                        words.append(part.name.lower())
                    case exp.DataType():
                        words.append(type_name(part) or part.sql("spark"))
                    case exp.Condition():
                        args.append(self._expr(part, select))
                    case exp.Expr():
                        raise Unanalysable(f"of {_kind(part)}")
                    case _:
                        words.append(str(part).lower() if isinstance(part, bool) else str(part))
        return self.calls.call(kind_of(node), args, words)

    # --------------------------------------------------------------------------------- names

    def _column(self, node: exp.Column, select: Select) -> Expr:
        if isinstance(node.this, exp.Star):
            raise Unanalysable("of * inside an expression")
        parts_ = [node.args.get(k) for k in ("catalog", "db", "table", "this")]
        names = [plain(p.name) for p in parts_ if p is not None]
        lower = tuple(n.lower() for n in names)
        if lower[0] in select.parameters and not node.args.get("catalog"):
            expr = self._expr_identifier(exp.Identifier(this=names[0]), select)
            return self._fields(expr, names[1:])
        if select.aliases_first and len(lower) == 1 and lower[0] in select.aliases:
            return self._alias(lower[0], select, node)
        source: From | None = select.source
        while source is not None:
            found = self._lookup(lower, source)
            if len({id(entry.expr) for entry, _ in found}) > 1:
                message = f"`{'.'.join(names)}` is in several columns that this query reads"
                hint = "qualify it with the name or alias of one table"
                self.problems.append(Problem("ambiguous-column", message, self.place(node), hint))
                raise Unanalysable("of an ambiguous column")
            if found:
                entry, used = found[0]
                return self._fields(entry.expr, names[used:])
            if source is select.source and lower[0] in select.aliases:
                return self._fields(self._alias(lower[0], select, node), names[1:])
            source = source.outer
        return self._missing(node, names, select)

    def _lookup(self, names: tuple[str, ...], source: From) -> list[tuple[Entry, int]]:
        """Return the columns a name may mean, and how many of its parts they use up."""
        everything = [*source.entries, *source.hidden]
        for n in range(len(names) - 1, 0, -1):
            qualifiers, name = names[:n], names[n]
            found = [e for e in everything if e.name.lower() == name and e.answers(qualifiers)]
            if found:
                return [(e, n + 1) for e in found]
        return [(e, 1) for e in source.entries if e.name.lower() == names[0]]

    def _fields(self, expr: Expr, names: Sequence[str]) -> Expr:
        for name in names:
            expr = self.calls.call("field", (expr,), (name.lower(),))
        return expr

    def _alias(self, name: str, select: Select, node: Any) -> Expr:
        meant = select.aliases[name]
        if len(set(meant)) > 1:
            message = f"`{name}` is the alias of several expressions"
            self.problems.append(Problem("ambiguous-column", message, self.place(node)))
            raise Unanalysable("of an ambiguous alias")
        if self._volatile(meant[0]):
            raise Unanalysable("of an alias of a function that draws lots")
        return meant[0]

    def _missing(self, node: exp.Column, names: list[str], select: Select) -> Expr:
        if names[-1].lower() == "grouping__id":
            raise Unanalysable("of grouping__id")
        known: list[str] = []
        source: From | None = select.source
        tables: set[str] = set()
        while source is not None:
            known += [e.name for e in source.entries]
            tables |= {e.qualifiers[-1] for e in (*source.entries, *source.hidden) if e.qualifiers}
            source = source.outer
        name = names[-1]
        if (
            len(names) > 1
            and names[-2].lower() not in tables
            and names[0].lower() not in (k.lower() for k in known)
        ):
            message = f"`{names[-2]}` is not a table that this query reads"
            hint = did_you_mean(names[-2], tables)
        else:
            message = f"`{name}` is not a column of what this query reads"
            hint = did_you_mean(name, known) or (
                f"there are {', '.join(known[:8])}" if known else None
            )
        self.problems.append(Problem("unknown-column", message, self.place(node), hint))
        return self.calls.call("missing", (), (name,))

    # --------------------------------------------------------------------------------- types

    def _type(self, expr: Expr) -> str | None:
        """Return the Spark type of an expression where it is certain."""
        match expr:
            case Ref(instance, column):
                types = self.types.get(instance, ())
                return types[column] if column < len(types) else None
            case Window(function=function):
                return self._type(function)
            case Subquery(kind="scalar", block=block):
                return block.columns[0].type
            case Subquery():
                return "boolean"
            case Call(op, args, words):
                return self._call_type(op, args, words)

    def _call_type(self, op: str, args: tuple[Expr, ...], words: tuple[str, ...]) -> str | None:
        if op in _FIXED_TYPES:
            return _FIXED_TYPES[op]
        if op in ("cast", "try_cast"):
            return words[0]
        if op == "number":
            return _number_type(words[0])
        if op in ("min", "max", "first", "last", "lag", "lead", "nth_value", "any_value"):
            return self._type(args[0]) if args else None
        if op in ("coalesce", "greatest", "least", "case", "nullif"):
            values = args if op != "case" else (*args[1::2], *(args[-1:] if words else ()))
            if op == "nullif":
                values = args[:1]
            kinds = {self._type(a) for a in values if not (isinstance(a, Call) and a.op == "null")}
            return kinds.pop() if len(kinds) == 1 else None
        kinds = [self._type(a) for a in args]
        if op in ("+", "-", "*", "mod") and len(kinds) == 2:
            if set(kinds) == {"double"}:
                return "double"
            if all(k in INTEGRAL for k in kinds):
                return max(kinds, key=INTEGRAL.index)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if op == "/" and all(k in (*INTEGRAL, "double") for k in kinds):
            return "double"
        if op == "sum" and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return "double" if kinds[0] == "double" else "bigint"
        if op == "avg" and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return "double"
        if op in ("round", "abs", "negative") and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return kinds[0]
        return None


_PENDING = Block()
_AGGREGATE_OPS = AGGREGATES | {"grouping", "grouping_id"}
_KEYWORD_FUNCTIONS = frozenset(_FUNCTIONS.values())

_FIXED_TYPES: dict[str, str] = {
    **dict.fromkeys(("string", "concat_ws", "upper", "lower", "trim", "date_format"), "string"),
    **dict.fromkeys(("substring", "replace", "regexp_replace", "to_json", "initcap"), "string"),
    **dict.fromkeys(
        ("=", "<>", "<", "<=", "<=>", "and", "or", "not", "is null", "is", "in"), "boolean"
    ),
    **dict.fromkeys(("boolean", "bool_or", "bool_and", "rlike", "like"), "boolean"),
    **dict.fromkeys(("count", "count_if", "approx_count_distinct", "div"), "bigint"),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank", "ntile", "year", "month", "dayofmonth"), "int"
    ),
    **dict.fromkeys(
        ("hour", "minute", "second", "quarter", "dayofweek", "dayofyear", "datediff"), "int"
    ),
    **dict.fromkeys(("percent_rank", "cume_dist", "stddev_samp", "stddev_pop", "corr"), "double"),
    **dict.fromkeys(
        ("current_date", "to_date", "date_add", "date_sub", "make_date", "last_day"), "date"
    ),
    **dict.fromkeys(("current_timestamp", "date_trunc"), "timestamp"),
}


def _number_type(text: str) -> str | None:
    if text.isdecimal():
        return "int" if int(text) < 2**31 else "bigint" if int(text) < 2**63 else None
    return "double" if "e" in text.lower() else None


def _renamed(columns: Iterable[Out], names: Sequence[str]) -> tuple[Out, ...]:
    columns = tuple(columns)
    if len(columns) != len(names):
        raise Unanalysable(f"because {len(names)} names are given to {len(columns)} columns")
    return tuple(replace(o, name=n, written=n) for o, n in zip(columns, names, strict=True))


def _given_args(node: Any) -> list[str]:
    return [k for k, v in node.args.items() if v is not None and v is not False and v != []]


def _arguments(node: Any) -> Iterable[Any]:
    """Yield the expressions below a function's node in the order of its definition."""
    for key in node.arg_types:
        value = node.args.get(key)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, exp.Expr):
            yield value


def _windows(node: exp.Select) -> Mapping[str, Any]:
    return {plain(w.this.name).lower(): w for w in node.args.get("windows") or ()}


def called(tree: Any) -> frozenset[str]:
    """Return the functions that a parsed query calls, and ``tablesample`` if it samples."""
    names = {plain(f.name).lower() for f in tree.find_all(exp.Anonymous)}
    names |= {name for kind, name in _FUNCTIONS.items() if tree.find(kind)}
    return frozenset(names | ({"tablesample"} if tree.find(exp.TableSample) else set()))


def kind_of(node: Any) -> str:
    """Return the name under which a node without a meaning of its own is digested."""
    return f"sqlglot.{type(node).__name__.lower()}"


def _kind(node: Any) -> str:
    return type(node).__name__.upper()


def _is_join(node: Any) -> bool:
    """Whether a subquery is only a pair of parentheses around joined tables."""
    inner = node.this
    return isinstance(inner, exp.Table) or (isinstance(inner, exp.Subquery) and _is_join(inner))
