"""Functions with incremental tables: which rows they compute, and what their tables contain."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from growing import ONE, kind_of, put

from persist_assets.building.builder import Builder
from persist_assets.building.stages import PendingBuild
from persist_assets.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot

HEAD = """
import narwhals as nw
from persist_assets import incremental_filter, incremental_table, model, table
from pyspark.sql import functions as F
"""
TABLE = '@incremental_table(time_column="ts", lookback="1 day", assume="exact")\n'
FILTERED = (
    f"{HEAD}\n{TABLE}def f(t):\n"
    "    late = t.select('ts', F.upper('x').alias('x')).withColumn('n', F.lit(1))\n"
    "    return late.transform(incremental_filter('ts')).drop('n')\n"
)
Make = Callable[..., Builder]


@pytest.fixture
def make(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    def builder(text: str = "", root: Path | None = None, name: str = "project") -> Builder:
        if root is None:
            root = make_project({"raw.sql": ONE, "f.py": text}, name=name)
        return enter(root)

    return builder


def build(
    builder: Builder, name: str = "f", *, force: bool = False
) -> tuple[str, Snapshot, PendingBuild]:
    source = next(s for s in builder.project.sources if s.name == name)
    with builder.work(source, force=force) as work:
        snapshot = builder.publish(work)
    return kind_of(work), snapshot, work


def texts(builder: Builder, snapshot: Snapshot) -> list[str]:
    return sorted(r.x for r in builder.reader.load_snapshot(snapshot).collect())


@pytest.mark.slow
@pytest.mark.proves("P6", "P8", "P9", "P35")
def test_a_function_with_incremental_filter_computes_only_new_rows(make: Make) -> None:
    builder = make(FILTERED)
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "b"), (None, "n"))
    assert build(builder)[0] == "whole"
    # A day before the watermark, at the watermark, after it, and without a time.
    put(root, 1, (4, "late"), (5, "tie"), (9, "new"), (None, "m"))
    builder = make(root=root)
    how, snapshot, work = build(builder)
    assert (how, snapshot.watermark) == ("windows", "2024-01-10T00:00:00Z")
    assert texts(builder, snapshot) == ["A", "B", "LATE", "M", "N", "NEW", "TIE"]
    assert work.step.reasons[-1].message.startswith("only rows from 2024-01-06T00:00:00Z on")
    assert build(make(root=root))[0] == "reused"
    # The user assumed that no row comes later than the lookback; a full rebuild includes it.
    put(root, 2, (0, "too late"))
    builder = make(root=root)
    assert "TOO LATE" not in texts(builder, build(builder)[1])
    builder = make(root=root)
    assert "TOO LATE" in texts(builder, build(builder, force=True)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "    return t\n",
        "    return t.join(t.transform(incremental_filter('ts')).select('x').distinct(), 'x').select('ts', 'x')\n",
        "    return t.filter('x IS NOT NULL').transform(incremental_filter('TS'))\n",
    ],
    ids=["not at all", "in a join", "in other letters"],
)
@pytest.mark.proves("P6")
def test_rows_are_added_once_wherever_the_filter_is_applied(make: Make, body: str) -> None:
    builder = make(f"{HEAD}\n{TABLE}def f(t):\n{body}")
    root = builder.settings.root
    put(root, 0, (0, "1.0"), (5, "2.0"))
    build(builder)
    for n in (1, 2, 3):
        put(root, n, (5 + n, f"{n + 2}.0"))
        builder = make(root=root)
        how, snapshot, _ = build(builder)
        assert (how, snapshot.rows) == ("windows", 2 + n)


@pytest.mark.proves("P6", "P7")
def test_concurrent_builds_filter_several_inputs_by_their_own_lookback(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    two = ONE + ONE.replace("TABLE t", "TABLE u").replace("'raw'", "'raw/u'")
    both = (
        "def {name}(t, u):\n    later = u.select('x', 'ts').transform(incremental_filter('ts'))\n"
        "    return t.transform(incremental_filter('ts')).unionByName(later)\n\n"
    )
    longer = TABLE.replace("1 day", "4 days")
    text = f"{HEAD}\n{TABLE}{both.format(name='f')}{longer}"
    text += both.format(name="g").replace("'x', 'ts'", "'ts', 'x'")  # otherwise they share a table
    root = make_project({"raw.sql": two.replace("'raw'", "'raw/t'"), "f.py": text})

    def add(table: str, n: int, *rows: tuple[int, str]) -> None:
        put(root / table, n, *rows)
        (root / "raw" / table).mkdir(parents=True, exist_ok=True)
        file = root / table / "raw" / f"{n}.parquet"
        file.rename(root / "raw" / table / file.name)

    add("t", 0, (0, "a"), (5, "b"))
    add("u", 0, (1, "c"), (5, "d"))
    for name in "fg":
        build(enter(root), name)
    # Two days before the watermark: too late for one of them, not for the other.
    add("t", 1, (3, "t late"), (6, "t new"))
    add("u", 1, (3, "u late"), (6, "u new"))
    barrier = Barrier(2)

    def run(name: str) -> list[str]:
        builder = enter(root)
        barrier.wait()
        return texts(builder, build(builder, name)[1])

    with ThreadPoolExecutor(2) as pool:
        f, g = pool.map(run, "fg")
    assert f == ["a", "b", "c", "d", "t new", "u new"]
    assert g == ["a", "b", "c", "d", "t late", "t new", "u late", "u new"]


@pytest.mark.proves("P27")
def test_incremental_filter_works_on_narwhals_frames(make: Make) -> None:
    text = (
        f"{HEAD}\n{TABLE}def f(t: nw.LazyFrame) -> nw.LazyFrame:\n"
        "    return t.pipe(incremental_filter('ts')).with_columns(nw.col('x'))\n"
    )
    builder = make(text)
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "b"))
    build(builder)
    put(root, 1, (6, "c"))
    how, snapshot, _ = build(make(root=root))
    assert (how, snapshot.rows) == ("windows", 3)


@pytest.mark.slow
@pytest.mark.proves("P7")
def test_an_inline_model_is_not_filtered_for_readers_that_need_all_rows(make: Make) -> None:
    text = FILTERED + (
        "\n@model\ndef shown(t):\n    return t.transform(incremental_filter('ts'))\n"
        "\n@table\ndef g(shown):\n    return shown\n"
        f"\n{TABLE}def h(shown):\n    return shown.transform(incremental_filter('ts'))\n"
    )
    builder = make(text)
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "b"))
    for name in "fgh":
        build(builder, name)
    put(root, 1, (9, "c"))
    builder = make(root=root)
    assert [build(builder, name)[1].rows for name in "hfg"] == [3, 3, 3]


@pytest.mark.slow
def test_removed_rows_cause_a_full_build(make: Make) -> None:
    builder = make(FILTERED)
    root = builder.settings.root
    put(root, 0, (0, "a"))
    put(root, 1, (5, "b"))
    build(builder)
    (root / "raw" / "0.parquet").unlink()
    builder = make(root=root)
    how, snapshot, _ = build(builder)
    assert (how, texts(builder, snapshot)) == ("whole", ["B"])


def test_without_assume_all_rows_are_computed_and_check_warns(make: Make) -> None:
    builder = make(FILTERED.replace(', lookback="1 day", assume="exact"', ""))
    root = builder.settings.root
    (problem,) = builder.project.problems
    assert (problem.code, problem.severity) == ("increment", "warning")
    put(root, 0, (5, "b"))
    build(builder)
    put(root, 1, (0, "late"))
    how, snapshot, _ = build(make(root=root))
    assert (how, snapshot.rows) == ("whole", 2)


@pytest.mark.proves("P17")
def test_a_function_may_have_a_merge_key(make: Make) -> None:
    builder = make(FILTERED.replace('assume="exact"', 'assume="exact", merge_key="x"'))
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "a"), (5, "b"))
    assert build(builder)[1].rows == 2
    put(root, 1, (6, "a"), (7, "c"))
    builder = make(root=root)
    how, snapshot, _ = build(builder)
    assert (how, texts(builder, snapshot)) == ("windows", ["A", "B", "C"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("tz", "unknown column `tz`"),
        ("x", "`x` is string, but the time column of `f` is timestamp"),
        ("n", "`n` is int, but the time column of `f` is timestamp"),
    ],
)
def test_a_filter_by_an_unknown_column_or_one_of_another_type_is_an_error(
    make: Make, column: str, message: str
) -> None:
    builder = make(FILTERED.replace("incremental_filter('ts')", f"incremental_filter('{column}')"))
    root = builder.settings.root
    put(root, 0, (0, "a"))
    build(builder)
    put(root, 1, (1, "a"))
    with pytest.raises(BuildError, match=message):
        build(make(root=root))


QUERIES = {
    "r": "SELECT ts, x FROM f",
    "filtered": "SELECT x FROM f WHERE x > 'A'",
    "counted": "SELECT date_trunc('month', ts) AS month, count(*) AS n FROM f GROUP BY 1",
    "joined": "SELECT f.x, o.n FROM f JOIN (SELECT x, count(*) AS n FROM f GROUP BY x) o USING (x)",
    "star": "SELECT * FROM f",
}


@pytest.mark.slow
@pytest.mark.proves("T16")
@pytest.mark.parametrize("has_contract", [False, True])
def test_readers_of_a_functions_table_are_maintained_if_its_contract_names_the_columns(
    make: Make, has_contract: bool
) -> None:
    # The contract has another order than the table.
    contract = ', columns={"x": "string", "ts": "timestamp"})'
    builder = make(FILTERED.replace(")\n", f"{contract}\n", 1) if has_contract else FILTERED)
    root = builder.settings.root
    texts_of = (
        f"--@ persist refresh=incremental\nCREATE VIEW {name} AS {query};\n"
        for name, query in QUERIES.items()
    )
    (root / "sources" / "r.sql").write_text("".join(texts_of))
    put(root, 0, (0, "a"), (5, "b"))
    builder = make(root=root)
    for name in ("f", *QUERIES):
        build(builder, name)
    put(root, 1, (6, "c"), (40, "b"))
    builder = make(root=root)
    how_f, table, _ = build(builder)
    assert how_f == "windows"
    built = {name: build(builder, name) for name in QUERIES}
    sources = {s.name: s for s in builder.project.sources}
    for name, (_, snapshot, _) in built.items():
        shown = builder.reader.load_snapshot(snapshot).collect()
        expected = builder.reader.compute(sources[name], {sources["f"].source_id: table}).collect()
        assert sorted(shown, key=repr) == sorted(expected, key=repr), name
    how = {name: method for name, (method, _, _) in built.items()}
    reasons = {name: work.step.reasons[-1].message for name, (_, _, work) in built.items()}
    if has_contract:
        assert how == {
            "r": "append",
            "filtered": "append",
            "counted": "merge",
            "joined": "keys",
            "star": "whole",
        }, reasons
        assert "the order of the columns of `f` is unknown" in reasons["star"]
    else:
        assert set(how.values()) == {"whole"}
        assert all("the columns of `f` are unknown" in reason for reason in reasons.values())


@pytest.mark.proves("T16")
def test_a_reader_is_not_built_from_a_table_that_violates_its_contract(make: Make) -> None:
    text = f"{HEAD}\n@table{{}}\ndef f(t):\n    return t.select('x', 'ts')\n"
    builder = make(text.format(""))
    root = builder.settings.root
    put(root, 0, (0, "a"))
    (root / "sources" / "r.sql").write_text(
        "--@ persist\nCREATE VIEW r AS SELECT x, count(*) AS n FROM t NATURAL JOIN f GROUP BY x;"
    )
    builder = make(root=root)
    build(builder)
    # The analysis now joins by `x` only, but the table still has `ts`.
    (root / "sources" / "f.py").write_text(text.format('(columns={"X": "string"})'))
    with pytest.raises(BuildError, match="reads `f/f`, whose table violates its contract"):
        build(make(root=root), "r")
    (root / "sources" / "f.py").write_text(
        text.format('(columns={"TS": "timestamp", "x": "string"})')
    )
    assert build(make(root=root), "r")[1].rows == 1
