"""Wants on the command line; the service logs the same events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from commands import document, persist
from serving import SOURCES, serving, write_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REF = "m/daily/2024-01-02"


@pytest.fixture
def root(make_shared_project: Callable[..., Path]) -> Path:
    made = make_shared_project({"m.sql": SOURCES})
    write_data(made)
    return made


def kinds(root: Path, since: int = 0) -> list[str]:
    log = document("events", "--since", str(since), cwd=root)
    return [e["kind"] for e in log["events"]]


@pytest.mark.slow
@pytest.mark.proves("D15", "D32", "D33", "D35", "D36", "D1")
def test_want_add_builds_the_partition_and_logs_each_step(root: Path) -> None:
    made = document("want", "add", REF, "--comment", "for the board", cwd=root)
    assert (made["state"], made["ttl_seconds"], made["sla_seconds"]) == ("satisfied", 1800, 300)
    assert made["source"]["type"] == "cli"
    assert kinds(root) == [
        "want-created",
        "evaluation",
        "build-requested",
        "build-request-started",
        "build-started",
        "build-succeeded",
        "partition-available",
        "build-request-succeeded",
        "want-satisfied",
    ]
    # The satisfied want is listed only with `--all`.
    assert document("want", "list", cwd=root) == []
    assert [w["want_id"] for w in document("want", "list", "--all", cwd=root)] == [made["want_id"]]
    explained = document("explain", REF, cwd=root)
    assert explained["wants"][0]["want_id"] == made["want_id"]
    for words in (["want", "show", made["want_id"]], ["explain", REF]):
        shown = persist(*words, cwd=root).stdout
        assert "type=cli" in shown
        assert not any(
            mark in shown for mark in ("{", "['", "True", "is_current", "partition_ref ")
        )
    assert explained["build"]["rows"] == 1
    assert document("sla", cwd=root) == []
    head = document("events", cwd=root)["next_idx"]
    again = document("evaluate", "--force", cwd=root)
    assert (again["build_request_id"], again["reason"]) == (None, "nothing to build")
    assert kinds(root, head) == ["evaluation"]


@pytest.mark.slow
@pytest.mark.proves("D38")
def test_the_command_line_and_the_service_log_the_same_events(root: Path) -> None:
    needs = "users:data/users"
    asked = {"partition_ref": REF, "external_dependencies": [needs], "sla_seconds": 300}

    def without_ids(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return events without their ids, times and authors."""
        own = ("idx", "at", "want_id", "source", "by")
        return [{k: v for k, v in e.items() if k not in own} for e in events]

    options = ("--needs", needs, "--ttl", "30m", "--sla", "5m", "--no-wait")
    first = document("want", "add", REF, *options, cwd=root)
    assert persist("evaluate", cwd=root).returncode == 0
    document("want", "cancel", first["want_id"], cwd=root)
    by_command = document("events", cwd=root)
    with serving(root) as served, served.client() as client:
        answer = client.post("/api/v1/wants", json={**asked, "ttl_seconds": 1800})
        assert answer.status_code == 201, answer.text
        client.post("/api/v1/evaluate", json={}).raise_for_status()
        client.delete(f"/api/v1/wants/{answer.json()['want_id']}").raise_for_status()
    by_service = document("events", "--since", str(by_command["next_idx"]), cwd=root)["events"]
    expected = without_ids(by_command["events"])
    logged = without_ids(by_service)
    assert [e["kind"] for e in expected] == ["want-created", "evaluation", "want-cancelled"]
    # Creating a want over HTTP also triggers an evaluation.
    assert [e for e in logged if e["kind"] != "evaluation"] == [
        e for e in expected if e["kind"] != "evaluation"
    ]
    assert {e["trigger"] for e in logged if e["kind"] == "evaluation"} <= {"want", "manual"}
