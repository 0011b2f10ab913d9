"""Import of manifest files into an environment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.errors import NotFoundError
from persist_assets.operations.environments import roll_back
from persist_assets.operations.manifest_imports import Imported, import_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist check { not_null=[s] }
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    write(made, [1, 2])
    return made


def build(builder: Builder) -> list[str]:
    return [builder.build(s).action for s in builder.project.persisted]


def planned(builder: Builder) -> list[str]:
    ids = [s.source_id for s in builder.project.persisted]
    return [step.action for step in builder.plan(ids).steps]


def total(builder: Builder) -> int:
    return builder.read(builder.project.by_id["q@sources/m.sql"]).collect()[0][0]


def take(builder: Builder, file: Path, **options: Any) -> Imported:
    return import_manifest(builder.settings, builder.ledger, file, **options)


def saved(builder: Builder, name: str = "saved.json") -> Path:
    return Path(shutil.copy(builder.settings.manifest_path, builder.settings.root / name))


def change(file: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    document = json.loads(file.read_text())
    edit(document["entries"])
    file.write_text(json.dumps(document))
    return file


@pytest.mark.proves("M15")
def test_importing_an_export_restores_its_environment(
    root: Path, enter: Callable[..., Builder]
) -> None:
    dev = enter(root)
    build(dev)
    then, file = dev.ledger.manifests.fetch("dev"), saved(dev)
    assert take(dev, file).n_same == 2
    assert len(dev.ledger.manifests.fetch_history("dev")) == 2
    write(root, [1, 2, 3])
    build(enter(root))
    assert total(enter(root)) == 9
    tried = take(dev, file, dry_run=True)
    assert tried.refused == ()
    assert (len(tried.moved), tried.change_id) == (2, None)
    assert dev.ledger.manifests.fetch("dev") != then
    done = take(dev, file, why="the numbers of Monday")
    assert (len(done.moved), done.adopted, done.refused) == (2, frozenset(), ())
    assert dev.ledger.manifests.fetch("dev") == then
    assert total(enter(root)) == 5
    # It has rows of older data again, which a build updates.
    assert planned(enter(root)) == ["build", "build"]
    latest = dev.ledger.manifests.fetch_history("dev")[0]
    assert (latest.change_id, latest.kind) == (done.change_id, "promote")
    assert latest.why == "import of saved.json: the numbers of Monday"
    assert json.loads(dev.settings.manifest_path.read_text()) == json.loads(file.read_text())


def test_an_environment_can_import_the_manifest_of_another(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root, "prod"))
    file = saved(enter(root, "prod"))
    dev = enter(root)
    assert len(take(dev, file).moved) == 2
    assert dev.ledger.manifests.fetch("dev") == dev.ledger.manifests.fetch("prod")
    assert planned(enter(root)) == ["reuse", "reuse"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_partitions_of_an_imported_table_are_rebuilt_in_another_ledger(
    root: Path, enter: Callable[..., Builder]
) -> None:
    parted = "\n--@ persist partition { a=[1, 2] }\nCREATE VIEW parted AS SELECT a FROM t;\n"
    (root / "sources" / "m.sql").write_text(SOURCES + parted)
    build(enter(root))
    file, toml = saved(enter(root)), root / "persist.toml"
    toml.write_text('ledger = "sqlite:///.persist/other.db"\n' + toml.read_text())
    assert len(take(enter(root), file).moved) == 3
    other = enter(root)
    found = {s.source_id: s for s in other.plan(["parted@sources/m.sql"]).steps}
    step = found["parted@sources/m.sql"]
    assert step.keys == ("1", "2")
    assert "it was imported" in step.reasons[0].message
    assert build(other)[-1] == "built"
    assert build(enter(root))[-1] == "reused"


@pytest.mark.proves("M15")
def test_another_ledger_adopts_the_tables_of_its_warehouse_by_an_import(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    then, file = enter(root).ledger.manifests.fetch("dev"), saved(enter(root))
    toml = root / "persist.toml"
    toml.write_text('ledger = "sqlite:///.persist/other.db"\n' + toml.read_text())
    other = enter(root)
    assert planned(other) == ["build", "build"]
    done = take(other, file)
    assert (done.refused, done.adopted) == ((), frozenset(then))
    assert other.ledger.manifests.fetch("dev") == then
    assert planned(enter(root)) == ["reuse", "reuse"]
    assert total(enter(root)) == 5
    # Checks run again: an import does not prove that they passed.
    assert other.ledger.manifests.fetch_passed("dev") == {b: set() for b in then}
    assert build(enter(root)) == ["reused", "reused"]
    q = other.project.by_id["q@sources/m.sql"]
    assert other.ledger.manifests.fetch_passed("dev")[q.build_id] == {"s not null"}
    # Builds continue from there.
    write(root, [10])
    assert build(enter(root)) == ["built", "built"]
    assert total(enter(root)) == 11


def test_unverifiable_entries_are_rejected_and_nothing_is_imported(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    write(root, [7])
    build(enter(root))
    dev = enter(root)
    now, file = dev.ledger.manifests.fetch("dev"), saved(dev)
    whole = file.read_text()
    p, q = (dev.project.by_id[f"{n}@sources/m.sql"].build_id for n in ("p", "q"))
    table = dev.settings.table_root(now[p].table)

    def refused() -> dict[str | None, str]:
        done = take(dev, file)
        assert (done.change_id, len(dev.ledger.manifests.fetch_history("dev"))) == (None, 4)
        assert dev.ledger.manifests.fetch("dev") == now
        file.write_text(whole)
        return {r.build_id: r.reason for r in done.refused}

    def without_claims(entries: dict[str, Any]) -> None:
        for build_id, entry in entries.items():
            names = ("tableName", "sourceId", "path", "version")
            entries[build_id] = {k: entry[k] for k in names}

    def older(entries: dict[str, Any]) -> None:
        without_claims(entries)
        entries[p] |= {"version": 9, "tableName": f"delta.`{table}@v9`"}
        entries["ab" * 32] = entries[q]

    change(file, older)
    assert refused() == {
        build_id: "that version is not in this ledger, and the file does not describe its inputs"
        for build_id in (p, "ab" * 32)
    }
    # For versions in the ledger, fewer keys than an export has are sufficient.
    change(file, without_claims)
    assert take(dev, file).n_same == 2
    file.write_text("{ not json")
    assert list(refused()) == [None]
    file.write_bytes(b"\xff\xfe")
    assert list(refused()) == [None]
    with pytest.raises(NotFoundError, match="cannot read"):
        take(dev, root / "nowhere.json")


def test_missing_and_foreign_tables_are_rejected_by_an_import(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    dev = enter(root)
    file = saved(dev)
    now = dev.ledger.manifests.fetch("dev")
    p, q = (now[dev.project.by_id[f"{n}@sources/m.sql"].build_id] for n in ("p", "q"))
    p_root, q_root = (Path(dev.settings.table_root(s.table)) for s in (p, q))
    # The tables are outside the warehouse of the other ledger.
    toml = root / "persist.toml"
    text = toml.read_text()
    toml.write_text(
        'ledger = "sqlite:///.persist/other.db"\nwarehouse = "elsewhere"\n' + toml.read_text()
    )
    other = enter(root)
    assert {r.reason.partition("is outside")[1] for r in take(other, file).refused} == {
        "is outside"
    }
    assert other.ledger.manifests.fetch("dev") == {}
    toml.write_text(text)
    # A file is missing, and one table was replaced by another.
    next((p_root / p.build_uid).glob("*.parquet")).unlink()
    shutil.rmtree(q_root)
    shutil.copytree(p_root, q_root)
    reasons = {r.build_id: r.reason for r in take(enter(root), file).refused}
    assert ", a file of version 0, is gone" in reasons[p.build_id]
    assert "is gone" in reasons[q.build_id] or "not the one" in reasons[q.build_id]
    assert dev.ledger.manifests.fetch("dev") == now


@pytest.mark.proves("S26")
def test_an_import_does_not_wait_for_the_correction_of_the_project(
    root: Path, enter: Callable[..., Builder], caplog: pytest.LogCaptureFixture
) -> None:
    build(enter(root))
    dev = enter(root)
    entries, file = dev.ledger.manifests.fetch("dev"), saved(dev)
    roll_back(dev.settings, dev.ledger, to=dev.ledger.manifests.fetch_history("dev")[-1].change_id)
    (root / "sources").rename(root / "elsewhere")
    assert take(dev, file).change_id is not None
    assert dev.ledger.manifests.fetch("dev") == entries
    assert "action=skip-partitions" in caplog.text


def test_a_version_written_by_another_build_is_rejected(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    dev = enter(root)
    for snapshot in dev.ledger.manifests.fetch("dev").values():
        log = Path(dev.settings.table_root(snapshot.table), "_delta_log", f"{0:020}.json")
        log.write_text(log.read_text().replace(snapshot.build_id, "ab" * 32))
    refused = take(dev, saved(dev)).refused
    assert len(refused) == 2
    assert all("was written by another build" in r.reason for r in refused)
