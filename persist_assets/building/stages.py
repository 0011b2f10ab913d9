"""The stages of a build, as values: each is made from those before it, and never changes.

    Started ─► Computed ─► checks ─► Snapshot (committed) ─► Publication
    what it     files in    no        a version of the        readers
    will do     the table   blocking  table, which no         see it
                directory   failure   reader knows yet

`PendingBuild` is the handle that carries a build and its leases from one stage to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from persist_assets.engine.attribution import Attribution

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Maintenance, Step
    from persist_assets.core.model.snapshots import AsOf, Build, KeptState, Origin, Snapshot, View
    from persist_assets.core.model.sources import Source
    from persist_assets.core.wants import PartitionRef
    from persist_assets.engine.row_metrics import Measured
    from persist_assets.ledger.leases import Lease
    from persist_assets.ledger.taints import Kept
    from persist_assets.storage.delta_commit import Staged
    from persist_assets.storage.touched_keys import Touched


@dataclass(frozen=True, slots=True)
class Started:
    """A planned build, under its leases.

    Attributes
    ----------
    table
        The name of the table that it writes.
    inputs
        The direct inputs of its rows.
    current_at
        When all its data was last known to be current.
    before
        The snapshot that readers of this environment got when it started.
    latest
        The snapshot that a history would have continued then.
    kept_rows
        The rows of another snapshot that it keeps.
    is_within
        It continues the environment's own table in place.
    origin
        The text from which all rows of its snapshot come; see `Snapshot.origin`.
    refs
        The partitions that become available; for an unpartitioned table, the table.
    kept_refs
        The partitions that it keeps of another environment's table, and that become available.
    """

    source: Source
    step: Step
    table: str
    inputs: AsOf
    current_at: datetime
    before: Snapshot | None = None
    latest: Snapshot | None = None
    kept_rows: Kept | None = None
    is_within: bool = False
    origin: Origin | None = None
    refs: tuple[PartitionRef, ...] = ()
    kept_refs: tuple[PartitionRef, ...] = ()

    @property
    def keeps_files(self) -> bool:
        """Whether files of an earlier table stay: in place, or as copies in a table of its own."""
        increment = self.step.increment
        return self.is_within or (increment is not None and increment.foreign)

    def renewed(self, snapshot: Snapshot, as_of: AsOf) -> Snapshot:
        """Return a snapshot that it continues, if its rows are those of newer data, too."""
        now = {"inputs": self.inputs, "current_at": self.current_at, "origin": self.origin}
        return replace(snapshot, as_of=as_of, **now)


@dataclass(frozen=True, slots=True)
class Computed:
    """Rows that are written as files, or described by a stored query; measured, not committed.

    Attributes
    ----------
    measured
        Metrics and check results of all rows that the table will have.
    staged
        The files written; None for a view.
    view
        The stored query, if the source is a view.
    base
        The snapshot that is continued in place; None: the files written are the whole table.
    kept_files
        The paths of the base's files that stay.
    parts
        The builds that wrote those files.
    bytes
        The size of all files that the table will have.
    maintenance
        The method, if it is not the strategy's.
    states
        The states written beside the files.
    keys_touched
        The keys whose rows were computed again, if it looked for them.
    n_rewritten
        The number of files of the table before that do not stay.
    n_kept
        The number of those that stay, in place or as copies; None: no table is continued.
    touched
        The keys outside of which no row differs from an earlier version of the table; None: not
        known.
    lost_s
        The seconds of an attempt to maintain the table, after which all rows were computed.
    """

    columns: tuple[Column, ...]
    measured: Measured
    staged: Staged | None = None
    view: View | None = None
    base: Snapshot | None = None
    kept_files: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    bytes: int = 0
    maintenance: Maintenance | None = None
    states: tuple[KeptState, ...] = ()
    keys_touched: int | None = None
    n_rewritten: int = 0
    n_kept: int | None = None
    touched: Touched | None = None
    lost_s: float = 0.0


@dataclass(slots=True)
class PendingBuild:
    """A build up to its publication.

    Whoever opened it with `Builder.work` owns its leases until the block ends. A parked build has
    given them back; `Builder.resume` and `Builder.publish_parked` take new ones. Nothing here
    survives its process: Dagster's steps can hand it to each other only in one process.

    Attributes
    ----------
    build
        Its record in the ledger.
    leases
        The leases under which it writes its table, and continues its history.
    computed
        None: not computed yet, or a table is reused.
    checks
        The results of its checks; no blocking one has failed once it is handed out.
    snapshot
        The snapshot to publish: set at once for a reused table, after the commit for a built one.
    used, taken
        The snapshots that its rows were computed from, and the one of another environment that it
        reuses.
    inherited
        Readers see the snapshot already, in an environment that theirs reads.
    state
        ``parked``: it waits for its publication, without its leases.
    """

    started: Started
    build: Build
    leases: tuple[Lease, ...]
    computed: Computed | None = None
    checks: tuple[CheckResult, ...] = ()
    snapshot: Snapshot | None = None
    used: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    inherited: bool = False
    state: Literal["open", "parked", "published"] = "open"

    @property
    def source(self) -> Source:
        """The source that it builds."""
        return self.started.source

    @property
    def step(self) -> Step:
        """The step of the plan that it carries out."""
        return self.started.step

    @property
    def table(self) -> str:
        """The name of the table that it writes."""
        return self.started.table

    @property
    def maintenance(self) -> str:
        """The method by which it computed rows; before that, or without rows, that of its step."""
        if self.build.action == "reused" and self.step.action == "build":
            return "stamp"
        return self.build.maintenance or self.step.maintenance

    @property
    def why(self) -> str:
        """The reason for this method."""
        if self.maintenance == self.step.maintenance:
            return self.step.why
        if self.maintenance == "stamp":
            return "the data is newer, but its rows are the same"
        return "the windows in which rows can differ are unknown"

    @property
    def attribution(self) -> Attribution:
        """The build to which Spark's jobs are attributed."""
        keys = self.step.keys or ()
        partitions = keys[0] if keys else ""
        if len(keys) > 1:
            partitions = f"{keys[0]}...{keys[-1]} ({len(keys)})"
        build = self.build
        return Attribution(
            self.source.key,
            partitions,
            build.build_uid,
            build.build_id,
            build.run_id or "",
            build.environment,
        )

    @property
    def measured(self) -> Measured | None:
        """Metrics of its rows; None where a table is reused."""
        return self.computed and self.computed.measured

    @property
    def staged(self) -> Staged | None:
        """The files that it wrote; None where there are none."""
        return self.computed and self.computed.staged
