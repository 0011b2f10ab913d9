"""Secrets of external tables are used to read the tables, and never stored or printed."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from commands import persist
from deltalake import DeltaTable, write_deltalake
from icebergs import Written, need_iceberg
from test_iceberg_projects import SCHEMA, rows
from test_ingestion import build
from test_object_store import Server, server

from persist_assets.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.building.builder import Builder

__all__ = ["server"]  # a fixture, which tests use by its name

SECRETS = {
    "PERSIST_SECRET_ID": "AKIAX5QHIDDEN7IDENT1",
    "PERSIST_SECRET_KEY": "wJalrXUtnFEMIxHIDDENxKEY42",
    "PERSIST_SECRET_TOKEN": "FwoGZXIvYXdzHIDDENxTOKEN43",
}
VIEWS = """
--@ persist
create view invoices as select id, note from events where category = 'invoices';
create view known as select id from events where category in ('invoices', 'loans');
"""


def declared(connector: str, uri: str, endpoint: str) -> str:
    """Return a program whose external table has connection options of all kinds."""
    config = {
        "uri": uri,
        "aws_access_key_id": "${env:PERSIST_SECRET_ID}",
        "aws_secret_access_key": "${env:PERSIST_SECRET_KEY}",
        "aws_session_token": "${env:PERSIST_SECRET_TOKEN}",
        "aws_region": "eu-central-1",
        "aws_endpoint": endpoint,
        "aws_allow_http": True,
    }
    connectors = json.dumps([{"transport": {"name": connector, "config": config}}])
    columns = "id bigint, category string, ts timestamp, note string"
    return f"create external table events ({columns}) with ('connectors' = '{connectors}');{VIEWS}"


def leaks(text: str | bytes) -> list[str]:
    """Return the secrets that a text contains, in whole or in greater part."""
    found = text if isinstance(text, bytes) else text.encode()
    return [name for name, value in SECRETS.items() if value[6:].encode() in found]


def files_that_leak(*roots: Path) -> list[tuple[str, list[str]]]:
    """Return the files that contain a secret, compressed or not."""
    found: list[tuple[str, list[str]]] = []
    for path in (p for root in roots for p in root.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content += gzip.decompress(content)
        if told := leaks(content):
            found.append((str(path), told))
    for path in (p for root in roots for p in root.rglob("*.db")):
        with closing(sqlite3.connect(path)) as db:  # values may cross pages of the file
            tables = [
                t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            told = {
                name
                for t in tables
                for row in db.execute(f'SELECT * FROM "{t}"')
                for name in leaks(repr(row))
            }
            if told:
                found.append((f"{path}, its tables", sorted(told)))
    return found


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return SECRETS


class DeltaLake:
    """A Delta table that is reached with secrets."""

    connector = "delta_table_input"

    def __init__(self, root: Path) -> None:
        self.uri = str(root / "lake")

    def put(self, *triples: tuple[int, str, int]) -> None:
        write_deltalake(self.uri, rows(*triples), mode="append")

    def delete(self, number: int) -> None:
        DeltaTable(self.uri).delete(f"id = {number}")


class IcebergLake:
    """An Iceberg table that is reached with secrets."""

    connector = "iceberg_input"

    def __init__(self, root: Path) -> None:
        self.table = Written(root / "lake", SCHEMA)
        self.uri = str(self.table.root)

    def put(self, *triples: tuple[int, str, int]) -> None:
        self.table.put(rows(*triples))

    def delete(self, number: int) -> None:
        self.table.delete([number])


@pytest.mark.slow
@pytest.mark.parametrize("of", [DeltaLake, IcebergLake])
def test_builds_and_their_failures_leak_no_secrets(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    load: Callable[..., dg.Definitions],
    secrets: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    of: type[DeltaLake | IcebergLake],
) -> None:
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "persist_assets")
    root = make_project({})
    lake = of(root)
    (root / "sources" / "m.sql").write_text(declared(of.connector, lake.uri, "http://127.0.0.1:9"))
    lake.put((1, "invoices", 0), (2, "deposits", 0), (3, "loans", 1))
    said: list[str] = []
    builder = enter(root)
    said += [repr(source) for source in builder.project.sources]
    build(builder)
    # Follow changes, read in full, and query rows that the copy lacks.
    lake.put((4, "invoices", 2), (5, "loans", 2))
    build(enter(root))
    lake.delete(1)
    build(enter(root))
    reader = enter(root)
    events, known = (reader.project.by_key["m", n] for n in ("events", "known"))
    frame = reader.read(known)
    assert sorted(r.id for r in frame.collect()) == [3, 4, 5]
    said += [repr(frame.schema), repr(reader.observer.ingestion.find(events))]
    # Dagster records a run that succeeds and one that fails.
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        job = load(root).resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance).success
        (tmp_path / "away").mkdir()
        lake.put((6, "invoices", 3))
        for n, file in enumerate(Path(lake.uri).rglob("*.parquet")):
            file.rename(tmp_path / "away" / str(n))
        failed = job.execute_in_process(instance=instance, raise_on_error=False)
        assert not failed.success
        said += [repr(event) for event in failed.all_events]
    with pytest.raises(StorageError) as gone:
        build(enter(root))
    monkeypatch.delenv("PERSIST_SECRET_KEY")
    with pytest.raises(
        StorageError, match="the variable PERSIST_SECRET_KEY, which is not set"
    ) as unset:
        build(enter(root))
    said += [repr(vars(e.value)) + str(e.getrepr(showlocals=False)) for e in (gone, unset)]
    assert caplog.records
    assert leaks(caplog.text) == []
    assert leaks("".join(capfd.readouterr())) == []
    assert leaks("\n".join(said)) == []
    assert files_that_leak(tmp_path) == []


def iceberg_in(bucket: str, server: Server, tmp_path: Path) -> str:
    """Write an Iceberg table of two rows to a bucket, and return its location."""
    from pyiceberg.catalog.sql import SqlCatalog

    access = {
        "s3.endpoint": server.url,
        "s3.region": "eu-central-1",
        "s3.access-key-id": SECRETS["PERSIST_SECRET_ID"],
        "s3.secret-access-key": SECRETS["PERSIST_SECRET_KEY"],
    }
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=bucket, **access)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA, location=f"{bucket}/berg")
    table.append(rows((1, "invoices", 0), (2, "loans", 0)))
    hint = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
    place = f"/{bucket.removeprefix('s3://')}/berg/metadata/version-hint.text"
    server.ask("PUT", place, hint.encode())
    return f"{bucket}/berg"


@pytest.mark.slow
def test_commands_use_secrets_and_never_print_or_store_them(
    make_project: Callable[..., Path],
    secrets: Mapping[str, str],
    server: Server,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    need_iceberg()
    bucket = server.new_bucket()
    options = {
        "AWS_ENDPOINT": server.url,
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": secrets["PERSIST_SECRET_ID"],
        "AWS_SECRET_ACCESS_KEY": secrets["PERSIST_SECRET_KEY"],
    }
    told = rows((1, "invoices", 0), (2, "deposits", 0))
    write_deltalake(f"{bucket}/events", told, storage_options=options)
    root = make_project({"m.sql": declared("delta_table_input", f"{bucket}/events", server.url)})
    lost = declared("delta_table_input", "s3://no-such-bucket/events", server.url)
    (root / "sources" / "n.sql").write_text(
        lost.replace("events", "lost").replace("view ", "view of_")
    )
    berg = iceberg_in(bucket, server, tmp_path)
    bergs = declared("iceberg_input", berg, server.url).replace("events", "bergs")
    (root / "sources" / "o.sql").write_text(bergs.replace("view ", "view iced_"))
    # Plans reach the store; builds and queries fail, because Spark has no jar for it.
    asked = {
        ("-v", "plan", "--json"): 0,
        ("external", "status"): 0,
        ("show", "events", "--json"): 0,
        ("-v", "build", "invoices"): 6,
        ("query", "select * from known", "--json"): 6,
        ("events", "--json"): 0,
    }
    server.requests()
    for command, code in asked.items():
        done = persist(*command, cwd=root)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        assert leaks(done.stdout + done.stderr) == [], command
        if "plan" in command:
            external = {e["source_id"]: e for e in json.loads(done.stdout)["external"]}
            assert external["events@sources/m.sql"]["read"]["rows"] == 2
            assert external["bergs@sources/o.sql"]["read"]["rows"] == 2
            assert external["lost@sources/n.sql"]["error"]
    assert any("/events/_delta_log" in request for request in server.requests())
    assert files_that_leak(root) == []
    assert leaks("".join(capfd.readouterr())) == []
