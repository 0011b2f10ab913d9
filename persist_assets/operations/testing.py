"""Tests of sources, run in Spark: rows of inputs ─► the source's query ─► rows compared."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from persist_assets.analysis.functions import CLOCK
from persist_assets.core.dialect import quote, tokenize
from persist_assets.core.errors import (
    BuildError,
    ConflictError,
    NotFoundError,
    PersistError,
    SettingsError,
    did_you_mean,
)
from persist_assets.core.model.columns import Column
from persist_assets.core.spark_types import UnknownTypeError, fields_of, inner_types
from persist_assets.engine.python_functions import call
from persist_assets.engine.session import translated
from persist_assets.operations.cases import Case, Number, Rows
from persist_assets.planning.render import stored_rows, substitute
from persist_assets.planning.selection import find_source
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Query, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between rows and those that a test expects.

    Attributes
    ----------
    part
        The part of the test: `expect`, or the name of a common table expression.
    columns
        The names of the columns that were compared.
    missing, unexpected
        The expected rows that are missing, and the rows that were not expected.
    """

    part: str
    columns: tuple[str, ...]
    missing: tuple[tuple[Any, ...], ...]
    unexpected: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a test.

    Attributes
    ----------
    status
        ``error`` if rows could not be computed.
    """

    case: Case
    status: Literal["passed", "failed", "error"]
    seconds: float
    differences: tuple[Difference, ...] = ()
    error: PersistError | None = None


def run_cases(
    settings: Settings, project: Project, engine: Engine, cases: Iterable[Case]
) -> Iterator[Outcome]:
    """Yield the result of each test, when it is asked for."""
    engine.define(project.udfs)
    for case in cases:
        begun = time.perf_counter()
        try:
            differences = _Run(settings, project, engine, case).differences()
            status = "failed" if differences else "passed"
            yield Outcome(case, status, time.perf_counter() - begun, differences)
        except PersistError as error:
            yield Outcome(case, "error", time.perf_counter() - begun, error=error)
        finally:
            engine.forget()


class _Run:
    """One test: its rows as frames, and what is computed from them."""

    def __init__(self, settings: Settings, project: Project, engine: Engine, case: Case) -> None:
        self._settings, self._project, self._engine, self._case = settings, project, engine, case
        self._prefix = f"test-{uuid.uuid4().hex[:8]}"
        self._source = find_source(project, case.source)
        self._frames: dict[SourceID, DataFrame] = {}
        for name, rows in case.inputs.items():
            source = find_source(project, name)
            if source.source_id in self._frames:
                raise ConflictError(f"`{source.key}` is listed twice in the inputs")
            self._frames[source.source_id] = self._input(source, rows)
        self._check_inputs()

    def differences(self) -> tuple[Difference, ...]:
        """Return the differences from what is expected."""
        case, compared = self._case, list[Difference | None]()
        if case.expect is not None:
            compared.append(self._compare("expect", self.result(), case.expect))
        for name, rows in case.ctes.items():
            compared.append(self._compare(name, self._cte(name), rows))
        return tuple(difference for difference in compared if difference is not None)

    def _check_inputs(self) -> None:
        """Raise if the source does not read an input, as far as the other inputs let it.

        Raises
        ------
        NotFoundError
            It does not.
        """
        reached = self._project.reach(
            self._source.bindings, lambda s: s.source_id in self._frames or s.raw is not None
        )
        unread = {*self._frames} - {s.source_id for s in reached}
        for source_id in sorted(unread):
            key = self._project.by_id[source_id].key
            message = f"`{self._source.key}` does not read `{key}` in this test"
            raise NotFoundError(message, hint="remove it from the inputs")

    # ----------------------------------------------------------------------------------- computed

    def result(self) -> DataFrame:
        """Return the rows that the table of the tested source would have."""
        source = self._source
        frame = self._rows(source)
        if source.annotation.merge is None and source.annotation.partition is None:
            return frame
        columns = columns_of_struct(frame.schema.jsonValue())
        return self._engine.over(
            frame, lambda name: stored_rows(source, f"SELECT * FROM {quote(name)}", columns)
        )

    def _rows(self, source: Source) -> DataFrame:
        """Return the rows of a source: those of the test, or computed from them."""
        if source.source_id in self._frames:
            return self._frames[source.source_id]
        if source.function is not None:
            return self._called(source)
        if source.query is None or (source.persisted and source is not self._source):
            hint = f"add it to the test: inputs: {{{source.name}: []}}"
            raise NotFoundError(f"`{self._case.name}` has no rows of `{source.key}`", hint=hint)
        return self._run(source.query, source.bindings, source.computed)

    def _called(self, source: Source) -> DataFrame:
        """Return the result of a function."""
        function = source.function
        assert function is not None
        if self._case.clock is not None:
            hint = "pass the time to the function as an input"
            raise BuildError("`clock` is for SQL and Malloy", hint=hint)
        if source is not self._source and (source.persisted or not source.bindings):
            hint = f"add it to the test: inputs: {{{source.name}: []}}"
            raise NotFoundError(f"`{self._case.name}` has no rows of `{source.key}`", hint=hint)
        inputs = {
            p.name: self._project.by_id[b]
            for p, b in zip(function.frames, source.bindings, strict=True)
        }
        root = self._settings.root
        return call(source, root, lambda n: self._rows(inputs[n]), lambda: self._engine.session)

    def _run(
        self, query: Query, bindings: Sequence[SourceID], columns: Sequence[Column] = ()
    ) -> DataFrame:
        """Return the rows of a query over rows of the test."""
        views: dict[SourceID, str] = {}

        def is_view(source: Source) -> bool:
            known = source.source_id in self._frames
            return known or source.query is None or source.persisted or source.function is not None

        for source in self._project.reach(bindings, is_view):
            if is_view(source):
                name = f"{self._prefix}-{source.key}"
                views[source.source_id] = self._engine.view(name, lambda s=source: self._rows(s))
        statement = substitute(self._project, query, bindings, views)
        if self._case.clock is not None:
            statement = replace(statement, sql=at_clock(statement.sql, self._case.clock))
        return self._engine.run(statement, columns)

    def _cte(self, name: str) -> DataFrame:
        """Return the rows of a common table expression of the source's query."""
        source = self._source
        query = None if source.function is not None else source.query
        cut = up_to_cte(query.text, name) if query is not None else None
        if query is None or cut is None:
            hint = "only those of its outermost WITH can be tested"
            message = f"`{source.key}` has no common table expression `{name}`"
            raise NotFoundError(message, hint=hint)
        text = f"{query.text[:cut]} SELECT * FROM {quote(name)}"
        inside = tuple(r for r in query.references if r.end <= cut)
        shorter = replace(query, text=text, references=inside, column_names=(), bounds=())
        return self._run(shorter, source.bindings[: len(inside)])

    # ------------------------------------------------------------------------------------- inputs

    def _input(self, source: Source, rows: Rows) -> DataFrame:
        """Return rows of a test as a source has them: all its columns, with their types."""
        if rows.sql:
            with translated(f"the rows of `{source.name}`"):
                return _shaped(self._engine.session.sql(rows.sql), source.columns, source.key)
        types = {c.name: c.type or _guess(rows, c.name) for c in source.columns}
        if not types:  # they are known only once it has been computed
            types = {name: _guess(rows, name) for row in rows.values for name in row}
        return self._typed(rows, types, source.key)

    def _typed(self, rows: Rows, types: Mapping[str, str], label: str) -> DataFrame:
        """Return values as rows with some columns."""
        names = {name.lower(): name for name in types}
        for row in rows.values:
            unknown = next((name for name in row if name.lower() not in names), None)
            if unknown is not None:
                hint = did_you_mean(unknown, types) or f"known columns: {', '.join(types)}"
                raise NotFoundError(f"`{label}` has no column `{unknown}`", hint=hint)
            for name, value in row.items():
                _check_fields(value, types[names[name.lower()]], f"`{name}` of `{label}`")
        lowered = [{k.lower(): v for k, v in row.items()} for row in rows.values]
        texts = [tuple(_text(row.get(n.lower())) for n in types) for row in lowered]
        schema = ", ".join(f"{quote(name)} STRING" for name in types)
        items = [_parsed(quote(name), kind) for name, kind in types.items()]
        with translated(f"the rows of `{label}`"):
            return self._engine.session.createDataFrame(texts, schema).selectExpr(*items)

    # ----------------------------------------------------------------------------------- compared

    def _compare(self, label: str, actual: DataFrame, expected: Rows) -> Difference | None:
        """Return the difference of computed rows from those expected; None: there is none."""
        kinds = {f.name: f.dataType.simpleString() for f in actual.schema.fields}
        named = [n.lower() for row in expected.values for n in row]
        if expected.sql:
            with translated("the expected rows"):
                frame = self._engine.session.sql(expected.sql)
            named = [name.lower() for name in frame.columns]
            types = {n: k for n, k in kinds.items() if n.lower() in named}
            columns = [Column(name, kind) for name, kind in types.items()]
            frame = _shaped(frame, columns, self._source.key)
        else:
            types = {n: k for n, k in kinds.items() if n.lower() in named} or kinds
            _check_digits(expected, types)
            frame = self._typed(expected, types, self._source.key)
        items = [*map(quote, types)]
        with translated(f"computing `{self._source.name}`"):
            rows = [tuple(row) for row in actual.selectExpr(*items).collect()]
            others = [tuple(row) for row in frame.selectExpr(*items).collect()]
        missing, unexpected = minus(others, rows), minus(rows, others)
        if not missing and not unexpected:
            return None
        return Difference(label, tuple(types), tuple(missing), tuple(unexpected))


# --------------------------------------------------------------------------------------- recording


def record(
    settings: Settings, project: Project, engine: Engine, reader: Reader, name: str, n_rows: int
) -> dict[str, Any]:
    """Return a test of a source with some real rows of its inputs, as YAML has it.

    Parameters
    ----------
    reader
        Reads the inputs.
    n_rows
        The number of rows of each input.
    """
    source = find_source(project, name)

    def is_input(one: Source) -> bool:
        return one.query is None or one.persisted or (one.function is not None and not one.bindings)

    bindings = source.bindings
    inputs = {
        one.key: _as_yaml(reader.read(one).limit(n_rows), nulls=False)
        for one in project.reach(bindings, is_input)
        if is_input(one)
    }
    rows = {key: Rows(tuple(values)) for key, values in inputs.items()}
    case = Case("recorded", source.key, source.location, rows, Rows(), {})
    result = _Run(settings, project, engine, case).result()
    return {"source": source.key, "inputs": inputs, "expect": _as_yaml(result, nulls=True)}


def _as_yaml(frame: DataFrame, *, nulls: bool) -> list[dict[str, Any]]:
    """Return rows as values that YAML has; without NULLs if they can be left out."""
    from pyspark.sql import functions as F

    options = {"ignoreNullFields": str(not nulls).lower()}
    with translated("reading rows"):
        texts = frame.select(F.to_json(F.struct(*map(quote, frame.columns)), options)).collect()
    return [json.loads(text) for (text,) in texts]


# ---------------------------------------------------------------------------------------- values


def _shaped(frame: DataFrame, columns: Sequence[Column], label: str) -> DataFrame:
    """Return rows with some columns and their types; those that are missing are NULL."""
    present = {name.lower(): name for name in frame.columns}
    known = {c.name.lower() for c in columns}
    unknown = [name for lower, name in present.items() if lower not in known]
    if columns and unknown:
        hint = did_you_mean(unknown[0], (c.name for c in columns))
        raise NotFoundError(f"`{label}` has no column `{unknown[0]}`", hint=hint)
    items: list[str] = []
    for column in columns:
        name = present.get(column.name.lower())
        value = "NULL" if name is None else quote(name)
        typed = f"CAST({value} AS {column.type})" if column.type else value
        items.append(f"{typed} AS {quote(column.name)}")
    return frame.selectExpr(*items) if items else frame


def _text(value: Any) -> str | None:
    """Return a value as text: of nested values, JSON."""
    if value is None or isinstance(value, str):
        return value
    return _json(value)


def _json(value: Any) -> str:
    """Return a value as JSON, with numbers as the user wrote them."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        fields: dict[Any, Any] = value
        return "{" + ", ".join(f"{json.dumps(str(k))}: {_json(v)}" for k, v in fields.items()) + "}"
    if isinstance(value, list):
        items: list[Any] = value
        return "[" + ", ".join(map(_json, items)) + "]"
    return json.dumps(value)


def _check_digits(rows: Rows, types: Mapping[str, str]) -> None:
    """Check that decimals have no more digits than their columns; Spark would round them.

    Raises
    ------
    SettingsError
        One has.
    """
    scales = {
        name.lower(): (kind, int(kind.rstrip(")").partition(",")[2]))
        for name, kind in types.items()
        if kind.startswith("decimal(")
    }
    for row in rows.values:
        for name, value in row.items():
            if not isinstance(value, Number) or name.lower() not in scales:
                continue
            kind, scale = scales[name.lower()]
            exponent = Decimal(value.text).normalize().as_tuple().exponent
            if isinstance(exponent, int) and -exponent > scale:
                raise SettingsError(
                    f"`{name}` can never be {value.text}: its type is {kind.upper()}",
                    hint="write no more digits after the point than the type has",
                )


def _check_fields(value: Any, kind: str, label: str) -> None:
    """Check that a nested value has no fields that its type lacks; Spark would ignore them.

    Raises
    ------
    NotFoundError
        It has one.
    """
    if isinstance(value, list) and kind.startswith("array<"):
        items: list[Any] = value
        for item in items:
            _check_fields(item, kind[len("array<") : -1], label)
    elif isinstance(value, dict) and kind.startswith("map<"):
        entries: dict[Any, Any] = value
        _, of_values = inner_types(kind, "map")
        for item in entries.values():
            _check_fields(item, of_values, label)
    elif isinstance(value, dict) and kind.startswith("struct<"):
        members: dict[Any, Any] = value
        try:
            fields = {name.lower(): of for name, of in fields_of(kind)}
        except UnknownTypeError:  # a name with blanks or the like, which Spark does not quote
            return
        for name, item in members.items():
            if str(name).lower() not in fields:
                hint = did_you_mean(str(name), fields) or f"known fields: {', '.join(fields)}"
                raise NotFoundError(f"{label} has no field `{name}`", hint=hint)
            _check_fields(item, fields[str(name).lower()], label)


def _parsed(column: str, kind: str) -> str:
    """Return the SQL expression of a value of a type in a column of texts."""
    if kind.startswith(("array", "map", "struct")):
        return f"from_json({column}, '{kind}', map('mode', 'FAILFAST')) AS {column}"
    return f"CAST({column} AS {kind}) AS {column}"


def _guess(rows: Rows, column: str) -> str:
    """Return a type for the values of a column whose type is not known."""
    values = [row[column] for row in rows.values if row.get(column) is not None]
    for kind, name in ((bool, "boolean"), (int, "bigint"), ((int, float), "double")):
        if values and all(isinstance(value, kind) for value in values):
            return name
    return "string"


def minus(rows: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the rows that other rows do not have as often."""
    counts = Counter(map(_comparable, others))
    rest: list[Any] = []
    for row in rows:
        key = _comparable(row)
        if counts[key]:
            counts[key] -= 1
        else:
            rest.append(row)
    return rest


def _comparable(value: Any) -> Any:
    """Return a value that is equal to those that a test takes for the same, and can be hashed."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value + 0.0:.12g}"  # -0.0 equals 0.0
    if isinstance(value, datetime):
        return value, value.fold  # Spark returns local times; one hour a year occurs twice
    if isinstance(value, dict):
        return tuple(sorted((repr(_comparable(k)), _comparable(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return bytes(value) if isinstance(value, bytearray) else value


# ------------------------------------------------------------------------------------------ texts

_DATES = ("curdate", "current_date")


def at_clock(sql: str, clock: datetime) -> str:
    """Return a query with a time in place of each call that reads the clock."""
    tokens = [*tokenize(sql)]
    parts: list[str] = []
    end = 0
    for n, token in enumerate(tokens):
        word = token.text.lower()
        is_name = sql[token.start] == "`" or (n and tokens[n - 1].text.upper() in (".", "AS"))
        if word not in CLOCK or is_name:
            continue
        is_call = [t.text for t in tokens[n + 1 : n + 3]] == ["(", ")"]
        if not is_call and word not in ("current_date", "current_timestamp", "localtimestamp"):
            continue
        day, instant = clock.date().isoformat(), clock.isoformat(sep=" ")
        literal = f"DATE '{day}'" if word in _DATES else f"TIMESTAMP '{instant}'"
        if word == "localtimestamp":
            literal = f"TIMESTAMP_NTZ '{instant}'"
        elif word == "unix_timestamp":
            literal = f"unix_timestamp({literal})"
        parts += sql[end : token.start], literal
        end = (tokens[n + 2] if is_call else token).end + 1
    return "".join((*parts, sql[end:]))


def up_to_cte(text: str, name: str) -> int | None:
    """Return the end of the outermost WITH of a query; None if it does not define a name."""
    tokens = [*tokenize(text)]
    if not tokens or tokens[0].text.upper() != "WITH":
        return None
    words = [token.text.upper() for token in tokens[1:3]]
    if words[:1] == ["RECURSIVE"] and words[1:] != ["AS"]:  # else it is a name
        tokens = [tokens[0], *tokens[2:]]
    names: list[str] = []
    depth = 0
    for before, token in pairwise(tokens):
        if depth == 0 and (before is tokens[0] or before.text == ","):
            names.append(token.text.lower())
        elif depth == 0 and before.text == ")" and token.text.upper() not in (",", "AS"):
            return token.start if name.lower() in names else None
        depth += {"(": 1, ")": -1}.get(token.text, 0)
    return None
