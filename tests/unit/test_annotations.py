"""MOTLY, and our vocabulary in it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from persist_assets.errors import Location, Problem
from persist_assets.frontends.annotations import KEYS, read_annotation
from persist_assets.frontends.motly import Line, Tag, parse_tag
from persist_assets.model import Annotation, Freshness

CASES = json.loads((ROOT / "tests" / "golden" / "motly.json").read_text())["cases"]


def lines(*texts: str) -> list[Line]:
    return [Line(text, Location("a.sql", n, 5)) for n, text in enumerate(texts, 1)]


def read(*texts: str) -> tuple[Annotation, list[Problem]]:
    return read_annotation(lines(*texts))


def as_npm(tag: Tag) -> dict[str, Any]:
    """Return a tag in the shape in which the npm package's answers are kept."""
    out: dict[str, Any] = {}
    match tag.value:
        case None:
            pass
        case list():
            out["eq"] = [as_npm(t) for t in tag.value]
        case datetime():
            stamp = tag.value.astimezone(UTC).isoformat(timespec="milliseconds")
            out["eq"] = {"date": stamp.replace("+00:00", "Z")}
        case date():
            out["eq"] = {"date": f"{tag.value.isoformat()}T00:00:00.000Z"}
        case _:
            out["eq"] = tag.value
    if tag.properties is not None:
        out["properties"] = {k: as_npm(v) for k, v in tag.properties.items()}
    if tag.deleted:
        out["deleted"] = True
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["title"])
def test_tags_are_read_as_malloys_own_parser_reads_them(case: dict[str, Any]) -> None:
    tag, problems = parse_tag(
        [Line(text, Location("a.sql", n, 1)) for n, text in enumerate(case["lines"], 1)]
    )
    if case["errors"]:
        places = [{"line": p.location.line - 1, "column": p.location.column - 1} for p in problems]
        assert places == case["errors"]
    else:
        assert not problems
        assert as_npm(tag) == case["value"]


def test_every_key_is_read() -> None:
    annotation, problems = read(
        'persist name="lake.daily" materialized=table watermark=day owner=["team:a", "b@c.de"]',
        'refresh=incremental lookback="2 days" assume=exact merge_key=[a, b]',
        'partition { day=daily } start="2024-01-01" end="2025-01-01" timezone=UTC',
        "backfill=multi_run",
        "tags=[nightly] tags.tier=gold group=flights freshness.window=24h freshness.warn='12 h'",
        'check { not_null=[a, b] unique=[a, b] expr="a > 0" } automation="0 6 * * mon-fri"',
    )
    assert not problems
    assert annotation.persist is True
    assert annotation.automation == "0 6 * * mon-fri"
    assert annotation.name == "lake.daily"
    assert annotation.time_column == "day"
    assert annotation.owners == ("team:a", "b@c.de")
    assert annotation.tags == (("nightly", ""), ("tier", "gold"))
    assert annotation.group == "flights"
    assert annotation.freshness == Freshness(86_400, 43_200)
    assert [c.name for c in annotation.checks] == [
        "not_null_a",
        "not_null_b",
        "unique_a_b",
        "expr",
    ]
    assert (annotation.refresh, annotation.lookback_s) == ("incremental", 172_800)
    assert annotation.assume == "exact"
    assert {key for key, _ in annotation.keys} == set(KEYS) - {"time_column"}


def test_two_words_for_one_column_are_one_too_many() -> None:
    _, problems = read("persist time_column=day watermark=day")
    assert [p.message for p in problems] == [
        "`watermark` and `time_column` are two words for one thing"
    ]


@pytest.mark.parametrize(
    ("text", "code", "column", "says", "hint"),
    [
        ("presist", "annotation-key", 5, "unknown key `presist`", "did you mean `persist`?"),
        ("persist stat=2013-01-01", "annotation-key", 13, "unknown key `stat`", None),
        ("name=2013", "annotation-value", 5, "wants a text", 'put it in quotes: name="…"'),
        ("name=a.b", "annotation-syntax", 11, "expected a name", "quote a value"),
        ('name="a;b"', "annotation-value", 5, "`a;b` is not a table name", None),
        ('name="x\' OR 1"', "annotation-value", 5, "is not a table name", None),
        ("persist=@false", "annotation-value", 5, "is a bare word", "-persist"),
        ("persist { x }", "annotation-value", 15, "has no property `x`", None),
        ("materialized=views", "annotation-value", 5, "is one of table, temporary", "`view`"),
        ("owner=somebody", "annotation-value", 5, "is not an owner", "team:flights"),
        ('tags=["a b"]', "annotation-value", 5, "is not a tag", None),
        ('group="a b"', "annotation-value", 5, "is not a group name", None),
        ("freshness.window=soon", "annotation-value", 5, "is not a duration", '"24h"'),
        ("freshness.windo=24h", "annotation-value", 5, "no property `windo`", "`window`"),
        ("freshness.warn=24h", "annotation-value", 5, "wants a window", None),
        (
            "freshness { window=1h fallback=stale }",
            "annotation-value",
            27,
            "is one of live, stale_ok, fail, not `stale`",
            "`stale_ok`",
        ),
        (
            "freshness { window=1h warn=2h }",
            "annotation-value",
            5,
            "must be shorter",
            None,
        ),
        ("automation=eagre", "annotation-value", 5, "not `eagre`", "`eager`"),
        ("automation='@dailly'", "annotation-value", 5, "not `@dailly`", "`@daily`"),
        ("automation='0 6 * *'", "annotation-value", 5, "five fields", None),
        ("automation='0 24 * * *'", "annotation-value", 5, "`24` is no hour: 0 to 23", "0 6 * * *"),
        ("automation='0 0 31 2,4 *'", "annotation-value", 5, "there is no such day", None),
        ("automation='*/0 * * * *'", "annotation-value", 5, "no such step", None),
        ("automation='0 6 * * fri-mon'", "annotation-value", 5, "ends before it begins", None),
        ("freshness=24h", "annotation-value", 5, "wants properties", None),
        ("freshness.window=30s", "annotation-value", 5, "at least 60s", None),
        ("check { not_nul=[a] }", "annotation-value", 13, "no property `not_nul`", "`not_null`"),
        ("check", "annotation-value", 5, "wants a block", None),
        ("check { accepted_values=[a] }", "annotation-value", 13, "list for each column", None),
        ("check { accepted_values { a=[] } }", "annotation-value", 31, "is empty", None),
        (
            "check { unique=[a] { severity=bad } }",
            "annotation-value",
            26,
            "`error` or `warn`",
            None,
        ),
        ("check { not_null=[a] { x=1 } }", "annotation-value", 28, "no property `x`", None),
        ('owner=["team:a"] { x }', "annotation-value", 24, "no property `x`", None),
        ("x=$y", "annotation-syntax", 7, "references", None),
        ("x=@env.HOME", "annotation-syntax", 7, "environment", None),
        ("x=@2013-02-30", "annotation-syntax", 7, "is not a date", None),
        ("-persist persist", "annotation-value", 14, "is given after", None),
    ],
)
def test_what_is_not_understood_is_a_problem_with_its_place(
    text: str, code: str, column: int, says: str, hint: str | None
) -> None:
    _, problems = read(text)
    problem = problems[0]
    assert (problem.code, problem.location) == (code, Location("a.sql", 1, column))
    assert says in problem.message
    if hint:
        assert hint in (problem.hint or "")


def test_an_unquoted_date_is_told_to_be_quoted() -> None:
    _, problems = read("persist stat=2013-01-01")
    assert [p.hint for p in problems][1] == 'a date wants quotes: "2013-01-01"'


def test_lines_merge_and_a_later_one_wins() -> None:
    annotation, problems = read("persist name=a group=g", "name=b -persist")
    assert not problems
    assert (annotation.persist, annotation.name, annotation.group) == (False, "b", "g")


def test_checks_of_one_kind_get_names_of_their_own() -> None:
    annotation, _ = read('check { expr=["a > 0", "b > 0"] unique=[[a], [b, c]] }')
    assert [c.name for c in annotation.checks] == ["expr", "expr_2", "unique_a", "unique_b_c"]
    assert [c.columns for c in annotation.checks] == [(), (), ("a",), ("b", "c")]


def test_a_warning_does_not_block() -> None:
    annotation, _ = read(
        'check { unique=[a] { severity=warn } expr { severity=warn p="a > 0" } not_null=[b] }'
    )
    assert [(c.name, c.blocking) for c in annotation.checks] == [
        ("unique_a", False),
        ("expr_p", False),
        ("not_null_b", True),
    ]


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    annotation, problems = read(text)
    assert isinstance(annotation, Annotation)
    assert all(p.location.line >= 1 and p.location.column >= 1 for p in problems)
