"""The functions and variables of a project: what its files define, and what its settings say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.python import SUFFIX as PYTHON
from persist_assets.compiler.frontends.python_udfs import read_udfs
from persist_assets.compiler.frontends.sql import parse_definitions
from persist_assets.compiler.frontends.sql_functions import DEFINES, SqlVariable
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions, define
from persist_assets.compiler.malloy.project import with_trees
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.core.errors import Location, Problem
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.places import place_in
from persist_assets.core.variables import expression, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from persist_assets.compiler.frontends.module_text import Find
    from persist_assets.compiler.frontends.sql_functions import Definition
    from persist_assets.compiler.malloy.project import Models
    from persist_assets.core.model.sources import Declaration
    from persist_assets.core.settings.values import Settings


def find_definitions(
    settings: Settings, contents: Mapping[str, bytes], find: Find, problems: list[Problem]
) -> Definitions:
    """Return the functions and variables of a project.

    Parameters
    ----------
    settings
        The settings, with the environment's values of variables.
    contents
        The files by path.
    find
        Returns the text of any file of the project, for what files of Python import.
    problems
        Output: what is wrong with them is added.
    """
    defined = [*_in_files(contents, find)]
    if not defined and not settings.variables:
        return NO_DEFINITIONS
    by_name = {d.name.lower(): d for d in defined if isinstance(d, SqlVariable)}
    values: list[SqlVariable] = []
    for name, setting in settings.variables:
        declared = by_name.get(name.lower())
        kind = declared.type if declared else setting.own_type
        wrong = unfit(setting.value, kind)
        if declared and setting.type not in (None, kind):
            wrong = f"{declared.location} declares another type, {kind}"
        if wrong:
            place = place_in(settings.root, ("variables", name), settings.environment)
            problems.append(Problem("variable", f"`variables.{name}`: {wrong}", place))
        values.append(
            SqlVariable(name, Location(SETTINGS_FILE), kind, expression(setting.value, kind))
        )
    overridden = {v.name.lower(): v for v in values}
    effective: list[Definition] = [
        replace(d, value=overridden[d.name.lower()].value)
        if isinstance(d, SqlVariable) and d.name.lower() in overridden
        else d
        for d in defined
    ]
    effective += (v for v in values if v.name.lower() not in by_name)
    known = define(effective, settings.functions)
    problems += known.problems
    return known


def reparser(
    texts: Mapping[str, str], find: Find, definitions: Definitions, models: Models
) -> Callable[..., list[Declaration]]:
    """Return a function that returns the declarations of a file with trees; see `Memory.parse`."""

    def parse(path: str, hidden: Collection[str] = ()) -> list[Declaration]:
        suffix = PurePosixPath(path).suffix
        if suffix not in FRONTENDS:
            return with_trees(models.files[path].declarations)
        return FRONTENDS[suffix](texts[path], path, find, definitions.without(hidden))[0]

    return parse


def _in_files(contents: Mapping[str, bytes], find: Find) -> Iterator[Definition]:
    for path, data in contents.items():
        if not path.endswith((".sql", PYTHON)):
            continue
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            continue  # it is reported with its sources
        if path.endswith(PYTHON):
            yield from read_udfs(text, path, find)
        elif DEFINES.search(text):
            yield from parse_definitions(text, path)
