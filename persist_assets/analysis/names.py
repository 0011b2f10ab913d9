"""Name resolution in a query: columns, aliases, stars, join keys; and output names.

Names are resolved as in Spark: case-insensitively, the innermost query first, a column before an
alias, struct fields last. A name that certainly does not exist is a `Problem` with its place.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import Out, Ref, walk
from persist_assets.analysis.functions import GENERATORS, TIME_WINDOWS
from persist_assets.analysis.positions import out_of_range
from persist_assets.analysis.scope import (
    NO_WORD,
    UNKNOWN,
    Entry,
    From,
    Unanalysable,
    is_certain,
    may_be,
)
from persist_assets.analysis.syntax import BINARY, FUNCTIONS, given_args, without_parens
from persist_assets.analysis.types import IMPLICIT, INLINED
from persist_assets.core.dialect import (
    WITHOUT_PARENTHESES,
    function_named,
    is_never_column,
    is_path,
    is_position,
    plain,
    suffixed,
    type_is_written,
)
from persist_assets.core.errors import Problem, did_you_mean
from persist_assets.core.spark_types import UnknownTypeError, field_name, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.binding import Binding
    from persist_assets.analysis.scope import Select
    from persist_assets.core.errors import Location


def resolve_column(binding: Binding, node: exp.Column, select: Select) -> Expr:
    """Return the meaning of a column name; a lambda's parameters come first."""
    if isinstance(node.this, exp.Star):
        raise Unanalysable("of * inside an expression")
    if is_position(node):
        return _entry_at(binding, node, select).expr
    parts = [node.args.get(k) for k in ("catalog", "db", "table", "this")]
    names = [plain(p.name) for p in parts if p is not None]
    lower = tuple(n.lower() for n in names)
    if is_never_column(node):
        return binding.calls.call(lower[0])
    if lower[0] in select.parameters and not node.args.get("catalog"):
        expr = resolve_identifier(binding, exp.Identifier(this=names[0]), select)
        return _fields(binding, expr, names[1:])
    if select.sorts and function_named(node) and not _outs(lower[0], select):
        return binding.calls.call(lower[0])  # even if a table has such a column
    if select.outs_first:
        output = _output(binding, lower, select, node)
        if output is not None:
            return output
    source: From | None = select.source
    around = source.outer
    while source is not None:
        matches = _lookup(lower, source)
        if matches and source is not select.source and source is not around:
            return _too_far(binding, node, names)
        if len({id(entry.expr) for entry, _ in matches}) > 1:
            message = f"`{'.'.join(names)}` is ambiguous: several columns match"
            hint = "qualify it with the name or alias of one table"
            binding.problems.append(Problem("ambiguous-column", message, binding.place(node), hint))
            raise Unanalysable("of an ambiguous column")
        if matches:
            entry, used = matches[0]
            return _fields(binding, entry.expr, names[used:])
        if len(lower) == 1 and lower[0] in WITHOUT_PARENTHESES:
            return binding.calls.call(lower[0])  # before an alias, or an outer column
        if source is select.source and (outs := _outs(lower[0], select)):
            alias = _one_of(binding, outs, lower[0], node)
            if binding.types.collated and not isinstance(alias, Ref):
                alias = binding.calls.call(IMPLICIT, (alias,))
            if binding.computes_in:
                alias = binding.memberships.marked(binding.calls, INLINED, alias, source.leaves)
            return _fields(binding, alias, names[1:])
        source = source.outer
    return _missing(binding, node, names, select)


def _entry_at(binding: Binding, node: exp.Column, select: Select) -> Entry:
    """Return the column that a number in the GROUP BY of a pipe stands for.

    Raises
    ------
    Unanalysable
        The number is out of range; the problem is in `binding.problems`.
    """
    entries, number = select.source.entries, int(plain(node.name))
    if 0 < number <= len(entries):
        return entries[number - 1]
    message = f"GROUP BY {number} is out of range: the rows before AGGREGATE have"
    raise out_of_range(binding, node, message, len(entries))


def resolve_identifier(binding: Binding, node: Any, select: Select) -> Expr:
    """Return the meaning of a bare name: a lambda's parameter, or a column."""
    name = plain(node.name).lower()
    if is_never_column(exp.Column(this=node)):
        return binding.calls.call(name)
    if name in select.parameters:
        index = len(select.parameters) - 1 - select.parameters[::-1].index(name)
        return binding.calls.call("parameter", (), (str(index),))
    return resolve_column(binding, exp.Column(this=node), select)


def _lookup(names: tuple[str, ...], source: From) -> list[tuple[Entry, int]]:
    """Return the columns that a name may mean, and how many of its parts they use up."""
    everything = [*source.entries, *source.hidden]
    for n in range(len(names) - 1, 0, -1):
        qualifiers, name = names[:n], names[n]
        matches = [e for e in everything if e.name.lower() == name and e.answers(qualifiers)]
        if matches:
            return [(e, n + 1) for e in matches]
        _refuse_uncertain(name, (e.name for e in everything if e.answers(qualifiers)))
    matches = [(e, 1) for e in source.entries if e.name.lower() == names[0]]
    if not matches:
        _refuse_uncertain(names[0], (e.name for e in source.entries))
    return matches


def _refuse_uncertain(sought: str, names: Iterable[str]) -> None:
    if any(may_be(name, sought) for name in names):
        raise Unanalysable(f"because a column whose name is uncertain may be `{sought}`")


def refuse_uncertain_names(left: From, right: From) -> None:
    """Raise if columns of the two sides of a NATURAL JOIN may or may not have the same name.

    Raises
    ------
    Unanalysable
        There are such columns.
    """
    for side, other in ((left, right), (right, left)):
        uncertain = {e.name for e in side.entries if not is_certain(e.name)}
        for name in uncertain:
            if any(e.name in (name, UNKNOWN) or may_be(name, e.name) for e in other.entries):
                raise Unanalysable("of a NATURAL JOIN by uncertain names")


def _fields(binding: Binding, expr: Expr, names: Sequence[str]) -> Expr:
    for name in names:
        expr = field_of(binding, expr, name)
    return expr


def field_of(binding: Binding, expr: Expr, name: str) -> Expr:
    """Return the field of a struct, or the value of a map, whose keys are case-sensitive."""
    kind = binding.types.of(expr)
    word = name.lower() if kind is not None and kind.startswith("struct<") else name
    return binding.calls.call("field", (expr,), (word,))


def _output(binding: Binding, names: tuple[str, ...], select: Select, node: Any) -> Expr | None:
    """Return the column of the SELECT that takes precedence for a name over columns of FROM."""
    name = names[0]
    outs = _outs(name, select)
    columns = _lookup(names, select.source) if outs else []
    if len(names) > 1:
        # Only a field of such a column: qualifiers belong to columns of FROM.
        kinds = [binding.types.of(expr) for expr in outs]
        same = {entry.expr for entry, used in columns if used == 1}
        if any(k is None or "<" in k for k in kinds) and not same.issuperset(outs):
            raise Unanalysable(f"because `{name}` may be a column of the SELECT or a table")
        return None
    exprs = [entry.expr for entry, _ in columns]
    if select.refuses_doubt and any(expr is not out for expr in exprs for out in outs):
        is_key = _is_key(exprs, select)
        if is_key is not None and len(set(outs)) == 1:
            return None if is_key else _one_of(binding, outs, name, node)
        raise Unanalysable(f"because `{name}` is both an alias and a column")
    if not outs or (len(outs) > 1 and exprs and not (len(set(outs)) == 1 and outs[0] in exprs)):
        return None  # if several have the name, Spark takes the column of FROM
    return _one_of(binding, outs, name, node)


def _is_key(columns: Sequence[Expr], select: Select) -> bool | None:
    """Whether rows are grouped by a column of FROM; None if that is not certain.

    Two columns can be one expression of the algebra, although Spark groups by one of them only.
    """
    if (
        select.keys is None
        or len(columns) != 1
        or not any(isinstance(e, Ref) for e in walk(*columns))
    ):
        return None
    (column,) = columns
    if column not in walk(*select.keys):
        return False
    every = (*select.source.entries, *select.source.hidden)
    is_alone = [e.expr for e in every].count(column) == 1
    return True if is_alone and isinstance(column, Ref) and column in select.keys else None


def _outs(name: str, select: Select) -> list[Expr]:
    """Return the columns of the SELECT that have a name."""
    exprs = [o.expr for o in select.outs if o.name.lower() == name]
    if not exprs:
        _refuse_uncertain(name, (o.name for o in select.outs))
    return exprs


def _one_of(binding: Binding, outs: Sequence[Expr], name: str, node: Any) -> Expr:
    if len(set(outs)) > 1:
        message = f"`{name}` is ambiguous: several expressions have that name"
        binding.problems.append(Problem("ambiguous-column", message, binding.place(node)))
        raise Unanalysable("of an ambiguous alias")
    if binding.is_volatile(outs[0]):
        raise Unanalysable("of an alias of a nondeterministic function")
    return outs[0]


def _unit_first(node: exp.Column) -> str | None:
    """Return the hint for the unit in ``DATE_TRUNC(ts, DAY)``, as in other dialects."""
    call, unit = node.parent, node.name.upper()
    if not isinstance(call, exp.Anonymous) or call.expressions[1:] != [node]:
        return None
    if plain(call.name).lower() != "date_trunc" or unit not in _UNITS:
        return None
    hint = f"write date_trunc('{unit}', …), which returns a timestamp"
    return f"{hint}; trunc(…, '{unit}') returns a date" if unit in _UNITS_OF_DATES else hint


_UNITS_OF_DATES = frozenset(("YEAR", "QUARTER", "MONTH", "WEEK"))
_UNITS = _UNITS_OF_DATES | {"DAY", "HOUR", "MINUTE", "SECOND"}


def _too_far(binding: Binding, node: exp.Column, names: list[str]) -> Expr:
    message = f"`{'.'.join(names)}` is a column of a query two or more levels further out"
    hint = "Spark looks only one level further out: select the column there, or join its table here"
    binding.problems.append(Problem("unknown-column", message, binding.place(node), hint))
    return binding.calls.call("missing", (), (names[-1],))


def _missing(binding: Binding, node: exp.Column, names: list[str], select: Select) -> Expr:
    if [name.lower() for name in names] == ["grouping__id"]:
        return binding.calls.call("grouping_id")
    if "(" in names[-1]:
        raise Unanalysable(f"of `{names[-1]}`, which may be the name of an expression")
    if names[0].lower() in TIME_WINDOWS:
        raise Unanalysable(f"of `{names[0]}`, which may be a time window")
    known_names: list[str] = []
    qualified: list[tuple[str, str]] = []
    source: From | None = select.source
    tables: set[str] = set()
    while source is not None:
        certain = [e for e in source.entries if is_certain(e.name)]
        known_names += [e.name for e in certain]
        qualified += [(e.name, e.qualifiers[-1]) for e in certain if e.qualifiers]
        tables |= {e.qualifiers[-1] for e in (*source.entries, *source.hidden) if e.qualifiers}
        source = source.outer
    name = names[-1]
    if (
        len(names) > 1
        and names[-2].lower() not in tables
        and names[0].lower() not in (k.lower() for k in known_names)
    ):
        message = f"`{names[-2]}` is not a table in this query"
        hint = did_you_mean(names[-2], tables)
    else:
        of = "the tables in this query"
        if len(names) > 1 and names[-2].lower() in tables:
            of = f"`{names[-2]}`"
            known_names = [n for n, table in qualified if table == names[-2].lower()]
        message = f"`{name}` is not a column of {of}"
        known_names = [*dict.fromkeys(known_names)]
        hint = _unit_first(node) or did_you_mean(name, known_names)
        if hint is None and known_names:
            hint = f"known columns: {', '.join(known_names[:8])}"
    binding.problems.append(Problem("unknown-column", message, binding.place(node), hint))
    return binding.calls.call("missing", (), (name,))


def _fields_of_star(binding: Binding, names: tuple[str, ...], source: From) -> list[Entry]:
    """Return the fields of a struct whose type is certain, or nothing."""
    matches = _lookup(names, source)
    if len({id(entry.expr) for entry, _ in matches}) != 1:
        return []
    entry, used = matches[0]
    expr, fields = entry.expr, _fields_of_type(entry.type)
    for name in names[used:]:
        inside = [(field, kind) for field, kind in fields if field.lower() == name]
        if len(inside) != 1:
            return []
        expr, fields = field_of(binding, expr, inside[0][0]), _fields_of_type(inside[0][1])
    return [Entry(name, name, field_of(binding, expr, name), of, ()) for name, of in fields]


def _fields_of_type(kind: str | None) -> list[tuple[str, str]]:
    """Return the fields of a struct, or nothing if the type is not a struct or not certain."""
    try:
        return fields_of(kind) if kind and kind.startswith("struct<") else []
    except UnknownTypeError:
        return []


def expand_star(
    binding: Binding, node: Any, source: From, replaced: Mapping[str, Out] | None = None
) -> list[Out]:
    """Return the columns of a star.

    Parameters
    ----------
    replaced
        New columns, by the names in lower case of the columns that they replace.
    """
    star = node if isinstance(node, exp.Star) else node.this
    if set(given_args(star)) - ({"except_"} if replaced is None else {"replace"}):
        raise Unanalysable("of * REPLACE or RENAME")
    qualifiers: tuple[str, ...] = ()
    if isinstance(node, exp.Column):
        parts = [node.args.get(k) for k in ("catalog", "db", "table")]
        qualifiers = tuple(plain(p.name).lower() for p in parts if p)
    entries = source.entries
    if qualifiers:
        entries = [e for e in (*source.hidden, *source.entries) if e.answers(qualifiers)]
    outer = source.outer
    if not entries and qualifiers and outer is not None and outer.spreads:
        entries = [e for e in (*outer.hidden, *outer.entries) if e.answers(qualifiers)]
    if not entries and qualifiers:
        entries = _fields_of_star(binding, qualifiers, source)
    if not entries:
        raise Unanalysable(f"of {'.'.join(qualifiers)}.*" if qualifiers else "of * without FROM")
    left_out = _left_out(binding, star, entries)
    outs: list[Out] = []
    for name in replaced or ():
        if [e.name for e in entries].count(name) != 1:
            raise Unanalysable(f"because SET names `{name}`")
    for entry in entries:
        paths = left_out.get(id(entry))
        if replaced and entry.name in replaced:
            outs.append(replaced[entry.name])
            continue
        if paths is None:
            outs.append(Out(entry.name, entry.written, entry.expr, entry.type))
        elif () not in paths:
            expr, kind = _without_fields(binding, entry.expr, entry.type, paths)
            outs.append(Out(entry.name, entry.written, expr, kind))
    return outs


_Paths = list[tuple[str, ...]]


def _left_out(binding: Binding, star: Any, entries: list[Entry]) -> dict[int, _Paths]:
    """Return the field paths that a star omits, by `id` of the column; ``()`` is the column."""
    scope = From(entries=entries)
    left_out: dict[int, _Paths] = {}
    for item in star.args.get("except_") or ():
        if isinstance(item, exp.Dot):
            raise Unanalysable("of * EXCEPT of a field of a field")
        parts = item.parts if isinstance(item, exp.Column) else [item]
        names = tuple(plain(p.name).lower() for p in parts)
        matches = _lookup(names, scope)
        if not matches and len(parts) < 3 and all(is_certain(entry.name) for entry in entries):
            _report_unknown(binding, item, ".".join(names), [entry.name for entry in entries])
        if len(matches) != 1:
            raise Unanalysable(f"because * EXCEPT names `{'.'.join(names)}`")
        entry, used = matches[0]
        left_out.setdefault(id(entry), []).append(names[used:])
    if any(_overlap(paths) for paths in left_out.values()):
        raise Unanalysable("because * EXCEPT names a column twice")
    return left_out


def _report_unknown(binding: Binding, item: Any, name: str, columns: Sequence[str]) -> None:
    """Report a column of ``* EXCEPT`` that the star does not have."""
    message = f"`{name}` is not among the columns of this star"
    hint = did_you_mean(name, columns) or f"its columns: {', '.join(columns[:8])}"
    binding.problems.append(Problem("unknown-column", message, binding.place(item), hint))


def _overlap(paths: _Paths) -> bool:
    return any(a[: len(b)] == b for a, b in permutations(paths, 2))


def _without_fields(
    binding: Binding, struct: Expr, kind: str | None, paths: _Paths
) -> tuple[Expr, str]:
    """Return a struct without some of its fields, never NULL, and its type."""
    fields = _fields_of_type(kind)
    names = [name.lower() for name, _ in fields]
    if any(names.count(path[0]) != 1 for path in paths):
        raise Unanalysable(f"because * EXCEPT names a field `{paths[0][0]}` that is uncertain")
    remaining: list[tuple[str, Expr, str]] = []
    for name, of in fields:
        value, inside = field_of(binding, struct, name), of
        below = [path[1:] for path in paths if path[0] == name.lower()]
        if () in below:
            continue
        if below:
            value, inside = _without_fields(binding, value, of, below)
        remaining.append((name, value, inside))
    of = ",".join(f"{field_name(name)}:{inside}" for name, _, inside in remaining)
    expr = binding.calls.call(
        "struct", [value for _, value, _ in remaining], [n for n, _, _ in remaining]
    )
    return expr, f"struct<{of}>"


def qualifiers_of(out: Out, source: From) -> tuple[str, ...]:
    """Return the qualifiers of the FROM column that an output passes on, or nothing."""
    qualifiers = {
        e.qualifiers
        for e in (*source.entries, *source.hidden)
        if e.expr is out.expr and e.name.lower() == out.name.lower()
    }
    return qualifiers.pop() if len(qualifiers) == 1 else ()


def output_name(item: Any, inner: Any, select: Select) -> tuple[str, str]:
    """Return an output column's name, and Spark's own spelling of it.

    Without an alias it is Spark's implicit name, or `UNKNOWN` or `NO_WORD` where that is not
    certain; `tests/data/implicit_names.json` has the names of hundreds of expressions.
    """
    if is_position(inner):
        entry = select.source.entries[int(plain(inner.name)) - 1]
        return entry.name, entry.written
    if isinstance(item, exp.Alias):
        if not isinstance(item.args["alias"], exp.Identifier):
            raise Unanalysable("of a path into a variant")
        name = plain(item.alias)
        return name, name
    written = _implicit_name(without_parens(inner), select)
    if not is_certain(written):
        return written, written
    entry = next((e for e in select.source.entries if e.name.lower() == written.lower()), None)
    return (entry.name if entry and not _is_constant(inner) else written), written


def _is_constant(node: Any) -> bool:
    return isinstance(without_parens(node), exp.Literal | exp.Boolean | exp.Null)


def _implicit_name(node: Any, select: Select) -> str:
    """Return Spark's name for an expression without an alias."""
    converted = False  # by a function such as string(a)
    while True:
        node = without_parens(node)
        operand = _converted(node)
        if operand is None:
            break
        converted, node = True, operand
    match node:
        case exp.Column():
            if _means_function(node, select):
                return NO_WORD
            used, parts = _used_by_column(node, select)
            if used == parts or (used and not converted):
                return plain(node.name)
            return NO_WORD if used else UNKNOWN
        case exp.Dot():
            base = without_parens(node.this)
            while isinstance(base, exp.Dot):
                base = without_parens(base.this)
            if isinstance(base, exp.Column) and not converted:
                return plain(node.expression.name)
            return NO_WORD
        case exp.Cast():
            if not type_is_written(node):  # DATE '…' or date('…'), named by its text
                return NO_WORD if may_be(NO_WORD, node.this.name) else UNKNOWN
            if converted:
                return NO_WORD
            operand = without_parens(node.this)
            if isinstance(operand, exp.Column) and not _means_function(operand, select):
                used, parts = _used_by_column(operand, select)
                return plain(operand.name) if used == parts else NO_WORD if used else UNKNOWN
            return UNKNOWN if _is_replaced(operand) else NO_WORD
        case exp.Literal() | exp.Boolean() | exp.Null():
            return _constant_name(node)
        case _:
            plain_call = type(node) in FUNCTIONS or isinstance(node, _WORDLESS)
            return NO_WORD if plain_call and not _is_replaced(node) else UNKNOWN


def _converted(node: Any) -> Any:
    """Return the operand of a conversion that is written as a function, or None.

    Spark does not show such a conversion in names.
    """
    if isinstance(node, exp.Anonymous):
        name = plain(node.name).lower()
        return node.expressions[0] if name in _CONVERSIONS and len(node.expressions) == 1 else None
    if isinstance(node, exp.Cast) and not type_is_written(node):
        operand = without_parens(node.this)
        is_text = isinstance(operand, exp.Literal) and operand.is_string
        return None if is_text else operand  # DATE '…' or date('…')
    return None


_CONVERSIONS = frozenset(
    """
    bigint binary boolean date decimal double float int smallint string timestamp tinyint
    """.split()
)

_REPLACED = TIME_WINDOWS | {"identifier", "window_time"}
"""Calls that Spark's analysis replaces by a column of another name."""


def _is_replaced(node: Any) -> bool:
    if not isinstance(node, exp.Anonymous):
        return False
    if is_path(node):
        return True
    name = plain(node.name).lower()
    return name in _REPLACED or name in GENERATORS or name in _CONVERSIONS


_WORDLESS = (
    *BINARY,
    *(exp.Anonymous, exp.Neg, exp.Not, exp.And, exp.Or, exp.NullSafeNEQ, exp.Is, exp.Between),
    *(exp.In, exp.Like, exp.ILike, exp.Escape, exp.Case, exp.Subquery, exp.Bracket, exp.Tuple),
    *(exp.Struct, exp.VarMap, exp.Interval, exp.Extract, exp.Filter, exp.IgnoreNulls),
    *(exp.RespectNulls, exp.WithinGroup, exp.Window, exp.HexString, exp.Trim),
    *(exp.Substring, exp.BitwiseLeftShift, exp.BitwiseRightShift),
)
"""Nodes whose implicit names contain brackets, blanks or other signs."""


def _means_function(node: Any, select: Select) -> bool:
    """Whether a name is a function without arguments: ``current_date``, unless that is a column."""
    if is_never_column(node):
        return True
    name = function_named(node)
    return (
        name is not None and name not in select.parameters and not _lookup((name,), select.source)
    )


def _used_by_column(node: exp.Column, select: Select) -> tuple[int, int]:
    """Return how many parts of a name denote a column, 0 if none does, and how many it has."""
    parts = [node.args.get(k) for k in ("catalog", "db", "table", "this")]
    lower = tuple(plain(p.name).lower() for p in parts if p is not None)
    source: From | None = select.source
    while source is not None:
        if matches := _lookup(lower, source):
            return matches[0][1], len(lower)
        if source is select.source and _outs(lower[0], select):
            return (1, 1) if len(lower) == 1 else (0, len(lower))
        source = source.outer
    return 0, len(lower)


def _constant_name(node: Any) -> str:
    if isinstance(node, exp.Null):
        return "NULL"
    if isinstance(node, exp.Boolean):
        return "true" if node.this else "false"
    number = suffixed(node.this) if node.is_string else node.this
    if number is None:
        return node.this if not set(node.this) & set("\\'\"") else UNKNOWN
    if whole := _WHOLE.fullmatch(number):
        return str(int(whole[1]))
    return NO_WORD if _FRACTION.fullmatch(number) else UNKNOWN


_WHOLE = re.compile(r"([0-9]+)(L|S|Y|BD)?", re.IGNORECASE)
_FRACTION = re.compile(r"[0-9]*\.[0-9]+")


def using_key(binding: Binding, name: str, side: From, place: Location) -> Entry:
    """Return the column of one side of a join that a key of USING names: the first, as in Spark."""
    _refuse_uncertain(name, (e.name for e in side.entries))
    matches = [e for e in side.entries if e.name.lower() == name.lower()]
    if matches:
        return matches[0]
    known_names = (e.name for e in side.entries if is_certain(e.name))
    hint = did_you_mean(name, known_names)
    message = f"`{name}` is not a column of one side of the join"
    binding.problems.append(Problem("join-key", message, place, hint))
    raise Unanalysable("of a join with unclear keys")


def renamed(columns: Iterable[Out], names: Sequence[str]) -> tuple[Out, ...]:
    """Return columns with the names of an alias."""
    columns = tuple(columns)
    if len(columns) != len(names):
        raise Unanalysable(f"because {len(names)} names are given to {len(columns)} columns")
    return tuple(replace(o, name=n, written=n) for o, n in zip(columns, names, strict=True))
