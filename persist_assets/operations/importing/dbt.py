"""A dbt project → drafts of ours.

models that are tables ─► persisted sources       data tests ─► checks
views, ephemeral models ─► sources                singular tests ─► sources of failing rows
seeds, sources ─► raw tables                      unit tests ─► tests
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from persist_assets.core.dialect import tokenize
from persist_assets.core.errors import SettingsError
from persist_assets.operations.importing import drafts as parts
from persist_assets.operations.importing.dbt_project import (
    COUNTERPARTS,
    is_disabled,
    listed,
    merged,
    read_project,
)
from persist_assets.operations.importing.dbt_tests import (
    read_constraints,
    read_data_tests,
    read_singular_tests,
    read_unit_tests,
)
from persist_assets.operations.importing.drafts import Draft, Drafts, Origin
from persist_assets.operations.importing.lined_yaml import Mapping, line_of
from persist_assets.operations.importing.raw_tables import raw_table, seed
from persist_assets.operations.importing.templates import UncertainError, snapshots_in
from persist_assets.operations.importing.translation import (
    Target,
    Translated,
    UntranslatableError,
    check_dialect,
    translate,
    translate_type,
)
from persist_assets.operations.importing.writing import without_readers

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.operations.importing.dbt_project import DbtProject

_COMPILE = "run `dbt compile` in the project, and import it again"
_PERSISTED = ("table", "incremental", "materialized_view")
_NOT_PERSISTED = ("view", "ephemeral")
_INCREMENTAL = ("unique_key", "incremental_strategy", "incremental_predicates")
"""Settings of incremental models that say how to bring a table up to date."""
_CHANGING = {
    "merge_update_columns": "in dbt, rows whose key is in the table already keep their other"
    " values; here the table has the rows of the query",
    "merge_exclude_columns": "in dbt, rows whose key is in the table already keep these values;"
    " here the table has the rows of the query",
    "full_refresh": "dbt never computes the table anew, so it keeps rows that its inputs no longer"
    " have; here the table has the rows of the query",
}
"""Settings with which dbt's table has other rows than its query."""
_SCHEMA_CHANGES = {"fail": "fail", "append_new_columns": "append", "sync_all_columns": "sync"}
_READ = (
    *("materialized", "tags", "enabled", "meta", "group", "on_schema_change", "contract"),
    *("owner", "description", "column_types", "delimiter", "quote_columns"),
    *(*_INCREMENTAL, *_CHANGING),
)
_NAMES = ("schema", "database", "alias")
_NOTHING = (
    "docs",
    "access",
    "persist_docs",
    "quoting",
    "event_time",
    "static_analysis",
)
"""Settings that have no meaning here and can be dropped silently."""


def import_dbt(root: Path, dialect: str | None = None) -> Drafts:
    """Return the drafts of a dbt project.

    Parameters
    ----------
    dialect
        The SQL dialect of its models, as sqlglot calls it; None: that of its adapter.

    Raises
    ------
    NotFoundError
        There is no dbt project.
    SettingsError
        Its dialect is not known, or one of its files cannot be read.
    """
    project = read_project(root, dialect)
    try:
        check_dialect(project.dialect)
    except ValueError as error:
        hint = "name a dialect that sqlglot knows: duckdb, postgres, snowflake, bigquery, spark, …"
        raise SettingsError(f"unknown dialect `{project.dialect}`", hint=hint) from error
    importer = _Importer(project)
    importer.read_names()
    importer.read_models()
    read_data_tests(importer)
    read_constraints(importer)
    read_singular_tests(importer)
    read_unit_tests(importer)
    importer.remove_readers()
    return importer.drafts


class _Importer:
    """The state of an import while a project is read.

    Attributes
    ----------
    targets
        ``("ref", name)`` or ``("source", source, table)`` → the source that it becomes.
    origins
        The place of each of them.
    enforced
        The models whose contracts are enforced.
    """

    def __init__(self, project: DbtProject) -> None:
        self.project = project
        self.drafts = Drafts("dbt", project.dialect, not_carried=[*project.not_carried])
        self.targets: dict[tuple[str, ...], Target] = {}
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.disabled: set[str] = set()
        self.enforced: set[str] = set()
        self._relations: dict[tuple[str, ...], tuple[str, ...]] = {}
        for relation, key in project.relations.items():
            try:
                named = exp.to_table(relation, dialect=project.dialect)
            except SqlglotError:
                continue
            names = tuple(p.name.lower() for p in named.parts)
            self._relations |= {names[i:]: key for i in range(len(names))}

    # -------------------------------------------------------------------------------------- names

    def read_names(self) -> None:
        """Read the names of models, seeds, snapshots and sources, and decide what they become."""
        for kind, suffix in (("model", ".sql"), ("seed", ".csv")):
            for path, below in self.project.files[kind]:
                name = PurePosixPath(path).stem
                origin = Origin(kind, name, path)
                if kind == "model" and path.endswith(".py"):
                    self.drafts.skip(
                        origin,
                        "models in Python have no counterpart",
                        "write a function: docs/python.md",
                    )
                if not path.endswith(suffix):
                    continue
                if reason := is_disabled(self.config_of(origin, below)):
                    self.drafts.skip(origin, reason)
                    self.disabled.add(name)
                    continue
                place = f"raw/{name}.sql" if kind == "seed" else below
                self._name(("ref", name), origin, f"sources/{place}", name)
        for path, _ in self.project.files["snapshot"]:
            if path.endswith(".sql"):
                for name, _, line in snapshots_in(self.project.read(path)):
                    origin = Origin("snapshot", name, path, line)
                    self.drafts.skip(
                        origin,
                        "its history is in dbt's table",
                        "write a source with refresh=snapshot: docs/annotations.md",
                    )
        for (kind, name), properties in self.project.properties.items():
            if kind == "source":
                source, _, table = name.partition(".")
                origin = Origin("source", name, properties.path, properties.body.line)
                called = str(properties.body.get("identifier") or table)
                self._name(("source", source, table), origin, "", called, f"{source}_{table}")
        for key, target in self.targets.items():
            origin = self.origins[key]
            if origin.kind == "seed":
                self._read_seed(origin, target)
            elif origin.kind == "source":
                self._read_source(origin, target)

    def _name(
        self, key: tuple[str, ...], origin: Origin, path: str, called: str, other: str = ""
    ) -> None:
        """Decide the name of a source: names of sources differ, whatever their case."""
        taken = {target.name.lower() for target in self.targets.values()}
        name = next((n for n in (called, other) if n and n.lower() not in taken), None)
        if key in self.targets or name is None:
            self.drafts.skip(origin, f"there is another `{called}`", "rename one of them")
            return
        self.targets[key] = Target(name, path or f"sources/raw/{name}.sql", called)
        self.origins[key] = origin

    def resolve(self, names: tuple[str, ...]) -> Target | None:
        """Return the source that a table of a compiled text refers to."""
        if len(names) == 1 and names[0].startswith("__dbt__cte__"):
            return self.targets.get(("ref", names[0].removeprefix("__dbt__cte__")))
        key = self._relations.get(tuple(n.lower() for n in names))
        return self.targets.get(key) if key else None

    # ------------------------------------------------------------------------------ configuration

    def config_of(self, origin: Origin, below: str) -> dict[str, Any]:
        """Return the configuration of a file, without that in its own text."""
        config = self.project.config(f"{origin.kind}s", below)
        properties = self.project.properties.get((origin.kind, origin.name))
        if properties is not None:
            body = properties.body
            own = {k: body[k] for k in ("tags", "meta", "group", "config") if k in body}
            more: dict[str, Any] = own.pop("config", None) or {}
            more = {key: self.project.value(value) for key, value in more.items()}
            config = merged(merged(config, own), more)
        return config

    def annotate(self, draft: Draft, config: dict[str, Any]) -> None:
        """Put a configuration into the annotation of a draft; list the rest."""
        origin, body = draft.origin, self._body(draft.origin)
        draft.description = self._described(body, origin)
        draft.keys += parts.tags([str(t) for t in listed(config.get("tags"))], origin, self.drafts)
        group = config.get("group")
        if group:
            draft.keys.append(f"group={parts.word(str(group))}")
        owners = self.project.groups.get(str(group), Mapping()).get("owner") or {}
        meta: Any = config.get("meta") or {}
        owner = meta.get("owner") or (owners.get("email") or owners.get("name") if owners else None)
        for name in listed(owner):
            draft.keys += parts.owner(str(name), origin, self.drafts)
        for key in meta:
            if key != "owner":
                place = Origin("meta", f"{origin.name}.{key}", origin.path, origin.line)
                self.drafts.skip(place, COUNTERPARTS)
        for key, value in config.items():
            if key in _NAMES and value:
                draft.notes.append(f"{key} {value}: tables are named by their sources")
            elif key not in (*_READ, *_NOTHING, *_NAMES) and value not in (None, [], {}, False):
                place = Origin("config", f"{origin.name}.{key}", origin.path, origin.line)
                self.drafts.skip(place, COUNTERPARTS)
        if draft.is_persisted:
            self._annotate_table(draft, config, body)

    def _annotate_table(self, draft: Draft, config: dict[str, Any], body: Mapping) -> None:
        """Import the properties that only tables have: how they change, and contracts."""
        change = _SCHEMA_CHANGES.get(str(config.get("on_schema_change")))
        if change and config.get("materialized") == "incremental":
            draft.keys.append(f"on_schema_change={change}")
        for key, reason in _CHANGING.items() if config.get("materialized") == "incremental" else ():
            if _changes_rows(key, config):
                place = Origin(
                    "config", f"{draft.name}.{key}", draft.origin.path, draft.origin.line
                )
                self.drafts.skip(place, reason)
        how = [key for key in _INCREMENTAL if config.get(key)]
        if how:
            draft.notes.append(f"{', '.join(how)}: not needed, the table follows its data")
        contract = config.get("contract")
        if isinstance(contract, dict) and contract.get("enforced"):
            self.enforced.add(draft.origin.name)
            try:
                columns = [
                    f"{parts.word(str(c.get('name')))}="
                    + parts.text(translate_type(str(c["data_type"]), self.project.dialect))
                    for c in listed(body.get("columns"))
                ]
                draft.keys.append(f"columns {{ {' '.join(columns)} }}")
            except (KeyError, UntranslatableError) as error:
                place = Origin("contract", draft.name, draft.origin.path, draft.origin.line)
                self.drafts.skip(place, f"a column has an unknown type: {error}")

    def _body(self, origin: Origin) -> Mapping:
        properties = self.project.properties.get((origin.kind, origin.name))
        return properties.body if properties else Mapping()

    def _described(self, body: Mapping, origin: Origin) -> str:
        """Return the description of a thing and of its columns."""
        lines = [self._text(body.get("description"), origin, line_of(body))]
        for column in listed(body.get("columns")):
            if isinstance(column, dict) and column.get("description"):
                text = self._text(column["description"], origin, line_of(column))
                lines.append(f"- {column.get('name')}: {' '.join(text.split())}")
        return "\n".join(line for line in lines if line)

    def _text(self, text: Any, origin: Origin, line: int) -> str:
        try:
            return str(self.project.templates.value(str(text))).strip() if text else ""
        except UncertainError as error:
            properties = self.project.properties.get((origin.kind, origin.name))
            path = properties.path if properties else origin.path
            self.drafts.skip(Origin("description", origin.name, path, line), str(error))
            return ""

    # --------------------------------------------------------------------------------- raw tables

    def _read_seed(self, origin: Origin, target: Target) -> None:
        below = next(b for p, b in self.project.files["seed"] if p == origin.path)
        config = self.config_of(origin, below)
        types: dict[str, str] = {}
        for column, written in (config.get("column_types") or {}).items():
            types[str(column)] = self._type(str(written), origin, str(column))
        place, separator = self.project.root / origin.path, config.get("delimiter")
        if separator is not None and len(str(separator)) != 1:
            self.drafts.skip(origin, f"the delimiter {separator!r} is not one character")
            return
        draft = seed(self.drafts, origin, target.name, place, types, separator)
        if draft is not None:
            self.annotate(draft, config)

    def _read_source(self, origin: Origin, target: Target) -> None:
        body = self._body(origin)
        source: Mapping = body["source"]
        columns: dict[str, str] = {}
        for column in listed(body.get("columns")):
            if isinstance(column, dict) and column.get("data_type"):
                name = str(column.get("name"))
                columns[name] = self._type(str(column["data_type"]), origin, name)
        if len(columns) < len(listed(body.get("columns"))):
            columns = {}
        nested: Any = {**(source.get("meta") or {}), **(source.get("config", {}).get("meta") or {})}
        own: Any = {**(body.get("meta") or {}), **(body.get("config", {}).get("meta") or {})}
        written = own.get("external_location") or nested.get("external_location")
        external: Any = body.get("external") or {}
        location = str(written or external.get("location") or "").replace("{name}", origin.name)
        draft = raw_table(self.drafts, origin, target.name, columns, location or None)
        own.pop("external_location", None)
        for key in external.keys() - {"location"}:
            place = Origin("external", f"{origin.name}.{key}", origin.path, line_of(external))
            hint = f"complete the declaration in {target.path}"
            self.drafts.skip(place, "only the location of external data is carried", hint)
        config: dict[str, Any] = {"tags": [*listed(source.get("tags")), *listed(body.get("tags"))]}
        self.annotate(draft, {**config, "meta": own})
        draft.description = draft.description or self._text(
            source.get("description"), origin, line_of(source)
        )
        for key in ("freshness", "loaded_at_field"):
            if body.get(key) or source.get(key):
                place = Origin(key, origin.name, origin.path, line_of(body.get(key), origin.line))
                hint = "freshness.window of a source that reads it: docs/annotations.md"
                self.drafts.skip(place, "raw tables have no freshness", hint)

    def _type(self, written: str, origin: Origin, column: str) -> str:
        try:
            return translate_type(written, self.project.dialect)
        except UntranslatableError as error:
            place = Origin("column type", f"{origin.name}.{column}", origin.path, origin.line)
            self.drafts.skip(place, str(error), "it is a STRING now")
            return "STRING"

    # ------------------------------------------------------------------------------------- models

    def read_models(self) -> None:
        """Read all models."""
        for key, target in self.targets.items():
            if self.origins[key].kind == "model":
                self._read_model(self.origins[key], target)

    def _read_model(self, origin: Origin, target: Target) -> None:
        below = next(b for p, b in self.project.files["model"] if p == origin.path)
        config = self.config_of(origin, below)
        if self._body(origin).get("versions"):
            self.drafts.skip(origin, "versions of models have no counterpart")
            return
        try:
            translated, own, notes = self.translated(origin.path)
        except UncertainError as error:
            place = Origin(origin.kind, origin.name, origin.path, error.line)
            self.drafts.skip(place, str(error), _COMPILE)
            return
        except UntranslatableError as error:
            self.drafts.skip(origin, str(error))
            return
        config = merged(config, own)
        if reason := is_disabled(config):
            self.drafts.skip(origin, reason)
            return
        kind = str(config.get("materialized", "view"))
        if kind not in (*_PERSISTED, *_NOT_PERSISTED):
            self.drafts.skip(origin, f"the materialization `{kind}` is unknown")
            return
        draft = Draft(
            origin,
            target.name,
            target.path,
            translated.sql,
            is_persisted=kind in _PERSISTED,
            reads=translated.reads,
            notes=[*notes, *translated.notes],
        )
        self.annotate(draft, config)
        self.drafts.sources[draft.name] = draft

    def translated(self, path: str) -> tuple[Translated, dict[str, Any], list[str]]:
        """Return the query of a file, the configuration that it states, and notes.

        Raises
        ------
        UncertainError
            It can only be rendered by dbt, which has not done it.
        UntranslatableError
            It cannot be written in Spark's SQL.
        """
        text, dialect = self.project.read(path), self.project.dialect
        try:
            rendered = self.project.templates.render(text)
        except UncertainError:
            compiled = self.project.compiled.get(path)
            fresh = compiled is not None and compiled.raw.strip() == text.strip()
            if compiled is None or not fresh or "is_incremental" in text:
                raise
            if (compiled.node.get("config") or {}).get("materialized") == "incremental":
                raise  # a macro may have asked whether the table was there when dbt compiled it
            own = dict(compiled.node.get("unrendered_config") or {})
            return translate(compiled.text, dialect, self.resolve), own, ["compiled by dbt"]
        for key in rendered.tables.values():
            if key not in self.targets:
                raise UncertainError(
                    f"there is no {'.'.join(key[1:])}", _line_of_name(text, key[-1])
                )

        def resolve(names: tuple[str, ...]) -> Target | None:
            key = rendered.tables.get(names[0]) if len(names) == 1 else None
            return self.targets[key] if key else None

        translated = translate(rendered.text, dialect, resolve)
        translated = _without_marks(translated, {m: resolve((m,)) for m in rendered.tables})
        dropped = "is_incremental() is false: the table follows its data without it"
        return translated, dict(rendered.config), [dropped] if rendered.is_incremental else []

    def remove_readers(self) -> None:
        """Leave out sources that read one that is not imported, and checks that compare with it."""
        for target in self.targets.values():
            if target.name not in self.drafts.sources:
                without_readers(self.drafts, target.name)


def _changes_rows(key: str, config: dict[str, Any]) -> bool:
    """Whether a setting of `_CHANGING` has a value with which it has an effect."""
    if key == "full_refresh":
        return key in config and str(config[key]).lower() != "true"
    return bool(config.get(key))


def _line_of_name(text: str, name: str) -> int:
    return text[: max(text.find(name), 0)].count("\n") + 1


def _without_marks(translated: Translated, targets: dict[str, Target | None]) -> Translated:
    """Return a query in which no mark of a table is left: those in comments become names.

    Raises
    ------
    UntranslatableError
        One stands where no table can be.
    """
    sql = translated.sql
    tokens = " ".join(token.text for token in tokenize(sql))
    for mark, target in targets.items():
        if mark in tokens:
            name = target.name if target else mark
            raise UntranslatableError(f"`{name}` is named where no table can be")
        sql = sql.replace(mark, target.name if target else mark)
    return replace(translated, sql=sql)
