"""Spark SQL files → declarations. Pure.

A file is a list of ``CREATE VIEW`` (sources) and ``CREATE TABLE … USING`` (raw tables) statements.
sqlglot parses; this module finds the statements, the comments above them, and the references to
other sources. The invariant: Spark later executes the user's own text (`Query.text`), never text
that a parser generated.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.compiler.frontends.annotations import misplaced, read_annotation
from persist_assets.compiler.frontends.external import LocatedText, read_external
from persist_assets.compiler.frontends.external_options import FORMATS, public_pairs
from persist_assets.compiler.frontends.feldera import without_streaming
from persist_assets.compiler.frontends.foreign import written_for_others
from persist_assets.compiler.frontends.intervals import KEYWORD, missing_keywords
from persist_assets.compiler.frontends.misplaced_calls import MisplacedCall, misplaced_calls
from persist_assets.compiler.frontends.motly import Line
from persist_assets.compiler.frontends.parameters import bounds, joined, unfounded
from persist_assets.compiler.frontends.sql_functions import Refused, defines, read_definition
from persist_assets.compiler.frontends.sql_identifiers import with_names
from persist_assets.compiler.frontends.sql_inlining import (
    NO_DEFINITIONS,
    Broken,
    Definitions,
    Inlined,
    inline,
)
from persist_assets.compiler.frontends.sql_names import created
from persist_assets.compiler.frontends.sql_trees import (
    BRACKETS,
    Comment,
    column_comment,
    column_definitions,
    comment_text,
    comments_in,
    default_column,
    double_quoted,
    option_value,
    property_of,
    reference_to,
    relocate,
    statements_of,
    tables_read,
    words_of,
    wrong_calls,
)
from persist_assets.compiler.frontends.syntax import Invalid, explain, find_refused
from persist_assets.core.dialect import (
    MAX_BRACKETS,
    SPARK,
    as_name,
    faithful,
    lost_feature,
    marked_type,
    misleading_comment,
    tokenize,
    type_name,
    typed,
    whole_strings,
)
from persist_assets.core.errors import (
    Location,
    PersistError,
    Problem,
    SourcesError,
    did_you_mean,
    unexpected,
)
from persist_assets.core.languages import REFERENCE, SQL
from persist_assets.core.model.columns import Column
from persist_assets.core.model.queries import Query, Reference
from persist_assets.core.model.sources import FILE_FORMATS, Declaration, RawTable
from persist_assets.core.pipes import without_pipes
from persist_assets.core.raw_options import wrong_option
from persist_assets.core.spark_types import UnknownTypeError
from persist_assets.core.variant_paths import without_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.compiler.frontends.sql_functions import Definition
    from persist_assets.core.model.annotations import Annotation

    Place = Location | Callable[[int], Location] | None


_NO_COLUMNS = frozenset(("CONSTRAINT", "PRIMARY", "FOREIGN", "UNIQUE", "CHECK"))
"""Words that start another clause in a table's list of columns."""


def parse_sql(
    text: str, path: str, definitions: Definitions = NO_DEFINITIONS
) -> tuple[list[Declaration], list[Problem]]:
    """Return the declarations of an SQL file, and its problems.

    Parameters
    ----------
    text
        The file.
    path
        Its path relative to the project root, for locations.
    definitions
        The functions and variables of the project.
    """
    file = _File(text, path, definitions=definitions)
    return file.declarations, file.problems


def parse_definitions(text: str, path: str) -> list[Definition]:
    """Return the functions and variables that an SQL file defines."""
    file = _File(text, path, statements=False)
    if any(p.code != "annotation-dangling" for p in file.problems):
        return []  # they are reported with its declarations
    statements = statements_of(tokenize(file.text))
    return [read_definition(file, tokens) for tokens in statements if defines(tokens)]


def parse_query(text: str, place: Place = None, definitions: Definitions = NO_DEFINITIONS) -> Query:
    """Return a query that is in no SQL file.

    Parameters
    ----------
    place
        The location of all of it, or what finds that of an offset; None: in its own text.
    definitions
        The functions and variables of the project.

    Raises
    ------
    SourcesError
        It is not a single query.
    """
    file = _File(text, "query", statements=False, place=place, definitions=definitions)
    try:
        if file.problems:
            raise SourcesError(file.problems)
        statements = list(statements_of(tokenize(text)))
        if len(statements) != 1:
            raise _Refused("syntax", "expected a single query", file.location(0))
        tokens = [t for t in statements[0] if t.token_type is not TokenType.SEMICOLON]
        query = file.query(tokens, ())
        file.problems += (
            Problem(
                "parameter", f"`:{b.name}` has no value here", b.location, "write the value itself"
            )
            for b in query.bounds
        )
        if file.problems:
            raise SourcesError(file.problems)
        return query
    except (Refused, Broken) as refused:
        raise SourcesError([refused.problem]) from refused


class _Refused(Refused):
    """A statement cannot be parsed."""


class _Said(Exception):
    """A statement cannot be parsed, and that has been reported."""


_ALMOST = re.compile(r"(?:--\s+|/\*\s*)@\s*(\w+)")


class _File:
    """One file that is being read: its text, statements, declarations and problems."""

    def __init__(
        self,
        text: str,
        path: str,
        *,
        statements: bool = True,
        place: Place = None,
        definitions: Definitions = NO_DEFINITIONS,
    ) -> None:
        self.text, self.path, self.place, self.definitions = text, path, place, definitions
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.put_in: list[int] = []
        self.declarations: list[Declaration] = []
        self.problems: list[Problem] = []
        self.declared = None
        self.unclear: list[tuple[int, int]] = []
        try:
            self.complete(missing_keywords(text))
            tokens = tokenize(self.text)
        except TokenError as error:
            self.problems.append(self.unreadable(error))
            self.guess(0, len(self.text))
            return
        end = 0
        for statement in statements_of(tokens) if statements else ():
            self.statement(statement, end)
            end = statement[-1].end + 1
        self.dangling(end, len(self.text))
        for start, stop in self.unclear:
            self.guess(start, stop)

    def guess(self, start: int, end: int) -> None:
        """Declare placeholders for the names in a part of the text that cannot be parsed."""
        names = {d.name.lower() for d in self.declarations}
        for name, at in created(self.text[start:end]):
            if name.lower() not in names:
                names.add(name.lower())
                self.declarations.append(Declaration(name, SQL, self.location(start + at)))

    def complete(self, places: Sequence[int]) -> None:
        """Insert the keyword INTERVAL where it is missing; locations stay those of the file."""
        parts: list[str] = []
        end = 0
        for n, place in enumerate(places):
            parts += self.text[end:place], KEYWORD
            self.put_in.append(place + n * len(KEYWORD))
            end = place
        self.text = "".join((*parts, self.text[end:]))

    # ------------------------------------------------------------------------------- places

    def location(self, offset: int) -> Location:
        if isinstance(self.place, Location):
            return self.place
        for place in reversed(self.put_in):
            if place < offset:
                offset -= min(len(KEYWORD), offset - place)
        if self.place is not None:
            return self.place(offset)
        line = bisect_right(self.line_starts, offset)
        return Location(self.path, line, offset - self.line_starts[line - 1] + 1)

    def unreadable(self, error: TokenError) -> Problem:
        place = re.search(r"Missing (\S+) from (\d+):(\d+)", str(error.__context__ or error))
        if place:
            location = self.location(int(place[3]))
            return Problem("syntax", f"{place[1]} is not closed", location)
        opened = self.text.rfind("/*")
        if opened > self.text.rfind("*/"):
            return Problem("syntax", "/* is not closed", self.location(opened))
        return Problem("syntax", "invalid SQL", self.location(0))

    # ----------------------------------------------------------------------------- comments

    def lead(self, start: int, end: int) -> tuple[list[Line], str | None]:
        """Return the annotation lines and the description in the text above a statement."""
        lines: list[Line] = []
        prose: list[str] = []
        previous_end = start
        for comment in comments_in(self.text, start, end):
            between = self.text[previous_end : comment.start]
            previous_end = comment.end
            if start and comment.start < self._line_end(start):
                self.dangling(comment.start, comment.end)
                continue  # it is on the last line of the previous statement
            if between.count("\n") > 1:
                prose.clear()
            if comment.is_annotation:
                lines.append(Line(comment.text[3:].rstrip("\r"), self.location(comment.start + 3)))
            else:
                self.almost(comment)
                prose.append(comment_text(comment.text))
        if self.text[previous_end:end].count("\n") > 1:
            prose.clear()
        return lines, "\n".join(prose).strip() or None

    def _line_end(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return end if end >= 0 else len(self.text)

    def almost(self, comment: Comment) -> None:
        match = _ALMOST.match(comment.text)
        if match and (match[1] in KEYS or did_you_mean(match[1], KEYS)):
            message = "this comment looks like an annotation but is not one"
            place = self.location(comment.start)
            self.problems.append(
                Problem("annotation-almost", message, place, "write --@", "warning")
            )

    def dangling(self, start: int, end: int) -> None:
        """Report annotations in a part of the text where they annotate nothing."""
        for comment in comments_in(self.text, start, end) if "--@" in self.text[start:end] else ():
            if comment.is_annotation:
                message = "this annotation is not attached to anything"
                hint = "put annotations on their own lines, directly above the CREATE"
                place = self.location(comment.start)
                self.problems.append(Problem("annotation-dangling", message, place, hint))

    # --------------------------------------------------------------------------- statements

    def statement(self, tokens: Sequence[Token], previous_end: int) -> None:
        end = tokens[0].start
        if defines(tokens):
            self.dangling(previous_end, tokens[-1].end)
            return
        lines, description = self.lead(previous_end, end)
        for before, after in pairwise(tokens):
            if after.start - before.end > 3:
                self.dangling(before.end + 1, after.start)
        annotation, problems = read_annotation(lines)
        self.problems += problems
        if tokens[-1].token_type is TokenType.SEMICOLON:
            tokens = tokens[:-1]
        if not tokens:
            self.dangling(previous_end, end)
            return
        self.declared = None
        try:
            declaration = self.declaration(tokens, annotation, description)
            self.problems += (*misplaced(declaration), *unfounded(declaration))
            self.declarations.append(declaration)
            return
        except PersistError:
            raise
        except Exception as error:
            place = self.declared[1] if self.declared else self.location(end)
            failure = unexpected(error, "this statement", place)
            if not isinstance(error, _Said | Broken):
                self.problems.append(error.problem if isinstance(error, Refused) else failure)
        # Its name is known, so references to it are not errors.
        if self.declared is not None:
            self.declarations.append(Declaration(self.declared[0], SQL, self.declared[1]))
        self.unclear.append((end, tokens[-1].end + 1))

    def declaration(
        self, tokens: Sequence[Token], annotation: Annotation, description: str | None
    ) -> Declaration:
        foreign = written_for_others(tokens, self.text)
        if foreign is not None:
            raise _Refused(foreign[0], foreign[2], self.location(foreign[1]), foreign[3])
        words = [t.text.upper() for t in tokens[:6]]
        start = self.location(tokens[0].start)
        if words[0] == "CREATE" and "VIEW" in words:
            return self.view(tokens, words[: words.index("VIEW")], annotation, description)
        if words[0] == "CREATE" and "TABLE" in words:
            return self.table(tokens, words[: words.index("TABLE")], annotation, description)
        raise _Refused(
            "statement",
            f"`{words[0]}` does not declare a source",
            start,
            "use CREATE VIEW … AS …, CREATE TABLE … USING …, CREATE FUNCTION, DECLARE VARIABLE",
        )

    def view(
        self,
        tokens: Sequence[Token],
        words: Sequence[str],
        annotation: Annotation,
        description: str | None,
    ) -> Declaration:
        split = next((i for i, t in enumerate(tokens) if t.token_type is TokenType.ALIAS), None)
        if split is None or split == len(tokens) - 1:
            raise _Refused("syntax", "a view needs AS and a query", self.location(tokens[-1].start))
        head = self.parse(
            [
                as_name(t)
                for t in whole_strings(tokens[:split], self.text)
                if t.text.upper() != "LOCAL" or t.start > tokens[3].start
            ]
        )
        name, location = self.name(head)
        if "LOCAL" in words and ("MATERIALIZED" in words or annotation.persist):
            raise _Refused(
                "local",
                f"`{name}` is LOCAL, computed where it is read, but would be persisted",
                location,
                "remove LOCAL, or do not persist it",
            )
        if "LOCAL" in words:
            annotation = replace(annotation, persist=False)  # by default, too
        columns = [e for e in head.this.expressions] if isinstance(head.this, exp.Schema) else []
        return Declaration(
            name=name,
            language=SQL,
            location=location,
            annotation=annotation,
            description=description or property_of(head, exp.SchemaCommentProperty),
            materialized="MATERIALIZED" in words,
            query=self.query(tokens[split + 1 :], tuple(c.name for c in columns)),
            columns=tuple(Column(c.name, None, column_comment(c)) for c in columns),
        )

    def table(
        self,
        tokens: Sequence[Token],
        words: Sequence[str],
        annotation: Annotation,
        description: str | None,
    ) -> Declaration:
        tokens = without_streaming(tokens, self.location, self.problems)
        tree = self.parse(self.typed_columns(whole_strings(tokens, self.text)))
        name, location = self.name(tree)
        collation = next((t for t in tokens if t.text.upper() == "COLLATE"), None)
        if collation:
            raise _Refused("type", "collations are not supported", self.location(collation.start))
        if tree.expression:
            hint = "use CREATE VIEW … AS"
            raise _Refused(
                "statement", "a raw table describes data that already exists", location, hint
            )
        if "EXTERNAL" in words:
            raw = self.external(tree, name, location, tokens)
            columns = self.columns(tree)
        else:
            raw, columns = self.raw_table(tree, name, location)
        return Declaration(
            name=name,
            language=SQL,
            location=location,
            annotation=annotation,
            description=description or property_of(tree, exp.SchemaCommentProperty),
            raw=raw,
            columns=columns,
        )

    def raw_table(
        self, tree: Any, name: str, location: Location
    ) -> tuple[RawTable, tuple[Column, ...]]:
        """Return the data of a raw table, and its declared columns."""
        form = property_of(tree, exp.FileFormatProperty)
        if not form:
            raise _Refused(
                "raw-format",
                f"`{name}` has no data format",
                location,
                "for example, USING parquet LOCATION 'data/…'",
            )
        options = {
            p.name.lower(): option_value(p.args["value"])
            for group in tree.find_all(exp.OptionsProperty)
            for p in group.expressions
        }
        place = property_of(tree, exp.LocationProperty) or options.pop("path", None)
        form = form.lower()
        if form == "delta" and options:
            raise _Refused(
                "raw-options",
                f"`{name}` has the option {min(options)}, but Delta tables take no options",
                location,
                "each run reads the newest version as of its start",
            )
        columns = self.columns(tree)
        if lost := default_column(tree):
            message = f"the column `{lost}` of `{name}` has a DEFAULT, and raw tables have none"
            raise _Refused(
                "raw-default", message, location, "use coalesce() in a view of the table"
            )
        if wrong := wrong_option(form, options, columns):
            raise _Refused("raw-options", f"`{name}`: {wrong[0]}", location, wrong[1])
        if not place and form in ("delta", *FILE_FORMATS):
            raise _Refused(
                "raw-location", f"`{name}` has no location", location, "add LOCATION '…'"
            )
        return RawTable(form, place, tuple(sorted(options.items()))), columns

    def external(
        self, tree: Any, name: str, location: Location, tokens: Sequence[Token]
    ) -> RawTable:
        """Return the declaration of an external table's data."""
        for kind, clause in (
            (exp.FileFormatProperty, "USING"),
            (exp.LocationProperty, "LOCATION"),
            (exp.OptionsProperty, "OPTIONS"),
        ):
            if tree.find(kind):
                raise _Refused(
                    "external-connector",
                    f"an external table has no {clause}: its connector locates the data",
                    location,
                    "use WITH ('connectors' = '[…]'), or remove EXTERNAL",
                )
        definitions = column_definitions(tree)
        if not definitions:
            raise _Refused(
                "external-columns",
                f"`{name}` has no columns",
                location,
                "CREATE EXTERNAL TABLE name (column type, …) WITH (…)",
            )
        key = self.key(tree, name, [d.name for d in definitions])
        external, uri, problems = read_external(
            name, self.properties(tokens), self.columns(tree), key, location
        )
        self.problems += problems
        if external is None or any(p.severity == "error" for p in problems):
            raise _Said
        return RawTable(FORMATS[external.connector], uri, public_pairs(external), external)

    def properties(self, tokens: Sequence[Token]) -> list[tuple[str, LocatedText]]:
        """Return the pairs of strings in a table's WITH, as written."""
        pairs: list[tuple[str, LocatedText]] = []
        depth = 0
        for i, token in enumerate(tokens):
            depth += BRACKETS.get(token.token_type, 0)
            is_pair = [t.token_type for t in tokens[i + 1 : i + 3]] == [
                TokenType.EQ,
                TokenType.STRING,
            ]
            if depth == 1 and is_pair:
                start, end = tokens[i + 2].start, tokens[i + 2].end
                for more in tokens[i + 3 :]:  # to the tokenizer 'it''s' is two strings
                    if more.token_type is not TokenType.STRING or more.start != end + 1:
                        break
                    end = more.end
                source = self.text[start : end + 1]
                value = LocatedText(source, lambda at, start=start: self.location(start + at))
                pairs.append((token.text.lower(), value))
        return pairs

    def key(self, tree: Any, name: str, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of a table's primary key."""
        marked = [
            d.name for d in column_definitions(tree) if d.find(exp.PrimaryKeyColumnConstraint)
        ]
        keys = [[e.name for e in k.expressions] for k in tree.find_all(exp.PrimaryKey)]
        keys += [marked] if marked else []
        by_lower = {c.lower(): c for c in columns}
        if len(keys) > 1:
            place = self.declared[1] if self.declared else self.location(0)
            raise _Refused("external-key", f"`{name}` has two primary keys", place)
        for column in keys[0] if keys else ():
            if column.lower() not in by_lower:
                place = self.declared[1] if self.declared else self.location(0)
                raise _Refused(
                    "external-key",
                    f"the primary key of `{name}` names `{column}`, which is not a column",
                    place,
                    did_you_mean(column, columns),
                )
        return tuple(by_lower[c.lower()] for c in keys[0]) if keys else ()

    def typed_columns(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """Return the tokens of a CREATE TABLE with types as Spark reads them."""
        n = 1 + next(i for i, t in enumerate(tokens) if t.text.upper() == "TABLE")
        while n + 1 < len(tokens) and tokens[n].text.upper() in ("IF", "NOT", "EXISTS"):
            n += 1
        is_external = any(t.text.upper() == "EXTERNAL" for t in tokens[:n])
        name, n = tokens[n] if n < len(tokens) else tokens[-1], n + 1
        out = [*tokens[:n]]
        depth = 0
        while n < len(tokens):
            token = tokens[n]
            depth += BRACKETS.get(token.token_type, 0)
            out.append(token)
            n += 1
            if depth == 0:
                break
            begins = token.token_type in (TokenType.L_PAREN, TokenType.COMMA) and depth == 1
            if not begins or n + 1 >= len(tokens):
                continue
            if tokens[n].text.upper().split(" ")[0] in _NO_COLUMNS:
                continue
            out.append(as_name(tokens[n]))
            n += 2 if tokens[n + 1].token_type is TokenType.COLON else 1
            if n < len(tokens) and tokens[n].token_type not in (TokenType.COMMA, TokenType.R_PAREN):
                try:
                    marked, n = marked_type(
                        tokens, n, self.text, lengths=True, bare_varchar=is_external
                    )
                except UnknownTypeError as error:
                    # Its name is known, so references to it are not errors here.
                    self.declared = name.text, self.location(name.start)
                    raise self.unknown_type(error) from error
                out += marked
        return [*out, *tokens[n:]]

    def columns(self, tree: Any) -> tuple[Column, ...]:
        return tuple(self.column(c) for c in column_definitions(tree))

    def column(self, definition: exp.ColumnDef) -> Column:
        kind = definition.args.get("kind")
        name = type_name(kind)
        if name is None:
            place = self.location(definition.this.meta.get("start", 0))
            raise _Refused("type", f"column `{definition.name}` has a type unknown to Spark", place)
        return Column(definition.name, name, column_comment(definition))

    # ------------------------------------------------------------------------------ parsing

    def parse(self, tokens: Sequence[Token]) -> Any:
        depth = 0
        for token in tokens:
            depth += BRACKETS.get(token.token_type, 0)
            if depth > MAX_BRACKETS:
                raise self.too_deep(token)
        try:
            trees = SPARK.parser().parse(list(tokens), self.text)
        except ParseError as error:
            raise self.refusal(error, tokens) from error
        except RecursionError as error:
            raise self.too_deep(tokens[0]) from error
        tree = trees[0] if len(trees) == 1 else None
        if tree is None or isinstance(tree, exp.Command):
            raise _Refused("syntax", "invalid Spark SQL", self.location(tokens[0].start))
        return tree

    def typed(self, tokens: Sequence[Token]) -> Sequence[Token]:
        try:
            return typed(tokens, self.text)
        except UnknownTypeError as error:
            raise self.unknown_type(error) from error

    def unknown_type(self, error: UnknownTypeError) -> _Refused:
        return _Refused("type", error.message, self.location(error.at), error.hint)

    def too_deep(self, token: Token) -> _Refused:
        hint = "name parts of it: WITH … AS (…)"
        return _Refused("nesting", "the nesting is too deep", self.location(token.start), hint)

    def refusal(self, error: ParseError, tokens: Sequence[Token]) -> _Refused:
        return self.invalid(explain(error, tokens, self.text))

    def invalid(self, invalid: Invalid) -> _Refused:
        return _Refused("syntax", invalid.message, self.location(invalid.offset), invalid.hint)

    def name(self, tree: Any) -> tuple[str, Location]:
        table = tree.find(exp.Table)
        location = self.location(table.this.meta.get("start", 0))
        if table.args.get("db"):
            raise _Refused(
                "name",
                f"the source name `{table.name}` has a qualifier",
                location,
                "remove it: the path of the file qualifies the source",
            )
        if not IDENTIFIER.fullmatch(table.name):
            raise _Refused(
                "name",
                f"invalid source name `{table.name}`",
                location,
                "use letters, digits and underscores",
            )
        self.declared = table.name, location
        return table.name, location

    def query(self, tokens: Sequence[Token], column_names: tuple[str, ...]) -> Query:
        named = with_names(self, tokens, self.definitions)
        if named is not None:
            return self.with_meaning(named, column_names, self.definitions)
        refused = find_refused(tokens, self.text)
        if refused is not None:
            raise self.invalid(refused)
        spark_tokens = faithful(tokens, self.text)
        words = joined(spark_tokens, self.text)
        nested, is_certain = without_pipes(without_paths(self.typed(words)))
        tree = self.parse(nested)
        if not isinstance(tree, exp.Query | exp.Values):
            raise _Refused("syntax", "expected a query", self.location(tokens[0].start), "SELECT …")
        inlined = inline(self, tokens, tree, self.definitions, is_named=bool(column_names))
        if inlined is not None:
            return self.with_meaning(inlined, column_names)
        base = tokens[0].start
        text = self.text[base : tokens[-1].end + 1]
        misleading = misleading_comment(text)
        if misleading is not None:
            raise _Refused(
                "comment",
                "Spark ends this comment in a different place",
                self.location(base + misleading),
                "do not end its line with a backslash or use /*+ inside it",
            )
        bounded, problems = bounds(tree, words, base, self.location)
        self.problems += problems
        tables = tables_read(tree)
        for i, table in enumerate(tables):
            table.meta[REFERENCE] = i
        references = tuple(self.reference(t, tokens, base) for t in tables)
        return Query(
            text,
            references,
            column_names,
            sha256("\0".join(words_of(spark_tokens, self.text, references)).encode()).hexdigest(),
            lost_feature(tokens, self.text) or (None if is_certain else "|>"),
            bounded,
            tuple((name, n, self.location(at)) for name, n, at in wrong_calls(tokens, tree)),
            tuple(self.misplaced(c) for c in misplaced_calls(tokens, self.text, tree)),
            tuple((text, self.location(at)) for text, at in double_quoted(tokens, self.text)),
            tree=tree,
        )

    def misplaced(self, call: MisplacedCall) -> tuple[str, Problem]:
        place = self.location(call.offset)
        return call.function, Problem(call.code, call.message, place, call.hint, call.severity)

    def with_meaning(
        self, inlined: Inlined, names: tuple[str, ...], definitions: Definitions = NO_DEFINITIONS
    ) -> Query:
        """Return a query in which functions and variables, or names, are inlined."""
        text, place = inlined.text, inlined.locate()
        file = _File(text, self.path, statements=False, place=place, definitions=definitions)
        query = file.query(tokenize(text), names)
        self.problems += file.problems
        relocate(query.tree, file.location, self.path)
        variables = (*inlined.variables, *query.variables)
        parameters = (*inlined.parameters, *query.parameters)
        return replace(query, variables=variables, parameters=parameters)

    def reference(self, table: exp.Table, tokens: Sequence[Token], base: int) -> Reference:
        location = self.location(table.parts[0].meta["start"])
        if table.args.get("version") or table.args.get("when"):
            raise _Refused(
                "time-travel",
                "a source cannot read another source at a given version",
                location,
            )
        return reference_to(table, tokens, base, location)
