"""The archive of Spark's classes: created, used, and ignored if it does not match."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import need

from persist_assets.core.errors import StorageError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine import class_archive
from persist_assets.engine.class_archive import (
    OPTIONS,
    archived_classes,
    create_archive,
    find_archive,
)
from persist_assets.engine.java import installed_java
from persist_assets.engine.session import open_session

START = """
from pyspark.sql import SparkSession
from persist_assets.engine.class_archive import end_jvm

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
end_jvm(session.sparkContext)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory whose modules are programs; the user's cache is empty."""
    monkeypatch.setenv("PERSIST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv(OPTIONS, raising=False)
    (tmp_path / "starts_spark.py").write_text(START)
    return tmp_path


def sources_of_classes(programs: Path) -> str:
    """Return the log of Spark's JVM, which shows where each class came from."""
    log = programs / "classes.txt"
    environ = {**os.environ, OPTIONS: f"-Xlog:class+load:file={log}"}
    with archived_classes(environ):
        command = [sys.executable, "-m", "starts_spark"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert "cds" not in done.stdout + done.stderr
    return log.read_text()


@pytest.mark.slow
@pytest.mark.proves("U8")
def test_spark_starts_from_the_archive_of_its_classes(programs: Path) -> None:
    assert find_archive() is None
    assert "shared objects file (top)" not in sources_of_classes(programs)
    path = create_archive("starts_spark")
    assert find_archive() == path
    assert [*path.parent.iterdir()] == [path]
    assert sources_of_classes(programs).count("shared objects file (top)") > 1000
    # As after an upgrade of Java: another file name is expected, so this file is not used.
    path.rename(path.with_name("0123456789abcdef.jsa"))
    assert find_archive() is None


def empty_archive() -> Path:
    """Return an archive that no JVM can use."""
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    path = class_archive._path(installed_java(os.environ))
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.mark.proves("U8")
def test_sessions_start_with_the_archive(programs: Path) -> None:
    path = empty_archive()
    options: list[str] = []

    def start() -> Any:
        options.append(os.environ[OPTIONS])
        raise StorageError("enough")

    (programs / "persist.toml").touch()
    with pytest.raises(StorageError, match="enough"):
        open_session(load_settings(programs), start)
    assert str(path) in options[0]
    assert OPTIONS not in os.environ


def test_java_options_of_users_are_preserved(programs: Path) -> None:
    path = empty_archive()
    for before in (None, "-Xmx2g", "-XX:SharedArchiveFile=mine.jsa"):
        environ = {**os.environ} | ({OPTIONS: before} if before else {})
        with archived_classes(environ):
            options = environ[OPTIONS]
        assert environ.get(OPTIONS) == before
        assert options.endswith(before or "off")
        assert (str(path) in options) == ("mine" not in options)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no room')", "Spark failed to load its classes: no room"),
        ("pass", "this Java cannot archive classes"),
    ],
)
def test_a_failed_creation_leaves_no_archive(programs: Path, program: str, message: str) -> None:
    (programs / "fails.py").write_text(program)
    with pytest.raises(StorageError, match=message):
        create_archive("fails")
    assert find_archive() is None
    assert not [*(programs / "cache").rglob("*.new")]


def test_a_user_without_a_home_directory_has_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home directory")

    for name in ("PERSIST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert find_archive() is None
