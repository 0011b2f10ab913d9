"""Pass: check annotations against the columns and the meaning of their sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.analysis.functions import (
    AGGREGATES,
    CLOCK,
    GENERATORS,
    SESSION,
    VOLATILE,
    is_special_datetime_text,
    python_function,
)
from persist_assets.analysis.syntax import called
from persist_assets.compiler.frontends.annotations import of_default
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
from persist_assets.planning.by_keys import inputs_of, unfit_keys
from persist_assets.planning.deltas import unmaintainable
from persist_assets.planning.increments import always_whole, column_type, obstacle, time_type

if TYPE_CHECKING:
    from collections.abc import (
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from persist_assets.compiler.state import Compilation, Unit
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.by_keys import Input


@dataclass(frozen=True, slots=True)
class Subject:
    """A source whose annotation is checked.

    Attributes
    ----------
    places
        The location of each key of the annotation.
    tables, table_names
        The first source of each BuildID, and of each table name in lower case, that names its
        table; rules add this one.
    """

    compilation: Compilation
    unit: Unit
    source: Source
    places: Mapping[str, Location]
    tables: dict[BuildID, Source]
    table_names: dict[str, Source]


def check_annotations(compilation: Compilation) -> None:
    """Check the annotations of sources against the meanings of their queries."""
    tables: dict[BuildID, Source] = {}
    table_names: dict[str, Source] = {}
    for unit in compilation.units.values():
        with compilation.contained(unit):
            source = unit.source
            if source is None or not (source.persisted or source.temporary or source.checks):
                continue
            places = dict(source.annotation.keys)
            subject = Subject(compilation, unit, source, places, tables, table_names)
            for rule in (*RULES, *(COLUMN_RULES if source.columns else ())):
                place = source.location
                compilation.problems += (of_default(p, place) for p in rule(subject))


# ------------------------------------------------------------------------------------------ rules


def name_is_free(subject: Subject) -> Iterator[Problem]:
    """Require that no two tables have one name."""
    source = subject.source
    name = source.annotation.name
    if not name:
        return
    other = subject.table_names.setdefault(name.lower(), source)
    if other.build_id != source.build_id:
        message = (
            f"the table name `{other.annotation.name}` is already taken by `{other.key}` "
            f"at {other.location}"
        )
        yield Problem("table-name", message, subject.places["name"])


def shared_table_has_one_name(subject: Subject) -> Iterator[Problem]:
    """Require that equivalent Malloy sources name the table that they share alike."""
    source = subject.source
    if not source.annotation.name:
        return
    other = subject.tables.setdefault(source.build_id, source)
    if other.annotation.name != source.annotation.name and source.language == MALLOY:
        message = (
            f"`{source.key}` is equivalent to `{other.key}` and shares its table, "
            f"which is already named `{other.annotation.name}` at {other.location}"
        )
        yield Problem("table-name", message, subject.places["name"])


def grows_by_increments(subject: Subject) -> Iterator[Problem]:
    """Require that an incremental source can continue its table, and has a watermark."""
    source, places = subject.source, subject.places
    annotation = source.annotation
    if not annotation.is_incremental:
        return
    place = places["refresh"]
    why = unmaintainable(source)
    if why is not None and not annotation.by:
        why = obstacle(source)
    if why is not None and annotation.assume is None:
        instead = f"remove refresh={annotation.refresh_value}"
        if source.function is not None:
            instead = "add by=…" if not annotation.time_column else "make it a @table"
        hint = f"{instead}, or add assume=exact if only rows past the watermark are new"
        yield Problem("increment", always_whole(source, why), place, hint, severity="warning")
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


def partitions_fit(subject: Subject) -> Iterator[Problem]:
    """Require that partitions are deterministic and that their columns have types that fit."""
    source, partition = subject.source, subject.source.annotation.partition
    if partition is None:
        return
    place = subject.places["partition"]
    if source.volatile or source.reads_clock:
        reason = "is nondeterministic" if source.volatile else "depends on the current time"
        message = f"`{source.name}` {reason}: its partitions would be inconsistent"
        yield Problem("partition", message, place, "remove partition")
    if partition.time is not None and len({*limits(partition)}) == 1:
        yield Problem("partition", "no partition fits between `start` and `end`", place)
    names = {c.name.lower() for c in source.columns}
    untyped = all(c.type is None for c in source.columns)
    for dimension in partition.dimensions:
        kind = column_type(source.columns, dimension.column)
        if kind is None and (untyped or dimension.column.lower() not in names):
            continue  # only Spark knows what a function returns; columns_exist reports the rest
        if kind is None:
            message = f"the type of `{dimension.column}` is uncertain"
            yield Problem("partition", message, place, "cast it, or declare the columns it reads")
            continue
        if expected := misfit(dimension, kind):
            message = f"`{dimension.column}` is {kind}: its partitions need {expected}"
            yield Problem("partition", message, place)


def keys_are_columns(subject: Subject) -> Iterator[Problem]:
    """Require that an input and the result of a function have its key columns, of one type each."""
    source, by = subject.source, subject.source.annotation.by
    if not by or source.function is None:
        return
    place, units = subject.places["by"], subject.compilation.units
    by_id = {s: read for s in source.bindings if (read := units[s].source) is not None}
    contract = source.known_columns
    for name in by if contract else ():
        yield from _missing_column(replace(source, columns=contract), name, place)
    inputs = inputs_of(source, by_id)
    yield from _keys_of_no_input(source, inputs, place)
    yield from _inputs_without_keys(source, inputs, place)
    unfit = unfit_keys(source, by_id, ("its contract", contract))
    if unfit is not None:
        message = f"keys of `{source.name}` cannot be compared: {unfit}"
        yield Problem("by", message, place, "cast it before, or remove by")
    if (source.volatile or source.reads_clock) and not source.annotation.is_incremental:
        message = f"`by` has no effect: {unmaintainable(source)}"
        yield Problem("by", message, place, severity="warning")


def _keys_of_no_input(
    source: Source, inputs: Sequence[Input], place: Location
) -> Iterator[Problem]:
    """Yield problems if certainly no input of a function has its key columns."""
    by, name = source.annotation.by, source.name
    if any(not i.columns or i.find_key(by) is not None for i in inputs):
        return
    present = {c.name.lower(): c.name for i in inputs for c in i.source.known_columns}
    selected = {c.name.lower() for i in inputs for _, c in i.columns}
    for column in by:
        if column.lower() not in present:
            message = f"no input of `{name}` has a column `{column}`"
            hint = did_you_mean(column, present.values())
            hint = hint or f"known columns: {', '.join(present.values())}"
            yield Problem("unknown-column", message, place, hint)
        elif column.lower() not in selected:
            message = f"`{name}` does not select `{column}` from any input"
            yield Problem("by", message, place, "add it to a .select(…) of the function")
    if selected >= {column.lower() for column in by}:
        message = f"no input of `{name}` has all of {', '.join(by)}"
        yield Problem("by", message, place, "name columns that one input has together")


def _inputs_without_keys(
    source: Source, inputs: Sequence[Input], place: Location
) -> Iterator[Problem]:
    """Yield problems if workers cannot get the rows of one key from both inputs of a function."""
    if source.function is None or not all(p.is_arrow for p in source.function.frames):
        return
    lacking = [
        i.source.name for i in inputs if i.columns and i.find_key(source.annotation.by) is None
    ]
    if lacking and len(lacking) < len(inputs):
        keys = ", ".join(source.annotation.by)
        message = f"the input `{lacking[0]}` of `{source.name}` does not have the key {keys}"
        yield Problem("by", message, place, "join inputs in a source of their own, and read that")


def view_is_deterministic(subject: Subject) -> Iterator[Problem]:
    """Require that every reader of a view computes the same rows."""
    source = subject.source
    if source.annotation.strategy == "view" and (source.volatile or source.reads_clock):
        reason = "is nondeterministic" if source.volatile else "depends on the current time"
        message = f"`{source.name}` {reason}: each reader of a view would see different rows"
        yield Problem("view", message, subject.places["materialized"], "remove materialized=view")


def view_calls_no_function(subject: Subject) -> Iterator[Problem]:
    """Require that no function computes rows of a view: a view is SQL."""
    if subject.source.annotation.strategy != "view":
        return
    within = _function_within(subject.compilation, subject.unit)
    if within is None:
        return
    hint = "remove materialized=view"
    if within is subject.unit:
        reason = "is a function"
    else:
        reason = f"reads the function `{within.declaration.name}`"
        hint += f", or persist `{within.declaration.name}`"
    message = f"`{subject.source.name}` {reason}, which a view cannot call"
    yield Problem("view", message, subject.places["materialized"], hint)


def view_calls_no_udf(subject: Subject) -> Iterator[Problem]:
    """Require that no view calls a function of Python, which only our sessions have."""
    if subject.source.annotation.strategy != "view":
        return
    stack, seen = [subject.unit], set[str]()
    while stack:
        unit = stack.pop()
        query = unit.declaration.query
        name = python_function(query.text) if query and not unit.declaration.function else None
        if name is not None:
            message = f"`{subject.source.name}` calls `{name}`, a function in Python"
            hint = "remove materialized=view"
            yield Problem("view", message, subject.places["materialized"], hint)
            return
        below = (subject.compilation.units[b] for b in unit.bindings)
        stack += (u for u in below if not u.declaration.persisted and u.source_id not in seen)
        seen.update(unit.bindings)


def checked_rows_are_read(subject: Subject) -> Iterator[Problem]:
    """Require that a check of a view sees the rows that the readers of the view get."""
    source = subject.source
    if source.is_inline and source.checks and source.volatile:
        message = f"`{source.name}` is nondeterministic: its checks would see other rows"
        hint = "add persist, or persist materialized=temporary"
        yield Problem("check", message, subject.places.get("check", source.location), hint)


def relationships_compare(subject: Subject) -> Iterator[Problem]:
    """Require that checks against another source name a column of it, of a type that compares."""
    source = subject.source
    for check in source.annotation.checks:
        other = subject.compilation.units[check.against.source_id].source if check.against else None
        if check.against is None or other is None or not other.columns:
            continue
        place = check.location or source.location
        yield from _missing_column(other, check.against.column, place)
        own_type = column_type(source.columns, check.columns[0])
        other_type = column_type(other.columns, check.against.column)
        wrong = incomparable(check, own_type, other_type) if own_type and other_type else None
        if wrong:
            yield Problem("check", wrong, place)


def contract_holds(subject: Subject) -> Iterator[Problem]:
    """Require that a contract promises no column that certainly differs."""
    source = subject.source
    for check in source.checks:
        wrong = breaches(check, source.columns) if check.kind == "columns" else ()
        if wrong:
            message = f"the columns of `{source.name}` differ from its contract:{listed(wrong)}"
            yield Problem("contract", message, check.location or source.location)


def freshness_has_a_time(subject: Subject) -> Iterator[Problem]:
    """Require that a check of freshness looks at a column of times."""
    source = subject.source
    kinds = {c.name.lower(): c.type for c in source.columns}
    for check in source.checks:
        kind = kinds.get(check.columns[0].lower()) if check.kind == "freshness" else None
        if kind is not None and kind not in TIMES:
            message = f"`{check.columns[0]}` is {kind}, so it has no age"
            place = check.location or source.location
            yield Problem("check", message, place, "use a date or a timestamp")


def versions_have_a_time(subject: Subject) -> Iterator[Problem]:
    """Require that the time column of a history can date its versions."""
    annotation = subject.source.annotation
    kind = time_type(subject.source)
    place = _time_column_place(subject)
    if place is not None and annotation.validity and kind is not None and kind not in TIMES:
        message = f"`{annotation.time_column}` is {kind}, which cannot date versions"
        yield Problem("watermark", message, place, "use a date or a timestamp")


def columns_exist(subject: Subject) -> Iterator[Problem]:
    """Require that the columns that an annotation names are columns of its source."""
    source, places = subject.source, subject.places
    annotation = source.annotation
    promised = promised_by(annotation.checks)
    for check in annotation.checks:
        place = check.location or places.get("check") or source.location
        for name in check.columns:
            if name.lower() not in promised:
                yield from _missing_column(source, name, place)
    dimensions = annotation.partition.dimensions if annotation.partition else ()
    columns_by_key: dict[str, Iterable[str]] = {
        "partition": [dimension.column for dimension in dimensions],
        "merge_key": annotation.merge.key if annotation.merge else (),
        "key": annotation.key,
        "watch": annotation.watch,
    }
    for key, columns in columns_by_key.items():
        for name in columns:
            yield from _missing_column(source, name, places[key])
    place = _time_column_place(subject)
    if place is not None and annotation.time_column:
        yield from _missing_column(source, annotation.time_column, place)


def history_adds_its_columns(subject: Subject) -> Iterator[Problem]:
    """Require that an annotation names no column that the history adds."""
    source, places = subject.source, subject.places
    annotation = source.annotation
    if not source.keeps_history:
        return
    columns_by_key = {
        "watermark": [annotation.time_column] if annotation.time_column else [],
        "key": [*annotation.key],
        "watch": [*annotation.watch],
    }
    for key, columns in columns_by_key.items():
        for name in {VALID_FROM, VALID_TO}.intersection(column.lower() for column in columns):
            message = f"`{name}` is added by the history and is not a column of its query"
            place = places.get(key) or places["time_column"]
            yield Problem("unknown-column", message, place)


def conditions_fit(subject: Subject) -> Iterator[Problem]:
    """Require that a check's condition is boolean, looks at one row, and names columns."""
    source = subject.source
    written = {c.name: c.expression for c in subject.unit.written.annotation.checks}
    for check in source.annotation.checks:
        if check.expression is None:
            continue
        place = check.location or subject.places["check"]
        text = written.get(check.name)
        unfit = unfit_condition(check.expression, VOLATILE | SESSION, source.columns, text)
        if unfit:
            yield Problem("check", unfit, place)
            continue
        tree = parse(check.expression)
        assert tree is not None
        for column in tree.find_all(exp.Column):
            if not function_named(column):
                yield from _missing_column(source, plain(column.parts[0].name), place)


Rule = Callable[[Subject], "Iterable[Problem]"]
RULES: tuple[Rule, ...] = (
    name_is_free,
    shared_table_has_one_name,
    grows_by_increments,
    partitions_fit,
    keys_are_columns,
    view_is_deterministic,
    view_calls_no_function,
    view_calls_no_udf,
    checked_rows_are_read,
    relationships_compare,
)
"""The rules for every source. A rule's name states what holds if it finds no problem."""
COLUMN_RULES: tuple[Rule, ...] = (
    contract_holds,
    freshness_has_a_time,
    versions_have_a_time,
    columns_exist,
    history_adds_its_columns,
    conditions_fit,
)
"""The rules for sources whose columns are known."""


def _time_column_place(subject: Subject) -> Location | None:
    """Return the location of the time column in the annotation, unless it is the partitions'."""
    annotation, places = subject.source.annotation, subject.places
    if not annotation.time_column or (annotation.partition and annotation.partition.time):
        return None
    return places.get("time_column") or places["watermark"]


def _function_within(compilation: Compilation, unit: Unit) -> Unit | None:
    """Return the first function that computes rows of a source, itself included, or None."""
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


_VALUES = (exp.Literal, exp.Null, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)
"""Expressions that are never boolean."""


def unfit_condition(
    text: str,
    moving: frozenset[str],
    columns: Sequence[Column] = (),
    written: str | None = None,
) -> str | None:
    """Return why a text is not a condition on one row, or None.

    Parameters
    ----------
    moving
        Nondeterministic functions, which must not be called.
    columns
        The columns of the row whose types are known.
    written
        The text for messages, if functions are inlined in `text`.
    """
    tree, text = parse(text), written or text
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
    if functions & moving or (moving >= CLOCK and _reads_clock(tree, columns)):
        return f"`{text}` is nondeterministic"
    return None


def _reads_clock(tree: exp.Expr, columns: Sequence[Column]) -> bool:
    """Whether a condition has a text that Spark may cast to a time by the clock, as in ``'now'``.

    It certainly does not if the text is compared with a column of strings.
    """
    for literal in tree.find_all(exp.Literal):
        if not (literal.is_string and is_special_datetime_text(literal.this)):
            continue
        parent = literal.parent
        operands = [*parent.iter_expressions()] if isinstance(parent, (exp.Binary, exp.In)) else []
        kinds = {column_type(columns, plain(o.name)) for o in operands if isinstance(o, exp.Column)}
        if kinds != {"string"}:
            return True
    return False
