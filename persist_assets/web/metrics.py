"""Metrics of the service, in the format of Prometheus."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from persist_assets.planning.takeovers import with_takeovers
from persist_assets.web.timing import BOUNDS, BUILD_BOUNDS, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response

    from persist_assets.core.model.project import Project
    from persist_assets.web.access import Caller
    from persist_assets.web.graph import Graph
    from persist_assets.web.requests import Nothing

log = logging.getLogger(__name__)

METRICS: Mapping[str, tuple[str, str]] = {
    "wants": ("gauge", "Wants by state."),
    "requests": ("gauge", "Build requests by state."),
    "misses": ("gauge", "Missed deadlines, by whether the data was delivered later."),
    "events_total": ("counter", "Events in the log."),
    "waiting": ("gauge", "Clients waiting for events."),
    "source_last_success_timestamp_seconds": (
        "gauge",
        "Time of the last successful or up-to-date build of a source; absent if there is none.",
    ),
    "source_failed_builds": ("gauge", "Recorded failed builds of a source."),
    "source_rows": ("gauge", "Rows of the table that readers get; absent if there is none."),
    "source_age_seconds": ("gauge", "Time since a table was last known to be current."),
    "source_late_seconds": (
        "gauge",
        "How far a table exceeds its freshness window; absent without a window.",
    ),
    "source_tainted": (
        "gauge",
        "Tainted partitions of a source; 1 for a tainted table without partitions.",
    ),
    "request_seconds": (
        "histogram",
        "Time to answer requests, by method, path and status, since the service began.",
    ),
    "build_seconds": (
        "histogram",
        "Time of builds that computed rows until these were written and checked, by method.",
    ),
    "evaluation_seconds": (
        "summary",
        "Evaluations of wants in this process and their duration.",
    ),
}
"""Every metric: its type and its description. The names begin with ``persist_``."""


async def show_metrics(graph: Graph, caller: Caller, query: Nothing) -> Response:
    """Answer all metrics, in the format of Prometheus."""
    text = await graph.shared("metrics", lambda: _write_metrics(graph))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _write_metrics(graph: Graph) -> str:
    environment = graph.settings.environment
    counts, position = await graph.read(
        lambda: (graph.ledger.wants.count_states(environment), graph.ledger.events.position())
    )
    label = json.dumps(environment)
    lines: list[str] = []

    def begin(name: str) -> None:
        kind, description = METRICS[name]
        lines.extend((f"# HELP persist_{name} {description}", f"# TYPE persist_{name} {kind}"))

    def write(name: str, values: Mapping[str, float]) -> None:
        begin(name)
        for labels, value in values.items():
            lines.append(f"persist_{name}{{environment={label}{labels}}} {value:.15g}")

    for name in ("wants", "requests", "misses"):
        write(name, {f',state="{state}"': n for state, n in sorted(counts[name].items())})
    write("events_total", {"": position})
    write("waiting", {"": graph.waiting})
    project = await graph.project()
    if project is not None:
        for name, values in await graph.read(lambda: _source_gauges(graph, project)):
            write(name, values)
    begin("request_seconds")
    for (method, path, status), counted in sorted(graph.latencies.counted.items()):
        labels = f'environment={label},method="{method}",path={json.dumps(path)},status="{status}"'
        values = BOUNDS, counted.counts, counted.seconds
        lines += histogram("persist_request_seconds", labels, *values)
    begin("build_seconds")
    times = await graph.read(
        lambda: graph.build_times.get(
            None, lambda: graph.ledger.costs.count_times(environment, BUILD_BOUNDS)
        )
    )
    for method, (counts, seconds) in sorted(times.items()):
        labels = f"environment={label},method={json.dumps(method)}"
        lines += histogram("persist_build_seconds", labels, BUILD_BOUNDS, counts, seconds)
    begin("evaluation_seconds")
    lines += [f"persist_evaluation_seconds_sum{{environment={label}}} {graph.evaluation_s:.6f}"]
    lines += [f"persist_evaluation_seconds_count{{environment={label}}} {graph.evaluations}"]
    return "\n".join(lines) + "\n"


def _source_gauges(graph: Graph, project: Project) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield the gauges of the project's persisted sources: names, and values by labels."""
    settings, ledger, now = graph.settings, graph.ledger, graph.clock()
    attempts, manifest, marks = graph.source_records.get(
        project,
        lambda: (
            ledger.builds.fetch_attempts(settings.environment),
            with_takeovers(project, ledger.manifests.fetch(*settings.environments)),
            ledger.taints.fetch(*settings.environments),
        ),
    )
    success, failed, rows, age, late, tainted = (dict[str, float]() for _ in range(6))
    for source in project.persisted:
        label = f",source={json.dumps(source.key, ensure_ascii=False)}"
        ended = attempts.get(source.source_id, {})
        if "succeeded" in ended:
            success[label] = ended["succeeded"][1].timestamp()
        failed[label] = ended["failed"][0] if "failed" in ended else 0
        snapshot = manifest.get(source.build_id)
        tainted[label] = len(marks.get(snapshot.build_uid, ())) if snapshot else 0
        if snapshot is not None:
            if label in success:  # `persist build` starts no build of what is up to date
                success[label] = max(success[label], snapshot.known_at.timestamp())
            rows[label] = snapshot.rows
            age[label] = (now - snapshot.known_at).total_seconds()
            if source.annotation.freshness is not None:
                late[label] = max(0.0, age[label] - source.annotation.freshness.window_s)
    yield "source_last_success_timestamp_seconds", success
    yield "source_failed_builds", failed
    yield "source_rows", rows
    yield "source_age_seconds", age
    yield "source_late_seconds", late
    yield "source_tainted", tainted
