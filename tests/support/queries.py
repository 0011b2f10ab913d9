"""The queries of tests/queries: read from their files, edited, mutated and digested. No Spark.

All edits are made of the tokens of the text, so that a query stays as it was written elsewhere.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from conftest import ROOT, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

QUERIES = ROOT / "tests" / "queries"
SUITES = ("tpch", "star")
_TOKEN = re.compile(r"--[^\n]*|'[^']*'|\s+|\d+\.\d+|\w+|<=>|<=|>=|<>|->|.", re.DOTALL)
_ENDS = frozenset(
    """
    GROUP ORDER HAVING LIMIT UNION EXCEPT INTERSECT WINDOW WHERE JOIN LEFT RIGHT FULL INNER CROSS
    LATERAL SELECT FROM
    """.split()
)
_KEYWORDS = _ENDS | frozenset(
    """
    AND OR NOT IN IS NULL EXISTS BETWEEN LIKE CASE WHEN THEN ELSE END AS ON BY DISTINCT OVER
    PARTITION OUTER ALL WITH ROLLUP CUBE SETS ROWS RANGE
    """.split()
)


@cache
def tables(suite: str) -> str:
    """Return the statements that declare a suite's raw tables."""
    return (QUERIES / f"{suite}_tables.sql").read_text()


@cache
def schema(suite: str) -> dict[str, dict[str, str]]:
    """Return the types of each table's columns."""
    found: dict[str, dict[str, str]] = {}
    for name, columns in re.findall(r"CREATE TABLE (\w+) \((.*)\) USING", tables(suite)):
        found[name] = dict(re.findall(r"(\w+) ([A-Z]+(?:\([\d,]+\)|<[^>]*>)?)", columns))
    return found


@cache
def queries(suite: str) -> dict[str, str]:
    """Return the queries of a suite by their titles."""
    blocks = (QUERIES / f"{suite}.sql").read_text().split("-- # ")[1:]
    return {title: query.strip() for title, query in (b.split("\n", 1) for b in blocks)}


def project(suite: str, query: str) -> Project:
    """Return a project of the suite's tables and one query, `q`."""
    return compiled({"raw.sql": tables(suite), "q.sql": f"CREATE VIEW q AS {query}"})


def meaning(suite: str, query: str) -> Source | None:
    """Return the compiled query, or None where it is refused."""
    made = project(suite, query)
    return None if made.errors else made.by_id["q@sources/q.sql"]


def is_analysed(source: Source) -> bool:
    """Return whether a query is not treated as a whole."""
    return not any("as a whole" in note for note in source.notes)


# -------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class Clause:
    """Where the parts of a clause are: pairs of the first token and the one after the last."""

    kind: str
    parts: tuple[tuple[int, int], ...]


def _depths(tokens: Sequence[str]) -> list[int]:
    """Return how deep each token is in parentheses and CASEs; both brackets are outside."""
    depth, out = 0, list[int]()
    for token in tokens:
        word = token.upper()
        depth -= word in (")", "END", "]")
        out.append(depth)
        depth += word in ("(", "CASE", "[")
    return out


def _clauses(tokens: Sequence[str]) -> Iterator[Clause]:
    """Yield conditions, cut at their ANDs, and lists of relations, cut at their commas."""
    depths = _depths(tokens)
    for i, token in enumerate(tokens):
        kind = token.upper()
        if kind not in ("WHERE", "ON", "HAVING", "FROM"):
            continue
        cut = "," if kind == "FROM" else "AND"
        parts, start, between, simple, end = list[tuple[int, int]](), i + 1, False, True, i
        for end in range(i + 1, len(tokens) + 1):
            word = tokens[end].upper() if end < len(tokens) else ")"
            here = depths[end] if end < len(tokens) else -1
            if here < depths[i] or (here == depths[i] and (word in _ENDS or word == ";")):
                simple = simple and not (kind == "FROM" and word in _JOINS)
                break
            if here > depths[i]:
                continue
            if word == "BETWEEN":
                between = True
            elif word == "AND" and between:
                between = False
            elif word == cut:
                parts.append((start, end))
                start = end + 1
            elif word == "OR" or (kind == "ON" and word == ","):
                simple = False
        parts.append((start, end))
        if simple and _call_around(tokens, i) not in ("EXTRACT", "SUBSTRING"):
            yield Clause("relations" if kind == "FROM" else "conditions", tuple(parts))


_JOINS = frozenset(("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "LATERAL"))


def _call_around(tokens: Sequence[str], at: int) -> str:
    """Return the word before the parenthesis that a token is directly in, or nothing."""
    depth = 0
    for i in range(at - 1, -1, -1):
        if tokens[i] == ")":
            depth += 1
        elif tokens[i] == "(":
            if depth == 0:
                return tokens[i - 1].upper() if i and tokens[i - 1].strip() else ""
            depth -= 1
    return ""


def _text(tokens: Sequence[str], span: tuple[int, int]) -> str:
    return "".join(tokens[span[0] : span[1]]).strip()


def _with_parts(tokens: Sequence[str], clause: Clause, parts: Sequence[str]) -> str:
    glue = ", " if clause.kind == "relations" else " AND "
    first, last = clause.parts[0][0], clause.parts[-1][1]
    return "".join([*tokens[:first], " ", glue.join(parts), " ", *tokens[last:]])


def _rewrite(query: str, kind: str, change: Callable[[list[str]], list[str]]) -> str:
    """Return a query with the parts of all clauses of a kind changed, inner ones last."""
    n = sum(c.kind == kind for c in _clauses(_TOKEN.findall(query)))
    for number in range(n):
        tokens = _TOKEN.findall(query)
        found = [c for c in _clauses(tokens) if c.kind == kind]
        if number < len(found):
            clause = found[number]
            query = _with_parts(tokens, clause, change([_text(tokens, p) for p in clause.parts]))
    return query


# --------------------------------------------------------------------------------------- edits


def shuffle_conjuncts(query: str, draw: random.Random) -> str:
    return _rewrite(query, "conditions", lambda parts: draw.sample(parts, len(parts)))


def shuffle_relations(query: str, draw: random.Random) -> str:
    if "LATERAL (" in query:
        return query
    return _rewrite(query, "relations", lambda parts: draw.sample(parts, len(parts)))


def add_parentheses(query: str, draw: random.Random) -> str:
    return _rewrite(query, "conditions", lambda parts: [f"({p})" for p in parts])


def flip_equations(query: str, draw: random.Random) -> str:
    def flip(part: str) -> str:
        tokens = _TOKEN.findall(part)
        depths = _depths(tokens)
        top = [t.upper() for t, d in zip(tokens, depths, strict=True) if d == 0]
        others = {"NOT", "IS", "LIKE", "IN", "BETWEEN", "<", ">", "<=", ">=", "<>", "<=>", "->"}
        if top.count("=") != 1 or others & set(top):
            return part
        at = next(i for i, t in enumerate(tokens) if t == "=" and depths[i] == 0)
        return f"{''.join(tokens[at + 1 :]).strip()} = {''.join(tokens[:at]).strip()}"

    return _rewrite(query, "conditions", lambda parts: [flip(p) for p in parts])


def respell(query: str, draw: random.Random) -> str:
    """Change the case of key words, white space and comments."""
    out = list[str]()
    tokens = _TOKEN.findall(query)
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        if token.isspace():
            # The parser takes GROUP BY for one word, and refuses a comment in it.
            comments = [] if after.upper() == "BY" else [" /* why */ ", " -- so\n"]
            token = draw.choice([" ", "\n", "  \t", *comments])
        elif token.upper() in _KEYWORDS:
            token = draw.choice([token.upper(), token.lower(), token.capitalize()])
        out.append(token)
    return "".join(out)


def rename_relations(query: str, draw: random.Random) -> str:
    """Give other names to aliases and common table expressions."""
    tokens = _TOKEN.findall(query)
    names = set(re.findall(r"\b([A-Za-z_]\w*)\.", query))
    names |= set(re.findall(r"(?:WITH|,)\s+(\w+)\s+AS\s+\(SELECT", query))
    columns = set(re.findall(r"\.(\w+)", query)) | {w.lower() for w in _KEYWORDS}
    columns |= set(re.findall(r"\bAS (\w+)(?= *,| FROM)", query)) | set(
        re.findall(r"(?<=[,(] )(\w+)(?= *[,)])", query)
    )
    known = {c for suite in SUITES for t in schema(suite).values() for c in t}
    renamed = {n: f"{n}_{draw.randrange(100)}" for n in sorted(names - columns - known)}
    raw = {t for suite in SUITES for t in schema(suite)}
    return "".join(renamed.get(t, t) if t not in raw else t for t in tokens)


def inline_expressions(query: str, draw: random.Random) -> str:
    """Put common table expressions where they are read."""
    while match := re.match(r"(?is)\s*WITH\s+(\w+)\s+AS\s+\(", query):
        tokens = _TOKEN.findall(query)
        depths, name = _depths(tokens), match[1]
        start = next(i for i, t in enumerate(tokens) if t == "(")
        end = next(i for i in range(start + 1, len(tokens)) if tokens[i] == ")" and not depths[i])
        body = "".join(tokens[start : end + 1])
        rest = "".join(tokens[end + 1 :]).strip()
        rest = f"WITH {rest[1:]}" if rest.startswith(",") else rest
        query = re.sub(
            rf"(?i)\b(FROM|JOIN|,)(\s+){name}\b(?!\.)(?!\s+AS\s+\()(\s+(?:AS\s+)?\w+)?",
            lambda m, body=body, name=name: (
                f"{m[1]}{m[2]}{body} {name}{m[3] or ''}"
                if m[3] is None or m[3].split()[-1].upper() in _KEYWORDS
                else f"{m[1]}{m[2]}{body}{m[3]}"
            ),
            rest,
        )
    return query


EDITS: tuple[Callable[[str, random.Random], str], ...] = (
    shuffle_conjuncts,
    shuffle_relations,
    add_parentheses,
    flip_equations,
    respell,
    rename_relations,
    inline_expressions,
)
"""What keeps the meaning of a query."""


def edited(query: str, seed: str) -> dict[str, str]:
    """Return versions of one meaning: one for each edit that changes the text, and all in one."""
    found: dict[str, str] = {}
    together = query
    for edit in EDITS:
        text = edit(query, random.Random(f"{seed} {edit.__name__}"))
        if text != query:
            found[edit.__name__] = text
        # Comments would hide words from the edits that come after.
        if edit is not respell:
            together = edit(together, random.Random(f"{seed} {edit.__name__}"))
    found["all of them"] = respell(together, random.Random(seed))
    return found


# ----------------------------------------------------------------------------------- mutations

_INSTEAD = {
    "LEFT": "RIGHT", "RIGHT": "LEFT", "FULL": "LEFT", "SEMI": "ANTI", "ANTI": "SEMI",
    "UNION": "EXCEPT", "EXCEPT": "INTERSECT", "INTERSECT": "UNION", "CUBE": "ROLLUP",
    "ROLLUP": "CUBE", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<=>", "<>": "=",
    "SUM": "max", "MAX": "min", "MIN": "max", "AVG": "sum", "RANK": "dense_rank", "AND": "OR",
    "EXISTS": "NOT EXISTS", "DESC": "", "DISTINCT": "", "OUTER": "", "ALL": "", "JOIN": "LEFT JOIN",
    "PRECEDING": "FOLLOWING",
}  # fmt: skip


def mutated(suite: str, query: str) -> Iterator[tuple[str, str]]:
    """Yield what was changed and a query that may mean something else, one for each token."""
    tokens = _TOKEN.findall(query)
    columns = {c: t for t, cs in schema(suite).items() for c in cs}
    for i, token in enumerate(tokens):
        instead, what = None, "word"
        if token.isdigit():
            what, instead = "literal", str(int(token) + 1)
        elif token.startswith("'"):
            what = "literal"
            year = re.match(r"'(\d{4})-", token)
            instead = f"'{int(year[1]) - 1}{token[5:]}" if year else f"'{token[1:-1]}1'"
        elif token in columns:
            what, of = "column", schema(suite)[columns[token]]
            same = [c for c in of if of[c] == of[token]]
            instead = same[(same.index(token) + 1) % len(same)]
        elif token.upper() == "SELECT":
            what, instead = "distinct", "SELECT DISTINCT"
        elif token.upper() in _INSTEAD:
            instead = _INSTEAD[token.upper()]
        if instead is not None and instead != token:
            place = f"{what} {token} at {i}"
            yield place, "".join([*tokens[:i], instead, *tokens[i + 1 :]])
    for clause in _clauses(tokens):
        if clause.kind == "conditions" and len(clause.parts) > 1:
            texts = [_text(tokens, p) for p in clause.parts]
            for k, text in enumerate(texts):
                kept = [*texts[:k], *texts[k + 1 :]]
                yield f"without {text}", _with_parts(tokens, clause, kept)
