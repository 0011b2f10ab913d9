"""`[variables]` of `persist.toml`: values of SQL variables, by environment."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Any, cast

from persist_assets.core.errors import SettingsError, did_you_mean
from persist_assets.core.settings.places import at
from persist_assets.core.variables import VARIABLE_TYPES, Setting, VariableValue, unfit

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_variables(
    entries: Mapping[str, Any], overrides: Mapping[str, Any], environment: str
) -> tuple[tuple[str, Setting], ...]:
    """Return the values of variables in an environment, as sorted pairs.

    Raises
    ------
    SettingsError
        A name is none, or a value has no type, or does not fit it.
    """
    base = {name: _setting(name, value, ("variables",)) for name, value in entries.items()}
    path = ("env", environment, "variables")
    own = {name: _setting(name, value, path) for name, value in overrides.items()}
    names: dict[str, str] = {}
    for name in (*base, *own):
        if names.setdefault(name.lower(), name) != name:
            message = f"`variables.{name}` differs from `{names[name.lower()]}` in case only"
            raise SettingsError(message, location=at(*(path if name in own else path[2:]), name))
    for name, setting in own.items():
        inherited = base[name].own_type if name in base else None
        if setting.type is None and inherited is not None:
            setting = own[name] = Setting(setting.value, inherited)
        elif inherited not in (None, setting.type):
            message = f"`variables.{name}` must have the same type as in the project: {inherited}"
            raise SettingsError(message, location=at(*path, name))
        _check(name, setting, path)
    return tuple(sorted({**base, **own}.items()))


def _setting(name: str, value: Any, path: tuple[str, ...]) -> Setting:
    """Return a value of TOML: plain, or a table with its type."""
    place = at(*path, name)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        message = f"invalid variable name `{name}`"
        raise SettingsError(message, hint="letters, digits and underscores", location=place)
    kind: str | None = None
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if table.keys() != {"type", "value"} or not isinstance(table["type"], str):
            hint = f'{name} = {{ type = "date", value = "2024-01-01" }}'
            raise SettingsError(
                f"`variables.{name}` must have a type and a value", hint=hint, location=place
            )
        kind, value = _type(name, table["type"], path), table["value"]
    if not isinstance(value, str | int | float | date):  # a boolean is an integer to Python
        hint = "use a string, number, boolean, date or timestamp"
        raise SettingsError(f"`variables.{name}` has no value", hint=hint, location=place)
    setting = Setting(cast("VariableValue", value), kind)
    _check(name, setting, path)
    return setting


def _type(name: str, written: str, path: tuple[str, ...]) -> str:
    kind = re.sub(r"\s", "", written.lower())
    kind = {"integer": "int", "long": "bigint", "bool": "boolean"}.get(kind, kind)
    if kind in VARIABLE_TYPES or re.fullmatch(r"decimal\(\d+(,\d+)?\)", kind):
        return kind if "(" not in kind or "," in kind else f"{kind[:-1]},0)"
    known = (*VARIABLE_TYPES, "decimal(10,2)")
    hint = did_you_mean(kind, known) or f"known types: {', '.join(known)}"
    message = f"`variables.{name}` has the unknown type `{written}`"
    raise SettingsError(message, hint=hint, location=at(*path, name))


def _check(name: str, setting: Setting, path: tuple[str, ...]) -> None:
    wrong = unfit(setting.value, setting.own_type)
    if wrong:
        raise SettingsError(f"`variables.{name}`: {wrong}", location=at(*path, name))
