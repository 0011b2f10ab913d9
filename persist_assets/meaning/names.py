"""What a name in a query means: columns, aliases, stars, keys of joins; and output names.

Names are found as Spark finds them: case aside, the innermost query first, a column before an
alias, struct fields last. A name that is certainly none is a `Problem` with its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.dialect import plain
from persist_assets.errors import Problem, did_you_mean
from persist_assets.meaning.algebra import Out
from persist_assets.meaning.scope import Unanalysable
from persist_assets.meaning.syntax import given_args, without_parens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from persist_assets.errors import Location
    from persist_assets.meaning.algebra import Expr
    from persist_assets.meaning.binding import Binding
    from persist_assets.meaning.scope import Entry, From, Select


def resolve_column(binding: Binding, node: exp.Column, select: Select) -> Expr:
    """Return what a column's name means; a lambda's parameters come first."""
    if isinstance(node.this, exp.Star):
        raise Unanalysable("of * inside an expression")
    parts = [node.args.get(k) for k in ("catalog", "db", "table", "this")]
    names = [plain(p.name) for p in parts if p is not None]
    lower = tuple(n.lower() for n in names)
    if lower[0] in select.parameters and not node.args.get("catalog"):
        expr = resolve_identifier(binding, exp.Identifier(this=names[0]), select)
        return _fields(binding, expr, names[1:])
    if select.aliases_first and len(lower) == 1 and lower[0] in select.aliases:
        meant = _alias(binding, lower[0], select, node)
        columns = _lookup(lower, select.source)
        if select.refuses_doubt and any(entry.expr is not meant for entry, _ in columns):
            raise Unanalysable(f"because `{names[0]}` is an alias and a column")
        return meant
    source: From | None = select.source
    while source is not None:
        found = _lookup(lower, source)
        if len({id(entry.expr) for entry, _ in found}) > 1:
            message = f"`{'.'.join(names)}` is in several columns that this query reads"
            hint = "qualify it with the name or alias of one table"
            binding.problems.append(Problem("ambiguous-column", message, binding.place(node), hint))
            raise Unanalysable("of an ambiguous column")
        if found:
            entry, used = found[0]
            return _fields(binding, entry.expr, names[used:])
        if source is select.source and lower[0] in select.aliases:
            return _fields(binding, _alias(binding, lower[0], select, node), names[1:])
        source = source.outer
    return _missing(binding, node, names, select)


def resolve_identifier(binding: Binding, node: Any, select: Select) -> Expr:
    """Return what a bare name means: a lambda's parameter, or a column."""
    name = plain(node.name).lower()
    if name in select.parameters:
        index = len(select.parameters) - 1 - select.parameters[::-1].index(name)
        return binding.calls.call("parameter", (), (str(index),))
    return resolve_column(binding, exp.Column(this=node), select)


def _lookup(names: tuple[str, ...], source: From) -> list[tuple[Entry, int]]:
    """Return the columns a name may mean, and how many of its parts they use up."""
    everything = [*source.entries, *source.hidden]
    for n in range(len(names) - 1, 0, -1):
        qualifiers, name = names[:n], names[n]
        found = [e for e in everything if e.name.lower() == name and e.answers(qualifiers)]
        if found:
            return [(e, n + 1) for e in found]
    return [(e, 1) for e in source.entries if e.name.lower() == names[0]]


def _fields(binding: Binding, expr: Expr, names: Sequence[str]) -> Expr:
    for name in names:
        expr = field_of(binding, expr, name)
    return expr


def field_of(binding: Binding, expr: Expr, name: str) -> Expr:
    """Return the field of a struct, or the value of a map, whose keys have a case."""
    kind = binding.types.of(expr)
    word = name.lower() if kind is not None and kind.startswith("struct<") else name
    return binding.calls.call("field", (expr,), (word,))


def _alias(binding: Binding, name: str, select: Select, node: Any) -> Expr:
    meant = select.aliases[name]
    if len(set(meant)) > 1:
        message = f"`{name}` is the alias of several expressions"
        binding.problems.append(Problem("ambiguous-column", message, binding.place(node)))
        raise Unanalysable("of an ambiguous alias")
    if binding.is_volatile(meant[0]):
        raise Unanalysable("of an alias of a function that draws lots")
    return meant[0]


def _missing(binding: Binding, node: exp.Column, names: list[str], select: Select) -> Expr:
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
        hint = did_you_mean(name, known) or (f"there are {', '.join(known[:8])}" if known else None)
    binding.problems.append(Problem("unknown-column", message, binding.place(node), hint))
    return binding.calls.call("missing", (), (name,))


def expand_star(node: Any, source: From) -> list[Out]:
    """Return the columns that a star stands for."""
    star = node if isinstance(node, exp.Star) else node.this
    if set(given_args(star)) - {"except_"}:
        raise Unanalysable("of * REPLACE or RENAME")
    qualifiers: tuple[str, ...] = ()
    if isinstance(node, exp.Column):
        parts = [node.args.get(k) for k in ("catalog", "db", "table")]
        qualifiers = tuple(plain(p.name).lower() for p in parts if p)
    without = {plain(e.name).lower() for e in star.args.get("except_") or ()}
    entries = source.entries
    if qualifiers:
        entries = [e for e in (*source.hidden, *source.entries) if e.answers(qualifiers)]
    if not entries:
        raise Unanalysable(f"of {'.'.join(qualifiers)}.*" if qualifiers else "of * without FROM")
    unknown = without - {e.name.lower() for e in entries}
    if unknown:
        raise Unanalysable(f"because * EXCEPT names `{min(unknown)}`")
    return [
        Out(e.name, e.written, e.expr, e.type) for e in entries if e.name.lower() not in without
    ]


def output_name(item: Any, inner: Any, select: Select) -> tuple[str, str]:
    """Return an output column's name, and as it is written; empty where the query gives none."""
    if isinstance(item, exp.Alias):
        if not isinstance(item.args["alias"], exp.Identifier):
            raise Unanalysable("of a path into a variant")
        name = plain(item.alias)
        return name, name
    inner = without_parens(inner)
    if isinstance(inner, exp.Column):
        written = plain(inner.name)
        entry = next((e for e in select.source.entries if e.name.lower() == written.lower()), None)
        return (entry.name if entry else written), written
    if isinstance(inner, exp.Dot):
        name = plain(inner.expression.name)
        return name, name
    return "", ""


def using_key(binding: Binding, name: str, side: From, place: Location) -> Entry:
    """Return the column of one side of a join that a key of USING means."""
    found = [e for e in side.entries if e.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    what = "is in several columns" if found else "is no column"
    hint = None if found else did_you_mean(name, (e.name for e in side.entries))
    message = f"`{name}` {what} of one side of the join"
    binding.problems.append(Problem("join-key", message, place, hint))
    raise Unanalysable("of a join whose keys are not clear")


def renamed(columns: Iterable[Out], names: Sequence[str]) -> tuple[Out, ...]:
    """Return columns with the names that an alias gives them."""
    columns = tuple(columns)
    if len(columns) != len(names):
        raise Unanalysable(f"because {len(names)} names are given to {len(columns)} columns")
    return tuple(replace(o, name=n, written=n) for o, n in zip(columns, names, strict=True))
