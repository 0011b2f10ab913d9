"""Upgrades rebuild nothing: a release takes over tables with the same text, where that is safe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.building.reader import Reader
from persist_assets.building.settled import find_settled
from persist_assets.building.start import own_entry, plan_step, start
from persist_assets.building.strategies.deltas import unchanged
from persist_assets.building.strategies.strategy import Task
from persist_assets.building.takeovers import in_turn, lease_names
from persist_assets.compiler import texts
from persist_assets.core import digests
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, Origin, RawVersion, Snapshot
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.tables import builds
from persist_assets.ledger.taints import Taint
from persist_assets.operations.alerting.conditions import find_conditions
from persist_assets.planning.takeovers import with_takeovers
from persist_assets.planning.world import DRAW
from persist_assets.wants.requests import of_one_table, taint

if TYPE_CHECKING:
    from pathlib import Path

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 15, 5, tzinfo=UTC)
RAW = "CREATE TABLE t (day DATE, x INT) USING delta LOCATION 't';\n"
SQL = """
CREATE VIEW plain AS SELECT day, x, 'a  b' AS s FROM t WHERE x > 0;
--@ persist refresh=incremental watermark=day
CREATE VIEW added AS SELECT day, x + 1 AS y FROM t;
--@ persist
CREATE VIEW total AS SELECT day, sum(x) AS n FROM plain GROUP BY day;
--@ persist
CREATE VIEW above AS SELECT max(n) AS most FROM total;
--@ persist materialized=view
CREATE VIEW stored AS SELECT x FROM t WHERE x > 1;
"""
WHY = "same text, newer fingerprint: takes its table over"


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(enter: Make) -> Make:
    """Return a function that makes a builder for a new run; each reading of the clock is later."""
    seconds = count()
    return lambda root, **how: enter(
        root, clock=lambda: NOW + timedelta(seconds=next(seconds)), **how
    )


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that simulates another release, with different BuildIDs."""
    return lambda: monkeypatch.setattr(digests, "VERSION", f"{digests.VERSION}'")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": RAW + SQL})
    put(made, 1, 2)
    return made


def put(root: Path, *days: int) -> None:
    columns = {
        "day": pa.array([date(2024, 1, day) for day in days], pa.date32()),
        "x": pa.array([*days], pa.int32()),
    }
    write_deltalake(root / "t", pa.table(columns), mode="append")


def edit(root: Path, before: str, after: str, name: str = "m.sql") -> None:
    file = root / "sources" / name
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def build(builder: Builder) -> dict[str, str]:
    """Build everything; return the action for each source."""
    return {s.name: builder.build(s).action for s in builder.project.persisted}


def planned(builder: Builder) -> dict[str, tuple[str, list[str]]]:
    steps = builder.plan([s.source_id for s in builder.project.persisted]).steps
    names = builder.project.by_id
    return {names[s.source_id].name: (s.action, [r.message for r in s.reasons]) for s in steps}


def built(builder: Builder) -> set[str]:
    return {name for name, (action, _) in planned(builder).items() if action == "build"}


def read(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    source = next(s for s in builder.project.sources if s.name == name)
    return sorted(tuple(row) for row in builder.read(source).collect())


def is_of(snapshot: Snapshot, name: str) -> bool:
    return snapshot.source_id.partition("@")[0] == name


ALL = {"added", "total", "above", "stored"}


@pytest.mark.proves("X1")
def test_an_upgrade_builds_nothing(root: Path, make: Make, upgrade: Callable[[], None]) -> None:
    first = make(root)
    build(first)
    rows, before = {name: read(first, name) for name in ALL}, first.ledger.manifests.fetch("dev")
    upgrade()
    later = make(root)
    assert {*later.project.by_build_id}.isdisjoint(before)
    assert planned(later) == dict.fromkeys(ALL, ("reuse", [WHY]))
    assert later.ledger.manifests.fetch("dev") == before  # a plan changes nothing
    position = later.ledger.events.position()
    assert build(later) == dict.fromkeys(ALL, "reused")
    assert planned(later) == dict.fromkeys(ALL, ("reuse", [WHY]))  # in this run
    events = [e for e in later.ledger.events.fetch() if e.idx > position]
    assert [e.data["entries"] for e in events if e.kind == "tables-taken-over"] == [len(ALL)]
    assert events[0].kind == "tables-taken-over"
    now = later.ledger.manifests.fetch("dev")
    assert before.items() <= now.items()  # for processes of the previous release
    uids = {s.build_uid for b, s in now.items() if b in later.project.by_build_id}
    assert uids == {s.build_uid for s in before.values()}
    assert planned(make(root)) == dict.fromkeys(ALL, ("reuse", []))
    assert {name: read(make(root), name) for name in ALL} == rows


@pytest.mark.proves("X1", "V40")
def test_tables_not_yet_taken_over_are_neither_settled_nor_collected(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    """A run skips settled tables; tables that it would take over are never settled."""
    first = make(root)
    build(first)

    def settled(builder: Builder) -> set[str]:
        found = find_settled(Reader(builder.observer, builder.engine), builder.project.persisted)
        return {source_id.partition("@")[0] for source_id in found}

    assert settled(make(root)) == ALL
    for _ in range(2):  # releases that build nothing
        upgrade()
        later = make(root)
        assert settled(later) == set()
        # Garbage collection preserves builds of the previous release, however old.
        defined = {b: [s.source_id for s in some] for b, some in later.project.by_build_id.items()}
        for removed in (False, True):
            later.ledger.builds.collect(NOW + timedelta(days=365), "dev", defined, removed=removed)
    assert build(make(root)) == dict.fromkeys(ALL, "reused")
    build(make(root))
    assert settled(make(root)) == ALL


@pytest.mark.proves("X1")
def test_readers_get_the_tables_right_after_an_upgrade(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    upgrade()
    put(root, 3)  # a query of the raw table would include it
    later = make(root)
    assert {s.build_id for s in later.project.persisted} <= {*later.observer.manifest()}
    assert read(later, "total") == [(date(2024, 1, 1), 1), (date(2024, 1, 2), 2)]
    shown = with_takeovers(later.project, later.ledger.manifests.fetch("dev"))
    assert shown == later.observer.published()


@pytest.mark.slow
@pytest.mark.proves("X1")
def test_taken_over_tables_are_still_built_incrementally(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    upgrade()
    put(root, 3)  # a stale table is still built incrementally
    later = make(root)
    plan = {
        s.source_id: s for s in later.plan([s.source_id for s in later.project.persisted]).steps
    }
    assert plan["added@sources/m.sql"].maintenance == "append"
    assert WHY in planned(later)["added"][1]
    done = {s.name: later.build(s) for s in later.project.persisted}
    assert (done["added"].action, done["added"].maintenance) == ("built", "append")
    assert read(make(root), "added") == [(date(2024, 1, d), d + 1) for d in (1, 2, 3)]
    assert read(make(root), "above") == [(3,)]
    upgrade()
    assert planned(make(root)) == dict.fromkeys(ALL, ("reuse", [WHY]))
    assert build(make(root)) == dict.fromkeys(ALL, "reused")
    put(root, 4)
    again = make(root)
    added = next(s for s in again.project.persisted if s.name == "added")
    assert again.build(added).maintenance == "append"
    assert len(read(again, "added")) == 4


@pytest.mark.proves("X1")
def test_a_rollback_undoes_a_takeover_and_the_next_build_repeats_it(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    upgrade()
    later = make(root)
    ledger = later.ledger
    before = {**ledger.manifests.fetch("dev")}
    (last, *_) = ledger.manifests.fetch_history("dev")
    later.build(next(s for s in later.project.persisted if s.name == "total"))
    taken = ledger.manifests.fetch_history("dev")
    assert [c.why for c in taken[:2]] == [None, "same text, newer fingerprint"]
    assert len(taken[1].moves) == len(ALL)
    ledger.manifests.roll_back("dev", last.change_id, expected=taken[0].change_id)
    assert ledger.manifests.fetch("dev") == before
    assert planned(make(root)) == dict.fromkeys(ALL, ("reuse", [WHY]))
    assert build(make(root)) == dict.fromkeys(ALL, "reused")


@pytest.mark.proves("X2")
def test_sources_edited_after_an_upgrade_are_rebuilt(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    upgrade()
    edit(root, "x + 1 AS y", "x + 2 AS y")
    assert built(make(root)) == {"added"}
    edit(root, "x + 2 AS y", "x  +  1 -- one more\n AS y")  # layout and comments do not count
    assert built(make(root)) == set()
    edit(root, "'a  b'", "'a b'")  # in an upstream view, in an unused column
    assert built(make(root)) == {"total", "above"}
    assert build(make(root)) == {
        **dict.fromkeys(ALL, "built"),
        "added": "reused",
        "stored": "reused",
    }
    assert built(make(root)) == set()


@pytest.mark.proves("X2")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("'t'", "'u'"),
        ("x INT", "x BIGINT"),
        ("materialized=view", "materialized=table"),
        ("watermark=day", "watermark=day assume=exact"),
    ],
)
def test_declarations_and_annotations_are_part_of_the_text(
    before: str, after: str, root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    shutil.copytree(root / "t", root / "u")
    upgrade()
    assert built(make(root)) == set()
    edit(root, before, after)
    assert built(make(root)) != set()


@pytest.mark.proves("X2")
def test_settings_are_part_of_the_text(root: Path, make: Make, upgrade: Callable[[], None]) -> None:
    build(make(root))
    upgrade()
    with (root / "persist.toml").open("a") as file:
        file.write('"spark.sql.ansi.enabled" = "false"\n')
    assert built(make(root)) == ALL


@pytest.mark.proves("X2")
def test_a_table_that_was_reused_for_an_edited_text_is_rebuilt_after_an_upgrade(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    edit(root, "SELECT x FROM t WHERE x > 1", "SELECT x FROM t WHERE 1 < x")
    edit(root, "sum(x) AS n", "sum( x ) n")
    assert build(make(root)) == dict.fromkeys(ALL, "reused")
    upgrade()
    assert built(make(root)) == {"stored", "total", "above"}
    assert "a text changed" not in str(planned(make(root))["added"])


@pytest.mark.proves("X2")
def test_a_table_with_rows_from_two_texts_is_rebuilt(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    edit(root, "SELECT day, x + 1 AS y", "SELECT day, 1 + x AS y")
    put(root, 3)
    assert build(make(root))["added"] == "built"  # appends to rows of the other text
    upgrade()
    assert built(make(root)) == {"added"}
    assert "rows were computed from several texts" in str(planned(make(root))["added"])


@pytest.mark.proves("X2")
def test_a_table_whose_input_has_another_text_is_rebuilt(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    edit(root, "sum(x) AS n", "sum(x) n")
    edit(root, "max(n) AS most", "max(n) + 0 AS most")
    done = build(make(root))
    assert (done["total"], done["above"]) == ("reused", "built")
    upgrade()
    assert built(make(root)) == {"total", "above"}


@pytest.mark.proves("X2")
@pytest.mark.parametrize("other", ["1 < x", "x > 1"])
def test_a_snapshot_found_unchanged_by_another_text_records_no_text(
    other: str, make_project: Callable[..., Path], make: Make
) -> None:
    few = "--@ persist refresh=incremental\nCREATE VIEW few AS SELECT x FROM t WHERE x > 1;\n"
    root = make_project({"m.sql": RAW + few})
    put(root, 1, 2)
    build(make(root))
    edit(root, "x > 1", other)
    put(root, 1)
    later = make(root)
    (source,) = later.project.persisted
    world = later.observer.observe([source])
    how: dict[str, Any] = {"force": False, "keys": None, "recompute_span": None}
    step = plan_step(later.observer, later.tables, source, world, **how)
    assert step.increment is not None
    before = own_entry(later.observer, source)
    started = start(later.observer, later.tables, source, step, world, before)
    found = unchanged(Task(later.reader, started, world, "this", [], None), step.increment.base)
    assert (found.build_uid, found.as_of) == (step.increment.base.build_uid, step.as_of)
    text = later.project.text_of(source.source_id)
    assert found.origin is not None
    assert found.origin.text == (text if other == "x > 1" else "")


@pytest.mark.proves("X2")
def test_a_table_that_was_reused_for_newer_data_by_another_text_is_rebuilt(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    edit(root, "WHERE x > 0", "WHERE x > 1")
    build(make(root))
    edit(root, "max(n) AS most", "max(n) most")
    put(root, 1)  # `total` has the same rows
    before = make(root).ledger.manifests.fetch("dev")
    assert build(make(root))["above"] == "reused"
    (now,) = [s for s in make(root).ledger.manifests.fetch("dev").values() if is_of(s, "above")]
    assert now.as_of != before[now.build_id].as_of
    edit(root, "max(n) most", "max(n) AS most")  # it may not be up to date by this text
    upgrade()
    assert built(make(root)) == {"above"}


@pytest.mark.proves("X2")
def test_a_release_that_computes_different_rows_rebuilds_all_tables(
    root: Path, make: Make, upgrade: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(make(root))
    upgrade()
    now = texts.ROWS
    monkeypatch.setattr(texts, "ROWS", {**now, "sql": now["sql"] + 1})
    assert built(make(root)) == ALL
    monkeypatch.setattr(texts, "ROWS", {**now, "history": now["history"] + 1})
    assert built(make(root)) == set()


@pytest.mark.proves("X2")
def test_tables_of_releases_that_recorded_no_text_are_built(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    first = make(root)
    build(first)
    with first.ledger.events.database.write() as connection:
        none = {"text": None, "software": None, "names": None}
        connection.execute(builds.update().values(**none))
    assert built(make(root)) == set()
    assert build(make(root)) == dict.fromkeys(ALL, "reused")  # reuse records no text
    with first.ledger.events.database.read() as connection:
        assert {*connection.scalars(sa.select(builds.c.text))} == {None}
    upgrade()
    reasons = planned(make(root))
    assert {name for name, (action, _) in reasons.items() if action == "build"} == ALL
    why = "built by an older release, which did not record its text"
    assert all(why in messages for _, messages in reasons.values())


@pytest.mark.proves("X2")
def test_a_text_that_one_release_recorded_for_two_tables_is_not_trusted(
    make_project: Callable[..., Path], make: Make, upgrade: Callable[[], None]
) -> None:
    two = ("CREATE VIEW a AS SELECT x FROM t WHERE x > 1", "CREATE VIEW b AS SELECT x FROM t")
    root = make_project({"m.sql": RAW + "".join(f"--@ persist\n{view};\n" for view in two)})
    put(root, 1, 2)
    first = make(root)
    build(first)
    a = next(s for s in first.project.persisted if s.name == "a")
    with first.ledger.events.database.write() as connection:  # as if the text were incomplete
        connection.execute(builds.update().values(text=first.project.text_of(a.source_id)))
    edit(root, f"--@ persist\n{two[1]};\n", "")
    upgrade()
    assert built(make(root)) == {"a"}
    assert build(make(root)) == {"a": "built"}
    assert read(make(root), "a") == [(2,)]


@pytest.mark.proves("X2")
def test_the_same_release_takes_over_no_tables(root: Path, make: Make) -> None:
    first = make(root)
    build(first)
    with first.ledger.events.database.write() as connection:  # as if something unknown differed
        connection.execute(sa.text("PRAGMA defer_foreign_keys = ON"))
        connection.execute(sa.text("UPDATE manifest_entries SET build_id = 'x' || build_id"))
        connection.execute(sa.text("UPDATE builds SET build_id = 'x' || build_id"))
    assert built(make(root)) == ALL


@pytest.mark.proves("X2")
def test_tainted_and_missing_tables_are_rebuilt_after_an_upgrade(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    first = make(root)
    build(first)
    manifest = first.ledger.manifests.fetch("dev")
    by_name = {s.source_id.partition("@")[0]: s for s in manifest.values()}
    with first.ledger.events.database.write() as connection:
        values = {"e": "dev", "u": by_name["added"].build_uid}
        connection.execute(sa.text("INSERT INTO taints VALUES (:e, :u, '')"), values)
    shutil.rmtree(first.settings.table_root(by_name["total"].table))
    upgrade()
    later = make(root)
    assert built(later) >= {"added", "total"}
    done = build(later)
    assert (done["added"], done["total"], done["stored"]) == ("built", "built", "reused")
    event = next(e for e in later.ledger.events.fetch() if e.kind == "tables-taken-over")
    assert event.data["entries"] == 2


@pytest.mark.proves("X2")
def test_tables_tainted_before_the_first_build_are_rebuilt(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    upgrade()
    assert taint(make(root).observer, "m/total", by="me", dry_run=True) == ["m/total", "m/above"]
    assert taint(make(root).observer, "m/total", by="me") == ["m/total", "m/above"]
    assert built(make(root)) == {"total", "above"}
    assert build(make(root)) == {
        **dict.fromkeys(("added", "stored"), "reused"),
        **dict.fromkeys(("total", "above"), "built"),
    }


@pytest.mark.slow
@pytest.mark.proves("X2")
def test_the_snapshots_of_a_table_include_those_of_both_releases(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    build(make(root))
    put(root, 3)
    build(make(root))
    upgrade()
    every: list[Snapshot] = []

    def look(_: object, snapshots: Collection[Snapshot]) -> Taint:
        every[:] = snapshots
        return Taint({})

    for _ in range(2):
        later = make(root)
        (added,) = [s for s in later.project.persisted if s.name == "added"]
        snapshot = later.observer.published()[added.build_id]
        later.ledger.taints.preview(["dev"], look)
        same = {s.build_uid for s in of_one_table(snapshot, every)}
        assert same == {s.build_uid for s in every if is_of(s, "added")}
        assert len(same) == 2
        build(later)


@pytest.mark.slow
@pytest.mark.proves("X1")
def test_an_environment_reuses_the_tables_of_another_one_across_an_upgrade(
    make_project: Callable[..., Path], make: Make, upgrade: Callable[[], None]
) -> None:
    root = make_project({"m.sql": RAW + SQL}, '[env.dev]\nreads = "prod"\n[env.prod]\n')
    put(root, 1, 2)
    build(make(root, environment="prod"))
    upgrade()
    dev = make(root, environment="dev")
    assert planned(dev) == dict.fromkeys(ALL, ("reuse", [WHY]))
    put(root, 3)
    prod_tables = {s.table: s.version for s in dev.ledger.manifests.fetch("prod").values()}
    build(dev)
    for table in dev.ledger.manifests.fetch("dev").values():
        assert table.version == prod_tables.get(table.table, table.version)  # prod's do not change
    prod = make(root, environment="prod")
    assert (
        prod.build(next(s for s in prod.project.persisted if s.name == "added")).action == "built"
    )
    assert build(prod) == {**dict.fromkeys(ALL, "built"), "added": "reused"}
    assert read(prod, "added") == read(make(root, environment="dev"), "added")
    upgrade()
    for environment in ("prod", "dev"):
        assert built(make(root, environment=environment)) == set()


@pytest.mark.slow
def test_a_table_can_be_reused_after_an_upgrade_while_its_environment_builds_it(
    make_project: Callable[..., Path], make: Make, upgrade: Callable[[], None]
) -> None:
    root = make_project({"m.sql": RAW + SQL}, '[env.dev]\nreads = "prod"\n[env.prod]\n')
    put(root, 1, 2)
    build(make(root, environment="prod"))
    prod = make(root, environment="prod")
    (added,) = [s for s in prod.project.persisted if s.name == "added"]
    with prod.work(added, force=True) as work:
        upgrade()
        assert build(make(root, environment="dev")) == dict.fromkeys(ALL, "reused")
        prod.publish(work)
    assert prod.ledger.manifests.fetch("prod")[added.build_id].build_uid == work.build.build_uid


@pytest.mark.proves("X1")
def test_an_environment_finds_tables_of_one_that_it_does_not_read(
    make_project: Callable[..., Path], make: Make, upgrade: Callable[[], None]
) -> None:
    root = make_project({"m.sql": RAW + SQL}, "[env.dev]\n[env.other]\n")
    put(root, 1, 2)
    build(make(root, environment="other"))
    upgrade()
    assert planned(make(root)) == dict.fromkeys(ALL, ("reuse", [WHY]))
    assert build(make(root)) == dict.fromkeys(ALL, "reused")


@pytest.mark.slow
def test_builds_of_all_releases_wait_for_leases_in_one_order(
    root: Path, make: Make, upgrade: Callable[[], None]
) -> None:
    made: list[set[str]] = []
    for _ in range(3):
        builder = make(root)
        build(builder)
        put(root, 1)  # so that this release writes to the table, too
        build(builder := make(root))
        (added,) = [s for s in builder.project.persisted if s.name == "added"]
        names = lease_names(builder.observer, added)
        assert in_turn([names, names]) == sorted(names)
        assert f"build {added.build_id}" in names
        made.append({*names})
        upgrade()
    assert [len(names) for names in made] == [1, 2, 3]


@pytest.mark.slow
def test_processes_of_the_previous_release_can_still_build_after_an_upgrade(
    root: Path, make: Make, upgrade: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(root)
    build(first)
    version = digests.VERSION
    upgrade()
    build(make(root))
    newer = digests.VERSION
    put(root, 3)
    monkeypatch.setattr(digests, "VERSION", version)
    assert build(make(root))["added"] == "built"
    monkeypatch.setattr(digests, "VERSION", newer)
    put(root, 4)
    assert build(make(root))["added"] == "built"
    expected = [(date(2024, 1, d), d + 1) for d in (1, 2, 3, 4)]
    assert read(make(root), "added") == expected
    monkeypatch.setattr(digests, "VERSION", version)
    assert read(make(root), "added") == expected[:3]


HISTORY = (
    "--@ persist refresh=snapshot key=x on_change=rebuild\nCREATE VIEW h AS SELECT x FROM t;\n"
)


def record(builder: Builder, started_at: datetime) -> None:
    """Record that a run built the history `h`."""
    (source,) = [s for s in builder.project.persisted if s.name == "h"]
    uid, environment = f"uid-{started_at.isoformat()}", builder.settings.environment
    build = Build(
        *(uid, source.source_id, source.build_id, source.definition, environment, "another run"),
        *("started", "built", started_at),
    )
    draw = RawVersion(DRAW + source.build_id, uid)
    times = (Column("x", "int"), Column("valid_from", "timestamp"), Column("valid_to", "timestamp"))
    names = ((source.build_id, builder.project.text_of(source.source_id)),)
    snapshot = Snapshot(
        *(uid, source.source_id, source.build_id, "h-table", 0, (draw,), uid, 1, 1, started_at),
        columns=times,
        origin=Origin(names[0][1], builder.project.software, names),
    )
    builder.ledger.builds.record_started(build, snapshot.table)
    builder.ledger.builds.publish(Publication(build, snapshot, ()))


@pytest.mark.proves("X1")
def test_a_history_that_a_former_release_continued_meanwhile_does_not_start_over(
    make_project: Callable[..., Path],
    make: Make,
    upgrade: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = make_project({"m.sql": RAW + HISTORY})
    put(root, 1)
    record(make(root), NOW)
    version = digests.VERSION
    upgrade()
    newer = digests.VERSION
    record(make(root), NOW + timedelta(days=1))
    monkeypatch.setattr(digests, "VERSION", version)
    record(make(root), NOW + timedelta(days=2))
    monkeypatch.setattr(digests, "VERSION", newer)
    later = make(root)
    (step,) = later.plan([s.source_id for s in later.project.persisted]).steps
    assert step.history is not None
    assert step.history.built_at == NOW + timedelta(days=2)
    assert "starts over" not in str(step.reasons)


@pytest.mark.proves("X1")
def test_a_history_of_a_read_environment_has_the_same_build_id_throughout_a_build(
    make_project: Callable[..., Path], make: Make, upgrade: Callable[[], None]
) -> None:
    root = make_project({"m.sql": RAW + HISTORY}, '[env.dev]\nreads = "prod"\n[env.prod]\n')
    put(root, 1)
    record(make(root, environment="prod"), NOW)
    upgrade()
    dev = make(root, environment="dev")
    (source,) = dev.project.persisted
    latest = dev.observer.observe([source]).latest[source.source_id]
    assert latest.build_id == source.build_id
    assert dev.observer.latest(source) == latest  # otherwise publishing it would conflict


@pytest.mark.proves("X1")
def test_stale_alerts_survive_upgrades(root: Path, make: Make, upgrade: Callable[[], None]) -> None:
    edit(
        root,
        "--@ persist\nCREATE VIEW above",
        '--@ persist freshness.window="1h"\nCREATE VIEW above',
    )
    build(make(root))
    late = make(root).observer
    late.clock = lambda: NOW + timedelta(hours=2)
    assert [c.kind for c in find_conditions(late)] == ["stale"]
    upgrade()
    late = make(root).observer
    late.clock = lambda: NOW + timedelta(hours=2)
    assert [c.kind for c in find_conditions(late)] == ["stale"]
