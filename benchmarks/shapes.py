"""Measure what maintaining each common shape of a query costs, over a star of facts and dimensions.

`shapes.sql` has a source for each shape, with its group in the line before it; `shapes_tables.sql`
has the raw Delta tables. Three changes follow each other: a day is appended to both facts; one per
cent of the events, those of scattered users, get another amount; and a few rows of the dimensions
change. After each of them one run brings all tables up to date, bare Spark computes all of them
from scratch, and the rows are compared (`measuring.py`). Shapes that draw lots are not compared.

Days end today, because some shapes look at the last 30 days.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import measuring
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

HERE = Path(__file__).parent
UNCOMPARED = "draws lots"
"""The group whose rows are others each time."""
SHARE = 0.01
"""The share of users whose events are updated."""
WHOLE_YEAR = 1_000_000
"""So many events and more are spread over a year; fewer over two months."""

EVENTS = """
    SELECT id, ts, CAST(ts AS DATE) AS day, user_id, product_id, kind,
        CAST(5 + hash(id, 'amount') % 60000 / 100.0 AS DECIMAL(12,2)) AS amount,
        CAST(1 + hash(id, 'qty') % 5 AS INTEGER) AS qty,
        IF(hash(id, 'note') % 3 = 0, 'order ' || CAST(hash(id) % 1000000 AS VARCHAR), 'no note')
            AS note,
        ts + to_seconds(CAST(hash(id, 'late') % 600 AS INTEGER)) AS inserted_at,
        list_value('t' || CAST(hash(id, 't1') % 20 AS VARCHAR),
            't' || CAST(20 + hash(id, 't2') % 20 AS VARCHAR)) AS tags,
        '{{"page":"p' || CAST(hash(id, 'page') % 50 AS VARCHAR) || '","ref":"'
            || ['ads', 'mail', 'search', 'none'][1 + CAST(hash(id, 'ref') % 4 AS INTEGER)]
            || '","ms":' || CAST(hash(id, 'ms') % 3000 AS VARCHAR) || '}}' AS payload
    FROM (SELECT range AS id,
            {begin} + to_microseconds(CAST((range - {first}) * {step} AS BIGINT)) AS ts,
            CAST(floor(pow(hash(range, 'user') % 1000003 / 1000003::DOUBLE, 2) * {users}) AS BIGINT)
                AS user_id,
            CAST(hash(range, 'product') % {products} AS BIGINT) AS product_id,
            ['view', 'view', 'view', 'click', 'click', 'cart', 'purchase', 'purchase', 'purchase',
                'refund'][1 + CAST(hash(range, 'kind') % 10 AS INTEGER)] AS kind
        FROM range({first}, {last}))
    ORDER BY id"""
PAYMENTS = """
    SELECT id * 10 AS id, id AS event_id, paid_at, CAST(paid_at AS DATE) AS day, user_id,
        ['card', 'transfer', 'voucher'][1 + CAST(hash(id, 'method') % 3 AS INTEGER)] AS method,
        amount, epoch_ms(paid_at) AS paid_ms, strftime(paid_at, '%Y-%m-%d %H:%M:%S') AS paid_text
    FROM (SELECT *, ts + to_seconds(CAST(hash(id, 'paid') % 5400 AS INTEGER)) AS paid_at FROM events
        WHERE kind = 'purchase' AND hash(id, 'is paid') % 10 > 0)
    ORDER BY id"""
DIMENSIONS = {
    "users": """
        SELECT range AS user_id, 'user ' || CAST(range AS VARCHAR) AS name,
            ['AT', 'CH', 'CZ', 'DE', 'DK', 'FR', 'GB', 'IT', 'PL', 'US'][
                1 + CAST(hash(range, 'country') % 10 AS INTEGER)] AS country,
            ['new', 'regular', 'regular', 'vip', 'blocked'][
                1 + CAST(hash(range, 'segment') % 5 AS INTEGER)] AS segment,
            ['EUR', 'GBP', 'USD'][1 + CAST(hash(range, 'currency') % 3 AS INTEGER)] AS currency,
            {day} - CAST(hash(range, 'signup') % 1000 AS INTEGER) AS signup,
            hash(range, 'score') % 1000000 / 7.0::DOUBLE AS score
        FROM range({users})""",
    "user_versions": """
        SELECT user_id, ['free', 'paid', 'team'][1 + CAST(hash(user_id, n) % 3 AS INTEGER)] AS plan,
            IF(n = 0, TIMESTAMP '2000-01-01', turn) AS valid_from,
            IF(n = 0, turn, TIMESTAMP '9999-01-01') AS valid_to
        FROM (SELECT range AS user_id, {begin}
            + to_hours(CAST(hash(range, 'turn') % {hours} AS INTEGER)) AS turn FROM range({users})),
            (SELECT range AS n FROM range(2))""",
    "products": """
        SELECT range AS product_id, 'product ' || CAST(range AS VARCHAR) AS title,
            ['Books', 'Games', 'Garden', 'Music', 'Tools'][
                1 + CAST(hash(range, 'category') % 5 AS INTEGER)] AS category,
            'brand ' || CAST(hash(range, 'brand') % 40 AS VARCHAR) AS brand,
            CAST(1 + hash(range, 'price') % 40000 / 100.0 AS DECIMAL(10,2)) AS price,
            hash(range, 'active') % 10 > 0 AS active
        FROM range({products})""",
    "fx": """
        SELECT {day} + CAST(n AS INTEGER) AS day, currency,
            CAST(IF(currency = 'EUR', 1, 0.8 + hash(n, currency) % 1000 / 5000.0) AS DECIMAL(12,6))
                AS rate
        FROM (SELECT range AS n FROM range(-7, {days} + 60)),
            (SELECT unnest(['EUR', 'GBP', 'USD']) AS currency)
        ORDER BY day, currency""",
}


class Star:
    """Two facts and four dimensions, as Delta tables that change.

    Parameters
    ----------
    root
        The directory of the project.
    rows
        The number of events. There is a payment for a bit more than a fourth of them.
    until
        The day after the last one with events.
    feed
        The tables have a change data feed.
    """

    def __init__(self, root: Path, rows: int, until: date, *, feed: bool = False) -> None:
        self.raw = root / "raw"
        self.properties = measuring.FEED if feed else None
        self.duckdb = duckdb.connect()
        self.rows, self.days = rows, 365 if rows >= WHOLE_YEAR else 60
        self.first_day = until - timedelta(days=self.days)
        self.a_day = rows // self.days
        self.users, self.products = max(100, rows // 100), max(50, rows // 5000)
        self.n_days = 0
        days_a_file = max(1, self.days // 40)
        while self.n_days < self.days:
            self.add_days(min(days_a_file, self.days - self.n_days))
        self.last_old = self.n_days * self.a_day - 1
        for table, query in DIMENSIONS.items():
            self._append(table, query.format(**self._values(0, 0)))

    def _values(self, first: int, day: int) -> dict[str, object]:
        """Return what the queries leave open, for events from a number and a day on."""
        begin = self.first_day + timedelta(days=day)
        return {
            "first": first, "begin": f"TIMESTAMP '{begin} 00:00:00'", "day": f"DATE '{begin}'",
            "step": 86_400_000_000 // self.a_day, "days": self.days, "hours": self.days * 24,
            "users": self.users, "products": self.products,
        }  # fmt: skip

    def _append(self, table: str, query: str) -> int:
        """Append the rows of a query to a table, as one file, and return how many."""
        relation = self.duckdb.sql(query)
        assert relation is not None
        rows = relation.to_arrow_table()
        utc = pa.timestamp("us", tz="UTC")
        fields = [f.with_type(utc) if pa.types.is_timestamp(f.type) else f for f in rows.schema]
        rows = rows.cast(pa.schema(fields))
        write_deltalake(self.raw / table, rows, mode="append", configuration=self.properties)
        return rows.num_rows

    def add_days(self, n: int) -> int:
        """Append days to both facts, and return how many rows."""
        first = self.n_days * self.a_day
        values = {**self._values(first, self.n_days), "last": first + n * self.a_day}
        self.duckdb.execute(f"CREATE OR REPLACE TABLE events AS {EVENTS.format(**values)}")
        self.n_days += n
        return self._append("events", "FROM events") + self._append("payments", PAYMENTS)

    def append_day(self, number: int) -> int:
        """Append a day to both facts."""
        del number
        return self.add_days(1)

    def update_facts(self, number: int) -> int:
        """Change the amount of all events of some users."""
        return measuring.change_each_file(
            self.raw / "events",
            "update",
            "id",
            self.last_old,
            measuring.is_picked("user_id", number, SHARE),
            updates={"amount": "CAST(amount + 1 AS DECIMAL(12,2))"},
        )

    def update_dimensions(self, number: int) -> int:
        """Change three users, two products, a day's rate, and the plans of a user."""
        third = number * 3
        day = self.first_day + timedelta(days=self.days // 2 + number)
        of_users = f"user_id >= {third} AND user_id < {third + 3}"
        of_products = f"product_id >= {2 * number} AND product_id < {2 * number + 2}"
        price, rate = "CAST(price + 1 AS DECIMAL(10,2))", "CAST(rate * 1.01 AS DECIMAL(12,6))"
        done = (
            self._update("users", of_users, country="'NO'", segment="'vip'", score="score + 1"),
            self._update("products", of_products, category="'Toys'", price=price),
            self._update("fx", f"day = DATE '{day}' AND currency = 'USD'", rate=rate),
            self._update("user_versions", f"user_id = {number}", plan="concat(plan, '+')"),
        )
        return sum(done)

    def _update(self, table: str, predicate: str, **updates: str) -> int:
        done = DeltaTable(self.raw / table).update(predicate=predicate, updates=updates)
        return done["num_updated_rows"]


CHANGES: Mapping[str, Callable[[Star, int], int]] = {
    "a day appended": Star.append_day,
    "1 % of events updated": Star.update_facts,
    "dimensions changed": Star.update_dimensions,
}


def read_shapes() -> dict[str, tuple[str, str]]:
    """Return by name the group of each shape, and its statement with annotations."""
    shapes: dict[str, tuple[str, str]] = {}
    for block in (HERE / "shapes.sql").read_text().split("-- group: ")[1:]:
        group, statement = block.split("\n", 1)
        match = re.search(r"^CREATE VIEW (\w+)", statement, re.MULTILINE)
        assert match is not None, statement
        shapes[match[1]] = group, statement.strip()
    return shapes


def select(names: Collection[str]) -> dict[str, str]:
    """Return the groups of the shapes that have these names or are in these groups, by name.

    The shapes that they read are among them. No names: all shapes.
    """
    shapes = read_shapes()
    chosen = {n for n, (group, _) in shapes.items() if not names or n in names or group in names}
    assert chosen, f"there is no shape or group {', '.join(names)}"
    for name in [*chosen]:
        chosen |= shapes.keys() & set(re.findall(r"\w+", shapes[name][1]))
    return {name: group for name, (group, _) in shapes.items() if name in chosen}


def make_project(root: Path, names: Collection[str], refresh: str) -> Path:
    """Write the project's sources: the raw tables and some shapes."""
    (root / "sources").mkdir(parents=True)
    (root / "sources" / "raw.sql").write_text((HERE / "shapes_tables.sql").read_text())
    statements = (statement for name, (_, statement) in read_shapes().items() if name in names)
    text = "\n\n".join(statements) + "\n"
    if refresh:
        text = re.sub(r"^--@ persist\b", f"--@ persist refresh={refresh}", text, flags=re.MULTILINE)
    (root / "sources" / "shapes.sql").write_text(text)
    return root


Turns = dict[str, dict[str, measuring.Refresh]]


def measure(root: Path, settings: argparse.Namespace, groups: Mapping[str, str]) -> Turns:
    """Make all changes, print what each costs, and return it by change and shape."""
    place = make_project(root, groups, settings.refresh)
    star = Star(place, settings.rows, settings.until, feed=settings.feed)
    uncompared = {name for name, group in groups.items() if group == UNCOMPARED}
    bench = measuring.Bench(root, uncompared=uncompared)
    turns = {"built": bench.turn()}
    measuring.print_results(f"{settings.rows:,} events, built", turns["built"])
    for number in range(settings.warm + 1):
        for what, change in CHANGES.items():
            name = what if number == settings.warm else f"warm {number + 1}, {what}"
            touched = change(star, number)
            turns[name] = bench.turn()
            title = f"{settings.rows:,} events, {name}: {touched:,} rows"
            measuring.print_results(title, turns[name])
    bench.spark.stop()
    return turns


def print_groups(turns: Turns, groups: Mapping[str, str]) -> None:
    """Print the methods and the median ratio of each group, by change."""
    for what in CHANGES:
        print(f"\n{what}: medians of CPU seconds, and methods")
        for group in [*dict.fromkeys(groups.values()), "all"]:
            some = [r for n, r in turns[what].items() if group in (groups[n], "all")]
            ours, whole = (
                statistics.median(getattr(r, cost).cpu for r in some) for cost in ("cost", "whole")
            )
            ratio = statistics.median(measuring.ratio(r.cost.cpu, r.whole.cpu) for r in some)
            methods = measuring.count_methods(some)
            print(f"  {group:24} {ours:7.2f} of {whole:7.2f}, ratio {ratio:5.2f}; {methods}")


def print_wholes(turns: Turns, groups: Mapping[str, str]) -> None:
    """Print which shapes were computed as a whole after which changes, and why."""
    print("\nwhole:")
    for name, group in groups.items():
        reasons: dict[str, list[str]] = {}
        for what in CHANGES:
            if turns[what][name].method == "whole":
                reasons.setdefault(turns[what][name].reason, []).append(what)
        for reason, changes in reasons.items():
            print(f"  {name} ({group}; {', '.join(changes)}): {reason}")


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="events")
    parser.add_argument("--shapes", default="", help="names and groups: day_sum,row-wise")
    parser.add_argument("--warm", type=int, default=0, help="so often all changes come before")
    parser.add_argument("--until", type=date.fromisoformat, default=date.today(), help="a date")
    parser.add_argument("--refresh", default="incremental", help="of all sources; '': the default")
    parser.add_argument("--feed", action="store_true", help="tables have a change data feed")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args(arguments)


def main() -> None:
    """Print what was measured, and last rows in JSON for the page of all benchmarks."""
    wanted = options()
    groups = select([name for name in wanted.shapes.split(",") if name])
    with tempfile.TemporaryDirectory() as temporary:
        turns = measure(Path(temporary, "shapes"), wanted, groups)
    print_groups(turns, groups)
    print_wholes(turns, groups)
    measuring.print_predictions(turns)
    for what in CHANGES:
        title = f"{len(groups)} shapes over {wanted.rows:,} events maintained: {what}, sums"
        row = measuring.summary(title, [turns[what]], "≤ 0.2×")
        print(json.dumps(row, ensure_ascii=False))
    if wanted.json:
        wanted.json.write_text(json.dumps(measuring.as_json(turns), indent=1))
    if measuring.has_differences(turns.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
