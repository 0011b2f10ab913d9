"""Rows of PostgreSQL, read in one transaction: all that is read of a table is from one moment.

`psycopg` receives rows as the server's COPY writes them, `pyarrow` parses them, and nothing is kept
in memory beyond a block of them.
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.trust import permit
from persist_assets.external.connectors.postgres_columns import IN_VIEW, arrow_type, fetched_text
from persist_assets.storage.arrow_rows import AS_SPARK_3
from persist_assets.storage.files import reached

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from persist_assets.external.connectors.postgres_columns import PostgresColumn

_CONNECTION: Mapping[str, str] = {
    "application_name": "persist",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    # Detects a machine that is gone within half a minute, instead of the next day.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
}
_SPELLINGS = (
    "SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),"
    " set_config('IntervalStyle', 'iso_8601', true), set_config('extra_float_digits', '1', true),"
    " set_config('bytea_output', 'hex', true)"
)
"""The settings that decide how values are written, for one transaction."""
_BLOCK_BYTES = 16 << 20
"""The number of bytes parsed at once; no row may be larger."""
MOST_IN_MEMORY = 256 << 20
"""The maximum bytes that a query other than a build may fetch: it cannot store them."""


class Transaction:
    """A transaction that sees the database as it was at one moment, and changes nothing.

    Parameters
    ----------
    url
        The URL of the database, without a password.
    password
        The password; None: libpq looks for one, in PGPASSWORD or its own file.
    label
        The name of the table in messages.

    Raises
    ------
    StorageError
        The database cannot be reached, or `psycopg` is not installed.
    UntrustedError
        See `trust.permit`.

    Attributes
    ----------
    n_bytes
        How many bytes of rows were received so far.
    """

    def __init__(self, url: str, password: str | None, label: str) -> None:
        permit(url)
        try:
            import psycopg
        except ImportError as error:
            raise StorageError(
                f"{label} needs the package psycopg", hint="install persist-assets[postgres]"
            ) from error
        self.label, self.n_bytes = label, 0
        options = dict(_CONNECTION)
        if password is not None:
            options["password"] = password
        with self._failing("reach"):
            self._connection = psycopg.connect(url, **options)  # pyright: ignore[reportArgumentType]
        try:
            with self._failing("read"):
                self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                self._connection.read_only = True
                self._connection.execute(_SPELLINGS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the transaction and its connection."""
        self._connection.close()

    @contextmanager
    def _failing(self, what: str) -> Generator[None]:
        """Turn errors of the database into ours; none of them contains a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            message = re.sub(r"\s*\n\s*", " ", str(error).strip()) or type(error).__name__
            raise StorageError(f"cannot {what} {self.label}: {message[:300]}") from error

    def fetch(self, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._failing("read"):
            return self._connection.execute(query.encode(), values).fetchall()

    def name(self, name: str) -> str:
        """Return a quoted name."""
        from psycopg import sql

        return sql.Identifier(name).as_string(self._connection)

    def text(self, text: str) -> str:
        """Return a text as a literal."""
        from psycopg import sql

        return sql.Literal(text).as_string(self._connection)

    def batches(self, columns: Sequence[PostgresColumn], source: str) -> Iterator[Any]:
        """Yield Arrow batches with columns of a relation, named by their numbers.

        Parameters
        ----------
        source
            What follows FROM.

        Raises
        ------
        StorageError
            A value has no equal in Spark.
        """
        import pyarrow as pa
        from pyarrow import csv

        texts = ["1", *(fetched_text(c, self.name(c.name)) for c in columns)]
        # The first column tells a row of one NULL from an empty line.
        kinds = {"one": pa.int8(), **{f"c{n}": arrow_type(c) for n, c in enumerate(columns)}}
        query = f"COPY (SELECT {', '.join(texts)} FROM {source})"
        query += " TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        with self._failing("read"), self._connection.cursor().copy(query.encode()) as copy:
            stream = _Received(copy)
            if not stream.peek():
                return
            try:
                reader = csv.open_csv(
                    stream,
                    csv.ReadOptions(column_names=[*kinds], block_size=_BLOCK_BYTES),
                    csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                    csv.ConvertOptions(
                        column_types=kinds,
                        null_values=[""],
                        true_values=["t"],
                        false_values=["f"],
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                    ),
                )
                for batch in reader:
                    self.n_bytes += stream.taken()
                    yield _zoned(batch.drop_columns(["one"]), columns)
                self.n_bytes += stream.taken()
            except pa.ArrowInvalid as error:
                raise self._unfit(str(error), columns) from error

    def _unfit(self, message: str, columns: Sequence[PostgresColumn]) -> StorageError:
        number = re.search(r"In CSV column #(\d+): (?:CSV conversion error to \S+: )?(.*)", message)
        if number is None:
            return StorageError(f"cannot read {self.label}: {message[:300]}")
        column = columns[int(number[1]) - 1]
        return StorageError(
            f"a value in `{column.name}`, which is {column.shown}, of {self.label} does not fit"
            f" {column.kind}: {number[2][:200]}",
            hint=IN_VIEW,
        )


def _zoned(batch: Any, columns: Sequence[PostgresColumn]) -> Any:
    """Return a batch whose instants have a zone; they were fetched in UTC."""
    import pyarrow as pa

    for n, column in enumerate(columns):
        if column.kind == "timestamp":
            instants = batch.column(n).cast(pa.timestamp("us", "UTC"))
            batch = batch.set_column(n, batch.schema.field(n).name, instants)
    return batch


class _Received(io.RawIOBase):
    """The bytes that COPY sends, as a file."""

    def __init__(self, copy: Any) -> None:
        self._copy, self._left, self._taken = copy, b"", 0

    def readable(self) -> bool:
        return True

    def peek(self) -> bool:
        """Whether any bytes are left."""
        if not self._left:
            self._left = bytes(self._copy.read())
        return bool(self._left)

    def taken(self) -> int:
        """Return how many bytes were read since the last call."""
        taken, self._taken = self._taken, 0
        return taken

    def readinto(self, buffer: Any) -> int:
        size, filled = len(buffer), 0
        while filled < size and self.peek():
            part = self._left[: size - filled]
            buffer[filled : filled + len(part)] = part
            self._left = self._left[len(part) :]
            filled += len(part)
        self._taken += filled
        return filled


_FILE_BYTES = 128 << 20
"""The size in memory at which a file of rows is full: object stores take each file as a whole."""


def write_batches(batches: Iterator[Any], place: str, file_bytes: int = _FILE_BYTES) -> int:
    """Write Arrow batches as Parquet files of a directory, and return how many rows they have.

    Without batches, there is no directory.
    """
    from pyarrow import parquet

    n_rows = n_files = 0
    batch = next(batches, None)
    with reached(place) as (system, path):
        while batch is not None:
            system.create_dir(path, recursive=True)
            schema, n_bytes = batch.schema.with_metadata(AS_SPARK_3), 0
            with (
                system.open_output_stream(f"{path}/part-{n_files}.parquet") as stream,
                parquet.ParquetWriter(stream, schema) as writer,
            ):
                while batch is not None and n_bytes < file_bytes:
                    writer.write_batch(batch.replace_schema_metadata(AS_SPARK_3))
                    n_rows, n_bytes = n_rows + batch.num_rows, n_bytes + batch.nbytes
                    batch = next(batches, None)
            n_files += 1
    return n_rows


def moved_on(label: str) -> GoneError:
    """Return the error for a version that a table no longer has."""
    return GoneError(
        f"{label} has other rows by now, and keeps no earlier versions",
        hint="read its newest rows: persist external sync",
    )
