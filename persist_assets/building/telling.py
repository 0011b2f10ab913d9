"""Observability of builds: log lines, spans and metrics, lineage."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from persist_assets.building import openlineage
from persist_assets.core.logs import about
from persist_assets.core.tracing import measure, span

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from contextlib import AbstractContextManager

    from persist_assets.building.observe import Observer
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.snapshots import Build

log = logging.getLogger(__name__)


@contextmanager
def during(work: PendingBuild) -> Generator[None]:
    """Add the build to the log lines within the block."""
    keys = _keys(work)
    with about(**keys), span("build", method=work.step.maintenance, **keys):
        yield


def publishing(works: Sequence[PendingBuild]) -> AbstractContextManager[None]:
    """Return a span for the publication of builds, all at once."""
    run = works[0].build.run_id if works else None
    return span("publish", run=run, sources=[work.source.key for work in works])


def tell_started(observer: Observer, work: PendingBuild) -> None:
    """Report that a build has started."""
    openlineage.tell(observer, work, "START")
    if log.isEnabledFor(logging.INFO):
        more = {"action": "build-started", "method": work.step.maintenance}
        log.info("`%s` is being built", work.source.key, extra={**_keys(work), **more})


def tell_ended(observer: Observer, work: PendingBuild, error: str | None = None) -> None:
    """Report that a build is published, or has failed with an error."""
    openlineage.tell(observer, work, "COMPLETE" if error is None else "FAIL", error)
    _measure(work, error)
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


def _measure(work: PendingBuild, error: str | None) -> None:
    """Record the metrics of a build that ended; reused tables take no time of their own."""
    build = work.build
    keys = {"environment": build.environment, "source": work.source.key}
    if error is not None:
        measure("build.duration", _seconds(build), outcome="failed", **keys)
    elif build.action == "built":
        method = work.maintenance
        measure("build.duration", _seconds(build), outcome="built", method=method, **keys)
        measure("build.rows", build.written and build.written.rows, **keys)
        measure("build.bytes", build.written and build.written.bytes, **keys)


def _keys(work: PendingBuild) -> dict[str, Any]:
    build = work.build
    return {
        "source": work.source.key,
        "build": build.build_uid,
        "environment": build.environment,
        "run": build.run_id,
    }


def _seconds(build: Build) -> float:
    """Return how long a build took until its rows were written, or until it failed, just now."""
    seconds = build.computed_s if build.computed_s is not None else build.seconds
    if seconds is None:
        seconds = (datetime.now(UTC) - build.started_at).total_seconds()
    return round(seconds, 3)
