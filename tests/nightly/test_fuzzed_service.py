"""Thousands of requests of all kinds to one service: answered as described, or refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fuzzing import Asked, judge, requests
from hypothesis import HealthCheck, given, settings
from serving import SOURCES, TOKENS, serving, write_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_thousands_of_requests_are_answered_as_described_or_refused(
    make_project: Callable[..., Path],
) -> None:
    root, statuses = make_project({"m.sql": SOURCES}), Counter[int]()
    write_data(root)

    @settings(max_examples=1_500, deadline=None, suppress_health_check=[*HealthCheck])
    @given(request=requests())
    def ask(request: Asked) -> None:
        statuses[judge(client, request)] += 1

    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as service, service.client(None) as client:
        ask()
        before = service.memory()
        ask()
        assert service.memory() - before < 100 * 2**20
        assert "Traceback" not in (root / "serve.log").read_text()
    print(f"\n{statuses.total():,} requests: {dict(sorted(statuses.items()))}")
    assert {200, 201, 401, 403, 404, 405, 409, 422} <= {*statuses}
