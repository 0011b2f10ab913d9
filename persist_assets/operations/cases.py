"""Tests of sources as users write them: YAML below `tests` → cases.

totals_ignore_refunds:            the name of the test
source: daily_revenue           the source that is tested
inputs:                         rows of what it reads; columns that are left out are NULL
orders:
- {order_id: 1, amount: 5}
shops: tests/shops.csv        or a file of CSV, or a query: VALUES (1, 'a') AS t(id, name)
expect:                         rows in any order; only these columns are compared
- {amount: 5}
ctes: {cleaned: [{order_id: 1}]}
clock: 2024-01-31 10:00:00      the time that the query reads
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, Problem, SettingsError, SourcesError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIRECTORY = "tests"
"""The directory of tests in a project."""
_REST = "\0rest"
"""The key of the values of a row that its header has no name for."""
_KEYS = ("source", "inputs", "expect", "ctes", "clock")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a test.

    Attributes
    ----------
    values
        The values of each row by column, as YAML or CSV have them.
    sql
        A query for the rows; empty: they are `values`.
    """

    values: tuple[Mapping[str, Any], ...] = ()
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A test of one source.

    Attributes
    ----------
    source
        The name of the source that is tested.
    inputs
        The rows of what it reads, by the name of the source.
    expect
        Its rows; None: only those of `ctes` are expected.
    ctes
        The rows of common table expressions of its query, by name.
    clock
        The time that its query reads; None: the present.
    """

    name: str
    source: str
    location: Location
    inputs: Mapping[str, Rows]
    expect: Rows | None
    ctes: Mapping[str, Rows]
    clock: datetime | None = None


def read_cases(root: Path) -> list[Case]:
    """Return the tests of a project, by file and line.

    Raises
    ------
    SourcesError
        Some of them are invalid; it has all problems.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    names: dict[str, Location] = {}
    for path in sorted((root / DIRECTORY).rglob("*")):
        if path.suffix not in (".yml", ".yaml"):
            continue
        for name, location, body in _tests_in(path, root, problems):
            if name in names:
                message = f"the test `{name}` is also in {names[name]}"
                problems.append(Problem("test", message, location, "rename one"))
                continue
            names[name] = location
            try:
                cases.append(_case(name, location, body, root))
            except SettingsError as error:
                problem = Problem("test", f"`{name}`: {error.message}", location, error.hint)
                problems.append(problem)
    if problems:
        raise SourcesError(problems)
    return cases


def _tests_in(
    path: Path, root: Path, problems: list[Problem]
) -> Iterator[tuple[str, Location, Any]]:
    """Yield the name, the place and the content of each test of a file."""
    import yaml

    relative = path.relative_to(root).as_posix()
    try:
        loader = _loader()(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:  # no text, or none of YAML
        reason = str(error).splitlines()[0]
        problems.append(Problem("test", f"it cannot be read: {reason}", Location(relative)))
        return
    try:
        node: Any = loader.get_single_node()
        if node is not None and not isinstance(node, yaml.MappingNode):
            hint = "name: {source: …, inputs: {…}, expect: […]}"
            problems.append(Problem("test", "expected tests by name", Location(relative), hint))
            return
        for key, value in node.value if node is not None else ():
            place = Location(relative, key.start_mark.line + 1, key.start_mark.column + 1)
            yield str(key.value), place, loader.construct_object(value, deep=True)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Location(relative, mark.line + 1, mark.column + 1) if mark else Location(relative)
        problems.append(Problem("test", f"invalid YAML: {error.problem}", place))
    finally:
        loader.dispose()


class Number(float):
    """A number with the digits that the user wrote: `1.10`."""

    text: str


@cache
def _loader() -> Any:
    """Return a YAML loader that reads only common spellings as numbers, and no dates.

    YAML 1.1 takes `010` for 8, `12:30` for 750 and `NO` for false.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def number(loader: Any, node: Any) -> Number:
        value = Number(node.value)
        value.text = node.value
        return value

    Loader.yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag.endswith((":null", ":merge"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    tag = "tag:yaml.org,2002:{}".format
    Loader.add_implicit_resolver(
        tag("bool"), re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"
    )
    Loader.add_implicit_resolver(tag("int"), re.compile(r"-?(?:0|[1-9]\d*)$"), [*"-0123456789"])
    Loader.add_implicit_resolver(
        tag("float"), re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$"), [*"-0123456789"]
    )
    Loader.add_constructor(tag("float"), number)
    return Loader


def _case(name: str, location: Location, body: Any, root: Path) -> Case:
    """Return a test.

    Raises
    ------
    SettingsError
        It is invalid.
    """
    if not isinstance(body, dict):
        raise SettingsError("a test must be a mapping", hint=f"its keys: {', '.join(_KEYS)}")
    unknown = [key for key in body if key not in _KEYS]
    if unknown:
        hint = did_you_mean(str(unknown[0]), _KEYS) or f"known keys: {', '.join(_KEYS)}"
        raise SettingsError(f"unknown key `{unknown[0]}`", hint=hint)
    source = body.get("source")
    if not isinstance(source, str):
        raise SettingsError("it names no source", hint="source: daily_revenue")
    if "expect" not in body and not body.get("ctes"):
        raise SettingsError("it has neither `expect` nor `ctes`", hint="expect: [{column: value}]")
    return Case(
        name,
        source,
        location,
        _by_name(body, "inputs", root),
        _rows("expect", body["expect"], root) if "expect" in body else None,
        _by_name(body, "ctes", root),
        _clock(body.get("clock")),
    )


def _by_name(body: Mapping[str, Any], key: str, root: Path) -> dict[str, Rows]:
    some = body.get(key) or {}
    if not isinstance(some, dict):
        raise SettingsError(
            f"`{key}` must be a mapping", hint=f"{key}: {{name: [{{column: value}}]}}"
        )
    return {str(name): _rows(f"{key}.{name}", rows, root) for name, rows in some.items()}


def _rows(label: str, rows: Any, root: Path) -> Rows:
    """Return rows from a list of them, a file of CSV, or a query."""
    if rows is None:
        return Rows()
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return Rows(tuple({str(name): value for name, value in row.items()} for row in rows))
    if not isinstance(rows, str):
        hint = "write a list of {column: value}, the path of a CSV file, or SQL"
        raise SettingsError(f"`{label}` is not a list of rows", hint=hint)
    if not rows.strip().lower().endswith(".csv"):
        return Rows(sql=rows.strip().rstrip(";"))
    path = root / rows.strip()
    if not path.is_file():
        raise SettingsError(
            f"`{label}`: there is no file {rows}", hint="paths are relative to the project root"
        )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            read = [*csv.DictReader(file, restkey=_REST)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"`{label}`: {rows.strip()} cannot be read: {error}") from error
    if any(_REST in row for row in read):
        raise SettingsError(f"`{label}`: a row of {rows.strip()} has more values than the header")
    return Rows(tuple({k: v or None for k, v in row.items()} for row in read))


def _clock(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        return datetime.fromisoformat(str(value))
    except ValueError as error:
        message = f"`clock` is not a time: {value}"
        raise SettingsError(message, hint="clock: 2024-01-31 10:00:00") from error
