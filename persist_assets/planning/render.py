"""Rendering of a query over existing tables as one SQL statement. Pure.

Sources in the manifest are read from their tables; others are inlined as common table expressions,
under names that occur in none of the texts. The user's own text is never rewritten, except that
names of other sources become names of those tables and expressions, and parameters become the
values that a build knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.partitions import bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Bound, Query, SourceID
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to run.

    Attributes
    ----------
    sql
        Complete, Spark SQL.
    views
        The views it reads, by the SourceIDs they represent, in dependency order.
    inlined
        The SourceIDs whose queries are part of it, in dependency order.
    """

    sql: str
    views: Mapping[SourceID, str]
    inlined: tuple[SourceID, ...]


def substitute(
    project: Project,
    query: Query,
    bindings: Sequence[SourceID],
    views: Mapping[SourceID, str],
    since: str | None = None,
) -> Statement:
    """Return a query as one statement over views and inlined sources.

    Parameters
    ----------
    bindings
        The sources that the query's references mean.
    views
        For raw tables, and for sources that are read from their tables, the view of their rows.
    since
        SQL of the time from which rows of the query itself are wanted; None: all rows.
    """
    sources = project.reach(bindings, lambda s: s.source_id in views)
    inlined = [s for s in sources if s.source_id not in views]
    texts = [query.text, *(s.query.text for s in inlined if s.query)]
    names = {s.source_id: views.get(s.source_id) or _fresh(s.key, texts) for s in sources}
    expressions = [_expression(s, names) for s in inlined]
    text = splice(query, [names[b] for b in bindings], since)
    if query.column_names:
        columns = ", ".join(quote(c) for c in query.column_names)
        text = f"SELECT * FROM (\n{text}\n) AS renamed({columns})"
    if expressions:
        defined = ",\n".join(expressions)
        text = f"WITH {defined}\n({text})"
    return Statement(
        text,
        {s.source_id: views[s.source_id] for s in sources if s.source_id in views},
        tuple(s.source_id for s in inlined),
    )


def _expression(source: Source, names: Mapping[SourceID, str]) -> str:
    assert source.query is not None
    body = splice(source.query, [names[b] for b in source.bindings])
    if source.annotation.merge is not None or source.annotation.partition is not None:
        named = ", ".join(quote(c.name) for c in source.columns)
        body = stored_rows(source, f"SELECT * FROM (\n{body}\n) AS named({named})", source.columns)
    # The columns' names are ours, not those that Spark takes from the spelling of the query.
    columns = f"({', '.join(quote(c.name) for c in source.columns)})" if source.columns else ""
    return f"{quote(names[source.source_id])}{columns} AS (\n{body}\n)"


LAST, SHARING = "persist.last", "persist.sharing"
"""Names of columns that no table has."""


def stored_rows(source: Source, rows: str, columns: Sequence[Column]) -> str:
    """Return a query for the rows that the table of a source keeps of those of its query.

    These are one row per key, or the rows within the bounds of its partitions.

    Parameters
    ----------
    rows
        A query for all rows.
    columns
        The columns of `rows`.
    """
    names = [c.name for c in columns]
    partition = source.annotation.partition
    if partition is not None:
        types = {c.name.lower(): c.type or "" for c in columns}
        condition = bounds(partition, [types[d.column.lower()] for d in partition.dimensions])
        return f"SELECT {', '.join(map(quote, names))} FROM (\n{rows}\n) WHERE {condition}"
    merge, by = source.annotation.merge, source.annotation.time_column
    assert merge is not None
    named = ", ".join(map(quote, names))
    key = ", ".join(map(quote, merge.key))
    last = quote(by) if by else "true"
    if merge.on_tie == "greatest":
        chosen = f"max(struct({last} AS {quote(LAST)}, {named}))"
        return (
            f"SELECT {', '.join(f'last.{quote(name)}' for name in names)} FROM"
            f" (SELECT {chosen} AS last FROM (\n{rows}\n) GROUP BY {key})"
        )
    cause = f"{source.key}: different rows have the same merge_key"
    text = f"{cause} and the same {by}" if by else cause
    message = text.replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"SELECT {named} FROM (SELECT *, count(*) OVER (PARTITION BY {key}) AS {quote(SHARING)}"
        f" FROM (SELECT DISTINCT {named} FROM (SELECT *, max({last}) OVER (PARTITION BY {key})"
        f" AS {quote(LAST)} FROM (\n{rows}\n)) WHERE {last} <=> {quote(LAST)}))"
        f" WHERE CASE WHEN {quote(SHARING)} = 1 THEN true ELSE raise_error('{message}') END"
    )


def _fresh(name: str, texts: Iterable[str]) -> str:
    """Return a name that occurs in no text, so that none of them redefines it."""
    while any(name.lower() in text.lower() for text in texts):
        name += "'"
    return name


def splice(query: Query, names: Sequence[str], since: str | None = None) -> str:
    """Return a query's text with its references replaced, in order, by `names`.

    Parameters
    ----------
    since
        The watermark from which rows are wanted, inclusive; None: all rows.
    """
    text = query.text
    for start, end, new in reversed(splices(query, names, since)):
        text = text[:start] + new + text[end:]
    return text


def splices(
    query: Query, names: Sequence[str], since: str | None = None
) -> list[tuple[int, int, str]]:
    """Return the edits that `splice` makes in a query's text, in order: start, end, new text."""
    edits: list[tuple[int, int, str]] = []
    for reference, name in zip(query.references, names, strict=True):
        if (at := reference.table_at) is not None:
            edits.append((at, at + len("TABLE"), "SELECT * FROM"))
        if (at := reference.alias_at) is not None:
            edits.append((at, at, f" AS {quote(reference.parts[-1])}"))
        edits.append((reference.start, reference.end, quote(name)))
    text = query.text
    for bound in query.bounds:
        ahead = "" if text[bound.start - 1].isspace() else " "
        behind = "" if text[bound.end : bound.end + 1].isspace() else " "
        edits.append((bound.start, bound.end, f"{ahead}{_condition(bound, since)}{behind}"))
    return sorted(edits)


def _condition(bound: Bound, since: str | None) -> str:
    """Return the operator and bound that replace a parameter in a condition.

    If all rows are wanted, only NULL fails the condition. Windows of partitions are found from the
    growth of their rows instead.
    """
    if since is None or bound.name != "watermark":
        return "NOT NULL <=>" if bound.leads else "IS NOT NULL"
    return f"{since} <=" if bound.leads else f">= {since}"
