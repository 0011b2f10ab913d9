"""Queries and expressions of other dialects, translated for Spark."""

from __future__ import annotations

from persist_assets.operations.importing.translation import Translated, translate


def translated(query: str, dialect: str) -> Translated:
    """Return a query whose tables are all outside of the project."""
    return translate(query, dialect, lambda _: None)


def flat(sql: str) -> str:
    """Return a statement in one line, without blanks beside parentheses."""
    return " ".join(sql.split()).replace("( ", "(").replace(" )", ")")


def expression(text: str, dialect: str) -> str:
    """Return the translation of an expression."""
    return flat(translated(f"SELECT {text} AS y FROM t", dialect).sql)[len("SELECT ") : -12]


def checks(query: str, dialect: str) -> list[str]:
    """Return the notes that ask to check something."""
    return [note for note in translated(query, dialect).notes if note.startswith("check")]
