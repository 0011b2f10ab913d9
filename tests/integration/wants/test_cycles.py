"""Two graphs whose wants wait for each other: the cycle is detected, reported and resolved."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import warm
from conftest import ROOT
from serving import READ, SOURCES, TOKENS, WRITE, Served, serving, write_data
from test_upstreams import Other

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.doctor import examine
from persist_assets.wants.cycles import find_cycles
from persist_assets.wants.upstreams import sync_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from persist_assets.core.settings.values import Settings

TOTAL, DAY = "m/total", "m/daily/2024-01-02"
LONG_AGO = datetime.now(UTC) - timedelta(days=1)


class Graphs:
    """Two services that follow each other; each has its own name for the other."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.settings: list[Settings] = [load_settings(root) for root in roots]
        self.ledgers = [Ledger(settings.ledger) for settings in self.settings]
        self.served: list[Served] = []

    def wants(self, n: int, ref: str, *needs: str, name: str = "", sla_s: int | None = None) -> str:
        """Create a want with external needs in a graph, and return its id."""
        want = Want(
            name or f"{n} {ref}",
            ref,
            "dev",
            LONG_AGO,
            data_timestamp=LONG_AGO,
            sla_s=sla_s,
            external_dependencies=needs,
        )
        return self.ledgers[n].wants.create([want])[0].want_id

    def ways(self, n: int) -> list[tuple[str, ...]]:
        settings, environ = self.settings[n], {"PERSIST_TOKEN_OTHERS": READ}
        return [
            way
            for upstream in settings.upstreams
            for way in find_cycles(self.ledgers[n], settings, upstream, environ=environ)
        ]

    def observer(self, n: int) -> Observer:
        settings = self.settings[n]
        project = require(load_project(settings))
        return Observer(settings, project, self.ledgers[n])

    def synced(self, n: int) -> int:
        return len(self.ledgers[n].events.search(kinds=["upstream-synced"])[0])

    def happens(self, n: int, ref: str) -> None:
        with self.ledgers[n].events.database.write() as connection:
            data = {"partition_ref": ref, "environment": "dev"}
            self.ledgers[n].events.append(connection, "partition-available", data)

    def forget(self) -> None:
        """Cancel all active wants."""
        for ledger in self.ledgers:
            for want in ledger.wants.fetch_active("dev"):
                ledger.wants.cancel(want.want_id, by="test")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graphs]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [s.getsockname()[1] for s in taken]
    roots: list[Path] = []
    for n in range(2):
        taken[n].close()
        root = tmp_path_factory.mktemp(f"graph{n}")
        (root / "sources").mkdir()
        (root / "sources" / "m.sql").write_text(SOURCES)
        (root / "persist.toml").write_text(
            "".join(
                f'[upstream.{name}{n}]\nurl = "http://127.0.0.1:{ports[(n + step) % 2]}"\n'
                'token_env = "PERSIST_TOKEN_OTHERS"\n'
                for name, step in ((("after", 1), ("before", -1))[n],)
            )
        )
        write_data(root)
        roots.append(root)
    graphs = Graphs(roots)
    env = {"PERSIST_TOKENS": TOKENS, "PERSIST_TOKEN_OTHERS": READ}
    with ExitStack() as stack:
        for root, port in zip(roots, ports, strict=True):
            graphs.served.append(stack.enter_context(serving(root, "--port", str(port), env=env)))
        for n in range(2):  # a graph learns the id of the other's log in its first sync
            sync_all(graphs.observer(n), environ={"PERSIST_TOKEN_OTHERS": READ})
        yield graphs
    for ledger in graphs.ledgers:
        ledger.close()


@pytest.fixture
def graphs(running: Graphs) -> Iterator[Graphs]:
    yield running
    running.forget()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    made = Other(f"sqlite:///{tmp_path}/other.db")
    yield made
    made.close()


def persist(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-P", "-m", "persist_assets.cli", "--project", str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PERSIST_TOKEN_OTHERS": READ},
    )


def told_by_doctor(graphs: Graphs, n: int) -> list[str]:
    found = examine(graphs.settings[n].root).findings
    return [finding.message for finding in found if finding.code == "upstream"]


@pytest.mark.slow
@pytest.mark.proves("D29")
def test_a_cycle_of_wants_between_two_graphs_is_reported_once(graphs: Graphs) -> None:
    graphs.wants(0, TOTAL, f"after0:{DAY}", sla_s=60)
    theirs = graphs.wants(1, DAY, f"before1:{TOTAL}")
    way = f"{TOTAL} → after0:{DAY} → before1:{TOTAL}"
    problem = f"wants wait for each other: {way}"
    done = persist(graphs.settings[0].root, "evaluate")
    assert f"warning: after0: {problem}\n" in done.stderr
    before = graphs.synced(0)
    sync_all(graphs.observer(0), environ={"PERSIST_TOKEN_OTHERS": READ})
    assert graphs.synced(0) == before
    assert told_by_doctor(graphs, 0) == [f"the graph `after0`: {problem}"]
    (late,) = graphs.ledgers[0].wants.fetch_misses("dev")
    assert (late.blame["cause"], late.blame["problem"]) == ("not-arrived", problem)
    with graphs.served[0].client(None) as client:
        assert client.post("/login", data={"token": WRITE}).status_code == 303
        for path in ("/", "/sla"):
            assert way in client.get(path).text
    assert graphs.ways(1) == [(DAY, f"before1:{TOTAL}", f"after0:{DAY}")]
    with graphs.served[1].client(READ) as client:
        told = client.get("/api/v1/waits", params={"partition_ref": DAY}).json()
    log_id = graphs.ledgers[0].events.log_id()
    assert told == {
        "partition_ref": DAY,
        "waits_for": [f"before1:{TOTAL}"],
        "graphs": [{"name": "before1", "log_id": log_id, "environment": "dev"}],
    }
    graphs.ledgers[1].wants.cancel(theirs, by="test")
    (after,) = sync_all(graphs.observer(0), environ={"PERSIST_TOKEN_OTHERS": READ})
    assert after.problem is None
    assert told_by_doctor(graphs, 0) == []


@pytest.mark.parametrize("why", ["by another want", "it is there", "it is there, unheard of"])
def test_wants_that_can_still_be_satisfied_are_not_a_cycle(graphs: Graphs, why: str) -> None:
    here, there = f"here/{why}", f"there/{why}"
    graphs.wants(0, here, f"after0:{there}")
    assert graphs.ways(0) == []
    graphs.wants(1, there, f"before1:{here}")
    assert graphs.ways(0) == [(here, f"after0:{there}", f"before1:{here}")]
    if why == "by another want":
        graphs.wants(1, there, name="another want of it")
    elif why == "it is there":
        graphs.happens(1, there)
    else:
        graphs.happens(0, here)
    assert graphs.ways(0) == []


def test_no_cycle_is_reported_if_the_other_graph_cannot_be_checked(graphs: Graphs) -> None:
    graphs.wants(0, "one", "after0:two")
    graphs.wants(1, "two", "before1:one")
    assert len(graphs.ways(0)) == 1
    settings, ledger = graphs.settings[0], graphs.ledgers[0]
    (there, *_) = settings.upstreams
    for other in (
        replace(there, url="http://127.0.0.1:1"),
        replace(there, dagster=True),
        replace(there, environment="prod"),
        replace(there, token_env="PERSIST_TOKEN_UNSET"),
    ):
        changed = replace(settings, upstreams=(other,))
        assert find_cycles(ledger, changed, other, environ={"PERSIST_TOKEN_OTHERS": READ}) == []


def test_invalid_responses_are_not_reported_as_cycles(graphs: Graphs, other: Other) -> None:
    graphs.wants(0, "a", "after0:b")
    upstream = replace(graphs.settings[0].upstreams[0], url=other.url, token_env=None)
    settings = replace(graphs.settings[0], upstreams=(upstream,))
    ours = {"name": "ours", "log_id": graphs.ledgers[0].events.log_id(), "environment": "dev"}

    def answer(refs: object, *named: object) -> tuple[int, bytes]:
        return 200, json.dumps({"waits_for": refs, "graphs": named}).encode()

    bad = [answer(refs, ours) for refs in (None, 7, [], [7], ["ours:a\x1b[2J"], {"ours:a": 1})]
    bad += [answer(["ours:a"], {**ours, "log_id": other_id}) for other_id in (None, 7, "theirs")]
    bad += [answer(["ours:a"], {**ours, "environment": where}) for where in ("prod", None, 7)]
    bad += [answer(["ours:a"], {**ours, "name": []}), answer(["ours:a"], 7)]
    bad += [(500, answer(["ours:a"], ours)[1]), (200, b"[]"), (200, b"{"), (302, b"")]
    bad += [(200, json.dumps({"waits_for": ["ours:a"], "graphs": 7}).encode())]
    other.answers = [*bad, answer(["ours:a"], ours)]
    for _ in bad:
        assert find_cycles(graphs.ledgers[0], settings, upstream) == []
    assert find_cycles(graphs.ledgers[0], settings, upstream) == [("a", "after0:b", "ours:a")]
