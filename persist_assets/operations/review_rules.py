"""Differences that a review must not have: the values of `--fail-on`. Pure.

Each rule yields the sources that break it. Whatever is not known breaks it too: rows that could not
be compared, columns that are not known. So a review that passes has proven what the rule says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.errors import SettingsError, did_you_mean
from persist_assets.engine.data_diff import NotCompared, RowsDiffer
from persist_assets.operations.review import Violation

if TYPE_CHECKING:
    from persist_assets.operations.review import Report, Review, Reviewed


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule, and whether it needs builds, or tables to compare them with."""

    broken_by: Callable[[Report, Reviewed], Iterator[str]]
    needs_build: bool = False
    needs_tables: bool = False


def _rebuilds(_: Report, r: Reviewed) -> Iterator[str]:
    if r.is_rebuilt:
        yield "a build computes its table"


def _columns(report: Report, r: Reviewed) -> Iterator[str]:
    columns, difference = r.columns, report.rows.get(r.source_id)
    if r.difference.change == "removed":
        yield "it is no longer defined"
    yield from (f"the column {c.name} is gone" for c in columns.removed)
    retyped = [(c.name, c.before, c.after) for c in columns.retyped]
    if not columns.is_known and isinstance(difference, RowsDiffer):
        uncompared = difference.uncompared
        yield from (f"the column {u.column} is gone" for u in uncompared if u.after is None)
        retyped += [(u.column, u.before, u.after) for u in uncompared if u.before and u.after]
    elif not columns.is_known:
        yield "its columns are unknown until it is built"
    yield from (f"the column {n} changed from {before} to {after}" for n, before, after in retyped)


def _checks(_: Report, r: Reviewed) -> Iterator[str]:
    yield from (f"no longer checked: {text}" for text in r.checks.removed)
    yield from (f"a check changed: {c.before} → {c.after}" for c in r.checks.changed)


def _rows(report: Report, r: Reviewed) -> Iterator[str]:
    if r.difference.change != "changed":
        return
    match report.rows.get(r.source_id):
        case RowsDiffer() as d:
            if d.added or d.removed or d.changed:
                parts = [f"{d.added:,} added", f"{d.removed:,} removed"]
                parts += [f"{d.changed:,} changed"] if d.changed is not None else []
                yield f"rows differ: {', '.join(parts)}"
            for u in d.uncompared:
                if u.before and u.after:
                    yield f"the values of {u.column} were not compared"
        case NotCompared(reason):
            yield f"its rows were not compared: {reason}"
        case None:
            yield "its rows were not compared: it was not built"


def _warnings(report: Report, r: Reviewed) -> Iterator[str]:
    for c in report.checks.get(r.source_id, ()):
        if not c.blocking:
            yield f"it fails {c.definition}: {c.in_words}"


RULES: Mapping[str, _Rule] = {
    "rebuilds": _Rule(_rebuilds),
    "columns": _Rule(_columns),
    "checks": _Rule(_checks),
    "rows": _Rule(_rows, needs_build=True, needs_tables=True),
    "warnings": _Rule(_warnings, needs_build=True),
}
"""The rules by name."""


def read_rules(values: Iterable[str], *, is_built: bool) -> tuple[str, ...]:
    """Return the names of rules, of which each value may list several.

    Raises
    ------
    SettingsError
        There is no such rule, or it needs builds.
    """
    names = tuple(dict.fromkeys(n.strip() for value in values for n in value.split(",")))
    for name in names:
        if name not in RULES:
            hint = did_you_mean(name, RULES) or f"known values: {', '.join(RULES)}"
            raise SettingsError(f"unknown value of --fail-on: `{name}`", hint=hint)
        if RULES[name].needs_build and not is_built:
            raise SettingsError(f"`--fail-on {name}` needs builds", hint="add --build")
    return names


def require_tables(review: Review, names: Iterable[str]) -> None:
    """Refuse rules about rows if a change is compared with files.

    Raises
    ------
    SettingsError
        It is.
    """
    name = next((n for n in names if RULES[n].needs_tables), None)
    if name is not None and review.tables is None:
        raise SettingsError(
            f"`--fail-on {name}` compares tables, and the git revision `{review.against}` has none",
            hint="compare with an environment: --against prod",
        )


def violations(report: Report, names: Iterable[str]) -> tuple[Violation, ...]:
    """Return the differences of a report that rules forbid, rule by rule."""
    return tuple(
        Violation(name, r.source_id, reason)
        for name in names
        for r in (report.review.sources if report.review else ())
        for reason in RULES[name].broken_by(report, r)
    )
