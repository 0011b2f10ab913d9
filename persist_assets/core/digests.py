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


def malloy_digest(*parts: str | None) -> str:
    """Return Malloy's digest of texts, as its function `makeDigest` computes it.

    Source: `makeDigest` of the npm package @malloydata/malloy 0.0.431; lengths are in UTF-16 units.

    Examples
    --------
    >>> malloy_digest("ab", None)[:12]
    '894e6fb3efc2'
    """
    texts = (
        "{undefined}" if part is None else f"{len(part.encode('utf-16-le')) // 2}:{part}"
        for part in parts
    )
    return hashlib.sha256("/".join(texts).encode()).hexdigest()


FORMAT = 1
"""The version of the language of predicates, stored with every predicate."""
