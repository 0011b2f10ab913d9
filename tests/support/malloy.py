"""What tests tell Malloy's compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from conftest import need

from persist_assets.compiler.malloy.bridge import PROGRAM, Connection, Refused, Session, find_node
from persist_assets.core.errors import SettingsError

Columns = Sequence[tuple[str, str]]
SPARK = {"spark": Connection("digest")}


@dataclass
class Told:
    """Files and tables that exist only here; `selects` is what every query has for columns."""

    files: Mapping[str, str]
    tables: Mapping[str, Columns] = field(default_factory=dict[str, Columns])
    selects: Columns = ()
    asked: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])

    def file(self, path: str) -> str:
        self.asked.append(("file", path))
        if path not in self.files:
            raise Refused("there is no such file")
        return self.files[path]

    def table(self, connection: str, table: str) -> Columns:
        self.asked.append(("table", connection, table))
        if table not in self.tables:
            raise Refused(f"unknown source `{table}`")
        return self.tables[table]

    def select(self, connection: str, sql: str) -> Columns:
        self.asked.append(("select", connection, sql))
        return self.selects


@cache
def there() -> str | None:
    try:
        return str(find_node()) if PROGRAM.exists() else None
    except SettingsError:
        return None


def compiler() -> None:
    """Skip the test where there is no compiler."""
    need(there(), "bundle Malloy's compiler: make bridge")


def malloy(answers: Told, connections: Mapping[str, Connection] = SPARK, **more: object) -> Session:
    """Return a session; the test is skipped where there is no compiler."""
    compiler()
    return Session(answers, connections, **more)  # pyright: ignore[reportArgumentType]


def chains(n: int, depth: int, how: str) -> dict[str, str]:
    """Return files of sources in chains: each is persisted and reads the one below it.

    The order of their names is not the one in which they are read.

    Parameters
    ----------
    n, depth
        How many Malloy files there are, and how many of them are in a chain.
    how
        They read each other by ``import`` or by ``spark.table``.
    """
    files = {"orders.sql": "CREATE TABLE orders (id INT, x DOUBLE) USING parquet LOCATION 'o';"}
    for at in range(n):
        chain, level = divmod(at, depth)

        def name(level: int, chain: int = chain) -> str:
            return f"s{level * 7919 % 1000:03}_{chain}"

        text, read = "##! experimental.persistence\n", "spark.table('orders')"
        if level and how == "import":
            text, read = f'{text}import "{name(level - 1)}.malloy"\n', name(level - 1)
        elif level:
            read = f"spark.table('{name(level - 1)}')"
        text += f"#@ persist\nsource: {name(level)} is {read} -> {{ select: id, x is x + 1 }}\n"
        files[f"{name(level)}.malloy"] = text
    return files
