"""`--fail-on`: which differences of a change fail its review."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from persist_assets.core.errors import SettingsError
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.columns import Column
from persist_assets.core.model.plans import Reason, Step
from persist_assets.engine.data_diff import NotCompared, RowsDiffer, Uncompared
from persist_assets.operations.review import (
    Altered,
    CheckChanges,
    ColumnChanges,
    Report,
    Review,
    Reviewed,
)
from persist_assets.operations.review_rules import read_rules, require_tables, violations
from persist_assets.operations.review_text import markdown
from persist_assets.planning.diff import Change

ID = "a@s.sql"
STEP = Step(ID, "build", "b", (), (Reason("code", "w"),))
SAME_COLUMNS, SAME_CHECKS = ColumnChanges(), CheckChanges()
UNKNOWN = ColumnChanges(is_known=False)


def reviewed(
    columns: ColumnChanges = SAME_COLUMNS,
    checks: CheckChanges = SAME_CHECKS,
    change: Literal["same", "changed", "added", "removed"] = "changed",
    step: Step | None = STEP,
) -> Reviewed:
    return Reviewed(ID, Change(ID, change), step, None, columns, checks)


def report(source: Reviewed, rows: RowsDiffer | NotCompared | None = None) -> Report:
    review = Review("prod", (source,), 2, (), {}, {})
    return Report("prod", review, rows={} if rows is None else {ID: rows})


def reasons(made: Report, *rules: str) -> list[str]:
    return [v.reason for v in violations(made, rules)]


NOTHING = RowsDiffer(("k",), changed=0)
KEYED = RowsDiffer(("k",), 1, 2, 3)
RETYPED = RowsDiffer(uncompared=(Uncompared("n", "int", "bigint"), Uncompared("new", None, "int")))
GONE = RowsDiffer(uncompared=(Uncompared("n", "int", None),))


@pytest.mark.proves("W12")
@pytest.mark.parametrize(
    ("rule", "made", "expected"),
    [
        ("rebuilds", report(reviewed()), ["a build computes its table"]),
        ("rebuilds", report(reviewed(step=replace(STEP, action="reuse"))), []),
        ("rebuilds", report(reviewed(change="removed", step=None)), []),
        ("columns", report(reviewed(ColumnChanges((Column("n", "int"),), changed=("a",)))), []),
        ("columns", report(reviewed(ColumnChanges((), (Column("n", "int"),)))), ["the column n is gone"]),
        (
            "columns",
            report(reviewed(ColumnChanges(retyped=(Altered("n", "int", "bigint"),)))),
            ["the column n changed from int to bigint"],
        ),
        ("columns", report(reviewed(change="removed", step=None)), ["it is no longer defined"]),
        ("columns", report(reviewed(UNKNOWN)), ["its columns are unknown until it is built"]),
        ("columns", report(reviewed(UNKNOWN), NOTHING), []),
        ("columns", report(reviewed(UNKNOWN), GONE), ["the column n is gone"]),
        ("columns", report(reviewed(UNKNOWN), RETYPED), ["the column n changed from int to bigint"]),
        ("checks", report(reviewed(checks=CheckChanges(("a unique",)))), []),
        ("checks", report(reviewed(checks=CheckChanges((), ("a unique",)))), ["no longer checked: a unique"]),
        (
            "checks",
            report(reviewed(checks=CheckChanges(changed=(Altered("r", "a < 1", "a < 2"),)))),
            ["a check changed: a < 1 → a < 2"],
        ),
        ("rows", report(reviewed(), NOTHING), []),
        ("rows", report(reviewed(), KEYED), ["rows differ: 1 added, 2 removed, 3 changed"]),
        ("rows", report(reviewed(), RowsDiffer((), 1)), ["rows differ: 1 added, 0 removed"]),
        ("rows", report(reviewed(), RETYPED), ["the values of n were not compared"]),
        ("rows", report(reviewed(), NotCompared("x")), ["its rows were not compared: x"]),
        ("rows", report(reviewed()), ["its rows were not compared: it was not built"]),
        ("rows", report(reviewed(change="added")), []),
    ],
)  # fmt: skip
def test_differences_and_missing_comparisons_violate_a_rule(
    rule: str, made: Report, expected: list[str]
) -> None:
    assert reasons(made, rule) == expected


@pytest.mark.proves("W12")
def test_failed_warning_checks_violate_only_the_warnings_rule() -> None:
    failed = CheckResult("c", False, False, 2, "a unique")
    made = replace(report(reviewed(), NOTHING), checks={ID: (failed,)})
    assert reasons(made, "warnings", "rows") == ["it fails a unique: 2 rows"]
    assert reasons(report(reviewed(), NOTHING), "warnings") == []


@pytest.mark.proves("W12")
@pytest.mark.parametrize(
    ("values", "is_built", "says"),
    [
        (["row"], True, "unknown value of --fail-on: `row`\n    hint: did you mean `rows`?"),
        (["xyz"], True, "hint: known values: rebuilds, columns, checks, rows, warnings"),
        (["columns,rows"], False, "`--fail-on rows` needs builds\n    hint: add --build"),
        (["warnings"], False, "`--fail-on warnings` needs builds"),
    ],
)
def test_unknown_rules_and_rules_that_need_builds_are_rejected(
    values: list[str], is_built: bool, says: str
) -> None:
    with pytest.raises(SettingsError) as error:
        read_rules(values, is_built=is_built)
    assert says in str(error.value)


@pytest.mark.proves("W12")
def test_rules_about_rows_are_rejected_for_a_git_revision() -> None:
    assert read_rules(["columns, rows", "rows"], is_built=True) == ("columns", "rows")
    revision = Review("main", (), 0, (), None, {})
    require_tables(revision, ["columns", "warnings"])
    with pytest.raises(SettingsError, match="the git revision `main` has none"):
        require_tables(revision, ["columns", "rows"])


@pytest.mark.proves("W12")
def test_the_markdown_names_the_violated_rule() -> None:
    made = report(reviewed(), KEYED)
    text = markdown(replace(made, violations=violations(made, ["rows"]), exit_code=1))
    assert text.splitlines()[1].startswith("## ❌ persist: ")
    assert "- `--fail-on rows`: `a@s.sql`: `rows differ: 1 added, 2 removed, 3 changed`\n" in text
