"""Supported versions of Spark and Dagster; Spark of another version is refused."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.spark import SPARK_DEFAULTS
from persist_assets.core.spark_versions import (
    KNOWN_SPARKS,
    SUPPORTED,
    minor,
    require_session,
    spark_in_use,
)
from persist_assets.engine.session import open_session
from persist_assets.storage.delta_tables import read_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder


def install_name_of(spark: str, directory: Path) -> Path:
    """Write metadata that make Python report another version of the installed PySpark."""
    facts = directory / f"pyspark-{spark}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyspark\nVersion: {spark}\n")
    return directory


def of_project(package: str) -> set[tuple[str, str]]:
    """Return all version ranges of a package in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    pattern = re.compile(rf"{package}(?:\[\w+\])?>=([\d.]+),<([\d.]+)")
    return {match.groups() for line in lines if (match := pattern.fullmatch(line))}


def of_script(prefix: str) -> set[str]:
    spec = importlib.util.spec_from_file_location("versions", ROOT / "scripts" / "versions.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["versions"] = script
    spec.loader.exec_module(script)
    return {v.removeprefix(prefix) for v in script.VERSIONS if re.fullmatch(prefix + r"[\d.]+", v)}


def of_docs(name: str) -> set[str]:
    text = (ROOT / "docs" / "versions.md").read_text().partition("candidate")[0]
    return set(re.findall(rf"^\| {name} ([\d.]+) \|", text, re.MULTILINE))


@pytest.mark.proves("U6")
def test_the_project_the_docs_and_the_script_support_the_same_versions() -> None:
    assert of_project("pyspark") == {(SUPPORTED[0], "4.4")}
    assert of_docs("Spark") == of_script("spark-") == set(SUPPORTED) == {"4.3"}
    assert set(SUPPORTED) <= set(KNOWN_SPARKS)
    names = ("dagster", "dagster-webserver", "dagster-dg-cli")
    assert all(of_project(name) == {("1.13", "1.14")} for name in names)
    names = ("dagster-pyspark", "dagster-k8s", "dagster-postgres")
    assert all(of_project(name) == {("0.29", "0.30")} for name in names)
    assert of_docs("Dagster") == of_script("dagster-") == {"1.13"}


@pytest.mark.proves("U6")
@pytest.mark.parametrize("version", ["3.5.1", "4.0.5", "5.0.0"])
def test_an_unsupported_spark_is_refused(version: str) -> None:
    with pytest.raises(SettingsError, match=rf"runs Spark {version}, which is not supported") as e:
        require_session(version)
    assert e.value.hint == "use Spark 4.3: see docs/versions.md"


@pytest.mark.proves("U6")
def test_a_session_whose_spark_version_differs_from_pyspark_is_rejected(
    make_project: Callable[..., Path],
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings = load_settings(make_project({}))
    other = next(v for v in KNOWN_SPARKS if v != minor(spark.version))
    monkeypatch.syspath_prepend(str(install_name_of(f"{other}.9", tmp_path / "other")))
    assert spark_in_use() == other
    with pytest.raises(SettingsError) as error:
        open_session(settings, lambda: spark)
    assert f"runs Spark {spark.version}, but PySpark {other}.9 is installed" in error.value.message
    assert error.value.hint is not None
    assert f'pip install "pyspark=={minor(spark.version)}.*"' in error.value.hint


LACKING = """
CREATE TABLE t (a STRING) USING csv OPTIONS (header true, archivePathFilter '*.zip') LOCATION 'raw';
CREATE TABLE u (a TIMESTAMP(6)) USING parquet LOCATION 'raw';
"""
LACKING_FUNCTIONS = """
CREATE TABLE v (a STRING) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW w AS SELECT collect_union(a) AS a, max(instr(a, 'a', 2)) AS b FROM v;
"""


@pytest.mark.proves("U6")
@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            LACKING,
            (
                "csv has no option `archivepathfilter` in Spark 4.1",
                "Spark 4.1 has no type `TIMESTAMP(6)`",
            ),
        ),
        (
            LACKING_FUNCTIONS,
            ("unknown function `collect_union`", "`instr` takes 2 arguments, not 3"),
        ),
    ],
)
def test_check_reports_features_missing_in_the_installed_spark_version(
    make_project: Callable[..., Path], tmp_path: Path, text: str, problems: tuple[str, ...]
) -> None:
    root = make_project({"m.sql": text})
    (root / "raw").mkdir()
    place = install_name_of("4.1.9", tmp_path / "other")
    done = subprocess.run(
        [sys.executable, "-m", "persist_assets.cli", "--project", str(root), "check"],
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 3, output
    for problem in problems:
        assert problem in output
    assert output.count("and PySpark 4.1.9 is installed") == len(problems)


def test_a_table_version_records_the_spark_version_that_computed_it(
    make_project: Callable[..., Path], enter: Callable[..., Builder], spark: Any
) -> None:
    builder = enter(make_project({"m.sql": "--@ persist\nCREATE VIEW p AS SELECT 1 AS a;"}))
    source = builder.project.by_id["p@sources/m.sql"]
    work = builder.build(source)
    root = builder.settings.table_root(work.snapshot.table)
    assert read_commit(root, work.snapshot.version)["persist.engine"] == f"Spark {spark.version}"


ARROW = "spark.sql.execution.pythonUDF.arrow.enabled"


@pytest.mark.proves("U6")
def test_sessions_get_the_defaults_that_change_rows_unless_settings_override_them(
    make_project: Callable[..., Path], spark: Any
) -> None:
    open_session(load_settings(make_project({})), lambda: spark)
    assert {spark.conf.get(key) for key in SPARK_DEFAULTS} == {"true"}
    open_session(load_settings(make_project({})), lambda: spark)  # it recognizes its own values
    root = make_project({}, name="other")
    with (root / "persist.toml").open("a") as file:  # below [spark]
        file.write(f'"{ARROW}" = "false"\n')
    try:
        open_session(load_settings(root), lambda: spark)
        assert spark.conf.get(ARROW) == "false"
    finally:
        spark.conf.set(ARROW, "true")
