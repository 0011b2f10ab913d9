"""Queries and functions, and the names that stand in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist_assets.core.errors import Location


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
        Offset where `` AS name`` has to be inserted when the name is replaced; None when the
        query gives an alias itself.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    alias_at: int | None
    location: Location = field(compare=False)


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition of a query that compares something with a parameter.

    Attributes
    ----------
    name
        ``watermark``, ``partition_start`` or ``partition_end``.
    start, end
        Where the operator and the parameter stand in the text.
    leads
        The parameter stands before the operator.
    """

    name: str
    start: int
    end: int
    leads: bool
    location: Location = field(compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query with the places where it names other sources.

    Attributes
    ----------
    text
        The user's own text, from its first to its last token.
    references
        In the order of the text.
    column_names
        New names for all output columns (``CREATE VIEW v (a, b) AS …``), or empty.
    wording
        Digest of the text without comments and white space, its references by number.
    lost
        What `tree` does not tell of the text, or None where it is to be trusted.
    bounds
        The conditions by parameters, in the order of the text.
    tree
        What the parser made of the text: the compiler's input, gone afterwards, and not there
        before where the query's meaning may be remembered.
    """

    text: str
    references: tuple[Reference, ...] = ()
    column_names: tuple[str, ...] = ()
    wording: str = ""
    lost: str | None = None
    bounds: tuple[Bound, ...] = ()
    tree: Any = field(default=None, compare=False, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function that gets its value from us.

    Attributes
    ----------
    kind
        ``frame`` for a Spark DataFrame, ``session`` for the Spark session; else the module of
        Narwhals whose LazyFrame it is.
    selects
        Texts in which every column of it stands that is looked at; None: it may be any.
    columns
        What it is given of its source, where `selects` tells; None: all.
    """

    name: str
    kind: str
    location: Location = field(compare=False)
    positional: bool = False
    selects: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function in a file of Python whose result is the rows of a source.

    Attributes
    ----------
    path
        Of its file.
    name
        By which its module knows it.
    parameters
        Those without a default, in order.
    modules
        Paths and texts of its file and of all of the project that it imports: what is run, whatever
        the files say by then.
    names, methods, calls
        What of others it uses: dotted names, methods of anything, functions in texts of SQL.
    """

    path: str
    name: str
    parameters: tuple[Parameter, ...]
    modules: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def frames(self) -> tuple[Parameter, ...]:
        """The parameters that are other sources, in the order of the query's references."""
        return tuple(p for p in self.parameters if p.kind != "session")
