"""The supported versions of Spark, and the one in use.

The invariant: the analysis assumes the version of the installed PySpark, and a build computes rows
only in a session of this version (`engine/session.py`). So a function or an option that an older
Spark lacks is an error of `check`, and never something that Spark ignores.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from persist_assets.core.errors import SettingsError

KNOWN_SPARKS = ("4.1", "4.2", "4.3")
"""The first two numbers of each version that the analysis knows, the oldest first.

Spark 4.0 reads ``'it''s'`` as ``its``; later ones read ``it's``, and so does the analysis.
"""
SUPPORTED = ("4.3",)
"""The known versions on which all suites have passed; the range in pyproject.toml."""


def minor(full_version: str) -> str:
    """Return the first two numbers of a version.

    Examples
    --------
    >>> minor("4.1.2"), minor("4.2.0.dev1")
    ('4.1', '4.2')
    """
    return ".".join(full_version.split(".")[:2])


def spark_in_use() -> str:
    """Return which of the known versions the installed PySpark has.

    It is the newest one if PySpark has another version: `require_session` refuses that later.
    """
    try:
        installed = minor(version("pyspark"))
    except PackageNotFoundError:
        return KNOWN_SPARKS[-1]
    return installed if installed in KNOWN_SPARKS else KNOWN_SPARKS[-1]


def is_in_use(since: str) -> bool:
    """Whether the Spark in use has what Spark has since a known version.

    Examples
    --------
    >>> is_in_use(KNOWN_SPARKS[0])
    True
    """
    return KNOWN_SPARKS.index(since) <= KNOWN_SPARKS.index(spark_in_use())


def only_since(since: str) -> str:
    """Return the hint for what the Spark in use lacks."""
    return f"Spark has it since {since}, and PySpark {version('pyspark')} is installed"


def require_session(session: str) -> None:
    """Refuse a session of an unknown Spark, or of another one than the installed PySpark.

    Parameters
    ----------
    session
        The version of the session: ``4.3.0``.

    Raises
    ------
    SettingsError
        It may have other functions, options and defaults than the analysis assumes.
    """
    if minor(session) not in KNOWN_SPARKS:
        raise SettingsError(
            f"the session runs Spark {session}, which is not supported",
            hint=f"use Spark {' or '.join(SUPPORTED)}: see docs/versions.md",
        )
    if minor(session) != spark_in_use():
        installed = version("pyspark")
        raise SettingsError(
            f"the session runs Spark {session}, but PySpark {installed} is installed here, so "
            "queries were checked for another version of Spark",
            hint=f'pip install "pyspark=={minor(session)}.*", or use a Spark {minor(installed)}',
        )
