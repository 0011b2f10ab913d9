"""Locations with unsupported URL schemes are rejected before they are accessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DECLARED = "CREATE TABLE t (a INT) USING {form} LOCATION '{place}';"
EXTERNAL = """CREATE EXTERNAL TABLE t (a INT) WITH ('connectors' = '[{{"transport": {{
  "name": "{name}", "config": {{"uri": "{place}", "mode": "snapshot"}}}}}}]');"""


@pytest.mark.proves("S24")
@pytest.mark.parametrize(
    "source",
    [
        DECLARED.format(form="parquet", place="abc://lake/t"),
        DECLARED.format(form="delta", place="abc://lake/t"),
        "CREATE TABLE t USING parquet LOCATION 'abc://lake/t';",
        EXTERNAL.format(name="delta_table_input", place="abc://lake/t"),
        EXTERNAL.format(name="iceberg_input", place="abc://lake/t"),
    ],
)
def test_an_unsupported_scheme_is_an_error_of_the_source(
    source: str, make_project: Callable[..., Path]
) -> None:
    project = load_project(load_settings(make_project({"m.sql": source}, "")))
    (problem,) = [p for p in project.problems if p.severity == "error"]
    assert (problem.code, problem.location.path) == ("location-scheme", "sources/m.sql")
    assert "`abc://` is not supported" in problem.message
    for scheme in ("file://", "s3://", "gs://", "abfss://", "hdfs://"):
        assert scheme in (problem.hint or "")


@pytest.mark.proves("S24")
@pytest.mark.parametrize(
    ("form", "place"),
    [("parquet", "s3a://lake/t"), ("csv", "hdfs://h/t"), ("jdbc", "abc://x"), ("csv", "data/a:b")],
)
def test_schemes_supported_by_spark_or_a_library_are_accepted(
    form: str, place: str, make_project: Callable[..., Path]
) -> None:
    source = DECLARED.format(form=form, place=place)
    project = load_project(load_settings(make_project({"m.sql": source}, "")))
    assert not [p for p in project.problems if p.code == "location-scheme"]


@pytest.mark.proves("S24")
def test_an_unsupported_scheme_in_settings_is_rejected_with_a_hint(
    make_project: Callable[..., Path],
) -> None:
    for settings in ('warehouse = "abc://x/y"', '[env.dev.raw]\nt = "abc://x/y"'):
        root = make_project({"m.sql": DECLARED.format(form="csv", place="data")}, settings)
        with pytest.raises(SettingsError, match="`abc://` is not supported") as caught:
            load_settings(root)
        assert "s3://" in (caught.value.hint or "")
