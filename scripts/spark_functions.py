"""Write the functions of the Spark in use to persist_assets/analysis/spark_functions.txt.

Run it after an upgrade of Spark, then sort new aggregates, generators and window functions into
persist_assets/analysis/functions.py; tests say which are missing there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "persist_assets" / "analysis" / "spark_functions.txt"

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
KINDS = {
    "aggregate": (
        EXPRESSIONS + "aggregate.AggregateFunction",
        EXPRESSIONS + "RuntimeReplaceableAggregate",
    ),
    "generator": (EXPRESSIONS + "Generator",),
    "window": (EXPRESSIONS + "WindowFunction",),
    "volatile": (EXPRESSIONS + "Nondeterministic",),
}
GROUPS = {"agg_funcs": "aggregate", "generator_funcs": "generator", "window_funcs": "window"}
"""The kinds of functions whose classes only build them, by the groups of Spark's documentation."""


def functions(spark: Any) -> dict[str, str]:
    """Return the functions that a session of Spark knows, and of what kind each is."""
    jvm = spark._jvm
    analysis = jvm.org.apache.spark.sql.catalyst.analysis
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    loader = jvm.Thread.currentThread().getContextClassLoader()
    kinds = {k: [loader.loadClass(name) for name in names] for k, names in KINDS.items()}
    found: dict[str, str] = {}
    rows = spark.sql("SHOW SYSTEM FUNCTIONS").collect()
    for name in sorted(row[0] for row in rows):
        if not name.isidentifier():
            continue  # an operator
        info = analysis.FunctionRegistry.builtin().lookupFunction(identifier(name))
        if info.isEmpty():
            tables = analysis.TableFunctionRegistry.builtin().lookupFunction(identifier(name))
            found[name] = "scalar" if tables.isEmpty() else "table"
            continue
        made_by = loader.loadClass(info.get().getClassName())
        found[name] = GROUPS.get(info.get().getGroup(), "scalar")
        for kind, classes in kinds.items():
            if any(one.isAssignableFrom(made_by) for one in classes):
                found[name] = kind
    return found


def text_of(found: dict[str, str]) -> str:
    """Return the file that says which functions there are."""
    return "".join(f"{name} {kind}\n" for name, kind in found.items())


def main() -> int:
    """Write the file."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    FILE.write_text(text_of(functions(spark.getOrCreate())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
