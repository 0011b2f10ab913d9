"""The relations that programs of `analysis/deltas` read: versions of tables, and their changes.

    now:T                      a table that did not change
    old:T, new:T               one that did, before and now
    kept:T, lost:T, gained:T   the rows of its files that stay, went and came
    delta:T                    its changed rows, net of each other, with their weights

A relation is a view of the session. Its name says which versions it is made of, so sources of one
run share relations, and the work to compute those that are held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.building.reader import Slice, view_name
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.core.model.deltas import ROW_WEIGHT
from persist_assets.engine.session import translated
from persist_assets.planning.render import Statement
from persist_assets.storage.delta_tables import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.deltas import Merging, Program
    from persist_assets.core.model.plans import Change
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot

_NAME = re.compile(
    r"`(now|old|new|kept|lost|gained|delta|keys|probe|change|former|state):((?:[^`]|``)+)`"
)


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
        The views of states, by the names that statements use.
    """

    reader: Reader
    program: Program | Merging
    read: Mapping[SourceID, Snapshot]
    changes: Mapping[SourceID, Change]
    states: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, sql: str) -> DataFrame:
        """Return the lazy rows of a statement of the program."""
        for name, text in self.program.held.items():
            if quote(name) in sql:
                self._show_held(name, text)
        return self.reader.engine.run(Statement(self._named(sql), {}, ()))

    def held(self, name: str) -> DataFrame:
        """Return the rows of a relation that the program holds."""
        return self.run(f"SELECT * FROM {quote(name)}")

    def _named(self, sql: str) -> str:
        """Return a statement over views that exist."""

        def view(match: re.Match[str]) -> str:
            kind, name = match[1], match[2].replace("``", "`")
            if kind in ("keys", "probe", "change"):
                held = f"{kind}:{name}"
                return quote(self._show_held(held, self.program.held[held]))
            if kind in ("former", "state"):
                return quote(self.states[f"{kind}:{name}"])
            return quote(self._show_table(kind, name))

        return _NAME.sub(view, sql)

    def _show_held(self, name: str, sql: str) -> str:
        """Return the view of a held relation; equal ones of a run are one."""
        text = self._named(sql)
        view = f"{name.partition(':')[0]}~{sha256(text.encode()).hexdigest()[:24]}"
        engine, relations = self.reader.engine, self.reader.relations
        return engine.view(view, lambda: relations.hold(view, engine.run(Statement(text, {}, ()))))

    def _show_table(self, kind: str, source_id: SourceID) -> str:
        """Return the view of a version of a table, or of its change."""
        name = f"{kind}~{self._version_name(source_id)}"
        if kind == "delta":
            columns = self.program.columns[source_id]
            name += f"~{sha256(repr(columns).encode()).hexdigest()[:8]}"
            return self.reader.engine.view(name, lambda: self._delta(name, source_id, columns))
        return self.reader.engine.view(name, lambda: self._rows(kind, source_id))

    def _version_name(self, source_id: SourceID) -> str:
        """Return a name for the versions between which a table changed."""
        change = self.changes.get(source_id)
        paths = (
            ()
            if change is None
            else ([p.path for p in change.added], [p.path for p in change.lost])
        )
        return f"{self._table_name(source_id)}~{sha256(repr(paths).encode()).hexdigest()[:16]}"

    def _table_name(self, source_id: SourceID) -> str:
        if source_id in self.read:
            return view_name(self.read[source_id])
        return self.reader.raw_name(self.reader.project.by_id[source_id])

    def _rows(self, kind: str, source_id: SourceID) -> DataFrame:
        if kind in ("now", "new"):
            return self._slice(source_id, None)
        change = self.changes[source_id]
        added, lost = (tuple(p.path for p in some) for some in (change.added, change.lost))
        kept = tuple(f for f in self._files(source_id) if f not in {*added})
        files = {"gained": added, "lost": lost, "kept": kept, "old": (*kept, *lost)}[kind]
        return self._slice(source_id, files)

    def _slice(self, source_id: SourceID, files: tuple[str, ...] | None) -> DataFrame:
        source = self.reader.project.by_id[source_id]
        return self.reader.load_slice(source, self.read.get(source_id), Slice(files))

    def _files(self, source_id: SourceID) -> tuple[str, ...]:
        """Return the files of a table now.

        Raises
        ------
        BuildError
            They lack some that were added.
        """
        snapshot = self.read.get(source_id)
        source = self.reader.project.by_id[source_id]
        if snapshot is not None:
            root = self.reader.settings.table_root(snapshot.table)
            files = read_snapshot(root, snapshot).files
        else:
            files = self.reader.pins.pin(source).files or ()
        if not {p.path for p in self.changes[source_id].added} <= {*files}:
            raise BuildError(f"the files of `{source.name}` are not those of its log")
        return files

    def _delta(self, name: str, source_id: SourceID, columns: tuple[str, ...]) -> DataFrame:
        """Return the changed rows of a table, as far as a query reads its columns."""
        change, engine = self.changes[source_id], self.reader.engine
        items = "".join(f"{quote(c)}, " for c in columns)
        came = (
            f"SELECT {items}1L AS {ROW_WEIGHT} FROM {quote(self._show_table('gained', source_id))}"
        )
        if not change.lost:
            return engine.run(Statement(came, {}, ()))
        went = (
            f"SELECT {items}-1L AS {ROW_WEIGHT} FROM {quote(self._show_table('lost', source_id))}"
        )
        keys = ", ".join(map(quote, columns))
        sql = (
            f"SELECT {items}sum({ROW_WEIGHT}) AS {ROW_WEIGHT} FROM ({came} UNION ALL {went})"
            f"{f' GROUP BY {keys}' if keys else ''} HAVING sum({ROW_WEIGHT}) <> 0"
        )
        with translated(f"comparing versions of {source_id}"):
            return self.reader.relations.hold(name, engine.run(Statement(sql, {}, ())))
