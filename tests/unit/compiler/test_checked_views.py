"""Checks of views as annotations: where they are accepted, and what they mean."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.compiler.remarks import unread_checks

RAW = "CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 't';\n"
READER = "--@ persist\nCREATE VIEW r AS SELECT a FROM v;\n"


def problems(files: dict[str, str]) -> list[str]:
    return [str(p).splitlines()[0] for p in compiled(files).problems]


@pytest.mark.proves("W22")
def test_checks_of_views_apply_to_readers_without_changing_build_ids() -> None:
    sql = RAW + "{}CREATE VIEW v AS SELECT a, b FROM t;\n" + READER
    plain = compiled({"m.sql": sql.format("")})
    checked = compiled({"m.sql": sql.format("--@ check { not_null=a unique=[a, b] }\n")})
    assert not checked.problems
    assert {s.key: s.build_id for s in checked.sources} == {
        s.key: s.build_id for s in plain.sources
    }
    (r,) = checked.persisted
    assert [(c.name, c.definition, c.blocking) for c in checked.checks_of_views(r)] == [
        ("m/v:not_null_a", "a not null in m/v", True),
        ("m/v:unique_a_b", "a, b unique in m/v", True),
    ]
    python = "from persist_assets import model\n@model(check={'not_null': ['a']})\ndef v(t):\n    return t\n"  # fmt: skip
    function = compiled({"m.sql": RAW + READER, "m.py": python})
    bare = python.replace("(check={'not_null': ['a']})", "")
    without = compiled({"m.sql": RAW + READER, "m.py": bare})
    assert not function.problems and not without.problems
    assert {s.key: s.build_id for s in function.sources} == {
        s.key: s.build_id for s in without.sources
    }
    (r,) = function.persisted
    assert [c.name for c in function.checks_of_views(r)] == ["m/v:not_null_a"]


@pytest.mark.parametrize(
    ("annotation", "query", "problem"),
    [
        ("check.not_null=c", "SELECT a FROM t", "`c` is not a column of `v`"),
        ("check.expr='a'", "SELECT a FROM t", "`a` is not a condition: it is not boolean"),
        ("check.relationship.a='t.c'", "SELECT a FROM t", "`c` is not a column of `t`"),
        ("check { unique=a { per=partition } }", "SELECT a FROM t", "`check.unique` is per partition, but there are no partitions"),
        ("check.not_null=a", "SELECT rand() AS a FROM t", "`v` is nondeterministic: its checks would see other rows"),
        ("columns { a }", "SELECT a FROM t", "`columns` has no effect on a source that is not persisted"),
    ],
)  # fmt: skip
def test_errors_in_checks_of_views_are_reported(annotation: str, query: str, problem: str) -> None:
    (found,) = problems({"m.sql": f"{RAW}--@ {annotation}\nCREATE VIEW v AS {query};\n"})
    assert problem in found
    assert found.startswith("sources/m.sql:2:")


def test_a_check_of_a_raw_table_is_rejected_with_a_hint() -> None:
    (found,) = compiled({"m.sql": "--@ check.not_null=a\n" + RAW}).problems
    assert (found.message, found.hint) == (
        "`check` has no effect on a raw table",
        "put it on a view of the table",
    )


def test_a_check_cannot_depend_on_sources_downstream_of_its_view() -> None:
    checked = "--@ check.relationship.a='r.a'\nCREATE VIEW v AS SELECT a FROM t;\n"
    (found,) = problems({"m.sql": RAW + checked + READER})
    assert "a check depends on data computed from the rows it checks: v → r → v" in found
    (other,) = compiled(
        {"m.sql": RAW + "--@ persist\nCREATE VIEW o AS SELECT a FROM t WHERE a > 0;\n"
         + checked.replace("'r.a'", "'o.a'") + READER}
    ).persisted[1:]  # fmt: skip
    assert other.name == "r"


def test_readers_of_a_view_wait_for_tables_that_its_checks_compare() -> None:
    other = "--@ persist\nCREATE VIEW o AS SELECT a FROM t WHERE a > 0;\n"
    checked = "--@ check.relationship.a='o.a'\nCREATE VIEW v AS SELECT a FROM t;\n"
    project = compiled({"m.sql": RAW + other + checked + READER})
    (reader,) = (s for s in project.persisted if s.name == "r")
    assert {s.name for s in project.waits_for(reader)} == {"t", "o"}


def test_sources_that_share_a_table_share_the_checks_of_their_views() -> None:
    checked = "--@ check.not_null=a\nCREATE VIEW v AS SELECT a FROM t;\n"
    twin = "--@ persist\nCREATE VIEW q AS SELECT a FROM t;\n"
    project = compiled({"m.sql": RAW + checked + READER + twin})
    assert len(project.by_build_id) == 1
    assert [[c.name for c in project.checks_of_views(s)] for s in project.persisted] == [
        ["m/v:not_null_a"]
    ] * 2


@pytest.mark.proves("W23")
@pytest.mark.parametrize(
    ("annotation", "n"),
    [
        ("not_null=a { keep_failures=true }", 10_000),
        ("not_null=a { keep_failures }", 10_000),
        ("not_null=a { keep_failures=1 }", 1),
        ("not_null=a { keep_failures=false }", 0),
        ("not_null=a", 0),
    ],
)
def test_keep_failures_sets_the_number_of_failing_rows_to_keep(annotation: str, n: int) -> None:
    view = f"--@ check {{ {annotation} }}\nCREATE VIEW v AS SELECT a FROM t;\n"
    project = compiled({"m.sql": RAW + view})
    assert not project.problems
    assert [c.keep_failures for s in project.sources for c in s.checks] == [n]


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ("not_null=a { keep_failures=0 }", "`keep_failures` must be `true`, `false` or a number of rows"),
        ("row_count { min=1 keep_failures=true }", "no single row fails `check.row_count`"),
    ],
)  # fmt: skip
def test_invalid_uses_of_keep_failures_are_rejected(check: str, problem: str) -> None:
    (found,) = problems(
        {"m.sql": f"{RAW}--@ check {{ {check} }}\nCREATE VIEW v AS SELECT a FROM t;\n"}
    )
    assert problem in found


CHECKED = "--@ check.not_null=a\nCREATE VIEW v AS SELECT a FROM t;\n"
TEMPORARY = CHECKED.replace("--@ check", "--@ persist materialized=temporary\n--@ check")


@pytest.mark.proves("W22")
@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (CHECKED, "v"),
        (TEMPORARY, "v"),
        (CHECKED + "CREATE VIEW w AS SELECT a FROM v;\n", "v"),
        (CHECKED + "--@ persist check.relationship.a='v.a'\nCREATE VIEW r AS SELECT a FROM t WHERE a > 0;\n", "v"),
        (CHECKED + READER, ""),
        (TEMPORARY + READER, ""),
        (CHECKED + "CREATE VIEW w AS SELECT a FROM v;\n" + READER.replace("FROM v", "FROM w"), ""),
        (CHECKED.replace("--@", "--@ persist"), ""),
        (CHECKED + "CREATE VIEW wrong AS SELECT b FROM v;\n", ""),
    ],
)  # fmt: skip
def test_check_warns_of_checks_that_no_build_runs(sql: str, names: str) -> None:
    remarks = [*unread_checks(compiled({"m.sql": RAW + sql}))]
    assert [p.message.split("`")[1] for p in remarks] == names.split()
    for remark in remarks:
        assert (remark.severity, remark.location.path) == ("warning", "sources/m.sql")
        assert remark.hint == "run them with `persist check --data v`, or persist it"
