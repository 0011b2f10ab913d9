"""``NOW() - 6 months`` → ``NOW() - INTERVAL 6 months``. Pure.

Feldera's documentation writes intervals without the keyword. In Spark, ``months`` after a number is
an alias, so this applies only where Spark would fail: a number with a unit that is added to or
subtracted from ``NOW()``, because a timestamp and a number have no sum.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from persist_assets.core.dialect import tokenize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.tokenizer_core import Token

KEYWORD = "INTERVAL "

_UNITS = frozenset(
    u + s for u in ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND") for s in ("", "S")
)
_MOMENTS = frozenset(("NOW", "CURRENT_TIMESTAMP"))
_ALMOST = re.compile(rf"\d\s+(?:{'|'.join(sorted(_UNITS))})\b", re.IGNORECASE)


def missing_keywords(text: str) -> tuple[int, ...]:
    """Return the offsets in an SQL text at which the keyword INTERVAL is missing, in order.

    Raises
    ------
    TokenError
        Something is not closed.

    Examples
    --------
    >>> missing_keywords("SELECT ts >= NOW() - 6 months - 1 day, current_date() - 6 days")
    (21, 32)
    """
    return tuple(_places(tokenize(text))) if _ALMOST.search(text) else ()


def _places(tokens: Sequence[Token]) -> Iterator[int]:
    moment = False
    at = 0
    while at < len(tokens):
        if moment and _adds_interval(tokens[at : at + 3]):
            yield tokens[at + 1].start
            at += 3  # and the result is a timestamp again
            continue
        before = tokens[at - 1].text if at else ""
        moment = tokens[at].text.upper() == "CURRENT_TIMESTAMP" and before != "."
        called = [t.token_type for t in tokens[at + 1 : at + 3]]
        if tokens[at].text.upper() in _MOMENTS and called == [
            TokenType.L_PAREN,
            TokenType.R_PAREN,
        ]:
            moment = True
            at += 2
        at += 1


def _adds_interval(tokens: Sequence[Token]) -> bool:
    if len(tokens) < 3:
        return False
    sign, number, unit = tokens
    return (
        sign.token_type in (TokenType.DASH, TokenType.PLUS)
        and number.token_type is TokenType.NUMBER
        and number.end + 1 < unit.start
        and unit.text.upper() in _UNITS
    )
