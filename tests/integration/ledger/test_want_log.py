"""Wants in the ledger, on both databases: transitions, pages of events, and projections."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import draws
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persist_assets.core.errors import ConflictError, NotFoundError
from persist_assets.core.wants import (
    ACTIVE,
    Blame,
    Evaluation,
    Want,
    bounded_id,
    evaluate,
    matcher,
)
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.projections import PROJECTIONS
from persist_assets.ledger.taints import Taint

Open = Callable[..., Ledger]
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def a_want(want_id: str = "w", ref: str = "m/a", **how: Any) -> Want:
    return Want(want_id, ref, "dev", NOW, source={"type": "cli", "user": "me"}, **how)


def ask(ledger: Ledger, *refs: str) -> str:
    """Create a request for partitions; return its id."""
    ledger.wants.create([a_want(ref, ref) for ref in refs])
    request = ledger.requests.record_evaluation("dev", "want", Evaluation(refs, refs, "because"))
    assert request is not None
    return request.request_id


def state(ledger: Ledger, want_id: str) -> str:
    found = ledger.wants.find(want_id)
    assert found is not None
    return found.state


@pytest.mark.proves("D3")
def test_a_want_has_all_its_fields_and_null_for_omitted_ones(open_ledger: Open) -> None:
    ledger = open_ledger(clock=lambda: NOW)
    full = {
        "data_timestamp": NOW - timedelta(days=1),
        "ttl_s": 60,
        "sla_s": 30,
        "external_dependencies": ("users:x", "users:y"),
        "comment": "for the board",
    }
    (found,) = ledger.wants.create([a_want(**full)])
    assert found == a_want(**full)
    (bare,) = ledger.wants.create([a_want("bare")])
    assert (bare.data_timestamp, bare.ttl_s, bare.sla_s) == (None, None, None)
    assert bare.external_dependencies == ()
    assert found.source == {"type": "cli", "user": "me"}


def test_the_creation_time_of_a_want_is_that_of_the_ledgers_clock(open_ledger: Open) -> None:
    ledger = open_ledger(clock=lambda: NOW + timedelta(days=3))
    (found,) = ledger.wants.create([a_want()])
    assert found.created_at == NOW + timedelta(days=3)


@pytest.mark.proves("D5")
def test_creating_a_want_twice_with_the_same_id_is_idempotent(open_ledger: Open) -> None:
    ledger = open_ledger()
    first = ledger.wants.create([a_want(sla_s=30)])
    assert ledger.wants.create([a_want(sla_s=30, comment="again")]) == first
    with pytest.raises(ConflictError, match="already exists with different content"):
        ledger.wants.create([a_want(sla_s=31)])
    assert [e.kind for e in ledger.events.fetch()] == ["want-created"]


@pytest.mark.proves("D38")
def test_a_want_is_cancelled_once(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.wants.create([a_want()])
    assert ledger.wants.cancel("w", by="me", why="no").state == "cancelled"
    with pytest.raises(ConflictError, match="is cancelled"):
        ledger.wants.cancel("w", by="me")
    with pytest.raises(NotFoundError):
        ledger.wants.cancel("another", by="me")


def test_a_request_can_be_started_only_once(open_ledger: Open) -> None:
    ledger = open_ledger()
    request_id = ask(ledger, "m/a", "m/b")
    assert state(ledger, "m/a") == state(ledger, "m/b") == "requested"
    assert ledger.requests.start(request_id, "run").state == "started"
    assert state(ledger, "m/a") == state(ledger, "m/b") == "building"
    with pytest.raises(ConflictError, match="already taken"):
        ledger.requests.start(request_id, "other")
    with pytest.raises(NotFoundError):
        ledger.requests.start("none", None)


@pytest.mark.proves("D16")
def test_a_failed_request_marks_its_culprits_and_releases_other_wants(open_ledger: Open) -> None:
    ledger = open_ledger(clock=lambda: NOW)
    request_id = ask(ledger, "m/a", "m/b", "m/c")
    ledger.requests.fail(request_id, "boom", ["m/c"])
    ledger.requests.fail(request_id, "again", ["m/a"])
    assert [state(ledger, ref) for ref in ("m/a", "m/b", "m/c")] == [
        "waiting",
        "waiting",
        "failing",
    ]
    guilty = ledger.wants.find("m/c")
    assert guilty is not None
    assert (guilty.failures, guilty.error) == (1, "boom")
    assert guilty.retry_at == NOW + timedelta(minutes=1)


def test_after_a_crash_wants_are_retried_together_then_halved_then_alone(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    ledger.wants.create([a_want(str(n), f"m/{n}") for n in range(4)])
    sizes: list[int] = []
    for _ in range(6):
        now += timedelta(hours=2)
        found = evaluate(ledger.wants.fetch("dev", states=ACTIVE), now, current=(), available=())
        sizes.append(len(found.partitions))
        request = ledger.requests.record_evaluation("dev", "clock", found)
        assert request is not None
        ledger.requests.start(request.request_id, None)
        ledger.requests.fail(request.request_id, "died")
    assert sizes == [4, 4, 2, 2, 1, 1]


@pytest.mark.proves("S19")
def test_a_request_that_never_starts_counts_no_failure_of_its_wants(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    ledger.wants.create([a_want(str(n), f"m/{n}") for n in range(4)])
    for _ in range(4):
        found = evaluate(ledger.wants.fetch("dev", states=ACTIVE), now, current=(), available=())
        request = ledger.requests.record_evaluation("dev", "clock", found)
        assert request is not None and len(request.partitions) == 4
        ledger.requests.fail(request.request_id, "no process started it")
        rest = ledger.wants.fetch("dev")
        assert {(w.state, w.failures, w.batch, w.error) for w in rest} == {
            ("waiting", 0, None, "no process started it")
        }
        found = evaluate(rest, now, current=(), available=())
        assert found.partitions == (), "it is requested again at once, for ever"
        now += timedelta(minutes=1)


@pytest.mark.proves("S19")
def test_lists_have_the_newest_wants_that_match_their_filters(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    for n in range(12):
        now += timedelta(seconds=n % 2)  # some have the same time
        ledger.wants.create([a_want(f"{n:02}", f"m/{'ab'[n % 2]}/{n}")])
    ledger.wants.cancel("04", by="me")
    ledger.wants.cancel("11", by="me")
    every = sorted(ledger.wants.fetch("dev"), key=lambda w: (w.created_at, w.want_id))
    assert len(every) == 12
    for states in ((), ACTIVE, ("cancelled",), ("cancelled", "waiting")):
        for pattern in (None, "m/a/*", "m/*", "**/1*", "none*"):
            for refs in ((), ("m/a/4", "m/b/11", "m/a/6")):
                for limit in (None, 1, 3, 100):
                    fits = [
                        w
                        for w in every
                        if (not states or w.state in states)
                        and (not refs or w.partition_ref in refs)
                        and (pattern is None or matcher(pattern)(w.partition_ref))
                    ]
                    found = ledger.wants.fetch(
                        "dev", states=states, refs=refs, pattern=pattern, limit=limit
                    )
                    assert found == (fits if limit is None else fits[-limit:])
    assert ledger.partitions.fetch_states("dev", ["m/a/4", "m/b/1"]) == ({}, {"m/b/1": "waiting"})


@pytest.mark.proves("S19")
def test_a_thousand_missed_deadlines_are_recorded_and_later_delivered(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    ledger.wants.create([a_want(str(n), f"m/{n}", sla_s=1) for n in range(1_100)])
    now += timedelta(minutes=1)
    late = ledger.wants.fetch_late("dev", now)
    assert len(late) == 1_100 and len(ledger.wants.fetch_late("dev", now, limit=7)) == 7
    told = [(want, Blame("x", "users", NOW, "not-arrived")) for want in late]
    assert ledger.wants.record_misses(told) == 1_100
    assert ledger.wants.record_misses(told) == 0 == len(ledger.wants.fetch_late("dev", now))
    assert len(ledger.wants.fetch_misses("dev", only_open=True)) == 1_100
    satisfied = tuple(want.want_id for want in late)
    assert ledger.requests.record_evaluation("dev", "want", Evaluation(satisfied=satisfied)) is None
    assert ledger.wants.fetch_misses("dev", only_open=True) == []
    assert {miss.delivered_at for miss in ledger.wants.fetch_misses("dev")} == {now}


def test_a_partition_with_an_open_request_is_not_requested_again(open_ledger: Open) -> None:
    ledger = open_ledger()
    ask(ledger, "m/a")
    assert ledger.requests.record_evaluation("dev", "want", Evaluation(("m/a",), ("m/a",))) is None


def test_concurrent_evaluations_request_a_partition_once(open_ledger: Open) -> None:
    refs = [f"m/{n}" for n in range(20)]
    ledgers = [open_ledger() for _ in range(4)]
    ledgers[0].wants.create([a_want(ref, ref) for ref in refs])
    together = threading.Barrier(4, timeout=60)

    def request(ledger: Ledger) -> list[str]:
        requested: list[str] = []
        for ref in refs:
            together.wait()
            made = ledger.requests.record_evaluation("dev", "want", Evaluation((ref,), (ref,)))
            requested += [ref] if made else []
        return requested

    with ThreadPoolExecutor(4) as pool:
        requested = [*pool.map(request, ledgers)]
    assert sorted(ref for some in requested for ref in some) == sorted(refs)


@pytest.mark.proves("D29")
def test_a_missed_deadline_stays_recorded_after_late_delivery(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    ledger.wants.create([a_want("m/a", "m/a", sla_s=60)])
    request = ledger.requests.record_evaluation("dev", "want", Evaluation(("m/a",), ("m/a",)))
    assert request is not None
    assert ledger.wants.fetch_late("dev", NOW + timedelta(seconds=60)) == []
    (late,) = ledger.wants.fetch_late("dev", NOW + timedelta(seconds=61))
    blame = Blame("x", "users", NOW, "not-arrived")
    now = NOW + timedelta(seconds=61)
    assert ledger.wants.record_misses([(late, blame), (late, blame)]) == 1
    assert ledger.wants.fetch_late("dev", now) == []
    now = NOW + timedelta(seconds=90)
    ledger.builds.publish_together([], request_id=request.request_id)
    (miss,) = ledger.wants.fetch_misses("dev")
    assert (miss.deadline, miss.delivered_at) == (NOW + timedelta(seconds=60), now)
    assert miss.blame["graph"] == "users"
    assert state(ledger, "m/a") == "satisfied"
    kinds = [e.kind for e in ledger.events.fetch()]
    assert kinds[-2:] == ["want-satisfied", "sla-recovered"]


@pytest.mark.proves("D29")
def test_a_deadline_that_passes_between_two_evaluations_is_missed(open_ledger: Open) -> None:
    now = NOW
    ledger = open_ledger(clock=lambda: now)
    names = ("built", "current", "over", "in time")
    ledger.wants.create([a_want(n, f"m/{n}", sla_s=600 if n == "in time" else 60) for n in names])
    built = ("m/built", "m/in time"), ("built", "in time")
    request = ledger.requests.record_evaluation("dev", "want", Evaluation(*built))
    assert request is not None
    now = NOW + timedelta(seconds=90)
    ended = Evaluation(satisfied=("current",), expired=("over",))
    assert ledger.requests.record_evaluation("dev", "want", ended) is None
    ledger.builds.publish_together([], request_id=request.request_id)
    misses = {miss.want_id: miss for miss in ledger.wants.fetch_misses("dev")}
    assert {name: miss.delivered_at for name, miss in misses.items()} == {
        "built": now,
        "current": now,
        "over": None,
    }
    assert misses["built"].blame["cause"] == "running"


@pytest.mark.proves("D27", "D28", "D29")
def test_sql_views_show_active_wants_and_missed_deadlines_to_monitors(open_ledger: Open) -> None:
    now = datetime.now(UTC)  # the database's own clock decides
    ledger = open_ledger(clock=lambda: now)
    hour, minute = 3600, timedelta(minutes=1)
    ledger.wants.create(
        [
            a_want("plain", "m/plain"),
            a_want("soon late", "m/soon", sla_s=hour),
            a_want("late", "m/late", data_timestamp=now - minute, sla_s=30),
            a_want("told", "m/told", data_timestamp=now - minute, sla_s=30),
            a_want("over", "m/over", ttl_s=0, data_timestamp=now - minute, sla_s=59),
            a_want("taken back", "m/back", data_timestamp=now - minute, sla_s=30),
        ]
    )
    ledger.wants.cancel("taken back", by="me")

    def seen(view: str, *columns: str) -> list[tuple[Any, ...]]:
        with ledger.events.database.read() as connection:
            query = f"SELECT {', '.join(columns)} FROM {view} ORDER BY want_id"
            return [tuple(row) for row in connection.exec_driver_sql(query)]

    late = {"late": False, "over": False, "told": False}
    assert dict(seen("sla_violations", "want_id", "missed_at IS NOT NULL")) == late
    told = [w for w in ledger.wants.fetch_late("dev", now) if w.want_id == "told"]
    ledger.wants.record_misses([(w, Blame("x", "users", NOW, "not-arrived")) for w in told])
    assert dict(seen("sla_violations", "want_id", "missed_at IS NOT NULL")) == late | {"told": True}
    assert [w for (w,) in seen("active_wants", "want_id")] == [
        "late",
        "plain",
        "soon late",
        "told",
    ]
    assert ask(ledger, "m/late") and ledger.wants.fetch_misses("dev")[0].want_id == "told"
    request = ledger.requests.record_evaluation("dev", "want", Evaluation(("m/told",), ("told",)))
    assert request is not None
    ledger.builds.publish_together([], request_id=request.request_id)
    assert ("told", True) in seen("sla_violations", "want_id", "delivered_at IS NOT NULL")
    assert "told" not in [w for (w,) in seen("active_wants", "want_id")]


@pytest.mark.proves("D25")
def test_partition_states_synced_from_another_graph_are_recorded_once(open_ledger: Open) -> None:
    ledger = open_ledger()
    told = [{"partition_ref": "data/x", "state": "available"}]
    assert ledger.upstreams.record_synced("dev", "users", "5", told, expected=None)
    assert not ledger.upstreams.record_synced("dev", "users", "5", told, expected=None)
    assert ledger.upstreams.find_cursor("dev", "users") == "5"
    assert {*ledger.partitions.fetch_available("dev", "users")} == {"data/x"}
    assert {*ledger.partitions.fetch_available("dev", "users", refs=["data/x", "y"])} == {"data/x"}
    assert ledger.partitions.fetch_available("dev", "users", refs=["y"]) == {}
    assert ledger.partitions.fetch_available("dev") == {}


def test_partitions_waiting_for_another_graph_are_listed_oldest_first(open_ledger: Open) -> None:
    ledger = open_ledger()
    needs = [
        ("m/a", "a_b:x"),
        ("m/b", "axb:a_b:x"),
        ("m/c", "c:x"),
        ("m/a", "a_b:y"),
        ("m/d", "a_b:x"),
    ]
    for n, (ref, need) in enumerate(needs):
        want = Want(f"w{n}", ref, "dev", NOW, external_dependencies=("c:z", need))
        ledger.wants.create([want])
    assert ledger.wants.fetch_waiting("dev", "a_b", limit=9) == ["m/a", "m/d"]
    assert ledger.wants.fetch_waiting("dev", "a_b", limit=2) == ["m/a"]
    ledger.wants.cancel("w0", by="test")
    ledger.wants.cancel("w3", by="test")
    assert ledger.wants.fetch_waiting("dev", "a_b", limit=9) == ["m/d"]
    assert ledger.wants.fetch_waiting("prod", "a_b", limit=9) == []


@pytest.mark.proves("D19", "D20", "D22", "D23", "D24")
def test_events_are_filtered_by_partition_kind_and_request(open_ledger: Open) -> None:
    ledger = open_ledger()
    one, two = ask(ledger, "m/a", "m/b/1"), ask(ledger, "m/b/2")
    ledger.requests.fail(one, "no", ["m/b/1"])

    def refs(**how: Any) -> list[str | None]:
        return [e.data.get("partition_ref") for e in ledger.events.search(**how)[0]]

    assert refs(refs=["m/a"]) == ["m/a"]
    assert refs(patterns=["m/b/*"]) == ["m/b/1", "m/b/2", "m/b/1"]
    assert refs(patterns=["m/*"]) == ["m/a"]
    assert refs(patterns=["m/b/*"], kinds=["partition-failed"]) == ["m/b/1"]
    assert refs(refs=["m/a"], patterns=["m/b/2"]) == ["m/a", "m/b/2"]
    by_request, _ = ledger.events.search(build_request_ids=[two])
    assert {e.kind for e in by_request} == {"evaluation", "build-requested"}
    assert (
        ledger.events.search(job_labels=["x"])[0] == ledger.events.search(task_ids=["x"])[0] == []
    )


@pytest.mark.proves("D19")
def test_pages_have_every_event_once(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist_assets.ledger.log._SCANNED", 3)
    ledger = open_ledger()
    ask(ledger, *(f"m/{n}" for n in range(20)))
    for how in ({}, {"patterns": ["m/1*"]}, {"kinds": ["want-created"]}):
        found, since = [], 0
        while True:
            some, following = ledger.events.search(since, limit=2, **how)
            found += [e.idx for e in some]
            if following == since:
                break
            since = following
        monkeypatch.undo()
        assert found == [e.idx for e in ledger.events.search(0, **how)[0]]
        monkeypatch.setattr("persist_assets.ledger.log._SCANNED", 3)
        assert since == ledger.events.position()


def dump(ledger: Ledger) -> list[list[Any]]:
    with ledger.events.database.read() as connection:
        return [
            [tuple(r) for r in connection.execute(sa.select(t).order_by(*t.primary_key))]
            for t in PROJECTIONS
        ]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "cancel", "ask", "fail", "die", "succeed", "taint", "sync", "miss"]
        ),
        st.integers(0, 4),
    ),
    max_size=25,
)


@pytest.mark.proves("D2")
@settings(
    max_examples=draws(6, 25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ACTS)
def test_replaying_all_events_rebuilds_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    now = NOW
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('fold') / 'ledger.db'}", clock=lambda: now)
    requests: list[str] = []
    for what, n in acts:
        now += timedelta(minutes=7)
        active = ledger.wants.fetch("dev", states=ACTIVE)
        if what == "want":
            ledger.wants.create([a_want(uuid.uuid4().hex, f"m/{n}", sla_s=60 * n or None)])
        elif what == "cancel" and active:
            ledger.wants.cancel(active[n % len(active)].want_id, by="me")
        elif what == "ask":
            found = evaluate(active, now, current={f"m/{n}"}, available=(), force=n == 1)
            request = ledger.requests.record_evaluation("dev", "clock", found)
            requests += [request.request_id] if request else []
        elif what in ("fail", "die") and requests:
            culprits = [f"m/{n}"] if what == "fail" else []
            ledger.requests.fail(requests.pop(), "no", culprits)
        elif what == "succeed" and requests:
            ledger.builds.publish_together([], request_id=requests.pop())
        elif what == "taint":
            ledger.taints.record(["dev"], lambda *_, n=n: Taint({f"m/{n}": "b"}), by="me")
        elif what == "sync":
            before = ledger.upstreams.find_cursor("dev", "users")
            told = [{"partition_ref": f"x/{n}", "state": "available"}]
            ledger.upstreams.record_synced("dev", "users", str(n), told, expected=before)
        elif what == "miss":
            late = ledger.wants.fetch_late("dev", now)
            ledger.wants.record_misses([(w, Blame("x", "", now, "queued")) for w in late])
    before = dump(ledger)
    ledger.events.rebuild_projections()
    assert dump(ledger) == before
    ledger.close()


@pytest.mark.proves("V59")
def test_no_want_is_satisfied_by_rows_tainted_since_they_were_looked_at(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.wants.create([a_want()])
    satisfied, position = Evaluation(satisfied=("w",)), ledger.events.position()
    ledger.taints.record(["dev"], lambda *_: Taint({"m/a": "b"}), by="me")
    ledger.requests.record_evaluation("dev", "want", satisfied, since=position)
    assert state(ledger, "w") == "waiting"
    ledger.requests.record_evaluation("dev", "want", satisfied, since=ledger.events.position())
    assert state(ledger, "w") == "satisfied"


@pytest.mark.proves("V59")
def test_a_request_fails_if_another_graph_no_longer_has_what_it_needs(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.wants.create([a_want("m/a", "m/a", external_dependencies=("users:x",))])
    request = ledger.requests.record_evaluation("dev", "want", Evaluation(("m/a",), ("m/a",)))
    assert request is not None
    ledger.requests.start(request.request_id, None)
    with pytest.raises(ConflictError, match="users:x is no longer available"):
        ledger.requests.check_upstreams(request.request_id)
    with pytest.raises(ConflictError, match="users:x is no longer available"):
        ledger.builds.publish_together([], request_id=request.request_id)
    assert state(ledger, "m/a") == "building"
    ledger.wants.cancel("m/a", by="me")
    ledger.requests.check_upstreams(request.request_id)


def test_ids_of_long_references_fit_into_both_databases(open_ledger: Open) -> None:
    ledger = open_ledger()
    refs = [f"m/{'a' * 300}/{n}" for n in range(2)]
    ids = [bounded_id(f"{uuid.uuid4().hex}/{ref}") for ref in refs]
    ledger.wants.create([a_want(i, ref) for i, ref in zip(ids, refs, strict=True)])
    assert len({*ids}) == 2
    assert {w.partition_ref for w in ledger.wants.fetch("dev")} == {*refs}
