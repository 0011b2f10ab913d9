"""Annotation lines → a validated `Annotation`. Pure.

The text after ``--@`` (SQL) or ``#@`` (Malloy, Python) is MOTLY, the tag language of Malloy;
its reference is the npm package ``@malloydata/motly-ts-parser``, whose answers to
``tests/golden/motly.json`` this module's parser gives too. As there, every line is parsed by
itself, and the lines above one definition merge into one tag.

Two arrows: `parse_tag` (text → `Tag`, the language) and `read_annotation` (`Tag` →
`Annotation`, our vocabulary: the table `KEYS`). The invariant of the second: a key that is not
understood whole is a problem, never ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import count
from typing import TYPE_CHECKING

from persist_assets.errors import Location, Problem, did_you_mean
from persist_assets.model import Annotation, Check, CheckKind, Freshness, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# ------------------------------------------------------------------------------------ the language

Value = str | int | float | bool | date | datetime


@dataclass(slots=True)
class Tag:
    """A node of a tag: a value or a list, and named properties below it.

    Attributes
    ----------
    deleted
        ``-name`` stood for it; it stays deleted, as in Malloy.
    revived
        Where it was given again after its deletion, which has no effect.
    """

    location: Location
    value: Value | list[Tag] | None = None
    properties: dict[str, Tag] | None = None
    deleted: bool = False
    revived: Location | None = None

    def get(self, name: str) -> Tag | None:
        """Return the property `name`, or None when it is not there or deleted."""
        found = (self.properties or {}).get(name)
        return None if found is None or found.deleted else found


@dataclass(frozen=True, slots=True)
class Line:
    """One annotation line: the text after its marker, and where that text starts."""

    text: str
    location: Location


class _SyntaxError(Exception):
    def __init__(self, message: str, at: int) -> None:
        self.message, self.at = message, at


_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_SEPARATORS = re.compile(r"(?:[ \t\r\n,]|#[^\r\n]*)*")
_BARE = re.compile("[0-9A-Za-z_\u00c0-\u024f\u1e00-\u1eff]+")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_BAD_EXPONENT = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)[eE](?:[+-](?!\d)|(?![\d+-]))", re.ASCII)
_CONSTANT = re.compile("@(true|false|none)(?![0-9A-Za-z_\u00c0-\u024f\u1e00-\u1eff])")
_DATE = re.compile(
    r"@(\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?)",
    re.ASCII,
)
_ESCAPE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Parser:
    """Recursive descent over one line; writes what it reads into `root`."""

    def __init__(self, line: Line) -> None:
        self.text, self.base, self.at = line.text, line.location, 0

    def location(self, at: int) -> Location:
        before = self.text[:at]
        lines = before.count("\n")
        column = at - (before.rfind("\n") + 1) + (1 if lines else self.base.column)
        return Location(self.base.path, self.base.line + lines, column)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, pattern: re.Pattern[str] = _SPACE) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def expect(self, char: str) -> None:
        if self.peek() != char:
            found = f"`{self.peek()}`" if self.peek() else "the end of the line"
            raise _SyntaxError(f"expected `{char}`, found {found}", self.at)
        self.at += 1

    def document(self, root: Tag) -> None:
        self.skip(_SEPARATORS)
        while self.at < len(self.text):
            self.statement(root)
            self.skip(_SEPARATORS)

    def block(self, target: Tag) -> None:
        start = self.at
        self.expect("{")
        while True:
            self.skip(_SEPARATORS)
            if self.peek() == "}":
                self.at += 1
                return
            if not self.peek():
                raise _SyntaxError("`{` is not closed on its line", start)
            self.statement(target)

    def statement(self, parent: Tag) -> None:
        start = self.at
        if self.text.startswith("-...", self.at):
            self.at += 4
            parent.value, parent.properties = None, {}
            return
        if self.peek() == "-":
            self.at += 1
            owner, name = self.reach(parent, self.path(), start)
            _properties(owner)[name] = Tag(self.location(start), deleted=True)
            return
        owner, name = self.reach(parent, self.path(), start)
        self.skip()
        if self.text.startswith(":=", self.at):
            self.at += 2
            self.skip()
            target = _properties(owner)[name] = Tag(self.location(start))
            self.value(target)
            self.trailing_block(target)
            return
        target = _properties(owner).setdefault(name, Tag(self.location(start)))
        if target.deleted and target.revived is None:
            target.revived = self.location(start)
        match self.peek():
            case "=":
                self.at += 1
                self.skip()
                if self.peek() == "{":
                    raise _SyntaxError(
                        "`=` wants a value; write `name { … }` or `name: { … }`", self.at
                    )
                self.value(target)
                self.trailing_block(target)
            case ":":
                self.at += 1
                self.skip()
                target.properties = None
                self.block(target)
            case "{":
                self.block(target)
            case _:
                pass

    def trailing_block(self, target: Tag) -> None:
        self.skip()
        if self.peek() == "{":
            self.block(target)

    def reach(self, tag: Tag, path: Sequence[str], start: int) -> tuple[Tag, str]:
        for name in path[:-1]:
            tag = _properties(tag).setdefault(name, Tag(self.location(start)))
        return tag, path[-1]

    def path(self) -> list[str]:
        path = [self.identifier()]
        while self.peek() == ".":
            self.at += 1
            path.append(self.identifier())
        return path

    def identifier(self) -> str:
        if self.peek() == "`":
            return self.quoted("`", escapes=True)
        return self.bare()

    def bare(self) -> str:
        match = _BARE.match(self.text, self.at)
        if not match:
            raise _SyntaxError("expected a name", self.at)
        self.at = match.end()
        return match[0]

    def value(self, target: Tag, *, lists: bool = True) -> None:
        char = self.peek()
        if char == "[" and lists:
            target.value = self.array()
        elif char == "@":
            target.value = self.constant()
        elif char == "$":
            raise _SyntaxError("references (`$`) have no meaning here; write the value", self.at)
        elif char == '"':
            triple = self.text.startswith('"""', self.at)
            target.value = self.quoted('"""' if triple else '"', escapes=True)
        elif char == "'":
            triple = self.text.startswith("'''", self.at)
            target.value = self.quoted("'''" if triple else "'", escapes=False)
        elif char and (char in "-." or char.isdecimal()):
            target.value = self.number_or_bare()
        elif _BARE.match(self.text, self.at):
            target.value = self.bare()
        else:
            raise _SyntaxError("expected a value", self.at)

    def number_or_bare(self) -> str | int | float:
        if bad := _BAD_EXPONENT.match(self.text, self.at):
            raise _SyntaxError("expected the digits of an exponent", bad.start())
        match = _NUMBER.match(self.text, self.at)
        if match and not _BARE.match(self.text, match.end()):
            self.at = match.end()
            number = float(match[0])
            return int(number) if number.is_integer() else number
        if self.peek() == "-":
            raise _SyntaxError("expected a value", self.at)
        return self.bare()

    def constant(self) -> Value | None:
        start = self.at
        if match := _CONSTANT.match(self.text, self.at):
            self.at = match.end()
            return {"true": True, "false": False, "none": None}[match[1]]
        if match := _DATE.match(self.text, self.at):
            self.at = match.end()
            try:
                if "T" not in match[1]:
                    return date.fromisoformat(match[1])
                moment = datetime.fromisoformat(match[1])
            except ValueError as error:
                raise _SyntaxError(f"`{match[0]}` is not a date: {error}", start) from error
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if self.text.startswith("@env.", self.at):
            raise _SyntaxError(
                "the environment may not change what a source means; write the value", start
            )
        raise _SyntaxError("expected @true, @false, @none or a date like @2013-01-01", start)

    def quoted(self, quote: str, *, escapes: bool) -> str:
        start = self.at
        self.at += len(quote)
        out: list[str] = []
        while True:
            if self.text.startswith(quote, self.at):
                self.at += len(quote)
                return "".join(out)
            char = self.peek()
            if not char or (len(quote) == 1 and char in "\r\n"):
                raise _SyntaxError(f"{quote} is not closed on its line", start)
            self.at += 1
            if char != "\\":
                out.append(char)
            elif escapes:
                out.append(self.escape())
            else:
                out.append(char + self.peek())
                self.at += 1

    def escape(self) -> str:
        char, start = self.peek(), self.at
        self.at += 1
        if char != "u":
            return _ESCAPE.get(char, char)
        digits = self.text[self.at : self.at + 4]
        if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
            raise _SyntaxError(r"expected four hexadecimal digits after \u", start)
        self.at += 4
        return chr(int(digits, 16))

    def array(self) -> list[Tag]:
        start, elements = self.at, list[Tag]()
        self.expect("[")
        while True:
            self.skip()
            if self.peek() == "]":
                self.at += 1
                return elements
            elements.append(self.element())
            self.skip()
            if self.peek() == ",":
                self.at += 1
            elif not self.peek():
                raise _SyntaxError("`[` is not closed on its line", start)
            elif self.peek() != "]":
                raise _SyntaxError("expected `,` or `]`", self.at)

    def element(self) -> Tag:
        tag = Tag(self.location(self.at))
        if self.peek() == "[":
            tag.value = self.array()
        elif self.peek() != "{":
            self.value(tag, lists=False)
        self.trailing_block(tag)
        return tag


def _properties(tag: Tag) -> dict[str, Tag]:
    if tag.properties is None:
        tag.properties = {}
    return tag.properties


def parse_tag(lines: Sequence[Line]) -> tuple[Tag, list[Problem]]:
    """Parse annotation lines, which merge in order, into one tag.

    A line with a syntax error adds what stands before the error, and one problem.

    Examples
    --------
    >>> tag, problems = parse_tag([Line('persist name="daily"', Location("a.sql"))])
    >>> tag.get("name").value, problems
    ('daily', [])
    """
    problems: list[Problem] = []
    root = Tag(lines[0].location if lines else Location(""))
    for line in lines:
        parser = _Parser(line)
        try:
            parser.document(root)
        except _SyntaxError as error:
            place, hint = parser.location(error.at), _hint(line, error.at)
            problems.append(Problem("annotation-syntax", error.message, place, hint))
    return root, problems


def _hint(line: Line, at: int) -> str:
    if line.text[at : at + 1] == ".":
        return 'quote a value that holds a dot: name="schema.table"'
    return "an annotation is bare words, key=value, lists [a, b] and blocks { … }"


# ----------------------------------------------------------------------------------- the vocabulary


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


def _materialized(tag: Tag, what: str) -> None:
    kind = _text(tag, what)
    if kind != "table":
        raise _Bad(f"`{what}` knows only `table`, not `{kind}`", tag.location)


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


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS = {
    unit: seconds
    for seconds, units in (
        (1, "s sec secs second seconds"),
        (60, "m min mins minute minutes"),
        (3600, "h hour hours"),
        (86_400, "d day days"),
        (604_800, "w week weeks"),
    )
    for unit in units.split()
}


def parse_duration(text: str) -> int | None:
    """Return the seconds that `text` names (``24h``, ``90 min``, ``1 day 6h``), or None.

    Examples
    --------
    >>> parse_duration("1 day 6h")
    108000
    >>> parse_duration("soon") is None
    True
    """
    parts = _DURATION.findall(text.lower())
    rest = _DURATION.sub("", text.lower()).strip()
    if not parts or rest or any(unit not in _UNITS for _, unit in parts):
        return None
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts)) or None


def _duration(tag: Tag, what: str) -> int:
    text = _text(tag, what)
    seconds = parse_duration(text)
    if seconds is None:
        raise _Bad(f"`{text}` is not a duration", tag.location, f'for example {what}="24h"')
    return seconds


def _freshness(tag: Tag, what: str) -> Freshness:
    if tag.value is not None:
        raise _Bad(f"`{what}` wants properties", tag.location, 'for example freshness.window="24h"')
    found = {
        name: _duration(below, f"freshness.{name}")
        for name, below in _known(tag, what, ("window", "warn"))
    }
    if "window" not in found:
        raise _Bad("`freshness` wants a window", tag.location, 'for example freshness.window="24h"')
    if min(found.values()) < 60:
        raise _Bad("freshness is watched by the minute: at least 60s", tag.location)
    if found.get("warn", 0) >= found["window"]:
        raise _Bad("`freshness.warn` must be shorter than `freshness.window`", tag.location)
    return Freshness(found["window"], found.get("warn"))


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


_CHECKS: Mapping[CheckKind, Callable[[Tag, Mapping[str, Tag]], Iterable[Check]]] = {
    "not_null": _not_null,
    "unique": _unique,
    "accepted_values": _accepted_values,
    "expr": _expr,
}


def _check(tag: Tag, what: str) -> tuple[Check, ...]:
    if tag.value is not None or not tag.properties:
        raise _Bad("`check` wants a block", tag.location, "for example check { not_null=[id] }")
    checks: dict[str, Check] = {}
    for kind, below in _known(tag, what, _CHECKS):
        named = {k: v for k, v in (below.properties or {}).items() if not v.deleted}
        blocking = _blocking(named.pop("severity", None))
        read = _CHECKS[kind]  # pyright: ignore[reportArgumentType]
        for check in read(Tag(below.location, below.value), named):
            plain = re.sub(r"\W+", "_", check.name, flags=re.ASCII).strip("_")
            name = next(n for n in _numbered(plain) if n not in checks)
            checks[name] = replace(check, name=name, blocking=blocking, location=below.location)
    return tuple(checks.values())


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


KEYS: Mapping[str, tuple[str | None, Callable[[Tag, str], object]]] = {
    "persist": ("persist", _flag),
    "name": ("name", _table_name),
    "materialized": (None, _materialized),
    "time_column": ("time_column", _text),
    "owner": ("owners", _owners),
    "tags": ("tags", _tags),
    "group": ("group", _group),
    "freshness": ("freshness", _freshness),
    "check": ("checks", _check),
}
"""Every key: the field of `Annotation` it becomes, and the function that validates it."""

NEEDS_PERSIST = ("name", "materialized", "time_column", "freshness", "check")
"""Keys that mean something only for a source that has a table."""


def read_annotation(lines: Sequence[Line]) -> tuple[Annotation, list[Problem]]:
    """Parse and validate the annotation lines above one definition.

    Returns
    -------
    annotation, problems
        What could be understood, and everything that could not.
    """
    root, problems = parse_tag(lines)
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
    return Annotation(**fields, keys=tuple(places)), problems  # pyright: ignore[reportArgumentType]
