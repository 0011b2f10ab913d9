"""What a plan reports about its work: reasons for the method, volume read, expected time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import with_programs_of
from test_planner import build, fresh, snapshot

from persist_assets.cli.application import in_bytes
from persist_assets.cli.plan import _costs, plan_tree
from persist_assets.core.model.columns import Column
from persist_assets.core.model.plans import (
    Change,
    Estimates,
    Feed,
    Piece,
    Plan,
    Reason,
    Step,
    Volume,
)
from persist_assets.core.model.snapshots import Cost, KeptState
from persist_assets.operations.documents.plans import StepDocument
from persist_assets.planning.costs import (
    Experience,
    builds_to_wait,
    experience_of,
    owed_after,
)
from persist_assets.planning.inputs import as_of, drawn
from persist_assets.planning.maintenance import why_all_rows
from persist_assets.planning.planner import plan
from persist_assets.planning.volumes import of_change, of_pieces, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.planning.world import World

MB = 1_000_000
RAW = """
CREATE TABLE t (id INT, usr INT, amt DECIMAL(10,2), f DOUBLE, day DATE, m MAP<STRING, INT>) USING delta LOCATION 't';
CREATE TABLE u (usr INT, name STRING) USING delta LOCATION 'u';
"""
T, U = "t@sources/a.sql", "u@sources/a.sql"
GREW = Change(added=(Piece("t/1", bytes=2 * MB, rows=20),), total_bytes=500 * MB)
CHANGED = Change(
    added=(Piece("t/1", bytes=2 * MB, rows=20),),
    lost=(Piece("t/0", bytes=1 * MB, rows=10),),
    total_bytes=500 * MB,
)
SIZES = {T: Volume(5000, 500 * MB), U: Volume(7, 3 * MB)}
WHOLE = Cost("whole", 40.0, 10, 100)
JOINED = "SELECT id, name FROM t JOIN u USING (usr)"
GROUPED = "SELECT usr, sum(f) AS s FROM t GROUP BY usr"
LIMITED = "SELECT id FROM t\nORDER BY id\nLIMIT 5 OFFSET 1"


def project_of(query: str, annotation: str = "") -> Project:
    made = with_programs_of({"a.sql": f"{RAW}--@ persist {annotation}\nCREATE VIEW p AS {query};"})
    assert not made.errors, made.errors
    return made


def after(
    made: Project,
    changes: Mapping[str, Change | None],
    *,
    costs: tuple[Cost, ...] = (WHOLE,),
    states: tuple[KeptState, ...] = (),
) -> World:
    """Return a world in which `p` is built, and tables changed since."""
    source, world = made.by_id["p@sources/a.sql"], fresh(made)
    present = snapshot(source, drawn(as_of(made, source, world), source, "uid"))
    present = replace(present, states=states)
    tables = [s.source_id for s in made.inputs(source)]
    known = {t: changes.get(t, Change()) for t in tables}
    changed = {t: "files:2" for t in changes}
    return replace(
        world,
        manifest={source.build_id: present},
        history={source.source_id: build(source, present)},
        versions={**world.versions, **changed},
        changes={source.source_id: known},
        costs={source.build_id: costs},
        sizes=SIZES,
    )


def step_of(made: Project, world: World, *, force: bool = False) -> Step:
    return plan(made, ["p@sources/a.sql"], world, force=force).steps[0]


@pytest.mark.proves("T12")
@pytest.mark.parametrize(
    ("query", "annotation", "changes", "method", "reads"),
    [
        # The changed files, and the table that they are joined with.
        (JOINED, "", {T: GREW}, "append", Volume(20 + 7, 5 * MB)),
        # Removed rows are read too.
        (JOINED, "", {T: CHANGED}, "keys", Volume(30 + 7, 6 * MB)),
        # Both tables changed: each is searched for the keys of the other's change.
        (JOINED, "", {T: GREW, U: GREW}, "append", Volume(40 + 5007, 507 * MB)),
        # The table is searched for touched keys.
        (GROUPED, "", {T: GREW}, "keys", Volume(20 + 5000, 502 * MB)),
        # Only the changed files.
        ("SELECT id FROM t WHERE usr = 1", "", {T: CHANGED}, "keys", Volume(30, 3 * MB)),
        # All rows of all tables.
        (LIMITED, "", {T: GREW}, "whole", Volume(5000, 500 * MB)),
        (JOINED, "refresh=whole", {T: GREW}, "whole", Volume(5007, 503 * MB)),
        # Added files, by the methods of a time column.
        (
            "SELECT id, day FROM t",
            "refresh=incremental watermark=day",
            {T: GREW},
            "append",
            Volume(20, 2 * MB),
        ),
        (
            "SELECT day, count(*) AS n FROM t GROUP BY day",
            "refresh=incremental watermark=day",
            {T: GREW},
            "windows",
            None,
        ),
    ],
)
def test_a_plan_reports_the_maximum_volume_that_its_builds_read(
    query: str, annotation: str, changes: dict[str, Change], method: str, reads: Volume | None
) -> None:
    made = project_of(query, annotation)
    step = step_of(made, after(made, changes))
    assert (step.maintenance, step.reads) == (method, reads)
    document = StepDocument.of(made, step).as_json()
    expected = {"rows": reads.rows, "bytes": reads.bytes} if reads else None
    assert document["reads"] == expected


@pytest.mark.proves("T12")
def test_merged_aggregates_read_only_changed_files() -> None:
    made = project_of("SELECT usr, sum(amt) AS s FROM t GROUP BY usr")
    source = made.by_id["p@sources/a.sql"]
    none: frozenset[str] = frozenset()
    (definition,) = made.merging(source.source_id, none, none).definitions
    step = step_of(made, after(made, {T: CHANGED}, states=(KeptState(definition, 3),)))
    assert (step.maintenance, step.reads) == ("merge", Volume(30, 3 * MB))


def test_a_reused_table_reads_nothing() -> None:
    made = project_of(JOINED)
    step = step_of(made, after(made, {}))
    assert (step.action, step.reads, step.expected) == ("reuse", None, None)
    assert StepDocument.of(made, step).as_json()["reads"] is None


def test_a_first_build_reads_everything() -> None:
    made = project_of(JOINED)
    step = step_of(made, replace(fresh(made), sizes=SIZES))
    assert (step.maintenance, step.why, step.reads) == (
        "whole",
        "never built",
        Volume(5007, 503 * MB),
    )
    unknown = step_of(made, replace(fresh(made), sizes={T: SIZES[T]}))
    assert unknown.reads == Volume(None, None)


@pytest.mark.proves("T12")
def test_a_plan_estimates_the_time_of_incremental_and_full_builds() -> None:
    made = project_of(GROUPED)
    step = step_of(made, after(made, {T: GREW}))
    expected = step.expected
    assert expected is not None
    assert (expected.whole_s, expected.is_measured, expected.prefers_delta) == (40.0, True, True)
    assert StepDocument.of(made, step).as_json()["expected"] == {
        "maintained_seconds": expected.delta_s,
        "whole_seconds": 40.0,
        "is_measured": True,
    }
    dear = step_of(made, after(made, {T: GREW}, costs=(replace(WHOLE, seconds=1.2),)))
    assert dear.maintenance == "whole"
    assert dear.expected is not None
    assert not dear.expected.prefers_delta
    assert dear.why == (
        "computing all rows takes 1.2 s, and computing those that can differ about"
        f" {dear.expected.delta_s:.1f} s"
    )
    by_size = step_of(made, after(made, {T: GREW}, costs=()))
    assert by_size.expected is not None
    assert not by_size.expected.is_measured


def after_costs(
    *costs: Cost,
    n_bytes: int | None = 500 * MB,
    annotation: str = "",
    experience: Experience | None = None,
) -> Step:
    """Return the step of a source after builds with some costs, the latest first.

    Parameters
    ----------
    n_bytes
        The size of the table that it reads; None: unknown.
    """
    made = project_of(GROUPED, annotation)
    world = after(made, {T: GREW}, costs=costs)
    sizes = {T: Volume(5000, n_bytes)}
    return step_of(made, replace(world, sizes=sizes, experience=experience or Experience()))


def kept_up(seconds: float, by_size_s: float | None = 2.0) -> Cost:
    """Return the cost of a build that maintained the table incrementally."""
    return Cost("keys", seconds, 10, 100, by_size_s)


def fell_back(seconds: float, owed_s: float) -> Cost:
    """Return the cost of a full build after an attempt to maintain the table."""
    return replace(WHOLE, seconds=seconds, owed_s=owed_s)


@pytest.mark.proves("T25")
@pytest.mark.parametrize(
    ("owed_s", "n_builds"), [(0.0, 0), (3.9, 0), (4.0, 0), (4.1, 1), (8.1, 2), (40.0, 9)]
)
def test_after_failed_attempts_full_builds_make_up_for_them(owed_s: float, n_builds: int) -> None:
    assert builds_to_wait((fell_back(40.0, owed_s), WHOLE), 40.0) == n_builds
    step = after_costs(fell_back(40.0, owed_s), WHOLE)
    if not n_builds:
        assert step.maintenance == "keys"
        return
    number = "1 full build" if n_builds == 1 else f"{n_builds} full builds"
    assert (step.maintenance, step.why) == (
        "whole",
        "the last attempts to compute only rows that can differ failed;"
        f" the next one follows after about {number}",
    )
    for refresh in ("incremental", "strict"):
        forced = after_costs(fell_back(40.0, owed_s), annotation=f"refresh={refresh}")
        assert forced.maintenance == "keys"


@pytest.mark.proves("T25")
@pytest.mark.parametrize("lost_s", [0.1, 1.0, 3.0, 10.0, 39.0])
def test_failed_attempts_take_a_tenth_of_full_builds(lost_s: float) -> None:
    whole_s = 10.0
    cost = replace(WHOLE, seconds=whole_s)
    n_attempts, owed = 0, [0.0]
    for _ in range(500):
        attempts = not builds_to_wait((cost,), whole_s)
        n_attempts += attempts
        cost = replace(cost, owed_s=owed_after((cost,), whole_s, lost_s if attempts else 0.0))
        owed.append(cost.owed_s)
    assert owed[1] <= 0.05 * whole_s  # so a second attempt follows at once
    assert n_attempts * lost_s <= 0.1 * whole_s * 500 + 2 * lost_s
    assert n_attempts * lost_s >= min(lost_s * 500, 0.1 * whole_s * 500) - 2 * lost_s


@pytest.mark.proves("T25")
def test_a_success_cancels_failed_attempts() -> None:
    costs = kept_up(1.0), fell_back(40.0, 400.0), WHOLE
    assert after_costs(*costs).maintenance == "keys"
    assert owed_after(costs, 40.0, 20.0) == 2.0
    assert owed_after((), 40.0, 0.0) == 0.0


@pytest.mark.proves("T12")
def test_estimates_by_size_are_corrected_by_measured_builds() -> None:
    first = after_costs(WHOLE).expected
    assert first is not None
    assert first.delta_s == first.by_size_s
    for costs, factor in {
        (kept_up(1.0),): 0.5,
        (kept_up(1.0), kept_up(3.0)): 1.0,
        (kept_up(9.0), kept_up(7.0), kept_up(1.0)): 4.0,
        (kept_up(9.0, None),): 1.0,
        (kept_up(9.0, None), kept_up(3.0)): 1.5,
        (replace(kept_up(9.0), maintenance="append"),): 4.5,
    }.items():
        expected = after_costs(*costs, WHOLE).expected
        assert expected is not None
        assert expected.by_size_s == first.by_size_s
        assert expected.delta_s == pytest.approx(factor * first.delta_s)


@pytest.mark.proves("T12")
def test_a_full_build_is_measured_again_if_the_first_may_include_spark_startup() -> None:
    by_size = after_costs(WHOLE).expected
    assert by_size is not None
    seconds = by_size.delta_s
    close, far = (replace(WHOLE, seconds=seconds * n) for n in (3.1, 3.2))
    as_expected = kept_up(2.0), kept_up(2.0)
    assert after_costs(close).maintenance == "keys"  # only sizes suggest that they are close
    assert after_costs(*as_expected[:1], close).maintenance == "keys"  # the first one is slow, too
    assert after_costs(*as_expected, far).maintenance == "keys"  # ten builds cannot save as much
    assert after_costs(*as_expected, close, close).maintenance == "keys"
    again = after_costs(*as_expected, close)
    assert (again.maintenance, again.why) == (
        "whole",
        f"computing rows that can differ takes about {seconds:.1f} s, and computing all rows took"
        f" {close.seconds:.1f} s the first time; it is measured once more",
    )
    forced = after_costs(*as_expected, close, annotation="refresh=incremental")
    assert forced.maintenance == "keys"
    slow = kept_up(2.0 * 61 / seconds), kept_up(2.0 * 61 / seconds)  # 61 s by the last one
    assert after_costs(*slow, replace(WHOLE, seconds=88.0)).maintenance == "whole"
    assert after_costs(*slow, replace(WHOLE, seconds=89.0)).maintenance == "keys"


@pytest.mark.proves("T12")
def test_the_slowness_of_first_builds_is_estimated_from_other_tables() -> None:
    by_size = after_costs(WHOLE).expected
    assert by_size is not None
    twice = Experience(first_builds=[(60.0, 2.0)] * 3)
    for n, method in ((1.8, "whole"), (1.9, "keys")):
        first = replace(WHOLE, seconds=by_size.delta_s * n)
        costs = kept_up(2.0), kept_up(2.0), first
        assert after_costs(*costs, experience=twice).maintenance == method
    # The first build of all may have waited for Spark.
    slow = kept_up(2.0 * 20 / by_size.delta_s), kept_up(2.0 * 20 / by_size.delta_s)
    late = replace(WHOLE, seconds=45.0)
    assert after_costs(*slow, late, experience=twice).maintenance == "whole"


@pytest.mark.proves("T12")
def test_the_speed_of_incremental_builds_is_estimated_from_other_tables() -> None:
    quick, fast = replace(WHOLE, seconds=0.9), Experience(pace=0.25)
    by_size = after_costs(quick, annotation="refresh=incremental").expected
    assert by_size is not None
    assert by_size.by_size_s is not None
    assert 0.9 < by_size.by_size_s < 3.6
    step = after_costs(quick, experience=fast)
    assert step.expected is not None
    assert step.expected.delta_s == pytest.approx(by_size.by_size_s / 4)
    assert step.maintenance == "keys"
    assert after_costs(quick, experience=Experience(pace=1.0)).maintenance == "whole"
    assert after_costs(quick, n_bytes=MB, experience=fast).maintenance == "whole"  # small
    own = after_costs(kept_up(6.0), quick, experience=fast)
    assert own.expected is not None
    assert own.expected.delta_s == pytest.approx(3 * by_size.by_size_s)


@pytest.mark.proves("T12")
def test_estimates_use_other_tables_only_if_there_are_enough() -> None:
    many = (kept_up(1.0), kept_up(2.0), replace(WHOLE, seconds=2.0), replace(WHOLE, seconds=5.0))
    assert experience_of([many] * 2).pace is None
    assert experience_of([many] * 3) == Experience(0.75, ((5.0, 2.5),) * 3)
    assert experience_of([many[1:2]] * 3) == Experience(pace=1.0)
    assert experience_of([many[2:]] * 3) == Experience()  # they are not maintained


@pytest.mark.proves("T12")
def test_the_slowness_of_a_first_build_is_estimated_from_tables_that_took_as_long() -> None:
    def slow(*seconds: float) -> list[Cost]:
        return [kept_up(2.0), *(replace(WHOLE, seconds=s) for s in seconds)]

    small, large = slow(1.0, 3.9), slow(4.0, 10.0)
    known = experience_of([small, small, small, large, large, large])
    assert [known.starting(s) for s in (7.8, 7.9, 20.0)] == [3.9, 2.5, 2.5]
    assert known.starting(20.1) == Experience().starting(20.1)
    assert experience_of([large] * 2).starting(10.0) == Experience().starting(10.0)
    assert experience_of([large, large, slow(1.0, 9.0)]).starting(10.0) == 4.0
    assert experience_of([slow(5.0, 5.0)] * 3).starting(10.0) == 2.0
    assert experience_of([slow(0.0, 5.0)] * 3) == Experience(pace=1.0)


@pytest.mark.proves("V38")
@pytest.mark.parametrize(
    ("n_bytes", "seconds", "method"),
    [
        (39 * MB, (6.0,), "whole"),
        (41 * MB, (6.0,), "keys"),
        (None, (6.0,), "keys"),
        (MB, (59.9,), "whole"),
        (MB, (60.0,), "keys"),  # joins or functions make few bytes slow
        (MB, (9.9, 6.0), "whole"),
        (MB, (10.0, 6.0), "keys"),
        (41 * MB, (9.9, 6.0), "keys"),
        (None, (9.9, 6.0), "keys"),
    ],
)
def test_small_tables_are_maintained_incrementally_only_if_full_builds_are_slow(
    n_bytes: int | None, seconds: tuple[float, ...], method: str
) -> None:
    costs = (replace(WHOLE, seconds=s) for s in seconds)
    step = after_costs(*costs, n_bytes=n_bytes)
    assert step.expected is not None
    assert (step.maintenance, step.expected.prefers_delta) == (method, True)


@pytest.mark.proves("V38")
def test_a_plan_explains_full_builds_by_small_inputs() -> None:
    cold, warm = (replace(WHOLE, seconds=s) for s in (6.0, 1.5))
    first = "its inputs are small, and computing all rows took 6.0 s the first time"
    assert after_costs(cold, n_bytes=MB).why == first
    later = "its inputs are small, and computing all rows took 1.5 s the last time"
    assert after_costs(warm, cold, n_bytes=MB).why == later


@pytest.mark.proves("V38")
def test_a_small_table_that_was_maintained_incrementally_stays_incremental() -> None:
    cold = replace(WHOLE, seconds=6.0)
    assert after_costs(kept_up(2.0), cold, n_bytes=MB).maintenance == "keys"
    assert after_costs(kept_up(2.0), kept_up(2.0), cold, n_bytes=MB).maintenance == "keys"


@pytest.mark.proves("V38")
@pytest.mark.parametrize("refresh", ["incremental", "strict"])
def test_sizes_are_ignored_if_incremental_maintenance_is_requested(refresh: str) -> None:
    step = after_costs(replace(WHOLE, seconds=6.0), n_bytes=MB, annotation=f"refresh={refresh}")
    assert step.maintenance == "keys"


@pytest.mark.proves("V38")
def test_all_tables_that_are_read_count_as_inputs() -> None:
    made = project_of(JOINED)
    world = after(
        made, {U: replace(GREW, total_bytes=3 * MB)}, costs=(replace(WHOLE, seconds=6.0),)
    )
    assert step_of(made, world).maintenance == "append"  # t is large, and did not change
    small = replace(world, sizes={T: Volume(5, MB), U: Volume(7, MB)})
    assert step_of(made, small).maintenance == "whole"


@pytest.mark.proves("T12")
def test_unchanged_tables_count_in_estimated_costs() -> None:
    made = project_of(JOINED)
    changed = {U: replace(CHANGED, total_bytes=3 * MB)}
    world = after(made, changed)
    small = step_of(made, replace(world, sizes={T: Volume(5, MB), U: Volume(7, 3 * MB)})).expected
    large = step_of(made, world).expected
    assert small is not None and large is not None
    assert large.delta_s == pytest.approx(small.delta_s + 499 / 300)  # all rows of t are read
    unmeasured = step_of(made, after(made, changed, costs=()))
    assert unmeasured.maintenance == "keys"  # by the size of u alone, all rows take 0.1 s


@pytest.mark.proves("T12")
def test_a_fast_table_is_maintained_incrementally_if_that_was_measured_to_be_faster() -> None:
    quick = replace(WHOLE, seconds=0.9)
    assert after_costs(quick, quick).maintenance == "whole"
    assert after_costs(kept_up(0.2), quick, quick).maintenance == "keys"
    assert after_costs(kept_up(3.0), quick, quick).maintenance == "whole"


@pytest.mark.proves("T11")
@pytest.mark.parametrize(("change", "method"), [(GREW, "append"), (CHANGED, "whole")])
def test_rows_with_maps_are_not_searched_for(change: Change, method: str) -> None:
    made = project_of("SELECT id, usr FROM t")
    world = after(made, {T: change})
    columns = (Column("id", "INT"), Column("tags", "MAP<STRING, INT>"))
    manifest = {b: replace(s, columns=columns) for b, s in world.manifest.items()}
    step = step_of(made, replace(world, manifest=manifest))
    assert step.maintenance == method
    reason = "its rows cannot be compared, because tags is a MAP"
    assert (step.why == reason) == (method == "whole")


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    "query", ["id, m['a'] AS a FROM t", "usr, count(m['a']) AS n FROM t GROUP BY usr"]
)
@pytest.mark.proves("T32")
def test_changed_rows_with_maps_are_not_compared(query: str) -> None:
    """Spark changes maps in the keys of groups, and so it would change the rows."""
    made = project_of(f"SELECT {query}", "refresh=incremental")
    step = step_of(made, after(made, {T: CHANGED}))
    assert (step.maintenance, step.why) == (
        "whole",
        "changed rows of t cannot be compared: m is a MAP",
    )
    assert step_of(made, after(made, {T: GREW})).maintenance != "whole"


@pytest.mark.proves("T24")
@pytest.mark.parametrize(
    ("seconds", "annotation", "method"),
    [(40.0, "", "append"), (20.0, "", "whole"), (20.0, "refresh=incremental", "append")],
)
def test_a_plan_compares_a_value_that_all_rows_share_only_if_that_is_cheap(
    seconds: float, annotation: str, method: str
) -> None:
    made = project_of("SELECT id FROM t WHERE usr <= (SELECT max(usr) FROM t)", annotation)
    costs = (replace(WHOLE, seconds=seconds),)
    step = step_of(made, after(made, {T: GREW}, costs=costs))
    assert step.maintenance == method
    message = (
        "computing all rows takes 20.0 s, and only to see whether the value of a subquery changed"
        " for all of them takes about 3.3 s"
    )
    assert (message in step.why) == (method == "whole")


@pytest.mark.proves("T11")
def test_a_plan_names_the_line_that_prevents_an_incremental_build() -> None:
    made = project_of(LIMITED)
    step = step_of(made, after(made, {T: GREW}))
    assert step.why == "there is no rule because of a LIMIT with an OFFSET (sources/a.sql:7)"
    assert f"the data of t changed; {step.why} [reads up to 500.0 MB (5,000 rows)]" in shown(
        made, step
    )


def shown(made: Project, step: Step) -> str:
    """Return the line of a step on the command line, without colours."""
    from rich.console import Console

    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(plan_tree(made, Plan("dev", (step,))))
    return capture.get()


@pytest.mark.proves("T12")
def test_the_printed_step_shows_its_costs_in_brackets() -> None:
    made = project_of(GROUPED)
    step = step_of(made, after(made, {T: GREW}))
    assert step.expected is not None
    line = shown(made, step)
    assert "build a/p (keys) the data of t changed; only rows that can differ" in line
    costs = f"[reads up to 502.0 MB (5,020 rows); about {step.expected.delta_s:.1f} s, all rows"
    assert f"{costs} 40 s]" in line
    dearer = replace(step.expected, delta_s=50.0)  # refresh=incremental maintains it nevertheless
    assert _costs(replace(step, reads=None, expected=dearer)) == "[about 50 s, all rows 40 s]"
    assert _costs(replace(step, reads=None, expected=dearer, maintenance="whole")) == ""
    assert _costs(replace(step, reads=None, expected=None)) == ""
    assert _costs(replace(step, reads=Volume(None, 1), expected=None)) == "[reads up to 1 B]"


def test_the_reason_for_a_full_build_is_not_repeated() -> None:
    step = Step("s", "build", "b", (), (Reason("input", "the data of t changed"),), why="x")
    assert why_all_rows(step) == ("x",)
    assert why_all_rows(replace(step, maintenance="keys")) == ()
    assert why_all_rows(replace(step, action="reuse")) == ()
    assert why_all_rows(replace(step, reasons=(Reason("whole", "computed in full: x"),))) == ()
    assert why_all_rows(replace(step, why="it is: the data of t changed")) == ()
    assert why_all_rows(replace(step, reasons=(*step.reasons, Reason("forced", "requested")))) == ()


def test_a_total_is_unknown_if_any_part_is_unknown() -> None:
    assert total([]) == Volume(0, 0)
    assert total([Volume(1, 2), Volume(3, 4)]) == Volume(4, 6)
    assert total([Volume(1, None), Volume(None, 4)]) == Volume(None, None)
    assert of_pieces([Piece("a", bytes=1, rows=2), Piece("b", bytes=3)]) == Volume(None, 4)
    assert of_pieces([Piece("a", rows=2)]) == Volume(2, None)
    feed = Feed(("c",), bytes=9)
    assert of_change(replace(CHANGED, feed=feed)) == Volume(None, 9)
    assert of_change(CHANGED) == Volume(30, 3 * MB)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (999_600, "1.0 MB"), (3 * 10**9, "3.0 GB"),
     (5 * 10**15, "5000.0 TB")],
)  # fmt: skip
def test_sizes_are_shown_in_their_unit(n: int, text: str) -> None:
    assert in_bytes(n) == text


def test_the_cheaper_method_is_preferred() -> None:
    assert Estimates(2.0, 1.0, True).prefers_delta
    assert not Estimates(1.0, 1.0, True).prefers_delta
