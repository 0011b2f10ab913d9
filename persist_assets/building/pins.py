"""The versions of raw and external tables that one run reads.

    first look ─► one pin per raw table ─► everything in the run reads these versions
                        └► the ledger ─► the other processes of the run, if it has several

The invariant: within a run a table has one version, so everything that the run plans, computes and
publishes uses the same data. Looking needs no engine; updating copies of external tables (`sync`)
does.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.core.digests import FORMAT
from persist_assets.core.errors import GoneError, PersistError, StorageError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.external.coverage import version_of, why_pending
from persist_assets.external.status import externals
from persist_assets.planning.world import UNVERSIONED
from persist_assets.storage.changes import (
    keep_listing,
    listings_of,
    pin_version,
    version_of_same_rows,
)
from persist_assets.storage.raw import Pin, pin_raw

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from persist_assets.core.model.project import Needed
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.external.ingestion import Ingestion
    from persist_assets.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Shared:
    """The start time and the versions that a run takes over from an earlier reader.

    Attributes
    ----------
    environment
        Only runs in this environment take them over.
    started_at
        When the run counts as started, aware.
    pins
        The pins of raw tables whose data has versions, each with the table's BuildID.
    run_id
        The run whose processes share versions in the ledger; None: it has only one process.
    """

    environment: str
    started_at: datetime
    pins: Mapping[SourceID, tuple[BuildID, Pin]]
    run_id: str | None = None


_SHARED: ContextVar[Shared | None] = ContextVar("shared", default=None)


@contextmanager
def reading_as(shared: Shared) -> Generator[None]:
    """Make runs that this thread starts within the block read the versions of `shared`.

    Sources that a plan leaves out of a run then use the same data as those that the run builds, and
    the run counts as started when the plan looked. The processes of one run all read the same.
    """
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)


def find_shared(settings: Settings) -> Shared | None:
    """Return the versions that a run in an environment reads; None: it looks them up itself."""
    shared = _SHARED.get()
    return shared if shared is not None and shared.environment == settings.environment else None


STARTED = "started"
"""The subject, in the ledger, of the instant that a run with several processes started at."""


def begin_together(ledger: Ledger, settings: Settings, run_id: str, now: datetime) -> Shared:
    """Return what the processes of a run share, for one of them.

    Parameters
    ----------
    now
        When the run started, if this is its first process.
    """
    started = {"at": now.isoformat(), "environment": settings.environment}
    agreed = ledger.run_pins.record(run_id, {STARTED: started})[STARTED]
    return Shared(agreed["environment"], datetime.fromisoformat(agreed["at"]), {}, run_id)


TO_COME = "external:"
"""The prefix of versions that a copy of an external table does not hold yet."""


@dataclass(frozen=True, slots=True)
class Looked:
    """An external table as a run found it.

    Attributes
    ----------
    newest
        The version that its copy will be brought to.
    copy
        The copy that is held; None: there is none yet.
    """

    newest: str
    copy: LocalCopy | None


class Pins:
    """The versions of raw tables and of copies of external tables that one run reads.

    Parameters
    ----------
    ingestion
        Finds copies of external tables; one that has an engine can bring them up to date.
    fed
        Raw tables that assets of the same run may write: they are pinned when first read.
    started_at
        When the run started, aware. It stands for the version of data that has none.

    Attributes
    ----------
    absent
        Why raw tables cannot be read, by SourceID.
    """

    def __init__(self, ingestion: Ingestion, fed: Iterable[SourceID], started_at: datetime) -> None:
        self.ingestion, self.fed, self.started_at = ingestion, frozenset(fed), started_at
        self.settings, self.project = ingestion.settings, ingestion.project
        self.ledger = ingestion.ledger
        self.absent: dict[SourceID, str] = {}
        self._pins: dict[SourceID, Pin] = {}
        self._looked: dict[SourceID, Looked] = {}
        self._copies: dict[SourceID, LocalCopy] = {}
        self._usable: dict[SourceID, LocalCopy] = {}
        self._pending: dict[SourceID, str] = {}
        self._synced: set[SourceID] = set()
        self._unsynced: dict[SourceID, PersistError] = {}
        self._lock = threading.RLock()
        shared = find_shared(self.settings)
        self._run_id = shared.run_id if shared else None
        self._agreed: dict[str, Any] = {}
        if shared is not None:
            same = {s.source_id: s.build_id for s in self.project.sources}
            some = shared.pins.items()
            self._pins |= {s: pin for s, (build_id, pin) in some if same.get(s) == build_id}
        if self._run_id is not None:
            self._agreed = self.ledger.run_pins.fetch(self._run_id)

    @property
    def has_other_processes(self) -> bool:
        """Whether other processes execute steps of the same run."""
        return self._run_id is not None

    def shared(self) -> Shared:
        """Return what another run must read to use the same data, without unversioned data."""
        with self._lock:
            pins = {
                s: (self.project.by_id[s].build_id, pin)
                for s, pin in self._pins.items()
                if not self.project.by_id[s].external
                and not (pin.version or UNVERSIONED).startswith(UNVERSIONED)
            }
        return Shared(self.settings.environment, self.started_at, pins)

    # ------------------------------------------------------------------------------- raw tables

    def pin(self, source: Source) -> Pin:
        """Return the version of a raw table that this run reads.

        Raises
        ------
        StorageError
            There is no data.
        """
        assert source.raw is not None
        with self._lock:
            if source.source_id not in self._pins:
                for other in self.project.sources:
                    # External tables are read only when somebody needs them.
                    is_read = other is source or (other.raw is not None and not other.external)
                    if is_read and other.source_id not in self.fed:
                        self._look(other, required=other is source)
                if source.source_id in self.fed:
                    self._look(source, required=True)
                self._agree(source)
            return self._pins[source.source_id]

    def hold(self, source: Source, pin: Pin) -> None:
        """Make this run read a raw table at another version than the current one."""
        with self._lock:
            self._pins[source.source_id] = pin

    def find_version(self, source: Source) -> str | None:
        """Return the version of a raw table that this run reads, None where there is no data."""
        try:
            return self.pin(source).version
        except StorageError:
            return None

    def place(self, source: Source) -> tuple[str, str]:
        """Return the path and the format of a raw table, or of the copy of an external one."""
        assert source.raw is not None
        if source.external is not None:
            return self.ingestion.root(self.ingestion.copy_id(source)), "delta"
        return self.settings.resolve(source.raw.location or ""), source.raw.format

    def is_same(self, source: Source, since: str, until: str) -> bool:
        """Whether a version of a raw table certainly has the rows of an earlier one."""
        if since == until or source.external is None:
            return since == until
        return self.ingestion.is_same(source, since, until)

    def _look(self, source: Source, *, required: bool) -> None:
        if source.source_id in self._pins or source.raw is None:
            return
        try:
            agreed = None if source.external else self._agreed.get(source.source_id)
            pin = self._present(source) if agreed is None else self._restored(source, agreed)
        except StorageError as error:
            self.absent[source.source_id] = error.message
            if required:
                raise StorageError(
                    f"`{source.name}`: {error.message}", hint=error.hint, location=source.location
                ) from error
            return
        if pin.version is None:
            pin = replace(pin, version=f"{UNVERSIONED}{self.started_at.isoformat()}")
        self._pins[source.source_id] = pin

    def _agree(self, source: Source) -> None:
        """Share the versions that this process found with the others of the run, or adopt theirs.

        Parameters
        ----------
        source
            The raw table that this process needs.
        """
        if self._run_id is None:
            return
        own = {
            s: {"version": pin.version, "commit": pin.commit}
            for s, pin in self._pins.items()
            if s not in self._agreed and not self.project.by_id[s].external
        }
        if not own:
            return
        # Versions without agreement are not read: after an error, the next call looks again.
        pins = {s: self._pins.pop(s) for s in own}
        for pin in pins.values():
            keep_listing(self._listings, pin)
        agreed = self.ledger.run_pins.record(self._run_id, own)
        self._agreed |= agreed
        self._pins |= {s: pin for s, pin in pins.items() if agreed[s] == own[s]}
        for source_id in own.keys() - self._pins.keys():
            other = self.project.by_id[source_id]
            self._look(other, required=other is source)

    def _restored(self, source: Source, agreed: Mapping[str, Any]) -> Pin:
        """Return the version of a raw table that the run's processes have agreed on."""
        version: str = agreed["version"]
        if version.startswith(UNVERSIONED):
            return Pin(version)
        assert source.raw is not None
        place = self.settings.resolve(source.raw.location or "")
        try:
            return pin_version(
                source.raw,
                place,
                version,
                source.columns,
                commit=agreed["commit"],
                listings=self._listings,
            )
        except GoneError as error:
            raise StorageError(
                f"the data that this run began with is gone: {error.message}",
                hint="start another run, which begins with the present data",
            ) from error

    @cached_property
    def _listings(self) -> str:
        return listings_of(self.settings.warehouse, self.ledger.events.log_id())

    def _present(self, source: Source) -> Pin:
        """Return the present version of a raw table.

        For a Delta table, this is the version that published snapshots used, as long as no row was
        added or removed since. For an external table, it is its copy's version. If the copy has to
        be updated, a version that no copy has stands for the one to come: it stays the same as
        long as the table and the program do. (Time passing alone matters only to readers of the
        clock.)
        """
        assert source.raw is not None
        if source.external is None:
            place = self.settings.resolve(source.raw.location or "")
            pin = pin_raw(source.raw, place, columns=source.columns)
            same = version_of_same_rows(place, pin, self._known) if pin.commit is not None else None
            return pin if same is None else replace(pin, version=same)
        agreed = self._agreed_copy(source)
        if agreed is not None:
            return self._adopt(source, agreed)
        pending = self.ingestion.pending(source)
        copy = self.ingestion.find(source)
        self._looked[source.source_id] = Looked(pending.version, copy)
        if copy is not None and pending.is_nothing:
            self._copies[source.source_id] = copy
            return self.ingestion.pin(copy)
        if copy is not None and not pending.is_new and copy.format == FORMAT:
            self._usable[source.source_id] = copy
        self._pending[source.source_id] = why_pending(source, copy, pending)
        copy_state = copy and (sorted(copy.seen), copy.columns, copy.retired_at)
        needs = sorted(self.ingestion.needs(source))
        digest = sha256(repr((needs, copy_state)).encode()).hexdigest()[:8]
        return Pin(f"{TO_COME}{pending.version}+{digest}")

    @cached_property
    def _known(self) -> set[str]:
        """The versions of raw data that published snapshots were computed from."""
        return self.ledger.builds.fetch_current_versions()

    # -------------------------------------------------------------------------- external tables

    def sync(self, selected: Iterable[SourceID]) -> None:
        """Bring the copies of the external tables that sources are computed from up to date, once.

        Raises
        ------
        StorageError
            A table cannot be read. The error is the same for the whole run.
        """
        for source in externals(self.project, selected):
            with self._lock:
                if source.source_id in self._unsynced:
                    raise self._unsynced[source.source_id]
                if source.source_id not in self._synced and source.source_id not in self.fed:
                    copy_key = self.ingestion.copy_id(source)  # tables may share a copy
                    shared = (self._copies[s] for s in self._synced if s in self._copies)
                    copy = next((c for c in shared if c.copy_id == copy_key), None)
                    try:
                        copy = copy or self._agreed_copy(source, anew=True)
                        copy = copy or self._agree_on_copy(source, self.ingestion.sync(source))
                        self._pins[source.source_id] = self._adopt(source, copy)
                    except PersistError as error:
                        error.location = error.location or source.location
                        self._unsynced[source.source_id] = error
                        raise

    def _adopt(self, source: Source, copy: LocalCopy) -> Pin:
        """Let the run read a copy of an external table, and return its files."""
        pin = self.ingestion.pin(copy)
        self._copies[source.source_id] = copy
        self._looked[source.source_id] = Looked(copy.version, copy)
        self._synced.add(source.source_id)
        return pin

    def _agreed_copy(self, source: Source, *, anew: bool = False) -> LocalCopy | None:
        """Return the copy of an external table that the run's processes have agreed on, if any.

        Parameters
        ----------
        anew
            Ask the ledger, where other processes may have recorded one meanwhile.
        """
        if self._run_id is None:
            return None
        if anew:
            self._agreed = self.ledger.run_pins.fetch(self._run_id)
        agreed = self._agreed.get(f"copy {self.ingestion.copy_id(source)}")
        return None if agreed is None else copy_of(agreed)

    def _agree_on_copy(self, source: Source, copy: LocalCopy) -> LocalCopy:
        """Return the copy that all processes of the run read: this one, if it is the first."""
        if self._run_id is None:
            return copy
        subject = f"copy {copy.copy_id}"
        return copy_of(
            self.ledger.run_pins.record(self._run_id, {subject: facts_of(copy)})[subject]
        )

    def is_synced(self, source: Source) -> bool:
        """Whether this run has brought the copy of an external table up to date."""
        return source.source_id in self._synced

    def look(self, source: Source) -> Looked | None:
        """Return an external table as this run found it, None where it cannot be reached.

        This reads the table's version only, no rows.
        """
        return None if self.find_version(source) is None else self._looked.get(source.source_id)

    def find_copy(self, source: Source) -> LocalCopy | None:
        """Return the copy of an external table that this run reads, None where there is none."""
        return self._copies.get(source.source_id) or self.ingestion.find(source)

    def copies(self, source: Source) -> list[tuple[Source, LocalCopy]]:
        """Return the external tables that a source is computed from, and this run's copies of them.

        External tables below other tables that it reads are not among them.
        """
        tables = sorted({n.table for n in self.project.needs if n.reader == source.source_id})
        return [(self.project.by_id[t], self._copies[t]) for t in tables if t in self._synced]

    def seen(self) -> Mapping[SourceID, Mapping[SourceID, str]]:
        """Return the copies' versions since which readers of external tables see the same rows.

        See `versions_seen`.
        """
        pairs: list[tuple[Needed, LocalCopy]] = []
        for need in self.project.needs:
            copy = self._copies.get(need.table)
            usable = self._usable.get(need.table) if copy is None else None
            if usable is not None and need.predicate in usable.seen:
                copy = usable  # only other readers need more of it
            if copy is not None:
                pairs.append((need, copy))
        return versions_seen(pairs)

    def pending(self) -> dict[SourceID, str]:
        """Return why copies of external tables have to be brought up to date."""
        return {s: why for s, why in self._pending.items() if s not in self._copies}


def facts_of(copy: LocalCopy) -> dict[str, Any]:
    """Return a copy as JSON, for `copy_of`."""
    retired_at = copy.retired_at.isoformat() if copy.retired_at else None
    return asdict(copy) | {"as_of": copy.as_of.isoformat(), "retired_at": retired_at}


def copy_of(facts: Mapping[str, Any]) -> LocalCopy:
    """Return the copy that `facts_of` describes."""
    stored, retired_at = facts["stored"], facts["retired_at"]
    values: dict[str, Any] = {
        **facts,
        "columns": tuple(facts["columns"]),
        "as_of": datetime.fromisoformat(facts["as_of"]),
        "retired_at": None if retired_at is None else datetime.fromisoformat(retired_at),
        "stored": None if stored is None else tuple((name, kind) for name, kind in stored),
    }
    return LocalCopy(**values)


def versions_seen(
    needs: Iterable[tuple[Needed, LocalCopy]],
) -> dict[SourceID, dict[SourceID, str]]:
    """Return the copies' versions since which readers of external tables see the same rows.

    The outer key is the reader, the inner one the table. Of tables that share a copy, the later
    version counts.

    Parameters
    ----------
    needs
        The needs, each with the copy that holds its rows.
    """
    last: dict[tuple[SourceID, str], tuple[int, str]] = {}
    copies: dict[tuple[SourceID, SourceID], str] = {}
    for need, copy in needs:
        committed = copy.seen.get(need.predicate, copy.committed)
        pair = need.reader, copy.copy_id
        last[pair] = max((committed, version_of(copy, committed)), last.get(pair, (0, "")))
        copies[need.reader, need.table] = copy.copy_id
    versions: dict[SourceID, dict[SourceID, str]] = {}
    for (reader, table), copy_key in copies.items():
        versions.setdefault(reader, {})[table] = last[reader, copy_key][1]
    return versions
