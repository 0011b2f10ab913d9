"""A server of Unity Catalog on loopback: its tables, its keys, its Iceberg catalog; for tests.

What it answers is what the open-source server answers, nulls and missing parts included.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator

TOKEN = "dapi7HIDDENtokenOfUnity0042"
API = "/api/2.1/unity-catalog"


class Unity:
    """What the server answers.

    Parameters
    ----------
    tables
        The tables by their full names: what differs from a table of Delta, at least its location.
    """

    def __init__(self, **tables: dict[str, Any]) -> None:
        self.tables = {name.replace("__", "."): table for name, table in tables.items()}
        self.keys: dict[str, str] | None = None
        """The keys to any table in a store."""
        self.may_read = True
        self.iceberg: Any = None
        """A catalog of pyiceberg, whose tables Unity's Iceberg catalog answers for `main`."""
        self.broken = False
        self.asked: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        """Return the status and the document for a request."""
        parts = urlsplit(path)
        where = unquote(parts.path.removeprefix(API))
        self.asked.append(f"{method} {where}" + (f" {body['operation']}" if body else ""))
        if self.broken:
            return 200, {"what": "is this"}
        if token != f"Bearer {TOKEN}":
            return 401, _error("UNAUTHENTICATED", "Invalid access token.")
        if where.startswith("/iceberg/v1/"):
            return self._of_iceberg(where.removeprefix("/iceberg/v1/"), parse_qs(parts.query))
        if where.startswith("/tables/"):
            name = where.removeprefix("/tables/")
            if name not in self.tables:
                return 404, _error("NOT_FOUND", f"Table not found: {name}")
            return 200, self._table(name)
        if where == "/temporary-table-credentials":
            if not self.may_read:
                return 403, _error("PERMISSION_DENIED", "Access denied.")
            return 200, {
                "aws_temp_credentials": self.keys,
                "azure_user_delegation_sas": None,
                "gcp_oauth_token": None,
                "expiration_time": 4_000_000_000_000,
            }
        return 404, _error("NOT_FOUND", where)

    def _table(self, name: str) -> Any:
        catalog, schema, table = name.split(".")
        return {
            "name": table,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": [],
            "comment": None,
            "properties": {},
            "owner": None,
            "created_at": 1721238005595,
            "created_by": None,
            "updated_at": 1721238005595,
            "updated_by": None,
            "table_id": "c389adfa-5c8f-497b-8f70-26c2cca4976d",
            **self.tables[name],
        }

    def _of_iceberg(self, path: str, query: Any) -> tuple[int, Any]:
        """Answer as Unity's Iceberg catalog, which finds a catalog by its prefix."""
        from pyiceberg.exceptions import NoSuchTableError

        if path == "config":
            (catalog,) = query.get("warehouse", [""])
            return 200, {"defaults": {}, "overrides": {"prefix": f"catalogs/{catalog}"}}
        parts = path.split("/")
        assert parts[:3] == ["catalogs", "main", "namespaces"]
        try:
            table = self.iceberg.load_table((parts[3], parts[5]))
        except NoSuchTableError:
            error = {"type": "NoSuchTableException", "message": "there is none", "code": 404}
            return 404, {"error": error}
        metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
        keys = {"s3.access-key-id": "of", "s3.secret-access-key": "somebody"}
        place = table.metadata_location
        return 200, {"metadata-location": place, "metadata": metadata, "config": keys}


def _error(code: str, message: str) -> Any:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code}]
    return {"error_code": code, "message": message, "stack_trace": None, "details": details}


@contextmanager
def serving_unity(**tables: dict[str, Any]) -> Generator[Unity]:
    """Serve tables until the block ends; `__` in their names are dots."""
    answers = Unity(**tables)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token, said = self.headers.get("Authorization", ""), json.loads(body or b"null")
            status, document = answers.answer(self.command, self.path, token, said)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
