"""A project and the ledger's records → the text of every page. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

from persist_assets._paths import SITE
from persist_assets.core.model.checks import in_units
from persist_assets.core.model.columns import ColumnRef
from persist_assets.planning.lineage import neighbours
from persist_assets.storage.raw import SECRETS, public_options
from persist_assets.web.layout import STYLE, templates
from persist_assets.web.site.excerpts import Passage, Place, passages
from persist_assets.web.site.graph_svg import HEIGHT, WIDTH, draw, layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.errors import Problem
    from persist_assets.core.model.annotations import Dimension
    from persist_assets.core.model.project import Broken, Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import RawTable, Source
    from persist_assets.web.site.catalog import Knowledge

_AROUND = 20
"""The maximum number of inputs, and of readers, in the picture on a source's page."""
_LONGEST = 120
_NOT_COMPILED = "It cannot be compiled because of its whole file or its inputs."
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


def page_name(key: Sequence[str]) -> str:
    """Return the page name of an asset key, which is a valid file name on every system.

    Examples
    --------
    >>> page_name(["daily", "delays"])
    'daily.delays.html'
    >>> page_name(["daily", "<b>"])
    'daily._b_-45010980.html'
    """
    plain = ".".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in key)
    joined = ".".join(key)
    if plain == joined and len(plain) <= _LONGEST:
        return f"{plain}.html"
    digest = sha256("\0".join(key).encode()).hexdigest()[:8]
    return f"{plain[:_LONGEST]}-{digest}.html"


def make_pages(
    project: Project, knowledge: Knowledge, texts: Mapping[str, str], environment: str
) -> dict[str, str]:
    """Return the text of every file of the site, by its path in the site.

    Parameters
    ----------
    texts
        The files of all sources, by path, as far as they can be read.
    """
    return _Site(project, knowledge, texts, environment).files()


class _Site:
    def __init__(
        self, project: Project, knowledge: Knowledge, texts: Mapping[str, str], environment: str
    ) -> None:
        self.project, self.knowledge, self.environment = project, knowledge, environment
        self.templates = templates(SITE / "templates")
        self.entries = {
            s.source_id: Entry(
                s.key,
                s.name,
                f"sources/{page_name(s.asset_key)}",
                _kind(s),
                s.description or "",
            )
            for s in project.sources
        } | {
            b.source_id: Entry(
                b.key,
                b.asset_key[-1],
                f"sources/{page_name(b.asset_key)}",
                f"{_LANGUAGES.get(b.language, b.language)}, wrong",
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
        self.above, self.below = neighbours(project)
        self.passages = _passages(project, texts)
        self.problems = _problems(project, self.passages)

    def files(self) -> dict[str, str]:
        """Return all files of the site."""
        pages = {
            "style.css": STYLE.read_text() + (SITE / "static" / "site.css").read_text(),
            "search.js": (SITE / "static" / "search.js").read_text(),
            "index.html": self.index(),
            "graph.html": self.graph(),
            "problems.html": self.page("problems.html", "Problems", problems=self.project.problems),
        }
        for source in self.project.sources:
            pages[self.entries[source.source_id].page] = self.source(source)
        for broken in self.project.broken:
            pages[self.entries[broken.source_id].page] = self.broken(broken)
        return pages

    def page(self, template: str, title: str, *, up: str = "", **values: Any) -> str:
        return self.templates.get_template(template).render(
            title=title,
            up=up,
            here=template,
            environment=self.environment,
            pages=(
                ("index.html", "Sources"),
                ("graph.html", "Graph"),
                ("problems.html", f"Problems ({len(self.project.problems)})"),
            ),
            n_problems=len(self.project.problems),
            box={"width": WIDTH, "height": HEIGHT},
            entries=self.entries,
            **values,
        )

    # --------------------------------------------------------------------------------- of all

    def index(self) -> str:
        """Return the page with the list of all sources, and the texts that its search uses."""
        listed = sorted(self.entries, key=lambda s: (self.entries[s].key, s))
        by_id, snapshots = self.project.by_id, self.knowledge.snapshots
        searched = [
            {
                "text": self._words(source_id).lower(),
                "columns": [c.name for c in self.columns(by_id[source_id])]
                if source_id in by_id
                else [],
            }
            for source_id in listed
        ]
        latest = max((s.built_at for s in snapshots.values()), default=None)
        return self.page(
            "index.html",
            "Sources",
            listed=[(self.entries[s], snapshots.get(s), by_id.get(s)) for s in listed],
            searched=searched,
            latest=latest,
            n_persisted=len(self.project.persisted),
        )

    def _words(self, source_id: SourceID) -> str:
        """Return the searchable text of a source, besides its columns."""
        entry, source = self.entries[source_id], self.project.by_id.get(source_id)
        words = [entry.key, source_id, entry.kind, entry.description]
        if source is not None:
            annotation = source.annotation
            words += [source.group, *annotation.owners, *chain(*annotation.tags)]
            words += [c.description or "" for c in source.columns]
        return " ".join(w for w in words if w)

    def graph(self) -> str:
        """Return the page with the picture of all sources."""
        layered = layers(self.reads)
        return self.page(
            "graph.html",
            "Graph",
            picture=draw(layered, self.reads),
            rows=[(s, self.reads[s], self.readers.get(s, [])) for layer in layered for s in layer],
            marked=None,
        )

    # ---------------------------------------------------------------------------------- of one

    def columns(self, source: Source) -> list[_Column]:
        """Return the columns of a source; those of a function are known once it has a table."""
        snapshot = self.knowledge.snapshots.get(source.source_id)
        table_types = {c.name: c.type for c in snapshot.columns} if snapshot else {}
        columns = source.columns or (snapshot.columns if snapshot else ())
        rows: list[_Column] = []
        for c in columns:
            ref = ColumnRef(source.source_id, c.name)
            origins, users = self.above.get(ref, []), self.below.get(ref, [])
            kind = table_types.get(c.name, c.type)
            rows.append(_Column(c.name, kind, c.description, origins, users))
        return rows

    def source(self, source: Source) -> str:
        """Return the page of a source."""
        source_id = source.source_id
        results = self.knowledge.checks.get(source_id, {})
        last = self.knowledge.last.get(source_id)
        is_shown = source.raw is None or len(_public(source.raw)) == len(source.raw.options)
        return self.page(
            "source.html",
            source.key,
            up="../",
            entry=self.entries[source_id],
            facts=_facts(source),
            strategy=[*_strategy(source), *self.last_method(source_id)],
            problems=self.problems.get(source_id, []),
            notes=source.notes,
            columns=self.columns(source),
            is_function=source.function is not None,
            checks=[(c, results.get(c.definition)) for c in source.checks],
            standings=self.knowledge.standings.get(source_id, ()),
            is_persisted=source.persisted,
            failed=last if last is not None and last.state == "failed" else None,
            location=source.location,
            passage=self.passages.get(source_id) if is_shown else None,
            why_no_text=None if is_shown else _SECRET,
            **self.around(source_id),
        )

    def last_method(self, source_id: SourceID) -> list[tuple[str, str]]:
        """Return the method of the build that wrote the table of a source, and what it did."""
        method, effort = self.knowledge.methods.get(source_id, (None, None))
        rows = [("last build", method), ("effort", effort and effort.in_words)]
        return [(title, text) for title, text in rows if text]

    def broken(self, broken: Broken) -> str:
        """Return the page of a source that could not be compiled."""
        source_id = broken.source_id
        language = _LANGUAGES.get(broken.language, broken.language)
        passage, problems = self.passages.get(source_id), self.problems.get(source_id, [])
        # Options may contain secrets; in a source that cannot be compiled, it is unknown which do.
        standings = self.knowledge.standings.get(source_id, ())
        is_shown = passage is None or not re.search(r"(?i)\boptions\b", passage.text)
        return self.page(
            "source.html",
            broken.key,
            up="../",
            entry=self.entries[source_id],
            facts=[("Language", language), ("SourceID", source_id)],
            strategy=[],
            problems=problems,
            notes=() if problems else (_NOT_COMPILED,),
            columns=[],
            is_function=False,
            checks=[],
            standings=standings,
            is_persisted=bool(standings),
            failed=None,
            location=broken.location,
            passage=passage if is_shown else None,
            why_no_text=None if is_shown else _SECRET,
            **self.around(source_id),
        )

    def around(self, source_id: SourceID) -> dict[str, Any]:
        """Return the inputs and readers of a source, and the picture of them."""
        reads = [r for r in self.reads[source_id] if r in self.entries]
        readers = self.readers.get(source_id, [])
        layered = [x for x in (reads[:_AROUND], [source_id], readers[:_AROUND]) if x]
        around = {source_id: reads, **{r: [source_id] for r in readers}}
        picture = draw(layered, around) if len(layered) > 1 else None
        return {"reads": reads, "readers": readers, "picture": picture, "marked": source_id}


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
        ("Location", (raw.location or "") if raw else ""),
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
    return [(k, v) for k, v in public_options(raw) if not SECRETS.search(v)]


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
