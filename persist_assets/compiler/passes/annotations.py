"""Pass: what annotations say, held against the columns and the meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.analysis.functions import (
    AGGREGATES,
    GENERATORS,
    SESSION,
    VOLATILE,
)
from persist_assets.analysis.syntax import called
from persist_assets.core.contracts import breaches, incomparable, listed, promised_by
from persist_assets.core.dialect import function_named, parse, plain
from persist_assets.core.errors import (
    Location,
    Problem,
    did_you_mean,
)
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.partitions import limits, misfit
from persist_assets.core.time_values import TIMES, is_ordered
from persist_assets.planning.increments import column_type, obstacle, time_type

if TYPE_CHECKING:
    from collections.abc import (
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from persist_assets.compiler.state import Compilation, Unit
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source


def check_annotations(compilation: Compilation) -> None:
    """Check what annotations say of sources against what their queries mean."""
    table_names: dict[str, Source] = {}
    tables: dict[str, Source] = {}
    for unit in compilation.units.values():
        with compilation.contained(unit):
            _check_annotation(compilation, unit, tables, table_names)


def _check_annotation(
    compilation: Compilation,
    unit: Unit,
    tables: dict[str, Source],
    table_names: dict[str, Source],
) -> None:
    """Report what is wrong with one source; note its table and the name of that."""
    source = unit.source
    if source is None or not (source.persisted or source.temporary):
        return
    annotation = source.annotation
    places = dict(annotation.keys)
    if annotation.name:
        other = table_names.setdefault(annotation.name.lower(), source)
        if other.build_id != source.build_id:
            message = (
                f"the table name `{other.annotation.name}` is already taken by `{other.key}` "
                f"at {other.location}"
            )
            compilation.problems.append(Problem("table-name", message, places["name"]))
        other = tables.setdefault(source.build_id, source)
        if other.annotation.name != annotation.name and source.language == MALLOY:
            message = (
                f"`{source.key}` is equivalent to `{other.key}` and shares its table, "
                f"which is already named `{other.annotation.name}` at {other.location}"
            )
            compilation.problems.append(Problem("table-name", message, places["name"]))
    if annotation.refresh == "incremental":
        compilation.problems += _check_increment(source, places)
    if annotation.partition is not None:
        compilation.problems += _check_partition(source, places["partition"])
    if annotation.strategy == "view":
        compilation.problems += _check_view(compilation, unit, source, places)
    for check in annotation.checks:
        other = compilation.units[check.against.source_id] if check.against else None
        if other and other.source and other.source.columns:
            compilation.problems += _check_relationship(source, check, other.source)
    if not source.columns:
        return
    compilation.problems += _check_contract(source)
    compilation.problems += _check_times(source)
    promised = promised_by(annotation.checks)
    wanted = [
        (c.location or places.get("check") or source.location, name)
        for c in annotation.checks
        for name in c.columns
        if name.lower() not in promised
    ]
    if annotation.partition:
        columns = [d.column for d in annotation.partition.dimensions]
        wanted += [(places["partition"], name) for name in columns]
    if annotation.merge:
        wanted += [(places["merge_key"], name) for name in annotation.merge.key]
    wanted += [(places["key"], name) for name in annotation.key]
    wanted += [(places["watch"], name) for name in annotation.watch]
    if annotation.time_column and not (annotation.partition and annotation.partition.time):
        place = places.get("time_column") or places["watermark"]
        wanted.append((place, annotation.time_column))
        kind = time_type(source)
        if annotation.validity and kind is not None and kind not in TIMES:
            message = f"`{annotation.time_column}` is {kind}, which cannot date versions"
            hint = "use a date or a timestamp"
            compilation.problems.append(Problem("watermark", message, place, hint))
    for place, name in wanted:
        compilation.problems += _missing_column(source, name, place)
    if source.keeps_history:
        made = {VALID_FROM, VALID_TO}
        named = {k: [v] for k, v in (("watermark", annotation.time_column),) if v}
        named |= {"key": [*annotation.key], "watch": [*annotation.watch]}
        for key, names in named.items():
            for name in made.intersection(n.lower() for n in names):
                message = f"`{name}` is added by the history and is not a column of its query"
                place = places.get(key) or places["time_column"]
                compilation.problems.append(Problem("unknown-column", message, place))
    for check in annotation.checks:
        if check.expression is not None:
            place = check.location or places["check"]
            compilation.problems += _check_condition(source, check.expression, place)


def _check_increment(source: Source, places: Mapping[str, Location]) -> Iterator[Problem]:
    """Yield what keeps a source from growing by increments, or what has no effect."""
    annotation = source.annotation
    place = places["refresh"]
    why = obstacle(source)
    if why is not None and annotation.assume is None:
        message = f"every build of `{source.name}` computes it in full: {why}"
        whole = "make it a @table" if source.function else "remove refresh=incremental"
        hint = f"{whole}, or add assume=exact if you know better"
        yield Problem("increment", message, place, hint, severity="warning")
    if annotation.lookback_s and annotation.assume is None:
        message = "`lookback` has no effect: without assume=exact late rows are always included"
        yield Problem("increment", message, places["lookback"], severity="warning")
    kind = time_type(source)
    if annotation.time_column and kind is not None and not is_ordered(kind):
        message = f"`{annotation.time_column}` is {kind}, which cannot be a watermark"
        hint = "use a date, a timestamp, an integer, a decimal or a string"
        yield Problem("watermark", message, place, hint)
    if annotation.lookback_s and kind is not None and kind not in TIMES:
        message = f"`lookback` is a duration, but `{annotation.time_column}` is {kind}"
        yield Problem("watermark", message, places["lookback"])


def _check_view(
    compilation: Compilation, unit: Unit, source: Source, places: Mapping[str, Location]
) -> Iterator[Problem]:
    """Yield what keeps a source from being a view."""
    if source.volatile or source.reads_clock:
        what = "is nondeterministic" if source.volatile else "depends on the current time"
        message = f"`{source.name}` {what}: each reader of a view would see different rows"
        yield Problem("view", message, places["materialized"], "remove materialized=view")
    within = _function_within(compilation, unit)
    if within is not None:
        own = within is unit
        what = "is a function" if own else f"reads the function `{within.declaration.name}`"
        message = f"`{source.name}` {what}, which a view cannot call"
        hint = "remove materialized=view"
        if not own:
            hint += f", or persist `{within.declaration.name}`"
        yield Problem("view", message, places["materialized"], hint)


def _check_partition(source: Source, place: Location) -> Iterator[Problem]:
    """Yield what keeps a source from being built partition by partition."""
    partition = source.annotation.partition
    assert partition is not None
    if source.volatile or source.reads_clock:
        what = "is nondeterministic" if source.volatile else "depends on the current time"
        message = f"`{source.name}` {what}: its partitions would be inconsistent"
        yield Problem("partition", message, place, "remove partition")
    if partition.time is not None and len({*limits(partition)}) == 1:
        yield Problem("partition", "no partition fits between `start` and `end`", place)
    names = {c.name.lower() for c in source.columns}
    unknown = all(c.type is None for c in source.columns)
    for dimension in partition.dimensions:
        kind = column_type(source.columns, dimension.column)
        if kind is None and (unknown or dimension.column.lower() not in names):
            continue  # Spark tells what functions return; a column that is not there is told
        if kind is None:
            message = f"the type of `{dimension.column}` is uncertain"
            yield Problem("partition", message, place, "cast it, or declare the columns it reads")
            continue
        if wanted := misfit(dimension, kind):
            message = f"`{dimension.column}` is {kind}: its partitions need {wanted}"
            yield Problem("partition", message, place)


def _function_within(compilation: Compilation, unit: Unit) -> Unit | None:
    """Return the first function that the rows of a source are computed with, or None."""
    seen: set[SourceID] = set()
    stack = [unit]
    while stack:
        this = stack.pop()
        if this.declaration.function is not None:
            return this
        for other in (compilation.units[b] for b in this.bindings):
            if other.source_id not in seen and not other.declaration.persisted:
                seen.add(other.source_id)
                stack.append(other)
    return None


def _missing_column(source: Source, name: str, place: Location) -> list[Problem]:
    names = {c.name.lower(): c.name for c in source.columns}
    if name.lower() in names:
        return []
    hint = did_you_mean(name, names.values())
    return [Problem("unknown-column", f"`{name}` is not a column of `{source.name}`", place, hint)]


def _check_contract(source: Source) -> Iterable[Problem]:
    """Yield what is certain to be otherwise than a source promises."""
    for check in source.checks:
        wrong = breaches(check, source.columns) if check.kind == "columns" else ()
        if wrong:
            message = f"the columns of `{source.name}` differ from its contract:{listed(wrong)}"
            yield Problem("contract", message, check.location or source.location)


def _check_relationship(source: Source, check: Check, other: Source) -> list[Problem]:
    """Return what is wrong with the columns that a check compares."""
    assert check.against is not None
    place = check.location or source.location
    missing = _missing_column(other, check.against.column, place)
    own = column_type(source.columns, check.columns[0])
    there = column_type(other.columns, check.against.column)
    wrong = incomparable(check, own, there) if own and there else None
    return [*missing, *([Problem("check", wrong, place)] if wrong else [])]


def _check_times(source: Source) -> Iterable[Problem]:
    """Yield a problem for each column that tells no time and is to be fresh."""
    kinds = {c.name.lower(): c.type for c in source.columns}
    for check in source.checks:
        kind = kinds.get(check.columns[0].lower()) if check.kind == "freshness" else None
        if kind is not None and kind not in TIMES:
            message = f"`{check.columns[0]}` is {kind}, so it has no age"
            place = check.location or source.location
            yield Problem("check", message, place, "use a date or a timestamp")


_VALUES = (exp.Literal, exp.Null, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)
"""What is neither true nor false."""


def unfit_condition(
    text: str, moving: frozenset[str], columns: Sequence[Column] = ()
) -> str | None:
    """Return why a text is no condition on one row, or None.

    Parameters
    ----------
    moving
        Functions that may not be called, as they answer differently each time.
    columns
        Those of the row, where their types are known.
    """
    tree = parse(text)
    if not isinstance(tree, exp.Condition):
        return f"`{text}` is not a condition"
    whole = tree.unnest()
    kind = column_type(columns, plain(whole.name)) if isinstance(whole, exp.Column) else None
    if isinstance(whole, _VALUES) or kind not in (None, "boolean"):
        return f"`{text}` is not a condition: it is not boolean"
    functions = called(tree, {c.name.lower() for c in columns})
    if tree.find(exp.Query, exp.Window) or functions & AGGREGATES:
        return f"`{text}` looks at more than one row"
    if functions & GENERATORS:
        return f"`{text}` generates rows"
    if functions & moving:
        return f"`{text}` is nondeterministic"
    return None


def _check_condition(source: Source, text: str, place: Location) -> list[Problem]:
    """Return what is wrong with a condition on one row of a source."""
    unfit = unfit_condition(text, VOLATILE | SESSION, source.columns)
    if unfit:
        return [Problem("check", unfit, place)]
    tree = parse(text)
    assert tree is not None
    problems: list[Problem] = []
    for column in tree.find_all(exp.Column):
        if not function_named(column):
            problems += _missing_column(source, plain(column.parts[0].name), place)
    return problems
