"""A project of tables that are maintained by deltas on Spark, and changes of its raw data."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from growing import check

from persist_assets.core.errors import BuildError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.building.stages import PendingBuild

WITHOUT_COST = "--@ persist refresh=incremental\n"
"""Deltas maintain the table, whatever is cheaper."""

RAW = """
CREATE TABLE ev (id INT, usr INT, day DATE, kind STRING, amt DECIMAL(10,2), y DOUBLE, tags ARRAY<STRING>)
USING delta LOCATION 'raw/ev';
CREATE TABLE dim (usr INT, name STRING, note STRING) USING delta LOCATION 'raw/dim';
CREATE TABLE cal (day DATE, week INT) USING delta LOCATION 'raw/cal';
CREATE VIEW recent AS SELECT * FROM ev WHERE day > DATE'2024-01-03';
"""
QUERIES = {
    "kept": "SELECT id, upper(kind) AS kind, amt FROM ev WHERE kind <> 'b'",
    "named": "SELECT e.id, e.amt, d.name FROM ev e LEFT JOIN dim d ON e.usr = d.usr",
    "inner_named": "SELECT e.id, e.amt, d.name FROM ev e JOIN dim d ON e.usr = d.usr",
    "by_user": "SELECT usr, count(*) AS n, sum(amt) AS s, max(day) AS last FROM ev GROUP BY usr",
    "by_name": (
        "SELECT d.name, count(*) AS n, sum(e.amt) AS s FROM recent e JOIN dim d ON e.usr = d.usr"
        " GROUP BY d.name HAVING count(*) > 1"
    ),
    "averages": "SELECT usr, avg(y) AS y FROM ev GROUP BY usr",
    "newest": (
        "SELECT id, usr, amt FROM ev QUALIFY"
        " row_number() OVER (PARTITION BY usr ORDER BY day DESC, id DESC) = 1"
    ),
    "running": "SELECT id, usr, sum(amt) OVER (PARTITION BY usr ORDER BY day, id) AS s FROM ev",
    "kinds": "SELECT DISTINCT kind, usr FROM ev",
    "absent": (
        "SELECT usr, name FROM dim d WHERE NOT EXISTS"
        " (SELECT 1 FROM ev e WHERE e.usr = d.usr AND e.kind = 'b')"
    ),
    "present": "SELECT name FROM dim WHERE usr IN (SELECT usr FROM ev WHERE amt > 5)",
    "counts": "SELECT n, count(*) AS users FROM by_user GROUP BY n",
    "shares": (
        "SELECT e.id, e.amt / t.s AS share FROM ev e"
        " JOIN (SELECT usr, sum(amt) AS s FROM ev GROUP BY usr) t ON e.usr = t.usr WHERE t.s > 0"
    ),
    "above": "SELECT id, amt FROM ev e WHERE amt > (SELECT min(amt) FROM ev x WHERE x.usr = e.usr)",
    "last_seen": (
        "SELECT d.usr, d.name, e.id FROM dim d LEFT JOIN (SELECT usr, id FROM ev QUALIFY"
        " row_number() OVER (PARTITION BY usr ORDER BY day DESC, id) = 1) e ON e.usr = d.usr"
    ),
    "weights": (
        "SELECT d.name, e.y FROM dim d LEFT JOIN"
        " (SELECT usr, sum(y) AS y FROM ev GROUP BY usr) e ON e.usr = d.usr"
    ),
    "user_names": "SELECT b.usr, b.n, d.name FROM by_user b LEFT JOIN dim d ON b.usr = d.usr",
    "upper": "SELECT name, sum(n) AS n FROM user_names GROUP BY name",
    "full_names": (
        "SELECT coalesce(a.usr, b.usr) AS usr, a.n, b.name FROM by_user a"
        " FULL JOIN dim b ON a.usr = b.usr"
    ),
    "sets": "SELECT usr, kind, count(*) AS n FROM ev GROUP BY GROUPING SETS ((usr, kind), (usr))",
    "both": "SELECT usr FROM ev UNION SELECT usr FROM dim",
    "without": "SELECT usr FROM dim EXCEPT SELECT usr FROM newest",
    "tagged": "SELECT id, tag FROM ev LATERAL VIEW explode(tags) t AS tag",
    "weeks": "SELECT week, count(*) AS days FROM cal GROUP BY week",
    "total": "SELECT sum(amt) AS s FROM ev",
}
_TYPES: Mapping[str, Any] = {
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DATE": pa.date32(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "DECIMAL(5,2)": pa.decimal128(5, 2),
    "DECIMAL(10,2)": pa.decimal128(10, 2),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "ARRAY<INT>": pa.list_(pa.int32()),
    "ARRAY<STRING>": pa.list_(pa.string()),
}
EVENTS = {"id": "INT", "usr": "INT", "day": "DATE", "kind": "STRING", "amt": "DECIMAL(10,2)"}
EVENTS |= {"y": "DOUBLE", "tags": "ARRAY<STRING>"}
USERS = {"usr": "INT", "name": "STRING", "note": "STRING"}


def sources() -> str:
    """Return the text of the file that declares them all."""
    views = (
        f"{WITHOUT_COST}--@ check {{ not_null={_last_column(query)} {{ severity=warn }} }}\n"
        f"CREATE VIEW {name} AS {query};\n"
        for name, query in QUERIES.items()
    )
    return RAW + "".join(views)


def _last_column(query: str) -> str:
    """Return the name of the last column of a query."""
    return query[: query.index(" FROM")].rsplit(" ", 1)[-1].rpartition(".")[2].rstrip(",")


def put_rows(
    path: Path,
    columns: Mapping[str, str],
    rows: Sequence[Sequence[Any]],
    *,
    grows: bool = False,
) -> None:
    """Write rows to a raw table: as a new version, or as more rows."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    listed = [
        {name: _value(v, columns[name]) for name, v in zip(columns, row, strict=True)}
        for row in rows
    ]
    write_deltalake(
        str(path), pa.Table.from_pylist(listed, schema), mode="append" if grows else "overwrite"
    )


def integers(**columns: Iterable[int | None]) -> pa.Table:
    """Return a table of integers."""
    return pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()})


def _value(value: Any, kind: str) -> Any:
    if value is None or not isinstance(value, str):
        return value
    if kind.startswith("DECIMAL"):
        return Decimal(value)
    return dt.date.fromisoformat(value) if kind == "DATE" else value


class Data:
    """The raw tables of the project, and what may become of them."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng, self._id = root / "raw", rng, 0
        self.put("ev", self.events(60))
        self.put("dim", [(usr, f"n{usr % 3}", "x") for usr in range(6)])
        days = [(f"2024-01-0{n}", n // 4) for n in range(1, 8)]
        put_rows(self.root / "cal", {"day": "DATE", "week": "INT"}, days)

    def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to a table."""
        columns = EVENTS if table == "ev" else USERS
        put_rows(self.root / table, columns, rows, grows=(self.root / table).exists())

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.root / name))

    def events(self, n: int) -> list[tuple[Any, ...]]:
        """Return new events; some are of no user, or of one without a name."""
        rng = self.rng
        first, self._id = self._id, self._id + n
        return [
            (
                number,
                rng.choice((None, *range(9))),
                f"2024-01-0{rng.randrange(1, 8)}",
                rng.choice("abc"),
                str(rng.randrange(-100, 1000) / 100),
                rng.choice((0.25, 0.5, 1.5, None)),
                rng.choice((None, [], ["p"], ["p", "q"])),
            )
            for number in range(first, first + n)
        ]


_DEFECTS = (
    "[INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND]",
    "[PLAN_VALIDATION_FAILED_RULE_IN_BATCH]",
    "requirement failed: Subquery subquery#",
)
"""What Spark reports if its optimizer has a defect."""


def methods(builder: Builder, label: str, refused: set[str] | None = None) -> dict[str, str]:
    """Build all sources, compare each with a computation from scratch, and return their methods.

    Parameters
    ----------
    refused
        The names of those that Spark refuses to compute, or in whose queries it finds a defect of
        its own: they are skipped, and new ones added. None: none may be refused.
    """
    by_method: dict[str, str] = {}
    for source in builder.project.persisted:
        if refused is not None and source.name in refused:
            continue
        try:
            with builder.work(source) as work:
                builder.publish(work)
            by_method[source.name] = method_of(work)
            check(builder, source, f"{label}: {by_method[source.name]}")
        except BuildError as error:
            # Where a delta fails, the query itself is computed; so such an error is Spark's.
            is_defect = any(code in error.message for code in _DEFECTS)
            was_built = builder.ledger.manifests.fetch("dev").get(source.build_id)
            if refused is None or (was_built and not is_defect):
                raise
            refused.add(source.name)
    builder.close()
    return by_method


def build(builder: Builder, names: Sequence[str]) -> dict[str, str]:
    """Build sources, compare rows of queries with recomputed ones, and return the methods."""
    methods: dict[str, str] = {}
    for name in names:
        source = next(s for s in builder.project.persisted if s.name == name)
        with builder.work(source) as work:
            builder.publish(work)
        methods[name] = work.maintenance
        if source.function is None:
            check(builder, source, name)
    return methods


def method_of(work: PendingBuild) -> str:
    """Return the method of a build; ``reused``: nothing was computed."""
    return "reused" if work.build.action == "reused" else work.maintenance
