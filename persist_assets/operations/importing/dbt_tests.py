"""Tests of a dbt project → checks, sources of failing rows, and tests with made-up rows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from persist_assets.operations.importing import drafts as parts
from persist_assets.operations.importing.dbt_project import (
    COUNTERPARTS,
    is_disabled,
    listed,
    merged,
)
from persist_assets.operations.importing.drafts import Case, Origin
from persist_assets.operations.importing.lined_yaml import (
    line_below,
    line_of,
    mapping_in,
    mappings_in,
    plain,
)
from persist_assets.operations.importing.translation import (
    UntranslatableError,
    translate,
    translate_condition,
)
from persist_assets.operations.importing.writing import add_failing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persist_assets.operations.importing.dbt_manifest import Compiled
    from persist_assets.operations.importing.dbt_project import DbtProject, Properties
    from persist_assets.operations.importing.drafts import Draft, Drafts, Rule
    from persist_assets.operations.importing.translation import Target, Translated

_RESULT = ("where", "limit", "fail_calc", "error_if", "warn_if")
"""Settings on which the result of a test depends."""
_SETTINGS = ("severity", *_RESULT, "store_failures", "store_failures_as")
_CONFIG = (*_SETTINGS, "enabled", "tags", "meta", "group", "database", "schema", "alias")
"""Settings that may also stand beside the arguments of a test."""
_DEFAULTS = {"fail_calc": "count(*)", "error_if": "!= 0", "warn_if": "!= 0"}
_ARGUMENTS = {
    "accepted_values": ("values", "quote"),
    "relationships": ("to", "field"),
    "dbt_utils.expression_is_true": ("expression",),
    "dbt_utils.unique_combination_of_columns": ("combination_of_columns", "quote_columns"),
}
"""The arguments of generic tests that become checks."""
_REF = re.compile(r"^\s*(?:ref|source)\((.*)\)\s*$", re.S)
COMPILE = "run `dbt compile` in the project, and import it again"
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

    def query_of(
        self, origin: Origin, config: dict[str, Any]
    ) -> tuple[Translated, dict[str, Any], list[str]] | None:
        """Return the query of a file, its configuration, and notes; None: it is listed."""
        ...

    def annotate(self, draft: Draft, config: dict[str, Any]) -> None:
        """Put a configuration into the annotation of a draft; list the rest."""
        ...


# ------------------------------------------------------------------------------------- data tests


def read_data_tests(importer: Importer) -> None:
    """Add the generic tests of all models, seeds and sources."""
    for (kind, name), properties in importer.project.properties.items():
        if kind == "test":
            continue
        key = ("source", *name.split(".", 1)) if kind == "source" else ("ref", name)
        target = importer.targets.get(key)
        draft = importer.drafts.sources.get(target.name) if target else None
        for called, column, entry, line in _tests_of(properties, name):
            name_of_test = _test_name(_test_of(entry), called, column)
            origin = Origin("test", name_of_test, properties.path, line)
            if draft is None:
                importer.drafts.skip(origin, f"`{name}` is not imported")
                continue
            try:
                test = _read_test(entry, column)
            except UntranslatableError as error:
                importer.drafts.skip(origin, str(error))
                continue
            _read_data_test(importer, draft, origin, test)


def _tests_of(properties: Properties, name: str) -> Iterator[tuple[str, str | None, Any, int]]:
    """Yield the object, the column, the entry and the line of each test of a thing.

    The object is a model, a seed or a source, or a version of a model.
    """
    body, origin = properties.body, properties.origin("property", name)
    versions = mappings_in(body, "versions", origin, [])
    for scope in (body, *versions):
        called = f"{name}_v{scope.get('v')}" if scope is not body else name
        for key in ("tests", "data_tests"):
            for entry in listed(scope.get(key)):
                yield called, None, entry, line_of(entry, scope.line)
        for column in mappings_in(scope, "columns", origin, []):
            for key in ("tests", "data_tests"):
                for entry in listed(column.get(key)):
                    yield called, str(column.get("name")), entry, line_of(entry, column.line)


@dataclass(frozen=True, slots=True)
class _Test:
    """A generic test as it is stated: its arguments and its settings."""

    name: str
    column: str | None
    arguments: dict[str, Any]
    config: dict[str, Any]
    description: Any = None


def _test_of(entry: Any) -> str:
    """Return the name of the generic test that an entry uses."""
    if not isinstance(entry, dict):
        return str(entry)
    return str(entry.get("test_name") or next(iter(entry), ""))


def _read_test(entry: Any, column: str | None) -> _Test:
    """Return a generic test; arguments and settings may stand below keys of their own.

    Raises
    ------
    UntranslatableError
        Its arguments or settings are not a mapping.
    """
    name = _test_of(entry)
    if not isinstance(entry, dict):
        return _Test(name, column, {}, {})
    below = None if "test_name" in entry else entry.get(name)
    body = dict(_mapping(below, name))
    body |= {k: v for k, v in entry.items() if k not in (name, "test_name")}
    config = dict(_mapping(body.pop("config", None), "config"))
    arguments = _mapping(body.pop("arguments", None), "arguments")
    config = {k: body.pop(k) for k in _CONFIG if k in body} | config
    description = body.pop("description", None)
    body.pop("name", None)
    arguments = {**body, **arguments}
    stated = arguments.pop("column_name", column)
    return _Test(name, stated and str(stated), arguments, config, description)


def _is(value: Any) -> bool:
    return isinstance(value, dict)


def _test_name(test: str, name: str, column: str | None) -> str:
    words = (test.rpartition(".")[2], name.replace(".", "_"), *([column] if column else []))
    return "_".join(words)


def _read_data_test(importer: Importer, draft: Draft, origin: Origin, test: _Test) -> None:
    """Turn a test into a check, or its query as compiled by dbt into a source; else list it."""
    project = importer.project
    config = _defaults(importer, "data_tests", origin) | _rendered(project, test.config)
    if reason := is_disabled(config):
        importer.drafts.skip(origin, reason)
        return
    keeps_failures, only_warns = _keeps_failures(config), _only_warns(config)
    settings = _effective(config)
    values = _rendered(project, test.arguments)
    try:
        rule = _rule(importer, origin, test, values, settings, only_warns)
    except (UntranslatableError, KeyError, TypeError, ValueError) as error:
        is_known = isinstance(error, UntranslatableError)
        reason = str(error) if is_known else "its arguments cannot be read"
        change = _carry_compiled(importer, origin, test, draft, config)
        if change is not None:
            reason = f"{reason}; since dbt compiled it, {change}" if change else reason
            importer.drafts.skip(origin, reason, COMPILE)
            return
    else:
        draft.rules.append(replace(rule, keeps_failures=keeps_failures))
    _list_settings(importer, origin, {**config, "description": test.description})


def _rule(
    importer: Importer,
    origin: Origin,
    test: _Test,
    values: dict[str, Any],
    settings: dict[str, Any],
    only_warns: bool,
) -> Rule:
    """Return the check of a test.

    Raises
    ------
    UntranslatableError
        It is known only to dbt.
    """
    make = _RULES.get(test.name)
    if "{{" in repr(values) or "{{" in repr(settings):
        raise UntranslatableError("its arguments are known only to dbt")
    if make is None or settings.keys() - {"where"}:
        raise UntranslatableError(_unknown(test.name, settings))
    odd = [key for key in values if key not in _ARGUMENTS.get(test.name, ())]
    if odd:
        raise UntranslatableError(f"its argument `{odd[0]}` has no counterpart")
    rule = make(importer, origin, test.column, values, only_warns)
    if "where" in settings:
        where = translate_condition(str(settings["where"]), importer.project.dialect)
        failing = rule.failing.replace("{table}", f"(SELECT * FROM {{table}} WHERE {where.sql})")
        notes = tuple(dict.fromkeys((*rule.notes, *where.notes)))
        rule = parts.Rule(origin, "where", origin.name, "", failing, only_warns, notes=notes)
    return rule


def _rendered(project: DbtProject, values: dict[str, Any]) -> dict[str, Any]:
    return {key: project.value(value) for key, value in values.items()}


def _only_warns(config: dict[str, Any]) -> bool:
    return str(config.get("severity", "error")).lower() == "warn"


def _effective(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings on which the result of a test depends, without those of no effect."""
    ignored = ("error_if",) if _only_warns(config) else ()
    return {
        key: config[key]
        for key in _RESULT
        if key in config and key not in ignored and config[key] not in (None, _DEFAULTS.get(key))
    }


def _keeps_failures(config: dict[str, Any]) -> bool:
    """Whether failing rows are stored in a table."""
    form = config.get("store_failures_as")
    stores = str(config.get("store_failures", False)).lower() == "true"
    return str(form) in ("table", "view") if form is not None else stores


def _list_settings(importer: Importer, origin: Origin, config: dict[str, Any]) -> None:
    """List the settings of a test that its check cannot have."""
    for key, value in config.items():
        if key not in (*_SETTINGS, "enabled") and value not in (None, "", [], {}, False):
            place = Origin("config", f"{origin.name}.{key}", origin.path, origin.line)
            importer.drafts.skip(place, COUNTERPARTS)


def _defaults(importer: Importer, section: str, origin: Origin) -> dict[str, Any]:
    """Return the settings in `dbt_project.yml` of a file's tests; list what checks cannot have."""
    project = importer.project
    below = project.below(origin.path)
    config = project.config(section, below)
    if section == "data_tests":
        config = project.config("tests", below) | config
    for key in (key for key in config if key not in (*_SETTINGS, "enabled")):
        line = line_below(project.settings, section)
        place = Origin("config", f"{section}.{key}", "dbt_project.yml", line)
        importer.drafts.skip(place, COUNTERPARTS)
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
        raise UntranslatableError("its values are not a list")
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
    translated = translate_condition(written, importer.project.dialect)
    name = re.sub(r"\W+", "_", written).strip("_")[:40]
    sql, notes = translated.sql, translated.notes
    return parts.condition(origin, name or "condition", sql, only_warns=only_warns, notes=notes)


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
    importer: Importer, origin: Origin, test: _Test, draft: Draft, config: dict[str, Any]
) -> str | None:
    """Turn a generic test, as compiled by dbt, into a source; return why not.

    Returns
    -------
    str | None
        What has changed since dbt compiled it; empty: it cannot be used; None: it is a source.
    """
    namespace, _, name = test.name.rpartition(".")
    place = f"{draft.origin.kind}.{importer.project.name}.{draft.origin.name}"
    fits: list[Compiled] = []
    for compiled in importer.project.manifest.tests:
        node, metadata = compiled.node, compiled.node["test_metadata"]
        names = (metadata.get("name"), metadata.get("namespace") or "")
        attached = (node.get("column_name") or None, node.get("attached_node"))
        if names == (name, namespace) and attached == (test.column, place):
            fits.append(compiled)
    same = [compiled for compiled in fits if _is_same(importer.project, compiled, test, config)]
    if len(same) != 1:
        return "its arguments or settings have changed" if fits and not same else ""
    if change := importer.project.change(same[0]):
        return change
    if _effective(config).keys() & _DEFAULTS.keys():
        return ""
    try:
        dialect = importer.project.dialect
        translated = translate(same[0].text, dialect, importer.resolve)
    except UntranslatableError:
        return ""
    add_failing(
        importer.drafts,
        origin,
        translated.sql,
        translated.reads,
        only_warns=_only_warns(config),
        keeps_failures=_keeps_failures(config),
        notes=["compiled by dbt", *translated.notes],
    )
    return None


def _is_same(project: DbtProject, compiled: Compiled, test: _Test, config: dict[str, Any]) -> bool:
    """Whether dbt compiled a test with the arguments and settings that it has now."""
    known = compiled.node["test_metadata"].get("kwargs")
    arguments: dict[str, Any] = dict(known) if isinstance(known, dict) else {}
    arguments = {k: v for k, v in arguments.items() if k not in ("model", "column_name")}
    written = (test.arguments, _rendered(project, test.arguments))
    if _json(arguments) not in [_json(values) for values in written]:
        return False
    stated, used = _DEFAULTS | config, _DEFAULTS | compiled.config
    return all(str(stated.get(k)).strip() == str(used.get(k)).strip() for k in _RESULT)


def _json(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, default=str)


# ------------------------------------------------------------------------------------ constraints


def read_constraints(importer: Importer) -> None:
    """Add the constraints of models whose contracts are enforced, unless a test says the same."""
    for (kind, name), properties in importer.project.properties.items():
        target = importer.targets.get(("ref", name)) if kind == "model" else None
        draft = importer.drafts.sources.get(target.name) if target else None
        if draft is None or name not in importer.enforced:
            continue
        body, unread = properties.body, importer.drafts.not_carried
        owner = properties.origin(kind, name)
        for place in (body, *mappings_in(body, "columns", owner, [])):
            named = str(place.get("name")) if place is not body else None
            for entry in mappings_in(place, "constraints", owner, unread):
                words = [name, *([named] if named else []), str(entry.get("type"))]
                line = line_of(entry, place.line)
                origin = Origin("constraint", "_".join(words), properties.path, line)
                try:
                    rules = _constraint(origin, entry, named, importer.project.dialect)
                except UntranslatableError as error:
                    importer.drafts.skip(origin, str(error), "write a check of its source")
                    continue
                known = {(rule.kind, rule.key) for rule in draft.rules}
                kinds = {rule.kind: rule.keeps_failures for rule in draft.rules}
                draft.rules += [
                    replace(rule, keeps_failures=kinds.get(rule.kind, False))
                    for rule in rules
                    if (rule.kind, rule.key) not in known
                ]


def agree_on_failures(importer: Importer) -> None:
    """Let all checks of one kind store failing rows, or none; list those that do not."""
    for draft in importer.drafts.sources.values():
        warns = {rule.kind: rule.only_warns for rule in reversed(draft.rules)}
        for kind in [kind for kind in warns if kind != "where"]:  # these become sources each
            same = [r for r in draft.rules if r.kind == kind and r.only_warns == warns[kind]]
            if all(rule.keeps_failures for rule in same):
                continue
            for rule in same:
                if rule.keeps_failures:
                    reason = f"only all checks `{kind}` of a source can store failing rows"
                    place = replace(rule.origin, kind="store_failures")
                    importer.drafts.skip(place, reason, "keep_failures=true: docs/annotations.md")
                    i = draft.rules.index(rule)
                    draft.rules[i] = replace(rule, keeps_failures=False)


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
        translated = translate_condition(str(entry["expression"]), dialect)
        name, notes = origin.name[:40], translated.notes
        return [parts.condition(origin, name, translated.sql, notes=notes)]
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
        config = _defaults(importer, "data_tests", origin)
        properties = importer.project.properties.get(("test", origin.name))
        if properties is not None:
            config = merged(config, _singular_config(importer, origin, properties))
        _read_singular_test(importer, origin, config)
    names = {path.rpartition("/")[2] for path, _ in importer.project.files["test"]}
    for (kind, name), properties in importer.project.properties.items():
        if kind == "test" and f"{name}.sql" not in names:
            importer.drafts.skip(properties.origin(kind, name), f"there is no test {name}.sql")


def _singular_config(importer: Importer, origin: Origin, properties: Properties) -> dict[str, Any]:
    """Return the configuration in the properties of a singular test; list what is unknown."""
    body, place = properties.body, properties.origin(origin.kind, origin.name)
    config = mapping_in(body, "config", place, importer.drafts.not_carried)
    own = {key: body[key] for key in ("tags", "meta") if key in body}
    for key in body:
        if key not in ("name", "description", "config", "tags", "meta", "docs"):
            odd = Origin("property", f"{origin.name}.{key}", place.path, line_below(body, key))
            importer.drafts.skip(odd, COUNTERPARTS)
    return merged(own, _rendered(importer.project, config))


def _read_singular_test(importer: Importer, origin: Origin, config: dict[str, Any]) -> None:
    """Turn a singular test into a source of failing rows, or list it."""
    carried = importer.query_of(origin, config)
    if carried is None:
        return
    translated, config, notes = carried
    odd = [key for key in _effective(config) if key != "where"]
    if odd:
        importer.drafts.skip(origin, f"`{', '.join(odd)}` of tests has no counterpart")
        return
    if "where" in config:
        notes = [*notes, "where: dbt does not apply it to singular tests"]
    draft = add_failing(
        importer.drafts,
        origin,
        translated.sql,
        translated.reads,
        only_warns=_only_warns(config),
        keeps_failures=_keeps_failures(config),
        notes=[*notes, *translated.notes],
    )
    importer.annotate(draft, {k: v for k, v in config.items() if k not in _SETTINGS})


# ------------------------------------------------------------------------------------- unit tests


def read_unit_tests(importer: Importer) -> None:
    """Add the unit tests."""
    for properties in importer.project.unit_tests:
        body = properties.body
        origin = properties.origin("unit test", str(body.get("name")))
        config = _defaults(importer, "unit_tests", origin)
        own = mapping_in(body, "config", origin, importer.drafts.not_carried)
        config |= _rendered(importer.project, own)
        if reason := is_disabled(config):
            importer.drafts.skip(origin, reason)
            continue
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
        shared = {key: body.get(key) for key in ("description", "tags")}
        _list_settings(importer, origin, {**shared, **config})


def _unit_test(importer: Importer, properties: Properties, target: Target) -> dict[str, Any]:
    """Return a test as our files of tests have it.

    Raises
    ------
    UntranslatableError
        It says something that has no counterpart.
    """
    body = properties.body
    unknown = [key for key in body if key not in _UNIT_KEYS]
    overrides = _mapping(body.get("overrides"), "overrides")
    macros: Any = overrides.get("macros") or {}
    if unknown or overrides.get("vars") or overrides.get("env_vars"):
        raise UntranslatableError(f"`{(unknown or ['overrides'])[0]}` has no counterpart")
    if macros not in ({}, {"is_incremental": False}):
        raise UntranslatableError("it overrides macros; is_incremental() is false here")
    inputs: dict[str, Any] = {}
    for entry in listed(body.get("given")):
        fixture = _mapping(entry, "given")
        written = str(fixture.get("input"))
        if written.strip() == "this":
            raise UntranslatableError("an input is the table itself (`this`)")
        inputs[_target(importer, written).name] = _rows(importer, fixture, "given")
    return {
        "source": target.name,
        "inputs": inputs,
        "expect": _rows(importer, _mapping(body.get("expect"), "expect"), "expect"),
    }


def _mapping(value: Any, key: str) -> dict[str, Any]:
    """Return a mapping; an empty one for None.

    Raises
    ------
    UntranslatableError
        It is neither.
    """
    if value is not None and not isinstance(value, dict):
        raise UntranslatableError(f"`{key}` has to be a mapping: {value}")
    return value or {}


def _rows(importer: Importer, body: dict[str, Any], key: str) -> Any:
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
        read = [*csv.DictReader([line.strip() for line in lines], skipinitialspace=True)]
        if any(None in row for row in read):
            raise UntranslatableError(f"a row of `{key}` has more values than there are columns")
        return [{k: v if v != "" else None for k, v in row.items()} for row in read]
    if form != "dict" or not isinstance(rows, list) or not all(map(_is, rows)):
        raise UntranslatableError(f"`{key}` has unknown rows")
    return plain(rows)
