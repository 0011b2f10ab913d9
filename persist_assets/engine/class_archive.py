"""An archive of the classes that Spark loads, so that its JVM starts faster (Java's "CDS").

A JVM that runs typical builds writes the archive when it ends, and later ones map it instead of
reading, parsing and verifying ten thousand classes. A JVM with other classes, other options or of
another version ignores the archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.core.errors import StorageError
from persist_assets.core.settings.user import make_private, user_cache
from persist_assets.engine.java import find_program, use_java

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, MutableMapping, Sequence

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment variable with options for the JVM of Spark's driver."""


def find_archive(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the archive for the installed Java and Spark; None if there is none."""
    java = find_program(environ)
    if java is None or find_spec("pyspark") is None:
        return None
    with suppress(OSError, RuntimeError):  # Spark has no JARs here, or the user has no home
        path = _path(java)
        return path if path.exists() else None
    return None


@contextmanager
def archived_classes(environ: MutableMapping[str, str]) -> Generator[None]:
    """Let JVMs of Spark that are started with `environ` in the block use the archive."""
    archive = find_archive(environ)
    before = environ.get(OPTIONS)
    if archive is None or "-XX:SharedArchiveFile" in (before or ""):
        yield
        return
    # Without the last options, a JVM that cannot use the archive says so on its standard output.
    options = (f'"-XX:SharedArchiveFile={archive}"', "-Xlog:cds*=off", "-Xlog:class+path*=off")
    environ[OPTIONS] = " ".join((*options, *([before] if before else [])))
    try:
        yield
    finally:
        if before is None:
            del environ[OPTIONS]
        else:
            environ[OPTIONS] = before


def create_archive(program: str) -> Path:
    """Create the archive for the installed Java and Spark, and return its path.

    Parameters
    ----------
    program
        A module for ``python -m`` that makes Spark load classes: see `write_archive`.

    Raises
    ------
    JavaMissingError
        There is no suitable Java.
    StorageError
        The program fails, or this Java cannot write archives.
    """
    path = _path(use_java().path)
    make_private(path.parent)
    write_archive(path, (sys.executable, "-m", program))
    for other in path.parent.glob("*.jsa"):  # of earlier versions
        if other != path:
            other.unlink()
    return path


def write_archive(path: Path, command: Sequence[str], options: Sequence[str] = ()) -> None:
    """Run a command whose JVM writes an archive when it ends, and move the archive into place.

    Parameters
    ----------
    command
        It starts Spark in a JVM of its own, and calls `end_jvm`.
    options
        Further options of that JVM.

    Raises
    ------
    StorageError
        The command fails, or this Java cannot write archives.
    """
    new = path.with_name(f"{uuid4().hex}.new")
    archiving = (f'"-XX:ArchiveClassesAtExit={new}"', "-Xlog:cds*=off")
    environ = {**os.environ, OPTIONS: " ".join((*options, *archiving))}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise StorageError(f"Spark failed to load its classes: {''.join(last)}")
        if not new.exists():
            raise StorageError(
                "this Java cannot archive classes",
                hint="use a Java of your system or a full JDK: not the extra `java`",
            )
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def end_jvm(context: Any) -> None:
    """End the JVM of a SparkContext as the end of its Python does, and wait for it."""
    process = context._gateway.proc
    process.stdin.close()
    process.wait()


def _path(java: str) -> Path:
    """Return the path of the archive: one directory per Java and installation of PySpark.

    The name of the file follows their versions.
    """
    program = Path(java).resolve()
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    spark = Path(spec.origin).parent
    jars = spark / "jars"
    places = sha256(f"{program}\n{spark}".encode()).hexdigest()[:16]
    versions = "\n".join(str(p.stat().st_mtime_ns) for p in (program, jars))
    name = sha256(versions.encode()).hexdigest()[:16]
    return user_cache() / "java" / "classes" / places / f"{name}.jsa"
