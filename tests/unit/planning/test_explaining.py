"""The methods by which builds would follow changes of the tables that a source reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import with_programs_of

from persist_assets.compiler.programs import never_followed
from persist_assets.core.hints import hint_of
from persist_assets.core.model.annotations import Annotation
from persist_assets.operations.explain import rules_of, unbuilt
from persist_assets.planning.explaining import POLICIES, Explanation, Way, explain

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE t (id BIGINT, kind STRING, usr INT, ts TIMESTAMP, amt DECIMAL(10,2), f DOUBLE)
USING delta LOCATION 't';
CREATE TABLE u (usr INT, name STRING) USING delta LOCATION 'u';
CREATE TABLE files (usr INT, name STRING) USING parquet LOCATION 'files';
CREATE TABLE db (usr INT, name STRING) USING jdbc OPTIONS (url 'jdbc:x', dbtable 'db');
"""


def project_of(*sources: str, raw: str = RAW) -> Project:
    """Return a project with its programs; sources are annotations and statements."""
    project = with_programs_of({"raw.sql": raw, "q.sql": ";\n".join(sources) + ";"})
    assert not project.errors, project.errors
    return project


def explained(query: str, annotation: str = "", *others: str) -> Explanation:
    project = project_of(*others, f"--@ persist {annotation}\nCREATE VIEW q AS {query}")
    return explain(project, project.by_id["q@sources/q.sql"])


def ways(query: str, annotation: str = "", *others: str) -> dict[str, tuple[str, str]]:
    """Return, by table, the methods for added and for changed rows, with their keys."""

    def words(way: Way) -> str:
        keys = f" {' '.join(way.keys)}" if way.method == "keys" else ""
        return f"{way.method}{keys}{' or merge' if way.merges else ''}"

    tables = explained(query, annotation, *others).tables
    return {w.table.partition("@")[0]: (words(w.added), words(w.changed)) for w in tables}


GROUPED = "SELECT usr, sum(amt) AS s FROM t GROUP BY usr"
EXTREMES = "SELECT usr, max(id) AS m FROM t GROUP BY usr"
DOUBLES = "SELECT usr, sum(f) AS s FROM t GROUP BY usr"
JOINED = "SELECT id, name FROM t JOIN u USING (usr)"
BY_DAY = "SELECT CAST(ts AS date) AS day, sum(f) AS s FROM t LEFT JOIN u USING (usr) GROUP BY 1"
OF_MONTHS = "SELECT date_format(ts, 'yyyy-MM') AS month, sum(amt) AS s FROM t GROUP BY 1"
TIMED = "refresh=incremental watermark="


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    ("query", "annotation", "expected"),
    [
        ("SELECT id FROM t WHERE kind = 'a'", "", {"t": ("append", "keys ")}),
        (JOINED, "", {"t": ("append", "keys "), "u": ("append", "keys ")}),
        (GROUPED, "", {"t": ("keys usr or merge", "keys usr or merge")}),
        (GROUPED, "refresh=incremental", {"t": ("merge", "merge")}),
        (EXTREMES, "", {"t": ("keys usr or merge", "keys usr")}),
        (EXTREMES, "refresh=strict", {"t": ("merge", "keys usr")}),
        (DOUBLES, "refresh=incremental", {"t": ("keys usr", "keys usr")}),
        ("SELECT count(*) AS n FROM t", "", {"t": ("whole or merge", "whole or merge")}),
        (BY_DAY, f"{TIMED}day", {"t": ("windows", "windows"), "u": ("keys day", "keys day")}),
        (OF_MONTHS, f"{TIMED}month", {"t": ("merge", "merge")}),
        (GROUPED, "watermark=usr", {"t": ("keys usr or merge", "keys usr or merge")}),
        ("SELECT id, ts FROM t", f"{TIMED}ts", {"t": ("append", "windows")}),
        ("SELECT id, ts FROM t", f"{TIMED}ts merge_key=id", {"t": ("merge", "whole")}),
        (
            "SELECT max(ts) AS ts, count(*) AS n FROM t",
            f"{TIMED}ts assume=exact",
            {"t": ("windows", "whole")},
        ),
        (GROUPED, "refresh=whole", {"t": ("whole", "whole")}),
        (GROUPED, "refresh=snapshot key=usr", {"t": ("history", "history")}),
        (GROUPED, "partition { usr=[1, 2] }", {"t": ("partitions", "partitions")}),
        (GROUPED, "materialized=view", {"t": ("whole", "whole")}),
        ("SELECT id, rand() AS r FROM t", "", {"t": ("whole", "whole")}),
        ("SELECT usr, name FROM files", "", {"files": ("append", "whole")}),
        ("SELECT usr, name FROM db", "", {"db": ("whole", "whole")}),
        ("SELECT id FROM t ORDER BY id LIMIT 5", "", {"t": ("keys ", "keys ")}),
        ("SELECT id FROM t ORDER BY id LIMIT 5 OFFSET 1", "", {"t": ("whole", "whole")}),
        (
            "SELECT id FROM t WHERE usr NOT IN (SELECT usr FROM u)",
            "",
            {"t": ("append", "keys "), "u": ("keys ", "keys ")},
        ),
    ],
)
def test_each_input_table_has_methods_for_added_and_changed_rows(
    query: str, annotation: str, expected: dict[str, tuple[str, str]]
) -> None:
    assert ways(query, annotation) == expected


def test_inlined_sources_are_expanded_and_persisted_sources_are_not() -> None:
    grouped = f"CREATE VIEW v AS {GROUPED}"
    assert ways("SELECT usr FROM v WHERE s > 1", "", grouped)["t"][0] == "keys usr or merge"
    kept = f"--@ persist\nCREATE VIEW v AS {GROUPED}"
    assert ways("SELECT usr FROM v WHERE s > 1", "", kept) == {"v": ("append", "keys ")}
    view = f"--@ persist materialized=view\nCREATE VIEW v AS {GROUPED}"
    (table,) = explained("SELECT usr FROM v", "", view).tables
    assert table.added == Way(
        "whole", why="the changes in v are unknown", hint="write materialized=table there"
    )


def test_a_temporary_input_table_prevents_merging() -> None:
    temporary = "--@ persist materialized=temporary\nCREATE VIEW v AS SELECT usr, amt FROM t"
    query = "SELECT usr, sum(amt) AS s FROM v GROUP BY usr"
    assert ways(query, "refresh=incremental", temporary) == {"t": ("keys usr", "keys usr")}


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    ("query", "annotation", "why", "hint"),
    [
        ("SELECT id FROM t\nLIMIT 3", "", "it is nondeterministic", "compute what is"),
        ("SELECT current_date() AS d FROM t", "", "it depends on the current time", "compare with"),
        (GROUPED, "refresh=whole", "refresh=whole computes all rows of a stale table", "remove"),
        (GROUPED, "materialized=view", "it is materialized as a view", "write materialized=table"),
    ],
)
def test_annotations_and_functions_can_rule_out_incremental_builds(
    query: str, annotation: str, why: str, hint: str
) -> None:
    found = explained(query, annotation)
    assert found.never == why
    assert (found.hint or "").startswith(hint)
    assert {w.added.method for w in found.tables} == {"whole"}
    assert {w.added.why for w in found.tables} == {why}


def test_nondeterministic_calls_are_reported_with_their_locations() -> None:
    view = "CREATE VIEW v AS SELECT id,\n  uuid() AS x FROM t"
    found = explained("SELECT x,\n  current_date AS d,\n  now() AS n FROM v", "", view)
    calls = [(n.node, n.obstacle, n.location and n.location.line) for n in found.nodes][:3]
    assert calls == [
        ("current_date()", "of current_date(), which reads the clock", 5),
        ("now()", "of now(), which reads the clock", 6),
        ("uuid()", "of uuid(), which is nondeterministic", 2),
    ]
    with_arguments = explained("SELECT unix_timestamp(ts) AS s FROM t")
    assert not [n for n in with_arguments.nodes if n.obstacle]
    column = explained(
        "SELECT current_date FROM w", "", "CREATE VIEW w AS SELECT 1 AS current_date"
    )
    assert not [n for n in column.nodes if n.obstacle]


def test_every_value_of_refresh_has_a_policy() -> None:
    for value in ("auto", "incremental", "whole", "snapshot"):
        assert explained_policy(value).startswith("a build ")
    assert Annotation(refresh="incremental", is_strict=True).refresh_value in POLICIES
    parted = explained(GROUPED, "partition { usr=[1, 2] }")
    assert parted.policy == "a build computes only the partitions that can differ"


def explained_policy(value: str) -> str:
    more = " key=usr" if value == "snapshot" else ""
    return explained(GROUPED, f"refresh={value}{more}").policy


@pytest.mark.parametrize(
    "reason",
    [
        "it is computed by a function",
        "it gets prices without usr, and prices changed",
        "it reads prices, which changed and whose columns are unknown",
        "it reads prices, which changed and has no table",
        "it is materialized as a view",
        "it is materialized as a temporary",
        "refresh=whole computes all rows of a stale table",
        "of merged aggregates with settings that change types or overflows",
        "it is nondeterministic",
        "it depends on the current time",
        "rows of x changed or were removed, and its files keep no earlier version",
    ],
)
def test_reasons_that_users_can_change_have_a_hint(reason: str) -> None:
    assert hint_of(reason) not in (None, hint_of("of something else"))
    assert hint_of("its table has other rows than its query") is None


def test_the_document_needs_no_ledger() -> None:
    project = project_of(f"--@ persist\nCREATE VIEW q AS {DOUBLES}")
    source = project.by_id["q@sources/q.sql"]
    document = rules_of(project, source)
    assert document["refresh"] == "auto"
    (node,) = document["nodes"]
    assert (node["path"], node["line"], node["merged"]) == ("sources/q.sql", 2, None)
    assert node["not_merged"] == "sum() of double cannot be merged exactly"
    (table,) = document["tables"]
    assert table["rows_added"]["keys"] == ["usr"]
    chain = unbuilt(source, source.key)
    assert (chain["available"], chain["costs"]) == (False, [])
    assert chain["code"] == {
        "source_id": "q@sources/q.sql",
        "build_id": None,
        "is_current": False,
        "path": "sources/q.sql",
        "line": 2,
    }


def test_warnings_name_only_sources_that_no_build_can_update_incrementally() -> None:
    project = project_of(
        f"--@ persist refresh=strict\nCREATE VIEW totals AS {GROUPED}",
        "--@ persist refresh=strict\nCREATE VIEW first AS\nSELECT id FROM t ORDER BY id\nLIMIT 5 OFFSET 1",
        "--@ persist refresh=incremental\nCREATE VIEW some AS\nSELECT id FROM t ORDER BY id LIMIT 5 OFFSET 1",
        "--@ persist\nCREATE VIEW auto AS SELECT id FROM t ORDER BY id LIMIT 5",
    )
    strict, incremental = never_followed(project)
    because = "there is no rule because of a LIMIT with an OFFSET"
    assert strict.message == (
        "with refresh=strict, only the first build of `first` and builds with --full-refresh"
        f" succeed: {because} (sources/q.sql:6)"
    )
    assert strict.location.line == 6
    assert incremental.message == (
        f"every build of `some` computes all rows: {because} (sources/q.sql:9)"
    )
    assert {p.severity for p in (strict, incremental)} == {"warning"}
    assert [p for p in project.problems if p.code == "increment"] == []


def test_a_query_that_is_nested_too_deeply_is_computed_in_full() -> None:
    views = ["CREATE VIEW v0 AS SELECT usr, sum(id) AS n FROM t GROUP BY usr"]
    views += [
        f"CREATE VIEW v{n} AS SELECT usr, sum(n) AS n FROM v{n - 1} GROUP BY usr"
        for n in range(1, 300)
    ]
    found = explained("SELECT usr, max(n) AS n FROM v299 GROUP BY usr", "", *views)
    (node,) = found.nodes
    assert node.obstacle == "the nesting of the query is too deep"
    (table,) = found.tables
    assert table.added.why == "there is no rule because the nesting of the query is too deep"
