"""HTTP requests to other services: proxies, redirects and invalid responses."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from persist_assets.wants.http import NoAnswer, ask

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"path": "%s", "token": "%s"}' % (
            self.path.encode(),
            self.headers.get("Authorization", "").encode(),
        )
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body) + (9 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("NO_PROXY", "localhost,[::1]"),
        ("NETRC", "/dev/null"),
    ],
)
def test_variables_of_other_http_clients_do_not_break_requests(
    name: str, value: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert ask(f"{url}/a", "t") == (200, {"path": "/a", "token": "Bearer t"})


def test_a_proxy_is_used_unless_the_host_is_excepted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    status, answer = ask("http://127.0.0.1:1/a", None)
    assert (status, answer["path"]) == (200, "http://127.0.0.1:1/a")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(NoAnswer, match="refused"):
        ask("http://127.0.0.1:1/a", None)


def test_redirects_are_not_followed_and_truncated_responses_are_errors(url: str) -> None:
    assert ask(f"{url}/moved", "t")[0] == 302
    with pytest.raises(NoAnswer, match="does not respond"):
        ask(f"{url}/short", None)


def test_urls_are_not_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ask(f"{url}/secret", None)
    assert "secret" not in caplog.text
