"""Published tables at fixed paths: other programs read them, and each update is one commit."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from support.duckdb_engine import MakeEngine, engine_of
from typer.testing import CliRunner

from persist_assets.building.publishing import publish, publisher_of
from persist_assets.cli import app
from persist_assets.core.errors import NotFoundError, SettingsError, StorageError
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.gc import collect
from persist_assets.storage.published_tables import (
    PUBLISHER,
    Description,
    OvertakenError,
    open_published,
    publish_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from typer.testing import Result

    from persist_assets.building.builder import Builder

SETTINGS = """
[env.dev]
[env.prod.publish]
path = "lake"
"""
SOURCES = """
CREATE TABLE t (a BIGINT, b BIGINT) USING parquet LOCATION 'raw/t';
-- Rows with their sum.
--@ persist owner="team:ops"
CREATE VIEW p (a, b COMMENT 'The second.', c) AS SELECT a, b, a + b AS c FROM t;
--@ persist group=marts name=totals
CREATE VIEW q AS SELECT sum(c) AS total FROM p;
"""


def write(root: Path, values: list[int], name: str = "part-0") -> None:
    path = root / "raw" / "t" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array(values, pa.int64())
    pq.write_table(pa.table({"a": column, "b": column}), path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, SETTINGS)
    write(made, [1, 2])
    return made


def build_all(builder: Builder) -> Builder:
    for source in builder.project.persisted:
        builder.build(source)
    return builder


def edit(root: Path, before: str, after: str) -> None:
    path = root / "sources" / "m.sql"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def invoked(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--project", str(root), "--env", "prod"])


def by_delta_rs(place: str) -> list[int]:
    rows = QueryBuilder().register("t", DeltaTable(place)).execute("SELECT a FROM t").read_all()
    return sorted(pa.table(rows)["a"].to_pylist())


def by_arrow(place: str) -> list[int]:
    return sorted(DeltaTable(place).to_pyarrow_table(columns=["a"])["a"].to_pylist())


def by_polars(place: str) -> list[int]:
    return sorted(pl.scan_delta(place).select("a").collect()["a"].to_list())


def by_duckdb(place: str) -> list[int]:
    table = DeltaTable(place).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        return sorted(
            a for (a,) in connection.register("d", table).sql("SELECT a FROM d").fetchall()
        )


READERS = (by_delta_rs, by_arrow, by_polars, by_duckdb)


def rows_of(root: Path, name: str = "m/p") -> list[int]:
    """Return the values of `a` in a published table; all readers must agree on them."""
    (rows, *others) = (read(str(root / "lake" / name)) for read in READERS)
    assert all(other == rows for other in others)
    return rows


@pytest.mark.proves("X4")
def test_other_programs_see_builds_promotions_and_rollbacks(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    assert rows_of(root) == [1, 2]
    total = DeltaTable(str(root / "lake" / "marts" / "totals"))
    assert total.to_pyarrow_table().to_pylist() == [{"total": 6}]

    write(root, [3], "part-1")
    dev = build_all(enter(root, "dev"))
    assert rows_of(root) == [1, 2], "what dev builds is no one's business outside"
    _, change = promote(dev.observer, "prod", [s.source_id for s in dev.project.persisted])
    assert change is not None
    assert rows_of(root) == [1, 2, 3]
    roll_back(prod.settings, prod.ledger)
    assert rows_of(root) == [1, 2]
    assert [o.action for o in publish(prod.settings, prod.ledger, prod.project)] == ["current"] * 2


@pytest.mark.proves("X4")
def test_a_rollback_to_before_the_first_build_removes_the_published_table(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    roll_back(prod.settings, prod.ledger)
    assert not (root / "lake" / "m" / "p").exists()
    build_all(enter(root, "prod"))
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X4")
def test_published_tables_carry_source_metadata(root: Path, enter: Callable[..., Builder]) -> None:
    build_all(enter(root, "prod"))
    place = str(root / "lake" / "m" / "p")
    table = DeltaTable(place)
    assert table.metadata().description == "Rows with their sum."
    assert table.metadata().configuration["persist.owners"] == "team:ops"
    comments = {f.name: f.metadata.get("comment") for f in table.schema().fields}
    assert comments == {"a": None, "b": "The second.", "c": None}

    edit(root, "The second.", "Another one.")
    result = invoked(root, "publish", "--json")
    tables = {t["source_id"]: t["action"] for t in json.loads(result.stdout)["tables"]}
    assert tables == {"p@sources/m.sql": "described", "q@sources/m.sql": "current"}
    assert DeltaTable(place).schema().fields[1].metadata["comment"] == "Another one."
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X4")
def test_columns_change_with_the_rows(root: Path, enter: Callable[..., Builder]) -> None:
    build_all(enter(root, "prod"))
    edit(
        root, "(a, b COMMENT 'The second.', c) AS SELECT a, b, a + b AS c", "AS SELECT a, 'x' AS c"
    )
    edit(root, "sum(c)", "count(c)")
    builder = enter(root, "prod")
    source = builder.project.persisted[0]
    builder.allow_schema_change = True
    builder.build(source)
    table = DeltaTable(str(root / "lake" / "m" / "p")).to_pyarrow_table()
    assert table.column_names == ["a", "c"]
    assert table["c"].to_pylist() == ["x", "x"]
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X4")
def test_files_are_linked_once(root: Path, enter: Callable[..., Builder]) -> None:
    """An increment adds its own files; the others are neither copied nor linked again."""
    edit(root, "--@ persist owner", "--@ persist refresh=incremental owner")
    build_all(enter(root, "prod"))
    place = root / "lake" / "m" / "p"
    before = {*DeltaTable(str(place)).file_uris()}
    write(root, [3], "part-1")
    build_all(enter(root, "prod"))
    after = {*DeltaTable(str(place)).file_uris()}
    assert before < after
    assert rows_of(root) == [1, 2, 3]
    assert all((place / uri).stat().st_nlink == 2 for uri in after)


@pytest.mark.proves("X5")
def test_a_failed_publication_is_reported_and_retried_by_the_next_build(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "lake").write_text("a file, where the directory of the tables should be")
    builder = enter(root, "prod")
    with pytest.raises(StorageError, match="still has earlier rows"):
        builder.build(builder.project.persisted[0])
    assert builder.ledger.manifests.fetch("prod"), "the environment's own readers have the rows"
    assert json.loads(invoked(root, "publish", "--json").stdout)["tables"][0]["action"] == "failed"
    (root / "lake").unlink()
    build_all(enter(root, "prod"))  # reuses the table
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X5")
def test_tainted_rows_are_not_published(root: Path, enter: Callable[..., Builder]) -> None:
    from persist_assets.wants.requests import taint

    build_all(enter(root, "prod"))
    write(root, [3], "part-1")
    dev = build_all(enter(root, "dev"))
    promote(dev.observer, "prod", [s.source_id for s in dev.project.persisted])
    prod = enter(root, "prod")
    shared = root / "lake" / "manifest.json"
    source = prod.project.persisted[0]
    assert source.build_id in json.loads(shared.read_text())["entries"]
    taint(prod.observer, "m/p", by="me")
    assert source.build_id not in json.loads(shared.read_text())["entries"]
    prod.ledger.published.forget(str(root / "lake" / "m" / "p"))
    (outcome, *_) = publish(prod.settings, prod.ledger, prod.project)
    assert (outcome.action, outcome.reason) == (
        "skipped",
        "its rows are tainted, so the table keeps the earlier ones",
    )


@pytest.mark.proves("X5")
def test_the_manifest_of_another_project_is_left_alone(
    root: Path,
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = build_all(enter(root, "prod"))
    shared = root / "lake" / "manifest.json"
    before = json.loads(shared.read_text())
    assert before["publisher"] == publisher_of(first.settings, first.ledger)
    toml = SETTINGS.replace('"lake"', json.dumps(str(root / "lake")))
    other = make_project({"n.sql": SOURCES.replace("group=marts", "group=n")}, toml, "other")
    write(other, [3])
    build_all(enter(other, "prod"))
    assert "kept, it has another publisher" in caplog.text
    assert json.loads(shared.read_text()) == before
    assert rows_of(root, "n/p") == [3]
    assert invoked(other, "publish", "--take-over").exit_code == 0
    assert json.loads(shared.read_text())["publisher"] != before["publisher"]
    shared.write_text("[]")
    assert invoked(root, "publish").exit_code == 0
    assert json.loads(shared.read_text()) == before


@pytest.mark.proves("X5")
def test_foreign_tables_are_never_overwritten(root: Path, enter: Callable[..., Builder]) -> None:
    from deltalake import write_deltalake

    place = root / "lake" / "m" / "p"
    write_deltalake(str(place), pa.table({"a": [9]}))
    builder = enter(root, "prod")
    with pytest.raises(StorageError, match="has another publisher"):
        builder.build(builder.project.persisted[0])
    assert by_delta_rs(str(place)) == [9]
    # The path belongs to another environment.
    shutil.rmtree(place)
    build_all(enter(root, "prod"))
    (root / "persist.toml").write_text('[env.prod]\n[env.dev.publish]\npath = "lake"\n')
    dev = enter(root, "dev")
    with pytest.raises(StorageError, match="has another publisher"):
        dev.build(dev.project.persisted[0])


@pytest.mark.slow
@pytest.mark.proves("X5")
def test_optimize_and_vacuum_of_other_platforms_lose_no_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    """OPTIMIZE and VACUUM rewrite and delete the table's own files only."""
    edit(root, "--@ persist owner", "--@ persist refresh=incremental owner")
    build_all(enter(root, "prod"))
    write(root, [3], "part-1")
    build_all(enter(root, "prod"))
    table = DeltaTable(str(root / "lake" / "m" / "p"))
    assert table.optimize.compact()["numFilesRemoved"] == 2
    assert table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert rows_of(root) == [1, 2, 3]
    write(root, [4], "part-2")
    build_all(enter(root, "prod"))
    assert rows_of(root) == [1, 2, 3, 4]


@pytest.mark.proves("X5")
def test_replaced_files_and_tables_without_a_source_are_collected(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    write(root, [3])
    builder = build_all(enter(root, "prod"))
    place = root / "lake" / "m" / "p"
    stray = place / "died" / "part-0.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"left by a publication that died")

    def sweep(days: int, **options: Any) -> None:
        later = datetime.now(UTC) + timedelta(days=days)
        latest = enter(root, "prod")
        collect(latest.settings, latest.project, latest.ledger, clock=lambda: later, **options)

    def files() -> set[str]:
        return {p.name for p in place.rglob("*.parquet") if "_delta_log" not in p.parts}

    before = files()
    sweep(0)
    assert files() == before, "queries may read them"
    live = {uri.rpartition("/")[2] for uri in DeltaTable(str(place)).file_uris()}
    assert live < before
    assert rows_of(root) == [3]

    edit(root, "CREATE VIEW p (", "CREATE VIEW r (")
    edit(root, "FROM p;", "FROM r;")
    result = invoked(root, "publish", "--json")
    assert json.loads(result.stdout)["left"] == [str(place)]
    sweep(0)
    assert place.exists()
    sweep(0, removed=True)
    assert not place.exists()
    names = {p.source_id for p in builder.ledger.published.fetch("prod").values()}
    assert names == {"r@sources/m.sql", "q@sources/m.sql"}


@pytest.mark.proves("X5")
def test_gc_and_rollback_preserve_foreign_files_at_a_published_path(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    place = root / "lake" / "m" / "p"
    shutil.rmtree(place)
    place.mkdir()
    (place / "report.csv").write_text("somebody's data")
    edit(root, "CREATE VIEW p (", "CREATE VIEW r (")
    edit(root, "FROM p;", "FROM r;")
    latest = enter(root, "prod")
    collect(latest.settings, latest.project, latest.ledger, removed=True)
    roll_back(prod.settings, prod.ledger)  # to before the first build
    assert [file.name for file in place.iterdir()] == ["report.csv"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[env.prod.publish]\n", ""),
        ('[env.prod.publish]\nselect = ["p"]', "needs `path` or `catalog`"),
        ('[env.prod.publish]\npath = ".persist"', "overlaps the warehouse"),
        ('[env.prod.publish]\npath = "ftp://x/y"', "path`:"),
        ('[env.prod.publish]\ncatalog = "a;b"', "invalid name"),
        ('[env.prod.publish]\nplace = "lake"', "unknown key"),
        ('[env."pr-*".publish]\npath = "lake"\n[env.prod]', "environments of a pattern"),
        ('[env.dev]\n[env.prod]\nreads = "dev"\npublish = {path = "lake"}', "reads another one"),
    ],
)
@pytest.mark.proves("X4")
def test_invalid_settings_are_rejected(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "persist.toml").write_text(settings)
    environment = "pr-1" if "pr-*" in settings else "prod"
    if not message:
        assert load_settings(tmp_path, environment=environment).publish is None
        return
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(tmp_path, environment=environment)
    assert caught.value.location is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            '[env.prod.publish]\npath = "lake"\n[env.qa.publish]\npath = "./lake/"\n',
            r"persist.toml:4:1: `prod` and `qa` would both publish tables in /.*/lake:",
        ),
        (
            '[env.prod.publish]\ncatalog = "a"\n[env.qa]\nviews = "A.{name}"\n',
            "persist.toml:4:1: `prod` and `qa` would both publish views called A.{name}:",
        ),
        ('views = "{name}"\n[env.qa]\n', "persist.toml:1:1: `dev` and `qa` would both"),
        ('views = "{name}"\n[env.qa]\nviews = ""\n', ""),
        ('views = "{name}"\n[env.qa.spark]\nremote = "sc://other"\n', ""),
        ('[env.prod.publish]\npath = "lake"\n[env.qa.publish]\npath = "lake2"\n', ""),
    ],
)
@pytest.mark.proves("X4")
def test_environments_cannot_share_table_names(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "persist.toml").write_text(settings)
    if not message:
        load_settings(tmp_path, environment="qa")
        return
    for environment in ("dev", "qa"):  # whichever is used
        with pytest.raises(SettingsError) as caught:
            load_settings(tmp_path, environment=environment)
        assert re.match(message, f"{caught.value.location}: {caught.value.message}")


@pytest.mark.proves("X4")
def test_names_are_unique_among_selected_tables(root: Path, enter: Callable[..., Builder]) -> None:
    edit(root, "name=totals", "name=Totals")
    text = (root / "sources" / "m.sql").read_text()
    text += "--@ persist group=marts\nCREATE VIEW totals AS SELECT 1 AS a;\n"
    (root / "sources" / "m.sql").write_text(text)
    result = invoked(root, "publish")
    assert result.exit_code == 2
    assert "both published as marts/" in result.stderr
    toml = (root / "persist.toml").read_text()
    (root / "persist.toml").write_text(toml.replace('"lake"\n', '"lake"\nselect = ["m/p"]\n'))
    build_all(enter(root, "prod"))
    assert {p.name for p in (root / "lake").iterdir()} == {"m", "manifest.json"}
    (root / "persist.toml").write_text(toml.replace('"lake"\n', '"lake"\nselect = ["absent"]\n'))
    result = invoked(root, "publish")
    assert "`[env.prod.publish] select`: unknown source `absent`" in result.stderr.replace(
        "\n", " "
    )


@pytest.mark.slow
@pytest.mark.proves("X5")
def test_a_suspended_publication_does_not_overwrite_newer_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = build_all(enter(root, "prod"))
    place, publisher = (
        str(root / "lake" / "m" / "p"),
        publisher_of(builder.settings, builder.ledger),
    )
    early = builder.ledger.manifests.find_snapshot("prod", builder.project.persisted[0].build_id)
    assert early is not None
    write(root, [3])
    build_all(enter(root, "prod"))
    opened = open_published(place, publisher)
    write(root, [4])
    build_all(enter(root, "prod"))
    source = builder.settings.table_root(early.table), early.version
    with pytest.raises(OvertakenError):
        publish_version(place, opened, source, {PUBLISHER: publisher}, Description(None, {}, ()))
    assert rows_of(root) == [4]
    directories = [p for p in (root / "lake" / "m" / "p").iterdir() if p.name != "_delta_log"]
    assert len(directories) == 3, "what it linked is deleted"


def follow(
    reads: Iterable[Callable[[], list[int]]],
    published: set[tuple[int, ...]],
    move: Callable[[], None],
) -> dict[str, int]:
    """Let readers loop while tables are published; return how often each read.

    Every result must have been published by then.
    """
    done = threading.Event()
    counts: dict[str, int] = {}
    wrong: list[object] = []

    def loop(name: str, read: Callable[[], list[int]]) -> None:
        while not done.is_set():
            try:
                rows = tuple(read())
            except Exception as error:
                wrong.append((name, error))
                return
            counts[name] = counts.get(name, 0) + 1
            if rows not in published:
                wrong.append((name, rows))

    threads = [threading.Thread(target=loop, args=(f"{n}", r)) for n, r in enumerate(reads)]
    for thread in threads:
        thread.start()
    try:
        move()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    return counts


@pytest.mark.slow
@pytest.mark.proves("X6")
def test_concurrent_readers_only_see_rows_of_complete_versions(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    published = {(1, 2)}
    first = prod.ledger.manifests.fetch_history("prod", limit=1)[0].change_id
    place = str(root / "lake" / "m" / "p")
    chance = random.Random(20261126)

    def move() -> None:
        for _ in range(40):
            if chance.random() < 0.4:
                with suppress(NotFoundError):  # there may be nothing to undo
                    roll_back(prod.settings, prod.ledger, to=first)
                continue
            values = sorted(chance.sample(range(1000), 3))
            published.add(tuple(values))
            write(root, values)
            environment = chance.choice(["dev", "prod"])
            builder = enter(root, environment)
            builder.build(builder.project.persisted[0])
            if environment == "dev":
                promote(builder.observer, "prod", [builder.project.persisted[0].source_id])

    counts = follow([lambda r=r: r(place) for r in READERS], published, move)
    assert len(counts) == len(READERS)
    latest = enter(root, "prod")
    snapshot = latest.ledger.manifests.find_snapshot("prod", latest.project.persisted[0].build_id)
    assert snapshot is not None
    assert latest.ledger.published.fetch("prod")[place].build_uid == snapshot.build_uid
