"""S3-compatible servers on loopback, well-behaved and not, and what tests put into their buckets."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from persist_assets.core.object_stores import Store
from persist_assets.storage.delta_commit import Staged, find_staged
from persist_assets.storage.files import know_stores, reached
from persist_assets.storage.types import delta_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

STRUCT = {
    "type": "struct",
    "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
}
KEY, SECRET = "AKIATESTTESTTESTTEST", "secret"


@dataclass
class Server:
    """An S3-compatible server (`s3_server.py`)."""

    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_bucket(self) -> str:
        """Return the URI of a new bucket, which is known from now on."""
        # A process knows one store by each name, and several servers run in one test process.
        name = f"lake-{urlsplit(self.url).port}-{next(self._numbers)}"
        self.ask("PUT", f"/{name}")
        know_stores([Store(name, self.url, "eu-central-1")])
        return f"s3://{name}"

    def ask(self, method: str, path: str, body: bytes = b"") -> str:
        credential = f"{KEY}/20260101/us-east-1/s3/aws4_request"
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}",
            "Content-Type": "application/octet-stream",
        }
        with urlopen(Request(self.url + path, body, headers, method=method)) as answer:
            return answer.read().decode()

    def requests(self) -> list[str]:
        """Return what was asked for since this was last called."""
        return self.ask("GET", "/-/requests").splitlines()

    def signed(self) -> list[str]:
        """Return the requests with a signature since this was last called."""
        return self.ask("GET", "/-/signed").splitlines()

    def date(self, location: str, moment: str) -> None:
        """Set the time at which an object was last changed."""
        self.ask("PUT", f"/-/dates/{location.removeprefix('s3://')}", moment.encode())

    def keys(self) -> list[str]:
        """Return the keys with which requests were signed since this was last called."""
        return self.ask("GET", "/-/keys").splitlines()


@dataclass
class Proxy(Server):
    """A proxy before such a server that misbehaves as it is told (`s3_proxy.py`)."""

    def misbehave(self, act: str, method: str = ".*", path: str = "", times: int = 10**6) -> None:
        """Let this become of so many of the requests that fit; of all others nothing."""
        rule = {"act": act, "method": method, "path": path, "times": times}
        self.ask("PUT", "/-/rules", json.dumps(rule).encode())

    def behave(self) -> int:
        """Misbehave no more; return how often it has."""
        return int(self.ask("DELETE", "/-/rules"))


@contextmanager
def serving(program: str, *arguments: str) -> Iterator[str]:
    """Yield the URL of a server that is a program among the tests, with credentials for it."""
    command = [sys.executable, str(ROOT / "tests" / "support" / program), *arguments]
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdin and process.stdout
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def put(location: str, content: bytes) -> None:
    with reached(location) as (system, path), system.open_output_stream(path) as file:
        file.write(content)


def parquet(location: str, **columns: object) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    put(location, buffer.getvalue())


def stage(root: str, uid: str, rows: int) -> Staged:
    """Write what Spark would write, and stage it."""
    parquet(f"{root}/{uid}/part-0.parquet", a=pa.array(range(rows), pa.int64()))
    return find_staged(root, uid, delta_schema(STRUCT))
