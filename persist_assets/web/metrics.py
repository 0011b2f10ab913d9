"""What the service measures, as Prometheus reads it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response

    from persist_assets.core.model.project import Project
    from persist_assets.web.access import Caller
    from persist_assets.web.graph import Graph
    from persist_assets.web.requests import Nothing

log = logging.getLogger(__name__)


async def show_metrics(graph: Graph, caller: Caller, query: Nothing) -> Response:
    """Answer how much there is of everything, as Prometheus reads it."""
    environment = graph.settings.environment
    counts, position = await graph.read(
        lambda: (graph.ledger.wants.count_states(environment), graph.ledger.events.position())
    )
    label = json.dumps(environment)
    lines: list[str] = []

    def tell(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP persist_{name} {about}", f"# TYPE persist_{name} {kind}"))
        for labels, value in values.items():
            lines.append(f"persist_{name}{{environment={label}{labels}}} {value:.15g}")

    for what, about in (
        ("wants", "Wants by state."),
        ("requests", "Build requests by state."),
        ("misses", "Missed deadlines, by whether the data was delivered later."),
    ):
        by_state = {f',state="{state}"': n for state, n in sorted(counts[what].items())}
        tell(what, "gauge", about, by_state)
    tell("events_total", "counter", "Events in the log.", {"": position})
    tell("waiting", "gauge", "Clients waiting for events.", {"": graph.waiting})
    project = await graph.project()
    if project is not None:
        for name, about, values in await graph.read(lambda: _of_sources(graph, project)):
            tell(name, "gauge", about, values)
    seconds = "evaluation_seconds"
    lines += [f"# HELP persist_{seconds} Evaluations of wants in this process and their duration."]
    lines += [f"# TYPE persist_{seconds} summary"]
    lines += [f"persist_{seconds}_sum{{environment={label}}} {graph.evaluation_s:.6f}"]
    lines += [f"persist_{seconds}_count{{environment={label}}} {graph.evaluations}"]
    return PlainTextResponse(
        "\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8"
    )


def _of_sources(graph: Graph, project: Project) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """Yield the gauges of persisted sources: names, what they are about, values by labels.

    Of those of the project alone: what was once built under other names has none.
    """
    settings, ledger, now = graph.settings, graph.ledger, graph.clock()
    attempts = ledger.builds.fetch_attempts(settings.environment)
    manifest = ledger.manifests.fetch(*settings.environments)
    marks = ledger.taints.fetch(*settings.environments)
    success, failed, rows, age, late, spoilt = (dict[str, float]() for _ in range(6))
    for source in project.persisted:
        label = f",source={json.dumps(source.key, ensure_ascii=False)}"
        ended = attempts.get(source.source_id, {})
        if "succeeded" in ended:
            success[label] = ended["succeeded"][1].timestamp()
        failed[label] = ended["failed"][0] if "failed" in ended else 0
        snapshot = manifest.get(source.build_id)
        spoilt[label] = len(marks.get(snapshot.build_uid, ())) if snapshot else 0
        if snapshot is not None:
            rows[label] = snapshot.rows
            age[label] = (now - snapshot.known_at).total_seconds()
            if source.annotation.freshness is not None:
                late[label] = max(0.0, age[label] - source.annotation.freshness.window_s)
    yield (
        "source_last_success_timestamp_seconds",
        "Time of the last successful or up-to-date build of a source.",
        success,
    )
    yield "source_failed_builds", "Recorded failed builds of a source.", failed
    yield "source_rows", "Rows of the table of a source.", rows
    yield "source_age_seconds", "Age of the data of a table.", age
    yield "source_late_seconds", "How far a table exceeds its freshness window.", late
    yield "source_tainted", "Tainted partitions of a source; 1 if all of it is tainted.", spoilt
