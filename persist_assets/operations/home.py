"""Dagster's home of a project: where it is, its first opening, and its repair.

Dagster makes the databases of a home when a process first opens it, without a lock: processes that
do so at once fail, or leave two revisions in a database, and then nobody can open it any more. So
whoever opens a home holds `opening.lock` in it (`opened_alone`).
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
    """Return where Dagster's home of a project is; `DAGSTER_HOME` comes first."""
    return Path(os.environ.get("DAGSTER_HOME") or settings.state_dir / "dagster")


def write_home(home: Path) -> Path:
    """Make a directory Dagster's home: with settings of ours if it has none; return it.

    Raises
    ------
    SettingsError
        It cannot be made.
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
    """Let no other process of ours open a home within the block.

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

    Links are not followed: to look into a database writes files beside it.
    """
    databases = (path for path in sorted(home.rglob("*.db")) if not path.is_symlink())
    return [path for path in databases if len(_revisions(path)) > 1]


def _revisions(database: Path) -> list[str]:
    """Return the revisions of a database; none where it has no such table, or is no database."""
    with suppress(sqlite3.Error), closing(_connect(database)) as connection:
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return [revision for (revision,) in rows]
    return []


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(database.resolve().as_uri() + "?mode=rw", uri=True, timeout=30)


def repair_databases(home: Path) -> list[Path]:
    """Leave the latest revision in databases that have several; return those repaired.

    Dagster makes all tables of a new database as its own release has them, so the latest of the
    revisions is the true one.
    """
    # Both come with Dagster, which takes long to load; and few homes need this.
    from importlib.util import find_spec

    from alembic.script import ScriptDirectory

    dagster = find_spec("dagster")
    assert dagster is not None and dagster.origin is not None
    scripts = ScriptDirectory(str(Path(dagster.origin).parent / "_core" / "storage" / "alembic"))
    repaired: list[Path] = []
    with FileLock(home / "opening.lock"):
        for database in find_split_databases(home):
            found = {*_revisions(database)}
            # From the latest to the first.
            latest = next((s.revision for s in scripts.walk_revisions() if s.revision in found), "")
            if latest:
                with closing(_connect(database)) as connection, connection:
                    connection.execute(
                        "DELETE FROM alembic_version WHERE version_num <> ?", (latest,)
                    )
                repaired.append(database)
    return repaired
