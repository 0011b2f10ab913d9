"""Programs that bring a table up to date from the changes of the tables that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
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
        ``now`` for a table that has not changed. Of one that has: its rows ``old`` and ``new``, and
        its ``delta``, the changed rows as far as the query reads their columns, in columns
        ``c<number>``, and `ROW_WEIGHT`.
    """
    return f"{version}:{source_id}"


def probe_name(version: str, digest: str) -> str:
    """Return the name by which statements read the rows of a table that have some keys.

    Parameters
    ----------
    version
        ``old`` or ``new``.
    """
    return f"{version} probe:{digest}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of a table: those with some keys, in columns ``c<number>``.

    Attributes
    ----------
    columns
        The number and the name of each column that has a key.
    keys
        The relation with the keys, in columns ``c0``, ….
    origins
        If there is one column of keys: the columns of changed tables, by their numbers, whose
        values in changed rows the keys are; empty: they have other values.
    """

    table: SourceID
    columns: tuple[tuple[int, str], ...]
    keys: str
    origins: tuple[tuple[SourceID, int], ...] = ()


def state_name(version: str, number: int) -> str:
    """Return the name by which statements read a state.

    Parameters
    ----------
    version
        ``former``: before the change, ``state``: now.
    """
    return f"{version}:{number}"


TABLE = "former:rows"
"""The name by which statements read the rows of the maintained table before the build.

Their columns are ``c0``, ``c1``, …. Held relations do not read it, because sources share them.
"""

FEW_LEFT = "too few of its first rows are left"
"""The message of a statement that cannot tell which rows of its query come first after a change."""


class NoRule(Exception):
    """The change of a query cannot be computed.

    Attributes
    ----------
    reason
        The obstacle, as half a sentence after "because": ``of a LIMIT``.
    part
        The part of the query that has no rule, as the algebra knows it.
    location
        Its place in a file, if it is known.
    """

    def __init__(
        self, reason: str, location: Location | None = None, part: object | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.location, self.part = reason, location, part

    @property
    def why(self) -> str:
        """Why a table is not maintained: one clause that names the place."""
        place = f" ({self.location.path}:{self.location.line})" if self.location else ""
        is_clause = self.reason.startswith("it ")
        return f"{'' if is_clause else 'there is no rule because '}{self.reason}{place}"


@dataclass(frozen=True, slots=True)
class NodeRule:
    """The rule by which the change of one node of a query is computed.

    Attributes
    ----------
    depth
        The number of nodes around it.
    node
        The node, in short SQL.
    rule
        Its rule; empty if it has none.
    location
        Its place in a file, if it is known.
    obstacle, hint
        Why it has no rule, half a sentence as in `NoRule`, and what to change to give it one.
    when
        The tables for whose changes it has no rule; empty: for any.
    merging
        For an aggregate: what is merged with the change, or why it cannot be merged.
    is_merged
        Whether a table that keeps its state merges it.
    """

    depth: int
    node: str
    rule: str
    location: Location | None = None
    obstacle: str | None = None
    hint: str | None = None
    when: tuple[SourceID, ...] = ()
    merging: str = ""
    is_merged: bool = False


Columns = Mapping["SourceID", tuple[tuple[int, str], ...]]
"""By table, the numbers and names of some of its columns."""


@dataclass(frozen=True, slots=True)
class Program:
    """Statements that give the change of a query's table.

    Attributes
    ----------
    held
        Relations to compute first, by name, each after those that it reads.
    rows
        The changed rows: columns ``c0``, ``c1``, …, and their `WEIGHT`. With `keys`, all rows that
        the table has with these keys, without a weight. Empty if a function computes them. It may
        read the rows of the table; see `TABLE`.
    columns
        By table, the numbers and names of the columns that the query uses.
    probes
        The probes that statements read, by digest.
    keys
        The relation with the touched keys, in columns ``c0``, ``c1``, …; None: the rows that went
        are removed one by one.
    key_columns
        The numbers of the query's columns whose values the keys are; of a function, the columns of
        ``by`` are.
    only_adds
        No row is removed.
    changed_values
        Held relations. Each has a row if the value of a subquery that all rows share has changed;
        the statements then give wrong rows.
    """

    held: Mapping[str, str]
    rows: str
    columns: Columns
    probes: Mapping[str, Probe]
    keys: str | None = None
    key_columns: tuple[int, ...] = ()
    only_adds: bool = False
    changed_values: tuple[str, ...] = ()

    @property
    def method(self) -> Literal["append", "keys"]:
        """Return by which method a table is maintained with it."""
        return "append" if self.only_adds else "keys"

    @property
    def reads_table(self) -> bool:
        """Whether it reads the rows that the table has before."""
        return f"`{TABLE}`" in self.rows

    @property
    def statements(self) -> tuple[str, ...]:
        """All statements, as SQL."""
        return (self.rows, *self.held.values())


@dataclass(frozen=True, slots=True)
class State:
    """Partial results of an aggregate, which a table keeps to be maintained.

    Attributes
    ----------
    initial
        The statement that computes all of it: columns ``k0``, …, ``n``, ``p0``, ….
    n_keys
        The number of key columns. Without keys it has one row.
    changed
        The statement of its new rows, for the touched keys; those with ``n = 0`` go. None: it does
        not change.
    summed
        A dearer statement of the same rows, for sums of which the other one would round.
    """

    initial: str
    n_keys: int
    changed: str | None
    summed: str = ""


@dataclass(frozen=True, slots=True)
class Merging:
    """The maintenance of a query whose aggregates are merged with their change.

    Attributes
    ----------
    rows
        All rows of the query, from the states: columns ``c0``, ``c1``, ….
    held, columns, probes, changed_values
        As for a `Program`.
    key_columns
        The numbers of the query's columns that show the keys of its only state, if rows of other
        keys do not change; otherwise empty.
    """

    states: tuple[State, ...]
    rows: str
    held: Mapping[str, str]
    columns: Columns
    probes: Mapping[str, Probe]
    key_columns: tuple[int, ...] = ()
    changed_values: tuple[str, ...] = ()

    @property
    def method(self) -> Literal["merge"]:
        """Return by which method a table is maintained with it."""
        return "merge"

    @property
    def statements(self) -> tuple[str, ...]:
        """All statements that are run for a change, as SQL."""
        changed = (state.changed for state in self.states if state.changed)
        return (self.rows, *self.held.values(), *changed)

    @property
    def definitions(self) -> tuple[str, ...]:
        """Digests of the statements that compute the states."""
        return tuple(sha256(s.initial.encode()).hexdigest() for s in self.states)
