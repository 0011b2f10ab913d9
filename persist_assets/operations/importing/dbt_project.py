"""The files of a dbt project, as they are: settings, models, properties, compiled texts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import NotFoundError, SettingsError
from persist_assets.operations.importing.drafts import NotCarried, Origin
from persist_assets.operations.importing.lined_yaml import Mapping, line_of, read_yaml
from persist_assets.operations.importing.templates import (
    Templates,
    UncertainError,
    docs_in,
    without_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
}
"""Lists of things in files of properties that have no counterpart here."""
COUNTERPARTS = "persist has no counterpart"


@dataclass(frozen=True, slots=True)
class Properties:
    """The entry of one object in a properties file."""

    path: str
    body: Mapping


@dataclass(frozen=True, slots=True)
class Compiled:
    """A text as dbt compiled it.

    Attributes
    ----------
    raw, text
        The text before and after.
    """

    raw: str
    text: str
    node: dict[str, Any]


@dataclass
class DbtProject:
    """The files of a dbt project.

    Attributes
    ----------
    files
        The paths of files by what they are, each below one of the directories for it.
    properties
        By kind and name: ``model``, ``seed``, ``snapshot``; ``source`` by ``source.table``.
    compiled
        What `dbt compile` left behind, by path.
    nodes
        The parts of the names of tables in compiled texts → kind and name.
    """

    root: Path
    name: str
    dialect: str
    settings: Mapping
    templates: Templates
    files: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    properties: dict[tuple[str, str], Properties] = field(default_factory=dict)
    unit_tests: list[Properties] = field(default_factory=list)
    groups: dict[str, Mapping] = field(default_factory=dict)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)
    relations: dict[str, tuple[str, ...]] = field(default_factory=dict)
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
                plain = key.removeprefix("+")
                if key.startswith("+") or not isinstance(value, dict):
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
    settings = read_yaml(root / "dbt_project.yml", root) or Mapping()
    manifest = _manifest(root)
    adapter = _adapter(root, settings, manifest)
    chosen = dialect or (ADAPTERS.get(adapter, adapter) if adapter else None)
    if chosen is None:
        raise SettingsError(
            "the SQL dialect of the models is unknown: there is no profiles.yml",
            hint="set it: --dialect duckdb, postgres, snowflake, bigquery, databricks, …",
        )
    name = str(settings.get("name", root.name))
    variables = dict(settings.get("vars") or {})
    variables |= variables.get(name) or {} if isinstance(variables.get(name), dict) else {}
    templates = Templates(adapter or chosen, variables, name)
    project = DbtProject(root, name, chosen, settings, templates)
    for kind, default in DEFAULT_PATHS.items():
        key = {"analysis": "analysis-paths"}.get(kind, f"{kind}-paths")
        directories = settings.get(key) or [*default, *(["data-tests"] if kind == "test" else [])]
        project.files[kind] = sorted(_files(root, directories))
    _read_texts(project)
    for path in sorted({p for files in project.files.values() for p, _ in files}):
        if path.endswith((".yml", ".yaml")):
            _read_properties(project, path)
    for key in ("on-run-start", "on-run-end"):
        for hook in listed(settings.get(key)):
            origin = Origin("hook", key, "dbt_project.yml", line_of(hook))
            project.not_carried.append(NotCarried(origin, COUNTERPARTS))
    _read_manifest(project, manifest)
    return project


def _files(root: Path, directories: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files of some directories: their paths from the root, and from their directory."""
    for directory in directories:
        for path in (root / directory).rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if path.is_file() and not hidden and path.resolve().is_relative_to(root.resolve()):
                yield (
                    path.relative_to(root).as_posix(),
                    path.relative_to(root / directory).as_posix(),
                )


def _adapter(root: Path, settings: Mapping, manifest: dict[str, Any]) -> str | None:
    """Return the adapter of a project: that of its profile, or that of its manifest."""
    profiles = root / "profiles.yml"
    if profiles.is_file():
        body: Any = read_yaml(profiles, root) or {}
        profile: Any = body.get(settings.get("profile"))
        if isinstance(profile, dict):
            outputs: Any = profile.get("outputs") or {}
            output = outputs.get(profile.get("target"), next(iter(outputs.values()), {}))
            if isinstance(output, dict) and output.get("type"):
                return str(output["type"])
    adapter = manifest.get("metadata", {}).get("adapter_type")
    return str(adapter) if adapter else None


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
    if not isinstance(body, dict):
        return
    for key, kind in (("models", "model"), ("seeds", "seed"), ("snapshots", "snapshot")):
        for entry in _mappings(body.get(key)):
            project.properties[kind, str(entry.get("name"))] = Properties(path, entry)
    for source in _mappings(body.get("sources")):
        for table in _mappings(source.get("tables")):
            merged_table = Mapping(table)
            merged_table.line = table.line
            merged_table["source"] = source
            name = f"{source.get('name')}.{table.get('name')}"
            project.properties["source", name] = Properties(path, merged_table)
    project.unit_tests += [Properties(path, e) for e in _mappings(body.get("unit_tests"))]
    project.groups |= {str(e.get("name")): e for e in _mappings(body.get("groups"))}
    for key, kind in LATER.items():
        for entry in _mappings(body.get(key)):
            origin = Origin(kind, str(entry.get("name")), path, entry.line)
            project.not_carried.append(NotCarried(origin, COUNTERPARTS))


def _mappings(value: Any) -> list[Mapping]:
    return [entry for entry in listed(value) if isinstance(entry, Mapping)]


# --------------------------------------------------------------------------- what dbt compiled


def _manifest(root: Path) -> dict[str, Any]:
    path = root / "target" / "manifest.json"
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", hint="run `dbt compile`") from error
    return document if isinstance(document, dict) else {}


def _read_manifest(project: DbtProject, manifest: dict[str, Any]) -> None:
    """Read compiled texts and the names of tables in them."""
    nodes: dict[str, Any] = {**manifest.get("nodes", {}), **manifest.get("sources", {})}
    for node in nodes.values():
        kind, name = str(node.get("resource_type")), str(node.get("name"))
        if node.get("relation_name"):
            is_source = kind == "source"
            target = ("source", str(node["source_name"]), name) if is_source else ("ref", name)
            project.relations[str(node["relation_name"])] = target
        if kind == "model" and node.get("package_name") != project.name:
            path = f"{node.get('package_name')}/{node.get('original_file_path')}"
            project.not_carried.append(
                NotCarried(Origin("model", name, path), "it belongs to a package")
            )
        text = node.get("compiled_code") or _compiled_text(project, node)
        if text is None:
            continue
        if kind == "test" and node.get("test_metadata"):
            project.tests.append({**node, "compiled_code": text})
        elif node.get("package_name") == project.name:
            raw = str(node.get("raw_code", ""))
            project.compiled[str(node["original_file_path"])] = Compiled(raw, text, node)


def _compiled_text(project: DbtProject, node: dict[str, Any]) -> str | None:
    """Return the text below `target/compiled`, if the manifest has none."""
    place = project.root / "target" / "compiled" / str(node.get("package_name"))
    path = place / str(node.get("original_file_path"))
    if node.get("resource_type") not in ("model", "snapshot") or not path.is_file():
        return None
    return path.read_text(encoding="utf-8")
