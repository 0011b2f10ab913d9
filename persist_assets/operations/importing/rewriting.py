"""Expressions of other dialects become expressions with the same values in Spark.

An expression is rewritten only if its equivalent is certain. A query that Spark cannot express is
refused with a reason (`refusal`), and one that may differ gets a note (`doubts.py`). Calls are
written by name, so that sqlglot leaves them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FROM_SUNDAY = ("duckdb", "postgres", "redshift")
"""Dialects in which the field `dow` is 0 on Sundays."""
PRESTO = ("trino", "presto", "athena")
TSQL = ("tsql", "fabric")
_ISO_DAYS = {
    **dict.fromkeys(("duckdb", "postgres"), ("ISODOW",)),
    **dict.fromkeys(PRESTO, ("DOW", "DAY_OF_WEEK")),
    "snowflake": ("DAYOFWEEKISO", "DAYOFWEEK_ISO", "DOW_ISO", "DW_ISO", "WEEKDAY_ISO"),
}
"""Fields that are 1 on Mondays and 7 on Sundays."""
_SUNDAY_FIELDS = ("DOW", "DAYOFWEEK", "WEEKDAY", "DW")
_ISO_YEARS = ("ISOYEAR", "YOW", "YEAR_OF_WEEK", "YEAROFWEEKISO")
_WHOLE_SECONDS = ("duckdb", "snowflake", "bigquery", *PRESTO)
"""Dialects in which the field `second` has no fraction."""
_WITH_NULLS = ("duckdb", "postgres", *PRESTO)
"""Dialects whose arrays of a group have its NULLs."""
_BOUNDARIES = ("duckdb", "bigquery", "snowflake", "redshift", *TSQL)
"""Dialects in which the difference of two times is the number of boundaries between them."""
WITHOUT_ESCAPE = ("duckdb", "snowflake", *TSQL, *PRESTO)
"""Dialects whose LIKE has no escape character unless the query names one."""
_SAME_LENGTH = ("WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
"""Units in which Spark counts complete units, like some functions of other dialects."""
_CUTS = ("postgres", "redshift", "snowflake", *PRESTO)
"""Dialects in which a cast to VARCHAR(n) cuts longer texts."""
BYTES, IMPLICIT, LISTS = "bytes", "implicit", "lists"
"""Marks of nodes: a length in bytes, a cast that the query lacks, a call that may join lists."""
ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_LOG_10 = ("duckdb", "postgres", "redshift")
FIELDS = frozenset(
    """
    YEAR YEARS YR YRS Y YEAROFWEEK QUARTER QTR MONTH MONTHS MON MONS WEEK WEEKS W DAY DAYS D
    DAYOFWEEK DOW DAYOFWEEK_ISO DOW_ISO DOY HOUR HOURS HR HRS H MINUTE MINUTES MIN MINS M SECOND
    SECONDS SEC SECS S
    """.split()
)
"""The fields of Spark's EXTRACT."""


def rewrite(tree: exp.Query, dialect: str) -> tuple[exp.Query, frozenset[int]]:
    """Rewrite a tree in place; return it, and where in the text the rewritten calls begin."""
    settled: set[int] = set()
    for node in reversed([*tree.walk(bfs=True)]):
        rule = _RULES.get(type(node))
        start = node.meta.get("start")
        parent, is_root = node.parent, node is tree
        new = rule(node, dialect) if rule else None
        if new is None:
            continue
        if start is not None:
            settled.add(int(start))
        if new is node:
            continue
        if is_root:
            tree = new
        elif node.parent is parent:
            node.replace(new)
    return tree, frozenset(settled)


# ---------------------------------------------------------------------------------------- refusals


def refusal(tree: exp.Query) -> str | None:
    """Return why Spark cannot express a query, or None."""
    for node in tree.walk():
        for kind, reason in _REFUSED:
            if isinstance(node, kind) and (words := reason(node)):
                return words
    return None


def _of_join(node: Any) -> str | None:
    method = str(node.args.get("method") or "").upper()
    return f"{method} JOIN is not translated" if method in ("ASOF", "POSITIONAL") else None


def _of_limit(node: Any) -> str | None:
    if node.expressions:
        return "Spark has no LIMIT BY"
    options = node.args.get("limit_options")
    if options is None or not (options.args.get("percent") or options.args.get("with_ties")):
        return None
    return (
        f"Spark has no LIMIT {'with a percentage' if options.args.get('percent') else 'WITH TIES'}"
    )


_ORDERED = (exp.GroupConcat, exp.PercentileCont, exp.PercentileDisc, exp.Mode)
"""Aggregates that have an order in Spark."""


def _of_order(node: Any) -> str | None:
    """Return a reason if an aggregate has an order or a limit that Spark does not allow there."""
    function = node.this if isinstance(node, exp.WithinGroup) else node.parent
    while isinstance(function, exp.Order | exp.Limit | exp.Distinct | exp.HavingMax):
        function = function.parent
    if not isinstance(function, exp.Func) or (
        (isinstance(node, exp.WithinGroup) and isinstance(function, _ORDERED))
        or (isinstance(node, exp.Order) and isinstance(function, exp.GroupConcat))
    ):
        return None
    name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    names = {"Limit": "LIMIT", "HavingMax": "HAVING"}
    clause = names.get(type(node).__name__, "ORDER BY")
    return f"Spark has no {clause} in the aggregate `{name.lower()}`"


def _of_distinct(node: Any) -> str | None:
    select = node.parent
    if not node.args.get("on"):
        return None
    if not isinstance(select, exp.Select):
        return "DISTINCT ON is in an aggregate"
    if any(select.args.get(part) for part in ("limit", "offset", "qualify")):
        return "DISTINCT ON has a LIMIT or QUALIFY: put the query without it into a CTE"
    keys = [*node.args["on"].expressions, *_ordered(select)]
    if any(key.is_int and not _projected(select, key) for key in keys):
        return "DISTINCT ON is ordered by a position in `*`"
    return None


def _of_quantifier(node: Any) -> str | None:
    array = node.this.unnest()
    if isinstance(node.parent, exp.Like | exp.ILike):
        is_list = isinstance(array, exp.Tuple | exp.Literal)
        return None if is_list else "Spark has no LIKE ANY or ALL of an array"
    if not isinstance(array, exp.Query):
        return None
    equal = exp.EQ if isinstance(node, exp.Any) else exp.NEQ
    is_in = isinstance(node.parent, equal) and node.arg_key == "expression"
    return None if is_in else "Spark has no ANY or ALL of a subquery"


def _of_window(node: Any) -> str | None:
    has_groups = str(node.args.get("kind") or "").upper() == "GROUPS"
    has_more = has_groups or node.args.get("exclude")
    return "Spark's windows have no GROUPS or EXCLUDE" if has_more else None


def _of_star(node: Any) -> str | None:
    extra = next((k for k in ("rename", "replace") if node.args.get(k)), None)
    return f"Spark has no * {extra.upper()}" if extra else None


def _of_field(node: Any) -> str | None:
    field = node.name.upper()
    return None if field in FIELDS else f"Spark's EXTRACT has no {field or node.this.sql().upper()}"


_TRUNCATED = frozenset(
    """
    YEAR YYYY YY QUARTER MONTH MON MM WEEK ISOWEEK DAY DD HOUR MINUTE SECOND MILLISECOND MICROSECOND
    """.split()
)
"""The units of Spark's DATE_TRUNC, which returns NULL for others, and ISOWEEK, its WEEK."""


def _of_truncation(node: Any) -> str | None:
    unit = node.args.get("unit")
    is_known = not isinstance(unit, exp.Var | exp.Literal) or unit.name.upper() in _TRUNCATED
    return None if is_known else f"Spark's date_trunc has no {unit.name.upper()}"


_REFUSED: tuple[tuple[Any, Callable[[Any], str | None]], ...] = (
    (exp.Join, _of_join),
    (exp.SetOperation, lambda n: "Spark has no UNION BY NAME" if n.args.get("by_name") else None),
    ((exp.Limit, exp.Fetch), _of_limit),
    ((exp.Order, exp.Limit, exp.HavingMax, exp.WithinGroup), _of_order),
    (exp.Distinct, _of_distinct),
    ((exp.Any, exp.All), _of_quantifier),
    (exp.WindowSpec, _of_window),
    ((exp.TimestampTrunc, exp.DateTrunc), _of_truncation),
    (exp.Star, _of_star),
    (exp.Slice, lambda _: "Spark has no slices: [from:to]"),
    (exp.Comprehension, lambda _: "Spark has no list comprehensions"),
    (exp.SimilarTo, lambda _: "Spark has no SIMILAR TO"),
    (
        exp.Array,
        lambda n: (
            "Spark has no ARRAY of a subquery"
            if any(isinstance(e, exp.Select | exp.SetOperation) for e in n.expressions)
            else None
        ),
    ),
)


def unknown_field(tree: exp.Query) -> str | None:
    """Return the reason why a rewritten query cannot be run if it extracts what Spark cannot."""
    return next(filter(None, map(_of_field, tree.find_all(exp.Extract))), None)


# ------------------------------------------------------------------------------------- expressions


def call(name: str, *args: Any) -> Any:
    """Return a call that sqlglot writes as it is."""
    return exp.Anonymous(this=name, expressions=[*args])


def _plus(node: Any, value: Any, number: int) -> Any:
    """Return a value plus a number, in parentheses where it replaces a part of an expression."""
    kind = exp.Add if number > 0 else exp.Sub
    total = kind(this=value, expression=exp.Literal.number(abs(number)))
    stands_alone = isinstance(node.parent, exp.Alias | exp.Select)
    return total if stands_alone else exp.Paren(this=total)


def _of_sunday(node: Any, dialect: str) -> Any:
    if dialect == "mysql":
        return node
    return _plus(node, call("DAYOFWEEK", node.this), -1) if dialect in _FROM_SUNDAY else None


def _of_monday(node: Any, _: str) -> Any:
    return _plus(node, call("WEEKDAY", node.this), 1)


def _same(node: Any, _: str) -> Any:
    return node


def _year_of_week(node: Any, _: str) -> Any:
    return exp.Extract(this=exp.var("YEAROFWEEK"), expression=node.this)


def _field(node: Any, field: str, of: Any, dialect: str) -> Any:
    """Return a field of a time, or None if Spark's EXTRACT has the same one."""
    if field in _ISO_DAYS.get(dialect, ()):
        return _plus(node, call("WEEKDAY", of), 1)
    if dialect in _FROM_SUNDAY and field in _SUNDAY_FIELDS:
        return _plus(node, call("DAYOFWEEK", of), -1)
    if field in ("DOY", "DAYOFYEAR", "DAY_OF_YEAR"):
        return call("DAYOFYEAR", of)
    if field in _ISO_YEARS:
        return exp.Extract(this=exp.var("YEAROFWEEK"), expression=of)
    if field in ("WEEKISO", "WEEK_ISO", "ISOWEEK"):
        return call("WEEKOFYEAR", of)
    if field == "SECOND" and dialect in _WHOLE_SECONDS:
        return call("SECOND", of)
    return None


def _extract(node: Any, dialect: str) -> Any:
    return _field(node, node.name.upper(), node.expression, dialect)


def _named(node: Any, dialect: str) -> Any:
    """Rewrite a call of a function that sqlglot does not know."""
    name, args = node.name.lower(), node.expressions
    if name == "all" and len(args) == 1:
        return _quantified(node, args[0], "FORALL")
    if dialect != "duckdb":
        return None
    if name == "weekday" and len(args) == 1:
        return _plus(node, call("DAYOFWEEK", args[0]), -1)
    if name in ("date_part", "datepart") and len(args) == 2 and args[0].is_string:
        field = args[0].name.upper()
        other = _field(node, field, args[1], dialect)
        extract = exp.Extract(this=exp.var(field), expression=args[1])
        return other or (node if field in FIELDS else extract)
    return None


def _name_of_part(pattern: str) -> Callable[[Any, str], Any]:
    def rule(node: Any, dialect: str) -> Any:
        if dialect == "snowflake":
            return node  # abbreviated, as in Spark
        if dialect not in ("duckdb", "mysql"):
            return None
        return call("DATE_FORMAT", node.this, exp.Literal.string(pattern))

    return rule


def _week(node: Any, dialect: str) -> Any:
    has_iso_weeks = dialect in ("duckdb", "snowflake", *PRESTO) and not node.args.get("mode")
    return call("WEEKOFYEAR", node.this) if has_iso_weeks else None


def _difference(node: Any, dialect: str) -> Any:
    """Return the number of boundaries between two times."""
    end, start = node.this, node.expression
    unit = node.args["unit"].name.upper() if node.args.get("unit") else ""
    if not unit:
        return call("DATEDIFF", end, start)
    if dialect not in _BOUNDARIES:
        return node if dialect in PRESTO and unit in _SAME_LENGTH else None
    if unit == "DAY":
        return call("DATEDIFF", end, start)
    if unit in ("HOUR", "MINUTE", "SECOND"):
        word = exp.Literal.string(unit)
        whole = (call("DATE_TRUNC", word.copy(), side) for side in (start, end))
        return call("TIMESTAMPDIFF", exp.var(unit), *whole)
    if unit in ("ISOWEEK", "MONDAY", "SUNDAY") and dialect == "bigquery":
        if unit == "SUNDAY":  # weeks begin one day earlier than in TRUNC
            end, start = (call("DATE_ADD", d, exp.Literal.number(1)) for d in (end, start))
        mondays = [call("TRUNC", d, exp.Literal.string("WEEK")) for d in (end, start)]
        return exp.Paren(
            this=exp.IntDiv(this=call("DATEDIFF", *mondays), expression=exp.Literal.number(7))
        )
    parts = {"YEAR": 1, "QUARTER": 4, "MONTH": 12}
    if unit not in parts:
        return None
    years: Any = exp.Sub(this=call("YEAR", end), expression=call("YEAR", start))
    if unit != "YEAR":
        years = exp.Mul(this=exp.Paren(this=years), expression=exp.Literal.number(parts[unit]))
        years = exp.Add(this=years, expression=call(unit, end.copy()))
        years = exp.Sub(this=years, expression=call(unit, start.copy()))
    return exp.Paren(this=years)


def _truncation(node: Any, _: str) -> Any:
    unit = node.args.get("unit")
    if isinstance(unit, exp.Var | exp.Literal) and unit.name.upper() == "ISOWEEK":
        unit.set("this", "WEEK")
    return None


def _complete(node: Any, dialect: str) -> Any:
    unit = node.args["unit"].name.upper() if node.args.get("unit") else ""
    return node if dialect == "bigquery" and unit in _SAME_LENGTH else None


def _dates_apart(node: Any, dialect: str) -> Any:
    """Return the days between two values that certainly are dates."""
    if dialect not in ("duckdb", "postgres", "redshift", "snowflake"):
        return None
    if not (is_date(node.left) and is_date(node.right)):
        return None
    return call("DATEDIFF", node.left, node.right)


def is_date(node: Any) -> bool:
    """Whether a value certainly is a date."""
    node = node.unnest()
    is_cast = isinstance(node, exp.Cast) and node.is_type("date")
    return is_cast or isinstance(node, exp.CurrentDate)


# ------------------------------------------------------------------------- divisions, casts, concat


def _division(node: Any, dialect: str) -> Any:
    """Divide doubles, as DuckDB does."""
    if dialect == "duckdb" and may_be_decimal(node):
        node.set("this", exp.Cast(this=node.left, to=exp.DataType.build("double")))
    return None


def may_be_decimal(node: exp.Div) -> bool:
    """Whether a division may be one of decimals: certainly not of a double or two integers."""
    if isinstance(node.left.unnest(), exp.Interval):
        return False
    kinds = (number_kind(node.left), number_kind(node.right))
    return "double" not in kinds and kinds != ("integer", "integer")


def number_kind(node: Any) -> str:
    """Return ``integer`` or ``double`` for a number that certainly is one; else an empty text."""
    node = node.unnest()
    if isinstance(node, exp.Literal) and not node.is_string:
        return "integer" if node.is_int else "double" if "e" in node.name.lower() else ""
    if isinstance(node, exp.Cast):
        if node.is_type(*exp.DataType.INTEGER_TYPES):
            return "integer"
        return "double" if node.is_type(*exp.DataType.FLOAT_TYPES) else ""
    if isinstance(node, WHOLE):
        return "integer"
    if isinstance(node, exp.Window | exp.Neg | exp.Filter | exp.Sum):
        return number_kind(node.this)
    if not isinstance(node, ARITHMETIC):
        return ""
    kinds = {number_kind(node.left), number_kind(node.right)}
    if "double" in kinds:
        return "double"
    return ("double" if isinstance(node, exp.Div) else "integer") if kinds == {"integer"} else ""


WHOLE = (exp.Count, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Length)


def _cut(node: Any, dialect: str) -> Any:
    """Cut a text to the length of its type, which Spark's casts ignore."""
    digits = node.to.expressions
    is_varchar = bool(digits) and node.is_type("varchar", "nvarchar")
    if dialect not in _CUTS or not is_varchar or not digits[0].this.is_int:
        return None
    text = node.copy()
    text.set("to", exp.DataType.build("text"))
    cut = call("LEFT", text, digits[0].this.copy())
    cut.meta[BYTES] = dialect == "redshift"
    return cut


def is_text(node: Any) -> bool:
    """Whether a value certainly is a text."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        return bool(node.is_type(*exp.DataType.TEXT_TYPES))
    return bool(node.is_string) or isinstance(node, _TEXTS)


_TEXTS = (exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.DPipe, exp.Replace, exp.Concat)


def _as_texts(node: Any, dialect: str) -> Any:
    """Join the arguments of `concat` as texts, without the NULLs."""
    values = node.expressions
    if not node.args.get("coalesce") or any(isinstance(value, exp.Array) for value in values):
        return None
    node.set("coalesce", False)
    if dialect == "redshift":
        return None  # one NULL makes the text NULL
    node.meta[LISTS] = dialect == "duckdb" and not any(map(is_text, values))
    node.set("expressions", [_without_null(value) for value in values])
    return None


def _without_null(value: Any) -> Any:
    if value.is_string:
        return value
    if not is_text(value):
        value = exp.Cast(this=value, to=exp.DataType.build("text"))
        value.meta[IMPLICIT] = True
    return call("COALESCE", value, exp.Literal.string(""))


# --------------------------------------------------------------------------------------- aggregates


def _percentile(node: Any, _: str) -> Any:
    """Return an exact percentile, with the order or with the value as an argument."""
    is_continuous = isinstance(node, exp.PercentileCont)
    group = node.parent
    if isinstance(group, exp.WithinGroup):
        for key in group.expression.expressions:
            key.set("nulls_first", not key.args.get("desc"))  # as in Spark; NULLs do not count
        return call("PERCENTILE_CONT" if is_continuous else "PERCENTILE_DISC", node.this)
    share = node.args.get("expression") or node.args.get("quantile")
    if share is None:
        return None
    if is_continuous:
        return call("PERCENTILE", node.this, share)
    order = exp.Order(expressions=[exp.Ordered(this=node.this, nulls_first=True)])
    return exp.WithinGroup(this=call("PERCENTILE_DISC", share), expression=order)


def _quantile(node: Any, dialect: str) -> Any:
    return _percentile(node, dialect) if dialect == "duckdb" else None


def _extreme(node: Any, dialect: str) -> Any:
    """Leave out rows without a value, as DuckDB does."""
    if dialect != "duckdb" or node.args.get("count"):
        return None
    is_null = exp.Is(this=node.this.copy(), expression=exp.Null())
    case = exp.Case().when(exp.Not(this=is_null), node.expression)
    node.set("expression", case)
    return node


def _array(node: Any, dialect: str) -> Any:
    """Return the array of a group with its NULLs, which `collect_list` leaves out."""
    if isinstance(node.parent, exp.IgnoreNulls):
        node.parent.replace(node)
        return node
    if dialect not in _WITH_NULLS:
        return None
    distinct = node.this if isinstance(node.this, exp.Distinct) else None
    value = distinct.expressions[0] if distinct else node.this
    held = call("STRUCT", exp.alias_(value.copy(), "value"))
    value.replace(held)
    whole = node
    while isinstance(whole.parent, exp.Filter | exp.Window) and whole.arg_key == "this":
        whole = whole.parent
    name = exp.to_identifier("element")
    body = exp.Lambda(this=exp.column("value", table="element"), expressions=[name])
    place = exp.Null()
    _wrap(whole, call("TRANSFORM", place, body), place)
    return node


def _wrap(node: Any, wrapper: Any, place: Any) -> None:
    """Put a wrapper around a node, which stays in the tree: its other parts are rewritten later."""
    node.replace(wrapper)
    place.replace(node)


# --------------------------------------------------------------------------------- texts and arrays


def _any(node: Any, _: str) -> Any:
    return _quantified(node, node.this.unnest(), "EXISTS")


def _all(node: Any, _: str) -> Any:
    return _quantified(node, node.this.unnest(), "FORALL")


def _quantified(node: Any, array: Any, name: str) -> Any:
    """Compare with each element, under a name that the other side does not have."""
    comparison = node.parent
    if not isinstance(comparison, exp.Binary) or isinstance(comparison, exp.Like | exp.ILike):
        return None
    other = comparison.right if comparison.left is node else comparison.left
    place = exp.Null()
    if isinstance(array, exp.Query):
        within: Any = exp.In(this=place, query=exp.Subquery(this=array))
        comparison.replace(within if name == "EXISTS" else exp.Not(this=within))
        place.replace(other)
        return node
    used = {identifier.name.lower() for identifier in other.find_all(exp.Identifier)}
    element = next(n for n in ("element", "element_1", "element_2", "element_3") if n not in used)
    node.replace(exp.column(element))
    body = exp.Lambda(this=place, expressions=[exp.to_identifier(element)])
    _wrap(comparison, call(name, array, body), place)
    return node


def _element(node: Any, dialect: str) -> Any:
    """Count from the end, as DuckDB does with negative positions, or from 0, as BigQuery may."""
    index = node.expressions[0]
    if dialect == "bigquery" and node.args.get("offset") == 0 and integer(index) is None:
        position = exp.Add(
            this=exp.paren(index.copy(), copy=False), expression=exp.Literal.number(1)
        )
        return call(
            "TRY_ELEMENT_AT" if node.args.get("safe") else "ELEMENT_AT", node.this, position
        )
    if dialect != "duckdb" or not (isinstance(index, exp.Neg) and index.this.is_int):
        return None
    # sqlglot has subtracted 1, because Spark's brackets begin at 0.
    from_end = exp.Neg(this=exp.Literal.number(int(index.this.name) - 1))
    return call("TRY_ELEMENT_AT", node.this, from_end)


def _end(node: Any, dialect: str) -> Any:
    """Return a text without as many first or last characters as a negative length says."""
    length = node.expression
    if dialect not in ("duckdb", "postgres"):
        return None
    if not (isinstance(length, exp.Neg) and length.this.is_int):
        return None
    count = int(length.this.name)
    if isinstance(node, exp.Right):
        return call("SUBSTRING", node.this, exp.Literal.number(count + 1))
    rest = exp.Sub(this=call("LENGTH", node.this.copy()), expression=exp.Literal.number(count))
    shown = call("GREATEST", rest, exp.Literal.number(0))
    return call("SUBSTRING", node.this, exp.Literal.number(1), shown)


def _substring(node: Any, dialect: str) -> Any:
    """Return the part of a text from a position before its first character."""
    start, length = integer(node.args.get("start")), node.args.get("length")
    if start is None or start >= 1:
        return None
    if dialect not in ("postgres", "redshift", *TSQL) and (dialect, start) != (
        "duckdb",
        0,
    ):
        return None
    if length is None:
        return call("SUBSTRING", node.this, exp.Literal.number(1))
    count = integer(length)
    if count is None:
        return None
    shown = exp.Literal.number(max(start + count - 1, 0))
    return call("SUBSTRING", node.this, exp.Literal.number(1), shown)


def integer(node: Any) -> int | None:
    """Return the value of an integer in a query, or None."""
    if isinstance(node, exp.Neg) and node.this.is_int and not node.this.is_string:
        return -int(node.this.name)
    is_integer = isinstance(node, exp.Literal) and not node.is_string and node.is_int
    return int(node.name) if is_integer else None


def _like(node: Any, dialect: str) -> Any:
    """Escape the backslashes of a pattern if the dialect's LIKE has no escape character."""
    pattern = node.expression
    if dialect not in WITHOUT_ESCAPE or isinstance(node.parent, exp.Escape):
        return None
    if pattern.is_string and "\\" in pattern.name:
        pattern.replace(exp.Literal.string(pattern.name.replace("\\", "\\\\")))
    return node


def _matches(node: Any, _: str) -> Any:
    """Ignore case in a regular expression."""
    pattern = node.expression
    prefix = exp.Literal.string("(?i)")
    if pattern.is_string:
        return exp.RegexpLike(this=node.this, expression=exp.Literal.string(f"(?i){pattern.name}"))
    return exp.RegexpLike(this=node.this, expression=call("CONCAT", prefix, pattern))


def _logarithm(node: Any, dialect: str) -> Any:
    """Return a logarithm by a function that is exact for powers of its base."""
    if node.expression is None:
        return call("LOG10", node.this) if dialect in _LOG_10 else None
    name = {10: "LOG10", 2: "LOG2"}.get(integer(node.this) or 0)
    return call(name, node.expression) if name else None


# -------------------------------------------------------------------------------------- DISTINCT ON


def _select(node: Any, _: str) -> Any:
    """Keep the first row of each key: number the rows, then drop the number."""
    distinct = node.args.get("distinct")
    if distinct is None or not distinct.args.get("on"):
        return None
    keys = [_resolved(node, key) for key in distinct.args["on"].expressions]
    order: Any = node.args.get("order")
    if order is None:
        order = exp.Order(expressions=[exp.Ordered(this=key.copy()) for key in keys])
    else:
        for ordered in order.expressions:
            ordered.set("this", _resolved(node, ordered.this))
        order.pop()
    node.set("distinct", None)
    name = exp.to_identifier("_row_number")
    number = exp.Window(this=exp.RowNumber(), partition_by=keys, order=order)
    node.append("expressions", exp.Alias(this=number, alias=name))
    outer = exp.Select(expressions=[exp.Star(except_=[exp.to_identifier("_row_number")])])
    for part in ("with_", "with"):
        if node.args.get(part):
            outer.set(part, node.args[part].pop())
    is_first = exp.EQ(this=exp.column("_row_number"), expression=exp.Literal.number(1))
    outer.set("where", exp.Where(this=is_first))
    inner = exp.Subquery(this=node.copy(), alias=exp.TableAlias(this=exp.to_identifier("_t")))
    outer.set("from_", exp.From(this=inner))
    return outer


def _ordered(select: Any) -> list[Any]:
    order = select.args.get("order")
    return [ordered.this for ordered in order.expressions] if order else []


def _projected(select: Any, key: Any) -> Any:
    """Return the expression of the SELECT list that a position or an alias means, or None."""
    shown = select.expressions
    if key.is_int:
        before = shown[: int(key.name)]
        is_certain = len(before) == int(key.name) and not any(e.is_star for e in before)
        return before[-1].unalias() if is_certain else None
    if isinstance(key, exp.Column) and not key.table:
        aliases = {e.alias.lower(): e.this for e in shown if isinstance(e, exp.Alias)}
        return aliases.get(key.name.lower())
    return None


def _resolved(select: Any, key: Any) -> Any:
    """Return the expression of a key of DISTINCT ON or ORDER BY, over the columns of tables."""
    projected = _projected(select, key)
    return (key if projected is None else projected).copy()


_RULES: Mapping[type[Any], Callable[[Any, str], Any]] = {
    exp.Select: _select,
    exp.DayOfWeek: _of_sunday,
    exp.DayOfWeekIso: _of_monday,
    exp.Extract: _extract,
    exp.Anonymous: _named,
    exp.Dayname: _name_of_part("EEEE"),
    exp.Monthname: _name_of_part("MMMM"),
    exp.Week: _week,
    exp.WeekOfYear: _week,
    exp.DateDiff: _difference,
    exp.TsOrDsDiff: _difference,
    exp.DatetimeDiff: _difference,
    exp.TimestampDiff: _complete,
    exp.DateTrunc: _truncation,
    exp.TimestampTrunc: _truncation,
    exp.DayOfYear: _same,
    exp.DayOfMonth: _same,
    exp.YearOfWeek: _year_of_week,
    exp.Sub: _dates_apart,
    exp.Div: _division,
    exp.Cast: _cut,
    exp.TryCast: _cut,
    exp.Concat: _as_texts,
    exp.PercentileCont: _percentile,
    exp.PercentileDisc: _percentile,
    exp.Quantile: _quantile,
    exp.ArgMax: _extreme,
    exp.ArgMin: _extreme,
    exp.ArrayAgg: _array,
    exp.Any: _any,
    exp.All: _all,
    exp.Bracket: _element,
    exp.Left: _end,
    exp.Right: _end,
    exp.Substring: _substring,
    exp.Like: _like,
    exp.ILike: _like,
    exp.RegexpILike: _matches,
    exp.Log: _logarithm,
}
