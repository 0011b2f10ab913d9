"""The stages that a build would go through now; see `building.stages`. Nothing is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.building.start import continued_in_place
from persist_assets.building.strategies.choose import strategy_of
from persist_assets.building.tables import Tables
from persist_assets.planning.maintenance import why_all_rows

if TYPE_CHECKING:
    from persist_assets.building.observe import Observer
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a build.

    Attributes
    ----------
    name
        ``plan``, ``compute`` or ``reuse``, ``check``, ``commit``, ``publish``.
    description
        What happens in it.
    strategy
        The strategy that computes the rows; None for other stages.
    """

    name: str
    description: str
    strategy: str | None = None


def stages_of(observer: Observer, source: Source, key: str | None = None) -> tuple[Stage, ...]:
    """Return the stages of a build of a source that would start now.

    Parameters
    ----------
    key
        The partition to build; None: all that want it.
    """
    if key is not None and key not in observer.keys()[source.source_id]:
        return (Stage("plan", "nothing: the window of the partition has not ended"),)
    partition_keys = None if key is None else {source.source_id: [key]}
    (step,) = observer.plan([source.source_id], partition_keys=partition_keys).steps
    step = continued_in_place(Tables(observer.settings, observer.project, observer.ledger), step)
    why = (*(r.message for r in step.reasons), *why_all_rows(step))
    reasons = "; ".join(why) or "the table is up to date"
    own = (*source.checks, *observer.project.checks_of_views(source))
    checks = ", ".join(c.name for c in own) or "none"
    environment = observer.settings.environment
    stages = [Stage("plan", f"{step.action}: {reasons}")]
    if step.snapshot is not None:
        table = f"version {step.snapshot.version} of {step.snapshot.table}"
        stages.append(Stage("reuse", table))
        stages.append(Stage("check", f"only those whose result may have changed: {checks}"))
    else:
        strategy = strategy_of(observer.project, source, step)
        stages.append(Stage("compute", _scope(step), strategy.name))
        stages.append(Stage("check", checks))
        written = "nothing: the query is stored" if strategy.name == "view" else _written(step)
        stages.append(Stage("commit", written))
    stages.append(Stage("publish", f"readers of `{environment}` see it, in one transaction"))
    return tuple(stages)


def _scope(step: Step) -> str:
    """Return which rows are computed."""
    if step.keys is not None:
        n = len(step.keys)
        return f"{n} partition{'s' * (n != 1)}: {', '.join(step.keys[:3])}{', …' * (n > 3)}"
    if step.increment is not None and step.increment.added:
        n = sum(len(files) for files in step.increment.added.values())
        return f"the rows of {n} new file{'s' * (n != 1)}"
    if step.increment is not None:
        return "the rows of the time window that may have changed"
    if step.history is not None:
        return "all rows, compared with the current versions of the history"
    return "all rows"


def _written(step: Step) -> str:
    base = step.goes_on_from
    if base is None:
        return "a new version of the table, with new files only"
    if step.increment is not None and step.increment.foreign:
        return f"a table of its own, with copies of unchanged files of {base.table}"
    return f"a new version of the table; unchanged files of version {base.version} are kept"
