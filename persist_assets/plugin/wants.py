"""Wants in Dagster: a job that builds one request, and a sensor that makes the requests.

The ledger holds the wants and their states; a tag tells a run its request. A turn of the sensor
can be repeated: the ledger makes the requests, and a run's key is its request's id.
"""

import json
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from persist_assets.building.observe import Observer
from persist_assets.building.stages import PendingBuild
from persist_assets.core.errors import CheckFailedError, ConflictError, PersistError
from persist_assets.core.model.snapshots import Event
from persist_assets.core.model.sources import Source
from persist_assets.core.wants import Miss, Request
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.documents.events import EventDocument
from persist_assets.plugin.events import (
    build_events,
    check_events,
    fetch_last_events,
    maker_of,
    report_raw_versions,
)
from persist_assets.plugin.progress import logged
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, PYSPARK, Runtime
from persist_assets.plugin.translator import needed_elsewhere
from persist_assets.storage.raw import public
from persist_assets.wants.http import tell
from persist_assets.wants.requests import evaluate_now, next_due, record_dead, run_request
from persist_assets.wants.schedules import make_wants, next_window
from persist_assets.wants.upstreams import sync_all

REQUEST_TAG = "persist/request"
"""The tag of a run that names its build request."""
SLA_CHECK = "sla"
"""The check of assets with deadlines: it passes if every missed deadline has been met since."""
_INTERVAL_S = 10
_SLA_KINDS = ("sla-missed", "sla-recovered")
_SYNCED = ("upstream-synced",)
_MOST_REPORTED = 1_000
"""The number of available partitions after which a turn ends, as Dagster limits its time."""
_LONGEST_S = 15
"""The time after which a turn reports no further deadlines. Dagster ends a turn after 60 s."""


# ----------------------------------------------------------------------------------------- the job


def request_job(runtime: Runtime, name: str) -> dg.JobDefinition:
    """Return a job that builds everything that one build request asks for, or nothing."""

    def build(context: dg.OpExecutionContext) -> Iterator[Any]:
        run, session = context.run, getattr(context.resources, PYSPARK)
        request_id = run.tags.get(REQUEST_TAG)
        if request_id is None:
            raise dg.Failure(f"a run of this job must name a request in its tag `{REQUEST_TAG}`")
        try:
            builder = runtime.builder(run, lambda: session.spark_session)
            request = builder.ledger.requests.find(request_id)
            if request is None or request.environment != builder.settings.environment:
                where = builder.settings.environment
                raise dg.Failure(f"unknown build request `{request_id}` in `{where}`")
            if request.state in ("started", "succeeded"):
                context.log.info(f"another process took the request {request_id}")
                return
            if request.state == "failed":
                raise dg.Failure(
                    f"the request {request_id} failed: {request.error}; its wants are "
                    "still open and will be requested again"
                )
            request_builder, published = builder.anew(request), list[PendingBuild]()
            failed: list[tuple[Source, PersistError]] = []
            report_raw_versions(context.instance, request_builder.observer, maker_of(run))
            last_events = fetch_last_events(
                context.instance, {k for deps in runtime.deps.values() for k in deps}
            )
            with logged(context, request_builder.progress):
                is_built = run_request(
                    request_builder,
                    request,
                    run_id=run.run_id,
                    tell=published.extend,
                    on_failure=lambda *of: failed.append(of),
                )
            for source, error in failed:
                if isinstance(error, CheckFailedError):
                    for arguments in check_events(request_builder, source, error.results):
                        yield dg.AssetCheckEvaluation(**arguments)
            if not is_built:
                ended = builder.ledger.requests.find(request_id)
                raise dg.Failure(ended.error if ended and ended.error else "it failed")
            yield from build_events(
                runtime, request_builder, published, context.instance, last_events
            )
        except ConflictError as error:
            context.log.info(str(error))  # another process was faster
        except PersistError as error:
            raise dg.Failure(str(error)) from error
        finally:
            runtime.close(run.run_id)

    op = dg.op(
        name=f"{name}_op",
        description="Build the partitions of one request and publish them all at once, or none.",
        out={},
        required_resource_keys={PYSPARK},
    )(build)
    graph = dg.GraphDefinition(name=name, node_defs=[op])
    return graph.to_job(executor_def=dg.in_process_executor)


# -------------------------------------------------------------------------------------- the sensor


def wants_sensor(runtime: Runtime, name: str, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Return a sensor that makes requests of wants, and starts a run of each request.

    In each turn it reads other graphs and makes the wants that annotations ask for. It evaluates
    wants only after new events or at the time when something is due; otherwise a turn writes and
    starts nothing. It is off by default.
    """

    def evaluate(
        context: dg.SensorEvaluationContext,
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        messages: list[str] = []
        try:
            observer = runtime.observer()
            requests = _turn(observer, context, messages)
        except PersistError as error:
            yield dg.SkipReason(str(error))
            return
        for request in requests:
            tags = {REQUEST_TAG: request.request_id, ENVIRONMENT_TAG: request.environment}
            yield dg.RunRequest(run_key=request.request_id, tags=tags)
        if not requests:
            yield dg.SkipReason("; ".join(messages) or "no want can be built now")
        for line in messages:
            context.log.warning(line)

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        job_name=job.name,
        minimum_interval_seconds=_INTERVAL_S,
        description="Build all wanted partitions that can be built now.",
    )


def _turn(
    observer: Observer, context: dg.SensorEvaluationContext, messages: list[str]
) -> list[Request]:
    """Process everything that is due for wants, and return the requests that need a run."""
    cursor = _cursor(context.cursor)
    try:
        return _evaluated(observer, context, cursor, messages)
    finally:  # what was reported is not reported twice
        text = json.dumps(cursor, sort_keys=True)
        if text != context.cursor:
            context.update_cursor(text)


def _evaluated(
    observer: Observer,
    context: dg.SensorEvaluationContext,
    cursor: dict[str, Any],
    messages: list[str],
) -> list[Request]:
    """Return the requests that need a run; `cursor` gets the new positions."""
    ledger, environment = observer.ledger, observer.settings.environment
    now = observer.clock()
    for name in ("told", "upstreams"):
        cursor.setdefault(name, ledger.events.position())  # earlier events need not be reported
    record_dead(ledger, environment, now)
    _fail_lost_requests(observer, context.instance)
    synced = sync_all(observer)
    messages += [f"{s.graph}: {s.problem}" for s in synced if s.problem]
    make_wants(observer, "sensor")
    position, due = ledger.events.position(), cursor.get("due")
    arrived = any(s.available for s in synced)
    is_time = due is not None and datetime.fromisoformat(due) <= now
    if arrived or is_time or position != cursor.get("idx"):
        try:
            evaluate_now(observer, "upstream" if arrived else "clock")
            dues = [d for d in (next_due(observer), next_window(observer)) if d is not None]
        except PersistError as error:
            messages.append(str(error))  # the next turn tries again; deadlines are reported now
        else:
            cursor["idx"] = position
            cursor["due"] = min(dues).isoformat() if dues else None
    _report_deadlines(observer, context, cursor, messages)
    _report_upstreams(context.instance, observer, cursor, messages)
    requests = ledger.requests.fetch(environment, is_open=True)
    return [r for r in reversed(requests) if r.state == "requested"]


def _cursor(text: str | None) -> dict[str, Any]:
    try:
        cursor = json.loads(text or "{}")
    except ValueError:
        return {}
    return cursor if isinstance(cursor, dict) else {}


def _fail_lost_requests(observer: Observer, instance: dg.DagsterInstance) -> None:
    """Mark requests as failed whose runs have ended without starting them."""
    ledger = observer.ledger
    for request in ledger.requests.fetch(observer.settings.environment, is_open=True):
        if request.state == "requested":
            runs = instance.get_runs(dg.RunsFilter(tags={REQUEST_TAG: request.request_id}))
            if runs and all(run.is_finished for run in runs):
                ledger.requests.fail(request.request_id, "its run ended before it started")


def _report_deadlines(
    observer: Observer,
    context: dg.SensorEvaluationContext,
    cursor: dict[str, Any],
    messages: list[str],
) -> None:
    """Report deadlines missed, or met late, since the last turn: as checks and to the webhook.

    If the webhook does not answer, it is called again in the next turn; nothing waits for it. If
    the reports take long, the next turn goes on with them.
    """
    late: list[Miss] | None = None
    end = time.monotonic() + _LONGEST_S
    lost = "deadlines that were missed before are not reported"
    for event, position in _new_events(observer, cursor["told"], _SLA_KINDS, messages, lost):
        if event is not None:
            document = public(EventDocument.of(event).as_json())
            problem = (
                tell(observer.settings.webhook, document) if observer.settings.webhook else None
            )
            if problem is not None:
                messages.append(f"[sla] webhook: {problem}")
                cursor["told"] = event.idx - 1
                return
            if late is None:  # the current ones, with which each of these events is reported
                late = observer.ledger.wants.fetch_misses(
                    observer.settings.environment, only_open=True
                )
            _report(context.instance, observer, event, late)
        cursor["told"] = position
        if time.monotonic() > end:
            return


def _new_events(
    observer: Observer, position: int, kinds: Sequence[str], messages: list[str], lost: str
) -> Iterator[tuple[Event | None, int]]:
    """Yield the new events of this environment, each with its position; None at the end of a page.

    Parameters
    ----------
    position
        The position of the last event that was reported.
    kinds
        The kinds of events.
    messages
        Gets a message if events were archived before they could be reported.
    lost
        What that means.
    """
    events, environment = observer.ledger.events, observer.settings.environment
    head, trimmed = events.position(), events.trimmed_to()
    if position < trimmed:
        why = "were archived, or the ledger was restored from a backup"
        messages.append(f"the events up to {trimmed} {why}: {lost}")
        position = trimmed
        yield None, position
    while position < head:
        page, following = events.search(position, kinds=kinds)
        for event in page:
            if event.data.get("environment") == environment:
                yield event, event.idx
        if following <= position:
            break
        position = following
        yield None, position


def _report(
    instance: dg.DagsterInstance, observer: Observer, event: Event, misses: Sequence[Miss]
) -> None:
    """Report a deadline that was missed, or met late, as a check result."""
    ref = str(event.data.get("partition_ref"))
    for source in observer.project.persisted:
        if is_due(source) and _is_of(source, ref):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=dg.AssetKey(source.asset_key),
                    check_name=SLA_CHECK,
                    passed=not any(_is_of(source, miss.partition_ref) for miss in misses),
                    severity=dg.AssetCheckSeverity.ERROR,
                    metadata={
                        "event": dg.MetadataValue.json(dict(event.data)),
                        "environment": observer.settings.environment,
                    },
                )
            )


def _open_misses(ledger: Ledger, environment: str, source: Source) -> list[dict[str, Any]]:
    """Return the deadlines of a source that were missed and are not met yet."""
    misses = ledger.wants.fetch_misses(environment, only_open=True)
    return [
        {
            "partition_ref": miss.partition_ref,
            "deadline": miss.deadline.isoformat(),
            "blame": dict(miss.blame),
        }
        for miss in misses
        if _is_of(source, miss.partition_ref)
    ]


def _is_of(source: Source, ref: str) -> bool:
    """Whether a reference names a source, or a partition of it."""
    return f"{ref}/".startswith(f"{source.key}/")


def is_due(source: Source) -> bool:
    """Whether a source's annotation sets a deadline."""
    return source.annotation.want is not None and source.annotation.want.sla_s is not None


def sla_check(runtime: Runtime, source: Source) -> dg.AssetChecksDefinition:
    """Return the check that every missed deadline of a source has been met since."""

    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        try:
            environment = runtime.settings_of(context.run).environment
            late = _open_misses(runtime.observer().ledger, environment, source)
        except PersistError as error:
            raise dg.Failure(str(error)) from error
        metadata = {"late": dg.MetadataValue.json(late[:100]), "environment": environment}
        return dg.AssetCheckResult(passed=not late, metadata=metadata)

    check.__annotations__.clear()
    return dg.asset_check(
        asset=dg.AssetKey(source.asset_key),
        name=SLA_CHECK,
        description="All wanted partitions that are due are available.",
    )(check)


# ------------------------------------------------------------------------------------ other graphs


def others(runtime: Runtime, keys: Collection[tuple[str, ...]]) -> dict[dg.AssetKey, dg.AssetSpec]:
    """Return assets that represent other graphs' partitions that annotations need, by their keys.

    Assets whose keys exist already represent themselves.
    """
    needs = {k: v for s in runtime.project.persisted for k, v in needed_elsewhere(s).items()}
    return {
        key: dg.AssetSpec(
            key,
            description=f"`{ref}` of the graph `{graph}`: see `[upstream.{graph}]`.",
            group_name="upstreams",
        )
        for key, (graph, ref) in sorted(needs.items())
        if tuple(key.path) not in keys
    }


def _report_upstreams(
    instance: dg.DagsterInstance,
    observer: Observer,
    cursor: dict[str, Any],
    messages: list[str],
) -> None:
    """Report newly available partitions of other graphs that annotations need to Dagster.

    The ledger has them, whichever process has read the other graph. A turn reports about a
    thousand of them; the next one goes on. The events have no data version: more partitions make
    nothing stale.
    """
    needs = {
        key: needed
        for source in observer.project.persisted
        for key, needed in needed_elsewhere(source).items()
        if tuple(key.path) not in observer.project.by_key
    }
    reported = 0
    lost = "partitions of other graphs that became available before are not reported"
    for event, position in _new_events(observer, cursor["upstreams"], _SYNCED, messages, lost):
        data = {} if event is None else event.data
        for partition in data.get("partitions", ()):
            ref, state = partition["partition_ref"], partition["state"]
            for key, (graph, need) in needs.items():
                is_needed = graph == data["graph"] and f"{ref}/".startswith(f"{need}/")
                if state == "available" and is_needed:
                    materialization = dg.AssetMaterialization(key, metadata={"partition": ref})
                    instance.report_runless_asset_event(materialization)
                    reported += 1
        cursor["upstreams"] = position
        if reported >= _MOST_REPORTED:
            break


# --------------------------------------------------------------------------------- scheduled wants


def wants_schedule(
    runtime: Runtime, name: str, job: dg.JobDefinition
) -> dg.ScheduleDefinition | None:
    """Return a schedule that makes the wants of annotations; None if there are none."""
    cadences = {s.annotation.want.every for s in runtime.project.persisted if s.annotation.want}
    if not cadences:
        return None

    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.SkipReason:
        try:
            wants = make_wants(runtime.observer(), name)
        except PersistError as error:
            return dg.SkipReason(str(error))
        return dg.SkipReason(f"{len(wants)} wants were created: the sensor builds their partitions")

    return dg.ScheduleDefinition(
        name=name,
        cron_schedule="0 * * * *",  # most windows end at full hours of their time zones
        execution_fn=evaluate,
        job_name=job.name,
        description="Create the wants of annotations when their time window has ended.",
    )
