"""Pass: the meaning of each source."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.analysis.algebra import Given
from persist_assets.analysis.binding import Face
from persist_assets.analysis.functions import (
    ARGUMENTS,
    CLOCK,
    SESSION,
    SPARKS,
    VOLATILE,
    since,
)
from persist_assets.analysis.semantics import (
    Meaning,
    Upstream,
    narrowed,
    own_origins,
    understand,
    understand_function,
)
from persist_assets.analysis.syntax import given_args
from persist_assets.compiler.names import (
    source_id,
    unclear_parameters,
    variable_hint,
    wrong_hint,
)
from persist_assets.compiler.passes.annotations import unfit_condition
from persist_assets.compiler.passes.names import resolve_unit
from persist_assets.compiler.passes.shown_types import Shown, shown_types
from persist_assets.compiler.state import Compilation, Unit
from persist_assets.core.dialect import char_size
from persist_assets.core.digests import digest
from persist_assets.core.errors import (
    Location,
    Problem,
    did_you_mean,
)
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.columns import Column, shortened
from persist_assets.core.model.sources import CATALOG, FORMATS, Declaration, Source
from persist_assets.core.partitions import spelled_bounds
from persist_assets.core.spark_versions import only_since

if TYPE_CHECKING:
    from collections.abc import (
        Sequence,
    )

    from persist_assets.core.model.queries import Query, Reference
    from persist_assets.core.model.sources import RawTable


def reads_whole(query: Query) -> bool:
    """Whether a query has all rows and columns of one source, and nothing else.

    Malloy's requests about tables are such queries; so may be texts of users.
    """
    match query.tree:
        case exp.Select(expressions=[exp.Star() as star]) if len(query.references) == 1:
            read = query.tree.args.get("from_")
            table = read.this if read is not None else None
            parts = {"this", "db", "catalog"}
            return (
                set(given_args(query.tree)) == {"expressions", "from_"}
                and not given_args(star)
                and isinstance(table, exp.Table)
                and set(given_args(table)) <= parts
            )
        case _:
            return False


def describe(
    compilation: Compilation, query: Query, *, usual_types: bool
) -> Sequence[Shown] | Sequence[Problem]:
    """Return the columns of a query for Malloy, or its problems.

    If the query selects all rows of one source, an uncertain type is the one that the source's own
    language assumes.

    Parameters
    ----------
    usual_types
        Whether expressions have the types that they have in a session with default settings.
    """
    place = query.references[0].location if query.references else Location("query")
    declaration = Declaration("query", MALLOY, place, query=query)
    unit, before = Unit(declaration, source_id(declaration), ("query",)), len(compilation.problems)
    resolve_unit(compilation, unit)
    read = [compilation.units[b] for b in unit.bindings]
    unit.broken |= any(u.broken for u in read)
    whole = reads_whole(query)
    if not (unit.broken or whole):
        with compilation.contained(unit):
            _compile_query(compilation, unit)
    problems, compilation.problems[before:] = compilation.problems[before:], []
    source = read[0].source if whole and not unit.broken else unit.source
    if source is not None and not source.columns:
        name = read[0].declaration.name if read else "query"
        message = f"the columns of `{name}` are unknown until it is computed"
        hint = f"name them in SQL: CREATE VIEW … AS SELECT a, b FROM {name}"
        return [Problem("columns", message, place, hint)]
    if source is None:
        return problems
    assumed = {c.name.lower(): c.type for c in read[0].declaration.columns} if whole else {}
    kinds = tuple(c.type for c in source.columns)
    if usual_types:
        kinds = shown_types(compilation, read[0] if whole else unit)
    return tuple(
        Shown(c.name, kind or assumed.get(c.name.lower()), kind != c.type)
        for c, kind in zip(source.columns, kinds, strict=True)
    )


def compile_meaning(compilation: Compilation) -> None:
    """Compile the meaning of each source, after those of its inputs."""
    for unit in compilation.focused():
        compilation.focus.proceed()
        if unit.source is not None:
            continue  # it was taken over
        unit.broken |= any(compilation.units[b].broken for b in unit.bindings)
        if unit.broken:
            continue
        with compilation.contained(unit):
            if unit.declaration.raw is not None:
                _compile_raw(compilation, unit)
            elif unit.declaration.function is not None:
                _compile_function(compilation, unit)
            else:
                _compile_query(compilation, unit)


_COLLECTED_EVERY = 100
"""The number of queries after which the garbage of their analysis is collected.

Loading disables automatic collection (`nothing_collected`). Otherwise half of its peak memory
would be such garbage.
"""

_BY_NAME = ("parquet", "delta", "iceberg", "orc", "postgres")
"""Formats whose columns are found by name, so that a new column does not affect the others."""


def _compile_raw(compilation: Compilation, unit: Unit) -> None:
    declaration, facts = unit.declaration, compilation.raws[unit.source_id]
    raw = declaration.raw
    if raw is None or facts.columns is None:
        unit.broken = True
        return
    wrong = _unknown_format(compilation, declaration, raw)
    compilation.problems += wrong
    if any(problem.severity == "error" for problem in wrong):
        unit.broken = True
        return
    if raw.external is not None:
        for text in (raw.external.filter, raw.external.snapshot_filter):
            if text is None:
                continue
            unfit = unfit_condition(text, CLOCK | VOLATILE | SESSION, facts.columns)
            if unfit:
                hint = "filter in a view over the table"
                compilation.report("external-filter", f"invalid filter: {unfit}", unit, hint)
                return
    fields = [f"{c.name} {c.type}" for c in facts.columns]
    identity = ["raw", compilation.connection, raw.format, facts.place, facts.options]
    if any(char_size(c.type) for c in facts.columns):
        identity.append("CHAR is padded")  # earlier releases did not
    if raw.external is not None:
        # Otherwise tables of earlier releases, which name columns here, would not be taken over.
        identity.append("any columns")
    is_by_name = raw.format in _BY_NAME
    rows = digest(*identity, [] if is_by_name else fields)
    columns = tuple(digest("column", rows, c.name.lower(), c.type) for c in facts.columns)
    # Columns that are found, and not declared, may come while the data is the same. Those of an
    # external table only say what may be read of it.
    is_certain = bool(declaration.columns) and raw.external is None
    declared = fields if is_certain or not is_by_name else "columns as they come"
    source = Source(
        source_id=unit.source_id,
        asset_key=unit.asset_key,
        full_key=unit.full_key,
        language=declaration.language,
        location=declaration.location,
        annotation=declaration.annotation,
        persisted=False,
        build_id=digest(*identity, declared),
        definition=digest("definition", raw.format, raw.location, facts.options, fields),
        description=declaration.description,
        columns=facts.columns,
        raw=raw,
        marks=shortened(rows, columns),
        function=declaration.function,
    )
    unit.source = source
    unit.key = digest("raw", source.source_id, source.build_id, fields)
    relation = Given(
        rows,
        columns,
        None,
        own_origins(source.source_id, (c.name for c in facts.columns)),
        tuple(c.type for c in facts.columns),
    )
    unit.raw_face = Face(None, relation, tuple(c.name for c in facts.columns) or None)


def _unknown_format(
    compilation: Compilation, declaration: Declaration, raw: RawTable
) -> list[Problem]:
    """Return the problem if Spark cannot read the format of a raw table: an error if misspelt."""
    if raw.format == CATALOG and raw.location:
        message = f"`{declaration.name}` is a table of a catalog, which knows its location"
        hint = "remove the location, here and in `[env.NAME.raw]`, or use the format of its files"
        return [Problem("raw-location", message, declaration.location, hint)]
    is_ours = raw.external is not None or declaration.function is not None
    is_ours |= raw.format in FORMATS or "." in raw.format  # a class
    if is_ours or compilation.functions is None:
        return []
    similar = did_you_mean(raw.format, FORMATS)
    hint = f"{similar or 'known formats: ' + ', '.join(FORMATS)}; the library of another one"
    hint += ' goes into "spark.jars.packages"'
    message = f"`{declaration.name}` has the unknown format `{raw.format}`"
    severity = "error" if similar else "warning"
    return [Problem("raw-format", message, declaration.location, hint, severity)]


def _compile_function(compilation: Compilation, unit: Unit) -> None:
    declaration = unit.declaration
    query = declaration.query
    assert query is not None
    assert declaration.function is not None
    upstream = _upstream(compilation, unit)
    wrong = [
        problem
        for parameter, binding in zip(declaration.function.frames, unit.bindings, strict=True)
        for problem in wrong_hint(parameter, compilation.units[binding].source)
    ]
    if wrong:
        compilation.problems += wrong
        unit.broken = True
        return
    shown = narrowed(declaration.function, [u.face.ordered_names for u in upstream])
    declaration = replace(declaration, function=shown)
    meaning = understand_function(declaration, upstream, compilation.connection)
    unit.meaning = meaning
    for note in meaning.notes:
        message, place = f"`{declaration.name}` is {note}", declaration.location
        hint = "make its result depend on its parameters only"
        compilation.problems.append(
            Problem("python-nondeterministic", message, place, hint, severity="warning")
        )
    # Columns that it does not use may be nondeterministic too.
    above = [compilation.units[b].key for b in unit.bindings]
    parts = (declaration.persisted, meaning.build_id, meaning.names, above)
    unit.key = digest("function", unit.source_id, *parts)
    _made(unit, declaration, query, meaning)


def _upstream(compilation: Compilation, unit: Unit) -> list[Upstream]:
    """Return the interfaces of the sources that a unit's query reads."""
    return [
        Upstream(u.face(), u.source.persisted, u.source.volatile, u.source.reads_clock)
        for u in (compilation.units[b] for b in unit.bindings)
        if u.source is not None
    ]


def _compile_query(compilation: Compilation, unit: Unit) -> None:
    declaration = unit.declaration
    query = declaration.query
    assert query is not None
    upstream = [compilation.units[b] for b in unit.bindings]
    columns = {name for u in upstream for name in _columns_of(u) or ()}
    unit.hidden = tuple(v for v in query.variables if v in columns)
    if unit.hidden:  # in Spark, columns come before variables
        compilation.trees.pop(unit.source_id, None)
        query = compilation.parsed(unit)
        assert query is not None
        declaration = unit.declaration = replace(declaration, query=query)
    hidden = [
        problem
        for reference, read in zip(query.references, upstream, strict=True)
        for problem in hidden_versions(declaration.language, reference, read.source)
    ]
    compilation.problems += _mistaken_texts(query, upstream)
    known = [(u.declaration.name, _columns_of(u)) for u in upstream]
    unclear = [*_unclear_variables(query, upstream), *unclear_parameters(query, known)]
    wrong = [*hidden, *unclear, *_wrong_calls(compilation, query)]
    compilation.problems += wrong
    if any(problem.severity == "error" for problem in wrong):
        unit.broken = True
        return
    unit.key = digest(
        "meaning",
        compilation.connection,
        unit.source_id,
        declaration.persisted,
        (compilation.followed, *_annotated_meaning(declaration)),
        (query.wording, query.lost, query.column_names),
        [u.key for u in upstream],
    )
    meaning = compilation.memory.cached.get(unit.key)
    if meaning is None:
        if query.tree is None:
            declaration = replace(declaration, query=compilation.parsed(unit))
        meaning = understand(
            declaration,
            _upstream(compilation, unit),
            compilation.connection,
            followed=compilation.followed,
        )
        if len(compilation.memory.used) % _COLLECTED_EVERY == 0:
            gc.collect(0)
        if not isinstance(meaning, Meaning):
            if declaration.language == MALLOY:  # nobody has seen the lines of its SQL
                meaning = [replace(p, location=declaration.location) for p in meaning]
            names = compilation.definitions.variables
            compilation.problems += [replace(p, hint=variable_hint(p, names)) for p in meaning]
            unit.broken = True
            return
    compilation.memory.used[unit.key] = unit.meaning = meaning
    _made(unit, declaration, query, meaning)


def _columns_of(unit: Unit) -> set[str] | None:
    """Return the names of the columns of an input in lower case; None: they are unknown."""
    names = unit.names()
    if names is None or unit.source is None:
        return None
    return {n.lower() for n in (*names, *(c.name for c in unit.source.columns))}


def _unclear_variables(query: Query, upstream: Sequence[Unit]) -> list[Problem]:
    """Return the problems of names that are variables, or columns of inputs that are unknown."""
    unknown = next((u for u in upstream if _columns_of(u) is None), None)
    if unknown is None:
        return []
    name, place = unknown.declaration.name, query.references[0].location
    return [
        Problem(
            "variable",
            f"`{variable}` is a variable, or a column of `{name}`: its columns are unknown until "
            "it is computed",
            place,
            "for the variable, write system.session.NAME",
        )
        for variable in query.variables
        if variable != "system"
    ]


def _mistaken_texts(query: Query, upstream: Sequence[Unit]) -> list[Problem]:
    """Return warnings of texts in double quotes that look like columns."""
    columns = {c.name.lower() for u in upstream if u.source for c in u.source.columns}
    return [
        Problem(
            "double-quotes",
            f'"{text}" is a string literal in Spark, not the column',
            place,
            f"write `{text}` for the column, or '{text}' for the string",
            severity="warning",
        )
        for text, place in query.double_quoted
        if text.lower() in columns
    ]


_ELSEWHERE = {
    "approx_distinct": "approx_count_distinct",
    "arg_max": "max_by",
    "arg_min": "min_by",
    "array_length": "size",
    "charindex": "locate",
    "date_bin": "date_trunc",
    "datetime_trunc": "date_trunc",
    "from_base64": "unbase64",
    "getdate": "current_timestamp",
    "generate_series": "sequence",
    "group_concat": "listagg",
    "iif": "if",
    "json_extract": "get_json_object",
    "json_extract_scalar": "get_json_object",
    "logical_and": "bool_and",
    "logical_or": "bool_or",
    "safe_cast": "try_cast",
    "safe_divide": "try_divide",
    "string_to_array": "split",
    "strftime": "date_format",
    "strpos": "instr",
    "timestamp_trunc": "date_trunc",
    "to_base64": "base64",
    "to_hex": "hex",
    "unnest": "explode",
}
"""Functions of other databases, and those of Spark that do the same."""


def _wrong_calls(compilation: Compilation, query: Query) -> list[Problem]:
    """Return the problems of calls that the functions of the session do not allow."""
    functions = compilation.functions
    if functions is None:
        return []
    problems: list[Problem] = []
    for name, n, place in query.wrong_calls:
        if name in functions:
            continue
        if n is not None:
            takes = " or ".join(map(str, sorted(ARGUMENTS[name])))
            message = f"`{name}` takes {takes} argument{'s' * (takes != '1')}, not {n}"
            first = since(name, n)
            problems.append(Problem("argument-count", message, place, first and only_since(first)))
        else:
            other, first = _ELSEWHERE.get(name), since(name)
            hint = f"Spark has `{other}`" if other else did_you_mean(name, (*SPARKS, *functions))
            if first is not None:
                hint = only_since(first)
            hint = hint or f'if the session has it: functions = ["{name}"] in persist.toml'
            problems.append(Problem("unknown-function", f"unknown function `{name}`", place, hint))
    problems += (p for name, p in query.misplaced_calls if name not in functions)
    return problems


def hidden_versions(
    language: str | None, reference: Reference, source: Source | None
) -> list[Problem]:
    """Return the problem if Malloy would read all versions of a history as its current rows.

    For Malloy's own sources, Malloy knows only the columns of the query.
    """
    if language != MALLOY or source is None or not source.keeps_history:
        return []
    if "@" not in reference.parts[0]:
        return []
    message = f"this reads all versions of `{source.name}` and cannot tell which are current"
    hint = f"read it as a table, with {VALID_FROM} and {VALID_TO}: ….table('{source.name}')"
    return [Problem("versions", message, reference.location, hint)]


def _made(unit: Unit, declaration: Declaration, query: Query, meaning: Meaning) -> None:
    """Compile a unit to the source that it declares."""
    described = {c.name.lower(): c.description for c in declaration.columns}
    unit.source = Source(
        source_id=unit.source_id,
        asset_key=unit.asset_key,
        full_key=unit.full_key,
        language=declaration.language,
        location=declaration.location,
        annotation=declaration.annotation,
        persisted=declaration.persisted,
        build_id=meaning.build_id,
        definition=digest(
            "definition",
            query.wording,
            unit.bindings,
            query.column_names,
            *_row_rules(declaration),
        ),
        description=declaration.description,
        columns=tuple(Column(n, kind, described.get(n.lower())) for n, kind in meaning.columns),
        query=replace(query, tree=None),
        bindings=unit.bindings,
        lineage=meaning.lineage,
        volatile=meaning.volatile,
        reads_clock=meaning.reads_clock,
        notes=meaning.notes,
        marks=meaning.marks,
        temporary=declaration.temporary,
        malloy_ids=declaration.malloy_ids,
        growth=meaning.growth,
        function=declaration.function,
        wrapper=declaration.wrapper,
    )


def _annotated_meaning(declaration: Declaration) -> tuple[object, ...]:
    """Return the parts of an annotation that affect the meaning of a query."""
    annotation = declaration.annotation
    how = (annotation.assume, annotation.goes_on)
    fields = (annotation.refresh, annotation.time_column, *how)
    return (*fields, *_row_rules(declaration))


def _row_rules(declaration: Declaration) -> tuple[object, ...]:
    """Return the changes that an annotation makes to the rows of a query."""
    merge, by = declaration.annotation.merge, declaration.annotation.time_column
    partition = declaration.annotation.partition
    if partition is not None:
        return spelled_bounds(partition)
    validity = declaration.annotation.validity
    if validity is not None:
        return (validity.key, validity.watch, validity.hard_deletes, by)
    merged = (merge.key, merge.on_tie, by) if merge else ()
    lookback = declaration.annotation.trusted_lookback_s
    return merged if lookback is None else (*merged, "lookback", lookback, by)
