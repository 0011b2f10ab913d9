"""The steps that bring a copy up to date: begin, grow, follow, retire."""

from __future__ import annotations

import logging
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import persist_assets.analysis.predicates as p
from persist_assets.core.dialect import quote
from persist_assets.core.errors import (
    EarlierColumnsError,
    GoneError,
    StorageError,
    UnapprovedError,
)
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.time_values import literal
from persist_assets.engine.activity import counted_input
from persist_assets.engine.session import translated
from persist_assets.external.connectors.protocol import (
    CHANGE,
    DELETE,
    INSERT,
    VERSION,
    Changes,
    Pruned,
)
from persist_assets.external.copy_table import FILE, CopyTable, named_by
from persist_assets.external.coverage import (
    Brought,
    Coverage,
    Growth,
    Pending,
    copy_family,
    copy_root,
    growth_of,
    needs_approval,
)
from persist_assets.external.row_changes import (
    NET,
    READ,
    Measures,
    RowChanges,
    added,
    changed,
    grouped,
    settled,
    without,
)
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_deletions import delete_builds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.connectors.protocol import Connector
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.storage.delta_commit import Staged

log = logging.getLogger(__name__)
_BATCH = timedelta(days=1)
"""The minimum time that unneeded rows stay in a copy, unless the program changes."""

_HERE, _THERE = "_persist_here", "_persist_there"

_MOST_FILES_ANEW = 8
"""The number of files that are always rewritten rather than read again, however few a copy has."""


def changes_between(
    connector: Connector,
    source: Source,
    since: str,
    until: str,
    predicate: str,
    columns: Collection[str],
) -> Changes:
    """Return the matching rows added and removed, or why all rows have to be read again."""
    changes = connector.changes(since, until, predicate, sorted(columns))
    is_compared = changes.compare_reason is not None
    if not is_compared and (changes.load is None or changes.only_came):
        return changes
    if any("map<" in (c.type or "").lower() for c in source.columns if c.name in columns):
        return Changes(full_read_reason="rows with maps changed")
    return changes


def unfollowed(source: Source, head: str, why: str) -> StorageError:
    """Return the error for a table whose changes can no longer be followed."""
    return StorageError(
        f"`{source.name}` cannot be followed to version {head}, and the changes since"
        f" its copy started exist nowhere else: {why}",
        hint=f"start over: persist external sync {source.key} --again",
        location=source.location,
    )


def alternatives(term: Term) -> Iterator[Term]:
    """Yield predicates whose union is a predicate."""
    for part in p.disjuncts(term):
        if part.op == "in":
            value, *choices = part.args
            yield from (p.compared("=", value, choice) for choice in choices)
        else:
            yield part


def _persisted(rows: DataFrame, until: ExitStack) -> DataFrame:
    """Return rows that are computed once, and are released when `until` is closed."""
    rows = rows.persist()
    until.callback(rows.unpersist)
    return rows


class _NotHeld(Exception):
    """Rows were removed that the copy does not have."""


@dataclass(frozen=True, slots=True)
class _Update:
    """New rows of a copy.

    Attributes
    ----------
    version, predicate, columns
        The version, predicate and columns of the copy afterwards.
    why
        Why the copy changes, for the event.
    n_expected
        About how many rows the copy has afterwards.
    cost
        The cost of reading these rows, all of which come from the external table; None: all reads
        are counted already.
    kept_files
        The files of the copy that stay.
    measure
        Returns the changes once the rows are written; raises if they must not be committed. None:
        with a new version, any row may have been added or removed.
    n_held
        How many of the rows come from the copy, and are not read.
    reads_copy
        Whether the copy's files are read with these rows.
    details
        More data for the event.
    """

    rows: DataFrame
    version: str
    predicate: Term
    columns: Sequence[str]
    why: str
    n_expected: int
    cost: Pruned | None = None
    kept_files: Sequence[str] = ()
    measure: Callable[[Staged], RowChanges] | None = None
    n_held: int = 0
    reads_copy: bool = False
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Run:
    """The context that all syncs of a run share.

    Attributes
    ----------
    now
        The time of the run, aware; predicates that read the clock are evaluated at it.
    brought
        How much was read and written so far, by copy; a sync adds to it.
    """

    settings: Settings
    ledger: Ledger
    engine: Engine
    now: datetime
    brought: dict[str, Brought]


class Sync:
    """The synchronization of one copy with its table."""

    def __init__(
        self,
        run: Run,
        source: Source,
        connector: Connector,
        copy_id: str,
        coverage: Coverage,
        *,
        approved: bool,
    ) -> None:
        self.approved, self.settings = approved, run.settings
        self.source, self.connector, self.copy_id = source, connector, copy_id
        self.coverage, self.ledger, self.now = coverage, run.ledger, run.now
        self.brought, self.step, self._fetched = run.brought, Brought(), 0
        self.engine, self._total = run.engine, Brought()
        self.table = CopyTable(run.engine, source, copy_root(run.settings, copy_id))
        assert source.external is not None
        self.external = source.external

    # ------------------------------------------------------------------------------------ steps

    def begin(self, recorded: LocalCopy | None, start: str | None, head: str) -> LocalCopy:
        """Make the copy at the start version, or else at the newest, with the needed rows only.

        Parameters
        ----------
        recorded
            The copy that it replaces.
        """
        version = start or head
        predicate, columns = self.coverage.predicate, self.coverage.columns
        rows, cost = self._read(predicate, columns, version)
        if self.external.mode == "follow":
            rows = rows.where("false")
        update = _Update(rows, version, predicate, columns, "it is new", cost.rows or 0, cost)
        return self._put(None, update, recorded)

    def grow(self, copy: LocalCopy, pending: Pending) -> LocalCopy:
        """Add needed rows and columns that the copy lacks, at the copy's version."""
        if pending.missing == p.FALSE:
            return copy
        predicate = p.union((p.from_text(copy.predicate), self.coverage.predicate))
        whole = len(pending.columns) > len(copy.columns)
        why, n_held = "columns are needed" if whole else "rows are needed", 0
        try:
            growth = growth_of(self.connector, self.source, copy, pending, copy.version)
            if growth.full_read_reason is not None:
                self._warn(growth.full_read_reason)
                why += f", and {growth.full_read_reason}"
            if whole and growth.full_read_reason is None:
                rows, cost = self._with_columns(copy, pending, growth)
                n_held = 0 if growth.columns else copy.rows
            else:
                rows, cost = self._read(pending.missing, pending.columns, copy.version)
        except EarlierColumnsError:
            raise
        except GoneError as error:
            raise GoneError(
                f"`{self.source.name}` needs more rows of version {copy.version}, which is gone:"
                f" {error.message}",
                hint=f"read it again in full: persist external sync {self.source.key} --again",
                location=self.source.location,
            ) from error
        n_rows = cost.rows or 0
        update = _Update(
            rows,
            copy.version,
            predicate,
            pending.columns,
            why,
            n_rows if whole and not n_held else copy.rows + n_rows,
            cost,
            kept_files=() if whole else self.table.files(copy),
            n_held=n_held,
            reads_copy=whole and growth.full_read_reason is None,
        )
        return self._put(copy, update)

    def _with_columns(
        self, copy: LocalCopy, pending: Pending, growth: Growth
    ) -> tuple[DataFrame, Pruned]:
        """Return the copy's rows with more columns, plus the missing rows, and the read's cost.

        For rows that the copy has, only the missing columns and the primary key are read; nothing,
        if the table's files have none of these columns, so that they are NULL.
        """
        from pyspark.sql import functions as F

        cost = Pruned()
        if growth.missing != p.FALSE:
            cost = self._cost(growth.missing, copy.version)
        columns = [quote(c) for c in pending.columns]
        rows = self.table.rows(copy, self.table.files(copy)).drop(FILE)
        for column in self.table.columns(sorted(growth.absent)):
            rows = rows.withColumn(column.name, F.lit(None).cast(column.type or "string"))
        if growth.columns:
            rows = self._joined(rows, copy, growth.columns)
        rows = rows.select(*columns)
        if pending.unheld != p.FALSE:
            new = self._rows(pending.unheld, pending.columns, copy.version)
            rows = rows.unionByName(new.select(*columns))
        return self.table.ordered(rows, pending.columns), cost

    def _joined(self, rows: DataFrame, copy: LocalCopy, columns: Sequence[str]) -> DataFrame:
        """Return the copy's rows with columns that are read for them, found by the primary key."""
        from pyspark.sql import functions as F

        key = self.external.key
        here = rows.withColumn(_HERE, F.lit(1))
        more = self._rows(p.from_text(copy.predicate), [*key, *columns], copy.version)
        both = here.join(more.withColumn(_THERE, F.lit(1)), [*key], "full")
        message = (
            f"the copy of {self.source.key} has different keys than the table: fetch it again:"
            f" persist external sync {self.source.key} --again"
        )
        failed = f"raise_error({literal(message, 'string')})"
        has_both = f"CASE WHEN {_HERE} + {_THERE} = 2 THEN true ELSE {failed} END"
        return both.where(has_both)

    def follow(self, copy: LocalCopy, head: str) -> LocalCopy:
        """Bring the copy to a later version."""
        scope = copy.predicate, copy.columns
        with translated(f"following `{self.source.name}`"):
            changes = changes_between(self.connector, self.source, copy.version, head, *scope)
        if changes.full_read_reason is not None:
            return self.read_in_full(copy, head, changes.full_read_reason)
        with translated(f"following `{self.source.name}`"):
            if changes.compare_reason is not None:
                return self._compare(copy, head, changes.read, changes.compare_reason)
            frame = changes.frame
            if frame is None:
                return self._same_rows(copy, head)
            if changes.only_came:
                return self._append(copy, head, frame, changes.read)
            return self._apply(copy, head, frame, changes.read)

    def _same_rows(self, copy: LocalCopy, head: str) -> LocalCopy:
        """Record that a later version has the same rows."""
        self.connector.confirm()
        later = replace(copy, version=head, as_of=self.now)
        return self._record(later, copy, {"inserted": 0, "deleted": 0})

    def _append(self, copy: LocalCopy, head: str, frame: DataFrame, cost: Pruned) -> LocalCopy:
        """Append added rows, and measure them while they are written."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation, measures = Observation(), self._measures(copy)
        texts = measures.expressions()
        rows = frame.select(*map(quote, copy.columns), F.lit(1).alias(NET))
        observed = [F.expr(text).alias(f"m{n}") for n, text in enumerate(texts)]

        def measure(staged: Staged) -> RowChanges:
            if not staged.rows:  # Spark may have optimised the observation away
                return RowChanges()
            values = observation.get
            return measures.parse([values[f"m{n}"] for n in range(len(texts))])

        rows = rows.observe(observation, *observed).drop(NET)
        update = self._advance(copy, head, rows, self.table.files(copy), measure, cost)
        return self._put(copy, update)

    def _compare(self, copy: LocalCopy, head: str, cost: Pruned, why: str) -> LocalCopy:
        """Read all rows of a later version, and apply how they differ from those of the copy."""
        from pyspark.sql import functions as F

        log.info(
            "`%s` is compared with its copy: %s", self.source.key, why, extra={"action": "sync"}
        )
        names = [quote(c) for c in copy.columns]
        remote_rows = self._rows(p.from_text(copy.predicate), copy.columns, head)
        local_rows = self.table.rows(copy, self.table.files(copy)).select(*names)
        both = remote_rows.select(*names, F.lit(INSERT).alias(CHANGE))
        both = both.unionByName(local_rows.withColumn(CHANGE, F.lit(DELETE)))
        return self._apply(copy, head, both, cost, n_held=copy.rows)

    def _apply(
        self, copy: LocalCopy, head: str, frame: DataFrame, cost: Pruned, n_held: int | None = None
    ) -> LocalCopy:
        """Add the new rows and delete the removed ones.

        Parameters
        ----------
        n_held
            How many of the rows come from the copy, with which a whole version is compared.
        """
        from pyspark.sql import functions as F

        names = [quote(c) for c in copy.columns]
        sign = F.when(F.col(CHANGE) == INSERT, 1).otherwise(-1)
        is_ordered = n_held is None and not self.external.starts_anywhere
        keys = [*names, VERSION] if is_ordered else names
        with ExitStack() as persisted:
            groups = _persisted(grouped(frame.select(*keys, sign.alias(NET))), persisted)
            measures = self._measures(copy)
            texts = [f"sum({READ})", *measures.expressions()]
            with counted_input(self.engine.session) as input_bytes:
                n_read, *values = groups.selectExpr(*texts).collect()[0]
                n_bytes = self._bytes(cost, input_bytes() if n_held is None else None)
            self._count(Brought((n_read or 0) - (n_held or 0), n_bytes))
            self.connector.confirm()
            changes = measures.parse(values)
            if n_held is not None and changes.n_removed and self.external.append_only:
                raise StorageError(
                    f"rows of `{self.source.name}` were changed or deleted, but it is declared"
                    " append_only",
                    hint="remove 'append_only' from its declaration",
                    location=self.source.location,
                )
            if is_ordered and changes.n_removed:
                groups = _persisted(self._settled(copy, groups, changes), persisted)
                changes = measures.parse(groups.selectExpr(*measures.expressions()).collect()[0])
            if changes.is_nothing:
                return self._same_rows(copy, head)
            net = changed(groups).drop(VERSION)
            try:
                if changes.n_removed:
                    update = self._rewrite(copy, head, net, changes, is_read=n_held is not None)
                else:
                    files = self.table.files(copy)
                    update = self._advance(copy, head, added(net), files, lambda _: changes)
                return self._put(copy, update)
            except _NotHeld:
                return self.read_in_full(copy, head, "the copy lacks rows that were removed")

    def _settled(self, copy: LocalCopy, groups: DataFrame, changes: RowChanges) -> DataFrame:
        """Return how the numbers of held rows change, if the copy does not hold all rows.

        Parameters
        ----------
        groups, changes
            The changes of each version, and their measures.
        """
        removed = groups.where(f"{NET} < 0")
        touched = self.table.touched_files(copy, changes, removed)
        held = self.table.rows(copy, [*touched]).select(*map(quote, copy.columns))
        return settled(groups, held)

    def _rewrite(
        self, copy: LocalCopy, head: str, net: DataFrame, changes: RowChanges, *, is_read: bool
    ) -> _Update:
        """Return the update that rewrites the files with removed rows.

        If these are most files, all rows are read from the table again, unless that needs approval.

        Parameters
        ----------
        is_read
            Whether all rows were read just now, so that they are not read again.
        """
        removed, table = net.where(f"{NET} < 0"), self.table
        touched = table.touched_files(copy, changes, removed)
        kept_files = tuple(f for f in table.files(copy) if f not in touched)
        most = max(len(kept_files), _MOST_FILES_ANEW)
        if len(touched) > most and self.external.starts_anywhere and not is_read:
            with suppress(UnapprovedError):  # rewriting is slower, but needs no approval
                rows, cost = self._read(p.from_text(copy.predicate), copy.columns, head)
                return self._advance(copy, head, rows, (), lambda _: changes, cost)
        names = [quote(c) for c in copy.columns]
        rest = without(table.rows(copy, [*touched]).select(*names), removed)
        rows = table.split(rest.unionByName(added(net)), copy, changes)
        n_rows = sum(touched.values()) + changes.n_added - changes.n_removed

        def measure(staged: Staged) -> RowChanges:
            if staged.rows != n_rows:
                raise _NotHeld
            return changes

        return self._advance(copy, head, rows, kept_files, measure)

    def _advance(
        self,
        copy: LocalCopy,
        head: str,
        rows: DataFrame,
        kept_files: Sequence[str],
        measure: Callable[[Staged], RowChanges],
        cost: Pruned | None = None,
    ) -> _Update:
        """Return the update to a later version with the same predicate and columns."""
        return _Update(
            rows,
            head,
            p.from_text(copy.predicate),
            copy.columns,
            "it changed",
            copy.rows,
            cost,
            kept_files,
            measure,
        )

    def _measures(self, copy: LocalCopy) -> Measures:
        return Measures(self.table.columns(copy.columns), self.coverage.terms)

    def read_in_full(self, copy: LocalCopy, head: str, why: str) -> LocalCopy:
        """Read all needed rows of a later version, and warn."""
        if not self.external.starts_anywhere:
            raise unfollowed(self.source, head, why)
        self._warn(why)
        predicate, columns = self.coverage.predicate, self.coverage.columns
        rows, cost = self._read(predicate, columns, head)
        return self._put(copy, _Update(rows, head, predicate, columns, why, cost.rows or 0, cost))

    def _warn(self, why: str) -> None:
        log.warning(
            "`%s` is read again in full: %s", self.source.key, why, extra={"action": "sync"}
        )

    def described(self, copy: LocalCopy) -> LocalCopy:
        """Return a copy that other declarations can share, although an earlier release made it."""
        family = copy_family(self.settings, self.source)
        if copy.family == family:
            return copy
        stored = self.table.stored(copy)
        self.ledger.copies.describe(copy.copy_id, family, stored)
        return replace(copy, family=family, stored=stored)

    def retire(self, copy: LocalCopy) -> LocalCopy:
        """Delete rows that are no longer needed, if it is time to look for them."""
        needed = self.coverage.predicate
        text = p.as_text(needed)
        unchanged_since = {k: n for k, n in copy.seen.items() if k in self.coverage.terms}
        has_changed = unchanged_since.keys() != copy.seen.keys()
        if text == copy.predicate and not has_changed:
            return copy
        since = copy.retired_at or copy.as_of
        if not has_changed and self.now - since < _BATCH:
            return copy
        after = replace(copy, seen=unchanged_since, predicate=text, retired_at=self.now)
        files = self.table.files(copy)
        with translated(f"looking for rows of `{self.source.name}` that are no longer needed"):
            local = self.table.rows(copy, files)
            outside = local.where(f"({text}) IS NOT TRUE").groupBy(FILE).count().collect()
        if not outside:
            return self._record(after, copy, {"retired": 0})
        touched = named_by(files, outside)
        update = _Update(
            self.table.rows(copy, touched).drop(FILE).where(text),
            copy.version,
            needed,
            copy.columns,
            "rows are no longer needed",
            copy.rows,
            kept_files=tuple(f for f in files if f not in touched),
            details={"retired": sum(row[1] for row in outside)},
        )
        return self._put(after, update, recorded=copy)

    # ---------------------------------------------------------------------------------- reading

    def _read(
        self, predicate: Term, columns: Sequence[str], version: str
    ) -> tuple[DataFrame, Pruned]:
        """Return rows of a version with the cost of reading them, zero in mode follow.

        Raises
        ------
        UnapprovedError
            The cost is above the limit.
        """
        cost = self._cost(predicate, version)
        return self._rows(predicate, columns, version), cost

    def _rows(self, predicate: Term, columns: Sequence[str], version: str) -> DataFrame:
        """Return columns of the matching rows of a version."""
        order = next(iter(self.table.ordering(columns)), None)
        with translated(f"reading `{self.source.name}`"):
            return self.connector.snapshot(p.as_condition(predicate), columns, version, order=order)

    def _cost(self, predicate: Term, version: str) -> Pruned:
        """Return the cost of reading rows of a version.

        Raises
        ------
        UnapprovedError
            It is above the limit.
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

    # -------------------------------------------------------------------------------- recording

    def _bytes(self, cost: Pruned, n_input: int | None) -> int:
        """Return how many bytes were read since the last call, at a cost that was expected.

        Parameters
        ----------
        n_input
            How many bytes Spark read of the table's files; None: unknown, so their sizes count.
        """
        fetched = self.connector.fetched
        if fetched is None:
            return cost.bytes if n_input is None else n_input
        before, self._fetched = self._fetched, fetched
        return fetched - before

    def _count(self, brought: Brought) -> None:
        """Add to the reads and writes that the next event and the run report."""
        self.step += brought
        self.brought[self.copy_id] = self.brought.get(self.copy_id, Brought()) + brought

    def _put(
        self, copy: LocalCopy | None, update: _Update, recorded: LocalCopy | None = None
    ) -> LocalCopy:
        """Write rows, commit them with the files that stay, and record the copy.

        Parameters
        ----------
        recorded
            The copy in the ledger, if that is not `copy`.
        """
        recorded = recorded or copy
        base, build_uid = recorded.committed if recorded else None, uuid.uuid4().hex
        root = self.table.root
        try:
            with translated(f"reading `{self.source.name}`"):
                # A table whose files stay keeps its columns.
                stored = self.table.stored(copy if update.kept_files else None)
                with counted_input(self.engine.session) as input_bytes:
                    staged = self.table.write(
                        update.rows, update.columns, stored, build_uid, update.n_expected
                    )
                    n_input = None if update.reads_copy else input_bytes()
                self.table.check_key(staged, copy, update.kept_files)
            self.connector.confirm()
            if update.cost is not None:
                self._count(Brought(staged.rows - update.n_held, self._bytes(update.cost, n_input)))
            changes = None if update.measure is None else update.measure(staged)
            if copy is not None and changes is not None and changes.is_nothing:
                delete_builds(root, [build_uid], head=copy.committed)
                return self._same_rows(copy, update.version)
            committed = commit(
                staged, build_id=self.copy_id, pinned=base, base=base, kept_files=update.kept_files
            )
        except BaseException:
            with suppress(Exception):
                delete_builds(root, [build_uid], head=base)
            raise
        self._count(Brought(rows_written=staged.rows, bytes_written=staged.bytes))
        details = {"why": update.why, **update.details}
        if changes is not None:
            details |= {"inserted": changes.n_added, "deleted": changes.n_removed}
        after = self._copy(copy, update, changes, committed)
        return self._record(replace(after, stored=stored), recorded, details)

    def _copy(
        self, copy: LocalCopy | None, update: _Update, changes: RowChanges | None, committed: int
    ) -> LocalCopy:
        """Return the copy that a commit made, without the columns of its table."""
        table_id, n_rows, n_bytes = self.table.describe(committed)
        return LocalCopy(
            copy_id=self.copy_id,
            version=update.version,
            table_id=table_id,
            committed=committed,
            predicate=p.as_text(update.predicate),
            format=p.FORMAT,
            columns=tuple(sorted(update.columns)),
            as_of=self.now,
            rows=n_rows,
            bytes=n_bytes,
            seen=self._unchanged_since(copy, update.version, changes, committed),
            retired_at=copy.retired_at if copy else None,
            family=copy_family(self.settings, self.source),
            rows_read=copy.rows_read if copy else None,
            bytes_read=copy.bytes_read if copy else None,
        )

    def _unchanged_since(
        self, copy: LocalCopy | None, version: str, changes: RowChanges | None, committed: int
    ) -> dict[str, int]:
        """Return, for each needed predicate, the commit since which its rows are unchanged."""
        texts = [*self.coverage.terms]
        if copy is None or (changes is None and version != copy.version):
            return dict.fromkeys(texts, committed)
        matched_predicates = changes.matched_predicates if changes else ()
        since = {
            text: None if text in matched_predicates else copy.seen.get(text) for text in texts
        }
        return {text: committed if n is None else n for text, n in since.items()}

    def _record(
        self, copy: LocalCopy, recorded: LocalCopy | None, details: Mapping[str, Any]
    ) -> LocalCopy:
        step, self.step = self.step, Brought()
        self._total += step
        if self._total.rows or self._total.bytes:
            copy = replace(copy, rows_read=self._total.rows, bytes_read=self._total.bytes)
        event = {
            "source_id": self.source.source_id,
            "read": step.rows,
            "read_bytes": step.bytes,
            "written": step.rows_written,
            **details,
        }
        self.ledger.copies.record(copy, expected=recorded, changes=event)
        return copy
