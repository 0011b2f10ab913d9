"""Texts in which Spark reads the clock when it casts them to times: ``now``, ``10:30``. Pure.

A constant text is judged by its value. If the value is not known here, the text may be such a one.
Texts in columns of tables are not known, and do not count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Generate,
    Given,
    Lateral,
    Limit,
    Outer,
    Recursive,
    Ref,
    SetOperation,
    Subquery,
    Values,
    Window,
    innermost_first,
    walk,
)
from persist_assets.analysis.equivalences import COMPARISONS
from persist_assets.analysis.functions import SPECIAL_DATETIMES, is_special_datetime_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.types import Types

COMPUTED_TEXT = "now or the like"
"""Stands for a constant text whose value is not known."""


def clock_texts(types: Types, expr: Expr) -> set[str]:
    """Return the possible values of an expression that are texts of times read from the clock."""
    return set() if isinstance(expr, Ref) else _Texts(types, expr).of(expr)


def special_texts(types: Types, block: Block) -> set[str]:
    """Return the texts in a relation that Spark interprets as times read from the clock.

    Spark does so wherever a text is cast to a time, explicitly or not: beside a time, and in
    functions of times.
    """
    texts = _Texts(types, block)
    return set[str]().union(*map(texts.read_in, texts.things))


# --------------------------------------------------------------------------------- constant texts

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_BLANK = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}


def _unescaped(text: str) -> str:
    """Return the value of a literal; the parser leaves the quotes around one with escapes."""
    if "\\" not in text:
        return text
    if text[0] in "'\"" and text[0] == text[-1]:
        text = text[1:-1]

    def one(match: re.Match[str]) -> str:
        short, long, octal, plain = match.groups()
        if plain is not None:
            return _BLANK.get(plain, plain)
        code = int(octal, 8) if octal else int(short or long, 16)
        return chr(code) if code < 0x110000 else " "

    return _ESCAPE.sub(one, text)


Known = tuple[str, bool]
"""The beginning of a constant, and whether it is the whole of it."""

_UNKNOWN: Known = ("", False)
_A_DAY: Known = ("2024-", False)
"""The text of a date or of a timestamp: it begins with its year."""


def _known(types: Types, call: Call, args: Sequence[Known]) -> Known:
    """Return what is known of a constant whose operands are known."""
    op, words = call.op, call.words
    match op:
        case "string" if words:
            return _unescaped(words[0]), True
        case "sqlglot.rawstring" if words:
            return words[-1], True
        case "number" | "boolean" if words:
            return words[0], True
        case "null":
            return "null", True
        case "cast" | "try_cast" if words and words[0].startswith("string"):
            return _A_DAY if _is_time(types.of(call.args[0])) else args[0]
        case "concat":
            return _joined(args)
        case "upper" | "lower":
            return args[0]
        case "trim" | "ltrim" | "rtrim" | "btrim" | "sqlglot.trim" if len(args) == 1:
            return args[0][0].strip(), args[0][1]
        case "sqlglot.substring" | "substring" | "substr":
            return _part(call, args)
        case "date_format" if len(args) == 2 and args[1][0].startswith("yyyy"):
            return _A_DAY
        case "from_unixtime" if len(args) == 1 or args[1][0].startswith("yyyy"):
            return _A_DAY
        case _:
            return _UNKNOWN


def _joined(args: Sequence[Known]) -> Known:
    text = ""
    for beginning, is_whole in args:
        text += beginning
        if not is_whole:
            return text, False
    return text, True


def _part(call: Call, args: Sequence[Known]) -> Known:
    """Return what is known of ``substring``; the parser's node has its operands in reverse."""
    text, *numbers = args[::-1] if call.op.startswith("sqlglot.") else args
    if not text[1] or not all(n.isdecimal() and n.isascii() for n, _ in numbers) or not numbers:
        return _UNKNOWN
    start = max(int(numbers[0][0]) - 1, 0)
    end = start + int(numbers[1][0]) if len(numbers) > 1 else None
    # A start of 0 counts as 1, but the text ends where it would end from there, or one earlier.
    return text[0][start:end], int(numbers[0][0]) > 0


_MAY_BEGIN = re.compile(r"\d{0,2}|\d{1,2}:.*|t|t\d.*", re.DOTALL)


def _may_be_special(beginning: str) -> bool:
    """Whether a text with this beginning may be one in which Spark reads the clock."""
    text = re.sub(r"^[\x00-\x20]+", "", beginning).lower()
    words = any(word.startswith(text) or text.startswith(word) for word in SPECIAL_DATETIMES)
    return words or bool(_MAY_BEGIN.fullmatch(text))


# ------------------------------------------------------------------------------ flows of the texts

_NO_TEXTS = frozenset("null number boolean interval now parameter + - * / div mod lambda".split())
_CASTS = ("cast", "try_cast")

_PASSING = frozenset(
    """
    coalesce greatest least nullif nvl2 upper lower trim ltrim rtrim btrim sqlglot.trim decode
    min max first last any_value lag lead nth_value mode min_by max_by collect_list collect_set
    array map struct named_struct tuple field [] element_at try_element_at get array_min array_max
    sort_array array_sort array_distinct array_compact array_append array_prepend array_insert
    array_union array_except array_intersect array_remove array_repeat slice flatten reverse
    map_values map_keys map_entries map_concat map_from_arrays arrays_zip filter transform
    sqlglot.generateseries sequence explode explode_outer posexplode posexplode_outer inline
    inline_outer stack
    """.split()
) | {"inlined in", "stored in", "column"}
"""Calls that may return one of their operands, or a part of it, and no other text."""


def _values_of(call: Call) -> Sequence[Expr]:
    """Return the operands that a call may return."""
    if call.op == "case":
        return (*call.args[1::2], *(call.args[-1:] if call.words else ()))
    if call.op in _CASTS:
        return call.args if "string" in call.words[0] else ()
    return call.args if call.op in _PASSING else ()


def _columns_of(node: Node) -> Iterable[Sequence[Expr]]:
    """Return, for each column of a node, the expressions that compute it."""
    match node:
        case Derived(block) | Limit(block):
            return [[o.expr] for o in block.columns]
        case Outer(_, left, right) | Lateral(_, left, right):
            return [[o.expr] for o in (*left.columns, *right.columns)]
        case Aggregate(_, keys, aggregates):
            return [[e] for e in (*keys, *aggregates)]
        case SetOperation() | Recursive() | Values():
            return _alternatives(node)
        case Generate(call, _, kinds):
            return [[call]] * len(kinds)
        case _:
            return ()


def _alternatives(node: SetOperation | Recursive | Values) -> list[tuple[Expr, ...]]:
    """Return the expressions of each column of a union, or of rows."""
    if isinstance(node, Values):
        return [*zip(*node.rows, strict=False)]
    blocks = (node.start, node.step) if isinstance(node, Recursive) else node.branches
    return [*zip(*([o.expr for o in b.columns] for b in blocks), strict=False)]


def _key(expr: Expr) -> object:
    return (expr.instance, expr.column) if isinstance(expr, Ref) else id(expr)


class _Texts:
    """The texts of the clock in a relation or an expression, and where they may get.

    Attributes
    ----------
    things
        Everything in it.
    """

    def __init__(self, types: Types, start: object) -> None:
        self.things: list[Any] = []
        self._types = types
        self._constants: dict[int, tuple[Known, bool]] = {}  # …, and whether there is a text in it
        self._texts: dict[object, set[str]] = {}
        self._readers: dict[object, list[object]] = {}
        seen = set[int]()
        for thing, _ in innermost_first(start, seen):
            seen.add(id(thing))
            self.things.append(thing)
            if isinstance(thing, Call):
                self._learn(thing)
        if self._texts or any(isinstance(t, Block) for t in self.things):
            self._flow()

    def of(self, expr: Expr) -> set[str]:
        """Return the texts of the clock that an expression may have as its value."""
        return self._texts.get(_key(expr), set())

    def _learn(self, call: Call) -> None:
        below = [self._constants.get(id(a)) for a in call.args]
        operands = [one for one in below if one is not None]
        if call.op == "parameter" or len(operands) < len(below):
            return
        known = _known(self._types, call, [one for one, _ in operands])
        has_text = call.op in ("string", "sqlglot.rawstring") or any(has for _, has in operands)
        self._constants[id(call)] = known, has_text
        text = self._special(call, known, has_text=has_text)
        if text:
            self._texts[id(call)] = {text}

    def _special(self, call: Call, known: Known, *, has_text: bool) -> str | None:
        """Return the text of the clock that a constant is, or may be."""
        op, (beginning, is_whole) = call.op, known
        if op in _NO_TEXTS or op in _PASSING or op == "case" or not _may_be_special(beginning):
            return None
        if op.startswith(("make_", "try_make_", "timestamp_", "date_from_")):
            return None
        kind = self._types.of(call)
        if kind is None and (op in _OF_TIMES or not has_text):
            return None
        if kind is not None and not any(w in kind for w in ("string", "char", "variant")):
            return None
        if not is_whole:
            return COMPUTED_TEXT
        return beginning.strip().lower() if is_special_datetime_text(beginning) else None

    def _flow(self) -> None:
        """Let texts get from operands to the calls that return them, and to columns."""
        for thing in self.things:
            match thing:
                case Call():
                    self._pass_on(_values_of(thing), id(thing))
                case Subquery("scalar", block):
                    self._pass_on([block.columns[0].expr], id(thing))
                case Window(function):
                    self._pass_on([function], id(thing))
                case Block(leaves):
                    for instance, node in leaves:
                        self._enter(instance, node)
                case _:
                    pass
        changed = [*self._texts]
        while changed:
            source = changed.pop()
            for reader in self._readers.get(source, ()):
                texts = self._texts.setdefault(reader, set())
                if not self._texts[source] <= texts:
                    texts |= self._texts[source]
                    changed.append(reader)

    def _enter(self, instance: int, node: Node) -> None:
        for column, exprs in enumerate(_columns_of(node)):
            self._pass_on(exprs, (instance, column))
        for column, literal in node.literals if isinstance(node, Given) else ():
            text = literal.op == "string" and _unescaped(literal.words[0])
            if text and is_special_datetime_text(text):
                self._texts.setdefault((instance, column), set()).add(text.strip().lower())

    def _pass_on(self, sources: Iterable[Expr], reader: object) -> None:
        for source in sources:
            self._readers.setdefault(_key(source), []).append(reader)

    # ----------------------------------------------------------------------- casts of the texts

    def read_in(self, thing: Any) -> set[str]:
        """Return the texts that Spark casts to times in one place."""
        match thing:
            case Call("now", (arg, *_)):
                return self.of(arg) or {COMPUTED_TEXT}
            case Call(("cast" | "try_cast"), (arg, *_), (to, *_)):
                return self.of(arg) if _TIME.search(to) else set()
            case Call(op) if op in _PARSERS:
                return self._parsed(thing)
            case Call():
                return self._read_by(thing)
            case Subquery("in", block, args):
                pairs = zip(args, (o.expr for o in block.columns), strict=False)
                return set[str]().union(*map(self._alike, pairs))
            case SetOperation() | Recursive() | Values():
                return set[str]().union(*map(self._alike, _alternatives(thing)))
            case _:
                return set()

    def _alike(self, exprs: Iterable[Expr]) -> set[str]:
        """Return the texts among expressions that Spark casts to one type, if it may be a time."""
        texts, kinds = self._split(exprs)
        return texts if None in kinds or any(map(_is_time, kinds)) else set()

    def _split(self, exprs: Iterable[Expr]) -> tuple[set[str], set[str | None]]:
        """Return the texts of the clock among expressions, and the types of the others."""
        texts: set[str] = set()
        others: list[Expr] = []
        for expr in exprs:
            if self.of(expr):
                texts |= self.of(expr)
            elif not (isinstance(expr, Call) and expr.op in ("null", "lambda")):
                others.append(expr)
        return texts, {self._types.of(e) for e in others} if texts else set()

    def _read_by(self, call: Call) -> set[str]:
        op = call.op
        texts, kinds = self._split(_values_of(call) if op == "case" else call.args)
        if not texts:
            return texts
        beside, unsure = any(map(_is_time, kinds)), None in kinds
        if op in _OF_TIMES or self._is_cast_in_lambda(call):
            return texts
        if op in _WITH_KEYS:
            of = self._types.of(call.args[0]) or ""
            is_text = of.startswith(("map<string", "array<string", "struct<"))
            keys = set[str]().union(*map(self.of, call.args[1:]))
            return texts if beside else set() if is_text else keys
        if op in _SUMS:
            return texts if beside or unsure else texts - {COMPUTED_TEXT}
        if op in _OF_TEXTS:
            return texts - {COMPUTED_TEXT} if beside else set()
        return texts if beside or (unsure and op in _ALIKE) else set()

    def _is_cast_in_lambda(self, call: Call) -> bool:
        """Whether a function applied to the parts of a text may cast them to times."""
        bodies = [a for a in call.args if isinstance(a, Call) and a.op == "lambda"]
        return any(
            e.op in _OF_TIMES
            or (e.op in _CASTS and bool(_TIME.search(e.words[0])))
            or any(_is_time(self._types.of(a)) for a in e.args)
            for e in walk(*bodies)
            if isinstance(e, Call)
        )

    def _parsed(self, call: Call) -> set[str]:
        """Return whether a parser of constants may find a text of the clock where a time is due."""
        schemas = [self._constants.get(id(a), (_UNKNOWN, False))[0] for a in call.args[1:]]
        if all(is_whole and not _TIME.search(text.lower()) for text, is_whole in schemas):
            return set()
        inside = [self._constants[id(e)] for e in walk(call.args[0]) if id(e) in self._constants]
        special = any(has_text and _INSIDE.search(text) for (text, _), has_text in inside)
        return {COMPUTED_TEXT} if special else set()


def _is_time(kind: str | None) -> bool:
    return kind is not None and kind.startswith(("date", "timestamp"))


_TIME = re.compile(r"\b(?:date|timestamp)")
_INSIDE = re.compile(
    rf"{'|'.join(SPECIAL_DATETIMES)}|(?:^|[^-+\d\s:T])\s*(?:T\d|\d{{1,2}}:)", re.IGNORECASE
)
"""A clock word or a time without a day somewhere in a text."""

_PARSERS = frozenset("from_json from_csv from_xml variant_get try_variant_get".split())

_ALIKE = COMPARISONS | frozenset(
    "in between coalesce greatest least case nullif nvl2 decode array".split()
)
"""They cast their operands to one type."""

_OF_TEXTS = frozenset(
    """
    concat concat_ws format_string printf like ilike sqlglot.like sqlglot.ilike rlike lpad rpad
    replace translate regexp_replace regexp_extract regexp_substr regexp_count regexp_instr split
    split_part substring_index contains startswith endswith instr locate position struct
    named_struct map tuple hash xxhash64
    """.split()
)
"""They cast times to texts, or nothing."""

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
