"""Tables older than their freshness window: what readers get with each `fallback`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import BuildError, StaleError, StrictError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist freshness { window="1h" fallback=FALLBACK }
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist freshness { window="10h" fallback=fail }
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""
HOUR = timedelta(hours=1)


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


class At:
    """A run with its own start time."""

    def __init__(
        self,
        root: Path,
        make_engine: MakeEngine,
        later: timedelta,
        environment: str = "dev",
        **more: Any,
    ) -> None:
        settings = load_settings(root, environment=environment)
        self.ledger = Ledger(settings.ledger)
        self.now = datetime.now(UTC) + later
        self.builder = Builder(
            settings,
            require(load_project(settings)),
            self.ledger,
            make_engine(settings),
            clock=lambda: self.now,
            **more,
        )

    def source(self, name: str) -> Any:
        return self.builder.project.by_id[f"{name}@sources/m.sql"]

    def build(self, *names: str) -> list[str]:
        return [self.builder.build(self.source(n)).action for n in names]

    def rows(self, name: str) -> list[int]:
        return sorted(row[0] for row in self.builder.read(self.source(name)).collect())

    def why(self, *names: str) -> list[list[tuple[str, str]]]:
        steps = self.builder.plan([self.source(n).source_id for n in names]).steps
        return [[(r.code, r.message) for r in s.reasons] for s in steps]


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def at(make_project: Callable[..., Path], make_engine: MakeEngine) -> Iterator[Callable[..., At]]:
    made: list[At] = []
    roots: dict[str, Path] = {}

    def start(kind: str, later: timedelta, sources: str = SOURCES, **more: Any) -> At:
        if kind not in roots:
            roots[kind] = make_project({"m.sql": sources.replace("FALLBACK", kind)}, name=kind)
            write(roots[kind], [1, 2])
        made.append(At(roots[kind], make_engine, later, **more))
        return made[-1]

    yield start
    for one in made:
        one.ledger.close()


def root_of(one: At) -> Path:
    return one.builder.settings.root


def test_fallback_live_computes_the_query_of_a_table_that_is_too_old(at: Callable[..., At]) -> None:
    first = at("live", 0 * HOUR)
    first.build("p", "q")
    write(root_of(first), [5])
    assert at("live", 0.5 * HOUR).rows("p") == [2, 3], "young enough"
    old = at("live", 2 * HOUR)
    assert old.rows("p") == [6]
    assert old.why("q") == [
        [
            ("input", "the data of t changed"),
            ("age", "the table of p is older than its freshness window: its query is computed"
             " instead"),
        ]
    ]  # fmt: skip
    assert old.build("q") == ["built"]
    assert old.rows("q") == [6]
    assert at("live", 2 * HOUR).why("p", "q") == [
        [("age", "its table is older than its freshness window"), ("input", "the data of t changed")],
        [],
    ]  # fmt: skip


def test_fallback_stale_ok_reads_a_table_that_is_too_old_with_a_warning(
    at: Callable[..., At], caplog: pytest.LogCaptureFixture
) -> None:
    first = at("stale_ok", 0 * HOUR)
    first.build("p")
    write(root_of(first), [5])
    caplog.set_level(logging.WARNING)
    assert at("stale_ok", 0.5 * HOUR).rows("p") == [2, 3]
    assert caplog.text == ""
    old = at("stale_ok", 2 * HOUR)
    assert old.rows("p") == [2, 3]
    assert "the table of `p` is stale" in caplog.text
    assert "it is read as it is" in caplog.text
    assert [code for code, _ in old.why("q")[0]] == ["new", "age"]
    assert old.build("q") == ["built"]
    assert old.rows("q") == [5]
    assert at("stale_ok", 2 * HOUR, fallback="live").rows("p") == [6], "as the reader wants it"


def test_fallback_fail_rejects_reads_of_a_table_that_is_too_old(at: Callable[..., At]) -> None:
    first = at("fail", 0 * HOUR)
    first.build("p", "q")
    old = at("fail", 2 * HOUR)
    with pytest.raises(StaleError, match="`p` is stale: it is as of"):
        old.rows("p")
    write(root_of(first), [5])
    older = at("fail", 2 * HOUR)
    assert older.build("p", "q") == ["built", "built"], "building it makes it young"
    oldest = at("fail", 4 * HOUR)
    with pytest.raises(BuildError, match="`p` is stale"):
        oldest.builder.build(oldest.source("q"), force=True)
    assert oldest.rows("q") == [6], "what was built of it is another matter"


def test_a_table_is_as_old_as_its_oldest_input(at: Callable[..., At]) -> None:
    at("fail", -12 * HOUR).build("p")
    at("fail", -0.5 * HOUR, fallback="stale_ok").build("q")
    with pytest.raises(StaleError, match="`q` is stale"):
        at("fail", 0 * HOUR).rows("q")
    # Finding no changes is enough to make the tables fresh again.
    now = at("fail", 0 * HOUR)
    assert now.build("p", "q") == ["reused", "reused"]
    assert now.rows("p") == [2, 3]
    assert now.rows("q") == [5]


def test_strict_mode_rejects_computing_a_stale_input_inline(at: Callable[..., At]) -> None:
    first = at("live", 0 * HOUR)
    first.build("p")
    toml = root_of(first) / "persist.toml"
    toml.write_text("strict = true\n" + toml.read_text())
    with pytest.raises(StrictError, match="m/p"):
        at("live", 2 * HOUR).build("q")


UNVERSIONED = """
CREATE TABLE r (a BIGINT) USING jdbc OPTIONS (url 'jdbc:derby:memory:FALLBACK;create=true',
  dbtable '(VALUES 1, 2) AS v(a)', driver 'org.apache.derby.iapi.jdbc.AutoloadedDriver');
--@ persist freshness.window="1h"
CREATE VIEW p AS SELECT a + 1 AS a FROM r;
--@ persist
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("M12")
def test_unversioned_data_is_reread_once_its_table_is_too_old(
    at: Callable[..., At],
) -> None:
    assert at("jdbc", 0 * HOUR, UNVERSIONED).build("p", "q") == ["built", "built"]
    young = at("jdbc", 0.5 * HOUR)
    assert young.why("p", "q") == [[], []]
    assert young.build("p", "q") == ["reused", "reused"]
    old = at("jdbc", 1.2 * HOUR)  # no run has read the data since
    assert old.why("p") == [
        [
            ("age", "its table is older than its freshness window"),
            ("unversioned", "it is unknown whether the data of r changed"),
        ]
    ]
    assert old.build("p", "q") == ["built", "reused"]


def test_a_build_records_the_version_it_read_if_the_input_expires_meanwhile(
    at: Callable[..., At],
) -> None:
    first = at("live", 0 * HOUR)
    first.build("p")
    write(root_of(first), [5])
    late = at("live", 0.9 * HOUR)
    record_started = late.ledger.builds.record_started

    def slowly(*arguments: Any, **more: Any) -> None:  # the build is planned but has read nothing
        late.now += 0.2 * HOUR
        record_started(*arguments, **more)

    late.ledger.builds.record_started = slowly  # type: ignore[method-assign]
    late.build("q")
    p, q = (late.builder.observer.manifest()[late.source(n).build_id] for n in "pq")
    assert q.as_of == p.as_of
    assert q.inputs[0].version == f"content:{p.content}"
    assert late.rows("q") == [5]


DEEP = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW unbuilt AS SELECT a * 2 AS a FROM p;
--@ persist freshness { window="1h" fallback=FALLBACK }
CREATE VIEW q AS SELECT sum(a) AS s FROM unbuilt;
"""


def test_an_unbuilt_source_computed_inline_is_as_old_as_its_inputs(at: Callable[..., At]) -> None:
    first = at("fail", 0 * HOUR, DEEP)
    first.build("p")
    write(root_of(first), [5])
    late = at("fail", 2 * HOUR)
    assert late.build("q") == ["built"]
    with pytest.raises(StaleError, match="`q` is stale"):
        late.rows("q")


ABOVE = """
CREATE TABLE r (a BIGINT) USING jdbc OPTIONS (url 'jdbc:derby:memory:above;create=true',
  dbtable '(VALUES 1, 2) AS v(a)', driver 'org.apache.derby.iapi.jdbc.AutoloadedDriver');
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM r;
--@ persist freshness { window="1h" fallback=FALLBACK }
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_rereading_unversioned_data_makes_downstream_tables_fresh(
    at: Callable[..., At],
) -> None:
    at("fail", 0 * HOUR, ABOVE).build("p", "q")
    old = at("fail", 2 * HOUR)
    assert old.build("q") == ["reused"], "nobody has looked"
    with pytest.raises(StaleError):
        old.rows("q")
    later = at("fail", 3 * HOUR)
    assert later.build("p", "q") == ["built", "reused"]
    assert later.rows("q") == [5]


INHERITED = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist freshness { window="1h" fallback=FALLBACK }
CREATE VIEW q AS SELECT sum(a) AS s FROM p;
"""


def test_reusing_a_table_of_another_environment_makes_it_fresh(
    make_project: Callable[..., Path], make_engine: MakeEngine
) -> None:
    settings = '[env.prod]\n[env.dev]\nreads = "prod"\n'
    root = make_project({"m.sql": INHERITED.replace("FALLBACK", "fail")}, settings, name="one")
    write(root, [1, 2])
    first = At(root, make_engine, 0 * HOUR, environment="prod")
    first.build("p", "q")
    soon = At(root, make_engine, 0.5 * HOUR)
    assert soon.build("p", "q") == ["reused", "reused"]
    assert soon.ledger.manifests.fetch("dev") == {}, "it need not have it itself"
    old = At(root, make_engine, 2 * HOUR)
    with pytest.raises(StaleError):
        old.rows("q")
    assert old.build("p", "q") == ["reused", "reused"]
    assert old.rows("q") == [5]
    for one in (first, soon, old):
        one.ledger.close()
