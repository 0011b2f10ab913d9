"""Small states of aggregates, merged in memory: a Spark job for some hundred rows takes longer.

The rows of the state now are its rows before, but for the changed keys, and the changed rows with
keys that still have rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_ROWS = 100_000
_KEYS = {"bigint", "boolean", "date", "int", "smallint", "string", "tinyint"}
_NUMBER = "n"
"""The column with the number of rows of a group."""


def is_small(n_rows: int, key_types: Sequence[str]) -> bool:
    """Whether a state is merged here: it has few rows, and Python compares keys as Spark does."""
    comparable = all(t in _KEYS or t.startswith("decimal(") for t in key_types)
    return n_rows <= _MOST_ROWS and comparable


def merged_here(former: Any, changed: Any, n_keys: int) -> Any:
    """Return the rows of a state now, as an Arrow table; None: Spark has to merge them.

    Parameters
    ----------
    former, changed
        The state before, and its changed rows, as Arrow tables.
    n_keys
        The number of key columns, which are the first ones.
    """
    from pyarrow import ArrowException, array, concat_tables
    from pyarrow.compute import call_function

    try:
        if former.schema.types != changed.schema.types:
            return None
        gone = {*_keys(changed, n_keys)}
        stays = former.filter(array([key not in gone for key in _keys(former, n_keys)], "bool"))
        came = changed.filter(call_function("greater", [changed[_NUMBER], 0])).cast(former.schema)
        return concat_tables([stays, came])
    except (ArrowException, OverflowError, ValueError):  # a date that Python does not have
        return None


def _keys(rows: Any, n_keys: int) -> list[tuple[Any, ...]]:
    columns = [rows.column(n).to_pylist() for n in range(n_keys)]
    return [*zip(*columns, strict=True)]
