"""States of sources, and what pages draw of builds and environments."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.model.annotations import Annotation
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.columns import Parts
from persist_assets.core.model.plans import Reason, Step
from persist_assets.core.model.snapshots import Build, Filled, Partitions, Snapshot
from persist_assets.web.dashboard.environments import compare
from persist_assets.web.dashboard.partitions import find_earlier, has_built
from persist_assets.web.dashboard.runs import WIDTH, draw_bars, summarise, without_dead
from persist_assets.web.dashboard.sources import check_grid, draw_charts
from persist_assets.web.dashboard.status import Facts, SourceStatus, describe

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import BuildState

NOW = datetime(2024, 1, 2, 12, tzinfo=UTC)


class Named:
    """A persisted source, as far as its state depends on it."""

    source_id, build_id, key = "a@m.sql", "id-a", "m/a"

    def __init__(self, annotation: Annotation | None = None) -> None:
        self.annotation = annotation or Annotation()


def snapshot(uid: str = "u", rows: int = 3, **values: Any) -> Snapshot:
    more: dict[str, Any] = {"built_at": NOW - timedelta(hours=2), "content": "c", **values}
    return Snapshot(uid, "a@m.sql", "id-a", "a", 1, (), rows=rows, bytes=10 * rows, **more)


def build(
    uid: str, minute: int, state: BuildState = "succeeded", seconds: float | None = 30, **more: Any
) -> Build:
    started = NOW + timedelta(minutes=minute)
    ended = None if seconds is None else started + timedelta(seconds=seconds)
    values: dict[str, Any] = {"run_id": "r", "action": "built", **more}
    return Build(
        uid,
        "a@m.sql",
        "id-a",
        "d",
        "dev",
        state=state,
        started_at=started,
        finished_at=ended,
        **values,
    )


def state_of(source: Any = None, **facts: Any) -> SourceStatus:
    step = Step("a@m.sql", "reuse", "id-a", ())
    nothing: dict[str, Any] = {
        "manifest": {"id-a": snapshot()},
        "last": {},
        "building": {},
        "marks": {},
        "late_s": {},
        "steps": {"a@m.sql": step},
    }
    sources: list[Any] = [source or Named()]
    (status,) = describe(sources, Facts(NOW, **{**nothing, **facts}))
    return status


def test_a_source_with_a_current_table_is_current() -> None:
    assert state_of().states == ("current",)


def test_a_source_is_unknown_and_not_current_until_it_is_planned() -> None:
    assert state_of(steps=None).states == ("unknown",)
    assert state_of(steps={}).states == ("unknown",)


def test_a_source_without_a_table_is_unbuilt() -> None:
    due = Step("a@m.sql", "build", "id-a", (), (Reason("new", "it is new"),))
    status = state_of(manifest={}, steps={"a@m.sql": due})
    assert status.states == ("unbuilt",) and status.why == "it is new"
    assert state_of(manifest={}, steps=None).states == ("unbuilt",)


def test_a_source_that_a_build_would_change_is_stale_and_says_why() -> None:
    due = Step("a@m.sql", "build", "id-a", (), (Reason("input", "b changed"), Reason("age", "old")))
    status = state_of(steps={"a@m.sql": due})
    assert status.states == ("stale",) and status.why == "b changed; old"


def test_a_source_is_stale_while_readers_do_not_get_a_newer_table_of_another_environment() -> None:
    step = Step("a@m.sql", "reuse", "id-a", (), snapshot=snapshot("theirs"))
    status = state_of(steps={"a@m.sql": step})
    assert status.states == ("stale",) and status.why == "another environment has newer rows"
    assert state_of(manifest={"id-a": step.snapshot}, steps={"a@m.sql": step}).state == "current"


def test_the_most_urgent_state_comes_first() -> None:
    status = state_of(
        last={"a@m.sql": build("x", 0, "failed")},
        building={"a@m.sql": build("y", 1, "started", None)},
        marks={"u": frozenset({""})},
        late_s={"m/a": 61.0},
    )
    assert status.states == ("building", "failed", "late", "tainted")
    assert status.state == "building" and status.late_s == 61.0


def test_a_mark_of_another_snapshot_taints_nothing() -> None:
    assert state_of(marks={"other": frozenset({""})}).states == ("current",)


@pytest.mark.parametrize(("hours", "late"), [(1, True), (3, False)])
def test_a_table_is_late_beyond_its_freshness_window(hours: int, late: bool) -> None:
    from persist_assets.core.model.annotations import Freshness

    source = Named(replace(Annotation(), freshness=Freshness(hours * 3600)))
    status = state_of(source)
    assert ("late" in status.states) == late
    assert status.late_s == (3600.0 if late else None)


# ------------------------------------------------------------------------------------------ charts


def test_a_run_ends_with_its_last_build() -> None:
    builds = [build("a", 3), build("b", 0, seconds=90)]
    run = summarise(builds)
    assert [bar.build.build_uid for bar in draw_bars(run, builds, NOW)] == ["b", "a"]
    assert run.seconds == 3 * 60 + 30
    going_on = summarise([build("a", 0), build("b", 1, "started", None)])
    assert going_on.finished_at is None and going_on.seconds is None
    assert going_on.counts == {"built": 1, "started": 1}


def test_a_run_of_a_dead_process_has_ended() -> None:
    builds = [build("a", 0), build("b", 1, "started", None)]
    ended = without_dead(builds, {"b"})
    over = summarise(ended)
    assert over.seconds == 30 and over.counts == {"built": 1, "failed": 1}
    assert "interrupted" in (ended[1].error or "")


def test_the_bars_of_a_run_are_within_it() -> None:
    builds = [build("a", 0, seconds=0), build("b", 5, seconds=60), build("c", 5, "started", None)]
    run = summarise(builds)
    for now in (NOW, NOW + timedelta(minutes=10)):
        for bar in draw_bars(run, builds, now):
            assert 0 <= bar.x <= WIDTH and bar.width >= 2


def test_outcomes_tell_reuse_from_failure() -> None:
    assert build("a", 0, action="reused").outcome == "reused"
    assert build("a", 0, "failed", action="reused").outcome == "failed"


def test_charts_have_the_values_of_builds_in_order_of_time() -> None:
    builds = [
        build("b", 2, snapshot=snapshot(rows=5)),
        build("a", 1, snapshot=snapshot(rows=3), action="reused"),
        build("f", 3, "failed"),
        build("c", 4, snapshot=snapshot(rows=7)),
    ]
    charts = {c.unit: [v for _, v in c.points] for c in draw_charts(builds)}
    assert charts == {"rows": [3, 5, 7], "bytes": [30, 50, 70], "seconds": [30, 30, 30]}
    assert draw_charts(builds[:1]) == [], "one point is no chart"


def test_the_grid_of_checks_has_a_gap_where_a_build_did_not_run_one() -> None:
    def result(name: str, passed: bool) -> CheckResult:
        return CheckResult(name, passed, True, 0 if passed else 1, name)

    builds = [build("a", 0), build("b", 1), build("c", 2)]
    results = {"a": [result("x", True)], "b": [], "c": [result("x", False), result("y", True)]}
    shown, rows = check_grid(builds, results)
    assert [b.build_uid for b in shown] == ["a", "c"]
    assert [r and r.passed for r in rows["x"]] == [True, False]
    assert [r and r.passed for r in rows["y"]] == [None, True]


def test_a_build_has_computed_the_partitions_between_its_first_and_last() -> None:
    keys = ("10", "9", "8", "7")  # their order is not that of text
    made = snapshot(partitions=Partitions((), (("9", "8"),)))
    computed = build("a", 0, snapshot=made)
    assert [has_built(computed, key, keys) for key in keys] == [False, True, True, False]
    assert not has_built(computed, "elsewhere", keys)
    assert not has_built(build("a", 0, snapshot=made, action="reused"), "9", keys)
    assert not has_built(build("f", 0, "failed"), "9", keys)


def test_only_partitions_of_the_current_definition_are_available() -> None:
    order = ("10", "9", "8")
    places = {f"m/a/{key}": key for key in order}
    filled = Partitions((Filled((("9", "8"),), ()),))
    assert find_earlier(places, order, None) == {*places}
    assert find_earlier(places, order, snapshot(partitions=filled)) == {"m/a/10"}
    assert find_earlier({"m/a": None}, (), snapshot()) == set()
    assert find_earlier({"m/a": None}, (), None) == {"m/a"}


def test_a_comparison_lists_how_two_environments_differ() -> None:
    def of(uid: str, build_id: str = "id-a", content: str = "c", **more: Any) -> Build:
        made = replace(snapshot(uid, content=content), build_id=build_id)
        return replace(build(uid, 0, snapshot=made, **more), build_id=build_id)

    same, other = of("1"), of("2", "id-b")
    here = {"same": same, "copy": of("3"), "data": of("4"), "code": of("5"), "ours": of("6")}
    there = {
        "same": same,
        "copy": of("7"),
        "data": of("8", content="d"),
        "code": other,
        "theirs": of("9"),
    }
    assert {d.source_id: d.difference for d in compare(here, there)} == {
        "data": "the same definition, other data",
        "code": "another definition",
        "ours": "only here",
        "theirs": "only there",
    }
    with_parts = (
        {
            "x": of("1", digests=Parts("r", (("a", "1"),))),
        },
        {"x": of("2", "id-b", digests=Parts("r", (("a", "2"),)))},
    )
    assert [d.difference for d in compare(*with_parts)] == ["column a changed"]
