"""YAML whose mappings and strings know their lines."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, SettingsError

if TYPE_CHECKING:
    from pathlib import Path


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


def line_of(value: Any, default: int = 1) -> int:
    """Return the line of a value; the default if it knows none."""
    return int(getattr(value, "line", default))


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
