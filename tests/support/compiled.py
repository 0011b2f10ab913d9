"""Projects of a few files, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.compiler.load import load
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.compiler.load import Loaded
    from persist_assets.core.model.project import Project


def loaded(root: Path, environment: str | None = None, settings: str = "", **files: str) -> Loaded:
    """Write files and return the project that they are part of, compiled.

    Parameters
    ----------
    settings
        The text of `persist.toml`; empty: it stays.
    **files
        Texts by file name: ``a`` is `a.sql`, ``a_py`` is `a.py`.
    """
    (root / "sources").mkdir(exist_ok=True)
    if settings:
        (root / "persist.toml").write_text(settings)
    for name, text in files.items():
        stem, _, suffix = name.partition("_")
        (root / "sources" / f"{stem}.{suffix or 'sql'}").write_text(text)
    return load(load_settings(root, environment=environment, environ={}))


def sound(root: Path, environment: str | None = None, settings: str = "", **files: str) -> Project:
    """Return a project as `loaded` does, without problems."""
    project = loaded(root, environment, settings, **files).project
    assert not project.problems, [str(p) for p in project.problems]
    return project


def text_of(project: Project, name: str) -> str:
    """Return the text of the query of a source."""
    source = next(s for s in project.sources if s.name == name)
    assert source.query is not None
    return source.query.text


def build_ids(project: Project) -> dict[str, str]:
    """Return the BuildIDs of persisted sources, by name."""
    return {s.name: s.build_id for s in project.persisted}
