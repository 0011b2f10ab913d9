"""The IO manager: commits and publishes tables, and exports the manifest.

Persisted sources hand over a `PendingBuild`: files that are written, measured and checked, but not
yet visible to readers. Ordinary assets hand over a Spark DataFrame: if their key is that of a raw
table, its data is replaced; otherwise it becomes a table of its own. Both kinds are read as Spark
DataFrames.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.stages import PendingBuild
from persist_assets.core.errors import BuildError, SettingsError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Settings
from persist_assets.planning.world import older_code
from persist_assets.plugin.external import read_metadata
from persist_assets.plugin.translator import column_lineage, table_schema
from persist_assets.storage.delta_tables import find_table, read_sample, read_version

SAMPLE_ROWS = 5


class PersistIOManager(dg.IOManager):
    """Writes and reads the tables of a code location.

    Parameters
    ----------
    builder
        Returns the builder of the run, in its environment.
    """

    def __init__(self, builder: Callable[[], Builder]) -> None:
        self._builder = builder

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Make the output of an asset visible to its readers.

        Raises
        ------
        PersistError
            It cannot be committed or published.
        """
        builder = self._builder()
        if isinstance(obj, PendingBuild):
            snapshot = builder.publish(obj)
            metadata = output_metadata(builder, obj, snapshot)
            context.add_output_metadata(metadata)
        elif obj is not None:
            context.add_output_metadata(self._write_frame(builder, context.asset_key, obj))

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the rows that readers of an asset see, as a Spark DataFrame."""
        builder = self._builder()
        key = context.asset_key
        source = builder.project.by_key.get(tuple(key.path))
        if source is not None:
            return builder.read(source)
        settings = builder.settings
        for environment in settings.environments:
            root = asset_root(load_settings(settings.root, environment=environment), key)
            table = find_table(root)
            if table is not None:
                return builder.engine.load_table(root, table.version())
        raise BuildError(
            f"the asset {key.to_user_string()} has no table in `{settings.environment}` yet",
            hint="materialize it first",
        )

    def _write_frame(self, builder: Builder, key: dg.AssetKey, frame: Any) -> dict[str, Any]:
        """Write the DataFrame of an ordinary asset."""
        name, source = key.to_user_string(), builder.project.by_key.get(tuple(key.path))
        root = asset_root(builder.settings, key)
        if source is not None:
            if source.raw is None or source.raw.format != "delta":
                raise SettingsError(
                    f"the asset {name} would write the source `{source.name}`",
                    hint="assets can write only raw tables declared USING delta",
                    location=source.location,
                )
            root = builder.settings.resolve(source.raw.location or "")
            _check_columns(source, frame.columns)
        staged, version = builder.tables.write_frame(builder.engine, frame, root, name)
        return {
            "dagster/row_count": staged.rows,
            "dagster/column_schema": table_schema(staged.columns),
            "bytes": staged.bytes,
            "version": version,
            "environment": builder.settings.environment,
            "dagster/uri": root,
        }


def output_metadata(builder: Builder, work: PendingBuild, snapshot: Snapshot) -> dict[str, Any]:
    """Return the metadata of a published source's materialization."""
    metadata: dict[str, Any] = {
        "dagster/row_count": snapshot.rows,
        "dagster/column_schema": table_schema(_described(snapshot.columns, work.source)),
        "dagster/column_lineage": column_lineage(builder.project, work.source),
        "dagster/table_name": snapshot.table,
        "action": work.build.action,
        "why": "; ".join(r.message for r in work.step.reasons) or "nothing changed",
        "persist/maintenance": work.maintenance,
        "persist/why": work.why,
        "bytes": snapshot.bytes,
        "build_id": snapshot.build_id,
        "environment": builder.settings.environment,
        "version": snapshot.version,
        "built_at": dg.MetadataValue.timestamp(snapshot.built_at),
    }
    if snapshot.view is None:
        root = builder.settings.table_root(snapshot.table)
        files = read_version(root, snapshot.version).files
        preview = as_markdown(read_sample(files, SAMPLE_ROWS))
        metadata |= {"dagster/uri": root, "preview": dg.MetadataValue.md(preview)}
        if work.build.computed_s is not None:
            metadata["persist/engine"] = builder.engine.version()
    else:
        metadata["query"] = dg.MetadataValue.md(f"```sql\n{snapshot.view.sql}\n```")
    if snapshot.watermark is not None:
        metadata["watermark"] = snapshot.watermark
    metadata |= read_metadata(builder.observer, work.source)
    if work.measured is not None and work.measured.timeless:
        metadata["computed without a watermark"] = work.measured.timeless
    if work.build.computed_s is not None:
        metadata["persist/seconds"] = round(work.build.computed_s, 3)
    activity = builder.engine.activity()
    if activity is not None and activity.ui is not None:
        metadata["persist/spark_ui"] = dg.MetadataValue.url(activity.ui)
    if work.build.effort is not None:
        facts = asdict(work.build.effort).items()
        metadata |= {f"persist/{name}": value for name, value in facts if value is not None}
    if work.step.keys is not None:
        metadata["partitions built"] = len(work.step.keys)
    if (older := older_code(snapshot)) is not None:
        metadata["older_code"] = f"rows that stay are of the build {older[:8]}"
    return metadata


def asset_root(settings: Settings, key: dg.AssetKey) -> str:
    """Return the location of an ordinary asset's table in an environment."""
    below = "/".join(("assets", settings.environment, *key.path))
    return f"{settings.warehouse.rstrip('/')}/{below}"


def _described(columns: tuple[Column, ...], source: Source) -> tuple[Column, ...]:
    texts = {c.name: c.description for c in source.columns}
    return tuple(Column(c.name, c.type, texts.get(c.name)) for c in columns)


def _check_columns(source: Source, columns: list[str]) -> None:
    lacking = {c.name.lower() for c in source.columns} - {c.lower() for c in columns}
    if lacking:
        raise BuildError(
            f"the asset for `{source.name}` has no column `{min(lacking)}`",
            hint=f"it is declared at {source.location}",
            location=source.location,
        )


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    if not rows:
        return "*no rows*"

    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return (text if len(text) <= 80 else text[:79] + "…").replace("|", "\\|").replace("\n", " ")

    head = list(rows[0])
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell(row.get(name)) for name in head) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
