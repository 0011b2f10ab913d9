"""The command line `persist`: prints values, decides nothing.

Results go to stdout, as one JSON document with ``--json``; progress and messages go to stderr.
Each module of commands imports from those above it alone.
"""

import gc

from persist_assets.cli.app import EXIT_CODES, app, err

# In this order `persist --help` has them.
from persist_assets.cli import external, check, plan, build, show, following  # isort: skip
from persist_assets.cli import reading, documenting, environments  # isort: skip
from persist_assets.cli import trusting, wanting, servers  # isort: skip

__all__ = [
    "EXIT_CODES",
    "app",
    "build",
    "check",
    "documenting",
    "environments",
    "err",
    "external",
    "following",
    "main",
    "plan",
    "reading",
    "servers",
    "show",
    "trusting",
    "wanting",
]


def main() -> None:
    """Run the command line."""
    gc.disable()  # most commands end before there is much to collect
    try:
        app()
    finally:
        gc.freeze()  # what is left ends with the process: Python need not look through it
