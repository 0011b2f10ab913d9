"""Write the functions of the Spark in use to persist_assets/analysis/spark_functions.txt.

Each line has the numbers of arguments in the newest supported Spark, and those in each older one
that differs, or `-` where that lacks the function: see `functions_of` in
persist_assets/analysis/functions.py. A new release becomes the newest in three steps: add it to
`KNOWN_SPARKS` in persist_assets/core/spark_versions.py, run this with it and with each older one.
Then sort new aggregates, generators and window functions into
persist_assets/analysis/functions.py; tests say which are missing there.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.functions import MISSING, functions_of
from persist_assets.core.spark_versions import KNOWN_SPARKS, spark_in_use

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

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


MOST = 9
"""Functions that take so many arguments take any number."""
_WRONG = ("WRONG_NUM_ARGS", "REQUIRED_PARAMETER_NOT_FOUND")


@contextmanager
def _plain_errors() -> Generator[None]:
    """Leave errors of the JVM as they are: PySpark asks ten questions about each."""
    import py4j.java_gateway
    import py4j.protocol

    translating: Any = py4j.java_gateway.get_return_value
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    try:
        yield
    finally:
        py4j.java_gateway.get_return_value = translating


def argument_counts(spark: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the numbers of arguments that scalar and aggregate functions take: ``1,2``; `*`: any.

    Spark's registry builds each function from so many arguments. If it refuses them for another
    reason than their number, the number is right.
    """
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    plan = spark.sql("SELECT 1 AS a")._jdf.queryExecution().logical()
    one = plan.projectList().head().child()

    columns = jvm.java.util.ArrayList()
    arguments = [jvm.PythonUtils.toSeq(columns)]
    for _ in range(MOST):
        columns.add(one)
        arguments.append(jvm.PythonUtils.toSeq(columns))

    def takes(function: Any, n: int) -> bool:
        try:
            registry.lookupFunction(function, arguments[n])
        except Py4JJavaError as error:
            message = error.java_exception.toString()
            return not any(word in message for word in _WRONG)
        return True

    counts: dict[str, list[int]] = {}
    with _plain_errors():
        for name in names:
            function = identifier(name)
            counts[name] = [n for n in range(MOST + 1) if takes(function, n)]
    return {n: "*" if MOST in c or not c else ",".join(map(str, c)) for n, c in counts.items()}


def read(spark: Any) -> dict[str, tuple[str, str]]:
    """Return the functions that a session knows: the kind of each, and its numbers of arguments."""
    kinds = functions(spark)
    counts = argument_counts(spark, (name for name, kind in kinds.items() if kind != "table"))
    return {name: (kind, counts.get(name, "*")) for name, kind in kinds.items()}


def text_of(known: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
    """Return the file for the functions of each supported version.

    Raises
    ------
    ValueError
        The newest version lacks a function, or has one of another kind.
    """
    newest = known[KNOWN_SPARKS[-1]]
    lines: list[str] = []
    for name, (kind, counts) in sorted(newest.items()):
        words = [name, kind, counts]
        for spark in KNOWN_SPARKS[:-1]:
            older = known[spark].get(name, (kind, MISSING))
            if older[0] != kind:
                raise ValueError(f"{name} is {older[0]} in {spark}, and {kind} in the newest")
            words += [f"{spark}:{older[1]}"] * (older[1] != counts)
        lines.append(" ".join(words) + "\n")
    gone = sorted(set[str]().union(*known.values()) - newest.keys())
    if gone:
        raise ValueError(f"the newest Spark lacks {', '.join(gone)}")
    return "".join(lines)


def main() -> int:
    """Write the file."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    text = FILE.read_text(encoding="utf-8")
    known = {version: functions_of(version, text) for version in KNOWN_SPARKS}
    known[spark_in_use()] = read(spark.getOrCreate())
    FILE.write_text(text_of(known), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
