"""A server of Iceberg's REST catalog on loopback, over a catalog of pyiceberg, for tests."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator

TOKEN = "Kx7hiddenTokenOfTheCatalog"


class Catalog:
    """What the server answers.

    Parameters
    ----------
    catalog
        A catalog of pyiceberg.
    """

    def __init__(self, catalog: Any) -> None:
        self.catalog = catalog
        self.overrides: Any = {}
        self.redirect = ""
        """The server to which it sends everybody; empty: it answers itself."""
        self.config: dict[str, str] = {}
        """What it says of each table, to clients who believe it."""
        self.broken = False
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str, token: str) -> tuple[int, Any]:
        """Return the status and the document for a path."""
        self.asked.append(path)
        if token != f"Bearer {TOKEN}":
            return 401, _error("NotAuthorizedException", "no token", 401)
        if self.broken:
            return 200, {"what": "is this"}
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[-1] == "config":
            return 200, {"defaults": {}, "overrides": self.overrides}
        namespace, name = parts[-3], parts[-1]
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self.catalog.load_table((namespace, name))
        except NoSuchTableError:
            return 404, _error("NoSuchTableException", "there is none", 404)
        metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
        place = table.metadata_location
        return 200, {"metadata-location": place, "metadata": metadata, "config": self.config}


def _error(kind: str, message: str, code: int) -> Any:
    return {"error": {"type": kind, "message": message, "code": code}}


@contextmanager
def serving(catalog: Any) -> Generator[Catalog]:
    """Serve a catalog until the block ends."""
    answers = Catalog(catalog)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            self._send(*answers.answer(path, self.headers.get("Authorization", "")))

        def do_POST(self) -> None:
            """Give a token for any credentials."""
            answers.asked.append(urlsplit(self.path).path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(200, {"access_token": TOKEN, "token_type": "bearer", "expires_in": 3600})

        def _send(self, status: int, document: Any) -> None:
            if answers.redirect:
                status = 307
            body = json.dumps(document).encode()
            self.send_response(status)
            if answers.redirect:
                self.send_header("Location", answers.redirect + self.path.removeprefix("/api"))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_port}/api"
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
