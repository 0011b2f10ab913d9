"""The service as one application, and its server."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from persist_assets.core.errors import PersistError, SettingsError
from persist_assets.core.settings.service import check_proxy
from persist_assets.web import api, dashboard
from persist_assets.web.access import (
    PEER,
    TOKENS,
    Access,
    Caller,
    Gate,
    Refused,
    address_of,
    is_loopback,
    problem,
)
from persist_assets.web.audit import Audit
from persist_assets.web.connections import LARGEST_HEAD, limited_protocol
from persist_assets.web.graph import Graph
from persist_assets.web.timing import Timed
from persist_assets.web.tokens import TOKEN_FILE, TokenFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

STOP_S = 4
"""The time for which requests may continue after a signal to stop, in seconds."""
_SWITCH_S = 0.0005
_MOST_OPEN = 3000
"""The maximum number of open connections; further clients get a 503 response."""
_ACCEPTED_AT_ONCE = 100
"""The maximum number of connections accepted at a time, so that the oldest unfinished ones can be
closed in between."""
_BACKLOG = 4096
"""The number of connections that the system queues until they are accepted."""
_AUDIT_S = 2.0
"""The maximum wait for pending records of the audit log when the service ends, in seconds."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def make_app(
    graph: Graph, tokens: Mapping[str, Caller], *, proxies: Sequence[str] = ()
) -> Starlette:
    """Return the service of a graph; without tokens, everybody on this machine may do everything.

    Parameters
    ----------
    proxies
        The addresses or networks of proxies that speak TLS and through which clients reach it.
    """
    settings, environment = graph.settings, graph.settings.environment

    def record(kind: str, data: Mapping[str, Any]) -> None:
        graph.ledger.events.note(kind, {"environment": environment, **data})

    audit = Audit(record, time.monotonic)
    access = Access(
        tokens,
        clock=time.time,
        has_proxy=bool(proxies),
        file=TokenFile(settings.state_dir / TOKEN_FILE),
        roles=settings.roles,
        service=replace(settings.service, proxies=tuple(proxies)),
        audit=audit,
    )

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncGenerator[None]:
        graph.start()
        try:
            yield
        finally:
            await graph.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_AUDIT_S):
                    await asyncio.get_running_loop().run_in_executor(None, audit.close)

    return Starlette(
        routes=[*api.routes(graph, access), *dashboard.pages(graph, access)],
        middleware=[
            Middleware(Timed, access=access, latencies=graph.latencies),
            Middleware(Gate, access=access, hosts=_LOOPBACK),
        ],
        exception_handlers={
            Refused: _refused,
            PersistError: _failed,
            HTTPException: _unknown,
            Exception: _defect,
        },
        lifespan=life,
    )


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, PersistError)
    # Both may hold what a client made up, such as the ends of lines.
    log.info("action=refuse path=%r error=%r", request.scope["path"], error.message)
    return problem(api.refusal(error))


def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
    refused = Refused(error.status_code, code, f"{request.method} {request.url.path[:200]}")
    answer = problem(refused)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


def _defect(request: Request, error: Exception) -> Response:
    return problem(Refused(500, "defect", "this should not happen: see the service's log"))


class _Server(uvicorn.Server):
    """A server that answers waiting clients before it stops."""

    def __init__(self, config: uvicorn.Config, graph: Graph) -> None:
        super().__init__(config)
        self._graph = graph

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._graph.stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)


def _known(app: ASGIApp, proxies: Sequence[str]) -> ASGIApp:
    """Return an application that knows both clients and the proxies through which they come."""
    forwarded: Any = ProxyHeadersMiddleware(app, [*proxies]) if proxies else app  # pyright: ignore[reportArgumentType]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[PEER] = address_of(scope)
        await forwarded(scope, receive, send)

    return serve


def _allow_files() -> None:
    """Raise the process's limit of open files to what its connections need."""
    try:
        import resource
    except ImportError:  # this system has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2 * _MOST_OPEN:
        most = 2 * _MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, 2 * _MOST_OPEN)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only on sockets that say that they are of TCP. On others,
    # the body of an answer waits 40 ms for the acknowledgement of its head.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise SettingsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="is it already running? --port 0 picks any free port",
        ) from error
    return listening


def serve(
    settings: Settings,
    ledger: Ledger,
    tokens: Mapping[str, Caller],
    *,
    host: str,
    port: int,
    builds: bool = False,
    proxies: Sequence[str] = (),
    started: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    Parameters
    ----------
    port
        Zero: any free port.
    builds
        See `Graph`.
    proxies
        The addresses or networks of proxies whose headers about clients are trusted.
    started
        Called with the service's address once it listens.

    Raises
    ------
    SettingsError
        Others could reach it, but there are no tokens; a proxy is not an address or network; or
        it cannot listen there.
    """
    for proxy in proxies:
        check_proxy(proxy, None, "--proxy")
    proxies = (*settings.service.proxies, *proxies)
    has_tokens = tokens or TokenFile(settings.state_dir / TOKEN_FILE).exists()
    if not (has_tokens or settings.service.user_header) and (proxies or not is_loopback(host)):
        raise SettingsError(
            f"other hosts can reach {'it through a proxy' if proxies else host},"
            " but no tokens are set",
            hint=f"run persist token create NAME, set {TOKENS}=name:write:token, or use"
            " --host 127.0.0.1 without --proxy",
        )
    _allow_files()
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host

    # An evaluation of many wants computes for seconds. With this interval, other requests soon get
    # the interpreter again after they have waited for a file or the ledger.
    sys.setswitchinterval(_SWITCH_S)

    async def run() -> None:
        graph = Graph(settings, ledger, builds=builds)
        config = uvicorn.Config(
            _known(make_app(graph, tokens, proxies=proxies), proxies),
            http=limited_protocol(),
            h11_max_incomplete_event_size=LARGEST_HEAD,
            backlog=_ACCEPTED_AT_ONCE,
            log_config=None,
            access_log=False,
            proxy_headers=False,  # see `_known`
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=STOP_S,
            limit_concurrency=_MOST_OPEN,
        )
        started(f"http://{shown}:{listening.getsockname()[1]}")
        await _Server(config, graph).serve(sockets=[listening])

    # After it has stopped, the server raises the signals that ended it again; that is no failure.
    handlers = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        asyncio.run(run())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        listening.close()


def is_busy() -> bool:
    """Whether a thread of the service is still working for clients that have gone."""
    return any(t.name.startswith("persist-") and t.is_alive() for t in threading.enumerate())
