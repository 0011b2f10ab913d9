"""Log lines as JSON: each log call in the code has a published action."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from pathlib import Path

import pytest

import persist_assets
from persist_assets.core.logs import ACTIONS, LIBRARY, JsonFormatter, about

PACKAGE = Path(persist_assets.__file__).parent
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def actions_of(path: Path) -> tuple[set[str], list[int]]:
    """Return the actions of a file, and the lines of log calls without one."""
    actions: set[str] = set()
    without: list[int] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):  # what calls get as `extra`
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant) and key.value == "action"
                if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    actions.add(value.value)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if not (isinstance(owner, ast.Name) and owner.id == "log" and node.func.attr in METHODS):
            continue
        text = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
        if isinstance(text, str) and text.startswith("action="):
            actions.add(text.removeprefix("action=").split()[0])
        elif not any(keyword.arg == "extra" for keyword in node.keywords):
            without.append(node.lineno)
    return actions, without


@pytest.mark.proves("Y3")
def test_every_log_call_has_a_published_action_and_every_action_a_call() -> None:
    used: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        actions, without = actions_of(path)
        assert not without, f"{path.relative_to(PACKAGE)}: {without}"
        if "import logging" in path.read_text():
            used |= actions
    assert used == ACTIONS.keys()
    assert LIBRARY not in ACTIONS


@pytest.fixture
def lines() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("persist_assets.test")
    logger.addHandler(handler)
    return logger, stream


@pytest.mark.proves("Y3")
def test_a_log_line_has_the_keys_of_its_call_and_its_context(
    lines: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = lines
    with about(source="m/a", run=None):
        logger.info("action=http-request status=%d ms=%.1f path=%r", 200, 1.25, "a\nb")
        logger.warning("`%s` is slow", "x", extra={"action": "compute-all", "rows": 3})
    try:
        raise ValueError("no\nno")
    except ValueError:
        logger.exception("action=evaluate")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert (first["action"], first["status"], first["ms"], first["source"]) == (
        *("http-request", 200, 1.25),
        "m/a",
    )
    assert first["path"] == "a\nb" and "run" not in first
    assert (second["action"], second["rows"], second["message"]) == (
        *("compute-all", 3),
        "`x` is slow",
    )
    assert second["level"] == "warning" and second["time"].endswith("+00:00")
    assert "ValueError: no" in third["exception"] and "source" not in third


@pytest.mark.proves("Y3")
def test_log_lines_of_other_packages_share_one_action() -> None:
    record = logging.makeLogRecord({"name": "uvicorn", "msg": "action=%s", "args": ("x",)})
    assert json.loads(JsonFormatter().format(record))["action"] == LIBRARY
    assert "persist_assets.core.logs" in sys.modules
