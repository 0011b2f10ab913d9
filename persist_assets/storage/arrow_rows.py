"""Few rows of Parquet files, in memory as Arrow tables."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.storage.files import list_files, reached

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
AS_SPARK_3 = {b"org.apache.spark.version": b"3.0.0"}
"""The metadata of a Parquet file whose dates Spark reads as they are, in each rebase mode."""


def read_rows(place: str, columns: Sequence[str] | None = None) -> Any:
    """Return the rows of the Parquet files in a directory, as an Arrow table."""
    from pyarrow import concat_tables
    from pyarrow.parquet import ParquetFile

    tables: list[Any] = []
    for listed in list_files(place):
        if listed.name.endswith(".parquet"):
            with reached(listed.location) as (system, path), system.open_input_file(path) as opened:
                file = ParquetFile(opened)
                tables.append(file.read(columns and [*columns], use_threads=False))
    return concat_tables(tables)


def spark_schema(place: str) -> str | None:
    """Return the schema that Spark gave to the Parquet files in a directory, as JSON."""
    from pyarrow.parquet import read_metadata

    for file in list_files(place):
        if file.name.endswith(".parquet"):
            with reached(file.location) as (system, path):
                schema = (read_metadata(path, filesystem=system).metadata or {}).get(_SPARK_SCHEMA)
            return schema and schema.decode()
    return None


def with_spark_schema(rows: Any, schema: str) -> Any:
    """Return an Arrow table that is written with Spark's schema; see `spark_schema`."""
    return rows.replace_schema_metadata({_SPARK_SCHEMA: schema})


def digest_of(rows: Any) -> str:
    """Return a digest of the names, types and values of an Arrow table, independent of its order.

    Raises
    ------
    pyarrow.ArrowException
        Values of some column have no order.
    """
    from pyarrow import BufferOutputStream, Table, ipc

    rows = rows.sort_by([(name, "ascending") for name in rows.column_names]).combine_chunks()
    rows, stream = Table.from_arrays(rows.columns, rows.column_names), BufferOutputStream()
    with ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return sha256(stream.getvalue()).hexdigest()


def write_rows(rows: Any, place: str) -> None:
    """Write an Arrow table as the only file of a directory."""
    from pyarrow.parquet import write_table

    with reached(place) as (system, path):
        system.create_dir(path, recursive=True)
        rows = rows.replace_schema_metadata(AS_SPARK_3 | (rows.schema.metadata or {}))
        with system.open_output_stream(f"{path}/part-0.parquet") as stream:
            write_table(rows, stream, compression="snappy")
