"""Bytecode of the modules that pytest collects is written, whatever the environment says.

Where `PYTHONDONTWRITEBYTECODE` is set, every worker would compile and rewrite all files of tests
in every run: 20 s. Processes that tests start only read what is there, and collecting ends before
the first test runs, so no test sees a file of bytecode in its own directories.
"""

from __future__ import annotations

import sys

_FORBIDDEN = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def end_collection() -> None:
    """Write bytecode from now on only if the environment allows it."""
    sys.dont_write_bytecode = _FORBIDDEN
