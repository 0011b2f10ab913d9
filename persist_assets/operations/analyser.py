"""Spark's analysis of the queries of sources, over tables without rows.

Each query is analysed once, over views with the columns of the sources that it reads. The columns
of a query are those that Spark finds, so types that persist does not know are known downstream.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.analysis.functions import python_function
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, Location, PersistError, Problem
from persist_assets.core.languages import SQL
from persist_assets.engine.session import spark_cause, translated
from persist_assets.planning.render import splice, splices
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Query, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.protocol import Engine


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of Spark's analysis of a project.

    Attributes
    ----------
    n_queries
        The number of the chosen queries that it analysed.
    problems
        Errors of queries, and notes on sources that it could not analyse.
    """

    n_queries: int
    problems: tuple[Problem, ...]


def analyse(
    root: Path, project: Project, engine: Engine, chosen: Collection[SourceID] | None = None
) -> Analysis:
    """Analyse the query of each source with Spark over empty tables; no data is read.

    Parameters
    ----------
    root
        The project root, for the places of errors.
    chosen
        Only these sources; None: all. What they read is analysed too where its columns have types
        that only Spark knows, but its errors are left to an analysis of it.

    Raises
    ------
    StorageError
        Spark cannot be reached.
    """
    chosen = {*project.by_id} if chosen is None else {*chosen}
    run = _Run(root, engine, chosen)
    analysed, shown = _needed(project, chosen)
    try:
        for source in project.sources:  # each after those that it reads
            if source.source_id in analysed:
                run.analyse(source, project)
            elif source.source_id in shown:
                run.declare(source)
    finally:
        engine.forget()
    return Analysis(run.n_queries, tuple(run.problems))


def _needed(project: Project, chosen: Collection[SourceID]) -> tuple[set[SourceID], set[SourceID]]:
    """Return the sources to analyse, and those of which the columns are needed."""
    analysed: set[SourceID] = set()
    shown: set[SourceID] = set()
    stack = [*chosen]
    while stack:
        source_id = stack.pop()
        if source_id in analysed:
            continue
        analysed.add(source_id)
        for read in project.by_id[source_id].reads:
            shown.add(read)
            columns = project.by_id[read].columns
            if not columns or any(c.type is None for c in columns):
                stack.append(read)
    return analysed, shown


class _Run:
    """One analysis: the columns of sources, so far as they are known, and their empty views.

    Parameters
    ----------
    chosen
        The sources of which problems are reported.
    """

    def __init__(self, root: Path, engine: Engine, chosen: Collection[SourceID]) -> None:
        self._root, self._engine, self._chosen = root, engine, chosen
        self._prefix = f"empty-{uuid.uuid4().hex[:8]}"
        self._columns: dict[SourceID, Sequence[tuple[str, str]]] = {}
        self._unknown: dict[SourceID, str] = {}
        self._files: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.n_queries = 0

    def declare(self, source: Source) -> None:
        """Learn the columns of a source as it declares them."""
        self._learn(source, {})

    def analyse(self, source: Source, project: Project) -> None:
        """Analyse the query of a source, if it has one, and learn the columns of the source."""
        query, is_chosen = source.query, source.source_id in self._chosen
        if query is None or source.function is not None:
            self.declare(source)
            return
        if name := python_function(query.text):
            message = f"Spark did not analyse `{source.name}`: it calls `{name}`, whose code"
            message += " only builds run"
            self.problems.append(Problem("not-analysed", message, source.location, None, "note"))
            self._learn(source, {})
            return
        names = [self._view(project.by_id[b]) for b in source.bindings]
        unknown = next((b for b in source.bindings if b in self._unknown), None)
        if unknown is not None:
            key, why = project.by_id[unknown].key, self._unknown[unknown]
            message = f"Spark did not analyse `{source.name}`: it reads `{key}`, {why}"
            hint = None
            if unknown not in self._chosen and why == _WRONG:
                hint = f"analyse it: persist check --spark {key}"
            if is_chosen:
                note = Problem("not-analysed", message, source.location, hint, "note")
                self.problems.append(note)
            self.declare(source)
            return
        text = splice(query, names)
        self.n_queries += is_chosen
        try:
            schema = self._engine.session.sql(text).schema.jsonValue()
        except Exception as error:
            self._refused(source, query, names, error)
            return
        kinds = {c.name: c.type for c in columns_of_struct(schema)}
        if query.column_names:
            kinds = dict(zip(query.column_names, kinds.values(), strict=False))
        self._learn(source, kinds)

    def _learn(self, source: Source, kinds: Mapping[str, str | None]) -> None:
        """Note the columns of a source, which has the types of its query, or declares them."""
        by_lower = {name.lower(): kind for name, kind in kinds.items()}
        columns = [(c.name, by_lower.get(c.name.lower(), c.type)) for c in source.columns]
        columns = columns or [*kinds.items()]
        known = [(name, kind) for name, kind in columns if kind is not None]
        if known and len(known) == len(columns):
            self._columns[source.source_id] = known
        else:
            self._unknown[source.source_id] = "whose columns are unknown until it is computed"

    def _view(self, source: Source) -> str:
        """Return the name of a view with the columns of a source, if they are known; no rows."""
        name = f"{self._prefix}-{source.source_id}"
        columns = self._columns.get(source.source_id)
        if columns is None:
            return name
        items = ", ".join(f"CAST(NULL AS {_cast(kind)}) AS {quote(n)}" for n, kind in columns)
        text = f"SELECT {items} WHERE false"
        try:
            return self._engine.view(name, lambda: self._engine.session.sql(text))
        except BuildError as error:
            self._unknown[source.source_id] = f"whose columns Spark refuses: {error.message}"
            return name

    def _refused(
        self, source: Source, query: Query, names: Sequence[str], error: Exception
    ) -> None:
        """Report what Spark refuses."""
        if not _is_refusal(error):
            with translated(f"analysing `{source.name}`"):
                raise error
        place = self._place(source, query, names, str(error))
        message = re.sub(r"\[[A-Z_.0-9]+\] ?|\s*SQLSTATE: \w+.*$", "", spark_cause(error)).rstrip(
            ". "
        )
        message = message.replace(f"{self._prefix}-", "")
        if source.source_id in self._chosen:
            self.problems.append(Problem("spark", f"Spark: {message}", place))
        self._unknown[source.source_id] = _WRONG

    def _place(self, source: Source, query: Query, names: Sequence[str], error: str) -> Location:
        """Return the place in its file that an error of Spark is about."""
        at = _POSITION.search(error)
        if source.language != SQL or at is None:
            return source.location
        path = source.location.path
        if path not in self._files:
            self._files[path] = (self._root / path).read_bytes().decode(errors="replace")
        text = self._files[path]
        declared = _offset(text, source.location.line, source.location.column - 1)
        start = text.find(query.text, declared)
        if start < 0:  # persist has put in words that Spark needs
            return source.location
        spliced = splice(query, names)
        offset = start + _original(splices(query, names), _offset(spliced, int(at[1]), int(at[2])))
        line = text.count("\n", 0, offset) + 1
        return Location(path, line, offset - (text.rfind("\n", 0, offset) + 1) + 1)


_WRONG = "which has an error"
_POSITION = re.compile(r"\bline (\d+),? pos (\d+)")


def _is_refusal(error: Exception) -> bool:
    """Whether Spark refuses a query, rather than fails."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException) and not isinstance(error, PersistError)


def _cast(kind: str) -> str:
    """Return the type to which NULL is cast for a column of a type: there is no cast to CHAR."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind)


def _offset(text: str, line: int, column: int) -> int:
    """Return the offset of a place in a text; its line is counted from 1, its column from 0."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column


def _original(edits: Sequence[tuple[int, int, str]], at: int) -> int:
    """Return the offset before edits of what is at an offset after them."""
    grown = 0
    for start, end, new in edits:
        begin = start + grown
        if at < begin:
            break
        if at < begin + len(new):
            return start
        grown += len(new) - (end - start)
    return at - grown
