"""Compiling declarations into a project: names, order, columns, lineage, problems."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, compiled, draws
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.analysis import binding
from persist_assets.compiler.compile import compile_project, resolve_query
from persist_assets.compiler.frontends.sql import parse_query, parse_sql
from persist_assets.compiler.load import load_project, require
from persist_assets.compiler.names import Keys, source_id
from persist_assets.compiler.state import Memory, RawFacts
from persist_assets.core.errors import SourcesError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project

T = "CREATE TABLE t (a INT, b STRING, ts TIMESTAMP, s STRUCT<f: INT>) USING parquet LOCATION 't';\n"


def wrong(*texts: str) -> list[str]:
    project = compiled({f"f{i}.sql": text for i, text in enumerate(texts)})
    return [str(p).split("\n")[0].removeprefix("sources/") for p in project.problems]


def columns(query: str) -> list[tuple[str, str | None]]:
    project = compiled({"a.sql": f"{T}CREATE VIEW v AS {query}"})
    assert not project.problems, [str(p) for p in project.problems]
    return [(c.name, c.type) for c in project.by_id["v@sources/a.sql"].columns]


# ------------------------------------------------------------------------------------------- names


def test_a_name_resolves_to_a_source_in_the_same_file_first() -> None:
    project = compiled(
        {
            "a.sql": f"{T}CREATE VIEW x AS SELECT a FROM t; CREATE VIEW y AS SELECT a FROM x",
            "b.sql": "CREATE VIEW x AS SELECT b FROM t",
        }
    )
    assert not project.problems
    assert project.by_id["y@sources/a.sql"].reads == ("x@sources/a.sql",)


def test_a_qualified_name_resolves_to_a_source_in_that_file() -> None:
    project = compiled(
        {
            "a.sql": f"{T}CREATE VIEW x AS SELECT a FROM t",
            "d/b.sql": "CREATE VIEW x AS SELECT b FROM t",
            "c.sql": "CREATE VIEW y AS SELECT x.b FROM d.B.x",
        }
    )
    assert not project.problems
    assert project.by_id["y@sources/c.sql"].reads == ("x@sources/d/b.sql",)


def test_unknown_and_ambiguous_names_are_reported() -> None:
    assert wrong(
        f"{T}CREATE VIEW x AS SELECT a FROM t; CREATE VIEW p AS SELECT a FROM xx",
        "CREATE VIEW x AS SELECT a FROM t",
        "CREATE VIEW y AS SELECT a FROM x; CREATE VIEW z AS SELECT a FROM parquet.`/data/x`",
        "CREATE VIEW Y AS SELECT a FROM t",
    ) == [
        "f0.sql:2:66: error: unknown source `xx` [unknown-name]",
        "f2.sql:1:32: error: `x` is ambiguous: f0.x, f1.x [ambiguous-name]",
        "f2.sql:1:66: error: unknown source `parquet./data/x` [unknown-name]",
    ]


def test_duplicate_source_names_in_a_file_are_reported() -> None:
    assert wrong(f"{T}CREATE VIEW x AS SELECT a FROM t;\nCREATE VIEW X AS SELECT b FROM t") == [
        "f0.sql:3:13: error: `X` is already defined at sources/f0.sql:2:13 [duplicate-name]"
    ]


def test_cycles_of_sources_are_reported() -> None:
    assert wrong(
        "CREATE VIEW a AS SELECT 1 AS x FROM b; CREATE VIEW b AS SELECT 1 AS x FROM c",
        "CREATE VIEW c AS SELECT 1 AS x FROM a; CREATE VIEW d AS SELECT x FROM c",
        "CREATE VIEW s AS SELECT 1 AS x FROM s",
    ) == [
        "f0.sql:1:13: error: sources read each other in a cycle: a → b → c → a [cycle]",
        "f2.sql:1:13: error: sources read each other in a cycle: s → s [cycle]",
    ]


def test_a_reader_of_a_broken_source_is_omitted_without_an_error_of_its_own() -> None:
    project = compiled(
        {
            "a.sql": f"{T}CREATE VIEW x AS SELECT (; CREATE VIEW y AS SELECT nope FROM x; CREATE VIEW z AS SELECT a FROM t"
        }
    )
    assert [p.code for p in project.problems] == ["syntax"]
    assert [s.name for s in project.sources] == ["t", "z"]


@settings(max_examples=draws(6, 30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=300))
@pytest.mark.proves("M5")
def test_sources_are_ordered_after_those_that_they_read(pairs: list[tuple[int, int]]) -> None:
    reads: dict[int, set[int]] = {n: set() for n in range(201)}
    for a, b in pairs:
        if a != b:
            reads[max(a, b)].add(min(a, b))
    text = "".join(
        f"CREATE VIEW v{n} AS SELECT 1 AS x{''.join(f' {j} v{m} m{m}' for j, m in zip(['FROM', *['CROSS JOIN'] * len(some)], sorted(some), strict=False))};\n"
        for n, some in sorted(reads.items(), reverse=True)
    )
    project = compiled({"a.sql": text})
    assert not project.errors
    position = {s.source_id: i for i, s in enumerate(project.sources)}
    for source in project.sources:
        assert all(position[r] < position[source.source_id] for r in source.reads)


# ----------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT A, t.B AS bee FROM t", [("a", "int"), ("bee", "string")]),
        (
            "SELECT * FROM t AS x(p, q, r, s)",
            [("p", "int"), ("q", "string"), ("r", "timestamp"), ("s", "struct<f:int>")],
        ),
        ("SELECT * EXCEPT (s, ts) FROM t", [("a", "int"), ("b", "string")]),
        ("SELECT s.f, s.F AS g FROM t", [("f", None), ("g", None)]),
        (
            "SELECT count(*) AS n, sum(a) AS s, avg(a) AS m, max(b) AS x FROM t",
            [("n", "bigint"), ("s", "bigint"), ("m", "double"), ("x", "string")],
        ),
        (
            "SELECT CAST(a AS DECIMAL(10, 2)) AS d, a::string AS e FROM t",
            [("d", "decimal(10,2)"), ("e", "string")],
        ),
        ("SELECT a FROM t UNION ALL SELECT b FROM t", [("a", None)]),
        (
            "SELECT a > 1 AS c, b = 'x' AND a IS NULL AS d FROM t",
            [("c", "boolean"), ("d", "boolean")],
        ),
        (
            "SELECT row_number() OVER (ORDER BY a) AS rn, lag(b) OVER (ORDER BY a) AS l FROM t",
            [("rn", "int"), ("l", "string")],
        ),
        ("SELECT p.a, q.b FROM t AS p LEFT JOIN t AS q USING (a)", [("a", "int"), ("b", "string")]),
        (
            "SELECT el, pos FROM t LATERAL VIEW posexplode(array(a)) e AS pos, el",
            [("el", None), ("pos", "int")],
        ),
        (
            "WITH q(x) AS (SELECT a FROM t) SELECT x AS y, y + 1 AS z FROM q",
            [("y", "int"), ("z", "int")],
        ),
        (
            "SELECT coalesce(a, 0) AS c, if(a > 1, b, 'x') AS d, a / 2 AS e FROM t",
            [("c", "int"), ("d", "string"), ("e", "double")],
        ),
        ("VALUES (1, 'a'), (2, 'b')", [("col1", "int"), ("col2", "string")]),
        ("SELECT id FROM range(3)", [("id", "bigint")]),
    ],
)
def test_columns_and_types_are_inferred_where_they_are_certain(
    query: str, expected: list[tuple[str, str | None]]
) -> None:
    assert columns(query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT nope FROM t",
            "f0.sql:2:25: error: `nope` is not a column of the tables in this query [unknown-column]",
        ),
        (
            "SELECT x.a FROM t",
            "f0.sql:2:25: error: `x` is not a table in this query [unknown-column]",
        ),
        (
            "SELECT t.aa FROM t",
            "f0.sql:2:25: error: `aa` is not a column of `t` [unknown-column]",
        ),
        (
            "SELECT a FROM t AS x, t AS y",
            "f0.sql:2:25: error: `a` is ambiguous: several columns match [ambiguous-column]",
        ),
        (
            "SELECT b FROM (SELECT a FROM t)",
            "f0.sql:2:25: error: `b` is not a column of the tables in this query [unknown-column]",
        ),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM t AS y WHERE y.z = 1)",
            "f0.sql:2:75: error: `z` is not a column of `y` [unknown-column]",
        ),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM t AS y WHERE EXISTS"
            " (SELECT 1 FROM t AS z WHERE z.a = t.a))",
            "f0.sql:2:116: error: `t.a` is a column of a query two or more levels further out"
            " [unknown-column]",
        ),
        ("SELECT max(a) FROM t", "f0.sql:2:25: error: column 1 of `v` has no name [column-name]"),
        (
            "SELECT a, b AS A FROM t",
            "f0.sql:2:13: error: `v` has two columns named `A` [column-name]",
        ),
        (
            "SELECT a AS `x y` FROM t",
            "f0.sql:2:13: error: `x y` is not a valid column name for a table [column-name]",
        ),
        (
            "SELECT a FROM t UNION SELECT a, b FROM t",
            "f0.sql:2:47: error: the branches of a set operation have 1 and 2 columns [set-operation]",
        ),
        (
            "SELECT x.a FROM t AS x JOIN t AS y USING (aa)",
            "f0.sql:2:60: error: `aa` is not a column of one side of the join [join-key]",
        ),
    ],
)
def test_column_errors_are_reported_with_their_location(query: str, expected: str) -> None:
    assert wrong(f"{T}CREATE VIEW v AS {query}")[0] == expected


def test_an_unknown_column_of_a_table_has_suggestions_from_that_table() -> None:
    query = "SELECT x.d FROM (SELECT a AS c FROM t) AS x JOIN (SELECT a AS d FROM t) AS y"
    problem = compiled({"a.sql": f"{T}CREATE VIEW v AS {query}"}).errors[0]
    assert problem.message == "`d` is not a column of `x`"
    assert problem.hint == "known columns: c"


def test_an_unknown_column_has_a_suggestion() -> None:
    project = compiled({"a.sql": f"{T}CREATE VIEW v AS SELECT tss FROM t"})
    assert project.problems[0].hint == "did you mean `ts`?"


def test_columns_may_be_renamed_by_the_view() -> None:
    project = compiled(
        {"a.sql": f"{T}CREATE VIEW v (x COMMENT 'an x', y) AS SELECT a, max(b) FROM t GROUP BY a"}
    )
    assert not project.problems
    assert [(c.name, c.type, c.description) for c in project.sources[-1].columns] == [
        ("x", "int", "an x"),
        ("y", "string", None),
    ]
    assert wrong(f"{T}CREATE VIEW v (x) AS SELECT a, b FROM t") == [
        "f0.sql:2:13: error: `v` names 1 columns, but its query has 2 [columns]"
    ]


# ------------------------------------------------------------------------------------- annotations


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("check { not_null=[aa] }", "`aa` is not a column of `v`"),
        ("check { unique=[a, c] }", "`c` is not a column of `v`"),
        ("time_column=tt", "`tt` is not a column of `v`"),
        ('check { expr="c > 1" }', "`c` is not a column of `v`"),
        ('check { expr="a >" }', "`a >` is not a condition"),
        ('check { expr="SELECT 1" }', "`SELECT 1` is not a condition"),
        ('check { expr="sum(a) > 1" }', "`sum(a) > 1` looks at more than one row"),
        ('check { expr="first(a) = 1" }', "`first(a) = 1` looks at more than one row"),
        ('check { expr="any(a > 1)" }', "`any(a > 1)` looks at more than one row"),
        ('check { expr="COUNT_IF(a > 1) = 1" }', "looks at more than one row"),
        ('check { expr="explode(array(a)) = 1" }', "`explode(array(a)) = 1` generates rows"),
        ('check { expr="a > rand()" }', "`a > rand()` is nondeterministic"),
        ('check { expr="uuid() IS NULL" }', "`uuid() IS NULL` is nondeterministic"),
        ('check { expr="a IN (SELECT 1)" }', "`a IN (SELECT 1)` looks at more than one row"),
        ('check { expr="rank() OVER (ORDER BY a) = 1" }', "looks at more than one row"),
    ],
)
def test_annotations_are_checked_against_the_columns(annotation: str, expected: str) -> None:
    (problem,) = wrong(f"{T}--@ persist {annotation}\nCREATE VIEW v AS SELECT a, ts FROM t")
    assert expected in problem
    assert problem.startswith(("f0.sql:2:13: error", "f0.sql:2:21: error"))


@pytest.mark.parametrize(
    "condition",
    [
        "b LIKE ANY ('x', 'y')",
        "ts < now()",
        "b IN (left(b, 1), 'x')",
        "exists(array(a), x -> x > 1)",
    ],
)
def test_a_check_may_use_any_condition_on_one_row(condition: str) -> None:
    annotation = f'--@ persist check {{ expr="{condition}" }}'
    assert not wrong(f"{T}{annotation}\nCREATE VIEW v AS SELECT a, b, ts FROM t")


def test_sources_with_different_meanings_cannot_share_a_table_name() -> None:
    text = "--@ persist name=x\nCREATE VIEW {} AS SELECT {} FROM t;\n"
    assert wrong(T + text.format("v", "a") + text.format("w", "b")) == [
        "f0.sql:4:13: error: the table name `x` is already taken by `f0/v` at sources/f0.sql:3:13 "
        "[table-name]"
    ]
    assert not wrong(T + text.format("v", "a") + text.format("w", "A"))


def test_minus_persist_overrides_create_materialized_view() -> None:
    project = compiled({"a.sql": f"{T}--@ -persist\nCREATE MATERIALIZED VIEW v AS SELECT a FROM t"})
    assert not project.persisted


# ----------------------------------------------------------------------------- lineage and inputs


def lineage(project: Project, name: str) -> dict[str, list[str]]:
    edges: dict[str, list[str]] = {}
    for edge in project.by_id[f"{name}@sources/a.sql"].lineage:
        upstream = edge.upstream.source_id.partition("@")[0]
        edges.setdefault(edge.column, []).append(f"{upstream}.{edge.upstream.column}")
    return edges


def test_lineage_passes_through_unpersisted_sources_and_stops_at_persisted_ones() -> None:
    project = compiled(
        {
            "a.sql": f"""{T}
            --@ persist
            CREATE VIEW p AS SELECT a, count(*) AS n, max(b) AS m FROM t WHERE ts > '2020-01-01' GROUP BY a;
            CREATE VIEW v AS SELECT a + n AS an, m, 1 AS one FROM p;
            CREATE VIEW w AS WITH q AS (SELECT * FROM v) SELECT q.an, x.s, q.one, sum(x.a) OVER (PARTITION BY q.m) AS t
            FROM q LEFT JOIN t AS x ON q.m = x.b;
            CREATE VIEW u AS SELECT my_udf(an) AS z FROM w;
            """
        }
    )
    assert not project.errors
    assert lineage(project, "p") == {"a": ["t.a"], "m": ["t.b"]}
    assert lineage(project, "w") == {"an": ["p.a", "p.n"], "s": ["t.s"], "t": ["p.m", "t.a"]}
    assert [s.name for s in project.inputs(project.by_id["w@sources/a.sql"])] == ["t", "p"]
    assert lineage(project, "u")["z"] == ["p.a", "p.m", "p.n", "t.a", "t.s"]


def test_lineage_stops_at_persisted_columns_computed_by_windows_and_subqueries() -> None:
    project = compiled(
        {
            "a.sql": f"""{T}
            --@ persist
            CREATE VIEW p AS
            SELECT a, max(b) OVER (PARTITION BY a) AS m, (SELECT max(s) FROM t) AS x FROM t;
            CREATE VIEW w AS SELECT m, x, sum(a) OVER (PARTITION BY m) AS z FROM p;
            CREATE VIEW g AS SELECT m, x, sum(a) AS z FROM p GROUP BY m, x;
            """
        }
    )
    assert not project.errors
    assert lineage(project, "w") == {"m": ["p.m"], "x": ["p.x"], "z": ["p.a", "p.m"]}
    assert lineage(project, "g") == {"m": ["p.m"], "x": ["p.x"], "z": ["p.a"]}


def test_a_note_on_a_clock_function_is_inherited_by_readers_of_its_column() -> None:
    project = compiled(
        {
            "a.sql": f"""{T}
            CREATE VIEW v AS SELECT current_date() AS d, a FROM t;
            CREATE VIEW w AS SELECT d, a FROM v;
            CREATE VIEW x AS SELECT a FROM v;
            """
        }
    )
    v, w, x = (project.by_id[f"{name}@sources/a.sql"] for name in "vwx")
    assert w.notes == v.notes != ()
    assert x.notes == ()


@pytest.mark.parametrize("size", range(4, 36))
def test_build_ids_do_not_depend_on_which_sources_are_cached(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal constants and tables may be one object or several, depending on the cache."""
    monkeypatch.setattr(binding, "MAX_SIZE", size)
    text = f"""{T}
        CREATE VIEW x AS SELECT a + 1 AS p, b = 'y' AND EXISTS (SELECT 1 FROM t u WHERE u.a < 1) AS q FROM t;
        CREATE VIEW y AS SELECT p + 1 AS p, q FROM x WHERE q AND p > 2;
        CREATE VIEW z AS SELECT coalesce(x.p, y.p, 1) AS p, x.q OR y.q AS q FROM x JOIN y ON x.p = y.p + 1;
        CREATE VIEW r AS SELECT p + 1 AS p FROM z WHERE q;
    """
    declarations, _ = parse_sql(text, "sources/a.sql")

    def ids(memory: Memory) -> list[str]:
        raws = {source_id(d): RawFacts("t", d.columns) for d in declarations if d.raw}
        project = compile_project(
            declarations, keys=Keys("sources"), connection="", raws=raws, memory=memory
        ).project
        return [s.build_id for s in require(project).sources]

    cold = Memory()
    said = ids(cold)
    for several in itertools.product((False, True), repeat=len(cold.used)):
        chosen = itertools.compress(cold.used.items(), several)
        assert ids(Memory({key: meaning.packed() for key, meaning in chosen})) == said


def test_nondeterministic_sources_and_clock_readers_are_marked() -> None:
    project = compiled(
        {
            "a.sql": f"""{T}
            CREATE VIEW r AS SELECT a, rand() AS x FROM t;
            CREATE VIEW d AS SELECT a FROM r WHERE ts_day < current_date AND a > 1;
            CREATE VIEW e AS SELECT x, current_date AS d FROM r;
            CREATE VIEW i AS SELECT d, now() AS n FROM e;
            --@ persist
            CREATE VIEW p AS SELECT * FROM i;
            CREATE VIEW z AS SELECT n FROM p;
            CREATE VIEW l AS SELECT a FROM t LIMIT 3;
            """.replace("ts_day", "current_date")
        }
    )
    by_name = {s.name: s for s in project.sources}
    assert [by_name[n].volatile for n in "rdeipzl"] == [True, True, True, True, True, False, True]
    assert [by_name[n].reads_clock for n in "rdeipzl"] == [
        None,
        "day",
        "day",
        "instant",
        "instant",
        None,
        None,
    ]
    assert "nondeterministic (rand)" in by_name["r"].notes[0]
    assert "nondeterministic (limit)" in by_name["l"].notes[0]


def test_an_ad_hoc_query_resolves_names_across_the_project() -> None:
    project = compiled({"a.sql": f"{T}CREATE VIEW v AS SELECT a FROM t"})
    assert resolve_query(project, parse_query("SELECT * FROM V JOIN a.t")) == (
        "v@sources/a.sql",
        "t@sources/a.sql",
    )
    with pytest.raises(SourcesError, match="did you mean `v`"):
        resolve_query(project, parse_query("SELECT * FROM vv"))


# --------------------------------------------------------------------------------- larger projects


def test_reading_a_window_source_in_a_cte_or_subquery_gives_one_build_id() -> None:
    raw = "CREATE TABLE t (a INT, k INT, d DATE) USING parquet LOCATION 't';\n"
    source = (
        "--@ persist\nCREATE VIEW v AS WITH r AS ("
        "SELECT k, lag(a) OVER (PARTITION BY k ORDER BY d) AS l,"
        " row_number() OVER (PARTITION BY a ORDER BY d) AS n FROM t"
        ") SELECT k, l FROM r WHERE n <= 9;\n"
    )
    inside = "SELECT k, sum(l) AS s FROM v WHERE l IS NOT NULL GROUP BY k"
    cte = f"CREATE VIEW q AS WITH x AS ({inside}) SELECT t.k, x.s FROM t JOIN x ON t.k = x.k;\n"
    plain = f"CREATE VIEW p AS SELECT t.k, x.s FROM t JOIN ({inside}) x ON t.k = x.k;\n"
    project = compiled({"a.sql": raw + source + cte + plain})
    assert not project.problems
    first, second = (project.by_id[f"{name}@sources/a.sql"] for name in "qp")
    assert first.build_id == second.build_id
    assert not first.notes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_generated_projects_are_analysed_without_notes(seed: int, tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "gen_project.py"
    made = ["--n", "200", "--seed", str(seed), "--format", "persist", "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(script), *made], check=True, capture_output=True)
    project = load_project(load_settings(tmp_path))
    assert not project.problems
    assert len(project.persisted) == 200
    assert not [s.source_id for s in project.sources if s.notes]
