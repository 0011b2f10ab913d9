"""The changes between two versions of a Delta table, as its commits state them.

A commit either records its changes in files of their own, or they follow from the files that it
adds and removes. Columns may be added: earlier rows have NULL there. The commits are only trusted
if their files lead from the earlier version to the later one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError
from persist_assets.external.connectors.delta_files import DeltaFile
from persist_assets.external.connectors.delta_log import (
    has_commit,
    has_hidden_files,
    is_same_version,
    number_of,
    reading_of,
)
from persist_assets.external.connectors.delta_schema import field_set, fields_of, parse_fields
from persist_assets.external.connectors.file_connector import Unfollowable, unfollowable_if_gone
from persist_assets.external.connectors.protocol import DELETE, INSERT
from persist_assets.storage.commits import may_lack_changes
from persist_assets.storage.raw import file_location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.external.connectors.delta_files import DeltaFiles
    from persist_assets.external.connectors.delta_log import DeltaLog
    from persist_assets.external.connectors.delta_schema import DeltaField
    from persist_assets.storage.commits import Actions

RECORDED = "recorded"
"""The `change` of a file in which a commit records its changes."""
_VECTOR = "deletionVector"


@dataclass(frozen=True, slots=True)
class _Commit:
    """The actions of a commit, and its version."""

    actions: Actions
    version: int


class DeltaChanges:
    """Derives the changes that lead to a version.

    Parameters
    ----------
    table
        The `DeltaTable` at the later version.
    """

    def __init__(self, log: DeltaLog, files: DeltaFiles, table: Any) -> None:
        self._log, self._files, self._table, self._location = log, files, table, log.location
        self._fields, self._keys = fields_of(table), table.metadata().partition_columns

    def files_since(
        self, since: str, conditions: Sequence[str]
    ) -> tuple[list[DeltaFile], list[DeltaFile]]:
        """Return the files that were added or removed, and those in which changes are recorded.

        Raises
        ------
        Unfollowable
            The commits do not lead from one version to the other, or it is unclear whether they do.
        """
        start = self._open_start(since)
        start_fields = fields_of(start)
        first, last = number_of(since), self._table.version()
        begin, end = (
            {f.location: f for f in self._files.list_files(version, conditions)}
            for version in (start, self._table)
        )
        listed = begin | {place: _in_both(f, begin.get(place)) for place, f in end.items()}
        places, stored = set(begin), {place: f.stored for place, f in listed.items()}
        whole: list[DeltaFile] = []
        recorded: list[DeltaFile] = []
        for version in range(first + 1, last + 1):
            commit = _Commit(self._log.commit(version), version)
            for add in commit.actions.get("add", ()):
                place = self._place(add)
                stored[place] = _stated_rows(add) if stored.get(place) is None else stored[place]
            self._check_schema(start_fields, commit)
            self._check_unchanged(places, stored, commit)
            places = self._places_after(places, commit)
            if "cdc" in commit.actions and not may_lack_changes(commit.actions, self._count_rows):
                recorded += (self._file(a, version, RECORDED) for a in commit.actions["cdc"])
            else:
                whole += self._moved(commit)
        if places != end.keys():
            raise Unfollowable(f"its log after version {first} does not add up to version {last}")
        return [_with_statistics(f, listed.get(f.location)) for f in whole], recorded

    # ----------------------------------------------------------------------------------- checks

    def _open_start(self, since: str) -> Any:
        """Return the table at the earlier version, if its rows are those that were read."""
        first = number_of(since)
        with unfollowable_if_gone():
            start = self._log.open(first)
        if not is_same_version(self._log.name(start), since):
            raise Unfollowable(f"it was restored to before version {first} and then written to")
        if has_commit(since) and self._log.commit_bytes(first) is None:
            raise Unfollowable(f"its log no longer has version {first}")
        reading = self._log.reading(start)
        if reading != reading_of(since):
            raise Unfollowable(
                "an earlier release did not read its hidden files"
                if has_hidden_files(reading) and not has_hidden_files(since)
                else "moments of its partitions were read in another time zone"
            )
        if not field_set(fields_of(start)) <= field_set(self._fields):
            raise Unfollowable(f"its columns changed after version {first}")
        return start

    def _check_schema(self, start_fields: Sequence[DeltaField], commit: _Commit) -> None:
        """Raise if a commit replaces the table, or changes its columns except by adding some."""
        for metadata in commit.actions.get("metaData", ()):
            configuration = metadata.get("configuration") or {}
            fields = field_set(parse_fields(metadata["schemaString"], configuration))
            if metadata["id"] != self._table.metadata().id:
                raise Unfollowable(f"it was replaced in version {commit.version}")
            only_adds = field_set(start_fields) <= fields <= field_set(self._fields)
            if not only_adds or metadata.get("partitionColumns", []) != self._keys:
                raise Unfollowable(f"its columns changed in version {commit.version}")

    def _check_unchanged(
        self, places: Collection[str], stored: Mapping[str, int | None], commit: _Commit
    ) -> None:
        """Raise if a commit states that no row changed, but changes the number of rows.

        Parameters
        ----------
        places
            The files before the commit.
        stored
            The number of rows in each file, as far as the log states it.
        """
        came, went = (
            {self._place(a): a for a in commit.actions.get(kind, ()) if not _changes_rows(a)}
            for kind in ("add", "remove")
        )
        came = {f: a for f, a in came.items() if f not in places or f in went}
        went = {f: a for f, a in went.items() if f in places}
        n_more = 0
        try:
            for actions, sign in ((came, 1), (went, -1)):
                for place, action in actions.items():
                    rows = stored.get(place)
                    rows = self._files.count_rows(place) if rows is None else rows
                    n_more += sign * (rows - (action.get(_VECTOR) or {}).get("cardinality", 0))
        except (StorageError, OSError) as error:
            raise Unfollowable(
                f"version {commit.version} states that no row changed, but its rows cannot be"
                f" counted: {error}"
            ) from error
        if n_more:
            raise Unfollowable(
                f"version {commit.version} states that no row changed, but leaves"
                f" {abs(n_more)} {'more' if n_more > 0 else 'fewer'}"
            )

    def _places_after(self, places: set[str], commit: _Commit) -> set[str]:
        """Return the files that the table has after a commit.

        Adding a file that is present, or removing one that is absent, changes no row, although
        the log says so.
        """
        came, went = (
            {self._place(a): _changes_rows(a) for a in commit.actions.get(kind, ())}
            for kind in ("add", "remove")
        )
        twice = [f for f in came if f in places and f not in went and came[f]]
        twice += [f for f in went if f not in places and went[f]]
        if twice:
            raise Unfollowable(f"version {commit.version} adds or removes a file twice")
        return (places - went.keys()) | came.keys()

    # ------------------------------------------------------------------------------------ files

    def _moved(self, commit: _Commit) -> Iterable[DeltaFile]:
        """Yield the files whose rows a commit added or removed."""
        version = commit.version
        adds, removes = (
            [a for a in commit.actions.get(kind, ()) if _changes_rows(a)]
            for kind in ("add", "remove")
        )
        deleted_before, deleted_after = self._deleted_around(adds, removes, version)
        came = {f.location: f for f in (self._file(a, version, INSERT) for a in adds)}
        went = {f.location: f for f in (self._file(a, version, DELETE) for a in removes)}
        none: frozenset[int] = frozenset()
        for files, deleted, others, deleted_in_others in (
            (went, deleted_before, came, deleted_after),
            (came, deleted_after, went, deleted_before),
        ):
            for place, file in files.items():
                rows = deleted.get(place) or none
                if place not in others:
                    yield replace(file, skipped=rows)
                elif only := (deleted_in_others.get(place) or none) - rows:
                    yield replace(file, only=only)  # the same file with other rows deleted

    def _deleted_around(
        self,
        adds: Sequence[Mapping[str, Any]],
        removes: Sequence[Mapping[str, Any]],
        version: int,
    ) -> tuple[dict[str, frozenset[int] | None], dict[str, frozenset[int] | None]]:
        """Return the row numbers of deleted rows by file, before a commit and after it."""
        if not any(a.get(_VECTOR) for a in (*adds, *removes)):
            return {}, {}
        places = {self._place(a) for a in (*adds, *removes)}
        with unfollowable_if_gone():
            before, after = (
                self._files.deleted_rows(self._log.open(number), places)
                for number in (version - 1, version)
            )
        for actions, deleted in ((adds, after), (removes, before)):
            if not {self._place(a) for a in actions if a.get(_VECTOR)} <= deleted.keys():
                raise self._files.unknown_names()
        return before, after

    def _file(self, action: Mapping[str, Any], version: int, change: str) -> DeltaFile:
        keys = {f.physical: f.name for f in self._fields if f.name in self._keys}
        values: Mapping[str, str | None] = action.get("partitionValues") or {}
        if values.keys() != keys.keys():
            raise Unfollowable(f"version {version} lacks the partitions of its files")
        partition = {keys[k]: v or None for k, v in values.items()}
        size = action.get("size") or 0
        return DeltaFile(
            self._place(action), size, partition=partition, change=change, version=version
        )

    def _count_rows(self, action: Mapping[str, Any]) -> int:
        return self._files.count_rows(self._place(action))

    def _place(self, action: Mapping[str, Any]) -> str:
        return file_location(action["path"], self._location)


def _changes_rows(action: Mapping[str, Any]) -> bool:
    return bool(action.get("dataChange", True))


def _stated_rows(add: Mapping[str, Any]) -> int | None:
    """Return a file's number of rows according to the action that adds it; None: not stated."""
    try:
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
    except (AttributeError, ValueError):
        return None
    return rows if isinstance(rows, int) else None


def _in_both(later: DeltaFile, earlier: DeltaFile | None) -> DeltaFile:
    """Return a file of the later version with the statistics that it also had in the earlier one.

    Rows that a deletion vector deletes need not be in the statistics of the later version.
    """
    if earlier is None:
        return later
    same = {name: span for name, span in later.spans.items() if earlier.spans.get(name) == span}
    return replace(later, spans=same)


def _with_statistics(file: DeltaFile, listed: DeltaFile | None) -> DeltaFile:
    """Return an added or removed file with the statistics of a version that contains it."""
    if listed is None:
        return file
    whole = None if listed.rows is None else listed.rows - len(file.skipped)
    rows = whole if file.only is None else len(file.only)
    return replace(file, spans=listed.spans, rows=rows, stored=listed.stored)
