"""The relations that programs of `analysis/deltas` read: versions of tables, and their changes.

    now:T                a table that did not change
    old:T, new:T         one that did, before and now
    delta:T              its changed rows and their weights, in the columns that the query reads
    old probe, new probe its rows with some keys, before and now

A relation is a view of the session. Its name says which versions it is made of, so sources of one
run share relations, and the work to compute those that are held.
"""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from functools import partial, reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.analysis.deltas.weights import netted
from persist_assets.building.held_relations import SharedWork
from persist_assets.building.semi_joins import JOINED, SAME, SEARCH, SEARCHED, SEMI_JOIN
from persist_assets.building.table_versions import TableVersions
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.deltas import ROW_WEIGHT, Program, probe_name
from persist_assets.core.object_stores import spark_pattern, spark_uri
from persist_assets.engine.few_rows import MOST_COLLECTED_ROWS, collected
from persist_assets.engine.row_metrics import row_digests
from persist_assets.engine.session import translated
from persist_assets.planning.render import Statement
from persist_assets.storage.raw import Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.held_relations import Net, Written
    from persist_assets.building.reader import Reader
    from persist_assets.core.model.deltas import Merging, Probe
    from persist_assets.core.model.plans import Change, Feed, TouchedKeys
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot

_NAME = re.compile(
    r"`(now|old|new|delta|old probe|new probe|keys|guard|change|former|state):((?:[^`]|``)+)`"
)
_SMALL_BYTES = 32 * 2**20
"""Spark reads all rows of tables of at most this size: it has to sort none of them."""
_MUCH_BYTES = 4 * 2**20
"""Rows of changed files larger than this are compared by digests first."""
_MANY_BYTES = 32 * 2**20
"""Files with a table's changed rows that are larger than this have many rows."""
_LARGE_BYTES = 128 * 2**20
_MANY_FILES = 8
"""In tables of at least this size with as many files, those that have some keys are found first."""
_FEW = ("change", "changes", "keys", "guard")
"""Kinds of relations that usually have few rows if the relations that they follow from have."""
_MOST_ROWS = 500_000
"""If no held relation has more rows, statements are planned for few."""


@dataclass(slots=True)
class ChangedTables:
    """The relations of one program in one build.

    Attributes
    ----------
    read
        The snapshots that the build reads.
    changes
        The changes of the tables that changed.
    states
        The views of states, and of the maintained table, by the names that statements use.
    shared
        Counts the relations that other sources use, too.
    """

    reader: Reader
    program: Program | Merging
    read: Mapping[SourceID, Snapshot]
    changes: Mapping[SourceID, Change]
    states: dict[str, str] = field(default_factory=dict[str, str])
    shared: SharedWork = field(default_factory=SharedWork)
    _texts: dict[bool, str] = field(default_factory=dict[bool, str])
    _n_most: int = 0  # the rows of the largest relation that is held
    _views: dict[str, str] = field(default_factory=dict[str, str])
    _changed: dict[SourceID, str] = field(default_factory=dict["SourceID", str])
    versions: TableVersions = field(init=False)

    def __post_init__(self) -> None:
        self.versions = TableVersions(self.reader, self.read, self.changes)

    def run(self, sql: str) -> DataFrame:
        """Return the lazy rows of a statement of the program."""
        return self.reader.engine.run(Statement(self._named(sql), {}, ()))

    def show(self, name: str, rows: DataFrame) -> None:
        """Make a state, or the maintained table, readable by statements."""
        view = f"{name.replace(':', '~')}~{uuid.uuid4().hex[:12]}"
        self.states[name] = self.reader.engine.view(view, lambda: rows)

    def are_few(self, n_rows: int = 0) -> bool:
        """Whether held relations, changed files, and a relation of `n_rows` rows are all small.

        A subquery with one value for all rows reads whole tables.
        """
        if self.program.changed_values:
            return False
        came = (c.changed_bytes for c in self.changes.values() if not c.lost)
        most = max(self._n_most, n_rows)
        return most <= _MOST_ROWS and max(came, default=0) <= _MANY_BYTES

    def planned(self, frame: DataFrame) -> DataFrame:
        """Return rows computed from held relations, planned for few rows if these have few."""
        return self.reader.engine.for_few_rows(frame) if self.are_few() else frame

    def computed(self, frame: DataFrame) -> Written:
        """Compute rows that follow from held relations now."""
        here = partial(self._collected, frame)
        return self.reader.relations.written(frame, self.planned, here)

    def _collected(self, frame: DataFrame) -> Any:
        """Return rows that follow from few as an Arrow table; None: there may be many."""
        if not self.are_few() or self._n_most > MOST_COLLECTED_ROWS:
            return None
        with translated("computing what changed"):
            return collected(self.planned(frame))

    def differing(self) -> dict[SourceID, Change]:
        """Return the changes of tables that differ in the columns that the query uses."""
        return {s: change for s, change in self.changes.items() if self._differs(s, change)}

    def _differs(self, source_id: SourceID, change: Change) -> bool:
        return not change.lost or self._net(source_id).differs

    def _net(self, source_id: SourceID, program: Program | Merging | None = None) -> Net:
        """Return the changed rows of a table, which also lost rows, as a program reads them.

        Parameters
        ----------
        program
            None: the program of this build.
        """
        columns = [f"c{n}" for n, _ in (program or self.program).columns.get(source_id, ())]
        return self.reader.relations.net(self._changes(source_id), columns)

    def written(self, name: str) -> Written:
        """Return the rows of a relation that the program holds, and what is known of them."""
        return self.reader.relations.get(self._show_held(name, self.program.held[name]))

    def _named(self, sql: str) -> str:
        """Return a statement over views that exist."""

        def view(match: re.Match[str]) -> str:
            kind, name = match[1], match[2].replace("``", "`")
            if kind in ("former", "state"):
                return quote(self.states[f"{kind}:{name}"])
            if match[0] not in self._views:
                self._views[match[0]] = self._view(kind, name)
            return self._views[match[0]]

        def compared(match: re.Match[str]) -> str:
            held = match[1]
            if held not in self.program.held or self._n_uses(held) == 1:
                return match[0]
            equal = self.written(held).equal
            return SAME.sub(lambda m: f"{m[1]} {equal(m[3])} {m[2]}", match[0])

        reduced = SEARCH.sub(self._searched, self._without_small(sql))
        return _NAME.sub(view, SEMI_JOIN.sub(compared, reduced))

    def _searched(self, match: re.Match[str]) -> str:
        """Return a search of an unchanged table for keys, in the files that can have them."""
        source_id, name = match["table"].replace("``", "`"), match["keys"]
        pairs = [(c.replace("``", "`"), key) for c, key in SEARCHED.findall(match["same"])]
        if not any(self.versions.spans(source_id, column) for column, _ in pairs):
            return match[0]
        if name:
            keys = self._show_held(name, self.program.held[name])
        else:
            items = ", ".join(f"{key} AS c{k}" for k, (_, key) in enumerate(pairs))
            keys = self._show_held("keys", f"SELECT DISTINCT {items} FROM {match['rows']}")
            pairs = [(column, f"c{k}") for k, (column, _) in enumerate(pairs)]
        files = self.versions.files(source_id)
        some = self.versions.files_with_keys(source_id, files, pairs, keys)
        if len(some) == len(files):
            return match[0]
        return f"{quote(self.versions.show_files(source_id, some))}{match['search']}"

    def _without_small(self, sql: str) -> str:
        """Return a statement without the semi-joins that reduce small tables, or by many rows."""
        if not self.are_few():
            return JOINED.sub(r"\1", sql)

        def reduced(match: re.Match[str]) -> str:
            n_bytes = self.reader.bytes_of(match[2].replace("``", "`"), self.read)
            return match[1] if n_bytes is not None and n_bytes <= _SMALL_BYTES else match[0]

        return JOINED.sub(reduced, sql)

    def _view(self, kind: str, name: str) -> str:
        """Return the relation that a name of the program means, as statements read it."""
        if kind in ("keys", "change", "guard"):
            held = f"{kind}:{name}"
            text = self.program.held[held]
            # A guard is held: Spark reads nothing for what is joined with it if it has no rows.
            if kind != "guard" and self._n_uses(held) == 1:
                return f"({self._named(text)})"
            return quote(self._show_held(held, text))
        if kind in ("old probe", "new probe"):
            return quote(self._show_probe(kind.partition(" ")[0], name))
        return quote(self._delta(name) if kind == "delta" else self.versions.show(kind, name))

    def _n_uses(self, name: str) -> int:
        """Return how often the statements of the program read a relation."""
        program, few = self.program, self.are_few()
        if few not in self._texts:
            self._texts[few] = self._without_small("\n".join(program.statements))
        n = self._texts[few].count(quote(name))
        as_keys = [probe.keys for probe in program.probes.values()]
        as_keys += [program.keys] if isinstance(program, Program) and program.keys else []
        return n + 2 * as_keys.count(name)

    def _uses_of(self, digest: str) -> tuple[tuple[tuple[int, str], ...], int]:
        """Return the columns of a probe that sources use, and how many search for the same keys."""
        grown = frozenset(s for s, change in self.changes.items() if not change.lost)
        programs = self.reader.relations.programs_with(digest, frozenset(self.changes), grown)
        table = self.program.probes[digest].table
        columns = {c for p in (self.program, *programs) for c in p.columns.get(table, ())}
        keys = self._size_of_keys(self.program, digest)
        n_users = sum(self._size_of_keys(p, digest) == keys for p in programs)
        return tuple(sorted(columns)), max(n_users, 1)

    def _size_of_keys(self, program: Program | Merging, digest: str) -> list[tuple[object, ...]]:
        """Return the columns that the keys of a probe come from, and the numbers of changed rows.

        The keys of two programs with the same numbers are almost certainly the same.
        """
        sizes: list[tuple[object, ...]] = []
        for source_id, number in program.probes[digest].origins:
            has_lost = bool(self.changes[source_id].lost)
            net = self._net(source_id, program).rows if has_lost else None
            sizes.append((source_id, number, net and net.n_rows))
        return sizes

    def _show_held(self, name: str, sql: str) -> str:
        """Return the view of a held relation; equal ones of a run are one."""
        return self._hold(name.partition(":")[0], self._named(sql))

    def _hold(
        self,
        kind: str,
        text: str,
        name: str | None = None,
        *,
        of_few: bool = True,
        n_users: int = 1,
        here: Callable[[], Any] | None = None,
    ) -> str:
        """Return the view of a relation that is computed once, now; its text names it.

        Parameters
        ----------
        of_few
            It is computed from few rows if the relations that are held have few.
        n_users
            How many sources of the project use it.
        here
            Computes it without Spark if it can; see `HeldRelations.hold`.
        """
        view = name or _held_name(kind, text)
        engine, relations = self.reader.engine, self.reader.relations
        began = time.monotonic()

        def rows() -> DataFrame:
            frame = engine.run(Statement(text, {}, ()))
            if kind == "probe":
                frame = frame.hint("rebalance")

            def in_arrow() -> Any:
                table = here() if here else None
                is_collected = table is None and of_few and kind in _FEW
                return self._collected(frame) if is_collected else table

            return relations.hold(view, frame, self.planned if of_few else None, in_arrow)

        engine.view(view, rows)
        self._n_most = max(self._n_most, relations.n_rows(view))
        spent = time.monotonic() - began
        self.shared.count(view, spent, relations.seconds(view), n_users)
        return relations.first_equal(view) if kind == "keys" else view

    # ------------------------------------------------------------------------------------ changes

    def _changes(self, source_id: SourceID) -> str:
        """Return the view of the changed rows of a table, in the columns that sources use."""
        if source_id not in self._changed:
            self._changed[source_id] = self._find_changes(source_id)
        return self._changed[source_id]

    def _find_changes(self, source_id: SourceID) -> str:
        change, columns = self.changes[source_id], self.reader.relations.columns_of(source_id)

        def rows_of(kind: str, weight: str) -> str:
            return _numbered(self.versions.show(kind, source_id), columns, weight)

        if not change.lost:
            return self.reader.engine.view(
                f"changes~{self.versions.name_of(source_id)}",
                lambda: self.reader.engine.run(Statement(rows_of("gained", "1L"), {}, ())),
            )
        typed = self._typed(source_id, columns)
        few, n_users = (
            change.changed_bytes <= _MUCH_BYTES,
            self.reader.relations.n_users_of(source_id),
        )
        if change.feed is not None:
            rows = self._fed(source_id, change.feed)
            rows = netted(_in_one_task(rows) if few else rows, typed)
            view = self._hold("changes", rows, of_few=few, n_users=n_users)
            self._check_growth(source_id, change.feed.more, view)
            return view
        if change.keys is not None:
            rows = self._of_keys(source_id, change.keys)
            view = self._hold("changes", netted(rows, typed), of_few=False, n_users=n_users)
            self._check_growth(source_id, change.keys.more, view)
            return view
        both = f"{rows_of('gained', '1L')} UNION ALL {rows_of('lost', '-1L')}"
        if few:
            both = _in_one_task(both)
        elif typed:
            both = self._differing(both, typed, n_users)
        return self._hold("changes", netted(both, typed), of_few=few, n_users=n_users)

    def _typed(
        self, source_id: SourceID, columns: Iterable[tuple[int, str]]
    ) -> list[tuple[str, str | None]]:
        """Return columns of a table as relations name them, with their types."""
        every = self.reader.project.by_id[source_id].known_columns
        return [(f"c{n}", every[n].type) for n, _ in columns]

    def _fed(self, source_id: SourceID, feed: Feed) -> str:
        """Return the changed rows as a change data feed has them."""
        columns = self.reader.relations.columns_of(source_id)
        source, engine = self.reader.project.by_id[source_id], self.reader.engine
        digest = sha256(repr((feed.recorded, feed.added, feed.removed)).encode()).hexdigest()[:16]
        name = f"feed~{self.versions.table_name(source_id)}~{digest}"
        kind = Column("_change_type", "string")
        recorded = engine.view(
            name,
            lambda: engine.read_files(
                "parquet", Pin(None, feed.recorded), (*source.columns, kind), {}
            ),
        )
        sign = "IF(_change_type IN ('insert', 'update_postimage'), 1L, -1L)"
        texts = [_numbered(recorded, columns, sign)]
        for files, weight in ((feed.added, "1L"), (feed.removed, "-1L")):
            if files:
                texts.append(_numbered(self.versions.show_files(source_id, files), columns, weight))
        return " UNION ALL ".join(texts)

    def _of_keys(self, source_id: SourceID, touched: TouchedKeys) -> str:
        """Return the rows with touched keys in the files that came or went."""
        engine, columns = self.reader.engine, self.reader.relations.columns_of(source_id)
        names = [f"k{n}" for n in range(len(touched.columns))]

        def keys() -> DataFrame:
            read = engine.session.read.parquet  # of each build: their columns have other names
            builds = [read(*map(spark_pattern, files)) for files in touched.files]
            keys_of = (b.select(b.columns[: len(names)]).toDF(*names) for b in builds)
            return reduce(lambda some, more: some.union(more), keys_of)

        digest = sha256(repr(touched.files).encode()).hexdigest()
        view = engine.view(f"touched~{digest[:24]}", keys)
        pairs = zip(touched.columns, names, strict=True)
        same = " AND ".join(f"t.{quote(column)} <=> k.{name}" for column, name in pairs)
        texts: list[str] = []
        for kind, weight in (("gained", "1L"), ("lost", "-1L")):
            rows = _numbered(self.versions.show(kind, source_id), columns, weight)
            texts.append(f"{rows} AS t LEFT SEMI JOIN {quote(view)} AS k ON {same}")
        return " UNION ALL ".join(texts)

    def _check_growth(self, source_id: SourceID, expected: int | None, view: str) -> None:
        """Raise if changed rows do not add up to the growth of their table.

        Raises
        ------
        BuildError
            They do not.
        """
        more = self.reader.relations.total(view)
        if expected is not None and more != expected:
            name = self.reader.project.by_id[source_id].name
            raise BuildError(
                f"the recorded changes of `{name}` add {more} rows, but its files add {expected}"
            )

    def _differing(self, rows: str, columns: Sequence[tuple[str, str | None]], n_users: int) -> str:
        """Return the rows whose digests do not cancel each other out: all that differ, few more.

        Digests are compared first, because most rows of files that are written again stay.
        """
        frame = self.reader.engine.run(Statement(rows, {}, ()))
        first, second = row_digests(frame, [c for c, _ in columns])
        digested = f"SELECT *, {first} AS h1, {second} AS h2 FROM ({rows})"
        changed = self._hold(
            "digests",
            f"SELECT h1, h2 FROM ({digested}) GROUP BY h1, h2 HAVING sum({ROW_WEIGHT}) <> 0",
            of_few=False,
            n_users=n_users,
        )
        return (
            f"SELECT t.* FROM ({digested}) AS t"
            f" LEFT SEMI JOIN {quote(changed)} AS d ON t.h1 = d.h1 AND t.h2 = d.h2"
        )

    def _delta(self, source_id: SourceID) -> str:
        """Return the view of the changed rows of a table, in the columns that the query uses."""
        changes, columns = self._changes(source_id), self.program.columns[source_id]
        if columns == self.reader.relations.columns_of(source_id):
            return changes
        items = [f"c{n}" for n, _ in columns]
        text = f"SELECT {', '.join((*items, ROW_WEIGHT))} FROM {quote(changes)}"
        view, engine = f"delta~{sha256(text.encode()).hexdigest()[:24]}", self.reader.engine
        net = self._net(source_id).rows if self.changes[source_id].lost else None
        return engine.view(view, lambda: net.rows if net else engine.run(Statement(text, {}, ())))

    def _show_keys(self, probe: Probe) -> str:
        """Return the view of the keys of a probe."""
        text, origins = self._named(self.program.held[probe.keys]), probe.origins
        if not origins or not all(self.changes[s].lost for s, _ in origins):
            return self._hold("keys", text)
        relations = self.reader.relations

        def here() -> Any:
            rows = ((self._net(s).rows or relations.get(self._changes(s)), n) for s, n in origins)
            return relations.values([(changed, f"c{n}") for changed, n in rows])

        return self._hold("keys", text, here=here)

    def _show_probe(self, version: str, digest: str) -> str:
        """Return the view of rows of a changed table before or now: those with some keys, or more.

        The run may hold rows with these and other keys already. If they are few, they will do.
        """
        probe, relations = self.program.probes[digest], self.reader.relations
        (columns, n_users), keys = self._uses_of(digest), self._show_keys(probe)
        place = f"{version}~{self.versions.name_of(probe.table)}", probe.columns
        numbers = frozenset(n for n, _ in columns)
        held = relations.find_probe(place, numbers, keys)
        if held is not None and relations.holds_few(held):
            return held
        if held is None:
            view = self._search(version, probe, digest, keys, columns, n_users)
        else:
            items = ", ".join(f"c{n}" for n, _ in columns)
            having_keys = self._having_keys(probe, keys)
            text = f"SELECT t.* FROM (SELECT {items} FROM {quote(held)}){having_keys}"
            view = self._hold("probe", text, n_users=n_users)
        relations.add_probe(place, numbers, keys, view)
        return view

    def _having_keys(self, probe: Probe, keys: str) -> str:
        """Return the semi-join of rows of a table with the keys of a probe."""
        same = " AND ".join(
            f"t.c{n} {self.reader.relations.equal(keys, f'c{j}')} k.c{j}"
            for j, (n, _) in enumerate(probe.columns)
        )
        return f" AS t LEFT SEMI JOIN {quote(keys)} AS k ON {same}"

    def _search(
        self,
        version: str,
        probe: Probe,
        digest: str,
        keys: str,
        columns: Sequence[tuple[int, str]],
        n_users: int,
    ) -> str:
        """Return the view of the rows of a table with some keys, before or now.

        Parameters
        ----------
        keys
            The view of the keys.
        columns, n_users
            See `_uses_of`.
        """
        table, relations = probe.table, self.reader.relations
        having_keys = self._having_keys(probe, keys)
        hold = partial(self._hold, "probe", n_users=n_users)
        items = ", ".join(f"c{n}" for n, _ in columns)

        def probed(kind: str) -> str:
            view, pairs = self.versions.show(kind, table), probe.columns
            sides = [(name, f"c{k}") for k, (_, name) in enumerate(pairs)]
            if len(columns) > len(pairs) or any(
                self.versions.spans(table, name) for _, name in pairs
            ):
                files = self.versions.files_of(kind, table)
                some = self.versions.files_with_keys(table, files, sides, keys)
                view = view if len(some) == len(files) else self.versions.show_files(table, some)
                if len(columns) > len(pairs):
                    view = self._show_files_having(view, some, table, pairs, having_keys, n_users)
            rows = _numbered(view, columns)
            return f"SELECT t.* FROM ({rows}){having_keys}"

        if not self.changes[table].lost:
            unchanged = hold(probed("kept"))
            if version == "old":
                return unchanged
            text = f"SELECT * FROM {quote(unchanged)} UNION ALL {probed('gained')}"
            return hold(text)
        # The table is read once: one version follows from the other by the change.
        weight, text, change = quote(ROW_WEIGHT), probed("new"), self.versions.name_of(table)
        names = {v: _held_name("probe", f"{v} {change} {text}") for v in ("new", "old")}
        if not any(map(relations.holds, names.values())) and (
            version == "new" or self._n_uses(probe_name("new", digest))
        ):
            hold(text, names["new"])
        if relations.holds(names[version]):
            return hold(text, names[version])
        other = "old" if version == "new" else "new"
        if relations.holds(names[other]):
            text = f"SELECT * FROM {quote(hold(text, names[other]))}"
        changed = f"SELECT t.* FROM {quote(self._changes(table))}{having_keys}"
        sign = "" if version == "new" else "-"
        both = (
            f"SELECT *, 1L AS {weight} FROM ({text})"
            f" UNION ALL SELECT {items}, {sign}{weight} FROM ({changed})"
        )
        if relations.holds_few(names[other]):
            both = _in_one_task(both)
        return hold(
            f"SELECT {items} FROM ({netted(both, self._typed(table, columns))})"
            f" LATERAL VIEW explode(sequence(1, IF({weight} > 0, CAST({weight} AS INT),"
            " raise_error('changed rows are not there')))) repeated AS nth",
            names[version],
        )

    def _show_files_having(
        self,
        view: str,
        files: tuple[str, ...],
        source_id: SourceID,
        key: Sequence[tuple[int, str]],
        having_keys: str,
        n_users: int,
    ) -> str:
        """Return the view of those files of a large table that have rows with some keys.

        To find them, Spark reads the columns of the key only. Often few files have such rows: all
        rows of a deleted key are gone, and those of a new key are in new files. If a file from the
        middle has some, the others probably have, too.
        """
        if self.changes[source_id].total_bytes < _LARGE_BYTES or len(files) < _MANY_FILES:
            return view
        middle = (files[len(files) // 2],)
        one = self.versions.show_files(source_id, middle)
        if self._files_having(one, middle, key, having_keys, n_users):
            return view
        having = self._files_having(view, files, key, having_keys, n_users)
        return view if len(having) == len(files) else self.versions.show_files(source_id, having)

    def _files_having(
        self,
        view: str,
        files: tuple[str, ...],
        key: Sequence[tuple[int, str]],
        having_keys: str,
        n_users: int,
    ) -> tuple[str, ...]:
        """Return the files of a view that have rows with some keys, or all if Spark renames any."""
        column = quote("persist.file")
        named = f"SELECT *, input_file_name() AS {column} FROM ({_numbered(view, key)})"
        text = f"SELECT DISTINCT {column} FROM ({named}){having_keys}"

        def find() -> frozenset[str]:
            with translated("searching files for keys"):
                rows = self.planned(self.reader.engine.run(Statement(text, {}, ()))).collect()
            return frozenset(unquote(row[0]) for row in rows)

        began = time.monotonic()
        names = self.reader.relations.files_of(text, find)
        spent = time.monotonic() - began
        self.shared.count(text, spent, self.reader.relations.seconds(text), n_users)
        having = tuple(f for f in files if spark_uri(f) in names)
        return having if len(having) == len(names) else files


def _in_one_task(rows: str) -> str:
    """Return the SELECT of few rows in one partition, where grouping needs no exchange."""
    return f"SELECT /*+ COALESCE(1) */ * FROM ({rows})"


def _held_name(kind: str, text: str) -> str:
    return f"{kind}~{sha256(text.encode()).hexdigest()[:24]}"


def _numbered(view: str, columns: Iterable[tuple[int, str]], weight: str = "") -> str:
    """Return the SELECT of columns of a table by their numbers."""
    items = [f"{quote(name)} AS c{number}" for number, name in columns]
    items += [f"{weight} AS {ROW_WEIGHT}"] if weight else []
    return f"SELECT {', '.join(items) or '1 AS one'} FROM {quote(view)}"
