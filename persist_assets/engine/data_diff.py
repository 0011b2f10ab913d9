"""Data diff: the differing rows of two tables, counted, by column, and with samples.

Spark joins rows by key, or groups whole rows, so tables may have any size; only counts and samples
come here. The invariant: values are the same exactly if nothing distinguishes them. NULL equals
NULL, NaN equals NaN, the order of a map does not count; the two floating-point zeros differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.errors import GoneError, SettingsError
from persist_assets.engine.session import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.planning.diff import Change

Values = dict[str, Any]
"""A row, or a part of one: values by column name."""
ROUNDING = 1e-9
"""The relative difference up to which floating-point numbers may differ by rounding."""


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A column that one side lacks, or has with another type; None: the side lacks it."""

    column: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row with the same key on both sides, and its differing columns."""

    key: Values
    before: Values
    after: Values


@dataclass(frozen=True, slots=True)
class RowsDiffer:
    """The differences of two tables' rows, in the columns that both have.

    Attributes
    ----------
    key
        Empty: whole rows are compared, with their multiplicity.
    changed
        None without a key.
    columns
        By column, the number of rows with the same key in which it differs.
    added_rows, removed_rows, changed_rows
        Samples, ordered by key, or by all columns.
    before, after
        The numbers of rows, if known.
    rounding
        The largest relative difference of floating-point numbers, if the sides differ in nothing
        else and by no more than `ROUNDING`; see `compare_multisets`.
    """

    key: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    changed: int | None = None
    columns: Mapping[str, int] = field(default_factory=dict[str, int])
    uncompared: tuple[Uncompared, ...] = ()
    added_rows: tuple[Values, ...] = ()
    removed_rows: tuple[Values, ...] = ()
    changed_rows: tuple[ChangedRow, ...] = ()
    before: int | None = None
    after: int | None = None
    rounding: float | None = None


@dataclass(frozen=True, slots=True)
class NotCompared:
    """The reason why rows are not compared.

    Attributes
    ----------
    lacks_key
        The key is missing.
    """

    reason: str
    lacks_key: bool = False


def compare_tables(
    load: Callable[[Snapshot], DataFrame],
    changes: Iterable[Change],
    tables: tuple[Mapping[SourceID, Snapshot], Mapping[SourceID, Snapshot]],
    *,
    key: Sequence[str] = (),
    sample: int = 5,
    names: tuple[str, str] = ("before", "after"),
) -> tuple[list[Change], dict[SourceID, RowsDiffer | NotCompared]]:
    """Return the row differences of changed sources, one after the other.

    Parameters
    ----------
    load
        Returns the rows of a snapshot.
    changes
        They include sources with the same meaning on both sides. Such a source is returned, as
        changed, only if its rows differ because its data does.
    tables
        The tables of both sides.
    key, sample, names
        See `compare_snapshots`.

    Raises
    ------
    SettingsError
        No source has the key, or several rows of one side have the same key.
    """
    listed: list[Change] = []
    differences: dict[SourceID, RowsDiffer | NotCompared] = {}
    for change in changes:
        old, new = (t.get(change.source_id) for t in tables)
        if change.change == "same":
            if old is None or new is None or is_same(old, new):
                continue
            listed.append(replace(change, change="changed"))
        else:
            listed.append(change)
        try:
            differences[change.source_id] = compare_snapshots(
                load, old, new, key=key, sample=sample, names=names
            )
        except SettingsError as error:
            error.message = f"{change.source_id}: {error.message}"
            raise
    lacking = [f for f in differences.values() if isinstance(f, NotCompared) and f.lacks_key]
    if lacking and not any(isinstance(f, RowsDiffer) for f in differences.values()):
        raise SettingsError(lacking[0].reason, hint="use columns of the compared tables")
    return listed, differences


def compare_snapshots(
    load: Callable[[Snapshot], DataFrame],
    before: Snapshot | None,
    after: Snapshot | None,
    *,
    key: Sequence[str] = (),
    sample: int = 5,
    names: tuple[str, str] = ("before", "after"),
) -> RowsDiffer | NotCompared:
    """Return the row differences of two snapshots; equal contents are recognized without Spark.

    Parameters
    ----------
    load
        Returns the rows of a snapshot.
    key
        The columns that identify a row on each side; none: see `RowsDiffer.key`.
    sample
        The maximum number of rows of each kind.
    names
        The names of the sides.

    Raises
    ------
    SettingsError
        Several rows of one side have the same key.
    """
    if before is None or after is None:
        return NotCompared(f"no table in {names[0] if before is None else names[1]}")
    if is_same(before, after):
        lacking = _lacking(key, [c.name for c in after.columns])
        # Nothing differs, with any key or none.
        nothing = RowsDiffer(tuple(key), changed=0 if key else None)
        return lacking or replace(nothing, before=before.rows, after=after.rows)
    try:
        frames = (load(before), load(after))
    except GoneError as error:
        return NotCompared(error.message)
    with translated(f"comparing {before.table} with {after.table}"):
        difference = compare_rows(*frames, key=key, sample=sample, names=names)
    if isinstance(difference, NotCompared):
        return difference
    return replace(difference, before=before.rows, after=after.rows)


def is_same(before: Snapshot, after: Snapshot) -> bool:
    """Whether two snapshots hold the same rows, in the same columns."""
    columns = [[(c.name, c.type) for c in s.columns] for s in (before, after)]
    return columns[0] == columns[1] and (before.rows, before.content) == (after.rows, after.content)


def compare_rows(
    before: DataFrame,
    after: DataFrame,
    *,
    key: Sequence[str] = (),
    sample: int = 5,
    names: tuple[str, str] = ("before", "after"),
) -> RowsDiffer | NotCompared:
    """Return the row differences of two frames; see `compare_snapshots`."""
    common, uncompared = _common(before, after)
    lacking = _lacking(key, [c.name for c in common])
    if lacking or not common:
        return lacking or NotCompared("the tables have no columns in common")
    if not key:
        return _as_they_are(before, after, common, uncompared, sample)
    key_names = {k.lower() for k in key}
    keys = [c for c in common if c.name.lower() in key_names]
    rest = [c for c in common if c.name.lower() not in key_names]
    return _by_key(before, after, keys, rest, uncompared, sample, names)


def compare_multisets(
    before: DataFrame, after: DataFrame, *, key: Sequence[str] = (), sample: int = 5
) -> RowsDiffer | NotCompared:
    """Return by how much the multiplicities of rows differ, and whether that is only rounding.

    Each side is computed once.

    Parameters
    ----------
    key
        Columns that identify a row: then `RowsDiffer.columns` has the columns that differ. It need
        not be unique.
    sample
        See `compare_snapshots`.
    """
    columns, uncompared = _common(before, after)
    if not columns:
        return NotCompared("the tables have no columns in common")
    differing = _differing(before, after, columns).persist()
    try:
        difference = replace(_counted(differing, columns, sample), uncompared=uncompared)
        if not difference.added and not difference.removed:
            return difference
        is_paired = difference.added == difference.removed and not uncompared
        rounding = _rounding(differing, columns) if is_paired else None
        by_column = {} if rounding is not None else _by_column(differing, columns, key)
        return replace(difference, columns=by_column, rounding=rounding)
    finally:
        differing.unpersist()


# ---------------------------------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of both sides.

    Attributes
    ----------
    value, same
        SQL expressions: its value; and an orderable expression that is equal exactly for same
        values.
    number
        It is a floating-point number, and `same` is its text.
    """

    name: str
    value: str
    same: str
    number: bool

    @property
    def hidden(self) -> bool:
        """Whether its value cannot be restored from `same`."""
        return self.value != self.same and not self.number


def _common(before: DataFrame, after: DataFrame) -> tuple[list[_Column], tuple[Uncompared, ...]]:
    """Return the columns that can be compared, in the order of `after`, and the others."""
    from pyspark.sql import types as T

    old = {f.name.lower(): f for f in before.schema.fields}
    common: list[_Column] = []
    others: list[Uncompared] = []
    for new in after.schema.fields:
        was = old.pop(new.name.lower(), None)
        # Whether values may be NULL is no difference.
        same = was is not None and was.dataType.simpleString() == new.dataType.simpleString()
        if same:
            value = quote(new.name)
            number = isinstance(new.dataType, T.FloatType | T.DoubleType)
            common.append(_Column(new.name, value, comparison_value(value, new.dataType), number))
        else:
            kind = was.dataType.simpleString() if was is not None else None
            others.append(Uncompared(new.name, kind, new.dataType.simpleString()))
    others += (Uncompared(f.name, f.dataType.simpleString(), None) for f in old.values())
    return common, tuple(others)


def _lacking(key: Sequence[str], columns: Sequence[str]) -> NotCompared | None:
    names = {c.lower() for c in columns}
    lacking = [k for k in key if k.lower() not in names]
    if not lacking:
        return None
    return NotCompared(f"no column `{lacking[0]}` with the same type on both sides", lacks_key=True)


def comparison_value(value: str, kind: Any, depth: int = 0) -> str:
    """Return an SQL expression that distinguishes values of a type; Spark does not compare maps.

    As text, floating-point numbers are exact, there is one NaN, and there are two zeros.
    """
    from pyspark.sql import types as T

    element = f"e{depth}"
    match kind:
        case T.FloatType() | T.DoubleType():
            return f"CAST({value} AS STRING)"
        case T.ArrayType():
            below = comparison_value(element, kind.elementType, depth + 1)
            return value if below == element else f"transform({value}, {element} -> {below})"
        case T.MapType():
            entry = _struct(
                [
                    comparison_value(f"{element}.key", kind.keyType, depth + 1),
                    comparison_value(f"{element}.value", kind.valueType, depth + 1),
                ]
            )
            return f"array_sort(transform(map_entries({value}), {element} -> {entry}))"
        case T.StructType():
            parts = [(f"{value}.{quote(f.name)}", f.dataType) for f in kind.fields]
            below = [comparison_value(part, inner, depth) for part, inner in parts]
            if below == [part for part, _ in parts]:
                return value
            return f"IF({value} IS NULL, NULL, {_struct(below)})"
        case _:
            return value


def _struct(parts: Sequence[str]) -> str:
    fields = ", ".join(f"'f{n}', {part}" for n, part in enumerate(parts)) or "'none', true"
    return f"named_struct({fields})"


def _own(columns: Sequence[_Column]) -> str:
    """Return a struct of the values that cannot be restored from the compared ones."""
    return _struct([c.value for c in columns if c.hidden])


def _values(columns: Sequence[_Column], same: Sequence[Any], hidden: Sequence[Any]) -> Values:
    """Return a row from its compared values, and those of `_own`."""
    rest, values = iter(hidden), dict[str, Any]()
    for column, value in zip(columns, same, strict=False):
        if column.hidden:
            values[column.name] = next(rest)
        else:
            values[column.name] = float(value) if column.number and value is not None else value
    return values


# --------------------------------------------------------------------------------------- counting


def _as_they_are(
    before: DataFrame,
    after: DataFrame,
    columns: Sequence[_Column],
    uncompared: tuple[Uncompared, ...],
    sample: int,
) -> RowsDiffer:
    """Count by how much the multiplicities of rows differ between the sides."""
    differing = _differing(before, after, columns).persist()
    try:
        return replace(_counted(differing, columns, sample), uncompared=uncompared)
    finally:
        differing.unpersist()


def _differing(before: DataFrame, after: DataFrame, columns: Sequence[_Column]) -> DataFrame:
    """Return the rows with different multiplicities: the side with more, by how much, the row."""
    from pyspark.sql import functions as F

    cells = [f"c{n}" for n in range(len(columns))]
    same = [f"{c.same} AS c{n}" for n, c in enumerate(columns)]
    # Spark groups by sorting if a struct is carried along.
    hidden = any(c.hidden for c in columns)
    hidden_values = [f"{_own(columns)} AS own"] if hidden else []
    grouped = (
        before.selectExpr(*same, *hidden_values, "-1 AS side")
        .unionAll(after.selectExpr(*same, *hidden_values, "1 AS side"))
        .groupBy(*cells)
        .agg(F.expr("sum(side) AS n"), F.expr("first(own) AS own" if hidden else "array() AS own"))
    )
    kind = "IF(n > 0, 'added', 'removed') AS kind"
    return grouped.where("n <> 0").selectExpr(kind, "abs(n) AS n", "own", *cells)


def _counted(differing: DataFrame, columns: Sequence[_Column], sample: int) -> RowsDiffer:
    """Return the numbers of rows that one side has more of, with samples."""
    from pyspark.sql import functions as F

    cells = [f"c{n}" for n in range(len(columns))]
    counted = dict(differing.groupBy("kind").agg(F.expr("sum(n)")).collect())
    examples: dict[str, list[Values]] = {"added": [], "removed": []}
    for of, n, its, *row in _sampled(differing, cells, sample) if counted and sample else ():
        rows = examples[of]
        rows += [_values(columns, row, its)] * min(n, sample - len(rows))
    return RowsDiffer(
        added=counted.get("added", 0),
        removed=counted.get("removed", 0),
        added_rows=tuple(examples["added"]),
        removed_rows=tuple(examples["removed"]),
    )


def _by_column(
    differing: DataFrame, columns: Sequence[_Column], key: Sequence[str]
) -> dict[str, int]:
    """Return in how many rows with one key each column differs; empty: the key is missing.

    Only keys count of which each side has one differing row.
    """
    from pyspark.sql import functions as F

    cells = {c.name.lower(): f"c{n}" for n, c in enumerate(columns)}
    keys = {k.lower() for k in key}
    rest = [(c.name, cells[c.name.lower()]) for c in columns if c.name.lower() not in keys]
    if not keys or not rest or not keys <= cells.keys():
        return {}
    values = [
        f"NOT ({_first(cell, 'removed')} <=> {_first(cell, 'added')}) AS differs{n}"
        for n, (_, cell) in enumerate(rest)
    ]
    by_key = differing.groupBy(*(cells[k] for k in sorted(keys))).agg(
        F.expr("sum(n) FILTER (WHERE kind = 'removed') AS before"),
        F.expr("sum(n) FILTER (WHERE kind = 'added') AS after"),
        *map(F.expr, values),
    )
    pairs = by_key.where("before = 1 AND after = 1")
    counts = pairs.selectExpr(*(f"count_if(differs{n})" for n in range(len(rest)))).collect()[0]
    return {name: n for (name, _), n in zip(rest, counts, strict=True) if n}


def _rounding(differing: DataFrame, columns: Sequence[_Column]) -> float | None:
    """Return the largest relative difference of numbers, if rows differ in nothing else.

    Rows that are equal in all other columns are paired in the order of their numbers. Of numbers
    that are almost the same, later columns decide: hence the casts to FLOAT.

    Returns
    -------
    float | None
        None: some rows differ in other columns, or numbers by more than `ROUNDING`.
    """
    from pyspark.sql import functions as F

    numbers = [f"c{n}" for n, c in enumerate(columns) if c.number]
    rest = [f"c{n}" for n, c in enumerate(columns) if not c.number]
    if not numbers:
        return None
    order = ", ".join([*(f"CAST({c} AS FLOAT)" for c in numbers), *numbers])
    place = f"row_number() OVER (PARTITION BY {', '.join(['kind', *rest])} ORDER BY {order})"
    pairs = (
        differing.selectExpr("kind", "n", *rest, *(f"CAST({c} AS DOUBLE) AS {c}" for c in numbers))
        .selectExpr("kind", *rest, *numbers, "explode(sequence(1L, n)) AS copy")
        .selectExpr("kind", *rest, *numbers, f"{place} AS place")
        .groupBy(*rest, "place")
        .agg(
            F.expr("count(DISTINCT kind) AS sides"),
            F.expr(f"array_max(array({', '.join(map(_relative, numbers))})) AS far"),
        )
    )
    alone, far = pairs.selectExpr("count_if(sides < 2)", "max(far)").collect()[0]
    return far if not alone and far <= ROUNDING else None


def _relative(cell: str) -> str:
    """Return an SQL aggregate: the relative difference of a number between two sides."""
    x, y = _first(cell, "removed"), _first(cell, "added")
    return (
        f"CASE WHEN {x} <=> {y} THEN 0D WHEN {x} IS NULL OR {y} IS NULL THEN double('NaN')"
        f" ELSE abs({x} - {y}) / greatest(abs({x}), abs({y})) END"
    )


def _first(cell: str, kind: str) -> str:
    return f"first({cell}) FILTER (WHERE kind = '{kind}')"


def _by_key(
    before: DataFrame,
    after: DataFrame,
    keys: Sequence[_Column],
    columns: Sequence[_Column],
    uncompared: tuple[Uncompared, ...],
    sample: int,
    names: tuple[str, str],
) -> RowsDiffer:
    """Count the rows whose key is on one side only, and those with one key that differ."""
    whole = [*keys, *columns]
    differing = _joined(before, after, keys, columns, names).persist()
    kinds = ("added", "removed", "changed")
    counts = [f"count_if(kind = '{k}')" for k in kinds]
    counts += [f"count_if(kind = 'changed' AND differs[{n}])" for n in range(len(columns))]
    try:
        added, removed, changed, *by_column = differing.selectExpr(*counts).collect()[0]
        examples: dict[str, list[Any]] = {k: [] for k in kinds}
        if sample and (added or removed or changed):
            order = [f"k{n}" for n in range(len(keys))]
            for kind, differs, b, a, *_ in _sampled(differing, order, sample):
                rows = [_values(whole, [*r][:-1], r["own"]) if r else {} for r in (b, a)]
                examples[kind].append((rows[0], rows[1], differs))
    finally:
        differing.unpersist()
    return RowsDiffer(
        tuple(c.name for c in keys),
        added,
        removed,
        changed,
        {c.name: n for c, n in zip(columns, by_column, strict=True)},
        uncompared,
        tuple(new for _, new, _ in examples["added"]),
        tuple(old for old, _, _ in examples["removed"]),
        tuple(
            ChangedRow(
                {c.name: new[c.name] for c in keys},
                {c.name: old[c.name] for c, differ in zip(columns, flags, strict=True) if differ},
                {c.name: new[c.name] for c, differ in zip(columns, flags, strict=True) if differ},
            )
            for old, new, flags in examples["changed"]
        ),
    )


def _joined(
    before: DataFrame,
    after: DataFrame,
    keys: Sequence[_Column],
    columns: Sequence[_Column],
    names: tuple[str, str],
) -> DataFrame:
    """Return the differing rows: their kind, differing columns, both sides, and keys."""
    from pyspark.sql import functions as F

    whole = [*keys, *columns]
    cells = [f"c{n}" for n in range(len(whole))]
    texts = [f"{c.same} AS c{n}" for n, c in enumerate(whole)]
    sides = [side.selectExpr(*texts, f"{_own(whole)} AS own") for side in (before, after)]
    for side, name in zip(sides, names, strict=True):
        _refuse_several(side, keys, name)
    on = " AND ".join(f"b.{c} <=> a.{c}" for c in cells[: len(keys)])
    differs = [f"NOT (b.{c} <=> a.{c})" for c in cells[len(keys) :]]
    kind = (
        "CASE WHEN b.own IS NULL THEN 'added' WHEN a.own IS NULL THEN 'removed' "
        "WHEN exists(differs, d -> d) THEN 'changed' END AS kind"
    )
    either = [f"IF(a.own IS NULL, b.{c}, a.{c}) AS k{n}" for n, c in enumerate(cells[: len(keys)])]
    return (
        sides[0]
        .alias("b")
        .join(sides[1].alias("a"), F.expr(on), "full")
        .selectExpr("*", f"CAST(array({', '.join(differs)}) AS ARRAY<BOOLEAN>) AS differs")
        .selectExpr(kind, "differs", _row("b", cells), _row("a", cells), *either)
        .where("kind IS NOT NULL")
    )


def _row(side: str, cells: Sequence[str]) -> str:
    fields = ", ".join(f"'{c}', {side}.{c}" for c in (*cells, "own"))
    return f"IF({side}.own IS NULL, NULL, named_struct({fields})) AS {side}"


def _sampled(frame: DataFrame, order: Sequence[str], n: int) -> list[Any]:
    """Return the first rows of each kind, at most `n` each."""
    rank = f"row_number() OVER (PARTITION BY kind ORDER BY {', '.join(order)}) AS rank"
    ranked = frame.selectExpr("*", rank).where(f"rank <= {n}").orderBy("kind", "rank").drop("rank")
    try:
        return ranked.collect()
    except (OverflowError, ValueError):  # Python has no years before 1 or after 9999
        cells = (ranked[f.name].cast(_with_texts(f.dataType)) for f in ranked.schema.fields)
        return ranked.select(
            *(c.alias(n) for c, n in zip(cells, ranked.columns, strict=True))
        ).collect()


def _with_texts(kind: Any) -> Any:
    """Return a type with texts in place of dates and timestamps."""
    from pyspark.sql import types as T

    match kind:
        case T.DateType() | T.TimestampType() | T.TimestampNTZType():
            return T.StringType()
        case T.ArrayType(elementType=of):
            return T.ArrayType(_with_texts(of))
        case T.MapType(keyType=key, valueType=value):
            return T.MapType(_with_texts(key), _with_texts(value))
        case T.StructType(fields=fields):
            return T.StructType([T.StructField(f.name, _with_texts(f.dataType)) for f in fields])
        case _:
            return kind


def _refuse_several(side: DataFrame, keys: Sequence[_Column], name: str) -> None:
    """Raise if several rows of a side have one key; name the first such key."""
    from pyspark.sql import functions as F

    cells = [f"c{n}" for n in range(len(keys))]
    several = side.groupBy(*cells).agg(F.expr("count(1) AS n")).where("n > 1")
    first_rows = several.orderBy(*cells).limit(1).collect()
    if first_rows:
        *key, n = first_rows[0]
        pairs = zip(keys, key, strict=True)
        example = ", ".join(f"{c.name} = {'NULL' if v is None else v}" for c, v in pairs)
        named = ", ".join(f"`{c.name}`" for c in keys)
        raise SettingsError(
            f"{named} is not a key: {n} rows of {name} have {example}",
            hint="use more columns, --key a,b; or no key, to compare rows as they are",
        )
