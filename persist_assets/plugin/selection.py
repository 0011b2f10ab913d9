"""Dagster's own selection syntax (``tag:``, ``group:``, ``kind:``, ``and``, ``not`` …)."""

from collections.abc import Iterable

import dagster as dg

from persist_assets.errors import NotFoundError
from persist_assets.model import Project, SourceID
from persist_assets.plugin import beta
from persist_assets.plugin.translator import AssetTranslator
from persist_assets.settings import Settings


def select_as_dagster(
    settings: Settings, project: Project, patterns: Iterable[str]
) -> tuple[SourceID, ...]:
    """Return the persisted sources that any of the patterns selects, in dependency order.

    Raises
    ------
    NotFoundError
        A pattern is no selection, or selects nothing.
    """
    look = AssetTranslator(settings, project)
    definitions = dg.Definitions(assets=[look.asset_spec(s) for s in project.persisted])
    graph = definitions.resolve_asset_graph()
    chosen: set[tuple[str, ...]] = set()
    for pattern in patterns:
        try:
            with beta():
                selection = dg.AssetSelection.from_string(pattern, include_sources=True)
                found = {tuple(key.path) for key in selection.resolve(graph)}
        except (dg.DagsterError, NotImplementedError) as error:
            raise NotFoundError(f"`{pattern}` is not a selection: {error}") from error
        if not found:
            raise NotFoundError(f"`{pattern}` selects nothing")
        chosen |= found
    return tuple(s.source_id for s in project.persisted if s.asset_key in chosen)
