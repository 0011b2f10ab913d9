"""Annotation lines → a validated `Annotation`. Pure.

The text after ``--@`` (SQL) or ``#@`` (Malloy, Python) is MOTLY (`motly.parse_tag`); its
vocabulary is the table `KEYS`. The invariant: a key that is not understood whole is a problem,
never ignored.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, cast, get_args
from zoneinfo import ZoneInfo

from persist_assets.compiler.frontends.cron import NICKNAMES, wrong_with
from persist_assets.compiler.frontends.motly import Line, Tag, parse_tag
from persist_assets.core.contracts import stored_type
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.model.annotations import (
    Annotation,
    Cadence,
    Dimension,
    Fallback,
    Freshness,
    Merge,
    Partitioning,
    Refresh,
    SchemaChange,
    Strategy,
    Wanted,
)
from persist_assets.core.model.checks import Check, CheckKind, Scalar
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.spark_types import type_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from persist_assets.core.model.sources import Declaration


class _Bad(Exception):
    def __init__(self, message: str, location: Location, hint: str | None = None) -> None:
        self.problem = Problem("annotation-value", message, location, hint)


def _text(tag: Tag, what: str) -> str:
    _refuse(tag.properties, what)
    if isinstance(tag.value, str) and tag.value:
        return tag.value
    hint = f'put it in quotes: {what}="…"' if isinstance(tag.value, int | float) else None
    raise _Bad(f"`{what}` wants a text", tag.location, hint)


def _texts(tag: Tag, what: str) -> tuple[str, ...]:
    if not isinstance(tag.value, list):
        return (_text(tag, what),)
    _refuse(tag.properties, what)
    return tuple(_text(element, what) for element in tag.value)


def _refuse(properties: Mapping[str, Tag] | None, what: str) -> None:
    for name, below in (properties or {}).items():
        raise _Bad(f"`{what}` has no property `{name}`", below.location)


def _known(tag: Tag, what: str, known: Iterable[str]) -> Iterable[tuple[str, Tag]]:
    """Yield the live properties of `tag`, all of which must be in `known`."""
    known = tuple(known)
    for name, below in (tag.properties or {}).items():
        if name not in known:
            hint = did_you_mean(name, known) or f"known here: {', '.join(known)}"
            raise _Bad(f"`{what}` has no property `{name}`", below.location, hint)
        if not below.deleted:
            yield name, below


def _flag(tag: Tag, what: str) -> bool:
    _refuse(tag.properties, what)
    if tag.value is None or tag.value is True:
        return True
    raise _Bad(f"`{what}` is a bare word", tag.location, f"to turn it off write -{what}")


IDENTIFIER = re.compile(r"[^\W\d]\w*")
"""A name of a source or column that needs no quotes anywhere: the guard of every name that
becomes part of a path or a statement."""

_TABLE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*){0,2}")


def _table_name(tag: Tag, what: str) -> str:
    name = _text(tag, what)
    if not _TABLE_NAME.fullmatch(name):
        raise _Bad(
            f"`{name}` is not a table name",
            tag.location,
            "letters, digits and underscores, with up to two qualifiers: schema.table",
        )
    return name


def _strategy(tag: Tag, what: str) -> str:
    return _one_of(get_args(Strategy), tag, what)


def _refresh(tag: Tag, what: str) -> str:
    return _one_of(get_args(Refresh), tag, what)


def _merge(tag: Tag, what: str) -> Merge:
    named = {k: v for k, v in (tag.properties or {}).items() if not v.deleted}
    on_tie = named.pop("on_tie", None)
    _refuse(named, what)
    key = _column_names(Tag(tag.location, tag.value), what)
    how: Any = "fail" if on_tie is None else _one_of(("fail", "greatest"), on_tie, f"{what}.on_tie")
    return Merge(key, how)


_PART = re.compile(r"[^|\x00-\x1f]+")


def _partition(tag: Tag, what: str) -> tuple[Dimension, ...]:
    """Return the dimensions of partitions; the one of the short form has no column yet."""
    hint = "for example partition=daily, or partition { origin=[EWR, JFK] }"
    if isinstance(tag.value, str) and not tag.properties:
        return (_dimension("", tag, what),)
    if tag.value is not None or not tag.properties:
        raise _Bad(f"`{what}` wants a length of time, or columns", tag.location, hint)
    found = [
        _dimension(name, below, f"{what}.{name}")
        for name, below in tag.properties.items()
        if not below.deleted
    ]
    if len(found) > 2 or sum(d.every is not None for d in found) > 1:
        message = f"`{what}` has one column, or two of which one at most is of times"
        raise _Bad(message, tag.location)
    return tuple(sorted(found, key=lambda d: d.every is None))


def _dimension(column: str, tag: Tag, what: str) -> Dimension:
    if not isinstance(tag.value, list):
        every: Any = _one_of(get_args(Cadence), tag, what)
        return Dimension(column, every)
    values = _scalars(tag, what)
    for value in values:
        text = str(value)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise _Bad(f"`{what}` wants texts or whole numbers", tag.location)
        if not _PART.fullmatch(text) or "..." in text or text != text.strip():
            raise _Bad(f"`{text}` cannot be the key of a partition", tag.location)
    if len({*map(str, values)}) < len(values) or len({*map(type, values)}) > 1:
        raise _Bad(f"`{what}` wants values of one type, each once", tag.location)
    return Dimension(column, None, cast("tuple[str | int, ...]", values))


def _moment(tag: Tag, what: str) -> str:
    text = _text(tag, what)
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            raise _Bad(f"`{what}` is local time", tag.location, "take out the zone: timezone=…")
    except ValueError:
        hint = f'for example {what}="2013-01-01"'
        raise _Bad(f"`{text}` is no date or time", tag.location, hint) from None
    return text


def _timezone(tag: Tag, what: str) -> str:
    text = _text(tag, what)
    try:
        return ZoneInfo(text).key
    except (ValueError, OSError, KeyError):
        hint = 'for example timezone="Europe/Berlin"'
        raise _Bad(f"`{text}` is no time zone", tag.location, hint) from None


def _backfill(tag: Tag, what: str) -> str:
    return _one_of(("single_run", "multi_run"), tag, what)


def _on_schema_change(tag: Tag, what: str) -> str:
    return _one_of(get_args(SchemaChange), tag, what)


def _column_names(tag: Tag, what: str) -> tuple[str, ...]:
    names = _texts(tag, what)
    if not names or len({n.lower() for n in names}) < len(names):
        raise _Bad(f"`{what}` wants columns, each once", tag.location)
    return names


def _hard_deletes(tag: Tag, what: str) -> str:
    return _one_of(("close", "ignore"), tag, what)


def _on_change(tag: Tag, what: str) -> str:
    return _one_of(("rebuild", "continue"), tag, what)


def _assume(tag: Tag, what: str) -> str:
    return _one_of(("exact",), tag, what)


def _one_of(known: Sequence[str], tag: Tag, what: str) -> str:
    text = _text(tag, what)
    if text not in known:
        hint = did_you_mean(text, known)
        raise _Bad(f"`{what}` is one of {', '.join(known)}, not `{text}`", tag.location, hint)
    return text


_GROUP = re.compile(r"[A-Za-z0-9_]+")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_TEAM = re.compile(r"team:[A-Za-z0-9_]+")
_TAG_KEY = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


def _group(tag: Tag, what: str) -> str:
    group = _text(tag, what)
    if not _GROUP.fullmatch(group):
        raise _Bad(
            f"`{group}` is not a group name", tag.location, "letters, digits and underscores"
        )
    return group


def _owners(tag: Tag, what: str) -> tuple[str, ...]:
    owners = _texts(tag, what)
    for owner in owners:
        if not (_EMAIL.fullmatch(owner) or _TEAM.fullmatch(owner)):
            raise _Bad(
                f"`{owner}` is not an owner",
                tag.location,
                'an e-mail address or a team: owner="team:flights"',
            )
    return owners


def _tags(tag: Tag, what: str) -> tuple[tuple[str, str], ...]:
    tags: dict[str, str] = {}
    if tag.value is not None:
        tags |= dict.fromkeys(_texts(Tag(tag.location, tag.value), what), "")
    for name, below in (tag.properties or {}).items():
        if not below.deleted:
            tags[name] = (
                str(below.value) if isinstance(below.value, int | float) else _text(below, name)
            )
    for key, value in tags.items():
        if not (_TAG_KEY.fullmatch(key) and _TAG_VALUE.fullmatch(value)):
            raise _Bad(
                f"`{key}={value}` is not a tag" if value else f"`{key}` is not a tag",
                tag.location,
                "letters, digits, `_`, `-` and `.`, up to 63 of them",
            )
    return tuple(sorted(tags.items()))


def _duration(tag: Tag, what: str) -> int:
    text = _text(tag, what)
    seconds = parse_duration(text)
    if seconds is None:
        raise _Bad(f"`{text}` is not a duration", tag.location, f'for example {what}="24h"')
    return seconds


def _freshness(tag: Tag, what: str) -> Freshness:
    if tag.value is not None:
        raise _Bad(f"`{what}` wants properties", tag.location, 'for example freshness.window="24h"')
    found: dict[str, int] = {}
    fallback: Any = "stale_ok"
    for name, below in _known(tag, what, ("window", "warn", "fallback")):
        if name == "fallback":
            fallback = _one_of(get_args(Fallback), below, "freshness.fallback")
        else:
            found[name] = _duration(below, f"freshness.{name}")
    if "window" not in found:
        raise _Bad("`freshness` wants a window", tag.location, 'for example freshness.window="24h"')
    if min(found.values()) < 60:
        raise _Bad("freshness is watched by the minute: at least 60s", tag.location)
    if found.get("warn", 0) >= found["window"]:
        raise _Bad("`freshness.warn` must be shorter than `freshness.window`", tag.location)
    return Freshness(found["window"], found.get("warn"), fallback)


def _not_null(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    _refuse(named, "not_null")
    for column in _texts(tag, "not_null"):
        yield Check("not_null", f"not_null_{column}", columns=(column,))


def _unique(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    _refuse(named, "unique")
    keys = tag.value if isinstance(tag.value, list) else []
    nested = keys and all(isinstance(key.value, list) for key in keys)
    for key in keys if nested else [tag]:
        columns = _texts(key, "unique")
        yield Check("unique", f"unique_{'_'.join(columns)}", columns=columns)


def _accepted_values(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = "for example accepted_values { origin=[EWR, JFK, LGA] }"
        raise _Bad("`accepted_values` wants a list for each column", tag.location, example)
    for column, values in named.items():
        name = f"accepted_values_{column}"
        scalars = _scalars(values, f"accepted_values.{column}")
        yield Check("accepted_values", name, columns=(column,), values=scalars)


def _expr(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    for name, condition in named.items():
        yield Check("expr", f"expr_{name}", expression=_text(condition, f"expr.{name}"))
    if tag.value is not None or not named:
        for condition in _texts(tag, "expr"):
            yield Check("expr", "expr", expression=condition)


def _range(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = "for example range { dep_delay { min=-60 max=3000 } }"
        raise _Bad("`range` wants bounds for each column", tag.location, example)
    for column, bounds in named.items():
        least, most = _bounds(bounds, f"range.{column}")
        yield Check("range", f"range_{column}", columns=(column,), least=least, most=most)


def _bounds(tag: Tag, what: str) -> tuple[Scalar | None, Scalar | None]:
    """Return the ends of a range, in order, of which one may be missing."""
    if tag.value is not None:
        raise _Bad(f"`{what}` wants `min`, `max` or both", tag.location)
    found: dict[str, str | int | float] = {}
    for name, below in _known(tag, what, ("min", "max")):
        _refuse(below.properties, f"{what}.{name}")
        value = below.value.isoformat() if isinstance(below.value, date) else below.value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _Bad(f"`{what}.{name}` wants a number, a date or a text", below.location)
        found[name] = value
    least, most = found.get("min"), found.get("max")
    if not found:
        raise _Bad(f"`{what}` wants `min`, `max` or both", tag.location)
    if least is not None and most is not None:
        if isinstance(least, str) is not isinstance(most, str):
            raise _Bad(f"the bounds of `{what}` are not of one kind", tag.location)
        if least > most:  # pyright: ignore[reportOperatorIssue]
            message = f"no value is between {least} and {most}"
            raise _Bad(message, tag.location, f"`{what}.min` is the lesser of the two")
    return least, most


def _relationship(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    example = 'for example relationship { carrier="carriers.code" }'
    if tag.value is not None or not named:
        raise _Bad("`relationship` wants a column of a source for each", tag.location, example)
    for column, other in named.items():
        written = _text(other, f"relationship.{column}")
        if not all(re.split(r"[/.]", written)) or not re.fullmatch(r".+\.[^./]+", written):
            message = f"`{written}` is not a column of a source"
            raise _Bad(message, other.location, example)
        name = f"relationship_{column}"
        place = other.location
        yield Check("relationship", name, columns=(column,), values=(written,), location=place)


def _row_count(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if not named:
        example = "for example row_count { min=1 }"
        raise _Bad("`row_count` wants `min`, `max` or both", tag.location, example)
    least, most = _bounds(Tag(tag.location, tag.value, dict(named)), "row_count")
    for bound in (least, most):
        if bound is not None and (not isinstance(bound, int) or bound < 0):
            raise _Bad(f"`{bound}` is not a number of rows", tag.location)
    yield Check("row_count", "row_count", least=least, most=most)


def _freshness_of(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = 'for example freshness { time_hour="2 days" }'
        raise _Bad("`freshness` wants a duration for each column", tag.location, example)
    for column, age in named.items():
        seconds = _duration(age, f"freshness.{column}")
        yield Check("freshness", f"freshness_{column}", columns=(column,), age_s=seconds)


def _function(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    for name, below in named.items():
        function = _text(below, f"function.{name}")
        place = below.location
        yield Check("function", f"function_{name}", values=(function,), location=place)
    if tag.value is not None or not named:
        for function in _texts(tag, "function"):
            yield Check("function", f"function_{function.lstrip('.')}", values=(function,))


_CHECKS: Mapping[CheckKind, Callable[[Tag, Mapping[str, Tag]], Iterable[Check]]] = {
    "not_null": _not_null,
    "unique": _unique,
    "accepted_values": _accepted_values,
    "range": _range,
    "relationship": _relationship,
    "row_count": _row_count,
    "freshness": _freshness_of,
    "expr": _expr,
    "function": _function,
}


def _check(tag: Tag, what: str) -> tuple[Check, ...]:
    if tag.value is not None or not tag.properties:
        raise _Bad("`check` wants a block", tag.location, "for example check { not_null=[id] }")
    checks: dict[str, Check] = {}
    for kind, below in _known(tag, what, _CHECKS):
        named = {k: v for k, v in (below.properties or {}).items() if not v.deleted}
        blocking = _blocking(named.pop("severity", None))
        apart = _is_per_partition(named.pop("per", None)) and kind in _OF_MANY_ROWS
        value = below.value
        if kind in _OF_COLUMNS and value is None and "columns" in named:
            value = named.pop("columns").value  # as decorators say what has properties too
        read = _CHECKS[kind]  # pyright: ignore[reportArgumentType]
        for check in read(Tag(below.location, value), named):
            plain = re.sub(r"\W+", "_", check.name, flags=re.ASCII).strip("_")
            name = next(n for n in _numbered(plain) if n not in checks)
            place = check.location or below.location
            checks[name] = replace(
                check, name=name, blocking=blocking, per_partition=apart, location=place
            )
    return tuple(checks.values())


_OF_MANY_ROWS = ("unique", "row_count", "freshness", "function")
"""Kinds of checks that may say something else of partitions than of all rows together."""
_OF_COLUMNS = ("not_null", "unique")
"""Kinds of checks whose value is columns, which a property of that name may hold as well."""

_NOT_NULL = re.compile(r"(?P<type>.*?)\s*\bnot\s+null", re.IGNORECASE)


def _columns(tag: Tag, what: str) -> tuple[Check, ...]:
    """Return the checks that a contract consists of: which columns there are, and their NULLs."""
    example = 'for example columns { carrier=string n="bigint not null" }'
    if tag.value is not None or not tag.properties:
        raise _Bad("`columns` wants a block of columns", tag.location, example)
    promised: dict[str, str] = {}
    checks: list[Check] = []
    others = False
    for name, below in tag.properties.items():
        if below.deleted:
            continue
        if name == "*":
            others = _flag(below, "columns.*")
            continue
        if name.lower() in map(str.lower, promised):
            raise _Bad(f"`columns` has `{name}` twice", below.location)
        written = "" if below.value in (None, True) else _text(below, f"columns.{name}")
        _refuse(below.properties, f"columns.{name}")
        if match := _NOT_NULL.fullmatch(written.strip()):
            written, plain = match["type"], re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
            checks.append(
                Check("not_null", f"columns_{plain}", columns=(name,), location=below.location)
            )
        kind = stored_type(written) if written else ""
        if kind is None:
            raise _Bad(f"`{written}` is not a type", below.location, type_hint(written))
        promised[name] = kind
    if not promised:
        raise _Bad("`columns` wants a block of columns", tag.location, example)
    names, types = tuple(promised), tuple(promised.values())
    whole = Check("columns", "columns", names, types, others=others, location=tag.location)
    return (whole, *checks)


def _is_per_partition(per: Tag | None) -> bool:
    if per is None:
        return False
    _refuse(per.properties, "per")
    return _one_of(("table", "partition"), per, "per") == "partition"


def _blocking(severity: Tag | None) -> bool:
    if severity is None:
        return True
    text = _text(severity, "severity")
    if text not in ("error", "warn"):
        raise _Bad("`severity` is `error` or `warn`", severity.location)
    return text == "error"


def _numbered(name: str) -> Iterable[str]:
    yield name
    yield from (f"{name}_{n}" for n in count(2))


def _scalars(tag: Tag, what: str) -> tuple[Scalar, ...]:
    _refuse(tag.properties, what)
    elements = tag.value if isinstance(tag.value, list) else [tag]
    values: list[Scalar] = []
    for element in elements:
        if not isinstance(element.value, str | int | float | bool):
            raise _Bad(f"`{what}` wants texts, numbers or booleans", element.location)
        values.append(element.value)
    if not values:
        raise _Bad(f"`{what}` is empty", tag.location)
    return tuple(values)


def _automation(tag: Tag, what: str) -> str:
    text = _text(tag, what)
    if text in ("eager", "missing"):
        return text
    known = ("eager", "missing", *NICKNAMES)
    if " " not in text and text not in known:
        hint = did_you_mean(text, known) or f'for example {what}="0 6 * * *"'
        message = f"`{what}` is `eager`, `missing` or a schedule, not `{text}`"
        raise _Bad(message, tag.location, hint)
    wrong = wrong_with(text)
    if wrong is not None:
        message = f"`{text}` is no schedule: {wrong}"
        raise _Bad(message, tag.location, f'for example {what}="0 6 * * *"')
    return text


_NEEDS = re.compile(r"[A-Za-z0-9_-]{1,64}:[^:\s].*")


def _want(tag: Tag, what: str) -> tuple[Any, int | None, int | None, tuple[str, ...]]:
    """Return how often, when it is late, when it is given up, and what it needs."""
    example = 'for example want { every=daily sla="9h" }'
    if tag.value is not None:
        raise _Bad(f"`{what}` wants properties", tag.location, example)
    every: Any = None
    found: dict[str, int] = {}
    needs: tuple[str, ...] = ()
    for name, below in _known(tag, what, ("every", "sla", "ttl", "needs")):
        if name == "every":
            every = _one_of(get_args(Cadence), below, "want.every")
        elif name == "needs":
            needs = _texts(below, "want.needs")
            for need in needs:
                if not _NEEDS.fullmatch(need):
                    hint = 'for example needs=["users:data/users"]'
                    raise _Bad(f"`{need}` names nothing of another graph", below.location, hint)
        else:
            found[name] = _duration(below, f"want.{name}")
    return every, found.get("sla"), found.get("ttl"), needs


KEYS: Mapping[str, tuple[str | None, Callable[[Tag, str], object]]] = {
    "persist": ("persist", _flag),
    "name": ("name", _table_name),
    "materialized": ("strategy", _strategy),
    "time_column": ("time_column", _text),
    "watermark": ("time_column", _text),
    "refresh": ("refresh", _refresh),
    "lookback": ("lookback_s", _duration),
    "assume": ("assume", _assume),
    "merge_key": ("merge", _merge),
    "partition": ("partition", _partition),
    "start": ("start", _moment),
    "end": ("end", _moment),
    "timezone": ("timezone", _timezone),
    "backfill": ("backfill", _backfill),
    "key": ("key", _column_names),
    "watch": ("watch", _column_names),
    "hard_deletes": ("hard_deletes", _hard_deletes),
    "on_change": ("on_change", _on_change),
    "owner": ("owners", _owners),
    "tags": ("tags", _tags),
    "group": ("group", _group),
    "freshness": ("freshness", _freshness),
    "columns": ("columns", _columns),
    "on_schema_change": ("on_schema_change", _on_schema_change),
    "automation": ("automation", _automation),
    "want": ("want", _want),
    "check": ("checks", _check),
}
"""Every key: the field of `Annotation` it becomes, and the function that validates it; a contract
becomes checks too."""

_INCREMENTAL = ("lookback", "assume")
"""Keys that mean something only where ``refresh=incremental``."""
_PARTITION = ("start", "end", "timezone", "backfill")
"""Keys that mean something only beside ``partition``."""
_HISTORY = ("key", "watch", "hard_deletes")
"""Keys that mean something only where ``refresh=snapshot``."""
NEEDS_TABLE = (
    *(
        "name",
        "time_column",
        "watermark",
        "freshness",
        "refresh",
        "merge_key",
        "automation",
        "want",
    ),
    *("partition", *_PARTITION),
    *("on_schema_change", "on_change", *_INCREMENTAL, *_HISTORY),
)
"""Keys that mean something only for a source whose rows outlive a run."""
NEEDS_PERSIST = (*NEEDS_TABLE, "materialized", "columns", "check")
"""Keys that mean something only for a source that has a table."""


def read_annotation(
    lines: Sequence[Line], said: Tag | None = None
) -> tuple[Annotation, list[Problem]]:
    """Parse and validate the annotation lines above one definition.

    Parameters
    ----------
    said
        What the definition itself says besides; the lines may not say otherwise.

    Returns
    -------
    annotation, problems
        What could be understood, and everything that could not.
    """
    root, problems = parse_tag(lines)
    if said is not None:
        problems += _combine(root, said)
    fields: dict[str, object] = {}
    places: list[tuple[str, Location]] = []
    for name, tag in (root.properties or {}).items():
        if name not in KEYS:
            hint = did_you_mean(name, KEYS)
            if name.isdecimal() and tag.deleted:
                hint = 'a date wants quotes: "2013-01-01"'
            problems.append(
                Problem(
                    "annotation-key",
                    f"unknown key `{name}`",
                    tag.location,
                    hint or f"known keys: {', '.join(KEYS)}",
                )
            )
            continue
        if tag.deleted:
            if tag.revived:
                problems.append(
                    Problem(
                        "annotation-value",
                        f"`{name}` is given after `-{name}` removed it",
                        tag.revived,
                    )
                )
            elif name == "persist":
                fields["persist"] = False
            continue
        target, read = KEYS[name]
        places.append((name, tag.location))
        try:
            value = read(tag, name)
        except _Bad as bad:
            problems.append(bad.problem)
        else:
            if target:
                fields[target] = value
    promised: Any = fields.pop("columns", ())
    checked: Any = fields.get("checks", ())
    fields["checks"] = (*promised, *_besides(promised, checked))
    problems += _contradictions(dict(places))
    if "partition" not in dict(places):
        problems += _without_partitions((root.properties or {}).get("check"))
    try:
        _complete(fields, dict(places))
    except _Bad as bad:
        problems.append(bad.problem)
    try:
        _complete_want(fields, dict(places))
    except _Bad as bad:
        problems.append(bad.problem)
    return Annotation(**fields, keys=tuple(places)), problems  # pyright: ignore[reportArgumentType]


def _complete(fields: dict[str, object], places: Mapping[str, Location]) -> None:
    """Make one value of what keys say of partitions."""
    start, end, zone = (fields.pop(name, None) for name in ("start", "end", "timezone"))
    dimensions = cast("tuple[Dimension, ...]", fields.pop("partition", ()))
    if not dimensions:
        return
    place, column = places["partition"], fields.get("time_column")
    lead = dimensions[0]
    if not lead.column:
        if not isinstance(column, str):
            message = f"`partition={lead.every}` is by a time"
            raise _Bad(message, place, "say of which column: time_column=…")
        lead = replace(lead, column=column)
        dimensions = (lead, *dimensions[1:])
    if lead.every is None:
        for name in ("start", "end", "timezone"):
            if name in places:
                raise _Bad(f"`{name}` is of partitions of time", places[name], "take it out")
    elif not isinstance(start, str):
        if "start" not in places:
            hint = 'for example start="2013-01-01"'
            raise _Bad("partitions of time want a start", place, hint)
        return
    else:
        if isinstance(column, str) and column.lower() != lead.column.lower():
            message = f"its partitions are by `{lead.column}`: that is its watermark"
            raise _Bad(message, places.get("time_column") or places["watermark"])
        fields["time_column"] = lead.column
        if isinstance(end, str) and datetime.fromisoformat(end) <= datetime.fromisoformat(start):
            raise _Bad("`end` is not after `start`", places["end"])
        if lead.every == "hourly" and zone not in (None, "UTC"):
            raise _Bad("hours are those of UTC", places["timezone"], "take it out")
    fields["partition"] = Partitioning(
        dimensions,
        cast("str | None", start),
        cast("str | None", end),
        cast("str | None", zone) or "UTC",
    )


def _complete_want(fields: dict[str, object], places: Mapping[str, Location]) -> None:
    """Make one value of what is said of wants: those of partitions of time are as often."""
    said: Any = fields.pop("want", None)
    if said is None:
        return
    every, sla, ttl, needs = said
    partition = fields.get("partition")
    time = partition.time if isinstance(partition, Partitioning) else None
    if time is not None and every not in (None, time.every):
        message = f"`want.every={every}` does not fit: its partitions are {time.every}"
        raise _Bad(message, places["want"], f"every={time.every}, or leave it out")
    every = time.every if time is not None else every
    if every is None:
        message = "`want` tells how often"
        raise _Bad(message, places["want"], 'for example want { every=daily sla="9h" }')
    fields["want"] = Wanted(every, sla, ttl, needs)


def _besides(promised: Iterable[Check], checks: Iterable[Check]) -> Iterator[Check]:
    """Yield checks beside those of a contract, under names of their own."""
    taken = {c.name for c in promised}
    for check in checks:
        name = next(n for n in _numbered(check.name) if n not in taken)
        taken.add(name)
        yield replace(check, name=name)


def _contradictions(places: Mapping[str, Location]) -> Iterator[Problem]:
    if "time_column" in places and "watermark" in places:
        message = "`watermark` and `time_column` are two words for one thing"
        yield Problem("annotation-value", message, places["watermark"], "take one out")


def _without_partitions(checks: Tag | None) -> Iterator[Problem]:
    """Yield a problem for each kind of check that would be of partitions, where there are none."""
    if checks is None or checks.deleted:
        return
    for kind, below in (checks.properties or {}).items():
        per = (below.properties or {}).get("per")
        if per is not None and not per.deleted and per.value == "partition":
            message = f"`check.{kind}` is of each partition, and there are none"
            hint = "say partition=…, or take out per=partition"
            yield Problem("annotation-value", message, per.location, hint)


def _combine(root: Tag, said: Tag) -> Iterator[Problem]:
    """Add to a tag what another one says; yield what both say, and not alike."""
    properties = root.properties = root.properties or {}
    for name, tag in (said.properties or {}).items():
        known = properties.setdefault(name, tag)
        if not _alike(known, tag):
            message = f"`{name}` is said here, and otherwise at {tag.location}"
            yield Problem("annotation-value", message, known.location, "say it once")


def _alike(a: object, b: object) -> bool:
    """Whether two tags, or values of tags, are the same wherever they stand."""
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
    """Yield a problem for each key that has no effect on what it stands above."""
    annotation = declaration.annotation
    incremental = annotation.refresh == "incremental"
    history = annotation.refresh == "snapshot"
    live = annotation.freshness and replace(annotation.freshness, fallback="live")
    for key, place in annotation.keys:
        if declaration.raw is not None and key in ("persist", *NEEDS_PERSIST):
            message = f"`{key}` has no meaning for a raw table, which is data already"
            yield Problem("annotation-misplaced", message, place)
        elif declaration.temporary and key in NEEDS_TABLE:
            message = f"`{key}` has no effect on rows that go with the run that needs them"
            yield Problem("annotation-misplaced", message, place, "take out materialized")
        elif not declaration.kept and key in NEEDS_PERSIST:
            message = f"`{key}` has no effect on a source that is not persisted"
            hint = "add the word persist to its annotation"
            yield Problem("annotation-misplaced", message, place, hint)
        elif key in _INCREMENTAL and not incremental:
            message = f"`{key}` has no effect on a source that is computed as a whole"
            yield Problem("annotation-misplaced", message, place, "add refresh=incremental")
        elif key in _INCREMENTAL and annotation.time_column is None:
            message = f"`{key}` counts from a watermark"
            yield Problem("annotation-misplaced", message, place, "add watermark=column")
        elif key in _PARTITION and annotation.partition is None:
            if not any(k == "partition" for k, _ in annotation.keys):
                message = f"`{key}` is of partitions"
                yield Problem("annotation-misplaced", message, place, "add partition=daily")
        elif annotation.partition is not None and (
            key == "merge_key" or (key == "refresh" and (incremental or history))
        ):
            message = f"`{key}` has no place beside `partition`: partitions are replaced"
            yield Problem("annotation-misplaced", message, place, "take one of them out")
        elif key in _HISTORY and not history:
            message = f"`{key}` has no effect on a source that keeps no versions"
            yield Problem("annotation-misplaced", message, place, "add refresh=snapshot")
        elif key == "on_change" and not (incremental or history):
            message = f"`{key}` has no effect on a source that is computed as a whole"
            hint = "add refresh=incremental or refresh=snapshot"
            yield Problem("annotation-misplaced", message, place, hint)
        elif key == "merge_key" and history:
            message = "`merge_key` keeps the last row of each key, refresh=snapshot all of them"
            yield Problem("annotation-misplaced", message, place, "say key= instead")
        elif key == "refresh" and history and not annotation.key:
            message = "versions are told apart by a key"
            yield Problem("annotation-misplaced", message, place, "add key=column")
        elif key == "freshness" and history and annotation.freshness == live:
            message = "`fallback=live` has no query to compute: versions are in the table alone"
            yield Problem("annotation-misplaced", message, place, "take out fallback=live")
        elif annotation.strategy == "view" and (
            key in ("merge_key", "partition") or (key == "refresh" and (incremental or history))
        ):
            message = "a view has no rows that a build could add to"
            yield Problem("annotation-misplaced", message, place, "take out materialized=view")
