"""Queries of other tools, with the names of our sources, in Spark's SQL.

The text of the author stays where it means the same in Spark; else sqlglot writes the query anew.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokenizer_core import TokenType
from sqlglot.transforms import unnest_to_explode

from persist_assets.compiler.frontends.sql_functions import one_line
from persist_assets.core.dialect import quote, tokenize
from persist_assets.operations.importing.doubts import REGROUPED, doubts
from persist_assets.operations.importing.rewriting import (
    ARITHMETIC,
    PRESTO,
    refusal,
    rewrite,
    unknown_field,
)
from persist_assets.operations.starting import written_name

if TYPE_CHECKING:
    from collections.abc import Callable

SPARKS = ("spark", "databricks")
"""Dialects whose texts are Spark's already."""
_DECIMALS = {"bigquery": (38, 9), "redshift": (18, 0)}
"""The digits of a plain DECIMAL; in other dialects sqlglot knows them, or they are unknown."""

_MODIFIERS = (
    exp.Order,
    exp.Limit,
    exp.Distinct,
    exp.Filter,
    exp.IgnoreNulls,
    exp.RespectNulls,
    exp.Qualify,
)
"""Clauses that the written query must have as often as the tree."""


_GROUPED = (
    exp.BitwiseAnd,
    exp.BitwiseOr,
    exp.BitwiseXor,
    exp.BitwiseLeftShift,
    exp.BitwiseRightShift,
    exp.DPipe,
)
_ONE_LEVEL = ("duckdb", "postgres", "redshift", *PRESTO)
"""Dialects in which these operators have one precedence below that of `+`, as sqlglot reads all."""
_OUTER = "outer"
"""The mark of an array whose rows stay if it is empty."""


class UntranslatableError(Exception):
    """A query cannot be translated to Spark SQL; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """The source that a table refers to.

    Attributes
    ----------
    name, path
        The name and the file of the source.
    called
        The name by which a query calls the table if it gives it no alias.
    """

    name: str
    path: str
    called: str


@dataclass(frozen=True, slots=True)
class Translated:
    """A query in Spark's SQL.

    Attributes
    ----------
    reads
        The names of the sources that it reads.
    notes
        What should be looked at.
    """

    sql: str
    reads: frozenset[str]
    notes: tuple[str, ...] = ()


def check_dialect(dialect: str) -> None:
    """Raise a ValueError if sqlglot does not know a dialect."""
    sqlglot.Dialect.get_or_raise(dialect)


def translate(
    text: str, dialect: str, resolve: Callable[[tuple[str, ...]], Target | None]
) -> Translated:
    """Return a query in Spark's SQL, with the names of our sources.

    Parameters
    ----------
    resolve
        Returns what a table stands for, by the parts of its name; None: the name stays.

    Raises
    ------
    UntranslatableError
        The text is not one query, or says something that Spark's SQL does not have.
    """
    text = text.strip().rstrip(";").rstrip()
    tree = parse_query(text, dialect)
    edits, reads = _rename(tree, resolve)
    edited = text
    for start, end, new in sorted(edits, reverse=True):
        edited = edited[:start] + new + edited[end:]
    if dialect in SPARKS:
        return Translated(edited, frozenset(reads))
    joins = map(_join_refusal, tree.find_all(exp.Join))
    if reason := refusal(tree) or next(filter(None, joins), None):
        raise UntranslatableError(reason)
    for kind in tree.find_all(exp.DataType):
        _say_digits(kind, dialect)
    tree, settled = rewrite(tree, dialect)
    for select in tree.find_all(exp.Select):
        _mark_outer(select)
    for operation in [*tree.find_all(*_GROUPED, *ARITHMETIC)]:
        _group(operation, dialect)
    if reason := unknown_field(tree):
        raise UntranslatableError(reason)
    notes = list(doubts(text, tree, dialect, settled))
    try:
        spark = _written(tree)
        lost = _lost_clause(tree, spark)
    except SqlglotError as error:
        raise UntranslatableError(_first_line(error)) from error
    if lost:
        raise UntranslatableError(f"its {lost} cannot be written in Spark's SQL")
    if _means(edited, spark):
        return Translated(edited, frozenset(reads), tuple(notes))
    return Translated(spark, frozenset(reads), (f"translated from {dialect}", *notes))


def tables_of(text: str, dialect: str) -> list[tuple[str, ...]]:
    """Return the names of the tables that a query reads, in parts, each once.

    Raises
    ------
    UntranslatableError
        The text is not one query.
    """
    names: dict[tuple[str, ...], None] = {}
    for table in parse_query(text, dialect).find_all(exp.Table):
        parts = tuple(part.name for part in table.parts if isinstance(part, exp.Identifier))
        is_cte = len(parts) == 1 and parts[0].lower() in _visible(table)
        if parts and len(parts) == len(table.parts) and not is_cte:
            names[parts] = None
    return [*names]


def translate_condition(text: str, dialect: str) -> Translated:
    """Return a condition on rows in Spark's SQL, in one line and without comments.

    Raises
    ------
    UntranslatableError
        It is none, or Spark's SQL does not have it.
    """
    translated = translate(f"SELECT 1 FROM t WHERE {text}", dialect, lambda _: None)
    condition = re.split(r"\bWHERE\b", translated.sql, maxsplit=1, flags=re.I)[1].strip()
    return replace(translated, sql=one_line(tokenize(condition), condition))


def translate_type(text: str, dialect: str) -> str:
    """Return a type as Spark names it.

    Raises
    ------
    UntranslatableError
        It is none that sqlglot knows.
    """
    try:
        kind = exp.DataType.build(text, dialect=dialect)
        _say_digits(kind, dialect)
        return kind.sql("spark", unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise UntranslatableError(f"unknown type `{text}`") from error


def parse_query(text: str, dialect: str) -> exp.Query:
    """Return the tree of a text with one query.

    Raises
    ------
    UntranslatableError
        It cannot be read, or is something else.
    """
    try:
        trees = [tree for tree in sqlglot.parse(text, read=dialect) if tree is not None]
    except SqlglotError as error:
        raise UntranslatableError(f"not read as {dialect}: {_first_line(error)}") from error
    except RecursionError as error:
        raise UntranslatableError("its query is nested too deeply") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise UntranslatableError("it is not one query")
    return trees[0]


def _first_line(error: Exception) -> str:
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"\x1b\[\d*m", "", line).rstrip(". ")


def _means(text: str, spark: str) -> bool:
    """Whether a text is Spark SQL and means the same as a statement that sqlglot wrote.

    sqlglot reads what only other dialects have as if it were Spark's (`::text`, a comma before
    FROM), but writes none of it.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
        same = _written(tree) == spark
        words, signs = _words_and_signs(text)
        all_words, all_signs = _words_and_signs(spark)
        return same and words <= all_words and signs == all_signs
    except (SqlglotError, RecursionError):
        return False


def _written(tree: exp.Expr) -> str:
    """Return a tree in Spark's SQL.

    Spark has QUALIFY, but sqlglot writes a subquery with additional columns instead, unless the
    clause stands where it does not look: before the keys of ORDER BY.
    """
    tree = tree.copy()
    _explode(tree)
    for select in tree.find_all(exp.Select):
        qualify, order = select.args.get("qualify"), select.args.get("order")
        if qualify is None:
            continue
        select.set("qualify", None)
        if order is None:
            select.set("order", qualify)
        else:
            order.set("this", qualify)
    return tree.sql("spark", pretty=True, unsupported_level=ErrorLevel.RAISE)


def _group(node: Any, dialect: str) -> None:
    """Put operands with an operator of another kind into parentheses."""
    kinds = (*_GROUPED, *ARITHMETIC) if isinstance(node, _GROUPED) else _GROUPED
    for part in ("this", "expression"):
        side = node.args.get(part)
        if isinstance(side, kinds) and type(side) is not type(node):
            paren = exp.Paren(this=side)
            paren.meta[REGROUPED] = dialect not in _ONE_LEVEL
            node.set(part, paren)


def _unnested(join: Any) -> Any:
    """Return the UNNEST that a join joins, or None."""
    joined = join.this.this if isinstance(join.this, exp.Lateral) else join.this
    return joined if isinstance(joined, exp.Unnest) else None


def _join_refusal(join: Any) -> str | None:
    """Return why Spark has no such join of UNNEST, or None."""
    if _unnested(join) is None:
        return None
    on = join.args.get("on")
    is_plain = on is None or (isinstance(on.unnest(), exp.Boolean) and on.unnest().this)
    if not is_plain or join.args.get("using"):
        return "Spark has no JOIN of UNNEST with a condition"
    is_known = str(join.args.get("side") or "").upper() in ("", "LEFT")
    return None if is_known else f"Spark has no {join.args['side'].upper()} JOIN of UNNEST"


def _mark_outer(select: exp.Select) -> None:
    for join in select.args.get("joins") or ():
        array = _unnested(join)
        if array is not None and str(join.args.get("side") or "").upper() == "LEFT":
            for value in array.expressions:
                value.meta[_OUTER] = True


def _explode(tree: exp.Expr) -> None:
    """Turn joins of arrays into LATERAL VIEWs; outer ones keep rows with an empty array.

    Raises
    ------
    UnsupportedError
        A join has no such form.
    """
    for select in [*tree.find_all(exp.Select)]:
        if not any(map(_unnested, select.args.get("joins") or ())):
            continue
        unnest_to_explode(select)
        for lateral in select.args.get("laterals") or ():
            value = lateral.this.this
            values = [value, *value.expressions] if isinstance(value, exp.Anonymous) else [value]
            if any(isinstance(v, exp.Expr) and v.meta.get(_OUTER) for v in values):
                lateral.set("outer", True)


def _lost_clause(tree: exp.Query, spark: str) -> str | None:
    """Return the name of a clause that a tree has more often than the statement written for it."""
    try:
        written = sqlglot.parse_one(spark, read="spark")
    except SqlglotError as error:
        raise UntranslatableError("a part of it cannot be written in Spark's SQL") from error
    for kind in _MODIFIERS:
        if len([*tree.find_all(kind)]) > len([*written.find_all(kind)]):
            return kind.__name__.upper()
    return None


def _words_and_signs(text: str) -> tuple[set[str], Counter[TokenType]]:
    """Return the words of a text, and how often each sign but parentheses stands in it."""
    words: set[str] = set()
    signs = Counter[TokenType]()
    for token in sqlglot.tokenize(text, read="spark"):
        if token.token_type is TokenType.STRING:
            continue
        inside = re.findall(r"\w+", token.text.upper())
        words.update(inside)
        if not inside and token.token_type not in (TokenType.L_PAREN, TokenType.R_PAREN):
            signs[token.token_type] += 1
    return words, signs


def _rename(
    tree: exp.Query, resolve: Callable[[tuple[str, ...]], Target | None]
) -> tuple[list[tuple[int, int, str]], set[str]]:
    """Put the names of sources into a tree; return the same edits of its text, and the names."""
    edits: list[tuple[int, int, str]] = []
    reads: set[str] = set()
    for column in tree.find_all(exp.Column):
        above = [p for p in column.parts[:-1] if isinstance(p, exp.Identifier)]
        if not above or _is_alias(above[0].name.lower(), column):
            continue
        target = resolve(tuple(p.name for p in above))
        if target is not None and (len(above) > 1 or above[0].name != target.called):
            called = written_name(target.called)
            edits.append((*_span(above[0], above[-1]), called))
            for part in ("catalog", "db"):
                column.set(part, None)
            column.set("table", exp.to_identifier(target.called, quoted=called[0] == "`"))
    for table in list(tree.find_all(exp.Table)):
        parts = [p for p in table.parts if isinstance(p, exp.Identifier)]
        names = tuple(p.name for p in parts)
        if len(parts) != len(table.parts) or not parts:
            continue
        if len(names) == 1 and names[0].lower() in _visible(table):
            continue
        target = resolve(names)
        if target is None:
            continue
        reads.add(target.name)
        hidden = target.name.lower() in _visible(table)
        exact = f"{target.name}@{target.path}" if hidden else target.name
        shown = quote(exact) if hidden else written_name(exact)
        alias = "" if table.alias or exact == target.called else written_name(target.called)
        edits.append((*_span(parts[0], parts[-1]), f"{shown} AS {alias}" if alias else shown))
        for part in ("catalog", "db"):
            table.set(part, None)
        table.set("this", exp.to_identifier(exact, quoted=shown[0] == "`"))
        if alias:
            named = exp.to_identifier(target.called, quoted=alias[0] == "`")
            table.set("alias", exp.TableAlias(this=named))
    return edits, reads


def _is_alias(name: str, column: exp.Column) -> bool:
    """Whether a name is the alias or the CTE of a table in the nearest query with such a table."""
    node: Any = column
    while (node := node.parent) is not None:
        if not isinstance(node, exp.Select):
            continue
        from_ = node.args.get("from_")
        joined = [join.this for join in node.args.get("joins") or ()]
        tables = [*([from_.this] if from_ else []), *joined, *(node.args.get("laterals") or ())]
        for table in tables:
            if table.alias.lower() == name:
                return True
            if isinstance(table, exp.Table) and table.name.lower() == name:
                return len(table.parts) == 1 and name in _visible(table)
    return False


def _span(first: exp.Identifier, last: exp.Identifier) -> tuple[int, int]:
    """Return the start and the end of a name in the text."""
    return int(first.meta["start"]), int(last.meta["end"]) + 1


def _visible(table: exp.Table) -> set[str]:
    """Return the names of the common table expressions that a table may mean, in lower case."""
    names: set[str] = set()
    node: Any = table
    while node.parent is not None:
        child, node = node, node.parent
        if isinstance(node, exp.With):
            before = node.expressions[: node.expressions.index(child) + bool(node.recursive)]
            names |= {cte.alias.lower() for cte in before}
        elif isinstance(node, exp.Query) and not isinstance(child, exp.With):
            names |= {cte.alias.lower() for cte in node.ctes}
    return names


def _say_digits(kind: exp.DataType, dialect: str) -> None:
    """Write down the digits that a decimal without any has."""
    if kind.this is not exp.DataType.Type.DECIMAL or kind.expressions:
        return
    if dialect in ("duckdb", "snowflake", *SPARKS):
        return  # sqlglot knows them
    if dialect not in _DECIMALS:
        raise UntranslatableError(
            f"a decimal needs its digits: DECIMAL in {dialect} has any number"
        )
    digits = [exp.DataTypeParam(this=exp.Literal.number(n)) for n in _DECIMALS[dialect]]
    kind.set("expressions", digits)
