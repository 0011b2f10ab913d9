"""Random spellings of types, literals, names and operators, and what Spark and we make of each.

Where BuildIDs are equal, so are types and rows; and a type that is known is Spark's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conftest import compiled

from persist_assets.storage.types import type_of_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RAW = """CREATE TABLE t (s STRING, k INT, `a``b` INT, `É` INT, b BIGINT, f DOUBLE, dec DECIMAL(5,2),
  d DATE, ts TIMESTAMP, p BOOLEAN, st STRUCT<x: INT, `y z`: STRING>, m MAP<STRING, INT>,
  arr ARRAY<INT>) USING parquet LOCATION 't';
"""
ROWS = """SELECT * FROM VALUES
  ('a1', 7, 1, 2, 10L, 0.5D, CAST(1.1 AS DECIMAL(5,2)), DATE '2024-02-29',
   TIMESTAMP '2024-03-31 01:30:00', true, named_struct('x', 1, 'y z', 'q'), map('x', 1), array(1, 2)),
  ('2024-01-02', -3, 3, 4, 11L, -0.0D, -2.25BD, DATE '1999-12-31', TIMESTAMP '1999-12-31 23:59:59',
   false, NULL, map('X', 2), array()),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
AS t(s, k, `a``b`, `É`, b, f, dec, d, ts, p, st, m, arr)"""


class Speller:
    """Writes expressions and types; all its decisions are drawn from one generator."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def one_of(self, *choices: Any) -> Any:
        return self.draw.choice(choices)

    def some(self, chance: float) -> bool:
        return self.draw.random() < chance

    def cased(self, word: str) -> str:
        return self.one_of(word, word, word.lower(), word.upper(), word.title())

    def blank(self) -> str:
        return self.one_of(" ", " ", " ", "  ", "\n", "\t", "/* c */", " -- c\n")

    def gap(self) -> str:
        return "" if self.some(0.8) else self.blank()

    # ------------------------------------------------------------------------------- types

    def type(self, depth: int = 2) -> str:
        chance = self.draw.random()
        if depth and chance < 0.12:
            inner = self.type(depth - 1)
            return f"{self.cased('array')}{self.gap()}<{self.gap()}{inner}{self.gap()}>"
        if depth and chance < 0.18:
            key, value = self.type(0), self.type(depth - 1)
            return f"{self.cased('map')}<{key},{self.gap()}{value}>"
        if depth and chance < 0.3:
            return self.struct(depth - 1)
        if chance < 0.45:
            sizes = self.one_of("", "", "(5)", "(5,2)", "( 5 , 2 )", "(05,2)", "(38)", "(2,5)", "(5,-2)", "()")  # fmt: skip
            return self.cased(self.one_of("decimal", "dec", "numeric")) + self.gap() + sizes
        if chance < 0.55:
            word = self.cased(self.one_of("char", "character", "varchar", "string"))
            return word + self.one_of("", "(3)", "(3)", " (3)", "(03)", "(0)")
        if chance < 0.7:
            zone = self.one_of(
                *("without time zone", "with local time zone", "with time zone", "without", ""),
            )
            words = (self.one_of("timestamp", "timestamp", "time", "date"), *zone.split())
            size = self.one_of("", "", "", "(6)", "(3)", "(0)", "(9)")
            head = self.cased(words[0]) + self.gap() + size
            return head + "".join(self.blank() + self.cased(w) for w in words[1:])
        if chance < 0.82:
            units = ("year", "month", "day", "hour", "minute", "second", "week", "days")
            to = f"{self.blank()}{self.cased('to')}{self.blank()}{self.cased(self.one_of(*units))}"
            first = self.blank() + self.cased(self.one_of(*units))
            text = self.cased("interval")
            return text + (first + (to if self.some(0.6) else "") if self.some(0.9) else "")
        return self.cased(
            self.one_of(
                *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long"),
                *("bigint", "float", "real", "double", "date", "timestamp", "timestamp_ltz"),
                *("timestamp_ntz", "binary", "void", "variant", "string", "`int`", "bool"),
                *("text", "double precision", "int(3)", "datetime", "null", "object", "time"),
            )
        )

    def struct(self, depth: int) -> str:
        fields: list[str] = []
        for _ in range(self.one_of(0, 1, 1, 2, 2)):
            name = self.one_of("a", "A", "`a`", "b", "`b c`", "`a``b`", "date", "int", "É", "1a")
            said = self.one_of("", "", "", " NOT NULL", " COMMENT 'c'", " NOT NULL COMMENT 'x, y'")
            between = self.one_of(":", ": ", " : ", " ")
            fields.append(name + between + self.type(depth) + said)
        return f"{self.cased('struct')}{self.gap()}<{(',' + self.gap()).join(fields)}>"

    # ---------------------------------------------------------------------------- literals

    def number(self) -> str:
        whole = self.one_of("0", "1", "01", "1", "10", "127", "128", "32768", "2147483648", "00")
        whole = self.one_of(whole, whole, "9223372036854775808", "1_0", "")
        fraction = self.one_of("", "", "", ".", ".0", ".5", ".50", ".10")
        exponent = self.one_of("", "", "", "", "e0", "E0", "e1", "E+1", "e-1", "e01", "e")
        suffix = self.one_of("", "", "", "", *"LlSsYyDdFf", "BD", "bd", "Bd", "LL", "x")
        sign = self.one_of("", "", "", "-", "- ", "--\n", "-(", "+")
        return sign + whole + fraction + exponent + suffix + (")" if sign == "-(" else "")

    def hexadecimal(self) -> str:
        digits = self.one_of("", "4", "41", "041", "4a", "4A", "414", "4 1", "G1", "00")
        return self.one_of(f"X'{digits}'", f"x'{digits}'", f'X"{digits}"', f"X '{digits}'", f"0x{digits}", f"unhex('{digits}')")  # fmt: skip

    def string(self) -> str:
        return (
            self.blank()
            .join(self.piece() for _ in range(self.one_of(1, 1, 1, 1, 2, 2, 3)))
            .replace("\n'", self.one_of("\n'", "'"))
        )

    def piece(self) -> str:
        parts = (
            *("a", "a", "A", "b", "n", "é", " ", "%", "_", "0", "41"),
            *("\\n", "\\t", "\\\\", "\\'", '\\"', "\\a", "\\%", "\\_", "\\0", "\\101", "\\x41"),
            *("\\u0041", "\\U00000041", "\\u41", "\\Z", "\\b", "\n", "\\", "${x}", "--", "/*", "`"),
        )
        quote = self.one_of("'", "'", "'", '"')
        other = '"' if quote == "'" else "'"
        count = self.one_of(0, 1, 1, 1, 2, 2, 3)
        inside = "".join(self.one_of(*parts, other, quote * 2) for _ in range(count))
        raw = self.one_of("", "", "", "", "r", "R")
        return raw + quote + inside + quote

    def moment(self) -> str:
        text = self.one_of(
            *("2024-01-02", "2024-1-2", "2024-01", "2024", "2024-01-02 ", " 2024-01-02"),
            *("2024-01-02 00:00:00", "2024-01-02T00:00", "2024-01-02 10:30", "2024-01-02 10:30:00.0"),
            *("2024-01-02 10:30:00Z", "2024-01-02 10:30:00+00:00", "2024-01-02 10:30:00 UTC"),
            *("2024-01-02 10:30:00 Europe/Berlin", "2024-03-31 02:30:00", "+2024-01-02", "10:30:00"),
            *("10:30", "10:30:00.10", "10:30:00.1", "2024-02-30", "02024-01-02", "2024-01-02 24:00:00"),
        )  # fmt: skip
        kind = self.one_of("date", "date", "timestamp", "timestamp", "timestamp_ntz", "timestamp_ltz", "time")  # fmt: skip
        quote = self.one_of("'", "'", "'", '"')
        literal = quote + text + quote
        if self.some(0.1):
            literal = f"'{text[:4]}'{self.blank()}'{text[4:]}'"
        return self.one_of(
            self.cased(kind) + self.one_of(" ", "", self.blank()) + literal,
            self.cased(kind) + self.one_of(" ", "", self.blank()) + literal,
            f"{kind}({literal})",
            f"{literal}::{kind}",
            f"CAST({literal} AS {kind})",
            f"to_{kind.replace('_ltz', '')}({literal})",
        )

    def interval(self) -> str:
        units = (
            *("year", "years", "month", "day", "days", "week", "hour", "hours", "minute", "second"),
            *("seconds", "millisecond", "microseconds"),
        )
        unit = self.cased(self.one_of(*units))
        amount = self.one_of("1", "'1'", "-1", "'-1'", "-'1'", "'+1'", "01", "1.5", "'1.5'", '"1"', "(1)", "1L", "k", "24", "'24'", "12", "60", "1 + 1", "7")  # fmt: skip
        chance = self.draw.random()
        word = self.cased("interval")
        if chance < 0.4:
            made = f"{word}{self.blank()}{amount}{self.blank()}{unit}"
        elif chance < 0.5:
            made = f"{word} 1 {unit} {self.one_of('2', '-2', chr(39) + '2' + chr(39))} {self.one_of(*units)}"
        elif chance < 0.65:
            text = self.one_of("1 {}", "-1 {}", "1 {} 2 hours", "+1 {}", " 1  {} ", "1{}", "1.5 {}", "interval 1 {}")  # fmt: skip
            made = f"{self.one_of(word + ' ', word + ' ', '')}'{text.format(unit)}'"
            made += "" if made[0] not in "'" else "::interval"
        elif chance < 0.95:
            texts = ("1-2", "-1-2", "+1-2", "1 2", "1 02:03", "1 02:03:04", "1 2:3:4.5", "02:03", "2:3:4", "03:04", "3:4.50", "-1 02:03:04", "01-02")  # fmt: skip
            sign = self.one_of("", "", "", "-", "+")
            text, to = self.one_of(*texts), self.one_of(*units)
            made = f"{word} {sign}'{text}' {unit} {self.cased('to')} {self.cased(to)}"
        else:
            made = f"make_interval(0, 0, 0, {amount})"
        return self.one_of("", "", "", "", "-") + made

    # ------------------------------------------------------------------- names and operators

    def name(self) -> str:
        return self.one_of(
            *("k", "K", "`k`", "`K`", "t.k", "T.K", "`t`.k", "`t`.`K`", "t . k", "(k)", "(t).k"),
            *("`a``b`", "`A``B`", "`ab`", "`a``b` ", "t.`a``b`", "`É`", "`é`", "é", "É", "t.É"),
            *("st.x", "st.X", "st.`x`", "t.st.x", "st['x']", "st['X']", "st.`y z`", "`st`.`Y Z`"),
            *("(st).x", "(t.st).X", "`st.x`", "m.x", "m.X", "m['x']", "m['X']", "m.`x`", '"k"'),
            *("element_at(m, 'x')", "arr[0]", "arr[0L]", "arr[00]", "arr[1 - 1]", "arr.x", "get(arr, 0)"),
            *("\u212a", "`\u212a`", "`e\u0301`", "d", "ts", "s", "p", "f", "dec", "b", "date", "t.*.k"),
        )  # fmt: skip

    def operand(self) -> str:
        return self.one_of("k", "k", "s", "p", "f", "dec", "b", "1", "2", "'1'", "NULL", "1.0", "1L", "d", "true", "'a%'")  # fmt: skip

    def operation(self) -> str:
        x, y, z = self.operand(), self.operand(), self.operand()
        comparison = self.one_of(
            *("=", "==", "<>", "!=", "<=>", "<", "<=", ">", ">=", "IS DISTINCT FROM"),
            "IS NOT DISTINCT FROM",
        )
        arithmetic = self.one_of(
            *("+", "-", "*", "/", "%", "DIV", "div", "||", "&", "|", "^", "<<", ">>", ">>>"),
        )
        forms = (
            f"{x} {comparison} {y}",
            f"{self.one_of('NOT', 'not', '!', 'NOT NOT')} {x} {comparison} {y}",
            f"NOT ({x} {comparison} {y})",
            f"{x}{arithmetic}{y}" if not arithmetic.isalpha() else f"{x} {arithmetic} {y}",
            f"{x} {arithmetic} {y} {arithmetic} {z}",
            f"{self.one_of('mod', 'pmod', 'try_add', 'try_divide', 'concat', 'nvl', 'ifnull', 'nullif', 'power', 'shiftleft', 'shiftright', 'least', 'greatest', 'equal_null')}({x}, {y})",
            f"{x} {self.one_of('AND', 'and', 'OR', '&&')} {y}",
            f"{x} {self.one_of('', 'NOT ')}BETWEEN {y} AND {z}",
            f"{x} {self.one_of('', 'not ', 'NOT ')}IN ({y}, {z})",
            f"{x} IN ({y})",
            f"{x} IS {self.one_of('', 'NOT ')}{self.one_of('NULL', 'TRUE', 'FALSE', 'UNKNOWN')}",
            f"{self.one_of('isnull', 'isnotnull')}({x})",
            f"s {self.one_of('', 'NOT ')}{self.one_of('LIKE', 'ILIKE', 'RLIKE', 'REGEXP')} {self.one_of(chr(39) + 'a%' + chr(39), 'r' + chr(39) + 'a.' + chr(39), chr(34) + 'a%' + chr(34))}{self.one_of('', '', ' ESCAPE ' + chr(39) + '!' + chr(39))}",
            f"s LIKE {self.one_of('ANY', 'SOME', 'ALL')} ('a%', 'b%')",
            f"{self.one_of('like', 'rlike', 'regexp', 'regexp_like', 'ilike', 'contains', 'startswith')}(s, 'a%')",
            f"{self.one_of('-', '- -', '+', '~', '- (', '-(-')}{x}",
            self.one_of("substring(s, 2)", "substr(s, 2)", "substring(s FROM 2)", "substr(s from 2 for 1)", "substring(s, 2, 1)", "substring(s, 0)", "substring(s, 1)", "left(s, 1)", "right(s, 1)", "substr(s, -1)"),
            self.one_of("trim(s)", "btrim(s)", "trim(BOTH FROM s)", "trim(FROM s)", "trim('a' FROM s)", "trim(BOTH 'a' FROM s)", "btrim(s, 'a')", "ltrim(s)", "trim(LEADING FROM s)", "trim(LEADING 'a' FROM s)", "ltrim('a', s)", "ltrim(s, 'a')", "rtrim(s)", "trim(TRAILING 'a' FROM s)", "rtrim(s, 'a')"),
            self.one_of("position('1' IN s)", "position('1', s)", "instr(s, '1')", "locate('1', s)", "charindex('1', s)", "position('1', s, 1)", "locate('1', s, 2)"),
            self.one_of("extract(DAY FROM d)", "EXTRACT(day FROM d)", "day(d)", "dayofmonth(d)", "date_part('day', d)", "date_part('D', d)", "extract(DOW FROM d)", "dayofweek(d)", "weekday(d)", "extract(DAYOFWEEK_ISO FROM d)", "extract(YEAR FROM ts)", "year(ts)", "extract(SECOND FROM ts)", "second(ts)", "datepart('year', d)", "extract(MON FROM d)", "month(d)", "extract(week from d)", "weekofyear(d)"),
            self.one_of("overlay(s PLACING 'x' FROM 1)", "overlay(s, 'x', 1)", "overlay(s PLACING 'x' FROM 1 FOR 2)", "overlay(s, 'x', 1, 2)", "overlay(s, 'x', 1, -1)"),
            self.one_of("date_add(d, 1)", "dateadd(d, 1)", "d + 1", "dateadd(DAY, 1, d)", "date_add(DAY, 1, d)", "timestampadd(DAY, 1, d)", "d + INTERVAL 1 DAY", "d + INTERVAL '1' DAY", "date_sub(d, -1)", "dateadd('day', 1, d)", "datediff(d, DATE '2024-01-01')", "date_diff(d, DATE '2024-01-01')", "datediff(DAY, DATE '2024-01-01', d)", "d - DATE '2024-01-01'", "timestampdiff(DAY, DATE '2024-01-01', d)", "add_months(d, 1)", "d + INTERVAL 1 MONTH"),
            self.one_of("CASE k WHEN 7 THEN 1 END", "CASE WHEN k = 7 THEN 1 END", "CASE WHEN k = 7 THEN 1 ELSE NULL END", "if(k = 7, 1, NULL)", "IF(k = 7, 1, null)", "nullif(k, 7)", "iff(k = 7, 1, NULL)", "decode(k, 7, 1)", "case when 7 = k then 1 end", "CASE k WHEN 7 THEN 1 ELSE 1 END", "nvl2(k, 1, 2)"),
            self.one_of("array(1, 2)[0]", "array(1, 2)[1]", "element_at(array(1, 2), 1)", "array(1L, 2)[0]", "ARRAY(1, 2)[0]", "get(array(1, 2), 0)", "try_element_at(array(1, 2), 1)", "map('a', 1)['a']", "map('a', 1).a", "named_struct('a', 1).a", "struct(1 AS a).a", "struct(1).col1", "(1, 2).col1", "named_struct('A', 1).a"),
            self.one_of("struct(k)", "struct(k AS k)", "struct(t.k)", "struct(K)", "named_struct('k', k)", "named_struct('K', k)", "(k, 1)", "struct(k, 1)", "named_struct('k', k, 'col2', 1)", "struct(k, 1 AS col2)", "STRUCT(k AS `k`)", "struct((k))", "struct(k + 0)", "struct(st.x)", "struct(st['x'])", "struct(*)", "named_struct('x', st.x)"),
            self.one_of("transform(arr, x -> x + 1)", "transform(arr, X -> x + 1)", "transform(arr, y -> y + 1)", "transform(arr, k -> k + 1)", "transform(arr, (x, i) -> x + i)", "transform(arr, (i, x) -> x + i)", "filter(arr, x -> x > 1)", "exists(arr, x -> x > 1)", "any_match(arr, x -> x > 1)", "forall(arr, x -> x > 1)", "aggregate(arr, 0, (a, x) -> a + x)", "reduce(arr, 0, (a, x) -> a + x)", "transform(arr, x -> k)", "transform(arr, `x` -> `x` + 1)"),
            self.one_of("mask(s)", "mask(s, upperChar => 'Q')", "mask(s, 'Q')", "mask(s, 'X', 'q')", "mask(s, lowerChar => 'q')", "mask(str => s)"),
            self.one_of("ceil(f)", "ceiling(f)", "ceil(f, 0)", "floor(f)", "floor(f, 0)", "round(f)", "round(f, 0)", "bround(f)", "round(dec)", "round(dec, 0)", "ceil(dec)", "ceil(dec, 1)", "round(dec, 1)", "int(f)", "bigint(f)"),
        )  # fmt: skip
        return self.one_of(*forms)

    # ------------------------------------------------------------------------------ together

    def cast(self) -> str:
        operand = self.one_of("NULL", "NULL", "'1'", "k", "s", "d", "1", "ts", "'2024-01-02'", "f", "dec", "b")  # fmt: skip
        kind = self.type()
        word = self.cased(self.one_of("cast", "cast", "try_cast"))
        return self.one_of(
            f"{word}({operand} {self.cased('as')} {kind})",
            f"{word}{self.gap()}({operand}{self.blank()}AS{self.blank()}{kind}{self.gap()})",
            f"{operand}{self.gap()}::{self.gap()}{kind}",
            f"({operand})::{kind}",
            f"{kind}({operand})",
            f"-{operand}::{kind}" if operand != "NULL" else f"{operand}::{kind}",
            f"{operand}::{kind}::string",
            f"{kind} {operand}",
        )

    def atom(self) -> str:
        make: Callable[[], str] = self.draw.choices(
            (
                self.number, self.string, self.cast, self.interval, self.moment,
                self.hexadecimal, self.name, self.operation,
            ),
            (3, 3, 3, 3, 2, 1, 2, 4),
        )[0]  # fmt: skip
        return make()

    def expression(self) -> str:
        """Return an expression, most often one atom."""
        atom = self.atom()
        chance = self.draw.random()
        if chance < 0.55:
            return atom
        return self.one_of(
            f"({atom})", f"array({atom})", f"coalesce({atom})", f"({atom})::string", f"typeof({atom})",
            f"CASE WHEN true THEN {atom} END", f"struct({atom} AS a)", f"concat({atom}, 'x')",
            f"{atom} = {atom}", f"{atom} + 1", f"1 + {atom}", f"map('a', {atom})['a']",
            f"{atom} IS NULL", f"length({atom})", f"({atom}) IN ({self.atom()})", f"ts + {atom}",
            f"{atom} * dec", f"abs({atom})", f"hex({atom})", f"-{atom}", f"{atom}[0]", f"{atom}::int",
        )  # fmt: skip


def family(draw: random.Random) -> list[str]:
    """Return spellings that are near each other, so that some may mean the same."""
    speller = Speller(draw)
    first = speller.expression()
    found = {first: None}
    for _ in range(30):
        found[varied(draw, draw.choice([*found]))] = None
    return [*found]


_VARIED: Sequence[tuple[str, str]] = (
    ("'", '"'), (" ", "  "), ("1", "01"), ("1", "1L"), ("1", "1.0"), ("1", "1D"), ("'", "r'"), ("\\", "\\\\"),
    ("a", "A"), ("x", "X"), ("k", "`k`"), ("(", " ("), (")", " )"), ("int", "INTEGER"), ("::", " :: "),
    ("day", "days"), ("DAY", "day"), ("-", "- "), ("= ", "== "), ("<>", "!="), ("'a'", "'a' ''"), ("é", "\\u00e9"),
    ("A", "\\u0041"), ("a", "\\141"), ("0", "0.0"), ("1", "(1)"), ("' '", "''"), ("''", "\\'"), ("s", "S"),
    ("timestamp", "timestamp_ltz"), ("decimal", "dec"), ("bigint", "long"), ("AS", "as"), ("NULL", "null"),
    ("1", "1e0"), ("e1", "E1"), ("D", "d"), ("L", "l"), ("BD", ""), ("k", "t.k"), ("`", ""), ("''", "' '"),
    ("second", "SECONDS"), ("' ", "'"), ("2024-01-02", "2024-1-2"), ("(5)", "(5,0)"), ("x", "`x`"), (".", " . "),
)  # fmt: skip


def varied(draw: random.Random, text: str) -> str:
    """Return a text in which one thing is spelled in another way, most often."""
    possible = [(a, b) for pair in _VARIED for a, b in (pair, pair[::-1]) if a and a in text]
    if not possible or draw.random() < 0.1:
        return Speller(draw).expression()
    old, new = draw.choice(possible)
    places = [i for i in range(len(text)) if text.startswith(old, i)]
    at = draw.choice(places)
    return text[:at] + new + text[at + len(old) :]


# ------------------------------------------------------------------------------------- ours


@dataclass(frozen=True, slots=True)
class Meant:
    """What we make of an expression."""

    build_id: str
    type: str | None
    is_whole: bool


def ours(expression: str) -> Meant | None:
    """Return what we make of an expression, or None where we refuse it."""
    made = compiled({"t.sql": RAW, "q.sql": f"CREATE VIEW q AS SELECT {expression}\n AS x FROM t"})
    if made.errors:
        return None
    source = made.by_id["q@sources/q.sql"]
    kind = source.columns[0].type if source.columns else None
    is_whole = any("as a whole" in note for note in source.notes)
    return Meant(source.build_id, kind, is_whole)


# ---------------------------------------------------------------------------------- Spark's


class Asked:
    """What Spark makes of expressions over the rows of `t`.

    Attributes
    ----------
    by_plans
        Whether Spark made one plan of the last two.
    """

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.by_plans = False
        spark.sql(ROWS).coalesce(1).createOrReplaceTempView("t")

    def frame(self, expression: str) -> Any:
        """Return a frame of one column, None where Spark refuses the expression."""
        try:
            frame = self.spark.sql(f"SELECT {expression}\n AS x FROM t")
            return frame if len(frame.columns) == 1 else None
        except Exception:
            return None

    def difference(self, one: Any, other: Any) -> str | None:
        """Return how the columns of two frames differ, or None; "fails" where one has no rows."""
        kinds = [frame.schema[0].dataType.simpleString() for frame in (one, other)]
        if kinds[0] != kinds[1]:
            return f"types {kinds[0]} and {kinds[1]}"
        try:
            plans = [f._jdf.queryExecution().optimizedPlan().canonicalized() for f in (one, other)]
            self.by_plans = plans[0].equals(plans[1])
            if self.by_plans:
                return None
            rows = [[repr(row[0]) for row in frame.collect()] for frame in (one, other)]
        except Exception:
            self.by_plans = False
            return "fails"
        return None if rows[0] == rows[1] else f"rows {rows[0]} and {rows[1]}"


@dataclass(slots=True)
class Searched:
    """What a search has seen.

    Attributes
    ----------
    n_spellings, n_near
        Expressions that Spark and we take, and pairs of them that were near each other.
    n_equal, n_plans, n_failing
        Pairs of one BuildID; those of which Spark makes one plan, and of which it tells no rows.
    wrong
        Pairs of one BuildID that differ, and types that are not Spark's.
    refused
        Expressions that Spark takes and we do not.
    """

    n_spellings: int = 0
    n_near: int = 0
    n_equal: int = 0
    n_plans: int = 0
    n_failing: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def search(question: Asked, seed: int, into: Searched) -> None:
    """Compare the spellings of one family."""
    by_id: dict[str, list[str]] = {}
    frames: dict[str, Any] = {}
    for spelling in family(random.Random(seed)):
        frame = question.frame(spelling)
        if frame is None:
            continue
        mine = ours(spelling)
        if mine is None:
            into.refused.append(spelling)
            continue
        frames[spelling] = frame
        kind = type_of_json(frame.schema[0].dataType.jsonValue())
        if mine.type is not None and mine.type.lower() != kind.lower():
            into.wrong.append(f"seed {seed}: {spelling!r} is {kind}, not {mine.type}")
        by_id.setdefault(mine.build_id, []).append(spelling)
    into.n_spellings += len(frames)
    into.n_near += len(frames) * (len(frames) - 1) // 2
    for first, *others in by_id.values():
        for other in others:
            into.n_equal += 1
            difference = question.difference(frames[first], frames[other])
            into.n_plans += question.by_plans
            if difference == "fails":
                into.n_failing += 1
            elif difference:
                into.wrong.append(f"seed {seed}: {first!r} and {other!r}: {difference}")
