"""The comments of a Python file → its annotation lines. Pure."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.motly import Line
from persist_assets.core.errors import Location, Problem, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALMOST = re.compile(r"#\s+@\s*(\w+)|(?:##|--)\s*@\s*(\w+)")


def annotation_lines(text: str, path: str, problems: list[Problem]) -> Iterator[Line]:
    """Yield the annotation lines of a file; warn of comments that only look like one."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return  # text that Python compiles and this does not has no annotations
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        place = Location(path, line, column + 1)
        if token.string.startswith("#@"):
            if token.line[:column].strip():
                problems.append(
                    Problem(
                        "annotation-dangling",
                        "this annotation is not on its own line",
                        place,
                        "put annotations on their own lines, directly above the function",
                    )
                )
            else:
                yield Line(token.string[2:], Location(path, line, column + 3))
            continue
        match = _ALMOST.match(token.string)
        word = match and (match[1] or match[2])
        if word and (word in KEYS or did_you_mean(word, KEYS)):
            message = "this comment looks like an annotation but is not one"
            problems.append(Problem("annotation-almost", message, place, "write #@", "warning"))
