"""The Malloy files of a project → declarations, by asking Malloy's compiler.

The declarations of a file depend on its text, on the files it imports, and on the columns of the
tables it names, which may be sources of other files. They are cached with all of these, and valid
as long as these stay the same. Files that depend on each other are compiled in rounds; a file waits
while sources that it names are not compiled. The invariant: declarations were compiled with the
columns of the finished project.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from persist_assets.compiler.cache import Parsed, parsed
from persist_assets.compiler.frontends.python import digest_of, with_functions
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.compiler.malloy.bridge import IDLE, Connection, Refused, Session
from persist_assets.compiler.malloy.declarations import (
    ALL_ROWS_OF,
    UNCERTAIN,
    comments_that_say_persist,
    declare,
    mentions,
    names_in,
    parse_malloys,
)
from persist_assets.compiler.passes.meanings import describe, reads_whole
from persist_assets.compiler.passes.shown_types import Shown
from persist_assets.compiler.software import digest_malloy
from persist_assets.core.digests import digest
from persist_assets.core.errors import Location, PersistError, Problem, SourcesError, unexpected
from persist_assets.core.model.project import NamedQuery
from persist_assets.core.time_values import UTC_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.compiler.state import Compilation
    from persist_assets.core.model.queries import Query, Reference
    from persist_assets.core.model.sources import Declaration
    from persist_assets.core.settings.values import Malloy

_STAGE = re.compile(r"__stage\d+$", re.IGNORECASE)
"""Malloy's names of common table expressions, which would hide a source of that name."""

Columns = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Models:
    """The Malloy files of a project.

    Attributes
    ----------
    texts
        The texts by path, in order.
    settings
        The settings for compiling them.
    connection
        A digest of everything about the Spark session that changes results.
    timezone
        The session's time zone.
    read
        Returns the text of any file of the project; raises OSError or ValueError.
    progress
        Called before each compilation, with the numbers of compiled files and of all.
    usual_types
        Whether expressions have the types that they have in a session with default settings.
    definitions
        The functions and variables that their SQL may use.
    files
        Their declarations by path, for the cache.
    failed
        The declarations of files that do not compile: names and problems.
    """

    texts: Mapping[str, str]
    settings: Malloy
    connection: str
    timezone: str
    read: Callable[[str], str]
    progress: Callable[[int, int], None] = lambda done, n: None
    usual_types: bool = True
    definitions: Definitions = NO_DEFINITIONS
    files: dict[str, Parsed] = field(default_factory=dict[str, Parsed])
    failed: dict[str, Parsed] = field(default_factory=dict[str, Parsed])

    @property
    def declared(self) -> list[Parsed]:
        """The declarations of all files, in order of paths."""
        return [
            file
            for path in self.texts
            if (file := self.files.get(path) or self.failed.get(path)) is not None
        ]

    def compile(
        self,
        cached: Mapping[str, Parsed],
        compile_with: Callable[[Sequence[Parsed], Compilation | None], Compilation],
    ) -> Compilation:
        """Compile the files, and the project with what they declare.

        Parameters
        ----------
        cached
            By path, the declarations of the files' last compilation.
        compile_with
            Compiles the whole project with the Malloy declarations so far; or a draft, from a
            compilation of most of it.

        Raises
        ------
        SettingsError
            There is no compiler.
        """
        if self.timezone not in UTC_NAMES:
            message = f"Malloy computes times in UTC, but the session uses {self.timezone}"
            hint = 'set timezone = "UTC" in persist.toml; Malloy queries may set their own timezone'
            for path in self.texts:
                problem = Problem("malloy-timezone", message, Location(path), hint)
                self.failed[path] = self._names(path, [problem])
            return compile_with(self.declared, None)
        unchanged = {
            p: k for p in self.texts if (k := self._unchanged(p, cached.get(p))) is not None
        }
        if unchanged.keys() == self.texts.keys():
            self.files = unchanged
            compilation = compile_with(self.declared, None)
            answers = _Answers(self, compilation)
            if all(answers.hold(k) for k in unchanged.values()):
                return compilation
            self.files = {}
        return self._by_rounds(unchanged, compile_with)

    def query(
        self, compilation: Compilation, path: str, name: str | None, text: str | None
    ) -> Query:
        """Return a query over a file, as Spark's SQL.

        Parameters
        ----------
        compilation
            The compilation of the whole project.
        name, text
            The name of a query in the file, or a text (``run: …``) that is not in it.

        Raises
        ------
        SourcesError
            It does not compile.
        SettingsError
            There is no compiler.
        """
        with self._session(_Answers(self, compilation)) as session:
            result = session.compile_query(path, name=name, text=text)
        if result.sql is None:
            raise SourcesError(result.problems)
        return parse_malloys(result.sql, Location(path), self.definitions)

    def _session(self, answers: _Answers) -> Session:
        settings = self.settings
        return Session(
            answers,
            {settings.connection: Connection(self.connection)},
            givens=dict(settings.givens),
            virtual={settings.connection: dict(settings.virtual)},
            idle=IDLE,
        )

    def _by_rounds(
        self,
        unchanged: Mapping[str, Parsed],
        compile_with: Callable[[Sequence[Parsed], Compilation | None], Compilation],
    ) -> Compilation:
        """Compile files whose tables are known, until there are no more."""
        # The names of sources that are not compiled yet are known, so that a file which needs one
        # waits, instead of resolving the name elsewhere.
        self.failed = {path: self._names(path, ()) for path in self.texts}
        answers = _Answers(self, compile_with(self.declared, None))
        queue = _Queue(self)
        with self._session(answers) as session:
            while queue.waiting:
                ready = queue.ready(answers.compilation)
                # Whether a file should wait is guessed from its text, so in the end each is tried.
                is_last = not ready
                n_waiting = len(queue.waiting)
                for path in ready or tuple(queue.waiting):
                    file = unchanged.get(path)
                    if file is not None and answers.hold(file):
                        self.files[path] = file
                        self.failed.pop(path, None)
                    elif not self._compile(path, session, answers):
                        queue.wait(path, answers.refused, answers.compilation)
                        continue
                    queue.done(path)
                answers.compilation = compile_with(self.declared, answers.compilation)
                if is_last and len(queue.waiting) == n_waiting:
                    break
        return compile_with(self.declared, None)

    def _compile(self, path: str, session: Session, answers: _Answers) -> bool:
        """Compile a file; return whether another round would change nothing for it."""
        answers.refused = []
        self.progress(len(self.files), len(self.texts))
        try:
            model = session.compile_model(path)
        except SourcesError as error:
            self.failed[path] = self._names(path, error.problems)
            return True
        if any(p.severity == "error" for p in model.problems):
            self.failed[path] = self._names(path, model.problems)
            return not answers.refused
        self.failed.pop(path, None)
        try:
            declarations, problems = declare(model, self.definitions)
        except PersistError:
            raise
        except Exception as error:
            problem = unexpected(error, "this file", Location(path))
            self.failed[path] = self._names(path, [problem])
            return True
        problems += comments_that_say_persist(self.texts[path], path)
        declarations, more, looked = with_functions(declarations, self._find)
        queries = [*(ALL_ROWS_OF + t for t in model.tables), *model.selects]
        self.files[path] = parsed(
            self._content(self.texts[path]),
            declarations,
            [*problems, *more],
            reads=(*((p, digest_of(answers.texts[p])) for p in model.files if p != path), *looked),
            queried=tuple((sql, answers.answered[sql]) for sql in queries),
            inferred=tuple(c for sql in sorted(queries) for c in answers.inferred.get(sql, ())),
            queries=tuple(NamedQuery(q.name, q.location, q.description) for q in model.queries),
        )
        return True

    def _names(self, path: str, problems: Iterable[Problem]) -> Parsed:
        return parsed("", names_in(self.texts[path], path), problems)

    def _content(self, text: str) -> str:
        settings = self.settings
        circumstances = (settings.connection, settings.givens, settings.virtual)
        known = self.definitions.digest if self.definitions.names else ""
        return digest("malloy", digest_malloy(), self.connection, repr(circumstances), text, known)

    def _unchanged(self, path: str, file: Parsed | None) -> Parsed | None:
        """Return the cached declarations of a file if it and its imports are unchanged."""
        if file is None or file.content != self._content(self.texts[path]):
            return None
        same = all(digest_of(self._find(p)) == content for p, content in file.reads)
        return file if same else None

    def _find(self, path: str) -> str | None:
        """Return the text of a file of the project, None if it does not exist."""
        try:
            return self.text(path)
        except Refused:
            return None

    def text(self, path: str) -> str:
        """Return the text of a file that may be imported."""
        if path in self.texts:
            return self.texts[path]
        try:
            return self.read(path)
        except (OSError, ValueError) as error:
            raise Refused(f"cannot read this file: {error}") from error


def with_trees(declared: Iterable[Declaration]) -> list[Declaration]:
    """Return cached declarations, with the trees of their queries parsed again."""
    return [
        replace(d, query=parse_malloys(d.query.text, d.location)) if d.query is not None else d
        for d in declared
    ]


_LOCAL = re.compile(r"(?<![\w`])timestamp_ntz(?=[,>]|$)")
"""A type that Malloy has no name for: as its times are in UTC, so are these in its queries."""


@dataclass(slots=True)
class _Answers:
    """Answers to Malloy from the project as compiled so far.

    Attributes
    ----------
    texts
        The texts of files that were read.
    answered
        The answers by query; Malloy asks once.
    inferred
        By query, the columns whose types the sources themselves do not know.
    refused
        The requests for unknown tables and queries.
    """

    models: Models
    compilation: Compilation
    texts: dict[str, str] = field(default_factory=dict[str, str])
    answered: dict[str, Columns] = field(default_factory=dict[str, Columns])
    inferred: dict[str, Columns] = field(default_factory=dict[str, Columns])
    refused: list[str] = field(default_factory=list[str])

    def file(self, path: str) -> str:
        self.texts[path] = self.models.text(path)
        return self.texts[path]

    def table(self, connection: str, table: str) -> Columns:
        return self._answer(ALL_ROWS_OF + table, is_table=True)

    def select(self, connection: str, sql: str) -> Columns:
        return self._answer(sql)

    def _answer(self, sql: str, *, is_table: bool = False) -> Columns:
        try:
            self.answered[sql] = self.find(sql, is_table=is_table)
        except Refused:
            self.refused.append(sql)
            raise
        return self.answered[sql]

    def find(self, sql: str, *, is_table: bool = False) -> Columns:
        """Return the columns of a query by the current sources.

        Parameters
        ----------
        is_table
            Whether it stands for a request about a table.
        """
        try:
            query = parse_malloys(sql, Location("query"), self.models.definitions)
        except SourcesError as error:
            raise _refusal(error.problems) from error
        if is_table and not reads_whole(query):
            raise Refused(f"`{sql.removeprefix(ALL_ROWS_OF)}` is not a table name")
        stages = [r.parts[-1] for r in query.references if _STAGE.match(r.parts[-1])]
        if stages:
            raise Refused(
                f"Malloy uses the name `{stages[0]}` within its queries: rename that source"
            )
        description = describe(self.compilation, query, usual_types=self.models.usual_types)
        columns = [c for c in description if isinstance(c, Shown)]
        if not columns:
            raise _refusal([p for p in description if isinstance(p, Problem)])
        self.inferred[sql] = tuple((c.name, c.type or "") for c in columns if c.inferred)
        return tuple((c.name, _LOCAL.sub("timestamp", c.type or UNCERTAIN)) for c in columns)

    def hold(self, file: Parsed) -> bool:
        """Whether the queries of a file still have the columns that it was compiled with."""
        for sql, columns in file.queried:
            try:
                if self.find(sql) != columns:
                    return False
            except Refused:
                return False
        return True


class _Queue:
    """Malloy files that are not compiled yet.

    Attributes
    ----------
    waiting
        Their paths, in order.
    """

    def __init__(self, models: Models) -> None:
        self.waiting, self._definitions = dict.fromkeys(models.texts), models.definitions
        self._names: dict[str, list[Sequence[Reference]]] = {}
        self._importers: dict[str, list[str]] = {}
        self._tried: set[str] = set()
        self._stuck: set[str] = set()
        todo = list(models.texts)
        for path in todo:  # and what they import
            try:
                mentioned = mentions(models.text(path), path)
            except Refused:
                continue
            self._names[path] = _references(mentioned.queries, self._definitions)
            for imported in mentioned.imports:
                if imported not in models.texts and imported not in self._importers:
                    todo.append(imported)
                self._importers.setdefault(imported, []).append(path)

    def ready(self, compilation: Compilation) -> list[str]:
        """Return the files that name only compiled sources, in order.

        This is read from their text, and that of the files they import; once a file has been tried,
        from its refused requests.
        """
        put_off = self._stuck | {
            path for path, names in self._names.items() if not all(map(compilation.knows, names))
        }
        todo = list(put_off)
        while todo:
            for importer in self._importers.get(todo.pop(), ()):
                if importer not in put_off and importer not in self._tried:
                    put_off.add(importer)
                    todo.append(importer)
        return [path for path in self.waiting if path not in put_off]

    def done(self, path: str) -> None:
        """Remove a file: nothing waits for it any more."""
        del self.waiting[path]
        self._names.pop(path, None)
        self._stuck.discard(path)

    def wait(self, path: str, refused: Sequence[str], compilation: Compilation) -> None:
        """Let a file wait until its refused requests can be answered."""
        self._tried.add(path)
        names = self._names[path] = _references(refused, self._definitions)
        if all(map(compilation.knows, names)):
            self._stuck.add(path)


def _references(queries: Iterable[str], definitions: Definitions) -> list[Sequence[Reference]]:
    """Return the inputs of queries, as far as the queries can be parsed."""
    references: list[Sequence[Reference]] = []
    for sql in queries:
        with suppress(SourcesError):
            references.append(parse_malloys(sql, Location("query"), definitions).references)
    return references


UNKNOWN_UPSTREAM = "its columns are unknown: an upstream source has an error, or reads this file"


def _refusal(problems: Sequence[Problem]) -> Refused:
    if not problems:
        return Refused(UNKNOWN_UPSTREAM)
    first = problems[0]
    return Refused(first.message + (f" ({first.hint})" if first.hint else ""))
