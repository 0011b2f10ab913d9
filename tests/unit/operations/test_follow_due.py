"""Which builds of a plan are due for `persist follow`."""

from __future__ import annotations

from conftest import compiled

from persist_assets.core.model.plans import Plan, Reason, ReasonCode, Step
from persist_assets.operations.watch import due

PROJECT = compiled(
    {
        "a.sql": """
        CREATE TABLE t (a INT) USING parquet LOCATION 't';
        --@ persist
        CREATE VIEW p AS SELECT a FROM t;
        --@ persist
        CREATE VIEW q AS SELECT a, 1 AS b FROM p;
        """
    }
)
P, Q = "p@sources/a.sql", "q@sources/a.sql"


def due_builds(p: list[Reason], q: list[Reason]) -> tuple[tuple[str, ...], list[str]]:
    steps = tuple(
        Step(s, "build" if reasons else "reuse", "", (), tuple(reasons))
        for s, reasons in ((P, p), (Q, q))
    )
    result = due(PROJECT, Plan("dev", steps), {})
    return result.sources, [s for s, _ in result.waiting]


def because(*codes: ReasonCode, source: str | None = None) -> list[Reason]:
    return [Reason(code, code, source) for code in codes]


def test_builds_with_new_data_or_code_are_due() -> None:
    assert due_builds([], []) == ((), [])
    assert due_builds(because("input", "increment"), because("input")) == ((P, Q), [])
    assert due_builds([], because("code")) == ((Q,), [])
    assert due_builds(because("new", "failed"), []) == ((P,), [])


def test_clocks_and_unversioned_data_alone_make_no_build_due() -> None:
    assert due_builds(because("clock"), because("clock")) == ((), [])
    assert due_builds(because("unversioned"), because("upstream", source=P)) == ((), [])
    assert due_builds(because("clock", "input"), because("upstream", source=P)) == ((P, Q), [])


def test_partitions_are_due_and_wait_for_upstream_partitions() -> None:
    assert due_builds(because("partition"), []) == ((P,), [])
    assert due_builds(because("partition", "clock"), []) == ((), [])
    assert due_builds(because("partition", "clock", "input"), []) == ((P,), [])
    assert due_builds([], [*because("partition"), *because("partition", source=P)]) == ((), [Q])


def test_sources_without_data_and_their_readers_wait() -> None:
    assert due_builds(because("new", "no-data"), because("new")) == ((), [P, Q])
    assert due_builds([], because("input", "no-data")) == ((), [Q])
