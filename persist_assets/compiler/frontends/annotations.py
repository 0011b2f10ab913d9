"""Annotation lines → a validated `Annotation`. Pure.

The text after ``--@`` (SQL) or ``#@`` (Malloy, Python) is MOTLY (`motly.parse_tag`); its
vocabulary is the table `annotation_keys.KEYS`. The invariant: a key that is not fully understood is
a problem, never ignored.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.annotation_values import (
    RENAMED,
    Bad,
    numbered,
)
from persist_assets.compiler.frontends.motly import Line, Tag, parse_tag
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.annotations import (
    Annotation,
    Dimension,
    Partitioning,
    Wanted,
)
from persist_assets.core.settings.keys import SETTINGS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.sources import Declaration


_INCREMENTAL = ("lookback", "assume")
"""Keys that require ``refresh=incremental`` or ``refresh=strict``."""
_PARTITION = ("start", "end", "timezone", "backfill")
"""Keys that require ``partition``."""
_HISTORY = ("key", "watch", "hard_deletes")
"""Keys that require ``refresh=snapshot``."""
NEEDS_TABLE = (
    *(
        "name",
        "time_column",
        "watermark",
        "freshness",
        "refresh",
        "merge_key",
        "by",
        "automation",
        "want",
    ),
    *("partition", *_PARTITION),
    *("on_schema_change", "on_change", *_INCREMENTAL, *_HISTORY),
    *("retries", "pool", "op_tags", "k8s"),
)
"""Keys that require a source whose rows outlive a run."""
NEEDS_PERSIST = (*NEEDS_TABLE, "materialized", "columns")
"""Keys that require a source with a table."""
_NOT_OF_RAW = ("persist", *NEEDS_PERSIST, "check")
"""Keys that no raw table takes."""


def read_annotation(
    lines: Sequence[Line], defined: Tag | None = None
) -> tuple[Annotation, list[Problem]]:
    """Parse and validate the annotation lines above one definition.

    Parameters
    ----------
    defined
        Keys that the definition sets itself, as a decorator does; the lines must agree.

    Returns
    -------
    annotation, problems
        The valid part of the annotation, and the problems of the rest.
    """
    root, problems = parse_tag(lines)
    if defined is not None:
        problems += _combine(root, defined)
    fields: dict[str, object] = {}
    places: list[tuple[str, Location]] = []
    for name, tag in (root.properties or {}).items():
        if name not in KEYS:
            problems.append(_unknown(name, tag))
            continue
        if tag.deleted:
            if tag.revived:
                problems.append(
                    Problem(
                        "annotation-value",
                        f"`{name}` is set after `-{name}` removed it",
                        tag.revived,
                    )
                )
            elif name == "persist":
                fields["persist"] = False
            continue
        key = KEYS[name]
        places.append((name, tag.location))
        try:
            value = key.read(tag, name)
        except Bad as bad:
            problems.append(bad.problem)
        else:
            problems += _renamed(name, tag)
            if key.field:
                fields[key.field] = value
    promised: Any = fields.pop("columns", ())
    checked: Any = fields.get("checks", ())
    fields["checks"] = (*promised, *_besides(promised, checked))
    if fields.get("refresh") == "strict":
        fields |= {"refresh": "incremental", "is_strict": True}
    problems += _contradictions(dict(places))
    if "partition" not in dict(places):
        problems += _without_partitions((root.properties or {}).get("check"))
    try:
        _complete(fields, dict(places))
    except Bad as bad:
        problems.append(bad.problem)
    try:
        complete_want(fields, dict(places))
    except Bad as bad:
        problems.append(bad.problem)
    removed = tuple(name for name, tag in (root.properties or {}).items() if tag.deleted)
    return Annotation(**fields, keys=tuple(places), removed=removed), problems  # pyright: ignore[reportArgumentType]


def _unknown(name: str, tag: Tag) -> Problem:
    """Return the problem with a key that does not exist."""
    hint = did_you_mean(name, KEYS)
    if name.isdecimal() and tag.deleted:
        hint = 'put dates in quotes: "2013-01-01"'
    hint = hint or f"known keys: {', '.join(KEYS)}"
    return Problem("annotation-key", f"unknown key `{name}`", tag.location, hint)


def _renamed(name: str, tag: Tag) -> Iterator[Problem]:
    """Yield a warning for the old name of a value."""
    new = RENAMED.get((name, tag.value)) if isinstance(tag.value, str) else None
    if new is not None:
        message = f"`{name}={tag.value}` is now called `{name}={new}`"
        hint = f"write {name}={new}: a later release will not accept `{tag.value}`"
        yield Problem("annotation-renamed", message, tag.location, hint, severity="warning")


def _complete(fields: dict[str, object], places: Mapping[str, Location]) -> None:
    """Combine the keys of partitions into one value."""
    start, end, zone = (fields.pop(name, None) for name in ("start", "end", "timezone"))
    dimensions = cast("tuple[Dimension, ...]", fields.pop("partition", ()))
    if not dimensions:
        return
    place, column = places["partition"], fields.get("time_column")
    lead = dimensions[0]
    if not lead.column:
        if not isinstance(column, str):
            message = f"`partition={lead.every}` needs a time column"
            raise Bad(message, place, "add time_column=…")
        lead = replace(lead, column=column)
        dimensions = (lead, *dimensions[1:])
    if lead.every is None:
        for name in ("start", "end", "timezone"):
            if name in places:
                raise Bad(f"`{name}` applies only to time partitions", places[name], "remove it")
    elif not isinstance(start, str):
        if "start" not in places:
            hint = 'for example, start="2013-01-01"'
            raise Bad("time partitions need a start", place, hint)
        return
    else:
        if isinstance(column, str) and column.lower() != lead.column.lower():
            message = f"its partitions are by `{lead.column}`, so that is its watermark"
            raise Bad(message, places.get("time_column") or places["watermark"])
        fields["time_column"] = lead.column
        if isinstance(end, str) and datetime.fromisoformat(end) <= datetime.fromisoformat(start):
            raise Bad("`end` must be after `start`", places["end"])
        if lead.every == "hourly" and zone not in (None, "UTC"):
            raise Bad("hourly partitions are in UTC", places["timezone"], "remove it")
    fields["partition"] = Partitioning(
        dimensions,
        cast("str | None", start),
        cast("str | None", end),
        cast("str | None", zone) or "UTC",
    )


def complete_want(fields: dict[str, object], places: Mapping[str, Location]) -> None:
    """Combine the keys of wants into one value; time partitions determine their period."""
    parts: Any = fields.pop("want", None)
    if parts is None:
        return
    every, sla, ttl, needs = parts
    partition = fields.get("partition")
    time = partition.time if isinstance(partition, Partitioning) else None
    if time is not None and every not in (None, time.every):
        message = f"`want.every={every}` conflicts with {time.every} partitions"
        raise Bad(message, places["want"], f"use every={time.every}, or remove it")
    every = time.every if time is not None else every
    if every is None:
        message = "`want` needs `every`"
        raise Bad(message, places["want"], 'for example, want { every=daily sla="9h" }')
    fields["want"] = Wanted(every, sla, ttl, needs)


def _besides(promised: Iterable[Check], checks: Iterable[Check]) -> Iterator[Check]:
    """Yield the checks and those of a contract, with distinct names."""
    names = {c.name for c in promised}
    for check in checks:
        name = next(n for n in numbered(check.name) if n not in names)
        names.add(name)
        yield replace(check, name=name)


def _contradictions(places: Mapping[str, Location]) -> Iterator[Problem]:
    if "time_column" in places and "watermark" in places:
        message = "`watermark` and `time_column` mean the same"
        yield Problem("annotation-value", message, places["watermark"], "remove one of them")


def _without_partitions(checks: Tag | None) -> Iterator[Problem]:
    """Yield a problem for each kind of check by partition, if there are no partitions."""
    if checks is None or checks.deleted:
        return
    for kind, below in (checks.properties or {}).items():
        per = (below.properties or {}).get("per")
        if per is not None and not per.deleted and per.value == "partition":
            message = f"`check.{kind}` is per partition, but there are no partitions"
            hint = "add partition=…, or remove per=partition"
            yield Problem("annotation-value", message, per.location, hint)


def _combine(root: Tag, defined: Tag) -> Iterator[Problem]:
    """Add the keys of another tag to a tag; yield a problem for each that both set differently."""
    properties = root.properties = root.properties or {}
    for name, tag in (defined.properties or {}).items():
        first = properties.setdefault(name, tag)
        if not _alike(first, tag):
            message = f"`{name}` is set here and, differently, at {tag.location}"
            yield Problem("annotation-value", message, first.location, "set it once")


def _alike(a: object, b: object) -> bool:
    """Whether two tags, or values of tags, are equal regardless of their locations."""
    if isinstance(a, Tag) and isinstance(b, Tag):
        below = [{k: v for k, v in (t.properties or {}).items() if not v.deleted} for t in (a, b)]
        return (
            a.deleted == b.deleted
            and _alike(a.value, b.value)
            and below[0].keys() == below[1].keys()
            and all(_alike(v, below[1][k]) for k, v in below[0].items())
        )
    if isinstance(a, list) and isinstance(b, list):
        one, other = cast("list[Tag]", a), cast("list[Tag]", b)
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(a) is type(b) and a == b


def misplaced(declaration: Declaration) -> Iterator[Problem]:
    """Yield a problem for each key that has no effect on the definition."""
    annotation = declaration.annotation
    incremental = annotation.is_incremental
    history = annotation.refresh == "snapshot"
    live = annotation.freshness and replace(annotation.freshness, fallback="live")
    for key, place in annotation.keys:
        if declaration.raw is not None and key in _NOT_OF_RAW:
            message = f"`{key}` has no effect on a raw table"
            hint = "put it on a view of the table" if key == "check" else None
            yield Problem("annotation-misplaced", message, place, hint)
        elif declaration.temporary and key in NEEDS_TABLE:
            message = f"`{key}` has no effect on temporary tables"
            yield Problem("annotation-misplaced", message, place, "remove materialized")
        elif not declaration.is_persistent and key in NEEDS_PERSIST:
            message = f"`{key}` has no effect on a source that is not persisted"
            hint = "add persist to its annotation"
            yield Problem("annotation-misplaced", message, place, hint)
        elif not declaration.is_persistent and key == "check" and declaration.language == MALLOY:
            message = "`check` would not run: Malloy inlines a source that is not persisted"
            hint = "add persist to its annotation, or check a view that reads it in SQL"
            yield Problem("annotation-misplaced", message, place, hint)
        elif key == "by":
            yield from _misplaced_by(declaration, place)
        elif key in _INCREMENTAL and not incremental:
            message = f"`{key}` needs refresh=incremental or strict"
            yield Problem("annotation-misplaced", message, place, "add refresh=incremental")
        elif key in _INCREMENTAL and annotation.time_column is None:
            message = f"`{key}` needs a watermark"
            yield Problem("annotation-misplaced", message, place, "add watermark=column")
        elif key in _PARTITION and annotation.partition is None:
            if not any(k == "partition" for k, _ in annotation.keys):
                message = f"`{key}` needs partitions"
                yield Problem("annotation-misplaced", message, place, "add partition=daily")
        elif annotation.partition is not None and (
            key == "merge_key" or (key == "refresh" and (incremental or history))
        ):
            message = f"`{key}` cannot be combined with `partition`: partitions are replaced"
            yield Problem("annotation-misplaced", message, place, "remove one of them")
        elif key in _HISTORY and not history:
            message = f"`{key}` has no effect on a source that keeps no versions"
            yield Problem("annotation-misplaced", message, place, "add refresh=snapshot")
        elif key == "on_change" and not (incremental or history):
            message = f"`{key}` needs refresh=incremental, strict or snapshot"
            hint = "add refresh=incremental or refresh=snapshot"
            yield Problem("annotation-misplaced", message, place, hint)
        elif key == "merge_key" and history:
            message = "`merge_key` keeps the last row of each key, but refresh=snapshot keeps all"
            yield Problem("annotation-misplaced", message, place, "use key= instead")
        elif key == "refresh" and history and not annotation.key:
            message = "refresh=snapshot needs a key"
            yield Problem("annotation-misplaced", message, place, "add key=column")
        elif key == "freshness" and history and annotation.freshness == live:
            message = "`fallback=live` has no query to compute: only the table has the versions"
            yield Problem("annotation-misplaced", message, place, "remove fallback=live")
        elif annotation.strategy == "view" and (
            key in ("merge_key", "partition") or (key == "refresh" and (incremental or history))
        ):
            message = "a build cannot add rows to a view"
            yield Problem("annotation-misplaced", message, place, "remove materialized=view")


def of_default(problem: Problem, place: Location) -> Problem:
    """Return the problem of an annotation, at its source if a default has caused it.

    A file with errors is not built. `persist.toml` is not such a file.

    Parameters
    ----------
    place
        The location of the source.
    """
    if problem.location.path != SETTINGS_FILE:
        return problem
    message = f"{problem.message} (it has a default: {problem.location})"
    hint = "write another value above the source, or another pattern in persist.toml"
    return replace(problem, message=message, location=place, hint=hint)


def _misplaced_by(declaration: Declaration, place: Location) -> Iterator[Problem]:
    """Yield a problem if ``by`` has no effect on the definition."""
    if declaration.function is None:
        message = "`by` has no effect on a query: its text shows which rows follow from which"
        yield Problem("annotation-misplaced", message, place, "remove by")
        return
    annotation = declaration.annotation
    others = {
        "partition": annotation.partition is not None,
        "merge_key": annotation.merge is not None,
        "assume": annotation.assume is not None,
        "refresh=snapshot": annotation.refresh == "snapshot",
        "materialized=view": annotation.strategy == "view",
    }
    for other in (name for name, is_set in others.items() if is_set):
        message = f"`by` cannot be combined with `{other}`, which decides what a build computes"
        yield Problem("annotation-misplaced", message, place, "remove one of them")
