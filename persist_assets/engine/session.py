"""The Spark session: creating it, checking its settings, and translating its errors.

This uses only features of both classic Spark and Spark Connect: no SparkContext, no JVM objects.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from persist_assets.core.errors import (
    BuildError,
    GoneError,
    JavaMissingError,
    PersistError,
    SettingsError,
    StorageError,
)
from persist_assets.core.object_stores import (
    SPARK_PACKAGES,
    full_disk,
    hint_about,
    is_expired,
    is_full,
    is_of_store,
    is_throttled,
)
from persist_assets.core.settings.spark import FIELD_IDS, REFUSED, SPARK_DEFAULTS, is_harmless
from persist_assets.core.spark_versions import SUPPORTED, minor, require_session
from persist_assets.engine.class_archive import archived_classes
from persist_assets.engine.interrupts import close_interrupted_connections, delayed_interrupts
from persist_assets.engine.java import is_packaged, use_java

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from pyspark.sql import SparkSession

    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.server import Job

log = logging.getLogger(__name__)

_session_lock = threading.Lock()
_VERSIONS: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()


def create_session(settings: Settings) -> SparkSession:
    """Return a Spark session with the project's settings.

    It is the existing session of this process, if there is one. Otherwise it is a new session of
    the server that ``spark.remote`` names, or of the shared server, which is started if necessary.

    Raises
    ------
    SettingsError
        Spark is a server, and the libraries for its clients are not installed.
        Or this process has a session of its own Spark already.
    StorageError
        The shared server does not start.
    """
    if is_remote(settings):
        return _connect(settings)
    config = dict(settings.spark)
    with _session_lock:
        _name_programs()
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder
        for key, value in config.items():
            if not (key == "spark.master" and "spark.remote" in config):
                builder = builder.config(key, value)
        return builder.getOrCreate()


def is_remote(settings: Settings) -> bool:
    """Whether sessions belong to a server, the shared one or another."""
    remote = dict(settings.spark).get("spark.remote", "local")
    return settings.shared or not remote.startswith("local")


def _name_programs() -> None:
    """Set the Python and the Java of Spark on this machine, unless they are set."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_packaged():
        with suppress(JavaMissingError):  # Spark says so, if it needs one
            use_java()


def _connect(settings: Settings) -> SparkSession:
    """Return a new session of a server; other clients do not see its views or settings."""
    try:
        import pyspark.sql.connect.session  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from pyspark.sql.connect.client.retries import DefaultPolicy
    except ImportError as error:
        key = "[spark] shared" if settings.shared else "spark.remote"
        raise SettingsError(
            f"`{key}` needs the dependencies of Spark Connect: {spark_cause(error)}",
            hint="pip install persist-assets[connect]",
        ) from error
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if getattr(SparkContext, "_active_spark_context", None) is not None:
        # PySpark's functions belong to one kind of session per process, so neither would work.
        raise SettingsError(
            "this process already runs its own Spark, so it cannot use a Spark server too",
            hint="use the server in another process, or declare one kind of Spark for both",
        )
    # By default a client retries for ten minutes if a server is dead.
    from persist_assets.engine.server import Jobs, ensure_server, server_directory

    directory = server_directory(settings) if settings.shared else None
    if settings.shared:
        url = ensure_server(settings).url
        policy = DefaultPolicy(
            max_retries=5, initial_backoff=50, backoff_multiplier=2, max_backoff=800
        )
    else:
        url = dict(settings.spark)["spark.remote"]
        policy = DefaultPolicy(
            max_retries=8, initial_backoff=50, backoff_multiplier=4, max_backoff=10_000
        )
    with _session_lock:
        builder: Any = SparkSession.builder.remote(url)
        session = builder.create()
    # The server would keep it for an hour, and an open channel can hang an exiting process.
    atexit.register(session.stop)
    session.client.set_retry_policies([policy])
    session.registerProgressHandler(Jobs(str(settings.root), directory, _warn_of_wait))
    with translated("opening a Spark session"):
        _set_all(session, settings)
    return session


def _warn_of_wait(job: Job) -> None:
    log.warning(
        "waiting for Spark: no task of %d has started for %d s, because other jobs use all "
        "of its cores; `persist spark status` lists the jobs of a shared server",
        job.tasks - job.completed,
        round(time.time() - (job.waits_since or 0)),
        extra={"action": "spark-waits"},
    )


def _set_all(session: SparkSession, settings: Settings) -> None:
    """Give a session of a server the settings of a project that sessions can have.

    A server that others started has its own settings, and sessions cannot change some of them. That
    does not matter for settings that cannot change rows.

    Raises
    ------
    SettingsError
        The session refuses settings that can change rows, or has others than the project.
    """
    changing = False
    for key, value in settings.spark:
        if not key.startswith("spark.sql.") or session.conf.get(key, None) == value:
            continue
        try:
            session.conf.set(key, value)
        except Exception:
            is_changing = not is_harmless(key, settings.harmless)
            if settings.shared and not is_changing:
                raise
            changing |= is_changing
            log.info("action=session setting=%s: the server keeps its own value", key)
    if changing:
        _agree(session, settings)


def open_session(settings: Settings, get: Callable[[], SparkSession]) -> SparkSession:
    """Return the session that `get` returns, with the settings on which results depend.

    Raises
    ------
    JavaMissingError
        Spark would run on this machine, which has no suitable Java.
    StorageError
        It does not start.
    SettingsError
        It has a setting that changes results and that the project does not declare. Or its version
        is unknown, or not that of the installed PySpark.
    """
    _name_programs()
    close_interrupted_connections()
    try:
        with archived_classes(os.environ), delayed_interrupts():
            session = get()
    except SettingsError:
        raise
    except Exception as error:
        if "spark.remote" not in dict(settings.spark):
            use_java()
        if isinstance(error, PersistError):
            raise
        raise StorageError(f"Spark does not start: {spark_cause(error)}") from error
    with translated("opening a Spark session"):
        require_session(version_of(session))
        if minor(version_of(session)) not in SUPPORTED:
            log.warning(
                "Spark %s has not passed all tests of persist_assets: see docs/versions.md",
                version_of(session),
                extra={"action": "spark-unproven"},
            )
        _hasten(session, _agree(session, settings))
    return session


def version_of(session: SparkSession) -> str:
    """Return the version of a session's Spark; a server is asked once."""
    if session not in _VERSIONS:
        _VERSIONS[session] = str(session.version)
    return _VERSIONS[session]


def _agree(session: SparkSession, settings: Settings) -> Mapping[str, str]:
    """Set the settings that change results in a session, and return all that it has then.

    Raises
    ------
    SettingsError
        It refuses some, or has more of them. All are listed.
    """
    refused = _refused(session, settings.changing)
    present: Mapping[str, str] = session.conf.getAll  # fetched from the JVM one by one
    names = {*dict(settings.changing), FIELD_IDS}
    unknown = {
        key: value
        for key, value in present.items()
        if key not in names
        and SPARK_DEFAULTS.get(key) != value
        and not is_harmless(key, settings.harmless)
    }
    undeclared = (p for p in SPARK_DEFAULTS.items() if p[0] not in names)
    refused |= _refused(session, undeclared) if not unknown else {}
    if refused or unknown:
        own = {key: _own_value(session, key) for key in refused}
        raise _disagreement(own, refused, unknown)
    return present


@contextmanager
def unchanged(session: SparkSession, name: str) -> Generator[None]:
    """Require that a function leaves the settings that can change rows as they are.

    All sources share the session. Settings that the function changed are put back.

    Parameters
    ----------
    name
        The name of the function.

    Raises
    ------
    BuildError
        It changed some.
    """
    before = _settings_of_rows(session)
    try:
        yield
    finally:
        after = _settings_of_rows(session)
        changed = sorted(k for k in {*before, *after} if before.get(k) != after.get(k))
        for key in changed:
            if key in before:
                session.conf.set(key, before[key])
            else:
                session.conf.unset(key)
    if changed:
        raise BuildError(
            f"`{name}` changes the setting {changed[0]} of the session, which all sources share",
            hint="set it in persist.toml, or compute without it",
        )


def _settings_of_rows(session: SparkSession) -> dict[str, str]:
    """Return the settings of a session that can change rows, as far as they are set."""
    rows = session.sql("SET").collect()
    return {r.key: r.value for r in rows if r.key != FIELD_IDS and not is_harmless(r.key)}


def _refused(session: SparkSession, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Set settings in a session; return those that it does not take."""
    refused: dict[str, str] = {}
    for key, value in pairs:
        if session.conf.get(key, None) != value:
            try:
                session.conf.set(key, value)
            except Exception:
                if _own_value(session, key) != value:
                    refused[key] = value
    return refused


def _own_value(session: SparkSession, key: str) -> str | None:
    """Return the value of a setting in a session, or Spark's default; None if there is neither."""
    with suppress(Exception):
        return session.conf.get(key)
    return None


def _disagreement(
    own: Mapping[str, str | None], refused: Mapping[str, str], unknown: Mapping[str, str]
) -> SettingsError:
    """Return the error for settings of a session that can change rows.

    Parameters
    ----------
    own, refused
        The settings that it refuses to change: its values, None without one, and the project's.
    unknown
        The settings that the project does not declare.
    """
    lines: dict[str, str] = {}
    for key, value in {**unknown, **own}.items():
        due = REFUSED.get(key) or refused.get(key)
        if value is None or (key in REFUSED and value.lower() != str(due).lower()):
            # `persist.toml` takes no other value.
            has = "has no value" if value is None else f"is {json.dumps(value)}"
            lines[key] = f"# {key} {has}: set it to {json.dumps(due)} where Spark is started"
        else:
            instead = f"  # the session refuses {json.dumps(due)}" if key in refused else ""
            lines[key] = f"{_pair(key, value)}{instead}"
    return SettingsError(
        "the Spark session has settings that can change results and differ from persist.toml:\n"
        + "\n".join(f"      {lines[key]}" for key in sorted(lines)),
        hint="add them to `[spark]` in persist.toml, and so to BuildIDs; list those that "
        "cannot change rows in `[spark] harmless` instead",
    )


def _pair(key: str, value: str) -> str:
    """Return a line for `[spark]` in persist.toml."""
    return f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}"


_FAST = {
    "spark.sql.codegen.useIdInClassName": "false",
    "spark.sql.codegen.wholeStage.union.enabled": "false",
}
"""Settings with which equal queries share generated code, which the JVM then compiles once.

Otherwise Spark generates code for each group of files (`Slice.groups`), and compiling it takes a
third of a backfill.
"""


def _hasten(session: SparkSession, present: Mapping[str, str]) -> None:
    """Set settings that make a session faster, unless they are set."""
    for key, value in _FAST.items():
        if key not in present:
            session.conf.set(key, value)


_DISK_TROUBLE = re.compile(
    r"[^\n:]*(?:Read-only file system|Permission denied|AccessDenied|Mkdirs failed"
    r"|[Nn]ot a directory|File too large|Input/output error)[^\n]*"
)
_WRITTEN_TO = re.compile(r"writing rows to (?:file:(?://)?)?(\S+?)\.(?=\s|$)")
_BETWEEN_STAGES = re.compile(r"DiskBlockObjectWriter|SpillWriter|DiskStore|\.shuffle\.|blockmgr-")


def _full_directory(message: str) -> str:
    """Return the directory whose disk is full, by Spark's message.

    Spark names the directory that it writes rows to, but not the one for shuffle data.
    """
    if place := re.search(r"(/\S+) \(No space left on device\)", message):
        return os.path.dirname(place[1])
    written = _WRITTEN_TO.search(message)
    cause = message[message.rfind("No space left on device") :]
    if written and not _BETWEEN_STAGES.search(cause):
        return written[1]
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    chosen = session.conf.get("spark.local.dir", None) if session else None
    directory = os.environ.get("SPARK_LOCAL_DIRS") or chosen or tempfile.gettempdir()
    return f"{directory} (`spark.local.dir`)"


_LOST = re.compile(
    r"StatusCode\.UNAVAILABLE|RETRIES_EXCEEDED|INVALID_HANDLE\.SESSION|SESSION_NOT_SAME"
)

_BROKEN_FILE = re.compile(
    r"\[FAILED_READ_FILE[.\w]*\]\s*Encountered error while reading file (?:file://)?(\S+?)\."
    r"(?=\s|$)\s*(.*?)\s*(?:SQLSTATE|$)",
    re.MULTILINE,
)
_GONE_FILE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?:file:)?(\S+?)\.?(?:\s|$)")

_NO_FILE_SYSTEM = re.compile(
    r'No FileSystem for scheme "(\w+)"|Class org\S*\.fs\.(\w+)\.\S+ not found'
)


@contextmanager
def translated(doing: str) -> Generator[None]:
    """Translate errors of Spark within the block into ours.

    Raises
    ------
    StorageError
        The cause is the disk, a store, an unreadable file, or a Spark server that is gone or lacks
        the library for a store.
    GoneError
        A file to be read no longer exists.
    BuildError
        There is another cause.
    """
    try:
        yield
    except PersistError:
        raise
    except Exception as error:
        if is_full(str(error)):
            raise full_disk(_full_directory(str(error)), f"{doing} failed") from error
        if is_of_store(str(error)) and (is_expired(str(error)) or is_throttled(str(error))):
            message = f"{doing} failed: {spark_cause(error)}"
            raise StorageError(message, hint=hint_about(str(error))) from error
        trouble = _DISK_TROUBLE.search(str(error))
        if trouble:
            message = f"{doing} failed: {trouble[0].strip()}"
            raise StorageError(message, hint="check the disk of the warehouse") from error
        unread = _NO_FILE_SYSTEM.search(str(error))
        if unread:
            raise StorageError(
                f"{doing} failed: Spark has no jar for {unread[1] or unread[2]}://",
                hint=_jar_hint(unread[1] or unread[2]),
            ) from error
        gone = _GONE_FILE.search(str(error))
        if gone:
            message, hint = (
                f"{doing} failed: {gone[1]} is gone",
                "try again: another process deleted it",
            )
            raise GoneError(message, hint=hint) from error
        broken = _BROKEN_FILE.search(str(error))
        if broken:
            detail = f": {broken[2]}" if broken[2] else ""
            raise StorageError(
                f"{doing} failed: {broken[1]} cannot be read{detail}",
                hint="it may be broken: have it rewritten",
            ) from error
        if _LOST.search(str(error)):
            message = f"{doing} failed: the Spark server is gone"
            hint = "try again: a shared server is restarted when it is needed"
            raise StorageError(message, hint=hint) from error
        raise BuildError(f"{doing} failed: {spark_cause(error)}") from error


def broken_file(error: BaseException | None) -> str | None:
    """Return the file that Spark cannot read by its message, None if it names none."""
    match = _BROKEN_FILE.search(str(error))
    return unquote(match[1]) if match else None


def _jar_hint(scheme: str) -> str | None:
    package = SPARK_PACKAGES.get(scheme)
    return package and f'[spark] "spark.jars.packages" = "{package}:VERSION": see docs/settings.md'


_RAISED = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)$", re.MULTILINE
)
_SEVERAL = "[STAGE_MATERIALIZATION_MULTIPLE_FAILURES]"
"""Stages of one query failed at the same time."""


def spark_cause(error: BaseException) -> str:
    """Return the line of an error with the innermost of Spark's causes."""
    raised = _RAISED.search(str(error))
    if raised:  # in a Python worker
        return raised[1][:500]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling "):  # py4j, before Java's
        lines = [line.removeprefix(": ") for line in lines[1:]] or lines
    lines = [line for line in lines if _SEVERAL not in line] or lines  # the next ones list them
    conditions = [line for line in lines if re.search(r"\[[A-Z][A-Z_.0-9]+\]", line)]
    line = (conditions or lines or [type(error).__name__])[0]
    match = re.search(r"\[[A-Z][A-Z_.0-9]+\].*", line)
    # The position refers to the text that we generated from the query.
    return re.sub(r";? line \d+,? pos \d+;?$", "", match[0] if match else line)[:500]
