"""What a run reads: raw tables as they were when it first looked, and what is built.

    query ─► statement over tables and inlined sources ─► views of pinned versions ─► DataFrame

A name that is not read from a table is computed on the way. What is too old is treated as its
source says (`freshness.fallback`).

Of external tables builds read the copies, which hold what the program's tables need. All other
reading is given `routed` snapshots: it goes to the tables themselves for what the copies lack.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.predicates.terms import TRUE, as_text
from persist_assets.core.dialect import char_size, quote
from persist_assets.core.digests import FORMAT
from persist_assets.core.errors import (
    BuildError,
    GoneError,
    PersistError,
    StaleError,
    StorageError,
    StrictError,
    did_you_mean,
)
from persist_assets.core.model.project import Needed
from persist_assets.core.model.snapshots import RawVersion, Snapshot
from persist_assets.core.partitions import keys as partition_keys
from persist_assets.core.time_values import literal
from persist_assets.engine.named_files import one_after_another, padded
from persist_assets.engine.python_functions import call
from persist_assets.engine.session import translated
from persist_assets.external.coverage import copy_id, short, version_of, why_pending
from persist_assets.external.ingestion import Ingestion
from persist_assets.external.read_routing import Route, find_route
from persist_assets.external.status import externals
from persist_assets.planning.reasons import WHEN_OLD
from persist_assets.planning.render import Statement, kept, substitute
from persist_assets.planning.world import UNVERSIONED
from persist_assets.storage.changes import version_of_same_rows
from persist_assets.storage.delta_tables import has_snapshot
from persist_assets.storage.raw import OF_DELTA, Pin, pin_raw
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, Query, SourceID
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.python_functions import Since
    from persist_assets.engine.spark import Engine
    from persist_assets.ledger.ledger import Ledger


log = logging.getLogger(__name__)

HasSnapshot = Callable[[str, Snapshot], bool]

TO_COME = "external:"
"""What the versions begin with that copies of external tables do not have yet."""


@dataclass(frozen=True, slots=True)
class Looked:
    """An external table as a run found it.

    Attributes
    ----------
    newest
        Its version to bring a copy to.
    copy
        What is held of it; None: nothing yet.
    """

    newest: str
    copy: LocalCopy | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a table.

    Attributes
    ----------
    files
        Of these files alone, absolute paths; None: of all.
    where
        For which that holds, SQL; None: all.
    groups
        Those of its files that matter, read group by group, so that rows come in their order;
        empty: all, in any.
    """

    files: tuple[str, ...] | None = None
    where: str | None = None
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def digest(self) -> str:
        """A short text that no other slice has."""
        return sha256(repr((self.files, self.where, self.groups)).encode()).hexdigest()[:16]


class Reader:
    """Reads the sources of one project in one environment during one run.

    All raw tables are read at the versions they had when it first looked, so that everything
    rests on the same data.

    Parameters
    ----------
    fed
        Raw tables that assets of the same run may write: they are looked at when first read.
    fallback
        What readers get of every table that is older than it may be, instead of what its source
        says.
    clock
        Returns the present instant, aware.
    local
        External tables themselves are not read, but what is held of them or nothing.

    Functions that bring data from outside are called once, as they are raw tables.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        ledger: Ledger,
        engine: Engine,
        *,
        fed: Iterable[SourceID] = (),
        fallback: Fallback | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        local: bool = False,
    ) -> None:
        self.settings, self.project, self.ledger, self.engine = settings, project, ledger, engine
        self.fed = frozenset(fed)
        self.fallback: Fallback | None = fallback
        self.clock = clock
        self.local = local
        self.started_at = clock()
        self._pins: dict[SourceID, Pin] = {}
        self._looked: dict[SourceID, Looked] = {}
        self._copies: dict[SourceID, LocalCopy] = {}
        self._kept: dict[SourceID, LocalCopy] = {}
        self._behind: dict[SourceID, str] = {}
        self._synced: set[SourceID] = set()
        self._unsynced: dict[SourceID, PersistError] = {}
        self._whole: dict[SourceID, Route] = {}
        self._absent: dict[SourceID, str] = {}
        self._lock = threading.RLock()
        self._run = uuid.uuid4().hex[:12]
        self._called: dict[str, DataFrame] = {}
        self._calling: dict[str, threading.Lock] = {}

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
                    # Of external tables only those are asked that somebody wants.
                    asked = other is source or (other.raw is not None and not other.external)
                    if asked and other.source_id not in self.fed:
                        self._look(other, required=other is source)
                if source.source_id in self.fed:
                    self._look(source, required=True)
            return self._pins[source.source_id]

    def find_version(self, source: Source) -> str | None:
        """Return the version of a raw table that this run reads, None where there is no data."""
        try:
            return self.pin(source).version
        except StorageError:
            return None

    @cached_property
    def ingestion(self) -> Ingestion:
        """What brings copies of external tables up to date, and reads them."""
        given = (self.settings, self.project, self.ledger, self.engine)
        return Ingestion(*given, self.started_at)

    def sync(self, selected: Iterable[SourceID]) -> None:
        """Bring the copies of external tables up to date that sources are computed from, once.

        Raises
        ------
        StorageError
            One cannot be read. So it is for all of a run.
        """
        for source in externals(self.project, selected):
            with self._lock:
                if source.source_id in self._unsynced:
                    raise self._unsynced[source.source_id]
                if source.source_id not in self._synced and source.source_id not in self.fed:
                    own = copy_id(self.settings, source)  # which others may share
                    shared = (self._copies[s] for s in self._synced if s in self._copies)
                    copy = next((c for c in shared if c.copy_id == own), None)
                    try:
                        copy = copy or self.ingestion.sync(source)
                    except PersistError as error:
                        error.location = error.location or source.location
                        self._unsynced[source.source_id] = error
                        raise
                    self._copies[source.source_id] = copy
                    self._looked[source.source_id] = Looked(copy.version, copy)
                    self._pins[source.source_id] = self.ingestion.pin(copy)
                    self._synced.add(source.source_id)

    def look(self, source: Source) -> Looked | None:
        """Return an external table as this run found it, None where it cannot be reached.

        It costs what telling its version costs: no rows are read.
        """
        return None if self.find_version(source) is None else self._looked.get(source.source_id)

    def is_same(self, source: Source, since: str, until: str) -> bool:
        """Whether a version of a raw table certainly has the rows of an earlier one."""
        if since == until or source.external is None:
            return since == until
        return self.ingestion.is_same(source, since, until)

    def copies(self, source: Source) -> list[tuple[Source, LocalCopy]]:
        """Return the external tables that a source is computed from, and what this run has of them.

        What it reads from tables of others is theirs to tell.
        """
        tables = sorted({n.table for n in self.project.needs if n.reader == source.source_id})
        return [(self.project.by_id[t], self._copies[t]) for t in tables if t in self._synced]

    def seen(self) -> dict[SourceID, dict[SourceID, str]]:
        """Return of which versions of copies sources have rows: those since which they are so.

        Of tables that share a copy, the later one.
        """
        last: dict[tuple[SourceID, str], tuple[int, str]] = {}
        copies: dict[tuple[SourceID, SourceID], str] = {}
        for need in self.project.needs:
            copy = self._copies.get(need.table)
            kept = self._kept.get(need.table) if copy is None else None
            if kept is not None and need.predicate in kept.seen:
                copy = kept  # others need more of it
            if copy is not None:
                committed = copy.seen.get(need.predicate, copy.committed)
                pair = need.reader, copy.copy_id
                last[pair] = max((committed, version_of(copy, committed)), last.get(pair, (0, "")))
                copies[need.reader, need.table] = copy.copy_id
        found: dict[SourceID, dict[SourceID, str]] = {}
        for (reader, table), own in copies.items():
            found.setdefault(reader, {})[table] = last[reader, own][1]
        return found

    def _pin(self, source: Source) -> Pin:
        """Return the present version of a raw table.

        Of a Delta table that is the one that published snapshots rest on, as long as no rows came
        or went since. Of an external table it is its copy's, unless this has to be brought up to
        date: then a version that is none of it stands for what is to come. It is the same as long
        as the table and the program are. That the clock moves on brings rows to those alone who
        read it.
        """
        assert source.raw is not None
        if source.external is None:
            place = self.settings.resolve(source.raw.location or "")
            pin = pin_raw(source.raw, place)
            same = version_of_same_rows(place, pin, self._known) if pin.commit is not None else None
            return pin if same is None else replace(pin, version=same)
        pending = self.ingestion.pending(source)
        copy = self.ingestion.find(source)
        self._looked[source.source_id] = Looked(pending.version, copy)
        if copy is not None and pending.is_nothing:
            self._copies[source.source_id] = copy
            return self.ingestion.pin(copy)
        if copy is not None and not pending.is_new and copy.format == FORMAT:
            self._kept[source.source_id] = copy
        self._behind[source.source_id] = why_pending(source, copy, pending)
        held = copy and (sorted(copy.seen), copy.columns, copy.retired_at)
        needs = sorted(self.ingestion.needs(source))
        told = sha256(repr((needs, held)).encode()).hexdigest()[:8]
        return Pin(f"{TO_COME}{pending.version}+{told}")

    @cached_property
    def _known(self) -> set[str]:
        """The versions of raw data that published snapshots rest on."""
        return self.ledger.fetch_current_versions()

    def behind(self) -> dict[SourceID, str]:
        """Return of the external tables whose copies have to be brought up to date what is new."""
        return {s: told for s, told in self._behind.items() if s not in self._copies}

    def raw_place(self, source: Source) -> tuple[str, str]:
        """Return where the data of a raw table is, or its copy, and its format."""
        assert source.raw is not None
        if source.external is not None:
            return self.ingestion.root(copy_id(self.settings, source)), "delta"
        return self.settings.resolve(source.raw.location or ""), source.raw.format

    def _look(self, source: Source, *, required: bool) -> None:
        if source.source_id in self._pins or source.raw is None:
            return
        try:
            pin = self._pin(source)
        except StorageError as error:
            self._absent[source.source_id] = error.message
            if required:
                raise StorageError(
                    f"`{source.name}`: {error.message}", hint=error.hint, location=source.location
                ) from error
            return
        if pin.version is None:
            pin = replace(pin, version=f"{UNVERSIONED}{self.started_at.isoformat()}")
        self._pins[source.source_id] = pin

    def is_expired(self, source: Source, snapshot: Snapshot) -> bool:
        """Whether a table is older than its source's freshness window lets it be.

        Its age is that of the oldest of all that it rests on, as far as is known.
        """
        freshness = source.annotation.freshness
        age = self.clock() - snapshot.known_at
        return freshness is not None and age.total_seconds() > freshness.window_s

    def _readable(
        self, source: Source, snapshot: Snapshot, expired: Collection[SourceID] | None = None
    ) -> Snapshot | None:
        """Return what is read of a source, None where its query is computed instead.

        Parameters
        ----------
        expired
            The sources whose tables are older than they may be; None: the clock says it.

        Raises
        ------
        StaleError
            It is older than it may be, and its source says that it must not be read then.
        """
        old = self.is_expired(source, snapshot) if expired is None else source.source_id in expired
        if not old:
            return snapshot
        assert source.annotation.freshness is not None
        fallback = self.fallback or source.annotation.freshness.fallback
        known = snapshot.known_at.isoformat(timespec="seconds")
        told = f"the table of `{source.name}` is older than it may be: it is what was so at {known}"
        if fallback == "fail":
            raise StaleError(
                told, hint=f"build it: persist build {source.key}", location=source.location
            )
        log.warning("%s; %s", told, WHEN_OLD[fallback])
        return snapshot if fallback == "stale_ok" else None

    def marks(self) -> dict[str, frozenset[str]]:
        """Return what of snapshots must not be used: see `Ledger.fetch_tainted`."""
        return self.ledger.fetch_tainted(*self.settings.environments)

    def tainted(self, manifest: Mapping[BuildID, Snapshot]) -> dict[SourceID, frozenset[str]]:
        """Return of which sources there is what must not be used, and which partitions of it."""
        marks = self.marks()
        found: dict[SourceID, frozenset[str]] = {}
        for build_id, snapshot in manifest.items():
            if (keys := marks.get(snapshot.build_uid)) is None:
                continue
            for source in self.project.by_build_id.get(build_id, ()):
                partition = source.annotation.partition
                if "" in keys and partition is not None:  # all of them
                    keys = frozenset(partition_keys(partition, self.started_at))
                found[source.source_id] = keys - {""}
        return found

    def is_there(self, snapshot: Snapshot, there: HasSnapshot = has_snapshot) -> bool:
        """Whether the table of a snapshot is there; of a view, all that it reads."""
        if snapshot.view is None:
            return there(self.settings.table_root(snapshot.table), snapshot)
        versions = {s.build_id: self.find_version(s) for s in self.project.sources if s.raw}
        return all(
            versions.get(leaf.raw) == leaf.version
            if isinstance(leaf, RawVersion)
            else leaf is not None and there(self.settings.table_root(leaf.table), leaf)
            for leaf in beneath(self.find_written, snapshot)
        )

    def find_written(self, build_uid: str) -> Snapshot | None:
        """Return the snapshot that a build wrote, unless it was collected, or None."""
        return self.ledger.find_written(build_uid)

    def statement(
        self,
        query: Query,
        bindings: Sequence[SourceID],
        manifest: Mapping[BuildID, Snapshot],
        temporary: Mapping[SourceID, Snapshot] | None = None,
        expired: Collection[SourceID] | None = None,
        needs: Iterable[Needed] | None = None,
    ) -> tuple[Statement, dict[SourceID, Snapshot | Route]]:
        """Return a query as a statement over what is built, and the snapshots it reads.

        Parameters
        ----------
        needs
            What it needs of external tables (`Loaded.needs_of`); None: all that `bindings` have.
        temporary
            The tables of this run.
        expired
            The sources whose tables were older than they may be when it was planned what is
            read; None: the clock says it now.

        Raises
        ------
        StrictError
            Strict mode is on, and not all that is persisted and read is built: lists it all.
        StaleError
            A table is older than it may be.
        NotHeldError, StorageError
            As for `routed`.
        """
        read = self.routed(bindings, self.reading(bindings, manifest, temporary, expired), needs)
        return self.stated(query, bindings, read), read

    def routed(
        self,
        bindings: Sequence[SourceID],
        read: Mapping[SourceID, Snapshot],
        needs: Iterable[Needed] | None = None,
    ) -> dict[SourceID, Snapshot | Route]:
        """Return what is read, and where external tables are that are read on the way.

        Parameters
        ----------
        bindings
            What is computed.
        needs
            What is needed of external tables, if that is less than all rows of `bindings` do.

        Raises
        ------
        NotHeldError
            A copy lacks rows, and its table is not to be read.
        StorageError
            A table cannot be reached.
        """
        asked = [*(self._needs_of_all(bindings, read) if needs is None else needs)]
        # What is persisted and not read from its table is computed as a whole.
        computed = {
            s.source_id
            for s in self.project.reach(bindings, lambda s: s.source_id in read)
            if s.persisted and s.source_id not in read
        }
        asked += [n for n in self.project.needs if n.reader in computed]
        wanted: dict[SourceID, list[Needed]] = {}
        for need in asked:
            wanted.setdefault(need.table, []).append(need)
        found: dict[SourceID, Snapshot | Route] = {**read}
        for table, some in wanted.items():
            source = self.project.by_id[table]
            held = self._copies.get(table) or self.ingestion.find(source)
            found[table] = find_route(self.ingestion, source, some, held, local=self.local)
        return found

    def _needs_of_all(
        self, bindings: Sequence[SourceID], read: Mapping[SourceID, Snapshot]
    ) -> Iterable[Needed]:
        """Yield what all rows of sources need of external tables."""
        for source_id in dict.fromkeys(bindings):
            source = self.project.by_id[source_id]
            if source.external is not None:
                yield _whole(source)
            elif source_id not in read:
                yield from self.project.needs_of(source_id)

    def reading(
        self,
        bindings: Sequence[SourceID],
        manifest: Mapping[BuildID, Snapshot],
        temporary: Mapping[SourceID, Snapshot] | None = None,
        expired: Collection[SourceID] | None = None,
        sliced: Collection[SourceID] = (),
        whole: Collection[SourceID] = (),
    ) -> dict[SourceID, Snapshot]:
        """Return the snapshots that are read of sources, and below those that are computed.

        Other parameters and errors are those of `statement`. Whoever is no build has it `routed`.

        Parameters
        ----------
        sliced
            Tables of which only some files are read: what reads them is computed too.
        whole
            What is read from its own table all the same.
        """
        known: dict[SourceID, Snapshot | None] = {**(temporary or {})}
        through = self._readers_of(sliced, bindings, whole)
        known |= dict.fromkeys(through)
        tainted = self.tainted(manifest)

        def built(source: Source) -> Snapshot | None:
            if source.source_id not in known:
                usable = source.persisted and source.source_id not in tainted
                snapshot = manifest.get(source.build_id) if usable else None
                known[source.source_id] = snapshot and self._readable(source, snapshot, expired)
            return known[source.source_id]

        reached = self.project.reach(bindings, lambda s: s.raw is not None or built(s) is not None)
        read: dict[SourceID, Snapshot] = {}
        missing: list[Source] = []
        for source in reached:
            if source.raw is not None:
                continue
            if (snapshot := built(source)) is not None:
                read[source.source_id] = snapshot
            elif source.persisted and source.source_id not in through:
                missing.append(source)
        for source in missing:
            _refuse_history(source)
        if missing and self.settings.strict:
            names = ", ".join(sorted(s.key for s in missing))
            raise StrictError(
                f"not built in `{self.settings.environment}`: {names}",
                hint="strict mode reads persisted sources from their tables only: build them first",
            )
        return read

    def stated(
        self,
        query: Query,
        bindings: Sequence[SourceID],
        read: Mapping[SourceID, Snapshot | Route],
        only: Mapping[SourceID, Slice] | None = None,
        since: Since | None = None,
    ) -> Statement:
        """Return a query as a statement over snapshots, raw tables and what functions return.

        Parameters are those of `compute`.
        """

        def is_view(source: Source) -> bool:
            return source.is_read_as_it_is or source.source_id in read

        views: dict[SourceID, str] = {}
        for source in self.project.reach(bindings, is_view):
            if source.source_id in read:
                views[source.source_id] = view_name(read[source.source_id])
            elif source.function is not None:
                views[source.source_id] = self._function_name(source, read)
            elif source.raw is not None:
                views[source.source_id] = self._raw_name(source)
        for source_id, part in (only or {}).items():
            if source_id in views:
                views[source_id] = f"{views[source_id]}+{part.digest}"
        low = None if since is None else literal(*since)
        return substitute(self.project, query, bindings, views, low)

    def leaves(
        self, bindings: Sequence[SourceID], read: Mapping[SourceID, Snapshot | Route]
    ) -> tuple[Source, ...]:
        """Return the raw tables among what is read, however far down it is computed."""
        reached = self.project.reach(bindings, lambda s: s.source_id in read)
        return tuple(s for s in reached if s.raw is not None and s.source_id not in read)

    def _function_name(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> str:
        """Return a name for a view of what a function returns in this run, of what it reads."""
        below = self.project.reach([source.source_id], lambda s: s.source_id in read)
        told = repr(
            [(s.source_id, view_name(read[s.source_id])) for s in below if s.source_id in read]
        )
        short = sha256(f"{source.source_id} {told}".encode()).hexdigest()[:12]
        return f"{source.key}@{self._run}-{short}"

    def rows(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> DataFrame:
        """Return the rows of a source, not yet computed: a snapshot's, raw ones, or as it says.

        Raises
        ------
        BuildError
            A function fails.
        """
        snapshot = read.get(source.source_id)
        if isinstance(snapshot, Route):
            return self._load_route(source, snapshot)
        if snapshot is not None:
            return self.load_snapshot(snapshot)
        if source.function is None and source.raw is not None:
            return self._load_raw(source)
        return self.merged(source, self.compute(source, read))

    def _load_raw(self, source: Source) -> DataFrame:
        """Return the rows of a raw table; of an external one, what a build reads of its copy."""
        assert source.raw is not None
        if source.external is None:
            return self.engine.load_raw(source, self.pin(source))
        if source.source_id in self._synced:
            return self.engine.read_files("parquet", self.pin(source), source.columns, {})
        return self._load_route(source, self._route_of_all(source))

    def _route_of_all(self, source: Source) -> Route:
        """Return where all rows of an external table are, which no build of this run reads."""
        with self._lock:
            if source.source_id not in self._whole:
                held = self._copies.get(source.source_id) or self.ingestion.find(source)
                self._whole[source.source_id] = find_route(
                    self.ingestion, source, [_whole(source)], held, local=self.local
                )
            return self._whole[source.source_id]

    def _load_route(self, source: Source, route: Route) -> DataFrame:
        """Return the rows of an external table from where they are; other columns are NULL."""
        if route.copy is not None:
            pin = self.ingestion.pin(route.copy)
            return self.engine.read_files("parquet", pin, source.columns, {})
        connector = self.ingestion.connector(source)
        try:
            with translated(f"reading `{source.name}`"):
                rows = connector.snapshot(route.predicate, route.columns, route.version)
        except GoneError as error:
            raise GoneError(
                f"`{source.name}` is asked for more than its copy holds, and version"
                f" {short(route.version)} is gone: {error.message}",
                hint=f"bring the copy up to date: persist external sync {source.key}",
                location=source.location,
            ) from error
        named = {*route.columns}
        kinds = {c.name: "string" if char_size(c.type) else c.type for c in source.columns}
        shaped = rows.selectExpr(
            *(
                f"{quote(name) if name in named else 'NULL'} :: {kind} AS {quote(name)}"
                for name, kind in kinds.items()
            )
        )
        return padded(shaped, source.columns)

    def compute(
        self,
        source: Source,
        read: Mapping[SourceID, Snapshot | Route],
        only: Mapping[SourceID, Slice] | None = None,
        since: Since | None = None,
    ) -> DataFrame:
        """Return the rows of a source as it says, whatever table of it there is.

        Not merged, where it has a merge key; see `merged`.

        Parameters
        ----------
        since
            From where on its rows are wanted, as far as it says that these follow from rows from
            there on: there may be earlier ones too.
        """
        read = {k: v for k, v in read.items() if k != source.source_id}
        if source.function is not None:
            return (
                self._returned(source, read) if since is None else self._call(source, read, since)
            )
        assert source.query is not None
        statement = self.stated(source.query, source.bindings, read, only, since)
        return self.load(statement, read, source.computed, only)

    def forget(self) -> None:
        """Let go of what functions returned and of views, which nobody reads after this run."""
        self._called.clear()
        self.engine.forget()

    def _returned(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> DataFrame:
        """Return what a function returns; in one run it is called once for what it reads."""
        name = self._function_name(source, read)
        with self._lock:
            lock = self._calling.setdefault(name, threading.Lock())
        with lock:
            if name not in self._called:
                self._called[name] = self._call(source, read)
            return self._called[name]

    def _call(
        self, source: Source, read: Mapping[SourceID, Snapshot | Route], since: Since | None = None
    ) -> DataFrame:
        function = source.function
        assert function is not None
        by_name = {
            p.name: self.project.by_id[b]
            for p, b in zip(function.frames, source.bindings, strict=True)
        }
        return call(
            source,
            self.settings.root,
            lambda parameter: _apart(self.rows(by_name[parameter], read)),
            lambda: self.engine.session,
            since,
        )

    def _readers_of(
        self,
        tables: Collection[SourceID],
        bindings: Sequence[SourceID],
        whole: Collection[SourceID],
    ) -> set[SourceID]:
        """Return what reads some of `tables`, below `bindings` and not below `whole`."""
        found: set[SourceID] = set()
        ends = {*tables, *whole}
        for source in self.project.reach(bindings, lambda s: s.source_id in ends):
            if not {*tables, *found}.isdisjoint(source.bindings):
                found.add(source.source_id)
        return found - ends

    def _raw_name(self, source: Source) -> str:
        """Return a name for a view of a raw table that no other data has, of whichever project.

        Copies of data may have one version, and projects beside each other mean other places by
        one relative path.
        """
        assert source.raw is not None
        if source.external is not None and source.source_id not in self._synced:
            return self._route_of_all(source).name
        place = self.settings.resolve(source.raw.location or "")
        pin = self.pin(source)
        is_own = pin.commit is None or (pin.version or "").startswith(f"{OF_DELTA}{pin.commit}:")
        read = "" if is_own else f" {pin.commit}"
        told = sha256(f"{source.build_id} {source.definition} {place}{read}".encode()).hexdigest()
        return f"{source.key}@{pin.version}-{told[:12]}"

    def load(
        self,
        statement: Statement,
        read: Mapping[SourceID, Snapshot | Route],
        columns: Sequence[Any] = (),
        only: Mapping[SourceID, Slice] | None = None,
    ) -> DataFrame:
        """Return the rows of a statement, not yet computed; see `statement`."""
        for source_id, view in statement.views.items():
            source = self.project.by_id[source_id]
            snapshot = read.get(source_id)
            if source.function is not None and snapshot is None:
                # Called before, for all views are made one after the other.
                frame = self._returned(source, read)
                self.engine.view(view, lambda f=frame: f)
            else:
                part = (only or {}).get(source_id, Slice())
                self.engine.view(
                    view, lambda s=source, r=snapshot, p=part: self.load_slice(s, r, p)
                )
        return self.engine.run(statement, columns)

    def load_slice(
        self, source: Source, snapshot: Snapshot | Route | None, part: Slice
    ) -> DataFrame:
        """Return some rows of a raw table, or of a snapshot of a source."""
        if isinstance(snapshot, Route):
            return self._load_route(source, snapshot)
        if part.groups:
            if snapshot is None and source.external is None:  # once, and not group by group
                files = tuple(file for group in part.groups for file in group)
                self.engine.check_rows(source.name, replace(self.pin(source), files=files))
            return one_after_another(
                lambda files: self.load_slice(source, snapshot, Slice(files, part.where)),
                part.groups,
            )
        if part.files is None and snapshot is not None:
            rows = self.load_snapshot(snapshot)
        elif part.files is None:
            rows = self._load_raw(source)
        elif snapshot is not None:
            rows = self.engine.read_files("parquet", Pin(None, part.files), snapshot.columns, {})
        elif source.external is not None:
            rows = self.engine.read_files("parquet", Pin(None, part.files), source.columns, {})
        else:
            rows = self.engine.load_raw(source, replace(self.pin(source), files=part.files))
        return rows if part.where is None else rows.where(part.where)

    def load_snapshot(self, snapshot: Snapshot) -> DataFrame:
        """Return the rows of a snapshot: of its table, or of its query over what it read then.

        Raises
        ------
        StorageError
            The table is gone, or data that the query read is not as it was.
        """
        if snapshot.view is None:
            return self.engine.load_snapshot(snapshot)
        raws = {s.build_id: s for s in self.project.sources if s.raw is not None}
        for leaf in snapshot.view.leaves:
            read = leaf.build_uid and self.find_written(leaf.build_uid)
            source = raws.get(leaf.raw.raw) if leaf.raw else None
            if read:
                self.engine.view(leaf.name, lambda s=read: self.load_snapshot(s))
            elif leaf.raw and source and self.pin(source).version == leaf.raw.version:
                columns = {c.name: c for c in source.columns}
                had = tuple(columns[name] for name in leaf.columns or columns)
                shown, pin = replace(source, columns=had), self.pin(source)
                self.engine.view(leaf.name, lambda s=shown, p=pin: self.engine.load_raw(s, p))
            else:
                raise StorageError(
                    f"{leaf.name} is gone, which the view {snapshot.table} reads",
                    hint="build it again",
                )
        return self.engine.run(Statement(snapshot.view.sql, {}, ()), snapshot.columns)

    def read(self, source: Source) -> DataFrame:
        """Return the rows that readers of a source see now: from its table, or computed."""
        if source.raw is not None:
            return self.rows(source, self.routed([source.source_id], {}))
        manifest = self.ledger.fetch_manifest(*self.settings.environments)
        usable = source.persisted and source.source_id not in self.tainted(manifest)
        snapshot = manifest.get(source.build_id) if usable else None
        if snapshot is not None and (snapshot := self._readable(source, snapshot)) is not None:
            return self.load_snapshot(snapshot)
        _refuse_history(source)
        read = self.reading(source.bindings, manifest)
        return self.merged(source, self.compute(source, self.routed([source.source_id], read)))

    def merged(self, source: Source, frame: DataFrame) -> DataFrame:
        """Return the rows that the table of a source has of all that it computes."""
        if source.annotation.merge is None and source.annotation.partition is None:
            return frame
        columns = columns_of_struct(frame.schema.jsonValue())
        partition = source.annotation.partition
        known = {c.name.lower() for c in columns}
        for dimension in partition.dimensions if partition else ():
            if dimension.column.lower() not in known:
                raise BuildError(
                    f"`{source.name}` has no column `{dimension.column}` to part it by",
                    hint=did_you_mean(dimension.column, (c.name for c in columns)),
                    location=source.location,
                )

        def query(name: str) -> str:
            return kept(source, f"SELECT * FROM {quote(name)}", columns)

        return self.engine.over(frame, query)


def _refuse_history(source: Source) -> None:
    """Refuse to compute what only a table knows.

    Raises
    ------
    BuildError
        The source keeps a history.
    """
    if source.keeps_history:
        raise BuildError(
            f"`{source.name}` keeps a history, and has no table to read it from",
            hint=f"build it: persist build {source.key}",
            location=source.location,
        )


def _apart(frame: DataFrame) -> DataFrame:
    """Return rows as a frame whose columns are no other frame's, whatever both are made of.

    So that ``a.key == b.key`` compares two columns where `a` and `b` come from one table.
    """
    with translated("reading a parameter"):
        return frame.toDF(*frame.columns)


def _whole(source: Source) -> Needed:
    """Return that all of an external table is needed."""
    columns = tuple(sorted(c.name for c in source.columns))
    return Needed(source.source_id, source.source_id, as_text(TRUE), columns)


def view_name(snapshot: Snapshot | Route) -> str:
    """Return a name for a view of a snapshot that no other snapshot has, of whichever project."""
    if isinstance(snapshot, Route):
        return snapshot.name
    return f"{snapshot.table}@{snapshot.build_uid}"


def beneath(
    find_written: Callable[[str], Snapshot | None], snapshot: Snapshot
) -> Iterable[Snapshot | RawVersion | None]:
    """Yield what the rows of a snapshot are read from: its table, or what its query reads.

    None stands for a table that was collected.

    Parameters
    ----------
    find_written
        Returns the snapshot that a build wrote, None if it was collected: `Ledger.find_written`.
    """
    if snapshot.view is None:
        yield snapshot
        return
    for leaf in snapshot.view.leaves:
        if leaf.build_uid is None:
            yield leaf.raw
        elif (read := find_written(leaf.build_uid)) is None:
            yield None
        else:
            yield from beneath(find_written, read)
