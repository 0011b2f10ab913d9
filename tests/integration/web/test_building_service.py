"""What `persist serve --build` does when the machine fails."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.web import graph
from persist_assets.web.graph import BUILD_LOG, Graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """
CREATE TABLE raw (id INT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW t AS SELECT id FROM raw;
"""


@pytest.mark.proves("W32")
def test_a_request_whose_process_cannot_start_stays_open_and_is_tried_again(
    make_project: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load_settings(make_project({"m.sql": SQL}))
    monkeypatch.setattr(graph, "_TICK_S", 0.01)
    ledger, now = Ledger(settings.ledger), datetime.now(UTC)
    ledger.wants.create([Want("w", "m/t", settings.environment, now, source={"type": "api"})])
    # No process can write its log there.
    (settings.state_dir / BUILD_LOG).mkdir(parents=True)

    def n_failed() -> int:
        return sum(r.exc_info is not None for r in caplog.records if r.msg == "action=build")

    async def serve() -> None:
        service = Graph(settings, ledger, builds=True)
        service.start()
        try:
            async with asyncio.timeout(60):
                while n_failed() < 3:
                    await asyncio.sleep(0.01)
        finally:
            await service.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(serve())
    (request,) = ledger.requests.fetch(settings.environment)
    assert request.state == "requested"
    ledger.close()
