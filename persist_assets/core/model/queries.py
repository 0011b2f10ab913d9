"""Queries and functions, and the names in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist_assets.core.errors import Location, Problem


SourceID = str
BuildID = str


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in a query's text that names another source.

    Attributes
    ----------
    parts
        The name as written, unquoted, its qualifiers first.
    start, end
        Offsets of the name in the query's text, end exclusive.
    alias_at
        The offset at which `` AS name`` has to be inserted when the name is replaced; None if the
        query has its own alias.
    table_at
        The offset of the TABLE of ``TABLE t``, which takes no alias; None: it is no such query.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    alias_at: int | None
    location: Location = field(compare=False)
    table_at: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition of a query that compares an expression with a parameter.

    Attributes
    ----------
    name
        ``watermark``, ``partition_start`` or ``partition_end``.
    start, end
        The offsets of the operator and the parameter in the text.
    leads
        The parameter is before the operator.
    """

    name: str
    start: int
    end: int
    leads: bool
    location: Location = field(compare=False)


@dataclass(frozen=True, slots=True)
class InlinedParameter:
    """A name in the inlined query of a table function that means its parameter.

    It would mean a column if a table that this query reads had one of that name.

    Attributes
    ----------
    name
        The name in lower case, or its qualifier: ``f`` of ``f.x``.
    written
        The spelling that certainly means the parameter: ``f.x``.
    start, end
        The places of the first and the last token of the function's query.
    """

    name: str
    written: str
    location: Location
    start: Location
    end: Location

    def may_read(self, reference: Reference) -> bool:
        """Whether a reference is one of the function's query."""
        place, start, end = reference.location, self.start, self.end
        return place.path == start.path and (
            (start.line, start.column) <= (place.line, place.column) <= (end.line, end.column)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query with the places where it names other sources.

    Attributes
    ----------
    text
        The user's text, from its first to its last token.
    references
        The references, in the order of the text.
    column_names
        New names for all output columns (``CREATE VIEW v (a, b) AS …``), or empty.
    wording
        A digest of the text without comments and white space, with references by number.
    lost
        A feature of the text that `tree` lacks; None if the tree is complete.
    bounds
        The conditions with parameters, in the order of the text.
    wrong_calls
        The functions that Spark does not have, or does not call with so many arguments: names,
        numbers of arguments (None: no such function), places.
    misplaced_calls
        Problems of calls in places, or with arguments, that Spark's own functions do not have,
        each with the function.
    double_quoted
        The texts in double quotes that could be names, with their places.
    variables
        The names that mean inlined variables (``x``; ``session`` of ``session.x``), unless there
        are columns of these names.
    parameters
        The names that mean parameters of inlined table functions.
    tree
        The parsed text: the compiler's input. It is dropped afterwards, and missing if the query's
        meaning may be cached.
    """

    text: str
    references: tuple[Reference, ...] = ()
    column_names: tuple[str, ...] = ()
    wording: str = ""
    lost: str | None = None
    bounds: tuple[Bound, ...] = ()
    wrong_calls: tuple[tuple[str, int | None, Location], ...] = field(default=(), compare=False)
    misplaced_calls: tuple[tuple[str, Problem], ...] = field(default=(), compare=False)
    double_quoted: tuple[tuple[str, Location], ...] = field(default=(), compare=False)
    variables: tuple[str, ...] = field(default=(), compare=False)
    parameters: tuple[InlinedParameter, ...] = field(default=(), compare=False)
    tree: Any = field(default=None, compare=False, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function that is filled in by a build.

    Attributes
    ----------
    kind
        ``frame`` for a Spark DataFrame, ``session`` for the Spark session; a class of polars,
        pandas or pyarrow, or an iterator of it: ``Iterator[polars.DataFrame]``; otherwise the
        module of Narwhals whose LazyFrame it is.
    selects
        Texts that contain every column of it that is used; None: any column may be used.
    columns
        The columns of its source that it gets, by `selects`; None: all columns.
    hint
        Names and types of the only columns that it gets, as its annotation says; empty: it says
        nothing.
    """

    name: str
    kind: str
    location: Location = field(compare=False)
    positional: bool = False
    selects: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    hint: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def is_arrow(self) -> bool:
        """Whether Spark's workers make it of Arrow data."""
        kind = self.kind.removeprefix("Iterator[")
        return kind.startswith(("polars.", "pandas.", "pyarrow."))


@dataclass(frozen=True, slots=True)
class Function:
    """A function in a file of Python whose result is the rows of a source.

    Attributes
    ----------
    path
        The path of its file.
    name
        Its name in its module.
    parameters
        The parameters without a default, in order.
    modules
        The paths and texts of its file and of all project files that it imports. These texts are
        run, even if the files have changed since.
    names, methods, calls
        What it uses of other code: dotted names, methods of any object, functions in SQL texts.
    result
        Names and types of the columns of its result; empty: not declared.
    by
        The columns of whose values it gets the rows, each time it is called.
    """

    path: str
    name: str
    parameters: tuple[Parameter, ...]
    modules: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    result: tuple[tuple[str, str], ...] = ()
    by: tuple[str, ...] = ()

    @property
    def frames(self) -> tuple[Parameter, ...]:
        """The parameters that are other sources, in the order of the query's references."""
        return tuple(p for p in self.parameters if p.kind != "session")


@dataclass(frozen=True, slots=True)
class PythonUdf:
    """A function in a file of Python that queries in SQL call.

    Attributes
    ----------
    name
        Its name in queries.
    registered
        Its name in Spark and in inlined queries: its name and a digest of all that decides its
        results, so that sessions of several versions never mix them.
    returns
        Spark's name of the type of its result.
    """

    name: str
    registered: str
    function: Function
    returns: str
    deterministic: bool
    location: Location = field(compare=False)
