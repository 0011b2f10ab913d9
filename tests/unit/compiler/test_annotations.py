"""MOTLY syntax, and persist's annotation keys."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.annotations import read_annotation
from persist_assets.compiler.frontends.motly import Line, Tag, parse_tag
from persist_assets.core.errors import Location, Problem
from persist_assets.core.model.annotations import Annotation, Freshness, Validity, Wanted

CASES = json.loads((ROOT / "tests" / "golden" / "motly.json").read_text())["cases"]


def lines(*texts: str) -> list[Line]:
    return [Line(text, Location("a.sql", n, 5)) for n, text in enumerate(texts, 1)]


def read(*texts: str) -> tuple[Annotation, list[Problem]]:
    return read_annotation(lines(*texts))


def as_npm(tag: Tag) -> dict[str, Any]:
    """Return a tag in the format in which the npm package's results are recorded."""
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
def test_tags_are_parsed_as_by_malloys_own_parser(case: dict[str, Any]) -> None:
    tag, problems = parse_tag(
        [Line(text, Location("a.sql", n, 1)) for n, text in enumerate(case["lines"], 1)]
    )
    if case["errors"]:
        places = [{"line": p.location.line - 1, "column": p.location.column - 1} for p in problems]
        assert places == case["errors"]
    else:
        assert not problems
        assert as_npm(tag) == case["value"]


def test_every_annotation_key_is_read() -> None:
    annotation, problems = read(
        'persist name="lake.daily" materialized=table watermark=day owner=["team:a", "b@c.de"]',
        'refresh=incremental lookback="2 days" assume=exact merge_key=[a, b]',
        'partition { day=daily } start="2024-01-01" end="2025-01-01" timezone=UTC',
        "backfill=multi_run by=[a, b]",
        "tags=[nightly] tags.tier=gold group=flights freshness.window=24h freshness.warn='12 h'",
        'check { not_null=[a, b] unique=[a, b] expr="a > 0" } automation="0 6 * * mon-fri"',
        'want { every=daily sla="9h" ttl="365d" needs=["users:data/users"] }',
        'columns { a=INTEGER b="bigint not null" `*` } on_schema_change=append',
        "retries=2 pool=warehouse op_tags.queue=slow k8s { job_config { ttl=60 } }",
    )
    assert not problems
    assert annotation.persist is True
    assert annotation.automation == "0 6 * * mon-fri"
    assert annotation.want == Wanted("daily", 32_400, 31_536_000, ("users:data/users",))
    assert annotation.name == "lake.daily"
    assert annotation.time_column == "day"
    assert annotation.owners == ("team:a", "b@c.de")
    assert annotation.tags == (("nightly", ""), ("tier", "gold"))
    assert annotation.group == "flights"
    assert annotation.freshness == Freshness(86_400, 43_200)
    assert annotation.on_schema_change == "append"
    assert [c.name for c in annotation.checks] == [
        "columns",
        "columns_b",
        "not_null_a",
        "not_null_b",
        "unique_a_b",
        "expr",
    ]
    assert (annotation.refresh, annotation.lookback_s) == ("incremental", 172_800)
    assert (annotation.assume, annotation.by) == ("exact", ("a", "b"))
    assert {key for key, _ in annotation.keys} == set(KEYS) - {"time_column", *OF_HISTORIES}


OF_HISTORIES = ("key", "watch", "hard_deletes", "on_change")


def test_histories_have_their_own_annotation_keys() -> None:
    annotation, problems = read(
        "persist refresh=snapshot key=id watch=[a, b] hard_deletes=ignore on_change=rebuild"
    )
    assert not problems
    assert annotation.validity == Validity(("id",), ("a", "b"), "ignore")
    assert not annotation.goes_on
    assert {key for key, _ in annotation.keys} == {"persist", "refresh", *OF_HISTORIES}
    annotation, _ = read("persist refresh=snapshot key=[a, b]")
    assert annotation.validity == Validity(("a", "b"))
    assert annotation.goes_on
    annotation, _ = read("persist refresh=incremental")
    assert (annotation.validity, annotation.goes_on) == (None, False)
    assert read("persist refresh=incremental on_change=continue")[0].goes_on


def test_watermark_and_time_column_cannot_be_combined() -> None:
    _, problems = read("persist time_column=day watermark=day")
    assert [p.message for p in problems] == ["`watermark` and `time_column` mean the same"]


@pytest.mark.parametrize(
    ("text", "code", "column", "says", "hint"),
    [
        ("presist", "annotation-key", 5, "unknown key `presist`", "did you mean `persist`?"),
        ("persist stat=2013-01-01", "annotation-key", 13, "unknown key `stat`", None),
        ("name=2013", "annotation-value", 5, "must be a string", 'put it in quotes: name="…"'),
        ("name=a.b", "annotation-syntax", 11, "expected a name", "quote values"),
        ('name="a;b"', "annotation-value", 5, "invalid table name `a;b`", None),
        ('name="x\' OR 1"', "annotation-value", 5, "invalid table name", None),
        ("persist=@false", "annotation-value", 5, "takes no value", "-persist"),
        ("persist { x }", "annotation-value", 15, "has no property `x`", None),
        ("materialized=views", "annotation-value", 5, "must be one of table, temporary", "`view`"),
        ("owner=somebody", "annotation-value", 5, "invalid owner", "team:flights"),
        ('tags=["a b"]', "annotation-value", 5, "invalid tag", None),
        ('group="a b"', "annotation-value", 5, "invalid group name", None),
        ("freshness.window=soon", "annotation-value", 5, "is not a duration", '"24h"'),
        ("freshness.windo=24h", "annotation-value", 5, "no property `windo`", "`window`"),
        ("freshness.warn=24h", "annotation-value", 5, "needs a window", None),
        ('persist want { sla="9h" }', "annotation-value", 13, "needs `every`", "every=daily"),
        ("persist want=daily", "annotation-value", 13, "must be a block", "every=daily"),
        ("persist want { every=dayly }", "annotation-value", 20, "must be one of", "`daily`"),
        ('persist want { sla="-9h" }', "annotation-value", 20, "is not a duration", None),
        ('want { every=daily needs="a/b" }', "annotation-value", 24, "to another graph", "users:"),
        (
            "freshness { window=1h fallback=stale }",
            "annotation-value",
            27,
            "must be one of live, stale_ok, fail, got `stale`",
            "`stale_ok`",
        ),
        (
            "freshness { window=1h warn=2h }",
            "annotation-value",
            5,
            "must be shorter",
            None,
        ),
        ("automation=eagre", "annotation-value", 5, "got `eagre`", "`eager`"),
        ("automation='@dailly'", "annotation-value", 5, "got `@dailly`", "`@daily`"),
        ("automation='0 6 * *'", "annotation-value", 5, "five fields", None),
        (
            "automation='0 24 * * *'",
            "annotation-value",
            5,
            "`24` is not a valid hour: use 0 to 23",
            "0 6 * * *",
        ),
        ("automation='0 0 31 2,4 *'", "annotation-value", 5, "no such date exists", None),
        ("automation='*/0 * * * *'", "annotation-value", 5, "the step is out of range", None),
        ("automation='0 6 * * fri-mon'", "annotation-value", 5, "ends before it begins", None),
        ("freshness=24h", "annotation-value", 5, "must be a block", None),
        ("freshness.window=30s", "annotation-value", 5, "at least 60s", None),
        ("check { not_nul=[a] }", "annotation-value", 13, "no property `not_nul`", "`not_null`"),
        ("check", "annotation-value", 5, "must be a block", None),
        ("check { accepted_values=[a] }", "annotation-value", 13, "list for each column", None),
        ("check { accepted_values { a=[] } }", "annotation-value", 31, "is empty", None),
        (
            "check { unique=[a] { severity=bad } }",
            "annotation-value",
            26,
            "`error` or `warn`",
            None,
        ),
        ("check { range=[a] }", "annotation-value", 13, "bounds for each column", "min=-60"),
        ("check { range { a=1 } }", "annotation-value", 21, "needs `min`, `max` or both", None),
        ("check { range { a { mn=1 } } }", "annotation-value", 25, "property `mn`", "`min`"),
        ("check { range { a { min=2 max=1 } } }", "annotation-value", 21, "between 2 and 1", "min"),
        ("check { range { a { min=2 max=b } } }", "annotation-value", 21, "the same type", None),
        ("check { range { a { min=@true } } }", "annotation-value", 25, "must be a number", None),
        ("check { relationship=[a] }", "annotation-value", 13, "needs a source column", "carriers"),
        (
            "check { relationship { a=b } }",
            "annotation-value",
            28,
            "`b` is not a source column",
            None,
        ),
        (
            "check { row_count { min=-1 } }",
            "annotation-value",
            13,
            "not a valid number of rows",
            None,
        ),
        (
            "check { row_count { min=1.5 } }",
            "annotation-value",
            13,
            "not a valid number of rows",
            None,
        ),
        ("check { row_count }", "annotation-value", 13, "needs `min`, `max` or both", None),
        ("check { row_count { min=2 max=1 } }", "annotation-value", 13, "between 2 and 1", None),
        ("check { freshness { ts=soon } }", "annotation-value", 25, "is not a duration", None),
        ("check { freshness=ts }", "annotation-value", 13, "a duration for each", "2 days"),
        ("check { freshness { ts { x } } }", "annotation-value", 30, "no property `x`", None),
        (
            "check { not_null=a { per=x } }",
            "annotation-value",
            26,
            "`per` must be one of table",
            None,
        ),
        (
            "check { unique=[a] { per=partition } }",
            "annotation-value",
            26,
            "`check.unique` is per partition, but there are no partitions",
            "remove per=partition",
        ),
        (
            "check { range { per=partition a.max=1 } }",
            "annotation-value",
            21,
            "`check.range` is per partition",
            "partition=…",
        ),
        ("columns=[a]", "annotation-value", 5, "must be a block of columns", "carrier=string"),
        ("columns { a=bigintt }", "annotation-value", 15, "unknown type", "`bigint`"),
        ('columns { a="decimal(x)" }', "annotation-value", 15, "unknown type", None),
        ("columns { a=int A=int }", "annotation-value", 21, "lists `A` twice", None),
        ("columns { a=int { x } }", "annotation-value", 23, "no property `x`", None),
        ("on_schema_change=stop", "annotation-value", 5, "must be one of fail, append, sync", None),
        ("check { not_null=[a] { x=1 } }", "annotation-value", 28, "no property `x`", None),
        ('owner=["team:a"] { x }', "annotation-value", 24, "no property `x`", None),
        ("x=$y", "annotation-syntax", 7, "references", None),
        ("x=@env.HOME", "annotation-syntax", 7, "environment", None),
        ("x=@2013-02-30", "annotation-syntax", 7, "is not a date", None),
        ("-persist persist", "annotation-value", 14, "is set after", None),
    ],
)
def test_invalid_annotations_are_reported_at_their_locations(
    text: str, code: str, column: int, says: str, hint: str | None
) -> None:
    _, problems = read(text)
    problem = problems[0]
    assert (problem.code, problem.location) == (code, Location("a.sql", 1, column))
    assert says in problem.message
    if hint:
        assert hint in (problem.hint or "")


def test_an_unquoted_date_gets_a_hint_to_quote_it() -> None:
    _, problems = read("persist stat=2013-01-01")
    assert [p.hint for p in problems][1] == 'put dates in quotes: "2013-01-01"'


def test_lines_are_merged_and_later_ones_win() -> None:
    annotation, problems = read("persist name=a group=g", "name=b -persist")
    assert not problems
    assert (annotation.persist, annotation.name, annotation.group) == (False, "b", "g")


def test_checks_of_one_kind_get_distinct_names() -> None:
    annotation, _ = read('check { expr=["a > 0", "b > 0"] unique=[[a], [b, c]] }')
    assert [c.name for c in annotation.checks] == ["expr", "expr_2", "unique_a", "unique_b_c"]
    assert [c.columns for c in annotation.checks] == [(), (), ("a",), ("b", "c")]


def test_checks_with_severity_warn_do_not_block() -> None:
    annotation, _ = read(
        'check { unique=[a] { severity=warn } expr { severity=warn p="a > 0" } not_null=[b] }'
    )
    assert [(c.name, c.blocking) for c in annotation.checks] == [
        ("unique_a", False),
        ("expr_p", False),
        ("not_null_b", True),
    ]


def test_a_contract_becomes_checks() -> None:
    annotation, problems = read('columns { a="DEC(5) NOT NULL" b c="not null" d=@false }')
    assert problems[0].message == "`columns.d` must be a string"
    annotation, problems = read(
        'columns { a="DEC(5) NOT NULL" b c="not null" } check { not_null=c }'
    )
    assert not problems
    whole, *rest = annotation.checks
    assert (whole.kind, whole.columns, whole.values) == (
        "columns",
        ("a", "b", "c"),
        ("decimal(5,0)", "", ""),
    )
    assert whole.definition == "columns a decimal(5,0), b, c"
    assert [(c.name, c.kind, c.columns) for c in rest] == [
        ("columns_a", "not_null", ("a",)),
        ("columns_c", "not_null", ("c",)),
        ("not_null_c", "not_null", ("c",)),
    ]
    assert all(c.blocking for c in annotation.checks)


@pytest.mark.parametrize(
    ("text", "name", "definition"),
    [
        ("range { n { min=-60 max=3000 } }", "range_n", "n between -60 and 3000"),
        ("range { d.min=@2013-01-01 }", "range_d", "d at least 2013-01-01"),
        ('range { d.min="5" }', "range_d", "d at least '5'"),
        ('relationship { a="x/carriers.code" }', "relationship_a", "a in x/carriers.code"),
        ("row_count { min=1 }", "row_count", "row count at least 1"),
        ("row_count { max=9 severity=warn }", "row_count", "row count at most 9"),
        ('freshness { ts="48h" }', "freshness_ts", "greatest ts at most 2 days old"),
        ("not_null { columns=[a] severity=warn }", "not_null_a", "a not null"),
        ("function=plausible", "function_plausible", "function plausible ()"),
    ],
)
def test_every_kind_of_check_has_a_definition(text: str, name: str, definition: str) -> None:
    annotation, problems = read(f"check {{ {text} }}")
    assert not problems
    (check,) = annotation.checks
    assert (check.name, check.definition) == (name, definition)
    assert check.blocking is ("warn" not in text)


PARTED = 'partition=daily time_column=d start="2013-01-01"'


@pytest.mark.parametrize(
    ("text", "definition"),
    [
        ("row_count { min=1 per=partition }", "row count at least 1 in each partition"),
        ("unique=[a, b] { per=partition }", "a, b unique in each partition"),
        ("freshness { ts=6h per=partition }", "greatest ts at most 6 hours old in each partition"),
        ("function=ok { per=partition }", "function ok () in each partition"),
        ("row_count { min=1 per=table }", "row count at least 1"),
        ("not_null=[a] { per=partition }", "a not null"),
        ("expr { x='a > 0' per=partition }", "a > 0"),
        ("range { a.min=1 per=partition }", "a at least 1"),
        ("accepted_values { a=[x] per=partition }", "a in ['x']"),
        ('relationship { a="b.c" per=partition }', "a in b.c"),
    ],
)
def test_per_partition_applies_only_to_checks_that_depend_on_it(text: str, definition: str) -> None:
    annotation, problems = read(f"{PARTED} check {{ {text} }}")
    assert not problems
    (check,) = annotation.checks
    assert check.definition == definition
    assert check.per_partition is definition.endswith(" in each partition")


@given(st.text(max_size=60))
def test_arbitrary_text_does_not_crash_the_reader(text: str) -> None:
    annotation, problems = read(text)
    assert isinstance(annotation, Annotation)
    assert all(p.location.line >= 1 and p.location.column >= 1 for p in problems)
