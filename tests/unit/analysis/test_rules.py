"""Every rule of the fingerprint has a pair of queries that is compared wrongly without it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from pairs import build_id, golden

from persist_assets.analysis import (
    algebra,
    binder,
    equivalences,
    expressions,
    fingerprint,
    grouping,
    named_literals,
    names,
    normal_form,
    pivots,
    relations,
    semantics,
)
from persist_assets.core import dialect

if TYPE_CHECKING:
    from types import CodeType

PAIRS = {
    name: {title: queries for title, *queries in golden(name)}
    for name in ("different.txt", "equal.txt")
}
Rule = tuple[str, Callable[..., Any], str, str]
"""Title of a pair, the function with its rule, a part of its text, and the replacement."""

Scope, Fold, Calls = fingerprint.Scope, fingerprint.Fold, algebra.Calls
Normal, InTermsOf = normal_form.Normal, named_literals.InTermsOf

NO_LABELS = (Scope._expr, 'digest("at", label, columns[column]) if label else ', "")
ONE_LABEL_FOR_TIES = (Fold._labels, '{labels[i]}#{number}"', '{labels[i]}#"')
NO_LEVELS = (Fold.scope, 'f"^{label}"', "label")
NOT_WRAPPED = (Fold._outer, 'digest("side", side, scope.expr(out.expr))', "scope.expr(out.expr)")
ONE_SIDE = (Fold._outer_joins, 'f"S{label}"', '"S"')
NO_KEYS = (Fold._aggregate, "scope.rows, sorted(set(key_digests)), grouping", "scope.rows")
NO_SETS = (Fold._aggregate, "sorted(sorted(key_digests[k] for k in one) for one in sets)", '"sets"')
KEYS_BY_VALUE = (Fold._aggregate, "if len(set(key_digests)) < len(keys)", "if not keys")
KEYS_BY_MEANING = (binder._select, "if group and has_sets(group)", "if group is select")
LEFT_KEY = (relations._merge_keys, 'binding.calls.call("coalesce", (a.expr, b.expr))', "a.expr")
BOTH_KEYS = (relations._merge_keys, 'elif side == "FULL"', "elif True")
ANY_NUMBER = (expressions._literal, "(node.this,)", "(node.this.rstrip('0.e'),)")
NO_SUFFIX = (expressions._literal, "number.upper()", "number[:-1]")
COLUMN_BY_COLUMN = (Fold._set_operation, "[b.columns[i] for b in branches])", "sorted(b.columns[i] for b in branches))")  # fmt: skip
NO_ORDER = (Fold._aggregate, "scope.order if ordered else None", "None")
NULLS_ANYWHERE = (expressions.sort_keys, 'bool(item.args.get("nulls_first"))', "False")
UNMERGED = (
    relations.derived_from,
    "volatile = binding.is_volatile(*block.conjuncts, *computed)",
    "volatile = True",
)
WRITTEN_LABELS = (Fold._labels, "{i: leaf.rows for i, leaf in leaves.items()}", "{i: str(i) for i in leaves}")  # fmt: skip
UNORDERED = (Scope._expr, "elif op in COMMUTATIVE", "elif not op")

DIFFERENT: list[Rule] = [
    ("which side of a self-join", *NO_LABELS),
    ("two of a symmetric self-join", *ONE_LABEL_FOR_TIES),
    ("one generator or two", *ONE_LABEL_FOR_TIES),
    ("constants of two outer joins", *ONE_SIDE),
    ("coalesce above or below an outer join", *NOT_WRAPPED),
    ("which side of a self LEFT JOIN", Fold._outer, '"side", side,', '"side",'),
    ("which column of which side of a self LEFT JOIN", Fold._outer, 'f"{side}{label}"', "label"),
    ("condition of an outer join", Fold._outer, "[s.rows for s in scopes], conditions", "[s.rows for s in scopes]"),
    ("filter before or after a window", Scope._window, "rows.rows,\n        mapping", "mapping"),
    ("no keys or a constant key", *NO_KEYS),
    ("columns of a UNION ALL of one table", *COLUMN_BY_COLUMN),
    ("inner or outer scope", *NO_LEVELS),
    ("which inner column", *NO_LEVELS),
    ("inner or outer scope of an anti join", *NO_LEVELS),
    ("which column IN looks at", Fold._condition, "(needle, out.expr)", "(needle, needle)"),
    ("limit before or after a filter", binder._limited, "binding.leaf(Limit(block, how_many, skipped, ordered, place), block.columns)", 'replace(block, conjuncts=(*block.conjuncts, binding.calls.call("limit", [how_many])))'),
    ("1.0 or 1.00", *ANY_NUMBER),
    ("DECIMAL or DOUBLE", *ANY_NUMBER),
    ("INT or BIGINT", *NO_SUFFIX),
    ("INT or DOUBLE", *NO_SUFFIX),
    ("IN with NULL", expressions._in, "for e in node.expressions]", "for e in node.expressions if not isinstance(e, exp.Null)]"),
    ("NOT EXISTS or NOT IN", expressions._in, 'Subquery("in", _nested(binding, query, select), needles, binding.mark(node))', 'Subquery("exists", replace(b := _nested(binding, query, select), conjuncts=(*b.conjuncts, binding.calls.call("=", (needle, b.columns[0].expr)))))'),
    ("cast in a branch of a union", expressions._value_as, "binding.calls.call(op, (value,), (to,))", "value"),
    ("EXCEPT or EXCEPT ALL", binder._set_operation, 'kind += " all"', "pass"),
    ("a generator whose column nobody reads", binder._select_generator, "select.source.leaves |= dict(block.leaves)", "pass"),
    ("a lateral view whose column nobody reads", binder._add_generated, "source.leaves |= generated.leaves", "pass"),
    ("ROWS or RANGE", expressions._window, '("kind", "start"', '("start", "start"'),
    ("IGNORE NULLS", expressions._ignore_nulls, '(*call.words, "ignore nulls")', "call.words"),
    ("NULLS LAST in a window", *NULLS_ANYWHERE),
    ("NULLS LAST under LIMIT", *NULLS_ANYWHERE),
    ("a lambda's parameter hides a column", names.resolve_identifier, "if name in select.parameters:", "for found, _ in _lookup((name,), select.source):\n        return found.expr\n    if name in select.parameters:"),
    ("inner or outer parameter of nested lambdas", names.resolve_identifier, "(str(index),)", "()"),
    ("order of ROLLUP", *NO_SETS),
    ("one of two equal columns in grouping sets", *KEYS_BY_VALUE),
    ("which of two equal columns is grouped", Fold._aggregate, "if named and isinstance(call, Call)", "if not call"),
    ("a key of grouping sets or what it is computed from", *KEYS_BY_MEANING),
    ("a key of grouping sets that is a constant, or the constant", *KEYS_BY_MEANING),
    ("order of a branch of a union that is a union", binder._union_branches, " or block.order", ""),
    ("a key of a ROLLUP or a function of one", Fold._aggregate, '[digest("key", k) for k in key_digests]', "[*key_digests]"),
    ("an inner column hides an outer one", names.resolve_column, "_lookup(lower, source)\n        if matches", "_lookup(lower, source.outer or source) or _lookup(lower, source)\n        if matches"),
    ("order in grouping_id", Scope._expr, "elif op in COMMUTATIVE", 'elif op in COMMUTATIVE or op == "grouping_id"'),
    ("key of a FULL JOIN USING", *LEFT_KEY),
    ("key of a chained USING", *LEFT_KEY),
    ("key of a RIGHT JOIN USING", relations._merge_keys, 'if side == "RIGHT"', "if False"),
    ("key of a chained RIGHT JOIN USING", relations._merge_keys, 'if side == "RIGHT"', "if False"),
    ("doubled quote or joined strings", dialect.faithful, 'source[0] if touches else ""', '""'),
    ("order under first()", *NO_ORDER),
    ("SORT BY under collect_list", *NO_ORDER),
    ("branches under collect_list", Fold._set_operation, 'digest("branches", [(b.rows, b.columns, b.order) for b in branches])', "None"),
    ("one draw or two", fingerprint.drawn, 'digest("drawn", c)', "c"),
    ("which of two draws", fingerprint._numbered_draws, "if number", "if False"),
    ("a condition on one draw or on two", fingerprint._numbered_draws, "if number", "if False"),
    ("one draw or two above a LIMIT", Fold._drawn_columns, "Derived(block) | Limit(block)", "Derived(block)"),
    ("a constant beside a decimal, above a LIMIT", Scope._operands, "if literal is not None", "if False"),
    ("a constant of an outer join beside a decimal", InTermsOf._rebuilt, "isinstance(a, Ref) and", "False and"),
    ("a constant key beside a decimal", InTermsOf._rebuilt, "isinstance(a, Ref) and", "False and"),
    ("twice one side or once each", *ONE_LABEL_FOR_TIES),
    ("which side of a self-join of a view", *NO_LABELS),
    ("which side of a self-join of a common table expression", *NO_LABELS),
    ("which outer join of one table", *ONE_SIDE),
    ("LEFT JOINs of which one is joined to the other, or to the first table", Fold._outer_joins, "right.rows, sorted(set(sides.exprs(on)))", "right.rows"),
    ("LEFT JOIN whose filter is true for rows without a match", Normal._rejected, "if rejects_nulls(self._reader.predicate(condition))", "if True"),
    ("LEFT JOIN whose filter has a value for NULL", Normal._rejected, "if rejects_nulls(self._reader.predicate(condition))", "if True"),
    ("LEFT JOIN whose filter is on its left side", Normal._narrowed, "if any(all(column >= n for _, column in r) for r in rejected)", "if rejected"),
    ("IS NULL of a column that may be NULL in a match", Normal._anti, "if _is_compared(", "if True or _is_compared("),
    ("IS NULL of a column that is compared so that NULL matches", normal_form._is_compared, '("=", "<>", "<", "<=")', '("<=>",)'),
    ("type of a column of a side without a match", Normal._anti, "(kind,)) for kind", '("x",)) for kind'),
    ("condition on a key that is a floating-point number, in HAVING or WHERE", Normal._is_same_if_equal, "return kind is not None and", "return True or"),
    ("condition on keys of grouping sets in HAVING or WHERE", Normal._filtered, "form.sets is not None", "False"),
    ("condition without columns on all rows as one group, in HAVING or WHERE", Normal._filtered, "== alone", "<= alone"),
    ("count of the rows of DISTINCT with NULL", Normal._counted_groups, "or node", "or whole"),
    ("columns of a UNION", *COLUMN_BY_COLUMN),
    ("order below a lateral view", *NO_ORDER),
    ("order below a join", *NO_ORDER),
    ("a frame of rows over ties", Scope._window, "rows.order if order_matters else None", "None"),
    ("which branch of a union names fields", Fold._node, "k is None or _OF_FIRST_BRANCH.search(k)", "False"),
    ("branches of a union of several types, of which others meet first", binder._set_operation, "column.type is not None for column in columns", "True for column in columns"),
    ("branches of a union of several types, in parentheses", binder._set_operation, "column.type is not None for column in columns", "True for column in columns"),
    ("what a generator is applied to, where tables look alike and nobody reads its column", Fold.scope, "*([calls] if calls else ())", ""),
    ("names of what arrays_zip zips", expressions._function, 'if name == "arrays_zip"', "if False"),
    ("names of the fields of a tuple", expressions._tuple, ", _names_of(items)", ""),
    ("HAVING: a column that is a key, or an alias", names._is_key, "column not in walk(*select.keys)", "True"),
    ("columns of PIVOT", pivots.pivoted, "(call, by, literal)", "(call, literal)"),
    ("case of a struct field", expressions._struct, "plain(item.this.name)", "plain(item.this.name).lower()"),
    ("keys of a map have a case", names.field_of, 'kind is not None and kind.startswith("struct<")', "True"),
    ("a constant beside a decimal", expressions._folded_beside, 'beside in NO_DECIMALS', "True"),
    ("DISTINCT in an aggregate", expressions._function, 'words.append("distinct")', "pass"),
    ("name of a column", semantics._meaning, "(o.name, d) for o, d", "d for o, d"),
    ("order of columns", semantics._meaning, "digests.rows, named)", "digests.rows, sorted(named))"),
    ("CASE with ELSE 0 or FILTER", fingerprint._filtered, 'case (Call("case", (test, value), ()),)', 'case (Call("case", (test, value, *_), _),)'),
    ("an aggregate that counts NULL, of CASE or with FILTER", fingerprint._filtered, "op in _IGNORE_NULLS", "True"),
    ("IN or EXISTS as a value", Scope._expr, "case Subquery(kind, block, args):", "case Subquery() if (expr := self.fold._condition(expr)) and False:\n            pass\n        case Subquery():\n            kind, block, args = expr.kind, expr.block, expr.args"),
    ("seconds with a fraction or without", equivalences.field_of_time, "_FIELDS.get(field.lower())", '{**_FIELDS, "second": "second"}.get(field.lower())'),
    ("LIKE with a wildcard, or startswith", equivalences.same_call, "not text.words[0] or set(text.words[0])", "set(text.words[0][9:])"),
    ("LIKE with a wildcard inside, or contains", equivalences.same_call, "not text.words[0] or set(text.words[0])", "set(text.words[0][9:])"),
    ("CASE that replaces another value than it tests", equivalences.case_of, "if value is otherwise", "if value"),
]  # fmt: skip
"""Pairs whose BuildIDs become equal without the rule."""

EQUAL: list[Rule] = [
    ("IF or CASE", equivalences.same_call, 'if name == "if"', "if False"),
    ("ordinal, COUNT(1) or COUNT(*)", expressions._function, "if isinstance(only, Call) and", "if False and"),
    ("now() or current_timestamp()", expressions._function, "SYNONYMS.get(name, name)", "name"),
    ("nvl or coalesce", expressions._function, "SYNONYMS.get(name, name)", "name"),
    ("key of a LEFT JOIN USING", *BOTH_KEYS),
    ("key of a JOIN USING", *BOTH_KEYS),
    ("key of a RIGHT JOIN USING", relations._merge_keys, 'if side == "RIGHT"', "if False"),
    ("USING or ON", relations.join, 'call("=", pair)', 'call("<=>", (a.expr, b.expr))'),
    ("order of UNION ALL", Fold._set_operation, "if movable", "if False"),
    ("nested UNION ALL", binder._union_branches, 'if kind != "union all"', "if True"),
    ("named window", expressions._window_spec, "_window_spec(named, {k: v for k, v in windows.items() if v is not named})", "own"),
    ("parentheses, order of AND", Fold.scope, "conditions = sorted(set(scope.exprs(map(self._condition, block.conjuncts))))", "conditions = scope.exprs(block.conjuncts)"),
    ("order of OR", Scope._expr, "made = sorted(set(made))", "pass"),
    ("order of an IN list", Scope._expr, "made = sorted(set(made))", "pass"),
    ("order of an IN list of DOUBLE", Scope._expr, "*sorted(set(made[1:]))", "*made[1:]"),
    ("one value IN or =", expressions._in, "if len(kinds) == 1", "if not kinds"),
    ("IN or OR", expressions._in, "if len(kinds) == 1", "if not kinds"),
    ("flipped comparison", Calls.call, 'case ">",', 'case "never",'),
    ("flipped =", *UNORDERED),
    ("order of +", *UNORDERED),
    ("order of *", *UNORDERED),
    ("NOT = or <>", Calls.call, 'case "not", (Call(op=("="', 'case "never", (Call(op=("="'),
    ("BETWEEN or two comparisons", expressions._between, "if binding.is_volatile(value)", "if True"),
    ("constant folding", expressions.folded, "if not isinstance(expr, Call)", "if True"),
    ("date() or CAST", expressions._try_cast, '"try_cast" if node.args.get("safe") else "cast"', '"try_cast"'),
    ("filter in a subquery", *UNMERGED),
    ("filter over a filtered source", *UNMERGED),
    ("comma join, order of an inner join", *WRITTEN_LABELS),
    ("order of three inner joins", *WRITTEN_LABELS),
    ("self-join written the other way round", Fold._labels, "in range(3)", "in range(0)"),
    ("condition in ON or WHERE", relations.join, "both.conjuncts += condition\n", 'both.conjuncts += (binding.calls.call("on", [c]) for c in condition)\n'),
    ("count(*) of a subquery beside one of what is around it", grouping.group_rows, "stand_in(expr) if binding.free.of(expr) else None", "stand_in(expr)"),
    ("RIGHT or LEFT the other way round", relations._outer_join, '(right, left) if side == "RIGHT" else (left, right)', "(left, right)"),
    ("SEMI JOIN or EXISTS", relations._semi_join, 'Subquery("exists"', 'Subquery("semi"'),
    ("DISTINCT or GROUP BY", binder._distinct, "tuple(keys), (), place=", "tuple(keys), (), (frozenset(),), place="),
    ("parameter of a lambda", names.resolve_identifier, "(str(index),)", "(name,)"),
    ("the default frame", expressions._window, "if function.op in AGGREGATES", "if False"),
    ("order of the columns of a partition", Scope._window, "sorted(set(rows.exprs(expr.partition)))", "rows.exprs(expr.partition)"),
    ("ORDER BY without LIMIT", semantics._meaning, "connection, digests.rows, named", "connection, digests.rows, named, digests.order"),
    ("GROUP BY ALL", Fold._aggregate, "scope.rows, sorted(set(key_digests))", "scope.rows, key_digests"),
    ("NOT of an OR", Calls.call, 'case "not", (Call(op=("and" | "or") as joined', 'case "never", (Call(op=("and" | "or") as joined'),
    ("AND TRUE", algebra.conjuncts, "if not _is_true(e)", ""),
    ("WHERE 1 = 1", algebra._is_true, "return one is other", "return False"),
    ("ELSE NULL", Calls.call, 'args[-1].op == "null"', "False"),
    ("CASE that replaces NULL, or coalesce", equivalences.case_of, "if value is otherwise", "if False"),
    ("CASE that keeps what is not NULL, or coalesce", equivalences.same_call, 'if name == "if"', "if False"),
    ("first or any_value", expressions._function, "SYNONYMS.get(name, name)", "name"),
    ("an aggregate of CASE, or FILTER", fingerprint._filtered, "if isinstance(value, Ref)", "if False"),
    ("count of CASE, or FILTER", fingerprint._filtered, '(test,) if op == "count" else (value, test)', "(value, test)"),
    ("count_if or FILTER", fingerprint._filtered, 'op == "count_if"', "False"),
    ("IN or EXISTS", Fold._condition, "if one_type and", "if False and"),
    ("IN or SEMI JOIN", Fold.scope, "conjunct_digests = sorted(set(scope.exprs(map(self._condition, block.conjuncts))))", "conjunct_digests = sorted(set(scope.exprs(block.conjuncts)))"),
    ("case of a unit", equivalences.same_call, "text.words[0].upper()", "text.words[0]"),
    ("case of a unit of trunc", equivalences.same_call, "text.words[0].upper()", "text.words[0]"),
    ("a text or a date", expressions.expression, "if operator in COMPARISONS", "if False"),
    ("texts or dates in BETWEEN", expressions._between, "low, high = times_of(binding, low, value), times_of(binding, high, value)", "pass"),
    ("a text or a timestamp", expressions.expression, "if operator in COMPARISONS", "if False"),
    ("to_date or CAST", expressions._function, 'name == "to_date"', "False"),
    ("a function or EXTRACT", equivalences.field_of_time, "function is None or", "True or"),
    ("LIKE or startswith", equivalences.same_call, 'if binding.types.of(args[0]) != "string"', "if True"),
    ("LIKE or endswith, contains", equivalences.same_call, 'if binding.types.of(args[0]) != "string"', "if True"),
    ("order of LEFT JOINs", Fold._node, "if len(chain) > 1", "if False"),
    ("order of LEFT JOINs of which one is joined to another", Fold._node, "if len(chain) > 1", "if False"),
    ("LEFT JOIN of a view with one, in another order", Normal._chained, 'if node.kind != "left"', "if True"),
    ("LEFT JOIN filtered on its right side, or JOIN", Normal._narrowed, "if any(all(column >= n", "if False and any(all(column >= n"),
    ("LEFT JOIN beneath another that is filtered on the inner one's right side", Normal._narrowed, "if left is opened.left", "if True"),
    ("LEFT JOIN without a match, or anti join", Normal._anti, "if not tests", "if True"),
    ("LEFT JOIN without a match, or NOT EXISTS", Normal._anti, "if not tests", "if True"),
    ("condition on grouping keys in HAVING or WHERE", Normal._filtered, "if not tests or", "if True or"),
    ("condition above DISTINCT or below", Normal._filtered, "if not tests or", "if True or"),
    ("count of distinct values, or of the rows of DISTINCT", Normal._counted_groups, "if form.aggregates", "if True"),
    ("count of distinct values that are filtered above DISTINCT", Normal._filtered, "if not tests or", "if True or"),
    ("a view with a LEFT JOIN that its reader filters, or its text", semantics._as_given, "None if lots else shown(node)", "None"),
    ("a view with groups that its reader filters, or its text", semantics._as_given, "None if lots else shown(node)", "None"),
]  # fmt: skip
"""Pairs whose BuildIDs become different without the rule."""


def without(function: Callable[..., Any], rule: str, instead: str) -> CodeType:
    """Return the code of a function in which a text that occurs once is replaced."""
    source = dedent(inspect.getsource(function))
    assert source.count(rule) == 1, f"{function.__qualname__} has {rule!r} not once"
    made: dict[str, Any] = {}
    text = source.removeprefix("@staticmethod\n").replace(rule, instead)
    exec(compile(text, __file__, "exec"), function.__globals__, made)
    return made[function.__name__].__code__


@pytest.mark.proves("V1", "V33")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *[pytest.param("different.txt", rule, id=rule[0]) for rule in DIFFERENT],
        *[pytest.param("equal.txt", rule, id=rule[0]) for rule in EQUAL],
    ],
)
def test_a_pair_is_compared_wrongly_without_its_rule(
    name: str, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    title, function, text, instead = rule
    one, other = PAIRS[name][title]
    assert (build_id(one) == build_id(other)) is (name == "equal.txt")
    monkeypatch.setattr(function, "__code__", without(function, text, instead))
    monkeypatch.setattr("conftest._PARSED", {})  # the rule may be one of the parser
    assert (build_id(one) == build_id(other)) is (name == "different.txt")
