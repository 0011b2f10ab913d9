"""Copy a whole ledger from one database to another: every row exactly, or nothing.

The rows go through the one description of the tables in `tables.py`; JSON is copied as text. So
positions, counters, times and even white space equal those of the original.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerError, NotFoundError
from persist_assets.ledger.connection import Database, parse_url
from persist_assets.ledger.leases import is_live
from persist_assets.ledger.migrations import VERSION, migrate, refuse_newer, version_of
from persist_assets.ledger.tables import counters, leases, ledger_version, metadata, writers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.engine import Connection

_LASTING = [t for t in metadata.sorted_tables if t is not writers]
"""The tables to copy, in the order of their references; only writers need `writers`."""
_AT_ONCE = 1000
"""The number of rows read and written at once."""


class _Text(sa.types.UserDefinedType[str]):
    """JSON, as its text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def column_expression(self, colexpr: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        return sa.cast(colexpr, sa.Text)


def _verbatim() -> list[sa.Table]:
    """Return the tables of a ledger, those that others refer to first."""
    copied = sa.MetaData()
    for table in _LASTING:
        for column in table.to_metadata(copied).columns:
            if isinstance(column.type, sa.JSON):
                column.type = _Text()
    return copied.sorted_tables


def copy_ledger(
    source: str, target: str, *, tell: Callable[[str, int], None] = lambda name, n: None
) -> Mapping[str, int]:
    """Copy a ledger into an empty database, in one transaction.

    Parameters
    ----------
    source, target
        URLs. The source is only read. The target may hold a ledger in which nothing ever happened.
    tell
        Called for each table, with its name and the number of rows copied.

    Returns
    -------
    Mapping[str, int]
        The number of rows of each table.

    Raises
    ------
    NotFoundError
        There is no ledger at the source.
    LedgerTooNewError
        A newer release wrote it.
    LedgerError
        It has an older version, or one of the databases fails. Nothing was copied.
    ConflictError
        The target is not empty, or the source is in use by builds. Nothing was copied.
    """
    return copy_rows(source, target, tell)


def copy_rows(
    source: str,
    target: str,
    tell: Callable[[str, int], None] = lambda name, n: None,
    *,
    live: bool = False,
) -> Mapping[str, int]:
    """Copy a ledger as `copy_ledger` does; with `live` even during builds, as a backup."""
    _require_file(source)
    origin, destination = Database(source), Database(target)
    try:
        with origin.read() as reading:
            _check_source(origin, reading, live=live)
            with destination.write(migrating=True) as writing:
                migrate(writing)
                _check_target(destination, writing)
                return {t.name: _copy(t, reading, writing, tell) for t in _verbatim()}
    finally:
        origin.close()
        destination.close()


def replace_rows(source: str, target: str, check: Callable[[Database, Connection], None]) -> None:
    """Replace all rows of a ledger by those of another one, in one transaction.

    Parameters
    ----------
    check
        Called with the target within the transaction; what it raises changes nothing.
    """
    origin, destination = Database(source), Database(target)
    try:
        with origin.read() as reading:
            _check_source(origin, reading, live=True)
            with destination.write(migrating=True) as writing:
                migrate(writing)
                check(destination, writing)
                for table in reversed(_LASTING):
                    writing.execute(table.delete())
                for table in _verbatim():
                    _copy(table, reading, writing, lambda name, n: None)
    finally:
        origin.close()
        destination.close()


def _require_file(source: str) -> None:
    """Refuse a missing file, which SQLite would create."""
    url = parse_url(source)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise NotFoundError(
            f"there is no ledger {url.database}", hint="name an existing ledger file"
        )


def _check_source(database: Database, reading: Connection, *, live: bool) -> None:
    version = version_of(reading)
    refuse_newer(version)
    if version == 0:
        raise NotFoundError(
            f"there is no ledger in {database.shown}", hint="name the database of a ledger"
        )
    if version != VERSION:
        raise LedgerError(
            f"the ledger {database.shown} has version {version}, but this release copies {VERSION}",
            hint=f"migrate it first: persist ledger migrate '{database.shown}'",
        )
    if live:
        return
    now = database.now(reading, lambda: datetime.now(UTC))
    for lease in reading.execute(sa.select(leases)):
        if is_live(lease, now):
            raise ConflictError(
                f"{lease.name} is held by {lease.holder}: its work would be missing in the copy",
                hint="wait for all builds to end, and start none until the project uses the copy",
            )


def _check_target(database: Database, writing: Connection) -> None:
    for table in _LASTING:
        query = sa.select(sa.func.count()).select_from(table)
        if table is counters:
            query = query.where(counters.c.value > 0)
        n = writing.execute(query).scalar_one() if table is not ledger_version else 0
        if n:
            raise ConflictError(
                f"{database.shown} is not empty: {n} rows in `{table.name}`",
                hint="use an empty database or schema; nothing was copied",
            )
    for table in (counters, ledger_version):  # replaced by those of the source
        writing.execute(table.delete())


def _copy(
    table: sa.Table, reading: Connection, writing: Connection, tell: Callable[[str, int], None]
) -> int:
    query = sa.select(table).order_by(*table.primary_key.columns)
    rows = reading.execution_options(yield_per=_AT_ONCE).execute(query)
    n = 0
    for batch in rows.mappings().partitions():
        writing.execute(table.insert(), [dict(row) for row in batch])
        n += len(batch)
    tell(table.name, n)
    return n
