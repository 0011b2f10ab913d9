"""The method by which a step updates its table, and the reason for this method."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest
from conftest import compiled
from test_planner import RAW, built, everything, fresh, named, newer, snapshot, with_latest

from persist_assets.core.model.annotations import Annotation
from persist_assets.core.model.plans import Change, Piece, Reason, Step
from persist_assets.core.model.snapshots import RawVersion
from persist_assets.operations.documents.plans import StepDocument
from persist_assets.planning.inputs import as_of, inputs
from persist_assets.planning.maintenance import is_forbidden
from persist_assets.planning.planner import plan
from persist_assets.planning.world import UNVERSIONED, World

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

INCREMENTAL = "refresh=incremental watermark=b"
GREW = Change(added=(Piece("t/1.parquet", {"b": (5, 6, False)}),))
SHRANK = Change(lost=(Piece("t/0.parquet", {"b": (1, 2, False)}),))
SPREAD = Change(lost=(Piece("t/0.parquet"),))
QUICK = (
    "computing all rows takes about 0.0 s, by the size of its inputs: no more than changes would"
)
PLAIN, SUMMED = "SELECT a, b FROM t", "SELECT b, sum(a) AS a FROM t GROUP BY b"


def project_of(annotation: str, query: str = PLAIN) -> Project:
    made = compiled({"a.sql": f"{RAW}--@ persist {annotation}\nCREATE VIEW p AS {query};"})
    assert not made.errors, made.errors
    return made


def after(made: Project, change: Change | None) -> World:
    """Return a world in which `p` is built, and the data changed since."""
    source = named(made, "p")
    world = with_latest(made, newer(built(made)))
    return replace(world, changes={source.source_id: {"t@sources/a.sql": change}})


def step_of(made: Project, world: World, *, force: bool = False) -> Step:
    return plan(made, ["p@sources/a.sql"], world, force=force).steps[0]


def method_of(step: Step) -> tuple[str, str]:
    document = StepDocument.of(
        compiled({"a.sql": f"{RAW}--@ persist\nCREATE VIEW p AS {PLAIN};"}), step
    )
    assert (document.maintenance, document.why) == (step.maintenance, step.why)
    return step.maintenance, step.why


@pytest.mark.proves("T6")
def test_a_table_that_is_up_to_date_is_reused() -> None:
    made = project_of("")
    assert method_of(step_of(made, built(made))) == ("reuse", "the table is up to date")


@pytest.mark.proves("T6")
def test_a_table_of_which_no_row_changed_is_stamped() -> None:
    made = project_of("")
    source = named(made, "p")
    world = built(made)
    known = inputs(made, source, newer(world)) or ()
    present = replace(world.manifest[source.build_id], inputs=known)
    world = newer(replace(world, manifest={source.build_id: present}))
    step = step_of(made, world)
    assert step.action == "reuse"
    assert method_of(step) == ("stamp", "the data is newer, but the rows it reads are the same")


def test_a_fresh_table_over_unversioned_data_is_reused_and_not_stamped() -> None:
    made = project_of('freshness.window="1h"', "SELECT a FROM j")
    versions = {"j@sources/a.sql": f"{UNVERSIONED}1"}
    world = built(made, replace(fresh(made), versions=versions))
    later = replace(world, versions={"j@sources/a.sql": f"{UNVERSIONED}2"})
    why = "only data without versions may be newer, and the table is young enough"
    assert method_of(step_of(made, later)) == ("reuse", why)


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("annotation", "query", "change", "method", "why"),
    [
        (
            INCREMENTAL,
            PLAIN,
            GREW,
            "append",
            "only rows that follow from rows added to t are computed",
        ),
        (
            f"{INCREMENTAL} merge_key=a",
            PLAIN,
            GREW,
            "merge",
            "only rows that follow from rows added to t are computed, and merged by a",
        ),
        (
            INCREMENTAL,
            SUMMED,
            GREW,
            "windows",
            "only rows whose b may match what changed in t are computed",
        ),
        (
            INCREMENTAL,
            PLAIN,
            SHRANK,
            "windows",
            "only rows whose b may match what changed in t are computed",
        ),
        (INCREMENTAL, PLAIN, SPREAD, "whole", "rows of t changed or were removed"),
        (INCREMENTAL, PLAIN, None, "whole", "the changes in t are unknown"),
        (
            "refresh=incremental",
            "SELECT a, count(*) AS n FROM t GROUP BY a",
            GREW,
            "whole",
            "it was loaded without its files",
        ),
        ("", PLAIN, GREW, "whole", QUICK),
        ("refresh=auto", PLAIN, GREW, "whole", QUICK),
        ("refresh=whole", PLAIN, GREW, "whole", "refresh=whole computes all rows of a stale table"),
        (
            "refresh=snapshot key=a",
            PLAIN,
            GREW,
            "history",
            "refresh=snapshot compares all rows with the current versions",
        ),
    ],
)
def test_changed_data_is_followed_by_the_cheapest_method(
    annotation: str, query: str, change: Change | None, method: str, why: str
) -> None:
    made = project_of(annotation, query)
    step = step_of(made, after(made, change))
    assert step.action == "build"
    assert method_of(step) == (method, why)
    assert "strict" not in {r.code for r in step.reasons}


def test_a_rewritten_input_without_known_changes_requires_a_full_rebuild() -> None:
    text = f"""{RAW}
    --@ persist
    CREATE VIEW u AS SELECT a, b FROM t;
    --@ persist {INCREMENTAL}
    CREATE VIEW p AS SELECT a, b FROM u;
    """
    made = compiled({"a.sql": text})
    world = built(made)
    source = named(made, "p")
    was = RawVersion(named(made, "u").build_id, "content:other")
    present = replace(world.manifest[source.build_id], inputs=(was,))
    world = replace(world, manifest={**world.manifest, source.build_id: present})
    step = step_of(made, world)
    assert [r.code for r in step.reasons] == ["input", "whole"]
    why = "it is unknown which of its rows the changed tables affect"
    assert method_of(step) == ("whole", why)


@pytest.mark.proves("T6")
def test_the_method_is_unknown_until_the_inputs_are_built() -> None:
    text = f"""{RAW}
    --@ persist refresh=incremental watermark=b merge_key=a
    CREATE VIEW u AS SELECT a, b FROM t;
    --@ persist {INCREMENTAL}
    CREATE VIEW p AS SELECT a, b FROM u;
    """
    made = compiled({"a.sql": text})
    world = newer(built(made))
    changes = {f"{n}@sources/a.sql": {f"{r}@sources/a.sql": GREW} for n, r in ("ut", "pu")}
    step = everything(made, replace(world, changes=changes)).steps[1]
    why = "the method is known once u is built"
    assert method_of(step) == ("whole", why)


@pytest.mark.proves("T6")
def test_a_strict_source_is_not_refused_before_its_input_is_built() -> None:
    text = f"""{RAW}
    --@ persist refresh=incremental
    CREATE VIEW u AS SELECT a, b FROM t;
    --@ persist refresh=strict
    CREATE VIEW p AS SELECT a, sum(b) AS b FROM u GROUP BY a;
    """
    made = compiled({"a.sql": text})
    world = newer(built(made))
    changes = {f"{n}@sources/a.sql": {f"{r}@sources/a.sql": GREW} for n, r in ("ut", "pu")}
    _, p = everything(made, replace(world, changes=changes)).steps
    assert method_of(p) == ("whole", "the method is known once u is built")
    assert "strict" not in {r.code for r in p.reasons}


@pytest.mark.proves("T6")
def test_a_plan_reports_why_a_table_cannot_be_continued() -> None:
    made = project_of(INCREMENTAL)
    source = named(made, "p")
    world = built(made)
    assert method_of(step_of(made, fresh(made))) == ("whole", "never built")
    other = project_of(INCREMENTAL, "SELECT a, b + 1 AS b FROM t")
    changed = "its meaning changed: column b changed in sources/a.sql:4"
    assert method_of(step_of(other, world)) == ("whole", changed)
    gone = replace(world, missing=[source.build_id])
    assert method_of(step_of(made, gone)) == ("whole", f"its table {source.table} is gone")
    tainted = replace(world, tainted={source.source_id: frozenset()})
    assert method_of(step_of(made, tainted)) == ("whole", "its table was tainted")
    assert method_of(step_of(made, world, force=True)) == ("whole", "all rows were requested")
    view = project_of("materialized=view")
    step = step_of(view, world)
    why = "materialized=view computes all rows once, to check them"
    assert (step.reasons[0].code, *method_of(step)) == ("strategy", "whole", why)


@pytest.mark.proves("T6")
def test_partitions_are_built_separately_and_stamped_if_their_rows_did_not_change() -> None:
    made = compiled(
        {"a.sql": f"{RAW}--@ persist partition {{ a=[1, 2, 3] }}\nCREATE VIEW p AS {PLAIN};"}
    )
    assert not made.errors
    source = named(made, "p")
    world = replace(fresh(made), keys={source.source_id: ("1", "2", "3")})
    step = step_of(made, world)
    assert method_of(step) == ("partitions", "3 partitions are computed; the table has no others")
    some = {source.source_id: ["1", "2"]}
    (step,) = plan(made, [source.source_id], world, partition_keys=some).steps
    present = replace(snapshot(source, step.as_of), partitions=step.partitions)
    world = replace(world, manifest={source.build_id: present})
    step = step_of(made, world)
    assert method_of(step) == ("partitions", "1 partition is computed; the others stay")
    (step,) = plan(made, [source.source_id], world, partition_keys=some).steps
    assert method_of(step) == ("reuse", "the table is up to date")
    # Newer data that does not change the rows of any partition.
    assert present.partitions is not None
    known = inputs(made, source, newer(world)) or ()
    filled = tuple(replace(group, inputs=known) for group in present.partitions.filled)
    present = replace(present, partitions=replace(present.partitions, filled=filled))
    world = newer(replace(world, manifest={source.build_id: present}))
    (step,) = plan(made, [source.source_id], world, partition_keys=some).steps
    why = "the data is newer, but the rows of these partitions are the same"
    assert (step.action, *method_of(step)) == ("reuse", "stamp", why)


STRICT = "refresh=strict watermark=b"


@pytest.mark.proves("T7")
@pytest.mark.parametrize("change", [SPREAD, None])
def test_strict_forbids_a_full_rebuild_of_a_published_table(change: Change | None) -> None:
    made = project_of(STRICT)
    step = step_of(made, after(made, change))
    assert [r.code for r in step.reasons] == ["input", "whole", "strict"]
    assert step.reasons[-1].message == "refresh=strict forbids this: its build will fail"
    assert step.maintenance == "whole"


@pytest.mark.proves("T7")
def test_strict_allows_incremental_requested_and_unavoidable_full_builds() -> None:
    made = project_of(STRICT)
    source = named(made, "p")
    lost = after(made, SPREAD)
    for world, force in (
        (after(made, GREW), False),
        (after(made, SHRANK), False),
        (fresh(made), False),
        (built(made), False),
        (lost, True),
        (replace(lost, missing=[source.build_id]), False),
        (replace(lost, tainted={source.source_id: frozenset()}), False),
        (built(project_of(STRICT, "SELECT a, b + 1 AS b FROM t"), fresh(made)), False),
    ):
        step = step_of(made, world, force=force)
        assert "strict" not in {r.code for r in step.reasons}, step.reasons


@pytest.mark.parametrize("code", ["forced", "tainted"])
def test_strict_allows_a_full_rebuild_that_was_requested(
    code: Literal["forced", "tainted"],
) -> None:
    annotation, reasons = Annotation(is_strict=True), [Reason("whole", "computed in full: why")]
    assert is_forbidden(annotation, reasons)
    assert not is_forbidden(annotation, [*reasons, Reason(code, "requested")])
    assert not is_forbidden(Annotation(refresh="incremental"), reasons)


@pytest.mark.proves("T7")
def test_strict_forbids_a_full_rebuild_of_a_continued_table() -> None:
    before = project_of(f"{STRICT} on_change=continue")
    made = project_of(f"{STRICT} on_change=continue", "SELECT a, b FROM t WHERE a > 0")
    source = named(made, "p")
    was = built(before).manifest[named(before, "p").build_id]
    was = replace(
        was, columns=source.columns, time_column="b", as_of=as_of(made, source, fresh(made))
    )
    world = replace(newer(built(before)), latest={source.source_id: was})
    world = replace(world, changes={source.source_id: {"t@sources/a.sql": SPREAD}})
    assert [r.code for r in step_of(made, world).reasons] == ["code", "whole", "strict"]
    world = replace(world, changes={source.source_id: {"t@sources/a.sql": GREW}})
    assert method_of(step_of(made, world))[0] == "append"
