"""Break rules of the analysis and of increments one by one, and say which tests find each.

`make mutations` runs it; a mutation that no test finds is an error. Each one is applied to a copy
of the project, so that the clone itself stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("persist_assets", "tests", "examples", "docs", "benchmarks", "pyproject.toml")

IDENTITY = ("tests/unit/analysis", "tests/unit/planning")
INCREMENTS = (
    "tests/unit/analysis/test_increments.py",
    "tests/unit/planning",
    "tests/integration/building/test_growing.py",
    "tests/integration/building/test_strategies.py",
    "tests/integration/building/test_partitioned.py",
    "tests/integration/building/test_validity.py",
    "tests/integration/building/test_checks_by_partition.py",
    "tests/integration/building/test_reruns.py",
)

LEDGER = (
    "tests/integration/ledger/test_tainted_partitions.py",
    "tests/integration/operations/test_promoted_again.py",
)
DELTAS = ("tests/unit/analysis/test_deltas.py",)
KEYS = ("tests/unit/planning/test_planned_keys.py",)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule turned round or taken away.

    Attributes
    ----------
    file
        Below `persist_assets/`.
    old, new
        Text of the file, which is there once, and what stands there instead.
    tests
        Where the tests are that have to find it.
    """

    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _identity(rule: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(rule, f"analysis/{file}", old, new, IDENTITY)


def _increments(rule: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(rule, file, old, new, INCREMENTS)


def _deltas(rule: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(f"deltas: {rule}", f"analysis/deltas/{file}", old, new, DELTAS)


def _keys(rule: str, old: str, new: str) -> Mutation:
    return Mutation(f"functions by key: {rule}", "planning/by_keys.py", old, new, KEYS)


MUTATIONS = (
    _identity(
        "a < b is not a <= b", "algebra.py", 'op, args = "<=", (b, a)', 'op, args = "<", (b, a)'
    ),
    _identity(
        "NOT (a < b) is b <= a", "algebra.py", '"<": "<=", "<=": "<"}', '"<": "<", "<=": "<="}'
    ),
    _identity(
        "the order of columns of other leaves counts",
        "fingerprint.py",
        'return digest("at", label, columns[column]) if label else columns[column]',
        "return columns[column]",
    ),
    _identity(
        "the order of arguments counts",
        "fingerprint.py",
        "elif op in COMMUTATIVE:",
        "elif len(made) == 2:",
    ),
    _identity(
        "the words of a call count",
        "fingerprint.py",
        "made_digest = digest(op, made, words)",
        "made_digest = digest(op, made)",
    ),
    _identity(
        "the direction of an order counts in windows",
        "fingerprint.py",
        "[(rows.expr(s.by), s.descending, s.nulls_first) for s in expr.order]",
        "[(rows.expr(s.by), s.nulls_first) for s in expr.order]",
    ),
    _identity(
        "windows are computed over the rows where they stand",
        "fingerprint.py",
        "            rows.rows,\n            mapping,\n",
        "            mapping,\n",
    ),
    _identity(
        "filters count",
        "fingerprint.py",
        'scope.rows = digest("filter", leaf.rows, conditions) if conditions else leaf.rows',
        "scope.rows = leaf.rows",
    ),
    _identity(
        "conditions of joins count",
        "fingerprint.py",
        'digest("join", joined, conjunct_digests,',
        'digest("join", joined,',
    ),
    _identity(
        "two leaves of one relation are two",
        "fingerprint.py",
        "        for same in _groups(labels, order):\n            if len(same) > 1:\n"
        '                labels.update({i: f"{labels[i]}#{number}"',
        "        for same in _groups(labels, order):\n            if len(same) > 9:\n"
        '                labels.update({i: f"{labels[i]}#{number}"',
    ),
    _identity(
        "outer instances are others than inner ones",
        "fingerprint.py",
        'around: Instances = {i: (f"^{label}", columns) for i, (label, columns) in outer.items()}',
        'around: Instances = {i: (f"{label}", columns) for i, (label, columns) in outer.items()}',
    ),
    _identity(
        "a cast keeps the name of its column",
        "names.py",
        "return plain(operand.name) if used == parts else NO_WORD if used else UNKNOWN",
        "return NO_WORD if used else UNKNOWN",
    ),
    _increments(
        "rows are additive in one leaf of a join only",
        "analysis/increments.py",
        "if one.isdisjoint(rest):",
        "if True:",
    ),
    _increments(
        "an outer join is not additive in its right side",
        "analysis/increments.py",
        "tuple(s for s in self._block_sums(left) if s.isdisjoint(rest))",
        "self._block_sums(left)",
    ),
    _increments(
        "branches of a union that read one table grow together",
        "analysis/increments.py",
        "whole & r == branch_sum for r, branch_sum in zip(reads, chosen, strict=True)",
        "True for _ in reads",
    ),
    _increments(
        "a window looks at rows of its partition",
        "analysis/increments.py",
        "if isinstance(thing, Subquery) or not self._within(thing, traced):",
        "if isinstance(thing, Subquery):",
    ),
    _increments(
        "a subquery may look at rows of any time",
        "analysis/increments.py",
        "if isinstance(thing, Subquery) or not self._within(thing, traced):",
        "if not isinstance(thing, Subquery) and not self._within(thing, traced):",
    ),
    _increments(
        "what an aggregate reads besides is loose",
        "analysis/increments.py",
        "return Windows(windows.traces, windows.loose | beside)",
        "return Windows(windows.traces, windows.loose)",
    ),
    _increments(
        "a table that is loose must be as it was",
        "planning/increments.py",
        "if windows is None or windows.loose & {*changed} or not",
        "if windows is None or not",
    ),
    _increments(
        "rows are only added where none went",
        "planning/increments.py",
        "outcome = None if shrunk or spans else _sum(source, base, certain)",
        "outcome = None if spans else _sum(source, base, certain)",
    ),
    _increments(
        "files that went count too",
        "planning/increments.py",
        "for piece in (*change.lost, *change.added):",
        "for piece in change.added:",
    ),
    _increments(
        "a merged span ends with the later one",
        "planning/increments.py",
        "merged[-1] = (merged[-1][0], max(high, merged[-1][1]))",
        "merged[-1] = (merged[-1][0], min(high, merged[-1][1]))",
    ),
    _increments(
        "files with rows of the window are written again",
        "building/strategies/in_place.py",
        "touched |= {f.path for f in live.values() if meets(f, window)}",
        "pass",
    ),
    _increments(
        "rows outside the window are not computed",
        "building/strategies/in_place.py",
        "        frame = frame.where(window.condition)\n",
        "",
    ),
    _increments(
        "NULL keys are one key",
        "building/strategies/keys.py",
        'equal = ["<=>" if nullable is None or k in nullable else "=" for k in key]',
        'equal = ["=" for _ in key]',
    ),
    _increments(
        "checks are asked of the whole table",
        "building/strategies/in_place.py",
        "unanswered = [c for c in checks if not c.on_rows or not _is_answered(c, previous)]",
        "unanswered = []",
    ),
    _increments(
        "a watermark that went is looked for",
        "building/strategies/in_place.py",
        "replaced = by_key or _replaces(window, column, base.watermark, kind)",
        "replaced = False",
    ),
    _deltas(
        "the first rows are certain only up to the last row of the table",
        "first_rows.py",
        "AND {weight} > 0 AND place <= last_place",
        "AND {weight} > 0",
    ),
    _deltas(
        "a table with fewer rows than its LIMIT has all rows of the query",
        "first_rows.py",
        "IF(n_former < {self.n_rows}, least > 0, n_certain >= {self.n_rows})",
        "n_certain >= {self.n_rows}",
    ),
    _deltas(
        "rows of the table that went are not among its first rows",
        "first_rows.py",
        'UNION ALL SELECT {items}, 1 AS {weight} FROM {table}"\n        )\n        # The first',
        'UNION ALL SELECT {items}, 2 AS {weight} FROM {table}"\n        )\n        # The first',
    ),
    _deltas(
        "values that depend on the order of rows have no first rows",
        "program.py",
        "        check_exact(query.block, query.types)",
        "        pass",
    ),
    _deltas(
        "a value that all rows share must stay the same",
        "relations.py",
        "            self.changed_values.append(changed)",
        "            pass",
    ),
    _deltas(
        "a value that all rows share is compared with its former one",
        "relations.py",
        "for version in (NEW, OLD))\n        same",
        "for version in (NEW, NEW))\n        same",
    ),
    _deltas(
        "a value that all rows share does not depend on the order of rows",
        "relations.py",
        "        check_exact(subquery.block, types, compared=True)",
        "        pass",
    ),
    _deltas(
        "a query in which only a shared value can change has a program",
        "program.py",
        "    if not relations.changed_values:\n",
        "    if not query.block.order:\n",
    ),
    _deltas(
        "a subquery that is computed above and below has instances of its own",
        "staging.py",
        "replace=stand_in, instances=instances)",
        "replace=stand_in)",
    ),
    _deltas(
        "windows over groups change rows of other keys",
        "merging.py",
        "if instance is None or windows_in(exprs):",
        "if instance is None:",
    ),
    _deltas(
        "in a join, leaves after the changed one are as they were",
        "rules.py",
        "versions = {i: NEW if n < place else OLD for n, (i, _) in enumerate(changed)}",
        "versions = {i: NEW for n, (i, _) in enumerate(changed)}",
    ),
    _deltas(
        "in a join, each changed leaf has a term",
        "rules.py",
        "for place, (instance, node) in enumerate(changed):\n            delta",
        "for place, (instance, node) in enumerate(changed[:1]):\n            delta",
    ),
    _deltas(
        "conditions of joined changed leaves are their own",
        "regrouping.py",
        "inside = [c for c in plain if instances(c) and instances(c) <= joined]",
        "inside = [c for c in plain if instances(c) and instances(c) & joined]",
    ),
    _deltas(
        "conditions of joined changed leaves stay",
        "staging.py",
        "outer_conjuncts = [c for c in block.conjuncts if c not in {*conditions}]",
        "outer_conjuncts = [c for c in block.conjuncts if c in {*conditions}]",
    ),
    _deltas(
        "unchanged tables are joined with changed ones that are joined",
        "regrouping.py",
        "block = with_inner(query, block, joined, inside)",
        "pass",
    ),
    _deltas(
        "an unchanged table that rejects keys reduces them",
        "regrouping.py",
        "if not _are_reduced(query, block, keys, is_changed):",
        "if True:",
    ),
    _deltas(
        "only changed leaves become one",
        "regrouping.py",
        "if len(both) == 2 and both <= leaves:",
        "if len(both) == 2:",
    ),
    _deltas(
        "rows as they were have the weight -1",
        "relations.py",
        "VERSIONS = ((NEW, 1), (OLD, -1))",
        "VERSIONS = ((NEW, 1), (OLD, 1))",
    ),
    _deltas(
        "probes are of both versions",
        "relations.py",
        "probe_name(version, self._probe(node, restriction))",
        "probe_name(NEW, self._probe(node, restriction))",
    ),
    _deltas(
        "a probe serves several keys only if these are of columns that are equated",
        "relations.py",
        "if origins and origins <= same:",
        "if len(numbers) == 1 and same:",
    ),
    _deltas(
        "all terms of a query find their keys in one probe",
        "relations.py",
        "origins.union(known.origins if known else ())",
        "origins",
    ),
    _deltas(
        "a condition with a subquery excludes no keys",
        "rules.py",
        "plain = tuple(c for c in block.conjuncts if not outermost([c], Subquery))",
        "plain = block.conjuncts",
    ),
    _deltas(
        "keys of changed subqueries are of no column",
        "rules.py",
        "            yield None\n        columns = {r.instance",
        "            pass\n        columns = {r.instance",
    ),
    _deltas(
        "keys of leaves that are no tables are of no column",
        "rules.py",
        "                    yield node.rows, ref.column\n                else:\n"
        "                    yield None",
        "                    yield node.rows, ref.column",
    ),
    _deltas(
        "tables are restricted to keys, NULL among them",
        "relations.py",
        'same = " AND ".join(f"{a} <=> k.{b}" for a, b in sides)',
        'same = " AND ".join(f"{a} = k.{b}" for a, b in sides)',
    ),
    _deltas(
        "rows are restricted to keys, NULL among them",
        "relations.py",
        'f"t.c{k} <=> k.c{n}" for n, k in enumerate(numbers)',
        'f"t.c{k} = k.c{n}" for n, k in enumerate(numbers)',
    ),
    _deltas(
        "tested rows are tested before and now",
        "rules.py",
        "now = {**versions, id(subquery): version}",
        "now = {**versions, id(subquery): NEW}",
    ),
    _deltas(
        "subqueries tested before one are as they are",
        "rules.py",
        "            versions[id(subquery)] = NEW\n        return texts",
        "        return texts",
    ),
    _deltas(
        "subqueries tested after one are as they were",
        "rules.py",
        "versions = {id(s): OLD for s in changed}",
        "versions = {id(s): NEW for s in changed}",
    ),
    _deltas(
        "rows are tested as they were",
        "rules.py",
        "printer = relations.printer(OLD, restricted, printers)",
        "printer = relations.printer(NEW, restricted, printers)",
    ),
    _deltas(
        "changed rows are tested too",
        "rules.py",
        "return [*self._retested(block, shown), *self._joined(block, shown)]",
        "return self._retested(block, shown) or self._joined(block, shown)",
    ),
    _deltas(
        "IN is an equality only as a condition of its own",
        "pushing.py",
        'if subquery.kind == "in" and not is_value(subquery, around):',
        'if subquery.kind == "in":',
    ),
    _deltas(
        "keys of a subquery change with its other columns, unless it only asks for keys",
        "rules.py",
        "net=_asks_for_keys(subquery, search)",
        "net=True",
    ),
    _deltas(
        "an IN without keys of some column does not only ask for keys",
        "rules.py",
        'if subquery.kind == "in" and any(',
        "if False and any(",
    ),
    _deltas(
        "an IN compares keys of one type only",
        "pushing.py",
        "if are_of_one_type(out.expr, arg, types):",
        "if True:",
    ),
    _deltas(
        "merged tables record keys only if all other rows are exact",
        "merging.py",
        "if is_exact else ()",
        "",
    ),
    _deltas(
        "totals in subqueries are computed from their states",
        "printing.py",
        "if id(node) not in self.nodes and {*used_columns(exprs)} == {instance}:",
        "if {*used_columns(exprs)} == {instance}:",
    ),
    _deltas(
        "values that are equal and differ are touched",
        "rules.py",
        "if net and not any(is_loose(self.query.types.of(e)) for e in exprs):",
        "if net:",
    ),
    _deltas(
        "a subquery with other conditions than on its keys asks for more than keys",
        "rules.py",
        "return all(isinstance(c, Call) and",
        "return any(c or isinstance(c, Call) and",
    ),
    _deltas(
        "groups change with their aggregates",
        "rules.py",
        "net=not node.aggregates",
        "net=True",
    ),
    _deltas(
        "keys are reduced by conditions that do not change",
        "rules.py",
        "if self._free.of(c) == frozenset((instance,)) and not self.relations.is_changed(c)",
        "if self._free.of(c) == frozenset((instance,))",
    ),
    _deltas(
        "an IN whose value others read has no rule",
        "memberships.py",
        "for subquery in by_value(values, conditions):",
        "for subquery in by_value((), conditions):",
    ),
    _deltas(
        "conditions may not read the value of an IN",
        "memberships.py",
        "for subquery in by_value(values, conditions):",
        "for subquery in by_value(values, ()):",
    ),
    _deltas(
        "only the result may show an IN",
        "memberships.py",
        "if this is not query or id(e) not in shown",
        "if not isinstance(e, Subquery)",
    ),
    _deltas(
        "NOT IN is in a filter of one table",
        "memberships.py",
        "_operands(condition) if is_of_one else (condition,)",
        "_operands(condition)",
    ),
    _deltas(
        "no subquery computes the value before IN",
        "memberships.py",
        "any(isinstance(p, Subquery) for p in walk(*this.args))",
        "False",
    ),
    Mutation(
        "deltas: only a condition of CASE may be FALSE instead of NULL",
        "analysis/memberships.py",
        "(a, n % 2 == 0 and n < n_pairs)",
        "(a, True)",
        DELTAS,
    ),
    _identity(
        "the value of a column computed by IN depends on the plan",
        "memberships.py",
        "return unmarked(expr) is not expr",
        "return False",
    ),
    _identity(
        "a leaf of a query may compute a column by IN",
        "memberships.py",
        "return not is_condition and self._has(expr, nodes)",
        "return False",
    ),
    _identity(
        "a reader sees whether a set operation computes a column by IN",
        "memberships.py",
        "return frozenset[int]().union(*map(self.of, branches))",
        "return frozenset()",
    ),
    _identity(
        "the column of a table that IN computed is not its expression",
        "semantics.py",
        "if declaration.persisted and binding.computes_in:",
        "if not declaration.persisted:",
    ),
    _deltas(
        "a NULL that comes to NOT IN, or goes, touches all rows",
        "rules.py",
        ' UNION {nulls} UNION {every}"',
        ' UNION {nulls}"',
    ),
    _deltas(
        "NOT IN touches rows with NULL",
        "rules.py",
        ' UNION {nulls} UNION {every}"',
        ' UNION {every}"',
    ),
    _deltas(
        "keys of a NULL-safe equality may be NULL",
        "rules.py",
        'equal = "<=>" if "<=>" in self.query.calls.ops else "="',
        'equal = "="',
    ),
    _deltas(
        "keys of NOT IN are not reduced",
        "rules.py",
        "reduce = self._with_nulls if search.is_value else self._reduced",
        "reduce = self._reduced",
    ),
    _deltas(
        "a subquery without equalities has no rule",
        "rules.py",
        '        if not blocks:\n            raise NoRule("of a subquery without',
        "        if subquery.kind == 'none':\n            raise NoRule(\"of a subquery without",
    ),
    _deltas(
        "a left join follows its right side",
        "rules.py",
        "        if self.relations.is_changed(node.right):\n",
        "        if not self.relations.is_changed(node.left, node.right):\n",
    ),
    _deltas(
        "changed rows of a left side are joined now",
        "rules.py",
        "new = self.relations.printer(NEW, restricted)\n            texts.append",
        "new = self.relations.printer(OLD, restricted)\n            texts.append",
    ),
    _deltas(
        "rows of a left side with touched keys are those before",
        "rules.py",
        "[a for a, _ in pairs], keys, OLD, restricted)",
        "[a for a, _ in pairs], keys, NEW, restricted)",
    ),
    _deltas(
        "a row changes with the windows and subqueries in it",
        "rules.py",
        "for o in block.columns if self._can_differ_alone(o.expr)]",
        "for o in block.columns if not o.expr]",
    ),
    _deltas(
        "a subquery changes with those in its conditions",
        "rules.py",
        "beside = [s for s in nested if self.relations.is_changed(s.block)]",
        "beside = nested[:0]",
    ),
    _deltas(
        "values shared between keys are exact",
        "keys.py",
        "return None if others.of_query(query.block) else others.refusal()",
        "return None",
    ),
    _deltas(
        "windows beside subqueries are computed below them",
        "staging.py",
        "within or (windows if outermost(_shown_by(block), Subquery) else ())",
        "within",
    ),
    _deltas(
        "aggregates of a subquery change with it, even if it is the same for all rows",
        "staging.py",
        "subqueries = [s for s in outermost(exprs, Subquery) if free.of(s) <= leaves]",
        "subqueries = [s for s in outermost(exprs, Subquery) if frozenset() < free.of(s) <= leaves]",
    ),
    _deltas(
        "subqueries among the conditions of a window are those of its rows",
        "staging.py",
        "within = self if inside == self._here else _Exprs(self._copy, inside)",
        "within = _Exprs(self._copy, inside)",
    ),
    _deltas(
        "integers of two widths are keys of each other",
        "pushing.py",
        "(kind == other or (kind in INTEGRAL and other in INTEGRAL))",
        "kind == other",
    ),
    _deltas(
        "there is no total of no rows beside other grouping sets",
        "staging.py",
        "        if not keys and node.keys:",
        "        if not keys and not node.keys:",
    ),
    _deltas(
        "a full join follows both sides",
        "rules.py",
        "sides = ((node.left, [a for a, _ in pairs]), (node.right, [b for _, b in pairs]))\n"
        "        touched = [keys for side, exprs in sides if",
        "sides = ((node.left, [a for a, _ in pairs]), (node.right, [b for _, b in pairs]))\n"
        "        touched = [keys for side, exprs in sides[:1] if",
    ),
    _deltas(
        "set operations follow all branches",
        "rules.py",
        "            texts += terms or [types]\n",
        "            texts += texts[:0] if texts else terms or [types]\n",
    ),
    _deltas(
        "windows are computed again by what all share",
        "rules.py",
        "if all(e in w.partition for w in windows)]",
        "]",
    ),
    _deltas(
        "grouping sets tell which keys they lack",
        "staging.py",
        "absent = [keys.index(a) not in grouping_set for a in call.args]",
        "absent = [keys.index(a) in grouping_set for a in call.args]",
    ),
    _deltas(
        "a window within a window is computed below it",
        "staging.py",
        "exposed = [*windows_in(own), *(w for w in around if _is_over(w, block))]",
        "exposed = [w for w in around if _is_over(w, block)]",
    ),
    _deltas(
        "a window is computed before later filters",
        "staging.py",
        "_instances(window) == {i for i, _ in block.leaves} and {*window.rows.conjuncts} == {\n"
        "        *block.conjuncts\n    }",
        "_instances(window) == {i for i, _ in block.leaves}",
    ),
    _deltas(
        "windows in the ON of a join are columns of its side",
        "staging.py",
        "right, on = self._under(right, on)",
        "right = self.block(right)",
    ),
    _deltas(
        "outer joins and subqueries have only columns that are read",
        "narrowing.py",
        "if len(numbers) < len(_columns(node)):",
        "if len(numbers) > len(_columns(node)):",
    ),
    _deltas(
        "keys restrict the window's partition only",
        "pushing.py",
        "exprs = {n: e for n, e in exprs.items() if e in window.partition}",
        "pass",
    ),
    _deltas(
        "keys restrict a nested subquery by the column that equals them",
        "pushing.py",
        "if outer is expr or outer in equal_columns(expr, around.conjuncts, self._types):",
        "if True:",
    ),
    _deltas(
        "keys are reduced by filters of unchanged tables only",
        "rules.py",
        "if not columns or not isinstance(node, Given) or self.relations.is_changed(node):",
        "if not columns or not isinstance(node, Given):",
    ),
    _deltas(
        "keys are reduced by filters of the table that has them",
        "rules.py",
        "if self._free.of(c) == frozenset((instance,)) and not self.relations.is_changed(c)",
        "if instance in self._free.of(c) and not self.relations.is_changed(c)",
    ),
    _deltas(
        "keys of groups restrict the column that they are",
        "pushing.py",
        "exprs = {n: grouped[c] for c, n in columns.items() if c in common}",
        "exprs = {n: grouped[-1] for c, n in columns.items() if c in common}",
    ),
    _deltas(
        "keys restrict only what all grouping sets have",
        "pushing.py",
        "common = {*range(len(grouped))}.intersection(*(sets or ()))",
        "common = {*range(len(grouped))}",
    ),
    _deltas(
        "keys restrict branches of one type",
        "pushing.py",
        "if len({b.columns[c].type for b in branches} | {None}) == 2",
        "if True",
    ),
    _deltas(
        "a left join restricts its right side by what ON equates",
        "pushing.py",
        "exprs = {n: left.columns[c].expr for c, n in columns.items() if c < n_left}",
        "exprs = {n: [*left.columns, *right.columns][c].expr for c, n in columns.items()}\n"
        "                self.block(right, exprs)",
    ),
    _deltas(
        "rows of tables that may lose some are not only added",
        "rules.py",
        "self.only_adds &= node.rows in self.relations.grown",
        "pass",
    ),
    _deltas(
        "groups are not only added",
        "rules.py",
        "        self.only_adds = False\n        n_keys",
        "        n_keys",
    ),
    _deltas(
        "a left join's right side does not only add",
        "rules.py",
        "        if self.relations.is_changed(node.right):\n            self.only_adds = False\n",
        "        if self.relations.is_changed(node.right):\n",
    ),
    _deltas(
        "sums of doubles are not exact",
        "exactness.py",
        'return is_exact_number(args[0], types) and (op == "sum" or kind not in INTEGRAL)',
        "return True",
    ),
    _deltas(
        "averages of integers are sums of doubles",
        "exactness.py",
        'and (op == "sum" or kind not in INTEGRAL)',
        "",
    ),
    _deltas(
        "the largest of 0.0 and -0.0 depends on the order of rows",
        "exactness.py",
        "return not is_loose(_type_of(args[0], types)) or is_exact_number(args[0], types)",
        "return True",
    ),
    _deltas(
        "frames of rows depend on ties",
        "exactness.py",
        'by_rows = bool(frame) and frame[0] == "rows"',
        "by_rows = False",
    ),
    _deltas(
        "values below other nodes must be exact",
        "keys.py",
        "        exact.of_rows(keyed.rows)\n        and exact.of_exprs(keyed.exprs, compared=True)\n        and",
        "",
    ),
    _deltas(
        "the keys of a table are in the columns that show them",
        "keys.py",
        "if not refs or len(places) < len(refs):",
        "if not refs or not places:",
    ),
    _deltas(
        "the table of a window follows from its partition",
        "keys.py",
        "partition = [e for e in common_partition(exprs) if e in exprs]\n"
        "        return _shown(block, block,",
        "partition = [e for e in exprs if e in windows_in(exprs)[0].order or True][:1]\n"
        "        return _shown(block, block,",
    ),
    _deltas(
        "a subquery of several tables is not keyed by one",
        "keys.py",
        "if len(changed) != 1 or relations.has_changed_subquery([*block.conjuncts, *exprs]):",
        "if len(changed) != 1:",
    ),
    _deltas(
        "one leaf that changed gives the keys",
        "keys.py",
        "if len(changed) != 1 or",
        "if not changed or",
    ),
    _deltas(
        "a value that depends on the order of rows belongs to one value of the keys",
        "keys.py",
        "all(n in separated.get(id(one), ()) for one in unsteady)",
        "not unsteady or any(n in separated.get(id(one), ()) for one in unsteady)",
    ),
    _deltas(
        "a row may be without a counterpart on the right side of a LEFT JOIN",
        "keys.py",
        "if is_sure and self._exact.of_exprs([condition]):",
        "if self._exact.of_exprs([condition]):",
    ),
    _deltas(
        "columns of such a right side are no keys",
        "keys.py",
        "if _is_column(e, leaves) and not relaxed.is_loose(e) and _has_order(e, types)",
        "if _is_column(e, leaves) and _has_order(e, types)",
    ),
    _deltas(
        "conditions on such columns of several tables are not left out",
        "keys.py",
        "if outermost([condition], Subquery) or len(used_columns([condition])) > 1:",
        "if outermost([condition], Subquery):",
    ),
    _deltas(
        "windows are over the rows of the query, not over more",
        "keys.py",
        "if windows_in(o.expr for o in block.columns):  # they would be over other rows",
        "if not block:",
    ),
    _deltas(
        "a LEFT JOIN by columns of such a right side is one as well",
        "keys.py",
        "if inner is not right or stays != on or any(map(self.is_loose, on)):",
        "if inner is not right or stays != on:",
    ),
    _deltas(
        "subqueries do not read columns of such a right side",
        "keys.py",
        "if any(map(self.is_loose, outermost((o.expr for o in inner.columns), Subquery))):",
        "if not inner:",
    ),
    _deltas(
        "subqueries find rows by values that do not depend on the order of rows",
        "keys.py",
        "        and all(_finds_exactly(s, exact) for s in subqueries)\n",
        "",
    ),
    _deltas(
        "ranks of sums of doubles may be others",
        "keys.py",
        "if not (exact.of_exprs(inside) and all(is_exact(c, types, rounds=True) for c in calls)):",
        "if not all(is_exact(c, types, rounds=True) for c in calls):",
    ),
    _deltas(
        "conditions on values that depend on the order of rows are left out",
        "keys.py",
        "        rows = relaxed.block(block)\n",
        "        rows = block\n",
    ),
    _deltas(
        "all columns that a query uses are compared",
        "program.py",
        "columns.setdefault(node.rows, {}).update({n: node.columns[n] for n in numbers})",
        "columns[node.rows] = {n: node.columns[n] for n in numbers}",
    ),
    _deltas(
        "a text must have the meaning that it was printed from",
        "definition.py",
        "if (before.rows, before.columns) != (after.rows, after.columns):",
        "if before.rows != after.rows:",
    ),
    _keys(
        "a changed input without the key touches all keys",
        "if not reads:",
        "if not reads or numbers is None:",
    ),
    _keys(
        "all changed inputs touch keys",
        "selects[_keys_of(read, program, numbers)] = None",
        "selects = {_keys_of(read, program, numbers): None}",
    ),
    _keys(
        "a changed input whose columns are unknown touches all keys",
        "if not one.columns:",
        "if not one.columns and numbers:",
    ),
    _keys(
        "a view passes keys on only if its change is known by them",
        "if not {*numbers} <= {*program.key_columns}:",
        "if not program.key_columns:",
    ),
    _keys(
        "columns that are not selected are no keys",
        "if only is None or c.name in only",
        "if only is None or only",
    ),
    _keys(
        "inputs that join the same table search it for the keys of each",
        'held[name] += f" UNION {sql}"',
        "pass",
    ),
    _keys("keys of other types are not compared", "if not alike(known[0][1], kind):", "if False:"),
    Mutation(
        "a tainted partition is not announced by a build that reuses its table",
        "ledger/builds.py",
        "return [ref for ref in all_refs if ref not in tainted]",
        "return [*all_refs]",
        LEDGER,
    ),
    Mutation(
        "a build whose kept rows are tainted meanwhile is refused",
        "ledger/builds.py",
        "if not tainted.isdisjoint(publication.refs) and not reuses_partitions:",
        "if False:",
        LEDGER,
    ),
    Mutation(
        "a build does not undo a promotion or rollback",
        "ledger/rows.py",
        "if snapshots is None:",
        "if True:",
        ("tests/integration/building/test_promoted_meanwhile.py",),
    ),
    Mutation(
        "a tainted partition is not announced by a promotion",
        "ledger/partitions.py",
        "lost |= tainted_refs(connection, [environment], uids, assets)",
        "pass",
        LEDGER,
    ),
    Mutation(
        "a rollback to tainted rows does not announce them",
        "ledger/partitions.py",
        'if _is_tainted(ref, keys.get(uids.get(build_id, ""), ())):',
        "if False:",
        LEDGER,
    ),
    Mutation(
        "a promotion of a table that is there confirms it",
        "operations/environments.py",
        "manifests.confirm(target, promotion.unchanged)",
        "pass",
        LEDGER,
    ),
)


def _found_by(mutation: Mutation) -> str | None:
    """Return the first test that fails with a mutation; None: all pass."""
    with tempfile.TemporaryDirectory(prefix="persist-mutation-") as directory:
        copy = Path(directory)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "node_modules", ".persist")
                shutil.copytree(ROOT / name, copy / name, ignore=ignore, symlinks=True)
            else:
                shutil.copy(ROOT / name, copy / name)
        path = copy / "persist_assets" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.file} does not contain this once:\n{mutation.old}")
        path.write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not slow", "-o", "addopts=--strict-markers", *mutation.tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        if mutation.tests == DELTAS:  # some are found only with all changes of tables
            environment["PERSIST_TEST_BY_NIGHT"] = "1"
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        output = run.stdout.splitlines()
        named = [line for line in output if line.startswith(("FAILED ", "ERROR "))]
        if run.returncode == 1 and named:
            return named[0].partition(" - ")[0]
        if run.returncode == 0:
            return None
        raise SystemExit(f"the tests did not run:\n{run.stdout[-3000:]}{run.stderr[-1000:]}")


def main() -> int:
    """Try all mutations whose rule or file has a text; return 1 if no test finds one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="only mutations with this text")
    text = parser.parse_args().text
    chosen = [m for m in MUTATIONS if text in f"{m.file} {m.rule}"]
    missed = 0
    for mutation in chosen:
        test = _found_by(mutation)
        missed += test is None
        print(f"{mutation.file}: {mutation.rule}: {test or 'NOT FOUND'}", flush=True)
    print(f"{len(chosen)} mutations, {len(chosen) - missed} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
