"""The resolution of names in queries, and the keys of sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from unicodedata import normalize

from persist_assets.compiler.malloy.declarations import SUFFIX
from persist_assets.core.contracts import alike
from persist_assets.core.errors import (
    Location,
    Problem,
    did_you_mean,
)
from persist_assets.core.languages import MALLOY, SQL
from persist_assets.core.model.project import may_mean
from persist_assets.core.model.sources import FILE_FORMATS, Declaration
from persist_assets.core.settings.keys import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Iterable,
        Sequence,
    )

    from persist_assets.core.model.queries import Parameter, Query, Reference, SourceID
    from persist_assets.core.model.sources import Source


def source_id(declaration: Declaration) -> SourceID:
    """Return the SourceID of a declaration: ``name@path``."""
    return f"{declaration.name}@{declaration.location.path}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The rules for asset keys.

    Attributes
    ----------
    sources_dir
        The directory at which they start, relative to the project root.
    prefix
        The first parts of each key.
    layout
        One of `LAYOUTS`.
    """

    sources_dir: str
    prefix: tuple[str, ...] = ()
    layout: str = LAYOUTS[0]

    def of(self, declaration: Declaration) -> tuple[str, ...]:
        """Return the asset key of a declaration.

        It depends on its path and its name only: other sources that come into the file change no
        key. So two sources of one file never have the same one.
        """
        above = self.of_file(declaration.location.path)
        if self.layout == "model-per-file" and _same(above[-1], declaration.name):
            above = above[:-1]
        return (*above, declaration.name)

    def full(self, declaration: Declaration) -> tuple[str, ...]:
        """Return the key of a declaration with both its file and its name."""
        return (*self.of_file(declaration.location.path), declaration.name)

    def of_file(self, path: str) -> tuple[str, ...]:
        """Return the beginning of the full keys of a file's sources."""
        relative = PurePosixPath(path).relative_to(self.sources_dir)
        return (*self.prefix, *relative.with_suffix("").parts)

    def of_unread(self, paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Return all possible beginnings of the keys of sources in unreadable files."""
        keys = [self.of_file(path) for path in paths]
        if self.layout == "model-per-file":
            keys += [key[:-1] for key in keys]
        return tuple(dict.fromkeys(keys))


def _same(a: str, b: str) -> bool:
    """Whether two parts of keys are one for stores that ignore case or normalize accents."""
    return normalize("NFC", a).lower() == normalize("NFC", b).lower()


class Names:
    """The sources of a project by the last part of their asset keys, and of their full keys."""

    def __init__(
        self,
        keys: Iterable[tuple[tuple[str, ...], SourceID]],
        guessed: Collection[SourceID] = (),
        unread: Collection[tuple[str, ...]] = (),
    ) -> None:
        self.by_name: dict[str, list[tuple[tuple[str, ...], SourceID]]] = {}
        self.guessed, self.unread = guessed, unread
        self.source_ids: set[SourceID] = set()
        for key, source_id in keys:
            if not key:
                continue
            self.by_name.setdefault(key[-1].lower(), []).append((key, source_id))
            self.source_ids.add(source_id)

    def resolve(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> SourceID | Problem:
        """Return the SourceID that a reference in the file `path` means, or the problem with it.

        Sources of the same file come first. A table in Malloy means a source of another language,
        if there is one. A SourceID means itself.
        """
        fits = self.find(reference, path, language)
        if len(fits) == 1:
            return fits[0][1]
        if _is_source_id(reference):
            return self._unknown_id(reference.parts[0], reference.location)
        parts = tuple(part.lower() for part in reference.parts)
        written = ".".join(reference.parts)
        if fits:
            names = ", ".join(".".join(key) for key, _ in fits)
            message = f"`{written}` is ambiguous: {names}"
            whole = next((s for key, s in fits if len(key) <= len(parts)), None)
            hint = f"qualify the name, or write `{whole}`" if whole else "qualify the name"
            return Problem("ambiguous-name", message, reference.location, hint)
        hint = did_you_mean(
            reference.parts[-1], {k[-1] for many in self.by_name.values() for k, _ in many}
        )
        if len(reference.parts) == 2 and parts[0] in ("delta", *FILE_FORMATS):
            hint = f"declare it: CREATE TABLE … USING {parts[0]} LOCATION '{reference.parts[1]}'"
        elif hint is None:
            hint = "declare external data with CREATE TABLE … USING … LOCATION"
        message = f"unknown source `{written}`"
        return Problem("unknown-name", message, reference.location, hint)

    def find(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> list[tuple[tuple[str, ...], SourceID]]:
        """Return the possible meanings of a reference: asset keys, or itself, and SourceIDs.

        Guesses do not count if something else has the name; see `others`.
        """
        every = self._fitting(reference, path, language)
        return [(k, s) for k, s in every if s not in self.guessed] or every

    def others(
        self, reference: Reference, path: str | None, language: str | None = None
    ) -> tuple[SourceID, ...] | None:
        """Return the name of another possible meaning of a reference; None: there is none."""
        if not (self.guessed or self.unread) or _is_source_id(reference):
            return None
        path, language = _written_in(reference, path, language)
        every = [s for _, s in self._fitting(reference, path, language)]
        above = reference.parts[:-1]
        is_own = not above and any(s.partition("@")[2] == path for s in every)
        elsewhere = not is_own and any(may_mean(key, above) for key in self.unread)
        return tuple(every) if len(every) > 1 or elsewhere else None

    def _fitting(
        self, reference: Reference, path: str | None, language: str | None
    ) -> list[tuple[tuple[str, ...], SourceID]]:
        if _is_source_id(reference):
            written = reference.parts[0]
            return [((written,), written)] if written in self.source_ids else []
        path, language = _written_in(reference, path, language)
        parts = tuple(part.lower() for part in reference.parts)
        named = self.by_name.get(parts[-1], [])
        keys = {s: k for k, s in reversed(named) if may_mean(k, parts)}
        fits = [(k, s) for s, k in reversed(keys.items())]
        if language == MALLOY:
            fits = [(k, s) for k, s in fits if not s.endswith(SUFFIX)] or fits
        elif len(parts) == 1:
            in_same_file = [(k, s) for k, s in fits if s.partition("@")[2] == path]
            fits = in_same_file or fits
        return fits

    def _unknown_id(self, written: SourceID, place: Location) -> Problem:
        path = written.rpartition("@")[2]
        hint = did_you_mean(written, self.source_ids)
        if path.endswith(SUFFIX) and not any(k.endswith(f"@{path}") for k in self.source_ids):
            hint = f"move {path} into the sources directory"
        message = f"unknown source `{written}`"
        return Problem("unknown-name", message, place, hint)


def _written_in(
    reference: Reference, path: str | None, language: str | None
) -> tuple[str | None, str | None]:
    """Return the file and the language of a reference: those of a function that is inlined."""
    written = reference.location.path
    return (written, SQL) if written.endswith(".sql") else (path, language)


def unclear_parameters(
    query: Query, columns: Sequence[tuple[str, Collection[str] | None]]
) -> list[Problem]:
    """Return the problems of names that mean a parameter of a table function, or a column.

    Parameters
    ----------
    columns
        For each reference, the name of the source, and its columns in lower case; None: they are
        unknown until it is computed.
    """
    problems: list[Problem] = []
    for parameter in query.parameters:
        for reference, (source, names) in zip(query.references, columns, strict=True):
            if not parameter.may_read(reference):
                continue
            message = f"`{parameter.name}` means a parameter here, or a column of `{source}`"
            hint = f"for the parameter, write {parameter.written}"
            if names is None:
                message += ", whose columns are unknown until it is computed"
                hint = f"read a view that names its columns: SELECT a, b FROM {source}"
            elif parameter.name not in names:
                continue
            elif parameter.name == parameter.written.split(".")[0].lower():
                hint = "rename the function"
            problems.append(Problem("function", message, parameter.location, hint))
            break
    return problems


def variable_hint(problem: Problem, variables: Collection[str]) -> str | None:
    """Return the hint of a problem; a special one if an unknown column has a variable's name."""
    name = problem.message.split("`")[1] if problem.message.startswith("`") else ""
    if problem.code == "unknown-column" and name.lower() in variables:
        return f"for the variable, write session.{name}"
    return problem.hint


def _is_source_id(reference: Reference) -> bool:
    return len(reference.parts) == 1 and "@" in reference.parts[0]


def wrong_hint(parameter: Parameter, source: Source | None) -> list[Problem]:
    """Return the problems of a parameter that names other columns than its source has.

    Types that are known only once they are computed are compared then.
    """
    columns = source.known_columns if source is not None else ()
    kinds = {c.name.lower(): c.type for c in columns}
    if source is None or not kinds:
        return []
    problems: list[Problem] = []
    for name, kind in parameter.hint:
        now = kinds.get(name.lower(), "")
        if now and not alike(now, kind):
            message = f"`{name}` of `{source.name}` is {now}, and annotated as {kind}"
            problems.append(Problem("annotation-type", message, parameter.location))
        elif now == "":
            message = f"`{source.name}` has no column `{name}`"
            hint = did_you_mean(name, [c.name for c in columns])
            problems.append(Problem("annotation-type", message, parameter.location, hint))
    return problems
