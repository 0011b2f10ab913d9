"""Spark's types of more expressions than `types.py` knows, for readers outside the analysis. Pure.

BuildIDs and the rules of maintenance follow from `types.py`, so a type more there changes them. The
types here describe columns to Malloy. Beside that, they only rule out that a text becomes a time
(`clock_texts.py`), or that a value is a double (`deltas/exactness.py`). They are those of Spark 4.3
with the default settings of its SQL. The invariant is the same: a type that is not certain is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call, Given, Ref
from persist_assets.analysis.binder import bind, bind_source
from persist_assets.analysis.binding import Binding, Face
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.scope import Unanalysable
from persist_assets.analysis.types import Types
from persist_assets.core.languages import REFERENCE
from persist_assets.core.spark_types import (
    UnknownTypeError,
    field_name,
    fields_of,
    inner_types,
    parse_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.core.model.queries import Query

    Rule = Callable[[Call, Sequence[str | None]], str | None]

Kinds = tuple[str | None, ...]


def result_types(
    query: Query, upstream: Sequence[tuple[tuple[str, ...] | None, Kinds]], path: str
) -> Kinds | None:
    """Return the types of a query's columns; None if the query cannot be analysed.

    Parameters
    ----------
    query
        The query, with its tree.
    upstream
        For each reference of the query, the names of the columns and their types.
    """
    if query.lost:
        return None
    faces = [Face(None, _table(names, kinds), names) for names, kinds in upstream]
    binding = Binding(bind, path, faces, REFERENCE, types=ResultTypes())
    try:
        block = bind_source(binding, query.tree)
    except Unanalysable:
        return None
    if binding.problems:
        return None
    return tuple(binding.types.of(o.expr) for o in block.columns)


def _table(names: tuple[str, ...] | None, kinds: Kinds) -> Given:
    n = len(names or ())
    return Given("", ("",) * n, origins=(frozenset(),) * n, types=kinds)


@dataclass(slots=True)
class ResultTypes(Types):
    """Types of columns and of expressions over them, as `RULES` say."""

    @classmethod
    def over(cls, types: Types) -> ResultTypes:
        """Return these rules for the same relations."""
        return cls(types.leaves, types.collated)

    def _of(self, expr: Expr) -> str | None:
        kind = Types._of(self, expr)
        return _plain(kind) if isinstance(expr, Ref) else kind

    def decisive(self, expr: Expr) -> Sequence[Expr]:
        """Return the operands that decide an expression's type."""
        if isinstance(expr, Call) and expr.op in RULES:
            return expr.args
        return Types.decisive(self, expr)

    def of_call(self, call: Call, kinds: Sequence[str | None]) -> str | None:
        """Return the type of a call whose decisive operands have these types."""
        rule = RULES.get(call.op)
        if rule is None:
            return Types.of_call(self, call, kinds)
        kind = rule(call, kinds)
        is_text = self.collated and kind is not None and "string" in kind
        if is_text and any(k is None or "collate" in k for k in kinds):
            return None  # the collation of one operand may be that of the result
        return kind


_LENGTH = re.compile(r"\b(var)?char\(\d+\)")


def _plain(kind: str | None) -> str | None:
    """Return the type that a column of a table has in queries, where CHAR and VARCHAR are texts."""
    if kind is None or "`" in kind:
        return kind
    return _LENGTH.sub("string", kind)


# ----------------------------------------------------------------------------------- parts of types

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_FLOATS = ("float", "double")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_ATOMIC = frozenset((*INTEGRAL, *_FLOATS, *_TIMES, "boolean", "string"))


def _decimal(kind: str | None) -> tuple[int, int] | None:
    match = _DECIMAL.fullmatch(kind or "")
    return (int(match[1]), int(match[2])) if match else None


def _is_number(kind: str | None) -> bool:
    return kind in INTEGRAL or kind in _FLOATS or _decimal(kind) is not None


def _element(kind: str | None) -> str | None:
    return next(iter(inner_types(kind, "array")), None)


def _entry(kind: str | None, number: int) -> str | None:
    parts = inner_types(kind, "map")
    return parts[number] if len(parts) == 2 else None


def _array_of(kind: str | None) -> str | None:
    return None if kind is None else f"array<{kind}>"


def _text_of(expr: Expr) -> str | None:
    """Return the text of a string literal."""
    return expr.words[0] if isinstance(expr, Call) and expr.op == "string" else None


def _is_null(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "null"


# ------------------------------------------------------------------------------------------ numbers

_MAX_DIGITS = 38


def _bounded(digits: int, places: int) -> str:
    return f"decimal({min(digits, _MAX_DIGITS)},{min(places, _MAX_DIGITS)})"


def _adjusted(digits: int, places: int) -> str:
    """Return the decimal of a result that may need more digits than there are."""
    if digits <= _MAX_DIGITS:
        return f"decimal({digits},{places})"
    whole = digits - places
    return f"decimal({_MAX_DIGITS},{max(_MAX_DIGITS - whole, min(places, 6))})"


def _number(call: Call, kinds: Sequence[str | None]) -> str | None:
    kind = Types().of_call(call, ())
    text = call.words[0].removeprefix("-")
    if kind is not None:
        return kind
    if text[-1:] in "DF" and text[:-1].replace(".", "", 1).isdecimal():
        return "double" if text.endswith("D") and not text.endswith("BD") else "float"
    text = text.removesuffix("BD")
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int) or exponent > 0 or text[-1:] not in ".0123456789":
        return None
    n_digits = max(len(digits), -exponent)
    return f"decimal({n_digits},{-exponent})" if n_digits <= _MAX_DIGITS else None


def _operand(expr: Expr, kind: str | None) -> tuple[int, int] | None:
    """Return the digits and places that an operand has beside a decimal."""
    if kind not in INTEGRAL:
        return _decimal(kind)
    if isinstance(expr, Call) and expr.op == "number":
        digits = expr.words[0].removeprefix("-").rstrip("LSY").lstrip("0") or "0"
        return len(digits), 0
    return _DIGITS[kind], 0  # pyright: ignore[reportArgumentType]


def _arithmetic(call: Call, kinds: Sequence[str | None]) -> str | None:
    if len(kinds) != 2:
        return None
    op = call.op.removeprefix("try_")
    op = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}.get(op, op)
    a, b = kinds
    if a in _TIMES or b in _TIMES:
        return _of_times(op, a, b)
    if not _is_number(a) or not _is_number(b):
        return None
    if a in _FLOATS or b in _FLOATS:
        return "float" if a == b == "float" and op != "/" else "double"
    if a in INTEGRAL and b in INTEGRAL:
        return "double" if op == "/" else max(a, b, key=INTEGRAL.index)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    left, right = _operand(call.args[0], a), _operand(call.args[1], b)
    if left is None or right is None:
        return None
    return _of_decimals(op, left, right)


def _of_decimals(op: str, left: tuple[int, int], right: tuple[int, int]) -> str | None:
    (p, s), (q, t) = left, right
    match op:
        case "+" | "-":
            places = max(s, t)
            return _adjusted(max(p - s, q - t) + places + 1, places)
        case "*":
            return _adjusted(p + q + 1, s + t)
        case "/":
            places = max(6, s + q + 1)
            return _adjusted(p - s + t + places, places)
        case "mod":
            return _adjusted(min(p - s, q - t) + max(s, t), max(s, t))
        case _:
            return None


def _of_times(op: str, a: str | None, b: str | None) -> str | None:
    if op == "-" and a in _TIMES and b in _TIMES:
        return "interval day" if a == b == "date" else "interval day to second"
    if a not in _TIMES and op == "+":
        a, b = b, a
    if op not in ("+", "-") or a not in _TIMES or b is None:
        return None
    if a == "date":
        return (
            a if b in ("interval year", "interval month", "interval day", *INTEGRAL[:3]) else None
        )
    return a if b.startswith("interval ") else None


_UNITS = re.compile(r"(year|month|day|hour|minute|second)s?")


def _interval(call: Call, kinds: Sequence[str | None]) -> str | None:
    match = _UNITS.fullmatch(call.words[0])
    return f"interval {match[1]}" if match else None


def _rounded(call: Call, kinds: Sequence[str | None]) -> str | None:
    of = _decimal(kinds[0]) if kinds else None
    if of is None:
        return kinds[0] if kinds and _is_number(kinds[0]) else None
    text = "0"
    if len(call.args) > 1:
        places = call.args[1]
        text = places.words[0] if isinstance(places, Call) and places.op == "number" else ""
    if not text.removeprefix("-").isdecimal():
        return None
    digits, scale, places = *of, int(text)
    whole = digits - scale + 1
    if places < 0:
        return _bounded(max(whole, 1 - places), 0)
    places = min(scale, places)
    return _bounded(whole + places, places)


def _whole(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``ceil`` and ``floor``."""
    if len(kinds) != 1 or not _is_number(kinds[0]):
        return None
    of = _decimal(kinds[0])
    if of is None:
        return "bigint"
    return _bounded(of[0] - of[1] + 1, 0) if of[1] else kinds[0]


def _signed(call: Call, kinds: Sequence[str | None]) -> str | None:
    return kinds[0] if len(kinds) == 1 and _is_number(kinds[0]) else None


def _sum(call: Call, kinds: Sequence[str | None]) -> str | None:
    of = _decimal(kinds[0]) if kinds else None
    if of is not None:
        return _bounded(of[0] + 10, of[1])
    if not kinds or not _is_number(kinds[0]):
        return None
    return "bigint" if kinds[0] in INTEGRAL else "double"


def _avg(call: Call, kinds: Sequence[str | None]) -> str | None:
    of = _decimal(kinds[0]) if kinds else None
    if of is not None:
        return _bounded(of[0] + 4, of[1] + 4)
    return "double" if kinds and _is_number(kinds[0]) else None


# --------------------------------------------------------------------------------------- any values


def common_type(kinds: Iterable[str | None]) -> str | None:
    """Return Spark's common type of several types in ANSI mode, where that is certain.

    Examples
    --------
    >>> common_type(["int", "decimal(4,2)"]), common_type(["int", "string"])
    ('decimal(12,2)', None)
    """
    distinct = dict.fromkeys(kinds)
    if not distinct or None in distinct:
        return None
    first, *others = [kind for kind in distinct if kind is not None]
    for other in others:
        both = _common(first, other)
        if both is None:
            return None
        first = both
    return first


def _common(a: str, b: str) -> str | None:
    if _is_number(a) and _is_number(b):
        if a in INTEGRAL and b in INTEGRAL:
            return max(a, b, key=INTEGRAL.index)
        if a in _FLOATS or b in _FLOATS:
            return "double"
        (p, s), (q, t) = (_decimal(k) or (_DIGITS[k], 0) for k in (a, b))
        places = max(s, t)
        digits = max(p - s, q - t) + places
        return f"decimal({digits},{places})" if digits <= _MAX_DIGITS else None
    if a in _TIMES and b in _TIMES:
        return "timestamp" if "timestamp" in (a, b) else "timestamp_ntz"
    return None


def _alike(call: Call, kinds: Sequence[str | None]) -> str | None:
    values = (k for a, k in zip(call.args, kinds, strict=True) if not _is_null(a))
    return common_type(values)


def _case(call: Call, kinds: Sequence[str | None]) -> str | None:
    pairs = list(zip(call.args, kinds, strict=True))
    values = [*pairs[1::2], *(pairs[-1:] if call.words else ())]
    return common_type(k for a, k in values if not _is_null(a))


def _nvl2(call: Call, kinds: Sequence[str | None]) -> str | None:
    pairs = zip(call.args[1:], kinds[1:], strict=True)
    return common_type(k for a, k in pairs if not _is_null(a))


def _zero_if_null(call: Call, kinds: Sequence[str | None]) -> str | None:
    return common_type((*kinds, "int"))


def _first(call: Call, kinds: Sequence[str | None]) -> str | None:
    return kinds[0] if kinds else None


def _if_equal(call: Call, kinds: Sequence[str | None]) -> str | None:
    return kinds[0] if len({*kinds}) == 1 else None


def _bits(call: Call, kinds: Sequence[str | None]) -> str | None:
    return common_type(kinds) if all(k in INTEGRAL for k in kinds) else None


def _percentile(call: Call, kinds: Sequence[str | None]) -> str | None:
    numbers = [_is_number(k) for k in kinds]
    return "double" if numbers and all(numbers) else None


def _approximate(call: Call, kinds: Sequence[str | None]) -> str | None:
    one = len(kinds) > 1 and _is_number(kinds[1])
    return kinds[0] if one and (_is_number(kinds[0]) or kinds[0] in _TIMES) else None


# ---------------------------------------------------------------------------------- texts and times


def _text(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of a function of texts that also takes bytes, or texts in collations."""
    return "string" if kinds and (kinds[0] in _ATOMIC or _decimal(kinds[0])) else None


def _last_text(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``substring``, whose text is the last operand of the parser's node."""
    return _text(call, kinds[-1:])


def _text_or_unknown(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of a function of texts: a string, unless a collation changes it."""
    return "string" if kinds and (kinds[0] in (None, "binary") or _text(call, kinds)) else None


def _decoded(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``decode``, which is a CASE if it has more than two operands."""
    return "string" if len(kinds) == 2 else None


def _concat(call: Call, kinds: Sequence[str | None]) -> str | None:
    if kinds and kinds[0] is not None and kinds[0].startswith("array<"):
        return _if_equal(call, kinds)
    known = all(k == "binary" or k in _ATOMIC or _decimal(k) for k in kinds)
    if not kinds or not known:
        return None
    return "binary" if {*kinds} == {"binary"} else "string"


def _reverse(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _text(call, kinds) or _array(call, kinds)


def _trimmed(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _text_or_unknown(call, kinds[-1:])


def _extract(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _field_of(call.words[0], kinds[0])


def _part(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``date_part('FIELD', …)``."""
    text = _text_of(call.args[0]) if len(call.args) == 2 else None
    return None if text is None else _field_of(text.lower(), kinds[1])


def _field_of(name: str, kind: str | None) -> str | None:
    if kind not in _TIMES:
        return None
    if name in ("second", "seconds"):
        return "decimal(8,6)"
    return "int" if name in _FIELDS else None


_FIELDS = frozenset("year quarter month week day dayofweek dow doy hour minute yearofweek".split())


def _moved(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``date_add(date, days)`` or ``dateadd(unit, n, time)``."""
    if not call.words:
        return "date" if call.op == "date_add" else None
    return kinds[1] if len(kinds) == 2 and kinds[1] in ("timestamp", "timestamp_ntz") else None


def _between(call: Call, kinds: Sequence[str | None]) -> str | None:
    return "bigint" if call.words or call.op != "datediff" else "int"


# ---------------------------------------------------------------------------- arrays, maps, structs


def _array(call: Call, kinds: Sequence[str | None]) -> str | None:
    return kinds[0] if _element(kinds[0] if kinds else None) is not None else None


def _array_if_equal(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _array(call, kinds) if len({*kinds}) == 1 else None


def _appended(call: Call, kinds: Sequence[str | None]) -> str | None:
    return kinds[0] if len(kinds) == 2 and _element(kinds[0]) == kinds[1] is not None else None


def _made_array(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _array_of(_alike(call, kinds))


def _listed(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _array_of(kinds[0]) if kinds else None


def _made_map(call: Call, kinds: Sequence[str | None]) -> str | None:
    pairs = list(zip(call.args, kinds, strict=True))
    key, value = (common_type(k for a, k in pairs[i::2] if not _is_null(a)) for i in (0, 1))
    return None if key is None or value is None else f"map<{key},{value}>"


def _struct(call: Call, kinds: Sequence[str | None]) -> str | None:
    if not kinds or None in kinds or len(kinds) != len(call.words) or not all(call.words):
        return None
    return _struct_of(zip(call.words, kinds, strict=True))


def _struct_of(fields: Iterable[tuple[str, str | None]]) -> str:
    return f"struct<{','.join(f'{field_name(n)}:{k}' for n, k in fields)}>"


def _named_struct(call: Call, kinds: Sequence[str | None]) -> str | None:
    names, values = [_text_of(a) for a in call.args[::2]], kinds[1::2]
    if not names or None in names or None in values or len(names) != len(values):
        return None
    return _struct_of(((n or "", k) for n, k in zip(names, values, strict=True)))


def _field(call: Call, kinds: Sequence[str | None]) -> str | None:
    kind = kinds[0]
    if kind is None:
        return None
    if kind.startswith("map<"):
        return _entry(kind, 1)
    element = _element(kind)
    try:
        fields = fields_of(element or kind) if "struct<" in (element or kind)[:7] else []
    except UnknownTypeError:
        return None
    matches = [k for name, k in fields if name.lower() == call.words[0].lower()]
    if len(matches) != 1:
        return None
    return matches[0] if element is None else _array_of(matches[0])


def _item(call: Call, kinds: Sequence[str | None]) -> str | None:
    kind = kinds[0] if kinds else None
    return _element(kind) or _entry(kind, 1)


def _flat(call: Call, kinds: Sequence[str | None]) -> str | None:
    inner = _element(kinds[0]) if kinds else None
    return inner if _element(inner) is not None else None


def _series(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type of ``sequence``, whose operands the parser has in another order."""
    if len(kinds) > 1 and (kinds[0] == kinds[1]) and kinds[0] in (*INTEGRAL, *_TIMES):
        numbers = len(kinds) == 2 or kinds[0] in _TIMES or kinds[2] == kinds[0]
        return _array_of(kinds[0]) if numbers else None
    return None


def _entries(call: Call, kinds: Sequence[str | None]) -> str | None:
    key, value = _entry(kinds[0], 0), _entry(kinds[0], 1)
    return f"array<struct<key:{key},value:{value}>>" if key and value else None


def _keys(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _array_of(_entry(kinds[0], 0))


def _values(call: Call, kinds: Sequence[str | None]) -> str | None:
    return _array_of(_entry(kinds[0], 1))


def _parsed(call: Call, kinds: Sequence[str | None]) -> str | None:
    """Return the type that the text of a schema names, as in ``from_json``."""
    text = _text_of(call.args[1]) if len(call.args) > 1 else None
    if text is None:
        return None
    return parse_type(text, lengths=False) or parse_type(f"struct<{text}>", lengths=False)


def _of_variant(call: Call, kinds: Sequence[str | None]) -> str | None:
    if len(call.args) == 2:
        return "variant"
    text = _text_of(call.args[2]) if len(call.args) == 3 else None
    return parse_type(text, lengths=False) if text is not None else None


def _fixed(kind: str) -> Rule:
    return lambda call, kinds: kind


def _several(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Mapping[str, Rule] = {
    "number": _number,
    "interval": _interval,
    "struct": _struct,
    "named_struct": _named_struct,
    "field": _field,
    "extract": _extract,
    **_several(_part, "date_part datepart"),
    "case": _case,
    "nvl2": _nvl2,
    "zeroifnull": _zero_if_null,
    **_several(_arithmetic, "+ - * / mod try_add try_subtract try_multiply try_divide try_mod"),
    **_several(_bits, "& | ^ ~ bit_and bit_or bit_xor"),
    **_several(_rounded, "round bround"),
    **_several(_whole, "ceil floor"),
    **_several(_signed, "negative positive abs"),
    **_several(_sum, "sum try_sum"),
    **_several(_avg, "avg try_avg"),
    **_several(_percentile, "median percentile"),
    "percentile_approx": _approximate,
    **_several(_alike, "coalesce greatest least"),
    **_several(
        _first, "min max first last lag lead nth_value nullif nullifzero min_by max_by mode"
    ),
    **_several(_text, "substring substr left right lpad rpad overlay"),
    **_several(_text_or_unknown, "upper lower trim ltrim rtrim btrim initcap repeat replace"),
    **_several(
        _text_or_unknown, "translate regexp_replace regexp_extract regexp_substr split_part"
    ),
    **_several(_text_or_unknown, "substring_index"),
    "sqlglot.substring": _last_text,
    "sqlglot.trim": _trimmed,
    "listagg": _text,
    "decode": _decoded,
    "concat": _concat,
    "reverse": _reverse,
    **_several(_moved, "date_add timestampadd"),
    **_several(_between, "datediff timestampdiff timediff"),
    "array": _made_array,
    "map": _made_map,
    **_several(_array, "array_distinct array_sort sort_array slice array_compact shuffle filter"),
    **_several(_array_if_equal, "array_union array_intersect array_except"),
    **_several(_appended, "array_append array_prepend array_remove"),
    **_several(_listed, "collect_list collect_set array_repeat"),
    **_several(_item, "[] element_at try_element_at get array_min array_max"),
    "flatten": _flat,
    "sqlglot.generateseries": _series,
    "map_entries": _entries,
    "map_keys": _keys,
    "map_values": _values,
    **_several(_parsed, "from_json from_csv"),
    **_several(_of_variant, "variant_get try_variant_get"),
    **_several(_fixed("variant"), "parse_json try_parse_json to_variant_object"),
    **_several(
        _fixed("string"), "get_json_object schema_of_json schema_of_variant typeof bin conv"
    ),
    **_several(_fixed("string"), "chr char space to_char format_number from_unixtime dayname uuid"),
    **_several(_fixed("string"), "monthname array_join url_encode url_decode soundex"),
    **_several(_fixed("binary"), "encode unhex unbase64 to_binary binary"),
    **_several(_fixed("binary"), "sqlglot.hexstring"),
    **_several(_fixed("boolean"), "exists forall arrays_overlap map_contains_key between"),
    **_several(_fixed("boolean"), "is_variant_null"),
    **_several(_fixed("bigint"), "width_bucket regr_count monotonically_increasing_id grouping_id"),
    **_several(_fixed("double"), "var_samp var_pop covar_samp covar_pop skewness kurtosis e pi"),
    **_several(_fixed("double"), "rand randn"),
    **_several(_fixed("double"), "regr_intercept regr_r2 regr_slope regr_sxx"),
    **_several(_fixed("double"), "regr_sxy regr_syy"),
    **_several(
        _fixed("timestamp"), "to_timestamp try_to_timestamp to_timestamp_ltz make_timestamp"
    ),
    **_several(
        _fixed("timestamp"), "timestamp_seconds timestamp_millis timestamp_micros timestamp"
    ),
    **_several(_fixed("timestamp"), "from_utc_timestamp to_utc_timestamp make_timestamp_ltz"),
    **_several(_fixed("timestamp_ntz"), "to_timestamp_ntz make_timestamp_ntz convert_timezone"),
    **_several(_fixed("timestamp_ntz"), "localtimestamp"),
    **_several(_fixed("date"), "date_from_unix_date date try_to_date"),
    **_several(_fixed("tinyint"), "tinyint grouping bit_get"),
    **_several(_fixed("int"), "int sqlglot.strposition"),
    **_several(_fixed("bigint"), "bigint"),
    **_several(_fixed("array<string>"), "split regexp_extract_all"),
    **_several(_fixed("map<string,string>"), "str_to_map"),
    **_several(_fixed("array<array<string>>"), "sentences"),
}
"""By operator or function, how the types of its operands decide its own."""
