"""Iceberg tables in a REST catalog: persist reads its newest metadata and trusts nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from iceberg_rest import TOKEN, Catalog, serving
from icebergs import Written
from test_iceberg_projects import SCHEMA, rows
from test_ingestion import build

from persist_assets.building.builder import Builder
from persist_assets.core.errors import StorageError, UntrustedError
from persist_assets.core.trust import confined

Make = Callable[..., Builder]
VIEW = "create materialized view v as select id from events where category = 'invoices';"


def declared(catalog: Catalog, name: str = "n.t", **more: str) -> str:
    config = {
        "catalog_type": "rest",
        "rest.uri": catalog.url,
        "rest.token": "${env:PERSIST_TOKEN_LAKE}",
        "table_name": name,
        **more,
    }
    connectors = json.dumps([{"transport": {"name": "iceberg_input", "config": config}}])
    columns = "id bigint, category string, ts timestamp"
    return f"create external table events ({columns}) with ('connectors' = '{connectors}');{VIEW}"


def ids(builder: Builder) -> list[int]:
    return sorted(row.id for row in builder.read(builder.project.persisted[0]).collect())


@pytest.mark.slow
@pytest.mark.proves("V13")
def test_a_table_in_a_rest_catalog_is_copied_and_synced_incrementally(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_TOKEN_LAKE", TOKEN)
    lake = Written(tmp_path / "lake", SCHEMA)
    (lake.root / "metadata" / "version-hint.text").unlink()  # the metadata is only in the catalog
    lake.table.append(rows((1, "invoices", 0), (2, "loans", 0)))
    with serving(lake.catalog) as catalog:
        catalog.config = {"py-io-impl": "nowhere.Reader", "s3.endpoint": "http://127.0.0.1:9"}
        root = make_project({"m.sql": declared(catalog)})
        builder = enter(root)
        assert build(builder) == {"v": "build"}
        assert ids(builder) == [1]
        assert build(enter(root)) == {"v": "reuse"}
        lake.table.append(rows((3, "invoices", 1), (4, "loans", 1)))
        builder = enter(root)
        assert build(builder) == {"v": "build"}
        assert ids(builder) == [1, 3]
        events = [e for e in builder.ledger.events.fetch(limit=999) if e.kind == "external-synced"]
        assert [(e.data["read"], e.data.get("inserted")) for e in events] == [(1, None), (1, 1)]
        assert catalog.asked
    assert TOKEN not in repr(builder.project.sources)
    stored = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in stored)
    # The catalog does not respond.
    with pytest.raises(StorageError, match="cannot open the Iceberg table"):
        build(enter(root))


@pytest.mark.proves("V13")
def test_catalog_errors_are_reported_with_their_cause(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Written(tmp_path / "lake", SCHEMA)
    with serving(lake.catalog) as catalog:
        monkeypatch.setenv("PERSIST_TOKEN_LAKE", "another")
        root = make_project({"m.sql": declared(catalog)})
        with pytest.raises(StorageError, match=r"refuses `n\.t`: .*no token") as caught:
            build(enter(root))
        assert "check rest.token" in (caught.value.hint or "")
        monkeypatch.setenv("PERSIST_TOKEN_LAKE", "two\nlines")  # no error shows it
        with pytest.raises(
            StorageError, match=r"PERSIST_TOKEN_LAKE, which `rest\.token`"
        ) as caught:
            build(enter(root))
        assert "two" not in caught.value.message
        monkeypatch.setenv("PERSIST_TOKEN_LAKE", TOKEN)
        gone = make_project({"m.sql": declared(catalog, "n.gone")}, name="gone")
        with pytest.raises(StorageError, match=r"has no table `n\.gone`"):
            build(enter(gone))
        catalog.broken = True
        with pytest.raises(StorageError, match="does not answer as one of Iceberg"):
            build(enter(root))


@pytest.mark.proves("V13")
def test_untrusted_catalogs_and_redirects_to_untrusted_servers_are_rejected(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_TOKEN_LAKE", TOKEN)
    lake = Written(tmp_path / "lake", SCHEMA)
    with serving(lake.catalog) as catalog, serving(lake.catalog) as other:
        root = make_project({"m.sql": declared(catalog)})
        builder = enter(root)
        (events, *_) = builder.project.sources
        monkeypatch.delenv("PERSIST_TRUST")
        with confined(root), pytest.raises(UntrustedError, match="not trusted"):
            builder.observer.ingestion.connector(events).pin()
        assert catalog.asked == []
        monkeypatch.setenv("PERSIST_TRUST", catalog.url.removesuffix("/api"))
        catalog.overrides = {"uri": other.url}
        with confined(root), pytest.raises(UntrustedError, match="not trusted"):
            builder.observer.ingestion.connector(events).pin()
        assert catalog.asked
        assert other.asked == []


@pytest.mark.proves("V13")
def test_a_catalog_chooses_no_code_and_no_server_for_secrets(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_TOKEN_LAKE", "client:secret")
    lake = Written(tmp_path / "lake", SCHEMA)
    lake.table.append(rows((1, "invoices", 0)))
    ran = tmp_path / "ran"
    run = {"type": "custom", "impl": "subprocess.run", "custom": {"args": ["touch", str(ran)]}}
    with serving(lake.catalog) as catalog, serving(lake.catalog) as other:
        tokens = {"rest.oauth2-server-uri": f"{catalog.url}/tokens"}
        text = declared(catalog, **tokens).replace("rest.token", "rest.credential")
        builder = enter(make_project({"m.sql": text}))
        (events, *_) = builder.project.sources
        connector = builder.observer.ingestion.connector(events)
        version = connector.pin()
        for overrides in ({"auth": run}, {"oauth2-server-uri": f"{other.url}/token"}):
            catalog.overrides = overrides
            assert connector.pin() == version
        for overrides in (None, {"prefix": 7}, {"uri": ["x"]}):
            catalog.overrides = overrides
            with pytest.raises(StorageError, match="does not answer as one of Iceberg"):
                connector.pin()
        catalog.overrides = {}
        monkeypatch.setenv("PERSIST_TRUST", catalog.url.removesuffix("/api"))
        with confined(builder.settings.root):
            assert connector.pin() == version
        elsewhere = {"rest.oauth2-server-uri": f"{other.url}/tokens"}
        text = declared(catalog, **elsewhere).replace("rest.token", "rest.credential")
        theirs = enter(make_project({"m.sql": text}, name="theirs"))
        (events, *_) = theirs.project.sources
        with confined(theirs.settings.root), pytest.raises(UntrustedError, match="not trusted"):
            theirs.observer.ingestion.connector(events).pin()
        catalog.redirect = other.url
        with pytest.raises(StorageError, match="redirects"):
            connector.pin()
        assert other.asked == []
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.proves("V13")
def test_an_environment_may_override_the_location_of_a_catalog_table(
    enter: Make, make_project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_TOKEN_LAKE", TOKEN)
    lake, copy = Written(tmp_path / "lake", SCHEMA), Written(tmp_path / "copy", SCHEMA)
    lake.put(rows((1, "invoices", 0)))
    copy.put(rows((7, "invoices", 0)))
    with serving(lake.catalog) as catalog:
        settings = f'[env.prod]\n[env.dev.raw]\nevents = "{copy.root}"\n'
        root = make_project({"m.sql": declared(catalog)}, settings)
        build(prod := enter(root, "prod"))
        assert ids(prod) == [1]
        catalog.asked.clear()
        build(dev := enter(root, "dev"))
        assert ids(dev) == [7]
        assert catalog.asked == []
