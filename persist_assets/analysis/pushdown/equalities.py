"""Equal columns, and predicates that reject NULLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Ref,
    Window,
    walk,
)
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.predicates.terms import TRUE, Term
from persist_assets.core.time_values import TIMES

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Iterator,
        Mapping,
    )


def is_decimal(kind: str) -> bool:
    """Whether the name of a type is that of a DECIMAL."""
    return kind.startswith("decimal(")


_SAME_IF_EQUAL = frozenset((*INTEGRAL, *TIMES, "string", "boolean"))
"""Types whose equal values are indistinguishable, besides DECIMAL; floats have two zeros."""


def is_same_if_equal(kind: str) -> bool:
    """Whether equal values of a type are indistinguishable."""
    return kind in _SAME_IF_EQUAL or is_decimal(kind)


def equal_columns(terms: Iterable[Term]) -> Mapping[Term, frozenset[Term]]:
    """Return, for each column, the columns that equal it wherever all of some predicates hold."""
    classes: dict[Term, frozenset[Term]] = {}
    for atom in (c for term in terms for c in p.conjuncts(term)):
        if atom.op != "=" or any(a.op != "ref" for a in atom.args):
            continue
        one, other = atom.args
        kind, also = one.words[2], other.words[2]
        if kind == also and is_same_if_equal(kind):
            same = classes.get(one, frozenset((one,))) | classes.get(other, frozenset((other,)))
            classes |= dict.fromkeys(same, same)
    return classes


def through(
    equal: Mapping[Term, frozenset[Term]], fits: Callable[[Term], bool]
) -> Callable[[Term], Term]:
    """Return a function that keeps atoms on columns that fit, or restates them for equal ones."""

    def fitting(ref: Term) -> Term | None:
        candidates = [ref] if fits(ref) else [e for e in equal.get(ref, ()) if fits(e)]
        return min(candidates, key=p.as_text) if candidates else None

    def keep(atom: Term) -> Term:
        rewritten = p.rebuilt(atom, fitting)
        says = (
            rewritten is not None
            and p.varies(rewritten)
            and len(set(rewritten.args)) == len(rewritten.args)
        )
        return rewritten if rewritten is not None and says else TRUE

    return keep


def instances_of(term: Term) -> set[int]:
    """Return the instances whose columns a term uses."""
    return {int(v.words[0]) for v in p.variables(term)}


def atoms_of(term: Term) -> Iterator[Term]:
    """Yield the atoms of a predicate, which AND and OR connect."""
    if term.op in ("and", "or"):
        for arg in term.args:
            yield from atoms_of(arg)
    else:
        yield term


def numbered(term: Term) -> Term:
    """Return a predicate on one leaf as a predicate on column numbers."""
    renumbered = p.rebuilt(term, lambda ref: Term("out", (), ref.words[1:]))
    assert renumbered is not None
    return renumbered


def rejects_nulls(term: Term) -> bool:
    """Whether a predicate is not TRUE where all columns are NULL."""
    match term.op:
        case "and":
            return any(map(rejects_nulls, term.args))
        case "or":
            return all(map(rejects_nulls, term.args))
        case "true" | "is null" | "is not true":
            return False
        case "false":
            return True
        case _:
            return p.varies(term)  # a constant may be true: not all are computed


def columns_used(things: Iterable[object], extra: Iterable[Term]) -> dict[int, set[int]]:
    """Return, for each instance, the columns that things use, at any depth."""
    columns: dict[int, set[int]] = {}
    mappings: set[tuple[int, int]] = set()
    for thing in walk(*things):
        if isinstance(thing, Ref):
            columns.setdefault(thing.instance, set()).add(thing.column)
        elif isinstance(thing, Window):
            mappings.update(thing.mapping)
    for term in extra:
        for ref in p.variables(term):
            columns.setdefault(int(ref.words[0]), set()).add(int(ref.words[1]))
    changed = True
    while changed:
        changed = False
        for inner_instance, outer_instance in mappings:
            outer_columns = columns.setdefault(outer_instance, set())
            if not columns.get(inner_instance, set()) <= outer_columns:
                outer_columns |= columns[inner_instance]
                changed = True
    return columns
