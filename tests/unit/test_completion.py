"""Shell completion of sources, commands and options, without importing large libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import clean_environ
from typer.main import get_command
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.cli.completing import OF_SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = """
CREATE TABLE days (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW daily_revenue AS SELECT a FROM days;
CREATE VIEW other AS SELECT a FROM days;
"""
COMPLETE = """
import sys
from persist_assets.cli import main
try:
    main()
except SystemExit:
    pass
print(*sorted({"dagster", "pyspark", "sqlalchemy", "sqlglot"} & {*sys.modules}), file=sys.stderr)
"""


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    done = CliRunner().invoke(app, ["check", "--project", str(made)])
    assert done.exit_code == 0, done.output
    return made


def completed(cwd: Path, text: str) -> tuple[list[str], str]:
    """Return the completions of the last word in bash, and the large libraries imported."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        cwd=cwd,
        env={
            **clean_environ(),
            "_PERSIST_COMPLETE": "complete_bash",
            "COMP_WORDS": text,
            "COMP_CWORD": str(len(text.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr.strip()


@pytest.mark.proves("W17")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("persist build da", ["daily_revenue", "days"]),
        ("persist show +dai", ["+daily_revenue"]),
        ("persist plan other daily", ["daily_revenue"]),
        ("persist build x", []),
    ],
)
def test_source_names_are_completed_without_importing_large_libraries(
    root: Path, text: str, names: list[str]
) -> None:
    assert completed(root, text) == (names, "")


def test_completion_uses_the_project_option(root: Path, tmp_path: Path) -> None:
    assert completed(tmp_path, "persist build da") == ([], "")
    assert completed(tmp_path, f"persist --project {root} build dai")[0] == ["daily_revenue"]


def test_commands_and_options_are_completed(root: Path) -> None:
    assert completed(root, "persist buil")[0] == ["build"]
    assert completed(root, "persist build --keep")[0] == ["--keep-going"]
    assert completed(root, "persist build --exclude dai")[0] == ["daily_revenue"]


@pytest.mark.parametrize("name", sorted(OF_SOURCES))
def test_each_command_that_takes_sources_completes_them(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    command = get_command(app).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    argument = next(p for p in command.params if p.param_type_name == "argument")
    context = command.make_context(name, [], resilient_parsing=True)
    assert {c.value for c in argument.shell_complete(context, "dai")} == {"daily_revenue"}
