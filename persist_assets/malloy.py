"""The Malloy files of a project → declarations, by asking Malloy's compiler.

What a file declares follows from its text, from the files it imports and from the columns of the
tables it names, which may be sources of other files. It is kept with all of that, and holds as
long as all of that is the same; files that need each other are compiled round by round. The
invariant: what is declared was compiled with the columns that the finished project has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.bridge import PROGRAM, Connection, Refused, Session
from persist_assets.cache import Parsed, parsed
from persist_assets.errors import Location, PersistError, Problem, SourcesError, unexpected
from persist_assets.frontends.malloy import (
    ALL_ROWS_OF,
    UNCERTAIN,
    comments_that_say_persist,
    declare,
    names_in,
    parse_malloys,
)
from persist_assets.frontends.python import digest_of, with_functions
from persist_assets.meaning.identity import digest
from persist_assets.model import Column, NamedQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.compiler import Compilation
    from persist_assets.model import Declaration, Query
    from persist_assets.settings import Malloy

_UTC = ("UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal", "GMT")

_STAGE = re.compile(r"__stage\d+$", re.IGNORECASE)
"""What Malloy calls common table expressions; a source's name would mean one of them."""

Columns = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Models:
    """The Malloy files of a project.

    Attributes
    ----------
    texts
        By path, in order.
    settings
        How they are compiled.
    connection
        Digest of everything about the Spark session that changes results.
    timezone
        The session's.
    read
        Returns the text of any file of the project; raises OSError or ValueError.
    files
        What they declare, by path, as it is to be remembered.
    failed
        What those declare that do not compile: names, and what is wrong.
    """

    texts: Mapping[str, str]
    settings: Malloy
    connection: str
    timezone: str
    read: Callable[[str], str]
    files: dict[str, Parsed] = field(default_factory=dict[str, Parsed])
    failed: dict[str, Parsed] = field(default_factory=dict[str, Parsed])

    @property
    def declared(self) -> list[Parsed]:
        """What all files declare, in order of paths."""
        return [
            found
            for path in self.texts
            if (found := self.files.get(path) or self.failed.get(path)) is not None
        ]

    def compile(
        self,
        before: Mapping[str, Parsed],
        compile_with: Callable[[Iterable[Parsed]], Compilation],
    ) -> Compilation:
        """Find out what the files declare.

        Parameters
        ----------
        before
            What they declared when they were last compiled.
        compile_with
            Compiles the whole project, with what is declared in Malloy so far.

        Raises
        ------
        SettingsError
            There is no compiler.
        """
        if self.timezone not in _UTC:
            message = f"Malloy counts time in UTC, and the session in {self.timezone}"
            hint = (
                'timezone = "UTC" in persist.toml; a query of Malloy\'s may have its own timezone'
            )
            for path in self.texts:
                problem = Problem("malloy-timezone", message, Location(path), hint)
                self.failed[path] = self._names(path, [problem])
            return compile_with(self.declared)
        kept = {p: k for p in self.texts if (k := self._unchanged(p, before.get(p))) is not None}
        if kept.keys() == self.texts.keys():
            self.files = kept
            compilation = compile_with(self.declared)
            answers = _Answers(self, compilation)
            if all(answers.hold(k) for k in kept.values()):
                return compilation
            self.files = {}
        return self._by_rounds(kept, compile_with)

    def query(
        self, compilation: Compilation, path: str, name: str | None, text: str | None
    ) -> Query:
        """Return a query over a file, as Spark's SQL.

        Parameters
        ----------
        compilation
            Of the whole project.
        name, text
            Of a query that the file defines, or a text (``run: …``) that is not in it.

        Raises
        ------
        SourcesError
            It does not compile.
        SettingsError
            There is no compiler.
        """
        with self._session(_Answers(self, compilation)) as session:
            made = session.compile_query(path, name=name, text=text)
        if made.sql is None:
            raise SourcesError(made.problems)
        return parse_malloys(made.sql, Location(path))

    def _session(self, answers: _Answers) -> Session:
        settings = self.settings
        return Session(
            answers,
            {settings.connection: Connection(self.connection)},
            givens=dict(settings.givens),
            virtual={settings.connection: dict(settings.virtual)},
        )

    def _by_rounds(
        self,
        kept: Mapping[str, Parsed],
        compile_with: Callable[[Iterable[Parsed]], Compilation],
    ) -> Compilation:
        """Compile files whose tables are known, until no further ones become known."""
        # Of what is not compiled yet the names are known: who asks for it is to wait, not to look
        # elsewhere.
        self.failed = {path: self._names(path, ()) for path in self.texts}
        answers = _Answers(self, compile_with(self.declared))
        waiting = list(self.texts)
        with self._session(answers) as session:
            while waiting:
                again: list[str] = []
                for path in waiting:
                    known = kept.get(path)
                    if known is not None and answers.hold(known):
                        self.files[path] = known
                    elif not self._compile(path, session, answers):
                        again.append(path)
                answers.compilation = compile_with(self.declared)
                # No file of this round tells others anything that they did not know.
                waiting = again if len(again) < len(waiting) else []
        return answers.compilation

    def _compile(self, path: str, session: Session, answers: _Answers) -> bool:
        """Compile a file; return whether another round would change nothing for it."""
        answers.refused = False
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
            declarations, problems = declare(model)
        except PersistError:
            raise
        except Exception as error:
            problem = unexpected(error, "this file", Location(path))
            self.failed[path] = self._names(path, [problem])
            return True
        problems += comments_that_say_persist(self.texts[path], path)
        declarations, more, looked = with_functions(declarations, self._find)
        asked = [*(ALL_ROWS_OF + t for t in model.tables), *model.selects]
        self.files[path] = parsed(
            self._content(self.texts[path]),
            declarations,
            [*problems, *more],
            reads=(*((p, digest_of(answers.texts[p])) for p in model.files if p != path), *looked),
            asked=tuple((sql, answers.given[sql]) for sql in asked),
            queries=tuple(NamedQuery(q.name, q.location, q.description) for q in model.queries),
        )
        return True

    def _names(self, path: str, problems: Iterable[Problem]) -> Parsed:
        return parsed("", names_in(self.texts[path], path), problems)

    def _content(self, text: str) -> str:
        settings = self.settings
        circumstances = (settings.connection, settings.givens, settings.virtual)
        return digest("malloy", _program(), self.connection, repr(circumstances), text)

    def _unchanged(self, path: str, known: Parsed | None) -> Parsed | None:
        """Return what is known of a file if neither it nor what it imports has changed."""
        if known is None or known.content != self._content(self.texts[path]):
            return None
        same = all(digest_of(self._find(p)) == content for p, content in known.reads)
        return known if same else None

    def _find(self, path: str) -> str | None:
        """Return the text of a file of the project, None where there is none."""
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
            raise Refused(f"this file cannot be read: {error}") from error


def with_trees(declared: Iterable[Declaration]) -> list[Declaration]:
    """Return declarations whose queries, as they were remembered, have their trees again."""
    return [
        replace(d, query=parse_malloys(d.query.text, d.location)) if d.query is not None else d
        for d in declared
    ]


@dataclass(slots=True)
class _Answers:
    """What Malloy is told, from the project as far as it is known.

    Attributes
    ----------
    texts
        Of the files that were read.
    given
        What was answered, by query; Malloy asks once.
    refused
        Something was asked for that is not known.
    """

    models: Models
    compilation: Compilation
    texts: dict[str, str] = field(default_factory=dict[str, str])
    given: dict[str, Columns] = field(default_factory=dict[str, Columns])
    refused: bool = False

    def file(self, path: str) -> str:
        self.texts[path] = self.models.text(path)
        return self.texts[path]

    def table(self, connection: str, table: str) -> Columns:
        return self.select(connection, ALL_ROWS_OF + table)

    def select(self, connection: str, sql: str) -> Columns:
        try:
            self.given[sql] = self.find(sql)
        except Refused:
            self.refused = True
            raise
        return self.given[sql]

    def find(self, sql: str) -> Columns:
        """Return the columns of a query by today's sources."""
        try:
            query = parse_malloys(sql, Location("query"))
        except SourcesError as error:
            raise _refusal(error.problems) from error
        if sql.startswith(ALL_ROWS_OF) and len(query.references) != 1:
            raise Refused(f"`{sql.removeprefix(ALL_ROWS_OF)}` is not a name of a table")
        taken = [r.parts[-1] for r in query.references if _STAGE.match(r.parts[-1])]
        if taken:
            raise Refused(f"Malloy calls parts of its queries `{taken[0]}`: rename that source")
        found = self.compilation.describe(query)
        columns = [c for c in found if isinstance(c, Column)]
        if not columns:
            raise _refusal([p for p in found if isinstance(p, Problem)])
        return tuple((c.name, c.type or UNCERTAIN) for c in columns)

    def hold(self, known: Parsed) -> bool:
        """Whether a file would be answered today what it was answered then."""
        for sql, columns in known.asked:
            try:
                if self.find(sql) != columns:
                    return False
            except Refused:
                return False
        return True


def _refusal(problems: Sequence[Problem]) -> Refused:
    if not problems:
        return Refused("its columns are not known: something below it is wrong, or reads this file")
    first = problems[0]
    return Refused(first.message + (f" ({first.hint})" if first.hint else ""))


@cache
def _program() -> str:
    """Return a digest of the compiler."""
    try:
        return sha256(PROGRAM.read_bytes()).hexdigest()
    except OSError:
        return ""
