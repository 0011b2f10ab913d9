"""The answer of Malloy's compiler for a file → declarations. Pure.

A Malloy source becomes a Spark SQL query that Malloy's compiler wrote, and is then treated like any
other. The invariant: an annotation that Malloy would silently ignore is a problem, and no source
has rows other than those that Malloy would read under its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.compiler.frontends.annotations import misplaced, read_annotation
from persist_assets.compiler.frontends.motly import Line
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.core.errors import Location, Problem, SourcesError
from persist_assets.core.languages import MALLOY
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import Declaration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.compiler.malloy.answers import MalloyModel, MalloySource, Note
    from persist_assets.core.model.annotations import Annotation
    from persist_assets.core.model.queries import Query

SUFFIX = ".malloy"
FLAG = "##! experimental.persistence"

ALL_ROWS_OF = "SELECT * FROM "
"""The start of the query that stands for a request about a table, before the table's name."""

UNCERTAIN = "uncertain"
"""The type of uncertain columns for Malloy: it passes such a column on, and requires a cast before
it computes with it."""

_KINDS = {
    "table": "a table source is the table itself, which already exists",
    "composite": "Malloy does not persist composite sources",
    "virtual": "a virtual source is a table under another name",
}
_OWN_COLUMNS = "make it a query: `source: NAME is … -> { select: * }`"


def declare(
    model: MalloyModel, definitions: Definitions = NO_DEFINITIONS
) -> tuple[list[Declaration], list[Problem]]:
    """Return the declarations of a file, and its problems.

    Some sources are for Malloy's own readers only: those without rows of their own (such as a table
    under another name), and those with filters or redefined columns that their SQL lacks.
    """
    problems = list(model.problems)
    declarations: list[Declaration] = []
    for source in model.sources:
        declaration, wrong = _declaration(model, source, definitions)
        problems += wrong
        if declaration is not None:
            declarations.append(declaration)
    for query in model.queries:
        problems += _nearly(query.notes)
        if query.persist:
            hint = f"persist a source: `source: NAME is {query.name}`"
            message = f"`{query.name}` is a query: Malloy persists sources only"
            problems.append(Problem("malloy-persist", message, query.location, hint))
    return declarations, problems


_ALMOST = "this looks like a persist annotation but is not one"
_WRITE = "write `#@ persist`"
_COMMENT = re.compile(r"^[ \t]*((?:--|//|##)[ \t]*@[ \t]*persist\b)", re.MULTILINE)


def comments_that_say_persist(text: str, path: str) -> Iterator[Problem]:
    """Yield a warning for each comment that looks like an annotation in SQL, or of a file."""
    for match in _COMMENT.finditer(text):
        place = _place(text, path, match.start(1))
        yield Problem("annotation-almost", _ALMOST, place, _WRITE, "warning")


def names_in(text: str, path: str) -> list[Declaration]:
    """Return placeholder declarations for the sources of a file that does not compile.

    References to them are not errors, and their names are taken.

    Examples
    --------
    >>> text = "source: a is b extend { measure: n is count() }, c is a query: q is c"
    >>> [d.name for d in names_in(text, "m.malloy")]
    ['a', 'c']
    """
    bare = _without_brackets(_NO_CODE.sub(_blank, text))
    places = {m.start(1): m[1] for m in _SOURCE.finditer(text)}
    for sources in _SOURCES.finditer(bare):
        places |= {m.start(1): m[1] for m in _IS.finditer(bare, *sources.span())}
    by_name: dict[str, Declaration] = {}
    for at, name in sorted(places.items()):
        if IDENTIFIER.fullmatch(name):
            by_name.setdefault(name.lower(), Declaration(name, MALLOY, _place(text, path, at)))
    return list(by_name.values())


_SOURCE = re.compile(r"^[ \t]*source:\s*`?(\w+)`?\s*(?:\([^()]*\)\s*)?\bis\b", re.MULTILINE)
_SOURCES = re.compile(r"(?<=\bsource:).*?(?=\b(?:source|query|run):|\Z)", re.DOTALL)
"""The items of a list of sources."""
_IS = re.compile(r"`?\b(\w+)`?\s+is\b")
_NO_CODE = re.compile(
    r'"""(?:.*?)"""|(?:--|//|#)[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _without_brackets(text: str) -> str:
    """Return a text with the content of closed brackets replaced by blanks."""
    opened: list[int] = []
    closed: list[tuple[int, int]] = []
    for match in re.finditer(r"[{}()\[\]]", text):
        if match[0] in "{([":
            opened.append(match.start())
        elif opened:
            closed.append((opened.pop(), match.end()))
    parts: list[str] = []
    end = 0
    for start, stop in sorted(closed):
        if start >= end:
            parts += text[end:start], " " * (stop - start)
            end = stop
    return "".join((*parts, text[end:]))


@dataclass(frozen=True, slots=True)
class Mentions:
    """The names in a file that its text alone shows.

    Attributes
    ----------
    queries
        The tables and SELECTs whose columns it needs.
    imports
        The paths of imported files.
    """

    queries: tuple[str, ...]
    imports: tuple[str, ...]


_TOKEN = re.compile(
    r"(?P<comment>(?:--|//|#)[^\n]*|/\*.*?\*/)"
    r'|"""(?P<block>.*?)"""'
    r"""|(?P<quote>['"`])(?P<text>(?:\\.|[^\\\n])*?)(?P=quote)"""
    r"|(?P<call>\.\s*(?:table|sql)\s*\(\s*|\bimport\b(?:\s*\{[^}]*\}\s*from\b)?\s*)",
    re.DOTALL,
)


def mentions(text: str, path: str) -> Mentions:
    """Return the names in a file: a guess, used only to order files.

    Examples
    --------
    >>> text = "import '../b.malloy'  // spark.table('old')"
    >>> mentions(text + "source: x is spark.table('a.t')", "sources/c/d.malloy").imports
    ('sources/b.malloy',)
    >>> mentions("source: x is spark.table('a.t')", "d.malloy").queries
    ('SELECT * FROM a.t',)
    """
    queries: list[str] = []
    imports: list[str] = []
    call, end = "", -1
    for token in _TOKEN.finditer(text):
        if token["comment"] is not None:
            continue
        if token["call"] is not None:
            call, end = token["call"].strip(), token.end()
            continue
        content = token["block"] if token["block"] is not None else token["text"]
        if token.start() != end or "\\" in content or "%{" in content:
            continue
        if call.startswith("import"):
            imports.append(normpath(join(dirname(path), content)))
        elif "table" in call:
            queries.append(ALL_ROWS_OF + content)
        else:
            queries.append(content)
    return Mentions(tuple(queries), tuple(imports))


def _place(text: str, path: str, at: int) -> Location:
    return Location(path, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def parse_malloys(sql: str, place: Location, definitions: Definitions = NO_DEFINITIONS) -> Query:
    """Return a query that Malloy wrote.

    Parameters
    ----------
    place
        The location of the definition behind it; the generated lines are of no use to users.
    definitions
        The functions and variables that it may use.

    Raises
    ------
    SourcesError
        It cannot be parsed.
    """
    query = parse_query(sql, place, definitions)
    for call in query.tree.find_all(exp.Uuid):
        # A key that identifies rows while arrays are unnested; no column shows it.
        if isinstance(call.parent, exp.Alias) and call.parent.alias == "__distinct_key":
            call.replace(exp.Anonymous(this="row_key"))
    return query


def _declaration(
    model: MalloyModel, source: MalloySource, definitions: Definitions
) -> tuple[Declaration | None, list[Problem]]:
    lines = [
        (Line(n.text[2:], replace(n.location, column=n.location.column + 2)), n.inherited)
        for n in source.notes
        if re.match(r"#@(\s|$)", n.text)
    ]
    annotation, problems = read_annotation([line for line, _ in lines])
    own_annotation, _ = read_annotation([line for line, inherited in lines if not inherited])
    # A parse error is reported once, in our words.
    if not any(p.severity == "error" for p in problems):
        problems += source.problems
    problems += _nearly(source.notes)
    declaration = Declaration(
        name=source.name,
        language=MALLOY,
        location=source.location,
        annotation=annotation,
        description=source.description,
        columns=tuple(Column(c.name, _spark_type(c.type)) for c in source.columns),
        malloy_ids=tuple(dict.fromkeys(i for i in (source.build_id, source.runtime_id) if i)),
    )
    broken = replace(declaration, columns=())
    if not any(p.severity == "error" for p in problems):
        refused = _refusal(model, source, annotation, inherited=not own_annotation.persist)
        if refused is not None:
            message, hint = refused
            place = dict(own_annotation.keys).get("persist", source.location)
            problems.append(Problem("malloy-persist", message, place, hint))
    if any(p.severity == "error" for p in problems):
        return (broken if IDENTIFIER.fullmatch(source.name) else None), problems
    # An inherited annotation has a meaning at its own location.
    problems += misplaced(
        replace(declaration, annotation=replace(annotation, keys=own_annotation.keys))
    )
    if not declaration.is_persistent:  # inherited checks are those of the table
        declaration = replace(declaration, annotation=replace(annotation, checks=()))
    if source.sql is None or source.filtered or source.redefined:
        return None, problems
    if not IDENTIFIER.fullmatch(source.name):
        return None, problems
    try:
        query = parse_malloys(source.sql, source.location, definitions)
    except SourcesError as error:
        return broken, [*problems, *error.problems]
    return replace(declaration, query=query), problems


def _refusal(
    model: MalloyModel, source: MalloySource, annotation: Annotation, *, inherited: bool
) -> tuple[str, str] | None:
    """Return why a source marked `persist` would not be persisted, with a hint.

    If `persist` is inherited, a filter does not matter: Malloy's readers read the table of the
    extended source, and filter it.
    """
    name = source.name
    if bool(annotation.persist) != source.persist:
        return (
            f"Malloy reads the annotation of `{name}` differently",
            "write it plainly: #@ persist",
        )
    if not annotation.persist:
        return None
    if not model.flag:
        return f"`{name}` is not persisted: this file does not enable it", f"begin it with {FLAG}"
    if source.parameters:
        names = ", ".join(source.parameters)
        return f"`{name}` has parameters ({names}): Malloy does not persist it", _OWN_COLUMNS
    if source.kind in _KINDS:
        return f"`{name}` cannot be persisted: {_KINDS[source.kind]}", _OWN_COLUMNS
    if source.sql is None:
        return f"Malloy does not persist `{name}` ({source.kind})", _OWN_COLUMNS
    if source.filtered and not inherited:
        return (
            f"the table of `{name}` would lack its filter: Malloy persists what it extends",
            "remove persist, or filter in a query: `… -> { select: *; where: … }`",
        )
    if source.redefined:
        return (
            f"the table of `{name}` would use the earlier definition of `{source.redefined[0]}`",
            "use `#@ -persist`, or redefine it in a query: `… -> { select: … }`",
        )
    if not IDENTIFIER.fullmatch(name):
        return f"invalid source name `{name}`", "use letters, digits and underscores"
    return None


_NEARLY = re.compile(r"#\s*@?\s*persist\b|#\s+@\s")


def _nearly(notes: tuple[Note, ...]) -> Iterator[Problem]:
    """Yield a warning for each annotation that looks like one of ours and is not."""
    for note in notes:
        if not note.inherited and not note.text.startswith("#@") and _NEARLY.match(note.text):
            yield Problem("annotation-almost", _ALMOST, note.location, _WRITE, "warning")


_SPARK_TYPES = {"integer": "int", "float": "double", "number": "double", "timestamptz": "timestamp"}


def _spark_type(malloys: str) -> str:
    """Return Spark's name of a Malloy type, close enough for compilation."""
    return re.sub(rf"\b({'|'.join(_SPARK_TYPES)})(?=[,>]|$)", lambda m: _SPARK_TYPES[m[1]], malloys)
