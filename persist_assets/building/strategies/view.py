"""Views: the query is stored instead of its rows (`materialized=view`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from persist_assets.building.catalog_views import check_leaves
from persist_assets.building.stages import Computed
from persist_assets.building.strategies.scd2 import columns_of
from persist_assets.building.strategies.strategy import Scope
from persist_assets.core.errors import BuildError
from persist_assets.core.model.snapshots import Leaf, RawVersion, View
from persist_assets.planning.world import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """The rows are computed once, to be measured and checked, and not written."""

    name: ClassVar[str] = "view"

    def scope(self, task: Task) -> Scope:
        """Return all rows; temporary tables are gone when the view is read."""
        return Scope(reads_temporary=False)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        """Measure and check the rows, and return the query.

        Raises
        ------
        BuildError
            The query may return other rows when the view is read.
        """
        view = _stored(task, read)
        measured = task.reader.engine.measure(
            frame, task.checks, task.time_column, task.source.name
        )
        return Computed(columns_of(frame), measured, view=view)


def _stored(task: Task, read: Mapping[SourceID, Snapshot]) -> View:
    """Return the source's query in a form that returns the same rows whenever it runs."""
    source, project, reader = task.source, task.reader.project, task.reader
    assert source.query is not None
    statement = reader.stated(source.query, source.bindings, read)
    raws = (project.by_id[s] for s in statement.views if s not in read)
    check_leaves(reader.settings, source, raws)
    leaves: list[Leaf] = []
    for source_id, name in statement.views.items():
        upstream = project.by_id[source_id]
        if source_id in read:
            leaves.append(Leaf(name, read[source_id].build_uid))
            continue
        if upstream.external is not None:
            raise _refusal(
                source,
                f"`{upstream.name}` is an external table, of which only the needed rows"
                " are copied here",
            )
        version = reader.pins.pin(upstream).version
        if version is None or version.startswith(UNVERSIONED):
            raise _refusal(source, f"the data of `{upstream.name}` has no version")
        columns = tuple(c.name for c in upstream.columns)
        leaves.append(Leaf(name, raw=RawVersion(upstream.build_id, version), columns=columns))
    return View(statement.sql, tuple(leaves))


def _refusal(source: Source, why: str) -> BuildError:
    return BuildError(
        f"`{source.name}` cannot be a view: {why}",
        hint="remove materialized=view",
        location=source.location,
    )
