"""Alerts: each channel is notified once when a problem begins and once when it ends."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import hammer
import pytest
from commands import persist, printed
from conftest import wait_for
from receivers import Receiver, receiving
from serving import serving, write_data
from standardwebhooks import Webhook

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Evaluation, Want
from persist_assets.ledger.alerts import Condition
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.alerting.turn import Turn, take_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "s3cr3t-of-the-hook"
SQL = """
CREATE TABLE t (id INT) USING parquet LOCATION 'raw';
--@ persist freshness.window="1h" tags=[critical]
CREATE VIEW v AS SELECT id FROM t;
--@ persist
CREATE VIEW w AS SELECT id FROM t;
"""
ENVIRON = {"PERSIST_SECRET_HOOK": SECRET}


def hook(name: str, receiver: Receiver, more: str = "") -> str:
    secret = 'secret_env = "PERSIST_SECRET_HOOK"'
    return f'[alerts.{name}]\nwebhook = "{receiver.url}/{name}"\n{secret}\n{more}\n'


class Scene:
    """A project with a ledger and a clock, whose builds are recorded by hand."""

    def __init__(self, root: Path, ledger: Ledger, environ: Mapping[str, str]) -> None:
        self.root, self.ledger, self.environ = root, ledger, environ
        self.now, self.n = START, 0

    def observer(self) -> Observer:
        settings = load_settings(self.root)
        return Observer(settings, load_project(settings), self.ledger, clock=lambda: self.now)

    def turn(self, **later: float) -> Turn:
        self.now += timedelta(**later)
        return take_turn(self.observer(), environ=self.environ)

    def build(self, name: str, error: str | None = None) -> None:
        self.n += 1
        source = load_project(load_settings(self.root)).by_id[f"{name}@sources/m.sql"]
        uid = f"u{self.n}"
        build = Build(
            uid, source.source_id, source.build_id, "d", "dev", None, "started", "built", self.now
        )
        self.ledger.builds.record_started(build, "t")
        if error is not None:
            self.ledger.builds.record_failed(build, error)
            return
        snapshot = Snapshot(
            uid, source.source_id, source.build_id, "t", self.n, (), "3:a", 3, 300, self.now,
            (Column("id", "int"),), None, current_at=self.now,
        )  # fmt: skip
        self.ledger.builds.publish(Publication(build, snapshot, [], refs=[f"m/{name}"]))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def play(
    make_project: Callable[..., Path], open_ledger: Callable[..., Ledger]
) -> Callable[..., Scene]:
    def make(settings: str, environ: Mapping[str, str] = ENVIRON) -> Scene:
        scene = Scene(make_project({"m.sql": SQL}, settings), open_ledger(), environ)
        clocked = open_ledger(clock=lambda: scene.now)
        scene.ledger = clocked
        return scene

    return make


def received_by(receiver: Receiver) -> list[tuple[str, str, str]]:
    """Return kind, phase and subject of each request to a webhook; check its ID and signature."""
    webhook = Webhook(base64.b64encode(SECRET.encode()).decode())
    found: list[tuple[str, str, str]] = []
    for request in receiver.requests:
        document, headers = json.loads(request.body), request.headers
        assert headers["webhook-id"] == document["id"]
        at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        signature = webhook.sign(document["id"], at, request.body.decode())
        assert headers["webhook-signature"] == signature
        found.append((document["kind"], document["phase"], document["subject"]))
    return found


@pytest.mark.proves("Y2")
def test_each_kind_of_alert_is_sent_when_it_opens_and_when_it_recovers(
    play: Callable[..., Scene], receiver: Receiver
) -> None:
    upstream = '[upstream.users]\nurl = "http://127.0.0.1:9"\nsilent_after = "26h"\n'
    scene = play(hook("all", receiver) + upstream)
    assert scene.turn() == Turn(0, 0, 0, ())
    scene.ledger.upstreams.record_synced("dev", "users", "1", expected=None)
    scene.build("v")
    scene.build("w", error="no /tmp/x\nand more")
    want = Want("want-1", "m/w", "dev", scene.now, sla_s=60)
    scene.ledger.wants.create([want])
    assert scene.turn().sent == 1
    assert received_by(receiver) == [("failed", "opened", "w@sources/m.sql")]
    assert json.loads(receiver.requests[0].body)["details"]["error"] == "no /tmp/x"

    assert scene.turn(hours=2) == Turn(2, 0, 2, ())
    assert {*received_by(receiver)[1:]} == {
        ("deadline", "opened", "want-1"),
        ("stale", "opened", "v@sources/m.sql"),
    }
    scene.ledger.upstreams.record_synced("dev", "users", "2", expected="1", problem="HTTP 503")
    assert scene.turn(minutes=1) == Turn(1, 0, 1, ())
    assert received_by(receiver)[3:] == [("silent", "opened", "users")]

    # All problems are fixed, and the recoveries are sent.
    scene.ledger.upstreams.record_synced("dev", "users", "3", expected="2")
    for name in "vw":
        scene.build(name)
    evaluation = Evaluation(satisfied=("want-1",))
    assert scene.ledger.requests.record_evaluation("dev", "clock", evaluation) is None
    assert scene.turn(minutes=1) == Turn(0, 4, 4, ())
    assert {*received_by(receiver)[4:]} == {
        ("silent", "recovered", "users"),
        ("failed", "recovered", "w@sources/m.sql"),
        ("stale", "recovered", "v@sources/m.sql"),
        ("deadline", "recovered", "want-1"),
    }
    position, n = scene.ledger.events.position(), len(receiver.requests)
    assert scene.turn() == Turn(0, 0, 0, ())
    assert (scene.ledger.events.position(), len(receiver.requests)) == (position, n)
    # An upstream that responds, but has no news for too long, is silent too.
    assert ("silent", "opened", "users") in told_after(scene, receiver, hours=27)


def told_after(scene: Scene, receiver: Receiver, **later: float) -> list[tuple[str, str, str]]:
    n = len(receiver.requests)
    scene.turn(**later)
    return received_by(receiver)[n:]


@pytest.mark.proves("Y2")
def test_webhook_signatures_conform_to_standard_webhooks(
    play: Callable[..., Scene], receiver: Receiver
) -> None:
    key = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    scene = play(hook("x", receiver), {"PERSIST_SECRET_HOOK": key})
    scene.now = datetime.now(UTC)
    scene.build("w", error="x")
    scene.turn()
    (request,) = receiver.requests
    assert Webhook(key).verify(request.body, request.headers)["kind"] == "failed"
    other = "whsec_" + base64.b64encode(b"another key another key another!").decode()
    with pytest.raises(Exception, match="signature"):
        Webhook(other).verify(request.body, request.headers)


@pytest.mark.proves("Y2")
def test_channels_get_only_their_alerts_and_canceled_wants_send_no_recovery(
    play: Callable[..., Scene], receiver: Receiver
) -> None:
    scene = play(
        hook("critical", receiver, 'select = ["tag:critical"]')
        + hook("late", receiver, 'kinds = ["deadline"]')
        + hook("prod", receiver, 'environments = ["prod", "pr-*"]')
        + hook("wrong", receiver, 'select = ["nothing_like_that"]')
    )
    scene.build("v", error="x")
    scene.build("w", error="x")
    scene.ledger.wants.create([Want("want-1", "m/w", "dev", scene.now, sla_s=60)])
    turn = scene.turn(hours=1)
    assert turn.problems and "[alerts.wrong] select" in turn.problems[0]
    found = {(r.path, json.loads(r.body)["subject"]) for r in receiver.requests}
    assert found == {
        ("/critical", "v@sources/m.sql"),
        ("/late", "want-1"),
        ("/wrong", "v@sources/m.sql"),  # better too many than none
        ("/wrong", "w@sources/m.sql"),
        ("/wrong", "want-1"),
    }
    scene.ledger.wants.cancel("want-1", by="me")
    n = len(receiver.requests)
    assert scene.turn().closed == 1
    assert len(receiver.requests) == n
    states = {a.condition.kind: a.outcome for a in scene.ledger.alerts.fetch("dev")}
    assert states["deadline"] == "ended"


@pytest.mark.proves("Y2")
def test_a_failing_channel_is_retried_without_repeating_messages_to_others(
    play: Callable[..., Scene], receiver: Receiver
) -> None:
    with receiving() as other:
        scene = play(hook("down", receiver) + hook("up", other))
        receiver.status = 503
        scene.build("w", error="x")
        turn = scene.turn()
        assert turn.problems == ("[alerts.down] it responded with 503",)
        assert (len(receiver.requests), len(other.requests)) == (1, 1)
        assert scene.turn(seconds=20).problems == ()  # a pause
        assert scene.turn(seconds=20).problems != ()
        assert scene.turn(seconds=40).problems == ()  # the pauses double
        # It recovers before the channel got the opening message, which is then sent first.
        scene.build("w")
        receiver.status = 200
        assert scene.turn(seconds=40).problems == ()
        assert received_by(receiver)[2:] == [
            ("failed", "opened", "w@sources/m.sql"),
            ("failed", "recovered", "w@sources/m.sql"),
        ]
        assert len(other.requests) == 2
        ids = [json.loads(r.body)["id"] for r in receiver.requests]
        assert ids[0] == ids[1] == ids[2]


A_TURN = """
import os, sys
from datetime import datetime
from pathlib import Path
from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.alerting.turn import take_turn

root, url, moment = sys.argv[1:]
settings, now = load_settings(Path(root)), datetime.fromisoformat(moment)
observer = Observer(settings, load_project(settings), Ledger(url), clock=lambda: now)
print("ready", flush=True)
sys.stdin.readline()
take_turn(observer, environ=os.environ)
"""


@pytest.mark.slow
@pytest.mark.proves("Y2")
def test_concurrent_turns_send_each_alert_once_per_channel(
    play: Callable[..., Scene], receiver: Receiver, ledger_url: str
) -> None:
    scene = play(hook("x", receiver))
    for name in "vw":
        scene.build(name, error="x")
    command = [sys.executable, "-c", A_TURN, str(scene.root), ledger_url, scene.now.isoformat()]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, **ENVIRON},
                    text=True,
                )
            )
            for _ in range(2)
        ]
        hammer.wait_until_ready(processes)
        hammer.go(processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(received_by(receiver)) == [
        ("failed", "opened", "v@sources/m.sql"),
        ("failed", "opened", "w@sources/m.sql"),
    ]


@pytest.mark.proves("Y2")
def test_an_alert_claimed_by_a_dead_process_is_sent_later_by_another(
    play: Callable[..., Scene], receiver: Receiver
) -> None:
    scene = play(hook("x", receiver))
    scene.build("w", error="x")
    ledger = scene.ledger
    (failure,) = ledger.alerts.fetch_failures("dev")
    condition = Condition("failed", failure.source_id, failure.at, {"asset_key": "m/w"})
    assert ledger.alerts.record("dev", [(condition, ["x"])], {}, scene.now) == (1, 0)
    assert len(ledger.alerts.take_due("dev", scene.now)) == 1
    assert scene.turn(minutes=4).sent == 0
    assert scene.turn(minutes=2).sent == 1


@pytest.mark.proves("Y2")
def test_apprise_gets_one_message_for_all_alerts_and_secrets_do_not_leak(
    play: Callable[..., Scene], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = '[alerts.chat]\nurl_env = "PERSIST_SECRET_CHAT"\n'
    url = f"json://me:{SECRET}@127.0.0.1:{receiver.port}/chat"
    scene = play(text, {"PERSIST_SECRET_CHAT": url})
    for name in "vw":
        scene.build(name, error="x")
    receiver.status = 500
    turn = scene.turn()
    assert turn.problems == (
        "[alerts.chat] the service at PERSIST_SECRET_CHAT did not accept the message with 500",
    )
    receiver.status = 200
    assert scene.turn(minutes=1).sent == 2
    document = json.loads(receiver.requests[-1].body)
    assert (document["title"], document["type"]) == ("2 alerts", "failure")
    assert "[dev] failed: m/v" in document["message"]
    scene.build("v")
    scene.turn()
    document = json.loads(receiver.requests[-1].body)
    assert document["type"] == "success"
    assert document["title"] == "[dev] recovered: m/v was built again"
    scene.environ = {"PERSIST_SECRET_CHAT": f"nonsense://{SECRET}"}
    scene.build("v", error="x")
    (problem,) = scene.turn().problems
    assert problem.endswith("PERSIST_SECRET_CHAT is not a URL that Apprise supports")
    scene.environ = {}
    (problem,) = scene.turn(minutes=1).problems
    assert problem.endswith("the environment variable PERSIST_SECRET_CHAT is not set")
    messages = scene.ledger.alerts.fetch_messages(
        [alert.alert_id for alert in scene.ledger.alerts.fetch("dev")]
    )
    for place in (caplog.text, repr(messages), repr(scene.ledger.events.fetch())):
        assert SECRET not in place


@pytest.mark.proves("Y2")
def test_pagerduty_has_one_incident_for_each_alert() -> None:
    import apprise

    from persist_assets.operations.alerting.channels import _incident
    from persist_assets.operations.alerting.messages import trial_note

    note = replace(trial_note("x", "dev", START), alert_id="0123456789abcdef")
    for url in ("pagerduty://A1@B2", "pagerduty://A1@B2?region=eu"):
        plugin: Any = apprise.Apprise.instantiate(_incident(url, note))
        assert (plugin.dedup, plugin.action) == ("0123456789abcdef", "map")


@pytest.mark.proves("Y2")
def test_commands_list_send_and_test(make_project: Callable[..., Path], receiver: Receiver) -> None:
    root = make_project({"m.sql": SQL}, hook("x", receiver))
    ledger = Ledger(load_settings(root).ledger)
    Scene(root, ledger, {}).build("w", error="x")
    ledger.close()

    def run(*arguments: str, env: Mapping[str, str] = ENVIRON) -> Any:
        return persist("alerts", *arguments, cwd=root, env=env)

    assert printed(run("test", "x", "--json"))["sent"] is True
    assert json.loads(receiver.requests[0].body)["kind"] == "test"
    failed = run("test", "x", env={"PERSIST_SECRET_HOOK": ""})
    assert failed.returncode == 1 and "PERSIST_SECRET_HOOK is not set" in failed.stderr
    unknown = run("test", "y")
    assert unknown.returncode == 4 and "unknown channel `y`" in unknown.stderr
    assert run("list").stdout == "no open alerts in dev\n"
    assert printed(run("send", "--json")) == {"opened": 1, "closed": 0, "sent": 1, "problems": []}
    (alert,) = printed(run("list", "--json"))["alerts"]
    assert (alert["kind"], alert["messages"][0]["state"]) == ("failed", "sent")
    assert "failed: m/w" in run("list").stdout
    assert SECRET not in run("list", "--json").stdout


@pytest.mark.slow
@pytest.mark.proves("Y2")
def test_the_service_sends_alerts_while_it_builds(
    make_project: Callable[..., Path], receiver: Receiver
) -> None:
    root = make_project({"m.sql": SQL}, hook("x", receiver))
    write_data(root)
    ledger = Ledger(load_settings(root).ledger)
    Scene(root, ledger, {}).build("w", error="x")
    ledger.close()
    with serving(root, "--build", env=ENVIRON):
        wait_for(lambda: receiver.requests)
    assert received_by(receiver) == [("failed", "opened", "w@sources/m.sql")]


@pytest.mark.proves("Y2")
def test_dagsters_sensor_sends_alerts(
    make_project: Callable[..., Path], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dagster as dg

    from persist_assets import load_sources

    plain = make_project({"m.sql": SQL}, name="plain")
    names = {s.name for s in load_sources(plain / "sources").sensors or ()}
    assert names == {"persist_stale", "persist_wants"}
    root = make_project({"m.sql": SQL}, hook("x", receiver))
    ledger = Ledger(load_settings(root).ledger)
    Scene(root, ledger, {}).build("w", error="x")
    ledger.close()
    monkeypatch.setenv("PERSIST_SECRET_HOOK", SECRET)
    sensor = load_sources(root / "sources").resolve_sensor_def("persist_alerts")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        for expected in ("1 opened, 0 closed, 1 messages sent", "0 opened, 0 closed, 0 messages"):
            data = sensor.evaluate_tick(context)
            assert expected in (data.skip_message or "")
    assert received_by(receiver) == [("failed", "opened", "w@sources/m.sql")]
