"""Wants in Dagster: runs build what wants request, even if daemons restart and runs fail."""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from deltalake import write_deltalake
from serving import serving
from test_upstreams import Other

from persist_assets import load_sources
from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin import wants as turns
from persist_assets.plugin.runs import run_assets
from persist_assets.plugin.runtime import ORIGIN_TAG
from persist_assets.plugin.wants import REQUEST_TAG
from persist_assets.wants.upstreams import sync_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCES = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist check { not_null=[n] }
CREATE VIEW total AS SELECT sum(n) AS n FROM f;
--@ persist
CREATE VIEW bad AS SELECT max(1 / (n - 2)) AS n FROM f;
"""
DAILY, TOTAL = dg.AssetKey(["m", "daily"]), dg.AssetKey(["m", "total"])


class Location:
    """A code location, its ledger and its instance; tests act as the daemon."""

    def __init__(self, root: Path, spark: Any, instance: dg.DagsterInstance) -> None:
        self.root, self.instance = root, instance
        session = dg.ResourceDefinition.hardcoded_resource(SimpleNamespace(spark_session=spark))
        self.definitions = load_sources(root / "sources", resources={"pyspark": session})
        self.ledger = Ledger(load_settings(root).ledger)
        self.cursor: str | None = None
        self.seen: set[str | None] = set()

    def want(self, ref: str, **how: Any) -> None:
        want = Want(how.pop("want_id", ref), ref, "dev", datetime.now(UTC), **how)
        self.ledger.wants.create([want])

    def turn(self) -> tuple[list[dg.RunRequest], str]:
        """Evaluate the sensor as the daemon does, which starts one run per run key."""
        sensor = self.definitions.resolve_sensor_def("persist_wants")
        with dg.build_sensor_context(
            instance=self.instance, definitions=self.definitions, cursor=self.cursor
        ) as context:
            found = sensor.evaluate_tick(context)
        self.cursor = found.cursor
        new = [r for r in found.run_requests or () if r.run_key not in self.seen]
        self.seen |= {r.run_key for r in new}
        return new, found.skip_message or ""

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def("persist_request")
        return job.execute_in_process(
            instance=self.instance, tags=dict(request.tags), raise_on_error=False
        )

    def states(self) -> dict[str, str]:
        asked = self.ledger.wants.fetch("dev")
        return {w.want_id: w.state for w in asked if "build_uid" not in w.source}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as made:
        yield made


@pytest.fixture
def locate(
    make_project: Callable[..., Path], spark: Any, instance: dg.DagsterInstance
) -> Iterator[Callable[..., Location]]:
    made: list[Location] = []

    def make(text: str = SOURCES, settings: str = "") -> Location:
        root = make_project({"m.sql": text}, settings)
        days = [datetime(2024, 1, n).date() for n in range(1, 5)]
        table = pa.table({"day": days, "n": pa.array([1, 2, 3, 4], pa.int32())})
        write_deltalake(str(root / "f"), table)
        made.append(Location(root, spark, instance))
        return made[-1]

    yield make
    for location in made:
        location.ledger.close()


@pytest.mark.slow
@pytest.mark.proves("D13")
def test_wants_are_built_in_one_run_that_records_its_materializations(
    locate: Callable[..., Location],
) -> None:
    location = locate()
    location.want("m/daily/2024-01-02")
    location.want("m/daily/2024-01-03")
    location.want("m/total")
    (request,), _ = location.turn()
    cursor = location.cursor
    assert location.turn()[0] == []
    location.cursor = None  # a restarted daemon requests the same run
    assert location.turn()[0] == []
    location.cursor = cursor
    assert location.run(request).success
    assert {*location.states().values()} == {"satisfied"}
    found = location.instance.get_materialized_partitions(DAILY)
    assert found == {"2024-01-02", "2024-01-03"}
    (record,) = location.instance.fetch_materializations(TOTAL, limit=9).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["dagster/row_count"].value == 1
    done = location.ledger.requests.find(request.tags[REQUEST_TAG])
    assert done is not None
    assert done.run_id == record.run_id
    assert location.turn()[0] == []


@pytest.mark.slow
@pytest.mark.proves("D16")
@pytest.mark.proves("D17")
def test_a_failed_request_fails_its_run_and_the_next_run_builds_the_rest(
    locate: Callable[..., Location],
) -> None:
    location = locate()
    location.want("m/total")
    location.want("m/bad")
    (request,), _ = location.turn()
    assert not location.run(request).success
    assert location.instance.fetch_materializations(TOTAL, limit=1).records == []
    assert location.states() == {"m/total": "waiting", "m/bad": "failing"}
    (request,), _ = location.turn()
    assert location.run(request).success
    assert location.states() == {"m/total": "satisfied", "m/bad": "failing"}


@pytest.mark.slow
@pytest.mark.proves("D17")
@pytest.mark.proves("U7")
def test_a_request_that_fails_a_check_reports_its_result(locate: Callable[..., Location]) -> None:
    location = locate(CHAIN)
    days = pa.array([datetime(2024, 1, 4).date()])
    statuses: list[str] = []
    for n in (5, -50):
        more = pa.table({"day": days, "n": pa.array([n], pa.int32())})
        write_deltalake(str(location.root / "f"), more, mode="append")
        location.want("m/total", want_id=f"{n}")
        (request,), _ = location.turn()
        assert location.run(request).success == (n > 0)
        history = location.instance.event_log_storage.get_asset_check_execution_history
        latest = history(dg.AssetCheckKey(TOTAL, "expr_positive"), limit=1)[0]
        statuses.append(latest.status.value)
    assert statuses == ["SUCCEEDED", "FAILED"]


@pytest.mark.slow
@pytest.mark.proves("U7")
def test_deadlines_are_reported_once_although_a_turn_has_no_time_for_all(
    locate: Callable[..., Location], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_LONGEST_S", -1)
    location = locate(SCHEDULED.replace(' needs=["users:data/users"]', ""), "[env.prod]\n")
    location.turn()
    for n in range(1, 4):
        location.want(
            f"m/daily/2024-01-0{n}",
            data_timestamp=datetime(2024, 1, n, tzinfo=UTC),
            external_dependencies=("users:data/users",),
            sla_s=1,
        )
    history = location.instance.event_log_storage.get_asset_check_execution_history
    check = dg.AssetCheckKey(DAILY, "sla")
    reported: list[int] = []
    for _ in range(8):
        location.turn()
        reported.append(len(history(check, limit=99)))
    n_late = len(location.ledger.wants.fetch_misses("dev", only_open=True))
    assert n_late == 4
    assert reported[:3] == [2, 3, 4]  # one a turn, after that of the scheduled want
    assert reported[-1] == n_late
    # A run of the check looks at the environment of the run.
    job = dg.define_asset_job("late", selection=dg.AssetSelection.checks(check))
    definitions = dg.Definitions.merge(location.definitions, dg.Definitions(jobs=[job]))
    late = definitions.resolve_job_def("late")
    passed: dict[object, bool] = {}
    for environment in ("dev", "prod"):
        done = late.execute_in_process(
            instance=location.instance, tags={"persist/environment": environment}
        )
        (result,) = done.get_asset_check_evaluations()
        passed[result.metadata["environment"].value] = result.passed
    assert passed == {"dev": False, "prod": True}


@pytest.mark.slow
@pytest.mark.proves("D18")
def test_idle_sensor_ticks_start_no_runs_and_log_no_events(locate: Callable[..., Location]) -> None:
    location = locate()
    location.want("m/total", external_dependencies=("users:data/users",), sla_s=86_400)
    for _ in range(3):
        location.turn()
    before, cursor = location.ledger.events.position(), location.cursor
    for _ in range(1_000):
        assert location.turn()[0] == []
    assert (location.ledger.events.position(), location.cursor) == (before, cursor)


CHAIN = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW zdaily AS SELECT day, n + 1 AS n FROM daily;
--@ persist partition { day=daily n=[1, 2] } start="2024-01-01" end="2024-01-05"
CREATE VIEW pairs AS SELECT day, n FROM f;
--@ persist check { expr { positive="n > 0" } }
CREATE VIEW total AS SELECT sum(n) AS n FROM f;
--@ persist
CREATE VIEW atotal AS SELECT n * 2 AS n FROM total;
"""
WANTED = ("m/zdaily/2024-01-02", "m/pairs/2024-01-02|2", "m/atotal")


CHAINED = ("daily", "zdaily", "pairs", "total", "atotal")


def stale(location: Location, *names: str) -> dict[str, str]:
    """Return what Dagster considers stale, with the causes."""
    graph = location.definitions.resolve_asset_graph()
    instance = location.instance
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    found: dict[str, str] = {}
    for name in names or CHAINED:
        key = dg.AssetKey(["m", name])
        for part in sorted(instance.get_materialized_partitions(key)) or [None]:
            causes = resolver.get_stale_causes(key, part)
            status = resolver.get_status(key, part)
            assert (status is StaleStatus.STALE) == bool(causes)
            if status is not StaleStatus.FRESH:
                told = "; ".join(c.reason for c in causes) or status.value
                found[name if part is None else f"{name}/{part}"] = told
    return found


def tags(location: Location, name: str) -> dict[str, str]:
    """Return the tags of the last materialization, without its pointers to input events."""
    (record,) = location.instance.fetch_materializations(dg.AssetKey(["m", name]), limit=1).records
    told = record.asset_materialization
    assert told is not None
    pointers = {k: v for k, v in (told.tags or {}).items() if "input_event_pointer" in k}
    assert pointers
    assert all(v.isdigit() for v in pointers.values())
    return {k: v for k, v in (told.tags or {}).items() if k not in pointers}


@pytest.mark.slow
@pytest.mark.proves("K19")
def test_dagster_sees_assets_built_by_requests_as_fresh_as_those_of_ordinary_runs(
    locate: Callable[..., Location],
) -> None:
    location = locate(CHAIN)

    def build(*refs: str) -> None:
        for ref in refs:
            location.want(ref, want_id=f"{ref} {location.ledger.events.position()}")
        (request,), _ = location.turn()
        assert location.run(request).success

    def ordinary(partition: str | None, *names: str) -> None:
        job = location.definitions.resolve_implicit_global_asset_job_def()
        keys = [dg.AssetKey(["m", name]) for name in names]
        done = job.execute_in_process(
            instance=location.instance, asset_selection=keys, partition_key=partition
        )
        assert done.success

    build(*WANTED)
    assert stale(location) == {}
    by_request = {n: tags(location, n) for n in CHAINED}
    (check,) = location.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(TOTAL, "expr_positive"), limit=9
    )
    assert check.status.value == "SUCCEEDED"
    ordinary("2024-01-02", "daily", "zdaily")
    ordinary("2024-01-02|2", "pairs")
    ordinary(None, "total", "atotal")
    for name, found in by_request.items():
        told = tags(location, name)
        if name == "zdaily":  # an ordinary run records a digest of the partition versions
            of_daily = "dagster/input_data_version/m/daily"
            assert found.pop(of_daily) == by_request["daily"]["dagster/data_version"]
            del told[of_daily]
        assert found == told, name
    assert "dagster/partition/day" in by_request["pairs"]

    # Changed data makes them stale once Dagster knows it, and a build makes them fresh.
    days = [datetime(2024, 1, 2).date()]
    table = pa.table({"day": days, "n": pa.array([2], pa.int32())})
    write_deltalake(str(location.root / "f"), table, mode="append")
    ordinary(None, "total")
    changed = "has a new dependency data version"
    assert stale(location) == {
        "daily/2024-01-02": changed,
        "pairs/2024-01-02|2": changed,
        "atotal": changed,
    }
    build(*WANTED)
    assert stale(location) == {}
    sensor = location.definitions.resolve_sensor_def("persist_stale")
    with dg.build_sensor_context(
        instance=location.instance, definitions=location.definitions
    ) as context:
        found = sensor.evaluate_tick(context).run_requests or ()
    asked = {k.path[-1] for r in found for k in r.asset_selection or ()}
    assert asked == {"daily", "zdaily", "pairs"}, "of these other partitions were never built"


def test_a_run_canceled_before_it_starts_fails_its_request(
    locate: Callable[..., Location],
) -> None:
    location = locate()
    location.want("m/total")
    (request,), _ = location.turn()
    job = location.definitions.resolve_job_def("persist_request")
    run = location.instance.create_run_for_job(job, tags=dict(request.tags))
    location.turn()
    assert location.states() == {"m/total": "requested"}
    location.instance.report_run_canceled(run)
    location.turn()
    ended = location.ledger.requests.find(request.tags[REQUEST_TAG])
    assert ended is not None
    assert (ended.state, ended.error) == ("failed", "its run ended before it started")
    assert location.states() == {"m/total": "waiting"}  # and is requested again after a pause


def test_a_run_that_died_fails_its_request(locate: Callable[..., Location]) -> None:
    location = locate()
    location.want("m/total")
    (request,), _ = location.turn()
    location.ledger.requests.start(request.tags[REQUEST_TAG], "a run that was killed")
    location.turn()
    ended = location.ledger.requests.find(request.tags[REQUEST_TAG])
    assert ended is not None
    assert ended.error == "its run ended, and no reason was recorded"


@pytest.mark.slow
@pytest.mark.proves("D4")
def test_wants_of_builds_record_who_started_them(locate: Callable[..., Location]) -> None:
    location = locate()
    job = location.definitions.resolve_implicit_global_asset_job_def()
    for tags in (
        {"dagster/schedule_name": "nightly"},
        {"dagster/sensor_name": "persist_stale"},
        {ORIGIN_TAG: json.dumps({"user": "ada", "host": "here"})},
        {".dagster/repository": "r@l"},
        {},
    ):
        done = job.execute_in_process(
            instance=location.instance,
            asset_selection=[TOTAL],
            tags={**tags, "persist/force": "true"},
        )
        assert done.success
    found = [w.source for w in location.ledger.wants.fetch("dev")]
    assert [w["type"] for w in found] == ["schedule", "sensor", "cli", "dashboard", "api"]
    assert found[0]["schedule"] == "nightly"
    assert (found[2]["user"], found[2]["host"]) == ("ada", "here")


EVERY_WAY = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist want { every=daily }
CREATE VIEW total AS SELECT sum(n) AS n FROM daily;
--@ persist
CREATE VIEW bad AS SELECT max(1 / (n - 2)) AS n FROM f;
"""


@pytest.mark.slow
@pytest.mark.proves("D1", "D4")
def test_every_build_has_a_want_whatever_started_it(
    locate: Callable[..., Location], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    location = locate(EVERY_WAY)
    settings = load_settings(location.root)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PERSIST_ENV", "dev")  # `run_assets` sets them; `monkeypatch` restores them
    schedule = location.definitions.resolve_schedule_def("persist_scheduled_wants")
    with (
        serving(location.root) as served,
        served.client(token=None) as client,
        dg.build_schedule_context(instance=location.instance) as context,
    ):
        asked = client.post("/api/v1/wants", json={"partition_ref": "m/daily/2024-01-01"})
        assert asked.status_code == 201, asked.text
        (token,) = {*re.findall(r'name="form_token" value="([^"]+)"', client.get("/wants").text)}
        form = {"partition_ref": "m/daily/2024-01-02", "form_token": token}
        assert client.post("/wants", data=form).status_code == 303
        schedule.evaluate_tick(context)
    location.want("m/bad", source={"type": "api"})  # as users of the Python API may
    while requests := location.turn()[0]:
        for request in requests:
            location.run(request)
    chosen = [s for s in load_project(settings).persisted if s.name == "daily"]
    assert run_assets(settings, chosen, force=True, verbose=False).success
    job = location.definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(
        instance=location.instance, asset_selection=[TOTAL], tags={".dagster/repository": "r@l"}
    ).success

    events, _ = location.ledger.events.search(0)
    made = [e.data for e in events if e.kind == "want-created"]
    assert {(w["source"]["type"], w["partition_ref"].rpartition("/")[0]) for w in made} == {
        ("api", "m/daily"),
        ("dashboard", "m/daily"),
        ("schedule", "m"),
        ("api", "m"),
        ("cli", "m/daily"),
        ("dashboard", "m"),
    }
    wants = {w["want_id"] for w in made}
    requests = {e.data["build_request_id"]: e for e in events if e.kind == "build-requested"}
    assert all({*e.data["want_ids"]} <= wants != set() for e in requests.values())
    begun: dict[str, Any] = {}
    for event in events:
        if event.kind.startswith("build-") and "build_uid" in event.data:
            if event.kind == "build-started":
                begun[event.data["build_uid"]] = event.data
            told, of = event.data, begun[event.data["build_uid"]]
            assert told["build_request_id"] == of["build_request_id"], event
            assert ({*of["want_ids"]} & wants) or of["build_request_id"] in requests, event
    assert {e.kind for e in events} >= {"build-started", "build-succeeded", "build-failed"}


SCHEDULED = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01"
--@ want { sla="1s" needs=["users:data/users"] }
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""


@pytest.mark.slow
@pytest.mark.proves("D14")
@pytest.mark.proves("U7")
def test_upstream_partitions_trigger_builds_and_missed_deadlines_call_the_webhook(
    locate: Callable[..., Location], tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []
    down = threading.Event()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            if not down.is_set():
                told.append(json.loads(text))
            self.send_response(503 if down.is_set() else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    hook = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    other = Other(f"sqlite:///{tmp_path}/other.db")
    location = locate(
        SCHEDULED,
        f'[upstream.users]\nurl = "{other.url}"\n'
        f'[sla]\nwebhook = "http://127.0.0.1:{hook.server_port}/"\n',
    )
    try:
        down.set()
        requests, message = location.turn()
        assert requests == []
        assert "webhook" in message
        down.clear()
        location.turn()
        location.turn()
        assert [t["kind"] for t in told] == ["sla-missed"]
        assert told[0]["blame"]["graph"] == "users"
        yesterday = f"{(datetime.now(UTC) - timedelta(days=1)).date()}"
        other.happens("partition-available", f"data/users/{yesterday}")
        (request,), _ = location.turn()
        made = location.ledger.requests.find(request.tags[REQUEST_TAG])
        assert made is not None
        assert (made.trigger, made.partitions) == ("upstream", (f"m/daily/{yesterday}",))
        assert location.run(request).success
        location.turn()
        assert [t["kind"] for t in told] == ["sla-missed", "sla-recovered"]
        upstream = dg.AssetKey(["users", "data", "users"])
        assert location.instance.fetch_materializations(upstream, limit=9).records
        # The upstream partition is a parent in the graph, and affects neither runs nor freshness.
        graph = location.definitions.resolve_asset_graph()
        assert graph.get(DAILY).parent_keys == {upstream, dg.AssetKey(["m", "f"])}
        assert stale(location, "daily") == {}
        # Another process reads this one, or a turn that ended before its report.
        other.happens("partition-available", "data/users/2024-01-01")
        settings = load_settings(location.root)
        sync_all(Observer(settings, load_project(settings), location.ledger))
        location.turn()
        location.turn()
        assert len(location.instance.fetch_materializations(upstream, limit=9).records) == 2
        assert stale(location, "daily") == {}
        job = location.definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(
            instance=location.instance, asset_selection=[DAILY], partition_key="2024-01-02"
        ).success
        assert stale(location, "daily") == {}
    finally:
        hook.shutdown()
        hook.server_close()
        other.close()


@pytest.mark.slow
def test_external_dependencies_neither_block_nor_trigger_automation(
    locate: Callable[..., Location],
) -> None:
    text = """
    CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
    --@ persist
    CREATE VIEW total AS SELECT sum(n) AS n FROM f;
    --@ persist automation=eager want { every=daily needs=["users:data", "m:total"] }
    CREATE VIEW twice AS SELECT n * 2 AS n FROM total;
    """
    location = locate(text)
    graph = location.definitions.resolve_asset_graph()
    twice, elsewhere = dg.AssetKey(["m", "twice"]), dg.AssetKey(["users", "data"])
    assert graph.get(twice).parent_keys == {elsewhere, TOTAL}
    assert graph.get(elsewhere).is_external
    cursor: Any = None

    def requested() -> bool:
        nonlocal cursor
        found = dg.evaluate_automation_conditions(
            location.definitions, location.instance, cursor=cursor
        )
        cursor = found.cursor
        return any(r.true_subset.size for r in found.results if r.key == twice)

    def build(key: dg.AssetKey) -> None:
        job = location.definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=location.instance, asset_selection=[key]).success

    requested()
    build(TOTAL)
    assert requested(), "though nobody has told of what it needs elsewhere"
    build(twice)
    assert not requested()
    location.instance.report_runless_asset_event(dg.AssetMaterialization(elsewhere))
    assert not requested()


DEADLINES = """
CREATE TABLE f (day DATE, ts TIMESTAMP, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" want { sla="9h" }
CREATE VIEW utc AS SELECT day, n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" timezone="Asia/Tokyo" want.sla="90m"
CREATE VIEW tokyo AS SELECT day, n + 1 AS n FROM f;
--@ persist partition { day=weekly n=[1, 2] } start="2024-01-01" timezone="Europe/Berlin"
--@ want.sla="33h"
CREATE VIEW berlin_weeks AS SELECT day, n FROM f;
--@ persist partition=monthly time_column=day start="2024-01-01" want.sla="2d"
CREATE VIEW months AS SELECT day, n + 2 AS n FROM f;
--@ persist partition=hourly time_column=ts start="2024-01-01" want.sla="20m"
CREATE VIEW hours AS SELECT ts, n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" want.sla="9h"
--@ freshness.window="3d"
CREATE VIEW explicit AS SELECT day, n + 3 AS n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" timezone="Europe/Berlin"
--@ want.sla="9h"
CREATE VIEW berlin AS SELECT day, n + 4 AS n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" want.sla="25h"
CREATE VIEW too_late AS SELECT day, n + 5 AS n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" want.sla="30s"
CREATE VIEW too_soon AS SELECT day, n + 6 AS n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-02-01" want.sla="9h"
CREATE VIEW ended AS SELECT day, n + 7 AS n FROM f;
--@ persist partition=daily time_column=day start="2024-01-01" want.ttl="9d"
CREATE VIEW no_sla AS SELECT day, n + 8 AS n FROM f;
--@ persist want { every=daily sla="9h" }
CREATE VIEW whole AS SELECT sum(n) AS n FROM f;
"""


@pytest.mark.proves("K9")
def test_deadlines_that_cron_can_express_become_freshness_policies(
    locate: Callable[..., Location],
) -> None:
    graph = locate(DEADLINES).definitions.resolve_asset_graph()

    def of(name: str) -> dg.FreshnessPolicy | None:
        return graph.get(dg.AssetKey(["m", name])).freshness_policy

    cron, hours = dg.FreshnessPolicy.cron, lambda n: timedelta(hours=n)
    assert of("utc") == cron("0 9 * * *", hours(9), "UTC")
    assert of("tokyo") == cron("30 1 * * *", hours(1.5), "Asia/Tokyo")
    assert of("berlin_weeks") == cron("0 9 * * 2", hours(33), "Europe/Berlin")
    assert of("months") == cron("0 0 3 * *", hours(48), "UTC")
    assert of("hours") == cron("20 * * * *", hours(1 / 3), "UTC")
    assert of("explicit") == dg.FreshnessPolicy.time_window(hours(72))
    for name in ("berlin", "too_late", "too_soon", "ended", "no_sla", "whole"):
        assert of(name) is None, name
