"""Notes of `persist check`: ignored files, settings without effect, checks that no build runs."""

from __future__ import annotations

import ast
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from persist_assets.compiler.files import is_source
from persist_assets.compiler.frontends.sql_functions import DEFINES
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.core.errors import Location, PersistError, Problem, did_you_mean
from persist_assets.core.wants import matcher
from persist_assets.planning.selection import select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings


def remarks_on(settings: Settings, project: Project) -> Iterator[Problem]:
    """Yield all remarks. The sources directory is walked once."""
    files = list_files(settings)
    yield from ignored_files(settings, files)
    yield from empty_files(settings, project, files)
    yield from missing_modules(settings, project)
    yield from useless_defaults(settings, project, files)
    yield from useless_selectors(settings, project)
    yield from unread_checks(project)


def unread_checks(project: Project) -> Iterator[Problem]:
    """Yield warnings of checks that no build runs: nothing that is persisted reads their source."""
    if project.errors:  # what could not be compiled may read it
        return
    read_by_builds = project.reach(
        (b for s in project.persisted for b in s.bindings), lambda s: s.is_leaf
    )
    read_ids = {s.source_id for s in read_by_builds}
    for source in project.sources:
        if source.checks and not source.is_leaf and source.source_id not in read_ids:
            message = (
                f"no build runs the checks of `{source.name}`: "
                "it is not persisted, and no persisted source reads it"
            )
            hint = f"run them with `persist check --data {source.name}`, or persist it"
            place = source.checks[0].location or source.location
            yield Problem("unread-checks", message, place, hint, "warning")


def useless_selectors(settings: Settings, project: Project) -> Iterator[Problem]:
    """Yield warnings of saved selections that cannot be used."""
    if project.errors:  # a selection may name what could not be compiled
        return
    problems: dict[Problem, None] = {}  # an error of one is also of those that name it
    for selector in settings.selectors:
        for pattern in (f'selector:"{selector.name}"', *selector.patterns):
            try:
                select(project, [pattern], selectors=settings.selectors)
            except PersistError as error:
                place = error.location or selector.location
                problems[Problem("selector", error.message, place, error.hint, "warning")] = None
                break  # the errors of its parts are the same
    yield from problems


def list_files(settings: Settings) -> list[Path]:
    """Return all files in the sources directory, sorted."""
    directory = settings.root / settings.sources
    return sorted(path for path in directory.rglob("*") if path.is_file())


def useless_defaults(
    settings: Settings, project: Project, files: Iterable[Path]
) -> Iterator[Problem]:
    """Yield warnings of defaults that match no file, or that change no source.

    Parameters
    ----------
    files
        As `list_files` returns them.
    """
    directory = settings.root / settings.sources
    below = [p.relative_to(directory) for p in files]
    paths = [p.as_posix() for p in below if is_source(p)]
    missing: set[str] = set()
    matching_paths = [{*filter(matcher(d.pattern), paths)} for d in settings.defaults]
    for n, default in enumerate(settings.defaults):
        pattern, key, place = default.pattern, default.key, default.location
        fits = matcher(pattern)
        later = [
            (d.pattern, matching_paths[n] & its_paths)
            for d, its_paths in zip(
                settings.defaults[n + 1 :], matching_paths[n + 1 :], strict=True
            )
            if d.key == key
        ]
        if not matching_paths[n]:
            if pattern not in missing:
                message = f'`[defaults."{pattern}"]` matches no file of sources'
                hint = _pattern_hint(pattern, settings.sources, paths)
                yield Problem("defaults", message, place, hint, "warning")
            missing.add(pattern)
            continue
        if matching_paths[n] == {path for _, its_paths in later for path in its_paths}:
            deciding = next(p for p, its_paths in reversed(later) if its_paths)
            message = f'`[defaults."{pattern}"] {key}` has no effect'
            hint = f'[defaults."{deciding}"] below it decides: write general patterns first'
            yield Problem("defaults", message, place, hint, "warning")
            continue
        matching = [
            source.annotation
            for source in project.sources
            if fits(source.location.path.removeprefix(f"{settings.sources}/"))
        ]
        is_set = any(key in (*dict(a.keys), *a.removed) for a in matching)
        if not (is_set or default.value == "false" or project.errors):
            message = f'`[defaults."{pattern}"] {key}` has no effect'
            hint = f"no source that it matches {_NEEDED.get(key, 'is persisted')}"
            yield Problem("defaults", message, place, hint, "warning")


_NEEDED = {
    "persist": "is a view in SQL; Malloy and Python say `persist` in the file",
    "backfill": "has partitions",
    "hard_deletes": "has refresh=snapshot",
    "on_change": "has refresh=incremental, strict or snapshot",
}
"""The condition for a source to follow a default; for all other keys, it is persisted."""


def _pattern_hint(pattern: str, sources: str, paths: Iterable[str]) -> str:
    """Return a hint for a pattern that matches nothing."""
    above = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}
    plain = pattern.removeprefix(f"{sources}/").rstrip("/*")
    if plain in above:
        return f'write "{plain}/**": patterns are paths below {sources}, with * and **'
    similar = did_you_mean(pattern, {f"{directory}/**" for directory in above})
    return similar or f"patterns are paths of files below {sources}, with * and **"


def ignored_files(settings: Settings, files: Iterable[Path]) -> Iterator[Problem]:
    """Yield notes on files in the sources directory that are not read, one for each suffix.

    Parameters
    ----------
    files
        As `list_files` returns them.
    """
    known = (*FRONTENDS, MALLOY)
    by_reason: dict[tuple[str, str | None], list[str]] = {}
    directory = settings.root / settings.sources
    for path in files:
        below = path.relative_to(directory)
        if is_source(below):
            continue
        if any(part.startswith((".", "__")) for part in below.parts):
            continue
        ending = f"ends in {path.suffix}" if path.suffix else "has no suffix"
        reason: tuple[str, str | None] = (ending, None)
        if any(part.startswith("_") for part in below.parts):
            if path.suffix == ".py":
                continue  # a module that sources import
            reason = ("begins with _, or its directory does", "rename it if it has sources")
        elif path.suffix.lower() in known:
            reason = (f"ends in {path.suffix}", f"rename it to {path.stem}{path.suffix.lower()}")
        by_reason.setdefault(reason, []).append(path.relative_to(settings.root).as_posix())
    for (why, hint), paths in by_reason.items():
        others = f", and so {'is' if len(paths) == 2 else 'are'} {len(paths) - 1} more"
        message = f"this file is ignored{others if len(paths) > 1 else ''}: its name {why}"
        yield Problem("ignored-file", message, Location(paths[0]), hint, "note")


def empty_files(settings: Settings, project: Project, files: Iterable[Path]) -> Iterator[Problem]:
    """Yield notes on files of SQL and Python that define no source.

    Modules that other files import are left out, and files with functions or variables.

    Parameters
    ----------
    files
        As `list_files` returns them.
    """
    directory = settings.root / settings.sources
    files = [p for p in files if is_source(p.relative_to(directory)) and not p.is_symlink()]
    defining = {s.location.path for s in (*project.sources, *project.broken)}
    defining |= {udf.location.path for udf in project.udfs}
    defining |= {problem.location.path for problem in project.errors}
    imported = {
        name.rpartition(".")[2]
        for p in files
        if p.suffix == ".py"
        for name in _IMPORTED.findall(p.read_text(errors="replace"))
    }
    for path in files:
        relative = path.relative_to(settings.root).as_posix()
        if path.suffix == ".sql" and DEFINES.search(path.read_text(errors="replace")):
            continue
        if relative not in defining and path.stem not in imported and path.suffix != MALLOY:
            is_python = path.suffix == ".py"
            hint = "decorate a function with @table of persist_assets" if is_python else None
            message = "this file defines no source"
            yield Problem("empty-file", message, Location(relative), hint, "note")


_IMPORTED = re.compile(r"^\s*(?:from|import)\s+\.*([\w.]+)", re.M)


def missing_modules(settings: Settings, project: Project) -> Iterator[Problem]:
    """Yield warnings about modules that files of sources import and that are not installed here."""
    paths = dict.fromkeys(s.location.path for s in project.sources if s.function is not None)
    for path in paths:
        file = settings.root / path
        with suppress(OSError, SyntaxError, ValueError):
            for node in ast.parse(file.read_bytes()).body:
                for name in _imported(node):
                    is_own = any(
                        (directory / suffixed).exists()
                        for directory in (settings.root, *file.parents)
                        if directory.is_relative_to(settings.root)
                        for suffixed in (name, f"{name}.py")
                    )
                    if is_own or name in sys.stdlib_module_names or find_spec(name) is not None:
                        continue
                    place = Location(path, node.lineno, node.col_offset + 1)
                    message = f"the module `{name}` is not installed here"
                    hint = "install it where builds run"
                    yield Problem("missing-module", message, place, hint, "warning")


def _imported(node: ast.stmt) -> list[str]:
    """Return the outermost modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
