"""A copy is brought up to date: begun, grown, followed, retired."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import persist_assets.analysis.predicates as p
from persist_assets.core.dialect import quote
from persist_assets.core.errors import GoneError, StorageError, UnapprovedError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.time_values import EXACT, from_spark, literal, spelled
from persist_assets.engine.session import translated
from persist_assets.external.connectors.protocol import CHANGE, INSERT, Changes, Pruned
from persist_assets.external.coverage import Brought, Coverage, Pending, copy_root, needs_approval
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_deletions import delete_builds
from persist_assets.storage.delta_tables import file_sizes, find_table, live_files
from persist_assets.storage.raw import Pin, file_location

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, Row

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.time_values import Value
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.connectors.protocol import Connector
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.storage.delta_commit import Staged

log = logging.getLogger(__name__)
_BATCH = timedelta(days=1)
"""How long rows that nobody needs any more are kept at least, unless the program changes."""

_FILE, _NET, _READ = "_persist_file", "_persist_net", "_persist_read"
_HERE, _THERE = "_persist_here", "_persist_there"
_TELLING = ("timestamp", "bigint", "timestamp_ntz", "int", "date", "string")
"""Types of columns of which two tell most rows from others, the best first."""

_FEW_FILES = 3
"""So many files are written anew without a look at which of them have to be."""

_MOST_FILES_ANEW = 8
"""So many files of a copy are written anew rather than all of it, however few it has."""

_MOST_FILES, _FEWEST_ROWS, _MOST_ROWS = 200, 50_000, 1_000_000
"""A copy has about so many files, as whoever changes a row of one writes it anew; and so many rows
a file has at least and at most."""


def changes_between(
    connector: Connector,
    source: Source,
    since: str,
    until: str,
    predicate: str,
    columns: Collection[str],
) -> Changes:
    """Return what became of rows that are held, or why they are read anew."""
    found = connector.changes(since, until, predicate, sorted(columns))
    if found.load is None or found.only_came:
        return found
    if any("map<" in (c.type or "").lower() for c in source.columns if c.name in columns):
        return Changes(again="rows with maps changed")
    return found


def unfollowed(source: Source, head: str, why: str) -> StorageError:
    """Return the error of a table whose changes can no longer be followed."""
    return StorageError(
        f"`{source.name}` cannot be followed to version {head}, and the changes since"
        f" its copy started exist nowhere else: {why}",
        hint=f"start over: persist external sync {source.key} --again",
        location=source.location,
    )


def alternatives(term: Term) -> Iterator[Term]:
    """Yield predicates one of which holds where one does."""
    for part in p.disjuncts(term):
        if part.op == "in":
            value, *choices = part.args
            yield from (p.compared("=", value, choice) for choice in choices)
        else:
            yield part


class _NotHeld(Exception):
    """Rows went that were not there."""


@dataclass(frozen=True, slots=True)
class _Moved:
    """What is told of the rows that came and went between two versions.

    Attributes
    ----------
    came, went
        How many.
    gone
        Of columns, their type and the least and greatest value of the rows that went, where none
        is NULL.
    seen
        The predicates that are needed for which some of all these rows fit.
    """

    came: int
    went: int
    gone: Mapping[str, tuple[str, tuple[Value, Value]]]
    seen: Collection[str]


@dataclass(frozen=True, slots=True)
class Run:
    """What all syncs of a run have in common.

    Attributes
    ----------
    now
        What the clock says to all that is read in a run, aware.
    brought
        By copy, what was read and written for it so far; a sync adds to it.
    """

    settings: Settings
    ledger: Ledger
    engine: Engine
    now: datetime
    brought: dict[str, Brought]


class Sync:
    """One copy, while it is brought up to date."""

    def __init__(
        self,
        run: Run,
        source: Source,
        connector: Connector,
        copy_id: str,
        wanted: Coverage,
        *,
        approved: bool,
    ) -> None:
        self.approved, self.settings = approved, run.settings
        self.source, self.connector, self.copy_id, self.wanted = source, connector, copy_id, wanted
        self.engine, self.ledger, self.now = run.engine, run.ledger, run.now
        self.brought, self.step = run.brought, Brought()
        self.root = copy_root(run.settings, copy_id)
        assert source.raw is not None
        assert source.external is not None
        self.external = source.external
        self.key = self.external.key

    def begin(self, before: LocalCopy | None, start: str | None, head: str) -> LocalCopy:
        """Hold what is needed of a version, and nothing else."""
        version = start or head
        predicate = self.wanted.predicate
        made, cost = self._read(predicate, self.wanted.columns, version)
        if self.external.mode == "follow":
            made = made.where("false")
        return self._put(
            None,
            made,
            version,
            predicate,
            self.wanted.columns,
            read=cost,
            expected=cost.rows or 0,
            before=before,
            why="it is new",
        )

    def grow(self, held: LocalCopy, pending: Pending) -> LocalCopy:
        """Hold what is needed and was not, of the version that is held."""
        if pending.missing == p.FALSE:
            return held
        has = p.from_text(held.predicate)
        predicate = p.union((has, self.wanted.predicate))
        whole = len(pending.columns) > len(held.columns)
        try:
            if whole and self.key and {*self.key} <= {*held.columns}:
                made, cost = self._beside(held, pending)
            else:
                made, cost = self._read(pending.missing, pending.columns, held.version)
        except GoneError as error:
            raise GoneError(
                f"`{self.source.name}` needs more rows of version {held.version}, which is gone:"
                f" {error.message}",
                hint=f"read it again in full: persist external sync {self.source.key} --again",
                location=self.source.location,
            ) from error
        kept = () if whole else self._files(held)
        rows = cost.rows or 0
        return self._put(
            held,
            made,
            held.version,
            predicate,
            pending.columns,
            read=cost,
            kept=kept,
            expected=rows if whole else held.rows + rows,
            why="columns are needed" if whole else "rows are needed",
        )

    def _beside(self, held: LocalCopy, pending: Pending) -> tuple[DataFrame, Pruned]:
        """Return the rows that are held with the columns that they lack, and those that are not.

        Of the first nothing is read but these columns and the primary key, which tells whose they
        are.
        """
        from pyspark.sql import functions as F

        cost = self._cost(pending.missing, held.version)
        lacking = [c for c in pending.columns if c not in held.columns]
        columns = [quote(c) for c in pending.columns]
        there = self._local(held, self._files(held)).drop(_FILE).withColumn(_HERE, F.lit(1))
        more = self._rows(p.from_text(held.predicate), [*self.key, *lacking], held.version)
        both = there.join(more.withColumn(_THERE, F.lit(1)), [*self.key], "full")
        told = (
            f"the copy of {self.source.key} has different keys than the table: fetch it again:"
            f" persist external sync {self.source.key} --again"
        )
        failed = f"raise_error({literal(told, 'string')})"
        met = f"CASE WHEN {_HERE} + {_THERE} = 2 THEN true ELSE {failed} END"
        made = both.where(met).select(*columns)
        if pending.unheld != p.FALSE:
            new = self._rows(pending.unheld, pending.columns, held.version)
            made = made.unionByName(new.select(*columns))
        order = next(iter(self._telling(pending.columns)), None)
        if order is not None:  # else files are in that of the key, and all changes are in all
            made = made.repartitionByRange(quote(order)).sortWithinPartitions(quote(order))
        return made, cost

    def follow(self, held: LocalCopy, head: str) -> LocalCopy:
        """Hold the rows of a later version."""
        now, wanted = self.connector, (held.predicate, held.columns)
        with translated(f"following `{self.source.name}`"):
            found = changes_between(now, self.source, held.version, head, *wanted)
        if found.again is not None:
            return self._anew(held, head, found.again)
        with translated(f"following `{self.source.name}`"):
            changes = found.frame
            if changes is None:
                return self._unmoved(held, head)
            if found.only_came:
                return self._append(held, head, changes, found.read)
            return self._apply(held, head, changes, found.read)

    def _unmoved(self, held: LocalCopy, head: str) -> LocalCopy:
        """Hold the same rows as those of a later version."""
        told = {"inserted": 0, "deleted": 0}
        return self._record(replace(held, version=head, as_of=self.now), held, told)

    def _append(self, held: LocalCopy, head: str, came: DataFrame, cost: Pruned) -> LocalCopy:
        """Hold rows that came, measured while they are written."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation, measures = Observation(), self._measures(held)
        rows = came.select(*map(quote, held.columns), F.lit(1).alias(_NET))
        named = [F.expr(text).alias(f"m{n}") for n, text in enumerate(measures)]

        def tell(staged: Staged) -> _Moved:
            if not staged.rows:  # then Spark may have left out what observes them
                return _Moved(0, 0, {}, ())
            found = observation.get
            return self._moved(held, [found[f"m{n}"] for n in range(len(measures))])

        made = rows.observe(observation, *named).drop(_NET)
        return self._advance(held, head, made, self._files(held), tell, cost)

    def _apply(self, held: LocalCopy, head: str, changes: DataFrame, cost: Pruned) -> LocalCopy:
        """Hold the rows that came, and not those that went."""
        from pyspark.sql import functions as F

        names = [quote(c) for c in held.columns]
        sign = F.when(F.col(CHANGE) == INSERT, 1).otherwise(-1)
        met = self._met(changes.select(*names, sign.alias(_NET))).persist()
        try:
            measures = [f"sum({_READ})", *self._measures(held)]
            n_read, *measured = met.selectExpr(*measures).collect()[0]
            self._count(Brought(n_read or 0, cost.bytes))
            moved = self._moved(held, measured)
            if not moved.came and not moved.went:
                return self._unmoved(held, head)
            net = _net(met)
            made, files, n_rows, read = _several(net), self._files(held), None, None
            if moved.went:  # only files that they are in are written anew
                gone = net.where(f"{_NET} < 0")
                touched = self._touched(held, moved, gone)
                files = tuple(f for f in files if f not in touched)
                most = max(len(files), _MOST_FILES_ANEW)
                anew = None
                if len(touched) > most and self.external.starts_anywhere:
                    with suppress(UnapprovedError):  # what is held does as well, if slower
                        anew = self._read(p.from_text(held.predicate), held.columns, head)
                if anew is not None:
                    (made, read), files = anew, ()
                else:
                    rest = self._without(self._local(held, [*touched]).select(*names), gone)
                    made = self._parted(rest.unionByName(made), held, moved)
                    # What was there before the start may go without ever having been held.
                    if self.external.starts_anywhere:
                        n_rows = sum(touched.values()) + moved.came - moved.went

            def tell(staged: Staged) -> _Moved:
                if n_rows not in (None, staged.rows):
                    raise _NotHeld
                return moved

            return self._advance(held, head, made, files, tell, read)
        except _NotHeld:
            return self._anew(held, head, "the copy lacks rows that were removed")
        finally:
            met.unpersist()

    def _advance(
        self,
        held: LocalCopy,
        head: str,
        rows: DataFrame,
        kept: Sequence[str],
        moved: Callable[[Staged], _Moved],
        read: Pruned | None,
    ) -> LocalCopy:
        """Hold rows and files as those of a later version; see `_put`."""
        return self._put(
            held,
            rows,
            head,
            p.from_text(held.predicate),
            held.columns,
            read=read,
            kept=kept,
            expected=held.rows,
            moved=moved,
            why="it changed",
        )

    def _parted(self, rows: DataFrame, held: LocalCopy, moved: _Moved) -> DataFrame:
        """Return rows in two parts, those near rows that went and others, where they are few.

        Files of both would be looked at for all that goes later.
        """
        from pyspark.sql import functions as F

        name = next((c for c in self._telling(held.columns) if c in moved.gone), None)
        if name is None or moved.came + moved.went > _MOST_ROWS:
            return rows
        kind, span = moved.gone[name]
        low, high = (literal(value, kind) for value in span)
        near = f"{quote(name)} >= {low} AND {quote(name)} <= {high}"
        return rows.repartitionById(2, F.expr(f"IF({near}, 0, 1)"))

    def _ranged(self, held: LocalCopy) -> list[tuple[str, str]]:
        """Return the columns whose statistics are exact, with their types."""
        kinds = ((c.name, (c.type or "").lower()) for c in self._columns(held.columns))
        return [(c, kind) for c, kind in kinds if kind in EXACT]

    def _measures(self, held: LocalCopy) -> list[str]:
        """Return what `_moved` has to know of rows that came or went, in SQL."""
        texts = [f"sum(greatest({_NET}, 0))", f"sum(greatest(-{_NET}, 0))"]
        for c, kind in self._ranged(held):
            gone = f"IF({_NET} < 0, {quote(c)}, NULL)"
            texts += [
                spelled(f"min({gone})", kind),
                spelled(f"max({gone})", kind),
                f"count_if({_NET} < 0 AND {quote(c)} IS NULL)",
            ]
        wanted = map(p.as_text, self.wanted.wanted.values())
        fits = (f"max({_NET} <> 0 AND ({text}) IS TRUE)" for text in wanted)
        return [*texts, *fits]

    def _moved(self, held: LocalCopy, measured: Sequence[Any]) -> _Moved:
        """Return what the values of `_measures` tell."""
        came, went, *told = measured
        ranged = self._ranged(held)
        spans: dict[str, tuple[str, tuple[Value, Value]]] = {}
        for n, (c, kind) in enumerate(ranged):
            least, greatest, nulls = told[3 * n : 3 * n + 3]
            if least is None or greatest is None or nulls:
                continue
            low, high = from_spark(least, kind), from_spark(greatest, kind)
            if low is not None and high is not None:
                spans[c] = kind, (low, high)
        seen = dict(zip(self.wanted.wanted, told[3 * len(ranged) :], strict=True))
        return _Moved(came or 0, went or 0, spans, {text for text, found in seen.items() if found})

    def _telling(self, columns: Sequence[str]) -> list[str]:
        """Return those of some columns that tell most rows from others, the best first."""
        kinds = {c.name: (c.type or "").lower() for c in self._columns(columns)}
        return [c for kind in _TELLING for c in columns if kinds.get(c) == kind]

    def _touched(self, held: LocalCopy, moved: _Moved, gone: DataFrame) -> dict[str, int]:
        """Return the files in which rows that went may be, with how many they have."""
        files = {
            path: file.rows or 0
            for path, file in live_files(self._table(held)).items()
            if all(file.may_have(c, kind, span) for c, (kind, span) in moved.gone.items())
        }
        if len(files) <= _FEW_FILES:
            return files
        # Few columns: a look at all costs too much.
        names = [*(self.key or self._telling(held.columns)[:2] or held.columns)]
        local = self._local(held, [*files]).select(*map(quote, names), _FILE)
        some = gone.select(*map(quote, names))
        hit = local.join(some, _alike(local, some, names), "leftsemi")
        found = _among([*files], hit.select(_FILE).distinct().collect())
        return {path: files[path] for path in found}

    def _anew(self, held: LocalCopy, head: str, why: str) -> LocalCopy:
        """Hold the rows of a later version, all of them read again, and say so."""
        if not self.external.starts_anywhere:
            raise unfollowed(self.source, head, why)
        log.warning("`%s` is read again in full: %s", self.source.key, why)
        predicate, columns = self.wanted.predicate, self.wanted.columns
        made, cost = self._read(predicate, columns, head)
        expected = cost.rows or 0
        return self._put(
            held, made, head, predicate, columns, read=cost, expected=expected, why=why
        )

    def retire(self, held: LocalCopy) -> LocalCopy:
        """Give up rows that nobody needs any more, if it is time to look for them."""
        wanted = self.wanted.predicate
        text = p.as_text(wanted)
        known = {k: n for k, n in held.seen.items() if k in self.wanted.wanted}
        changed = known.keys() != held.seen.keys()
        if text == held.predicate and not changed:
            return held
        since = held.retired_at or held.as_of
        if not changed and self.now - since < _BATCH:
            return held
        after = replace(held, seen=known, predicate=text, retired_at=self.now)
        files = self._files(held)
        with translated(f"looking for rows of `{self.source.name}` that are no longer needed"):
            local = self._local(held, files)
            outside = local.where(f"({text}) IS NOT TRUE").groupBy(_FILE).count().collect()
        if not outside:
            return self._record(after, held, {"retired": 0})
        touched = _among(files, outside)
        kept = tuple(f for f in files if f not in touched)
        made = self._local(held, touched).drop(_FILE).where(text)
        n = sum(row[1] for row in outside)
        return self._put(
            after,
            made,
            held.version,
            wanted,
            held.columns,
            read=None,
            kept=kept,
            expected=held.rows,
            told={"retired": n},
            why="rows are no longer needed",
            before=held,
        )

    # --------------------------------------------------------------------------------- the copy

    def _columns(self, names: Sequence[str]) -> list[Any]:
        return [c for c in self.source.columns if c.name in names]

    def _described(self, committed: int) -> tuple[str, int, int]:
        """Return the id of the copy's table, and how many rows and bytes a version of it has."""
        import pyarrow as pa

        table = find_table(self.root, committed)
        files = pa.table(table.get_add_actions(flatten=True))
        rows, sizes = files["num_records"].to_pylist(), files["size_bytes"].to_pylist()
        return table.metadata().id, sum(rows), sum(sizes)

    def _read(
        self, predicate: Term, columns: Sequence[str], version: str
    ) -> tuple[DataFrame, Pruned]:
        """Return rows of a version, and what reading them costs; in mode follow they are not read.

        Raises
        ------
        UnapprovedError
            It costs more than it may.
        """
        cost = self._cost(predicate, version)
        return self._rows(predicate, columns, version), cost

    def _rows(self, predicate: Term, columns: Sequence[str], version: str) -> DataFrame:
        """Return columns of the rows of a version for which a predicate is true."""
        order = next(iter(self._telling(columns)), None)
        with translated(f"reading `{self.source.name}`"):
            return self.connector.snapshot(p.as_condition(predicate), columns, version, order=order)

    def _cost(self, predicate: Term, version: str) -> Pruned:
        """Return what reading rows of a version costs.

        Raises
        ------
        UnapprovedError
            It is more than it may be.
        """
        is_read = self.external.mode != "follow"
        cost = self.connector.prune(p.as_condition(predicate), version) if is_read else Pruned()
        if self.approved or not needs_approval(self.settings, cost.bytes):
            return cost
        raise UnapprovedError(
            f"{cost.files} of {cost.of} files of `{self.source.name}` would be read,"
            f" {cost.bytes} bytes: more than `approve_above` allows without approval",
            hint=f"approve it: persist external sync {self.source.key} --approve",
            location=self.source.location,
        )

    def _count(self, brought: Brought) -> None:
        """Add what was read or written to what the next event tells, and the run."""
        self.step += brought
        self.brought[self.copy_id] = self.brought.get(self.copy_id, Brought()) + brought

    def _files(self, held: LocalCopy) -> tuple[str, ...]:
        return tuple(file_sizes(self._table(held)))

    def _table(self, held: LocalCopy) -> Any:
        table = find_table(self.root, held.committed)
        if table is None:
            raise StorageError(
                f"the copy of `{self.source.name}` is gone from {self.root}",
                hint=f"fetch it again: persist external sync {self.source.key} --again",
            )
        return table

    def _local(self, held: LocalCopy, files: Sequence[str]) -> DataFrame:
        """Return the rows that are held in some files, with the one that each is in."""
        paths = tuple(file_location(f, self.root) for f in files)
        names = [quote(c) for c in held.columns]
        pin = Pin(None, paths, self.root)
        frame = self.engine.read_files("parquet", pin, self.source.columns, {}, file=_FILE)
        return frame.select(*names, _FILE)

    def _met(self, rows: DataFrame) -> DataFrame:
        """Return rows, each once, with how many more of it came than went, and how many did either.

        Zeros have signs.
        """
        from pyspark.sql import functions as F

        kinds = {name: kind for name, kind in rows.dtypes if name != _NET}
        keys, values = list[Any](), list[Any]()
        for n, (name, kind) in enumerate(kinds.items()):
            column = F.col(quote(name))
            if "float" not in kind and "double" not in kind:
                keys.append(column)
                continue
            # Spark groups zeros as one, and its text tells them apart.
            sign = column.cast("string")
            if kind in ("float", "double"):
                sign = F.when(column == 0, sign)
            keys += [column.alias(f"_persist_k{n}"), sign.alias(f"_persist_s{n}")]
            values.append(F.first(column).alias(name))
        # Rows meet before they are counted: few are the same where they come from.
        rows = rows.repartition(*map(quote, kinds))
        n_read = F.count(F.lit(1)).alias(_READ)
        found = rows.groupBy(*keys).agg(*values, F.sum(_NET).alias(_NET), n_read)
        return found.select(*map(quote, kinds), _NET, _READ)

    def _without(self, rows: DataFrame, gone: DataFrame) -> DataFrame:
        """Return rows without others, each of which takes one away."""
        from pyspark.sql import functions as F

        one = F.lit(1).cast("bigint")
        return _several(_net(self._met(rows.withColumn(_NET, one).unionByName(gone))))

    def _put(
        self,
        held: LocalCopy | None,
        rows: DataFrame,
        version: str,
        predicate: Term,
        columns: Sequence[str],
        *,
        why: str,
        read: Pruned | None,
        kept: Sequence[str] = (),
        expected: int,
        moved: Callable[[Staged], _Moved] | None = None,
        told: Mapping[str, Any] | None = None,
        before: LocalCopy | None = None,
    ) -> LocalCopy:
        """Write rows, commit them beside files that stay, and record what is held then.

        Parameters
        ----------
        read
            What of the external table is read for these rows, which are all its own then; None:
            what was read of it was counted.
        expected
            About how many rows the copy then has.
        moved
            Tells, once the rows are written, what came or went, if it is another version than was
            held; raises where they may not be committed. None: any row may have come or gone.
        before
            What is recorded of the copy, where that is not `held`.
        """
        from pyspark.sql import functions as F

        held_names = {*columns}
        shaped = rows.select(
            *(
                (F.col(quote(c.name)) if c.name in held_names else F.lit(None))
                .cast(c.type or "string")
                .alias(c.name)
                for c in self.source.columns
            )
        )
        build_uid = uuid.uuid4().hex
        before = before or held
        try:
            with translated(f"reading `{self.source.name}`"):
                most = min(max(expected // _MOST_FILES, _FEWEST_ROWS), _MOST_ROWS)
                staged = self.engine.write_files(shaped, self.root, build_uid, most_rows=most)
                self._check_key(held, staged, kept)
            if read is not None:
                self._count(Brought(staged.rows, read.bytes))
            change = None if moved is None else moved(staged)
            if held is not None and change is not None and not change.came and not change.went:
                delete_builds(self.root, [build_uid], head=held.committed)
                return self._unmoved(held, version)
            seen = self._seen(held, version, change)
            committed = commit(
                staged,
                build_id=self.copy_id,
                pinned=before.committed if before else None,
                base=before.committed if before else None,
                kept=kept,
            )
        except BaseException:
            with suppress(Exception):
                delete_builds(self.root, [build_uid], head=before.committed if before else None)
            raise
        self._count(Brought(rows_written=staged.rows, bytes_written=staged.bytes))
        table_id, n_rows, n_bytes = self._described(committed)
        copy = LocalCopy(
            copy_id=self.copy_id,
            version=version,
            table_id=table_id,
            committed=committed,
            predicate=p.as_text(predicate),
            format=p.FORMAT,
            columns=tuple(sorted(columns)),
            as_of=self.now,
            rows=n_rows,
            bytes=n_bytes,
            seen={k: committed if n is None else n for k, n in seen.items()},
            retired_at=held.retired_at if held else None,
        )
        said = {"why": why, **(told or {})}
        if change is not None:
            said |= {"inserted": change.came, "deleted": change.went}
        return self._record(copy, before, said)

    def _seen(
        self, held: LocalCopy | None, version: str, moved: _Moved | None
    ) -> dict[str, int | None]:
        """Return for all that is needed since which commit its rows are the same; None: this."""
        wanted = [*self.wanted.wanted]
        if held is None or (moved is None and version != held.version):
            return dict.fromkeys(wanted)
        changed = moved.seen if moved else ()
        return {text: None if text in changed else held.seen.get(text) for text in wanted}

    def _check_key(self, held: LocalCopy | None, staged: Staged, kept: Sequence[str]) -> None:
        """Refuse rows of which a primary key does not tell one from another.

        Raises
        ------
        StorageError
            Two have one key, or one has none.
        """
        if not self.key:
            return
        from pyspark.sql import functions as F

        names = [quote(c) for c in self.key]
        paths = tuple(file_location(f.path, self.root) for f in staged.files)
        new = self.engine.read_files(
            "parquet", Pin(None, paths, self.root), self.source.columns, {}
        ).select(*names)
        rows = new
        if held is not None and kept:
            old = self._local(held, kept).select(*names)
            rows = rows.unionAll(old.join(new.distinct(), [*self.key], "leftsemi"))
        nothing = reduce(lambda x, y: x | y, [F.col(n).isNull() for n in names])
        wrong = (
            rows.groupBy(*names)
            .agg(F.count(F.lit(1)).alias(_NET))
            .where((F.col(_NET) > 1) | nothing)
        )
        first = wrong.take(1)
        if first:
            told = ", ".join(f"{k} = {first[0][k]}" for k in self.key)
            raise StorageError(
                f"`{self.source.name}` has {first[0][_NET]} rows of {told}, its primary key",
                hint="remove PRIMARY KEY from its declaration, or fix the table;"
                " the copy was not changed",
                location=self.source.location,
            )

    def _record(
        self, copy: LocalCopy, before: LocalCopy | None, told: Mapping[str, Any]
    ) -> LocalCopy:
        step, self.step = self.step, Brought()
        said = {
            "source_id": self.source.source_id,
            "read": step.rows,
            "read_bytes": step.bytes,
            "written": step.rows_written,
            **told,
        }
        self.ledger.record_copy(copy, before=before, told=said)
        return copy


def _among(files: Sequence[str], named: Iterable[Row]) -> tuple[str, ...]:
    """Return those files that rows name first, whatever Spark calls the directory they are in."""
    names = {row[0].rpartition("/")[2] for row in named}
    return tuple(f for f in files if f.rpartition("/")[2] in names)


def _alike(rows: DataFrame, others: DataFrame, names: Sequence[str]) -> SparkColumn:
    """Return whether rows are the same as others in some columns, NULL or not."""
    tests = [rows[quote(c)].eqNullSafe(others[quote(c)]) for c in names]
    return reduce(lambda one, other: one & other, tests)


def _net(met: DataFrame) -> DataFrame:
    """Return rows of `Sync._met` that are not as they were."""
    return met.where(f"{_NET} <> 0").drop(_READ)


def _several(net: DataFrame) -> DataFrame:
    """Return rows as often as came, none of those that went."""
    names = [quote(c) for c in net.columns if c != _NET]
    copies = f"explode(sequence(1, {_NET})) AS {_NET}"
    return net.where(f"{_NET} > 0").selectExpr(*names, copies).select(*names)
