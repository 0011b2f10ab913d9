"""Python functions as sources on a real Spark: their inputs, results and errors."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import views_of, wait_for

from persist_assets.building.scheduler import Pool
from persist_assets.compiler.compile import resolve_query
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.errors import BuildError, CheckFailedError, StorageError, StrictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

IMPORTS = """
from persist_assets import incremental_table, model, source, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
import narwhals as nw
"""
RAW = "CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';\n"


def write(root: Path, rows: list[tuple[int, str]]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".new")
    pq.write_table(pa.table({"a": [r[0] for r in rows], "b": [r[1] for r in rows]}), temporary)
    temporary.replace(path)


@pytest.fixture
def make(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> Callable[..., Builder]:
    """Return a function that starts a run of a project and returns its builder."""

    def builder(
        files: Mapping[str, str] | None = None,
        settings: str = "",
        root: Path | None = None,
        name: str = "project",
        **more: Any,
    ) -> Builder:
        if root is None:
            texts = {k: v for k, v in (files or {}).items() if not k.startswith("/")}
            root = make_project({"raw.sql": RAW, **texts}, settings, name)
            for path, text in (files or {}).items():
                if path.startswith("/"):
                    (root / path[1:]).write_text(text)
            write(root, [(1, "x"), (2, "y"), (3, "x")])
        return enter(root, **more)

    return builder


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in builder.read(named(builder, name)).collect())


def build_all(builder: Builder) -> dict[str, str]:
    """Build every persisted source; return the actions."""
    return {s.name: builder.build(s).action for s in builder.project.persisted}


def query(builder: Builder, sql: str) -> list[tuple[Any, ...]]:
    parsed = parse_query(sql)
    bindings = resolve_query(builder.project, parsed)
    manifest = builder.ledger.manifests.fetch(*builder.settings.environments)
    return sorted(
        tuple(r)
        for r in builder.reader.load(
            *builder.reader.statement(parsed, bindings, manifest)
        ).collect()
    )


def tables(builder: Builder) -> list[str]:
    """Return the tables on disk, without their BuildIDs."""
    warehouse = Path(builder.settings.warehouse)
    return sorted(
        p.name.rpartition("-")[0] for p in warehouse.iterdir() if p.is_dir() and p.name[0] != "."
    )


def failure(builder: Builder, name: str = "f") -> BuildError:
    with pytest.raises(BuildError) as caught:
        builder.build(named(builder, name))
    return caught.value


# ------------------------------------------------------------------------------------- computation

APP = f"""{IMPORTS}
import json
from pathlib import Path

CALLS = Path(__file__).parent.parent / "calls"

@source
def outside(spark: SparkSession):
    with CALLS.open("a") as file:
        file.write("x")
    return spark.createDataFrame([(1, CALLS.read_text())], "a bigint, seen string")

@model
def doubled(t: DataFrame) -> DataFrame:
    return t.withColumn("a", F.col("a") * 2)

@table(check={{"not_null": ["a"]}})
def result(doubled, outside, more=10):
    return doubled.join(outside.select("seen"), how="cross").withColumn("a", F.col("a") + more)

@table
def other(outside):
    return outside

@table
def quiet(t):
    return t.select("a")
"""


@pytest.mark.slow
@pytest.mark.proves("P1", "P2")
def test_tables_are_written_models_are_not_and_sources_are_called_in_every_run(
    make: Callable[..., Builder],
) -> None:
    builder = make({"app.py": APP})
    root = builder.settings.root
    assert build_all(builder) == {"result": "built", "other": "built", "quiet": "built"}
    assert tables(builder) == ["other", "quiet", "result"]
    assert (root / "calls").read_text() == "x"  # once per run, although two sources read it
    assert rows(builder, "result") == [(12, "x", "x"), (14, "y", "x"), (16, "x", "x")]
    again = make(root=root)
    assert build_all(again) == {"result": "built", "other": "built", "quiet": "reused"}
    assert rows(again, "other") == [(1, "xx")]
    steps = {s.source_id.partition("@")[0]: s for s in make(root=root).plan(s.source_id for s in again.project.persisted).steps}  # fmt: skip
    assert [r.code for r in steps["result"].reasons] == ["unversioned"]
    assert steps["quiet"].action == "reuse"


@pytest.mark.slow
def test_sources_in_sql_and_python_read_each_other(make: Callable[..., Builder]) -> None:
    builder = make(
        {
            "a.py": f"{IMPORTS}@model\ndef p1(v1): return v1.withColumn('c', F.col('a') + 1)\n"
            "@table\ndef p2(v2, T): return v2.join(T.select('a', 'b'), 'a')\n",
            "v.sql": "CREATE VIEW v1 AS SELECT a, b AS d FROM t WHERE a > 1;"
            "CREATE VIEW v2 AS SELECT * FROM p1 WHERE c > 3;\n"
            "--@ persist\nCREATE VIEW v3 AS SELECT b, count(*) AS n FROM p2 GROUP BY b;\n"
            "--@ persist\nCREATE VIEW v4 AS SELECT * FROM p1 ORDER BY a",
        }
    )
    expected = [(3, "x", 4, "x")]
    assert rows(builder, "p2") == expected  # computed
    assert query(builder, "SELECT p.a, v2.c FROM p2 AS p JOIN v2 ON v2.a = p.a") == [(3, 4)]
    assert build_all(builder) == {"p2": "built", "v3": "built", "v4": "built"}
    assert rows(builder, "p2") == expected
    assert rows(builder, "v3") == [("x", 1)]
    assert rows(builder, "v4") == [(2, "y", 3), (3, "x", 4)]
    assert build_all(make(root=builder.settings.root)) == {"p2": "reused", "v3": "reused", "v4": "reused"}  # fmt: skip
    snapshot = builder.ledger.manifests.find_snapshot("dev", named(builder, "v4").build_id)
    assert snapshot is not None
    assert [(c.name, c.type) for c in snapshot.columns] == [("a", "bigint"), ("d", "string"), ("c", "bigint")]  # fmt: skip


@pytest.mark.slow
def test_only_newer_data_and_changed_code_cause_builds(make: Callable[..., Builder]) -> None:
    text = f"{IMPORTS}import helper\n@table\ndef f(t): return helper.keep(t)\n@table\ndef g(f): return f.groupBy('b').count()\n"
    builder = make(
        {"a.py": text, "/helper.py": "LIMIT = 1\ndef keep(t): return t.filter(t.a > LIMIT)\n"}
    )
    root = builder.settings.root
    assert build_all(builder) == {"f": "built", "g": "built"}
    (root / "helper.py").write_text(
        "# no more\nLIMIT = 1\n\n\ndef keep(t):\n    return t.filter(t.a > LIMIT)\n"
    )
    assert build_all(make(root=root)) == {"f": "reused", "g": "reused"}
    write(root, [(0, "z"), (1, "x"), (2, "y"), (3, "x")])
    assert build_all(make(root=root)) == {
        "f": "built",
        "g": "reused",
    }  # the rows it reads are the same
    (root / "helper.py").write_text("LIMIT = 2\ndef keep(t): return t.filter(t.a > LIMIT)\n")
    changed = make(root=root)
    steps = changed.plan(s.source_id for s in changed.project.persisted).steps
    assert [r.message for s in steps for r in s.reasons] == [
        "its code, or code that it uses, changed: sources/a.py",
        "the code of f or its inputs changed",
    ]
    assert build_all(changed) == {"f": "built", "g": "built"}
    assert rows(changed, "g") == [("x", 1)]


# ----------------------------------------------------------------------------------- inputs

ABOVE = "--@ persist\nCREATE VIEW v AS SELECT a, b, {more} FROM t {rows};\n"
SELECTING = f"""{IMPORTS}
@table
def few(v):
    return v.select("A", F.col("b").alias("c")).filter("a > 1").orderBy("c")

@table
def lazy(v: nw.LazyFrame) -> nw.LazyFrame:
    return v.select("a", c=nw.col("b")).filter(nw.col("a") > 1)

@table
def all_of_it(v):
    return v.filter("a > 1")
"""


@pytest.mark.slow
@pytest.mark.proves("K18")
def test_an_edit_of_an_unselected_column_does_not_rebuild_a_function(
    make: Callable[..., Builder],
) -> None:
    def built(name: str, more: str, rows: str = "") -> tuple[Builder, dict[str, str]]:
        files = {"v.sql": ABOVE.format(more=more, rows=rows), "p.py": SELECTING}
        there = roots.get(name)
        if there is not None:
            (there / "sources" / "v.sql").write_text(files["v.sql"])
        builder = make(files, root=there, name=name)
        roots[name] = builder.settings.root
        return builder, build_all(builder)

    roots: dict[str, Path] = {}
    names = ("few", "lazy", "all_of_it")
    first, _ = built("edited", "a + 1 AS d")
    expected = {"few": [(2, "y"), (3, "x")], "lazy": [(2, "y"), (3, "x")]}
    assert {n: rows(first, n) for n in expected} == expected
    edits = {
        "concat(b, 'x') AS f, a + 2 AS d, b AS e": "",  # changes and adds unselected columns
        "a AS d": "WHERE a < 3",  # changes the rows
    }
    for number, (more, where) in enumerate(edits.items()):
        edited, done = built("edited", more, where)
        kept = "built" if where else "reused"
        assert done == {"v": "built", "few": kept, "lazy": kept, "all_of_it": "built"}
        scratch, _ = built(f"scratch{number}", more, where)
        assert [rows(edited, n) for n in names] == [rows(scratch, n) for n in names]
        for name in names:
            assert named(edited, name).build_id == named(scratch, name).build_id
    (step,) = first.plan([named(first, "few").source_id]).steps[-1:]
    assert step.action == "reuse"


WITHOUT = {
    "v.select('a').filter('d > 3')": "d",
    "v.select('a').orderBy(F.col('d').desc()).limit(1)": "d",
    "v.select('a', F.col('b')).groupBy('a').count().filter('d > 1')": "d",
    "nw.from_native(v.select('a')).filter(nw.col('d') > 3)": "d",
    "nw.from_native(v.select('a')).sort('d')": "d",
}


def test_using_an_unselected_column_is_an_error(make: Callable[..., Builder]) -> None:
    """Spark lets filters and sorts use columns that a select dropped; the analysis misses them."""
    functions = "\n".join(
        f"@table\ndef f{i}(v):\n    return {text}" for i, text in enumerate(WITHOUT)
    )
    above = ABOVE.format(more="a + 1 AS d", rows="")
    builder = make({"v.sql": above, "p.py": f"{IMPORTS}\n{functions}\n"})
    builder.build(named(builder, "v"))
    for number in range(len(WITHOUT)):
        error = failure(builder, f"f{number}")
        assert "failed" in str(error)
        assert "gets only those columns: a" in (error.hint or ""), error
        assert "of v; select all that it uses" in (error.hint or "")


SAME = [
    "'A', 'b'",
    "F.upper('b').alias('u'), (F.col('a') + 1).alias('more'), F.lit('d').alias('l')",
    "['a', 'B']",
    "F.expr('a + d').alias('x')",
    "F.when(F.col('a') > 1, 'b').otherwise(F.col('b')).alias('w')",
    "'st.x', F.col('st').y.alias('y'), F.col('ST')['x'].alias('z')",
    "F.date_format('t', 'd').alias('day')",
    "F.lit(F.col('d')), 'a'",
    "F.count('a').alias('n'), F.max(F.struct('a', 'b')).alias('most')",
]
ABOUT = "named_struct('x', a, 'y', b) AS st, a AS d, timestamp'2020-01-02' AS t, 1 AS unread"


@pytest.mark.slow
def test_a_function_returns_the_same_rows_with_selected_or_all_columns(
    make: Callable[..., Builder],
) -> None:
    """Column names, types and rows are equal with only the used columns and with all of them."""
    spoiled = "    if False: v.columns\n"
    functions = "\n".join(
        f"@model\ndef f{i}(v):\n    return v.select({text})\n"
        f"@model\ndef g{i}(v):\n{spoiled}    return v.select({text})"
        for i, text in enumerate(SAME)
    )
    above = ABOVE.format(more=ABOUT, rows="")
    builder = make({"v.sql": above, "p.py": f"{IMPORTS}\n{functions}\n"})
    for i in range(len(SAME)):
        few, whole = named(builder, f"f{i}").function, named(builder, f"g{i}").function
        assert few is not None
        assert whole is not None
        assert "unread" not in (few.parameters[0].columns or ("unread",))
        assert whole.parameters[0].columns is None
        one, other = (builder.read(named(builder, f"{n}{i}")) for n in "fg")
        assert one.schema == other.schema, SAME[i]
        assert sorted(map(tuple, one.collect())) == sorted(map(tuple, other.collect()))


@pytest.mark.proves("P27")
def test_functions_can_use_narwhals_frames(make: Callable[..., Builder]) -> None:
    builder = make(
        {
            "a.py": f"{IMPORTS}import narwhals.stable.v1 as v1\n"
            "@model\ndef m(t: nw.LazyFrame) -> nw.LazyFrame:\n"
            "    return t.with_columns(nw.col('a') * 2).filter(nw.col('a') > 2)\n"
            "@table\ndef f(m: 'v1.LazyFrame', t):\n"
            "    assert isinstance(t, DataFrame), t\n"
            "    return m.group_by('b').agg(v1.col('a').sum())\n"
        }
    )
    assert build_all(builder) == {"f": "built"}
    assert rows(builder, "f") == [("x", 6), ("y", 4)]


@pytest.mark.slow
def test_workers_run_code_from_files_of_the_project(make: Callable[..., Builder]) -> None:
    """Functions, classes and whole modules are sent to Spark's workers by value."""
    helper = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport pkg.deep\n"
        "@dataclass\nclass Times:\n    n: int = 3\n    def of(self, x): return pkg.deep.times(x, self.n)\n"
    )
    text = (
        f"{IMPORTS}import helper\nfrom helper import Times\nfrom pkg import deep\n"
        "@F.udf('bigint')\ndef decorated(x): return Times(5).of(x)\n"
        "@table\ndef f(t):\n"
        "    whole = F.udf(lambda x: deep.times(x, 2) + helper.Times().of(x), 'bigint')\n"
        "    return t.select(whole('a').alias('n'), decorated('a').alias('d'))\n"
    )
    builder = make({"a.py": text, "/helper.py": helper})
    package = builder.settings.root / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("def times(x, n): return x * n\n")
    builder = make(root=builder.settings.root)
    builder.build(named(builder, "f"))
    assert rows(builder, "f") == [(5, 5), (10, 10), (15, 15)]


@pytest.mark.slow
def test_pandas_udfs_can_use_type_annotations(make: Callable[..., Builder]) -> None:
    text = (
        f"{IMPORTS}import pandas as pd\n"
        "@F.pandas_udf('bigint')\ndef total(x: pd.Series) -> int: return int(x.sum())\n"
        "@table\ndef f(t): return t.groupBy('b').agg(total('a').alias('n'))\n"
    )
    builder = make({"a.py": text})
    builder.build(named(builder, "f"))
    assert rows(builder, "f") == [("x", 4), ("y", 2)]


@pytest.mark.parametrize(
    "parameters", ["t, /, n=2", "*, t, n=2", "n=2, *, t", "t, n=2, *, spark: SparkSession, k=3", "spark: SparkSession, /, t, n=2"]
)  # fmt: skip
def test_all_parameter_kinds_are_supported(make: Callable[..., Builder], parameters: str) -> None:
    builder = make({"a.py": f"{IMPORTS}@table\ndef f({parameters}): return t.filter(t.a >= n)\n"})
    assert rows(builder, "f") == [(2, "y"), (3, "x")]


def test_columns_of_inputs_from_one_table_are_distinguished(make: Callable[..., Builder]) -> None:
    text = (
        f"{IMPORTS}@model\ndef m(v): return v.filter('a > 1')\n"
        "@table\ndef f(v, w, m, v2):\n"
        "    both = v.join(w, v.a == w.a).join(m, m.a == v.a).join(v2, v2.a == m.a)\n"
        "    return both.select(v.a, w.b, m.b.alias('c'))\n"
    ).replace("@table\n", '@table(inputs={"v2": "v"})\n')
    builder = make({"a.py": text, "v.sql": "CREATE VIEW v AS SELECT a, b FROM t; CREATE VIEW w AS SELECT a, b FROM t WHERE b = 'x'"})  # fmt: skip
    assert rows(builder, "f") == [(3, "x", "x")]


# ------------------------------------------------------------------------------------- isolation


def test_calls_share_no_state(make: Callable[..., Builder]) -> None:
    helper = "COUNT = 0\ndef count():\n    global COUNT\n    COUNT += 1\n    return COUNT\n"
    text = f"{IMPORTS}import helper\n" + "".join(
        f"@model\ndef {n}(t): return t.limit(1).select(F.lit(helper.count()).alias('n'))\n" for n in "fgh"
    )  # fmt: skip
    builder = make({"a.py": text, "/helper.py": helper})
    assert [rows(builder, n) for n in "fgh"] == [[(1,)]] * 3
    assert not [m for m in __import__("sys").modules if m.startswith("_persist_") or m == "helper"]


def test_a_run_leaves_no_views_in_the_session(make: Callable[..., Builder], spark: Any) -> None:
    def views() -> set[str]:
        return views_of(spark)

    before = views()
    builder = make({"a.py": f"{IMPORTS}@model\ndef m(t): return t\n"})
    assert query(builder, "SELECT a FROM m") == [(1,), (2,), (3,)]
    assert [v for v in views() - before if v.startswith("a/m@")]
    builder.close()
    assert not views() - before


@pytest.mark.proves("P7")
def test_two_projects_run_concurrently_in_one_process(make: Callable[..., Builder]) -> None:
    text = f"{IMPORTS}import helper\n@table\ndef f(m): return m.withColumn('p', F.lit(helper.NAME))\n@model\ndef m(t): return helper.meet(t)\n"
    helper = (
        "from pathlib import Path\nimport time\nNAME = {0!r}\nHERE = Path(__file__).parent\n"
        "def meet(t):\n"
        "    (HERE / 'here').write_text('')\n"
        "    end = time.monotonic() + 60\n"
        "    while not (HERE.parent / {1!r} / 'here').exists():\n"
        "        assert time.monotonic() < end\n"
        "    return t\n"
    )
    builders = {
        n: make({"a.py": text, "/helper.py": helper.format(n, o)}, name=n) for n, o in ("ab", "ba")
    }
    write(builders["b"].settings.root, [(7, "b")])
    failed: list[BaseException] = []

    def run(builder: Builder) -> None:
        try:
            build_all(builder)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(b,)) for b in builders.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert rows(builders["a"], "f") == [(1, "x", "a"), (2, "y", "a"), (3, "x", "a")]
    assert rows(builders["b"], "f") == [(7, "b", "b")]


@pytest.mark.proves("P24")
def test_functions_of_one_run_are_called_concurrently(make: Callable[..., Builder]) -> None:
    """Each waits until the other has begun: in sequence, the first would never end."""
    text = (
        f"{IMPORTS}from pathlib import Path\nimport time\nHERE = Path(__file__).parent\n"
        + "".join(
            f"@table\ndef {me}(t):\n"
            f"    (HERE / 'began-{me}').write_text('')\n"
            "    end = time.monotonic() + 60\n"
            f"    while not (HERE / 'began-{other}').exists():\n"
            "        assert time.monotonic() < end\n"
            f"    return t.filter(\"b = '{me}'\")\n"
            for me, other in ("xy", "yx")
        )
    )
    builder = make({"a.py": text}, "parallel = 2\n")
    pool = Pool(builder, builder.project.persisted)
    try:
        for source in builder.project.persisted:
            with pool.work(source) as work:
                builder.publish(work)
    finally:
        pool.close()
    assert (rows(builder, "x"), rows(builder, "y")) == ([(1, "x"), (3, "x")], [(2, "y")])


@pytest.mark.slow
@pytest.mark.proves("S27")
def test_hanging_functions_do_not_block_the_end_of_their_run(
    make: Callable[..., Builder],
) -> None:
    text = (
        f"{IMPORTS}from pathlib import Path\nimport time\nGO = Path(__file__).parent / 'go'\n"
        + "".join(
            f"@table\ndef {name}(t):\n"
            "    while not GO.exists(): time.sleep(0.1)\n"
            f"    return t.filter(\"b = '{name}'\")\n"
            for name in "xy"
        )
    )
    builder = make({"a.py": text}, "parallel = 2\n")
    pool = Pool(builder, builder.project.persisted)
    wait_for(lambda: len(builder.ledger.builds.fetch()) == 2)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 60
    builds = builder.ledger.builds.fetch()
    assert [b.state for b in builds] == ["failed", "failed"]
    assert all("interrupted before it ended" in (b.error or "") for b in builds)
    for source in builder.project.persisted:
        with builder.ledger.leases.hold(f"build {source.build_id}", "another", wait_s=0):
            pass
    # The functions continue, but change nothing.
    (builder.settings.root / "sources" / "go").write_text("")
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("build_")])
    assert builder.ledger.builds.fetch() == builds
    assert not builder.ledger.manifests.fetch("dev")
    assert not [*Path(builder.settings.warehouse).rglob("*.parquet")]


def test_edits_of_files_during_a_run_are_ignored(make: Callable[..., Builder]) -> None:
    builder = make({"a.py": f"{IMPORTS}import helper\n@table\ndef f(t): return t.select(F.lit(helper.N).alias('n')).distinct()\n", "/helper.py": "N = 1\n"})  # fmt: skip
    root = builder.settings.root
    (root / "helper.py").write_text("N = 2\n")
    (root / "sources" / "a.py").write_text("this is no Python")
    builder.build(named(builder, "f"))
    assert rows(builder, "f") == [(1,)]


# ------------------------------------------------------------------- checks, strategies, freshness


def test_failed_checks_of_a_function_stop_publication(make: Callable[..., Builder]) -> None:
    head = f"{IMPORTS}@table(check={{'unique': ['b'], 'expr': {{'small': 'a < 3'}}}})\n"
    builder = make({"a.py": f"{head}def f(t): return t\n"})
    with pytest.raises(CheckFailedError, match=r"unique_b \(2 rows\)") as caught:
        builder.build(named(builder, "f"))
    assert {r.name: r.failed_rows for r in caught.value.results} == {"unique_b": 2, "expr_small": 1}
    assert builder.ledger.manifests.find_snapshot("dev", named(builder, "f").build_id) is None
    lacking = make({"a.py": f"{IMPORTS}@table(time_column='when', check={{'not_null': ['c']}})\ndef f(t): return t\n"})  # fmt: skip
    error = failure(lacking)
    assert (
        str(error) == "sources/a.py:6:47: `c` is not a column of `f`\n    hint: known columns: a, b"
    )


def test_downstream_sources_read_a_temporary_function(make: Callable[..., Builder]) -> None:
    text = f"{IMPORTS}@table(materialized='temporary', check={{'not_null': ['a']}})\ndef m(t): return t.filter('a > 1')\n"
    builder = make({"a.py": text, "v.sql": "--@ persist\nCREATE VIEW v AS SELECT * FROM m;\n--@ persist\nCREATE VIEW w AS SELECT a FROM m"})  # fmt: skip
    assert build_all(builder) == {"v": "built", "w": "built"}
    assert rows(builder, "v") == [(2, "y"), (3, "x")]
    builder.close()


@pytest.mark.slow
def test_external_data_is_reread_after_its_freshness_window_expires(
    make: Callable[..., Builder],
) -> None:
    head = "@table(freshness={'window': '1h', 'fallback': 'live'})"
    builder = make({"app.py": APP.replace("@table\ndef other", f"{head}\ndef other")})
    root = builder.settings.root

    def later(hours: float) -> Builder:
        return make(root=root, clock=lambda: datetime.now(UTC) + timedelta(hours=hours))

    other = named(builder, "other")
    assert builder.build(other).action == "built"
    assert later(0.5).build(other).action == "reused"
    assert rows(later(0.5), "other") == [(1, "x")]
    assert rows(later(2), "other") == [(1, "xx")]  # computed, because its table is too old
    assert later(3).build(other).action == "built"
    assert rows(later(3.5), "other") == [(1, "xxx")]


def test_strict_mode_rejects_unbuilt_inputs_of_functions(make: Callable[..., Builder]) -> None:
    text = f"{IMPORTS}@table\ndef f(t): return t\n@model\ndef m(f): return f\n"
    builder = make({"a.py": text, "v.sql": "CREATE VIEW v AS SELECT * FROM m"})
    builder.reader.settings = replace(builder.settings, strict=True)
    with pytest.raises(StrictError, match="not built in `dev`: a/f"):
        query(builder, "SELECT * FROM v")
    builder.build(named(builder, "f"))
    assert query(builder, "SELECT a FROM v") == [(1,), (2,), (3,)]


def test_a_build_fails_if_files_change_while_a_function_reads_them(
    make: Callable[..., Builder],
) -> None:
    text = f"{IMPORTS}from pathlib import Path\n@model\ndef m(t):\n    file = Path(__file__).parent.parent / 'raw' / 't' / 'part-0.parquet'\n    file.write_bytes(file.read_bytes())\n    return t\n@table\ndef f(m): return m\n"
    with pytest.raises(Exception, match="the data of `t` changed while it was being read"):
        build_all(make({"a.py": text}))


# ------------------------------------------------------------------------------------------ errors

BROKEN = [
    ("1 / 0; return t", "sources/a.py:9:5: `f` failed: ZeroDivisionError: division by zero", None),
    ("return helper.broken(t)", "helper.py:2:12: `f` failed: KeyError: 'x'", None),
    ("raise SystemExit(3); return t", "sources/a.py:9:5: `f` failed: SystemExit: 3", None),
    ("return t.filter('nope > 1')", "sources/a.py:9:12: `f` failed: AnalysisException: [UNRESOLVED_COLUMN", None),
    ("import nowhere; return t", "sources/a.py:9:5: `f` failed: ModuleNotFoundError: No module named 'nowhere'", "import project modules from the project root"),
    ("from . import nowhere; return t", "sources/a.py:9:5: `f` failed: ImportError: cannot import name 'nowhere' from 'sources'", None),
    ("x = None; return x", "sources/a.py:8:5: `f` returned None, not a frame", "return a Spark DataFrame"),
    ("return t.count()", "sources/a.py:8:5: `f` returned int, not a frame", "return a Spark DataFrame"),
    ("return [t]", "sources/a.py:8:5: `f` returned list, not a frame", "return a Spark DataFrame"),
    ("return t.toPandas()", "sources/a.py:8:5: `f` returned pandas.", "spark.createDataFrame"),
    ("return t.join(t.select('a'), F.lit(True))", "sources/a.py:8:5: `f` has two columns named `a`", "drop or rename"),
    ("return t.withColumnRenamed('b', 'A')", "sources/a.py:8:5: `f` has two columns named `A`", "drop or rename"),
    ("return t.withColumnRenamed('b', '')", "sources/a.py:8:5: column 2 of `f` has no name", "rename it"),
    ("return t.select(F.col('a') + 1)", "sources/a.py:8:5: `(a + 1)` is not a valid column name for a table", "rename it"),
    ("return t.select()", "sources/a.py:8:5: `f` returned a frame without columns", None),
    ("return t.withColumn('n', F.lit(None))", "sources/a.py:8:5: column `n` has the type void", "cast NULL to a type"),
    ("return t.select(F.udf(lambda x: helper.broken({}), 'int')('a').alias('n'))", "helper.py:2:", None),
    ("import threading; k = threading.Lock(); return t.select(F.udf(lambda x: k, 'int')('a').alias('n'))", "sources/a.py:9:61: `f` failed: PicklingError: Could not serialize object: TypeError: cannot pickle", None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message", "hint"), BROKEN, ids=range(len(BROKEN)))
def test_errors_in_functions_are_reported_with_their_location(
    make: Callable[..., Builder], body: str, message: str, hint: str | None
) -> None:
    text = f"{IMPORTS}import helper\n@table\ndef f(t):\n    {body}\n".replace(
        "\n@table", "@table", 0
    )
    builder = make({"a.py": text, "/helper.py": "def broken(t):\n    return {}['x']\n"})
    error = failure(builder)
    if os.environ.get("PERSIST_TEST_SPARK") == "shared" and ":9:" in message:
        # A server analyses a frame when its columns are requested, after the function returned.
        message = (
            message
            if str(error).startswith(message)
            else f"sources/a.py:8:5: {message.split(': ', 1)[1]}"
        )
    assert str(error).startswith(message), str(error)
    assert hint is None or hint in (error.hint or "")
    build = builder.ledger.builds.fetch_last("dev")[named(builder, "f").source_id]
    assert (build.state, (build.error or "").startswith(message)) == ("failed", True)


def test_a_table_survives_a_function_that_fails(make: Callable[..., Builder]) -> None:
    text = f"{IMPORTS}@table\ndef f(t): return t\n@table\ndef g(f): return f\n"
    builder = make({"a.py": text})
    build_all(builder)
    root = builder.settings.root
    (root / "sources" / "a.py").write_text(text.replace("def f(t): return t", "def f(t):\n    1 / 0\n    return t"))  # fmt: skip
    broken = make(root=root)
    failure(broken)
    (root / "sources" / "a.py").write_text(text)
    assert rows(make(root=root), "f") == [(1, "x"), (2, "y"), (3, "x")]


def test_missing_data_of_a_function_input_is_reported(make: Callable[..., Builder]) -> None:
    builder = make({"a.py": f"{IMPORTS}@table\ndef f(t): return t\n"})
    (builder.settings.root / "raw" / "t" / "part-0.parquet").unlink()
    with pytest.raises(StorageError, match="there is no data"):
        builder.build(named(builder, "f"))


def test_a_broken_module_does_not_affect_other_modules(make: Callable[..., Builder]) -> None:
    builder = make({"a.py": f"{IMPORTS}1 / 0\n@table\ndef f(t): return t\n", "b.py": f"{IMPORTS}@table\ndef g(t): return t\n"})  # fmt: skip
    assert str(failure(builder)).startswith("sources/a.py:6:1: `f` failed: ZeroDivisionError")
    assert builder.build(named(builder, "g")).state == "succeeded"


def test_a_function_that_changes_the_session_fails_and_changes_no_other_source(
    make: Callable[..., Builder],
) -> None:
    text = (
        f"{IMPORTS}@table\ndef f(t, spark: SparkSession):\n    conf = spark.conf\n"
        "    conf.set('spark.sql.session.timeZone', 'Asia/Tokyo')\n    return t\n"
        "@table\ndef g(t):\n    return t.select(F.current_timezone().alias('zone'))\n"
    )
    builder = make({"a.py": text})
    message = "`f` changes the setting spark.sql.session.timeZone"
    with pytest.raises(BuildError, match=message):
        builder.build(named(builder, "f"))
    builder.build(named(builder, "g"))
    assert {zone for (zone,) in rows(builder, "g")} == {"UTC"}
