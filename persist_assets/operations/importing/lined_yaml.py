"""YAML whose mappings and strings know their lines."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, SettingsError
from persist_assets.operations.importing.drafts import NotCarried, Origin

if TYPE_CHECKING:
    from pathlib import Path

_MAPPING = "it has to be a mapping"


class Mapping(dict[str, Any]):
    """A mapping of a YAML file, with its line."""

    line: int = 1


class Text(str):
    """A text of a YAML file, with its line."""

    line: int = 1


def read_yaml(path: Path, root: Path) -> Any:
    """Return the content of a YAML file.

    Raises
    ------
    SettingsError
        It is not YAML, or cannot be read.
    """
    import yaml

    relative = path.relative_to(root).as_posix()
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _loader())  # a subclass of SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Location(relative, mark.line + 1, mark.column + 1) if mark else Location(relative)
        raise SettingsError(f"invalid YAML: {error.problem}", location=place) from error


def read_mapping(path: Path, root: Path) -> Mapping:
    """Return the content of a YAML file that has to be a mapping; an empty file is one, too.

    Raises
    ------
    SettingsError
        It is not YAML, not a mapping, or cannot be read.
    """
    body: Any = read_yaml(path, root)
    if body is None:
        return Mapping()
    if not isinstance(body, Mapping):
        raise SettingsError(_MAPPING, location=Location(path.relative_to(root).as_posix()))
    return body


def line_of(value: Any, default: int = 1) -> int:
    """Return the line of a value; the default if it knows none."""
    return int(getattr(value, "line", default))


def line_below(body: dict[str, Any], key: str, default: int = 1) -> int:
    """Return the line of the value of a key, or that of the key; the default if it knows none."""
    own = next((line_of(k, default) for k in body if k == key), line_of(body, default))
    return line_of(body.get(key), own)


def mapping_in(body: dict[str, Any], key: str, origin: Origin, unread: list[NotCarried]) -> Mapping:
    """Return the mapping of a key; an empty one if it has none.

    Parameters
    ----------
    origin
        The object to which it belongs, in the file of the mapping.
    unread
        A value that is not a mapping is added to this list.
    """
    value = body.get(key)
    if isinstance(value, Mapping):
        return value
    if value is not None:
        unread.append(_unread(body, key, value, origin, _MAPPING))
    return Mapping()


def mappings_in(
    body: dict[str, Any], key: str, origin: Origin, unread: list[NotCarried]
) -> list[Mapping]:
    """Return the mappings in the list of a key; none if it has no list.

    Parameters
    ----------
    origin
        The object to which it belongs, in the file of the list.
    unread
        A value that is not a list, and entries that are not mappings, are added to this list.
    """
    value: Any = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        unread.append(_unread(body, key, value, origin, "it has to be a list of mappings"))
        return []
    entries = list[Any](value)
    for entry in entries:
        if not isinstance(entry, Mapping):
            unread.append(_unread(body, key, entry, origin, f"`{entry}` has to be a mapping"))
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _unread(body: dict[str, Any], key: str, value: Any, origin: Origin, reason: str) -> NotCarried:
    line = line_of(value, line_below(body, key, origin.line))
    return NotCarried(Origin("property", f"{origin.name}.{key}", origin.path, line), reason)


def plain(value: Any) -> Any:
    """Return a value without lines, as YAML can write it."""
    match value:
        case dict():
            return {str(k): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case str():
            return str(value)
        case _:
            return value


@cache
def _loader() -> Any:
    """Return a safe loader that leaves dates as they are written."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: Any, node: Any) -> Any:
        value = Mapping()
        value.line = node.start_mark.line + 1
        yield value
        loader.flatten_mapping(node)
        value.update(loader.construct_mapping(node, deep=True))

    def text(loader: Any, node: Any) -> Text:
        value = Text(loader.construct_scalar(node))
        value.line = node.start_mark.line + 1
        return value

    Loader.yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if not tag.endswith(":timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_constructor("tag:yaml.org,2002:str", text)
    return Loader
