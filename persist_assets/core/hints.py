"""Reasons why tables are not maintained by the changes of what they read → what to change.

The invariant: every reason has a hint, or is one without a remedy.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_APART = "persist a part of the query as a source of its own, and read its table"
_HINTS: Mapping[str, str] = {
    r"of (sum|avg)\(\), whose last digits": (
        "select the columns that its query groups or partitions by, or cast its argument to DECIMAL"
    ),
    r"of .*, whose value may depend": (
        "select the columns that its query groups or partitions by, so that the rows with touched"
        " values of these can be computed again"
    ),
    r"of values that depend": "select the columns that the query groups or partitions by",
    r"of a LIMIT by values": "select all columns of ORDER BY, too",
    r"of a LIMIT": "leave the LIMIT to the readers of the table, or rank the rows within a key",
    r"of a NOT IN": "write NOT EXISTS (SELECT … WHERE …)",
    r"of a subquery in the value before IN": "write EXISTS (SELECT … WHERE …)",
    r"of a column computed by IN": (
        "compute it by CASE WHEN … IN (SELECT …) THEN TRUE ELSE FALSE END, or persist its source"
    ),
    r"of IN or NOT IN": "write EXISTS or NOT EXISTS (SELECT … WHERE …)",
    r"of a subquery without an equality": (
        "compare a column of the subquery with one of the outer query by ="
    ),
    r"of a subquery with conditions": (
        "put all conditions of the subquery on the outer query into one WHERE"
    ),
    r"of a subquery that reads changed rows": (
        "find all rows of the subquery by columns of the outer query, or persist a part of it as a"
        " source of its own"
    ),
    r"of a subquery of the type": "select one of its fields or values in the subquery",
    r"of a subquery in ON": "join with the rows of the subquery instead",
    r"of an aggregate over all rows": (
        "group by a column; counts, and sums and averages of decimals or integers, can also be"
        " merged without one"
    ),
    r"of an outer join without": "compare columns of both sides with = in its ON",
    r"of a window without": (
        "give each window of this SELECT a PARTITION BY, with at least one common column"
    ),
    r"of windows over rows that overlap": "compute these windows in one SELECT over the same rows",
    r"of grouping sets of a key": "cast the key to a type: CAST(… AS …)",
    r"of WITH RECURSIVE": (
        "persist the recursive query as a source of its own: then its readers can be maintained"
    ),
    r"of a LATERAL query": (
        "write a join with grouped rows, or persist this part as a source of its own"
    ),
    r"of collations": "compare lower(…) or upper(…) of texts instead",
    r"of variant_explode": "persist the rows of variant_explode as a source of its own",
    r"of PIVOT": "write one aggregate with FILTER (WHERE …) for each value",
    r"of UNPIVOT": "write LATERAL VIEW stack(…), with a name and a column for each row",
    r"of the function": "use functions of Spark",
    r"of (sum|avg)\(\) of .*, which cannot be merged": "cast its argument to DECIMAL or BIGINT",
    r"of merged aggregates with settings": (
        "remove settings such as `spark.sql.ansi.enabled` from [spark]"
    ),
    r"(of an aggregate of|of grouping sets in|of an aggregate that depends)": _APART,
    r"of .*, which is nondeterministic": (
        "compute it in a source of its own, and read the table of that source"
    ),
    r"of .*, which reads the clock": (
        "compare with a column of the data instead, or leave the condition to the readers of the"
        " table"
    ),
    r"it is nondeterministic": (
        "compute what is nondeterministic in a source of its own, and read its table"
    ),
    r"it depends on the current time": (
        "compare with a column of the data instead, or leave the condition to the readers of the"
        " table"
    ),
    r".* is computed by a (Python )?function( without|$)": "add by=…, or write it as a query",
    r"it gets .* without .* changed": "add the key columns to this input, or name others in by",
    r"it reads .* whose columns are unknown": "declare its columns",
    r"it reads .* and has no table": "persist it",
    r"it is materialized as": "write materialized=table",
    r"refresh=whole": "remove refresh=whole",
    r"rows of .* changed or were removed, and its files": "store it as a Delta table",
    r"the query is too large": _APART,
    r"the nesting": _APART,
}
_NO_HINTS = (
    r"it is printed|it has no aggregate|a table that changed is read"
    r"|it was loaded|of .*, which cannot be merged(?! exactly)|its table has other rows|assume="
)
"""Reasons that need no remedy, or have none."""
_OTHERWISE = "write it in another way, or move it to a source of its own"


def hint_of(reason: str) -> str | None:
    """Return how to remove the reason why a table is not maintained; None: there is no way."""
    for pattern, hint in _HINTS.items():
        if re.match(pattern, reason):
            return hint
    return None if re.match(_NO_HINTS, reason) else _OTHERWISE
