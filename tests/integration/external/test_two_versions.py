"""Versions of the sources of one external table, published one after the other or at once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from ingesting import Died, bag
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.core.errors import PersistError
from persist_assets.core.wants import Want
from persist_assets.wants.requests import evaluate_now, run_request

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
CONNECTOR = {"transport": {"name": "delta_table_input", "config": {"uri": "lake"}}}
PROGRAM = f"""
CREATE EXTERNAL TABLE t (id BIGINT, n BIGINT) WITH ('connectors' = '{json.dumps([CONNECTOR])}');
--@ persist
CREATE VIEW a AS SELECT id, n FROM t WHERE n < 100;
--@ persist
CREATE VIEW b AS SELECT a.id, 100 DIV u.n AS q FROM a JOIN t u ON a.id = u.id;
--@ persist
CREATE VIEW c AS SELECT id FROM t WHERE n >= 100;
"""
BOTH = """
--@ persist
CREATE VIEW d AS SELECT a.id AS one, b.id AS other FROM a FULL JOIN b ON a.id = b.id;
"""


def put(root: Path, *rows: tuple[int, int]) -> None:
    """Append rows: an id, a number."""
    ids, numbers = zip(*rows, strict=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())})
    write_deltalake(str(root / "lake"), table, mode="append")


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.persisted if s.name == name)


def snapshots(builder: Builder) -> dict[str, Snapshot]:
    there = builder.observer.manifest()
    found = {s.name: there.get(s.build_id) for s in builder.project.persisted}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def versions(builder: Builder) -> dict[str, list[int]]:
    """Return the versions of the table that each source records for its rows."""
    events = builder.ledger.events.fetch(limit=10_000)
    synced = [dict(e.data) for e in events if e.kind == "external-synced"]
    of = {s["committed"]: int(s["version"].split(":")[1]) for s in synced}
    return {
        name: [of[int(v.version.split(":")[1])] for v in snapshot.as_of]
        for name, snapshot in snapshots(builder).items()
    }


def check(root: Path, builder: Builder) -> None:
    """Check that sources equal their queries over the whole table, at the version they record."""
    for name, (version,) in versions(builder).items():
        whole = DeltaTable(root / "lake", version=version).to_pyarrow_table().to_pylist()
        low = [(r["id"], r["n"]) for r in whole if r["n"] < 100]
        wanted = {
            "a": lambda low=low: low,
            "b": lambda low=low: [(i, 100 // n) for i, n in low],
            "c": lambda whole=whole: [(r["id"],) for r in whole if r["n"] >= 100],
            "d": lambda low=low: [(i, i) for i, _ in low],
        }[name]()
        assert bag(builder.read(named(builder, name)).collect()) == bag(wanted), (name, version)


def build(builder: Builder, *names: str) -> dict[str, str]:
    done: dict[str, str] = {}
    for source in builder.project.persisted:
        if not names or source.name in names:
            with builder.work(source) as work:
                done[source.name] = work.step.action
                builder.publish(work)
    return done


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("F19", "F24")
@pytest.mark.parametrize("how", ["fails", "dies"])
def test_after_an_interrupted_run_each_source_matches_the_version_it_records(
    enter: Make, make_project: Callable[..., Path], how: str
) -> None:
    root = make_project({"m.sql": PROGRAM})
    put(root, (1, 5), (2, 10), (3, 100))
    first = enter(root)
    build(first)
    assert versions(first) == {"a": [0], "b": [0], "c": [0]}
    put(root, (4, 0 if how == "fails" else 20))
    ends = enter(root)
    if how == "fails":
        with pytest.raises(PersistError, match=r"(?i)zero"):
            build(ends)
    else:
        build(ends, "a")
        with pytest.raises(Died), ends.work(named(ends, "b")):
            raise Died
    ends.close()
    then = enter(root)
    assert versions(then) == {"a": [1], "b": [0], "c": [0]}
    check(root, then)
    (step,) = then.plan([named(then, "b").source_id]).steps
    assert step.action == "build"
    # A source that joins them reads both versions, and records both.
    (root / "sources" / "m.sql").write_text(PROGRAM + BOTH)
    mixing = enter(root)
    build(mixing, "d")
    assert sorted(versions(mixing)["d"]) == [0, 1]
    DeltaTable(root / "lake").delete("n = 0")
    now = enter(root)
    assert build(now) == {
        "a": "build" if how == "fails" else "reuse", "b": "build", "c": "reuse", "d": "build",
    }  # fmt: skip
    newest = 2 if how == "fails" else 1
    assert versions(now) == {"a": [newest], "b": [newest], "c": [0], "d": [newest]}
    check(root, now)


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
@pytest.mark.proves("F19")
def test_partitions_of_one_request_are_published_atomically(
    enter: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": PROGRAM})
    put(root, (1, 5), (3, 100))
    ledger = enter(root).ledger

    def want(*names: str) -> tuple[list[str], bool]:
        """Create wants and run their request; return its partitions, and whether it succeeded."""
        now = datetime.now(UTC)
        ledger.wants.create([Want(uuid.uuid4().hex, f"m/{n}", "dev", now) for n in names])
        _, request = evaluate_now(enter(root).observer, "want", force=True)
        assert request is not None
        return sorted(request.partitions), run_request(enter(root).anew(request), request)

    assert want("a", "b") == (["m/a", "m/b"], True)
    first = enter(root)
    assert versions(first) == {"a": [0], "b": [0]}
    before = snapshots(first)
    put(root, (4, 0))
    assert want("a", "b") == (["m/a", "m/b"], False)
    # `b` failed after `a`, which it reads, was computed.
    failed = enter(root)
    assert snapshots(failed) == before
    check(root, failed)
    # A failed partition does not block the others a second time.
    DeltaTable(root / "lake").delete("n = 0")
    assert want() == (["m/a"], True)
    apart = enter(root)
    assert versions(apart) == {"a": [2], "b": [0]}
    check(root, apart)
    assert want() == (["m/b"], True)
    put(root, (5, 20))
    assert want("a", "b") == (["m/a", "m/b"], True)
    both = enter(root)
    assert versions(both) == {"a": [3], "b": [3]}
    check(root, both)
