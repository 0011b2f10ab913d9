"""A dbt project → drafts of ours.

models that are tables ─► persisted sources       data tests ─► checks
views, ephemeral models ─► sources                singular tests ─► sources of failing rows
seeds, sources ─► raw tables                      unit tests ─► tests
"""

from __future__ import annotations

import re
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
    COMPILE,
    agree_on_failures,
    read_constraints,
    read_data_tests,
    read_singular_tests,
    read_unit_tests,
)
from persist_assets.operations.importing.drafts import Draft, Drafts, Origin
from persist_assets.operations.importing.lined_yaml import (
    Mapping,
    line_of,
    mapping_in,
    mappings_in,
)
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

    from persist_assets.operations.importing.dbt_manifest import Compiled
    from persist_assets.operations.importing.dbt_project import DbtProject, Properties

_CONFIG_CALL = re.compile(r"\{\{-?\s*config\s*\(.*?\)\s*-?\}\}", re.S)
_FRESHNESS = ("freshness", "loaded_at_field", "loaded_at_query")
_HISTORY = (
    "its history is in dbt's table",
    "write a source with refresh=snapshot: docs/annotations.md",
)
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
"""Settings with which dbt's table has different rows from its query."""
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
    agree_on_failures(importer)
    read_singular_tests(importer)
    read_unit_tests(importer)
    importer.remove_readers()
    importer.drafts.not_carried = [*dict.fromkeys(importer.drafts.not_carried)]
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
        self.drafts = Drafts("dbt", project.dialect, dialect_from=project.dialect_from)
        self.drafts.not_carried += project.not_carried
        self.targets: dict[tuple[str, ...], Target] = {}
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.enforced: set[str] = set()
        self._source_configs: dict[str, dict[str, Any]] = {}
        self._relations: dict[tuple[str, ...], tuple[str, ...]] = {}
        for relation, key in project.manifest.relations.items():
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
                if kind == "model" and self._has_versions(name):
                    self.drafts.skip(origin, "versions of models have no counterpart")
                    continue
                if reason := is_disabled(self.config_of(origin, below)):
                    self.drafts.skip(origin, reason)
                    continue
                place = f"raw/{name}.sql" if kind == "seed" else below
                self._name(("ref", name), origin, f"sources/{place}", name)
        self._list_snapshots()
        self._name_sources()
        for key, target in self.targets.items():
            origin = self.origins[key]
            if origin.kind == "seed":
                self._read_seed(origin, target)
            elif origin.kind == "source":
                self._read_source(origin, target)

    def _has_versions(self, name: str) -> bool:
        """Whether a file has a version of a model, or a model that has versions."""
        return name in self.project.versions or name in self.project.versions.values()

    def _list_snapshots(self) -> None:
        """List the snapshots: those in files of SQL, and those in files of properties."""
        for path, _ in self.project.files["snapshot"]:
            if path.endswith(".sql"):
                for name, _, line in snapshots_in(self.project.read(path)):
                    self.drafts.skip(Origin("snapshot", name, path, line), *_HISTORY)
        for (kind, name), properties in self.project.properties.items():
            if kind == "snapshot" and "relation" in properties.body:
                self.drafts.skip(properties.origin(kind, name), *_HISTORY)

    def _name_sources(self) -> None:
        """Decide the names of the tables of sources."""
        for (kind, name), properties in self.project.properties.items():
            if kind != "source":
                continue
            source, _, table = name.partition(".")
            origin = properties.origin(kind, name)
            config = self._source_config(origin, properties.body)
            if reason := is_disabled(config):
                self.drafts.skip(origin, reason)
                continue
            self._source_configs[name] = config
            called = str(properties.body.get("identifier") or table)
            self._name(("source", source, table), origin, "", called, f"{source}_{table}")

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
            own = {k: body[k] for k in ("tags", "meta", "group") if k in body}
            place = properties.origin(origin.kind, origin.name)
            config = merged(merged(config, own), self._stated(body, place))
        return config

    def _stated(self, body: Mapping, origin: Origin) -> dict[str, Any]:
        """Return the values below `config` of an entry, with their templates rendered."""
        stated = mapping_in(body, "config", origin, self.drafts.not_carried)
        return {key: self.project.value(value) for key, value in stated.items()}

    def annotate(self, draft: Draft, config: dict[str, Any]) -> None:
        """Put a configuration into the annotation of a draft; list the rest."""
        origin, body = draft.origin, self._body(draft.origin)
        draft.description = self._described(body, origin) or draft.description
        draft.keys += parts.tags([str(t) for t in listed(config.get("tags"))], origin, self.drafts)
        group = config.get("group")
        if group:
            draft.keys.append(f"group={parts.word(str(group))}")
        meta: Any = config.get("meta") or {}
        if not isinstance(meta, dict):
            self.drafts.skip(replace(origin, kind="meta"), "it has to be a mapping")
            meta = {}
        for name in listed(meta.get("owner") or self._owner_of(str(group))):
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

    def _owner_of(self, group: str) -> Any:
        """Return the owner of a group; None: it has none."""
        properties = self.project.groups.get(group)
        if properties is None:
            return None
        place = properties.origin("group", group)
        owner = mapping_in(properties.body, "owner", place, self.drafts.not_carried)
        return owner.get("email") or owner.get("name")

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
                    for c in mappings_in(body, "columns", draft.origin, [])
                ]
                if not columns:
                    raise UntranslatableError("it has no columns")
                draft.keys.append(f"columns {{ {' '.join(columns)} }}")
            except KeyError:
                self.drafts.skip(replace(draft.origin, kind="contract"), "a column has no type")
            except UntranslatableError as error:
                self.drafts.skip(replace(draft.origin, kind="contract"), str(error))

    def _properties(self, origin: Origin) -> Properties | None:
        kind = "test" if origin.kind == "singular test" else origin.kind
        return self.project.properties.get((kind, origin.name))

    def _body(self, origin: Origin) -> Mapping:
        properties = self._properties(origin)
        return properties.body if properties else Mapping()

    def _described(self, body: Mapping, origin: Origin) -> str:
        """Return the description of a thing and of its columns."""
        lines = [self._text(body.get("description"), origin, line_of(body))]
        for column in mappings_in(body, "columns", origin, []):
            if column.get("description"):
                text = self._text(column["description"], origin, line_of(column))
                lines.append(f"- {column.get('name')}: {' '.join(text.split())}")
        return "\n".join(line for line in lines if line)

    def _text(self, text: Any, origin: Origin, line: int) -> str:
        try:
            return str(self.project.templates.value(str(text))).strip() if text else ""
        except UncertainError as error:
            properties = self._properties(origin)
            path = properties.path if properties else origin.path
            self.drafts.skip(Origin("description", origin.name, path, line), str(error))
            return ""

    # --------------------------------------------------------------------------------- raw tables

    def _read_seed(self, origin: Origin, target: Target) -> None:
        below = next(b for p, b in self.project.files["seed"] if p == origin.path)
        config = self.config_of(origin, below)
        types: dict[str, str] = {}
        stated: Any = config.get("column_types") or {}
        if not isinstance(stated, dict):
            place = Origin("config", f"{origin.name}.column_types", origin.path)
            self.drafts.skip(place, "it has to be a mapping")
            stated = {}
        for column, written in stated.items():
            types[str(column)] = self._type(str(written), origin, str(column))
        place, separator = self.project.root / origin.path, config.get("delimiter")
        if separator is not None and len(str(separator)) != 1:
            self.drafts.skip(origin, f"the delimiter {separator!r} is not one character")
            return
        draft = seed(self.drafts, origin, target.name, place, types, separator)
        if draft is not None:
            self.annotate(draft, config)

    def _source_config(self, origin: Origin, body: Mapping) -> dict[str, Any]:
        """Return the configuration of a table of a source, with that of the source."""
        source: Mapping = body["source"]
        directory = self.project.below(origin.path).rpartition("/")[0]
        names = (directory, str(source.get("name")), str(body.get("name")))
        config = self.project.config("sources", "/".join(n for n in names if n) + ".yml")
        config = self._with_own(config, origin, source)
        shared: Any = config.get("meta")
        if isinstance(shared, dict):
            used = {k: v for k, v in shared.items() if k in ("owner", "external_location")}
            scopes = (source, mapping_in(source, "config", origin, []))
            own = [key for scope in scopes for key in mapping_in(scope, "meta", origin, [])]
            for key in (k for k in shared if k not in used):
                line = next((line_of(k) for k in own if k == key), source.line)
                place = Origin("meta", f"{source.get('name')}.{key}", origin.path, line)
                self.drafts.skip(place, COUNTERPARTS)
            config["meta"] = used
        return self._with_own(config, origin, body)

    def _with_own(self, config: dict[str, Any], origin: Origin, body: Mapping) -> dict[str, Any]:
        """Return a configuration with that of a source or a table added."""
        own = {k: body[k] for k in ("tags", "meta", *_FRESHNESS) if k in body}
        return merged(merged(config, own), self._stated(body, origin))

    def _read_source(self, origin: Origin, target: Target) -> None:
        body, config = self._body(origin), self._source_configs[origin.name]
        columns: dict[str, str] = {}
        entries = mappings_in(body, "columns", origin, [])
        for column in entries:
            if column.get("data_type"):
                name = str(column.get("name"))
                columns[name] = self._type(str(column["data_type"]), origin, name)
        if len(columns) < len(entries):
            columns = {}
        external = mapping_in(body, "external", origin, self.drafts.not_carried)
        meta: Any = config.get("meta")
        written = meta.get("external_location") if isinstance(meta, dict) else None
        location = str(written or external.get("location") or "").replace("{name}", origin.name)
        draft = raw_table(self.drafts, origin, target.name, columns, location or None)
        if isinstance(meta, dict):
            config["meta"] = {k: v for k, v in meta.items() if k != "external_location"}
        for key in (k for k in external if k != "location"):
            place = Origin("external", f"{origin.name}.{key}", origin.path, line_of(external))
            hint = f"complete the declaration in {target.path}"
            self.drafts.skip(place, "only the location of external data is carried", hint)
        for key in _FRESHNESS:
            if value := config.pop(key, None):
                place = Origin(key, origin.name, origin.path, line_of(value, origin.line))
                hint = "freshness.window of a source that reads it: docs/annotations.md"
                self.drafts.skip(place, "raw tables have no freshness", hint)
        self.annotate(draft, config)
        source: Mapping = body["source"]
        draft.description = draft.description or self._text(
            source.get("description"), origin, line_of(source)
        )

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
        carried = self.query_of(origin, config)
        if carried is None:
            return
        translated, config, notes = carried
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

    def query_of(
        self, origin: Origin, config: dict[str, Any]
    ) -> tuple[Translated, dict[str, Any], list[str]] | None:
        """Return the query of a file, its configuration, and notes; None: it is listed.

        Parameters
        ----------
        config
            The configuration that is stated elsewhere.
        """
        try:
            translated, config, notes = self._translated(origin.path, config)
        except UncertainError as error:
            place = Origin(origin.kind, origin.name, origin.path, error.line)
            self.drafts.skip(place, str(error), COMPILE)
            return None
        except UntranslatableError as error:
            self.drafts.skip(origin, str(error))
            return None
        if reason := is_disabled(config):
            self.drafts.skip(origin, reason)
            return None
        return translated, config, notes

    def _translated(
        self, path: str, config: dict[str, Any]
    ) -> tuple[Translated, dict[str, Any], list[str]]:
        """Return the query of a file, its configuration, and notes.

        Parameters
        ----------
        config
            The configuration that is stated elsewhere.

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
        except UncertainError as error:
            compiled = self.project.manifest.compiled.get(path)
            if compiled is None or "is_incremental" in text:
                raise
            if compiled.config.get("materialized") == "incremental":
                raise  # a macro may have asked whether the table was there when dbt compiled it
            changed = compiled.raw.strip() != text.strip()
            if change := "its text has changed" if changed else self.project.change(compiled):
                reason = f"{error}; since dbt compiled it, {change}"
                raise UncertainError(reason, error.line) from error
            config = self._compiled_config(text, compiled, config)
            return translate(compiled.text, dialect, self.resolve), config, ["compiled by dbt"]
        for key in rendered.tables.values():
            if key not in self.targets:
                name, line = ".".join(key[1:]), _line_of_name(text, key[-1])
                if key[0] == "ref" and self._has_versions(name):
                    raise UncertainError(f"versions of `{name}` have no counterpart", line)
                raise UncertainError(f"there is no {name}", line)

        def resolve(names: tuple[str, ...]) -> Target | None:
            key = rendered.tables.get(names[0]) if len(names) == 1 else None
            return self.targets[key] if key else None

        translated = translate(rendered.text, dialect, resolve)
        translated = _without_marks(translated, {m: resolve((m,)) for m in rendered.tables})
        dropped = "is_incremental() is false: the table follows its data without it"
        config = merged(config, dict(rendered.config))
        return translated, config, [dropped] if rendered.is_incremental else []

    def _compiled_config(
        self, text: str, compiled: Compiled, config: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the configuration of a file that dbt compiled.

        That in its text counts most, then that stated elsewhere, then what only dbt knows.
        """
        calls = "".join(match[0] for match in _CONFIG_CALL.finditer(text))
        unrendered: Any = compiled.node.get("unrendered_config")
        known: dict[str, Any] = dict(unrendered) if isinstance(unrendered, dict) else {}
        try:
            own = dict(self.project.templates.render(calls).config)
        except UncertainError:
            return merged(config, known)
        return merged({**known, **config}, own)

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
