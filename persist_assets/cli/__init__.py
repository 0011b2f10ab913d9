"""The command line `persist`: prints values, decides nothing.

Results go to stdout, as one JSON document with ``--json``; progress and messages go to stderr.
Each module of commands imports from those above it alone. A command imports the modules of the
words on its command line only, because others cost it a tenth of a second.
"""

import gc
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

MODULES: Mapping[str, tuple[str, ...]] = {
    "external": ("external",),
    "check": ("check",),
    "plan": ("plan",),
    "build": ("build", "rerun"),
    "show": ("show",),
    "following": ("follow",),
    "reading": ("diff", "query"),
    "documenting": ("lineage", "docs"),
    "environments": ("manifest", "promote", "history", "state", "rollback", "gc", "doctor"),
    "trusting": ("trust",),
    "wanting": ("evaluate", "taint", "sla", "events", "explain", "want"),
    "servers": ("serve", "spark", "ledger"),
}
"""The commands of each module. `persist --help` has them in this order."""


def _load(modules: Iterable[str] = MODULES) -> Any:
    """Import modules of commands; return the module that they add their commands to."""
    for module in modules:
        import_module(f"persist_assets.cli.{module}")
    return import_module("persist_assets.cli.application")


def __getattr__(name: str) -> Any:
    """Return `app` with all commands, or what else its module has."""
    if name in ("app", "err", "EXIT_CODES"):
        return getattr(_load(), name)
    raise AttributeError(name)


def main() -> None:
    """Run the command line."""
    gc.disable()  # most commands end before there is much to collect
    words = {*sys.argv[1:]}
    modules = [m for m, commands in MODULES.items() if not words.isdisjoint(commands)]
    try:
        _load(modules or MODULES).app()
    finally:
        gc.freeze()  # what is left ends with the process: Python need not look through it
