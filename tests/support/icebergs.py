"""Iceberg tables that pyiceberg writes, for tests."""

from __future__ import annotations

import importlib.util
import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

POINTS = pa.schema([("id", pa.int64()), ("c", pa.string()), ("x", pa.float64())])


def need_iceberg() -> None:
    """Skip the test where there is no pyiceberg."""
    there = importlib.util.find_spec("pyiceberg")
    need("it" if there else None, "install persist-assets[iceberg]")


class Written:
    """An Iceberg table that pyiceberg writes, with a hint at its newest metadata.

    Parameters
    ----------
    tmp_path
        Where its catalog is; the table is in `n/t`.
    schema
        Its columns.
    properties
        Of the table.
    """

    def __init__(self, tmp_path: Path, schema: pa.Schema = POINTS, **properties: str) -> None:
        need_iceberg()
        from pyiceberg.catalog.sql import SqlCatalog

        self.root = tmp_path / "n" / "t"
        tmp_path.mkdir(exist_ok=True)
        self.catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")  # fmt: skip
        self.catalog.create_namespace("n")
        self.table = self.create(schema, properties)
        self.hint()

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> Any:
        return self.catalog.create_table(
            "n.t", schema, f"file://{self.root}", properties=properties
        )

    def hint(self) -> None:
        newest = self.table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        (self.root / "metadata" / "version-hint.text").write_text(newest)

    def append(self, *rows: tuple[int, str, float | None]) -> None:
        columns = zip(*rows, strict=True)
        names = [f.name for f in self.table.schema().fields]
        arrays = {n: list(v) for n, v in zip(names, columns, strict=True)}
        types = self.table.schema().as_arrow()
        self.table.append(pa.table(arrays, schema=pa.schema([(f.name, f.type) for f in types])))
        self.hint()

    def put(self, rows: pa.Table) -> None:
        """Append rows as they are; into files of their partitions, each transform in Python."""
        with self.table.transaction() as changing, changing.update_snapshot().fast_append() as made:
            for file in self._files(changing.table_metadata, rows):
                made.append_data_file(file)
        self.hint()

    def _files(self, metadata: Any, rows: pa.Table) -> Iterator[Any]:
        from pyiceberg.io.pyarrow import write_file
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
        from pyiceberg.table import WriteTask

        spec, schema, uid = metadata.spec(), metadata.schema(), uuid.uuid4()
        parts = [
            (
                schema.find_column_name(f.source_id),
                f.transform.transform(schema.find_type(f.source_id)),
            )
            for f in spec.fields
        ]
        by_key: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows.to_pylist():
            key = tuple(transformed(row[column]) for column, transformed in parts)
            by_key.setdefault(key, []).append(row)
        tasks: list[Any] = []
        for n, (key, some) in enumerate(by_key.items()):
            values = [PartitionFieldValue(*pair) for pair in zip(spec.fields, key, strict=True)]
            where = PartitionKey(values, spec, schema) if values else None
            batches = pa.Table.from_pylist(some, rows.schema).to_batches()
            tasks.append(WriteTask(uid, n, schema, batches, None, where))
        return write_file(self.table.io, metadata, iter(tasks))

    def delete(self, ids: Sequence[int]) -> None:
        """Delete rows by their id, by writing files anew."""
        from pyiceberg.expressions import In

        self.table.delete(In("id", ids))
        self.hint()

    def replace(self, ids: Sequence[int], rows: pa.Table) -> None:
        """Put rows in the place of those with some ids."""
        from pyiceberg.expressions import In

        self.table.overwrite(rows, In("id", ids))
        self.hint()

    def compact(self) -> None:
        """Write all rows into one file, as a snapshot that says that it changes none."""
        table, whole = self.table, self.table.scan().to_arrow()
        with table.transaction() as changing, changing.update_snapshot().overwrite() as snapshot:
            for task in table.scan().plan_files():
                snapshot.delete_data_file(task.file)
            for file in self._files(changing.table_metadata, whole):
                snapshot.append_data_file(file)
        place = Path(table.metadata_location.removeprefix("file://"))
        told = json.loads(place.read_text())
        (newest,) = (
            s for s in told["snapshots"] if s["snapshot-id"] == told["current-snapshot-id"]
        )
        newest["summary"]["operation"] = "replace"  # which pyiceberg does not write
        place.write_text(json.dumps(told))
        table.refresh()
        self.hint()

    def make_anew(self) -> None:
        """Drop the table, and make another one in its place."""
        schema = self.table.schema().as_arrow()
        self.catalog.drop_table("n.t")
        shutil.rmtree(self.root)
        self.table = self.create(schema, {})
        self.hint()

    def part_by(self, *columns: tuple[str, str]) -> None:
        """Part what is written from now on by columns and their transforms."""
        from pyiceberg.transforms import parse_transform

        with self.table.update_spec() as spec:
            for column, transform in columns:
                name = f"{column}_{transform.partition('[')[0]}"
                spec.add_field(column, parse_transform(transform), name)
        self.hint()

    def expire(self, *numbers: int) -> None:
        """Forget snapshots, and the data files that only they have."""
        for number in numbers:
            self.table.maintenance.expire_snapshots().by_id(number).commit()
        self.hint()
        scans = [self.table.scan(snapshot_id=s.snapshot_id) for s in self.table.snapshots()]
        kept = {task.file.file_path for scan in scans for task in scan.plan_files()}
        for file in (self.root / "data").rglob("*.parquet"):
            if f"file://{file}" not in kept:
                file.unlink()

    def head(self) -> str:
        """Return what the newest version is called."""
        return f"iceberg:{self.table.metadata.current_snapshot_id}:{self.table.metadata.table_uuid}"

    def delete_positions(
        self, *positions: int, place: str | None = None, equality: bool = False
    ) -> None:
        """Delete rows of the one data file by their numbers, as other writers do.

        Parameters
        ----------
        place
            Of another data file.
        equality
            Said to be by the values of columns.
        """
        from pyiceberg.manifest import (
            DataFile,
            DataFileContent,
            FileFormat,
            ManifestContent,
            ManifestEntry,
            ManifestEntryStatus,
            ManifestWriterV2,
            write_manifest_list,
        )
        from pyiceberg.typedef import Record

        class Deletes(ManifestWriterV2):
            def content(self) -> ManifestContent:
                return ManifestContent.DELETES

            @property
            def _meta(self) -> dict[str, str]:
                return {**super()._meta, "content": "deletes"}

        table = self.table
        (task,) = table.scan().plan_files()
        named = place or task.file.file_path
        place = self.root / "data" / "deletes.parquet"
        rows = {"file_path": [named] * len(positions), "pos": list(positions)}
        pq.write_table(pa.table(rows), place)
        number = 4711
        parent = table.current_snapshot()
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES
            if equality
            else DataFileContent.POSITION_DELETES,
            file_path=f"file://{place}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(positions),
            file_size_in_bytes=place.stat().st_size,
        )
        file.spec_id = 0
        manifest = table.io.new_output(f"file://{self.root}/metadata/deletes-m0.avro")
        with Deletes(table.spec(), table.schema(), manifest, number, "null") as writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file
                )
            )
        listed = f"file://{self.root}/metadata/snap-{number}.avro"
        with write_manifest_list(2, table.io.new_output(listed), number, parent.snapshot_id, 2, "null") as lists:  # fmt: skip
            lists.add_manifests([*parent.manifests(table.io), writer.to_manifest_file()])
        place = Path(table.metadata_location.removeprefix("file://"))
        told = json.loads(place.read_text())
        at = parent.timestamp_ms + 1
        told["snapshots"].append(
            {"snapshot-id": number, "parent-snapshot-id": parent.snapshot_id, "sequence-number": 2, "timestamp-ms": at,
             "manifest-list": listed, "summary": {"operation": "delete"}, "schema-id": 0}
        )  # fmt: skip
        told |= {"current-snapshot-id": number, "last-sequence-number": 2, "last-updated-ms": at}
        told["refs"]["main"]["snapshot-id"] = number
        told["snapshot-log"].append({"snapshot-id": number, "timestamp-ms": at})
        place.write_text(json.dumps(told))
        table.refresh()
        self.hint()
