"""The extension for VS Code is complete, and starts a command that exists."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from conftest import ROOT, need_node

from persist_assets.cli import MODULES

EXTENSION = ROOT / "editors" / "vscode"


@pytest.mark.proves("W14")
def test_the_extension_starts_a_command_that_exists() -> None:
    package = json.loads((EXTENSION / "package.json").read_text())
    program = (EXTENSION / package["main"]).read_text()
    settings = package["contributes"]["configuration"]["properties"]
    command, *arguments = settings["persist.command"]["default"]
    assert f"{command} = " in (ROOT / "pyproject.toml").read_text()  # a script of this package
    assert any(arguments == [name] for names in MODULES.values() for name in names)
    for contributed in package["contributes"]["commands"]:
        assert f'registerCommand("{contributed["command"]}"' in program
    required = set(re.findall(r'require\("([\w@-]+)', program)) - {"path", "vscode"}
    assert required == package["dependencies"].keys()
    # A lock file would name the hosts of registries.
    assert not (EXTENSION / "package-lock.json").exists()


def test_the_extension_is_valid_javascript() -> None:
    done = subprocess.run(
        [need_node(), "--check", str(EXTENSION / "extension.js")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
