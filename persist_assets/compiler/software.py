"""The software that decides BuildIDs: this release, the parser of SQL, and Malloy's compiler."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import version

from persist_assets._paths import MALLOY_BRIDGE, PACKAGE
from persist_assets.core import digests


@cache
def digest_code() -> str:
    """Return a digest of the code of this package, in hexadecimal digits."""
    code_digest = sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        code_digest.update(path.read_bytes())
    return code_digest.hexdigest()


@cache
def digest_malloy() -> str:
    """Return a digest of Malloy's compiler, in hexadecimal digits; empty if it is missing."""
    try:
        return sha256(MALLOY_BRIDGE.read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def _versions() -> str:
    parser, malloy = version("sqlglot"), digest_malloy()[:12] or "none"
    return f"persist_assets={digest_code()[:12]} sqlglot={parser} malloy={malloy}"


def name_software() -> str:
    """Return the versions of the software that created a BuildID.

    Two names differ if any of it differs: the version of digests, the code of this package, the
    version of sqlglot, Malloy's compiler.
    """
    return f"fingerprint={digests.VERSION} {_versions()}"
