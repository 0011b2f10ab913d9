"""Contracts and checks, validated at compile time against the known columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.core.contracts import alike, breaches, changes, stored_type
from persist_assets.core.model.checks import Check
from persist_assets.core.model.columns import Column

if TYPE_CHECKING:
    from persist_assets.core.model.annotations import SchemaChange
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

RAW = """
CREATE TABLE t (a BIGINT, b STRING, ts TIMESTAMP) USING parquet LOCATION 'raw/t';
CREATE TABLE carriers (code STRING, name STRING) USING parquet LOCATION 'raw/c';
"""
VIEW = "\nCREATE VIEW v AS SELECT a, b, ts, a / 2 AS half FROM t;\n"


def project(annotation: str, view: str = VIEW, **files: str) -> Project:
    return compiled({"m.sql": f"{RAW}--@ persist {annotation}{view}", **files})


def wrong(annotation: str, view: str = VIEW) -> list[str]:
    return [f"{p.message} | {p.hint}" for p in project(annotation, view).problems]


def source(annotation: str, view: str = VIEW, name: str = "v@sources/m.sql") -> Source:
    found = project(annotation, view)
    assert not found.problems
    return found.by_id[name]


# ------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("BIGINT", "bigint"),
        ("integer", "int"),
        ("dec(4)", "decimal(4,0)"),
        ("numeric", "decimal(10,0)"),
        ("DECIMAL( 10 , 2 )", "decimal(10,2)"),
        ("varchar(10)", "string"),
        (
            "map<string, array<struct<aB: int, `c d` long>>>",
            "map<string,array<struct<aB:int,`c d`:bigint>>>",
        ),
        ("bigintt", None),
        ("", None),
        ("int int", None),
        ("array", None),
        ("array<int", None),
        ("array<int,int>", None),
        ("map<int>", None),
        ("decimal(1,2,3)", None),
        ("int(3)", None),
        ("varchar", "string"),
        ("struct<>", "struct<>"),
        ("a;b", None),
    ],
)
def test_types_are_normalized_to_sparks_spelling(text: str, name: str | None) -> None:
    assert stored_type(text) == name


def test_types_that_we_cannot_read_are_compared_as_they_are_written() -> None:
    assert alike("interval day", "INTERVAL DAY")
    assert not alike("interval day", "int")


# --------------------------------------------------------------------------------------- contracts


@pytest.mark.proves("P25")
def test_a_contract_is_checked_at_compile_time_if_the_columns_are_known() -> None:
    (told,) = wrong('columns { a=int B="string not null" ts=timestamp gone="date not null" }')
    assert told == (
        "the columns of `v` differ from its contract:\n"
        "    added    half double\n"
        "    removed  gone date\n"
        "    retyped  a int → bigint | None"
    )
    assert wrong("columns { TS=timestamp b=string a=long half }") == []
    assert wrong("columns { a=bigint `*` }") == []


def test_an_unknown_type_does_not_breach_a_contract() -> None:
    check = Check("columns", "columns", ("a", "b"), ("int", "date"))
    assert breaches(check, [Column("a", None), Column("b", "date")]) == ()


def test_a_contract_changes_no_build_id() -> None:
    plain = source("")
    for said in (
        "columns { a b ts half }",
        "on_schema_change=fail",
        "check { row_count { min=1 } }",
    ):
        assert source(said).build_id == plain.build_id
        assert source(said).definition == plain.definition


@pytest.mark.parametrize(
    ("rule", "after", "refused"),
    [
        ("fail", "a int, b date", []),
        ("fail", "B DATE, a int", []),
        ("fail", "a int", ["removed  b date"]),
        ("fail", "a int, b date, c int", ["added    c int"]),
        (
            "fail",
            "a bigint, c int",
            ["added    c int", "removed  b date", "retyped  a int → bigint"],
        ),
        ("append", "a int, b date, c int", []),
        ("append", "a int, b int, c int", ["added    c int", "retyped  b date → int"]),
        ("append", "a int", ["removed  b date"]),
        ("sync", "x int", []),
    ],
)
def test_on_schema_change_is_enforced(rule: SchemaChange, after: str, refused: list[str]) -> None:
    def columns(text: str) -> list[Column]:
        return [Column(*pair.split(" ")) for pair in text.split(", ")]

    assert list(changes(rule, columns("a int, b date"), columns(after))) == refused


@pytest.mark.parametrize("key", ["columns { a }", "on_schema_change=fail"])
def test_contracts_have_no_effect_on_sources_that_are_not_persisted(key: str) -> None:
    found = compiled({"m.sql": f"{RAW}--@ {key}\nCREATE VIEW w AS SELECT a FROM t"})
    assert "has no effect on a source that is not persisted" in found.problems[0].message


# ------------------------------------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("range { xyz.min=1 }", "`xyz` is not a column of `v`"),
        ("range { haf.min=1 }", "`haf` is not a column of `v` | did you mean `half`?"),
        ("freshness { tss=1h }", "`tss` is not a column of `v` | did you mean `ts`?"),
        ("freshness { b=1h }", "`b` is string, so it has no age | use a date or a timestamp"),
        ('relationship { xyz="carriers.code" }', "`xyz` is not a column of `v`"),
        (
            'relationship { b="carrier.code" }',
            "unknown source `carrier` | did you mean `carriers`?",
        ),
        ('relationship { a="carriers.code" }', "`a` is bigint and `carriers.code` is string: they"),
        ('relationship { b="x.code" }', "unknown source `x` | None"),
        (
            'relationship { b="carriers.codes" }',
            "`codes` is not a column of `carriers` | did you mean `code`?",
        ),
        (
            "function=plausible",
            "`plausible` does not name the Python file of the function |",
        ),
    ],
)
def test_checks_are_checked_against_the_columns(check: str, expected: str) -> None:
    (told,) = wrong(f"check {{ {check} }}")
    assert told.startswith(expected)


def test_a_relationship_check_affects_the_build_order_but_not_the_build_id() -> None:
    other = "--@ persist\nCREATE VIEW zz AS SELECT code FROM carriers;\n"
    found = project('check { relationship { b="m/zz.CODE" } }', VIEW + other)
    assert not found.problems
    assert [s.name for s in found.persisted] == ["zz", "v"]
    v = found.by_id["v@sources/m.sql"]
    assert v.compared == ("zz@sources/m.sql",)
    assert [s.name for s in found.waits_for(v)] == ["t", "zz"]
    assert [s.name for s in found.inputs(v)] == ["t"]
    assert v.build_id == source("").build_id
    assert v.checks[0].definition == "b in zz@sources/m.sql.CODE"


def test_a_relationship_check_may_refer_to_its_own_source_but_not_downstream() -> None:
    assert source('check { relationship { a="v.half" } }').compared == ()
    below = "--@ persist\nCREATE VIEW w AS SELECT b FROM v;\n"
    (told,) = wrong('check { relationship { b="w.b" } }', VIEW + below)
    assert told.startswith("a check depends on data computed from the rows it checks: v → w → v | ")


# -------------------------------------------------------------------------------- check functions

HEAD = "from persist_assets import table\n"
PLAUSIBLE = "def plausible(rows):\n    return rows.filter('a < 0')\n"


def in_python(text: str, **files: str) -> Project:
    others = {f"/{name}.py": helper for name, helper in files.items()}
    return compiled({"raw.sql": RAW, "d.py": HEAD + text, **others})


def function(decorator: str, before: str = PLAUSIBLE, **files: str) -> Source:
    found = in_python(f"{before}@table({decorator})\ndef f(t): return t\n", **files)
    assert not found.problems, [str(p) for p in found.problems]
    return found.by_id["f@sources/d.py"]


@pytest.mark.parametrize(
    ("decorator", "blocking"),
    [
        ("check={'function': plausible}", True),
        ("check={'function': [plausible]}", True),
        ("check={'function': {'plausible': plausible, 'severity': 'warn'}}", False),
    ],
)
def test_a_function_checks_rows(decorator: str, blocking: bool) -> None:
    (check,) = function(decorator).checks
    assert (check.name, check.blocking) == ("function_plausible", blocking)
    assert check.function is not None and check.function.name == "plausible"
    assert check.definition == f"function plausible ({check.wording[:12]})"
    assert not check.fickle


def test_editing_the_code_of_a_check_function_changes_the_check_but_not_the_build_id() -> None:
    head = "from rules import plausible\n"
    rules = "LEAST = 0\ndef plausible(rows): return rows.filter(rows.a < LEAST)\n"
    one = function("check={'function': plausible}", head, rules=rules)
    two = function("check={'function': plausible}", head, rules=rules.replace("0", "1"))
    assert one.checks[0].definition != two.checks[0].definition
    assert one.build_id == two.build_id
    assert one.build_id == function("", "").build_id
    assert function("check={'function': plausible}").build_id == function("").build_id
    spaced = rules.replace("rows.a < LEAST", "rows.a  <  LEAST")
    again = function("check={'function': plausible}", head, rules=spaced)
    assert again.checks[0].definition == one.checks[0].definition


def test_a_check_function_that_reads_the_clock_is_marked_time_dependent() -> None:
    clock = "import datetime\ndef plausible(rows): return datetime.datetime.now().year > 2000\n"
    assert function("check={'function': plausible}", clock).checks[0].fickle


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "",
            "sources/d.py:2:27: error: this file neither defines nor imports a function `plausible`",
        ),
        ("def plausibel(rows): return True\n", "did you mean `plausibel`?"),
        (
            "def plausible(rows, others): return True\n",
            "must have one parameter for the rows, not 2",
        ),
        ("def plausible(): return True\n", "must have one parameter for the rows, not 0"),
        ("def plausible(rows): pass\n", "`plausible` returns nothing"),
        ("def plausible(rows: int): return True\n", "unsupported annotation `int`"),
        ("plausible = 1\n", "`plausible` is not always the same function"),
        (
            "import os.path as plausible\n",
            "this file neither defines nor imports a function `plausible`",
        ),
    ],
)
def test_invalid_check_functions_are_rejected(before: str, message: str) -> None:
    found = in_python(f"{before}@table(check={{'function': plausible}})\ndef f(t): return t\n")
    assert len(found.problems) == 1
    assert message in str(found.problems[0])


def test_a_syntax_error_in_a_helper_is_reported_once() -> None:
    text = (
        "from rules import plausible\n@table(check={'function': plausible})\ndef f(t): return t\n"
    )
    (told,) = in_python(text, rules="def plausible(rows: return 1\n").problems
    assert told.location.path == "rules.py"


# ------------------------------------------------------------------- check functions of SQL sources

RULES = "LEAST = 0\ndef plausible(rows): return rows.filter(rows.a < LEAST)\n"


def in_sql(name: str, **files: str) -> Project:
    others = {f"{path.replace('__', '/')}.py": text for path, text in files.items()}
    text = f"{RAW}--@ persist check {{ function {name} }}\nCREATE VIEW v AS SELECT a FROM t;"
    return compiled({"daily/m.sql": text, **others})


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ('="rules.plausible"', "/rules"),
        ('="lib.rules.plausible"', "/src__lib__rules"),
        ('="sources.rules.plausible"', "rules"),
        ('=".rules.plausible"', "daily__rules"),
        ('="..rules.plausible"', "rules"),
        ('{ kind=".rules.plausible" }', "daily__rules"),
    ],
)
def test_a_check_of_a_sql_source_names_a_function_by_its_file(name: str, file: str) -> None:
    project = in_sql(name, **{file: RULES})
    assert not project.problems, [str(p) for p in project.problems]
    (check,) = project.by_id["v@sources/daily/m.sql"].checks
    assert check.function is not None and check.function.name == "plausible"
    assert check.function.path == file.replace("__", "/").removeprefix("/") + ".py" or (
        check.function.path == f"sources/{file.replace('__', '/')}.py"
    )
    assert re.fullmatch("function_(kind|([a-z]+_)?([a-z]+_)?rules_plausible)", check.name)


def test_editing_a_check_function_of_sql_changes_the_check_but_not_the_build_id() -> None:
    def built(rules: str) -> Source:
        project = in_sql('="rules.plausible"', **{"/rules": rules, "/other": "LEAST = 1\n"})
        assert not project.problems
        return project.by_id["v@sources/daily/m.sql"]

    one, two = built(RULES), built(RULES.replace("0", "1"))
    assert one.checks[0].definition != two.checks[0].definition
    again = built(RULES.replace("rows.a <", "rows.a  <"))
    assert again.checks[0].definition == one.checks[0].definition
    other = built("from other import LEAST\n" + RULES.partition("\n")[2])
    assert other.checks[0].definition != one.checks[0].definition
    assert (
        one.build_id == two.build_id == source("", "\nCREATE VIEW v AS SELECT a FROM t;").build_id
    )
    clock = "import datetime\ndef plausible(rows): return datetime.datetime.now().year > 2000\n"
    assert built(clock).checks[0].fickle
    assert not one.checks[0].fickle


@pytest.mark.parametrize(
    ("name", "rules", "message"),
    [
        (
            '="rules.plausibel"',
            RULES,
            "rules.py neither defines nor imports a function `plausibel`",
        ),
        ('="rules.absent"', RULES, "rules.py neither defines nor imports a function `absent`"),
        (
            '="rule.plausible"',
            RULES,
            "no file rule.py with the function `plausible` | name modules",
        ),
        ('=".rules.plausible"', RULES, "no file sources/daily/rules.py with the function"),
        ('="....rules.plausible"', RULES, "`....rules.plausible` does not name the Python file"),
        (
            '="rules.LEAST"',
            RULES,
            "`LEAST` is not always the same function | give it a unique name",
        ),
        (
            '="rules.plausible"',
            "def plausible(a, b): return a\n",
            "the check `plausible` must have",
        ),
        (
            '="os.path.join"',
            RULES,
            "no file os/path.py with the function `join` | name modules",
        ),
    ],
)
def test_invalid_check_functions_of_sql_are_rejected_at_the_check(
    name: str, rules: str, message: str
) -> None:
    (problem,) = in_sql(name, **{"/rules": rules}).problems
    assert f"{problem.message} | {problem.hint}".startswith(message)
    assert problem.severity == "error"
    line = RAW.count("\n") + 1
    assert (problem.location.path, problem.location.line) == ("sources/daily/m.sql", line)


def test_a_missing_dot_for_a_file_in_the_same_directory_gets_a_hint() -> None:
    (problem,) = in_sql('="rules.plausible"', daily__rules=RULES).problems
    assert problem.hint == 'did you mean ".rules.plausible"?'


def test_problems_in_a_check_function_of_sql_are_reported_in_its_file() -> None:
    (problem,) = in_sql('="rules.plausible"', **{"/rules": "def plausible(:\n"}).problems
    assert str(problem).startswith("rules.py:1:15: error: invalid Python")
    writes = "def plausible(rows):\n    rows.write.parquet('x')\n    return True\n"
    (problem,) = in_sql('="rules.plausible"', **{"/rules": writes}).problems
    assert str(problem).startswith("rules.py:2:5: warning: `plausible` writes data itself")
