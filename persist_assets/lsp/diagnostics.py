"""Problems of a project → diagnostics of files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lsprotocol.types import Diagnostic, DiagnosticSeverity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.errors import Problem, Severity
    from persist_assets.lsp.positions import Text

_SEVERITIES: Mapping[Severity, DiagnosticSeverity] = {
    "error": DiagnosticSeverity.Error,
    "warning": DiagnosticSeverity.Warning,
    "note": DiagnosticSeverity.Information,
}


def diagnostics_of(problems: Iterable[Problem], text: Text) -> list[Diagnostic]:
    """Return the diagnostics of one file.

    Parameters
    ----------
    problems
        Its problems.
    text
        Its text.
    """
    return [
        Diagnostic(
            range=text.range_of(problem.location),
            message=problem.message + (f"\nhint: {problem.hint}" if problem.hint else ""),
            severity=_SEVERITIES[problem.severity],
            code=problem.code,
            source="persist",
        )
        for problem in problems
    ]
