"""`check`."""

from typing import Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    command,
    err,
    out,
    print_json,
    print_problem,
    problem_json,
)
from persist_assets.core.errors import in_order
from persist_assets.core.model.sources import Source


@command("check", is_confined=True)
def check(invocation: Invocation) -> None:
    """Compile all sources and report their problems."""
    from persist_assets.compiler.programs import never_followed
    from persist_assets.compiler.remarks import (
        empty_files,
        ignored_files,
        missing_modules,
        useless_selectors,
    )

    project = invocation.loaded.project
    # Only here, because it derives programs, which loading does not.
    settings = invocation.settings
    remarks = [*ignored_files(settings)]
    remarks += (*empty_files(settings, project), *missing_modules(settings, project))
    remarks += useless_selectors(settings, project)
    problems = in_order([*project.problems, *never_followed(project), *remarks])
    if invocation.as_json:
        print_json(
            {
                "sources": [source_json(s) for s in project.sources],
                "problems": [problem_json(p) for p in problems],
            }
        )
    else:
        for problem in problems:
            print_problem(invocation, problem)
        for source in project.sources:
            for note in () if source.function else source.notes:  # a function's notes are warnings
                err.print(
                    f"{source.location}: [cyan]note[/]: {escape(source.name)} is {escape(note)}",
                    soft_wrap=True,
                )
        n, persisted = len(project.sources), len(project.persisted)
        wrong = len(project.errors)
        errors = "1 error" if wrong == 1 else f"{wrong} errors"
        out.print(f"{n} source{'s' * (n != 1)}, {persisted} persisted, {errors}")
    if project.errors:
        raise typer.Exit(3)


def source_json(source: Source) -> dict[str, Any]:
    """Return a source as JSON."""
    return {
        "source_id": source.source_id,
        "asset_key": source.key,
        "language": source.language,
        "kind": source.kind.value,
        "persisted": source.persisted,
        "build_id": source.build_id,
        "columns": [{"name": c.name, "type": c.type} for c in source.columns],
        "reads": list(source.reads),
        "path": source.location.path,
        "line": source.location.line,
        "description": source.description,
        "notes": list(source.notes),
    }
