"""Histories (`refresh=snapshot`) and continued tables (`on_change=continue`) on Spark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from deltalake import DeltaTable, write_deltalake

from persist_assets.building.builder import Builder
from persist_assets.core.errors import BuildError, ConflictError, GoneError
from persist_assets.ledger.backups import back_up
from persist_assets.operations.doctor import examine
from persist_assets.operations.environments import roll_back
from persist_assets.operations.gc import collect
from persist_assets.operations.restoring import restore
from persist_assets.planning.world import older_code
from persist_assets.wants.requests import taint

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
Row = dict[str, Any]

START = datetime(2024, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
RAW = "CREATE TABLE t (id INT, a STRING, b INT, at TIMESTAMP) USING delta LOCATION 'raw';\n"
PLAIN = RAW + "--@ persist refresh=snapshot key=id\nCREATE VIEW p AS SELECT id, a, b FROM t;\n"
SCHEMA = pa.schema(
    [("id", pa.int32()), ("a", pa.string()), ("b", pa.int32()), ("at", pa.timestamp("us", "UTC"))]
)


def day(n: float) -> datetime:
    return START + timedelta(days=n)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that makes a builder for a run at a given time."""

    def builder(
        text: str = PLAIN,
        root: Path | None = None,
        at: float = 0,
        settings: str = "",
        environment: str | None = None,
        **files: str,
    ) -> Builder:
        if root is None:
            root = make_project(
                {"m.sql": text, **{f"{k}.py": v for k, v in files.items()}}, settings
            )
        return enter(root, environment, run_id=None, clock=lambda: day(at))

    return builder


def put(root: Path, *rows: tuple[Any, ...]) -> None:
    """Replace the raw data by rows of id, a, b, and the day from which they are valid."""
    names = ("id", "a", "b", "at")
    said = [dict(zip(names, (*row, None, None)[:4], strict=True)) for row in rows]
    for row in said:
        row["at"] = None if row["at"] is None else day(row["at"])
    table = pa.Table.from_pylist(said, SCHEMA)
    write_deltalake(str(root / "raw"), table, mode="overwrite")


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def build(builder: Builder, name: str = "p", *, force: bool = False) -> Snapshot:
    snapshot = builder.build(named(builder, name), force=force).snapshot
    assert snapshot is not None
    return snapshot


def rows_of(builder: Builder, snapshot: Snapshot) -> list[Row]:
    found = [row.asDict() for row in builder.reader.load_snapshot(snapshot).collect()]
    for row in found:
        for name in ("valid_from", "valid_to", "at"):
            if row.get(name) is not None:
                row[name] = row[name].astimezone(UTC)
    return found


def versions_of(builder: Builder, snapshot: Snapshot, *names: str) -> list[tuple[Any, ...]]:
    """Return columns of versions, and from which day until which they are valid, sorted."""
    found = [
        (
            *(row[n] for n in names or ("id", "a")),
            *(
                None if row[n] is None else (row[n] - START) / timedelta(days=1)
                for n in ("valid_from", "valid_to")
            ),
        )
        for row in rows_of(builder, snapshot)
    ]
    return sorted(found, key=repr)


# ------------------------------------------------------------------------------------ the oracle


class Oracle:
    """The expected rows of a history, computed in plain Python."""

    def __init__(self, watch: tuple[str, ...], by: str | None, close: bool) -> None:
        self.watch, self.by, self.close = watch, by, close
        self.versions: list[Row] = []

    def turn(self, rows: list[Row], now: datetime) -> int:
        """Apply the current rows; return the number of affected versions."""
        n = 0
        current = {v["id"]: v for v in self.versions if v["valid_to"] is None}
        for row in rows:
            old, said = current.pop(row["id"], None), row[self.by] if self.by else None
            if old is None:
                ended = max(
                    (v["valid_to"] for v in self.versions if v["id"] == row["id"]), default=None
                )
                since = said if said is not None and (ended is None or said >= ended) else now
                since = since if ended is None else max(since, ended)
            elif all(row[c] == old[c] for c in self.watch):
                n += any(row[c] != old[c] for c in row)
                old.update(row)
                continue
            else:
                least = old["valid_from"] + TICK
                since = said if said is not None and said >= least else max(now, least)
                old["valid_to"] = since
                n += 1
            self.versions.append({**row, "valid_from": since, "valid_to": None})
            n += 1
        for old in current.values() if self.close else ():
            old["valid_to"] = max(now, old["valid_from"] + TICK)
            n += 1
        return n


def counted(rows: list[Row]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)


KINDS = {
    "plain": ("key=id", Oracle(("a", "b", "at"), None, close=True)),
    "watched": ("key=ID watch=[A] watermark=at", Oracle(("a",), "at", close=True)),
    "kept": (
        "key=id watermark=at hard_deletes=ignore",
        Oracle(("a", "b", "at"), "at", close=False),
    ),
}


@pytest.mark.slow
@pytest.mark.proves("P19")
def test_random_histories_match_the_python_oracle(make: Make) -> None:
    views = (
        f"--@ persist refresh=snapshot {how}\nCREATE VIEW {name} AS SELECT id, a, b, at FROM t;\n"
        for name, (how, _) in KINDS.items()
    )
    builder, chance = make(RAW + "".join(views)), random.Random(5)
    root = builder.settings.root
    state: dict[int | None, Row] = {}
    tally, versions = Counter[str](), Counter[str]()
    at = 0.0
    for step in range(6):
        at += chance.choice((0, 0.5, 1))  # a tie: two runs at one instant
        for key in (*range(5), None):
            act = chance.choice(("insert", "update", "correct", "delete", "leave", "leave"))
            if step == 3:
                act = "leave"  # a run without changes, of rewritten data
            since = chance.choice((None, day(at - 1), day(at), day(at + 2)))
            if act == "insert" and key not in state:
                state[key] = {"id": key, "a": "new", "b": 0, "at": since}
            elif act == "update" and key in state:
                state[key] = {**state[key], "a": chance.choice("xyz"), "at": since}
            elif act == "correct" and key in state:
                state[key] = {**state[key], "b": chance.choice((None, step))}
            elif act == "delete":
                state.pop(key, None)
        table = pa.Table.from_pylist([*state.values()], SCHEMA)
        write_deltalake(str(root / "raw"), table, mode="overwrite")
        builder = make(root=root, at=at)
        for name, (_, oracle) in KINDS.items():
            n = oracle.turn([dict(row) for row in state.values()], day(at))
            before = versions[name]
            with builder.work(named(builder, name)) as work:
                snapshot = builder.publish(work)
            versions[name] = snapshot.version
            said = f"step {step} of {name}"
            found = rows_of(builder, snapshot)
            assert counted(found) == counted(oracle.versions), said
            assert snapshot.rows == len(found), said
            if step:
                assert (snapshot.version > before) == (n > 0), said
            if step > 3:
                frame = builder.reader.load_snapshot(snapshot)
                seen = builder.engine.measure(frame, (), None, name).content
                assert seen == snapshot.content, said
            tally[work.build.action if step else "first"] += 1
            tally["files kept"] += bool(snapshot.parts)
    assert min(tally["built"], tally["reused"], tally["files kept"]) > 2, tally


# ------------------------------------------------------------------------------------ single cases


@pytest.mark.slow
@pytest.mark.proves("P19")
def test_a_history_can_be_read_by_version_and_by_time(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    made: list[Snapshot] = []
    for n, text in enumerate(("one", "two", "three")):
        put(root, (1, text), (2, "same"))
        builder = make(root=root, at=n)
        made.append(build(builder))
    table = builder.settings.table_root(made[-1].table)
    by_version = [
        sorted(
            row["a"]
            for row in DeltaTable(table, version=s.version).to_pyarrow_table().to_pylist()
            if row["valid_to"] is None
        )
        for s in made
    ]
    assert by_version == [["one", "same"], ["same", "two"], ["same", "three"]]
    assert [versions_of(builder, s)[-1] for s in made] == [(2, "same", 0.0, None)] * 3
    frame = builder.reader.load_snapshot(made[-1])
    for n, (before, now) in enumerate(pairwise(by_version), 1):
        for instant, expected in ((day(n) - TICK, before), (day(n), now)):
            at = f"TIMESTAMP'{instant.isoformat()}'"
            so = frame.where(f"valid_from <= {at} AND (valid_to IS NULL OR {at} < valid_to)")
            assert sorted(row.a for row in so.collect()) == expected


@pytest.mark.slow
def test_the_validity_of_a_returning_row_starts_after_its_deletion(make: Make) -> None:
    text = PLAIN.replace("key=id", "key=id watermark=at").replace("id, a, b", "id, a, at")
    builder = make(text)
    root = builder.settings.root
    put(root, (1, "a", 0, 0), (2, "a", 0, 0))
    build(builder)
    put(root, (9, "x"))
    build(make(root=root, at=4))
    put(root, (9, "x"), (1, "a", 0, 2), (2, "a", 0, 5))
    builder = make(root=root, at=6)
    assert versions_of(builder, build(builder)) == [
        (1, "a", 0.0, 4.0),
        (1, "a", 6.0, None),
        (2, "a", 0.0, 4.0),
        (2, "a", 5.0, None),
        (9, "x", 4.0, None),
    ]


@pytest.mark.slow
def test_several_rows_with_the_same_key_are_rejected(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"))
    first = build(builder)
    put(root, (1, "a"), (1, "b"), (None, "x"), (None, "x"))
    with pytest.raises(
        BuildError, match=r"the same key: id=1 \(2 rows\); id=None \(2 rows\)"
    ) as caught:
        build(make(root=root, at=1))
    assert "longer key" in (caught.value.hint or "")
    builder = make(root=root, at=1)
    assert builder.ledger.manifests.fetch("dev") == {first.build_id: first}
    put(root, *((n, "a") for n in range(5) for _ in range(2)))
    with pytest.raises(BuildError, match=r"… 5 keys in all"):
        build(make(root=root, at=1))


@pytest.mark.slow
def test_a_forced_build_keeps_the_history_unless_on_change_is_rebuild(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"))
    first = build(builder)
    put(root, (1, "b"))
    builder = make(root=root, at=1)
    second = build(builder, force=True)
    assert versions_of(builder, second) == [(1, "a", 0.0, 1.0), (1, "b", 1.0, None)]
    again = build(make(root=root, at=2), force=True)
    assert (again.build_uid, again.version) == (second.build_uid, second.version)
    assert (first.version, second.version) == (0, 1)
    text = PLAIN.replace("key=id", "key=id on_change=rebuild")
    (root / "sources" / "m.sql").write_text(text)
    builder = make(root=root, at=3)
    assert build(builder).build_uid == second.build_uid
    anew = build(builder, force=True)
    assert versions_of(builder, anew) == [(1, "b", 3.0, None)]


READERS = PLAIN + (
    "--@ persist\nCREATE VIEW now AS SELECT id, a FROM p WHERE valid_to IS NULL;\n"
    "--@ persist refresh=incremental\nCREATE VIEW all_of_it AS SELECT id, a, valid_from FROM p;\n"
)


@pytest.mark.slow
def test_readers_of_a_history_use_its_table_and_never_recompute_it(make: Make) -> None:
    builder = make(READERS)
    root = builder.settings.root
    put(root, (1, "a"), (2, "b"))
    assert [(c.name, c.type) for c in named(builder, "p").columns[2:]] == [
        ("b", "int"),
        ("valid_from", "timestamp"),
        ("valid_to", "timestamp"),
    ]
    (step,) = builder.plan([named(builder, "now").source_id]).steps
    assert [r.code for r in step.reasons] == ["new", "history"]
    with pytest.raises(BuildError, match="`p` keeps a history but has no table"):
        build(builder, "now")
    with pytest.raises(BuildError, match="`p` keeps a history but has no table"):
        builder.read(named(builder, "p"))
    build(builder)
    build(builder, "all_of_it")
    assert rows_of(builder, build(builder, "now")) == [{"id": 1, "a": "a"}, {"id": 2, "a": "b"}]
    put(root, (1, "c"), (2, "b"))
    builder = make(root=root, at=1)
    build(builder)
    found = rows_of(builder, build(builder, "now"))
    assert sorted(row["a"] for row in found) == ["b", "c"]
    snapshot = build(builder, "all_of_it")
    assert sorted((r["a"], r["valid_from"]) for r in rows_of(builder, snapshot)) == [
        ("a", day(0)),
        ("b", day(0)),
        ("c", day(1)),
    ]
    put(root, (1, "c"), (2, "b"))  # newer data, the same rows
    builder = make(root=root, at=2)
    build(builder)
    with builder.work(named(builder, "now")) as work:
        builder.publish(work)
    assert work.build.action == "reused"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_build_leaves_no_trace_in_the_history(make: Make, where: str) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"), (2, "x"))
    first = build(builder)
    put(root, (1, "b"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, str(root), where],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    table = builder.settings.table_root(first.table)
    assert DeltaTable(table).version() == (0 if where == "before" else 1)
    builder = make(root=root, at=2)
    assert builder.ledger.manifests.fetch("dev") == {first.build_id: first}
    snapshot = build(builder)
    expected = [(1, "a", 0.0, 2.0), (1, "b", 2.0, None), (2, "x", 0.0, 2.0)]
    assert versions_of(builder, snapshot) == expected
    head = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(row["a"] for row in head) == ["a", "b", "x"]
    builder = make(root=root, at=3)
    assert versions_of(builder, build(builder)) == expected


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
import deltalake
from persist_assets.building.builder import Builder
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.compiler.load import load_project, require
from persist_assets.engine.session import create_session
from persist_assets.core.settings.load import load_settings

root, where = sys.argv[1:]
write = deltalake.DeltaTable.create_write_transaction

def killed(*given, **more):
    if where == "after":
        write(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)

deltalake.DeltaTable.create_write_transaction = killed
settings = load_settings(Path(root))
project = require(load_project(settings))
engine = SparkEngine(settings, lambda: create_session(settings))
builder = Builder(settings, project, Ledger(settings.ledger), engine,
                  clock=lambda: datetime(2024, 1, 2, tzinfo=UTC))
builder.build(next(s for s in project.sources if s.name == "p"))
"""


@pytest.mark.slow
def test_a_history_continues_when_its_query_changes(make: Make) -> None:
    builder = make()
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    put(root, (1, "a", 1), (2, "b", 2))
    build(builder)
    put(root, (1, "c", 1), (2, "b", 2))
    first = build(make(root=root, at=1))
    code.write_text(PLAIN.replace("id, a, b", "id, upper(a) AS a, b * 2 AS b, 7 AS more"))
    builder = make(root=root, at=2)
    (step,) = builder.plan([named(builder, "p").source_id]).steps
    assert [r.code for r in step.reasons] == ["code", "history"]
    assert step.reasons[1].message.startswith("its history continues from")
    second = build(builder)
    assert second.build_id != first.build_id
    assert versions_of(builder, second, "id", "a", "b", "more") == [
        (1, "C", 2, 7, 2.0, None),
        (1, "a", 1, None, 0.0, 1.0),
        (1, "c", 1, None, 1.0, 2.0),
        (2, "B", 4, 7, 2.0, None),
        (2, "b", 2, None, 0.0, 2.0),
    ]
    put(root, (1, "c", 1))
    third = build(make(root=root, at=3))
    assert (third.table, third.version) == (second.table, 1)
    for query, why in (
        ("id, a, 7 AS more", "`b` is gone"),
        ("id, a, 'x' AS b, 7 AS more", "`b` was"),
    ):
        code.write_text(PLAIN.replace("id, a, b", query))
        builder = make(root=root, at=4)
        (step,) = builder.plan([named(builder, "p").source_id]).steps
        assert any(why in r.message for r in step.reasons)
        with pytest.raises(BuildError, match=f"cannot be continued: {why}"):
            build(builder)
    # Back to an earlier query: the latest history is continued, not the one of that query.
    code.write_text(PLAIN.replace("id, a, b", "id, a, b, 7 AS more"))
    build(make(root=root, at=5))
    code.write_text(PLAIN.replace("id, a, b", "id, upper(a) AS a, b * 2 AS b, 7 AS more"))
    builder = make(root=root, at=6)
    last = build(builder)
    assert last.build_id == third.build_id
    assert (1, "c", 5.0, 6.0) in versions_of(builder, last)
    assert last.rows == 7
    code.write_text(PLAIN.replace("key=id", "key=id on_change=rebuild"))
    builder = make(root=root, at=7)
    assert versions_of(builder, build(builder)) == [(1, "c", 7.0, None)]


@pytest.mark.slow
def test_environments_have_histories_of_their_own(make: Make) -> None:
    settings = "[env.prod]\n[env.qa]\nreads = 'dev'\n"
    builder = make(settings=settings)
    root = builder.settings.root
    put(root, (1, "a"))
    first = build(builder)
    builder = make(root=root, at=1, environment="prod")
    own = build(builder)
    assert own.table != first.table
    assert versions_of(builder, own) == [(1, "a", 1.0, None)]
    builder = make(root=root, at=2, environment="qa")
    assert builder.ledger.manifests.fetch(*builder.settings.environments) == {first.build_id: first}
    put(root, (1, "b"))
    builder = make(root=root, at=3, environment="qa")
    branch = build(builder)
    assert branch.table not in (own.table, first.table)
    assert versions_of(builder, branch) == [(1, "a", 0.0, 3.0), (1, "b", 3.0, None)]
    builder = make(root=root, at=4)
    assert versions_of(builder, build(builder)) == [(1, "a", 0.0, 4.0), (1, "b", 4.0, None)]


@pytest.mark.slow
def test_a_deleted_history_is_restarted_only_by_force(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"))
    snapshot = build(builder)
    for path in Path(builder.settings.table_root(snapshot.table)).glob("*/*.parquet"):
        path.unlink()
    with pytest.raises(GoneError, match="is gone, and with it the history of `p`"):
        build(make(root=root, at=1))
    (root / "sources" / "m.sql").write_text(PLAIN.replace("key=id", "key=id on_change=rebuild"))
    builder = make(root=root, at=2)
    with pytest.raises(GoneError):
        build(builder)
    assert versions_of(builder, build(builder, force=True)) == [(1, "a", 2.0, None)]


def overtaken(make: Make, root: Path) -> None:
    """Check that a run is rejected if another one has read newer data and published since."""
    late = make(root=root, at=1)
    late.observer.pins.pin(named(late, "t"))
    put(root, (1, "c"))
    build(make(root=root, at=2))
    with pytest.raises(ConflictError, match="changed after this run started"):
        build(late)


@pytest.mark.slow
def test_a_run_that_started_before_another_one_published_is_rejected(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"))
    build(builder)
    put(root, (1, "b"))
    overtaken(make, root)


WITH_OLDER = (
    PLAIN
    + """
CREATE TABLE u (one INT) USING parquet LOCATION 'u';
--@ persist
CREATE VIEW older AS SELECT one FROM u;
"""
)
JOINED = "FROM t CROSS JOIN older"


@pytest.mark.slow
def test_the_latest_history_is_continued_even_if_another_read_newer_data(make: Make) -> None:
    builder = make(WITH_OLDER.replace("FROM t", JOINED))
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    (root / "u").mkdir()
    pq.write_table(pa.table({"one": pa.array([1], pa.int32())}), root / "u" / "0.parquet")
    put(root, (1, "a"))
    build(builder, "older")
    build(builder)
    put(root, (1, "b"))
    overtaken(make, root)
    # The latest history is continued, not the one with the newest data.
    code.write_text(WITH_OLDER)
    put(root, (1, "d"))
    build(make(root=root, at=3))
    code.write_text(WITH_OLDER.replace("FROM t", JOINED))
    put(root, (1, "e"))
    build(make(root=root, at=4))
    code.write_text(WITH_OLDER)
    builder = make(root=root, at=5)
    assert versions_of(builder, build(builder)) == [
        (1, "a", 0.0, 2.0),
        (1, "c", 2.0, 3.0),
        (1, "d", 3.0, 4.0),
        (1, "e", 4.0, None),
    ]


@pytest.mark.slow
def test_a_parked_history_is_recomputed_if_another_run_published_first(make: Make) -> None:
    builder = make()
    root = builder.settings.root
    put(root, (1, "a"))
    build(builder)
    put(root, (1, "b"))
    waiting = make(root=root, at=2)
    parked = waiting.park(named(waiting, "p"))
    other = make(root=root, at=1)
    build(other)
    with waiting.resume(parked) as work:
        snapshot = waiting.publish(work)
    assert work is not parked
    assert versions_of(waiting, snapshot) == [(1, "a", 0.0, 1.0), (1, "b", 1.0, None)]


@pytest.mark.slow
def test_a_history_is_not_published_after_a_rollback_during_its_build(make: Make) -> None:
    builder = make()
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    put(root, (1, "a"))
    first = build(builder)
    code.write_text(PLAIN.replace("id, a, b", "id, upper(a) AS a, b"))
    put(root, (1, "b"))
    builder = make(root=root, at=1)
    change = builder.ledger.manifests.fetch_history("dev")[0].change_id
    second = build(builder)
    put(root, (1, "c"))
    late = make(root=root, at=2)
    with (
        pytest.raises(ConflictError, match="changed during the build"),
        late.work(named(late, "p")) as work,
    ):
        roll_back(late.settings, late.ledger, to=change)
        late.publish(work)
    assert late.ledger.manifests.fetch("dev") == {first.build_id: first}
    builder = make(root=root, at=3)
    assert versions_of(builder, build(builder)) == [(1, "C", 3.0, None), (1, "a", 0.0, 3.0)]
    assert second.build_id == named(builder, "p").build_id


def lose_ledger(builder: Builder) -> Path:
    """Delete the ledger of a project; return the project root."""
    root = builder.settings.root
    for file in (root / ".persist").glob("ledger.db*"):
        file.unlink()
    return root


@pytest.mark.slow
@pytest.mark.proves("S26")
def test_a_lost_ledger_does_not_restart_a_history(make: Make) -> None:
    builder = make()
    put(builder.settings.root, (1, "a"))
    build(builder)
    builder = make(root=lose_ledger(builder), at=1)
    put(builder.settings.root, (1, "b"))
    for force in (False, True):  # only on_change=rebuild allows a new history
        with pytest.raises(ConflictError, match="has a history of `p` that the ledger does not"):
            build(make(root=builder.settings.root, at=1), force=force)
    assert examine(builder.settings.root, fix=True).well
    builder = make(root=builder.settings.root, at=9999)  # restored now, by the machine's clock
    assert versions_of(builder, build(builder)) == [(1, "a", 0.0, 9999.0), (1, "b", 9999.0, None)]
    lose_ledger(builder)
    code = builder.settings.root / "sources" / "m.sql"
    code.write_text(PLAIN.replace("key=id", "key=id on_change=rebuild"))
    with pytest.raises(ConflictError):
        build(make(root=builder.settings.root, at=3))
    builder = make(root=builder.settings.root, at=3)
    assert versions_of(builder, build(builder, force=True)) == [(1, "b", 3.0, None)]


@pytest.mark.slow
@pytest.mark.proves("Z2")
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_restored_ledger_does_not_restart_a_history_whose_table_is_gone(
    make: Make, tmp_path: Path, is_lost: bool
) -> None:
    builder, file = make(), tmp_path / "backup.db"
    root = builder.settings.root
    put(root, (1, "a"))
    first = build(builder)
    back_up(builder.settings.ledger, file)
    put(root, (1, "b"))
    builder = make(root=root, at=1)
    build(builder)
    later = lambda: datetime.now(UTC) + timedelta(days=400)  # noqa: E731
    collect(builder.settings, builder.project, builder.ledger, clock=later)
    assert not [*Path(builder.settings.table_root(first.table), first.build_uid).glob("*")]
    if is_lost:
        lose_ledger(builder)
    restored = restore(builder.settings, file, force=True)
    assert (restored.removed, restored.histories) == (0, (first.source_id,))
    builder = make(root=root, at=2)
    (step,) = builder.plan([first.source_id]).steps
    assert f"its history is lost with {first.table}" in str(step.reasons)
    with pytest.raises(GoneError, match="is gone, and with it the history of `p`"):
        build(builder)


@pytest.mark.slow
def test_a_history_is_not_published_without_its_own_lease(make: Make) -> None:
    builder = make()
    put(builder.settings.root, (1, "a"))
    with (
        pytest.raises(ConflictError, match=r"lease on history .* was lost"),
        builder.work(named(builder, "p")) as work,
    ):
        assert [lease.name.split()[0] for lease in work.leases] == ["history", "build"]
        # Another process took it over while this one was suspended.
        builder.ledger.leases.release(work.leases[0])
        builder.publish(work)
    assert builder.ledger.manifests.fetch("dev") == {}


@pytest.mark.slow
def test_a_table_without_a_history_is_not_continued_as_one(make: Make) -> None:
    builder = make(PLAIN.replace(" refresh=snapshot key=id", ""))
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    put(root, (1, "a"))
    build(builder)
    code.write_text(PLAIN)
    builder = make(root=root, at=1)
    assert versions_of(builder, build(builder)) == [(1, "a", 1.0, None)]
    # Disabled and enabled again: the earlier history is continued.
    code.write_text(PLAIN.replace(" refresh=snapshot key=id", ""))
    build(make(root=root, at=2))
    code.write_text(PLAIN)
    put(root, (1, "b"))
    builder = make(root=root, at=3)
    assert versions_of(builder, build(builder)) == [(1, "a", 1.0, 3.0), (1, "b", 3.0, None)]


@pytest.mark.slow
def test_rollback_and_garbage_collection_keep_the_visible_history(make: Make) -> None:
    builder = make(settings='keep = "1 hour"\n')
    root = builder.settings.root
    for n, text in enumerate("abc"):
        put(root, (1, text), (2, "x"))
        builder = make(root=root, at=n)
        build(builder)
    later = datetime.now(UTC) + timedelta(days=3)
    builder = make(root=root, at=3)
    roll_back(
        builder.settings,
        builder.ledger,
        to=builder.ledger.manifests.fetch_history("dev")[1].change_id,
    )
    collect(builder.settings, builder.project, builder.ledger, clock=lambda: later)
    put(root, (1, "d"), (2, "x"))
    builder = make(root=root, at=4)
    assert versions_of(builder, build(builder)) == [
        (1, "a", 0.0, 1.0),
        (1, "b", 1.0, 4.0),
        (1, "d", 4.0, None),
        (2, "x", 0.0, None),
    ]


PYTHON = """
from persist_assets import table

@table(
    refresh="snapshot", key="id", watch=["a"], watermark="at",
    check={{"unique": ["id", "valid_from"], "expr": "valid_to IS NULL OR valid_to > valid_from"}},
)
def f(t):
    return t.select({columns})
"""


@pytest.mark.slow
def test_a_python_function_can_have_a_history(make: Make) -> None:
    builder = make(RAW, f=PYTHON.format(columns="'id', 'a', 'at'"))
    root = builder.settings.root
    put(root, (1, "a", 0, 5))
    build(builder, "f")
    put(root, (1, "b", 0, 6))
    builder = make(root=root, at=9)
    assert versions_of(builder, build(builder, "f")) == [(1, "a", 5.0, 6.0), (1, "b", 6.0, None)]
    (root / "sources" / "f.py").write_text(PYTHON.format(columns="'id', 'a'"))
    with pytest.raises(BuildError, match="`at` is not a column of `f`"):
        build(make(root=root, at=10), "f")


@pytest.mark.slow
def test_a_history_with_a_map_column_needs_columns_to_watch(make: Make) -> None:
    text = PLAIN.replace("id, a, b", "id, a, map('b', b) AS m")
    builder = make(text)
    root = builder.settings.root
    put(root, (1, "a", 1))
    with pytest.raises(BuildError, match="`m` is map<string,int>, which cannot be compared"):
        build(builder)
    (root / "sources" / "m.sql").write_text(text.replace("key=id", "key=id watch=a"))
    for at, row in enumerate([(1, "a", 1), (1, "a", 2), (1, "b", 2)]):
        put(root, row)
        builder = make(root=root, at=at)
        last = build(builder)
    assert versions_of(builder, last) == [(1, "a", 0.0, 2.0), (1, "b", 2.0, None)]
    assert [row["m"] for row in rows_of(builder, last)] == [{"b": 2}] * 2


# ----------------------------------------------------------------------------- continued tables

GOING_ON = RAW + (
    "--@ persist refresh=incremental on_change=continue watermark=at\n"
    "CREATE VIEW p AS SELECT id, a, at FROM t;\n"
    "--@ persist\nCREATE VIEW reader AS SELECT count(*) AS n, max(a) AS a FROM p;\n"
)


@pytest.mark.slow
def test_a_table_continued_with_changed_code_is_marked_as_such(make: Make) -> None:
    settings = "[env.prod]\n"
    builder = make(GOING_ON, settings=settings)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    first = build(builder)
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    code.write_text(GOING_ON.replace("id, a, at", "id, upper(a) AS a, at"))
    builder = make(root=root, at=1)
    (step,) = builder.plan([named(builder, "p").source_id]).steps
    assert [r.code for r in step.reasons] == ["code", "increment", "older"]
    second = build(builder)
    assert sorted(r["a"] for r in rows_of(builder, second)) == ["B", "a"]
    assert (older_code(first), older_code(second)) == (None, first.build_uid)
    assert second.watermark == "2024-01-02T00:00:00Z"
    read = build(builder, "reader")
    # Up to date here, but other environments do not reuse it.
    builder = make(root=root, at=2)
    steps = builder.plan([named(builder, n).source_id for n in ("p", "reader")]).steps
    assert [(s.action, [r.code for r in s.reasons]) for s in steps] == [
        ("reuse", ["older"]),
        ("reuse", []),
    ]
    elsewhere = make(root=root, at=2, environment="prod")
    whole = build(elsewhere)
    assert sorted(r["a"] for r in rows_of(elsewhere, whole)) == ["A", "B"]
    assert build(elsewhere, "reader").build_uid != read.build_uid
    # The mark stays with such rows, until all rows are recomputed.
    write_deltalake(str(root / "raw"), rows_at((3, "c", 2)), mode="append")
    builder = make(root=root, at=3)
    third = build(builder)
    assert sorted(r["a"] for r in rows_of(builder, third)) == ["B", "C", "a"]
    assert (third.table, older_code(third)) == (second.table, first.build_uid)
    builder = make(root=root, at=4)
    anew = build(builder, force=True)
    assert sorted(r["a"] for r in rows_of(builder, anew)) == ["A", "B", "C"]
    assert older_code(anew) is None
    assert build(builder, "reader").build_uid != read.build_uid


@pytest.mark.slow
@pytest.mark.proves("P8")
def test_readers_are_rebuilt_once_continuing_their_input_is_disabled(
    make: Make,
) -> None:
    builder = make(READ, at=9)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    assert texts(builder, *NAMES) == [["a"]] * 3
    changed = READ.replace("id, a, at FROM t", "id, upper(a) AS a, at FROM t")
    code.write_text(changed)
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=9), *NAMES) == [["B", "a"]] * 3
    code.write_text(changed.replace(" on_change=continue", ""))
    assert texts(make(root=root, at=9), *NAMES) == [["A", "B"]] * 3


@pytest.mark.slow
def test_snapshots_that_share_rows_are_tainted_together(make: Make) -> None:
    builder = make(GOING_ON.replace(" on_change=continue", ""))
    root = builder.settings.root
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    build(builder)
    (first, *_) = builder.ledger.manifests.fetch_history("dev")
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    builder = make(root=root, at=1)
    build(builder)
    (second, *_) = builder.ledger.manifests.fetch_history("dev")
    p = named(builder, "p")
    taint(builder.observer, p.key, by="me")
    # The rows of neither build are read, whichever of them wrote the wrong ones.
    roll_back(builder.settings, builder.ledger, to=first.change_id)
    assert p.source_id in builder.observer.tainted(builder.observer.manifest())
    builder = make(root=root, at=2)
    build(builder)
    assert p.source_id not in builder.observer.tainted(builder.observer.manifest())
    roll_back(builder.settings, builder.ledger, to=second.change_id)
    assert p.source_id in builder.observer.tainted(builder.observer.manifest())


def test_a_table_is_not_continued_from_tainted_rows(make: Make) -> None:
    builder = make(GOING_ON)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    build(builder)
    taint(builder.observer, named(builder, "p").key, by="me")
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    code.write_text(GOING_ON.replace("id, a, at", "id, upper(a) AS a, at"))
    builder = make(root=root, at=1)
    assert sorted(r["a"] for r in rows_of(builder, build(builder))) == ["A", "B"]
    (step,) = make(root=root, at=1).plan([named(builder, "p").source_id]).steps
    assert step.action == "reuse"


READ = RAW + (
    "--@ persist refresh=incremental on_change=continue watermark=at\n"
    "CREATE VIEW p AS SELECT id, a, at FROM t;\n"
    "CREATE VIEW seen AS SELECT * FROM p;\n"
    "--@ persist refresh=incremental watermark=at\n"
    "CREATE VIEW reader AS SELECT id, a, at, 1 AS one FROM seen;\n"
    '--@ persist partition=daily time_column=at start="2024-01-01"\n'
    "CREATE VIEW parted AS SELECT id, a, at FROM p;\n"
)
NAMES = ("p", "reader", "parted")


def texts(builder: Builder, *names: str) -> list[list[str]]:
    """Build sources, and return the values of `a` in their tables."""
    return [sorted(r["a"] for r in rows_of(builder, build(builder, n))) for n in names]


@pytest.mark.slow
@pytest.mark.proves("P8")
def test_readers_follow_a_continued_table_once_it_is_built(
    make: Make,
) -> None:
    builder = make(READ, at=9)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    assert texts(builder, *NAMES) == [["a"]] * 3
    code.write_text(READ.replace("id, a, at FROM t", "id, upper(a) AS a, at FROM t"))
    assert texts(make(root=root, at=9), "reader", "parted") == [["A"]] * 2, "of the data alone"
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=9), *NAMES) == [["B", "a"]] * 3


@pytest.mark.slow
@pytest.mark.proves("P8")
def test_readers_follow_a_continued_table_when_it_is_recomputed(make: Make) -> None:
    builder = make(READ, at=9)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    assert texts(builder, *NAMES) == [["a"]] * 3
    code.write_text(READ.replace("id, a, at FROM t", "id, upper(a) AS a, at FROM t"))
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=9), *NAMES) == [["B", "a"]] * 3
    # A window of one day is recomputed, without new data.
    builder = make(root=root, at=9)
    with builder.work(named(builder, "p"), recompute_span=("2024-01-01", "2024-01-01")) as work:
        builder.publish(work)
    assert texts(builder, *NAMES) == [["A", "B"]] * 3
    # Then all of it is recomputed, with new data.
    code.write_text(READ.replace("id, a, at FROM t", "id, concat(a, '!') AS a, at FROM t"))
    write_deltalake(str(root / "raw"), rows_at((3, "c", 2)), mode="append")
    assert texts(make(root=root, at=9), *NAMES) == [["A", "B", "c!"]] * 3
    write_deltalake(str(root / "raw"), rows_at((4, "d", 3)), mode="append")
    builder = make(root=root, at=9)
    build(builder, force=True)
    assert texts(builder, *NAMES) == [["a!", "b!", "c!", "d!"]] * 3


TWO = RAW + (
    "--@ persist refresh=incremental on_change=continue watermark=at\n"
    "CREATE VIEW p AS SELECT id, a, at FROM t;\n"
    "--@ persist refresh=incremental watermark=at\n"
    "CREATE VIEW same AS SELECT id, a, at FROM t;\n"
)


@pytest.mark.slow
@pytest.mark.proves("P8")
def test_a_source_without_on_change_continue_has_no_rows_of_older_code(make: Make) -> None:
    builder = make(TWO)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    assert named(builder, "p").build_id == named(builder, "same").build_id
    upper = TWO.replace("id, a, at FROM t", "id, upper(a) AS a, at FROM t")
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    assert texts(builder, "p", "same") == [["a"]] * 2
    code.write_text(upper)
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=1), "p") == [["B", "a"]]
    builder = make(root=root, at=2)
    (step,) = builder.plan([named(builder, "same").source_id]).steps
    assert [(r.code, r.message) for r in step.reasons] == [
        ("older", "its table has rows of older code, and on_change=continue is not set")
    ]
    assert texts(builder, "same") == [["A", "B"]]
    builder = make(root=root, at=3)
    steps = builder.plan([named(builder, n).source_id for n in ("p", "same")]).steps
    assert [(s.action, s.reasons) for s in steps] == [("reuse", ())] * 2, "of all code the present"


@pytest.mark.slow
def test_a_continued_table_is_rebuilt_once_continuing_is_disabled(make: Make) -> None:
    builder = make(GOING_ON)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    upper = GOING_ON.replace("id, a, at", "id, upper(a) AS a, at")
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    build(builder)
    code.write_text(upper)
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=1), "p") == [["B", "a"]]
    code.write_text(upper.replace(" on_change=continue", ""))
    assert texts(make(root=root, at=2), "p") == [["A", "B"]]
    assert make(root=root, at=3).build(named(make(root=root, at=3), "p")).action == "reused"


@pytest.mark.slow
def test_a_source_that_selects_all_of_a_continued_table_has_its_rows(make: Make) -> None:
    text = TWO.replace("same AS SELECT id, a, at FROM t", "same AS SELECT * FROM p")
    builder = make(text)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    assert named(builder, "p").build_id == named(builder, "same").build_id
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0)))
    build(builder)
    code.write_text(text.replace("id, a, at FROM t", "id, upper(a) AS a, at FROM t"))
    write_deltalake(str(root / "raw"), rows_at((2, "b", 1)), mode="append")
    assert texts(make(root=root, at=1), "p", "same") == [["B", "a"]] * 2
    builder = make(root=root, at=2)
    steps = builder.plan([named(builder, n).source_id for n in ("p", "same")]).steps
    assert [s.action for s in steps] == ["reuse"] * 2


def rows_at(*rows: tuple[int, str, float]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": i, "a": a, "b": 0, "at": day(n)} for i, a, n in rows], SCHEMA
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("id, a, at, 1 AS more", "`more` is new"),
        ("a, at", "`id` is gone"),
        ("CAST(id AS STRING) AS id, a, at", "`id` was int and is string"),
    ],
)
def test_a_table_with_other_columns_is_not_continued(make: Make, columns: str, why: str) -> None:
    builder = make(GOING_ON)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    put(root, (1, "a", 0, 0))
    build(builder)
    code.write_text(GOING_ON.replace("id, a, at", columns))
    builder = make(root=root, at=1)
    (step,) = builder.plan([named(builder, "p").source_id]).steps
    assert f"it cannot be continued: {why}" in [r.message for r in step.reasons]
    with pytest.raises(BuildError, match=f"cannot continue .*: {why}"):
        build(builder)
    assert older_code(build(builder, force=True)) is None


@pytest.mark.slow
def test_windows_of_a_continued_table_are_recomputed_with_the_new_code(make: Make) -> None:
    daily = RAW + (
        "--@ persist refresh=incremental on_change=continue watermark=d\n"
        "CREATE VIEW p AS SELECT CAST(at AS DATE) AS d, count(*) AS n FROM t GROUP BY 1;\n"
    )
    builder = make(daily)
    root, code = builder.settings.root, builder.settings.root / "sources" / "m.sql"
    write_deltalake(str(root / "raw"), rows_at((1, "a", 0.5), (2, "b", 1.5)))
    build(builder)
    code.write_text(daily.replace("count(*) AS n", "10 * count(*) AS n"))
    builder = make(root=root, at=1)
    with builder.work(named(builder, "p")) as work:  # only the code changed
        snapshot = builder.publish(work)
    assert sorted(r["n"] for r in rows_of(builder, snapshot)) == [1, 1]
    assert older_code(snapshot) is not None
    code.write_text(daily.replace("count(*) AS n", "100 * count(*) AS n"))
    write_deltalake(str(root / "raw"), rows_at((3, "c", 1.5)), mode="append")
    builder = make(root=root, at=2)
    last = build(builder)
    assert sorted(r["n"] for r in rows_of(builder, last)) == [1, 200]
    assert older_code(last) == snapshot.build_uid
