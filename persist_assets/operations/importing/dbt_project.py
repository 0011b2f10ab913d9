"""The files of a dbt project, as they are: settings, models, properties, compiled texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, NotFoundError, SettingsError
from persist_assets.operations.importing.dbt_manifest import read_manifest
from persist_assets.operations.importing.drafts import NotCarried, Origin
from persist_assets.operations.importing.lined_yaml import (
    Mapping,
    line_below,
    line_of,
    mapping_in,
    mappings_in,
    read_mapping,
    read_yaml,
)
from persist_assets.operations.importing.templates import (
    Templates,
    UncertainError,
    docs_in,
    without_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from persist_assets.operations.importing.dbt_manifest import Compiled, Manifest

DEFAULT_PATHS = {
    "model": ["models"],
    "seed": ["seeds"],
    "snapshot": ["snapshots"],
    "test": ["tests"],
    "macro": ["macros"],
    "analysis": ["analyses"],
}
ADAPTERS = {"sqlserver": "tsql", "synapse": "tsql", "fabric": "tsql", "glue": "spark"}
"""The dialects of adapters that are not called like it."""
LATER = {
    "exposures": "exposure",
    "metrics": "metric",
    "semantic_models": "semantic model",
    "saved_queries": "saved query",
    "functions": "function",
}
"""Lists of things in files of properties that have no counterpart here."""
_DIALECTS = "--dialect duckdb, postgres, snowflake, bigquery, databricks, …"
COUNTERPARTS = "persist has no counterpart"
_BODY = (
    *("name", "description", "config", "columns", "tests", "data_tests", "tags", "meta", "docs"),
    *("group", "access", "constraints", "versions", "latest_version", "quoting"),
)
_TABLE = ("source", "identifier", "external", "freshness", "loaded_at_field", "loaded_at_query")
"""Properties of objects, and of tables of sources, that are read elsewhere, or mean nothing."""
_COLUMN = (
    *("name", "description", "data_type", "tests", "data_tests", "constraints", "quote"),
    *("granularity", "docs", "config"),
)
"""Properties of columns that are read elsewhere, or mean nothing."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The entry of one object in a properties file."""

    path: str
    body: Mapping

    def origin(self, kind: str, name: str) -> Origin:
        """Return the entry as an object of the project."""
        return Origin(kind, name, self.path, self.body.line)


@dataclass
class DbtProject:
    """The files of a dbt project.

    Attributes
    ----------
    files
        The paths of files by what they are, each below one of the directories for it.
    properties
        By kind and name: ``model``, ``seed``, ``snapshot``; ``source`` by ``source.table``;
        singular tests as ``test``.
    versions
        The names of files that have versions of models → the model.
    """

    root: Path
    name: str
    dialect: str
    dialect_from: str
    settings: Mapping
    templates: Templates
    manifest: Manifest
    files: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    properties: dict[tuple[str, str], Properties] = field(default_factory=dict)
    unit_tests: list[Properties] = field(default_factory=list)
    groups: dict[str, Properties] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    not_carried: list[NotCarried] = field(default_factory=list)

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises
        ------
        SettingsError
            It is not UTF-8, or cannot be read.
        """
        try:
            return (self.root / path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.root / path} cannot be read: {error}") from error

    def below(self, path: str) -> str:
        """Return the path of a file from the directory of the settings to which it belongs."""
        pairs = (pair for files in self.files.values() for pair in files)
        return next((below for known, below in pairs if known == path), path)

    def change(self, compiled: Compiled) -> str | None:
        """Return what a compiled text depends on and has changed since; None: nothing."""
        paths = [p for p, below in self.files["test"] if below.startswith("generic/")]
        texts = {path: self.read(path) for path in paths if path.endswith(".sql")}
        return self.manifest.change(compiled, self.read, {**self.templates.macros, **texts})

    def config(self, section: str, below: str) -> dict[str, Any]:
        """Return a file's configuration in `dbt_project.yml`, by its path below its directory."""
        values: dict[str, Any] = {}
        level: Any = self.settings.get(section)
        stem = below.rpartition(".")[0]
        for part in ("", self.name, *stem.split("/")):
            level = level.get(part) if part and isinstance(level, dict) else level
            if not isinstance(level, dict):
                break
            for key, value in level.items():
                plain = str(key).removeprefix("+")
                if str(key).startswith("+") or not isinstance(value, dict):
                    values = merged(values, {plain: self.value(value)})
        return values

    def value(self, value: Any) -> Any:
        """Return a value of YAML, with its templates rendered where the result is certain."""
        if isinstance(value, list | tuple):
            return [self.value(item) for item in listed(value)]
        if not isinstance(value, str):
            return value
        try:
            return self.templates.value(value)
        except UncertainError:
            return value


def is_disabled(config: dict[str, Any]) -> str | None:
    """Return why an object is not imported, by `enabled` in its configuration; None: it is."""
    written = str(config.get("enabled", True))
    if "{{" in written:
        return f"whether it is enabled is known only to dbt: {written}"
    return "it is disabled" if written.lower() == "false" else None


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return two configurations as one: the later one counts, and tags add up.

    Examples
    --------
    >>> merged({"tags": "a", "enabled": True}, {"tags": ["b"], "enabled": False})
    {'tags': ['a', 'b'], 'enabled': False}
    """
    both = {**values, **more}
    if "tags" in values and "tags" in more:
        both["tags"] = [*listed(values["tags"]), *listed(more["tags"])]
    if isinstance(values.get("meta"), dict) and isinstance(more.get("meta"), dict):
        both["meta"] = {**values["meta"], **more["meta"]}
    return both


def listed(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def read_project(root: Path, dialect: str | None) -> DbtProject:
    """Return the files of a dbt project.

    Raises
    ------
    NotFoundError
        There is no `dbt_project.yml`.
    SettingsError
        The dialect is unknown, or a file of YAML is invalid.
    """
    if not (root / "dbt_project.yml").is_file():
        raise NotFoundError(
            f"there is no dbt_project.yml in {root}", hint="name the directory of the dbt project"
        )
    settings = read_mapping(root / "dbt_project.yml", root)
    name = str(settings.get("name", root.name))
    manifest = read_manifest(root, name)
    unread = [*manifest.not_carried]
    adapter, place = _adapter(root, settings, manifest, unread, is_needed=dialect is None)
    chosen = dialect or (ADAPTERS.get(adapter, adapter) if adapter else None)
    if chosen is None:
        raise _unknown_dialect(root, unread)
    own = Origin("project", name, "dbt_project.yml")
    variables: dict[str, Any] = dict(mapping_in(settings, "vars", own, unread))
    variables |= variables[name] if isinstance(variables.get(name), dict) else {}
    templates = Templates(adapter or chosen, variables, name)
    project = DbtProject(
        root, name, chosen, "--dialect" if dialect else place, settings, templates, manifest
    )
    project.not_carried = unread
    for kind, default in DEFAULT_PATHS.items():
        key = {"analysis": "analysis-paths"}.get(kind, f"{kind}-paths")
        extra = ["data-tests"] if kind == "test" else []
        directories = [str(d) for d in listed(settings.get(key))] or [*default, *extra]
        project.files[kind] = sorted(_files(root, directories))
    _read_texts(project)
    for path in sorted({p for files in project.files.values() for p, _ in files}):
        if path.endswith((".yml", ".yaml")):
            _read_properties(project, path)
    _list_unknown(project)
    for key in ("on-run-start", "on-run-end"):
        for hook in listed(settings.get(key)):
            origin = Origin("hook", key, "dbt_project.yml", line_of(hook))
            project.not_carried.append(NotCarried(origin, COUNTERPARTS))
    return project


def _unknown_dialect(root: Path, unread: list[NotCarried]) -> SettingsError:
    """Return the error that no file states the dialect."""
    message, hint = "the SQL dialect of the models is unknown", f"set it: {_DIALECTS}"
    for entry in unread:
        if entry.origin.path == "profiles.yml":
            place = Location("profiles.yml", entry.origin.line)
            message = f"{message}: {entry.origin.name}: {entry.reason}"
            return SettingsError(message, location=place, hint=hint)
    if (root / "profiles.yml").is_file():
        return SettingsError(f"{message}: profiles.yml states no adapter", hint=hint)
    return SettingsError(f"{message}: there is no profiles.yml", hint=hint)


def _files(root: Path, directories: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files of some directories: their paths from the root, and from their directory."""
    for directory in directories:
        if not (root / directory).resolve().is_relative_to(root.resolve()):
            continue
        for path in (root / directory).rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if path.is_file() and not hidden and path.resolve().is_relative_to(root.resolve()):
                yield (
                    path.relative_to(root).as_posix(),
                    path.relative_to(root / directory).as_posix(),
                )


def _adapter(
    root: Path,
    settings: Mapping,
    manifest: Manifest,
    unread: list[NotCarried],
    *,
    is_needed: bool,
) -> tuple[str | None, str]:
    """Return the adapter of a project, and its place: its profile, or its manifest.

    Parameters
    ----------
    is_needed
        The dialect is that of the adapter: a doubt about the adapter is listed.
    """
    name = str(settings.get("profile"))
    path = root / "profiles.yml"
    profiles = read_mapping(path, root) if path.is_file() else Mapping()
    origin = Origin("profile", name, "profiles.yml")
    profile = mapping_in(profiles, name, origin, unread)
    outputs = mapping_in(profile, "outputs", origin, unread)
    kinds = {
        key: str(output["type"])
        for key, output in outputs.items()
        if isinstance(output, dict) and output.get("type")
    }
    target = str(profile.get("target", "default"))
    output = target if target in kinds else next(iter(kinds), None)
    if output is None:
        return manifest.adapter, "target/manifest.json"
    line = line_below(profile, "target")
    if is_needed and target not in kinds and len(set(kinds.values())) > 1:
        reason = f"there is no output `{target}`: the dialect is that of the first one, `{output}`"
        place = Origin("target", name, "profiles.yml", line)
        unread.append(NotCarried(place, reason, f"set it: {_DIALECTS}"))
    return kinds[output], f"output `{output}` in profiles.yml"


def _read_texts(project: DbtProject) -> None:
    """Read macros and blocks of documentation; list what only dbt can do with them."""
    for path, _ in project.files["macro"]:
        if path.endswith(".sql"):
            text = project.read(path)
            project.templates.macros[path] = text
            for kind, name, line in without_blocks(text)[1]:
                reason = f"a custom {kind} has no counterpart"
                project.not_carried.append(
                    NotCarried(Origin(f"{kind} macro", name, path, line), reason)
                )
    for kind in ("model", "seed", "snapshot", "macro"):
        for path, _ in project.files[kind]:
            if path.endswith(".md"):
                project.templates.docs |= docs_in(project.read(path))
    for path, _ in project.files["analysis"]:
        if path.endswith(".sql"):
            name = path.rpartition("/")[2].removesuffix(".sql")
            project.not_carried.append(NotCarried(Origin("analysis", name, path), COUNTERPARTS))


def _read_properties(project: DbtProject, path: str) -> None:
    """Read one file of properties."""
    body: Any = read_yaml(project.root / path, project.root)
    if not isinstance(body, Mapping):
        if body is not None:
            place = Origin("properties", path.rpartition("/")[2], path)
            project.not_carried.append(NotCarried(place, "it has to be a mapping"))
        return
    file, unread = Origin("properties", path.rpartition("/")[2], path), project.not_carried
    kinds = {"models": "model", "seeds": "seed", "snapshots": "snapshot"}
    for key, kind in (*kinds.items(), ("tests", "test"), ("data_tests", "test")):
        for entry in mappings_in(body, key, file, unread):
            name, properties = str(entry.get("name")), Properties(path, entry)
            project.properties[kind, name] = properties
            versions = mappings_in(entry, "versions", properties.origin(kind, name), unread)
            for version in versions if kind == "model" else ():
                stem = version.get("defined_in") or f"{name}_v{version.get('v')}"
                project.versions[str(stem)] = name
    for source in mappings_in(body, "sources", file, unread):
        origin = Properties(path, source).origin("source", str(source.get("name")))
        for table in mappings_in(source, "tables", origin, unread):
            merged_table = Mapping(table)
            merged_table.line = table.line
            merged_table["source"] = source
            name = f"{source.get('name')}.{table.get('name')}"
            project.properties["source", name] = Properties(path, merged_table)
    tests = mappings_in(body, "unit_tests", file, unread)
    project.unit_tests += [Properties(path, entry) for entry in tests]
    for entry in mappings_in(body, "groups", file, unread):
        project.groups[str(entry.get("name"))] = Properties(path, entry)
    for key, kind in LATER.items():
        for entry in mappings_in(body, key, file, unread):
            origin = Origin(kind, str(entry.get("name")), path, entry.line)
            project.not_carried.append(NotCarried(origin, COUNTERPARTS))


def _list_unknown(project: DbtProject) -> None:
    """List the properties of models, seeds, sources and their columns that nothing here has."""
    for (kind, name), properties in project.properties.items():
        if kind not in ("model", "seed", "source"):
            continue
        body, origin = properties.body, properties.origin(kind, name)
        known = (*_BODY, *_TABLE) if kind == "source" else _BODY
        _list_keys(project, origin, body, known, "property")
        for version in mappings_in(body, "versions", origin, []):
            mappings_in(version, "columns", origin, project.not_carried)
        for column in mappings_in(body, "columns", origin, project.not_carried):
            place = Origin("column", f"{name}.{column.get('name')}", properties.path, column.line)
            _list_keys(project, place, column, _COLUMN)
            _list_keys(project, place, mapping_in(column, "config", place, project.not_carried))


def _list_keys(
    project: DbtProject,
    origin: Origin,
    body: Mapping,
    known: tuple[str, ...] = (),
    kind: str | None = None,
) -> None:
    """List the keys of a mapping, each as an object of a kind, or of one that is called like it."""
    for key, value in body.items():
        if key not in known and value not in (None, [], {}, "", False):
            line = line_below(body, key, origin.line)
            place = Origin(kind or f"column {key}", f"{origin.name}.{key}", origin.path, line)
            project.not_carried.append(NotCarried(place, COUNTERPARTS))
