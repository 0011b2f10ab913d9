"""Declarations → `Project`: an ordered tuple of passes."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.sql_inlining import NO_DEFINITIONS, Definitions
from persist_assets.compiler.names import Names
from persist_assets.compiler.passes.annotations import check_annotations
from persist_assets.compiler.passes.conditions import inline_conditions
from persist_assets.compiler.passes.meanings import compile_meaning, hidden_versions
from persist_assets.compiler.passes.names import collect, resolve_names
from persist_assets.compiler.passes.order import put_in_order, take_over
from persist_assets.compiler.state import Compilation, Focus, Memory, RawFacts
from persist_assets.core.errors import (
    Problem,
    SourcesError,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Mapping,
    )

    from persist_assets.compiler.names import Keys
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import Query, SourceID
    from persist_assets.core.model.sources import Declaration


def compile_project(
    declarations: Iterable[Declaration],
    *,
    keys: Keys,
    connection: str,
    raws: Mapping[SourceID, RawFacts],
    problems: Iterable[Problem] = (),
    memory: Memory | None = None,
    former: Compilation | None = None,
    unread: Iterable[str] = (),
    functions: Collection[str] | None = None,
    definitions: Definitions = NO_DEFINITIONS,
    focus: Focus | None = None,
) -> Compilation:
    """Compile declarations.

    Parameters
    ----------
    declarations
        The declarations of all files, in any order.
    keys
        How asset keys are made.
    connection
        A digest of everything about the session that changes results.
    raws
        The known facts of every raw table.
    problems
        The problems found by the frontends; they become the project's.
    memory
        Results of earlier compilations; queries of declarations may lack trees then.
    former
        A compilation of most of these declarations, whose results are taken over. The result is a
        draft: it has columns, but no problems and checks.
    unread
        The paths of unreadable files; their problems are in `problems`.
    functions
        The functions besides Spark's own that queries may call; None: any.
    definitions
        The functions and variables that conditions of checks may use; queries have them inlined.
    focus
        What of the project is compiled; None: everything.
    """
    memory = memory or Memory()
    compilation = Compilation(connection, raws, list(problems), memory)
    compilation.former = former
    compilation.shown_types = former.shown_types if former else {}
    compilation.functions, compilation.definitions = functions, definitions
    compilation.focus = focus or compilation.focus
    compilation.unread = keys.of_unread(unread)
    ordered = sorted(
        declarations, key=lambda d: (d.location.path, d.location.line, d.location.column)
    )
    compilation.followed = any(
        d.annotation.is_incremental or d.annotation.partition for d in ordered
    )
    collect(compilation, ordered, keys)
    for compile_pass in PASSES if former is None else DRAFT_PASSES:
        compile_pass(compilation)
    compilation.former = None  # it would keep all earlier compilations alive
    return compilation


def resolve_query(
    project: Project, query: Query, language: str | None = None
) -> tuple[SourceID, ...]:
    """Return the SourceIDs of the references in a query that is in no file of the project.

    They may be broken sources of the project, which are not in its `by_id`.

    Parameters
    ----------
    language
        The language of its author.

    Raises
    ------
    SourcesError
        Some references cannot be resolved.
    """
    every = (
        *project.sources,
        *project.broken,
    )  # broken ones keep their names
    keys = ((key, s.source_id) for s in every for key in (s.asset_key, s.full_key))
    names = Names(keys, unread=project.unread)
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
    inline_conditions,
    check_annotations,
)

DRAFT_PASSES: tuple[Callable[[Compilation], None], ...] = (
    resolve_names,
    put_in_order,
    take_over,
    compile_meaning,
)


@contextmanager
def nothing_collected() -> Generator[None]:
    """Disable the cyclic garbage collector within the block.

    Loading creates millions of objects that live until it ends. Scanning them repeatedly took a
    third of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
