"""The progress of work on stderr: live in a terminal, as lines in a file."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from persist_assets.core.settings.durations import in_short

if TYPE_CHECKING:
    from rich.status import Status

    from persist_assets.building.progress import Begun, Ended, Progress

log = logging.getLogger(__name__)

COLOURS = {"built": "yellow", "reused": "green", "failed": "red", "skipped": "dim"}
"""The colour of each action of a build."""
_EVERY_S = 0.25
_PATIENCE_S = 1.0
"""The maximum time of a look at Spark once the builds have ended, in seconds."""
_MOST = 8
"""The maximum number of builds that the display shows."""


@contextmanager
def shown(console: Console, *, lines: bool = True, live: bool = True) -> "Generator[Progress]":
    """Show the progress of builds within the block, which notes it in what it gets.

    Parameters
    ----------
    lines
        Print a line as each build ends, and except on a terminal also as it begins to compute rows.
    live
        A terminal also shows, at its bottom, what goes on.
    """
    from persist_assets.building.progress import Progress

    progress, stop = Progress(), threading.Event()
    display = _Display(console, progress, lines, live and console.is_terminal)
    thread = threading.Thread(
        target=display.run, args=(stop,), daemon=True, name="progress of builds"
    )
    thread.start()
    try:
        yield progress
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
        display.close()


class _Display:
    """Shows progress; where that fails, nothing is shown, and the builds go on."""

    def __init__(self, console: Console, progress: "Progress", lines: bool, live: bool) -> None:
        self._console, self._progress, self._lines = console, progress, lines
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None
        if live:
            # What others print is theirs: only the console's own lines move the display.
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def run(self, stop: threading.Event) -> None:
        """Show what is new, four times a second."""
        while not stop.wait(_EVERY_S):
            try:
                self._print(self._progress.news())
                if self._live is not None:
                    self._live.update(self._picture(), refresh=True)
            except Exception:
                log.debug(
                    "the progress of builds cannot be shown",
                    exc_info=True,
                    extra={"action": "progress"},
                )

    def close(self) -> None:
        """Remove the display, and print what has ended since the last look."""
        try:
            if self._live is not None:
                self._live.stop()
            self._print(self._progress.news())
        except Exception:
            log.debug(
                "the end of builds cannot be shown", exc_info=True, extra={"action": "progress"}
            )

    def _print(self, news: "Iterable[Begun | Ended]") -> None:
        from persist_assets.building.progress import Begun

        for one in news:
            if not self._lines:
                continue
            if isinstance(one, Begun):
                if self._live is None:
                    self._console.print(f"  building {escape(one.key)} ({one.method})")
                continue
            action = f"[{COLOURS[one.action]}]{one.action}[/]"
            self._console.print(f"  {action} {escape(one.in_words)}", soft_wrap=True)

    def _picture(self) -> Group:
        """Return what a terminal shows: builds under way, and a summary."""
        activity = self._progress.activity()
        state = self._progress.state()
        now = self._progress.clock()
        rows: list[Text] = []
        for begun in state.building[:_MOST]:
            expected = "" if begun.expected_s is None else f" of about {in_short(begun.expected_s)}"
            text = f"  {begun.key} ({begun.method}) {in_short(now - begun.since)}{expected}"
            rows.append(Text(text, no_wrap=True, overflow="ellipsis"))
        if len(state.building) > _MOST:
            rows.append(Text(f"  and {len(state.building) - _MOST} more", style="dim"))
        words = state.in_words(activity)
        self._spinner.update(text=Text(words, no_wrap=True, overflow="ellipsis"))
        return Group(*rows, self._spinner)


class Compiling:
    """Shows the progress of compiling Malloy files on stderr if it takes long.

    A terminal shows one line, which disappears; otherwise a line is printed every ten seconds.

    Parameters
    ----------
    clock
        Returns seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._due = clock() + (_QUIET_S if console.is_terminal else _LINES_S)
        self._status: Status | None = None

    def __call__(self, done: int, n: int) -> None:
        """Show that `done` of `n` files are compiled."""
        if self._clock() < self._due:
            return
        line = f"compiling Malloy: {done} of {n} files"
        if not self._console.is_terminal:
            self._console.print(line)
            self._due = self._clock() + _LINES_S
        elif self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        else:
            self._status.update(line)

    def __enter__(self) -> Self:
        """Return itself; nothing is shown yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        if self._status is not None:
            self._status.stop()


_QUIET_S, _LINES_S = 1.0, 10.0
