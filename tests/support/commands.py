"""The command line in processes of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import warm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def clean_environ() -> dict[str, str]:
    """Return the environment of this process without what would say where things are."""
    return {k: v for k, v in os.environ.items() if k not in ("DAGSTER_HOME", "PERSIST_ENV")}


def persist(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Run `persist`, and return what came of it."""
    return warm.run(
        [sys.executable, "-m", "persist_assets.cli", *arguments],
        cwd=cwd,
        env={**clean_environ(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the document that a command printed; it has succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def document(*arguments: str, cwd: Path, seconds: float = 180) -> Any:
    """Run `persist … --json`, and return its document."""
    return printed(persist(*arguments, "--json", cwd=cwd, seconds=seconds))
