"""The method of a step, and why it is this one. Pure.

    what a step continues, its reasons ─► its `Maintenance`, and a clause that explains it

The invariant: a plan never promises less work than its build does, except where only the build can
find the windows of the time column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.errors import NotIncrementalError
from persist_assets.core.model.plans import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.annotations import Annotation
    from persist_assets.core.model.plans import Maintenance, ReasonCode, Step
    from persist_assets.core.model.sources import Source

IN_FULL = "computed in full: "
"""The beginning of the messages of reasons with the code ``whole``."""
_NOT_INCREMENTAL: Mapping[str, str] = {
    "auto": "it is unknown which of its rows the changes affect",
    "whole": "refresh=whole computes all rows of a stale table",
}


def with_maintenance(
    source: Source,
    step: Step,
    *,
    is_first: bool = False,
    is_young: bool = False,
    otherwise: str = "",
) -> Step:
    """Return a step with its method and why, and with a reason if ``refresh=strict`` forbids it.

    Parameters
    ----------
    is_first
        No table of this meaning can be continued; the step's first reason says why.
    is_young
        A table is reused although data without versions may be newer.
    otherwise
        Why all rows are computed, if no reason states it.
    """
    method, why = _reused(step, is_young) if step.action == "reuse" else _built(source, step)
    if method == "whole" and not why:
        why = _why_whole(source.annotation, step.reasons, is_first, otherwise)
    reasons = step.reasons
    if is_forbidden(source.annotation, reasons):
        reasons = (*reasons, Reason("strict", "refresh=strict forbids this: its build will fail"))
    return replace(step, maintenance=method, why=why, reasons=reasons)


def is_forbidden(annotation: Annotation, reasons: Sequence[Reason]) -> bool:
    """Whether ``refresh=strict`` forbids a build that would compute all rows of a table.

    First builds, changed code, missing and tainted tables and ``--force`` are not forbidden.
    """
    codes = {reason.code for reason in reasons}
    return annotation.is_strict and "whole" in codes and not codes & {"forced", "tainted"}


def way_out(source: Source) -> str:
    """Return how to go on where ``refresh=strict`` forbids a build, for a hint."""
    return f"run persist build {source.key} --full-refresh once, or write refresh=auto"


def refusal(source: Source, why: str) -> NotIncrementalError:
    """Return the error of a build that ``refresh=strict`` forbids."""
    message = f"`{source.name}` would be computed in full, which refresh=strict forbids: {why}"
    return NotIncrementalError(message, hint=way_out(source), location=source.location)


def why_all_rows(step: Step) -> tuple[str, ...]:
    """Return why a build computes all rows, unless the reasons of its step state it."""
    repeats = any(r.message in step.why or step.why in r.message for r in step.reasons)
    is_shown = step.action == "build" and step.maintenance == "whole" and not repeats
    is_requested = any(r.code in ("forced", "tainted") for r in step.reasons)
    return (step.why,) if is_shown and not is_requested else ()


def increment_method(annotation: Annotation, *, adds: bool) -> Maintenance:
    """Return the method of a build that continues a table without partitions or history.

    Parameters
    ----------
    adds
        The build computes only rows of new files.
    """
    if annotation.merge is not None:
        return "merge"
    return "append" if adds else "windows"


def _reused(step: Step, is_young: bool) -> tuple[Maintenance, str]:
    same = _message(step.reasons, "same-rows")
    if same is not None:
        return "stamp", same
    base = step.snapshot.partitions if step.snapshot else None
    if base is not None and step.partitions is not None:
        before, after = ({group.as_of for group in p.filled} for p in (base, step.partitions))
        if before != after:
            return "stamp", "the data is newer, but the rows of these partitions are the same"
    if is_young:
        return "reuse", "only data without versions may be newer, and the table is young enough"
    return "reuse", "the table is up to date"


def _built(source: Source, step: Step) -> tuple[Maintenance, str]:
    """Return the method of a step that builds, and why; for ``whole``, maybe no reason."""
    annotation = source.annotation
    if annotation.strategy == "view":
        return "whole", "materialized=view computes all rows once, to check them"
    if step.keys is not None:
        n = len(step.keys)
        others = "the others stay" if step.base else "the table has no others"
        return "partitions", f"{n} partition{' is' if n == 1 else 's are'} computed; {others}"
    if source.keeps_history:
        return "history", "refresh=snapshot compares all rows with the current versions"
    if step.increment is None:
        return "whole", ""
    why = _message(step.reasons, "increment") or _message(step.reasons, "older") or ""
    if step.increment.program is not None:
        return step.increment.program.method, why
    if annotation.merge is not None:
        why += f", and merged by {', '.join(annotation.merge.key)}"
    return increment_method(annotation, adds=bool(step.increment.added)), why


def _why_whole(
    annotation: Annotation, reasons: Sequence[Reason], is_first: bool, otherwise: str
) -> str:
    """Return why no cheaper method applies."""
    if _message(reasons, "forced") is not None:
        return "all rows were requested"
    for code in ("tainted", "whole"):
        message = _message(reasons, code)
        if message is not None:
            return message.removeprefix(IN_FULL)
    if is_first and reasons:
        first = reasons[0]
        return f"its meaning changed: {first.message}" if first.code in _CHANGED else first.message
    if otherwise:
        return otherwise
    if not annotation.is_incremental:
        return _NOT_INCREMENTAL[annotation.refresh]
    return _message(reasons, "increment") or "it is unknown which of its rows the changes affect"


_CHANGED: tuple[ReasonCode, ...] = ("code", "upstream")


def _message(reasons: Sequence[Reason], code: ReasonCode) -> str | None:
    return next((reason.message for reason in reasons if reason.code == code), None)
