"""Declarations of all files → one `Project`. Pure.

An ordered tuple of passes over one compilation: names are resolved, sources put in order,
queries bound, digested and checked against their annotations. The invariant: every problem of
every file is found in one go, each is reported once, and what depends on something broken is
left out in silence.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from unicodedata import normalize

from sqlglot import exp

from persist_assets.analysis.algebra import Given
from persist_assets.analysis.binding import Face
from persist_assets.analysis.functions import (
    AGGREGATES,
    CLOCK,
    GENERATORS,
    SESSION,
    VOLATILE,
    drawn_by,
)
from persist_assets.analysis.pushdown.needs import leaf, opaque, relate
from persist_assets.analysis.pushdown.search import find_needs
from persist_assets.analysis.semantics import (
    Meaning,
    Upstream,
    narrowed,
    own_origins,
    understand,
    understand_function,
)
from persist_assets.analysis.syntax import called
from persist_assets.compiler.malloy.declarations import ALL_ROWS_OF, SUFFIX
from persist_assets.core.contracts import breaches, incomparable, listed, promised_by
from persist_assets.core.dialect import char_size, function_named, parse, plain
from persist_assets.core.digests import digest
from persist_assets.core.errors import (
    Location,
    PersistError,
    Problem,
    SourcesError,
    did_you_mean,
    unexpected,
)
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.columns import Column, ColumnRef, shortened
from persist_assets.core.model.project import Broken, Project, may_mean
from persist_assets.core.model.queries import Reference
from persist_assets.core.model.sources import FILE_FORMATS, Declaration, Source
from persist_assets.core.partitions import limits, misfit, spelled_bounds
from persist_assets.core.time_values import TIMES, is_ordered
from persist_assets.planning.increments import column_type, obstacle, time_type

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from persist_assets.analysis.pushdown.needs import Need, Relation
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.queries import Query, SourceID


@dataclass(frozen=True, slots=True)
class RawFacts:
    """What is known of a raw table besides its declaration.

    Attributes
    ----------
    place
        Its location in a form that means the same data wherever digests are compared.
    columns
        As declared or, where nothing is declared, as found in the data; None if that failed,
        which has been reported.
    options
        Its options without secrets.
    """

    place: str
    columns: tuple[Column, ...] | None
    options: tuple[tuple[str, str], ...] = ()


def _never(path: str) -> Iterable[Declaration]:
    raise AssertionError(f"{path} was declared without trees")


@dataclass(frozen=True, slots=True)
class Memory:
    """What queries mean, as far as it is known.

    Attributes
    ----------
    before
        From earlier compilations, by keys that hold all that a meaning follows from.
    known
        Filled by a compilation with all that it needed.
    parse
        Returns the declarations of a file, with trees.
    """

    before: Mapping[str, Meaning] = field(default_factory=dict[str, Meaning])
    known: dict[str, Meaning] = field(default_factory=dict[str, Meaning])
    parse: Callable[[str], Iterable[Declaration]] = _never


@dataclass(slots=True, eq=False)
class _Unit:
    """A declaration on its way to become a source.

    Attributes
    ----------
    written
        The declaration as its file has it; checks are not resolved in it.
    compared
        Other sources that its checks look at.
    key
        Digest of all that its meaning follows from: its words, and the keys of what it reads.
    """

    declaration: Declaration
    source_id: SourceID
    asset_key: tuple[str, ...]
    written: Declaration = field(init=False)
    bindings: tuple[SourceID, ...] = ()
    compared: tuple[SourceID, ...] = ()
    broken: bool = False
    key: str = ""
    source: Source | None = None
    meaning: Meaning | None = None
    raw_face: Face | None = None

    def __post_init__(self) -> None:
        self.written = self.declaration

    def face(self) -> Face:
        """Return what its readers see."""
        face = self.raw_face if self.meaning is None else self.meaning.shown()
        assert face is not None
        return face


@dataclass(slots=True)
class Compilation:
    """All that is known of the declarations of a project.

    Attributes
    ----------
    units
        By SourceID, every one after all it reads.
    followed
        Whether a source is incremental, so that it is asked how rows follow from others.
    former
        A compilation of most of these declarations; what it found out about them still holds.
    doubts
        Sources that may read others than they do, for all that files with errors tell, and
        which these are.
    unread
        Asset keys of files that cannot be read, without a name.
    """

    sources_dir: str
    connection: str
    raws: Mapping[SourceID, RawFacts]
    problems: list[Problem]
    memory: Memory
    trees: dict[SourceID, Query | None] = field(default_factory=dict)
    units: dict[SourceID, _Unit] = field(default_factory=dict)
    names: _Names = field(default_factory=lambda: _Names(()))
    followed: bool = False
    former: Compilation | None = None
    doubts: dict[SourceID, tuple[SourceID, ...]] = field(default_factory=dict)
    unread: tuple[tuple[str, ...], ...] = ()

    def report(self, code: str, message: str, unit: _Unit, hint: str | None = None) -> None:
        """Add a problem of a whole declaration, which breaks it."""
        self.problems.append(Problem(code, message, unit.declaration.location, hint))
        unit.broken = True

    @contextmanager
    def contained(self, unit: _Unit) -> Generator[None]:
        """Turn an exception that nobody expects into a problem of one declaration."""
        try:
            yield
        except RecursionError:
            # Whether it comes depends on who calls us: it may refuse, never decide meaning.
            hint = "give parts of it names: WITH … AS (…)"
            self.report("nesting", "this is nested too deeply to be read", unit, hint)
        except PersistError:
            raise
        except Exception as error:
            what = f"`{unit.declaration.name}`"
            self.problems.append(unexpected(error, what, unit.declaration.location))
            unit.broken, unit.source, unit.meaning = True, None, None

    def parsed(self, unit: _Unit) -> Query | None:
        """Return the query of a unit with its tree, by parsing its file again."""
        if unit.source_id not in self.trees:
            declared = self.memory.parse(unit.declaration.location.path)
            self.trees |= {source_id(d): d.query for d in declared}
        return self.trees[unit.source_id]

    @property
    def project(self) -> Project:
        """All sources that could be compiled, and all problems."""
        doubtful = {*self.doubts}
        for unit in self.units.values() if doubtful else ():  # each after all it reads
            if not doubtful.isdisjoint((*unit.bindings, *unit.compared)):
                doubtful.add(unit.source_id)
        compiled = {s: u.source for s, u in self.units.items() if s not in doubtful}
        sources = tuple(source for source in compiled.values() if source is not None)
        unique = sorted(set(self.problems), key=lambda p: (p.location, p.code, p.message))
        broken = tuple(
            as_broken(u, (*u.bindings, *u.compared, *self.doubts.get(s, ())))
            for s, u in self.units.items()
            if compiled.get(s) is None
        )
        return Project(sources, tuple(unique), broken=broken, unread=self.unread)

    def knows(self, references: Iterable[Reference]) -> bool:
        """Whether each name in a query of Malloy's means a source that is compiled."""
        found = (self.names.find(r, None, MALLOY) for r in references)
        return all(len(f) == 1 and self.units[f[0][1]].source is not None for f in found)

    def describe(self, query: Query) -> Sequence[Column] | Sequence[Problem]:
        """Return the columns of a query that Malloy asks for, or what is wrong with it.

        Where all rows of one source are asked for, a type that is not certain is the one that
        the source's own language takes it for.
        """
        place = query.references[0].location if query.references else Location("query")
        declaration = Declaration("query", MALLOY, place, query=query)
        unit, before = _Unit(declaration, source_id(declaration), ("query",)), len(self.problems)
        _resolve(self, unit)
        read = [self.units[b] for b in unit.bindings]
        unit.broken |= any(u.broken for u in read)
        whole = query.text.startswith(ALL_ROWS_OF)
        if not (unit.broken or whole):
            with self.contained(unit):
                _compile_query(self, unit)
        found, self.problems[before:] = self.problems[before:], []
        source = read[0].source if whole and not unit.broken else unit.source
        if source is not None and not source.columns:
            name = read[0].declaration.name if read else "query"
            message = f"the columns of `{name}` are not known before it is computed"
            hint = f"name them in SQL: CREATE VIEW … AS SELECT a, b FROM {name}"
            return [Problem("columns", message, place, hint)]
        if source is None:
            return found
        taken = {c.name.lower(): c.type for c in read[0].declaration.columns} if whole else {}
        return tuple(replace(c, type=c.type or taken.get(c.name.lower())) for c in source.columns)

    @property
    def externals(self) -> frozenset[SourceID]:
        """The external tables that compile."""
        found = ((s, u.source) for s, u in self.units.items())
        return frozenset(s for s, source in found if source and source.external)

    def needs(self, tables: Collection[SourceID]) -> tuple[Need, ...]:
        """Return what each persisted source needs of tables that are asked about.

        In the order of the sources, each after all it reads. Files are parsed again where what
        their queries mean was remembered.
        """
        found = self._relations(tables)
        inlined = {s: r for s, r in found.items() if not self.units[s].declaration.persisted}
        needs: list[Need] = []
        for reader, relation in found.items():
            if reader not in inlined:
                with self.contained(self.units[reader]):
                    needs += find_needs(reader, {**inlined, reader: relation}, tables)
        return tuple(needs)

    def needs_of_source(
        self, source_id: SourceID, tables: Collection[SourceID]
    ) -> tuple[Need, ...]:
        """Return what all rows of a source need of tables, as its readers may not."""
        found = self._relations(tables)
        if source_id not in found:
            return ()
        inlined = {s: r for s, r in found.items() if not self.units[s].declaration.persisted}
        return find_needs(source_id, {**inlined, source_id: found[source_id]}, tables)

    def needs_of(
        self, query: Query, bindings: Sequence[SourceID], tables: Collection[SourceID]
    ) -> tuple[Need, ...]:
        """Return what a query needs that stands in no file of the project.

        Parameters
        ----------
        query
            With its tree.
        bindings
            What its references mean; see `resolve_query`.
        """
        found = self._relations(tables)
        inlined = {s: r for s, r in found.items() if not self.units[s].declaration.persisted}
        relation = relate(query, "query", [self._leaf(b) for b in bindings])
        return find_needs("query", {**inlined, "query": relation}, tables)

    def _relations(self, tables: Collection[SourceID]) -> Mapping[SourceID, Relation]:
        """Return the relations of all sources that read tables, or what is not persisted of these.

        Each after all it reads.
        """
        found: dict[SourceID, Relation] = {}
        ends = {*tables}
        for source_id, unit in self.units.items():
            if unit.source is None or ends.isdisjoint(unit.bindings):
                continue
            if any(self.units[b].source is None for b in unit.bindings):
                continue  # it failed meanwhile
            with self.contained(unit):
                found[source_id] = self._relation(unit)
            if not unit.declaration.persisted:
                ends.add(source_id)
        return found

    def _relation(self, unit: _Unit) -> Relation:
        query, function = unit.declaration.query, unit.declaration.function
        if unit.source is not None and function is not None:
            function = unit.source.function or function  # it knows which columns it is given
            frames = zip(unit.bindings, function.frames, strict=True)
            given = [self._leaf(binding, frame.columns) for binding, frame in frames]
            return opaque(given, "it is read by a function of Python")
        assert query is not None
        if query.tree is None:
            query = self.parsed(unit)
        assert query is not None
        faces = [self._leaf(b) for b in unit.bindings]
        return relate(query, unit.declaration.location.path, faces)

    def _leaf(self, source_id: SourceID, only: Container[str] | None = None) -> Face:
        read = self.units[source_id].source
        assert read is not None  # or who reads it would not be compiled
        kinds = ((c.name, c.type) for c in read.columns)
        return leaf(source_id, [(n, k) for n, k in kinds if only is None or n in only])


def as_broken(source: Source | _Unit, reads: Iterable[SourceID]) -> Broken:
    """Return what stands for a source that is not sound."""
    declared = source.declaration if isinstance(source, _Unit) else source
    return Broken(
        source.source_id,
        source.asset_key,
        declared.language,
        declared.location,
        declared.description,
        tuple(dict.fromkeys(reads)),
    )


def source_id(declaration: Declaration) -> SourceID:
    """Return the SourceID of a declaration: ``name@path``."""
    return f"{declaration.name}@{declaration.location.path}"


def asset_key(
    declaration: Declaration, sources_dir: str, prefix: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the asset key of a declaration: a prefix, its path without suffix, and its name."""
    return (*_file_key(declaration.location.path, sources_dir, prefix), declaration.name)


def _file_key(path: str, sources_dir: str, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the asset keys of a file's sources begin with."""
    relative = PurePosixPath(path).relative_to(sources_dir)
    return (*prefix, *relative.with_suffix("").parts)


def compile_project(
    declarations: Iterable[Declaration],
    *,
    sources_dir: str,
    connection: str,
    raws: Mapping[SourceID, RawFacts],
    problems: Iterable[Problem] = (),
    memory: Memory | None = None,
    key_prefix: tuple[str, ...] = (),
    former: Compilation | None = None,
    unread: Iterable[str] = (),
) -> Compilation:
    """Compile declarations.

    Parameters
    ----------
    declarations
        Of all files, in any order.
    sources_dir
        Where asset keys start, relative to the project root.
    connection
        Digest of everything about the session that changes results.
    raws
        For every raw table what is known of it.
    problems
        Already found by the frontends; they become the project's.
    memory
        Of earlier compilations; the queries of declarations may be without trees then.
    key_prefix
        What asset keys begin with.
    former
        A compilation of most of these declarations, of which nothing is compiled a second time.
        The result is a draft: it tells columns, and lacks problems and checks.
    unread
        Paths of files that cannot be read, which is among the problems.

    """
    memory = memory or Memory()
    compilation = Compilation(sources_dir, connection, raws, list(problems), memory)
    compilation.former = former
    compilation.unread = tuple(_file_key(p, sources_dir, key_prefix) for p in unread)
    ordered = sorted(
        declarations, key=lambda d: (d.location.path, d.location.line, d.location.column)
    )
    compilation.followed = any(
        d.annotation.refresh == "incremental" or d.annotation.partition for d in ordered
    )
    _collect(compilation, ordered, key_prefix)
    for compile_pass in PASSES if former is None else DRAFT_PASSES:
        compile_pass(compilation)
    compilation.former = None  # it would keep all earlier ones alive
    return compilation


def _collect(
    compilation: Compilation, declarations: Iterable[Declaration], key_prefix: tuple[str, ...]
) -> None:
    """Give declarations their asset keys, and refuse those that are told apart by spelling only.

    Tables and files of two such sources would be one where a store does not mind capital letters,
    or composes accents in its own way.
    """
    taken: dict[tuple[str, ...], _Unit] = {}
    for declaration in declarations:
        unit = _Unit(
            declaration,
            source_id(declaration),
            asset_key(declaration, compilation.sources_dir, key_prefix),
            broken=declaration.query is None and declaration.raw is None,
        )
        key = tuple(normalize("NFC", part).lower() for part in unit.asset_key)
        if key in taken:
            other = taken[key].declaration
            compilation.report(
                "duplicate-name",
                f"`{declaration.name}` is defined already at {other.location}",
                unit,
            )
            # Which one of them is right nobody knows.
            compilation.doubts[taken[key].source_id] = (unit.source_id,)
            continue
        taken[key] = compilation.units[unit.source_id] = unit


# ------------------------------------------------------------------------------ names and order


class _Names:
    """What names mean: the sources of a project by the last part of their asset keys."""

    def __init__(
        self,
        keys: Iterable[tuple[tuple[str, ...], SourceID]],
        guessed: Collection[SourceID] = (),
        unread: Collection[tuple[str, ...]] = (),
    ) -> None:
        self.by_name: dict[str, list[tuple[tuple[str, ...], SourceID]]] = {}
        self.guessed, self.unread = guessed, unread
        self.known: set[SourceID] = set()
        for key, source_id in keys:
            self.by_name.setdefault(key[-1].lower(), []).append((key, source_id))
            self.known.add(source_id)

    def resolve(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> SourceID | Problem:
        """Return what a reference in the file `path` means.

        Its own file's sources come first; but what Malloy calls a table is no source of Malloy
        where there is another one. A SourceID means itself.
        """
        fits = self.find(reference, path, language)
        if len(fits) == 1:
            return fits[0][1]
        if _is_source_id(reference):
            return self._unknown_id(reference.parts[0], reference.location)
        parts = tuple(part.lower() for part in reference.parts)
        written = ".".join(reference.parts)
        if fits:
            names = ", ".join(".".join(key) for key, _ in fits)
            message = f"`{written}` may be any of {names}"
            return Problem("ambiguous-name", message, reference.location, "qualify it")
        hint = did_you_mean(
            reference.parts[-1], {k[-1] for many in self.by_name.values() for k, _ in many}
        )
        if len(reference.parts) == 2 and parts[0] in ("delta", *FILE_FORMATS):
            hint = f"declare it: CREATE TABLE … USING {parts[0]} LOCATION '{reference.parts[1]}'"
        elif hint is None:
            hint = "data from outside is declared with CREATE TABLE … USING … LOCATION"
        message = f"`{written}` is not a source of this project"
        return Problem("unknown-name", message, reference.location, hint)

    def find(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> list[tuple[tuple[str, ...], SourceID]]:
        """Return what a reference may mean: asset keys, or what it is itself, and SourceIDs.

        What is guessed means nothing where something else has its name; see `others`.
        """
        every = self._fitting(reference, path, language)
        return [(k, s) for k, s in every if s not in self.guessed] or every

    def others(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> tuple[SourceID, ...] | None:
        """Return what else a reference may mean, as far as that has a name; None: nothing."""
        if not (self.guessed or self.unread) or _is_source_id(reference):
            return None
        every = [s for _, s in self._fitting(reference, path, language)]
        above = reference.parts[:-1]
        is_own = not above and any(s.partition("@")[2] == path for s in every)
        elsewhere = not is_own and any(may_mean(key, above) for key in self.unread)
        return tuple(every) if len(every) > 1 or elsewhere else None

    def _fitting(
        self, reference: Reference, path: str | None, language: str | None
    ) -> list[tuple[tuple[str, ...], SourceID]]:
        if _is_source_id(reference):
            written = reference.parts[0]
            return [((written,), written)] if written in self.known else []
        parts = tuple(part.lower() for part in reference.parts)
        named = self.by_name.get(parts[-1], [])
        fits = [(k, s) for k, s in named if tuple(p.lower() for p in k[-len(parts) :]) == parts]
        if language == MALLOY:
            fits = [(k, s) for k, s in fits if not s.endswith(SUFFIX)] or fits
        elif len(parts) == 1:
            own = [(k, s) for k, s in fits if s.partition("@")[2] == path]
            fits = own or fits
        return fits

    def _unknown_id(self, written: SourceID, place: Location) -> Problem:
        path = written.rpartition("@")[2]
        hint = did_you_mean(written, self.known)
        if path.endswith(SUFFIX) and not any(k.endswith(f"@{path}") for k in self.known):
            hint = f"move {path} below the sources directory"
        message = f"`{written}` is not a source of this project"
        return Problem("unknown-name", message, place, hint)


def _is_source_id(reference: Reference) -> bool:
    return len(reference.parts) == 1 and "@" in reference.parts[0]


def _resolve_names(compilation: Compilation) -> None:
    units = compilation.units.values()
    # Of a file that does not compile nobody knows which of its sources stand for rows.
    guessed = {u.source_id for u in units if u.broken}
    keys = ((u.asset_key, u.source_id) for u in units)
    compilation.names = _Names(keys, guessed, compilation.unread)
    for unit in units:
        with compilation.contained(unit):
            _resolve(compilation, unit)
            if compilation.former is None:
                _resolve_checks(compilation, unit)


def _resolve_checks(compilation: Compilation, unit: _Unit) -> None:
    """Find what checks look at besides the rows of a source."""
    annotation = unit.declaration.annotation
    if all(c.alone for c in annotation.checks):
        return
    found: list[Check] = []
    for check in annotation.checks:
        if check.kind == "relationship":
            check = _with_other(compilation, unit, check)
        elif check.kind == "function":
            check = _with_effects(check)
        found.append(check)
    annotation = replace(annotation, checks=tuple(found))
    unit.declaration = replace(unit.declaration, annotation=annotation)
    others = (c.against.source_id for c in found if c.against is not None)
    unit.compared = tuple(dict.fromkeys(s for s in others if s != unit.source_id))


def _with_other(compilation: Compilation, unit: _Unit, check: Check) -> Check:
    """Return a check against a column of a source that knows which source that is."""
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
    """Return a check by a function that knows whether it may say something else each time."""
    function = check.function
    if function is None:
        return check  # nobody knows it, which has been reported
    effects = drawn_by(function.names, function.methods, function.calls)
    return replace(check, fickle=any(effects))


def _resolve(compilation: Compilation, unit: _Unit) -> None:
    declared = unit.declaration
    references = declared.query.references if declared.query else ()
    names, path, language = compilation.names, declared.location.path, declared.language
    if compilation.former is not None:  # nobody reads what would be said of names
        fits = [names.find(r, path, language) for r in references]
        unit.broken |= any(len(f) != 1 for f in fits)
        unit.bindings = tuple(f[0][1] for f in fits if len(f) == 1)
        return
    found = [names.resolve(r, path, language) for r in references]
    wrong = [f for f in found if isinstance(f, Problem)]
    compilation.problems += wrong
    unit.broken |= bool(wrong)
    unit.bindings = tuple(f for f in found if not isinstance(f, Problem))
    for reference in references:
        _doubt(compilation, unit, reference, language)


def _doubt(
    compilation: Compilation, unit: _Unit, reference: Reference, language: str | None
) -> None:
    """Note what else a reference of a unit may mean, for all that files with errors tell."""
    others = compilation.names.others(reference, unit.declaration.location.path, language)
    if others is not None:
        before = compilation.doubts.get(unit.source_id, ())
        compilation.doubts[unit.source_id] = (*before, *others)


def resolve_query(
    project: Project, query: Query, language: str | None = None
) -> tuple[SourceID, ...]:
    """Return what the references of a query mean that stands in no file of the project.

    That may be broken sources of the project, which are not in its `by_id`.

    Parameters
    ----------
    language
        Of its author.

    Raises
    ------
    SourcesError
        Some mean nothing.
    """
    every = (*project.sources, *project.broken)  # a name means no other source if one is broken
    names = _Names(((s.asset_key, s.source_id) for s in every), unread=project.unread)
    found = [names.resolve(reference, None, language) for reference in query.references]
    wrong = [f for f in found if isinstance(f, Problem)]
    for reference, source_id in zip(query.references, found, strict=True):
        if not isinstance(source_id, Problem):
            wrong += _hidden_versions(language, reference, project.by_id.get(source_id))
            if names.others(reference, None, language) is not None:
                message = f"`{'.'.join(reference.parts)}` may be in a file that cannot be read"
                hint = "qualify it, or mend that file"
                wrong.append(Problem("ambiguous-name", message, reference.location, hint))
    if wrong:
        raise SourcesError(wrong)
    return tuple(f for f in found if not isinstance(f, Problem))


def _put_in_order(compilation: Compilation) -> None:
    """Put every unit after those it reads; report cycles; spread brokenness to readers."""
    done: dict[SourceID, _Unit] = {}
    for start in compilation.units.values():
        trail: dict[SourceID, _Unit] = {}
        stack: list[tuple[_Unit, bool]] = [(start, False)]
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


def _report_cycle(compilation: Compilation, cycle: Sequence[_Unit]) -> None:
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
            message = f"a check looks at what is computed from the rows that it is of: {path}"
            hint = "check what comes of them instead"
            place = place or unit.declaration.location
            compilation.problems.append(Problem("cycle", message, place, hint))
            return
    first = min(cycle, key=lambda u: u.declaration.location)
    compilation.report("cycle", f"sources read each other in a circle: {path}", first)


# -------------------------------------------------------------------------------------- meaning


def _take_over(compilation: Compilation) -> None:
    """Let units be what they were in the former compilation, where they read what they read there.

    Its declarations are the same objects; two that are equal would be compiled a second time.
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


def _compile_meaning(compilation: Compilation) -> None:
    for unit in compilation.units.values():
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


_BY_NAME = ("parquet", "delta", "orc")
"""Formats whose columns are found by name: a column more changes nothing for the others."""


def _compile_raw(compilation: Compilation, unit: _Unit) -> None:
    declaration, facts = unit.declaration, compilation.raws[unit.source_id]
    raw = declaration.raw
    if raw is None or facts.columns is None:
        unit.broken = True
        return
    if raw.external is not None:
        for text in (raw.external.filter, raw.external.snapshot_filter):
            if text is None:
                continue
            unfit = _unfit_condition(text, CLOCK | VOLATILE | SESSION, facts.columns)
            if unfit:
                hint = "put it into a view over the table"
                compilation.report("external-filter", f"a filter: {unfit}", unit, hint)
                return
    fields = [f"{c.name} {c.type}" for c in facts.columns]
    identity = ["raw", compilation.connection, raw.format, facts.place, facts.options]
    if any(char_size(c.type) for c in facts.columns):
        identity.append("CHAR is padded")  # earlier releases did not
    is_by_name = raw.format in _BY_NAME
    rows = digest(*identity, [] if is_by_name else fields)
    columns = tuple(digest("column", rows, c.name.lower(), c.type) for c in facts.columns)
    # Columns that are found, and not declared, may come while the data is the same.
    declared = fields if declaration.columns or not is_by_name else "columns as they come"
    source = Source(
        source_id=unit.source_id,
        asset_key=unit.asset_key,
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
    given = Given(
        rows,
        columns,
        None,
        own_origins(source.source_id, (c.name for c in facts.columns)),
        tuple(c.type for c in facts.columns),
    )
    unit.raw_face = Face(None, given, tuple(c.name for c in facts.columns) or None)


def _compile_function(compilation: Compilation, unit: _Unit) -> None:
    declaration = unit.declaration
    query = declaration.query
    assert query is not None
    assert declaration.function is not None
    upstream = _upstream(compilation, unit)
    shown = narrowed(declaration.function, [u.face.names for u in upstream])
    declaration = replace(declaration, function=shown)
    meaning = understand_function(declaration, upstream, compilation.connection)
    unit.meaning = meaning
    for note in meaning.notes:
        message, place = f"`{declaration.name}` {note}", declaration.location
        hint = "let what it returns follow from its parameters alone"
        compilation.problems.append(
            Problem("python-nondeterministic", message, place, hint, severity="warning")
        )
    # What it does not look at may draw lots too.
    above = [compilation.units[b].key for b in unit.bindings]
    unit.key = digest("function", unit.source_id, declaration.persisted, meaning.build_id, above)
    _made(unit, declaration, query, meaning)


def _upstream(compilation: Compilation, unit: _Unit) -> list[Upstream]:
    """Return what the references of a unit's query mean."""
    return [
        Upstream(u.face(), u.source.persisted, u.source.volatile, u.source.reads_clock)
        for u in (compilation.units[b] for b in unit.bindings)
        if u.source is not None
    ]


def _compile_query(compilation: Compilation, unit: _Unit) -> None:
    declaration = unit.declaration
    query = declaration.query
    assert query is not None
    upstream = [compilation.units[b] for b in unit.bindings]
    hidden = [
        problem
        for reference, read in zip(query.references, upstream, strict=True)
        for problem in _hidden_versions(declaration.language, reference, read.source)
    ]
    if hidden:
        compilation.problems += hidden
        unit.broken = True
        return
    unit.key = digest(
        "meaning",
        compilation.connection,
        unit.source_id,
        declaration.persisted,
        (compilation.followed, *_kept_how(declaration)),
        (query.wording, query.lost, query.column_names),
        [u.key for u in upstream],
    )
    meaning = compilation.memory.before.get(unit.key)
    if meaning is None:
        if query.tree is None:
            declaration = replace(declaration, query=compilation.parsed(unit))
        meaning = understand(
            declaration,
            _upstream(compilation, unit),
            compilation.connection,
            followed=compilation.followed,
        )
        if not isinstance(meaning, Meaning):
            if declaration.language == MALLOY:  # nobody has seen the lines of its SQL
                meaning = [replace(p, location=declaration.location) for p in meaning]
            compilation.problems += meaning
            unit.broken = True
            return
    compilation.memory.known[unit.key] = unit.meaning = meaning
    _made(unit, declaration, query, meaning)


def _hidden_versions(
    language: str | None, reference: Reference, source: Source | None
) -> list[Problem]:
    """Return what is wrong where Malloy would take all versions of rows for the rows of now.

    Where it reads a source of its own it knows the columns of the query alone.
    """
    if language != MALLOY or source is None or not source.keeps_history:
        return []
    if "@" not in reference.parts[0]:
        return []
    message = f"this reads all versions of `{source.name}`, and cannot tell which are of now"
    hint = f"read it as a table, with {VALID_FROM} and {VALID_TO}: ….table('{source.name}')"
    return [Problem("versions", message, reference.location, hint)]


def _made(unit: _Unit, declaration: Declaration, query: Query, meaning: Meaning) -> None:
    """Make a unit the source that its declaration means."""
    described = {c.name.lower(): c.description for c in declaration.columns}
    unit.source = Source(
        source_id=unit.source_id,
        asset_key=unit.asset_key,
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
            *_merged_how(declaration),
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
    )


def _kept_how(declaration: Declaration) -> tuple[object, ...]:
    """Return what of an annotation the meaning of a query follows from."""
    annotation = declaration.annotation
    how = (annotation.assume, annotation.goes_on)
    said = (annotation.refresh, annotation.time_column, *how)
    return (*said, *_merged_how(declaration))


def _merged_how(declaration: Declaration) -> tuple[object, ...]:
    """Return what an annotation makes of the rows of a query, besides keeping them."""
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


# ---------------------------------------------------------------------------------- annotations


def _check_annotations(compilation: Compilation) -> None:
    table_names: dict[str, Source] = {}
    tables: dict[str, Source] = {}
    for unit in compilation.units.values():
        with compilation.contained(unit):
            _check_annotation(compilation, unit, tables, table_names)


def _check_annotation(
    compilation: Compilation,
    unit: _Unit,
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
                f"`{other.key}` has the table name `{other.annotation.name}` already, "
                f"at {other.location}"
            )
            compilation.problems.append(Problem("table-name", message, places["name"]))
        other = tables.setdefault(source.build_id, source)
        if other.annotation.name != annotation.name and source.language == MALLOY:
            message = (
                f"`{source.key}` means what `{other.key}` means and is one table with it, "
                f"which has the name `{other.annotation.name}` already, at {other.location}"
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
            message = f"`{annotation.time_column}` is {kind}: nothing is valid from it on"
            hint = "a date or a timestamp says from when on a row is so"
            compilation.problems.append(Problem("watermark", message, place, hint))
    for place, name in wanted:
        compilation.problems += _missing_column(source, name, place)
    if source.keeps_history:
        made = {VALID_FROM, VALID_TO}
        named = {k: [v] for k, v in (("watermark", annotation.time_column),) if v}
        named |= {"key": [*annotation.key], "watch": [*annotation.watch]}
        for key, names in named.items():
            for name in made.intersection(n.lower() for n in names):
                message = f"`{name}` is what a history adds, not a column of its query"
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
        message = f"every build of `{source.name}` computes all of it: {why}"
        whole = "make it a @table" if source.function else "take out refresh=incremental"
        hint = f"{whole}; or assume=exact, if you know better"
        yield Problem("increment", message, place, hint, severity="warning")
    if annotation.lookback_s and annotation.assume is None:
        message = "`lookback` has no effect: without assume=exact late rows always come"
        yield Problem("increment", message, places["lookback"], severity="warning")
    kind = time_type(source)
    if annotation.time_column and kind is not None and not is_ordered(kind):
        message = f"`{annotation.time_column}` is {kind}: its values tell no windows"
        hint = "a watermark is a date, a timestamp, a whole or decimal number, or a text"
        yield Problem("watermark", message, place, hint)
    if annotation.lookback_s and kind is not None and kind not in TIMES:
        message = f"`lookback` counts time, and `{annotation.time_column}` is {kind}"
        yield Problem("watermark", message, places["lookback"])


def _check_view(
    compilation: Compilation, unit: _Unit, source: Source, places: Mapping[str, Location]
) -> Iterator[Problem]:
    """Yield what keeps a source from being a view."""
    if source.volatile or source.reads_clock:
        what = "draws lots" if source.volatile else "looks at the clock"
        message = f"`{source.name}` {what}: each reader of a view would see other rows"
        yield Problem("view", message, places["materialized"], "take out materialized=view")
    within = _function_within(compilation, unit)
    if within is not None:
        own = within is unit
        what = "is a function" if own else f"reads the function `{within.declaration.name}`"
        message = f"`{source.name}` {what}, which no view can call"
        hint = "take out materialized=view"
        if not own:
            hint += f", or give `{within.declaration.name}` a table"
        yield Problem("view", message, places["materialized"], hint)


def _check_partition(source: Source, place: Location) -> Iterator[Problem]:
    """Yield what keeps a source from being built partition by partition."""
    partition = source.annotation.partition
    assert partition is not None
    if source.volatile or source.reads_clock:
        what = "draws lots" if source.volatile else "looks at the clock"
        message = f"`{source.name}` {what}: its partitions would not be of one table"
        yield Problem("partition", message, place, "take out partition")
    if partition.time is not None and len({*limits(partition)}) == 1:
        yield Problem("partition", "no window fits between `start` and `end`", place)
    names = {c.name.lower() for c in source.columns}
    unknown = all(c.type is None for c in source.columns)
    for dimension in partition.dimensions:
        kind = column_type(source.columns, dimension.column)
        if kind is None and (unknown or dimension.column.lower() not in names):
            continue  # Spark tells what functions return; a column that is not there is told
        if kind is None:
            message = f"the type of `{dimension.column}` is not certain"
            yield Problem("partition", message, place, "cast it, or declare what it reads")
            continue
        if wanted := misfit(dimension, kind):
            message = f"`{dimension.column}` is {kind}: its partitions want {wanted}"
            yield Problem("partition", message, place)


def _function_within(compilation: Compilation, unit: _Unit) -> _Unit | None:
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
            message = f"`{source.name}` has other columns than it promises:{listed(wrong)}"
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
            message = f"`{check.columns[0]}` is {kind}, which has no age"
            place = check.location or source.location
            yield Problem("check", message, place, "a date or a timestamp has")


_VALUES = (exp.Literal, exp.Null, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)
"""What is neither true nor false."""


def _unfit_condition(
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
        return f"`{text}` is not a condition: it is neither true nor false"
    functions = called(tree, {c.name.lower() for c in columns})
    if tree.find(exp.Query, exp.Window) or functions & AGGREGATES:
        return f"`{text}` looks at more than one row"
    if functions & GENERATORS:
        return f"`{text}` makes rows"
    if functions & moving:
        return f"`{text}` may say something else each time"
    return None


def _check_condition(source: Source, text: str, place: Location) -> list[Problem]:
    """Return what is wrong with a condition on one row of a source."""
    unfit = _unfit_condition(text, VOLATILE | SESSION, source.columns)
    if unfit:
        return [Problem("check", unfit, place)]
    tree = parse(text)
    assert tree is not None
    problems: list[Problem] = []
    for column in tree.find_all(exp.Column):
        if not function_named(column):
            problems += _missing_column(source, plain(column.parts[0].name), place)
    return problems


PASSES: tuple[Callable[[Compilation], None], ...] = (
    _resolve_names,
    _put_in_order,
    _compile_meaning,
    _check_annotations,
)

DRAFT_PASSES: tuple[Callable[[Compilation], None], ...] = (
    _resolve_names,
    _put_in_order,
    _take_over,
    _compile_meaning,
)
