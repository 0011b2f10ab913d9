"""Notes about parts of a query that may mean something else in Spark.

Every function in the text of a query has a note unless it is known to be equal (`_EQUAL`,
`_ALSO_EQUAL`) or was rewritten (`rewriting.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from persist_assets.operations.importing.rewriting import (
    ARITHMETIC,
    BYTES,
    IMPLICIT,
    LISTS,
    PRESTO,
    TSQL,
    WHOLE,
    WITHOUT_ESCAPE,
    integer,
    is_date,
    is_text,
    may_be_decimal,
    number_kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


REGROUPED = "regrouped"
"""The mark of parentheses that may be wrong."""


# ---------------------------------------------------------------------------------------- functions

_EQUAL = frozenset(
    """
    cast try_cast safe_cast extract date_part datepart case
    sum count min max bool_and bool_or every count_if countif logical_and logical_or
    row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value
    nth_value percentile_cont percentile_disc
    coalesce nullif ifnull nvl if iff greatest least
    lower upper char_length character_length replace lpad rpad repeat concat substring substr
    abs ceil ceiling floor mod sign sqrt exp ln power pow
    year month day quarter hour minute date_trunc current_date current_timestamp now
    """.split()
)
"""Functions that are equal in Spark, in all dialects of `_ALSO_EQUAL`.

Of some a part differs: then `rewriting.py` changes it, or `_DIFFERENCES` has a note.
"""
_ALSO_EQUAL: Mapping[str, frozenset[str]] = {
    dialect: frozenset(names.split())
    for dialect, names in {
        "duckdb": """
            median stddev stddev_samp stddev_pop variance var_samp var_pop trim ltrim rtrim
            length len strlen left right strpos position instr split_part concat_ws md5 last_day
            reverse string_agg group_concat listagg arg_max arg_min max_by min_by quantile
            quantile_cont quantile_disc array_agg list dayofmonth
            """,
        "postgres": """
            stddev stddev_samp stddev_pop variance var_samp var_pop trim ltrim rtrim btrim
            length left right strpos position split_part concat_ws md5 reverse div string_agg
            array_agg
            """,
        "redshift": """
            median stddev stddev_samp stddev_pop variance var_samp var_pop trim ltrim rtrim btrim
            length len left right strpos position split_part md5 reverse last_day listagg nvl2
            decode
            """,
        "snowflake": """
            median stddev stddev_samp stddev_pop variance var_samp var_pop trim ltrim rtrim length
            len left right position charindex split_part md5 reverse last_day nvl2 decode
            zeroifnull nullifzero equal_null dayofmonth
            """,
        "bigquery": """
            stddev stddev_samp stddev_pop variance var_samp var_pop length strpos reverse
            string_agg safe_divide last_day struct div offset ordinal safe_offset
            safe_ordinal week
            """,
        **dict.fromkeys(
            PRESTO,
            """
            stddev stddev_samp stddev_pop variance var_samp var_pop length strpos position
            reverse listagg array_agg
            """,
        ),
        **dict.fromkeys(TSQL, "left right trim ltrim rtrim stdev stdevp var varp"),
        "mysql": "stddev_samp stddev_pop var_samp var_pop left right reverse last_day concat_ws",
    }.items()
}
_UNEQUAL: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(TSQL, frozenset({"replace"})),  # ignores case
    "mysql": frozenset({"if"}),  # numbers may be conditions
}
_WORDS: Mapping[str, str] = {
    "avg": "for integers and decimals, {} may return more or fewer digits",
    "round": "halves of doubles may be rounded in another direction in {}",
    "regexp_replace": "{} may replace only the first match, and has another syntax of patterns",
    "trim": "{} may also remove white space other than spaces, or words",
    "date_diff": "{} counts differently from Spark",
    "datediff": "{} counts differently from Spark",
    "listagg": "for no rows, {} returns an empty text, and Spark NULL",
}
"""What to check of a function that is not equal; of others: that it may differ."""
_NO_FUNCTIONS = frozenset(
    """
    all any array decimal except exclude exists filter ilike in interval lateral like not number
    numeric of on over partition rename some table union using values varchar window with within
    """.split()
)
"""Words before a parenthesis that are not functions, or that have notes of their own."""


_BEFORE_OTHERS = (TokenType.ALIAS, TokenType.DCOLON, TokenType.R_PAREN, TokenType.VAR)
"""What stands before types, and before aliases with columns."""


def doubts(text: str, tree: exp.Query, dialect: str, settled: frozenset[int]) -> Iterator[str]:
    """Yield notes about a query.

    Parameters
    ----------
    tree
        The rewritten query.
    settled
        Where in the text calls begin that were rewritten.
    """
    noted = set[str]()
    for rule in _DIFFERENCES:
        here = not rule.dialects or dialect in rule.dialects
        if here and any(rule.differs(node) for node in tree.find_all(*rule.kinds)):
            noted.update(rule.names)
            yield rule.words.format(dialect)
    plain = {n.meta.get("start") for n in tree.find_all(exp.TimeToStr) if _has_plain_format(n)}
    for name in _unequal_functions(text, tree, dialect, settled | plain):
        if name not in noted:
            words = _WORDS.get(name, "it may differ between {} and Spark")
            yield f"check `{name}`: {words.format(dialect)}"


def _unequal_functions(
    text: str, tree: exp.Query, dialect: str, settled: frozenset[Any]
) -> Sequence[str]:
    """Return the functions in a text that are not known to be equal in Spark, each once."""
    also = _ALSO_EQUAL.get(dialect)
    unequal = _UNEQUAL.get(dialect, frozenset[str]())
    equal = (_EQUAL | also) - unequal if also else frozenset[str]()
    aliases = {a.name.lower() for a in tree.find_all(exp.TableAlias) if a.args.get("columns")}
    names = {name: None for start, name in _calls(text, dialect) if start not in settled}
    return [name for name in names if name not in equal | aliases]


def _calls(text: str, dialect: str) -> Iterator[tuple[int, str]]:
    """Yield where in a text functions are called, and their names in lower case."""
    may_be_called = sqlglot.Dialect.get_or_raise(dialect).parser_class.FUNC_TOKENS
    tokens = sqlglot.tokenize(text, read=dialect)
    before: Any = None
    for token, after in pairwise(tokens):
        kind, previous = token.token_type, before
        before = kind
        if after.token_type is not TokenType.L_PAREN or kind not in may_be_called:
            continue
        name = token.text.lower()
        if previous not in _BEFORE_OTHERS and name not in _NO_FUNCTIONS:
            yield token.start, name


# -------------------------------------------------------------------------------------- differences


@dataclass(frozen=True, slots=True)
class _Difference:
    """What a dialect evaluates differently from Spark.

    Attributes
    ----------
    dialects
        The dialects; none: all.
    kinds, differs
        The kinds of nodes, and whether one of them may have another value.
    names
        The functions that the note is about.
    """

    dialects: Sequence[str]
    kinds: Sequence[type[Any]]
    differs: Callable[[Any], bool]
    words: str
    names: Sequence[str] = ()


def _always(_: Any) -> bool:
    return True


def _may_truncate(node: exp.Div) -> bool:
    """Whether both sides of a division may be integers."""
    return not any(
        (isinstance(side, exp.Literal) and not side.is_int)
        or (isinstance(side, exp.Cast) and not side.is_type(*exp.DataType.INTEGER_TYPES))
        for side in (node.left.unnest(), node.right.unnest())
    )


def _is_decimal_division(node: exp.Div) -> bool:
    """Whether a division may be one of decimals, and has no note about integers."""
    return may_be_decimal(node) and not _may_truncate(node)


def _may_be_rounded(node: exp.Div) -> bool:
    return _may_truncate(node) or may_be_decimal(node)


def _marked(mark: str) -> Callable[[Any], bool]:
    return lambda node: bool(node.meta.get(mark))


def _is_fraction(node: exp.Literal) -> bool:
    """Whether a number is a DECIMAL in Spark, and neither the share of a percentile nor cast."""
    has_point = not node.is_string and not node.is_int and "e" not in node.name.lower()
    above = node.parent
    return has_point and not isinstance(above, exp.Cast | exp.Anonymous | exp.DataTypeParam)


def _may_show_double(node: exp.Cast) -> bool:
    """Whether a cast to a text that the query has may be one of a double."""
    value = node.this.unnest()
    is_known = isinstance(value, exp.Cast) and not value.is_type(*exp.DataType.FLOAT_TYPES)
    is_double = not (is_known or isinstance(value, _NO_DOUBLES) or is_text(value))
    is_whole = number_kind(value) == "integer"
    is_shown = node.is_type(*exp.DataType.TEXT_TYPES) and not node.meta.get(IMPLICIT)
    return is_shown and is_double and not is_whole


_NO_DOUBLES = (
    exp.Literal,
    exp.Null,
    exp.Predicate,
    exp.Boolean,
    exp.CurrentDate,
    exp.CurrentTimestamp,
    exp.DateTrunc,
    exp.TimestampTrunc,
    exp.Extract,
    exp.TimeToStr,
    exp.Array,
)


def _is_of(*kinds: str) -> Callable[[Any], bool]:
    """Return whether a cast is one to some types."""
    return lambda node: bool(node.is_type(*kinds))


def _has_length(node: exp.Cast) -> bool:
    return bool(node.is_type("char", "nchar", "varchar", "nvarchar") and node.to.expressions)


def _ignores_case(node: Any) -> bool:
    """Whether texts with letters may be compared or grouped."""
    if isinstance(node, exp.Join):
        return bool(node.args.get("using"))
    if isinstance(node, exp.Window):
        return bool(node.args.get("partition_by"))
    if isinstance(node, exp.Group | exp.Distinct):
        return True
    if isinstance(node, exp.SetOperation):
        return bool(node.args.get("distinct"))
    others = node.expressions if isinstance(node, exp.In) else [node.expression]
    return _may_have_letters(node.this) and (not others or any(map(_may_have_letters, others)))


def _may_have_letters(node: Any) -> bool:
    """Whether a value may be a text with letters."""
    node = node.unnest()
    if isinstance(node, exp.Literal):
        return bool(node.is_string) and any(c.isalpha() for c in node.name)
    if isinstance(node, exp.Cast):
        return is_text(node)
    is_other = isinstance(node, exp.Null | exp.Boolean | exp.CurrentDate | exp.CurrentTimestamp)
    return not is_other and not number_kind(node)


_WHOLE = (*WHOLE, exp.Predicate, exp.Boolean)


def _may_round(node: exp.Cast) -> bool:
    """Whether a value with a fraction may be cast to an integer."""
    value = node.this.unnest()
    value = value.this if isinstance(value, exp.Window) else value
    is_literal = integer(value) is not None or (value.is_string and value.name.isdigit())
    is_whole = isinstance(value, _WHOLE) or is_literal
    return node.is_type(*exp.DataType.INTEGER_TYPES) and not is_whole


def _extracts(*fields: str) -> Callable[[Any], bool]:
    """Return whether a node extracts one of the fields, or is a function for it."""
    return lambda node: not isinstance(node, exp.Extract) or node.name.upper() in fields


def _may_be_dates(node: exp.Sub) -> bool:
    """Whether both sides of a difference may be dates."""
    return all(
        is_date(side) or isinstance(side.unnest(), _MAY_BE_DATE) for side in (node.left, node.right)
    )


_MAY_BE_DATE = (
    exp.Column,
    exp.Min,
    exp.Max,
    exp.Coalesce,
    exp.Window,
    exp.Lag,
    exp.Lead,
    exp.FirstValue,
    exp.LastValue,
    exp.Case,
)


def _moves_a_date(node: Any) -> bool:
    """Whether an interval is added to what may be a date, and the sum is not cast to one."""
    intervals = [isinstance(side.unnest(), exp.Interval) for side in (node.left, node.right)]
    other = node.right if intervals[0] else node.left
    is_time = _is_time(other) or isinstance(other.unnest(), exp.TimestampTrunc)
    return intervals[0] != intervals[1] and not (is_time or _becomes_date(node))


def _is_time(node: Any) -> bool:
    """Whether a value certainly has a time of day."""
    value = node.unnest()
    is_cast = isinstance(value, exp.Cast) and not is_date(value)
    return is_cast or isinstance(value, exp.CurrentTimestamp)


def _becomes_date(node: Any) -> bool:
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Cast) and is_date(parent)


def _truncates_a_date(node: Any) -> bool:
    return not _is_time(node.this) and not _becomes_date(node)


def _is_computed(node: exp.Bracket) -> bool:
    """Whether brackets have no constant: a position in an array, or the key of a map."""
    return not isinstance(node.expressions[0], exp.Literal | exp.Neg)


def _may_have_escapes(node: Any) -> bool:
    return not node.expression.is_string and not isinstance(node.parent, exp.Escape)


def _begins_before(node: exp.Substring) -> bool:
    start = integer(node.args.get("start"))
    return start is None or start < 1


def _may_be_negative(node: Any) -> bool:
    return integer(node.expression) is None


def _may_be_empty(node: exp.ArrayAgg) -> bool:
    """Whether an array may be one of no rows."""
    select: Any = node.find_ancestor(exp.Select)
    has_rows = isinstance(node.parent, exp.Window) or (select and select.args.get("group"))
    return isinstance(node.parent, exp.Filter) or not has_rows


def _has_quotes(node: Any) -> bool:
    return not isinstance(node.parent, exp.JSONExtract | exp.JSONExtractScalar)


def _is_operator(node: Any) -> bool:
    """Whether a match with a pattern that other dialects may read otherwise is not a call."""
    pattern = node.expression
    is_plain = pattern.is_string and re.fullmatch(r"(\(\?i\))?\^?[\w /-]*\$?", pattern.name)
    return node.meta.get("start") is None and not is_plain


def _is_pattern_operator(node: Any) -> bool:
    return node.meta.get("start") is None


def _is_shown(node: exp.In) -> bool:
    """Whether a membership in a subquery is a value, and not only a condition on rows."""
    if node.args.get("query") is None:
        return False
    clause = node.find_ancestor(exp.Where, exp.Having, exp.Qualify, exp.Join, exp.Select)
    return isinstance(clause, exp.Select)


def _has_plain_format(node: exp.TimeToStr) -> bool:
    """Whether a format has only parts that Spark's pattern letters mean exactly."""
    return re.fullmatch(r"(%[YmdHMS]|[-/:. ])+", node.text("format")) is not None


_DIFFERENCES: Sequence[_Difference] = (
    _Difference(
        ("postgres", "redshift", *PRESTO, *TSQL, "sqlite"),
        (exp.Div,),
        _may_truncate,
        "check `/`: two integers give an integer in {}, and a double in Spark; decimals may get"
        " other digits",
    ),
    _Difference(
        ("postgres", "redshift", *PRESTO, *TSQL, "sqlite"),
        (exp.Div,),
        _is_decimal_division,
        "check `/`: decimals may get other digits in {} than in Spark",
    ),
    _Difference(
        ("bigquery", "mysql", "oracle"),
        (exp.Div,),
        may_be_decimal,
        "check `/`: decimals may get other digits in {} than in Spark",
    ),
    _Difference(
        ("snowflake",), (exp.Div,), _may_be_rounded, "check `/`: {} rounds it to six digits"
    ),
    _Difference(
        ("bigquery",),
        (exp.Literal,),
        _is_fraction,
        "check numbers with fractions: `0.1` is a double in {}, and a decimal in Spark",
    ),
    _Difference(
        (),
        (exp.Paren,),
        _marked(REGROUPED),
        "check bit operators and `||`: {} may apply them in another order; put parentheses there",
    ),
    _Difference(
        ("duckdb", "postgres", "redshift"),
        (exp.BitwiseNot,),
        lambda node: isinstance(node.parent, ARITHMETIC),
        "check `~`: in {} it may apply to the sum, and not only to the next operand",
    ),
    _Difference(
        (),
        (exp.Cast,),
        _may_show_double,
        "check casts to texts: doubles may look different in {} and in Spark",
    ),
    _Difference(
        ("redshift",),
        (exp.Anonymous,),
        _marked(BYTES),
        "check casts to VARCHAR(n): {} counts bytes, Spark characters",
    ),
    _Difference(
        TSQL,
        (exp.Cast,),
        _is_of("varchar", "nvarchar"),
        "check casts to VARCHAR: {} cuts long texts, Spark does not",
    ),
    _Difference(
        ("postgres", "redshift", "snowflake", "oracle", *PRESTO, *TSQL),
        (exp.Cast,),
        _is_of("char", "nchar", "bpchar"),
        "check casts to CHAR: {} cuts or fills texts, Spark does not",
    ),
    _Difference(
        ("mysql",),
        (exp.Cast,),
        _has_length,
        "check casts to CHAR(n): {} cuts long texts, Spark does not",
    ),
    _Difference(
        ("duckdb",),
        (exp.Concat,),
        _marked(LISTS),
        "check `concat`: {} joins lists to a list, here they become a text",
    ),
    _Difference(
        ("mysql", *TSQL),
        (
            exp.EQ,
            exp.NEQ,
            exp.GT,
            exp.GTE,
            exp.LT,
            exp.LTE,
            exp.In,
            exp.Like,
            exp.Group,
            exp.Distinct,
            exp.SetOperation,
            exp.Join,
            exp.Window,
        ),
        _ignores_case,
        "check texts: {} may ignore case and trailing blanks when it compares or groups them",
    ),
    _Difference(
        ("duckdb",),
        (exp.IntDiv,),
        _always,
        "check `//`: operands with fractions give a fraction in {}",
    ),
    _Difference(
        ("postgres", "duckdb", "snowflake", "bigquery", "redshift", "mysql", "oracle", *PRESTO),
        (exp.Cast,),
        _may_round,
        "check casts to integers: {} rounds fractions, Spark cuts them off",
    ),
    _Difference(
        ("snowflake",),
        (exp.Extract, exp.DayOfWeek),
        _extracts("DOW", "DAYOFWEEK", "DW", "WEEKDAY"),
        "check weekdays: {} begins at 0",
        ("dayofweek",),
    ),
    _Difference(
        TSQL,
        (exp.Extract,),
        _extracts("DAYOFWEEK"),
        "check weekdays: their numbers depend on DATEFIRST in {}",
    ),
    _Difference(
        ("bigquery", "mysql", *TSQL),
        (exp.Extract, exp.Week),
        _extracts("WEEK"),
        "check weeks: in {} they may begin on Sundays, in Spark on Mondays",
        ("week",),
    ),
    _Difference(
        ("redshift", "mysql", *TSQL),
        (exp.Extract,),
        _extracts("SECOND"),
        "check seconds: in Spark they have fractions",
    ),
    _Difference(
        ("snowflake", "bigquery", "mysql", "oracle", *PRESTO),
        (exp.Least, exp.Greatest),
        _always,
        "check `least` and `greatest`: with a NULL argument, {} returns NULL; Spark ignores NULLs",
        ("least", "greatest"),
    ),
    _Difference(
        ("snowflake", *PRESTO),
        (exp.TimestampTrunc, exp.DateTrunc),
        _truncates_a_date,
        "check `date_trunc`: for a date, {} returns a date; Spark may return a timestamp",
    ),
    _Difference(
        ("duckdb", "postgres", "redshift", "snowflake"),
        (exp.Sub,),
        _may_be_dates,
        "check `-`: two dates give a number in {}, and an interval in Spark",
    ),
    _Difference(
        ("duckdb", "postgres", "redshift"),
        (exp.Add, exp.Sub),
        _moves_a_date,
        "check intervals: added to a date, they give a timestamp in {}, and a date in Spark",
    ),
    _Difference(
        (),
        (exp.AtTimeZone,),
        _always,
        "check AT TIME ZONE: in {}, the type decides whether it converts from or to UTC",
    ),
    _Difference(
        ("duckdb", "postgres", *PRESTO),
        (exp.Bracket,),
        _is_computed,
        "check `[…]`: positions in arrays begin at 1 in {}, and at 0 in Spark",
    ),
    _Difference(
        WITHOUT_ESCAPE,
        (exp.Like, exp.ILike),
        _may_have_escapes,
        "check LIKE: a backslash in a pattern is a character in {}, and escapes in Spark",
    ),
    _Difference(
        (),
        (exp.Substring,),
        _begins_before,
        "check `substring`: positions before the first character may differ from {}",
        ("substring", "substr"),
    ),
    _Difference(
        ("duckdb", "postgres"),
        (exp.Left, exp.Right),
        _may_be_negative,
        "check `left` and `right`: in {} a negative length counts from the other end",
        ("left", "right"),
    ),
    _Difference(
        ("duckdb", "postgres", *PRESTO),
        (exp.ArrayAgg,),
        _may_be_empty,
        "check `array_agg`: for no rows, {} returns NULL, and Spark an empty array",
    ),
    _Difference(
        ("postgres", "redshift", "duckdb", "mysql", "sqlite"),
        (exp.JSONExtract,),
        _has_quotes,
        "check `->`: {} keeps the quotes of strings, Spark removes them",
    ),
    _Difference(
        (),
        (exp.RegexpLike,),
        _is_operator,
        "check regular expressions: Spark uses Java's",
    ),
    _Difference(
        (),
        (exp.In,),
        _is_shown,
        "check IN: with NULLs, Spark may return false where {} returns NULL",
    ),
    _Difference(
        ("snowflake",),
        (exp.RegexpLike,),
        _is_pattern_operator,
        "check RLIKE: {} matches the whole text, Spark any part of it",
    ),
)
