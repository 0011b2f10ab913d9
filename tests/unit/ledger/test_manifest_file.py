"""The content of manifest files, and the errors in invalid ones."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.digests import digest_connection
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, RawVersion, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.manifest_file import manifest_document, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ID = "ab" * 32
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
SNAPSHOT = Snapshot(
    build_uid="uid1",
    source_id="p@sources/m.sql",
    build_id=ID,
    table="p-abab",
    version=3,
    as_of=(RawVersion("raw", "files:1"),),
    content="2:x",
    rows=2,
    bytes=70,
    built_at=NOW,
    columns=(Column("a", "bigint"),),
    watermark=None,
    inputs=(RawVersion("raw", "files:1"),),
)
BUILD = Build(
    *("entry", SNAPSHOT.source_id, ID, "said", "dev", None, "succeeded", "built", NOW, NOW),
    snapshot=SNAPSHOT,
)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return manifest_document(load_settings(tmp_path, environ={}), {ID: BUILD}, {})


def reasons(text: str) -> list[str]:
    return [r.reason for r in parse_manifest(text).refused]


def test_an_exported_manifest_contains_all_that_another_ledger_needs(
    document: dict[str, Any], tmp_path: Path
) -> None:
    read = parse_manifest(json.dumps(document))
    assert (read.refused, read.strict) == ((), False)
    (entry,) = read.entries
    claim = entry.claim
    assert claim is not None
    assert (entry.build_id, entry.source_id) == (ID, SNAPSHOT.source_id)
    assert entry.path == str(tmp_path / ".persist" / "warehouse" / "p-abab")
    for name in ("build_uid", "as_of", "inputs", "content", "rows", "bytes", "built_at"):
        assert getattr(claim, name) == getattr(SNAPSHOT, name), name
    assert (claim.columns, claim.watermark) == (SNAPSHOT.columns, None)
    assert (entry.version, claim.definition) == (3, "said")


def test_an_incomplete_entry_has_no_claim(document: dict[str, Any]) -> None:
    entry = document["entries"][ID]
    for key in ("asOf", "digest", "buildUid"):
        document["entries"][ID] = {k: v for k, v in entry.items() if k not in (key, "digest")}
        (read,) = parse_manifest(json.dumps(document)).entries
        assert read.claim is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ("[" * 200_000, "invalid JSON"),
        ("[]", "it must be a JSON object"),
        ("{}", "`entries` must be an object"),
        ('{"entries": []}', "`entries` must be an object"),
        ('{"entries": {}, "strict": "yes"}', "`strict` must be true or false"),
        ('{"entries": {"a": {}, "a": {}}}', "it contains `a` twice"),
        ('{"entries": {"a": {"version": 1, "version": 2}}}', "it contains `version` twice"),
    ],
)
def test_invalid_manifests_are_reported(text: str, says: str) -> None:
    (reason,) = reasons(text)
    assert says in reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: [], "it must be an object"),
        (lambda e: {"tableName": "malloy.t"}, "it was not written by persist_assets"),
        (
            lambda e: {k: v for k, v in e.items() if k != "tableName"},
            "`tableName` must be a string",
        ),
        (lambda e: {**e, "version": "3"}, "`version` must be an integer"),
        (lambda e: {**e, "version": True}, "`version` must be an integer"),
        (lambda e: {**e, "version": -1}, "`version` must be an integer"),
        (lambda e: {**e, "version": 4}, "`tableName` names a different table or version"),
        (lambda e: {**e, "rows": 3}, "it has been changed since it was written"),
        (lambda e: {**e, "asOf": [["raw", "files:2"]]}, "it has been changed"),
        (lambda e: {**e, "asOf": {"raw": "files:1"}}, "`asOf` must be a list of pairs"),
        (lambda e: {**e, "columns": [["a"]]}, "`columns` must be a list of pairs"),
        (lambda e: {**e, "builtAt": "yesterday"}, "`builtAt` must be a timestamp"),
        (lambda e: {**e, "builtAt": "2026-01-02T03:04:05"}, "`builtAt` must be a timestamp"),
        (lambda e: {**e, "buildUid": "../x"}, "`buildUid` must be letters and digits"),
        (lambda e: {**e, "path": "x", "tableName": "delta.`x@v3`"}, "`path` must be absolute"),
        (
            lambda e: {**e, "path": "/a/../b", "tableName": "delta.`/a/../b@v3`"},
            "`path` must be absolute",
        ),
    ],
)
def test_errors_in_an_entry_are_reported(
    document: dict[str, Any], change: Callable[[Any], Any], says: str
) -> None:
    document["entries"][ID] = change(document["entries"][ID])
    read = parse_manifest(json.dumps(document))
    assert read.entries == ()
    (refused,) = read.refused
    assert refused.build_id == ID
    assert says in refused.reason


MALLOYS = "12" * 32
OTHER = "cd" * 32


@pytest.fixture
def named(tmp_path: Path) -> dict[str, Any]:
    """Return a document with two tables, one of which has an entry for Malloy's own tools."""
    settings = load_settings(tmp_path, environ={})
    other = replace(BUILD, build_id=OTHER, snapshot=replace(SNAPSHOT, build_id=OTHER, version=4))
    malloy = {MALLOYS: ID, "34" * 32: "56" * 32}
    return manifest_document(settings, {ID: BUILD, OTHER: other}, malloy)


def test_malloys_own_tools_find_a_table_by_an_entry_with_its_build_id(
    named: dict[str, Any], tmp_path: Path
) -> None:
    entries = named["entries"]
    assert entries.keys() == {ID, OTHER, MALLOYS}, "and none for what is not published"
    found = {k: v for k, v in entries[MALLOYS].items() if k != "digest"}
    assert found == {"tableName": entries[ID]["tableName"], "version": 3, "buildId": ID}
    connection = digest_connection(load_settings(tmp_path, environ={}).connection)
    assert named["connections"] == {"spark": connection}
    read = parse_manifest(json.dumps(named))
    assert (read.refused, read.malloy) == ((), ((MALLOYS, ID),))
    assert {e.build_id for e in read.entries} == {ID, OTHER}


def moved(entries: dict[str, Any], **values: Any) -> None:
    entries[MALLOYS] |= values


def renamed(entries: dict[str, Any], name: str) -> None:
    entries[name] = entries.pop(MALLOYS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: moved(e, buildId=OTHER), "it has been changed since it was written"),
        (
            lambda e: moved(e, buildId=OTHER, version=4, tableName=e[OTHER]["tableName"]),
            "it has been changed since it was written",
        ),
        (lambda e: moved(e, version=4), "it has been changed since it was written"),
        (lambda e: moved(e, buildId=None), "it has been changed since it was written"),
        (lambda e: moved(e, buildId=[ID]), "it has been changed since it was written"),
        (lambda e: e[MALLOYS].pop("digest"), "it has been changed since it was written"),
        (lambda e: e[MALLOYS].pop("buildId"), "it lacks the table or its version"),
        (lambda e: renamed(e, "78" * 32), "it has been changed since it was written"),
        (lambda e: e.pop(ID), f"it names {ID}, which has no entry"),
        (
            lambda e: e.update({ID: e[OTHER]}),
            f"it names a different table or version than the entry of {ID}",
        ),
    ],
)
def test_modified_entries_for_malloys_own_tools_are_rejected(
    named: dict[str, Any], change: Callable[[Any], Any], says: str
) -> None:
    change(named["entries"])
    read = parse_manifest(json.dumps(named))
    assert read.malloy == ()
    assert any(says in r.reason for r in read.refused)


def test_all_errors_in_a_manifest_are_reported_at_once(document: dict[str, Any]) -> None:
    good = document["entries"][ID]
    document["entries"] = {ID: good, "short": good, "cd" * 32: 7, "ef" * 32: {"tableName": "t"}}
    read = parse_manifest(json.dumps(document))
    assert [e.build_id for e in read.entries] == [ID]
    assert {r.build_id: r.reason.partition(":")[0] for r in read.refused} == {
        "short": "invalid BuildID; it has been changed since it was written",
        "cd" * 32: "it must be an object",
        "ef" * 32: "it lacks the table or its version",
    }
