"""What builds report to OpenTelemetry, OpenLineage and log collectors.

Builds run in a separate process, because exporters are set up once per process; and on DuckDB,
because the engine does not matter here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from receivers import Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

SQL = """
CREATE TABLE t (id INT, x STRING) USING parquet LOCATION 'raw';
--@ persist
--@ check { not_null=[id] row_count.max=10 }
CREATE VIEW a AS SELECT id, upper(x) AS big FROM t;
CREATE VIEW middle AS SELECT id AS key, big FROM a;
--@ persist
CREATE VIEW b AS SELECT key, concat(big, '!') AS loud FROM middle;
--@ persist
--@ check { row_count.max=0 }
CREATE VIEW bad AS SELECT id FROM t;
"""
UPSTREAM = '[upstream.users]\nurl = "http://127.0.0.1:9"\n'
RUN = "5e0b0f3c-8f0e-4f5e-9d57-2d3b6f8a1c11"
SCRIPT = f"""
import sys, time
from contextlib import suppress
from pathlib import Path
from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project
from persist_assets.core import logs
from persist_assets.core.errors import PersistError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.wants.requests import evaluate_now
from persist_assets.wants.upstreams import sync_all
from support.duckdb_engine import DuckDBEngine

if logs.is_json():
    logs.log_as_json(sys.stderr)
settings = load_settings(Path(sys.argv[1]))
project, ledger = load_project(settings), Ledger(settings.ledger)
builder = Builder(settings, project, ledger, DuckDBEngine(settings), run_id="{RUN}")
builder.plan([s.source_id for s in project.persisted])
began = time.monotonic()
for name in ("a", "b", "bad"):
    with suppress(PersistError):
        builder.build(project.by_id[f"{{name}}@sources/m.sql"])
took = time.monotonic() - began
builder.close()
evaluate_now(builder.observer, "manual")
sync_all(builder.observer)
ledger.close()
print(took, *(m for m in sys.modules if m in ("opentelemetry", "openlineage", "apprise")))
"""


def act(root: Path, environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Build, and return what the process printed and logged."""
    found = os.pathsep.join(str(p) for p in (ROOT, ROOT / "tests", ROOT / "tests" / "support"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)],
        env={**os.environ, "PYTHONPATH": found, "HOME": str(root), **environ},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stderr)
    return done.stdout.split(), done.stderr


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project({"m.sql": SQL}, UPSTREAM)
    (root / "raw").mkdir()
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "x": ["a", "b"]})
    pq.write_table(table, root / "raw" / "a.parquet")
    return root


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


# --------------------------------------------------------------------------------------------- logs


@pytest.mark.slow
@pytest.mark.proves("Y3")
def test_builds_log_json_with_source_build_environment_and_run(root: Path) -> None:
    _, text = act(root, {"PERSIST_LOG_FORMAT": "json"})
    lines = [json.loads(line) for line in text.splitlines()]
    ended = {line["source"]: line for line in lines if line["action"] == "build-ended"}
    assert {name: line["outcome"] for name, line in ended.items()} == {
        "m/a": "built",
        "m/b": "built",
        "m/bad": "failed",
    }
    assert (ended["m/a"]["rows"], ended["m/a"]["method"]) == (2, "whole")
    assert ended["m/bad"]["level"] == "error"
    for action in ("build-started", "build-ended"):
        of = {line["source"]: line for line in lines if line["action"] == action}
        assert {line["build"] for line in of.values()} == {x["build"] for x in ended.values()}
        assert {(line["environment"], line["run"]) for line in of.values()} == {("dev", RUN)}
    published = [line["source"] for line in lines if line["action"] == "published"]
    assert published == ["m/a", "m/b"]


@pytest.mark.slow
@pytest.mark.proves("Y4", "Y5")
def test_disabled_exporters_are_not_imported(root: Path) -> None:
    assert act(root, {})[0][1:] == []
    off = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert act(root, {**off, "OPENLINEAGE_URL": "x", "OPENLINEAGE_DISABLED": "true"})[0][1:] == []


# ------------------------------------------------------------------------------------ OpenTelemetry


def attributes_of(values: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in values}


@pytest.mark.proves("Y4")
def test_spans_and_metrics_reach_a_collector(root: Path, receiver: Receiver) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from persist_assets.core.tracing import METRICS, SPANS

    act(root, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    spans: list[Any] = []
    metrics: dict[str, Any] = {}
    for request in receiver.requests:
        if request.path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                assert attributes_of(each.resource.attributes)["service.name"] == "persist"
                spans += [span for scope in each.scope_spans for span in scope.spans]
        elif request.path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
                metrics |= {m.name: m for scope in each.scope_metrics for m in scope.metrics}
    assert {span.name for span in spans} == {f"persist.{name}" for name in SPANS}
    builds = [span for span in spans if span.name == "persist.build"]
    told = {attributes_of(s.attributes)["persist.source"]: s for s in builds}
    assert set(told) == {"m/a", "m/b", "m/bad"}
    assert len({span.trace_id for span in builds}) == 1  # one run, one trace
    assert told["m/bad"].status.code == 2 and told["m/a"].status.code == 0
    for span in builds:
        assert attributes_of(span.attributes)["persist.run"] == RUN
    publish = [span for span in spans if span.name == "persist.publish"]
    assert {span.parent_span_id for span in publish} == {told[n].span_id for n in ("m/a", "m/b")}
    assert metrics.keys() <= {f"persist.{name}" for name in METRICS}
    (point, *_) = metrics["persist.build.rows"].histogram.data_points
    assert point.sum == 2
    outcomes = {
        attributes_of(p.attributes)["persist.outcome"]: p.count
        for p in metrics["persist.build.duration"].histogram.data_points
    }
    assert outcomes.keys() == {"built", "failed"}


# -------------------------------------------------------------------------------------- OpenLineage


def events_of(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in receiver.requests]


@pytest.mark.proves("Y5")
def test_openlineage_events_have_inputs_columns_lineage_checks_and_the_run(
    root: Path, receiver: Receiver
) -> None:
    act(root, {"OPENLINEAGE_URL": receiver.url})
    events = events_of(receiver)
    told = [(e["job"]["name"], e["eventType"]) for e in events]
    assert told == [
        ("dev/m/a", "START"),
        ("dev/m/a", "COMPLETE"),
        ("dev/m/a.checks", "COMPLETE"),
        ("dev/m/b", "START"),
        ("dev/m/b", "COMPLETE"),
        ("dev/m/bad", "START"),
        ("dev/m/bad", "FAIL"),
        ("dev/m/bad.checks", "FAIL"),
    ]
    start, end, checks = events[:3]
    assert start["run"]["runId"] == end["run"]["runId"] != checks["run"]["runId"]
    assert str(uuid.UUID(end["run"]["runId"])) == end["run"]["runId"]
    assert end["run"]["facets"]["parent"]["run"]["runId"] == RUN
    raw = {"namespace": "file", "name": str(root / "raw")}
    assert [{k: i[k] for k in raw} for i in end["inputs"]] == [raw]
    (output,) = end["outputs"]
    assert (output["namespace"], output["name"]) == ("persist", "dev/m/a")
    fields = output["facets"]["schema"]["fields"]
    assert [(f["name"], f["type"]) for f in fields] == [("id", "int"), ("big", "string")]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    (origin,) = output["facets"]["columnLineage"]["fields"]["big"]["inputFields"]
    assert origin == {**raw, "field": "x", "transformations": []}
    (link,) = output["facets"]["symlinks"]["identifiers"]
    assert link["namespace"] == "file" and link["name"].startswith(str(root))
    # `middle` is not persisted, so lineage skips it.
    of_b = events[4]["outputs"][0]["facets"]["columnLineage"]["fields"]
    place = {"namespace": "persist", "name": "dev/m/a"}
    (origin,) = of_b["loud"]["inputFields"]
    assert origin == {**place, "field": "big", "transformations": []}
    facet = checks["inputs"][0]["inputFacets"]["dataQualityAssertions"]
    assert {(a["name"], a["success"]) for a in facet["assertions"]} == {
        ("not_null_id", True),
        ("row_count", True),
    }
    failed = events[6]
    assert failed["run"]["facets"]["errorMessage"]["message"]
    (assertion,) = events[7]["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["success"], assertion["severity"]) == (False, "error")


@pytest.mark.slow
@pytest.mark.proves("Y5")
def test_an_unavailable_lineage_receiver_fails_no_build(root: Path, receiver: Receiver) -> None:
    receiver.status = 500
    quick = {"OPENLINEAGE__TRANSPORT__TYPE": "http", "OPENLINEAGE__TRANSPORT__TIMEOUT": "1"}
    for url in (receiver.url, "http://127.0.0.1:9"):
        transport = {**quick, "OPENLINEAGE__TRANSPORT__URL": url}
        printed, text = act(root, {**transport, "PERSIST_LOG_FORMAT": "json"})
        assert float(printed[0]) < 30
        lines = [json.loads(line) for line in text.splitlines()]
        lost = [x["level"] for x in lines if x["action"] == "lineage"]
        assert lost and lost.count("warning") == 1  # the others have a lower level
        ended = [x["source"] for x in lines if x["action"] == "build-ended"]
        assert ended == ["m/a", "m/b", "m/bad"]
