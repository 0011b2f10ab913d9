"""Tables compared with their sources, which are recomputed from the same data.

    snapshot ─► the data it was computed from, pinned ─► rows, computed in Spark ─► compared

Nothing is written: no table, no event of the ledger, no manifest. The invariant: a table is only
compared with rows of the same raw versions and of the same rows of upstream tables. If one of them
can no longer be read, the table is skipped with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal

from persist_assets.building.observe import Observer
from persist_assets.building.pins import versions_seen
from persist_assets.building.reader import Reader
from persist_assets.building.strategies.windows import Window
from persist_assets.core.errors import ConflictError, GoneError, NotHeldError, PersistError
from persist_assets.core.model.snapshots import RawVersion, Snapshot
from persist_assets.core.partitions import boxes, expand, in_words
from persist_assets.engine.data_diff import NotCompared, RowsDiffer, compare_multisets
from persist_assets.engine.session import translated
from persist_assets.external.coverage import version_of
from persist_assets.planning.increments import parted_by
from persist_assets.planning.inputs import CONTENT, beneath, rows_version
from persist_assets.planning.world import CLOCK, UNVERSIONED, older_code
from persist_assets.storage.changes import pin_version
from persist_assets.storage.delta_tables import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.read_routing import Route
    from persist_assets.ledger.ledger import Ledger

Status = Literal["equal", "rounding", "different", "skipped", "failed"]
"""``rounding``: equal but for the last digits of floating-point numbers, see `ROUNDING`."""


_TAINTED = "its table is tainted, so nothing reads it"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one source.

    Attributes
    ----------
    snapshot
        The snapshot that the environment's readers get; None: there is none.
    reason
        Why it is skipped or failed, or what limits the comparison.
    hint
        What to do about it.
    difference
        How the table (`before`) differs from the computed rows (`after`), if they were compared.
    error
        Why it failed.
    """

    source: Source
    status: Status
    snapshot: Snapshot | None = None
    reason: str | None = None
    hint: str | None = None
    difference: RowsDiffer | None = None
    error: PersistError | None = None


def verify(
    settings: Settings,
    project: Project,
    ledger: Ledger,
    engine: Engine,
    selected: Iterable[SourceID],
    *,
    sample: int = 5,
) -> Iterator[Verification]:
    """Yield whether the tables of sources have the rows that their queries return.

    Rows are computed when a result is asked for. An error in one source does not stop the others.

    Parameters
    ----------
    selected
        Persisted sources.
    sample
        The maximum number of differing rows of each side.
    """
    verifier = _Verifier(settings, project, ledger, engine, sample)
    for source_id in selected:
        yield verifier.verify(project.by_id[source_id])


class _NotComparableError(PersistError):
    """A table cannot be compared with rows of the same data."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a table that were computed from the same data.

    Attributes
    ----------
    inputs
        Their direct inputs, as in a snapshot.
    keys
        Their partitions; empty: all rows.
    """

    inputs: AsOf
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Basis:
    """The data from which rows are recomputed.

    Attributes
    ----------
    reader
        Reads raw tables at the recorded versions.
    read
        The upstream tables, and the copies of external tables.
    raws
        The raw tables that are read, except external ones.
    day
        The day on which rows have to be computed, for sources that read it.
    """

    reader: Reader
    read: Mapping[SourceID, Snapshot | Route]
    raws: tuple[Source, ...]
    day: str | None = None


class _Verifier:
    """Verifies tables of one environment, one after the other."""

    def __init__(
        self, settings: Settings, project: Project, ledger: Ledger, engine: Engine, sample: int
    ) -> None:
        self.settings, self.project, self.ledger, self.engine = settings, project, ledger, engine
        self.sample = sample
        self.observer = Observer(settings, project, ledger, engine=engine)
        self.manifest = self.observer.published()
        self.tainted = self.observer.tainted(self.manifest)

    def verify(self, source: Source) -> Verification:
        """Return the result for one source."""
        snapshot = self.manifest.get(source.build_id)
        try:
            if snapshot is None:
                why = f"it is not built in `{self.settings.environment}`"
                raise _NotComparableError(why, hint=_build(source))
            self._check_kind(source, snapshot)
            return self._compared(source, snapshot)
        except _NotComparableError as why:
            return Verification(source, "skipped", snapshot, why.message, why.hint)
        except PersistError as error:
            return Verification(source, "failed", snapshot, error.message, error.hint, error=error)
        finally:
            self.engine.forget()

    def _check_kind(self, source: Source, snapshot: Snapshot) -> None:
        """Refuse tables that cannot be recomputed from data that can still be read."""
        if snapshot.view is not None:
            raise _NotComparableError("it is a stored query, which readers compute")
        if source.keeps_history:
            raise _NotComparableError("it keeps a history, which depends on all earlier builds")
        if source.volatile:
            raise _NotComparableError("it is nondeterministic: each build may return other rows")
        if older_code(snapshot) is not None:
            raise _NotComparableError(
                "some of its rows were computed by an older definition (on_change=continue)",
                hint=f"compute all rows: persist build {source.key} --full-refresh",
            )
        if source.source_id in self.tainted and source.annotation.partition is None:
            raise _NotComparableError(_TAINTED, hint=_build(source))

    # ------------------------------------------------------------------------------- comparing

    def _compared(self, source: Source, snapshot: Snapshot) -> Verification:
        """Return the result for a table whose rows can be computed again."""
        bases: list[tuple[_Part, _Basis]] = []
        refusals: list[tuple[_Part, _NotComparableError]] = []
        parts, tainted = self._parts(source, snapshot)
        if tainted:
            refusals.append(
                (_Part((), tainted), _NotComparableError(_TAINTED, hint=_build(source)))
            )
        for part in parts:
            try:
                bases.append((part, self._basis(source, part.inputs)))
            except _NotComparableError as why:
                refusals.append((part, why))
        if refusals and not bases:
            raise refusals[0][1]
        table = self.engine.load_snapshot(snapshot)
        with translated(f"comparing {snapshot.table} with its source"):
            rows = self._rows(source, snapshot, bases, table)
            if refusals:
                keys = [key for part, _ in bases for key in part.keys]
                table = table.where(self._window(source, snapshot, keys))
            difference = compare_multisets(table, rows, key=key_of(source), sample=self.sample)
        for _, basis in bases:
            self._check_still(source, basis)
        if isinstance(difference, NotCompared):
            return Verification(source, "different", snapshot, difference.reason)
        result = Verification(source, _status(difference), snapshot, difference=difference)
        if result.status == "different":
            for _, basis in bases:
                self._check_upstream(basis)
        hint = None
        if source.annotation.by and result.status == "different":
            hint = f"remove by, and compute all rows: persist build {source.key} --full-refresh"
        return replace(result, reason=self._limits(source, result, refusals), hint=hint)

    def _parts(self, source: Source, snapshot: Snapshot) -> tuple[Sequence[_Part], tuple[str, ...]]:
        """Return the parts of a table that have different data, and its tainted partitions."""
        if source.annotation.partition is None:
            return (_Part(snapshot.inputs),), ()
        if snapshot.partitions is None:
            raise _NotComparableError(
                "its partitions are unknown: it was imported", hint=_build(source)
            )
        order = self.observer.keys()[source.source_id]
        marked = self.tainted.get(source.source_id, frozenset())
        groups = [(g.inputs, expand(order, g.runs)) for g in snapshot.partitions.filled]
        parts = [
            _Part(inputs, tuple(k for k in keys if k not in marked)) for inputs, keys in groups
        ]
        tainted = tuple(k for _, keys in groups for k in keys if k in marked)
        return [part for part in parts if part.keys], tainted

    def _window(self, source: Source, snapshot: Snapshot, keys: Iterable[str]) -> str:
        """Return the SQL condition for the rows of some partitions."""
        partition, columns = source.annotation.partition, parted_by(source, snapshot)
        if partition is None or not columns:
            raise _NotComparableError(
                "the types of the columns that it is partitioned by are unknown"
            )
        order = self.observer.keys()[source.source_id]
        kinds = [kind for _, kind in columns]
        return Window(columns, boxes(partition, kinds, [*keys], order)).condition

    def _rows(
        self,
        source: Source,
        snapshot: Snapshot,
        bases: Iterable[tuple[_Part, _Basis]],
        table: DataFrame,
    ) -> DataFrame:
        """Return the rows that the table should have."""
        frames: list[DataFrame] = []
        for part, basis in bases:
            frame = basis.reader.merged(source, basis.reader.compute(source, basis.read))
            if part.keys:
                frame = frame.where(self._window(source, snapshot, part.keys))
            frames.append(frame)
        if not frames:  # no partition is built
            return table.where("false")
        return reduce(lambda some, more: some.unionByName(more), frames)

    def _limits(
        self,
        source: Source,
        result: Verification,
        refusals: Sequence[tuple[_Part, _NotComparableError]],
    ) -> str | None:
        """Return notes about a result."""
        limits: list[str] = []
        if source.annotation.assume is not None and result.status == "different":
            limits.append("assume=exact: rows that arrived late are not in the table")
        if source.annotation.by and result.status == "different":
            by = ", ".join(source.annotation.by)
            limits.append(
                f"by={by} may be wrong: rows of a key depend on more than the rows with this key"
            )
        if refusals:
            order = self.observer.keys()[source.source_id]
            keys = in_words(order, [key for part, _ in refusals for key in part.keys])
            reasons = "; ".join(dict.fromkeys(why.message for _, why in refusals))
            limits.append(f"not compared: partitions {keys} ({reasons})")
        return "; ".join(limits) or None

    def _check_still(self, source: Source, basis: _Basis) -> None:
        """Refuse a comparison if the data changed while it was read."""
        try:
            basis.reader.check_unchanged(basis.raws)
        except ConflictError as error:
            raise _NotComparableError(error.message, hint=error.hint) from error
        if basis.day is not None and basis.day != self._today():
            raise _NotComparableError("the day ended while it was computed", hint=_build(source))

    def _check_upstream(self, basis: _Basis) -> None:
        """Refuse a comparison if upstream tables no longer have the rows that were published."""
        for source_id, snapshot in basis.read.items():
            if not isinstance(snapshot, Snapshot) or snapshot.view is not None:
                continue
            name = self.project.by_id[source_id].key
            rows = self.engine.load_snapshot(snapshot)
            if self.engine.measure(rows, (), None, name).content != snapshot.content:
                raise _NotComparableError(
                    f"the table of `{name}`, which it reads, no longer has the published rows",
                    hint=f"verify it: persist verify {name}",
                )

    # ---------------------------------------------------------------------------------- the data

    def _basis(self, source: Source, inputs: AsOf) -> _Basis:
        """Return the data that rows were computed from.

        Raises
        ------
        _NotComparableError
            Some of it is gone, has changed or is unknown.
        """
        contents = self._contents(inputs)
        reached = self.project.reach(
            source.bindings, lambda s: s.raw is not None or s.source_id in contents
        )
        read = {
            s.source_id: self._published(source, s, *contents[s.source_id])
            for s in reached
            if s.source_id in contents
        }
        others = [s for s in reached if s.source_id not in read]
        inlined = [s for s in others if s.raw is None]
        observer = Observer(self.settings, self.project, self.ledger, engine=self.engine)
        reader = Reader(observer, self.engine, local=True)
        day = self._day(source, inlined, inputs)
        raws = [(raw, _versions(source, raw, inputs)) for raw in others if raw.raw is not None]
        readers = {source.source_id, *(s.source_id for s in inlined if s.persisted)}
        for raw, versions in raws:
            if raw.external is not None:
                self._check_copy(source, reader, raw, versions, readers)
        plain = {raw.source_id: versions for raw, versions in raws if raw.external is None}
        plain = self._with_views(source, read.values(), plain)
        for source_id, versions in plain.items():
            self._hold(source, reader, self.project.by_id[source_id], versions)
        try:
            routes = reader.routed([source.source_id], read)
        except NotHeldError as error:
            raise _NotComparableError(error.message, hint=_build(source)) from error
        return _Basis(reader, routes, tuple(self.project.by_id[s] for s in plain), day)

    def _contents(self, inputs: AsOf) -> dict[SourceID, tuple[BuildID, str]]:
        """Return the sources that were read from their tables, with BuildIDs and contents.

        A source may have another BuildID by now: its readers keep theirs if only columns changed
        that they do not read.
        """
        sources: dict[BuildID, list[SourceID]] = {}
        for other in self.project.sources:
            sources.setdefault(other.build_id, []).append(other.source_id)
        contents: dict[SourceID, tuple[BuildID, str]] = {}
        for read in inputs:
            if not read.version.startswith(CONTENT):
                continue
            content = rows_version(read.version).removeprefix(CONTENT)
            names = sources.get(read.raw, [])
            if not names:
                builds = self.ledger.builds.fetch_succeeded(read.raw)
                names = [b.source_id for b in builds[:1] if b.source_id in self.project.by_id]
            contents |= dict.fromkeys(names, (read.raw, content))
        return contents

    def _published(
        self, source: Source, upstream: Source, build_id: BuildID, content: str
    ) -> Snapshot:
        """Return a snapshot of an upstream table with the rows that were read."""
        builds = self.ledger.builds.fetch_succeeded(build_id)
        snapshots = [self.manifest.get(build_id), *(b.snapshot for b in builds)]
        for snapshot in snapshots:
            if snapshot is not None and snapshot.content == content and self._exists(snapshot):
                return snapshot
        raise _NotComparableError(
            f"the rows of `{upstream.key}` that it was computed from were collected",
            hint=_build(source),
        )

    def _exists(self, snapshot: Snapshot) -> bool:
        """Whether the files of a table are complete; for a view, of the tables that it reads."""
        return all(
            isinstance(leaf, RawVersion)
            or (leaf is not None and is_whole(self.settings.table_root(leaf.table), leaf))
            for leaf in beneath(self.ledger.builds.find_written, snapshot)
        )

    def _day(self, source: Source, inlined: Iterable[Source], inputs: AsOf) -> str | None:
        """Return the day on which rows have to be computed, None if it does not matter."""
        clocks = {s.reads_clock for s in (source, *inlined)}
        for other in inlined:
            if other.varies:
                raise _NotComparableError(f"it was computed from `{other.key}`, which varies")
        if "instant" in clocks:
            raise _NotComparableError("it reads the clock, and the instant of its build is past")
        if "day" not in clocks:
            return None
        days = {v.version for v in inputs if v.raw == CLOCK}
        if days != {self._today()}:
            recorded = ", ".join(sorted(days)) or "an unknown day"
            raise _NotComparableError(
                f"it reads the date, and was computed on {recorded}", hint=_build(source)
            )
        return self._today()

    def _today(self) -> str:
        return datetime.now(UTC).astimezone(self.settings.timezone).date().isoformat()

    def _with_views(
        self,
        source: Source,
        snapshots: Iterable[Snapshot],
        versions: Mapping[SourceID, frozenset[str]],
    ) -> dict[SourceID, frozenset[str]]:
        """Return versions of raw tables, with those that upstream views read."""
        raws = {s.build_id: s.source_id for s in self.project.sources if s.raw is not None}
        more = dict(versions)
        for snapshot in snapshots:
            for leaf in beneath(self.ledger.builds.find_written, snapshot):
                if not isinstance(leaf, RawVersion):
                    continue
                if leaf.raw not in raws:
                    why = f"it reads the view {snapshot.table} of data that is no longer declared"
                    raise _NotComparableError(why, hint=_build(source))
                raw = raws[leaf.raw]
                more[raw] = more.get(raw, frozenset()) | {leaf.version}
        return more

    def _hold(self, source: Source, reader: Reader, raw: Source, versions: frozenset[str]) -> None:
        """Pin a raw table to the version from which rows were computed."""
        assert raw.raw is not None
        if len(versions) > 1:
            raise _NotComparableError(f"it mixes versions of `{raw.key}`", hint=_build(source))
        (version,) = versions
        if version.startswith(UNVERSIONED):
            raise _NotComparableError(
                f"`{raw.key}` has no versions, so it may have other rows by now"
            )
        location = self.settings.resolve(raw.raw.location or "")
        try:
            pin = pin_version(raw.raw, location, version, raw.columns)
        except GoneError as error:
            why = f"the data of `{raw.key}` that it was computed from is gone: {error.message}"
            raise _NotComparableError(why, hint=_build(source)) from error
        reader.pins.hold(raw, pin)

    def _check_copy(
        self,
        source: Source,
        reader: Reader,
        table: Source,
        versions: frozenset[str],
        readers: Iterable[SourceID],
    ) -> None:
        """Refuse if a copy of an external table may have other rows than those that were read.

        Parameters
        ----------
        readers
            The persisted sources that are computed from the copy.
        """
        copy = reader.ingestion.find(table)
        present: frozenset[str] = frozenset()
        if copy is not None:
            needs = [n for n in self.project.needs if n.table == table.source_id]
            seen = versions_seen((n, copy) for n in needs if n.reader in readers)
            present = frozenset(v for tables in seen.values() for v in tables.values())
            present = present or frozenset((version_of(copy, copy.committed),))
        if present != versions:
            raise _NotComparableError(
                f"the copy of `{table.key}` has other rows than it was computed from",
                hint=_build(source),
            )


def _versions(source: Source, raw: Source, inputs: AsOf) -> frozenset[str]:
    """Return the versions of a raw table that rows were computed from."""
    versions = frozenset(v.version for v in inputs if v.raw == raw.build_id)
    if not versions:
        raise _NotComparableError(
            f"the ledger does not say from which version of `{raw.key}` it was computed",
            hint=f"compute it: persist build {source.key} --full-refresh",
        )
    return versions


def key_of(source: Source) -> tuple[str, ...]:
    """Return the columns that identify a row, as far as the source states any."""
    if source.annotation.merge is not None:
        return source.annotation.merge.key
    return next((c.columns for c in source.checks if c.kind == "unique"), ())


def _status(difference: RowsDiffer) -> Status:
    if difference.rounding is not None:
        return "rounding"
    differs = difference.added or difference.removed or difference.uncompared
    return "different" if differs else "equal"


def _build(source: Source) -> str:
    return f"build it first: persist build {source.key}"
