"""Added and removed rows as Spark frames: counted, measured, and applied to other rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import persist_assets.analysis.predicates as p
from persist_assets.core.dialect import quote
from persist_assets.core.time_values import EXACT, from_spark, spelled
from persist_assets.external.connectors.protocol import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.columns import Column
    from persist_assets.core.time_values import Value

NET, READ = "_persist_net", "_persist_read"
"""The columns with a row's net count (added minus removed), and with its number of changes."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Measures of the rows added and removed between two versions.

    Attributes
    ----------
    n_added, n_removed
        The number of rows added, and of rows removed.
    removed_spans
        The type of each column, with its least and greatest value among the removed rows. Columns
        that are NULL in one of these rows are left out.
    matched_predicates
        The needed predicates that some of these rows match.
    """

    n_added: int = 0
    n_removed: int = 0
    removed_spans: Mapping[str, tuple[str, tuple[Value, Value]]] = field(
        default_factory=dict[str, "tuple[str, tuple[Value, Value]]"]
    )
    matched_predicates: Collection[str] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether no row was added or removed."""
        return not self.n_added and not self.n_removed


class Measures:
    """Aggregations that measure rows with a column `NET`.

    Parameters
    ----------
    columns
        The columns whose least and greatest values are measured where statistics are exact.
    terms
        The needed predicates, by text.
    """

    def __init__(self, columns: Iterable[Column], terms: Mapping[str, Term]) -> None:
        kinds = ((c.name, (c.type or "").lower()) for c in columns)
        self._ranged = [(name, kind) for name, kind in kinds if kind in EXACT]
        self._terms = terms

    def expressions(self) -> list[str]:
        """Return the aggregations to compute, in SQL."""
        texts = [f"sum(greatest({NET}, 0))", f"sum(greatest(-{NET}, 0))"]
        for name, kind in self._ranged:
            removed = f"IF({NET} < 0, {quote(name)}, NULL)"
            texts += [
                spelled(f"min({removed})", kind),
                spelled(f"max({removed})", kind),
                f"count_if({NET} < 0 AND {quote(name)} IS NULL)",
            ]
        conditions = map(p.as_text, self._terms.values())
        return [*texts, *(f"max({NET} <> 0 AND ({text}) IS TRUE)" for text in conditions)]

    def parse(self, values: Sequence[Any]) -> RowChanges:
        """Return the changes that the values of `expressions` describe."""
        n_added, n_removed, *others = values
        removed_spans: dict[str, tuple[str, tuple[Value, Value]]] = {}
        for n, (name, kind) in enumerate(self._ranged):
            least, greatest, nulls = others[3 * n : 3 * n + 3]
            if least is None or greatest is None or nulls:
                continue
            low, high = from_spark(least, kind), from_spark(greatest, kind)
            if low is not None and high is not None:
                removed_spans[name] = kind, (low, high)
        matches = zip(self._terms, others[3 * len(self._ranged) :], strict=True)
        matched_predicates = {text for text, is_matched in matches if is_matched}
        return RowChanges(n_added or 0, n_removed or 0, removed_spans, matched_predicates)


def grouped(rows: DataFrame) -> DataFrame:
    """Return each distinct row once, with the sum of `NET`, and with `READ`.

    Zeros with different signs are different rows.
    """
    from pyspark.sql import functions as F

    return _grouped(rows, [NET], {NET: F.sum(NET), READ: F.count(F.lit(1))})


def settled(changes: DataFrame, held: DataFrame) -> DataFrame:
    """Return how the numbers of held rows change if versions are applied one after another.

    A version that removes more equal rows than are held removes all of them: the rest were there
    before the start. So what a later version adds is held, whatever was removed before.

    Parameters
    ----------
    changes
        The result of `grouped`, for rows with a column `VERSION`.
    held
        All held rows that may equal a removed one.
    """
    from pyspark.sql import functions as F

    one, none = F.lit(1).cast("bigint"), F.lit(None).cast("bigint")
    local = held.withColumns({VERSION: none, NET: one, READ: F.lit(0).cast("bigint")})
    step = F.when(F.col(VERSION).isNotNull(), F.struct(VERSION, NET))
    n_held = F.coalesce(F.sum(F.when(F.col(VERSION).isNull(), F.col(NET))), F.lit(0))
    steps, before = "_persist_steps", "_persist_before"
    groups = _grouped(
        changes.unionByName(local),
        [VERSION, NET, READ],
        {steps: F.collect_list(step), before: n_held, READ: F.sum(READ)},
    ).where(F.size(steps) > 0)
    after = F.aggregate(
        F.array_sort(steps),
        F.col(before),
        lambda n, change: F.greatest(n + change[NET], F.lit(0).cast("bigint")),
    )
    return groups.withColumn(NET, after - F.col(before)).drop(steps, before)


def _grouped(
    rows: DataFrame, measured: Collection[str], aggregates: Mapping[str, SparkColumn]
) -> DataFrame:
    """Return each distinct row once, with aggregates.

    Parameters
    ----------
    measured
        The columns that do not make rows distinct.
    """
    from pyspark.sql import functions as F

    kinds = {name: kind for name, kind in rows.dtypes if name not in measured}
    keys, values = list[Any](), list[Any]()
    for n, (name, kind) in enumerate(kinds.items()):
        column = F.col(quote(name))
        if "float" not in kind and "double" not in kind:
            keys.append(column)
            continue
        # Spark groups both zeros as one; as texts they differ.
        sign = column.cast("string")
        if kind in ("float", "double"):
            sign = F.when(column == 0, sign)
        keys += [column.alias(f"_persist_k{n}"), sign.alias(f"_persist_s{n}")]
        values.append(F.first(column).alias(name))
    # Equal rows are rarely in one partition, so counting before the exchange saves nothing.
    if kinds:
        rows = rows.repartition(*map(quote, kinds))
    values += [column.alias(name) for name, column in aggregates.items()]
    return rows.groupBy(*keys).agg(*values).select(*map(quote, kinds), *aggregates)


def changed(groups: DataFrame) -> DataFrame:
    """Return the rows of `grouped` whose number changed."""
    return groups.where(f"{NET} <> 0").drop(READ)


def added(net: DataFrame) -> DataFrame:
    """Return the added rows, each as often as it was added."""
    names = [quote(c) for c in net.columns if c != NET]
    copies = f"explode(sequence(1, {NET})) AS {NET}"
    return net.where(f"{NET} > 0").selectExpr(*names, copies).select(*names)


def without(rows: DataFrame, removed: DataFrame) -> DataFrame:
    """Return `rows` without `removed`: each row of it removes as many equal rows as it counts."""
    from pyspark.sql import functions as F

    one = F.lit(1).cast("bigint")
    return added(changed(grouped(rows.withColumn(NET, one).unionByName(removed))))


def are_equal(rows: DataFrame, others: DataFrame, names: Sequence[str]) -> SparkColumn:
    """Return the condition that some columns are equal; NULL equals NULL."""
    from pyspark.sql import functions as F

    tests = [rows[quote(c)].eqNullSafe(others[quote(c)]) for c in names]
    return reduce(lambda one, other: one & other, tests or [F.lit(True)])
