"""Sources that are materialized as views or temporary tables."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import BuildError, CheckFailedError, ConflictError, StorageError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import manifest_document
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.gc import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD = "CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';\n"
KEPT = (
    HEAD
    + """
--@ persist
CREATE VIEW base AS SELECT a + 1 AS a FROM t;
--@ persist materialized=STRATEGY
CREATE VIEW mid AS SELECT a * 2 AS Doubled FROM base WHERE a > 0;
--@ persist
CREATE VIEW top AS SELECT sum(doubled) AS s FROM mid;
"""
)


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


class Run:
    """A run of a project."""

    def __init__(self, root: Path, spark: Any, environment: str) -> None:
        settings = load_settings(root, environment=environment)
        ledger = Ledger(settings.ledger)
        project = require(load_project(settings))
        self.builder = Builder(settings, project, ledger, SparkEngine(settings, lambda: spark))
        self.root = root

    def source(self, name: str) -> Any:
        return self.builder.project.by_id[f"{name}@sources/m.sql"]

    def build(self, *names: str) -> list[str]:
        return [self.builder.build(self.source(n)).action for n in names]

    def rows(self, name: str) -> list[Any]:
        return sorted(row[0] for row in self.builder.read(self.source(name)).collect())

    def why(self, *names: str) -> list[list[str]]:
        steps = self.builder.plan([self.source(n).source_id for n in names]).steps
        return [[r.code for r in s.reasons] for s in steps]

    def stored(self, name: str) -> Any:
        return self.builder.observer.manifest()[self.source(name).build_id]

    def files(self, of: str = "*") -> int:
        return len([*self.root.rglob(f".persist/warehouse/{of}/**/*.parquet")])


@pytest.fixture
def run(make_project: Callable[..., Path], spark: Any) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def start(sources: str, environment: str = "dev") -> Run:
        root = make_project({"m.sql": sources})
        if not (root / "raw").exists():
            write(root, [1, 2])
        made.append(Run(root, spark, environment))
        return made[-1]

    yield start
    for one in made:
        one.builder.close()
        one.builder.ledger.close()


def source_text(strategy: str) -> str:
    return KEPT.replace("STRATEGY", strategy)


@pytest.mark.proves("M11")
@pytest.mark.parametrize("strategy", ["table", "view", "temporary"])
def test_all_materializations_return_the_same_rows(run: Callable[..., Run], strategy: str) -> None:
    now = run(source_text(strategy))
    names = ["base", "top"] if strategy == "temporary" else ["base", "mid", "top"]
    assert [s.name for s in now.builder.project.persisted] == names
    now.build(*names)
    assert (now.rows("mid"), now.rows("top")) == ([4, 6], [10])
    assert now.builder.read(now.source("mid")).columns == ["Doubled"]
    assert now.why(*names) == [[]] * len(names)
    assert now.files("mid-*") == (1 if strategy == "table" else 0)
    write(now.root, [5])
    later = run(source_text(strategy))
    assert later.build(*names) == ["built"] * len(names)
    assert (later.rows("mid"), later.rows("top")) == ([12], [12])


# ------------------------------------------------------------------------------------------- views


def test_a_view_reads_the_table_versions_of_its_build(run: Callable[..., Run]) -> None:
    run(source_text("view")).build("base", "mid")
    write(run(source_text("view")).root, [5])
    now = run(source_text("view"))
    now.build("base")
    assert now.rows("base") == [6]
    assert now.rows("mid") == [4, 6], "it reads what was there"
    assert now.why("mid") == [["input"]]
    assert now.build("mid") == ["built"]
    assert now.rows("mid") == [12]
    stored = now.stored("mid")
    assert (stored.rows, stored.bytes, [c.name for c in stored.columns]) == (1, 0, ["Doubled"])
    published = now.builder.ledger.builds.fetch_published("dev")
    document = manifest_document(now.builder.settings, published, {})
    assert set(document["entries"]) == {now.source("base").build_id}


@pytest.mark.slow
def test_a_view_can_read_another_view_and_raw_data(run: Callable[..., Run]) -> None:
    sources = (
        HEAD
        + """
--@ persist materialized=view
CREATE VIEW v AS SELECT a + 1 AS a FROM t;
--@ persist materialized=view
CREATE VIEW w AS SELECT v.a, t.a AS b FROM v JOIN t ON v.a = t.a;
"""
    )
    now = run(sources)
    assert now.build("v", "w") == ["built", "built"]
    assert (now.rows("v"), now.rows("w")) == ([2, 3], [2])
    assert now.files() == 0
    again = run(sources)
    assert again.build("v", "w") == ["reused", "reused"]
    assert again.rows("w") == [2]
    write(now.root, [7])
    later = run(sources)
    with pytest.raises(StorageError, match=r"m/t@.* which the view v-"):
        later.rows("v")
    assert later.build("v", "w") == ["built", "built"]
    assert (later.rows("v"), later.rows("w")) == ([8], [])


@pytest.mark.slow
def test_gc_keeps_table_versions_that_a_view_reads(run: Callable[..., Run]) -> None:
    run(source_text("view")).build("base", "mid")
    write(run(source_text("view")).root, [5])
    now = run(source_text("view"))
    now.build("base")
    b, later = now.builder, datetime.now(UTC) + timedelta(days=8)
    assert collect(b.settings, b.project, b.ledger, clock=lambda: later) == []
    assert run(source_text("view")).rows("mid") == [4, 6]
    run(source_text("view")).build("mid")
    (gone,) = collect(b.settings, b.project, b.ledger, clock=lambda: later)
    assert gone.versions == (0,)
    with pytest.raises(ConflictError, match="is gone"):
        roll_back(b.settings, b.ledger)
    assert run(source_text("view")).rows("mid") == [12]


@pytest.mark.slow
def test_a_view_is_checked_promoted_and_reported_as_missing(run: Callable[..., Run]) -> None:
    sources = source_text("view").replace(
        "=view", "=view check { unique=[doubled] expr='doubled < 100' }"
    )
    now = run(sources)
    now.build("base", "mid", "top")
    prod = [now.source(n).source_id for n in ("base", "mid", "top")]
    promote(now.builder, "prod", prod)
    assert run(sources, "prod").rows("mid") == [4, 6]
    write(now.root, [50])
    later = run(sources)
    later.build("base")
    with pytest.raises(CheckFailedError, match="expr"):
        later.build("mid")
    assert later.rows("mid") == [4, 6]
    for table in (now.root / ".persist/warehouse").glob("base-*"):
        shutil.rmtree(table)
    assert run(sources).why("mid") == [["missing", "failed"]]
    with pytest.raises(StorageError, match="build it again"):
        run(sources).rows("mid")


@pytest.mark.slow
def test_changing_the_strategy_rebuilds_only_that_source(run: Callable[..., Run]) -> None:
    run(source_text("table")).build("base", "mid", "top")
    now = run(source_text("view"))
    assert now.why("base", "mid", "top") == [[], ["strategy"], []]
    assert now.build("mid", "top") == ["built", "reused"]
    assert now.stored("mid").view
    last = run(source_text("table"))
    assert last.why("mid") == [["strategy"]]
    assert last.build("mid", "top") == ["built", "reused"]
    assert (last.stored("mid").view, last.rows("mid")) == (None, [4, 6])


def test_a_view_can_be_parked_and_resumed(run: Callable[..., Run]) -> None:
    now = run(source_text("view"))
    now.build("base")
    parked = now.builder.park(now.source("mid"))
    assert now.build("top") == ["built"]
    with now.builder.resume(parked) as work:
        now.builder.publish(work)
    assert (now.rows("mid"), now.rows("top")) == ([4, 6], [10])


def test_a_parked_source_can_read_parked_views_and_tables(run: Callable[..., Run]) -> None:
    sources = source_text("view") + (
        "--@ persist materialized=view\nCREATE VIEW above AS SELECT doubled + 1 AS b FROM mid;\n"
        "--@ persist\nCREATE VIEW last AS SELECT sum(b) AS s FROM above;\n"
    )
    now = run(sources)
    names = ("base", "mid", "above", "last")
    parked = [now.builder.park(now.source(n)) for n in names]
    for one in parked:
        with now.builder.resume(one) as work:
            now.builder.publish(work)
            assert work is one, "nothing is done twice"
    assert (now.rows("mid"), now.rows("above"), now.rows("last")) == ([4, 6], [5, 7], [12])
    assert run(sources).rows("above") == [5, 7]


JDBC = """
CREATE TABLE r (a BIGINT) USING jdbc OPTIONS (url 'jdbc:derby:memory:views;create=true',
  dbtable '(VALUES 1, 2) AS v(a)', driver 'org.apache.derby.iapi.jdbc.AutoloadedDriver');
--@ persist materialized=view
CREATE VIEW v AS SELECT a + 1 AS a FROM r;
"""


def test_a_view_of_unversioned_data_is_rejected(run: Callable[..., Run]) -> None:
    now = run(JDBC)
    with pytest.raises(BuildError, match="`v` cannot be a view: the data of `r`"):
        now.build("v")


# ------------------------------------------------------------------------------- temporary tables


def test_a_run_computes_a_temporary_table_once_and_then_drops_it(run: Callable[..., Run]) -> None:
    sources = (
        source_text("temporary")
        + "--@ persist\nCREATE VIEW other AS SELECT max(doubled) AS m FROM mid;\n"
    )
    now = run(sources)
    now.build("base")
    written: list[str] = []
    write_files = now.builder.engine.write_files

    def noting(frame: Any, root: str, build_uid: str) -> Any:
        written.append(root.rpartition("/")[2].partition("-")[0])
        return write_files(frame, root, build_uid)

    now.builder.engine.write_files = noting  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(now.build, name) for name in ("top", "other")]
        assert [d.result() for d in done] == [["built"], ["built"]]
    assert sorted(written) == ["mid", "other", "top"]
    assert (now.rows("top"), now.rows("other")) == ([10], [6])
    assert now.files(".temporary") == 1
    b = now.builder
    assert collect(b.settings, b.project, b.ledger) == [], "it is in use"
    now.builder.close()
    assert now.files(".temporary") == 0
    assert run(sources).why("base", "top", "other") == [[], [], []]
    assert run(sources).rows("mid") == [4, 6]


@pytest.mark.proves("S10")
def test_the_temporary_tables_of_a_dead_run_are_collected(run: Callable[..., Run]) -> None:
    now = run(source_text("temporary"))
    now.build("base", "top")
    b = now.builder
    temporary = now.root / ".persist/warehouse/.temporary" / b.ledger.events.log_id()
    directory = next(temporary.iterdir())
    left = now.root / "left"
    shutil.copytree(directory, left)
    now.builder.close()
    shutil.copytree(left, directory)  # as if the run had been killed
    another = temporary.with_name("0" * 32) / directory.name
    shutil.copytree(left, another)
    shutil.copytree(left, temporary / "notes")
    (temporary / ("a" * 32)).symlink_to(left)
    told = collect(b.settings, b.project, b.ledger, dry_run=True)
    assert directory.exists()
    assert collect(b.settings, b.project, b.ledger) == told
    name = f".temporary/{b.ledger.events.log_id()}/{directory.name}"
    assert [(c.table, c.bytes > 0) for c in told] == [(name, True)]
    assert not directory.exists()
    for place in (another, temporary / "notes", temporary / ("a" * 32), left):
        assert [*place.rglob("*.parquet")], f"{place} is none of this ledger's"


def test_the_rows_of_a_temporary_table_are_checked(run: Callable[..., Run]) -> None:
    sources = source_text("temporary").replace("=temporary", "=temporary check.expr='doubled < 5'")
    now = run(sources)
    now.build("base")
    with pytest.raises(CheckFailedError, match="`mid` failed expr"):
        now.build("top")


@pytest.mark.slow
def test_a_view_over_a_temporary_source_enforces_its_checks(
    run: Callable[..., Run],
) -> None:
    sources = source_text("temporary").replace("=temporary", "=temporary check.expr='doubled < 7'")
    sources = sources.replace(
        "--@ persist\nCREATE VIEW top", "--@ persist materialized=view\nCREATE VIEW top"
    )
    now = run(sources)
    assert now.build("base", "top") == ["built", "built"]
    assert (now.rows("top"), now.files("top-*")) == ([10], 0)
    now.builder.close()
    assert now.rows("top") == [10], "it reads what stays"
    write(now.root, [50])
    later = run(sources)
    later.build("base")
    with pytest.raises(CheckFailedError, match="`mid` failed expr"):
        later.build("top")
    assert later.rows("top") == [10]


@pytest.mark.slow
def test_a_check_added_to_a_temporary_source_applies_to_tables_built_from_it(
    run: Callable[..., Run],
) -> None:
    run(source_text("temporary")).build("base", "top")
    good, bad = (
        source_text("temporary").replace("=temporary", f"=temporary check.expr='doubled < {n}'")
        for n in (100, 5)
    )
    now = run(good)
    top = now.source("top").source_id
    decided, change = promote(now.builder, "prod", [now.source("base").source_id, top])
    assert [(r.source_id, r.reason) for r in decided.refused] == [
        (top, "its table has not passed these checks: doubled < 100")
    ]
    assert change is None
    assert now.build("base", "top") == ["reused", "reused"]
    decided, change = promote(now.builder, "prod", [now.source("base").source_id, top])
    assert (decided.refused, change is not None) == ((), True)
    with pytest.raises(CheckFailedError, match="`mid` failed expr"):
        run(bad).build("top")
    assert run(bad).rows("top") == [10], "what was published stays"


@pytest.mark.slow
def test_newer_data_recomputes_the_temporary_table(run: Callable[..., Run]) -> None:
    now = run(source_text("temporary"))
    now.build("base", "top")
    write(now.root, [5])
    other = run(source_text("temporary"))
    other.build("base")
    # The first run continues after another run has rebuilt its upstream table.
    assert now.builder.build(now.source("top"), force=True).action == "built"
    assert now.rows("top") == [12]
