"""SQL functions and variables in the conditions of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.compiled import loaded

from persist_assets.planning.changed_checks import changed_checks

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project

FUNCTIONS = """
CREATE FUNCTION net(price DOUBLE, rate DOUBLE DEFAULT 0.25) RETURNS DOUBLE RETURN price * rate;
CREATE FUNCTION lot() RETURNS DOUBLE RETURN rand();
DECLARE VARIABLE lowest INT DEFAULT 2;
DECLARE VARIABLE region STRING DEFAULT 'north';
"""
TABLE = "CREATE TABLE t (n INT, price DOUBLE, region STRING) USING parquet LOCATION 'data/t';\n"
NET = "CAST(CAST(price AS double) * CAST({} AS double) AS double)"


def conditions(project: Project, name: str) -> list[str]:
    assert not project.problems, [str(p) for p in project.problems]
    return [c.definition for s in project.sources if s.name == name for c in s.checks]


def view(check: str, columns: str = "n, price, region") -> str:
    return f'{TABLE}--@ persist check {{ expr="{check}" }}\nCREATE VIEW v AS SELECT {columns} FROM t;\n'


@pytest.mark.proves("W28")
def test_checks_expand_functions_and_variables(tmp_path: Path) -> None:
    """The functions are in the same file as a source with an annotation."""
    project = loaded(tmp_path, q=FUNCTIONS + view("net(price) > lowest")).project
    assert conditions(project, "v") == [f"{NET.format('0.25')} > CAST(2 AS int)"]
    names = "net(price, rate => 1) > 0 AND region = 'x' AND session.region = 'north'"
    project = loaded(tmp_path, q=FUNCTIONS + view(names)).project
    assert conditions(project, "v") == [
        f"{NET.format('1')} > 0 AND region = 'x' AND CAST('north' AS string) = 'north'"
    ]


@pytest.mark.proves("W28")
def test_editing_a_function_or_variable_changes_the_check_without_a_rebuild(tmp_path: Path) -> None:
    texts = FUNCTIONS + view("net(price) > lowest")
    before = loaded(tmp_path, q=texts).project
    edits = {"price * rate": "price - rate", "DEFAULT 2": "DEFAULT 3", "DEFAULT 0.25": "DEFAULT 1"}
    for old, new in edits.items():
        after = loaded(tmp_path, q=texts.replace(old, new)).project
        (first,), (second,) = before.persisted, after.persisted
        assert first.build_id == second.build_id
        (change,) = changed_checks(after, second, first.checks)
        assert (change.name, change.change) == ("expr", "changed")
    texts = texts.replace("price * rate", "price /* of one */ *\n  rate")
    after = loaded(tmp_path, q=texts).project
    assert not changed_checks(after, after.persisted[0], before.persisted[0].checks)


@pytest.mark.proves("W28")
def test_environments_have_their_own_values_in_checks(tmp_path: Path) -> None:
    settings = "[variables]\nlowest = 7\n[env.dev.variables]\nlowest = 1\n[env.prod]\n"
    (tmp_path / "persist.toml").write_text(settings)
    text = FUNCTIONS + view("n > lowest")
    assert conditions(loaded(tmp_path, "dev", q=text).project, "v") == ["n > CAST(1 AS int)"]
    assert conditions(loaded(tmp_path, "prod").project, "v") == ["n > CAST(7 AS int)"]


PYTHON = "from persist_assets import table\n\n@table(check={{'expr': '{}'}}{})\ndef p(t):\n    return t\n"


@pytest.mark.proves("W28")
def test_checks_of_python_sources_need_qualified_variables_or_a_contract(tmp_path: Path) -> None:
    text = PYTHON.format("net(price) > lowest", "")
    [problem] = loaded(tmp_path, q=FUNCTIONS + TABLE, p_py=text).project.errors
    assert str(problem).splitlines()[0] == (
        "sources/p.py:3:23: error: `lowest` is a variable, or a column of `p`: its columns are "
        "unknown until it is computed [variable]"
    )
    qualified = PYTHON.format("net(price) > system.session.lowest", "")
    assert conditions(loaded(tmp_path, p_py=qualified).project, "p") == [
        f"{NET.format('0.25')} > CAST(2 AS int)"
    ]
    promised = ", columns={'price': 'double', 'region': 'string'}"
    contract = PYTHON.format('region = "a" OR price > lowest', promised)
    assert conditions(loaded(tmp_path, p_py=contract).project, "p")[-1] == (
        'region = "a" OR price > CAST(2 AS int)'
    )


@pytest.mark.proves("W28")
@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("net() > 0", "`net` takes 2 arguments, not 0 [argument-count]"),
        ("net(prize) > 0", "`prize` is not a column of `v` [unknown-column]"),
        ("net(sum(price)) > 0", "`net(sum(price)) > 0` looks at more than one row [check]"),
        ("lot() > 0", "`lot() > 0` is nondeterministic [check]"),
        ("broken(n) > 0", "the definition of `broken` has an error [function]"),
        ("net(price) > 0 GROUP BY 1", "`net(price) > 0 GROUP BY 1` is not a condition [check]"),
        ("net(price) > ", "`net(price) > ` is not a condition [check]"),
    ],
)
def test_mistakes_with_functions_in_checks_are_errors_at_the_check(
    tmp_path: Path, check: str, message: str
) -> None:
    broken = "CREATE FUNCTION broken(x INT) RETURNS INT RETURN y;\n"
    files = {"f": FUNCTIONS + (broken if "broken" in check else ""), "q": view(check)}
    problems = [str(p).splitlines()[0] for p in loaded(tmp_path, **files).project.errors]
    assert f"sources/q.sql:2:21: error: {message}" in problems
    assert len(problems) == 1 + ("broken" in check)
