"""Progress of a running build in a terminal, in a file and in Dagster."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import clean_environ, persist, printed
from conftest import need

if TYPE_CHECKING:
    from collections.abc import Callable

# `slow` sleeps for three seconds within a task.
SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW slow AS
SELECT a, java_method('java.util.concurrent.locks.LockSupport', 'parkNanos', 3000000000L) AS b
FROM t;
--@ persist
CREATE VIEW later AS SELECT count(*) AS n FROM slow;
"""


def in_terminal(*arguments: str, cwd: Path) -> str:
    """Return all output of a command in a terminal of 120 columns, including redrawn lines."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "persist_assets.cli", *arguments],
        cwd=cwd,
        env={**clean_environ(), "TERM": "xterm", "COLUMNS": "120"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    parts: list[bytes] = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux raises this when the other side is closed
    finally:
        os.close(ours)
    assert process.wait() == 0, b"".join(parts)
    return b"".join(parts).decode()


@pytest.mark.proves("W16")
@pytest.mark.slow
def test_a_build_shows_its_progress_in_terminals_logs_and_dagster(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    root = make_project({"m.sql": SOURCES})
    settings = (root / "persist.toml").read_text()
    settings = settings.replace('"spark.ui.enabled" = "false"', '"spark.ui.enabled" = "true"')
    (root / "persist.toml").write_text(settings)
    (root / "raw" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), root / "raw" / "t" / "p.parquet")

    first = persist("build", "--json", cwd=root)
    assert [(b["maintenance"], b["rows_written"]) for b in printed(first)["builds"]] == [
        ("whole", 1),
        ("whole", 1),
    ]
    lines = [line.split(", ")[0].strip() for line in first.stderr.splitlines()]
    assert lines == [
        "building m/slow (whole)",
        "built m/slow (whole) 1 row",
        "building m/later (whole)",
        "built m/later (whole) 1 row",
    ]

    shown = in_terminal("build", "--force", cwd=root)
    assert "0 done, 1 building, 1 waiting, Spark: 1 stage, 0 of 1 tasks, about " in shown
    assert " left, http://" in shown
    assert "m/slow (whole) " in shown and " of about " in shown
    assert "building m/slow" not in shown, "only files get a line for that"

    monkeypatch.setenv("DAGSTER_HOME", str(root / ".persist" / "dagster"))
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["m", "slow"]))
        assert event is not None and event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        assert str(metadata["persist/spark_ui"].value).startswith("http://")
        assert float(str(metadata["persist/seconds"].value)) > 3
        logged = [entry.user_message for entry in instance.all_logs(event.run_id)]
        assert any(
            text.startswith("built m/slow (whole) 1 row, ") and "Spark's UI: http://" in text
            for text in logged
        )
