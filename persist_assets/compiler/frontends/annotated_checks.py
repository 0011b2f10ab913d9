"""The checks in annotations."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.annotation_values import (
    Bad,
    numbered,
    one_of,
    read_blocking,
    read_duration,
    read_known,
    read_scalars,
    read_text,
    read_texts,
    refuse,
)
from persist_assets.compiler.frontends.motly import Tag
from persist_assets.core.model.checks import Check, CheckKind, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def _not_null(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    refuse(named, "not_null")
    for column in read_texts(tag, "not_null"):
        yield Check("not_null", f"not_null_{column}", columns=(column,))


def _unique(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    refuse(named, "unique")
    keys = tag.value if isinstance(tag.value, list) else []
    nested = keys and all(isinstance(key.value, list) for key in keys)
    for key in keys if nested else [tag]:
        columns = read_texts(key, "unique")
        yield Check("unique", f"unique_{'_'.join(columns)}", columns=columns)


def _accepted_values(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = "for example, accepted_values { origin=[EWR, JFK, LGA] }"
        raise Bad("`accepted_values` needs a list for each column", tag.location, example)
    for column, values in named.items():
        name = f"accepted_values_{column}"
        scalars = read_scalars(values, f"accepted_values.{column}")
        yield Check("accepted_values", name, columns=(column,), values=scalars)


def _expr(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    for name, condition in named.items():
        yield Check("expr", f"expr_{name}", expression=read_text(condition, f"expr.{name}"))
    if tag.value is not None or not named:
        for condition in read_texts(tag, "expr"):
            yield Check("expr", "expr", expression=condition)


def _range(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = "for example, range { dep_delay { min=-60 max=3000 } }"
        raise Bad("`range` needs bounds for each column", tag.location, example)
    for column, bounds in named.items():
        least, most = _bounds(bounds, f"range.{column}")
        yield Check("range", f"range_{column}", columns=(column,), least=least, most=most)


def _bounds(tag: Tag, key_name: str) -> tuple[Scalar | None, Scalar | None]:
    """Return the bounds of a range, in order; one may be missing."""
    if tag.value is not None:
        raise Bad(f"`{key_name}` needs `min`, `max` or both", tag.location)
    ends: dict[str, str | int | float] = {}
    for name, below in read_known(tag, key_name, ("min", "max")):
        refuse(below.properties, f"{key_name}.{name}")
        value = below.value.isoformat() if isinstance(below.value, date) else below.value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Bad(f"`{key_name}.{name}` must be a number, a date or a string", below.location)
        ends[name] = value
    least, most = ends.get("min"), ends.get("max")
    if not ends:
        raise Bad(f"`{key_name}` needs `min`, `max` or both", tag.location)
    if least is not None and most is not None:
        if isinstance(least, str) is not isinstance(most, str):
            raise Bad(f"the bounds of `{key_name}` must have the same type", tag.location)
        if least > most:  # pyright: ignore[reportOperatorIssue]
            message = f"no value is between {least} and {most}"
            raise Bad(message, tag.location, f"`{key_name}.min` must not exceed `{key_name}.max`")
    return least, most


def _relationship(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    example = 'for example, relationship { carrier="carriers.code" }'
    if tag.value is not None or not named:
        raise Bad("`relationship` needs a source column for each column", tag.location, example)
    for column, other in named.items():
        written = read_text(other, f"relationship.{column}")
        if not all(re.split(r"[/.]", written)) or not re.fullmatch(r".+\.[^./]+", written):
            message = f"`{written}` is not a source column"
            raise Bad(message, other.location, example)
        name = f"relationship_{column}"
        place = other.location
        yield Check("relationship", name, columns=(column,), values=(written,), location=place)


def _row_count(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if not named:
        example = "for example, row_count { min=1 }"
        raise Bad("`row_count` needs `min`, `max` or both", tag.location, example)
    least, most = _bounds(Tag(tag.location, tag.value, dict(named)), "row_count")
    for bound in (least, most):
        if bound is not None and (not isinstance(bound, int) or bound < 0):
            raise Bad(f"`{bound}` is not a valid number of rows", tag.location)
    yield Check("row_count", "row_count", least=least, most=most)


def _freshness_of(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    if tag.value is not None or not named:
        example = 'for example, freshness { time_hour="2 days" }'
        raise Bad("`freshness` needs a duration for each column", tag.location, example)
    for column, age in named.items():
        seconds = read_duration(age, f"freshness.{column}")
        yield Check("freshness", f"freshness_{column}", columns=(column,), age_s=seconds)


def _function(tag: Tag, named: Mapping[str, Tag]) -> Iterable[Check]:
    for name, below in named.items():
        function = read_text(below, f"function.{name}")
        place = below.location
        yield Check("function", f"function_{name}", values=(function,), location=place)
    if tag.value is not None or not named:
        for function in read_texts(tag, "function"):
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


def read_check(tag: Tag, key_name: str) -> tuple[Check, ...]:
    """Return the checks of a block, each with a name of its own."""
    if tag.value is not None or not tag.properties:
        raise Bad("`check` must be a block", tag.location, "for example, check { not_null=[id] }")
    checks: dict[str, Check] = {}
    for kind, below in read_known(tag, key_name, _CHECKS):
        named = {k: v for k, v in (below.properties or {}).items() if not v.deleted}
        blocking = read_blocking(named.pop("severity", None))
        n_kept = _failures_to_keep(named.pop("keep_failures", None), kind)
        apart = _is_per_partition(named.pop("per", None)) and kind in _OF_MANY_ROWS
        value = below.value
        if kind in _OF_COLUMNS and value is None and "columns" in named:
            value = named.pop("columns").value  # as decorators write values with properties
        read = _CHECKS[kind]  # pyright: ignore[reportArgumentType]
        for check in read(Tag(below.location, value), named):
            plain = re.sub(r"\W+", "_", check.name, flags=re.ASCII).strip("_")
            name = next(n for n in numbered(plain) if n not in checks)
            place = check.location or below.location
            checks[name] = replace(
                check,
                name=name,
                blocking=blocking,
                per_partition=apart,
                keep_failures=n_kept,
                location=place,
            )
    return tuple(checks.values())


_OF_MANY_ROWS = ("unique", "row_count", "freshness", "function")
"""Kinds of checks whose result for partitions may differ from that for all rows."""

_OF_COLUMNS = ("not_null", "unique")
"""Kinds of checks whose value is a list of columns, which a property of that name may have too."""


MOST_FAILURES = 10_000
"""The number of failing rows that `keep_failures` keeps by default."""


def _failures_to_keep(tag: Tag | None, kind: str) -> int:
    """Return how many failing rows of a check are kept, at most."""
    if tag is None:
        return 0
    refuse(tag.properties, "keep_failures")
    if kind in ("row_count", "freshness"):
        raise Bad(f"no single row fails `check.{kind}`", tag.location, "remove keep_failures")
    if tag.value is None or tag.value is True or tag.value == "true":
        return MOST_FAILURES
    if tag.value is False or tag.value == "false":
        return 0
    if not isinstance(tag.value, int) or tag.value < 1:
        message = "`keep_failures` must be `true`, `false` or a number of rows"
        raise Bad(message, tag.location, f"keep_failures=true keeps at most {MOST_FAILURES:,}")
    return tag.value


def _is_per_partition(per: Tag | None) -> bool:
    if per is None:
        return False
    refuse(per.properties, "per")
    return one_of(("table", "partition"), per, "per") == "partition"
