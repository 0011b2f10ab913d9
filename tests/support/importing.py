"""What becomes of projects of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.importing.writing import write

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.operations.importing.drafts import Drafts
    from persist_assets.operations.importing.writing import Imported


def carried(drafts: Drafts, new: Path) -> tuple[Imported, Project]:
    """Write a project; all that is carried compiles, but for what the user has to fill in."""
    imported = write(drafts, new)
    project = load_project(load_settings(new))
    unknown = {raw.path for raw in imported.to_fill_in}
    assert [p for p in project.errors if p.location.path not in unknown] == []
    return imported, project


def reasons_of(imported: Imported) -> dict[tuple[str, str], str]:
    """Return the reasons of what is not carried, by kind and name."""
    return {(entry.origin.kind, entry.origin.name): entry.reason for entry in imported.not_carried}
