"""Compile each SQL statement for SQLite once in a process of tests, and not once for each ledger.

A process of a user opens one ledger. A process of tests opens thousands, and SQLAlchemy compiles
the statements of each engine anew.
"""

from __future__ import annotations

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

COMPILED = LRUCache[tuple, object](2000)


class SharedDialect(SQLiteDialect_pysqlite):
    """SQLAlchemy's dialect for SQLite, whose engines share their compiled statements."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(other) is SharedDialect

    def __hash__(self) -> int:
        return hash(SharedDialect)

    @classmethod
    def engine_created(cls, engine: object) -> None:
        """Let a new engine use the statements of all others."""
        engine._compiled_cache = COMPILED  # pyright: ignore[reportAttributeAccessIssue]


def share_statements() -> None:
    """Let all engines for SQLite that this process makes from now on share their statements."""
    registry.register("sqlite", __name__, SharedDialect.__name__)
