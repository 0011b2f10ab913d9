"""Measure what maintaining TPC-H costs: its 22 queries as tables, refreshed after small changes.

The data lies in raw Delta tables. In each round RF1 adds 0.1 % new orders with their lines, RF2
deletes 0.1 % of the old orders with their lines, and RF3 changes the price of 0.1 % of the lines.
Then one run brings all tables up to date, bare Spark computes all of them from scratch, and their
rows are compared (`measuring.py`). The first rounds do not count, because the JVM still compiles;
their rows are compared too.

Order keys that are deleted or changed are scattered, and delta-rs copies the files that have them.
New orders have the keys after the greatest. Files are written again one by one, so that tables keep
their order (`measuring.change_each_file`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import measuring
from deltalake import DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

QUERIES = Path(__file__).parent.parent / "tests" / "queries"
CHANGES = ("rf1", "rf2", "rf3")
SHARE = 0.001
"""The share of orders or lines that a change touches."""


class Tpch:
    """The raw tables of TPC-H, as Delta tables that change.

    Parameters
    ----------
    root
        The directory of the project.
    scale
        1 has 1,500,000 orders with 6,000,000 lines.
    feed
        The tables have a change data feed.
    """

    def __init__(self, root: Path, scale: float, *, feed: bool = False) -> None:
        self.raw = root / "raw"
        self.properties = measuring.FEED if feed else None
        self.duckdb = duckdb.connect()
        self.n_files = max(16, round(12 * scale))
        self._generate(root / "generated", scale)
        self.last_old = self._max_key()

    def _generate(self, place: Path, scale: float) -> None:
        """Generate all tables; cut orders and lines into files at the same keys."""
        tool = Path(sys.executable).parent / "tpchgen-cli"
        command = [str(tool), "parquet", "-s", f"{scale:g}", "--output-dir", str(place)]
        subprocess.run(command, check=True, capture_output=True)
        for file in sorted(place.glob("*.parquet")):
            rows = f"SELECT * FROM read_parquet('{file}')"
            if file.stem in ("orders", "lineitem"):
                key = "o_orderkey" if file.stem == "orders" else "l_orderkey"
                for first, last in self._cuts(place / "orders.parquet"):
                    self._append(file.stem, f"{rows} WHERE {key} BETWEEN {first} AND {last}")
            else:
                self._append(file.stem, rows)
            if file.stem != "orders":  # lines, which come before, are cut by them
                file.unlink()

    def _cuts(self, orders: Path) -> list[tuple[int, int]]:
        """Return the first and the last order key of each file."""
        parts = f"SELECT o_orderkey, ntile({self.n_files}) OVER (ORDER BY o_orderkey) AS part FROM"
        rows = f"{parts} read_parquet('{orders}')"
        keys = f"SELECT min(o_orderkey), max(o_orderkey) FROM ({rows}) GROUP BY part ORDER BY 1"
        return self.duckdb.execute(keys).fetchall()

    def _append(self, table: str, query: str) -> int:
        """Append the rows of a query to a table, as one file, and return how many."""
        relation = self.duckdb.sql(query)
        assert relation is not None
        rows = relation.to_arrow_table()
        write_deltalake(self.raw / table, rows, mode="append", configuration=self.properties)
        return rows.num_rows

    def _rows(self, table: str) -> str:
        """Return SQL for all rows of a table."""
        return f"read_parquet({DeltaTable(self.raw / table).file_uris()})"

    def _max_key(self) -> int:
        query = f"SELECT max(o_orderkey) FROM {self._rows('orders')}"
        return self.duckdb.execute(query).fetchall()[0][0]

    def change(self, number: int, names: Collection[str]) -> dict[str, int]:
        """Make the changes of a round, and return how many rows each of them touched."""
        touched: dict[str, int] = {}
        if "rf1" in names:
            touched["rf1"] = self.add(number)
        if "rf2" in names:
            touched["rf2"] = sum(
                measuring.change_each_file(
                    self.raw / table,
                    "delete",
                    key,
                    self.last_old,
                    measuring.is_picked(key, 2 * number, SHARE),
                )
                for table, key in (("lineitem", "l_orderkey"), ("orders", "o_orderkey"))
            )
        if "rf3" in names:
            price = f"CAST(l_extendedprice * {1.05 + number / 100} AS DECIMAL(15,2))"
            touched["rf3"] = measuring.change_each_file(
                self.raw / "lineitem",
                "update",
                "l_orderkey",
                self.last_old,
                measuring.is_picked("(l_orderkey * 8 + l_linenumber)", 2 * number + 1, SHARE),
                updates={"l_extendedprice": price},
            )
        return touched

    def add(self, number: int) -> int:
        """Add copies of some orders, with new keys, other dates and what follows from them."""
        picked = f"""
            SELECT *, CAST(new_date - o_orderdate AS INTEGER) AS shift, CAST({self._max_key()}
                + row_number() OVER (ORDER BY o_orderkey) AS BIGINT) AS new_key
            FROM (SELECT *, DATE '1992-01-01'
                    + CAST(hash(o_orderkey, {number}, 'date') % 2406 AS INTEGER) AS new_date
                FROM {self._rows("orders")} WHERE o_orderkey <= {self.last_old}
                ORDER BY hash(o_orderkey, {number}) LIMIT
                (SELECT CAST(ceil(count(*) * {SHARE}) AS BIGINT) FROM {self._rows("orders")}))"""
        lines = f"""
            SELECT * EXCLUDE (new_key, shift) REPLACE (new_key AS l_orderkey,
                IF(l_shipdate > DATE '1995-06-17', 'O', 'F') AS l_linestatus,
                CASE WHEN l_receiptdate > DATE '1995-06-17' THEN 'N'
                    WHEN hash(l_orderkey, l_linenumber) % 2 = 0 THEN 'R' ELSE 'A' END
                    AS l_returnflag)
            FROM (SELECT lines.* REPLACE (l_shipdate + shift AS l_shipdate,
                    l_commitdate + shift AS l_commitdate, l_receiptdate + shift AS l_receiptdate),
                    new_key, shift
                FROM {self._rows("lineitem")} AS lines JOIN picked ON l_orderkey = o_orderkey)"""
        orders = """
            SELECT picked.* EXCLUDE (new_key, new_date, shift) REPLACE (new_key AS o_orderkey,
                new_date AS o_orderdate, status AS o_orderstatus)
            FROM picked JOIN (SELECT l_orderkey, CASE WHEN min(l_linestatus) <> max(l_linestatus)
                THEN 'P' ELSE min(l_linestatus) END AS status FROM lines GROUP BY l_orderkey)
                AS statuses ON statuses.l_orderkey = new_key ORDER BY new_key"""
        self.duckdb.execute(f"CREATE OR REPLACE TABLE picked AS {picked}")
        self.duckdb.execute(f"CREATE OR REPLACE TABLE lines AS {lines}")
        in_order = "SELECT * FROM lines ORDER BY l_orderkey, l_linenumber"
        return self._append("lineitem", in_order) + self._append("orders", orders)


def make_project(root: Path, queries: Collection[int], refresh: str) -> Path:
    """Write the project's sources: the raw tables, and a persisted source for each query."""
    (root / "sources").mkdir(parents=True)
    tables = (QUERIES / "tpch_tables.sql").read_text()
    tables = tables.replace("USING parquet LOCATION '", "USING delta LOCATION 'raw/")
    (root / "sources" / "raw.sql").write_text(tables)
    blocks = (QUERIES / "tpch.sql").read_text().split("-- # ")[1:]
    views = [
        f"--@ persist{f' refresh={refresh}' if refresh else ''}\n"
        f"CREATE VIEW {title.split()[0]} AS\n{query.strip()};\n"
        for number, (title, query) in enumerate((block.split("\n", 1) for block in blocks), 1)
        if number in queries
    ]
    (root / "sources" / "queries.sql").write_text("\n".join(views))
    return root


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="of TPC-H's data")
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--warm", type=int, default=1, help="rounds before them")
    parser.add_argument("--queries", default="", help="1,3,5; '': all")
    parser.add_argument("--changes", default=",".join(CHANGES), help="of each round")
    parser.add_argument("--refresh", default="incremental", help="of all sources; '': the default")
    parser.add_argument("--feed", action="store_true", help="tables have a change data feed")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args(arguments)


def measure(root: Path, settings: argparse.Namespace) -> dict[str, dict[str, measuring.Refresh]]:
    """Run all rounds, print them, and return what was measured, by round and query."""
    queries = [int(q) for q in settings.queries.split(",") if q] or range(1, 23)
    tables = Tpch(make_project(root, queries, settings.refresh), settings.scale, feed=settings.feed)
    bench = measuring.Bench(root)
    turns = {"built": bench.turn()}
    measuring.print_results(f"TPC-H scale {settings.scale:g}, built", turns["built"])
    for number in range(1, settings.warm + settings.rounds + 1):
        touched = tables.change(number, settings.changes.split(","))
        name = f"round {number - settings.warm}" if number > settings.warm else f"warm {number}"
        turns[name] = bench.turn()
        changes = ", ".join(f"{what} {n:,} rows" for what, n in touched.items())
        measuring.print_results(f"TPC-H scale {settings.scale:g}, {name}: {changes}", turns[name])
    bench.spark.stop()
    return turns


def main() -> None:
    """Print what was measured, and last a row in JSON for the page of all benchmarks."""
    wanted = options()
    with tempfile.TemporaryDirectory() as temporary:
        turns = measure(Path(temporary, "tpch"), wanted)
    counted = [turn for name, turn in turns.items() if name.startswith("round")]
    if len(counted) > 1:
        title = f"TPC-H scale {wanted.scale:g}, sums of {len(counted)} rounds"
        measuring.print_results(title, measuring.added(counted))
    measuring.print_predictions(turns)
    n_queries = len(turns["built"])
    what = f"TPC-H scale {wanted.scale:g} maintained, {n_queries} queries"
    times = f"{wanted.rounds} times {wanted.changes.upper().replace(',', ', ')}"
    row = measuring.summary(f"{what}, {times}, sums", counted, "≤ 0.2×")
    print(json.dumps(row, ensure_ascii=False))
    if wanted.json:
        wanted.json.write_text(json.dumps(measuring.as_json(turns), indent=1))
    if measuring.has_differences(turns.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
