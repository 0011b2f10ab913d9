"""Digests of values: equal digests mean equal values, in every process and release."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = "persist-1"
"""The version of all digests; changing their construction changes it, and so every digest."""


def digest(*parts: object) -> str:
    """Return the SHA-256 hex of texts, numbers and (nested) sequences of them.

    Examples
    --------
    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    # ascii() writes all values of `parts` unambiguously, and is the fastest way.
    return hashlib.sha256(ascii((VERSION, *parts)).encode()).hexdigest()


def digest_connection(connection: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a session that is part of every BuildID, Malloy's own included.

    Parameters
    ----------
    connection
        `Settings.connection`.
    """
    return digest("connection", tuple(connection))


FORMAT = 1
"""The version of the language of predicates, stored with every predicate."""
