"""Random lives of an external table and of the programs that read it, for tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa

from persist_assets.builder import Builder
from persist_assets.errors import GoneError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.string()),
        ("x", pa.float64()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
COLUMNS = "id BIGINT, k STRING, x DOUBLE, d DATE, ts TIMESTAMP"
SOURCES = {
    "a": "SELECT id, k FROM t WHERE k = 'a'",
    "b": "SELECT k, count(*) AS n, sum(x) AS s FROM t WHERE x > 2 GROUP BY k",
    "c": "SELECT w.id, w.x, u.k FROM w JOIN t u ON w.id = u.id WHERE u.k IN ('b', 'it''s')",
    "d": "SELECT k, max(x) AS x FROM t GROUP BY k HAVING k <> 'a'",
    "e": "SELECT id, ts FROM t WHERE ts >= NOW() - INTERVAL '20' DAY",
    "f": "SELECT id, k, ts FROM t WHERE k IS NOT NULL AND d < DATE '2024-01-05'",
    "g": "SELECT id, count(*) OVER (PARTITION BY k) AS n FROM t WHERE k = 'it''s'",
    "h": "SELECT w.id, u.d FROM w LEFT JOIN t u ON w.id = u.id AND u.x > 5",
    "i": "SELECT id, x FROM t WHERE x IS NULL UNION ALL SELECT id, x FROM t WHERE x < 1",
}
INLINE = {"w": "SELECT * FROM t WHERE id < 20"}
HOW = {"f": "refresh=incremental watermark=ts assume=exact lookback=100d"}
STEPS = (
    "append",
    "update",
    "delete",
    "merge",
    "optimize",
    "program",
    "clock",
    "nothing",
    "rewrite",
)


class Died(BaseException):
    """What a process that is killed would do."""


class Life:
    """An external table, a program over it, and what must be so after each step.

    Parameters
    ----------
    enter
        The fixture that makes builders.
    """

    def __init__(self, root: Path, enter: Callable[..., Builder], rng: random.Random) -> None:
        self.root, self.enter, self.rng = root, enter, rng
        self.lake = str(root / "lake")
        self.late = timedelta()
        self.chosen = ["a", "b", "c", "e"]
        deltalake.write_deltalake(
            self.lake,
            self.rows(12),
            configuration={"delta.enableChangeDataFeed": rng.choice(["true", "false"])},
        )
        self.write()

    def rows(self, n: int) -> pa.Table:
        """Return some rows; ids come again."""
        rng, now = self.rng, datetime.now(UTC)
        rows = [
            {
                "id": rng.randrange(40),
                "k": rng.choice(["a", "b", "it's", None]),
                "x": rng.choice([None, float("nan"), 0.0, 1.0, 3.0, 6.0, 8.0]),
                "d": date(2024, 1, 1) + timedelta(days=rng.randrange(9)),
                "ts": now - timedelta(days=rng.randrange(40), hours=1),
            }
            for _ in range(n)
        ]
        return pa.Table.from_pylist(rows, SCHEMA)

    def write(self) -> None:
        """Write the program down."""
        connectors = f'[{{"transport": {{"name": "delta_table_input", "config": {{"uri": "{self.lake}"}}}}}}]'
        text = f"CREATE EXTERNAL TABLE t ({COLUMNS}) WITH ('connectors' = '{connectors}');\n"
        text += "".join(f"CREATE VIEW {n} AS {q};\n" for n, q in INLINE.items())
        for name in self.chosen:
            text += f"--@ persist {HOW.get(name, '')}\nCREATE VIEW {name} AS {SOURCES[name]};\n"
        (self.root / "sources" / "m.sql").write_text(text)

    def step(self, kind: str) -> None:
        """Let something happen to the table, the program or the clock."""
        rng, table = self.rng, deltalake.DeltaTable(self.lake)
        which = f"id % 5 = {rng.randrange(5)}"
        match kind:
            case "append":
                deltalake.write_deltalake(self.lake, self.rows(rng.randrange(1, 6)), mode="append")
            case "update":
                updates = {
                    "k": rng.choice(["'a'", "'b'", "NULL"]),
                    "x": rng.choice(["3.0", "NULL"]),
                }
                table.update(updates=updates, predicate=which)
            case "delete":
                table.delete(which)
            case "merge":
                some = self.rows(5)
                some = some.group_by("id").aggregate([(c, "max") for c in ("k", "x", "d", "ts")])
                some = some.rename_columns(["id", "k", "x", "d", "ts"]).cast(SCHEMA)
                merger = table.merge(some, "s.id = t.id", source_alias="s", target_alias="t")
                merger.when_matched_update_all().when_not_matched_insert_all().execute()
            case "optimize":
                table.optimize.compact()
            case "rewrite":
                deltalake.write_deltalake(self.lake, table.to_pyarrow_table(), mode="overwrite")
            case "program":
                self.chosen = sorted(rng.sample(sorted(SOURCES), rng.randrange(2, 6)))
                self.write()
            case "clock":
                self.late += timedelta(days=rng.randrange(1, 5))
            case _:
                pass

    def builder(self) -> Builder:
        """Return a builder that begins now, which is an old now at first."""
        return self.enter(
            self.root, clock=lambda: datetime.now(UTC) - timedelta(days=60) + self.late
        )

    def build(self, dies: str | None = None) -> None:
        """Build everything; `dies`: at this point of bringing the copy up to date."""
        builder = self.builder()
        try:
            if dies is not None:
                _let_die(builder, dies)
            for source in builder.project.persisted:
                try:
                    with builder.work(source) as work:
                        builder.publish(work)
                except GoneError:
                    builder.ingestion.sync(builder.project.sources[0], again=True)
                    return self.build()
        except Died:
            pass
        finally:
            builder.close()
        return None

    def check(self) -> None:
        """Check that all sources equal their query over the whole table at one version."""
        builder = self.builder()
        held = builder.ingestion.find(builder.project.sources[0])
        assert held is not None
        table = deltalake.DeltaTable(self.lake)
        version = int(held.version.split(":")[1])
        table.load_as_version(version)
        whole = table.to_pyarrow_table().cast(SCHEMA)
        with duckdb.connect() as db:
            db.execute("SET TimeZone = 'UTC'")
            db.register("t", whole)
            for name, query in INLINE.items():
                db.execute(f"CREATE VIEW {name} AS {query}")
            for name in self.chosen:
                source = next(s for s in builder.project.persisted if s.name == name)
                wanted = bag(db.execute(SOURCES[name]).fetchall())
                found = bag(builder.read(source).collect())
                assert found == wanted, (name, version, held)
        rows = sorted(map(str, whole.to_pylist()))
        assert held.rows <= len(rows)
        builder.close()


def bag(rows: Any) -> Counter[tuple[Any, ...]]:
    """Return rows as a bag in which NaN is itself and times have no zone."""
    return Counter(tuple(map(_plain, row)) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return value


POINTS = ("before it writes", "after it wrote", "after it committed", "after it recorded")


def _let_die(builder: Builder, point: str) -> None:
    ledger, engine = builder.ledger, builder.engine
    record, write = ledger.record_copy, engine.write_files

    def writes(*given: Any, **named: Any) -> Any:
        if ".external" not in str(given[1]):
            return write(*given, **named)
        if point == POINTS[0]:
            raise Died
        staged = write(*given, **named)
        if point == POINTS[1]:
            raise Died
        return staged

    def records(*given: Any, **named: Any) -> Any:
        if point == POINTS[2]:
            raise Died
        told = record(*given, **named)
        if point == POINTS[3]:
            raise Died
        return told

    engine.write_files = writes  # type: ignore[method-assign]
    ledger.record_copy = records  # type: ignore[method-assign]
