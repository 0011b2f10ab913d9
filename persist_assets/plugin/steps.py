"""Options of Dagster for the steps of sources: retries, pools, tags, Kubernetes."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import dagster as dg

from persist_assets.core.errors import Problem
from persist_assets.core.model.annotations import K8S_TAG, Annotation, Retries
from persist_assets.core.model.project import Project


def step_options(annotation: Annotation) -> dict[str, Any]:
    """Return the arguments of the `OpDefinition` of a source; none if nothing is declared."""
    options: dict[str, Any] = {}
    tags = dict(annotation.op_tags)
    if annotation.k8s is not None:
        tags[K8S_TAG] = annotation.k8s
    if tags:
        options["tags"] = tags
    if annotation.pool is not None:
        options["pool"] = annotation.pool
    if annotation.retries is not None:
        options["retry_policy"] = _policy(annotation.retries)
    return options


def _policy(retries: Retries) -> dg.RetryPolicy:
    backoff, jitter = retries.backoff, retries.jitter
    return dg.RetryPolicy(
        max_retries=retries.max,
        delay=retries.delay_s,
        backoff=dg.Backoff[backoff.upper()] if backoff else None,
        jitter=dg.Jitter[jitter.upper()] if jitter else None,
    )


def wrong_k8s(project: Project) -> Iterator[Problem]:
    """Yield a problem for each Kubernetes configuration that dagster-k8s refuses.

    Without that library, only the names of its parts are known to be right.
    """
    configured = [s for s in project.persisted if s.annotation.k8s is not None]
    if not configured or find_spec("dagster_k8s") is None:
        return
    from dagster_k8s.job import get_user_defined_k8s_config

    seen: dict[str, str | None] = {}
    for source in configured:
        config = source.annotation.k8s or ""
        if config not in seen:
            try:
                get_user_defined_k8s_config({K8S_TAG: config})
                seen[config] = None
            except Exception as error:  # several classes, of Dagster and of Kubernetes
                seen[config] = _in_one_line(error)
        reason = seen[config]
        if reason is not None:
            at = dict(source.annotation.keys).get("k8s", source.location)
            message = f"dagster-k8s refuses the `k8s` of `{source.name}`: {reason}"
            yield Problem("annotation-value", message, at)


def _in_one_line(error: Exception) -> str:
    details = [e.message for e in getattr(error, "errors", None) or ()]
    return " ".join(" ".join(details or [str(error)]).split())
