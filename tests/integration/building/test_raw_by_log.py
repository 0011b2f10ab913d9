"""Raw Delta tables with deletion vectors or column mapping are read as their log says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from deltalake import DeltaTable

from persist_assets.building.builder import Builder
from persist_assets.core.errors import PersistError
from persist_assets.storage.raw import pin_delta

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

pytestmark = [pytest.mark.proves("X9"), pytest.mark.slow]
FOREIGN = ROOT / "tests" / "data" / "foreign"
VALUES = """
CREATE TABLE t (value INT) USING delta LOCATION 'raw/t';
--@ persist refresh=incremental
CREATE VIEW p AS SELECT value FROM t WHERE value >= 0;
--@ persist refresh=incremental
CREATE VIEW q AS SELECT count(*) AS n, sum(value) AS s FROM t;
"""
NAMES = """
CREATE TABLE t USING delta LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT `Super Name` AS name, `Company Very Short` AS company FROM t;
"""


@pytest.fixture
def start(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Callable[..., Path]:
    def project(table: str, sources: str) -> Path:
        root = make_project({"m.sql": sources})
        shutil.copytree(FOREIGN / table, root / "raw" / "t")
        for path in (root / "raw" / "t", root / "raw" / "t" / "_delta_log"):
            path.chmod(0o755)
        return root

    return project


def log(root: Path, version: int) -> Path:
    return root / "raw" / "t" / "_delta_log" / f"{version:020}.json"


def actions_of(root: Path, version: int, kind: str) -> list[Any]:
    lines = [json.loads(line) for line in log(root, version).read_text().splitlines()]
    return [line[kind] for line in lines if kind in line]


def commit(root: Path, version: int, *actions: Any) -> None:
    """Write a commit as other writers do."""
    lines = [{"commitInfo": {"operation": "WRITE"}}, *actions]
    log(root, version).write_text("\n".join(json.dumps(line) for line in lines))


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def built(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    builder.build(named(builder, name))
    return sorted(map(tuple, builder.read(named(builder, name)).collect()))


def test_deletion_vectors_delete_rows_and_their_removal_restores_them(
    start: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = start("table-with-dv-small", VALUES)
    (plain,), (marked,) = actions_of(root, 0, "add"), actions_of(root, 1, "add")
    gone = {k: marked[k] for k in ("path", "partitionValues", "size", "deletionVector")}
    gone |= {"dataChange": True, "deletionTimestamp": 0, "extendedFileMetadata": True}
    few, all_of_them = range(1, 9), range(10)
    commits = [
        ((), few),
        (({"remove": gone}, {"add": plain}), all_of_them),  # restored
        (({"remove": {**gone, "deletionVector": None}}, {"add": marked}), few),
        (({"remove": gone},), range(0)),
    ]
    for version, (actions, values) in enumerate(commits, 1):
        if actions:
            commit(root, version, *actions)
        builder = enter(root)
        assert built(builder, "p") == [(n,) for n in values]
        assert built(builder, "q") == [(len(values), sum(values) if values else None)]
        again = enter(root)
        assert again.build(named(again, "p")).action == "reused"
    # Earlier versions can be pinned; their digests differ exactly where rows do.
    pins = [pin_delta(str(root / "raw" / "t"), version) for version in (0, 1, 2, 3)]
    digests = [str(pin.version).rpartition(":")[2] for pin in pins]
    assert digests[0] == digests[2] != digests[1] == digests[3]
    assert [pin.by_log for pin in pins] == [False, True, False, True]


def test_columns_have_the_names_of_the_column_mapping(
    start: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = start("table_with_column_mapping", NAMES)
    rows = built(enter(root), "p")
    assert len(rows) == 5
    assert ("Timothy Lamb", "BME") in rows
    # Two names are swapped; no file changes.
    (metadata,) = actions_of(root, 0, "metaData")
    schema = json.loads(metadata["schemaString"])
    first, second = schema["fields"]
    first["name"], second["name"] = second["name"], first["name"]
    metadata |= {"schemaString": json.dumps(schema), "partitionColumns": [first["name"]]}
    commit(root, 1, {"metaData": metadata})
    swapped = built(enter(root), "p")
    assert swapped == sorted((company, name) for name, company in rows)
    by_delta = DeltaTable(root / "raw" / "t")
    assert by_delta.version() == 1


def test_a_table_replaced_after_it_was_pinned_is_rejected(
    start: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = start("table-with-dv-small", VALUES)
    builder = enter(root)
    builder.reader.pins.pin(named(builder, "t"))
    first = log(root, 0)
    first.write_text(first.read_text().replace("testId", "another"))
    with pytest.raises(PersistError, match="replaced"):
        builder.build(named(builder, "p"))
