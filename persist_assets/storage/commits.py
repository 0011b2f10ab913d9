"""Commits in the logs of Delta tables: their actions, and whether they may change rows.

The invariant: a commit may change rows unless it is known not to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Actions = dict[str, list[Any]]
"""The actions of a commit by kind, in order."""

MOST_COMMITS = 200
"""After this many commits, rows are assumed to have changed."""
_MOST_COUNTED = 100
"""The rows of at most so many files of a commit are counted."""
_KNOWN = frozenset(("commitInfo", "txn", "domainMetadata", "metaData", "protocol", "add", "remove"))
"""Kinds of actions that add and remove no rows; files state by themselves whether they do."""


def commit_file(version: int) -> str:
    """Return the path of a commit, relative to the table's directory.

    Examples
    --------
    >>> commit_file(12)
    '_delta_log/00000000000000000012.json'
    """
    return f"_delta_log/{version:020}.json"


def parse_commit(written: bytes, version: int, location: str) -> Actions:
    """Return the actions of a commit.

    Raises
    ------
    StorageError
        It is not JSON.
    """
    actions: Actions = {}
    try:
        for line in written.splitlines():
            for kind, action in (json.loads(line) if line.strip() else {}).items():
                actions.setdefault(kind, []).append(action)
    except ValueError as error:
        raise StorageError(
            f"version {version} in the log of the Delta table at {location} is broken: {error}"
        ) from error
    return actions


def moves(actions: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a commit may add or remove rows.

    OPTIMIZE adds and removes the files that it rewrites with ``dataChange=false``.

    Examples
    --------
    >>> moves({"add": [{"dataChange": False}], "remove": [{"dataChange": False}], "txn": [{}]})
    False
    >>> moves({"add": [{"path": "a"}]}), moves({"cdc": [{"dataChange": False}]})
    (True, True)
    """
    return _changes_files(actions) or not _KNOWN.issuperset(actions)


def is_whole_change(actions: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the files that a commit adds and removes are the whole change of its rows.

    Examples
    --------
    >>> is_whole_change({"add": [{"dataChange": True}], "cdc": [{}]})
    True
    >>> is_whole_change({"add": [{"dataChange": False}], "cdc": [{}]})
    False
    """
    recorded = {"cdc"} if _changes_files(actions) else set[str]()
    return (_KNOWN | recorded).issuperset(actions)


def maps_columns(actions: Mapping[str, Sequence[Any]]) -> bool:
    """Whether columns may have other names in files than in the table after a commit.

    Examples
    --------
    >>> maps_columns({"metaData": [{"configuration": {"delta.columnMapping.mode": "name"}}]})
    True
    >>> maps_columns({"metaData": [{"configuration": {}}, {}]})
    False
    """
    configurations = (m.get("configuration") or {} for m in actions.get("metaData", ()))
    return any(c.get("delta.columnMapping.mode", "none") != "none" for c in configurations)


def may_lack_changes(
    actions: Mapping[str, Sequence[Any]], count_rows: Callable[[Any], int]
) -> bool:
    """Whether the change data of a commit may lack rows.

    An UPDATE by delta-rs does not record a row before or after it that equals another row. If there
    are two recorded rows for each updated row, none is missing.

    Parameters
    ----------
    count_rows
        Returns the number of rows in the file of an action.

    Examples
    --------
    >>> update = {"operation": "UPDATE", "engineInfo": "delta-rs:1"}
    >>> update["operationMetrics"] = {"num_updated_rows": 2}
    >>> commit = {"commitInfo": [update], "cdc": [{"path": "a"}, {"path": "b"}]}
    >>> may_lack_changes(commit, lambda action: 1)
    True
    >>> may_lack_changes(commit, lambda action: 2)
    False
    """
    for info in actions.get("commitInfo", ()):
        writer = f"{info.get('engineInfo')} {info.get('clientVersion')}"
        if info.get("operation") == "UPDATE" and "delta-rs" in writer:
            n_updated = (info.get("operationMetrics") or {}).get("num_updated_rows")
            recorded = actions.get("cdc", ())
            if not isinstance(n_updated, int) or len(recorded) > _MOST_COUNTED:
                return True
            try:
                return sum(map(count_rows, recorded)) != 2 * n_updated
            except (OSError, StorageError):
                return True
    return False


def _changes_files(actions: Mapping[str, Sequence[Any]]) -> bool:
    files = [*actions.get("add", ()), *actions.get("remove", ())]
    return any(f.get("dataChange", True) for f in files)
