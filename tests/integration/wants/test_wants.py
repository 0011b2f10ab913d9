"""Wants on Spark: requested partitions are built and published together, or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from serving import serving
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import BuildError, NotFoundError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Upstream
from persist_assets.core.wants import Evaluation, Request, Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.documents.wants import MissDocument
from persist_assets.operations.explain import explained
from persist_assets.wants.requests import evaluate_now, record_late, run_request, taint
from persist_assets.wants.schedules import make_wants
from persist_assets.wants.upstreams import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = datetime(2024, 1, 5, 6, tzinfo=UTC)
RAW = "CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';\n"
DAILY = """
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""
THREE = """
--@ persist
CREATE VIEW a AS SELECT sum(n) AS n FROM f;
--@ persist
CREATE VIEW b AS SELECT max(n) AS n FROM f;
--@ persist
CREATE VIEW c AS SELECT max(1 / (n - {bad})) AS n FROM f;
"""


class Graph:
    """A project, its ledger, and a clock that tests set."""

    def __init__(self, root: Path, make_engine: MakeEngine) -> None:
        self.root, self.make_engine, self.now = root, make_engine, NOW
        self.settings = load_settings(root)
        self.ledger = Ledger(self.settings.ledger, clock=lambda: self.now)

    def builder(self, request: Request | None = None) -> Builder:
        project = require(load_project(self.settings))
        engine = self.make_engine(self.settings)
        return Builder(
            self.settings, project, self.ledger, engine, request=request, clock=lambda: self.now
        )

    def want(self, ref: str, **how: Any) -> str:
        want_id = how.pop("want_id", ref)
        want = Want(want_id, ref, "dev", self.now, source={"type": "cli"}, **how)
        return self.ledger.wants.create([want])[0].want_id

    def evaluate(self, trigger: str = "want") -> tuple[Evaluation, Request | None]:
        return evaluate_now(self.builder().observer, trigger)

    def step(self) -> bool | None:
        """Evaluate, and run the build request; return None if there is none."""
        _, request = self.evaluate("clock")
        return None if request is None else run_request(self.builder(request), request)

    def states(self) -> dict[str, str]:
        asked = self.ledger.wants.fetch("dev")
        return {w.want_id: w.state for w in asked if "build_uid" not in w.source}

    def published_names(self) -> set[str]:
        return {s.source_id.partition("@")[0] for s in self.ledger.manifests.fetch("dev").values()}


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make_graph(
    make_project: Callable[..., Path], make_engine: MakeEngine
) -> Iterator[Callable[..., Graph]]:
    made: list[Graph] = []

    def make(text: str, name: str = "project") -> Graph:
        root = make_project({"m.sql": RAW + text}, name=name)
        days = [datetime(2024, 1, n).date() for n in range(1, 5)]
        table = pa.table({"day": days, "n": pa.array([1, 2, 3, 4], pa.int32())})
        write_deltalake(str(root / "f"), table)
        made.append(Graph(root, make_engine))
        return made[-1]

    yield make
    for graph in made:
        graph.ledger.close()


def test_only_the_wanted_partition_is_built(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(DAILY)
    graph.want("m/daily/2024-01-03")
    assert graph.step() is True
    assert graph.states() == {"m/daily/2024-01-03": "satisfied"}
    (snapshot,) = graph.ledger.manifests.fetch("dev").values()
    assert snapshot.partitions is not None
    assert snapshot.partitions.built == (("2024-01-03", "2024-01-03"),)
    assert graph.step() is None


@pytest.mark.proves("W10")
def test_a_layout_change_keeps_tables_and_wants_under_their_new_keys(
    make_graph: Callable[..., Graph],
) -> None:
    graph = make_graph("")
    (graph.root / "sources" / "daily.sql").write_text(DAILY)
    for day in ("02", "03"):
        graph.want(f"daily/daily/2024-01-{day}", data_timestamp=graph.now - timedelta(days=1))
        if day == "02":
            assert graph.step() is True
    (before,) = graph.ledger.manifests.fetch("dev").values()
    toml = (graph.root / "persist.toml").read_text()
    (graph.root / "persist.toml").write_text(f'layout = "model-per-file"\n{toml}')
    graph.settings = load_settings(graph.root)
    observer = graph.builder().observer
    assert [s.key for s in observer.project.persisted] == ["daily"]
    graph.want("daily/2024-01-02")
    evaluation, request = graph.evaluate()
    assert evaluation.satisfied == ("daily/2024-01-02",)
    assert request is not None
    assert request.partitions == ("daily/daily/2024-01-03",)
    assert run_request(graph.builder(request), request)
    assert {*graph.states().values()} == {"satisfied"}
    (after,) = graph.ledger.manifests.fetch("dev").values()
    assert (after.build_id, after.table) == (before.build_id, before.table)
    assert after.partitions is not None
    assert after.partitions.built == (("2024-01-03", "2024-01-03"),)


def test_a_failing_want_blocks_its_request_once_and_then_only_itself(
    make_graph: Callable[..., Graph],
) -> None:
    graph = make_graph(THREE.format(bad=2))
    for name in "abc":
        graph.want(f"m/{name}")
    assert graph.step() is False
    assert graph.published_names() == set()
    assert graph.states() == {"m/a": "waiting", "m/b": "waiting", "m/c": "failing"}
    assert graph.step() is True
    assert graph.published_names() == {"a", "b"}
    assert graph.step() is None
    graph.now += timedelta(minutes=2)
    assert graph.step() is False
    assert graph.states() == {"m/a": "satisfied", "m/b": "satisfied", "m/c": "failing"}


def test_want_projections_can_be_rebuilt_from_events(make_graph: Callable[..., Graph]) -> None:
    import sqlalchemy as sa

    from persist_assets.ledger.projections import PROJECTIONS

    graph = make_graph(THREE.format(bad=2))
    graph.want("m/a", sla_s=60, ttl_s=3600, comment="soon")
    graph.want("m/c", external_dependencies=("users:data/users",))
    graph.evaluate()
    graph.now += timedelta(hours=2)
    graph.step()

    def dump() -> list[list[Any]]:
        with graph.ledger.events.database.read() as connection:
            return [
                [*map(tuple, connection.execute(sa.select(t).order_by(*t.primary_key)))]
                for t in PROJECTIONS
            ]

    before = dump()
    graph.ledger.events.rebuild_projections()
    assert dump() == before


# --------------------------------------------------------- a graph that needs partitions of another

THEIRS = """
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW users AS SELECT day, n FROM f;
"""
OURS = """
--@ persist partition=daily time_column=day start="2024-01-01"
--@ want { sla="9h" ttl="365d" needs=["users:m/users"] }
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""
NEEDED = "m/users/2024-01-04"
WANTED = "m/daily/2024-01-04"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time on the day after that of the wanted partition."""
    return datetime(2024, 1, 5, hour, minute, tzinfo=UTC)


class Day:
    """Our graph and the upstream graph, which another process serves."""

    def __init__(self, ours: Graph, theirs: Graph, url: str) -> None:
        self.ours, self.theirs = ours, theirs
        self.users = Upstream("users", url, ("m/users/*",))

    def morning(self, hour: int, minute: int = 0) -> None:
        """Create the wants that are due, as a schedule does."""
        self.ours.now = at(hour, minute)
        make_wants(self.ours.builder().observer, "a schedule")

    def look(self, hour: int, minute: int, built: datetime | None = None) -> bool | None:
        """Sync the upstream graph and evaluate, as a sensor does; run the build request."""
        ours = self.ours
        ours.now = at(hour, minute)
        synced = sync(ours.builder().observer, self.users, environ={})
        assert synced.problem is None
        _, request = ours.evaluate("upstream" if synced.available else "clock")
        if request is None:
            return None
        ours.now = built or ours.now
        return run_request(ours.builder(request), request)

    def arrive(self, hour: int, minute: int) -> None:
        """Let the upstream graph build the needed partition."""
        self.theirs.now = at(hour, minute)
        self.theirs.want(NEEDED)
        assert self.theirs.step() is True

    def event_lines(self) -> list[tuple[str, str, str]]:
        """Return the events of our graph: time, kind and partition."""
        return [
            (f"{e.at:%H:%M}", e.kind, e.data.get("partition_ref") or "")
            for e in self.ours.ledger.events.fetch()
        ]


@pytest.fixture
def day(make_graph: Callable[..., Graph]) -> Iterator[Day]:
    theirs, ours = make_graph(THEIRS, "theirs"), make_graph(OURS, "ours")
    with serving(theirs.root) as served:
        yield Day(ours, theirs, served.url)


BUILT = [
    ("build-request-started", ""),
    ("build-started", ""),
    ("build-succeeded", ""),
    ("partition-available", WANTED),
    ("build-request-succeeded", ""),
    ("want-satisfied", WANTED),
]


@pytest.mark.proves("D31", "D10", "D14")
def test_a_partition_whose_upstream_arrives_in_time_is_built_in_time(day: Day) -> None:
    day.morning(6)
    assert day.look(6, 1) is None
    assert day.look(7, 0) is None
    day.arrive(8, 30)
    assert day.look(8, 31, built=at(8, 45)) is True
    assert day.look(9, 1) is None
    assert day.event_lines() == [
        ("06:00", "want-created", WANTED),
        ("06:01", "upstream-synced", ""),
        ("08:31", "upstream-synced", ""),
        ("08:31", "evaluation", ""),
        ("08:31", "build-requested", ""),
        *(("08:45", kind, ref) for kind, ref in BUILT),
    ]
    (want,) = day.ours.ledger.wants.fetch("dev")
    assert (want.state, want.deadline, want.ended_at) == ("satisfied", at(9), at(8, 45))
    assert want.data_timestamp == datetime(2024, 1, 5, tzinfo=UTC)
    assert day.ours.ledger.wants.fetch_misses("dev") == []


@pytest.mark.proves("D30", "D27", "D29")
def test_a_late_upstream_delays_the_build_and_records_a_missed_deadline(day: Day) -> None:
    day.morning(6)
    assert day.look(9, 0) is None
    day.ours.now = at(9, 30)
    assert record_late(day.ours.builder().observer) == 1
    assert record_late(day.ours.builder().observer) == 0
    day.arrive(11, 0)
    assert day.look(11, 1) is True
    assert day.event_lines() == [
        ("06:00", "want-created", WANTED),
        ("09:00", "upstream-synced", ""),
        ("09:30", "sla-missed", WANTED),
        ("11:01", "upstream-synced", ""),
        ("11:01", "evaluation", ""),
        ("11:01", "build-requested", ""),
        *(("11:01", kind, ref) for kind, ref in BUILT),
        ("11:01", "sla-recovered", WANTED),
    ]
    (miss,) = day.ours.ledger.wants.fetch_misses("dev")
    event_lines = MissDocument.of(miss, at(20)).as_json()
    assert (event_lines["missed_at"], event_lines["delivered_at"]) == (
        "2024-01-05T09:30:00Z",
        "2024-01-05T11:01:00Z",
    )
    assert event_lines["late_seconds"] == (2 * 60 + 1) * 60
    blame = {"partition_ref": NEEDED, "graph": "users", "cause": "not-arrived"}
    assert blame.items() <= event_lines["blame"].items()
    assert event_lines["blame"]["since"].startswith("2024-01-05T06:00:00")


@pytest.mark.proves("D36")
def test_explain_shows_the_want_request_and_build_of_a_partition(day: Day) -> None:
    day.morning(6)
    day.arrive(8, 30)
    assert day.look(8, 31) is True
    event_lines = json.loads(json.dumps(explained(day.ours.builder().observer, WANTED)))
    (want,), request, build = event_lines["wants"], event_lines["request"], event_lines["build"]
    assert want["source"]["type"] == "schedule"
    assert want["external_dependencies"] == [f"users:{NEEDED}"]
    assert want["build_request_id"] == request["build_request_id"]
    assert request["want_ids"] == [want["want_id"]]
    assert (request["state"], build["state"], build["rows"]) == ("succeeded", "succeeded", 1)
    assert build["maintenance"] == "partitions"
    assert event_lines["costs"] == [
        {
            "maintenance": "partitions",
            "seconds": build["computed_seconds"],
            "rows_written": build["rows_written"],
            "bytes_written": build["bytes_written"],
        }
    ]
    assert build["rows_written"] == 1
    assert [i["source"] for i in event_lines["inputs"]] == ["f"]
    assert event_lines["code"]["is_current"] is True
    assert event_lines["code"]["path"].endswith("m.sql")


# ------------------------------------------------------------------------------- missing partitions


def append(graph: Graph, day: int, n: int) -> None:
    table = pa.table({"day": [datetime(2024, 1, day).date()], "n": pa.array([n], pa.int32())})
    write_deltalake(str(graph.root / "f"), table, mode="append")


def write_function(graph: Graph, body: str) -> None:
    """Write the source `p`, a function of the raw table."""
    head = (
        "from persist_assets import table\n"
        "from persist_assets.core.errors import MissingUpstream\n"
        "@table\n"
        "def p(f):\n"
    )
    (graph.root / "sources" / "p.py").write_text(head + body)


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("D38")
@pytest.mark.parametrize("needed", ["m/a", "users:data/users"])
def test_a_build_that_needs_a_missing_partition_waits_until_it_is_available(
    make_graph: Callable[..., Graph], needed: str
) -> None:
    graph = make_graph("--@ persist\nCREATE VIEW a AS SELECT max(n) AS n FROM f;\n")
    write_function(
        graph,
        "    if f.filter('n > 9').isEmpty():\n"
        f"        raise MissingUpstream(['{needed}'])\n"
        "    return f\n",
    )
    graph.want("p/p")
    assert graph.step() is False
    event_lines = {w.partition_ref: w for w in graph.ledger.wants.fetch("dev")}
    waiting = event_lines["p/p"]
    assert (waiting.state, waiting.external_dependencies) == ("waiting", (needed,))
    append(graph, 4, 10)
    if needed == "m/a":
        assert event_lines["m/a"].parent == "p/p"
        assert graph.step() is True
        assert "a" in graph.published_names()
        assert "p" not in graph.published_names()
    else:
        assert graph.step() is None
        arrived = [{"partition_ref": "data/users", "state": "available"}]
        graph.ledger.upstreams.record_synced("dev", "users", "1", arrived, expected=None)
    assert graph.step() is True
    assert graph.states()["p/p"] == "satisfied"
    assert "p" in graph.published_names()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("D17")
def test_a_function_that_misses_available_data_is_retried_after_a_pause(
    make_graph: Callable[..., Graph],
) -> None:
    graph = make_graph("--@ persist\nCREATE VIEW a AS SELECT max(n) AS n FROM f;\n")
    write_function(graph, "    raise MissingUpstream(['m/a'])\n")
    graph.want("m/a")
    assert graph.step() is True
    graph.want("p/p")
    assert graph.step() is False
    (want,) = [w for w in graph.ledger.wants.fetch("dev") if w.partition_ref == "p/p"]
    assert (want.state, want.failures) == ("failing", 1)
    assert want.retry_at is not None
    assert graph.step() is None


TAINTED = """
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW twice AS SELECT day, n * 2 AS n FROM daily;
--@ persist
CREATE VIEW total AS SELECT sum(n) AS n FROM twice;
--@ persist
CREATE VIEW apart AS SELECT max(n) AS n FROM f;
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("D38")
def test_tainted_partitions_and_their_downstream_are_not_read_until_rebuilt(
    make_graph: Callable[..., Graph],
) -> None:
    graph = make_graph(TAINTED)
    builder = graph.builder()
    by_name = {s.name: s for s in builder.project.persisted}
    for source in by_name.values():
        graph.want(source.key)
    assert graph.step() is True

    def read() -> tuple[dict[str, Any], set[str]]:
        """Return the rows that readers see, and the sources whose tables they read."""
        frames = {name: graph.builder().read(source) for name, source in by_name.items()}
        warehouse = graph.settings.warehouse
        built = {n for n, f in frames.items() if any(warehouse in p for p in f.inputFiles())}
        return {n: sorted(map(tuple, f.collect())) for n, f in frames.items()}, built

    rows, built = read()
    assert built == {*by_name}
    refs = taint(builder.observer, "m/daily/2024-01-03", by="me")
    assert sorted(refs) == ["m/daily/2024-01-03", "m/total", "m/twice/2024-01-03"]
    assert read() == (rows, {"apart"})
    everything = builder.plan([s.source_id for s in by_name.values()])
    steps = {s.source_id.partition("@")[0]: (s.action, s.keys) for s in everything.steps}
    assert steps == {
        "daily": ("build", ("2024-01-03",)),
        "twice": ("build", ("2024-01-03",)),
        "total": ("build", None),
        "apart": ("reuse", None),
    }
    taint(builder.observer, "m/daily", by="me")
    alone = graph.builder()
    with pytest.raises(BuildError, match=r"twice lacks 4 partitions \(2024-01-01 to 2024-01-04\)"):
        alone.build(by_name["total"])
    alone.close()
    graph.want("m/total", want_id="again")
    assert graph.step() is True
    assert graph.states()["again"] == "satisfied"
    assert {a.state for a in graph.ledger.partitions.fetch("dev")} == {"available"}
    assert read() == (rows, built)
    with pytest.raises(NotFoundError, match="no partition"):
        taint(builder.observer, "m/daily/2024-02-30", by="me")
