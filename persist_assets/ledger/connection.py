"""The database that a ledger is in: how its transactions begin and end, and what they survive.

The invariant: one writer at a time, on both databases. SQLite gives that by `BEGIN IMMEDIATE`, on
PostgreSQL every writing transaction first locks the row of the counter that numbers the events. So
what a transaction has looked at is still so when it writes, whatever a method does in between; and
readers see one state of the whole ledger.
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
"""How long a database that went away is waited for, in seconds."""
_BUSY_MS = 60_000
"""How long a transaction waits for another one that writes, in milliseconds."""
_POSTGRES: dict[str, str] = {
    "connect_timeout": "10",
    # A machine that is gone is noticed within half a minute, and not by the next day.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_FIRST = sa.select(counters.c.value).where(counters.c.name == "events").with_for_update()
"""What every transaction that writes does first: it waits for all others."""
_FORGOTTEN = timedelta(days=1)
"""After how long nobody asks any more whether a transaction took place."""
AT_ONCE = 500
"""How many values a statement is given at once; databases have limits."""
_MIGRATING = 0x7065_7273_6973_74  # "persist": the lock of whoever makes or changes the tables


def in_parts(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """Yield values in parts of which each is not too much for a statement."""
    return (values[n : n + AT_ONCE] for n in range(0, len(values), AT_ONCE))


def parse_url(url: str) -> sa.URL:
    """Return a ledger's URL; that of PostgreSQL with the driver that is used.

    Raises
    ------
    LedgerError
        It is no URL, or that of another database.
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
        SQLAlchemy URL. A SQLite file is made with its directory.

    Raises
    ------
    LedgerError
        It is no URL of a ledger.
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
            # Of the idle ones few are kept: many processes share a server.
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
                # Whoever is suspended in the middle does not hold up all others.
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
            connection.isolation_level = None  # transactions are ours to begin
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            _write_ahead(connection)
            connection.execute("PRAGMA foreign_keys = ON")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
            write = connection.get_execution_options().get("persist_write")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        return engine

    def close(self) -> None:
        """Give back every connection."""
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
            Something else is wrong with it.
        """
        with self._translated(), self._connected(self._readers) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, *, migrating: bool = False) -> Generator[Connection]:
        """Write in one transaction, as the only one who writes.

        Parameters
        ----------
        migrating
            The tables are made or changed; there may be none.

        Raises
        ------
        LedgerUnreachableError
            The database went away. Nothing was changed.
        LedgerError
            Something else is wrong with it; nothing was changed, unless it says otherwise.
        """
        with self._translated(), self._connected(self.engine) as connection:
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

    def _lock(self, connection: Connection, token: str, *, migrating: bool) -> None:
        """Wait until nobody else writes, and leave a token that stands for the transaction."""
        if migrating:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
            if not sa.inspect(connection).has_table(ledger_version.name):
                return
        connection.execute(_FIRST)
        if migrating:  # there may be no table for it yet; doing it again does no harm
            return
        values = {"writer": self._writer(), "token": token, "at": sa.func.clock_timestamp()}
        leave = postgresql.insert(writers).values(**values)
        connection.execute(leave.on_conflict_do_update(index_elements=["writer"], set_=values))
        if not self._has_tidied:
            self._has_tidied = True
            past = sa.func.clock_timestamp() - _FORGOTTEN
            connection.execute(writers.delete().where(writers.c.at < past))

    def _writer(self) -> str:
        """Return what tells who writes from all others who do: one connection of a thread."""
        return f"{self._name}:{threading.get_ident()}"

    def _is_committed(self, token: str) -> bool:
        """Whether a transaction took place whose connection was lost while it was committed.

        Raises
        ------
        LedgerError
            Nobody can tell.
        """
        asked = sa.select(writers.c.token).where(writers.c.writer == self._writer())
        deadline, pauses = time.monotonic() + RETRY_S, _pauses()
        while True:
            try:
                with self._translated(), self._connected(self.engine) as connection:
                    connection.execute(_FIRST)  # it may still be under way
                    return connection.scalar(asked) == token
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
        """Return what `act` returns, a transaction; it is done again if the database went away.

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
        """Return the present by the one clock that all who share the ledger go by.

        Parameters
        ----------
        clock
            That of this machine.
        """
        if not self.is_postgres:
            return clock()
        return connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one().astimezone(UTC)

    def back_up(self, connection: Connection, version: int) -> Path | None:
        """Copy the file of a ledger beside it, as it was before this transaction; return the copy.

        A copy that is there stays. PostgreSQL has tools of its own for that: None.

        Parameters
        ----------
        connection
            Of a transaction that writes, so that nobody else does.
        version
            Of the ledger, which the copy is named by.

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
        made = copy.with_name(f"{copy.name}.part")
        try:
            made.unlink(missing_ok=True)
            made.touch(mode=0o600)
            with closing(sqlite3.connect(path)) as there, closing(sqlite3.connect(made)) as here:
                there.backup(here)
            shutil.copymode(path, made)
            made.rename(copy)
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                made.unlink(missing_ok=True)
            raise LedgerError(
                f"the ledger {self.shown} has version {version} and cannot be copied to {copy} "
                f"before its migration: {error}",
                hint="make its directory writable and free some space; nothing was changed",
            ) from error
        return copy

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
        said = str(error.orig if isinstance(error, DBAPIError) else error)
        if lost:
            return LedgerUnreachableError(
                f"the ledger {self.shown} does not answer: {' '.join(said.split())}",
                hint="check that the database is up and its URL is right; nothing was changed",
            )
        said = said.splitlines()[0]
        hint = next((h for words, h in _HINTS.items() if words in said), None)
        directory = Path(self.engine.url.database or ".").parent
        if not self.is_postgres and (
            is_full(said) or ("I/O error" in said and not has_room(directory))
        ):
            message = f"the disk of {directory} is full: the ledger {self.shown} failed: {said}"
            return LedgerError(message, hint=hint or _HINTS["is full"])
        if hint is None and isinstance(error, OperationalError):
            hint = "check that the database is up and its URL is right"
        return LedgerError(f"the ledger {self.shown} failed: {said}", hint=hint)


def has_room(directory: Path) -> bool:
    """Whether a disk has room for what SQLite keeps beside a file; without, it says no reason."""
    try:
        return shutil.disk_usage(directory).free >= _LEAST_ROOM
    except OSError:
        return True


_LEAST_ROOM = 64 << 10


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let a file be read while it is written, which the first that opens it changes in it.

    SQLite does not wait by itself where two begin that at once, or one begins to write.
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
    """Yield for how long to wait before each next attempt, in seconds."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2 * pause, 2.0)


def _is_victim(error: DBAPIError) -> bool:
    """Whether PostgreSQL undid a transaction because it stood in another one's way."""
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
