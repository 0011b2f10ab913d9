"""Replaced rows of the same data, and tainted rows: tables computed from them are rebuilt."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.catalog_views import _query
from persist_assets.core.errors import BuildError, ConflictError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Request
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Taint
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.manifest_imports import import_manifest
from persist_assets.plugin.sensors import run_requests
from persist_assets.storage.delta_commit import commit, find_staged
from persist_assets.storage.types import delta_schema
from persist_assets.wants.requests import taint

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

SQL = """
CREATE TABLE t (a INT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW r AS SELECT sum(a) AS s FROM p;
--@ persist
CREATE VIEW q AS SELECT a FROM t;
--@ persist
CREATE VIEW same AS SELECT x.a FROM t x;
--@ persist
CREATE VIEW of_same AS SELECT count(*) AS n FROM same;
--@ persist partition { odd=[0, 1] }
CREATE VIEW parted AS SELECT a, CAST(a % 2 AS INT) AS odd FROM p;
"""
PYTHON = """
from pathlib import Path
from persist_assets import table

@table
def p(t):
    more = int(Path({path!r}).read_text())
    return t.selectExpr(f"a + {{more}} AS a")
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path], tmp_path: Path) -> Path:
    """A project in which the function `p` reads a file that persist does not track."""
    outside = tmp_path / "more"
    outside.write_text("0")
    made = make_project({"m.sql": SQL, "m.py": PYTHON.format(path=str(outside))})
    (made / "raw").mkdir()
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32())}), made / "raw" / "0.parquet")
    return made


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


def build(builder: Builder, *names: str, force: bool = False) -> list[str]:
    return [builder.build(named(builder, n), force=force).action for n in names]


def tainted(builder: Builder) -> set[str]:
    return {s.partition("@")[0] for s in builder.observer.tainted(builder.observer.manifest())}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_readers_of_a_table_rebuilt_with_different_rows_are_rebuilt(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    assert build(enter(root), "p", "r") == ["built", "built"]
    (tmp_path / "more").write_text("10")
    assert build(enter(root), "p", force=True) == ["built"]
    builder = enter(root)
    (step,) = builder.plan([named(builder, "r").source_id]).steps
    assert [r.message for r in step.reasons] == ["different rows of p from the same data"]
    assert build(builder, "p", "r") == ["reused", "built"]
    assert [row.s for row in builder.read(named(builder, "r")).collect()] == [23]
    assert build(enter(root), "p", "r") == ["reused", "reused"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_partitions_computed_from_replaced_rows_are_rebuilt(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    assert build(enter(root), "p", "parted") == ["built", "built"]
    assert build(enter(root), "p", "parted") == ["reused", "reused"]
    (tmp_path / "more").write_text("10")
    assert build(enter(root), "p", force=True) == ["built"]
    builder = enter(root)
    (step,) = builder.plan([named(builder, "parted").source_id]).steps
    assert step.keys == ("0", "1")
    assert step.reasons[-1].message == "different rows of p from the same data"
    # After a build of one of them, the other one still has the previous rows.
    parted = named(builder, "parted")
    assert builder.build(parted, keys=["1"]).action == "built"
    assert sorted(r.a for r in enter(root).read(parted).collect()) == [2, 11]
    assert enter(root).plan([parted.source_id]).steps[0].keys == ("0",)
    # A change of the data does not hide this.
    pq.write_table(pa.table({"a": pa.array([5], pa.int32())}), root / "raw" / "1.parquet")
    assert build(enter(root), "p", "parted") == ["built", "built"]
    builder = enter(root)
    assert sorted(r.a for r in builder.read(parted).collect()) == [11, 12, 15]
    assert build(builder, "p", "parted") == ["reused", "reused"]


@pytest.mark.usefixtures("spark")
def test_a_build_fails_if_its_input_is_tainted_meanwhile(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root), "p")
    builder = enter(root)
    with (
        pytest.raises(ConflictError, match="was tainted meanwhile"),
        builder.work(named(builder, "r")) as work,
    ):
        taint(enter(root).observer, "m/p", by="me")
        builder.publish(work)
    assert build(enter(root), "p", "r") == ["built", "built"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_taint_covers_the_table_and_all_tables_computed_from_it(
    root: Path, enter: Callable[..., Builder]
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f"{settings.read_text()}\n[env.qa]\n[env.prod]\n")
    builder = enter(root)
    names = ["p", "r", "q", "same", "of_same"]
    build(builder, *names)
    promote(builder, "prod", [named(builder, n).source_id for n in names])
    prod = enter(root, "prod")
    assert sorted(taint(prod.observer, "m/p", by="me")) == ["m/p", "m/r"]
    assert sorted(taint(prod.observer, "m/q", by="me")) == ["m/of_same", "m/q", "m/same"]
    assert tainted(prod) == {*names}
    # An environment without these tables does not reuse the tainted ones.
    assert build(enter(root, "qa"), "p", "q") == ["built", "built"]
    made = ["built", "built", "built", "reused", "built"]
    assert build(enter(root, "prod"), *names) == made
    assert tainted(enter(root, "prod")) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_rollback_restores_the_taints_of_its_target_version(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    builder = enter(root)
    build(builder, "p", "r", "parted")
    (good, *_) = builder.ledger.manifests.fetch_history("dev")
    (tmp_path / "more").write_text("10")
    build(enter(root), "p", "r", "parted", force=True)
    (bad, *_) = builder.ledger.manifests.fetch_history("dev")
    taint(enter(root).observer, "m/p", by="me")
    assert tainted(enter(root)) == {"p", "r", "parted"}
    roll_back(builder.settings, builder.ledger, to=good.change_id)
    assert tainted(enter(root)) == set()
    assert build(enter(root), "p", "r", "parted") == ["reused"] * 3
    roll_back(builder.settings, builder.ledger, to=bad.change_id)
    assert tainted(enter(root)) == {"p", "r", "parted"}
    (tmp_path / "more").write_text("0")
    assert build(enter(root), "p", "r", "parted") == ["built"] * 3
    assert tainted(enter(root)) == set()
    # The state when the version was replaced, not when it was published.
    (last, *_) = builder.ledger.manifests.fetch_history("dev")
    roll_back(builder.settings, builder.ledger, to=bad.change_id)
    assert tainted(enter(root)) == {"p", "r", "parted"}
    states = {a.partition_ref: a.state for a in builder.ledger.partitions.fetch("dev")}
    assert states["m/p"] == "tainted"
    roll_back(builder.settings, builder.ledger, to=last.change_id)
    assert tainted(enter(root)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_rows_stay_tainted_after_renames_and_reverted_edits(
    root: Path, enter: Callable[..., Builder]
) -> None:
    file = root / "sources" / "m.sql"
    text = file.read_text()
    build(enter(root), "q", "r")
    builder = enter(root)
    manifest = builder.settings.manifest_path
    assert len(json.loads(manifest.read_text())["entries"]) == 2
    taint(builder.observer, "m/q", by="me")
    assert [*json.loads(manifest.read_text())["entries"]] == [named(builder, "r").build_id]
    # An edited query has its own rows; then the edit is reverted.
    file.write_text(text.replace("SELECT a FROM t;", "SELECT a + 1 AS a FROM t;"))
    assert tainted(enter(root)) == {"same"}
    assert build(enter(root), "q") == ["built"]
    file.write_text(text)
    assert tainted(enter(root)) == {"q", "same"}
    # A renamed source has the same rows.
    file.write_text(text.replace("VIEW q AS", "VIEW renamed AS"))
    assert tainted(enter(root)) == {"renamed", "same"}
    # A build of either source replaces the rows of both.
    assert build(enter(root), "same", "renamed", "same") == ["built", "reused", "reused"]
    assert tainted(enter(root)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_partitions_stay_tainted_until_they_are_rebuilt(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root), "p", "parted")
    taint(enter(root).observer, "m/parted/1", by="me")
    builder = enter(root)
    parted = named(builder, "parted")
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}
    assert builder.build(parted, keys=["0"], force=True).action == "built"
    builder = enter(root)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}
    # For builds of its run, it is also tainted in a parked snapshot.
    work = builder.park(parted, keys=["0"], force=True)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}
    with builder.resume(work) as work:
        builder.publish(work)
    assert enter(root).plan([parted.source_id]).steps[0].keys == ("1",)
    # A partition that is tainted while others are built stays tainted, too.
    builder = enter(root)
    with builder.work(parted, keys=["1"]) as work:
        taint(enter(root).observer, "m/parted/0", by="me")
        builder.publish(work)
    builder = enter(root)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"0"}}
    assert build(enter(root), "parted", "parted") == ["built", "reused"]
    assert tainted(enter(root)) == set()


@pytest.mark.usefixtures("spark")
def test_tainting_a_missing_partition_taints_no_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "p")
    assert builder.build(named(builder, "parted"), keys=["0"]).action == "built"
    assert taint(enter(root).observer, "m/parted/1", by="me") == ["m/parted/1"]
    assert tainted(enter(root)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_rebuilt_partitions_of_a_wholly_tainted_table_lose_their_taint(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "p", "parted")
    parted = named(builder, "parted")
    uid = builder.observer.manifest()[parted.build_id].build_uid
    builder.ledger.taints.record(["dev"], lambda *_: Taint({}, {uid: [""]}), by="me")
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"0", "1"}}
    assert builder.build(parted, keys=["0"]).action == "built"
    builder = enter(root)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}
    assert builder.build(parted, keys=["1"]).action == "built"
    assert tainted(enter(root)) == set()


@pytest.mark.usefixtures("spark")
def test_tainted_rows_of_a_partition_are_tainted_in_every_snapshot(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    build(builder, "p", "parted")
    (both, *_) = builder.ledger.manifests.fetch_history("dev")
    parted = named(builder, "parted")
    builder.build(parted, keys=["0"], force=True)
    (newer, *_) = builder.ledger.manifests.fetch_history("dev")
    taint(enter(root).observer, "m/parted/1", by="me")
    roll_back(builder.settings, builder.ledger, to=both.change_id)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}
    # The two snapshots have different rows of the other partition.
    taint(enter(root).observer, "m/parted/0", by="me")
    roll_back(builder.settings, builder.ledger, to=newer.change_id)
    assert builder.observer.tainted(builder.observer.manifest()) == {parted.source_id: {"1"}}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_taint_covers_tables_built_by_earlier_versions_of_a_query(
    root: Path, enter: Callable[..., Builder]
) -> None:
    file = root / "sources" / "m.sql"
    text = file.read_text()
    other = text.replace("SELECT sum(a) AS s FROM p;", "SELECT sum(a) + 1 AS s FROM p;")
    file.write_text(other)
    build(enter(root), "p", "r")
    file.write_text(text)
    assert build(enter(root), "p", "r") == ["reused", "built"]
    taint(enter(root).observer, "m/p", by="me")
    file.write_text(other)
    assert tainted(enter(root)) == {"p", "r"}
    assert build(enter(root), "p", "r") == ["built", "built"]
    assert tainted(enter(root)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_parked_build_is_not_published_if_its_input_was_tainted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    file = root / "sources" / "m.sql"
    file.write_text(
        f"{file.read_text()}--@ persist\nCREATE VIEW last AS SELECT max(a) AS a FROM parted;\n"
    )
    build(enter(root), "p", "parted", "last")
    builder = enter(root)
    builder.park(named(builder, "parted"), keys=["0"], force=True)
    work = builder.park(named(builder, "last"), force=True)
    assert work.used and tainted(builder) == set()
    taint(enter(root).observer, "m/parted/1", by="me")
    assert tainted(builder) == {"parted"}  # in what it would read now
    request = Request("x", "dev", (), (), "test", "manual", "started", builder.clock())
    with pytest.raises(ConflictError, match=r"changed during|tainted meanwhile"):
        builder.publish_parked(request)
    builder.abandon()
    assert tainted(enter(root)) == {"parted", "last"}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_build_fails_if_its_tainted_input_was_rebuilt_meanwhile(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root), "p", "r")
    builder = enter(root)
    with (
        pytest.raises(ConflictError, match="an input of `r` was tainted meanwhile"),
        builder.work(named(builder, "r"), force=True) as work,
    ):
        taint(enter(root).observer, "m/p", by="me")
        assert build(enter(root), "p") == ["built"]
        builder.publish(work)
    assert tainted(enter(root)) == {"r"}


@pytest.mark.usefixtures("spark")
def test_a_build_fails_if_an_input_of_its_temporary_table_is_tainted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    file = root / "sources" / "m.sql"
    file.write_text(
        f"{file.read_text()}--@ persist materialized=temporary\n"
        "CREATE VIEW passing AS SELECT a FROM p;\n"
        "--@ persist\nCREATE VIEW last AS SELECT max(a) AS a FROM passing;\n"
    )
    build(enter(root), "p")
    builder = enter(root)
    with (
        pytest.raises(ConflictError, match="an input of `last` was tainted meanwhile"),
        builder.work(named(builder, "last")) as work,
    ):
        taint(enter(root).observer, "m/p", by="me")
        builder.publish(work)
    builder.close()


def test_an_import_keeps_the_taints_of_the_rows(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f"{settings.read_text()}\n[env.prod]\n")
    builder = enter(root)
    build(builder, "q")
    kept = tmp_path / "kept.json"
    kept.write_text(builder.settings.manifest_path.read_text())
    taint(builder.observer, "m/q", by="me")
    prod = enter(root, "prod")
    import_manifest(prod.settings, prod.ledger, kept)
    assert tainted(enter(root, "prod")) == {"q", "same"}


def test_a_promotion_keeps_the_taints_of_the_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f"{settings.read_text()}\n[env.prod]\n")
    builder = enter(root)
    q = named(builder, "q").source_id
    build(builder, "q")
    taint(enter(root).observer, "m/q", by="me")
    decided, _ = promote(enter(root), "prod", [q])
    (refused,) = decided.refused
    assert "tainted" in refused.reason
    promote(enter(root), "prod", [q], allow_stale=True)
    assert tainted(enter(root, "prod")) == {"q", "same"}
    # Good rows replace tainted ones.
    assert build(enter(root), "q") == ["built"]
    promote(enter(root), "prod", [q])
    assert tainted(enter(root, "prod")) == set()


def test_reusing_another_environments_table_fails_if_it_is_tainted_meanwhile(
    root: Path, enter: Callable[..., Builder]
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f"{settings.read_text()}\n[env.qa]\n")
    build(enter(root), "q")
    qa = enter(root, "qa")
    with (
        pytest.raises(ConflictError, match="was tainted meanwhile"),
        qa.work(named(qa, "q")) as work,
    ):
        assert work.build.action == "reused"
        taint(enter(root).observer, "m/q", by="me")
        qa.publish(work)
    assert build(enter(root, "qa"), "q") == ["built"]


def test_a_rebuilt_table_takes_precedence_over_the_tainted_table_it_replaced(
    root: Path, enter: Callable[..., Builder]
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f'{settings.read_text()}\n[env.prod]\n[env.dev]\nreads = "prod"\n')
    assert build(enter(root, "prod"), "q") == ["built"]
    assert taint(enter(root).observer, "m/q", by="me") == ["m/q", "m/same"]
    assert build(enter(root), "q") == ["built"]
    assert build(enter(root, "prod"), "q") == ["reused"]  # published later
    assert tainted(enter(root)) == set()
    assert build(enter(root), "q") == ["reused"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_an_older_table_does_not_replace_a_tainted_one(
    root: Path, enter: Callable[..., Builder]
) -> None:
    settings = root / "persist.toml"
    settings.write_text(f'{settings.read_text()}\n[env.prod]\n[env.dev]\nreads = "prod"\n')
    build(enter(root), "p", "q")
    dev, q, parted = enter(root), *(named(enter(root), n) for n in ("q", "parted"))
    assert dev.build(parted, keys=["0"]).action == "built"
    pq.write_table(pa.table({"a": pa.array([3], pa.int32())}), root / "raw" / "1.parquet")
    assert build(enter(root, "prod"), "p", "q", "parted") == ["built", "built", "built"]
    assert taint(enter(root).observer, "m/q", by="me") == ["m/q", "m/same"]
    assert taint(enter(root).observer, "m/parted/1", by="me") == ["m/parted/1"]
    builder = enter(root)
    assert tainted(builder) == {"q", "same", "parted"}
    assert sorted(r.a for r in builder.read(q).collect()) == [1, 2, 3]
    assert sorted(r.a for r in builder.read(parted).collect()) == [1, 2, 3]
    # Nor does an older table of the same data.
    assert build(builder, "q") == ["built"]
    assert build(enter(root, "prod"), "q", force=True) == ["built"]
    assert taint(enter(root).observer, "m/q", by="me") == ["m/q", "m/same"]
    assert build(enter(root), "q") == ["built"]


def test_a_new_run_is_requested_when_data_returns_to_an_earlier_state(
    root: Path, enter: Callable[..., Builder]
) -> None:
    def requested_partitions() -> list[str | None]:
        builder = enter(root)
        planned = builder.plan([named(builder, "q").source_id])
        made = run_requests(
            builder.project, planned, builder.observer.keys(), builder.observer.manifest()
        )
        return [request.run_key for request in made]

    (first,) = requested_partitions()
    assert requested_partitions() == [first]  # once for each state
    build(enter(root), "q")
    assert requested_partitions() == []
    pq.write_table(pa.table({"a": pa.array([3], pa.int32())}), root / "raw" / "1.parquet")
    (second,) = requested_partitions()
    build(enter(root), "q")
    (root / "raw" / "1.parquet").unlink()
    (third,) = requested_partitions()
    assert len({first, second, third}) == 3


def test_the_query_of_a_catalog_view_excludes_replaced_rows(
    make_project: Callable[..., Path], spark: Any
) -> None:
    settings = load_settings(make_project({}))
    root = Path(settings.table_root("days"))
    field = {"name": "day", "type": "long", "nullable": True, "metadata": {}}
    schema = delta_schema({"type": "struct", "fields": [field]})

    def written(uid: str, *files: list[int]) -> Any:
        (root / uid).mkdir(parents=True)
        for n, days in enumerate(files):
            pq.write_table(pa.table({"day": pa.array(days)}), root / uid / f"part-{n}.parquet")
        return find_staged(str(root), uid, schema)

    first = commit(written("aaaa", [1], [2, 3], [4]), build_id="b", pinned=None)
    kept = ("aaaa/part-0.parquet", "aaaa/part-2.parquet")
    staged = written("bbbb", [2], [5])
    last = commit(staged, build_id="b", pinned=first, base=first, kept_files=kept)
    now, columns = datetime.now(UTC), (Column("day", "bigint"),)
    snapshot = Snapshot(
        "bbbb", "days@m.sql", "b", "days", last, (), "", 4, 1, now, columns, parts=("aaaa",)
    )
    ledger = Ledger(settings.ledger)
    rows = spark.sql(_query(settings, ledger, snapshot)).collect()
    ledger.close()
    assert sorted(row.day for row in rows) == [1, 2, 4, 5]


ASSUMED = """
CREATE TABLE t (day INT, a INT) USING parquet LOCATION 'raw';
--@ persist refresh=incremental watermark=day assume=exact
CREATE VIEW p AS SELECT day, count(*) OVER () AS n, a FROM t;
--@ persist refresh=incremental watermark=day
CREATE VIEW inc AS SELECT day, a + 1 AS b FROM p;
--@ persist partition { day=[1, 2, 3] }
CREATE VIEW parted AS SELECT day, a + 2 AS c FROM p;
"""


def add(root: Path, n: int, *rows: tuple[int, int]) -> None:
    fields = [("day", pa.int32()), ("a", pa.int32())]
    table = pa.Table.from_pylist([{"day": d, "a": a} for d, a in rows], pa.schema(fields))
    (root / "raw").mkdir(exist_ok=True)
    pq.write_table(table, root / "raw" / f"{n}.parquet")


def rows(builder: Builder, name: str) -> list[tuple[int, int]]:
    return sorted((r[0], r[-1]) for r in builder.read(named(builder, name)).collect())


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("meanwhile", [False, True])
def test_readers_of_a_table_with_assumed_increments_follow_its_rebuild(
    make_project: Callable[..., Path], enter: Callable[..., Builder], meanwhile: bool
) -> None:
    root = make_project({"m.sql": ASSUMED})
    add(root, 0, (1, 10), (2, 20))
    build(enter(root), "p")
    add(root, 1, (1, 11), (3, 30))
    build(enter(root), "p")  # the late row is skipped, as assume=exact allows
    build(enter(root), "inc", "parted")
    assert rows(enter(root), "inc") == [(1, 11), (2, 21), (3, 31)]
    build(enter(root), "p", force=True)
    more = [(3, 31)] if meanwhile else []
    if meanwhile:
        add(root, 2, *more)
        build(enter(root), "p")
    build(enter(root), "inc", "parted")
    there = [(1, 10), (1, 11), (2, 20), (3, 30), *more]
    assert rows(enter(root), "p") == there
    assert rows(enter(root), "inc") == [(day, a + 1) for day, a in there]
    assert rows(enter(root), "parted") == [(day, a + 2) for day, a in there]
    assert build(enter(root), "p", "inc", "parted") == ["reused"] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_table_computed_from_different_rows_is_not_reused_or_promoted(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": ASSUMED})
    settings = root / "persist.toml"
    settings.write_text(f"{settings.read_text()}\n[env.qa]\n[env.prod]\n")
    add(root, 0, (1, 10), (2, 20))
    build(enter(root), "p", "inc")
    add(root, 1, (1, 11), (3, 30))
    build(enter(root), "p")
    build(enter(root, "qa"), "p", force=True)
    build(enter(root, "qa"), "inc")
    assert rows(enter(root, "qa"), "inc") == [(1, 11), (1, 12), (2, 21), (3, 31)]
    build(enter(root), "inc")
    assert rows(enter(root), "inc") == [(1, 11), (2, 21), (3, 31)]
    # Nor are both promoted: they have the same as_of, but would not fit together.
    builder, qa = enter(root), enter(root, "qa")
    assert promote(builder, "prod", [named(builder, "p").source_id])[1] is not None
    decided, change = promote(qa, "prod", [named(qa, "inc").source_id])
    assert change is None
    assert "different rows of m/p" in decided.refused[0].reason


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_partitions_without_recorded_inputs_have_the_inputs_of_their_table(
    root: Path, enter: Callable[..., Builder], tmp_path: Path
) -> None:
    build(enter(root), "p", "parted")
    (tmp_path / "more").write_text("10")
    build(enter(root), "p", force=True)
    with closing(sqlite3.connect(root / ".persist" / "ledger.db")) as ledger, ledger:
        for uid, text in ledger.execute("SELECT build_uid, partitions FROM builds").fetchall():
            if (told := json.loads(text or "null")) is not None:
                told["filled"] = [group[:2] for group in told["filled"]]
                said = "UPDATE builds SET partitions = ? WHERE build_uid = ?"
                ledger.execute(said, (json.dumps(told), uid))
    assert build(enter(root), "parted") == ["built"]
    assert rows(enter(root), "parted") == [(11, 1), (12, 0)]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("column", "partition", "expected"),
    [
        ("CAST(day AS STRING)", "daily", "is string: its partitions need a date or a timestamp"),
        ("day", "hourly", "is date: its partitions need a time of day"),
        ("DAY(day)", "{ day=[one, two] }", "is int: its partitions need the type of its values"),
        ("day", "daily", None),
    ],
)
def test_partition_column_types_of_a_functions_rows_are_checked_by_the_build(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    column: str,
    partition: str,
    expected: str | None,
) -> None:
    timed = "" if "{" in partition else " time_column=day start='2026-11-01' end='2026-11-04'"
    sql = f"--@ persist partition={partition}{timed}\nCREATE VIEW d AS SELECT day, a FROM p;\n"
    function = (
        "import datetime as dt\nfrom persist_assets import source\nfrom pyspark.sql import"
        " SparkSession\n@source\ndef p(spark: SparkSession):\n    days ="
        " [(dt.date(2026, 11, n), n) for n in (1, 2)]\n    frame = spark.createDataFrame(days,"
        f" 'day date, a int')\n    return frame.selectExpr('{column} AS day', 'a')\n"
    )
    root = make_project({"m.sql": sql.replace("={", " {"), "m.py": function})
    if expected is None:
        assert build(enter(root), "d") == ["built"]
        assert [a for _, a in rows(enter(root), "d")] == [1, 2]
    else:
        with pytest.raises(BuildError, match=expected):
            build(enter(root), "d")
