"""Projects for processes that live long: they keep only the memory that they need."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from persist_assets.compiler.load import load

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings

_MANY = 200
"""The number of compiled queries from which their trees leave much memory in pieces."""


def load_lasting(settings: Settings) -> Project:
    """Read and compile all sources of a project as `load_project` does, and return the memory.

    Trees of queries take ten times the memory of the project. It cannot be returned while parts of
    the project lie between them. So a project of which much was compiled is dropped and taken from
    the cache, which takes a tenth of the time of compiling.

    Raises
    ------
    SettingsError
        There is no sources directory, it is empty, or Malloy's compiler is missing.
    """
    loaded = load(settings)
    if loaded.n_new < _MANY:
        return loaded.project
    del loaded
    gc.collect()
    return load(settings).project
