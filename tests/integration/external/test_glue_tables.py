"""Iceberg tables in AWS Glue, which locates their newest metadata."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from icebergs import need_iceberg
from test_iceberg_projects import SCHEMA, rows
from test_ingestion import build
from test_object_store import Server, server
from test_unity_tables import connected, ids, printed

from persist_assets.building.builder import Builder
from persist_assets.core.errors import StorageError, UntrustedError
from persist_assets.core.trust import confined

__all__ = ["server"]  # a fixture, which tests use by its name

Make = Callable[..., Builder]
KEYS = {"PERSIST_SECRET_ID": "AKIAOFGLUEHIDDEN0001", "PERSIST_SECRET_KEY": "HIDDENkeyOfGlue042"}
VIEW = "create materialized view v as select id from events where category = 'invoices';"


def declared(server: Server, **more: str | None) -> str:
    config = {
        "catalog_type": "glue",
        "glue.region": "eu-central-1",
        "glue.endpoint": server.url,
        "glue.access-key-id": "${env:PERSIST_SECRET_ID}",
        "glue.secret-access-key": "${env:PERSIST_SECRET_KEY}",
        "table_name": "sales.events",
        **more,
    }
    config = {key: value for key, value in config.items() if value is not None}
    connectors = json.dumps([{"transport": {"name": "iceberg_input", "config": config}}])
    columns = "id bigint, category string, ts timestamp"
    return f"create external table events ({columns}) with ('connectors' = '{connectors}');{VIEW}"


@pytest.fixture
def catalog(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A catalog of the server, with the database `sales`."""
    need_iceberg()
    from pyiceberg.catalog.glue import GlueCatalog

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    keys = {"client.access-key-id": "AKIATESTTESTTESTTEST", "client.secret-access-key": "secret"}
    options = {**keys, "client.region": "eu-central-1"}
    made = GlueCatalog("c", **options, **{"glue.endpoint": server.url, "s3.endpoint": server.url})
    made.create_namespace("sales")
    yield made
    for table in made.list_tables("sales"):
        made.drop_table(table)
    made.glue.delete_database(Name="sales")


def without_keys(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Hide all credentials from AWS's libraries."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(home / name))


@pytest.mark.slow
@pytest.mark.proves("V34")
def test_a_table_of_glue_is_copied_and_followed(
    enter: Make,
    make_project: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: Server,
    catalog: Any,
) -> None:
    table = catalog.create_table("sales.events", SCHEMA, f"file://{tmp_path}/lake")
    table.append(rows((1, "invoices", 0), (2, "loans", 0)))
    without_keys(monkeypatch, tmp_path)  # the keys of the declaration are enough
    root = make_project({"m.sql": declared(server)})
    builder = enter(root)
    server.keys()
    assert build(builder) == {"v": "build"}
    assert ids(builder) == [1]
    assert server.keys() == [KEYS["PERSIST_SECRET_ID"]]
    assert build(enter(root)) == {"v": "reuse"}
    table.append(rows((3, "invoices", 1), (4, "loans", 1)))
    builder = enter(root)
    assert build(builder) == {"v": "build"}
    assert ids(builder) == [1, 3]
    events = [e for e in builder.ledger.events.fetch(limit=999) if e.kind == "external-synced"]
    assert [(e.data["read"], e.data.get("inserted")) for e in events] == [(1, None), (1, 1)]
    assert "files, by partition values and statistics" in printed(root, "external", "status")
    assert not any(key in repr(builder.project.sources) for key in KEYS.values())
    stored = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert not any(key.encode() in content for content in stored for key in KEYS.values())


@pytest.mark.slow
@pytest.mark.proves("V34")
def test_a_glue_table_in_a_bucket_has_versions_and_changes(
    make_project: Callable[..., Path], server: Server, catalog: Any
) -> None:
    table = catalog.create_table("sales.events", SCHEMA, f"{server.new_bucket()}/events")
    table.append(rows((1, "invoices", 0)))
    first = table.metadata.current_snapshot_id
    table.append(rows((9, "loans", 0), (10, "loans", 0)))
    uuid, newest = table.metadata.table_uuid, table.metadata.current_snapshot_id
    store = {"s3.endpoint": server.url, "s3.region": "eu-central-1"}
    store |= {"s3.access-key-id": "${env:PERSIST_SECRET_ID}"}
    store |= {"s3.secret-access-key": "${env:PERSIST_SECRET_KEY}"}
    reader = connected(make_project({"m.sql": declared(server, **store)}))
    assert reader.pin() == f"iceberg:{newest}:{uuid}"
    assert reader.prune(None, reader.pin()).rows == 3
    assert reader.prune("id > 5", reader.pin()).rows == 2
    assert reader.prune(None, f"iceberg:{first}:{uuid}").rows == 1
    changes = reader.changes(f"iceberg:{first}:{uuid}", reader.pin(), "id > 5", ["id"])
    assert (changes.full_read_reason, changes.only_came, changes.read.rows) == (None, True, 2)


@pytest.mark.slow
@pytest.mark.proves("V34")
def test_errors_of_glue_tables_name_their_cause_and_hide_secrets(
    make_project: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: Server,
    catalog: Any,
) -> None:
    catalog.create_table("sales.events", SCHEMA, f"file://{tmp_path}/lake")
    hive = {"Name": "hive", "Parameters": {"classification": "parquet"}}
    catalog.glue.create_table(DatabaseName="sales", TableInput=hive)

    def problem(**more: str | None) -> str:
        with pytest.raises(StorageError) as caught:
            connected(make_project({"m.sql": declared(server, **more)})).pin()
        text = f"{caught.value.message} | {caught.value.hint}"
        assert not any(key in text for key in KEYS.values())
        return text

    gone = problem(table_name="sales.gone")
    assert "Glue in eu-central-1 has no table `sales.gone` | check table_name, glue.region" in gone
    assert "has no table `other.events`" in problem(table_name="other.events")
    assert "`sales.hive` of Glue in eu-central-1 is not an Iceberg" in problem(
        table_name="sales.hive"
    )
    assert "cannot be reached" in problem(**{"glue.endpoint": "http://127.0.0.1:1"})
    server.ask("POST", "/moto-api/reset-auth", b"0")  # from now on the server checks keys
    try:
        refused = problem()
        assert "Glue in eu-central-1 refuses `sales.events`: " in refused
        assert "glue.access-key-id" in refused
        assert "glue:GetTable" in refused
    finally:
        server.ask("POST", "/moto-api/reset-auth", b"inf")
    monkeypatch.setenv("PERSIST_SECRET_KEY", "two\nlines")
    invalid = problem()
    assert "PERSIST_SECRET_KEY, which `glue.secret-access-key` refers to, is invalid" in invalid
    assert "two" not in invalid
    monkeypatch.delenv("PERSIST_SECRET_KEY")
    assert "`glue.secret-access-key` refers to the variable PERSIST_SECRET_KEY" in problem()
    without_keys(monkeypatch, tmp_path)
    no_keys: dict[str, str | None] = {"glue.access-key-id": None, "glue.secret-access-key": None}
    lacking = problem(**no_keys)
    assert "cannot be asked for `sales.events`: Unable to locate credentials" in lacking
    assert "check glue.profile-name, or glue.access-key-id" in lacking
    assert "(nobody)" in problem(**no_keys, **{"glue.profile-name": "nobody"})


@contextmanager
def answering(kind: str, message: str) -> Iterator[str]:
    """Yield the URL of a server that refuses each request as Glue does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            content = json.dumps({"__type": kind, "Message": message}).encode()
            self.send_response(400)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


@pytest.mark.proves("V34")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("AccessDeniedException", "User: arn:aws:iam::1:user/u is not authorized to perform"),
        ("ExpiredTokenException", "The security token included in the request is expired"),
        ("InvalidSignatureException", "The signature we calculated\nThe Canonical String: SENT"),
    ],
)
def test_an_access_error_of_glue_names_the_options_and_omits_the_request(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    need_iceberg()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with answering(kind, message) as url:
        text = declared(Server(url))
        with pytest.raises(StorageError, match=rf"refuses `sales\.events`: .*\({kind}\)") as caught:
            connected(make_project({"m.sql": text})).pin()
    assert "glue.session-token" in (caught.value.hint or "")
    assert message.partition("\n")[0] in caught.value.message
    assert "SENT" not in caught.value.message


@pytest.mark.proves("V34")
def test_an_untrusted_glue_endpoint_gets_no_requests(
    enter: Make, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for endpoint, place in ((server.url, server.url), (None, "glue://eu-central-1")):
        root = make_project({"m.sql": declared(server, **{"glue.endpoint": endpoint})})
        assert place in printed(root, "trust")
        builder = enter(root)
        events = next(s for s in builder.project.sources if s.name == "events")
        server.requests()
        monkeypatch.delenv("PERSIST_TRUST", raising=False)
        with confined(root), pytest.raises(UntrustedError, match=f"{place} is outside"):
            builder.observer.ingestion.connector(events).pin()
        assert server.requests() == []
