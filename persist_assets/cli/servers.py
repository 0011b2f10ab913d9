"""Commands about state that outlives a run: the Spark server, the service and the ledger."""

import gc
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    command,
    err,
    ledger_app,
    out,
    print_json,
    spark_app,
)
from persist_assets.core.errors import LedgerError, SettingsError

# -------------------------------------------------------------------------------------------- spark


@command("start", spark_app)
def spark_start(invocation: Invocation) -> None:
    """Start the Spark server of this project's settings, if it is not running."""
    from persist_assets.engine.java import use_java
    from persist_assets.engine.server import ensure_server

    settings = invocation.settings
    use_java()
    ensure_server(settings)
    _print_server(invocation)
    if not settings.shared:
        err.print('hint: to use it, set "shared = true" below [spark] in persist.toml')


@command("prepare", spark_app)
def spark_prepare(invocation: Invocation) -> None:
    """Archive the classes that Spark loads, so that it starts faster on this machine."""
    from persist_assets.engine.class_archive import create_archive

    if not invocation.as_json:
        err.print("running typical builds: this takes about a minute")
    path = create_archive("persist_assets.operations.typical_builds")
    n_bytes = path.stat().st_size
    if invocation.as_json:
        print_json({"archive": str(path), "bytes": n_bytes})
    else:
        out.print(f"wrote {path} ({n_bytes / 1e6:.0f} MB)", markup=False, soft_wrap=True)


@command("stop", spark_app)
def spark_stop(invocation: Invocation) -> None:
    """Stop the Spark server, even if it is in use."""
    from persist_assets.engine.server import server_directory, stop_server

    stopped = stop_server(server_directory(invocation.settings))
    if invocation.as_json:
        print_json({"stopped": stopped})
    else:
        out.print("the Spark server is stopped" if stopped else "no Spark server is running")


@command("status", spark_app)
def spark_status(invocation: Invocation) -> None:
    """Show whether the Spark server is running, where, its clients and their jobs."""
    _print_server(invocation)


def _print_server(invocation: Invocation) -> None:
    from persist_assets.engine.server import (
        SERVER_LOG,
        count_clients,
        find_server,
        list_jobs,
        server_directory,
    )

    directory = server_directory(invocation.settings)
    server = find_server(directory)
    jobs = list_jobs(directory) if server else []
    if invocation.as_json:
        started = datetime.fromtimestamp(server.started_at, UTC) if server else None
        print_json(
            {
                "running": server is not None,
                "url": server.address if server else None,
                "pid": server.pid if server else None,
                "port": server.port if server else None,
                "started_at": started.isoformat() if started else None,
                "clients": count_clients(directory) if server else 0,
                "jobs": [
                    {
                        "operation": job.operation,
                        "pid": job.pid,
                        "project": job.project,
                        "age": round(time.time() - job.started_at, 1),
                        "tasks": job.tasks,
                        "completed": job.completed,
                        "running": job.running,
                        "waiting": job.waits_since is not None,
                    }
                    for job in jobs
                ],
            }
        )
    elif server is None:
        out.print("no Spark server is running")
    else:
        n = count_clients(directory)
        out.print(
            f"the Spark server is running at {server.address}, process {server.pid}, "
            f"{n} client{'s' * (n != 1)}; its log is {directory / SERVER_LOG}",
            soft_wrap=True,
        )
        for job in jobs:
            state = "waits" if job.waits_since else f"{job.running} running"
            out.print(
                f"  {time.time() - job.started_at:.0f} s: {job.completed} of {job.tasks} tasks, "
                f"{state}; process {job.pid} in {escape(job.project)}",
                soft_wrap=True,
            )


# ------------------------------------------------------------------------------------------ service


@command("serve")
def serve(
    invocation: Invocation,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0 picks any free port.")
    ] = 3070,
    build: Annotated[
        bool, typer.Option("--build", help="Also build requests, one at a time.")
    ] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request; always, if logs are JSON.")
    ] = False,
    proxy: Annotated[
        list[str] | None,
        typer.Option("--proxy", help="The address or network of a proxy in front of it."),
    ] = None,
) -> None:
    """Serve wants, events, partitions and deadlines over HTTP and as web pages, until stopped."""
    from persist_assets.core.logs import is_json
    from persist_assets.web.access import TOKENS, parse_tokens
    from persist_assets.web.app import is_busy
    from persist_assets.web.app import serve as run_service

    gc.enable()
    if not is_json():
        level = logging.INFO if invocation.verbose else logging.WARNING
        logging.basicConfig(stream=sys.stderr, level=level)
        if access_log:
            logging.getLogger("persist_assets.web.timing").setLevel(logging.INFO)

    def started(url: str) -> None:
        if invocation.as_json:
            print_json({"url": url}, lines=True)
        else:
            out.print(f"serving {invocation.settings.environment} at {url}")
        sys.stdout.flush()

    tokens = parse_tokens(os.environ.get(TOKENS, ""), invocation.settings.roles)
    run_service(
        invocation.settings,
        invocation.ledger,
        tokens,
        host=host,
        port=port,
        builds=build,
        proxies=proxy or (),
        started=started,
    )
    if is_busy():  # a thread's work is recorded completely or not at all
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# ------------------------------------------------------------------------------------------- ledger


@command("migrate", ledger_app)
def ledger_migrate(
    invocation: Invocation,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="A ledger other than the project's.")
    ] = None,
) -> None:
    """Migrate a ledger to the version of this release, as every command that opens it does."""
    from persist_assets.ledger.connection import shown
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.migrations import VERSION

    url = url or invocation.settings.ledger
    ledger = Ledger(url)
    ledger.close()
    backup = str(ledger.events.backup) if ledger.events.backup else None
    if invocation.as_json:
        ends = {"from": ledger.events.opened_version, "to": VERSION}
        print_json({"ledger": shown(url), **ends, "backup": backup})
    elif ledger.events.opened_version == VERSION:
        out.print(f"{escape(shown(url))} already has version {VERSION}", soft_wrap=True)
    elif ledger.events.opened_version == 0:
        out.print(f"{escape(shown(url))} was created with version {VERSION}", soft_wrap=True)
    else:
        summary = f"was migrated from version {ledger.events.opened_version} to {VERSION}"
        note = f"; a backup is at {escape(backup)}" if backup else ""
        out.print(f"{escape(shown(url))} {summary}{note}", soft_wrap=True)


@command("rebuild", ledger_app)
def ledger_rebuild(invocation: Invocation) -> None:
    """Rebuild the tables of wants, requests, partitions and deadlines from the events."""
    n = invocation.ledger.events.rebuild_projections()
    if invocation.as_json:
        print_json({"events": n})
    else:
        out.print(f"rebuilt from {n:,} events")


_COPY = "persist ledger copy sqlite:///.persist/ledger.db postgresql://user@host/database"


@command("copy", ledger_app)
def ledger_copy(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of a ledger.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of an empty database.")],
) -> None:
    """Copy a whole ledger, exactly, into an empty database: all of it or nothing."""
    from persist_assets.ledger.connection import parse_url, shown
    from persist_assets.ledger.migrations import VERSION
    from persist_assets.ledger.transfer import copy_ledger

    for url in (source, target):
        try:
            parse_url(url)
        except LedgerError as error:
            raise SettingsError(error.message, hint=f"for example, {_COPY}") from error
    copied = copy_ledger(source, target, tell=lambda name, n: err.print(f"{name}: {n} rows"))
    ends = {"from": shown(source), "to": shown(target)}
    if invocation.as_json:
        print_json({**ends, "version": VERSION, "tables": dict(copied)})
    else:
        text = f"copied {copied['events']} events and {copied['builds']} builds"
        out.print(f"{text} from {escape(ends['from'])} to {escape(ends['to'])}", soft_wrap=True)
        err.print("hint: to use the copy, set `ledger` in persist.toml")
