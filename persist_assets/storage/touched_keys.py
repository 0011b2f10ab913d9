"""The keys of the rows that a build replaced, beside its files: readers look at no other rows.

A build that brings a table up to date by keys writes many rows again as they were, because they are
in the same files as rows that changed. The keys that it touched are kept in a directory of the
build, and its commit names the version since which no row with another key differs:

    version 7  ── {"base": 5, "columns": ["customer_id"], "n_files": 1} ──►  version 5  ──► …

Keys that are not certain are None, and all rows of the files are compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from persist_assets.core.errors import StorageError
from persist_assets.storage.delta_tables import read_commit
from persist_assets.storage.files import copy_file, list_files

TOUCHED = "persist.touched"
"""The metadata of a commit with the version and the key columns, as JSON."""
_DIRECTORY = "touched"
_MOST_BYTES = 64 * 2**20
"""The maximum size of the keys that a build keeps."""
_MOST_VERSIONS = 16


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys that a commit touched, as it records them.

    Attributes
    ----------
    base
        The version since which no row with another key differs.
    columns
        The key columns, as the table names them.
    n_files
        The number of files with the keys. If some of them are gone, the others are not all keys.
    """

    base: int
    columns: tuple[str, ...]
    n_files: int

    @property
    def as_metadata(self) -> str:
        """Return the metadata of the commit."""
        return json.dumps(asdict(self))


def keep_keys(place: str, root: str, build_uid: str) -> int:
    """Copy the files with the keys that a build touched beside its own, unless they are too large.

    Returns
    -------
    int
        The number of files; 0: none was copied.

    Parameters
    ----------
    place
        The directory of Parquet files whose first columns are the key columns, in order.

    Raises
    ------
    StorageError
        They cannot be copied.
    """
    files = [file for file in list_files(place) if file.name.endswith(".parquet")]
    if sum(file.bytes for file in files) > _MOST_BYTES:
        return 0
    for number, file in enumerate(files):
        copy_file(file.location, f"{root}/{build_uid}/{_DIRECTORY}/part-{number}.parquet")
    return len(files)


def keys_since(
    root: str, then: int, now: int
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]] | None:
    """Return the keys that differ between two versions of a table of ours; None: not known.

    Returns
    -------
    columns, files
        The key columns, and for each build, the files that have the keys in their first columns.
    """
    columns: set[tuple[str, ...]] = set()
    files: list[tuple[str, ...]] = []
    while now > then and len(files) < _MOST_VERSIONS:
        try:
            commit = read_commit(root, now)
        except StorageError:
            return None
        if TOUCHED not in commit:
            return None
        touched = json.loads(commit[TOUCHED])
        directory = f"{root}/{commit['persist.build']}/{_DIRECTORY}"
        present = [f.location for f in list_files(directory) if f.name.endswith(".parquet")]
        if len(present) != touched["n_files"]:
            return None
        files.append(tuple(present))
        columns.add(tuple(touched["columns"]))
        now = touched["base"]
    if now != then or len(columns) != 1:
        return None
    return columns.pop(), tuple(files)
