"""Checks that differ from those of the last build. Pure.

They decide nothing: a check is not part of a BuildID. A build runs them on a table that stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class ChangedCheck:
    """A check that was added, removed or edited since the last build of its source.

    Attributes
    ----------
    before, after
        The definition, with its severity if it only warns; None: there is none.
    """

    name: str
    change: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None

    @property
    def in_words(self) -> str:
        """The change in words.

        Examples
        --------
        >>> ChangedCheck("not_null_a", "added", None, "a not null").in_words
        'check added: a not null'
        """
        texts = " → ".join(text for text in (self.before, self.after) if text is not None)
        return f"check {self.change}: {texts}"


def checks_of_builds(project: Project, source: Source) -> tuple[Check, ...]:
    """Return the checks that builds of a source run: its own, and those of what it reads inline."""
    return (*source.checks, *project.guards(source), *project.checks_of_views(source))


def changed_checks(
    project: Project, source: Source, last: Iterable[Check | CheckResult]
) -> tuple[ChangedCheck, ...]:
    """Return the checks of a source, and of views that it reads, that differ from its last build.

    Checks that only that build ran are among them, as removed.

    Parameters
    ----------
    last
        The results of that build, or the checks that it would have run.
    """
    after = {c.name: _in_words(c) for c in checks_of_builds(project, source)}
    sharing = tuple(f"{s.key}:" for s in project.by_build_id[source.build_id] if s is not source)
    before = {
        r.name: _in_words(r)
        for r in last
        if r.name in after or not (sharing and r.name.startswith(sharing))
    }
    changes: list[ChangedCheck] = []
    for name in dict.fromkeys((*after, *before)):
        old, new = before.get(name), after.get(name)
        if old != new:
            change = "added" if old is None else "removed" if new is None else "changed"
            changes.append(ChangedCheck(name, change, old, new))
    return tuple(changes)


def _in_words(check: Check | CheckResult) -> str:
    return f"{check.definition}{'' if check.blocking else ' (warns only)'}"
