"""Declarations → `Project`: an ordered tuple of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.compiler.names import Names, file_key
from persist_assets.compiler.passes.annotations import check_annotations
from persist_assets.compiler.passes.meanings import compile_meaning, hidden_versions
from persist_assets.compiler.passes.names import collect, resolve_names
from persist_assets.compiler.passes.order import put_in_order, take_over
from persist_assets.compiler.state import Compilation, Memory, RawFacts
from persist_assets.core.errors import (
    Problem,
    SourcesError,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Mapping,
    )

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Query, SourceID
    from persist_assets.core.model.sources import Declaration


def compile_project(
    declarations: Iterable[Declaration],
    *,
    sources_dir: str,
    connection: str,
    raws: Mapping[SourceID, RawFacts],
    problems: Iterable[Problem] = (),
    memory: Memory | None = None,
    key_prefix: tuple[str, ...] = (),
    former: Compilation | None = None,
    unread: Iterable[str] = (),
) -> Compilation:
    """Compile declarations.

    Parameters
    ----------
    declarations
        Of all files, in any order.
    sources_dir
        Where asset keys start, relative to the project root.
    connection
        Digest of everything about the session that changes results.
    raws
        For every raw table what is known of it.
    problems
        Already found by the frontends; they become the project's.
    memory
        Of earlier compilations; the queries of declarations may be without trees then.
    key_prefix
        What asset keys begin with.
    former
        A compilation of most of these declarations, of which nothing is compiled a second time.
        The result is a draft: it tells columns, and lacks problems and checks.
    unread
        Paths of files that cannot be read, which is among the problems.

    """
    memory = memory or Memory()
    compilation = Compilation(sources_dir, connection, raws, list(problems), memory)
    compilation.former = former
    compilation.unread = tuple(file_key(p, sources_dir, key_prefix) for p in unread)
    ordered = sorted(
        declarations, key=lambda d: (d.location.path, d.location.line, d.location.column)
    )
    compilation.followed = any(
        d.annotation.refresh == "incremental" or d.annotation.partition for d in ordered
    )
    collect(compilation, ordered, key_prefix)
    for compile_pass in PASSES if former is None else DRAFT_PASSES:
        compile_pass(compilation)
    compilation.former = None  # it would keep all earlier ones alive
    return compilation


def resolve_query(
    project: Project, query: Query, language: str | None = None
) -> tuple[SourceID, ...]:
    """Return what the references of a query mean that stands in no file of the project.

    That may be broken sources of the project, which are not in its `by_id`.

    Parameters
    ----------
    language
        Of its author.

    Raises
    ------
    SourcesError
        Some mean nothing.
    """
    every = (*project.sources, *project.broken)  # a name means no other source if one is broken
    names = Names(((s.asset_key, s.source_id) for s in every), unread=project.unread)
    targets = [names.resolve(reference, None, language) for reference in query.references]
    wrong = [f for f in targets if isinstance(f, Problem)]
    for reference, source_id in zip(query.references, targets, strict=True):
        if not isinstance(source_id, Problem):
            wrong += hidden_versions(language, reference, project.by_id.get(source_id))
            if names.others(reference, None, language) is not None:
                message = (
                    f"`{'.'.join(reference.parts)}` may be defined in a file that cannot be read"
                )
                hint = "qualify the name, or fix that file"
                wrong.append(Problem("ambiguous-name", message, reference.location, hint))
    if wrong:
        raise SourcesError(wrong)
    return tuple(f for f in targets if not isinstance(f, Problem))


PASSES: tuple[Callable[[Compilation], None], ...] = (
    resolve_names,
    put_in_order,
    compile_meaning,
    check_annotations,
)

DRAFT_PASSES: tuple[Callable[[Compilation], None], ...] = (
    resolve_names,
    put_in_order,
    take_over,
    compile_meaning,
)
