"""Wrong usage with `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "--nope"], "No such option: --nope"),
        (["ledger", "copy", "a", "sqlite:///b.db"], "`a` is not a database URL"),
        (["ledger", "copy", "sqlite:///b.db", "c"], "`c` is not a database URL"),
        (["rollback", "--to", "3", "--steps", "2"], "--to and --steps cannot be combined"),
    ],
)
def test_wrong_usage_is_a_json_document(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "persist.toml").touch()
    command = "from persist_assets.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error"]["message"] == message
