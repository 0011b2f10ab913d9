"""A report as Markdown: texts from files and data are escaped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from persist_assets.core.errors import Location, Problem
from persist_assets.core.model.plans import Reason, Step
from persist_assets.engine.data_diff import ChangedRow, NotCompared, RowsDiffer, Uncompared
from persist_assets.operations.documents.builds import BuildDocument, RunDocument
from persist_assets.operations.review import (
    CheckChanges,
    ColumnChanges,
    Report,
    Review,
    Reviewed,
    shares,
)
from persist_assets.operations.review_text import markdown
from persist_assets.planning.diff import Change

EVIL = "a|b`c <script>@team</script>\n# x"


def reviewed(name: str = "a", why: str = "w") -> Reviewed:
    step = Step(f"{name}@s.sql", "build", "b", (), (Reason("code", why),))
    change = Change(step.source_id, "changed")
    return Reviewed(step.source_id, change, step, 75.0, ColumnChanges(), CheckChanges())


def report(*sources: Reviewed, **values: object) -> Report:
    review = Review("prod", sources, 2, (), {}, {})
    run = RunDocument(run_id="r", published=True, builds=[])
    return Report("prod", review, run=run, **values)  # pyright: ignore[reportArgumentType]


@pytest.mark.proves("W12")
def test_texts_are_code_spans_on_one_line() -> None:
    changed = RowsDiffer(
        key=("k",),
        changed=1,
        columns={"v": 1},
        changed_rows=(ChangedRow({"k": EVIL}, {"v": 1}, {"v": EVIL}),),
        before=4,
        after=4,
    )
    text = markdown(report(reviewed(why=EVIL), rows={"a@s.sql": changed}))
    assert "- why: ``a|b`c <script>@team</script> # x``\n" in text
    (sample,) = [line for line in text.splitlines() if line.startswith("| ~ |")]
    assert sample.count("|") - sample.count("\\|") == 3  # two cells
    assert "| `v` | 1 | 25.0% |" in text
    assert not any(line.startswith("# x") for line in text.splitlines())
    shown = markdown(report(reviewed("<b>")))
    assert "<summary><code>&lt;b&gt;@s.sql</code></summary>" in shown


@pytest.mark.proves("W12")
def test_the_share_of_a_changed_column_counts_only_common_rows() -> None:
    difference = RowsDiffer(("k",), 10, 2, 3, {"a": 3, "b": 0}, before=8, after=16)
    assert shares(difference) == {"a": 0.5}
    assert shares(RowsDiffer(("k",), 10, 8, 0, {"a": 0}, before=8, after=10)) == {}


@pytest.mark.proves("W12")
def test_the_first_lines_summarize_the_outcome() -> None:
    text = markdown(report(reviewed(), reviewed("b"), exit_code=0))
    assert text.splitlines()[:2] == [
        "<!-- persist ci -->",
        "## ✅ persist: 2 tables to build, compared with `prod` · 2 changed · about 2 min 30 s",
    ]
    problem = Problem("x", EVIL, Location("s.sql", 3, 4))
    wrong = markdown(Report("prod", problems=(problem,), exit_code=3))
    assert "❌ persist: 1 error in the sources, so nothing was compared" in wrong
    assert "- `s.sql:3:4`: ``a|b`c" in wrong


@pytest.mark.proves("W12")
def test_columns_that_were_not_compared_are_listed() -> None:
    retyped = RowsDiffer(
        uncompared=(Uncompared("n", "int", "bigint"), Uncompared("new", None, "int"))
    )
    text = markdown(report(reviewed(), rows={"a@s.sql": retyped}))
    assert "| the same, not compared: `n` |" in text
    assert "- column not compared: `n`: `int` → `bigint`" in text
    assert "`new`" not in text


@pytest.mark.proves("W12")
@pytest.mark.parametrize("shows_rows", [True, False])
def test_rows_are_shown_only_if_enabled(shows_rows: bool) -> None:
    error = 's.sql:1:1: `a` failed unique_k (2 rows); it was not published\n    unique_k: {"k": 7}'
    nothing: dict[str, Any] = dict.fromkeys(BuildDocument.model_fields)
    nothing |= {"source_id": "a@s.sql", "build_id": "b", "action": "failed", "error": error}
    build = BuildDocument.model_validate(nothing)
    run = RunDocument(run_id="r", published=False, builds=[build])
    made = replace(report(reviewed(), shows_rows=shows_rows, exit_code=1), run=run)
    assert ('{"k": 7}' in markdown(made)) == shows_rows
    assert "failed unique_k (2 rows)" in markdown(made)


@pytest.mark.proves("W12")
def test_a_comment_fits_the_size_limit_of_github() -> None:
    sources = [reviewed(f"a{i}", "long " * 50) for i in range(400)]
    rows = {r.source_id: NotCompared("no table in prod") for r in sources}
    text = markdown(report(*sources, rows=rows))
    assert len(text) < 65_536
    assert text.endswith("more sources are in the output of `--json`.\n")
    more = markdown(report(*[reviewed("x" * 300 + str(i)) for i in range(400)]))
    assert len(more) < 65_536
