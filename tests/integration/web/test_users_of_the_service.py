"""Roles, expiring and revoked tokens, users of a proxy, and the audit log, against attackers."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from commands import document
from conftest import wait_for
from serving import TOKENS, serving, write_data

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.web.access import Access, Caller, parse_tokens
from persist_assets.web.audit import BURST, PER_HOUR, Audit
from persist_assets.web.tokens import TOKEN_FILE, TokenFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from serving import Served

SOURCES = """
CREATE TABLE f (n INT) USING parquet LOCATION 'f';
--@ persist tags=[finance]
CREATE VIEW money AS SELECT n FROM f;
--@ persist
CREATE VIEW people AS SELECT n + 1 AS n FROM f;
"""
TOML = """
[service]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"
proxies = ["127.0.0.1"]
[roles.finance]
groups = ["team-finance"]
build = ["tag:finance"]
promote = ["staging"]
[roles.reader]
groups = ["*"]
[roles.boss]
groups = ["bosses"]
admin = true
[env.staging]
reads = "dev"
"""
WITHOUT_PROXY = re.sub(r"(?s)\[service\].*?(?=\[roles\.finance)", "", TOML)
WANTS = "/api/v1/wants"


def a_project(root: Path, toml: str) -> Path:
    (root / "sources").mkdir(parents=True)
    (root / "sources" / "m.sql").write_text(SOURCES)
    (root / "persist.toml").write_text(toml)
    write_data(root)
    return root


def persist(root: Path, *arguments: str) -> Any:
    return document(*arguments, cwd=root)


def events(root: Path, kind: str) -> list[Any]:
    ledger = Ledger(load_settings(root).ledger)
    found = [e.data for e in ledger.events.fetch(limit=10_000) if e.kind == kind]
    ledger.close()
    return found


@pytest.fixture(scope="module")
def behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = a_project(tmp_path_factory.mktemp("proxied") / "p", TOML)
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as served:
        yield served


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service whose proxy is on another machine than the tests."""
    toml = TOML.replace("127.0.0.1", "10.9.8.7")
    root = a_project(tmp_path_factory.mktemp("elsewhere") / "p", toml)
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as served:
        yield served


def by_proxy(user: str, *groups: str) -> dict[str, str]:
    return {"X-Forwarded-User": user, "X-Forwarded-Groups": ", ".join(groups)}


@pytest.mark.slow
@pytest.mark.proves("Z5")
def test_a_user_named_by_the_proxy_has_the_roles_of_the_groups(behind_proxy: Served) -> None:
    with behind_proxy.client(None) as client:
        assert client.get(WANTS).status_code == 401
        ann = by_proxy("ann", "team-finance", "x")
        assert client.get(WANTS, headers=ann).status_code == 200
        made = client.post(WANTS, json={"partition_ref": "m/money"}, headers=ann)
        assert made.status_code == 201
        assert made.json()["source"]["client"] == "ann"
        refused = client.post(WANTS, json={"partition_ref": "m/people"}, headers=ann)
        assert refused.status_code == 403 and "may not build" in refused.json()["detail"]
        assert client.post("/api/v1/evaluate", json={}, headers=ann).status_code == 403
        bob = by_proxy("bob")
        assert client.get(WANTS, headers=bob).status_code == 200
        made = client.post(WANTS, json={"partition_ref": "m/money"}, headers=bob)
        assert made.status_code == 403
        boss = by_proxy("carl", "bosses")
        made = client.post(WANTS, json={"partition_ref": "m/people"}, headers=boss)
        assert made.status_code == 201
        cancelled = client.delete(f"{WANTS}/{made.json()['want_id']}", headers=ann)
        assert cancelled.status_code == 403
    names = {e["who"] for e in wait_for(lambda: events(behind_proxy.root, "logged-in"))}
    assert {"ann", "bob", "carl"} >= names >= {"ann"}


@pytest.mark.proves("Z5")
@pytest.mark.parametrize("name", ["X-Forwarded-User", "x-forwarded-user", "X-FORWARDED-GROUPS"])
def test_identity_headers_are_accepted_only_from_the_proxy(elsewhere: Served, name: str) -> None:
    for token in (None, "writer-token-0123456789"):
        with elsewhere.client(token) as client:
            spoofed = {name: "bosses", "X-Forwarded-For": "10.9.8.7"}
            for method, path in (("GET", WANTS), ("GET", "/"), ("POST", WANTS), ("GET", "/health")):
                answer = client.request(method, path, headers=spoofed)
                assert answer.status_code == 403, (method, path)
                assert "not accepted from here" in answer.json()["detail"]
    refusals = wait_for(lambda: events(elsewhere.root, "access-refused"))
    assert any("does not come from a proxy" in r["why"] for r in refusals)


@pytest.mark.proves("Z5")
def test_duplicate_or_invalid_identity_headers_are_rejected(behind_proxy: Served) -> None:
    with behind_proxy.client(None) as client:
        twice = [("X-Forwarded-User", "bob"), ("X-Forwarded-User", "carl")]
        odd = [("X-Forwarded-User", "bob;carl"), ("X-Forwarded-Groups", "bosses")]
        empty = [("X-Forwarded-User", ""), ("X-Forwarded-Groups", "bosses")]
        groups = [("X-Forwarded-Groups", "bosses")]
        more = [("X-Forwarded-User", "bob"), ("X-Forwarded-Groups", "x"), *groups]
        for headers in (twice, odd, empty, groups, more):
            answer = client.get(WANTS, headers=headers)
            assert answer.status_code == 403, headers


@pytest.mark.proves("Z5")
def test_forms_of_a_proxy_user_need_the_form_token_of_that_user(behind_proxy: Served) -> None:
    with behind_proxy.client(None) as client:
        boss, bob = by_proxy("carl", "bosses"), by_proxy("bob", "bosses")

        def form_token(headers: dict[str, str]) -> str:
            page = client.get("/wants", headers=headers).raise_for_status().text
            found = re.search(r'name="form_token" value="(\w+)"', page)
            assert found is not None
            return found[1]

        def send(headers: dict[str, str], token: str) -> int:
            form = {"partition_ref": "m/people", "form_token": token}
            return client.post("/wants", data=form, headers=headers).status_code

        assert send(boss, "") == send(boss, "0" * 64) == 403
        assert send(bob, form_token(boss)) == 403
        cross = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert send(boss | cross, form_token(boss)) == 403
        assert send(boss, form_token(boss)) == 303


@pytest.mark.slow
@pytest.mark.proves("Z5")
def test_roles_are_limited_to_their_sources_and_environments_on_every_page(tmp_path: Path) -> None:
    root = a_project(tmp_path / "p", WITHOUT_PROXY)
    secret = persist(root, "token", "create", "fin", "--role", "finance")["token"]
    with serving(root) as served, served.client(None, follow_redirects=False) as client:
        assert client.post("/login", data={"token": secret}).status_code == 303
        page = client.get("/wants").text
        assert 'action="/evaluate"' not in page
        token = re.search(r'name="form_token" value="(\w+)"', page)
        assert token is not None

        def send(path: str, **form: str) -> int:
            return client.post(path, data={**form, "form_token": token[1]}).status_code

        assert send("/wants", partition_ref="m/people") == 403
        assert send("/retry", ref="m/people") == 403
        assert send("/taint", ref="m/people") == 403
        assert send("/promote", **{"from": "staging", "to": "dev"}) == 403
        assert send("/rollback", environment="dev", expected="0") == 403
        assert send("/evaluate") == 403
        assert send("/wants", partition_ref="m/money") == 303
        assert send("/promote", **{"from": "dev", "to": "staging"}) != 403
        assert send("/rollback", environment="staging", expected="0") != 403
        assert client.get("/sources/m/people").status_code == 200
        assert client.post("/wants", data={"partition_ref": "m/money"}).status_code == 403
    whos = {e["who"] for e in events(root, "access-refused")}
    assert whos == {"fin"}


@pytest.mark.slow
@pytest.mark.proves("Z5")
def test_tokens_are_created_and_revoked_while_a_service_runs(tmp_path: Path) -> None:
    root = a_project(tmp_path / "p", WITHOUT_PROXY)
    with serving(root) as served:
        with served.client(None) as client:
            assert client.get(WANTS).status_code == 200  # no token is needed yet
        old = persist(root, "token", "create", "ci", "--role", "write")["token"]
        new = persist(root, "token", "create", "ci2", "--role", "write", "--expires", "1d")
        with served.client(None) as client:
            assert client.get(WANTS).status_code == 401
        for token in (old, new["token"]):
            with served.client(token) as client:
                assert client.get(WANTS).status_code == 200
        with served.client(None) as client:
            client.post("/login", data={"token": old})
            assert client.get("/events").status_code == 200
            ended = threading.Event()
            lines: list[str] = []

            def listen() -> None:
                with client.stream("GET", "/stream") as stream:
                    lines.extend(stream.iter_lines())
                ended.set()

            listener = threading.Thread(target=listen, daemon=True)
            listener.start()
            wait_for(lambda: lines)
            persist(root, "token", "revoke", "ci")  # its event wakes the stream
            assert ended.wait(20)
            assert not any("token-revoked" in line for line in lines)
            assert client.get("/events").status_code == 303
        with served.client(old) as client:
            assert client.get(WANTS).status_code == 401
        persist(root, "token", "revoke", "ci2")
        (root / ".persist" / TOKEN_FILE).unlink()
        with served.client(None) as client:  # a service goes on requiring tokens
            assert client.get(WANTS).status_code == 401
    text = (root / ".persist" / "ledger.db").read_bytes()
    assert old.encode() not in text and new["token"].encode() not in text
    created = events(root, "token-created")
    assert [(e["name"], e["role"]) for e in created] == [("ci", "write"), ("ci2", "write")]
    assert {e["how"] for e in events(root, "logged-in")} == {"token"}


@pytest.mark.slow
@pytest.mark.proves("Z5")
def test_a_long_poll_with_a_revoked_token_ends_with_401(tmp_path: Path) -> None:
    root = a_project(tmp_path / "p", WITHOUT_PROXY)
    secret = persist(root, "token", "create", "ci")["token"]
    with serving(root) as served, served.client(secret) as client:
        head = client.get("/api/v1/events").json()["head"]
        answers: list[int] = []

        def wait() -> None:
            asked: dict[str, Any] = {"since_idx": head, "wait": 30, "environment": "*"}
            answers.append(client.get("/api/v1/events", params=asked).status_code)

        waiting = threading.Thread(target=wait)
        waiting.start()
        gauge = re.compile(r"^persist_waiting\{.*\} 1$", re.MULTILINE)
        with served.client(secret) as another:
            wait_for(lambda: gauge.search(another.get("/metrics").text))
        persist(root, "token", "revoke", "ci")
        waiting.join(40)
        assert answers == [401]


@pytest.mark.proves("Z5")
def test_a_session_ends_when_its_token_expires(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    clock = [now.timestamp()]
    file = TokenFile(tmp_path / TOKEN_FILE)
    secret = file.create("ci", "write", now, now + timedelta(hours=1))
    access = Access({}, clock=lambda: clock[0], file=file)
    cookie = access.begin(secret)
    assert access.of_cookie(cookie) == access.of_token(secret) != None  # noqa: E711
    clock[0] += 3599
    assert access.of_cookie(cookie) is not None
    clock[0] += 1
    assert access.of_cookie(cookie) is None and access.of_token(secret) is None
    assert not access.is_open


@pytest.mark.proves("Z5")
def test_a_broken_token_file_denies_all_access(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    file = TokenFile(tmp_path / TOKEN_FILE)
    access = Access({}, clock=now.timestamp, file=file)
    assert access.is_open
    secret = file.create("ci", "write", now, None)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert access.of_token(secret) == Caller("ci", "write")
    assert secret not in file.path.read_text()
    for text in ("", "{", "[]", '{"tokens": [{}]}', '{"tokens": [{"name": 1}]}'):
        file.path.write_text(text)
        assert not access.is_open
        assert access.of_token(secret) is None, text
    file.path.unlink()
    assert not access.is_open and access.of_token(secret) is None


@pytest.mark.proves("Z5")
def test_a_token_with_an_unknown_role_is_rejected(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / TOKEN_FILE)
    secret = file.create("x", "gone", datetime.now(UTC), None)
    assert Access({}, clock=lambda: 0, file=file).of_token(secret) is None


@pytest.mark.proves("Z5")
def test_an_attacker_cannot_flood_the_audit_log() -> None:
    clock, recorded = [0.0], list[Any]()
    audit = Audit(lambda kind, data: recorded.append((kind, data)), lambda: clock[0])
    for n in range(10_000):
        clock[0] += 0.36  # an hour
        audit.note("access-refused", address=f"10.0.{n % 256}.{n // 256}", why="x" * 1000, who="")
    assert audit.note("logged-in", address="a", who="ann", how="token")  # it is still recorded
    audit.close()
    assert len(recorded) <= BURST + PER_HOUR + 2
    assert all(len(data["why"]) <= 200 for kind, data in recorded if kind == "access-refused")
    assert sum(d.get("omitted", 0) for _, d in recorded) > 9000


@pytest.mark.proves("Z5")
def test_the_same_client_is_recorded_once_a_minute() -> None:
    clock, recorded = [0.0], list[Any]()
    audit = Audit(lambda kind, data: recorded.append(data), lambda: clock[0])
    for _ in range(100):
        clock[0] += 1
        audit.note("access-refused", address="a", why="unknown")
    audit.close()
    assert [d.get("omitted", 0) for d in recorded] == [0, 59]


def test_tokens_from_an_environment_variable_can_have_roles(tmp_path: Path) -> None:
    roles = load_settings(a_project(tmp_path / "p", TOML)).roles
    (caller,) = parse_tokens("ann:finance:0123456789abcdef", roles).values()
    assert caller == Caller("ann", "read", ("tag:finance",), ("staging",))
    assert caller.may("build") and caller.may("promote") and not caller.may("write")


@pytest.mark.parametrize(
    ("toml", "place", "message"),
    [
        ('[service]\nuser_header = "X-User"', "2:1", "needs the addresses"),
        ('[service]\nuser_header = "X User"\nproxies = ["::1"]', "2:1", "not the name of a header"),
        ('[service]\nproxies = ["0.0.0.0/0"]', "2:1", "every address"),
        ('[service]\nproxies = ["proxy"]', "2:1", "does not appear to be"),
        ('[service]\ngroups_header = "X-Groups"', "2:1", "needs a `user_header`"),
        ("[roles.write]\nadmin = true", "1:", "invalid role name `write`"),
        ("[roles.x]\nbuild = [1]", "2:1", "list of strings"),
        ("[roles.x]\nbuilds = []", "2:1", "unknown key"),
        ('[retention]\nevents = "1 min"', "2:1", "at least 1 hour"),
        ('[retention]\nevent = "1 d"', "2:1", "unknown key"),
    ],
)
def test_errors_in_settings_have_their_locations(
    tmp_path: Path, toml: str, place: str, message: str
) -> None:
    from persist_assets.core.errors import SettingsError

    (tmp_path / "persist.toml").write_text(toml)
    with pytest.raises(SettingsError, match=re.escape(message)) as raised:
        load_settings(tmp_path)
    assert f"persist.toml:{place}" in str(raised.value)
