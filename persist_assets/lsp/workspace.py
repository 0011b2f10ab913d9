"""The project behind an editor: compiled with the editor's texts, again and again.

Each edit is compiled in two steps. A glance compiles the sources of the edited files only, with
those that they read; it takes the same short time in a project of any depth. The whole project
follows. The invariant: a result belongs to the texts that it was compiled from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.compiler.editing import Editing
from persist_assets.compiler.files import is_source
from persist_assets.compiler.load import load
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.compiler.programs import never_followed
from persist_assets.compiler.remarks import remarks_on
from persist_assets.compiler.state import Focus
from persist_assets.core.errors import Location, PersistError, Problem, in_order
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.load import load_settings
from persist_assets.core.trust import confined
from persist_assets.lsp.positions import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from persist_assets.compiler.load import Loaded
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings


class SupersededError(Exception):
    """The files have changed since, so the result is obsolete."""


@dataclass(frozen=True, slots=True)
class State:
    """A project, compiled from the texts of an editor.

    Attributes
    ----------
    texts
        The texts of the editor by path, from which it was compiled.
    problems
        Its problems, in order.
    loaded
        The compiled project; None: its settings are invalid.
    known
        The sources by SourceID: as they were when they last compiled.
    """

    settings: Settings | None
    texts: Mapping[str, str]
    problems: tuple[Problem, ...]
    loaded: Loaded | None = None
    known: Mapping[SourceID, Source] = field(default_factory=dict)

    def text(self, path: str) -> Text:
        """Return the text of a file of the project; empty if it cannot be read."""
        if path in self.texts:
            return Text(self.texts[path])
        if self.settings is None:
            return Text("")
        try:
            return Text(self.settings.read_text(path))
        except (OSError, ValueError):
            return Text("")


class Workspace:
    """A project that is compiled with texts of an editor. Used by one thread at a time.

    Parameters
    ----------
    root
        The project root.
    environment
        The environment; None: the default one.
    """

    def __init__(self, root: Path, environment: str | None = None) -> None:
        self.root = root
        self._environment = environment
        self._editing = Editing()
        self._settings: Settings | None = None
        self._known: dict[SourceID, Source] = {}

    def is_source(self, path: str) -> bool:
        """Whether a path is that of a file of sources, as of the last compilation."""
        if self._settings is None:
            return False
        below = Path(path)
        sources = Path(self._settings.sources)
        return below.is_relative_to(sources) and is_source(below.relative_to(sources))

    def forget_data(self) -> None:
        """Let the next compilation look at data outside the project again."""
        self._editing.forget_data()

    def glance(self, texts: Mapping[str, str], edited: Collection[str]) -> dict[str, list[Problem]]:
        """Return the problems of edited files, by path; little else is compiled.

        It is empty before the first compilation, and lacks files of Malloy: only Malloy's compiler
        knows their problems.
        """
        paths = [p for p in edited if self.is_source(p) and not p.endswith(MALLOY)]
        if self._settings is None or self._editing.cache is None or not paths:
            return {}
        self._editing.texts, self._editing.focus = dict(texts), Focus(frozenset(paths))
        try:
            with confined(self.root):
                project = load(self._settings, editing=self._editing).project
        except PersistError:
            return {}  # the compilation of the whole project reports it
        return {p: [w for w in project.problems if w.location.path == p] for p in paths}

    def compile(self, texts: Mapping[str, str], proceed: Callable[[], None]) -> State:
        """Compile the whole project with the texts of an editor.

        Parameters
        ----------
        proceed
            Raises `SupersededError` to give up.
        """
        self._editing.texts, self._editing.focus = dict(texts), Focus(proceed=proceed)
        try:
            with confined(self.root):
                settings = load_settings(self.root, environment=self._environment)
                if settings != self._settings:
                    self._editing = Editing(dict(texts), Focus(proceed=proceed))
                self._settings = settings
                loaded = load(settings, editing=self._editing)
        except PersistError as error:
            place = error.location or Location(SETTINGS_FILE)
            problem = Problem("settings", error.message, place, error.hint)
            return State(self._settings, texts, (problem,), known=self._known)
        self._known = {**self._known, **loaded.project.by_id}
        notes = [
            Problem("note", f"`{s.name}` is {note}", s.location, severity="note")
            for s in loaded.project.sources
            for note in (() if s.function else s.notes)  # a function's notes are warnings
        ]
        problems = tuple(in_order([*loaded.project.problems, *notes]))
        return State(settings, texts, problems, loaded, self._known)

    def remark(self, state: State) -> State:
        """Return a state with the remarks of `persist check` too, which take longer to compute."""
        if state.loaded is None or state.settings is None:
            return state
        project, settings = state.loaded.project, state.settings
        with confined(self.root):
            remarks = (*never_followed(project), *remarks_on(settings, project))
        return replace(state, problems=tuple(in_order([*state.problems, *remarks])))
