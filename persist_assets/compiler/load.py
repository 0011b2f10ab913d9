"""The files of a project → a compiled `Project`: the edge where sources are read from disk."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from persist_assets.analysis.pushdown.needs import needed
from persist_assets.compiler.cache import (
    Cache,
    Parsed,
    cache_file,
    load_cache,
    parsed,
    save_cache,
    save_names,
)
from persist_assets.compiler.compile import compile_project, nothing_collected, resolve_query
from persist_assets.compiler.defaults import Defaults
from persist_assets.compiler.definitions import find_definitions, reparser
from persist_assets.compiler.editing import Editing
from persist_assets.compiler.files import decode, names_in_bytes
from persist_assets.compiler.frontends.python import OUTSIDE, digest_of
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.compiler.malloy.project import UNKNOWN_UPSTREAM, Models
from persist_assets.compiler.names import Keys, source_id, unclear_parameters
from persist_assets.compiler.programs import with_programs, without_merging
from persist_assets.compiler.registry import FRONTENDS, NAMES
from persist_assets.compiler.state import Focus, Memory, RawFacts, as_broken
from persist_assets.compiler.texts import with_texts
from persist_assets.core.digests import digest, digest_connection
from persist_assets.core.errors import (
    Location,
    PersistError,
    Problem,
    SettingsError,
    SourcesError,
    StorageError,
    UntrustedError,
    did_you_mean,
    in_order,
    unexpected,
)
from persist_assets.core.model.sources import FILE_FORMATS
from persist_assets.core.object_stores import ICEBERG_SCHEMES, unknown_scheme
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.places import place_in
from persist_assets.core.settings.spark import has_usual_types, is_harmless
from persist_assets.core.tracing import spanned
from persist_assets.core.wants import warn_unknown_graphs
from persist_assets.storage.files import know_stores
from persist_assets.storage.raw import public_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from persist_assets.compiler.frontends.module_text import Find
    from persist_assets.compiler.state import Compilation
    from persist_assets.core.model.project import Needed, Project
    from persist_assets.core.model.queries import BuildID, Query, SourceID
    from persist_assets.core.model.sources import Declaration, Source
    from persist_assets.core.settings.values import Settings

    Progress = Callable[[int, int], None]

T = TypeVar("T")


def load_project(settings: Settings) -> Project:
    """Read and compile all sources of a project; errors become its problems.

    This needs no JVM: undeclared columns of raw tables come from the metadata of their data.

    Raises
    ------
    SettingsError
        There is no sources directory, it is empty, or Malloy's compiler is missing.
    """
    return load(settings).project


def find_former_build_ids(
    settings: Settings, current: Collection[BuildID], manifest: Collection[BuildID]
) -> Problem | None:
    """Return a warning if the tables of an environment have BuildIDs with harmless settings.

    Parameters
    ----------
    current
        The BuildIDs of the persisted sources. If any of them has a table, the project uses its
        present BuildIDs, and there is nothing to warn of.
    manifest
        The BuildIDs that have a table in the environment.
    """
    counted = settings.formerly_counted
    if not counted or not manifest or not current or any(b in manifest for b in current):
        return None
    declared = tuple((k, v) for k, v in counted if not is_harmless(k))
    older = tuple(pair for pair in counted if pair not in declared)
    for pairs in dict.fromkeys((counted, older, declared, *((pair,) for pair in declared))):
        fixed = tuple(sorted((*settings.build_ids, *pairs)))
        former = load_project(replace(settings, build_ids=fixed))
        n = sum(source.build_id in manifest for source in former.persisted)
        if pairs and n:
            lines = (f"{json.dumps(k)} = {json.dumps(v)}" for k, v in fixed)
            return Problem(
                "former-build-ids",
                f"BuildIDs no longer include settings that cannot change rows, so a build in "
                f"`{settings.environment}` would rebuild {n} table{'s' * (n != 1)} needlessly",
                Location(SETTINGS_FILE),
                hint="to keep the tables, add to persist.toml:\n"
                + "\n".join(f"      {line}" for line in ("[spark.build_ids]", *lines)),
                severity="warning",
            )
    return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A compiled project, with everything that ad-hoc queries over it need."""

    project: Project
    compilation: Compilation
    models: Models
    definitions: Definitions = NO_DEFINITIONS
    n_new: int = 0  # queries that were not in the cache before, and now are

    def query(self, path: str, *, name: str | None = None, text: str | None = None) -> Query:
        """Return a query over one of the project's Malloy files.

        Parameters
        ----------
        path
            The path of the file, relative to the project root.
        name, text
            The name of a query in the file, or a text (``run: …``) that is not in it.

        Raises
        ------
        SourcesError
            The file, or one that it imports, has errors, or the query does not compile.
        SettingsError
            Malloy's compiler is missing.
        """
        file = self.models.files.get(path)
        paths = {path, *(p for p, _ in file.reads)} if file is not None else {path}
        wrong = [p for p in self.project.errors if p.location.path in paths]
        if wrong:  # and it may be wrong because of what it reads, in another file
            raise SourcesError([*wrong, *(p for p in self.project.errors if p not in wrong)])
        try:
            return self.models.query(self.compilation, path, name, text)
        except SourcesError as error:  # it may read what is broken elsewhere
            raise SourcesError([*error.problems, *self.project.errors]) from error

    def parse(self, text: str) -> Query:
        """Return a query in SQL that is in no file of the project.

        Raises
        ------
        SourcesError
            It is not a single query, or it has errors.
        """
        query = parse_query(text, None, self.definitions)
        if not (query.variables or query.parameters):
            return query
        reads = [self.project.by_id[s] for s in self.bind(query)]
        known = [(s.name, {c.name.lower() for c in s.columns} or None) for s in reads]
        if wrong := unclear_parameters(query, known):
            raise SourcesError(wrong)
        columns = {name for _, names in known for name in names or ()}
        # In Spark, columns come before variables.
        return parse_query(text, None, self.definitions.without(columns))

    def bind(self, query: Query, language: str | None = None) -> tuple[SourceID, ...]:
        """Return the SourceIDs of the references in a query that is in no file of the project.

        Parameters
        ----------
        language
            The language of its author.

        Raises
        ------
        SourcesError
            Some references cannot be resolved, or mean broken sources, whose errors it contains.
        """
        try:
            bindings = resolve_query(self.project, query, language)
        except SourcesError as error:  # a file that cannot be read may have what is missing
            raise SourcesError([*error.problems, *self.project.errors]) from error
        self.require(bindings)
        return bindings

    def require(self, sources: Iterable[SourceID]) -> None:
        """Return if sources and everything upstream are free of errors.

        Raises
        ------
        SourcesError
            They are not; it contains the errors of their files.
        """
        right = sound(self.project).by_id
        if all(s in right for s in sources):
            return
        reads = {b.source_id: (b.reads, b.location.path) for b in self.project.broken}
        reads |= {
            s.source_id: ((*s.bindings, *s.compared), s.location.path) for s in self.project.sources
        }
        todo = [s for s in sources if s not in right]
        reached: dict[SourceID, str] = {}
        while todo:
            source = todo.pop()
            if source not in reached and source in reads:
                above, reached[source] = reads[source]
                todo += above
        paths = set(reached.values())
        wrong = [p for p in self.project.errors if p.location.path in paths]
        raise SourcesError(wrong or self.project.errors)

    def needs_of(self, query: Query, bindings: Sequence[SourceID]) -> tuple[Needed, ...]:
        """Return the needs of a query that is in no file from external tables.

        Parameters
        ----------
        bindings
            The SourceIDs of its references; see `resolve_query`.
        """
        externals = self.compilation.externals
        reached = self.project.reach(bindings, lambda s: s.persisted)
        if externals.isdisjoint(s.source_id for s in reached):
            return ()
        return tuple(map(needed, self.compilation.needs_of(query, bindings, externals)))


@spanned("compile")
def load(
    settings: Settings, progress: Progress | None = None, editing: Editing | None = None
) -> Loaded:
    """Return a project with everything that ad-hoc queries need; see `load_project`.

    Parameters
    ----------
    progress
        Called before a Malloy file is compiled, with the numbers of compiled files and of all.
    editing
        The texts of an editor, which count instead of the files, and results to reuse.
    """
    directory = settings.root / settings.sources
    if not directory.is_dir():
        raise SettingsError(
            f"there is no directory {directory}",
            hint='create it for your sources, or set another one in persist.toml: sources = "…"',
        )
    problems: list[Problem] = []
    editing = editing or Editing()
    contents, unread = editing.read_sources(settings.root, directory, problems)
    read = editing.reading(settings.read_text)
    if not contents and not unread:
        raise SettingsError(
            f"{directory} contains no sources",
            hint=f"add files ending in {', '.join((*FRONTENDS, MALLOY))}",
        )
    remember = editing.cache is None  # an editor's first time, too
    return _compile(
        settings,
        contents,
        problems,
        read,
        progress,
        unread=unread,
        remember=remember,
        editing=editing,
    )


def compile_files(
    settings: Settings, contents: Mapping[str, bytes], read: Callable[[str], str]
) -> Project:
    """Compile files from memory.

    Parameters
    ----------
    contents
        The contents by path relative to the project root, in order.
    read
        Returns the text of another file that they import, by path.
    """
    return _compile(settings, contents, [], read, remember=False, editing=Editing()).project


def _compile(
    settings: Settings,
    contents: Mapping[str, bytes],
    problems: list[Problem],
    read: Callable[[str], str],
    progress: Progress | None = None,
    *,
    unread: Collection[str] = (),
    remember: bool,
    editing: Editing,
) -> Loaded:
    """Compile files, using the cache.

    Parameters
    ----------
    problems
        The problems of other files; they become the project's.
    unread
        The paths of unreadable files.
    remember
        Replace the content of the cache by the results.
    editing
        The state of an editor.
    """
    know_stores(settings.stores, settings.patience)
    connection, defaults = digest_connection(settings.connection), Defaults(settings)
    place = _cache_file(settings, connection)
    with nothing_collected():
        cached = editing.cache or load_cache(place)
        texts: dict[str, str] = {}
        find = _finder(texts, contents, read)
        known = find_definitions(settings, contents, find, problems)
        files, declarations = _parse_files(contents, texts, cached.files, find, problems, known)
        declarations, unplaced = _placed(settings, declarations, unread)
        raws = _raw_facts(settings, declarations, problems, unplaced, editing)
        models = _models(settings, texts, read, progress)
        malloys, models.definitions = models.texts, known.qualified()
        meanings = cached.meanings

        def compile_with(
            malloy_files: Sequence[Parsed], former: Compilation | None = None
        ) -> Compilation:
            nonlocal meanings
            memory = Memory(meanings, parse=reparser(texts, find, known, models))
            editing.keep(files, memory.used)
            declared, wrong = defaults.apply(declarations, problems, malloy_files)
            compilation = compile_project(
                declared,
                keys=_keys(settings),
                connection=connection,
                raws=raws,
                problems=wrong,
                memory=memory,
                former=former,
                unread=unread,
                functions=settings.known_functions,
                definitions=known,
                focus=editing.focus,
            )
            if not memory.used.keys() <= meanings.keys():
                meanings = meanings | memory.used
            return compilation

        compilation = _compile_models(models, cached, compile_with, editing.focus)
        files |= models.files
        used = compilation.memory.used
        n_new = 0
        if remember and (files != cached.files or used.keys() != cached.meanings.keys()):
            n_new = compilation.remember(*save_cache(place, files, used), cached.meanings)
            save_names(settings.root, {d.name for f in files.values() for d in f.declarations})
        project = _finished(settings, compilation, files, malloys, place if remember else None)
        project = with_texts(project, settings, compilation, files, find)
    return Loaded(project, compilation, models, known, n_new)


def _models(
    settings: Settings,
    texts: Mapping[str, str],
    read: Callable[[str], str],
    progress: Progress | None,
) -> Models:
    """Return the Malloy files among files."""
    malloys = {path: text for path, text in texts.items() if path.endswith(MALLOY)}
    connection, zone = settings.malloy_connection, settings.timezone.key
    models = Models(malloys, settings.malloy, connection, zone, read)
    models.progress = progress or models.progress
    models.usual_types = has_usual_types(settings.changing)
    return models


def _compile_models(
    models: Models, cached: Cache, compile_with: Callable[..., Compilation], focus: Focus
) -> Compilation:
    """Compile the project with its Malloy files; in a focus, as these were when last compiled."""
    if not models.texts:
        return compile_with(())
    if focus.paths:
        models.files |= {p: cached.files[p] for p in models.texts if p in cached.files}
        return compile_with(models.declared)
    return models.compile(cached.files, compile_with)


def _keys(settings: Settings) -> Keys:
    return Keys(settings.sources, settings.key_prefix, settings.layout)


def _cache_file(settings: Settings, connection: str) -> Path | None:
    kind = digest("cache", connection, *settings.raws, repr(settings.malloy))
    return cache_file(settings.root, kind)


def _parse_files(
    contents: Mapping[str, bytes],
    texts: dict[str, str],
    cached: Mapping[str, Parsed],
    find: Find,
    problems: list[Problem],
    definitions: Definitions,
) -> tuple[dict[str, Parsed], list[Declaration]]:
    """Return the declarations by file, and all declarations, with trees for files that were parsed.

    Files without a frontend, such as Malloy's, are in neither.

    Parameters
    ----------
    texts
        Output: the texts of all files by path are added.
    cached
        The cached declarations by path; unchanged files are not parsed.
    problems
        Output: the problems of the files are added.
    definitions
        The functions and variables that queries may use.
    """
    files: dict[str, Parsed] = {}
    declarations: list[Declaration] = []
    for path, data in contents.items():
        text = decode(data, path, problems)
        suffix = PurePosixPath(path).suffix
        if text is None:
            declarations += names_in_bytes(data, path, suffix)
            continue
        texts[path] = text
        if suffix not in FRONTENDS:
            continue
        content = definitions.content(text)
        file = cached.get(path)
        if file is not None and file.content == content and _reads_alike(file, find):
            declarations += file.declarations
        else:
            try:
                declared, wrong, looked = FRONTENDS[suffix](text, path, find, definitions)
            except PersistError:
                raise
            except Exception as error:
                problems.append(unexpected(error, "this file", Location(path)))
                declarations += NAMES[suffix](text, path)
                continue
            declarations += declared
            file = parsed(content, declared, wrong, reads=looked)
        files[path] = file
        problems += file.problems
    return files, declarations


def _reads_alike(file: Parsed, find: Find) -> bool:
    """Whether the other files that a file depends on are unchanged."""
    return all(digest_of(find(path)) == former for path, former in file.reads)


def _finished(
    settings: Settings,
    compilation: Compilation,
    files: Mapping[str, Parsed],
    malloys: Mapping[str, str],
    place: Path | None,
) -> Project:
    """Return a compiled project with its queries, and with its needs from external tables."""
    queries = tuple(q for path in malloys if path in files for q in files[path].queries)
    programs = place.with_suffix(".programs") if place else None
    contents = (f"{path} {file.content}" for path, file in sorted(files.items()))
    content = digest(repr(settings.defaults), *contents)
    project, externals = (
        replace(compilation.project, queries=queries, needs=(), udfs=compilation.definitions.udfs),
        compilation.externals,
    )
    if externals:
        needs = tuple(map(needed, compilation.needs(externals)))
        needs_of = _needs_by_source(compilation, externals)
        project = replace(project, needs=needs, needs_of=needs_of)
    project = with_programs(project, compilation, programs, content)
    if not has_usual_types(settings.changing):
        project = without_merging(project)
    own = _without_consequences(project, malloys)
    problems = in_order([*own, *_unknown_graphs(settings, project)])
    return replace(project, problems=tuple(problems))


_CONSEQUENCES = re.compile(r"failed-to-fetch-table-schema|.*-not-found|.*-mismatch|.*-undefined")
"""Codes of errors of Malloy that follow if the columns of a table are unknown."""


_TABLE = re.compile(r"table\(\s*['\"]([^'\"]+)")
_IMPORT = re.compile(r"^\s*import\b[^\"']*[\"']([^\"']+)[\"']", re.M)


def _without_consequences(project: Project, malloys: Mapping[str, str]) -> Iterator[Problem]:
    """Yield problems without those of Malloy files that may follow from errors in other files.

    A note says how many are not shown.

    Parameters
    ----------
    malloys
        The texts of the Malloy files by path.
    """
    wrong = {p.location.path for p in project.errors} - malloys.keys()
    unknown = [p for p in project.errors if UNKNOWN_UPSTREAM in p.message]
    affected = {
        p.location.path
        for p in unknown
        if wrong and _reads_any(project, malloys, p.location, wrong)
    }
    imports = {
        path: {posixpath.normpath(posixpath.join(path, "..", name)) for name in _IMPORT.findall(t)}
        for path, t in malloys.items()
    }
    n_before = -1
    while len(affected) > n_before:  # files that import them are affected, too
        n_before = len(affected)
        affected |= {path for path, names in imports.items() if names & affected}
    hidden = Counter[str]()
    for problem in project.problems:
        path = problem.location.path
        if path in affected and _CONSEQUENCES.fullmatch(problem.code):
            hidden[path] += 1
        else:
            yield problem
    for path, n in hidden.items():
        errors = "1 error is" if n == 1 else f"{n} errors are"
        message = f"{errors} not shown: what this file reads has errors of its own"
        yield Problem("consequences", message, Location(path), severity="note")


def _reads_any(
    project: Project, malloys: Mapping[str, str], place: Location, wrong: Collection[str]
) -> bool:
    """Whether the table that is named at a place follows from sources in files with errors."""
    line = malloys.get(place.path, "").splitlines()[place.line - 1 : place.line]
    named = _TABLE.search(line[0], place.column - 1) if line else None
    if named is None:
        return False
    sources = {s.source_id: s for s in (*project.sources, *project.broken)}
    name = re.split(r"[./]", named[1])[-1].lower()
    todo = [i for i, s in sources.items() if s.asset_key[-1].lower() == name]
    reached: set[SourceID] = set()
    while todo:
        source_id = todo.pop()
        if source_id not in reached and source_id in sources:
            reached.add(source_id)
            todo += sources[source_id].reads
    return any(sources[source_id].location.path in wrong for source_id in reached)


def _unknown_graphs(settings: Settings, project: Project) -> Iterator[Problem]:
    """Yield warnings about graphs that annotations need and the settings do not declare."""
    names = [upstream.name for upstream in settings.upstreams]
    for source in project.sources:
        want = source.annotation.want
        for message, hint in warn_unknown_graphs(names, want.needs if want else ()):
            yield Problem("unknown-graph", message, source.location, hint, severity="warning")


def _needs_by_source(
    compilation: Compilation, externals: frozenset[SourceID]
) -> Callable[[SourceID], tuple[Needed, ...]]:
    """Return a function for the needs of one source; those of most sources are never used."""

    @cache
    def find(source_id: SourceID) -> tuple[Needed, ...]:
        return tuple(map(needed, compilation.needs_of_source(source_id, externals)))

    return find


def _finder(
    texts: Mapping[str, str], contents: Mapping[str, bytes], read: Callable[[str], str]
) -> Find:
    """Return a function that reads the text of a project file once."""
    known: dict[str, str | None] = {}

    def find(path: str) -> str | None:
        if path in texts:
            return texts[path]
        if path not in known:
            try:
                known[path] = contents[path].decode("utf-8-sig") if path in contents else read(path)
            except (OSError, ValueError):
                known[path] = None
        return known[path]

    return find


def require(project: Project) -> Project:
    """Return a project that has no errors.

    Raises
    ------
    SourcesError
        The project has errors; it contains all of them.
    """
    if project.errors:
        raise SourcesError(project.errors)
    return project


def sound(project: Project) -> Project:
    """Return a project without files that have errors, and without readers of these.

    Its problems stay, and the names of removed sources stay taken.
    """
    wrong = {p.location.path for p in project.errors}
    left: list[Source] = []
    sound_ids: set[SourceID] = set()
    broken = list(project.broken)
    for source in project.sources:  # each after all that it reads
        if source.location.path not in wrong and sound_ids.issuperset(
            (*source.bindings, *source.compared)
        ):
            left.append(source)
            sound_ids.add(source.source_id)
        else:
            broken.append(as_broken(source, source.bindings))
    return replace(project, sources=tuple(left), broken=tuple(broken))


def _placed(
    settings: Settings, declarations: list[Declaration], unread: Collection[str]
) -> tuple[list[Declaration], Collection[SourceID]]:
    """Return declarations with the environment's locations of raw tables.

    Also return those for which that is uncertain, because a file with errors may define the name.

    Raises
    ------
    SettingsError
        The environment sets the location of a raw table that is unknown or ambiguous.
    """
    keys = _keys(settings)
    raws = {
        source_id(d): ((d.name, *map("/".join, (keys.of(d), keys.full(d)))), d)
        for d in declarations
        if d.raw is not None and d.raw.location is not None
    }
    uncertain = {
        source_id(d): (d.name, *map("/".join, (keys.of(d), keys.full(d))))
        for d in declarations
        if d.raw is None and d.query is None
    }
    unplaced: set[SourceID] = set()
    placed: dict[SourceID, str] = {}
    for name, location in settings.raws:
        matches = [s for s, (names, _) in raws.items() if name in names]
        if len(matches) != 1:
            why = "is not a raw table" if not matches else "is ambiguous: several raw tables match"
            known = sorted(key for (_, key, _), _ in raws.values())
            raise SettingsError(
                f"`[env.{settings.environment}.raw] {name}` {why}",
                hint=did_you_mean(name, [*known, *(d.name for _, d in raws.values())])
                or f"known raw tables: {', '.join(known) or 'none'}",
                location=place_in(settings.root, ("env", settings.environment, "raw", name)),
            )
        placed[matches[0]] = location
        is_bare = name == raws[matches[0]][1].name
        if any(name in others for others in uncertain.values()) or (unread and is_bare):
            unplaced.add(matches[0])
    result = [
        replace(d, raw=replace(d.raw, location=placed[source_id(d)]))
        if d.raw is not None and source_id(d) in placed
        else d
        for d in declarations
    ]
    return result, unplaced


def _raw_facts(
    settings: Settings,
    declarations: list[Declaration],
    problems: list[Problem],
    unplaced: Collection[SourceID],
    editing: Editing,
) -> dict[SourceID, RawFacts]:
    facts: dict[SourceID, RawFacts] = {}
    for declaration in declarations:
        raw = declaration.raw
        if raw is None:
            continue
        columns = declaration.columns or None
        is_read_here = raw.external is not None or raw.format in ("delta", *FILE_FORMATS)
        is_read_here &= raw.external is None or raw.location != raw.external.catalog_place
        is_read_here &= raw.format != "postgres"  # its connector checks the URL
        more = ICEBERG_SCHEMES if raw.format == "iceberg" else ()
        wrong = unknown_scheme(raw.location, more) if raw.location and is_read_here else None
        if wrong:
            problem = Problem("location-scheme", wrong[0], declaration.location, wrong[1])
            problems.append(problem)
        elif source_id(declaration) in unplaced:
            columns = None  # the errors of the other file explain it
        elif columns is None and raw.format == OUTSIDE:
            columns = ()
        elif columns is None:
            try:
                columns = editing.find_columns(raw, settings.resolve(raw.location or ""))
            except (StorageError, UntrustedError) as error:
                problems.append(
                    Problem("raw-columns", error.message, declaration.location, error.hint)
                )
        facts[source_id(declaration)] = RawFacts(
            settings.place_of(raw), columns, public_options(raw)
        )
    return facts
