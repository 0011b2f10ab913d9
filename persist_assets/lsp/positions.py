"""Positions in texts: characters as we count them, UTF-16 units as the protocol does. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lsprotocol.types import Position, Range

if TYPE_CHECKING:
    from persist_assets.core.errors import Location

_LINE_END = re.compile(r"\r\n|\n|\r")
_PIECE = re.compile(r"`(?:[^`]|``)*`|\"[^\"\n]*\"|'[^'\n]*'|\w+|\S|")
"""Matches the text to underline from a place on: a name, a string, or one character."""


@dataclass(frozen=True)
class Text:
    """A text whose places are counted in three ways.

    Offsets count characters from the start. A `Location` has a line and a column, whose lines end
    in a line feed. A `Position` has a line and a number of UTF-16 units, whose lines also end in
    a carriage return.
    """

    text: str

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(m.end() for m in _LINE_END.finditer(self.text))]

    @cached_property
    def _our_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.text))]

    def offset_of(self, place: Location) -> int:
        """Return the offset of a location, at most the length of the text."""
        line = min(place.line, len(self._our_starts))
        return min(self._our_starts[line - 1] + place.column - 1, len(self.text))

    def offset_at(self, position: Position) -> int:
        """Return the offset of a position; beyond the end of a line, that of its end."""
        if position.line >= len(self._starts):
            return len(self.text)
        start = self._starts[position.line]
        last = position.line + 1 == len(self._starts)
        end = len(self.text) if last else self._starts[position.line + 1]
        line = _LINE_END.sub("", self.text[start:end])
        units = line.encode("utf-16-le", "surrogatepass")[: 2 * position.character]
        return start + len(units.decode("utf-16-le", "ignore"))

    def position(self, offset: int) -> Position:
        """Return the position of an offset."""
        line = bisect_right(self._starts, offset) - 1
        before = self.text[self._starts[line] : offset]
        return Position(line, len(before.encode("utf-16-le", "surrogatepass")) // 2)

    def range(self, start: int, end: int) -> Range:
        """Return the range between two offsets."""
        return Range(self.position(start), self.position(end))

    def range_of(self, place: Location) -> Range:
        """Return the range of the name, string or character at a location."""
        start = self.offset_of(place)
        piece = _PIECE.match(self.text, start)
        return self.range(start, piece.end() if piece else start)
