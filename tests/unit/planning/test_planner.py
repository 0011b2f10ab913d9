"""Plans: the sources to build or to reuse, and the reasons."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.core.model.columns import Column
from persist_assets.core.model.plans import Change, Plan, Step
from persist_assets.core.model.queries import BuildID
from persist_assets.core.model.snapshots import (
    AsOf,
    Build,
    Filled,
    Partitions,
    RawVersion,
    Snapshot,
    merge_as_of,
)
from persist_assets.core.partitions import keys as partition_keys_at
from persist_assets.planning.diff import recorded_reads
from persist_assets.planning.inputs import as_of, digest_partitions, drawn, inputs
from persist_assets.planning.planner import plan
from persist_assets.planning.world import DRAW, OLDER, UNVERSIONED, World, older_code

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Read, Source

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RAW = "CREATE TABLE t (a INT, b INT) USING parquet LOCATION 't';\nCREATE TABLE j (a INT) USING jdbc OPTIONS (url 'x');\n"
CHAIN = f"""{RAW}
--@ persist
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
CREATE VIEW v AS SELECT a, b + 1 AS c FROM p;
--@ persist
CREATE VIEW q AS SELECT c FROM v;
--@ persist
CREATE VIEW r AS SELECT a FROM p;
"""


def project(text: str = CHAIN) -> Project:
    made = compiled({"a.sql": text})
    assert not made.errors, made.errors
    return made


def named(made: Project, name: str) -> Source:
    return made.by_id[f"{name}@sources/a.sql"]


def snapshot(source: Source, rests_on: AsOf) -> Snapshot:
    return Snapshot(
        "uid", source.source_id, source.build_id, source.table, 0, rests_on, "c", 10, 100, NOW
    )


def build(
    source: Source,
    made: Snapshot | None,
    error: str | None = None,
    reads: tuple[Read, ...] = (),
) -> Build:
    return Build(
        "uid", source.source_id, source.build_id, source.definition, "dev", "run",
        "failed" if error else "succeeded", "built", NOW, NOW, error, made,
        source.digests, reads,
    )  # fmt: skip


def fresh(made: Project) -> World:
    versions = {s.source_id: "files:1" for s in made.sources if s.raw}
    return World("dev", {}, versions, "2026-01-02", NOW.isoformat(), {})


def built(made: Project, world: World | None = None) -> World:
    """Return a world in which all sources are built from the data of `world`."""
    world = world or fresh(made)
    manifest, history = dict(world.manifest), dict(world.history)
    for source in made.persisted:
        now = replace(world, manifest=manifest)
        made_now = snapshot(source, drawn(as_of(made, source, now), source, "uid"))
        manifest[source.build_id] = made_now
        history[source.source_id] = build(source, made_now, None, recorded_reads(made, source))
    return replace(world, manifest=manifest, history=history)


def reason_codes(planned: Plan) -> dict[str, list[str]]:
    return {s.source_id.partition("@")[0]: [r.code for r in s.reasons] for s in planned.steps}


def everything(made: Project, world: World, *, force: bool = False) -> Plan:
    return plan(made, [s.source_id for s in made.persisted], world, force=force)


def test_sources_never_built_are_new_and_planned_in_order() -> None:
    made = project()
    planned = everything(made, fresh(made))
    assert reason_codes(planned) == {"p": ["new"], "q": ["new"], "r": ["new"]}
    assert [s.action for s in planned.steps] == ["build"] * 3
    raw = named(made, "t")
    assert {s.as_of for s in planned.steps} == {(RawVersion(raw.build_id, "files:1"),)}


def test_tables_built_from_the_same_data_are_reused() -> None:
    made = project()
    planned = everything(made, built(made))
    assert reason_codes(planned) == {"p": [], "q": [], "r": []}
    assert all(s.estimate is None for s in planned.steps)


@pytest.mark.proves("M12")
def test_newer_data_rebuilds_all_sources_that_depend_on_it() -> None:
    made = project()
    world = built(made)
    world = replace(world, versions={**world.versions, "t@sources/a.sql": "files:2"})
    planned = everything(made, world)
    assert reason_codes(planned) == {"p": ["input"], "q": ["input"], "r": ["input"]}
    assert planned.steps[0].reasons[0].message == "the data of t changed"
    assert planned.steps[0].estimate is not None
    assert planned.steps[0].estimate.rows == 10


def test_a_source_planned_alone_depends_on_the_data_of_its_upstream_table() -> None:
    made = project()
    world = built(made)
    world = replace(world, versions={**world.versions, "t@sources/a.sql": "files:2"})
    assert reason_codes(plan(made, [named(made, "q").source_id], world)) == {"q": []}


@pytest.mark.proves("M12", "K18")
def test_a_changed_column_rebuilds_its_source_and_its_readers_only() -> None:
    before, after = (
        project(),
        project(CHAIN.replace("SELECT a, b FROM t", "SELECT a, b + 1 AS b FROM t")),
    )
    planned = everything(after, built(before))
    assert reason_codes(planned) == {"p": ["code"], "q": ["upstream"], "r": []}
    assert "sources/a.sql:5" in planned.steps[0].reasons[0].message


@pytest.mark.parametrize(
    ("words", "instead", "message"),
    [
        (
            "SELECT a, b FROM t",
            "SELECT a,\n b + 1 AS b FROM t",
            {
                "p": ["code: column b changed in sources/a.sql:6"],
                "q": ["upstream: column b of p changed"],
                "r": [],
            },
        ),
        (
            "SELECT a, b FROM t",
            "SELECT -a AS a, -b AS b FROM t",
            {
                "p": ["code: columns a, b changed in sources/a.sql:5"],
                "q": ["upstream: column b of p changed"],
                "r": ["upstream: column a of p changed"],
            },
        ),
        (
            "a > 0",
            "a > 1",
            {
                "p": ["code: its rows changed (WHERE, JOIN, …) in sources/a.sql:5"],
                "q": ["upstream: the rows of p changed (WHERE, JOIN, …)"],
                "r": ["upstream: the rows of p changed (WHERE, JOIN, …)"],
            },
        ),
        (
            "SELECT a, b FROM t",
            "SELECT a, b, 1 AS x FROM t",
            {"p": ["code: column x added in sources/a.sql:5"], "q": [], "r": []},
        ),
        ("b + 1 AS c", "b + 2 AS c", {"p": [], "q": ["upstream: column c of v changed"], "r": []}),
        (
            "SELECT c FROM v",
            "SELECT c, a FROM v",
            {"p": [], "q": ["code: column a added in sources/a.sql:8"], "r": []},
        ),
        (
            "b INT) USING",
            "b BIGINT) USING",
            {
                "p": ["upstream: column b of t changed"],
                "q": ["upstream: column b of p changed"],
                "r": [
                    "input: it was built from data that is no longer read, or is now declared differently",
                    "input: the data of t changed",
                ],
            },
        ),
        (
            "LOCATION 't'",
            "LOCATION 's'",
            {
                "p": ["upstream: the declaration of t changed"],
                "q": ["upstream: the rows of p and all columns changed (FROM, WHERE, JOIN, …)"],
                "r": ["upstream: the rows of p and all columns changed (FROM, WHERE, JOIN, …)"],
            },
        ),
    ],
)
def test_reasons_name_columns_and_lines(
    words: str, instead: str, message: dict[str, list[str]]
) -> None:
    before, after = project(), project(CHAIN.replace(words, instead))
    planned = everything(after, built(before))
    assert {
        s.source_id.partition("@")[0]: [f"{r.code}: {r.message}" for r in s.reasons]
        for s in planned.steps
    } == message


def test_reasons_are_less_precise_for_builds_without_recorded_digests() -> None:
    before = project()
    after = project(CHAIN.replace("a, b FROM t", "a, -b AS b FROM t"))
    world = built(before)
    old = {s: replace(b, digests=None, reads=()) for s, b in world.history.items()}
    p, q, _ = everything(after, replace(world, history=old)).steps
    assert p.reasons[0].message == "changed in sources/a.sql:5:13"
    assert q.reasons[0].message == "the definition of an input changed"


def test_a_reason_names_the_upstream_column_even_after_its_rebuild() -> None:
    before = project()
    after = project(CHAIN.replace("a, b FROM t", "a, -b AS b FROM t"))
    world = built(before)
    later = built(after, world)
    q = named(after, "q")
    world = replace(later, history={**later.history, q.source_id: world.history[q.source_id]})
    manifest = {k: v for k, v in later.manifest.items() if k != q.build_id}
    (step,) = plan(after, [q.source_id], replace(world, manifest=manifest)).steps
    assert [r.message for r in step.reasons] == ["column b of p changed"]


def test_missing_tables_and_forced_builds_are_reasons() -> None:
    made = project()
    world = replace(built(made), missing={named(made, "p").build_id})
    assert reason_codes(everything(made, world))["p"] == ["missing"]
    assert reason_codes(everything(made, built(made), force=True)) == {
        name: ["forced"] for name in "pqr"
    }


@pytest.mark.parametrize("cause", ["missing", "strategy"])
def test_spans_never_continue_a_table_that_cannot_be_continued(cause: str) -> None:
    made = project(f"""{RAW}
--@ persist refresh=incremental watermark=b
CREATE VIEW p AS SELECT a, b FROM t;
""")
    source = named(made, "p")
    spans = {source.source_id: (1, 2)}
    world = built(made)
    table = replace(world.manifest[source.build_id], time_column="b")
    leaf = named(made, "t")
    changes = {source.source_id: {leaf.source_id: Change()}}
    world = replace(world, manifest={source.build_id: table}, changes=changes)
    step = plan(made, [source.source_id], world, spans=spans).steps[-1]
    assert step.increment is not None, step.reasons  # the table can be continued
    if cause == "missing":
        world = replace(world, missing={source.build_id})
    else:
        table = replace(table, view="SELECT a, b FROM t")
        world = replace(world, manifest={source.build_id: table})
    step = plan(made, [source.source_id], world, spans=spans).steps[-1]
    assert (step.action, step.increment) == ("build", None)
    assert [r.code for r in step.reasons] == [cause]


def test_the_last_failure_is_reported_beside_the_reason() -> None:
    made = project()
    world = fresh(made)
    failed = build(named(made, "p"), None, "no space\nat all")
    planned = everything(made, replace(world, history={failed.source_id: failed}))
    assert [r.message for r in planned.steps[0].reasons] == [
        "never built",
        "failed last time: no space",
    ]


def test_an_up_to_date_source_reports_its_last_failure() -> None:
    made = project()
    world = built(made)
    failed = build(named(made, "p"), None, "row_count\nof 4")
    step = everything(made, replace(world, history={failed.source_id: failed})).steps[0]
    assert (step.action, [r.message for r in step.reasons]) == (
        "reuse",
        ["failed last time: row_count"],
    )
    other = replace(failed, build_id="of other code")
    step = everything(made, replace(world, history={failed.source_id: other})).steps[0]
    assert (step.action, step.reasons) == ("reuse", ())


def test_data_without_versions_is_never_assumed_to_be_unchanged() -> None:
    made = project(
        f"{RAW}--@ persist\nCREATE VIEW p AS SELECT a FROM j;\n--@ persist\nCREATE VIEW q AS SELECT a FROM p"
    )
    world = replace(
        fresh(made), versions={"j@sources/a.sql": f"{UNVERSIONED}1", "t@sources/a.sql": "x"}
    )
    later = replace(
        built(made, world), versions={"j@sources/a.sql": f"{UNVERSIONED}2", "t@sources/a.sql": "x"}
    )
    assert reason_codes(everything(made, later)) == {"p": ["unversioned"], "q": ["unversioned"]}
    # but the rows in the table of p are the same:
    assert reason_codes(plan(made, ["q@sources/a.sql"], later)) == {"q": []}


@pytest.mark.parametrize("because", ["nothing", "forced", "tainted", "strategy"])
def test_a_build_within_the_freshness_window_depends_on_current_data(because: str) -> None:
    made = project(f'{RAW}--@ persist freshness.window="1h"\nCREATE VIEW p AS SELECT a FROM j;')
    first, second = ({"j@sources/a.sql": f"{UNVERSIONED}{n}"} for n in "12")
    world = replace(built(made, replace(fresh(made), versions=first)), versions=second)
    (p,) = made.persisted
    if because == "tainted":
        world = replace(world, tainted={p.source_id: frozenset({""})})
    if because == "strategy":
        kept = replace(world.manifest[p.build_id], view="SELECT a FROM j")
        world = replace(world, manifest={p.build_id: kept})
    (step,) = everything(made, world, force=because == "forced").steps
    assert step.action == ("reuse" if because == "nothing" else "build")
    last = "1" if because == "nothing" else "2"
    assert [v.version for v in step.as_of] == [f"{UNVERSIONED}{last}"]


@pytest.mark.parametrize(
    ("function", "day", "instant", "codes"),
    [
        ("current_date", "2026-01-02", "later", []),
        ("current_date", "2026-01-03", "later", ["clock"]),
        ("now()", "2026-01-02", "later", ["clock"]),
    ],
)
def test_a_clock_is_an_input(function: str, day: str, instant: str, codes: list[str]) -> None:
    made = project(
        f"{RAW}--@ persist\nCREATE VIEW p AS SELECT a, {function} AS d FROM t;\n--@ persist\nCREATE VIEW q AS SELECT d FROM p"
    )
    later = replace(built(made), day=day, instant=instant)
    assert reason_codes(everything(made, later)) == {"p": codes, "q": codes}
    assert reason_codes(plan(made, ["q@sources/a.sql"], later)) == {"q": []}


def test_readers_of_a_nondeterministic_source_follow_its_rebuilds() -> None:
    made = project(
        f"{RAW}--@ persist\nCREATE VIEW p AS SELECT a, rand() AS x FROM t;\n--@ persist\nCREATE VIEW q AS SELECT x FROM p"
    )
    world = built(made)
    assert reason_codes(everything(made, world)) == {"p": [], "q": []}
    again = everything(made, world, force=True)
    assert reason_codes(again)["q"] == ["upstream", "forced"]
    p = named(made, "p")
    redrawn = snapshot(p, drawn(as_of(made, p, world), p, "another"))
    later = replace(world, manifest={**world.manifest, p.build_id: redrawn})
    assert reason_codes(everything(made, later)) == {"p": [], "q": ["upstream"]}
    assert any(v.raw == DRAW + p.build_id for v in redrawn.as_of)


def test_a_table_that_mixes_versions_is_rebuilt_once_its_inputs_agree() -> None:
    made = project()
    world = built(made)
    t, r = named(made, "t"), named(made, "r")
    both = tuple(RawVersion(t.build_id, f"files:{n}") for n in (1, 2))
    world = replace(world, manifest={**world.manifest, r.build_id: snapshot(r, both)})
    assert reason_codes(everything(made, world))["r"] == ["mixed"]


GUARDED = CHAIN.replace("CREATE VIEW p", "--@ check { not_null=[a] }\nCREATE VIEW p")


def test_a_plan_reports_unchecked_upstream_sources() -> None:
    made = project(GUARDED)
    q, p = named(made, "q"), named(made, "p")
    (step,) = plan(made, [q.source_id], fresh(made)).steps
    assert [(r.code, r.source_id) for r in step.reasons] == [
        ("new", None),
        ("unchecked", p.source_id),
    ]
    assert reason_codes(plan(made, [p.source_id, q.source_id], fresh(made))) == {
        "p": ["new"],
        "q": ["new"],
    }
    world = built(made)
    assert reason_codes(plan(made, [q.source_id], world, force=True)) == {"q": ["forced"]}


def test_a_plan_reports_missing_raw_data() -> None:
    made = project()
    nothing = replace(fresh(made), versions={})
    assert reason_codes(everything(made, nothing)) == {
        "p": ["new", "no-data"],
        "q": ["new"],
        "r": ["new"],
    }
    lost = replace(built(made), versions={})
    assert reason_codes(everything(made, lost))["p"] == ["input", "no-data"]


def _with_inputs(made: Project, world: World) -> World:
    manifest = dict(world.manifest)
    for source in made.persisted:
        known = inputs(made, source, world)
        assert known is not None
        manifest[source.build_id] = replace(manifest[source.build_id], inputs=known)
    return replace(world, manifest=manifest)


def test_a_source_whose_inputs_have_the_same_rows_is_reused_with_a_new_as_of() -> None:
    made = project()
    world = _with_inputs(made, built(made))
    p, q = named(made, "p"), named(made, "q")
    newer = replace(world, versions={s: "files:2" for s in world.versions})
    # Until `p` is rebuilt, its rows are unknown.
    assert reason_codes(everything(made, newer)) == {"p": ["input"], "q": ["input"], "r": ["input"]}
    again = replace(
        world.manifest[p.build_id],
        as_of=as_of(made, p, newer),
        inputs=inputs(made, p, newer) or (),
    )
    rebuilt = replace(newer, manifest={**newer.manifest, p.build_id: again})
    planned = everything(made, rebuilt)
    assert reason_codes(planned) == {"p": [], "q": ["same-rows"], "r": ["same-rows"]}
    assert {s.action for s in planned.steps} == {"reuse"}
    assert [s.as_of for s in planned.steps if s.source_id == q.source_id] == [again.as_of]
    other = replace(again, content="other rows")
    changed = replace(newer, manifest={**newer.manifest, p.build_id: other})
    assert reason_codes(everything(made, changed)) == {"p": [], "q": ["input"], "r": ["input"]}


HISTORY = f"""{RAW}
--@ persist refresh=snapshot key=a
CREATE VIEW h AS SELECT a, b FROM t;
--@ persist
CREATE VIEW r AS SELECT a FROM h WHERE valid_to IS NULL;
"""


def newer(world: World, version: str = "files:2") -> World:
    return replace(world, versions={**world.versions, "t@sources/a.sql": version})


def with_latest(made: Project, world: World) -> World:
    """Return a world with the latest snapshots of sources whose tables are continued."""
    known = {b.source_id: b.snapshot for b in world.history.values() if b.snapshot}
    wanted = {s.source_id for s in made.persisted if s.annotation.goes_on or s.keeps_history}
    return replace(world, latest={s: snapshot for s, snapshot in known.items() if s in wanted})


def test_a_history_is_never_reused_from_another_environment() -> None:
    made = project(HISTORY)
    source = named(made, "h")
    there = snapshot(source, as_of(made, source, fresh(made)))
    world = replace(fresh(made), elsewhere={source.build_id: [there]})
    (step,) = plan(made, [source.source_id], world).steps
    assert (step.action, step.history) == ("build", None)
    full = project(
        HISTORY.replace(" refresh=snapshot key=a", "").replace("WHERE valid_to IS NULL", "")
    )
    source = named(full, "h")
    there = snapshot(source, as_of(full, source, fresh(full)))
    world = replace(fresh(full), elsewhere={source.build_id: [there]})
    assert plan(full, [source.source_id], world).steps[0].action == "reuse"


def test_a_build_continues_a_history_and_its_readers_depend_on_the_build() -> None:
    made = project(HISTORY)
    source, reader = named(made, "h"), named(made, "r")
    world = with_latest(made, built(made))
    present = world.manifest[source.build_id]
    assert RawVersion(DRAW + source.build_id, "uid") in world.manifest[reader.build_id].as_of
    assert reason_codes(everything(made, world)) == {"h": [], "r": []}
    step, after = everything(made, newer(world)).steps
    assert [r.code for r in step.reasons] == ["input", "history"]
    assert (step.history, step.goes_on_from) == (present, present)
    assert RawVersion(DRAW + source.build_id, "to come") in after.as_of
    forced, _ = everything(made, world, force=True).steps
    assert ([r.code for r in forced.reasons], forced.history) == (["forced", "history"], present)


def test_a_history_starts_over_only_with_on_change_rebuild() -> None:
    made = project(HISTORY)
    present = built(made).manifest[named(made, "h").build_id]
    for more, goes_on in (("", True), (" on_change=continue", True), (" on_change=rebuild", False)):
        text = HISTORY.replace("key=a", f"key=a{more}")
        same, other = project(text), project(text.replace("a, b FROM t", "a, b + 1 AS b FROM t"))
        assert named(same, "h").build_id == present.build_id != named(other, "h").build_id
        world = with_latest(other, built(made))
        step = plan(other, [named(other, "h").source_id], world).steps[0]
        assert [r.code for r in step.reasons] == ["code", "history"]
        assert step.history == (present if goes_on else None)
        step = plan(same, [present.source_id], with_latest(same, built(made)), force=True).steps[0]
        assert step.history == (present if goes_on else None)
        assert ("starts over" in step.reasons[-1].message) == (not goes_on)


def test_a_reverted_query_continues_the_latest_history() -> None:
    made, other = project(HISTORY), project(HISTORY.replace("a, b FROM t", "a, b + 1 AS b FROM t"))
    before = built(other, built(made))
    source = named(made, "h")
    later = replace(before.manifest[named(other, "h").build_id], build_uid="later")
    world = replace(before, latest={source.source_id: later})
    (step,) = plan(made, [source.source_id], world).steps
    assert (step.action, step.history) == ("build", later)


def test_a_plan_reports_a_history_that_must_be_built_first() -> None:
    made = project(HISTORY)
    (step,) = plan(made, [named(made, "r").source_id], fresh(made)).steps
    assert [r.message for r in step.reasons] == [
        "never built",
        "h must be built first: only its table has its history",
    ]


GOES_ON = f"""{RAW}
--@ persist refresh=incremental on_change=continue
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
--@ persist
CREATE VIEW r AS SELECT max(a) AS a FROM p;
"""


def test_a_table_continued_after_a_query_change_is_marked_as_older_code() -> None:
    made, other = project(GOES_ON), project(GOES_ON.replace("a > 0", "a > 1"))
    raw, source = named(made, "t"), named(other, "p")
    before = built(made)
    present = replace(before.manifest[named(made, "p").build_id], columns=source.columns)
    changes = {source.source_id: {raw.source_id: Change()}}
    world = replace(before, latest={source.source_id: present}, changes=changes)
    step = plan(other, [source.source_id], world).steps[0]
    mark = RawVersion(OLDER + source.build_id, present.build_uid)
    assert [r.code for r in step.reasons] == ["code", "increment", "older"]
    assert (step.goes_on_from, mark in step.as_of) == (present, True)
    (whole,) = plan(other, [source.source_id], world, force=True).steps
    assert (whole.goes_on_from, mark in whole.as_of) == (None, False)
    rebuilding = GOES_ON.replace(" on_change=continue", "").replace("a > 0", "a > 1")
    (step,) = plan(project(rebuilding), [source.source_id], world).steps
    assert step.goes_on_from is None
    # Readers in this environment inherit the mark; other environments do not reuse the table.
    marked = snapshot(source, merge_as_of([as_of(other, source, world), [mark]]))
    assert older_code(marked) == present.build_uid
    here = built(other, replace(world, manifest={source.build_id: marked}))
    here = replace(here, manifest={**here.manifest, source.build_id: marked})
    assert plan(other, [source.source_id], here).steps[0].action == "reuse"
    assert mark in as_of(other, named(other, "r"), here)
    there = replace(fresh(other), elsewhere={source.build_id: [marked]})
    assert plan(other, [source.source_id], there).steps[0].action == "build"
    exact = replace(marked, as_of=as_of(other, source, world))
    there = replace(fresh(other), elsewhere={source.build_id: [exact]})
    assert plan(other, [source.source_id], there).steps[0].action == "reuse"


def test_a_plan_reports_column_changes_that_prevent_continuing_a_table() -> None:
    made = project(GOES_ON)
    present = built(made).manifest[named(made, "p").build_id]
    present = replace(present, columns=named(made, "p").columns)
    for query, why in (
        ("a, b, 1 AS c FROM", "`c` is new"),
        ("a FROM", "`b` is gone"),
        ("a, CAST(b AS STRING) AS b FROM", "`b` was int and is string"),
    ):
        other = project(GOES_ON.replace("a, b FROM", query))
        source = named(other, "p")
        world = replace(built(made), latest={source.source_id: present})
        (step,) = plan(other, [source.source_id], world).steps
        assert f"it cannot be continued: {why}" in [r.message for r in step.reasons]


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("refresh=snapshot", "refresh=snapshot needs a key"),
        ("refresh=snapshot key=nobody", "`nobody` is not a column of `h`"),
        ("refresh=snapshot key=[a, A]", "`key` must be distinct columns"),
        ("refresh=snapshot key=a watch=nobody", "`nobody` is not a column of `h`"),
        ("refresh=snapshot key=a watch=valid_from", "`valid_from` is added by the history"),
        ("refresh=snapshot key=a watermark=b", "`b` is int, which cannot date versions"),
        ("refresh=snapshot key=a merge_key=a", "`merge_key` keeps the last row of each key"),
        ("refresh=snapshot key=a hard_deletes=open", "must be one of close, ignore, got `open`"),
        ("refresh=snapshot key=a on_change=go", "must be one of rebuild, continue, got `go`"),
        ("refresh=snapshot key=a materialized=view", "a build cannot add rows to a view"),
        ("refresh=snapshot key=a materialized=temporary", "has no effect on temporary tables"),
        ("refresh=snapshot key=a lookback=1h", "`lookback` needs refresh=incremental or strict"),
        (
            'refresh=snapshot key=a freshness { window="1h" fallback=live }',
            "has no query to compute",
        ),
        ("key=a", "`key` has no effect on a source that keeps no versions"),
        ("refresh=incremental watch=a", "`watch` has no effect on a source that keeps no versions"),
        ("on_change=continue", "`on_change` needs refresh=incremental, strict or snapshot"),
    ],
)
def test_invalid_options_of_histories_are_rejected(annotation: str, message: str) -> None:
    text = f"{RAW}--@ persist {annotation}\nCREATE VIEW h AS SELECT a, b FROM t;"
    made = compiled({"a.sql": text})
    assert any(message in p.message for p in made.errors), made.problems
    assert {p.location.line for p in made.errors} == {3}


def test_a_query_column_must_not_have_a_name_that_a_history_adds() -> None:
    text = (
        f"{RAW}--@ persist refresh=snapshot key=a\nCREATE VIEW h AS SELECT a, b AS Valid_To FROM t;"
    )
    assert [p.message for p in compiled({"a.sql": text}).errors] == [
        "refresh=snapshot adds a column `Valid_To`, which `h` already has"
    ]


def test_history_options_that_affect_rows_change_the_build_id() -> None:
    def build_id(more: str) -> str:
        text = f"{RAW}--@ persist {more}\nCREATE VIEW h AS SELECT a, b FROM t;"
        return named(project(text), "h").build_id

    annotations = [
        "",
        "refresh=snapshot key=a",
        "refresh=snapshot key=b",
        "refresh=snapshot key=[a, b]",
        "refresh=snapshot key=a watch=b",
        "refresh=snapshot key=a hard_deletes=ignore",
    ]
    assert len({build_id(more) for more in annotations}) == len(annotations)
    assert build_id("refresh=snapshot key=a") == build_id(
        "refresh=snapshot key=A on_change=rebuild"
    )


def test_the_digest_of_partitions_is_that_of_earlier_releases() -> None:
    """The ledger stores it: another digest would make readers of partitioned tables stale."""
    days = Filled((("2024-01-01", "2024-01-02"),), (RawVersion(BuildID("ab"), "delta:1:x"),))
    of_two = (RawVersion(BuildID("b"), "1"), RawVersion(BuildID("c"), "2'\"é"))
    groups = [days, Filled((("a'b", "a'b"), ("c", "d")), of_two), Filled((), ())]
    assert digest_partitions(groups) == "05fe953386c668153bed7af35389c48e"


@pytest.mark.proves("T27")
@pytest.mark.parametrize("window", ["", ' freshness.window="24h"'])
def test_a_freshness_window_does_not_hide_other_rows_of_the_same_data(window: str) -> None:
    made = project(f"""{RAW}
--@ persist
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
--@ persist{window}
CREATE VIEW q AS SELECT a FROM p WHERE b > 3;
""")
    world, p, q = built(made), named(made, "p"), named(made, "q")
    read = replace(world.manifest[q.build_id], inputs=inputs(made, q, world) or ())
    world = replace(world, manifest={**world.manifest, q.build_id: read})
    assert {s.action for s in everything(made, world).steps} == {"reuse"}
    rewritten = replace(world.manifest[p.build_id], content="other", build_uid="uid2", version=1)
    world = replace(world, manifest={**world.manifest, p.build_id: rewritten})
    steps = {s.source_id: s for s in everything(made, world).steps}
    assert steps[p.source_id].action == "reuse"
    assert [r.code for r in steps[q.source_id].reasons] == ["input"]


WIDE = """
from persist_assets import table
@table{0}
def wide(t):
    return t.groupBy("a").pivot("b").count()
@table
def tall(wide):
    return wide.unpivot("a", [c for c in wide.columns if c != "a"], "b", "n")
"""


@pytest.mark.proves("T27")
@pytest.mark.parametrize("contract", ["", '(columns={"a": "int", "7": "bigint"})'])
def test_columns_that_only_a_table_tells_are_part_of_its_version(contract: str) -> None:
    made = compiled({"a.sql": RAW, "m.py": WIDE.format(contract)})
    assert not made.errors
    wide, tall = (next(s for s in made.sources if s.name == n) for n in ("wide", "tall"))

    def world_of(version: str, column: str, reader: Snapshot | None) -> World:
        world = newer(fresh(made), version)
        table = snapshot(wide, as_of(made, wide, world))
        columns = (Column("a", "int"), Column(column, "bigint"))
        table = replace(table, columns=columns, inputs=inputs(made, wide, world) or ())
        world = replace(world, manifest={wide.build_id: table})
        if reader is None:
            reader = snapshot(tall, as_of(made, tall, world))
            reader = replace(reader, inputs=inputs(made, tall, world) or ())
        return replace(world, manifest={**world.manifest, tall.build_id: reader})

    before = world_of("files:1", "7", None).manifest[tall.build_id]
    for column, action in (("7", "reuse"), ("8", "reuse" if contract else "build")):
        world = world_of("files:2", column, before)
        steps = {s.source_id: s for s in plan(made, [wide.source_id, tall.source_id], world).steps}
        assert steps[tall.source_id].action == action


PARTED = f"""{RAW.replace("b INT)", "d DATE)", 1)}
--@ persist partition=daily time_column=d start="2025-12-29"
CREATE VIEW p AS SELECT a, d FROM t;
"""


@pytest.mark.proves("T28")
@pytest.mark.parametrize("chosen", [slice(2, 3), slice(2, 4), slice(None)])
def test_another_environments_table_must_have_all_partitions_of_the_own_one(chosen: slice) -> None:
    made = project(PARTED)
    p, world = named(made, "p"), fresh(made)
    assert p.annotation.partition is not None
    order = partition_keys_at(p.annotation.partition, NOW)
    assert len(order) == 4
    world = replace(world, keys={p.source_id: order})
    now, older = (as_of(made, p, newer(world, v)) for v in ("files:1", "files:0"))
    read = inputs(made, p, world) or ()

    def table(uid: str, *groups: tuple[tuple[str, ...], AsOf]) -> Snapshot:
        filled = tuple(
            Filled(tuple((k, k) for k in keys), rests, read if rests == now else rests)
            for keys, rests in groups
        )
        parts = Partitions(filled, tuple((k, k) for keys, _ in groups for k in keys), None)
        return replace(snapshot(p, now), build_uid=uid, table=uid, partitions=parts)

    def step(own: Snapshot, other: Snapshot) -> Step:
        there = replace(world, manifest={p.build_id: own}, elsewhere={p.build_id: [other]})
        (made_step,) = plan(
            made, [p.source_id], there, partition_keys={p.source_id: list(order[chosen])}
        ).steps
        return made_step

    own = table("own", (order[:2], now))
    selected = order[chosen]
    for other in (
        table("lacks two", (order[2:], now)),
        table("has an older one", (order[1:], now), (order[:1], older)),
    ):
        made_step = step(own, other)
        assert made_step.action == "build"
        assert made_step.keys == tuple(k for k in selected if k in order[2:])
        assert made_step.base is not None
        assert made_step.base.build_uid == "own"
    made_step = step(own, table("has all", (order, now)))
    assert made_step.snapshot is not None
    assert (made_step.action, made_step.snapshot.build_uid) == ("reuse", "has all")
    same = step(
        table("own", (order[:1], older)), table("same", (order[1:], now), (order[:1], older))
    )
    base = same.base or same.snapshot
    assert base is not None
    assert base.build_uid == "same", "the older partition is the same"


@pytest.mark.proves("T28")
def test_a_rerun_of_a_window_does_not_make_all_rows_of_another_day_current() -> None:
    made = project(f"""{RAW.replace("b INT)", "d DATE)", 1)}
--@ persist refresh=incremental watermark=d
CREATE VIEW p AS SELECT a, d, datediff(current_date(), d) AS age FROM t;
""")
    p, world = named(made, "p"), built(made)
    columns = (Column("a", "int"), Column("d", "date"), Column("age", "int"))
    table = replace(world.manifest[p.build_id], time_column="d", watermark="2026-01-01")
    table = replace(table, columns=columns, inputs=inputs(made, p, world) or ())
    world = replace(
        world,
        manifest={p.build_id: table},
        changes={p.source_id: {"t@sources/a.sql": Change()}},
    )
    day = date(2026, 1, 1)
    for today, is_whole in ((world.day, False), ("2026-01-03", True)):
        (step,) = plan(
            made, [p.source_id], replace(world, day=today), spans={p.source_id: (day, day)}
        ).steps
        assert (step.increment is None) == is_whole, today
