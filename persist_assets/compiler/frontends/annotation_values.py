"""The values of annotations: text → a validated value, or an error."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, cast, get_args
from zoneinfo import ZoneInfo

from persist_assets.compiler.frontends.cron import NICKNAMES, wrong_with
from persist_assets.compiler.frontends.motly import Tag
from persist_assets.core.contracts import stored_type
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.model.annotations import (
    Cadence,
    Dimension,
    Fallback,
    Freshness,
    Merge,
    SchemaChange,
    Strategy,
)
from persist_assets.core.model.checks import Check, Scalar
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.spark_types import type_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Bad(Exception):
    """An invalid value of an annotation."""

    def __init__(self, message: str, location: Location, hint: str | None = None) -> None:
        self.problem = Problem("annotation-value", message, location, hint)


def read_text(tag: Tag, key_name: str) -> str:
    """Return a text that is not empty."""
    refuse(tag.properties, key_name)
    if isinstance(tag.value, str) and tag.value:
        return tag.value
    hint = f'put it in quotes: {key_name}="…"' if isinstance(tag.value, int | float) else None
    raise Bad(f"`{key_name}` must be a string", tag.location, hint)


def read_texts(tag: Tag, key_name: str) -> tuple[str, ...]:
    """Return a list of texts, or one text as a list."""
    if not isinstance(tag.value, list):
        return (read_text(tag, key_name),)
    refuse(tag.properties, key_name)
    return tuple(read_text(element, key_name) for element in tag.value)


def refuse(properties: Mapping[str, Tag] | None, key_name: str) -> None:
    """Raise if there are properties that have no meaning here."""
    for name, below in (properties or {}).items():
        raise Bad(f"`{key_name}` has no property `{name}`", below.location)


def read_known(tag: Tag, key_name: str, names: Iterable[str]) -> Iterable[tuple[str, Tag]]:
    """Yield the live properties of `tag`, all of which must be in `names`."""
    names = tuple(names)
    for name, below in (tag.properties or {}).items():
        if name not in names:
            hint = did_you_mean(name, names) or f"known properties: {', '.join(names)}"
            raise Bad(f"`{key_name}` has no property `{name}`", below.location, hint)
        if not below.deleted:
            yield name, below


def flag(tag: Tag, key_name: str) -> bool:
    """Return True for a bare word."""
    refuse(tag.properties, key_name)
    if tag.value is None or tag.value is True:
        return True
    raise Bad(f"`{key_name}` takes no value", tag.location, f"to turn it off write -{key_name}")


IDENTIFIER = re.compile(r"[^\W\d]\w*")
"""A name of a source or column that needs no quotes anywhere: the guard of every name that
becomes part of a path or a statement."""

_TABLE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*){0,2}")


def table_name(tag: Tag, key_name: str) -> str:
    """Return the name of a table: a directory that every store can have."""
    name = read_text(tag, key_name)
    if not _TABLE_NAME.fullmatch(name):
        raise Bad(
            f"invalid table name `{name}`",
            tag.location,
            "letters, digits and underscores, with up to two qualifiers: schema.table",
        )
    return name


def read_strategy(tag: Tag, key_name: str) -> str:
    """Return how a source is materialized."""
    return one_of(get_args(Strategy), tag, key_name)


RENAMED: Mapping[tuple[str, str], str] = {("refresh", "full"): "whole"}
"""The new names of values, by key and old name. An old name works for one release, with a
warning."""


def read_refresh(tag: Tag, key_name: str) -> str:
    """Return what a build computes; ``strict`` is a stricter ``incremental``."""
    if tag.value == "full":
        tag = replace(tag, value=RENAMED[key_name, "full"])
    return one_of(("auto", "incremental", "strict", "whole", "snapshot"), tag, key_name)


def read_merge(tag: Tag, key_name: str) -> Merge:
    """Return the keys that rows are merged by."""
    named = {k: v for k, v in (tag.properties or {}).items() if not v.deleted}
    on_tie = named.pop("on_tie", None)
    refuse(named, key_name)
    key = column_names(Tag(tag.location, tag.value), key_name)
    how: Any = (
        "fail" if on_tie is None else one_of(("fail", "greatest"), on_tie, f"{key_name}.on_tie")
    )
    return Merge(key, how)


_PART = re.compile(r"[^|\x00-\x1f]+")


def read_partition(tag: Tag, key_name: str) -> tuple[Dimension, ...]:
    """Return the dimensions of partitions; the one of the short form has no column yet."""
    hint = "for example, partition=daily, or partition { origin=[EWR, JFK] }"
    if isinstance(tag.value, str) and not tag.properties:
        return (_dimension("", tag, key_name),)
    if tag.value is not None or not tag.properties:
        raise Bad(f"`{key_name}` must be a cadence or a block of columns", tag.location, hint)
    dimensions = [
        _dimension(name, below, f"{key_name}.{name}")
        for name, below in tag.properties.items()
        if not below.deleted
    ]
    if len(dimensions) > 2 or sum(d.every is not None for d in dimensions) > 1:
        message = f"`{key_name}` must have one column, or two with at most one of them by time"
        raise Bad(message, tag.location)
    return tuple(sorted(dimensions, key=lambda d: d.every is None))


def _dimension(column: str, tag: Tag, key_name: str) -> Dimension:
    if not isinstance(tag.value, list):
        every: Any = one_of(get_args(Cadence), tag, key_name)
        return Dimension(column, every)
    values = read_scalars(tag, key_name)
    for value in values:
        text = str(value)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise Bad(f"`{key_name}` must be a list of strings or integers", tag.location)
        if not _PART.fullmatch(text) or "..." in text or text != text.strip():
            raise Bad(f"`{text}` is not a valid partition key", tag.location)
    if len({*map(str, values)}) < len(values) or len({*map(type, values)}) > 1:
        raise Bad(f"`{key_name}` must be distinct values of one type", tag.location)
    return Dimension(column, None, cast("tuple[str | int, ...]", values))


def moment(tag: Tag, key_name: str) -> str:
    """Return a local time, without a zone."""
    text = read_text(tag, key_name)
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            raise Bad(
                f"`{key_name}` must be local time",
                tag.location,
                "remove the time zone and set timezone=…",
            )
    except ValueError:
        hint = f'for example, {key_name}="2013-01-01"'
        raise Bad(f"`{text}` is not a date or time", tag.location, hint) from None
    return text


def read_timezone(tag: Tag, key_name: str) -> str:
    """Return the name of a time zone."""
    text = read_text(tag, key_name)
    try:
        return ZoneInfo(text).key
    except (ValueError, OSError, KeyError):
        hint = 'for example, timezone="Europe/Berlin"'
        raise Bad(f"unknown time zone `{text}`", tag.location, hint) from None


def read_backfill(tag: Tag, key_name: str) -> str:
    """Return whether a backfill is one run or several."""
    return one_of(("single_run", "multi_run"), tag, key_name)


def read_on_schema_change(tag: Tag, key_name: str) -> str:
    """Return the handling of rows with other columns than the table."""
    return one_of(get_args(SchemaChange), tag, key_name)


def column_names(tag: Tag, key_name: str) -> tuple[str, ...]:
    """Return names of columns, each once."""
    names = read_texts(tag, key_name)
    if not names or len({n.lower() for n in names}) < len(names):
        raise Bad(f"`{key_name}` must be distinct columns", tag.location)
    return names


def read_hard_deletes(tag: Tag, key_name: str) -> str:
    """Return the handling of the version of a key that is gone."""
    return one_of(("close", "ignore"), tag, key_name)


def read_on_change(tag: Tag, key_name: str) -> str:
    """Return the handling of the table when the meaning of the query changes."""
    return one_of(("rebuild", "continue"), tag, key_name)


def read_assume(tag: Tag, key_name: str) -> str:
    """Return the assumption about new rows."""
    return one_of(("exact",), tag, key_name)


def one_of(choices: Sequence[str], tag: Tag, key_name: str) -> str:
    """Return a text that must be one of the known values."""
    text = read_text(tag, key_name)
    if text not in choices:
        hint = did_you_mean(text, choices)
        raise Bad(
            f"`{key_name}` must be one of {', '.join(choices)}, got `{text}`", tag.location, hint
        )
    return text


_GROUP = re.compile(r"[A-Za-z0-9_]+")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_TEAM = re.compile(r"team:[A-Za-z0-9_]+")
_TAG_KEY = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


def read_group(tag: Tag, key_name: str) -> str:
    """Return the name of a group of Dagster."""
    group = read_text(tag, key_name)
    if not _GROUP.fullmatch(group):
        raise Bad(f"invalid group name `{group}`", tag.location, "letters, digits and underscores")
    return group


def read_owners(tag: Tag, key_name: str) -> tuple[str, ...]:
    """Return owners: e-mail addresses or teams."""
    owners = read_texts(tag, key_name)
    for owner in owners:
        if not (_EMAIL.fullmatch(owner) or _TEAM.fullmatch(owner)):
            raise Bad(
                f"invalid owner `{owner}`",
                tag.location,
                'use an email address or a team: owner="team:flights"',
            )
    return owners


def read_tags(tag: Tag, key_name: str) -> tuple[tuple[str, str], ...]:
    """Return tags, with values or without."""
    tags: dict[str, str] = {}
    if tag.value is not None:
        tags |= dict.fromkeys(read_texts(Tag(tag.location, tag.value), key_name), "")
    for name, below in (tag.properties or {}).items():
        if not below.deleted:
            tags[name] = (
                str(below.value) if isinstance(below.value, int | float) else read_text(below, name)
            )
    for key, value in tags.items():
        if not (_TAG_KEY.fullmatch(key) and _TAG_VALUE.fullmatch(value)):
            raise Bad(
                f"invalid tag `{key}={value}`" if value else f"invalid tag `{key}`",
                tag.location,
                "at most 63 letters, digits, `_`, `-` and `.`",
            )
    return tuple(sorted(tags.items()))


def read_duration(tag: Tag, key_name: str) -> int:
    """Return a duration in seconds."""
    text = read_text(tag, key_name)
    seconds = parse_duration(text)
    if seconds is None:
        raise Bad(f"`{text}` is not a duration", tag.location, f'for example, {key_name}="24h"')
    return seconds


def read_freshness(tag: Tag, key_name: str) -> Freshness:
    """Return the maximum age of a table, and what readers of an older one get."""
    if tag.value is not None:
        raise Bad(
            f"`{key_name}` must be a block", tag.location, 'for example, freshness.window="24h"'
        )
    durations: dict[str, int] = {}
    fallback: Any = "stale_ok"
    for name, below in read_known(tag, key_name, ("window", "warn", "fallback")):
        if name == "fallback":
            fallback = one_of(get_args(Fallback), below, "freshness.fallback")
        else:
            durations[name] = read_duration(below, f"freshness.{name}")
    if "window" not in durations:
        raise Bad("`freshness` needs a window", tag.location, 'for example, freshness.window="24h"')
    if min(durations.values()) < 60:
        raise Bad("freshness is checked every minute: use at least 60s", tag.location)
    if durations.get("warn", 0) >= durations["window"]:
        raise Bad("`freshness.warn` must be shorter than `freshness.window`", tag.location)
    return Freshness(durations["window"], durations.get("warn"), fallback)


_NOT_NULL = re.compile(r"(?P<type>.*?)\s*\bnot\s+null", re.IGNORECASE)


def read_columns(tag: Tag, key_name: str) -> tuple[Check, ...]:
    """Return the checks of a contract: the columns, and which of them may be NULL."""
    example = 'for example, columns { carrier=string n="bigint not null" }'
    if tag.value is not None or not tag.properties:
        raise Bad("`columns` must be a block of columns", tag.location, example)
    promised: dict[str, str] = {}
    checks: list[Check] = []
    others = False
    for name, below in tag.properties.items():
        if below.deleted:
            continue
        if name == "*":
            others = flag(below, "columns.*")
            continue
        if name.lower() in map(str.lower, promised):
            raise Bad(f"`columns` lists `{name}` twice", below.location)
        written = "" if below.value in (None, True) else read_text(below, f"columns.{name}")
        refuse(below.properties, f"columns.{name}")
        if match := _NOT_NULL.fullmatch(written.strip()):
            written, plain = match["type"], re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
            checks.append(
                Check("not_null", f"columns_{plain}", columns=(name,), location=below.location)
            )
        kind = stored_type(written) if written else ""
        if kind is None:
            raise Bad(f"unknown type `{written}`", below.location, type_hint(written))
        promised[name] = kind
    if not promised:
        raise Bad("`columns` must be a block of columns", tag.location, example)
    names, types = tuple(promised), tuple(promised.values())
    whole = Check("columns", "columns", names, types, others=others, location=tag.location)
    return (whole, *checks)


def read_blocking(severity: Tag | None) -> bool:
    """Return whether a failed check stops the build."""
    if severity is None:
        return True
    text = read_text(severity, "severity")
    if text not in ("error", "warn"):
        raise Bad("`severity` must be `error` or `warn`", severity.location)
    return text == "error"


def numbered(name: str) -> Iterable[str]:
    """Yield a name, and then the name with the numbers from 2 on."""
    yield name
    yield from (f"{name}_{n}" for n in count(2))


def read_scalars(tag: Tag, key_name: str) -> tuple[Scalar, ...]:
    """Return a list of values."""
    refuse(tag.properties, key_name)
    elements = tag.value if isinstance(tag.value, list) else [tag]
    values: list[Scalar] = []
    for element in elements:
        if not isinstance(element.value, str | int | float | bool):
            raise Bad(
                f"`{key_name}` must be a list of strings, numbers or booleans", element.location
            )
        values.append(element.value)
    if not values:
        raise Bad(f"`{key_name}` is empty", tag.location)
    return tuple(values)


def read_automation(tag: Tag, key_name: str) -> str:
    """Return when Dagster automatically builds a source."""
    text = read_text(tag, key_name)
    if text in ("eager", "missing"):
        return text
    keywords = ("eager", "missing", *NICKNAMES)
    if " " not in text and text not in keywords:
        hint = did_you_mean(text, keywords) or f'for example, {key_name}="0 6 * * *"'
        message = f"`{key_name}` must be `eager`, `missing` or a schedule, got `{text}`"
        raise Bad(message, tag.location, hint)
    wrong = wrong_with(text)
    if wrong is not None:
        message = f"invalid schedule `{text}`: {wrong}"
        raise Bad(message, tag.location, f'for example, {key_name}="0 6 * * *"')
    return text


_NEEDS = re.compile(r"[A-Za-z0-9_-]{1,64}:[^:\s].*")


def read_want(tag: Tag, key_name: str) -> tuple[Any, int | None, int | None, tuple[str, ...]]:
    """Return the period, the deadline, the expiry and the needs of recurring wants."""
    example = 'for example, want { every=daily sla="9h" }'
    if tag.value is not None:
        raise Bad(f"`{key_name}` must be a block", tag.location, example)
    every: Any = None
    durations: dict[str, int] = {}
    needs: tuple[str, ...] = ()
    for name, below in read_known(tag, key_name, ("every", "sla", "ttl", "needs")):
        if name == "every":
            every = one_of(get_args(Cadence), below, "want.every")
        elif name == "needs":
            needs = read_texts(below, "want.needs")
            for need in needs:
                if not _NEEDS.fullmatch(need):
                    hint = 'for example, needs=["users:data/users"]'
                    raise Bad(f"`{need}` is not a reference to another graph", below.location, hint)
        else:
            durations[name] = read_duration(below, f"want.{name}")
    return every, durations.get("sla"), durations.get("ttl"), needs
