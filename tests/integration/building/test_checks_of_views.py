"""Checks of views: run when a build reads their rows, over the data that the build reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.core.errors import CheckFailedError
from persist_assets.operations.environments import promote

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
SETTINGS = 'environment = "dev"\n[env.prod]\n'
RAW = "CREATE TABLE t USING parquet LOCATION 'raw/t';\nCREATE TABLE c USING parquet LOCATION 'raw/c';\n"  # fmt: skip
READERS = """
--@ persist
CREATE VIEW r AS SELECT a FROM v WHERE a > 1;
--@ persist
CREATE VIEW s AS SELECT b FROM v;
"""


def view(check: str = "", query: str = "SELECT a, b FROM t") -> str:
    return (f"--@ check {{ {check} }}\n" if check else "") + f"CREATE VIEW v AS {query};\n"


def put(root: Path, name: str = "t", **columns: list[Any]) -> None:
    path = root / "raw" / name / "p.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".new")
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that starts a new run, with its builder, of a project of SQL."""

    def builder(sql: str, root: Path | None = None) -> Builder:
        if root is None:
            root = make_project({"m.sql": RAW})
            (root / "persist.toml").write_text(SETTINGS)
            put(root, a=[1, 2, 3], b=["x", "y", "x"])
            put(root, "c", code=["x", "y"])
        (root / "sources" / "m.sql").write_text(RAW + sql)
        return enter(root)

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def results(builder: Builder, name: str = "r") -> dict[str, CheckResult]:
    """Build a source; return the results of its checks, published or not."""
    try:
        build = builder.build(named(builder, name))
    except CheckFailedError as error:
        return {r.name: r for r in error.results}
    assert build.snapshot is not None
    return {r.name: r for r in builder.ledger.builds.fetch_checks(build.snapshot.build_uid)}


def audited(builder: Builder) -> list[str]:
    """Return a list that collects the names of the views whose rows are checked."""
    names: list[str] = []
    audit = builder.engine.audit
    builder.engine.audit = lambda f, c, n: names.append(n) or audit(f, c, n)  # pyright: ignore
    return names


@pytest.mark.proves("W22")
def test_a_failed_blocking_check_of_a_view_blocks_publication_of_its_readers(make: Make) -> None:
    builder = make(view("expr { small='a < 3' } not_null=b { severity=warn }") + READERS)
    root, key = builder.settings.root, named(builder, "v").key
    with pytest.raises(CheckFailedError) as caught:
        builder.build(named(builder, "r"))
    assert str(caught.value) == (
        "sources/m.sql:7:13: `r` reads rows that failed m/v:expr_small (1 rows); "
        'it was not published\n    m/v:expr_small: {"a": 3, "b": "x"}'
    )
    assert json.loads(caught.value.results[0].sample[0]) == {"a": 3, "b": "x"}
    assert builder.ledger.manifests.fetch("dev") == {}
    # A row that `r` itself does not read fails it too: the view is checked as a whole.
    put(root, a=[2, None], b=[None, "y"])
    strict = make(view("not_null=a") + READERS, root)
    assert not results(strict)[f"{key}:not_null_a"].passed
    warning = make(view("expr { small='a < 3' } not_null=b { severity=warn }") + READERS, root)
    found = results(warning)
    assert {n: (r.passed, r.blocking, r.failed_rows) for n, r in found.items()} == {
        "m/v:expr_small": (True, True, 0),
        "m/v:not_null_b": (False, False, 1),
    }
    assert found["m/v:not_null_b"].definition == "b not null in m/v"


@pytest.mark.proves("W22")
def test_a_view_is_checked_once_per_run_and_rechecked_when_its_rows_change(make: Make) -> None:
    sql = view("unique=a not_null=b relationship { b='c.code' }") + READERS
    first = make(sql)
    root, names = first.settings.root, audited(first)
    assert [first.build(named(first, n)).action for n in "rs"] == ["built", "built"]
    assert names == ["v"]
    again = make(sql, root)
    names = audited(again)
    assert [again.build(named(again, n)).action for n in "rs"] == ["reused", "reused"]
    assert names == [], "the same rows, checked before"
    put(root, "c", code=["x"])
    others = make(sql, root)
    names = audited(others)
    assert not results(others)["m/v:relationship_b"].passed
    assert names == ["v"]
    # Rows that `r` does not read have changed.
    put(root, "c", code=["x", "y"])
    put(root, a=[1, 2, 3, 0, 0], b=["x", "y", "x", "x", "x"])
    changed = make(sql, root)
    assert results(changed)["m/v:unique_a"].failed_rows == 2


@pytest.mark.proves("W22")
def test_an_edited_check_of_a_view_runs_on_built_tables_without_a_rebuild(make: Make) -> None:
    before = make(view() + READERS)
    root = before.settings.root
    build_ids = [s.build_id for s in before.project.sources]
    assert before.build(named(before, "r")).action == "built"
    edited = make(view("expr='a < 9'") + READERS, root)
    assert [s.build_id for s in edited.project.sources] == build_ids
    r = named(edited, "r")
    decided, _ = promote(edited, "prod", [r.source_id])
    assert [x.reason for x in decided.refused] == [
        "its table has not passed these checks: a < 9 in m/v"
    ]
    assert edited.build(r).action == "reused"
    decided, change = promote(edited, "prod", [r.source_id])
    assert (decided.refused, change is not None) == ((), True)
    bad = make(view("expr='a < 3'") + READERS, root)
    with pytest.raises(CheckFailedError, match=r"failed m/v:expr \(1 rows\)"):
        bad.build(named(bad, "r"))
    assert named(bad, "r").build_id in bad.ledger.manifests.fetch("dev"), "it stays published"


def test_checks_of_nested_views_and_inline_sources_run(make: Make) -> None:
    sql = view("expr='a < 3'") + "CREATE VIEW w AS SELECT a FROM v;\n"
    inline = "--@ persist\nCREATE VIEW p AS SELECT a FROM w;\n"
    top = "--@ persist\nCREATE VIEW r AS SELECT a + 1 AS a FROM p;\n"
    builder = make(sql + inline + top)
    assert not results(builder)["m/v:expr"].passed, "`p` has no table"
    put(builder.settings.root, a=[1], b=["x"])
    good = make(sql + inline + top, builder.settings.root)
    assert results(good, "p")["m/v:expr"].passed
    assert results(good) == {}, "`r` reads the table of `p`"


def test_a_view_over_a_temporary_table_is_checked_over_its_rows(make: Make) -> None:
    sql = """
--@ persist materialized=temporary
CREATE VIEW tmp AS SELECT a + 1 AS a FROM t;
--@ check { range { a { max=3 } } }
CREATE VIEW v AS SELECT a FROM tmp;
--@ persist
CREATE VIEW r AS SELECT a FROM v;
"""
    assert results(make(sql))["m/v:range_a"].failed_rows == 1
