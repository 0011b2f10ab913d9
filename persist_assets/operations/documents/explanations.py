"""The maintenance of sources: rules of their queries, ways to follow each table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from persist_assets.core.model.plans import Maintenance
from persist_assets.operations.documents.base import Document

if TYPE_CHECKING:
    from persist_assets.core.model.deltas import NodeRule
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.explaining import Explanation, TableWays, Way


class NodeDocument(Document):
    """The rule of one node of a query, or its obstacle."""

    depth: int
    node: str
    rule: str | None
    merged: str | None
    not_merged: str | None
    obstacle: str | None
    when: list[str]
    hint: str | None
    path: str | None
    line: int | None
    column: int | None

    @classmethod
    def of(cls, rule: NodeRule) -> Self:
        """Return the document of a node."""
        place = rule.location
        return cls(
            depth=rule.depth,
            node=rule.node,
            rule=rule.rule or None,
            merged=rule.merging if rule.is_merged else None,
            not_merged=rule.merging if rule.merging and not rule.is_merged else None,
            obstacle=rule.obstacle,
            when=[*rule.when],
            hint=rule.hint,
            path=place.path if place else None,
            line=place.line if place else None,
            column=place.column if place else None,
        )


class WayDocument(Document):
    """The way in which a build follows a change of one table."""

    maintenance: Maintenance
    keys: list[str]
    with_state: Maintenance | None
    why: str | None
    hint: str | None
    path: str | None
    line: int | None

    @classmethod
    def of(cls, way: Way) -> Self:
        """Return the document of a way."""
        return cls(
            maintenance=way.method,
            keys=[*way.keys],
            with_state="merge" if way.merges else None,
            why=way.why or None,
            hint=way.hint,
            path=way.location.path if way.location else None,
            line=way.location.line if way.location else None,
        )


class TableDocument(Document):
    """The ways in which a build follows the changes of one table that a source reads."""

    source_id: str
    rows_added: WayDocument
    rows_changed: WayDocument

    @classmethod
    def of(cls, ways: TableWays) -> Self:
        """Return the document of a table."""
        return cls(
            source_id=ways.table,
            rows_added=WayDocument.of(ways.added),
            rows_changed=WayDocument.of(ways.changed),
        )


class RulesDocument(Document):
    """The maintenance of the table of a source."""

    refresh: str
    policy: str
    never: str | None
    never_hint: str | None
    nodes: list[NodeDocument]
    tables: list[TableDocument]

    @classmethod
    def of(cls, source: Source, explanation: Explanation) -> Self:
        """Return the document of an explanation."""
        return cls(
            refresh=source.annotation.refresh_value,
            policy=explanation.policy,
            never=explanation.never,
            never_hint=explanation.hint,
            nodes=[NodeDocument.of(node) for node in explanation.nodes],
            tables=[TableDocument.of(table) for table in explanation.tables],
        )
