"""Differences between two meanings of a source, and between two projects. Pure.

The invariant: this module explains and decides nothing. BuildIDs alone decide what is built;
differences are those of their parts, so that two equal BuildIDs are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from persist_assets.core.dialect import parse, plain, tokenize
from persist_assets.core.languages import SQL
from persist_assets.core.model.sources import Read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.core.model.columns import Parts
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, Query, SourceID
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.model.sources import Source


# ------------------------------------------------------------------------------ parts of meanings


@dataclass(frozen=True, slots=True)
class Difference:
    """The parts in which two meanings differ.

    Attributes
    ----------
    rows
        The rows differ.
    changed, added, removed
        Names of columns, in their order.
    renamed
        Pairs of an old and a new name of the same column.
    """

    rows: bool = False
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    all_changed: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that differs, by each of its names."""
        renamed = (name for pair in self.renamed for name in pair)
        return (*self.changed, *self.added, *self.removed, *renamed)


def differ(before: Parts, after: Parts) -> Difference:
    """Return the parts in which two meanings differ.

    Examples
    --------
    >>> from persist_assets.core.model.columns import Parts
    >>> differ(Parts("r", (("a", "1"), ("b", "2"))), Parts("r", (("a", "1"), ("b", "3")))).changed
    ('b',)
    """
    old, new = dict(before.columns), dict(after.columns)
    both = [name for name in new if name in old]
    changed = tuple(name for name in both if new[name] != old[name])
    gone = {name: digest for name, digest in old.items() if name not in new}
    renamed: list[tuple[str, str]] = []
    added: list[str] = []
    for name, digest in new.items():
        if name in old:
            continue
        same = next((n for n, d in gone.items() if d == digest), None)
        if same is None:
            added.append(name)
        else:
            del gone[same]
            renamed.append((same, name))
    return Difference(
        rows=before.rows != after.rows,
        changed=changed,
        added=tuple(added),
        removed=tuple(gone),
        renamed=tuple(renamed),
        all_changed=len(changed) == len(both) > 1,
    )


def in_words(difference: Difference, of: str = "") -> str:
    """Return a difference in words.

    Parameters
    ----------
    of
        The owner of the columns and rows; empty for "its".

    Examples
    --------
    >>> in_words(Difference(changed=("x", "y"), added=("z",)))
    'columns x, y changed, column z added'
    >>> in_words(Difference(rows=True), "p")
    'the rows of p changed (WHERE, JOIN, …)'
    """
    d, whose = difference, f" of {of}" if of else ""
    rows = f"the rows{whose}" if of else "its rows"
    phrases: list[str] = []
    if d.rows and d.all_changed:
        phrases.append(f"{rows} and all columns changed (FROM, WHERE, JOIN, …)")
    else:
        if d.rows:
            phrases.append(f"{rows} changed (WHERE, JOIN, …)")
        phrases += _columns_in_words(d.changed, "changed", whose)
    phrases += _columns_in_words(d.added, "added", whose)
    phrases += _columns_in_words(d.removed, "removed", whose)
    phrases += [f"column {before}{whose} renamed to {after}" for before, after in d.renamed]
    return ", ".join(phrases)


def _columns_in_words(names: Sequence[str], change: str, whose: str) -> Iterable[str]:
    if names:
        yield f"column{'s' * (len(names) > 1)} {', '.join(names)}{whose} {change}"


def recorded_reads(project: Project, source: Source) -> tuple[Read, ...]:
    """Return the record of inputs that a build of `source` stores."""
    reached = project.reach(source.bindings, lambda s: s.is_leaf)
    return tuple(Read(s.source_id, s.definition, s.digests) for s in reached)


def changed_inputs(
    project: Project, source: Source, last: Build
) -> tuple[tuple[Source, Difference], ...]:
    """Return the inputs of `source` whose meaning changed since its last build, and how.

    Dissolved sources count if their own definition changed; leaves count only for the columns that
    `source` is known to be computed from, unless nothing else is found.
    """
    used_columns = _leaf_columns(project, source)
    then = {read.source_id: read for read in last.reads}
    differences: list[tuple[Source, Difference]] = []
    less: list[tuple[Source, Difference]] = []
    for upstream in project.reach(source.bindings, lambda s: s.is_leaf):
        before = then.get(upstream.source_id)
        if before is None or before.digests == upstream.digests:
            continue
        if not upstream.is_leaf and before.definition == upstream.definition:
            continue
        difference = differ(before.digests, upstream.digests)
        used = {
            name
            for name in difference.columns
            if {(upstream.source_id, name), (upstream.source_id, None)} & used_columns
        }
        matters = not upstream.is_leaf or difference.rows or used
        if upstream.is_leaf and used:
            difference = _limited_to(difference, used)
        (differences if matters else less).append((upstream, difference))
    return tuple(differences or less)


def _leaf_columns(
    project: Project, source: Source, columns: Sequence[str] | None = None
) -> set[tuple[SourceID, str | None]]:
    """Return the leaf columns that some of a source's columns are computed from, None for any."""
    if source.function is None:
        return {
            (edge.upstream.source_id, edge.upstream.column)
            for edge in source.lineage
            if columns is None or edge.column in columns
        }
    leaf_columns: set[tuple[SourceID, str | None]] = set()
    for parameter, source_id in zip(source.function.frames, source.bindings, strict=True):
        upstream = project.by_id[source_id]
        if upstream.is_leaf:
            leaf_columns |= {(source_id, name) for name in parameter.columns or (None,)}
        else:
            leaf_columns |= _leaf_columns(project, upstream, parameter.columns)
    return leaf_columns


def _limited_to(difference: Difference, names: set[str]) -> Difference:
    """Return a difference limited to some columns."""
    d = difference
    return Difference(
        d.rows,
        tuple(n for n in d.changed if n in names),
        tuple(n for n in d.added if n in names),
        tuple(n for n in d.removed if n in names),
        tuple(pair for pair in d.renamed if names & {*pair}),
        d.all_changed,
    )


# ------------------------------------------------------------------------------- states of sources


@dataclass(frozen=True, slots=True)
class Standing:
    """The meaning of a source in one place: in files, or in an environment.

    Attributes
    ----------
    digests
        None if the parts are not known.
    query
        None if the text is not known.
    reads
        The SourceIDs it names, as far as they are known.
    """

    source_id: SourceID
    build_id: BuildID
    digests: Parts | None
    query: Query | None = None
    reads: tuple[SourceID, ...] = ()
    persisted: bool = True


Standings = dict[str, Standing]
"""Meanings of sources in one place, by SourceID."""


def of_project(project: Project) -> Standings:
    """Return the meanings of a project's sources.

    Only SQL texts can be compared: Malloy's SQL is generated.
    """
    queries = {s.source_id: s.query for s in project.sources if s.language == SQL}
    return {
        s.source_id: Standing(
            s.source_id, s.build_id, s.digests, queries.get(s.source_id), s.reads, s.persisted
        )
        for s in project.sources
    }


def of_builds(builds: Iterable[Build]) -> Standings:
    """Return the meanings of sources when they were built."""
    return {b.source_id: Standing(b.source_id, b.build_id, b.digests) for b in builds}


@dataclass(frozen=True, slots=True)
class Expression:
    """The text of a column, or of the rows if `column` is None, before and after, if known."""

    column: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of a source between two places.

    Attributes
    ----------
    columns
        Names of the changed, added and removed columns.
    rows_changed
        None if it is not known.
    because
        The sources it names that changed too.
    """

    source_id: SourceID
    change: Literal["same", "added", "removed", "changed"]
    columns: tuple[str, ...] = ()
    rows_changed: bool | None = False
    expressions: tuple[Expression, ...] = ()
    because: tuple[SourceID, ...] = ()


def to_rebuild(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> int:
    """Return how many tables `after` has that `before` lacks."""
    had = {s.build_id for s in before.values() if s.persisted}
    return len({s.build_id for s in after.values() if s.persisted} - had)


def compare(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> tuple[Change, ...]:
    """Return the change of every source of either place, in the order of `after`."""
    changes: list[Change] = []
    differing = {
        s for s, b in before.items() if s not in after or after[s].build_id != b.build_id
    } | (after.keys() - before.keys())
    for source_id in (*after, *(s for s in before if s not in after)):
        old, new = before.get(source_id), after.get(source_id)
        if old is None or new is None:
            digests = [s.digests for s in (old, new) if s is not None and s.digests is not None]
            names = tuple(name for d in digests for name, _ in d.columns)
            kind = "removed" if new is None else "added"
            changes.append(
                Change(source_id, kind, names, None, _expressions(old, new, names, rows=False))
            )
        elif old.build_id == new.build_id:
            changes.append(Change(source_id, "same"))
        else:
            certain = old.digests is not None and new.digests is not None
            difference = differ(old.digests, new.digests) if old.digests and new.digests else None
            names = difference.columns if difference else ()
            rows = difference is None or difference.rows
            changes.append(
                Change(
                    source_id,
                    "changed",
                    names,
                    rows if certain else None,
                    _expressions(old, new, names, rows=rows),
                    tuple(s for s in new.reads if s in differing),
                )
            )
    return tuple(changes)


def _expressions(
    old: Standing | None, new: Standing | None, names: Iterable[str], *, rows: bool
) -> tuple[Expression, ...]:
    """Return the texts of differing parts, except where the texts are equal or not known."""
    before = items(old.query) if old is not None and old.query is not None else Items()
    after = items(new.query) if new is not None and new.query is not None else Items()
    pairs: list[tuple[str | None, str | None, str | None]] = [
        (n, before.texts.get(n), after.texts.get(n)) for n in names
    ]
    if rows:
        pairs.append((None, before.rest, after.rest))
    expressions = (Expression(*pair) for pair in pairs)
    return tuple(
        e
        for e in expressions
        if e.before != e.after and (e.before is not None or e.after is not None)
    )


# ---------------------------------------------------------------------------------------- wording


@dataclass(frozen=True, slots=True)
class Items:
    """The select list of a query in the user's own words.

    Attributes
    ----------
    starts
        For each column that the list names, where its expression begins in the text.
    texts
        The expressions themselves.
    rest
        The text after the list: FROM, WHERE, …; None if it is not known.
    """

    starts: Mapping[str, int] = field(default_factory=dict[str, int])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    rest: str | None = None


_ENDS = frozenset(
    (
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
        TokenType.UNION,
        TokenType.EXCEPT,
        TokenType.INTERSECT,
    )
)
_OPENING = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE))
_CLOSING = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE))


def items(query: Query) -> Items:
    """Return the outermost select list of a query, or no items if it cannot be found."""
    text = query.text
    tree = parse(text)
    if not isinstance(tree, exp.Query):
        return Items()
    tokens = tokenize(text)
    select_items, end = _select_items(tokens)
    if len(tree.selects) != len(select_items):
        return Items()
    starred = any(isinstance(s, exp.Star) or s.is_star for s in tree.selects)
    if query.column_names and not starred:
        names: Sequence[str] = query.column_names
    else:
        names = [plain(s.alias_or_name) for s in tree.selects]
    texts: dict[str, str] = {}
    starts: dict[str, int] = {}
    for name, item in zip(names, select_items, strict=False):
        if name and name != "*":
            last = (
                item[-3] if len(item) > 2 and item[-2].token_type == TokenType.ALIAS else item[-1]
            )
            texts[name] = text[item[0].start : last.end + 1]
            starts[name] = item[0].start
    rest = text[tokens[end].start :] if end < len(tokens) else ""
    return Items(starts, texts, rest.rstrip("; \n"))


def _select_items(tokens: Sequence[Token]) -> tuple[list[list[Token]], int]:
    """Return the tokens of each item of the first outermost SELECT, and where its list ends."""
    item_tokens: list[list[Token]] = [[]]
    depth, started = 0, False
    for at, token in enumerate(tokens):
        kind = token.token_type
        depth -= kind in _CLOSING
        if depth == 0 and not started:
            started = kind == TokenType.SELECT
        elif started and depth == 0 and kind in _ENDS:
            return [f for f in item_tokens if f], at
        elif started and depth == 0 and kind == TokenType.COMMA:
            item_tokens.append([])
        elif started and (item_tokens[-1] or kind not in (TokenType.DISTINCT, TokenType.ALL)):
            item_tokens[-1].append(token)
        depth += kind in _OPENING
    return [f for f in item_tokens if f], len(tokens)


def line_of(source: Source, column: str) -> int:
    """Return the line of a file that defines a column of a source, else the line of the source."""
    query = source.query
    own = (
        r for r in (query.references if query else ()) if r.location.path == source.location.path
    )
    reference = next(own, None)
    if query is None or reference is None or source.language != SQL:
        return source.location.line
    start = items(query).starts.get(column)
    if start is None:
        return source.location.line
    first = reference.location.line - query.text.count("\n", 0, reference.start)
    return first + query.text.count("\n", 0, start)
