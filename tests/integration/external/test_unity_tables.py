"""Delta tables of Unity Catalog: found by name, and read with credentials that it issues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from icebergs import Written
from test_iceberg_projects import SCHEMA, rows
from test_ingestion import build
from test_object_store import Server, server
from typer.testing import CliRunner
from unity_server import TOKEN, Unity, serving_unity

from persist_assets.building.builder import Builder
from persist_assets.cli import app
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import StorageError, UntrustedError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.trust import confined
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.access import spark_access

__all__ = ["server"]  # a fixture: it is used by its name

Make = Callable[..., Builder]
VIEW = "create materialized view v as select id from events where category = 'invoices';"


def declared(unity: Unity, **more: str) -> str:
    config = {
        "uri": "uc://main.sales.events",
        "unity_workspace_url": unity.url,
        "unity_access_token": "${env:PERSIST_TOKEN_UNITY}",
        **more,
    }
    connectors = json.dumps([{"transport": {"name": "delta_table_input", "config": config}}])
    columns = "id bigint, category string, ts timestamp"
    return f"create external table events ({columns}) with ('connectors' = '{connectors}');{VIEW}"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_TOKEN_UNITY", TOKEN)


def ids(builder: Builder) -> list[int]:
    return sorted(row.id for row in builder.read(builder.project.persisted[0]).collect())


def printed(root: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["--project", str(root), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return done.output


def connected(root: Path) -> Any:
    """Return the connector of the only external table; it reads no rows."""
    settings = load_settings(root)
    source = next(s for s in require(load_project(settings)).sources if s.name == "events")
    assert source.raw is not None

    def no_session() -> Any:
        raise AssertionError("no rows are read here")

    place = settings.resolve(source.raw.location or "")
    return connect(source.raw, place, source.columns, no_session, settings.timezone)


@pytest.mark.slow
@pytest.mark.proves("V35")
def test_a_table_of_unity_is_copied_and_followed(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path
) -> None:
    lake = tmp_path / "la ke"
    write_deltalake(lake, rows((1, "invoices", 0), (2, "loans", 0)))
    with serving_unity(main__sales__events={"storage_location": lake.as_uri()}) as unity:
        root = make_project({"m.sql": declared(unity)})
        builder = enter(root)
        assert build(builder) == {"v": "build"}
        assert ids(builder) == [1]
        assert build(enter(root)) == {"v": "reuse"}
        write_deltalake(lake, rows((3, "invoices", 1), (4, "loans", 1)), mode="append")
        builder = enter(root)
        assert build(builder) == {"v": "build"}
        assert ids(builder) == [1, 3]
        events = [e for e in builder.ledger.events.fetch(limit=999) if e.kind == "external-synced"]
        assert [(e.data["read"], e.data.get("inserted")) for e in events] == [(1, None), (1, 1)]
        # A replaced table is copied in full.
        other = tmp_path / "other"
        write_deltalake(other, rows((7, "invoices", 0)))
        unity.tables["main.sales.events"] = {"storage_location": other.as_uri()}
        builder = enter(root)
        assert build(builder) == {"v": "build"}
        assert ids(builder) == [7]
        # Files on a disk need no credentials.
        assert {*unity.asked} == {"GET /tables/main.sales.events"}
        assert "files, by partition values and statistics" in printed(root, "external", "status")
    assert TOKEN not in repr(builder.project.sources)
    stored = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in stored)
    # Without a catalog, the build fails.
    with pytest.raises(StorageError, match="does not answer as Unity Catalog"):
        build(enter(root))


def in_bucket(server: Server) -> str:
    """Write a table with two files and two versions into a new bucket; return its URL."""
    place = f"{server.new_bucket()}/events"
    options = {"AWS_ENDPOINT": server.url, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}
    write_deltalake(place, rows((1, "invoices", 0)), storage_options=options)
    write_deltalake(place, rows((5, "loans", 0)), mode="append", storage_options=options)
    return place


def store(server: Server) -> dict[str, str]:
    """Return the options of the server without keys."""
    return {"aws_endpoint": server.url, "aws_region": "eu-central-1", "aws_allow_http": "true"}


@pytest.mark.proves("V35")
def test_files_in_a_store_are_read_with_credentials_issued_by_unity(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    place = in_bucket(server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with serving_unity(main__sales__events={"storage_location": place}) as unity:
        unity.keys = {
            "access_key_id": "ASIAISSUEDBYUNITY001",
            "secret_access_key": "HIDDENissued",
            "session_token": "HIDDENsession",
        }
        table = connected(make_project({"m.sql": declared(unity, **store(server))}))
        server.keys()
        newest = table.pin()
        assert table.prune(None, newest).files == 2
        assert table.prune("id > 3", newest).files == 1
        assert table.prune(None, table._log.full_name(table._log.open(0))).rows == 1
        assert server.keys() == ["ASIAISSUEDBYUNITY001"]
        assert unity.asked == [
            "GET /tables/main.sales.events",
            "POST /temporary-table-credentials READ",
        ]
        options = spark_access(table._store_access)
        assert options["fs.s3a.access.key"] == "ASIAISSUEDBYUNITY001"
        assert options["fs.s3a.session.token"] == "HIDDENsession"
        assert options["fs.s3a.endpoint"] == server.url
        assert not any(TOKEN in value for value in options.values())


@pytest.mark.proves("V35")
def test_declared_credentials_take_precedence(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    place = in_bucket(server)
    monkeypatch.setenv("PERSIST_SECRET_ID", "AKIAOFTHEDECLARATION")
    monkeypatch.setenv("PERSIST_SECRET_KEY", "secret")
    own = {
        "aws_access_key_id": "${env:PERSIST_SECRET_ID}",
        "aws_secret_access_key": "${env:PERSIST_SECRET_KEY}",
    }
    with serving_unity(main__sales__events={"storage_location": place}) as unity:
        table = connected(make_project({"m.sql": declared(unity, **store(server), **own)}))
        server.keys()
        assert table.prune(None, table.pin()).files == 2
        assert server.keys() == ["AKIAOFTHEDECLARATION"]
        assert unity.asked == ["GET /tables/main.sales.events"]


@pytest.mark.proves("V35")
def test_errors_of_unity_tables_are_reported(
    make_project: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lake = tmp_path / "managed"
    write_deltalake(lake, rows((1, "invoices", 0)))
    (log,) = (lake / "_delta_log").glob("*.json")
    feature = '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["catalogManaged"],"writerFeatures":["catalogManaged","inCommitTimestamp"]}}\n'
    lines = [feature if '"protocol"' in line else line for line in log.read_text().splitlines(True)]
    log.write_text("".join(lines))

    def problem(root: Path) -> str:
        with pytest.raises(StorageError) as caught:
            connected(root).pin()
        assert TOKEN not in str(caught.value)
        return f"{caught.value.message} | {caught.value.hint}"

    with serving_unity(
        main__sales__events={"storage_location": "s3://lake/events"},
        main__sales__view={"table_type": "VIEW", "data_source_format": None},
        main__sales__text={"data_source_format": "CSV", "storage_location": "s3://lake/text"},
        main__sales__managed={"table_type": "MANAGED", "storage_location": lake.as_uri()},
    ) as unity:

        def of(name: str) -> str:
            changed = {"uri": f"uc://main.sales.{name}"}
            return problem(make_project({"m.sql": declared(unity, **changed)}))

        assert "has no table `main.sales.gone`: Table not found: main.sales.gone" in of("gone")
        assert "is a VIEW, which has no files" in of("view")
        assert "has the format CSV" in of("text")
        assert "has commits that only its catalog knows (catalogManaged)" in of("managed")
        assert "issues no keys for `main.sales.events` | name your own" in of("events")
        unity.may_read = False
        refused = of("events")
        assert "refuses `main.sales.events`: Access denied." in refused
        assert "check unity_access_token: its user needs SELECT" in refused
        monkeypatch.setenv("PERSIST_TOKEN_UNITY", "another")
        assert "refuses `main.sales.events`: Invalid access token. | check unity_acc" in of(
            "events"
        )
        for invalid in ("two words", "line\nbreak"):
            monkeypatch.setenv("PERSIST_TOKEN_UNITY", invalid)
            text = of("events")
            assert "PERSIST_TOKEN_UNITY, which `unity_access_token` refers to, is invalid" in text
            assert invalid not in text
        monkeypatch.delenv("PERSIST_TOKEN_UNITY")
        assert "`unity_access_token` refers to the variable PERSIST_TOKEN_UNITY" in of("events")
        monkeypatch.setenv("PERSIST_TOKEN_UNITY", TOKEN)
        unity.broken = True
        assert "does not answer as Unity Catalog" in of("events")


@pytest.mark.proves("V35")
def test_locations_named_by_unity_must_be_trusted(
    enter: Make, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_unity(main__sales__events={"storage_location": "s3://others/events"}) as unity:
        unity.keys = {"access_key_id": "A", "secret_access_key": "B", "session_token": "C"}
        root = make_project({"m.sql": declared(unity)})
        builder = enter(root)
        events = next(s for s in builder.project.sources if s.name == "events")
        monkeypatch.delenv("PERSIST_TRUST")
        with confined(root), pytest.raises(UntrustedError, match="not trusted"):
            builder.observer.ingestion.connector(events).pin()
        assert unity.asked == []
        assert unity.url in printed(root, "trust")
        monkeypatch.setenv("PERSIST_TRUST", unity.url)
        with confined(root), pytest.raises(UntrustedError, match="s3://others is outside"):
            builder.observer.ingestion.connector(events).pin()
        assert unity.asked


@pytest.mark.proves("V35")
def test_an_environment_may_replace_a_unity_table_by_a_local_one(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "copy", rows((7, "invoices", 0)))
    with serving_unity() as unity:
        settings = f'[env.dev.raw]\nevents = "{tmp_path / "copy"}"\n'
        table = connected(make_project({"m.sql": declared(unity)}, settings))
        assert table.prune(None, table.pin()).rows == 1
        assert unity.asked == []


@pytest.mark.proves("V35")
def test_unitys_iceberg_catalog_is_a_rest_catalog(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    lake = Written(tmp_path / "lake", SCHEMA)
    lake.put(rows((1, "invoices", 0)))
    lake.put(rows((9, "loans", 0)))
    with serving_unity() as unity:
        unity.iceberg = lake.catalog
        config = {
            "catalog_type": "rest",
            "rest.uri": f"{unity.url}/api/2.1/unity-catalog/iceberg",
            "rest.warehouse": "main",
            "rest.token": "${env:PERSIST_TOKEN_UNITY}",
            "table_name": "n.t",
        }
        connectors = json.dumps([{"transport": {"name": "iceberg_input", "config": config}}])
        columns = "id bigint, category string, ts timestamp"
        text = f"create external table events ({columns}) with ('connectors' = '{connectors}');"
        table = connected(make_project({"m.sql": text}))
        newest = table.pin()
        assert newest == lake.head()
        assert table.prune("id > 5", newest).files == 1
        assert unity.asked[1] == "GET /iceberg/v1/catalogs/main/namespaces/n/tables/t"
        gone = connected(make_project({"m.sql": text.replace("n.t", "n.gone")}))
        with pytest.raises(StorageError, match=r"has no table `n\.gone`"):
            gone.pin()
