"""Tables of PostgreSQL: all rows at one moment, or the rows above a column that only grows.

A database keeps no earlier versions, so a version is named by what it holds: a digest of all rows
or, with a cursor, the greatest value of the cursor and a digest of the rows up to it. Every read
proves in its own transaction that it reads the version that it was asked for. The invariant: rows
that were not there at a version, or are no longer as they were, are never taken for its rows.
"""

from __future__ import annotations

import re
import uuid
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from persist_assets.compiler.frontends.external_options import (
    DATABASE_URL,
    LITERAL_SECRET,
    PASSWORD,
)
from persist_assets.core.dialect import char_size, quote
from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.object_stores import spark_pattern
from persist_assets.engine.named_files import AS_NAMED, padded
from persist_assets.external.connectors.postgres_columns import (
    COLUMNS,
    CURSORS,
    NUMBERS,
    STORAGE,
    PostgresColumn,
    check_types,
    column_of,
    spark_text,
)
from persist_assets.external.connectors.postgres_filters import Filters
from persist_assets.external.connectors.postgres_rows import (
    MOST_IN_MEMORY,
    Transaction,
    moved_on,
    write_batches,
)
from persist_assets.external.connectors.protocol import (
    CHANGE,
    INSERT,
    VERSION,
    Capabilities,
    Changes,
    Pruned,
)
from persist_assets.external.connectors.reading import check_columns, conditions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import External

OF_POSTGRES = "postgres:"
"""The prefix of the names of versions; see `_Version`."""
_NOTHING = "none"
"""The place of a cursor in a table without values in it."""
_ROW = "_persist_row"
_RELATIONS = "rpmvf"
"""The kinds of relations that can be read: tables, partitioned, views, materialized, foreign."""
_TABLE = """
SELECT c.oid, c.oid::regclass::text, c.relkind::text
FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
"""
_CURSOR = re.compile(r"-?\d+|\d{4}-\d\d-\d\d(T\d{6}(\.\d+)?(\+00)?)?")
"""The values of cursors as versions name them."""


class _Version(NamedTuple):
    """The parts of the name of a version.

    Attributes
    ----------
    cursor
        The greatest value of the cursor; None: the table has none.
    digest
        The number of rows and a digest: of whole rows and all columns, or of the cursor and the key
        of those that are not above the cursor.
    table
        With a cursor, the id of the table, and a digest of its storage, which TRUNCATE replaces,
        and of the query of a view.
    columns
        With a cursor, the greatest number of a column, and a digest of all columns. Numbers are
        never used again, so columns with greater numbers were added later.
    """

    cursor: str | None
    digest: str
    table: str = ""
    columns: str = ""

    @property
    def name(self) -> str:
        if self.cursor is None:
            return OF_POSTGRES + self.digest
        return f"{OF_POSTGRES}{self.cursor}:{self.digest}:{self.table}.{self.columns}"

    @property
    def n_rows(self) -> int:
        return int(self.digest.partition("-")[0])

    @property
    def last_number(self) -> int:
        """The greatest number of a column; 0: the version does not say it."""
        return int(self.columns.partition("-")[0] or 0)


def _parsed(version: str) -> _Version:
    """Return the parts of the name of a version.

    Earlier releases gave versions names without columns; no table has them now.

    Examples
    --------
    >>> tuple(_parsed("postgres:17:3-8a0f:16384.77aa.5-91bc"))
    ('17', '3-8a0f', '16384.77aa', '5-91bc')
    >>> _parsed("postgres:3-8a0f").n_rows, _parsed("postgres:17:3-8a0f:16384.77aa").columns
    (3, '')
    """
    parts = version.removeprefix(OF_POSTGRES).split(":")
    if len(parts) == 1:
        return _Version(None, parts[0])
    cursor, digest, place = parts
    oid, storage, *columns = place.split(".")
    return _Version(cursor, digest, f"{oid}.{storage}", *columns)


class _Table(NamedTuple):
    """A table as the transaction sees it.

    Attributes
    ----------
    name
        Its quoted name.
    identity
        Its id, and a digest of `STORAGE`.
    defined
        The names, numbers and types of all its columns, whatever is declared.
    columns
        Its columns, by lower-case name.
    """

    name: str
    identity: str
    defined: Sequence[tuple[str, int, str]]
    columns: Mapping[str, PostgresColumn]

    def columns_up_to(self, number: int) -> str:
        """Return what a version with this greatest number of a column says about columns."""
        defined = sorted(row for row in self.defined if row[1] <= number)
        return f"{number}-{_digest(defined)[:16]}"

    @property
    def last_number(self) -> int:
        return max((number for _, number, _ in self.defined), default=0)


class PostgresConnector:
    """A table in PostgreSQL; see `FileConnector` for the parameters.

    One transaction serves everything that is asked of it, until it is closed.
    """

    capabilities = Capabilities(
        filters="compared integers, booleans, days and times; equal texts; IS NULL",
        columns="only needed columns are sent",
        versions="the newest; with a cursor, also earlier ones whose rows are still there",
        changes="rows above the cursor; without one, all needed rows are compared with the copy",
    )

    def __init__(
        self,
        external: External,
        location: str,
        columns: Sequence[Column],
        access: Mapping[str, str],
        session: Callable[[], SparkSession],
        timezone: ZoneInfo,
    ) -> None:
        url, _, table = location.rpartition("#")
        if not DATABASE_URL.fullmatch(url) or not table or LITERAL_SECRET.search(url):
            raise StorageError(
                "the location of a table in PostgreSQL is not a URL of a database without"
                " credentials, `#`, and the name of the table",
                hint="for example, postgresql://reader@db.example.com/sales#orders",
            )
        self.external, self.columns = external, columns
        self.staging: str | None = None
        self.label = f"the table {table} of {url.partition('?')[0]}"
        self._url, self._named, self._access, self._session = url, table, access, session
        self._open: Transaction | None = None
        self._seen: _Table | None = None
        self._versions: dict[str | None, _Version] = {}
        self._n_bytes = 0

    @property
    def fetched(self) -> int:
        """The number of bytes of rows received so far; see `protocol.Connector`."""
        return self._n_bytes + (self._open.n_bytes if self._open else 0)

    def close(self) -> None:
        """End the transaction."""
        if self._open is not None:
            self._n_bytes += self._open.n_bytes
            self._open.close()
        self._open, self._seen, self._versions = None, None, {}

    def confirm(self) -> None:
        """Do nothing: all rows are from one transaction."""

    # --------------------------------------------------------------------------------- versions

    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        if self.external.mode == "snapshot" and copy_version is not None:
            return copy_version
        table = self._table()
        if self.external.cursor is None:
            return self._held(None).name
        cursor = table.columns[self.external.cursor.lower()]
        name = self._transaction.name(cursor.name)
        ((text,),) = self._transaction.fetch(f"SELECT max({name})::text FROM {table.name}")
        return self._held(self._cursor_name(text)).name

    def start(self) -> str | None:
        """Return None: a copy begins with the version that is pinned."""
        return None

    def is_same(self, since: str, until: str) -> bool:
        """Whether only columns came between two versions; see `protocol.Connector`."""
        if since == until:
            return True
        first, last = _parsed(since), _parsed(until)
        try:
            return first._replace(columns=last.columns) == last and self._has_columns_of(first)
        except StorageError:
            return False

    def absent(self, columns: Sequence[str], predicate: str | None, version: str) -> frozenset[str]:
        """Return no column: whether all values are NULL is not known before they are read."""
        return frozenset()

    def _cursor_name(self, text: str | None) -> str:
        """Return how a version names a value of the cursor."""
        if text is None:
            return _NOTHING
        name = text.replace(" ", "T").replace(":", "")
        if not _CURSOR.fullmatch(name):
            raise StorageError(
                f"the greatest `{self.external.cursor}` of {self.label} is {text},"
                " so rows cannot be followed by it",
                hint="fix the row, or remove `cursor`",
            )
        return name

    def _beyond(self, cursor: str) -> str:
        """Return the condition that is true for rows above a value of the cursor."""
        assert self.external.cursor is not None
        column = self._table().columns[self.external.cursor.lower()]
        name = self._transaction.name(column.name)
        if cursor == _NOTHING:
            return f"({name} IS NOT NULL)"
        if not _CURSOR.fullmatch(cursor):
            raise moved_on(self.label)
        value, kind = self._transaction.text(cursor), column.internal
        return f"({name} > {value}::{kind})"

    def _held(self, cursor: str | None) -> _Version:
        """Return the version of the rows that are there now, up to a value of the cursor."""
        if cursor not in self._versions:
            self._versions[cursor] = self._digested(cursor)
        return self._versions[cursor]

    def _digested(self, cursor: str | None) -> _Version:
        table, transaction = self._table(), self._transaction
        row, where = f"{_ROW}::text", ""
        if cursor is not None:
            assert self.external.cursor is not None
            if self.external.key:  # otherwise rows that replace others may have the same cursors
                names = (self.external.cursor, *self.external.key)
                keys = (table.columns[name.lower()] for name in names)
                row = f"ROW({', '.join(transaction.name(c.name) for c in keys)})::text"
            where = f" WHERE {self._beyond(cursor)} IS NOT TRUE"
        halves = (f"sum(('x' || substr(h, {n}, 16))::bit(64)::bigint::numeric)" for n in (1, 17))
        digests = f"SELECT encode(sha256(convert_to({row}, 'UTF8')), 'hex') AS h"
        digests += f" FROM {table.name} AS {_ROW}{where}"
        query = f"SELECT count(*), {', '.join(f'{half}::text' for half in halves)}"
        ((n_rows, *sums),) = transaction.fetch(f"{query} FROM ({digests}) AS d")
        if cursor is None:
            digest = _digest((n_rows, sums, sorted(table.defined)))[:24]
            return _Version(None, f"{n_rows}-{digest}")
        columns = table.columns_up_to(table.last_number)
        return _Version(cursor, f"{n_rows}-{_digest((n_rows, sums))[:24]}", table.identity, columns)

    def _has_columns_of(self, version: _Version) -> bool:
        """Whether the table has the columns of an earlier version now, and perhaps more."""
        if version.cursor is None:
            return True  # its digest covers them
        return self._table().columns_up_to(version.last_number) == version.columns

    def _has_rows_of(self, version: _Version) -> bool:
        """Whether the table has the rows of an earlier version now, and perhaps more columns."""
        return self._held(version.cursor)._replace(columns=version.columns) == version

    def _check_held(self, version: str, needed: Iterable[PostgresColumn] = ()) -> None:
        """Raise if the table does not have the rows of a version now, with the needed columns."""
        parts = _parsed(version)
        has_cursor = self.external.cursor is not None
        if (parts.cursor is None) is has_cursor:
            raise moved_on(self.label)
        if not self._has_columns_of(parts) or not self._has_rows_of(parts):
            raise moved_on(self.label)
        numbers = {name: number for name, number, _ in self._table().defined}
        if parts.cursor is not None and any(numbers[c.name] > parts.last_number for c in needed):
            raise GoneError(
                f"columns of {self.label} were added since",
                hint="read the newest version: persist external sync",
            )

    # ------------------------------------------------------------------------------------ table

    @property
    def _transaction(self) -> Transaction:
        if self._open is None:
            self._open = Transaction(self._url, self._access.get(PASSWORD), self.label)
        return self._open

    def _table(self) -> _Table:
        """Return the table, whose columns fit the declaration.

        Raises
        ------
        StorageError
            It does not exist, or differs from its declaration.
        """
        if self._seen is None:
            self._seen = self._looked_up()
        return self._seen

    def _looked_up(self) -> _Table:
        tables = self._transaction.fetch(_TABLE, {"table": self._named})
        if not tables or tables[0][2] not in _RELATIONS:
            hint = "check `table`; names with capitals or blanks stand in double quotes"
            raise StorageError(f"{self.label} does not exist", hint=hint)
        oid, name, _ = tables[0]
        declared = {c.name.lower(): c.type for c in self.columns}
        defined = self._transaction.fetch(NUMBERS, {"oid": oid})
        identity = f"{oid}.{_digest(self._transaction.fetch(STORAGE, {'oid': oid}))[:16]}"
        rows = self._transaction.fetch(COLUMNS, {"oid": oid})
        columns = [column_of(row, declared) for row in rows]
        by_name = {c.name.lower(): c for c in columns}
        check_types(by_name, [*declared], self.label)
        check_columns(self.columns, [(c.name, c.kind or c.shown) for c in columns], self.label)
        cursor = self.external.cursor
        if cursor is not None and by_name[cursor.lower()].kind not in CURSORS:
            raise StorageError(
                f"`{cursor}` of {self.label} is {by_name[cursor.lower()].shown}:"
                " rows cannot be followed by it",
                hint="a cursor is an integer, a date or a timestamp",
            )
        return _Table(name, identity, defined, by_name)

    # ---------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading a version: rows are counted, their width is estimated."""
        return self._cost(conditions_of(self.external, predicate, start=True), _parsed(version))

    def _cost(
        self, conditions: Sequence[str], version: _Version, since: _Version | None = None
    ) -> Pruned:
        where = self._where(conditions, version.cursor, since and since.cursor)
        source = f"{self._table().name}{where}"
        ((n_rows,),) = self._transaction.fetch(f"SELECT count(*) FROM {source}")
        names = ", ".join(self._transaction.name(c.name) for c in self._needed((), conditions))
        plan = self._transaction.fetch(f"EXPLAIN (FORMAT JSON) SELECT {names} FROM {source}")
        return Pruned(1, 1, n_rows, n_rows * int(plan[0][0][0]["Plan"]["Plan Width"]))

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return columns of the matching rows of a version, fetched now."""
        conditions = conditions_of(self.external, predicate, start=True)
        self._check_held(version, self._needed(columns, conditions))
        where = self._where(conditions, _parsed(version).cursor, None)
        return self._fetch(conditions, columns, where)

    def _needed(self, columns: Sequence[str], conditions: Sequence[str]) -> list[PostgresColumn]:
        """Return columns and those that conditions may mention; without any, all declared ones."""
        names, text = {c.lower() for c in columns}, " ".join(conditions).lower()
        declared = [self._table().columns[c.name.lower()] for c in self.columns]
        mentioned = [c for c in declared if c.name.lower().replace("`", "``") in text]
        needed = [c for c in declared if c.name.lower() in names or c in mentioned]
        return needed if columns else declared

    def _where(self, conditions: Sequence[str], until: str | None, since: str | None) -> str:
        """Return the clause for rows that may match, above a value of the cursor and not above."""
        chars = {c.name.lower() for c in self.columns if char_size(c.type)}
        columns = {name: c for name, c in self._table().columns.items() if name not in chars}
        filters = Filters(columns, self._transaction.name, self._transaction.text)
        parts = [text for c in conditions if (text := filters.pushed(c)) is not None]
        if until is not None:
            parts.append(f"{self._beyond(until)} IS NOT TRUE")
        if since is not None:
            parts.append(self._beyond(since))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _fetch(self, conditions: Sequence[str], columns: Sequence[str], where: str) -> DataFrame:
        """Fetch rows to the staging directory, or into memory, and return them."""
        session, needed = self._session(), self._needed(columns, conditions)
        batches = self._transaction.batches(needed, f"{self._table().name}{where}")
        kinds = [f"c{n} {self._stored_kind(c)}" for n, c in enumerate(needed)]
        if self.staging is not None:
            place = f"{self.staging}/{uuid.uuid4().hex}"
            n_rows = write_batches(batches, place)
            frame = session.createDataFrame([], ", ".join(kinds))
            if n_rows:
                reader = session.read.options(**AS_NAMED).schema(", ".join(kinds))
                frame = reader.parquet(spark_pattern(place))
        else:
            frame = self._in_memory(session, list_up_to(batches, self.label), kinds)
        names = {c.name.lower(): c.name for c in self.columns}
        frame = frame.selectExpr(
            *(
                f"{spark_text(c, f'c{n}')} AS {quote(names[c.name.lower()])}"
                for n, c in enumerate(needed)
            )
        )
        frame = padded(frame, self.columns)
        for condition in conditions:
            frame = frame.where(condition)
        return frame.select(*map(quote, columns))

    def _stored_kind(self, column: PostgresColumn) -> str:
        return "string" if column.internal == "bytea" else column.kind or "string"

    def _in_memory(
        self, session: SparkSession, batches: list[object], kinds: Sequence[str]
    ) -> DataFrame:
        import pyarrow as pa

        if not batches:
            return session.createDataFrame([], ", ".join(kinds))
        return session.createDataFrame(pa.Table.from_batches(batches))

    # ---------------------------------------------------------------------------------- changes

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return the rows above the cursor, or that all rows have to be compared."""
        if since == until:
            return Changes()
        self._check_held(until)
        first, last = _parsed(since), _parsed(until)
        conditions = conditions_of(self.external, predicate, start=False)
        why = self._uncertain(first, last)
        if why is not None:
            return Changes(compare_reason=why, read=self._cost(conditions, last))
        if first.n_rows == last.n_rows:
            return Changes()
        where = self._where(conditions, last.cursor, first.cursor)

        def load() -> DataFrame:
            rows = self._fetch(conditions, columns, where)
            return rows.selectExpr("*", f"'{INSERT}' AS {CHANGE}", f"bigint(1) AS {VERSION}")

        return Changes(load, only_came=True, read=self._cost(conditions, last, first))

    def _uncertain(self, first: _Version, last: _Version) -> str | None:
        """Return why the rows above the cursor are not all that changed; None: they are."""
        if self.external.cursor is None or first.cursor is None or last.cursor is None:
            return "a table without a cursor has no history"
        if first.table != last.table or not self._has_columns_of(first):
            return "the table was rewritten, or is another one"
        if first.columns != last.columns and not self.external.key:
            return "the table has more columns, and its rows have no key"
        if not self._has_rows_of(first):
            if self.external.append_only:
                raise StorageError(
                    f"rows of {self.label} up to its cursor came or went, but it is declared"
                    " append_only",
                    hint="remove 'append_only' from its declaration",
                )
            return f"rows up to `{self.external.cursor}` = {first.cursor} came or went"
        return None


def _digest(value: object) -> str:
    return sha256(repr(value).encode()).hexdigest()


def list_up_to(batches: object, label: str) -> list[object]:
    """Return Arrow batches that fit into memory.

    Raises
    ------
    StorageError
        There are too many.
    """
    from typing import Any, cast

    taken: list[object] = []
    size = 0
    for batch in cast("Iterable[Any]", batches):
        size += batch.nbytes
        if size > MOST_IN_MEMORY:
            raise StorageError(
                f"the query needs more than {MOST_IN_MEMORY >> 20} MiB of {label}",
                hint="persist a view of these rows: builds copy them in any number",
            )
        taken.append(batch)
    return taken
