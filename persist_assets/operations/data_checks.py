"""Checks run on demand: over the tables of persisted sources, and over the queries of views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.building.partition_checks import Parted
from persist_assets.building.set_checks import bound, check_results
from persist_assets.building.view_checks import results_over
from persist_assets.core.errors import CheckFailedError, ConflictError, PersistError
from persist_assets.core.partitions import filled_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """The results of the checks of one source, run over its current rows.

    Attributes
    ----------
    snapshot
        The table that was checked; None: rows of the query, or no rows.
    results
        In the order of the checks; empty if they did not run.
    error
        Why they did not run.
    """

    source: Source
    snapshot: Snapshot | None = None
    results: tuple[CheckResult, ...] = ()
    error: PersistError | None = None

    @property
    def is_built(self) -> bool:
        """Whether it has rows: a table, or a query that is computed whenever it is read."""
        return self.snapshot is not None or not self.source.persisted

    @property
    def has_failed(self) -> bool:
        """Whether a blocking check failed."""
        return any(not r.passed and r.blocking for r in self.results)


def check_data(reader: Reader, sources: Iterable[Source]) -> Iterator[CheckedSource]:
    """Run the checks of sources, and yield their results; nothing is built or published.

    A persisted source is checked over the table that its readers get now; another one over the rows
    that its query returns now.
    """
    manifest = reader.observer.published()
    tainted = reader.observer.tainted(manifest)
    for source in sources:
        snapshot = manifest.get(source.build_id) if source.persisted else None
        checked = CheckedSource(source, snapshot)
        if not checked.is_built:
            yield checked
            continue
        if snapshot is not None and source.source_id in tainted:
            why = f"the table of `{source.name}` is tainted, so nothing reads it"
            error = ConflictError(why, hint=f"build it first: persist build {source.key}")
            yield replace(checked, error=error)
            continue
        try:
            if snapshot is not None:
                results = _check_table(reader, source, snapshot, manifest)
            else:
                read = reader.routed([source.source_id], reader.reading(source.bindings, manifest))
                checks = bound(source.checks, reader.observer.clock())
                results = results_over(reader, source, checks, read, manifest)
            yield CheckedSource(source, snapshot, results)
        except CheckFailedError as error:
            yield CheckedSource(source, snapshot, error.results)
        except PersistError as error:
            yield CheckedSource(source, snapshot, error=error)


def _check_table(
    reader: Reader, source: Source, snapshot: Snapshot, manifest: Mapping[BuildID, Snapshot]
) -> tuple[CheckResult, ...]:
    """Run the checks of a source over a table; those by partition over all partitions."""
    checks = bound(source.checks, reader.observer.clock())
    rows = reader.load_snapshot(snapshot)
    alone = reader.engine.audit(rows, [c for c in checks if c.alone], snapshot.table)
    partition, parted = source.annotation.partition, None
    if partition is not None and snapshot.partitions is not None:
        order = reader.observer.keys()[source.source_id]
        filled = filled_keys(order, snapshot.partitions.filled)
        keys = tuple(key for key in order if key in filled)
        zone = reader.settings.timezone.key
        parted = Parted(partition, keys, keys, {}, lambda: rows, zone)
    return check_results(reader, source, checks, alone, lambda: rows, manifest, parted)
