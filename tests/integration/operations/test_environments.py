"""Environments of one project: what they read, build and share."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.catalog_views import shown
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import ConflictError, NotFoundError, SettingsError
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.manifest_imports import import_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""
READS = '[env.prod]\n[env.dev]\nreads = "prod"\n'


def write(root: Path, values: list[int], place: str = "raw/t") -> None:
    path = root / place / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, READS)
    write(made, [1, 2])
    return made


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def build(builder: Builder, *names: str) -> list[str]:
    """Build sources; return the actions."""
    return [builder.build(named(builder, n)).action for n in names]


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in builder.read(named(builder, name)).collect())


def planned(builder: Builder) -> list[str]:
    ids = [s.source_id for s in builder.project.persisted]
    return [step.action for step in builder.plan(ids).steps]


def entries(builder: Builder, environment: str) -> dict[str, tuple[str, int]]:
    manifest = builder.ledger.manifests.fetch(environment)
    return {s.source_id.partition("@")[0]: (s.table, s.version) for s in manifest.values()}


def edit(root: Path, before: str, after: str) -> None:
    path = root / "sources" / "m.sql"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.mark.proves("K20")
def test_dev_builds_only_edited_sources_and_reads_the_rest_from_production(
    root: Path, enter: Callable[..., Builder]
) -> None:
    assert build(enter(root, "prod"), "p", "q") == ["built", "built"]
    before = entries(enter(root, "prod"), "prod")
    assert planned(enter(root, "dev")) == ["reuse", "reuse"]
    edit(root, "sum(a)", "max(a)")
    dev = enter(root, "dev")
    assert planned(dev) == ["reuse", "build"]
    (step,) = dev.plan(ids(dev, "q")).steps
    assert step.reasons[0].message == "column s changed in sources/m.sql:6"
    assert rows(dev, "p") == [(2,), (3,)]
    assert build(dev, "p", "q") == ["reused", "built"]
    assert rows(dev, "q") == [(3,)]
    assert set(entries(dev, "dev")) == {"q"}
    assert entries(dev, "prod") == before
    # After the edit is reverted, there is nothing to build.
    edit(root, "max(a)", "sum(a)")
    assert rows(enter(root, "dev"), "q") == [(5,)]


def test_dev_reads_tables_as_soon_as_production_rebuilds_them(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"), "p", "q")
    build(enter(root, "dev"), "p", "q")
    write(root, [1, 2, 3])
    build(enter(root, "prod"), "p", "q")
    dev = enter(root, "dev")
    assert planned(dev) == ["reuse", "reuse"]
    assert rows(dev, "q") == [(9,)]


def test_unchanged_rows_are_recorded_once_as_current_with_newer_data(
    root: Path, enter: Callable[..., Builder]
) -> None:
    edit(root, "SELECT a + 1 AS a FROM t", "SELECT a + 1 AS a FROM t WHERE a < 5")
    build(enter(root, "prod"), "p", "q")
    write(root, [1, 2, 9])
    dev = enter(root, "dev")
    assert build(dev, "p", "q") == ["built", "reused"]
    assert entries(dev, "dev").keys() == {"p", "q"}
    steps = enter(root, "dev").plan(ids(dev, "p", "q")).steps
    assert [(s.action, s.reasons) for s in steps] == [("reuse", ())] * 2


@pytest.mark.proves("P32")
def test_builds_in_dev_never_write_tables_of_production(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"), "p", "q")
    write(root, [7])
    before = entries(enter(root, "prod"), "prod")
    dev = enter(root, "dev")
    ledger = dev.ledger

    def state() -> list[Any]:
        """Return the state of production: its current builds, history and last builds."""
        kept = [
            ledger.builds.fetch_current,
            ledger.manifests.fetch_history,
            ledger.builds.fetch_last,
        ]
        return [fetch("prod") for fetch in kept]

    was = state()
    assert build(dev, "p", "q") == ["built", "built"]
    assert all(was) and state() == was
    assert len(ledger.manifests.fetch_history("dev")) == 2
    assert not {t for t, _ in entries(dev, "dev").values()} & {t for t, _ in before.values()}
    assert rows(dev, "q") == [(8,)]
    prod = enter(root, "prod")
    assert entries(prod, "prod") == before
    # Production reuses the tables that dev built.
    assert build(prod, "p", "q") == ["reused", "reused"]
    assert rows(prod, "q") == [(8,)]


@pytest.mark.proves("P32")
def test_an_environment_reuses_tables_of_any_other_environment(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES})
    write(root, [1, 2])
    build(enter(root, "one"), "p", "q")
    two = enter(root, "two")
    assert planned(two) == ["reuse", "reuse"]
    assert build(two, "p", "q") == ["reused", "reused"]
    assert entries(two, "two") == entries(two, "one")
    # From then on, the environments are independent.
    write(root, [5])
    assert build(enter(root, "two"), "p", "q") == ["built", "built"]
    assert rows(enter(root, "one"), "q") == [(5,)]
    assert rows(enter(root, "two"), "q") == [(6,)]


@pytest.mark.proves("K20")
@pytest.mark.parametrize("name", ["t", "m/t"])
def test_tables_of_sample_data_are_never_mistaken_for_those_of_production(
    make_project: Callable[..., Path], enter: Callable[..., Builder], name: str
) -> None:
    root = make_project({"m.sql": SOURCES}, READS + f'[env.dev.raw]\n"{name}" = "sample/t"\n')
    write(root, [1, 2])
    write(root, [100], "sample/t")
    build(enter(root, "prod"), "p", "q")
    dev, prod = enter(root, "dev"), enter(root, "prod")
    assert named(dev, "q").build_id != named(prod, "q").build_id
    assert planned(dev) == ["build", "build"]
    build(dev, "p", "q")
    assert rows(dev, "q") == [(101,)]
    assert rows(enter(root, "prod"), "q") == [(5,)]


def test_an_environment_can_have_its_own_warehouse(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES}, READS + 'warehouse = "elsewhere"\n')
    write(root, [1, 2])
    build(enter(root, "prod"), "p")
    dev = enter(root, "dev")
    assert build(dev, "p", "q") == ["reused", "built"]
    assert rows(dev, "q") == [(5,)]
    assert [p.name.partition("-")[0] for p in (root / "elsewhere").iterdir()] == ["q"]
    # Other environments find the table through the ledger.
    assert build(enter(root, "prod"), "q") == ["reused"]
    assert rows(enter(root, "prod"), "q") == [(5,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[env.dev.raw]\nu = "x"\n', "`[env.dev.raw] u` is not a raw table"),
        ('[env.dev.raw]\np = "x"\n', "`[env.dev.raw] p` is not a raw table"),
    ],
)
def test_overriding_an_unknown_raw_table_is_an_error(
    make_project: Callable[..., Path], text: str, says: str
) -> None:
    root = make_project({"m.sql": SOURCES}, text)
    with pytest.raises(SettingsError) as raised:
        load_project(load_settings(root, environment="dev"))
    assert says in str(raised.value)
    assert "m/t" in str(raised.value)


# --------------------------------------------------------------------------- promotion and rollback


def bytes_of(warehouse: str) -> dict[str, int]:
    return {str(p): p.stat().st_size for p in Path(warehouse).rglob("*") if p.is_file()}


def ids(builder: Builder, *names: str) -> list[str]:
    return [named(builder, n).source_id for n in names]


@pytest.mark.proves("K20", "W32")
def test_promotion_and_rollback_change_the_manifest_and_copy_no_files(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"), "p", "q")
    edit(root, "sum(a)", "max(a)")
    dev = enter(root, "dev")
    build(dev, "p", "q")
    warehouse = bytes_of(dev.settings.warehouse)
    old = dev.ledger.manifests.fetch("prod")
    decided, change = promote(dev, "prod", ids(dev, "p", "q"), why="the greatest counts")
    assert ([s.name for s in decided.sources], decided.refused) == (["q"], ())
    prod = enter(root, "prod")
    assert planned(prod) == ["reuse", "reuse"]
    assert rows(prod, "q") == [(3,)]
    exported = json.loads(prod.settings.manifest_path.read_text())["entries"]
    assert exported.keys() == prod.ledger.manifests.fetch("prod").keys()
    read = json.loads(dev.settings.manifest_path.read_text())["entries"]
    assert read.keys() == dev.ledger.manifests.fetch("dev", "prod").keys()
    (latest, *builds) = prod.ledger.manifests.fetch_history("prod")
    assert (latest.change_id, latest.kind, latest.why) == (change, "promote", "the greatest counts")
    assert [c.kind for c in builds] == ["build", "build"]
    available = prod.ledger.partitions.fetch_available
    assert available("prod").keys() == {"m/p", "m/q"}
    back = roll_back(prod.settings, prod.ledger)
    assert back.kind == "rollback"
    assert prod.ledger.manifests.fetch("prod") == old
    assert available("prod").keys() == {"m/p", "m/q"}
    # A rollback is a change like any other, and can be undone.
    roll_back(prod.settings, prod.ledger, to=change)
    assert rows(prod, "q") == [(3,)]
    assert available("prod").keys() == {"m/p", "m/q"}
    roll_back(prod.settings, prod.ledger, steps=2)  # also undoes the builds
    assert prod.ledger.manifests.fetch("prod") == {}
    assert available("prod") == {}
    assert bytes_of(dev.settings.warehouse) == warehouse
    # A promotion without differences records no change.
    promote(dev, "prod", ids(dev, "q"))
    assert available("prod").keys() == {"m/q"}
    assert promote(dev, "prod", ids(dev, "q"))[1] is None


def test_a_refused_promotion_gives_reasons_and_changes_nothing(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"), "p", "q")
    edit(root, "sum(a)", "max(a)")
    dev = enter(root, "dev")

    def reasons(**options: Any) -> dict[str, str]:
        decided, change = promote(enter(root, "dev"), "prod", ids(dev, "p", "q"), **options)
        assert change is None or not decided.refused
        return {r.source_id.partition("@")[0]: r.reason for r in decided.refused}

    assert reasons() == {"q": "it is not built in dev"}
    build(dev, "q")
    write(root, [50])
    assert "the data of t changed" in reasons()["q"]
    build(enter(root, "dev"), "p", "q")
    only_q, change = promote(enter(root, "dev"), "prod", ids(dev, "q"))
    assert change is None
    assert "different data than m/p has there" in only_q.refused[0].reason
    path = root / "sources" / "m.sql"
    text = path.read_text()
    at = text.rindex("--@ persist")
    path.write_text(text[:at] + "--@ persist check { not_null=[s] }" + text[at + 11 :])
    assert "has not passed these checks: s not null" in reasons(allow_stale=True)["q"]
    assert entries(dev, "prod").keys() == {"p", "q"}
    path.write_text(text)
    assert reasons() == {}
    assert rows(enter(root, "prod"), "q") == [(51,)]


def test_tables_built_from_sample_data_are_not_promoted(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES}, READS + '[env.dev.raw]\nt = "sample/t"\n')
    write(root, [1])
    write(root, [2], "sample/t")
    dev = enter(root, "dev")
    build(dev, "p", "q")
    decided, change = promote(dev, "prod", ids(dev, "p", "q"), allow_stale=True)
    assert change is None
    assert {r.reason.partition(":")[0] for r in decided.refused} == {"it differs there"}


def test_invalid_promotions_and_rollbacks_fail(root: Path, enter: Callable[..., Builder]) -> None:
    dev = enter(root, "dev")
    with pytest.raises(SettingsError, match="cannot be promoted into itself"):
        promote(dev, "dev", ids(dev, "p"))
    with pytest.raises(SettingsError, match="unknown environment `prd`"):
        promote(dev, "prd", ids(dev, "p"))
    with pytest.raises(NotFoundError, match="dev has 0 steps to roll back, not 1"):
        roll_back(dev.settings, dev.ledger)
    build(dev, "p")
    (change,) = dev.ledger.manifests.fetch_history("dev")
    with pytest.raises(NotFoundError, match="dev has no change 7000"):
        roll_back(dev.settings, dev.ledger, to=7000)
    with pytest.raises(ConflictError, match="is already at change"):
        roll_back(dev.settings, dev.ledger, to=change.change_id)
    table = dev.ledger.manifests.fetch("dev")[named(dev, "p").build_id].table
    write(root, [9])
    build(enter(root, "dev"), "p")
    shutil.rmtree(dev.settings.table_root(table))
    with pytest.raises(ConflictError, match=f"{table} version 0 is gone"):
        roll_back(dev.settings, dev.ledger)
    assert len(dev.ledger.manifests.fetch_history("dev")) == 2


@pytest.mark.slow
@pytest.mark.proves("W32")
@pytest.mark.usefixtures("spark")
def test_partitions_that_a_rollback_or_a_promotion_removes_are_not_available(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project(
        {
            "m.sql": "CREATE TABLE t (k DATE, a INT) USING delta LOCATION 't';\n"
            '--@ persist partition=daily time_column=k start="2024-01-01" end="2024-01-04"\n'
            "CREATE VIEW s AS SELECT k, sum(a) AS a FROM t GROUP BY k;\n"
        },
        "[env.dev]\n[env.prod]\n",
    )
    rows = pa.table(
        {"k": [date(2024, 1, d) for d in (1, 2, 3)], "a": pa.array([1, 2, 3], pa.int32())}
    )
    write_deltalake(str(root / "t"), rows)
    dev, prod = enter(root, "dev"), enter(root, "prod")
    dev.build(named(dev, "s"), keys=["2024-01-01"])
    prod.build(named(prod, "s"), keys=["2024-01-01"])
    one = prod.ledger.manifests.fetch_history("prod")[0].change_id
    prod = enter(root, "prod")
    prod.build(named(prod, "s"))
    all_three = prod.ledger.manifests.fetch_history("prod")[0].change_id

    def available() -> set[str]:
        return {
            ref.removeprefix("m/s/2024-01-")
            for ref in prod.ledger.partitions.fetch_available("prod")
        }

    assert available() == {"01", "02", "03"}
    roll_back(prod.settings, prod.ledger, to=one)
    assert available() == {"01"}
    roll_back(prod.settings, prod.ledger, to=all_three)
    assert available() == {"01", "02", "03"}
    roll_back(prod.settings, prod.ledger, run=str(all_three))
    assert available() == {"01"}
    roll_back(prod.settings, prod.ledger, to=all_three)
    _, change = promote(dev, "prod", ids(dev, "s"), allow_stale=True)
    assert change is not None
    assert available() == {"01"}
    file = root / "manifest.json"
    roll_back(prod.settings, prod.ledger, to=all_three)
    shutil.copy(prod.settings.manifest_path, file)
    roll_back(prod.settings, prod.ledger, to=one)
    import_manifest(prod.settings, prod.ledger, file)
    assert available() == {"01", "02", "03"}


def test_promotions_and_rollbacks_based_on_an_old_manifest_are_refused(
    root: Path, enter: Callable[..., Builder]
) -> None:
    dev = enter(root, "dev")
    build(dev, "p")
    decided = dev.ledger.manifests.fetch("dev")
    write(root, [9])
    build(enter(root, "dev"), "p")
    with pytest.raises(ConflictError, match="changed while it was being promoted"):
        dev.ledger.manifests.promote(("dev",), "prod", decided)
    with pytest.raises(ConflictError, match="changed meanwhile"):
        dev.ledger.manifests.roll_back("dev", 0, expected=1)
    # Neither do they replace what they were not decided for.
    now = dev.ledger.manifests.fetch("dev")
    with pytest.raises(ConflictError, match="prod changed meanwhile"):
        dev.ledger.manifests.promote(("dev",), "prod", now, expected=1)
    later = enter(root, "dev")
    seen, _ = promote(later, "prod", ids(later, "p"), dry_run=True)
    assert seen.sources and not seen.replaced
    assert replace(seen, replaced=decided).digest != seen.digest
    assert dev.ledger.manifests.fetch("prod") == {}


@pytest.mark.proves("K20")
def test_a_table_that_has_not_passed_the_targets_checks_is_not_promoted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    """A variable that only a check uses does not change the BuildID."""
    toml = root / "persist.toml"
    toml.write_text("[env.prod.variables]\nlowest = 10\n" + toml.read_text())
    check = '--@ persist check { expr { big="a > lowest" } }\nCREATE VIEW p'
    edit(root, "--@ persist\nCREATE VIEW p", check)
    edit(root, "CREATE TABLE t", "DECLARE VARIABLE lowest INT DEFAULT 0;\nCREATE TABLE t")
    dev = enter(root, "dev")
    build(dev, "p")
    promotion, change = promote(dev, "prod", ids(dev, "p"))
    assert change is None
    (refusal,) = promotion.refused
    assert refusal.reason == "its table has not passed these checks: a > CAST(10 AS int)"
    assert entries(dev, "prod") == {}


@pytest.mark.slow
@pytest.mark.proves("K20")
def test_a_thousand_sources_are_promoted_and_rolled_back_in_a_second_each(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/l.db")
    now = datetime.now(UTC)
    for n in range(1000):
        made = Build(f"{n}", f"s{n}@s.sql", f"b{n}", "d", "dev", "run", "started", "built", now)
        snapshot = Snapshot(f"{n}", made.source_id, made.build_id, f"t{n}", 0, (), "c", 1, 1, now)
        ledger.builds.record_started(made, snapshot.table)
        ledger.builds.publish(Publication(made, snapshot, ()))
    manifest = ledger.manifests.fetch("dev")
    started = time.perf_counter()
    change = ledger.manifests.promote(("dev",), "prod", manifest)
    promoted = time.perf_counter()
    assert ledger.manifests.fetch("prod") == manifest
    again = time.perf_counter()
    ledger.manifests.roll_back("prod", 0, expected=change)
    rolled_back = time.perf_counter()
    assert ledger.manifests.fetch("prod") == {}
    assert promoted - started < 1
    assert rolled_back - again < 1
    assert ledger.events.position() == 2002
    ledger.close()


def test_an_up_to_date_table_is_read_even_if_another_was_built_later(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "persist.toml").write_text("[env.qa]\n" + (root / "persist.toml").read_text())
    build(enter(root, "prod"), "p")
    write(root, [1, 2, 3])
    build(enter(root, "qa"), "p", "q")
    build(enter(root, "prod"), "q")  # from its table of older data
    assert build(enter(root, "dev"), "p", "q") == ["reused", "reused"]
    assert rows(enter(root, "dev"), "q") == [(9,)]


def test_a_table_that_is_current_only_in_a_third_environment_is_not_promoted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "persist.toml").write_text("[env.qa]\n" + (root / "persist.toml").read_text())
    build(enter(root, "dev"), "p")
    write(root, [1, 2, 3])
    build(enter(root, "qa"), "p")
    dev = enter(root, "dev")
    assert planned(dev)[0] == "reuse"
    decided, change = promote(dev, "prod", ids(dev, "p"))
    assert change is None
    assert [r.reason for r in decided.refused] == ["it is out of date in dev: build it there"]
    build(dev, "p")
    assert promote(dev, "prod", ids(dev, "p"))[1] is not None
    assert rows(enter(root, "prod"), "p") == [(2,), (3,), (4,)]


def test_a_promotion_is_refused_if_the_target_reads_other_upstream_data(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "persist.toml").write_text("[env.qa]\n" + (root / "persist.toml").read_text())
    build(enter(root, "qa"), "p", "q")
    write(root, [1, 2, 3])
    build(enter(root, "prod"), "p")
    qa = enter(root, "qa")
    decided, change = promote(qa, "dev", ids(qa, "q"))
    assert change is None
    assert decided.refused[0].reason.startswith(
        "it was built from different data than m/p has there"
    )


def test_a_reused_table_of_another_environment_survives_its_rollback(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"), "p")
    write(root, [5])
    prod = enter(root, "prod")
    build(prod, "p")
    dev = enter(root, "dev")
    with dev.work(named(dev, "p")) as work:
        assert work.build.action == "reused"
        roll_back(prod.settings, prod.ledger)
        dev.publish(work)
    assert rows(prod, "p") == [(2,), (3,)]
    assert rows(dev, "p") == [(6,)], "which it was found to be up to date with"


def test_a_failed_manifest_export_is_completed_by_the_next_promotion(
    root: Path, enter: Callable[..., Builder]
) -> None:
    dev = enter(root, "dev")
    build(dev, "p", "q")
    ids = [s.source_id for s in dev.project.persisted]
    exported = load_settings(root, environment="prod").manifest_path
    exported.with_name(f".{exported.name}.new").mkdir(parents=True)  # blocks the new file
    with pytest.raises(OSError):
        promote(dev, "prod", ids)
    assert not exported.exists()
    exported.with_name(f".{exported.name}.new").rmdir()
    assert promote(dev, "prod", ids)[1] is None, "everything is there"
    assert set(json.loads(exported.read_text())["entries"]) == set(
        dev.ledger.manifests.fetch("prod")
    )


def test_a_rollback_shows_the_same_rows_of_sources_with_one_meaning(
    root: Path, enter: Callable[..., Builder]
) -> None:
    file = root / "sources" / "m.sql"
    twin = "--@ persist\nCREATE VIEW twin AS SELECT 1 + a AS a FROM t;\n"
    file.write_text(file.read_text() + twin)
    first = enter(root, "prod")
    assert named(first, "twin").build_id == named(first, "p").build_id
    build(first, "p")
    good = first.ledger.manifests.fetch("prod")
    write(root, [9])
    build(enter(root, "prod"), "twin")
    # The text of one of them is corrected, and not built yet.
    edit(root, "1 + a AS a", "2 + a AS a")
    later = enter(root, "prod")
    roll_back(later.settings, later.ledger)
    assert later.ledger.manifests.fetch("prod") == good
    snapshot = shown(later.settings, later.ledger, named(later, "twin"))
    assert snapshot == good[named(later, "p").build_id]
