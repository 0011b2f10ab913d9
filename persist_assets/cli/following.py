"""The command follow: builds micro-batches for as long as it lives."""

import gc
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    out,
    print_error,
    print_json,
)
from persist_assets.cli.build import run_build
from persist_assets.cli.progress import COLOURS
from persist_assets.core.errors import (
    BuildError,
    NotFoundError,
    PersistError,
    SettingsError,
    Terminated,
)
from persist_assets.core.model.queries import SourceID
from persist_assets.core.settings.durations import parse_duration

if TYPE_CHECKING:
    from persist_assets.operations.documents.builds import RunDocument

_LONGEST_S = 300.0
"""The longest wait of a follower after failures, in seconds, unless its interval is longer."""


@command("follow")
def follow(
    invocation: Invocation,
    selection: SelectArgument = None,
    interval: Annotated[
        str, typer.Option("--interval", help="How often to look for newer data.")
    ] = "5s",
    until_idle: Annotated[
        str | None,
        typer.Option("--until-idle", metavar="DURATION", help="End after this time without work."),
    ] = None,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, help="End after this many batches.")
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option("--max-failures", min=1, help="End after this many failures in a row."),
    ] = None,
) -> None:
    """Build sources whenever their inputs have grown: one run for each batch."""
    every_s = _seconds("--interval", interval)
    idle_s = None if until_idle is None else _seconds("--until-idle", until_idle)
    chosen = invocation.select(selection)
    if not chosen:
        raise NotFoundError("no selected source can be followed")
    gc.enable()
    signal.signal(signal.SIGTERM, _end)
    try:
        _Follower(invocation, chosen, every_s, idle_s, max_batches, max_failures).run()
    except Terminated:
        err.print("ended")


def _end(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _seconds(option: str, text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None:
        raise SettingsError(f"{option}: `{text}` is not a duration", hint='for example, "5s"')
    return seconds


class _Follower:
    def __init__(
        self,
        invocation: Invocation,
        chosen: tuple[SourceID, ...],
        every_s: float,
        idle_s: float | None,
        max_batches: int | None,
        max_failures: int | None,
    ) -> None:
        from persist_assets.operations.watch import Watch

        self.invocation, self.chosen = invocation, chosen
        self.watch = Watch(invocation.settings, invocation.project, chosen)
        self.every_s, self.idle_s = every_s, idle_s
        self.max_batches, self.max_failures = max_batches, max_failures
        self.n_batches = self.n_failures = 0
        self.waiting: Mapping[SourceID, str] = {}
        self.renewed_at = self.busy_at = time.monotonic()

    def run(self) -> None:
        """Check for changes, build and wait, until stopped."""
        while True:
            try:
                self._look()
                self.n_failures = 0
            except PersistError as error:
                print_error(self.invocation, error)
                self._failed(type(error))
            except Exception as error:  # whatever it is, the next look may succeed
                if self.invocation.verbose:
                    err.print_exception()
                err.print(f"[red]error[/]: {escape(f'{type(error).__name__}: {error}')}")
                self._failed(BuildError)
            if self.n_batches == self.max_batches:
                return
            idle = time.monotonic() - self.busy_at
            if self.idle_s is not None and not self.n_failures and idle >= self.idle_s:
                return
            time.sleep(self._pause())

    def _look(self) -> None:
        due = self.watch.look(self.invocation.ledger)
        if due is not None:
            waiting = dict(due.waiting)
            for source_id, why in due.waiting:
                if source_id not in self.waiting:
                    name = source_id.partition("@")[0]
                    err.print(escape(f"{name} waits: {why}"), soft_wrap=True)
            self.waiting = waiting
        if due is not None and due.sources:
            self._batch(due.sources)
            self.n_batches += 1
            self.busy_at = time.monotonic()
        elif self._is_renewal_due():
            self._batch(tuple(s for s in self.chosen if s not in self.waiting))

    def _is_renewal_due(self) -> bool:
        renew_s = self.watch.renew_s
        return renew_s is not None and time.monotonic() - self.renewed_at >= renew_s

    def _batch(self, sources: tuple[SourceID, ...]) -> None:
        """Build sources in one run, and print the result.

        Raises
        ------
        PersistError
            Some of them failed.
        """
        started = time.monotonic()
        try:
            result, document = run_build(
                self.invocation,
                [self.invocation.project.by_id[s] for s in sources],
                lines=False,
            )
        finally:
            signal.signal(signal.SIGTERM, _end)  # Dagster turns it into an interrupt
        if self.invocation.as_json:
            print_json(document.as_json(), lines=True)
        else:
            self._print(document, time.monotonic() - started)
        if not result.success:
            first = result.failures[0] if result.failures else None
            kind = first.kind if first else BuildError
            raise kind(first.message if first else f"run {result.run_id} failed")
        self.renewed_at = time.monotonic()

    def _print(self, document: "RunDocument", seconds: float) -> None:
        parts: list[str] = []
        for row in document.builds:
            name = escape(row.source_id.partition("@")[0])
            rows = "" if row.rows is None else f" [dim]{row.rows:,} rows[/]"
            parts.append(f"[{COLOURS[row.action]}]{row.action}[/] {name}{rows}")
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        out.print(f"{at} {', '.join(parts)} [dim]{seconds:.1f} s[/]", soft_wrap=True)

    def _failed(self, kind: type[PersistError]) -> None:
        self.watch.forget()
        self.n_failures += 1
        if self.n_failures == self.max_failures:
            raise typer.Exit(exit_code(kind))
        err.print(f"[dim]again in {self._pause():.0f} s[/]")

    def _pause(self) -> float:
        longest = max(_LONGEST_S, self.every_s)
        return min(self.every_s * 2 ** min(self.n_failures, 20), longest)
