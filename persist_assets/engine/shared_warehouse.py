"""Whether this process, Spark's driver and its executors have the same warehouse.

Executors write the files of a table, and this process commits them. If Spark runs elsewhere, a
warehouse may be one directory for Spark and another one for this process: a path on another
machine, or a bucket to which only one of them has access. Builds would compute all rows, and fail
or find no files then. So the first build of a session tries it with files of a few bytes.

The invariant: no row is computed for a warehouse that was not tried, unless Spark runs in local
mode in this process or in the shared server, which have the same files.
"""

from __future__ import annotations

import re
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from persist_assets.core.errors import PersistError, StorageError
from persist_assets.core.object_stores import spark_pattern, spark_uri
from persist_assets.engine.session import translated
from persist_assets.storage.files import delete_directory, list_files, read_bytes, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persist_assets.core.settings.values import Settings

_N_ROWS = 64
"""The number of rows that Spark writes: enough for a task on each core of a small cluster."""
_LOCK = threading.Lock()
_TRIED: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The warehouses that were tried in each session of this process."""

_HINT = (
    "the warehouse has to be the same files for this process, Spark's driver and its executors:"
    ' a bucket (warehouse = "s3://…"), or a file system that all of them mount at the same path'
)
_UNSEEN = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException|NoSuchFileException|does not exist"
)
_REFUSED = re.compile(
    r"[^\n]*(?:Permission ?denied|AccessDenied|Forbidden|not authorized|Mkdirs failed"
    r"|Read-only file)[^\n]*"
)


def ensure_shared(session: SparkSession, settings: Settings) -> None:
    """Raise unless Spark and this process have the same warehouse; look once in each session.

    It costs two small jobs of Spark, and nothing if Spark runs in local mode here.

    Raises
    ------
    StorageError
        They have not, or one of them cannot use it.
    """
    warehouse = settings.warehouse
    with _LOCK:
        tried = _TRIED.setdefault(session, set())
        if warehouse not in tried:
            where = _elsewhere(session, settings)
            if where is not None:
                _try(session, warehouse, where)
            tried.add(warehouse)


def _elsewhere(session: SparkSession, settings: Settings) -> str | None:
    """Return the place where Spark runs; None if it shares this process's files."""
    from pyspark.sql.session import SparkSession as Classic

    if not isinstance(session, Classic):  # pyright: ignore[reportUnnecessaryIsInstance]
        spark = dict(settings.spark)
        if not settings.shared:
            address = spark.get("spark.remote", "a Spark server")
            return f"Spark at {address.partition('/;')[0]}"  # without its token
        master = spark.get("spark.master", "local")  # the server is a process of this user, here
    else:
        master = str(session.conf.get("spark.master", "local"))
    return None if master == "local" or master.startswith("local[") else f"Spark at {master}"


def _try(session: SparkSession, warehouse: str, where: str) -> None:
    token = uuid.uuid4().hex
    place = f"{warehouse.rstrip('/')}/.probe-{token}"
    try:
        _let_spark_read(session, f"{place}/token", token, warehouse, where)
        _let_spark_write(session, f"{place}/rows", token, warehouse, where)
        _write(f"{place}/rows/token", token, f"this process cannot write beside {where}'s files in")
    finally:
        with suppress(PersistError):
            delete_directory(place)
    if _left(place):
        raise StorageError(
            f"this process cannot delete what {where} writes to the warehouse {warehouse}",
            hint="give both the same user, or a group that may write there (umask 002)",
        )


def _left(place: str) -> bool:
    with suppress(PersistError):
        return bool(list_files(place))
    return True


def _write(location: str, token: str, failed: str) -> None:
    try:
        write_text(location, token)
    except OSError as error:
        message = f"{failed} the warehouse: {location}: {error.strerror}"
        raise StorageError(message, hint="check its disk and permissions") from error
    except StorageError as error:
        raise StorageError(f"{failed} the warehouse: {error.message}", hint=error.hint) from error


def _let_spark_read(
    session: SparkSession, file: str, token: str, warehouse: str, where: str
) -> None:
    _write(file, token, "this process cannot write to")
    try:
        with translated("reading a file in the warehouse"):
            rows = session.read.schema("value string").text(spark_pattern(file)).collect()
    except PersistError as error:
        cause = str(error.__cause__ or error)
        if _UNSEEN.search(cause):
            message = f"{where} does not see the warehouse {warehouse} of this process"
        elif refusal := _REFUSED.search(cause):
            message = f"{where} must not read the warehouse {warehouse}: {refusal[0].strip()[:300]}"
        else:
            raise
        raise StorageError(message, hint=_HINT) from error
    if [row[0] for row in rows] != [token]:
        message = f"{where} reads other files in the warehouse {warehouse} than this process"
        raise StorageError(message, hint=_HINT)


def _let_spark_write(
    session: SparkSession, directory: str, token: str, warehouse: str, where: str
) -> None:
    rows: Any = session.range(_N_ROWS).selectExpr(f"'{token}' AS value")
    try:
        with translated("writing a file to the warehouse"):
            rows.write.text(spark_uri(directory))
    except PersistError as error:
        cause = str(error.__cause__ or error)
        refusal = _REFUSED.search(cause) or _UNSEEN.search(cause)
        if refusal is None:
            raise
        message = f"{where} cannot write to the warehouse {warehouse}"
        raise StorageError(f"{message}: {refusal[0].strip()[:300]}", hint=_HINT) from error
    n_seen = sum(_tokens(file.location, token) for file in list_files(directory))
    if n_seen != _N_ROWS:
        whom = "none of the files" if not n_seen else f"only {n_seen} of {_N_ROWS} rows"
        message = f"this process sees {whom} that {where} writes to the warehouse {warehouse}"
        raise StorageError(message, hint=f"{_HINT}; a machine of the cluster has another one")


def _tokens(location: str, token: str) -> int:
    """Return how often a file has the token as its line."""
    return read_bytes(location).decode(errors="replace").splitlines().count(token)
