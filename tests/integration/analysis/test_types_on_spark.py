"""The types of expressions before anything is built are those that Spark gives them."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from conftest import drawn_seed, draws
from pyspark.errors import PySparkException

from persist_assets._paths import SPARK_FUNCTIONS
from persist_assets.analysis.functions import functions_of
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.core.spark_versions import KNOWN_SPARKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

COLUMNS = {
    "i": "INT",
    "l": "BIGINT",
    "h": "SMALLINT",
    "d": "DOUBLE",
    "f": "FLOAT",
    "m": "DECIMAL(10,2)",
    "s": "STRING",
    "b": "BINARY",
    "o": "BOOLEAN",
    "t": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "e": "DATE",
    "a": "ARRAY<INT>",
}
DECLARED = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
KNOWN = {
    "length(s)": "int",
    "char_length(b)": "int",
    "size(a)": "int",
    "weekofyear(e)": "int",
    "xxhash64(s, i)": "bigint",
    "unix_timestamp(t)": "bigint",
    "ceil(d)": "bigint",
    "floor(i)": "bigint",
    "sqrt(i)": "double",
    "power(i, i)": "double",
    "md5(b)": "string",
    "startswith(s, 'x')": "boolean",
    "sum(length(s))": "bigint",
}
"""Expressions whose types sums and readers rely on."""


def expressions() -> list[str]:
    """Return calls of Spark's functions, and operators, over columns of all types."""
    calls: list[str] = []
    newest = functions_of(KNOWN_SPARKS[-1], SPARK_FUNCTIONS.read_text())
    for name, (kind, arity) in newest.items():
        if kind not in ("scalar", "aggregate") or name in ("and", "or", "not"):
            continue
        numbers = {"1", "2"} if arity == "*" else set(arity.split(","))
        if "1" in numbers:
            calls += [f"{name}({a})" for a in COLUMNS]
        if "2" in numbers:
            calls += [f"{name}({a}, {b})" for a in COLUMNS for b in "islet" if a != b]
        if "3" in numbers:
            calls += [f"{name}({a}, {a}, {a})" for a in COLUMNS]
    for a, b in itertools.product(COLUMNS, COLUMNS):
        calls += [f"{a} {op} {b}" for op in ("+", "-", "*", "/", "%", "DIV", "||")]
        calls += [f"coalesce({a}, {b})", f"IF(o, {a}, {b})", f"greatest({a}, {b})"]
    return calls


def types_before_a_build(root: Path, texts: Sequence[str]) -> list[str | None]:
    """Return the type that each expression has for readers, None if that is uncertain."""
    (root / "sources" / "v.sql").write_text(
        f"CREATE TABLE v ({DECLARED}) USING parquet LOCATION 'v';\n"
    )
    for n, text in enumerate(texts):  # one file each, so that errors concern no other
        (root / "sources" / f"q{n}.sql").write_text(
            f"CREATE VIEW q{n} AS SELECT {text} AS x FROM v"
        )
    project = load_project(load_settings(root))
    types = {s.name: s.known_columns[0].type for s in project.sources if s.known_columns}
    return [types.get(f"q{n}") for n in range(len(texts))]


@pytest.mark.proves("T15")
def test_types_before_a_build_are_those_of_spark(
    make_project: Callable[..., Path], spark: Any
) -> None:
    drawn = random.Random(drawn_seed()).sample(every := expressions(), draws(1000, len(every)))
    texts = [*KNOWN, *drawn]
    ours = types_before_a_build(make_project({}), texts)
    assert ours[: len(KNOWN)] == [*KNOWN.values()]
    spark.createDataFrame([], DECLARED).createOrReplaceTempView("types_before")
    n_compared = 0
    for text, kind in zip(texts, ours, strict=True):
        if kind is None:
            continue
        try:
            frame = spark.sql(f"SELECT {text} AS x FROM types_before")
        except PySparkException:
            continue  # `check` may know fewer errors than Spark
        assert kind.replace(" ", "").lower() == frame.schema[0].dataType.simpleString(), text
        n_compared += 1
    assert n_compared > len(KNOWN)
