"""The keys of the rows that a build replaced, beside its files: readers look at no other rows.

A build that brings a table up to date by keys writes many rows again as they were, because they are
in the same files as rows that changed. The keys that it touched are kept in a directory of the
build, and its commit names the version since which no row with another key differs:

    version 7  ── touched: {"base": 5, "columns": ["customer_id"]} ──►  version 5  ──► …

Keys that are not certain are None, and all rows of the files are compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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
    """What a commit says of the keys that it touched.

    Attributes
    ----------
    base
        The version since which no row with another key differs.
    columns
        The key columns, as the table names them.
    """

    base: int
    columns: tuple[str, ...]

    @property
    def as_metadata(self) -> str:
        """Return the metadata of the commit."""
        return json.dumps({"base": self.base, "columns": self.columns})


def keep_keys(place: str, root: str, build_uid: str) -> bool:
    """Copy the files with the keys that a build touched beside its own; return False if too large.

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
        return False
    for number, file in enumerate(files):
        copy_file(file.location, f"{root}/{build_uid}/{_DIRECTORY}/part-{number}.parquet")
    return True


def keys_since(root: str, then: int, now: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the keys that differ between two versions of a table of ours; None: not known.

    Returns
    -------
    columns, files
        The key columns, and the files that have the keys in their first columns.
    """
    every_columns: list[tuple[str, ...]] = []
    files: list[str] = []
    while now > then and len(every_columns) < _MOST_VERSIONS:
        try:
            commit = read_commit(root, now)
        except StorageError:
            return None
        if TOUCHED not in commit:
            return None
        touched = json.loads(commit[TOUCHED])
        directory = f"{root}/{commit['persist.build']}/{_DIRECTORY}"
        kept = [f.location for f in list_files(directory) if f.name.endswith(".parquet")]
        if not kept:
            return None
        files += kept
        every_columns.append(tuple(touched["columns"]))
        now = touched["base"]
    if now != then or len({*every_columns}) != 1:
        return None
    return every_columns[0], tuple(files)
