"""Log lines that programs read: one JSON object per line, with a stable `action`.

A line is made of what its call says (``action=retry ledger=%s``, or ``extra={"action": …}``) and of
what the code around it is about (`about`). `ACTIONS` is a contract: the name of an action does not
change, and its keys stay.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import TextIO

FORMAT = "PERSIST_LOG_FORMAT"
"""The environment variable that chooses the format of logs: ``text`` or ``json``."""
PACKAGE_LOGGER = "persist_assets"

ACTIONS: Mapping[str, str] = {
    "alert": "the check for alerts failed, or a message could not be sent",
    "audit": "a login or a refusal could not be recorded",
    "build": "the service cannot build requests now; it tries again",
    "build-ended": "a build has ended: `outcome`, `seconds`, `rows`, `written`, `bytes`, `method`, "
    "`error`",
    "build-started": "a build has started",
    "cancel": "an interrupted build ended its jobs of Spark",
    "check-failed": "rows of a view fail a check that does not block",
    "check-sample": "rows that fail a check cannot be shown or kept",
    "collect": "`persist gc` deleted a table or a version, or skipped it",
    "command-failed": "a command ends with an error: `code`, `hint`, `path`, `line`, `column`",
    "commit": "the response to a commit was lost, but the commit succeeded",
    "compile": "a file open in an editor could not be compiled because of a bug",
    "compute-all": "a table is computed in full although it could be maintained",
    "evaluate": "wants could not be evaluated now; the next evaluation covers them",
    "evaluated": "wants were evaluated: `trigger`, `seconds`, `partitions`",
    "export": "the manifest could not be exported; the next publication exports it",
    "give-back": "a lease could not be released; it will expire",
    "heartbeat": "a lease could not be renewed; the next heartbeat tries again",
    "leave-behind": "a build hangs, and its run ends without it",
    "left-out": "a file with errors, and what reads it, was left out",
    "lineage": "an OpenLineage event could not be created or sent, and was dropped",
    "manifest": "a manifest file does not fit the ledger",
    "migrate": "the ledger was migrated to a newer version",
    "not-merged": "aggregates of a table are not merged with changes",
    "problem": "a source or setting has a problem: `code`, `path`, `line`, `column`",
    "progress": "the progress of builds cannot be shown",
    "publish": "a published table or a catalog view was updated, or its update failed",
    "published": "the result of a build was published: `table`, `version`",
    "read-tokens": "the tokens of the service could not be read, so all tokens are rejected",
    "reads-old": "a query reads a table that is older than its data",
    "recovery": "the ledger is new, but there are tables of a lost ledger",
    "refuse": "the service refused a request",
    "request": "a build request has failed",
    "http-request": "the service answered a request: `method`, `path`, `status`, `ms`, `caller`, "
    "`client`",
    "retry": "the ledger's database does not respond; the transaction is retried",
    "rows-left-out": "an incremental build ignores some rows",
    "save-cache": "the results of a compilation could not be cached",
    "session": "the Spark server keeps its own value of a setting",
    "settings": "settings may cause rebuilds that can be avoided",
    "skip-partitions": "the project cannot be loaded, so moved partitions were not announced",
    "spark-unproven": "the session runs a version of Spark that has not passed all tests",
    "spark-waits": "a build waits for cores of Spark",
    "states": "a table keeps no partial results",
    "store-throttles": "an object store throttles requests, which are repeated",
    "store-waits": "an object store does not respond",
    "sync": "another graph cannot be read, or a copy is read again in full",
    "take-over": "after an upgrade, a source has taken over the table of its earlier BuildID",
    "taint": "a taint leaves the versions of a history",
    "telemetry": "OpenTelemetry is configured but cannot be used",
    "tidy": "files of a build that did not finish were removed",
    "trim": "old events could not be archived now; the service tries again",
    "watch": "the service cannot read the event log now; it tries again",
}
"""Every action, with its meaning."""

LIBRARY = "library"
"""The action of lines of other packages."""

_about: ContextVar[Mapping[str, Any] | None] = ContextVar("persist_log_about", default=None)
_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_KEY = re.compile(r"(\w+)=%(?:\.\d+)?[a-z]")


@contextmanager
def about(**values: Any) -> Generator[None]:
    """Add keys to the log lines of this thread within the block; values of None are left out.

    Costs nothing unless logs are JSON.
    """
    token = _about.set({**(_about.get() or {}), **values})
    try:
        yield
    finally:
        _about.reset(token)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, without line breaks.

    Examples
    --------
    >>> record = logging.makeLogRecord(
    ...     {"name": "persist_assets.x", "msg": "action=retry ledger=%s", "args": ("a",)}
    ... )
    >>> line = json.loads(JsonFormatter().format(record))
    >>> line["action"], line["ledger"], line["message"]
    ('retry', 'a', 'action=retry ledger=a')
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "action": LIBRARY,
            "message": record.getMessage(),
        }
        if record.name.split(".")[0] == PACKAGE_LOGGER:
            values = {**(_about.get() or {}), **_keys_of(record)}
            more = {k: v for k, v in vars(record).items() if k not in _ATTRIBUTES}
            values |= more
            line |= {k: v for k, v in values.items() if v is not None and k not in _RESERVED}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


_RESERVED = frozenset({"time", "level", "logger", "message"})


def _keys_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the keys in the text of a call: ``action=retry ledger=%s`` has two."""
    text = record.msg if isinstance(record.msg, str) else ""
    if not text.startswith("action="):
        return {}
    values: dict[str, Any] = {"action": text.removeprefix("action=").split()[0]}
    arguments = record.args if isinstance(record.args, tuple) else ()
    for name, value in zip(_KEY.findall(text), arguments, strict=False):
        plain = isinstance(value, (str, int, float, bool)) or value is None
        values[name] = value if plain else str(value)
    return values


def is_json(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment sets JSON as the format of logs."""
    return environ.get(FORMAT, "").lower() == "json"


def log_as_json(stream: TextIO, level: int = logging.INFO) -> None:
    """Write the log lines of this process as JSON: ours from `level`, others' from WARNING.

    Handlers that the root logger has stay; our lines go to this one only. Repeating it changes
    nothing.
    """
    logger, root = logging.getLogger(PACKAGE_LOGGER), logging.getLogger()
    if any(isinstance(h.formatter, JsonFormatter) for h in logger.handlers):
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    others = logging.StreamHandler(stream)
    others.setFormatter(JsonFormatter())
    others.setLevel(logging.WARNING)
    root.addHandler(others)
