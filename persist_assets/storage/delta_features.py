"""Features of Delta tables of other writers: whether their files alone are their rows.

The invariant: a feature that is not known to leave the rows alone is reported.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.storage.files import unreachable
from persist_assets.storage.waiting import ask

READABLE_FEATURES = frozenset(("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
"""Features of Delta tables under which their Parquet files alone are their rows."""
BY_LOG = frozenset(("deletionVectors", "columnMapping"))
"""Further features under which the log tells how files are read; see `Pin.by_log`."""
_LOST = re.compile(r"(?i)not found|no such file")


def check_readable(table: Any, location: str) -> None:
    """Raise if the rows of a Delta table are not simply those of its Parquet files.

    Raises
    ------
    StorageError
        It uses a feature under which they are not.
    """
    unknown = unusual_features(table, location)
    if unknown:
        names = sorted(unknown - BY_LOG or unknown)
        raise StorageError(
            f"the Delta table at {location} uses {', '.join(names)}: not supported",
            hint="its Parquet files alone would give wrong rows: write it without this feature",
        )


def unusual_features(table: Any, location: str) -> set[str]:
    """Return the features that a Delta table uses, and under which its files are not its rows."""
    metadata = table.metadata()
    protocol = table.protocol()
    features: list[str] = list(protocol.reader_features or ())
    unknown = set(features) - READABLE_FEATURES
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    unknown.discard("columnMapping")
    if mode != "none":
        unknown.add("columnMapping" if mode == "name" else f"columnMapping by {mode}")
    # delta-rs reads no deletion vectors of a table with a feature that it does not know.
    is_read = "deletionVectors" in unknown and unknown <= BY_LOG
    if is_read and not _has_deletion_vectors(table, location):
        unknown.discard("deletionVectors")
    return unknown


def marks_of(table: Any, location: str) -> list[str]:
    """Return texts that differ if the log has the same files read as other rows."""
    marks = [f"columns {table.schema().to_json()}"]
    if "deletionVectors" in (table.protocol().reader_features or ()):
        for batch in deletion_vectors(table, location):
            for path, vector in zip(*batch.columns, strict=True):
                bits = vector.values.to_numpy(zero_copy_only=False).tobytes()
                marks.append(f"rows of {path.as_py()}: {hashlib.sha256(bits).hexdigest()}")
    return marks


def deletion_vectors(table: Any, location: str) -> Any:
    """Return the `pyarrow.RecordBatchReader` of a Delta table's deletion vectors.

    Raises
    ------
    GoneError
        A file of deletion vectors is gone.
    StorageError
        A file of deletion vectors cannot be read.
    """
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        return ask(location, lambda: pa.RecordBatchReader.from_stream(table.deletion_vectors()))
    except (DeltaError, OSError) as error:
        failed = f"cannot read a deletion vector of the Delta table at {location}"
        raised = unreachable(location, error, failed)
        raise GoneError(raised.message) if _LOST.search(str(error)) else raised from error


def _has_deletion_vectors(table: Any, location: str) -> bool:
    return any(batch.num_rows for batch in deletion_vectors(table, location))
