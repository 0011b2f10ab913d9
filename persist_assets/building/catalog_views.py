"""Views in Spark's catalog, through which other programs read sources.

A source with a `name` has a view in every environment whose settings name the views. It shows the
rows that readers of the environment get, by the paths of their files: readers need no library of
ours, and a query that has started keeps its rows. The ledger is written before the view. If the
process dies in between, the source's next publication repairs the view.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, SettingsError, StorageError
from persist_assets.core.object_stores import spark_pattern
from persist_assets.core.partitions import literal_of
from persist_assets.engine.session import translated
from persist_assets.storage.delta_tables import read_snapshot
from persist_assets.storage.published_tables import PUBLISHER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class UnreadableError(StorageError):
    """Other programs cannot read a stored query, because it reads a raw table."""


def shown_as(settings: Settings, source: Source) -> str | None:
    """Return the quoted name of a source's view, or None."""
    if settings.publish is not None and settings.publish.catalog:
        name = (source.annotation.name or source.name).rpartition(".")[2]
        return ".".join(quote(part) for part in (*settings.publish.catalog.split("."), name))
    if not settings.views or source.annotation.name is None:
        return None
    name = settings.views.replace("{name}", source.annotation.name)
    return ".".join(quote(part) for part in name.split("."))


def check_catalog(engine: Engine, name: str) -> None:
    """Raise unless a view of this name outlives the session.

    Raises
    ------
    SettingsError
        The session has only a catalog of its own.
    """
    if name.count("`.`") < 2 and engine.catalog() == "in-memory":
        raise SettingsError(
            f"the view {name} would end with the session: its catalog is in memory",
            hint='[spark] "spark.sql.catalogImplementation" = "hive", or remove `views`',
        )


def show(
    settings: Settings,
    ledger: Ledger,
    engine: Engine,
    sources: Iterable[Source],
    publisher: str,
    *,
    take_over: bool = False,
) -> None:
    """Make the views of sources show the rows that readers of an environment get now.

    Parameters
    ----------
    publisher
        The name by which views know the ledger and environment they belong to.
    take_over
        Also replace views of others.

    Raises
    ------
    StorageError
        Spark cannot create a view, or a view of that name has another publisher. The environment's
        readers get the new rows anyway.
    """
    refused: list[StorageError] = []
    for source in sources:
        name = shown_as(settings, source)
        if name is None:
            continue
        # The ledger is read under the lease: the last state wins.
        with ledger.leases.hold(f"view {name}", "a publication"):
            snapshot = shown(settings, ledger, source)
            query = _readable(settings, ledger, name, snapshot)
            with translated(f"showing {name}"):
                owner = _owner(engine, name, settings.project_warehouse, settings.warehouse)
                if owner in (None, "", publisher) or (take_over and query is not None):
                    _replace(engine, source, name, query, publisher, is_new=owner is None)
                elif query is not None:
                    message = f"the view {name} has another publisher, so it was not changed"
                    hint = f"give `{source.name}` another name, or drop it: DROP VIEW {name}"
                    refused.append(StorageError(message, hint=hint, location=source.location))
    if refused:  # all other views are up to date
        raise refused[0]


def _readable(
    settings: Settings, ledger: Ledger, name: str, snapshot: Snapshot | None
) -> str | None:
    """Return the query of a view; None if no rows are readable, so that it must not exist."""
    if snapshot is None:
        return None
    try:
        return _query(settings, ledger, snapshot)
    except UnreadableError as error:
        log.warning("%s: %s", name, error.message, extra={"action": "publish"})
        return None


_OTHERS = "others"
_EMPTY = re.compile(r"SELECT CAST\(NULL AS .* WHERE false", re.S)
"""The query of a view of an empty table."""


def _owner(engine: Engine, name: str, *warehouses: str) -> str | None:
    """Return who made a view: a publisher, or ``""`` for persist; None: there is no view.

    Earlier releases did not record the publisher. Their views read files of the warehouse.
    """
    session = engine.session
    if not session.catalog.tableExists(name):
        return None
    rows = session.sql(f"SHOW TBLPROPERTIES {name}").collect()
    properties = {row["key"]: row["value"] for row in rows}
    if PUBLISHER in properties:
        return properties[PUBLISHER]
    described = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    text = next((r["data_type"] for r in described if r["col_name"] == "View Text"), "")
    places = (spark_pattern(place.rstrip("/")) for place in warehouses)
    return "" if any(p in text for p in places) or _EMPTY.match(text) else _OTHERS


def _replace(
    engine: Engine,
    source: Source,
    name: str,
    query: str | None,
    publisher: str,
    *,
    is_new: bool,
) -> None:
    """Create a view or replace its query; None: drop the view.

    CREATE OR REPLACE would drop the view of a Hive metastore before it creates it again, and
    readers would fail in between.
    """
    session = engine.session
    if query is None:
        if not is_new:
            session.sql(f"DROP VIEW {name}")
        return
    properties = f"'{PUBLISHER}' = {literal_of(publisher)}"
    if source.description:
        properties += f", 'comment' = {literal_of(source.description)}"
    if is_new:
        session.sql(f"CREATE VIEW {name} TBLPROPERTIES ({properties}) AS {query}")
        return
    session.sql(f"ALTER VIEW {name} AS {query}")
    session.sql(f"ALTER VIEW {name} SET TBLPROPERTIES ({properties})")


def shown(settings: Settings, ledger: Ledger, source: Source) -> Snapshot | None:
    """Return the snapshot that readers of a source get; if it is not built, their last one.

    None if the environment has never built it.
    """
    present = ledger.manifests.find_snapshot(
        settings.environment, source.build_id, reads=settings.reads
    )
    if present is not None:
        return present
    build = ledger.builds.fetch_current(*settings.environments, source_id=source.source_id).get(
        source.source_id
    )
    if build is None:
        return None
    # Another source with the BuildID that this one had may have built since, or was rolled back.
    return ledger.manifests.find_snapshot(
        settings.environment, build.build_id, reads=settings.reads
    )


def _query(settings: Settings, ledger: Ledger, snapshot: Snapshot) -> str:
    """Return a query for the rows of a snapshot that any Spark session understands."""
    if snapshot.view is not None:
        text = snapshot.view.sql
        for leaf in snapshot.view.leaves:
            read = ledger.builds.find_written(leaf.build_uid) if leaf.build_uid else None
            if read is None:
                raise UnreadableError(
                    f"other sessions cannot read {snapshot.table}:"
                    f" it reads the raw table {leaf.name}",
                    hint="remove its `name` or materialized=view",
                )
            text = text.replace(quote(leaf.name), f"({_query(settings, ledger, read)})")
        columns = ", ".join(quote(c.name) for c in snapshot.columns)
        return f"SELECT * FROM (\n{text}\n) AS stored({columns})"
    places: dict[str, list[str]] = {}
    for path in sorted(read_snapshot(settings.table_root(snapshot.table), snapshot).files):
        directory, _, file = path.rpartition("/")
        places.setdefault(directory, []).append(file)
    if not places:
        nothing = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in snapshot.columns)
        return f"SELECT {nothing} WHERE false"
    columns = ", ".join(quote(c.name) for c in snapshot.columns)
    patterns: list[str] = []
    for directory, some in places.items():
        pattern = spark_pattern(directory)
        if not directory.endswith(f"/{snapshot.build_uid}"):
            pattern += f"/{{{','.join(some)}}}"  # others of its files were replaced since
        patterns.append(pattern)
    return " UNION ALL ".join(f"SELECT {columns} FROM parquet.{quote(p)}" for p in patterns)


def check_leaves(settings: Settings, source: Source, raw: Iterable[Source]) -> None:
    """Raise if a view for other programs reads raw tables, which they cannot find.

    Raises
    ------
    BuildError
        It reads a raw table.
    """
    name = shown_as(settings, source) if settings.views else None
    for upstream in raw if name else ():
        raise BuildError(
            f"`{source.name}` cannot be the view {name}: it reads the raw table `{upstream.name}`",
            hint="remove its `name` or materialized=view",
            location=source.location,
        )
