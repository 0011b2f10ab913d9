"""What Malloy's compiler answers, as values. Pure.

The program in `bridge_js/`, which `make bridge` bundles into `dist/bridge.cjs`, holds the compiler;
`bridge.py` runs it. This module reads its answers, lines of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.model.queries import BuildID, SourceID

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Note:
    """An annotation as it is written, its marker included (``#@ persist``).

    Attributes
    ----------
    inherited
        It stands above a source that this one extends.
    """

    text: str
    location: Location
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class MalloyColumn:
    """A column of a source's rows, or of a query's.

    Attributes
    ----------
    type
        In Malloy's words: ``string``, ``integer``, ``bigint``, ``float``, ``number``, ``boolean``,
        ``date``, ``timestamp``, ``array<…>``, ``struct<name:…>``; what is not one of its types has
        the name it has in Spark.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class MalloyDefinition:
    """What a file defines: here, a named query.

    Attributes
    ----------
    location
        Of its name.
    notes
        Its annotations, inherited ones first.
    persist
        They say ``persist``, whether Malloy makes anything of it or not.
    problems
        What is wrong with this definition alone.
    """

    name: str
    location: Location
    notes: tuple[Note, ...]
    persist: bool
    problems: tuple[Problem, ...]

    @property
    def description(self) -> str | None:
        """The text of its ``#"`` annotations: its own, else inherited ones."""
        texts = [(n.inherited, n.text[2:].strip()) for n in self.notes if n.text.startswith('#"')]
        own = [text for inherited, text in texts if not inherited]
        return "\n".join(own or [text for _, text in texts]) or None


@dataclass(frozen=True, slots=True)
class MalloySource(MalloyDefinition):
    """A source that a file defines itself.

    Attributes
    ----------
    source_id
        ``name@path``.
    kind
        Malloy's: ``table``, ``query_source``, ``sql_select``, ``composite``, ``virtual``.
    table
        What a ``table`` source names.
    parameters
        Names of its parameters.
    filtered
        It has filters of its own (``extend { where: … }``), which its SQL does not.
    redefined
        Names of columns by which it means something else than its SQL (``extend { rename: … }``).
    build_id
        Malloy's BuildID where Malloy persists it, else None; also where a given has a value that
        its BuildID does not tell.
    runtime_id
        The BuildID by which Malloy's runtime looks for its table: another one, by a mistake of
        Malloy's, where its SQL holds queries, ``%{ x -> { … } }``.
    malloy_sql
        What the BuildID is made of: Malloy's own SQL, with everything in it inlined.
    sql
        What is to be run. Whatever is persisted below it is read from a table whose name is its
        SourceID in backquotes. None for kinds that have no SQL, and where there are problems.
    reads
        SourceIDs of the persisted sources it rests on directly, joins not used included.
    columns
        Of its rows, in order.
    """

    source_id: SourceID
    kind: str
    connection: str
    table: str | None
    parameters: tuple[str, ...]
    filtered: bool
    redefined: tuple[str, ...]
    build_id: BuildID | None
    runtime_id: BuildID | None
    malloy_sql: str | None
    sql: str | None
    reads: tuple[SourceID, ...]
    columns: tuple[MalloyColumn, ...]


@dataclass(frozen=True, slots=True)
class MalloyModel:
    """What one file defines.

    Attributes
    ----------
    flag
        It, or what it imports, says ``##! experimental.persistence``; without it Malloy persists
        nothing.
    givens
        Names of the givens it knows.
    tables, selects
        What its columns were asked for, by it or by what it imports.
    files
        The file itself and all that it imports, directly or not; empty where there are problems.
    problems
        What keeps the file from compiling, or warnings; with places in imported files too.
    """

    path: str
    flag: bool
    sources: tuple[MalloySource, ...]
    queries: tuple[MalloyDefinition, ...]
    givens: tuple[str, ...]
    tables: tuple[str, ...]
    selects: tuple[str, ...]
    files: tuple[str, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class MalloyQuery:
    """A query, ready to be run.

    Attributes
    ----------
    sql
        None where there are problems.
    """

    sql: str | None
    connection: str | None
    columns: tuple[MalloyColumn, ...]
    problems: tuple[Problem, ...]


def read_model(answer: Answer) -> MalloyModel:
    """Return what the bridge answered to ``model``."""
    return MalloyModel(
        path=answer["path"],
        flag=answer["flag"],
        sources=tuple(_source(s) for s in answer["sources"]),
        queries=tuple(MalloyDefinition(**_definition(q)) for q in answer["queries"]),
        givens=tuple(answer["givens"]),
        tables=tuple(answer["tables"]),
        selects=tuple(answer["selects"]),
        files=tuple(answer["files"]),
        problems=_problems(answer["problems"]),
    )


def read_query(answer: Answer) -> MalloyQuery:
    """Return what the bridge answered to ``query``."""
    problems = _problems(answer["problems"])
    return MalloyQuery(answer["sql"], answer["connection"], _columns(answer["columns"]), problems)


def _source(answer: Answer) -> MalloySource:
    return MalloySource(
        **_definition(answer),
        source_id=answer["source_id"],
        kind=answer["kind"],
        connection=answer["connection"],
        table=answer["table"],
        parameters=tuple(answer["parameters"]),
        filtered=answer["filtered"],
        redefined=tuple(answer["redefined"]),
        build_id=answer["build_id"],
        runtime_id=answer["runtime_id"],
        malloy_sql=answer["malloy_sql"],
        sql=answer["sql"],
        reads=tuple(answer["reads"]),
        columns=_columns(answer["columns"]),
    )


def _definition(answer: Answer) -> dict[str, Any]:
    return {
        "name": answer["name"],
        "location": _location(answer),
        "notes": tuple(
            Note(n["text"], _location(n), n["inherited"]) for n in answer["annotations"]
        ),
        "persist": answer["persist"],
        "problems": _problems(answer["problems"]),
    }


def _columns(answers: Iterable[tuple[str, str]]) -> tuple[MalloyColumn, ...]:
    return tuple(MalloyColumn(name, kind) for name, kind in answers)


def _problems(answers: Iterable[Answer]) -> tuple[Problem, ...]:
    return tuple(
        Problem(a["code"], a["message"], _location(a), a["hint"], a["severity"]) for a in answers
    )


def _location(answer: Mapping[str, Any]) -> Location:
    return Location(answer["path"], answer["line"], answer["column"])
