"""The service in a process of its own, as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import warm
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READ, WRITE = "reader-token-0123456789", "writer-token-0123456789"
FUZZ, OFTEN = "fuzzer-token-0123456789", "often-token-0123456789"
TOKENS = f"dash:read:{READ},ops:write:{WRITE},fuzz:write:{FUZZ},often:read:{OFTEN}"
SOURCES = """
CREATE TABLE f (day DATE, n INT) USING parquet LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-20"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist
CREATE VIEW total AS SELECT sum(n) AS n FROM f;
"""


@dataclass
class Served:
    """A service: its project, where it listens, and its process."""

    root: Path
    url: str
    process: subprocess.Popen[str]

    def client(self, token: str | None = WRITE, **how: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= how.pop("headers", {})
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **how)

    def memory(self) -> int:
        """Return how much memory its process has, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [x for x in status.splitlines() if x.startswith("VmRSS")]
        return int(line.split()[1]) * 1024


def write_data(root: Path) -> None:
    from datetime import date

    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "f").mkdir(parents=True, exist_ok=True)
    days = [date(2024, 1, n) for n in range(1, 5)]
    table = pa.table({"day": days, "n": pa.array([1, 2, 3, 4], pa.int32())})
    pq.write_table(table, root / "f" / "p.parquet")


@contextmanager
def serving(root: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serve a project until the block ends."""
    before = {k: v for k, v in os.environ.items() if k != "PERSIST_TOKENS"}
    with (root / "serve.log").open("w") as log:
        process = warm.Popen(
            [sys.executable, "-P", "-m", "persist_assets.cli", "serve", "--port", "0", *options],
            cwd=root,
            env={**before, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http" in line, (root / "serve.log").read_text()[-2000:]
        yield Served(root, line.split()[-1], process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
