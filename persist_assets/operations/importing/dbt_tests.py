"""Tests of a dbt project → checks, sources of failing rows, and tests with made-up rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from persist_assets.operations.importing import drafts as parts
from persist_assets.operations.importing.dbt_project import is_disabled, listed
from persist_assets.operations.importing.drafts import Case, Origin
from persist_assets.operations.importing.lined_yaml import Mapping, line_of, plain
from persist_assets.operations.importing.templates import UncertainError
from persist_assets.operations.importing.translation import (
    UntranslatableError,
    translate,
    translate_condition,
)
from persist_assets.operations.importing.writing import add_failing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persist_assets.operations.importing.dbt_project import DbtProject, Properties
    from persist_assets.operations.importing.drafts import Draft, Drafts, Rule
    from persist_assets.operations.importing.translation import Target, Translated

_SETTINGS = ("severity", "where", "limit", "fail_calc", "error_if", "warn_if", "store_failures")
_REF = re.compile(r"^\s*(?:ref|source)\((.*)\)\s*$", re.S)
_COMPILE = "run `dbt compile` in the project, and import it again"
_UNIT_KEYS = ("name", "description", "model", "given", "expect", "config", "overrides", "tags")


class Importer(Protocol):
    """The parts of an import that its tests need."""

    project: DbtProject
    drafts: Drafts
    targets: dict[tuple[str, ...], Target]
    enforced: set[str]

    def resolve(self, names: tuple[str, ...]) -> Target | None:
        """Return the source that a table of a compiled text refers to."""
        ...

    def translated(self, path: str) -> tuple[Translated, dict[str, Any], list[str]]:
        """Return the query of a file, the configuration that it states, and notes."""
        ...


# ------------------------------------------------------------------------------------- data tests


def read_data_tests(importer: Importer) -> None:
    """Add the generic tests of all models, seeds and sources."""
    for (kind, name), properties in importer.project.properties.items():
        key = ("source", *name.split(".", 1)) if kind == "source" else ("ref", name)
        target = importer.targets.get(key)
        draft = importer.drafts.sources.get(target.name) if target else None
        for column, entry, line in _tests_of(properties.body):
            test, values = _named(entry)
            origin = Origin("test", _test_name(test, name, column), properties.path, line)
            if draft is None:
                importer.drafts.skip(origin, f"`{name}` is not imported")
                continue
            _read_data_test(importer, draft, origin, test, column, values)


def _tests_of(body: Mapping) -> Iterator[tuple[str | None, Any, int]]:
    """Yield the column, the entry and the line of each test of a thing."""
    for key in ("tests", "data_tests"):
        for entry in listed(body.get(key)):
            yield None, entry, line_of(entry, body.line)
    for column in listed(body.get("columns")):
        if isinstance(column, Mapping):
            for key in ("tests", "data_tests"):
                for entry in listed(column.get(key)):
                    yield str(column.get("name")), entry, line_of(entry, column.line)


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a test; those below `config` and `arguments` too."""
    if not isinstance(entry, dict):
        return str(entry), {}
    if "test_name" in entry:
        test, body = str(entry["test_name"]), {k: v for k, v in entry.items() if k != "test_name"}
    else:
        test, value = next(iter(entry.items()))
        body = dict(value or {}) | {k: v for k, v in entry.items() if k != test}
    return test, {
        **{k: v for k, v in body.items() if k not in ("config", "arguments")},
        **(body.get("config") or {}),
        **(body.get("arguments") or {}),
    }


def _test_name(test: str, name: str, column: str | None) -> str:
    words = (test.rpartition(".")[2], name.replace(".", "_"), *([column] if column else []))
    return "_".join(words)


def _read_data_test(
    importer: Importer,
    draft: Draft,
    origin: Origin,
    test: str,
    column: str | None,
    values: dict[str, Any],
) -> None:
    """Turn a test into a check, or its query as compiled by dbt into a source; else list it."""
    project = importer.project
    values = _defaults(project, origin) | {k: project.value(v) for k, v in values.items()}
    if reason := is_disabled(values):
        importer.drafts.skip(origin, reason)
        return
    settings = {k: values.pop(k) for k in _SETTINGS if k in values}
    for key in ("name", "description", "tags", "meta", "enabled"):
        values.pop(key, None)
    column = str(values.pop("column_name", column)) if column or "column_name" in values else None
    only_warns = str(settings.pop("severity", "error")).lower() == "warn"
    settings.pop("store_failures", None)
    make = _RULES.get(test)
    try:
        if "{{" in repr(values) or "{{" in repr(settings):
            raise UntranslatableError("its arguments are known only to dbt")
        if make is None or settings.keys() - {"where"}:
            raise UntranslatableError(_unknown(test, settings))
        rule = make(importer, origin, column, values, only_warns)
        if "where" in settings:
            where = translate_condition(str(settings["where"]), importer.project.dialect)
            failing = rule.failing.replace("{table}", f"(SELECT * FROM {{table}} WHERE {where})")
            rule = parts.Rule(origin, "where", origin.name, "", failing, only_warns)
    except (UntranslatableError, KeyError, TypeError, ValueError) as error:
        if not _carry_compiled(importer, origin, test, column, draft, only_warns):
            reason = str(error) if isinstance(error, UntranslatableError) else "its arguments"
            importer.drafts.skip(origin, reason, _COMPILE)
        return
    draft.rules.append(rule)


def _defaults(project: DbtProject, origin: Origin) -> dict[str, Any]:
    """Return the settings in `dbt_project.yml` of a file's tests, as far as they are read."""
    below = origin.path.partition("/")[2]
    config = project.config("tests", below) | project.config("data_tests", below)
    return {key: config[key] for key in (*_SETTINGS, "enabled") if key in config}


def _unknown(test: str, settings: dict[str, Any]) -> str:
    if settings:
        return f"`{', '.join(settings)}` of tests has no counterpart"
    return f"the test `{test}` is known only to dbt"


def _target(importer: Importer, written: str) -> Target:
    """Return the object that `ref('x')` or `source('a', 'b')` in YAML refers to."""
    match = _REF.match(written.strip().removeprefix("{{").removesuffix("}}").strip())
    names = [n.strip(" '\"") for n in match[1].split(",")] if match else [written.strip(" '\"")]
    is_source = "source(" in written
    key = ("source", *names) if is_source else ("ref", names[-1])
    target = importer.targets.get(tuple(key))
    if target is None:
        raise UntranslatableError(f"there is no {'.'.join(names)}")
    return target


def _not_null(_: Importer, origin: Origin, column: str | None, __: Any, only_warns: bool) -> Rule:
    return parts.not_null(origin, _column(column), only_warns=only_warns)


def _unique(_: Importer, origin: Origin, column: str | None, __: Any, only_warns: bool) -> Rule:
    return parts.unique(origin, [_column(column)], only_warns=only_warns)


def _column(column: str | None) -> str:
    if column is None or not re.fullmatch(r"\w+", column):
        raise UntranslatableError(f"`{column}` is not a column")
    return column


def _accepted(
    _: Importer, origin: Origin, column: str | None, values: dict[str, Any], only_warns: bool
) -> Rule:
    if not isinstance(values["values"], list):
        raise UntranslatableError("its values are no list")
    listed_values = [v if isinstance(v, int | float) else str(v) for v in values["values"]]
    if values.get("quote", True) and not all(isinstance(v, bool) for v in listed_values):
        listed_values = [str(v) for v in listed_values]
    elif not values.get("quote", True):
        listed_values = [_number(str(v)) if isinstance(v, str) else v for v in listed_values]
    return parts.accepted(origin, _column(column), listed_values, only_warns=only_warns)


def _number(written: str) -> int | float:
    return int(written) if re.fullmatch(r"-?\d+", written) else float(written)


def _relationship(
    importer: Importer, origin: Origin, column: str | None, values: dict[str, Any], only_warns: bool
) -> Rule:
    other = _target(importer, str(values["to"]))
    key = _column(str(values["field"]))
    return parts.relationship(origin, _column(column), other.name, key, only_warns=only_warns)


def _expression(
    importer: Importer, origin: Origin, column: str | None, values: dict[str, Any], only_warns: bool
) -> Rule:
    written = f"{column or ''} {values['expression']}".strip()
    sql = translate_condition(written, importer.project.dialect)
    name = re.sub(r"\W+", "_", written).strip("_")[:40]
    return parts.condition(origin, name or "condition", sql, only_warns=only_warns)


def _combination(
    _: Importer, origin: Origin, __: str | None, values: dict[str, Any], only_warns: bool
) -> Rule:
    columns = [_column(str(c)) for c in values["combination_of_columns"]]
    return parts.unique(origin, columns, only_warns=only_warns)


_RULES: dict[str, Callable[[Importer, Origin, str | None, dict[str, Any], bool], Rule]] = {
    "not_null": _not_null,
    "unique": _unique,
    "accepted_values": _accepted,
    "relationships": _relationship,
    "dbt_utils.expression_is_true": _expression,
    "dbt_utils.unique_combination_of_columns": _combination,
}
"""The generic tests that become checks."""


def _carry_compiled(
    importer: Importer,
    origin: Origin,
    test: str,
    column: str | None,
    draft: Draft,
    only_warns: bool,
) -> bool:
    """Turn a generic test, as compiled by dbt, into a source; return whether it did."""
    namespace, _, name = test.rpartition(".")
    fits = [
        node
        for node in importer.project.tests
        if node["test_metadata"].get("name") == name
        and (node["test_metadata"].get("namespace") or "") == namespace
        and (node.get("column_name") or None) == column
        and str(node.get("attached_node") or "").rpartition(".")[2] == draft.origin.name
    ]
    plain_config = ("count(*)", "!= 0", "!= 0")
    if len(fits) != 1:
        return False
    config = fits[0].get("config", {})
    if (config.get("fail_calc"), config.get("error_if"), config.get("warn_if")) != plain_config:
        return False
    try:
        dialect = importer.project.dialect
        translated = translate(fits[0]["compiled_code"], dialect, importer.resolve)
    except UntranslatableError:
        return False
    notes = ["compiled by dbt", *translated.notes]
    add_failing(
        importer.drafts,
        origin,
        translated.sql,
        translated.reads,
        only_warns=only_warns,
        notes=notes,
    )
    return True


# ------------------------------------------------------------------------------------ constraints


def read_constraints(importer: Importer) -> None:
    """Add the constraints of models whose contracts are enforced, unless a test says the same."""
    for (kind, name), properties in importer.project.properties.items():
        target = importer.targets.get(("ref", name)) if kind == "model" else None
        draft = importer.drafts.sources.get(target.name) if target else None
        if draft is None or name not in importer.enforced:
            continue
        body = properties.body
        for column in (None, *listed(body.get("columns"))):
            place = column if isinstance(column, Mapping) else body
            named = str(place.get("name")) if column is not None else None
            for entry in listed(place.get("constraints")):
                words = [name, *([named] if named else []), str(entry.get("type"))]
                line = line_of(entry, place.line)
                origin = Origin("constraint", "_".join(words), properties.path, line)
                try:
                    rules = _constraint(origin, entry, named, importer.project.dialect)
                except UntranslatableError as error:
                    importer.drafts.skip(origin, str(error), "write a check of its source")
                    continue
                known = {(rule.kind, rule.key) for rule in draft.rules}
                draft.rules += [rule for rule in rules if (rule.kind, rule.key) not in known]


def _constraint(
    origin: Origin, entry: dict[str, Any], column: str | None, dialect: str
) -> list[Rule]:
    """Return the checks of a constraint that databases enforce.

    Raises
    ------
    UntranslatableError
        Databases only note it, or it cannot be read.
    """
    kind = str(entry.get("type"))
    columns = [column] if column else [str(c) for c in listed(entry.get("columns"))]
    if kind == "not_null" and columns:
        return [parts.not_null(origin, _column(c)) for c in columns]
    if kind == "check" and entry.get("expression"):
        sql = translate_condition(str(entry["expression"]), dialect)
        return [parts.condition(origin, origin.name[:40], sql)]
    raise UntranslatableError(f"constraints of the type `{kind}` have no counterpart")


# --------------------------------------------------------------------------------- singular tests


def read_singular_tests(importer: Importer) -> None:
    """Add a source of failing rows for each singular test."""
    for path, below in importer.project.files["test"]:
        if not path.endswith(".sql"):
            continue
        origin = Origin("singular test", path.rpartition("/")[2].removesuffix(".sql"), path)
        if below.startswith("generic/"):
            importer.drafts.skip(
                Origin("test macro", origin.name, path), "a custom generic test has no counterpart"
            )
            continue
        try:
            translated, config, notes = importer.translated(path)
        except UncertainError as error:
            place = Origin(origin.kind, origin.name, path, error.line)
            importer.drafts.skip(place, str(error), _COMPILE)
            continue
        except UntranslatableError as error:
            importer.drafts.skip(origin, str(error))
            continue
        config = _defaults(importer.project, origin) | config
        if reason := is_disabled(config):
            importer.drafts.skip(origin, reason)
            continue
        odd = [k for k in ("fail_calc", "error_if", "warn_if", "limit") if k in config]
        if odd:
            importer.drafts.skip(origin, f"`{', '.join(odd)}` of tests has no counterpart")
            continue
        only_warns = str(config.get("severity", "error")).lower() == "warn"
        add_failing(
            importer.drafts,
            origin,
            translated.sql,
            translated.reads,
            only_warns=only_warns,
            notes=[*notes, *translated.notes],
        )


# ------------------------------------------------------------------------------------- unit tests


def read_unit_tests(importer: Importer) -> None:
    """Add the unit tests."""
    for properties in importer.project.unit_tests:
        body = properties.body
        origin = Origin("unit test", str(body.get("name")), properties.path, body.line)
        model = str(body.get("model"))
        target = importer.targets.get(("ref", model))
        if target is None or target.name not in importer.drafts.sources:
            importer.drafts.skip(origin, f"`{model}` is not imported")
            continue
        try:
            case = _unit_test(importer, properties, target)
        except UntranslatableError as error:
            importer.drafts.skip(origin, str(error))
            continue
        importer.drafts.cases.append(Case(origin, target.name, f"tests/{target.name}.yml", case))


def _unit_test(importer: Importer, properties: Properties, target: Target) -> dict[str, Any]:
    """Return a test as our files of tests have it.

    Raises
    ------
    UntranslatableError
        It says something that has no counterpart.
    """
    body = properties.body
    unknown = [key for key in body if key not in _UNIT_KEYS]
    overrides: Any = body.get("overrides") or {}
    macros: Any = overrides.get("macros") or {}
    if unknown or overrides.get("vars") or overrides.get("env_vars"):
        raise UntranslatableError(f"`{(unknown or ['overrides'])[0]}` has no counterpart")
    if macros not in ({}, {"is_incremental": False}):
        raise UntranslatableError("it overrides macros; is_incremental() is false here")
    inputs: dict[str, Any] = {}
    for fixture in listed(body.get("given")):
        written = str(fixture.get("input"))
        if written.strip() == "this":
            raise UntranslatableError("an input is the table itself (`this`)")
        inputs[_target(importer, written).name] = _rows(importer, fixture, "given")
    return {
        "source": target.name,
        "inputs": inputs,
        "expect": _rows(importer, body.get("expect") or {}, "expect"),
    }


def _rows(importer: Importer, body: Any, key: str) -> Any:
    """Return the rows of a unit test: a list, or a query."""
    form = str(body.get("format", "dict"))
    rows, fixture = body.get("rows"), body.get("fixture")
    if fixture:
        name = f"{fixture}.{form}"
        paths = [p for p, _ in importer.project.files["test"] if p.rpartition("/")[2] == name]
        if len(paths) != 1:
            raise UntranslatableError(f"there is no fixture {name}")
        rows = importer.project.read(paths[0])
    if form == "sql":
        sql = translate(str(rows), importer.project.dialect, lambda _: None).sql
        return " ".join(sql.split()) if "--" not in sql else sql
    if form == "csv":
        import csv

        lines = str(rows or "").strip().splitlines()
        read = csv.DictReader([line.strip() for line in lines], skipinitialspace=True)
        return [{k: v if v != "" else None for k, v in row.items()} for row in read]
    if form != "dict" or not isinstance(rows, list):
        raise UntranslatableError(f"`{key}` has unknown rows")
    return plain(rows)
