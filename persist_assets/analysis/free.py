"""Instances that parts of the algebra refer to but do not bind. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Lateral,
    Outer,
    Ref,
    Window,
    innermost_first,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Free:
    """Finder of the instances that something refers to but does not bind; it remembers answers."""

    def __init__(self) -> None:
        self._instances: dict[int, frozenset[int]] = {}
        self._alone: dict[int, frozenset[int]] = {}  # the set {i}, by instance i
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def of(self, thing: object) -> frozenset[int]:
        """Return the instances that something refers to but does not bind."""
        instances = self._instances.get(id(thing))
        if instances is None:
            self.learn(thing)
            instances = self._instances[id(thing)]
        return instances

    def learn(self, thing: object) -> list[object]:
        """Compute the free instances of a thing and of everything below it.

        Return the new blocks, nodes, subqueries, windows and sort keys, innermost first.
        """
        known, new_things = self._instances, list[object]()
        for this, below in innermost_first(thing, known):
            instances = _union([known[id(p)] for p in below])
            if isinstance(this, Ref):
                instances = self._alone.setdefault(this.instance, frozenset((this.instance,)))
            elif not isinstance(this, Call):
                instances = _unbound(this, instances)
                new_things.append(this)
            known[id(this)] = instances
            self._keep_alive.append(this)
        return new_things


_NOTHING: frozenset[int] = frozenset()


def _union(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return the union of sets, most of which are the same object."""
    union = _NOTHING
    for one in sets:
        if one is not union and one:
            union = union | one if union else one
    return union


def _unbound(thing: object, instances: frozenset[int]) -> frozenset[int]:
    """Return the free instances of `thing` if its parts refer to `instances`."""
    match thing:
        case Block(leaves, _, _, _):
            return instances - {i for i, _ in leaves}
        case Window(mapping=mapping):
            return (instances - {inner for inner, _ in mapping}) | {now for _, now in mapping}
        case Aggregate(rows=rows):
            return instances - {i for i, _ in rows.leaves}
        case Outer(_, left, right, _) | Lateral(_, left, right, _):
            return instances - {i for side in (left, right) for i, _ in side.leaves}
        case _:
            return instances
