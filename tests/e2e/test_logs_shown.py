"""Logs and metrics for operators: JSON lines of commands, and the access log of the service."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from commands import persist
from serving import READ, SOURCES, TOKENS, WRITE, serving, write_data

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.proves("Y3")
def test_a_build_logs_json_and_nothing_else(make_shared_project: Callable[..., Path]) -> None:
    bad = "--@ persist\nCREATE VIEW bad AS SELECT 1 / (n - n) AS x FROM f;\n"
    root = make_shared_project({"m.sql": SOURCES + bad})
    write_data(root)

    def build(*select: str) -> subprocess.CompletedProcess[str]:
        return persist("--log-format", "json", "build", *select, "--json", cwd=root)

    done = build("total")
    document = json.loads(done.stdout)
    lines = lines_of(done.stderr)
    (started,) = [line for line in lines if line["action"] == "build-started"]
    (ended,) = [line for line in lines if line["action"] == "build-ended"]
    (published,) = [line for line in lines if line["action"] == "published"]
    (build_,) = document["builds"]
    for line in (started, ended, published):
        assert line["source"] == "m/total"
        assert (line["build"], line["run"]) == (build_["build_uid"], document["run_id"])
        assert line["environment"] == "dev"
    assert (ended["outcome"], ended["rows"], ended["method"]) == ("built", 1, "whole")
    assert ended["seconds"] > 0
    failed = build("bad")
    assert failed.returncode == 1
    (ended,) = [x for x in lines_of(failed.stderr) if x["action"] == "build-ended"]
    assert (ended["outcome"], ended["level"]) == ("failed", "error")


@pytest.mark.proves("Y3")
def test_errors_of_commands_are_logged_as_json(make_project: Callable[..., Path]) -> None:
    root = make_project({"m.sql": "CREATE VIEW a AS SELECT x FROM nowhere;\n"})
    done = persist("plan", cwd=root, env={"PERSIST_LOG_FORMAT": "json"})
    assert done.returncode == 3
    (line,) = lines_of(done.stderr)
    assert (line["action"], line["path"], line["line"]) == ("problem", "sources/m.sql", 1)
    done = persist("--log-format", "json", "plan", "--project", str(root / "x"))
    assert done.returncode == 2
    (line,) = lines_of(done.stderr)
    assert (line["action"], line["code"]) == ("command-failed", "SettingsError")
    plain = persist("plan", cwd=root)
    assert plain.stderr.startswith("sources/m.sql:1")


@pytest.mark.slow
@pytest.mark.proves("Y3")
def test_the_service_logs_requests_and_measures_them(make_project: Callable[..., Path]) -> None:
    root = make_project({"m.sql": SOURCES})
    write_data(root)
    env = {"PERSIST_TOKENS": TOKENS}
    with serving(root, "--access-log", env=env) as service:
        with service.client(WRITE) as client:
            client.get("/api/v1/wants/secret-want", params={"x": "s3cr3t"})
            client.get("/api/v1/wants")
            client.get("/nothing/s3cr3t")
        with service.client("s3cr3t-token-0123456789") as client:
            assert client.get("/api/v1/wants?token=s3cr3t").status_code == 401
        with service.client(READ) as client:
            metrics = client.get("/metrics").text
    log = (root / "serve.log").read_text()
    assert "s3cr3t" not in log and "secret-want" not in log
    told = re.findall(r"method=(\S+) path=(\S+) status=(\d+) ms=[\d.]+ caller=(\S+) client=", log)
    assert told[:4] == [
        ("GET", "/api/v1/wants/{want_id:path}", "422", "ops"),
        ("GET", "/api/v1/wants", "200", "ops"),
        ("GET", "(unknown)", "404", "ops"),
        ("GET", "/api/v1/wants", "401", "-"),
    ]
    labels = 'environment="dev",method="GET",path="/api/v1/wants",status="200"'
    assert f"persist_request_seconds_count{{{labels}}} 1" in metrics
    assert f'persist_request_seconds_bucket{{{labels},le="+Inf"}} 1' in metrics
    json_too = {**env, "PERSIST_LOG_FORMAT": "json"}
    with serving(root, env=json_too) as service, service.client(READ) as client:
        client.get("/health")
    lines = lines_of((root / "serve.log").read_text())
    (line,) = [x for x in lines if x["action"] == "http-request"]
    assert (line["path"], line["status"], line["caller"]) == ("/health", 200, "dash")
