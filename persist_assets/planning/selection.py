"""Selections of sources by names, annotations and the graph. Pure.

The language is Dagster's (`name+`, `tag:nightly and not kind:malloy`, `sinks(group:daily)`), over
sources: names need no `key:` prefix, and there are `path:`, `state:` and `selector:`. It is parsed
here rather than by Dagster, whose import takes longer than a plan.

    expression  = conjunction { "or" conjunction }
    conjunction = term { "and" term }
    term        = "not" term | [ [n] "+" ] operand [ "+" [n] ]
    operand     = "(" expression ")" | ("roots" | "sinks") "(" expression ")"
                | attribute ":" value | name, with * and ? as wildcards
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from persist_assets.core.errors import (
    ConflictError,
    NotFoundError,
    PersistError,
    SettingsError,
    did_you_mean,
)
from persist_assets.core.model.project import may_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Broken, Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Selector

State = Literal["current", "stale", "missing", "modified"]
"""The state of a table in a plan: up to date; to be rebuilt; missing; or of a source that is new or
has changed code."""
STATES: tuple[State, ...] = ("current", "stale", "missing", "modified")


def states_of(step: Step, project: Project) -> frozenset[State]:
    """Return the states of the table of a step.

    Sources that are not persisted are a part of the code of their readers.
    """
    if step.action == "reuse":
        return frozenset(("current",))
    codes = {r.code for r in step.reasons}
    changed = {r.source_id for r in step.reasons if r.code == "upstream" and r.source_id}
    changed -= {source.source_id for source in project.persisted}
    present: State = "missing" if codes & {"new", "missing"} else "stale"
    is_modified = bool(codes & {"new", "code"} or changed)
    return frozenset((present, "modified")) if is_modified else frozenset((present,))


def find_source(project: Project, name: str) -> Source:
    """Return the one source that a name, an asset key (``/`` or ``.``) or a SourceID means.

    Raises
    ------
    NotFoundError
        There is none.
    ConflictError
        There are several, or there may be: a file with errors has the name, or cannot be read.
    """
    if name in project.by_id:
        return project.by_id[name]
    matches = [s for s in project.sources if _is_called(s, name)]
    if matches:
        keys = [s.key for s in (*matches, *project.broken) if _is_called(s, name)]
        above = re.split(r"[/.]", name)[:-1]
        keys += ["/".join((*key, "…")) for key in project.unread if may_mean(key, above)]
        if len(keys) == 1:
            return matches[0]
        n_parts = len(re.split(r"[/.]", name))
        whole = next((s for s in matches if len(s.asset_key) <= n_parts), None)
        hint = f"qualify the name, or use {whole.source_id}" if whole else "qualify the name"
        raise ConflictError(f"`{name}` is ambiguous: {', '.join(keys)}", hint=hint)
    raise NotFoundError(f"unknown source `{name}`", hint=did_you_mean(name, _names(project)))


def find_declared(project: Project, name: str) -> tuple[SourceID, ...]:
    """Return all sources that a name may mean, including those that could not be compiled."""
    every = (*project.sources, *project.broken)
    return tuple(s.source_id for s in every if name == s.source_id or _is_called(s, name))


def names_in(pattern: str) -> list[str]:
    """Return the names of sources in a pattern, which may be wrong.

    Examples
    --------
    >>> names_in('2+orders and not (tag:nightly or "late orders"+)')
    ['orders', 'late orders']
    """
    words = (match[2] for match in _WORD.finditer(pattern) if not match[1])
    return [w.strip('"') for w in words if not re.fullmatch(r"(?i:and|or|not|roots|sinks)", w)]


def _is_called(source: Source | Broken, name: str) -> bool:
    parts = re.split(r"[/.]", name)
    return may_mean(source.asset_key, parts) or may_mean(source.full_key, parts)


def select(
    project: Project,
    patterns: Iterable[str],
    states: Callable[[], Mapping[SourceID, frozenset[State]]] = dict,
    selectors: Iterable[Selector] = (),
    *,
    views: bool = False,
) -> tuple[SourceID, ...]:
    """Return the persisted sources that any of the patterns means, in dependency order.

    A pattern that names a source which is not persisted means the persisted ones within reach of
    its ``+``.

    Parameters
    ----------
    states
        Returns the states of persisted sources; called only if a pattern uses states.
    selectors
        The saved selections that patterns may name.
    views
        Sources that are not persisted are selected too, except raw tables.

    Raises
    ------
    NotFoundError
        A pattern is no selection, names nothing, or nothing that can be selected. A pattern with
        states may select nothing.
    ConflictError
        Several sources have the name.
    SettingsError
        Selectors name each other in a cycle.
    """
    chosen: set[SourceID] = set()
    by_name = {s.name: s for s in selectors}
    for pattern in patterns:
        chosen |= _Reading(project, pattern, states, by_name, views=views).selected()
    return tuple(s.source_id for s in project.sources if s.source_id in chosen)


_SPACE = re.compile(r"\s*")
_UP = re.compile(r"(\d*)\+")
_DOWN = re.compile(r"\+(\d*)")
_AND, _OR, _NOT = (re.compile(rf"(?i:{word})(?![^\s()\"])") for word in ("and", "or", "not"))
_OPEN, _CLOSE = re.compile(r"\("), re.compile(r"\)")
_CALL = re.compile(r"(?i:(roots|sinks))\s*\(")
_ATTRIBUTE = re.compile(r"([A-Za-z_]+):")
_NAME = re.compile(r'"([^"]+)"|([\w./@*?-]+)')
_VALUE = re.compile(r'"([^"]*)"|([^\s()"+=]+)')
_EQUALS = re.compile("=")
_WORD = re.compile(r'(?:\d*\+)?([A-Za-z_]+:)?("[^"]+"|[\w./@*?=-]+)(?:\+\d*)?')
"""A name, or an attribute with its value; with the signs around it."""
_DEEPEST = 100


class _Reading:
    """A parser of one pattern; every rule returns the sources that it selects.

    Parameters
    ----------
    within
        The selectors whose patterns lead to this one, the outermost first.
    views
        See `select`.
    """

    def __init__(
        self,
        project: Project,
        pattern: str,
        states: Callable[[], Mapping[SourceID, frozenset[State]]],
        selectors: Mapping[str, Selector],
        within: tuple[str, ...] = (),
        *,
        views: bool = False,
    ) -> None:
        self._project, self._pattern, self._states = project, pattern, states
        self._selectors, self._within, self._views = selectors, within, views
        self._at = self._depth = 0
        self._plain: list[Source] = []
        self._used: list[Selector] = []
        self._asks_states = False

    def selected(self) -> set[SourceID]:
        selectable = self._selectable(self._whole())
        if selectable or self._asks_states:
            return selectable
        if len(self._plain) == 1 and not self._selectable([self._plain[0].source_id]):
            raise _not_selectable(self._plain[0], views=self._views)
        noun = "source with a query" if self._views else "persisted source"
        raise NotFoundError(
            f"`{self._pattern}` selects no {noun}",
            location=self._used[0].location if self._used else None,
        )

    def _selectable(self, source_ids: Iterable[SourceID]) -> set[SourceID]:
        """Return those of some sources that can be selected."""
        by_id = self._project.by_id
        return {
            s for s in source_ids if by_id[s].persisted or (self._views and by_id[s].raw is None)
        }

    def _whole(self) -> set[SourceID]:
        source_ids = self._expression()
        if self._rest():
            raise self._bad(f"`{self._rest()}` is unexpected", "pass several selections one by one")
        return source_ids

    def _expression(self) -> set[SourceID]:
        source_ids = self._conjunction()
        while self._take(_OR):
            source_ids |= self._conjunction()
        return source_ids

    def _conjunction(self) -> set[SourceID]:
        source_ids = self._term()
        while self._take(_AND):
            source_ids &= self._term()
        return source_ids

    def _term(self) -> set[SourceID]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._bad("the nesting is too deep")
        if self._take(_NOT):
            source_ids = self._project.by_id.keys() - self._term()
        else:
            up = self._take(_UP)
            named = self._operand()
            source_ids = set(named)
            if up:
                edges = {s.source_id: s.reads for s in self._project.sources}
                source_ids |= _walk(named, edges, up[1])
            if down := self._take(_DOWN):
                source_ids |= _walk(named, self._project.readers, down[1])
        self._depth -= 1
        return source_ids

    def _operand(self) -> set[SourceID]:
        if self._take(_OPEN):
            return self._closed()
        if call := self._take(_CALL):
            return self._ends(self._closed(), call[1].lower())
        if attribute := self._take(_ATTRIBUTE):
            return self._attribute(attribute[1].lower())
        if name := self._take(_NAME):
            return self._named(name[1] or name[2])
        rest = self._rest()
        raise self._bad(f"expected a name before `{rest}`" if rest else "expected a name")

    def _closed(self) -> set[SourceID]:
        source_ids = self._expression()
        if not self._take(_CLOSE):
            raise self._bad("expected `)`")
        return source_ids

    def _ends(self, sources: set[SourceID], which: str) -> set[SourceID]:
        """Return the sources that read none of the others, or that none of them reads."""
        project = self._project
        sources = self._selectable(sources)
        above = {s.source_id: s.reads for s in project.sources}
        edges = above if which == "roots" else project.readers
        return {s for s in sources if not (_walk({s}, edges, None) & sources) - {s}}

    def _named(self, name: str) -> set[SourceID]:
        if not re.search(r"[*?]", name):
            source = find_source(self._project, name)
            self._plain.append(source)
            return {source.source_id}
        return self._matching("source", name, lambda s: (s.name, s.key, s.source_id))

    def _attribute(self, attribute: str) -> set[SourceID]:
        if attribute not in _ATTRIBUTES:
            suggestion = did_you_mean(attribute, _ATTRIBUTES)
            hint = suggestion or f"known attributes: {', '.join(f'{a}:' for a in _ATTRIBUTES)}"
            raise self._bad(f"unknown attribute `{attribute}:`", hint)
        value = self._value(attribute)
        if attribute == "tag" and self._take(_EQUALS):
            value = f"{value}={self._value(attribute)}"
        if attribute == "state":
            self._asks_states = True
            if value not in STATES:
                hint = did_you_mean(value, STATES) or f"known states: {', '.join(STATES)}"
                raise NotFoundError(f"unknown state `{value}`", hint=hint)
            return {s for s, states in self._states().items() if value in states}
        if attribute == "selector":
            return self._saved(value)
        return self._matching(attribute, value, _ATTRIBUTES[attribute])

    def _saved(self, name: str) -> set[SourceID]:
        """Return the sources that a selector means; its errors have the place of its key."""
        selector = self._selectors.get(name)
        if selector is None:
            known = f"known selectors: {', '.join(self._selectors)}" if self._selectors else None
            hint = did_you_mean(name, self._selectors) or known
            raise NotFoundError(
                f"unknown selector `{name}`",
                hint=hint or "define it below [selectors] in persist.toml",
            )
        path = (*self._within, name)
        if name in self._within:
            cycle = " → ".join(path[self._within.index(name) :])
            raise SettingsError(
                f"selectors name each other in a cycle: {cycle}", location=selector.location
            )
        self._used.append(selector)
        source_ids: set[SourceID] = set()
        for pattern in selector.patterns:
            reading = _Reading(
                self._project, pattern, self._states, self._selectors, path, views=self._views
            )
            try:
                source_ids |= reading._whole()
            except PersistError as error:
                error.location = error.location or selector.location
                raise
            self._asks_states |= reading._asks_states
        return source_ids

    def _value(self, attribute: str) -> str:
        match = self._take(_VALUE)
        if not match:
            raise self._bad(f"`{attribute}:` needs a value")
        return match[1] if match[1] is not None else match[2]

    def _matching(
        self, attribute: str, value: str, values_of: Callable[[Source], Iterable[str]]
    ) -> set[SourceID]:
        """Return the sources that have a matching value."""
        pattern = value.lower()
        values = {s.source_id: set(values_of(s)) for s in self._project.sources}
        matching = {s for s, v in values.items() if any(fnmatchcase(t.lower(), pattern) for t in v)}
        if not matching:
            known_values = {v for s in values.values() for v in s}
            hint = did_you_mean(value, known_values)
            if attribute not in ("source", "key", "path") and known_values:
                hint = hint or f"known values: {', '.join(sorted(known_values))}"
            raise NotFoundError(f"unknown {attribute} `{value}`", hint=hint)
        return matching

    def _take(self, rule: re.Pattern[str]) -> re.Match[str] | None:
        """Return the next match of a rule, and advance past it."""
        space = _SPACE.match(self._pattern, self._at)
        match = rule.match(self._pattern, space.end() if space else self._at)
        if match:
            self._at = match.end()
        return match

    def _rest(self) -> str:
        return self._pattern[self._at :].strip()

    def _bad(self, why: str, hint: str | None = None) -> NotFoundError:
        return NotFoundError(f"`{self._pattern}` is not a selection: {why}", hint=hint)


def _names(project: Project) -> set[str]:
    return {s.name for s in project.sources} | {s.key for s in project.sources}


def _not_selectable(source: Source, *, views: bool) -> NotFoundError:
    if views:
        hint = "name a source that reads it"
        return NotFoundError(f"`{source.name}` is a raw table, which has no query", hint=hint)
    hint = "it is a raw table, which is read, not built"
    if source.query:
        mark = "--@" if source.location.path.endswith(".sql") else "#@"
        hint = f"annotate it: {mark} persist"
    return NotFoundError(f"`{source.name}` is not persisted", hint=hint)


def _tags(source: Source) -> Iterable[str]:
    for key, value in source.annotation.tags:
        yield key
        if value:
            yield f"{key}={value}"


def _paths(source: Source) -> Iterable[str]:
    """Yield the file of a source and the directories around it, relative to the root."""
    path = source.location.path
    while path:
        yield path
        path = path.rpartition("/")[0]


_ATTRIBUTES: Mapping[str, Callable[[Source], Iterable[str]]] = {
    "key": lambda s: (s.key,),
    "tag": _tags,
    "group": lambda s: (s.group,) if s.group else (),
    "kind": lambda s: s.kinds,
    "owner": lambda s: s.annotation.owners,
    "path": _paths,
    "state": lambda s: (),
    "selector": lambda s: (),
}
"""Every attribute, and its values for a source."""


def _walk(
    start: Iterable[SourceID], edges: Mapping[SourceID, Iterable[SourceID]], depth: str | None
) -> set[SourceID]:
    reached: set[SourceID] = set()
    level, left = {*start}, int(depth) if depth else None
    while level and left != 0:
        level = {n for s in level for n in edges[s]} - reached
        reached |= level
        left = None if left is None else left - 1
    return reached
