"""A source → Dagster's `AssetSpec`: users override this class to change how assets look."""

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from persist_assets.core.model.annotations import Cadence
from persist_assets.core.model.columns import Column
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.values import Settings
from persist_assets.core.wants import PartitionRef, split_graph
from persist_assets.plugin import beta
from persist_assets.plugin.external import needs_metadata
from persist_assets.plugin.partitions import dependency, partitions_definition
from persist_assets.wants.schedules import deadline_cron


class AssetTranslator:
    """Translates sources to Dagster asset specs. Override `asset_spec` and call the base method.

    Examples
    --------
    One group for all assets::

        class OneGroup(AssetTranslator):
            def asset_spec(self, source):
                return super().asset_spec(source).replace_attributes(group_name="lake")
    """

    def __init__(self, settings: Settings, project: Project) -> None:
        self.settings, self.project = settings, project

    def asset_spec(self, source: Source) -> dg.AssetSpec:
        """Return the spec of a persisted source or a raw table."""
        annotation, zone = source.annotation, self.settings.timezone.key
        return dg.AssetSpec(
            dg.AssetKey(source.asset_key),
            deps=[dependency(source, s, zone) for s in self.project.waits_for(source)],
            partitions_def=partitions_definition(annotation.partition)
            if annotation.partition and source.persisted
            else None,
            description=source.description,
            group_name=source.group,
            code_version=source.build_id if source.raw is None else None,
            owners=list(annotation.owners),
            tags=dict(annotation.tags),
            kinds=set(source.kinds),
            metadata=self._metadata(source),
            freshness_policy=_freshness(source),
            automation_condition=self._automation(source),
        )

    def _automation(self, source: Source) -> dg.AutomationCondition[Any] | None:
        """Return the condition on which Dagster builds a source by itself.

        Dagster learns of raw tables only in runs, so nothing waits until they exist or are newer.
        Partitions of other graphs are left to wants.
        """
        condition = self._condition(source)
        elsewhere = [
            k for k in needed_elsewhere(source) if tuple(k.path) not in self.project.by_key
        ]
        if condition is None or not elsewhere:
            return condition
        return condition.ignore(dg.AssetSelection.assets(*elsewhere))

    def _condition(self, source: Source) -> Any:
        if source.annotation.automation is None:
            return None
        condition: Any = dg.AutomationCondition  # its types distinguish assets and checks
        raws = [dg.AssetKey(i.asset_key) for i in self.project.inputs(source) if i.raw is not None]
        raw_assets = dg.AssetSelection.assets(*raws)
        lacking = condition.any_deps_missing()
        lacking = lacking.ignore(raw_assets) if raws else lacking
        match source.annotation.automation:
            case "eager":
                return condition.eager().replace("any_deps_missing", lacking)
            case "missing":
                # `on_missing()` is about partitions that are added later: a whole asset that is
                # missing when it is first evaluated would stay missing.
                handled = condition.newly_requested() | condition.newly_updated()
                missing = condition.missing().newly_true().since(handled)
                latest = condition.in_latest_time_window()
                return (latest & missing & ~lacking).with_label("missing")
            case cron:
                on_tick = condition.on_cron(cron, str(self.settings.timezone))
                return on_tick.ignore(raw_assets) if raws else on_tick

    def _metadata(self, source: Source) -> dict[str, Any]:
        location = source.location
        with beta():
            reference = dg.LocalFileCodeReference(
                file_path=str(Path(self.settings.root, location.path)),
                line_number=location.line,
                label=str(location),
            )
            references = dg.CodeReferencesMetadataValue(code_references=[reference])
        metadata: dict[str, Any] = {
            "dagster/code_references": references,
            "source_id": source.source_id,
            "build_id": source.build_id,
        }
        if source.columns:
            metadata["dagster/column_schema"] = table_schema(source.columns)
        if source.raw is not None and source.raw.location:
            metadata["dagster/uri"] = self.settings.resolve(source.raw.location)
        if source.external is not None:
            metadata |= needs_metadata(self.project, source)
        if source.raw is None:
            metadata["dagster/table_name"] = source.table
        if source.raw is None and source.columns:
            metadata["dagster/column_lineage"] = column_lineage(self.project, source)
            # Dagster's open source UI stores the entry above but does not show it.
            metadata["column lineage"] = dg.MetadataValue.md(_lineage_table(self.project, source))
        if source.notes:
            metadata["notes"] = dg.MetadataValue.md("\n".join(f"- {note}" for note in source.notes))
        return metadata


def needed_elsewhere(source: Source) -> dict[dg.AssetKey, tuple[str, PartitionRef]]:
    """Return the partitions of other graphs that a source's annotation needs, by asset."""
    want = source.annotation.want
    needs = [split_graph(need) for need in want.needs] if want is not None else []
    return {dg.AssetKey([graph, *ref.split("/")]): (graph, ref) for graph, ref in needs}


def _freshness(source: Source) -> dg.FreshnessPolicy | None:
    """Return when Dagster calls a source stale: according to its annotation, or to its deadlines.

    Dagster considers only the last materialization, of whichever partition. A deadline fits only
    if each window has one and none is met early. That holds for time partitions without an end,
    because the window that ended last cannot have been built before.
    """
    annotation = source.annotation
    if (freshness := annotation.freshness) is not None:
        return dg.FreshnessPolicy.time_window(
            fail_window=timedelta(seconds=freshness.window_s),
            warn_window=timedelta(seconds=freshness.warn_s) if freshness.warn_s else None,
        )
    want, partition = annotation.want, annotation.partition
    if want is None or want.sla_s is None or partition is None or partition.time is None:
        return None
    if partition.end is not None:
        return None
    cron = _cron(want.every, want.sla_s, partition.timezone, datetime.now(UTC).date())
    if cron is None:
        return None
    return dg.FreshnessPolicy.cron(cron, timedelta(seconds=want.sla_s), partition.timezone)


@cache
def _cron(every: Cadence, sla_s: int, timezone: str, today: date) -> str | None:
    return deadline_cron(every, sla_s, timezone, datetime.combine(today, time()))


def column_lineage(project: Project, source: Source) -> dg.TableColumnLineage:
    """Return the columns of its inputs from which the columns of a source are computed."""
    deps: dict[str, list[dg.TableColumnDep]] = {c.name: [] for c in source.columns}
    for edge in source.lineage:
        key = dg.AssetKey(project.by_id[edge.upstream.source_id].asset_key)
        deps[edge.column].append(dg.TableColumnDep(asset_key=key, column_name=edge.upstream.column))
    return dg.TableColumnLineage(deps)


def _lineage_table(project: Project, source: Source) -> str:
    """Return the column lineage as a Markdown table, with links to the assets."""
    lines = ["| column | from |", "| --- | --- |"]
    for column in source.columns:
        origins: list[str] = []
        for edge in source.lineage:
            if edge.column == column.name:
                upstream = project.by_id[edge.upstream.source_id]
                link = f"[{upstream.name}](/assets/{upstream.key})"
                origins.append(f"{link}.{edge.upstream.column}")
        lines.append(f"| {column.name} | {', '.join(origins)} |")
    return "\n".join(lines)


def table_schema(columns: tuple[Column, ...]) -> dg.TableSchema:
    """Return columns in Dagster's form; a type that is not known yet is ``?``."""
    return dg.TableSchema(
        [dg.TableColumn(c.name, c.type or "?", description=c.description) for c in columns]
    )
