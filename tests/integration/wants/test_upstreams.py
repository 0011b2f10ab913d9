"""Upstreams over HTTP: no event is missed or recorded twice, and no response causes a crash."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import dagster as dg
import pytest
import sqlalchemy as sa
from conftest import wait_for
from serving import READ, TOKENS, serving

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Upstream
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import events as events_table
from persist_assets.operations.doctor import examine
from persist_assets.operations.documents.events import EventDocument
from persist_assets.wants.requests import evaluate_now, find_available
from persist_assets.wants.upstreams import sync
from persist_assets.web.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SOURCES = """
CREATE TABLE f (n INT) USING parquet LOCATION 'f';
--@ persist
CREATE VIEW a AS SELECT sum(n) AS n FROM f;
"""


class Other:
    """Another graph: a ledger whose events are served as `persist serve` does."""

    def __init__(self, url: str) -> None:
        self.environment: str | None = None
        self.ledger, self.log_id, self.begun = Ledger(url), "one", threading.Event()
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[str] = []
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                other.asked.append(f"{self.path} {self.headers.get('Authorization')}")
                asked = urlsplit(self.path)
                if other.answers or asked.path != "/api/v1/waits":
                    status, body = other.answer(parse_qs(asked.query))
                else:  # like a service that lacks this endpoint
                    status, body = 404, b"{}"
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"{other.url}/api/v1/events")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, parameters: dict[str, list[str]]) -> tuple[int, bytes]:
        if self.answers:
            return self.answers.pop(0)
        head, since = self.ledger.events.position(), int(parameters["since_idx"][0])
        if since > head or parameters.get("log_id", [self.log_id]) != [self.log_id]:
            recorded = {"code": "history-reset", "head": head, "log_id": self.log_id}
            return 409, json.dumps(recorded).encode()
        news, following = self.ledger.events.search(
            since, limit=3, kinds=parameters["kinds"], patterns=parameters["patterns"]
        )
        if self.environment is not None:
            news = [e for e in news if e.data["environment"] == self.environment]
        recorded = {
            "environment": self.environment,
            "events": [EventDocument.of(event).as_json() for event in news],
            "next_idx": following,
            "head": head,
            "log_id": self.log_id,
        }
        return 200, json.dumps(recorded).encode()

    def happens(self, kind: str, *refs: str, environment: str = "prod") -> None:
        with self.ledger.events.database.write() as connection:
            for ref in refs:
                data = {"partition_ref": ref, "environment": environment}
                self.ledger.events.append(connection, kind, data)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.ledger.close()


class Ours:
    """Our graph, which follows the other one."""

    def __init__(self, root: Path, other: Other) -> None:
        self.settings = load_settings(root)
        self.ledger = Ledger(self.settings.ledger)
        self.upstream = Upstream("users", other.url, ("data/users/*",))

    def observer(self) -> Observer:
        project = require(load_project(self.settings))
        settings = replace(self.settings, upstreams=(self.upstream,))
        return Observer(settings, project, self.ledger)

    def sync(self, **environ: str) -> tuple[Sequence[str], str | None]:
        found = sync(self.observer(), self.upstream, environ=environ)
        return found.available, found.problem

    def available_refs(self) -> set[str]:
        return {*self.ledger.partitions.fetch_available("dev", "users")}

    def recorded(self) -> list[str]:
        """Return the partitions recorded as available, once per record."""
        query = sa.select(events_table.c.data).where(events_table.c.kind == "upstream-synced")
        with self.ledger.events.database.read() as connection:
            all_data = [*connection.scalars(query.order_by(events_table.c.idx))]
        return [
            p["partition_ref"]
            for data in all_data
            for p in data["partitions"]
            if p["state"] == "available"
        ]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    made = Other(f"sqlite:///{tmp_path}/other.db")
    yield made
    made.close()


@pytest.fixture
def ours(make_project: Callable[..., Path], other: Other) -> Iterator[Ours]:
    made = Ours(make_project({"m.sql": SOURCES}), other)
    yield made
    made.ledger.close()


def days(*numbers: int) -> list[str]:
    return [f"data/users/2024-01-{n:02}" for n in numbers]


@pytest.mark.proves("D25")
def test_each_event_is_recorded_once_wherever_a_reader_is_killed(ours: Ours, other: Other) -> None:
    class Killed(BaseException):
        pass

    other.happens("partition-available", *days(*range(1, 21)))
    record, left = ours.ledger.upstreams.record_synced, [0, 1, 0, 2, 0]

    def killed(*args: Any, **how: Any) -> bool:
        """Die before or after a record is written."""
        if not left:
            return record(*args, **how)
        if left[0] == 0:
            left.pop(0)
            raise Killed
        left[0] -= 1
        done = record(*args, **how)
        if left[0] == 0:
            left.pop(0)
            raise Killed
        return done

    ours.ledger.upstreams.record_synced = killed  # this adds nothing but the crashes
    for _ in range(5):
        with pytest.raises(Killed):
            ours.sync()
    ours.sync()
    assert ours.recorded() == days(*range(1, 21))
    before = ours.ledger.events.position()
    assert ours.sync() == ((), None)
    assert ours.ledger.events.position() == before


@pytest.mark.proves("D25")
def test_concurrent_readers_record_each_event_once(ours: Ours, other: Other) -> None:
    other.happens("partition-available", *days(*range(1, 29)))
    threads = [threading.Thread(target=ours.sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.sync()
    assert ours.recorded() == days(*range(1, 29))


def test_only_matching_partitions_and_environments_are_recorded(ours: Ours, other: Other) -> None:
    other.happens("partition-available", *days(1), "data/other/2024-01-01", "data/users/a/b")
    other.happens("partition-available", *days(2), environment="dev")
    ours.upstream = replace(ours.upstream, environment="prod")
    assert ours.sync() == (tuple(days(1)), None)
    assert ours.available_refs() == {*days(1)}


@pytest.mark.proves("D26")
@pytest.mark.proves("D14")
def test_only_an_available_partition_unblocks_a_want(ours: Ours, other: Other) -> None:
    (need,) = days(1)
    want = Want(
        "w", "m/a", "dev", ours.observer().clock(), external_dependencies=(f"users:{need}",)
    )
    ours.ledger.wants.create([want])
    other.happens("partition-failed", need)
    assert ours.sync() == ((), None)
    assert find_available(ours.observer(), {f"users:{need}"}) == set()
    assert evaluate_now(ours.observer(), "clock")[1] is None
    other.happens("partition-available", need)
    assert ours.sync() == ((need,), None)
    _, request = evaluate_now(ours.observer(), "upstream")
    assert request is not None
    assert (request.partitions, request.trigger) == (("m/a",), "upstream")
    other.happens("partition-tainted", need)
    assert ours.sync() == ((), None)
    assert ours.available_refs() == set()


def test_evaluations_of_an_upstream_add_no_events_to_our_ledger(ours: Ours, other: Other) -> None:
    ours.sync()
    at = ours.ledger.events.position()
    other.happens("evaluation", *days(1, 2, 3))
    assert ours.sync() == ((), None)
    assert ours.ledger.events.position() == at


@pytest.mark.proves("W32")
def test_events_are_read_from_the_start_if_other_partitions_are_followed(
    ours: Ours, other: Other
) -> None:
    other.happens("partition-available", *days(1), "data/orders/1")
    ours.sync()
    assert ours.available_refs() == {*days(1)}
    ours.upstream = replace(ours.upstream, patterns=("data/orders/*",))
    available, problem = ours.sync()
    assert (available, problem) == (("data/orders/1",), "other partitions of it are followed now")
    assert ours.available_refs() == {"data/orders/1"}
    assert ours.sync() == ((), None)


@pytest.mark.proves("W32")
def test_events_are_read_from_the_start_if_another_environment_is_served(
    ours: Ours, other: Other
) -> None:
    other.environment = "prod"
    other.happens("partition-available", *days(1))
    other.happens("partition-available", *days(2), environment="staging")
    ours.sync()
    assert ours.available_refs() == {*days(1)}
    other.environment = "staging"
    available, problem = ours.sync()
    assert available == (*days(2),)
    assert problem == "it serves the environment staging instead of prod"
    assert ours.available_refs() == {*days(2)}
    assert ours.sync() == ((), None)


@pytest.mark.parametrize("how", ["another log", "a shorter log"])
def test_a_reset_history_is_reported_and_reread(
    ours: Ours, other: Other, tmp_path: Path, how: str
) -> None:
    other.happens("partition-available", *days(1, 2, 3))
    ours.sync()
    other.ledger.close()
    other.ledger = Ledger(f"sqlite:///{tmp_path}/anew.db")
    if how == "another log":
        other.log_id = "two"
        other.happens("partition-available", *days(9, 9, 9, 9))
    other.happens("partition-available", *days(2))
    available, problem = ours.sync()
    assert problem is not None
    assert "its history was reset" in problem
    assert days(2)[0] in available
    assert ours.available_refs() == {*days(2), *(days(9) if how == "another log" else ())}
    assert reported(ours, other)[0][0] == "warning"
    assert ours.sync() == ((), None)
    ((severity, message),) = reported(ours, other)
    assert severity == "note"
    assert "was reset" in message


def reported(ours: Ours, other: Other) -> list[tuple[str, str]]:
    """Return the findings of `persist doctor` about upstreams."""
    path = ours.settings.root / "persist.toml"
    path.write_text(f'[upstream.users]\nurl = "{other.url}"\n')
    found = examine(ours.settings.root).findings
    return [(f.severity, f.message) for f in found if f.code == "upstream"]


GARBAGE: list[tuple[int, bytes]] = [
    (200, b"<html>"),
    (200, b"[]"),
    (200, b"\xff\xfe"),
    (200, b"[" * 100_000),
    (200, b'{"events": 1, "next_idx": 2}'),
    (200, b'{"events": [], "next_idx": -1}'),
    (200, b'{"events": [], "next_idx": true}'),
    (200, b'{"events": [], "next_idx": 1e9}'),
    (200, b'{"events": [], "next_idx": 3, "log_id": 4}'),
    (200, b'{"events": [], "next_idx": 3, "head": "x"}'),
    (200, b'{"events": [7], "next_idx": 3}'),
    (200, b'{"events": [{"idx": 9}], "next_idx": 3}'),
    (200, b'{"events": [{"idx": 1, "kind": "partition-available"}], "next_idx": 3}'),
    (200, b'{"events": [{"idx": 2}, {"idx": 1}], "next_idx": 3}'),
    (401, b'{"detail": "no"}'),
    (409, b"{}"),
    (500, b""),
    (302, b""),
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda a: f"{a[0]} {a[1][:40]!r}")
def test_an_invalid_response_is_recorded_once_until_a_valid_one_arrives(
    ours: Ours, other: Other, answer: tuple[int, bytes]
) -> None:
    other.happens("partition-available", *days(1))
    other.answers = [answer] * 2
    available, problem = ours.sync()
    assert problem
    assert not available
    at = ours.ledger.events.position()
    assert ours.sync() == ((), problem)
    assert ours.ledger.events.position() == at
    assert ours.ledger.upstreams.find_problem("dev", "users") == problem
    assert ours.sync() == (tuple(days(1)), None)
    assert ours.ledger.upstreams.find_problem("dev", "users") is None
    assert ours.available_refs() == {*days(1)}


def test_an_unreachable_upstream_is_a_problem(ours: Ours, other: Other) -> None:
    ours.upstream = replace(ours.upstream, url="http://127.0.0.1:1")
    assert "does not respond" in (ours.sync()[1] or "")


def test_a_token_comes_from_the_environment_and_is_not_redirected(ours: Ours, other: Other) -> None:
    ours.upstream = replace(ours.upstream, token_env="PERSIST_TOKEN_USERS")
    assert "PERSIST_TOKEN_USERS" in (ours.sync()[1] or "")
    assert other.asked == []
    other.answers = [(302, b"")]
    assert ours.sync(PERSIST_TOKEN_USERS="secret")[1] == "it responded with 302"
    assert len(other.asked) == 1
    assert ours.sync(PERSIST_TOKEN_USERS="secret") == ((), None)
    assert other.asked[-1].endswith(" Bearer secret")


# ------------------------------------------------------------------------------- stock Dagster


@pytest.fixture
def dagster(tmp_path: Path) -> Iterator[tuple[str, dg.DagsterInstance]]:
    """Return the URL of a Dagster webserver of its own, and the instance behind it."""
    home = tmp_path / "lake"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    (home / "defs.py").write_text("import dagster as dg\ndefs = dg.Definitions()\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    arguments = ["-h", "127.0.0.1", "-p", str(port), "-f", "defs.py"]
    server = subprocess.Popen(
        [sys.executable, "-m", "dagster_webserver", *arguments],
        cwd=home,
        env={**os.environ, "DAGSTER_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        assert server.poll() is None
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5):
            return True
        return False

    try:
        wait_for(answers)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield f"http://127.0.0.1:{port}", instance
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.proves("K10")
def test_partitions_that_plain_dagster_materializes_become_available(
    ours: Ours, dagster: tuple[str, dg.DagsterInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, instance = dagster
    users = dg.AssetKey(["data", "users"])

    def materialize(key: dg.AssetKey, *partitions: str | None) -> None:
        for part in partitions:
            instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=part))

    ours.upstream = Upstream("users", url, ("data/users/*", "plain"), dagster=True)
    assert ours.sync() == ((), None)
    monkeypatch.setattr("persist_assets.wants.upstreams._PAGE", 3)
    names = [f"2024-01-{n:02}" for n in range(1, 9)]
    materialize(users, *names)
    materialize(dg.AssetKey("plain"), None)
    materialize(dg.AssetKey("other"), None)
    assert ours.sync() == ((*days(*range(1, 9)), "plain"), None)
    before = ours.ledger.events.position()
    assert ours.sync() == ((), None)
    assert ours.ledger.events.position() == before
    materialize(users, "2024-01-09", "2024-01-02")
    assert ours.sync() == ((*days(9), *days(2)), None)
    assert ours.recorded() == [*days(*range(1, 9)), "plain", *days(9), *days(2)]

    # What is followed of a known asset changes.
    narrow = ours.upstream
    ours.upstream = replace(narrow, patterns=("data/users/*-02", "data/users/*-07"))
    why = "other partitions of it are followed now"
    assert ours.sync() == ((*days(2, 7),), why)
    assert ours.available_refs() == {*days(2, 7)}
    assert ours.sync() == ((), None)
    ours.upstream = narrow
    assert ours.sync() == ((*days(*range(1, 10)), "plain"), why)
    assert ours.available_refs() == {*days(*range(1, 10)), "plain"}

    instance.wipe_assets([users])
    materialize(users, "2024-01-05")
    available, problem = ours.sync()
    assert available == tuple(days(5))
    assert problem == "the history of data/users was reset"
    assert ours.available_refs() == {*days(5), "plain"}
    instance.wipe_assets([users])
    assert ours.sync()[1] == "the history of data/users was reset"
    assert ours.available_refs() == {"plain"}
    assert ours.sync() == ((), None)
    ours.upstream = replace(narrow, patterns=("plain", "other"))
    assert ours.sync() == (("other", "plain"), why)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"7",
        b'{"errors": [{"message": "no"}]}',
        b'{"errors": 1}',
        b'{"data": {"assetsOrError": {"__typename": "PythonError", "message": "no"}}}',
        b'{"data": {"assetsOrError": {"__typename": "AssetConnection", "nodes": [1]}}}',
        b'{"data": {"assetsOrError": {"__typename": "AssetConnection"}}}',
        b'{"data": {"assetsOrError": {"__typename": "AssetConnection", "nodes": [{"key": {"path":'
        b' ["plain"]}, "latestMaterializationTimestamp": 1}], "cursor": null}}}',
    ],
)
def test_an_invalid_response_of_dagster_is_a_problem(ours: Ours, other: Other, body: bytes) -> None:
    other.answers = [(200, body)] * 9
    ours.upstream = Upstream("users", other.url, ("**",), dagster=True)
    available, problem = ours.sync()
    assert problem
    assert not available


# ------------------------------------------------------------------------------------ our service


@pytest.mark.proves("K10")
@pytest.mark.proves("D25")
def test_partitions_that_persist_serve_reports_become_available(
    ours: Ours, other: Other, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES}, name="theirs")
    theirs = load_settings(root)
    other.ledger.close()
    other.ledger = Ledger(theirs.ledger)
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as served:
        ours.upstream = replace(ours.upstream, url=served.url, token_env="PERSIST_TOKEN_USERS")
        assert ours.sync(PERSIST_TOKEN_USERS="nobody-s-token-0123456789")[1]
        other.happens("partition-available", *days(1, 2), environment="dev")
        other.happens("partition-available", *days(4), environment="prod")
        other.happens("evaluation", *days(3), environment="dev")
        assert ours.sync(PERSIST_TOKEN_USERS=READ) == (tuple(days(1, 2)), None)
        assert ours.sync(PERSIST_TOKEN_USERS=READ) == ((), None)
        kept = ours.ledger.upstreams.find_cursor("dev", "users")
        assert kept is not None
        gone = json.dumps({**json.loads(kept), "idx": 99})
        ours.ledger.upstreams.record_synced("dev", "users", gone, expected=kept)
        available, problem = ours.sync(PERSIST_TOKEN_USERS=READ)
        assert available == tuple(days(1, 2))
        assert problem == "its history was reset: it had been read up to 99"


def test_a_building_service_syncs_upstreams_and_creates_wants(ours: Ours, other: Other) -> None:
    root = ours.settings.root
    (root / "persist.toml").write_text(f'[upstream.users]\nurl = "{other.url}"\n')
    text = SOURCES.replace("persist\n", 'persist want { every=daily needs=["users:a"] }\n')
    (root / "sources" / "m.sql").write_text(text)
    other.happens("partition-available", "a/b")
    graph = Graph(load_settings(root), ours.ledger)

    async def look() -> list[str]:
        try:
            return [await graph._look_around() for _ in range(2)]
        finally:
            await graph.close()

    assert asyncio.run(look()) == ["upstream", "clock"]
    assert [w.partition_ref for w in ours.ledger.wants.fetch_active("dev")] == ["m/a"]
