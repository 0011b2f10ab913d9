"""The response times of the service: an access log, and histograms for Prometheus.

The invariant: neither has data from clients. Paths are those of routes (`/api/v1/wants/{want_id}`),
queries are left out, and callers have the names of their tokens.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from persist_assets.web.access import SESSION, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from persist_assets.web.access import Access

log = logging.getLogger(__name__)

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the histogram of requests, in seconds."""
BUILD_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
"""The upper bounds of the histogram of builds, in seconds."""
UNKNOWN = "(unknown)"
"""The path of requests that match no route."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GONE = 499
"""The status of requests whose client left before the answer began."""


@dataclass(slots=True)
class Counted:
    """The requests of one method, path and status.

    Attributes
    ----------
    counts
        The number of requests up to each bound and above the previous one; the last one: above all.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a request."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Latencies:
    """The durations of requests since the service began, by method, path and status."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, str, int], Counted] = {}

    def add(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.counted.setdefault((method, path, status), Counted()).add(seconds)


def histogram(
    name: str, labels: str, bounds: Sequence[float], counts: Sequence[int], seconds: float
) -> Iterator[str]:
    """Yield the lines of a histogram in the format of Prometheus.

    Parameters
    ----------
    labels
        Pairs with commas between them, without braces.
    counts
        The counts between the bounds, and above the last one.
    """
    total = 0
    for bound, count in zip((*map("{:g}".format, bounds), "+Inf"), counts, strict=True):
        total += count
        yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
    yield f"{name}_sum{{{labels}}} {seconds:.6f}"
    yield f"{name}_count{{{labels}}} {total}"


class Timed:
    """Measures and logs requests; it wraps everything else."""

    def __init__(self, app: ASGIApp, access: Access, latencies: Latencies) -> None:
        self._app, self._access, self._latencies = app, access, latencies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), _GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            status = 500  # whoever stands around this one answers
            raise
        finally:
            seconds = time.perf_counter() - began
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            path = getattr(scope.get("route"), "path", UNKNOWN)
            self._latencies.add(method, path, status, seconds)
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "action=http-request method=%s path=%s status=%d ms=%.1f caller=%s client=%s",
                    *(method, path, status, round(seconds * 1000, 1)),
                    *(self._caller(scope), (scope.get("client") or ("",))[0]),
                )

    def _caller(self, scope: Scope) -> str:
        """Return the name of the caller's token; ``-`` without a valid one."""
        headers = Headers(scope=scope)
        try:
            caller = self._access.of_scope(scope)
        except Refused:
            return "-"
        if caller is None and "cookie" in headers:
            caller = self._access.of_cookie(cookie_parser(headers["cookie"]).get(SESSION))
        return caller.name if caller is not None else "-"
