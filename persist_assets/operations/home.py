"""Dagster's home of a project: its location, first opening, and repair.

Dagster creates the databases of a home when a process first opens it, without a lock. Processes
that do so at the same time fail, or leave two revisions in a database, which then cannot be opened
any more. So a process that opens a home holds `opening.lock` in it (`opened_alone`).
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from persist_assets.core.errors import SettingsError
from persist_assets.core.object_stores import full_disk, is_full

if TYPE_CHECKING:
    from collections.abc import Generator

    from persist_assets.core.settings.values import Settings

_INSTANCE = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""


def find_home(settings: Settings) -> Path:
    """Return the directory of a project's Dagster home; `DAGSTER_HOME` takes precedence."""
    return Path(os.environ.get("DAGSTER_HOME") or settings.state_dir / "dagster")


def write_home(home: Path) -> Path:
    """Turn a directory into Dagster's home, with our settings if it has none; return it.

    Raises
    ------
    SettingsError
        It cannot be created.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text(_INSTANCE, encoding="utf-8")
    except OSError as error:
        if is_full(str(error)):
            raise full_disk(home, "cannot create Dagster's home") from error
        raise SettingsError(f"cannot create {home}: {error.strerror}") from error
    return home.resolve()


@contextmanager
def opened_alone(home: Path) -> Generator[None]:
    """Keep other persist processes from opening a home within the block.

    Raises
    ------
    SettingsError
        The block failed, and a database of the home has more than one revision.
    """
    with FileLock(home / "opening.lock"):
        try:
            yield
        except Exception as error:
            broken = find_split_databases(home)
            if not broken:
                raise
            raise SettingsError(
                f"Dagster cannot open its home: {broken[0]} has more than one revision",
                hint="processes opened it at the same time: persist doctor --fix repairs it",
            ) from error


def find_split_databases(home: Path) -> list[Path]:
    """Return the databases of a home that have more than one revision, sorted.

    Links are not followed, because opening a database writes files beside it.
    """
    databases = (path for path in sorted(home.rglob("*.db")) if not path.is_symlink())
    return [path for path in databases if len(_revisions(path)) > 1]


def _revisions(database: Path) -> list[str]:
    """Return the revisions of a database; none if it lacks the table, or is not a database."""
    with suppress(sqlite3.Error), closing(_connect(database)) as connection:
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return [revision for (revision,) in rows]
    return []


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(database.resolve().as_uri() + "?mode=rw", uri=True, timeout=30)


def repair_databases(home: Path) -> list[Path]:
    """Delete all but the latest revision from databases with several; return those repaired.

    Dagster creates all tables of a new database in the form of its own release, so the latest
    revision is the correct one.
    """
    # Both come with Dagster, which is slow to import, and few homes need this.
    from importlib.util import find_spec

    from alembic.script import ScriptDirectory

    dagster = find_spec("dagster")
    assert dagster is not None and dagster.origin is not None
    scripts = ScriptDirectory(str(Path(dagster.origin).parent / "_core" / "storage" / "alembic"))
    repaired: list[Path] = []
    with FileLock(home / "opening.lock"):
        for database in find_split_databases(home):
            revisions = {*_revisions(database)}
            # From the latest to the first.
            latest = next(
                (s.revision for s in scripts.walk_revisions() if s.revision in revisions), ""
            )
            if latest:
                with closing(_connect(database)) as connection, connection:
                    connection.execute(
                        "DELETE FROM alembic_version WHERE version_num <> ?", (latest,)
                    )
                repaired.append(database)
    return repaired
