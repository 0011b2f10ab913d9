"""The evaluation of wants without a ledger: `wants.py`, and how requests end."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import draws, has_taken
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.core.wants import (
    Evaluation,
    Request,
    Want,
    blame,
    evaluate,
    fewer,
    matcher,
    pause,
    ref_of,
    split_graph,
)
from persist_assets.ledger.log import like

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def want(ref: str, **how: Any) -> Want:
    return Want(
        how.pop("want_id", f"want of {ref}"), ref, "dev", how.pop("created_at", MIDNIGHT), **how
    )


def decide(*wants: Want, now: datetime = MIDNIGHT, **how: Any) -> Any:
    return evaluate(
        wants, now, current=how.pop("current", ()), available=how.pop("available", ()), **how
    )


@pytest.mark.proves("S19")
def test_a_request_is_limited_to_the_most_urgent_wants() -> None:
    wants = [
        want(ref, want_id=f"{ref}{n}", sla_s=3600 - k) for k, ref in enumerate("abcd") for n in "12"
    ]
    urgent = decide(*wants, most=5)
    assert urgent.partitions == ("d", "c")
    assert urgent.want_ids == ("d1", "d2", "c1", "c2")
    assert urgent.deferred == 4
    assert decide(*wants, most=8).deferred == 0
    # The wants of one partition are never split.
    assert decide(*wants, most=1).partitions == ("d",)
    assert decide(*wants, most=1).deferred == 6
    assert decide(most=1).deferred == 0


@pytest.mark.proves("D9", "D12")
def test_all_buildable_wants_form_one_request() -> None:
    found = decide(
        want("a"),
        want("b"),
        want("old", ttl_s=60, created_at=MIDNIGHT - HOUR),
        want("there"),
        want("under way", state="building"),
        current={"there"},
    )
    assert found.partitions == ("a", "b")
    assert found.want_ids == ("want of a", "want of b")
    assert found.reason == "satisfying_active_wants"
    assert found.satisfied == ("want of there",)
    assert found.expired == ("want of old",)


@pytest.mark.proves("D11")
def test_satisfied_wants_make_no_request() -> None:
    found = decide(want("there"), current={"there"})
    assert not found.partitions
    assert not found.want_ids


@pytest.mark.proves("D10")
def test_a_want_needs_all_of_its_external_dependencies() -> None:
    one = want("a", external_dependencies=("users:x", "users:y"))
    found = decide(one, available={"users:x"})
    assert not found.partitions
    assert found.blocked[0].missing == ("users:y",)
    assert decide(one, available={"users:x", "users:y"}).partitions == ("a",)


@pytest.mark.proves("D8")
@pytest.mark.parametrize(("seconds", "is_active"), [(59, True), (60, False), (61, False)])
def test_the_time_to_live_starts_when_the_want_is_created(seconds: int, is_active: bool) -> None:
    one = want("a", ttl_s=60, data_timestamp=MIDNIGHT - timedelta(days=900))
    found = decide(one, now=MIDNIGHT + timedelta(seconds=seconds))
    assert (found.partitions == ("a",)) is is_active
    assert (found.expired == (one.want_id,)) is not is_active


@pytest.mark.proves("D7")
def test_the_deadline_counts_from_the_timestamp_of_the_data() -> None:
    nine = want("a", sla_s=9 * 3600, data_timestamp=MIDNIGHT, created_at=MIDNIGHT + 6 * HOUR)
    assert nine.deadline == MIDNIGHT + 9 * HOUR
    assert want("a", sla_s=300).deadline == MIDNIGHT + timedelta(minutes=5)


def test_an_unbuildable_want_waits_until_it_expires() -> None:
    gone, going_on = want("gone", ttl_s=60), want("going on")
    asked = {"unbuildable": {"gone", "going on"}}
    assert decide(gone, going_on, **asked) == Evaluation()
    found = decide(gone, going_on, now=MIDNIGHT + HOUR, **asked)
    assert (found.partitions, found.expired) == ((), ("want of gone",))


def test_a_current_partition_does_not_satisfy_a_want_with_missing_dependencies() -> None:
    one = want("a", external_dependencies=("users:x",))
    found = decide(one, current={"a"})
    assert (found.satisfied, [b.missing for b in found.blocked]) == ((), [("users:x",)])
    assert decide(one, current={"a"}, available={"users:x"}).satisfied == ("want of a",)


@pytest.mark.proves("D6")
def test_a_want_without_ttl_and_sla_never_expires_and_has_no_deadline() -> None:
    one = want("a")
    assert one.deadline is None
    assert decide(one, now=MIDNIGHT + timedelta(days=3653)).partitions == ("a",)


@pytest.mark.proves("D38")
def test_wants_of_one_partition_share_a_build_and_expire_separately() -> None:
    some = [want("a", want_id="1", ttl_s=60), want("a", want_id="2", ttl_s=7200)]
    found = decide(*some, now=MIDNIGHT + HOUR)
    assert (found.partitions, found.want_ids, found.expired) == (("a",), ("2",), ("1",))
    found = decide(*some)
    assert (found.partitions, found.want_ids) == (("a",), ("1", "2"))


def test_partitions_are_ordered_by_their_earliest_deadline() -> None:
    some = [
        want("never"),
        want("later", sla_s=7200),
        want("soon", want_id="1", sla_s=7200),
        want("soon", want_id="2", sla_s=60),
    ]
    assert decide(*some).partitions == ("soon", "later", "never")


def test_a_failed_want_waits_and_is_retried_alone() -> None:
    failing = {"state": "failing", "failures": 1, "retry_at": MIDNIGHT + timedelta(minutes=1)}
    some = [want("a"), want("b", **failing), want("c", **{**failing, "retry_at": MIDNIGHT})]
    assert decide(*some).partitions == ("a",)
    assert decide(*some[1:]).partitions == ("c",)
    assert decide(some[1]).partitions == ()
    assert decide(some[1], force=True).partitions == ("b",)


class World:
    """Partitions that are built by the rules; some always fail, some kill their run."""

    def __init__(self, refs: list[str], bad: set[str], deadly: set[str]) -> None:
        self.bad, self.deadly, self.now = bad, deadly, MIDNIGHT
        self.wants = {ref: want(ref) for ref in refs}
        self.current: set[str] = set()
        self.tried: dict[str, int] = dict.fromkeys(refs, 0)

    def step(self) -> bool:
        found = evaluate(self.wants.values(), self.now, current=self.current, available=())
        if not found.partitions:
            return False
        for ref in found.partitions:
            self.tried[ref] += 1
        guilty = self.bad & {*found.partitions}
        if not {*found.partitions} & self.deadly and not guilty:
            self.current |= {*found.partitions}
            return True
        # What `ledger/projections.py` does, and its test compares with this.
        for ref in found.partitions:
            one = self.wants[ref]
            if {*found.partitions} & self.deadly:
                if one.batch is not None and len(found.partitions) == 1:
                    n = one.failures + 1
                    told = {"failures": n, "batch": None, "retry_at": self.now + pause(n)}
                else:
                    n = len(found.partitions)
                    told = {"batch": fewer(n) if one.batch is not None else n}
                    told |= {"retry_at": self.now + pause(1)}
            elif ref in guilty:
                n = one.failures + 1
                told = {"failures": n, "batch": None, "retry_at": self.now + pause(n)}
            else:
                told = {"batch": None, "retry_at": None}
            self.wants[ref] = replace(one, **told)
        return True


@pytest.mark.proves("D17")
@settings(max_examples=draws(20, 100), deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n), st.sets(st.integers(0, n - 1)), st.sets(st.integers(0, n - 1))
        )
    )
)
def test_failing_partitions_do_not_block_good_ones(drawn: tuple[int, set[int], set[int]]) -> None:
    n, bad, deadly = drawn
    refs = [f"p{i}" for i in range(n)]
    world = World(refs, {f"p{i}" for i in bad}, {f"p{i}" for i in deadly})
    for _ in range(40 * n):
        if not world.step():
            world.now += timedelta(minutes=1)
    good = {ref for ref in refs if ref not in world.bad | world.deadly}
    assert world.current == good
    assert all(world.tried[ref] >= 3 for ref in world.bad | world.deadly)


@pytest.mark.proves("D29")
def test_blame_names_what_a_want_waits_for() -> None:
    one = want("a", external_dependencies=("users:data/users",), state="building")
    arrived = blame(one, None, missing=[("users:data/users", None)])
    assert (arrived.partition_ref, arrived.graph, arrived.cause) == (
        "data/users",
        "users",
        "not-arrived",
    )
    request = Request("r", "dev", ("a",), (), "", "", "started", MIDNIGHT, MIDNIGHT + HOUR)
    running = blame(one, request, running="b")
    assert (running.partition_ref, running.since, running.cause) == (
        "b",
        MIDNIGHT + HOUR,
        "running",
    )
    queued = blame(one, replace(request, state="requested"))
    assert (queued.since, queued.cause) == (MIDNIGHT, "queued")
    failed = replace(request, state="failed", ended_at=MIDNIGHT + HOUR, culprits=("z",))
    found = blame(replace(one, state="failing"), failed)
    assert (found.partition_ref, found.cause) == ("z", "failed")


@pytest.mark.proves("D21")
@pytest.mark.parametrize(
    ("pattern", "ref", "fits"),
    [
        ("data/users/*", "data/users/2024-01-01", True),
        ("data/users/*", "data/users/eu/2024-01-01", False),
        ("data/**", "data/users/eu/2024-01-01", True),
        ("data/*/2024-*", "data/users/2024-01-01", True),
        ("data/*/2024-*", "data/users/2023-01-01", False),
        ("data.users", "data/users", False),
        ("**", "anything/at all", True),
        ("*", "a/b", False),
    ],
)
def test_patterns_respect_path_segments(pattern: str, ref: str, fits: bool) -> None:
    assert matcher(pattern)(ref) is fits


@st.composite
def patterns_and_references(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a pattern, and a reference: that it matches, that it nearly matches, or any one."""
    pattern = draw(st.text(alphabet="ab/*%_\\.", max_size=8))
    within, across = st.text("ab%_\\.", max_size=3), st.text("ab/%_\\.", max_size=3)
    fills = {"*": within, "**": across}
    parts = re.split(r"(\*\*|\*)", pattern)
    fitting = "".join(draw(fills[part]) if part in fills else part for part in parts)
    near = fitting.replace("_", "a").replace("%", "ab")
    return pattern, draw(st.sampled_from([fitting, near]) | st.text("ab/%_\\.", max_size=8))


@given(patterns_and_references())
def test_the_like_expression_matches_whatever_the_pattern_matches(pair: tuple[str, str]) -> None:
    pattern, ref = pair
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        ((matches,),) = database.execute("SELECT ? LIKE ? ESCAPE '\\'", (ref, like(pattern)))
    if matcher(pattern)(ref):
        assert matches
    elif "/" not in ref or "*" not in pattern.replace("**", ""):
        assert not matches  # only a star that stands for slashes may match more


@pytest.mark.proves("S8")
@given(st.text(alphabet="ab/*é\n", max_size=8), st.text(alphabet="ab/é\n", max_size=10))
def test_a_pattern_matches_like_its_regular_expression(pattern: str, ref: str) -> None:
    wildcards = {"**": ".*", "*": "[^/]*"}
    parts = re.split(r"(\*\*|\*)", pattern)
    expression = "".join(wildcards.get(part, re.escape(part)) for part in parts)
    assert matcher(pattern)(ref) is bool(re.fullmatch(expression, ref, re.DOTALL))


@pytest.mark.proves("S8")
@pytest.mark.parametrize(
    "pattern", ["*a" * 10 + "b*", "**a" * 10 + "**b**", "*a" * 900 + "*b*", "**a*" * 500 + "b/*"]
)
def test_pathological_patterns_are_matched_quickly(pattern: str) -> None:
    began = time.process_time()
    assert not matcher(pattern)("a" * 2000)
    has_taken(time.process_time() - began, within_s=0.1)


def test_references_name_graphs_and_partitions() -> None:
    assert split_graph("users:data/users") == ("users", "data/users")
    assert split_graph("data/users/2013-01-01-05:00") == ("", "data/users/2013-01-01-05:00")
    assert ref_of("m/daily", "2024-01-01") == "m/daily/2024-01-01"
    assert ref_of("m/total") == "m/total"
