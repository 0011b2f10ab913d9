"""The versions of tables that a build reads, or whose changes it reads.

now                  a table that did not change
old, new             one that did, before and now
kept, gained, lost   the files that both versions have, and those that one of them has
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.building.key_files import files_with, spans_by_file
from persist_assets.building.reader import Slice, view_name
from persist_assets.core.errors import BuildError, GoneError, StorageError
from persist_assets.storage.delta_tables import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.plans import Change
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.time_values import Span

_PRUNED_BYTES = 4 * 2**20
"""In tables of at least this size, keys are searched only in files that can have them."""


@dataclass(slots=True)
class TableVersions:
    """The versions of tables in one build.

    Attributes
    ----------
    read
        The snapshots that the build reads.
    changes
        The changes of the tables that changed.
    """

    reader: Reader
    read: Mapping[SourceID, Snapshot]
    changes: Mapping[SourceID, Change]
    _listed: dict[SourceID, tuple[str, ...]] = field(
        default_factory=dict["SourceID", tuple[str, ...]]
    )

    def show(self, kind: str, source_id: SourceID) -> str:
        """Return the view of the rows of a version of a table, or of a part of its files."""
        name = f"{kind}~{self.name_of(source_id)}"
        return self.reader.engine.view(name, lambda: self._rows(kind, source_id))

    def show_files(self, source_id: SourceID, files: tuple[str, ...]) -> str:
        """Return the view of the rows of some files of a table."""
        digest = sha256(repr(files).encode()).hexdigest()
        name = f"files~{self.table_name(source_id)}~{digest[:16]}"
        return self.reader.engine.view(name, lambda: self._slice(source_id, files))

    def name_of(self, source_id: SourceID) -> str:
        """Return a name for the versions between which a table changed."""
        change = self.changes.get(source_id)
        paths = (
            [[p.path for p in pieces] for pieces in (change.added, change.lost)] if change else []
        )
        return f"{self.table_name(source_id)}~{sha256(repr(paths).encode()).hexdigest()[:16]}"

    def table_name(self, source_id: SourceID) -> str:
        """Return a name for the version of a table that the build reads."""
        if source_id in self.read:
            return view_name(self.read[source_id])
        return self.reader.raw_name(self.reader.project.by_id[source_id])

    def _rows(self, kind: str, source_id: SourceID) -> DataFrame:
        """Return the rows of a table now, before, or of the files that stay, went or came."""
        if kind in ("now", "new"):
            return self._slice(source_id, None)
        try:
            return self._slice(source_id, self.files_of(kind, source_id))
        except StorageError as error:
            kinds = ("lost", "old", "kept")
            if kind not in kinds or not isinstance(error.__cause__, FileNotFoundError):
                raise
            name = self.reader.project.by_id[source_id].name
            raise GoneError(
                f"files of the earlier version of {name}, from which its table was computed, are"
                " gone, so the changes are unknown",
                hint="let VACUUM keep files for longer than the time between two builds",
            ) from error

    def files_of(self, kind: str, source_id: SourceID) -> tuple[str, ...]:
        """Return the files of a table that changed: now, before, or those of one part of it."""
        change = self.changes[source_id]
        added, lost = (tuple(p.path for p in some) for some in (change.added, change.lost))
        if kind == "gained":
            return added
        if kind == "lost":
            return lost
        files = self.files(source_id)
        unchanged = change.before or tuple(f for f in files if f not in {*added})
        return {"new": files, "kept": unchanged, "old": (*unchanged, *lost)}[kind]

    def _slice(self, source_id: SourceID, files: tuple[str, ...] | None) -> DataFrame:
        source = self.reader.project.by_id[source_id]
        return self.reader.load_slice(source, self.read.get(source_id), Slice(files))

    def files(self, source_id: SourceID) -> tuple[str, ...]:
        """Return the files of a table now.

        Raises
        ------
        BuildError
            They lack some that were added.
        """
        if source_id in self._listed:
            return self._listed[source_id]
        snapshot, source = self.read.get(source_id), self.reader.project.by_id[source_id]
        if snapshot is not None:
            files = read_snapshot(self.reader.settings.table_root(snapshot.table), snapshot).files
        else:
            files = self.reader.pins.pin(source).files or ()
        change = self.changes.get(source_id)
        is_whole = change is None or change.before or {p.path for p in change.added} <= {*files}
        if not is_whole:
            raise BuildError(f"the files of `{source.name}` do not match its log")
        return self._listed.setdefault(source_id, files)

    def spans(self, source_id: SourceID, column: str) -> Mapping[str, Span]:
        """Return the span of a column in each file of a large table; see `spans_by_file`."""
        if (self.reader.bytes_of(source_id, self.read) or 0) < _PRUNED_BYTES:
            return {}
        source, snapshot = self.reader.project.by_id[source_id], self.read.get(source_id)
        find = partial(spans_by_file, self.reader, source, snapshot, column)
        return self.reader.relations.spans_in_files(self.table_name(source_id), column, find)

    def files_with_keys(
        self,
        source_id: SourceID,
        files: tuple[str, ...],
        pairs: Iterable[tuple[str, str]],
        keys: str,
    ) -> tuple[str, ...]:
        """Return the files of a table that can have rows with some keys; at least one.

        Parameters
        ----------
        pairs
            The columns of the table, and those of the keys that they are compared with.
        keys
            The view of the keys.
        """
        some = files
        for column, key in pairs:
            spans = self.spans(source_id, column)
            has_key = self.reader.relations.finds_keys(keys, key) if spans else None
            if has_key is not None:
                some = files_with(some, spans, has_key)
        return some or files[:1]
