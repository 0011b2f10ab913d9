"""REST catalogs of Iceberg tables: which metadata file of a table is the newest.

`pyiceberg` asks the catalog, and only that. Files are read with the table's own access, so that a
catalog decides neither which code reads them nor with which keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError
from persist_assets.core.trust import permit

if TYPE_CHECKING:
    from collections.abc import Mapping

URI, TABLE, _PREFIX = "rest.uri", "table_name", "rest."


def newest_metadata(storage: Mapping[str, str]) -> str:
    """Return the location of the newest metadata file of a table in a catalog.

    Parameters
    ----------
    storage
        The options of the catalog and of stores, with references resolved.

    Raises
    ------
    StorageError
        The catalog does not know the table, refuses, or answers something else.
    OSError
        It cannot be reached.
    UntrustedError
        It names another server that must not be reached; see `trust.permit`.
    """
    from pydantic import ValidationError
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import NoSuchTableError, RESTError

    class Catalog(RestCatalog):
        """A catalog whose answers choose no class that reads files."""

        def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
            return None

    uri, table = storage[URI], storage[TABLE]
    options = {
        name.removeprefix(_PREFIX): value
        for name, value in storage.items()
        if name.startswith(_PREFIX)
    }
    try:
        catalog: Any = Catalog("persist", **options)
        permit(catalog.uri)  # its configuration may name another one
        place: str | None = catalog.load_table(table).metadata_location
    except NoSuchTableError as error:
        raise StorageError(
            f"the catalog at {uri} has no table `{table}`",
            hint="check table_name, and rest.warehouse",
        ) from error
    except (RESTError, ValidationError, ValueError) as error:
        first = str(error).partition("\n")[0][:200]
        raise StorageError(
            f"the catalog at {uri} does not answer as one of Iceberg: {first}",
            hint="check rest.uri, rest.warehouse and the credentials",
        ) from error
    if not place:
        raise StorageError(f"the catalog at {uri} names no metadata file of `{table}`")
    return place
