"""The service over real HTTP on loopback: responses, rejected requests and shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import warm
from commands import document
from conftest import SPARK_TOML, draws, wait_for
from fuzzing import Asked, judge, requests
from hypothesis import HealthCheck, given, settings
from serving import OFTEN, READ, SOURCES, TOKENS, WRITE, Served, serving, write_data

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.service import check_proxy
from persist_assets.core.wants import Evaluation, Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Taint
from persist_assets.ledger.transfer import copy_ledger
from persist_assets.web.access import MAX_BODY
from persist_assets.web.api import ENDPOINTS, description
from persist_assets.web.app import make_app
from persist_assets.web.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVENTS, WANTS, PLAN = "/api/v1/events", "/api/v1/wants", "/api/v1/plan"
LATE = "m/daily/2024-01-03"


def make_root(root: Path) -> Path:
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text(SPARK_TOML)
    (root / "sources" / "m.sql").write_text(SOURCES)
    write_data(root)
    return root


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = make_root(tmp_path_factory.mktemp("service") / "project")
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as service:
        yield service


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(make_root(tmp_path_factory.mktemp("open") / "project")) as service:
        yield service


@pytest.fixture
def ledger(served: Served) -> Iterator[Ledger]:
    opened = Ledger(load_settings(served.root).ledger)
    yield opened
    opened.close()


def fails(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status and told["type"].startswith("urn:persist:")
    return told


def all_events(client: httpx.Client, since: int = 0, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = client.get(EVENTS, params={"since_idx": since, **filters}).json()
        found += page["events"]
        if page["next_idx"] == page["head"]:
            return found
        since = page["next_idx"]


# ------------------------------------------------------------------------------------------- wants


@pytest.mark.slow
@pytest.mark.proves("D3", "D4")
def test_a_want_over_http_has_all_its_fields_and_the_servers_time(served: Served) -> None:
    with served.client() as client:
        since = client.get(EVENTS).json()["head"]
        asked = {
            "partition_ref": "m/daily/2024-01-02",
            "want_id": "daily/2024-01-02",
            "data_timestamp": "2024-01-02T01:00:00+01:00",
            "ttl_seconds": 3153600000,
            "sla_seconds": 1,
            "external_dependencies": ["users:data/users"],
            "comment": "for the report",
            "created_at": "1999-01-01T00:00:00Z",
            "source": {"type": "cli"},
        }
        made = client.post(WANTS, json=asked)
        assert made.status_code == 201, made.text
        told = client.get(f"{WANTS}/daily/2024-01-02").json()
        assert told["created_at"] > "2025"
        assert told["source"] == {"type": "api", "client": "ops"}
        assert told["data_timestamp"] == "2024-01-02T00:00:00Z"
        assert {
            k: told[k] for k in asked if k not in ("created_at", "source", "data_timestamp")
        } == {k: v for k, v in asked.items() if k not in ("created_at", "source", "data_timestamp")}
        assert client.post(WANTS, json=asked).status_code == 200
        fails(client.post(WANTS, json={**asked, "sla_seconds": 2}), 409)
        bare = client.post(
            WANTS, json={"partition_ref": "m/total", "external_dependencies": ["x:y"]}
        ).json()
        unset = (
            "ttl_seconds",
            "sla_seconds",
            "data_timestamp",
            "deadline",
            "expires_at",
            "comment",
        )
        assert {bare[name] for name in unset} == {None}
        created = [e["want_id"] for e in all_events(client, since, kinds="want-created")]
        assert sorted(created) == sorted({"daily/2024-01-02", bare["want_id"]})


@pytest.mark.proves("D13")
def test_a_want_is_evaluated_at_once_and_makes_one_request(served: Served) -> None:
    with served.client() as client:
        since = client.get(EVENTS).json()["head"]
        made = client.post(WANTS, json={"partition_ref": "m/daily/2024-01-04"}).json()
        found: list[dict[str, Any]] = []
        while not any(e["kind"] == "build-requested" for e in found):
            page = client.get(EVENTS, params={"since_idx": since, "wait": 30}).json()
            assert page["events"], "nothing was evaluated"
            found, since = found + page["events"], page["next_idx"]
        kinds = [e["kind"] for e in found]
        assert kinds == ["want-created", "evaluation", "build-requested"]
        assert found[1]["trigger"] == "want"
        assert found[2]["want_ids"] == [made["want_id"]]
        (request,) = client.get("/api/v1/requests", params={"open": "true"}).json()["requests"]
        assert request["partitions"] == ["m/daily/2024-01-04"]
        cancelled = client.delete(f"{WANTS}/{made['want_id']}", params={"why": "a mistake"})
        assert cancelled.json()["state"] == "cancelled"
        fails(client.delete(f"{WANTS}/{made['want_id']}"), 409)
        there = client.get(WANTS, params={"pattern": "m/daily/*"}).json()["wants"]
        assert made["want_id"] not in [w["want_id"] for w in there]


@pytest.mark.proves("D29", "P29")
def test_a_missed_deadline_is_reported_with_its_cause(served: Served, ledger: Ledger) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)
    want = Want(
        "late",
        LATE,
        "dev",
        long_ago,
        data_timestamp=long_ago,
        sla_s=60,
        external_dependencies=("users:data/users",),
    )
    ledger.wants.create([want])
    with served.client(READ) as client:
        misses = client.get("/api/v1/sla").json()["misses"]
        (late,) = [m for m in misses if m["want_id"] == "late"]
        assert (late["blame"]["graph"], late["blame"]["cause"]) == ("users", "not-arrived")
        assert late["late_seconds"] > 80_000
        metrics = client.get("/metrics").text
        assert 'persist_misses{environment="dev",state="open"}' in metrics
        assert "persist_evaluation_seconds_count" in metrics


@pytest.mark.slow
@pytest.mark.proves("S19")
def test_wants_are_recorded_and_pages_are_served_during_an_evaluation(
    tmp_path: Path,
) -> None:
    root = make_root(tmp_path / "project")
    its = load_settings(root)
    ledger, begun, go_on = Ledger(its.ledger), threading.Event(), threading.Event()

    def evaluate() -> bool:
        begun.set()
        return go_on.wait(30)

    async def act() -> None:
        graph = Graph(its, ledger)
        graph.start()
        evaluation = asyncio.ensure_future(graph.plan(evaluate))
        await asyncio.to_thread(begun.wait)
        app = httpx.ASGITransport(app=make_app(graph, {}), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as client:
            body = {"partition_ref": "m/daily/2024-01-02"}
            made = await client.post(WANTS, json=body)
            assert made.status_code == 201, made.text
            for path in (
                WANTS,
                "/api/v1/sla",
                "/",
                "/wants",
                "/timeline",
                "/sla",
                "/partitions",
                "/metrics",
            ):
                assert (await client.get(path)).status_code == 200, path
        assert not evaluation.done()
        go_on.set()
        assert await evaluation
        await graph.close()

    asyncio.run(act())
    ledger.close()


@pytest.mark.proves("S19")
def test_lists_and_responses_warn_if_no_process_takes_build_requests(
    served: Served, ledger: Ledger
) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    past = Ledger(load_settings(served.root).ledger, clock=lambda: long_ago)
    past.wants.create([Want("untaken", "m/total", "dev", long_ago)])
    request = past.requests.record_evaluation("dev", "want", Evaluation(("m/total",), ("untaken",)))
    assert request is not None
    at = long_ago.strftime("%Y-%m-%d %H:%M UTC")
    with served.client() as client:
        body = {"partition_ref": "m/daily/2024-01-19", "external_dependencies": ["x:y"]}
        for answer in (
            client.get(WANTS),
            client.get("/api/v1/requests"),
            client.post(WANTS, json=body),
        ):
            told = "\n".join(answer.json()["warnings"])
            assert "no process takes build requests" in told and at in told, told
            assert "persist serve --build" in told
        with ledger.leases.hold(f"request {request.request_id}", "somebody", wait_s=0):
            ledger.requests.start(request.request_id, None)
            assert client.get(WANTS).json()["warnings"] == []
        ledger.requests.fail(request.request_id, "enough")
        ledger.wants.cancel("untaken", by="me")
        assert client.get(WANTS).json()["warnings"] == []
    past.close()


@pytest.mark.proves("H5")
def test_partitions_plan_manifest_and_health_are_served(served: Served, ledger: Ledger) -> None:
    refs = [{"partition_ref": f"data/users/{n}", "state": "available"} for n in range(5)]
    before = ledger.upstreams.find_cursor("dev", "users")
    assert ledger.upstreams.record_synced("dev", "users", "5", refs, expected=before)
    with served.client(READ) as client:
        page = client.get("/api/v1/partitions", params={"graph": "users", "limit": 3}).json()
        assert [p["partition_ref"] for p in page["partitions"]] == [
            "data/users/0",
            "data/users/1",
            "data/users/2",
        ]
        rest = client.get(
            "/api/v1/partitions", params={"graph": "users", "after": page["next_after"]}
        ).json()
        assert [p["partition_ref"] for p in rest["partitions"]] == ["data/users/3", "data/users/4"]
        plan = client.get("/api/v1/plan").json()
        assert plan == document("plan", cwd=served.root)
        assert {s["source_id"].partition("@")[0] for s in plan["steps"]} == {"daily", "total"}
        assert client.get("/api/v1/manifest").json()["entries"] == {}
        assert client.get("/health").json() == {"status": "ok"}


# ------------------------------------------------------------------------------------------ events


@pytest.mark.proves("D19", "D20", "D21", "D22", "D23", "D24")
def test_events_are_ordered_paged_and_filtered(served: Served, ledger: Ledger) -> None:
    with ledger.events.database.write() as connection:
        for n in range(20):
            ledger.events.append(
                connection,
                "mark",
                {
                    "environment": "dev",
                    "partition_ref": f"marks/{n % 2}/{n}",
                    "job_label": f"job{n % 3}",
                    "task_id": f"task{n}",
                    "build_request_id": f"request{n % 5}",
                },
            )
    with served.client(READ) as client:
        pages, since = [], 0
        while True:
            page = client.get(EVENTS, params={"since_idx": since, "limit": 3}).json()
            pages += [e["idx"] for e in page["events"]]
            assert page["next_idx"] >= since
            if page["next_idx"] == page["head"]:
                break
            since = page["next_idx"]
        assert pages == list(range(1, pages[-1] + 1))
        assert client.get(EVENTS, params={"since_idx": pages[-1]}).json()["events"] == []

        def marks(**filters: Any) -> list[int]:
            return [int(e["task_id"][4:]) for e in all_events(client, kinds="mark", **filters)]

        assert marks(partition_refs=["marks/0/4", "marks/1/5"]) == [4, 5]
        assert marks(patterns="marks/1/*") == [*range(1, 20, 2)]
        assert marks(patterns="marks/*") == []
        assert marks(patterns="marks/**") == [*range(20)]
        assert marks(partition_refs="marks/0/4", patterns="marks/1/1*") == [
            1,
            4,
            11,
            13,
            15,
            17,
            19,
        ]
        assert marks(job_labels="job2") == [*range(2, 20, 3)]
        assert marks(task_ids=["task3", "task19"]) == [3, 19]
        assert marks(build_request_ids="request4", job_labels="job1") == [4, 19]


def test_a_reset_history_is_reported_as_an_error(served: Served, tmp_path: Path) -> None:
    with served.client(READ) as client:
        page = client.get(EVENTS).json()
        told = fails(client.get(EVENTS, params={"since_idx": page["head"] + 100}), 409)
        assert told["type"] == "urn:persist:history-reset"
        assert told["head"] >= page["head"] and told["log_id"] == page["log_id"]
        told = fails(client.get(EVENTS, params={"since_idx": 0, "log_id": "another"}), 409)
        assert told["log_id"] == page["log_id"]
    one, other = (Ledger(f"sqlite:///{tmp_path / name}.db") for name in "ab")
    assert len({one.events.log_id(), other.events.log_id(), page["log_id"]}) == 3
    again = Ledger(f"sqlite:///{tmp_path / 'a'}.db")
    assert again.events.log_id() == one.events.log_id()
    copy_ledger(f"sqlite:///{tmp_path / 'a'}.db", f"sqlite:///{tmp_path / 'c'}.db")
    copied = Ledger(f"sqlite:///{tmp_path / 'c'}.db")
    assert copied.events.log_id() == one.events.log_id()
    for opened in (one, other, again, copied):
        opened.close()


def test_a_long_poll_returns_when_a_matching_event_occurs(served: Served, ledger: Ledger) -> None:
    with served.client(READ) as client:
        head = client.get(EVENTS).json()["head"]
        began = time.monotonic()
        empty = client.get(EVENTS, params={"since_idx": head, "wait": 1}).json()
        assert empty["events"] == [] and 0.9 < time.monotonic() - began < 10
        answers: list[dict[str, Any]] = []

        def poll() -> None:
            answers.append(
                client.get(
                    EVENTS, params={"since_idx": head, "wait": 30, "kinds": "partition-tainted"}
                ).json()
            )

        waiting = threading.Thread(target=poll)
        waiting.start()
        wait_for(lambda: 'persist_waiting{environment="dev"} 1' in client.get("/metrics").text)
        ledger.wants.create(
            [Want("other", "m/total", "dev", datetime.now(UTC), external_dependencies=("x:y",))]
        )
        ledger.taints.record(["dev"], lambda *_: Taint({"m/daily/2024-01-01": "b"}), by="test")
        waiting.join(20)
        assert [e["kind"] for e in answers[0]["events"]] == ["partition-tainted"]


@pytest.mark.slow
def test_two_hundred_long_polls_use_bounded_memory(served: Served, ledger: Ledger) -> None:
    with served.client(READ) as client:
        head = client.get(EVENTS).json()["head"]

    async def poll_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=250)
        headers = {"Authorization": f"Bearer {READ}"}
        async with httpx.AsyncClient(
            base_url=served.url, limits=limits, headers=headers, timeout=60, trust_env=False
        ) as client:
            # Wants of other tests may cause events of other kinds meanwhile.
            params = {"since_idx": head, "wait": 30, "kinds": "partition-tainted"}
            polls = [asyncio.create_task(client.get(EVENTS, params=params)) for _ in range(200)]
            async with asyncio.timeout(60):
                while (
                    'persist_waiting{environment="dev"} 200'
                    not in (await client.get("/metrics")).text
                ):
                    await asyncio.sleep(0.2)
            ledger.taints.record(["dev"], lambda *_: Taint({"m/total": "b"}), by="test")
            return list(await asyncio.gather(*polls))

    before = served.memory()
    answers = asyncio.run(poll_all())
    assert {a.status_code for a in answers} == {200}
    assert {tuple(e["kind"] for e in a.json()["events"]) for a in answers} == {
        ("partition-tainted",)
    }
    assert served.memory() - before < 100 * 2**20
    threads = len(list(Path(f"/proc/{served.process.pid}/task").iterdir()))
    assert threads < 40


# --------------------------------------------------------------------------------------- rejected


def test_requests_need_a_token_and_readers_cannot_write(served: Served) -> None:
    with served.client(None) as client:
        answer = client.get(EVENTS)
        fails(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/api/v1/openapi.json").status_code == 200
        fails(client.get(EVENTS, headers={"Authorization": "Bearer " + READ[:-1]}), 401)
        assert client.get("/", follow_redirects=False).headers["location"].startswith("/login")
        assert (
            client.post("/wants", data={"partition_ref": "m/total"}).headers["location"] == "/login"
        )
    with served.client(READ) as client:
        fails(client.post(WANTS, json={"partition_ref": "m/total"}), 403)
        fails(client.delete(f"{WANTS}/x"), 403)
        fails(client.post("/api/v1/evaluate"), 403)


BAD_BODIES: list[tuple[Any, int]] = [
    (b"{", 400),
    (b"[" * 60_000, 400),
    (b"\xff\xfe", 400),
    (b"[]", 400),
    (b"{}", 422),
    (json.dumps({"partition_ref": "m/total", "nope": 1}).encode(), 422),
    (json.dumps({"partition_ref": "m/total", "ttl_seconds": -1}).encode(), 422),
    (json.dumps({"partition_ref": "m/total", "sla_seconds": 10**15}).encode(), 422),
    (json.dumps({"partition_ref": "m/total", "sla_seconds": 10**400}).encode(), 422),
    (json.dumps({"partition_ref": "m/total", "comment": "a\0b"}).encode(), 422),
    (b'{"partition_ref": "m/total", "comment": "\\ud800"}', 422),
    (b'{"partition_ref": "m/total", "\\ud800": 1}', 422),
    (
        json.dumps({"partition_ref": "m/total", "data_timestamp": "2024-01-01T00:00:00"}).encode(),
        422,
    ),
    (json.dumps({"partition_ref": "m/total", "external_dependencies": ["here"]}).encode(), 422),
    (json.dumps({"partition_ref": "m/total", "want_id": "x" * 256}).encode(), 422),
    (json.dumps({"partition_ref": "m/totl"}).encode(), 404),
    (b" " * (64 * 1024) + b"{}", 413),
]


EVALUATED = {"evaluation", "build-requested", "sla-missed", "want-expired"}
"""The kinds of events that the service writes on its own."""


@pytest.mark.parametrize(("body", "status"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_an_invalid_body_is_rejected(served: Served, body: bytes, status: int) -> None:
    with served.client() as client:
        head = client.get(EVENTS).json()["head"]
        told = fails(
            client.post(WANTS, content=body, headers={"Content-Type": "application/json"}), status
        )
        if status == 404:
            assert told["hint"] == "did you mean `m/total`?"
        # The service may evaluate wants of other tests meanwhile, but the request changed nothing.
        later = client.get(EVENTS, params={"since_idx": head}).json()["events"]
        assert {e["kind"] for e in later} <= EVALUATED


def test_all_problems_of_a_request_are_reported_at_once(served: Served) -> None:
    with served.client() as client:
        told = fails(client.post(WANTS, json={"ttl_seconds": "x", "sla_seconds": -1}), 422)
        assert {p["name"] for p in told["problems"]} == {
            "ttl_seconds",
            "sla_seconds",
            "partition_ref",
        }
        told = fails(client.get(EVENTS, params={"limit": 1001, "wait": 31, "nope": 1}), 422)
        assert {p["name"] for p in told["problems"]} == {"limit", "wait", "nope"}
        fails(client.post(WANTS, data={"partition_ref": "m/total"}), 415)
        fails(client.put(WANTS), 405)
        fails(client.get("/api/v1/nothing"), 404)


def test_a_large_body_without_a_declared_length_is_rejected(served: Served) -> None:
    with served.client() as client:
        chunks = (b" " * 1024 for _ in range(1000))
        with suppress(httpx.WriteError):  # the service closes the connection early
            fails(client.post(WANTS, content=chunks), 413)
    # A body of one chunk is sent before the service can refuse it, so the answer always arrives.
    with served.client() as client:
        chunk = iter([b" " * (MAX_BODY + 1)])
        fails(client.post(WANTS, content=chunk), 413)


CROSS_SITE = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
def test_pages_of_other_sites_cannot_write(served: Served, headers: dict[str, str]) -> None:
    with served.client() as client:
        for path in (WANTS, "/api/v1/evaluate", "/wants", "/login", "/wants/cancel"):
            fails(client.post(path, json={"partition_ref": "m/total"}, headers=headers), 403)
        fails(client.delete(f"{WANTS}/x", headers=headers), 403)
        allowed = client.get(EVENTS, headers=headers)
        assert "access-control-allow-origin" not in allowed.headers


def test_a_form_needs_a_session_and_its_form_token(served: Served) -> None:
    with served.client(None) as client:
        assert client.post("/login", data={"token": "nobody's token, this"}).status_code == 401
        logged = client.post("/login", data={"token": WRITE})
        cookie = logged.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        page = client.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        token = page.text.split('name="form_token" value="')[1].split('"')[0]
        fails(client.post("/wants", data={"partition_ref": "m/total", "form_token": "0" * 64}), 403)
        fails(client.get(EVENTS), 401)  # a cookie gives access to pages only
        sent = {"partition_ref": "m/totl<b>", "form_token": token}
        wrong = client.post("/wants", data=sent)
        assert wrong.status_code == 422
        assert (
            "did you mean" in wrong.text
            and "m/totl&lt;b&gt;" in wrong.text
            and "totl<b>" not in wrong.text
        )
        for path in ("/wants", "/timeline", "/sla", "/partitions", "/events", "/environments"):
            shown = client.get(path)
            assert shown.status_code == 200 and "<h1>" in shown.text, path
        forged = httpx.Cookies({"persist_session": "ops|99999999999|00|" + "0" * 64})
        with httpx.Client(base_url=served.url, cookies=forged, trust_env=False) as other:
            assert other.get("/").status_code == 303


@pytest.mark.proves("S11")
def test_logging_out_invalidates_all_copies_of_the_session_cookie(served: Served) -> None:
    with served.client(None) as client, served.client(None) as thief:
        client.post("/login", data={"token": WRITE})
        other = client.cookies["persist_session"]
        client.cookies.clear()
        client.post("/login", data={"token": WRITE})
        stolen = client.cookies["persist_session"]
        thief.cookies.set("persist_session", stolen)
        assert thief.get("/events").status_code == 200
        token = client.get("/").text.split('name="form_token" value="')[1].split('"')[0]
        assert client.post("/logout", data={"form_token": token}).status_code == 303
        assert thief.get("/events").headers["location"].startswith("/login")
        assert thief.post("/wants", data={"form_token": token}).headers["location"] == "/login"
        thief.cookies.set("persist_session", other)
        assert thief.get("/events").status_code == 200, "another session goes on"


@pytest.mark.proves("S11")
def test_events_are_of_the_served_environment_unless_another_is_requested(
    served: Served, ledger: Ledger
) -> None:
    for environment in ("dev", "prod"):
        ledger.wants.create([Want(f"of-{environment}", "m/total", environment, datetime.now(UTC))])
    with served.client() as client:

        def environments(**filters: str) -> set[str]:
            return {event["environment"] for event in all_events(client, **filters)}

        assert environments() == {"dev"}
        assert environments(environment="prod") == {"prod"}
        assert environments(environment="*") >= {"dev", "prod"}
        assert client.delete(f"{WANTS}/of-dev").status_code == 200
    with served.client(None) as client:
        client.post("/login", data={"token": WRITE})
        assert "of-prod" not in client.get("/events").text
    ledger.wants.cancel("of-prod", by="test", why=None)


@pytest.mark.slow
@pytest.mark.proves("S11")
def test_a_declared_proxy_identifies_clients_and_makes_cookies_secure(
    tmp_path: Path,
) -> None:
    root = make_root(tmp_path / "proxied")
    with serving(root, "--proxy", "127.0.0.0/8", env={"PERSIST_TOKENS": TOKENS}) as service:
        n = 1000
        first, second = (
            _statuses(service, f"X-Forwarded-For: 203.0.113.{k}", m) for k, m in ((1, n), (2, 1))
        )
        assert first.count(429) > 0 and second == [200]
        for sent, is_secure in ({}, True), ({"X-Forwarded-Proto": "http"}, False):
            with service.client(None, headers=sent) as client:
                cookie = client.post("/login", data={"token": WRITE}).headers["set-cookie"]
                assert ("secure" in cookie.lower()) is is_secure


@pytest.mark.proves("S11")
def test_forwarded_addresses_are_ignored_without_a_declared_proxy(served: Served) -> None:
    for n in range(20):  # on a busy machine, the limit recovers while requests are sent
        statuses = _statuses(served, f"X-Forwarded-For: 203.0.113.{n}", 300)
        if 429 in statuses:
            break
    else:
        pytest.fail("they are one client, whatever they say")
    wait_for(lambda: _statuses(served, "X-Forwarded-For: 203.0.113.9", 1) == [200], seconds=30)


def _statuses(service: Served, header: str, n: int) -> list[int]:
    """Return the statuses of requests with a header, sent over one connection."""
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    asked = f"GET /health HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"
    read = bytearray()
    n_answers = 0
    with socket.create_connection((host, int(port)), 60) as connection:
        sending = threading.Thread(target=connection.sendall, args=(asked.encode() * n,))
        sending.start()
        while n_answers < n or not read.endswith(b"}"):
            counted = max(len(read) - 8, 0)  # the last read may end within a status line
            read += connection.recv(65536)
            n_answers += read.count(b"HTTP/1.1 ", counted)
        sending.join()
    return [int(part[:3]) for part in bytes(read).split(b"HTTP/1.1 ")[1:]]


def test_an_open_service_rejects_other_host_names(open_to_all: Served) -> None:
    with open_to_all.client(None) as client:
        assert client.get(EVENTS).status_code == 200
        fails(client.get(EVENTS, headers={"Host": "evil.example"}), 421)


@pytest.mark.proves("S8")
def test_an_open_service_rejects_requests_from_pages_of_other_sites(open_to_all: Served) -> None:
    with open_to_all.client(None) as client:
        hostile = "*a" * 10 + "b*"
        for headers in CROSS_SITE:
            link = {**headers, "Sec-Fetch-Mode": "navigate"}
            for path in (f"{EVENTS}?patterns={hostile}", f"{WANTS}?pattern={hostile}", PLAN):
                fails(client.get(path, headers=headers), 403)
                fails(client.get(path, headers=link), 403)
                assert client.head(path, headers=headers).status_code == 403
            fails(client.get("/partitions", headers=headers), 403)
            fails(client.get("/stream", headers=headers), 403)
            assert client.get("/timeline", headers=link).status_code == 200
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            assert client.get(EVENTS, headers=headers).status_code == 200


@pytest.mark.proves("S8")
def test_hostile_patterns_are_answered_quickly(served: Served, ledger: Ledger) -> None:
    for n in range(20):
        ref = f"m/daily/{'a' * 200}{n}"
        ledger.wants.create([Want(f"hostile-{n}", ref, "dev", datetime.now(UTC))])
    with served.client() as client:
        began = time.monotonic()
        for path, name in (
            (EVENTS, "patterns"),
            (WANTS, "pattern"),
            ("/api/v1/partitions", "pattern"),
        ):
            for stars in ("*", "**"):
                pattern = f"m/daily/{stars}" + f"a{stars}" * 9
                assert client.get(path, params={name: pattern}).status_code == 200
                assert client.get(path, params={name: pattern[:-1] + "b"}).status_code == 200
        assert time.monotonic() - began < 10
        for n in range(20):
            client.delete(f"{WANTS}/hostile-{n}")


@pytest.mark.slow
def test_rate_limits_apply_per_client(served: Served) -> None:
    n = 2000
    statuses = Counter(_statuses(served, f"Authorization: Bearer {OFTEN}", n))
    assert statuses[200] >= 600
    assert statuses[429] == n - statuses[200] > 0
    with served.client(READ) as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("proxy", ["localhost", "10.0.0.1/8", "*"])
def test_a_proxy_is_an_address_or_a_network(proxy: str) -> None:
    with pytest.raises(SettingsError, match=r"--proxy"):
        check_proxy(proxy, None, "--proxy")


def test_serving_other_machines_requires_tokens(tmp_path: Path) -> None:
    root = make_root(tmp_path / "wide")
    command = [sys.executable, "-P", "-m", "persist_assets.cli", "--project", str(root), "serve"]
    done = warm.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "PERSIST_TOKENS" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "a:admin:0123456789abcdef",
        "a:read:short",
        "a:read:0123456789abcdef,a:write:0123456789abcdeg",
        ":read:0123456789abcdef",
    ],
)
def test_invalid_tokens_are_rejected_and_not_printed(text: str) -> None:
    from persist_assets.core.errors import SettingsError
    from persist_assets.web.access import parse_tokens

    with pytest.raises(SettingsError) as caught:
        parse_tokens(text)
    assert "0123456789abcde" not in str(caught.value)


@pytest.fixture(scope="module")
def fuzzer(served: Served) -> Iterator[httpx.Client]:
    with served.client(None) as client:
        yield client


@pytest.mark.slow
@settings(
    max_examples=draws(30, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(request=requests())
def test_random_requests_are_answered_as_described_or_rejected(
    fuzzer: httpx.Client, request: Asked
) -> None:
    judge(fuzzer, request)


# ------------------------------------------------------------------------------------ description


def test_every_endpoint_is_described_and_in_the_docs(served: Served) -> None:
    text = (Path(__file__).parents[3] / "docs" / "service.md").read_text()
    with served.client(None) as client:
        told = client.get("/api/v1/openapi.json").json()
    assert told == json.loads(json.dumps(description()))
    for endpoint in ENDPOINTS:
        assert f"| `{endpoint.method} {endpoint.path}`" in text
        row = told["paths"][endpoint.path][endpoint.method.lower()]
        assert [p["name"] for p in row["parameters"]] == [*endpoint.query.model_fields]


def test_the_service_imports_no_dagster_and_no_spark() -> None:
    script = "import persist_assets.web.app, sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {*done.stdout.split()} & {"dagster", "pyspark"}


# -------------------------------------------------------------------------------------- shutdown


@pytest.mark.slow
def test_sigterm_answers_waiting_requests_and_stops_the_service(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with serving(make_root(tmp_path / "ending")) as service, service.client(None) as client:

        def poll() -> None:
            with service.client(None) as other:
                answers.append(other.get(EVENTS, params={"wait": 30}))

        waiting = threading.Thread(target=poll)
        waiting.start()
        wait_for(lambda: 'persist_waiting{environment="dev"} 1' in client.get("/metrics").text)
        with service.client(None) as streaming, streaming.stream("GET", "/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(10) == 0
            assert time.monotonic() - began < 5
        waiting.join(5)
        assert answers[0].status_code == 200 and answers[0].json()["events"] == []
        with (
            pytest.raises(OSError),
            socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), 2),
        ):
            pass


# -------------------------------------------------------------------------- on each kind of ledger


def test_both_databases_return_the_same_counts_and_partitions(
    open_ledger: Callable[..., Ledger],
) -> None:
    ledger = open_ledger()
    assert ledger.events.log_id() == open_ledger().events.log_id()
    long_ago = datetime.now(UTC) - timedelta(days=1)
    asked = [Want(f"w{n}", f"m/a_{n}", "dev", long_ago) for n in range(3)]
    ledger.wants.create([*asked, Want("p", "m/a_1", "prod", long_ago)])
    ledger.wants.cancel("w1", by="test")
    assert ledger.wants.count_states("dev") == {
        "wants": {"waiting": 2, "cancelled": 1},
        "requests": {},
        "misses": {"open": 0, "delivered": 0},
    }
    for ref in ("m/a_2", "m/A_1", "m/ab1", "m/a_1"):
        ledger.taints.record(["dev"], lambda *_, ref=ref: Taint({ref: "b"}), by="test")
    found = ledger.partitions.fetch("dev", pattern="m/a_*")
    assert {(p.partition_ref, p.state) for p in found} == {
        ("m/a_1", "tainted"),
        ("m/a_2", "tainted"),
    }
    pages, after = [], ""
    while some := ledger.partitions.fetch("dev", after=after, limit=1):
        pages += some
        after = some[-1].partition_ref
    assert [p.partition_ref for p in pages] == [
        p.partition_ref for p in ledger.partitions.fetch("dev")
    ]
    assert len(pages) == 4
    assert [w.want_id for w in ledger.wants.fetch("dev", pattern="m/a_*")] == ["w0", "w1", "w2"]
