"""`persist lsp` without pygls, which is optional."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN = """
import sys
sys.modules["pygls"] = sys.modules["lsprotocol"] = None  # importing them fails
from persist_assets.cli import main
sys.argv = ["persist", "--project", sys.argv[1], "lsp"]
main()
"""


@pytest.mark.proves("W14")
def test_without_pygls_the_command_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "persist.toml").touch()
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'persist-assets[lsp]'" in done.stderr
    assert done.stdout == ""
