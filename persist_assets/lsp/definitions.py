"""Where names are defined. Pure but for the texts of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.lsp.names import find_mention

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
    from persist_assets.lsp.workspace import State


def find_definition(state: State, path: str, offset: int) -> Location | None:
    """Return the place where the name at an offset of a file is defined, or None."""
    mention = find_mention(state, path, offset)
    if mention is None or state.loaded is None:
        return None
    return state.loaded.compilation.units[mention.source_id].declaration.location
