"""The database of a ledger: its transactions, and their recovery from lost connections.

The invariant: there is one writer at a time. SQLite ensures this by `BEGIN IMMEDIATE`; on
PostgreSQL, every writing transaction first locks the row of the counter that numbers the events. So
whatever a transaction has read is still valid when it writes, and readers see one state of the
whole ledger.
"""

from __future__ import annotations

import logging
import re
import shutil
import sqlite3
import threading
import time
import uuid
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from persist_assets.core.errors import LedgerError, LedgerUnreachableError
from persist_assets.core.object_stores import is_full
from persist_assets.core.settings.user import make_private
from persist_assets.core.trust import permit
from persist_assets.ledger.tables import counters, ledger_version, writers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TypeVar

    from sqlalchemy.engine import Connection

    Result = TypeVar("Result")
    Value = TypeVar("Value")

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""The maximum wait for a database that went away, in seconds."""
_BUSY_MS = 60_000
"""The maximum time that a transaction waits for another writer, in milliseconds."""
_POSTGRES: dict[str, str] = {
    "connect_timeout": "10",
    # Detects a machine that is gone within half a minute, instead of the next day.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_FIRST = sa.select(counters.c.value).where(counters.c.name == "events").with_for_update()
"""The first statement of every writing transaction: it waits for all other writers."""
_FORGOTTEN = timedelta(days=1)
"""The age at which the token of a transaction is no longer needed."""
AT_ONCE = 500
"""The maximum number of values in one statement; databases have limits."""
_WRITES = threading.local()
"""The databases to which each thread is writing."""
_MIGRATING = 0x7065_7273_6973_74  # "persist": the lock for creating or migrating tables


def in_parts(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """Yield values in parts that are small enough for one statement."""
    return (values[n : n + AT_ONCE] for n in range(0, len(values), AT_ONCE))


def parse_url(url: str) -> sa.URL:
    """Return a parsed ledger URL, with the driver to use for PostgreSQL.

    Raises
    ------
    LedgerError
        The URL is invalid, or names another kind of database.
    """
    try:
        parsed = sa.make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise LedgerError(
            f"`{shown(url)}` is not a database URL", hint="see docs/settings.md"
        ) from error
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise LedgerError(
            f"unsupported ledger `{shown(url)}`: unknown driver `{parsed.drivername}`",
            hint="use a file, sqlite:///…, or a database, postgresql+psycopg://…",
        )
    return parsed


def shown(url: str) -> str:
    """Return a database's URL without its password."""
    try:
        parsed = sa.make_url(url)
    except (SQLAlchemyError, ValueError):
        return re.sub(r"(?<=:)[^:/]*(?=@)|(?<=password=)[^&]*", "***", url)
    return parsed.difference_update_query(["password"]).render_as_string()


class Database:
    """Connections to a ledger's database, safe to share between threads.

    Parameters
    ----------
    url
        SQLAlchemy URL. A SQLite file is created with its directory.

    Raises
    ------
    LedgerError
        The URL is not one of a ledger.
    UntrustedError
        See `trust.permit`.
    """

    def __init__(self, url: str) -> None:
        self.shown, self._name, self._has_tidied = shown(url), uuid.uuid4().hex, False
        parsed = parse_url(url)
        self.is_postgres = parsed.get_backend_name() == "postgresql"
        permit(url)
        if self.is_postgres:
            self.engine = self._connect_postgres(parsed)
            self._readers = self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        else:
            self.engine = self._readers = self._connect_sqlite(parsed)

    def _connect_postgres(self, url: sa.URL) -> sa.Engine:
        url = url.set(query={**_POSTGRES, **url.query})
        try:
            # Keep few idle connections: many processes share a server.
            engine = sa.create_engine(
                url,
                isolation_level="READ COMMITTED",
                pool_pre_ping=True,
                pool_size=2,
                max_overflow=14,
            )
        except ImportError as error:
            raise LedgerError(
                f"the ledger {self.shown} needs a PostgreSQL driver that is not installed",
                hint="pip install persist-assets[postgres]",
            ) from error

        @event.listens_for(engine, "connect")
        def connect(connection: Any, _: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            before, connection.autocommit = connection.autocommit, True
            connection.execute(
                f"SET lock_timeout = {_BUSY_MS};"
                # A process that is suspended in a transaction must not block all others.
                f"SET idle_in_transaction_session_timeout = {_BUSY_MS // 2}"
            )
            connection.autocommit = before

        return engine

    def _connect_sqlite(self, url: sa.URL) -> sa.Engine:
        database = url.database
        if database and database != ":memory:":
            try:
                make_private(Path(database).parent)
                with suppress(FileExistsError):  # SQLite's other files get the same mode
                    Path(database).touch(mode=0o600, exist_ok=False)
            except OSError as error:
                message = f"cannot create the ledger {database}: {error.strerror}"
                raise LedgerError(message) from error
        engine = sa.create_engine(url)

        @event.listens_for(engine, "connect")
        def connect(connection: Any, _: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            connection.isolation_level = None  # this module begins transactions itself
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            _write_ahead(connection)
            connection.execute("PRAGMA foreign_keys = ON")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
            write = connection.get_execution_options().get("persist_write")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        return engine

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    # -------------------------------------------------------------------------- transactions

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Read in one transaction, which sees one state of the whole ledger.

        Raises
        ------
        LedgerUnreachableError
            The database does not answer.
        LedgerError
            The database fails for another reason.
        """
        with self._translated(), self._connected(self._readers) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, *, migrating: bool = False) -> Generator[Connection]:
        """Write in one transaction, as the only writer.

        Parameters
        ----------
        migrating
            Whether tables are created or changed; there may be none yet.

        Raises
        ------
        LedgerUnreachableError
            The database went away. Nothing was changed.
        LedgerError
            The database fails for another reason, or this thread is already writing to it. Nothing
            was changed, unless the error says otherwise.
        """
        with self._translated(), self._alone(), self._connected(self.engine) as connection:
            writing = connection.execution_options(persist_write=True)
            transaction = writing.begin()
            token = uuid.uuid4().hex
            try:
                if self.is_postgres:
                    self._lock(writing, token, migrating=migrating)
                yield writing
            except BaseException:
                transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                lost = self.is_postgres and not migrating and error.connection_invalidated
                if not (lost and self._is_committed(token)):
                    raise

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Refuse a transaction within another one of this thread, for which it would wait."""
        written: set[str] = _WRITES.__dict__.setdefault("written", set())
        if self.shown in written:
            raise LedgerError(f"this thread is already writing to the ledger {self.shown}")
        written.add(self.shown)
        try:
            yield
        finally:
            written.discard(self.shown)

    def _lock(self, connection: Connection, token: str, *, migrating: bool) -> None:
        """Wait for other writers, and record a token that identifies the transaction."""
        if migrating:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
            if not sa.inspect(connection).has_table(ledger_version.name):
                return
        connection.execute(_FIRST)
        if migrating:  # its table may not exist yet, and repeating a migration does no harm
            return
        values = {"writer": self._writer(), "token": token, "at": sa.func.clock_timestamp()}
        leave = postgresql.insert(writers).values(**values)
        connection.execute(leave.on_conflict_do_update(index_elements=["writer"], set_=values))
        if not self._has_tidied:
            self._has_tidied = True
            past = sa.func.clock_timestamp() - _FORGOTTEN
            connection.execute(writers.delete().where(writers.c.at < past))

    def _writer(self) -> str:
        """Return the unique name of this writer: one database object in one thread."""
        return f"{self._name}:{threading.get_ident()}"

    def _is_committed(self, token: str) -> bool:
        """Whether a transaction was committed whose connection was lost during the commit.

        Raises
        ------
        LedgerError
            It cannot be determined.
        """
        query = sa.select(writers.c.token).where(writers.c.writer == self._writer())
        deadline, pauses = time.monotonic() + RETRY_S, _pauses()
        while True:
            try:
                with self._translated(), self._connected(self.engine) as connection:
                    connection.execute(_FIRST)  # waits for it, if it is still under way
                    return connection.scalar(query) == token
            except LedgerError as error:
                reason = error.message
            pause = next(pauses)
            if time.monotonic() + pause > deadline:
                raise LedgerError(
                    f"the connection to the ledger {self.shown} was lost during a write: {reason}",
                    hint="the last change may or may not be recorded: see `persist history`",
                )
            time.sleep(pause)

    def repeat(self, act: Callable[[], Result]) -> Result:
        """Return the result of `act`, one transaction; repeat it if the database went away.

        Raises
        ------
        LedgerUnreachableError
            The database does not come back in time.
        """
        deadline, pauses = time.monotonic() + RETRY_S, _pauses()
        while True:
            try:
                return act()
            except LedgerUnreachableError as error:
                pause = next(pauses)
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("action=retry ledger=%s error=%s", self.shown, error.message)
            time.sleep(pause)

    def now(self, connection: Connection, clock: Callable[[], datetime]) -> datetime:
        """Return the current time by the one clock that all users of the ledger share.

        Parameters
        ----------
        clock
            The clock of this machine.
        """
        if not self.is_postgres:
            return clock()
        return connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one().astimezone(UTC)

    def back_up(self, connection: Connection, version: int) -> Path | None:
        """Copy a ledger's file to a new one beside it, as it was before this transaction.

        Existing copies stay. Return the new copy; None on PostgreSQL, which has its own tools for
        backups.

        Parameters
        ----------
        connection
            The connection of a writing transaction, which keeps others from writing.
        version
            The version of the ledger, for the name of the copy.

        Raises
        ------
        LedgerError
            It cannot be copied.
        """
        files = connection.exec_driver_sql("PRAGMA database_list") if not self.is_postgres else ()
        path = next((Path(row[2]) for row in files if row[1] == "main" and row[2]), None)
        if path is None:
            return None
        name = f"{path.name}.version-{version}"
        names = (name, *(f"{name}.{n}" for n in range(2, 1000)))
        copy = next(c for c in map(path.with_name, names) if not c.exists())
        partial = copy.with_name(f"{copy.name}.part")
        try:
            partial.unlink(missing_ok=True)
            partial.touch(mode=0o600)
            with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(partial)) as new:
                old.backup(new)
            shutil.copymode(path, partial)
            partial.rename(copy)
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise LedgerError(
                f"the ledger {self.shown} has version {version} and cannot be copied to {copy} "
                f"before its migration: {error}",
                hint="make its directory writable and free some space; nothing was changed",
            ) from error
        return copy

    def vacuum(self) -> None:
        """Release the space of deleted rows: on SQLite to the disk, on PostgreSQL to the tables.

        SQLite writes the file anew, so writers wait, and the disk needs room for a second one.

        Raises
        ------
        LedgerError
            The database fails, for example because others use it all the time.
        """
        engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        with self._translated(), self._connected(engine) as connection:
            if self.is_postgres:
                connection.exec_driver_sql("VACUUM (ANALYZE) events")
                return
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            try:
                raw.execute("VACUUM")
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                hint = "try again when fewer builds run, and free some space"
                message = f"the space of the ledger {self.shown} was not freed: {error}"
                raise LedgerError(message, hint=hint) from error

    # -------------------------------------------------------------------------------- errors

    @contextmanager
    def _connected(self, engine: sa.Engine) -> Generator[Connection]:
        try:
            connection = engine.connect()
        except OperationalError as error:
            raise self._explained(error, lost=self.is_postgres) from error
        with connection:
            yield connection

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            lost = isinstance(error, DBAPIError) and (
                error.connection_invalidated or _is_victim(error)
            )
            raise self._explained(error, lost=lost) from error

    def _explained(self, error: Exception, *, lost: bool) -> LedgerError:
        reason = str(error.orig if isinstance(error, DBAPIError) else error)
        if lost:
            return LedgerUnreachableError(
                f"the ledger {self.shown} does not answer: {' '.join(reason.split())}",
                hint="check that the database is up and its URL is right; nothing was changed",
            )
        reason = reason.splitlines()[0]
        hint = next((h for words, h in _HINTS.items() if words in reason), None)
        directory = Path(self.engine.url.database or ".").parent
        if not self.is_postgres and (
            is_full(reason) or ("I/O error" in reason and not has_room(directory))
        ):
            message = f"the disk of {directory} is full: the ledger {self.shown} failed: {reason}"
            return LedgerError(message, hint=hint or _HINTS["is full"])
        if hint is None and isinstance(error, OperationalError):
            hint = "check that the database is up and its URL is right"
        return LedgerError(f"the ledger {self.shown} failed: {reason}", hint=hint)


def has_room(directory: Path) -> bool:
    """Whether a disk has room for SQLite's other files; without it, SQLite gives no reason."""
    try:
        return shutil.disk_usage(directory).free >= _LEAST_ROOM
    except OSError:
        return True


_LEAST_ROOM = 64 << 10


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch a file to write-ahead logging, so that it can be read while it is written.

    SQLite does not wait by itself if two connections switch at once, or if one begins to write.
    """
    deadline, pauses = time.monotonic() + _BUSY_MS / 1000, _pauses()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            pause = next(pauses)
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() + pause > deadline:
                raise
        else:
            return
        time.sleep(pause)


def _pauses() -> Generator[float]:
    """Yield the pauses before further attempts, in seconds."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2 * pause, 2.0)


def _is_victim(error: DBAPIError) -> bool:
    """Whether PostgreSQL rolled back a transaction because it conflicted with another one."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


_CORRUPT = "it is corrupt: restore a backup, or move it away and build again; no table is lost"
_HINTS = {
    "not a database": _CORRUPT,
    "malformed": _CORRUPT,
    "readonly": "make it writable",
    "read-only": "make it writable",
    "unable to open": "check that its directory exists and is writable",
    "is full": "free some space; nothing was changed",
    "locked": "another process holds it; try again",
    "lock timeout": "another process holds it; try again",
}
