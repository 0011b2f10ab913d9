"""Tables of rows that fail checks with ``keep_failures``, one for each check of an environment.

They lie below the warehouse, at ``.failures/<ledger>/<environment>/<asset key>@<check>``. Each run
of the check replaces its table, and a run in which no row fails deletes it.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import PersistError
from persist_assets.storage.arrow_rows import read_rows
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_tables import find_table
from persist_assets.storage.files import delete_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

FAILURES = ".failures"
"""The directory of a warehouse with rows that fail checks, by ledger and environment."""


def failures_table(settings: Settings, log_id: str, source: Source, check: str) -> str:
    """Return the name of the table with the rows that fail a check of a source.

    Parameters
    ----------
    log_id
        The ledger's identity.
    check
        The check's name.
    """
    check = check.removeprefix(f"{source.key}:")  # as the builds of a view's readers call it
    return settings.table_name(f"{FAILURES}/{log_id}/{settings.environment}/{source.key}@{check}")


def failures_root(settings: Settings, ledger: Ledger, source: Source, check: str) -> str:
    """Return the directory of that table."""
    return settings.table_root(failures_table(settings, ledger.events.log_id(), source, check))


def is_kept_as_declared(reader: Reader, source: Source, check: Check, result: CheckResult) -> bool:
    """Whether an earlier result has kept failing rows if and where the check says so now.

    Rows of a build in another environment are in a table of that environment.
    """
    if result.passed:
        return True
    where = failures_root(reader.settings, reader.ledger, source, check.name)
    return result.kept_in == (where if check.keep_failures else None)


def keep_failing_rows(
    reader: Reader, source: Source, check: Check, result: CheckResult, bad: DataFrame | None
) -> CheckResult:
    """Replace the table of the rows that fail a check; return the result with its location.

    Parameters
    ----------
    bad
        The rows that fail; None: no single row does.
    """
    if not check.keep_failures:
        return result
    settings = reader.settings
    table = failures_table(settings, reader.ledger.events.log_id(), source, check.name)
    root = settings.table_root(table)
    try:
        delete_directory(root)
        if result.passed or bad is None:
            return result
        rows = bad.limit(check.keep_failures)
        name = f"rows that fail {check.name}"
        staged, measured = reader.engine.write(rows, table, uuid.uuid4().hex, [], None, name)
        commit(staged, build_id=source.build_id, pinned=None)
    except PersistError as error:  # the failure is known, and matters more than the rows
        log.warning(
            "rows that fail %s were not kept: %s",
            check.name,
            error,
            extra={"action": "check-sample"},
        )
        return result
    return replace(result, kept_in=root, kept_rows=measured.rows)


def read_failures(root: str) -> Any:
    """Return the kept rows of a check as an Arrow table; None if none are kept.

    Raises
    ------
    StorageError
        The store does not answer.
    """
    return None if find_table(root) is None else read_rows(root)
