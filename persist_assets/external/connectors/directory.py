"""Directories of Parquet or CSV files, whose versions are listings.

A directory keeps no earlier versions. The invariant: rows are taken for those of a version only if
the files that had it are unchanged, before they are read and after.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote, unpruned
from persist_assets.core.errors import ConflictError, GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.object_stores import spark_pattern, spark_uri
from persist_assets.core.raw_options import corrupt_column
from persist_assets.engine.named_files import (
    AS_NAMED,
    read_type,
    reading_options,
    schema_of,
    whole_records,
)
from persist_assets.external.connectors.access import spark_access
from persist_assets.external.connectors.directory_files import (
    OF_DIRECTORY,
    ListedFile,
    Listing,
    columns_of,
    footer_names,
    footer_spans,
    list_directory,
    parse_version,
    partition_spans,
    read_listed_footer,
)
from persist_assets.external.connectors.file_connector import FileConnector, read_cost
from persist_assets.external.connectors.postgres_rows import MOST_IN_MEMORY
from persist_assets.external.connectors.protocol import (
    CHANGE,
    INSERT,
    VERSION,
    Capabilities,
    Changes,
    Pruned,
)
from persist_assets.external.connectors.pruning import may_match
from persist_assets.external.connectors.reading import check_columns, conditions_of
from persist_assets.storage.files import reached
from persist_assets.storage.headers import grouped_by_columns

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.sources import External

log = logging.getLogger(__name__)

_MOST_FOOTERS = 1_000
"""The number of files up to which a cost is computed from their footers."""
_AT_ONCE = 16
"""The number of footers that are read at once."""
_MERGE = "mergeschema"
"""The option with which files may lack columns. It is not Spark's: each file is checked."""
_VERSIONS = "the newest; earlier ones while their files are unchanged"
_CHANGES = "new files; if one was replaced or removed, needed rows are compared with the copy"


class DirectoryConnector(FileConnector):
    """A directory of files of one format; see `FileConnector` for the parameters.

    It is listed once, and once more by `confirm`.
    """

    prefix = OF_DIRECTORY

    def __init__(
        self,
        external: External,
        location: str,
        columns: Sequence[Column],
        access: Mapping[str, str],
        session: Callable[[], SparkSession],
        timezone: ZoneInfo,
    ) -> None:
        super().__init__(external, location, columns, access, session, timezone)
        self.label = f"the files at {self.location}"
        self._options = {k: v for k, v in external.reading if k not in ("format", _MERGE)}
        self._listed: Listing | None = None
        self._read: dict[str, ListedFile] = {}
        """All files that were read since the directory was listed, by location."""

    # --------------------------------------------------------------------------------- formats

    @abstractmethod
    def _check(self, files: Sequence[ListedFile]) -> None:
        """Raise if files differ from the declaration."""

    @abstractmethod
    def _matching(
        self, files: Sequence[ListedFile], conditions: Sequence[str]
    ) -> list[tuple[ListedFile, int | None]]:
        """Return the files that may have matching rows, and their numbers of rows if known.

        Raises
        ------
        StorageError
            A file differs from the declaration, or cannot be read.
        """

    @abstractmethod
    def _load(self, files: Sequence[ListedFile]) -> DataFrame:
        """Return all rows of files, with all declared columns."""

    # --------------------------------------------------------------------------------- versions

    def close(self) -> None:
        """Forget the listing."""
        self._listed, self._read = None, {}

    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        if self.external.mode == "snapshot" and copy_version is not None:
            return copy_version
        listing = self._listing()
        self._check([max(listing.files, key=lambda f: (f.changed_ns, f.location))])
        return listing.version().name

    def start(self) -> str | None:
        """Return None: a copy begins with the version that is pinned."""
        return None

    def _start_version(self) -> str:
        raise NotImplementedError

    def _may_be_same(self, since: str, until: str) -> bool:
        return False

    def absent(self, columns: Sequence[str], predicate: str | None, version: str) -> frozenset[str]:
        """Return no column: files that lack one are an error, or known only when all are read."""
        return frozenset()

    def _listing(self) -> Listing:
        if self._listed is None:
            self._listed = self._look()
        return self._listed

    def _look(self) -> Listing:
        form = dict(self.external.reading)["format"]
        return list_directory(self.location, form, self.columns, self._access, self.label)

    def _held(self, version: str) -> list[ListedFile]:
        """Return the files of a version.

        Raises
        ------
        GoneError
            Some of them were replaced or removed.
        """
        listing, parsed = self._listing(), parse_version(version)
        if listing.version(parsed.newest_ns) != parsed:
            raise GoneError(
                f"some of {self.label} were replaced or removed since",
                hint="read those that are there now: persist external sync",
            )
        return [f for f in listing.files if f.changed_ns <= parsed.newest_ns]

    def confirm(self) -> None:
        """Raise if files that were read are not what they were; see `protocol.Connector`.

        Files that an earlier call confirmed count too: Spark may read them again.
        """
        if self._read and not self._look().still_has(self._read.values()):
            raise ConflictError(
                f"some of {self.label} changed while they were read", hint="try again"
            )

    # ---------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading a version for a predicate; see `protocol.Connector`."""
        conditions = conditions_of(self.external, predicate, start=True)
        return self._cost(self._held(version), conditions)

    def _cost(self, files: Sequence[ListedFile], conditions: Sequence[str]) -> Pruned:
        candidates = self._in_partitions(files, conditions)
        if len(candidates) > _MOST_FOOTERS:
            matching = [(f, None) for f in candidates]
        else:
            matching = self._matching(candidates, conditions)
        n_files = len(self._listing().files)
        return read_cost([n for _, n in matching], (f.bytes for f, _ in matching), n_files)

    def _in_partitions(
        self, files: Sequence[ListedFile], conditions: Sequence[str]
    ) -> list[ListedFile]:
        """Return the files whose partition columns may match."""
        return [
            f
            for f in files
            if all(
                may_match(c, partition_spans(f, self.columns, self._timezone)) for c in conditions
            )
        ]

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return columns of the matching rows of a version; see `protocol.Connector`."""
        conditions = conditions_of(self.external, predicate, start=True)
        return self._rows(self._held(version), conditions, columns)

    def _rows(
        self, files: Sequence[ListedFile], conditions: Sequence[str], columns: Sequence[str]
    ) -> DataFrame:
        """Return columns of the matching rows of files, which `confirm` looks at again."""
        candidates = self._in_partitions(files, conditions)
        self._note_read(candidates)
        matching = [f for f, _ in self._matching(candidates, conditions)]
        frame = self._fitting(self._load(matching), conditions).select(*map(quote, columns))
        return frame if self.staging is not None else self._in_memory(frame, matching)

    def _note_read(self, files: Iterable[ListedFile]) -> None:
        self._read |= {f.location: f for f in files}

    def _in_memory(self, frame: DataFrame, files: Sequence[ListedFile]) -> DataFrame:
        """Return rows that were read now, of files that did not change meanwhile.

        Raises
        ------
        StorageError
            They are too many.
        """
        if sum(f.bytes for f in files) > MOST_IN_MEMORY:
            raise StorageError(
                f"the query needs more than {MOST_IN_MEMORY >> 20} MiB of {self.label}",
                hint="persist a view of these rows: builds copy them in any number",
            )
        rows = frame.toArrow()
        self.confirm()
        return frame.sparkSession.createDataFrame(rows, frame.schema)

    def _read_files(self, files: Sequence[ListedFile], stored: Sequence[Column]) -> DataFrame:
        """Return all rows of files that have columns in this order, with the declared columns."""
        schema = schema_of(stored)
        reader = self._session().read.options(**self._options).options(**self._read_options())
        reader = reader.options(**AS_NAMED).options(**spark_access(self._access))
        reader = reader.option("basePath", spark_uri(self._listing().base)).schema(schema)
        form = dict(self.external.reading)["format"]
        frame = reader.format(form).load([spark_pattern(f.location) for f in files])
        return frame.selectExpr(
            *(
                f"{unpruned(quote(c.name), read_type(c.type))} AS {quote(c.name)}"
                for c in self.columns
            )
        )

    def _read_options(self) -> dict[str, str]:
        return {}

    def _empty(self) -> DataFrame:
        return self._session().createDataFrame([], schema_of(self.columns))

    # ---------------------------------------------------------------------------------- changes

    def _changes(
        self, since: str, until: str, conditions: Sequence[str], columns: Sequence[str]
    ) -> Changes:
        """Return the rows of new files, or that all rows have to be compared."""
        files, first = self._held(until), parse_version(since)
        if self._listing().version(first.newest_ns) != first:
            why = "files were replaced or removed, or came with an earlier time"
            return Changes(compare_reason=why, read=self._cost(files, conditions))
        new = [f for f in files if f.changed_ns > first.newest_ns]
        self._note_read(new)  # their footers alone may say that no row matches

        def load() -> DataFrame:
            rows = self._rows(new, conditions, columns)
            return rows.selectExpr("*", f"'{INSERT}' AS {CHANGE}", f"bigint(1) AS {VERSION}")

        cost = self._cost(new, conditions)
        return Changes(load if cost.files else None, only_came=True, read=cost)


class ParquetDirectory(DirectoryConnector):
    """A directory of Parquet files."""

    format = "Parquet"
    capabilities = Capabilities(
        filters="files, by partition directories and statistics; then row groups and rows",
        columns="only needed columns of files are read",
        versions=_VERSIONS,
        changes=_CHANGES,
    )

    @cached_property
    def _merges(self) -> bool:
        return dict(self.external.reading).get(_MERGE) == "true"

    @cached_property
    def _reported(self) -> set[str]:
        """The columns that a warning has named."""
        return set()

    @cached_property
    def _footers(self) -> dict[ListedFile, Any]:
        return {}

    def close(self) -> None:
        """Forget the listing and all footers."""
        super().close()
        self._footers.clear()

    def _check(self, files: Sequence[ListedFile]) -> None:
        for file, footer in self._with_footers(files):
            here = [(n, k) for n, k in columns_of(footer) if n.lower() not in file.partition]
            names = {n.lower() for n, _ in here} | file.partition.keys()
            declared = [c for c in self.columns if not self._merges or c.name.lower() in names]
            kinds = {c.name.lower(): c.type or "string" for c in self.columns}
            here += [(name, kinds.get(name, "string")) for name in file.partition]
            check_columns(declared, here, file.location)

    def _matching(
        self, files: Sequence[ListedFile], conditions: Sequence[str]
    ) -> list[tuple[ListedFile, int | None]]:
        self._check(files)
        self._warn_of_lacking(files)
        text = " ".join(conditions)
        matching: list[tuple[ListedFile, int | None]] = []
        for file, footer in self._with_footers(files):
            columns = [c for c in self.columns if c.name.lower() not in file.partition]
            spans = footer_spans(footer, columns, text)
            spans |= partition_spans(file, self.columns, self._timezone)
            if all(may_match(c, spans) for c in conditions):
                matching.append((file, footer.num_rows))
        return matching

    def _warn_of_lacking(self, files: Sequence[ListedFile]) -> None:
        """Warn if no file has some declared column: its name may be misspelled."""
        names = {n.lower() for _, footer in self._with_footers(files) for n in footer_names(footer)}
        names |= {name for f in files for name in f.partition}
        lacking = [c.name for c in self.columns if c.name.lower() not in names]
        if files and not self._reported.issuperset(lacking):
            self._reported.update(lacking)
            named = ", ".join(f"`{name}`" for name in lacking)
            message = "none of the %s files to read of %s has %s, so it is NULL in all rows"
            log.warning(message, len(files), self.label, named, extra={"action": "sync"})

    def _with_footers(self, files: Sequence[ListedFile]) -> Iterable[tuple[ListedFile, Any]]:
        """Return files with their footers, which are read once."""
        unread = [f for f in files if f not in self._footers]
        if unread:
            with (
                reached(self._listing().base, self._access) as (system, root),
                ThreadPoolExecutor(_AT_ONCE) as pool,
            ):
                footers = pool.map(
                    lambda f: read_listed_footer(system, root + f.path, f.location), unread
                )
                self._footers.update(zip(unread, footers, strict=True))
        return [(f, self._footers[f]) for f in files]

    def _load(self, files: Sequence[ListedFile]) -> DataFrame:
        if not files:
            return self._empty()
        self._check_row_counts({f.location: self._footers[f].num_rows for f in files})
        return self._read_files(files, self.columns)


class CsvDirectory(DirectoryConnector):
    """A directory of CSV files."""

    format = "CSV"
    capabilities = Capabilities(
        filters="files, by partition directories; then rows",
        columns="whole files are read",
        versions=_VERSIONS,
        changes=_CHANGES,
    )

    def _check(self, files: Sequence[ListedFile]) -> None:
        self._grouped(files)

    def _grouped(self, files: Sequence[ListedFile]) -> Mapping[tuple[Column, ...], list[str]]:
        """Return files, grouped by their columns in order; empty ones are left out.

        Raises
        ------
        StorageError
            A header lacks declared columns, or is not declared as one.
        """
        corrupt = corrupt_column(self._options).lower()
        elsewhere = {corrupt, *(name for f in files for name in f.partition)}
        places = [f.location for f in files]
        return grouped_by_columns(
            places, self._options, self.columns, elsewhere, self.label, self._access
        )

    def _matching(
        self, files: Sequence[ListedFile], conditions: Sequence[str]
    ) -> list[tuple[ListedFile, int | None]]:
        return [(f, None) for f in files]

    def _read_options(self) -> dict[str, str]:
        """Return the options with which no bad record goes unnoticed."""
        return reading_options("csv", self._options, self.columns)

    def _load(self, files: Sequence[ListedFile]) -> DataFrame:
        by_place = {f.location: f for f in files}
        frames = [
            self._read_files([by_place[place] for place in places], stored)
            for stored, places in self._grouped(files).items()
            if places
        ]
        if not frames:
            return self._empty()
        first, *others = frames
        for frame in others:
            first = first.union(frame)
        return whole_records(first, self.columns)


def directory_connector(
    external: External,
    location: str,
    columns: Sequence[Column],
    access: Mapping[str, str],
    session: Callable[[], SparkSession],
    timezone: ZoneInfo,
) -> DirectoryConnector:
    """Return the connector of a directory of files, by their format."""
    of = {"parquet": ParquetDirectory, "csv": CsvDirectory}[dict(external.reading)["format"]]
    return of(external, location, columns, access, session, timezone)
