"""Drafts of sources with their checks and tests, and what is reported of an import."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.partitions import literal_of
from persist_assets.operations.starting import written_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LISTS = ("not_null", "unique")
"""Kinds of checks that have a list of columns; the others have a block."""
_WIDTH = 96
_TAG = re.compile(r"[\w.-]{1,63}", re.ASCII)
_OWNER = re.compile(r"team:[\w.-]+|[^@\s]+@[^@\s]+\.\w+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Origin:
    """An object of the other tool's project, and its place.

    Attributes
    ----------
    kind
        ``model``, ``seed``, ``source``, ``test``, ``unit test`` and the like.
    path, line
        Its place, relative to that project.
    """

    kind: str
    name: str
    path: str
    line: int = 1


@dataclass(frozen=True, slots=True)
class NotCarried:
    """An object that is not imported, and the reason."""

    origin: Origin
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A planned check: its kind, its value, and the query for failing rows.

    Attributes
    ----------
    key
        The column, or the name of a condition; of ``unique`` the columns as a list.
    value
        The text after the key in a block.
    failing
        The query of failing rows, over ``{table}``.
    only_warns
        A failure does not stop anything.
    keeps_failures
        Failing rows are stored. All checks of one kind store them, or none does.
    notes
        What should be looked at.
    """

    origin: Origin
    kind: str
    key: str
    value: str
    failing: str
    only_warns: bool = False
    keeps_failures: bool = False
    notes: tuple[str, ...] = ()


@dataclass
class Draft:
    """A source to be.

    Attributes
    ----------
    path
        The file that it is written to.
    sql
        Its query, or the whole statement of a raw table.
    keys
        Parts of its annotation besides checks: ``owner="team:sales"``.
    """

    origin: Origin
    name: str
    path: str
    sql: str
    is_raw: bool = False
    is_persisted: bool = False
    keys: list[str] = field(default_factory=list)
    description: str = ""
    rules: list[Rule] = field(default_factory=list)
    reads: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """A test of a source with made-up rows.

    Attributes
    ----------
    body
        What stands in the file of tests, as plain values.
    """

    origin: Origin
    source: str
    path: str
    body: Mapping[str, Any]


@dataclass
class Drafts:
    """A project to be."""

    tool: str
    dialect: str
    sources: dict[str, Draft] = field(default_factory=dict)
    copies: dict[str, bytes] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    not_carried: list[NotCarried] = field(default_factory=list)
    to_fill_in: dict[str, str] = field(default_factory=dict)
    """The information about raw tables that the user has to fill in, by name."""
    dialect_from: str = ""
    """What states the dialect, and its place."""

    def skip(self, origin: Origin, reason: str, hint: str | None = None) -> None:
        """Record that an object is not imported."""
        self.not_carried.append(NotCarried(origin, reason, hint))


def text_of(draft: Draft) -> tuple[str, Mapping[int, Sequence[Rule]], Sequence[Rule]]:
    """Return the text of a source's file, the checks by line, and the checks that do not fit.

    Checks of one kind share a severity, and each has its own key: the first ones fit.
    """
    lines = _wrapped("--@ persist" if draft.is_persisted else "--@", draft.keys)
    by_line: dict[int, list[Rule]] = {}
    homeless: list[Rule] = []
    by_kind: dict[str, list[Rule]] = {}
    for rule in draft.rules:
        present = by_kind.setdefault(rule.kind, [])
        fits = not present or present[0].only_warns == rule.only_warns
        if fits and rule.key not in [p.key for p in present]:
            present.append(rule)
        else:
            homeless.append(rule)
    for kind, rules in by_kind.items():
        shared = " severity=warn" if rules[0].only_warns else ""
        shared += " keep_failures=true" if all(rule.keeps_failures for rule in rules) else ""
        if kind in _LISTS:
            listed = ", ".join(rule.key for rule in rules)
            block = f" {{{shared} }}" if shared else ""
            lines.append(f"--@ check {{ {kind}=[{listed}]{block} }}")
            by_line[len(lines)] = rules
            continue
        for rule in rules:
            lines.append(f"--@ check {{ {kind} {{ {rule.key}{rule.value}{shared} }} }}")
            by_line[len(lines)] = [rule]
    lines += [f"-- {line}".rstrip() for line in draft.description.splitlines()]
    sql = draft.sql.strip("\n")
    if draft.is_raw:
        return "\n".join([*lines, sql, ""]), by_line, homeless
    end = ";" if "--" not in sql.splitlines()[-1] else "\n;"
    lines += [f"CREATE VIEW {written_name(draft.name)} AS", f"{sql}{end}"]
    return "\n".join([*lines, ""]), by_line, homeless


def _wrapped(start: str, parts: Sequence[str]) -> list[str]:
    """Return annotation lines with some parts; none if there are no parts."""
    lines, line = list[str](), start
    for part in parts:
        if len(line) + len(part) >= _WIDTH and line not in ("--@", "--@ persist"):
            lines.append(line)
            line = "--@"
        line += f" {part}"
    return lines if line == "--@" else [*lines, line]


# ----------------------------------------------------------------------- parts of annotations


def text(value: str) -> str:
    """Return a text, with its white space, as a value of an annotation."""
    plain = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if _is_plain(c) else f"\\u{ord(c):04x}" for c in plain) + '"'


def _is_plain(char: str) -> bool:
    """Whether a character can stand in a line of an annotation."""
    return char >= " " and char not in "\x7f\x85\u2028\u2029"


def word(value: str) -> str:
    """Return a name as a key or a value of an annotation."""
    return (
        value if re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) else text(" ".join(value.split()))
    )


def tags(names: Sequence[str], origin: Origin, drafts: Drafts) -> list[str]:
    """Return tags as a part of an annotation; list those that are not valid here."""
    for name in names:
        if not _TAG.fullmatch(name):
            reason = "a tag has at most 63 letters, digits, `_`, `-` and `.`"
            drafts.skip(Origin("tag", name, origin.path, origin.line), reason)
    fit = [text(name) for name in dict.fromkeys(names) if _TAG.fullmatch(name)]
    return [f"tags=[{', '.join(fit)}]"] if fit else []


def owner(name: str, origin: Origin, drafts: Drafts) -> list[str]:
    """Return an owner as a part of an annotation; list a name that is not valid here."""
    if _OWNER.fullmatch(name):
        return [f"owner={text(name)}"]
    reason = "owners are e-mail addresses or teams"
    hint = f'add owner="team:…" to `{origin.name}`'
    drafts.skip(Origin("owner", name, origin.path, origin.line), reason, hint)
    return []


# --------------------------------------------------------------------------------- checks


def not_null(origin: Origin, column: str, *, only_warns: bool = False) -> Rule:
    """Return the check that a column has no NULL."""
    failing = f"SELECT * FROM {{table}} WHERE {_column(column)} IS NULL"
    return Rule(origin, "not_null", word(column), "", failing, only_warns)


def unique(origin: Origin, columns: Sequence[str], *, only_warns: bool = False) -> Rule:
    """Return the check that no two rows share a key; keys with a NULL are not compared."""
    names = ", ".join(map(_column, columns))
    not_null = " AND ".join(f"{_column(c)} IS NOT NULL" for c in columns)
    failing = (
        f"SELECT {names}, count(*) AS n_rows FROM {{table}}"
        f" WHERE {not_null} GROUP BY {names} HAVING count(*) > 1"
    )
    key = f"[{', '.join(map(word, columns))}]"
    return Rule(origin, "unique", key, "", failing, only_warns)


def accepted(
    origin: Origin, column: str, values: Sequence[str | float], *, only_warns: bool = False
) -> Rule:
    """Return the check that a column has no other values than some, or NULL."""
    listed = ", ".join(text(v) if isinstance(v, str) else str(v).lower() for v in values)
    literals = ", ".join(literal_of(v) if isinstance(v, str) else str(v).lower() for v in values)
    failing = f"SELECT * FROM {{table}} WHERE {_column(column)} NOT IN ({literals})"
    return Rule(origin, "accepted_values", word(column), f"=[{listed}]", failing, only_warns)


def relationship(
    origin: Origin, column: str, other: str, key: str, *, only_warns: bool = False
) -> Rule:
    """Return the check that each value of a column is in a column of another source, or NULL."""
    name, other_column = _column(column), _column(key)
    failing = (
        f"SELECT a.* FROM {{table}} AS a LEFT ANTI JOIN {written_name(other)} AS b"
        f" ON a.{name} = b.{other_column} WHERE a.{name} IS NOT NULL"
    )
    value = f"={text(f'{other}.{key}')}"
    return Rule(origin, "relationship", word(column), value, failing, only_warns)


def condition(
    origin: Origin,
    name: str,
    sql: str,
    *,
    only_warns: bool = False,
    notes: tuple[str, ...] = (),
) -> Rule:
    """Return the check that a condition is false for no row."""
    failing = f"SELECT * FROM {{table}} WHERE NOT ({sql})"
    return Rule(origin, "expr", word(name), f"={text(sql)}", failing, only_warns, notes=notes)


def row_count(origin: Origin, least: int, *, only_warns: bool = False) -> Rule:
    """Return the check that there are at least so many rows."""
    failing = f"SELECT count(*) AS n_rows FROM {{table}} HAVING count(*) < {least}"
    return Rule(origin, "row_count", "min", f"={least}", failing, only_warns)


def _column(name: str) -> str:
    """Return a column as SQL."""
    return written_name(name) if re.fullmatch(r"\w+", name) else quote(name)
