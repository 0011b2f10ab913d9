"""Raw tables that grow, shrink and change at random, and sources that are built of them.

What a source's table holds must always be what computing the source anew gives: its rows, how
they measure and its watermark.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.row_metrics import Measured

RAW = """
CREATE TABLE ev (ts TIMESTAMP, usr INT, kind STRING, amt INT) USING parquet LOCATION 'raw/ev';
CREATE TABLE pay (ts TIMESTAMP, usr INT, amt INT) USING delta LOCATION 'raw/pay';
CREATE TABLE dim (usr INT, name STRING) USING delta LOCATION 'raw/dim';
CREATE VIEW days AS SELECT CAST(ts AS DATE) AS day, usr, count(*) AS n FROM pay GROUP BY 1, 2;
"""

QUERIES = {
    "filtered": ("ts", "SELECT ts, usr, amt FROM ev WHERE kind = 'a'"),
    "named": ("ts", "SELECT p.ts, p.amt, d.name FROM pay p LEFT JOIN dim d ON p.usr = d.usr"),
    "joined": ("ts", "SELECT e.ts, p.amt FROM ev e JOIN pay p ON e.usr = p.usr AND e.ts = p.ts"),
    "both": ("ts", "SELECT ts, amt FROM ev UNION ALL SELECT ts, amt FROM pay"),
    "paid": (
        "day",
        "SELECT CAST(ts AS DATE) AS day, usr, sum(amt) AS s FROM pay GROUP BY 1, 2"
        " HAVING sum(amt) > 3",
    ),
    "inlined": ("day", "SELECT d.day, d.n, x.name FROM days d JOIN dim x ON d.usr = x.usr"),
    "ranked": (
        "ts",
        "SELECT ts, amt, row_number() OVER (PARTITION BY ts ORDER BY amt, usr) AS nth FROM pay",
    ),
    "upper": ("ts", "SELECT ts, sum(amt) AS s, count(*) AS n FROM filtered GROUP BY ts"),
    "running": ("ts", "SELECT ts, sum(amt) OVER (PARTITION BY usr ORDER BY ts) AS s FROM pay"),
    "distinct_days": ("day", "SELECT DISTINCT date_trunc('DAY', ts) AS day FROM ev"),
    "absent": (
        "ts",
        "SELECT ts, usr FROM pay p WHERE NOT EXISTS (SELECT 1 FROM dim d WHERE d.usr = p.usr)",
    ),
    "latest": (
        "ts merge_key=usr { on_tie=greatest }",
        "SELECT usr, ts, amt FROM pay WHERE usr IS NOT NULL",
    ),
    "over_latest": ("ts", "SELECT usr, ts, amt + 1 AS more FROM latest"),
    "beside_latest": (
        "ts",
        "SELECT p.ts, p.amt, l.ts AS last FROM pay p LEFT JOIN latest l ON p.usr = l.usr",
    ),
    "own_days": (
        "day",
        "SELECT day, usr, s FROM (SELECT CAST(ts AS DATE) AS day, usr, sum(amt) OVER (PARTITION BY"
        " date_add(DATE'2024-01-01', usr)) AS s, date_add(DATE'2024-01-01', usr) AS own FROM pay)"
        " WHERE day = own",
    ),
    "without": ("ts", "SELECT ts, usr FROM pay EXCEPT SELECT ts, usr FROM ev"),
}


def sources() -> str:
    """Return the text of the file that declares them all."""
    views = [
        f"--@ persist refresh=incremental watermark={column}\n"
        f"--@ check {{ not_null={column.split()[0]} {{ severity=warn }} }}\n"
        f"CREATE VIEW {name} AS {query};\n"
        for name, (column, query) in QUERIES.items()
    ]
    return RAW + "".join(views)


ONE = "CREATE TABLE t (ts TIMESTAMP, x STRING) USING parquet LOCATION 'raw';\n"
PLAIN = ONE + "--@ persist refresh=incremental watermark=ts\nCREATE VIEW q AS SELECT ts, x FROM t;"


def put(root: Path, n: int, *rows: tuple[int | None, str]) -> None:
    """Write a file of raw data: days from the first of 2024, and texts."""
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    stamps = [None if day is None else start + dt.timedelta(days=day) for day, _ in rows]
    table = pa.table({"ts": pa.array(stamps, pa.timestamp("us", "UTC")), "x": [x for _, x in rows]})
    (root / "raw").mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / "raw" / f"{n}.parquet")


class Data:
    """The raw tables of a project, and what may become of them."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng = root / "raw", rng
        self.day = 3
        self.n = 0
        self.grow_ev(12)
        self._write("pay", self._rows(12))
        self._write("dim", [{"usr": u, "name": f"n{u}"} for u in range(3)])

    def _ts(self) -> dt.datetime | None:
        rng = self.rng
        if rng.random() < 0.05:
            return None
        day = self.day if rng.random() < 0.8 else rng.randrange(self.day)
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        return start + dt.timedelta(days=day, hours=6 * rng.randrange(4))

    def _rows(self, n: int, kind: bool = False) -> list[dict[str, Any]]:
        rows = []
        for _ in range(n):
            row: dict[str, Any] = {"ts": self._ts(), "usr": self.rng.randrange(5)}
            if kind:
                row["kind"] = self.rng.choice("ab")
            row["amt"] = self.rng.randrange(5)
            rows.append(row)
        return rows

    def _write(self, name: str, rows: list[dict[str, Any]], mode: Any = "append") -> None:
        fields = {"ts": pa.timestamp("us", "UTC"), "usr": pa.int32(), "amt": pa.int32()}
        fields |= {"name": pa.string(), "kind": pa.string()}
        schema = pa.schema([(k, fields[k]) for k in rows[0]])
        write_deltalake(str(self.root / name), pa.Table.from_pylist(rows, schema), mode=mode)

    # What happens, each with the probability it is listed with.

    def grow_ev(self, n: int = 3) -> None:
        fields = [("ts", pa.timestamp("us", "UTC")), ("usr", pa.int32())]
        schema = pa.schema([*fields, ("kind", pa.string()), ("amt", pa.int32())])
        (self.root / "ev").mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(self._rows(n, kind=True), schema)
        pq.write_table(table, self.root / "ev" / f"part-{self.n}.parquet")
        self.n += 1

    def grow_pay(self) -> None:
        self._write("pay", self._rows(self.rng.randrange(1, 4)))

    def next_day(self) -> None:
        self.day += 1
        self.grow_pay()

    def lose_ev(self) -> None:
        files = sorted((self.root / "ev").iterdir())
        if len(files) > 1:
            self.rng.choice(files).unlink()

    def delete_pay(self) -> None:
        DeltaTable(str(self.root / "pay")).delete(f"usr = {self.rng.randrange(5)} AND amt = 1")
        if not DeltaTable(str(self.root / "pay")).file_uris():
            self.grow_pay()

    def update_pay(self) -> None:
        table = DeltaTable(str(self.root / "pay"))
        table.update({"amt": "amt + 1"}, predicate=f"usr = {self.rng.randrange(5)}")

    def compact_pay(self) -> None:
        DeltaTable(str(self.root / "pay")).optimize.compact()

    def grow_dim(self) -> None:
        self._write("dim", [{"usr": self.rng.randrange(6), "name": f"m{self.rng.randrange(9)}"}])

    def overwrite_pay(self) -> None:
        self._write("pay", self._rows(6), mode="overwrite")

    def nothing(self) -> None:
        """The data stays as it is."""

    def replace_everything(self) -> None:
        shutil.rmtree(self.root / "pay")
        self._write("pay", self._rows(5))

    def change(self) -> str:
        """Let something happen, and return what."""
        chances: dict[Callable[[], None], int] = {
            self.grow_ev: 6,
            self.grow_pay: 6,
            self.next_day: 4,
            self.lose_ev: 1,
            self.delete_pay: 2,
            self.update_pay: 2,
            self.compact_pay: 1,
            self.grow_dim: 2,
            self.overwrite_pay: 1,
            self.replace_everything: 1,
            self.nothing: 1,
        }
        done = self.rng.choices([*chances], [*chances.values()])[0]
        done()
        return done.__name__


def anew(builder: Builder, source: Source) -> tuple[Counter[Any], Measured]:
    """Return the rows of a source as they are when everything is computed, and their measures."""
    assert source.query is not None
    statement, read = builder.reader.statement(source.query, source.bindings, {})
    frame = builder.reader.merged(source, builder.reader.load(statement, read, source.columns))
    measured = builder.engine.measure(frame, source.checks, source.annotation.time_column, "it")
    return Counter(frame.collect()), measured


def check(builder: Builder, source: Source, label: str) -> None:
    """Compare the table of a source with what computing it anew gives."""
    rows, measured = anew(builder, source)
    snapshot = builder.ledger.manifests.fetch(*builder.settings.environments)[source.build_id]
    found = Counter(builder.reader.load_snapshot(snapshot).collect())
    assert found == rows, (
        f"{source.name} after {label}: {found - rows} too many, {rows - found} gone"
    )
    told = (snapshot.rows, snapshot.content, snapshot.watermark)
    assert told == (measured.rows, measured.content, measured.watermark), (source.name, label)
    checks = {r.name: r.failed_rows for r in builder.ledger.builds.fetch_checks(snapshot.build_uid)}
    assert checks == {r.name: r.failed_rows for r in measured.checks}, (source.name, label)


def kind_of(work: PendingBuild) -> str:
    """Return how a build came to its rows."""
    increment = work.step.increment
    if work.step.action == "reuse":
        return "reused"
    if increment is not None and increment.program is not None:
        return work.maintenance
    return "whole" if increment is None else "added" if increment.added else "windows"
