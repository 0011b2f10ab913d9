"""The processes that write to a ledger: who they are, and whether they are gone."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def _machine() -> str:
    """Return the name of the space in which process numbers are unique.

    Containers may share a host name and still number their processes separately.
    """
    name = [socket.gethostname()]
    with suppress(OSError):  # elsewhere than on Linux
        name.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        name.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(name)


THIS_MACHINE = _machine()


def is_dead(host: str, pid: int) -> bool:
    """Whether a process of this machine is gone. Processes of other machines count as alive."""
    if host != THIS_MACHINE:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process is a zombie: it has ended, and no parent has waited for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # elsewhere than on Linux, or it is gone by now
        return False
    state, threads = fields[0], int(fields[17])
    return state == "Z" and threads <= 1  # otherwise only its first thread has ended


def this_process() -> str:
    """Return the identity of this process among all that write to the ledger."""
    return f"{THIS_MACHINE}:{os.getpid()}"


def has_ended(process: str | None) -> bool:
    """Whether a process, named as by `this_process`, is known to be gone."""
    host, _, pid = (process or "").rpartition(":")
    return bool(host) and is_dead(host, int(pid))
