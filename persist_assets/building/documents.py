"""What the command line and the service say as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.external.status import holding_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.external.status import Holding


def plan_document(
    project: Project, planned: Plan, holdings: Sequence[Holding] = ()
) -> dict[str, Any]:
    """Return a plan as JSON.

    Parameters
    ----------
    holdings
        The external tables that it follows from.
    """
    return {
        "environment": planned.environment,
        "steps": [
            {
                "source_id": step.source_id,
                "partition": step.keys[0] if step.keys and len(step.keys) == 1 else None,
                "partitions": [list(run) for run in step.partitions.built]
                if step.partitions
                else None,
                "action": step.action,
                "reasons": [
                    {"code": r.code, "message": r.message, "source_id": r.source_id}
                    for r in step.reasons
                ],
                "build_id": step.build_id,
                "notes": list(project.by_id[step.source_id].notes),
                "estimate": {
                    "rows": step.estimate.rows,
                    "bytes": step.estimate.bytes,
                    "seconds": step.estimate.seconds,
                }
                if step.estimate
                else None,
            }
            for step in planned.steps
        ],
        "external": [holding_document(h) for h in holdings],
    }
