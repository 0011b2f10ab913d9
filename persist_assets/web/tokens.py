"""Tokens in a file: created, revoked and expired while services run.

The file holds digests only. Tokens are random and long, so a digest cannot be turned back into its
token by guessing. A service looks at the file with every request, and reads it when it has changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import ConflictError, NotFoundError, SettingsError
from persist_assets.core.settings.user import make_private

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

TOKEN_FILE = "tokens.json"
"""The file below `.persist`."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of tokens."""
_PREFIX = "persist_"


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret.

    Attributes
    ----------
    role
        `read`, `write` or a role of `persist.toml`.
    digest
        SHA-256 of the token, in hex.
    expires_at
        None: never.
    """

    name: str
    role: str
    digest: str
    created_at: datetime
    expires_at: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        """Whether it is no longer valid."""
        return self.expires_at is not None and self.expires_at <= now


def digest_token(token: str) -> str:
    """Return the digest by which a token is known."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class TokenFile:
    """The tokens of a project; safe to share between processes.

    Parameters
    ----------
    path
        The file; it may not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None
        self._tokens: tuple[Token, ...] = ()

    def exists(self) -> bool:
        """Whether the file exists: then a token is needed, even if there is none."""
        return os.path.lexists(self.path)

    def read(self) -> Sequence[Token]:
        """Return the tokens. A file that cannot be read has none, and the error is logged."""
        try:
            at = self.path.stat()
            seen = (at.st_mtime_ns, at.st_size, at.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen = seen
            try:
                self._tokens = self._load() if seen else ()
            except SettingsError as error:
                log.error("action=read-tokens error=%s", error.message)
                self._tokens = ()
        return self._tokens

    def create(self, name: str, role: str, now: datetime, expires_at: datetime | None) -> str:
        """Create a token, and return its secret, which is not kept.

        Raises
        ------
        SettingsError
            The name is invalid, or the file is broken.
        ConflictError
            There is a token of this name.
        """
        if not NAME.fullmatch(name):
            hint = "use letters, digits, dots, dashes and underscores"
            raise SettingsError(f"invalid token name `{name}`", hint=hint)
        secret = _PREFIX + secrets.token_urlsafe(32)
        with self._changing() as tokens:
            if any(t.name == name for t in tokens):
                hint = f"revoke it, or choose another name: persist token revoke {name}"
                raise ConflictError(f"a token named `{name}` already exists", hint=hint)
            tokens.append(Token(name, role, digest_token(secret), now, expires_at))
        return secret

    def revoke(self, name: str) -> Token:
        """Delete a token: it is invalid from now on, with all sessions that began with it.

        Raises
        ------
        NotFoundError
            There is none of this name.
        """
        with self._changing() as tokens:
            token = next((t for t in tokens if t.name == name), None)
            if token is None:
                hint = "persist token list shows all tokens"
                raise NotFoundError(f"unknown token `{name}`", hint=hint)
            tokens.remove(token)
        return token

    def _load(self) -> tuple[Token, ...]:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            return tuple(_token_of(entry) for entry in document["tokens"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"the file of tokens {self.path} cannot be read: {error}",
                hint="restore it, or remove it and create the tokens again",
            ) from error

    @contextmanager
    def _changing(self) -> Generator[list[Token]]:
        """Yield the tokens to be changed, while no other process changes them."""
        import fcntl

        make_private(self.path.parent)
        with open(self.path.with_suffix(".lock"), "a") as lock:
            os.chmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = [*self._load()] if self.exists() else []
            yield tokens
            document = {"tokens": [_entry_of(token) for token in tokens]}
            partial = self.path.with_suffix(".part")
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)


def _entry_of(token: Token) -> dict[str, Any]:
    at, until = token.created_at, token.expires_at
    times = {"created_at": at.isoformat(), "expires_at": until and until.isoformat()}
    return asdict(token) | times


def _token_of(entry: dict[str, Any]) -> Token:
    until = entry["expires_at"]
    name, role, digest = (entry[key] for key in ("name", "role", "digest"))
    if not all(isinstance(text, str) for text in (name, role, digest)):
        raise TypeError("an entry has no name, role or digest")
    return Token(
        name,
        role,
        digest,
        _instant(entry["created_at"]),
        None if until is None else _instant(until),
    )


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
