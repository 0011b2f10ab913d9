"""The rows that a run reads: built tables, raw tables, and queries computed on the way.

    query ─► statement over tables and inlined sources ─► views of pinned versions ─► DataFrame

A source without a table is computed as part of the query. `freshness.fallback` of a source decides
what readers of a table past its freshness window get.

Builds read copies of external tables, which hold what the program's tables need. All other readers
get `routed` snapshots, which read the external table itself for whatever its copy lacks.
"""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.predicates.terms import TRUE, as_text
from persist_assets.building.held_relations import HeldRelations
from persist_assets.core.dialect import char_size, quote
from persist_assets.core.errors import (
    BuildError,
    ConflictError,
    GoneError,
    StaleError,
    StorageError,
    StrictError,
    did_you_mean,
)
from persist_assets.core.model.project import Needed
from persist_assets.core.time_values import UTC_NAMES, literal
from persist_assets.engine.named_files import one_after_another, padded
from persist_assets.engine.python_functions import call
from persist_assets.engine.session import translated
from persist_assets.external.coverage import short
from persist_assets.external.raw_rows import rows_by_log
from persist_assets.external.read_routing import Route, find_route
from persist_assets.planning.reasons import WHEN_OLD
from persist_assets.planning.render import Statement, stored_rows, substitute
from persist_assets.storage.file_columns import check_columns, check_moments
from persist_assets.storage.raw import OF_DELTA, Pin, pin_raw, still_holds
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import BuildID, Parameter, Query, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.protocol import Engine
    from persist_assets.engine.python_functions import Since
    from persist_assets.planning.world import World
    from persist_assets.storage.delta_commit import Staged

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a table.

    Attributes
    ----------
    files
        Only the rows of these files (absolute paths); None: of all files.
    where
        Only the rows for which this SQL condition holds; None: all rows.
    groups
        The files to read, group by group, so that rows arrive in the groups' order; empty: all
        files, in any order.
    """

    files: tuple[str, ...] | None = None
    where: str | None = None
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def digest(self) -> str:
        """A short text that identifies the slice."""
        return sha256(repr((self.files, self.where, self.groups)).encode()).hexdigest()[:16]


class Reader:
    """Reads the sources of one project in one environment during one run.

    Python functions without parameters load external data. A run calls each of them once, just as
    it reads one version of a raw table.

    Parameters
    ----------
    local
        Read external tables from their copies only, or fail.
    """

    def __init__(self, observer: Observer, engine: Engine, *, local: bool = False) -> None:
        self.observer, self.engine, self.local = observer, engine, local
        self.settings, self.project = observer.settings, observer.project
        self.ledger, self.pins = observer.ledger, observer.pins
        self.ingestion = observer.ingestion
        self.relations = HeldRelations(observer.project, observer.find_maintained)
        engine.define(self.project.udfs)
        self._run = uuid.uuid4().hex[:12]
        self._whole: dict[SourceID, Route] = {}
        self._called: dict[str, DataFrame] = {}
        self._calling: dict[str, threading.Lock] = {}
        self._lock = threading.RLock()
        self._complete: set[tuple[SourceID, str | None, tuple[Column, ...]]] = set()

    def statement(
        self,
        query: Query,
        bindings: Sequence[SourceID],
        manifest: Mapping[BuildID, Snapshot],
        temporary: Mapping[SourceID, Snapshot] | None = None,
        expired: Collection[SourceID] | None = None,
        needs: Iterable[Needed] | None = None,
    ) -> tuple[Statement, dict[SourceID, Snapshot | Route]]:
        """Return a query as a statement over built tables, and the snapshots it reads.

        Parameters
        ----------
        needs
            The rows and columns of external tables that it needs (`Loaded.needs_of`); None:
            everything that `bindings` need.
        temporary
            The temporary tables of this run.
        expired
            The sources whose tables were past their freshness window when the read was planned;
            None: decide by the clock now.

        Raises
        ------
        StrictError
            Strict mode is on, and persisted sources that it reads are not built; lists them all.
        StaleError
            A table is past its freshness window.
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
        """Return the snapshots to read, and the locations of external tables read on the way.

        Parameters
        ----------
        bindings
            The sources that are computed.
        needs
            The rows and columns of external tables that are needed, if fewer than for all rows of
            `bindings`.

        Raises
        ------
        NotHeldError
            A copy lacks rows, and its external table must not be read.
        StorageError
            A table cannot be reached.
        """
        needed = [*(self._needs_of_all(bindings, read) if needs is None else needs)]
        # A persisted source that is not read from its table is computed as a whole.
        computed = {
            s.source_id
            for s in self.project.reach(bindings, lambda s: s.source_id in read)
            if s.persisted and s.source_id not in read
        }
        needed += [n for n in self.project.needs if n.reader in computed]
        by_table: dict[SourceID, list[Needed]] = {}
        for need in needed:
            by_table.setdefault(need.table, []).append(need)
        routes: dict[SourceID, Snapshot | Route] = {**read}
        for table, some in by_table.items():
            source = self.project.by_id[table]
            copy = self.pins.find_copy(source)
            routes[table] = find_route(self.ingestion, source, some, copy, local=self.local)
        return routes

    def _needs_of_all(
        self, bindings: Sequence[SourceID], read: Mapping[SourceID, Snapshot]
    ) -> Iterable[Needed]:
        """Yield the needs of all rows of sources from external tables."""
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
        """Return the snapshots that are read for sources, and below those that are computed.

        Other parameters and errors are those of `statement`. Readers other than builds use
        `routed`.

        Parameters
        ----------
        sliced
            Tables of which only some files are read; their readers are computed too.
        whole
            Sources that are read from their own tables nevertheless.
        """
        snapshots: dict[SourceID, Snapshot | None] = {**(temporary or {})}
        through = self._readers_of(sliced, bindings, whole)
        snapshots |= dict.fromkeys(through)
        tainted = self.observer.tainted(manifest)

        def built(source: Source) -> Snapshot | None:
            if source.source_id not in snapshots:
                usable = source.persisted and source.source_id not in tainted
                snapshot = manifest.get(source.build_id) if usable else None
                snapshots[source.source_id] = snapshot and self._readable(source, snapshot, expired)
            return snapshots[source.source_id]

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
                hint="strict mode reads persisted sources only from their tables: build them first",
            )
        return read

    def untainted(self, world: World) -> dict[BuildID, Snapshot]:
        """Return the manifest without what is tainted in `world`.

        What a plan saw as tainted stays so for its builds, even if it was built again since: their
        inputs are recorded as planned.
        """
        tainted = {self.project.by_id[s].build_id for s in world.tainted}
        return {b: s for b, s in world.manifest.items() if b not in tainted}

    def _readers_of(
        self,
        tables: Collection[SourceID],
        bindings: Sequence[SourceID],
        whole: Collection[SourceID],
    ) -> set[SourceID]:
        """Return the readers of `tables` that are below `bindings` and not below `whole`."""
        readers: set[SourceID] = set()
        ends = {*tables, *whole}
        for source in self.project.reach(bindings, lambda s: s.source_id in ends):
            if not {*tables, *readers}.isdisjoint(source.bindings):
                readers.add(source.source_id)
        return readers - ends

    def _readable(
        self, source: Source, snapshot: Snapshot, expired: Collection[SourceID] | None = None
    ) -> Snapshot | None:
        """Return the snapshot that is read for a source, None if its query is computed instead.

        Parameters
        ----------
        expired
            The sources whose tables are past their freshness window; None: decide by the clock.

        Raises
        ------
        StaleError
            The table is past its freshness window, and the source forbids reading it then.
        """
        old = (
            self.observer.is_expired(source, snapshot)
            if expired is None
            else source.source_id in expired
        )
        if not old:
            return snapshot
        assert source.annotation.freshness is not None
        fallback = self.observer.fallback or source.annotation.freshness.fallback
        timestamp = snapshot.known_at.isoformat(timespec="seconds")
        message = f"the table of `{source.name}` is stale: it is as of {timestamp}"
        if fallback == "fail":
            raise StaleError(
                message, hint=f"build it: persist build {source.key}", location=source.location
            )
        log.warning("%s; %s", message, WHEN_OLD[fallback], extra={"action": "reads-old"})
        return snapshot if fallback == "stale_ok" else None

    def stated(
        self,
        query: Query,
        bindings: Sequence[SourceID],
        read: Mapping[SourceID, Snapshot | Route],
        only: Mapping[SourceID, Slice] | None = None,
        since: Since | None = None,
    ) -> Statement:
        """Return a query as a statement over snapshots, raw tables and results of functions.

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
                views[source.source_id] = self.raw_name(source)
        for source_id, part in (only or {}).items():
            if source_id in views:
                views[source_id] = f"{views[source_id]}+{part.digest}"
        low = None if since is None else literal(*since)
        return substitute(self.project, query, bindings, views, low)

    def leaves(
        self, bindings: Sequence[SourceID], read: Mapping[SourceID, Snapshot | Route]
    ) -> tuple[Source, ...]:
        """Return the raw tables that are read, through all computed sources."""
        reached = self.project.reach(bindings, lambda s: s.source_id in read)
        return tuple(s for s in reached if s.raw is not None and s.source_id not in read)

    def _function_name(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> str:
        """Return a name for a view of a function's result in this run, for these inputs."""
        below = self.project.reach([source.source_id], lambda s: s.source_id in read)
        names = repr(
            [(s.source_id, view_name(read[s.source_id])) for s in below if s.source_id in read]
        )
        short = sha256(f"{source.source_id} {names}".encode()).hexdigest()[:12]
        return f"{source.key}@{self._run}-{short}"

    def raw_name(self, source: Source) -> str:
        """Return a name for a view of a raw table that is unique across data and projects.

        Copies of data may share a version, and one relative path means different places in
        different projects.
        """
        assert source.raw is not None
        if source.external is not None and not self.pins.is_synced(source):
            return self._route_of_all(source).name
        place = self.settings.resolve(source.raw.location or "")
        pin = self.pins.pin(source)
        is_own = pin.commit is None or (pin.version or "").startswith(f"{OF_DELTA}{pin.commit}:")
        read = "" if is_own else f" {pin.commit}"
        digest = sha256(f"{source.build_id} {source.definition} {place}{read}".encode()).hexdigest()
        return f"{source.key}@{pin.version}-{digest[:12]}"

    def rows(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> DataFrame:
        """Return the lazy rows of a source: of a snapshot, of raw data, or of its own query.

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
        """Return the rows of a raw table; for an external one, the rows of its copy."""
        assert source.raw is not None
        if source.external is None:
            return self._load_pinned(source, self.pins.pin(source))
        if self.pins.is_synced(source):
            return self.engine.read_files("parquet", self.pins.pin(source), source.columns, {})
        return self._load_route(source, self._route_of_all(source))

    def _load_pinned(self, source: Source, pin: Pin) -> DataFrame:
        """Return the rows of a raw table at a version."""
        if not pin.by_log:
            self._check_columns(source, pin)
            return self.engine.load_raw(source, pin)
        with translated(f"reading `{source.name}`"):
            return rows_by_log(self.settings, source, pin, lambda: self.engine.session)

    def _check_columns(self, source: Source, pin: Pin) -> None:
        """Raise once if the files of a raw table do not have the declared columns."""
        checked = source.source_id, pin.version, source.columns
        if checked not in self._complete:
            check_columns(source, pin)
            if self.settings.timezone.key not in UTC_NAMES:
                check_moments(source, pin)
            self._complete.add(checked)

    def _route_of_all(self, source: Source) -> Route:
        """Return the location of all rows of an external table; no build of this run reads them."""
        with self._lock:
            if source.source_id not in self._whole:
                copy = self.pins.find_copy(source)
                self._whole[source.source_id] = find_route(
                    self.ingestion, source, [_whole(source)], copy, local=self.local
                )
            return self._whole[source.source_id]

    def _load_route(self, source: Source, route: Route) -> DataFrame:
        """Return the rows of an external table from their location; other columns are NULL."""
        if route.copy is not None:
            pin = self.ingestion.pin(route.copy)
            return self.engine.read_files("parquet", pin, source.columns, {})
        try:
            with (
                translated(f"reading `{source.name}`"),
                self.ingestion.connected(source) as connector,
            ):
                rows = connector.snapshot(route.predicate, route.columns, route.version)
        except GoneError as error:
            raise GoneError(
                f"the query needs more of `{source.name}` than its copy holds, and version"
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
        """Return the rows of a source computed by its query, even if it has a table.

        Rows with a merge key are not merged; see `merged`.

        Parameters
        ----------
        since
            The lower bound of the wanted rows, for sources that state that their rows follow from
            rows from this bound on; the result may have earlier rows too.
        """
        read = {k: v for k, v in read.items() if k != source.source_id}
        if source.function is not None:
            return self._returned(source, read) if since is None else self.call(source, read, since)
        assert source.query is not None
        statement = self.stated(source.query, source.bindings, read, only, since)
        return self.load(statement, read, source.computed, only)

    def _returned(self, source: Source, read: Mapping[SourceID, Snapshot | Route]) -> DataFrame:
        """Return the result of a function; a run calls it once for the same inputs."""
        name = self._function_name(source, read)
        with self._lock:
            lock = self._calling.setdefault(name, threading.Lock())
        with lock:
            if name not in self._called:
                self._called[name] = self.call(source, read)
            return self._called[name]

    def call(
        self,
        source: Source,
        read: Mapping[SourceID, Snapshot | Route],
        since: Since | None = None,
        cut: Callable[[Parameter, Source, DataFrame], DataFrame] = lambda _, __, rows: rows,
    ) -> DataFrame:
        """Return the result of the function of a source.

        Parameters
        ----------
        cut
            Takes a parameter, its source and all rows of it, and returns those that the function
            gets.
        """
        function = source.function
        assert function is not None
        by_name = {
            p.name: (p, self.project.by_id[b])
            for p, b in zip(function.frames, source.bindings, strict=True)
        }

        def rows(name: str) -> DataFrame:
            parameter, upstream = by_name[name]
            return _apart(cut(parameter, upstream, self.rows(upstream, read)))

        return call(
            source,
            self.settings.root,
            rows,
            lambda: self.engine.session,
            since,
        )

    def forget(self) -> None:
        """Release results of functions and views, which nothing reads after this run."""
        self._called.clear()
        self.engine.forget()
        self.relations.release()

    def load(
        self,
        statement: Statement,
        read: Mapping[SourceID, Snapshot | Route],
        columns: Sequence[Any] = (),
        only: Mapping[SourceID, Slice] | None = None,
    ) -> DataFrame:
        """Return the lazy rows of a statement; see `statement`."""
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

    def bytes_of(self, source_id: SourceID, read: Mapping[SourceID, Snapshot]) -> int | None:
        """Return the size of a table that a build reads, None if it is unknown."""
        if source_id in read:
            return read[source_id].bytes
        return self.pins.pin(self.project.by_id[source_id]).bytes

    def load_slice(
        self, source: Source, snapshot: Snapshot | Route | None, part: Slice
    ) -> DataFrame:
        """Return some rows of a raw table, or of a snapshot of a source."""
        if isinstance(snapshot, Route):
            return self._load_route(source, snapshot)
        if part.groups:
            if snapshot is None and source.external is None:  # once, and not group by group
                files = tuple(file for group in part.groups for file in group)
                self.engine.check_rows(source.name, replace(self.pins.pin(source), files=files))
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
            pin = self.pins.pin(source)
            self._check_columns(source, pin)
            rows = self.engine.load_raw(source, replace(pin, files=part.files))
        return rows if part.where is None else rows.where(part.where)

    def load_snapshot(self, snapshot: Snapshot) -> DataFrame:
        """Return the rows of a snapshot: of its table, or of its stored query over its inputs.

        Raises
        ------
        StorageError
            The table is gone, or data that the query reads has changed.
        """
        if snapshot.view is None:
            return self.engine.load_snapshot(snapshot)
        raws = {s.build_id: s for s in self.project.sources if s.raw is not None}
        for leaf in snapshot.view.leaves:
            read = leaf.build_uid and self.observer.find_written(leaf.build_uid)
            source = raws.get(leaf.raw.raw) if leaf.raw else None
            if read:
                self.engine.view(leaf.name, lambda s=read: self.load_snapshot(s))
            elif leaf.raw and source and self.pins.pin(source).version == leaf.raw.version:
                columns = {c.name: c for c in source.columns}
                had = tuple(columns[name] for name in leaf.columns or columns)
                shown, pin = replace(source, columns=had), self.pins.pin(source)
                self.engine.view(leaf.name, lambda s=shown, p=pin: self._load_pinned(s, p))
            else:
                raise StorageError(
                    f"{leaf.name}, which the view {snapshot.table} reads, is gone",
                    hint="build it again",
                )
        return self.engine.run(Statement(snapshot.view.sql, {}, ()), snapshot.columns)

    def staged_rows(self, staged: Staged, kept_files: Sequence[str] = ()) -> DataFrame:
        """Return the rows of written files and of the table's files that stay.

        Parameters
        ----------
        kept_files
            The paths of the files that stay.
        """
        paths = (*kept_files, *(f.path for f in staged.files))
        files = tuple(f"{staged.root}/{path}" for path in paths)
        return self.engine.read_files("parquet", Pin(None, files), staged.columns, {})

    def check_unchanged(self, leaves: Iterable[Source]) -> None:
        """Raise if files of raw tables changed while rows were computed from them.

        New files do not count: the next build reads them.

        Raises
        ------
        ConflictError
            Some files changed.
        """
        for source in leaves:
            if source.raw is None or self.pins.place(source)[1] == "delta":
                continue
            if self.pins.pin(source).files is None:
                continue
            place = self.settings.resolve(source.raw.location or "")
            now = pin_raw(source.raw, place, columns=source.columns)
            if not still_holds(self.pins.pin(source), now):
                raise ConflictError(
                    f"the data of `{source.name}` changed while it was being read",
                    hint="try again",
                )

    def read(self, source: Source) -> DataFrame:
        """Return the rows that readers of a source get now, from its table or computed."""
        if source.raw is not None:
            return self.rows(source, self.routed([source.source_id], {}))
        manifest = self.observer.published()
        usable = source.persisted and source.source_id not in self.observer.tainted(manifest)
        snapshot = manifest.get(source.build_id) if usable else None
        if snapshot is not None and (snapshot := self._readable(source, snapshot)) is not None:
            return self.load_snapshot(snapshot)
        _refuse_history(source)
        read = self.reading(source.bindings, manifest)
        return self.merged(source, self.compute(source, self.routed([source.source_id], read)))

    def merged(self, source: Source, frame: DataFrame) -> DataFrame:
        """Return the computed rows that go into the table of a source."""
        if source.annotation.merge is None and source.annotation.partition is None:
            return frame
        columns = columns_of_struct(frame.schema.jsonValue())
        partition = source.annotation.partition
        names = {c.name.lower() for c in columns}
        for dimension in partition.dimensions if partition else ():
            if dimension.column.lower() not in names:
                raise BuildError(
                    f"`{source.name}` has no column `{dimension.column}` to partition by",
                    hint=did_you_mean(dimension.column, (c.name for c in columns)),
                    location=source.location,
                )

        def query(name: str) -> str:
            return stored_rows(source, f"SELECT * FROM {quote(name)}", columns)

        return self.engine.over(frame, query)


def _refuse_history(source: Source) -> None:
    """Refuse to compute a source whose rows only its table has.

    Raises
    ------
    BuildError
        The source keeps a history.
    """
    if source.keeps_history:
        raise BuildError(
            f"`{source.name}` keeps a history but has no table to read it from",
            hint=f"build it: persist build {source.key}",
            location=source.location,
        )


def _apart(frame: DataFrame) -> DataFrame:
    """Return rows as a frame with columns of its own.

    ``a.key == b.key`` then compares two columns even if `a` and `b` come from one table.
    """
    with translated("reading a parameter"):
        return frame.toDF(*frame.columns)


def _whole(source: Source) -> Needed:
    """Return the need for all of an external table."""
    columns = tuple(sorted(c.name for c in source.columns))
    return Needed(source.source_id, source.source_id, as_text(TRUE), columns)


def view_name(snapshot: Snapshot | Route) -> str:
    """Return a name for a view of a snapshot that is unique across snapshots and projects."""
    if isinstance(snapshot, Route):
        return snapshot.name
    return f"{snapshot.table}@{snapshot.build_uid}"
