"""What builds tell operators' tools: log lines."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persist_assets.core.logs import about

if TYPE_CHECKING:
    from collections.abc import Generator

    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.snapshots import Build

log = logging.getLogger(__name__)


@contextmanager
def during(work: PendingBuild) -> Generator[None]:
    """Let what is logged within the block say which build it is about."""
    with about(**_keys(work)):
        yield


def tell_started(work: PendingBuild) -> None:
    """Tell that a build has started."""
    if log.isEnabledFor(logging.INFO):
        more = {"action": "build-started", "method": work.step.maintenance}
        log.info("`%s` is being built", work.source.key, extra={**_keys(work), **more})


def tell_ended(work: PendingBuild, error: str | None = None) -> None:
    """Tell that a build is published, or has failed with an error."""
    if not log.isEnabledFor(logging.INFO):
        return
    keys, build = _keys(work), work.build
    outcome = "failed" if error is not None else build.action
    more: dict[str, Any] = {"action": "build-ended", "outcome": outcome, "seconds": _seconds(build)}
    if error is not None:
        more["error"] = error.split("\n")[0]
        log.error("`%s` failed: %s", work.source.key, more["error"], extra={**keys, **more})
        return
    written, snapshot = build.written, work.snapshot
    assert snapshot is not None
    if build.action == "built":
        more |= {"method": work.maintenance, "rows": snapshot.rows}
        more |= {"written": written and written.rows, "bytes": written and written.bytes}
    log.info("`%s` is %s", work.source.key, build.action, extra={**keys, **more})
    place = {"action": "published", "table": snapshot.table, "version": snapshot.version}
    log.info("`%s` is published", work.source.key, extra={**keys, **place})


def _keys(work: PendingBuild) -> dict[str, Any]:
    build = work.build
    return {
        "source": work.source.key,
        "build": build.build_uid,
        "environment": build.environment,
        "run": build.run_id,
    }


def _seconds(build: Build) -> float | None:
    """Return how long a build took until its rows were written; of one that failed, nothing."""
    seconds = build.computed_s if build.computed_s is not None else build.seconds
    return None if seconds is None else round(seconds, 3)
