"""The metadata of an Iceberg table: its metadata file, its snapshots, and the places of its files.

The table is opened by its metadata file; a catalog is only asked which one that is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from persist_assets.core.errors import StorageError
from persist_assets.core.object_stores import CONNECT_S, scheme_of
from persist_assets.external.connectors.access import iceberg_access
from persist_assets.external.connectors.iceberg_catalog import newest_metadata
from persist_assets.storage.files import permit_store, unreachable
from persist_assets.storage.waiting import ask, patience_now

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_ICEBERG = "iceberg:"
"""The prefix of the names of versions; see `IcebergVersion`."""
NO_SNAPSHOT = -1
"""The snapshot of a table that has none yet."""
_METADATA = ".metadata.json"
_COMPRESSED = f".gz{_METADATA}"


class IcebergVersion(NamedTuple):
    """The parts of the name of a version.

    Attributes
    ----------
    snapshot
        Its number.
    table_id
        The table's UUID.
    schema
        The id of its schema, if that is not the snapshot's own: columns may change without a new
        snapshot.
    """

    snapshot: int
    table_id: str
    schema: int | None


def parse_version(version: str) -> IcebergVersion:
    """Return the parts of the name of a version.

    Examples
    --------
    >>> tuple(parse_version("iceberg:5:1f-2e")), tuple(parse_version("iceberg:5:1f-2e:3"))
    ((5, '1f-2e', None), (5, '1f-2e', 3))
    """
    number, table_id, *schema = version.removeprefix(OF_ICEBERG).split(":")
    return IcebergVersion(int(number), table_id, int(schema[0]) if schema else None)


def version_name(table: Any, number: int) -> str:
    """Return the name of the version of a snapshot, with the schema that it is read with."""
    snapshot, current = table.snapshot_by_id(number), table.metadata.current_schema_id
    schema = snapshot.schema_id if snapshot is not None else None
    name = f"{OF_ICEBERG}{number}:{table_uuid(table)}"
    is_own = schema == current or (schema is not None and number != head(table))
    return name if is_own else f"{name}:{current}"


def table_uuid(table: Any) -> str:
    """Return the id that a table keeps for its lifetime."""
    return str(table.metadata.table_uuid)


def head(table: Any) -> int:
    """Return the current snapshot."""
    current = table.metadata.current_snapshot_id
    return NO_SNAPSHOT if current is None else int(current)


def ancestry(table: Any, number: int) -> list[int]:
    """Return a snapshot and its ancestors, the newest first, up to the first that expired."""
    numbers: list[int] = []
    snapshot = table.snapshot_by_id(number)
    while snapshot is not None:
        numbers.append(int(snapshot.snapshot_id))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return numbers


def keeps_rows(snapshot: Any) -> bool:
    """Whether a snapshot states that it only rewrites files, or adds none."""
    summary = snapshot.summary
    if summary is None:
        return False
    no_files = summary.additional_properties.get("added-data-files", "0") == "0"
    operation = summary.operation.value
    return operation == "replace" or (operation == "append" and no_files)


# --------------------------------------------------------------------------------------- opening


def open_table(location: str, storage: Mapping[str, str], *, in_catalog: bool = False) -> Any:
    """Return the newest `pyiceberg.table.StaticTable` at a location.

    Parameters
    ----------
    location
        The table's directory, or a metadata file; a name for messages if a catalog is asked.
    storage
        The storage options, and those of the catalog, with references resolved.
    in_catalog
        Whether the catalog knows the metadata file.

    Raises
    ------
    StorageError
        There is no table, or it cannot be read, or pyiceberg is not installed.
    """
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.exceptions import ValidationError
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise StorageError(
            "reading Iceberg tables requires pyiceberg",
            hint="pip install 'persist-assets[iceberg]'",
        ) from error

    class Permitted(PyArrowFileIO):
        """File access that is limited to what `trust.permit` allows."""

        def new_input(self, location: str) -> Any:
            permit_store(location)
            return super().new_input(location)

    answer_s = patience_now().answer_s
    access = {
        "s3.connect-timeout": str(min(CONNECT_S, answer_s)),
        "s3.request-timeout": str(answer_s),
        **iceberg_access(storage),
    }
    io = Permitted(access)

    def read() -> tuple[str, Any]:
        place = newest_metadata(storage, io) if in_catalog else _metadata_file(location, io)
        return place, FromInputFile.table_metadata(io.new_input(place))

    try:
        place, metadata = ask(location, read, bounded=True)
    except FileNotFoundError as error:
        hint = "the metadata file that its catalog names is gone" if in_catalog else "check its uri"
        raise StorageError(f"there is no Iceberg table at {location}", hint=hint) from error
    except (OSError, ValueError, ValidationError) as error:
        failed = f"cannot open the Iceberg table at {location}"
        raise unreachable(location, error, failed) from error

    class Files(Permitted):
        """File access that also resolves relative paths of the metadata."""

        def new_input(self, location: str) -> Any:
            return super().new_input(_absolute_path(location, metadata.location, place))

    io = Files(access)
    return StaticTable(("static-table", place), metadata, place, io, NoopCatalog("static"))


def _metadata_file(location: str, io: Any) -> str:
    """Return the metadata file: the location itself, or the one that its directory's hint names."""
    if location.endswith((_METADATA, ".metadata.json.gz")):
        return location
    directory = f"{location}/metadata"
    try:
        with io.new_input(f"{directory}/version-hint.text").open() as stream:
            hint = stream.read().decode().strip()
    except FileNotFoundError as error:
        message = f"the newest metadata file at {location} is unknown"
        raise StorageError(message, hint="name it with metadata_location") from error
    if not re.fullmatch(r"\d+", hint):
        return f"{directory}/{hint}{_METADATA}"
    newest, ending = int(hint), _METADATA
    if not io.new_input(f"{directory}/v{newest}{ending}").exists():
        ending = _COMPRESSED
    # Writers update the hint after the metadata file, so there may be a later file.
    while io.new_input(f"{directory}/v{newest + 1}{ending}").exists():
        newest += 1
    return f"{directory}/v{newest}{ending}"


def file_place(table: Any, path: str) -> str:
    """Return the path at which Spark finds a file that metadata names."""
    place = _absolute_path(path, table.metadata.location, table.metadata_location)
    if place.startswith("file:"):
        return re.sub(r"^file:(//[^/]*)?", "", place)
    return re.sub(r"^s3[an]://", "s3://", place)


def _absolute_path(path: str, table_location: str, metadata_file: str) -> str:
    """Return the absolute path for a path of metadata; relative ones are below the table."""
    relative = table_location.rstrip("/")
    is_absolute = bool(scheme_of(table_location)) or table_location.startswith("/")
    if is_absolute or not relative or not path.startswith(f"{relative}/"):
        return path
    return metadata_file.rpartition("/metadata/")[0] + path.removeprefix(relative)
