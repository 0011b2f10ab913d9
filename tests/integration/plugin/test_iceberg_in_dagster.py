"""Iceberg tables in Dagster: the metadata of their assets, and runs for new versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from icebergs import Written
from test_external_in_dagster import EVENTS, INVOICES, Daemon, ids
from test_iceberg_projects import SCHEMA, TABLE, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import dagster as dg

    from persist_assets.building.builder import Builder

VIEWS = """
--@ persist
create view invoices as select id from events where category = 'invoices';
--@ persist
create view odd as select id from invoices where id % 2 = 1;
"""


@pytest.mark.slow
@pytest.mark.proves("F13", "F14", "F16", "F24")
def test_new_versions_of_an_iceberg_table_trigger_runs(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    enter: Callable[..., Builder],
) -> None:
    root = make_project({"m.sql": TABLE + VIEWS})
    lake = Written(root / "lake", SCHEMA)
    lake.put(rows((1, "invoices", 1), (2, "invoices", 2), (3, "deposits", 3)))
    definitions = load(root)
    graph = definitions.resolve_asset_graph()
    events = graph.get(EVENTS)
    assert graph.external_asset_keys == {EVENTS}
    assert events.kinds == {"iceberg"}
    metadata = {k: getattr(v, "value", v) for k, v in events.metadata.items()}
    assert metadata["dagster/uri"] == str(lake.root)
    assert metadata["connector"] == "iceberg_input"
    assert "category = 'invoices'" in metadata["needed"]

    daemon = Daemon(definitions, instance)
    (request,) = daemon.turn()
    version, told = daemon.told()
    assert (version, told["version held"]) == (lake.head(), "none")
    assert daemon.turn() == [], "while a run goes on it is not asked for again"
    assert daemon.run(request) == {"invoices": "built", "odd": "built"}
    assert daemon.obey() == {}
    held = daemon.held()
    assert (held["version held"], held["rows held"]) == (lake.head(), 2)
    assert (held["coverage"], held["columns held"]) == ("`category = 'invoices'`", "category, id")
    (record,) = instance.fetch_materializations(INVOICES, limit=1).records
    assert record.asset_materialization is not None
    line = str(record.asset_materialization.metadata["external tables"].value).splitlines()[2]
    name, at, _, n_held, bytes_held, n_read, _, n_written, bytes_written = line.strip("| ").split(
        " | "
    )
    assert (name, at) == ("`m/events`", f"`{lake.head()}`")
    assert (n_held, n_read, n_written) == ("2", "2", "2")
    assert bytes_held == bytes_written == f"{held['bytes held']:,}"

    # Unneeded rows: one run, which computes nothing.
    lake.put(rows((4, "loans", 4)))
    (request,) = daemon.turn()
    assert daemon.told()[0] == lake.head()
    assert daemon.run(request) == {"invoices": "reused", "odd": "reused"}
    assert daemon.held()["version held"] == lake.head()
    assert daemon.obey() == {}
    assert daemon.stale() == set()

    # The same rows rewritten: no run.
    lake.compact()
    assert daemon.turn() == []
    assert daemon.stale() == set()

    lake.put(rows((5, "invoices", 5)))
    assert daemon.obey() == {"invoices": "built", "odd": "built"}
    lake.delete([1])
    assert daemon.obey() == {"invoices": "built", "odd": "built"}
    assert daemon.told()[0] == lake.head()
    assert ids(enter(root), "invoices") == [2, 5]
    assert ids(enter(root), "odd") == [5]
    assert daemon.turn() == []
