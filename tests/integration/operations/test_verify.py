"""`persist verify` compares tables with rows recomputed from the same data."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SPARK_TOML
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from persist_assets.building.builder import Builder
from persist_assets.cli import app, err
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Taint
from persist_assets.operations.gc import collect
from persist_assets.operations.verify import Verification, verify

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = """
CREATE TABLE d (day DATE, k STRING, x DOUBLE) USING delta LOCATION 'raw/d';
--@ persist
CREATE VIEW plain AS SELECT k, CAST(x AS INT) AS n, map('k', array(1, 2)) AS m FROM d;
--@ persist refresh=incremental watermark=day
CREATE VIEW added AS SELECT day, k, x FROM d;
--@ persist refresh=incremental watermark=day
--@ check { unique=[day, k] }
CREATE VIEW sums AS SELECT day, k, sum(x) AS s, count(*) AS n FROM d GROUP BY day, k;
--@ persist refresh=incremental watermark=day merge_key=k
CREATE VIEW latest AS SELECT k, day FROM d;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-02-01"
CREATE VIEW daily AS SELECT day, count(*) AS n FROM d GROUP BY day;
--@ persist
CREATE VIEW above AS SELECT day, sum(n) AS n FROM sums GROUP BY day;
--@ persist materialized=view
CREATE VIEW stored AS SELECT k, day FROM d WHERE k IS NOT NULL;
--@ persist
CREATE VIEW on_stored AS SELECT k, count(*) AS n FROM stored GROUP BY k;
--@ persist
CREATE VIEW dice AS SELECT k, rand() AS r FROM d;
--@ persist
CREATE VIEW on_dice AS SELECT k, max(r) AS r FROM dice GROUP BY k;
--@ persist
CREATE VIEW at AS SELECT k, current_timestamp() AS at FROM d;
--@ persist
CREATE VIEW today AS SELECT k, current_date() AS day FROM d;
--@ persist refresh=snapshot key=k
CREATE VIEW versions AS SELECT DISTINCT k FROM d WHERE k IS NOT NULL;
"""
EQUAL = (
    "plain", "added", "sums", "latest", "daily", "above", "on_stored", "on_dice", "today",
)  # fmt: skip


def rows(*days: int) -> pa.Table:
    """Return rows of days of January: some are equal, some have NULLs."""
    table = {"day": [], "k": [], "x": []}
    for day in days:
        for k, x in (("a", 0.5), ("a", 0.5), ("b", 2.25), (None, 1.0), (None, None)):
            for name, value in (("day", date(2024, 1, day)), ("k", k), ("x", x)):
                table[name].append(value)
    kinds = pa.schema([("day", pa.date32()), ("k", pa.string()), ("x", pa.float64())])
    return pa.table(table, schema=kinds)


def put(root: Path, *days: int, mode: Any = "append") -> None:
    write_deltalake(str(root / "raw" / "d"), rows(*days), mode=mode)


class Lab:
    """A project whose tables are built and verified."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark = root, spark
        self.settings = load_settings(root)
        self.ledger = Ledger(self.settings.ledger)
        self.engine = SparkEngine(self.settings, lambda: spark)

    def build(self, *names: str, clock: Any = lambda: datetime.now(UTC), **options: Any) -> None:
        builder = Builder(self.settings, self.project, self.ledger, self.engine, clock=clock)
        for source in builder.project.persisted:
            if not names or source.name in names:
                builder.build(source, **options)
        builder.close()

    @property
    def project(self) -> Any:
        return require(load_project(self.settings))

    def verify(self, *names: str, sample: int = 5) -> dict[str, Verification]:
        selected = [s for s in self.project.persisted if not names or s.name in names]
        done = verify(
            self.settings,
            self.project,
            self.ledger,
            self.engine,
            [s.source_id for s in selected],
            sample=sample,
        )
        return {v.source.name: v for v in done}

    def statuses(self, *names: str) -> dict[str, str]:
        return {name: v.status for name, v in self.verify(*names).items()}

    def files(self, name: str) -> list[Path]:
        """Return the files of a table, in order."""
        source = next(s for s in self.project.persisted if s.name == name)
        snapshot = self.ledger.manifests.fetch(*self.settings.environments)[source.build_id]
        table = DeltaTable(self.settings.table_root(snapshot.table), version=snapshot.version)
        root = self.root / self.settings.table_root(snapshot.table)
        return sorted(root / path.rpartition(f"{root.name}/")[2] for path in table.file_uris())

    def cli(self, *arguments: str) -> Any:
        """Run the command in the session of this process."""
        try:
            return CliRunner().invoke(app, ["--project", str(self.root), "verify", *arguments])
        finally:
            err.file = None  # type: ignore[assignment]  # its runner is closed


def tamper(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Replace a file of a table by one of the same size with changed rows."""
    table, size = pq.read_table(path), path.stat().st_size
    changed = pa.Table.from_pylist(change(table.to_pylist()), table.schema)
    length = 0
    for _ in range(4):  # until the padding makes the sizes equal
        with pq.ParquetWriter(path, changed.schema, compression="zstd", store_schema=False) as file:
            file.write_table(changed)
            file.add_key_value_metadata({"pad": "x" * length})
        length += size - path.stat().st_size
    assert path.stat().st_size == size
    crc = path.with_name(f".{path.name}.crc")
    crc.unlink(missing_ok=True)  # Hadoop would notice a change of a local file


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    """A project with tables that were updated incrementally."""
    root = tmp_path_factory.mktemp("built") / "project"
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text(SPARK_TOML)
    (root / "sources" / "m.sql").write_text(SOURCES)
    put(root, 1, 2)
    lab = Lab(root, spark)
    lab.build()
    put(root, 2, 3)
    lab.build()
    lab.ledger.close()
    return root


@pytest.fixture
def lab(built: Path, tmp_path: Path, spark: Any) -> Any:
    shutil.copytree(built, tmp_path / "project")
    lab = Lab(tmp_path / "project", spark)
    yield lab
    lab.ledger.close()


def state_of(root: Path) -> dict[str, tuple[int, str]]:
    """Return everything below a directory that a verification must not change."""
    state: dict[str, tuple[int, str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "spark.log" and "ledger.db" not in path.name:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            state[path.relative_to(root).as_posix()] = (path.stat().st_mtime_ns, content)
    return state


@pytest.mark.slow
@pytest.mark.proves("S32")
def test_verify_finds_tables_equal_and_writes_nothing(lab: Lab) -> None:
    assert any("warehouse" in name for name in state_of(lab.root))
    before, events = state_of(lab.root), lab.ledger.events.fetch(limit=10_000)
    manifest = lab.ledger.manifests.fetch(*lab.settings.environments)
    verifications = lab.verify()
    skipped = {n: v.reason for n, v in verifications.items() if v.status == "skipped"}
    assert {n for n, v in verifications.items() if v.status == "equal"} == {*EQUAL}
    assert skipped == {
        "stored": "it is a stored query, which readers compute",
        "dice": "it is nondeterministic: each build may return other rows",
        "at": "it reads the clock, and the instant of its build is past",
        "versions": "it keeps a history, which depends on all earlier builds",
    }
    assert len(verifications) == len(EQUAL) + len(skipped)
    # The tables were updated incrementally: they contain files of both builds.
    assert len({path.parent for path in lab.files("added")}) == 2
    assert lab.ledger.events.fetch(limit=10_000) == events
    assert lab.ledger.manifests.fetch(*lab.settings.environments) == manifest
    assert lab.ledger.builds.fetch_under_way() == []
    assert state_of(lab.root) == before

    # A changed Delta table is read at the version that the tables were built from.
    put(lab.root, 4)
    assert {n for n, status in lab.statuses().items() if status == "equal"} == {*EQUAL}
    put(lab.root, 9, mode="overwrite")
    assert {n for n, status in lab.statuses().items() if status == "equal"} == {*EQUAL}
    done = lab.cli("plain", "dice", "--json")
    assert done.exit_code == 0
    assert [s["status"] for s in json.loads(done.stdout)["sources"]] == ["equal", "skipped"]

    # The earlier version is gone: only tables that do not read it can still be compared.
    DeltaTable(lab.root / "raw" / "d").vacuum(0, dry_run=False, enforce_retention_duration=False)
    verifications = lab.verify()
    assert {n for n, v in verifications.items() if v.status == "equal"} == {"above", "on_dice"}
    added = verifications["added"]
    assert added.reason is not None
    assert added.reason.startswith("the data of `m/d` that it was computed from is gone: ")
    assert added.hint == "build it first: persist build m/added"


def edit(**values: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return a change of the values of a file's first row."""
    return lambda rows: [{**rows[0], **values}, *rows[1:]]


@pytest.mark.slow
@pytest.mark.proves("S32")
def test_a_changed_table_is_reported_with_counts_columns_and_samples(lab: Lab) -> None:
    path = lab.files("sums")[-1]
    first = pq.read_table(path).to_pylist()[0]
    tamper(path, edit(s=99.5))
    (sums,) = lab.verify("sums").values()
    assert (sums.status, sums.reason) == ("different", None)
    difference = sums.difference
    assert difference is not None
    assert (difference.removed, difference.added, difference.columns) == (1, 1, {"s": 1})
    assert difference.removed_rows == ({**first, "s": 99.5},)
    assert difference.added_rows == (first,)

    # One row is replaced by a copy of another one.
    path = lab.files("plain")[0]
    whole = pq.read_table(path).to_pylist()
    a = next(n for n, row in enumerate(whole) if row["k"] == "a")
    b = next(n for n, row in enumerate(whole) if row["k"] == "b")
    tamper(path, lambda rows: [rows[a] if n == b else row for n, row in enumerate(rows)])
    (plain,) = lab.verify("plain", sample=0).values()
    difference = plain.difference
    assert difference is not None
    assert (plain.status, difference.removed, difference.added) == ("different", 1, 1)
    assert (difference.columns, difference.removed_rows) == ({}, ())

    # A reader of the table is skipped: the rows that it was computed from are gone.
    tamper(lab.files("sums")[-1], edit(n=77))
    above = lab.verify("above")["above"]
    assert above.status == "skipped"
    assert above.reason == (
        "the table of `m/sums`, which it reads, no longer has the published rows"
    )

    done = lab.cli("sums", "plain", "dice", "--json", "--sample", "1")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert [s["status"] for s in document["sources"]] == ["different", "different", "skipped"]
    one = document["sources"][1]
    assert (one["only_in_table"], one["only_computed"]) == (1, 1)
    assert one["columns"] == {"s": 1, "n": 1}
    assert one["samples"] == {
        "only_in_table": [{**first, "day": first["day"].isoformat(), "s": 99.5, "n": 77}],
        "only_computed": [{**first, "day": first["day"].isoformat()}],
    }
    printed = lab.cli("sums", "dice")
    assert printed.exit_code == 1
    lines = [" ".join(line.split()) for line in printed.stdout.splitlines()]
    assert lines[1:3] == [
        "sums@sources/m.sql different 9 rows: 1 only in the table, 1 only computed;"
        " columns: s (1), n (1)",
        "dice@sources/m.sql skipped 20 it is nondeterministic: each build may return other rows",
    ]
    assert lines[4] == "sums@sources/m.sql: - only in the table, + only computed"
    assert lines[-1] == "2 sources: 1 different, 1 skipped"


@pytest.mark.slow
def test_differences_in_the_last_digits_of_doubles_are_rounding(lab: Lab) -> None:
    path = lab.files("sums")[-1]
    before = pq.read_table(path).to_pylist()
    value = next(row["s"] for row in before if row["s"])

    def scaled(by: float) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
        return lambda _: [{**row, "s": row["s"] and row["s"] * by} for row in before]

    tamper(path, scaled(1 + 1e-12))
    (sums,) = lab.verify("sums").values()
    assert sums.status == "rounding"
    assert sums.difference is not None
    assert sums.difference.rounding == pytest.approx(1e-12, rel=1e-3)
    assert lab.cli("sums").exit_code == 0
    tamper(path, scaled(1 + 1e-8))
    assert lab.statuses("sums") == {"sums": "different"}
    assert value


@pytest.mark.slow
def test_an_error_in_one_source_does_not_hide_other_results(lab: Lab) -> None:
    for path in lab.files("added"):
        path.unlink()
    verifications = lab.verify("added", "sums")
    assert [v.status for v in verifications.values()] == ["failed", "equal"]
    assert "is gone" in (verifications["added"].reason or "")
    assert lab.cli("added", "sums").exit_code == 6
    tamper(lab.files("sums")[-1], edit(s=99.5))
    assert lab.cli("added", "sums").exit_code == 1
    unknown = lab.cli("sum", "--json")
    assert unknown.exit_code == 4
    assert json.loads(unknown.stdout)["error"]["code"] == "NotFoundError"


# -------------------------------------------------------------------------------- data that is read


@pytest.fixture
def make(make_project: Callable[..., Path], spark: Any) -> Any:
    """Return a function that makes a project of one file."""
    labs: list[Lab] = []

    def start(text: str) -> Lab:
        labs.append(Lab(make_project({"m.sql": text}), spark))
        return labs[-1]

    yield start
    for lab in labs:
        lab.ledger.close()


FILES = """
CREATE TABLE f (a BIGINT, b STRING) USING parquet LOCATION 'raw/f';
--@ persist
CREATE VIEW p AS SELECT a, upper(b) AS b FROM f;
--@ persist
CREATE VIEW q AS SELECT a, count(*) AS n FROM p GROUP BY a;
"""


def put_file(root: Path, name: str, *values: int) -> None:
    path = root / "raw" / "f" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"a": pa.array(values, pa.int64()), "b": [str(v) for v in values]}
    pq.write_table(pa.table(table), path)


@pytest.mark.slow
@pytest.mark.proves("S32")
def test_tables_are_compared_with_the_data_they_were_built_from(make: Callable[..., Lab]) -> None:
    lab = make(FILES)
    put_file(lab.root, "1", 1, 2)
    lab.build("q")  # p has no table yet, so q is computed from f
    assert lab.verify("p")["p"].reason == "it is not built in `dev`"
    assert lab.statuses("q") == {"q": "equal"}
    lab.build()
    assert lab.statuses() == {"p": "equal", "q": "equal"}

    # Plain files keep no earlier versions; the table of p does.
    lab.build(force=True)
    put_file(lab.root, "2", 3)
    verifications = lab.verify()
    assert verifications["p"].reason == (
        "the data of `m/f` that it was computed from is gone:"
        " it has changed, and only Delta tables keep earlier versions"
    )
    assert verifications["p"].hint == "build it first: persist build m/p"
    assert [v.status for v in verifications.values()] == ["skipped", "equal"]
    lab.build("p")
    assert lab.statuses() == {"p": "equal", "q": "equal"}

    # A column changes that q does not read: q is still compared with its input.
    path = lab.root / "sources" / "m.sql"
    path.write_text(FILES.replace("upper(b)", "lower(b)"))
    assert lab.statuses() == {"p": "skipped", "q": "equal"}
    lab.build("p")
    assert lab.statuses() == {"p": "equal", "q": "equal"}

    later = datetime.now(UTC) + timedelta(days=400)
    collect(lab.settings, lab.project, lab.ledger, clock=lambda: later)
    verifications = lab.verify()
    assert [v.status for v in verifications.values()] == ["equal", "skipped"]
    assert verifications["q"].reason == (
        "the rows of `m/p` that it was computed from were collected"
    )
    shutil.rmtree(lab.root / "raw" / "f")
    assert "there is no data" in (lab.verify("p")["p"].reason or "")


DAILY = """
CREATE TABLE d (day DATE, k STRING, x DOUBLE) USING delta LOCATION 'raw/d';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW daily AS SELECT day, k, count(*) AS n FROM d GROUP BY day, k;
"""


@pytest.mark.slow
def test_each_partition_is_compared_at_the_version_it_was_built_from(
    make: Callable[..., Lab],
) -> None:
    lab = make(DAILY)
    put(lab.root, 1)
    lab.build(keys=["2024-01-01"])
    put(lab.root, 2, 3, mode="overwrite")
    lab.build(keys=["2024-01-02"])
    assert lab.statuses() == {"daily": "equal"}
    put(lab.root, 2)
    assert lab.statuses() == {"daily": "equal"}

    # A row outside the built partitions is a difference.
    path = lab.files("daily")[0]
    before = path.read_bytes()
    tamper(path, edit(day=date(2024, 1, 4)))
    daily = lab.verify()["daily"]
    assert daily.difference is not None
    assert (daily.status, daily.difference.removed, daily.difference.added) == ("different", 1, 1)
    path.write_bytes(before)

    # The data of the first partition is gone: the other one can still be compared.
    DeltaTable(lab.root / "raw" / "d").vacuum(0, dry_run=False, enforce_retention_duration=False)
    daily = lab.verify()["daily"]
    assert daily.status == "equal"
    assert daily.reason is not None
    assert daily.reason.startswith("not compared: partitions 2024-01-01 (the data of `m/d` ")
    (snapshot,) = lab.ledger.manifests.fetch("dev").values()
    tainted = Taint({}, {snapshot.build_uid: ["2024-01-02"]})
    lab.ledger.taints.record(["dev"], lambda *_: tainted, by="me")
    daily = lab.verify()["daily"]
    assert (daily.status, daily.reason) == ("skipped", "its table is tainted, so nothing reads it")


KINDS = """
CREATE TABLE d (day DATE, k STRING, x DOUBLE) USING delta LOCATION 'raw/d';
--@ persist
CREATE VIEW today AS SELECT k, current_date() AS day FROM d;
--@ persist refresh=incremental watermark=day on_change=continue
CREATE VIEW added AS SELECT day, k FROM d;
--@ persist refresh=incremental watermark=day assume=exact
CREATE VIEW trusting AS SELECT DISTINCT day, k, dense_rank() OVER (ORDER BY k) AS rank FROM d;
--@ persist
CREATE VIEW plain AS SELECT k FROM d;
"""


@pytest.mark.slow
def test_tables_that_cannot_be_compared_are_skipped_with_a_reason(make: Callable[..., Lab]) -> None:
    lab = make(KINDS)
    put(lab.root, 1, 5)
    lab.build(clock=lambda: datetime(2024, 1, 14, 12, tzinfo=UTC))
    put(lab.root, 3, 6)  # the third day is late
    (lab.root / "sources" / "m.sql").write_text(
        KINDS.replace("SELECT day, k FROM d;", "SELECT day, upper(k) AS k FROM d;")
    )
    lab.build("added", "trusting")
    mark = lab.ledger.manifests.fetch("dev")
    plain = next(s for s in lab.project.persisted if s.name == "plain")
    uid = mark[plain.build_id].build_uid
    lab.ledger.taints.record(["dev"], lambda *_: Taint({}, {uid: [""]}), by="me")
    verifications = lab.verify()
    assert {n: (v.status, v.reason) for n, v in verifications.items()} == {
        "today": ("skipped", "it reads the date, and was computed on 2024-01-14"),
        "added": (
            "skipped",
            "some of its rows were computed by an older definition (on_change=continue)",
        ),
        "trusting": ("different", "assume=exact: rows that arrived late are not in the table"),
        "plain": ("skipped", "its table is tainted, so nothing reads it"),
    }
    trusting = verifications["trusting"].difference
    assert trusting is not None
    assert (trusting.removed, trusting.added) == (0, 3)
    lab.build("added", force=True)
    assert lab.statuses("added") == {"added": "equal"}


LOADED = """
from persist_assets import source, table
from pyspark.sql import SparkSession

@source
def numbers(spark: SparkSession):
    return spark.createDataFrame([(1,)], "a INT")

@table
def loaded(numbers):
    return numbers
"""


def test_data_without_versions_is_not_compared(make: Callable[..., Lab]) -> None:
    lab = make("CREATE TABLE f (a BIGINT, b STRING) USING parquet LOCATION 'raw/f';")
    (lab.root / "sources" / "loaded.py").write_text(LOADED)
    lab.build()
    assert {n: v.reason for n, v in lab.verify().items()} == {
        "loaded": "`loaded/numbers` has no versions, so it may have other rows by now"
    }


EXTERNAL = """
create external table events (id bigint not null primary key, category string)
with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "lake"}}
}]');
--@ persist
create view invoices as select id from events where category = 'invoices';
--@ persist
create view loans as select id from events where category = 'loans';
"""


@pytest.mark.slow
def test_external_tables_are_read_from_their_copies(make: Callable[..., Lab]) -> None:
    lab = make(EXTERNAL)

    def put_events(category: str, *ids: int) -> None:
        table = {"id": pa.array(ids, pa.int64()), "category": [category] * len(ids)}
        write_deltalake(str(lab.root / "lake"), pa.table(table), mode="append")

    put_events("invoices", 1, 2)
    put_events("loans", 3)
    lab.build()
    put_events("invoices", 4)
    events = lab.ledger.events.fetch(limit=10_000)
    assert lab.statuses() == {"invoices": "equal", "loans": "equal"}
    shutil.move(lab.root / "lake", lab.root / "away")  # the external table itself is not read
    assert lab.statuses() == {"invoices": "equal", "loans": "equal"}
    assert lab.ledger.events.fetch(limit=10_000) == events
    shutil.move(lab.root / "away", lab.root / "lake")
    # The copy is updated: its rows change for one reader, but not for the other.
    lab.build("loans")
    invoices, loans = lab.verify().values()
    assert (invoices.status, loans.status) == ("skipped", "equal")
    assert invoices.reason == "the copy of `m/events` has other rows than it was computed from"
    lab.build()
    assert lab.statuses() == {"invoices": "equal", "loans": "equal"}
