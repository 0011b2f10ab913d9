"""How Spark resolves names like `current_date`; `tests/support/bare_names.py` has the cases."""

from __future__ import annotations

from typing import Any

import pytest
from bare_names import CASES, COLUMNS, ROWS


@pytest.mark.slow
@pytest.mark.proves("S2")
def test_spark_resolves_bare_names_as_the_cases_expect(spark: Any) -> None:
    for name, rows in ROWS.items():
        frame = spark.sql(f"SELECT * FROM VALUES {rows} AS {name}({COLUMNS[name]})")
        frame.coalesce(1).createOrReplaceTempView(name)
    wrong: list[str] = []
    for query, is_column in CASES:
        (row,) = spark.sql(query).collect()
        if (row["x"] == "column") is not is_column:
            wrong.append(f"{query}: {row['x']}")
    for name in ROWS:
        spark.catalog.dropTempView(name)
    assert not wrong, "\n".join(wrong)
