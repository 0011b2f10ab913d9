"""`persist spark prepare` as users run it: doctor reports the archive, and builds start from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import clean_environ, document

from persist_assets.engine.class_archive import OPTIONS


@pytest.mark.slow
@pytest.mark.proves("U8")
def test_builds_start_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(OPTIONS, raising=False)
    archive = document("spark", "prepare", cwd=tmp_path, seconds=600)
    assert archive["bytes"] == Path(archive["archive"]).stat().st_size > 10**8
    root = tmp_path / "project"
    document("init", str(root), cwd=tmp_path)
    assert document("doctor", cwd=root)["checked"]["class_archive"] == archive["archive"]
    log = tmp_path / "classes.txt"
    environ = {**clean_environ(), OPTIONS: f"-Xlog:class+load:file={log}"}
    command = [sys.executable, "-m", "persist_assets.cli", "build"]
    try:
        subprocess.run(command, cwd=root, env=environ, check=True, capture_output=True)
    finally:
        document("spark", "stop", cwd=root)  # new projects share a server
    classes = log.read_text()
    shared = classes.count("source: shared objects file")
    assert shared > 0.8 * (shared + classes.count("source: file:"))
