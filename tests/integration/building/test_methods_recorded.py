"""The ledger records the maintenance method and the cost of each build."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from growing import ONE, put
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.errors import NotIncrementalError
from persist_assets.core.model.snapshots import Cost
from persist_assets.plugin.io_manager import output_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.sources import Source

Enter = Callable[..., "Builder"] if TYPE_CHECKING else Any
METHODS = ONE + (
    """
--@ persist refresh=whole
CREATE VIEW every AS SELECT ts, x FROM t;
--@ persist refresh=strict watermark=ts
CREATE VIEW added AS SELECT ts, x, 1 AS one FROM t;
--@ persist refresh=strict watermark=ts
CREATE VIEW counted AS SELECT ts, count(*) AS n FROM t GROUP BY ts;
--@ persist refresh=strict watermark=ts merge_key=x
CREATE VIEW merged AS SELECT ts, x FROM t;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-11"
CREATE VIEW parted AS SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM t GROUP BY 1;
--@ persist refresh=snapshot key=x
CREATE VIEW versions AS SELECT x, max(ts) AS ts FROM t GROUP BY x;
--@ persist materialized=view
CREATE VIEW stored AS SELECT x FROM t;
"""
)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


def named(builder: Builder, name: str = "q") -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


def build(builder: Builder, name: str = "q", **more: Any) -> PendingBuild:
    with builder.work(named(builder, name), **more) as work:
        builder.publish(work)
    return work


@pytest.mark.slow
@pytest.mark.proves("T6")
def test_the_ledger_records_the_method_and_the_cost_of_each_strategy(
    make_project: Callable[..., Path], enter: Enter, spark: Any
) -> None:
    root = make_project({"m.sql": METHODS})
    put(root, 0, (0, "a"), (3, "b"))
    now = enter(root)
    names = [s.name for s in now.project.persisted]
    first = {name: build(now, name).build.maintenance for name in names}
    whole = ("every", "added", "counted", "merged", "stored")
    others = {"parted": "partitions", "versions": "history"}
    assert first == {**dict.fromkeys(whole, "whole"), **others}
    put(root, 1, (1, "late"), (5, "a"))
    now = enter(root)
    works = {name: build(now, name) for name in names}
    assert {name: (w.step.maintenance, w.build.maintenance) for name, w in works.items()} == {
        "every": ("whole", "whole"),
        "added": ("append", "append"),
        "counted": ("windows", "windows"),
        "merged": ("merge", "merge"),
        "parted": ("partitions", "partitions"),
        "versions": ("history", "history"),
        "stored": ("whole", "whole"),
    }
    for name, work in works.items():
        source_id = named(now, name).source_id
        (last, before) = now.ledger.builds.fetch_costs(source_id=source_id)
        assert last == now.ledger.builds.fetch_costs(build_id=named(now, name).build_id)[0]
        (build_now,) = now.ledger.builds.fetch(build_uid=work.build.build_uid)
        assert build_now.written is not None
        assert build_now.computed_s is not None
        assert 0 < build_now.computed_s <= (build_now.seconds or 0)
        assert build_now.maintenance is not None
        written = build_now.written
        assert last == Cost(
            build_now.maintenance, build_now.computed_s, written.rows, written.bytes
        )
        assert before.maintenance == first[name]
    added = now.ledger.builds.fetch_costs(source_id=named(now, "added").source_id)
    assert [(c.maintenance, c.rows) for c in added] == [("append", 2), ("whole", 2)]
    # A build that reuses a table has no method and no cost.
    again = build(enter(root), "added")
    assert (again.build.maintenance, again.maintenance) == (None, "reuse")
    assert now.ledger.builds.fetch_costs(source_id=named(now, "added").source_id) == added
    (reused,) = now.ledger.builds.fetch(build_uid=again.build.build_uid)
    assert (reused.maintenance, reused.computed_s) == (None, None)
    snapshot = works["added"].snapshot
    assert snapshot is not None
    metadata = output_metadata(now, works["added"], snapshot)
    assert metadata["persist/maintenance"] == "append"
    assert metadata["persist/why"] == "only rows that follow from rows added to t are computed"


BOUNDED = ONE + (
    "--@ persist refresh={} watermark=last assume=exact\n"
    "CREATE VIEW q AS SELECT max(CASE WHEN x <> 'none' THEN ts END) AS last, x, count(*) AS n"
    " FROM t WHERE ts > :watermark GROUP BY x;"
)


@pytest.mark.slow
@pytest.mark.proves("T6", "T7")
def test_unknown_windows_cause_a_full_build_and_fail_a_strict_one(
    make_project: Callable[..., Path], enter: Enter, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_project({"m.sql": BOUNDED.format("incremental")})
    put(root, 0, (0, "none"), (1, "a"))
    build(enter(root))
    put(root, 1, (2, "b"))
    now = enter(root)
    (step,) = now.plan([named(now).source_id]).steps
    assert step.maintenance == "windows"
    with caplog.at_level(logging.WARNING, "persist_assets"):
        work = build(now)
    why = "the windows of `last` in which rows can differ are unknown"
    assert f"`m/q` is computed in full: {why}" in caplog.messages
    assert (work.step.maintenance, work.maintenance) == ("windows", "whole")
    assert work.why == "the windows in which rows can differ are unknown"
    costs = now.ledger.builds.fetch_costs(source_id=named(now).source_id)
    assert [c.maintenance for c in costs] == ["whole", "whole"]
    (root / "sources" / "m.sql").write_text(BOUNDED.format("strict"))
    put(root, 2, (3, "c"))
    now = enter(root)
    before = now.ledger.manifests.fetch("dev")
    with pytest.raises(NotIncrementalError) as error:
        build(now)
    assert error.value.message.endswith(f"which refresh=strict forbids: {why}")
    assert now.ledger.manifests.fetch("dev") == before
    assert build(now, force=True).maintenance == "whole"


PLAIN = ONE + "--@ persist refresh={}\nCREATE VIEW q AS SELECT ts, x FROM t;"


def texts(builder: Builder) -> list[str]:
    return sorted(row["x"] for row in builder.read(named(builder)).collect())


@pytest.mark.proves("T7")
def test_a_strict_build_fails_before_it_computes_and_suggests_a_full_refresh(
    make_project: Callable[..., Path], enter: Enter
) -> None:
    root = make_project({"m.sql": PLAIN.format("strict")})
    put(root, 0, (0, "a"))
    put(root, 1, (1, "b"))
    assert build(enter(root)).maintenance == "whole"
    (root / "raw" / "1.parquet").unlink()
    put(root, 2, (2, "c"))
    now = enter(root)
    (step,) = now.plan([named(now).source_id]).steps
    assert [r.code for r in step.reasons] == ["input", "whole", "strict"]
    with pytest.raises(NotIncrementalError) as error:
        build(now)
    assert error.value.message == (
        "`q` would be computed in full, which refresh=strict forbids:"
        " rows of t changed or were removed, and its files keep no earlier version"
    )
    assert error.value.hint == "run persist build m/q --full-refresh once, or write refresh=auto"
    assert error.value.location == named(now).location
    failed = now.ledger.builds.fetch_last("dev")[named(now).source_id]
    assert (failed.state, failed.maintenance, failed.snapshot) == ("failed", None, None)
    (table,) = now.ledger.builds.fetch_table_names()
    assert len([*Path(now.settings.table_root(table)).rglob("*.parquet")]) == 1
    assert texts(enter(root)) == ["a", "b"]
    assert build(enter(root), force=True).maintenance == "whole"
    assert texts(enter(root)) == ["a", "c"]


@pytest.mark.parametrize("value", ["auto", "whole", "full", "incremental"])
def test_other_refresh_values_compute_all_rows_and_only_incremental_warns(
    value: str,
    make_project: Callable[..., Path],
    enter: Enter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = make_project({"m.sql": PLAIN.format(value)})
    put(root, 0, (0, "a"))
    put(root, 1, (1, "b"))
    build(enter(root))
    (root / "raw" / "1.parquet").unlink()
    with caplog.at_level(logging.WARNING, "persist_assets"):
        assert build(enter(root)).maintenance == "whole"
    assert texts(enter(root)) == ["a"]
    why = "rows of t changed or were removed, and its files keep no earlier version"
    warnings = [f"`m/q` is computed in full: {why}"]
    assert caplog.messages == (warnings if value == "incremental" else [])


@pytest.mark.proves("T7")
def test_another_value_of_refresh_reuses_the_table(
    make_project: Callable[..., Path], enter: Enter
) -> None:
    root = make_project({"m.sql": PLAIN.format("full")})
    put(root, 0, (0, "a"))
    build(enter(root))
    for value in ("auto", "whole", "incremental", "strict"):
        (root / "sources" / "m.sql").write_text(PLAIN.format(value))
        assert build(enter(root)).maintenance == "reuse"


def test_a_strict_source_continues_the_table_of_an_equal_incremental_source(
    make_project: Callable[..., Path], enter: Enter, spark: Any
) -> None:
    strict = PLAIN.format("strict").removeprefix(ONE).replace("VIEW q", "VIEW p")
    text = f"{PLAIN.format('incremental')}\n{strict}"
    root = make_project({"m.sql": text})
    put(root, 0, (0, "a"))
    build(enter(root))
    put(root, 1, (1, "b"))
    assert build(enter(root), "p").maintenance == "append"


def test_the_cost_of_a_parked_build_excludes_the_wait_for_publication(
    make_project: Callable[..., Path], enter: Enter
) -> None:
    ticks = count()
    start = datetime.now(UTC) - timedelta(days=1)
    root = make_project({"m.sql": PLAIN.format("auto")})
    put(root, 0, (0, "a"))
    now = enter(root, clock=lambda: start + timedelta(seconds=next(ticks)))
    parked = now.park(named(now))
    cost = parked.build.computed_s
    assert cost is not None
    for _ in range(1000):
        next(ticks)
    with now.resume(parked) as work:
        now.publish(work)
    (one,) = now.ledger.builds.fetch_costs(source_id=named(now).source_id)
    assert one.seconds == cost < 100
    (finished,) = now.ledger.builds.fetch(build_uid=work.build.build_uid)
    assert (finished.seconds or 0) > 80_000
