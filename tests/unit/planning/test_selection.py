"""Selection of sources by name, annotation, state and graph."""

from __future__ import annotations

from typing import Literal, cast

import pytest
from conftest import compiled

from persist_assets.core.errors import ConflictError, Location, NotFoundError
from persist_assets.core.model.plans import Reason, ReasonCode, Step
from persist_assets.core.settings.values import Selector
from persist_assets.planning.selection import State, find_source, select, states_of

PROJECT = compiled(
    {
        "a.sql": """
        CREATE TABLE t (a INT) USING parquet LOCATION 't';
        --@ persist tags=[nightly] { team=flights }
        CREATE VIEW p AS SELECT a FROM t;
        CREATE VIEW v AS SELECT a FROM p;
        --@ persist tags=nightly group=late
        CREATE VIEW q AS SELECT a FROM v;
        --@ persist owner="team:x"
        CREATE VIEW r AS SELECT a FROM q;
        --@ persist
        CREATE VIEW other AS SELECT a FROM t;
        """,
        "d/b.sql": "CREATE VIEW p AS SELECT a FROM t",
        "d/c.py": """
from persist_assets import table

@table
def late_by_day(q):
    return q
""",
    }
)
STATES: dict[str, frozenset[State]] = {
    "p@sources/a.sql": frozenset(("current",)),
    "q@sources/a.sql": frozenset(("stale", "modified")),
    "r@sources/a.sql": frozenset(("missing",)),
    "other@sources/a.sql": frozenset(("missing", "modified")),
    "late_by_day@sources/d/c.py": frozenset(("stale",)),
}
ALL = ["p", "q", "r", "other", "late_by_day"]


def names(*patterns: str) -> set[str]:
    return {s.partition("@")[0] for s in select(PROJECT, patterns, lambda: STATES)}


@pytest.mark.proves("P20")
@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["a/p"], "p"),
        (["q", "a.p"], "p q"),
        (["+r"], "p q r"),
        (["2+q"], "p q"),
        (["1+q"], "q"),
        (["a/p+"], "p q r late_by_day"),
        (["a/p+2"], "p q"),
        (["+q+"], "p q r late_by_day"),
        (["1+q+1"], "q r late_by_day"),
        (["v+1"], "q"),
        (["t+1"], "p other"),
        (["q@sources/a.sql"], "q"),
        (['"q@sources/a.sql"'], "q"),
    ],
)
def test_names_and_graph_operators_select_sources(patterns: list[str], expected: str) -> None:
    assert names(*patterns) == {*expected.split()}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", "p q r other late_by_day"),
        ("late*", "late_by_day"),
        ("a/?", "p q r"),
        ("d/*", "late_by_day"),
        ('key:"a/*"', "p q r other"),
        ("key:a/o*", "other"),
        ("tag:nightly", "p q"),
        ("tag:team", "p"),
        ("tag:team=flights", "p"),
        ('tag:"team"="flights"', "p"),
        ("group:late", "q"),
        ("group:l*", "q"),
        ("kind:python", "late_by_day"),
        ("kind:sql", "p q r other"),
        ("kind:parquet+1", "p other"),
        ("owner:team:x", "r"),
        ("path:sources/d", "late_by_day"),
        ("path:sources/*.sql", "p q r other"),
        ("state:stale", "q late_by_day"),
        ("state:missing", "r other"),
        ("state:modified", "q other"),
        ("state:modified+ and not state:modified", "r late_by_day"),
        ("tag:nightly and state:stale", "q"),
        ("not tag:nightly", "r other late_by_day"),
        ("NOT tag:nightly AND kind:sql or q", "q r other"),
        ("not (tag:nightly or kind:python)", "r other"),
        ("other or +q and tag:nightly", "p q other"),
        ("+(r or other)", "p q r other"),
        ("(tag:nightly)+1", "p q r late_by_day"),
        ("roots(+r)", "p"),
        ("sinks(*)", "r other late_by_day"),
        ("sinks( +r )+ or roots(d/*)", "r late_by_day"),
    ],
)
def test_expressions_select_sources(pattern: str, expected: str) -> None:
    assert names(pattern) == {*expected.split()}


def test_selected_sources_come_in_dependency_order() -> None:
    found = [s.partition("@")[0] for s in select(PROJECT, ["*"])]
    assert found.index("p") < found.index("q") < found.index("r")


def test_a_state_that_no_table_has_selects_nothing() -> None:
    assert names("state:current and q") == set()


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("othr", "unknown source `othr`\n    hint: did you mean `other`?"),
        ("tag:nightly and (q or othr)", "unknown source `othr`\n    hint: did you mean `other`?"),
        ("lat_*", "unknown source `lat_*`"),
        ("v", "`v` is not persisted\n    hint: annotate it"),
        ("t", "`t` is not persisted\n    hint: it is a raw table"),
        ("tag:nightl", "unknown tag `nightl`\n    hint: did you mean `nightly`?"),
        ("tag:team=flight", "hint: did you mean `team=flights`?"),
        ("group:lat+", "unknown group `lat`\n    hint: did you mean `late`?"),
        ("not kind:pyton", "unknown kind `pyton`\n    hint: did you mean `python`?"),
        ("kind:xxx", "hint: known values: parquet, python, spark, sql"),
        ("path:sources/a.sq", "unknown path `sources/a.sq`\n    hint: did you mean"),
        ('key:"a/qq"', "unknown key `a/qq`"),
        ("state:stael", "unknown state `stael`\n    hint: did you mean `stale`?"),
        ("tags:nightly", "unknown attribute `tags:`\n    hint: did you mean `tag`?"),
        ("status:stale", "unknown attribute `status:`\n    hint: did you mean `state`?"),
        ("p and r", "`p` is ambiguous: a/p, d/b/p"),
        ("q and r", "`q and r` selects no persisted source"),
        ("q r", "`q r` is not a selection: `r` is unexpected"),
        ("q and", "expected a name"),
        ("(q or r", "expected `)`"),
        ("q,r", "`,r` is unexpected"),
        ("", "expected a name"),
        ("(" * 500 + "q" + ")" * 500, "the nesting is too deep"),
        ("not " * 500 + "q", "the nesting is too deep"),
    ],
)
def test_invalid_selections_are_reported(pattern: str, says: str) -> None:
    with pytest.raises((NotFoundError, ConflictError)) as error:
        names(pattern)
    assert says in str(error.value)


def test_an_ambiguous_name_is_an_error() -> None:
    with pytest.raises(ConflictError, match="`p` is ambiguous: a/p, d/b/p"):
        find_source(PROJECT, "p")


@pytest.mark.parametrize(
    ("action", "codes", "states"),
    [
        ("reuse", (), {"current"}),
        ("build", ("new",), {"missing", "modified"}),
        ("build", ("missing",), {"missing"}),
        ("build", ("code",), {"stale", "modified"}),
        ("build", ("upstream p",), {"stale"}),
        ("build", ("upstream v",), {"stale", "modified"}),
        ("build", ("upstream t",), {"stale", "modified"}),
        ("build", ("input", "increment"), {"stale"}),
    ],
)
def test_the_states_of_a_table_follow_from_its_planned_step(
    action: Literal["build", "reuse"], codes: tuple[str, ...], states: set[State]
) -> None:
    def reason(text: str) -> Reason:
        code, _, name = text.partition(" ")
        return Reason(cast("ReasonCode", code), "why", f"{name}@sources/a.sql" if name else None)

    step = Step("q@sources/a.sql", action, "build", (), tuple(map(reason, codes)))
    assert states_of(step, PROJECT) == states


@pytest.mark.proves("W22")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("v", "v@sources/a.sql"),
        ("path:sources/d", "p@sources/d/b.sql late_by_day@sources/d/c.py"),
        ("sinks(v+ and not kind:python)", "r@sources/a.sql"),
        ("roots(t+2)", "p@sources/a.sql p@sources/d/b.sql other@sources/a.sql"),
        ("t+1 and path:sources/d", "p@sources/d/b.sql"),
        ("state:missing or v", "v@sources/a.sql r@sources/a.sql other@sources/a.sql"),
        ("selector:views", "v@sources/a.sql p@sources/d/b.sql"),
        ("selector:ends", "p@sources/d/b.sql"),
    ],
)
def test_views_are_selected_if_requested(pattern: str, expected: str) -> None:
    views = Selector("views", ("v", "d/b/p"), Location("persist.toml"))
    ends = Selector("ends", ("sinks(t+1 and path:sources/d)",), Location("persist.toml"))
    chosen = select(PROJECT, [pattern], lambda: STATES, [views, ends], views=True)
    assert {*chosen} == {*expected.split()}


@pytest.mark.proves("W22")
@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("t", "`t` is a raw table, which has no query\n    hint: name a source that reads it"),
        ("t and v", "`t and v` selects no source with a query"),
    ],
)
def test_raw_tables_are_not_selected_with_views(pattern: str, says: str) -> None:
    with pytest.raises(NotFoundError) as error:
        select(PROJECT, [pattern], views=True)
    assert says in str(error.value)
