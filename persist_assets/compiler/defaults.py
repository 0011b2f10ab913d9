"""The defaults of directories: annotations that `persist.toml` adds to those in files. Pure.

They are added to declarations after these were parsed, so that cached files need not be parsed
again, and before anything is compiled. The invariant: a source has the meaning that it would have
if its file said the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from persist_assets.compiler.frontends.annotated_ops import with_booleans
from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.annotation_values import Bad
from persist_assets.compiler.frontends.annotations import (
    NEEDS_PERSIST,
    NEEDS_TABLE,
    complete_want,
    misplaced,
    of_default,
)
from persist_assets.compiler.frontends.motly import Tag
from persist_assets.core.errors import SettingsError, did_you_mean
from persist_assets.core.languages import SQL
from persist_assets.core.wants import matcher

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from persist_assets.compiler.cache import Parsed
    from persist_assets.core.errors import Location, Problem
    from persist_assets.core.model.sources import Declaration
    from persist_assets.core.settings.values import Default, Settings

    _Applied = tuple[Declaration, Sequence[Problem], Collection[Problem]]

SHARED_KEYS = (
    *("persist", "materialized", "refresh", "hard_deletes", "backfill"),
    *("on_change", "on_schema_change", "owner", "tags", "group"),
    *("freshness", "automation", "want"),
    *("retries", "pool", "op_tags", "k8s"),
)
"""Keys that many sources can share, each after those on which its effect depends."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One key for the sources of the files that a pattern matches.

    Attributes
    ----------
    value
        What the reader of the key returns; None: earlier rules for the key do not apply.
    """

    pattern: str
    key: str
    value: object
    place: Location


class Defaults:
    """The defaults of a project.

    Raises
    ------
    SettingsError
        A key is unknown or describes a single source, or a value is invalid.
    """

    def __init__(self, settings: Settings) -> None:
        self._rules = tuple(map(_rule, settings.defaults))
        self._sources = settings.sources
        self._applied: dict[int, tuple[Declaration, _Applied]] = {}

    def apply(
        self,
        declarations: Sequence[Declaration],
        problems: Sequence[Problem],
        files: Sequence[Parsed] = (),
    ) -> tuple[list[Declaration], list[Problem]]:
        """Return declarations with their defaults, and the problems that they have then.

        A key that has no effect in its file may have one with a default: `freshness` needs
        `persist`, for example. For the same declaration, the result is the same object.

        Parameters
        ----------
        files
            Files with more declarations and problems.
        """
        declarations = [*declarations, *(d for file in files for d in file.declarations)]
        problems = [*problems, *(p for file in files for p in file.problems)]
        if not self._rules:
            return declarations, problems
        for declaration in declarations:
            if id(declaration) not in self._applied:
                self._applied[id(declaration)] = declaration, self._apply(declaration)
        results = [self._applied[id(d)][1] for d in declarations]
        solved = {problem for _, _, gone in results for problem in gone}
        left = [problem for problem in problems if problem not in solved]
        return [d for d, _, _ in results], [*left, *(p for _, new, _ in results for p in new)]

    def _apply(self, declaration: Declaration) -> _Applied:
        """Return a declaration with its defaults, its new problems, and those that it lost."""
        rules = self._rules_for(declaration.location.path)
        if declaration.query is None and declaration.raw is None:  # nobody knows what it is
            return declaration, (), ()
        annotation = declaration.annotation
        own = {*annotation.removed, *(key for key, _ in annotation.keys)}
        if declaration.materialized or annotation.persist is not None:
            own.add("persist")
        problems: list[Problem] = []
        result = declaration
        for rule in (rules[key] for key in SHARED_KEYS if key in rules):
            if rule.key in own or rule.value is None or not _concerns(rule.key, result):
                continue
            try:
                result = _with(result, rule)
            except Bad as bad:
                problems.append(bad.problem)
        before, after = ([*misplaced(d)] for d in (declaration, result))
        problems += (problem for problem in after if problem not in before)
        new = [of_default(problem, declaration.location) for problem in problems]
        return result, new, {*before} - {*after}

    def _rules_for(self, path: str) -> dict[str, _Rule]:
        """Return the rules for the sources of a file, by key: the last one of each."""
        below = path.removeprefix(f"{self._sources}/")
        return {rule.key: rule for rule in self._rules if matcher(rule.pattern)(below)}


def _rule(default: Default) -> _Rule:
    """Return a rule with its value read."""
    key, place = default.key, default.location
    name = f'`[defaults."{default.pattern}"] {key}`'
    if key not in SHARED_KEYS:
        hint = did_you_mean(key, SHARED_KEYS) or f"known keys: {', '.join(SHARED_KEYS)}"
        message = f"unknown key {name}"
        if key in KEYS:
            hint = "write it in the file, above the source"
            message = f"{name} describes a single source"
        raise SettingsError(message, hint=hint, location=place)
    value = json.loads(default.value)
    if value is False:
        return _Rule(default.pattern, key, False if key == "persist" else None, place)
    tag = _tag(value, place)
    tag = with_booleans(tag, value) if key in ("op_tags", "k8s") else tag
    try:
        return _Rule(default.pattern, key, KEYS[key].read(tag, key), place)
    except Bad as bad:
        message, hint = f"{name}: {bad.problem.message}", bad.problem.hint
        hint = "write persist = true, or persist = false" if key == "persist" else hint
        raise SettingsError(message, hint=hint, location=place) from bad


def _tag(value: Any, place: Location) -> Tag:
    """Return a value of TOML as annotations have it."""
    if isinstance(value, dict):
        below = cast("dict[str, Any]", value)
        return Tag(place, properties={key: _tag(v, place) for key, v in below.items()})
    if isinstance(value, list):
        return Tag(place, [_tag(element, place) for element in cast("list[Any]", value)])
    return Tag(place, deleted=True) if value is False else Tag(place, value)


def _concerns(key: str, declaration: Declaration) -> bool:
    """Whether a default of a key can have an effect on a source of this kind."""
    annotation = declaration.annotation
    keeps_history = annotation.refresh == "snapshot"
    if declaration.raw is not None:
        return key in ("owner", "tags", "group")
    if key == "persist":  # Malloy's compiler and Python's decorators decide it there
        return declaration.language == SQL
    if not declaration.is_persistent and key in NEEDS_PERSIST:
        return False
    if declaration.temporary and key in NEEDS_TABLE:
        return False
    return {
        "hard_deletes": keeps_history,
        "backfill": annotation.partition is not None,
        "on_change": keeps_history or annotation.is_incremental,
    }.get(key, True)


def _with(declaration: Declaration, rule: _Rule) -> Declaration:
    """Return a declaration as if its annotation had the key of a rule.

    Raises
    ------
    Bad
        The value does not go with the rest of the annotation.
    """
    annotation = declaration.annotation
    fields: dict[str, Any] = {str(KEYS[rule.key].field): rule.value}
    if rule.key == "want":
        fields["partition"] = annotation.partition
        complete_want(fields, {"want": rule.place})
    if fields.get("refresh") == "strict":
        fields |= {"refresh": "incremental", "is_strict": True}
    if rule.value is not False:
        fields["keys"] = (*annotation.keys, (rule.key, rule.place))
    return replace(declaration, annotation=replace(annotation, **fields))
