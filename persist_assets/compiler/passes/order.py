"""Pass: sources in the order in which they read each other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from persist_assets.core.errors import (
    Problem,
)

if TYPE_CHECKING:
    from collections.abc import (
        Sequence,
    )

    from persist_assets.compiler.state import Compilation, Unit
    from persist_assets.core.model.queries import SourceID


def put_in_order(compilation: Compilation) -> None:
    """Put every unit after those it reads; report cycles; spread brokenness to readers."""
    done: dict[SourceID, Unit] = {}
    for start in compilation.units.values():
        trail: dict[SourceID, Unit] = {}
        stack: list[tuple[Unit, bool]] = [(start, False)]
        while stack:
            unit, leaving = stack.pop()
            if leaving:
                trail.popitem()
                done[unit.source_id] = unit
                continue
            if unit.source_id in done:
                continue
            if unit.source_id in trail:
                circle = list(trail.values())
                _report_cycle(compilation, [*circle[circle.index(unit) :], unit])
                continue
            trail[unit.source_id] = unit
            stack.append((unit, True))
            before = dict.fromkeys((*unit.bindings, *unit.compared))
            stack += [(compilation.units[b], False) for b in reversed(before)]
    compilation.units = done


def _report_cycle(compilation: Compilation, cycle: Sequence[Unit]) -> None:
    if any(unit.broken for unit in cycle):
        return
    path = " → ".join(unit.asset_key[-1] for unit in cycle)
    for unit in cycle:
        unit.broken = True
    for unit, other in pairwise(cycle):
        if other.source_id not in unit.bindings:
            checks = unit.declaration.annotation.checks
            place = next(
                c.location for c in checks if c.against and c.against.source_id == other.source_id
            )
            message = f"a check depends on data computed from the rows it checks: {path}"
            hint = "put the check on the downstream source instead"
            place = place or unit.declaration.location
            compilation.problems.append(Problem("cycle", message, place, hint))
            return
    first = min(cycle, key=lambda u: u.declaration.location)
    compilation.report("cycle", f"sources read each other in a cycle: {path}", first)


def take_over(compilation: Compilation) -> None:
    """Take over units from the former compilation if they read the same units as there.

    Declarations are compared by identity, so equal ones that are not the same are compiled again.
    """
    former = compilation.former
    if former is None or former.followed != compilation.followed:
        return
    same: set[SourceID] = set()
    for unit in compilation.units.values():
        old = former.units.get(unit.source_id)
        if (
            old is None
            or old.source is None
            or unit.broken
            or old.written is not unit.written
            or old.bindings != unit.bindings
            or not same.issuperset(unit.bindings)
        ):
            continue
        unit.declaration, unit.source, unit.key = old.declaration, old.source, old.key
        unit.meaning, unit.raw_face = old.meaning, old.raw_face
        same.add(unit.source_id)
