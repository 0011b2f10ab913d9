"""A process queries the version of each Java once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.core.errors import JavaMissingError
from persist_assets.engine.java import installed_java, use_java

if TYPE_CHECKING:
    from pathlib import Path


def write_java(home: Path, version: str) -> Path:
    """Write a Java that counts the queries for its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    temporary = java.with_name("new")
    log = home / "asked"
    temporary.write_text(f"#!/bin/sh\necho >>'{log}'\necho 'openjdk version \"{version}\"' >&2\n")
    temporary.chmod(0o755)
    temporary.replace(java)
    return log


def test_a_process_queries_the_version_of_each_java_once(tmp_path: Path) -> None:
    log = write_java(tmp_path, "17.0.2")
    environ = {"JAVA_HOME": str(tmp_path)}
    versions = {use_java(environ).version for _ in range(3)}
    assert versions == {'openjdk version "17.0.2"'}
    assert log.read_text() == "\n"
    write_java(tmp_path, "11.0.1")
    with pytest.raises(JavaMissingError, match="is Java 11"):
        installed_java(environ)
    assert log.read_text() == "\n\n"
