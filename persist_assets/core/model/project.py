"""A compiled project."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.core.errors import Location, Problem
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.deltas import Columns, Merging, NodeRule, Program
    from persist_assets.core.model.queries import BuildID, PythonUdf, SourceID
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A named query of a Malloy file, which runs on demand."""

    name: str
    location: Location
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A declared source that could not be compiled because of an error in it or upstream.

    Attributes
    ----------
    reads
        The references that could be resolved.
    full_key
        See `Source.full_key`.
    """

    source_id: SourceID
    asset_key: tuple[str, ...]
    language: str
    location: Location
    description: str | None = None
    reads: tuple[SourceID, ...] = ()
    full_key: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The asset key in one string."""
        return "/".join(self.asset_key)


def may_mean(key: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a name's parts, or its qualifiers, may mean an asset key, or that of a file."""
    end = key[max(len(key) - len(parts), 0) :]
    return [k.lower() for k in end] == [part.lower() for part in parts]


@dataclass(frozen=True, slots=True)
class Needed:
    """The rows and columns of an external table that a persisted source, or a query, needs.

    Attributes
    ----------
    predicate
        The predicate of the rows, in canonical SQL; it may read the clock.
    columns
        The columns, sorted.
    not_pushed
        The conditions missing in the predicate, each with the reason.
    """

    reader: SourceID
    table: SourceID
    predicate: str
    columns: tuple[str, ...]
    not_pushed: tuple[tuple[str, str], ...] = ()


def _no_program(
    source_id: SourceID, changed: frozenset[SourceID], grown: frozenset[SourceID]
) -> Any:
    raise NoRule("it was loaded without its files")


def _no_columns(source_id: SourceID) -> Any:
    raise NoRule("it was loaded without its files")


@dataclass(frozen=True)
class Project:
    """Everything the sources directory defines.

    Attributes
    ----------
    sources
        All sources, each after those it reads.
    problems
        All problems, sorted by location. If there are errors among them, the project has only the
        sources that could be compiled.
    queries
        The named queries of all Malloy files, in order of files and lines.
    broken
        The known sources that could not be compiled, and those that may read one of them.
    unread
        Asset keys, without names of sources, of unreadable files: these may define any source.
    needs
        The needs of the persisted sources from external tables.
    needs_of
        Returns the needs of all rows of a source from external tables.
    program
        Returns the program for the change of a source's rows, from the tables that changed and
        those of them that only got rows; None: its rows do not change. It raises `NoRule`.
    uses
        Returns, by table, the columns that the query of a source uses. It raises `NoRule`.
    is_settled
        Returns whether the query of a source has the same rows whenever it is computed from the
        same rows, apart from the last digits of floating-point numbers. It raises `NoRule` if that
        is unknown.
    merging
        Returns how the aggregates of a source are merged with the same change. It raises `NoRule`.
    rules
        Returns the rules of the nodes of a source's query. It raises `NoRule` if there are none.
    remember
        Stores the programs that were derived, so that later processes find them.
    text_of
        Returns a digest of the text of a source and of everything beneath it; empty: unknown.
    software
        The name of the software that made the BuildIDs; empty: unknown.
    """

    sources: tuple[Source, ...] = ()
    problems: tuple[Problem, ...] = ()
    queries: tuple[NamedQuery, ...] = ()
    broken: tuple[Broken, ...] = ()
    unread: tuple[tuple[str, ...], ...] = ()
    needs: tuple[Needed, ...] = ()
    udfs: tuple[PythonUdf, ...] = ()
    needs_of: Callable[[SourceID], tuple[Needed, ...]] = field(
        default=lambda _: (), compare=False, repr=False
    )
    program: Callable[[SourceID, frozenset[SourceID], frozenset[SourceID]], Program | None] = field(
        default=_no_program, compare=False, repr=False
    )
    uses: Callable[[SourceID], Columns] = field(default=_no_columns, compare=False, repr=False)
    is_settled: Callable[[SourceID], bool] = field(default=_no_columns, compare=False, repr=False)
    merging: Callable[[SourceID, frozenset[SourceID], frozenset[SourceID]], Merging] = field(
        default=_no_program, compare=False, repr=False
    )
    remember: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    rules: Callable[[SourceID], tuple[NodeRule, ...]] = field(
        default=_no_columns, compare=False, repr=False
    )
    text_of: Callable[[SourceID], str] = field(default=lambda _: "", compare=False, repr=False)
    software: str = field(default="", compare=False, repr=False)

    @cached_property
    def by_id(self) -> Mapping[SourceID, Source]:
        """The sources by SourceID."""
        return {s.source_id: s for s in self.sources}

    @cached_property
    def keys(self) -> Mapping[SourceID, str]:
        """The asset keys of the sources, each in one string."""
        return {s.source_id: s.key for s in self.sources}

    @cached_property
    def readers(self) -> Mapping[SourceID, tuple[SourceID, ...]]:
        """The direct readers of each source."""
        readers: dict[SourceID, list[SourceID]] = {s.source_id: [] for s in self.sources}
        for source in self.sources:
            for upstream in source.reads:
                readers[upstream].append(source.source_id)
        return {k: tuple(v) for k, v in readers.items()}

    @property
    def persisted(self) -> tuple[Source, ...]:
        """The persisted sources, each after those it reads."""
        return tuple(s for s in self.sources if s.persisted)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that prevent the project from loading."""
        return tuple(p for p in self.problems if p.severity == "error")

    @cached_property
    def by_key(self) -> Mapping[tuple[str, ...], Source]:
        """The sources by asset key."""
        return {s.asset_key: s for s in self.sources}

    @cached_property
    def _by_full_key(self) -> Mapping[tuple[str, ...], Source]:
        """The sources that have a full key besides their asset key; no source has both."""
        return {s.full_key: s for s in self.sources if s.full_key}

    @cached_property
    def by_build_id(self) -> Mapping[BuildID, tuple[Source, ...]]:
        """The persisted sources by BuildID; sources with the same meaning share a table."""
        groups: dict[BuildID, list[Source]] = {}
        for source in self.persisted:
            groups.setdefault(source.build_id, []).append(source)
        return {k: tuple(v) for k, v in groups.items()}

    @cached_property
    def malloy(self) -> Mapping[BuildID, BuildID]:
        """The sources by the BuildIDs with which Malloy's own tools look for tables.

        BuildIDs shared by sources of different meaning are left out, because Malloy knows the
        tables they read only by name. So are histories, of which Malloy expects one row per key.
        """
        build_ids: dict[BuildID, set[BuildID]] = {}
        for source in self.sources:
            for malloy_id in () if source.keeps_history else source.malloy_ids:
                build_ids.setdefault(malloy_id, set()).add(source.build_id)
        return {m: next(iter(ours)) for m, ours in build_ids.items() if len(ours) == 1}

    def find_named(self, ref: str) -> tuple[Source, str] | None:
        """Return the persisted source at the start of a reference, and the rest of it."""
        parts = tuple(ref.split("/"))
        for n in range(len(parts), 0, -1):
            source = self.by_key.get(parts[:n]) or self._by_full_key.get(parts[:n])
            if source is not None and source.persisted:
                return source, "/".join(parts[n:])
        return None

    def waits_for(self, source: Source) -> tuple[Source, ...]:
        """Return the inputs of a build of `source` and of its checks; see `inputs`."""
        compared = [c for s in (source, *self.views(source)) for c in s.compared]
        looked = self.reach(compared, lambda s: s.is_leaf)
        leaves = {s.source_id: s for s in (*self.inputs(source), *looked) if s.is_leaf}
        return tuple(leaves.values())

    def guards(self, source: Source) -> tuple[Check, ...]:
        """Return the blocking checks of the temporary sources that a source is computed from."""
        reached = self.reach(source.bindings, lambda s: s.is_leaf)
        return tuple(
            replace(check, name=f"{s.key}:{check.name}")
            for s in reached
            if s.temporary
            for check in s.checks
            if check.blocking
        )

    def views(self, source: Source) -> tuple[Source, ...]:
        """Return the sources without rows of their own that a source's table is computed from.

        They include those of other sources that share the table.
        """
        reached = self.reach(self.bindings_of_table(source), lambda s: s.is_leaf)
        return tuple(s for s in reached if s.is_inline)

    def bindings_of_table(self, source: Source) -> tuple[SourceID, ...]:
        """Return what a source reads, and what other sources that share its table read."""
        sharing = self.by_build_id[source.build_id] if source.persisted else ()
        return tuple(dict.fromkeys(b for s in (source, *sharing) for b in s.bindings))

    def checks_of_views(self, source: Source) -> tuple[Check, ...]:
        """Return the checks of the views that a source is computed from."""
        return tuple(c for view in self.views(source) for c in view.checks_for_readers)

    def is_view(self, source: Source) -> bool:
        """Whether a persisted source is a stored query without a table."""
        return all(s.annotation.strategy == "view" for s in self.by_build_id[source.build_id])

    @cached_property
    def _position(self) -> Mapping[SourceID, int]:
        return {s.source_id: n for n, s in enumerate(self.sources)}

    @cached_property
    def _inputs(self) -> dict[SourceID, tuple[Source, ...]]:
        return {}

    def reach(
        self, start: Iterable[SourceID], stop: Callable[[Source], bool]
    ) -> tuple[Source, ...]:
        """Return `start` and all that it reads, not going beyond sources for which `stop` holds.

        In dependency order.
        """
        visited: set[SourceID] = set()
        stack = [*start]
        while stack:
            source_id = stack.pop()
            if source_id not in visited:
                visited.add(source_id)
                source = self.by_id[source_id]
                if not stop(source):
                    stack += source.bindings
        return tuple(self.by_id[s] for s in sorted(visited, key=self._position.__getitem__))

    def reads_temporary(self, source: Source) -> bool:
        """Whether a build of `source` reads tables of one run only."""
        return any(s.temporary for s in self.reach(source.bindings, lambda s: s.is_leaf))

    def inputs(self, source: Source) -> tuple[Source, ...]:
        """Return the inputs of a build of `source`: persisted sources and raw tables.

        Sources in between that are not persisted are expanded. In dependency order.
        """
        leaves = self._inputs.get(source.source_id)
        if leaves is None:
            reached = self.reach(source.bindings, lambda s: s.is_leaf)
            leaves = tuple(s for s in reached if s.is_leaf)
            self._inputs[source.source_id] = leaves
        return leaves
