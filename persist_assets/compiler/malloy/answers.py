"""The answers of Malloy's compiler, as values. Pure.

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
    """An annotation as written, including its marker (``#@ persist``).

    Attributes
    ----------
    inherited
        It belongs to a source that this one extends.
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
        The type's name in Malloy: ``string``, ``integer``, ``bigint``, ``float``, ``number``,
        ``boolean``, ``date``, ``timestamp``, ``array<…>``, ``struct<name:…>``; for other types, the
        name in Spark.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class MalloyDefinition:
    """A definition in a file: here, a named query.

    Attributes
    ----------
    location
        The location of its name.
    notes
        Its annotations, inherited ones first.
    persist
        They include ``persist``, whether Malloy uses it or not.
    problems
        The problems of this definition alone.
    """

    name: str
    location: Location
    notes: tuple[Note, ...]
    persist: bool
    problems: tuple[Problem, ...]

    @property
    def description(self) -> str | None:
        """The text of its own ``#"`` annotations, or else of inherited ones."""
        texts = [(n.inherited, n.text[2:].strip()) for n in self.notes if n.text.startswith('#"')]
        own_texts = [text for inherited, text in texts if not inherited]
        return "\n".join(own_texts or [text for _, text in texts]) or None


@dataclass(frozen=True, slots=True)
class MalloySource(MalloyDefinition):
    """A source defined in the file itself.

    Attributes
    ----------
    source_id
        ``name@path``.
    kind
        Malloy's kind: ``table``, ``query_source``, ``sql_select``, ``composite``, ``virtual``.
    table
        The table that a ``table`` source names.
    parameters
        The names of its parameters.
    filtered
        It has its own filters (``extend { where: … }``), which its SQL lacks.
    redefined
        The names of columns that mean something else than in its SQL (``extend { rename: … }``).
    build_id
        Malloy's BuildID if Malloy persists it, else None; also None if the value of a given is
        missing in the BuildID.
    runtime_id
        The BuildID with which Malloy's runtime looks for its table. Because of a bug in Malloy, it
        differs if the SQL contains queries, ``%{ x -> { … } }``.
    malloy_sql
        The input of the BuildID: Malloy's own SQL, with everything inlined.
    sql
        The SQL to run. It reads persisted upstreams from tables named by their SourceIDs in
        backquotes. None for kinds without SQL, and if there are problems.
    reads
        The SourceIDs of the persisted sources directly upstream, including unused joins.
    columns
        The columns of its rows, in order.
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
    """The definitions of one file.

    Attributes
    ----------
    flag
        The file, or one that it imports, has ``##! experimental.persistence``; without it Malloy
        persists nothing.
    givens
        The names of its givens.
    tables, selects
        The tables and queries whose columns it, or a file that it imports, needs.
    files
        The file itself and all that it imports, transitively; empty if there are problems.
    problems
        Errors that prevent the file from compiling, and warnings; some are in imported files.
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
        None if there are problems.
    """

    sql: str | None
    connection: str | None
    columns: tuple[MalloyColumn, ...]
    problems: tuple[Problem, ...]


def read_model(answer: Answer) -> MalloyModel:
    """Return the bridge's answer to ``model``."""
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
    """Return the bridge's answer to ``query``."""
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
