"""Implications, unions and differences of predicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.predicates.terms import (
    FALSE,
    FLIPPED,
    NEGATED,
    TRUE,
    Term,
    as_text,
    compared,
    conjuncts,
    disjuncts,
    every,
    holds_for,
    negated,
    not_true,
    order_of,
    some,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


_MOST_CASES = 4096
"""At most so many pairs of parts are compared; beyond, nothing is claimed."""


def implies(coverage: Term, predicate: Term) -> bool:
    """Whether `coverage` certainly holds for all rows of `predicate`, in every table.

    Sound, not complete: False means uncertain. If the predicates read the clock, both are taken at
    the same instant; call `evaluated` first for coverage at another instant.

    Examples
    --------
    >>> from persist_assets.analysis.predicates import from_text
    >>> implies(from_text("a > 2 OR c = 1"), from_text("a = 3 AND b IS NULL"))
    True
    >>> implies(from_text("a = 3"), from_text("a > 2"))
    False
    """
    return _implied(predicate, coverage, [_MOST_CASES])


def _implied(predicate: Term, covered: Term, left: list[int]) -> bool:
    left[0] -= 1
    if left[0] < 0:
        return False
    if covered in (predicate, TRUE) or predicate == FALSE:
        return True
    if predicate.op == "or":
        return all(_implied(w, covered, left) for w in predicate.args)
    if covered.op == "and":
        return all(_implied(predicate, c, left) for c in covered.args)
    if covered.op == "or" and any(_implied(predicate, c, left) for c in covered.args):
        return True
    if predicate.op == "and":
        if any(_implied(w, covered, left) for w in predicate.args):
            return True
        alternatives = [w for w in predicate.args if w.op == "or"]
        return bool(alternatives) and _by_cases(predicate, alternatives[0], covered, left)
    if predicate.op == "in" and covered.op != "in":
        value, *choices = predicate.args
        return all(_implied(compared("=", value, c), covered, left) for c in choices)
    return _atom_implied(predicate, covered)


def _by_cases(predicate: Term, alternative: Term, covered: Term, left: list[int]) -> bool:
    others = [w for w in predicate.args if w is not alternative]
    return all(_implied(every((*others, case)), covered, left) for case in alternative.args)


def _atom_implied(predicate: Term, covered: Term) -> bool:
    if predicate.op in ("is null", "is not true") or not predicate.args or not covered.args:
        return False
    if covered.op == "is not null":
        return any(_strict_in(a, covered.args[0]) for a in predicate.args)
    if predicate.args[0] != covered.args[0]:
        return False
    allowed = covered.args[1:]
    match predicate.op, covered.op:
        case ("=", "in"):
            return predicate.args[1] in allowed
        case ("in", "in"):
            return set(predicate.args[1:]) <= set(allowed)
        case ("not in", "not in"):
            return set(predicate.args[1:]) >= set(allowed)
        case ("not in", "<>"):
            return allowed[0] in predicate.args[1:]
        case ("=", "not in"):
            return all(_bounded("=", predicate.args[1], "<>", one) for one in allowed)
        case (a, b) if a in FLIPPED and b in FLIPPED:
            return _bounded(a, predicate.args[1], b, allowed[0])
        case _:
            return False


def _strict_in(value: Term, other: Term) -> bool:
    """Whether one value is NULL wherever another is."""
    return value == other or any(_strict_in(a, other) for a in value.args)


def _bounded(op: str, bound: Term, other: str, limit: Term) -> bool:
    """Whether ``x op bound`` implies ``x other limit``."""
    order = order_of(bound, limit)
    if order is None:
        return False
    match op, other:
        case ("=", _):
            return holds_for(other, order, 0)
        case ((">" | ">="), (">" | ">=")):
            return order > 0 or (order == 0 and (other == ">=" or op == ">"))
        case (("<" | "<="), ("<" | "<=")):
            return order < 0 or (order == 0 and (other == "<=" or op == "<"))
        case ((">" | ">="), "<>"):
            return order > 0 or (order == 0 and op == ">")
        case (("<" | "<="), "<>"):
            return order < 0 or (order == 0 and op == "<")
        case _:
            return op == other and order == 0


def consistent(term: Term) -> Term:
    """Return a predicate without conjuncts that others imply; FALSE if two exclude each other.

    Examples
    --------
    >>> from persist_assets.analysis.predicates import as_text, from_text
    >>> as_text(consistent(from_text("k = 3 AND k > 1 AND s = 'a'")))
    "k = 3 AND s = 'a'"
    >>> as_text(consistent(from_text("k = 3 AND k > 5")))
    'FALSE'
    """
    parts = [*conjuncts(term)]
    if len(parts) < 2 or len(parts) > _MOST_CONJUNCTS:
        return term
    for part in [*parts]:
        others = [other for other in parts if other is not part]
        if any(_excludes(part, other) for other in others):
            return FALSE
        if any(implies(part, other) for other in others):
            parts = others
    return every(parts)


def _excludes(one: Term, other: Term) -> bool:
    """Whether a comparison is FALSE or NULL wherever another predicate holds."""
    return one.op in NEGATED and implies(negated(one), other)


def without_implied(term: Term) -> Term:
    """Return a predicate without tests for NULL that follow from its other parts.

    Examples
    --------
    >>> from persist_assets.analysis.predicates import as_text, from_text
    >>> as_text(without_implied(from_text("a IS NOT NULL AND a = 1 AND (a <> 2 OR a IS NULL)")))
    'a = 1'
    """
    if term.op == "or":
        return some(map(without_implied, term.args))
    if term.op != "and" or len(term.args) > _MOST_CONJUNCTS:
        return term
    parts = [without_implied(part) for part in term.args]
    for part in [*parts]:
        if part.op == "is not null" or any(d.op == "is null" for d in disjuncts(part)):
            others = [other for other in parts if other is not part]
            if any(implies(part, other) for other in others):
                parts = others
    return every(parts)


_MOST_CONJUNCTS = 40
_MOST_COMPARED = 400
"""With more disjuncts, only those that contain all conjuncts of another one are omitted."""


def union(predicates: Iterable[Term]) -> Term:
    """Return a disjunction of predicates, without those that others include.

    It holds for exactly the rows of all predicates together: nothing is omitted that may add a row.

    Examples
    --------
    >>> from persist_assets.analysis.predicates import as_text, from_text
    >>> as_text(union(map(from_text, ("a = 1 AND b > 2", "b > 1", "c = 'x'"))))
    "b > 1 OR c = 'x'"
    """
    whole = some(predicates)
    parts = sorted(disjuncts(whole), key=lambda t: (len(conjuncts(t)), as_text(t)))
    remaining: list[Term] = []
    for part in parts:
        if len(parts) > _MOST_COMPARED:
            part_conjuncts = set(conjuncts(part))
            included = any(part_conjuncts.issuperset(conjuncts(k)) for k in remaining)
        else:
            included = any(implies(k, part) for k in remaining)
        if not included:
            remaining.append(part)
    if len(remaining) <= _MOST_COMPARED:
        for part in reversed(list(remaining)):
            if any(k is not part and implies(k, part) for k in remaining):
                remaining.remove(part)
    return some(remaining)


def difference(predicate: Term, coverage: Term) -> Term:
    """Return a predicate of the rows that `coverage` lacks; FALSE if it certainly lacks none.

    ``predicate AND (coverage) IS NOT TRUE``: a predicate does not cover rows for which it is NULL.
    """
    if implies(coverage, predicate):
        return FALSE
    return every((predicate, not_true(coverage)))
