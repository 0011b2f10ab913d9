"""The frame of all pages: access, forms, links and templates."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import HTMLResponse, RedirectResponse

from persist_assets._paths import DASHBOARD
from persist_assets.core.errors import PersistError
from persist_assets.ledger.log import UNPLANNED
from persist_assets.web.access import Refused
from persist_assets.web.api import refusal
from persist_assets.web.dashboard.standings import StandingsReader
from persist_assets.web.layout import templates
from persist_assets.web.roles import forbidden
from persist_assets.web.sharing import Kept
from persist_assets.web.site.descriptions import BOX, Descriptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime
    from typing import TypeVar

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.project import Project
    from persist_assets.web.access import Access, Caller, Right
    from persist_assets.web.graph import Graph

    Item = TypeVar("Item")

log = logging.getLogger(__name__)

PAGES = (
    ("/", "Overview"),
    ("/sources", "Sources"),
    ("/runs", "Runs"),
    ("/wants", "Wants"),
    ("/partitions", "Partitions"),
    ("/environments", "Environments"),
    ("/timeline", "Timeline"),
    ("/sla", "Missed deadlines"),
    ("/events", "Events"),
)
"""The pages in the navigation."""
PER_PAGE = 50
"""The maximum number of rows of a table on one page."""
_LONGEST_QUERY = 2000


def to_source(name: str) -> str:
    """Return the address of a source's page, by its asset key or SourceID."""
    return f"/sources/{quote(name, safe='/@')}"


def to_partition(ref: str) -> str:
    """Return the address of a partition's page, or of the grid of a partitioned source."""
    return f"/partitions/{quote(ref)}"


def to_run(run_id: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(run_id, safe='')}"


def to_want(want_id: str) -> str:
    """Return the address of a want's page."""
    return f"/wants/{quote(want_id, safe='')}"


def to_environment(name: str) -> str:
    """Return the address of an environment's page."""
    return f"/environments/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Paged:
    """A part of a list.

    Attributes
    ----------
    number, count
        The number of this page, from one, and the number of pages.
    """

    items: Sequence[Any]
    number: int
    count: int
    total: int

    @classmethod
    def of(cls, items: Sequence[Item], request: Request, size: int = PER_PAGE) -> Paged:
        """Return the page that a request asks for; the last one if there are fewer."""
        count = max(1, -(-len(items) // size))
        text = request.query_params.get("page", "1")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
        number = min(max(number, 1), count)
        return cls(items[(number - 1) * size : number * size], number, count, len(items))


class Frame:
    """The objects that all pages share.

    Attributes
    ----------
    graph
        The service's state.
    access
        The permissions of callers.
    standings
        The states of all sources.
    """

    def __init__(self, graph: Graph, access: Access) -> None:
        self.graph, self.access = graph, access
        self.standings = StandingsReader(graph)
        self._run_starts: Kept[dict[str, datetime]] = Kept(graph.ledger.events, UNPLANNED)
        self._templates = templates(DASHBOARD / "templates")
        links = (to_source, to_partition, to_run, to_want, to_environment)
        self._templates.filters |= {link.__name__: link for link in links}
        self._described: tuple[Project, Descriptions] | None = None

    # ------------------------------------------------------------------------- who may see

    def shown(
        self, act: Callable[[Frame, Request, Caller], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a page so that only callers who have logged in see it."""

        async def serve(request: Request) -> Response:
            caller = self.access.of_page(request)
            if caller is None:
                query = request.url.query
                page = f"{path_of(request)}{f'?{query}' if query else ''}"
                return RedirectResponse(f"/login?next={quote(page, safe='')}", 303)
            if not self.graph.keys:
                await self.graph.project()  # pages name sources by their keys
            return await self._answer(request, caller, act(self, request, caller))

        return serve

    async def _answer(
        self, request: Request, caller: Caller, answer: Awaitable[Response]
    ) -> Response:
        """Return a response, or an error page."""
        try:
            return await answer
        except PersistError as error:
            status = refusal(error).status
            if status != 404:
                log.info("action=refuse path=%r error=%r", request.scope["path"], error.message)
            title = "Not found" if status == 404 else "Not available"
            return self.problem(request, caller, title, error, status)

    def changed(
        self,
        act: Callable[[Frame, Request, Caller, Mapping[str, str]], Awaitable[Response]],
        right: Right = "write",
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an action so that only our own forms, sent by callers with a right, trigger it."""

        async def serve(request: Request) -> Response:
            caller = self.access.of_page(request)
            if caller is None:
                return RedirectResponse("/login", 303)
            form = await read_form(request)
            if not self.access.is_form_token(request, form.get("form_token", "")):
                self.access.refused(request.scope, "invalid form token", caller.name)
                raise Refused(403, "cross-site", "invalid form token")
            if not caller.may(right):
                self.access.refused(request.scope, f"no right to {right}", caller.name)
                raise forbidden(caller, right)
            try:
                return await self._answer(request, caller, act(self, request, caller, form))
            except Refused as refused:
                if refused.status == 403:
                    self.access.refused(request.scope, refused.detail, caller.name)
                raise

        return serve

    # ----------------------------------------------------------------------------- content

    def descriptions(self, project: Project) -> Descriptions:
        """Return the entries of a project's sources that need no ledger."""
        if self._described is None or self._described[0] is not project:
            texts = dict[str, str]()
            root = self.graph.settings.root
            for path in {s.location.path for s in (*project.sources, *project.broken)}:
                try:
                    texts[path] = (root / path).read_text(encoding="utf-8-sig")
                except (OSError, UnicodeDecodeError):
                    continue  # the page says that the file cannot be read
            described = Descriptions(project, texts, lambda key: to_source("/".join(key))[1:])
            self._described = project, described
        return self._described[1]

    def latest_runs(self) -> dict[str, datetime]:
        """Return the names and starts of the runs of the first page; call it in a thread."""
        runs, environment = self.graph.ledger.runs, self.graph.settings.environment
        return self._run_starts.get(None, lambda: runs.fetch_starts(environment, limit=PER_PAGE))

    def problem(
        self, request: Request, caller: Caller, title: str, error: PersistError, status: int
    ) -> Response:
        """Return an error page."""
        wrong = error.message.partition("\n")[0]
        return self.page(
            request, caller, "problem.html", title, status, wrong=wrong, hint=error.hint
        )

    def page(
        self,
        request: Request,
        caller: Caller | None,
        template: str,
        title: str,
        status: int = 200,
        **values: Any,
    ) -> Response:
        """Return a page made of a template and its values."""

        def link(**changes: Any) -> str:
            """Return the address of this page with other parameters; None removes one."""
            parameters = {**request.query_params, **changes}
            parameters = {k: v for k, v in parameters.items() if v not in (None, "")}
            return f"{path_of(request)}?{urlencode(parameters)}".removesuffix("?")

        text = self._templates.get_template(template).render(
            title=title,
            environment=self.graph.settings.environment,
            pages=PAGES,
            here=f"/{path_of(request).split('/')[1]}",
            caller=caller,
            may_write=bool(caller and (caller.may("build") or caller.may("promote"))),
            may_decide=bool(caller and caller.may("write")),
            is_open=self.access.is_open,
            form_token=self.access.form_token(request),
            keys_by_id=self.graph.keys,
            now=self.graph.clock(),
            link=link,
            up="/",
            box=BOX,
            query=request.query_params,
            **values,
        )
        return HTMLResponse(text, status)


def path_of(request: Request) -> str:
    """Return the path of a request, as an address has it."""
    return quote(request.scope["path"], safe="/@")


def parameter(request: Request, name: str, default: str = "") -> str:
    """Return a parameter of a page's address, shortened, without characters no name has."""
    return request.query_params.get(name, default).strip().replace("\0", "")[:_LONGEST_QUERY]


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of repeated names, the last one.

    Raises
    ------
    Refused
        It is no form, or has too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "no-form", "this request must come from a form of the dashboard")
    text = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise Refused(400, "no-form", "the form has too many fields") from None
