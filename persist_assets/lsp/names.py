"""The places where the files of a project name its sources: declarations, and reads.

The places come from the compiled trees of SQL and Python. Malloy's compiler does not report places
of tables, so these are the strings of ``table('…')``, as its grammar has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.core.dialect import SPARK, quote
from persist_assets.core.errors import Location
from persist_assets.core.languages import MALLOY as MALLOY_LANGUAGE
from persist_assets.core.model.queries import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.compiler.load import Loaded
    from persist_assets.compiler.state import Unit
    from persist_assets.core.model.queries import SourceID
    from persist_assets.lsp.positions import Text
    from persist_assets.lsp.workspace import State


@dataclass(frozen=True, slots=True)
class Mention:
    """A place in a file that names a source.

    Attributes
    ----------
    start, end
        Offsets in the file of the last part of the name, with its quotes in SQL.
    unit
        The source whose query or check it is part of; the source itself, at its declaration.
    reference
        The reference; None at a declaration, and in a check.
    """

    source_id: SourceID
    path: str
    start: int
    end: int
    unit: Unit | None = None
    reference: Reference | None = None


def mentions(state: State) -> Iterator[Mention]:
    """Yield all places that name a source, in no particular order."""
    if state.loaded is None:
        return
    texts: dict[str, Text] = {}
    compilation = state.loaded.compilation
    for unit in compilation.units.values():
        declared = unit.declaration
        path = declared.location.path
        text = texts.get(path) or texts.setdefault(path, state.text(path))
        yield from _spans(text, declared.location, declared.name, unit.source_id, unit)
        if path.endswith(MALLOY):
            continue
        for reference in declared.query.references if declared.query else ():
            fits = compilation.names.find(reference, path, declared.language)
            if len(fits) == 1:
                name, place = reference.parts[-1], reference.location
                # It is in the file of a function, if that is inlined.
                written = texts.get(place.path) or state.text(place.path)
                texts[place.path] = written
                yield from _spans(written, place, name, fits[0][1], unit, reference)
        for check in declared.annotation.checks:
            if check.against is not None and check.location is not None:
                name = check.against.source_id.partition("@")[0]
                # Its own column may have the same name: relationship { a="a.id" }
                yield from _spans(
                    text, check.location, name, check.against.source_id, unit, following="."
                )
    for path in state.loaded.models.texts:
        yield from _tables_of_malloy(state.loaded, path, state.text(path))


def mentions_in(state: State, path: str) -> list[Mention]:
    """Return the places of one file that name a source."""
    return [m for m in mentions(state) if m.path == path]


def find_mention(state: State, path: str, offset: int) -> Mention | None:
    """Return the name of a source at a place, or None."""
    return next((m for m in mentions_in(state, path) if m.start <= offset <= m.end), None)


def in_sql(name: str) -> str:
    """Return a name as SQL has it: in backticks, unless it is a plain word."""
    try:
        tokens = SPARK.tokenize(name)
    except TokenError:
        tokens = []
    plain = len(tokens) == 1 and tokens[0].token_type is TokenType.VAR and tokens[0].text == name
    return name if plain else quote(name)


def _spans(
    text: Text,
    place: Location,
    name: str,
    source_id: SourceID,
    unit: Unit,
    reference: Reference | None = None,
    following: str = "",
) -> Iterator[Mention]:
    """Yield the place of the last part of a name that begins at a location, or nothing.

    Parameters
    ----------
    following
        The text after the name.
    """
    start = text.offset_of(place)
    if reference is not None and len(reference.parts) > 1 and not reference.end:
        whole = "[/.]".join(map(re.escape, reference.parts))  # in a string of Python
        written = re.compile(whole, re.I).search(text.text, start)
        start = written.end() - len(name) if written else start
    length = reference.end - reference.start if reference is not None else 0
    end = start + length if length else text.text.find("\n", start)
    words = _word(name).finditer(text.text, start, end if end >= 0 else len(text.text))
    spans = [word for word in words if text.text.startswith(following, word.end())]
    if spans:
        span = spans[-1] if length else spans[0]
        yield Mention(source_id, place.path, span.start(), span.end(), unit, reference)


@lru_cache(10_000)
def _word(name: str) -> re.Pattern[str]:
    plain = re.escape(name)
    return re.compile(rf"`{re.escape(name.replace('`', '``'))}`|(?<!\w){plain}(?!\w)", re.I)


_MALLOY_TOKEN = re.compile(
    r"(?P<skip>//[^\n]*|--[^\n]*|\#[^\n]*|/\*(?s:.)*?\*/|\"\"\"(?s:.)*?\"\"\")"
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")|(?P<word>\w+)|(?P<mark>\S)"
)


def _tables_of_malloy(loaded: Loaded, path: str, text: Text) -> Iterator[Mention]:
    """Yield the names of tables in a Malloy file: ``table('name')``."""
    tokens = [m for m in _MALLOY_TOKEN.finditer(text.text) if m.lastgroup != "skip"]
    for word, opened, string in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if word[0] != "table" or opened[0] != "(" or string.lastgroup != "string":
            continue
        written = string[0][1:-1]
        parts = tuple(re.split(r"[/.]", written))
        place = Location(path)
        reference = Reference(parts, 0, 0, None, place)
        fits = loaded.compilation.names.find(reference, path, MALLOY_LANGUAGE)
        if len(fits) == 1:
            end = string.end() - 1
            yield Mention(fits[0][1], path, end - len(parts[-1]), end, None, reference)
