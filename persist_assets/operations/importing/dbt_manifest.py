"""What dbt left behind in `target`: compiled texts, and what has changed since."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError
from persist_assets.operations.importing.drafts import NotCarried, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_PATH = "target/manifest.json"
_COMPILE = "run `dbt compile`"
_VARIABLE = re.compile(r"\bvar\s*\(")
_COMMENT = re.compile(r"\{#.*?#\}", re.S)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A text as dbt compiled it.

    Attributes
    ----------
    raw, text
        The text before and after.
    node
        Its entry in the manifest.
    """

    raw: str
    text: str
    node: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration."""
        return record(self.node.get("config"))


@dataclass
class Manifest:
    """The manifest of a dbt project; without one, all is empty.

    Attributes
    ----------
    project
        The name of the project: other nodes and macros are of packages.
    nodes, macros
        Its entries, by identifier.
    compiled
        Texts of files that dbt compiled, by path.
    tests
        Generic tests that dbt compiled.
    relations
        The names of tables in compiled texts → kind and name.
    has_old_settings
        `dbt_project.yml` is newer than the manifest.
    """

    project: str
    adapter: str | None = None
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    macros: dict[str, dict[str, Any]] = field(default_factory=dict)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    tests: list[Compiled] = field(default_factory=list)
    relations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    has_old_settings: bool = False
    not_carried: list[NotCarried] = field(default_factory=list)

    def change(
        self, compiled: Compiled, read: Callable[[str], str], macros: Mapping[str, str]
    ) -> str | None:
        """Return what a compiled text depends on and has changed since; None: nothing.

        Parameters
        ----------
        read
            Returns the text of a file of the project.
        macros
            The texts of the project's files with macros, by path.
        """
        ephemeral = record_list(compiled.node.get("extra_ctes"))
        nodes = [compiled.node, *(self.nodes.get(str(c.get("id")), {}) for c in ephemeral)]
        for node in nodes[1:]:
            try:
                text = read(str(node.get("original_file_path")))
            except SettingsError:
                text = ""
            if text.strip() != str(node.get("raw_code")).strip():
                return f"the model `{node.get('name')}` has changed"
        metadata = record(compiled.node.get("test_metadata"))
        texts = [*(str(n.get("raw_code")) for n in nodes), str(metadata.get("kwargs"))]
        known = [_comparable(text) for text in macros.values()]
        for name in self._macros_of(nodes):
            package, short = name.split(".")[1:2], name.rpartition(".")[2]
            text = str(self.macros.get(name, {}).get("macro_sql") or "")
            is_known = bool(text) and any(_comparable(text) in other for other in known)
            if package == [self.project] and not is_known:
                return f"the macro `{short}` has changed"
            texts.append(text)
        if self.has_old_settings and any(map(_VARIABLE.search, texts)):
            return "dbt_project.yml has changed, and it reads variables"
        return None

    def _macros_of(self, nodes: list[dict[str, Any]]) -> list[str]:
        """Return the macros that nodes depend on, also through others."""
        names: dict[str, None] = {}
        left = [*nodes]
        while left:
            for name in map(str, listed_in(record(left.pop().get("depends_on")), "macros")):
                if name not in names:
                    names[name] = None
                    left.append(self.macros.get(name, {}))
        return [*names]


def record(value: Any) -> dict[str, Any]:
    """Return a mapping as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def record_list(value: Any) -> list[dict[str, Any]]:
    """Return the mappings in a list; none for any other value."""
    return [e for e in value if isinstance(e, dict)] if isinstance(value, list) else []


def listed_in(body: dict[str, Any], key: str) -> list[Any]:
    """Return the list of a key; an empty one if it has none."""
    value: Any = body.get(key)
    return list(value) if isinstance(value, list) else []


def read_manifest(root: Path, project: str) -> Manifest:
    """Return the manifest of a dbt project.

    Raises
    ------
    SettingsError
        It is not JSON, or cannot be read.
    """
    manifest, path = Manifest(project), root / _PATH
    if not path.is_file():
        return manifest
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", hint=_COMPILE) from error
    if not isinstance(document, dict):
        manifest.not_carried.append(_unread("manifest.json"))
        return manifest
    sections = {key: _section(manifest, document, key) for key in ("nodes", "sources", "macros")}
    metadata = record(document.get("metadata"))
    manifest.adapter = str(metadata.get("adapter_type") or "") or None
    manifest.has_old_settings = _has_old_settings(root, path, metadata)
    manifest.nodes, manifest.macros = sections["nodes"], sections["macros"]
    for node in (*manifest.nodes.values(), *sections["sources"].values()):
        _read_node(manifest, root, node)
    return manifest


def _section(manifest: Manifest, document: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the entries of a section; list what is none."""
    section: Any = document.get(key, {})
    if not isinstance(section, dict):
        manifest.not_carried.append(_unread(key))
        return {}
    odd = [name for name, entry in section.items() if not isinstance(entry, dict)]
    manifest.not_carried += [_unread(name) for name in odd]
    return {str(name): entry for name, entry in section.items() if name not in odd}


def _unread(name: str) -> NotCarried:
    return NotCarried(Origin("manifest", name, _PATH), "it has to be a mapping", _COMPILE)


def _has_old_settings(root: Path, path: Path, metadata: dict[str, Any]) -> bool:
    try:
        made = datetime.fromisoformat(str(metadata.get("generated_at"))).timestamp()
    except ValueError:
        made = path.stat().st_mtime
    return (root / "dbt_project.yml").stat().st_mtime > made


def _read_node(manifest: Manifest, root: Path, node: dict[str, Any]) -> None:
    """Read the name of a node's table, and its compiled text."""
    kind, name = str(node.get("resource_type")), str(node.get("name"))
    package, path = node.get("package_name"), node.get("original_file_path")
    if node.get("relation_name"):
        is_source = kind == "source"
        target = ("source", str(node.get("source_name")), name) if is_source else ("ref", name)
        manifest.relations[str(node["relation_name"])] = target
    if kind == "model" and package and package != manifest.project:
        origin = Origin("model", name, f"{package}/{path}")
        manifest.not_carried.append(NotCarried(origin, "it belongs to a package"))
    text = node.get("compiled_code") or _compiled_text(root, node)
    if not isinstance(text, str):
        return
    compiled = Compiled(str(node.get("raw_code") or ""), text, node)
    if kind == "test" and record(node.get("test_metadata")):
        manifest.tests.append(compiled)
    elif package == manifest.project and path:
        manifest.compiled[str(path)] = compiled


def _compiled_text(root: Path, node: dict[str, Any]) -> str | None:
    """Return the text below `target/compiled`, if the manifest has none."""
    place = root / "target" / "compiled" / str(node.get("package_name"))
    path = place / str(node.get("original_file_path"))
    if node.get("resource_type") not in ("model", "snapshot") or not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", hint=_COMPILE) from error


def _comparable(text: str) -> str:
    """Return a text without comments and differences of line ends."""
    return _COMMENT.sub("", text).replace("\r\n", "\n").strip()
