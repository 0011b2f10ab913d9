"""The command line `persist`: prints values and decides nothing.

Results go to stdout, as one JSON document with ``--json``; progress and messages go to stderr.
Each module of commands imports only from modules above it in `MODULES`. A command line imports only
the modules of commands that it mentions; all others would cost a tenth of a second.
"""

import gc
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

MODULES: Mapping[str, tuple[str, ...]] = {
    "external": ("external",),
    "starting": ("init", "raw"),
    "importing": ("import",),
    "check": ("check",),
    "plan": ("plan",),
    "build": ("build", "rerun"),
    "listing": ("ls", "compile"),
    "show": ("show",),
    "following": ("follow",),
    "explaining": ("explain",),
    "reading": ("diff", "verify", "query"),
    "testing": ("test",),
    "reviewing": ("ci",),
    "documenting": ("lineage", "docs"),
    "environments": ("manifest", "promote", "history", "state", "rollback", "gc", "doctor"),
    "spending": ("cost",),
    "alerting": ("alerts",),
    "publishing": ("publish",),
    "trusting": ("trust",),
    "wanting": ("evaluate", "taint", "sla", "events", "want"),
    "editing": ("lsp",),
    "servers": ("serve", "spark", "ledger"),
    "keeping": ("ledger",),
    "tokens": ("token",),
}
"""The commands of each module. `persist --help` has them in this order."""


def _load(modules: Iterable[str] = MODULES) -> Any:
    """Import modules of commands; return the module whose application they extend."""
    for module in modules:
        import_module(f"persist_assets.cli.{module}")
    return import_module("persist_assets.cli.application")


def __getattr__(name: str) -> Any:
    """Return `app` with all commands, or another name of its module."""
    if name in ("app", "err", "EXIT_CODES"):
        return getattr(_load(), name)
    raise AttributeError(name)


def main() -> None:
    """Run the command line."""
    gc.disable()  # most commands end before there is much to collect
    words = {*sys.argv[1:]}
    if "_PERSIST_COMPLETE" in os.environ:  # a shell completes words, which stand in a variable
        from persist_assets.cli.completing import typed, with_sources_only

        typed_words = typed(os.environ)
        command = with_sources_only(typed_words)
        if command is not None:
            command(prog_name="persist")  # it prints the names
            return
        words |= {*typed_words}
    modules = [m for m, commands in MODULES.items() if not words.isdisjoint(commands)]
    application = _load(modules or MODULES)
    try:
        application.app(prog_name="persist")
    except SystemExit as end:
        if "--json" in words:
            application.print_usage_error(end)
        raise
    finally:
        gc.freeze()  # the rest ends with the process, so Python need not search it
