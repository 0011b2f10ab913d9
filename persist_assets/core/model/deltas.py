"""Programs that bring a table up to date from the changes of the tables that it is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.queries import SourceID

ROW_WEIGHT = "_persist_weight"
"""The column with the weight of a row in the ``delta`` of a table."""

WEIGHT = "w"
"""The column with the weight of a changed row: how many such rows came, or went if negative."""


def relation_name(version: str, source_id: SourceID) -> str:
    """Return the name by which the statements of a program read a table.

    Parameters
    ----------
    version
        ``now`` for a table that has not changed. Of one that has: its rows ``old`` and ``new``; the
        rows of files that it ``kept``, ``lost`` and ``gained``; and its ``delta``, with a column
        `ROW_WEIGHT`.
    """
    return f"{version}:{source_id}"


class NoRule(Exception):
    """The change of a query cannot be computed.

    Attributes
    ----------
    reason
        The obstacle, as half a sentence after "because": ``of a LIMIT``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Program:
    """Statements that give the change of a query's table.

    Attributes
    ----------
    held
        Relations to compute first, by name, each after those that it reads.
    rows
        The changed rows: columns ``c0``, ``c1``, …, and their `WEIGHT`. With `keys`, all rows that
        the table has with these keys, without a weight.
    columns
        By table, the columns that the query uses.
    keys
        The relation with the touched keys, in columns ``c0``, ``c1``, …; None: the rows that went
        are removed one by one.
    key_columns
        The numbers of the query's columns whose values the keys are.
    only_adds
        No row is removed.
    """

    held: Mapping[str, str]
    rows: str
    columns: Mapping[SourceID, tuple[str, ...]]
    keys: str | None = None
    key_columns: tuple[int, ...] = ()
    only_adds: bool = False
