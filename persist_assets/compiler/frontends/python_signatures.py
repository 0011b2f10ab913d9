"""Signatures of Python functions: what their parameters get and what they return. Pure.

Annotations are read and not evaluated: names are followed through imports.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import Imported, Module, chain_of
from persist_assets.compiler.frontends.motly import Tag
from persist_assets.compiler.frontends.sql_functions import Refused
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.model.queries import Parameter
from persist_assets.core.spark_types import fields_of, parse_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from persist_assets.core.model.annotations import Annotation

Hint = tuple[tuple[str, str], ...]
"""Names and types of columns."""

_FRAMES = frozenset(
    f"pyspark.sql.{middle}DataFrame"
    for middle in ("", "dataframe.", "classic.dataframe.", "connect.dataframe.")
)
_SESSIONS = frozenset(
    f"pyspark.sql.{middle}SparkSession" for middle in ("", "session.", "connect.session.")
)
_LAZY = re.compile(r"(narwhals(?:\.stable\.v\d+)?)(?:\.dataframe)?\.LazyFrame")
_TYPING = ("typing", "typing_extensions")
_ANYTHING = frozenset(f"{module}.Any" for module in _TYPING)
_ANNOTATED = frozenset(f"{module}.Annotated" for module in _TYPING)
_ITERATORS = frozenset(("collections.abc.Iterator", "typing.Iterator"))
_ARROW = {
    "polars.DataFrame": "polars.DataFrame",
    "polars.dataframe.DataFrame": "polars.DataFrame",
    "pandas.DataFrame": "pandas.DataFrame",
    "pandas.core.frame.DataFrame": "pandas.DataFrame",
    "pyarrow.Table": "pyarrow.Table",
    "pyarrow.RecordBatch": "pyarrow.RecordBatch",
}
"""Frames that are made of Arrow data in Spark's workers, by the names that annotations use."""

_MOST_INPUTS = 2
"""Spark groups the rows of at most two frames together."""
_EXAMPLE = 'for example, Annotated[DataFrame, "carrier string, delay double"]'


def parameters_of(
    node: ast.FunctionDef, module: Module, problems: list[Problem]
) -> tuple[Parameter, ...]:
    """Return the parameters of a function without a default, in order.

    Raises
    ------
    Refused
        One of them has an annotation that is not supported; others are added to `problems`.
    """
    arguments = node.args
    for more, star in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if more is not None:
            message = f"parameter {star}{more.arg} of `{node.name}` does not name a source"
            hint = "add a parameter for each source to read"
            raise Refused("python-source", message, module.place(more), hint)
    plain = [*arguments.posonlyargs, *arguments.args]
    required = plain[: len(plain) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [argument for argument, default in named if default is None]
    parameters: list[Parameter] = []
    wrong: list[Problem] = []
    for argument in required:
        subject = f"the parameter `{argument.arg}`"
        try:
            kind, hint = kind_of(argument.annotation, subject, module)
        except Refused as refused:
            wrong.append(refused.problem)
            continue
        positional = argument in arguments.posonlyargs
        place = module.place(argument)
        parameters.append(Parameter(argument.arg, kind, place, positional, hint=hint))
    if wrong:
        problems += wrong[1:]
        raise Refused(wrong[0].code, wrong[0].message, wrong[0].location, wrong[0].hint)
    return tuple(parameters)


def result_of(node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> Hint:
    """Return the columns that the annotation of a result names.

    Raises
    ------
    Refused
        It is not that of a frame.
    """
    if node.returns is None:
        return ()
    kind, hint = kind_of(node.returns, "the result", module)
    if kind == "session":
        message = "the result is annotated as a session, not a frame"
        raise Refused("annotation-type", message, module.place(node.returns))
    return hint


def with_contract(options: Tag | None, result: Hint, kind: str, place: Location) -> Tag | None:
    """Return the arguments of a decorator with the columns of a result as the contract of a table.

    Raises
    ------
    Refused
        They have columns themselves.
    """
    if not result or kind in ("model", "source"):
        return options
    options = options or Tag(place, properties={})
    keys = options.properties = options.properties or {}
    if "columns" in keys:
        hint = "remove one of them"
        message = "both `columns` and the annotation of the result name the columns"
        raise Refused("python-source", message, keys["columns"].location, hint)
    promised = {name: Tag(place, written) for name, written in result}
    keys["columns"] = Tag(place, properties=promised)
    return options


def kind_of(annotation: ast.expr | None, subject: str, module: Module) -> tuple[str, Hint]:
    """Return the annotated kind of a frame, or the session, and the columns that it names.

    Raises
    ------
    Refused
        It is another annotation.
    """
    if annotation is None:
        return "frame", ()
    place, written = module.place(annotation), ast.unparse(annotation)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        written = annotation.value
        try:
            annotation = ast.parse(written, mode="eval").body
        except SyntaxError:
            annotation = None
    hint: Hint = ()
    match annotation:
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=[inner, text])):
            if _means(outer, _ANNOTATED, module):
                annotation, hint = inner, _hint(text, subject, place)
        case _:
            pass
    match annotation:
        case ast.Subscript(value=outer, slice=inner) if _means(outer, _ITERATORS, module):
            kind = _kind(inner, module)
            kind = f"Iterator[{kind}]" if kind in BATCHES else None
        case _:
            kind = _kind(annotation, module)
            kind = None if kind == "pyarrow.RecordBatch" else kind
    if kind is not None and (kind != "session" or not hint):
        return kind, hint
    raise Refused(
        "annotation-type",
        f"unsupported annotation `{written}` of {subject}",
        place,
        "use pyspark.sql.DataFrame, narwhals.LazyFrame or no annotation; "
        "give parameters that are not sources a default",
    )


BATCHES = ("polars.DataFrame", "pandas.DataFrame", "pyarrow.RecordBatch")
"""The types of batches that an iterator may have."""


def _kind(annotation: ast.expr | None, module: Module) -> str | None:
    for dotted in _meanings(annotation, module):
        name = ".".join(dotted)
        if name in _FRAMES or name in _ANYTHING:
            return "frame"
        if name in _SESSIONS:
            return "session"
        if name in _ARROW:
            return _ARROW[name]
        lazy = _LAZY.fullmatch(name)
        if lazy:
            return lazy[1]
    return None


def _is_arrow(annotation: ast.expr, module: Module) -> bool:
    kind, _ = kind_of(annotation, "the result", module)
    return Parameter("", kind, module.place(annotation)).is_arrow


def _hint(text: ast.expr, subject: str, place: Location) -> Hint:
    """Return the columns that a text names, as Spark's SQL has them."""
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        message = f"`Annotated` of {subject} needs the columns as a string"
        raise Refused("annotation-type", message, place, _EXAMPLE)
    struct = parse_type(f"struct<{text.value}>") if text.value.strip() else None
    if struct is None or "not null" in text.value.lower():
        message = f"`{text.value}` of {subject} is not a list of columns with types"
        raise Refused("annotation-type", message, place, _EXAMPLE)
    fields = tuple(fields_of(struct))
    if len({name.lower() for name, _ in fields}) < len(fields):
        raise Refused("annotation-type", f"`{text.value}` names a column twice", place)
    return fields


def _means(annotation: ast.expr, names: frozenset[str], module: Module) -> bool:
    return any(".".join(dotted) in names for dotted in _meanings(annotation, module))


def _meanings(node: ast.expr | None, module: Module, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that an annotation may mean."""
    chain = chain_of(node) if node is not None else ()
    if not chain or depth > 5:
        return
    for imports in (module.imports, module.typed):
        for origin in imports.get(chain[0], ()):
            yield (*origin.dotted, *chain[1:])
    for star in module.stars:
        yield (*Imported(star).dotted, *chain)
    for number in module.bindings.get(chain[0], ()) if len(chain) == 1 else ():
        statement = module.body[number]
        if isinstance(statement, ast.Assign):
            yield from _meanings(statement.value, module, depth + 1)


def check_body(
    node: ast.FunctionDef, module: Module, place: Location, *, answers: bool, yields: bool
) -> None:
    """Refuse a body that returns no frame or, if it `answers`, no result.

    Parameters
    ----------
    yields
        It may yield frames instead.
    """
    stack: list[ast.AST] = [*node.body]
    returns: list[ast.Return] = []
    ends = False
    while stack:
        this = stack.pop()
        if isinstance(this, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(this, ast.Yield | ast.YieldFrom):
            if not yields:
                hint = "return one frame"
                raise Refused("python-source", f"`{node.name}` yields", module.place(this), hint)
            ends = True
        if isinstance(this, ast.Return):
            returns.append(this)
        ends |= isinstance(this, ast.Raise)
        stack += ast.iter_child_nodes(this)
    empty = [r for r in returns if r.value is None or (isinstance(r.value, ast.Constant))]
    if answers or (yields and ends):
        empty = [r for r in empty if r.value is None and not yields]
    if empty:
        at = module.place(empty[0])
        raise Refused("python-source", f"`{node.name}` must return a frame here", at)
    if not returns and not ends:
        hint = "return a frame with its rows"
        raise Refused("python-source", f"`{node.name}` returns nothing", place, hint)


def check_frames(
    function: str,
    kind: str,
    frames: Sequence[Parameter],
    inputs: Mapping[str, tuple[str, Location]],
) -> None:
    """Refuse a @source with frames, and inputs that no frame takes."""
    if kind == "source" and frames:
        hint = "use @model or @table to compute from other sources"
        if frames[0].name in ("spark", "session"):
            hint = f"annotate the session: {frames[0].name}: SparkSession"
        message = f"`{function}` is a @source and must not read `{frames[0].name}`"
        raise Refused("python-source", message, frames[0].location, hint)
    for name, (_, place) in inputs.items():
        if name not in {p.name for p in frames}:
            hint = did_you_mean(name, [p.name for p in frames])
            message = f"`{function}` has no parameter `{name}`"
            raise Refused("python-source", message, place, hint)


def check_arrow(
    node: ast.FunctionDef,
    module: Module,
    parameters: Sequence[Parameter],
    annotation: Annotation,
    result: Hint,
) -> Hint:
    """Return the columns of a function that workers call; empty if Spark's driver calls it.

    Raises
    ------
    Refused
        It cannot be called there.
    """
    function = node.name
    arrow = next((p for p in parameters if p.is_arrow), None)
    if arrow is None:
        if node.returns is not None and _is_arrow(node.returns, module):
            message = f"`{function}` returns a Spark or Narwhals frame, as it gets no other"
            raise Refused("annotation-type", message, module.place(node.returns))
        return ()
    other = next((p for p in parameters if not p.is_arrow), None)
    hint = "join inputs in a source of their own, and read that"
    if other is not None:
        because = f"because `{arrow.name}` is a {arrow.kind}"
        message = f"`{other.name}` must be a polars, pandas or pyarrow frame, {because}"
        raise Refused("python-arrow", message, other.location, hint)
    if len(parameters) > _MOST_INPUTS:
        message = (
            f"`{function}` has {len(parameters)} inputs, but workers get at most {_MOST_INPUTS}"
        )
        raise Refused("python-arrow", message, parameters[_MOST_INPUTS].location, hint)
    batches = next((p for p in parameters if p.kind.startswith("Iterator")), None)
    if len(parameters) > 1 and batches is not None:
        message = f"`{function}` has two inputs, so `{batches.name}` cannot come in batches"
        raise Refused("python-arrow", message, batches.location, hint)
    if not annotation.by and not arrow.kind.startswith("Iterator"):
        single = arrow.kind.replace("pyarrow.Table", "pyarrow.RecordBatch")
        message = f"no `by` says which rows of `{arrow.name}` belong together"
        hint = f'add by="…" for the rows of a key, or use Iterator[{single}] for batches'
        raise Refused("python-arrow", message, arrow.location, hint)
    contract = next((c for c in annotation.checks if c.kind == "columns"), None)
    if not result and contract is not None and not contract.others and all(contract.values):
        result = tuple(zip(contract.columns, map(str, contract.values), strict=True))
    if not result:
        message = f"`{function}` needs the names and types of all columns of its result"
        hint = 'add columns={"…": "…"}, or -> Annotated[…, "carrier string, delay double"]'
        raise Refused("python-arrow", message, arrow.location, hint)
    return result
