"""What answers of the service look like, as JSON Schema: for who generates clients, and for tests.

The invariant: an answer has the keys that stand here and no others, but for events, which have what
their kind has besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from persist_assets.core.wants import Cause, RequestState, WantState

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
INSTANT: Schema = {"type": "string", "format": "date-time"}


def maybe(schema: Mapping[str, Any]) -> Schema:
    """Return what a schema lets through, and null."""
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def several(schema: Mapping[str, Any]) -> Schema:
    """Return a list of what a schema lets through."""
    return {"type": "array", "items": schema}


def record(given: Mapping[str, Any], *, is_open: bool = False) -> Schema:
    """Return an object with these keys, all of them; `is_open`: and perhaps others."""
    return {
        "type": "object",
        "properties": dict(given),
        "required": [*given],
        "additionalProperties": is_open,
    }


_WANT: Schema = {
    "want_id": TEXT,
    "partition_ref": TEXT,
    "environment": TEXT,
    "created_at": INSTANT,
    "data_timestamp": maybe(INSTANT),
    "ttl_seconds": maybe(WHOLE),
    "sla_seconds": maybe(WHOLE),
    "external_dependencies": several(TEXT),
    "source": {"type": "object"},
    "comment": maybe(TEXT),
    "parent": maybe(TEXT),
    "state": {"enum": [*get_args(WantState)]},
    "deadline": maybe(INSTANT),
    "expires_at": maybe(INSTANT),
    "failures": WHOLE,
    "retry_at": maybe(INSTANT),
    "error": maybe(TEXT),
    "build_request_id": maybe(TEXT),
    "ended_at": maybe(INSTANT),
}
WANT = record(_WANT)
MADE = record({**_WANT, "warnings": several(TEXT)})
WANTS = record({"wants": several(WANT), "warnings": several(TEXT)})
EVENTS = record(
    {
        "events": several(
            record(
                {
                    "idx": WHOLE,
                    "at": INSTANT,
                    "kind": TEXT,
                    "environment": maybe(TEXT),
                    "partition_ref": maybe(TEXT),
                    "build_request_id": maybe(TEXT),
                    "task_id": maybe(TEXT),
                    "job_label": maybe(TEXT),
                },
                is_open=True,
            )
        ),
        "next_idx": WHOLE,
        "head": WHOLE,
        "log_id": TEXT,
        "environment": TEXT,
    }
)
WAITS = record(
    {
        "partition_ref": TEXT,
        "waits_for": several(TEXT),
        "graphs": several(
            record({"name": TEXT, "log_id": maybe(TEXT), "environment": maybe(TEXT)})
        ),
    },
)
EVALUATION = record(
    {
        "build_request_id": maybe(TEXT),
        "partitions": several(TEXT),
        "blocked": several(
            record({"want_id": TEXT, "partition_ref": TEXT, "missing": several(TEXT)})
        ),
        "satisfied": several(TEXT),
        "expired": several(TEXT),
        "deferred": WHOLE,
        "reason": TEXT,
    }
)
PARTITIONS = record(
    {
        "partitions": several(
            record(
                {
                    "partition_ref": TEXT,
                    "graph": TEXT,
                    "state": {"enum": ["available", "failed", "tainted"]},
                    "at": INSTANT,
                    "idx": WHOLE,
                    "build_uid": maybe(TEXT),
                }
            )
        ),
        "next_after": maybe(TEXT),
    }
)
REQUESTS = record(
    {
        "requests": several(
            record(
                {
                    "build_request_id": TEXT,
                    "environment": TEXT,
                    "partitions": several(TEXT),
                    "want_ids": several(TEXT),
                    "reason": TEXT,
                    "trigger": TEXT,
                    "state": {"enum": [*get_args(RequestState)]},
                    "requested_at": maybe(INSTANT),
                    "started_at": maybe(INSTANT),
                    "ended_at": maybe(INSTANT),
                    "run_id": maybe(TEXT),
                    "error": maybe(TEXT),
                    "culprits": several(TEXT),
                }
            )
        ),
        "warnings": several(TEXT),
    }
)
MISSES = record(
    {
        "misses": several(
            record(
                {
                    "want_id": TEXT,
                    "partition_ref": TEXT,
                    "deadline": INSTANT,
                    "missed_at": INSTANT,
                    "delivered_at": maybe(INSTANT),
                    "late_seconds": NUMBER,
                    "blame": {
                        "type": "object",
                        "properties": {
                            "partition_ref": TEXT,
                            "graph": TEXT,
                            "since": INSTANT,
                            "cause": {"enum": [*get_args(Cause)]},
                            "problem": maybe(TEXT),
                        },
                        "required": ["partition_ref", "graph", "since", "cause"],
                    },
                }
            )
        )
    }
)
ANY: Schema = {"type": "object"}
PLAN = record(
    {
        "environment": TEXT,
        "steps": several(
            record(
                {
                    "source_id": TEXT,
                    "partition": maybe(TEXT),
                    "partitions": maybe(several(several(TEXT))),
                    "action": TEXT,
                    "build_id": TEXT,
                    "notes": several(TEXT),
                    "estimate": maybe(ANY),
                    "reasons": several(
                        record({"code": TEXT, "message": TEXT, "source_id": maybe(TEXT)})
                    ),
                }
            )
        ),
        "external": several(ANY),
    }
)
HEALTH = record({"status": {"const": "ok"}})
PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "pattern": "^urn:persist:"},
        "title": TEXT,
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": TEXT,
        "hint": TEXT,
        "problems": several(record({"name": TEXT, "detail": TEXT})),
        "head": WHOLE,
        "log_id": TEXT,
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
}
