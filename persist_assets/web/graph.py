"""The state that the service serves: the ledger, the current sources, and waiting clients.

The invariant: the event loop waits for no database. Queries run in a few threads, plans in one;
and however many clients wait for events, one query at a time serves all of them.
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, sound
from persist_assets.core.errors import PersistError, SettingsError
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.user import make_private
from persist_assets.ledger.log import UNPLANNED
from persist_assets.operations.alerting.turn import take_turn
from persist_assets.wants.requests import TAKERS, check_want, evaluate_now, find_untaken
from persist_assets.wants.schedules import make_wants
from persist_assets.wants.upstreams import sync_all
from persist_assets.web.access import TOKENS
from persist_assets.web.roles import require_build
from persist_assets.web.sharing import Kept, Shared
from persist_assets.web.timing import Latencies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.wants import Evaluation, Request, Want
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.log import Mark
    from persist_assets.web.access import Caller

    Result = TypeVar("Result")

log = logging.getLogger(__name__)

_READERS = 4
BUILD_LOG = "serve-build.log"
"""The log file of build processes, below `.persist`."""
_TICK_S = 30.0
"""The interval between checks whether more can be built, in seconds."""
_SOON_S = 5.0
"""The maximum time that a request waits for the sources or a plan, in seconds."""
_PLAN_AGE = timedelta(seconds=30)
"""The time for which a plan is shown without an event: raw data may change without one."""
_REST = 3
"""The length of the pause after an evaluation, relative to that of the evaluation."""
_LONGEST_REST_S = 60.0
"""The longest pause between two evaluations, in seconds."""
_TRIM_S = 86_400.0
"""The time from one trim of the log to the next, in seconds."""
_LOOK_S = 0.2
"""The interval between looks at the log while a client waits for it, in seconds."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a build of everything, at an instant and after an event of the log.

    Attributes
    ----------
    mark
        The last event that is known to change nothing of it, or that it follows from.
    is_old
        A newer plan is due, and takes long.
    """

    plan: Plan
    project: Project
    at: datetime
    mark: Mark
    is_old: bool = False


class Graph:
    """A project and its ledger, as served.

    Parameters
    ----------
    ledger
        The caller closes it.
    builds
        Whether the service also builds requests, in one process after the other.

    Attributes
    ----------
    evaluations, evaluation_s
        The number of evaluations in this process, and their total time.
    latencies
        The durations of requests.
    build_times, source_records
        The data from which metrics are made, until an event may have changed it.
    stopping
        Once set, waiting clients are answered at once.
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
        self.latencies = Latencies()
        self.stopping, self.waiting = False, 0
        self._reading = ThreadPoolExecutor(_READERS, "persist-read")
        self._planning = ThreadPoolExecutor(1, "persist-plan")
        self._glancing = ThreadPoolExecutor(1, "persist-glance")
        self._alerting = ThreadPoolExecutor(1, "persist-alert")
        self._compiling = threading.Lock()
        self._settings_state = _state_of(settings.root / SETTINGS_FILE)
        self._project: tuple[object, Project] | None = None
        self._modules: frozenset[str] = frozenset()
        self._looking: asyncio.Future[Observer] | None = None
        self._planned: Planned | None = None
        self._unplannable: PersistError | None = None
        self._replanning: asyncio.Future[Planned] | None = None
        self._shared: dict[str, Shared] = {}
        self.build_times = Kept[Any](ledger.events, UNPLANNED)
        self.source_records = Kept[Any](ledger.events, UNPLANNED)
        self._position = 0
        self._moved, self._awaited, self._evaluation_due = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Start watching the log and evaluating wants, in the event loop."""
        loops = [self._watch, self._evaluate]
        if self.builds:
            loops += [self._build, *((self._alert,) if self.settings.channels else ())]
            loops += (self._trim,) if self.settings.retention.events_s else ()
        self._tasks = [asyncio.create_task(act()) for act in loops]

    def stop(self) -> None:
        """Answer all waiting clients, and start nothing new."""
        self.stopping = True
        self._wake()

    async def close(self) -> None:
        """Cancel all tasks; threads finish what they are doing."""
        self.stop()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for pool in (self._reading, self._planning, self._glancing, self._alerting):
            pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------- threads

    async def read(self, act: Callable[[], Result]) -> Result:
        """Return the result of a short query of the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, act)

    async def glance(self, act: Callable[[], Result]) -> Result:
        """Return the result of a short function that needs the sources but makes no plan.

        It waits for no plan and no evaluation, which take long if there are many wants.
        """
        return await asyncio.get_running_loop().run_in_executor(self._glancing, act)

    async def plan(self, act: Callable[[], Result]) -> Result:
        """Return the result of a function that plans; one runs at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._planning, act)

    async def shared(self, name: str, act: Callable[[], Awaitable[Result]]) -> Result:
        """Return a result that is the same for all clients; see `Shared`.

        Parameters
        ----------
        name
            The name of the result, of which `act` depends on nothing else.
        """
        return await self._shared.setdefault(name, Shared()).get(act)

    # ------------------------------------------------------------------------------- sources

    def observer(self) -> Observer:
        """Return a new observer of the current sources and data.

        Call it in the threads that plan or glance. It leaves out sources with errors, as
        ``--keep-going`` does, so that wants of the others do not wait for a fix.

        Raises
        ------
        SettingsError
            There are no sources, or the settings were changed and are invalid now, or name another
            ledger.
        """
        with self._compiling:
            self._reload_settings()
            signature = self._signature()
            if self._project is None or self._project[0] != signature:
                project = load_project(self.settings)
                self._modules = _modules_of(project)
                self._project = (signature, sound(project))
            project, settings = self._project[1], self.settings
        return Observer(settings, project, self.ledger, clock=self.clock)

    def _reload_settings(self) -> None:
        """Read the settings again if their file has changed, as build processes do."""
        state = _state_of(self.settings.root / SETTINGS_FILE)
        if state == self._settings_state:
            return
        settings = load_settings(self.settings.root, environment=self.settings.environment)
        if settings.ledger != self.settings.ledger:
            message = f"{SETTINGS_FILE} names another ledger now"
            raise SettingsError(message, hint="restart the service")
        self.settings, self._settings_state = settings, state
        self._project = None

    async def project(self) -> Project | None:
        """Return the current sources, or the last ones compiled if compiling takes long.

        None if none have been compiled yet.
        """
        # A request that timed out leaves its compilation to the next one.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self.glance(self.observer))
        with suppress(TimeoutError, PersistError):
            async with asyncio.timeout(_SOON_S):
                await asyncio.shield(self._looking)
        return self._project and self._project[1]

    @property
    def keys(self) -> Mapping[SourceID, str]:
        """The asset keys of the sources compiled last; empty if none have been."""
        return self._project[1].keys if self._project is not None else {}

    async def recent_plan(self) -> Planned | None:
        """Return the plan for everything, at most half a minute old.

        If planning takes long, return the last plan, which says when it was made; None if there is
        none yet.

        Raises
        ------
        PersistError
            No plan can be made.
        """
        if (recent := await self._recent()) is not None:
            return recent
        # A request that timed out leaves its plan to the next one.
        if self._replanning is None or self._replanning.done():
            self._replanning = asyncio.ensure_future(self.plan(self._make_plan))
            self._replanning.add_done_callback(lambda f: f.cancelled() or f.exception())
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON_S):
                return await asyncio.shield(self._replanning)
        if self._unplannable is not None:  # so the last plan does not stay for ever
            raise self._unplannable
        return self._planned and replace(self._planned, is_old=True)

    async def _recent(self) -> Planned | None:
        """Return the last plan, unless it may be another one now, or the sources changed."""
        last = self._planned
        mark, is_same = await self.read(
            lambda: self.ledger.events.mark(last and last.mark, UNPLANNED)
        )
        if last is None or not is_same or self.clock() - last.at >= _PLAN_AGE:
            return None
        if self._planned is last:
            last = self._planned = replace(last, mark=mark)
        is_compiled = self._project is not None and self._project[1] is last.project
        return last if is_compiled else None

    def _make_plan(self) -> Planned:
        try:
            mark, _ = self.ledger.events.mark(None, ())
            observer = self.observer()
            plan = observer.plan([s.source_id for s in observer.project.persisted])
        except PersistError as error:
            self._unplannable = error
            raise
        self._unplannable = None
        self._planned = Planned(plan, observer.project, observer.started_at, mark)
        return self._planned

    def _signature(self) -> object:
        """Return a value that changes when files of the sources, or modules, change.

        The modules are those of the project compiled last: after others, it is compiled once more.
        """
        root, modules = self.settings.root, self._modules
        paths = {*(root / self.settings.sources).rglob("*"), *(root / path for path in modules)}
        return {str(path): _state_of(path) for path in paths}

    # --------------------------------------------------------------------------------- wants

    async def create(self, want: Want, caller: Caller) -> tuple[Want, Sequence[str], bool]:
        """Record a want, and have all wants evaluated soon.

        Parameters
        ----------
        caller
            Who wants it.

        Returns
        -------
        want, warnings, is_new
            The current want, warnings about it, and whether it was just created.

        Raises
        ------
        NotFoundError
            Its reference names nothing.
        SettingsError
            It is invalid.
        ConflictError
            Another want has its ID.
        Refused
            The caller may not build it.
        """

        def record() -> tuple[Want, Sequence[str], bool]:
            require_build(caller, self.observer, want.partition_ref)
            checked, warnings = check_want(self.observer(), want)
            previous = self.ledger.wants.find(checked.want_id)
            (recorded,) = self.ledger.wants.create([checked])
            return recorded, [*warnings, *self.find_problems()], previous is None

        result = await self.glance(record)
        self._evaluation_due.set()
        return result

    def find_problems(self) -> list[str]:
        """Return warnings if nothing builds requests; call it in a thread."""
        message = find_untaken(self.ledger, self.settings.environment, self.clock())
        return [] if message is None else [f"{message}; {TAKERS}"]

    async def evaluate(
        self, trigger: str, *, force: bool = False
    ) -> tuple[Evaluation, Request | None]:
        """Evaluate the wants now: see `requests.evaluate_now`."""

        def act() -> tuple[Evaluation, Request | None]:
            began = time.monotonic()
            try:
                evaluation, request = evaluate_now(self.observer(), trigger, force=force)
            finally:
                self.evaluations += 1
                self.evaluation_s += (seconds := time.monotonic() - began)
            measured = trigger, seconds, len(evaluation.partitions)
            log.info("action=evaluated trigger=%s seconds=%.3f partitions=%d", *measured)
            return evaluation, request

        return await self.plan(act)

    async def _evaluate(self) -> None:
        """Evaluate after wants were created: once for all that have arrived since.

        Each evaluation is followed by a pause three times as long, so that evaluations take at most
        a quarter of the time, whatever the number of wants.
        """
        while True:
            await self._evaluation_due.wait()
            self._evaluation_due.clear()
            began = time.monotonic()
            try:
                await self.evaluate("want")
            except PersistError as error:
                # The wants stay open: the next evaluation of any process covers them.
                log.warning("action=evaluate error=%s", error)
            except Exception:
                log.exception("action=evaluate")
            await asyncio.sleep(min(_REST * (time.monotonic() - began), _LONGEST_REST_S))

    # -------------------------------------------------------------------------------- builds

    async def _build(self) -> None:
        """Build requests, and check from time to time whether more can be built."""
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
            except Exception:  # a process that cannot start, say: the request stays open
                log.exception("action=build")
                await asyncio.sleep(_TICK_S)

    async def _look_around(self) -> str:
        """Read other graphs, create the wants that are due, and return the evaluation's trigger."""
        observer = await self.plan(self.observer)
        synced = await self.read(lambda: sync_all(observer))  # may take long, but makes no plan
        for result in synced:
            if result.problem is not None:
                log.warning("action=sync graph=%s problem=%s", result.graph, result.problem)
        await self.plan(lambda: make_wants(observer, "persist serve"))
        return "upstream" if any(result.available for result in synced) else "clock"

    async def _alert(self) -> None:
        """Send alerts from time to time, in a thread of its own: builds wait for no channel."""
        loop = asyncio.get_running_loop()
        while not self.stopping:
            try:
                observer = await self.glance(self.observer)
                turn = await loop.run_in_executor(self._alerting, take_turn, observer)
                for problem in turn.problems:
                    log.warning("action=alert problem=%s", problem)
            except PersistError as error:
                log.warning("action=alert error=%s", error)
            except Exception:
                log.exception("action=alert")
            await asyncio.sleep(_TICK_S)

    def _next_request(self) -> Request | None:
        """Return the oldest request that no run has started."""
        requests = self.ledger.requests.fetch(self.settings.environment, is_open=True)
        return next((r for r in reversed(requests) if r.state == "requested"), None)

    async def _run(self, request: Request) -> None:
        """Build a request in a separate process, which ends with this one."""
        make_private(self.settings.state_dir)
        options = ("--project", str(self.settings.root), "--env", self.settings.environment)
        with (self.settings.state_dir / BUILD_LOG).open("ab") as log_file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "persist_assets.cli", *options),
                *("evaluate", "--request", request.request_id),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={k: v for k, v in os.environ.items() if k != TOKENS},
            )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # it records that it was interrupted
            raise

        def look() -> None:
            current = self.ledger.requests.find(request.request_id)
            if current is not None and current.state == "requested":
                message = f"its process ended with {code} before it started: .persist/{BUILD_LOG}"
                self.ledger.requests.fail(request.request_id, message)

        await self.read(look)

    async def _trim(self) -> None:
        """Archive and delete events once a day, as the settings say.

        It has a thread of its own, and may be interrupted: the next trim completes it.
        """
        from persist_assets.operations.trimming import trim

        seconds, pool = self.settings.retention.events_s, ThreadPoolExecutor(1, "persist-trim")

        def go_on(done: int, last: int) -> None:
            if self.stopping:
                raise InterruptedError

        def act() -> None:
            with suppress(InterruptedError):
                trim(self.settings, self.ledger, seconds, clock=self.clock, tell=go_on)

        while not self.stopping:
            try:
                await asyncio.get_running_loop().run_in_executor(pool, act)
            except PersistError as error:
                log.warning("action=trim error=%s", error)
            except Exception:
                log.exception("action=trim")
            await asyncio.sleep(_TRIM_S)

    # -------------------------------------------------------------------------------- events

    async def moved(self, idx: int, seconds: float) -> bool:
        """Wait until the log grows beyond a position; return False if it does not in time."""
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
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _watch(self) -> None:
        """Watch the log while a client waits for it to grow."""
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
            except Exception:
                log.exception("action=watch")
            await asyncio.sleep(_LOOK_S)


def _state_of(path: Path) -> tuple[int, int] | None:
    """Return values that change when a file changes; None if there is none."""
    with suppress(OSError):
        state = path.stat()
        return state.st_mtime_ns, state.st_size
    return None


def _modules_of(project: Project) -> frozenset[str]:
    """Return the files of modules that functions use, relative to the project's root."""
    functions = [s.function for s in project.sources if s.function is not None]
    functions += [udf.function for udf in project.udfs]
    return frozenset(path for function in functions for path, _ in function.modules)
