"""Type annotations that name columns, and functions that Spark's workers call."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source

RAW = "CREATE TABLE t (a BIGINT, b STRING, c DOUBLE) USING parquet LOCATION 't';\n"
HEAD = """
from collections.abc import Iterator
from typing import Annotated, Any
import pandas as pd
import polars as pl
import pyarrow as pa
from persist_assets import incremental_table, model, source, table
from pyspark.sql import DataFrame, SparkSession
"""
HERE = len(HEAD.splitlines()) + 1


def project(text: str, sql: str = "") -> Project:
    return compiled({"raw.sql": RAW + sql, "d.py": HEAD + text})


def source(text: str, sql: str = "", name: str = "f") -> Source:
    result = project(text, sql)
    assert not result.errors, [str(p) for p in result.errors]
    return next(s for s in result.sources if s.name == name)


def wrong(text: str, sql: str = "") -> list[str]:
    return [f"{p.location.line - HERE}: {p.message}" for p in project(text, sql).errors]


# ---------------------------------------------------------------------------------- names and types

INPUT = '@table\ndef f(t: Annotated[DataFrame, "{0}"]):\n    return t.distinct()\n'
RESULT = '@table\ndef f(t) -> Annotated[DataFrame, "{0}"]:\n    return t\n'


@pytest.mark.proves("V22")
def test_only_the_annotated_columns_of_an_input_affect_the_build_id() -> None:
    text = INPUT.replace("(t:", "(v:").replace("t.dis", "v.dis")
    view = "CREATE VIEW v AS SELECT a, b, c FROM t;\n"
    f = source(text.format("b string, a: bigint"), view)
    assert f.function is not None
    assert f.function.frames[0].columns == ("a", "b")
    other = source(text.format("b string, a bigint"), view.replace("c FROM", "c + 1 AS c FROM"))
    assert other.build_id == f.build_id
    for edited in (view.replace("a,", "a + 1 AS a,"), view.replace(" FROM", " FROM t WHERE a > 1 UNION ALL SELECT * FROM")):  # fmt: skip
        assert source(text.format("b string, a bigint"), edited).build_id != f.build_id
    assert source(text.format("a bigint, b string"), view).build_id != f.build_id, "in this order"
    assert source(text.format("a bigint"), view).build_id != f.build_id


WRONG = [
    (INPUT.format("a int"), "`a` of `t` is bigint, and annotated as int"),
    (INPUT.format("a bigint, x string"), "`t` has no column `x`"),
    (INPUT.format("a"), "`a` of the parameter `t` is not a list of columns with types"),
    (INPUT.format(""), "`` of the parameter `t` is not a list of columns with types"),
    (INPUT.format("a bigint, A string"), "`a bigint, A string` names a column twice"),
    (RESULT.format("a bigintt"), "`a bigintt` of the result is not a list of columns with types"),
    (RESULT.format("a bigint not null"), "`a bigint not null` of the result is not a list of columns with types"),
    (RESULT.replace('"{0}"', "X"), "`Annotated` of the result needs the columns as a string"),
    (
        RESULT.replace("@table", '@table(columns={{"a": "int"}})').format("a int"),
        "both `columns` and the annotation of the result name the columns",
    ),
    (
        '@table\ndef f(t, s: Annotated[SparkSession, "a int"]):\n    return t\n',
        "unsupported annotation `Annotated[SparkSession, 'a int']` of the parameter `s`",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
@pytest.mark.proves("V22")
def test_invalid_column_annotations_are_errors(text: str, message: str) -> None:
    (error,) = wrong(text)
    assert error.partition(": ")[2] == message
    assert error.partition(": ")[0] in ("0", "1")


@pytest.mark.proves("V22")
def test_the_annotated_result_is_the_contract_of_the_table() -> None:
    f = source(RESULT.format("a bigint, b string"))
    assert [(c.name, c.type) for c in f.known_columns] == [("a", "bigint"), ("b", "string")]
    plain = source(RESULT.replace(' -> Annotated[DataFrame, "{0}"]', ""))
    assert f.build_id == plain.build_id, "a contract is no part of the meaning"
    reader = '@table\ndef g(f: Annotated[DataFrame, "{0}"]):\n    return f\n'
    assert wrong(RESULT.format("a int") + reader.format("a bigint")) == [
        "4: `a` of `f` is int, and annotated as bigint"
    ]
    assert not wrong(RESULT.format("a int") + reader.format("a int"))


# ------------------------------------------------------------------------------------------- arrow

KEYED = (
    '@table(by="a", columns={"a": "bigint", "n": "int"})\ndef f(t: pl.DataFrame):\n    return t\n'
)
BATCHES = 'def f(t: Iterator[pl.DataFrame]) -> Annotated[Any, "a bigint"]:\n    yield from t\n'


@pytest.mark.proves("V21")
def test_the_build_id_depends_on_how_a_function_is_called() -> None:
    f = source(KEYED)
    assert f.function is not None
    assert (f.function.by, f.function.result) == (("a",), (("a", "bigint"), ("n", "int")))
    for other in (
        KEYED.replace('"int"', '"bigint"'),
        KEYED.replace("pl.", "pd."),
        KEYED.replace("pl.DataFrame", "Iterator[pl.DataFrame]").replace("return t", "yield from t"),
    ):  # fmt: skip
        assert source(other).build_id != f.build_id
    assert source(KEYED.replace("@table(", '@table(owner="team:x", ')).build_id == f.build_id


@pytest.mark.parametrize(
    "kind", ["pl.DataFrame", "pd.DataFrame", "pa.RecordBatch", '"pl.DataFrame"']
)
@pytest.mark.parametrize("above", ["@table", "@model"])
@pytest.mark.proves("V21")
def test_batches_need_no_key(kind: str, above: str) -> None:
    written = f"Iterator[{kind}]" if kind[0] != '"' else '"Iterator[pl.DataFrame]"'
    f = source(f"{above}\n{BATCHES}".replace("Iterator[pl.DataFrame]", written, 1))
    assert f.function is not None
    assert f.function.parameters[0].is_arrow


REFUSED = [
    (KEYED.replace('by="a", ', ""), "no `by` says which rows of `t` belong together"),
    (KEYED.replace(', columns={"a": "bigint", "n": "int"}', ""), "`f` needs the names and types of all columns of its result"),
    (KEYED.replace('"n": "int"', '"n": True'), "`f` needs the names and types of all columns of its result"),
    (KEYED.replace('"n": "int"', '"*": True'), "`f` needs the names and types of all columns of its result"),
    (KEYED.replace("(t:", "(x, t:"), "`x` must be a polars, pandas or pyarrow frame, because `t` is a polars.DataFrame"),
    (KEYED.replace("(t:", "(spark: SparkSession, t:"), "`spark` must be a polars, pandas or pyarrow frame, because `t` is a polars.DataFrame"),
    (KEYED.replace("pl.DataFrame", "pl.LazyFrame"), "unsupported annotation `pl.LazyFrame` of the parameter `t`"),
    (KEYED.replace("pl.DataFrame", "pa.RecordBatch"), "unsupported annotation `pa.RecordBatch` of the parameter `t`"),
    (KEYED.replace("return t", "yield t"), "`f` yields"),
    (KEYED.replace('by="a"', 'by="x"'), "`x` is not a column of `f`"),
    ("@table\n" + BATCHES.replace("yield from t", "pass"), "`f` returns nothing"),
    ("@table\ndef f(t) -> pl.DataFrame:\n    return t\n", "`f` returns a Spark or Narwhals frame, as it gets no other"),
    (
        "def right(rows: pl.DataFrame):\n    return True\n\n"
        '@table(check={"function": right})\ndef f(t):\n    return t\n',
        "the check `right` cannot take a polars.DataFrame",
    ),
]  # fmt: skip


PAIR = KEYED.replace("(t:", "(t: pd.DataFrame, u:")
MORE = "CREATE TABLE u (a BIGINT, n INT) USING parquet LOCATION 'u';\n"


@pytest.mark.proves("V39")
def test_a_function_can_get_the_rows_of_a_key_of_two_inputs() -> None:
    f = source(PAIR, MORE)
    assert f.function is not None
    assert [p.kind for p in f.function.parameters] == ["pandas.DataFrame", "polars.DataFrame"]
    assert f.build_id != source(PAIR.replace("pd.", "pl."), MORE).build_id


REFUSED_PAIRS = [
    (PAIR.replace("(t:", "(v: pa.Table, t:"), "`f` has 3 inputs, but workers get at most 2"),
    (PAIR.replace("pd.DataFrame", "Iterator[pd.DataFrame]"), "`f` has two inputs, so `t` cannot come in batches"),
    (PAIR.replace("u: pl.DataFrame", "u: Iterator[pl.DataFrame]"), "`f` has two inputs, so `u` cannot come in batches"),
    (PAIR.replace('by="a", ', ""), "no `by` says which rows of `t` belong together"),
    (PAIR.replace("u:", "w:"), "the input `w` of `f` does not have the key a"),
    (PAIR.replace("u:", "x:"), "keys of `f` cannot be compared: `a` is bigint in t and string in x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED_PAIRS)
@pytest.mark.proves("V39")
def test_pairs_of_inputs_that_workers_cannot_match_are_errors(text: str, message: str) -> None:
    more = MORE + MORE.replace("u (a BIGINT", "v (a BIGINT")
    more += MORE.replace("u (a BIGINT", "w (b BIGINT")
    more += MORE.replace("u (a BIGINT", "x (a STRING")
    result = project(text, more)
    assert [p.message for p in result.errors] == [message]


@pytest.mark.parametrize(("text", "message"), REFUSED)
@pytest.mark.proves("V21")
def test_functions_that_workers_cannot_call_are_errors(text: str, message: str) -> None:
    assert wrong(text)[0].partition(": ")[2] == message
