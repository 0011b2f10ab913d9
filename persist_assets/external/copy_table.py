"""The Delta table of one copy: its files and rows, and how new rows are laid out in it."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.errors import StorageError
from persist_assets.core.time_values import literal
from persist_assets.external.row_changes import NET, are_equal
from persist_assets.storage.delta_tables import file_actions, file_sizes, find_table, live_files
from persist_assets.storage.raw import Pin, file_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, Row

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.row_changes import RowChanges
    from persist_assets.storage.delta_commit import Staged

FILE = "_persist_file"
"""The column with the file that a row is in."""

_ORDERING = ("timestamp", "bigint", "timestamp_ntz", "int", "date", "string")
"""The types of columns to order rows by, the most selective first."""

_FEW_FILES = 3
"""Up to this many files are rewritten without checking which of them have to be."""

_MOST_FILES, _FEWEST_ROWS, _MOST_ROWS = 200, 50_000, 1_000_000
"""The approximate number of files of a copy, and the least and greatest number of rows in a file. A
change of a row rewrites its whole file."""


class CopyTable:
    """The table that holds the copy of an external table.

    Parameters
    ----------
    root
        Its directory.
    """

    def __init__(self, engine: Engine, source: Source, root: str) -> None:
        assert source.external is not None
        self.engine, self.source, self.root = engine, source, root
        self.key = source.external.key

    def open(self, copy: LocalCopy) -> Any:
        """Return the `DeltaTable` with the copy's rows.

        Raises
        ------
        StorageError
            It is gone.
        """
        table = find_table(self.root, copy.committed)
        if table is None:
            raise StorageError(
                f"the copy of `{self.source.name}` is gone from {self.root}",
                hint=f"fetch it again: persist external sync {self.source.key} --again",
            )
        return table

    def files(self, copy: LocalCopy) -> tuple[str, ...]:
        """Return the files with the copy's rows."""
        return tuple(file_sizes(self.open(copy)))

    def rows(self, copy: LocalCopy, files: Sequence[str]) -> DataFrame:
        """Return the rows in some files, with the column `FILE`."""
        paths = tuple(file_location(f, self.root) for f in files)
        names = [quote(c) for c in copy.columns]
        pin = Pin(None, paths, self.root)
        frame = self.engine.read_files("parquet", pin, self.source.columns, {}, file=FILE)
        return frame.select(*names, FILE)

    def describe(self, committed: int) -> tuple[str, int, int]:
        """Return the table's id, and the numbers of rows and bytes of a version."""
        table = find_table(self.root, committed)
        files = file_actions(table)
        rows, sizes = files["num_records"].to_pylist(), files["size_bytes"].to_pylist()
        return table.metadata().id, sum(rows), sum(sizes)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """Return the declared columns with these names."""
        return [c for c in self.source.columns if c.name in names]

    def ordering(self, names: Sequence[str]) -> list[str]:
        """Return the columns by which rows can be ordered, the most selective first."""
        kinds = {c.name: (c.type or "").lower() for c in self.columns(names)}
        return [name for kind in _ORDERING for name in names if kinds.get(name) == kind]

    # ---------------------------------------------------------------------------------- writing

    def stored(self, copy: LocalCopy | None) -> tuple[tuple[str, str | None], ...]:
        """Return the columns of the table's files, with their types; None: of a new table."""
        if copy is not None and copy.stored is not None:
            return copy.stored
        return tuple((c.name, c.type) for c in self.source.columns)

    def write(
        self,
        rows: DataFrame,
        columns: Sequence[str],
        stored: Sequence[tuple[str, str | None]],
        build_uid: str,
        n_expected: int,
    ) -> Staged:
        """Write rows with all columns of the table; those that are not needed are NULL.

        Parameters
        ----------
        columns
            The columns of `rows`.
        stored
            The columns of the table.
        n_expected
            About how many rows the copy has afterwards.
        """
        from pyspark.sql import functions as F

        names = {*columns}
        shaped = rows.select(
            *(
                (F.col(quote(name)) if name in names else F.lit(None))
                .cast(kind or "string")
                .alias(name)
                for name, kind in stored
            )
        )
        most = min(max(n_expected // _MOST_FILES, _FEWEST_ROWS), _MOST_ROWS)
        return self.engine.write_files(shaped, self.root, build_uid, most_rows=most)

    def check_key(self, staged: Staged, copy: LocalCopy | None, kept_files: Sequence[str]) -> None:
        """Check that the primary keys of written rows are unique among written and kept rows.

        Raises
        ------
        StorageError
            Two rows have one key, or one has none.
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
        if copy is not None and kept_files:
            old = self.rows(copy, kept_files).select(*names)
            rows = rows.unionAll(old.join(new.distinct(), [*self.key], "leftsemi"))
        is_null = reduce(lambda x, y: x | y, [F.col(n).isNull() for n in names])
        counts = rows.groupBy(*names).agg(F.count(F.lit(1)).alias(NET))
        first = counts.where((F.col(NET) > 1) | is_null).take(1)
        if first:
            values = ", ".join(f"{k} = {first[0][k]}" for k in self.key)
            raise StorageError(
                f"`{self.source.name}` has {first[0][NET]} rows of {values}, its primary key",
                hint="remove PRIMARY KEY from its declaration, or fix the table;"
                " the copy was not changed",
                location=self.source.location,
            )

    # ----------------------------------------------------------------------------------- layout

    def ordered(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return rows partitioned and sorted by the first column of `ordering`.

        In the order of a join's keys, changes would touch all files.
        """
        first = next(iter(self.ordering(names)), None)
        if first is None:
            return rows
        return rows.repartitionByRange(quote(first)).sortWithinPartitions(quote(first))

    def split(self, rows: DataFrame, copy: LocalCopy, changes: RowChanges) -> DataFrame:
        """Return rows in two partitions, near removed rows and others, if changes are few.

        Files with both would be candidates for all later deletions.
        """
        from pyspark.sql import functions as F

        name = next((c for c in self.ordering(copy.columns) if c in changes.removed_spans), None)
        if name is None or changes.n_added + changes.n_removed > _MOST_ROWS:
            return rows
        kind, span = changes.removed_spans[name]
        low, high = (literal(value, kind) for value in span)
        near = f"{quote(name)} >= {low} AND {quote(name)} <= {high}"
        return rows.repartitionById(2, F.expr(f"IF({near}, 0, 1)"))

    def touched_files(
        self, copy: LocalCopy, changes: RowChanges, removed: DataFrame
    ) -> dict[str, int]:
        """Return the files that may contain removed rows, with their numbers of rows."""
        files = {
            path: file.rows or 0
            for path, file in live_files(self.open(copy)).items()
            if all(
                file.may_have(c, kind, span) for c, (kind, span) in changes.removed_spans.items()
            )
        }
        if len(files) <= _FEW_FILES:
            return files
        # Reading all columns costs too much here.
        names = [*(self.key or self.ordering(copy.columns)[:2] or copy.columns)]
        local = self.rows(copy, [*files]).select(*map(quote, names), FILE)
        removed_keys = removed.select(*map(quote, names))
        hit = local.join(removed_keys, are_equal(local, removed_keys, names), "leftsemi")
        touched = named_by([*files], hit.select(FILE).distinct().collect())
        return {path: files[path] for path in touched}


def named_by(files: Sequence[str], rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the files that `rows` name in their first column, however the paths are spelled."""
    names = {row[0].rpartition("/")[2] for row in rows}
    return tuple(f for f in files if f.rpartition("/")[2] in names)
