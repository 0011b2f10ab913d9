"""Pass: resolve names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from unicodedata import normalize

from persist_assets.analysis.functions import (
    drawn_by,
)
from persist_assets.compiler.names import Names, source_id
from persist_assets.compiler.state import Compilation, Unit
from persist_assets.core.errors import (
    Problem,
)
from persist_assets.core.model.columns import ColumnRef
from persist_assets.core.model.queries import Reference

if TYPE_CHECKING:
    from collections.abc import (
        Iterable,
    )

    from persist_assets.compiler.names import Keys
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.sources import Declaration


def collect(compilation: Compilation, declarations: Iterable[Declaration], keys: Keys) -> None:
    """Set the asset keys of declarations, and refuse keys that differ only in spelling.

    The tables and files of two such sources would be the same in a store that ignores case, or that
    normalizes accents. Full keys count too, because they still mean their sources.
    """
    units_by_key: dict[tuple[str, ...], Unit] = {}
    for declaration in declarations:
        key, full = keys.of(declaration), keys.full(declaration)
        unit = Unit(
            declaration,
            source_id(declaration),
            key,
            full if full != key else (),
            broken=declaration.query is None and declaration.raw is None,
        )
        spelled = [tuple(normalize("NFC", p).lower() for p in k) for k in (key, full)]
        other = next((units_by_key[k] for k in spelled if k in units_by_key), None)
        if other is not None:
            compilation.report("duplicate-name", *_duplicate(unit, other, keys))
            # It is unknown which of them is right.
            compilation.doubts[other.source_id] = (unit.source_id,)
            continue
        units_by_key |= dict.fromkeys(spelled, unit)
        compilation.units[unit.source_id] = unit


def _duplicate(unit: Unit, other: Unit, keys: Keys) -> tuple[str, Unit, str | None]:
    """Return the problem of a unit whose key another unit has."""
    name, place = unit.declaration.name, other.declaration.location
    ways = [keys.of_file(u.declaration.location.path) for u in (unit, other)]
    if ways[0] == ways[1] or not (unit.full_key or other.full_key):
        return f"`{name}` is already defined at {place}", unit, None
    both = {unit.asset_key, unit.full_key} & {other.asset_key, other.full_key}
    shared = "/".join(min(both, default=unit.asset_key))
    message = f"the key `{shared}` means both this `{name}` and `{other.declaration.name}`"
    hint = "rename one of the sources, or the file or directory of one of them"
    return f"{message} at {place}", unit, hint


def resolve_names(compilation: Compilation) -> None:
    """Resolve the names in all queries and checks."""
    units = compilation.units.values()
    # In a file that does not compile, it is unknown which sources have rows.
    guessed = {u.source_id for u in units if u.broken}
    keys = ((key, u.source_id) for u in units for key in (u.asset_key, u.full_key))
    compilation.names = Names(keys, guessed, compilation.unread)
    for unit in units:
        with compilation.contained(unit):
            resolve_unit(compilation, unit)
            if compilation.former is None:
                _resolve_checks(compilation, unit)


def _resolve_checks(compilation: Compilation, unit: Unit) -> None:
    """Resolve the inputs of checks besides the rows of their source."""
    annotation = unit.declaration.annotation
    if all(c.alone for c in annotation.checks):
        return
    checks: list[Check] = []
    for check in annotation.checks:
        if check.kind == "relationship":
            check = _with_other(compilation, unit, check)
        elif check.kind == "function":
            check = _with_effects(check)
        checks.append(check)
    annotation = replace(annotation, checks=tuple(checks))
    unit.declaration = replace(unit.declaration, annotation=annotation)
    others = (c.against.source_id for c in checks if c.against is not None)
    unit.compared = tuple(dict.fromkeys(s for s in others if s != unit.source_id))


def _with_other(compilation: Compilation, unit: Unit, check: Check) -> Check:
    """Return a check against another source's column, with that source resolved."""
    declared = unit.declaration
    name, _, column = str(check.values[0]).rpartition(".")
    place = check.location or declared.location
    reference = Reference(tuple(re.split(r"[/.]", name)), 0, 0, None, place)
    other = compilation.names.resolve(reference, declared.location.path)
    if isinstance(other, Problem):
        hint = other.hint if (other.hint or "").startswith("did you") else None
        compilation.problems.append(replace(other, hint=hint))
        return check  # what it means is known all the same
    _doubt(compilation, unit, reference, None)
    return replace(check, against=ColumnRef(other, column))


def _with_effects(check: Check) -> Check:
    """Return a check by a function, marked if its result may vary."""
    function = check.function
    if function is None:
        return check  # nobody knows it, which has been reported
    effects = drawn_by(function.names, function.methods, function.calls)
    return replace(check, fickle=any(effects))


def resolve_unit(compilation: Compilation, unit: Unit) -> None:
    """Resolve the names in the query of one source."""
    declared = unit.declaration
    references = declared.query.references if declared.query else ()
    names, path, language = compilation.names, declared.location.path, declared.language
    if compilation.former is not None:  # nobody reads what would be said of names
        fits = [names.find(r, path, language) for r in references]
        unit.broken |= any(len(f) != 1 for f in fits)
        unit.bindings = tuple(f[0][1] for f in fits if len(f) == 1)
        return
    targets = [names.resolve(r, path, language) for r in references]
    wrong = [f for f in targets if isinstance(f, Problem)]
    compilation.problems += wrong
    unit.broken |= bool(wrong)
    unit.bindings = tuple(f for f in targets if not isinstance(f, Problem))
    for reference in references:
        _doubt(compilation, unit, reference, language)


def _doubt(
    compilation: Compilation, unit: Unit, reference: Reference, language: str | None
) -> None:
    """Record other sources, in files with errors, that a reference of a unit may mean."""
    others = compilation.names.others(reference, unit.declaration.location.path, language)
    if others is not None:
        before = compilation.doubts.get(unit.source_id, ())
        compilation.doubts[unit.source_id] = (*before, *others)
