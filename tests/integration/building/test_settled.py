"""Sources that a run leaves out because a build would not change them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.building.pins import reading_as
from persist_assets.building.reader import Reader
from persist_assets.building.settled import confirm, find_settled
from persist_assets.ledger.collection import forgotten
from persist_assets.wants.requests import taint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from persist_assets.building.builder import Builder
    from persist_assets.building.settled import Settled
    from persist_assets.core.model.queries import SourceID

SQL = """
CREATE TABLE t (a BIGINT, b STRING, day DATE) USING parquet LOCATION 'raw/t';
CREATE TABLE u (a BIGINT) USING parquet LOCATION 'raw/u';
--@ persist check { not_null=[a] }
CREATE VIEW plain AS SELECT a, b FROM t;
--@ persist
CREATE VIEW reader AS SELECT b, count(*) AS n FROM plain GROUP BY b;
--@ persist materialized=view
CREATE VIEW stored AS SELECT n FROM reader;
--@ persist check { unique=[a] relationship { a="plain.a" } }
CREATE VIEW other AS SELECT a FROM u;
--@ persist freshness.window="24h"
CREATE VIEW fresh AS SELECT a + 5 AS a FROM u;
--@ persist want { every=daily sla="9h" }
CREATE VIEW due AS SELECT a + 1 AS a FROM u;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-03"
CREATE VIEW parted AS SELECT day, a FROM t;
--@ persist check { expr="a > 3" { severity=warn } }
CREATE VIEW lenient AS SELECT a + 2 AS a FROM u;
--@ check { not_null=[a] }
CREATE VIEW looked AS SELECT a + 3 AS a FROM u;
--@ persist
CREATE VIEW guarded AS SELECT a FROM looked;
--@ persist check { expr="a < year(current_date())" }
CREATE VIEW timed AS SELECT a + 4 AS a FROM u;
"""
LEFT_OUT = {"plain", "reader", "stored", "other"}


def put(root: Path, name: str, table: str, *values: int) -> None:
    (root / "raw" / table).mkdir(parents=True, exist_ok=True)
    columns = {"a": pa.array(values, pa.int64())}
    if table == "t":
        columns["b"] = pa.array(["x"] * len(values))
        columns["day"] = pa.array([19723] * len(values), pa.int32()).cast(pa.date32())
    pq.write_table(pa.table(columns), root / "raw" / table / f"{name}.parquet")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project({"m.sql": SQL})
    put(root, "1", "t", 1, 2)
    put(root, "1", "u", 1, 2)
    return root


def look(builder: Builder) -> dict[SourceID, Settled]:
    return find_settled(Reader(builder.observer, builder.engine), builder.project.persisted)


def names(settled: Iterable[SourceID]) -> set[str]:
    return {source_id.partition("@")[0] for source_id in settled}


def edit(root: Path, old: str, new: str) -> None:
    path = root / "sources" / "m.sql"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.proves("V40")
def test_a_run_leaves_out_only_sources_that_a_build_would_not_change(
    root: Path, enter: Callable[..., Builder]
) -> None:
    assert look(enter(root)) == {}  # nothing is built
    builder = enter(root)
    for source in builder.project.persisted:
        builder.build(source)
    builder.close()
    # The others have a freshness window, a want, partitions, a check that failed, a check of a view
    # that they read, or a check that depends on the clock.
    assert names(look(enter(root))) == LEFT_OUT

    builder_ended = datetime.now(UTC)
    # Confirming changes only the time until which the data is known to be current.
    before, planned = enter(root), enter(root)
    manifest = before.observer.published()
    settled = look(planned)
    confirm(Reader(planned.observer, planned.engine), settled.values())
    after = before.ledger.manifests.fetch("dev")
    assert after == manifest
    for source_id, some in settled.items():
        snapshot = after[some.source.build_id]
        assert snapshot.known_at == some.current_at == planned.observer.started_at, source_id
        assert snapshot.known_at > manifest[some.source.build_id].known_at
        assert planned.ledger.partitions.fetch_available("dev")[some.source.key] > builder_ended
    others = {s.build_id for s in planned.project.persisted if s.source_id not in settled}
    assert all(after[b].known_at == manifest[b].known_at for b in others)
    assert planned.settings.manifest_path.is_file()

    # A source can be left out even if its upstream sources are not selected.
    few = find_settled(
        Reader(planned.observer, planned.engine),
        [s for s in planned.project.persisted if s.name == "stored"],
    )
    assert names(few) == {"stored"}


@pytest.mark.slow
@pytest.mark.proves("V40")
def test_a_run_includes_every_source_that_a_build_would_change(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    for source in builder.project.persisted:
        builder.build(source)
    builder.close()
    by_name = {s.name: s for s in builder.project.persisted}

    # An edited source, its downstream sources, and a check that compares with it.
    edit(root, "SELECT a, b FROM t;", "SELECT a, upper(b) AS b FROM t;")
    assert names(look(enter(root))) == set()
    edit(root, "SELECT a, upper(b) AS b FROM t;", "SELECT a, b FROM t;")
    assert names(look(enter(root))) == LEFT_OUT
    # A source with another text but the same meaning: the build records the text.
    edit(root, "SELECT b, count(*) AS n", "SELECT b, count(1) AS n")
    assert names(look(enter(root))) == {"plain", "other"}
    edit(root, "SELECT b, count(1) AS n", "SELECT b, count(*) AS n")
    # A check that was added, changed or removed.
    edit(root, "not_null=[a] }\nCREATE VIEW plain", "not_null=[a, b] }\nCREATE VIEW plain")
    assert names(look(enter(root))) == set()
    edit(root, "not_null=[a, b] }\nCREATE VIEW plain", "not_null=[a] }\nCREATE VIEW plain")
    edit(
        root,
        "--@ persist check { not_null=[a] }\nCREATE VIEW plain",
        "--@ persist\nCREATE VIEW plain",
    )
    assert names(look(enter(root))) == set()
    edit(
        root,
        "--@ persist\nCREATE VIEW plain",
        "--@ persist check { not_null=[a] }\nCREATE VIEW plain",
    )
    # A table with a missing file.
    snapshot = builder.ledger.manifests.fetch("dev")[by_name["reader"].build_id]
    (lost,) = Path(builder.settings.table_root(snapshot.table), snapshot.build_uid).glob(
        "*.parquet"
    )
    shutil.move(lost, root / "lost")
    assert names(look(enter(root))) == {"plain", "other"}
    shutil.move(root / "lost", lost)
    assert names(look(enter(root))) == LEFT_OUT
    # A build that never ended: the next build cleans up after it.
    killed = enter(root, run_id="killed")
    with pytest.raises(KeyboardInterrupt), killed.work(by_name["other"]):
        assert names(look(enter(root))) == LEFT_OUT - {"other"}
        raise KeyboardInterrupt
    # The last build failed.
    assert "other" not in names(look(enter(root)))
    enter(root).build(by_name["other"])
    assert names(look(enter(root))) == LEFT_OUT

    # Newer data, even if all rows stay the same.
    put(root, "2", "t")
    assert names(look(enter(root))) == set()


@pytest.mark.proves("V40")
def test_a_run_reads_the_versions_pinned_when_sources_were_left_out(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    builder.build(next(s for s in builder.project.persisted if s.name == "plain"))
    planned = enter(root)
    assert names(look(planned)) == {"plain"}
    put(root, "2", "t", 3)
    with reading_as(planned.observer.pins.shared()):
        run = enter(root)
    assert run.observer.started_at == planned.observer.started_at
    assert enter(root).observer.started_at > planned.observer.started_at
    built = run.build(next(s for s in run.project.persisted if s.name == "reader"))
    assert built.snapshot is not None
    read = {v.raw: v.version for v in built.snapshot.as_of}
    left_out = run.ledger.manifests.fetch("dev")
    plain = next(s for s in run.project.persisted if s.name == "plain")
    assert read == {v.raw: v.version for v in left_out[plain.build_id].as_of}
    assert names(look(enter(root))) == set()  # the next run builds both


@pytest.mark.proves("V40")
def test_confirming_a_table_has_the_same_effect_as_reusing_it_in_a_build(
    root: Path, enter: Callable[..., Builder]
) -> None:
    """Garbage collection spares it, and queries over several environments prefer it."""
    toml = root / "persist.toml"
    toml.write_text(toml.read_text() + '\n[env.prod]\n[env.dev]\nreads = "prod"\n')
    at = [datetime(2026, 1, 1, tzinfo=UTC)]

    def start(environment: str) -> Builder:
        builder = enter(root, environment, clock=lambda: at[0])
        builder.ledger.events.clock = lambda: at[0]
        return builder

    prod = start("prod")
    plain = next(s for s in prod.project.persisted if s.name == "plain")
    first = prod.build(plain).snapshot
    put(root, "bad", "t", 9)
    at[0] += timedelta(days=1)
    other = start("dev").build(plain).snapshot
    (root / "raw" / "t" / "bad.parquet").unlink()
    reads = start("dev").ledger.manifests.fetch
    assert reads("dev", "prod")[plain.build_id] == other
    at[0] += timedelta(days=9)
    later = start("prod")

    def collected() -> set[str]:
        week = timedelta(days=7)
        with later.ledger.builds._read() as connection:
            return {*forgotten(connection, at[0] - week, "prod", (), ())}

    assert "prod" in collected()  # as if its project no longer had the source
    reader = Reader(later.observer, later.engine)
    confirm(reader, find_settled(reader, [plain]).values())
    assert "prod" not in collected()
    assert reads("dev", "prod")[plain.build_id] == first
    assert other != first


def test_a_concurrently_tainted_table_is_not_confirmed(
    root: Path, enter: Callable[..., Builder]
) -> None:
    plain = next(s for s in enter(root).project.persisted if s.name == "plain")
    other = next(s for s in enter(root).project.persisted if s.name == "other")
    for source in (plain, other):
        enter(root).build(source)
    builder = enter(root)
    settled = look(builder)
    taint(enter(root).observer, plain.key, by="somebody")
    confirm(Reader(builder.observer, builder.engine), settled.values())
    states = builder.ledger.partitions.fetch("dev")
    assert {e.partition_ref: e.state for e in states} == {
        plain.key: "tainted",
        other.key: "available",
    }
