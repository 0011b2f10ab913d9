"""Dagster metadata of external tables: what sources need of them, and what is held."""

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from persist_assets.building.observe import Observer
from persist_assets.building.pins import Looked
from persist_assets.core.model.project import Needed, Project
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.model.sources import Source
from persist_assets.external.coverage import Brought


def needs_metadata(project: Project, source: Source) -> dict[str, Any]:
    """Return the metadata of an external table's definition: how it is reached, and who needs what.

    Its location is in the metadata that all raw tables have. Nothing here is a secret: a project
    has only the names of secrets.
    """
    assert source.raw is not None
    external = source.raw.external
    assert external is not None
    needs = [n for n in project.needs if n.table == source.source_id]
    metadata: dict[str, Any] = {
        "connector": external.connector,
        "mode": external.mode,
        "needed": dg.MetadataValue.md(_needs_table(project, needs)),
    }
    conditions = [
        f"| {_code(project.by_id[n.reader].key)} | {_plain(words)} |"
        for n in needs
        for _, words in n.not_pushed
    ]
    if conditions:
        lines = ["| needed by | not pushed |", "| --- | --- |", *dict.fromkeys(conditions)]
        metadata["not pushed"] = dg.MetadataValue.md("\n".join(lines))
    return metadata


def looked_metadata(looked: Looked) -> dict[str, Any]:
    """Return the metadata of an event about an external table: its version, and what is held."""
    copy = looked.copy
    metadata: dict[str, Any] = {"newest version": looked.newest}
    if copy is None:
        return metadata | {"version held": "none"}
    return metadata | {
        "version held": copy.version,
        "rows held": copy.rows,
        "bytes held": copy.bytes,
        "coverage": dg.MetadataValue.md(_code(copy.predicate)),
        "columns held": ", ".join(copy.columns),
        "clock": dg.MetadataValue.timestamp(copy.as_of),
    }


def brought_metadata(observer: Observer, copy: LocalCopy) -> dict[str, Any]:
    """Return how much a run has read of an external table so far, and written to its copy."""
    brought = _brought(observer, copy)
    return {
        "rows read": brought.rows,
        "bytes read": brought.bytes,
        "rows written": brought.rows_written,
        "bytes written": brought.bytes_written,
    }


def read_metadata(observer: Observer, source: Source) -> dict[str, Any]:
    """Return a materialization's metadata about the external tables that its source reads itself.

    It has the version of the rows, what is held of it here, and how much this run read of the
    table and wrote to its copy.
    """
    rows: list[list[str]] = []
    for table, copy in observer.pins.copies(source):
        now = _brought(observer, copy)
        figures = [copy.rows, copy.bytes, now.rows, now.bytes, now.rows_written, now.bytes_written]
        named = [_code(table.key), _code(copy.version), _code(copy.predicate)]
        rows.append([*named, *(f"{n:,}" for n in figures)])
    if not rows:
        return {}
    names = ["table", "version", "coverage", "rows held", "bytes held"]
    names += ["rows read", "bytes read", "rows written", "bytes written"]
    return {"external tables": dg.MetadataValue.md(_table(names, rows))}


def _brought(observer: Observer, copy: LocalCopy) -> Brought:
    return observer.ingestion.brought.get(copy.copy_id, Brought())


def _needs_table(project: Project, needs: Sequence[Needed]) -> str:
    if not needs:
        return "nothing"
    rows = [
        [
            f"[{project.by_id[n.reader].name}](/assets/{project.by_id[n.reader].key})",
            _code(n.predicate),
            _code(", ".join(n.columns)),
        ]
        for n in needs
    ]
    return _table(["needed by", "rows", "columns"], rows)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """Return a text as code in a table cell."""
    marks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{marks}{pad}{_plain(text)}{pad}{marks}" if text else ""


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
