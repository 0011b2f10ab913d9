"""What is served: the ledger, the sources as they are now, and who waits for events.

The invariant: the event loop waits for no database. What asks one runs in a few threads, what plans
in one; and however many clients wait for events, one question at a time is asked for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, sound
from persist_assets.core.errors import PersistError
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.user import make_private
from persist_assets.wants.requests import TAKERS, check_want, evaluate_now, find_untaken
from persist_assets.wants.schedules import make_wants
from persist_assets.wants.upstreams import sync_all
from persist_assets.web.access import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.wants import Evaluation, Request, Want
    from persist_assets.ledger.ledger import Ledger

    Result = TypeVar("Result")

log = logging.getLogger(__name__)

_READERS = 4
BUILD_LOG = "serve-build.log"
"""The file below `.persist` that processes which build write to."""
_TICK_S = 30.0
"""How often it is looked whether more can be built, in seconds."""
_SOON_S = 5.0
"""How long who asks for numbers waits for what plans, in seconds."""
_LONGEST_REST_S = 60.0
"""How long an evaluation waits for the end of the pause after the last one, at most, in seconds."""
_LOOK_S = 0.2
"""How often the log is looked at while somebody waits for it, in seconds."""


class Graph:
    """A project and its ledger, as the service shows them.

    Parameters
    ----------
    ledger
        Closed by who opened it.

    builds
        What is requested is built too, by one process after the other.

    Attributes
    ----------
    evaluations, evaluation_s
        How many there were in this process, and how long they took together.
    stopping
        Set once: whoever waits is answered at once.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        builds: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.builds = builds
        self.settings, self.ledger, self.clock = settings, ledger, clock
        self.evaluations, self.evaluation_s = 0, 0.0
        self.stopping, self.waiting = False, 0
        self._reading = ThreadPoolExecutor(_READERS, "persist-read")
        self._planning = ThreadPoolExecutor(1, "persist-plan")
        self._glancing = ThreadPoolExecutor(1, "persist-glance")
        self._compiling = threading.Lock()
        self._project: tuple[object, Project] | None = None
        self._looking: asyncio.Future[Observer] | None = None
        self._position = 0
        self._moved, self._awaited, self._wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to look at the log, and to evaluate what is wanted; in the event loop."""
        begun = (self._watch, self._evaluate, *((self._build,) if self.builds else ()))
        self._tasks = [asyncio.create_task(act()) for act in begun]

    def stop(self) -> None:
        """Answer everybody who waits; nothing is begun any more."""
        self.stopping = True
        self._wake()

    async def close(self) -> None:
        """Forget what was begun; what a thread does right now it finishes."""
        self.stop()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for pool in (self._reading, self._planning, self._glancing):
            pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------- threads

    async def read(self, act: Callable[[], Result]) -> Result:
        """Return what a short question to the ledger answers."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, act)

    async def glance(self, act: Callable[[], Result]) -> Result:
        """Return what something short answers that needs the sources and plans nothing.

        It waits for no plan, and no evaluation: these take long where much is wanted.
        """
        return await asyncio.get_running_loop().run_in_executor(self._glancing, act)

    async def plan(self, act: Callable[[], Result]) -> Result:
        """Return what something answers that looks at sources and data; one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._planning, act)

    # ------------------------------------------------------------------------------- sources

    def observer(self) -> Observer:
        """Return a new observer of the sources and data as they are now.

        Called in the threads that plan or glance. Sources with errors are left out, as with
        ``--keep-going``: the others' wants can wait for no editor.

        Raises
        ------
        SettingsError
            There are no sources.
        """
        with self._compiling:
            seen = self._signature()
            if self._project is None or self._project[0] != seen:
                project = load_project(self.settings)
                self._project = (seen, sound(project))
            project = self._project[1]
        return Observer(self.settings, project, self.ledger, clock=self.clock)

    async def project(self) -> Project | None:
        """Return the sources as they are now, or as they were last seen where compiling takes long.

        None where there are none, and nobody has seen any.
        """
        if self._looking is None or self._looking.done():  # who gave up left it for the next
            self._looking = asyncio.ensure_future(self.glance(self.observer))
        with suppress(TimeoutError, PersistError):
            async with asyncio.timeout(_SOON_S):
                await asyncio.shield(self._looking)
        return self._project and self._project[1]

    def _signature(self) -> object:
        """Return what is another one when files of the sources have changed."""
        root, told = self.settings.root, list[object]()
        for path in (root / SETTINGS_FILE, *(root / self.settings.sources).rglob("*")):
            with suppress(OSError):
                at = path.stat()
                told.append((str(path), at.st_mtime_ns, at.st_size))
        return sorted(map(repr, told))

    # --------------------------------------------------------------------------------- wants

    async def create(self, want: Want) -> tuple[Want, Sequence[str], bool]:
        """Record a want, and have everything wanted evaluated soon.

        Returns
        -------
        want, warnings, made
            As it is now, what is odd about it, and whether it was not there before.

        Raises
        ------
        NotFoundError
            It names nothing.
        SettingsError
            It cannot be.
        ConflictError
            Its id is another one's.
        """

        def record() -> tuple[Want, Sequence[str], bool]:
            checked, warnings = check_want(self.observer(), want)
            there = self.ledger.wants.find(checked.want_id)
            (made,) = self.ledger.wants.create([checked])
            return made, [*warnings, *self.find_problems()], there is None

        told = await self.glance(record)
        self._wanted.set()
        return told

    def find_problems(self) -> list[str]:
        """Return why nothing of what is wanted is built; called in a thread."""
        message = find_untaken(self.ledger, self.settings.environment, self.clock())
        return [] if message is None else [f"{message}; {TAKERS}"]

    async def evaluate(
        self, trigger: str, *, force: bool = False
    ) -> tuple[Evaluation, Request | None]:
        """Decide what is to be done about the wants now: see `requests.evaluate_now`."""

        def act() -> tuple[Evaluation, Request | None]:
            began = time.monotonic()
            try:
                return evaluate_now(self.observer(), trigger, force=force)
            finally:
                self.evaluations += 1
                self.evaluation_s += time.monotonic() - began

        return await self.plan(act)

    async def _evaluate(self) -> None:
        """Evaluate after wants were made: once for all that came meanwhile.

        After an evaluation the next one waits as long as it took, so that at most half of the time
        goes into evaluations, however many wants come and however many there are.
        """
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            began = time.monotonic()
            try:
                await self.evaluate("want")
            except PersistError as error:
                # It stays wanted: the next evaluation of anybody sees to it.
                log.warning("action=evaluate error=%s", error)
            except Exception:
                log.exception("action=evaluate")
            await asyncio.sleep(min(time.monotonic() - began, _LONGEST_REST_S))

    # -------------------------------------------------------------------------------- builds

    async def _build(self) -> None:
        """Build what is requested, and look from time to time whether more can be."""
        while not self.stopping:
            try:
                position = await self.read(self.ledger.events.position)
                request = await self.read(self._next_request)
                if request is not None:
                    await self._run(request)
                if request is not None or not await self.moved(position, _TICK_S):
                    await self.evaluate(await self._look_around())
            except PersistError as error:
                log.warning("action=build error=%s", error)
                await asyncio.sleep(_TICK_S)

    async def _look_around(self) -> str:
        """Read other graphs, make the wants that are due, and return what is to be evaluated by."""
        observer = await self.plan(self.observer)
        synced = await self.read(lambda: sync_all(observer))  # may take long, and plans nothing
        for of in synced:
            if of.problem is not None:
                log.warning("action=sync graph=%s problem=%s", of.graph, of.problem)
        await self.plan(lambda: make_wants(observer, "persist serve"))
        return "upstream" if any(of.available for of in synced) else "clock"

    def _next_request(self) -> Request | None:
        """Return the oldest request that nobody has begun."""
        found = self.ledger.requests.fetch(self.settings.environment, is_open=True)
        return next((r for r in reversed(found) if r.state == "requested"), None)

    async def _run(self, request: Request) -> None:
        """Build a request in a process of its own, which ends with this one."""
        make_private(self.settings.state_dir)
        own = ("--project", str(self.settings.root), "--env", self.settings.environment)
        with (self.settings.state_dir / BUILD_LOG).open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "persist_assets.cli", *own),
                *("evaluate", "--request", request.request_id),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={k: v for k, v in os.environ.items() if k != TOKENS},
            )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # it records that it was interrupted
            raise

        def look() -> None:
            now = self.ledger.requests.find(request.request_id)
            if now is not None and now.state == "requested":
                told = f"its process ended with {code} before it started: .persist/{BUILD_LOG}"
                self.ledger.requests.fail(request.request_id, told)

        await self.read(look)

    # -------------------------------------------------------------------------------- events

    async def moved(self, idx: int, seconds: float) -> bool:
        """Wait until the log goes on beyond a position; False if it does not so long."""
        self.waiting += 1
        self._awaited.set()
        try:
            async with asyncio.timeout(seconds):
                while self._position <= idx and not self.stopping:
                    await self._moved.wait()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        return not self.stopping

    def _wake(self) -> None:
        before, self._moved = self._moved, asyncio.Event()
        before.set()

    async def _watch(self) -> None:
        """Look at the log as long as somebody waits for it to go on."""
        while not self.stopping:
            if not self.waiting:
                self._awaited.clear()
                await self._awaited.wait()
            try:
                position = await self.read(self.ledger.events.position)
                if position != self._position:
                    self._position = position
                    self._wake()
            except PersistError as error:
                log.warning("action=watch error=%s", error)
            await asyncio.sleep(_LOOK_S)
