"""The values of `refresh`: their meaning in every language, and invalid combinations."""

from __future__ import annotations

import pytest
from conftest import compiled
from test_malloy_answers import PLACE, model, note, source

from persist_assets.compiler.malloy.answers import read_model
from persist_assets.compiler.malloy.declarations import declare
from persist_assets.core.errors import Problem
from persist_assets.core.model.annotations import Annotation

RAW = "CREATE TABLE t (ts TIMESTAMP, k INT, x INT) USING parquet LOCATION 't';\n"
ROWS = "SELECT ts, k, x FROM t"
VALUES = {
    "": ("auto", False),
    "refresh=auto": ("auto", False),
    "refresh=incremental": ("incremental", False),
    "refresh=strict": ("incremental", True),
    "refresh=whole": ("whole", False),
    "refresh=full": ("whole", False),
    "refresh=snapshot key=k": ("snapshot", False),
}


def in_sql(line: str) -> dict[str, str]:
    return {"s.sql": f"{RAW}--@ persist {line}\nCREATE VIEW q AS {ROWS};"}


def in_python(line: str) -> dict[str, str]:
    keys = "".join(f"{k}={v!r}, " for k, _, v in (word.partition("=") for word in line.split()))
    head = "from persist_assets import table\n\n\n"
    return {"t.sql": RAW, "s.py": f"{head}@table({keys})\ndef q(t):\n    return t\n"}


def in_comments_of_python(line: str) -> dict[str, str]:
    return {"t.sql": RAW, "s.py": f"#@ persist {line}\ndef q(t):\n    return t\n"}


def q_of(files: dict[str, str]) -> tuple[Annotation, list[Problem]]:
    project = compiled(files)
    (found,) = (s for s in project.sources if s.name == "q")
    return found.annotation, [*project.problems]


@pytest.mark.proves("T7")
@pytest.mark.parametrize("write", [in_sql, in_python, in_comments_of_python])
@pytest.mark.parametrize("line", VALUES)
def test_every_refresh_value_means_the_same_in_every_language(line: str, write: object) -> None:
    assert callable(write)
    annotation, problems = q_of(write(line))
    assert not [p for p in problems if p.severity == "error"]
    assert (annotation.refresh, annotation.is_strict) == VALUES[line]
    assert annotation.is_incremental == (line in ("refresh=incremental", "refresh=strict"))
    old = line == "refresh=full"
    value = "whole" if old else line.partition(" ")[0].removeprefix("refresh=") or "auto"
    assert annotation.refresh_value == value
    renamed = [p for p in problems if p.code == "annotation-renamed"]
    assert [(p.severity, p.message) for p in renamed] == (
        [("warning", "`refresh=full` is now called `refresh=whole`")] if old else []
    )


def test_the_incremental_table_decorator_accepts_refresh_strict() -> None:
    head = "from persist_assets import incremental_table\n\n\n"
    text = f'{head}@incremental_table(watermark="ts", refresh="strict")\ndef q(t):\n    return t\n'
    annotation, problems = q_of({"t.sql": RAW, "s.py": text})
    assert (annotation.is_incremental, annotation.is_strict) == (True, True)
    (warning,) = (p for p in problems if p.code == "increment")
    assert warning.message.startswith(
        "with refresh=strict, only the first build of `q` and builds with --full-refresh succeed: "
    )
    assert (
        warning.hint
        == "make it a @table, or add assume=exact if only rows past the watermark are new"
    )


@pytest.mark.proves("T7")
@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("incrementel", "did you mean `incremental`?"),
        ("strikt", "did you mean `strict`?"),
        ("hole", "did you mean `whole`?"),
        ("yes", None),
    ],
)
def test_an_unknown_refresh_value_is_an_error_with_a_suggestion(
    value: str, hint: str | None
) -> None:
    (problem,) = compiled(in_sql(f"refresh={value}")).errors
    known = "auto, incremental, strict, whole, snapshot"
    assert problem.message == f"`refresh` must be one of {known}, got `{value}`"
    assert (problem.hint, problem.location.line, problem.location.column) == (hint, 2, 13)


@pytest.mark.parametrize("value", ["auto", "whole", "full"])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('watermark=ts lookback="2 days"', "`lookback` needs refresh=incremental or strict"),
        ("watermark=ts assume=exact", "`assume` needs refresh=incremental or strict"),
        ("on_change=continue", "`on_change` needs refresh=incremental, strict or snapshot"),
        ("key=k", "`key` has no effect on a source that keeps no versions"),
    ],
)
def test_incremental_keys_require_an_incremental_source(
    value: str, keys: str, message: str
) -> None:
    (problem,) = compiled(in_sql(f"refresh={value} {keys}")).errors
    assert problem.message.startswith(message)


@pytest.mark.proves("T7")
@pytest.mark.parametrize("value", ["incremental", "strict"])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('watermark=ts lookback="2 days" assume=exact merge_key=k on_change=continue', None),
        ("assume=exact", "`assume` needs a watermark"),
        (
            'partition=daily time_column=ts start="2024-01-01"',
            "cannot be combined with `partition`",
        ),
        ("materialized=view", "a build cannot add rows to a view"),
        ("watch=k", "`watch` has no effect on a source that keeps no versions"),
    ],
)
def test_strict_accepts_the_same_keys_as_incremental(
    value: str, keys: str, message: str | None
) -> None:
    errors = compiled(in_sql(f"refresh={value} {keys}")).errors
    assert [message in p.message for p in errors if message] == ([True] if message else [])
    assert bool(errors) == bool(message)


def test_the_watermark_parameter_is_allowed_in_strict_sources() -> None:
    text = f"{RAW}--@ persist refresh={{}} watermark=ts\nCREATE VIEW q AS {ROWS} WHERE ts > :watermark;"
    assert not compiled({"s.sql": text.format("strict")}).errors
    (problem,) = compiled({"s.sql": text.format("auto")}).errors
    assert problem.message == "`:watermark` has no value: `q` is always computed in full"


@pytest.mark.proves("T7")
def test_only_refresh_snapshot_changes_the_build_id() -> None:
    build_ids = {
        line: compiled(in_sql(f"watermark=ts {line}")).by_id["q@sources/s.sql"].build_id
        for line in VALUES
    }
    assert len({build_ids[line] for line in VALUES if "snapshot" not in line}) == 1
    assert build_ids["refresh=snapshot key=k"] != build_ids[""]


def test_a_deprecation_warning_does_not_hide_malloys_own_problems() -> None:
    read = read_model(model(sources=[source(annotations=[note("#@ persist refresh=full")])]))
    _, problems = declare(read)
    assert [p.code for p in problems if p.location.line == PLACE["line"]][:2] == [
        "annotation-renamed",
        "c",
    ]
