"""Events of builds for OpenLineage, by its own client, if that is configured.

The invariant: nothing here fails or delays a build. Events are sent by a thread of their own, which
has a few seconds left when the process ends; what cannot be sent is logged and dropped.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from persist_assets.core.object_stores import scheme_of
from persist_assets.storage.raw import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.building.observe import Observer
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.sources import Source

log = logging.getLogger(__name__)

PRODUCER = "https://pypi.org/project/persist-assets"
_WAITING = 1_000
"""The maximum number of events that wait; further ones are dropped."""
_LAST_S = 5.0
"""The maximum wait for unsent events when the process ends, in seconds."""
EventType = Literal["START", "COMPLETE", "FAIL"]


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenLineage's client is configured, by a variable or by a file where it looks."""
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    names = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
    if any(environ.get(n) for n in names) or any(n.startswith("OPENLINEAGE__") for n in environ):
        return True
    return _has_file()


@cache
def _has_file() -> bool:
    try:
        places = (Path.cwd(), Path.home() / ".openlineage")
        return any((place / "openlineage.yml").is_file() for place in places)
    except (OSError, RuntimeError):
        return False


def tell(observer: Observer, work: PendingBuild, kind: EventType, error: str | None = None) -> None:
    """Emit that a build has started, is published, or has failed; do nothing unless configured."""
    if not is_on():
        return
    try:
        sender = _sender()
        if sender is None:
            return
        for event in events_of(observer, work, kind, error):
            sender.put(event)
    except Exception as failure:  # a table must not depend on an event about it
        log.warning(
            "cannot create an OpenLineage event of `%s`: %s",
            work.source.key,
            failure,
            extra={"action": "lineage"},
        )


# ------------------------------------------------------------------------------------------- events


def events_of(
    observer: Observer, work: PendingBuild, kind: EventType, error: str | None = None
) -> list[Any]:
    """Return the event of a build and, once the build has ended, an event of its checks."""
    from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        error_message_run,
        job_type_job,
        output_statistics_output_dataset,
    )

    namespace, name = _namespace(), f"{work.build.environment}/{work.source.key}"
    at = datetime.now(UTC) if kind != "START" else work.build.started_at
    facets = _parent(work, namespace)
    if error is not None:
        text = without_secrets(error)
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(text, "SQL")
    job_type = job_type_job.JobTypeJobFacet("BATCH", "PERSIST", "BUILD")
    statistics: dict[str, Any] = {}
    if kind == "COMPLETE" and work.snapshot is not None:
        statistics["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=work.snapshot.rows, size=work.snapshot.bytes
            )
        )
    output = OutputDataset(
        namespace, name, facets=_output_facets(observer, work), outputFacets=statistics
    )
    run_id = str(uuid.UUID(hex=work.build.build_uid))
    event = RunEvent(
        eventTime=at.isoformat(),
        run=Run(runId=run_id, facets=facets),
        job=Job(namespace, name, facets={"jobType": job_type}),
        eventType=RunState[kind],
        producer=PRODUCER,
        inputs=_inputs(observer, work.source),
        outputs=[output],
    )
    return [event, *(_checks(work, namespace, name) if kind != "START" else ())]


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "persist"


def _parent(work: PendingBuild, namespace: str) -> dict[str, Any]:
    """Return the facet that names the run of a build, if it belongs to one."""
    from openlineage.client.facet_v2 import parent_run

    run_id = work.build.run_id
    if run_id is None:
        return {}
    try:
        run = parent_run.Run(str(uuid.UUID(run_id)))
    except ValueError:  # it is no run of Dagster's
        run = parent_run.Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"persist:{run_id}")))
    job = parent_run.Job(namespace, f"{work.build.environment}/run")
    return {"parent": parent_run.ParentRunFacet(run=run, job=job)}


def _checks(work: PendingBuild, namespace: str, name: str) -> Iterable[Any]:
    """Yield an event with the results of the checks of a build, if there are any."""
    from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        data_quality_assertions_dataset,
        job_type_job,
        parent_run,
    )

    if not work.checks:
        return
    run_id = str(uuid.UUID(hex=work.build.build_uid))
    assertions = [
        data_quality_assertions_dataset.Assertion(
            assertion=result.definition,
            success=result.passed,
            severity="error" if result.blocking else "warn",
            name=result.name,
            actual=None if result.passed else result.in_words,
        )
        for result in work.checks
    ]
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions)
    parent = parent_run.ParentRunFacet(parent_run.Run(run_id), parent_run.Job(namespace, name))
    job_type = job_type_job.JobTypeJobFacet("BATCH", "PERSIST", "CHECK")
    passed = all(result.passed or not result.blocking for result in work.checks)
    yield RunEvent(
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(str(uuid.uuid5(uuid.UUID(run_id), "checks")), facets={"parent": parent}),
        job=Job(namespace, f"{name}.checks", facets={"jobType": job_type}),
        eventType=RunState.COMPLETE if passed else RunState.FAIL,
        producer=PRODUCER,
        inputs=[InputDataset(namespace, name, inputFacets={"dataQualityAssertions": facet})],
        outputs=[],
    )


# ----------------------------------------------------------------------------------------- datasets


def dataset_of(observer: Observer, source: Source) -> tuple[str, str]:
    """Return the namespace and the name of a source's rows.

    A persisted source has the same name whichever table it has. Raw data has the name that
    OpenLineage gives to a location, so that it is the dataset of whoever writes it.
    """
    location = source.raw.location if source.raw is not None else None
    if location is None:
        return _namespace(), f"{observer.settings.environment}/{source.key}"
    return located(observer.settings.resolve(location))


def located(place: str) -> tuple[str, str]:
    """Return the namespace and the name of a path or URI, as OpenLineage names datasets.

    Examples
    --------
    >>> located("s3a://lake/raw/flights"), located("/data/flights")
    (('s3://lake', 'raw/flights'), ('file', '/data/flights'))
    """
    if not scheme_of(place):
        return "file", place
    parts = urlsplit(without_secrets(place))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def _inputs(observer: Observer, source: Source) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset

    return [
        InputDataset(*dataset_of(observer, upstream), facets=_schema(upstream.columns))
        for upstream in observer.project.inputs(source)
    ]


def _schema(columns: Iterable[Any]) -> dict[str, Any]:
    from openlineage.client.facet_v2 import schema_dataset

    fields = [
        schema_dataset.SchemaDatasetFacetFields(c.name, c.type, c.description) for c in columns
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}


def _output_facets(observer: Observer, work: PendingBuild) -> dict[str, Any]:
    """Return the columns of a table, their lineage, its version and its location."""
    from openlineage.client.facet_v2 import (
        column_lineage_dataset,
        dataset_version_dataset,
        symlinks_dataset,
    )

    project, source, snapshot = observer.project, work.source, work.snapshot
    facets = _schema(snapshot.columns if snapshot is not None else source.columns)
    fields: dict[str, list[Any]] = {}
    for edge in source.lineage:
        upstream = project.by_id[edge.upstream.source_id]
        place = dataset_of(observer, upstream)
        origin = column_lineage_dataset.InputField(*place, edge.upstream.column)
        fields.setdefault(edge.column, []).append(origin)
    if fields:
        each = {name: column_lineage_dataset.Fields(origins) for name, origins in fields.items()}
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(each)
    if snapshot is not None:
        version = f"{snapshot.build_uid}@{snapshot.version}"
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
        place = located(observer.settings.table_root(snapshot.table))
        link = symlinks_dataset.Identifier(*place, "LOCATION")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[link])
    return facets


# ------------------------------------------------------------------------------------------ sending


class _Sender:
    """Sends events in their order, in a thread of its own."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: queue.Queue[Any] = queue.Queue(_WAITING)
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="openlineage")
        self._thread.start()
        atexit.register(self.close)

    def put(self, event: Any) -> None:
        """Queue an event for sending."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._warn("too many events are waiting")

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:
                self._warn(type(error).__name__)

    def _warn(self, why: str) -> None:
        """Log that an event is lost; loudly the first time only."""
        level = logging.INFO if self._has_warned else logging.WARNING
        self._has_warned = True
        message = "an event for OpenLineage was not sent, and is dropped: %s"
        log.log(level, message, why, extra={"action": "lineage"})

    def close(self) -> None:
        """Send what waits, for at most `_LAST_S`."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_LAST_S)
        if self._thread.is_alive():
            self._warn(f"the process is ending, with about {self._waiting.qsize()} unsent")


@cache
def _sender() -> _Sender | None:
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        hint = "pip install persist-assets[openlineage]"
        log.warning("OpenLineage's client is not installed: %s", hint, extra={"action": "lineage"})
        return None
    return _Sender(OpenLineageClient())
