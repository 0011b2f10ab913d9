"""The sources of two deployments, in variants; each text is one that Spark and DuckDB both read.

`shop` computes from raw tables, `board` from what `shop` publishes. A *code* is a choice for every
place that edits change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Code = tuple[tuple[str, str], ...]
"""What stands at each place of a text, sorted by the names of the places."""

DAYS = 5
"""How many days of January 2024 the raw data has."""
BAD = 4
"""Generations with this remainder by 5 fail a check: no reader may see one."""


@dataclass(frozen=True)
class Table:
    """A source with a table: its annotations and its query, with places in braces."""

    name: str
    above: str
    query: str


@dataclass(frozen=True)
class Texts:
    """A file of sources.

    Attributes
    ----------
    raws
        The raw tables, each with its columns.
    places
        What may stand at each place; the first is what it begins with.
    """

    raws: Mapping[str, str]
    external: str
    tables: tuple[Table, ...]
    places: Mapping[str, tuple[str, ...]]

    def first(self) -> Code:
        return tuple(sorted((place, choices[0]) for place, choices in self.places.items()))

    def queries(self, code: Code) -> dict[str, str]:
        """Return the query of each table, in the order in which they read each other."""
        return {t.name: t.query.format(**dict(code)) for t in self.tables}

    def text(self, code: Code, locations: Mapping[str, str]) -> str:
        """Return the file."""
        parts = [
            f"CREATE TABLE {name} ({columns}) USING "
            f"{'parquet' if name == 'clicks' else 'delta'} LOCATION '{locations[name]}';"
            for name, columns in self.raws.items()
        ]
        if self.external:
            parts.append(self.external)
        queries = self.queries(code)
        parts += [f"{t.above}\nCREATE VIEW {t.name} AS\n{queries[t.name]};" for t in self.tables]
        return "\n\n".join(parts) + "\n"


_WHOLE = f'--@ persist\n--@ check {{ expr {{ whole="g % 5 <> {BAD}" }} }}'
_INCREMENTAL = "--@ persist refresh=incremental"
_DAILY = '--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-06"'

SHOP = Texts(
    raws={
        "orders": "id BIGINT, customer BIGINT, day DATE, amount BIGINT, kind STRING",
        "customers": "customer BIGINT, name STRING",
        "gen": "g BIGINT, i BIGINT",
        "clicks": "n BIGINT, customer BIGINT",
    },
    external="""CREATE EXTERNAL TABLE visits (
    id bigint not null primary key, customer bigint, n bigint
) with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "raw/visits"}}
}]');""",
    tables=(
        Table("stamp", _WHOLE, "SELECT g, i FROM gen"),
        Table(
            "totals",
            _INCREMENTAL,
            "WITH o AS (SELECT customer AS {c}, amount, id FROM orders WHERE {condition})\n"
            "SELECT {c} AS customer, count(*) AS n, sum(amount) AS total FROM o GROUP BY {c}",
        ),
        Table(
            "named",
            _INCREMENTAL,
            "SELECT o.id, c.name, o.amount * {factor} AS amount\n"
            "FROM orders o LEFT JOIN customers c ON o.customer = c.customer WHERE {condition}",
        ),
        Table(
            "visited",
            "--@ persist",
            "SELECT customer, sum(n) AS n FROM visits WHERE n > {least} GROUP BY customer",
        ),
        Table(
            "clicked",
            "--@ persist refresh=incremental watermark=n",
            "SELECT n, customer, n % 7 AS d FROM clicks",
        ),
        Table(
            "daily",
            _DAILY,
            "SELECT day, kind, count(*) AS n, sum(amount) AS total FROM orders\n"
            "WHERE {condition} GROUP BY day, kind",
        ),
        Table(
            "report",
            "--@ persist",
            "SELECT t.customer, t.n, t.total, v.n AS visits, t.total * {factor} AS scaled\n"
            "FROM totals t LEFT JOIN visited v ON t.customer = v.customer",
        ),
        Table(
            "by_kind",
            _INCREMENTAL,
            "SELECT kind, sum(total) AS total, max(n) AS most FROM daily GROUP BY kind",
        ),
    ),
    places={
        "c": ("customer", "cust", "c_1"),
        "condition": ("amount > 2", "amount > 2 AND kind = 'a'", "kind <> 'b'", "id % 3 <> 1"),
        "factor": ("2", "3", "5"),
        "least": ("1", "0", "3"),
    },
)

BOARD = Texts(
    raws={
        "report": "customer BIGINT, n BIGINT, total BIGINT, visits BIGINT, scaled BIGINT",
        "stamp": "g BIGINT, i BIGINT",
        "targets": "customer BIGINT, target BIGINT",
    },
    external="",
    tables=(
        Table("seen", _WHOLE, "SELECT g, i FROM stamp"),
        Table(
            "best",
            _INCREMENTAL,
            "WITH r AS (SELECT customer AS {c}, total FROM report)\n"
            "SELECT {c} AS customer, total FROM r WHERE total > {least}",
        ),
        Table(
            "board",
            _INCREMENTAL,
            "SELECT r.customer, r.total, t.target, r.total - t.target * {factor} AS excess\n"
            "FROM report r JOIN targets t ON r.customer = t.customer",
        ),
        Table(
            "summary",
            "--@ persist",
            "SELECT count(*) AS n, sum(excess) AS excess, max(total) AS most FROM board",
        ),
    ),
    places={
        "c": ("customer", "who"),
        "least": ("5", "0", "20"),
        "factor": ("1", "2", "4"),
    },
)


def write(path: Path, text: str) -> None:
    """Replace a file, whole from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
