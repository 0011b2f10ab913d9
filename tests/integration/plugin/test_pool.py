"""Sources of a run are built ahead of their steps, several of them concurrently."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import has_taken, wait_for
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.scheduler import Pool
from persist_assets.core.errors import CheckFailedError, ConflictError, PersistError, SettingsError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

RAW = "CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';\n"
# Sleeps within a task: two of them overlap even if all cores are busy.
SLOW = "java_method('java.util.concurrent.locks.LockSupport', 'parkNanos', {ns}L) AS slept"
SLEEPER = "--@ persist\nCREATE VIEW {} AS SELECT a + {} AS a, {} FROM t WHERE a = 1;\n"


def sleepers(names: str, ns: int) -> str:
    """Return sources that take the given number of nanoseconds each."""
    slow = SLOW.format(ns=ns)
    return RAW + "".join(SLEEPER.format(name, n, slow) for n, name in enumerate(names))


CHAIN = RAW + (
    "--@ persist\nCREATE VIEW p AS SELECT a + 1 AS a FROM t;\n"
    "CREATE VIEW inline AS SELECT a * 2 AS a FROM p;\n"
    "--@ persist\nCREATE VIEW q AS SELECT sum(a) AS s FROM inline;\n"
    "--@ persist\nCREATE VIEW r AS SELECT max(a) AS s FROM t;\n"
)


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make_builder(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[..., Builder]:
    """Return a function that makes a builder for a new run of a project with one SQL file."""

    def make(sources: str = CHAIN, settings: str = "", run_id: str = "run") -> Builder:
        root = make_project({"m.sql": sources}, settings)
        if not (root / "raw").exists():
            write(root, [1, 2, 3])
        return enter(root, run_id=run_id)

    return make


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def seen(builder: Builder) -> set[str]:
    """Return the names of the sources whose tables readers see."""
    manifest = builder.ledger.manifests.fetch("dev")
    return {s.name for s in builder.project.persisted if s.build_id in manifest}


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in builder.read(named(builder, name)).collect())


@pytest.fixture
def run(load: Callable[..., dg.Definitions], instance: dg.DagsterInstance) -> Callable[..., Any]:
    """Return a function that builds all assets of a project in one run."""

    def execute(root: Path, *more: Any, only: str = "", **options: Any) -> Any:
        loaded = load(root, **options)
        job = dg.Definitions.merge(loaded, *more).resolve_implicit_global_asset_job_def()
        selection = [dg.AssetKey(["m", name]) for name in only.split()] or None
        return job.execute_in_process(
            instance=instance, raise_on_error=False, asset_selection=selection
        )

    return execute


# -------------------------------------------------------------------------------------- concurrency


@pytest.mark.slow
@pytest.mark.proves("K14")
def test_two_slow_sources_of_a_run_are_built_concurrently(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    warm = make_builder(sleepers("xy", 1))
    assert run(warm.settings.root).success
    seconds: list[float] = []
    for more in range(3):  # the best of three, because the machine may be busy
        builder = make_builder(sleepers("xy", 2 * 10**9 + more))
        result = run(builder.settings.root)
        assert result.success
        steps = {e.step_key for e in result.all_events if e.event_type_value == "STEP_SUCCESS"}
        assert steps == {"m__x", "m__y"}
        builds = builder.ledger.builds.fetch(run_id=result.run_id)
        assert {b.action for b in builds} == {"built"}
        began, ended = min(b.started_at for b in builds), max(b.finished_at for b in builds)
        seconds.append((ended - began).total_seconds())
        if seconds[-1] < 3.5:
            break
    has_taken(min(seconds), within_s=3.5, of_which_waiting_s=2.0)


def test_parallel_1_builds_one_source_at_a_time(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    builder = make_builder(sleepers("xy", 1), "parallel = 1\n")
    assert run(builder.settings.root).success
    first, second = sorted(builder.ledger.builds.fetch(), key=lambda b: b.started_at)
    assert second.started_at >= first.finished_at


@pytest.mark.parametrize(
    ("text", "message"), [("-1", "a number of sources"), ("true", "an integer")]
)
def test_invalid_values_of_parallel_are_rejected(
    make_project: Callable[..., Path], text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(make_project({}, f"parallel = {text}\n"))


def test_the_default_parallelism_is_that_of_spark(make_builder: Callable[..., Builder]) -> None:
    assert make_builder().engine.parallelism() == 2  # local[2]


# ------------------------------------------------------------------------------- parked and resumed


def test_parked_builds_are_visible_only_to_their_own_run(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    pool = Pool(builder, builder.project.persisted)
    try:
        wait_for(lambda: len(builder._parked) == 3)
        assert seen(builder) == set()
        with pool.work(named(builder, "p")) as work:
            builder.publish(work)
        assert seen(builder) == {"p"}
        with pool.work(named(builder, "q")) as work:
            assert work.step.action == "build"
            builder.publish(work)
    finally:
        pool.close()
    assert seen(builder) == {"p", "q"}
    assert rows(builder, "q") == [(18,)]
    ends = {b.source_id.partition("@")[0]: b for b in builder.ledger.builds.fetch()}
    assert ends["r"].state == "failed"
    assert ends["r"].error == "the run ended or was interrupted before it published these rows"
    # The next run is not affected.
    again = make_builder(run_id="again")
    again.build(named(again, "r"))
    assert rows(again, "r") == [(3,)]


def test_a_parked_build_reuses_a_table_that_another_run_published(
    make_builder: Callable[..., Builder],
) -> None:
    builder, other = make_builder(), make_builder(run_id="other")
    p = named(builder, "p")
    parked = builder.park(p)
    theirs = other.build(p)
    with builder.resume(parked) as work:
        builder.publish(work)
    assert work is not parked
    assert work.build.action == "reused"
    assert work.snapshot == theirs.snapshot
    assert rows(builder, "p") == [(2,), (3,), (4,)]


def test_a_parked_build_does_not_replace_a_table_of_newer_data(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    parked = builder.park(named(builder, "p"))
    write(builder.settings.root, [7])
    other = make_builder(run_id="other")
    other.build(named(other, "p"))
    with pytest.raises(ConflictError, match="changed while"), builder.resume(parked) as work:
        builder.publish(work)
    assert rows(other, "p") == [(8,)]


def test_a_parked_build_over_replaced_nondeterministic_rows_is_rebuilt(
    make_builder: Callable[..., Builder],
) -> None:
    lots = (
        "--@ persist\nCREATE VIEW p AS SELECT a, rand() AS x FROM t;\n"
        "--@ persist\nCREATE VIEW q AS SELECT max(x) AS s FROM p;\n"
    )
    builder, other = make_builder(RAW + lots), make_builder(RAW + lots, run_id="other")
    drawn, reader = builder.park(named(builder, "p")), builder.park(named(builder, "q"))
    other.build(named(other, "p"))
    for parked in (drawn, reader):
        with builder.resume(parked) as work:
            builder.publish(work)
        assert work is not parked
    assert rows(builder, "q") == [(max(x for _, x in rows(builder, "p")),)]


def test_a_parked_table_with_deleted_files_is_rebuilt(
    make_builder: Callable[..., Builder],
) -> None:
    builder = make_builder()
    work = builder.park(named(builder, "p"))
    assert work.staged is not None
    for file in work.staged.files:
        Path(builder.settings.table_root(work.table), file.path).unlink()
    with builder.resume(work) as anew:
        builder.publish(anew)
    assert rows(builder, "p") == [(2,), (3,), (4,)]


def test_equal_sources_built_concurrently_share_a_table(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    same = "".join(
        f"--@ persist\nCREATE VIEW {name} AS SELECT a + 1 AS a FROM t;\n" for name in "xyz"
    )
    builder = make_builder(RAW + same)
    assert run(builder.settings.root).success
    assert len(builder.ledger.manifests.fetch("dev")) == 1
    assert sorted(b.action for b in builder.ledger.builds.fetch()) == ["built", "reused", "reused"]


# ------------------------------------------------------------------- unselected sources

AROUND = RAW + (
    "--@ persist\nCREATE VIEW base AS SELECT a + 1 AS a FROM t;\n"
    "--@ persist\nCREATE VIEW middle AS SELECT a * 2 AS a FROM base;\n"
    "--@ persist\nCREATE VIEW other AS SELECT a * 3 AS a FROM base;\n"
    "--@ persist\nCREATE VIEW a_top AS SELECT sum(a) AS s FROM middle;\n"
)
"""Unless `middle` is selected, Dagster starts `a_top` first, although it depends on `base`."""


@pytest.mark.slow
@pytest.mark.proves("S22")
@pytest.mark.parametrize("settings", ["", "parallel = 1\n"])
def test_a_source_is_built_once_and_after_sources_upstream_of_unselected_ones(
    make_builder: Callable[..., Builder], run: Callable[..., Any], settings: str
) -> None:
    root = make_builder(AROUND, settings).settings.root
    assert run(root).success
    edited = AROUND.replace("a + 1", "a + 2").replace("sum(a)", "max(a)")
    builder = make_builder(edited, settings)
    result = run(root, only="base other a_top")
    assert result.success
    found = builder.ledger.builds.fetch(run_id=result.run_id)
    assert [b.state for b in found] == ["succeeded"] * 3
    began = {b.source_id.partition("@")[0]: b.started_at for b in found}
    assert began["base"] < began["a_top"]
    assert rows(builder, "a_top") == [(10,)]
    # Only this source has changed, and its upstream source is selected, too.
    builder = make_builder(edited.replace("max(a)", "min(a)"), settings)
    result = run(root, only="base other a_top")
    found = builder.ledger.builds.fetch(run_id=result.run_id)
    assert [b.state for b in found] == ["succeeded"] * 3
    assert rows(builder, "a_top") == [(6,)]


@pytest.mark.proves("S22")
def test_a_source_is_built_despite_a_failure_upstream_of_an_unselected_source(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    root = make_builder(AROUND).settings.root
    assert run(root).success
    broken = AROUND.replace("sum(a)", "max(a)").replace("--@ persist", BROKEN, 1)
    builder = make_builder(broken)
    result = run(root, only="base other a_top")
    found = builder.ledger.builds.fetch(run_id=result.run_id)
    states = {b.source_id.partition("@")[0]: b.state for b in found}
    assert states == {"base": "failed", "a_top": "succeeded"}
    assert rows(builder, "a_top") == [(8,)]


BROKEN = '--@ persist check { expr { few="a < 3" } }'


# ----------------------------------------------------------------------------------------- failures


def test_a_failed_build_fails_only_its_own_step(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    wrong = (
        "--@ persist\nCREATE VIEW bad AS SELECT a / (a - a) AS x FROM t;\n"
        "--@ persist\nCREATE VIEW below AS SELECT x FROM bad;\n"
        '--@ persist check { expr { few="s < 3" } }\nCREATE VIEW many AS SELECT sum(a) s FROM t;\n'
    )
    builder = make_builder(CHAIN + wrong)
    result = run(builder.settings.root)
    ends = {e.step_key: e.event_type_value for e in result.all_events if e.is_step_event}
    assert ends["m__bad"] == ends["m__many"] == "STEP_FAILURE"
    assert "m__below" not in ends
    assert seen(builder) == {"p", "q", "r"}
    (checked,) = result.get_asset_check_evaluations()
    assert not checked.passed


def test_an_error_is_raised_in_its_own_step(make_builder: Callable[..., Builder]) -> None:
    sources = (
        '--@ persist check { expr { few="s < 3" } }\nCREATE VIEW m AS SELECT sum(a) s FROM t;\n'
    )
    builder = make_builder(CHAIN + sources)
    pool = Pool(builder, builder.project.persisted)
    with pytest.raises(CheckFailedError), pool.work(named(builder, "m")):
        pass
    # A retry of its step: it is built in the step, and fails again.
    with pytest.raises(CheckFailedError), pool.work(named(builder, "m")):
        pass
    pool.close()
    failed = [b for b in builder.ledger.builds.fetch() if b.source_id.startswith("m@")]
    assert [b.state for b in failed] == ["failed", "failed"]


@pytest.mark.usefixtures("spark")
def test_a_run_that_ends_cancels_its_running_builds(
    make_builder: Callable[..., Builder],
) -> None:
    hour = SLOW.format(ns=10**6)  # a millisecond per row; Spark checks for kills every 1,000 rows
    builder = make_builder(
        "".join(
            f"--@ persist\nCREATE VIEW {name} AS SELECT id + {n} AS a, {hour} FROM range(3600000);\n"
            for n, name in enumerate("xyz")
        )
    )
    pool = Pool(builder, builder.project.persisted)
    wait_for(lambda: len(builder.ledger.builds.fetch()) == 2)
    pool.close()
    assert [b.state for b in builder.ledger.builds.fetch()] == ["failed", "failed"]
    assert not [t for t in threading.enumerate() if t.name.startswith("build_")]
    tables = Path(builder.settings.warehouse)
    assert not list(tables.rglob("*.parquet"))


def test_a_run_that_ends_does_not_wait_for_leases(make_builder: Callable[..., Builder]) -> None:
    builder = make_builder()
    held = f"build {named(builder, 'r').build_id}"
    with builder.ledger.leases.hold(held, "somebody"):
        pool = Pool(builder, builder.project.persisted)
        future = pool._begun[named(builder, "r").source_id]
        wait_for(future.running)
        pool.close()
        assert isinstance(future.exception(), ConflictError | PersistError)


# -------------------------------------------------------------------------- other assets and checks


@pytest.mark.slow
def test_sources_that_read_an_assets_table_are_built_after_the_asset(
    make_builder: Callable[..., Builder], run: Callable[..., Any], spark: Any
) -> None:
    fed_by = (
        "CREATE TABLE fed (a BIGINT) USING delta LOCATION 'raw/fed';\n"
        "CREATE VIEW over AS SELECT a FROM fed;\n"
        "--@ persist\nCREATE VIEW x AS SELECT sum(a) AS s FROM over;\n"
        "--@ persist\nCREATE VIEW y AS SELECT s + 1 AS s FROM x;\n"
    )
    builder = make_builder(CHAIN + fed_by)

    @dg.asset(key=["m", "fed"], io_manager_key="persist_io_manager")
    def fed() -> Any:
        return spark.range(5).selectExpr("id AS a")

    assert run(builder.settings.root, assets=[fed]).success
    assert rows(builder, "y") == [(11,)]


def test_a_blocking_dagster_check_holds_back_downstream_sources(
    make_builder: Callable[..., Builder], run: Callable[..., Any]
) -> None:
    builder = make_builder()
    below = Path(builder.settings.table_root(named(builder, "q").table))

    @dg.asset_check(asset=dg.AssetKey(["m", "p"]), blocking=True)
    def never() -> dg.AssetCheckResult:
        wait_for(lambda: [*below.glob("*/*.parquet")])  # `q` is built ahead of its step
        return dg.AssetCheckResult(passed=False)

    result = run(builder.settings.root, dg.Definitions(asset_checks=[never]))
    assert not result.success
    assert seen(builder) == {"p", "r"}
    states = {b.source_id.partition("@")[0]: b.state for b in builder.ledger.builds.fetch()}
    assert states == {"p": "succeeded", "q": "failed", "r": "succeeded"}


def test_concurrent_runs_of_the_same_sources_do_not_deadlock(
    make_builder: Callable[..., Builder],
) -> None:
    """Each run holds a lease that the other one waits for, in different orders."""
    builders = [make_builder(run_id=f"run {n}") for n in range(2)]
    errors: list[BaseException] = []

    def work(builder: Builder, names: str) -> None:
        pool = Pool(builder, builder.project.persisted)
        try:
            for name in names:
                with pool.work(named(builder, name)) as done:
                    builder.publish(done)
        except BaseException as error:
            errors.append(error)
        finally:
            pool.close()

    threads = [
        threading.Thread(target=work, args=(builder, names))
        for builder, names in zip(builders, ("pqr", "rpq"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert seen(builders[0]) == {"p", "q", "r"}
    assert rows(builders[0], "q") == [(18,)]
    assert {b.state for b in builders[0].ledger.builds.fetch()} <= {"succeeded", "failed"}
