"""An S3-compatible server on loopback that says its port, and ends with what started it.

It is a process of its own: delta-rs waits for a commit without letting other Python threads run.
`GET /-/requests` answers what was asked for since it was last asked. `PUT /-/dates/BUCKET/KEY`
sets the time at which an object was last changed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Iterable

inner = DomainDispatcherApplication(create_backend_app)
requests: list[str] = []
signed: list[str] = []
keys: set[str] = set()
lock = threading.Lock()
_KEY = re.compile(r"Credential=([^/]+)/")


def application(environ: Any, start: Any) -> Iterable[bytes]:
    # A store decides atomically who was first; moto looks, and then writes.
    with lock:
        if environ["PATH_INFO"] == "/-/requests":
            start("200 OK", [])
            said = "\n".join(requests).encode()
            requests.clear()
            return [said]
        if environ["PATH_INFO"] == "/-/signed":
            start("200 OK", [])
            said = "\n".join(signed).encode()
            signed.clear()
            return [said]
        if environ["PATH_INFO"] == "/-/keys":
            start("200 OK", [])
            said = "\n".join(sorted(keys)).encode()
            keys.clear()
            return [said]
        if environ["PATH_INFO"].startswith("/-/dates/"):
            bucket, _, key = environ["PATH_INFO"].removeprefix("/-/dates/").partition("/")
            size = int(environ.get("CONTENT_LENGTH") or 0)
            moment = datetime.fromisoformat(environ["wsgi.input"].read(size).decode())
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys[key].last_modified = moment
            start("200 OK", [])
            return []
        if credential := _KEY.search(environ.get("HTTP_AUTHORIZATION", "")):
            keys.add(credential[1])
        if "HTTP_AUTHORIZATION" in environ:
            signed.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        return list(inner(environ, start))


class Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        pass


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serving = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(serving.server_port, flush=True)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serving.serve_forever()
