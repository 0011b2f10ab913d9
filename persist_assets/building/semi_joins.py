"""The semi-joins in the statements of programs, as `analysis.deltas` writes them."""

from __future__ import annotations

import re

_QUOTED = r"`(?:[^`]|``)+`"
_COLUMN = rf"[ts]\.(?:{_QUOTED}|\w+)"
SEMI_JOIN = re.compile(
    r"LEFT SEMI JOIN `((?:keys|change):[0-9a-f]+)` AS (k|d)"
    rf" ON (?:{_COLUMN} <=> \2\.\w+(?: AND )?)+"
)
"""A semi-join of the rows with some keys."""
SAME = re.compile(rf"({_COLUMN}) <=> ([kd]\.(\w+))")
"""One of its conditions."""
JOINED = re.compile(
    r"( FROM `now:((?:[^`]|``)+)` AS t)"
    rf" LEFT SEMI JOIN \(SELECT \*[^()]* FROM {_QUOTED}\) AS j"
    rf" ON (?:{_COLUMN} = j\.c\d+(?: AND )?)+"
)
"""A semi-join of an unchanged table with rows that it is joined with, which only saves work."""
SEARCH = re.compile(
    r"`now:(?P<table>(?:[^`]|``)+)`(?P<search> AS t LEFT SEMI JOIN"
    rf" (?:`(?P<keys>keys:[0-9a-f]+)` AS k|(?P<rows>\(SELECT \*[^()]* FROM {_QUOTED}\)) AS j)"
    rf" ON (?P<same>(?:t\.{_QUOTED} <?=>? [kj]\.c\d+(?: AND )?)+))"
)
"""A search of an unchanged table for keys, or for the rows that rows are joined with."""
SEARCHED = re.compile(r"t\.`((?:[^`]|``)+)` <?=>? [kj]\.(c\d+)")
"""A column that is searched, and the one that has the keys."""
