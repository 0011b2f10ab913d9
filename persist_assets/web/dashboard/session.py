"""Logging in with a token, and logging out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from persist_assets.web.access import SESSION, SESSION_S, address_of
from persist_assets.web.dashboard.frame import PAGES, read_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame


_ACTIONS = ("/taint", "/retry", "/promote", "/rollback")
"""The pages that ask for confirmation."""


async def log_in(frame: Frame, request: Request) -> Response:
    """Show the login form, or start a session for a token."""
    if frame.access.is_open:
        return RedirectResponse("/", 303)
    if request.method == "GET":
        return frame.page(request, None, "login.html", "Log in", wrong=None)
    token = (await read_form(request)).get("token", "").strip()
    caller = frame.access.of_token(token)
    if caller is None:
        frame.access.refused(request.scope, "unknown or expired token at the login")
        return frame.page(request, None, "login.html", "Log in", 401, wrong="Unknown token.")
    if frame.access.audit is not None:
        address = address_of(request.scope)
        frame.access.audit.note("logged-in", address=address, who=caller.name, how="token")
    answer = RedirectResponse(_own_page(request.query_params.get("next", "/")), 303)
    answer.set_cookie(
        SESSION,
        frame.access.begin(token),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=frame.access.is_secure(request.url.scheme, request.headers),
    )
    return answer


def _own_page(path: str) -> str:
    r"""Return an address if it is that of one of our pages, and the first page otherwise.

    Examples
    --------
    >>> [_own_page(p) for p in ("/sources/a%20b?page=2", "//evil.example", "/sources\\evil")]
    ['/sources/a%20b?page=2', '/', '/']
    """
    match = re.match(r"/[a-z]+(?=[/?]|$)", path)
    is_ours = match is not None and match[0] in {*_ACTIONS, *(page for page, _ in PAGES)}
    return path if is_ours and "\\" not in path else "/"


async def log_out(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """End the session, here and in the browser."""
    frame.access.end(request.cookies.get(SESSION))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(SESSION)
    return answer
