"""Detecting whether processes have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import wait_for

from persist_assets.ledger.processes import THIS_MACHINE, has_ended, is_dead, this_process


def test_a_killed_process_is_dead_even_as_a_zombie() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert not is_dead(THIS_MACHINE, process.pid)
        process.kill()
        stat = Path(f"/proc/{process.pid}/stat")  # exists until the parent waits for the process
        wait_for(lambda: ") Z " in stat.read_text())
        assert is_dead(THIS_MACHINE, process.pid)
        assert not is_dead("elsewhere", process.pid)
    assert is_dead(THIS_MACHINE, process.pid)


def test_the_current_process_is_alive() -> None:
    assert not is_dead(THIS_MACHINE, os.getpid())
    assert not has_ended(this_process())
    assert not has_ended(None)
