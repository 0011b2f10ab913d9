"""The origin of a partition: its wants, request, build and code; and the rules of its source."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from persist_assets.building.explain import stages_of
from persist_assets.core.wants import ref_of
from persist_assets.operations.documents.explanations import RulesDocument
from persist_assets.operations.documents.wants import RequestDocument, WantDocument
from persist_assets.planning.explaining import explain
from persist_assets.wants.requests import resolve

if TYPE_CHECKING:
    from persist_assets.building.observe import Observer
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.model.sources import Source
    from persist_assets.core.wants import PartitionRef


def rules_of(project: Project, source: Source) -> dict[str, Any]:
    """Return how the table of a source is kept up to date. This needs no ledger."""
    return RulesDocument.of(source, explain(project, source)).as_json()


def unbuilt(source: Source, ref: PartitionRef) -> dict[str, Any]:
    """Return the explanation of a partition where there is no ledger."""
    return {
        "partition_ref": ref,
        "available": False,
        "wants": [],
        "request": None,
        "build": None,
        "inputs": [],
        "code": _code(source, None),
        "costs": [],
        "stages": [],
    }


def explained(observer: Observer, ref: PartitionRef) -> dict[str, Any]:
    """Return the chain from a partition to its wants, request, run, build, inputs and code.

    Its `costs` are those of the last builds of the source, and its `stages` those of a build that
    would start now.

    Raises
    ------
    NotFoundError
        The reference names no partition.
    """
    place, ledger = resolve(observer, ref), observer.ledger
    source, environment = place.source, observer.settings.environment
    full = ref_of(source.key, place.key)
    wants = ledger.wants.fetch(environment, refs=[full], limit=5)
    build_uid = ledger.partitions.find_build(environment, full)
    builds = ledger.builds.fetch(build_uid=build_uid) if build_uid else []
    build = next(iter(builds), None)
    names = {s.build_id: s.name for s in observer.project.sources}
    requests = [r for w in wants if w.request_id and (r := ledger.requests.find(w.request_id))]
    return {
        "partition_ref": full,
        "available": build is not None,
        "wants": [WantDocument.model_validate(want).as_json() for want in wants],
        "request": RequestDocument.model_validate(requests[-1]).as_json() if requests else None,
        "build": None
        if build is None
        else {
            "build_uid": build.build_uid,
            "run_id": build.run_id,
            "state": build.state,
            "action": build.action,
            "maintenance": build.maintenance,
            "started_at": build.started_at.isoformat(),
            "seconds": build.seconds,
            "computed_seconds": build.computed_s,
            "rows_written": build.written.rows if build.written else None,
            "bytes_written": build.written.bytes if build.written else None,
            "effort": asdict(build.effort) if build.effort else None,
            "rows": build.snapshot.rows if build.snapshot else None,
            "table": build.snapshot.table if build.snapshot else None,
            "version": build.snapshot.version if build.snapshot else None,
        },
        "inputs": [
            {"source": names.get(v.raw, v.raw), "version": v.version}
            for v in (build.snapshot.as_of if build and build.snapshot else ())
            if ":" not in v.raw  # other versions describe the build, not its data
        ],
        "code": _code(source, build),
        "costs": [
            {
                "maintenance": cost.maintenance,
                "seconds": cost.seconds,
                "rows_written": cost.rows,
                "bytes_written": cost.bytes,
            }
            for cost in ledger.builds.fetch_costs(source_id=source.source_id, limit=5)
        ],
        "stages": [
            {"stage": s.name, "strategy": s.strategy, "description": s.description}
            for s in (stages_of(observer, source, place.key) if source.persisted else ())
        ],
    }


def _code(source: Source, build: Build | None) -> dict[str, Any]:
    return {
        "source_id": source.source_id,
        "build_id": build.build_id if build else None,
        "is_current": build is not None and build.build_id == source.build_id,
        "path": source.location.path,
        "line": source.location.line,
    }
