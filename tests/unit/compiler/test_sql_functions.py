"""SQL functions and variables are inlined in the queries that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.compiled import build_ids, loaded, sound, text_of

if TYPE_CHECKING:
    from pathlib import Path


FUNCTIONS = """
CREATE FUNCTION twice(x INT) RETURNS INT RETURN x + x;
CREATE FUNCTION four(x INT) RETURNS INT COMMENT 'four times' RETURN twice(twice(x));
CREATE FUNCTION rounded(x DOUBLE, digits INT DEFAULT 2) RETURNS DECIMAL(10, 2)
  RETURN round(x, rounded.digits);
CREATE FUNCTION unused(x INT) RETURNS INT RETURN x;
DECLARE VARIABLE lowest INT DEFAULT 2;
DECLARE VARIABLE region STRING DEFAULT 'north';
"""
TABLE = "CREATE TABLE t (n INT, price DOUBLE, region STRING) USING parquet LOCATION 'data/t';\n"
A = "--@ persist\nCREATE VIEW a AS SELECT four(n) AS m, rounded(price) AS p FROM t;\n"
B = "--@ persist\nCREATE VIEW b AS SELECT n FROM t WHERE n > lowest;\n"


def problems(root: Path, **files: str) -> list[str]:
    return [str(p).split("\n")[0] for p in loaded(root, **files).project.errors]


@pytest.mark.proves("W20")
def test_functions_are_inlined_in_queries_of_other_files(tmp_path: Path) -> None:
    project = sound(tmp_path, f=FUNCTIONS, q=TABLE + A)
    twice = "CAST(CAST({0} AS int) + CAST({0} AS int) AS int)"
    inner = twice.format("CAST(n AS int)")
    four = f"CAST({twice.format(inner)} AS int)"
    assert text_of(project, "a") == (
        f"SELECT {four} AS m, CAST(round(CAST(price AS double), CAST(2 AS int)) AS decimal(10,2))"
        " AS p FROM t"
    )
    written = TABLE + (
        f"--@ persist\nCREATE VIEW a AS SELECT {four} AS m, "
        "CAST(round(CAST(price AS double), CAST(2 AS int)) AS decimal(10,2)) AS p FROM t;"
    )
    assert build_ids(sound(tmp_path, f="CREATE VIEW x AS SELECT 1 AS y", q=written)) == build_ids(
        project
    )


@pytest.mark.proves("W20")
@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("RETURN x + x", "RETURN x * 3", {"a"}),  # called indirectly
        ("RETURN x + x", "/* x */ RETURN  x -- x\n  + x", set[str]()),
        ("'four times'", "'4 times'", set[str]()),
        ("twice(x INT)", "twice( y  INTEGER )", {"a"}),  # the body then has an unknown name
        ("RETURN x;", "RETURN -x;", set[str]()),
        ("DEFAULT 2)", "DEFAULT 1)", {"a"}),
        ("lowest INT DEFAULT 2", "lowest INT DEFAULT 3", {"b"}),
        ("lowest INT DEFAULT 2", "lowest INT DEFAULT /* two */ 2", set[str]()),
        ("'north'", "'south'", set[str]()),
    ],
)
def test_an_edit_changes_only_the_build_ids_that_it_affects(
    tmp_path: Path, before: str, after: str, changed: set[str]
) -> None:
    """The second project is compiled with the cache of the first one."""
    first = build_ids(sound(tmp_path, f=FUNCTIONS, a=TABLE + A, b=B))
    assert before in FUNCTIONS
    project = loaded(tmp_path, f=FUNCTIONS.replace(before, after)).project
    second = build_ids(project)
    assert {name for name in first if first[name] != second.get(name)} == changed
    restored = build_ids(loaded(tmp_path, f=FUNCTIONS).project)
    assert restored == first


@pytest.mark.proves("W20")
def test_errors_in_functions_name_their_own_file_and_line(tmp_path: Path) -> None:
    text = "\nCREATE FUNCTION f(x INT) RETURNS INT\n  RETURN nosuch(x);"
    assert problems(tmp_path, f=text, q="CREATE VIEW a AS SELECT f(1) AS x, 2 AS y") == [
        "sources/f.sql:3:10: error: unknown function `nosuch` [unknown-function]"
    ]
    assert problems(tmp_path, f=text.replace("nosuch(x)", "x + y")) == [
        "sources/f.sql:3:14: error: `y` is not a parameter of `f` [function]"
    ]


CALLS = [
    ("four(1, 2) AS x", "8: error: `four` takes 1 argument, not 2 [argument-count]"),
    ("four() AS x", "8: error: `four` takes 1 argument, not 0 [argument-count]"),
    ("four(y => 1) AS x", "8: error: `four` has no parameter `y` [argument-count]"),
    ("four(1, x => 1) AS x", "8: error: `four` gets two arguments for `x` [argument-count]"),
    ("four(DISTINCT n) AS x", "8: error: `four` takes single values only [function]"),
    (
        "four(n) OVER () AS x",
        "8: error: `four` does not aggregate, so OVER cannot follow [function]",
    ),
    ("four(n)", "8: error: the result of `four` needs a name here [function-name]"),
    ("four(n) + 1", "8: error: the result of `four` needs a name here [function-name]"),
    ("(four(n), 1) AS x", "9: error: the result of `four` needs a name here [function-name]"),
    ("struct((four(n))) AS x", "16: error: the result of `four` needs a name here [function-name]"),
    ("struct(lowest) AS x", "15: error: the variable `lowest` needs a name here [variable]"),
    ("(n, session.lowest) AS x", "12: error: the variable `lowest` needs a name here [variable]"),
    ("struct(four(n)) AS x", "15: error: the result of `four` needs a name here [function-name]"),
    (
        "twice(CAST(rand() AS INT)) AS x",
        "14: error: `twice` uses `x` several times, and `rand` might have another value each time "
        "[function]",
    ),
    (
        "twice((SELECT max(n) FROM t)) AS x",
        "14: error: `twice` uses `x` several times, and this query might have another value each "
        "time [function]",
    ),
    (
        "each(array(1), e) AS x",
        "23: error: `e` is also a name in a lambda function of `each` [function]",
    ),
    (
        "each(array(1), randn()) AS x",
        "23: error: `each` uses `y` several times, and `randn` might have another value each time "
        "[function]",
    ),
    (
        "named(randn()) AS x",
        "14: error: `named` uses `x` several times, and `randn` might have another value each time "
        "[function]",
    ),
    (
        "decoded(randn()) AS x",
        "16: error: `decoded` uses `x` several times, and `randn` might have another value each "
        "time [function]",
    ),
    (
        "session.nothing AS x",
        "8: error: `session` is not a table in this query [unknown-column]",
    ),
]


@pytest.mark.proves("W20")
@pytest.mark.parametrize(("call", "message"), CALLS)
def test_calls_that_cannot_be_inlined_safely_are_rejected(
    tmp_path: Path, call: str, message: str
) -> None:
    each = (
        "CREATE FUNCTION each(xs ARRAY<INT>, y INT) RETURNS ARRAY<INT> "
        "RETURN transform(xs, e -> e + y);\n"
        "CREATE FUNCTION named(x INT) RETURNS STRING RETURN CASE x + 1 WHEN 1 THEN 'a' WHEN 2 "
        "THEN 'b' END;\n"
        "CREATE FUNCTION decoded(x INT) RETURNS STRING RETURN decode(x, 1, 'a', 2, 'b')"
    )
    query = f"{TABLE}CREATE VIEW v AS\nSELECT {call} FROM t"
    assert problems(tmp_path, f=FUNCTIONS + each, q=query) == [f"sources/q.sql:3:{message}"]


DEFINITIONS = [
    ("CREATE FUNCTION abs(x INT) RETURNS INT RETURN x", "has a function `abs` of its own"),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN f(x)", "`f` calls itself: f → f"),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN sum(x)", "`f` aggregates: `sum`"),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN explode(array(x))", "generates rows: `explode`"),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN rank() OVER (ORDER BY x)", "has a window"),
    ("CREATE FUNCTION f(x INT) RETURN (x, 1)", "has a field named `x`"),
    ("CREATE FUNCTION f(x INT) RETURN struct((x))", "has a field named `x`"),
    ("CREATE FUNCTION f(x INT) RETURNS STRING RETURN to_json((x, 1))", "has a field named `x`"),
    ("CREATE FUNCTION f(x INT) RETURNS INT", "`f` has no RETURN"),
    ("CREATE FUNCTION f(x INT, X INT) RETURNS INT RETURN x", "two parameters have the name `X`"),
    ("CREATE FUNCTION f(x INT NOT NULL) RETURNS INT RETURN x", "cannot be NOT NULL"),
    (
        "CREATE FUNCTION f(x VARCHAR(3)) RETURNS INT RETURN 1",
        "no functions or variables of type CHAR or VARCHAR",
    ),
    ("CREATE FUNCTION f(x INT4) RETURNS INT RETURN x", "unknown type `INT4`"),
    ("CREATE FUNCTION f(x INT DEFAULT rand()) RETURNS INT RETURN x", "default of `x` is not const"),
    (
        "CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE PYTHON RETURN x",
        "expected SQL after LANGUAGE",
    ),
    ("CREATE FUNCTION f(x INT) RETURNS INT BEGIN RETURN x", "unexpected `BEGIN`"),
    ("CREATE FUNCTION f AS 'com.example.F'", "classes cannot be functions of a project"),
    ("CREATE FUNCTION a.f(x INT) RETURNS INT RETURN x", "the name of the function has a qualifier"),
    (
        "CREATE FUNCTION f(xs ARRAY<INT>, x INT) RETURNS INT RETURN size(filter(xs, x -> x > 1))",
        "`x` names both a parameter and a parameter of a lambda function",
    ),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN x +", "something is missing after"),
    ("DECLARE VARIABLE v INT DEFAULT 'abc'", "`v`: 'abc' is not an int"),
    ("DECLARE VARIABLE v TINYINT DEFAULT 300", "`v`: 300 is not a tinyint"),
    ("DECLARE VARIABLE v DATE DEFAULT '2024-02-30'", "`v`: '2024-02-30' is not a date"),
    ("DECLARE VARIABLE v DATE DEFAULT current_date", "the value of `v` is not constant"),
    ("DECLARE v = 3", "the variable `v` has no type"),
    ("DECLARE VARIABLE v NUMBER", "unknown type `NUMBER`"),
]


@pytest.mark.proves("W20")
@pytest.mark.parametrize(("definition", "message"), DEFINITIONS)
def test_definitions_that_cannot_be_inlined_are_errors_at_their_location(
    tmp_path: Path, definition: str, message: str
) -> None:
    """They are reported once, and queries that use them have no errors of their own."""
    query = "CREATE VIEW v AS SELECT f(1) AS x, 1 AS y" if "FUNCTION f" in definition else "SELECT"
    files = {"f": f"\n{definition};", **({"q": query} if query != "SELECT" else {})}
    [problem] = problems(tmp_path, **files)
    assert message in problem, problem
    assert problem.startswith("sources/f.sql:2:"), problem


@pytest.mark.proves("W20")
def test_two_definitions_of_one_name_are_an_error(tmp_path: Path) -> None:
    text = "CREATE FUNCTION f(x INT) RETURNS INT RETURN x;\nDECLARE v INT;"
    assert problems(tmp_path, a=text, b=text) == [
        "sources/b.sql:1:17: error: `f` is already defined at sources/a.sql:1:17 [duplicate-name]",
        "sources/b.sql:2:9: error: `v` is already defined at sources/a.sql:2:9 [duplicate-name]",
    ]
    [problem] = loaded(tmp_path, settings='functions = ["f"]', a=text, b="").project.errors
    assert problem.message == "`f` is a function of the session, too"


def test_calls_that_expand_exponentially_are_rejected(tmp_path: Path) -> None:
    call = "n"
    for _ in range(20):
        call = f"twice({call})"
    [problem] = problems(
        tmp_path, f=FUNCTIONS, q=f"{TABLE}CREATE VIEW v AS SELECT {call} AS x FROM t"
    )
    assert problem.endswith("this call expands to too long a query [function]")


SETTINGS = """
[variables]
lowest = 7
start = 2024-01-01
rate = { type = "decimal(4,2)", value = "1.5" }

[env.dev.variables]
lowest = 1

[env.prod]
"""


@pytest.mark.proves("W21")
def test_variables_have_values_by_environment_and_affect_only_their_readers(tmp_path: Path) -> None:
    c = "--@ persist\nCREATE VIEW c AS SELECT n * rate AS r FROM t WHERE start < current_date();"
    dev = sound(tmp_path, "dev", SETTINGS, f=FUNCTIONS, a=TABLE + A, b=B, c=c)
    prod = sound(tmp_path, "prod")
    assert text_of(dev, "b").endswith("n > CAST(1 AS int)")
    assert text_of(prod, "b").endswith("n > CAST(7 AS int)")
    assert "n * CAST('1.5' AS decimal(4,2)) AS r" in text_of(dev, "c")
    assert "CAST('2024-01-01' AS date) < current_date()" in text_of(dev, "c")
    different = {name for name, b in build_ids(dev).items() if b != build_ids(prod)[name]}
    assert different == {"b"}


@pytest.mark.proves("W21")
def test_a_variable_selected_as_a_column_names_it_as_in_spark(tmp_path: Path) -> None:
    query = (
        TABLE + "CREATE VIEW v AS SELECT Lowest, session.`Region`, lowest + 1 AS l, region AS r\n"
        "FROM (SELECT system.session.region) UNION SELECT lowest, region, n, 'x' FROM t;\n"
        "CREATE VIEW w AS SELECT Lowest, x.`Region` FROM v AS x ORDER BY lowest;\n"
    )
    project = sound(tmp_path, f=FUNCTIONS, q=query)
    columns = {s.name: [c.name for c in s.known_columns] for s in project.sources}
    assert columns["v"] == ["Lowest", "Region", "l", "r"]
    assert columns["w"] == ["Lowest", "Region"]
    assert text_of(project, "v").startswith(
        "SELECT CAST(2 AS int) AS `Lowest`, CAST('north' AS string) AS `Region`,"
    )


@pytest.mark.proves("W21")
def test_columns_take_precedence_over_variables(tmp_path: Path) -> None:
    query = (
        TABLE + "CREATE VIEW v AS SELECT region, session.region AS r, system.session.lowest AS l "
        "FROM t WHERE region = 'x' AND n > lowest;\n"
        "CREATE VIEW w AS SELECT n AS lowest FROM t ORDER BY lowest;\n"
        "CREATE VIEW x AS SELECT region AS r, lowest + 1 AS l FROM w;\n"
    )
    project = sound(tmp_path, f=FUNCTIONS, q=query)
    assert text_of(project, "v") == (
        "SELECT region, CAST('north' AS string) AS r, CAST(2 AS int) AS l "
        "FROM t WHERE region = 'x' AND n > CAST(2 AS int)"
    )
    assert text_of(project, "w") == "SELECT n AS lowest FROM t ORDER BY lowest"
    assert text_of(project, "x") == "SELECT CAST('north' AS string) AS r, lowest + 1 AS l FROM w"
    assert text_of(sound(tmp_path), "v") == text_of(project, "v")  # with the cache
    struct = (
        "CREATE TABLE s (session STRUCT<lowest: INT>) USING parquet LOCATION 'data/s';\n"
        "CREATE VIEW y AS SELECT session.lowest AS a, system.session.lowest AS b FROM s;\n"
    )
    assert text_of(sound(tmp_path, s=struct), "y") == (
        "SELECT session.lowest AS a, CAST(2 AS int) AS b FROM s"
    )
    query = loaded(tmp_path).parse("SELECT region, lowest FROM t")
    assert query.text == "SELECT region, CAST(2 AS int) AS `lowest` FROM t"


@pytest.mark.proves("W20")
def test_a_parameter_in_the_position_of_a_unit_is_replaced(tmp_path: Path) -> None:
    """Otherwise `date_add(n, 1)` of a function would read a column `n` of the calling query."""
    functions = "CREATE FUNCTION next(n DATE) RETURNS DATE RETURN date_add(n, datediff(n, n));\n"
    query = TABLE + "CREATE VIEW v AS SELECT next(DATE '2024-01-01') AS d FROM t;\n"
    n = "CAST(DATE '2024-01-01' AS date)"
    written = f"SELECT CAST(date_add({n}, datediff({n}, {n})) AS date) AS d FROM t"
    assert text_of(sound(tmp_path, f=functions, q=query), "v") == written


@pytest.mark.proves("W21")
@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("lowest", "(SELECT s.lowest FROM u)"),
        ("lowest", "(SELECT s.* FROM u)"),
        ("lowest", "(SELECT inline(array(s)) FROM u)"),
        ("lowest", "(SELECT region FROM t) PIVOT (count(1) FOR region IN ('lowest'))"),
        ("lowest", "t UNPIVOT (lowest FOR name IN (n, price))"),
        ("id", "range(3)"),
        ("col1", "VALUES (1)"),
        ("col", "t LATERAL VIEW explode(array(n))"),
        ("window", "(SELECT window(day, '1 day') FROM u GROUP BY window(day, '1 day'))"),
    ],
)
def test_implicit_columns_take_precedence_over_variables(
    tmp_path: Path, name: str, below: str
) -> None:
    tables = "CREATE TABLE u (day DATE, s STRUCT<lowest: INT>) USING parquet LOCATION 'data/u';\n"
    names = ("id", "col", "col1", "window")
    variables = "".join(f"DECLARE VARIABLE {n} INT DEFAULT 9;\n" for n in names)
    query = f"{TABLE}{tables}CREATE VIEW v AS SELECT {name}, session.{name} AS other FROM {below};"
    project = sound(tmp_path, f=FUNCTIONS + variables, q=query)
    value = 2 if name == "lowest" else 9
    written = f"SELECT {name}, CAST({value} AS int) AS other FROM {below}"
    assert text_of(project, "v") == written


@pytest.mark.proves("W21")
def test_a_variable_beside_implicit_columns_needs_a_qualifier(
    tmp_path: Path,
) -> None:
    view = "CREATE VIEW v AS SELECT e FROM t LATERAL VIEW explode(array(n)) x AS e WHERE {} > 1"
    query = TABLE + view
    (problem,) = loaded(tmp_path, f=FUNCTIONS, q=query.format("lowest")).project.errors
    assert problem.message.startswith("`lowest` is not a column")
    assert problem.hint == "for the variable, write session.lowest"
    project = sound(tmp_path, q=query.format("session.lowest"))
    assert text_of(project, "v").endswith("WHERE CAST(2 AS int) > 1")


@pytest.mark.proves("W21")
def test_columns_of_table_functions_take_precedence_over_variables(tmp_path: Path) -> None:
    function = "CREATE FUNCTION f() RETURNS TABLE (lowest INT) RETURN SELECT n FROM t;\n"
    query = TABLE + "CREATE VIEW v AS SELECT lowest FROM f();\n"
    project = sound(tmp_path, f=FUNCTIONS + function, q=query)
    assert text_of(project, "v").startswith("SELECT lowest FROM (SELECT")


WRONG_SETTINGS = [
    ('[variables]\nlowest = "a"', "persist.toml:2:1: error: `variables.lowest`: 'a' is not an int"),
    ("[variables]\nx = [1]", "`variables.x` has no value"),
    ('[variables]\nx = { type = "date", value = "2024-13-01" }', "'2024-13-01' is not a date"),
    (
        '[variables]\nx = { type = "datum", value = "a" }',
        "`variables.x` has the unknown type `datum`",
    ),
    ('[variables]\nx = { type = "int" }', "`variables.x` must have a type and a value"),
    ('[variables]\n"a b" = 1', "invalid variable name `a b`"),
    ("[variables]\nx = 1\nX = 2", "`variables.X` differs from `x` in case only"),
    ('[variables]\nx = 1\n[env.dev.variables]\nx = "a"', "`variables.x`: 'a' is not an int"),
    (
        '[variables]\nx = 1\n[env.dev.variables]\nx = { type = "string", value = "a" }',
        "`variables.x` must have the same type as in the project: int",
    ),
]


@pytest.mark.proves("W21")
@pytest.mark.parametrize(("settings", "message"), WRONG_SETTINGS)
def test_invalid_values_of_variables_are_errors_at_their_location(
    tmp_path: Path, settings: str, message: str
) -> None:
    from persist_assets.core.errors import SettingsError

    try:
        errors = [str(p) for p in loaded(tmp_path, settings=settings, f=FUNCTIONS).project.errors]
    except SettingsError as error:
        errors = [f"{error.location}: error: {error.message}"]
    assert len(errors) == 1
    assert message in errors[0]
    assert errors[0].startswith(f"persist.toml:{len(settings.splitlines())}:1")


@pytest.mark.proves("W20")
def test_a_function_without_a_result_type_has_the_type_of_its_expression(tmp_path: Path) -> None:
    functions = "CREATE FUNCTION f(x INT) RETURN x + 1; CREATE FUNCTION one() RETURN 1;"
    query = "--@ persist\nCREATE VIEW a AS SELECT f(n) AS m FROM t GROUP BY one(), f(n);"
    project = sound(tmp_path, f=functions, q=TABLE + query)
    value = "coalesce(CAST(n AS int) + 1)"  # GROUP BY 1 would be the first column
    text = f"SELECT {value} AS m FROM t GROUP BY coalesce(1), {value}"
    assert text_of(project, "a") == text
    (column,) = next(s for s in project.persisted if s.name == "a").columns
    assert column.type == "int"


@pytest.mark.proves("W20")
@pytest.mark.parametrize(
    ("query", "needs_alias"),
    [
        ("SELECT four(n) FROM t", False),
        ("SELECT four(n) + 1 FROM t WHERE n > 0 GROUP BY n", False),
        ("SELECT 1 UNION ALL (SELECT four(n) FROM t)", False),
        ("WITH u AS (SELECT n FROM t) SELECT four(n) FROM u LIMIT 10", False),
        # An inlined call could have the name `n`, which these clauses would then mean.
        ("SELECT four(n) FROM t ORDER BY n LIMIT 10", True),
        ("SELECT four(n) FROM t GROUP BY n HAVING n > 1", True),
        ("SELECT four(n) FROM t UNION SELECT 1 ORDER BY n", True),
        ("SELECT four(n) FROM t UNION SELECT 1 ORDER BY 1", False),
        ("SELECT four(n), count(*) FROM t GROUP BY n HAVING count(*) > 1 ORDER BY 2", False),
        ("SELECT 1 UNION ALL (SELECT four(n) FROM t SORT BY n LIMIT 1)", True),
        ("SELECT * FROM (SELECT four(n) FROM t)", True),
        ("WITH u AS (SELECT four(n) FROM t) SELECT * FROM u", True),
    ],
)
def test_calls_need_no_alias_where_the_view_names_its_columns(
    tmp_path: Path, query: str, needs_alias: bool
) -> None:
    names = "m, c" if "count" in query else "m"
    view = f"--@ persist\nCREATE VIEW a ({names}) AS {query};"
    errors = problems(tmp_path, f=FUNCTIONS, q=TABLE + view)
    assert len(errors) == needs_alias
    assert not needs_alias or "the result of `four` needs a name here" in errors[0]
    (message,) = problems(tmp_path, q=TABLE + view.replace(f" ({names})", ""))
    assert "needs a name" in message or "needs an alias" in message, message


@pytest.mark.proves("W20")
def test_bodies_of_functions_may_have_variant_paths_and_pipes(tmp_path: Path) -> None:
    functions = (
        "CREATE FUNCTION city(v VARIANT) RETURN v:address.city::string;"
        "CREATE FUNCTION large(least INT) RETURNS TABLE (n INT)"
        " RETURN FROM t |> WHERE t.n > large.least |> SELECT n;"
        "CREATE FUNCTION bad() RETURNS TABLE (n INT)"
        " RETURN FROM t |> SELECT n |> WHERE t.n > 1;"
    )
    table = "CREATE TABLE t (n INT, v VARIANT) USING parquet LOCATION 'data/t';\n"
    query = "--@ persist\nCREATE VIEW a AS SELECT city(v) AS c FROM t, large(1) AS l;"
    project = loaded(tmp_path, f=functions, q=table + query).project
    assert [p.message for p in project.errors] == ["|> cannot be inlined"]
    assert text_of(project, "a") == (
        "SELECT coalesce(CAST(v AS variant):address.city::string) AS c FROM t, "
        "(SELECT CAST(`n` AS int) AS `n` FROM (FROM t |> WHERE t.n > CAST(1 AS int) |> SELECT n)"
        " AS `large`(`n`)) AS l"
    )


@pytest.mark.proves("W20")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT n FROM (SELECT n, v:lowest FROM t) WHERE lowest::int > 6",
        "FROM t |> SELECT n, v:a['lowest'] |> WHERE lowest::int > 6 |> SELECT n",
        "SELECT n FROM (SELECT n, v:`a.lowest` FROM t) WHERE lowest::int > 6",
    ],
)
def test_keys_of_variant_paths_take_precedence_over_variables(tmp_path: Path, query: str) -> None:
    table = "CREATE TABLE t (n INT, v VARIANT) USING parquet LOCATION 'data/t';\n"
    project = sound(tmp_path, f=FUNCTIONS, q=table + f"--@ persist\nCREATE VIEW a AS {query};")
    assert text_of(project, "a") == query
