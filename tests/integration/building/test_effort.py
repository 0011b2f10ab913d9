"""The effort of incremental builds is recorded, and shown in Dagster's metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from maintained import RAW, USERS, WITHOUT_COST, put_rows

from persist_assets.building.builder import Builder
from persist_assets.building.strategies import deltas
from persist_assets.core.model.snapshots import Effort
from persist_assets.operations.documents.builds import BuildDocument
from persist_assets.plugin.io_manager import output_metadata

if TYPE_CHECKING:
    from persist_assets.building.stages import PendingBuild

Enter = Callable[..., Builder]
Make = Callable[..., Path]
VIEWS = {
    "named": "SELECT usr, upper(name) AS name FROM dim",
    "averages": "SELECT name, avg(usr) AS mean, collect_set(usr) AS users FROM dim GROUP BY name",
    "counted": "SELECT name, count(*) AS n FROM dim GROUP BY name",
}
ROWS = [(n, f"n{n % 3}", "x") for n in range(6)]


def project(make_project: Make) -> Path:
    views = (f"{WITHOUT_COST}CREATE VIEW {name} AS {query};\n" for name, query in VIEWS.items())
    root = make_project({"m.sql": RAW + "".join(views)})
    put_rows(root / "raw" / "dim", USERS, ROWS)
    return root


def build(builder: Builder, name: str) -> PendingBuild:
    source = builder.project.by_id[f"{name}@sources/m.sql"]
    with builder.work(source) as work:
        builder.publish(work)
    return work


def efforts(builder: Builder) -> dict[str, tuple[str | None, Effort | None]]:
    """Build all sources, and return the methods and efforts of the builds in the ledger."""
    recorded: dict[str, tuple[str | None, Effort | None]] = {}
    for name in VIEWS:
        work = build(builder, name)
        (stored,) = builder.ledger.builds.fetch(build_uid=work.build.build_uid)
        assert stored.effort == work.build.effort
        recorded[name] = stored.maintenance, stored.effort
    builder.close()
    return recorded


@pytest.mark.slow
@pytest.mark.proves("T12")
def test_the_ledger_records_the_effort_of_incremental_builds(
    make_project: Make, enter: Enter
) -> None:
    root = project(make_project)
    assert efforts(enter(root)) == {name: ("whole", None) for name in VIEWS}

    put_rows(root / "raw" / "dim", USERS, [(7, "n1", "x"), (8, "n1", "x")], grows=True)
    grown = efforts(enter(root))
    assert {name: method for name, (method, _) in grown.items()} == {
        "named": "append",
        "averages": "keys",
        "counted": "merge",
    }
    by_name = {name: effort for name, (_, effort) in grown.items() if effort}
    assert {effort.rows_changed for effort in by_name.values()} == {2}
    assert (by_name["named"].files_rewritten, by_name["named"].keys_touched) == (0, None)
    assert (by_name["named"].files_kept or 0) > 0
    assert (by_name["averages"].files_rewritten or 0) > 0
    assert by_name["averages"].keys_touched == 1
    assert (by_name["counted"].files_rewritten, by_name["counted"].files_kept) == (None, None)
    assert None not in {effort.seconds_saved for effort in by_name.values()}
    assert {name for name, effort in by_name.items() if effort.seconds_by_size is not None} == {
        "averages",
        "counted",
    }

    DeltaTable(str(root / "raw" / "dim")).update({"name": "'n5'"}, predicate="usr = 1")
    now = enter(root)
    work = build(now, "averages")
    effort = work.build.effort
    assert effort is not None
    assert effort.keys_touched == 2  # the old name and the new one
    assert (effort.rows_changed or 0) >= 2
    last, _, whole = now.ledger.builds.fetch_costs(build_id=work.build.build_id)
    assert (last.by_size_s, whole.by_size_s) == (effort.seconds_by_size, None)
    assert effort.seconds_shared > 0  # it computed the changes for all three sources
    spent = last.seconds + effort.seconds_shared
    assert effort.seconds_saved == pytest.approx(whole.seconds - spent, abs=2e-3)
    other = build(now, "counted").build.effort
    assert other is not None
    assert other.seconds_shared < 0

    document = BuildDocument.of(work.source, work.build, None).as_json()
    assert (document["maintenance"], document["effort"]) == ("keys", asdict(effort))
    assert work.snapshot is not None
    metadata = output_metadata(now, work, work.snapshot)
    shown = {name.removeprefix("persist/"): value for name, value in metadata.items()}
    assert asdict(effort).items() <= shown.items()
    again = build(enter(root), "averages")
    assert (again.build.action, again.build.effort) == ("reused", None)
    assert "persist/keys_touched" not in output_metadata(now, again, work.snapshot)


@pytest.mark.slow
@pytest.mark.proves("T25")
def test_a_build_that_falls_back_to_all_rows_records_the_time_lost(
    make_project: Make, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT usr, name, count(*) OVER (PARTITION BY name) AS n FROM dim"
    few = "SELECT name, collect_set(usr) AS users FROM dim GROUP BY name"
    text = "".join(
        f"{WITHOUT_COST}CREATE VIEW {name} AS {sql};\n"
        for name, sql in (("spread", query), ("few", few))
    )
    root = make_project({"m.sql": f"{RAW}{text}"})
    put_rows(root / "raw" / "dim", USERS, [(n, f"n{n % 3}", "x") for n in range(1_200)])
    assert build(enter(root), "spread").build.effort is None
    owed: list[float] = []
    for first in (2_000, 3_000):
        rows = [(first + n, f"n{n}", "x") for n in range(3)]  # of all names
        put_rows(root / "raw" / "dim", USERS, rows, grows=True)
        now = enter(root)
        work = build(now, "spread")
        assert work.build.maintenance == "whole"
        effort, seconds = work.build.effort, work.build.computed_s
        assert effort is not None
        assert seconds is not None
        assert 0 < effort.seconds_lost < seconds
        assert "seconds lost in an attempt to update it" in effort.in_words
        cost = now.ledger.builds.fetch_costs(build_id=work.build.build_id)[0]
        assert cost.seconds == pytest.approx(seconds - effort.seconds_lost, abs=2e-3)
        assert cost.owed_s == effort.seconds_owed
        owed.append(cost.owed_s)
    assert 0 < owed[0] <= 0.05 * seconds  # so the next change is attempted, too
    owed_s = owed[0] + effort.seconds_lost - 0.1 * cost.seconds
    assert owed[1] == pytest.approx(max(0.0, owed_s), abs=2e-3)

    # Three groups are few rows, but all rows of their input are computed again.
    methods: list[str | None] = []
    for limit in (10**6, 10**6, 1_000):
        monkeypatch.setattr(deltas, "_LARGE_INPUT", limit)
        methods.append(build(enter(root), "few").build.maintenance)
        put_rows(root / "raw" / "dim", USERS, rows, grows=True)
    assert methods == ["whole", "keys", "whole"]
