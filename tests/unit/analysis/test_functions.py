"""Every function of Spark is classified: a new one is not mistaken for a scalar function."""

from __future__ import annotations

import pytest

from persist_assets._paths import SPARK_FUNCTIONS
from persist_assets.analysis import functions as f
from persist_assets.core.spark_versions import KNOWN_SPARKS

KINDS = ("scalar", "aggregate", "generator", "window", "volatile", "table")


def of_kind(kind: str) -> set[str]:
    newest = f.functions_of(KNOWN_SPARKS[-1], SPARK_FUNCTIONS.read_text())
    return {name for name, (its, _) in newest.items() if its == kind}


@pytest.mark.proves("S25")
def test_functions_have_the_kinds_that_spark_reports() -> None:
    assert of_kind("aggregate") - {"grouping", "grouping_id"} == f.AGGREGATES
    assert of_kind("generator") == f.GENERATORS
    assert of_kind("volatile") <= f.VOLATILE
    # Each is classified by whether ties in the order affect it.
    ranks = {"rank", "dense_rank", "percent_rank", "cume_dist"}
    assert of_kind("window") == f.TIE_SENSITIVE | ranks
    sets = f.CLOCK | f.SESSION | f.VOLATILE | f.ORDER_SENSITIVE | f.TIME_WINDOWS
    assert sets <= set().union(*map(of_kind, KINDS))


@pytest.mark.proves("S25")
def test_functions_of_new_spark_releases_are_known() -> None:
    new = {"to_base32", "time_from_micros", "vector_norm", "theta_union", "st_srid", "from_avro"}
    assert new <= f.KNOWN
    assert not f.KNOWN & {"collations", "sql_keywords", "and", "case", "frobnicate"}
