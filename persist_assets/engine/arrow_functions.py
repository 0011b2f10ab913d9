"""Functions that Spark's workers call with rows as frames of polars, pandas or pyarrow.

One call gets the rows of a key, of one frame or of two, or batches of some partition. What runs in
workers is sent there by value: workers need pyarrow and the library of the frames, and nothing of
this package. The invariant: a result has exactly the declared columns and types, or the build
fails; no value is guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle

from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from persist_assets.core.model.queries import Function

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def mapped(
    frames: Sequence[DataFrame], loaded: Callable[..., Any], function: Function
) -> DataFrame:
    """Return the rows that a function returns for the rows of frames; nothing is computed yet.

    Parameters
    ----------
    frames
        One for each parameter.
    loaded
        The function itself.
    function
        How it is declared: `result` and `by`, and the kinds of its one or two parameters.

    Raises
    ------
    BuildError
        A frame lacks a key column, or has another type of it.
    """
    schema = ", ".join(f"{quote(name)} {kind}" for name, kind in function.result)
    fields = _fields(frames[0], schema)
    parameters = tuple(
        (None if p.positional else p.name, p.kind.removeprefix("Iterator[").partition(".")[0])
        for p in function.parameters
    )
    if not function.by:
        return frames[0].mapInArrow(_over_batches(loaded, *parameters[0], fields, ()), schema)
    _check_keys(frames, function)
    grouped = [f.groupBy(*(f[quote(name)] for name in function.by)) for f in frames]
    over_tables = _over_tables(loaded, parameters, fields, function.by)
    if len(grouped) > 1:
        return grouped[0].cogroup(grouped[1]).applyInArrow(over_tables, schema)
    if function.parameters[0].kind.startswith("Iterator"):
        over_batches = _over_batches(loaded, *parameters[0], fields, function.by)
        return grouped[0].applyInArrow(over_batches, schema)
    return grouped[0].applyInArrow(over_tables, schema)


def _check_keys(frames: Sequence[DataFrame], function: Function) -> None:
    """Require that frames have the key columns, of one type: Spark would not match the others."""
    types = [{f.name.lower(): f.dataType for f in frame.schema.fields} for frame in frames]
    for name in function.by:
        for parameter, kinds in zip(function.parameters, types, strict=True):
            if name.lower() not in kinds:
                raise BuildError(f"the input `{parameter.name}` has no column `{name}`")
        if len({kinds[name.lower()] for kinds in types}) > 1:
            shown = " and ".join(kinds[name.lower()].simpleString() for kinds in types)
            raise BuildError(f"the types of `{name}` in its inputs differ: {shown}")


def _fields(frame: DataFrame, schema: str) -> pa.Schema:
    """Return a schema of Spark as one of Arrow, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct: Any = StructType.fromDDL(schema)
    convert: Any = to_arrow_schema
    try:
        return convert(struct, timezone="UTC")
    except TypeError:  # before Spark 4.2, times always are in UTC
        return convert(struct)


# ------------------------------------------------------------------------------------- in workers


def _over_tables(
    loaded: Callable[..., Any],
    parameters: Sequence[tuple[str | None, str]],
    fields: pa.Schema,
    by: Sequence[str],
) -> Callable[..., pa.Table]:
    def over_tables(*tables: pa.Table) -> pa.Table:
        pairs = zip(parameters, tables, strict=True)
        rows = [(keyword, _rows(table, library)) for (keyword, library), table in pairs]
        named = {keyword: frame for keyword, frame in rows if keyword is not None}
        result = _fitted(loaded(*(f for keyword, f in rows if keyword is None), **named), fields)
        _require_key(result, next(t for t in tables if t.num_rows), by)
        return result

    # Spark looks at the number of parameters to see what a function expects.
    if len(parameters) == 1:
        return lambda table: over_tables(table)
    return lambda left, right: over_tables(left, right)


def _over_batches(
    loaded: Callable[..., Any],
    keyword: str | None,
    library: str,
    fields: pa.Schema,
    by: Sequence[str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def over_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        rows = (
            b if library == "pyarrow" else _rows(pa.Table.from_batches([b]), library)
            for b in chain(() if first is None else (first,), batches)
        )
        for result in loaded(rows) if keyword is None else loaded(**{keyword: rows}):
            table = _fitted(result, fields)
            if first is not None:
                _require_key(table, first, by)
            yield from table.to_batches()

    return over_batches


def _require_key(result: pa.Table, rows: pa.Table | pa.RecordBatch, by: Sequence[str]) -> None:
    """Require that all rows of a result have the key of the rows that a function got.

    Raises
    ------
    ValueError
        Some have another one: a build of changed keys would lose rows.
    """
    for name in by if result.num_rows else ():
        of = next(n for n in rows.schema.names if n.lower() == name.lower())
        value = rows.column(of)[0].as_py()
        column = next(n for n in result.column_names if n.lower() == name.lower())
        for other in result.column(column).unique().to_pylist():
            # NaN is the same key as NaN.
            if other != value and not (other != other and value != value):
                raise ValueError(f"it returned the key {name} = {other!r} for {value!r}: keep it")


def _rows(table: pa.Table, library: str) -> Any:
    """Return a table of Arrow as a frame of a library, without changing a value."""
    if library == "polars":
        import polars

        return polars.from_arrow(table)
    if library == "pandas":
        import pandas

        return table.to_pandas(types_mapper=pandas.ArrowDtype)  # integers with NULLs stay integers
    return table


def _fitted(result: Any, fields: pa.Schema) -> pa.Table:
    """Return the result of a function with the declared columns, in their order and types.

    Raises
    ------
    TypeError, ValueError
        It is no frame, has other columns, or values that do not fit.
    """
    library = type(result).__module__.partition(".")[0]
    if library == "polars" and hasattr(result, "to_arrow"):
        table = result.to_arrow()
    elif library == "pandas" and hasattr(result, "columns"):
        table = pa.Table.from_pandas(result, preserve_index=False)
    elif isinstance(result, pa.RecordBatch):
        table = pa.Table.from_batches([result])
    elif isinstance(result, pa.Table):
        table = result
    else:
        kind = type(result)
        raise TypeError(
            f"it returned {kind.__module__}.{kind.__qualname__},"
            " not a frame of polars, pandas or pyarrow"
        )
    names = [*table.column_names]
    if sorted(names) != sorted(fields.names):
        raise ValueError(
            f"it returned the columns {', '.join(names)},"
            f" but the declared columns are {', '.join(fields.names)}"
        )
    columns = [_column(table.column(f.name), f) for f in fields]
    return pa.Table.from_arrays(columns, schema=fields)


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not _is_convertible(column.type, field.type):
        raise TypeError(
            f"column {field.name} is {column.type} and declared as {field.type}: convert it"
        )
    try:
        result = column.cast(field.type)
        if not all(map(_is_exact, column.chunks, result.chunks)):
            raise ValueError("a number would be rounded: round it in the function")
        return result
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"column {field.name} is {column.type} and declared as {field.type}: {error}"
        ) from error


def _is_convertible(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of a type, and all values in them, are cast without guessing.

    Arrow itself fills fields that a struct lacks with NULL, drops others, and reads texts in lists
    as numbers.
    """
    family = _family(kind)
    if family == "null":
        return True
    if family != _family(target):
        return False
    if family == "struct":
        kinds, targets = ({f.name: f.type for f in s} for s in (kind, target))
        are_same = kinds.keys() == targets.keys() and len(kinds) == kind.num_fields
        return are_same and all(_is_convertible(kinds[n], targets[n]) for n in kinds)
    if family == "map":
        keys = _is_convertible(kind.key_type, target.key_type)
        return keys and _is_convertible(kind.item_type, target.item_type)
    return family != "list" or _is_convertible(kind.value_type, target.value_type)


def _is_exact(before: pa.Array, after: pa.Array) -> bool:
    """Whether no number was rounded by a cast; Arrow itself refuses some that do not fit."""
    from pyarrow import compute

    pc: Any = compute  # whose functions no type checker knows
    kind, target = before.type, after.type
    if kind == target:
        return True
    match _family(kind):
        case "struct":
            pairs = ((before.field(f.name), after.field(f.name)) for f in target)
        case "list":
            pairs = ((before.flatten(), after.flatten()),)
        case "map":
            pairs = ((before.keys, after.keys), (before.items, after.items))
        case "number" if not (pa.types.is_integer(kind) or pa.types.is_integer(target)):
            back = after.cast(kind, safe=False)
            same = pc.equal(before, back)
            if pa.types.is_floating(kind):
                both_nan = pc.and_(pc.is_nan(before), pc.is_nan(back))
                same = pc.or_(same, both_nan)
            return pc.all(same).as_py() is not False
        case _:
            return True
    return all(_is_exact(*pair) for pair in pairs)


def _family(kind: pa.DataType) -> str:
    """Return the common form of types that convert into each other without guessing."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    return "struct" if types.is_struct(kind) else str(kind).partition("[")[0].partition("<")[0]
