"""Checks of rows, and their results."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.core.errors import Location
    from persist_assets.core.model.columns import ColumnRef
    from persist_assets.core.model.queries import Function


Scalar = str | int | float | bool

CheckKind = Literal[
    "columns",
    "not_null",
    "unique",
    "accepted_values",
    "range",
    "relationship",
    "row_count",
    "freshness",
    "expr",
    "function",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion about the rows of a source.

    Attributes
    ----------
    kind
        Which assertion.
    name
        Unique within the source, letters, digits and underscores.
    columns
        For ``unique`` the key's columns, for ``columns`` all promised ones, otherwise the one
        column that is checked.
    values
        For ``accepted_values`` the values, for ``columns`` the types (empty: any type), for
        ``relationship`` and ``function`` the name of the other, as written. NULL always passes.
    expression
        For ``expr``: a Spark SQL condition on one row. As in SQL's CHECK, NULL passes.
    least, most
        For ``range`` and ``row_count``: the inclusive bounds.
    age_s
        For ``freshness``: the maximum age of the greatest value, in seconds.
    since
        For ``freshness``, when it runs: the instant before which the greatest value is too old.
    others
        For ``columns``: further columns are allowed.
    against
        For ``relationship``: the column with the allowed values.
    function, wording
        For ``function``: the function to call, and a digest of all its code.
    fickle
        Its result may change for the same rows: it reads the clock or is nondeterministic.
    blocking
        A failure prevents the rows from being published.
    per_partition
        Each partition is checked separately. Never set if the result would be the same without.
    view
        The key of the view whose rows it is about, for a check that runs when a source reads them.
    keep_failures
        How many of the rows that fail are kept in a table, at most; 0: none.
    location
        The location of the annotation.
    """

    kind: CheckKind
    name: str
    columns: tuple[str, ...] = ()
    values: tuple[Scalar, ...] = ()
    expression: str | None = None
    least: Scalar | None = None
    most: Scalar | None = None
    age_s: int = 0
    since: datetime | None = None
    others: bool = False
    against: ColumnRef | None = None
    function: Function | None = None
    wording: str = ""
    fickle: bool = False
    blocking: bool = True
    per_partition: bool = False
    view: str | None = None
    keep_failures: int = 0
    location: Location | None = field(default=None, compare=False)

    @property
    def on_rows(self) -> bool:
        """Whether it is a check of single rows."""
        return self.kind in ("not_null", "accepted_values", "range", "expr")

    @property
    def in_pass(self) -> bool:
        """Whether an aggregate decides it, which is computed while rows are written."""
        return self.on_rows or self.kind in ("row_count", "freshness")

    @property
    def alone(self) -> bool:
        """Whether the rows alone decide it, without other tables or code of the project."""
        return self.kind not in ("relationship", "function") and not self.per_partition

    @property
    def definition(self) -> str:
        """A description of what is checked; equal checks have equal descriptions."""
        where = f" in {self.view}" if self.view else ""
        return f"{self._asserted}{where}{' in each partition' if self.per_partition else ''}"

    @property
    def _asserted(self) -> str:
        match self.kind:
            case "expr":
                return f"{self.expression}"
            case "accepted_values":
                return f"{self.columns[0]} in {list(self.values)}"
            case "columns":
                named = zip(self.columns, self.values, strict=True)
                target = ", ".join(f"{name} {kind}".strip() for name, kind in named)
                return f"columns {target}{', and others' if self.others else ''}"
            case "range":
                return f"{self.columns[0]} {_between(self.least, self.most)}"
            case "row_count":
                return f"row count {_between(self.least, self.most)}"
            case "freshness":
                return f"greatest {self.columns[0]} at most {in_units(self.age_s)} old"
            case "relationship":
                other = self.against
                target = f"{other.source_id}.{other.column}" if other else f"{self.values[0]}"
                return f"{self.columns[0]} in {target}"
            case "function":
                return f"function {self.values[0]} ({self.wording[:12]})"
            case _:
                return f"{', '.join(self.columns)} {self.kind.replace('_', ' ')}"


def _between(least: Scalar | None, most: Scalar | None) -> str:
    if least is None or most is None:
        return f"at most {_bound(most)}" if least is None else f"at least {_bound(least)}"
    return f"between {_bound(least)} and {_bound(most)}"


def _bound(value: Scalar | None) -> str:
    """Return a bound in words; a text that could be taken for a number is in quotes."""
    if isinstance(value, str):
        with suppress(ValueError):
            float(value)
            return repr(value)
    return str(value)


def in_units(seconds: int) -> str:
    """Return a duration in the largest unit of which it is a whole number.

    Examples
    --------
    >>> in_units(172_800), in_units(5_400)
    ('2 days', '90 minutes')
    """
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


@dataclass(frozen=True, slots=True)
class FailedPartition:
    """A partition in which a check fails.

    Attributes
    ----------
    failed_rows
        The number of failing rows; 0 if the check is not about single rows.
    found
        A description of the actual state, if the number of rows is not enough.
    """

    key: str
    failed_rows: int = 0
    found: str | None = None


_SHOWN = 3
"""The maximum number of failing partitions that a description names."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of one build.

    Attributes
    ----------
    failed_rows
        The number of failing rows; 0 if the check is not about single rows.
    definition
        The description of the check (`Check.definition`).
    found
        A description of the actual state, if the number of rows is not enough.
    sample
        Some failing rows, as JSON.
    basis
        What the result depends on besides the rows: for a relationship, the version of the other
        source; for freshness, the greatest value in microseconds since 1970 (by partition, as JSON,
        if each partition is checked separately).
    partitions
        For a partitioned source, the failing partitions in order; empty if they are unknown.
    kept_in, kept_rows
        The location of the table with the rows that fail, and their number; None: they are not
        kept.
    """

    name: str
    passed: bool
    blocking: bool
    failed_rows: int
    definition: str
    found: str | None = None
    sample: tuple[str, ...] = ()
    basis: str | None = None
    partitions: tuple[FailedPartition, ...] = ()
    kept_in: str | None = None
    kept_rows: int = 0

    @property
    def in_words(self) -> str:
        """A description of the failure, with the failing partitions.

        Examples
        --------
        >>> places = (FailedPartition("2024-01-03", 2), FailedPartition("2024-01-05", 1))
        >>> CheckResult("not_null_a", False, True, 3, "a not null", partitions=places).in_words
        '3 rows: 2 in 2024-01-03, 1 in 2024-01-05'
        """
        whole = self.found or f"{self.failed_rows} rows"
        if not self.partitions:
            return whole
        if len(self.partitions) == 1 and self.partitions[0].found is None:
            return f"{whole} in {self.partitions[0].key}"
        places = [f"{p.found or p.failed_rows} in {p.key}" for p in self.partitions[:_SHOWN]]
        more = len(self.partitions) - _SHOWN
        rest = f" and {more} more partition{'s' * (more != 1)}" if more > 0 else ""
        return f"{whole}: " * bool(self.failed_rows) + ", ".join(places) + rest
