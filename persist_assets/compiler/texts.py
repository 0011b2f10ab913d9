"""Digests of what users wrote: of each source and of everything beneath it.

The invariant: **equal digests ⇒ Spark is asked for the same rows of the same data.** A digest holds
the tokens of the source's own text and the digests of all that it reads; the values of variables
and the texts of functions, which queries have in their place; the declarations of raw tables; the
settings that can change rows; and the annotations that decide which rows a table has. It holds
nothing that an analysis concludes, so another release of the analysis, of sqlglot or of Malloy's
compiler gives the same digest for the same text. One exception are types that only Malloy is told
of: it writes no cast to a type that a column has. In doubt digests differ, which costs a build.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.python import OUTSIDE, digest_of
from persist_assets.compiler.frontends.sql_functions import Refused, spelled
from persist_assets.compiler.frontends.sql_inlining import Broken
from persist_assets.compiler.frontends.sql_templates import Piece
from persist_assets.compiler.malloy.declarations import SUFFIX
from persist_assets.compiler.plain_texts import plain_malloy, plain_python, plain_sql
from persist_assets.compiler.software import name_software
from persist_assets.core.languages import MALLOY
from persist_assets.core.partitions import spelled_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from persist_assets.compiler.cache import Parsed
    from persist_assets.compiler.frontends.sql_inlining import Definitions
    from persist_assets.compiler.state import Compilation, RawFacts
    from persist_assets.core.model.annotations import Annotation
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Function, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings

_NEW_OPTIONS = ("cursor", "reading")
"""Options of external tables that earlier releases did not have."""

ROWS: Mapping[str, int] = {
    "all": 1,
    "sql": 4,
    "malloy": 3,
    "python": 3,
    "raw": 1,
    "merge": 1,
    "history": 1,
    "partitions": 1,
}
"""The parts of persist that compute rows, each with a number. A release raises the number of a part
if the same text gives other rows now, or if texts that shared a table by mistake have tables of
their own: then tables with other BuildIDs than before are built and not taken over. ``all`` is for
everything at once, such as builds that continue tables."""


class Texts:
    """The digests of the texts of a project's sources, made when the first one is needed.

    Parameters
    ----------
    raws
        The facts about raw tables.
    files
        By path of a Malloy file, the files that it imports: their paths, and digests of the texts
        that were compiled.
    inferred
        By path of a Malloy file, the columns whose types only it was told of.
    read
        Returns the text of a file, None if there is none.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        raws: Mapping[SourceID, RawFacts],
        definitions: Definitions,
        files: Mapping[str, Sequence[tuple[str, str]]],
        inferred: Mapping[str, Sequence[tuple[str, str]]],
        read: Callable[[str], str | None],
    ) -> None:
        self._settings, self._project, self._raws = settings, project, raws
        self._definitions, self._files, self._read = definitions, files, read
        self._inferred = inferred
        self._modules: dict[tuple[tuple[str, str], ...], str] = {}
        self._malloys: dict[str, str] = {}

    def of(self, source_id: SourceID) -> str:
        """Return the digest of a source, 64 hexadecimal digits.

        It is empty if the source has errors, or if a file that it was compiled from has changed.
        """
        return self._digests.get(source_id, "")

    @cached_property
    def _digests(self) -> dict[SourceID, str]:
        settings = sorted(self._settings.connection)
        digests: dict[SourceID, str] = {}
        for source in self._project.sources:  # each after those that it reads
            below, own = [digests.get(b, "") for b in source.bindings], self._own(source)
            if own is None or not all(below):
                continue
            is_stored = (source.persisted, source.temporary)
            shared = (ROWS["all"], settings, is_stored, *_kept_rows(source.annotation))
            digests[source.source_id] = _digest(*shared, *own, below)
        return digests

    def _own(self, source: Source) -> tuple[object, ...] | None:
        """Return a source's own text; None if it is not known any more."""
        if source.raw is not None:
            return self._of_raw(source)
        query = source.query
        assert query is not None
        function = source.function or source.wrapper
        if function is not None:
            return ("python", ROWS["python"], *self._of_function(function))
        if source.language == MALLOY:
            text = self._of_malloy(source.location.path)
            if text is None:
                return None
            return ("malloy", ROWS["malloy"], source.name, text, query.column_names)
        return ("sql", ROWS["sql"], plain_sql(query.text, self._udfs), query.column_names)

    def _of_raw(self, source: Source) -> tuple[object, ...]:
        raw, facts = source.raw, self._raws[source.source_id]
        assert raw is not None
        columns = [(c.name, c.type) for c in facts.columns or ()]
        external = None
        if raw.external is not None:  # options that earlier releases did not have count if set
            pairs = sorted(asdict(raw.external).items())
            external = [(k, v) for k, v in pairs if v or k not in _NEW_OPTIONS]
        if raw.format == OUTSIDE and source.function is not None:
            code = self._of_function(source.function)
            place = (facts.place, facts.options)
            return ("raw", ROWS["raw"], ROWS["python"], *code, place, columns)
        return ("raw", ROWS["raw"], raw.format, facts.place, facts.options, columns, external)

    def _of_function(self, function: Function) -> tuple[object, ...]:
        shown = [(p.name, p.kind, p.positional) for p in function.parameters]
        return (function.path, function.name, shown, self._of_modules(function))

    def _of_modules(self, function: Function) -> str:
        modules = self._modules.get(function.modules)
        if modules is None:
            texts = [(path, plain_python(text)) for path, text in function.modules]
            modules = self._modules[function.modules] = _digest(texts)
        return modules

    @cached_property
    def _udfs(self) -> dict[str, str]:
        """The names of Python functions in queries, each with a name that identifies its text."""
        return {
            udf.registered: f"{udf.name}<{_digest(*self._of_function(udf.function), udf.returns)}>"
            for udf in self._project.udfs
        }

    # --------------------------------------------------------------------------------- Malloy

    def _of_malloy(self, path: str) -> str | None:
        """Return a digest of a Malloy file with all that it imports and names.

        None if an imported file is not the one that was compiled.
        """
        known = self._malloys.get(path)
        if known is None:
            imported = {p: (self._read(p), compiled) for p, compiled in self._files.get(path, ())}
            if any(digest_of(text) != compiled for text, compiled in imported.values()):
                return None
            texts = {p: text or "" for p, (text, _) in imported.items()}
            texts[path] = self._read(path) or ""
            plain = [(p, plain_malloy(text)) for p, text in sorted(texts.items())]
            malloy = self._settings.malloy
            how = [malloy.connection, sorted(malloy.givens), sorted(malloy.virtual)]
            types = [self._inferred[path]] if self._inferred.get(path) else []
            named = self._named(texts.values())
            known = self._malloys[path] = _digest(how, plain, named, *types)
        return known

    def _named(self, texts: Iterable[str]) -> list[object]:
        """Return all functions and variables if texts may name any of them."""
        definitions, lower = self._definitions, "\n".join(texts).lower()
        if not any(name in lower for name in definitions.names):
            return []
        named: list[object] = [sorted(definitions.broken)]
        named += sorted((v.name, v.value) for v in definitions.variables.values())
        for function in definitions.functions.values():
            try:
                parts = definitions.template(function).parts
            except (Refused, Broken):
                continue  # no query that compiles calls it
            text = [p.text if isinstance(p, Piece) else f" ?{p.name} " for p in parts]
            words = plain_sql("".join(text), self._udfs)
            defaults = [spelled(p.default) for p in function.parameters.values() if p.default]
            shown = (function.signature, function.returns, function.columns, defaults)
            named.append((*shown, words))
        return named


def with_texts(
    project: Project,
    settings: Settings,
    compilation: Compilation,
    files: Mapping[str, Parsed],
    read: Callable[[str], str | None],
) -> Project:
    """Return a project that knows the digests of its texts, and the software that compiled it.

    Parameters
    ----------
    files
        The declarations of files, by path.
    read
        Returns the text of a file, None if there is none.
    """
    imports = {
        path: [(p, compiled) for p, compiled in file.reads if p.endswith(SUFFIX)]
        for path, file in files.items()
        if path.endswith(SUFFIX)
    }
    inferred = {path: files[path].inferred for path in imports}
    definitions = compilation.definitions
    texts = Texts(settings, project, compilation.raws, definitions, imports, inferred, read)
    return replace(project, text_of=texts.of, software=name_software())


def _kept_rows(annotation: Annotation) -> tuple[object, ...]:
    """Return the annotations that decide which rows of its query a table has."""
    merge, partition, validity = annotation.merge, annotation.partition, annotation.validity
    parts: list[object] = [annotation.time_column, annotation.assume, annotation.by]
    parts.append(annotation.trusted_lookback_s)
    if merge is not None:
        parts.append(("merge", ROWS["merge"], merge.key, merge.on_tie))
    if partition is not None:
        parts.append(("partitions", ROWS["partitions"], spelled_bounds(partition)))
    if validity is not None:
        how = (validity.key, validity.watch, validity.hard_deletes)
        parts.append(("history", ROWS["history"], *how))
    return tuple(parts)


def _digest(*parts: object) -> str:
    """Return the digest of texts, numbers and sequences of them.

    Not `core.digests.digest`: these digests do not depend on the version of BuildIDs.
    """
    return sha256(ascii(_plain(parts)).encode()).hexdigest()


def _plain(value: object) -> object:
    """Return a value without enumerations and the like, whose spelling a release may change."""
    if isinstance(value, list | tuple):
        return tuple(_plain(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
    if value is None or type(value) in (str, int, bool, float):
        return value
    return str(value)
