"""A proxy on loopback that stands before an S3-compatible server and misbehaves as it is told.

`PUT /-/rules` adds a rule in JSON before the others: which requests (`method`, `path`: patterns),
how many of them (`times`), and what becomes of them (`act`). `DELETE /-/rules` takes all away, and
answers how often they were followed. It is a process of its own, as `s3_server.py` is.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from s3_server import end_with_parent

ERRORS = {
    "throttle": (503, "SlowDown", "Please reduce your request rate."),
    "too-many": (429, "TooManyRequests", "Too many requests."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "refresh": (400, "TokenRefreshRequired", "The provided token must be refreshed."),
    "denied": (403, "AccessDenied", "Access Denied."),
}
"""What acts answer: as Amazon does."""

SLOW_S = 0.3

rules: list[dict[str, Any]] = []
lock = threading.Lock()
ended = threading.Event()


def find_act(method: str, path: str) -> str | None:
    """Return what becomes of a request; it counts."""
    with lock:
        for rule in rules:
            fits = re.fullmatch(rule["method"], method) and re.search(rule["path"], path)
            if fits and rule["times"] > 0:
                rule["times"] -= 1
                rule["followed"] += 1
                return str(rule["act"])
    return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = next((v for n, v in headers if n.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def do(self) -> None:
        body = self.read_body()
        if self.path == "/-/rules":
            with lock:
                followed = sum(rule["followed"] for rule in rules)
                if self.command == "DELETE":
                    rules.clear()
                else:
                    rules.insert(0, {**json.loads(body), "followed": 0})
            self.answer(200, [], str(followed).encode())
            return
        act = find_act(self.command, self.path)
        if act == "silence":
            self.close_connection = True
            ended.wait()
            return
        if act == "slow":
            ended.wait(SLOW_S)
        if act in ERRORS:
            status, code, message = ERRORS[act]
            error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            content = f"<?xml version='1.0'?>{error}".encode()
            self.answer(status, [("Content-Type", "application/xml")], content)
            return
        if act == "precede":
            other = re.sub(rb'("persist.commit": *)"[0-9a-f]+"', rb'\1"another"', body)
            self.forward(other)
        got, content = self.forward(body)
        if act == "lose":
            self.close_connection = True
            return
        self.answer(got.status, got.getheaders(), content)

    def forward(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        inner = HTTPConnection("127.0.0.1", int(sys.argv[1]))
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "expect")
        }
        inner.request(self.command, self.path, body, headers)
        got = inner.getresponse()
        content = got.read()
        inner.close()
        return got, content

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    serving = Server(("127.0.0.1", 0), Handler)
    print(serving.server_port, flush=True)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serving.serve_forever()
