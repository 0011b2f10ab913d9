"""Binding of expressions: operators, calls, subqueries and windows → expressions of the algebra.

To support a new kind of expression, add a row to `EXPRESSIONS`. A kind that has no row and is no
call keeps its class as its meaning (`_other`): this can miss equalities but never invents one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import Block, Call, Out, Sort, Subquery, Window, bare_value
from persist_assets.analysis.clock_texts import clock_texts
from persist_assets.analysis.equivalences import (
    COMPARISONS,
    case_of,
    field_of_time,
    same_call,
    times_of,
)
from persist_assets.analysis.functions import (
    AGGREGATES,
    GENERATORS,
    INTEGRAL,
    KNOWN,
    PYTHON,
    SYNONYMS,
    TIME_WINDOWS,
    UNIT_FIRST,
)
from persist_assets.analysis.named_literals import NO_DECIMALS, behind_names, has_char, is_literal
from persist_assets.analysis.names import expand_star, field_of, resolve_column, resolve_identifier
from persist_assets.analysis.positions import position
from persist_assets.analysis.scope import Unanalysable, is_certain
from persist_assets.analysis.syntax import (
    BINARY,
    FUNCTIONS,
    POSITIVE,
    SHIFT_UNSIGNED,
    arguments_of,
    given_args,
    is_star,
    kind_of,
    misread,
    regrouped,
    without_parens,
    word_for,
)
from persist_assets.analysis.types import INLINED
from persist_assets.core.dialect import plain, suffixed, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.binding import Binding
    from persist_assets.analysis.scope import Select


AGGREGATE_OPS = AGGREGATES | {"grouping", "grouping_id"}
"""Calls that are defined only for a group of rows."""

PENDING = Block()
"""Placeholder for the rows of a window until they are known: see `grouping.finish_windows`."""

_KEYWORD_FUNCTIONS = frozenset(FUNCTIONS.values())


def expression(binding: Binding, node: Any, select: Select) -> Expr:
    """Return the meaning of one expression.

    Raises
    ------
    Unanalysable
        The meaning is not known.
    """
    binding.enter(node)
    node = without_parens(node)
    chain: list[tuple[str, Any]] = []  # a + b + c is a chain, not nested
    while True:
        if misread(node):
            node = regrouped(node)
        if node is None:
            raise Unanalysable("of operators without parentheses whose precedence is uncertain")
        if type(node) not in BINARY:
            break
        chain.append((BINARY[type(node)], node.expression))
        node = without_parens(node.this)
    kind = type(node)
    bind = EXPRESSIONS.get(kind)
    if bind is not None:
        expr = bind(binding, node, select)
    elif kind in FUNCTIONS:
        expr = _function(binding, FUNCTIONS[kind], list(arguments_of(node)), select)
    else:
        expr = _other(binding, node, select)
    for operator, right in reversed(chain):
        other = expression(binding, right, select)
        for side, compared in ((right, expr), (node, other)):
            if isinstance(side, exp.Placeholder):
                binding.bounded.append((side, compared))
        if is_literal(expr) or is_literal(other):
            expr, other = _behind_names(binding, operator, (node, expr), (right, other))
        if operator in COMPARISONS:
            expr, other = times_of(binding, expr, other), times_of(binding, other, expr)
        if operator in _EXACT_WITH_INTEGERS:
            expr, other = _folded_beside(binding, expr, other), _folded_beside(binding, other, expr)
        expr = binding.calls.call(operator, (expr, other))
    binding.depth -= 1
    return expr


def _behind_names(
    binding: Binding, operator: str, left: tuple[Any, Expr], right: tuple[Any, Expr]
) -> tuple[Expr, Expr]:
    """Return two operands, each given as written and as bound, with types of named literals."""
    written = (without_parens(node) for node, _ in (left, right))
    named = [not isinstance(node, exp.Literal | exp.Neg) for node in written]
    args = left[1], right[1]
    one, other = behind_names(binding.calls, operator, args, named, binding.types)
    return one, other


_EXACT_WITH_INTEGERS = frozenset(("=", "<>", "<", "<=", ">", ">=", "<=>", "+", "-", "*"))


def _folded_beside(binding: Binding, constant: Expr, other: Expr) -> Expr:
    """Return a constant folded, where that cannot change the type of the result.

    Beside a decimal, the digits of a literal decide the type; those of a product do not.
    """
    beside = binding.types.of(other)
    return folded(binding, constant) if beside in NO_DECIMALS else constant


def folded(binding: Binding, expr: Expr) -> Expr:
    """Return the INT literal of a sum or product of two INT literals, or the expression itself."""
    if not isinstance(expr, Call) or expr.op not in ("+", "*") or len(expr.args) != 2:
        return expr
    a, b = map(_int_of, expr.args)
    if a is None or b is None:
        return expr
    value = a + b if expr.op == "+" else a * b
    return binding.calls.call("number", (), (str(value),)) if value < 2**31 else expr


def _int_of(expr: Expr) -> int | None:
    if not isinstance(expr, Call) or expr.op != "number":
        return None
    text = expr.words[0]
    value = int(text) if text.isdecimal() and text.isascii() and len(text) < 11 else 2**31
    return value if value < 2**31 else None


def sort_keys(
    binding: Binding, order: Any, select: Select, outs: Sequence[Expr]
) -> tuple[Sort, ...]:
    """Return the keys of an ORDER BY; a number means a position in `outs`, if there are any."""
    sorts: list[Sort] = []
    for item in order.expressions:
        by = item.this if isinstance(item, exp.Ordered) else item
        if isinstance(by, exp.Var) and by.name.upper() == "ALL":
            return _all_in_turn(item, order, select, outs)
        column = position(binding, by, len(outs), "ORDER BY") if outs else None
        if column is not None:
            expr = outs[column]
        else:
            doubtful = select.outs_first and not isinstance(by, exp.Column)
            expr = expression(
                binding, by, replace(select, refuses_doubt=True) if doubtful else select
            )
        descending = bool(item.args.get("desc"))
        sorts.append(Sort(expr, descending, bool(item.args.get("nulls_first"))))
    return tuple(sorts)


def _all_in_turn(item: Any, order: Any, select: Select, outs: Sequence[Expr]) -> tuple[Sort, ...]:
    """Return the keys of ORDER BY ALL: all columns from left to right."""
    named = any(o.name.lower() == "all" for o in (*select.outs, *select.source.entries))
    if named or not outs or len(order.expressions) > 1:
        raise Unanalysable("of ORDER BY ALL beside a column of that name, or another key")
    descending, nulls_first = bool(item.args.get("desc")), bool(item.args.get("nulls_first"))
    return tuple(Sort(out, descending, nulls_first) for out in outs)


def _literal(binding: Binding, node: Any, select: Select) -> Expr:
    number = suffixed(node.this) if node.is_string else None
    if number is not None:
        return binding.calls.call("number", (), (number.upper(),))
    return binding.calls.call("string" if node.is_string else "number", (), (node.this,))


def _and(binding: Binding, node: Any, select: Select) -> Expr:
    return _chain(binding, "and", exp.And, node, select)


def _or(binding: Binding, node: Any, select: Select) -> Expr:
    return _chain(binding, "or", exp.Or, node, select)


def _chain(binding: Binding, op: str, kind: type[exp.Expr], node: Any, select: Select) -> Expr:
    operands: list[Any] = []
    stack = [node]
    while stack:
        this = without_parens(stack.pop())
        if isinstance(this, kind):
            stack += (this.expression, this.this)
        else:
            operands.append(this)
    bound = [expression(binding, o, select) for o in operands]
    refuse_drawn_twice(binding, bound)
    return binding.calls.call(op, bound)


def refuse_drawn_twice(binding: Binding, operands: Sequence[Expr]) -> None:
    """Raise if operands that are deduplicated include a nondeterministic expression twice.

    Raises
    ------
    Unanalysable
        They do: two draws of the same expression differ.
    """
    if len(set(operands)) < len(operands) and binding.is_volatile(*operands):
        raise Unanalysable("of a repeated nondeterministic expression")


def _negative(binding: Binding, node: Any, select: Select) -> Expr:
    if isinstance(node.this, exp.Literal):
        number = expression(binding, node.this, select)
        if isinstance(number, Call) and number.op == "number":
            return binding.calls.call("number", (), (f"-{number.words[0]}",))
    return binding.calls.call("negative", (expression(binding, node.this, select),))


def _positive(binding: Binding, node: Any, select: Select) -> Expr:
    value = expression(binding, node.this, select)
    return same_call(binding, "positive", [value]) or binding.calls.call("positive", (value,))


def _shift_unsigned(binding: Binding, node: Any, select: Select) -> Expr:
    operands = (node.this, *node.expressions)
    return binding.calls.call(
        "shiftrightunsigned", [expression(binding, o, select) for o in operands]
    )


def _collate(binding: Binding, node: Any, select: Select) -> Expr:
    named = node.expression
    if isinstance(named, exp.Literal) and named.is_string:  # collate(b, 'UNICODE')
        name = named.name.rpartition(".")[2]
    elif isinstance(named, exp.Var | exp.Identifier | exp.Column):
        name = plain(named.name)
    else:
        raise Unanalysable("of a collation that is not a name")
    binding.types.collated = True
    return binding.calls.call("collate", (expression(binding, node.this, select),), (name.upper(),))


def _not(binding: Binding, node: Any, select: Select) -> Expr:
    return binding.calls.call("not", (expression(binding, node.this, select),))


def _null_safe_unequal(binding: Binding, node: Any, select: Select) -> Expr:
    operands = [expression(binding, e, select) for e in (node.this, node.expression)]
    return binding.calls.call("not", (binding.calls.call("<=>", operands),))


def _parameter(binding: Binding, node: Any, select: Select) -> Expr:
    return binding.calls.call("parameter", (), (node.name.removeprefix(":"),))


def _boolean(binding: Binding, node: Any, select: Select) -> Expr:
    return binding.calls.call("boolean", (), ("true" if node.this else "false",))


def _null(binding: Binding, node: Any, select: Select) -> Expr:
    return binding.calls.call("null")


def _is(binding: Binding, node: Any, select: Select) -> Expr:
    tested = expression(binding, node.this, select)
    if isinstance(node.expression, exp.Null):
        return binding.calls.call("is null", (tested,))
    if isinstance(node.expression, exp.Boolean):
        return binding.calls.call("is", (tested,), ("true" if node.expression.this else "false",))
    raise Unanalysable("of IS")


def _between(binding: Binding, node: Any, select: Select) -> Expr:
    if node.args.get("symmetric"):
        raise Unanalysable("of BETWEEN SYMMETRIC")
    value, low, high = (expression(binding, node.args[k], select) for k in ("this", "low", "high"))
    low, high = times_of(binding, low, value), times_of(binding, high, value)
    # Beside CHAR(n), comparisons pad the other side with blanks, but BETWEEN does not.
    if binding.is_volatile(value) or has_char(binding.types, (value, low, high)):
        return binding.calls.call("between", (value, low, high))
    return binding.calls.call(
        "and", (binding.calls.call("<=", (low, value)), binding.calls.call("<=", (value, high)))
    )


def _in(binding: Binding, node: Any, select: Select) -> Expr:
    needle = expression(binding, node.this, select)
    needles = needle.args if isinstance(needle, Call) and needle.op == "tuple" else (needle,)
    query = node.args.get("query")
    if query is not None:
        if isinstance(query, exp.Subquery) and isinstance(query.this, exp.Subquery):
            raise Unanalysable("of IN ((SELECT …)), which is a scalar subquery")
        binding.computes_in = True
        return Subquery("in", _nested(binding, query, select), needles, binding.mark(node))
    if node.args.get("unnest") or node.args.get("field"):
        raise Unanalysable("of IN")
    values = [expression(binding, e, select) for e in node.expressions]
    refuse_drawn_twice(binding, values)
    if has_char(binding.types, (needle,)):
        written = (without_parens(e) for e in node.expressions)
        named = [False, *(not isinstance(e, exp.Literal) for e in written)]
        needle, *values = behind_names(binding.calls, "in", (needle, *values), named, binding.types)
    kinds = {binding.types.of(e) for e in (needle, *values)}
    if len(kinds) == 1 and kinds <= _COMPARED_ALIKE and not binding.is_volatile(needle):
        return binding.calls.call("or", [binding.calls.call("=", (needle, v)) for v in values])
    return binding.calls.call("in", (needle, *dict.fromkeys(values)))


_COMPARED_ALIKE: frozenset[str | None] = frozenset((*INTEGRAL, "string", "date"))
"""Types for which IN is a chain of =. (A long IN distinguishes -0.0 from 0.0, = does not.)"""


def _nested(binding: Binding, node: Any, select: Select) -> Block:
    return binding.query(binding, node, select.around)


def _subquery(binding: Binding, node: Any, select: Select) -> Expr:
    block = _nested(binding, node, select)
    if len(block.columns) != 1:
        raise Unanalysable("of a scalar subquery of several columns")
    value = bare_value(block)
    # Spark pads a compared column of CHAR(n), but not a compared subquery.
    if value and not binding.is_volatile(value) and not has_char(binding.types, (value,)):
        return binding.memberships.marked(binding.calls, INLINED, value, {})
    return Subquery("scalar", block, place=binding.mark(node))


def _exists(binding: Binding, node: Any, select: Select) -> Expr:
    if isinstance(node.this, exp.Query):
        block = _nested(binding, node.this, select)
        return Subquery("exists", block, place=binding.mark(node))
    return _function(binding, "exists", list(arguments_of(node)), select)


def _like(binding: Binding, node: Any, select: Select) -> Expr:
    """Bind LIKE and ILIKE; with ANY and ALL they are several, each with its own NOT."""
    choices = node.expression
    several = isinstance(choices, exp.Any | exp.All)
    patterns = [choices]
    if several:
        inner = choices.this
        patterns = inner.expressions if isinstance(inner, exp.Tuple) else [without_parens(inner)]
    if any(isinstance(p, exp.Query) for p in patterns):
        raise Unanalysable("of LIKE with a subquery")
    value = expression(binding, node.this, select)
    if several and binding.is_volatile(value):
        raise Unanalysable("of LIKE of a nondeterministic value")
    call, words = binding.calls.call, ("expression:1", "this:1")  # as `_other` has them
    likes = [call(kind_of(node), (expression(binding, p, select), value), words) for p in patterns]
    if node.args.get("negate"):
        likes = [call("not", (like,)) for like in likes]
    if not several:
        return likes[0]
    return call("or" if isinstance(choices, exp.Any) else "and", likes)


def _any(binding: Binding, node: Any, select: Select) -> Expr:
    if isinstance(node.this, exp.Paren):
        return _function(binding, "any", [node.this.this], select)
    raise Unanalysable("of ANY")


def _case(binding: Binding, node: Any, select: Select) -> Expr:
    subject = expression(binding, node.this, select) if node.this is not None else None
    args: list[Expr] = []
    for branch in node.args["ifs"]:
        test = expression(binding, branch.this, select)
        if subject:
            pair = _behind_names(binding, "=", (node.this, subject), (branch.this, test))
            test = binding.calls.call("=", pair)
        args += (test, expression(binding, branch.args["true"], select))
    if subject and binding.is_volatile(subject):
        raise Unanalysable("of CASE over a nondeterministic function")
    otherwise = node.args.get("default")
    if otherwise is not None:
        args.append(expression(binding, otherwise, select))
    return case_of(binding, args, has_else=otherwise is not None)


def _cast(binding: Binding, node: Any, select: Select) -> Expr:
    return _cast_to(binding, "cast", node, select)


def _try_cast(binding: Binding, node: Any, select: Select) -> Expr:
    return _cast_to(binding, "try_cast" if node.args.get("safe") else "cast", node, select)


def _cast_to(binding: Binding, op: str, node: Any, select: Select) -> Expr:
    if set(given_args(node)) - {"this", "to", "safe"}:
        raise Unanalysable("of CAST with a format")
    to = type_name(node.args["to"])
    if to is None:
        raise Unanalysable("of CAST to an unknown type")
    return _value_as(binding, op, expression(binding, node.this, select), to)


def _value_as(binding: Binding, op: str, value: Expr, to: str) -> Expr:
    if to.startswith(("date", "timestamp")) and clock_texts(binding.types, value):
        value = binding.calls.call("now", (value,))
    binding.types.collated |= "collate" in to
    return binding.calls.call(op, (value,), (to,))


def _struct(binding: Binding, node: Any, select: Select) -> Expr:
    args: list[Expr] = []
    words: list[str] = []
    for n, item in enumerate(node.expressions, 1):
        if isinstance(item, exp.PropertyEQ):
            inner = without_parens(item.expression)
            if item.this.name == f"col{n}" and isinstance(inner, exp.Bracket | exp.Dot):
                raise Unanalysable("of a field that may be named after its source")
            args.append(expression(binding, item.expression, select))
            words.append(plain(item.this.name))
        else:
            for out in _with_stars(binding, [item], select):
                if is_star(item) and not is_certain(out.written):
                    raise Unanalysable("of a field whose name is uncertain")
                args.append(out.expr)
                words.append(out.written)
    return binding.calls.call("struct", args, words)


def _with_stars(binding: Binding, items: Iterable[Any], select: Select) -> list[Out]:
    """Return arguments, with stars expanded to their columns."""
    outs: list[Out] = []
    for item in items:
        if is_star(item):
            outs += expand_star(binding, item, select.source)
        else:
            outs.append(Out("", "", expression(binding, item, select)))
    return outs


def _map(binding: Binding, node: Any, select: Select) -> Expr:
    keys, values = node.args["keys"].expressions, node.args["values"].expressions
    if len(keys) != len(values):
        raise Unanalysable("of map() with an odd number of arguments")
    pairs = [
        expression(binding, e, select) for pair in zip(keys, values, strict=True) for e in pair
    ]
    return binding.calls.call("map", pairs)


def _bracket(binding: Binding, node: Any, select: Select) -> Expr:
    if (
        set(given_args(node)) - {"this", "expressions", "offset", "safe"}
        or len(node.expressions) != 1
    ):
        raise Unanalysable("of []")
    return binding.calls.call(
        "[]",
        (expression(binding, node.this, select), expression(binding, node.expressions[0], select)),
    )


def _dot(binding: Binding, node: Any, select: Select) -> Expr:
    if not isinstance(node.expression, exp.Identifier):
        raise Unanalysable("of a dot before something other than a name")
    return field_of(binding, expression(binding, node.this, select), plain(node.expression.name))


def _tuple(binding: Binding, node: Any, select: Select) -> Expr:
    items = [without_parens(item) for item in node.expressions]
    values = [item.this if isinstance(item, exp.Alias) else item for item in items]
    bound = [expression(binding, value, select) for value in values]
    return binding.calls.call("tuple", bound, _names_of(items))


def _names_of(items: Iterable[Any]) -> list[str]:
    """Return the field names of a struct made of expressions; empty where none is written."""
    named, bare = (exp.Alias, exp.Column, exp.Identifier, exp.Dot), map(without_parens, items)
    return [plain(i.alias_or_name) if isinstance(i, named) else "" for i in bare]


def _interval(binding: Binding, node: Any, select: Select) -> Expr:
    unit = node.args.get("unit")
    word = unit.sql("spark").lower() if unit is not None else ""
    return binding.calls.call("interval", (expression(binding, node.this, select),), (word,))


def _extract(binding: Binding, node: Any, select: Select) -> Expr:
    return field_of_time(binding, node.this.name, expression(binding, node.expression, select))


def _lambda(binding: Binding, node: Any, select: Select) -> Expr:
    names = tuple(plain(p.name).lower() for p in node.expressions)
    inner = replace(select, parameters=(*select.parameters, *names))
    return binding.calls.call(
        "lambda",
        (expression(binding, node.this, inner),),
        (str(len(select.parameters)), str(len(names))),
    )


def _named(binding: Binding, node: Any, select: Select) -> Expr:
    name = plain(node.name).lower()
    if binding.any_condition and name not in KNOWN | _KEYWORD_FUNCTIONS:
        clause = node.find_ancestor(exp.Where, exp.Join, exp.Select)
        if isinstance(clause, exp.Where | exp.Join):
            args = [out.expr for out in _with_stars(binding, node.expressions, select)]
            return binding.calls.call("user's", args, (name,))
    return _function(binding, name, node.expressions, select)


def _filter(binding: Binding, node: Any, select: Select) -> Expr:
    call = expression(binding, node.this, select)
    if not isinstance(call, Call) or call.op not in AGGREGATE_OPS:
        raise Unanalysable("of FILTER")
    condition = expression(binding, node.expression.this, select.in_aggregate)
    return binding.calls.call(call.op, (*call.args, condition), (*call.words, "filter"))


def _ignore_nulls(binding: Binding, node: Any, select: Select) -> Expr:
    call = expression(binding, node.this, select)
    if not isinstance(call, Call):
        raise Unanalysable("of IGNORE NULLS")
    return binding.calls.call(call.op, call.args, (*call.words, "ignore nulls"))


def _respect_nulls(binding: Binding, node: Any, select: Select) -> Expr:
    return expression(binding, node.this, select)


def _within_group(binding: Binding, node: Any, select: Select) -> Expr:
    call = expression(binding, node.this, select)
    if not isinstance(call, Call) or call.op not in AGGREGATE_OPS:
        raise Unanalysable("of WITHIN GROUP")
    keys = sort_keys(binding, node.expression, select.in_aggregate, ())
    words = [
        f"{'desc' if s.descending else 'asc'} {'first' if s.nulls_first else 'last'}" for s in keys
    ]
    return binding.calls.call(
        call.op, (*call.args, *(s.by for s in keys)), (*call.words, "within", *words)
    )


def _function(binding: Binding, name: str, args: Sequence[Any], select: Select) -> Expr:
    ours = name in KNOWN or name in _KEYWORD_FUNCTIONS or PYTHON.fullmatch(name)
    if not ours:
        raise Unanalysable(f"of the function {name}, which is not one of Spark's own")
    if name in GENERATORS:
        raise Unanalysable(f"of {name} inside an expression")
    if name in TIME_WINDOWS and not select.groups:
        raise Unanalysable(f"of {name}() outside GROUP BY")
    if name in AGGREGATE_OPS:
        select = select.in_aggregate
    words: list[str] = []
    if len(args) == 1 and isinstance(args[0], exp.Distinct):
        if args[0].args.get("on"):
            raise Unanalysable("of DISTINCT ON")
        words.append("distinct")
        args = args[0].expressions
    if name in UNIT_FIRST and len(args) == 3:
        unit, *args = args
        words.append(unit.name.lower())
    if name == "arrays_zip":
        words += _names_of(args)
    if name == "unix_timestamp" and args:
        name = "to_unix_timestamp"
    if name == "count" and len(args) == 1 and isinstance(args[0], exp.Star) and not words:
        bound: list[Expr] = []
    else:
        bound = [out.expr for out in _with_stars(binding, args, select)]
    if len(bound) == len(args) == 2:
        bound = [*_behind_names(binding, name, (args[0], bound[0]), (args[1], bound[1]))]
    if name == "count" and not words and len(bound) == 1:
        only = bound[0]
        if isinstance(only, Call) and only.op in ("number", "string", "boolean"):
            bound = []
    if name == "collate":
        raise Unanalysable("of a collation that is not a name")
    same = None if words else same_call(binding, name, bound)
    if same is None and name == "to_date" and len(bound) == 1:
        return _value_as(binding, "cast", bound[0], "date")
    return same or binding.calls.call(SYNONYMS.get(name, name), bound, words)


def _window(binding: Binding, node: Any, select: Select) -> Expr:
    function = expression(binding, node.this, select)
    if not isinstance(function, Call):
        raise Unanalysable("of OVER")
    binding.windowed = True
    spec = _window_spec(node, select.windows)
    partition = tuple(expression(binding, e, select) for e in spec.get("partition_by") or ())
    order = sort_keys(binding, spec["order"], select, ()) if spec.get("order") else ()
    frame: list[Expr | str] = []
    frame_spec = spec.get("spec")
    if frame_spec is not None:
        if frame_spec.args.get("exclude"):
            raise Unanalysable("of EXCLUDE in a frame")
        for key in ("kind", "start", "start_side", "end", "end_side"):
            value = frame_spec.args.get(key)
            value = value.name if isinstance(value, exp.Var) else value
            frame.append(
                expression(binding, value, select)
                if isinstance(value, exp.Expr)
                else str(value or "").lower()
            )
        frame[3] = frame[3] or "current row"
    if function.op in AGGREGATES and frame == _DEFAULT_FRAMES[bool(order)]:
        frame = []
    keys = tuple(dict.fromkeys(partition))
    return Window(function, keys, order, tuple(frame), PENDING, (), binding.mark(node))


_DEFAULT_FRAMES: Mapping[bool, list[str]] = {
    True: ["range", "unbounded", "preceding", "current row", ""],
    False: ["rows", "unbounded", "preceding", "unbounded", "following"],
}
"""The frame of an aggregate without a written one, with and without ORDER BY."""


def _window_spec(node: Any, windows: Mapping[str, Any]) -> Mapping[str, Any]:
    if node.args.get("first") is not None or set(given_args(node)) - {
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
    return _window_spec(named, {k: v for k, v in windows.items() if v is not named})


def _other(binding: Binding, node: Any, select: Select) -> Expr:
    """Bind a node of an unknown kind: its class, its parts and its flags are its meaning."""
    if not isinstance(node, exp.Condition | exp.Func) or isinstance(node, exp.Query):
        raise Unanalysable(f"of {word_for(node)}")
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
                    args.append(expression(binding, part, select))
                case exp.Expr():
                    raise Unanalysable(f"of {word_for(part)}")
                case _:
                    words.append(str(part).lower() if isinstance(part, bool) else str(part))
    return binding.calls.call(kind_of(node), args, words)


EXPRESSIONS: Mapping[type[exp.Expr], Callable[[Binding, Any, Select], Expr]] = {
    exp.Column: resolve_column,
    exp.Identifier: resolve_identifier,
    exp.Literal: _literal,
    exp.And: _and,
    exp.Or: _or,
    exp.Neg: _negative,
    POSITIVE: _positive,
    SHIFT_UNSIGNED: _shift_unsigned,
    exp.Collate: _collate,
    exp.Not: _not,
    exp.NullSafeNEQ: _null_safe_unequal,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Placeholder: _parameter,
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Subquery: _subquery,
    exp.Exists: _exists,
    exp.Any: _any,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _try_cast,
    exp.Struct: _struct,
    exp.VarMap: _map,
    exp.Bracket: _bracket,
    exp.Dot: _dot,
    exp.Tuple: _tuple,
    exp.Interval: _interval,
    exp.Extract: _extract,
    exp.Lambda: _lambda,
    exp.Anonymous: _named,
    exp.Filter: _filter,
    exp.IgnoreNulls: _ignore_nulls,
    exp.RespectNulls: _respect_nulls,
    exp.WithinGroup: _within_group,
    exp.Window: _window,
}
"""Binders of expressions that are neither binary operators nor plain calls."""
