"""Texts in which Spark reads the clock when it casts them to times: ``now``, ``10:30``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call, walk
from persist_assets.analysis.equivalences import COMPARISONS
from persist_assets.analysis.functions import is_special_datetime_text

if TYPE_CHECKING:
    from persist_assets.analysis.algebra import Block, Expr
    from persist_assets.analysis.types import Types


_OF_OPERANDS = frozenset("case coalesce greatest least nullif nvl2 upper lower trim".split())
"""Calls that may return one of their operands."""


def special_texts_in(expr: Expr) -> set[str]:
    """Return the possible values of an expression that are texts of times read from the clock."""
    texts: set[str] = set()
    stack = [expr]
    while stack:
        this = stack.pop()
        if not isinstance(this, Call):
            continue
        if this.op == "string" and is_special_datetime_text(this.words[0]):
            texts.add(this.words[0].strip().lower())
        elif this.op in _OF_OPERANDS:
            stack += this.args
    return texts


_NO_TEXTS = frozenset("null number boolean interval now parameter + - * / div mod".split())


def is_computed_text(types: Types, expr: Expr) -> bool:
    """Whether an expression may be a text that Spark computes before it checks for clock words."""
    if not isinstance(expr, Call) or expr.op in _NO_TEXTS:
        return False
    if expr.op == "string":
        return "\\" in expr.words[0]
    kind = types.of(expr)
    if not (kind or "string").startswith("string") or (kind is None and expr.op in _OF_TIMES):
        return False
    if expr.op.startswith(("make_", "try_make_", "timestamp_", "date_from_")):
        return False
    return all(isinstance(e, Call) and e.op != "parameter" for e in walk(expr))


COMPUTED_TEXT = "now or the like"
"""Stands for the text when the operand of a cast is computed."""


def special_texts(types: Types, block: Block) -> set[str]:
    """Return the texts in a relation that Spark interprets as times read from the clock.

    Spark does so wherever a text is cast to a time, explicitly or not: beside a time, and in
    functions of times.
    """
    clock_texts: set[str] = set()
    for call in walk(block):
        if not isinstance(call, Call):
            continue
        if call.op == "now" and call.args:
            clock_texts |= special_texts_in(call.args[0]) or {COMPUTED_TEXT}
            continue
        special = {a: special_texts_in(a) for a in call.args}
        texts = {a: clock_texts for a, clock_texts in special.items() if clock_texts}
        if not texts:
            continue
        kinds = {types.of(a) for a in call.args if a not in texts}
        beside = any(k is not None and k.startswith(("date", "timestamp")) for k in kinds)
        unsure = None in kinds and call.op in (*COMPARISONS, "in")
        if call.op in _WITH_KEYS:
            of = types.of(call.args[0]) or ""
            unsure = not of.startswith(("map<string", "array<string", "struct<"))
        if call.op in _OF_TIMES or call.op in _SUMS or beside or unsure:
            clock_texts |= set[str]().union(*texts.values())
    return clock_texts


_SUMS = frozenset("+ - try_add try_subtract".split())
"""With an interval, they cast a text to a time; with anything else, they fail."""

_WITH_KEYS = frozenset(
    "[] element_at map_contains_key array_contains array_position array_remove".split()
)
"""They cast a text to the type of the keys or elements of their first operand."""

_OF_TIMES = frozenset(
    """
    add_months convert_timezone date date_add date_diff date_format date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_utc_timestamp
    hour last_day minute month monthname months_between next_day quarter second time_bucket timediff
    timestamp timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp trunc try_to_date try_to_timestamp unix_date unix_micros
    unix_millis unix_nanos unix_seconds unix_timestamp weekday weekofyear window year
    """.split()
)
