"""Queries that return the same rows in every evaluation, and tables that may have others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from conftest import with_programs_of

from persist_assets.core.model.plans import Increment, Step
from persist_assets.core.model.project import Project
from persist_assets.core.model.snapshots import RawVersion, Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.planning.inputs import content_version
from persist_assets.planning.redrawn import Redrawn, names_of_redrawn
from persist_assets.planning.world import World

RAW = "CREATE TABLE t (day DATE, a INT, d DOUBLE) USING parquet LOCATION 'raw';\n"


def project(text: str) -> Project:
    made = with_programs_of({"a.sql": RAW + text})
    assert not made.errors, made.errors
    return made


def named(made: Project, name: str) -> Source:
    return next(s for s in made.sources if s.name == name)


@pytest.mark.proves("T29")
@pytest.mark.parametrize(
    ("query", "is_settled"),
    [
        ("SELECT day, a FROM t WHERE a > 1", True),
        ("SELECT day, max(a) AS a, sum(d) AS d, avg(a) AS m FROM t GROUP BY day", True),
        ("SELECT day, rank() OVER (PARTITION BY day ORDER BY a) AS a FROM t", True),
        ("SELECT day, a FROM v", True),
        ("SELECT day, first(a) AS a FROM t GROUP BY day", False),
        ("SELECT day, max_by(a, d) AS a FROM t GROUP BY day", False),
        ("SELECT day, row_number() OVER (PARTITION BY day ORDER BY a) AS a FROM t", False),
        ("SELECT day, a FROM (SELECT day, a FROM t ORDER BY a LIMIT 3)", False),
        ("SELECT day, a FROM w", False),
    ],
)
def test_queries_that_choose_among_rows_are_not_settled(query: str, is_settled: bool) -> None:
    views = """
CREATE VIEW v AS SELECT day, max(a) AS a FROM t GROUP BY day;
CREATE VIEW w AS SELECT day, any_value(a) AS a FROM t GROUP BY day;
"""
    made = project(f"{views}--@ persist\nCREATE VIEW p AS {query};\n")
    assert made.is_settled(named(made, "p").source_id) is is_settled


CHAIN = """
--@ persist
CREATE VIEW p AS SELECT day, max(a) AS a FROM t GROUP BY day;
--@ persist
CREATE VIEW q AS SELECT day, a + 1 AS a FROM p;
--@ persist refresh=incremental watermark=day
CREATE VIEW r AS SELECT day, sum(a) AS a FROM q GROUP BY day;
"""


def snapshot(source: Source, day: int, content: str) -> Snapshot:
    """Return a snapshot from the data of a day."""
    as_of = (RawVersion("t", f"files:{day}"),)
    at = datetime(2026, 1, day, tzinfo=UTC)
    uid = f"{source.name}{day}{content}"
    return Snapshot(
        uid, source.source_id, source.build_id, source.name, 0, as_of, content, 1, 1, at
    )


@pytest.mark.proves("T29")
def test_tables_computed_from_tainted_rows_may_have_other_rows() -> None:
    made = project(CHAIN)
    p, q, r = (named(made, name) for name in "pqr")
    p1, p2 = snapshot(p, 1, "a"), snapshot(p, 2, "b")
    q1 = replace(snapshot(q, 1, "c"), inputs=(RawVersion(p.build_id, content_version(p, p1)),))
    q2 = snapshot(q, 2, "d")
    row_inputs = (RawVersion(q.build_id, content_version(q, q1)),)
    builds = {p.build_id: [p2, p1], q.build_id: [q2, q1]}

    def redrawn(manifest: dict[str, Snapshot], *tainted: str) -> set[str]:
        world = World("dev", manifest, {}, "2026-01-03", "2026-01-03T00:00:00+00:00", {})
        return {*Redrawn(made, world, tainted, builds.__getitem__).of(r, q1.as_of, row_inputs)}

    assert redrawn({p.build_id: p2, q.build_id: q2}) == set()
    assert redrawn({p.build_id: p2, q.build_id: q2}, q1.build_uid) == {q.build_id}
    # The rows of `q` came from tainted rows of `p`.
    assert redrawn({p.build_id: p2, q.build_id: q2}, p1.build_uid) == {q.build_id}
    assert redrawn({p.build_id: p2, q.build_id: q1}, p1.build_uid) == set()
    # Another build from the same data had other rows.
    other = replace(snapshot(q, 1, "e"), built_at=datetime(2026, 1, 2, tzinfo=UTC))
    builds[q.build_id] = [q2, other, q1]
    assert redrawn({p.build_id: p2, q.build_id: q2}) == {q.build_id}


def test_graphs_with_many_paths_are_searched_once() -> None:
    """Each of 24 layers reads the one below twice: there are 2^24 paths."""
    layers = ["--@ persist\nCREATE VIEW a0 AS SELECT day, a FROM t;"]
    layers += ["--@ persist\nCREATE VIEW b0 AS SELECT day, a + 1 AS a FROM t;"]
    for n in range(1, 25):
        for name, other in (("a", "b"), ("b", "a")):
            query = f"SELECT day, a FROM a{n - 1} UNION ALL SELECT day, a + {n} FROM {other}{n - 1}"
            layers.append(f"--@ persist\nCREATE VIEW {name}{n} AS {query};")
    layers.append(
        "--@ persist refresh=incremental watermark=day\n"
        "CREATE VIEW r AS SELECT day, sum(a) AS a FROM a24 GROUP BY day;"
    )
    made = project("\n".join(layers))
    steps = {
        s.source_id: Step(
            s.source_id, "build", s.build_id, (), increment=Increment(snapshot(s, 1, "x"))
        )
        for s in made.persisted
    }
    world = World("dev", {}, {}, "2026-01-03", "2026-01-03T00:00:00+00:00", {})
    r = named(made, "r")
    assert names_of_redrawn(made, r, (), (), world, steps) == []
    assert Redrawn(made, world, (), lambda _: ()).of(r, (), ()) == set()
