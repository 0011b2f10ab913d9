"""Random lives of an external table and of the programs that read it, for tests."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from icebergs import Written

from persist_assets.core.errors import GoneError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

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
    "vacuum",
    "purge",
)


class Died(BaseException):
    """What a process that is killed would do."""


class DeltaLake:
    """A Delta table of others, and what they do to it."""

    connector = "delta_table_input"

    def __init__(self, root: Path, rows: pa.Table, rng: random.Random) -> None:
        self.uri, self.rng = str(root / "lake"), rng
        recorded = {"delta.enableChangeDataFeed": rng.choice(["true", "false"])}
        deltalake.write_deltalake(self.uri, rows, configuration=recorded)

    def append(self, rows: pa.Table) -> None:
        deltalake.write_deltalake(self.uri, rows, mode="append")

    def update(self, fifth: int) -> None:
        k, x = self.rng.choice(["'a'", "'b'", "NULL"]), self.rng.choice(["3.0", "NULL"])
        table = deltalake.DeltaTable(self.uri)
        table.update(updates={"k": k, "x": x}, predicate=f"id % 5 = {fifth}")

    def delete(self, fifth: int) -> None:
        deltalake.DeltaTable(self.uri).delete(f"id % 5 = {fifth}")

    def merge(self, rows: pa.Table) -> None:
        table = deltalake.DeltaTable(self.uri)
        merger = table.merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def optimize(self) -> None:
        deltalake.DeltaTable(self.uri).optimize.compact()

    def rewrite(self) -> None:
        whole = deltalake.DeltaTable(self.uri).to_pyarrow_table()
        deltalake.write_deltalake(self.uri, whole, mode="overwrite")

    def vacuum(self, held: str | None) -> None:
        """Delete the files of versions before one, and of all but the newest where there is none."""
        table = deltalake.DeltaTable(self.uri)
        first = table.version() if held is None else int(held.split(":")[1])
        table.vacuum(
            retention_hours=0,
            enforce_retention_duration=False,
            dry_run=False,
            keep_versions=[*range(first, table.version() + 1)],
        )

    def rows(self, version: str) -> pa.Table:
        number = int(version.split(":")[1])
        return deltalake.DeltaTable(self.uri, version=number).to_pyarrow_table()


class IcebergLake:
    """An Iceberg table of others, and what they do to it."""

    connector = "iceberg_input"

    def __init__(self, root: Path, rows: pa.Table, rng: random.Random) -> None:
        self.table, self.rng = Written(root / "lake", SCHEMA), rng
        self.uri = str(self.table.root)
        self.append(rows)

    def append(self, rows: pa.Table) -> None:
        self.table.put(rows)

    def update(self, fifth: int) -> None:
        k, x = self.rng.choice(["a", "b", None]), self.rng.choice([3.0, None])
        some = [{**row, "k": k, "x": x} for row in self._whole() if row["id"] % 5 == fifth]
        if some:
            self.table.replace([row["id"] for row in some], pa.Table.from_pylist(some, SCHEMA))

    def delete(self, fifth: int) -> None:
        if some := [row["id"] for row in self._whole() if row["id"] % 5 == fifth]:
            self.table.delete(some)

    def merge(self, rows: pa.Table) -> None:
        there = {row["id"] for row in self._whole()}.intersection(rows["id"].to_pylist())
        if there:
            self.table.replace(sorted(there), rows)
        else:
            self.append(rows)

    def optimize(self) -> None:
        if self._whole():
            self.table.compact()

    def rewrite(self) -> None:
        if whole := self._whole():
            self.table.replace([row["id"] for row in whole], pa.Table.from_pylist(whole, SCHEMA))

    def vacuum(self, held: str | None) -> None:
        """Forget the snapshots before one, and all but the newest where there is none."""
        numbers = [s.snapshot_id for s in self.table.table.snapshots()]
        first = numbers[-1] if held is None else int(held.split(":")[1])
        self.table.expire(*numbers[: numbers.index(first)])

    def rows(self, version: str) -> pa.Table:
        return self.table.table.scan(snapshot_id=int(version.split(":")[1])).to_arrow()

    def _whole(self) -> list[dict[str, Any]]:
        return self.table.table.scan().to_arrow().to_pylist()


class DirectoryLake:
    """A directory of Parquet files, by day, and what others do to it."""

    connector = "directory_input"
    options: ClassVar = {"format": "parquet"}

    def __init__(self, root: Path, rows: pa.Table, rng: random.Random) -> None:
        self.root, self.uri, self.rng, self.n = root / "lake", str(root / "lake"), rng, 0
        self.append(rows)

    def append(self, rows: pa.Table) -> None:
        for day in pc.unique(rows["d"]):
            self._put(day.as_py(), rows.filter(pc.equal(rows["d"], day)))

    def _put(self, day: date, rows: pa.Table, file: Path | None = None) -> None:
        self.n += 1
        file = file or self.root / f"d={day}" / f"{self.n}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.drop_columns("d"), file)

    def _files(self) -> list[tuple[Path, pa.Table]]:
        tables: list[tuple[Path, pa.Table]] = []
        for file in sorted(self.root.rglob("*.parquet")):
            day = date.fromisoformat(file.parent.name.removeprefix("d="))
            rows = pq.ParquetFile(file).read()
            days = pa.array([day] * rows.num_rows, pa.date32())
            tables.append((file, rows.append_column("d", days).select(SCHEMA.names)))
        return tables

    def update(self, fifth: int) -> None:
        k, x = self.rng.choice(["a", "b", None]), self.rng.choice([3.0, None])
        for file, rows in self._files():
            some = [
                {**row, "k": k, "x": x} if row["id"] % 5 == fifth else row
                for row in rows.to_pylist()
            ]
            if some != rows.to_pylist():
                self._put(some[0]["d"], pa.Table.from_pylist(some, SCHEMA), file)

    def delete(self, fifth: int) -> None:
        self._keep(self._files(), lambda row_id: row_id % 5 != fifth)

    def _keep(self, files: list[tuple[Path, pa.Table]], stays: Callable[[int], bool]) -> None:
        """Delete rows of some files by their ids; the last file of the directory stays."""
        for file, rows in files:
            some = [row for row in rows.to_pylist() if stays(row["id"])]
            if some:
                self._put(some[0]["d"], pa.Table.from_pylist(some, SCHEMA), file)
            elif len(self._files()) > 1:
                file.unlink()

    def merge(self, rows: pa.Table) -> None:
        files, ids = self._files(), {*rows["id"].to_pylist()}
        self.append(rows)
        self._keep(files, lambda row_id: row_id not in ids)

    def optimize(self) -> None:
        files = self._files()
        for file, _ in files:
            file.unlink()
        self.append(pa.concat_tables(rows for _, rows in files))

    rewrite = optimize

    def vacuum(self, held: str | None) -> None:
        pass

    def rows(self, version: str) -> pa.Table:
        return pa.concat_tables(rows for _, rows in self._files())


class Life:
    """An external table, a program over it, and what must be so after each step.

    Parameters
    ----------
    enter
        The fixture that makes builders.
    of
        What kind of table it is.
    keyed
        Whether its ids are a primary key, and declared as one.
    """

    def __init__(
        self,
        root: Path,
        enter: Callable[..., Builder],
        rng: random.Random,
        of: Callable[[Path, pa.Table, random.Random], Any] = DeltaLake,
        *,
        keyed: bool = False,
    ) -> None:
        self.root, self.enter, self.rng, self.keyed, self.n_ids = root, enter, rng, keyed, 0
        self.late = timedelta()
        self.chosen = ["a", "b", "c", "e"]
        self.lake = of(root, self.rows(12), rng)
        self.write()

    def rows(self, n: int) -> pa.Table:
        """Return some rows; ids come again, unless they are a key."""
        rng, now = self.rng, datetime.now(UTC)
        first, self.n_ids = self.n_ids, self.n_ids + n
        rows = [
            {
                "id": number if self.keyed else rng.randrange(40),
                "k": rng.choice(["a", "b", "it's", None]),
                "x": rng.choice([None, float("nan"), 0.0, 1.0, 3.0, 6.0, 8.0]),
                "d": date(2024, 1, 1) + timedelta(days=rng.randrange(9)),
                "ts": now - timedelta(days=rng.randrange(40), hours=1),
            }
            for number in range(first, first + n)
        ]
        return pa.Table.from_pylist(rows, SCHEMA)

    def write(self) -> None:
        """Write the program down."""
        options = getattr(self.lake, "options", {})
        config = {"name": self.lake.connector, "config": {"uri": self.lake.uri, **options}}
        connectors = json.dumps([{"transport": config}])
        columns = COLUMNS.replace("BIGINT", "BIGINT PRIMARY KEY", self.keyed)
        text = f"CREATE EXTERNAL TABLE t ({columns}) WITH ('connectors' = '{connectors}');\n"
        text += "".join(f"CREATE VIEW {n} AS {q};\n" for n, q in INLINE.items())
        for name in self.chosen:
            text += f"--@ persist {HOW.get(name, '')}\nCREATE VIEW {name} AS {SOURCES[name]};\n"
        (self.root / "sources" / "m.sql").write_text(text)

    def step(self, kind: str) -> None:
        """Let something happen to the table, the program or the clock."""
        rng, lake = self.rng, self.lake
        match kind:
            case "append":
                lake.append(self.rows(rng.randrange(1, 6)))
            case "update":
                lake.update(rng.randrange(5))
            case "delete":
                lake.delete(rng.randrange(5))
            case "merge":
                some = self.rows(5)
                if self.keyed:
                    again = pa.array(sorted(rng.sample(range(self.n_ids), 5)), pa.int64())
                    some = some.set_column(0, "id", again)
                some = some.group_by("id").aggregate([(c, "max") for c in ("k", "x", "d", "ts")])
                lake.merge(some.rename_columns(["id", "k", "x", "d", "ts"]).cast(SCHEMA))
            case "optimize":
                lake.optimize()
            case "rewrite":
                lake.rewrite()
            case "vacuum":
                lake.vacuum(self.held())
            case "purge":
                lake.vacuum(None)
            case "program":
                self.chosen = sorted(rng.sample(sorted(SOURCES), rng.randrange(2, 6)))
                self.write()
            case "clock":
                self.late += timedelta(days=rng.randrange(1, 5))
            case _:
                pass

    def live(self, rounds: int, *, dying: float) -> tuple[int, int]:
        """Let things happen, and compare so many times; return how many steps and deaths there were.

        Parameters
        ----------
        dying
            How likely a process that builds dies.
        """
        rng, steps, deaths = self.rng, 0, 0
        for _ in range(rounds):
            if rng.random() < dying:
                deaths += 1
                self.build(rng.choice(POINTS))
            self.build()
            self.check()
            happens = rng.choices(STEPS, k=rng.randrange(1, 4))
            steps += len(happens)
            for kind in happens:
                self.step(kind)
        return steps, deaths

    def held(self) -> str | None:
        """Return the version that is held."""
        builder = self.builder()
        held = builder.observer.ingestion.find(builder.project.sources[0])
        builder.close()
        return held and held.version

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
                    builder.observer.ingestion.sync(builder.project.sources[0], from_scratch=True)
                    return self.build()
        except Died:
            pass
        finally:
            builder.close()
        return None

    def check(self) -> None:
        """Check that all sources equal their query over the whole table at one version."""
        builder = self.builder()
        held = builder.observer.ingestion.find(builder.project.sources[0])
        assert held is not None
        whole = self.lake.rows(held.version).cast(SCHEMA)
        with duckdb.connect() as db:
            db.execute("SET TimeZone = 'UTC'")
            db.register("t", whole)
            for name, query in INLINE.items():
                db.execute(f"CREATE VIEW {name} AS {query}")
            for name in self.chosen:
                source = next(s for s in builder.project.persisted if s.name == name)
                wanted = bag(db.execute(SOURCES[name]).fetchall())
                found = bag(builder.read(source).collect())
                assert found == wanted, (name, held)
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
    record, write = ledger.copies.record, engine.write_files

    def writes(*arguments: Any, **named: Any) -> Any:
        if ".external" not in str(arguments[1]):
            return write(*arguments, **named)
        if point == POINTS[0]:
            raise Died
        staged = write(*arguments, **named)
        if point == POINTS[1]:
            raise Died
        return staged

    def records(*arguments: Any, **named: Any) -> Any:
        if point == POINTS[2]:
            raise Died
        told = record(*arguments, **named)
        if point == POINTS[3]:
            raise Died
        return told

    engine.write_files = writes  # type: ignore[method-assign]
    ledger.copies.record = records  # type: ignore[method-assign]
