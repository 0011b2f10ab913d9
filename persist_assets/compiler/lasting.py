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

    The trees of queries take ten times the memory of the project, and parts of the project lie
    between them, so freeing the trees returns little. After much was compiled, the project is
    loaded again from the cache, in a tenth of the time.

    Raises
    ------
    SettingsError
        There is no sources directory, it is empty, or Malloy's compiler is missing.
    """
    loaded = load(settings)
    if loaded.n_new == 0:
        return loaded.project
    if loaded.n_new >= _MANY:
        del loaded
        gc.collect()
        return load(settings).project
    gc.collect()
    return loaded.project
