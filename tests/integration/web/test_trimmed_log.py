"""After the log of a service is trimmed, readers either get every event or have to start over."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from conftest import wait_for
from serving import TOKENS, WRITE, serving, write_data

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Upstream
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.trimming import trim
from persist_assets.wants.upstreams import sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from serving import Served

EVENTS = "/api/v1/events"
ONE = "CREATE TABLE f (n INT) USING parquet LOCATION 'f';\n--@ persist\nCREATE VIEW a AS SELECT n FROM f;"


def a_project(root: Path, toml: str = "") -> Path:
    (root / "sources").mkdir(parents=True)
    (root / "sources" / "m.sql").write_text(ONE)
    (root / "persist.toml").write_text(toml)
    write_data(root)
    return root


def happens(ledger: Ledger, *refs: int, kind: str = "partition-available") -> None:
    entries = [(kind, {"environment": "dev", "partition_ref": f"x/{n}"}) for n in refs]
    with ledger.events.database.write() as connection:
        ledger.events.append_all(connection, entries)


def trimmed(root: Path, ledger: Ledger) -> int:
    later = datetime.now(UTC) + timedelta(days=2)
    assert trim(load_settings(root), ledger, 3600, clock=lambda: later).deleted
    return ledger.events.trimmed_to()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(a_project(tmp_path / "theirs"), env={"PERSIST_TOKENS": TOKENS}) as served:
        yield served


@pytest.mark.proves("Z1")
def test_a_reader_that_missed_trimmed_events_must_restart_and_gets_current_states(
    served: Served,
) -> None:
    ledger = Ledger(load_settings(served.root).ledger)
    happens(ledger, *range(30), *range(10, 30))
    happens(ledger, 3, kind="partition-tainted")
    with served.client() as client:
        behind = client.get(EVENTS, params={"limit": 10}).json()["next_idx"]
        ahead = client.get(EVENTS).json()["next_idx"]
        position = trimmed(served.root, ledger)
        happens(ledger, 40)
        answer = client.get(EVENTS, params={"since_idx": behind})
        told = answer.json()
        assert (answer.status_code, told["type"]) == (409, "urn:persist:history-reset")
        assert told["trimmed_to"] == position
        assert "archived" in told["detail"]
        page = client.get(EVENTS, params={"since_idx": ahead}).json()  # no missed events
        assert [e["kind"] for e in page["events"]][-1] == "partition-available"
        states: dict[str, str] = {}
        since, began, n_pages = 0, told["trimmed_to"], 0
        while True:
            asked: dict[str, Any] = {"since_idx": since, "limit": 7, "trimmed_to": began}
            page = client.get(EVENTS, params=asked).raise_for_status().json()
            n_pages += 1
            for event in page["events"]:
                if event["kind"].startswith("partition-"):
                    states[event["partition_ref"]] = event["kind"]
            since = page["next_idx"]
            if since == page["head"]:
                break
        assert n_pages > 3
        expected = {f"x/{n}": "partition-available" for n in (*range(30), 40)}
        assert states == expected | {"x/3": "partition-tainted"}
        # Within the rest, a reader that does not send `trimmed_to` may have missed events.
        first = client.get(EVENTS, params={"limit": 2}).json()
        assert 0 < first["next_idx"] < position == first["trimmed_to"]
        asked = {"since_idx": first["next_idx"]}
        assert client.get(EVENTS, params=asked).status_code == 409
        assert client.get(EVENTS, params=asked | {"trimmed_to": position - 1}).status_code == 409
        assert client.get(EVENTS, params=asked | {"trimmed_to": position}).status_code == 200
    ledger.close()


@pytest.mark.slow
@pytest.mark.proves("Z1")
def test_a_graph_that_missed_trimmed_events_gets_the_current_states(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Ledger(load_settings(served.root).ledger)
    root = a_project(tmp_path / "ours")
    settings = load_settings(root)
    ours = Ledger(settings.ledger)
    upstream = Upstream("users", served.url, ("x/*",), token_env="PERSIST_TOKEN_T")
    settings = replace(settings, upstreams=(upstream,))
    project = require(load_project(settings))

    def read() -> str | None:
        observer = Observer(settings, project, ours)
        return sync(observer, upstream, environ={"PERSIST_TOKEN_T": WRITE}).problem

    def known() -> set[str]:
        return {*ours.partitions.fetch_available("dev", "users")}

    happens(theirs, 1, 2, 3)
    assert read() is None and known() == {"x/1", "x/2", "x/3"}
    happens(theirs, 2, kind="partition-tainted")
    happens(theirs, 4, 4, 4)
    trimmed(served.root, theirs)
    problem = read()
    assert problem is not None and "were archived, or lost" in problem
    assert known() == {"x/1", "x/3", "x/4"}
    happens(theirs, 5, 5)
    assert read() is None
    trimmed(served.root, theirs)  # everything before was read
    happens(theirs, 6)
    assert read() is None
    assert known() == {"x/1", "x/3", "x/4", "x/5", "x/6"}
    theirs.close()
    ours.close()


@pytest.mark.slow
@pytest.mark.proves("Z3")
def test_a_building_service_trims_the_log_according_to_the_settings(tmp_path: Path) -> None:
    root = a_project(tmp_path / "p", '[retention]\nevents = "1 hour"\narchive = "old"\n')
    url = load_settings(root).ledger
    past = Ledger(url, clock=lambda: datetime.now(UTC) - timedelta(hours=2))
    happens(past, 1, 1, 1, 2)
    past.close()
    ledger = Ledger(url)
    with serving(root, "--build"):
        wait_for(ledger.events.trimmed_to)
    assert ledger.events.trimmed_to() == 2
    assert [*(root / "old").glob("*/events-1-2.parquet")]
    ledger.close()
