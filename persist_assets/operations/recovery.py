"""Lost ledgers: the evidence of the loss, and the recovery.

An empty ledger beside exported manifests with entries, or beside tables, does not mean a new
project. The invariant: a table is restored only if a manifest describes it and the table confirms
the description.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.core.errors import StorageError
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import parse_manifest, unknown_entries
from persist_assets.operations.manifest_imports import Imported, import_entries
from persist_assets.storage.delta_tables import LOG
from persist_assets.storage.files import reached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.settings.values import Settings

log = logging.getLogger(__name__)

HINT = (
    "persist doctor --fix restores what the manifests describe; or restore a backup of the ledger"
)
_TABLE = re.compile(r".+-[0-9a-f]{12}(-.+)?")


@dataclass(frozen=True, slots=True)
class Lost:
    """The evidence that an empty ledger replaced one that was lost.

    Attributes
    ----------
    entries
        How many builds the environment's exported manifest names that the ledger does not know.
    tables
        The tables in the warehouse; empty unless the ledger knows no build at all.
    """

    environment: str
    ledger: str
    entries: int
    tables: tuple[str, ...]

    def __str__(self) -> str:
        clues: list[str] = []
        if self.entries:
            clues.append(f"its exported manifest lists {self.entries}")
        if self.tables:
            n = len(self.tables)
            clues.append(f"the warehouse has {n} table{'s' * (n != 1)} ({self.tables[0]}…)")
        return (
            f"the ledger {self.ledger} has no build of `{self.environment}`, but"
            f" {' and '.join(clues)}: was it lost?"
        )


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger of a project, and warn if it seems to have been lost.

    Raises
    ------
    LedgerError
        It cannot be opened.
    """
    ledger = Ledger(settings.ledger)
    lost = find_lost(settings, ledger)
    if lost is not None:
        log.warning("%s %s", lost, HINT, extra={"action": "recovery"})
    return ledger


def find_lost(settings: Settings, ledger: Ledger | None) -> Lost | None:
    """Return the evidence that a ledger was lost, or None.

    Parameters
    ----------
    ledger
        None if there is none.
    """
    if ledger is not None and ledger.manifests.has_published(*settings.environments):
        return None
    entries = unknown_entries(settings.manifest_path, ledger)
    is_empty = ledger is None or not ledger.events.position()
    tables = tuple(_tables_in(settings.warehouse)) if is_empty else ()
    if not entries and not tables:
        return None
    name = Path(settings.ledger.removeprefix("sqlite:///")).name
    return Lost(settings.environment, name, entries, tables)


def _tables_in(warehouse: str) -> Iterable[str]:
    """Yield the tables in a warehouse whose names have our form; none if it cannot be listed."""
    from pyarrow import fs

    try:
        with reached(warehouse) as (system, path):
            selector = fs.FileSelector(path, allow_not_found=True)
            names = sorted(f.base_name for f in system.get_file_info(selector))
            for name in filter(_TABLE.fullmatch, names):
                log_directory = f"{path.rstrip('/')}/{name}/{LOG}"
                below = fs.FileSelector(log_directory, allow_not_found=True)
                if system.get_file_info(below):
                    yield name
    except StorageError:
        return


def restore(settings: Iterable[Settings], ledger: Ledger) -> dict[str, Imported]:
    """Publish again what exported manifests name; return what was restored, by environment.

    An entry that its table does not confirm is refused; the others are restored.

    Parameters
    ----------
    settings
        Settings of the environments that have no build in the ledger.
    """
    # All are read first: restoring one rewrites the manifests of those that read it.
    ordered = sorted(settings, key=lambda s: len(s.environments))
    read = [(s, parse_manifest(_read_text(s.manifest_path))) for s in ordered]
    return {
        one.environment: import_entries(
            # Tables under fixed names are still those of the lost ledger.
            replace(one, publish=None),
            ledger,
            manifest,
            why="restored from the exported manifest",
            partial=True,
        )
        for one, manifest in read
        if manifest.entries
    }


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
