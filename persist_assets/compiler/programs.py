"""The programs that maintain the tables of a compiled project, derived on demand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from persist_assets.analysis.deltas.exactness import is_settled
from persist_assets.analysis.deltas.explaining import node_rules, unsteady_rule, whole_rule
from persist_assets.analysis.deltas.program import change_of, merging, used_of_tables
from persist_assets.compiler.cache import load_programs, save_programs
from persist_assets.compiler.compile import nothing_collected
from persist_assets.core.errors import Problem
from persist_assets.core.hints import hint_of
from persist_assets.core.model.deltas import NoRule
from persist_assets.planning.by_keys import with_functions
from persist_assets.planning.deltas import unmaintainable
from persist_assets.planning.increments import always_whole, obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.compiler.state import Compilation
    from persist_assets.core.model.deltas import Columns, Merging, NodeRule
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source

T = TypeVar("T")

_MOST_KEPT = 20_000
"""If there are more results than this, all are forgotten."""


class _Stored:
    """The results derived from a project in this state, by this process or an earlier one.

    Parameters
    ----------
    place
        The file; None: nothing is stored.
    content
        A digest of the project's files.
    """

    def __init__(self, place: Path | None, project: Project, content: str) -> None:
        self._place, self._project, self._content = place, project, content
        self._known: dict[Any, Any] | None = None
        self._n_stored = 0

    @cached_property
    def _state(self) -> str:
        """A digest of the project's files, and of all that is known of its tables' columns."""
        sources = [(s.source_id, s.build_id, s.columns) for s in self._project.sources]
        return sha256(f"{self._content} {sources!r}".encode()).hexdigest()

    def find(self, key: Any, derive: Callable[[], T]) -> T:
        """Return a result; derive it if it is new.

        Raises
        ------
        NoRule
            Deriving it did, now or before.
        """
        if self._known is None:
            self._known = load_programs(self._place, self._state) if self._place else {}
            self._n_stored = len(self._known)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            try:
                self._known[key] = derive()
            except NoRule as error:
                self._known[key] = NoRule(error.reason, error.location)
                raise
        result = self._known[key]
        if isinstance(result, NoRule):
            raise NoRule(result.reason, result.location)
        return result

    def save(self) -> None:
        """Store all results, if some are new."""
        if self._place and self._known and len(self._known) != self._n_stored:
            save_programs(self._place, self._state, {**self._known})
            self._n_stored = len(self._known)


def with_programs(
    project: Project, compilation: Compilation, place: Path | None = None, content: str = ""
) -> Project:
    """Return a project that derives on demand how its tables are maintained.

    Parameters
    ----------
    place
        A file of the compile cache for what is derived.
    content
        A digest of the project's files.
    """
    lock = Lock()
    compilation.forget_trees()
    stored = _Stored(place, project, content)

    @cache
    def define(source_id: SourceID, *, printed: bool = True) -> Staged | NoRule:
        try:
            return compilation.definition(source_id, printed=printed)
        except NoRule as error:
            return error
        except RecursionError:
            return _nested()

    def derived(derive: Callable[..., T], *, printed: bool = True) -> Callable[..., T]:
        def anew(source_id: SourceID, *changes: frozenset[SourceID]) -> T:
            definition = define(source_id, printed=printed)
            if isinstance(definition, NoRule):
                raise NoRule(definition.reason, definition.location)
            try:
                return derive(definition, *changes)
            except RecursionError:
                raise _nested() from None

        def find(source_id: SourceID, *changes: frozenset[SourceID]) -> T:
            key = (derive.__name__, source_id, *(tuple(sorted(some)) for some in changes))
            with lock, nothing_collected():
                return stored.find(key, lambda: anew(source_id, *changes))

        return find

    @cache
    def rules(source_id: SourceID) -> tuple[NodeRule, ...]:
        with lock, nothing_collected():
            unsteady = tuple(
                unsteady_rule(name, place) for name, place in compilation.unsteady_calls(source_id)
            )
            definition = define(source_id)
            if isinstance(definition, NoRule):
                return (*unsteady, whole_rule(definition))
            try:
                return (*unsteady, *node_rules(definition))
            except RecursionError:
                return (*unsteady, whole_rule(_nested()))

    def uses(query: Staged) -> Columns:
        return used_of_tables(query.block)

    queries = replace(
        project,
        program=derived(change_of),
        merging=derived(merging),
        uses=derived(uses),
        is_settled=derived(is_settled, printed=False),
        rules=rules,
        remember=stored.save,
    )
    return with_functions(queries)


def without_merging(project: Project) -> Project:
    """Return a project of which no aggregate is merged with its change.

    Without Spark's usual types and overflows (see `has_usual_types`), the parts of an aggregate do
    not combine exactly.
    """

    def refuse(*_: object) -> Merging:
        raise NoRule("of merged aggregates with settings that change types or overflows")

    return replace(project, merging=refuse)


def _nested() -> NoRule:
    return NoRule("the nesting of the query is too deep")


def never_followed(project: Project) -> Iterator[Problem]:
    """Yield warnings of incremental sources of which every build computes all rows.

    It derives the programs of all of them: some milliseconds each.
    """
    for source in project.persisted:
        is_open = obstacle(source) is not None and unmaintainable(source) is None
        why = _no_rule(project, source) if source.annotation.is_incremental and is_open else None
        if why is None:
            continue
        message = always_whole(source, why.why)
        place, hint = why.location or source.location, hint_of(why.reason)
        yield Problem("increment", message, place, hint, severity="warning")


def _no_rule(project: Project, source: Source) -> NoRule | None:
    """Return why no change of a table that a source reads is followed; None: some change is."""
    error: NoRule | None = None
    for table in project.inputs(source):
        changed = frozenset((table.source_id,))
        for derive in (project.program, project.merging):
            try:
                derive(source.source_id, changed, changed)
            except NoRule as one:
                error = error or one
            else:
                return None
    return error
