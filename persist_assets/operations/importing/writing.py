"""Drafts → the files of a new project, of which all that can be compiled is carried.

drafts ─► compile ─► an error at a check: the check becomes a source of failing rows
            │        an error elsewhere: the source is not carried, nor what reads it
            └── until there are none ─► files
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.compiler.load import compile_files
from persist_assets.core.errors import NotFoundError, SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.importing.drafts import Draft, NotCarried, Origin, text_of
from persist_assets.operations.starting import (
    PROJECT_FILES,
    template,
    write_files,
    written_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from persist_assets.core.errors import Problem
    from persist_assets.core.settings.values import Settings
    from persist_assets.operations.importing.drafts import Drafts, Rule

_TESTS = "sources/tests"
"""The directory of sources whose rows are failures."""


@dataclass(frozen=True, slots=True)
class Carried:
    """An object of the new project, its file, and notes about it."""

    origin: Origin
    path: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToFillIn:
    """A raw table that the user has to complete."""

    name: str
    path: str
    line: int
    missing: str


@dataclass
class Imported:
    """The outcome of an import."""

    carried: list[Carried] = field(default_factory=list)
    not_carried: list[NotCarried] = field(default_factory=list)
    to_fill_in: list[ToFillIn] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def check_target(directory: Path) -> None:
    """Refuse a directory that has anything in it.

    Raises
    ------
    SettingsError
        It exists and is not empty, or is a file.
    """
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if directory.exists():
        message = f"{directory} exists and is not empty"
        raise SettingsError(message, hint="name a new directory: nothing is overwritten")


def write(drafts: Drafts, directory: Path) -> Imported:
    """Write a project into a new directory, and return what it carries.

    Raises
    ------
    SettingsError
        The directory is not empty.
    NotFoundError
        Nothing can be carried.
    """
    check_target(directory)
    settings = load_settings(directory, environ={})
    while _mend(drafts, settings):
        pass
    if not drafts.sources:
        message = f"nothing in the {drafts.tool} project can be imported"
        first = (
            f": {drafts.not_carried[0].origin.path}: {drafts.not_carried[0].reason}"
            if drafts.not_carried
            else ""
        )
        raise NotFoundError(message + first, hint="name the directory of the project")
    imported = Imported(not_carried=drafts.not_carried)
    files: dict[str, bytes] = {path: template(path) for path in PROJECT_FILES}
    for name, draft in sorted(drafts.sources.items()):
        text, by_line, _ = text_of(draft)
        files[draft.path] = text.encode()
        imported.carried.append(Carried(draft.origin, draft.path, tuple(draft.notes)))
        for rule in (rule for rules in by_line.values() for rule in rules):
            imported.carried.append(Carried(rule.origin, draft.path, rule.notes))
        if name in drafts.to_fill_in:
            line = text[: text.index("CREATE TABLE")].count("\n") + 1
            imported.to_fill_in.append(ToFillIn(name, draft.path, line, drafts.to_fill_in[name]))
    files |= drafts.copies
    files |= _tests(drafts, imported)
    imported.carried = [*dict.fromkeys(imported.carried)]  # one audit may be several checks
    write_files(directory, files)
    imported.files = [*files]
    return imported


def _tests(drafts: Drafts, imported: Imported) -> dict[str, bytes]:
    """Return the files of tests."""
    import yaml

    by_path: dict[str, dict[str, Any]] = {}
    for case in drafts.cases:
        if case.source in drafts.sources:
            by_path.setdefault(case.path, {})[case.origin.name] = dict(case.body)
            imported.carried.append(Carried(case.origin, case.path))
        else:
            imported.not_carried.append(NotCarried(case.origin, f"`{case.source}` is not imported"))
    return {
        path: yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100).encode()
        for path, body in by_path.items()
    }


# ---------------------------------------------------------------------------------- what compiles


def _mend(drafts: Drafts, settings: Settings) -> bool:
    """Compile the drafts, and change or remove what has errors; return whether anything had."""
    contents: dict[str, bytes] = {}
    rules_by_place: dict[tuple[str, int], Sequence[Rule]] = {}
    homeless: list[tuple[Draft, Rule]] = []
    for draft in drafts.sources.values():
        text, by_line, without = text_of(draft)
        contents[draft.path] = text.encode()
        rules_by_place |= {(draft.path, line): rules for line, rules in by_line.items()}
        homeless += [(draft, rule) for rule in without]
    if homeless:
        for draft, rule in homeless:
            _apart(drafts, draft, rule)
        return True
    if not contents:
        return False
    project = compile_files(settings, dict(sorted(contents.items())), _unreadable)
    by_path = {draft.path: draft for draft in drafts.sources.values()}
    has_changed = False
    for problem in project.errors:
        place = problem.location.path, problem.location.line
        draft = by_path.get(problem.location.path)
        if draft is None or draft.name not in drafts.sources:
            continue
        if draft.is_raw and problem.code == "raw-columns":
            drafts.to_fill_in.setdefault(
                draft.name, "LOCATION, and columns if the data is not Delta"
            )
        elif place in rules_by_place:
            for rule in rules_by_place[place]:
                if rule in draft.rules:
                    _apart(drafts, draft, rule)
                    has_changed = True
        else:
            _remove(drafts, draft, problem)
            has_changed = True
    return has_changed


def _unreadable(path: str) -> str:
    raise FileNotFoundError(path)


def _apart(drafts: Drafts, draft: Draft, rule: Rule) -> None:
    """Create a source of failing rows for a check that its source cannot have."""
    draft.rules.remove(rule)
    add_failing(
        drafts,
        rule.origin,
        rule.failing.replace("{table}", written_name(draft.name)),
        frozenset({draft.name}),
        only_warns=rule.only_warns,
        keeps_failures=rule.keeps_failures,
        notes=rule.notes,
    )


def add_failing(
    drafts: Drafts,
    origin: Origin,
    sql: str,
    reads: frozenset[str],
    *,
    only_warns: bool,
    keeps_failures: bool = False,
    notes: Sequence[str] = (),
) -> Draft:
    """Add a source whose rows are failures, with the check that it has none; return its draft.

    Its table stores failing rows if a failure only warns; otherwise it is not published.
    """
    name = free_name(origin.name, drafts.sources)
    severity = " severity=warn" if only_warns else ""
    if keeps_failures and not only_warns:
        place = Origin("store_failures", origin.name, origin.path, origin.line)
        reason = "a source of failing rows is not published while it has any"
        drafts.skip(place, reason, "severity=warn publishes it")
    drafts.sources[name] = Draft(
        origin,
        name,
        f"{_TESTS}/{name}.sql",
        sql,
        is_persisted=True,
        keys=[f"check {{ row_count {{ max=0{severity} }} }}"],
        description="Rows that fail a test.",
        reads=reads,
        notes=["a source of failing rows, built after its inputs", *notes],
    )
    return drafts.sources[name]


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that no source has yet."""
    lowered = {other.lower() for other in taken}
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "test"
    candidates = (plain, *(f"{plain}_{n}" for n in range(2, len(taken) + 3)))
    return next(c for c in candidates if c.lower() not in lowered)


def _remove(drafts: Drafts, draft: Draft, problem: Problem) -> None:
    """Remove a source with an error, and all that read it."""
    del drafts.sources[draft.name]
    message = _in_one_line(problem.message)
    drafts.not_carried.append(NotCarried(draft.origin, f"in Spark: {message}", problem.hint))
    drafts.not_carried += [
        NotCarried(r.origin, f"`{draft.name}` is not imported") for r in draft.rules
    ]
    without_readers(drafts, draft.name)


def _in_one_line(message: str) -> str:
    """Return the first line of a message, with the list that it introduces."""
    first, *rest = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {'; '.join(rest)}" if first.endswith(":") and rest else first


def without_readers(drafts: Drafts, name: str) -> None:
    """Remove all sources that read one that is not imported."""
    for reader in [d for d in drafts.sources.values() if name in d.reads]:
        if drafts.sources.pop(reader.name, None) is None:
            continue
        reason = f"it reads `{name}`, which is not imported"
        drafts.not_carried.append(NotCarried(reader.origin, reason))
        drafts.not_carried += [
            NotCarried(r.origin, f"`{reader.name}` is not imported") for r in reader.rules
        ]
        without_readers(drafts, reader.name)
