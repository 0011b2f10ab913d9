"""Values of rows as JSON."""

from __future__ import annotations

import math
from typing import Any


def json_value(value: Any) -> Any:
    """Return a value of a row as JSON: numbers stay numbers, exact ones stay exact."""
    from pyspark.sql import Row

    match value:
        case float() if not math.isfinite(value):
            # JSON has no numbers for them.
            return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
        case None | bool() | int() | float() | str():
            return value
        case Row():
            return {k: json_value(v) for k, v in value.asDict().items()}
        case dict():
            return {str(k): json_value(v) for k, v in value.items()}
        case list():
            return [json_value(v) for v in value]
        case bytes() | bytearray():
            return value.hex()
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)
