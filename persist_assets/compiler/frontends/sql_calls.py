"""Calls of functions: their arguments, and where they can stand. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import SPARKS, TIME_WINDOWS
from persist_assets.analysis.syntax import calls_in
from persist_assets.compiler.frontends.sql_functions import Parameter, Refused, SqlFunction
from persist_assets.compiler.frontends.sql_places import COMPLEX
from persist_assets.compiler.frontends.sql_trees import BRACKETS, n_columns
from persist_assets.core.dialect import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.core.errors import Location

    Span = tuple[int, int]
    """The indexes of the first token, and of the one after the last."""
    Refusal = tuple[str, str]
    """A message, and a way out."""


def arguments_of(
    tokens: Sequence[Token], at: int, node: Any, place: Location
) -> tuple[list[Span], int]:
    """Return the ranges of tokens of a call's arguments, and the index after the call.

    Parameters
    ----------
    at
        The index of the function's name.
    node
        The call.
    """
    spans: list[Span] = []
    depth, first, end = 0, at + 2, len(tokens)
    for i in range(at + 1, len(tokens)):
        token = tokens[i]
        depth += BRACKETS.get(token.token_type, 0)
        if depth == 0:
            end = i
            break
        if depth == 1 and token.text == ",":
            spans.append((first, i))
            first = i + 1
    if end > first or spans:
        spans.append((first, end))
    if len(spans) != len(node.expressions):
        hint = "write casts as CAST(… AS …)"
        raise Refused("function", "the arguments of this call are unclear", place, hint)
    return spans, end + 1


def bind(
    function: SqlFunction, spans: Sequence[Span], node: Any, place: Location
) -> list[tuple[Parameter, Span | None]]:
    """Return the tokens that a call passes for each parameter, None for its default."""
    bound: dict[str, Span] = {}
    names = [*function.parameters]
    hint = function.signature
    for n, (span, argument) in enumerate(zip(spans, node.expressions, strict=True)):
        if isinstance(argument, exp.Kwarg):
            name = argument.this.name.lower()
            span = span[0] + 2, span[1]
            if name not in names:
                message = f"`{function.name}` has no parameter `{name}`"
                raise Refused("argument-count", message, place, hint)
        elif n >= len(names):
            break
        else:
            name = names[n]
        if name in bound:
            message = f"`{function.name}` gets two arguments for `{name}`"
            raise Refused("argument-count", message, place, hint)
        bound[name] = span
    unbound = [p for k, p in function.parameters.items() if k not in bound]
    missing = [p.name for p in unbound if not (p.default or p.is_optional)]
    if missing or len(spans) > len(names):
        takes = f"{len(names)} argument{'s' * (len(names) != 1)}"
        message = f"`{function.name}` takes {takes}, not {len(spans)}"
        raise Refused("argument-count", message, place, hint)
    last = max((names.index(name) for name in bound), default=0)
    skipped = [name for name in names[:last] if name not in bound]
    if function.udf is not None and skipped:
        message = f"`{function.name}` needs `{skipped[0]}` before other arguments"
        raise Refused("argument-count", message, place, hint)
    return [(p, bound.get(k)) for k, p in function.parameters.items()]


def in_order(
    bound: Sequence[tuple[Parameter, Span | None]], spans: Sequence[Span], node: Any
) -> Iterator[Any]:
    """Yield the arguments of a call in the order of the parameters."""
    by_end = {s[1]: a for s, a in zip(spans, node.expressions, strict=True)}
    for _, span in bound:
        yield by_end[span[1]] if span is not None else None


def obstacle_to(name: str) -> str | None:
    """Return what a call does that a value of a single row cannot, or None."""
    return COMPLEX.get("window" if name in TIME_WINDOWS else SPARKS.get(name, ""))


# --------------------------------------------------------------------- functions with queries


def wrong_query(function: SqlFunction, *, is_volatile: bool) -> tuple[str, str | None] | None:
    """Return why the query of a function that returns a value cannot be inlined, or None."""
    body = function.body
    n = None if body is None or body.is_expression else n_columns(body.tree)
    if n not in (None, 1):
        return f"`{function.name}` returns one value, but its query has {n} columns", None
    if is_volatile:
        message = f"`{function.name}` has a query, and might have another value each time"
        return message, "remove the call of rand() or the like"
    return None


def wrong_place(function: SqlFunction, call: Any) -> Refusal | None:
    """Return why a query that is inlined for a call cannot stand at its place, or None.

    Parameters
    ----------
    function
        A function that returns a value, and has a query.
    """
    name = function.name
    subject, hint = f"`{name}` has a query", "compute it in a column of a subquery"
    below, above = call, call.parent
    aggregate = False
    while above is not None and not isinstance(above, exp.Select):
        called = next((name for name, node in calls_in(above) if node is above), "")
        kind = SPARKS.get(called)
        if isinstance(above, exp.Lambda):
            return f"{subject}, and Spark has none in lambda functions", hint
        if isinstance(above, exp.Values):
            return f"{subject}, and Spark has none in VALUES", "use SELECT … UNION ALL SELECT …"
        if kind in ("generator", "table"):
            return f"{subject}, and Spark has none in the arguments of `{called}`", hint
        aggregate |= kind == "aggregate" or isinstance(above, exp.Filter)
        below, above = above, above.parent
    if not any(a.find(exp.Column) for a in call.expressions):
        return None  # the query has the same value for all rows
    clause = below.arg_key if isinstance(above, exp.Select) else None
    if clause not in ("expressions", "where", "group", "having"):
        place = _CLAUSES.get(clause or "", "here")
        return f"{subject} that depends on the row, and Spark has none {place}", hint
    if clause == "expressions" and not aggregate and _is_ungrouped(function, below, above):
        hint = f"add {name}(…) to GROUP BY, or write first({name}(…))"
        return f"{subject} that depends on the row, but the rows here are groups", hint
    return None


_CLAUSES = {"joins": "in ON", "order": "in ORDER BY", "laterals": "in LATERAL VIEW"}
"""By the part of a SELECT, the clause that a user knows it by."""


def _is_ungrouped(function: SqlFunction, item: Any, select: Any) -> bool:
    """Whether a SELECT has groups by other keys than an item that calls a function."""
    group = select.args.get("group")
    if group is None or group.args.get("all"):
        return False
    keys = [*group.find_all(exp.Literal, exp.Column, exp.Anonymous)]
    called = {plain(k.name).lower() for k in keys if isinstance(k, exp.Anonymous)}
    named = {plain(k.name).lower() for k in keys if isinstance(k, exp.Column)}
    numbers = {k.name for k in keys if isinstance(k, exp.Literal)}
    return (
        function.name.lower() not in called
        and (not item.alias or item.alias.lower() not in named)
        and str(item.index + 1) not in numbers
    )


def wrong_value(function: SqlFunction, argument: Any, queried: set[str]) -> Refusal | None:
    """Return why an argument cannot be a column of the row that a query reads, or None.

    Parameters
    ----------
    function
        A function that returns a value, and has a query.
    queried
        The names of all such functions.
    """
    hint = "compute the argument in a column of a subquery"
    called = [*calls_in(argument)]
    if argument.find(exp.Query) or any(name in queried for name, _ in called):
        return f"`{function.name}` has a query, and so has this argument", hint
    obstacles = ((obstacle_to(name), name) for name, _ in called)
    obstacle = next((pair for pair in obstacles if pair[0]), None)
    if argument.find(exp.Window):
        obstacle = COMPLEX["window"], "OVER"
    if obstacle:
        message = f"`{function.name}` has a query, and its argument {obstacle[0]}: `{obstacle[1]}`"
        return message, hint
    return None
