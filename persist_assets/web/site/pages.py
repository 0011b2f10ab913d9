"""A project and the ledger's records → the text of every file of the site. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets._paths import SITE
from persist_assets.web.layout import style, templates
from persist_assets.web.site.descriptions import BOX, Descriptions
from persist_assets.web.site.graph_svg import draw, layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.web.site.catalog import Knowledge

_LONGEST = 120


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
        self.described = Descriptions(project, texts, lambda key: f"sources/{page_name(key)}")
        self.entries = self.described.entries

    def files(self) -> dict[str, str]:
        """Return all files of the site."""
        pages = {
            "style.css": style(),
            "search.js": (SITE / "static" / "search.js").read_text(),
            "index.html": self.index(),
            "graph.html": self.graph(),
            "problems.html": self.page("problems.html", "Problems", problems=self.project.problems),
        }
        for source in self.project.sources:
            pages[self.entries[source.source_id].page] = self.one(
                source.key, self.described.source(source, self.knowledge)
            )
        for broken in self.project.broken:
            pages[self.entries[broken.source_id].page] = self.one(
                broken.key, self.described.broken(broken, self.knowledge)
            )
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
            box=BOX,
            entries=self.entries,
            **values,
        )

    def one(self, title: str, values: Mapping[str, Any]) -> str:
        """Return the page of a source."""
        return self.page("source.html", title, up="../", **values)

    def index(self) -> str:
        """Return the page with the list of all sources, and the texts that its search uses."""
        listed = sorted(self.entries, key=lambda s: (self.entries[s].key, s))
        by_id, snapshots = self.project.by_id, self.knowledge.snapshots
        searched = [
            {
                "text": self.described.words(source_id).lower(),
                "columns": [
                    c.name for c in self.described.columns(by_id[source_id], self.knowledge)
                ]
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

    def graph(self) -> str:
        """Return the page with the picture of all sources."""
        reads, readers = self.described.reads, self.described.readers
        layered = layers(reads)
        return self.page(
            "graph.html",
            "Graph",
            picture=draw(layered, reads),
            rows=[(s, reads[s], readers.get(s, [])) for layer in layered for s in layer],
            marked=None,
        )
