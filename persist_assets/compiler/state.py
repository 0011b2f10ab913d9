"""The shared state of the passes of a compilation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.deltas.definition import checked, define
from persist_assets.analysis.deltas.staging import Staged, staged
from persist_assets.analysis.functions import CLOCK, SESSION, VOLATILE, python_function
from persist_assets.analysis.pushdown.needs import leaf, opaque, relate
from persist_assets.analysis.pushdown.search import find_needs
from persist_assets.analysis.semantics import (
    Meaning,
)
from persist_assets.analysis.syntax import calls_in, first_place
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.compiler.names import Names, source_id
from persist_assets.core.errors import (
    PersistError,
    Problem,
    in_order,
    unexpected,
)
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.deltas import NoRule
from persist_assets.core.model.project import Broken, Project

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Generator,
        Iterable,
        Mapping,
        Sequence,
    )

    from persist_assets.analysis.binding import Face
    from persist_assets.analysis.pushdown.needs import Need
    from persist_assets.analysis.pushdown.relation import Relation
    from persist_assets.core.errors import Location
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import Query, Reference, SourceID
    from persist_assets.core.model.sources import Declaration, Source


UNSTEADY = VOLATILE | SESSION | CLOCK | {"tablesample"}
"""Functions whose results differ between builds from the same data."""


@dataclass(frozen=True, slots=True)
class RawFacts:
    """Facts about a raw table besides its declaration.

    Attributes
    ----------
    place
        Its location in a form that means the same data wherever digests are compared.
    columns
        The declared columns or, if none are declared, those of the data; None if reading them
        failed, which has been reported.
    options
        Its options without secrets.
    """

    place: str
    columns: tuple[Column, ...] | None
    options: tuple[tuple[str, str], ...] = ()


def _never(path: str, hidden: Collection[str] = ()) -> Iterable[Declaration]:
    raise AssertionError(f"{path} was declared without trees")


@dataclass(frozen=True, slots=True)
class Memory:
    """The meanings of queries, by digests of everything that they depend on.

    Attributes
    ----------
    cached
        Meanings of earlier compilations.
    used
        The meanings that a compilation needed; it adds them.
    parse
        Returns the declarations of a file, with trees. Names that it also gets are no variables.
    """

    cached: Mapping[str, Meaning] = field(default_factory=dict[str, Meaning])
    used: dict[str, Meaning] = field(default_factory=dict[str, Meaning])
    parse: Callable[..., Iterable[Declaration]] = _never


def _go_on() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Focus:
    """The part of a project that a compilation compiles, if an editor waits for it.

    Attributes
    ----------
    paths
        Only sources of these files are compiled, and those that they read; empty: all.
    proceed
        Called before the meaning of each source; it raises an exception to give up.
    """

    paths: Collection[str] = ()
    proceed: Callable[[], None] = _go_on


_EVERYTHING = Focus()


@dataclass(slots=True, eq=False)
class Unit:
    """A declaration that is being compiled to a source.

    Attributes
    ----------
    full_key
        See `Source.full_key`.
    written
        The declaration as in its file, with unresolved checks.
    compared
        The other sources that its checks read.
    key
        A digest of everything that its meaning depends on: its words, and the keys of its inputs.
    hidden
        The variables that are columns in its query.
    """

    declaration: Declaration
    source_id: SourceID
    asset_key: tuple[str, ...]
    full_key: tuple[str, ...] = ()
    written: Declaration = field(init=False)
    bindings: tuple[SourceID, ...] = ()
    compared: tuple[SourceID, ...] = ()
    broken: bool = False
    key: str = ""
    hidden: tuple[str, ...] = ()
    source: Source | None = None
    meaning: Meaning | None = None
    raw_face: Face | None = None

    def __post_init__(self) -> None:
        self.written = self.declaration

    def face(self) -> Face:
        """Return its interface for readers."""
        face = self.raw_face if self.meaning is None else self.meaning.shown()
        assert face is not None
        return face

    def names(self) -> tuple[str, ...] | None:
        """Return the names of the columns that readers see; None: they are not known."""
        if self.meaning is not None:
            return self.meaning.names
        assert self.raw_face is not None
        return self.raw_face.names


def _bare(declaration: Declaration) -> Declaration:
    """Return a declaration whose query has no tree."""
    query = declaration.query
    if query is None or query.tree is None:
        return declaration
    return replace(declaration, query=replace(query, tree=None))


@dataclass(slots=True)
class Compilation:
    """The state of the compilation of a project's declarations.

    Attributes
    ----------
    units
        The units by SourceID, each after those it reads.
    followed
        Whether a source is incremental, so that the growth of rows has to be analysed.
    former
        A compilation of most of these declarations; its results still hold.
    doubts
        Sources whose references may mean other sources, in files with errors; and these sources.
    unread
        Asset keys, without names of sources, of unreadable files.
    functions
        The functions besides Spark's own that queries may call; None: any.
    definitions
        The functions and variables that conditions of checks may use.
    focus
        What of it is compiled; other units get no source.
    shown_types
        The types of columns that Malloy gets, by the keys of units (`shown_types.py`).
    """

    connection: str
    raws: Mapping[SourceID, RawFacts]
    problems: list[Problem]
    memory: Memory
    trees: dict[SourceID, Query | None] = field(default_factory=dict)
    units: dict[SourceID, Unit] = field(default_factory=dict)
    names: Names = field(default_factory=lambda: Names(()))
    followed: bool = False
    former: Compilation | None = None
    doubts: dict[SourceID, tuple[SourceID, ...]] = field(default_factory=dict)
    unread: tuple[tuple[str, ...], ...] = ()
    functions: Collection[str] | None = None
    definitions: Definitions = NO_DEFINITIONS
    focus: Focus = _EVERYTHING
    shown_types: dict[str, tuple[str | None, ...]] = field(
        default_factory=dict[str, tuple[str | None, ...]]
    )

    def report(self, code: str, message: str, unit: Unit, hint: str | None = None) -> None:
        """Add a problem of a whole declaration, which breaks it."""
        self.problems.append(Problem(code, message, unit.declaration.location, hint))
        unit.broken = True

    @contextmanager
    def contained(self, unit: Unit) -> Generator[None]:
        """Turn an unexpected exception into a problem of one declaration."""
        try:
            yield
        except RecursionError:
            # Whether it occurs depends on the caller, so it may refuse, but never decide a meaning.
            hint = "name parts of it: WITH … AS (…)"
            self.report("nesting", "the nesting is too deep", unit, hint)
        except PersistError:
            raise
        except Exception as error:
            subject = f"`{unit.declaration.name}`"
            self.problems.append(unexpected(error, subject, unit.declaration.location))
            unit.broken, unit.source, unit.meaning = True, None, None

    def parsed(self, unit: Unit) -> Query | None:
        """Return the query of a unit with its tree, by parsing its file again."""
        if unit.source_id not in self.trees:
            path = unit.declaration.location.path
            declared = {source_id(d): d.query for d in self.memory.parse(path, unit.hidden)}
            if unit.hidden:
                declared = {unit.source_id: declared[unit.source_id]}
            self.trees = {**declared, **self.trees}
        return self.trees[unit.source_id]

    def focused(self) -> Collection[Unit]:
        """Return the units to compile, in order."""
        if not self.focus.paths:
            return self.units.values()
        needed: set[SourceID] = set()
        for unit in reversed(self.units.values()):  # each before those it reads
            if unit.source_id in needed or unit.declaration.location.path in self.focus.paths:
                needed.update((unit.source_id, *unit.bindings, *unit.compared))
        return [unit for unit in self.units.values() if unit.source_id in needed]

    @property
    def project(self) -> Project:
        """All sources that could be compiled, and all problems."""
        doubtful = {*self.doubts}
        for unit in self.units.values() if doubtful else ():  # each after all it reads
            if not doubtful.isdisjoint((*unit.bindings, *unit.compared)):
                doubtful.add(unit.source_id)
        compiled = {s: u.source for s, u in self.units.items() if s not in doubtful}
        sources = tuple(source for source in compiled.values() if source is not None)
        unique = in_order({*self.problems})
        broken = tuple(
            as_broken(u, (*u.bindings, *u.compared, *self.doubts.get(s, ())))
            for s, u in self.units.items()
            if compiled.get(s) is None
        )
        return Project(sources, tuple(unique), broken=broken, unread=self.unread)

    def knows(self, references: Iterable[Reference]) -> bool:
        """Whether every name in a Malloy query means a compiled source."""
        matches = (self.names.find(r, None, MALLOY) for r in references)
        return all(len(f) == 1 and self.units[f[0][1]].source is not None for f in matches)

    @property
    def externals(self) -> frozenset[SourceID]:
        """The external tables that compile."""
        sources = ((s, u.source) for s, u in self.units.items())
        return frozenset(s for s, source in sources if source and source.external)

    def needs(self, tables: Collection[SourceID]) -> tuple[Need, ...]:
        """Return the needs of each persisted source from the given external tables.

        They are in the order of the sources, each after its inputs. Files are parsed again if the
        meanings of their queries were cached.
        """
        relations = self._relations(tables)
        inlined = {s: r for s, r in relations.items() if not self.units[s].declaration.persisted}
        needs: list[Need] = []
        for reader, relation in relations.items():
            if reader not in inlined:
                with self.contained(self.units[reader]):
                    needs += find_needs(reader, {**inlined, reader: relation}, tables)
        return tuple(needs)

    def needs_of_source(
        self, source_id: SourceID, tables: Collection[SourceID]
    ) -> tuple[Need, ...]:
        """Return the needs of all rows of a source from tables; its readers may need less."""
        relations = self._relations(tables)
        if source_id not in relations:
            return ()
        inlined = {s: r for s, r in relations.items() if not self.units[s].declaration.persisted}
        return find_needs(source_id, {**inlined, source_id: relations[source_id]}, tables)

    def needs_of(
        self, query: Query, bindings: Sequence[SourceID], tables: Collection[SourceID]
    ) -> tuple[Need, ...]:
        """Return the needs of a query that is in no file of the project.

        Parameters
        ----------
        query
            The query, with its tree.
        bindings
            The SourceIDs of its references; see `resolve_query`.
        """
        relations = self._relations(tables)
        inlined = {s: r for s, r in relations.items() if not self.units[s].declaration.persisted}
        relation = relate(query, "query", [self._leaf(b) for b in bindings])
        return find_needs("query", {**inlined, "query": relation}, tables)

    def _relations(self, tables: Collection[SourceID]) -> Mapping[SourceID, Relation]:
        """Return the relations of all sources that read tables, directly or by unpersisted sources.

        Each is after its inputs.
        """
        relations: dict[SourceID, Relation] = {}
        ends = {*tables}
        for reader, unit in self.units.items():
            if unit.source is None or ends.isdisjoint(unit.bindings):
                continue
            if any(self.units[b].source is None for b in unit.bindings):
                continue  # it has failed since
            with self.contained(unit):
                relations[reader] = self._relation(unit)
            if not unit.declaration.persisted:
                ends.add(reader)
        return relations

    def _relation(self, unit: Unit) -> Relation:
        query, function = unit.declaration.query, unit.declaration.function
        if unit.source is not None and function is not None:
            function = unit.source.function or function  # it knows which columns it gets
            frames = zip(unit.bindings, function.frames, strict=True)
            inputs = [self._leaf(binding, frame.columns) for binding, frame in frames]
            return opaque(inputs, "it is read by a Python function")
        assert query is not None
        if query.tree is None:
            query = self.parsed(unit)
        assert query is not None
        faces = [self._leaf(b) for b in unit.bindings]
        return relate(query, unit.declaration.location.path, faces)

    def remember(
        self, packed: Mapping[str, Meaning], is_saved: bool, former: Collection[str]
    ) -> int:
        """Keep the meanings in their stored form: most are not asked for again.

        Parameters
        ----------
        packed, is_saved
            What `save_cache` returns.
        former
            The keys of the meanings that were stored before.

        Returns
        -------
        n
            The number of meanings that are stored now, and were not.
        """
        self.memory.used.update(packed)
        for unit in self.units.values():
            unit.meaning = packed.get(unit.key, unit.meaning)
        return len(packed.keys() - {*former}) if is_saved else 0

    def forget_trees(self) -> None:
        """Drop the trees of all queries; they are parsed again where they are needed."""
        self.trees.clear()
        for unit in self.units.values():
            unit.written = _bare(unit.written)
            unit.declaration = _bare(unit.declaration)

    def definition(self, source_id: SourceID, *, printed: bool = True) -> Staged:
        """Return the query of a source over the tables that it reads.

        Parameters
        ----------
        printed
            Whether it will be printed; otherwise it may call functions in Python.

        Raises
        ------
        NoRule
            It has none that can be analyzed and printed.
        """
        faces: dict[SourceID, Face] = {}
        stack = [source_id]
        while stack:
            unit = self.units[stack[-1]]
            inlined = [b for b in dict.fromkeys(unit.bindings) if self._is_inlined(b)]
            below = [b for b in inlined if b not in faces]
            if below:
                stack += below
                continue
            stack.pop()
            query = unit.declaration.query
            if unit.source is None or unit.declaration.function is not None or query is None:
                raise NoRule(f"`{unit.declaration.name}` is computed by a Python function")
            if printed and (name := python_function(query.text)):
                raise NoRule(f"of `{name}`, a function in Python")
            if query.tree is None:
                query = self.parsed(unit)
            assert query is not None
            upstream = [faces.get(b) or self._leaf(b) for b in unit.bindings]
            path = unit.declaration.location.path
            definition = define(query, path, upstream, self._locate(unit))
            if unit.source_id == source_id:
                if printed:
                    return checked(definition, parse_query, self._leaf)
                return staged(definition.block, definition.types)
            faces[unit.source_id] = definition.face(self._leaf(unit.source_id))
        raise AssertionError(source_id)

    def unsteady_calls(self, source_id: SourceID) -> list[tuple[str, Location]]:
        """Return the calls in a query, and in those inlined in it, that differ between builds.

        These are nondeterministic, or read the session or the clock.
        """
        calls: list[tuple[str, Location]] = []
        visited: set[SourceID] = set()
        stack = [source_id]
        while stack:
            unit = self.units[stack.pop()]
            source, query = unit.source, unit.declaration.query
            if unit.source_id in visited or source is None or query is None or source.function:
                continue
            visited.add(unit.source_id)
            stack += [b for b in unit.bindings if self._is_inlined(b)]
            if not (source.volatile or source.reads_clock):
                continue
            query = query if query.tree is not None else self.parsed(unit)
            assert query is not None
            reads = (self.units[b].source for b in unit.bindings)
            names = {c.name.lower() for read in reads if read for c in read.known_columns}
            for name, node in calls_in(query.tree, names):
                if name in UNSTEADY and not (name == "unix_timestamp" and node.expressions):
                    calls.append((name, self._locate(unit)(node)))
        return calls

    def _locate(self, unit: Unit) -> Callable[[Any], Location]:
        """Return a function for the places of the parts of a unit's tree."""
        place = unit.declaration.location
        # Nobody has seen the lines of the SQL that Malloy's compiler writes.
        if unit.declaration.language == MALLOY:
            return lambda _: place
        return lambda node: first_place(place.path, node.walk())

    def _is_inlined(self, source_id: SourceID) -> bool:
        declaration = self.units[source_id].declaration
        return not declaration.persisted and declaration.raw is None

    def _leaf(self, source_id: SourceID, only: Container[str] | None = None) -> Face:
        read = self.units[source_id].source
        assert read is not None  # otherwise its readers would not be compiled
        kinds = [(c.name, c.type) for c in read.columns]
        # The types of a contract are not certain: a published table may violate a new one.
        kinds = kinds or [(c.name, None) for c in read.known_columns]
        face = leaf(source_id, [(n, k) for n, k in kinds if only is None or n in only])
        return replace(face, is_ordered=bool(read.columns))


def as_broken(source: Source | Unit, reads: Iterable[SourceID]) -> Broken:
    """Return the placeholder for a broken source."""
    declared = source.declaration if isinstance(source, Unit) else source
    return Broken(
        source.source_id,
        source.asset_key,
        declared.language,
        declared.location,
        declared.description,
        tuple(dict.fromkeys(reads)),
        source.full_key,
    )
