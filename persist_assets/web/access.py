"""Permissions: tokens, users of a proxy, browser sessions, limits, and cross-site requests.

The invariant: nothing is done for a request before it has passed `Gate`, and no endpoint answers a
caller that `Access` does not allow. Once a token was needed, every caller needs one until the
process ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.service import EVERYBODY, NOBODY, Role, Service
from persist_assets.web.documents import ProblemDetail, ProblemDocument
from persist_assets.web.tokens import digest_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from persist_assets.web.audit import Audit
    from persist_assets.web.tokens import TokenFile

Right = Literal["read", "build", "promote", "write"]
"""`build` and `promote`: the caller may do so somewhere, see `roles.py`; `write`: everything."""

TOKENS = "PERSIST_TOKENS"
"""The environment variable with the tokens: comma-separated ``name:ROLE:token`` entries."""
API = "/api/"
"""The prefix of paths for programs."""
MAX_BODY = 64 * 1024
"""The largest body of a request, in bytes."""
SESSION = "persist_session"
SESSION_S = 12 * 3600
"""The duration of a login, in seconds."""
_SHORTEST = 16
_RATE, _BURST = 50.0, 600.0
"""Each client may send a burst of `_BURST` requests, then `_RATE` requests per second."""
_CLIENTS = 4096
_BODY_S = 10.0

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what it may do.

    Attributes
    ----------
    name
        The name of its token, or the user that a proxy names.
    right
        Whether it may do everything; otherwise it may read, and what follows.
    build
        Selections of the sources that it may want, build and taint.
    promote
        The environments that it may promote into and roll back.
    until
        When its token expires, in seconds since the epoch; zero: never.
    """

    name: str
    right: Literal["read", "write"]
    build: tuple[str, ...] = ()
    promote: tuple[str, ...] = ()
    until: float = 0

    def may(self, right: Right) -> bool:
        """Whether the caller has a right, for whichever sources or environments."""
        if self.right == "write" or right == "read":
            return True
        return bool({"build": self.build, "promote": self.promote}.get(right))

    @classmethod
    def of(cls, name: str, roles: Sequence[Role], until: float = 0) -> Caller:
        """Return a caller who has all of some roles."""
        right = "write" if any(role.admin for role in roles) else "read"
        build = tuple(dict.fromkeys(text for role in roles for text in role.build))
        promote = tuple(dict.fromkeys(e for role in roles for e in role.promote))
        return cls(name, right, build, promote, until)


ROLES = (Role("read"), Role("write", admin=True))
"""The roles that every project has."""


class Refused(Exception):
    """A refused request: an HTTP status and the reason.

    Parameters
    ----------
    code
        The reason, for programs.
    problems
        All invalid parameters or keys, each with the reason.
    more
        Further keys of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        hint: str | None = None,
        *,
        problems: Sequence[tuple[str, str]] = (),
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint = status, code, detail, hint
        self.problems, self.more = tuple(problems), dict(more or {})


def problem(refused: Refused) -> Response:
    """Return the answer to a refused request, in the format of RFC 9457."""
    values: dict[str, Any] = {
        "type": f"urn:persist:{refused.code}",
        "title": refused.code.replace("-", " "),
        "status": refused.status,
        "detail": refused.detail,
        **refused.more,
    }
    if refused.hint:
        values["hint"] = refused.hint
    if refused.problems:
        values["problems"] = [
            ProblemDetail.model_construct(name=name, detail=why) for name, why in refused.problems
        ]
    # Not validated: names that a client made up may not be valid Unicode.
    document = ProblemDocument.model_construct(**values)
    headers: dict[str, str] = {}
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="persist"'
    if refused.status in (429, 503):
        headers["Retry-After"] = "1"
    text = json.dumps(document.model_dump(exclude_unset=True))
    return Response(text, refused.status, headers, "application/problem+json")


def parse_tokens(text: str, roles: Sequence[Role] = ()) -> dict[str, Caller]:
    """Return the callers by the digests of their tokens; an empty text has none.

    Parameters
    ----------
    roles
        The roles that the project declares.

    Raises
    ------
    SettingsError
        An entry is not ``name:ROLE:token``, its token is short, or a name or token is listed
        twice.

    Examples
    --------
    >>> [(c.name, c.right) for c in parse_tokens("ci:write:0123456789abcdef").values()]
    [('ci', 'write')]
    """
    callers: dict[str, Caller] = {}
    by_name = {role.name: role for role in (*ROLES, *roles)}
    for n, part in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, _, rest = part.partition(":")
        right, _, token = rest.partition(":")
        wrong = None
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            wrong = "its name may have only letters, digits, dots, dashes and underscores"
        elif right not in by_name:
            wrong = f"its role must be one of {', '.join(f'`{name}`' for name in by_name)}"
        elif len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
            wrong = f"its token must have at least {_SHORTEST} plain characters"
        elif digest_token(token) in callers or name in {c.name for c in callers.values()}:
            wrong = "its name or token is listed twice"
        if wrong:
            raise SettingsError(
                f"{TOKENS}: entry {n}: {wrong}",
                hint="use name:read:token,other:write:token; `openssl rand -hex 32` makes a token",
            )
        callers[digest_token(token)] = Caller.of(name, [by_name[right]])
    return callers


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Permissions of callers; without tokens and users everybody may do everything.

    Parameters
    ----------
    tokens
        See `parse_tokens`: the tokens of the environment variable.
    clock
        Returns seconds since the epoch.
    has_proxy
        Clients reach the service through a proxy that speaks TLS.
    file
        The file of further tokens.
    roles
        The roles that the project declares.
    service
        The proxies that identify users.
    audit
        Records logins and refusals.
    """

    def __init__(
        self,
        tokens: Mapping[str, Caller],
        *,
        clock: Callable[[], float],
        has_proxy: bool = False,
        file: TokenFile | None = None,
        roles: Sequence[Role] = (),
        service: Service = NOBODY,
        audit: Audit | None = None,
    ) -> None:
        self.tokens, self._clock, self._has_proxy = tokens, clock, has_proxy
        self._file, self._service, self.audit = file, service, audit
        self._roles = {role.name: role for role in (*ROLES, *roles)}
        self._networks = [ipaddress.ip_network(proxy) for proxy in service.proxies]
        self._secret = secrets.token_bytes(32)
        self._ended: dict[str, int] = {}
        self._needs_token = bool(tokens or service.user_header)

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        if not self._needs_token and self._file is not None and self._file.exists():
            self._needs_token = True
        return not self._needs_token

    def of_token(self, token: str) -> Caller | None:
        """Return the owner of a token, or None; the time taken does not depend on the token."""
        return self._of_digest(digest_token(token))

    def _of_digest(self, sent: str) -> Caller | None:
        owner = None
        for digest, caller in self.tokens.items():
            if hmac.compare_digest(digest, sent):
                owner = caller
        for token in self._file.read() if self._file is not None else ():
            if hmac.compare_digest(token.digest, sent):
                role = self._roles.get(token.role)  # without it, nothing is allowed
                until = token.expires_at.timestamp() if token.expires_at else 0
                owner = None if role is None else Caller.of(token.name, [role], until)
        is_over = owner is not None and 0 < owner.until <= self._clock()
        return None if is_over else owner

    def of_scope(self, scope: Scope) -> Caller | None:
        """Return the owner of a request's bearer token, or the user whom its proxy names.

        None without a known token or user. `Gate` has seen the request.
        """
        if self.is_open:
            return Caller("local", "write")
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.of_token(token.strip())
        return self.of_proxy(scope)

    def of_proxy(self, scope: Scope) -> Caller | None:
        """Return the user whom a proxy names; None if none does.

        Raises
        ------
        Refused
            The header is invalid, or the user has no role.
        """
        service = self._service
        if not service.user_header or not self._is_proxy(peer_of(scope)):
            return None  # `check_origin` refuses those who claim to be a proxy
        headers = Headers(scope=scope)
        users = headers.getlist(service.user_header)
        groups = headers.getlist(service.groups_header) if service.groups_header else []
        if not users and not groups:
            return None
        name = users[0].strip() if len(users) == 1 else ""
        if not _USER.fullmatch(name) or len(groups) > 1:
            self.refused(scope, f"{service.user_header} is invalid")
            raise Refused(403, "forbidden", f"the proxy sent an invalid `{service.user_header}`")
        mine = {group.strip() for group in ",".join(groups).split(",")} - {""}
        roles = [r for r in self._roles.values() if EVERYBODY in r.groups or mine & {*r.groups}]
        if not roles:
            self.refused(scope, "no role", name)
            raise Refused(403, "forbidden", f"`{name}` has no role here", "see [roles.NAME]")
        if self.audit is not None:
            self.audit.note(
                "logged-in", address=address_of(scope), same_s=SESSION_S, who=name, how="proxy"
            )
        return Caller.of(name, roles)

    def check_origin(self, scope: Scope) -> None:
        """Refuse a request that names its user and does not come from a proxy.

        Raises
        ------
        Refused
            It does not, whatever token it has besides.
        """
        names = [n for n in (self._service.user_header, self._service.groups_header) if n]
        headers = Headers(scope=scope)
        for name in names:
            if name in headers and not self._is_proxy(peer_of(scope)):
                self.refused(scope, f"{name} does not come from a proxy")
                raise Refused(403, "forbidden", f"`{name}` is not accepted from here")

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def refused(self, scope: Scope, why: str, who: str = "") -> None:
        """Record that a request was refused."""
        if self.audit is not None:
            path = f"{scope['method']} {scope['path']}"
            address = address_of(scope)
            self.audit.note("access-refused", address=address, why=why, who=who, path=path)

    # ------------------------------------------------------------------------------ sessions

    def begin(self, token: str) -> str:
        """Return a cookie that identifies a token's owner for `SESSION_S` seconds.

        It is valid for as long as the token is.
        """
        until = int(self._clock()) + SESSION_S
        # The token's digest identifies it, and is of no use to anybody.
        session = f"{digest_token(token)}|{until}|{secrets.token_hex(8)}"
        return f"{session}|{self._sign('session', session)}"

    def of_cookie(self, cookie: str | None) -> Caller | None:
        """Return the caller of a cookie; None if it is forged or expired."""
        if self.is_open:
            return Caller("local", "write")
        payload, _, signature = (cookie or "").rpartition("|")
        if not hmac.compare_digest(
            self._sign("session", payload).encode(), signature.encode(errors="replace")
        ):
            return None
        digest, until, session = payload.split("|")
        if int(until) < self._clock() or session in self._ended:
            return None
        return self._of_digest(digest)

    def of_page(self, request: HTTPConnection) -> Caller | None:
        """Return the caller of a page: the user named by a proxy, or that of a session."""
        user = None if self.is_open else self.of_proxy(request.scope)
        return user or self.of_cookie(request.cookies.get(SESSION))

    def end(self, cookie: str | None) -> None:
        """End the session of a cookie: it is invalid everywhere from now on."""
        if self.of_cookie(cookie) is None or not cookie or self.is_open:
            return
        _, until, session, _ = cookie.split("|")
        now = self._clock()
        self._ended = {s: u for s, u in self._ended.items() if u >= now} | {session: int(until)}

    def is_secure(self, scheme: str, headers: Headers) -> bool:
        """Whether the browser may restrict cookies to encrypted connections.

        Behind a proxy it may, unless the proxy says that the browser's connection is not
        encrypted.
        """
        return scheme == "https" or (self._has_proxy and "x-forwarded-proto" not in headers)

    def form_token(self, request: HTTPConnection) -> str:
        """Return the token that forms of a session, or of a user of a proxy, have to send."""
        if self.is_open:
            return self._sign("form", "")
        user = self.of_proxy(request.scope)
        session = request.cookies.get(SESSION) or ""
        return self._sign("form", f"user|{user.name}" if user else f"session|{session}")

    def is_form_token(self, request: HTTPConnection, token: str) -> bool:
        """Whether a form sent the token of its session, or of its user."""
        mine = self.form_token(request).encode()
        return hmac.compare_digest(mine, token.encode(errors="replace"))

    def _sign(self, purpose: str, text: str) -> str:
        content = f"{purpose}|{text}".encode(errors="replace")
        return hmac.new(self._secret, content, hashlib.sha256).hexdigest()


PEER = "persist_peer"
"""The key of a scope with the address that a connection comes from: a proxy's, if there is one."""
_USER = re.compile(r"[^\s\x00-\x1f\x7f,;|]{1,128}")


def peer_of(scope: Scope) -> str:
    """Return the address from which a connection comes."""
    return scope.get(PEER) or address_of(scope)


def address_of(scope: Scope) -> str:
    """Return the address of a client, as far as proxies report it."""
    return (scope.get("client") or ("?", 0))[0]


class _Buckets:
    """The requests that each client may still send; the least recent clients are forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> bool:
        now = self._clock()
        left, at = self._left.pop(client, (_BURST, now))
        left = min(_BURST, left + (now - at) * _RATE)
        self._left[client] = (max(left - 1, 0.0), now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 1


class Gate:
    """Refuses requests before anything is done for them, and adds headers to every answer.

    It refuses clients that ask too often, bodies that are too large or too slow, and changes
    requested by other sites' pages. Where everybody may do everything, it also refuses other host
    names, so that no page whose name was bound to this machine gets in, and everything that other
    sites' pages request except links to pages.
    """

    def __init__(self, app: ASGIApp, access: Access, hosts: frozenset[str]) -> None:
        self._app, self._access, self._hosts = app, access, hosts
        self._buckets = _Buckets(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
            body = await _body(scope, receive)
        except Refused as refused:
            await problem(refused)(scope, receive, sending)
            return
        sent = False

        async def receiving() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # the end of the connection
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receiving, sending)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._access.is_open and _name(host) not in self._hosts:
            raise Refused(421, "misdirected", "the request is for another host", "use localhost")
        self._access.check_origin(scope)
        caller = None if self._access.is_open else self._access.of_scope(scope)
        address = address_of(scope)
        if not self._buckets.take(f"token {caller.name}" if caller else f"address {address}"):
            raise Refused(429, "too-many-requests", "too many concurrent requests")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site in (None, "same-origin", "none") and (
            origin is None or _place(origin) == host.lower()
        ):
            return
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            raise Refused(403, "cross-site", "pages of other sites must not change anything here")
        # Without tokens, such a page cannot be told from the user, and every answer costs time.
        is_link = headers.get("sec-fetch-mode") == "navigate" and not scope["path"].startswith(API)
        if self._access.is_open and not is_link:
            raise Refused(403, "cross-site", "pages of other sites must not read anything here")


def _place(origin: str) -> str | None:
    """Return the host and port of an origin, or None."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host.lower())
    return match[1].strip("[]") if match else ""


async def _body(scope: Scope, receive: Receive) -> bytes:
    too_large = Refused(413, "too-large", f"a request must have at most {MAX_BODY:,} bytes")
    declared = Headers(scope=scope).get("content-length", "0")
    if not declared.isdigit() or int(declared[:12]) > MAX_BODY:
        raise too_large
    read = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "cut-off", "the request ended before its body did")
                read += message.get("body", b"")
                if len(read) > MAX_BODY:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(read)
    except TimeoutError:
        raise Refused(408, "too-slow", f"the request took more than {_BODY_S:g} seconds") from None
