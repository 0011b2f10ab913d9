"""A second engine, over DuckDB: real queries, real Delta tables, and no JVM.

It is for tests that ask *which* builds happen and what is published. sqlglot translates statements
of Spark. What the two say differently in the same words (divisions by zero, types of sums) is
translated too, as far as the contract of engines covers it (`test_engine_contract.py`); whatever
needs frames of Spark fails the test: Python sources, partitions, windows, histories.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
import sqlglot
from pyspark.sql import Row
from pyspark.sql.types import StructType
from sqlglot import exp

from persist_assets.core.errors import BuildError, GoneError, PersistError, StorageError
from persist_assets.core.model.checks import Check, CheckResult
from persist_assets.core.model.columns import Column
from persist_assets.engine.row_metrics import Measured, columns_in, promised, read_measures, type_in
from persist_assets.engine.spark import SparkEngine
from persist_assets.storage.delta_commit import Staged, find_staged
from persist_assets.storage.delta_tables import read_snapshot, read_version
from persist_assets.storage.partition_texts import partition_names
from persist_assets.storage.raw import Pin
from persist_assets.storage.types import columns_of_struct, delta_schema

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import pyarrow as pa

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.planning.render import Statement

_JSON_TYPES = {
    "BIGINT": "long",
    "HUGEINT": "long",  # of sums; `_spark_rows` makes it a BIGINT
    "INTEGER": "integer",
    "SMALLINT": "short",
    "TINYINT": "byte",
    "DOUBLE": "double",
    "FLOAT": "float",
    "VARCHAR": "string",
    "BOOLEAN": "boolean",
    "BLOB": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    '"NULL"': "void",
}
_CONFIG: dict[str, Any] = {
    "threads": 1,
    "autoinstall_known_extensions": False,  # tests fetch nothing from elsewhere
    "autoload_known_extensions": False,
}

MakeEngine = Callable[["Settings"], Any]
"""Makes the engine of a run."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are not computed yet: a query of DuckDB, with as much of a frame as builds need."""

    engine: DuckDBEngine
    sql: str
    schema: StructType

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    def collect(self) -> list[Row]:
        """Return the rows."""
        made = Row(*self.columns)
        return [made(*values) for values in self.engine.fetch(self.sql)]

    def count(self) -> int:
        """Return how many rows there are."""
        return self.engine.fetch(f"SELECT count(*) FROM ({self.sql})")[0][0]

    def limit(self, n: int) -> Rows:
        """Return the first rows, at most `n`."""
        return replace(self, sql=f"SELECT * FROM ({self.sql}) LIMIT {n}")

    def __getattr__(self, name: str) -> Any:
        """Refuse what only frames of Spark have."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _refused(f"frames with `{name}`")

    def where(self, condition: str) -> Rows:
        """Return the rows for which a condition holds, in the SQL of Spark."""
        return replace(self, sql=f"SELECT * FROM ({self.sql}) WHERE {_translated(condition)}")


class DuckDBEngine:
    """Computes sources in a database in memory, of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._database: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()
        self._lock = threading.RLock()

    @property
    def session(self) -> Any:
        """Refuse: there is none."""
        raise _refused("a session of Spark")

    def parallelism(self) -> int:
        """Return how many sources are built at once where no setting says it."""
        return 2

    def version(self) -> str:
        """Return the version of DuckDB."""
        return f"DuckDB {duckdb.__version__}"

    def catalog(self) -> str:
        """Return the kind of catalog: there is none beyond the process."""
        return "in-memory"

    def undivided(self) -> Any:
        """Refuse, as `session` does."""
        return self.session

    def interrupt(self) -> None:
        """End what is computed."""
        if self._database is not None:
            self._database.interrupt()

    def attributed(self, to: object) -> Any:
        """Do nothing: DuckDB has no jobs."""
        return nullcontext()

    def activity(self) -> None:
        """Return None: DuckDB does not say what it does."""

    # -------------------------------------------------------------------------------- queries

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of the thread's own: they do not share results."""
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(config=_CONFIG)
                zone = _text(self.settings.timezone.key)
                self._database.execute(f"SET GLOBAL TimeZone = {zone}")
            return self._database.cursor()

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of DuckDB."""
        with _errors("the query"), self._cursor() as cursor:
            return cursor.execute(sql).fetchall()

    def _rows(self, sql: str) -> Rows:
        """Return the rows of a query of DuckDB, with columns of Spark's types."""
        with _errors("the query"), self._cursor() as cursor:
            described = cursor.execute(f"DESCRIBE {sql}").fetchall()
        kinds = {name: kind for name, kind, *_ in described}
        if "HUGEINT" in kinds.values():
            cast = (f"{_name(n)}::BIGINT" if k == "HUGEINT" else _name(n) for n, k in kinds.items())
            names = ", ".join(map(_name, kinds))
            sql = f"SELECT {', '.join(cast)} FROM ({sql}) AS sums({names})"
            sql = f"SELECT * FROM ({sql}) AS sums({names})"
        fields = [
            {"name": name, "type": _json_type(name, kind), "nullable": True, "metadata": {}}
            for name, kind in kinds.items()
        ]
        return Rows(self, sql, StructType.fromJson({"type": "struct", "fields": fields}))

    def run(self, statement: Statement, columns: Sequence[Column] = ()) -> Any:
        """Return the rows of a statement; see `SparkEngine.run`."""
        sql = _translated(statement.sql)
        if columns:
            sql = f"SELECT * FROM ({sql}) AS made({', '.join(_name(c.name) for c in columns)})"
        return self._rows(sql)

    def over(self, frame: Any, query: Callable[[str], str]) -> Any:
        """Return the rows of a query over the rows of a frame; see `SparkEngine.over`."""
        name = f"rows-{uuid.uuid4().hex}"
        text = _translated(query(name))
        return self._rows(text.replace(_name(name), f"({frame.sql}) AS {_name(name)}"))

    def collect(self, frame: Any, n: int) -> list[Any]:
        """Return the first rows of a frame, at most `n`."""
        return frame.limit(n).collect()

    def view(self, name: str, load: Callable[[], Any]) -> str:
        """Return `name`, a view of what `load` returns; it is called the first time."""
        with self._lock:
            if name not in self._views:
                sql = load().sql
                with _errors(f"reading {name}"), self._cursor() as cursor:
                    cursor.execute(f"CREATE OR REPLACE VIEW {_name(name)} AS {sql}")
                self._views.add(name)
        return name

    def define(self, functions: object) -> None:
        """DuckDB calls no functions in Python."""

    def forget(self) -> None:
        """Drop all views."""
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None
            self._views.clear()

    # --------------------------------------------------------------------------------- reading

    def load_raw(self, source: Source, pin: Pin) -> Any:
        """Return the rows of a raw table of Parquet files, or of Delta Lake; refuse others."""
        assert source.raw is not None
        parted = partition_names(pin.files or (), pin.base)
        if source.raw.format not in ("parquet", "delta") or pin.files is None or parted:
            raise _refused(f"what reads `{source.name}`: {source.raw}")
        self.check_rows(source.name, pin)
        return self.read_files("parquet", pin, source.columns, dict(source.raw.options))

    def check_rows(self, name: str, pin: Pin) -> None:
        """Check that files have the rows that a table's log promises."""
        for file in pin.files or ():
            n, there = pin.rows.get(file), pq.read_metadata(file).num_rows
            if n is not None and n != there:
                raise StorageError(f"{file} has {there} rows of {n}, of `{name}`")

    def read_files(
        self,
        form: str,
        pin: Pin,
        columns: Sequence[Column],
        options: Mapping[str, str],
        *,
        file: str | None = None,
    ) -> Any:
        """Return the rows of pinned Parquet files; see `SparkEngine.read_files`."""
        if form != "parquet" or file is not None:
            raise _refused(f"what reads {form} or says of which file a row is")
        kinds = {c.name: _duckdb_type(c.type or "string") for c in columns}
        if not pin.files:
            empty = ", ".join(f"NULL::{kind} AS {_name(n)}" for n, kind in kinds.items())
            return self._rows(f"SELECT {empty} WHERE false")
        files = ", ".join(_text(re.sub(r"([\[*?])", r"[\1]", file)) for file in pin.files)
        scan = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
        there = {name.lower() for name in self._rows(f"SELECT * FROM {scan}").columns}
        chosen = (
            f"{_name(n) if n.lower() in there else 'NULL'}::{kind} AS {_name(n)}"
            for n, kind in kinds.items()
        )
        return self._rows(f"SELECT {', '.join(chosen)} FROM {scan}")

    def load_snapshot(self, snapshot: Snapshot) -> Any:
        """Return the rows of a snapshot."""
        found = read_snapshot(self.settings.table_root(snapshot.table), snapshot)
        return self.read_files("parquet", Pin(None, found.files), found.columns, {})

    def load_table(self, root: str, version: int) -> Any:
        """Return the rows of one version of a table that we wrote, whatever build wrote it."""
        found = read_version(root, version)
        return self.read_files("parquet", Pin(None, found.files), found.columns, {})

    # --------------------------------------------------------------------- writing and measuring

    def write(
        self,
        frame: Any,
        table: str,
        build_uid: str,
        checks: Sequence[Check],
        time_column: str | None,
        name: str,
        *,
        beside: Any = None,
        clustered: bool = False,
        bounds: Sequence[str] = (),
        few: bool = False,
    ) -> tuple[Staged, Measured]:
        """Write rows as one file of a table, measured and checked; see `SparkEngine.write`."""
        if beside is not None or bounds:
            raise _refused(f"tables that are written in parts: `{name}`")
        if time_column:
            type_in(frame, time_column)
        made = self._computed(frame, name)
        staged = self._written(frame, made, self.settings.table_root(table), build_uid)
        return staged, self._measured(frame, made, checks, time_column)

    def write_files(self, frame: Any, root: str, build_uid: str, *, most_rows: int = 0) -> Staged:
        """Write rows as one file of a table, and do nothing else."""
        return self._written(frame, self._computed(frame, root), root, build_uid)

    def measure(
        self, frame: Any, checks: Sequence[Check], time_column: str | None, name: str
    ) -> Measured:
        """Measure and check rows as `write` does, and write nothing."""
        return self._measured(frame, self._computed(frame, name), checks, time_column)

    def greatest(self, frame: Any, column: str, name: str) -> str | None:
        """Return the greatest value of a column, as text, None where all are NULL."""
        return self.measure(frame, (), column, name).watermark

    def columns(self, frame: Any, name: str) -> tuple[Column, ...]:
        """Return the columns of rows that are not computed yet."""
        return columns_of_struct(frame.schema.jsonValue())

    def audit(self, frame: Any, checks: Sequence[Check], name: str) -> tuple[CheckResult, ...]:
        """Check rows that are there already."""
        made = self._computed(frame, name)
        results = {r.name: r for r in self._measured(frame, made, checks, None).checks}
        return tuple(results[c.name] for c in checks)

    def failing(self, frame: Any, check: Check) -> Any:
        """Return the rows that fail a check on rows or on keys; None of one that no row fails."""
        if check.on_rows:
            return replace(frame, sql=f"SELECT * FROM ({frame.sql}) WHERE {_fails(check)}")
        if check.kind != "unique":
            return None
        return replace(frame, sql=f"{_sharing(frame.sql, check)} ORDER BY {_keys(check)}")

    def unmatched(self, frame: Any, column: str, others: Any, other: str) -> Any:
        """Return the rows whose value of a column is not NULL and no value of another frame's."""
        known = f"SELECT {_name(other)} AS known FROM ({others.sql})"
        same = f"known.known = mine.{_name(column)}"
        return replace(
            frame,
            sql=f"SELECT mine.* FROM ({frame.sql}) AS mine ANTI JOIN ({known}) AS known ON {same}"
            f" WHERE mine.{_name(column)} IS NOT NULL",
        )

    def sample(self, frame: Any, columns: Sequence[str], n: int) -> list[str]:
        """Return some columns of the first rows as JSON, at most `n`."""
        chosen = ", ".join(map(_name, columns))
        found = self.fetch(f"SELECT {chosen} FROM ({frame.sql}) LIMIT {n}")
        return [json.dumps(dict(zip(columns, row, strict=True)), default=str) for row in found]

    def _computed(self, frame: Rows, name: str) -> pa.Table:
        """Return the rows, computed once: a query may have others the next time."""
        with _errors(f"computing `{name}`"), self._cursor() as cursor:
            return cursor.sql(frame.sql).to_arrow_table()

    def _written(self, frame: Rows, made: pa.Table, root: str, build_uid: str) -> Staged:
        schema = delta_schema(frame.schema.jsonValue())
        directory = Path(root, build_uid)
        directory.mkdir(parents=True)
        pq.write_table(made, directory / "part-0.parquet")
        return find_staged(root, build_uid, schema)

    def _measured(
        self, frame: Rows, made: pa.Table, checks: Sequence[Check], time_column: str | None
    ) -> Measured:
        """Measure and check rows."""
        kind = type_in(frame, time_column) if time_column else None  # pyright: ignore[reportArgumentType]
        # The two zeros of floating point are one for `hash`.
        hashed = (
            f"{_name(f.name)}::VARCHAR" if f.dataType.typeName() in ("float", "double") else
            _name(f.name)
            for f in frame.schema.fields
        )  # fmt: skip
        row = f"hash({', '.join(hashed)})"
        wanted = {
            "persist.rows": "count(*)",
            "persist.xor": f"bit_xor({row})",
            "persist.high": f"sum({row} >> 40)",
            "persist.low": f"sum(({row} >> 16) & {0xFFFFFF})",
        }
        if time_column:
            last = f"max({_name(time_column)})"
            last = f"epoch_us({last})" if kind == "timestamp" else last
            wanted["persist.watermark"] = f"{last}::VARCHAR"
            wanted["persist.timeless"] = f"count_if({_name(time_column)} IS NULL)"
        wanted |= {c.name: _aggregate_of(c) for c in checks if c.in_pass}
        with _errors("checking rows"), self._cursor() as cursor:
            cursor.register("rows", made)
            answers = cursor.execute(f"SELECT {', '.join(wanted.values())} FROM rows").fetchall()
            seen: dict[str, Any] = dict(zip(wanted, answers[0], strict=True))
            shared = {
                c.name: cursor.execute(f"SELECT count(*) FROM ({_sharing('FROM rows', c)})")
                .fetchall()[0][0]
                for c in checks
                if c.kind == "unique"
            }  # fmt: skip
        measured = read_measures(seen, checks, kind)
        rest = [
            CheckResult(c.name, not shared[c.name], c.blocking, shared[c.name], c.definition)
            if c.kind == "unique"
            else promised(c, columns_in(frame))  # pyright: ignore[reportArgumentType]
            for c in checks
            if not c.in_pass
        ]
        return replace(measured, checks=(*measured.checks, *rest))


def engine_of(request: pytest.FixtureRequest) -> MakeEngine:
    """Return what makes the engine of a test: Spark's if it uses the fixture `spark`."""
    if "spark" not in request.fixturenames:
        return DuckDBEngine
    spark = request.getfixturevalue("spark")
    return lambda settings: SparkEngine(settings, lambda: spark)


def _refused(what: str) -> BaseException:
    """Return what fails a test, whatever errors it expects: it needs Spark."""
    return pytest.fail.Exception(f"the DuckDB engine has not {what}: this is a test for Spark")


@contextmanager
def _errors(doing: str) -> Generator[None]:
    """Turn what DuckDB raises within the block into errors of ours."""
    try:
        yield
    except PersistError:
        raise
    except duckdb.IOException as error:
        raise GoneError(f"{doing} failed: {error}") from error
    except duckdb.Error as error:
        raise BuildError(f"{doing} failed: {str(error).splitlines()[0]}") from error


def _translated(sql: str) -> str:
    """Return SQL of Spark, a query or an expression, as DuckDB has it."""
    if "try_" in sql.lower():  # sqlglot takes a cast for one
        raise _refused("functions that try")
    parsed = sqlglot.parse_one(sql, read="spark")
    return parsed.transform(_as_spark_means, copy=False).sql("duckdb", copy=False)


def _as_spark_means(node: exp.Expression) -> exp.Expression:
    """Return a node whose meaning is that of Spark: what cannot be divided or cast is an error."""
    if isinstance(node, exp.TryCast):
        return exp.Cast(this=node.this, to=node.to)
    if isinstance(node, exp.Group) and _has_sets(node):
        _without_empty_total(node.parent)
    if isinstance(node, exp.Div | exp.Mod) and not node.meta.get("guarded"):
        node.meta["guarded"] = True
        zero = exp.func("error", exp.Literal.string("DIVIDE_BY_ZERO"))
        condition = exp.EQ(this=exp.paren(node.expression.copy()), expression=exp.convert(0))
        return exp.Case(ifs=[exp.If(this=condition, true=zero)], default=node)
    return node


def _has_sets(node: exp.Group) -> bool:
    """Whether rows are grouped by several sets of keys."""
    kinds = (exp.Rollup, exp.Cube, exp.GroupingSets)
    return any(isinstance(n, kinds) and n.find(exp.Column) for n in node.walk())


def _without_empty_total(select: exp.Expression | None) -> None:
    """Leave out the total of no rows, which Spark does not have."""
    assert isinstance(select, exp.Select)
    if not select.meta.get("guarded"):
        select.meta["guarded"] = True
        select.having("count(*) > 0", copy=False)


def _duckdb_type(kind: str) -> str:
    return exp.DataType.build(kind, dialect="spark").sql("duckdb")


def _json_type(column: str, kind: str) -> str:
    """Return Spark's name in JSON of a type of DuckDB."""
    if kind.startswith("DECIMAL("):
        return kind.lower()
    if kind not in _JSON_TYPES:
        raise _refused(f"the type {kind} of `{column}`")
    return _JSON_TYPES[kind]


def _name(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql("duckdb")


def _text(value: object) -> str:
    return exp.convert(value).sql("duckdb")


def _aggregate_of(check: Check) -> str:
    """Return the aggregate that tells what comes of a check."""
    match check.kind:
        case "row_count":
            return "count(*)"
        case "freshness":
            return f"epoch_us(max({_name(check.columns[0])})::TIMESTAMPTZ)"
        case _:
            return f"count_if({_fails(check)})"


def _fails(check: Check) -> str:
    """Return the condition that a row fails a check on single rows."""
    match check.kind:
        case "not_null":
            return f"{_name(check.columns[0])} IS NULL"
        case "accepted_values":
            failed = f"{_name(check.columns[0])} NOT IN ({', '.join(map(_text, check.values))})"
        case "range":
            ends = {"<": check.least, ">": check.most}
            failed = " OR ".join(
                f"{_name(check.columns[0])} {sign} {_text(end)}"
                for sign, end in ends.items()
                if end is not None
            )
        case _:
            failed = f"NOT ({_translated(check.expression or '')})"
    return f"coalesce({failed}, false)"


def _keys(check: Check) -> str:
    return ", ".join(map(_name, check.columns))


def _sharing(rows: str, check: Check) -> str:
    """Return the rows that share a key with another; keys with a NULL are not compared."""
    there = " AND ".join(f"{_name(c)} IS NOT NULL" for c in check.columns)
    return (
        f"SELECT * FROM ({rows}) WHERE {there}"
        f" QUALIFY count(*) OVER (PARTITION BY {_keys(check)}) > 1"
    )
