"""Checks that read more than the rows being built, and samples of the rows that fail.

    rows analysed ─► columns as promised? ─► written and measured ─► compared, asked ─► samples

The invariant: a check's result records what it was computed from, and the check runs again when
that changes.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.functions import CLOCK, SPECIAL_DATETIMES
from persist_assets.building.failing_rows import is_kept_as_declared, keep_failing_rows
from persist_assets.building.partition_checks import failing_in, failing_rows, judged
from persist_assets.core.contracts import breaches, changes, incomparable, listed
from persist_assets.core.errors import BuildError, CheckFailedError
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.time_values import TIMES
from persist_assets.engine.python_functions import ask
from persist_assets.engine.row_metrics import aged, columns_in, promised, type_in
from persist_assets.engine.session import translated
from persist_assets.external.read_routing import Route
from persist_assets.planning.inputs import content_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from persist_assets.building.partition_checks import Parted
    from persist_assets.building.reader import Reader
    from persist_assets.core.model.checks import Check, FailedPartition
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

log = logging.getLogger(__name__)

SAMPLE = 5
"""The maximum number of failing rows that are shown."""
_WIDTH, _LENGTH = 12, 60
"""The maximum number of their columns, and of characters in a string."""


def bound(checks: Iterable[Check], now: datetime) -> tuple[Check, ...]:
    """Return checks with the current time filled in."""
    return tuple(
        replace(c, since=now - timedelta(seconds=c.age_s)) if c.kind == "freshness" else c
        for c in checks
    )


# ---------------------------------------------------------------------------------------- columns


def check_columns(
    source: Source,
    checks: Iterable[Check],
    columns: Sequence[Column],
    published: Snapshot | None,
) -> None:
    """Refuse rows, before they are computed, whose columns break a promise to readers.

    Parameters
    ----------
    published
        The snapshot that the source's readers get now.

    Raises
    ------
    CheckFailedError
        They differ from those of a contract.
    BuildError
        They differ from the published ones, and the source forbids that; or they have no time
        column although one is required.
    """
    kinds = {c.name.lower(): c.type for c in columns}
    for check in checks:
        wrong = breaches(check, columns) if check.kind == "columns" else ()
        if wrong:
            raise CheckFailedError(
                f"the columns of `{source.name}` differ from its contract, so it was not published:"
                f"{listed(wrong)}",
                results=(promised(check, columns),),
                location=check.location or source.location,
            )
        kind = kinds.get(check.columns[0].lower()) if check.kind == "freshness" else None
        if kind is not None and kind not in TIMES:
            raise BuildError(
                f"`{check.columns[0]}` is {kind}, so it has no age",
                hint="use a date or a timestamp",
                location=check.location or source.location,
            )
    _check_change(source, columns, published)


def _check_change(source: Source, columns: Sequence[Column], published: Snapshot | None) -> None:
    """Refuse columns that differ from the published ones, if `on_schema_change` forbids it.

    Raises
    ------
    BuildError
        They differ.
    """
    rule = source.annotation.on_schema_change
    published_columns = published.columns if published else ()
    wrong = changes(rule, published_columns, columns) if published_columns else ()
    if wrong:
        place = dict(source.annotation.keys).get("on_schema_change", source.location)
        allowed = "only new ones are allowed" if rule == "append" else "none may change"
        raise BuildError(
            f"the columns of `{source.name}` differ from its table, and {allowed}; "
            f"it was not published:{listed(wrong)}",
            hint="to publish it anyway: persist build --allow-schema-change",
            location=place,
        )


# --------------------------------------------------------------------------------- beyond the rows


def basis(reader: Reader, check: Check, manifest: Mapping[BuildID, Snapshot]) -> str:
    """Return a text for the current rows of a relationship's other source; same rows, same text."""
    assert check.against is not None
    other = check.against.source_id
    read = reader.routed([other], reader.reading([other], manifest))
    versions: list[str] = [reader.project.by_id[other].build_id]
    for source in reader.project.reach([other], lambda s: s.source_id in read):
        snapshot = read.get(source.source_id)
        if isinstance(snapshot, Route):
            versions.append(f"{source.build_id} {snapshot.name}")
        elif snapshot is not None:
            versions.append(f"{source.build_id} {content_version(source, snapshot)}")
        elif source.raw is not None:
            versions.append(f"{source.build_id} {reader.pins.pin(source).version}")
        elif source.volatile or source.reads_clock:
            versions.append(reader.observer.started_at.isoformat())
    return sha256(" ".join(sorted(versions)).encode()).hexdigest()[:16]


def reads_clock(check: Check) -> bool:
    """Whether the result of a check may change later, for the same rows."""
    words = re.findall(r"\w+", (check.expression or "").lower())
    return not CLOCK.union(SPECIAL_DATETIMES).isdisjoint(words)


def reused_results(
    reader: Reader,
    source: Source,
    checks: Sequence[Check],
    previous: Mapping[str, CheckResult],
    manifest: Mapping[BuildID, Snapshot],
) -> tuple[CheckResult, ...] | None:
    """Return the results of checks of rows checked earlier; None: they have to run again.

    Parameters
    ----------
    previous
        The results of checks of the same rows, by name.
    """
    results: list[CheckResult] = []
    for check in checks:
        result = previous.get(check.name)
        if result is None or result.definition != check.definition or check.fickle:
            return None
        if not is_kept_as_declared(reader, source, check, result):
            return None
        result = replace(result, blocking=check.blocking)
        if check.kind == "freshness":
            result = aged(check, result)
        elif (
            check.against is not None
            and not _is_own(reader, source, check)
            and result.basis != basis(reader, check, manifest)
        ):
            return None
        results.append(result)
    return tuple(results)


def check_results(
    reader: Reader,
    source: Source,
    checks: Sequence[Check],
    measured: Iterable[CheckResult],
    load: Callable[[], DataFrame],
    manifest: Mapping[BuildID, Snapshot],
    parted: Parted | None = None,
) -> tuple[CheckResult, ...]:
    """Return the results of all checks, in order; failures have a sample of the rows.

    Parameters
    ----------
    measured
        The results of checks that were computed while the rows were written.
    load
        Returns the written rows.
    parted
        The partitions of the rows, if the table is partitioned.

    Raises
    ------
    PersistError
        A function fails, or the rows to compare with cannot be read.
    """
    results = {r.name: r for r in measured}
    frames: list[DataFrame] = []

    def rows() -> DataFrame:
        if not frames:
            frames.append(load())
        return frames[0]

    def answer(check: Check, some: DataFrame) -> DataFrame | bool:
        return ask(source, check, reader.settings.root, some, lambda: reader.engine.session)

    for check in checks:
        bad: DataFrame | None = None
        if check.per_partition:
            assert parted is not None
            result = judged(check, parted, rows, partial(answer, check))
            if not result.passed:
                bad = failing_rows(check, result, parted, rows(), partial(answer, check))
                sample = _sample(reader, bad, check) if bad is not None else ()
                result = replace(result, sample=sample)
            results[check.name] = keep_failing_rows(reader, source, check, result, bad)
            continue
        if check.kind == "relationship":
            bad, rests_on = _strangers(reader, source, check, rows(), manifest)
            results[check.name] = _counted(check, bad, rests_on)
        elif check.kind == "function":
            outcome = answer(check, rows())
            if isinstance(outcome, bool):
                reason = None if outcome else f"{check.values[0]} returned False"
                definition = check.definition
                results[check.name] = CheckResult(
                    check.name, outcome, check.blocking, 0, definition, reason
                )
            else:
                bad = outcome
                results[check.name] = _counted(check, bad)
        result = results[check.name]
        if not result.passed and not result.sample:
            bad = bad if bad is not None else reader.engine.failing(rows(), check)
            if bad is not None:
                places = _places(bad, check, parted)
                results[check.name] = replace(
                    result, sample=_sample(reader, bad, check), partitions=places
                )
        results[check.name] = keep_failing_rows(reader, source, check, results[check.name], bad)
    return tuple(results[c.name] for c in checks)


def _strangers(
    reader: Reader,
    source: Source,
    check: Check,
    rows: DataFrame,
    manifest: Mapping[BuildID, Snapshot],
) -> tuple[DataFrame, str | None]:
    """Return the rows whose value the other source lacks, and the version of that source."""
    against = check.against
    assert against is not None
    other = reader.project.by_id[against.source_id]
    rests_on = None
    if _is_own(reader, source, check):
        others = rows
    else:
        rests_on = basis(reader, check, manifest)
        read = reader.reading([other.source_id], manifest)
        others = reader.rows(other, reader.routed([other.source_id], read))
    with translated(f"comparing `{source.name}` with `{other.name}`"):
        kinds = {c.name.lower(): c.type or "" for c in columns_in(others)}
        kind = kinds.get(against.column.lower())
        if kind is None:
            raise BuildError(
                f"`{against.column}` is not a column of `{other.name}`",
                hint=f"known columns: {', '.join(others.columns)}",
                location=check.location or source.location,
            )
        _check_comparable(source, check, type_in(rows, check.columns[0]), kind)
        bad = reader.engine.unmatched(rows, check.columns[0], others, against.column)
    return bad, rests_on


def _check_comparable(source: Source, check: Check, kind: str, other: str) -> None:
    """Refuse a comparison of columns whose values cannot be equal."""
    wrong = incomparable(check, kind, other)
    if wrong:
        raise BuildError(wrong, location=check.location or source.location)


def _is_own(reader: Reader, source: Source, check: Check) -> bool:
    """Whether rows are compared with themselves."""
    assert check.against is not None
    return reader.project.by_id[check.against.source_id].build_id == source.build_id


def _counted(check: Check, bad: DataFrame, rests_on: str | None = None) -> CheckResult:
    with translated(f"checking {check.definition}"):
        n = bad.count()
    return CheckResult(check.name, n == 0, check.blocking, n, check.definition, basis=rests_on)


def _sample(reader: Reader, bad: DataFrame, check: Check) -> tuple[str, ...]:
    """Return some rows as JSON, shortened, with the checked columns first."""
    checked = [c.lower() for c in check.columns]
    names = sorted(bad.columns, key=lambda name: name.lower() not in checked)[:_WIDTH]
    try:
        with translated(f"reading rows that fail {check.name}"):
            rows = reader.engine.sample(bad, names, SAMPLE)
    except BuildError as error:  # the failure is known, and matters more than the sample
        log.warning(
            "no sample of rows that fail %s: %s",
            check.name,
            error,
            extra={"action": "check-sample"},
        )
        return ()
    return tuple(json.dumps(_short(json.loads(row)), ensure_ascii=False) for row in rows)


def _places(bad: DataFrame, check: Check, parted: Parted | None) -> tuple[FailedPartition, ...]:
    """Return the partitions of failing rows, as far as the rows show them."""
    try:
        return failing_in(bad, parted) if parted else ()
    except BuildError as error:  # as for samples
        log.warning(
            "no partitions of rows that fail %s: %s",
            check.name,
            error,
            extra={"action": "check-sample"},
        )
        return ()


def _short(value: Any) -> Any:
    """Return a JSON value with long strings shortened."""
    if isinstance(value, dict):
        return {str(k): _cut(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return _cut(value)


def _cut(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…"


def failure(source: Source, results: Sequence[CheckResult]) -> CheckFailedError:
    """Return the error that names the failed checks, with an example row for each."""
    failures, shown = failures_in_words(results)
    message = f"`{source.name}` failed {failures}; it was not published{shown}"
    return CheckFailedError(message, results=results, location=source.location)


def failures_in_words(results: Sequence[CheckResult]) -> tuple[str, str]:
    """Return the failed blocking checks in words, and lines with an example row for each."""
    failed = [r for r in results if not r.passed and r.blocking]
    failures = ", ".join(f"{r.name} ({r.in_words})" for r in failed)
    return failures, listed(f"{r.name}: {row}" for r in failed for row in r.sample[:1])
