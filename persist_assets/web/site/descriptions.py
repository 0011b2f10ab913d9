"""A project and the ledger's records → the content of each source's page. Pure.

The catalog site and the dashboard show the same facts; they differ in where pages lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from persist_assets.core.model.checks import in_units
from persist_assets.core.model.columns import ColumnRef
from persist_assets.planning.lineage import neighbours
from persist_assets.storage.raw import SECRETS, public_options, without_secrets
from persist_assets.web.site.excerpts import Passage, Place, passages
from persist_assets.web.site.graph_svg import HEIGHT, WIDTH, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.core.errors import Problem
    from persist_assets.core.model.annotations import Dimension
    from persist_assets.core.model.project import Broken, Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import RawTable, Source
    from persist_assets.web.site.catalog import Knowledge

BOX = {"width": WIDTH, "height": HEIGHT}
"""The size of a source in a picture, in pixels."""
_AROUND = 20
"""The maximum number of inputs, and of readers, in the picture on a source's page."""
_NOT_COMPILED = "It cannot be compiled because of errors in its file or its inputs."
_SECRET = "Its text may contain secrets and is not shown."
_LANGUAGES = {"sql": "SQL", "malloy": "Malloy", "python": "Python"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A source as all pages know it."""

    key: str
    name: str
    page: str
    kind: str
    description: str
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str | None
    description: str | None
    origins: list[ColumnRef] = field(default_factory=list["ColumnRef"])
    users: list[ColumnRef] = field(default_factory=list["ColumnRef"])


class Descriptions:
    """The entries of a project's sources that need no ledger.

    Parameters
    ----------
    page_of
        Returns the path of the page of an asset key, below the root of all pages.
    texts
        The files of the sources, by path, as far as they can be read.

    Attributes
    ----------
    entries
        Every source, also those that cannot be compiled.
    reads, readers
        The direct inputs of each source, and its direct readers.
    """

    def __init__(
        self,
        project: Project,
        texts: Mapping[str, str],
        page_of: Callable[[Sequence[str]], str],
    ) -> None:
        self.project = project
        self.entries = {
            s.source_id: Entry(s.key, s.name, page_of(s.asset_key), _kind(s), s.description or "")
            for s in project.sources
        } | {
            b.source_id: Entry(
                b.key,
                b.asset_key[-1],
                page_of(b.asset_key),
                f"{_LANGUAGES.get(b.language, b.language)}, with errors",
                b.description or "",
                is_broken=True,
            )
            for b in project.broken
        }
        self.reads: dict[SourceID, tuple[SourceID, ...]] = {
            s.source_id: s.reads for s in project.sources
        } | {b.source_id: b.reads for b in project.broken}
        self.readers: dict[SourceID, list[SourceID]] = {}
        for reader, read in self.reads.items():
            for source_id in read:
                self.readers.setdefault(source_id, []).append(reader)
        self._passages = _passages(project, texts)
        self._problems = _problems(project, self._passages)

    @cached_property
    def _neighbours(
        self,
    ) -> tuple[Mapping[ColumnRef, list[ColumnRef]], Mapping[ColumnRef, list[ColumnRef]]]:
        return neighbours(self.project)

    def words(self, source_id: SourceID) -> str:
        """Return the searchable text of a source, besides its columns."""
        entry, source = self.entries[source_id], self.project.by_id.get(source_id)
        words = [entry.key, source_id, entry.kind, entry.description]
        if source is not None:
            annotation = source.annotation
            words += [source.group, *annotation.owners, *chain(*annotation.tags)]
            words += [c.description or "" for c in source.columns]
        return " ".join(w for w in words if w)

    def searched(self, source_id: SourceID) -> str:
        """Return the searchable text of a source with the names of its columns, in lower case."""
        source = self.project.by_id.get(source_id)
        names = [c.name for c in source.columns] if source is not None else []
        return " ".join((self.words(source_id), *names)).lower()

    def columns(self, source: Source, knowledge: Knowledge) -> list[_Column]:
        """Return the columns of a source; those of a function are known once it has a table."""
        snapshot = knowledge.snapshots.get(source.source_id)
        table_types = {c.name: c.type for c in snapshot.columns} if snapshot else {}
        columns = source.columns or (snapshot.columns if snapshot else ())
        above, below = self._neighbours
        rows: list[_Column] = []
        for c in columns:
            ref = ColumnRef(source.source_id, c.name)
            origins, users = above.get(ref, []), below.get(ref, [])
            kind = table_types.get(c.name, c.type)
            rows.append(_Column(c.name, kind, c.description, origins, users))
        return rows

    def source(self, source: Source, knowledge: Knowledge) -> dict[str, Any]:
        """Return the content of a source's page."""
        source_id = source.source_id
        results = knowledge.checks.get(source_id, {})
        last = knowledge.last.get(source_id)
        is_shown = source.raw is None or not _has_secrets(source.raw)
        return {
            "entry": self.entries[source_id],
            "facts": _facts(source),
            "strategy": [*_strategy(source), *_last_method(source_id, knowledge)],
            "problems": self._problems.get(source_id, []),
            "notes": source.notes,
            "columns": self.columns(source, knowledge),
            "is_function": source.function is not None,
            "checks": [(c, results.get(c.definition)) for c in source.checks],
            "standings": knowledge.standings.get(source_id, ()),
            "is_persisted": source.persisted,
            "failed": last if last is not None and last.state == "failed" else None,
            "location": source.location,
            "passage": self._passages.get(source_id) if is_shown else None,
            "why_no_text": None if is_shown else _SECRET,
            **self._around(source_id),
        }

    def broken(self, broken: Broken, knowledge: Knowledge) -> dict[str, Any]:
        """Return the content of the page of a source that could not be compiled."""
        source_id = broken.source_id
        language = _LANGUAGES.get(broken.language, broken.language)
        passage, problems = self._passages.get(source_id), self._problems.get(source_id, [])
        # Options may contain secrets; in a source that cannot be compiled, it is unknown which do.
        standings = knowledge.standings.get(source_id, ())
        is_shown = passage is None or not (
            re.search(r"(?i)\boptions\b", passage.text)
            or without_secrets(passage.text) != passage.text
        )
        return {
            "entry": self.entries[source_id],
            "facts": [("Language", language), ("SourceID", source_id)],
            "strategy": [],
            "problems": problems,
            "notes": () if problems else (_NOT_COMPILED,),
            "columns": [],
            "is_function": False,
            "checks": [],
            "standings": standings,
            "is_persisted": bool(standings),
            "failed": None,
            "location": broken.location,
            "passage": passage if is_shown else None,
            "why_no_text": None if is_shown else _SECRET,
            **self._around(source_id),
        }

    def _around(self, source_id: SourceID) -> dict[str, Any]:
        """Return the inputs and readers of a source, and the picture of them."""
        reads = [r for r in self.reads[source_id] if r in self.entries]
        readers = self.readers.get(source_id, [])
        layered = [x for x in (reads[:_AROUND], [source_id], readers[:_AROUND]) if x]
        around = {source_id: reads, **{r: [source_id] for r in readers}}
        picture = draw(layered, around) if len(layered) > 1 else None
        return {"reads": reads, "readers": readers, "picture": picture, "marked": source_id}


def _last_method(source_id: SourceID, knowledge: Knowledge) -> list[tuple[str, str]]:
    """Return the method of the build that wrote the table of a source, and what it did."""
    method, effort = knowledge.methods.get(source_id, (None, None))
    rows = [("last build", method), ("effort", effort and effort.in_words)]
    return [(title, text) for title, text in rows if text]


def _kind(source: Source) -> str:
    if source.raw is not None:
        return f"raw {source.raw.format}"
    how = "not persisted"
    if source.persisted:
        how = {"view": "stored query"}.get(source.annotation.strategy, "table")
    elif source.temporary:
        how = "temporary"
    return f"{_LANGUAGES.get(source.language, source.language)}, {how}"


def _facts(source: Source) -> list[tuple[str, str]]:
    annotation = source.annotation
    raw = source.raw
    facts = [
        ("Language", _LANGUAGES.get(source.language, source.language)),
        ("Group", source.group if source.persisted or annotation.group else ""),
        ("Owners", ", ".join(annotation.owners)),
        ("Tags", ", ".join(f"{k}={v}" if v else k for k, v in annotation.tags)),
        ("Format", raw.format if raw else ""),
        ("Location", without_secrets(raw.location or "") if raw else ""),
        ("Options", ", ".join(f"{k}={v}" for k, v in _public(raw)) if raw else ""),
        ("SourceID", source.source_id),
        ("BuildID", source.build_id),
    ]
    return [(title, text) for title, text in facts if text]


def _strategy(source: Source) -> list[tuple[str, str]]:
    """Return how a source is built and kept, by the keys of its annotation."""
    annotation = source.annotation
    if not (source.persisted or source.temporary):
        return []
    parts = annotation.partition
    fresh = annotation.freshness
    want = annotation.want
    history = annotation.validity
    rows: list[tuple[str, object]] = [
        ("materialized", annotation.strategy),
        ("refresh", annotation.refresh_value),
        ("watermark", annotation.time_column),
        ("lookback", in_units(annotation.lookback_s) if annotation.lookback_s else None),
        ("assume", annotation.assume),
        ("merge_key", ", ".join(annotation.merge.key) if annotation.merge else None),
        ("on_tie", annotation.merge.on_tie if annotation.merge else None),
        ("by", ", ".join(annotation.by) or None),
        ("key", ", ".join(history.key) if history else None),
        ("watch", ", ".join(history.watch) if history else None),
        ("hard_deletes", history.hard_deletes if history else None),
        ("on_change", "continue" if annotation.goes_on else None),
    ]
    if parts is not None:
        rows += [
            ("partition", "; ".join(map(_dimension, parts.dimensions))),
            ("start", parts.start),
            ("end", parts.end),
            ("timezone", parts.timezone if parts.time else None),
            ("backfill", annotation.backfill),
        ]
    if fresh is not None:
        rows += [
            ("freshness", f"at most {in_units(fresh.window_s)} old"),
            ("freshness.fallback", fresh.fallback),
        ]
    if want is not None:
        within = f", {in_units(want.sla_s)} after" if want.sla_s is not None else ""
        rows.append(("want", f"{want.every}{within}"))
    rows += [
        ("automation", annotation.automation),
        ("retries", annotation.retries.max if annotation.retries else None),
        ("pool", annotation.pool),
        ("op_tags", ", ".join(f"{k}={v}" for k, v in annotation.op_tags) or None),
        ("k8s", annotation.k8s),
        ("on_schema_change", annotation.on_schema_change),
    ]
    return [(title, str(text)) for title, text in rows if text]


def _dimension(dimension: Dimension) -> str:
    if dimension.every:
        return f"{dimension.every} by {dimension.column}"
    values = ", ".join(map(str, dimension.values))
    return f"by {dimension.column}{f': {values}' if values else ''}"


def _public(raw: RawTable) -> list[tuple[str, str]]:
    """Return the options of a raw table that contain no secret."""
    return [
        (k, v) for k, v in public_options(raw) if not SECRETS.search(v) and without_secrets(v) == v
    ]


def _has_secrets(raw: RawTable) -> bool:
    location = raw.location or ""
    return without_secrets(location) != location or len(_public(raw)) < len(raw.options)


def _passages(project: Project, texts: Mapping[str, str]) -> dict[SourceID, Passage]:
    """Return the passage of each source in its file."""
    by_path: dict[str, dict[SourceID, tuple[str, Place]]] = {}
    for source in project.sources:
        query = source.query.text if source.query and source.language == "sql" else None
        place = Place(source.location.line, query)
        by_path.setdefault(source.location.path, {})[source.source_id] = source.language, place
    for broken in project.broken:
        place = Place(broken.location.line)
        by_path.setdefault(broken.location.path, {})[broken.source_id] = broken.language, place
    others: dict[str, list[int]] = {}
    for query in project.queries:
        others.setdefault(query.location.path, []).append(query.location.line)
    excerpts: dict[SourceID, Passage] = {}
    for path, declared in by_path.items():
        if path in texts:
            language = next(language for language, _ in declared.values())
            places = {s: place for s, (_, place) in declared.items()}
            excerpts |= passages(texts[path], language, places, others.get(path, ()))
    return excerpts


def _problems(
    project: Project, excerpts: Mapping[SourceID, Passage]
) -> dict[SourceID, list[Problem]]:
    """Return the problems within the passage of each source."""
    all_of: Iterable[Source | Broken] = (*project.sources, *project.broken)
    lines_by_path: dict[str, list[tuple[range, SourceID]]] = {}
    for one in all_of:
        passage = excerpts.get(one.source_id, Passage(one.location.line, ""))
        lines = range(passage.first, passage.first + passage.text.count("\n") + 1)
        lines_by_path.setdefault(one.location.path, []).append((lines, one.source_id))
    problems: dict[SourceID, list[Problem]] = {}
    for problem in project.problems:
        for lines, source_id in lines_by_path.get(problem.location.path, ()):
            if problem.location.line in lines:
                problems.setdefault(source_id, []).append(problem)
    return problems
