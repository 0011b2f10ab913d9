"""Running Python functions that are sources, each in its own modules; see `project_modules`."""

from __future__ import annotations

import linecache
import re
import traceback
from typing import TYPE_CHECKING, Any

from persist_assets._paths import PACKAGE
from persist_assets.core.contracts import alike, promised_by
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError, Location, PersistError
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.time_values import Value, literal
from persist_assets.decorators import NARROW
from persist_assets.engine.project_modules import ProjectModules, modules_of
from persist_assets.engine.session import spark_cause, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.queries import Function, Parameter, PythonUdf
    from persist_assets.core.model.sources import Source


Since = tuple[Value, str]
"""The lower bound of a time column, and the column's type."""


def call(
    source: Source,
    root: Path,
    frames: Callable[[str], DataFrame],
    session: Callable[[], SparkSession],
    since: Since | None = None,
) -> DataFrame:
    """Return the rows that the function of a source returns.

    Parameters
    ----------
    root
        The project's root, to which its paths are relative.
    frames
        Returns the rows of a parameter, by name.
    session
        Returns the Spark session, for a parameter that asks for it.
    since
        The lower bound of the wanted rows; None: all rows.

    Raises
    ------
    BuildError
        It fails, or its result is not a frame that can be a table.
    """
    assert source.function is not None
    narrow = None if since is None else _narrowing(source, *since)
    token = NARROW.set(narrow)
    try:
        returned = _result(source, source.function, source.name, root, frames, session)
    finally:
        NARROW.reset(token)
    return _frame(source, returned)


def ask(
    source: Source,
    check: Check,
    root: Path,
    rows: DataFrame,
    session: Callable[[], SparkSession],
) -> DataFrame | bool:
    """Return the result of a check's function: whether rows pass, or the rows that fail.

    Raises
    ------
    BuildError
        It fails, or returns something else.
    """
    from pyspark.sql import DataFrame

    assert check.function is not None
    name = check.function.name
    answer = _result(source, check.function, name, root, lambda _: rows, session)
    if type(answer).__module__.partition(".")[0] == "narwhals" and hasattr(answer, "to_native"):
        answer = answer.to_native()
    if type(answer).__name__ in ("bool", "bool_"):
        return bool(answer)
    if isinstance(answer, DataFrame):
        return answer
    raise BuildError(
        f"`{name}` returned {_kind_of(answer)}, which is not a check result",
        hint="a check must return the failing rows, or True or False",
        location=check.location,
    )


def load_udf(udf: PythonUdf, root: Path) -> Callable[..., Any]:
    """Return a function that queries call.

    Its modules are its own, so that Spark sends it to workers by value.

    Raises
    ------
    BuildError
        Its file cannot be imported.
    """
    try:
        modules = modules_of(udf.function, root)
        return getattr(modules.load_file(udf.function.path), udf.function.name)
    except PersistError:
        raise
    except (Exception, SystemExit) as error:
        raise BuildError(
            f"`{udf.name}` cannot be imported: {_error_in_words(error)}",
            hint=_hint(error, None),
            location=place_of(error, root) or udf.location,
        ) from error


def _result(
    source: Source,
    function: Function,
    name: str,
    root: Path,
    frames: Callable[[str], DataFrame],
    session: Callable[[], SparkSession],
) -> Any:
    """Return the result of a function."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in function.parameters:
        if parameter.kind == "session":
            value: Any = session()
        else:
            value = _shown(source, parameter, frames(parameter.name))
            if parameter.kind != "frame" and not parameter.is_arrow:
                value = _narwhals(parameter.kind, source).from_native(value)
        if parameter.positional:
            positional.append(value)
        else:
            named[parameter.name] = value
    modules = modules_of(function, root)
    try:
        with unchanged(session(), name):
            return _called(modules, function, positional, named)
    except PersistError:
        raise
    except (Exception, SystemExit) as error:
        raise BuildError(
            f"`{name}` failed: {_error_in_words(error)}",
            hint=_hint(error, function),
            location=place_of(error, root) or source.location,
        ) from error


def _called(
    modules: ProjectModules, function: Function, positional: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """Import a function, and return what it returns for arguments."""
    loaded: Any = getattr(modules.load_file(function.path), function.name)
    if any(p.is_arrow for p in function.parameters):
        from persist_assets.engine.arrow_functions import mapped

        return mapped((*positional, *named.values()), loaded, function)
    return loaded(*positional, **named)


def _shown(source: Source, parameter: Parameter, frame: DataFrame) -> DataFrame:
    """Return the columns of an input that a function gets.

    Raises
    ------
    BuildError
        It has not the columns that the parameter's annotation names.
    """
    if not parameter.hint:
        return _only(frame, parameter.columns)
    _check_hint(source, parameter.hint, frame, f"the input `{parameter.name}`")
    return _only(frame, [name for name, _ in parameter.hint])


def _check_hint(
    source: Source, hint: Sequence[tuple[str, str]], frame: DataFrame, subject: str
) -> None:
    kinds = {f.name.lower(): f.dataType.simpleString() for f in frame.schema.fields}
    for name, kind in hint:
        now = kinds.get(name.lower())
        if now is None or not alike(now, kind):
            state = "has no column" if now is None else "has another type of"
            raise BuildError(
                f"{subject} of `{source.name}` {state} `{name}`: annotated is {kind}",
                hint=f"its columns: {', '.join(f'{n} {k}' for n, k in kinds.items())}",
                location=source.location,
            )


def _only(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    """Return some columns of a frame; later operations cannot use its other columns.

    Without a subquery alias, Spark resolves columns of a filter or an order below the projection.
    """
    return frame if columns is None else frame.select(*map(quote, columns)).alias("_given")


def _narrowing(source: Source, low: Value, kind: str) -> Callable[[Any, str], Any]:
    """Return a function that drops rows earlier than a value from frames; NULLs stay."""

    def narrow(frame: Any, column: str) -> Any:
        module = type(frame).__module__
        if module.partition(".")[0] == "narwhals":
            stable = "narwhals.stable.v1" if ".stable." in module else "narwhals"
            return _narwhals(stable, source).from_native(narrow(frame.to_native(), column))
        kinds = {f.name.lower(): f.dataType.simpleString() for f in frame.schema.fields}
        if column.lower() not in kinds:
            raise BuildError(
                f"incremental_filter: unknown column `{column}`",
                hint=f"known columns: {', '.join(frame.columns)}",
                location=source.location,
            )
        bound = _bound(low, kind, kinds[column.lower()])
        if bound is None:
            raise BuildError(
                f"incremental_filter: `{column}` is {kinds[column.lower()]}, but the time column of"
                f" `{source.name}` is {kind}",
                hint="filter by a column of the same type: others may order values differently",
                location=source.location,
            )
        return frame.where(f"{quote(column)} IS NULL OR {quote(column)} >= {bound}")

    return narrow


_TIMES = frozenset(("date", "timestamp", "timestamp_ntz"))
_INTEGERS = frozenset(("tinyint", "smallint", "int", "bigint"))


def _bound(low: Value, kind: str, column_kind: str) -> str | None:
    """Return a lower bound for a column that increases with a time column of another type.

    None means that the order of values may change with the type.
    """
    written = literal(low, kind)
    if column_kind == kind:
        return written
    pair = {kind, column_kind}
    if pair == {"timestamp", "timestamp_ntz"}:  # local time is put back once a year
        return f"CAST({written} AS {column_kind}) - INTERVAL 1 DAY"
    if pair <= _TIMES or pair <= _INTEGERS:
        return f"CAST({written} AS {column_kind})"
    return None


def _narwhals(name: str, source: Source) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise BuildError(
            f"`{source.name}` needs Narwhals, which is not installed",
            hint="pip install persist-assets[narwhals]",
            location=source.location,
        ) from error


_MADE_UP = re.compile(r"_persist_[0-9a-f]{32}\.")
"""The prefix of module names within a call."""

_FROM_ROOT = "import project modules from the project root, or relatively: from ._other import …"


def _hint(error: BaseException, function: Function | None) -> str | None:
    """Return the hint for the failure of a function, if there is one."""
    if isinstance(error, ModuleNotFoundError):
        return _FROM_ROOT
    parameters = [p for p in (function.frames if function else ()) if p.columns is not None]
    missing = "UNRESOLVED_COLUMN" in str(error) or type(error).__name__ == "ColumnNotFoundError"
    if not (parameters and missing):
        return None
    selections = ", ".join(f"{', '.join(p.columns or ())} of {p.name}" for p in parameters)
    return (
        f"it starts with .select(…) and gets only those columns: {selections};"
        " select all that it uses"
    )


def _error_in_words(error: BaseException) -> str:
    name = type(error).__name__
    message = _MADE_UP.sub("", spark_cause(error))
    return name if message == name else f"{name}: {message}"


_BAD_IN_TABLES = " ,;{}()\n\t="


def _frame(source: Source, returned: Any) -> DataFrame:
    """Return the result of a function as a Spark DataFrame.

    Raises
    ------
    BuildError
        It is not a frame, or a table cannot have its columns.
    """
    from pyspark.sql import DataFrame

    if type(returned).__module__.partition(".")[0] == "narwhals" and hasattr(returned, "to_native"):
        returned = returned.to_native()
    if not isinstance(returned, DataFrame):
        kind = type(returned)
        hint = "return a Spark DataFrame, or a Narwhals LazyFrame over one"
        if kind.__module__.partition(".")[0] in ("pandas", "pyarrow", "polars"):
            hint += "; create one with spark.createDataFrame(…) and a parameter spark: SparkSession"
        raise BuildError(
            f"`{source.name}` returned {_kind_of(returned)}, not a frame",
            hint=hint,
            location=source.location,
        )
    try:
        names = returned.columns  # with Spark Connect this calls the server, and may fail
    except Exception as error:
        raise BuildError(
            f"`{source.name}` failed: {_error_in_words(error)}",
            hint=_hint(error, source.function),
            location=source.location,
        ) from error
    _check_columns(source, names)
    function = source.function
    if function is not None and function.result and not promised_by(source.checks):
        _check_hint(source, function.result, returned, "the result")
    return returned


def _kind_of(returned: Any) -> str:
    kind = type(returned)
    name = "None" if returned is None else f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.")


def _check_columns(source: Source, names: Sequence[str]) -> None:
    if not names:
        message = f"`{source.name}` returned a frame without columns"
        raise BuildError(message, location=source.location)
    lower_names: set[str] = set()
    for number, name in enumerate(names, 1):
        message, hint = "", 'rename it: .withColumnRenamed("…", "…"), or .alias("…")'
        if not name:
            message = f"column {number} of `{source.name}` has no name"
        elif name.lower() in lower_names:
            message = f"`{source.name}` has two columns named `{name}`"
            hint = 'drop or rename one; .join(other, "key") keeps the key once'
        elif set(name) & set(_BAD_IN_TABLES):
            message = f"`{name}` is not a valid column name for a table"
        if message:
            raise BuildError(message, hint=hint, location=source.location)
        lower_names.add(name.lower())
    places = dict(source.annotation.keys)
    promised = promised_by(source.checks)  # missing ones are reported together
    added = () if source.annotation.validity is None else (VALID_FROM, VALID_TO)
    expected = [
        (c.location or places.get("check"), n)
        for c in source.checks
        for n in c.columns
        if n.lower() not in promised and n.lower() not in added
    ]
    if source.annotation.time_column:
        expected.append((places.get("time_column"), source.annotation.time_column))
    expected += [(places.get("by"), name) for name in source.annotation.by]
    for place, name in expected:
        if name.lower() not in lower_names:
            raise BuildError(
                f"`{name}` is not a column of `{source.name}`",
                hint=f"known columns: {', '.join(names)}",
                location=place or source.location,
            )


# -------------------------------------------------------------------------------- what went wrong


def place_of(error: BaseException, root: Path) -> Location | None:
    """Return the innermost location of an error in a project's own code, or None.

    Errors in Spark's workers are located by Spark's message.
    """
    cause: BaseException | None = error
    while cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            place = _place(frame.filename, frame.lineno, frame.colno, root)
            if place is not None:
                return place
        for match in reversed(list(_IN_WORKER.finditer(str(cause)))):
            place = _place(match[1], int(match[2]), None, root)
            if place is not None:
                return place
        cause = cause.__cause__
    return None


_OUR_OWN = f"{PACKAGE.resolve()}/"
_IN_WORKER = re.compile(r'File "([^"\n]+)", line (\d+)')


def _place(path: str, line: int | None, column: int | None, root: Path) -> Location | None:
    start = f"{root.resolve()}/"
    if not path.startswith(start) or not path.endswith(".py"):
        return None
    if path.startswith(_OUR_OWN) or "/site-packages/" in path:
        return None
    relative = path.removeprefix(start)
    if relative.startswith("."):
        return None
    text = linecache.getline(path, line or 1).encode()[: column or 0].decode(errors="replace")
    return Location(relative, line or 1, len(text) + 1 if column is not None else 1)
