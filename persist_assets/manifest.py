"""The manifest as a file: Malloy's JSON, BuildID → table, that its own tools can read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from persist_assets.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.ledger.store import Ledger
    from persist_assets.model import BuildID, Snapshot
    from persist_assets.settings import Settings


def manifest_document(settings: Settings, manifest: Mapping[BuildID, Snapshot]) -> dict[str, Any]:
    """Return a manifest as Malloy writes it, with more in each entry that we know."""
    entries = {
        build_id: {
            "tableName": f"delta.`{settings.table_root(snapshot.table)}@v{snapshot.version}`",
            "sourceId": snapshot.source_id,
            "path": settings.table_root(snapshot.table),
            "version": snapshot.version,
            "rows": snapshot.rows,
            "builtAt": snapshot.built_at.isoformat(),
        }
        for build_id, snapshot in manifest.items()
        if snapshot.view is None  # who knows no more than this document computes it
    }
    return {"entries": entries, "strict": settings.strict}


def export_manifest(settings: Settings, ledger: Ledger) -> None:
    """Write the manifests of an environment and of those that read it, each to its file.

    A file is always whole: the old or the new one. And the last state always wins: the ledger is
    read under the file's lock.
    """
    _export(settings, ledger)
    for name in settings.declared:
        other = load_settings(settings.root, environment=name)
        if settings.environment in other.reads:
            _export(other, ledger)


def _export(settings: Settings, ledger: Ledger) -> None:
    path = settings.manifest_path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        document = manifest_document(settings, ledger.fetch_manifest(*settings.environments))
        temporary = path.with_name(f".{path.name}.new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
