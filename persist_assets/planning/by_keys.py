"""The program of a function whose rows follow from the rows with the same key in its inputs. Pure.

    changed rows of the inputs that have the key columns ─► touched keys ─► the function is called
    with inputs cut to them, and returns all rows with these keys

Nothing is proven here: the user states it, with ``by``. A changed input that lacks the key columns
may touch any row, so then there is no program.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.core.contracts import alike
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import NodeRule, NoRule, Probe, Program, relation_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.deltas import Columns
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of a function.

    Attributes
    ----------
    columns
        The columns that the function gets, with their numbers in `source`; empty if unknown.
    """

    source: Source
    columns: tuple[tuple[int, Column], ...]

    def find_key(self, by: Sequence[str]) -> tuple[int, ...] | None:
        """Return the numbers of the key columns; None if it lacks some."""
        numbers = {column.name.lower(): n for n, column in self.columns}
        names = [name.lower() for name in by]
        return tuple(numbers[n] for n in names) if numbers.keys() >= {*names} else None


def inputs_of(source: Source, by_id: Mapping[SourceID, Source]) -> tuple[Input, ...]:
    """Return the parameters of a function that are sources, in order."""
    assert source.function is not None
    inputs: list[Input] = []
    for parameter, source_id in zip(source.function.frames, source.bindings, strict=True):
        read, only = by_id[source_id], parameter.columns
        columns = enumerate(read.known_columns)
        shown = tuple((n, c) for n, c in columns if only is None or c.name in only)
        inputs.append(Input(read, shown))
    return tuple(inputs)


def unfit_keys(
    source: Source, by_id: Mapping[SourceID, Source], *tables: tuple[str, Sequence[Column]]
) -> str | None:
    """Return why the keys of a function cannot be compared; None: as far as is known, they can.

    Parameters
    ----------
    tables
        Names and columns of other tables whose keys are compared with those of the inputs.
    """
    by = source.annotation.by
    inputs = [i.source for i in inputs_of(source, by_id) if i.find_key(by) is not None]
    every = [*((s.name, s.known_columns) for s in inputs), *tables]
    types = [(table, {c.name.lower(): c.type for c in columns}) for table, columns in every]
    for name in by:
        known = [(table, kind) for table, kinds in types if (kind := kinds.get(name.lower()))]
        for table, kind in known:
            if "map<" in kind:
                return f"`{name}` is {kind} in {table}"
            if not alike(known[0][1], kind):
                return f"`{name}` is {known[0][1]} in {known[0][0]} and {kind} in {table}"
    return None


def with_functions(project: Project) -> Project:
    """Return a project that knows the programs of functions with ``by`` too.

    Parameters
    ----------
    project
        Knows the programs of queries.
    """

    def program(
        source_id: SourceID, changed: frozenset[SourceID], grown: frozenset[SourceID]
    ) -> Program | None:
        source = project.by_id[source_id]
        if source.annotation.by:
            return _program(project, source, changed, grown)
        return project.program(source_id, changed, grown)

    def uses(source_id: SourceID) -> Columns:
        source = project.by_id[source_id]
        return _uses(project, source) if source.annotation.by else project.uses(source_id)

    def rules(source_id: SourceID) -> tuple[NodeRule, ...]:
        source = project.by_id[source_id]
        if not source.annotation.by:
            return project.rules(source_id)
        rule = f"called with the rows of touched keys: {', '.join(source.annotation.by)}"
        return (NodeRule(0, f"function {source.name}", rule, source.location),)

    return replace(project, program=program, uses=uses, rules=rules)


def _program(
    project: Project, source: Source, changed: frozenset[SourceID], grown: frozenset[SourceID]
) -> Program | None:
    """Return the program of a function; None: no key is touched.

    Its `Program.rows` is empty: calling the function gives the rows.

    Raises
    ------
    NoRule
        The change of an input does not tell which keys it touches.
    """
    by = source.annotation.by
    selects, programs = dict[str, None](), list[Program]()
    keyed: dict[SourceID, tuple[tuple[int, str], ...]] = {}
    for one in inputs_of(source, project.by_id):
        read = one.source
        below = project.reach([read.source_id], lambda s: s.is_leaf)
        reads = changed & {s.source_id for s in below}
        numbers = one.find_key(by)
        if numbers is not None:
            keyed[read.source_id] = tuple((n, read.known_columns[n].name) for n in numbers)
        if not reads:
            continue
        if not one.columns:
            raise NoRule(f"it reads {read.name}, which changed and whose columns are unknown")
        if numbers is None:
            known = {column.name.lower() for _, column in one.columns}
            lacking = ", ".join(name for name in by if name.lower() not in known)
            raise NoRule(f"it gets {read.name} without {lacking}, and {read.name} changed")
        if read.is_leaf:
            selects[_distinct(numbers, quote(relation_name("delta", read.source_id)))] = None
            continue
        program = _program_below(project, read, reads, grown & reads)
        if program is not None:
            selects[_keys_of(read, program, numbers)] = None
            programs.append(program)
    if not selects:
        return None
    union = " UNION ".join(selects)
    keys = f"keys:{sha256(union.encode()).hexdigest()[:16]}"
    held, probes = _united(programs)
    held[keys] = union
    probes |= {table: Probe(table, columns, keys) for table, columns in keyed.items()}
    values = dict.fromkeys(value for p in programs for value in p.changed_values)
    return Program(held, "", _uses(project, source), probes, keys, changed_values=tuple(values))


def _united(programs: Iterable[Program]) -> tuple[dict[str, str], dict[str, Probe]]:
    """Return the held relations and the probes of several programs.

    Probes of the same columns have one name, but each program has keys of its own origins.
    """
    held, probes = dict[str, str](), dict[str, Probe]()
    for program in programs:
        for name, sql in program.held.items():
            if held.setdefault(name, sql) != sql:
                held[name] += f" UNION {sql}"
        for digest, probe in program.probes.items():
            known = probes.setdefault(digest, probe)
            origins = sorted({*known.origins, *probe.origins})
            probes[digest] = replace(probe, origins=tuple(origins))
    return held, probes


def _program_below(
    project: Project, read: Source, changed: frozenset[SourceID], grown: frozenset[SourceID]
) -> Program | None:
    """Return the program of a query that a function reads; None: no row changes.

    Parameters
    ----------
    changed, grown
        The tables below it that changed, and those that only got rows.
    """
    if read.function is not None:
        raise NoRule(f"it reads {read.name}, which changed and has no table")
    try:
        program = project.program(read.source_id, changed, grown)
        if program is not None and program.reads_table:
            raise NoRule("of a LIMIT")
    except NoRule as error:
        why = f"the change of {read.name} is unknown because {error.reason}"
        raise NoRule(f"it reads {read.name}, and {why}") from None
    return program


def _keys_of(read: Source, program: Program, numbers: Sequence[int]) -> str:
    """Return the SELECT of the values that columns have in the changed rows of a query."""
    if program.keys is None:
        return _distinct(numbers, f"({program.rows})")
    if not {*numbers} <= {*program.key_columns}:
        raise NoRule(f"it reads {read.name}, whose changed rows are known by other columns")
    return _distinct([program.key_columns.index(n) for n in numbers], quote(program.keys))


def _distinct(numbers: Iterable[int], rows: str) -> str:
    items = ", ".join(f"c{n} AS c{k}" for k, n in enumerate(numbers))
    return f"SELECT DISTINCT {items} FROM {rows}"


def _uses(project: Project, source: Source) -> Columns:
    """Return the columns of tables that a function with ``by`` gets, as far as they are known."""
    used: dict[SourceID, dict[int, str]] = {}
    for one in inputs_of(source, project.by_id):
        if one.source.is_leaf:
            columns = {one.source.source_id: [(n, column.name) for n, column in one.columns]}
        else:
            columns = {}
            with suppress(NoRule):
                columns = project.uses(one.source.source_id)
        for table, some in columns.items():
            used.setdefault(table, {}).update(some)
    return {table: tuple(sorted(some.items())) for table, some in used.items()}
