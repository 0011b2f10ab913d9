"""Which processes are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import wait_for

from persist_assets.ledger.processes import THIS_MACHINE, has_ended, is_dead, this_process


def test_a_process_that_was_killed_is_gone_although_nobody_waits_for_it() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert not is_dead(THIS_MACHINE, process.pid)
        process.kill()
        stat = Path(f"/proc/{process.pid}/stat")  # which is there until somebody waits for it
        wait_for(lambda: ") Z " in stat.read_text())
        assert is_dead(THIS_MACHINE, process.pid)
        assert not is_dead("elsewhere", process.pid)
    assert is_dead(THIS_MACHINE, process.pid)


def test_this_process_is_not_gone() -> None:
    assert not is_dead(THIS_MACHINE, os.getpid())
    assert not has_ended(this_process())
    assert not has_ended(None)
