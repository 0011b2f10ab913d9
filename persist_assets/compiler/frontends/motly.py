"""MOTLY, the tag language of Malloy: the text of annotation lines → a `Tag`. Pure.

The reference is the npm package ``@malloydata/motly-ts-parser``, whose answers to
``tests/golden/motly.json`` this module's parser gives too. As there, every line is parsed by
itself, and the lines above one definition merge into one tag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from persist_assets.core.errors import Location, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

Value = str | int | float | bool | date | datetime


@dataclass(slots=True)
class Tag:
    """A node of a tag: a value or a list, and named properties below it.

    Attributes
    ----------
    deleted
        ``-name`` deleted it; it stays deleted, as in Malloy.
    revived
        The location of a value after its deletion, which has no effect.
    """

    location: Location
    value: Value | list[Tag] | None = None
    properties: dict[str, Tag] | None = None
    deleted: bool = False
    revived: Location | None = None

    def get(self, name: str) -> Tag | None:
        """Return the property `name`, or None if it is missing or deleted."""
        tag = (self.properties or {}).get(name)
        return None if tag is None or tag.deleted else tag


@dataclass(frozen=True, slots=True)
class Line:
    """One annotation line: the text after its marker, and the location of that text."""

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
            actual = f"`{self.peek()}`" if self.peek() else "the end of the line"
            raise _SyntaxError(f"expected `{char}`, found {actual}", self.at)
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
                        "`=` needs a value; write `name { … }` or `name: { … }`", self.at
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
            raise _SyntaxError("references (`$`) are not supported here; write the value", self.at)
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
                "environment variables are not supported here; write the value", start
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

    A line with a syntax error adds the part before the error, and one problem.

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
        return 'quote values that contain a dot: name="schema.table"'
    return "annotations are made of bare words, key=value, lists [a, b] and blocks { … }"
