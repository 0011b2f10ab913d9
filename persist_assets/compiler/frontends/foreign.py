"""SQL files of other tools: dbt templates, SQLMesh models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.frontends.feldera import statement_of_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.tokenizer_core import Token

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{\{|\{%", re.S)
_CALL = re.compile(
    r"\{\{-?\s*(\w+)\s*\(\s*(?:'([^']*)'|\"([^\"]*)\")?(?:\s*,\s*['\"]([^'\"]*)['\"])?"
)
_HINTS = {
    "ref": "write the name of the source itself: {name}",
    "source": "declare the table with CREATE TABLE … USING …, and write its name: {name}",
    "config": "write `--@ persist` above CREATE VIEW … AS: docs/annotations.md lists its keys",
    "var": "write the value itself",
}
_SQLMESH_HINT = (
    "write `--@ persist` and CREATE VIEW name AS SELECT …,"
    " or import the project: persist import sqlmesh DIR"
)
_SQLMESH = ("MODEL", "AUDIT", "METRIC", "SEED")


def written_for_others(tokens: Sequence[Token], text: str) -> tuple[str, int, str, str] | None:
    """Return a code, the place, a message and a hint if a statement is for another tool."""
    first, streams = tokens[0], statement_of_streams(tokens)
    if streams is not None:
        return ("statement", first.start, *streams)
    if first.text.upper() in _SQLMESH and tokens[1:2] and tokens[1].text == "(":
        message = f"`{first.text} (…)` is a statement of SQLMesh"
        return "template", first.start, message, _SQLMESH_HINT
    for token in tokens:
        if token.token_type is TokenType.BLOCK_START or text.startswith("{{", token.start):
            return ("template", token.start, *_explained(text[token.start :]))
    return None


def _explained(text: str) -> tuple[str, str]:
    """Return a message and a hint for the template that a text begins with."""
    match = _TEMPLATE.match(text)
    shown = " ".join((match[0] if match else text).split())
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    call = _CALL.match(text)
    hint = _HINTS.get(call[1]) if call else None
    name = (call[4] or call[2] or call[3] or "") if call else ""
    if hint is None:
        hint = "write the SQL that it becomes, or import the project: persist import dbt DIR"
    return f"`{shown}` is a dbt template (Jinja); sources are plain SQL", hint.format(name=name)
